//! Launches of PyTorch's single kernels in the place of Megatron-Core's fused ones, and what a host waits for between them. Units: launches.
//!
//! Counted in NVIDIA/Megatron-LM, core 0.13 to 0.16 (`moe/moe_utils.py`, `moe/token_dispatcher.py`, `MoEAlltoAllTokenDispatcher`), and in pytorch/pytorch v2.7
//! (`aten/src/ATen/native/cuda`: `Nonzero.cu`, `IndexKernel.cu`, `Shape.cu`). A choice by marks (`masked_select`) is seven launches: two that count, a copy to
//! the host, which waits for it, two that compact, one that makes coordinates and one that picks. From core 0.17 on nothing waits there; with experts that are
//! padded to a capacity neither. Both are not told apart, nor is a loop over the documents of a pack, which single kernels of positions need.

use super::of;
use crate::model::Experts;
use crate::shard::Shard;
use crate::task::PassKind;
use crate::unfused::Fusion;

/// Kernels that permute tokens by Transformer Engine, forward and backward: three make a map of rows, and one copies each way (`make_row_id_map`,
/// `permute_with_mask_map`, `unpermute_with_mask_map`).
const FUSED: [u32; 2] = [5, 2];
/// Those that sort pieces by expert before the experts and behind: each has a map of its own in forward (`make_chunk_sort_map`, `sort_chunks_by_map`).
const FUSED_SORTS: [u32; 2] = [4, 2];
/// PyTorch's kernels in the place of `FUSED`. In forward marks and weights are transposed, 2, tokens counted through, 1, rows and weights chosen by marks, 14,
/// rows picked, 1, and added up behind zeros, 2. In backward rows are picked, 1, and added up behind zeros, 2; weights go back by zeros, two kernels that
/// number marks, a check and the kernel itself, 5.
const SINGLE: [u32; 2] = [20, 8];
/// Joins in the place of `FUSED_SORTS`: of rows and of weights before the experts, of rows behind. Each is a split and a join.
const JOINS: u32 = 3;
/// Pieces that a launch joins (`CAT_ARRAY_BATCH_SIZE`).
const PIECES: u32 = 128;
/// Views of pieces that take a host as long as a launch with its operation. In a recorded step of PyTorch on H100 `aten::view` takes 1.6 us in the median, and
/// `aten::mul` 21.4 us (`profiles/measured/h100-sxm/trace-eager.json.gz`).
const VIEWS: u32 = 14;
/// Launches that the device waits for, though the host is ahead: those behind the first count that the host waits for, up to the copy of rows.
const WAITED: u32 = 13;

/// Of a gated activation function: the function and the product; in backward both gradients of the product, that of the function and a join.
const GATED: [u32; 2] = [2, 4];
/// The router's weight in 16 bits: a product; in backward both gradients and a sum.
const WEIGHT: [u32; 2] = [1, 3];
/// The same in 32 bits, with a cast; in backward with two.
const WIDE_WEIGHT: [u32; 2] = [2, 5];

/// Launches of permutation that are more than those of the fused kernels; negative where joins of few pieces are fewer.
pub(super) fn of_permutation(shard: &Shard<'_>, experts: Experts, kind: PassKind) -> i32 {
    if !shard.is_unfused(Fusion::Permutation) {
        return 0;
    }
    let more = signed(of(SINGLE, kind)) - signed(of(FUSED, kind));
    if kind == PassKind::Weight || !shard.sorts_by_expert(experts) {
        return more;
    }
    // A piece for every expert of every rank.
    let n = u32::try_from(experts.n_routed).expect("experts fit u32") * shard.expert_tp;
    let joins = JOINS * (n.div_ceil(PIECES)) + JOINS * n / VIEWS;
    more + signed(joins) - signed(of(FUSED_SORTS, kind))
}

/// Launches of an activation function beside the one of the fused kernel.
pub(super) fn of_activation(shard: &Shard<'_>, experts: Option<Experts>, kind: PassKind) -> u32 {
    if !shard.is_unfused(Fusion::Activation) {
        return 0;
    }
    let function = if shard.model.gated { of(GATED, kind) } else { of([1, 1], kind) };
    let besides = match experts {
        Some(experts) if shard.weighs_wide(experts) => of(WIDE_WEIGHT, kind),
        Some(_) => of(WEIGHT, kind),
        None if shard.model.output_bias => of([1, 0], kind),
        None => 0,
    };
    (function + besides).saturating_sub(of([1, 1], kind))
}

/// Launches of the forward of a layer with experts that its device waits for besides those that it waits for anyway.
pub fn waited(shard: &Shard<'_>) -> u32 {
    if shard.is_unfused(Fusion::Permutation) { WAITED } else { 0 }
}

fn signed(n: u32) -> i32 {
    i32::try_from(n).expect("launches of a layer are few")
}
