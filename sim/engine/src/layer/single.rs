//! PyTorch's single kernels in the place of Megatron-Core's fused ones, and the fused activation function. Units: bytes, elements of 16 bits.
//!
//! Source: NVIDIA/Megatron-LM, core 0.13 to 0.16, `megatron/core/transformer`: `moe/moe_utils.py` (`permute`, `unpermute`, `sort_chunks_by_idxs`),
//! `moe/experts.py` and `mlp.py` (`bias_act_func`). Every kernel reads its inputs from memory and writes what it gives. Kernels over indices and marks of
//! experts are a few per cent of those over rows and are not counted; the host that launches them is (`launch/single.rs`).

use hw::Capability;

use super::Writer;
use crate::model::Experts;
use crate::shard::{Framework, Shard};
use crate::task::{Op, PassKind};
use crate::unfused::Fusion;

/// Which way copied tokens go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Rows of tokens are picked (`index_select`), and their gradients added up (`index_add_`).
    ToExperts,
    /// Rows are added up to tokens (`scatter_add_`), and their gradients picked (`gather`).
    Back,
}

/// Bytes per element of a kernel that copies rows: it reads and writes.
const PICKED: u64 = 4;
/// Bytes of a plain kernel that take as long as one atomic addition of 16 bits, before Blackwell and on it. `index_add_` of 28 · 257 · 1,536 elements of 16
/// bits to rows that are all different takes 280 us on A100 with a copy of 48 · 257 · 1,536 before it. A kernel that moves six bytes per addition takes
/// 98 us with the same copy, so memory moves 1.45 TB/s, and an addition takes as long as 30 of its bytes (facebookresearch/xformers, issue 780,
/// `benchmark_indexing.py`). Both of PyTorch's kernels add element by element (`fastAtomicAdd`). Multiprocessors bound them. By these H100 is as much
/// faster than A100 as by its memory, and Blackwell's memory is faster by 2.16 than its multiprocessors (`PERMUTATION` in `experts.rs`). Adding up is
/// vectorised in later PyTorch (pytorch/pytorch, pull request 182675).
const ADDED: [u64; 2] = [30, 65];

/// Bytes of a plain kernel that take as long per element as a gated activation function, forward and backward. It moves 10: the function, 4, and the product of both halves,
/// 6. Both read halves that lie apart, and take 1.67 times as long as a copy of as many bytes (`silu and product` and `copy` of
/// `profiles/measured/h100-sxm/operators-memory.csv`). In backward gradients of both factors and of the function, 6 each, read such halves too. The join of both moves 8.
const GATED: [u64; 2] = [17, 38];
/// Bytes of a plain kernel that take as long per element as Megatron-Core's compiled gated activation on Hopper, forward and backward. Kernels that read and write
/// everything once move 6 and 10. On H100 they are 1.57 times as fast forward, and 2.46 times both ways (linkedin/Liger-Kernel, pull request 1326:
/// megatron-core 0.16.1, 8,192 rows of 4,096; wider ones alike). No other card was measured, and no gate of experts, which has the router's weight.
const COMPILED_GATED: [u64; 2] = [9, 30];
/// Bytes of a plain activation function.
const PLAIN: [u64; 2] = [4, 6];
/// A bias that is added before it. Its gradient is a sum in any case.
const BIAS: [u64; 2] = [4, 0];
/// The router's weight in 16 bits: a product; in backward both gradients and the sum over a row.
const WEIGHT: [u64; 2] = [4, 12];
/// The same in 32 bits, which makes the product so wide: it is made narrow again, 6. In backward the gradient is made wide, 6. Its product with the weight, 8,
/// is made narrow, 6. That with the activation, 10, is added up, 4.
const WIDE_WEIGHT: [u64; 2] = [12, 34];

/// Puts so many elements of copied tokens into the order of experts, or back.
pub(super) fn permute(writer: &mut Writer<'_>, experts: Experts, elements: u64, way: Way) {
    let is_picked = match (way, writer.kind) {
        (_, PassKind::Weight) => return,
        (Way::ToExperts, kind) => kind == PassKind::Forward,
        (Way::Back, kind) => kind != PassKind::Forward,
    };
    if is_picked {
        return writer.push(Op::Elementwise { bytes: elements * PICKED });
    }
    // Tokens begin as zeros.
    let zeroed = elements / experts.top_k * writer.shard.dtype.bytes();
    let added = ADDED[usize::from(writer.shard.capability == Capability::Ten)];
    writer.push(Op::Elementwise { bytes: zeroed + elements * added });
}

/// What the router's weight adds to an activation function.
pub(super) fn weight(shard: &Shard<'_>, experts: Experts) -> [u64; 2] {
    if shard.weighs_wide(experts) { WIDE_WEIGHT } else { WEIGHT }
}

/// The activation function between two products over so many elements that it gives, with so many bytes of each besides.
pub(super) fn activation(writer: &mut Writer<'_>, elements: u64, besides: [u64; 2]) {
    let function = if writer.shard.model.gated { GATED } else { PLAIN };
    writer.moves(elements, [function[0] + besides[0], function[1] + besides[1]]);
}

/// The activation function of a dense feed-forward so wide, fused or not.
pub(super) fn dense_activation(writer: &mut Writer<'_>, intermediate: u64) {
    let elements = (writer.tokens * intermediate).div_ceil(writer.cut);
    if writer.shard.is_unfused(Fusion::Activation) {
        return activation(writer, elements, if writer.shard.model.output_bias { BIAS } else { [0; 2] });
    }
    fused_activation(writer, elements);
}

/// The activation function of a dense feed-forward over so many elements that it gives, in one compiled kernel.
fn fused_activation(writer: &mut Writer<'_>, elements: u64) {
    let shard = writer.shard;
    let is_measured = shard.framework == Framework::MegatronCore && shard.capability == Capability::Nine;
    if !is_measured || !shard.model.gated {
        return writer.traffic(if shard.model.gated { 3 } else { 2 } * elements);
    }
    writer.moves(elements, COMPILED_GATED);
}

#[cfg(test)]
mod tests {
    use hw::Dtype;

    use super::*;
    use crate::dispatcher::Dispatcher;
    use crate::layer::{after_attention, before_attention};
    use crate::model::Model;
    use crate::shard::ExpertLoad;
    use crate::task::Ops;
    use crate::unfused::Unfused;

    const PASSES: [PassKind; 3] = [PassKind::Forward, PassKind::Backward, PassKind::Weight];

    fn model(name: &str) -> Model {
        crate::model::embedded(name).expect("embedded")
    }

    fn shard(model: &Model, unfused: Unfused) -> Shard<'_> {
        let base = Shard::forward(model, Dtype::Bf16, 1);
        Shard { framework: Framework::MegatronCore, ep: if model.experts.is_some() { 8 } else { 1 }, unfused, ..base }
    }

    fn moved(ops: &Ops) -> u64 {
        let of = |(op, n): &(Op, u32)| if let Op::Elementwise { bytes } = op { bytes * u64::from(*n) } else { 0 };
        ops.iter().map(of).sum()
    }

    /// Bytes that ten tokens move behind attention in every pass more than with fused kernels.
    fn more(model: &Model, change: for<'m> fn(Shard<'m>) -> Shard<'m>, fusion: Fusion) -> [u64; 3] {
        let of = |unfused, kind| {
            let load = model.experts.map(|_| ExpertLoad::EVEN);
            moved(&after_attention(&change(shard(model, unfused)), 10, kind, load.as_ref()))
        };
        PASSES.map(|kind| of(Unfused::NONE.with(fusion), kind) - of(Unfused::NONE, kind))
    }

    #[test]
    fn rows_are_added_up_atom_by_atom_once_in_each_pass() {
        // Ten tokens of 2,048 numbers visit eight experts. A fused kernel moves four bytes of a row's number each way, and so does one that picks rows.
        let elements = 10 * 8 * 2048;
        let added = 10 * 2048 * 2 + (30 - 4) * elements;
        let qwen = model("qwen3-30b-a3b");
        assert_eq!(more(&qwen, |shard| shard, Fusion::Permutation), [added, added, 0]);
        // Blackwell's memory outruns what adds up.
        let bytes = |capability| {
            let shard = Shard { capability, ..shard(&qwen, Unfused::NONE.with(Fusion::Permutation)) };
            moved(&after_attention(&shard, 10, PassKind::Forward, Some(&ExpertLoad::EVEN)))
        };
        assert_eq!(bytes(Capability::Ten) - bytes(Capability::Nine), (65 - 30) * elements);
        // Other frameworks have no such kernels to turn off.
        assert_eq!(more(&qwen, |shard| Shard { framework: Framework::Formulas, ..shard }, Fusion::Permutation), [0; 3]);
    }

    #[test]
    fn an_activation_function_is_a_kernel_for_each_of_its_steps() {
        // Ten tokens, 14,336 wide. Fused: two halves are read and one written, 6 bytes, and half as many again in backward. Single kernels over halves take 1.67
        // times their 10 bytes, and 1.67 times 18 with a join of 8.
        let dense = more(&model("llama-3-8b"), |shard| shard, Fusion::Activation);
        assert_eq!(dense, [17 - 6, 38 - 9, 0].map(|bytes| bytes * 10 * 14_336));
        // Experts 768 wide weigh what they give: a product, and in backward two and a sum.
        let rows = 10 * 8 * 768;
        let qwen = model("qwen3-30b-a3b");
        let narrow = more(&qwen, |shard| shard, Fusion::Activation);
        assert_eq!(narrow, [17 + 4 - 6, 38 + 4 + 6 + 2 - 9, 0].map(|bytes| bytes * rows));
        // By a weight of 32 bits the product is as wide.
        let wide = more(&qwen, |shard| Shard { dispatcher: Dispatcher::HybridEp, ..shard }, Fusion::Activation);
        assert_eq!(wide, [17 + 6 + 6 - 6, 38 + 6 + 8 + 6 + 10 + 4 - 9, 0].map(|bytes| bytes * rows));
        // A plain function is one kernel in any case, and its bias another one.
        let plain = more(&model("gpt-3-175b"), |shard| shard, Fusion::Activation);
        assert_eq!(plain, [4 * 10 * 4 * 12_288, 0, 0]);
    }

    #[test]
    fn a_compiled_gate_is_slower_than_its_bytes_on_hopper_alone() {
        let llama = model("llama-3-8b");
        let bytes = |capability, kind| {
            let shard = Shard { capability, ..shard(&llama, Unfused::NONE) };
            let mut writer = Writer::new(&shard, 1, kind);
            fused_activation(&mut writer, 1);
            moved(&writer.done())
        };
        // Both ways 2.46 times what is read and written once: 6 bytes forward and 10 backward.
        assert_eq!([PassKind::Forward, PassKind::Backward].map(|kind| bytes(Capability::Nine, kind)), [9, 30]);
        assert_eq!([PassKind::Forward, PassKind::Backward].map(|kind| bytes(Capability::Ten, kind)), [6, 9]);
        // Single kernels are slower still.
        assert!(COMPILED_GATED[0] < GATED[0] && COMPILED_GATED[1] < GATED[1]);
    }

    #[test]
    fn positions_are_rotated_by_single_kernels_where_they_are_not_fused() {
        let more = |name: &str, kind| {
            let model = model(name);
            let of = |unfused| moved(&before_attention(&shard(&model, unfused), 10, kind));
            of(Unfused::NONE.with(Fusion::Positions)) - of(Unfused::NONE)
        };
        // 32 heads of queries and 8 of keys, 128 wide each.
        assert_eq!(more("llama-3-8b", PassKind::Forward), 10 * 40 * 128 * (24 - 4));
        assert_eq!(more("llama-3-8b", PassKind::Backward), 10 * 40 * 128 * (34 - 6));
        // Of latent attention 64 numbers of each of 128 heads; a fused rotation is part of what makes the heads.
        // Single kernels copy 1,024 elements of a head besides, and fused ones touch 704.
        assert_eq!(more("deepseek-v3", PassKind::Forward), 10 * 128 * (64 * 24 + (1024 - 704) * 2));
        // Learned positions are not rotated, and scaled ones never fused.
        assert_eq!([more("gpt-3-175b", PassKind::Forward), more("gpt-oss-120b", PassKind::Forward)], [0; 2]);
    }

    fn wide(shard: Shard<'_>) -> Shard<'_> {
        Shard { gradient_dtype: Dtype::Fp32, ..shard }
    }

    #[test]
    fn gradients_that_no_product_adds_up_are_read_and_added_by_a_kernel() {
        // Output and feed-forward of Llama 3 8B: 16 bits of a gradient are read, and a sum of 32 or 16 bits is read and written.
        let weights = 4096 * 4096 + 3 * 4096 * 14_336;
        let llama = model("llama-3-8b");
        assert_eq!(more(&llama, wide, Fusion::GradientAccumulation), [0, (2 + 4 + 4) * weights, (2 + 4 + 4) * weights]);
        assert_eq!(more(&llama, |shard| shard, Fusion::GradientAccumulation), [0, 6 * weights, 6 * weights]);
        // Of Qwen3 30B-A3B a rank has sixteen experts beside the router and the output of attention.
        let weights = 16 * 3 * 2048 * 768 + 128 * 2048 + 2048 * 4096;
        let qwen = model("qwen3-30b-a3b");
        assert_eq!(more(&qwen, wide, Fusion::GradientAccumulation), [0, 10 * weights, 10 * weights]);
    }
}
