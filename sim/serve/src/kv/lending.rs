//! Replicas that lend each other blocks: DistKV-LLM and Infinite-LLM (arXiv:2401.02669).
//!
//! A request's keys and values may lie on several replicas, and attention is computed where they lie: queries travel, which is less than
//! keys as soon as a part holds more than about one token. Here are the terms; `ledger.rs` is the central view made of heartbeats, the
//! debts and the cancelling of their cycles; `rates.rs` models how fast replicas decode while keys lie elsewhere, and `planner.rs`
//! moves blocks by it. What one replica has borrowed and lent is in `replica/loans.rs`, what passes between them in `fleet/run/lending.rs`.
//! Units: blocks, ticks of 1/1024 ns, seconds at the border.

pub mod ledger;
pub mod planner;
pub mod rates;
#[cfg(test)]
mod tests;

use hw::{Bytes, BytesPerSecond, Seconds};

use engine::model::Model;

/// Whose keys and values may lie on other replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Borrow {
    /// Nobody's.
    #[default]
    Never,
    /// Those of whoever finds too few blocks (DistKV-LLM, the paper's first version).
    WhenShort,
    /// Those of requests that their replica does not hold alone (Infinite-LLM, its second version).
    WhenLong,
}

impl Borrow {
    /// Every rule with its name in scenarios.
    pub const ALL: [(&'static str, Self); 3] =
        [("never", Self::Never), ("when-short", Self::WhenShort), ("when-long", Self::WhenLong)];
}

/// On what terms the replicas of a fleet share memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// Whose keys and values may lie elsewhere.
    pub borrow: Borrow,
    /// Whether a planner moves blocks at every heartbeat.
    pub plans_moves: bool,
    /// Time between heartbeats.
    pub heartbeat: Seconds,
    /// Bytes of a block on all GPUs of a replica together.
    pub block_bytes: u64,
    /// What each group does.
    pub parties: Vec<Party>,
}

impl Terms {
    /// Blocks that others lend a replica of a group at most, where groups have so many replicas.
    pub fn lendable(&self, group: usize, n_replicas: &[u32]) -> u64 {
        if self.borrow == Borrow::Never || !self.parties[group].borrows {
            return 0;
        }
        let mut blocks = 0;
        for (index, (party, n)) in self.parties.iter().zip(n_replicas).enumerate() {
            let others = n.saturating_sub(u32::from(index == group));
            if party.is_counted_on_by(&self.parties[group]) {
                blocks += u64::from(party.lent_max) * u64::from(others);
            }
        }
        blocks
    }
}

/// What the replicas of a group do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Party {
    /// Most blocks that a replica lends; 0 lends nothing.
    pub lent_max: u32,
    /// Whether a replica borrows.
    pub borrows: bool,
    /// Whether it hands its sequences on to other replicas. Blocks of such a sequence come free only when another replica has taken it in, so
    /// nobody who takes it in may wait for those blocks: these replicas borrow among themselves alone, and what they lend to others is
    /// not counted on.
    pub hands_on: bool,
    /// Replicas per node; neighbours are asked first.
    pub per_node: u32,
    /// Messages to other replicas.
    pub exchange: Exchange,
}

impl Party {
    /// A group that neither lends nor borrows.
    pub const APART: Self =
        Self { lent_max: 0, borrows: false, hands_on: false, per_node: 1, exchange: Exchange::FREE };

    /// Whether it may lend to another party.
    pub const fn may_lend_to(&self, debtor: &Self) -> bool {
        self.hands_on || !debtor.hands_on
    }

    /// Whether another party may admit requests that need what it lends.
    pub const fn is_counted_on_by(&self, debtor: &Self) -> bool {
        self.hands_on == debtor.hands_on
    }
}

/// What replicas tell each other over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchange {
    /// Bytes of queries and results per token and layer: `H·d·b` there, `H·d·b + 8·H` back (section 4 of the paper).
    pub bytes_per_token: u64,
    /// Layers.
    pub n_layers: u64,
    /// Start-up of a message.
    pub latency: Seconds,
    /// Bandwidth of a replica to another one.
    pub bandwidth: BytesPerSecond,
}

impl Exchange {
    /// Messages that take no time.
    pub const FREE: Self =
        Self { bytes_per_token: 0, n_layers: 0, latency: Seconds::ZERO, bandwidth: BytesPerSecond::ZERO };

    /// Exchange of a model whose elements take two bytes.
    pub const fn of_model(model: &Model, latency: Seconds, bandwidth: BytesPerSecond) -> Self {
        let queries = model.n_heads * model.head_dim * 2;
        Self { bytes_per_token: 2 * queries + 8 * model.n_heads, n_layers: model.n_layers, latency, bandwidth }
    }

    /// Time of the queries of `n` tokens and their results through all layers; none without tokens.
    pub fn time(&self, n: u64) -> Seconds {
        if n == 0 || self.n_layers == 0 {
            return Seconds::ZERO;
        }
        let layers = hw::real(self.n_layers);
        (self.latency + Bytes(n * self.bytes_per_token) / self.bandwidth) * layers
    }

    /// Blocks of so many bytes that it carries in a time.
    pub fn blocks_in(&self, time: Seconds, block_bytes: u64) -> u32 {
        let bytes = hw::whole(self.bandwidth.get() * time.get());
        u32::try_from(bytes / block_bytes.max(1)).unwrap_or(u32::MAX)
    }
}
