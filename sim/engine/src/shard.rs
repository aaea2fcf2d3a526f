//! What a layer's arithmetic needs to know of a replica: the model, its formats and how a layer is cut over GPUs.
//!
//! Operations (`layer.rs`) and memory (`memory.rs`) of a layer ask nothing else, so training, serving and fine-tuning share them. Where
//! ranks lie, what is scheduled and what is stored elsewhere is not a shard's business.

use hw::{Capability, Dtype, Format};

use crate::compression::Compression;
use crate::dispatcher::Dispatcher;
use crate::formats::Formats;
use crate::frozen::Frozen;
use crate::latent_layout::LatentLayout;
use crate::loss::Loss;
use crate::model::{Experts, Heads, Mixer, Model};
use crate::recompute::Recompute;
use crate::unfused::{Fusion, Unfused};

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKernel {
    /// One kernel without a score matrix, the one that the framework prefers on the card.
    Flash,
    /// The same by FlashAttention 2 (arXiv:2307.08691), which was written for Ampere.
    FlashTwo,
    /// The same by FlashAttention 3 (arXiv:2407.08608), which was written for Hopper.
    FlashThree,
    /// The same by cuDNN (`SDPBackend.CUDNN_ATTENTION` of PyTorch; Transformer Engine's own choice on Hopper).
    CuDnn,
    /// Batched GEMM, softmax and dropout kernels over the whole score matrix, as Megatron-LM before flash attention.
    Unfused,
}

impl AttentionKernel {
    /// Words of scenario files.
    pub const WORDS: [(&'static str, Self); 5] = [
        ("flash", Self::Flash),
        ("flash-attention-2", Self::FlashTwo),
        ("flash-attention-3", Self::FlashThree),
        ("cudnn", Self::CuDnn),
        ("unfused", Self::Unfused),
    ];

    /// The word of scenario files.
    ///
    /// # Panics
    /// Never: every kernel has a word.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, kernel)| *kernel == self).expect("every kernel has a word").0
    }

    /// Whether no score matrix is made.
    pub const fn is_fused(self) -> bool {
        !matches!(self, Self::Unfused)
    }
}

/// Whose kernels compute a layer: what they keep from forward to backward, and whether narrow formats are cast by kernels of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framework {
    /// Nobody's: activations by the published formulas (arXiv:2205.05198, section 4), casts fused with the kernel in front.
    Formulas,
    /// Megatron-Core on Transformer Engine: every tensor that its modules save (`memory/framework.rs`).
    MegatronCore,
    /// PyTorch modules under autograd with fully sharded parameters (torchtitan).
    Fsdp2(TorchModules),
    /// The same modules under DeepSpeed's engine: parameters and gradients in 16 bits, and the master copy among the optimizer's states.
    DeepSpeed(TorchModules),
}

impl Framework {
    /// How PyTorch's own modules run, where they do.
    pub const fn torch(self) -> Option<TorchModules> {
        match self {
            Self::Fsdp2(modules) | Self::DeepSpeed(modules) => Some(modules),
            Self::Formulas | Self::MegatronCore => None,
        }
    }

    /// Whether PyTorch's modules are compiled.
    pub fn is_compiled(self) -> bool {
        self.torch().is_some_and(|modules| modules.compiled)
    }

    /// Whether keys and values are copied for every query head before attention.
    pub fn repeats_keys(self) -> bool {
        self.torch().is_some_and(|modules| modules.repeats_keys)
    }

    /// Whether PyTorch's modules run kernel by kernel.
    pub fn runs_single_kernels(self) -> bool {
        self.torch().is_some_and(|modules| !modules.compiled)
    }

    /// The same with modules that run otherwise.
    pub fn with_modules(self, change: impl Fn(TorchModules) -> TorchModules) -> Self {
        match self {
            Self::Fsdp2(modules) => Self::Fsdp2(change(modules)),
            Self::DeepSpeed(modules) => Self::DeepSpeed(change(modules)),
            Self::Formulas | Self::MegatronCore => self,
        }
    }

    /// Whether gradients that are cut over replicas (ZeRO 2 and 3) go with stages of a pipeline. DeepSpeed's engine refuses them (deepspeed/runtime/pipe/engine.py,
    /// `zero_optimization_stage() < ZeroStageEnum.gradients`).
    pub const fn cuts_gradients_of_stages(self) -> bool {
        !matches!(self, Self::DeepSpeed(_))
    }

    /// Whether trained parameters lie in 32 bits themselves. Elsewhere the master copy is a state of the optimizer.
    pub const fn has_wide_parameters(self) -> bool {
        matches!(self, Self::Fsdp2(_))
    }
}

/// Small adapters beside the products of a layer (LoRA, arXiv:2106.09685): each is two thin products, a scaling and a sum, as kernels of their own
/// (NVIDIA-NeMo/Megatron-Bridge @ 067f987df03b, `peft/utils.py`, `ParallelLinearAdapter.forward`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapters {
    /// Columns between both products.
    pub rank: u64,
    /// Beside which products.
    pub beside: AdaptedProducts,
    /// Whether they lie in 32 bits (PEFT, `autocast_adapter_dtype`): each casts its input to them, and autocast casts it back for the product.
    pub is_wide: bool,
    /// Whether each has dropout on its input.
    pub drops: bool,
    /// How the weights of layers that they stand beside lie in memory.
    pub frozen: Frozen,
}

impl Adapters {
    /// In the format of the activations, as the weights beside them are, without dropout.
    pub const fn new(rank: u64, beside: AdaptedProducts) -> Self {
        Self { rank, beside, is_wide: false, drops: false, frozen: Frozen::Same }
    }

    /// Bytes of one of their parameters, in a layer with such activations.
    pub const fn element(&self, activations: Dtype) -> u64 {
        if self.is_wide { Dtype::Fp32.bytes() } else { activations.bytes() }
    }

    /// Whether each makes a copy of its input: a cast, or dropout.
    pub const fn copies_input(&self) -> bool {
        self.is_wide || self.drops
    }
}

/// Products that have an adapter: a set of the projections of a layer, without experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptedProducts(u8);

impl AdaptedProducts {
    /// Projections by the names of Hugging Face's models (`target_modules` of PEFT).
    pub const MODULES: [(&'static str, Self); 7] = [
        ("q_proj", Self(1)),
        ("k_proj", Self(2)),
        ("v_proj", Self(4)),
        ("o_proj", Self(8)),
        ("gate_proj", Self(16)),
        ("up_proj", Self(32)),
        ("down_proj", Self(64)),
    ];
    /// None yet.
    pub const NONE: Self = Self(0);
    /// Queries.
    pub const QUERY: Self = Self(1);
    /// Keys.
    pub const KEY: Self = Self(2);
    /// Values.
    pub const VALUE: Self = Self(4);
    /// Behind attention.
    pub const OUTPUT: Self = Self(8);
    /// Gate of a feed-forward.
    pub const GATE: Self = Self(16);
    /// Up-projection, or the first product of a feed-forward without a gate.
    pub const UP: Self = Self(32);
    /// Second product of a feed-forward.
    pub const DOWN: Self = Self(64);
    /// Queries, keys and values.
    pub const QUERY_KEY_VALUE: Self = Self(1 | 2 | 4);
    /// Both products around attention.
    pub const ATTENTION: Self = Self(1 | 2 | 4 | 8);
    /// Those around attention, and both of a dense feed-forward.
    pub const ALL: Self = Self(127);
    /// Gate and up-projection.
    pub const FACTORS: Self = Self(16 | 32);
    /// Products of a feed-forward.
    pub const FEED_FORWARD: Self = Self(16 | 32 | 64);
    /// Sets that have a word.
    pub const WORDS: [(&'static str, Self); 3] =
        [("all", Self::ALL), ("attention", Self::ATTENTION), ("qkv", Self::QUERY_KEY_VALUE)];

    /// Whether all of these have an adapter.
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// How many these are.
    pub const fn n(self) -> u32 {
        self.0.count_ones()
    }

    /// How many of these have an adapter.
    pub const fn count(self, others: Self) -> u32 {
        (self.0 & others.0).count_ones()
    }

    /// With these as well.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

/// Where the layers of a model have dropout (`--attention-dropout`, `--hidden-dropout`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropout {
    /// Behind the softmax of attention.
    pub attention: bool,
    /// Behind attention and feed-forward, before the residual is added.
    pub residual: bool,
}

impl Dropout {
    /// Words of scenario files, with their meaning.
    pub const WORDS: [(&'static str, Self); 4] = [
        ("none", Self { attention: false, residual: false }),
        ("attention", Self { attention: true, residual: false }),
        ("residual", Self { attention: false, residual: true }),
        ("both", Self { attention: true, residual: true }),
    ];

    /// The word of scenario files.
    ///
    /// # Panics
    /// Never: every choice has a word.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, dropout)| *dropout == self).expect("every choice has a word").0
    }
}

/// How PyTorch's own modules run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TorchModules {
    /// Whether `torch.compile` fuses the memory-bound kernels of a layer and drops what its backward does not read.
    pub compiled: bool,
    /// Whether a norm is one kernel without `torch.compile` too (`_fused_rms_norm`, PyTorch 2.9).
    pub fused_norms: bool,
    /// How operands of narrow products are made.
    pub casts: Casts,
    /// Whether exchanges of the tensor group are cut into pieces beside their products (asynchronous tensor parallelism).
    pub in_pieces: bool,
    /// Whether keys and values are copied for every query head before attention (`repeat_kv`: torchtitan before ff0829c10 of 2026-01-27). Kernels of attention take
    /// grouped heads as they are (`enable_gqa` of PyTorch, FlashAttention; huggingface/transformers, `sdpa_attention_forward`).
    pub repeats_keys: bool,
}

/// How operands of narrow products are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Casts {
    /// With one scale per tensor; the tensor group gathers what is narrow already.
    Whole,
    /// With a scale per row for one product and a scale per column for the other; the tensor group gathers 16 bits.
    Rows,
    /// Not at all.
    Off,
}

/// Rows that the busiest rank of a layer's expert group computes and receives, over the even share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpertLoad {
    /// Mean over layers, thousandths.
    pub permille: u64,
    /// Tokens that find their expert full, of all routed ones, thousandths.
    pub dropped_permille: u64,
}

impl ExpertLoad {
    /// Every rank has its even share.
    pub const EVEN: Self = Self { permille: 1000, dropped_permille: 0 };
}

/// A model as one GPU of its tensor and expert groups sees it.
#[derive(Clone, Copy, Debug)]
pub struct Shard<'a> {
    /// Architecture.
    pub model: &'a Model,
    /// Format of activations.
    pub dtype: Dtype,
    /// Formats of weights, by part, and of keys and values.
    pub formats: Formats,
    /// GPUs that cut every layer.
    pub tp: u32,
    /// Whether norms and residuals are cut over the tensor group too.
    pub sequence_parallel: bool,
    /// GPUs that share the routed experts.
    pub ep: u32,
    /// GPUs that cut every expert.
    pub expert_tp: u32,
    /// How attention is computed.
    pub attention: AttentionKernel,
    /// What is dropped in forward and computed again in backward.
    pub recompute: Recompute,
    /// Merging of similar tokens before the all-to-all.
    pub compression: Option<Compression>,
    /// Whose kernels compute it.
    pub framework: Framework,
    /// How tokens travel to experts.
    pub dispatcher: Dispatcher,
    /// Share of what HybridEP does that runs beside computation.
    pub dispatched_beside: f64,
    /// Whether products of experts are asked to be fused with what lies between them.
    pub fused_experts: bool,
    /// Fused kernels of Megatron-Core that are turned off.
    pub unfused: Unfused,
    /// Format in which gradients of weights add up over micro-batches.
    pub gradient_dtype: Dtype,
    /// How the loss is computed.
    pub loss: Loss,
    /// Capability of the card. Products of 8 bits on Blackwell of servers read operands by rows and by columns alike, so that one copy serves both passes. Its
    /// memory is faster than its multiprocessors permute tokens.
    pub capability: Capability,
    /// Whether what is made 4 bits wide is read once more, to rotate its columns by a kernel of their own.
    pub rotates_apart: bool,
    /// Adapters, where they alone are trained.
    pub adapters: Option<Adapters>,
    /// Where the layers have dropout, where that is not left to the model.
    pub given_dropout: Option<Dropout>,
    /// Whether PyTorch's modules gather logits over the tensor group before the loss (`--parallelism.disable_loss_parallel` of torchtitan).
    pub gathers_logits: bool,
    /// Tokens that the experts of a rank take from all layers together, over the even share, thousandths.
    pub routed_permille: u64,
    /// How kernels keep latent and compressed vectors of 8 bits.
    pub latent_layout: LatentLayout,
}

impl<'a> Shard<'a> {
    /// A model cut over a tensor group, forward only.
    pub fn forward(model: &'a Model, dtype: Dtype, tp: u32) -> Self {
        Self {
            model,
            dtype,
            formats: Formats::of(dtype),
            tp,
            sequence_parallel: false,
            ep: 1,
            expert_tp: tp,
            attention: AttentionKernel::Flash,
            recompute: Recompute::Off,
            compression: None,
            framework: Framework::Formulas,
            dispatcher: Dispatcher::AllToAll,
            dispatched_beside: 0.0,
            fused_experts: false,
            unfused: Unfused::NONE,
            gradient_dtype: dtype,
            loss: Loss::Unfused,
            capability: Capability::Other,
            rotates_apart: false,
            adapters: None,
            given_dropout: None,
            gathers_logits: false,
            routed_permille: 1000,
            latent_layout: LatentLayout::Plain,
        }
    }

    /// Bytes by which a vector of a layer that is kept in 8 bits is longer than a byte for each of its numbers.
    pub fn more_latent_bytes(&self, mixer: Mixer) -> u64 {
        if self.formats.kv == Dtype::Fp8 { self.latent_layout.more_bytes(self.model, mixer) } else { 0 }
    }

    /// Whether its modules are those of huggingface/transformers: DeepSpeed runs them, and adapters in 32 bits beside them are PEFT's. torchtitan and torchtune have
    /// modules of their own.
    pub fn runs_transformers(&self) -> bool {
        let is_peft = self.framework.torch().is_some() && self.adapters.is_some_and(|adapters| adapters.is_wide);
        is_peft || matches!(self.framework, Framework::DeepSpeed(_))
    }

    /// Whether matrices of one input, queries with keys and values or both factors of a feed-forward, are one product. Megatron-Core and the formulas join all of
    /// them, transformers those of the model's checkpoint. An adapter of a part leaves it a product of its own.
    pub fn joins(&self, parts: AdaptedProducts) -> bool {
        let of_model =
            if parts.has(AdaptedProducts::QUERY) { self.model.joined.queries } else { self.model.joined.factors };
        let is_joined = self.framework.torch().is_none() || self.runs_transformers() && of_model;
        is_joined && self.adapters.is_none_or(|adapters| [0, parts.n()].contains(&adapters.beside.count(parts)))
    }

    /// Adapters beside these products: one beside those that are one product.
    pub fn n_adapters(&self, products: AdaptedProducts) -> u32 {
        let Some(Adapters { beside, .. }) = self.adapters else { return 0 };
        let saved = |parts: AdaptedProducts| {
            let is_one = products.has(parts) && beside.has(parts) && self.joins(parts);
            if is_one { parts.n() - 1 } else { 0 }
        };
        beside.count(products) - saved(AdaptedProducts::QUERY_KEY_VALUE) - saved(AdaptedProducts::FACTORS)
    }

    /// GPUs of the tensor group that have the same head of keys and values. Engines repeat heads. Frameworks of training cut their weights all the same, and
    /// Megatron-Core gathers what they give (`SelfAttention.get_query_key_value_tensors`, where `num_query_groups < world_size`).
    pub fn copies(&self, heads: Heads) -> u64 {
        if self.repeats_heads() { heads.copies(self.tp) } else { 1 }
    }

    /// Whether heads of keys and values are repeated where a tensor group has more GPUs.
    pub fn repeats_heads(&self) -> bool {
        self.framework == Framework::Formulas
    }

    /// How frozen weights of its layers lie in memory.
    pub fn frozen(&self) -> Frozen {
        self.adapters.map_or(Frozen::Same, |adapters| adapters.frozen)
    }

    /// Whether each rank of a tensor group works on its part of the vocabulary in the loss.
    pub const fn cuts_loss(&self) -> bool {
        self.tp > 1 && !self.gathers_logits
    }

    /// Of bytes of an even share of routed tokens, those that a rank holds.
    pub const fn routed(&self, bytes: u64) -> u64 {
        (bytes * self.routed_permille).div_ceil(1000)
    }

    /// Ranks of a tensor group that send tokens of their own to experts: those that cut an expert together get the same ones. Where each rank has all experts it
    /// sends its own part of the sequence to itself (Megatron-Core, `MoELayer`: tokens go over the group of `ep` and `expert_tp` alone).
    pub const fn senders(&self) -> u32 {
        let has_own_tokens = self.ep > 1 || self.sequence_parallel;
        if has_own_tokens && self.expert_tp < self.tp { self.tp / self.expert_tp } else { 1 }
    }

    /// Whether each rank sends its own tokens to experts that are cut, and ranks that cut one gather what all of them sent (Megatron-Core,
    /// `MoEAlltoAllTokenDispatcher`). What sends a token once sends it to all of these ranks.
    pub fn gathers_copies(&self) -> bool {
        let is_sent = self.framework == Framework::MegatronCore && !self.dispatcher.is_once_per_node();
        is_sent && self.sequence_parallel && self.expert_tp > 1
    }

    /// Whether experts get the router's weights in 32 bits: by the router's own format, or because DeepEP and HybridEP send no others
    /// (Megatron-Core, `_HybridEPManager.dispatch`, `_DeepepManager.dispatch`).
    pub fn weighs_wide(&self, experts: Experts) -> bool {
        experts.fp32_router || self.dispatcher.is_once_per_node()
    }

    /// Whether products of experts are fused: the first one with its bias, the activation function and the cast of what it gives, the gradient of the second one
    /// with that of the activation function and the cast of it. Kernels are those of 8 bits with scales per block on Blackwell (Transformer Engine,
    /// `GroupedMLP_CuTeGEMM` in `pytorch/ops/fused/grouped_mlp.py` @ d0067d0da6cb).
    pub fn fuses_experts(&self) -> bool {
        let has_kernels = self.formats.experts == Format::Mxfp8 && self.capability == Capability::Ten;
        self.fused_experts && has_kernels && self.framework == Framework::MegatronCore
    }

    /// Whether PyTorch's single kernels run in the place of one of Megatron-Core's.
    pub fn is_unfused(&self, fusion: Fusion) -> bool {
        self.framework == Framework::MegatronCore && self.unfused.has(fusion)
    }

    /// Whether positions are rotated by single kernels: where they are not fused, and where they are scaled, which Transformer Engine's kernel does not do
    /// (Megatron-Core, `apply_rotary_pos_emb`).
    pub fn rotates_singly(&self) -> bool {
        let is_scaled = self.framework == Framework::MegatronCore && self.model.scaled_positions;
        is_scaled || self.is_unfused(Fusion::Positions) && self.model.rotates_heads()
    }

    /// Whether copies of tokens are put into another order twice before experts, and twice behind. Those of several ranks come in the order of ranks and are
    /// sorted by expert (`sort_chunks_by_idxs`). Kernels that send a token once take it as it stands, and copies are made where it arrives
    /// (`_HybridEPManager`: `dispatch_with_permute`; `_DeepepManager.get_permuted_hidden_states_by_experts`).
    pub fn sorts_by_expert(&self, experts: Experts) -> bool {
        let has_several = experts.n_routed / u64::from(self.ep) > 1;
        self.framework != Framework::Formulas && self.ep > 1 && has_several && !self.dispatcher.is_once_per_node()
    }

    /// Whether PyTorch modules that make operands narrow do so for products in a format. Products that are wide everywhere stand for narrow ones
    /// whose kernels are as slow.
    pub fn casts_for(&self, format: Format) -> bool {
        !format.is_whole() || self.formats.products().iter().all(|format| format.is_whole())
    }

    /// Whether backward multiplies by the head's weights once more to have the logits. Liger's loss makes gradients with its logits.
    pub fn makes_logits_again(&self) -> bool {
        let of_framework = match self.framework {
            Framework::Formulas => false,
            Framework::MegatronCore => true,
            Framework::Fsdp2(_) | Framework::DeepSpeed(_) => self.loss != Loss::WithHead && !self.cuts_loss(),
        };
        of_framework && self.loss.makes_logits_again()
    }

    /// Where the layers have dropout. The published formulas are of GPT-3, which has it, and flash attention hides it there. Of modules those with
    /// learned positions have it, where nothing else is said: later models train without (arXiv:2302.13971, section 2).
    pub fn dropout(&self) -> Dropout {
        let has = match self.framework {
            Framework::Formulas => self.attention == AttentionKernel::Unfused,
            Framework::MegatronCore | Framework::Fsdp2(_) | Framework::DeepSpeed(_) => self.model.learned_positions,
        };
        self.given_dropout.unwrap_or(Dropout { attention: has, residual: has })
    }
}
