//! Who served, and what limits it, in a sentence.

use std::collections::BTreeMap;

use hw::{Tick, Time};

use crate::fleet::{Fleet, Group};
use crate::request::Requests;

/// Time after the last arrival, over the time of arrivals, from which on requests count as coming too fast.
const BACKLOG: f64 = 0.1;

fn of_group(group: &Group) -> String {
    match (group.n_replicas, group.gpus_per_replica) {
        (n, 1) => format!("{n} × {}", group.name),
        (n, gpus) => format!("{n} × {} of {gpus} GPUs", group.name),
    }
}

/// The replicas of a fleet in words.
fn replicas(fleet: &Fleet, router: &str) -> String {
    let [group] = &fleet.groups[..] else {
        let groups: Vec<String> = fleet.groups.iter().map(of_group).collect();
        return format!("{} by {router}", groups.join(", "));
    };
    match (group.n_replicas, group.gpus_per_replica) {
        (1, 1) => "one GPU".to_owned(),
        (1, gpus) => format!("one replica of {gpus} GPUs"),
        (n, 1) => format!("{n} replicas by {router}"),
        (n, gpus) => format!("{n} replicas of {gpus} GPUs by {router}"),
    }
}

/// Why figures are not those of all requests, where the clock ended first.
#[must_use]
pub fn past_clock(values: &BTreeMap<String, f64>) -> Option<String> {
    let n_unserved = values.get("n_unserved")?;
    let days = Tick::NEVER.span().to_seconds().get() / 86_400.0;
    Some(format!(
        "{n_unserved} requests are not served within {days:.0} days, when the clock of serving ends: take fewer with `trace.requests`, \
         more `deployment.replicas` or faster GPUs, or cut a window with `trace.to_s`"
    ))
}

/// What served, and what limits it.
#[must_use]
pub fn of(fleet: &Fleet, router: &str, requests: &Requests, values: &BTreeMap<String, f64>) -> String {
    let value = |key: &str| values.get(key).copied().unwrap_or(0.0);
    let mut limits = Vec::new();
    for (key, words) in [
        ("n_refused", "requests refused"),
        ("n_timed_out", "requests whose clients gave up"),
        ("n_retried", "requests computed again as replicas were lost"),
        ("n_preempted", "preemptions as blocks ran out"),
        ("n_adapter_loads", "loads of adapters"),
    ] {
        if value(key) > 0.0 {
            limits.push(format!("{} {words}", value(key)));
        }
    }
    let arrivals_s = requests.list.last().map_or(0.0, |last| (last.arrival - Time::ZERO).to_seconds().get());
    let after_s = value("makespan_s") - arrivals_s;
    if after_s > BACKLOG * arrivals_s {
        limits.push(format!(
            "requests come faster than they are served: the last one ends {after_s:.0} s after its arrival"
        ));
    }
    if let Some(usd) = values.get("cost_usd_per_mtok") {
        limits.push(format!("{usd:.3} dollars per million output tokens"));
    }
    let limits = if limits.is_empty() { String::new() } else { format!("; {}", limits.join(", ")) };
    format!(
        "{}, busy {:.0} % of the time, blocks at most {:.0} % in use{limits}",
        replicas(fleet, router),
        value("busy_ratio") * 100.0,
        value("kv_peak_ratio") * 100.0
    )
}
