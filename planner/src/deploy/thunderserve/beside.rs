//! What replicas run beside the model: who drafts tokens for it, and adapters.
//!
//! Sizes are those of engines (`serve::capacity`, `serve::step_cost::adapter_room`), times those of the roofline that plans count with, and the request loop
//! plays the same laws. A drafter lies on the last stage, where tokens are sampled, and runs while the other stages wait. It takes one pass over what is
//! verified, or over one token of each sequence, and one pass for every further draft (`serve::step_cost`, `drafts.rs`). Adapters lie on every stage with
//! its layers. Plans count the different ones of a batch by their mean and loads not at all; the loop plays both. Units: seconds, bytes, tokens.

use engine::model::Model;
use hw::{BytesPerSecond, Dtype, Gpu, Seconds, Tick, real};
use serve::adapters::{AdapterLimits, Popularity, Supply};
use serve::capacity;
use serve::drafter::{Drafts, OwnDrafters};
use serve::kv::tiers::{self, BlockBytes, N_TIERS, Store, Tier};
use serve::speculation::{DraftKind, Speculation};
use serve::step_cost::adapter_room::AdapterRoom;
use serve::step_cost::{DraftLaw, ReplicaConfig, StepTable};

use super::Task;
use super::group::{self, Stage};
use super::played::BLOCK_TOKENS;
use crate::deploy::roofline::{BATCH_MAX, LINK_REACHED, Layer, Pass, kernel_s};

/// Why stations draft nothing.
pub const STATIONS_DRAFT_NOTHING: &str = "a round of nodes with a part of the layers is planned and played with one token of each request: their batches, flows and \
     bounds do not verify several, and no node has room for who drafts, though engines can (vLLM drafts on the last stage)";
/// Why adapters of stations stay where they are.
pub const STATIONS_LOAD_NOTHING: &str = "nodes with a part of the layers load no adapter while they serve, since a request would wait for it at each node of its way: as \
     many `slots` as there are adapters";

/// Beside the model: nothing by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Beside {
    drafting: Option<Drafting>,
    adapting: Option<Adapting>,
}

/// How tokens are drafted.
#[derive(Clone, Debug, PartialEq)]
struct Drafting {
    speculation: Speculation,
    /// The model that does, where one does.
    drafter: Option<Drafter>,
}

/// A model that drafts.
#[derive(Clone, Debug, PartialEq)]
struct Drafter {
    reads_states: bool,
    n_layers: f64,
    /// Its mean layer, with what a pass reads of embedding and head.
    layer: Layer,
    /// Weights that nobody else has.
    weight_bytes: f64,
    /// Keys and values of a token.
    kv_bytes: f64,
}

/// Adapters that requests ask for, and room for them.
#[derive(Clone, Debug, PartialEq)]
struct Adapting {
    room: AdapterRoom,
    supply: Supply,
    /// Adapters that are asked for, and the share of the requests that ask for one.
    count: u32,
    share: f64,
    /// Different ones among so many requests on average.
    different: Vec<f64>,
}

impl Drafter {
    /// What drafts for a model on one GPU.
    fn of(drafts: &Drafts, model: &Model) -> Option<Self> {
        let drafters = OwnDrafters::of(model);
        let (drafter, kind) = drafts.by.drafting(&drafters)?;
        // Sizes hang on no figure of a GPU.
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 1);
        let config = ReplicaConfig { draft: Some((drafter, kind)), ..ReplicaConfig::new(model, &cluster, 1) };
        let own = real(capacity::draft_weight_bytes(&config));
        let kv_bytes = real(capacity::draft_kv_bytes_per_token(&config, 1));
        // The head over tokens is the model's, but for what has one of its own.
        let shared = if kind == DraftKind::Own { 2.0 * real(model.vocab * model.hidden) } else { 0.0 };
        let n_layers = real(drafter.n_layers);
        let layer = Layer::of_bytes(drafter, (own + shared) / n_layers, kv_bytes / n_layers);
        Some(Self { reads_states: kind.reads_states(), n_layers, layer, weight_bytes: own, kv_bytes })
    }

    /// Seconds of a pass but for cached keys.
    fn pass_s(&self, gpu: &Gpu, tp: u32, tokens: f64) -> f64 {
        self.n_layers * self.layer.seconds(gpu, f64::from(tp), Pass { tokens, attended: 0.0, read: 0.0 })
    }

    /// Seconds per cached key of a pass.
    fn key_s(&self, gpu: &Gpu, tp: u32) -> f64 {
        self.n_layers * self.layer.attention_s(gpu, f64::from(tp)).1
    }
}

impl Beside {
    /// Drafts for a model, and adapters that requests ask for and that replicas have room for.
    pub fn new(model: &Model, drafts: Option<&Drafts>, adapters: Option<(AdapterRoom, Supply, Popularity)>) -> Self {
        let drafting = drafts.map(|of| Drafting { speculation: of.speculation, drafter: Drafter::of(of, model) });
        let adapting = adapters.map(|(room, supply, asked)| Adapting {
            room,
            supply,
            count: asked.count,
            share: 1.0 - asked.none_ratio,
            different: asked.different(crate::deploy::whole(BATCH_MAX)),
        });
        Self { drafting, adapting }
    }

    /// Whether tokens are drafted.
    pub const fn drafts(&self) -> bool {
        self.drafting.is_some()
    }

    /// Whether there are slots for adapters.
    pub const fn adapts(&self) -> bool {
        self.adapting.is_some()
    }

    /// Tokens of a sequence in an iteration.
    pub(super) fn n_verified(&self) -> u32 {
        self.drafting.as_ref().map_or(1, |drafting| drafting.speculation.n_verified())
    }

    /// The same as a number.
    pub(super) fn verified(&self) -> f64 {
        f64::from(self.n_verified())
    }

    /// Tokens that an iteration gives a sequence on average.
    pub(super) fn given(&self) -> f64 {
        self.drafting.as_ref().map_or(1.0, |drafting| drafting.speculation.tokens_per_verification())
    }

    fn drafter(&self) -> Option<&Drafter> {
        self.drafting.as_ref().and_then(|drafting| drafting.drafter.as_ref())
    }

    /// Weights of who drafts, and keys and values of a token.
    pub(super) fn drafter_bytes(&self) -> (f64, f64) {
        self.drafter().map_or((0.0, 0.0), |drafter| (drafter.weight_bytes, drafter.kv_bytes))
    }

    /// Seconds of drafting in an iteration of so many sequences with so many keys each, on the GPUs of a stage.
    pub(super) fn drafting_s(&self, gpu: &Gpu, tp: u32, sequences: f64, context: f64) -> f64 {
        let Some(Drafting { speculation, drafter }) = &self.drafting else { return 0.0 };
        let n_drafts = f64::from(speculation.n_drafts);
        let fixed = speculation.per_draft.get() * n_drafts;
        let Some(drafter) = drafter else { return fixed };
        let first = if drafter.reads_states { sequences * f64::from(speculation.n_verified()) } else { sequences };
        let later = sequences * f64::from(speculation.tree.map_or(1, |tree| tree.branches));
        let keys_s = n_drafts * drafter.key_s(gpu, tp) * sequences * context;
        fixed + drafter.pass_s(gpu, tp, first) + (n_drafts - 1.0) * drafter.pass_s(gpu, tp, later) + keys_s
    }

    /// Bytes of slots for adapters in a layer of a model, on all of so many tensor-parallel GPUs.
    pub fn slot_bytes(&self, model: &Model, tp: u32) -> f64 {
        self.adapting.as_ref().map_or(0.0, |adapting| {
            let of_gpu = adapting.room.bytes(model, tp, Dtype::Bf16).as_f64();
            of_gpu * f64::from(tp) / real(model.n_layers)
        })
    }

    /// Seconds of adapters in a layer of a model for so many tokens of so many requests.
    pub fn adapting_s(&self, model: &Model, (gpu, tp): (&Gpu, u32), tokens: f64, requests: f64) -> f64 {
        let Some(Adapting { room, share, different, .. }) = &self.adapting else { return 0.0 };
        let most = different.last().copied().unwrap_or(0.0);
        let n = different.get(hw::whole(requests.ceil()) as usize).copied().unwrap_or(most);
        let n = hw::whole(n.ceil()).clamp(1, room.slots.into());
        adapted_s(model, (gpu, tp), *room, [hw::whole((tokens * share).ceil()), n])
    }

    /// What nodes with a part of the layers do not do, in a sentence.
    pub fn undone_by_stations(&self) -> Option<&'static str> {
        let loads = self.adapting.as_ref().is_some_and(|adapting| adapting.count > adapting.room.slots);
        match &self.drafting {
            Some(_) => Some(STATIONS_DRAFT_NOTHING),
            None if loads => Some(STATIONS_LOAD_NOTHING),
            None => None,
        }
    }

    /// Seconds in which who drafts reads so many tokens of a prompt.
    pub(super) fn draft_reading_s(&self, gpu: &Gpu, tp: u32, tokens: f64) -> f64 {
        self.drafter().map_or(0.0, |drafter| drafter.pass_s(gpu, tp, tokens))
    }
}

/// Seconds of adapters in a layer for so many tokens of so many different ones.
fn adapted_s(model: &Model, (gpu, tp): (&Gpu, u32), room: AdapterRoom, load: [u64; 2]) -> f64 {
    if load[0] == 0 {
        return 0.0;
    }
    let kernels = room.kernels_of_layer(model, tp, load, Dtype::Bf16);
    kernels.into_iter().map(|(bytes, flops)| kernel_s(gpu, bytes, flops)).sum()
}

impl Task {
    /// A table of stages with what they run beside their layers. All stages of a round wait for the slowest one's adapters.
    pub(super) fn beside_in(&self, table: StepTable, stages: &[Stage]) -> StepTable {
        let Beside { drafting, adapting } = &self.beside;
        let table = match adapting {
            None => table,
            Some(Adapting { room, .. }) => {
                let of = |stage: &Stage, load| real(stage.layers) * adapted_s(&self.model, self.on(stage), *room, load);
                let slowest = |load| stages.iter().map(|stage| of(stage, load)).fold(0.0, f64::max);
                let n_stages = real(stages.len() as u64);
                table.adapted_by(room.slots, &|tokens, n| Seconds::new(n_stages * slowest([tokens, n])))
            }
        };
        let Some(Drafting { speculation, drafter }) = drafting else { return table };
        let table = match (drafter, stages.last()) {
            (Some(drafter), Some(last)) => {
                let (gpu, tp) = self.on(last);
                table.drafted_by(&DraftLaw {
                    tokens: &|tokens| Seconds::new(drafter.pass_s(gpu, tp, real(tokens))),
                    per_key: Seconds::new(drafter.key_s(gpu, tp)),
                    reads_states: drafter.reads_states,
                })
            }
            _ => table,
        };
        table.speculating(speculation)
    }

    /// GPUs of a stage.
    pub(super) fn on(&self, stage: &Stage) -> (&Gpu, u32) {
        (self.gpu(stage.machine), stage.tp)
    }

    /// Bytes per second from the host to a GPU of a stage.
    fn host_link(&self, stage: &Stage) -> BytesPerSecond {
        self.gpu(stage.machine).host_bandwidth * LINK_REACHED
    }

    /// Room for adapters on a replica, and how long its slowest stage takes to load one.
    pub(super) fn adapter_limits(&self, stages: &[Stage]) -> Option<AdapterLimits> {
        let Adapting { room, supply, .. } = self.beside.adapting.as_ref()?;
        let rate = |gb_per_s: f64| BytesPerSecond::new(gb_per_s * 1e9);
        let bytes = |tp: u32| room.bytes_per_rank(&self.model, tp, Dtype::Bf16).as_f64();
        let of_stage = |stage: &Stage| {
            let part = real(stage.layers) / real(self.model.n_layers);
            part * bytes(stage.tp) / supply.host_gb_per_s.map_or_else(|| self.host_link(stage), rate).get()
        };
        let host_s = stages.iter().map(of_stage).fold(0.0, f64::max);
        let disk_s = supply.disk_gb_per_s.map_or(0.0, |gb_per_s| bytes(1) / rate(gb_per_s).get());
        let [host_ticks, disk_ticks] = [host_s, disk_s].map(|seconds| Tick::from_seconds(Seconds::new(seconds)));
        Some(AdapterLimits { slots: room.slots, host_slots: supply.host_slots, host_ticks, disk_ticks })
    }

    /// Bytes of keys and values of a token in all layers, a drafter's included.
    pub(super) fn token_bytes(&self) -> f64 {
        4.0 * real(self.model.n_layers * self.model.kv_width()) + self.beside.drafter_bytes().1
    }

    /// Where prefixes go that leave the GPUs of a replica; the GPU with the most of a block decides how long it takes to come back.
    pub(super) fn tiers(&self, stores: &[Store; N_TIERS], stages: &[Stage]) -> [Tier; N_TIERS] {
        let block = f64::from(BLOCK_TOKENS);
        let of_gpu = |stage: &Stage| {
            let layers = real(stage.layers) * group::kv_layer_bytes(self);
            hw::whole(block * layers / f64::from(stage.tp))
        };
        let most = stages.iter().map(of_gpu).max().unwrap_or(0);
        let link =
            stages.iter().map(|stage| self.host_link(stage)).reduce(|a, b| if b.get() < a.get() { b } else { a });
        let of_replica = hw::whole(block * self.token_bytes());
        tiers::of(stores, link.unwrap_or(BytesPerSecond::new(1.0)), BlockBytes { of_gpu: most, of_replica })
    }
}
