//! TensorRT-LLM: every iteration decodes, and whole prompts fill what is left of its tokens.
//!
//! Source: NVIDIA/TensorRT-LLM, `tensorrt_llm/_torch/pyexecutor/scheduler.py` (Apache-2.0), in-flight batching without chunked context, its
//! default: a prompt joins only where all of it fits `max_num_tokens`. Which blocks must be free for it is the capacity scheduler's (`replica/promises.rs`).

use crate::replica::batcher::{Batcher, Cut};
use crate::replica::{Composed, Replica};

/// The policy.
#[derive(Debug)]
pub struct Trtllm;

impl Batcher for Trtllm {
    fn name(&self) -> &'static str {
        "trtllm"
    }

    fn about(&self) -> &'static str {
        "in-flight batching: decodes first, whole prompts beside them (TensorRT-LLM)"
    }

    fn cut(&self) -> Cut {
        Cut::Never
    }

    fn compose(&self, replica: &mut Replica<'_>, composed: &mut Composed) {
        replica.decode_all(composed);
        if replica.gathers(composed) {
            return;
        }
        if replica.tells_ranks_apart() {
            return replica.admit_on_ranks(composed, self.reserve());
        }
        while composed.n_preempted == 0 {
            let left = replica.tokens_left(composed);
            if !replica.admit(composed, left, self.reserve(), self.cut()) {
                break;
            }
        }
    }
}
