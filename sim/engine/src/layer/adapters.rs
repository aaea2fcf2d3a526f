//! Kernels of small adapters beside the products of a layer (LoRA, arXiv:2106.09685): two thin products, a scaling of what they give, and a sum.
//!
//! Source: NVIDIA-NeMo/Megatron-Bridge @ 067f987df03b, `peft/utils.py` (`ParallelLinearAdapter.forward`). Backward has gradients of both weights and of the
//! input, which is added to the product's. Thin products are priced by their bytes, as in serving: no table of products has so few columns.

use super::Writer;
use crate::model::Mixer;
use crate::shard::{AdaptedProducts, Adapters};
use crate::task::{Op, PassKind};

/// Tensors that the scaling of an adapter's result reads and writes, and those of the sum behind it.
const SCALED_TENSORS: u64 = 2;
const SUMMED_TENSORS: u64 = 3;

/// Beside products of one input, with their columns on all ranks. All of them together have one adapter where they are one product.
fn of_input(writer: &mut Writer<'_>, products: &[(AdaptedProducts, u64)]) {
    let Some(Adapters { beside: adapted, .. }) = writer.shard.adapters else { return };
    let (cut, hidden) = (writer.cut, writer.shard.model.hidden);
    let are_joined = writer.shard.framework.torch().is_none();
    if are_joined && products.iter().all(|(product, _)| adapted.has(*product)) {
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
    let Some(Adapters { rank, beside }) = writer.shard.adapters else { return };
    if writer.kind == PassKind::Weight || n == 0 || !beside.has(product) {
        return;
    }
    let (m, element) = (writer.tokens, writer.shard.dtype.bytes());
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
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let of = |adapters| {
            let shard = Shard { framework, adapters, ..Shard::forward(&model, Dtype::Bf16, 1) };
            let [before, after] =
                [before_attention(&shard, 10, PassKind::Forward), after_attention(&shard, 10, PassKind::Forward, None)];
            bytes(&before) + bytes(&after)
        };
        of(Some(Adapters { rank: 16, beside })) - of(None)
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
        };
        assert_eq!(added(Framework::Fsdp2(modules), all), adapter(4096, 4096) + 2 * adapter(1024, 4096));
    }
}
