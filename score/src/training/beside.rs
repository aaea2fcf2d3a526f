//! What the last rank of Megatron-LM's tests holds beside a GPT: T5's encoder, BERT's head, and gradients of logits that wait. Memory alone.
//!
//! Sources: NVIDIA/Megatron-LM @ d98e8a64ddf3, `megatron/core/models/T5/{t5_model,t5_spec}.py`, `core/transformer/transformer_layer.py`: one table of words for
//! both, a norm before the attention across, queries of the decoder's tokens with keys and values of the encoder's. While the loss is computed the rank holds what both
//! keep. `core/models/bert/{bert_lm_head,pooler}.py`: whole products on every tensor rank. `core/tensor_parallel/layers.py`
//! (`LinearWithGradAccumulationAndAsyncCommunication`): gradients of logits in `grad_output_buffer`. Units: bytes, tokens.

use engine::memory::score_bytes_per_pair;
use engine::stage::Stage;
use train::memory::{activation, states};
use train::problem::Problem;

/// Bytes of a value.
const HALF: u64 = 2;
/// Matrices of an attention, and vectors: their biases, and scale and shift of the norm before.
const MATRICES: u64 = 4;
const VECTORS: u64 = 6;

/// Products of the width of BERT's head, and of the pooler for its answer by sequence.
const HEAD: u32 = 1;
const POOLER: u32 = 1;
/// Tensors of the width that BERT's head keeps: what its activation reads, what its norm reads, and what that gives.
const HEAD_KEEPS: u64 = 3;

/// BERT's head in front of the vocabulary, and its pooler where a second head stands on it.
pub(super) fn bert_head(problem: &Problem, has_second_head: bool, tokens: u64) -> f64 {
    let width = problem.model.hidden;
    let n_products = HEAD + if has_second_head { POOLER } else { 0 };
    let stage = Stage { n_dense: 1, ..Stage::default() };
    let (weights, _) = engine::memory::stage_parameters(&problem.shard(), &stage);
    let each = states(problem, &[stage]).total().as_f64() / weights;
    f64::from(n_products) * each * hw::real(width * width) + hw::real(HEAD_KEEPS * HALF * width * tokens)
}

/// Gradients of logits in 16 bits that wait for the product that makes the head's gradient, beside those of the micro-batch that runs: at most as many as
/// `limit` says, where 0 is all.
pub(super) fn deferred(problem: &Problem, limit: u32, n_micro_batches: u32, tokens: u64) -> f64 {
    let most = n_micro_batches.saturating_sub(1);
    let n_waiting = if limit == 0 { most } else { most.min(limit) };
    f64::from(n_waiting) * hw::real(HALF * tokens * problem.model.vocab / u64::from(problem.layout.tp))
}

/// An encoder beside a decoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Encoder {
    /// Layers.
    pub(super) n_layers: u32,
    /// Tokens of a sequence.
    pub(super) tokens: u64,
}

impl Encoder {
    /// What a rank with the decoder holds besides: the encoder with all it keeps, and the attention across.
    pub(super) fn held(self, decoder: &Problem, micro_batch: u32, decoder_tokens: u64) -> f64 {
        let shard = decoder.shard();
        let sequences = u64::from(micro_batch);
        let tokens = sequences * self.tokens;
        let stage = Stage { n_dense: self.n_layers, ..Stage::default() };
        let of_encoder = states(decoder, &[stage]).total().as_f64();
        let kept = activation(decoder, &stage, tokens, tokens * self.tokens).whole;

        let n_layers = decoder.model.n_layers;
        let (width, tp) = (decoder.model.hidden, u64::from(decoder.layout.tp));
        let across = n_layers * (MATRICES * width * width + VECTORS * width) / tp;
        let (weights, _) = engine::memory::stage_parameters(&shard, &stage);
        let serial = |bytes: u64| if decoder.layout.sequence_parallel { bytes / tp } else { bytes };
        // The residual, the norm's output and a mask of dropout, and queries with their result; keys and values of the encoder's tokens.
        let dropout = if shard.dropout().residual { width } else { 0 };
        let of_decoder = serial(2 * HALF * width + dropout) + 2 * HALF * width / tp;
        let of_keys = 2 * HALF * width / tp;
        let one = Stage { n_dense: 1, ..Stage::default() };
        let pairs = sequences * decoder_tokens * self.tokens;
        let layer =
            sequences * decoder_tokens * of_decoder + tokens * of_keys + pairs * score_bytes_per_pair(&shard, &one);
        // The encoder's last norm, which all layers read.
        let given = tokens * serial(HALF * width);
        of_encoder * (1.0 + hw::real(across) / weights) + hw::real(kept + n_layers * layer + given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::setting::{Degrees, Machine};
    use train::problem::{AttentionKernel, Execution, Framework};

    fn problem() -> Problem {
        let model = crate::training::models::small_gpt();
        let execution = Execution {
            framework: Framework::MegatronCore,
            attention: AttentionKernel::Unfused,
            gradient_dtype: hw::Dtype::Fp32,
            ..Execution::default()
        };
        let degrees = Degrees { tp: 1, pp: 1, cp: 1, ep: 1, dp: 1, chunks: 1, expert_tp: 1 };
        let machine = Machine::of("H100", 1).expect("a card");
        let mut problem = machine.problem(model, &degrees, execution).expect("a problem");
        problem.layout.zero = train::layout::Zero::Off;
        problem
    }

    #[test]
    fn gradients_of_logits_wait_up_to_a_limit_and_never_for_the_last_micro_batch() {
        let of = |limit, n| deferred(&problem(), limit, n, 100) / (2.0 * 100.0 * 512.0);
        assert_eq!([of(2, 8), of(2, 2), of(0, 8), of(0, 1)], [2.0, 1.0, 7.0, 0.0]);
    }

    #[test]
    fn the_head_of_bert_is_whole_on_every_rank() {
        let found = [false, true].map(|second| bert_head(&problem(), second, 100));
        let wanted = [1.0, 2.0].map(|n| n * 18.0 * 4096.0 + 6.0 * 64.0 * 100.0);
        assert!(
            found.iter().zip(wanted).all(|(found, wanted)| (found / wanted - 1.0).abs() < 1e-3),
            "{found:?} {wanted:?}"
        );
    }

    #[test]
    fn an_encoder_and_the_attention_across_have_a_closed_form() {
        let problem = problem();
        let found = Encoder { n_layers: 3, tokens: 32 }.held(&problem, 2, 8);
        // 18 bytes a parameter: 12 h² + 13 h of a layer of the encoder, 4 h² + 6 h across.
        let parameters = 3.0 * (12.0 * 4096.0 + 13.0 * 64.0) + 2.0 * (4.0 * 4096.0 + 6.0 * 64.0);
        // Of a token and layer: two norms with their outputs, query, key, value and result, 4 numbers of softmax, both sides of the activation, two masks.
        let layer = 4.0 * 128.0 + 4.0 * 128.0 + 4.0 * 4.0 + 2.0 * 512.0 + 128.0;
        let scores = 5.0 * 4.0 * 2.0 * (3.0 * 32.0 * 32.0 + 2.0 * 8.0 * 32.0);
        let across = 2.0 * (16.0 * (2.0 * 128.0 + 64.0 + 2.0 * 128.0) + 64.0 * 2.0 * 128.0);
        let wanted = 18.0 * parameters + 3.0 * 64.0 * layer + scores + across + 64.0 * 128.0;
        assert!((found / wanted - 1.0).abs() < 1e-3, "{found} {wanted}");
    }
}
