//! Keys and values: the blocks of a replica (`pool.rs`), and how replicas lend each other blocks (`lending.rs`).

pub mod lending;
pub mod pool;
