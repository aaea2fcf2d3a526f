//! Kernels of small adapters beside the products of a layer (LoRA, arXiv:2106.09685): two thin products, a scaling of what they give, and a sum.
//!
//! Source: NVIDIA-NeMo/Megatron-Bridge @ 067f987df03b, `peft/utils.py` (`ParallelLinearAdapter.forward`). Backward has gradients of both weights and of the
//! input, which is added to the product's. PyTorch's modules have PEFT's casts and dropout besides (huggingface/peft, `tuners/lora/layer.py`, `Linear.forward`:
//! `_cast_input_dtype`, `lora_B(lora_A(dropout(x))) * scaling`). Thin products are priced by their bytes, as in serving: no table of products has so few columns.

use super::Writer;
use crate::model::Mixer;
use crate::shard::{AdaptedProducts, Adapters};
use crate::task::{Op, PassKind};

/// Tensors that the scaling of an adapter's result reads and writes, and those of the sum behind it.
const SCALED_TENSORS: u64 = 2;
const SUMMED_TENSORS: u64 = 3;

/// Bytes of an element in 32 bits, and of dropout's mask.
const WIDE: u64 = 4;
const MASK: u64 = 1;

/// Beside products of one input, with their columns on all ranks. All of them together have one adapter where they are one product.
fn of_input(writer: &mut Writer<'_>, products: &[(AdaptedProducts, u64)]) {
    let Some(Adapters { beside: adapted, .. }) = writer.shard.adapters else { return };
    let (cut, hidden) = (writer.cut, writer.shard.model.hidden);
    let parts = products.iter().fold(AdaptedProducts::NONE, |parts, (product, _)| parts.with(*product));
    if writer.shard.joins(parts) && adapted.has(parts) {
        let width = products.iter().map(|(_, width)| width).sum::<u64>();
        return beside(writer, AdaptedProducts::NONE, width.div_ceil(cut), hidden);
    }
    for &(product, width) in products {
        beside(writer, product, width.div_ceil(cut), hidden);
    }
}

/// Beside the products for queries, keys and values, so many columns wide on all ranks.
pub(super) fn query_key_value(writer: &mut Writer<'_>, [query, key, value]: [u64; 3]) {
    let products = [(AdaptedProducts::QUERY, query), (AdaptedProducts::KEY, key), (AdaptedProducts::VALUE, value)];
    of_input(writer, &products);
}

/// Beside the product behind attention.
pub(super) fn output(writer: &mut Writer<'_>, mixer: Mixer, width: u64) {
    if mixer.attends() {
        beside(writer, AdaptedProducts::OUTPUT, writer.shard.model.hidden, width.div_ceil(writer.cut));
    }
}

/// Beside the first product of a feed-forward, or gate and up-projection, each so wide.
pub(super) fn wide(writer: &mut Writer<'_>, width: u64) {
    let products = [(AdaptedProducts::UP, width), (AdaptedProducts::GATE, width)];
    of_input(writer, &products[..if writer.shard.model.gated { 2 } else { 1 }]);
}

/// Beside its second product.
pub(super) fn narrow(writer: &mut Writer<'_>, width: u64) {
    beside(writer, AdaptedProducts::DOWN, writer.shard.model.hidden, width.div_ceil(writer.cut));
}

/// An adapter of a product with `n` columns and an inner dimension of `k`, where the layer has one.
fn beside(writer: &mut Writer<'_>, product: AdaptedProducts, n: u64, k: u64) {
    let Some(adapters) = writer.shard.adapters else { return };
    let Adapters { rank, beside, .. } = adapters;
    if writer.kind == PassKind::Weight || n == 0 || !beside.has(product) {
        return;
    }
    let (m, element) = (writer.tokens, writer.shard.dtype.bytes());
    let around = around_input(writer, adapters);
    if around > 0 {
        writer.push(Op::Elementwise { bytes: m * k * around });
    }
    let thin = |m: u64, n: u64, k: u64| Op::Elementwise { bytes: (m * k + n * k + m * n) * element };
    if writer.kind == PassKind::Forward {
        writer.push(thin(m, rank, k));
        writer.push(thin(m, n, rank));
        writer.push(Op::Elementwise { bytes: (SCALED_TENSORS + SUMMED_TENSORS) * m * n * element });
    } else {
        for product in [thin(m, rank, n), thin(m, k, rank), thin(n, rank, m), thin(rank, k, m)] {
            writer.push(product);
        }
        writer.push(Op::Elementwise { bytes: (SCALED_TENSORS * n + SUMMED_TENSORS * k) * m * element });
    }
}

/// Bytes that kernels around an adapter's input move of each element, the same in forward and in backward, under PyTorch's modules. Single kernels cast it to 32
/// bits and back, and dropout reads it, writes it and a byte of its mask (backward reads that). A compiler fuses all of them; dropout still makes a
/// tensor of its own, whose mask is drawn again.
fn around_input(writer: &Writer<'_>, adapters: Adapters) -> u64 {
    let Some(modules) = writer.shard.framework.torch() else { return 0 };
    let narrow = writer.shard.dtype.bytes();
    if modules.compiled {
        return if adapters.drops { 2 * narrow } else { 0 };
    }
    let (casts, element) = if adapters.is_wide { (2 * (narrow + WIDE), WIDE) } else { (0, narrow) };
    casts + if adapters.drops { 2 * element + MASK } else { 0 }
}

#[cfg(test)]
mod tests {
    use hw::Dtype;

    use super::*;
    use crate::layer::{after_attention, before_attention};
    use crate::shard::{Framework, Shard};
    use crate::task::Ops;

    fn bytes(ops: &Ops) -> u64 {
        let of = |(op, n): &(Op, u32)| if let Op::Elementwise { bytes } = op { bytes * u64::from(*n) } else { 0 };
        ops.iter().map(of).sum()
    }

    /// Bytes that adapters of rank 16 beside these products add to the forward of ten tokens in a layer.
    fn added(framework: Framework, beside: AdaptedProducts) -> u64 {
        added_by(framework, Adapters::new(16, beside), PassKind::Forward)
    }

    fn added_by(framework: Framework, adapters: Adapters, kind: PassKind) -> u64 {
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let of = |adapters| {
            let shard = Shard { framework, adapters, ..Shard::forward(&model, Dtype::Bf16, 1) };
            let [before, after] = [before_attention(&shard, 10, kind), after_attention(&shard, 10, kind, None)];
            bytes(&before) + bytes(&after)
        };
        of(Some(adapters)) - of(None)
    }

    /// What an adapter moves by hand: both thin products read two operands and write one, the scaling moves two tensors and the sum three.
    fn adapter(n: u64, k: u64) -> u64 {
        2 * ((10 * k + 16 * k + 10 * 16) + (10 * 16 + n * 16 + 10 * n) + 5 * 10 * n)
    }

    #[test]
    fn each_module_of_a_list_has_an_adapter_of_its_own_width() {
        let formulas = Framework::Formulas;
        let [query, value] = [AdaptedProducts::QUERY, AdaptedProducts::VALUE];
        assert_eq!(added(formulas, query.with(value)), adapter(4096, 4096) + adapter(1024, 4096));
        assert_eq!(added(formulas, AdaptedProducts::UP), adapter(14_336, 4096));
        assert_eq!(added(formulas, AdaptedProducts::DOWN), adapter(4096, 14_336));
        // Where queries, keys and values are one product, so is what stands beside them all; PyTorch's modules are single.
        let all = AdaptedProducts::QUERY_KEY_VALUE;
        assert_eq!(added(formulas, all), adapter(4096 + 2 * 1024, 4096));
        let modules = crate::shard::TorchModules {
            compiled: true,
            fused_norms: true,
            casts: crate::shard::Casts::Off,
            in_pieces: false,
            repeats_keys: true,
        };
        assert_eq!(added(Framework::Fsdp2(modules), all), adapter(4096, 4096) + 2 * adapter(1024, 4096));
    }

    #[test]
    fn casts_and_dropout_of_an_input_are_kernels_where_nothing_is_compiled() {
        let framework = |compiled| {
            let (fused_norms, casts, in_pieces) = (true, crate::shard::Casts::Off, false);
            Framework::Fsdp2(crate::shard::TorchModules { compiled, fused_norms, casts, in_pieces, repeats_keys: true })
        };
        let plain = Adapters::new(16, AdaptedProducts::QUERY);
        for kind in [PassKind::Forward, PassKind::Input] {
            let more = |compiled, is_wide, drops| {
                let of = |adapters| added_by(framework(compiled), adapters, kind);
                of(Adapters { is_wide, drops, ..plain }) - of(plain)
            };
            // Ten tokens of 4096: to 32 bits and back 12 bytes, dropout 9 in 32 bits or 5 in 16.
            assert_eq!(more(false, true, false), 12 * 40_960);
            assert_eq!(more(false, true, true), (12 + 9) * 40_960);
            assert_eq!(more(false, false, true), 5 * 40_960);
            assert_eq!([more(true, true, false), more(true, true, true)], [0, 4 * 40_960]);
        }
    }

    #[test]
    fn packed_matrices_are_widened_in_every_pass() {
        use crate::frozen::Frozen;
        let model = crate::model::embedded("llama-2-7b").expect("embedded");
        let (fused_norms, casts, in_pieces) = (true, crate::shard::Casts::Off, false);
        let modules = crate::shard::TorchModules { compiled: false, fused_norms, casts, in_pieces, repeats_keys: true };
        let framework = Framework::Fsdp2(modules);
        let shard = |frozen, beside| {
            let adapters = Some(Adapters { frozen, ..Adapters::new(8, beside) });
            Shard { framework, adapters, ..Shard::forward(&model, Dtype::Bf16, 1) }
        };
        let [query, all] = [AdaptedProducts::QUERY, AdaptedProducts::ALL];
        let more = |of: &dyn Fn(&Shard<'_>) -> Ops| {
            let [wide, packed] = [Frozen::Same, Frozen::Nf4].map(|frozen| of(&shard(frozen, query)));
            (bytes(&packed) - bytes(&wide), packed.len() - wide.len())
        };
        // Four matrices around attention and three of the feed-forward are read with 4.5 bits and written with 16.
        let square = 4096 * 4096;
        let wide = 4096 * 11_008;
        let widened = |weights: u64| weights * 41 / 16;
        for kind in [PassKind::Forward, PassKind::Input] {
            assert_eq!(more(&|shard| before_attention(shard, 10, kind)), (3 * widened(square), 3));
            assert_eq!(more(&|shard| after_attention(shard, 10, kind, None)), (widened(square) + 3 * widened(wide), 4));
        }
        assert_eq!(more(&|shard| crate::layer::head(shard, 10, PassKind::Forward)), (0, 0));
        // A layer that runs again leaves its last product out, with what widens its matrix. An adapter beside it needs both.
        let again = |frozen, beside| crate::layer::read_by_backward(&shard(frozen, beside), 10).len();
        assert_eq!(again(Frozen::Nf4, query), again(Frozen::Same, query) + 3);
        assert_eq!(
            again(Frozen::Nf4, all),
            after_attention(&shard(Frozen::Nf4, all), 10, PassKind::Forward, None).len()
        );
    }
}
