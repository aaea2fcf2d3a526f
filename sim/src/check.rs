//! check.
