//! Serving: requests arrive over time, an engine batches them, a fleet shares them.
//!
//! Read `request.rs` (what arrives), `step_cost.rs` (how long an iteration takes), `replica.rs` (the engine's state) and
//! `fleet.rs` (groups of replicas) with `fleet/run.rs` (the event loop over all of them), in that order. Batching policies are in `batcher/`, routing policies in
//! `router/`, one file each; rules that somebody brings along are asked through `own.rs`. Units: tokens, KV blocks, `hw::Time` at the borders and ticks inside.

pub mod adapters;
pub mod api_server;
pub mod arrivals;
pub mod assignment;
pub mod batcher;
pub mod beginnings;
pub mod capacity;
pub mod check;
pub mod dataset;
pub mod deployment;
pub mod drafter;
pub mod engine_constants;
pub mod engine_formats;
pub mod engine_preset;
pub mod engine_reduces;
pub mod first_token;
pub mod fleet;
pub mod frontend;
pub mod images;
pub mod kept;
pub mod kv;
pub mod layer_split;
pub mod lengths;
pub mod long;
#[cfg(test)]
mod measured;
pub mod memory_rule;
pub mod metrics;
pub mod outlook;
pub mod own;
pub mod pool;
pub mod process_memory;
pub mod records;
pub mod replica;
pub mod request;
pub mod router;
pub mod sampler;
pub mod samples;
pub mod sessions;
pub mod speculation;
pub mod step_cost;
pub mod token_gaps;
pub mod trace;
pub mod transfer;
