//! Scenarios of `kind = "training"` with `[[group]]`: one model on GPUs of several types, whose stages and replicas lie on different cards.
//!
//! `mixed_training/machines.rs` reads groups and links, `mixed_training/stages.rs` what lies where.

mod machines;
mod stages;

use std::path::Path;

use engine::CostModel;
use hw::{Bytes, Dtype};
use score::training::constants::{self, Constants};
use train::layout::{ContextExchange, Zero};
use train::mixed_gpus::{MixedJob, Pipelines};
use train::problem::{AttentionKernel, Execution, Framework, Recompute};
use train::timed::Messages;
use train::{Layout, Problem, Workload};

use crate::effort::is_within_reason;
use crate::{Head, Overrides, expect, model, recompute};
use input::diagnostic::{Code, Source};
use input::reader::{Reader, Section, items};
use input::run_list::{RunList, run_list};
use planner::effort;
use planner::train::mixed_gpus::GROUPS_MAX;

const SECTIONS: [&str; 4] = ["model", "training", "policies", "expect"];

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
    ("search", Way::Search, "the fastest of the plans with every stage, or every replica, on one group of cards"),
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
    /// What was fitted of the cards and not measured, as sentences.
    pub free_parameters: Vec<String>,
}

impl MixedTraining {
    /// Costs of every group, as measured steps are predicted.
    pub fn costs(&self) -> Vec<Box<dyn CostModel>> {
        let of = |group: &train::mixed_gpus::Group| {
            constants::costs(
                &group.cluster,
                &calibrate::profiles::training(&group.cluster.gpu, Framework::MegatronCore, AttentionKernel::Flash),
            )
        };
        self.job.groups.iter().map(of).collect()
    }
}

/// `[training]`.
struct Training {
    n_micro_batches: u32,
    micro_batch: u32,
    tokens: u64,
    /// By replica; empty where they follow the speed.
    shares: Vec<u32>,
    messages: Messages,
    zero: Zero,
    recompute: Recompute,
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<MixedTraining> {
    let mut top = reader.top(&SECTIONS);
    let head = Head::of(&mut top, source, overrides);
    let (groups, networks, reserved) = machines::groups(&mut top);
    let links = machines::links(&mut top, &groups);
    let stages = stages::stages(&mut top, &groups);
    top.finish();
    let has_model = reader.has("model");
    let model = if has_model { Some(model::model(reader.section("model"), folder)?) } else { None };
    let n_stages = stages.as_ref().map_or(1, |(stages, _)| stages.len()) as u64;
    let training = training(reader.section("training"), n_stages, has_model);
    let run = policies(reader.section("policies"));
    let expectations = expect::read(reader.section("expect"));
    let runs = |way: Way| run.choices.iter().any(|choice| choice.1 == way);
    if groups.is_empty() {
        return None;
    }
    let problem = model.map(|model| problem(model, &groups[0], reserved, &training));
    let job = MixedJob {
        links,
        problem,
        micro_batch: training.micro_batch,
        n_micro_batches: training.n_micro_batches,
        tokens: training.tokens,
        messages: training.messages,
        groups,
    };
    let (stages, places) = stages.unzip();
    let given = stages.map(|stages| Pipelines { stages, micro_batches: training.shares.clone() });
    let placed = given.as_ref().zip(places.as_deref());
    if runs(Way::Given) {
        stages::checks(reader, &job, placed, runs(Way::Search));
    }
    if runs(Way::Search) {
        searchable(reader, &job);
    }
    if let (false, Some(_)) = (runs(Way::Given), &given) {
        let what = "`[[stage]]` says where stages lie, and `given` does not run";
        reader.warn(Code::NoEffect, None, what, "add `given` to `policies.run`, or leave the stages out");
    }
    machines::heed_networks(reader, &networks, &job, given.as_ref().filter(|_| !runs(Way::Search)));
    let mut free_parameters: Vec<String> = Vec::new();
    for group in job.groups.iter().filter(|_| job.problem.is_some()) {
        let gpu = &group.cluster.gpu.name;
        let words = format!("{gpu}: {}", Constants::of(gpu));
        if !free_parameters.contains(&words) {
            free_parameters.push(words);
        }
    }
    let head = Head { baseline: run.baseline, expectations, ..head };
    Some(MixedTraining { head, job, given, choices: run.choices, free_parameters })
}

fn training(mut section: Section<'_>, n_stages: u64, has_model: bool) -> Training {
    let (batch_size, at) = section.count("batch_size", None, 1..=1_000_000);
    let micro_batch = section.small("micro_batch", Some(1), 1..=10_000);
    let tokens = section.count("tokens", None, 1..=10_000_000).0;
    let shares = shares(&mut section);
    let messages = section.one_of("messages", Messages::Behind, &Messages::WORDS);
    if !has_model {
        section.idle(&["zero", "recompute"], "a `[model]`: measured times hold both already");
    }
    let zero = [Zero::Off, Zero::OptimizerStates][section.size("zero", 1, 0..=1)];
    let recompute = recompute::read(&mut section, Recompute::Selective);
    if !batch_size.is_multiple_of(u64::from(micro_batch)) {
        let what = format!("micro-batches of {micro_batch} sequences do not divide the batch of {batch_size}");
        section.refuse(Code::OutOfRange, at.clone(), what, "a step has whole micro-batches");
    }
    let effort = effort::stepped(1, batch_size, n_stages);
    let what = format!("a step of {batch_size} sequences on pipelines of {n_stages} stages");
    is_within_reason(&mut section, effort, (at, &what, "lower `training.batch_size`"));
    section.finish();
    let n_micro_batches = u32::try_from(batch_size.div_ceil(u64::from(micro_batch))).expect("the range is below 2^32");
    Training { n_micro_batches, micro_batch, tokens, shares, messages, zero, recompute }
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

fn policies(mut section: Section<'_>) -> RunList<Way> {
    let plain = POLICIES.map(|(name, way, _)| (name, way));
    let run = run_list(&mut section, plain.to_vec(), Vec::new());
    section.finish();
    run
}

/// The model as every stage asks of it; cluster and degrees are those of the stage.
fn problem(
    model: engine::Model,
    first: &train::mixed_gpus::Group,
    reserved_memory: Bytes,
    training: &Training,
) -> Problem {
    let execution =
        Execution { framework: Framework::MegatronCore, recompute: training.recompute, ..Execution::default() };
    Problem {
        model,
        cluster: first.cluster.clone(),
        layout: Layout::data_and_context(1, 1, training.zero, ContextExchange::Gather),
        schedule: train::schedule::named("1f1b").expect("listed"),
        workload: Workload { lengths: vec![training.tokens], batch_size: 1, source: "equal".to_owned() },
        dtype: Dtype::Bf16,
        execution,
        bucket_tokens: 0,
        reserved_memory,
        seed: 0,
    }
}

/// A search needs what it prices, cards that it knows, and not too many groups.
fn searchable(reader: &mut Reader<'_>, job: &MixedJob) {
    if job.problem.is_none() {
        let what = "policy `search` places layers, and the scenario has no `[model]`";
        reader.refuse(Code::MissingKey, None, what, "name a model, or run `given` alone");
    }
    if job.groups.len() > GROUPS_MAX {
        let what = format!("{} groups are more than the {GROUPS_MAX} of which every order is listed", job.groups.len());
        reader.refuse(Code::OutOfRange, None, what, "join groups of one card and zone, or run `given` alone");
    }
}
