//! From a checked multi-task scenario to a result: contract, bound, then every policy planned, placed, checked and played, in parallel.

use engine::verdict::Refused;
use std::collections::BTreeMap;
use std::time::Instant;

use planner::train::multi_task::judged::{Asked, Row, pieces};
use reports::views;
use reports::{Measured, PolicyResult, RunResult};
use train::metrics::Played;

use crate::kinds::{self, Kind, Planned, Run};
use scenario::Head;
use scenario::multi_task::{MultiTaskScenario, TaskChoice};

impl Kind for MultiTaskScenario {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run {
        let asked = Asked::new(&self.training, self.costs());
        let one = |(name, choice): &(String, _)| row(&asked, name, *choice);
        let rows = kinds::rows(&self.choices, |(name, _)| name, done, one, |row| (row, None));
        let (results, pictures) = kinds::drawn(rows);
        let device_memory_bytes = self.training.cluster.gpu.memory.0;
        Run { result: result(self, results), pictures, device_memory_bytes, ..Run::default() }
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, Refused>> {
        let (name, choice) = self.choices.iter().find(|(name, _)| name == choice)?;
        let asked = Asked::new(&self.training, self.costs());
        let planned = Planned::of_row(&row(&asked, name, *choice).0).and_then(|mut planned| {
            let work = asked.work.as_ref().map_err(Clone::clone)?;
            planned.json["pieces"] = pieces(work, &asked.planned(work, choice.policy, choice.placement)?);
            Ok(planned)
        });
        Some(planned)
    }
}

fn result(scenario: &MultiTaskScenario, results: Vec<PolicyResult>) -> RunResult {
    let speed = |row: &PolicyResult| row.metrics.get(views::MULTI_TASK[0].0).map(|seconds| 1.0 / seconds);
    let speedup_ratio = reports::gains::of_worth(&results, &scenario.head.baseline, speed);
    let is_given = |call: &train::multi_task::Call| !call.times.is_empty();
    let (profile, source) = match &scenario.profile {
        _ if scenario.training.calls.iter().all(is_given) => {
            ("times of the scenario".to_owned(), engine::cost::Source::Measured)
        }
        Some(profile) => (profile.name.clone(), engine::cost::Source::Measured),
        None => ("roofline".to_owned(), engine::cost::Source::Datasheet),
    };
    RunResult {
        cost_model: kinds::costs(&profile, source.name(), &scenario.free_parameters),
        columns: views::columns(&views::MULTI_TASK),
        results,
        speedup_ratio,
        ..kinds::blank(&scenario.head)
    }
}

fn row(asked: &Asked, name: &str, choice: TaskChoice) -> (PolicyResult, Option<Played>) {
    let work = match &asked.work {
        Ok(work) => work,
        Err(why) => return (kinds::refused(name, why.clone()), None),
    };
    let begun = Instant::now();
    let planned = match asked.planned(work, choice.policy, choice.placement) {
        Ok(planned) => planned,
        Err(why) => return (kinds::refused(name, why), None),
    };
    let planner_wall_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let played = asked.judged(work, &planned);
    let measured = Measured { planner_wall_s, simulate_wall_s: begun.elapsed().as_secs_f64() };
    let planner = Some(kinds::facts(&planned));
    let row = PolicyResult { policy: name.to_owned(), planner, measured, ..PolicyResult::default() };
    match played {
        Ok(Row { why, metrics, interval_s, step }) => {
            let interval = BTreeMap::from([(views::MULTI_TASK[0].0.to_owned(), interval_s)]);
            (PolicyResult { status: reports::Ended::Ok, why, metrics, interval, ..row }, Some(step))
        }
        Err(Refused { ended, why }) => (PolicyResult { status: ended, why, ..row }, None),
    }
}

/// Names and sentences of the policies.
pub fn policies() -> impl Iterator<Item = (&'static str, &'static str)> {
    planner::train::multi_task::POLICIES.into_iter().map(|(name, _, about)| (name, about))
}
