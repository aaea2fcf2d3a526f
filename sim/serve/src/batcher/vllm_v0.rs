//! vLLM V0: whole prompts first, decodes only when no prompt can be admitted.
//!
//! Source: vllm-project/vllm before V1, `vllm/core/scheduler.py` (Apache-2.0), default policy without chunked prefill: prompts of one
//! iteration fit its token budget together, take all their blocks and leave a watermark free; a decode iteration preempts the
//! latest admitted when blocks run out.

use crate::replica::batcher::{Batcher, Cut};
use crate::replica::{Composed, Replica};

/// The policy.
#[derive(Debug)]
pub struct VllmV0;

impl Batcher for VllmV0 {
    fn name(&self) -> &'static str {
        "vllm-v0"
    }

    fn about(&self) -> &'static str {
        "prefill first: whole prompts stall the decoding sequences (vLLM V0)"
    }

    fn cut(&self) -> Cut {
        Cut::Never
    }

    fn keeps_budget(&self) -> bool {
        false
    }

    fn compose(&self, replica: &mut Replica<'_>, composed: &mut Composed) {
        loop {
            // What was answered before takes no room, and counts among the tokens all the same.
            let left = replica.prompt_tokens_left(composed);
            if !replica.admit(composed, left, self.reserve(), self.cut()) {
                break;
            }
        }
        if composed.n_chunk_tokens() == 0 {
            replica.decode_all(composed);
        }
    }
}
