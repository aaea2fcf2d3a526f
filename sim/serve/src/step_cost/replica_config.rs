//! How a model lies on GPUs: the degrees of a replica, as a layout of the cost model.

use engine::dispatcher::{DeepEpMode, Dispatcher};
use engine::encoder::{Encoding, Split};
use engine::formats::Formats;
use engine::latent_layout::LatentLayout;
use engine::memory::kv_bytes_per_token;
use engine::shard::Shard;
use engine::stage::{self, Stage};
use hw::{BytesPerSecond, Cluster, Dtype, GroupShape, Rank, Seconds};

use super::adapter_room::AdapterRoom;
use super::census::{self, Census};
use super::ffn_side::FfnSide;
use super::fusion::Fusion;
use super::graphs::{GraphFit, Graphs};
use super::host::{self, EngineLoop, Host, RoundLaunches};
use super::host_weights::HostWeights;
use super::prompt_exchange::PromptExchange;
use crate::layer_split::LayerSplit;
use crate::sampler::Drawing;
use crate::speculation::DraftKind;
use crate::step_cost::lanes::Lanes;
use engine::CostModel;
use engine::cost::experts::balance::Room;
use engine::cost::experts::counts::{BusiestRank, Placement};
use engine::cost::experts::{Routing, Tactic};
use engine::cost::key_reads::KeyReads;
use engine::cost::reduce::ReduceKernel;
use engine::cost::sparse_attention::{PromptAttention, SparseAttention};
use engine::cost::sparse_weights::{SparseLayers, SparseWeights};
use engine::model::{Experts, FeedForward, Layer, Mixer, Model, QueryKeyNorm};

/// Share of a host link that copies of many small blocks reach; assumption, as for other copies of the roofline.
const HOST_LINK_REACHED: f64 = 0.75;

/// What a replica runs.
#[derive(Clone, Debug)]
pub struct ReplicaConfig<'a> {
    /// Architecture.
    pub model: &'a Model,
    /// Machine; the replica takes consecutive GPUs, tensor ranks first, then attention ranks, then stages.
    pub cluster: &'a Cluster,
    /// GPUs that share every layer's attention.
    pub tensor_degree: u32,
    /// Stages, each with a part of the layers.
    pub pipeline_degree: u32,
    /// Which of them have more, where layers do not come out even.
    pub layer_split: LayerSplit,
    /// GPUs of a stage that share the experts: 1 cuts every expert over the tensor group, a multiple of `tensor_degree` gives each GPU
    /// whole experts, and attention is then data-parallel over tensor groups. Where experts have GPUs of their own it is the number of these.
    pub expert_degree: u32,
    /// GPUs that hold the experts alone, behind those that attend; `None` where every GPU does both.
    pub ffn: Option<FfnSide>,
    /// Format of activations.
    pub dtype: Dtype,
    /// Formats of weights, by part, and of keys and values.
    pub formats: Formats,
    /// Host time per iteration: scheduling. A free parameter.
    pub host_per_step: Seconds,
    /// Host time per sequence of an iteration: scheduling.
    pub host_per_sequence: Seconds,
    /// Host time per iteration for which the device waits, however far the host is ahead.
    pub host_waiting: Seconds,
    /// Host time per layer of an iteration with chunks of prompts, whose kernels are launched one by one: no graph has their sizes.
    pub host_per_layer: Seconds,
    /// The same of a layer with experts, which is launched in more kernels.
    pub host_per_expert_layer: Seconds,
    /// The least of a layer that is launched in more kernels still: latent attention, a scan through a state, experts through Triton.
    pub host_per_intricate_layer: Seconds,
    /// Whether experts run through kernels of Triton.
    pub triton_experts: bool,
    /// Host time per sequence of an iteration: tokens to text.
    pub detokenize_per_sequence: Seconds,
    /// Whether the host works behind the device.
    pub engine_loop: EngineLoop,
    /// What the host launches in a round of drafts while the device waits.
    pub round_launches: RoundLaunches,
    /// Tokens of the longest sequence that it takes, so no window holds more.
    pub context_max: u64,
    /// Model that drafts tokens on the same tensor groups, with all its layers on each, and what it is to this one.
    pub draft: Option<(&'a Model, DraftKind)>,
    /// What this one is to a model that it drafts for, where it does.
    pub drafts_as: Option<DraftKind>,
    /// Products whose weights are kept sparse; `None` keeps all dense.
    pub sparse_weights: Option<SparseLayers>,
    /// Weights of layers that lie in host memory; `None` keeps all on the device.
    pub host_weights: Option<HostWeights>,
    /// Attention of prompts.
    pub prompt_attention: PromptKernel,
    /// How tokens spread over experts.
    pub routing: Routing,
    /// How ranks of data-parallel attention exchange tokens with experts in an iteration with prompts.
    pub prompt_exchange: PromptExchange,
    /// Kernels of DeepEP that send tokens to experts, where the engine calls them.
    pub deep_ep: Option<DeepEpMode>,
    /// Whether every iteration is cut in two, so that tokens of one half travel while the other one computes.
    pub overlaps_batches: bool,
    /// Experts of a layer that are kept once more, all packed so that GPUs have as much to do; `None` keeps each once and in order.
    pub redundant_experts: Option<u32>,
    /// Batches for which the engine captured a graph, ascending. Empty: every one, as it is.
    pub graph_sizes: Vec<u32>,
    /// What a batch does whose size is not among them.
    pub graph_fit: GraphFit,
    /// Largest batch that only decodes and runs in a captured graph; kernels of a larger one are launched one by one.
    pub graph_max: u32,
    /// Most tokens of an iteration with chunks of prompts that runs in a graph too; 0 where none does.
    pub prompt_graph_tokens: u32,
    /// Rows to which the kernel of block-scaled experts fills up every expert, visited or not, where it does.
    pub expert_rows: Option<u64>,
    /// Multiples to which an engine's kernel of experts fills up the model's width and an expert's on a GPU, where it does.
    pub expert_padding: Option<[u64; 2]>,
    /// How kernels keep latent and compressed vectors of 8 bits.
    pub latent_layout: LatentLayout,
    /// Which variant of the kernel of experts runs.
    pub expert_tactic: Tactic,
    /// What the engine computes in one kernel.
    pub fusion: Fusion,
    /// Kernels of a layer beside those that `engine::layer` writes.
    pub census: Census,
    /// Whether chunks of prompts and decoding sequences of an iteration go through one launch of FlashAttention.
    pub joint_attention: bool,
    /// Its kernel of all-reduces inside a node.
    pub all_reduce: ReduceKernel,
    /// Most tokens of a captured batch that computes shared experts beside the routed ones; 0 where none does.
    pub shared_beside: u32,
    /// Tokens that a sequence has on average, so a longer window is full only so far.
    pub sequence_tokens: u64,
    /// How tokens are drawn.
    pub drawing: Drawing,
    /// Whether it keeps a shared expert as one more of the routed ones.
    pub shared_among_routed: bool,
    /// Room for adapters, where it serves some beside the model.
    pub adapters: Option<AdapterRoom>,
    /// What a tensor group shares of an encoder of images.
    pub encoder_split: Split,
}

/// Attention of prompts by an engine: the cost model's own where neither is given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PromptKernel {
    /// Share of the device's peak that dense attention was calibrated to reach.
    pub flops_ratio: Option<f64>,
    /// Sparse attention of chunks that see many keys.
    pub sparse: Option<SparseAttention>,
    /// Whether blocks of few queries read their keys again out of the L2 cache, where its bandwidth is known.
    pub reads_again: bool,
}

impl PromptKernel {
    /// Dense, at the cost model's speed.
    pub const PLAIN: Self = Self { flops_ratio: None, sparse: None, reads_again: false };
}

impl<'a> ReplicaConfig<'a> {
    /// A tensor group in 16-bit numbers, without host times.
    pub fn new(model: &'a Model, cluster: &'a Cluster, tensor_degree: u32) -> Self {
        Self {
            model,
            cluster,
            tensor_degree,
            pipeline_degree: 1,
            layer_split: LayerSplit::Middle,
            expert_degree: 1,
            ffn: None,
            dtype: Dtype::Bf16,
            formats: model.formats,
            host_per_step: Seconds::ZERO,
            host_per_sequence: Seconds::ZERO,
            host_waiting: Seconds::ZERO,
            host_per_layer: Seconds::ZERO,
            host_per_expert_layer: Seconds::ZERO,
            host_per_intricate_layer: Seconds::ZERO,
            triton_experts: false,
            detokenize_per_sequence: Seconds::ZERO,
            engine_loop: EngineLoop::Serial,
            round_launches: RoundLaunches::NONE,
            context_max: u64::MAX,
            draft: None,
            drafts_as: None,
            sparse_weights: None,
            host_weights: None,
            prompt_attention: PromptKernel::PLAIN,
            routing: Routing::Even,
            prompt_exchange: PromptExchange::Gathered,
            deep_ep: None,
            overlaps_batches: false,
            redundant_experts: None,
            graph_sizes: Vec::new(),
            graph_fit: GraphFit::Padded,
            graph_max: u32::MAX,
            prompt_graph_tokens: 0,
            expert_rows: None,
            expert_padding: None,
            latent_layout: LatentLayout::Plain,
            expert_tactic: Tactic::Tuned,
            fusion: Fusion::Nothing,
            census: census::NONE,
            joint_attention: false,
            all_reduce: ReduceKernel::Own,
            shared_beside: 0,
            sequence_tokens: u64::MAX,
            drawing: Drawing::GREEDY,
            shared_among_routed: false,
            adapters: None,
            encoder_split: Split::Weights,
        }
    }

    /// A cost model with the kernels that the replica has of its own laid over it.
    pub fn kernels<'c>(&self, cost: &'c dyn CostModel) -> Box<dyn CostModel + 'c> {
        let gpu = &self.cluster.gpu;
        let PromptKernel { flops_ratio, sparse, reads_again } = self.prompt_attention;
        let cost: Box<dyn CostModel + 'c> = match hw::catalog::l2_bandwidth(&gpu.name).filter(|_| reads_again) {
            Some(l2) => Box::new(KeyReads::new(cost, l2)),
            None => Box::new(cost),
        };
        if self.sparse_weights.is_none() && flops_ratio.is_none() && sparse.is_none() {
            return cost;
        }
        let attention = PromptAttention::new(cost, gpu, flops_ratio, sparse);
        match self.sparse_weights {
            None => Box::new(attention),
            Some(layers) => Box::new(SparseWeights::new(attention, gpu, layers, self.model, self.tensor_degree)),
        }
    }

    /// What all ports of so many replicas carry of keys and values, where a port carries `each`.
    pub fn ports(&self, n_replicas: u32, each: f64) -> f64 {
        f64::from(self.n_attending()) * f64::from(n_replicas) * each
    }

    /// What a GPU copies from and to the host. GPUs of a replica copy at the same time, and those behind one switch share its link.
    pub fn host_link(&self) -> BytesPerSecond {
        let n_sharing = self.cluster.gpus_per_switch.min(self.n_gpus()).max(1);
        self.cluster.gpu.host_bandwidth * (HOST_LINK_REACHED / f64::from(n_sharing))
    }

    /// Bytes of keys and values of a token on each GPU of such a tensor group, in layers that keep them for good. With one GPU each byte counts once.
    pub fn kv_bytes_per_token(&self, tensor_degree: u32) -> u64 {
        let is_narrow = self.formats.kv == Dtype::Fp8;
        let more = if is_narrow { self.latent_layout.more_bytes_per_token(self.model) } else { 0 };
        more + kv_bytes_per_token(self.model, tensor_degree, self.formats.kv.bytes())
    }

    /// Host times of an iteration.
    pub fn host(&self) -> Host {
        let (per_step, per_sequence) = (self.host_per_step, self.host_per_sequence);
        let host = Host::new(self.engine_loop, per_step, per_sequence, self.detokenize_per_sequence);
        host.launching(self.launches()).waited_for(self.host_waiting)
    }

    /// Host time of the launches of all layers in an iteration with chunks of prompts, and in one that only decodes.
    fn launches(&self) -> [Seconds; 2] {
        let kinds = self.model.kinds(0, self.model.n_layers);
        let n_of = |is_intricate: bool| -> f64 {
            let is_asked = |layer: Layer| (layer.has_experts() || self.is_intricate(layer)) == is_intricate;
            kinds.iter().filter(|(layer, _)| is_asked(*layer)).map(|(layer, n)| whole(*layer) * hw::real(*n)).sum()
        };
        let [n_plain, n_intricate] = [false, true].map(n_of);
        let norms = if self.model.qk_norm == QueryKeyNorm::Off { 0 } else { self.census.launched_norms };
        let decode = host::decode_launches([n_plain, n_intricate], n_plain * f64::from(norms));
        let of_kind = |(layer, n): (Layer, u64)| {
            let plain =
                if layer.has_experts() { self.host_per_expert_layer } else { self.host_per_layer * whole(layer) };
            let least = if self.is_intricate(layer) { self.host_per_intricate_layer } else { Seconds::ZERO };
            plain.max(least * whole(layer)) * hw::real(n)
        };
        [kinds.into_iter().map(of_kind).fold(Seconds::ZERO, |all, each| all + each), decode]
    }

    /// Whether some layer is launched in more kernels than others.
    pub fn has_intricate_layers(&self) -> bool {
        self.model.kinds(0, self.model.n_layers).iter().any(|(layer, _)| self.is_intricate(*layer))
    }

    /// Whether a layer is launched in more kernels than others.
    fn is_intricate(&self, layer: Layer) -> bool {
        let scans = matches!(layer.mixer, Mixer::Linear | Mixer::StateSpace | Mixer::Joint);
        let is_latent = self.model.latent.is_some() || self.model.compressed.is_some();
        is_latent || scans || (layer.has_experts() && self.triton_experts)
    }

    /// The draft model by itself on one of the tensor groups.
    pub fn of_draft(&self) -> Option<Self> {
        let (dtype, context_max, graph_max) = (self.dtype, self.context_max, self.graph_max);
        let (model, kind) = self.draft?;
        let (all_reduce, drafts_as) = (self.all_reduce, Some(kind));
        let plain = Self::new(model, self.cluster, self.tensor_degree);
        let draft = Self { dtype, context_max, graph_max, all_reduce, drafts_as, ..plain };
        if kind != DraftKind::Own {
            return Some(draft);
        }
        let (expert_degree, redundant_experts) = (self.expert_degree, self.redundant_experts);
        let latent_layout = self.latent_layout;
        let whole = Formats { kv: self.formats.kv, ..Formats::of(Dtype::Bf16) };
        let formats = if self.model.predicting_whole { whole } else { self.formats };
        let routing = self.routing.of_other_layer();
        Some(Self { formats, expert_degree, routing, redundant_experts, latent_layout, ..draft })
    }

    /// Experts of a layer with those that are kept once more.
    pub fn replicas_of(&self, experts: Experts) -> u64 {
        experts.n_routed + u64::from(self.redundant_experts.unwrap_or(0))
    }

    /// What the busiest GPU has of the experts, by layer that was counted; none where nobody counted and experts lie once.
    ///
    /// # Panics
    /// Where replicas do not divide over GPUs.
    pub fn busiest_ranks(&self) -> Vec<BusiestRank> {
        let is_asked = matches!(self.routing, Routing::Counted(_)) || self.redundant_experts.is_some();
        let Some(experts) = self.model.experts.filter(|_| is_asked) else { return Vec::new() };
        self.routing.counts(experts.top_k, experts.n_routed).busiest(self.placement(experts))
    }

    /// Which GPU holds which expert.
    fn placement(&self, experts: Experts) -> Placement {
        let (n_ranks, n_nodes) = (self.expert_degree as usize, self.expert_shape().n_nodes as usize);
        if self.redundant_experts.is_none() {
            return Placement::InOrder { n_ranks };
        }
        let size = |n: u64| usize::try_from(n).expect("experts are few");
        let (n_replicas, n_groups) = (size(self.replicas_of(experts)), size(experts.n_groups));
        Placement::Balanced(Room { n_replicas, n_groups, n_nodes, n_ranks })
    }

    /// Batches that the replica has under way at once.
    pub const fn lanes(&self) -> Lanes {
        let ranks = match self.ffn {
            Some(ffn) => ffn.attention_ranks,
            None => self.expert_degree / self.tensor_degree,
        };
        Lanes { stages: self.pipeline_degree, ranks: if ranks == 0 { 1 } else { ranks } }
    }

    /// GPUs of a stage.
    pub const fn gpus_per_stage(&self) -> u32 {
        let beside = match self.ffn {
            Some(ffn) => ffn.gpus,
            None => 0,
        };
        self.tensor_degree * self.lanes().ranks + beside
    }

    /// GPUs of a replica that attend, and so hold keys and values.
    pub const fn n_attending(&self) -> u32 {
        self.tensor_degree * self.lanes().ranks * self.pipeline_degree
    }

    /// GPUs of a replica.
    pub const fn n_gpus(&self) -> u32 {
        self.gpus_per_stage() * self.pipeline_degree
    }

    /// Its captured batches.
    pub(super) fn graphs(&self) -> Graphs {
        Graphs::new((&self.graph_sizes, self.graph_fit), self.graph_max, self.prompt_graph_tokens)
    }

    /// How the tensor group lies on nodes.
    pub fn tensor_shape(&self) -> GroupShape {
        self.shape(self.tensor_degree)
    }

    /// The model's encoder of images on this tensor group, where it has one and the engine loads it.
    pub fn encoding(&self) -> Option<Encoding<'a>> {
        let encoder = self.model.vision.as_deref().filter(|_| self.encoder_split != Split::Nothing)?;
        let group = self.encoder_split.group(self.tensor_shape());
        Some(Encoding { encoder, dtype: self.dtype, group })
    }

    /// How the GPUs that share the experts lie on nodes.
    pub fn expert_shape(&self) -> GroupShape {
        let first = if self.ffn.is_some() { self.n_attending() } else { 0 };
        self.cluster.shape_of(&(first..first + self.expert_degree).map(Rank).collect::<Vec<_>>())
    }

    /// Whether a token goes by all-to-all to the GPUs of its experts alone: where attention is data-parallel and more GPUs share the experts than a token
    /// visits. Else all tokens are gathered on all GPUs, and what experts gave is summed on the way back (TensorRT-LLM `select_alltoall_method_type`, which
    /// asks for `moe_ep_size <= top_k`; SGLang's recipes of racks name `DeepEP`; vLLM `AgRsAll2AllManager`, its default). DeepEP always sends.
    pub fn sends_to_experts(&self, experts: Experts) -> bool {
        let is_sparse = u64::from(self.expert_degree) > experts.top_k;
        self.lanes().ranks > 1 && (is_sparse || self.deep_ep.is_some() || self.ffn.is_some())
    }

    /// Whether tokens travel otherwise by DeepEP than by what the engine does by itself: between nodes, where all would be gathered, or beside computation.
    pub fn heeds_deep_ep(&self) -> bool {
        let by_itself = Self { deep_ep: None, ..self.clone() };
        let is_gathered = |experts| !by_itself.sends_to_experts(experts);
        let differs = self.heeds_deep_ep_mode() || self.model.experts.is_some_and(is_gathered);
        self.deep_ep.is_some() && self.lanes().ranks > 1 && differs
    }

    /// Whether DeepEP's modes differ: inside of a node the faster of both is taken, and what it takes from computation counts where halves overlap.
    pub fn heeds_deep_ep_mode(&self) -> bool {
        self.lanes().ranks > 1 && (self.expert_shape().n_nodes > 1 || self.overlaps_batches)
    }

    /// How the ranks of data-parallel attention lie on nodes: every one's GPU at the same place of its tensor group.
    pub fn attention_shape(&self) -> GroupShape {
        let ranks = (0..self.lanes().ranks).map(|rank| Rank(rank * self.tensor_degree));
        self.cluster.shape_of(&ranks.collect::<Vec<_>>())
    }

    fn shape(&self, n: u32) -> GroupShape {
        self.cluster.shape_of(&(0..n).map(Rank).collect::<Vec<_>>())
    }

    /// How the pairs of every two neighbouring stages lie on nodes.
    pub fn hand_offs(&self) -> impl Iterator<Item = GroupShape> + '_ {
        let first = |stage: u32| Rank(stage * self.gpus_per_stage());
        (1..self.pipeline_degree).map(move |stage| self.cluster.shape_of(&[first(stage - 1), first(stage)]))
    }

    /// The model as one GPU sees it: with an expert degree of 1 the tensor group cuts every expert, else each GPU has whole ones.
    pub fn shard(&self) -> Shard<'a> {
        let expert_tp = if self.has_whole_experts() { 1 } else { self.tensor_degree };
        let formats = self.formats;
        Shard {
            dispatcher: Dispatcher::AllToAll,
            dispatched_beside: 0.0,
            ep: self.expert_degree,
            expert_tp,
            formats,
            latent_layout: self.latent_layout,
            ..Shard::forward(self.model, self.dtype, self.tensor_degree)
        }
    }

    /// Whether a GPU has whole experts, or a part of each.
    pub const fn has_whole_experts(&self) -> bool {
        self.expert_degree > 1 || self.ffn.is_some()
    }

    /// Layers of every stage.
    pub fn stages(&self) -> Vec<Stage> {
        let n_layers = u32::try_from(self.model.n_layers).expect("layer counts are checked by the model reader");
        stage::stages(self.model, &self.layer_split.counts(n_layers, self.pipeline_degree))
    }
}

/// How much of a layer it is. Launches were measured on layers with a mixer and a feed-forward; Nemotron-H has one of the two in each of its layers. Launches of experts
/// are those of experts alone.
fn whole(layer: Layer) -> f64 {
    let parts = [layer.mixer != Mixer::Off, layer.feed_forward != FeedForward::Off];
    hw::real(parts.into_iter().filter(|part| *part).count() as u64) / hw::real(parts.len() as u64)
}
