//! Figures of a served workload, as the contract defines them.
//!
//! TTFT: arrival to first token. TPOT: (last token − first token) / (output tokens − 1), requests with one token left out. Quantiles
//! interpolate linearly between order statistics. A run lasts from time zero until the last request ends or is refused: a fleet that is lost serves nobody
//! any more. Replicas are paid as long. The window of rates is the same without the warm-up. Latencies are of requests that arrive in it, rates count what
//! ends in it. A refused request meets no SLO, nor does one whose client gave up; one whose client had enough before the end counts neither way. Output tokens
//! are those that clients have: all of a served request, and those that a client read who had enough. Of users who are held the window has the drain too,
//! in which they leave one after another, as clients of benchmarks count it; `few_users_ratio` says how long that is. Units: seconds, requests, tokens.

pub mod adapters;
pub mod average;
pub mod energy;
pub mod fleet;
pub mod lending;
pub mod memory;
pub mod rows;
pub mod saturation;
pub mod streams;
pub mod tools;
pub mod unexplained;
pub mod words;

use std::collections::BTreeMap;

use hw::{Seconds, Tick, TickSum, Time, quantile, real};

use crate::fleet::Served;
use crate::records::{End, Record};
use crate::replica::Counts;
use crate::request::Requests;
use unexplained::Unexplained;

/// From the least to the most of a figure that is expected and its values at both ends of the costs. It need not lie between these: requests meet in other
/// batches there.
pub const fn interval_of(expected: f64, [fast, slow]: [f64; 2]) -> [f64; 2] {
    [expected.min(fast).min(slow), expected.max(fast).max(slow)]
}

/// Intervals of figures over the ends of the costs. What no cost explains widens them, where times are not given.
pub fn intervals(
    values: &BTreeMap<String, f64>,
    ends: &[BTreeMap<String, f64>; 2],
    unexplained: Option<&Unexplained>,
) -> BTreeMap<String, [f64; 2]> {
    let of = |key: &str| Some((key.to_owned(), interval(key, values, ends, unexplained)?));
    WITH_INTERVAL.into_iter().filter_map(of).collect()
}

/// The same of one figure, where all of them have it.
pub fn interval(
    key: &str,
    values: &BTreeMap<String, f64>,
    [fast, slow]: &[BTreeMap<String, f64>; 2],
    unexplained: Option<&Unexplained>,
) -> Option<[f64; 2]> {
    let of_costs = interval_of(*values.get(key)?, [*fast.get(key)?, *slow.get(key)?]);
    Some(unexplained.map_or(of_costs, |open| open.around(key, values, of_costs)))
}

/// Figures that have an interval over the ends of the costs.
pub const WITH_INTERVAL: [&str; 24] = [
    "ttft_s.mean",
    "ttft_s.p50",
    "ttft_s.p90",
    "ttft_s.p99",
    "tpot_s.mean",
    "tpot_s.p50",
    "tpot_s.p90",
    "tpot_s.p99",
    "e2e_s.mean",
    "e2e_s.p50",
    "e2e_s.p90",
    "e2e_s.p99",
    "requests_per_s",
    "goodput_requests_per_s",
    "output_tokens_per_s",
    "output_tokens_per_s_per_gpu",
    "slo_attainment_ratio",
    "cost_usd",
    "cost_usd_per_mtok",
    "energy_wh",
    "gpu_power_w",
    "energy_j_per_output_token",
    "tool_hit_ratio",
    "tool_ttft_s.mean",
];

/// Limits that a request should meet; absent ones are met by all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slo {
    /// Time to the first token.
    pub ttft: Option<Seconds>,
    /// Time per further token.
    pub tpot: Option<Seconds>,
    /// Time to the last token.
    pub e2e: Option<Seconds>,
}

impl Slo {
    /// The limit of one key of scenarios alone.
    pub fn only(&self, key: &str) -> Self {
        match key {
            "ttft_s" => Self { ttft: self.ttft, ..Self::default() },
            "tpot_s" => Self { tpot: self.tpot, ..Self::default() },
            _ => Self { e2e: self.e2e, ..Self::default() },
        }
    }

    /// Whether it limits anything.
    pub const fn is_given(&self) -> bool {
        self.ttft.is_some() || self.tpot.is_some() || self.e2e.is_some()
    }
}

/// Latencies of one served request, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latencies {
    /// Arrival to first service.
    pub queue_s: f64,
    /// Arrival to first token.
    pub ttft_s: f64,
    /// Per token after the first; absent for one token.
    pub tpot_s: Option<f64>,
    /// Arrival to last token.
    pub e2e_s: f64,
}

/// Latencies of every request that was served, `None` for all others.
pub fn latencies<'a>(requests: &'a Requests, served: &'a Served) -> impl Iterator<Item = Option<Latencies>> + 'a {
    requests.list.iter().zip(&served.records.list).map(|(request, record)| {
        let since = |time: Time, start: Time| (time - start).to_seconds().get();
        let (scheduled, first, last) = (record.scheduled()?, record.first_token()?, record.finished()?);
        let more = f64::from(request.output - 1);
        Some(Latencies {
            queue_s: since(scheduled, request.arrival),
            ttft_s: since(first, request.arrival),
            tpot_s: (request.output > 1).then(|| since(last, first) / more),
            e2e_s: since(last, request.arrival),
        })
    })
}

/// The same of those requests that count after a warm-up: all but those that arrive in it and those whose clients had enough.
fn counted<'a>(
    requests: &'a Requests,
    served: &'a Served,
    warm_up: Seconds,
) -> impl Iterator<Item = Option<Latencies>> + 'a {
    let start = Time::ZERO + hw::Span::from_seconds(warm_up);
    let all = requests.list.iter().zip(&served.records.list).zip(latencies(requests, served));
    let those = all.filter(move |((request, record), _)| request.arrival >= start && record.end() != End::Cancelled);
    those.map(|(_, latencies)| latencies)
}

/// Mean, p50, p90 and p99 of some values, under keys `name.mean` and so on; nothing where there are none.
pub fn spread(into: &mut BTreeMap<String, f64>, name: &str, mut values: Vec<f64>) {
    if values.is_empty() {
        return;
    }
    sort_times(&mut values);
    let n = hw::real(values.len() as u64);
    into.insert(format!("{name}.mean"), values.iter().sum::<f64>() / n);
    for (key, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
        into.insert(format!("{name}.{key}"), quantile::of_sorted(&values, share));
    }
}

/// Sorts durations. Bits of numbers that are not negative have the order of the numbers, and whole numbers sort faster.
///
/// # Panics
/// When one is negative.
pub fn sort_times(values: &mut [f64]) {
    assert!(values.iter().all(|value| value.is_sign_positive()), "a duration is not negative");
    values.sort_unstable_by_key(|value| value.to_bits());
}

/// Figures of a run by their contract keys; parts of an object have a dot: `ttft_s.mean`.
pub fn of(requests: &Requests, served: &Served, slo: &Slo, warm_up: Seconds) -> BTreeMap<String, f64> {
    let mut figures = BTreeMap::new();
    let start = Time::ZERO + hw::Span::from_seconds(warm_up);
    let end = served.records.end_ticks().time();
    let window_s = if end > start { (end - start).to_seconds().get() } else { 0.0 };
    let (mut ttft, mut tpot, mut e2e, mut queue) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut n_arrived, mut n_met) = (0_u64, 0_u64);
    let (mut n_ended, mut n_good, mut output_tokens) = (0_u64, 0_u64, 0_u64);
    let parts = requests.list.iter().zip(&served.records.list).zip(latencies(requests, served));
    for ((request, record), latencies) in parts {
        let is_cancelled = record.end() == End::Cancelled;
        let is_met = !is_cancelled && latencies.as_ref().is_some_and(|latencies| meets(slo, latencies));
        if record.finished().is_some_and(|finished| finished > start) {
            n_ended += 1;
            n_good += u64::from(is_met);
        }
        if record.satisfied().is_some_and(|last| last > start) {
            output_tokens += u64::from(request.output);
        }
        if request.arrival < start || is_cancelled {
            continue;
        }
        n_arrived += 1;
        let Some(latencies) = latencies else { continue };
        n_met += u64::from(is_met);
        ttft.push(latencies.ttft_s);
        tpot.extend(latencies.tpot_s);
        e2e.push(latencies.e2e_s);
        queue.push(latencies.queue_s);
    }
    for (name, values) in [("ttft_s", ttft), ("tpot_s", tpot), ("e2e_s", e2e), ("queue_s", queue)] {
        spread(&mut figures, name, values);
    }
    let mut add = |key: &str, value: f64| {
        if value.is_finite() {
            figures.insert(key.to_owned(), value);
        }
    };
    add("requests_per_s", real(n_ended) / window_s);
    add("output_tokens_per_s", real(output_tokens) / window_s);
    if slo.is_given() {
        add("slo_attainment_ratio", real(n_met) / real(n_arrived));
        add("goodput_requests_per_s", real(n_good) / window_s);
    }
    let sum = |of: &dyn Fn(&Counts) -> u64| served.counts.iter().map(of).sum::<u64>();
    add("makespan_s", (end - Time::ZERO).to_seconds().get());
    add("n_requests", real(requests.len() as u64));
    add("n_refused", real(served.n_refused));
    if served.n_unserved > 0 {
        add("n_unserved", real(served.n_unserved));
    }
    add("n_preempted", real(sum(&|counts| counts.n_preempted)));
    add("n_steps", real(sum(&|counts| counts.n_steps)));
    add(
        "tokens_per_verification",
        real(sum(&|counts| counts.verified_tokens)) / real(sum(&|counts| counts.n_verified)),
    );
    add("prefix_hit_ratio", prefix_hit_ratio(requests, served));
    let peak = served.blocks.iter().map(|(peak, total)| f64::from(*peak) / f64::from(*total)).fold(0.0, f64::max);
    add("kv_peak_ratio", peak);
    shares_below(&mut figures, requests, served);
    shares_of_time(&mut figures, served);
    few_users(&mut figures, served);
    images(&mut figures, served);
    tools::add(&mut figures, requests, served, warm_up);
    if !requests.is_patient() {
        ways(&mut figures, requests, served);
    }
    figures
}

/// Share of the prompt tokens of scheduled requests that were cached when each was first scheduled; no number where nobody was.
///
/// vLLM counts so: a query of its prefix cache is a prompt that is scheduled, and one that was preempted is counted apart (`get_computed_blocks` in
/// vllm/v1/core/kv_cache_manager.py). Requests whose clients left the queue are not in it, nor is what is computed again.
pub fn prefix_hit_ratio(requests: &Requests, served: &Served) -> f64 {
    // Where others compute all prompts nobody looks for prefixes.
    if served.counts.iter().all(|counts| counts.cached_tokens + counts.prefill_tokens == 0) {
        return f64::NAN;
    }
    share_of_prompts(requests, served, |record| record.cached_tokens)
}

/// Share of the prompt tokens of scheduled requests.
fn share_of_prompts(requests: &Requests, served: &Served, tokens: fn(&Record) -> u32) -> f64 {
    let records = requests.list.iter().zip(&served.records.list);
    let (mut part, mut prompts) = (0, 0);
    for (request, record) in records.filter(|(_, record)| record.scheduled().is_some()) {
        part += u64::from(tokens(record));
        prompts += u64::from(request.prompt);
    }
    real(part) / real(prompts)
}

/// Adds the shares that came from below the device, and from a store of the fleet: parts of `prefix_hit_ratio`, as each request was first scheduled.
fn shares_below(into: &mut BTreeMap<String, f64>, requests: &Requests, served: &Served) {
    let brought = share_of_prompts(requests, served, |record| record.brought_tokens);
    let remote = share_of_prompts(requests, served, |record| record.remote_tokens);
    for (key, share) in [("brought_ratio", brought), ("remote_ratio", remote)] {
        if share > 0.0 {
            into.insert(key.to_owned(), share);
        }
    }
}

/// Adds what was encoded of images, where some were, and how long that took.
fn images(into: &mut BTreeMap<String, f64>, served: &Served) {
    let sum = |of: &dyn Fn(&Counts) -> u64| served.counts.iter().map(of).sum::<u64>();
    if sum(&|counts| counts.n_images) > 0 {
        into.insert("n_images".to_owned(), real(sum(&|counts| counts.n_images)));
        into.insert("image_tokens".to_owned(), real(sum(&|counts| counts.image_tokens)));
        let ticks = served.counts.iter().map(|counts| counts.encode_ticks).sum::<TickSum>();
        into.insert("encode_s".to_owned(), ticks.as_ns() / 1e9);
    }
}

/// Adds for how much of the run fewer than half of the users were there, where a number of them is held.
fn few_users(into: &mut BTreeMap<String, f64>, served: &Served) {
    let all = served.records.end_ticks();
    if let Some(at) = served.half_left.filter(|_| all > Tick::ZERO) {
        into.insert("few_users_ratio".to_owned(), 1.0 - at.min(all).as_f64() / all.as_f64());
    }
}

/// Ticks that a replica counted.
type Counted = fn(&Counts) -> Tick;

/// Adds which share of the paid time replicas and their frontends work, and which share of it their stages wait.
fn shares_of_time(into: &mut BTreeMap<String, f64>, served: &Served) {
    let mut add = |key: &str, value: f64| {
        if value.is_finite() {
            into.insert(key.to_owned(), value);
        }
    };
    let paid = served.paid_ticks.iter().copied().sum::<TickSum>();
    // An engine that is a step ahead of its tokens works on for a moment after the last of them, which nobody pays.
    // So does one whose client has given up.
    let worked = |ticks: Counted| {
        let of_replica = served.counts.iter().zip(&served.paid_ticks);
        of_replica.map(|(counts, paid)| ticks(counts).min(*paid)).sum::<TickSum>()
    };
    add("busy_ratio", worked(|counts| counts.busy_ticks).as_ns() / paid.as_ns());
    let some: [(&str, Counted); 3] = [
        ("encode_busy_ratio", |counts| counts.encode_ticks),
        ("frontend_busy_ratio", |counts| counts.frontend_ticks),
        ("launch_wait_ratio", |counts| counts.launch_ticks),
    ];
    for (key, ticks) in some {
        let all = worked(ticks);
        if all > TickSum::default() {
            add(key, all.as_ns() / paid.as_ns());
        }
    }
    let stages = worked(|counts| counts.stage_ticks);
    if stages > TickSum::default() {
        add("bubble_ratio", 1.0 - stages.as_ns() / paid.as_ns());
    }
}

/// Adds how requests ended, and the share of output tokens that nobody has.
fn ways(into: &mut BTreeMap<String, f64>, requests: &Requests, served: &Served) {
    let ended = |end| hw::real(served.records.count(end));
    into.insert("n_served".to_owned(), ended(End::Served));
    into.insert("n_timed_out".to_owned(), ended(End::TimedOut));
    into.insert("n_cancelled".to_owned(), ended(End::Cancelled));
    let given: u64 = served.counts.iter().map(|counts| counts.output_tokens).sum();
    if given > 0 {
        let kept = hw::real(kept_tokens(requests, served)) / hw::real(given);
        into.insert("lost_output_tokens_ratio".to_owned(), 1.0 - kept);
    }
}

/// Output tokens that clients have.
fn kept_tokens(requests: &Requests, served: &Served) -> u64 {
    let both = requests.list.iter().zip(&served.records.list);
    both.filter(|(_, record)| record.satisfied().is_some()).map(|(request, _)| u64::from(request.output)).sum()
}

/// Adds times to the first token of requests from so many prompt tokens on, and of the shorter ones.
pub fn by_length(into: &mut BTreeMap<String, f64>, requests: &Requests, served: &Served, long_from: u32) {
    let (mut long, mut short) = (Vec::new(), Vec::new());
    for (request, latencies) in requests.list.iter().zip(latencies(requests, served)) {
        let Some(latencies) = latencies else { continue };
        let of_length = if request.prompt >= long_from { &mut long } else { &mut short };
        of_length.push(latencies.ttft_s);
    }
    spread(into, "long_ttft_s", long);
    spread(into, "short_ttft_s", short);
}

/// Whether a request meets every limit.
pub fn meets(slo: &Slo, latencies: &Latencies) -> bool {
    let within = |limit: Option<Seconds>, value: Option<f64>| match (limit, value) {
        (Some(limit), Some(value)) => value <= limit.get(),
        _ => true,
    };
    within(slo.ttft, Some(latencies.ttft_s))
        && within(slo.tpot, latencies.tpot_s)
        && within(slo.e2e, Some(latencies.e2e_s))
}
