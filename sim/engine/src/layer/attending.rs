//! Projections around attention: of heads, of latent vectors, of compressed ones and of an index.

use super::{Writer, adapters, attention, gathered_heads, positions, torch};
use crate::model::{CompressedAttention, Index, IndexMade, LatentAttention, Mixer, QueryKeyNorm};
use crate::shard::{Framework, Shard};
use crate::task::{Document, Op, Ops, Pass};

/// Heads that a kernel of compressed attention computes at once: a rank with fewer takes as long. Measured blocks of DeepSeek-V4 on H200 with 8 heads
/// are as slow as with 64 (`step_cost/tests/compressed.rs` of `serve`).
const COMPRESSED_HEADS: u64 = 64;

/// Attention of a prompt in a layer with such a mixer.
pub fn prompt_attention(shard: &Shard<'_>, mixer: Mixer, documents: Vec<Document>) -> Ops {
    let (model, heads) = (shard.model, shard.model.heads(mixer));
    if model.latent.is_some() || documents.is_empty() || model.heads_by_layer.is_none() && model.compressed.is_none() {
        return attention(shard, &documents, 1, Pass::Forward);
    }
    let [n_heads, n_kv_heads] = [heads.n, heads.n_kv].map(|n| n.div_ceil(u64::from(shard.tp)));
    let n_heads = if model.compressed.is_some() { n_heads.next_multiple_of(COMPRESSED_HEADS) } else { n_heads };
    let (head_dim, kv, pass) = (heads.mean_dim(), shard.formats.kv, Pass::Forward);
    vec![(Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv, pass }, 1)]
}

/// Projections in front of attention.
pub(super) fn before(writer: &mut Writer<'_>, mixer: Mixer) {
    let model = writer.shard.model;
    match (model.latent, model.compressed) {
        (Some(latent), _) => latent_parts(writer, latent),
        (None, Some(compressed)) => compressed_parts(writer, compressed, mixer),
        (None, None) => heads(writer, mixer),
    }
    if let Some(index) = model.index.filter(|_| mixer.has_index()) {
        self::index(writer, index);
    }
}

/// Projections behind attention, whose heads give so many elements of a token.
pub(super) fn behind(writer: &mut Writer<'_>, mixer: Mixer, width: u64) {
    let (model, format) = (writer.shard.model, writer.shard.formats.behind());
    writer.enter(format);
    let Some(compressed) = model.compressed.filter(|_| mixer.attends()) else {
        writer.row(model.hidden, width);
        return adapters::output(writer, mixer, width);
    };
    // The rotation of values is undone, and groups of heads are multiplied by a matrix each: as many products as of one matrix with all columns. Megatron-Core
    // writes all values anew, as attention's backward reads them, and multiplies groups in 16 bits (`deepseek_v4_hybrid_attention.py`).
    let rotated = match writer.shard.framework {
        Framework::Formulas => compressed.rope_dim,
        Framework::MegatronCore | Framework::Fsdp2(_) | Framework::DeepSpeed(_) => {
            writer.enter(writer.shard.dtype.into());
            model.head_dim
        }
    };
    writer.elementwise(2 * model.n_heads * rotated);
    writer.column(compressed.n_groups * compressed.group_rank, width / compressed.n_groups.max(1));
    writer.enter(format);
    writer.row(model.hidden, compressed.n_groups * compressed.group_rank);
}

/// A norm of each head's queries and one of its keys, a kernel each in Megatron-Core (`SelfAttention`, `q_layernorm` and `k_layernorm`).
fn norm_heads(writer: &mut Writer<'_>, widths: [u64; 2]) {
    let shard = writer.shard;
    if shard.framework == Framework::MegatronCore && shard.model.qk_norm == QueryKeyNorm::Head {
        widths.into_iter().filter(|width| *width > 0).for_each(|width| writer.elementwise(2 * width));
    }
}

fn heads(writer: &mut Writer<'_>, mixer: Mixer) {
    let model = writer.shard.model;
    let of = model.heads(mixer);
    let reuses = matches!(mixer, Mixer::Reused(_));
    let copies = if model.query_rank.is_some() { 1 } else { writer.shard.copies(of) };
    let (key, kept) = if reuses { (0, 0) } else { (of.n_kv * of.key_dim * copies, of.projected_width() * copies) };
    let query = model.query_columns(mixer);
    match model.query_rank {
        // Every GPU makes the common vector of queries, norms it, and makes its heads of it (vLLM, `step3_text.py`, `Step3TextAttention`).
        Some(rank) => {
            writer.duplicated(query + kept, model.hidden);
            writer.residual(2 * rank);
            writer.column(of.query_width(), rank);
        }
        None => writer.columns(&[query, key, kept - key], model.hidden),
    }
    adapters::query_key_value(writer, [query, key, kept - key]);
    gathered_heads::copied(writer, mixer);
    norm_heads(writer, [of.query_width(), key]);
    positions::rotate(writer, of.query_width() + key);
    torch::before_attention(writer);
}

fn latent_parts(writer: &mut Writer<'_>, latent: LatentAttention) {
    let model = writer.shard.model;
    let query_width = model.n_heads * (latent.nope_dim + latent.rope_dim);
    let compressed = latent.kv_rank + latent.rope_dim;
    match latent.q_rank {
        // Engines of serving join both compressions in one product (vLLM and SGLang `fused_qkv_a_proj`, TensorRT-LLM `kv_a_proj_with_mqa`).
        Some(rank) if writer.shard.framework == Framework::Formulas => {
            writer.gemm(rank + compressed, model.hidden);
            writer.column(query_width, rank);
        }
        Some(rank) => {
            writer.duplicated(rank, model.hidden);
            writer.column(query_width, rank);
            writer.duplicated(compressed, model.hidden);
        }
        None => {
            writer.column(query_width, model.hidden);
            writer.duplicated(compressed, model.hidden);
        }
    }
    // Keys and values of every head are made from the latent vector, or queries and outputs are carried into its space and back: either
    // way a token is multiplied by the same matrix.
    writer.column(model.n_heads * (latent.nope_dim + latent.value_dim), latent.kv_rank);
    latent_parts_copied(writer, latent);
}

/// What goes through memory between the projections of latent attention and its kernel: what is rotated, and in the frameworks what is copied.
///
/// Single kernels join queries and keys from both of their parts and make values contiguous, each read and written (Megatron-Core,
/// `multi_latent_attention.py`). In Megatron-Core they rotate the heads of queries besides; keys have one head for all.
/// Fused kernels rotate queries in place, and touch nothing but what is rotated. Another one reads both parts of keys and values once and writes both (from core 0.14 on,
/// `fused_mla_yarn_rope_apply.py`: `rotary_fwd_q_kernel`, `rotary_fwd_kv_kernel`). Their backward moves as much.
pub(super) fn latent_parts_copied(writer: &mut Writer<'_>, latent: LatentAttention) {
    let (shard, n_heads) = (writer.shard, writer.shard.model.n_heads);
    let LatentAttention { nope_dim, rope_dim, value_dim, .. } = latent;
    match shard.framework {
        Framework::Formulas => writer.elementwise(2 * n_heads * rope_dim),
        Framework::MegatronCore if !shard.rotates_singly() => {
            let width = 2 * rope_dim + (nope_dim + value_dim) + (nope_dim + rope_dim + value_dim);
            let elements = (writer.tokens * n_heads * width).div_ceil(writer.cut);
            writer.moves(elements, [shard.dtype.bytes(); 2]);
        }
        Framework::MegatronCore | Framework::Fsdp2(_) | Framework::DeepSpeed(_) => {
            writer.elementwise(2 * n_heads * (2 * (nope_dim + rope_dim) + value_dim));
        }
    }
    if shard.rotates_singly() {
        positions::rotate(writer, n_heads * rope_dim);
    }
}

/// Compressed query and key in one product, as engines join them, queries, and what compresses old tokens, whole on every GPU.
fn compressed_parts(writer: &mut Writer<'_>, compressed: CompressedAttention, mixer: Mixer) {
    let model = writer.shard.model;
    let (hidden, width) = (model.hidden, model.head_dim);
    writer.gemm(compressed.q_rank + width, hidden);
    writer.column(model.n_heads * width, compressed.q_rank);
    // Each head of the queries is normed and rotated, in one pass.
    writer.elementwise(2 * model.n_heads * width);
    let Mixer::Compressed { picked, .. } = mixer else { return };
    // A vector and a gate of every token, twice where vectors overlap; both are read again and joined.
    let wide = if picked.is_some() { 4 * width } else { 2 * width };
    writer.gemm(wide, hidden);
    writer.residual(2 * wide);
}

/// Projections of an index, whole on every GPU. What joins the keys of a pool is a pass over them.
fn index(writer: &mut Writer<'_>, index: Index) {
    let model = writer.shard.model;
    let rank = match (model.latent, model.compressed) {
        (Some(latent), _) => latent.q_rank.unwrap_or(model.hidden),
        (None, Some(compressed)) => compressed.q_rank,
        (None, None) => model.hidden,
    };
    if index.made != IndexMade::Plain {
        writer.gemm(index.n_heads * index.head_dim, rank);
    }
    writer.gemm(index.projected(), model.hidden);
    if index.pool > 1 {
        writer.residual(2 * index.projected());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::before_attention;
    use crate::model::{Model, embedded};
    use crate::task::PassKind;

    #[test]
    fn norms_of_heads_are_two_kernels_in_megatron_core() {
        let normed = embedded("qwen3-30b-a3b").expect("embedded");
        let plain = Model { qk_norm: QueryKeyNorm::Off, ..normed.clone() };
        let moved = |model: &Model, framework, kind| {
            let shard = Shard { framework, ..Shard::forward(model, hw::Dtype::Bf16, 2) };
            let ops = before_attention(&shard, 10, kind);
            let of = |(op, _): &(Op, u32)| if let Op::Elementwise { bytes } = op { Some(*bytes) } else { None };
            let kernels: Vec<u64> = ops.iter().filter_map(of).collect();
            (kernels.len(), kernels.iter().sum::<u64>())
        };
        // Half of 32 heads and of four, 128 wide each, for ten tokens: read and written in 16 bits, and half as much again in backward.
        let bytes = 10 * (32 + 4) / 2 * 128 * 4;
        for (kind, expected) in [(PassKind::Forward, bytes), (PassKind::Backward, bytes * 3 / 2)] {
            let [with, without] = [&normed, &plain].map(|model| moved(model, Framework::MegatronCore, kind));
            assert_eq!((with.0 - without.0, with.1 - without.1), (2, expected), "{kind:?}");
            assert_eq!(moved(&normed, Framework::Formulas, kind), moved(&plain, Framework::Formulas, kind), "{kind:?}");
        }
    }
}
