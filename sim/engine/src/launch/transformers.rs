//! Operations that a host starts for a layer of huggingface/transformers, whose modules compute everything by operations of their own. Units: launches.
//!
//! Counted by the dispatcher of PyTorch 2.8: a layer of `LlamaForCausalLM` (transformers 4.52.4, attention by `scaled_dot_product_attention`) beside one more
//! of them, under autocast to bfloat16, forward and backward apart. Views compute nothing and are left out. The gradient of a slice is a fill and a copy.
//! Adapters are those of `torch.rs`: PEFT 0.15.2 has as many beside these layers.

use super::{is_of_transformers, of, of_product, widened};
use crate::model::QueryKeyNorm;
use crate::shard::{AdaptedProducts, Shard};
use crate::task::PassKind;

/// A norm of root mean squares (`LlamaRMSNorm`): copy to 32 bits, square, mean, sum with epsilon, root, product, copy back, weight; in backward the gradient of
/// its input.
const NORM: [u32; 2] = [8, 14];
/// A norm that subtracts the mean too, which is a kernel of PyTorch (`nn.LayerNorm`).
const LAYER_NORM: [u32; 2] = [1, 1];
/// Gradient of a norm's weight: a product, and its sum over tokens.
const NORM_WEIGHT: u32 = 2;
/// Positions of queries and keys (`apply_rotary_pos_emb`): each negates a half, joins halves, has two products and a sum; in backward two slices of each.
const POSITIONS: [u32; 2] = [10, 18];
/// Attention with queries, keys, values and its result put in order.
const ATTENTION: [u32; 2] = [5, 3];
/// Gradients of keys and values that every query head had a copy of (`repeat_kv`): slices, sums and a copy. In forward the copies take the place of those above.
const REPEATED: [u32; 2] = [0, 19];
/// Residuals of both halves of a layer.
const RESIDUALS: [u32; 2] = [2, 2];
/// Gradients of one input of three products that are added up, and of two.
const SUMS: [u32; 2] = [2, 1];
/// The gate's function and its product; of a feed-forward without one its function alone.
const GATE: [u32; 2] = [2, 3];
const FUNCTION: [u32; 2] = [1, 1];
/// Gradients of the parts of a joined product, which are put together.
const JOINED: u32 = 1;

/// Time of an operation over that of a launch elsewhere. Megatron-Core and sharded modules have Python of their own around theirs, forward and backward; autograd
/// runs these without any. Fitted on two steps that wait for their host: Yi-6B and Zephyr-7B with adapters and sequences of up to 512 tokens on an A100
/// (modelscope/ms-swift @ 46922151e06c, docs/source_en/LLM/Benchmark.md).
const OPERATION: f64 = 0.77;

/// Time of what a layer of a shard launches over that of a launch of Megatron-Core.
pub fn share(shard: &Shard<'_>) -> f64 {
    let is_ours = shard.framework.torch().is_some_and(|modules| is_of_transformers(shard, modules));
    if is_ours { OPERATION } else { 1.0 }
}

/// Launches of attention, of both residuals of a layer and of all its norms.
pub(super) fn of_attention(shard: &Shard<'_>, kind: PassKind) -> u32 {
    let model = shard.model;
    let n_norms = if model.qk_norm == QueryKeyNorm::Off { 2 } else { 4 };
    let weights = if kind == PassKind::Backward { NORM_WEIGHT } else { 0 };
    let norm = if model.gated { of(NORM, kind) } else { of(LAYER_NORM, kind) } + weights;
    let repeated = if model.n_heads > model.n_kv_heads { of(REPEATED, kind) } else { 0 };
    let beside = of(RESIDUALS, kind) + of(POSITIONS, kind) + of(ATTENTION, kind) + repeated + n_norms * norm;
    let parts = AdaptedProducts::QUERY_KEY_VALUE;
    beside + of_input(shard, parts, kind) + of_product(shard, shard.formats.attention, kind) + widened(shard, 1, kind)
}

/// Launches of a dense feed-forward, or of shared experts, without norm and residual.
pub(super) fn of_feed_forward(shard: &Shard<'_>, kind: PassKind) -> u32 {
    let behind = of_product(shard, shard.formats.dense, kind) + widened(shard, 1, kind);
    let before = if shard.model.gated {
        of(GATE, kind) + of_input(shard, AdaptedProducts::FACTORS, kind)
    } else {
        of(FUNCTION, kind) + of_input(shard, AdaptedProducts::UP, kind)
    };
    before + behind
}

/// Products of one input by these matrices, each by itself or all as one.
fn of_input(shard: &Shard<'_>, parts: AdaptedProducts, kind: PassKind) -> u32 {
    let format = if parts.has(AdaptedProducts::QUERY) { shard.formats.attention } else { shard.formats.dense };
    let is_one = parts.n() == 1 || shard.joins(parts);
    let n = if is_one { 1 } else { parts.n() };
    let beside = match (is_one, parts.n()) {
        (_, 1) => [0, 0],
        (true, _) => [0, JOINED],
        (false, n) => [0, SUMS[if n > 2 { 0 } else { 1 }]],
    };
    n * of_product(shard, format, kind) + of(beside, kind) + widened(shard, n, kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Captured, of_layer};
    use crate::model::Model;
    use crate::shard::{Adapters, Casts, Framework, TorchModules};
    use hw::Dtype;

    const MODULES: TorchModules =
        TorchModules { compiled: false, fused_norms: true, casts: Casts::Off, in_pieces: false, repeats_keys: true };

    fn launches(model: &Model, adapters: Option<Adapters>, kind: PassKind) -> u32 {
        let shard =
            Shard { framework: Framework::DeepSpeed(MODULES), adapters, ..Shard::forward(model, Dtype::Bf16, 1) };
        of_layer(&shard, Captured::default(), false, kind)
    }

    /// What PyTorch's dispatcher recorded of a layer with as many heads of keys as of queries, and of one with fewer: forward, backward of frozen weights, and of
    /// weights that are trained.
    #[test]
    fn launches_are_those_that_the_dispatcher_records() {
        for (name, recorded) in [("llama-2-7b", [42, 64, 75]), ("llama-3-8b", [42, 83, 94])] {
            let model = crate::model::embedded(name).expect("embedded");
            let kinds = [PassKind::Forward, PassKind::Input, PassKind::Backward];
            assert_eq!(kinds.map(|kind| launches(&model, None, kind)), recorded, "{name}");
        }
    }

    /// The same recording with PEFT's adapters beside queries and values: 8 more of each in forward and 10 in backward, and with dropout one more of both.
    #[test]
    fn adapters_of_peft_launch_what_the_dispatcher_records() {
        let model = crate::model::embedded("llama-2-7b").expect("embedded");
        let beside = AdaptedProducts::QUERY.with(AdaptedProducts::VALUE);
        let wide = Adapters { is_wide: true, ..Adapters::new(4, beside) };
        let more = |adapters| {
            let kinds = [PassKind::Forward, PassKind::Input];
            kinds.map(|kind| launches(&model, Some(adapters), kind) - launches(&model, None, kind))
        };
        assert_eq!(more(wide), [2 * 8, 2 * 10]);
        assert_eq!(more(Adapters { drops: true, ..wide }), [2 * 9, 2 * 11]);
    }

    /// Phi-3 has one product for queries, keys and values, and one for both factors (`modeling_phi3.py`: `qkv_proj`, `gate_up_proj`). So three products fewer,
    /// whose gradients are put together and not added up, and one adapter beside each.
    #[test]
    fn a_joined_product_is_one_and_has_one_adapter() {
        let joined = crate::model::embedded("phi-3-mini-4k").expect("embedded");
        let apart = Model { joined: crate::model::Joined::NONE, ..joined.clone() };
        let fewer = |adapters, kind| launches(&apart, adapters, kind) - launches(&joined, adapters, kind);
        assert_eq!(fewer(None, PassKind::Forward), 3);
        // Of queries, keys and values one sum fewer; of both factors the join takes the place of the sum.
        assert_eq!(fewer(None, PassKind::Input), 3 + 1);
        let all = Adapters { is_wide: true, ..Adapters::new(4, AdaptedProducts::ALL) };
        assert_eq!(fewer(Some(all), PassKind::Forward), 3 + 3 * 8);
        // Beside queries alone no product is joined, as no checkpoint has such an adapter.
        let queries = Adapters { beside: AdaptedProducts::QUERY, ..all };
        assert_eq!(fewer(Some(queries), PassKind::Forward), 1);
    }
}
