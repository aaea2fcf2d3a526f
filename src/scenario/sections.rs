//! The sections of a training scenario and what they mean; cross-checks between them come last.

use std::path::Path;

use hw::{Bytes, BytesPerSecond, Cluster, Dtype, Seconds};
use sim::cost::profile::Profile;
use sim::layout::{ContextExchange, Layout, Zero};
use sim::memory;
use sim::problem::{GradientSync, Recompute};
use sim::workload::distribution;
use sim::{Model, Problem, Workload};
use toml_span::value::ValueInner;

use super::reader::{Reader, Section, place_of, unknown};
use super::{Overrides, PolicyChoice, Scenario, expect};
use crate::diagnostic::{Finding, Source};
use planner::policy::Allowed;
use planner::{Policy, Value};

const SECTIONS: [&str; 8] = ["model", "cluster", "parallel", "training", "workload", "policies", "cost", "expect"];
/// Memory that CUDA, NCCL and the framework take from a device; a usual figure, overridden by `cluster.reserved_gib`.
const RESERVED_GIB: f64 = 2.0;

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<Scenario> {
    let mut top = reader.top(&SECTIONS);
    let stem =
        Path::new(&source.path).file_stem().map_or("scenario".into(), |stem| stem.to_string_lossy().into_owned());
    let stem = stem.trim_end_matches(" (shipped)").to_owned();
    let name = top.text("name").map_or(stem, |(name, _)| name);
    top.word("kind", 0, &["training"]);
    let seed = top.count("seed", Some(0), 0..=u64::MAX >> 1).0;
    top.finish();
    let seed = overrides.seed.unwrap_or(seed);
    let model = model(reader.section("model"), folder);
    let cluster = cluster(reader.section("cluster"));
    let (layout, layout_at) = layout(reader.section("parallel"));
    let training = training(reader.section("training"));
    let workload = workload(reader.section("workload"), folder, &training, seed);
    let (policies, baseline) = policies(reader.section("policies"));
    let (profile, strict_hull) =
        cost(reader.section("cost"), folder, cluster.as_ref().map(|(c, _)| c.gpu.name.as_str()));
    let expectations = expect::read(reader.section("expect"));
    let ((model, (cluster, reserved_memory)), workload) = model.zip(cluster).zip(workload)?;
    let mut problem = Problem {
        model,
        cluster,
        layout,
        workload,
        dtype: Dtype::Bf16,
        recompute: training.recompute,
        gradient_sync: training.gradient_sync,
        bucket_tokens: training.bucket_tokens,
        host_overhead_per_layer: Seconds::new(training.host_us / 1e6),
        reserved_memory,
        seed,
    };
    cross_checks(reader, &mut problem, layout_at);
    let free_parameters = (training.host_us > 0.0).then(|| {
        format!("`training.host_overhead_per_layer_us` = {}: fitted or assumed, not measured", training.host_us)
    });
    Some(Scenario {
        name,
        problem,
        policies,
        baseline,
        profile,
        strict_hull: strict_hull || overrides.strict_hull,
        free_parameters: free_parameters.into_iter().collect(),
        expectations,
    })
}

fn model(mut section: Section<'_>, folder: &Path) -> Option<Model> {
    let (name, config) = (section.text("name"), section.text("config"));
    let model = match (name, config) {
        (None, None) => {
            section.missing(
                "name",
                "name a shipped model (`skrull-sim list models`) or give `config`, a Hugging Face config.json",
            );
            None
        }
        (_, Some((path, at))) => match std::fs::read_to_string(folder.join(&path)) {
            Err(error) => {
                section.find(Finding::error("S020", at, format!("cannot read `{path}`: {error}")));
                None
            }
            Ok(text) => Model::from_config(&path, &text)
                .map_err(|why| {
                    why.into_iter()
                        .for_each(|why| section.find(Finding::error("S021", at.clone(), format!("`{path}`: {why}"))));
                })
                .ok(),
        },
        (Some((name, at)), None) => {
            let model = sim::model::embedded(&name);
            if model.is_none() {
                section.find(unknown(
                    "S022",
                    format!("unknown model `{name}`"),
                    &name,
                    sim::model::embedded_names(),
                    at,
                ));
            }
            model
        }
    };
    section.finish();
    model
}

/// The cluster's base: a named machine, or a GPU of the catalogue with its usual network.
fn machine(section: &mut Section<'_>, nodes: u32) -> Option<Cluster> {
    let (named, gpu) = (section.text("name"), section.text("gpu"));
    let (per_node, per_node_at) = section.count("gpus_per_node", Some(8), 1..=1024);
    let per_node = u32::try_from(per_node).expect("at most 1024");
    match (named, gpu) {
        (Some((name, at)), gpu) => {
            if let Some((_, gpu_at)) = gpu {
                let what = "`cluster.name` and `cluster.gpu` exclude each other";
                section.find(Finding::error("S036", gpu_at, what));
            } else if let Some(per_node_at) = per_node_at {
                let what = "`cluster.name` fixes `gpus_per_node`";
                section.find(Finding::error("S036", Some(per_node_at), what));
            }
            let cluster = hw::catalog::cluster_named(&name, nodes);
            if cluster.is_none() {
                let known = hw::catalog::cluster_names();
                section.find(unknown("S037", format!("unknown cluster `{name}`"), &name, known, at));
            }
            cluster
        }
        (None, None) => {
            section.missing(
                "gpu",
                "`skrull-sim list gpus` shows the catalogue; or give `name`, see `skrull-sim list clusters`",
            );
            None
        }
        (None, Some((name, at))) => {
            let gpu = hw::catalog::gpu(&name);
            if gpu.is_none() {
                section.find(unknown("S023", format!("unknown GPU `{name}`"), &name, hw::catalog::gpu_names(), at));
            }
            gpu.map(|gpu| hw::catalog::cluster(&gpu, nodes, per_node))
        }
    }
}

fn cluster(mut section: Section<'_>) -> Option<(Cluster, Bytes)> {
    let nodes = u32::try_from(section.count("nodes", None, 1..=100_000).0).expect("at most 100,000");
    let machine = machine(&mut section, nodes);
    let per_node = machine.as_ref().map_or(8, |cluster| u64::from(cluster.gpus_per_node));
    let nic = section.number("nic_gb_per_s", 0.0, 0.001..=100_000.0);
    let oversubscription = section.number("oversubscription", 1.0, 1.0..=1000.0);
    let memory = section.number("memory_gib", 0.0, 0.001..=100_000.0);
    let reserved = section.number("reserved_gib", RESERVED_GIB, 0.0..=10_000.0);
    let (island, island_at) = section.count("nvlink_island", Some(per_node), 1..=1024);
    if !per_node.is_multiple_of(island) {
        let what = format!("NVLink islands of {island} do not divide the {per_node} GPUs of a node");
        section.find(Finding::error("S030", island_at, what));
    }
    section.finish();
    machine.filter(|_| per_node.is_multiple_of(island)).map(|mut cluster| {
        if memory > 0.0 {
            cluster.gpu.memory = Bytes::from_gib(memory);
        }
        cluster.oversubscription = oversubscription;
        cluster.nvlink_island = u32::try_from(island).expect("at most 1024");
        if nic > 0.0 {
            cluster.nic_bandwidth = BytesPerSecond::new(nic * 1e9);
        }
        (cluster, Bytes::from_gib(reserved))
    })
}

fn layout(mut section: Section<'_>) -> (Layout, Option<std::ops::Range<usize>>) {
    let mut degree = |key| section.count(key, Some(1), 1..=100_000);
    let ((dp, _), (cp, cp_at)) = (degree("dp"), degree("cp"));
    let ((tp, tp_at), (pp, pp_at)) = (degree("tp"), degree("pp"));
    for (key, degree, at) in [("tp", tp, tp_at), ("pp", pp, pp_at)] {
        if degree > 1 {
            let what = format!("`parallel.{key}` is {degree}, but only 1 is simulated in this version");
            section.find(Finding::error("S031", at, what).help("use `dp` and `cp`"));
        }
    }
    let zero = [Zero::Off, Zero::OptimizerStates, Zero::Gradients, Zero::Parameters]
        [usize::try_from(section.count("zero", Some(2), 0..=3).0).expect("at most 3")];
    let exchange = [ContextExchange::Gather, ContextExchange::Ring, ContextExchange::Ulysses]
        [section.word("exchange", 0, &["gather", "ring", "ulysses"])];
    let at = cp_at.or_else(|| section.at());
    section.finish();
    let small = |n: u64| u32::try_from(n).expect("ranges keep degrees below 2^32");
    (Layout { dp: small(dp), cp: small(cp), tp: 1, pp: 1, zero, exchange }, at)
}

struct Training {
    batch_size: u64,
    steps: u64,
    recompute: Recompute,
    gradient_sync: GradientSync,
    /// Zero, or absent, leaves it to memory.
    bucket_tokens: u64,
    host_us: f64,
}

fn training(mut section: Section<'_>) -> Training {
    let training = Training {
        batch_size: section.count("batch_size", None, 1..=1_000_000).0,
        steps: section.count("steps", Some(1), 1..=10_000).0,
        recompute: [Recompute::Selective, Recompute::Off, Recompute::Full]
            [section.word("recompute", 0, &["selective", "none", "full"])],
        gradient_sync: [GradientSync::Overlapped, GradientSync::AtEnd]
            [section.word("gradient_sync", 0, &["overlapped", "at_end"])],
        bucket_tokens: section.count("bucket_tokens", Some(0), 0..=100_000_000).0,
        host_us: section.number("host_overhead_per_layer_us", 0.0, 0.0..=1e6),
    };
    section.word("dtype", 0, &["bf16"]);
    section.finish();
    training
}

fn workload(mut section: Section<'_>, folder: &Path, training: &Training, seed: u64) -> Option<Workload> {
    let (named, file) = (section.text("lengths"), section.text("file"));
    let max_tokens = section.count("max_tokens", Some(distribution::LENGTH_MAX), 1..=distribution::LENGTH_MAX).0;
    let n = usize::try_from((training.batch_size * training.steps).min(10_000_000)).expect("bounded");
    let batch_size = usize::try_from(training.batch_size).expect("bounded");
    let lengths = match (named, file) {
        (None, None) => {
            section.missing(
                "lengths",
                "name a distribution (`skrull-sim list workloads`) or give `file`, one length per line",
            );
            None
        }
        (_, Some((path, at))) => match std::fs::read_to_string(folder.join(&path)) {
            Err(error) => {
                section.find(Finding::error("S024", at, format!("cannot read `{path}`: {error}")));
                None
            }
            Ok(text) => match distribution::parse_lengths(&text) {
                Ok(lengths) => {
                    Some((lengths.iter().copied().cycle().take(n).map(|l| l.min(max_tokens)).collect(), path))
                }
                Err(bad) => {
                    bad.iter().take(5).for_each(|bad| section.find(bad_length(&path, bad, at.clone())));
                    if bad.len() > 5 {
                        section.find(Finding::error(
                            "S025",
                            at,
                            format!("`{path}` has {} more bad lines", bad.len() - 5),
                        ));
                    }
                    None
                }
            },
        },
        (Some((name, at)), None) => match distribution::named(&name) {
            Some(distribution) => Some((distribution.sample(n, max_tokens, seed), name)),
            None => {
                section.find(unknown("S026", format!("unknown workload `{name}`"), &name, distribution::names(), at));
                None
            }
        },
    };
    section.finish();
    lengths.map(|(lengths, source)| Workload { lengths, batch_size, source })
}

fn bad_length(path: &str, bad: &distribution::BadLength, at: Option<std::ops::Range<usize>>) -> Finding {
    let what = if bad.found.is_empty() {
        format!("`{path}` holds no lengths")
    } else {
        format!("`{path}` line {}: `{}` is not a length", bad.line, bad.found)
    };
    Finding::error("S025", at, what)
        .help(format!("allowed are whole numbers from 1 to {}, one per line", distribution::LENGTH_MAX))
}

/// Policies under a name of their own, with their own parameters.
fn variants(section: &mut Section<'_>, names: &[&'static str]) -> Vec<PolicyChoice> {
    let mut variants: Vec<PolicyChoice> = Vec::new();
    if let Some((ValueInner::Array(tables), _)) = section.take("variant") {
        for mut table in tables {
            let at = place_of(&table);
            let ValueInner::Table(mut keys) = table.take() else { continue };
            let mut word = |key: &str| {
                keys.remove(key).and_then(|mut value| match value.take() {
                    ValueInner::String(text) => Some(text.into_owned()),
                    _ => None,
                })
            };
            let (name, policy) = (word("name"), word("policy"));
            match (name, policy.as_deref().and_then(planner::policies::named)) {
                (Some(name), Some(policy)) => {
                    let parameters = parameters(section, policy, keys);
                    variants.push(PolicyChoice { name, policy: policy.card().name.to_owned(), parameters });
                }
                (_, None) => {
                    let found = policy.unwrap_or_default();
                    section.find(unknown(
                        "S027",
                        format!("unknown policy `{found}`"),
                        &found,
                        names.iter().copied(),
                        at,
                    ));
                }
                (None, _) => section.find(Finding::error("S013", at, "a `[[policies.variant]]` needs a `name`")),
            }
        }
    }
    variants
}

fn policies(mut section: Section<'_>) -> (Vec<PolicyChoice>, String) {
    let names: Vec<&'static str> = planner::policies::POLICIES.iter().map(|policy| policy.card().name).collect();
    let variants = variants(&mut section, &names);
    let (run, run_at) = match section.take("run") {
        Some((ValueInner::Array(items), at)) => (items, at),
        _ => {
            section.missing(
                "run",
                "for example `run = [\"deepspeed\", \"skrull\"]`; `skrull-sim list policies` shows all",
            );
            (Vec::new(), section.at())
        }
    };
    let baseline = section.text("baseline");
    let mut own: std::collections::BTreeMap<&str, _> = names
        .iter()
        .filter_map(|name| match section.take(name)?.0 {
            ValueInner::Table(keys) => Some((*name, keys)),
            _ => None,
        })
        .collect();
    let mut chosen = Vec::new();
    if run.is_empty() && run_at.is_some() {
        section
            .find(Finding::error("S028", run_at.clone(), "`policies.run` names no policy").help("name at least one"));
    }
    for item in &run {
        let name = item.as_str().unwrap_or_default().to_owned();
        if let Some(variant) = variants.iter().find(|variant| variant.name == name) {
            chosen.push(variant.clone());
        } else if let Some(policy) = planner::policies::named(&name) {
            let keys = own.remove(name.as_str()).unwrap_or_default();
            chosen.push(PolicyChoice {
                parameters: parameters(&mut section, policy, keys),
                policy: name.clone(),
                name,
            });
        } else {
            let known = names.iter().copied().chain(variants.iter().map(|variant| variant.name.as_str()));
            section.find(unknown("S027", format!("unknown policy `{name}`"), &name, known, place_of(item)));
        }
    }
    let first = chosen.first().map_or_else(String::new, |choice| choice.name.clone());
    let baseline = match baseline {
        None => first,
        Some((name, at)) => {
            if !chosen.iter().any(|choice| choice.name == name) {
                let known: Vec<&str> = chosen.iter().map(|choice| choice.name.as_str()).collect();
                section.find(unknown("S029", format!("baseline `{name}` is not in `policies.run`"), &name, known, at));
            }
            name
        }
    };
    section.finish();
    (chosen, baseline)
}

fn parameters(
    section: &mut Section<'_>,
    policy: &dyn Policy,
    keys: toml_span::value::Table<'static>,
) -> std::collections::BTreeMap<String, Value> {
    let card = policy.card();
    let mut parameters = std::collections::BTreeMap::new();
    for (key, mut value) in keys {
        let at = place_of(&value);
        let Some(known) = card.parameters.iter().find(|parameter| parameter.name == key.name) else {
            let names = card.parameters.iter().map(|parameter| parameter.name);
            let what = format!("policy `{}` has no parameter `{}`", card.name, key.name);
            section.find(unknown("S032", what, &key.name, names, at));
            continue;
        };
        let what = format!("parameter `{}` of `{}` has a value that is not allowed", key.name, card.name);
        match (known.allowed, value.take()) {
            (Allowed::Words(words), ValueInner::String(word)) if words.contains(&word.as_ref()) => {
                parameters.insert(key.name.into_owned(), Value::Word(word.into_owned()));
            }
            (Allowed::Words(words), other) => {
                let found = if let ValueInner::String(word) = &other { word.to_string() } else { String::new() };
                section.find(unknown("S033", what, &found, words.iter().copied(), at));
            }
            (Allowed::Range(low, high), other) => {
                let number = match other {
                    ValueInner::Integer(number) => number as f64,
                    ValueInner::Float(number) => number,
                    _ => f64::NAN,
                };
                if (low..=high).contains(&number) {
                    parameters.insert(key.name.into_owned(), Value::Number(number));
                } else {
                    section.find(
                        Finding::error("S033", at, what).help(format!("allowed are numbers from {low} to {high}")),
                    );
                }
            }
        }
    }
    parameters
}

fn cost(mut section: Section<'_>, folder: &Path, gpu: Option<&str>) -> (Option<Profile>, bool) {
    let named = section.text("profile");
    let strict = section.flag("strict_hull", false);
    let (text, name, at) = match named {
        Some((name, _)) if name == "roofline" => {
            section.finish();
            return (None, strict);
        }
        Some((name, at)) => match calibrate::profiles::embedded(&name) {
            Some(text) => (Some(text.to_owned()), name, at),
            None => match std::fs::read_to_string(folder.join(&name)) {
                Ok(text) => (Some(text), name, at),
                Err(_) => {
                    let names = calibrate::profiles::names().into_iter().chain(["roofline"]);
                    section.find(unknown(
                        "S034",
                        format!("no profile `{name}`, shipped or as a file"),
                        &name,
                        names,
                        at,
                    ));
                    (None, name, None)
                }
            },
        },
        None => match gpu.and_then(calibrate::profiles::of_gpu) {
            Some(name) => (calibrate::profiles::embedded(name).map(str::to_owned), name.to_owned(), None),
            None => (None, String::new(), None),
        },
    };
    let profile = text.and_then(|text| {
        Profile::parse(&text)
            .map_err(|why| {
                section.find(Finding::error("S035", at.clone(), format!("profile `{name}` cannot be used: {why}")))
            })
            .ok()
    });
    section.finish();
    (profile, strict)
}

/// What only shows when sections are seen together.
fn cross_checks(reader: &mut Reader<'_>, problem: &mut Problem, layout_at: Option<std::ops::Range<usize>>) {
    let (layout, n_gpus) = (problem.layout, problem.cluster.n_gpus());
    let ranks = u64::from(layout.dp) * u64::from(layout.cp);
    if ranks != u64::from(n_gpus) {
        let what = format!("dp {} × cp {} = {ranks} ranks, the cluster has {n_gpus} GPUs", layout.dp, layout.cp);
        let fitting = if n_gpus.is_multiple_of(layout.cp) {
            format!("`dp = {}` would use them all", n_gpus / layout.cp)
        } else {
            let divisors: Vec<String> =
                (1..=n_gpus).filter(|d| n_gpus.is_multiple_of(*d)).map(|d| d.to_string()).collect();
            format!("cp does not divide {n_gpus}; allowed are {}", divisors.join(", "))
        };
        reader.find(Finding::error("S040", layout_at.clone(), what).help(fitting));
        return;
    }
    if layout.exchange == ContextExchange::Ulysses && !problem.model.n_heads.is_multiple_of(u64::from(layout.cp)) {
        let heads = problem.model.n_heads;
        let allowed: Vec<String> = (1..=heads).filter(|d| heads.is_multiple_of(*d)).map(|d| d.to_string()).collect();
        let what = format!(
            "ulysses cuts heads: cp {} does not divide the {heads} heads of `{}`",
            layout.cp, problem.model.name
        );
        reader.find(
            Finding::error("S041", layout_at.clone(), what).help(format!("allowed here: {}", allowed.join(", "))),
        );
    }
    if let Err(why) = memory::fits(problem) {
        reader.find(Finding::error("S042", None, why));
    } else if problem.bucket_tokens == 0 {
        problem.bucket_tokens = memory::token_capacity(problem);
    }
    let longest = problem.workload.lengths.iter().max().copied().unwrap_or(0);
    let capacity = problem.bucket_tokens * u64::from(layout.cp);
    if capacity > 0 && longest > capacity {
        let what = format!(
            "the longest sequence has {longest} tokens, a context group holds {capacity} ({} per rank); policies will find it infeasible",
            problem.bucket_tokens
        );
        reader.find(
            Finding::warning("S043", None, what).help(format!("`workload.max_tokens = {capacity}` or a larger `cp`")),
        );
    }
}
