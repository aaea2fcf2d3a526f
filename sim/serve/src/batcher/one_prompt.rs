//! One whole prompt at a time, first come, first served, before anyone decodes.
//!
//! Source: the prefill replicas of DistServe (arXiv:2401.09670, section 4.3: prompts that fill the GPU gain nothing from each other) and the
//! means that ThunderServe's planner counts with (arXiv:2502.09334). Where a replica has several micro-batches under way, one prompt for
//! each. A prompt takes all its blocks at once and leaves a watermark free.

use crate::replica::batcher::{Batcher, Cut, Reserve};
use crate::replica::{Composed, Replica};

/// The policy.
#[derive(Debug)]
pub struct OnePrompt;

impl Batcher for OnePrompt {
    fn name(&self) -> &'static str {
        "one-prompt"
    }

    fn about(&self) -> &'static str {
        "prefill first, one whole prompt at a time (prefill of DistServe)"
    }

    fn cut(&self) -> Cut {
        Cut::Never
    }

    fn keeps_budget(&self) -> bool {
        false
    }

    fn compose(&self, replica: &mut Replica<'_>, composed: &mut Composed) {
        for _ in 0..replica.n_lanes() {
            let left = replica.prompt_tokens_left(composed);
            if !replica.admit(composed, left, Reserve::Whole, Cut::Never) {
                break;
            }
        }
        if composed.n_chunk_tokens() == 0 {
            replica.decode_all(composed);
        }
    }
}
