//! Scenarios of `kind = "serving"`: requests, an engine, a fleet and limits, a file per larger section.

mod activations;
pub mod adapters;
mod best;
mod bounded;
mod capacity;
mod clients;
mod costs;
mod dataset;
pub(crate) mod degrees;
mod deployed;
pub(crate) mod drafts;
pub mod dynamics;
mod efforts;
pub(crate) mod engine;
mod experts;
mod ffn;
mod fleet;
mod groups;
mod holds;
mod host_weights;
mod images;
mod kernels;
pub mod kv;
mod listed;
mod long;
pub mod operation;
pub mod placed;
pub mod played;
mod policies;
pub mod published;
pub mod requests;
pub mod scaling;
mod schedule;
pub mod settings;
mod silent;
pub mod start;
mod streams;
mod users;
mod way;
mod whole_prompts;

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::path::Path;

use ::engine::Model;
use ::engine::cost::profile::Profile;
use ::engine::verdict::Refused;
use hw::{Bytes, Cluster, Seconds};
use serve::assignment::Assignment;
use serve::batcher::Batcher;
use serve::drafter::OwnDrafters;
use serve::fleet::dynamics::Failures;
use serve::metrics::Slo;
use serve::replica::{Limits, Role};
use serve::request::Requests;
use serve::router::RouterKind;
use serve::step_cost::FfnSide;

use self::engine::{EngineSection, On};

use crate::cluster::Tuning;
use crate::cost::Cost;
use crate::{Head, Overrides, expect};
pub use adapters::AdapterChoice;
use best::Usual;
pub use best::{Aim, Best, Candidate};
use capacity::Capacity;
pub use costs::CostLaw;
use costs::ServingCost;
pub use dynamics::{ServingLink, ServingOutage};
use fleet::FleetSection;
use input::diagnostic::Source;
use input::reader::Reader;
pub use operation::Operation;
pub use requests::Stream;
use requests::{Asked, With};
use scaling::ServingScaling;
use silent::Places;

pub(super) const SECTIONS: [&str; 12] =
    ["model", "cluster", "trace", "engine", "kv", "fleet", "slo", "policies", "cost", "expect", "capacity", "tune"];

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
    /// Tokens of an iteration before its longest prompt raises them.
    pub tokens_asked: u32,
    /// Tokens to which iterations are raised that hold whole prompts; 0 where they are not.
    pub tokens_raised: u32,
    /// Whether its sequences and its tokens are the engine's own, which every group takes of its GPU.
    pub is_usual: [bool; 2],
    /// API servers of a replica, where somebody wrote them; else those of a group's degrees, see `Serving::frontend_of`.
    pub servers: Option<NonZeroU32>,
    /// How the engine works besides.
    pub operation: Operation,
    /// On what terms its replicas lend each other memory.
    pub kv: kv::KvTerms,
    /// Names of the groups that serve; empty where all do.
    pub groups: Vec<String>,
    /// Names of the streams that are served; empty where all are.
    pub streams: Vec<String>,
    /// Replicas of the only group, where they are not as many as its GPUs give.
    pub replicas: Option<u32>,
    /// How many of them compute prompts for the others, which decode; 0 where each does both.
    pub prefill_replicas: u32,
    /// GPUs that share every layer where prompts are computed for others, where they are not as many as elsewhere.
    pub prefill_tensor_degree: Option<u32>,
    /// Requests that are held in flight, where they are not as many as the trace says.
    pub concurrency: Option<NonZeroU32>,
    /// What was listed of a choice that is one of several to choose among; `None` for any other.
    pub candidate: Option<Candidate>,
    /// Why it cannot be served, where that was found when the scenario was read: it does not fit memory, or is one of several and does not fit the rest.
    pub refused: Option<Refused>,
}

impl ServingChoice {
    /// Whether it can be served.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn sound(&self) -> Result<(), Refused> {
        self.refused.clone().map_or(Ok(()), Err)
    }

    /// Whether it is a batching policy under a name of its own, which may have keys of its own.
    fn is_variant(&self) -> bool {
        self.candidate.is_none() && self.name != self.batcher.name()
    }

    /// Whether its model is served, by itself or by others beside it: one of several that cannot be is not tried.
    pub(super) fn is_tried(&self) -> bool {
        self.candidate.is_none() || self.refused.is_none()
    }

    /// What it has of figures that nobody measured, as sentences.
    pub(super) fn free_parameters(&self) -> Vec<String> {
        self.operation.free_parameters(self.shown_name())
    }

    /// Its name, or that of what is chosen where it is one of several.
    pub(super) fn shown_name(&self) -> &str {
        self.candidate.as_ref().map_or(&self.name, |candidate| &candidate.of)
    }

    /// GPUs that share every layer in replicas of a group.
    pub fn tensor_degree(&self, group: &ServingGroup) -> u32 {
        let of_prompts =
            self.prefill_tensor_degree.filter(|_| self.prefill_replicas > 0 && group.role == Role::Prefill);
        of_prompts.or(self.operation.tensor_degree).unwrap_or(group.tensor_degree)
    }

    /// Tokens of the longest sequence that its replicas take; any where the engine's limit is not known yet.
    pub(super) fn context_max(&self) -> u64 {
        if self.limits.context_max == 0 { u64::MAX } else { self.limits.context_max.into() }
    }

    /// Whether a stream is served.
    pub fn takes(&self, stream: &Stream) -> bool {
        self.streams.is_empty() || self.streams.contains(&stream.name)
    }

    /// Whether a group serves; one without replicas does not.
    pub(super) fn serves(&self, group: &ServingGroup) -> bool {
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
    /// Tokens of a sequence in the middle of its answer, on average over them.
    pub sequence_tokens: u64,
    /// The same requests drawn with the seeds that follow.
    pub draws: Vec<Requests>,
    /// Streams of requests.
    pub streams: Vec<Stream>,
    /// Where the requests come from, in words.
    pub source: String,
    /// From so many prompt tokens on a request counts as long, where some are made long.
    pub long_from: Option<u32>,
    /// What `[kv]` says.
    pub kv: kv::KvTerms,
    /// What `[engine]` says: what holds where groups and choices say nothing else.
    pub engine: EngineSection,
    /// Memory that is not the engine's, where a group says nothing else.
    pub reserved: Bytes,
    /// Replicas by group.
    pub groups: Vec<ServingGroup>,
    /// The only group of a fleet twice, as replicas that compute prompts and as those that decode; for choices that share its replicas so.
    pub roles: Vec<ServingGroup>,
    /// Shares that routers with a plan follow, for all groups.
    pub assignment: Assignment,
    /// Links between groups.
    pub links: Vec<ServingLink>,
    /// Replicas that are lost at known times.
    pub outages: Vec<ServingOutage>,
    /// Ways of serving, in order, and those that the best one is chosen among.
    pub choices: Vec<ServingChoice>,
    /// What is chosen among several ways.
    pub best: Vec<Best>,
    /// What `skrull-sim tune` chooses among, where `[tune]` is there.
    pub tune: Option<Best>,
    /// Names of what is compared, in order.
    pub names: Vec<String>,
    /// Limits of latency.
    pub slo: Slo,
    /// Requests that arrive before are served and not counted.
    pub warm_up: Seconds,
    /// Measured profile of the cluster's GPU; `None` for the datasheet roofline.
    pub profile: Option<Profile>,
    /// Share of the peak that matrix products hold under sustained load.
    pub sustained_flops_ratio: f64,
    /// Share of the peak that attention of prompts was calibrated to reach.
    pub attention_flops_ratio: Option<f64>,
    /// Where times come from.
    pub law: CostLaw,
    /// Parameters that were fitted and not measured, as sentences.
    pub free_parameters: Vec<String>,
    /// What `skrull-sim capacity` is asked, where it is.
    pub capacity: Option<Capacity>,
    /// What its fleet was made of.
    given: Given,
}

/// Equal replicas of a checked scenario.
#[derive(Clone, Debug)]
pub struct ServingGroup {
    /// Name in results.
    pub name: String,
    /// Architecture.
    pub model: Model,
    /// What drafts for it.
    pub drafters: std::sync::Arc<OwnDrafters>,
    /// Position of its model among those of all groups.
    pub model_index: u32,
    /// Machine.
    pub cluster: Cluster,
    /// Measured profile of its GPU; `None` for the datasheet roofline.
    pub profile: Option<Profile>,
    /// GPUs that share every layer.
    pub tensor_degree: u32,
    /// GPUs that hold the experts alone, where it has some of its own.
    pub ffn: Option<FfnSide>,
    /// Replicas.
    pub n_replicas: u32,
    /// Price of a GPU hour, where given.
    pub usd_per_gpu_hour: Option<f64>,
    /// Sequences that run at once, where they differ from the engine's.
    pub sequences_max: Option<u32>,
    /// Tokens of an iteration, where they differ from the engine's.
    pub tokens_max: Option<u32>,
    /// Iterations between two looks for requests, where they differ from the engine's.
    pub recv_interval: Option<NonZeroU32>,
    /// Memory that is not the engine's, where it differs from the cluster's.
    pub reserved: Option<Bytes>,
    /// Blocks of device memory; 0 where they follow from it.
    pub kv_blocks: u32,
    /// What its replicas do.
    pub role: Role,
    /// Bytes per second that one GPU of a replica sends, and as many that it receives, where that is written.
    pub port_bytes_per_s: Option<f64>,
    /// How many replicas run as load changes; `n_replicas` is then the most.
    pub scaling: Option<ServingScaling>,
    /// How replicas fail.
    pub failures: Option<Failures>,
    /// Whether its replicas lend memory, where any do.
    pub lends: bool,
    /// Whether its replicas borrow memory, where any do.
    pub borrows: bool,
}

/// Sections that a fleet is made of, for other fleets of the same scenario.
#[derive(Clone, Debug)]
struct Given {
    fleet: FleetSection,
    cost: Cost,
    tuning: Option<Tuning>,
    /// Whether requests of measured runs are played in the place of its own.
    measured: bool,
    /// Whether `[capacity]` lays other numbers of replicas and nodes over it.
    is_varied: bool,
}

impl Serving {
    /// Whether times were stated, or calibrated on runs of the same engine: nothing else than these is left open then.
    pub fn times_are_known(&self) -> bool {
        let of_groups = self.groups.iter().chain(&self.roles).map(|group| &group.profile);
        let mut profiles = of_groups.chain([&self.profile]).flatten();
        matches!(self.law, CostLaw::Stages(_)) || profiles.any(|profile| profile.calibrated.is_some())
    }

    /// Whether sizes beyond the measured ones are an error; `None` where no operation is timed.
    pub fn is_hull_strict(&self) -> Option<bool> {
        matches!(self.law, CostLaw::Operations).then_some(self.given.cost.strict_hull)
    }

    /// The scenario with its n-th other draw of the requests, and the seed that gave it.
    pub fn drawn(&self, n: usize) -> Self {
        let seed = self.head.seed.wrapping_add(1 + n as u64);
        let head = Head { seed, ..self.head.clone() };
        let reseeded = |groups: &[ServingGroup]| groups.iter().map(|group| group.reseeded(seed)).collect();
        let (groups, roles) = (reseeded(&self.groups), reseeded(&self.roles));
        Self { head, requests: self.draws[n].clone(), draws: Vec::new(), groups, roles, ..self.clone() }
    }

    /// Requests that a choice serves.
    pub fn requests_of(&self, choice: &ServingChoice) -> Cow<'_, Requests> {
        if choice.streams.is_empty() {
            return Cow::Borrowed(&self.requests);
        }
        Cow::Owned(self.requests.of_streams(&|stream| choice.takes(&self.streams[stream as usize])))
    }

    /// Ways that are compared by themselves.
    pub fn plain(&self) -> impl Iterator<Item = &ServingChoice> {
        self.choices.iter().filter(|choice| choice.candidate.is_none())
    }

    /// Those of them whose replicas hold a request.
    pub fn fitting(&self) -> impl Iterator<Item = &ServingChoice> {
        self.plain().filter(|choice| choice.refused.is_none())
    }

    /// Ways that the best one is chosen among.
    pub fn ways_of<'s>(&'s self, best: &'s Best) -> impl Iterator<Item = &'s ServingChoice> {
        self.choices.iter().filter(|choice| choice.candidate.as_ref().is_some_and(|found| found.of == best.name))
    }

    /// Shares of the groups that serve under a choice.
    pub fn assignment_of(&self, choice: &ServingChoice) -> Assignment {
        let kept = |row: &Vec<f64>| {
            self.groups.iter().zip(row).filter(|(group, _)| choice.serves(group)).map(|(_, share)| *share).collect()
        };
        Assignment { shares: self.assignment.shares.iter().map(kept).collect(), ..self.assignment.clone() }
    }

    /// What verbs that serve one draw say of the others.
    pub fn one_draw(&self) -> Option<String> {
        let n = self.draws.len();
        (n > 0).then(|| format!("one draw of requests is served; the {n} others of `trace.seeds` are for `run`"))
    }
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<Serving> {
    of_requests(reader, source, folder, overrides, None)
}

/// Reads every section but `[trace]`, where the requests come from elsewhere.
pub fn of_requests(
    reader: &mut Reader<'_>,
    source: &Source,
    folder: &Path,
    overrides: &Overrides,
    given: Option<Asked>,
) -> Option<Serving> {
    let head = Head::read(reader, &SECTIONS, source, overrides);
    let places = Places::of(reader, given.is_some());
    let kv = kv::kv(reader.section("kv"));
    let fleet = fleet::fleet(reader.section("fleet"));
    let generation = clients::generation::Generation::beside(reader, folder);
    let model = fleet::model(reader, &fleet, folder);
    let cluster = fleet::machine(reader, &fleet);
    let (own, gpu) = (crate::shipped::folder(source, folder), cluster.as_ref().map(|(cluster, ..)| &cluster.gpu));
    let engine = engine::engine(reader.section("engine"), On { gpu, model: model.as_ref() }, &own, given.is_none());
    let (slo, warm_up) = clients::slo(reader.section("slo"));
    let with = With::new(head.seed, &engine, (model.as_ref(), generation.as_ref()));
    let asked = given.or_else(|| requests::trace(reader.section("trace"), &own, with));
    let policies = policies::policies(reader.section("policies"), (&engine, &kv), fleet.router);
    let gpu = cluster.as_ref().map(|(cluster, ..)| cluster.gpu.name.as_str());
    let mut choices = policies.choices;
    let usual = Usual::of(&choices, cluster.as_ref().map(|(cluster, ..)| cluster), &fleet, &slo);
    let (tune, ways) = best::tune(reader.section("tune"), (&engine, &kv), fleet.router, &usual);
    choices.extend(ways);
    let costs = costs::costs(reader.section("cost"), folder, gpu, engine.preset.map(|preset| preset.name));
    let expectations = expect::read(reader.section("expect"));
    let names: Vec<&str> = choices.iter().filter(|way| way.candidate.is_none()).map(|way| way.name.as_str()).collect();
    let requests = asked.as_ref().map(|asked| (&asked.requests, fleet.scales()));
    let capacity = requests.and_then(|requests| capacity::capacity(reader.section("capacity"), &names, &slo, requests));
    let ((model, (cluster, reserved, tuning)), asked) = model.zip(cluster).zip(asked)?;
    let mut free_parameters = engine.free_parameters(costs.cost.sustained_flops_ratio, &choices);
    free_parameters.extend(costs.free_parameters().into_iter().chain(cluster.joined()));
    let ServingCost { cost, law, attention_flops_ratio } = costs;
    let mut serving = Serving {
        head: Head { baseline: policies.baseline, expectations, ..head },
        model,
        cluster,
        sequence_tokens: asked.requests.mean_sequence(),
        requests: asked.requests,
        draws: asked.draws,
        streams: asked.streams,
        source: asked.source,
        long_from: asked.long_from,
        kv,
        free_parameters,
        engine,
        reserved,
        groups: Vec::new(),
        roles: Vec::new(),
        assignment: Assignment::default(),
        links: Vec::new(),
        outages: Vec::new(),
        choices,
        best: policies.best,
        tune,
        names: policies.names,
        slo,
        warm_up,
        profile: cost.profile.clone(),
        sustained_flops_ratio: cost.sustained_flops_ratio,
        attention_flops_ratio,
        law,
        capacity: None,
        given: Given { fleet, cost, tuning, measured: overrides.measured, is_varied: capacity.is_some() },
    };
    put_together(reader, &mut serving, capacity, &places);
    Some(serving)
}

/// Builds the fleet of what was read, and looks at the whole.
fn put_together(
    reader: &mut Reader<'_>,
    serving: &mut Serving,
    capacity: Option<capacity::CapacitySection>,
    places: &Places,
) {
    let before = reader.n_errors();
    build(reader, serving);
    silent::without_experts(reader, serving, places);
    let has_groups = serving.given.fleet.has_groups();
    serving.capacity = capacity.and_then(|asked| capacity::question(reader, asked, serving, has_groups));
    efforts::tell(reader, serving);
    all_checks(reader, serving, places, before);
    if is_played(serving) && reader.n_errors() == before {
        silent::without_intricate_layers(serving);
        let told = serving.starts_in_words().chain(serving.drawn_in_words());
        serving.free_parameters.extend(told);
    }
}

/// Whether requests are played one by one.
const fn is_played(serving: &Serving) -> bool {
    !matches!(serving.law, CostLaw::PublishedRuns(_))
}

/// Checks between sections, and what is not heeded where they hold.
fn all_checks(reader: &mut Reader<'_>, serving: &mut Serving, places: &Places, before: usize) {
    if is_played(serving) && reader.n_errors() == before {
        silent::formats(reader, serving, places);
    }
    check(reader, serving, before);
    if reader.n_errors() == before {
        silent::check(reader, serving, places);
        fleet::idle(serving).into_iter().for_each(|finding| reader.find(finding));
    }
}

/// Makes the fleet of its sections.
fn build(reader: &mut Reader<'_>, serving: &mut Serving) {
    let Given { fleet, cost, .. } = serving.given.clone();
    fleet::build(reader, serving, &fleet, &cost);
}

/// What only shows in the whole, where there were `before` errors before it was put together.
fn check(reader: &mut Reader<'_>, serving: &mut Serving, before: usize) {
    if reader.n_errors() == before {
        published::check(reader, serving);
    }
    // A closed form knows its own limits, and says them as an outcome.
    if matches!(serving.law, CostLaw::PublishedRuns(_)) {
        return;
    }
    if reader.n_errors() == before {
        operation::check(reader, serving);
    }
    if reader.n_errors() == before {
        engine::memory(reader, serving);
    }
    if reader.n_errors() == before {
        kv::check(reader, serving);
        images::check(reader, serving);
        clients::check(reader, serving);
        adapters::check(reader, serving);
        holds::check(reader, serving);
    }
}
