//! Keys of a training scenario that change nothing beside the others: each is a warning, so that nothing is ignored in silence.
//!
//! A key has an effect when it has one for any policy that runs. Degrees of 1 make no warning of their own: what is cut in one part is whole.

mod keys;

use hw::Cluster;
use planner::train::search::space::Space;
use train::Problem;
use train::layout::{Layout, Zero};
use train::problem::Module;

use super::{PolicyChoice, rails, searched, unfused};
use input::diagnostic::Code;
use input::reader::{Place, Reader};
use keys::{COSTS, HangsOn, KEYS, Key, have_own_links, no_chunks, no_pipeline, no_recompute};

/// The policy that sends activations to the host by itself, and the keys that limit what it may send, and how fast.
const OFFLOADS: &str = "bytescale";
const HOST: [&str; 3] = ["host_memory_gib", LINK, "gpus_per_switch"];
/// The link to the host, which checkpoints cross, and weights that go from a trainer to other GPUs.
const LINK: &str = "host_gb_per_s";

/// Modules that are computed again and that no layer of the model has, with what it lacks.
fn missing_modules(problem: &Problem) -> Vec<(Module, &'static str)> {
    let model = &problem.model;
    let lacks = |module: Module| match module {
        Module::CoreAttention | Module::Norms => None,
        Module::UpProjections => model.latent.is_none().then_some("latent attention"),
        Module::FeedForward => (model.n_expert_layers() == model.n_layers).then_some("a dense feed-forward"),
        Module::ExpertActivation | Module::Experts => model.experts.is_none().then_some("experts"),
        Module::SharedExperts => {
            let has_shared = model.experts.is_some_and(|experts| experts.shared_intermediate > 0);
            (!has_shared).then_some("shared experts")
        }
    };
    problem.execution.recompute.modules().iter().filter_map(|module| Some((module, lacks(module)?))).collect()
}

fn modules(reader: &mut Reader<'_>, key: &str, at: Place, problem: &Problem) {
    for (module, lacks) in missing_modules(problem) {
        let what = format!("module `{}` of `{key}` changes nothing", module.word());
        let help = format!("it needs {lacks}, which no layer of `{}` has", problem.model.name);
        reader.warn(Code::NoEffect, at.clone(), what, help);
    }
}

/// What the file has of these keys and of the policies' tables, with its places; taken before sections are read.
pub struct Given {
    keys: Vec<(usize, String, Place)>,
    costs: Vec<(String, Place)>,
    tables: Vec<(String, Place)>,
    recompute: Option<(String, Place)>,
    unfused: Option<Place>,
    narrow_rails: Option<Place>,
    of_one_layout: searched::Given,
}

impl Given {
    /// What a file has. `is_beside`: other GPUs get the weights of these.
    pub fn of(reader: &Reader<'_>, is_beside: bool) -> Self {
        let crosses_link = is_beside || reader.has("failures");
        let read = KEYS.iter().enumerate().filter(|(_, key)| key.name != LINK || !crosses_link);
        let keys = read.filter_map(|(index, key)| {
            let (value, at) = reader.peek_in(key.section, key.name)?;
            Some((index, value, at))
        });
        let recompute = reader.peek_in("training", "recompute");
        let unfused = reader.peek_in("training", "unfused").map(|(_, at)| at);
        Self {
            keys: keys.collect(),
            costs: costs(reader),
            tables: reader.tables_in("policies"),
            recompute,
            unfused,
            narrow_rails: rails::narrow_at(reader),
            of_one_layout: searched::Given::of(reader),
        }
    }

    /// Keys of the table, with their values and places.
    fn keys(&self) -> impl Iterator<Item = (&'static Key, &str, &Place)> {
        self.keys.iter().map(|(index, value, at)| (&KEYS[*index], value.as_str(), at))
    }
}

/// Keys that costs follow from, as the file writes them. Checkpoints of a run of days have the optimizer's states under any costs.
fn costs(reader: &Reader<'_>) -> Vec<(String, Place)> {
    let all = COSTS.iter().flat_map(|(section, keys)| keys.iter().map(move |key| (*section, *key)));
    let read = all.filter(|(section, _)| *section != "optimizer" || !reader.has("failures"));
    let given = read.filter_map(|(section, key)| {
        let (value, at) = reader.peek_in(section, key)?;
        Some((format!("{section}.{key} = {value}"), at))
    });
    given.collect()
}

/// Warns of every key that changes nothing, of the file and of the policies that run.
pub fn warn(
    reader: &mut Reader<'_>,
    given: &Given,
    problem: &Problem,
    search: Option<&Space>,
    policies: &[PolicyChoice],
) {
    // What is wrong with the list of policies is said. Without them nothing has an effect.
    if policies.is_empty() {
        return;
    }
    let asked: Vec<Problem> = policies.iter().map(|choice| choice.problem(problem)).collect();
    let multiplied = search.map_or_else(|| asked.clone(), |space| in_each_format(&asked, space));
    let sharded = search.map_or_else(Vec::new, |space| each_sharding(&asked, &space.zero));
    let has_times = problem.execution.unit_times.is_some();
    let costs: &[(String, Place)] = if has_times { &given.costs } else { &[] };
    for (key, at) in costs {
        let help = "it needs times that are counted, and `[cost.units]` gives them";
        reader.warn(Code::NoEffect, at.clone(), format!("`{key}` changes nothing"), help.to_owned());
    }
    for (key, value, at) in given.keys() {
        let is_idle = match (search, key.hangs_on) {
            (Some(_), HangsOn::Layout) => false,
            (Some(_), HangsOn::Sharding) => sharded.iter().all(key.is_idle),
            (None, _) | (_, HangsOn::Model) => multiplied.iter().all(key.is_idle),
        };
        let is_idle = is_idle && !(HOST.contains(&key.name) && policies.iter().any(|choice| choice.policy == OFFLOADS));
        if is_idle && !costs.iter().any(|(said, _)| *said == key.written(value)) {
            key.warn(reader, value, at);
        }
    }
    if search.is_some() {
        searched::warn(reader, &given.of_one_layout, policies);
    } else {
        policies.iter().zip(&asked).for_each(|(choice, asked)| own_keys(reader, choice, asked));
        rails::warn(reader, given.narrow_rails.clone(), problem, policies);
    }
    if let Some(at) = &given.unfused {
        unfused::warn(reader, at, problem);
    }
    if let Some((_, at)) = given.recompute.clone() {
        modules(reader, "training.recompute", at, problem);
    }
    for (choice, asked) in policies.iter().zip(&asked).filter(|(choice, _)| choice.recompute.is_some()) {
        modules(reader, &format!("recompute of policy {}", choice.name), None, asked);
    }
    tables(reader, given, policies);
}

/// Warns of keys of some sections that change nothing in any of some problems, whose layouts are given or searched for.
pub fn of_problems(
    reader: &mut Reader<'_>,
    given: &Given,
    sections: &[&str],
    (problems, is_searched): (&[Problem], bool),
) {
    for (key, value, at) in given.keys().filter(|(key, ..)| sections.contains(&key.section)) {
        let is_decided = !is_searched || key.hangs_on == HangsOn::Model;
        if is_decided && problems.iter().all(key.is_idle) {
            key.warn(reader, value, at);
        }
    }
    if let (Some(at), Some(problem)) = (&given.unfused, problems.first()) {
        unfused::warn(reader, at, problem);
    }
    if let (Some((_, at)), Some(problem)) = (given.recompute.clone(), problems.first()) {
        modules(reader, "training.recompute", at, problem);
    }
}

/// Warns of links to the host that nothing crosses, of steps that copy nothing there and have so many GPUs: each with what it needs.
pub fn of_host_links(reader: &mut Reader<'_>, given: &Given, (cluster, n_gpus): (&Cluster, u32), needs: &'static str) {
    if !have_own_links(cluster, n_gpus) {
        return;
    }
    for (key, value, at) in given.keys().filter(|(key, ..)| key.section == "cluster" && HOST[1..].contains(&key.name)) {
        Key { needs, ..*key }.warn(reader, value, at);
    }
}

/// Problems with products in every format that a search tries.
fn in_each_format(problems: &[Problem], space: &Space) -> Vec<Problem> {
    let mut all = Vec::with_capacity(problems.len() * space.products.len());
    for problem in problems {
        for &products in &space.products {
            let mut own = problem.clone();
            own.execution.multiply_in(products);
            all.push(own);
        }
    }
    all
}

/// Problems with every stage of ZeRO that a search tries.
fn each_sharding(problems: &[Problem], stages: &[Zero]) -> Vec<Problem> {
    let with = |problem: &Problem, zero| Problem { layout: Layout { zero, ..problem.layout }, ..problem.clone() };
    problems.iter().flat_map(|problem| stages.iter().map(move |&zero| with(problem, zero))).collect()
}

/// Keys of a policy of its own.
fn own_keys(reader: &mut Reader<'_>, choice: &PolicyChoice, asked: &Problem) {
    let mut find = |key: String, needs: &str| {
        let what = format!("`{key}` of policy `{}` changes nothing", choice.name);
        reader.warn(Code::NoEffect, None, what, format!("it needs {needs}"));
    };
    if let Some(schedule) = choice.schedule.filter(|_| no_pipeline(asked)) {
        find(format!("schedule = \"{}\"", schedule.name), "a pipeline, which `pp = 1` does not have");
    }
    if let Some(chunks) = choice.chunks.filter(|chunks| no_chunks(asked) && *chunks != asked.layout.chunks) {
        find(
            format!("chunks = {chunks}"),
            "`schedule = \"interleaved\"` on a pipeline; other schedules fix their chunks",
        );
    }
    if let Some(n) = choice.recompute_layers.filter(|_| no_recompute(asked)) {
        find(format!("recompute_layers = {n}"), "recompute, which `recompute = \"none\"` turns off");
    }
}

/// Tables of policies that do not run.
fn tables(reader: &mut Reader<'_>, given: &Given, policies: &[PolicyChoice]) {
    for (name, at) in &given.tables {
        if planner::train::policies::named(name).is_none() || policies.iter().any(|choice| choice.name == *name) {
            continue;
        }
        let variants: Vec<String> = policies
            .iter()
            .filter(|choice| choice.policy == *name)
            .map(|choice| format!("`{}`", choice.name))
            .collect();
        let what = format!("`[policies.{name}]` changes nothing: `{name}` is not in `policies.run`");
        let help = match variants.as_slice() {
            [] => "leave it out, or run the policy".to_owned(),
            variants => format!("the keys of {} stand in the variant's own table", variants.join(", ")),
        };
        reader.warn(Code::NoEffect, at.clone(), what, help);
    }
}
