//! svg.
