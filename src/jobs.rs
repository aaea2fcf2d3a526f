//! Kinds of scenarios besides training: each reads its sections into a job, and the verbs know a job only by its trait.
//!
//! A kind is a file under `scenario/` that reads it, a file under `jobs/` that runs it, and a row of `KINDS`.

pub mod capacity;
pub mod curriculum;
pub mod endpoint;
pub mod kv_sharing;
pub mod long_prompt;
pub mod memory;
pub mod multi_task;
pub mod phases;
pub mod pool;
pub mod rental;
pub mod serving;
pub mod sparse_decode;

use std::collections::BTreeMap;
use std::path::Path;

use engine::cost::Source;
use rayon::prelude::*;
use reports::{Column, PolicyResult, RunResult};

use crate::diagnostic;
use crate::scenario::expect::Expectation;
use crate::scenario::reader::Reader;
use crate::scenario::{self, Overrides};

/// What every job has.
pub struct Header<'a> {
    /// Name of the scenario.
    pub name: &'a str,
    /// Names of what it compares, in order.
    pub choices: Vec<&'a str>,
    /// Golden figures.
    pub expectations: &'a [Expectation],
}

/// A checked scenario that knows how to run.
pub trait Job: Send + Sync {
    /// Whose it is and what it compares.
    fn header(&self) -> Header<'_>;

    /// Runs every choice; `done` is called as each finishes. Everything outside `measured` is a function of scenario and version.
    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult;

    /// Decides only: the plan of a choice; `None` where the kind has nothing to decide.
    fn plan(&self, _choice: &str) -> Option<Result<Planned, String>> {
        None
    }

    /// What it asks about capacity; `None` where it asks nothing.
    fn capacity(&self) -> Option<&capacity::Question> {
        None
    }
}

/// A plan of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planned {
    /// `plan.json`.
    pub json: serde_json::Value,
    /// What was decided, for a person.
    pub words: String,
}

impl Planned {
    /// What a row decided: its planner's facts and metrics, and the same in words.
    ///
    /// # Errors
    /// The row's reason where nothing was decided.
    fn of_row(row: &PolicyResult) -> Result<Self, String> {
        if row.status != "ok" {
            return Err(format!("{}: {}", row.status, row.why));
        }
        let facts = row.planner.clone().unwrap_or_default();
        let json = serde_json::json!({ "policy": row.policy, "plan": facts, "predicted": row.metrics });
        let words = [row.why.clone(), facts.words(0.0)].into_iter().chain(facts.notes).collect::<Vec<_>>().join("\n");
        Ok(Self { json, words })
    }
}

/// A result with nothing in it yet but whose it is.
fn head(name: &str, seed: u64, baseline: &str) -> RunResult {
    RunResult {
        schema: reports::SCHEMA.to_owned(),
        scenario: name.to_owned(),
        seed,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        baseline: baseline.to_owned(),
        ..RunResult::default()
    }
}

/// A row for every choice, in parallel, collected in order; `done` is called with the name of each as it finishes.
fn rows<C: Sync, R: Send>(
    choices: &[C],
    name: impl Fn(&C) -> &str + Sync,
    done: &(dyn Fn(&str) + Sync),
    row: impl Fn(&C) -> R + Sync,
) -> Vec<R> {
    choices
        .par_iter()
        .map(|choice| {
            let row = row(choice);
            done(name(choice));
            row
        })
        .collect()
}

/// Rows apart from the sources of their costs, of which the weakest counts.
fn weakest(rows: Vec<(PolicyResult, Source)>) -> (Vec<PolicyResult>, Source) {
    let source = rows.iter().map(|(_, source)| *source).max().unwrap_or(Source::Datasheet);
    (rows.into_iter().map(|(row, _)| row).collect(), source)
}

/// Metrics that a table shows, with their headings.
fn columns(columns: &[(&str, &str)]) -> Vec<Column> {
    columns.iter().map(|(key, heading)| Column { key: (*key).to_owned(), heading: (*heading).to_owned() }).collect()
}

/// What every row is worth over what the baseline is; rows without a worth are left out.
fn gains(
    results: &[PolicyResult],
    baseline: &str,
    worth: impl Fn(&PolicyResult) -> Option<f64>,
) -> BTreeMap<String, f64> {
    let base = results.iter().find(|row| row.policy == baseline).and_then(&worth);
    results.iter().filter_map(|row| Some((row.policy.clone(), worth(row)? / base?))).collect()
}

/// Reads the sections of a kind; `None` when a part is so wrong that the rest cannot be built.
type Read = fn(&mut Reader<'_>, &diagnostic::Source, &Path, &Overrides) -> Option<Box<dyn Job>>;

/// A row of the table of kinds.
pub struct Kind {
    /// Word of `kind`.
    pub name: &'static str,
    /// What such a scenario asks, in a sentence.
    pub about: &'static str,
    /// Reads one.
    pub read: Read,
}

/// What was read, as a job.
fn boxed(job: Option<impl Job + 'static>) -> Option<Box<dyn Job>> {
    job.map(|job| Box::new(job) as Box<dyn Job>)
}

/// Every kind but training.
pub static KINDS: &[Kind] = &[
    Kind {
        name: "serving",
        about: "what do clients of an engine and a fleet see: latencies, goodput, dollars",
        read: |reader, source, folder, overrides| boxed(scenario::serving::read(reader, source, folder, overrides)),
    },
    Kind {
        name: "rental",
        about: "which GPUs to rent within a budget, how to deploy them, and who serves what, so that work ends soonest",
        read: |reader, source, folder, overrides| boxed(scenario::rental::read(reader, source, folder, overrides)),
    },
    Kind {
        name: "endpoint",
        about: "mean latencies of endpoints at a held concurrency, from coefficients of published runs",
        read: |reader, source, folder, overrides| boxed(scenario::endpoint::read(reader, source, folder, overrides)),
    },
    Kind {
        name: "long-prompt",
        about: "how soon does a very long prompt get its first token: chunks, pipeline, sparse attention",
        read: |reader, source, folder, overrides| boxed(scenario::long_prompt::read(reader, source, folder, overrides)),
    },
    Kind {
        name: "kv-sharing",
        about: "what do instances gain that lend each other memory for keys and values",
        read: |reader, source, folder, overrides| boxed(scenario::kv_sharing::read(reader, source, folder, overrides)),
    },
    Kind {
        name: "sparse-decode",
        about: "what do sparse weights gain: GPUs, batch and tokens per second and GPU",
        read: |reader, source, folder, overrides| {
            boxed(scenario::sparse_decode::read(reader, source, folder, overrides))
        },
    },
    Kind {
        name: "multi-task",
        about: "how do tasks that share parts of a model train together: who runs where and when in an iteration",
        read: |reader, source, folder, overrides| boxed(scenario::multi_task::read(reader, source, folder, overrides)),
    },
    Kind {
        name: "pool",
        about: "which layers of one model go to which nodes of a mixed pool, and how requests travel through them",
        read: |reader, source, folder, overrides| boxed(scenario::pool::read(reader, source, folder, overrides)),
    },
    Kind {
        name: "phases",
        about: "whether prefill and decode go to different groups of a mixed pool, and which",
        read: |reader, source, folder, overrides| boxed(scenario::phases::read(reader, source, folder, overrides)),
    },
    Kind {
        name: "curriculum",
        about: "which facts to fine-tune on in which stage, with how much replay, and what classifying them costs",
        read: |reader, source, folder, overrides| boxed(scenario::curriculum::read(reader, source, folder, overrides)),
    },
    Kind {
        name: "memory",
        about: "what a step of changing sizes needs: order of operations, evictions and recompute by symbolic sizes",
        read: |reader, source, folder, overrides| boxed(scenario::memory::read(reader, source, folder, overrides)),
    },
];

/// Names that scenarios may use for policies besides those of training: what kind of policy, its name, what it does.
#[must_use]
pub fn policies() -> Vec<(&'static str, &'static str, &'static str)> {
    let long_prompt = scenario::long_prompt::POLICIES.map(|(name, _, about)| (name, about));
    let kv_sharing = scenario::kv_sharing::POLICIES.map(|(name, _, about)| (name, about));
    let sparse_decode = scenario::sparse_decode::POLICIES.map(|(name, _, about)| (name, about));
    // `sparse` and `dense` are words of two kinds; here they are those of prompts.
    let other = sparse_decode.into_iter().filter(|(name, _)| long_prompt.iter().all(|(known, _)| known != name));
    let pools = pool::policies().into_iter().chain(phases::policies());
    let memory = scenario::memory::POLICIES.map(|(name, _, about)| ("memory policy", name, about));
    let of_serving = |(name, about)| ("serving policy", name, about);
    let rental = rental::policies().into_iter().map(|(name, about)| ("rental policy", name, about));
    let tasks = multi_task::policies().map(|(name, about)| ("multi-task policy", name, about));
    let others = long_prompt.into_iter().chain(kv_sharing).chain(other).chain(pools);
    let curricula = scenario::curriculum::POLICIES.map(|(name, _, about)| ("curriculum policy", name, about));
    let serving = serving::policies().into_iter().map(of_serving);
    serving.chain(rental).chain(tasks).chain(others.map(of_serving)).chain(curricula).chain(memory).collect()
}
