//! Rates and replays by the serving simulator, so that a plan and what it is held against come from one table of iteration times.
//!
//! The rate of a request type is a replica's slope once its batch is full: h = n / (t(2n) − t(n)), where t(n) is when the last of n requests
//! ends that are all there at the start. Below that the replica is not saturated, and a rate would understate what it can do (arXiv:2502.00722,
//! appendix L, fits measured points; here the engine itself is asked). `replay` serves all requests of a plan with all its replicas.
//!
//! Units: tokens, requests, seconds. Deterministic: types are interleaved evenly, without draws.

use std::collections::BTreeMap;

use engine::stop;
use hw::{Seconds, Time};
use serve::arrivals::{self, Arrivals};
use serve::fleet::{Fleet, Served, serve};
use serve::metrics::saturation::{Queue, RateSetBy};
use serve::metrics::unexplained::Unexplained;
use serve::metrics::{self, Slo};
use serve::replica::Engine;
use serve::request::{Request, Requests};
use serve::router::{self, Router};

use super::Problem;
use super::throughput::Lengths;

/// Requests over sequences of a batch that count as many enough for the slope.
const BATCHES: u32 = 3;

/// Deals items with given weights so that every beginning has each in its share: the one that lags most is next, the first of equals.
struct Dealer {
    weights: Vec<f64>,
    dealt: Vec<f64>,
    total: f64,
}

impl Dealer {
    fn new(weights: Vec<f64>) -> Self {
        let (dealt, total) = (vec![0.0; weights.len()], 0.0);
        Self { weights, dealt, total }
    }

    fn next(&mut self) -> usize {
        self.total += 1.0;
        let sum: f64 = self.weights.iter().sum();
        let lag = |index: usize| self.weights[index] / sum * self.total - self.dealt[index];
        let open = (0..self.weights.len()).filter(|&index| self.weights[index] > 0.0);
        let chosen = open.fold(None, |best: Option<usize>, index| match best {
            Some(best) if lag(best) >= lag(index) => Some(best),
            _ => Some(index),
        });
        let chosen = chosen.expect("some weight is above zero");
        self.dealt[chosen] += 1.0;
        chosen
    }
}

/// Requests that are all there at the start, with the type of each; types are interleaved in their shares.
fn mixed(work: &[(Lengths, u64)]) -> (Requests, Vec<usize>) {
    let n: u64 = work.iter().map(|(_, n)| n).sum();
    let mut dealer = Dealer::new(work.iter().map(|&(_, n)| hw::real(n)).collect());
    let mut kind = || {
        stop::pause();
        dealer.next()
    };
    let kinds: Vec<usize> = (0..n).map(|_| kind()).collect();
    let small = |tokens: hw::Tokens| u32::try_from(tokens.0).unwrap_or(u32::MAX).max(1);
    let of = |kind: &usize| Request::new(Time::ZERO, small(work[*kind].0.input), small(work[*kind].0.output));
    (Requests::of(kinds.iter().map(of).collect()), kinds)
}

/// A router of the table.
fn router(name: &str) -> Box<dyn Router> {
    (router::named(name).expect("listed").make)(0)
}

fn end_s(served: &Served) -> f64 {
    let last = served.records.list.iter().filter_map(|record| record.finished()).max();
    last.map_or(0.0, |last| (last - Time::ZERO).to_seconds().get())
}

/// Requests over sequences of a batch in a mix of types.
const MIXED_BATCHES: u32 = 8;

/// A type of requests in a mix.
#[derive(Clone, Copy, Debug)]
pub struct Mixed {
    /// Its tokens.
    pub lengths: Lengths,
    /// Requests of it.
    pub requests: f64,
    /// Requests per second of a replica that serves it alone.
    pub alone_per_s: f64,
}

/// How much faster one replica is when it serves types in their shares than type by type; 1 where it serves none.
pub fn mixing(engine: &Engine, types: &[Mixed]) -> f64 {
    let n = f64::from(MIXED_BATCHES * engine.limits.sequences_max);
    let total: f64 = types.iter().map(|mixed| mixed.requests).sum();
    let counts: Vec<f64> = types.iter().map(|mixed| (mixed.requests / total * n).round()).collect();
    let alone_s: f64 = types.iter().zip(&counts).map(|(mixed, n)| n / mixed.alone_per_s).sum();
    let work: Vec<_> = types.iter().zip(&counts).map(|(mixed, n)| (mixed.lengths, hw::whole(*n))).collect();
    let served_s = self::alone_s(engine, &work);
    if served_s.is_finite() && served_s > 0.0 { alone_s / served_s } else { 1.0 }
}

/// Seconds that one replica takes for requests of several types that are all there at the start; infinite where it refuses one.
pub fn alone_s(engine: &Engine, work: &[(Lengths, u64)]) -> f64 {
    let (requests, _) = mixed(work);
    if requests.is_empty() {
        return 0.0;
    }
    let served = serve(&requests, &[engine], router("round-robin").as_mut());
    if served.n_refused > 0 { f64::INFINITY } else { end_s(&served) }
}

/// Saturated requests per second of one replica; 0 where it cannot hold such a request.
pub fn requests_per_s(engine: &Engine, lengths: Lengths) -> f64 {
    let n = u64::from(BATCHES * engine.limits.sequences_max);
    let (once, twice) = (alone_s(engine, &[(lengths, n)]), alone_s(engine, &[(lengths, 2 * n)]));
    if twice.is_finite() { hw::real(n) / (twice - once) } else { 0.0 }
}

/// What serving a plan's requests with its replicas gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// When the last request ended, seconds.
    pub makespan_s: f64,
    /// Requests that no replica could hold.
    pub n_refused: u64,
}

/// Serves all requests of a problem with the fleet of a plan: requests by the shares of the plan, and inside a group to the least loaded replica.
pub fn replay(problem: &Problem, lengths: &[Lengths], fleet: &Fleet) -> Replay {
    let (requests, kinds) = mixed(&work(problem, lengths));
    let served = typed(fleet, kinds).serve(&requests, router("plan-weights").as_mut());
    Replay { makespan_s: end_s(&served), n_refused: served.n_refused }
}

/// How requests come one by one, and what clients allow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arriving {
    /// Poisson arrivals per second of all types together, in their shares.
    pub per_s: f64,
    /// Limits.
    pub slo: Slo,
    /// Seed of arrivals and losses.
    pub seed: u64,
}

/// What clients see of requests that come one by one.
pub struct Seen {
    /// Metrics of serving by their keys.
    pub values: BTreeMap<String, f64>,
    /// What no cost explains of them.
    pub unexplained: Unexplained,
}

/// Serves the same requests as they come one by one.
pub fn arriving(problem: &Problem, lengths: &[Lengths], fleet: &Fleet, coming: Arriving) -> Seen {
    let (mut requests, kinds) = mixed(&work(problem, lengths));
    arrivals::lay(&mut requests, Arrivals::Poisson { per_s: coming.per_s }, coming.seed);
    let served = typed(fleet, kinds).serve(&requests, router("plan-weights").as_mut());
    let mut values = metrics::of(&requests, &served, &coming.slo, Seconds::ZERO);
    values.insert("n_outages".to_owned(), hw::real(served.changes.n_outages));
    let rate_set_by = RateSetBy::of(Queue::of(&requests, &served, &fleet.start).as_ref());
    let unexplained = Unexplained::of(&requests, &served, &coming.slo, Seconds::ZERO, rate_set_by);
    Seen { values, unexplained }
}

/// Requests of every type.
fn work(problem: &Problem, lengths: &[Lengths]) -> Vec<(Lengths, u64)> {
    lengths.iter().zip(&problem.demands).map(|(&lengths, demand)| (lengths, hw::whole(demand.requests))).collect()
}

/// The fleet for requests of these types.
fn typed(fleet: &Fleet, kinds: Vec<usize>) -> Fleet {
    let small = |index: usize| u32::try_from(index).expect("few types");
    let mut fleet = fleet.clone();
    fleet.assignment.types = kinds.into_iter().map(small).collect();
    fleet
}

#[cfg(test)]
mod tests {
    use hw::{Seconds, Tokens};
    use serve::assignment::Assignment;
    use serve::fleet::Group;
    use serve::replica::{Limits, Spans};
    use serve::step_cost::StepTable;

    use super::super::Demand;
    use super::super::inventory::{Inventory, Offer};
    use super::*;

    /// One sequence at a time, every iteration a millisecond: a request of any prompt takes as many milliseconds as it has outputs.
    fn engine() -> Engine {
        let limits =
            Limits { sequences_max: 1, tokens_max: 1 << 16, context_max: 1 << 16, kv_blocks: 1 << 12, ..Limits::ROOMY };
        let batcher = serve::batcher::named("vllm-v1").expect("listed");
        Engine { limits, table: StepTable::constant(Seconds::new(1e-3)), batcher, spans: Spans::Closed }
    }

    fn of(output: u64) -> Lengths {
        Lengths { input: Tokens(100), output: Tokens(output) }
    }

    #[test]
    fn a_replica_that_serves_one_at_a_time_has_the_rate_of_its_service() {
        let engine = engine();
        assert!((requests_per_s(&engine, of(10)) - 100.0).abs() < 1e-9);
        assert!((alone_s(&engine, &[(of(10), 30), (of(20), 10)]) - 0.5).abs() < 1e-9);
        assert_eq!(requests_per_s(&engine, of(1 << 20)), 0.0, "longer than the replica's context");
        assert_eq!(alone_s(&engine, &[(of(10), 0)]), 0.0);
    }

    #[test]
    fn shares_are_kept_at_every_beginning() {
        let mut dealer = Dealer::new(vec![0.5, 0.0, 0.3, 0.2]);
        let mut counts = [0_usize; 4];
        for n in 1..=100_usize {
            counts[dealer.next()] += 1;
            for (count, share) in counts.iter().zip([0.5, 0.0, 0.3, 0.2]) {
                let (count, n) = (hw::real(*count as u64), hw::real(n as u64));
                assert!((count - share * n).abs() < 1.0 + 1e-9, "{counts:?}");
            }
        }
        assert_eq!(counts, [50, 0, 30, 20]);
    }

    #[test]
    fn a_plan_is_served_as_it_says() {
        // Types of 10 and 20 ms; two replicas take half of the first type each, the second one all of the other: 0.5 s and 0.9 s.
        let engine = engine();
        let inventory = Inventory::of(vec![Offer::priced("g", 1.0, 2)]);
        let demand = |requests| Demand { name: String::new(), model: 0, requests };
        let problem = Problem {
            inventory,
            configurations: Vec::new(),
            demands: vec![demand(100.0), demand(20.0)],
            budget_usd_per_hour: 2.0,
        };
        let assignment = Assignment { shares: vec![vec![0.5, 0.5], vec![0.0, 1.0]], ..Assignment::default() };
        let groups = ["a", "b"].map(|name| Group::new(name, engine.clone(), 1)).to_vec();
        let replay = replay(&problem, &[of(10), of(20)], &Fleet { groups, assignment, ..Fleet::default() });
        assert!((replay.makespan_s - 0.9).abs() < 1e-9, "{replay:?}");
        assert_eq!(replay.n_refused, 0);
    }
}
