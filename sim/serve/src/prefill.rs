//! How an engine computes long prompts, after Qwen2.5-1M (arXiv:2501.15383): how it cuts them (`chunks.rs`), and what no cut can beat (`least.rs`). What
//! sparse attention costs is in the cost model (`engine::cost::sparse_attention`).

pub mod chunks;
pub mod least;
