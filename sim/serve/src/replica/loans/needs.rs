//! What a replica tells the fleet of its memory: where blocks of its sequences lie, and what its next iteration would take.

use crate::kv::lending::Exchange;
use hw::Tick;

/// Blocks of a sequence on another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where they are.
    pub lender: u32,
    /// How many.
    pub blocks: u32,
}

/// What attention on another replica costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbour {
    /// Ticks per key there.
    pub rate: Tick,
    /// Messages from and to there.
    pub exchange: Exchange,
}

/// What the next iteration would take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Blocks of those who run.
    pub growth: u32,
    /// Those who wait, in order, as far as the iteration would take them in.
    pub heads: Vec<Head>,
}

/// Somebody who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Request.
    pub request: u32,
    /// Blocks that it gets for itself.
    pub blocks: u32,
    /// Blocks that it takes besides: of cached prefixes that nobody holds yet, and of its first token.
    pub held: u32,
    /// Blocks that stay free beside it.
    pub spare: u32,
    /// Whether the replica does not hold it alone.
    pub is_long: bool,
    /// Whether it comes back from the host, all of it to here.
    pub(super) is_swapped: bool,
}
