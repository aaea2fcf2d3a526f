//! Keys and values: the blocks of a replica (`pool.rs`), where they go that leave the device (`tiers.rs`), and how replicas
//! lend each other blocks (`lending.rs`).

pub mod lending;
pub mod pool;
mod sparse;
pub mod tiers;
