//! Who served, and what limits it, in a sentence.

use std::collections::{BTreeMap, BTreeSet};

use hw::{Power, Seconds, Tick, TickSum, power};

use super::saturation::{BUSY, Queue, Saturation};
use super::{Slo, WITH_INTERVAL};
use crate::fleet::{Fleet, Group, Served};
use crate::replica::{Limits, Role};
use crate::step_cost::ReplicaConfig;
use crate::step_cost::graphs::GraphFit;

fn of_group(group: &Group) -> String {
    let most = if group.scaling.is_some() { "up to " } else { "" };
    match (group.n_replicas, group.gpus_per_replica) {
        (n, 1) => format!("{most}{n} × {}", group.name),
        (n, gpus) => format!("{most}{n} × {} of {gpus} GPUs", group.name),
    }
}

/// The replicas of a fleet in words.
fn replicas(fleet: &Fleet, router: &str) -> String {
    let [group] = &fleet.groups[..] else {
        let groups: Vec<String> = fleet.groups.iter().map(of_group).collect();
        return format!("{} by {router}", groups.join(", "));
    };
    let most = if group.scaling.is_some() { "up to " } else { "" };
    match (group.n_replicas, group.gpus_per_replica) {
        (1, 1) => "one GPU".to_owned(),
        (1, gpus) => format!("one replica of {gpus} GPUs"),
        (n, 1) => format!("{most}{n} replicas by {router}"),
        (n, gpus) => format!("{most}{n} replicas of {gpus} GPUs by {router}"),
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

/// Why a result has no such metric, in words; nothing where nobody knows.
pub fn absent(metric: &str, values: &BTreeMap<String, f64>, slo: &Slo, warm_up: Seconds) -> String {
    let of_limits = ["slo_attainment_ratio", "goodput_requests_per_s"].contains(&metric);
    let of_tokens = metric.starts_with("tpot_s") && WITH_INTERVAL.contains(&metric);
    let is_counted = values.contains_key("ttft_s.mean");
    if metric.starts_with("cost_usd") && !values.contains_key("cost_usd") {
        "dollars need `usd_per_gpu_hour` in `[fleet]`".to_owned()
    } else if of_tokens && is_counted {
        "no request that counts has more than one output token, so none has a time per further token".to_owned()
    } else if of_limits && !slo.is_given() {
        "it needs limits in `[slo]`".to_owned()
    } else if warm_up > Seconds::ZERO && !is_counted {
        let warm_up_s = warm_up.get();
        format!("no request arrives after `slo.warm_up_s` = {warm_up_s}: write a shorter one, or more `trace.requests`")
    } else {
        String::new()
    }
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

/// What frontends that are busy nearly all the time in which their replicas serve say of the figures.
fn of_frontend(served: &Served) -> Option<String> {
    let frontends = served.counts.iter().zip(&served.up_ticks).map(|(counts, up)| counts.frontend_ticks.min(*up));
    let busy = frontends.sum::<TickSum>().as_f64() / served.up_ticks.iter().copied().sum::<TickSum>().as_f64();
    let busy = Some(busy).filter(|busy| *busy >= BUSY)? * 100.0;
    Some(format!(
        "frontends are busy {busy:.0} % of the time, so tokens wait for them and not for GPUs: `engine.stream_interval` and \
         `engine.api_servers` take work off them"
    ))
}

/// Share of its time from which on an API server that works so much is named.
const BUSY_SERVER: f64 = 0.75;

/// API servers of replicas that take requests, on average: those of a fleet that changes are there as long as their replicas serve.
fn mean_servers(fleet: &Fleet, served: &Served) -> f64 {
    if !fleet.is_dynamic() {
        return f64::from(fleet.start.servers);
    }
    let end = served.records.end_ticks();
    let of = |(group, up): (&u32, &Tick)| {
        let group = fleet.groups.get(*group as usize).filter(|group| group.role != Role::Decode);
        let own = group.map_or(0, |group| group.engine.limits.frontend.processes.get());
        f64::from(own) * up.of_each(1).mean_over(end)
    };
    served.group_of.iter().zip(&served.up_ticks).map(of).sum()
}

/// What API servers that requests and streamed tokens keep busy say of the figures; there are so many on average. Time on tokens is a range, and not counted.
fn of_api_servers(fleet: &Fleet, n: f64, values: &BTreeMap<String, f64>) -> Option<String> {
    let start = &fleet.start;
    let each = |key: &str| values.get(key).copied().unwrap_or(0.0) / if n > 0.0 { n } else { 1.0 };
    // A frontend that takes time has its own words.
    let counts_tokens = fleet.groups.iter().any(|group| group.engine.limits.frontend.takes_time());
    let tokens = if counts_tokens || start.servers == 0 { 0.0 } else { each("output_tokens_per_s") };
    let requests = if start.mean > Seconds::ZERO && start.servers > 0 { each("requests_per_s") } else { 0.0 };
    let [from, to] = start.server.busy(requests, tokens).map(|busy| busy * 100.0);
    if to < BUSY_SERVER * 100.0 {
        return None;
    }
    let [least, most] = start.server.us_per_token;
    let n = if fleet.is_dynamic() { format!("{n:.1} on average") } else { n.to_string() };
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

/// Share of the run with fewer than half of the users from which on it is worth a word, and the share that the words help to.
const FEW_USERS: [f64; 2] = [0.1, 0.05];

/// What a run says of rates in which most users are gone for a while. That lasts as long however many requests there are.
pub fn of_few_users(values: &BTreeMap<String, f64>) -> Option<String> {
    let ratio = *values.get("few_users_ratio").filter(|ratio| **ratio >= FEW_USERS[0])?;
    let times = ratio / (1.0 - ratio) * (1.0 - FEW_USERS[1]) / FEW_USERS[1];
    let more = values.get("n_requests").map(|n| (n * times).ceil()).filter(|n| n.is_finite());
    let cure = more.map_or_else(
        || "write more `trace.requests`".to_owned(),
        |n| format!("about `trace.requests = {n}` make it {:.0} %", FEW_USERS[1] * 100.0),
    );
    Some(format!(
        "for {:.0} % of the run fewer than half of the users are there, as no request is left for the others: rates and dollars count that time \
         too, and {cure}",
        ratio * 100.0
    ))
}

/// Share of the time from which on waiting for launches is worth a word.
const LAUNCHES: f64 = 0.05;

/// What batches without a graph say of the figures.
fn of_launches(values: &BTreeMap<String, f64>, each: &[(ReplicaConfig<'_>, Limits)]) -> Option<String> {
    let waits = values.get("launch_wait_ratio").filter(|waits| **waits >= LAUNCHES)? * 100.0;
    let is_exact = each.iter().any(|(replica, _)| replica.graph_fit == GraphFit::Exact);
    let between = if is_exact { ", `engine.graph_padding` fills up those between" } else { "" };
    Some(format!(
        "{waits:.0} % of the time batches that no captured graph holds wait for the launches of their kernels, whose time is assumed: \
         `engine.graph_max` captures larger batches{between}"
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
    (fleet, served): (&Fleet, &Served),
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
    limits.extend(of_few_users(values));
    limits.extend(of_links(values));
    limits.extend(of_frontend(served));
    limits.extend(of_api_servers(fleet, mean_servers(fleet, served), values));
    limits.extend(of_launches(values, each));
    if let Some(usd) = values.get("cost_usd_per_mtok") {
        limits.push(format!("{usd:.3} dollars per million output tokens"));
    }
    limits.extend(of_energy(values, each));
    let limits = if limits.is_empty() { String::new() } else { format!("; {}", limits.join(", ")) };
    let (who, busy) = (replicas(fleet, router), value("busy_ratio") * 100.0);
    let (room, used) = (room(fleet, value("kv_tokens")), value("kv_peak_ratio") * 100.0);
    format!("{who}, busy {busy:.0} % of the time, {room}, at most {used:.0} % in use{limits}")
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
    use crate::fleet::dynamics::Failures;
    use crate::fleet::start::Start;
    use crate::frontend::Frontend;
    use crate::replica::{Engine, Spans};
    use crate::request::{Request, Requests};
    use crate::step_cost::StepTable;

    #[test]
    fn api_servers_that_requests_and_tokens_fill_are_named() {
        let server = ApiServer { us_per_request: 2000.0, us_per_token: [40.0, 60.0], ..ApiServer::NONE };
        let start = Start { mean: Seconds::new(0.015), server, servers: 1, ..Start::default() };
        let fleet = Fleet { start, ..Fleet::default() };
        let of = |requests: f64, tokens: f64| {
            let values = [("requests_per_s", requests), ("output_tokens_per_s", tokens)];
            of_api_servers(&fleet, 1.0, &values.map(|(key, value)| (key.to_owned(), value)).into())
        };
        assert_eq!(of(100.0, 100.0), None);
        // 100 × 2 ms, and 10,000 × 40 to 60 us.
        assert!(of(100.0, 10_000.0).is_some_and(|words| words.contains("busy 60 to 80 %")));
        assert!(of(400.0, 0.0).is_some_and(|words| words.contains("busy 80 %")));
    }

    #[test]
    fn api_servers_of_a_fleet_that_changes_count_by_the_time_of_their_replicas() {
        // Four replicas with three servers each; one is never there, one half of the time, one decodes for others.
        let limits = Limits { frontend: Frontend::new(0.0, [1, 3]), ..Limits::ROOMY };
        let (table, batcher) =
            (StepTable::constant(Seconds::new(0.01)), crate::batcher::named("vllm-v1").expect("listed"));
        let engine = Engine { limits, table, batcher, spans: Spans::Closed };
        let [mut all, mut decode] =
            [Role::Both, Role::Decode].map(|role| Group { role, ..Group::new("all", engine.clone(), 3) });
        all.failures = Some(Failures { mtbf: Seconds::new(1.0), mttr: Seconds::new(1.0), seed: 0 });
        decode.n_replicas = 1;
        let fleet = Fleet { groups: vec![all, decode], ..Fleet::default() };
        let requests = Requests::of(vec![Request::new(hw::Time::ZERO, 1, 100)]);
        let served = fleet.serve(&requests, (crate::router::ROUTERS[0].make)(0).as_mut());
        let end = served.records.end_ticks();
        let served = Served { up_ticks: vec![end, Tick::ZERO, end / 2, end], ..served };
        let n = mean_servers(&fleet, &served);
        assert!((n - 4.5).abs() < 1e-3, "{n}");
    }

    #[test]
    fn users_who_are_gone_for_a_while_are_told_with_the_requests_that_would_do() {
        let of = |ratio: f64| {
            let values = [("few_users_ratio", ratio), ("n_requests", 1000.0)];
            of_few_users(&values.map(|(key, value)| (key.to_owned(), value)).into())
        };
        assert_eq!((of(0.05), of_few_users(&BTreeMap::new())), (None, None));
        // Half of a run is drain: it is a twentieth where the rest is 19 times as long.
        assert!(
            of(0.5).is_some_and(|words| words.contains("50 % of the run") && words.contains("= 19000` make it 5 %"))
        );
        assert!(of(1.0).is_some_and(|words| words.contains("write more `trace.requests`")));
    }

    #[test]
    fn a_link_that_works_nearly_all_the_time_is_named() {
        let of = |busy: f64| of_links(&BTreeMap::from([("link_busy_ratio".to_owned(), busy)]));
        assert!(of(0.97).is_some_and(|words| words.contains("busy 97 %") && words.contains("`fleet.link`")));
        assert_eq!((of(0.5), of_links(&BTreeMap::new())), (None, None));
    }
}
