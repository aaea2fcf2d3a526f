//! From a checked scenario of mixed GPUs to a result: every plan decided, played and measured, in parallel.

use std::time::Instant;

use engine::CostModel;
use engine::cost::provenance::Grounds;
use engine::verdict::Refused;
use planner::train::mixed_gpus as plans;
use reports::{Measured, PolicyResult, RunResult, views};
use train::metrics::Played;

use crate::kinds::{self, Kind, Planned, Run};
use scenario::Head;
use scenario::mixed_training::{MixedTraining, Way};

impl Kind for MixedTraining {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run {
        let costs = self.costs();
        let one = |(name, way): &(String, Way)| row(self, name, *way, &costs);
        let rows = kinds::rows(&self.choices, |(name, _)| name, done, one, |row| (row, None));
        let mut grounds = Grounds::default();
        rows.iter().filter_map(|(_, step)| step.as_ref()).for_each(|(_, of)| grounds.join(of));
        let rows = rows.into_iter().map(|(row, step)| (row, step.map(|(played, _)| played)));
        let (results, pictures) = kinds::drawn(rows.collect());
        Run { result: result(self, results, &grounds), pictures, ..Run::default() }
    }

    fn strict_hull(&self) -> Option<bool> {
        self.job.problem.as_ref().map(|_| false)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, Refused>> {
        let (name, way) = self.choices.iter().find(|(name, _)| name == choice)?;
        Some(Planned::of_row(&row(self, name, *way, &self.costs()).0))
    }
}

fn result(scenario: &MixedTraining, results: Vec<PolicyResult>, grounds: &Grounds) -> RunResult {
    let speedup_ratio = reports::gains::of_metric(&results, &scenario.head.baseline, scenario.objective.metric());
    let of = |profile: &str| kinds::grounded(profile, grounds, &scenario.free_parameters);
    RunResult {
        cost_model: scenario.profiles().map_or_else(|| of("times of the scenario").given(), |names| of(&names)),
        columns: views::columns(views::of_mixed(scenario.job.run.is_some())),
        results,
        speedup_ratio,
        ..kinds::blank(&scenario.head)
    }
}

/// A way with its step and what that rests on, where there is one.
type Row = (PolicyResult, Option<(Played, Grounds)>);

fn row(scenario: &MixedTraining, name: &str, way: Way, costs: &[Box<dyn CostModel>]) -> Row {
    let begun = Instant::now();
    let decided = match (way, &scenario.given) {
        (Way::Given, Some(plan)) => Ok(plans::given(&scenario.job, plan, costs)),
        _ => plans::search(&scenario.job, scenario.objective, costs),
    };
    let planner_wall_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let judged = decided.and_then(|plan| plans::judged(&scenario.job, &plan.plan, costs).map(|step| (plan, step)));
    let measured = Measured { planner_wall_s, simulate_wall_s: begun.elapsed().as_secs_f64() };
    match judged {
        Err(why) => (kinds::refused(name, why), None),
        Ok((plan, step)) => {
            let row = PolicyResult {
                policy: name.to_owned(),
                status: reports::Ended::Ok,
                why: step.why,
                metrics: step.metrics,
                interval: step.intervals,
                planner: Some(kinds::facts(&plan)),
                measured,
                ..PolicyResult::default()
            };
            (row, Some((step.played, step.grounds)))
        }
    }
}
