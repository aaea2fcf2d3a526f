//! skrull-sim
