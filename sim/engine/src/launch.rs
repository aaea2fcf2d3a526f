//! Kernels that a host launches for a layer, where no graph replays them. Units: launches.
//!
//! Counted from the modules of Megatron-Core and Transformer Engine (NVIDIA/Megatron-LM `megatron/core/transformer`, NVIDIA/TransformerEngine
//! `transformer_engine/pytorch/module`). A product of narrow operands launches a cast before it; with a scale per tensor the largest value is
//! looked for first, with scales per block those of both operands are laid out anew (`swizzle`). Experts in one module run one after another in a loop
//! of the library: each has a call for its product and one for its cast, whatever kernels that cast has. Scales of all experts are laid out at once
//! (`te_general_grouped_gemm` and `multi_tensor_quantize_impl` in `csrc/extensions` @ d0067d0da6cb).
//!
//! With experts the host waits for the counts of tokens in every layer, so it is never ahead of the device by more than a layer.

pub mod single;
pub mod torch;
mod transformers;

pub use transformers::share;

use hw::Format;

use crate::model::Experts;
use crate::recompute::Module;
use crate::shard::{Framework, Shard, TorchModules};
use crate::task::PassKind;

/// Norm, split of the projection, norms and positions of queries and keys, attention with its helpers, residual: forward, backward.
const ATTENTION: [u32; 2] = [13, 16];
/// Products of attention: projections before and behind.
const ATTENTION_PRODUCTS: u32 = 2;
/// Norm, activation function and residual of a dense feed-forward.
const FEED_FORWARD: [u32; 2] = [4, 5];
/// Products of a feed-forward.
const FEED_FORWARD_PRODUCTS: u32 = 2;
/// Norm, router, choice of experts, loss of balance, and counts of tokens with their copies to the host.
const ROUTER: [u32; 2] = [30, 20];
/// Permutation, exchange and sort before the experts and behind, activation function, residual.
const DISPATCH: [u32; 2] = [14, 16];

/// Of each expert whose last bias is added outside of its product: a product and a sum, and in backward two of each and both gradients of biases
/// that are added up (`TEGroupedMLP._apply_bias`, `DistributedDataParallel`).
const BIAS: [u32; 2] = [2, 6];
/// The same where the router's weight has 32 bits: in backward the gradient of each product is made narrow.
const WIDE_BIAS: [u32; 2] = [2, 7];
/// Joins of the parts of all experts then: of what they give; of its gradient and of that of the router's weights.
const BIAS_JOINS: [u32; 2] = [1, 2];
/// The same with a cast of what is joined, to 16 bits and in backward to 32.
const WIDE_BIAS_JOINS: [u32; 2] = [2, 3];

/// Further kernels of positions that single kernels rotate, for queries and for keys (`layer::rotate`). In forward half of them make cosines and sines: each function, its
/// scale and a cast.
const SINGLE_POSITIONS: [u32; 2] = [24, 20];
/// Kernels that clamp both halves of what enters an activation function, and join them, and the copy of the offset of a half to the device
/// (`weighted_bias_quick_geglu_impl`). In backward one bound is a zero, a comparison and a choice, and two are two comparisons more
/// (pytorch/pytorch, `clamp_backward`).
const CLAMP: [u32; 2] = [4, 9];

/// Kernels of the fused products of all experts in forward and in a whole backward: a cast, and for each product itself and the pointers of its weights. In backward
/// both gradients of weights besides (Transformer Engine, `grouped_mlp.py`).
const FUSED_PRODUCTS: [u32; 2] = [5, 7];
/// Of them gradients of weights.
const FUSED_WEIGHTS: u32 = 2;
/// The activation function is no kernel of its own then.
const FUSED_AWAY: u32 = 1;

/// Both norms of a layer.
const NORMS: u32 = 2;
/// Positions of queries and keys of latent attention, with the joins and copies of their parts and of values.
const LATENT_COPIES: u32 = 4;

/// Scales of both operands that are laid out anew for a product with a scale per block.
const SCALES: u32 = 2;
/// Largest value, scale and cast with one scale per tensor.
const SCALED_CAST: u32 = 3;

/// Modules whose kernels a graph replays (`--cuda-graph-scope`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// Attention with its projections.
    pub attention: bool,
    /// The router, and what follows it up to the counts of tokens.
    pub router: bool,
}

/// Launches of one layer in a pass.
pub fn of_layer(shard: &Shard<'_>, captured: Captured, with_experts: bool, kind: PassKind) -> u32 {
    let attention = if captured.attention {
        0
    } else if let Some(modules) = shard.framework.torch() {
        torch::of_attention(shard, modules, kind)
    } else {
        let positions = if shard.rotates_singly() { of(SINGLE_POSITIONS, kind) } else { 0 };
        of(ATTENTION, kind) + positions + ATTENTION_PRODUCTS * of_product(shard, shard.formats.attention, kind)
    };
    attention
        + match shard.model.experts.filter(|_| with_experts) {
            Some(experts) => of_experts(shard, experts, captured, kind),
            None => of_feed_forward(shard, kind),
        }
}

/// Launches of the modules of a layer that backward computes again by themselves.
pub fn of_recomputed(shard: &Shard<'_>, captured: Captured, with_experts: bool) -> u32 {
    let of = |module| match module {
        Module::CoreAttention => 1,
        Module::ExpertActivation => {
            1 + shard.model.experts.map_or(0, |experts| of_expert_activation(shard, experts, PassKind::Forward))
        }
        Module::Norms => NORMS,
        Module::UpProjections => LATENT_COPIES + 2 * of_product(shard, shard.formats.attention, PassKind::Forward),
        Module::FeedForward | Module::SharedExperts => of_feed_forward(shard, PassKind::Forward),
        Module::Experts => {
            shard.model.experts.map_or(0, |experts| of_experts(shard, experts, captured, PassKind::Forward))
        }
    };
    shard.recompute.modules().apart(with_experts).map(of).sum()
}

fn of(counts: [u32; 2], kind: PassKind) -> u32 {
    match kind {
        PassKind::Forward => counts[0],
        PassKind::Backward | PassKind::Input => counts[1],
        PassKind::Weight => 0,
    }
}

/// A dense feed-forward, or the shared experts.
fn of_feed_forward(shard: &Shard<'_>, kind: PassKind) -> u32 {
    if let Some(modules) = shard.framework.torch() {
        return torch::of_feed_forward(shard, modules, kind);
    }
    let activation = single::of_activation(shard, None, kind);
    of(FEED_FORWARD, kind) + activation + FEED_FORWARD_PRODUCTS * of_product(shard, shard.formats.dense, kind)
}

fn of_experts(shard: &Shard<'_>, experts: Experts, captured: Captured, kind: PassKind) -> u32 {
    let mut n = if captured.router { 0 } else { of(ROUTER, kind) };
    if experts.shared_intermediate > 0 {
        n += of_feed_forward(shard, kind);
    }
    let n_local = u32::try_from(experts.n_routed / u64::from(shard.ep)).expect("experts fit u32");
    if shard.fuses_experts() {
        return n + of_fused(shard, experts, kind);
    }
    if experts.biased {
        let is_wide = shard.weighs_wide(experts);
        let (each, joins) = if is_wide { (WIDE_BIAS, WIDE_BIAS_JOINS) } else { (BIAS, BIAS_JOINS) };
        n += n_local * of(each, kind) + of(joins, kind);
    }
    n += of_expert_activation(shard, experts, kind);
    n + of_dispatch(shard, experts, kind) + FEED_FORWARD_PRODUCTS * of_grouped_product(shard, n_local, kind)
}

/// Launches of fused experts and of what dispatches to them. Gradients of biases and of the router's weights are one kernel.
fn of_fused(shard: &Shard<'_>, experts: Experts, kind: PassKind) -> u32 {
    let [forward, backward] = FUSED_PRODUCTS;
    let products = match kind {
        PassKind::Forward => forward,
        PassKind::Backward => backward,
        PassKind::Input => backward - FUSED_WEIGHTS,
        PassKind::Weight => return FUSED_WEIGHTS,
    };
    let of_biases = if experts.biased && kind != PassKind::Forward { 1 } else { 0 };
    of_dispatch(shard, experts, kind) - FUSED_AWAY + products + of_biases
}

/// Permutation, exchange and sort before the experts and behind, with the activation function's one and the residual.
fn of_dispatch(shard: &Shard<'_>, experts: Experts, kind: PassKind) -> u32 {
    of(DISPATCH, kind).saturating_add_signed(single::of_permutation(shard, experts, kind))
}

/// What an activation function of experts launches beside one kernel.
fn of_expert_activation(shard: &Shard<'_>, experts: Experts, kind: PassKind) -> u32 {
    of_clamp(shard, experts, kind) + single::of_activation(shard, Some(experts), kind)
}

fn of_clamp(shard: &Shard<'_>, experts: Experts, kind: PassKind) -> u32 {
    if experts.clamped && shard.framework == Framework::MegatronCore { of(CLAMP, kind) } else { 0 }
}

/// Launches of the products of all experts of a rank by one module in a pass.
fn of_grouped_product(shard: &Shard<'_>, n_experts: u32, kind: PassKind) -> u32 {
    let products = products(kind);
    let format = shard.formats.experts;
    let sums = n_experts * single::of_accumulation(shard, kind);
    if format.is_whole() || shard.framework == Framework::Formulas {
        return n_experts * products + sums;
    }
    let scales = if format == Format::Fp8 { 0 } else { SCALES };
    let casts = if kind == PassKind::Weight { 0 } else { 1 };
    n_experts * (products + casts) + products * scales + sums
}

/// Launches of one product in a pass: itself, or those of both gradients, with casts and scales.
fn of_product(shard: &Shard<'_>, format: Format, kind: PassKind) -> u32 {
    let products = products(kind);
    let sum = single::of_accumulation(shard, kind);
    if format.is_whole() || shard.framework == Framework::Formulas {
        return products + sum;
    }
    let (casts, scales) = if format == Format::Fp8 { (SCALED_CAST, 0) } else { (1, SCALES) };
    products * (1 + scales) + sum + if kind == PassKind::Weight { 0 } else { casts }
}

/// Products of a projection in a pass.
const fn products(kind: PassKind) -> u32 {
    match kind {
        PassKind::Forward | PassKind::Input | PassKind::Weight => 1,
        PassKind::Backward => 2,
    }
}

/// Whether a layer is one of transformers, which a compiler fuses as it does others.
fn is_of_transformers(shard: &Shard<'_>, modules: TorchModules) -> bool {
    !modules.compiled && shard.runs_transformers()
}

/// Launches that widen the packed matrices of so many products.
fn widened(shard: &Shard<'_>, n_products: u32, kind: PassKind) -> u32 {
    n_products * of([shard.frozen().kernels(); 2], kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::Dispatcher;
    use crate::formats::Formats;
    use hw::Dtype;

    #[test]
    fn experts_launch_one_by_one_and_graphs_take_their_modules_away() {
        let model = crate::model::embedded("qwen3-30b-a3b").expect("embedded");
        let formats = Formats::weights(Format::Mxfp8, Dtype::Bf16);
        let shard =
            Shard { framework: Framework::MegatronCore, formats, ep: 8, ..Shard::forward(&model, Dtype::Bf16, 1) };
        let of = |shard: &Shard<'_>, captured, kind| of_layer(shard, captured, true, kind);
        let none = Captured::default();
        // 128 experts on eight ranks: sixteen, each with a cast and a product for each of two modules, which lay out the scales of all.
        let forward = of(&shard, none, PassKind::Forward);
        assert_eq!(forward, 13 + 2 * 4 + 30 + 14 + 2 * (16 * 2 + 2));
        // Backward has two products with their scales and one cast.
        assert_eq!(of(&shard, none, PassKind::Backward), 16 + 2 * 7 + 20 + 16 + 2 * (16 * 3 + 4));
        let all = Captured { attention: true, router: true };
        assert_eq!(of(&shard, all, PassKind::Forward), 14 + 2 * (16 * 2 + 2));
        // gpt-oss has as many experts, with biases: two launches for each expert and one more, six and two in backward. Positions are 24 kernels more,
        // and four clamp; nine do in backward.
        let biased = crate::model::embedded("gpt-oss-120b").expect("embedded");
        let biased = Shard { model: &biased, ..shard };
        assert_eq!(of(&biased, none, PassKind::Forward), forward + 16 * 2 + 1 + 24 + 4);
        assert_eq!(of(&biased, all, PassKind::Backward), of(&shard, all, PassKind::Backward) + 16 * 6 + 2 + 9);
        // With weights of 32 bits there is a cast, and in backward another one for each expert.
        let wide = Shard { dispatcher: Dispatcher::HybridEp, ..biased };
        let more = |kind| of(&wide, none, kind) - of(&biased, none, kind);
        assert_eq!([PassKind::Forward, PassKind::Backward, PassKind::Weight].map(more), [1, 16 + 1, 0]);
        // One scale per tensor takes three launches to cast a projection's operand, and one call for an expert's. Nothing is laid out anew.
        let scaled = Shard { formats: Formats::weights(Format::Fp8, Dtype::Bf16), ..shard };
        assert_eq!(of(&scaled, none, PassKind::Forward), 13 + 2 * 4 + 30 + 14 + 16 * 2 * 2);
        // Fused products are five launches in forward and seven in backward, however many experts there are. The activation function is in them, and biases are one.
        let fused = Shard { fused_experts: true, capability: hw::Capability::Ten, ..shard };
        let after_products = |kind| of(&fused, all, kind) + of(&shard, none, kind) - of(&shard, all, kind);
        assert_eq!(after_products(PassKind::Forward), 13 + 2 * 4 + 30 + 13 + 5);
        assert_eq!(after_products(PassKind::Backward), 16 + 2 * 7 + 20 + 15 + 7);
        assert_eq!(of(&fused, all, PassKind::Input) + of(&fused, all, PassKind::Weight), 15 + 7);
        let fused_biases = Shard { model: &biased.model.clone(), ..fused };
        assert_eq!(of(&fused_biases, all, PassKind::Backward), of(&fused, all, PassKind::Backward) + 1);
        // Sixteen bits need neither casts nor scales.
        let wide = Shard { formats: Formats::of(Dtype::Bf16), ..shard };
        assert_eq!(of(&wide, all, PassKind::Forward), 14 + 16 * 2);
    }
}
