//! Memory of layers on one GPU: parameters, and what a token keeps from forward to backward.
//!
//! Terms per token are linear; only the scores of an unfused attention are per query-key pair. Source: arXiv:2205.05198, section 4.
//! Units: bytes, bytes per token.

mod adapters;
mod framework;
mod mixers;
mod outside;
mod sizes;
mod torch;

pub use adapters::{adapter_parameters, frozen_bytes, gathered_weights, widened_matrix};
use hw::{Bytes, Format, Gpu};
pub use outside::around_layers;

use crate::launch::Captured;
use crate::model::{Index, Layer, Mixer, Model};
use crate::recompute::{Module, Recompute};
use crate::shard::{AttentionKernel, Framework, Shard};
use crate::stage::Stage;
use crate::state::State;

/// Bytes per token and vocabulary row: logits in the model's format (2) and their 32-bit copy for the loss (4).
const LOGIT_BYTES_PER_TOKEN_AND_ROW: u64 = 6;
/// Bytes per score of an unfused attention: softmax output; with dropout also its mask and its output.
const SCORE_BYTES: [u64; 2] = [2, 5];

/// Bytes that a key of an index takes: 8-bit elements and a scale of 32 bits, as vLLM and SGLang keep it.
pub const fn index_key_bytes(index: Index) -> u64 {
    index.head_dim + 4
}

/// Bytes of keys and values that one token keeps on each GPU of a replica, in the layers that keep them for good.
pub fn kv_bytes_per_token(model: &Model, tensor_degree: u32, bytes_per_element: u64) -> u64 {
    let of_layer = |mixer| kv_bytes_per_layer(model, mixer, tensor_degree, bytes_per_element);
    let kinds = model.kinds(0, model.n_layers).into_iter().filter(|(kind, _)| model.keeps_all(kind.mixer));
    kinds.map(|(kind, n)| n * of_layer(kind.mixer)).sum()
}

/// The same of a layer that keeps them for good, with the key of its index.
pub fn kv_bytes_per_layer(model: &Model, mixer: Mixer, tensor_degree: u32, bytes_per_element: u64) -> u64 {
    let index = model.index.filter(|_| mixer.has_index());
    let index = index.map_or(0, |index| index_key_bytes(index).div_ceil(index.pool));
    let kept = model.kept_elements(mixer, tensor_degree) * bytes_per_element;
    kept.div_ceil(mixer.kept_together()) + index
}

/// Bytes that a sequence of so many tokens keeps on each GPU besides those of all its tokens: windows of the layers that have one, and states.
/// An engine without a cache by kind of layer keeps more of a sequence that is longer than a window.
pub fn kept_bytes_per_sequence(shard: &Shard<'_>, tokens: u64) -> u64 {
    let of_layer = |mixer: Mixer| {
        let [most, bytes] = window_of(shard, mixer);
        most.min(tokens) * bytes + state_bytes(shard, mixer)
    };
    shard.model.kinds(0, shard.model.n_layers).into_iter().map(|(kind, n)| n * of_layer(kind.mixer)).sum()
}

/// Tokens that a layer keeps at most one by one, beside what it keeps of all, and bytes of each.
pub fn window_of(shard: &Shard<'_>, mixer: Mixer) -> [u64; 2] {
    let model = shard.model;
    let tokens = match mixer {
        Mixer::Compressed { window, .. } => window,
        _ if model.keeps_all(mixer) => 0,
        _ => mixer.kept_tokens_max().unwrap_or(0),
    };
    [tokens, model.kept_elements(mixer, shard.tp) * shard.formats.kv.bytes() + shard.more_latent_bytes(mixer)]
}

/// Bytes of a sequence's state in a layer. What compresses keeps vectors and gates in 32 bits of the tokens whose vector is not whole yet, twice where
/// vectors overlap (deepseek-ai/DeepSeek-V4-Pro, `Compressor`).
pub fn state_bytes(shard: &Shard<'_>, mixer: Mixer) -> u64 {
    let model = shard.model;
    let Mixer::Compressed { ratio, picked, .. } = mixer else {
        return State::of(shard, mixer).map_or(0, |state| state.bytes());
    };
    let index = model.index.filter(|_| picked.is_some()).map_or(0, |index| index.head_dim);
    let overlap = if picked.is_some() { 2 } else { 1 };
    2 * overlap * ratio * (model.head_dim + index) * hw::Dtype::Fp32.bytes()
}

/// Parameters of a stage on one rank: those outside of routed experts, cut over the tensor group or whole on each of its ranks, and experts.
pub fn stage_parameters(shard: &Shard<'_>, stage: &Stage) -> (f64, f64) {
    let model = shard.model;
    let repeated =
        over_layers(shard, stage, |model, layer| model.repeated_parameters(layer, shard.tp, shard.repeats_heads()));
    let mut shared = over_layers(shard, stage, Model::shared_layer_parameters) + repeated;
    shared += hw::real(outside::parameters(shard, stage));
    let routed = model.experts.map_or(0.0, |experts| hw::real(experts.n_routed * model.expert_parameters()));
    let experts = f64::from(stage.n_expert) * routed / f64::from(shard.ep * shard.expert_tp);
    (shared / f64::from(shard.tp), experts)
}

/// Parameters of the products of a stage's layers on one rank, without routed experts: those that mix tokens, and those of feed-forwards.
fn parts_of_layers(shard: &Shard<'_>, stage: &Stage) -> [f64; 2] {
    let repeated =
        over_layers(shard, stage, |model, layer| model.repeated_by_mixer(layer, shard.tp, shard.repeats_heads()));
    let mixers = over_layers(shard, stage, Model::mixer_parameters) + repeated;
    let others = u64::from(shard.tp - 1);
    let dense = |model: &Model, layer| model.dense_parameters(layer) + others * model.latent_projections(layer);
    [mixers, over_layers(shard, stage, dense)].map(|all| all / f64::from(shard.tp))
}

/// Parameters of a part of a stage's layers, each once.
pub(crate) fn over_layers(shard: &Shard<'_>, stage: &Stage, part: impl Fn(&Model, Layer) -> u64) -> f64 {
    let n_layers = [(stage.n_dense, false), (stage.n_expert, true)];
    n_layers.iter().map(|(n, experts)| f64::from(*n) * shard.model.mean(*experts, &part)).sum()
}

/// Parameters of the norms of a stage's layers on one rank: every rank of a tensor group has them whole.
pub fn norm_parameters(shard: &Shard<'_>, stage: &Stage) -> f64 {
    over_layers(shard, stage, Model::whole_norm_parameters)
}

/// Parameters of a stage on one rank by the format of their products. Norms, embedding and router are stored as the activations are.
fn parts_of_stage(shard: &Shard<'_>, stage: &Stage) -> [(Format, f64); 6] {
    let (model, formats) = (shard.model, shard.formats);
    let tensor = f64::from(shard.tp);
    let (shared, routed) = stage_parameters(shard, stage);
    let [attention, dense] = parts_of_layers(shard, stage);
    let has_output = formats.output.is_some();
    let output = if has_output { over_layers(shard, stage, Model::output_parameters) / tensor } else { 0.0 };
    let has_head = stage.last && !(model.tied && stage.first);
    let head = if has_head { hw::real(model.vocab * model.hidden) / tensor } else { 0.0 };
    let rest = (shared - attention - dense - head).max(0.0);
    [
        (formats.attention, attention - output),
        (formats.behind(), output),
        (formats.dense, dense),
        (formats.experts, routed),
        (formats.head, head),
        (shard.dtype.into(), rest),
    ]
}

/// Bytes of a stage's weights on one rank.
pub fn stage_weight_bytes(shard: &Shard<'_>, stage: &Stage) -> f64 {
    let of_parts: f64 =
        parts_of_stage(shard, stage).into_iter().map(|(format, parameters)| format.weight_bytes(parameters)).sum();
    of_parts + bytes_apart(shard, stage)
}

/// Bytes by which matrices of a stage in formats of their own are wider than their parts, on one rank.
fn bytes_apart(shard: &Shard<'_>, stage: &Stage) -> f64 {
    let apart = shard.formats.apart;
    f64::from(stage.n_layers()) * signed(apart.shared) / f64::from(shard.tp)
        + f64::from(stage.n_expert) * signed(apart.routed) / f64::from(shard.ep * shard.expert_tp)
}

/// A count that may be below zero.
fn signed(count: i64) -> f64 {
    hw::real(count.unsigned_abs()).copysign(if count < 0 { -1.0 } else { 1.0 })
}

/// Narrow copies of a stage's weights on one rank that Transformer Engine makes once a step and keeps (`get_weight_workspace`), and the parameters
/// that have them: bytes, and their number. Products of backward read a copy along the other dimension, but for one scale per tensor on cards that
/// multiply operands as they lie (`is_non_tn_fp8_gemm_supported`).
pub fn narrow_copies(shard: &Shard<'_>, stage: &Stage, gpu: &Gpu) -> (f64, f64) {
    if shard.framework != Framework::MegatronCore {
        return (0.0, 0.0);
    }
    let narrow = parts_of_stage(shard, stage).into_iter().filter(|(format, _)| !format.is_whole());
    narrow.fold((0.0, 0.0), |(bytes, n), (format, parameters)| {
        let as_they_lie = format == Format::Fp8 && gpu.multiplies(Format::Mxfp8);
        let copies = if as_they_lie { 1.0 } else { 2.0 };
        (bytes + copies * format.weight_bytes(parameters), n + parameters)
    })
}

/// Bytes per token of one layer: kept from forward to backward, and what backward makes again and holds for one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LayerActivation {
    kept: u64,
    working: u64,
}

fn layer_activation(shard: &Shard<'_>, recompute: Recompute, with_experts: bool) -> LayerActivation {
    if shard.framework != Framework::Formulas {
        return framework::layer(shard, recompute, with_experts);
    }
    let (model, element) = (shard.model, shard.dtype.bytes());
    let hidden = model.hidden;
    let heads = model.n_heads * model.head_dim;
    let keys_and_values = 2 * model.n_kv_heads * model.head_dim;
    let wide = match model.experts {
        Some(experts) if with_experts => {
            shard.routed(experts.top_k * experts.intermediate) + experts.shared_intermediate
        }
        _ => model.intermediate,
    };
    let projections = if model.gated { 2 } else { 1 };
    let cut = |bytes: u64| bytes.div_ceil(u64::from(shard.tp));
    let serial = |bytes: u64| if shard.sequence_parallel { cut(bytes) } else { bytes };
    let masks = dropout_masks(shard);
    // Layer input, attention residual; outputs of both norms; query, key, value, attention output, feed-forward.
    let (residuals, norms) = (serial(element * 2 * hidden) + masks, serial(element * 2 * hidden));
    let attended = cut(element * (2 * heads + keys_and_values));
    let inside = cut(element * (2 * heads + keys_and_values + projections * wide));
    let activated = cut(element * wide);
    let all = residuals + norms + inside + activated;
    match (recompute, shard.attention) {
        (Recompute::Off, _) | (Recompute::Selective, AttentionKernel::Unfused) => {
            LayerActivation { kept: all, working: 0 }
        }
        (Recompute::Selective, _) => LayerActivation { kept: residuals + inside, working: norms + activated },
        (Recompute::Modules(modules), _) => {
            let dropped = |module| match (module, model.experts) {
                (Module::Norms, _) => norms,
                (Module::UpProjections, _) if model.latent.is_some() => cut(element * (heads + keys_and_values)),
                (Module::FeedForward | Module::Experts, _) => inside + activated - attended,
                (Module::ExpertActivation, Some(experts)) => {
                    cut(element * shard.routed(experts.top_k * experts.intermediate))
                }
                (Module::SharedExperts, Some(experts)) => {
                    cut(element * (projections + 1) * experts.shared_intermediate)
                }
                _ => 0,
            };
            let working = modules.apart(with_experts).map(dropped).sum();
            LayerActivation { kept: all - working, working }
        }
        (Recompute::Full, _) => LayerActivation { kept: serial(element * hidden), working: all },
    }
}

/// Masks behind attention and feed-forward of one layer, where residuals have dropout: a byte per token and element each.
fn dropout_masks(shard: &Shard<'_>) -> u64 {
    if !shard.dropout().residual {
        return 0;
    }
    let bytes = 2 * shard.model.hidden;
    if shard.sequence_parallel { bytes.div_ceil(u64::from(shard.tp)) } else { bytes }
}

/// Width of the feed-forward as a token sees it: the experts that it visits, or the dense one.
pub fn feed_forward_width(shard: &Shard<'_>, with_experts: bool) -> u64 {
    match shard.model.experts {
        Some(experts) if with_experts => experts.top_k * experts.intermediate + experts.shared_intermediate,
        _ => shard.model.intermediate,
    }
}

/// Activations that a stage keeps from forward to backward, bytes per token.
pub fn activation_bytes_per_token(shard: &Shard<'_>, stage: &Stage) -> u64 {
    let of = |n: u32, again: u32, with_experts: bool| {
        let kept = |recompute| layer_activation(shard, recompute, with_experts).kept;
        u64::from(again) * kept(shard.recompute) + u64::from(n - again) * kept(Recompute::Off)
    };
    of(stage.n_dense, stage.again_dense, false) + of(stage.n_expert, stage.again_expert, true)
}

/// Of these, the masks of dropout: gradients of inputs read them, gradients of weights do not.
pub fn mask_bytes_per_token(shard: &Shard<'_>, stage: &Stage) -> u64 {
    let n_kept = stage.n_layers() - if shard.recompute == Recompute::Full { stage.again().n_layers() } else { 0 };
    u64::from(n_kept) * dropout_masks(shard)
}

/// What backward of one layer makes, anew or again, and holds while it runs, beside what the stage keeps, bytes per token.
///
/// Layers that are computed again are the first of a stage (Megatron-LM, `--recompute-method block`), and backward comes to them last. What the others kept is
/// free by then, and a layer that is made again goes there. PyTorch's modules spread such layers over a stage (`selective_ac_option`), so the last one may be one.
pub fn working_bytes_per_token(shard: &Shard<'_>, stage: &Stage) -> u64 {
    let is_spread = matches!(shard.framework, Framework::Fsdp2(_));
    let (mut freed, mut anew, mut again) = (0, 0, 0);
    for (n, n_again, with_experts) in
        [(stage.n_dense, stage.again_dense, false), (stage.n_expert, stage.again_expert, true)]
    {
        if n > n_again {
            let whole = layer_activation(shard, Recompute::Off, with_experts);
            freed += if is_spread { 0 } else { u64::from(n - n_again) * whole.kept };
            anew = anew.max(whole.working);
        }
        if n_again > 0 {
            again = again.max(layer_activation(shard, shard.recompute, with_experts).working);
        }
    }
    anew.max(again.saturating_sub(freed))
}

/// Buffers of the exchanges around one layer, bytes per token: the gathered sequence of a tensor group, and tokens on their way
/// to experts and back.
pub fn buffer_bytes_per_token(shard: &Shard<'_>, stage: &Stage) -> u64 {
    let row = shard.model.hidden * shard.dtype.bytes();
    // PyTorch's modules keep what was gathered.
    let keeps = shard.framework.torch().is_some();
    let gathered = if shard.tp > 1 && shard.sequence_parallel && !keeps { row } else { 0 };
    let routed = match shard.model.experts {
        Some(experts) if shard.ep > 1 && stage.n_expert > 0 => {
            let (sent, received) = (experts.top_k * row, shard.routed(experts.top_k * row));
            (sent + received).div_ceil(u64::from(shard.senders()))
        }
        _ => 0,
    };
    gathered + routed
}

/// Keys and values of a part of a long sequence, or their gradients, bytes per token of a stage.
pub fn state_bytes_per_token(shard: &Shard<'_>, stage: &Stage) -> u64 {
    let model = shard.model;
    let cut = if model.latent.is_some() { 1 } else { u64::from(shard.tp).min(model.n_kv_heads) };
    u64::from(stage.n_layers()) * (model.kept_width() * shard.formats.kv.bytes()).div_ceil(cut)
}

/// Score matrices of an unfused attention that a stage keeps, bytes per query-key pair over all layers.
pub fn score_bytes_per_pair(shard: &Shard<'_>, stage: &Stage) -> u64 {
    if shard.attention != AttentionKernel::Unfused {
        return 0;
    }
    let drops = match shard.recompute {
        Recompute::Off => false,
        Recompute::Selective | Recompute::Full => true,
        Recompute::Modules(modules) => modules.has(Module::CoreAttention),
    };
    let n_kept = stage.n_layers() - if drops { stage.again().n_layers() } else { 0 };
    let heads = shard.model.n_heads.div_ceil(u64::from(shard.tp));
    SCORE_BYTES[usize::from(shard.dropout().attention)] * heads * u64::from(n_kept)
}

/// Logits and their 32-bit copy, bytes per token, on a rank with the head.
pub const fn logit_bytes_per_token(shard: &Shard<'_>) -> u64 {
    LOGIT_BYTES_PER_TOKEN_AND_ROW * shard.model.vocab.div_ceil(shard.tp as u64)
}

/// Logits, loss and head of so many tokens on a stage with the head, bytes. Where backward of a layer holds memory of its own, what is above
/// that: one follows the other.
pub fn head_bytes(shard: &Shard<'_>, stage: &Stage, tokens: u64) -> u64 {
    if shard.framework == Framework::Formulas || tokens == 0 {
        return tokens * logit_bytes_per_token(shard);
    }
    framework::head(shard, tokens).saturating_sub(tokens * working_bytes_per_token(shard, stage))
}

/// Bytes per token of a micro-batch that graphs of modules hold besides, in a pool of their own.
pub fn graph_bytes_per_token(shard: &Shard<'_>, captured: Captured) -> u64 {
    match shard.framework {
        Framework::Formulas => 0,
        Framework::MegatronCore | Framework::Fsdp2(_) | Framework::DeepSpeed(_) => framework::graphs(shard, captured),
    }
}

/// What a rank that holds these stages keeps for the whole run beside model states.
pub fn workspace_bytes(shard: &Shard<'_>, stages: &[Stage], gpu: &Gpu) -> Bytes {
    match shard.framework {
        Framework::Formulas => Bytes::ZERO,
        Framework::MegatronCore | Framework::Fsdp2(_) | Framework::DeepSpeed(_) => {
            framework::resident(shard, stages, gpu)
        }
    }
}

/// Workspaces of products of Megatron-Core on such a card: Transformer Engine's, one for each of so many streams of grouped products, and one of PyTorch's.
pub fn library_workspaces(gpu: &Gpu) -> ([u64; 2], u64) {
    (framework::workspaces(gpu), framework::GROUPED_STREAMS)
}

/// Tensors that stand for gradients which Megatron-Core adds inside products, bytes.
pub fn stand_in_gradients(shard: &Shard<'_>, stages: &[Stage]) -> u64 {
    framework::stand_ins(shard, stages)
}

/// Whole parameters that fully sharded modules of PyTorch hold while the loss is computed.
pub fn whole_parameters(shard: &Shard<'_>, stages: &[Stage]) -> u64 {
    if shard.framework.torch().is_some() { torch::gathered(shard, stages).0 } else { 0 }
}

/// What PyTorch's modules hold beside all reduced gradients when backward ends, over so many ranks of a sharding group.
pub fn reduced_last(shard: &Shard<'_>, stages: &[Stage], n_ranks: u64) -> u64 {
    if shard.framework.torch().is_some() { torch::reduced_last(shard, stages, n_ranks) } else { 0 }
}

/// What PyTorch's allocator reserves for one stream beside all tensors while the loss of so many tokens is computed, or while backward of the last layer runs on a
/// stage. What backward makes of a layer is as large as what its forward held for a while, so it takes the holes that forward left. The loss does not fit into them.
pub fn reserved_bytes(shard: &Shard<'_>, stage: &Stage, tokens: u64) -> u64 {
    let Some(modules) = shard.framework.torch() else { return 0 };
    let of_backward = tokens * working_bytes_per_token(shard, stage);
    let filled = of_backward.saturating_sub(framework::head(shard, tokens));
    torch::reserved(shard, modules, tokens).saturating_sub(filled)
}

/// Elements of weights that fully sharded modules make whole on a rank: of one layer, and of a stage's embedding and head.
pub fn gathered_elements(shard: &Shard<'_>, stages: &[Stage]) -> [u64; 2] {
    torch::elements(shard, stages)
}

/// Bytes per token and layer that an exchange of heads for tokens keeps besides.
pub fn exchanged_bytes_per_token(shard: &Shard<'_>) -> u64 {
    match shard.framework {
        Framework::Formulas => 0,
        Framework::MegatronCore | Framework::Fsdp2(_) | Framework::DeepSpeed(_) => framework::exchanged_heads(shard),
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    /// Bytes that one layer keeps of one sequence, by our terms.
    fn layer(tp: u32, sequence_parallel: bool, recompute: Recompute) -> f64 {
        let model = crate::model::embedded("gpt-3-175b").expect("embedded");
        let attention = AttentionKernel::Unfused;
        let forward = Shard::forward(&model, hw::Dtype::Bf16, tp);
        let shard = Shard { sequence_parallel, recompute, attention, ..forward };
        let stage = Stage { n_dense: 1, ..Stage::default() }.recomputing(recompute, u32::MAX);
        let per_token = activation_bytes_per_token(&shard, &stage) * 2048;
        hw::real(per_token + score_bytes_per_pair(&shard, &stage) * 2048 * 2048)
    }

    #[test]
    fn a_layer_keeps_what_the_published_formulas_say() {
        // arXiv:2205.05198, table 2, for s = 2048, b = 1, h = 12288, a = 96, t = 8.
        let (s, h, a, t) = (2048.0, 12_288.0, 96.0, 8.0);
        let sbh = s * h;
        let close = |found: f64, expected: f64| {
            assert!((found / expected - 1.0).abs() < 1e-9, "{found} against {expected}");
        };
        close(layer(1, false, Recompute::Off), sbh * (34.0 + 5.0 * a * s / h));
        close(layer(8, false, Recompute::Off), sbh * (10.0 + 24.0 / t + 5.0 * a * s / (h * t)));
        close(layer(8, true, Recompute::Off), sbh / t * (34.0 + 5.0 * a * s / h));
        close(layer(8, false, Recompute::Selective), sbh * (10.0 + 24.0 / t));
        close(layer(8, true, Recompute::Selective), sbh * 34.0 / t);
        close(layer(8, false, Recompute::Full), 2.0 * sbh);
        // Without what the activation function of the feed-forward reads and writes, 8 sbh each, cut over t.
        let inside = layer(8, false, Recompute::Off)
            - layer(8, false, Recompute::Modules(crate::recompute::Modules::NONE.with(Module::FeedForward)));
        close(inside, sbh * 16.0 / t);
    }

    /// Four layers, of which the first ones are made again, by hand: beside the backward of the last layer the others are held, each with its input alone or with
    /// all; when a layer is made again, those behind it are gone.
    #[test]
    fn a_layer_that_is_made_again_goes_where_later_ones_were() {
        let model = crate::model::embedded("llama-3-8b").expect("embedded");
        let whole = Shard { framework: Framework::MegatronCore, ..Shard::forward(&model, hw::Dtype::Bf16, 1) };
        let one = Stage { n_dense: 1, ..Stage::default() };
        let (layer, backward) = (activation_bytes_per_token(&whole, &one), working_bytes_per_token(&whole, &one));
        let input = model.hidden * 2;
        for n_again in 0..=4 {
            let shard = Shard { recompute: Recompute::Full, ..whole };
            let stage = Stage { n_dense: 4, ..Stage::default() }.recomputing(Recompute::Full, n_again);
            let held = activation_bytes_per_token(&shard, &stage) + working_bytes_per_token(&shard, &stage);
            let n = u64::from(n_again);
            let at_last = n * input + (4 - n) * layer;
            // The last layer that is made again has its input already.
            let at_again = if n > 0 { n * input + layer - input } else { 0 };
            assert_eq!(held, at_last.max(at_again) + backward, "{n_again}");
        }
    }

    #[test]
    fn unfused_scores_are_kept_with_their_dropout_where_models_have_it() {
        let kept = |name: &str, framework| {
            let model = crate::model::embedded(name).expect("embedded");
            let attention = AttentionKernel::Unfused;
            let shard = Shard { attention, framework, ..Shard::forward(&model, hw::Dtype::Bf16, 1) };
            let stage = Stage { n_dense: 1, ..Stage::default() };
            let masks = mask_bytes_per_token(&shard, &stage);
            (score_bytes_per_pair(&shard, &stage) / model.n_heads, masks / model.hidden)
        };
        assert_eq!(kept("gpt-3-175b", Framework::MegatronCore), (5, 2));
        assert_eq!(kept("llama-3-8b", Framework::MegatronCore), (2, 0));
        assert_eq!(kept("llama-3-8b", Framework::Formulas), (5, 2));
    }

    #[test]
    fn layers_that_forget_keep_as_much_as_their_window_or_state() {
        let kept = |name: &str, tp: u32| {
            let model = crate::model::embedded(name).expect(name);
            let shard = Shard::forward(&model, hw::Dtype::Bf16, tp);
            (kv_bytes_per_token(&model, tp, 2), kept_bytes_per_sequence(&shard, u64::MAX))
        };
        // gpt-oss-120b: a key and a value of 8 heads of 64 in 16 bits are 2 KiB a layer; 18 layers keep all, 18 the last 128.
        assert_eq!(kept("gpt-oss-120b", 1), (18 * 2048, 18 * 128 * 2048));
        // Gemma 3 27B: 16 heads of 128 are 8 KiB, half on each of two GPUs; 10 of 62 layers keep all, 52 the last 1024.
        assert_eq!(kept("gemma-3-27b", 2), (10 * 4096, 52 * 1024 * 4096));
        // Qwen3.5-397B: 15 layers with 2 heads of 256, 45 states.
        let state = 4 * 1024 * 1024 + 3 * 12_288 * 2;
        assert_eq!(kept("qwen3.5-397b-a17b", 1), (15 * 2 * 2 * 256 * 2, 45 * state));
        // DeepSeek-V3.2: 576 numbers in 16 bits and a key of 132 bytes, on every GPU.
        assert_eq!(kept("deepseek-v3.2", 8), (61 * (1152 + 132), 0));
        assert_eq!(kept("llama-3-8b", 1), (32 * 4096, 0));
    }

    #[test]
    fn a_rank_beyond_the_heads_has_a_whole_one() {
        // Llama 3 70B: 64 heads of queries and 8 of keys and values, 128 wide.
        let model = crate::model::embedded("llama-3-70b").expect("embedded");
        let stage = Stage { n_dense: 1, ..Stage::default() };
        let on_rank = |framework, tp: u32| {
            stage_parameters(&Shard { framework, ..Shard::forward(&model, hw::Dtype::Bf16, tp) }, &stage).0
        };
        let (hidden, keys, cut) = (8192.0, 2.0 * 128.0, hw::real(8192 * (2 * 8192 + 3 * 28_672)));
        let norms = 2.0 * hidden;
        for (tp, heads) in [(1, 8.0), (4, 2.0), (8, 1.0), (16, 1.0), (32, 1.0)] {
            let expected = cut / f64::from(tp) + hidden * keys * heads + norms;
            assert!((on_rank(Framework::Formulas, tp) - expected).abs() < 0.5, "{tp}");
        }
        // Megatron-Core cuts the weights of eight heads over sixteen ranks, and gathers what they give.
        let whole = on_rank(Framework::MegatronCore, 1);
        assert!((on_rank(Framework::MegatronCore, 16) - (whole - norms) / 16.0 - norms).abs() < 0.5);
    }

    #[test]
    fn what_compresses_is_whole_on_every_rank() {
        let model = crate::model::embedded("deepseek-v3.2").expect("embedded");
        let stage = Stage { n_dense: 1, ..Stage::default() };
        let on_rank = |tp: u32| stage_parameters(&Shard::forward(&model, hw::Dtype::Bf16, tp), &stage).0;
        // Two compressions with their norms, two norms of the layer, and an index with 64 heads of 128, its key, a weight for each head and a norm with a bias.
        let whole = 7168 * (1536 + 512 + 64) + 1536 + 512;
        let index = 1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128;
        let once = hw::real(whole + index + 2 * 7168);
        for tp in [2, 8, 16] {
            let expected = (on_rank(1) - once) / f64::from(tp) + once;
            assert!((on_rank(tp) - expected).abs() < 0.5, "{tp}");
        }
    }

    #[test]
    fn kv_bytes_are_those_of_a_printed_example() {
        // Qwen3-32B on four GPUs: 2 · 64 layers · 2 heads · 128 · 2 bytes; 5,120 tokens are 0.3125 GiB (aiconfigurator prints it).
        let model = Model { n_layers: 64, n_kv_heads: 8, head_dim: 128, ..base() };
        assert_eq!(kv_bytes_per_token(&model, 4, 2) * 5120, 335_544_320);
        // Two heads over eight GPUs: each keeps one.
        let model = Model { n_layers: 1, n_kv_heads: 2, head_dim: 128, ..base() };
        assert_eq!(kv_bytes_per_token(&model, 8, 2), 512);
    }

    #[test]
    fn caches_of_layers_that_differ_are_their_closed_forms() {
        let of = |model: &Model| {
            let shard = Shard::forward(model, hw::Dtype::Bf16, 1);
            (kv_bytes_per_token(model, 1, 2), kept_bytes_per_sequence(&shard, u64::MAX))
        };
        let named = |name: &str| of(&crate::model::embedded(name).expect(name));
        // A vector of 512 numbers for four tokens with a key of the index of 132 bytes in 21 layers, one for 128 tokens in 20. All 43 keep 128
        // tokens; what compresses keeps vectors and gates in 32 bits, twice where they overlap (as many bytes as ai-dynamo/aiconfigurator counts).
        let states = 21 * (2 * 2 * 4 * (512 + 128) * 4) + 20 * (2 * 128 * 512 * 4);
        assert_eq!(named("deepseek-v4-flash"), (21 * (256 + 33) + 20 * 8, 43 * 128 * 1024 + states));
        // Ten layers have four heads of 512, fifty a window of 1024 and sixteen heads of 256: a key and a value each.
        assert_eq!(named("gemma-4-31b"), (10 * 4 * 1024 * 2, 50 * 1024 * 16 * 512 * 2));
        // Keys of 192 and values of 128: four heads in nine layers, eight in 39 with the 128 tokens before a token and itself.
        assert_eq!(named("mimo-v2-flash"), (9 * 4 * 320 * 2, 39 * 129 * 8 * 320 * 2));
        // An index of one key for all heads in 57 of 60 layers.
        assert_eq!(named("minimax-m3"), (60 * 2 * 4 * 128 * 2 + 57 * 132, 0));
        // Two attentions in each of 28 layers.
        assert_eq!(named("longcat-flash"), (56 * 576 * 2, 0));
        // Four of 32 layers attend; the others keep 16 numbers and three tokens of each of 8192 channels.
        assert_eq!(named("jamba-v0.1"), (4 * 2 * 8 * 128 * 2, 28 * (8192 * 16 + 3 * 8192) * 2));
        // Convolutions keep two tokens; keys that another layer has are not kept twice.
        let widths = r#""hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
            "max_position_embeddings": 4096, "num_hidden_layers": 10"#;
        let read = |more: &str| of(&Model::from_config("x", &format!("{{ {widths}, {more} }}")).expect(more));
        let lfm2 = read(r#""model_type": "lfm2", "conv_L_cache": 3, "full_attn_idxs": [2, 5, 8]"#);
        assert_eq!(lfm2, (3 * 2 * 2 * 16 * 2, 7 * 64 * 2 * 2));
        let gemma =
            read(r#""model_type": "gemma3n", "head_dim": 32, "sliding_window": 512, "num_kv_shared_layers": 5"#);
        assert_eq!(gemma, (2 * 2 * 32 * 2, 4 * 512 * 2 * 2 * 32 * 2));
        // Every layer attends and has a state of four heads of 8 by 16.
        let falcon = r#""model_type": "falcon_h1", "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1,
            "mamba_d_state": 16, "mamba_d_conv": 4"#;
        assert_eq!(read(falcon), (10 * 2 * 2 * 16 * 2, 10 * (4 * 8 * 16 + 3 * (32 + 2 * 16)) * 2));
    }

    fn base() -> Model {
        crate::model::embedded("llama-3-8b").expect("listed")
    }
}
