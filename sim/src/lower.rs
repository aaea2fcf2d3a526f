//! lower.
