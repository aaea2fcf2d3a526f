//! Instances that lend each other KV memory: DistKV-LLM / Infinite-LLM (arXiv:2401.02669).
//!
//! A request's keys and values may lie on several instances, and attention is computed where they lie: queries travel, which is less than
//! keys as soon as a part holds more than about one token. `pool.rs` is the memory with its debts (rManagers), `ledger.rs` the central view made
//! of heartbeats (gManager) and the cancelling of debt cycles, `performance.rs` the model of an instance's rate and the planner that moves
//! blocks by it, `run.rs` the event loop over all instances.
//! Units: blocks of so many tokens, ticks of 1/1024 ns.

pub mod ledger;
pub mod performance;
pub mod pool;
pub mod run;
#[cfg(test)]
mod tests;

use hw::{Bytes, BytesPerSecond, Seconds};

use engine::model::Model;

/// What instances tell each other over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchange {
    /// Bytes of queries and results per decoding sequence, layer and lender: `H·d·b` there, `H·d·b + 8·H` back (section 4).
    pub bytes_per_sequence: u64,
    /// Layers.
    pub n_layers: u64,
    /// Start-up of a message.
    pub latency: Seconds,
    /// Bandwidth of an instance to another one.
    pub bandwidth: BytesPerSecond,
}

impl Exchange {
    /// Exchange of a model whose elements take two bytes.
    #[must_use]
    pub const fn of(model: &Model, latency: Seconds, bandwidth: BytesPerSecond) -> Self {
        let queries = model.n_heads * model.head_dim * 2;
        Self { bytes_per_sequence: 2 * queries + 8 * model.n_heads, n_layers: model.n_layers, latency, bandwidth }
    }

    /// Time of the queries of `n` tokens and their results through all layers; none without tokens.
    #[must_use]
    pub fn time(&self, n: u64) -> Seconds {
        if n == 0 {
            return Seconds::ZERO;
        }
        let layers = hw::Tokens(self.n_layers).as_f64();
        (self.latency + Bytes(n * self.bytes_per_sequence) / self.bandwidth) * layers
    }
}
