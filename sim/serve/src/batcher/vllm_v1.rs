//! vLLM V1: every iteration decodes, and prompts share what is left of its token budget.
//!
//! Source: vllm-project/vllm, `vllm/v1/core/sched/scheduler.py` (Apache-2.0): running requests first, in order of admission, then
//! waiting ones as long as none was preempted; blocks are taken chunk by chunk. Approximation: decoding sequences come before
//! prompts under way, which differs only where the budget is smaller than the number of sequences, and that is not allowed.

use crate::replica::batcher::{Batcher, Reserve};

/// The policy.
#[derive(Debug)]
pub struct VllmV1;

impl Batcher for VllmV1 {
    fn name(&self) -> &'static str {
        "vllm-v1"
    }

    fn about(&self) -> &'static str {
        "chunked prefill: decodes first, prompts fill the token budget, blocks chunk by chunk (vLLM V1)"
    }

    fn keeps_preempted(&self) -> bool {
        true
    }

    fn reserve(&self) -> Reserve {
        Reserve::Chunk
    }
}
