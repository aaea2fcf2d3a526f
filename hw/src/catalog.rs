//! Catalogue.
