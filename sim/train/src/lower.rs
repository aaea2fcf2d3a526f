//! From plan to task graph: the only code that knows both plans and operations.
//!
//! Identical layers are folded: a task carries the operations of many layers back to back. A micro-batch becomes
//! a lead (what comes before the first exchange), the exchange, attention that overlaps it, and the rest; see
//! `training.rs` for why this keeps the step time of layer-by-layer execution.

pub mod training;
