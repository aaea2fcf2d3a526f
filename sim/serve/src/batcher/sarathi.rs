//! Sarathi-Serve (arXiv:2403.02310): stall-free batches of a fixed token budget, decodes first, then one prompt after another.
//!
//! Source of details: microsoft/sarathi-serve, `sarathi/core/scheduler/sarathi_scheduler.py` (Apache-2.0): the same order as vLLM V1, but an
//! admitted prompt takes all its blocks at once and leaves a watermark free, so prompts are not preempted half-way.

use crate::replica::batcher::Batcher;

/// The policy.
#[derive(Debug)]
pub struct Sarathi;

impl Batcher for Sarathi {
    fn name(&self) -> &'static str {
        "sarathi"
    }

    fn about(&self) -> &'static str {
        "chunked prefill within a fixed token budget, blocks of a whole prompt at admission (arXiv:2403.02310)"
    }
}
