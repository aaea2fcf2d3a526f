//! How an engine computes long prompts, after Qwen2.5-1M (arXiv:2501.15383): how it cuts them (`chunks.rs`), how it reads beyond the trained
//! range (`dual_chunk.rs`), how it knows that a sparse pattern keeps enough (`refinement.rs`), and what no cut can beat (`least.rs`). What sparse attention costs is in the cost
//! model (`engine::cost::sparse_attention`).

pub mod chunks;
pub mod dual_chunk;
pub mod least;
pub mod refinement;
