//! Residual streams and inputs of layers: what stands around mixers and feed-forwards where a token has several streams. All of it is whole on every GPU.

use super::Writer;
use crate::model::{LayerInputs, Streams};
use crate::shard::Shard;
use crate::task::{Op, Ops, PassKind};

/// Joins the streams in front of a mixer or a feed-forward, and writes them behind it.
pub(super) fn around(writer: &mut Writer<'_>, is_mixer: bool) {
    let hidden = writer.shard.model.hidden;
    match writer.shard.model.streams {
        None => {}
        Some(Streams::Mixed { n, .. }) => {
            // Weights come from one product of the streams, which are kept in 16 bits. They are read again for their sum, and to be written with the
            // part's result (vLLM `mhc_pre_tilelang`, `mhc_post_tilelang`).
            writer.enter(writer.shard.dtype.into());
            writer.gemm((2 + n) * n, n * hidden);
            if writer.kind == PassKind::Forward {
                writer.residual((n + 1) * hidden);
                writer.residual((2 * n + 1) * hidden);
            } else {
                writer.backward_residual(mixed_backward(n) * hidden);
            }
        }
        Some(Streams::Gated { n, rank }) => {
            writer.residual(2 * n * hidden);
            writer.enter(writer.shard.formats.dense);
            writer.gemm(rank + n, n * hidden);
            writer.gemm(n * hidden, rank);
            writer.residual((2 * n + 1) * hidden);
            writer.residual((2 * n + 1) * hidden);
        }
        Some(Streams::Alternating { n, rank }) => alternate(writer, n, rank, is_mixer),
    }
}

/// Tensors of a token that the backward of mixed streams moves beside its product: the gradient of the joined one, streams and their gradient; twice a
/// gradient of all streams with what goes into them, for the streams and for their weights; and the sum of three gradients of the streams (Megatron-LM's
/// branch `dev` @ d48bd6be0a, `fused_mhc_kernels.py`, `hyper_connection.py`).
const fn mixed_backward(n: u64) -> u64 {
    3 * (2 * n + 1) + 4 * n
}

/// Predicts all streams in front of a layer, with a residual of low rank beside attention; corrects them behind it.
fn alternate(writer: &mut Writer<'_>, n: u64, rank: u64, is_mixer: bool) {
    let hidden = writer.shard.model.hidden;
    writer.residual(2 * hidden);
    writer.enter(writer.shard.formats.dense);
    writer.gemm(n, hidden);
    writer.residual(2 * n * hidden);
    if is_mixer {
        writer.gemm(rank, hidden);
        writer.gemm(hidden, rank);
        writer.residual(5 * hidden);
    }
}

/// Inputs of a layer, behind its feed-forward.
pub(super) fn inputs(writer: &mut Writer<'_>) {
    let hidden = writer.shard.model.hidden;
    let Some(LayerInputs { width, .. }) = writer.shard.model.layer_inputs else { return };
    writer.enter(writer.shard.formats.dense);
    writer.gemm(width, hidden);
    writer.residual(3 * width);
    writer.gemm(hidden, width);
    writer.residual(5 * hidden);
}

/// What makes streams and inputs of layers from the embedding, and one vector of all streams behind the last layer.
pub fn outside(shard: &Shard<'_>, tokens: u64) -> Ops {
    let (model, element) = (shard.model, shard.dtype.bytes());
    let mut writer = Writer::new(shard, tokens, PassKind::Forward);
    writer.enter(shard.formats.dense);
    let hidden = model.hidden;
    match model.streams {
        None => {}
        Some(Streams::Mixed { n, .. }) => writer.residual((2 * n + 1) * hidden),
        Some(Streams::Gated { n, rank }) => {
            writer.gemm(rank, n * hidden);
            writer.gemm(n * hidden, rank);
            writer.residual((4 * n + 1) * hidden);
        }
        Some(Streams::Alternating { n, .. }) => {
            (0..2 * (n - 1)).for_each(|_| writer.gemm(hidden, hidden));
            writer.residual((4 * n + 1) * hidden);
        }
    }
    if let Some(LayerInputs { width, .. }) = model.layer_inputs {
        let wide = model.n_layers * width;
        writer.push(Op::Embedding { tokens, row_bytes: wide * element });
        writer.gemm(wide, hidden);
        writer.residual(5 * wide);
    }
    writer.done()
}
