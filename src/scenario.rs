//! Scenario files: TOML with the position of every value → a checked `Scenario`.
//!
//! All findings come at once; an unknown key names the nearest known one. `--set section.key=value` is laid over the file and
//! checked the same way. Sections are in files of their own; what only shows between them is in `scenario/checks.rs`.

mod checks;
mod cluster;
mod compression;
mod cost;
pub mod curriculum;
pub mod endpoint;
pub mod expect;
pub mod kv_sharing;
pub mod long_prompt;
pub mod memory;
mod model;
pub mod multi_task;
mod parallel;
pub mod phases;
mod policies;
pub mod pool;
pub mod reader;
pub mod rental;
mod run_list;
mod search;
mod sections;
pub mod serving;
pub mod sparse_decode;
mod stragglers;
mod training;
mod workload;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::cost::profile::Profile;
use planner::Value;
use planner::train::compression::Question;
use planner::train::search::space::Space;
use train::Problem;
use train::layout::ContextExchange;
use train::plan::Origin;
use train::problem::Recompute;
use train::schedule::Schedule;

use crate::diagnostic::{Code, Finding, Severity, Source};
use crate::jobs::{self, Job};
use crate::text_file;
use expect::Expectation;

/// A policy that a scenario runs.
#[derive(Clone, Debug, Default)]
pub struct PolicyChoice {
    /// Name in results: the policy's own, or the variant's.
    pub name: String,
    /// Name in the table of policies.
    pub policy: String,
    /// Parameters, checked against the card.
    pub parameters: BTreeMap<String, Value>,
    /// Pipeline schedule, where it is not the scenario's.
    pub schedule: Option<&'static Schedule>,
    /// Chunks per pipeline rank, where they are not the scenario's.
    pub chunks: Option<u32>,
    /// Context degree, where it is not the scenario's; the data-parallel degree takes what remains.
    pub cp: Option<u32>,
    /// Exchange inside context groups, where it is not the scenario's.
    pub exchange: Option<ContextExchange>,
    /// Activation recompute, where it is not the scenario's.
    pub recompute: Option<Recompute>,
    /// Merging of similar tokens before the all-to-all.
    pub compression: Option<Question>,
    /// Layers of every stage that recompute, where it is not the scenario's.
    pub recompute_layers: Option<u32>,
}

impl PolicyChoice {
    /// The problem that this policy is asked.
    #[must_use]
    pub fn problem(&self, problem: &Problem) -> Problem {
        let mut problem = problem.clone();
        problem.layout.exchange = self.exchange.unwrap_or(problem.layout.exchange);
        let execution = &mut problem.execution;
        execution.recompute = self.recompute.unwrap_or(execution.recompute);
        execution.recompute_layers = self.recompute_layers.unwrap_or(execution.recompute_layers);
        if let Some(cp) = self.cp {
            let ranks = problem.layout.dp * problem.layout.cp;
            problem.layout.cp = cp;
            problem.layout.dp = ranks / cp.max(1);
        }
        let schedule = self.schedule.filter(|_| problem.layout.pp > 1);
        problem.schedule = schedule.unwrap_or(problem.schedule);
        let wanted = self.chunks.unwrap_or_else(|| match schedule {
            Some(schedule) => u32::try_from(schedule.n_chunks).expect("few chunks"),
            None => problem.layout.chunks,
        });
        problem.layout.chunks = parallel::chunks_of(problem.schedule, problem.layout.pp, wanted);
        problem
    }
}

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name.
    pub name: String,
    /// What every policy is asked.
    pub problem: Problem,
    /// Layouts to look at, where the layout is searched for.
    pub search: Option<Space>,
    /// Policies, in order.
    pub policies: Vec<PolicyChoice>,
    /// Policy that speed-ups are relative to.
    pub baseline: String,
    /// Measured profile; `None` for the datasheet roofline.
    pub profile: Option<Profile>,
    /// Whether a query outside the measured hull is an error.
    pub strict_hull: bool,
    /// Share of the peak that matrix products hold under sustained load; 1 is no limit.
    pub sustained_flops_ratio: f64,
    /// Parameters that were fitted and not measured, as sentences.
    pub free_parameters: Vec<String>,
    /// Golden figures.
    pub expectations: Vec<Expectation>,
    /// The file as it was read, with what was laid over it.
    pub origin: Origin,
}

/// Words of `kind`.
fn kinds() -> Vec<&'static str> {
    std::iter::once("training").chain(jobs::KINDS.iter().map(|kind| kind.name)).collect()
}

/// A read scenario with its warnings, or everything that is wrong with it.
pub struct Checked {
    /// Text that findings point into.
    pub source: Source,
    /// Findings; warnings only when a scenario is there.
    pub findings: Vec<Finding>,
    /// The scenario, when it is of training and there is no error.
    pub scenario: Option<Scenario>,
    /// The job, when it is of another kind and there is no error.
    pub job: Option<Box<dyn Job>>,
}

/// What the command line lays over the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `section.key=value`.
    pub set: Vec<String>,
    /// Seed.
    pub seed: Option<u64>,
}

/// Scenarios that are shipped with the program.
pub static EMBEDDED: &[(&str, &str)] = &[
    ("cloud/helix-24", include_str!("../scenarios/cloud/helix-24.toml")),
    ("cloud/helix-24-30b", include_str!("../scenarios/cloud/helix-24-30b.toml")),
    ("cloud/thunderserve-4x4", include_str!("../scenarios/cloud/thunderserve-4x4.toml")),
    ("cloud/thunderserve-4x4-conversation", include_str!("../scenarios/cloud/thunderserve-4x4-conversation.toml")),
    ("quickstart", include_str!("../scenarios/quickstart.toml")),
    ("cloud/hetero-6gpu", include_str!("../scenarios/cloud/hetero-6gpu.toml")),
    ("cloud/milp-example", include_str!("../scenarios/cloud/milp-example.toml")),
    ("curriculum/gradual-qwen2-7b", include_str!("../scenarios/curriculum/gradual-qwen2-7b.toml")),
    ("compiler/llama-1b-codealpaca", include_str!("../scenarios/compiler/llama-1b-codealpaca.toml")),
    ("long-context/all-policies", include_str!("../scenarios/long-context/all-policies.toml")),
    ("long-context/bytescale-7b-github", include_str!("../scenarios/long-context/bytescale-7b-github.toml")),
    ("long-context/bytescale-70b-pipeline", include_str!("../scenarios/long-context/bytescale-70b-pipeline.toml")),
    ("long-context/bytescale-7b-2m", include_str!("../scenarios/long-context/bytescale-7b-2m.toml")),
    ("long-context/bytescale-offload", include_str!("../scenarios/long-context/bytescale-offload.toml")),
    ("long-context/chunkflow-7b-256k", include_str!("../scenarios/long-context/chunkflow-7b-256k.toml")),
    ("long-context/chunkflow-example", include_str!("../scenarios/long-context/chunkflow-example.toml")),
    ("long-context/flexsp-7b-commoncrawl", include_str!("../scenarios/long-context/flexsp-7b-commoncrawl.toml")),
    ("long-context/flexsp-7b-wikipedia", include_str!("../scenarios/long-context/flexsp-7b-wikipedia.toml")),
    ("long-context/hydraulis-32b", include_str!("../scenarios/long-context/hydraulis-32b.toml")),
    ("megatron/gpt-145b-1536", include_str!("../scenarios/megatron/gpt-145b-1536.toml")),
    ("megatron/gpt-175b-1536", include_str!("../scenarios/megatron/gpt-175b-1536.toml")),
    ("megatron/gpt-175b-384", include_str!("../scenarios/megatron/gpt-175b-384.toml")),
    ("megatron/gpt-175b-768", include_str!("../scenarios/megatron/gpt-175b-768.toml")),
    ("megatron/gpt-175b-full", include_str!("../scenarios/megatron/gpt-175b-full.toml")),
    ("megatron/gpt-175b-selective", include_str!("../scenarios/megatron/gpt-175b-selective.toml")),
    ("megatron/gpt-22b-full", include_str!("../scenarios/megatron/gpt-22b-full.toml")),
    ("megatron/gpt-22b-selective", include_str!("../scenarios/megatron/gpt-22b-selective.toml")),
    ("megatron/gpt-39b-512", include_str!("../scenarios/megatron/gpt-39b-512.toml")),
    ("megatron/gpt-530b-2520", include_str!("../scenarios/megatron/gpt-530b-2520.toml")),
    ("megatron/gpt-7.5b-128", include_str!("../scenarios/megatron/gpt-7.5b-128.toml")),
    ("moe/deepseek-v3", include_str!("../scenarios/moe/deepseek-v3.toml")),
    ("moe/lsh-gpt-15b", include_str!("../scenarios/moe/lsh-gpt-15b.toml")),
    ("moe/lsh-gpt-52b", include_str!("../scenarios/moe/lsh-gpt-52b.toml")),
    ("moe/lsh-hashes", include_str!("../scenarios/moe/lsh-hashes.toml")),
    ("moe/mixtral-8x22b", include_str!("../scenarios/moe/mixtral-8x22b.toml")),
    ("multi-task/clip-10", include_str!("../scenarios/multi-task/clip-10.toml")),
    ("multi-task/example", include_str!("../scenarios/multi-task/example.toml")),
    ("multi-task/ofasys-7", include_str!("../scenarios/multi-task/ofasys-7.toml")),
    ("multi-task/qwen-val", include_str!("../scenarios/multi-task/qwen-val.toml")),
    ("pipeline/equal", include_str!("../scenarios/pipeline/equal.toml")),
    ("pipeline/optimal", include_str!("../scenarios/pipeline/optimal.toml")),
    ("pipeline/ragged", include_str!("../scenarios/pipeline/ragged.toml")),
    ("pipeline/schedules", include_str!("../scenarios/pipeline/schedules.toml")),
    ("resilience/malleus-mild", include_str!("../scenarios/resilience/malleus-mild.toml")),
    ("resilience/malleus-node", include_str!("../scenarios/resilience/malleus-node.toml")),
    ("resilience/malleus-severe", include_str!("../scenarios/resilience/malleus-severe.toml")),
    ("resilience/malleus-three", include_str!("../scenarios/resilience/malleus-three.toml")),
    ("resilience/malleus-trace", include_str!("../scenarios/resilience/malleus-trace.toml")),
    ("scale/12k-gpus", include_str!("../scenarios/scale/12k-gpus.toml")),
    ("search/gpt-530b-2520", include_str!("../scenarios/search/gpt-530b-2520.toml")),
    ("serving/capacity", include_str!("../scenarios/serving/capacity.toml")),
    ("serving/capacity-mixed", include_str!("../scenarios/serving/capacity-mixed.toml")),
    ("serving/azure-conv", include_str!("../scenarios/serving/azure-conv.toml")),
    ("serving/bench-rtx4090", include_str!("../scenarios/serving/bench-rtx4090.toml")),
    ("serving/bench-rtxpro6000", include_str!("../scenarios/serving/bench-rtxpro6000.toml")),
    ("serving/disaggregated", include_str!("../scenarios/serving/disaggregated.toml")),
    ("serving/experts", include_str!("../scenarios/serving/experts.toml")),
    ("serving/distkv", include_str!("../scenarios/serving/distkv.toml")),
    ("serving/flash-llm", include_str!("../scenarios/serving/flash-llm.toml")),
    ("serving/qwen-1m", include_str!("../scenarios/serving/qwen-1m.toml")),
    ("serving/mixed-fleet", include_str!("../scenarios/serving/mixed-fleet.toml")),
    ("serving/routers", include_str!("../scenarios/serving/routers.toml")),
    ("serving/silicon", include_str!("../scenarios/serving/silicon.toml")),
    ("serving/sla-planner", include_str!("../scenarios/serving/sla-planner.toml")),
    ("serving/speculation", include_str!("../scenarios/serving/speculation.toml")),
    ("skrull/case-study", include_str!("../scenarios/skrull/case-study.toml")),
    ("skrull/qwen-0.5b-chatqa2", include_str!("../scenarios/skrull/qwen-0.5b-chatqa2.toml")),
    ("skrull/qwen-0.5b-lmsys", include_str!("../scenarios/skrull/qwen-0.5b-lmsys.toml")),
    ("skrull/qwen-0.5b-wikipedia", include_str!("../scenarios/skrull/qwen-0.5b-wikipedia.toml")),
    ("skrull/qwen-7b-chatqa2", include_str!("../scenarios/skrull/qwen-7b-chatqa2.toml")),
    ("skrull/qwen-7b-lmsys", include_str!("../scenarios/skrull/qwen-7b-lmsys.toml")),
    ("validate/gpu-offload", include_str!("../scenarios/validate/gpu-offload.toml")),
    ("validate/gpu-policies", include_str!("../scenarios/validate/gpu-policies.toml")),
    ("validate/cpu-small", include_str!("../scenarios/validate/cpu-small.toml")),
    ("skrull/qwen-7b-wikipedia", include_str!("../scenarios/skrull/qwen-7b-wikipedia.toml")),
];

/// The scenario that a newcomer starts from.
pub const STARTER: &str = "quickstart";

/// A shipped scenario by name.
#[must_use]
pub fn shipped(name: &str) -> Option<&'static str> {
    EMBEDDED.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// Finds a scenario: a file, standard input (`-`), or a shipped one by name.
///
/// # Errors
/// A sentence when there is neither.
pub fn find(name: &str) -> Result<(Source, PathBuf), String> {
    if name == "-" {
        let text = text_file::text(std::io::stdin()).map_err(|why| format!("cannot read standard input: {why}"))?;
        return Ok((Source { path: "stdin".to_owned(), text }, PathBuf::new()));
    }
    if name.is_empty() {
        return Err("the name of the scenario is empty".to_owned());
    }
    let path = Path::new(name);
    let why = match text_file::read(path) {
        Ok(text) => {
            let folder = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
            return Ok((Source { path: name.to_owned(), text }, folder));
        }
        Err(why) => why,
    };
    if let Some(text) = shipped(name) {
        return Ok((Source { path: format!("{name} (shipped)"), text: text.to_owned() }, PathBuf::new()));
    }
    if path.exists() {
        return Err(format!("cannot read scenario `{name}`: {why}"));
    }
    let names = EMBEDDED.iter().map(|(name, _)| *name);
    let hint = crate::diagnostic::nearest(name, names).map_or_else(
        || "`skrull-sim list scenarios` shows the shipped ones".to_owned(),
        |near| format!("did you mean the shipped scenario `{near}`?"),
    );
    Err(format!("cannot read scenario `{name}`; {hint}"))
}

/// Reads and checks a scenario.
#[must_use]
pub fn check(source: Source, folder: &Path, overrides: &Overrides) -> Checked {
    let mut findings = Vec::new();
    let (mut scenario, mut job) = (None, None);
    match toml_span::parse(&source.text) {
        Ok(value) => {
            let mut reader = reader::Reader::new(value, &mut findings);
            reader.lay_over(&overrides.set);
            let asked = reader.peek("kind").map(str::to_owned);
            match jobs::KINDS.iter().find(|kind| asked.as_deref() == Some(kind.name)) {
                Some(kind) => job = (kind.read)(&mut reader, &source, folder, overrides),
                // Which sections there are depends on the kind: with a wrong one nothing else can be judged.
                None if asked.as_deref().is_some_and(|kind| kind != "training") => {
                    reader.top(&[]).word("kind", 0, &kinds());
                }
                None => scenario = sections::read(&mut reader, &source, folder, overrides),
            }
        }
        Err(error) => {
            let at = error.span.start..error.span.end.max(error.span.start + 1);
            findings.push(Finding::error(Code::NotToml, Some(at), format!("not valid TOML: {error}")));
        }
    }
    let failed = findings.iter().any(|finding| finding.severity == Severity::Error);
    Checked { source, findings, scenario: scenario.filter(|_| !failed), job: job.filter(|_| !failed) }
}
