//! Kinds of scenarios: each asks a question of its own, reads its sections and runs, and the verbs know it only by its trait.
//!
//! A kind is a module of `scenario` that reads it, a folder under `kinds/` that runs it, and a row of `KINDS`.

pub mod curriculum;
pub mod deployment;
pub mod graph;
pub mod memory;
pub mod mixed_training;
pub mod multi_task;
pub mod rl;
pub mod serving;
pub mod training;

use std::path::Path;

use engine::Origin;
use engine::cost::Source as CostSource;
use engine::cost::profile::Profile;
use engine::cost::provenance::{Grounds, Share};
use engine::stop;
use engine::verdict::Refused;
use planner::Decision;
use rayon::prelude::*;
use reports::capacity::Capacity;
use reports::curves::Curves;
use reports::frame::Frame;
use reports::tuned::Tuned;
use reports::{CostModelFacts, CostShare, Picture, PlannerFacts, PolicyResult, RunResult};
use serve::deployment::Deployment;
use train::metrics::Played;

use input::diagnostic::{self, Code, Finding, Source};
use input::reader::{Reader, Section};
use scenario::serving::settings::settings;
use scenario::{Head, Overrides};

/// Schema of `plan.json` where deployments are planned.
pub const DEPLOYMENT_SCHEMA: &str = "skrull-sim/deployment-plan/1";

/// A checked scenario that knows how to run.
pub trait Kind: Send + Sync {
    /// Whose it is.
    fn head(&self) -> &Head;

    /// Names of what it compares, in order.
    fn choices(&self) -> Vec<&str>;

    /// Runs every choice and keeps what is drawn of them; `done` is called as each finishes. Everything outside `measured` is a function of scenario and version.
    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run;

    /// Runs every choice.
    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult {
        self.draw(done).result
    }

    /// Decides only: the plan of a choice; `None` where the kind has nothing to decide.
    fn plan(&self, _choice: &str) -> Option<Result<Planned, Refused>> {
        None
    }

    /// The answer to what it asks about capacity; `None` where it asks nothing.
    fn capacity(&self) -> Option<Capacity> {
        None
    }

    /// `plan.json` of a fleet that its answer about capacity names; `None` where there is no such fleet.
    fn capacity_plan(&self, _fleet: &str) -> Option<Result<Planned, Refused>> {
        None
    }

    /// The best of the settings that it lists; `None` where it lists none.
    fn tuned(&self) -> Option<Tuned> {
        None
    }

    /// Whether a query outside the measured hull is an error; `None` where the kind does not look at the hull.
    fn strict_hull(&self) -> Option<bool> {
        None
    }

    /// Whether requests are played one by one, so that there is something to say of each.
    fn plays_requests(&self) -> bool {
        false
    }

    /// What became of every request under a choice, and how the fleet stood over time; `None` where the kind serves nothing.
    fn served(&self, _choice: &str) -> Option<Frames> {
        None
    }

    /// An epoch on the host that a device can execute, or why there is none; `None` where the kind knows no epochs.
    fn epoch(&self) -> Option<Result<::graph::epoch::Epoch, Refused>> {
        None
    }

    /// The engines that it asks about, which a measured run can be compared with; `None` where there are none.
    fn serving(&self) -> Option<&scenario::serving::Serving> {
        None
    }

    /// The training step that it asks about, which a device can execute; `None` where there is none.
    fn training(&self) -> Option<&scenario::training::Scenario> {
        None
    }
}

/// A simulated step of a choice: the choice's name, the step's number where several are kept, and the step.
type Drawn = (String, Option<usize>, Played);

/// What came of a scenario.
#[derive(Default)]
pub struct Run {
    /// Numbers.
    pub result: RunResult,
    /// Simulated steps of the choices that have some.
    pub pictures: Vec<Drawn>,
    /// What is drawn of each choice that serves requests.
    pub curves: Vec<Curves>,
    /// Lengths of the sequences in those steps.
    pub lengths: Vec<u64>,
    /// Memory of a device that runs them.
    pub device_memory_bytes: u64,
}

impl From<RunResult> for Run {
    /// Numbers of which nothing is drawn.
    fn from(result: RunResult) -> Self {
        Self { result, ..Self::default() }
    }
}

impl Run {
    /// What reports draw.
    pub fn pictures(&self) -> Vec<Picture<'_>> {
        self.pictures.iter().map(|(policy, step, played)| self.picture(policy, *step, played)).collect()
    }

    fn picture<'a>(&'a self, policy: &'a str, step: Option<usize>, played: &'a Played) -> Picture<'a> {
        Picture {
            policy,
            step,
            graph: &played.graph,
            timeline: &played.timeline,
            lengths: &self.lengths,
            device_memory_bytes: self.device_memory_bytes,
        }
    }
}

/// Tables of a served choice.
pub struct Frames {
    /// A row for every request.
    pub requests: Frame,
    /// A row for every sample in time.
    pub series: Frame,
}

/// A plan of a choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planned {
    /// `plan.json`.
    pub json: serde_json::Value,
    /// `plan.json` as a text, where its keys have an order of their own and `json` is empty.
    pub file: Option<String>,
    /// What was decided, for a person.
    pub words: String,
    /// How, in a few words behind the name of the file; `None` where the name of the choice says it.
    pub how: Option<String>,
}

impl Planned {
    /// The same with more keys in its file.
    pub fn with(mut self, more: serde_json::Value) -> Self {
        if let (Some(all), serde_json::Value::Object(more)) = (self.json.as_object_mut(), more) {
            all.extend(more);
        }
        self
    }

    /// What a row decided: its planner's facts and metrics, and the same in words.
    ///
    /// # Errors
    /// The row's reason where nothing was decided.
    fn of_row(row: &PolicyResult) -> Result<Self, Refused> {
        if !row.status.is_ok() {
            return Err(Refused { ended: row.status, why: format!("{}: {}", row.status, row.why) });
        }
        let facts = row.planner.clone().unwrap_or_default();
        let json = serde_json::json!({ "policy": row.policy, "plan": facts, "predicted": row.metrics });
        let words = [row.why.clone(), facts.words(0.0)].into_iter().chain(facts.notes).collect::<Vec<_>>().join("\n");
        Ok(Self { json, words, ..Self::default() })
    }
}

/// Deployments that a planner made, as `plan.json` has them, and in words: one schema for every planner of serving.
fn deployed<P>(head: &Head, policy: &str, placed: &[Deployment], decision: &Decision<P>, why: &str) -> Planned {
    deployed_as(head, policy, placed, facts(decision), why)
}

/// The same with facts that are known already.
fn deployed_as(head: &Head, policy: &str, placed: &[Deployment], facts: PlannerFacts, why: &str) -> Planned {
    let first = [why.to_owned(), facts.words(0.0)].into_iter().filter(|words| !words.is_empty());
    let words: Vec<String> = first.chain(facts.notes.iter().cloned()).collect();
    let json = serde_json::json!({
        "schema": DEPLOYMENT_SCHEMA, "scenario": head.name, "version": env!("CARGO_PKG_VERSION"), "policy": policy,
        "deployments": placed, "settings": settings(&head.origin, policy, &[]), "why": why, "plan": facts,
    });
    Planned { json, words: words.join("\n"), ..Planned::default() }
}

/// What a planner knows of its plan, as reports show it.
fn facts<P>(decision: &Decision<P>) -> PlannerFacts {
    PlannerFacts {
        objective: decision.objective(),
        aim: decision.aim().unwrap_or_default(),
        bound: decision.bound(),
        gap_ratio: decision.gap(),
        status: decision.status,
        notes: decision.notes.clone(),
        figures: decision.figures.clone(),
    }
}

/// The row of what has no plan.
fn refused(name: &str, refused: impl Into<Refused>) -> PolicyResult {
    let Refused { ended, why } = refused.into();
    PolicyResult { policy: name.to_owned(), status: ended, why, ..PolicyResult::default() }
}

/// Where costs come from, in a kind that does not look at the hull.
fn costs(profile: &str, source: &str, free_parameters: &[String]) -> CostModelFacts {
    CostModelFacts {
        profile: profile.to_owned(),
        source: source.to_owned(),
        free_parameters: free_parameters.to_vec(),
        outside_hull_ratio: f64::NAN,
        ..CostModelFacts::default()
    }
}

/// Where costs come from, with what share of the time comes from where and lies outside the hull.
fn grounded(profile: &str, grounds: &Grounds, free_parameters: &[String]) -> CostModelFacts {
    let share = |found: Share| CostShare {
        what: found.what.to_owned(),
        source: found.source.name().to_owned(),
        ratio: found.ratio,
    };
    CostModelFacts {
        shares: grounds.provenance.shares().into_iter().map(share).collect(),
        outside_hull_ratio: grounds.outside_ratio,
        outside_hull: grounds.outside.iter().cloned().collect(),
        ..costs(profile, grounds.source.name(), free_parameters)
    }
}

/// Name of a profile; `roofline` where there is none.
fn profile_name(profile: Option<&Profile>) -> &str {
    profile.map_or("roofline", |profile| profile.name.as_str())
}

/// A result with nothing in it yet but whose it is.
fn blank(head: &Head) -> RunResult {
    RunResult {
        origin: origin(head),
        schema: reports::SCHEMA.to_owned(),
        kind: head.kind.clone(),
        scenario: head.name.clone(),
        seed: head.seed,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        baseline: head.baseline.clone(),
        ..RunResult::default()
    }
}

/// What was asked, as plans and reports carry it.
pub fn origin(head: &Head) -> Origin {
    let question = KINDS.iter().find(|card| card.name == head.kind).map_or("", |card| card.about).to_owned();
    Origin { question, ..head.origin.clone() }
}

/// A row for every choice, in parallel, collected in order; `done` is called with the name of each as it finishes. `late` is the row of a
/// choice that was still under way when everything was to end.
fn rows<C: Sync, R: Send>(
    choices: &[C],
    name: impl Fn(&C) -> &str + Sync,
    done: &(dyn Fn(&str) + Sync),
    row: impl Fn(&C) -> R + Sync,
    late: impl Fn(PolicyResult) -> R + Sync,
) -> Vec<R> {
    let each = |choice| {
        let row = stop::unless_over(|| row(choice)).unwrap_or_else(|| late(timeout(name(choice))));
        done(name(choice));
        row
    };
    choices.par_iter().map(each).collect()
}

/// Rows, and a step to draw of each that has one.
fn drawn(rows: Vec<(PolicyResult, Option<Played>)>) -> (Vec<PolicyResult>, Vec<Drawn>) {
    let (mut results, mut pictures) = (Vec::new(), Vec::new());
    for (row, step) in rows {
        pictures.extend(step.map(|step| (row.policy.clone(), None, step)));
        results.push(row);
    }
    (results, pictures)
}

/// The row of what was still under way when everything was to end.
fn timeout(name: &str) -> PolicyResult {
    refused(name, Refused::out_of_time("stopped before it was done: give it more time, or a smaller scenario"))
}

/// Rows apart from the sources of their costs, of which the weakest counts.
fn weakest(rows: Vec<(PolicyResult, CostSource)>) -> (Vec<PolicyResult>, CostSource) {
    let source = rows.iter().map(|(_, source)| *source).max().unwrap_or(CostSource::Datasheet);
    (rows.into_iter().map(|(row, _)| row).collect(), source)
}

/// Reads the sections of a kind; `None` when a part is so wrong that the rest cannot be built.
type Read = fn(&mut Reader<'_>, &Source, &Path, &Overrides) -> Option<Box<dyn Kind>>;

/// A row of the table of kinds.
pub struct Card {
    /// Word of `kind`.
    pub name: &'static str,
    /// What such a scenario asks, in a sentence.
    pub about: &'static str,
    /// Reads one.
    pub read: Read,
}

/// What was read, as a kind.
fn boxed(scenario: Option<impl Kind + 'static>) -> Option<Box<dyn Kind>> {
    scenario.map(|scenario| Box::new(scenario) as Box<dyn Kind>)
}

/// Every kind; the first is that of a file without the word.
pub static KINDS: &[&Card] = &[
    &training::CARD,
    &serving::CARD,
    &deployment::CARD,
    &multi_task::CARD,
    &curriculum::CARD,
    &memory::CARD,
    &graph::CARD,
    &rl::CARD,
];

/// A read scenario with its warnings, or everything that is wrong with it.
pub struct Checked {
    /// Text that findings point into.
    pub source: Source,
    /// Findings; warnings only when a scenario is there.
    pub findings: Vec<Finding>,
    /// The scenario, when there is no error.
    pub scenario: Option<Box<dyn Kind>>,
}

/// Words of all kinds.
pub(crate) fn words() -> Vec<&'static str> {
    KINDS.iter().map(|kind| kind.name).collect()
}

/// Word of `kind` that a text has; that of the first kind where it has none.
pub fn word(text: &str) -> &'static str {
    let value = toml_span::parse(text).ok();
    let asked = value.as_ref().and_then(|value| value.as_table()?.get("kind")?.as_str());
    KINDS.iter().find(|kind| asked == Some(kind.name)).unwrap_or(&KINDS[0]).name
}

/// Reads and checks a scenario.
pub fn check(source: Source, folder: &Path, overrides: &Overrides) -> Checked {
    let mut findings = Vec::new();
    let mut scenario = None;
    match toml_span::parse(&source.text) {
        Ok(value) => {
            let mut reader = Reader::new(value, &mut findings);
            scenario::elsewhere::lay_over(&mut reader, &overrides.set);
            let asked = reader.peek("kind").unwrap_or(KINDS[0].name).to_owned();
            match KINDS.iter().find(|kind| asked == kind.name) {
                Some(kind) => scenario = (kind.read)(&mut reader, &source, folder, overrides),
                // Which sections there are depends on the kind: with a wrong one nothing else can be judged.
                None => unknown(reader.top(&[]), &asked),
            }
        }
        Err(error) => {
            let at = error.span.start..error.span.end.max(error.span.start + 1);
            let finding = Finding::error(Code::NotToml, Some(at), format!("not valid TOML: {error}"));
            let is_scenario = source.path.ends_with(".toml");
            findings.push(if is_scenario { finding } else { finding.help(known_files(&source.text)) });
        }
    }
    let scenario = scenario.filter(|_| diagnostic::n_errors(&findings) == 0);
    let findings = if scenario.is_some() { findings } else { diagnostic::reasons(findings) };
    Checked { source, findings, scenario }
}

/// Files that are read besides scenarios, in words.
fn known_files(text: &str) -> String {
    let stacks: Vec<&str> = stacks::Stack::WORDS.iter().map(|(name, _)| *name).collect();
    let like = stacks::elsewhere::reads_like(text).map_or_else(String::new, |like| format!("{like}; "));
    format!(
        "{like}a scenario is TOML (`skrull-sim init my`); other files are read of {}: docs/launch-scripts.md",
        stacks.join(", ")
    )
}

/// Says what to write instead of a kind that is none.
fn unknown(mut top: Section<'_>, asked: &str) {
    let finding = top.place("kind").and_then(|at| scenario::elsewhere::finding(asked, at));
    match finding {
        Some(finding) => top.find(finding),
        None => drop(top.word("kind", 0, &words())),
    }
}

/// Names that scenarios may use for policies besides those of training: what kind of policy, its name, what it does.
pub fn policies() -> Vec<(&'static str, &'static str, &'static str)> {
    let memory = scenario::memory::POLICIES.map(|(name, _, about)| ("memory policy", name, about));
    let of_serving = |(name, about)| ("serving policy", name, about);
    let deployment = deployment::run::policies();
    let deployment = deployment.into_iter().map(|(name, about)| ("deployment policy", name, about));
    let tasks = multi_task::run::policies().map(|(name, about)| ("multi-task policy", name, about));
    let curricula =
        ::planner::curriculum::policies::POLICIES.map(|(name, _, about)| ("curriculum policy", name, about));
    let serving = serving::run::policies().into_iter().map(of_serving);
    let graphs = graph::run::policies().into_iter().map(|(name, about)| ("graph policy", name, about));
    let mixed = scenario::mixed_training::POLICIES.map(|(name, _, about)| ("mixed-training policy", name, about));
    serving.chain(deployment).chain(tasks).chain(curricula).chain(memory).chain(graphs).chain(mixed).collect()
}
