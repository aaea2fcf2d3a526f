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

/// Beside the product for queries, keys and values, so many columns wide on all ranks.
pub(super) fn query_key_value(writer: &mut Writer<'_>, width: u64) {
    let all = [AdaptedProducts::QueryKeyValue, AdaptedProducts::Attention, AdaptedProducts::All];
    beside(writer, &all, width.div_ceil(writer.cut), writer.shard.model.hidden);
}

/// Beside the product behind attention.
pub(super) fn output(writer: &mut Writer<'_>, mixer: Mixer, width: u64) {
    if mixer.attends() {
        let around = [AdaptedProducts::Attention, AdaptedProducts::All];
        beside(writer, &around, writer.shard.model.hidden, width.div_ceil(writer.cut));
    }
}

/// Beside the first product of a feed-forward.
pub(super) fn wide(writer: &mut Writer<'_>, width: u64) {
    beside(writer, &[AdaptedProducts::All], width.div_ceil(writer.cut), writer.shard.model.hidden);
}

/// Beside its second product.
pub(super) fn narrow(writer: &mut Writer<'_>, width: u64) {
    beside(writer, &[AdaptedProducts::All], writer.shard.model.hidden, width.div_ceil(writer.cut));
}

/// An adapter of a product with `n` columns and an inner dimension of `k`, where the layer has one.
fn beside(writer: &mut Writer<'_>, adapted: &[AdaptedProducts], n: u64, k: u64) {
    let Some(Adapters { rank, beside }) = writer.shard.adapters else { return };
    if writer.kind == PassKind::Weight || !adapted.contains(&beside) {
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
