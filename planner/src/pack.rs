//! Packing algorithms that at least two policies share.
