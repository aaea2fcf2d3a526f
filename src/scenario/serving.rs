//! Scenarios of `kind = "serving"`: requests, an engine, a fleet and limits, a file per larger section.

mod capacity;
mod engine;
mod policies;
mod requests;

use std::path::Path;

use hw::{Bytes, Cluster, Dtype, Seconds};
use sim::Model;
use sim::cost::profile::Profile;
use sim::serving::batcher::Batcher;
use sim::serving::metrics::Slo;
use sim::serving::replica::Limits;
use sim::serving::request::Requests;
use sim::serving::router::RouterKind;
use sim::serving::step_cost::Deployment;

use super::expect::{self, Expectation};
use super::reader::{Reader, Section};
use super::{Overrides, cluster, cost, model};
use crate::diagnostic::{Finding, Source};
use crate::jobs::capacity::Question;

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
    /// Limits of every replica.
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
    /// Machine.
    pub cluster: Cluster,
    /// What arrives.
    pub requests: Requests,
    /// Where the requests come from, in words.
    pub source: String,
    /// GPUs of a replica.
    pub tensor_degree: u32,
    /// Replicas.
    pub n_replicas: u32,
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
    /// Price of a GPU hour, where given.
    pub usd_per_gpu_hour: Option<f64>,
    /// Measured profile; `None` for the datasheet roofline.
    pub profile: Option<Profile>,
    /// Share of the peak that matrix products hold under sustained load.
    pub sustained_flops_ratio: f64,
    /// Parameters that were fitted and not measured, as sentences.
    pub free_parameters: Vec<String>,
    /// What `skrull-sim capacity` is asked, where it is.
    pub capacity: Option<Question>,
    /// Golden figures.
    pub expectations: Vec<Expectation>,
}

impl Serving {
    /// What every replica runs.
    #[must_use]
    pub fn deployment(&self) -> Deployment<'_> {
        Deployment {
            model: &self.model,
            cluster: &self.cluster,
            tensor_degree: self.tensor_degree,
            dtype: Dtype::Bf16,
            host_per_step: self.host_per_step,
            host_per_sequence: self.host_per_sequence,
        }
    }
}

/// Replicas and the router.
struct Fleet {
    /// 0 takes all GPUs.
    n_replicas: u64,
    router: &'static RouterKind,
    usd_per_gpu_hour: Option<f64>,
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
    let cluster = cluster::cluster(reader.section("cluster"));
    let engine = engine::engine(reader.section("engine"));
    let fleet = fleet(reader.section("fleet"));
    let (slo, warm_up) = slo(reader.section("slo"));
    let requests = requests::requests(reader.section("trace"), folder, seed);
    let (choices, baseline) = policies::policies(reader.section("policies"), &engine, fleet.router);
    let gpu = cluster.as_ref().map(|(cluster, _)| cluster.gpu.name.as_str());
    let cost = cost::cost(reader.section("cost"), folder, gpu);
    let expectations = expect::read(reader.section("expect"));
    let names: Vec<&str> = choices.iter().map(|choice| choice.name.as_str()).collect();
    let asked = requests.as_ref().map(|(requests, _)| requests);
    let capacity = asked.and_then(|requests| capacity::capacity(reader.section("capacity"), &names, &slo, requests));
    let ((model, (cluster, reserved)), (requests, source)) = model.zip(cluster).zip(requests)?;
    let mut serving = Serving {
        name,
        seed,
        model,
        cluster,
        requests,
        source,
        tensor_degree: engine.tensor_degree,
        n_replicas: 0,
        host_per_step: Seconds::new(engine.host_us_per_step / 1e6),
        host_per_sequence: Seconds::new(engine.host_us_per_sequence / 1e6),
        choices,
        baseline,
        slo,
        warm_up,
        usd_per_gpu_hour: fleet.usd_per_gpu_hour,
        profile: cost.profile,
        sustained_flops_ratio: cost.sustained_flops_ratio,
        free_parameters: engine.free_parameters(cost.sustained_flops_ratio),
        capacity,
        expectations,
    };
    let before = reader.n_errors();
    replicas(reader, &mut serving, fleet.n_replicas);
    if reader.n_errors() == before {
        engine::memory(reader, &mut serving, &engine, reserved);
    }
    if reader.n_errors() == before {
        holds(reader, &serving);
    }
    Some(serving)
}

fn fleet(mut section: Section<'_>) -> Fleet {
    let n_replicas = section.count("replicas", Some(0), 1..=100_000).0;
    let router = policies::router(&mut section, "router").unwrap_or(&sim::serving::router::ROUTERS[0]);
    let usd = section.number("usd_per_gpu_hour", 0.0, 0.0..=1e6);
    section.finish();
    Fleet { n_replicas, router, usd_per_gpu_hour: (usd > 0.0).then_some(usd) }
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

/// Replicas fit the cluster, and a tensor group is a whole part of the heads.
fn replicas(reader: &mut Reader<'_>, serving: &mut Serving, wanted: u64) {
    let (tp, n_gpus) = (u64::from(serving.tensor_degree), u64::from(serving.cluster.n_gpus()));
    let heads = serving.model.n_heads;
    if !heads.is_multiple_of(tp) {
        let what =
            format!("`engine.tp` = {tp} does not divide the {heads} attention heads of `{}`", serving.model.name);
        reader.find(Finding::error("S031", None, what).help("write a power of two up to the GPUs of a node"));
    }
    let n_replicas = if wanted == 0 { n_gpus / tp } else { wanted };
    if n_replicas * tp > n_gpus || n_replicas == 0 {
        let what = format!("{} replicas of {tp} GPUs, the cluster has {n_gpus} GPUs", n_replicas.max(1));
        reader.find(
            Finding::error("S040", None, what).help(format!("`fleet.replicas = {}` would use them all", n_gpus / tp)),
        );
    }
    serving.n_replicas = u32::try_from(n_replicas).expect("at most 100,000 or the GPUs");
}

/// Requests that no replica could ever hold are named before the run.
fn holds(reader: &mut Reader<'_>, serving: &Serving) {
    for choice in &serving.choices {
        let limits = &choice.limits;
        let too_long = |request: &&sim::serving::request::Request| {
            let tokens = u64::from(request.prompt) + u64::from(request.output);
            let room = u64::from(limits.kv_blocks) * u64::from(limits.block_tokens);
            tokens > u64::from(limits.context_max).min(room + 1)
        };
        let n = serving.requests.list.iter().filter(too_long).count();
        if n == 0 {
            continue;
        }
        let room = u64::from(limits.kv_blocks) * u64::from(limits.block_tokens);
        let what = format!(
            "{n} of {} requests are longer than a replica of `{}` can hold ({} tokens of context, {room} tokens of memory)",
            serving.requests.len(),
            choice.name,
            limits.context_max
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
