//! What a report shows of sequences: time by cause, what conversion takes and what its hubs leave, what overlap hides.

use std::collections::BTreeMap;

use super::{Asked, Plan, Policy, Way};
use engine::verdict::Ended;

use crate::graph::judged::{Judged, add_times, keyed};
use crate::proof::{Aim, Bound, Decision, RunnerUp, Status};

/// The row of the best of some ways, which stand in order.
pub(super) fn row(asked: &Asked, policy: &Policy, ways: &[Way]) -> Judged<Plan> {
    let best = &ways[0];
    let metrics = metrics(asked, best);
    let least = ways.iter().map(|way| way.least_s).fold(f64::INFINITY, f64::min).min(best.epoch_s[1]);
    let words = "the kernels of a forward pass without start-ups".to_owned();
    let other = ways.get(1).map(|way| RunnerUp { plan: way.plan, objective: way.epoch_s[1] });
    let decision = Decision::new(best.plan, Aim::Seconds, best.epoch_s[1])
        .bounded(Some(Bound { value: least, limit: words }), Status::Optimal)
        .limited(best.times.binding.to_owned())
        .beside(other)
        .said(notes(asked, policy, ways), BTreeMap::new());
    Judged {
        decision: Some(decision),
        ended: Ended::Ok,
        why: why(best),
        interval: [("epoch_time_s".to_owned(), [best.epoch_s[0], best.epoch_s[2]])].into(),
        metrics,
        source: best.times.source,
        played: Some(best.times.played.clone()),
    }
}

/// Time that is not the GPU's: what sampling and gathering would add if nothing overlapped, and what it adds.
fn hidden_s(way: &Way) -> f64 {
    let busy: f64 = way.times.causes.values().sum();
    (busy - way.times.further_s[1]).max(0.0)
}

fn metrics(asked: &Asked, way: &Way) -> BTreeMap<String, f64> {
    let epoch_s = way.epoch_s[1];
    let mut found = keyed(&[
        ("epoch_time_s", epoch_s),
        ("n_steps", way.n_batches),
        ("iteration_time_s", way.times.further_s[1]),
        ("events_per_s", asked.n_events / epoch_s),
        ("host_sampling_per_step_s", way.host_s[0]),
        ("host_gather_per_step_s", way.host_s[1]),
        ("conversion_s", way.conversion.seconds),
        ("conversion_least_s", way.conversion.hub_s),
        ("hidden_per_epoch_s", hidden_s(way) * way.n_batches),
        ("n_neighbours", f64::from(way.plan.neighbours)),
        ("batch_events", f64::from(way.plan.batch)),
        ("n_threads", f64::from(way.plan.threads)),
    ]);
    add_times(&mut found, &way.times, way.n_batches, &asked.machine, epoch_s);
    found
}

fn why(way: &Way) -> String {
    format!(
        "bound by {}; busy in a step: {}; {} neighbours, batches of {} events, {} threads",
        way.times.binding,
        busy(way).join(", "),
        way.plan.neighbours,
        way.plan.batch,
        way.plan.threads
    )
}

/// Shares of a further step by cause.
fn busy(way: &Way) -> Vec<String> {
    let share = |seconds: &f64| 100.0 * seconds / way.times.further_s[1];
    way.times.causes.iter().map(|(cause, seconds)| format!("{cause} {:.0} %", share(seconds))).collect()
}

fn notes(asked: &Asked, policy: &Policy, ways: &[Way]) -> Vec<String> {
    let way = &ways[0];
    let threads = if policy.is_parallel_conversion { way.plan.threads } else { 1 };
    let mut notes = vec![
        asked.past.words.clone(),
        format!(
            "conversion to T-CSR on {threads} threads takes {:.3} s, its longest row alone {:.3} s; {} epochs share it",
            way.conversion.seconds, way.conversion.hub_s, asked.n_epochs
        ),
        format!(
            "overlap hides {:.1} % of a step's {:.3} ms of work",
            100.0 * hidden_s(way) / way.times.causes.values().sum::<f64>(),
            1000.0 * way.times.causes.values().sum::<f64>()
        ),
    ];
    notes.extend(asked.machine.ignored());
    if let Some(other) = ways.get(1) {
        notes.push(format!(
            "runner-up of {} choices: batches of {} events, {} threads: {:+.2} % of the epoch's time",
            ways.len(),
            other.plan.batch,
            other.plan.threads,
            100.0 * (other.epoch_s[1] / way.epoch_s[1] - 1.0)
        ));
    }
    notes
}
