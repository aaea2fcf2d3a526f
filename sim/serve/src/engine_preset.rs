//! Serving engines as they are set when nobody says otherwise: batching, budgets, captured graphs, memory, overlap. Data, with versions and sources.
//!
//! A preset is what a version does by itself; other options lie over it (`Settings`). Sizes depend on the device's memory. Units: tokens, sequences, GiB, shares.

pub mod blocks;
pub mod drafting;
mod graph_rule;
mod kernels;
mod presets;
pub mod reserve;
pub mod split;
mod tuned_tiles;

use std::num::NonZeroU32;

use engine::Model;
use engine::cost::experts::draws::RouterGroups;
use engine::cost::experts::{Routing, Tactic};
use engine::formats::Formats;
use hw::{Bytes, Capability, Format, Gpu};

use crate::api_server::ApiServer;
use crate::engine_reduces::Reduces;
use crate::frontend::Frontend;
use crate::layer_split::LayerSplit;
use crate::memory_rule::MemoryRule;
use crate::replica::{CapacityPolicy, PromptRank};
use crate::sampler::Sampler;
use crate::step_cost::census::Census;
use crate::step_cost::fusion::Fusion;
use crate::step_cost::host::EngineLoop;
use crate::step_cost::prompt_exchange::PromptExchange;
use drafting::WithDrafts;
pub use graph_rule::GraphRule;
pub use presets::PRESETS;
use presets::{KNOWN, RELEASES};
use reserve::TurnedOff;
use split::SplitServing;

/// How tokens spread over experts of most models in a named engine: a power law with the exponent that the makers of the tables assume of real routers
/// (ai-dynamo/aiconfigurator @ 095f58a51c4c, `power_law_1.2`). An assumption for any one model.
const SKEW: f64 = 1.2;

/// How tokens spread over a model's experts in a named engine. Training moves the bias of every expert until all of them have equal load (arXiv:2408.15664;
/// DeepSeek-V3, arXiv:2412.19437, section 2.1.2). So where there is one, few tokens visit experts as if they drew them one by one and all alike. Many tokens of one
/// kind load them unevenly all the same (there, section 4.5.3: imbalance of a domain in inference), so their loads stay those of the law.
pub fn routing(model: &Model) -> Routing {
    match model.experts {
        Some(experts) if experts.balanced => {
            Routing::Balanced(SKEW, RouterGroups { all: experts.n_groups, of_token: experts.groups_of_token })
        }
        _ => Routing::PowerLaw(SKEW),
    }
}

/// An engine from a version on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EnginePreset {
    /// Name in scenarios and tables.
    pub name: &'static str,
    /// First version of which this is said.
    pub since: Version,
    /// Batching policy (`batcher.rs`).
    pub batcher: &'static str,
    /// Tokens of a block of keys and values.
    pub block_tokens: u32,
    /// Whether the host works behind the device.
    pub engine_loop: EngineLoop,
    /// What it does otherwise where it drafts tokens.
    pub with_drafts: WithDrafts,
    /// Of which models prefixes that requests share are kept.
    pub prefixes: KeptPrefixes,
    /// Sizes by device memory: the first row whose limit is not below the device's memory holds.
    pub sizes: &'static [Sizes],
    /// Tokens of an iteration where a program calls the engine and nobody serves: on a card of the first of `sizes`, and on a larger one. `None`: those of a
    /// server.
    pub offline_tokens: Option<[u32; 2]>,
    /// Batches that are captured.
    pub graphs: GraphRule,
    /// Iterations with chunks of prompts that run in captured graphs too.
    pub prompt_graphs: PromptGraphs,
    /// Rows to which the kernel of block-scaled experts fills up every expert, and tensor degrees of experts below which it runs.
    pub expert_rows: Option<(u64, u32)>,
    /// Whether the kernel of block-scaled 8-bit experts of Blackwell runs as its tuner says.
    pub tunes_experts: bool,
    /// Models whose experts it computes by another kernel than Triton's on Blackwell.
    pub listed_experts: ListedExperts,
    /// Format of experts that CUTLASS computes on Blackwell where no option asks for another kernel.
    pub cutlass_experts: Option<Format>,
    /// Whether Triton computes experts in 16 bits, with tiles by default where nobody tuned their shape (`tuned_tiles.rs`).
    pub default_tiles: bool,
    /// Whether attention with learned sinks runs through a kernel of Triton with blocks of few queries, on cards for which its faster ones have no sinks.
    pub triton_sinks: bool,
    /// What it computes in one kernel.
    pub fusion: Fusion,
    /// Kernels of its layers beside those that `engine::layer` writes.
    pub census: Census,
    /// Which kernels add up what a tensor group computed.
    pub reduces: Reduces,
    /// Most tokens of a captured batch that computes shared experts beside the routed ones; 0 where none does.
    pub shared_beside: u32,
    /// Which stages of a pipeline have more layers, where these do not come out even.
    pub layer_split: LayerSplit,
    /// Memory for weights, keys and values.
    pub memory: MemoryRule,
    /// MiB that it takes off for each graph before keys and values; 0 where their memory lies outside of its share. Logs of vLLM have 0.64 and 0.78 GiB for 86
    /// graphs and 0.37 GiB for 54; models with states took 0.4 to 1.2 GiB for a few.
    pub graph_mib: u64,
    /// What it keeps for graphs that are turned off.
    pub turned_off: TurnedOff,
    /// MiB that it takes off for exchanges with other GPUs.
    pub exchange_mib: u64,
    /// The sampler that it counts before it takes memory for keys and values.
    pub sampler: Sampler,
    /// Whether `max_new_tokens` of a model's own `generation_config.json` ends answers that ask for more tokens.
    pub file_ends_answers: bool,
    /// How ranks of data-parallel attention exchange tokens with experts in an iteration with prompts.
    pub prompt_exchange: PromptExchange,
    /// Which rank of data-parallel attention computes a prompt for another worker.
    pub prompt_rank: PromptRank,
    /// Which blocks must be free for whoever is admitted.
    pub capacity_policy: CapacityPolicy,
    /// What runs with weights alone in 8 bits where a card multiplies none.
    pub weight_only: WeightOnly,
    /// Where tokens become text.
    pub detokenizer: Detokenizer,
    /// What the process at its door works.
    pub api_server: ApiServer,
    /// How replicas that compute prompts and replicas that decode share a request.
    pub split: SplitServing,
    /// Where this stands.
    pub source: &'static str,
}

/// Memory of a process beside weights, activations and keys and values, GiB: what vLLM 0.19 kept on an RTX 4090
/// (casys-kaist/LLMServingSim @ 5daddb21a545, bench/examples/RTX4090).
pub const RESERVED_GIB: f64 = 1.15;

/// Parts of a model whose 8-bit floats an engine multiplies in 16 bits on a card without such units: weights stay narrow (Marlin kernels).
///
/// vllm-project/vllm @ 0071b24bf8fe, `fp8.py`: products and experts below capability 8.9. sgl-project/sglang @ 00563d368df9, `fp8.py`: products
/// alone, experts run through Triton.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightOnly {
    /// Such a card is refused.
    Nowhere,
    /// Outside of experts.
    Dense,
    /// Experts too.
    Everywhere,
}

impl WeightOnly {
    /// Formats that are multiplied on a card.
    pub fn formats(self, asked: Formats, model: &Model, gpu: &Gpu) -> Formats {
        match self {
            Self::Nowhere => asked,
            Self::Dense if model.experts.is_some() => Formats { experts: asked.experts, ..asked.weight_only(gpu) },
            Self::Dense | Self::Everywhere => asked.weight_only(gpu),
        }
    }
}

/// Of which models an engine keeps prefixes where nobody says whether.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptPrefixes {
    /// Of those whose layers keep keys and values alone: a state stands for all tokens so far, and those of earlier tokens are gone.
    WithoutStates,
    /// Of all: states are kept at some ends of blocks.
    All,
}

/// Sizes on devices of at most so much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Memory of the device, GiB.
    pub memory_gib_max: u32,
    /// Tokens of an iteration, or of a chunk where prompts run by themselves.
    pub tokens_max: u32,
    /// Sequences that run at once.
    pub sequences_max: u32,
    /// Largest captured batch, on tensor groups below four GPUs and from there on.
    pub graph_max: [u32; 2],
}

/// Models whose experts in 8 or 16 bits an engine gives to a faster library than Triton on Blackwell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListedExperts {
    /// In 8 bits DeepSeek and those with its latent attention, Qwen3 and its gated delta nets, Llama 4.
    Narrow,
    /// Those of Qwen in 16 bits as well.
    Wide,
    /// All of them.
    All,
}

/// Which iterations with chunks of prompts run in captured graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptGraphs {
    /// None: their kernels are launched one by one.
    None,
    /// Those of no more tokens than the largest captured batch has.
    Batches,
    /// All.
    All,
    /// All by themselves; with latent attention those of 2048 tokens at most. None with attention to selected keys. Source: sgl-project/sglang,
    /// docs/advanced_features/piecewise_cuda_graph.md.
    Sglang,
}

/// Where an engine makes text of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detokenizer {
    /// The process that does it.
    pub process: &'static str,
    /// Microseconds of a sequence for which the loop of iterations waits: none where another process does it.
    pub us_per_sequence: f64,
    /// How many there are.
    pub count: Count,
    /// Where this stands.
    pub source: &'static str,
}

/// Processes of a kind beside an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// One.
    One,
    /// One for each rank of data-parallel attention.
    OfRank,
}

impl Count {
    /// How many they are beside so many ranks.
    pub fn of(self, ranks: u32) -> NonZeroU32 {
        match self {
            Self::One => NonZeroU32::MIN,
            Self::OfRank => NonZeroU32::new(ranks).unwrap_or(NonZeroU32::MIN),
        }
    }
}

/// Version of an engine: its first three numbers. Nightly builds and versions that are not stated count as the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Newer than all others.
    pub const NEWEST: Self = Self(u32::MAX, 0, 0);

    /// From text as releases have it, or a build that is newer than all releases; `None` of anything else.
    pub fn of_text(text: &str) -> Option<Self> {
        let found = Self::parse(text);
        let is_build = ["nightly", "main", "latest", "dev"].iter().any(|word| text.starts_with(word));
        (found != Self::NEWEST || is_build).then_some(found)
    }

    /// The last version of its minor release: fixes change no defaults.
    pub const fn last_of_minor(self) -> Self {
        Self(self.0, self.1, u32::MAX)
    }

    /// From text as releases have it: `0.19.0`, `1.0.0rc3`, `0.5.8.post1`.
    pub fn parse(text: &str) -> Self {
        let mut numbers = text.split('.').map_while(leading_number);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(major), Some(minor), patch) => Self(major, minor, patch.unwrap_or(0)),
            _ => Self::NEWEST,
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The digits that a text begins with.
fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Newest release of an engine on a day such as `2026-04-05`.
pub fn newest_on(name: &str, day: &str) -> Version {
    let before = RELEASES.iter().find(|(engine, released, _)| *engine == name && !day.is_empty() && day < *released);
    before.map_or(Version::NEWEST, |(_, _, version)| *version)
}

/// Oldest and newest version of an engine that its presets were written for.
pub fn known_versions(name: &str) -> Option<[Version; 2]> {
    KNOWN.iter().find(|(known, _)| *known == name).map(|(_, versions)| *versions)
}

/// The last version that has the defaults of the newest known one. Fixes change none; SGLang's releases count in the place of fixes (0.5.9, 0.5.10, …, 0.5.23).
pub fn last_alike(name: &str, newest: Version) -> Version {
    if name == "sglang" { newest } else { newest.last_of_minor() }
}

/// Names of all engines, each once.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
    names.dedup();
    names
}

/// Preset of an engine's version; versions older than the oldest known take that one.
pub fn named(name: &str, version: Version) -> Option<&'static EnginePreset> {
    let mut of_name = PRESETS.iter().filter(|preset| preset.name == name);
    let newest_not_after = of_name.clone().find(|preset| preset.since <= version);
    newest_not_after.or_else(|| of_name.next_back())
}

impl EnginePreset {
    /// Memory that it takes off for the graphs of captured batches, where it runs at most so many sequences: one of every size piece by piece, and a whole one of those
    /// that sequences fill (`Profiling CUDA graph memory` in vllm/v1/worker/gpu_model_runner.py).
    pub fn graph_bytes(&self, captured: &[u32], sequences_max: u32) -> Bytes {
        let whole = captured.iter().filter(|size| **size <= sequences_max).count();
        Bytes((self.graph_mib * (captured.len() + whole) as u64) << 20)
    }

    /// Memory that it takes off for exchanges of so many GPUs.
    pub const fn exchange_bytes(&self, n_gpus: u32) -> Bytes {
        Bytes(if n_gpus > 1 { self.exchange_mib << 20 } else { 0 })
    }

    /// Tokens of an iteration on each rank of data-parallel attention, of those that the engine takes by itself. SGLang shares them out
    /// (`chunked_prefill_size // dp_size` in server_args.py); each rank of the others is an engine with all of them.
    pub fn tokens_of_rank(&self, tokens: u32, n_ranks: u32) -> u32 {
        if self.counts_decoding() { tokens } else { (tokens / n_ranks.max(1)).max(1) }
    }

    /// Whether decoding sequences take their tokens of an iteration's budget, as its policy has it.
    pub fn counts_decoding(&self) -> bool {
        crate::batcher::named(self.batcher).is_none_or(|batcher| batcher.counts_decoding())
    }

    /// Who hands its tokens to clients, with so many GPUs in a tensor group and for the experts. How long a token takes there no source says: what is published
    /// contradicts itself (docs/accuracy-serving-causes.md).
    pub fn frontend(&self, [tensor, expert]: [u32; 2]) -> Frontend {
        Frontend { processes: self.detokenizer.count.of(expert / tensor), ..Frontend::NONE }
    }

    /// Rows to which experts of a format that are cut over so many GPUs are filled up.
    pub fn expert_rows_of(&self, format: Format, tensor_degree: u32) -> Option<u64> {
        let (rows, below) = self.expert_rows?;
        (format == Format::Fp8Block && tensor_degree < below).then_some(rows)
    }

    /// Which variant of their kernel experts of a format run, with so many ranks of data-parallel attention. Before Blackwell, and between such ranks
    /// (`DeepEP`, `DeepGEMM`), other kernels compute them.
    pub fn expert_tactic(&self, format: Format, model: &Model, gpu: &Gpu, ranks: u32) -> Tactic {
        let chosen = match gpu.capability() {
            Capability::Ten if self.cutlass_experts == Some(format) => Tactic::Cutlass,
            Capability::Ten if ranks == 1 && self.keeps_triton(format, model) => Tactic::Triton,
            _ => Tactic::Tuned,
        };
        self.as_tuned(chosen, format, gpu, ranks)
    }

    /// A variant as the engine runs it: what its tuner has timed, or what it falls back to.
    pub fn as_tuned(&self, tactic: Tactic, format: Format, gpu: &Gpu, ranks: u32) -> Tactic {
        let falls_back = gpu.capability() == Capability::Ten && ranks == 1 && !self.tunes_experts;
        if falls_back && tactic == Tactic::Tuned && format == Format::Fp8Block { Tactic::Untuned } else { tactic }
    }

    /// Whether a model's shared expert is one more of the routed ones on a card, which are spread over GPUs or not. SGLang does so with DeepSeek-V3 and -R1
    /// where its own kernel runs: before Blackwell, whose kernels are FlashInfer's.
    pub fn shared_among_routed(&self, model: &Model, gpu: &Gpu, spreads: bool) -> bool {
        let is_deepseek = model.experts.is_some_and(|experts| experts.n_routed == 256 && experts.n_groups > 1);
        self.name == "sglang" && is_deepseek && gpu.capability() != Capability::Ten && !spreads
    }

    /// Whether prefixes of a model are kept where nobody says whether.
    pub fn keeps_prefixes_of(&self, model: &Model) -> bool {
        self.prefixes == KeptPrefixes::All || !model.layers.kinds().iter().any(|layer| layer.mixer.has_state())
    }

    /// Sizes on a device.
    pub fn sizes_on(&self, gpu: &Gpu) -> Sizes {
        let is_small = self.name == "vllm" && gpu.name.starts_with("a100");
        let gib = if is_small { Bytes::from_gib(0.0) } else { gpu.memory };
        let holds = |sizes: &&Sizes| gib <= Bytes::from_gib(f64::from(sizes.memory_gib_max));
        *self.sizes.iter().find(holds).or(self.sizes.last()).expect("a preset has sizes")
    }
}

impl EnginePreset {
    /// Tokens of an iteration on a device where a program calls the engine and nobody serves; `None` where they are those of a server.
    pub fn offline_tokens_on(&self, gpu: &Gpu) -> Option<u32> {
        let is_small = self.sizes_on(gpu) == self.sizes[0];
        self.offline_tokens.map(|[small, large]| if is_small { small } else { large })
    }
}

impl Sizes {
    /// The same where a chunk has so many tokens and the largest captured batch so many sequences.
    pub const fn asked(self, tokens_max: u32, graph_max: u32) -> Self {
        Self { tokens_max, graph_max: [graph_max; 2], ..self }
    }
}

impl PromptGraphs {
    /// Most tokens of such an iteration, beside captured batches of so many sequences; 0 where none runs in a graph. `is_plain`: one worker computes
    /// prompts and answers on one tensor group, without drafts and adapters.
    pub fn tokens(self, model: &Model, batch_max: u32, is_plain: bool) -> u32 {
        match self {
            Self::None => 0,
            Self::Batches => batch_max,
            Self::All => u32::MAX,
            Self::Sglang => match model.latent {
                _ if !is_plain || model.index.is_some() => 0,
                Some(_) => 2048,
                None => u32::MAX,
            },
        }
    }
}

#[cfg(test)]
mod tests;
