//! Limits of an engine, and what it does when blocks run out.

use std::num::NonZeroU32;

use super::{CapacityPolicy, Gather, Order, PromptRank};
use crate::adapters::AdapterLimits;
use crate::frontend::Frontend;
use crate::kv::remote::Remote;
use crate::kv::tiers::{N_TIERS, Tier};
use crate::kv::{EVICTIONS, Eviction};
use hw::Tick;

/// What happens to a sequence that has to give up its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// Its keys and values are dropped and computed again.
    Recompute,
    /// They move to host memory and back while the engine waits; recomputed where the host is full.
    Swap {
        /// Blocks of host memory.
        host_blocks: u32,
        /// Ticks that a block takes over the host link.
        ticks_per_block: Tick,
    },
}

/// Limits of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences that run at once.
    pub sequences_max: u32,
    /// Tokens of a batch; at least `sequences_max`.
    pub tokens_max: u32,
    /// Prompt and output tokens of a request; longer ones are refused.
    pub context_max: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Blocks that a sequence takes besides those of its tokens: full windows of its layers, and states.
    pub blocks_per_sequence: u32,
    /// Blocks of device memory.
    pub kv_blocks: u32,
    /// Blocks that admissions of whole prompts leave free.
    pub watermark_blocks: u32,
    /// Which blocks must be free for whoever is admitted.
    pub capacity_policy: CapacityPolicy,
    /// What happens when blocks run out.
    pub preemption: Preemption,
    /// Who comes first, and who gives way when blocks run out.
    pub order: Order,
    /// Whether prefixes that requests share are kept.
    pub shares_prefixes: bool,
    /// Which of them leaves a full cache first.
    pub eviction: &'static Eviction,
    /// Where prefixes go that leave the device.
    pub tiers: [Tier; N_TIERS],
    /// The store that all replicas of the fleet share, where they have one.
    pub remote: Option<Remote>,
    /// Iterations that only decode between two looks for requests that have come. An iteration with prompts is followed by a look too, or has one as it begins where
    /// the host is ahead.
    pub recv_interval: NonZeroU32,
    /// How long prompts wait for others, where they do.
    pub gather: Option<Gather>,
    /// Which rank of data-parallel attention computes a prompt, on a replica that computes prompts for others.
    pub prompt_rank: PromptRank,
    /// Room for adapters, where the engine serves some beside the model.
    pub adapters: Option<AdapterLimits>,
    /// Who hands its tokens on.
    pub frontend: Frontend,
    /// Tokens of the largest image that the model takes: an iteration may encode as many whatever its own are; 0 without an encoder.
    pub image_tokens_max: u32,
}

impl Limits {
    /// Room for all, in blocks of 16 tokens, in order of arrival, without shared prefixes and tiers: what others change in part.
    pub const ROOMY: Self = Self {
        sequences_max: 256,
        tokens_max: 4096,
        context_max: 100_000,
        block_tokens: 16,
        blocks_per_sequence: 0,
        kv_blocks: 100_000,
        watermark_blocks: 0,
        capacity_policy: CapacityPolicy::MaxUtilization,
        preemption: Preemption::Recompute,
        order: Order::Arrival,
        shares_prefixes: false,
        eviction: &EVICTIONS[0],
        tiers: crate::kv::tiers::NO_TIERS,
        remote: None,
        recv_interval: NonZeroU32::MIN,
        gather: None,
        prompt_rank: PromptRank::Even,
        adapters: None,
        frontend: Frontend::NONE,
        image_tokens_max: 0,
    };

    /// Blocks of a sequence of so many tokens.
    pub const fn blocks_of(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_tokens) + self.blocks_per_sequence
    }

    /// Blocks of a sequence that no other replica holds for it: its windows and states, which attention over lent blocks does not read, and the last one of
    /// its tokens.
    pub const fn home_blocks(&self) -> u32 {
        self.blocks_per_sequence + 1
    }

    /// Sequences of full length that the blocks hold.
    pub const fn full_sequences(&self) -> u32 {
        match self.blocks_of(self.context_max) {
            0 => u32::MAX,
            each => self.kv_blocks / each,
        }
    }
}
