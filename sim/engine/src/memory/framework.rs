//! What modules of a training framework keep from forward to backward, tensor by tensor. Units: bytes, bytes per token.
//!
//! Megatron-Core on Transformer Engine (NVIDIA/Megatron-LM `megatron/core`, NVIDIA/TransformerEngine `transformer_engine/pytorch`):
//!
//! - a norm keeps its input, and the product behind it keeps the norm's output (`LayerNormLinear`, `RMSNorm`);
//! - attention keeps query, key, value, its output and one 32-bit number per query and head (`FusedAttention`, FlashAttention);
//! - the activation function keeps what it reads, the product behind it what it writes (`bias_swiglu`, `Linear`);
//! - a product in 8 or 4 bits keeps its input as it multiplies it. That behind attention keeps 16 bits, which attention keeps anyway
//!   (`set_save_original_input` in `attention.py`, from Transformer Engine 2.6 on);
//! - the loss holds what its kernels make of the logits (`loss.rs`), then the head holds 16-bit ones, a gradient of its weight as a tensor of its own
//!   (`LinearWithGradAccumulationAndAsyncCommunication`) and the gradient of its input;
//! - with gradients added inside products, each different weight shape has a 16-bit tensor that stands for its gradient
//!   (`get_dummy_wgrad`), kept for the whole run;
//! - two libraries have workspaces for products of 32 MiB each on Hopper and later, 4 and 8 MiB before (`get_cublas_workspace_size_bytes`;
//!   `CUBLAS_WORKSPACE_CONFIG` of PyTorch). Transformer Engine has one of them, PyTorch one for the thread of forward and one for that of backward;
//! - an activation function of single kernels keeps what each of them reads: a gated one its first half's result as well, and with a router's weight the product
//!   before the weight (`bias_act_func`). Single kernels of a permutation keep indices and marks in the place of a map of rows, which neither are counted.
//!
//! PyTorch's own modules keep other tensors (`torch.rs`). Layers that keep a state have kernels of their own (`mixers.rs`).

use hw::{Bytes, Format, Gpu};

use super::sizes::{HALF, SOFTMAX_BYTES, attention_weights, cut, feed_forward_weights, serial};
use super::{LayerActivation, adapters, mixers, torch};
use crate::launch::Captured;
use crate::loss::{self, Loss};
use crate::model::{CompressedAttention, Experts, FeedForward, LatentAttention, Layer, Mixer, QueryKeyNorm, Streams};
use crate::recompute::{Module, Modules, Recompute};
use crate::shard::{AttentionKernel, Framework, Shard};
use crate::stage::Stage;
use crate::unfused::Fusion;

/// Workspaces of the libraries of products, Transformer Engine's and PyTorch's: before Hopper, and from Hopper on. Bytes.
const WORKSPACES: [[u64; 2]; 2] = [[4 << 20, 8 << 20], [32 << 20, 32 << 20]];
/// Streams of grouped products, each with a workspace of its own (`get_multi_stream_cublas_workspace`).
pub(super) const GROUPED_STREAMS: u64 = 4;
/// Handles of PyTorch's library: autograd runs backward in a thread of its own (`CublasHandlePool.cpp`).
const HANDLES: u64 = 2;
/// What experts keep of an activation function's results, that are weighted by the router: a plain function's are kept before and after the
/// weights, a gated one is computed again with them (`TEGroupedMLP`, `weighted_bias_swiglu_impl`).
const WEIGHTED: [u64; 2] = [2, 1];
/// The same of single kernels: a gated function's result, its product with the other half, and that with the router's weight.
const WEIGHTED_SINGLY: [u64; 2] = [2, 3];
/// Bytes of the router's weight of an expert, and as many of its gradient.
const ROUTER_WEIGHT: u64 = 4;
/// Copies of the routed tokens that backward of a layer of experts holds at once: as they come back, sorted by expert, and as
/// the last product's gradient.
const ROUTED_COPIES: u64 = 3;

/// Parts of a layer's kept tensors, bytes per token on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kept {
    /// Inputs of both norms.
    residuals: u64,
    /// Outputs of both norms.
    norms: u64,
    /// Query, key and value as attention reads them, its output and its softmax.
    attention: u64,
    /// What latent attention is projected from.
    compressed: u64,
    /// Inputs of the feed-forward's products behind routing, where tokens are copied for it.
    routed: u64,
    /// What the first product of the feed-forward writes.
    projected: u64,
    /// What the activation function writes.
    activated: u64,
}

impl Kept {
    /// With so many layers more.
    const fn plus(self, of: Self, n: u64) -> Self {
        Self {
            residuals: self.residuals + n * of.residuals,
            norms: self.norms + n * of.norms,
            attention: self.attention + n * of.attention,
            compressed: self.compressed + n * of.compressed,
            routed: self.routed + n * of.routed,
            projected: self.projected + n * of.projected,
            activated: self.activated + n * of.activated,
        }
    }

    /// The mean of so many layers.
    const fn over(self, n: u64) -> Self {
        Self {
            residuals: self.residuals.div_ceil(n),
            norms: self.norms.div_ceil(n),
            attention: self.attention.div_ceil(n),
            compressed: self.compressed.div_ceil(n),
            routed: self.routed.div_ceil(n),
            projected: self.projected.div_ceil(n),
            activated: self.activated.div_ceil(n),
        }
    }

    const fn all(self) -> u64 {
        self.residuals + self.norms + self.attention + self.compressed + self.routed + self.projected + self.activated
    }
}

/// Of one layer, and what its backward holds besides while it runs.
pub(super) fn layer(shard: &Shard<'_>, recompute: Recompute, with_experts: bool) -> LayerActivation {
    let kept = kept(shard, with_experts);
    let (input, all) = (serial(shard, HALF * shard.model.hidden), kept.all());
    let dropped = match recompute {
        Recompute::Off => 0,
        Recompute::Selective if shard.attention == AttentionKernel::Unfused => 0,
        Recompute::Selective if shard.framework.torch().is_some() => torch::dropped(shard, all),
        Recompute::Selective => kept.norms + kept.activated,
        Recompute::Modules(modules) => dropped(shard, &kept, modules, with_experts),
        // Of layers that a model does not have nothing is kept.
        Recompute::Full => all.saturating_sub(input),
    };
    LayerActivation { kept: all - dropped, working: dropped + backward(shard, with_experts) }
}

/// Bytes per token that modules which are computed again do not keep.
fn dropped(shard: &Shard<'_>, kept: &Kept, modules: Modules, with_experts: bool) -> u64 {
    let model = shard.model;
    let shared = model.experts.map_or_else(Kept::default, |experts| dense(shard, experts.shared_intermediate));
    let of = |module| match module {
        // What attention gives is the input of the projection behind it.
        Module::CoreAttention => cut(shard, SOFTMAX_BYTES * model.n_heads),
        Module::Norms => kept.norms,
        Module::UpProjections if model.compressed.is_some() => cut(shard, HALF * (model.n_heads + 1) * model.head_dim),
        Module::UpProjections => model.latent.map_or(0, |latent| expanded(shard, latent)),
        Module::FeedForward => kept.projected + kept.activated,
        Module::Experts => kept.routed + kept.projected + kept.activated,
        Module::ExpertActivation => kept.activated - shared.activated,
        Module::SharedExperts => shared.projected + shared.activated,
    };
    modules.apart(with_experts).map(of).sum()
}

/// Whole queries, keys and values of latent attention.
fn expanded(shard: &Shard<'_>, latent: LatentAttention) -> u64 {
    let key = latent.nope_dim + latent.rope_dim;
    cut(shard, HALF * shard.model.n_heads * (2 * key + latent.value_dim))
}

fn kept(shard: &Shard<'_>, with_experts: bool) -> Kept {
    let model = shard.model;
    if model.linear.is_some() || model.state_space.is_some() {
        return of_hybrid(shard, with_experts);
    }
    let norms = serial(shard, 2 * HALF * model.hidden);
    let read = read_by_products(shard, with_experts);
    let (attention, compressed) = match (model.latent, model.compressed) {
        (Some(latent), _) => latent_attention(shard, latent),
        (None, Some(compressed)) => compressed_attention(shard, compressed),
        (None, None) => (attention(shard) + normed(shard), 0),
    };
    // Each half of a layer keeps all streams in place of one.
    let streams = model.streams.map_or(1, Streams::n);
    let feed_forward = match model.experts {
        Some(experts) if with_experts => of_experts(shard, experts),
        _ => dense(shard, model.intermediate),
    };
    // Plain PyTorch keeps the gathered input of products that the tensor group cuts; Transformer Engine gathers it again.
    let gathered = if shard.framework.torch().is_some() { 2 * HALF * model.hidden } else { read.iter().sum() };
    let residuals = streams * norms + super::dropout_masks(shard);
    let kept = Kept { residuals, norms: gathered, attention, compressed, ..feed_forward };
    match adapters::inputs(shard).filter(|_| !with_experts) {
        None => kept,
        Some(inputs) => {
            Kept { norms: inputs.norms, attention: attention + inputs.attention, activated: inputs.activated, ..kept }
        }
    }
}

/// What products in front of attention and of the feed-forward keep of the norms' outputs. A router reads 16 bits, and the shared expert keeps what it
/// reads (`set_save_original_input` in Megatron-Core's `moe_layer.py`).
fn read_by_products(shard: &Shard<'_>, with_experts: bool) -> [u64; 2] {
    let of_norm = serial(shard, HALF * shard.model.hidden);
    let feed_forward = if with_experts { of_norm } else { as_operand(shard, shard.formats.dense, of_norm) };
    [as_operand(shard, shard.formats.attention, of_norm), feed_forward]
}

/// Bytes of a product's input that is kept for its weight's gradient, where it has so many in 16 bits. Transformer Engine keeps the narrow operand
/// (`saved_inputmat` in `linear.py`, `ln_out` in `layernorm_linear.py`, `inputmats` in `grouped_linear.py`), PyTorch's modules the wide one.
fn as_operand(shard: &Shard<'_>, format: Format, bytes: u64) -> u64 {
    if shard.framework != Framework::MegatronCore || format.is_whole() {
        return bytes;
    }
    hw::whole(format.weight_bytes(hw::real(bytes / HALF)))
}

/// The mean layer of a model whose layers mix tokens in several ways. Each part of a layer has a norm and a residual of its own.
fn of_hybrid(shard: &Shard<'_>, with_experts: bool) -> Kept {
    let (mut sum, mut n_layers) = (Kept::default(), 0);
    for (layer, n) in shard.model.kinds(0, shard.model.n_layers) {
        if layer.has_experts() == with_experts {
            sum = sum.plus(of_parts(shard, layer), n);
            n_layers += n;
        }
    }
    sum.over(n_layers.max(1))
}

/// A layer by its parts.
fn of_parts(shard: &Shard<'_>, layer: Layer) -> Kept {
    let model = shard.model;
    let has = |part: bool| u64::from(part);
    let n_parts = has(layer.mixer != Mixer::Off) + has(layer.feed_forward != FeedForward::Off);
    let residuals = n_parts * serial(shard, HALF * model.hidden);
    let [mixer, feed_forward] = read_by_products(shard, layer.has_experts());
    let norms = has(layer.mixer != Mixer::Off) * mixer + has(layer.feed_forward != FeedForward::Off) * feed_forward;
    let attention = match (layer.mixer, model.linear, model.state_space) {
        (Mixer::Off, _, _) => 0,
        (Mixer::Linear, Some(linear), _) => mixers::delta_rule(shard, linear),
        (Mixer::StateSpace, _, Some(space)) => mixers::state_space(shard, space),
        _ => attention(shard) + normed(shard),
    };
    let feed_forward = match (layer.feed_forward, model.experts) {
        (FeedForward::Off, _) => Kept::default(),
        (FeedForward::Experts, Some(experts)) => of_experts(shard, experts),
        _ => dense(shard, model.intermediate),
    };
    Kept { residuals: residuals + super::dropout_masks(shard), norms, attention, ..feed_forward }
}

/// Grouped-query attention. PyTorch's modules may copy keys and values for every query head before it, and keep what norms of queries
/// and keys read. With heads exchanged for tokens (Ulysses) the output is kept on both sides of the exchange.
fn attention(shard: &Shard<'_>) -> u64 {
    let model = shard.model;
    let is_torch = shard.framework.torch().is_some();
    let n_copied = if shard.framework.repeats_keys() { model.n_heads } else { model.n_kv_heads };
    let n_normed = if is_torch && model.qk_norm == QueryKeyNorm::Head { model.n_heads + model.n_kv_heads } else { 0 };
    let width = (2 * model.n_heads + 2 * n_copied + n_normed) * model.head_dim;
    cut(shard, HALF * width + SOFTMAX_BYTES * model.n_heads)
}

/// What Megatron-Core's norms of queries and keys read, beside what they give to attention.
fn normed(shard: &Shard<'_>) -> u64 {
    let model = shard.model;
    let is_normed = shard.framework.torch().is_none() && model.qk_norm == QueryKeyNorm::Head;
    if is_normed { cut(shard, HALF * (model.n_heads + model.n_kv_heads) * model.head_dim) } else { 0 }
}

/// Latent attention: whole queries, keys and values, and the compressed ones around their norms.
fn latent_attention(shard: &Shard<'_>, latent: LatentAttention) -> (u64, u64) {
    let n_heads = shard.model.n_heads;
    let (key, value) = (n_heads * (latent.nope_dim + latent.rope_dim), n_heads * latent.value_dim);
    // In front of its norm, and behind it as the next product reads it.
    let compressed = HALF * (latent.q_rank.unwrap_or(0) + latent.kv_rank);
    let compressed = compressed + as_operand(shard, shard.formats.attention, compressed);
    (cut(shard, HALF * (2 * key + 2 * value) + SOFTMAX_BYTES * n_heads), serial(shard, compressed))
}

/// Compressed attention: queries, outputs and these once more without their rotation, a key, and what groups of heads are projected to; and the compressed
/// query around its norm.
fn compressed_attention(shard: &Shard<'_>, compressed: CompressedAttention) -> (u64, u64) {
    let model = shard.model;
    let width = (3 * model.n_heads + 1) * model.head_dim + compressed.n_groups * compressed.group_rank;
    (cut(shard, HALF * width + SOFTMAX_BYTES * model.n_heads), serial(shard, 2 * HALF * compressed.q_rank))
}

/// A dense feed-forward: what the first product writes, and what the second reads.
fn dense(shard: &Shard<'_>, intermediate: u64) -> Kept {
    let are_single = shard.framework.runs_single_kernels();
    let factors: u64 = match (shard.model.gated, are_single) {
        (false, _) => 1,
        // Single kernels keep what the activation function writes; a compiled layer makes it again.
        (true, true) => 3,
        (true, false) => 2,
    };
    let wide = cut(shard, HALF * intermediate);
    // The result of the function and its product with the other half.
    let between = if shard.model.gated && shard.is_unfused(Fusion::Activation) { wide } else { 0 };
    let activated = between + as_operand(shard, shard.formats.dense, wide);
    Kept { projected: factors * wide, activated, ..Kept::default() }
}

/// Routed experts: each token's copies as the first product reads them, and the same as of a dense feed-forward for every copy.
fn of_experts(shard: &Shard<'_>, experts: Experts) -> Kept {
    let shared = dense(shard, experts.shared_intermediate);
    let copies = |bytes: u64| shard.routed(experts.top_k * bytes).div_ceil(u64::from(shard.tp));
    let projections = if shard.model.gated { 2 } else { 1 };
    let weighted = if shard.is_unfused(Fusion::Activation) { WEIGHTED_SINGLY } else { WEIGHTED };
    // Ranks that cut an expert read the same rows.
    let row = HALF * experts.latent.unwrap_or(shard.model.hidden) * u64::from(shard.expert_tp);
    let operand = |bytes: u64| as_operand(shard, shard.formats.experts, copies(bytes));
    let wide = HALF * experts.intermediate;
    let between = copies((weighted[usize::from(shard.model.gated)] - 1) * wide);
    Kept {
        routed: operand(row),
        projected: shared.projected + copies(projections * wide),
        activated: shared.activated + between + operand(wide),
        ..Kept::default()
    }
}

/// Bytes per token that backward of one layer holds besides: the gradient of the residual, and the gradient of what the first product of the
/// feed-forward wrote, whose values are still there.
fn backward(shard: &Shard<'_>, with_experts: bool) -> u64 {
    let model = shard.model;
    let residual = serial(shard, HALF * model.hidden);
    let projections = if model.gated { 2 } else { 1 };
    let scanned = model.state_space.map_or(0, |space| mixers::scanned(shard, space));
    let whole = if shard.framework.torch().is_some() { torch::whole_gradients(shard, projections) } else { 0 };
    let factors = cut(shard, projections * HALF * model.intermediate).max(adapters::backward(shard));
    let dense = residual + whole + factors.max(scanned);
    match model.experts {
        Some(experts) if with_experts => {
            let wide = (projections + 1) * experts.intermediate;
            let row = HALF * (ROUTED_COPIES * experts.latent.unwrap_or(model.hidden) + wide);
            residual + cut(shard, shard.routed(experts.top_k * row))
        }
        _ => dense,
    }
}

/// Logits, loss and head of so many tokens at their highest, bytes: while the loss is computed, or while the head's gradients are.
pub(super) fn head(shard: &Shard<'_>, tokens: u64) -> u64 {
    let model = shard.model;
    let (vocab, hidden) = (model.vocab.div_ceil(u64::from(shard.tp)), HALF * model.hidden);
    if shard.framework.torch().is_some() {
        return torch::head(shard, tokens);
    }
    let (logits, norm) = (tokens * vocab, tokens * serial(shard, 2 * hidden));
    let weight_gradient = HALF * vocab * model.hidden;
    if shard.loss == Loss::WithHead {
        return norm + tokens * in_pieces(shard, vocab) + weight_gradient;
    }
    let loss = logits * shard.loss.held_per_logit();
    // Losses of further tokens come first, and what they keep waits for backward (`process_mtp_loss`).
    let predicted = model.n_predicting * logits * shard.loss.kept_per_logit();
    let input_gradient = tokens * (hidden + if shard.tp > 1 { serial(shard, hidden) } else { 0 });
    norm + predicted + loss.max(HALF * logits + weight_gradient + input_gradient)
}

/// Bytes per token of a head whose logits are made piece by piece: the gathered input, statistics of all pieces, and in backward the logits of a
/// piece with two gradients of the input in 32 bits, its own and that of all pieces.
fn in_pieces(shard: &Shard<'_>, vocab: u64) -> u64 {
    let hidden = HALF * shard.model.hidden;
    let gathered = if shard.tp > 1 && shard.sequence_parallel { hidden } else { 0 };
    let statistics = loss::STATISTICS[usize::from(shard.tp > 1)] * vocab.div_ceil(loss::PIECE);
    gathered + statistics.max(HALF * loss::PIECE.min(vocab) + 2 * 2 * hidden)
}

/// Bytes per token that graphs of modules hold in their own pool, from which nothing else is taken. The gradient of what a graph gives is one static
/// tensor for all layers (`_reuse_graph_input_output_buffers` of Transformer Engine, from 2.7 on). What backward of a captured module holds for a while stays
/// in the pool: for attention the gradients of its output, query, key and value. What is kept from forward to backward is as much as without graphs.
pub(super) fn graphs(shard: &Shard<'_>, captured: Captured) -> u64 {
    let model = shard.model;
    let stream = serial(shard, HALF * model.hidden);
    let attention = if captured.attention { stream + attention(shard) } else { 0 };
    // The router gives tokens as they came, a weight in 32 bits and a mark for every expert.
    let n_experts = model.experts.map_or(0, |experts| experts.n_routed);
    let router = if captured.router { stream + n_experts * (2 * ROUTER_WEIGHT + 1) } else { 0 };
    attention + router
}

/// Workspaces of the libraries of products on such a card: Transformer Engine's, and one of PyTorch's.
pub(super) fn workspaces(gpu: &Gpu) -> [u64; 2] {
    WORKSPACES[usize::from(gpu.peak_fp8.is_some())]
}

/// Tensors of 16 bits that stand for gradients which are added inside products: one for every shape of weight. Gradients with a kernel of their own need none.
pub(super) fn stand_ins(shard: &Shard<'_>, stages: &[Stage]) -> u64 {
    if shard.is_unfused(Fusion::GradientAccumulation) {
        return 0;
    }
    let has = |of: fn(&Stage) -> bool| stages.iter().any(of);
    let mut elements = attention_weights(shard);
    if has(|stage| stage.n_dense > 0) {
        elements += feed_forward_weights(shard, shard.model.intermediate, u64::from(shard.tp));
    }
    if let Some(experts) = shard.model.experts.filter(|_| has(|stage| stage.n_expert > 0)) {
        elements += feed_forward_weights(shard, experts.intermediate, u64::from(shard.expert_tp));
        elements += feed_forward_weights(shard, experts.shared_intermediate, u64::from(shard.tp));
    }
    HALF * elements
}

/// What a rank holds for the whole run beside model states: workspaces of products, and one gradient in 16 bits per shape of weight.
pub(super) fn resident(shard: &Shard<'_>, stages: &[Stage], gpu: &Gpu) -> Bytes {
    let [library, plain] = workspaces(gpu);
    // Forward and backward run in threads, each with a handle of PyTorch's library.
    let plain = HANDLES * plain;
    if shard.framework.torch().is_some() {
        return Bytes(plain);
    }
    let has = |of: fn(&Stage) -> bool| stages.iter().any(of);
    let library = if has(|stage| stage.n_expert > 0) { library * (1 + GROUPED_STREAMS) } else { library };
    // The head is the one product that PyTorch runs itself.
    let plain = if has(|stage| stage.last) { plain } else { 0 };
    Bytes(stand_ins(shard, stages) + library + plain)
}

/// Bytes per token that an exchange of heads for tokens keeps twice: the output of attention.
pub(super) fn exchanged_heads(shard: &Shard<'_>) -> u64 {
    let model = shard.model;
    let width = model.latent.map_or(model.head_dim, |latent| latent.value_dim);
    cut(shard, HALF * model.n_heads * width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Formats;
    use crate::unfused::Unfused;

    /// Llama 3 70B cut over eight GPUs with sequence parallelism.
    fn shard(model: &crate::Model) -> Shard<'_> {
        let forward = Shard::forward(model, hw::Dtype::Bf16, 8);
        Shard { sequence_parallel: true, framework: Framework::MegatronCore, ..forward }
    }

    #[test]
    fn a_dense_layer_keeps_what_its_modules_save() {
        let model = crate::model::embedded("llama-3-70b").expect("embedded");
        let found = layer(&shard(&model), Recompute::Off, false);
        // Per token on one of eight GPUs: four tensors of 8192 around the norms, 64 + 8 + 8 + 64 heads of 128 and 64 numbers of softmax, two
        // factors of 28672 and their product.
        let (norms, attention) = (4 * 2 * 8192 / 8, (144 * 128 * 2 + 64 * 4) / 8);
        assert_eq!(found.kept, norms + attention + 3 * 2 * 28_672 / 8);
        // Backward adds the residual's gradient and that of both factors.
        assert_eq!(found.working, 2 * 8192 / 8 + 2 * 2 * 28_672 / 8);
        let full = layer(&shard(&model), Recompute::Full, false);
        assert_eq!((full.kept, full.kept + full.working), (2 * 8192 / 8, found.kept + found.working));
    }

    #[test]
    fn layers_that_a_model_does_not_have_keep_nothing() {
        // Every layer of the first has experts, and no layer of the second.
        for (name, with_experts) in [("qwen3-next-80b-a3b", false), ("nemotron-h-56b", true)] {
            let model = crate::model::embedded(name).expect("embedded");
            for recompute in [Recompute::Off, Recompute::Selective, Recompute::Full] {
                assert_eq!(layer(&shard(&model), recompute, with_experts).kept, 0, "{name}");
            }
        }
    }

    #[test]
    fn products_in_8_bits_keep_what_they_multiply() {
        let model = crate::model::embedded("llama-3-70b").expect("embedded");
        let narrow = |format| Shard { formats: Formats::weights(format, hw::Dtype::Bf16), ..shard(&model) };
        let kept = |format| layer(&narrow(format), Recompute::Off, false).kept;
        // Outputs of both norms, and of the activation function; attention keeps its own output in 16 bits.
        let read = (2 * 8192 + 28_672) / 8;
        assert_eq!(kept(Format::Bf16) - kept(Format::Fp8), read);
        // Sixteen numbers of four bits share a scale of eight.
        assert_eq!(kept(Format::Bf16) - kept(Format::Nvfp4), 2 * read - read * 9 / 16);
        // A router reads 16 bits of its norm.
        let model = crate::model::embedded("qwen3-30b-a3b").expect("embedded");
        let kept = |format| {
            let forward = Shard::forward(&model, hw::Dtype::Bf16, 1);
            let formats = Formats::weights(format, hw::Dtype::Bf16);
            layer(&Shard { framework: Framework::MegatronCore, formats, ..forward }, Recompute::Off, true).kept
        };
        assert_eq!(kept(Format::Bf16) - kept(Format::Fp8), 2048 + 8 * (2048 + 768));
    }

    #[test]
    fn narrow_weights_have_copies_by_rows_and_columns() {
        let model = crate::model::embedded("llama-3-70b").expect("embedded");
        let of = |format, card: &str| {
            let shard = Shard { formats: Formats::weights(format, hw::Dtype::Bf16), ..shard(&model) };
            let stage = Stage { n_dense: 1, ..Stage::default() };
            crate::memory::narrow_copies(&shard, &stage, &hw::catalog::gpu(card).expect("listed")).0
        };
        let parameters = f64::from((64 + 8 + 8 + 64) * 128 * 8192 + 3 * 8192 * 28_672) / 8.0;
        for (format, card, bytes) in [
            (Format::Bf16, "h100-sxm", 0.0),
            (Format::Fp8, "h100-sxm", 2.0),
            (Format::Fp8, "b200", 1.0),
            (Format::Mxfp8, "b200", 2.0 * 33.0 / 32.0),
            (Format::Nvfp4, "b200", 2.0 * 4.5 / 8.0),
        ] {
            let found = of(format, card) / parameters;
            assert!((found - bytes).abs() <= 1e-3 * bytes, "{format:?} {card} {found}");
        }
    }

    #[test]
    fn an_activation_function_of_single_kernels_keeps_what_each_of_them_reads() {
        let kept = |name: &str, with_experts: bool, unfused| {
            let model = crate::model::embedded(name).expect("embedded");
            let forward = Shard::forward(&model, hw::Dtype::Bf16, 1);
            let shard = Shard { framework: Framework::MegatronCore, unfused, ..forward };
            layer(&shard, Recompute::Off, with_experts).kept
        };
        let more = |name: &str, with_experts: bool| {
            let single = kept(name, with_experts, Unfused::NONE.with(Fusion::Activation));
            single - kept(name, with_experts, Unfused::NONE)
        };
        // The first half's result; for each of eight experts besides the product before the weight.
        assert_eq!(more("llama-3-8b", false), 2 * 14_336);
        assert_eq!(more("qwen3-30b-a3b", true), 8 * 2 * 2 * 768);
        // A plain function has its input and its result in any case.
        assert_eq!(more("gpt-3-175b", false), 0);
        let all: Unfused = [Fusion::Permutation, Fusion::Positions].into_iter().collect();
        assert_eq!(kept("qwen3-30b-a3b", true, all), kept("qwen3-30b-a3b", true, Unfused::NONE));
    }

    #[test]
    fn every_further_token_keeps_what_its_loss_needs() {
        let model = crate::model::embedded("llama-3-70b").expect("embedded");
        let of = |n_predicting, loss| {
            let model = crate::Model { n_predicting, ..model.clone() };
            head(&Shard { loss, ..shard(&model) }, 100)
        };
        let logits = 100 * model.vocab.div_ceil(8);
        for (loss, kept) in [(Loss::Unfused, 4), (Loss::InPlace, 2), (Loss::WithHead, 0)] {
            assert_eq!(of(2, loss) - of(0, loss), 2 * kept * logits, "{loss:?}");
        }
    }

    #[test]
    fn graphs_of_modules_hold_static_gradients_and_what_backward_needs_for_a_while() {
        let model = crate::model::embedded("qwen3-30b-a3b").expect("embedded");
        let shard = Shard { framework: Framework::MegatronCore, ep: 8, ..Shard::forward(&model, hw::Dtype::Bf16, 1) };
        let of = |attention, router| graphs(&shard, Captured { attention, router });
        assert_eq!(of(false, false), 0);
        // Width 2048; 32 heads of 128 with their output, 4 keys and 4 values, 32 numbers of softmax; 128 experts.
        assert_eq!(of(true, false), 2 * 2048 + 2 * 128 * (32 + 4 + 4 + 32) + 4 * 32);
        assert_eq!(of(true, true) - of(true, false), 2 * 2048 + 128 * 9);
    }

    /// Bytes per token that a layer of DeepSeek-V3 on one GPU no longer keeps.
    fn saved(modules: &[Module], with_experts: bool) -> u64 {
        let model = crate::model::embedded("deepseek-v3").expect("embedded");
        let shard = Shard { framework: Framework::MegatronCore, ep: 8, ..Shard::forward(&model, hw::Dtype::Bf16, 1) };
        let kept = |recompute| layer(&shard, recompute, with_experts).kept;
        kept(Recompute::Off) - kept(Recompute::Modules(modules.iter().copied().collect()))
    }

    #[test]
    fn modules_drop_the_tensors_that_they_make_again() {
        // Outputs of both norms of 7168 numbers; 128 heads of 192, 192 and 128; eight experts of 2048; one shared expert with both factors and their
        // product; the dense layer's 18432. Two bytes a number.
        let cases: [(&[Module], u64); 5] = [
            (&[Module::Norms], 2 * 2 * 7168),
            (&[Module::UpProjections], 2 * 128 * (192 + 192 + 128)),
            (&[Module::ExpertActivation], 2 * 8 * 2048),
            (&[Module::SharedExperts], 2 * 3 * 2048),
            (&[Module::Experts], 2 * (8 * (7168 + 3 * 2048) + 3 * 2048)),
        ];
        for (modules, expected) in cases {
            assert_eq!(saved(modules, true), expected, "{modules:?}");
        }
        assert_eq!(saved(&[Module::FeedForward], false), 2 * 3 * 18_432);
        assert_eq!(saved(&[Module::FeedForward], true), 0);
        // What lies inside of experts is counted once.
        let all = [Module::Experts, Module::ExpertActivation, Module::SharedExperts];
        assert_eq!(saved(&all, true), saved(&all[..1], true));
    }

    #[test]
    fn the_peak_of_a_measured_run_is_met() {
        // MooreThreads/SimuMax @ 4dcaae513ba7, docs/b200: twelve layers of Llama 3 70B over eight B200, 4,096 tokens, 28,965 MiB allocated.
        let model = crate::Model { n_layers: 12, ..crate::model::embedded("llama-3-70b").expect("embedded") };
        let (shard, tokens) = (shard(&model), 4096);
        let stage = Stage { n_dense: 12, first: true, last: true, ..Stage::default() };
        let (shared, _) = crate::memory::stage_parameters(&shard, &stage);
        let gpu = hw::catalog::gpu("b200").expect("listed");
        let activations = 12 * layer(&shard, Recompute::Off, false).kept * tokens;
        // Parameters 2, gradients 4, master and moments 12; the gathered sequence of the tensor group.
        let held = Bytes::from_f64(18.0 * shared) + resident(&shard, &[stage], &gpu);
        let peak = held + Bytes(activations + head(&shard, tokens) + tokens * 2 * 8192);
        assert!((peak.as_f64() / 1_048_576.0 / 28_965.4 - 1.0).abs() < 0.005, "{peak:?}");
    }

    #[test]
    fn gradients_with_a_kernel_of_their_own_have_no_tensors_that_stand_for_them() {
        let llama = crate::model::embedded("llama-3-8b").expect("embedded");
        let of = |unfused| {
            let base = Shard::forward(&llama, hw::Dtype::Bf16, 1);
            let layer = Stage { n_dense: 1, ..Stage::default() };
            stand_ins(&Shard { framework: Framework::MegatronCore, unfused, ..base }, &[layer])
        };
        // Queries with keys and values, output, and both products of the feed-forward.
        assert_eq!(of(Unfused::NONE), 2 * 4096 * (6144 + 4096 + 28_672 + 14_336));
        assert_eq!(of(Unfused::NONE.with(Fusion::GradientAccumulation)), 0);
    }
}
