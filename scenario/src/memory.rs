//! Scenarios of `kind = "memory"`: a step whose batch and sequence length change, a device's memory, and compilers that know sizes or do not.

mod graph;

use std::path::Path;

use engine::Model;
use engine::cost::profile::Profile;
use hw::{Bytes, Cluster};
use planner::train::rematerialisation::batches::{Compiler, Steps};
use planner::train::rematerialisation::{Manager, Rules};
use train::problem::AttentionKernel;
use train::tensor_graph::TensorGraph;
use train::tensor_graph::play::Eviction;
use train::tensor_graph::symbolic::Symbol;
use train::tensor_graph::transformer::training_step;

use crate::training::{no_effect, workload};
use crate::{Head, Overrides, cluster, cost, expect, model};
use input::diagnostic::{Code, Source};
use input::reader::{Reader, Section, counts};
use input::run_list::{RunList, run_list};

const SECTIONS: [&str; 8] = ["model", "cluster", "step", "workload", "compiler", "policies", "cost", "expect"];

/// Longest sequence of such a step: products of its sizes stay below 2^63.
const SEQUENCE_MAX: u64 = 1_000_000;
/// Most sequences of a batch.
const BATCH_MAX: u32 = 1024;

const EVERY_RULE: &[Eviction] = &[Eviction::SizeTimesDistance, Eviction::LeastTimePerByte, Eviction::FirstFound];
const BY_SIZE: &[Eviction] = &[Eviction::SizeTimesDistance];

/// Words of `eviction`.
const EVICTIONS: [(&str, Option<Manager>); 6] = [
    ("none", None),
    ("first-found", Some(Manager::AtLimit(Eviction::FirstFound))),
    ("size-times-distance", Some(Manager::AtLimit(Eviction::SizeTimesDistance))),
    ("least-time-per-byte", Some(Manager::AtLimit(Eviction::LeastTimePerByte))),
    ("searched", Some(Manager::Searched(BY_SIZE))),
    ("least-recompute", Some(Manager::Searched(EVERY_RULE))),
];

const DYNAMIC: Compiler = Compiler { bucket_tokens: 0, schedule: false, manager: None, limit: Bytes(0) };
const SCHEDULED: Compiler = Compiler { schedule: true, ..DYNAMIC };
/// A bucket for each multiple of this, where a scenario says nothing.
const BUCKET_TOKENS: u64 = 256;

/// Policies with what they do.
pub const POLICIES: [(&str, Compiler, &str); 5] = [
    (
        "padded",
        Compiler { bucket_tokens: BUCKET_TOKENS, manager: Some(Manager::Searched(EVERY_RULE)), ..SCHEDULED },
        "a static compiler: sequences padded to buckets, a program compiled for each, memory planned from exact sizes",
    ),
    ("dynamic", DYNAMIC, "a compiler for dynamic shapes as operations come, nothing done about memory (BladeDISC)"),
    ("scheduled", SCHEDULED, "operations ordered for least memory by symbolic sizes"),
    (
        "bladedisc++",
        Compiler { manager: Some(Manager::Searched(BY_SIZE)), ..SCHEDULED },
        "the same, and what does not fit is evicted at run time by size times distance and made again (arXiv:2412.16985)",
    ),
    (
        "least-recompute",
        Compiler { manager: Some(Manager::Searched(EVERY_RULE)), ..SCHEDULED },
        "the same by whichever rule of eviction computes least again for the sizes of a batch",
    ),
];

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct MemoryScenario {
    /// Whose it is.
    pub head: Head,
    /// The steps.
    pub steps: Steps,
    /// Machine; one GPU of it.
    pub cluster: Cluster,
    /// Sequences of a batch, a row of each policy for each.
    pub batch_sizes: Vec<u32>,
    /// Compilers, in order.
    pub choices: Vec<(String, Compiler)>,
    /// Measured profile; `None` for the datasheet roofline.
    pub profile: Option<Profile>,
    /// Share of the peak that matrix products hold under sustained load.
    pub sustained_flops_ratio: f64,
    /// Parameters that were fitted or assumed, as sentences.
    pub free_parameters: Vec<String>,
}

impl MemoryScenario {
    /// Every compiler at every batch size; the size is part of the name where there are several.
    pub fn asked(&self) -> Vec<(String, &Compiler, u32)> {
        let is_one = self.batch_sizes.len() == 1;
        let name = |policy: &str, size: u32| if is_one { policy.to_owned() } else { format!("{policy}@{size}") };
        let sizes = self.batch_sizes.iter().flat_map(|size| self.choices.iter().map(move |choice| (choice, *size)));
        sizes.map(|((policy, choice), size)| (name(policy, size), choice, size)).collect()
    }
}

/// What `[step]` says.
struct Step {
    batch_sizes: Vec<u32>,
    n_batches: u64,
    attention: AttentionKernel,
}

/// What `[compiler]` says.
struct CompilerSection {
    symbols: [Symbol; 2],
    rules: Rules,
    bucket_tokens: u64,
    compile_s: f64,
    check_us: f64,
    fragmentation: f64,
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<MemoryScenario> {
    let links = no_effect::Given::of(reader, false);
    let compiler = compiler(reader.section("compiler"));
    let mut top = reader.top(&SECTIONS);
    let head = Head::of(&mut top, source, overrides);
    let given = graph::read(&mut top, &compiler.symbols);
    top.finish();
    let step = step(reader.section("step"), given.is_some());
    let model =
        (reader.has("model") || given.is_none()).then(|| model::model(reader.section("model"), folder)).flatten();
    let graph = step_graph(reader, given, model.as_ref(), &compiler, &step);
    let cluster = cluster::cluster(reader.section("cluster"));
    let largest = step.batch_sizes.iter().max().copied().unwrap_or(1);
    let workload =
        workload::workload(reader.section("workload"), folder, (u64::from(largest), step.n_batches), head.seed);
    let run = policies(reader.section("policies"), compiler.bucket_tokens);
    let gpu = cluster.as_ref().map(|(cluster, _)| cluster.gpu.name.as_str());
    let cost = cost::of_engine(reader.section("cost"), folder, gpu, None);
    let expectations = expect::read(reader.section("expect"));
    let (graph, ((cluster, reserved), workload)) = graph.zip(cluster.zip(workload))?;
    if cluster.n_gpus() > 1 {
        let what = format!("{} of {} GPUs change nothing", cluster.n_gpus() - 1, cluster.n_gpus());
        reader.warn(Code::NoEffect, None, what, "a step of symbolic sizes runs on one GPU");
    }
    no_effect::of_host_links(
        reader,
        &links,
        (&cluster, 1),
        "a copy to the host, and compilers evict what they compute again",
    );
    cross_checks(reader, &compiler, &step, &workload.lengths);
    let steps = Steps {
        graph,
        room: Bytes(cluster.gpu.memory.0.saturating_sub(reserved.0)),
        fragmentation: compiler.fragmentation,
        n_batches: usize::try_from(step.n_batches).expect("a range keeps it small"),
        lengths: workload.lengths,
        rules: compiler.rules,
        check_ns: hw::Span::from_seconds(hw::Seconds::new(compiler.check_us / 1e6)).as_ns(),
        compile_s: compiler.compile_s,
    };
    Some(MemoryScenario {
        head: Head { baseline: run.baseline, expectations, ..head },
        steps,
        cluster,
        batch_sizes: step.batch_sizes,
        choices: run.choices,
        profile: cost.profile,
        sustained_flops_ratio: cost.sustained_flops_ratio,
        free_parameters: free_parameters(&compiler, cost.sustained_flops_ratio),
    })
}

/// The step of a model, or the one that is given.
fn step_graph(
    reader: &mut Reader<'_>,
    given: Option<TensorGraph>,
    model: Option<&Model>,
    compiler: &CompilerSection,
    step: &Step,
) -> Option<TensorGraph> {
    let Some(model) = model else { return given };
    if given.is_some() {
        let what = "a step is either of `[model]` or of `[[operation]]`";
        reader.refuse(Code::ExclusiveKeys, None, what, "keep the one that is meant");
    }
    let [batch, sequence] = compiler.symbols.clone();
    training_step(model, step.attention, batch, sequence)
        .map_err(|why| reader.wrong(Code::UnsupportedModel, None, why.to_string()))
        .ok()
}

fn free_parameters(compiler: &CompilerSection, sustained_flops_ratio: f64) -> Vec<String> {
    let given = [
        ("compiler.compile_s", compiler.compile_s, 0.0),
        ("compiler.check_us", compiler.check_us, 0.0),
        ("compiler.fragmentation", compiler.fragmentation, 1.0),
        ("cost.sustained_flops_ratio", sustained_flops_ratio, 1.0),
    ];
    let words = |(key, value, _): (&str, f64, f64)| format!("`{key}` = {value}: fitted or assumed, not measured");
    given.into_iter().filter(|(_, value, plain)| (value - plain).abs() > 0.0).map(words).collect()
}

fn step(mut section: Section<'_>, has_operations: bool) -> Step {
    if has_operations {
        section.idle(&["attention"], "`[model]`: operations that are given are what they are");
    }
    if !section.has("batch_sizes") {
        section.missing("batch_sizes", "sequences of a batch, for example `batch_sizes = [14, 16, 18]`");
    }
    let batch_sizes = counts(&mut section, "batch_sizes", &[1], BATCH_MAX);
    let n_batches = section.count("batches", Some(100), 1..=10_000).0;
    let attention =
        [AttentionKernel::Flash, AttentionKernel::Unfused][section.word("attention", 0, &["flash", "unfused"])];
    section.finish();
    Step { batch_sizes, n_batches, attention }
}

/// What a compiler knows of a symbol.
fn symbol(section: &mut Section<'_>, name: &str, keys: [&'static str; 3], most: u64) -> Symbol {
    let (low, _) = section.count(keys[0], Some(1), 1..=most);
    let (high, at) = section.count(keys[1], Some(0), 0..=most);
    let (likely, likely_at) = section.count(keys[2], Some(0), 0..=most);
    let known = |value: u64| (value > 0).then_some(value);
    let (high, likely) = (known(high), known(likely));
    if high.is_some_and(|high| high < low) {
        let what = format!("`compiler.{}` is below `compiler.{}`", keys[1], keys[0]);
        section.refuse(Code::WrongBounds, at, what, "a largest size is not below the least");
    }
    if likely.is_some_and(|likely| likely < low || high.is_some_and(|high| high < likely)) {
        let what = format!("`compiler.{}` lies outside of what the compiler knows", keys[2]);
        section.refuse(Code::WrongBounds, likely_at, what, "a likely size lies between the least and the largest");
    }
    // Between two known ends the middle is as likely as anything.
    let likely = likely.or_else(|| high.map(|high| low.midpoint(high.max(low))));
    Symbol { name: name.to_owned(), low, high, likely }
}

fn compiler(mut section: Section<'_>) -> CompilerSection {
    let batch = symbol(&mut section, "batch", ["batch_min", "batch_max", "batch_likely"], u64::from(BATCH_MAX));
    let keys = ["sequence_min", "sequence_max", "sequence_likely"];
    let sequence = symbol(&mut section, "sequence", keys, SEQUENCE_MAX);
    let default = Rules::default();
    let whole = |n: u64| usize::try_from(n).expect("ranges keep counts small");
    let rules = Rules {
        distance: whole(section.count("distance", Some(default.distance as u64), 2..=10_000).0),
        operations: whole(section.count("operations", Some(default.operations as u64), 1..=1000).0),
        static_bytes: section.count("static_bytes", Some(default.static_bytes), 0..=1 << 40).0,
    };
    let compiler = CompilerSection {
        symbols: [batch, sequence],
        rules,
        bucket_tokens: section.count("bucket_tokens", Some(BUCKET_TOKENS), 1..=SEQUENCE_MAX).0,
        compile_s: section.number("compile_s", 0.0, 0.0..=1e5),
        check_us: section.number("check_us", 0.0, 0.0..=1e5),
        fragmentation: section.number("fragmentation", 1.0, 1.0..=10.0),
    };
    section.finish();
    compiler
}

fn policies(mut section: Section<'_>, bucket_tokens: u64) -> RunList<Compiler> {
    let bucket = |choice: Compiler| match choice.bucket_tokens {
        0 => choice,
        _ => Compiler { bucket_tokens, ..choice },
    };
    let plain: Vec<(&str, Compiler)> = POLICIES.iter().map(|(name, base, _)| (*name, bucket(*base))).collect();
    let mut variants = Vec::new();
    section.each_table("variant", &mut |table| variants.extend(variant(table, &plain)));
    let run = run_list(&mut section, plain, variants);
    section.finish();
    run
}

/// `[[policies.variant]]`: a policy under a name of its own, with settings of its own.
fn variant(mut section: Section<'_>, plain: &[(&str, Compiler)]) -> Option<(String, Compiler)> {
    let name = section.name();
    let words: Vec<&str> = plain.iter().map(|(name, _)| *name).collect();
    let base = plain[section.word("policy", 1, &words)].1;
    let eviction = EVICTIONS.iter().position(|(_, manager)| *manager == base.manager).unwrap_or(0);
    let choice = Compiler {
        bucket_tokens: section.count("bucket_tokens", Some(base.bucket_tokens), 0..=SEQUENCE_MAX).0,
        schedule: section.flag("schedule", base.schedule),
        manager: EVICTIONS[section.word("eviction", eviction, &EVICTIONS.map(|(word, _)| word))].1,
        limit: Bytes::from_gib(section.number("limit_gib", 0.0, 0.0..=100_000.0)),
    };
    section.finish();
    name.map(|name| (name, choice))
}

/// What the compiler is told of sizes holds for all batches.
fn cross_checks(reader: &mut Reader<'_>, compiler: &CompilerSection, step: &Step, lengths: &[u64]) {
    let longest = lengths.iter().max().copied().unwrap_or(1);
    if longest > SEQUENCE_MAX {
        let what = format!("the longest sequence has {longest} tokens, such a step knows {SEQUENCE_MAX}");
        reader.refuse(Code::OutOfRange, None, what, format!("`workload.max_tokens = {SEQUENCE_MAX}`"));
    }
    // A batch is as long as its longest sequence.
    let longest_of = |size: u32| lengths.chunks(size as usize).filter_map(|batch| batch.iter().max().copied());
    let sequences = || step.batch_sizes.iter().flat_map(|size| longest_of(*size));
    let batches = || step.batch_sizes.iter().map(|size| u64::from(*size));
    let found = [(batches().min(), batches().max()), (sequences().min(), sequences().max())];
    for (symbol, (least, most)) in compiler.symbols.iter().zip(found) {
        let Some((least, most)) = least.zip(most) else { continue };
        if least < symbol.low || symbol.high.is_some_and(|high| high < most) {
            let high = symbol.high.map_or_else(|| "any size".to_owned(), |high| high.to_string());
            let what = format!(
                "batches have a `{}` from {least} to {most}, the compiler expects {} to {high}",
                symbol.name, symbol.low
            );
            let help = format!("widen `compiler.{0}_min` and `compiler.{0}_max`, or leave them out", symbol.name);
            reader.refuse(Code::WrongBounds, None, what, help);
        }
    }
}
