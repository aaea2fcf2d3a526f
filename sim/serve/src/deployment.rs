//! What a planner of serving decides and the request loop plays: which GPUs hold which layers, who reads prompts and who generates, what
//! lies between them, and which share of the requests goes where. The schema of `plan.json` of every planner of serving.
//!
//! A *replica* takes batches through its stages. A plain one has all layers of the model. One of a part of the layers is a station, as
//! Helix, Petals and SWARM place them: a request travels over several, and at each does the layers that are not done yet. Costs are not
//! here: they come from a cost model, a table or a law when the deployment is played. `check.rs` holds a deployment against the model
//! and the machines, `deployment/lower.rs` and `deployment/stations.rs`
//! make it what the loop plays. Units: GPUs, layers, tokens, bytes per second, seconds, dollars. Invariant: plain data, any value is legal here.

use std::num::NonZeroU32;

use hw::Bytes;
use serde::{Deserialize, Serialize};

mod lifted;
mod lower;
mod stations;

pub use lifted::{Lifted, of_engines};
pub use lower::{Unplayable, fleet};
pub use stations::{LayerTimes, Messages, STATION_BATCHER, stations};

use crate::replica::{CapacityPolicy, Gather, PromptRank, Role};

/// Schema of a deployment's file.
pub const SCHEMA: &str = "skrull-sim/deployment/1";

/// Replicas of one model, and the ways of requests over them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deployment {
    /// `SCHEMA`.
    pub schema: String,
    /// Name of the model.
    pub model: String,
    /// Layers of the model.
    pub n_layers: u32,
    /// GPUs that are there or are rented.
    pub machines: Vec<Machine>,
    /// Replicas; the positions name them in links and routes.
    pub replicas: Vec<Replica>,
    /// What lies between replicas, one way each; none where only the ports of replicas limit what moves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// Ways of requests with their shares; none where the router decides by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
}

/// Equal GPUs in equal nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Name, for people.
    pub name: String,
    /// Type of its GPUs.
    pub gpu: String,
    /// GPUs; a node has consecutive ones.
    pub n_gpus: u32,
    /// GPUs of a node: within one tensor groups may lie.
    pub gpus_per_node: u32,
    /// Memory of a GPU; `None` where what fits was measured and stands in `EngineOptions::kv_tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Memory of the host of a node; `None` where nobody said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory: Option<Bytes>,
    /// Dollars per GPU and hour, where it is rented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd_per_gpu_hour: Option<f64>,
    /// Region of the cloud, where it has a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Whether the provider takes it back when he likes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_spot: bool,
}

/// Consecutive positions, `first..end`: GPUs of a machine, or layers of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// First position.
    pub first: u32,
    /// One beyond the last position.
    pub end: u32,
}

impl Range {
    /// From `first` on, `n` of them.
    pub const fn new(first: u32, n: u32) -> Self {
        Self { first, end: first.saturating_add(n) }
    }

    /// How many they are.
    pub const fn n(self) -> u32 {
        self.end.saturating_sub(self.first)
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.n() == 0
    }
}

/// GPUs of one machine that hold some layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Position of the machine.
    pub machine: u32,
    /// GPUs of the first copy of the replica; those of the next copies follow.
    pub gpus: Range,
    /// GPUs that share every layer; where the stage has more, tensor groups side by side share the experts.
    pub tensor: u32,
    /// How many of the GPUs, the last ones, hold the experts alone.
    #[serde(default, skip_serializing_if = "is_none")]
    pub ffn_gpus: u32,
    /// Layers.
    pub layers: Range,
    /// What each of its GPUs has in the memory of its host, where some weights lie there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_host: Option<OnHost>,
}

/// Weights of a GPU in the memory of its host (`step_cost/host_weights.rs` says how they come to the device).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnHost {
    /// Bytes of weights there.
    pub weights: Bytes,
    /// Bytes on the device into which they are copied; none where kernels read them over the link.
    pub buffers: Bytes,
}

/// What batches pass through.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replica {
    /// Name in results.
    pub name: String,
    /// How many equal ones there are.
    pub copies: u32,
    /// What it does.
    pub role: Role,
    /// Stages in order.
    pub stages: Vec<Stage>,
    /// How it works.
    pub engine: EngineOptions,
}

impl Replica {
    /// Layers of all its stages.
    pub fn layers(&self) -> Range {
        let (first, last) = (self.stages.first(), self.stages.last());
        Range { first: first.map_or(0, |stage| stage.layers.first), end: last.map_or(0, |stage| stage.layers.end) }
    }

    /// GPUs of one copy.
    pub fn n_gpus(&self) -> u32 {
        self.stages.iter().map(|stage| stage.gpus.n()).sum()
    }

    /// GPUs of one copy on a machine: what the next copy's are moved on by.
    pub fn n_gpus_on(&self, machine: u32) -> u32 {
        self.stages.iter().filter(|stage| stage.machine == machine).map(|stage| stage.gpus.n()).sum()
    }
}

/// How a replica batches, and what it may hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineOptions {
    /// Batching policy by name.
    pub batcher: String,
    /// Sequences that run at once.
    pub sequences_max: u32,
    /// Tokens of a batch.
    pub tokens_max: u32,
    /// Prompt and output tokens of a request; longer ones are refused. `None` without limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_max: Option<u32>,
    /// Prompts of a station's batch at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts_max: Option<u32>,
    /// Cached tokens of the decoding requests of a station's batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_context_max: Option<u64>,
    /// Tokens of a block of the cache.
    pub block_tokens: u32,
    /// Tokens whose keys and values fit, in every layer that the replica holds.
    pub kv_tokens: u64,
    /// Blocks that admissions of whole prompts leave free.
    #[serde(default)]
    pub watermark_blocks: u32,
    /// Which blocks must be free for whoever is admitted.
    #[serde(default, skip_serializing_if = "takes_as_needed")]
    pub capacity_policy: CapacityPolicy,
    /// Whether prefixes that requests share are kept.
    pub prefix_cache: bool,
    /// Iterations that only decode between two looks for new requests.
    #[serde(default = "every", skip_serializing_if = "is_every")]
    pub recv_interval: NonZeroU32,
    /// How long prompts wait for others while sequences decode; `None` does not let them wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_wait: Option<Gather>,
    /// Which rank of data-parallel attention computes a prompt, on a replica that computes prompts for others.
    #[serde(default, skip_serializing_if = "is_even")]
    pub prompt_rank: PromptRank,
}

/// What moves from one replica to another: keys and values from prefill to decode, activations between parts of the layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Sender; `None` is the coordinator, where requests come and tokens go.
    pub from: Option<u32>,
    /// Receiver; `None` is the coordinator.
    pub to: Option<u32>,
    /// Bytes per second; `None` without limit.
    pub bytes_per_s: Option<f64>,
    /// Seconds before the first byte.
    pub latency_s: f64,
    /// Links with the same wire carry one transfer after another, as a stream of NCCL does; `None` shares its bytes per second fairly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<u32>,
    /// Bytes on the wire over bytes in memory: 0.25 where keys and values of 16 bits are packed to 4.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub wire_ratio: f64,
    /// Seconds of packing and unpacking per token, before the first byte.
    #[serde(default)]
    pub pack_s_per_token: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_none(n: &u32) -> bool {
    *n == 0
}

const fn every() -> NonZeroU32 {
    NonZeroU32::MIN
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_every(interval: &NonZeroU32) -> bool {
    *interval == every()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_even(rank: &PromptRank) -> bool {
    *rank == PromptRank::Even
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn takes_as_needed(policy: &CapacityPolicy) -> bool {
    *policy == CapacityPolicy::MaxUtilization
}

const fn one() -> f64 {
    1.0
}

#[expect(clippy::float_cmp, reason = "the default as it is written")]
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_one(ratio: &f64) -> bool {
    *ratio == 1.0
}

/// A way of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Type of requests; 0 where all are alike.
    #[serde(default)]
    pub class: u32,
    /// Replicas in order.
    pub replicas: Vec<u32>,
    /// Share of the requests of the type that go this way.
    pub share_ratio: f64,
}

impl Deployment {
    /// A deployment of a model on machines, without replicas.
    pub fn new(model: &str, n_layers: u32, machines: Vec<Machine>) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            model: model.to_owned(),
            n_layers,
            machines,
            replicas: Vec::new(),
            links: Vec::new(),
            routes: Vec::new(),
        }
    }

    /// Whether some replica has a part of the layers.
    pub fn has_stations(&self) -> bool {
        let whole = Range::new(0, self.n_layers);
        // One that works as a station is one, though it may hold all layers.
        let is_station = |replica: &Replica| replica.layers() != whole || replica.engine.batcher == STATION_BATCHER;
        self.replicas.iter().any(is_station)
    }

    /// The same stations with fewer decoding requests in a batch, and their cached tokens with them.
    pub fn limit_decodes(&mut self, most: u32) {
        for options in self.replicas.iter_mut().map(|replica| &mut replica.engine) {
            let before = options.sequences_max.max(1);
            options.sequences_max = before.min(most);
            if let Some(tokens) = &mut options.batch_context_max {
                *tokens = *tokens / u64::from(before) * u64::from(options.sequences_max);
            }
        }
    }

    /// The link from one to another, where there is one.
    pub fn link(&self, from: Option<u32>, to: Option<u32>) -> Option<&Link> {
        self.links.iter().find(|link| link.from == from && link.to == to)
    }
}
