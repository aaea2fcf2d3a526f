//! The capacity question: many fleets serve the same requests, and the one within the limits that has least of what is asked is looked at closely. All are served, so
//! none that was tried has less.
//!
//! A fleet is a variation of the one at hand: other numbers of replicas of its groups, or equal replicas on another type of GPU. Who asks
//! serves it and hands back its metrics, whole lists at once, so that they may run side by side. Load is the same requests, faster.
//! Units: dollars, requests per second, shares of requests.

mod headroom;

use std::collections::BTreeMap;

pub use engine::capacity::{CostSources, Headroom, Load, Minimize, Overload, Point, Sensitivity};
use engine::verdict::Refused;

use hw::Time;
use serve::request::Requests;

/// Change of price and load that sensitivity looks at.
const CHANGE: f64 = 0.2;
/// Fleets with up to this many times as much of what is asked as the chosen one are served again at other loads; the others where none of them passes.
const NEAR: f64 = 2.0;
/// Lives of a request for which requests should come: before that, a fleet is still filling.
const LIVES: f64 = 5.0;

/// What has a price of its own, and that price.
#[derive(Clone, Debug, PartialEq)]
pub struct Quoted {
    /// Type of the catalogue, or group of the fleet.
    pub name: String,
    /// Dollars per GPU and hour.
    pub usd_per_gpu_hour: f64,
    /// Provider and date, in words.
    pub quote: String,
}

impl Quoted {
    /// A price that somebody quoted, in words.
    pub fn words(&self) -> Option<String> {
        let Self { name, usd_per_gpu_hour, quote } = self;
        (!quote.is_empty()).then(|| format!("{name}: {usd_per_gpu_hour} $ per hour ({quote})"))
    }
}

/// Replicas with one price.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Position among what is quoted.
    pub quoted: usize,
    /// Group of the fleet; `None` where the fleet is one group.
    pub group: Option<String>,
    /// Replicas.
    pub n_replicas: u64,
    /// GPUs of each.
    pub gpus_per_replica: u64,
}

/// How a fleet differs from the one at hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variation {
    /// Equal replicas on nodes of one type.
    Equal {
        /// Position of the type among what is quoted.
        quoted: usize,
        /// Replicas.
        n_replicas: u64,
        /// GPUs of each.
        tensor_degree: u64,
        /// GPUs of a node.
        gpus_per_node: u64,
        /// Nodes that hold them.
        n_nodes: u64,
    },
    /// Numbers of replicas by group.
    Groups(Vec<(String, u64)>),
}

/// A fleet to be tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// What it is, in words.
    pub name: String,
    /// Its GPU type; `mixed` where there are several groups.
    pub gpu: String,
    /// How it differs.
    pub variation: Variation,
    /// What is paid.
    pub parts: Vec<Part>,
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

impl Peak {
    /// The window of that length with most arrivals, among those that begin with an arrival.
    pub fn busiest(requests: &Requests, peak_s: f64) -> Self {
        let arrivals: Vec<f64> =
            requests.list.iter().map(|request| (request.arrival - Time::ZERO).to_seconds().get()).collect();
        let last_s = arrivals.last().copied().unwrap_or(0.0);
        let count = |n: usize| hw::real(n as u64);
        if last_s <= peak_s {
            let requests_per_s = if last_s > 0.0 { count(arrivals.len()) / last_s } else { 0.0 };
            return Self { from_s: 0.0, to_s: last_s, requests_per_s, is_whole: true };
        }
        let (mut end, mut best) = (0, (0, 0.0));
        for (start, &from_s) in arrivals.iter().enumerate() {
            while end < arrivals.len() && arrivals[end] < from_s + peak_s {
                end += 1;
            }
            if end - start > best.0 {
                best = (end - start, from_s);
            }
        }
        Self { from_s: best.1, to_s: best.1 + peak_s, requests_per_s: count(best.0) / peak_s, is_whole: false }
    }
}

/// What a scenario asks.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// What has a price.
    pub quoted: Vec<Quoted>,
    /// Fleets to try.
    pub candidates: Vec<Candidate>,
    /// What the chosen fleet has least of.
    pub minimize: Minimize,
    /// Share of requests that have to meet every limit.
    pub target_ratio: f64,
    /// Limits by key of `[slo]`, seconds.
    pub limits: Vec<(&'static str, f64)>,
    /// The busiest part of the trace.
    pub peak: Peak,
}

/// What is to be served.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked<'q> {
    /// By which fleet.
    pub candidate: &'q Candidate,
    /// How many times as fast as they come.
    pub load: f64,
    /// Whether only the busiest part comes.
    pub is_peak: bool,
    /// The only limit that holds; `None` where all do.
    pub limit: Option<&'static str>,
}

impl<'q> Asked<'q> {
    /// Everything as it comes.
    const fn plain(candidate: &'q Candidate) -> Self {
        Self { candidate, load: 1.0, is_peak: false, limit: None }
    }

    /// The clock of what is to be served beside that of the trace.
    pub fn clock(&self, peak: &Peak) -> Clock {
        let is_part = self.is_peak && !peak.is_whole;
        Clock { from_s: if is_part { peak.from_s } else { 0.0 }, load: self.load }
    }
}

/// The clock of a part of a trace that comes faster or slower. What stands on the trace's own clock meets the same requests on this one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// Where the part begins, seconds of the trace.
    pub from_s: f64,
    /// How many times as fast as they come.
    pub load: f64,
}

impl Clock {
    /// A moment of the trace, seconds; below 0 before the part begins.
    pub fn moment_s(&self, at_s: f64) -> f64 {
        self.lasting_s(at_s - self.from_s)
    }

    /// How long something lasts that lasts so many seconds of the trace.
    pub fn lasting_s(&self, seconds: f64) -> f64 {
        seconds / self.load
    }
}

/// Metrics of a fleet that served, and the intervals of those that have one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Served {
    /// Metrics.
    pub metrics: BTreeMap<String, f64>,
    /// Intervals.
    pub interval: BTreeMap<String, [f64; 2]>,
    /// Why it does not keep the load, although the requests end before that shows.
    pub overload: Option<Overload>,
    /// Where its costs come from.
    pub costs: CostSources,
}

/// Serves what is asked, each by itself: what came of it, or why nothing could.
pub type Judge<'a> = dyn Fn(&[Asked<'_>]) -> Vec<Result<Served, Refused>> + 'a;

fn one(judge: &Judge<'_>, asked: Asked<'_>) -> Result<Served, Refused> {
    judge(&[asked]).pop().expect("an answer for each question")
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Fleets, by price per token.
    pub points: Vec<Point>,
    /// Fleets that could not be tried, with the reason.
    pub left_out: Vec<(String, String)>,
    /// Position of the fleet within the target that has least of what is asked.
    pub chosen: Option<usize>,
    /// Position of that which is within it at the slow end of its latencies too.
    pub safe: Option<usize>,
    /// Headroom of the chosen fleet.
    pub headroom: Option<Headroom>,
    /// Why it has none, as a sentence; `None` where it has one, or no fleet is chosen.
    pub no_headroom: Option<String>,
    /// What requests that end before the chosen fleet is full leave open, as a sentence.
    pub too_short: Option<String>,
    /// What other prices and loads would change.
    pub sensitivity: Vec<Sensitivity>,
}

impl Answer {
    /// Where the costs of each type of GPUs come from: of the chosen fleet, and of the first one on every other type.
    pub fn costs(&self) -> Vec<String> {
        let chosen = self.chosen.map(|index| &self.points[index]);
        let mut named: Vec<&str> = Vec::new();
        let mut said = Vec::new();
        for point in chosen.into_iter().chain(&self.points) {
            if !named.contains(&point.gpu.as_str()) {
                named.push(&point.gpu);
                said.push(format!("costs of {}: {}", point.name, point.costs.words));
            }
        }
        said
    }
}

/// What was found of a fleet.
struct Tried<'q> {
    candidate: &'q Candidate,
    point: Point,
    /// Mean time from the arrival of a request to its end, seconds.
    life_s: f64,
    /// Dollars per hour of each part.
    usd_per_hour: Vec<f64>,
}

/// A tensor degree to try, and the GPUs of a replica that has it: stages and experts take some as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degree {
    /// GPUs that share every layer.
    pub tensor: u64,
    /// GPUs of a replica.
    pub gpus_per_replica: u64,
}

/// Fleets of equal replicas: every number of replicas with every tensor degree on every type.
pub fn uniform(replicas: &[u64], degrees: &[Degree], gpus: &[Quoted], n_gpus_per_node: u64) -> Vec<Candidate> {
    let is_plain = degrees.iter().all(|degree| degree.tensor == 1);
    let mut all = Vec::new();
    for (index, quoted) in gpus.iter().enumerate() {
        for &Degree { tensor: tp, gpus_per_replica } in degrees {
            for &n in replicas {
                let degree = if is_plain { String::new() } else { format!(" tp {tp}") };
                // A replica that fits in a node lies in one; a larger one has nodes of its own.
                let n_nodes = match n_gpus_per_node / gpus_per_replica {
                    0 => n * gpus_per_replica.div_ceil(n_gpus_per_node),
                    fit => n.div_ceil(fit),
                };
                let variation = Variation::Equal {
                    quoted: index,
                    n_replicas: n,
                    tensor_degree: tp,
                    gpus_per_node: n_gpus_per_node,
                    n_nodes,
                };
                let part = Part { quoted: index, group: None, n_replicas: n, gpus_per_replica };
                let name = format!("{n} x {}{degree}", quoted.name);
                all.push(Candidate { name, gpu: quoted.name.clone(), variation, parts: vec![part] });
            }
        }
    }
    all
}

/// A group of a mixed fleet with the numbers of replicas to try.
#[derive(Clone, Debug, PartialEq)]
pub struct Varied {
    /// Its name in the scenario.
    pub name: String,
    /// Numbers of replicas; 0 leaves it out.
    pub replicas: Vec<u64>,
    /// GPUs of each.
    pub gpus_per_replica: u64,
}

/// Mixed fleets: all combinations of the numbers of every group but those without any replica. The groups are quoted in order.
pub fn mixed(groups: &[Varied]) -> Vec<Candidate> {
    let mut counts: Vec<Vec<u64>> = vec![Vec::new()];
    for group in groups {
        let with = |before: &Vec<u64>| {
            let before = before.clone();
            group.replicas.iter().map(move |&n| [before.as_slice(), &[n]].concat()).collect::<Vec<_>>()
        };
        counts = counts.iter().flat_map(with).collect();
    }
    counts.into_iter().filter(|counts| counts.iter().any(|&n| n > 0)).map(|counts| mix(groups, &counts)).collect()
}

fn mix(groups: &[Varied], counts: &[u64]) -> Candidate {
    let used = || groups.iter().zip(counts).enumerate().filter(|(_, (_, n))| **n > 0);
    let names: Vec<String> = used().map(|(_, (group, n))| format!("{n} x {}", group.name)).collect();
    let part = |(quoted, (group, &n)): (usize, (&Varied, &u64))| Part {
        quoted,
        group: Some(group.name.clone()),
        n_replicas: n,
        gpus_per_replica: group.gpus_per_replica,
    };
    Candidate {
        name: names.join(" + "),
        gpu: "mixed".to_owned(),
        variation: Variation::Groups(groups.iter().zip(counts).map(|(group, n)| (group.name.clone(), *n)).collect()),
        parts: used().map(part).collect(),
    }
}

/// A figure that the question cannot be answered without, with its interval.
fn needed(row: &Served, key: &str, why: &str) -> Result<(f64, [f64; 2]), Refused> {
    let value = row.metrics.get(key).copied().ok_or_else(|| Refused::infeasible(why))?;
    Ok((value, row.interval.get(key).copied().unwrap_or([value, value])))
}

/// The share of requests that meet the limits, and its interval.
///
/// # Errors
/// Where none of them counts: nothing is known of the limits then.
fn attainment(row: &Served) -> Result<(f64, [f64; 2]), Refused> {
    needed(
        row,
        "slo_attainment_ratio",
        "no request counts: each came before `slo.warm_up_s` had ended, or its client left",
    )
}

/// Why a fleet has no energy.
const NO_ENERGY: &str = "what its GPUs draw is not known: a card has no limit of power, or its times are given";

/// A limit by its key, as reports call it.
fn limit_name(key: &str) -> String {
    key.trim_end_matches("_s").to_uppercase()
}

impl Question {
    /// The limits in words.
    pub fn limits_words(&self) -> String {
        let all: Vec<String> =
            self.limits.iter().map(|(key, seconds)| format!("{} {seconds} s", limit_name(key))).collect();
        all.join(" and ")
    }

    /// Replicas of a part: all of them, or in a mixed fleet those that were paid, as groups may scale or fail.
    fn n_replicas(candidate: &Candidate, part: &Part, row: &Served) -> f64 {
        let figure = |key: &str| row.metrics.get(key).copied();
        let hours = figure("makespan_s").map(|seconds| seconds / 3600.0).filter(|hours| *hours > 0.0);
        let paid = part.group.as_ref().and_then(|group| {
            let key =
                if candidate.parts.len() == 1 { "replica_hours" } else { &format!("group_replica_hours.{group}") };
            Some(figure(key)? / hours?)
        });
        paid.unwrap_or_else(|| hw::real(part.n_replicas))
    }

    fn tried<'q>(&self, candidate: &'q Candidate, row: &Served) -> Result<Tried<'q>, Refused> {
        let (attainment_ratio, attainment_interval) = attainment(row)?;
        let no_token = "no dollars per token: no request ended behind `slo.warm_up_s`";
        let (usd_per_mtok, usd_per_mtok_interval) = needed(row, "cost_usd_per_mtok", no_token)?;
        let n_replicas: Vec<f64> = candidate.parts.iter().map(|part| Self::n_replicas(candidate, part, row)).collect();
        let dollars = |part: &Part| hw::real(part.gpus_per_replica) * self.quoted[part.quoted].usd_per_gpu_hour;
        let usd_per_hour: Vec<f64> =
            candidate.parts.iter().zip(&n_replicas).map(|(part, n)| n * dollars(part)).collect();
        let drawn = |key: &str| needed(row, key, NO_ENERGY).map(|(value, _)| value);
        let minimized = match self.minimize {
            Minimize::UsdPerHour => usd_per_hour.iter().sum(),
            Minimize::UsdPerMtok => usd_per_mtok,
            Minimize::Replicas => n_replicas.iter().sum(),
            Minimize::EnergyWh | Minimize::EnergyPerToken => drawn(self.minimize.key())?,
        };
        let point = Point {
            name: candidate.name.clone(),
            gpu: candidate.gpu.clone(),
            n_gpus: candidate.parts.iter().map(|part| part.n_replicas * part.gpus_per_replica).sum(),
            usd_per_hour: usd_per_hour.iter().sum(),
            usd_per_mtok,
            usd_per_mtok_interval,
            attainment_ratio,
            attainment_interval,
            overload: row.overload,
            costs: row.costs.clone(),
            minimized,
            is_on_front: false,
        };
        let life_s = row.metrics.get("e2e_s.mean").copied().unwrap_or(0.0);
        Ok(Tried { candidate, point, life_s, usd_per_hour })
    }
}

impl Question {
    /// Whether a fleet meets the target with so large a share of requests, and keeps the load for long.
    fn is_met(&self, ratio: f64, overload: Option<Overload>) -> bool {
        ratio >= self.target_ratio && overload.is_none()
    }

    fn passes(&self, tried: &Tried<'_>) -> bool {
        self.is_met(tried.point.attainment_ratio, tried.point.overload)
    }

    /// What requests leave open that end while a fleet is still filling at so many times the load.
    fn too_short(&self, life_s: f64, factor: f64) -> Option<String> {
        let Peak { from_s, to_s, requests_per_s, .. } = self.peak;
        let (lasting_s, asked_s) = ((to_s - from_s) / factor, LIVES * life_s);
        let n = hw::whole((requests_per_s * factor * asked_s).ceil());
        let at = if factor > 1.0 { format!("at {factor:.2} times the load ") } else { String::new() };
        let said = format!(
            "{at}requests come for {lasting_s:.0} s, and one of them takes {life_s:.0} s: that shows fleets as they fill, and not how they do for long; \
             `trace.requests = {n}` comes for {LIVES} such times"
        );
        (lasting_s < asked_s).then_some(said)
    }
}

/// Answers a question.
pub fn answer(question: &Question, judge: &Judge<'_>) -> Answer {
    let asked: Vec<Asked<'_>> = question.candidates.iter().map(Asked::plain).collect();
    let tried = question.candidates.iter().zip(judge(&asked));
    let (mut all, mut left_out) = (Vec::new(), Vec::new());
    for (candidate, row) in tried {
        match row.and_then(|row| question.tried(candidate, &row)) {
            Ok(tried) => all.push(tried),
            Err(refused) => left_out.push((candidate.name.clone(), refused.why)),
        }
    }
    all.sort_by(|a, b| {
        let by = |tried: &Tried<'_>| (tried.point.usd_per_mtok, tried.point.usd_per_hour);
        by(a).0.total_cmp(&by(b).0).then(by(a).1.total_cmp(&by(b).1))
    });
    mark_front(&mut all);
    let target = question.target_ratio;
    let chosen = least(&all, &minimized, &|tried| question.passes(tried));
    let safe = least(&all, &minimized, &|tried| question.passes(tried) && tried.point.attainment_interval[0] >= target);
    let headroom = chosen.map(|index| headroom::of(question, judge, all[index].candidate)).transpose();
    let (headroom, no_headroom) = headroom
        .map_or_else(|refused| (None, Some(format!("headroom is not known: {}", refused.why))), |found| (found, None));
    let factor = headroom.as_ref().map_or(1.0, |found| found.meets.max(1.0));
    let too_short = chosen.and_then(|index| question.too_short(all[index].life_s, factor));
    let sensitivity = chosen.map_or_else(Vec::new, |index| sensitivity(question, judge, &all, index));
    let points = all.into_iter().map(|tried| tried.point).collect();
    Answer { points, left_out, chosen, safe, headroom, no_headroom, too_short, sensitivity }
}

/// What is asked for of a fleet.
fn minimized(tried: &Tried<'_>) -> f64 {
    tried.point.minimized
}

/// The fleet that passes with least of something; of equals the cheaper one, and then the one that meets more.
fn least(all: &[Tried<'_>], of: &dyn Fn(&Tried<'_>) -> f64, passes: &dyn Fn(&Tried<'_>) -> bool) -> Option<usize> {
    let open = (0..all.len()).filter(|&index| passes(&all[index]));
    open.min_by(|&a, &b| {
        let more = all[b].point.attainment_ratio.total_cmp(&all[a].point.attainment_ratio);
        let dearer = all[a].point.usd_per_hour.total_cmp(&all[b].point.usd_per_hour);
        of(&all[a]).total_cmp(&of(&all[b])).then(dearer).then(more)
    })
}

/// Fleets are in order of price; one is on the front when it meets more than every cheaper one.
fn mark_front(all: &mut [Tried<'_>]) {
    let mut best = f64::NEG_INFINITY;
    for tried in all {
        // Who does not keep the load has no share for long.
        tried.point.is_on_front = tried.point.overload.is_none() && tried.point.attainment_ratio > best;
        best = if tried.point.is_on_front { tried.point.attainment_ratio } else { best };
    }
}

/// What other prices and loads would change. Prices change nothing where no dollars are asked for.
fn sensitivity(question: &Question, judge: &Judge<'_>, all: &[Tried<'_>], chosen: usize) -> Vec<Sensitivity> {
    let passes = |tried: &Tried<'_>| question.passes(tried);
    let today = all[chosen].point.attainment_ratio;
    let mut rows = Vec::new();
    let counts_dollars = matches!(question.minimize, Minimize::UsdPerHour | Minimize::UsdPerMtok);
    for (index, quoted) in question.quoted.iter().enumerate().filter(|_| counts_dollars) {
        for (sign, factor) in [("+", 1.0 + CHANGE), ("-", 1.0 - CHANGE)] {
            let usd = |tried: &Tried<'_>| {
                let parts = tried.candidate.parts.iter().zip(&tried.usd_per_hour);
                parts.map(|(part, usd)| if part.quoted == index { factor * usd } else { *usd }).sum::<f64>()
            };
            let times = |tried: &Tried<'_>| usd(tried) / tried.point.usd_per_hour;
            let asked = |tried: &Tried<'_>| minimized(tried) * times(tried);
            let best = least(all, &asked, &passes).map(|index| &all[index]);
            rows.push(Sensitivity {
                change: format!("price of {} {sign}{:.0} %", quoted.name, CHANGE * 100.0),
                cheapest: best.map_or_else(String::new, |tried| tried.point.name.clone()),
                usd_per_mtok: best.map(|tried| tried.point.usd_per_mtok * times(tried)),
                attainment_ratio: Some(today),
            });
        }
    }
    let is_near = |tried: &&Tried<'_>| minimized(tried) <= NEAR * minimized(&all[chosen]);
    let (near, far): (Vec<&Tried<'_>>, Vec<&Tried<'_>>) = all.iter().partition(is_near);
    for (sign, factor) in [("+", 1.0 + CHANGE), ("-", 1.0 - CHANGE)] {
        let mut again = at_load(question, judge, &near, factor);
        if !far.is_empty() && !again.iter().any(passes) {
            again.extend(at_load(question, judge, &far, factor));
        }
        let best = least(&again, &minimized, &passes).map(|index| &again[index]);
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

/// Fleets at another load; those of which nothing is known there are left out.
fn at_load<'q>(question: &Question, judge: &Judge<'_>, fleets: &[&Tried<'q>], load: f64) -> Vec<Tried<'q>> {
    let asked: Vec<Asked<'_>> = fleets.iter().map(|tried| Asked { load, ..Asked::plain(tried.candidate) }).collect();
    let rows = fleets.iter().zip(judge(&asked));
    rows.filter_map(|(tried, row)| question.tried(tried.candidate, &row.ok()?).ok()).collect()
}

#[cfg(test)]
mod tests;
