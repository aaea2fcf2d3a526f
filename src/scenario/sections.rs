//! The sections of a training scenario, a file each; cross-checks between them come last.

use std::path::Path;

use hw::Dtype;
use train::Problem;
use train::plan::Origin;
use train::problem::Execution;

use super::checks::cross_checks;
use super::cost::Cost;
use super::reader::{Reader, Section};
use super::training::Training;
use super::{
    Overrides, PolicyChoice, Scenario, cluster, compression, cost, expect, model, no_effect, parallel, policies, search,
    stragglers, training, workload,
};
use crate::diagnostic::Source;

const SECTIONS: [&str; 12] = [
    "model",
    "cluster",
    "parallel",
    "search",
    "training",
    "overlap",
    "experts",
    "workload",
    "policies",
    "cost",
    "expect",
    "stragglers",
];

/// Name and seed, which every kind has at its top, and `kind` itself, which was looked at before.
pub fn head(top: &mut Section<'_>, source: &Source, overrides: &Overrides) -> (String, u64) {
    let name = name(top, source);
    top.word("kind", 0, &super::kinds());
    let seed = top.count("seed", Some(0), 0..=u64::MAX >> 1).0;
    (name, overrides.seed.unwrap_or(seed))
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

/// What was fitted or assumed and not measured, as sentences.
fn free_parameters(training: &Training, cost: &Cost, policies: &[PolicyChoice]) -> Vec<String> {
    let mut free = Vec::new();
    if training.host_us > 0.0 {
        free.push(("training.host_overhead_per_layer_us".to_owned(), training.host_us));
    }
    if cost.sustained_flops_ratio < 1.0 {
        free.push(("cost.sustained_flops_ratio".to_owned(), cost.sustained_flops_ratio));
    }
    for question in policies.iter().filter_map(|choice| choice.compression.as_ref()) {
        for parameter in compression::free_parameters(question) {
            if !free.contains(&parameter) {
                free.push(parameter);
            }
        }
    }
    free.into_iter().map(|(key, value)| format!("`{key}` = {value}: fitted or assumed, not measured")).collect()
}

/// Reads every section; `None` when a part is so wrong that the rest cannot be built.
pub fn read(reader: &mut Reader<'_>, source: &Source, folder: &Path, overrides: &Overrides) -> Option<Scenario> {
    let given = no_effect::Given::of(reader);
    let mut top = reader.top(&SECTIONS);
    let (name, seed) = head(&mut top, source, overrides);
    top.finish();
    let model = model::model(reader.section("model"), folder);
    let cluster = cluster::cluster(reader.section("cluster"));
    let parallel = parallel::parallel(reader.section("parallel"));
    let lists = search::search(reader.section("search"));
    let training = training::training(reader.section("training"));
    let n_gpus = cluster.as_ref().map(|(cluster, _)| cluster.n_gpus());
    let stragglers = stragglers::stragglers(reader, n_gpus, training.steps);
    let overlap = training::overlap(reader.section("overlap"));
    let (experts, compressed) = training::experts(reader.section("experts"));
    let workload = workload::workload(reader.section("workload"), folder, &training, seed);
    let (policies, baseline) =
        policies::policies(reader.section("policies"), compressed.as_ref().map(|given| &given.question));
    let gpu = cluster.as_ref().map(|(c, _)| c.gpu.name.as_str());
    let cost = cost::cost(reader.section("cost"), folder, gpu);
    let expectations = expect::read(reader.section("expect"));
    let ((model, (cluster, reserved_memory)), workload) = model.zip(cluster).zip(workload)?;
    let free_parameters = free_parameters(&training, &cost, &policies);
    let execution = Execution {
        overlap,
        experts,
        unit_times: cost.units,
        layers: parallel.layers,
        stragglers,
        ..training.execution
    };
    let mut problem = Problem {
        model,
        cluster,
        layout: parallel.layout,
        schedule: parallel.schedule,
        workload,
        dtype: Dtype::Bf16,
        execution,
        bucket_tokens: training.bucket_tokens,
        reserved_memory,
        seed,
    };
    let search = parallel.is_searched.then(|| lists.space(&problem));
    if search.is_none() {
        cross_checks(reader, &mut problem, &policies, &parallel.places);
    }
    if let Some(given) = &compressed {
        compression::cross_checks(reader, given, &problem, search.is_some(), &policies);
    }
    no_effect::warn(reader, &given, &problem, search.is_some(), &policies);
    Some(Scenario {
        name,
        problem,
        search,
        policies,
        baseline,
        profile: cost.profile,
        strict_hull: cost.strict_hull,
        sustained_flops_ratio: cost.sustained_flops_ratio,
        free_parameters,
        expectations,
        origin: Origin {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            scenario: source.path.clone(),
            text: source.text.clone(),
            set: overrides.set.clone(),
            seed: overrides.seed,
        },
    })
}
