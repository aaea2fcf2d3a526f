//! Every training policy beside every mechanism, alone and in pairs: it runs and the mechanism shows, or the policy refuses it by name.
//!
//! Nothing is ignored. A cell that runs passed the checker (`pipeline::decide` sees to that), and its step shows the mechanism in a way that
//! the same policy's step without it does not. `docs/combinations.md` is this table, written by
//! `UPDATE_PAGES=1 cargo test --test main combinations`.

mod evidence;
mod page;

use reports::Ended;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use rayon::prelude::*;
use reports::PolicyResult;
use scenario::{self, Overrides};
use skrull_sim::kinds;
use skrull_sim::kinds::training::run as pipeline;
use train::metrics::Played;

use evidence::{MECHANISMS, Mechanism};

/// GPUs of the small problem: two nodes of eight.
const N_GPUS: u32 = 16;

/// Policies that simulate or solve while they plan: pairs are left out.
const SLOW: [&str; 2] = ["improved", "skrull_exact"];

/// How the ranks that tensor and pipeline groups leave are divided, so that a policy has the pool that it asks for.
#[derive(Clone, Copy)]
enum Home {
    /// Two data-parallel groups of context ranks.
    Groups,
    /// All ranks are one pool of context ranks.
    OnePool,
    /// Data-parallel pipelines without context ranks.
    Pipelines,
}

fn home(policy: &str) -> Home {
    match policy {
        "bytescale" | "flexsp" | "hybrid-cp" => Home::OnePool,
        "hydraulis" | "malleus" => Home::Pipelines,
        _ => Home::Groups,
    }
}

/// What one run of the small problem came to.
struct Cell {
    row: PolicyResult,
    played: Option<Played>,
}

/// The small problem under a policy beside some mechanisms.
fn cell(policy: &str, mechanisms: &[&Mechanism]) -> Cell {
    let degree = |two: &str| if mechanisms.iter().any(|of| of.set.contains(&two)) { 2 } else { 1 };
    let left = N_GPUS / degree("parallel.tp=2") / degree("parallel.pp=2");
    let (dp, cp, exchange) = match home(policy) {
        Home::Groups => (2, left / 2, "gather"),
        Home::OnePool => (1, left, "ulysses"),
        Home::Pipelines => (left, 1, "gather"),
    };
    let mut set = vec![
        format!("parallel.dp={dp}"),
        format!("parallel.cp={cp}"),
        format!("parallel.exchange={exchange}"),
        format!("policies.run=[\"{policy}\"]"),
        format!("policies.baseline=\"{policy}\""),
    ];
    set.extend(SMALL.iter().map(|item| (*item).to_owned()));
    set.extend(own_keys(policy).iter().map(|item| (*item).to_owned()));
    set.extend(mechanisms.iter().flat_map(|of| of.set).map(|item| (*item).to_owned()));
    let (source, folder) = scenario::find("quickstart").expect("shipped");
    let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
    let scenario = super::training(checked);
    let mut run = pipeline::run(&scenario, &|_| {});
    Cell { row: run.result.results.remove(0), played: run.pictures.into_iter().next().map(|(_, _, played)| played) }
}

/// Lengths are ragged and memory is ample: here a limit is a policy's, not the machine's.
const SMALL: [&str; 11] = [
    "model.name=\"mistral-7b\"",
    "cluster.nodes=2",
    "cluster.memory_gib=2000",
    "parallel.zero=1",
    "training.steps=1",
    "training.batch_size=16",
    "training.bucket_tokens=8192",
    "training.recompute=\"none\"",
    "workload.list=[6000, 900, 3000, 1200, 500, 2400, 700, 1800, 4100, 300, 1000, 2000, 640, 5200, 1500, 800]",
    "expect={}",
    "name=\"small\"",
];

/// Keys that keep a policy small, or at the shape that it is asked for.
fn own_keys(policy: &str) -> &'static [&'static str] {
    match policy {
        "improved" => &["policies.improved.tries=2"],
        "skrull_exact" => &["policies.skrull_exact.nodes_max=1"],
        // Else it may choose a shape without the tensor or pipeline degree that is asked for.
        "hydraulis" => &["policies.hydraulis.strategy=\"homogeneous\""],
        _ => &[],
    }
}

/// A policy's cells by the names of their mechanisms.
type Cells = BTreeMap<(&'static str, Vec<&'static str>), Cell>;

/// All cells, once for all tests.
fn cells() -> &'static Cells {
    static CELLS: OnceLock<Cells> = OnceLock::new();
    CELLS.get_or_init(|| {
        asked()
            .into_par_iter()
            .map(|(policy, of)| {
                let names = of.iter().map(|mechanism| mechanism.name).collect();
                ((policy, names), cell(policy, &of))
            })
            .collect()
    })
}

/// Every policy beside nothing, every mechanism and, where it plans fast, every pair that can stand together.
fn asked() -> Vec<(&'static str, Vec<&'static Mechanism>)> {
    let mut asked = Vec::new();
    for policy in planner::train::policies::POLICIES {
        let name = policy.card().name;
        asked.push((name, Vec::new()));
        for (index, first) in MECHANISMS.iter().enumerate() {
            asked.push((name, vec![first]));
            let pairs = MECHANISMS[index + 1..].iter().filter(|second| first.stands_beside(second));
            asked.extend(pairs.filter(|_| !SLOW.contains(&name)).map(|second| (name, vec![first, second])));
        }
    }
    asked
}

/// What is wrong with a cell, if anything.
fn wrong(policy: &'static str, names: &[&'static str]) -> Option<String> {
    let cell = &cells()[&(policy, names.to_vec())];
    let mechanisms = || MECHANISMS.iter().filter(|of| names.contains(&of.name));
    match cell.row.status {
        Ended::Ok => {}
        Ended::Infeasible => {
            let why = &cell.row.why;
            let named = mechanisms().any(|of| of.words.iter().any(|word| why.contains(word)));
            let is_told = named && why.contains(&format!("`{policy}`"));
            return (!is_told).then(|| format!("{policy} {names:?}: refused, but not for that: {why}"));
        }
        status => return Some(format!("{policy} {names:?}: {status}, {}", cell.row.why)),
    }
    let with = cell.played.as_ref().expect("it ran");
    mechanisms().find_map(|of| {
        let without = &cells()[&(policy, others(names, of))];
        let without = without.played.as_ref().map(|played| (&without.row, played));
        let why = (of.shows)((&cell.row, with), without).err()?;
        Some(format!("{policy} {names:?}: `{}` is ignored: {why}", of.name))
    })
}

/// The mechanisms of a cell without one of them, in the order of the table.
fn others(names: &[&'static str], without: &Mechanism) -> Vec<&'static str> {
    let stays =
        |of: &&Mechanism| names.contains(&of.name) && of.name != without.name || without.instead() == Some(of.name);
    MECHANISMS.iter().filter(stays).map(|of| of.name).collect()
}

#[test]
fn every_policy_runs_beside_every_mechanism_or_says_which_it_does_not_take() {
    let wrong: Vec<String> = cells().keys().filter_map(|(policy, names)| wrong(policy, names)).collect();
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_page_of_combinations_is_what_the_program_says() {
    let path = super::root().join("docs/combinations.md");
    let page = page::page(cells());
    if std::env::var_os("UPDATE_PAGES").is_some() {
        std::fs::write(&path, &page).expect("docs/combinations.md");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "`UPDATE_PAGES=1 cargo test --test main combinations` writes it anew");
}
