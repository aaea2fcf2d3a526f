//! Exchanges of the tensor group in the passes of a stage: what products that are cut over it read and give.
//!
//! Every block of a layer, a mixer or a feed-forward, is a product that is cut by columns and one that is cut by rows. Routed experts are no such block. With a
//! sequence that is cut, each rank sends its own tokens over the expert group, or has the experts itself. Ranks that cut an expert together then gather the copies that each
//! has for it, one for every expert of a token, and scatter the sums (NVIDIA/Megatron-LM @ d98e8a64ddf3, `MoEAlltoAllTokenDispatcher`: `dispatch_postprocess`,
//! `combine_preprocess`). Whole experts have no such exchange. Shared experts are cut, and are a block (`SharedExpertMLP`).

use hw::GroupShape;

use super::experts::dispatched;
use super::{gathered_heads, torch};
use crate::model::{FeedForward, Layer, Mixer};
use crate::recompute::{Module, Recompute};
use crate::shard::Shard;
use crate::stage::Stage;
use crate::task::{Collective, Op, Ops, PassKind};

/// Exchanges of the tensor group in one pass of a stage, with that of the logits where the loss is not cut.
pub fn tensor_exchange(shard: &Shard<'_>, stage: &Stage, tokens: u64, kind: PassKind, shape: GroupShape) -> Ops {
    let mut ops = activation_exchange(shard, stage, tokens, kind, shape);
    ops.extend(copies_exchange(shard, stage, tokens, kind, shape));
    if shard.tp > 1 && tokens > 0 {
        ops.extend(gathered_heads::exchanged(shard, stage, tokens, kind, shape));
    }
    if shard.gathers_logits && shard.tp > 1 && stage.last && tokens > 0 && kind == PassKind::Forward {
        ops.extend(torch::gathered_logits(shard, tokens, shape));
    }
    ops
}

/// Exchanges of activations over the tensor group: per block an all-gather and a reduce-scatter with sequence
/// parallelism, else an all-reduce. Backward gathers the inputs of column-cut products again (arXiv:2205.05198, 4.2.2).
fn activation_exchange(shard: &Shard<'_>, stage: &Stage, tokens: u64, kind: PassKind, shape: GroupShape) -> Ops {
    if shard.tp < 2 || tokens == 0 || kind == PassKind::Weight {
        return Vec::new();
    }
    let bytes = tokens * shard.model.hidden * shard.dtype.bytes();
    let op = |kind| Op::Collective { kind, bytes, shape };
    let of_layers = n_blocks(shard, stage);
    // The vocabulary's cut of embedding and head costs one reduction each.
    let mut n = of_layers + u32::from(stage.first) + u32::from(stage.last);
    if kind != PassKind::Forward {
        n += again_with_exchange(shard, stage);
    }
    if !shard.sequence_parallel {
        return vec![(op(Collective::AllReduce), n)];
    }
    let forgets = shard.framework.torch().is_none() || shard.recompute == Recompute::Selective;
    let again = if kind == PassKind::Forward || !forgets { 0 } else { of_layers };
    if let Some(modules) = shard.framework.torch() {
        // Nor is the result of a layer's last product reduced, where the layer runs for its backward alone.
        let unread = if stage.is_repeated { stage.n_layers() } else { 0 };
        return torch::tensor_exchange(shard, modules, bytes, [n + again, n - unread], shape);
    }
    vec![(op(Collective::AllGather), n + again), (op(Collective::ReduceScatter), n)]
}

/// Exchanges of copies of tokens among the ranks that cut an expert, in all layers with experts: each gathers those of all, and scatters the sums of what comes out.
/// Backward does the same with gradients, the other way round.
fn copies_exchange(shard: &Shard<'_>, stage: &Stage, tokens: u64, kind: PassKind, whole: GroupShape) -> Ops {
    let Some(experts) = shard.model.experts.filter(|_| shard.gathers_copies() && tokens > 0) else {
        return Ops::new();
    };
    if kind == PassKind::Weight || stage.n_expert == 0 {
        return Ops::new();
    }
    let is_again = kind != PassKind::Forward && shard.recompute.modules().has(Module::Experts);
    let n = stage.n_expert + if is_again { stage.again_expert } else { 0 };
    let row_bytes = experts.latent.unwrap_or(shard.model.hidden) * shard.dtype.bytes();
    let bytes = dispatched(shard, experts, tokens) * u64::from(shard.expert_tp) * row_bytes;
    // Ranks that cut an expert follow one another.
    let shape = if shard.expert_tp == shard.tp { whole } else { GroupShape::inside(shard.expert_tp) };
    [Collective::AllGather, Collective::ReduceScatter].map(|kind| (Op::Collective { kind, bytes, shape }, n)).to_vec()
}

/// Blocks of a stage's layers that are cut over the tensor group.
fn n_blocks(shard: &Shard<'_>, stage: &Stage) -> u32 {
    let layers = &shard.model.layers;
    let all: Vec<Layer> = (0..shard.model.n_layers).map(|index| layers.layer(index)).collect();
    let before = stage.before.unwrap_or_default();
    let of_kind = |(with_experts, usual, n, before): (bool, Layer, u32, u32)| -> u32 {
        let own = all.iter().filter(|layer| layer.has_experts() == with_experts).chain(std::iter::repeat(&usual));
        own.skip(before as usize).take(n as usize).map(|layer| blocks(shard, *layer)).sum()
    };
    of_kind((false, Layer::DENSE, stage.n_dense, before[0]))
        + of_kind((true, Layer::EXPERTS, stage.n_expert, before[1]))
}

/// The same of a layer.
fn blocks(shard: &Shard<'_>, layer: Layer) -> u32 {
    let feed_forward = match layer.feed_forward {
        FeedForward::Off => false,
        FeedForward::Dense => true,
        FeedForward::Experts => cuts_experts(shard),
    };
    u32::from(layer.mixer != Mixer::Off) + u32::from(feed_forward)
}

/// Whether experts of a layer, or shared ones, exchange as a dense feed-forward does. PyTorch's modules gather the tokens of whole ones too (torchtitan, `apply_moe_ep_tp`:
/// `PrepareModuleInputOutput` around `moe`). Without a cut sequence ranks that send a part of the tokens each put all together again.
fn cuts_experts(shard: &Shard<'_>) -> bool {
    let has_shared = shard.model.experts.is_some_and(|experts| experts.shared_intermediate > 0);
    let keeps_own = shard.expert_tp == 1 && (shard.sequence_parallel || shard.ep == 1);
    has_shared || !keeps_own && !shard.gathers_copies() || shard.framework.torch().is_some()
}

/// Layers whose feed-forward backward computes again by itself, and so gathers and reduces again.
fn again_with_exchange(shard: &Shard<'_>, stage: &Stage) -> u32 {
    let modules = shard.recompute.modules();
    let experts = (modules.has(Module::Experts) || modules.has(Module::SharedExperts)) && cuts_experts(shard);
    stage.again_dense * u32::from(modules.has(Module::FeedForward)) + stage.again_expert * u32::from(experts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::Framework;

    const TOKENS: u64 = 4096;

    /// How experts lie on a tensor group of four ranks.
    #[derive(Clone, Copy)]
    struct Cut {
        sequence: bool,
        expert_tp: u32,
        ep: u32,
    }

    const CUT: Cut = Cut { sequence: true, expert_tp: 4, ep: 1 };
    const WHOLE: Cut = Cut { expert_tp: 1, ..CUT };

    /// Bytes of gathers, of reduce-scatters and of all-reduces in a pass of three layers with experts.
    fn exchanged(model: &str, cut: Cut, kind: PassKind) -> [u64; 3] {
        let model = crate::model::embedded(model).expect("embedded");
        let Cut { sequence: sequence_parallel, expert_tp, ep } = cut;
        let framework = Framework::MegatronCore;
        let whole = Shard::forward(&model, hw::Dtype::Bf16, 4);
        let shard = Shard { framework, sequence_parallel, expert_tp, ep, ..whole };
        let stage = Stage { n_expert: 3, ..Stage::NONE };
        let ops = tensor_exchange(&shard, &stage, TOKENS, kind, GroupShape::inside(4));
        [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce].map(|wanted| {
            let of = |(op, n): &(Op, u32)| match op {
                Op::Collective { kind, bytes, .. } if *kind == wanted => bytes * u64::from(*n),
                _ => 0,
            };
            ops.iter().map(of).sum()
        })
    }

    /// Mixtral: tokens of 4,096 numbers of two bytes. Attention gathers and scatters them once in each of three layers, and whole experts not at all.
    #[test]
    fn whole_experts_have_no_exchange_and_cut_ones_one_of_every_copy() {
        let once = 3 * TOKENS * 4096 * 2;
        let of = |cut, kind| exchanged("mixtral-8x7b", cut, kind);
        for cut in [WHOLE, Cut { ep: 8, ..WHOLE }] {
            assert_eq!(of(cut, PassKind::Forward), [once, once, 0]);
            // Inputs are gathered again, and gradients of what comes out.
            assert_eq!(of(cut, PassKind::Backward), [2 * once, once, 0]);
        }
        // Each token has a copy for each of two experts. They are kept for backward, which gathers gradients alone.
        for cut in [CUT, Cut { ep: 8, ..CUT }] {
            assert_eq!(of(cut, PassKind::Forward), [3 * once, 3 * once, 0]);
            assert_eq!(of(cut, PassKind::Backward), [4 * once, 3 * once, 0]);
        }
        // All tokens are on every rank, which computes all of them, or a part that is put together again.
        let alone = Cut { sequence: false, ..WHOLE };
        assert_eq!(of(alone, PassKind::Forward), [0, 0, once]);
        assert_eq!(of(Cut { ep: 8, ..alone }, PassKind::Forward), [0, 0, 2 * once]);
    }

    /// DeepSeek-V3 has an expert that every token visits, which is cut.
    #[test]
    fn shared_experts_are_cut_beside_whole_ones() {
        let once = 3 * TOKENS * 7168 * 2;
        let found = exchanged("deepseek-v3", Cut { ep: 8, ..WHOLE }, PassKind::Forward);
        assert_eq!(found, [2 * once, 2 * once, 0]);
    }

    /// Layers of Nemotron-H are a mixer or a feed-forward each.
    #[test]
    fn a_layer_of_one_block_has_one_exchange() {
        let model = crate::model::embedded("nemotron-h-56b").expect("embedded");
        let shard = Shard { sequence_parallel: true, ..Shard::forward(&model, hw::Dtype::Bf16, 4) };
        let stage = Stage { n_dense: 10, ..Stage::NONE };
        let ops = tensor_exchange(&shard, &stage, TOKENS, PassKind::Forward, GroupShape::inside(4));
        let n: Vec<u32> = ops.iter().map(|(_, n)| *n).collect();
        assert_eq!(n, [10, 10]);
    }
}
