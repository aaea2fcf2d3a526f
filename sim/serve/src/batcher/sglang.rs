//! SGLang: prompts first, in batches of their own; who decodes waits.
//!
//! Source: sgl-project/sglang, `python/sglang/srt/managers/scheduler.py` (`get_next_batch_to_run`) and `schedule_policy.py` (`PrefillAdder`,
//! Apache-2.0), without `--enable-mixed-chunk`: a prompt that was cut goes on first, then others fill the chunk; decoding goes on when no
//! prompt can be admitted. A worker that computes prompts for others does so on the ranks of attention that were drawn for them (`replica/ranks.rs`). Approximation: memory is reserved for the whole prompt, not for a share of the output to come.

use crate::replica::batcher::Batcher;
use crate::replica::{Composed, Replica};

/// The policy.
#[derive(Debug)]
pub struct Sglang;

impl Batcher for Sglang {
    fn name(&self) -> &'static str {
        "sglang"
    }

    fn about(&self) -> &'static str {
        "prompts first, in chunks that share no iteration with decoding sequences (SGLang)"
    }

    /// The budget is that of prompts (`--chunked-prefill-size`).
    fn counts_decoding(&self) -> bool {
        false
    }

    fn compose(&self, replica: &mut Replica<'_>, composed: &mut Composed) {
        if replica.draws_ranks() {
            replica.compute_on_drawn(composed, self);
        } else {
            replica.continue_prefills(composed, |replica| replica.tokens_of_rank());
            while composed.n_preempted == 0 {
                let left = replica.prompt_tokens_left(composed);
                if !replica.admit(composed, left, self.reserve(), self.cut()) {
                    break;
                }
            }
        }
        // On a worker that computes prompts for others, those that have ended leave so.
        if composed.n_chunk_tokens() == 0 {
            replica.decode_all(composed);
        }
    }
}
