//! What a report shows of caches: time by cause, hit rates over α, who holds what, and what more memory or NVLink would bring.

use std::collections::BTreeMap;

use graph::distribution::INTERVAL_RATIO;
use graph::legion::{Point, sweep};

use super::groups::{self, Group};
use super::{Asked, Caches, Known, Memory, Policy, Share, Timed, budget, timed};
use engine::verdict::Ended;

use crate::graph::judged::{Costs, Judged, add_times, keyed, size};
use crate::proof::Decision;

/// The row of a policy.
pub(super) fn row(
    asked: &Asked,
    policy: &Policy,
    groups: &[Group],
    found: Timed,
    decision: Decision<Caches>,
    costs: &Costs<'_>,
) -> Judged<Caches> {
    let metrics = metrics(asked, policy, groups, &found);
    let interval = interval(asked, &found, &metrics);
    let why = why(&found, &metrics);
    let mut notes = notes(asked, policy, groups, &found, costs);
    if let Some(other) = decision.runner_up() {
        let alphas: Vec<String> = other.plan.groups.iter().map(|(_, point)| format!("{:.2}", point.alpha)).collect();
        let more =
            100.0 * (other.objective / decision.objective().unwrap_or(other.objective).max(f64::MIN_POSITIVE) - 1.0);
        let what = if policy.memory == Memory::Timed { "of the epoch's time" } else { "transactions" };
        notes.push(format!("runner-up of the grid: rows' share {}, {more:+.2} % {what}", alphas.join(" and ")));
    }
    if let Some(error) = metrics.get("replay_error_ratio") {
        let counted = metrics["replayed_transactions_per_epoch"];
        notes.push(format!("another epoch, counted: {counted:.0} transactions; planned {:+.1} %", 100.0 * error));
    }
    let mut figures = figures(policy, groups, asked.cache_bytes);
    figures.extend(held(policy, &found.caches));
    Judged {
        decision: Some(decision.said(notes, figures)),
        ended: Ended::Ok,
        why,
        metrics,
        interval,
        source: found.times.source,
        played: Some(found.times.played),
    }
}

fn sum(caches: &Caches, part: impl Fn(&Point) -> f64) -> f64 {
    caches.groups.iter().map(|(_, point)| part(point)).sum()
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Transactions without a cache: of rows, of features.
fn uncached(groups: &[Group]) -> [f64; 2] {
    let mut all = [0.0; 2];
    for group in groups {
        all[0] += group.demand.rows.transactions();
        all[1] += group.demand.features.transactions();
    }
    all
}

fn metrics(asked: &Asked, policy: &Policy, groups: &[Group], timed: &Timed) -> BTreeMap<String, f64> {
    let epoch_s = timed.epoch_s();
    let [rows, features] = [0, 1].map(|kind| sum(&timed.caches, |point| point.transactions[kind]));
    let all = uncached(groups);
    let trains = &timed.steps[timed.caches.n_samplers as usize..];
    let n_picks: f64 = trains.iter().flat_map(|step| &step.n_picks).sum();
    let mut found = keyed(&[
        ("epoch_time_s", epoch_s),
        ("n_steps", timed.n_steps),
        ("iteration_time_s", timed.times.further_s[1]),
        ("transactions_per_epoch", rows + features),
        ("row_transactions_per_epoch", rows),
        ("feature_transactions_per_epoch", features),
        ("hit_ratio", 1.0 - ratio(rows + features, all[0] + all[1])),
        ("row_hit_ratio", 1.0 - ratio(rows, all[0])),
        ("feature_hit_ratio", 1.0 - ratio(features, all[1])),
        ("alpha_ratio", timed.caches.groups[0].1.alpha),
        ("edges_per_s", n_picks * timed.n_steps / epoch_s),
        ("n_samplers", f64::from(timed.caches.n_samplers)),
    ]);
    add_times(&mut found, &timed.times, timed.n_steps, &asked.machine, epoch_s);
    if let Some(counted) = replayed(asked, policy, groups, &timed.caches) {
        found.insert("replayed_transactions_per_epoch".to_owned(), counted);
        found.insert("replay_error_ratio".to_owned(), (rows + features) / counted - 1.0);
    }
    found
}

/// Transactions of a second epoch, counted.
fn replayed(asked: &Asked, policy: &Policy, groups: &[Group], caches: &Caches) -> Option<f64> {
    // Rows on GPUs that sample cost nothing, so there is nothing to count of them.
    if !asked.replay || policy.memory == Memory::Apart {
        return None;
    }
    let mut sum = 0;
    for (group, (_, point)) in groups.iter().zip(&caches.groups) {
        sum += groups::counted(asked, policy, group, point)?.sum();
    }
    Some(hw::real(sum)).filter(|sum| *sum > 0.0)
}

/// Ends of the cost model's interval; where only degrees are known, of what they miss as well.
fn interval(asked: &Asked, timed: &Timed, metrics: &BTreeMap<String, f64>) -> BTreeMap<String, [f64; 2]> {
    let wide = if matches!(asked.known, Known::Degrees { .. }) { INTERVAL_RATIO } else { 0.0 };
    let times = timed.times.epoch_s(timed.n_steps);
    let mut found: BTreeMap<String, [f64; 2]> =
        [("epoch_time_s".to_owned(), [times[0] * (1.0 - wide), times[2] * (1.0 + wide)])].into();
    if wide > 0.0 {
        let transactions = metrics["transactions_per_epoch"];
        let ends = [transactions * (1.0 - wide), transactions * (1.0 + wide)];
        found.insert("transactions_per_epoch".to_owned(), ends);
    }
    found
}

fn why(timed: &Timed, metrics: &BTreeMap<String, f64>) -> String {
    let mut busy = Vec::new();
    for (cause, seconds) in &timed.times.causes {
        busy.push(format!("{cause} {:.0} %", 100.0 * ratio(*seconds, timed.times.further_s[1])));
    }
    let hits = 100.0 * metrics["hit_ratio"];
    format!(
        "bound by {}; busy in a step: {}; caches save {hits:.1} % of the transactions",
        timed.times.binding,
        busy.join(", ")
    )
}

fn notes(asked: &Asked, policy: &Policy, groups: &[Group], timed: &Timed, costs: &Costs<'_>) -> Vec<String> {
    let last = &timed.steps[timed.steps.len() - 1];
    let mut notes = vec![asked.known.words()];
    notes.extend(asked.machine.ignored());
    notes.push(format!(
        "fan-out {}, batches of {} on each GPU: {:.0} edges picked, {:.0} vertices gathered",
        groups::hops(&asked.sampling),
        asked.sampling.batch,
        last.n_picks.iter().sum::<f64>(),
        last.n_vertices[last.n_vertices.len() - 1]
    ));
    if policy.memory == Memory::Nothing {
        return notes;
    }
    notes.push(format!("ranked by {}", groups::ranked_by(policy.hotness)));
    // Groups of degrees alone are all alike.
    let n_shown = if matches!(asked.known, Known::Degrees { .. }) { 1 } else { groups.len() };
    for (group, (gpus, point)) in groups.iter().zip(&timed.caches.groups).take(n_shown) {
        notes.push(cache_map(asked, group, gpus, point));
    }
    if policy.memory.is_split() && policy.share == Share::Clique {
        notes.extend(what_if(asked, policy, groups, timed, costs));
    }
    notes
}

/// What a group holds, in words.
fn cache_map(asked: &Asked, group: &Group, gpus: &[u32], point: &Point) -> String {
    let demand = &group.demand;
    format!(
        "GPUs {}: rows of {:.0} vertices ({}), features of {:.0} ({}); {} on each GPU",
        gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
        demand.rows.n_held(&point.rows),
        size(point.rows.bytes),
        demand.features.n_held(&point.features),
        size(point.features.bytes),
        size(asked.cache_bytes)
    )
}

/// The same with twice the memory, and with NVLink between all GPUs.
fn what_if(asked: &Asked, policy: &Policy, groups: &[Group], now: &Timed, costs: &Costs<'_>) -> Vec<String> {
    let twice = Asked { cache_bytes: 2.0 * asked.cache_bytes, ..asked.clone() };
    let twice = timed(&twice, policy, groups, costs(&asked.machine.cluster).as_ref());
    let mut notes = vec![against("with twice the memory for caches", now, &twice)];
    let n_gpus = asked.machine.cluster.n_gpus();
    if asked.machine.cluster.nvlink_island < n_gpus {
        let mut wider = asked.clone();
        wider.machine.cluster.nvlink_island = n_gpus;
        // The whole machine is one clique, so nothing is cut.
        let groups = groups::of(asked, policy, n_gpus).expect("one part needs no partition");
        let cost = costs(&wider.machine.cluster);
        notes.push(against("with NVLink between all GPUs", now, &timed(&wider, policy, &groups, cost.as_ref())));
    }
    notes
}

fn against(what: &str, now: &Timed, other: &Timed) -> String {
    let left = ratio(sum(&other.caches, Point::sum), sum(&now.caches, Point::sum));
    let time = ratio(other.epoch_s(), now.epoch_s());
    format!("{what}: {:.1} % of the transactions, {:.1} % of the epoch's time", 100.0 * left, 100.0 * time)
}

/// Transactions without a cache, and hit rates over α.
fn figures(policy: &Policy, groups: &[Group], cache_bytes: f64) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    let all: f64 = uncached(groups).iter().sum();
    found.insert("uncached_transactions".to_owned(), all);
    if !policy.memory.is_split() {
        return found;
    }
    let sweeps: Vec<Vec<Point>> =
        groups.iter().map(|group| sweep(&group.demand, budget(policy, group, cache_bytes))).collect();
    for step in (0..sweeps[0].len()).step_by(10) {
        let left: f64 = sweeps.iter().map(|points| points[step].sum()).sum();
        found.insert(format!("hit_ratio_at_alpha_{step:03}_percent"), 100.0 - 100.0 * ratio(left, all));
    }
    found
}

/// Bytes of rows and of features on each GPU.
fn held(policy: &Policy, caches: &Caches) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    if policy.memory == Memory::Nothing {
        return found;
    }
    for (gpus, point) in &caches.groups {
        let share = if policy.share == Share::Clique { 1.0 / hw::real(gpus.len() as u64) } else { 1.0 };
        for &gpu in gpus {
            // GPUs that sample hold all rows and no features, the others the other way round.
            let [rows, features] = match policy.memory {
                Memory::Apart if gpu < caches.n_samplers => [point.rows.bytes, 0.0],
                Memory::Apart => [0.0, point.features.bytes],
                _ => [point.rows.bytes * share, point.features.bytes * share],
            };
            found.insert(format!("gpu_{gpu:03}_rows_bytes"), rows);
            found.insert(format!("gpu_{gpu:03}_features_bytes"), features);
        }
    }
    found
}
