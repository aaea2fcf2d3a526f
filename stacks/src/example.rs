//! What plans of tests are made of.

use serve::deployment::EngineOptions;

/// An engine of 128 sequences and 4096 tokens, without a limit of the context.
pub(crate) fn engine(batcher: &str) -> EngineOptions {
    EngineOptions {
        batcher: batcher.to_owned(),
        sequences_max: 128,
        tokens_max: 4096,
        context_max: None,
        prompts_max: None,
        batch_context_max: None,
        block_tokens: 16,
        kv_tokens: 1 << 20,
        watermark_blocks: 0,
        prefix_cache: false,
        recv_interval: std::num::NonZeroU32::MIN,
        capacity_policy: serve::replica::CapacityPolicy::MaxUtilization,
        prompt_rank: serve::replica::PromptRank::Even,
        batch_wait: None,
    }
}
