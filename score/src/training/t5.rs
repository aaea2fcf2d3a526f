//! T5 in Megatron-LM's tests: an encoder, and a decoder whose layers also attend to what the encoder gave. Memory alone is predicted.
//!
//! Source: NVIDIA/Megatron-LM @ d98e8a64ddf3, `megatron/core/models/T5/{t5_model,t5_spec}.py` and `core/transformer/transformer_layer.py`: one table of words for
//! both, a norm before the attention across, queries of the decoder's tokens with keys and values of the encoder's. All stages are one rank here. While the loss is
//! computed the rank holds what both keep. Units: bytes, tokens.

use engine::memory::score_bytes_per_pair;
use engine::stage::Stage;
use train::memory::{activation, states};
use train::problem::Problem;

/// Bytes of a value.
const HALF: u64 = 2;
/// Matrices of an attention, and vectors: their biases, and scale and shift of the norm before.
const MATRICES: u64 = 4;
const VECTORS: u64 = 6;

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
        let layer = sequences * decoder_tokens * of_decoder + tokens * of_keys + pairs * score_bytes_per_pair(&shard, &one);
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

    #[test]
    fn an_encoder_and_the_attention_across_have_a_closed_form() {
        let model = engine::Model {
            n_layers: 2,
            hidden: 64,
            n_heads: 4,
            n_kv_heads: 4,
            head_dim: 16,
            intermediate: 256,
            vocab: 512,
            ..engine::model::embedded("gpt-3-175b").expect("embedded")
        };
        let execution = Execution {
            framework: Framework::MegatronCore,
            attention: AttentionKernel::Unfused,
            gradient_dtype: hw::Dtype::Fp32,
            ..Execution::default()
        };
        let degrees = Degrees { tp: 1, pp: 1, vp: 1, cp: 1, ep: 1, expert_tp: 1, dp: 1 };
        let machine = Machine::of("H100", 1, 8).expect("a card");
        let problem = machine.problem(model, &degrees, execution).expect("a problem");
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
