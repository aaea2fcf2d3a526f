//! Launches of PyTorch's single kernels in the place of Megatron-Core's fused ones, and what a host waits for between them. Units: launches.
//!
//! Counted in NVIDIA/Megatron-LM, core 0.13 to 0.16 (`moe/moe_utils.py`, `moe/token_dispatcher.py`, `MoEAlltoAllTokenDispatcher`), and in pytorch/pytorch v2.7
//! (`aten/src/ATen/native/cuda`: `Nonzero.cu`, `IndexKernel.cu`, `Shape.cu`). A launch is one with its operation in Python and autograd. What an operation
//! launches besides, and views without a kernel, take a host a part of that: in a recorded step of PyTorch on H100 `aten::mul` takes 21.4 us in the
//! median, `cudaLaunchKernel` 5.8 us and `aten::view` 1.6 us (`profiles/measured/h100-sxm/trace-eager.json.gz`).
//!
//! A choice by marks (`masked_select`) is one operation of seven kernels, so 2.6 launches: two kernels count, a copy to the host follows, which the host waits for,
//! two compact, one makes coordinates and one picks. From core 0.17 on nothing waits there; with experts that are padded to a capacity neither. Both are
//! not told apart, nor is a loop over the documents of a pack, which single kernels of positions need.

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
/// PyTorch's kernels in the place of `FUSED`. In forward marks and weights are transposed, 2, tokens counted through, 1, rows and weights chosen by marks, 5.2,
/// rows picked, 1, and added up behind zeros, 2. In backward rows are picked, 1, and added up behind zeros, 2; weights go back behind zeros by an operation of
/// four kernels, 2.8.
const SINGLE: [u32; 2] = [11, 6];
/// Joins in the place of `FUSED_SORTS`: of rows and of weights before the experts, of rows behind. Each is a split and a join.
const JOINS: u32 = 3;
/// Views of pieces that take a host as long as a launch.
const VIEWS: u32 = 14;
/// Launches that the device waits for, though the host is ahead: those behind the first count that the host waits for, up to the copy of rows. The rest of the
/// first choice is 1.1, weights are transposed, 1, and chosen, 2.6, and rows picked, 1.
const WAITED: u32 = 6;

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
    let joins = JOINS + JOINS * n / VIEWS;
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

/// Launches that add gradients of a weight to those of earlier micro-batches.
pub(super) fn of_accumulation(shard: &Shard<'_>, kind: PassKind) -> u32 {
    let makes_gradients = matches!(kind, PassKind::Backward | PassKind::Weight);
    if makes_gradients && shard.is_unfused(Fusion::GradientAccumulation) { 1 } else { 0 }
}

/// Launches of the forward of a layer with experts that its device waits for besides those that it waits for anyway.
pub fn waited(shard: &Shard<'_>) -> u32 {
    if shard.is_unfused(Fusion::Permutation) { WAITED } else { 0 }
}

fn signed(n: u32) -> i32 {
    i32::try_from(n).expect("launches of a layer are few")
}

#[cfg(test)]
mod tests {
    use hw::Dtype;

    use super::super::{Captured, of_layer, of_recomputed};
    use super::*;
    use crate::model::Model;
    use crate::recompute::{Module, Modules, Recompute};
    use crate::shard::Framework;
    use crate::unfused::Unfused;

    fn shard(model: &Model, ep: u32, unfused: Unfused) -> Shard<'_> {
        Shard { framework: Framework::MegatronCore, ep, unfused, ..Shard::forward(model, Dtype::Bf16, 1) }
    }

    /// Launches of forward, backward and gradients of weights that are more than with fused kernels.
    fn more(model: &Model, ep: u32, fusion: Fusion) -> [u32; 3] {
        let of =
            |unfused, kind| of_layer(&shard(model, ep, unfused), Captured::default(), model.experts.is_some(), kind);
        [PassKind::Forward, PassKind::Backward, PassKind::Weight]
            .map(|kind| of(Unfused::NONE.with(fusion), kind) - of(Unfused::NONE, kind))
    }

    #[test]
    fn permutations_launch_kernels_for_marks_and_views_for_pieces() {
        let qwen = crate::model::embedded("qwen3-30b-a3b").expect("embedded");
        // All experts on one rank: nothing is sorted.
        assert_eq!(more(&qwen, 1, Fusion::Permutation), [11 - 5, 6 - 2, 0]);
        // 128 pieces: three joins, and three times as many views, fourteen of which are a launch.
        let joins = 3 + 3 * 128 / 14;
        assert_eq!(more(&qwen, 8, Fusion::Permutation), [11 - 5 + joins - 4, 6 - 2 + joins - 2, 0]);
        assert_eq!(waited(&shard(&qwen, 8, Unfused::NONE.with(Fusion::Permutation))), 6);
        assert_eq!(waited(&shard(&qwen, 8, Unfused::NONE.with(Fusion::Activation))), 0);
    }

    #[test]
    fn activation_functions_and_positions_launch_step_by_step() {
        let qwen = crate::model::embedded("qwen3-30b-a3b").expect("embedded");
        // The function, the product of halves and that with the weight in the place of one; in backward four, and three for the weight.
        assert_eq!(more(&qwen, 8, Fusion::Activation), [3 - 1, 7 - 1, 0]);
        assert_eq!(more(&qwen, 8, Fusion::Positions), [24, 20, 0]);
        let llama = crate::model::embedded("llama-3-8b").expect("embedded");
        assert_eq!(more(&llama, 1, Fusion::Activation), [2 - 1, 4 - 1, 0]);
        assert_eq!(more(&llama, 1, Fusion::Permutation), [0; 3]);
        // What backward computes again by itself is as many kernels.
        let recompute = Recompute::Modules(Modules::NONE.with(Module::ExpertActivation));
        let again =
            |unfused| of_recomputed(&Shard { recompute, ..shard(&qwen, 8, unfused) }, Captured::default(), true);
        assert_eq!([Unfused::NONE, Unfused::NONE.with(Fusion::Activation)].map(again), [1, 3]);
    }

    #[test]
    fn every_weight_has_a_launch_that_adds_up_its_gradient() {
        // Queries with keys and values, output, and both products of the feed-forward.
        let llama = crate::model::embedded("llama-3-8b").expect("embedded");
        assert_eq!(more(&llama, 1, Fusion::GradientAccumulation), [0, 4, 4]);
        // Both products of sixteen experts.
        let qwen = crate::model::embedded("qwen3-30b-a3b").expect("embedded");
        assert_eq!(more(&qwen, 8, Fusion::GradientAccumulation), [0, 2 + 2 * 16, 2 + 2 * 16]);
    }
}
