//! markdown.
