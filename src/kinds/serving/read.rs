//! Scenarios of `kind = "serving"`: requests, an engine, a fleet and limits, a file per larger section.

mod capacity;
pub(crate) mod dynamics;
mod engine;
mod fleet;
mod operation;
mod policies;
pub(crate) mod requests;
pub(crate) mod scaling;

use std::path::Path;

use ::engine::Model;
use ::engine::cost::profile::Profile;
use hw::{Bytes, Cluster, Seconds};
use serve::assignment::Assignment;
use serve::batcher::Batcher;
use serve::metrics::Slo;
use serve::replica::Limits;
use serve::request::{Request, Requests};
use serve::router::RouterKind;
use serve::step_cost::ReplicaConfig;

use self::engine::EngineSection;

use crate::diagnostic::{Code, Finding, Source};
use crate::kinds::capacity::Question;
use crate::scenario::reader::{Reader, Section};
use crate::scenario::{Head, Overrides, cost, expect, model};
pub use dynamics::{ServingLink, ServingOutage};
pub use fleet::ServingGroup;
pub use operation::Operation;

pub(super) const SECTIONS: [&str; 10] =
    ["model", "cluster", "trace", "engine", "fleet", "slo", "policies", "cost", "expect", "capacity"];

/// One way of serving that a scenario compares.
#[derive(Clone, Debug)]
pub struct ServingChoice {
    /// Name in results.
    pub name: String,
    /// Batching policy.
    pub batcher: &'static dyn Batcher,
    /// Routing policy.
    pub router: &'static RouterKind,
    /// Limits of a replica but for its memory, see `Serving::limits`.
    pub limits: Limits,
    /// How the engine works besides.
    pub operation: Operation,
    /// Names of the groups that serve; empty where all do.
    pub groups: Vec<String>,
}

impl ServingChoice {
    /// Whether a group serves; one without replicas does not.
    fn serves(&self, group: &ServingGroup) -> bool {
        group.n_replicas > 0 && (self.groups.is_empty() || self.groups.contains(&group.name))
    }
}

/// A checked serving scenario.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Whose it is.
    pub head: Head,
    /// Architecture.
    pub model: Model,
    /// Machine; that of the first group where the scenario has none of its own.
    pub cluster: Cluster,
    /// What arrives.
    pub requests: Requests,
    /// Where the requests come from, in words.
    pub source: String,
    /// What `[engine]` says: what holds where groups and choices say nothing else.
    pub engine: EngineSection,
    /// Memory that is not the engine's, where a group says nothing else.
    pub reserved: Bytes,
    /// Replicas by group.
    pub groups: Vec<ServingGroup>,
    /// Shares that routers with a plan follow, for all groups.
    pub assignment: Assignment,
    /// Links between groups.
    pub links: Vec<ServingLink>,
    /// Replicas that are lost at known times.
    pub outages: Vec<ServingOutage>,
    /// Ways of serving, in order.
    pub choices: Vec<ServingChoice>,
    /// Limits of latency.
    pub slo: Slo,
    /// Requests that arrive before are served and not counted.
    pub warm_up: Seconds,
    /// Measured profile of the cluster's GPU; `None` for the datasheet roofline.
    pub profile: Option<Profile>,
    /// Share of the peak that matrix products hold under sustained load.
    pub sustained_flops_ratio: f64,
    /// Parameters that were fitted and not measured, as sentences.
    pub free_parameters: Vec<String>,
    /// What `skrull-sim capacity` is asked, where it is.
    pub capacity: Option<Question>,
}

impl Serving {
    /// Groups that serve under a choice.
    #[must_use]
    pub fn groups_of(&self, choice: &ServingChoice) -> Vec<&ServingGroup> {
        self.groups.iter().filter(|group| choice.serves(group)).collect()
    }

    /// Shares of the groups that serve under a choice.
    #[must_use]
    pub fn assignment_of(&self, choice: &ServingChoice) -> Assignment {
        let kept = |row: &Vec<f64>| {
            self.groups.iter().zip(row).filter(|(group, _)| choice.serves(group)).map(|(_, share)| *share).collect()
        };
        Assignment { shares: self.assignment.shares.iter().map(kept).collect(), ..self.assignment.clone() }
    }

    /// What the replicas of a group run under a choice.
    #[must_use]
    pub fn deployment_of<'s>(&'s self, choice: &'s ServingChoice, group: &'s ServingGroup) -> ReplicaConfig<'s> {
        let operation = &choice.operation;
        let tensor_degree = operation.tensor_degree.unwrap_or(group.tensor_degree);
        let us = |us: f64| Seconds::new(us / 1e6);
        ReplicaConfig {
            pipeline_degree: operation.pipeline_degree,
            expert_degree: operation.expert_degree,
            host_per_step: us(self.engine.host_us_per_step),
            host_per_sequence: us(self.engine.host_us_per_sequence),
            detokenize_per_sequence: us(self.engine.detokenize_us_per_sequence),
            engine_loop: operation.engine_loop,
            draft: operation.drafts.as_ref().and_then(|drafts| drafts.model.as_ref()),
            ..ReplicaConfig::new(&self.model, &group.cluster, tensor_degree)
        }
    }

    /// GPUs of a group: its replicas with the engine's own degrees.
    #[must_use]
    pub fn gpus_of(&self, group: &ServingGroup) -> u32 {
        group.n_replicas * self.engine.n_gpus(group.tensor_degree)
    }

    /// Replicas of a group under a choice; one with other degrees has as many as the same GPUs give.
    #[must_use]
    pub fn replicas_of(&self, choice: &ServingChoice, group: &ServingGroup) -> u32 {
        self.gpus_of(group) / self.deployment_of(choice, group).n_gpus()
    }

    /// Limits of a group's replicas under a choice; without blocks where the weights leave no room, which is found when the scenario is
    /// read.
    #[must_use]
    pub fn limits(&self, choice: &ServingChoice, group: &ServingGroup) -> Limits {
        let sequences_max = group.sequences_max.unwrap_or(choice.limits.sequences_max);
        let decode_tokens = sequences_max * choice.operation.tokens_per_sequence();
        let limits = Limits {
            sequences_max,
            // A group with more sequences than the engine has tokens gets as many tokens.
            tokens_max: group.tokens_max.unwrap_or(choice.limits.tokens_max).max(decode_tokens),
            ..choice.limits
        };
        engine::memory_of(self, choice, group).map_or(limits, |memory| Limits {
            kv_blocks: memory.kv_blocks,
            watermark_blocks: memory.watermark_blocks,
            preemption: memory.preemption,
            ..limits
        })
    }
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<Serving> {
    let head = Head::read(reader, &SECTIONS, source, overrides);
    let model = model::model(reader.section("model"), folder);
    let engine = engine::engine(reader.section("engine"));
    let fleet = fleet::fleet(reader.section("fleet"));
    let cluster = fleet::machine(reader, &fleet);
    let (slo, warm_up) = slo(reader.section("slo"));
    let requests = requests::requests(reader.section("trace"), folder, head.seed);
    let (choices, baseline) = policies::policies(reader.section("policies"), &engine, fleet.router);
    let gpu = cluster.as_ref().map(|(cluster, _)| cluster.gpu.name.as_str());
    let cost = cost::of_engine(reader.section("cost"), folder, gpu);
    let expectations = expect::read(reader.section("expect"));
    let names: Vec<&str> = choices.iter().map(|choice| choice.name.as_str()).collect();
    let asked = requests.as_ref().map(|(requests, _)| requests);
    let capacity = asked.and_then(|requests| capacity::capacity(reader.section("capacity"), &names, &slo, requests));
    let ((model, (cluster, reserved)), (requests, source)) = model.zip(cluster).zip(requests)?;
    let mut serving = Serving {
        head: Head { baseline, expectations, ..head },
        model,
        cluster,
        requests,
        source,
        free_parameters: engine.free_parameters(cost.sustained_flops_ratio, &choices),
        engine,
        reserved,
        groups: Vec::new(),
        assignment: Assignment::default(),
        links: Vec::new(),
        outages: Vec::new(),
        choices,
        slo,
        warm_up,
        profile: cost.profile.clone(),
        sustained_flops_ratio: cost.sustained_flops_ratio,
        capacity: None,
    };
    let before = reader.n_errors();
    let has_groups = fleet.has_groups();
    fleet::build(reader, &mut serving, fleet, &cost);
    serving.capacity = capacity.and_then(|asked| capacity::question(reader, asked, &serving, has_groups));
    if reader.n_errors() == before {
        operation::check(reader, &serving);
    }
    if reader.n_errors() == before {
        engine::memory(reader, &mut serving);
    }
    if reader.n_errors() == before {
        holds(reader, &serving);
    }
    Some(serving)
}

fn slo(mut section: Section<'_>) -> (Slo, Seconds) {
    let mut limit = |key| {
        let value = section.number(key, 0.0, 1e-6..=1e6);
        (value > 0.0).then(|| Seconds::new(value))
    };
    let slo = Slo { ttft: limit("ttft_s"), tpot: limit("tpot_s"), e2e: limit("e2e_s") };
    let warm_up = Seconds::new(section.number("warm_up_s", 0.0, 0.0..=1e6));
    section.finish();
    (slo, warm_up)
}

/// Requests that no replica could ever hold are named before the run.
fn holds(reader: &mut Reader<'_>, serving: &Serving) {
    for choice in &serving.choices {
        let of_rank = |group: &ServingGroup| {
            let limits = serving.limits(choice, group);
            // A request lies on one rank of data-parallel attention.
            Limits { kv_blocks: limits.kv_blocks / serving.deployment_of(choice, group).lanes().ranks, ..limits }
        };
        let limits: Vec<Limits> = serving.groups_of(choice).into_iter().map(of_rank).collect();
        let room = |limits: &Limits| u64::from(limits.kv_blocks) * u64::from(limits.block_tokens);
        let most = |limits: &Limits| u64::from(limits.context_max).min(room(limits) + 1);
        let Some(largest) = limits.iter().max_by_key(|limits| most(limits)) else { continue };
        let tokens = |request: &Request| u64::from(request.prompt) + u64::from(request.output);
        let n = serving.requests.list.iter().filter(|request| tokens(request) > most(largest)).count();
        if n == 0 {
            continue;
        }
        let what = format!(
            "{n} of {} requests are longer than a replica of `{}` can hold ({} tokens of context, {} tokens of memory)",
            serving.requests.len(),
            choice.name,
            largest.context_max,
            room(largest)
        );
        let help =
            "they are refused and meet no limit; more memory, a larger `engine.tp` or `engine.max_context` holds them";
        if n == serving.requests.len() {
            reader.find(Finding::error(Code::LongRequests, None, what).help("no request could run"));
        } else {
            reader.find(Finding::warning(Code::LongRequests, None, what).help(help));
        }
    }
}

/// Memory that a share of a device is.
fn blocks_of(bytes: Bytes, bytes_per_block: u64) -> u32 {
    u32::try_from(bytes.0 / bytes_per_block.max(1)).unwrap_or(u32::MAX)
}
