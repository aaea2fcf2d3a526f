//! Who served, and what limits it, in a sentence.

use std::collections::{BTreeMap, BTreeSet};

use hw::{Power, Seconds, Tick, power};

use super::saturation::{BUSY, Queue, Saturation};
use crate::fleet::{Fleet, Group};
use crate::replica::Limits;
use crate::step_cost::ReplicaConfig;

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
pub fn past_clock(values: &BTreeMap<String, f64>) -> Option<String> {
    let n_unserved = values.get("n_unserved")?;
    let days = Tick::NEVER.span().to_seconds().get() / 86_400.0;
    Some(format!(
        "{n_unserved} requests are not served within {days:.0} days, when the clock of serving ends: take fewer with `trace.requests`, \
         more `deployment.replicas` or faster GPUs, or cut a window with `trace.to_s`"
    ))
}

/// What a queue of requests that come by themselves says of the figures; `n_draws` are the seeds that were served.
fn of_queue(queue: &Queue, n_draws: usize) -> Option<String> {
    let busy = queue.busy * 100.0;
    let [middle, end] = queue.waiting;
    let advice = if n_draws > 1 { "" } else { "; `trace.seeds = 5` shows the spread of other draws" };
    match queue.saturation() {
        Saturation::Below => None,
        Saturation::Near => Some(format!(
            "near saturation ({busy:.0} % busy, a wait of {:.0} iterations; {middle} wait halfway, {end} at the last arrival): one draw says \
             little of waits{advice}",
            queue.wait_steps
        )),
        Saturation::Beyond if queue.is_crowd() => Some(format!(
            "requests come faster than they are served ({busy:.0} % busy; they wait {:.3} s on average, and all come within {:.3} s): latencies grow \
             with the length of the trace",
            queue.wait_s, queue.arrivals_s
        )),
        Saturation::Beyond => Some(format!(
            "requests come faster than they are served ({busy:.0} % busy; {middle} wait halfway, {end} at the last arrival): latencies grow \
             with the length of the trace"
        )),
    }
}

/// What a frontend that is busy nearly all the time says of the figures.
fn of_frontend(values: &BTreeMap<String, f64>) -> Option<String> {
    let busy = values.get("frontend_busy_ratio").filter(|busy| **busy >= BUSY)? * 100.0;
    Some(format!(
        "frontends are busy {busy:.0} % of the time, so tokens wait for them and not for GPUs: `engine.stream_interval` and \
         `engine.api_servers` take work off them"
    ))
}

/// Share of its time from which on an API server that works so much is named.
const BUSY_SERVER: f64 = 0.75;

/// What API servers that requests and streamed tokens keep busy say of the figures. Time on tokens is a range, and not counted.
fn of_api_servers(fleet: &Fleet, values: &BTreeMap<String, f64>) -> Option<String> {
    let start = &fleet.start;
    let each = |key: &str| values.get(key).copied().unwrap_or(0.0) / f64::from(start.servers.max(1));
    // A frontend that takes time has its own words.
    let counts_tokens = fleet.groups.iter().any(|group| group.engine.limits.frontend.takes_time());
    let tokens = if counts_tokens || start.servers == 0 { 0.0 } else { each("output_tokens_per_s") };
    let requests = if start.mean > Seconds::ZERO && start.servers > 0 { each("requests_per_s") } else { 0.0 };
    let [from, to] = start.server.busy(requests, tokens).map(|busy| busy * 100.0);
    if to < BUSY_SERVER * 100.0 {
        return None;
    }
    let (n, [least, most]) = (start.servers, start.server.us_per_token);
    let mut share = format!("{to:.0} %");
    let mut left_out = String::new();
    if tokens > 0.0 {
        share = format!("{from:.0} to {to:.0} %");
        left_out = format!("; {least} to {most} us of a streamed token are not counted (`engine.stream_us_per_token`)");
    }
    Some(format!(
        "API servers ({n}) are busy {share} of the time, so requests and tokens may wait for them and not for GPUs{left_out}: \
         `engine.api_servers` takes work off them"
    ))
}

/// What a link that is busy nearly all the time says of the figures.
fn of_links(values: &BTreeMap<String, f64>) -> Option<String> {
    let busy = values.get("link_busy_ratio").filter(|busy| **busy >= BUSY)? * 100.0;
    Some(format!(
        "a link or port between replicas is busy {busy:.0} % of the time, so requests wait for keys and values on their way and not for GPUs: \
         `fleet.link` and `port_gb_per_s` say how fast they are"
    ))
}

/// Share of the time from which on waiting for launches is worth a word.
const LAUNCHES: f64 = 0.05;

/// What batches without a graph say of the figures.
fn of_launches(values: &BTreeMap<String, f64>) -> Option<String> {
    let waits = values.get("launch_wait_ratio").filter(|waits| **waits >= LAUNCHES)? * 100.0;
    Some(format!(
        "{waits:.0} % of the time batches that no captured graph holds wait for the launches of their kernels, whose time is assumed: \
         `engine.graph_max` captures larger batches"
    ))
}

/// Which cards lend replicas their shares of power.
fn of_energy(values: &BTreeMap<String, f64>, replicas: &[(ReplicaConfig<'_>, Limits)]) -> Option<String> {
    values.get(power::BORROWED)?;
    let lender = |(replica, _): &(ReplicaConfig<'_>, Limits)| Power::of(&replica.cluster.gpu)?.lender;
    let lenders: BTreeSet<&str> = replicas.iter().filter_map(lender).collect();
    Some(power::borrowed_in_words(&lenders.into_iter().collect::<Vec<&str>>().join("` and `")))
}

/// What served, with a replica of `each` group, and what limits it. `queue` is that of requests that come by themselves.
pub fn of(
    fleet: &Fleet,
    router: &str,
    (queue, n_draws): (Option<Queue>, usize),
    (values, each): (&BTreeMap<String, f64>, &[(ReplicaConfig<'_>, Limits)]),
) -> String {
    let value = |key: &str| values.get(key).copied().unwrap_or(0.0);
    let mut limits = Vec::new();
    for (key, words) in [
        ("n_refused", "requests refused"),
        ("n_timed_out", "requests whose clients gave up"),
        ("n_retried", "requests computed again as replicas were lost"),
        (
            "n_given_up",
            "replicas given up, as each failed a thousand times in a row before it had gained a token (`failures.mtbf_s`)",
        ),
        ("n_preempted", "preemptions as blocks ran out"),
        ("n_adapter_loads", "loads of adapters"),
    ] {
        if value(key) > 0.0 {
            limits.push(format!("{} {words}", value(key)));
        }
    }
    if !values.contains_key("ttft_s.mean") {
        limits.push(
            "no request counts: each came before `slo.warm_up_s` had ended, was refused, or its client left".to_owned(),
        );
    }
    limits.extend(queue.and_then(|queue| of_queue(&queue, n_draws)));
    limits.extend(of_links(values));
    limits.extend(of_frontend(values));
    limits.extend(of_api_servers(fleet, values));
    limits.extend(of_launches(values));
    if let Some(usd) = values.get("cost_usd_per_mtok") {
        limits.push(format!("{usd:.3} dollars per million output tokens"));
    }
    limits.extend(of_energy(values, each));
    let limits = if limits.is_empty() { String::new() } else { format!("; {}", limits.join(", ")) };
    let (served, busy) = (replicas(fleet, router), value("busy_ratio") * 100.0);
    let (room, used) = (room(fleet, value("kv_tokens")), value("kv_peak_ratio") * 100.0);
    format!("{served}, busy {busy:.0} % of the time, {room}, at most {used:.0} % in use{limits}")
}

/// Blocks of a fleet in words: what a replica has room for.
fn room(fleet: &Fleet, tokens: f64) -> String {
    let least = if fleet.groups.len() > 1 { "at least " } else { "" };
    let each = if fleet.groups.iter().map(|group| group.n_replicas).sum::<u32>() > 1 { " in each" } else { "" };
    format!("blocks for {least}{} tokens{each}", hw::in_thousands(hw::whole(tokens)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server::ApiServer;
    use crate::fleet::start::Start;

    #[test]
    fn api_servers_that_requests_and_tokens_fill_are_named() {
        let server = ApiServer { us_per_request: 2000.0, us_per_token: [40.0, 60.0], ..ApiServer::NONE };
        let start = Start { mean: Seconds::new(0.015), server, servers: 1, ..Start::default() };
        let fleet = Fleet { start, ..Fleet::default() };
        let of = |requests: f64, tokens: f64| {
            let values = [("requests_per_s", requests), ("output_tokens_per_s", tokens)];
            of_api_servers(&fleet, &values.map(|(key, value)| (key.to_owned(), value)).into())
        };
        assert_eq!(of(100.0, 100.0), None);
        // 100 × 2 ms, and 10,000 × 40 to 60 us.
        assert!(of(100.0, 10_000.0).is_some_and(|words| words.contains("busy 60 to 80 %")));
        assert!(of(400.0, 0.0).is_some_and(|words| words.contains("busy 80 %")));
    }

    #[test]
    fn a_link_that_works_nearly_all_the_time_is_named() {
        let of = |busy: f64| of_links(&BTreeMap::from([("link_busy_ratio".to_owned(), busy)]));
        assert!(of(0.97).is_some_and(|words| words.contains("busy 97 %") && words.contains("`fleet.link`")));
        assert_eq!((of(0.5), of_links(&BTreeMap::new())), (None, None));
    }
}
