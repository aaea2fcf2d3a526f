//! Sarathi-Serve (arXiv:2403.02310): stall-free batches of a fixed token budget, decodes first, then one prompt after another.
//!
//! Source of details: microsoft/sarathi-serve, `sarathi/core/scheduler/sarathi_scheduler.py` (Apache-2.0): the same order as vLLM V1, but an
//! admitted prompt takes all its blocks at once and leaves a watermark free, so prompts are not preempted half-way.

use crate::replica::batcher::Batcher;
use crate::replica::{Composed, Replica};

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

    fn compose(&self, replica: &mut Replica<'_>, composed: &mut Composed) {
        replica.decode_all(composed);
        replica.continue_prefills(composed, replica.tokens_left(composed));
        while composed.n_preempted == 0 {
            let left = replica.tokens_left(composed);
            if !replica.admit(composed, left, self.reserve(), self.cut()) {
                break;
            }
        }
    }
}
