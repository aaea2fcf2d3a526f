//! One integration binary: error messages, golden scenarios, determinism, published figures, and the house rules.

mod a100;
mod adapters;
mod amd;
mod attention_ffn;
#[expect(dead_code, reason = "an example is a program; its tests run here, with those of everything else")]
#[path = "../examples/bridge_layouts.rs"]
mod bridge_layouts;
mod buckets;
mod capacity;
mod chakra;
mod checkpoints;
mod codes;
mod combinations;
mod compare;
mod completions;
mod compression;
mod curriculum;
mod data_files;
mod data_order;
mod determinism;
mod docs;
mod doors;
mod drawing;
mod energy;
mod engine_budgets;
mod engine_options;
mod errors;
mod every_key;
mod exports;
mod foreign;
mod frameworks;
mod graph;
mod graphs_and_loops;
mod host_memory;
mod hostile;
mod idle_keys;
mod idle_serving;
mod idle_training;
mod inventory;
mod keys;
mod laws;
mod layouts;
mod long_context;
mod long_serving;
mod measured;
mod mechanisms;
mod memory;
mod metrics;
mod mixed_groups;
mod mixed_training;
mod multi_task;
mod mutations;
mod objective;
mod oom;
mod optimizer;
mod outputs;
mod own_rules;
mod paper;
mod parallelism;
mod product;
mod profiler;
mod readers;
mod rental;
mod report;
mod rl;
mod rooms;
mod scaling;
mod scenarios;
mod schema;
mod served_again;
mod serving;
mod serving_claims;
mod settings;
mod shell;
mod short_traces;
mod starts;
mod style;
mod sweep;
mod tidy;
mod training;
mod tune;
mod whole_files;

use std::path::{Path, PathBuf};

use input::diagnostic::{Severity, Source};
use input::reader::Reader;
use scenario::Overrides;
use scenario::serving::Serving;
use scenario::training::Scenario;
use skrull_sim::kinds::{self, Checked};

/// Root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Folders with sources of the program.
const FOLDERS: [&str; 13] = [
    "src",
    "scenario",
    "hw",
    "packed",
    "input",
    "sim",
    "planner",
    "calibrate",
    "score",
    "stacks",
    "sweep",
    "reports",
    "python/src",
];

/// Sources of the program, their unit tests included.
fn sources() -> Vec<PathBuf> {
    FOLDERS.iter().flat_map(|folder| files(&root().join(folder), "rs")).collect()
}

/// Files below a folder with that ending, in order.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of the repository").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The training scenario that was read.
fn training(checked: Checked) -> Scenario {
    let scenario = checked.scenario.unwrap_or_else(|| panic!("{:?}", checked.findings));
    scenario.training().expect("a scenario of a training step").clone()
}

/// A serving scenario of such a text.
fn serving_of(text: String) -> Serving {
    let source = Source { path: "text.toml".to_owned(), text };
    let value = toml_span::parse(&source.text).expect("a scenario in TOML");
    let mut findings = Vec::new();
    let mut reader = Reader::new(value, &mut findings);
    let read = scenario::serving::read(&mut reader, &source, root(), &Overrides::default());
    assert!(findings.iter().all(|finding| finding.severity != Severity::Error), "{findings:?}");
    read.expect("a good scenario")
}

/// A shipped scenario with keys laid over it.
fn checked(name: &str, set: &[&str]) -> Checked {
    let (source, folder) = scenario::find(name).expect("shipped");
    kinds::check(source, &folder, &over(set))
}

/// A scenario that a test writes, with keys laid over it.
fn written(text: String, set: &[&str]) -> Checked {
    kinds::check(Source { path: "written.toml".to_owned(), text }, Path::new(""), &over(set))
}

/// Keys of a command line.
fn over(set: &[&str]) -> Overrides {
    Overrides { set: set.iter().map(|item| (*item).to_owned()).collect(), ..Overrides::default() }
}

/// Reads a scenario of the repository; its path in messages is relative to the root.
fn check(path: &Path) -> Checked {
    let shown = path.strip_prefix(root()).expect("below the root").display().to_string();
    let text = std::fs::read_to_string(path).expect("a readable scenario");
    kinds::check(Source { path: shown, text }, path.parent().expect("a folder"), &Overrides::default())
}
