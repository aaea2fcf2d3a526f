//! The planner beside a fleet that serves: every interval it sees what a frontend counts, forecasts the next one and sets replicas.
//!
//! An interval without arrivals or without an ended request changes nothing. Where no batch keeps the corrected target, or a profile ends, the
//! planner asks for as many more replicas as one decision may add. New replicas are not waited for (Dynamo applies decisions without
//! blocking). Units: those of `dynamo.rs`. Invariant: a decision is a function of intervals that have ended.

use serve::fleet::scaler::{GroupSeen, Scaler, Seen};

use super::colocated::Colocated;
use super::forecast::{Forecast, Predictor};
use super::{Observed, RentalError, Rules, Service, Traffic, loads, plan};
use crate::proof::Decision;

/// What is deployed: replicas that do both phases, or one group for each.
#[derive(Clone, Debug)]
pub enum Deployed<'e> {
    /// Replicas that do both.
    Colocated(Colocated<'e>),
    /// Prefill and decode replicas.
    Split(Service),
}

impl Deployed<'_> {
    /// Targets and limits.
    pub const fn rules(&self) -> &Rules {
        match self {
            Self::Colocated(colocated) => &colocated.rules,
            Self::Split(service) => &service.rules,
        }
    }

    /// Replicas of each phase that the traffic of an interval takes, in parts of one, without correction.
    ///
    /// # Errors
    /// Where no batch keeps the target between tokens.
    pub fn loads(&self, traffic: &Traffic) -> Result<Vec<f64>, RentalError> {
        match self {
            Self::Colocated(colocated) => Ok(vec![colocated.load(traffic)?]),
            Self::Split(service) => {
                let gpus = loads(service, traffic, 1.0, 1.0)?;
                Ok(vec![gpus.prefill / f64::from(service.prefill_gpus), gpus.decode / f64::from(service.decode_gpus)])
            }
        }
    }

    /// Replicas of each phase, and why.
    fn plan(&self, observed: &Observed, next: &Traffic, now: &[GroupSeen]) -> Result<(Vec<u32>, String), RentalError> {
        match self {
            Self::Colocated(colocated) => {
                let found = colocated.plan(observed, next, now.first().copied())?;
                Ok((vec![found.plan], found.limit))
            }
            Self::Split(service) => {
                let now = now.first().copied().zip(now.get(1).copied());
                let found = plan(service, observed, next, now.map(|(prefill, decode)| [prefill, decode]))?;
                let Decision { plan: replicas, limit, .. } = found;
                Ok((vec![replicas.prefill, replicas.decode], limit))
            }
        }
    }
}

/// What was decided at the end of an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// When, seconds after the start.
    pub at_s: f64,
    /// Requests that arrived in the interval before.
    pub requests: f64,
    /// Requests that the next one is taken to bring.
    pub forecast: f64,
    /// Replicas of each phase.
    pub replicas: Vec<u32>,
    /// What decided, and what one replica fewer would carry, in words.
    pub limit: String,
}

/// The planner of a fleet.
#[derive(Clone, Debug)]
pub struct SlaPlanner<'e> {
    deployed: Deployed<'e>,
    /// Group of each phase.
    groups: Vec<usize>,
    /// Of requests, prompts and outputs.
    predictors: [Predictor; 3],
    /// What it has decided so far.
    pub steps: Vec<Step>,
}

impl<'e> SlaPlanner<'e> {
    /// A planner of these groups, one for each phase.
    pub fn new(deployed: Deployed<'e>, groups: Vec<usize>, forecast: Forecast) -> Self {
        let predictors = std::array::from_fn(|_| Predictor::new(forecast));
        Self { deployed, groups, predictors, steps: Vec::new() }
    }

    /// Replicas where no plan keeps the targets: as many more as a decision may add.
    fn more(&self, now: &[GroupSeen], why: &RentalError) -> (Vec<u32>, String) {
        let most = self.deployed.rules().change_max;
        let replicas = now.iter().map(|group| group.current.saturating_add(most)).collect();
        (replicas, format!("{why}: {most} more replicas"))
    }
}

impl Scaler for SlaPlanner<'_> {
    fn decide(&mut self, seen: &Seen) -> Vec<u32> {
        let mut wishes: Vec<u32> = seen.groups.iter().map(|group| group.current).collect();
        let (Some(input), Some(output)) = (seen.prompt, seen.output) else { return wishes };
        let traffic = Traffic { requests: hw::real(seen.n_arrived), input, output };
        let [requests, prompts, outputs] = &mut self.predictors;
        let next = Traffic {
            // A forecast of nothing still needs one replica, and lengths are never below a token.
            requests: requests.next(traffic.requests).max(f64::MIN_POSITIVE),
            input: prompts.next(input).max(1.0),
            output: outputs.next(output).max(1.0),
        };
        let positive = |seconds: Option<hw::Seconds>| seconds.map(hw::Seconds::get).filter(|seconds| *seconds > 0.0);
        let observed = Observed { traffic, ttft_s: positive(seen.ttft), itl_s: positive(seen.tpot) };
        let now: Vec<GroupSeen> = self.groups.iter().map(|&group| seen.groups[group]).collect();
        let planned = self.deployed.plan(&observed, &next, &now);
        let (replicas, limit) = planned.unwrap_or_else(|why| self.more(&now, &why));
        for (&group, &wish) in self.groups.iter().zip(&replicas) {
            wishes[group] = wish;
        }
        self.steps.push(Step {
            at_s: (seen.at - hw::Time::ZERO).to_seconds().get(),
            requests: traffic.requests,
            forecast: next.requests,
            replicas,
            limit,
        });
        wishes
    }
}

#[cfg(test)]
mod tests {
    use hw::{Seconds, Time};
    use serve::fleet::dynamics::{Rule, Scaling};
    use serve::fleet::{Fleet, Group, Served};
    use serve::metrics::latencies;
    use serve::replica::{Engine, Limits, Role};
    use serve::request::{Request, Requests};
    use serve::router;

    use super::super::profile;
    use super::*;
    use crate::deploy::hindsight::{Demand, Interval};

    const RULES: Rules = Rules { ttft_s: 0.5, itl_s: 0.02, interval_s: 20.0, n_gpus_max: 64, change_max: 8 };

    /// That of the colocated tests, with shorter contexts.
    fn engine() -> Engine {
        let engine = super::super::colocated::tests::engine(200);
        Engine { limits: Limits { context_max: 1 << 12, ..engine.limits }, ..engine }
    }

    fn group(name: &str, role: Role, first: u32) -> Group {
        let rule = Rule::Planned { interval: Seconds::new(RULES.interval_s) };
        let scaling = Scaling { replicas_min: 1, replicas_first: first, start_up: Seconds::new(5.0), rule };
        Group { role, scaling: Some(scaling), ..Group::new(name, engine(), 24) }
    }

    /// Evenly spaced requests of 300 + 100 tokens.
    fn requests(per_s: f64, n: u32) -> Requests {
        let at = |n: u32| Time::ZERO + hw::Span::from_seconds(Seconds::new(f64::from(n) / per_s));
        Requests::of((0..n).map(|n| Request::new(at(n), 300, 100)).collect())
    }

    fn serve(fleet: &Fleet, requests: &Requests, planner: &mut SlaPlanner<'_>) -> Served {
        let mut router = (router::named("least-loaded").expect("listed").make)(1);
        let served = fleet.serve_planned(requests, router.as_mut(), planner);
        assert!(served.records.list.iter().all(|record| record.finished().is_some()), "everybody is served");
        served
    }

    #[test]
    fn a_constant_load_gets_its_rate_over_the_rate_of_a_replica_and_keeps_it() {
        // 12.5 requests per second and replica by hand (`colocated.rs`): 40 per second take 3.2. From one replica or from nine.
        let engine = engine();
        for (first, forecast) in [(1, Forecast::Constant), (9, Forecast::MovingAverage(3)), (2, Forecast::Kalman)] {
            let deployed =
                Deployed::Colocated(Colocated { engine: &engine, n_gpus: 1, rules: RULES, tokens_per_step: 1.0 });
            let mut planner = SlaPlanner::new(deployed, vec![0], forecast);
            let fleet = Fleet::of(group("all", Role::Both, first));
            serve(&fleet, &requests(40.0, 16_000), &mut planner);
            let counts: Vec<u32> = planner.steps.iter().map(|decision| decision.replicas[0]).collect();
            assert!(counts.len() >= 19, "a decision every 20 s for 400 s: {counts:?}");
            // The plant's iterations are whole and the profile's a mean, so the correction may hold one replica more.
            assert!(counts[8..].iter().all(|n| (4..=5).contains(n)), "{first}, {forecast:?}: {counts:?}");
            let changes = counts[8..].windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert_eq!(changes, 0, "{first}, {forecast:?}: {counts:?}");
        }
    }

    #[test]
    fn both_phases_of_a_split_fleet_are_planned() {
        // Prefill: 300 tokens in 40 ms are 7,500 per second; 40 · 300 = 12,000 per second take 1.6 replicas. Decode: 20 ms at 100
        // sequences are 5,000 per second; 40 · 100 take 0.8 — one, with the whole batch of 80 in 18 ms.
        let engine = engine();
        let service = Service {
            prefill: profile::prefill(&engine, 1),
            decode: profile::decode(&engine, 1, 1.0),
            prefill_gpus: 1,
            decode_gpus: 1,
            rules: RULES,
        };
        let mut planner = SlaPlanner::new(Deployed::Split(service), vec![0, 1], Forecast::Constant);
        let groups = vec![group("prefill", Role::Prefill, 1), group("decode", Role::Decode, 3)];
        let fleet = Fleet { groups, ..Fleet::default() };
        serve(&fleet, &requests(40.0, 12_000), &mut planner);
        let last = planner.steps.last().expect("decisions");
        assert_eq!(last.replicas, [2, 1], "{:?}", planner.steps);
    }

    #[test]
    fn an_hour_that_doubles_is_followed_and_nothing_is_decided_from_what_comes() {
        // Until 200 s both runs see the same, so they decide the same, whatever comes later.
        let engine = engine();
        let decide =
            |late: f64| {
                let mut list = requests(20.0, 4000).list;
                let more = requests(late, 4000).list.into_iter();
                list.extend(more.map(|request| Request {
                    arrival: request.arrival + hw::Span::from_ns(200_000_000_000),
                    ..request
                }));
                let deployed =
                    Deployed::Colocated(Colocated { engine: &engine, n_gpus: 1, rules: RULES, tokens_per_step: 1.0 });
                let mut planner = SlaPlanner::new(deployed, vec![0], Forecast::Constant);
                serve(&Fleet::of(group("all", Role::Both, 2)), &Requests::of(list), &mut planner);
                planner.steps
            };
        let (slow, fast) = (decide(20.0), decide(80.0));
        assert_eq!(slow[..9], fast[..9]);
        assert!(fast[11].replicas[0] >= 2 * slow[11].replicas[0], "{:?}\n{:?}", slow[11], fast[11]);
    }

    #[test]
    fn a_replica_that_serves_takes_the_profiled_time_between_tokens() {
        // The mean of the profile against the engine, iteration by iteration, up to nine tenths of the rate within 20 ms.
        let engine = engine();
        let colocated = Colocated { engine: &engine, n_gpus: 1, rules: RULES, tokens_per_step: 1.0 };
        for per_s in [2.0, 6.0, 9.0, 11.2] {
            let requests = requests(per_s, 2000);
            let mut router = (router::named("round-robin").expect("listed").make)(1);
            let served = Fleet::of(Group::new("one", engine.clone(), 1)).serve(&requests, router.as_mut());
            let found = latencies(&requests, &served).flatten().filter_map(|found| found.tpot_s);
            let (sum, n) = found.fold((0.0, 0.0), |(sum, n), tpot_s| (sum + tpot_s, n + 1.0));
            let expected = colocated.itl_s(&Traffic { requests: per_s, input: 300.0, output: 100.0 }, per_s);
            // Batches are whole, so the profile is off by one sequence at most: 0.4 of 10 ms.
            assert!(
                (sum / n / expected - 1.0).abs() < 0.04,
                "{per_s} per second: {} s, {expected} s expected",
                sum / n
            );
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]

        /// In its own model the planner pays no less than hindsight does for as many requests.
        #[test]
        fn the_planner_is_never_below_hindsight_in_its_own_model(
            rates in proptest::collection::vec(1.0_f64..90.0, 2..25),
            start_up_s in 0.0_f64..50.0,
            kind in 0_usize..4,
        ) {
            let engine = engine();
            let deployed = Deployed::Colocated(Colocated { engine: &engine, n_gpus: 1, rules: RULES, tokens_per_step: 1.0 });
            let forecast =
                [Forecast::Constant, Forecast::MovingAverage(4), Forecast::Kalman, Forecast::Seasonal(3)][kind];
            let mut planner = SlaPlanner::new(deployed.clone(), vec![0], forecast);
            let (mut replicas, mut intervals) = (vec![1_u32], Vec::new());
            for (rate, at_s) in rates.iter().zip(1..) {
                let requests = (rate * RULES.interval_s).round();
                let traffic = Traffic { requests, input: 300.0, output: 100.0 };
                let load = deployed.loads(&traffic).expect("a load")[0];
                intervals.push(Interval { seconds: RULES.interval_s, load, requests });
                let now = replicas.last().copied().expect("one");
                let seen = Seen {
                    at: Time::from_ns(at_s * 20_000_000_000),
                    interval: Seconds::new(RULES.interval_s),
                    n_arrived: hw::whole(requests),
                    prompt: Some(300.0),
                    output: Some(100.0),
                    ttft: None,
                    tpot: None,
                    groups: vec![GroupSeen { up: now, current: now, in_system: 0.0 }],
                };
                replicas.push(planner.decide(&seen)[0]);
            }
            replicas.pop();
            let demand = Demand { intervals, start_up_s };
            let (paid, bound) = (demand.replica_s(&replicas), demand.bound(demand.met_ratio(&replicas), 0.0));
            proptest::prop_assert!(bound <= paid * (1.0 + 1e-9), "{bound} of {paid}: {replicas:?}");
        }
    }
}
