//! Scenarios of `kind = "long-prompt"`: prompts that arrive together, an engine of tensor and pipeline ranks, and ways to compute them.

use std::path::Path;

use engine::Model;
use engine::cost::profile::Profile;
use hw::{Bytes, Cluster};
use serve::long_prompt::chunks::{ChunkLaw, Grain};
use serve::long_prompt::memory::Degrees;
use serve::long_prompt::sparse::{self, Budget, KERNELS, Kernel};
use toml_span::value::ValueInner;

use crate::diagnostic::{Code, Finding, Source};
use crate::scenario::reader::{Reader, Section};
use crate::scenario::run_list::run_list;
use crate::scenario::{Head, Overrides, cluster, cost, expect, model};

const SECTIONS: [&str; 8] = ["model", "cluster", "prompt", "engine", "attention", "policies", "cost", "expect"];

/// A way to compute a prompt, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The whole prompt at once, all keys.
    Dense,
    /// Equal chunks, all keys.
    FixedChunks,
    /// Chunks of equal time, all keys.
    Dcpp,
    /// Equal chunks, vertical-slash attention.
    Sparse,
    /// Chunks of equal time, vertical-slash attention.
    SparseDcpp,
    /// The best of all, by simulation.
    Best,
}

/// Policies with what they do.
pub const POLICIES: [(&str, Policy, &str); 6] = [
    ("dense", Policy::Dense, "a long prompt at once, with all keys"),
    ("fixed-chunks", Policy::FixedChunks, "a long prompt in equal chunks, with all keys"),
    ("dcpp", Policy::Dcpp, "dynamic chunked pipeline parallelism: chunks of equal time, with all keys"),
    ("sparse", Policy::Sparse, "a long prompt in equal chunks, with vertical-slash sparse attention"),
    ("sparse-dcpp", Policy::SparseDcpp, "chunks of equal time, with vertical-slash sparse attention"),
    ("best", Policy::Best, "the best cut, chunk size and attention for a long prompt, by simulation of all"),
];

/// One way that a scenario compares.
#[derive(Clone, Copy, Debug)]
pub struct PromptChoice {
    /// Way.
    pub policy: Policy,
    /// Tokens of a prompt.
    pub tokens: u64,
    /// GPUs.
    pub degrees: Degrees,
    /// First chunk of dynamic cuts, every chunk of equal ones.
    pub chunk_tokens: u64,
    /// Sparse kernel.
    pub kernel: &'static Kernel,
    /// Whether dynamic chunks are kept to single prompts.
    pub is_gated: bool,
    /// Stage times that replace the cost model.
    pub law: Option<ChunkLaw>,
}

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct LongPrompt {
    /// Whose it is.
    pub head: Head,
    /// Architecture.
    pub model: Model,
    /// Machine.
    pub cluster: Cluster,
    /// Memory of a GPU that the engine may use.
    pub room: Bytes,
    /// Prompts that arrive together.
    pub n_prompts: u32,
    /// Sizes that chunks may have.
    pub grain: Grain,
    /// Share of the peak that dense attention reaches: a free parameter.
    pub flops_ratio: f64,
    /// Keys above which a chunk is sparse.
    pub threshold: u64,
    /// Positions per head.
    pub budget: Option<Budget>,
    /// Ways, in order.
    pub choices: Vec<(String, PromptChoice)>,
    /// Measured profile; `None` for the datasheet roofline.
    pub profile: Option<Profile>,
    /// Share of the peak that matrix products hold under sustained load.
    pub sustained_flops_ratio: f64,
    /// Parameters that were fitted and not measured, as sentences.
    pub free_parameters: Vec<String>,
}

fn small(n: u64) -> u32 {
    u32::try_from(n).expect("ranges keep counts below 2^32")
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<LongPrompt> {
    let head = Head::read(reader, &SECTIONS, source, overrides);
    let model = model::model(reader.section("model"), folder);
    let cluster = cluster::cluster(reader.section("cluster"));
    let (tokens, n_prompts) = prompt(reader.section("prompt"));
    let (base, grain, memory_ratio) = engine(reader.section("engine"), tokens);
    let attention = attention(reader.section("attention"));
    let base = PromptChoice { kernel: attention.kernel, ..base };
    let run = policies(reader.section("policies"), base);
    let gpu = cluster.as_ref().map(|(cluster, _)| cluster.gpu.name.as_str());
    let cost = cost::of_engine(reader.section("cost"), folder, gpu);
    let expectations = expect::read(reader.section("expect"));
    let (model, (cluster, reserved)) = model.zip(cluster)?;
    let room = Bytes::from_f64(cluster.gpu.memory.as_f64() * memory_ratio).0.saturating_sub(reserved.0);
    let budget = attention.budget.or_else(|| sparse::budget(&model.name).cloned());
    let mut free_parameters = vec![format!(
        "`attention.flops_ratio` = {}: share of the peak that dense attention reaches, calibrated and not measured",
        attention.flops_ratio
    )];
    if cost.sustained_flops_ratio < 1.0 {
        free_parameters.push(format!("`cost.sustained_flops_ratio` = {}: fitted", cost.sustained_flops_ratio));
    }
    let scenario = LongPrompt {
        head: Head { baseline: run.baseline, expectations, ..head },
        model,
        cluster,
        room: Bytes(room),
        n_prompts,
        grain,
        flops_ratio: attention.flops_ratio,
        threshold: attention.threshold,
        budget,
        choices: run.choices,
        profile: cost.profile,
        sustained_flops_ratio: cost.sustained_flops_ratio,
        free_parameters,
    };
    cross_checks(reader, &scenario);
    Some(scenario)
}

fn prompt(mut section: Section<'_>) -> (u64, u32) {
    let tokens = section.count("tokens", None, 1..=4_000_000).0;
    let n_prompts = small(section.count("n", Some(1), 1..=1000).0);
    section.finish();
    (tokens, n_prompts)
}

/// The choice that every policy starts from, the grain of chunks, and the share of memory that may be used.
fn engine(mut section: Section<'_>, tokens: u64) -> (PromptChoice, Grain, f64) {
    let tensor = small(section.count("tp", Some(1), 1..=1024).0);
    let pipeline = small(section.count("pp", Some(1), 1..=1024).0);
    let chunk_tokens = section.count("chunk_tokens", Some(32_768), 1..=16_000_000).0;
    let block = section.count("block_tokens", Some(64), 1..=65_536).0;
    let least = section.count("chunk_tokens_min", Some(block), 1..=1_000_000).0;
    let memory_ratio = section.number("memory_ratio", 0.9, 0.01..=1.0);
    section.finish();
    let degrees = Degrees { tensor, pipeline };
    let (kernel, law, is_gated) = (&KERNELS[0], None, true);
    let choice = PromptChoice { policy: Policy::Dense, tokens, degrees, chunk_tokens, kernel, is_gated, law };
    (choice, Grain { block, least }, memory_ratio)
}

struct AttentionSection {
    flops_ratio: f64,
    threshold: u64,
    kernel: &'static Kernel,
    budget: Option<Budget>,
}

fn kernel(section: &mut Section<'_>, default: &'static Kernel) -> &'static Kernel {
    let names = KERNELS.each_ref().map(|kernel| kernel.name);
    let index = KERNELS.iter().position(|kernel| kernel == default).unwrap_or(0);
    &KERNELS[section.word("kernel", index, &names)]
}

fn attention(mut section: Section<'_>) -> AttentionSection {
    let flops_ratio = section.number("flops_ratio", 0.6, 0.01..=1.0);
    let threshold = section.count("sparse_above_tokens", Some(32_768), 0..=16_000_000).0;
    let kernel = kernel(&mut section, &KERNELS[0]);
    let vertical = section.number("vertical", 0.0, 0.0..=1e7);
    let slash = section.number("slash", 0.0, 0.0..=1e7);
    section.finish();
    let budget = (vertical + slash > 0.0).then(|| Budget::even(vertical, slash));
    AttentionSection { flops_ratio, threshold, kernel, budget }
}

fn policies(mut section: Section<'_>, base: PromptChoice) -> crate::scenario::run_list::RunList<PromptChoice> {
    let mut variants = Vec::new();
    section.each_table("variant", &mut |table| variants.extend(variant(table, base)));
    let plain = POLICIES.iter().map(|(name, policy, _)| (*name, PromptChoice { policy: *policy, ..base })).collect();
    let run = run_list(&mut section, plain, variants);
    section.finish();
    run
}

/// `[[policies.variant]]`: a policy under a name of its own, with settings of its own.
fn variant(mut section: Section<'_>, base: PromptChoice) -> Option<(String, PromptChoice)> {
    let name = section.name();
    let words = POLICIES.map(|(name, ..)| name);
    let policy = POLICIES[section.word("policy", 0, &words)].1;
    let tensor = small(section.count("tp", Some(base.degrees.tensor.into()), 1..=1024).0);
    let pipeline = small(section.count("pp", Some(base.degrees.pipeline.into()), 1..=1024).0);
    let choice = PromptChoice {
        policy,
        tokens: section.count("tokens", Some(base.tokens), 1..=4_000_000).0,
        degrees: Degrees { tensor, pipeline },
        chunk_tokens: section.count("chunk_tokens", Some(base.chunk_tokens), 1..=16_000_000).0,
        kernel: kernel(&mut section, base.kernel),
        is_gated: section.flag("gate", base.is_gated),
        law: law(&mut section),
    };
    section.finish();
    name.map(|name| (name, choice))
}

/// `stage_ms = { a, b, c, gamma }`: coefficients of a stage's time in milliseconds.
fn law(section: &mut Section<'_>) -> Option<ChunkLaw> {
    let (value, at) = section.take("stage_ms")?;
    let found = match value {
        ValueInner::Table(mut table) => {
            let mut seconds = |key: &'static str| {
                let value = table.remove(key)?;
                let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64))?;
                (0.0..=1e9).contains(&number).then_some(number / 1e3)
            };
            let law = (seconds("a"), seconds("b"), seconds("c"), seconds("gamma"));
            match (law, table.is_empty()) {
                ((Some(a), Some(b), Some(c), Some(gamma)), true) => Some(ChunkLaw { a, b, c, gamma }),
                _ => None,
            }
        }
        _ => None,
    };
    if found.is_none() {
        let what = "`stage_ms` needs exactly `a`, `b`, `c` and `gamma`, numbers from 0 to 1e9";
        let help = "milliseconds of a stage for x tokens after P: c + gamma P + a (2 P x + x x) + b x";
        section.find(Finding::error(Code::WrongStageLaw, at, what).help(help));
    }
    found
}

/// Degrees fit the cluster and the model; sparse attention has a budget.
fn cross_checks(reader: &mut Reader<'_>, scenario: &LongPrompt) {
    let (n_gpus, model) = (scenario.cluster.n_gpus(), &scenario.model);
    for (name, choice) in &scenario.choices {
        if choice.law.is_some() {
            continue;
        }
        let Degrees { tensor, pipeline } = choice.degrees;
        if tensor * pipeline > n_gpus {
            let what = format!("`{name}` takes tp {tensor} × pp {pipeline} GPUs, the cluster has {n_gpus}");
            reader.find(Finding::error(Code::WrongGpuCount, None, what).help("lower `engine.tp` or `engine.pp`"));
        }
        if !model.n_heads.is_multiple_of(u64::from(tensor)) || !model.n_layers.is_multiple_of(u64::from(pipeline)) {
            let (heads, layers) = (model.n_heads, model.n_layers);
            let what = format!(
                "`{name}`: tp {tensor} must divide the {heads} heads and pp {pipeline} the {layers} layers of `{}`",
                model.name
            );
            reader.find(Finding::error(Code::UnevenDegree, None, what));
        }
        let is_sparse = matches!(choice.policy, Policy::Sparse | Policy::SparseDcpp);
        if is_sparse && scenario.budget.is_none() {
            let known: Vec<&str> = sparse::budgets().collect();
            let what = format!("no sparse budget is shipped for `{}`", model.name);
            let help = format!("write `attention.vertical` and `attention.slash`; shipped are {}", known.join(", "));
            reader.find(Finding::error(Code::NoSparseBudget, None, what).help(help));
        }
    }
}
