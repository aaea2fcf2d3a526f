//! Operations of the experts of one layer on a rank: router, permutations, grouped products, and the exchange of tokens.

use hw::{Capability, Dtype, Format, GroupShape};

use super::reached::reached;
use super::single::{self, Way};
use super::strided::Strided;
use super::{Writer, repeated};
use crate::compression;
use crate::dispatcher::Dispatcher;
use crate::model::Experts;
use crate::recompute::Module;
use crate::shard::{ExpertLoad, Framework, Shard};
use crate::stage::Stage;
use crate::task::{Collective, Op, Ops, PassKind};
use crate::unfused::Fusion;

/// Bytes per element of what experts give that Megatron-Core moves, forward and backward, to add their last bias outside of the products: the bias
/// times the router's weight, the sum and the join of all experts in forward; in backward two products with their sums, and another join
/// (`TEGroupedMLP._apply_bias`). The first bias is added inside of its product.
const BIAS_BYTES: [u64; 2] = [12, 16];
/// The same where the router's weight has 32 bits, which makes all of these tensors so wide: what comes out is made 16 bits wide, and in backward what comes
/// in is made 32 bits wide and the gradient of the products 16.
const WIDE_BIAS_BYTES: [u64; 2] = [28, 40];

/// The same in backward where products are fused: gradients of biases and of the router's weights are sums of what comes in, read once
/// (Transformer Engine, `compute_grouped_dbias_dscales`). In forward the product adds its bias.
const FUSED_BIAS_BYTES: u64 = 2;

/// Bytes per element of 16 bits that clamping moves, forward and backward: both halves are read, written and joined. In backward a half with one bound is
/// compared, 3, and its gradient is chosen, 5. The half with two bounds has two comparisons and their conjunction more, 14. Both halves are joined, 4
/// (`weighted_bias_quick_geglu_impl`, `clamp_value`; pytorch/pytorch, `clamp_backward` in FunctionsManual.cpp).
///
/// What reads halves of rows, forward and backward: the clamps; the comparisons, and the choice of gradients.
const CLAMP_OF_HALVES: [f64; 2] = [4.0, 9.5];
/// What reads whole rows: the join; the conjunction of both bounds, and the join.
const CLAMP_OF_ROWS: [f64; 2] = [4.0, 5.5];

/// Time of Transformer Engine's permutation of tokens on Blackwell, forward and backward, over that of a plain kernel that reads and writes every copy. On B200 a
/// permutation with its way back takes 1.05 and 1.03 ms for 4,096 tokens of 5,120 to six experts and of 7,168 to eight together, and 0.48 ms are
/// those of its bytes. MooreThreads/SimuMax @ 4dcaae513ba7, configs/system/b200_bf16_ceperm.json: `permute_fwd` and `permute_bwd` reach 0.501 and 0.511 of
/// 8,000 GiB/s by the bytes of simu_tools/efficency_test/test_ce_permute_efficiency.py, which counts two orders and times one. So memory does not bound it, and
/// multiprocessors do. By their number and clock H100 takes 1.1 times as long as B200, and its memory 2.4 times; A100 takes 1.9 and its memory 4.1 times. On both the
/// kernel takes as long as memory does.
const PERMUTATION: [f64; 2] = [2.19, 2.15];

/// Tokens times visited experts that one rank sends into the all-to-all.
pub fn dispatched(shard: &Shard<'_>, experts: Experts, tokens: u64) -> u64 {
    let n_gathered = if shard.gathers_copies() { shard.expert_tp } else { 1 };
    (tokens * experts.top_k).div_ceil(u64::from(shard.senders() * n_gathered))
}

/// The same that one rank computes a part of: those that it is sent, and those of the ranks that cut an expert with it.
fn gathered(shard: &Shard<'_>, experts: Experts, tokens: u64) -> u64 {
    (tokens * experts.top_k).div_ceil(u64::from(shard.senders()))
}

/// The experts of a layer by themselves, loaded evenly: without the norm in front and the residual behind.
pub fn experts_alone(shard: &Shard<'_>, tokens: u64, kind: PassKind) -> Ops {
    let mut writer = Writer::new(shard, tokens, kind);
    if let Some(experts) = shard.model.experts {
        feed_forward(&mut writer, experts, ExpertLoad::EVEN);
    }
    writer.done()
}

/// Router, permutation, merging of similar tokens and the experts of this rank.
pub(super) fn feed_forward(writer: &mut Writer<'_>, experts: Experts, load: ExpertLoad) {
    let shard = writer.shard;
    let hidden = shard.model.hidden;
    let projections = if shard.model.gated { 2 } else { 1 };
    let expert_cut = u64::from(shard.expert_tp);
    let n_experts = experts.n_routed / u64::from(shard.ep);
    let sent = gathered(shard, experts, writer.tokens);
    let mut routed = (sent * load.permille).div_ceil(1000);
    route(writer, experts);
    let wide = experts.latent.unwrap_or(hidden);
    if wide < hidden {
        writer.enter(shard.formats.dense);
        writer.duplicated(wide, hidden);
        writer.duplicated(hidden, wide);
    }
    permute(writer, experts, sent * wide, Way::ToExperts);
    if let Some(compression) = shard.compression {
        writer.ops.extend(compression.work(shard.model.hidden, shard.dtype, sent, writer.kind));
        routed = compression.rows_computed(routed);
    }
    let rows: Vec<u64> =
        (0..n_experts).map(|expert| routed / n_experts + u64::from(expert < routed % n_experts)).collect();
    let width = experts.intermediate.div_ceil(expert_cut);
    writer.enter(shard.formats.experts);
    let is_fused = shard.fuses_experts();
    products(writer, &rows, [projections * width, wide], [true, !is_fused]);
    if !is_fused {
        between_products(writer, experts, width * routed);
    }
    products(writer, &rows, [wide, width], [!is_fused, true]);
    if experts.biased {
        add_bias(writer, experts, routed * wide);
    }
    permute(writer, experts, sent * wide, Way::Back);
    if experts.shared_intermediate > 0 {
        super::feed_forward(writer, experts.shared_intermediate);
    }
}

/// Products of experts by matrices of so many columns and rows. In forward and in backward it says whether what comes in is cast by a kernel of its own.
fn products(writer: &mut Writer<'_>, rows: &[u64], [n, k]: [u64; 2], [casts_input, casts_gradient]: [bool; 2]) {
    let (kind, format) = (writer.kind, writer.format);
    let n_rows: u64 = rows.iter().sum();
    let has_input_gradient = matches!(kind, PassKind::Backward | PassKind::Input);
    if kind == PassKind::Forward && casts_input {
        writer.cast(n_rows * k);
    }
    if has_input_gradient && casts_gradient {
        writer.cast(n_rows * n);
    }
    // One kernel that goes through the rows of all experts has no end of its own for each (`use_dynamic_sched`; Transformer Engine,
    // `forward_grouped_mlp.py` and `backward_grouped_mlp.py`). Gradients of weights are products by expert.
    let at_once = if writer.shard.fuses_experts() { &[n_rows] } else { rows };
    let op = |kind, rows: &[u64], n, k| Op::GroupedGemm { rows: rows.to_vec(), n, k, format, kind };
    if kind == PassKind::Forward {
        writer.push(op(PassKind::Forward, at_once, n, k));
    }
    if has_input_gradient {
        writer.push(op(PassKind::Input, at_once, k, n));
    }
    if matches!(kind, PassKind::Backward | PassKind::Weight) {
        writer.push(op(PassKind::Weight, rows, n, k));
        writer.accumulate(rows.len() as u64 * n * k);
    }
}

/// Puts so many elements of copied tokens into the order of experts, or back.
fn permute(writer: &mut Writer<'_>, experts: Experts, elements: u64, way: Way) {
    if writer.shard.sorts_by_expert(experts) {
        // A copy of every element, by one kernel or by joins of pieces.
        writer.traffic(2 * elements);
    }
    if writer.shard.is_unfused(Fusion::Permutation) {
        return single::permute(writer, experts, elements, way);
    }
    if writer.shard.framework != Framework::MegatronCore {
        writer.traffic(2 * elements);
        return;
    }
    let bytes = hw::real(2 * elements * writer.shard.dtype.bytes());
    let factors = if writer.shard.capability == Capability::Ten { PERMUTATION } else { [1.0; 2] };
    // Where it runs beside computation both share the memory, so what its bytes take stays.
    let factors = factors.map(|factor| 1.0 + (factor - 1.0) * (1.0 - permuted_beside(writer.shard)));
    match writer.kind {
        PassKind::Forward => writer.push(Op::Elementwise { bytes: hw::whole(bytes * factors[0]) }),
        PassKind::Backward | PassKind::Input => writer.push(Op::Elementwise { bytes: hw::whole(bytes * factors[1]) }),
        PassKind::Weight => {}
    }
}

/// Share of permutations that run beside the neighbour micro-batch's computation. HybridEP puts copies into order as it sends tokens, on the stream of its exchange.
/// DeepEP's and NCCL's are kernels of the pass (Megatron-Core 0.18, `fine_grained_callables.py`: `submodule_dispatch_forward`, `submodule_combine_forward`;
/// `model_chunk_schedule_plan.py`).
fn permuted_beside(shard: &Shard<'_>) -> f64 {
    if shard.dispatcher == Dispatcher::HybridEp { shard.dispatched_beside } else { 0.0 }
}

/// The activation function of the experts of this rank alone.
pub(super) fn activation(writer: &mut Writer<'_>, experts: Experts, load: ExpertLoad) {
    let shard = writer.shard;
    let routed = (gathered(shard, experts, writer.tokens) * load.permille).div_ceil(1000);
    between_products(writer, experts, experts.intermediate.div_ceil(u64::from(shard.expert_tp)) * routed);
}

/// The activation function with the router's weight, over so many elements that it gives.
fn between_products(writer: &mut Writer<'_>, experts: Experts, elements: u64) {
    let projections = if writer.shard.model.gated { 2 } else { 1 };
    clamp(writer, experts, projections * elements);
    if writer.shard.is_unfused(Fusion::Activation) {
        return single::activation(writer, elements, single::weight(writer.shard, experts));
    }
    writer.traffic((projections + 1) * elements);
}

/// Clamps so many elements outside of the fused activation function.
fn clamp(writer: &mut Writer<'_>, experts: Experts, elements: u64) {
    if !experts.clamped || writer.shard.framework != Framework::MegatronCore {
        return;
    }
    writer.moves_strided(elements, Strided::Halves, CLAMP_OF_HALVES, CLAMP_OF_ROWS);
}

/// The product by the router. Tokens become 32-bit floats for one in 32 bits.
fn route(writer: &mut Writer<'_>, experts: Experts) {
    let shard = writer.shard;
    if experts.fp32_router && writer.kind != PassKind::Weight {
        let elements = writer.own_tokens() * shard.model.hidden;
        writer.push(Op::Elementwise { bytes: elements * (shard.dtype.bytes() + Dtype::Fp32.bytes()) });
    }
    writer.enter(if experts.fp32_router { Format::Fp32 } else { shard.dtype.into() });
    writer.duplicated(experts.n_routed + experts.n_zero, shard.model.hidden);
    if experts.normed {
        // Three norms, around routed and around shared experts.
        writer.residual(6 * shard.model.hidden);
    }
}

/// Adds the bias of the experts' last product to so many elements.
fn add_bias(writer: &mut Writer<'_>, experts: Experts, elements: u64) {
    if writer.shard.framework != Framework::MegatronCore {
        return;
    }
    if writer.shard.fuses_experts() {
        if matches!(writer.kind, PassKind::Backward | PassKind::Input) {
            writer.push(Op::Elementwise { bytes: elements * FUSED_BIAS_BYTES });
        }
        return;
    }
    let bytes = if writer.shard.weighs_wide(experts) { WIDE_BIAS_BYTES } else { BIAS_BYTES };
    writer.moves(elements, bytes);
}

/// All-to-all of one pass of a stage: tokens to experts and back, per layer.
///
/// Where a token is sent once, its forward first gathers a map of all tokens of the group and all experts, a byte each (DeepEP, branch `hybrid-ep`,
/// `Executor::allgather_routing_map`). Backward has it. That is of HybridEP inside an NVLink domain; DeepEP, which sends counts, is not told apart there.
pub fn expert_exchange(
    shard: &Shard<'_>,
    stage: &Stage,
    tokens: u64,
    kind: PassKind,
    load: ExpertLoad,
    shape: GroupShape,
) -> Ops {
    let Some(experts) = shard.model.experts else { return Vec::new() };
    if shard.ep < 2 || kind == PassKind::Weight || stage.n_expert == 0 || tokens == 0 {
        return Vec::new();
    }
    // Experts that are computed again are sent their tokens again, and send them back.
    let is_again = kind != PassKind::Forward && shard.recompute.modules().has(Module::Experts);
    let n_layers = stage.n_expert + if is_again { stage.again_expert } else { 0 };
    let sent = (dispatched(shard, experts, tokens) * load.permille).div_ceil(1000);
    // Experts behind a narrower projection get its rows.
    let row_bytes = experts.latent.unwrap_or(shard.model.hidden) * shard.dtype.bytes();
    if shard.dispatcher.is_once_per_node() {
        let rows = sent.div_ceil(experts.top_k);
        let mut ops = repeated(&spread(rows, experts, row_bytes, shape), 2 * n_layers);
        let n_maps = if kind == PassKind::Forward { stage.n_expert } else { n_layers - stage.n_expert };
        if shape.n_nodes == 1 && n_maps > 0 {
            let bytes = rows * u64::from(shape.n_ranks) * experts.n_routed;
            ops.push((Op::Collective { kind: Collective::AllGather, bytes, shape }, n_maps));
        }
        return ops;
    }
    let all_to_all = |bytes| Op::Collective { kind: Collective::AllToAll, bytes, shape };
    let Some(compression) = shard.compression else {
        return vec![(all_to_all(sent * row_bytes), 2 * n_layers)];
    };
    let mut ops = vec![(all_to_all(compression.rows_sent(sent) * row_bytes), 2 * n_layers)];
    if kind == PassKind::Forward {
        ops.push((all_to_all(compression::count_bytes(experts)), stage.n_expert));
    }
    ops
}

/// Exchange of so many tokens with their experts where no GPU gets a token twice and no node's port carries it twice (DeepEP, HybridEP): over the
/// ports once per node, then inside nodes once per GPU, experts being chosen evenly.
fn spread(tokens: u64, experts: Experts, row_bytes: u64, shape: GroupShape) -> Ops {
    let all_to_all = |shape, n_targets| {
        let bytes = hw::whole(hw::real(tokens * row_bytes) * reached(experts, n_targets));
        (Op::Collective { kind: Collective::AllToAll, bytes, shape }, 1)
    };
    let per_node = GroupShape::inside(shape.n_ranks.div_ceil(shape.n_nodes));
    let mut ops = vec![all_to_all(per_node, shape.n_ranks)];
    if shape.n_nodes > 1 {
        ops.push(all_to_all(shape.one_of_each_node(), shape.n_nodes));
    }
    ops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Formats;
    use crate::layer::after_attention;

    #[test]
    fn a_router_in_32_bits_multiplies_wide_tokens_that_are_made_first() {
        let model = crate::model::embedded("minimax-m2.5").expect("embedded");
        let ops = |fp32_router| {
            let experts = model.experts.map(|experts| Experts { fp32_router, ..experts });
            let model = crate::Model { experts, ..model.clone() };
            after_attention(&Shard::forward(&model, Dtype::Bf16, 1), 10, PassKind::Forward, Some(&ExpertLoad::EVEN))
        };
        let router = |format| Op::Gemm { m: 10, n: 256, k: 3072, format };
        let n_of = |ops: &Ops, op: &Op| ops.iter().filter(|(found, _)| found == op).count();
        // Ten tokens of 3072 numbers: two bytes read and four written of each.
        let made = Op::Elementwise { bytes: 10 * 3072 * 6 };
        let (plain, wide) = (ops(false), ops(true));
        assert_eq!([Format::Bf16, Format::Fp32].map(|format| n_of(&plain, &router(format))), [1, 0]);
        assert_eq!([Format::Bf16, Format::Fp32].map(|format| n_of(&wide, &router(format))), [0, 1]);
        assert_eq!(n_of(&wide, &made), n_of(&plain, &made) + 1);
        assert_eq!(wide.len(), plain.len() + 1);
    }

    #[test]
    fn fused_experts_save_what_lies_between_their_products() {
        let model = crate::model::embedded("gpt-oss-120b").expect("embedded");
        let ops = |fused_experts, format, capability, kind| {
            let formats = Formats::weights(format, Dtype::Bf16);
            let whole = Shard::forward(&model, Dtype::Bf16, 1);
            let framework = Framework::MegatronCore;
            let shard =
                Shard { framework, formats, fused_experts, capability, dispatcher: Dispatcher::HybridEp, ..whole };
            after_attention(&shard, 10, kind, Some(&ExpertLoad::EVEN))
        };
        let moved = |ops: &Ops| -> u64 {
            let bytes =
                |(op, n): &(Op, u32)| if let Op::Elementwise { bytes } = op { bytes * u64::from(*n) } else { 0 };
            ops.iter().map(bytes).sum()
        };
        // Ten tokens visit four experts, 2880 wide inside and outside.
        let rows = 10 * 4 * 2880;
        // Clamps of both halves; those of halves of rows take 1.4 · 2.4 / 1.1 times their bytes on Blackwell.
        let clamps = |halves: f64, whole: f64| hw::whole(hw::real(2 * rows) * (whole + halves * 1.4 * 2.4 / 1.1));
        for (kind, saved_halves, clamps) in [
            // Activation: two halves are read and one is written, 6 bytes. The cast of the result 4.5, and the bias.
            (PassKind::Forward, 2 * (6 + WIDE_BIAS_BYTES[0]) + 9, clamps(4.0, 4.0)),
            // Activation: half as many again. The cast of both gradients, and the bias but for one reading.
            (PassKind::Backward, 2 * (9 + WIDE_BIAS_BYTES[1] - 2) + 9 * 2, clamps(9.5, 5.5)),
            (PassKind::Weight, 0, 0),
        ] {
            let [plain, fused] = [false, true].map(|is_fused| ops(is_fused, Format::Mxfp8, Capability::Ten, kind));
            assert_eq!(moved(&plain) - moved(&fused), saved_halves * rows / 2 + clamps, "{kind:?}");
            let products = |ops: &Ops| -> Vec<Op> {
                ops.iter().map(|(op, _)| op.clone()).filter(|op| !matches!(op, Op::Elementwise { .. })).collect()
            };
            // Rows of all experts go through one kernel, but for gradients of weights.
            let at_once: Vec<Op> = products(&plain).into_iter().map(with_rows_at_once).collect();
            assert_eq!(at_once, products(&fused), "{kind:?}");
        }
        // Other formats and older cards have no such kernels.
        for (format, capability) in
            [(Format::Fp8, Capability::Ten), (Format::Nvfp4, Capability::Ten), (Format::Mxfp8, Capability::Nine)]
        {
            let [plain, asked] = [false, true].map(|is_fused| ops(is_fused, format, capability, PassKind::Forward));
            assert_eq!(plain, asked, "{format:?}");
        }
    }

    fn with_rows_at_once(op: Op) -> Op {
        match op {
            Op::GroupedGemm { rows, n, k, format, kind } if kind != PassKind::Weight => {
                Op::GroupedGemm { rows: vec![rows.iter().sum()], n, k, format, kind }
            }
            other => other,
        }
    }

    #[test]
    fn a_bias_behind_the_experts_and_a_clamp_in_them_are_kernels_of_their_own() {
        let model = crate::model::embedded("gpt-oss-120b").expect("embedded");
        let sent = |biased, clamped, kind, dispatcher| {
            let experts = model.experts.map(|experts| Experts { biased, clamped, ..experts });
            let model = crate::Model { experts, ..model.clone() };
            let shard =
                Shard { framework: Framework::MegatronCore, dispatcher, ..Shard::forward(&model, Dtype::Bf16, 1) };
            let bytes = |(op, n): (Op, u32)| if let Op::Elementwise { bytes } = op { bytes * u64::from(n) } else { 0 };
            after_attention(&shard, 10, kind, Some(&ExpertLoad::EVEN)).into_iter().map(bytes).sum::<u64>()
        };
        let moved = |biased, clamped, kind| sent(biased, clamped, kind, Dispatcher::AllToAll);
        // Ten tokens visit four experts each, whose output is 2880 wide.
        let added = |kind| moved(true, true, kind) - moved(false, true, kind);
        assert_eq!(added(PassKind::Forward), 12 * 10 * 4 * 2880);
        assert_eq!(added(PassKind::Backward), 16 * 10 * 4 * 2880);
        assert_eq!(added(PassKind::Weight), 0);
        // A weight of 32 bits: product 4, sum 2 + 4 + 4, join 8, and 6 to make it narrow.
        let sends = Dispatcher::DeepEp;
        let wide = sent(true, true, PassKind::Forward, sends) - sent(false, true, PassKind::Forward, sends);
        assert_eq!(wide, (4 + 10 + 8 + 6) * 10 * 4 * 2880);
        // Both halves of what they project are 2880 wide. In backward one has one bound and the other one two: 8 and 14 bytes, and a join.
        let clamped = |kind| moved(true, true, kind) - moved(true, false, kind);
        assert_eq!(clamped(PassKind::Forward), 8 * 10 * 4 * 2 * 2880);
        assert_eq!(clamped(PassKind::Backward), 10 * 4 * 2880 * (8 + 14 + 2 * 4));
    }

    /// A rank with whole experts computes its own part of the sequence, whether or not others have further experts.
    #[test]
    fn whole_experts_of_a_tensor_group_share_its_tokens() {
        let model = crate::model::embedded("mixtral-8x7b").expect("embedded");
        let rows = |tp, ep, expert_tp| {
            let whole = Shard::forward(&model, Dtype::Bf16, tp);
            let shard = Shard { ep, expert_tp, sequence_parallel: tp > 1, ..whole };
            let ops = after_attention(&shard, 4096, PassKind::Forward, Some(&ExpertLoad::EVEN));
            let of = |(op, _): &(Op, u32)| {
                if let Op::GroupedGemm { rows, n, .. } = op { Some((rows.iter().sum(), *n)) } else { None }
            };
            ops.iter().find_map(of).expect("experts multiply")
        };
        let (all, width): (u64, u64) = rows(1, 1, 1);
        assert_eq!((all, width), (2 * 4096, 2 * 14_336));
        for ep in [1, 2, 4] {
            assert_eq!(rows(4, ep, 1), (all / 4, width), "{ep}");
        }
        assert_eq!(rows(4, 1, 2), (all / 2, width / 2));
        assert_eq!(rows(4, 1, 4), (all, width / 4));
    }
}
