//! The capacity question of a serving scenario: many fleets serve the same requests, and the cheapest one within the limits is looked at closely.
//!
//! A fleet is the scenario with keys laid over it, so that everything a scenario can say holds for it too; `judge` runs one. Load is scaled by
//! `trace.load`: the same requests, faster. Units: dollars, requests per second, shares of requests.

use std::collections::BTreeMap;

use rayon::prelude::*;
use reports::PolicyResult;
use reports::capacity::{Capacity, Headroom, Load, Point, SCHEMA, Sensitivity};

/// Relative width of the bracket around the highest load within the target.
const WIDTH: f64 = 0.02;
/// Loads beyond these are not tried.
const LOADS: [f64; 2] = [1.0 / 64.0, 64.0];
/// Change of price and load that sensitivity looks at.
const CHANGE: f64 = 0.2;
/// Fleets up to this many times the chosen one's price are served again at other loads.
const NEAR: f64 = 2.0;
/// Share of blocks in use from which on memory counts as full.
const FULL: f64 = 0.98;

/// A GPU type and its price.
#[derive(Clone, Debug, PartialEq)]
pub struct Quoted {
    /// Type of the catalogue.
    pub gpu: String,
    /// Dollars per GPU and hour.
    pub usd_per_gpu_hour: f64,
    /// Provider and date, in words.
    pub quote: String,
}

/// The busiest part of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peak {
    /// Start, seconds.
    pub from_s: f64,
    /// End, seconds.
    pub to_s: f64,
    /// Requests per second that arrive in it.
    pub requests_per_s: f64,
    /// Whether it is all of the trace.
    pub is_whole: bool,
}

/// What a scenario asks.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Policy that batches.
    pub policy: String,
    /// Numbers of replicas.
    pub replicas: Vec<u64>,
    /// Tensor degrees.
    pub tensor_degrees: Vec<u64>,
    /// GPU types.
    pub gpus: Vec<Quoted>,
    /// GPUs of a node.
    pub n_gpus_per_node: u64,
    /// Share of requests that have to meet every limit.
    pub target_ratio: f64,
    /// Limits by key of `[slo]`, seconds.
    pub limits: Vec<(&'static str, f64)>,
    /// The busiest part of the trace.
    pub peak: Peak,
}

/// Serves the scenario with keys laid over it; the row, or why there is none.
pub type Judge<'a> = dyn Fn(&[String]) -> Result<PolicyResult, String> + Sync + 'a;

/// A fleet to be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    gpu: usize,
    tp: u64,
    n: u64,
}

/// What was found of a fleet.
struct Tried {
    candidate: Candidate,
    point: Point,
}

fn attainment(row: &PolicyResult) -> (f64, [f64; 2]) {
    const KEY: &str = "slo_attainment_ratio";
    let value = row.metrics.get(KEY).copied().unwrap_or(0.0);
    (value, row.interval.get(KEY).copied().unwrap_or([value, value]))
}

impl Question {
    fn candidates(&self) -> Vec<Candidate> {
        let mut all = Vec::new();
        for gpu in 0..self.gpus.len() {
            for &tp in &self.tensor_degrees {
                all.extend(self.replicas.iter().map(|&n| Candidate { gpu, tp, n }));
            }
        }
        all
    }

    fn name(&self, candidate: Candidate) -> String {
        let degree = if self.tensor_degrees == [1] { String::new() } else { format!(" tp {}", candidate.tp) };
        format!("{} x {}{degree}", candidate.n, self.gpus[candidate.gpu].gpu)
    }

    /// Keys that make the scenario this fleet.
    fn keys(&self, candidate: Candidate) -> Vec<String> {
        let Candidate { gpu, tp, n } = candidate;
        let quoted = &self.gpus[gpu];
        let per_node = self.n_gpus_per_node.max(tp);
        // Replicas do not straddle nodes.
        let nodes = n.div_ceil((per_node / tp).max(1));
        vec![
            format!("cluster.gpu='{}'", quoted.gpu),
            format!("cluster.nodes={nodes}"),
            format!("cluster.gpus_per_node={per_node}"),
            format!("engine.tp={tp}"),
            format!("fleet.replicas={n}"),
            format!("fleet.usd_per_gpu_hour={}", quoted.usd_per_gpu_hour),
            format!("policies.run=['{}']", self.policy),
            format!("policies.baseline='{}'", self.policy),
        ]
    }

    fn serve(&self, judge: &Judge<'_>, candidate: Candidate, more: &[String]) -> Result<PolicyResult, String> {
        judge(&[self.keys(candidate), more.to_vec()].concat())
    }

    fn point(&self, candidate: Candidate, row: &PolicyResult) -> Point {
        let quoted = &self.gpus[candidate.gpu];
        let figure = |key: &str| row.metrics.get(key).copied().unwrap_or(0.0);
        let (attainment_ratio, attainment_interval) = attainment(row);
        let usd_per_mtok = figure("cost_usd_per_mtok");
        let n_gpus = candidate.n * candidate.tp;
        Point {
            name: self.name(candidate),
            gpu: quoted.gpu.clone(),
            n_gpus,
            usd_per_hour: quoted.usd_per_gpu_hour * hw::Tokens(n_gpus).as_f64(),
            usd_per_mtok,
            usd_per_mtok_interval: row.interval.get("cost_usd_per_mtok").copied().unwrap_or([usd_per_mtok; 2]),
            attainment_ratio,
            attainment_interval,
            is_on_front: false,
        }
    }

    /// The limits in words.
    fn words(&self) -> String {
        let name = |key: &str| key.trim_end_matches("_s").to_uppercase();
        let all: Vec<String> = self.limits.iter().map(|(key, seconds)| format!("{} {seconds} s", name(key))).collect();
        all.join(" and ")
    }

    fn peak_keys(&self) -> Vec<String> {
        let Peak { from_s, to_s, is_whole, .. } = self.peak;
        if is_whole { Vec::new() } else { vec![format!("trace.from_s={from_s}"), format!("trace.to_s={to_s}")] }
    }
}

/// Answers a question. `more` are sentences about where figures come from.
#[must_use]
pub fn answer(scenario: &str, question: &Question, more: Vec<String>, judge: &Judge<'_>) -> Capacity {
    let tried: Vec<(Candidate, Result<PolicyResult, String>)> = question
        .candidates()
        .into_par_iter()
        .map(|candidate| (candidate, question.serve(judge, candidate, &[])))
        .collect();
    let (mut all, mut left_out) = (Vec::new(), Vec::new());
    for (candidate, row) in tried {
        match row {
            Ok(row) => all.push(Tried { point: question.point(candidate, &row), candidate }),
            Err(why) => left_out.push((question.name(candidate), why)),
        }
    }
    all.sort_by(|a, b| {
        let by = |tried: &Tried| (tried.point.usd_per_mtok, tried.point.usd_per_hour);
        by(a).0.total_cmp(&by(b).0).then(by(a).1.total_cmp(&by(b).1))
    });
    mark_front(&mut all);
    let target = question.target_ratio;
    let usd = |tried: &Tried| tried.point.usd_per_hour;
    let chosen = cheapest(&all, &usd, &|tried| tried.point.attainment_ratio >= target);
    let safe = cheapest(&all, &usd, &|tried| tried.point.attainment_interval[0] >= target);
    let headroom = chosen.map(|index| headroom(question, judge, all[index].candidate));
    let sensitivity = chosen.map_or_else(Vec::new, |index| sensitivity(question, judge, &all, index));
    let quotes = question.gpus.iter().filter(|quoted| !quoted.quote.is_empty());
    let quote = |quoted: &Quoted| format!("{}: {} $ per hour ({})", quoted.gpu, quoted.usd_per_gpu_hour, quoted.quote);
    Capacity {
        schema: SCHEMA.to_owned(),
        scenario: scenario.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        limits: question.words(),
        target_ratio: target,
        points: all.into_iter().map(|tried| tried.point).collect(),
        left_out,
        chosen,
        safe,
        headroom,
        sensitivity,
        sources: more.into_iter().chain(quotes.map(quote)).collect(),
    }
}

/// The cheapest fleet that passes; of equals the one that meets more.
fn cheapest(all: &[Tried], usd: &dyn Fn(&Tried) -> f64, passes: &dyn Fn(&Tried) -> bool) -> Option<usize> {
    let open = (0..all.len()).filter(|&index| passes(&all[index]));
    open.min_by(|&a, &b| {
        let more = all[b].point.attainment_ratio.total_cmp(&all[a].point.attainment_ratio);
        usd(&all[a]).total_cmp(&usd(&all[b])).then(more)
    })
}

/// Fleets are in order of price; one is on the front when it meets more than every cheaper one.
fn mark_front(all: &mut [Tried]) {
    let mut best = f64::NEG_INFINITY;
    for tried in all {
        tried.point.is_on_front = tried.point.attainment_ratio > best;
        best = best.max(tried.point.attainment_ratio);
    }
}

/// Brackets the highest load within the target, and says what breaks above it.
fn headroom(question: &Question, judge: &Judge<'_>, candidate: Candidate) -> Headroom {
    let mut loads: Vec<Load> = Vec::new();
    let keys = |factor: f64| [question.peak_keys(), vec![format!("trace.load={factor}")]].concat();
    let mut meets = |factor: f64| {
        let Ok(row) = question.serve(judge, candidate, &keys(factor)) else { return false };
        let (attainment_ratio, attainment_interval) = attainment(&row);
        loads.push(Load { factor, attainment_ratio, attainment_interval });
        attainment_ratio >= question.target_ratio
    };
    let (mut low, mut high) = (None, None);
    let mut factor = 1.0;
    // Doubling while the target is met, or halving until it is.
    while (low.is_none() || high.is_none()) && (LOADS[0]..=LOADS[1]).contains(&factor) {
        if meets(factor) {
            low = Some(factor);
            factor *= 2.0;
        } else {
            high = Some(factor);
            factor *= 0.5;
        }
    }
    while let (Some(below), Some(above)) = (low, high) {
        if above / below <= 1.0 + WIDTH {
            break;
        }
        let middle = below.midpoint(above);
        if meets(middle) {
            low = Some(middle);
        } else {
            high = Some(middle);
        }
    }
    loads.sort_by(|a, b| a.factor.total_cmp(&b.factor));
    let window = match question.peak {
        Peak { is_whole: true, .. } => "the whole trace".to_owned(),
        Peak { from_s, to_s, .. } => format!("{from_s:.0} s to {to_s:.0} s of the trace"),
    };
    let breaks = high
        .map_or_else(|| "nothing up to there".to_owned(), |factor| breaks(question, judge, candidate, &keys(factor)));
    let requests_per_s = question.peak.requests_per_s;
    Headroom { window, requests_per_s, meets: low.unwrap_or(0.0), fails: high, loads, breaks }
}

/// Which limit fails first under a load, and why.
fn breaks(question: &Question, judge: &Judge<'_>, candidate: Candidate, load: &[String]) -> String {
    // Each limit alone: the others are far away.
    let alone = |key: &'static str| {
        let others = question.limits.iter().filter(|(other, _)| *other != key);
        let others: Vec<String> = others.map(|(other, _)| format!("slo.{other}=1e6")).collect();
        let row = question.serve(judge, candidate, &[load.to_vec(), others].concat()).ok()?;
        Some((attainment(&row).0, key, row.metrics))
    };
    let worst = question.limits.iter().filter_map(|(key, _)| alone(key)).min_by(|a, b| a.0.total_cmp(&b.0));
    let Some((ratio, key, metrics)) = worst else { return "not known: the fleet could not be served again".to_owned() };
    let limit = question.limits.iter().find(|(known, _)| *known == key).map_or(0.0, |(_, seconds)| *seconds);
    let name = key.trim_end_matches("_s").to_uppercase();
    let shown = format!("the limit of {name}, {limit} s, which {:.1} % of requests meet", ratio * 100.0);
    format!("{shown}; {}", cause(key, &metrics))
}

/// Why a limit fails, from the figures of the run.
fn cause(key: &str, metrics: &BTreeMap<String, f64>) -> String {
    let value = |key: &str| metrics.get(key).copied().unwrap_or(0.0);
    let waits = value("queue_s.p99") / value("ttft_s.p99").max(1e-9);
    // Full memory delays admissions; it slows tokens down only where sequences lose their blocks.
    let memory = value("n_preempted") > 0.0 || (key != "tpot_s" && value("kv_peak_ratio") >= FULL);
    match key {
        _ if memory => format!(
            "memory for keys and values is full ({:.0} % of blocks at most in use, {:.0} preemptions)",
            value("kv_peak_ratio") * 100.0,
            value("n_preempted")
        ),
        "ttft_s" if waits > 0.5 => format!(
            "requests wait in the queue ({:.0} % of the 99th percentile) while blocks are at most {:.0} % in use",
            waits * 100.0,
            value("kv_peak_ratio") * 100.0
        ),
        "ttft_s" => "prompts take that long once they have begun, behind the decodes of the batch".to_owned(),
        "tpot_s" => format!(
            "iterations take that long: batches are large and prompts ride along (busy {:.0} % of the time)",
            value("busy_ratio") * 100.0
        ),
        _ => format!("the sum of waiting and serving (busy {:.0} % of the time)", value("busy_ratio") * 100.0),
    }
}

/// What other prices and loads would change.
fn sensitivity(question: &Question, judge: &Judge<'_>, all: &[Tried], chosen: usize) -> Vec<Sensitivity> {
    let target = question.target_ratio;
    let today = all[chosen].point.attainment_ratio;
    let mut rows = Vec::new();
    for (gpu, quoted) in question.gpus.iter().enumerate() {
        for (sign, factor) in [("+", 1.0 + CHANGE), ("-", 1.0 - CHANGE)] {
            let times = |tried: &Tried| if tried.candidate.gpu == gpu { factor } else { 1.0 };
            let usd = |tried: &Tried| tried.point.usd_per_hour * times(tried);
            let best = cheapest(all, &usd, &|tried| tried.point.attainment_ratio >= target).map(|index| &all[index]);
            rows.push(Sensitivity {
                change: format!("price of {} {sign}{:.0} %", quoted.gpu, CHANGE * 100.0),
                cheapest: best.map_or_else(String::new, |tried| tried.point.name.clone()),
                usd_per_mtok: best.map(|tried| tried.point.usd_per_mtok * times(tried)),
                attainment_ratio: Some(today),
            });
        }
    }
    let near: Vec<&Tried> =
        all.iter().filter(|tried| tried.point.usd_per_hour <= NEAR * all[chosen].point.usd_per_hour).collect();
    for (sign, factor) in [("+", 1.0 + CHANGE), ("-", 1.0 - CHANGE)] {
        let serve = |tried: &&Tried| {
            let row = question.serve(judge, tried.candidate, &[format!("trace.load={factor}")]).ok()?;
            Some(Tried { point: question.point(tried.candidate, &row), candidate: tried.candidate })
        };
        let again: Vec<Tried> = near.par_iter().filter_map(serve).collect();
        let usd = |tried: &Tried| tried.point.usd_per_hour;
        let best = cheapest(&again, &usd, &|tried| tried.point.attainment_ratio >= target).map(|index| &again[index]);
        let same = again.iter().find(|tried| tried.candidate == all[chosen].candidate);
        rows.push(Sensitivity {
            change: format!("load {sign}{:.0} %", CHANGE * 100.0),
            cheapest: best.map_or_else(String::new, |tried| tried.point.name.clone()),
            usd_per_mtok: best.map(|tried| tried.point.usd_per_mtok),
            attainment_ratio: same.map(|tried| tried.point.attainment_ratio),
        });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        let quoted =
            |gpu: &str, usd_per_gpu_hour| Quoted { gpu: gpu.to_owned(), usd_per_gpu_hour, quote: String::new() };
        Question {
            policy: "vllm-v1".to_owned(),
            replicas: vec![1, 2, 4],
            tensor_degrees: vec![1],
            gpus: vec![quoted("a", 1.0), quoted("b", 3.0)],
            n_gpus_per_node: 8,
            target_ratio: 0.9,
            limits: vec![("ttft_s", 1.0)],
            peak: Peak { from_s: 0.0, to_s: 10.0, requests_per_s: 2.0, is_whole: true },
        }
    }

    /// A replica of `a` takes 1 load and one of `b` 2.5; above, attainment falls as capacity over load.
    fn judge(keys: &[String]) -> Result<PolicyResult, String> {
        let of =
            |key: &str| keys.iter().rev().find_map(|item| item.strip_prefix(key)?.strip_prefix('=')).unwrap_or("1");
        let n: f64 = of("fleet.replicas").parse().expect("a number");
        let load: f64 = of("trace.load").parse().expect("a number");
        let capacity = n * if of("cluster.gpu") == "'a'" { 1.0 } else { 2.5 };
        let mut row = PolicyResult::default();
        let met = (capacity / (1.7 * load)).min(1.0);
        row.metrics.insert("slo_attainment_ratio".to_owned(), met);
        row.metrics.insert("cost_usd_per_mtok".to_owned(), n);
        row.interval.insert("slo_attainment_ratio".to_owned(), [0.8 * met, met]);
        if of("cluster.gpu") == "'b'" && n > 2.0 { Err("too many".to_owned()) } else { Ok(row) }
    }

    #[test]
    fn the_cheapest_fleet_within_the_target_is_chosen_and_its_load_is_bracketed() {
        let capacity = answer("s", &question(), Vec::new(), &judge);
        // Two of `a` carry 2 of 1.7 for 2 $/h; one of `b` for 3 $/h is the next.
        let chosen = &capacity.points[capacity.chosen.expect("one is enough")];
        assert_eq!((chosen.name.as_str(), chosen.usd_per_hour), ("2 x a", 2.0));
        assert_eq!(capacity.left_out, [("4 x b".to_owned(), "too many".to_owned())]);
        // At 0.8 of its attainment 2 x a fails, and so does all that meets at most 80 % there.
        assert!(capacity.safe.is_none());
        // 2 / (1.7 load) = 0.9 at a load of 1.307.
        let headroom = capacity.headroom.expect("a fleet is chosen");
        let (meets, fails) = (headroom.meets, headroom.fails.expect("more is too much"));
        let exact = 2.0 / (1.7 * 0.9);
        assert!(meets <= exact && exact <= fails && fails / meets <= 1.0 + WIDTH + 1e-9, "{meets} to {fails}");
    }

    #[test]
    fn other_prices_and_loads_may_change_the_choice() {
        let rows = answer("s", &question(), Vec::new(), &judge).sensitivity;
        let of = |change: &str| rows.iter().find(|row| row.change == change).expect(change).cheapest.clone();
        assert_eq!(of("price of a +20 %"), "2 x a");
        assert_eq!(of("price of b -20 %"), "2 x a");
        // 2 / (1.7 x 1.2) = 0.98 still holds.
        assert_eq!(of("load +20 %"), "2 x a");
    }

    #[test]
    fn nothing_is_chosen_where_nothing_suffices() {
        let question = Question { replicas: vec![1], gpus: vec![question().gpus[0].clone()], ..question() };
        let capacity = answer("s", &question, Vec::new(), &judge);
        assert!(capacity.chosen.is_none() && capacity.headroom.is_none() && capacity.sensitivity.is_empty());
    }
}
