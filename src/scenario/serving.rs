//! Scenarios of `kind = "serving"`: requests, an engine, a fleet and limits, a file per larger section.

mod engine;
mod fleet;
mod policies;
mod requests;

use std::path::Path;

use hw::{Bytes, Cluster, Seconds};
use sim::Model;
use sim::cost::profile::Profile;
use sim::serving::assignment::Assignment;
use sim::serving::batcher::Batcher;
use sim::serving::metrics::Slo;
use sim::serving::replica::Limits;
use sim::serving::request::{Request, Requests};
use sim::serving::router::RouterKind;
use sim::serving::step_cost::Deployment;

use super::expect::{self, Expectation};
use super::reader::{Reader, Section};
use super::{Overrides, cost, model};
use crate::diagnostic::{Finding, Source};
pub use fleet::ServingGroup;

pub(super) const SECTIONS: [&str; 9] =
    ["model", "cluster", "trace", "engine", "fleet", "slo", "policies", "cost", "expect"];

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
}

/// A checked serving scenario.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Name.
    pub name: String,
    /// Seed of every random choice.
    pub seed: u64,
    /// Architecture.
    pub model: Model,
    /// Machine; that of the first group where the scenario has none of its own.
    pub cluster: Cluster,
    /// What arrives.
    pub requests: Requests,
    /// Where the requests come from, in words.
    pub source: String,
    /// GPUs of a replica, where its group says nothing else.
    pub tensor_degree: u32,
    /// Replicas by group.
    pub groups: Vec<ServingGroup>,
    /// Shares that routers with a plan follow.
    pub assignment: Assignment,
    /// Host time per iteration: a free parameter.
    pub host_per_step: Seconds,
    /// Host time per sequence of an iteration: a free parameter.
    pub host_per_sequence: Seconds,
    /// Ways of serving, in order.
    pub choices: Vec<ServingChoice>,
    /// The one that the others are compared with.
    pub baseline: String,
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
    /// Golden figures.
    pub expectations: Vec<Expectation>,
}

impl Serving {
    /// What a replica runs on the scenario's own cluster.
    #[must_use]
    pub fn deployment(&self) -> Deployment<'_> {
        Deployment {
            host_per_step: self.host_per_step,
            host_per_sequence: self.host_per_sequence,
            ..Deployment::new(&self.model, &self.cluster, self.tensor_degree)
        }
    }

    /// What the replicas of a group run.
    #[must_use]
    pub fn deployment_of<'s>(&'s self, group: &'s ServingGroup) -> Deployment<'s> {
        Deployment { cluster: &group.cluster, tensor_degree: group.tensor_degree, ..self.deployment() }
    }

    /// Limits of a group's replicas under a choice.
    #[must_use]
    pub fn limits(&self, choice: &ServingChoice, group: &ServingGroup) -> Limits {
        let sequences_max = group.sequences_max.unwrap_or(choice.limits.sequences_max);
        Limits {
            sequences_max,
            // A group with more sequences than the engine has tokens gets as many tokens.
            tokens_max: group.tokens_max.unwrap_or(choice.limits.tokens_max).max(sequences_max),
            kv_blocks: group.kv_blocks,
            watermark_blocks: group.watermark_blocks,
            preemption: group.preemption,
            ..choice.limits
        }
    }
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<Serving> {
    let mut top = reader.top(&SECTIONS);
    let name = super::sections::name(&mut top, source);
    top.word("kind", 0, &super::kinds());
    let seed = top.count("seed", Some(0), 0..=u64::MAX >> 1).0;
    top.finish();
    let seed = overrides.seed.unwrap_or(seed);
    let model = model::model(reader.section("model"), folder);
    let engine = engine::engine(reader.section("engine"));
    let fleet = fleet::fleet(reader.section("fleet"));
    let cluster = fleet::machine(reader, &fleet);
    let (slo, warm_up) = slo(reader.section("slo"));
    let requests = requests::requests(reader.section("trace"), folder, seed);
    let (choices, baseline) = policies::policies(reader.section("policies"), &engine, fleet.router);
    let gpu = cluster.as_ref().map(|(cluster, _)| cluster.gpu.name.as_str());
    let cost = cost::cost(reader.section("cost"), folder, gpu);
    let expectations = expect::read(reader.section("expect"));
    let ((model, (cluster, reserved)), (requests, source)) = model.zip(cluster).zip(requests)?;
    let mut serving = Serving {
        name,
        seed,
        model,
        cluster,
        requests,
        source,
        tensor_degree: engine.tensor_degree,
        groups: Vec::new(),
        assignment: Assignment::default(),
        host_per_step: Seconds::new(engine.host_us_per_step / 1e6),
        host_per_sequence: Seconds::new(engine.host_us_per_sequence / 1e6),
        choices,
        baseline,
        slo,
        warm_up,
        profile: cost.profile.clone(),
        sustained_flops_ratio: cost.sustained_flops_ratio,
        free_parameters: engine.free_parameters(cost.sustained_flops_ratio),
        expectations,
    };
    let before = reader.n_errors();
    fleet::build(reader, &mut serving, &fleet, &cost);
    if reader.n_errors() == before {
        engine::memory(reader, &mut serving, &engine, reserved);
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
        let limits: Vec<Limits> = serving.groups.iter().map(|group| serving.limits(choice, group)).collect();
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
            reader.find(Finding::error("S097", None, what).help("no request could run"));
        } else {
            reader.find(Finding::warning("S097", None, what).help(help));
        }
    }
}

/// Memory that a share of a device is.
fn blocks_of(bytes: Bytes, bytes_per_block: u64) -> u32 {
    u32::try_from(bytes.0 / bytes_per_block.max(1)).unwrap_or(u32::MAX)
}
