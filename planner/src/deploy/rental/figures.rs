//! Figures of a plan: what it costs, when its work ends where it is served, and what clients see of requests that come one by one.
//!
//! A plan is made at expected costs, and served with every cost at its low and at its high end too: that is the interval. Rates that are given have none.
//! Units: dollars, seconds, requests.

use std::collections::BTreeMap;

use engine::cost::roofline;
use engine::play::Case;
use serve::metrics;
use serve::metrics::unexplained::slowness;

use super::{Configurations, Decided, Question, Rated, lay};
use crate::deploy::RentalError;
use crate::deploy::objective::Limit;
use crate::deploy::simulated::{self, Replay, Seen};

/// What clients see of requests that come one by one.
const SEEN: [&str; 6] =
    ["slo_attainment_ratio", "ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "requests_per_s", "n_outages"];

/// Figures by their keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// As expected.
    pub values: BTreeMap<String, f64>,
    /// From the least to the most of those that costs change.
    pub interval: BTreeMap<String, [f64; 2]>,
}

/// A plan that was served at one end of the costs.
struct Served {
    replay: Replay,
    /// Where requests come one by one as well.
    seen: Option<Seen>,
}

impl Question {
    /// Serves all requests with the plan's replicas, and as they come where that is asked.
    ///
    /// # Errors
    /// When the checker refuses the plan as deployments.
    pub fn measured(&self, decided: &Decided, rated: &Rated) -> Result<Figures, RentalError> {
        if rated.engines.is_empty() {
            let values = metrics(self, decided, None);
            let interval = self.of_closed_form(&values);
            return Ok(Figures { values, interval });
        }
        let at = |case| self.played(decided, rated, case);
        let [low, expected, high] = [at(Case::Low)?, at(Case::Expected)?, at(Case::High)?];
        let mut values = metrics(self, decided, Some(&expected.replay));
        let slowness = slowness([&low, &expected, &high].map(|served| served.replay.makespan_s));
        let mut interval = stretched(&values, &["replay_makespan_s", "cost_usd_per_mtok"], [slowness[0], slowness[2]]);
        if let (Some(low), Some(seen), Some(high)) = (low.seen, expected.seen, high.seen) {
            let ends = [low.values, high.values];
            let intervals = metrics::intervals(&seen.values, &ends, Some(&seen.unexplained));
            interval.extend(intervals.into_iter().filter(|(key, _)| SEEN.contains(&key.as_str())));
            values.extend(seen.values.into_iter().filter(|(key, _)| SEEN.contains(&key.as_str())));
        }
        Ok(Figures { values, interval })
    }

    fn played(&self, decided: &Decided, rated: &Rated, case: Case) -> Result<Served, RentalError> {
        let fleet = lay::fleet(self, decided.rents(), (rated, case))?;
        let replay = simulated::replay(&decided.problem, &self.lengths, &fleet);
        let Some(coming) = self.play else { return Ok(Served { replay, seen: None }) };
        let fleet = lay::losing(fleet, self, decided.rents(), coming.seed)?;
        let seen = simulated::arriving(&decided.problem, &self.lengths, &fleet, coming);
        Ok(Served { replay, seen: Some(seen) })
    }

    /// Intervals where rates come from the closed form, which is a datasheet's.
    fn of_closed_form(&self, values: &BTreeMap<String, f64>) -> BTreeMap<String, [f64; 2]> {
        match self.configurations {
            Configurations::Given(_) => BTreeMap::new(),
            Configurations::Enumerated(_) => stretched(values, &["makespan_s", "cost_usd"], roofline::ENDS),
        }
    }
}

/// Ends of figures that are as many times as large as a time is.
fn stretched(values: &BTreeMap<String, f64>, keys: &[&str], ends: [f64; 2]) -> BTreeMap<String, [f64; 2]> {
    let of = |key: &&str| values.get(*key).map(|value| ((*key).to_owned(), ends.map(|end| value * end)));
    keys.iter().filter_map(of).collect()
}

/// Figures of a plan, and of its replay where it was served.
fn metrics(question: &Question, decided: &Decided, replay: Option<&Replay>) -> BTreeMap<String, f64> {
    let plan = &decided.decision.plan;
    let sum = |all: &[u32]| all.iter().map(|&n| f64::from(n)).sum::<f64>();
    let mut all = vec![
        ("makespan_s", plan.makespan_s),
        ("cost_usd_per_hour", plan.usd_per_hour),
        ("cost_usd", plan.usd_per_hour * plan.makespan_s / 3600.0),
        ("n_replicas", sum(&plan.replicas)),
        ("n_gpus", sum(&plan.n_gpus)),
        match decided.limit {
            Limit::Budget { usd_per_hour } => ("budget_used_ratio", plan.usd_per_hour / usd_per_hour),
            Limit::Deadline { seconds } => ("deadline_used_ratio", plan.makespan_s / seconds),
        },
    ];
    if let Some(replay) = replay {
        let outputs = question.demands.iter().zip(&question.lengths);
        let tokens: f64 = outputs.map(|(demand, lengths)| demand.requests * lengths.output.as_f64()).sum();
        let asked = question.demands.iter().map(|demand| demand.requests).filter(|n| *n > 0.0);
        all.extend([
            ("replay_makespan_s", replay.makespan_s),
            ("replay_over_planned_ratio", replay.makespan_s / plan.makespan_s),
            ("n_refused", hw::real(replay.n_refused)),
            ("cost_usd_per_mtok", plan.usd_per_hour * replay.makespan_s / 3600.0 / tokens * 1e6),
            ("requests_per_replica_least", asked.fold(f64::INFINITY, f64::min) / sum(&plan.replicas)),
        ]);
    }
    let finite = all.into_iter().filter(|(_, value)| value.is_finite());
    finite.map(|(key, value)| (key.to_owned(), value)).collect()
}
