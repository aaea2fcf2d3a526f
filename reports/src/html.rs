//! html.
