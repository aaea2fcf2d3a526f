//! Measured training steps through the event engine: what is predicted, over what was measured.
//!
//! A table is recognised by its header (`tables.rs`), its reader makes a row of every line (`simumax.rs`, `torchtitan.rs`, `bridge.rs`,
//! `llm_foundry.rs`, `megatron.rs`, `sailor.rs`): a problem as it was run, or a reason why there is none (`reason.rs`). `play.rs` predicts its step and its memory, `summary.rs`
//! sets them beside the measurement, `text.rs` and `written.rs` write them. Units: seconds, bytes.

mod beside;
mod bridge;
pub mod constants;
mod dominant;
pub mod expert_layer;
pub mod left_out;
mod llm_foundry;
#[cfg(test)]
mod measured;
mod megatron;
mod megatron_shapes;
mod models;
mod order;
pub mod play;
mod releases;
pub mod row;
mod sailor;
mod sailor_tables;
pub mod select;
pub(crate) mod setting;
mod simumax;
pub mod summary;
pub mod tables;
mod test_hosts;
mod test_memory;
pub(crate) mod text;
mod torchtitan;
pub(crate) mod written;
