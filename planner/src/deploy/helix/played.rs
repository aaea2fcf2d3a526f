//! Ways of placing and scheduling as runs: place the layers, check the deployment, play the requests, measure.
//!
//! Pipelines of one type without a common plan are run one by one, each with requests of its own, and added up. `bound.rs` has what no run
//! passes. Units: tokens per second, seconds.

use std::collections::BTreeMap;

use engine::cost::{Source, roofline};
use engine::model::Model;
use hw::{Span, Time, quantile};
use serve::arrivals::{self, Arrivals};
use serve::check::{Site, check};
use serve::deployment::Deployment;
use serve::fleet::{Changing, serve_stations};
use serve::metrics::unexplained;
use serve::pool::path::flow::Expected;
use serve::pool::path::{Flow, Paths, Random, Swarm};
use serve::pool::{self, Node, Outcome, Pool, Run};
use serve::request::{Request, Requests};

use super::held::{self, Most, OfPool, Ran};
use super::{Machines, Placed, Placement, Range, Scheduling};
use crate::deploy::RentalError;
use crate::proof::Decision;

/// How requests come.
#[derive(Clone, Debug, PartialEq)]
pub enum Arriving {
    /// As many as there is room for: by the caches' expected level with admission, else a number of requests at a time.
    Offline {
        /// Requests at a time without admission, for each pipeline that is run by itself; empty for what fits.
        in_flight: Vec<u64>,
        /// Requests at the beginning with admission.
        start: u32,
        /// Share of the fullest layer's cache up to which requests are added.
        level_ratio: f64,
    },
    /// As a Poisson process.
    Online {
        /// Prompt and output tokens per second that arrive, for each pipeline that is run by itself.
        tokens_per_s: Vec<f64>,
    },
}

/// What arrives, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// How requests come.
    pub arriving: Arriving,
    /// What ends before is not counted.
    pub warm_up: Time,
    /// When the run ends.
    pub until: Time,
    /// Mean output over which a request's cache is expected: a ratio of the planned output.
    pub output_ratio: f64,
    /// Share of a cache above which a node takes no request.
    pub high_water_ratio: f64,
}

impl Load {
    fn until_s(&self) -> f64 {
        (self.until - Time::ZERO).to_seconds().get()
    }

    fn counted_s(&self) -> f64 {
        (self.until - self.warm_up).to_seconds().get()
    }
}

/// One way of serving.
#[derive(Clone, Debug)]
pub struct Way {
    /// Where layers lie.
    pub placement: Placement,
    /// How requests find their way.
    pub scheduling: Scheduling,
    /// What arrives, and for how long.
    pub load: Load,
    /// Decoding requests of a batch at most, beside the nodes' own limits.
    pub decodes_max: Option<u32>,
}

/// What every way is asked.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What is served.
    pub model: Model,
    /// Nodes, links and times.
    pub machines: Machines,
    /// Requests without arrivals, in the order in which they are taken.
    pub requests: Vec<Request>,
    /// Seed of arrivals, losses and random paths.
    pub seed: u64,
}

/// What is played by itself.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Type of nodes of each, where every type has a pipeline of its own; a type that cannot hold the model has none.
    pub types: Vec<usize>,
    /// Deployments that the checker holds.
    pub placed: Vec<Deployment>,
    /// What the loop plays of each.
    pub pools: Vec<Pool>,
}

/// Mean prompt and output tokens of requests.
pub fn means(requests: &[Request]) -> (f64, f64) {
    let n = hw::real(requests.len().max(1) as u64);
    let sum = |of: fn(&Request) -> u32| requests.iter().map(|request| f64::from(of(request))).sum::<f64>() / n;
    (sum(|request| request.prompt), sum(|request| request.output))
}

/// Figures that times of layers change.
const WITH_INTERVAL: [&str; 6] = [
    DECODE_RATE,
    "tokens_per_s",
    "prompt_latency_s.mean",
    "prompt_latency_s.p99",
    "decode_latency_s.mean",
    "decode_latency_s.p99",
];

/// How long layers take at both ends over what is expected, by where their times come from. What was measured leaves open what a run of an engine does.
fn ends_of(times: Source) -> [f64; 2] {
    if times == Source::Datasheet {
        return roofline::ENDS;
    }
    let [low, _, high] = unexplained::slowness([1.0; 3]);
    [low, high]
}

impl Asked {
    /// Intervals of a run's figures: the same layers on the same nodes, with times of layers that are as long as they may be by where they come from.
    ///
    /// # Panics
    /// When the checker refuses the plan, whose layers lie where they lay as expected.
    pub fn intervals(
        &self,
        way: &Way,
        placed: &Decision<Placed>,
        expected: &BTreeMap<String, f64>,
        times: Source,
    ) -> BTreeMap<String, [f64; 2]> {
        let at = |by: f64| {
            let slower = self.slower(by);
            let parts = slower.parts(way, placed).expect("the checker looks at no times");
            metrics(way, &parts.pools, &slower.play(way, &parts))
        };
        let ends = ends_of(times).map(at);
        let of = |key: &str| Some((key.to_owned(), serve::metrics::interval(key, expected, &ends, None)?));
        WITH_INTERVAL.into_iter().filter_map(of).collect()
    }

    /// The same on nodes whose layers take so many times as long.
    fn slower(&self, by: f64) -> Self {
        let mut slower = self.clone();
        for node in &mut slower.machines.types {
            (node.prompt, node.decode) = (node.prompt.slower(by), node.decode.slower(by));
        }
        slower
    }

    /// What no placement passes with these requests; all ways share it.
    ///
    /// # Errors
    /// When a linear program is not solved.
    pub fn of_pool(&self) -> OfPool {
        held::of_pool(&self.machines, &self.requests)
    }

    /// Where layers lie: decided by flow, or by playing what the search looks at.
    ///
    /// # Errors
    /// Where no placement lets a token through.
    pub fn placed(&self, way: &Way) -> Result<Decision<Placed>, RentalError> {
        if way.placement != Placement::Played {
            return self.machines.place(&way.placement);
        }
        let mut best: Option<(f64, Decision<Placed>)> = None;
        let mut second: Option<f64> = None;
        let candidates = self.machines.candidates()?;
        let n = candidates.len();
        for placed in candidates {
            let Ok(parts) = self.parts(way, &placed) else { continue };
            let rate = metrics(way, &parts.pools, &self.play(way, &parts))[DECODE_RATE];
            if best.as_ref().is_none_or(|(most, _)| rate > *most) {
                second = best.map(|(rate, _)| rate).or(second);
                best = Some((rate, placed));
            } else if second.is_none_or(|most| rate > most) {
                second = Some(rate);
            }
        }
        let none = || RentalError::Infeasible("no candidate has a pipeline".to_owned());
        let (rate, mut placed) = best.ok_or_else(none)?;
        let second = second.map_or_else(String::new, |second| format!(", the second {second:.1}"));
        placed.limit += &format!("; {rate:.1} decode tokens/s is the most of {n} candidates{second}");
        Ok(placed)
    }

    /// Deployments that the checker holds, and what the loop plays of them.
    ///
    /// # Errors
    /// When the checker refuses one.
    pub fn parts(&self, way: &Way, placed: &Decision<Placed>) -> Result<Parts, RentalError> {
        let (types, mut placed): (Vec<usize>, Vec<Deployment>) = self.deployments(way, placed)?.into_iter().unzip();
        let mut pools = Vec::new();
        let machines = self.machines.machines();
        let site = Site::of(&self.model, &machines);
        for deployment in &mut placed {
            if let Some(most) = way.decodes_max {
                deployment.limit_decodes(most);
            }
            check(deployment, &site).map_err(RentalError::refused)?;
            pools.push(self.machines.stations(deployment)?);
        }
        Ok(Parts { types, placed, pools })
    }

    /// The whole placement, or every type by itself where each has a pipeline of its own and nothing is planned over all.
    fn deployments(&self, way: &Way, placed: &Decision<Placed>) -> Result<Vec<(usize, Deployment)>, RentalError> {
        let (machines, model) = (&self.machines, &self.model.name);
        let Placed { ranges, flow } = &placed.plan;
        if way.scheduling == Scheduling::Flow {
            return Ok(vec![(0, machines.deployment(model, ranges, Some(flow))?)]);
        }
        if way.placement != Placement::Separate {
            return Ok(vec![(0, machines.deployment(model, ranges, None)?)]);
        }
        let all = (0..machines.types.len()).map(|of| (of, self.of_type(ranges, of)));
        let holds = |(_, ranges): &(usize, Vec<Range>)| ranges.iter().any(|range| !range.is_empty());
        all.filter(holds).map(|(of, ranges)| Ok((of, machines.deployment(model, &ranges, None)?))).collect()
    }

    /// The ranges of one type of nodes.
    fn of_type(&self, ranges: &[Range], of: usize) -> Vec<Range> {
        let own = |(node, range): (usize, &Range)| {
            if self.machines.type_of(node) == of { *range } else { Range::default() }
        };
        ranges.iter().enumerate().map(own).collect()
    }

    /// What comes of every part, with the losses of its machines.
    pub fn play(&self, way: &Way, parts: &Parts) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for (&at, (placed, pool)) in parts.types.iter().zip(parts.placed.iter().zip(&parts.pools)) {
            let failures = self.machines.failures(placed, self.seed);
            outcomes.push(self.play_part(way, pool, (at, &Changing { outages: Vec::new(), failures })));
        }
        outcomes
    }

    fn play_part(&self, way: &Way, pool: &Pool, (at, changing): (usize, &Changing)) -> Outcome {
        let Load { warm_up, until, output_ratio, high_water_ratio, .. } = way.load;
        let output_tokens = output_ratio * self.machines.typical.output;
        let mut paths: Box<dyn Paths + '_> = match way.scheduling {
            Scheduling::Flow => Box::new(Flow::new(pool, Expected { output_tokens, high_water_ratio })),
            Scheduling::Swarm => Box::new(Swarm::new(pool)),
            Scheduling::Random => Box::new(Random::new(pool, self.seed)),
        };
        let mut requests = Requests { list: self.requests.clone(), ..Requests::default() };
        let load = self.coming(way, pool, at, &mut requests);
        serve_stations(pool, paths.as_mut(), &Run { requests: &requests.list, load, warm_up, until }, changing)
    }

    /// How requests come to a part; lays arrivals where they come by themselves.
    fn coming(&self, way: &Way, pool: &Pool, at: usize, requests: &mut Requests) -> pool::Load {
        let (prompt, output) = means(&self.requests);
        match &way.load.arriving {
            Arriving::Online { tokens_per_s } => {
                let tokens_per_s = of_part(tokens_per_s, at).unwrap_or(0.0);
                let arrivals = Arrivals::Poisson { per_s: tokens_per_s.max(1e-9) / (prompt + output) };
                arrivals::lay(requests, arrivals, self.seed.wrapping_add(at as u64));
                pool::Load::Open
            }
            Arriving::Offline { start, level_ratio, .. } if way.scheduling == Scheduling::Flow => {
                pool::Load::Filled { start: *start, level_ratio: *level_ratio }
            }
            Arriving::Offline { in_flight, .. } => {
                let n = of_part(in_flight, at).unwrap_or_else(|| fitting(pool, &way.load, prompt + output));
                pool::Load::Closed { in_flight: u32::try_from(n).unwrap_or(u32::MAX) }
            }
        }
    }

    /// What a plan passes at most, whatever its batches.
    ///
    /// # Errors
    /// When a linear program is not solved.
    pub fn most(&self, parts: &Parts) -> Result<Most, RentalError> {
        held::of_plan(self.of_pool().as_ref(), &parts.pools)
    }

    /// A placement with what is known of it; its objective is the maximum flow at planned batches, beside which stands what no run passes.
    pub fn said(&self, placed: Decision<Placed>, most: &Result<Most, RentalError>) -> Decision<Placed> {
        let (flow, bound) = (placed.plan.flow.tokens_per_s, placed.bound().unwrap_or(f64::INFINITY));
        let mut notes = self.notes(&placed);
        notes.push(format!(
            "{flow:.0} tokens/s by maximum flow at planned batches, at which no placement has more than {bound:.0}"
        ));
        let mut figures = BTreeMap::from([
            ("max_flow_tokens_per_s".to_owned(), flow),
            ("max_flow_bound_tokens_per_s".to_owned(), bound),
        ]);
        match most {
            Ok(most) => {
                figures.insert("placement_bound_tokens_per_s".to_owned(), most.placement_tokens_per_s);
                figures.insert("pool_bound_tokens_per_s".to_owned(), most.pool_tokens_per_s);
                notes.push(most.words.clone());
            }
            Err(why) => notes.push(unproved(why)),
        }
        placed.said(notes, figures)
    }

    /// The placement in words.
    fn notes(&self, placed: &Decision<Placed>) -> Vec<String> {
        let types = self.machines.types.iter().enumerate();
        let ranges: Vec<String> =
            types.map(|(of, node)| format!("{}: {}", node.name, self.ranges_words(placed, of))).collect();
        let mut notes = vec![format!("layers on {}", ranges.join("; "))];
        if !placed.limit.is_empty() {
            notes.push(format!("what holds it back: {}", placed.limit));
        }
        if let Some(other) = placed.runner_up() {
            notes.push(format!("runner-up: {}", other.plan.words()));
        }
        notes
    }

    /// The ranges of a type of nodes in words.
    fn ranges_words(&self, placed: &Decision<Placed>, of: usize) -> String {
        let nodes = placed.plan.ranges.iter().enumerate().filter(|(at, _)| self.machines.type_of(*at) == of);
        nodes.map(|(_, range)| range.words()).collect::<Vec<String>>().join(" ")
    }

    /// Figures of a run, beside what nothing passes in its time; the bound in words goes to the decision.
    pub fn measured(
        &self,
        way: &Way,
        parts: &Parts,
        outcomes: &[Outcome],
        decision: &mut Decision<Placed>,
    ) -> BTreeMap<String, f64> {
        let mut metrics = metrics(way, &parts.pools, outcomes);
        if self.machines.has_losses() {
            metrics.extend(losses(outcomes));
        }
        let flow = decision.plan.flow.tokens_per_s;
        metrics.insert("max_flow_tokens_per_s".to_owned(), flow);
        metrics.insert("flow_ratio".to_owned(), metrics["tokens_per_s"] / flow);
        metrics.insert("flow_from_start_ratio".to_owned(), metrics["tokens_from_start_per_s"] / flow);
        let Load { warm_up, until, .. } = way.load;
        match held::of_run(&Ran { requests: &self.requests, warm_up, until }, &parts.pools, outcomes) {
            Ok((bounds, words)) => {
                metrics.extend(bounds);
                decision.notes.push(words);
            }
            Err(why) => decision.notes.push(unproved(&why)),
        }
        metrics
    }
}

impl Range {
    fn words(self) -> String {
        if self.is_empty() { "-".to_owned() } else { format!("{}..{}", self.first, self.end) }
    }
}

fn unproved(why: &RentalError) -> String {
    format!("no bound on runs: {why}")
}

/// The figure of a part: its own, or the only one.
fn of_part<T: Copy>(all: &[T], at: usize) -> Option<T> {
    all.get(at).or(all.first().filter(|_| all.len() == 1)).copied()
}

/// Requests whose keys and values fit the fullest layer below the high-water mark, at least one.
fn fitting(pool: &Pool, load: &Load, tokens: f64) -> u64 {
    let held = |layer: u32| -> u64 {
        let nodes = pool.nodes.iter().filter(|node| (node.first..node.end).contains(&layer));
        nodes.map(|node| node.room.kv_tokens).sum()
    };
    let least = (0..pool.n_layers).map(held).min().unwrap_or(0);
    hw::whole((hw::real(least) * load.high_water_ratio / tokens).floor().max(1.0))
}

/// What losses did.
fn losses(outcomes: &[Outcome]) -> [(String, f64); 3] {
    [
        ("n_outages", sum(outcomes, |outcome| outcome.n_outages)),
        ("n_retried", sum(outcomes, |outcome| outcome.n_retried)),
        ("recomputed_tokens", sum(outcomes, |outcome| outcome.recomputed_tokens)),
    ]
    .map(|(key, value)| (key.to_owned(), value))
}

fn sum(outcomes: &[Outcome], of: fn(&Outcome) -> u64) -> f64 {
    hw::real(outcomes.iter().map(of).sum())
}

fn mean_s(ns: &[u64]) -> f64 {
    ns.iter().map(|&ns| seconds(ns)).sum::<f64>() / hw::real(ns.len().max(1) as u64)
}

fn seconds(ns: u64) -> f64 {
    Span::from_ns(ns).to_seconds().get()
}

fn p99_s(ns: &[u64]) -> f64 {
    quantile::of(&ns.iter().map(|&ns| seconds(ns)).collect::<Vec<f64>>(), 0.99)
}

/// Metric by which placements that are played are compared.
const DECODE_RATE: &str = "decode_tokens_per_s";

fn nodes<'n>(parts: &'n [Pool], outcomes: &'n [Outcome]) -> impl Iterator<Item = (&'n Node, u64, u64)> {
    let of_part = |(pool, outcome): (&'n Pool, &'n Outcome)| {
        let both = outcome.kv_peak.iter().zip(&outcome.busy_ns);
        pool.nodes.iter().zip(both).map(|(node, (&peak, &busy))| (node, peak, busy))
    };
    parts.iter().zip(outcomes).flat_map(of_part)
}

fn metrics(way: &Way, parts: &[Pool], outcomes: &[Outcome]) -> BTreeMap<String, f64> {
    let (counted_s, until_s) = (way.load.counted_s(), way.load.until_s());
    let decode = sum(outcomes, |outcome| outcome.decode_tokens);
    let prompts: Vec<u64> = outcomes.iter().flat_map(|outcome| outcome.prompt_ns.iter().copied()).collect();
    let tokens: Vec<u64> = outcomes.iter().flat_map(|outcome| outcome.decode_ns.iter().copied()).collect();
    // Publications without admission count what requests ask for; a cache holds no more than it has.
    let asked = nodes(parts, outcomes)
        .map(|(node, peak, _)| hw::real(peak) / hw::real(node.cache().max(1)))
        .fold(0.0, f64::max);
    let busy: f64 = nodes(parts, outcomes).map(|(_, _, busy)| seconds(busy) / until_s).sum();
    let n_nodes = hw::real(nodes(parts, outcomes).count() as u64);
    let all = [
        (DECODE_RATE, decode / counted_s),
        ("tokens_per_s", (decode + sum(outcomes, |outcome| outcome.prompt_tokens)) / counted_s),
        ("tokens_from_start_per_s", sum(outcomes, |outcome| outcome.from_start.tokens()) / until_s),
        ("prompt_latency_s.mean", mean_s(&prompts)),
        ("prompt_latency_s.p99", p99_s(&prompts)),
        ("decode_latency_s.mean", mean_s(&tokens)),
        ("decode_latency_s.p99", p99_s(&tokens)),
        ("kv_peak_ratio", asked.min(1.0)),
        ("kv_asked_ratio", asked),
        ("busy_ratio", busy / n_nodes.max(1.0)),
        ("n_requests", sum(outcomes, |outcome| outcome.n_ended)),
        ("n_waiting", sum(outcomes, |outcome| outcome.n_waiting)),
        ("n_put_back", sum(outcomes, |outcome| outcome.n_put_back)),
        ("n_nodes", n_nodes),
    ];
    all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// What limits a run, in a sentence.
pub fn words(way: &Way, parts: &[Pool], outcomes: &[Outcome]) -> String {
    let busiest = nodes(parts, outcomes).max_by_key(|(_, _, busy)| *busy);
    let mut text = busiest.map_or_else(String::new, |(node, _, busy)| {
        let share = 100.0 * seconds(busy) / way.load.until_s();
        let last = node.end - 1;
        format!("busiest is node {} with layers {} to {last}, {share:.0} % of the time", node.name, node.first)
    });
    let waiting: u64 = outcomes.iter().map(|outcome| outcome.n_waiting).sum();
    let n_over = nodes(parts, outcomes).filter(|(node, peak, _)| *peak > node.cache()).count();
    if waiting > 0 {
        text += &format!("; {waiting} requests wait for room in caches at the end");
    }
    if n_over > 0 {
        text += &format!("; {n_over} nodes are asked for more cache than they have, so a real pool would be slower");
    }
    text
}
