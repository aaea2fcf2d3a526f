//! Kernels that a host launches for a layer of PyTorch's own modules. Units: launches.
//!
//! Counted in recorded steps of a Llama layer with grouped queries in PyTorch 2.11: `profiles/measured/h100-sxm/trace-eager.json.gz` and, compiled,
//! `profiles/measured/h200-sxm/trace-compiled.json.gz`. Fills of a product's workspace and copies are launches as well.

use super::{is_of_transformers, of, of_product, transformers, widened};
use crate::model::QueryKeyNorm;
use crate::shard::{AdaptedProducts, Shard, TorchModules};
use crate::task::PassKind;

/// Residuals of both halves of a layer; in backward gradients that meet where a norm's input goes on as residual.
const RESIDUALS: [u32; 2] = [2, 2];
/// A norm that is one kernel: its input's gradient and its weight's.
const FUSED_NORM: [u32; 2] = [1, 2];
/// A norm of single kernels: copy to 32 bits, square, mean, sum with epsilon, root, product, copy back, weight.
const SINGLE_NORM: [u32; 2] = [8, 12];
/// Positions of queries and keys: copy to complex numbers, product, copy back; in backward a conjugate besides.
const POSITIONS: [u32; 2] = [6, 8];
/// Copies of keys and values for every query head; in backward the sums over the heads.
const REPEATED: [u32; 2] = [2, 2];
/// FlashAttention: in backward a product with the output, the pass itself, and the copy of the queries' gradient.
const ATTENTION: [u32; 2] = [1, 3];
/// Gradients of one input that are added up: of queries, keys and values, and of gate and up-projection.
const ATTENTION_SUMS: [u32; 2] = [0, 2];
const FEED_FORWARD_SUMS: [u32; 2] = [0, 1];
/// The gate's function and its product.
const GATE: [u32; 2] = [2, 3];

/// The same of a compiled layer. Its first residual and its sums of gradients are in its norms, whose weights' gradients are two kernels more.
const COMPILED_RESIDUALS: [u32; 2] = [1, 0];
const COMPILED_NORM: [u32; 2] = [1, 3];
/// Complex products are not compiled. Three kernels copy queries, keys and values for attention, two copy what is multiplied; in backward three of
/// values' and keys' sums and of queries, and the conjugate.
const COMPILED_POSITIONS: [u32; 2] = [7, 8];
const COMPILED_GATE: [u32; 2] = [1, 1];

/// Products, and fills of their workspaces. Queries' product fills it for those of keys and values, and these gradients of weights do without.
const ATTENTION_PRODUCTS: u32 = 4;
const ATTENTION_FILLS: [u32; 2] = [2, 6];
const FEED_FORWARD_PRODUCTS: u32 = 3;
const FEED_FORWARD_FILLS: [u32; 2] = [3, 6];

/// An adapter: two products, a scaling and a sum; in backward two gradients of each product, the scaling and the sum of the input's gradients.
const ADAPTER: [u32; 2] = [4, 6];
/// One in 32 bits casts its input there and back, and both weights to 16 bits; in backward their gradients go the other way (huggingface/peft,
/// `_cast_input_dtype` under `autocast`).
const WIDE_ADAPTER: [u32; 2] = [4, 4];
/// Dropout of its input, and its gradient.
const ADAPTER_DROPOUT: [u32; 2] = [1, 1];
/// A compiled adapter: its products, and one kernel around them; in backward one at each end.
const COMPILED_ADAPTER: [u32; 2] = [3, 6];

/// A parameter that is sharded is made narrow and copied into a buffer.
const GATHERED: u32 = 2;
/// Gradients of a layer are gathered in one buffer: addresses to the device, the copy, the reduction.
const REDUCED: u32 = 3;
/// Weights of both norms and of the four products of attention.
const ATTENTION_PARAMETERS: u32 = 6;

/// Launches of attention, of both residuals of a layer and of all its norms.
pub(super) fn of_attention(shard: &Shard<'_>, modules: TorchModules, kind: PassKind) -> u32 {
    if is_of_transformers(shard, modules) {
        let adapted = of_adapters(shard, modules, AdaptedProducts::ATTENTION, kind);
        return transformers::of_attention(shard, kind) + adapted;
    }
    let model = shard.model;
    let n_norms = if model.qk_norm == QueryKeyNorm::Off { 2 } else { 4 };
    let beside = if modules.compiled {
        of(COMPILED_RESIDUALS, kind) + of(COMPILED_POSITIONS, kind) + n_norms * of(COMPILED_NORM, kind)
    } else {
        let norm = if modules.fused_norms { FUSED_NORM } else { SINGLE_NORM };
        let repeats = modules.repeats_keys && model.n_heads > model.n_kv_heads;
        let repeated = if repeats { of(REPEATED, kind) } else { 0 };
        of(RESIDUALS, kind) + of(POSITIONS, kind) + of(ATTENTION_SUMS, kind) + repeated + n_norms * of(norm, kind)
    };
    let products = ATTENTION_PRODUCTS * of_product(shard, shard.formats.attention, kind);
    let adapted = of_adapters(shard, modules, AdaptedProducts::ATTENTION, kind);
    beside
        + of(ATTENTION, kind)
        + products
        + of(ATTENTION_FILLS, kind)
        + adapted
        + widened(shard, ATTENTION_PRODUCTS, kind)
}

/// Launches of a dense feed-forward, or of shared experts, without norm and residual.
pub(super) fn of_feed_forward(shard: &Shard<'_>, modules: TorchModules, kind: PassKind) -> u32 {
    let [up, down] = [AdaptedProducts::UP, AdaptedProducts::DOWN];
    let beside = if shard.model.gated { AdaptedProducts::FEED_FORWARD } else { up.with(down) };
    let adapted = of_adapters(shard, modules, beside, kind);
    if is_of_transformers(shard, modules) {
        return transformers::of_feed_forward(shard, kind) + adapted;
    }
    let gate = if modules.compiled { of(COMPILED_GATE, kind) } else { of(GATE, kind) + of(FEED_FORWARD_SUMS, kind) };
    let products = FEED_FORWARD_PRODUCTS * of_product(shard, shard.formats.dense, kind);
    gate + products + of(FEED_FORWARD_FILLS, kind) + adapted + widened(shard, FEED_FORWARD_PRODUCTS, kind)
}

/// Launches of the adapters beside these products.
fn of_adapters(shard: &Shard<'_>, modules: TorchModules, beside: AdaptedProducts, kind: PassKind) -> u32 {
    let Some(adapters) = shard.adapters else { return 0 };
    let drops = if adapters.drops { of(ADAPTER_DROPOUT, kind) } else { 0 };
    let each = match (modules.compiled, adapters.is_wide) {
        (true, _) => of(COMPILED_ADAPTER, kind),
        (false, false) => of(ADAPTER, kind),
        (false, true) => of(ADAPTER, kind) + of(WIDE_ADAPTER, kind),
    };
    shard.n_adapters(beside) * (each + drops)
}

/// Launches that gather the sharded parameters of a layer for a pass, and in backward scatter its gradients.
pub fn of_sharded(shard: &Shard<'_>, with_experts: bool, kind: PassKind) -> u32 {
    let model = shard.model;
    let of_norms = if model.qk_norm == QueryKeyNorm::Off { 0 } else { 2 };
    let of_feed_forward = match model.experts.filter(|_| with_experts) {
        Some(experts) if experts.shared_intermediate > 0 => 1 + 2 * FEED_FORWARD_PRODUCTS,
        Some(_) => 1 + FEED_FORWARD_PRODUCTS,
        None => FEED_FORWARD_PRODUCTS,
    };
    let n_parameters = ATTENTION_PARAMETERS + of_norms + of_feed_forward;
    match kind {
        PassKind::Forward => GATHERED * n_parameters,
        PassKind::Backward | PassKind::Input => GATHERED * n_parameters + REDUCED,
        PassKind::Weight => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Captured, of_layer};
    use super::*;
    use crate::shard::{Casts, Framework};
    use hw::Dtype;

    /// Launches between two layers of the recorded steps: 45 and 42 in forward, 72 in backward of eager mode. The compiled step computes every
    /// second product again, so its backward is not compared.
    #[test]
    fn launches_are_those_of_recorded_steps() {
        let model = crate::model::embedded("llama-3.1-8b").expect("embedded");
        let of = |compiled, kind| {
            let modules =
                TorchModules { compiled, fused_norms: true, casts: Casts::Off, in_pieces: false, repeats_keys: true };
            let shard = Shard { framework: Framework::Fsdp2(modules), ..Shard::forward(&model, Dtype::Bf16, 1) };
            of_layer(&shard, Captured::default(), false, kind) + of_sharded(&shard, false, kind)
        };
        assert_eq!(of(false, PassKind::Forward), 45);
        assert_eq!(of(true, PassKind::Forward), 42);
        assert_eq!(of(false, PassKind::Backward), 72);
        assert!(of(true, PassKind::Backward) < 72);
    }

    #[test]
    fn adapters_and_packed_matrices_launch_kernels_of_their_own() {
        use crate::frozen::Frozen;
        use crate::shard::Adapters;
        let model = crate::model::embedded("llama-2-7b").expect("embedded");
        let of = |compiled, adapters, kind| {
            let modules =
                TorchModules { compiled, fused_norms: true, casts: Casts::Off, in_pieces: false, repeats_keys: true };
            let shard =
                Shard { framework: Framework::Fsdp2(modules), adapters, ..Shard::forward(&model, Dtype::Bf16, 1) };
            of_layer(&shard, Captured::default(), false, kind)
        };
        let plain = Adapters::new(8, AdaptedProducts::ALL);
        let more = |compiled, adapters| {
            [PassKind::Forward, PassKind::Input]
                .map(|kind| of(compiled, Some(adapters), kind) - of(compiled, None, kind))
        };
        // Seven adapters: two products, a scaling and a sum; in backward four products, a scaling and a sum.
        assert_eq!(more(false, plain), [7 * 4, 7 * 6]);
        assert_eq!(more(false, Adapters { drops: true, ..plain }), [7 * 5, 7 * 7]);
        assert_eq!(more(true, plain), [7 * 3, 7 * 6]);
        // A kernel for each matrix, and two for scales that are packed themselves.
        assert_eq!(more(false, Adapters { frozen: Frozen::Nf4, ..plain }), [7 * 5, 7 * 7]);
        assert_eq!(more(false, Adapters { frozen: Frozen::Nf4Double, ..plain }), [7 * 7, 7 * 9]);
    }
}
