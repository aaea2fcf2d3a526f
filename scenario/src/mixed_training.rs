//! Scenarios of `kind = "training"` with `[[group]]`: one model on GPUs of several types, whose stages and replicas lie on different cards.
//!
//! `mixed_training/machines.rs` reads groups and links, `mixed_training/stages.rs` what lies where.

mod machines;
mod stages;
mod unread;

use std::path::Path;

use engine::CostModel;
use engine::cost::profile::Profile;
use hw::{Bytes, Gpu};
use score::training::constants::{self, Constants};
use train::layout::{ContextExchange, Zero};
use train::mixed_gpus::{Batch, Group, MixedJob, Pipelines};
use train::problem::{AttentionKernel, Execution, Framework, Launches};
use train::timed::Messages;
use train::{Layout, Problem, Workload};

use crate::effort::is_within_reason;
use crate::training::checks::Keys;
use crate::training::usual::Usual;
use crate::training::{
    batches, checks, framework, no_effect, optimizer, policies as of_steps, rocm, training as executed, workload,
};
use crate::unread::{idle, read_since};
use crate::{Head, Overrides, expect, model};
use input::diagnostic::{Code, Source};
use input::reader::{Reader, Section, items};
use input::run_list::{RunList, run_list};
use planner::effort;
use planner::train::mixed_gpus::GROUPS_MAX;
use planner::train::objective::Objective;
use unread::UNREAD;

const SECTIONS: [&str; 10] = [
    "model",
    "training",
    "optimizer",
    "overlap",
    "workload",
    "failures",
    "checkpoint",
    "slow_nodes",
    "policies",
    "expect",
];
/// Sections whose keys may have no effect beside others.
const OF_EXECUTION: [&str; 3] = ["training", "optimizer", "overlap"];
/// What leaves a tensor group out, and a pipeline.
const UNDIVIDED: checks::Undivided = ["`gpus = 1` for every replica", "one `[[stage]]`"];
/// What passes follow from where no times were measured.
const A_MODEL: &str = "a `[model]`: measured times hold it already";

/// How a plan comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The file says it.
    Given,
    /// It is searched for.
    Search,
}

/// Words of `policies.run`, with what they do.
pub const POLICIES: [(&str, Way, &str); 2] = [
    ("given", Way::Given, "stages and replicas on the cards that the scenario names"),
    ("search", Way::Search, "the best of the plans with every stage, or every replica, on one group of cards"),
];

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct MixedTraining {
    /// Whose it is.
    pub head: Head,
    /// What is trained on which machines.
    pub job: MixedJob,
    /// Stages of the file, where it has some; without micro-batches they follow the speed of the cards.
    pub given: Option<Pipelines>,
    /// Ways, in order.
    pub choices: Vec<(String, Way)>,
    /// By what plans are searched for and compared.
    pub objective: Objective,
    /// What was fitted of the cards and not measured, as sentences.
    pub free_parameters: Vec<String>,
}

impl MixedTraining {
    /// Costs of every group, as measured steps are predicted.
    pub fn costs(&self) -> Vec<Box<dyn CostModel>> {
        let framework = self.job.problem.as_ref().map_or(Framework::MegatronCore, |of| of.execution.framework);
        let of = |group: &Group| constants::costs(&group.cluster, &profile(group, framework));
        self.job.groups.iter().map(of).collect()
    }

    /// Names of their profiles, each once; `None` where stages were measured.
    pub fn profiles(&self) -> Option<String> {
        let framework = self.job.problem.as_ref()?.execution.framework;
        let mut names: Vec<String> = self.job.groups.iter().map(|group| profile(group, framework).name).collect();
        names.sort_unstable();
        names.dedup();
        Some(names.join(", "))
    }
}

/// What was measured of the card of a group, or is lent to it.
fn profile(group: &Group, framework: Framework) -> Profile {
    calibrate::profiles::training(&group.cluster.gpu, framework, group.attention)
}

/// `[training]`, with the sections beside it.
struct Training {
    batch: Batch,
    /// By replica; empty where they follow the speed.
    shares: Vec<u32>,
    messages: Messages,
    zero: Zero,
    /// How passes are computed.
    executed: executed::Training,
    overlap: train::problem::Overlap,
    /// Whether the host's time of a layer is given.
    has_host: bool,
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<MixedTraining> {
    let (written, usual) = (no_effect::Given::of(reader, false), Usual::or(reader, Usual::Megatron));
    let keys = Keys::of(reader);
    let mut top = reader.top(&SECTIONS);
    let head = Head::of(&mut top, source, overrides);
    let machines::Machines { mut groups, networks, hosts, mtbfs, reserved } = machines::groups(&mut top);
    let links = machines::links(&mut top, &groups);
    let stages = stages::stages(&mut top, &groups);
    UNREAD.sections(&mut top);
    top.finish();
    let has_model = reader.has("model");
    let model = if has_model { Some(model::by_layer_in_16_bits(reader.section("model"), folder)?) } else { None };
    let n_stages = stages.as_ref().map_or(1, |(stages, _)| stages.len()) as u64;
    let training = training(reader, folder, (n_stages, head.seed), has_model.then_some(usual));
    let of_days = machines::run(reader, &groups, mtbfs, has_model);
    let (run, objective) = policies(reader.section("policies"), &groups, of_days.is_some());
    let expectations = expect::read(reader.section("expect"));
    let runs = |way: Way| run.choices.iter().any(|choice| choice.1 == way);
    let mut training = training.filter(|_| !groups.is_empty())?;
    if has_model {
        of_cards(reader, &mut training, &mut groups);
    }
    let problem = model.map(|model| problem(model, &groups[0], (reserved, head.seed), &training));
    let (batch, messages) = (training.batch, training.messages);
    let mut job = MixedJob { links, problem, batch, messages, groups, run: of_days, slow_node: None };
    let (stages, places) = stages.unzip();
    let given = stages.map(|stages| Pipelines { stages, micro_batches: training.shares.clone() });
    let placed = given.as_ref().zip(places.as_deref());
    if let Some(problem) = &job.problem {
        checks::positions(reader, problem);
        rocm::check(reader, &problem.execution, job.groups.iter().map(|group| &group.cluster.gpu));
    }
    if runs(Way::Given) {
        stages::checks(reader, &job, placed, runs(Way::Search));
    }
    if let Some(plan) = given.as_ref().filter(|_| runs(Way::Given)) {
        as_in_training(reader, &job, plan, &keys);
    }
    if runs(Way::Search) {
        searchable(reader, &job, &keys);
    }
    if let (false, Some(_)) = (runs(Way::Given), &given) {
        let what = "`[[stage]]` says where stages lie, and `given` does not run";
        reader.warn(Code::NoEffect, None, what, "add `given` to `policies.run`, or leave the stages out");
    }
    let alone = given.as_ref().filter(|_| !runs(Way::Search));
    machines::heed_networks(reader, &networks, &job, alone);
    machines::heed_hosts(reader, hosts, &job);
    if let Some(problem) = job.problem.as_ref().filter(|_| reader.n_errors() == 0) {
        let problems = alone.map_or_else(|| vec![problem.clone()], |plan| job.problems(plan));
        no_effect::of_problems(reader, &written, &OF_EXECUTION, (problems.as_slice(), alone.is_none()));
    }
    job.problem = job.problem.map(framework::without_other_loss);
    let free_parameters = free_parameters(&job, &training.executed);
    let head = Head { baseline: run.baseline, expectations, ..head };
    Some(MixedTraining { head, job, given, choices: run.choices, objective, free_parameters })
}

/// What was fitted or assumed and not measured, as sentences.
fn free_parameters(job: &MixedJob, executed: &executed::Training) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for group in job.groups.iter().filter(|_| job.problem.is_some()) {
        let gpu = &group.cluster.gpu.name;
        let words = format!("{gpu}: {}", Constants::of(gpu));
        if !all.contains(&words) {
            all.push(words);
        }
    }
    if executed.host_us > 0.0 {
        let us = executed.host_us;
        all.push(format!("`training.host_overhead_per_layer_us` = {us}: fitted or assumed, not measured"));
    }
    all
}

/// Reads `[training]` and what stands beside it, with the usual words of a framework; without them stages were measured.
fn training(
    reader: &mut Reader<'_>,
    folder: &Path,
    (n_stages, seed): (u64, u64),
    usual: Option<Usual>,
) -> Option<Training> {
    let (is_drawn, has_model) = (reader.has("workload"), usual.is_some());
    let mut section = reader.section("training");
    let (batch_size, at) = section.count("batch_size", None, 1..=1_000_000);
    let micro_batch = section.small("micro_batch", Some(1), 1..=10_000);
    let tokens = tokens(&mut section, is_drawn, has_model);
    let shares = shares(&mut section);
    let messages = section.one_of("messages", Messages::Behind, &Messages::WORDS);
    UNREAD.keys("training", &mut section);
    let execution = section.left();
    let zero = [Zero::Off, Zero::OptimizerStates][section.size("zero", 1, 0..=1)];
    let has_host = section.has("host_overhead_per_layer_us");
    let framework_at = section.place("framework");
    let mut executed = executed::executed(&mut section, usual.unwrap_or(Usual::Megatron));
    if executed.execution.framework == Framework::Formulas {
        let what = "`training.framework = \"formulas\"` is of one card: several are told apart by their own kernels";
        let help = "allowed beside `[[group]]` are megatron-core, pytorch and deepspeed";
        section.refuse(Code::WrongOperation, framework_at.flatten(), what, help);
    }
    if !has_model {
        let read = read_since(&section, execution);
        idle(&mut section, read, A_MODEL);
    }
    let is_whole = batch_size.is_multiple_of(u64::from(micro_batch));
    if !is_whole {
        let what = format!("micro-batches of {micro_batch} sequences do not divide the batch of {batch_size}");
        section.refuse(Code::OutOfRange, at.clone(), what, "a step has whole micro-batches");
    }
    let effort = effort::stepped(1, batch_size, n_stages);
    let what = format!("a step of {batch_size} sequences on pipelines of {n_stages} stages");
    let is_begun = is_within_reason(&mut section, effort, (at, &what, "lower `training.batch_size`"));
    section.finish();
    let batch_size = if is_whole && is_begun && batch_size > 0 { batch_size } else { u64::from(micro_batch) };
    let mut section = reader.section("overlap");
    UNREAD.keys("overlap", &mut section);
    beside(&mut section, has_model);
    let overlap = executed::overlap(section);
    let mut section = reader.section("optimizer");
    beside(&mut section, has_model);
    optimizer::optimizer(section, &mut executed, None);
    let drawn = is_drawn.then(|| workload::workload(reader.section("workload"), folder, (batch_size, 1), seed));
    let lengths = match drawn {
        Some(drawn) => drawn?.lengths,
        None => vec![tokens; usize::try_from(batch_size).expect("the range is below 2^32")],
    };
    Some(Training { batch: Batch::new(lengths, micro_batch), shares, messages, zero, executed, overlap, has_host })
}

/// Tokens of a sequence, where `[workload]` does not say how long each is.
fn tokens(section: &mut Section<'_>, is_drawn: bool, has_model: bool) -> u64 {
    let at = section.place("tokens");
    if let Some(at) = at.filter(|_| is_drawn) {
        let what = "`training.tokens` and `[workload]` both say how long sequences are";
        section.refuse(Code::ExclusiveKeys, at, what, "keep the one that is meant");
    } else if is_drawn && !has_model {
        let what = "`[workload]` has lengths of sequences, and passes of one length were measured";
        section.refuse(Code::ExclusiveKeys, None, what, "write `training.tokens`, or name a `[model]`");
    }
    section.count("tokens", is_drawn.then_some(1), 1..=10_000_000).0
}

/// Warns of all keys of a section where times were measured.
fn beside(section: &mut Section<'_>, has_model: bool) {
    let given = if has_model { Vec::new() } else { section.left() };
    idle(section, given, A_MODEL);
}

/// What every card runs of it: its kernels, and the time of its host.
fn of_cards(reader: &mut Reader<'_>, training: &mut Training, groups: &mut [Group]) {
    let executed = &mut training.executed;
    let (asked, graphs) = (executed.execution.attention, executed.graphs);
    let given = training.has_host.then_some(executed.execution.host_overhead_per_layer);
    let gpus: Vec<Gpu> = groups.iter().filter(|group| group.has_card).map(|group| group.cluster.gpu.clone()).collect();
    framework::named_kernel(reader, executed, &gpus.iter().collect::<Vec<_>>());
    let mut known: Vec<(String, AttentionKernel)> = Vec::new();
    for group in groups.iter_mut().filter(|group| group.has_card) {
        let gpu = &group.cluster.gpu;
        let usual = || Constants::of(&gpu.name).host(graphs);
        // A time that is given stands for the launches too, as in kind `training`.
        (group.host_per_layer, group.launches) = given.map_or_else(usual, |given| (given, Launches::UNSEEN));
        executed.execution.launches = group.launches;
        if !known.iter().any(|(name, _)| *name == gpu.name) {
            executed.execution.attention = asked;
            framework::kernels_of_one(reader, executed, gpu);
            known.push((gpu.name.clone(), executed.execution.attention));
        }
        let kernel = known.iter().find(|(name, _)| *name == gpu.name);
        group.attention = kernel.map_or(asked, |(_, kernel)| *kernel);
    }
    executed.execution.attention = asked;
}

/// `micro_batches`: one number for each replica; empty where they follow the speed.
fn shares(section: &mut Section<'_>) -> Vec<u32> {
    let Some((value, at)) = section.take("micro_batches") else { return Vec::new() };
    let one = |item: &toml_span::Value<'_>| item.as_integer().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
    items(&value, one).unwrap_or_else(|| {
        section.wrong(Code::WrongType, at, "`training.micro_batches` is not a list of whole numbers above 0");
        Vec::new()
    })
}

/// What runs, and what is sought: with a run of days most of that, where nothing else is written.
fn policies(mut section: Section<'_>, groups: &[Group], is_of_days: bool) -> (RunList<Way>, Objective) {
    let default = if is_of_days { Objective::RunTokens } else { Objective::Seconds };
    let unpriced = groups.iter().find(|group| group.usd_per_gpu_hour == 0.0).map(|group| group.name.as_str());
    let help = "write `usd_per_gpu_hour` in every `[[group]]`";
    let objective = of_steps::objective(&mut section, (unpriced, help), (is_of_days, default));
    let plain = POLICIES.map(|(name, way, _)| (name, way));
    let run = run_list(&mut section, plain.to_vec(), Vec::new());
    section.finish();
    (run, objective)
}

/// The model as every stage asks of it; cluster and degrees are those of the stage.
fn problem(model: engine::Model, first: &Group, (reserved_memory, seed): (Bytes, u64), training: &Training) -> Problem {
    let (executed, overlap) = (&training.executed, training.overlap);
    let framework = executed.execution.framework;
    let execution =
        Execution { framework: framework::in_pieces(framework, &overlap), overlap, ..executed.execution.clone() };
    Problem {
        model: framework::trained(model, framework, executed.predicting_layers),
        cluster: first.cluster.clone(),
        layout: Layout::data_and_context(1, 1, training.zero, ContextExchange::Gather),
        schedule: train::schedule::named("1f1b").expect("listed"),
        workload: Workload { lengths: training.batch.lengths().to_vec(), batch_size: 1, source: "given".to_owned() },
        dtype: executed.dtype,
        execution,
        bucket_tokens: 0,
        reserved_memory,
        seed,
    }
}

/// What kind `training` asks of the stages too.
fn as_in_training(reader: &mut Reader<'_>, job: &MixedJob, plan: &Pipelines, keys: &Keys) {
    let is_whole = reader.n_errors() == 0;
    let Some(widest) = job.problems(plan).into_iter().max_by_key(|own| own.layout.tp).filter(|_| is_whole) else {
        return;
    };
    checks::frozen(reader, &widest, (&keys.frozen, &UNDIVIDED));
    let n_most = plan.most_micro_batches(job.batch.n_micro_batches());
    batches::counted_once(reader, &widest.execution, n_most, keys.kernels.clone());
}

/// A search needs what it prices, cards that it knows, not too many groups, and a step that it may cut.
fn searchable(reader: &mut Reader<'_>, job: &MixedJob, keys: &Keys) {
    if let Some(problem) = &job.problem {
        uncut(reader, problem, keys);
    }
    if job.problem.is_none() {
        let what = "policy `search` places layers, and the scenario has no `[model]`";
        reader.refuse(Code::MissingKey, None, what, "name a model, or run `given` alone");
    }
    if job.groups.len() > GROUPS_MAX {
        let what = format!("{} groups are more than the {GROUPS_MAX} of which every order is listed", job.groups.len());
        reader.refuse(Code::OutOfRange, None, what, "join groups of one card and zone, or run `given` alone");
    }
}

/// Packed weights are not cut, and gradients that go with their update do not add up. A search cuts both ways.
fn uncut(reader: &mut Reader<'_>, problem: &Problem, keys: &Keys) {
    let frozen = problem.shard().frozen();
    let misfits = [
        (frozen.is_packed(), &keys.frozen, format!("`optimizer.frozen = \"{}\"`", frozen.word())),
        (problem.execution.updates_in_backward(), &keys.kernels, "`optimizer.kernels = \"in-backward\"`".to_owned()),
    ];
    for (_, at, key) in misfits.into_iter().filter(|(misfits, _, _)| *misfits) {
        let what =
            format!("{key} does not fit policy `search`, which looks at tensor groups, stages and micro-batches");
        reader.refuse(Code::WrongOperation, at.clone(), what, "write `[[stage]]` and run `given` alone");
    }
}
