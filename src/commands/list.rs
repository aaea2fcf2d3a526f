//! `list` and `show`: what is known by name.

use clap::ValueEnum;
use engine::Model;
use engine::model::checkpoint_formats;
use planner::train::{orders, policies, policy::Allowed};
use serve::lengths;
use train::workload::distribution;

use super::{Failure, print};
use crate::cli::Kind;
use input::diagnostic::{Code, meant};
use scenario::{EMBEDDED, shipped};

/// Runs `list`.
pub fn list(kind: Kind) -> Result<(), Failure> {
    let rows: Vec<(String, String)> = match kind {
        Kind::Policies => {
            let training = policies::POLICIES.iter().map(|p| (p.card().name, p.card().about));
            let others = crate::kinds::policies().into_iter().map(|(_, name, about)| (name, about));
            training.chain(others).map(|(name, about)| (name.to_owned(), about.to_owned())).collect()
        }
        Kind::Routers => serve::router::ROUTERS.iter().map(|r| (r.name.to_owned(), r.about.to_owned())).collect(),
        Kind::Gpus => hw::catalog::gpu_names().into_iter().map(|name| (name.to_owned(), gpu(name))).collect(),
        Kind::Clusters => {
            let about = |name: &str| hw::catalog::cluster_source(name).unwrap_or_default();
            hw::catalog::cluster_names().into_iter().map(|name| (name.to_owned(), about(name))).collect()
        }
        Kind::Models => engine::model::embedded_models().map(|model| (model.name.clone(), described(model))).collect(),
        Kind::Schedules => orders::schedules().map(|s| (s.name.to_owned(), s.about.to_owned())).collect(),
        Kind::Workloads => {
            let about = |name: &str| distribution::named(name).map_or_else(String::new, |d| d.source.to_owned());
            let training = distribution::names().into_iter().map(|name| (name.to_owned(), about(name)));
            let tables = lengths::names().filter_map(|name| Some((name.to_owned(), table(name)?)));
            training.chain(tables).collect()
        }
        Kind::Profiles => {
            calibrate::profiles::names().into_iter().map(|name| (name.to_owned(), profile(name))).collect()
        }
        Kind::Scenarios => scenario::questions(),
    };
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    print(&rows.iter().map(|(name, about)| format!("{name:width$}  {about}\n")).collect::<String>())
}

/// A table of request lengths in words.
fn table(name: &str) -> Option<String> {
    let table = lengths::named(name)?;
    Some(format!(
        "requests: {}; mean prompt {:.0}, mean output {:.0} tokens; {} ({})",
        table.about, table.mean_prompt, table.mean_output, table.source, table.licence
    ))
}

fn gpu(name: &str) -> String {
    hw::catalog::gpu(name).map_or_else(String::new, |gpu| gpu.words())
}

fn described(model: &Model) -> String {
    let [all, active] = [model.n_parameters(), model.active_parameters()].map(|n| hw::real(n) / 1e9);
    format!("{all:6.2} B parameters, {active:5.2} B active, {} layers, hidden {}", model.n_layers, model.hidden)
}

fn profile(name: &str) -> String {
    let parsed = calibrate::profiles::embedded(name).map(engine::cost::profile::Profile::parse);
    let Some(Ok(profile)) = parsed else { return String::new() };
    let errors: Vec<String> = profile
        .operators
        .iter()
        .map(|(name, operator)| format!("{name} {:.1} %", operator.residuals.median_error * 100.0))
        .collect();
    format!("median error on unseen shapes: {}; {}", errors.join(", "), profile.source)
}

/// Runs `show`.
pub fn show_words(words: &[String]) -> Result<(), Failure> {
    match words {
        [kind, name] if KINDS_SHOWN.contains(&kind.as_str()) || Kind::from_str(kind, true).is_ok() => show(name),
        _ => show(&words.join(" ")),
    }
}

/// Words that may stand before a name, beside those of `list`.
const KINDS_SHOWN: [&str; 9] =
    ["policy", "router", "schedule", "gpu", "cluster", "model", "workload", "profile", "scenario"];

/// Shows what has a name.
fn show(name: &str) -> Result<(), Failure> {
    if let Some(policy) = policies::named(name) {
        let card = policy.card();
        let parameters: String = card
            .parameters
            .iter()
            .map(|p| format!("  {} = {}  ({})\n      {}\n", p.name, p.default, allowed(p), p.about))
            .collect();
        return print(&format!(
            "policy {}\n{}\nsource: {}\nplanner: {}\n{parameters}",
            card.name, card.about, card.source, card.method
        ));
    }
    if let Some(schedule) = orders::schedule(name) {
        let split = if schedule.splits_backward { "split into input and weight gradients" } else { "whole" };
        return print(&format!(
            "schedule {}\n{}\nsource: {}\nplacement: {:?}, {} chunk(s) per rank; backward: {split}\n",
            schedule.name, schedule.about, schedule.source, schedule.placement, schedule.n_chunks
        ));
    }
    if let Some(text) = shipped(name) {
        return print(text);
    }
    if hw::catalog::gpu(name).is_some() {
        return print(&format!("gpu {name}\n{}\n", gpu(name)));
    }
    if let (Some(cluster), Some(source)) = (hw::catalog::cluster_named(name, 1), hw::catalog::cluster_source(name)) {
        let (nic, gpu) = (cluster.nic_bandwidth.get() / 1e9, &cluster.gpu.name);
        let node = format!("{} {gpu} a node, {nic} GB/s per GPU between nodes", cluster.gpus_per_node);
        return print(&format!("cluster {name}\n{node}\n{source}\n"));
    }
    if let Some(found) = engine::model::of_name(name) {
        return print(&format!("model {name}\n{}\n{}\n", described(&found), checkpoint_formats::words(&found)));
    }
    if let Some(distribution) = distribution::named(name) {
        let rows: String = distribution
            .points
            .iter()
            .map(|(share, tokens)| format!("{:9.4} %  {tokens:>10}\n", share * 100.0))
            .collect();
        return print(&format!("workload {name}\n{}\nshare below, tokens\n{rows}", distribution.source));
    }
    if let Some(about) = table(name) {
        return print(&format!("workload {name}\n{about}\n"));
    }
    let routers = serve::router::ROUTERS.iter().map(|router| ("router", router.name, router.about));
    let policies = crate::kinds::policies();
    if let Some((kind, _, about)) = policies.iter().copied().chain(routers).find(|(_, known, _)| *known == name) {
        return print(&format!("{kind} {name}\n{about}\n"));
    }
    if calibrate::profiles::embedded(name).is_some() {
        return print(&format!("profile {name}\n{}\n", profile(name)));
    }
    let near = meant(name, names());
    let what = format!("nothing is called `{name}`{near}\n  = `skrull-sim list policies` and its kin show all names");
    Err(Failure::input(Code::UnknownName, what))
}

/// Every name that `show` knows.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = policies::POLICIES.iter().map(|policy| policy.card().name).collect();
    names.extend(orders::schedules().map(|schedule| schedule.name));
    names.extend(hw::catalog::gpu_names());
    names.extend(hw::catalog::cluster_names());
    names.extend(engine::model::embedded_names());
    names.extend(distribution::names());
    names.extend(lengths::names());
    names.extend(crate::kinds::policies().into_iter().map(|(_, name, _)| name));
    names.extend(serve::router::ROUTERS.iter().map(|router| router.name));
    names.extend(calibrate::profiles::names());
    names.extend(EMBEDDED.iter().map(|(name, _)| *name));
    names
}

/// Values of a parameter, with its unit.
fn allowed(parameter: &planner::Parameter) -> String {
    match parameter.allowed {
        Allowed::Words(words) => words.join(" | "),
        Allowed::Range(low, high) | Allowed::Count(low, high) => format!("{low} to {high} {}", parameter.unit),
    }
}
