//! What a policy is asked: model, machine, data and the freedom it has.
//!
//! Invariant: the scenario reader has checked every field against the others, so nothing here is re-checked.

use engine::dispatcher::Dispatcher;
use std::borrow::Cow;

use hw::{Bytes, Cluster, Dtype, Rank, Seconds};

use engine::compression::Compression;
use engine::formats::Formats;
pub use engine::frozen::Frozen;
use engine::latent_layout::LatentLayout;
pub use engine::launch::Captured;
pub use engine::loss::Loss;
pub use engine::recompute::{Module, Modules, Recompute};
use engine::shard::Shard;
pub use engine::shard::{AdaptedProducts, Adapters, AttentionKernel, Casts, Dropout, Framework, TorchModules};
use engine::task::PassKind;
pub use engine::unfused::{Fusion, Unfused};

use crate::layout::{Axis, Layout, Position, Zero};
use crate::megatron_core::INTERLEAVED;
use crate::optimizer::{Optimizer, UpdateKernels};
use crate::schedule::Schedule;
use crate::straggler::{Rates, Straggler};
use crate::workload::Workload;
use engine::model::Model;

hw::words! {
    /// When gradients are reduced.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum GradientSync: word {
        /// During the last micro-batch's backward, bucket by bucket. With ZeRO 2 the exchanges of earlier micro-batches are left out though a
        /// rank holds its part alone: the best that a ZeRO 2 could be.
        Overlapped = "overlapped",
        /// During every micro-batch's backward, bucket by bucket (DeepSpeed's ZeRO 2; PyTorch DDP and FSDP without `no_sync`).
        EachMicroBatch = "each_micro_batch",
        /// After the last backward; behind it, bucket by bucket, where PyTorch shards modules (`no_sync`).
        AtEnd = "at_end",
    }
}

/// How much communication runs behind computation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// Share of tensor exchange that runs behind GEMM, 0 to 1.
    pub tensor: f64,
    /// Share of expert all-to-all that runs behind computation, 0 to 1; `None` where passes are not interleaved for it. Interleaved passes of a step
    /// in which none has a neighbour hide nothing (`--overlap-moe-expert-parallel-comm` with one micro-batch).
    pub expert: Option<f64>,
    /// Whether a whole backward makes gradients of weights behind those of inputs, beside the all-to-all that nothing else hides
    /// (`--delay-wgrad-compute`).
    pub delayed_weights: bool,
    /// Time factor of computation while an overlapped exchange takes part of the device, at least 1.
    pub slowdown: f64,
    /// Whether stages go on while their message is sent.
    pub stage: bool,
    /// Whether parameters are gathered behind the first forward (ZeRO 1, 2) instead of after the optimizer.
    pub parameter_gather: bool,
    /// Whether ZeRO 3 gathers layers of a forward while others compute (`forward_prefetch` of PyTorch FSDP, which is off by default:
    /// there a gather is issued behind the layer before it, and with `CUDA_DEVICE_MAX_CONNECTIONS=1` it runs behind it too).
    pub forward_prefetch: bool,
    /// The same in backward (`BackwardPrefetch.BACKWARD_PRE`).
    pub backward_prefetch: bool,
}

impl Overlap {
    /// Share of expert all-to-all that runs behind computation.
    pub fn hidden_experts(&self) -> f64 {
        self.expert.unwrap_or(0.0)
    }

    /// Share of tensor exchange that asynchronous tensor parallelism hides. It cuts each product into as many pieces as ranks and sends one while
    /// another is computed (pytorch/pytorch, `_fused_all_gather_matmul`), and the pieces are slower than the whole. Fitted on rows 19 to 22 of
    /// torchtitan's table.
    pub const ASYNC_TENSOR: f64 = 0.45;

    /// Nothing behind computation but messages between stages and gathers of ZeRO 3.
    pub const NONE: Self = Self {
        tensor: 0.0,
        expert: None,
        delayed_weights: false,
        slowdown: 1.0,
        stage: true,
        parameter_gather: false,
        forward_prefetch: true,
        backward_prefetch: true,
    };
}

/// How tokens spread over experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertTraffic {
    /// Standard deviation of the logarithm of an expert's popularity, drawn anew for every layer; 0 is even.
    pub imbalance: f64,
    /// Tokens that an expert takes, over its even share; further ones are dropped, missing ones padded. `None` drops nothing.
    pub capacity: Option<f64>,
    /// Merging of similar tokens before the all-to-all; `None` sends every token.
    pub compression: Option<Compression>,
    /// How tokens travel to experts.
    pub dispatcher: Dispatcher,
    /// Whether products of experts are fused with activation function, biases and casts, where there are kernels for it.
    pub fused: bool,
}

impl ExpertTraffic {
    /// Every expert is as popular, and every copy of a token is sent.
    pub const EVEN: Self =
        Self { imbalance: 0.0, capacity: None, compression: None, dispatcher: Dispatcher::AllToAll, fused: false };

    /// Tokens of a step that the fullest rank of an expert group holds from forward to backward, over the even share, thousandths.
    ///
    /// With a capacity every expert holds that many rows, full or padded. Else a rank's rows of one layer are a mean of log-normal popularities: their variance is
    /// exp(σ²) − 1 over the experts of a rank. Layers are drawn anew, so a rank's mean over the layers of its stage varies by as much less. The largest of n such means is on
    /// average at most √(2 ln n) deviations above 1. So what is held does not hang on a draw, and a plan that fits holds for every step.
    pub fn held_permille(&self, model: &Model, layout: &Layout) -> u64 {
        let Some(experts) = model.experts else { return 1000 };
        if let Some(capacity) = self.capacity {
            return hw::whole((capacity * 1000.0).ceil());
        }
        if self.imbalance == 0.0 || layout.ep == 1 {
            return 1000;
        }
        let n_layers = model.n_expert_layers().div_ceil(u64::from(layout.pp)).max(1);
        let n_experts = (experts.n_routed / u64::from(layout.ep)).max(1);
        let variance = libm::expm1(self.imbalance * self.imbalance) / hw::real(n_layers * n_experts);
        let above = (variance * 2.0 * libm::log(f64::from(layout.ep))).sqrt();
        // A rank has all tokens at most.
        hw::whole(((1.0 + above).min(f64::from(layout.ep)) * 1000.0).ceil())
    }
}

/// Duration of a pipeline rank's passes per token, for studying schedules without an architecture: a rank with several chunks
/// spends an equal part in each. Nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitTimes {
    /// Forward.
    pub forward: u64,
    /// Gradients of inputs.
    pub input: u64,
    /// Gradients of weights.
    pub weight: u64,
    /// Message from a rank to the next one.
    pub message: u64,
}

/// The lane of a host that launches kernels one by one: a pass takes as long as the device or as the host, whichever is longer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Launches {
    /// Time of a launch, Python and autograd with it; zero where graphs replay the whole step.
    pub each: Seconds,
    /// Modules whose kernels graphs replay.
    pub captured: Captured,
}

impl Launches {
    /// A host that is always ahead.
    pub const UNSEEN: Self = Self { each: Seconds::ZERO, captured: Captured { attention: false, router: false } };

    /// Of a host that interleaves a forward with a backward.
    pub fn interleaved(self) -> Self {
        Self { each: self.each * INTERLEAVED, ..self }
    }
}

/// How a training step is executed, besides its layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// Activation recompute.
    pub recompute: Recompute,
    /// Layers of every stage that recompute, from its first on; further ones keep everything (Megatron-LM's `--recompute-num-layers`).
    pub recompute_layers: u32,
    /// Gradient reduction.
    pub gradient_sync: GradientSync,
    /// Number format in which gradients are kept and reduced.
    pub gradient_dtype: Dtype,
    /// Attention kernel.
    pub attention: AttentionKernel,
    /// Whose kernels compute the layers.
    pub framework: Framework,
    /// Fused kernels of Megatron-Core that are turned off.
    pub unfused: Unfused,
    /// How the loss is computed.
    pub loss: Loss,
    /// Where the layers have dropout; `None` leaves it to the model.
    pub dropout: Option<Dropout>,
    /// Whether PyTorch's modules gather logits over the tensor group before the loss.
    pub gathers_logits: bool,
    /// Formats of products, where they are not that of the activations.
    pub formats: Option<Formats>,
    /// How PyTorch's modules make operands of narrow products, where there are any.
    pub casts: Casts,
    /// Layers at the end of a hybrid model whose products stay in the format of the activations.
    pub wide_layers: u32,
    /// Whether casts to 4 bits rotate columns by a kernel of their own, as Transformer Engine does before 2.14.
    pub rotates_apart: bool,
    /// Whether parameters are gathered in the format of the products, not in that of the activations.
    pub gathers_narrow: bool,
    /// Communication behind computation.
    pub overlap: Overlap,
    /// Tokens and experts.
    pub experts: ExpertTraffic,
    /// Share of activations that waits in host memory between forward and backward.
    pub offload: f64,
    /// Whether a rank's shares of parameters lie in host memory between their uses (`offload_param` of DeepSpeed).
    pub parameters_on_host: bool,
    /// Memory taken over memory asked for, for activations; at least 1.
    pub fragmentation: f64,
    /// Host time per layer and pass that the kernels of a layer cannot hide (free parameter of a training
    /// framework: Python, autograd, launches); zero for a graph-captured one.
    pub host_overhead_per_layer: Seconds,
    /// The host's lane of launches.
    pub launches: Launches,
    /// Whether context ranks hold blocks of a sequence in order instead of balanced pieces: all wait for the last one, which sees most keys.
    pub context_in_blocks: bool,
    /// What updates the parameters.
    pub optimizer: Optimizer,
    /// Small adapters that alone are trained: no gradients of the model's weights, whose exchange and step are left out.
    pub adapters: Option<Adapters>,
    /// Fixed durations instead of operations.
    pub unit_times: Option<UnitTimes>,
    /// Layers of every stage along the path; empty splits evenly.
    pub layers: Vec<u32>,
    /// Micro-batches that a rank runs through one chunk before the next one, where stages are interleaved; `None` for as many as ranks
    /// (`--microbatch-group-size-per-virtual-pipeline-stage`).
    pub micro_batch_group: Option<u32>,
    /// Micro-batches behind which a pipeline is flushed and its gradients are reduced; `None` for those of a step. torchtitan runs its schedule once for each
    /// local batch (`Trainer.train_step`, `_PipelineSchedule.step`).
    pub flush_every: Option<u32>,
    /// Ranks of every stage, where a plan has placed the stages of one pipeline; empty for the layout's.
    pub places: Vec<Vec<Rank>>,
    /// Devices that compute slower.
    pub stragglers: Vec<Straggler>,
}

impl Default for Execution {
    fn default() -> Self {
        Self {
            recompute: Recompute::Selective,
            recompute_layers: u32::MAX,
            gradient_sync: GradientSync::Overlapped,
            gradient_dtype: Dtype::Bf16,
            attention: AttentionKernel::Flash,
            framework: Framework::Formulas,
            unfused: Unfused::NONE,
            loss: Loss::Unfused,
            dropout: None,
            gathers_logits: false,
            formats: None,
            casts: Casts::Whole,
            wide_layers: 0,
            rotates_apart: false,
            gathers_narrow: false,
            overlap: Overlap::NONE,
            experts: ExpertTraffic::EVEN,
            offload: 0.0,
            parameters_on_host: false,
            fragmentation: 1.0,
            host_overhead_per_layer: Seconds::ZERO,
            launches: Launches::UNSEEN,
            context_in_blocks: false,
            optimizer: Optimizer::ADAM,
            adapters: None,
            unit_times: None,
            layers: Vec::new(),
            micro_batch_group: None,
            flush_every: None,
            places: Vec::new(),
            stragglers: Vec::new(),
        }
    }
}

impl Execution {
    /// Whether gradients of the model's own weights are made, exchanged and stepped with.
    pub const fn trains_weights(&self) -> bool {
        self.adapters.is_none()
    }

    /// Whether each backward of PyTorch updates what it has gradients of, so that none are left to add up over micro-batches.
    pub fn updates_in_backward(&self) -> bool {
        self.optimizer.kernels == UpdateKernels::InBackward && self.framework.torch().is_some()
    }

    /// The host's launches with so many expert ranks, where the problem has those of a host that runs pass after pass. Megatron-Core
    /// interleaves a forward with a backward where there is an all-to-all to hide, however much of it is hidden.
    pub fn launches_with(&self, ep: u32) -> Launches {
        if self.interleaves(ep) { self.launches.interleaved() } else { self.launches }
    }

    /// Whether the host runs a forward between a backward with so many expert ranks.
    pub fn interleaves(&self, ep: u32) -> bool {
        self.framework == Framework::MegatronCore && self.overlap.expert.is_some() && ep > 1
    }

    /// Puts the products into other formats. Modules of PyTorch make the operands of narrow ones, and whole ones have none to make.
    pub fn multiply_in(&mut self, formats: Option<Formats>) {
        let casts = if formats.is_some_and(|formats| formats.is_narrow()) { self.casts } else { Casts::Off };
        self.framework = self.framework.with_modules(|modules| TorchModules { casts, ..modules });
        self.formats = formats;
    }

    /// What a whole backward computes.
    pub const fn backward(&self) -> PassKind {
        if self.trains_weights() { PassKind::Backward } else { PassKind::Input }
    }
}

/// A training question.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Architecture.
    pub model: Model,
    /// Machine.
    pub cluster: Cluster,
    /// Parallel degrees.
    pub layout: Layout,
    /// Pipeline schedule.
    pub schedule: &'static Schedule,
    /// Sequences.
    pub workload: Workload,
    /// Number format of parameters and activations.
    pub dtype: Dtype,
    /// How the step is executed.
    pub execution: Execution,
    /// Tokens that a rank may hold in one micro-batch: Skrull's BucketSize C.
    pub bucket_tokens: u64,
    /// Memory that the framework, NCCL and fragmentation take from each device.
    pub reserved_memory: Bytes,
    /// Seed of every random choice.
    pub seed: u64,
}

impl Problem {
    /// Tokens that a replica has room for in a micro-batch.
    pub fn replica_tokens(&self) -> u64 {
        self.bucket_tokens * u64::from(self.layout.cp)
    }

    /// Tokens that all replicas have room for at once.
    pub fn tokens_at_once(&self) -> u64 {
        u64::from(self.layout.dp) * self.replica_tokens()
    }

    /// Sequences that they have room for at once, all as long as the longest.
    pub fn sequences_at_once(&self) -> u64 {
        let longest = self.workload.lengths.iter().max().copied().unwrap_or(0).max(1);
        u64::from(self.layout.dp) * (self.replica_tokens() / longest)
    }

    /// The model as one rank of its tensor and expert groups sees it. Without expert ranks there is no exchange and nothing is merged.
    pub fn shard(&self) -> Shard<'_> {
        let layout = &self.layout;
        Shard {
            model: &self.model,
            dtype: self.dtype,
            formats: self.execution.formats.unwrap_or_else(|| Formats::of(self.dtype)),
            tp: layout.tp,
            sequence_parallel: layout.sequence_parallel,
            ep: layout.ep,
            expert_tp: layout.expert_tp,
            attention: self.execution.attention,
            recompute: self.execution.recompute,
            compression: self.execution.experts.compression.filter(|_| layout.ep > 1),
            framework: self.execution.framework,
            dispatcher: self.dispatcher(),
            dispatched_beside: self.execution.overlap.hidden_experts(),
            fused_experts: self.execution.experts.fused,
            unfused: self.execution.unfused,
            gradient_dtype: self.execution.gradient_dtype,
            loss: self.execution.loss,
            capability: self.cluster.gpu.capability(),
            rotates_apart: self.execution.rotates_apart,
            adapters: self.execution.adapters,
            given_dropout: self.given_dropout(),
            gathers_logits: self.execution.gathers_logits && self.execution.framework.torch().is_some(),
            routed_permille: self.execution.experts.held_permille(&self.model, &self.layout),
            latent_layout: LatentLayout::Plain,
        }
    }

    /// How tokens travel to experts. Where none do, no kernel of a library takes them.
    fn dispatcher(&self) -> Dispatcher {
        if self.layout.ep > 1 { self.execution.experts.dispatcher } else { Dispatcher::AllToAll }
    }

    /// Share of the experts' exchange that computation hides. Multiprocessors that send tokens are none that compute: what they would have done is not hidden.
    pub fn hidden_expert_exchange(&self) -> f64 {
        let sending = self.dispatcher().sending_share(self.cluster.gpu.capability());
        self.execution.overlap.hidden_experts() * (1.0 - sending)
    }

    /// Layers of the model that predict further tokens, where the framework trains them.
    pub fn n_predicting(&self) -> u64 {
        if self.execution.framework == Framework::MegatronCore { self.model.n_predicting } else { 0 }
    }

    /// Micro-batches that interleaved stages run through one chunk before the next one.
    pub fn micro_batch_group(&self) -> usize {
        self.execution.micro_batch_group.map_or(1, |n| n as usize).max(self.layout.pp as usize)
    }

    /// Micro-batches behind which the pipeline is flushed, where it is flushed within a step.
    pub fn flush_every(&self) -> Option<usize> {
        self.execution.flush_every.filter(|_| self.layout.pp > 1).map(|n| n as usize)
    }

    /// When gradients are reduced in fact. Under ZeRO 3 none waits for the end of a step; sharded modules of PyTorch wait for the last backward's layers.
    pub fn gradient_sync(&self) -> GradientSync {
        match self.execution.gradient_sync {
            GradientSync::AtEnd if self.gradients_cannot_wait() || self.defers_gradients() => GradientSync::Overlapped,
            given => given,
        }
    }

    /// Whether some parameters are held by several ranks, whose gradients are then one sum. Experts may be where nothing else is: ranks of a tensor group
    /// hold the same ones where these are whole.
    pub fn has_peers(&self) -> bool {
        self.layout.n_holders() > 1 || self.model.experts.is_some() && self.layout.n_expert_holders() > 1
    }

    /// Whether gradients have a communicator of their own. Shards of parameters come over the same one: PyTorch's FSDP takes one process group for both.
    pub fn sums_apart(&self) -> bool {
        self.layout.zero < Zero::Parameters
    }

    /// Dropout that is asked for. Activations of PyTorch's modules are listed without masks of residuals, but for those of a pipeline.
    fn given_dropout(&self) -> Option<Dropout> {
        let is_held = self.execution.framework.torch().is_none() || self.layout.pp > 1;
        self.execution.dropout.map(|asked| Dropout { residual: asked.residual && is_held, ..asked })
    }

    /// Whether some states are cut over ranks: those of experts may be where nothing else is.
    pub fn shards_states(&self) -> bool {
        let of_experts = if self.model.experts.is_some() { self.layout.n_expert_shards() } else { 1 };
        self.layout.zero > Zero::Off && self.layout.n_shards().max(of_experts) > 1
    }

    /// Whether a reduction at the end of a step is out of the question: ranks keep shares of parameters, and gradients are as large.
    pub fn gradients_cannot_wait(&self) -> bool {
        self.layout.zero == Zero::Parameters && self.execution.trains_weights() && !self.defers_gradients()
    }

    /// Whether sharded modules of PyTorch add up whole gradients on every rank, and reduce them in the last micro-batch alone. That is FSDP2's
    /// `set_requires_gradient_sync(False)` and FSDP1's `no_sync`; Accelerate and litgpt do so while they accumulate. A pipeline has its own rule.
    pub fn defers_gradients(&self) -> bool {
        let execution = &self.execution;
        let is_sharded = self.layout.zero >= Zero::Gradients && self.layout.n_shards() > 1;
        let is_asked = execution.gradient_sync == GradientSync::AtEnd && execution.trains_weights();
        is_asked && is_sharded && self.layout.pp == 1 && matches!(execution.framework, Framework::Fsdp2(_))
    }

    /// Whether ranks keep shares of gradients. Where nothing is reduced before the end of a step, ZeRO 2 has them whole until then, but DeepSpeed's, which
    /// keeps shares whether or not it reduces behind backward.
    pub fn shards_gradients(&self) -> bool {
        let is_engine = matches!(self.execution.framework, Framework::DeepSpeed(_));
        let waits = self.gradient_sync() == GradientSync::AtEnd && !is_engine;
        match self.layout.zero {
            Zero::Off | Zero::OptimizerStates => false,
            Zero::Gradients => !waits,
            Zero::Parameters => true,
        }
    }

    /// Whether a rank's shares of parameters come from the host for every pass: ZeRO 3 alone has shares.
    pub fn hosts_parameters(&self) -> bool {
        let execution = &self.execution;
        execution.parameters_on_host && self.layout.zero == Zero::Parameters && execution.unit_times.is_none()
    }

    /// Whether anything of a step lies on hosts: states of trained weights, activations between two passes, or shares of parameters.
    pub fn uses_hosts(&self) -> bool {
        let execution = &self.execution;
        let has_states = execution.optimizer.on_device() < 1.0 && execution.trains_weights();
        has_states || execution.offload > 0.0 || self.hosts_parameters()
    }

    /// Share of a rank's shares of gradients that is on the device: with DeepSpeed's step on the host they go there as they are reduced (`partition_grads`).
    pub fn gradients_on_device(&self) -> f64 {
        let goes = matches!(self.execution.framework, Framework::DeepSpeed(_)) && self.shards_gradients();
        if goes { self.execution.optimizer.on_device() } else { 1.0 }
    }

    /// Format in which parameters are held. PyTorch's modules under mixed precision hold what they train in 32 bits; frozen weights, and parameters without a
    /// master copy or beside one (DeepSpeed), have the format of the activations.
    pub fn parameter_dtype(&self) -> Dtype {
        let execution = &self.execution;
        let can_be = execution.framework.has_wide_parameters();
        let is_wide = can_be && execution.trains_weights() && execution.optimizer.master.is_some();
        if is_wide { Dtype::Fp32 } else { self.dtype }
    }

    /// Format in which gradients are held: PyTorch's have that of their parameter, whatever they were reduced in.
    pub fn held_gradient_dtype(&self) -> Dtype {
        let is_torch = self.execution.framework.torch().is_some();
        let is_narrow = is_torch && self.execution.optimizer.master.is_none();
        if is_narrow { self.dtype } else { self.execution.gradient_dtype }
    }

    /// Format in which PyTorch's modules reduce gradients: 32 bits, but where parameters have no master copy and nothing wider is asked for. DeepSpeed
    /// reduces them as it holds them.
    pub fn reduced_dtype(&self) -> Dtype {
        let execution = &self.execution;
        if matches!(execution.framework, Framework::DeepSpeed(_)) {
            return execution.gradient_dtype;
        }
        let is_narrow = execution.optimizer.master.is_none() && execution.gradient_dtype != Dtype::Fp32;
        if is_narrow { self.dtype } else { Dtype::Fp32 }
    }

    /// Whether a rank of PyTorch's modules uses its parameters as they lie there: nothing is gathered, and nothing is cast. Frozen weights, and those of DeepSpeed,
    /// are cut by ZeRO 3 alone.
    pub fn uses_parameters_in_place(&self) -> bool {
        let execution = &self.execution;
        let can_be = !execution.trains_weights() || matches!(execution.framework, Framework::DeepSpeed(_));
        let is_whole = can_be && self.layout.zero < Zero::Parameters;
        (is_whole || self.layout.n_shards() == 1) && self.parameter_dtype() == self.dtype
    }

    /// Bytes of a parameter as it is gathered.
    pub fn gathered_bytes(&self) -> f64 {
        if let Some(bits) = self.shard().frozen().packed_bits() {
            return hw::real(bits) / 8.0;
        }
        let format = self.shard().formats.dense;
        let whole = hw::real(self.dtype.bytes());
        if self.execution.gathers_narrow { format.weight_bytes(1.0).min(whole) } else { whole }
    }

    /// Bytes of a parameter of layers as a rank holds its share of it. Packed weights are gathered as they lie.
    pub fn held_bytes(&self) -> f64 {
        if self.shard().frozen().is_packed() { self.gathered_bytes() } else { hw::real(self.parameter_dtype().bytes()) }
    }

    /// Rates of all devices in a step.
    pub fn rates(&self, step_index: usize) -> Rates {
        Rates::at(&self.execution.stragglers, step_index)
    }

    /// Whether tensor groups lie scattered over nodes in which NVLink joins fewer GPUs. Exchanges are priced of GPUs side by side.
    pub fn scatters_tensor_groups(&self) -> bool {
        self.layout.order[0] != Axis::Tensor && self.cluster.nvlink_island < self.cluster.gpus_per_node
    }

    /// Rank at a position.
    pub fn rank(&self, position: Position) -> Rank {
        match self.execution.places.get(position.pp as usize) {
            // A stage may have fewer ranks than the one that asks.
            Some(ranks) => ranks[(position.tp as usize).min(ranks.len() - 1)],
            None => self.layout.rank(position),
        }
    }

    /// Position of a rank.
    ///
    /// # Panics
    /// When stages are placed and the rank is in none of them.
    pub fn position(&self, rank: Rank) -> Position {
        if self.execution.places.is_empty() {
            return self.layout.position(rank);
        }
        let n = |n: usize| u32::try_from(n).expect("ranks fit u32");
        let of_stage = |(pp, ranks): (usize, &Vec<Rank>)| {
            let tp = ranks.iter().position(|&other| other == rank)?;
            Some(Position { tp: n(tp), pp: n(pp), ..Position::default() })
        };
        self.execution.places.iter().enumerate().find_map(of_stage).expect("a rank of the pipeline")
    }

    /// The problem as a stage sees it: where stages are placed, with the tensor degree of this one.
    pub fn at_stage(&self, pp: usize) -> Cow<'_, Self> {
        let Some(ranks) = self.execution.places.get(pp) else { return Cow::Borrowed(self) };
        let mut own = self.clone();
        own.layout = self.layout.on_tensor_group(u32::try_from(ranks.len()).expect("ranks fit u32"));
        Cow::Owned(own)
    }

    /// Whether each micro-batch's gradients are reduced, so that no rank adds up whole ones.
    pub fn reduces_each_micro_batch(&self) -> bool {
        let is_each = self.execution.gradient_sync == GradientSync::EachMicroBatch;
        (self.layout.zero >= Zero::Parameters && !self.defers_gradients()) || is_each
    }

    /// Duration of one stage's pass under `UnitTimes`, whole nanoseconds; rounded up, so that stages together take no less than their work.
    pub const fn unit_ns(&self, per_token: u64, tokens: u64) -> u64 {
        let (pp, chunks) = (self.layout.pp as usize, self.layout.chunks as usize);
        (per_token * tokens * pp as u64).div_ceil(self.schedule.placement.n_stages(pp, chunks) as u64)
    }
}
