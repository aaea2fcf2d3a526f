//! Kinds of scenarios besides training: each reads its sections into a job, and the verbs know a job only by its trait.
//!
//! A kind is a file under `scenario/` that reads it, a file under `jobs/` that runs it, and a row of `KINDS`.

pub mod phases;
pub mod pool;
pub mod serving;

use std::path::Path;

use reports::RunResult;

use crate::diagnostic::Source;
use crate::scenario::expect::Expectation;
use crate::scenario::reader::Reader;
use crate::scenario::{self, Overrides};

/// A checked scenario that knows how to run.
pub trait Job: Send + Sync {
    /// Name of the scenario.
    fn name(&self) -> &str;

    /// Names of what it compares, in order.
    fn choices(&self) -> Vec<&str>;

    /// Golden figures.
    fn expectations(&self) -> &[Expectation];

    /// Runs every choice; `done` is called as each finishes. Everything outside `measured` is a function of scenario and version.
    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult;

    /// Decides only: the plan of a choice; `None` where the kind has nothing to decide.
    fn plan(&self, _choice: &str) -> Option<Result<Planned, String>> {
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

/// Reads the sections of a kind; `None` when a part is so wrong that the rest cannot be built.
type Read = fn(&mut Reader<'_>, &Source, &Path, &Overrides) -> Option<Box<dyn Job>>;

/// A row of the table of kinds.
pub struct Kind {
    /// Word of `kind`.
    pub name: &'static str,
    /// What such a scenario asks, in a sentence.
    pub about: &'static str,
    /// Reads one.
    pub read: Read,
}

/// Every kind but training.
pub static KINDS: &[Kind] = &[
    Kind {
        name: "serving",
        about: "what do clients of an engine and a fleet see: latencies, goodput, dollars",
        read: |reader, source, folder, overrides| {
            scenario::serving::read(reader, source, folder, overrides).map(|job| Box::new(job) as Box<dyn Job>)
        },
    },
    Kind {
        name: "pool",
        about: "which layers of one model go to which nodes of a mixed pool, and how requests travel through them",
        read: |reader, source, folder, overrides| {
            scenario::pool::read(reader, source, folder, overrides).map(|job| Box::new(job) as Box<dyn Job>)
        },
    },
    Kind {
        name: "phases",
        about: "whether prefill and decode go to different groups of a mixed pool, and which",
        read: |reader, source, folder, overrides| {
            scenario::phases::read(reader, source, folder, overrides).map(|job| Box::new(job) as Box<dyn Job>)
        },
    },
];
