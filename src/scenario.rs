//! What scenario files of every kind share: TOML with the position of every value, sections that many kinds have, expectations.
//!
//! All findings come at once; an unknown key names the nearest known one. `--set section.key=value` is laid over the file and
//! checked the same way. Which sections a scenario has, its kind knows (`kinds/<kind>/read.rs`); nothing here knows a kind.

pub mod cluster;
pub mod cost;
pub mod expect;
pub mod model;
pub mod reader;
pub mod run_list;

use std::path::{Path, PathBuf};

use train::plan::Origin;

use crate::diagnostic::Source;
use crate::text_file;
use expect::Expectation;
use reader::{Reader, Section};

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

/// Whose a scenario is and what it was read from: what every report says, whatever was asked.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// Word of `kind`.
    pub kind: String,
    /// Name in results and of the folder that they are written to.
    pub name: String,
    /// Seed of every random choice.
    pub seed: u64,
    /// The choice that the others are compared with.
    pub baseline: String,
    /// Golden figures.
    pub expectations: Vec<Expectation>,
    /// The file as it was read, with what was laid over it.
    pub origin: Origin,
}

impl Head {
    /// Reads the keys before the sections, where a kind has none of its own.
    pub fn read(reader: &mut Reader<'_>, sections: &[&'static str], source: &Source, overrides: &Overrides) -> Self {
        let mut top = reader.top(sections);
        let head = Self::of(&mut top, source, overrides);
        top.finish();
        head
    }

    /// Takes its keys from those before the sections. `kind` was looked at before: its word is known, or there is none.
    pub fn of(top: &mut Section<'_>, source: &Source, overrides: &Overrides) -> Self {
        let name = name(top, source);
        let kind = top.text("kind").map_or_else(|| "training".to_owned(), |(kind, _)| kind);
        let seed = top.count("seed", Some(0), 0..=u64::MAX >> 1).0;
        let origin = Origin {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            scenario: source.path.clone(),
            text: source.text.clone(),
            set: overrides.set.clone(),
            seed: overrides.seed,
        };
        Self { kind, name, seed: overrides.seed.unwrap_or(seed), origin, ..Self::default() }
    }
}

/// The scenario's name: given, or that of its file.
fn name(top: &mut Section<'_>, source: &Source) -> String {
    let stem =
        Path::new(&source.path).file_stem().map_or("scenario".into(), |stem| stem.to_string_lossy().into_owned());
    let stem = stem.trim_end_matches(" (shipped)").to_owned();
    let Some((name, at)) = top.text("name") else { return stem };
    top.plain_name(&name, at);
    name
}
