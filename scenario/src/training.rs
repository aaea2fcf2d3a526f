//! The sections of a training scenario, a file each; cross-checks between them come last.

pub mod batches;
pub mod checks;
mod collectives;
mod compression;
pub mod framework;
mod lengths;
pub mod long_run;
pub mod no_effect;
pub mod optimizer;
mod parallel;
pub mod policies;
mod rails;
pub mod rocm;
mod search;
mod searched;
pub mod stragglers;
#[expect(clippy::module_inception, reason = "the kind `training` has a section of that name")]
pub mod training;
mod unfused;
pub mod usual;
pub mod workload;

use std::path::Path;

use calibrate::{costs, profiles};
use engine::CostModel;
use engine::cost::profile::Profile;
use hw::{Cluster, Gpu, Seconds};
pub use planner::train::chosen::Choice as PolicyChoice;
use planner::train::objective::Objective;
use planner::train::search::space::Space;
use score::training::constants::Constants;
use train::long_run::LongRun;
use train::megatron_core::INTERLEAVED;
use train::problem::{Execution, ExpertTraffic, Framework, Launches, Overlap};
use train::straggler::Straggler;
use train::{Layout, Problem};

use crate::cost::Cost;
use crate::network::Written;
use crate::{Head, Overrides, cluster, cost, expect};
use checks::{Keys, cross_checks};
use input::diagnostic::Source;
use input::reader::Reader;
use training::Training;
use usual::Usual;

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Whose it is.
    pub head: Head,
    /// What every policy is asked.
    pub problem: Problem,
    /// Layouts to look at, where the layout is searched for.
    pub search: Option<Space>,
    /// By what policies are compared, and layouts searched for.
    pub objective: Objective,
    /// A run of days over its steps, where one is asked for.
    pub long_run: Option<LongRun>,
    /// Policies, in order.
    pub policies: Vec<PolicyChoice>,
    /// Whether nobody wrote the tokens of a micro-batch, so that they follow from memory.
    pub finds_bucket: bool,
    /// Measured profile; `None` for the datasheet roofline.
    pub profile: Option<Profile>,
    /// Whether a query outside the measured hull is an error.
    pub strict_hull: bool,
    /// Share of the peak that matrix products hold under sustained load; 1 is no limit.
    pub sustained_flops_ratio: f64,
    /// Constants of the card that costs are held to, as measured steps are predicted: a framework is named, and `[cost]` asks for no datasheet and no durations.
    pub of_card: Option<Constants>,
    /// Parameters that were fitted and not measured, as sentences.
    pub free_parameters: Vec<String>,
}

impl Scenario {
    /// The metric by which rows are compared; `None` where they are by their time.
    pub fn compared_by(&self) -> Option<&'static str> {
        match (self.objective, &self.long_run) {
            (Objective::Seconds, None) => None,
            (Objective::Seconds | Objective::Usd, Some(_)) => Some(Objective::RunTokens.metric()),
            (objective, _) => Some(objective.metric()),
        }
    }

    /// Costs of its machine.
    pub fn costs(&self) -> Box<dyn CostModel> {
        costs_of(&self.problem.cluster, self.profile.as_ref(), (self.of_card, self.sustained_flops_ratio))
    }
}

/// Costs of a machine: held to the constants of its card where there are some, else to a share of its peak.
pub fn costs_of(
    cluster: &Cluster,
    profile: Option<&Profile>,
    (of_card, sustained_flops_ratio): (Option<Constants>, f64),
) -> Box<dyn CostModel> {
    match (profile, of_card) {
        (Some(profile), Some(constants)) => constants.costs(cluster, profile),
        _ => costs::cost_model(cluster, profile, sustained_flops_ratio),
    }
}

const SECTIONS: [&str; 16] = [
    "model",
    "cluster",
    "parallel",
    "search",
    "training",
    "optimizer",
    "overlap",
    "experts",
    "workload",
    "policies",
    "cost",
    "expect",
    "stragglers",
    "failures",
    "slow_nodes",
    "checkpoint",
];

/// What the scenario says of its costs itself; the rest is the card's, where the step is a framework's.
pub(crate) struct Asked {
    pub(crate) profile: bool,
    sustained: bool,
    host: bool,
    framework: bool,
}

impl Asked {
    pub(crate) fn of(reader: &Reader<'_>) -> Self {
        let has = |section: &str, key: &str| reader.peek_in(section, key).is_some();
        let [profile, sustained] = ["profile", "sustained_flops_ratio"].map(|key| has("cost", key));
        let [host, framework] = ["host_overhead_per_layer_us", "framework"].map(|key| has("training", key));
        Self { profile, sustained, host, framework }
    }

    /// Constants of the card for its costs, with the one that the scenario states. The datasheet alone and fixed durations have none.
    pub(crate) fn of_card(&self, framework: Framework, cost: &Cost, gpu: &str) -> Option<Constants> {
        if framework == Framework::Formulas || cost.is_roofline || cost.units.is_some() {
            return None;
        }
        let constants = Constants::of(gpu);
        Some(if self.sustained { constants.holding(cost.sustained_flops_ratio) } else { constants })
    }

    /// Time that the host takes of a layer, and of a launch.
    pub(crate) fn host(&self, training: &Training, gpu: &str) -> (Seconds, Launches) {
        let execution = &training.execution;
        if execution.framework == Framework::Formulas || self.host {
            return (execution.host_overhead_per_layer, execution.launches);
        }
        Constants::of(gpu).host(training.graphs)
    }
}

/// What was fitted or assumed and not measured, as sentences.
fn free_parameters(
    training: &Training,
    cost: &Cost,
    policies: &[PolicyChoice],
    of_card: Option<&Constants>,
) -> Vec<String> {
    let mut free = Vec::new();
    if training.host_us > 0.0 {
        free.push(("training.host_overhead_per_layer_us".to_owned(), training.host_us));
    }
    if cost.sustained_flops_ratio < 1.0 {
        free.push(("cost.sustained_flops_ratio".to_owned(), cost.sustained_flops_ratio));
    }
    for question in policies.iter().filter_map(|choice| choice.compression.as_ref()) {
        for parameter in compression::free_parameters(question) {
            if !free.contains(&parameter) {
                free.push(parameter);
            }
        }
    }
    let given = free.into_iter().map(|(key, value)| format!("`{key}` = {value}: fitted or assumed, not measured"));
    given.chain(of_card.map(Constants::to_string)).collect()
}

/// What becomes of the launches of a framework's host, as sentences: a key that stands for them, and an overlap that makes them longer.
fn of_host(asked: &Asked, problem: &Problem, is_searched: bool) -> Vec<String> {
    let execution = &problem.execution;
    let mut words: Vec<String> = problem.cluster.joined().into_iter().collect();
    if execution.framework == Framework::Formulas || execution.unit_times.is_some() {
        return words;
    }
    if asked.host {
        let us = execution.host_overhead_per_layer.get() * 1e6;
        words.push(format!(
            "`training.host_overhead_per_layer_us` = {us}: it stands for the launches of the card's host, which are not counted"
        ));
    } else if execution.interleaves(if is_searched { u32::MAX } else { problem.layout.ep }) {
        words.push(format!(
            "`overlap.expert` = {}: the host runs a forward between a backward, so its launches take {INTERLEAVED} times as long however much is hidden",
            execution.overlap.hidden_experts()
        ));
    }
    let share = engine::launch::share(&problem.shard());
    if share < 1.0 && !asked.host {
        words.push(format!(
            "an operation of Hugging Face's modules takes {share} of a launch: fitted on two steps of ms-swift, docs/accuracy-training.md"
        ));
    }
    words
}

/// What the reader of a result may not expect, as sentences: formulas that nobody asked for hold a peak that the card does not, and MFU is over 16 bits.
fn of_peak(asked: &Asked, execution: &Execution, cost: &Cost, gpu: &Gpu) -> Vec<String> {
    if cost.units.is_some() {
        return Vec::new();
    }
    let narrow = execution.formats.is_some_and(|formats| formats.is_narrow());
    let constants = Constants::of(&gpu.name);
    let held = if narrow { constants.sustained_narrow } else { constants.sustained };
    let is_left_out = execution.framework == Framework::Formulas && !asked.framework && !asked.sustained;
    let mut words = Vec::new();
    // What is published of a card holds formulas too.
    let is_whole = hw::catalog::reached(&gpu.name) == hw::Reached::default();
    if is_left_out && is_whole && !cost.is_roofline && held < 1.0 {
        words.push(format!(
            "`training.framework` is left out: the formulas of papers hold the whole peak, of which frameworks hold {held} on `{}` (`framework = \"megatron-core\"`)",
            gpu.name
        ));
    }
    if narrow {
        words.push("MFU is over the card's peak in 16 bits, which narrower products may pass".to_owned());
    }
    words
}

/// What is said beside the parameters that were fitted.
fn said(asked: &Asked, problem: &Problem, cost: &Cost, is_searched: bool) -> Vec<String> {
    let of_peak = of_peak(asked, &problem.execution, cost, &problem.cluster.gpu);
    [of_host(asked, problem, is_searched), of_peak].concat()
}

/// Ranks and chunks of a pipeline that a sequence passes, each played by itself.
fn n_played(layout: &Layout) -> u64 {
    [layout.pp, layout.cp, layout.chunks].map(|degree| u64::from(degree.max(1))).iter().product()
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<Scenario> {
    of_sequences(reader, source, folder, overrides, None)
}

/// Reads every section but `[workload]`, where the sequences come from elsewhere.
pub fn of_sequences(
    reader: &mut Reader<'_>,
    source: &Source,
    folder: &Path,
    overrides: &Overrides,
    sequences: Option<workload::Given>,
) -> Option<Scenario> {
    let (network, keys) = (Written::of(reader), Keys::of(reader));
    let (is_given, is_of_days) = (sequences.is_some(), reader.has("failures"));
    let (given, asked, usual) = (no_effect::Given::of(reader, is_given), Asked::of(reader), Usual::of(reader));
    let (head, model) = (Head::read(reader, &SECTIONS, source, overrides), framework::model(reader, folder));
    let cluster = cluster::of_steps(reader.section("cluster"), is_given);
    let parallel = parallel::parallel(reader.section("parallel"), usual);
    let machine = cluster.as_ref().map(|(cluster, _)| cluster);
    let (card, of_steps) = (machine.map(|cluster| &cluster.gpu), stragglers::of_steps(is_given));
    let lists = search::search(reader.section("search"), card, parallel.is_searched);
    let mut training = training::training(reader.section("training"), n_played(&parallel.layout), usual);
    let overlap = training::overlap(reader.section("overlap"));
    optimizer::optimizer(reader.section("optimizer"), &mut training, framework::packed(model.as_ref()));
    let (experts, compressed) = training::experts(reader.section("experts"), card.map(hw::Gpu::capability));
    let draws = experts.imbalance > 0.0 && model.as_ref().is_some_and(|(model, _)| model.experts.is_some());
    let workload = workload::asked(reader, folder, &mut training, (sequences, head.seed), (draws, parallel.layout.cp));
    let stragglers = stragglers::stragglers(reader, machine.map(hw::Cluster::n_gpus), (training.steps, of_steps));
    let long_run = long_run::long_run(reader, machine.map(|cluster| (cluster, is_given)), &stragglers);
    let (question, rows) = (compressed.as_ref().map(|of| &of.question), training.row_tokens);
    let policies::Asked { policies, baseline, objective } =
        policies::policies(reader.section("policies"), question, (card, is_of_days, rows.is_some()));
    let cost = cost::cost(reader.section("cost"), folder, card.map(|gpu| gpu.name.as_str()));
    let expectations = expect::read(reader.section("expect"));
    let (((model, model_at), (cluster, reserved_memory)), workload) = model.zip(cluster).zip(workload)?;
    let of_card = asked.of_card(training.execution.framework, &cost, &cluster.gpu.name);
    let free_parameters = free_parameters(&training, &cost, &policies, of_card.as_ref());
    let host = asked.host(&training, &cluster.gpu.name);
    framework::kernels_of_card(reader, &mut training, &cluster.gpu);
    let execution = executed(training.execution, &parallel, &cost, (overlap, experts, host, stragglers));
    let mut problem = Problem {
        model: framework::trained(model, execution.framework, training.predicting_layers),
        cluster,
        layout: parallel.layout,
        schedule: parallel.schedule,
        workload,
        dtype: training.dtype,
        execution,
        bucket_tokens: training.bucket_tokens,
        reserved_memory,
        seed: head.seed,
    };
    checks::of_every_layout(reader, &problem, model_at);
    let search =
        parallel.is_searched.then(|| Space { objective, run: long_run.clone(), ..lists.space(reader, &problem, rows) });
    if search.is_none() {
        by_hand(reader, &mut problem, &policies, (&parallel.places, &keys));
    }
    warned(reader, (&network, &given, compressed.as_ref()), (&problem, &cost, search.as_ref(), is_given), &policies);
    Some(Scenario {
        free_parameters: [free_parameters, said(&asked, &problem, &cost, search.is_some())].concat(),
        head: Head { baseline, expectations, ..head },
        profile: if of_card.is_some() && !asked.profile { Some(of_framework(&problem)) } else { cost.profile },
        problem: framework::without_other_loss(problem),
        search,
        objective,
        long_run,
        policies,
        finds_bucket: training.bucket_tokens == 0,
        strict_hull: cost.strict_hull,
        sustained_flops_ratio: cost.sustained_flops_ratio,
        of_card,
    })
}

/// What is said of keys that change nothing, and of merging, once all is read.
fn warned(
    reader: &mut Reader<'_>,
    (network, given, compressed): (&Written, &no_effect::Given, Option<&compression::Given>),
    (problem, cost, search, is_given): (&Problem, &Cost, Option<&Space>, bool),
    policies: &[PolicyChoice],
) {
    collectives::warn(reader, network, (problem, cost.profile.as_ref()), is_given || search.is_some(), policies);
    compression::cross_checks(reader, compressed, problem, search.is_some(), policies);
    no_effect::warn(reader, given, problem, search, policies);
}

/// Checks of a layout that is written; a search asks each of its own.
fn by_hand(
    reader: &mut Reader<'_>,
    problem: &mut Problem,
    policies: &[PolicyChoice],
    (places, keys): (&parallel::Places, &Keys),
) {
    problem.execution.launches = problem.execution.launches_with(problem.layout.ep);
    cross_checks(reader, problem, policies, (places, keys));
    batches::updated_once(reader, problem, policies, keys.kernels.clone());
}

/// How a step is executed, with what other sections say of it.
fn executed(
    execution: Execution,
    parallel: &parallel::Parallel,
    cost: &Cost,
    (overlap, experts, host, stragglers): (Overlap, ExpertTraffic, (Seconds, Launches), Vec<Straggler>),
) -> Execution {
    let (host_overhead_per_layer, launches) = host;
    Execution {
        host_overhead_per_layer,
        launches,
        stragglers,
        framework: framework::in_pieces(execution.framework, &overlap),
        overlap,
        experts,
        unit_times: cost.units,
        layers: parallel.layers.clone(),
        micro_batch_group: parallel.micro_batch_group,
        flush_every: parallel.flush_every,
        ..execution
    }
}

/// Kernels of the card under the framework.
fn of_framework(problem: &Problem) -> Profile {
    profiles::training(&problem.cluster.gpu, problem.execution.framework, problem.execution.attention)
}
