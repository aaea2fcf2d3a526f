//! From a checked curriculum scenario to a result: what asking and training cost, what every policy masters.

use std::time::Instant;

use engine::cost::Source;
use engine::verdict::Refused;
use hw::topology::Topology;
use planner::curriculum::policies::Way;
use planner::curriculum::trained::{Trained, Trainings};
use reports::views;
use reports::{CostModelFacts, Measured, PolicyResult, RunResult};

use crate::kinds::{self, Kind, Planned, Run, training};
use calibrate::costs::cost_model;
use scenario::Head;
use scenario::curriculum::Curriculum;

impl Kind for Curriculum {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run {
        let trained = trained(self);
        let one = |(name, way): &(String, Way)| row(self, &trained, name, way);
        let rows = kinds::rows(&self.choices, |(name, _)| name, done, one, |row| (row, Source::Measured));
        Run::from(result(self, &trained, rows))
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, Refused>> {
        let (name, way) = self.choices.iter().find(|(name, _)| name == choice)?;
        Some(Planned::of_row(&row(self, &trained(self), name, way).0))
    }

    fn strict_hull(&self) -> Option<bool> {
        Some(self.trainings.iter().any(|training| training.strict_hull))
    }
}

/// The steps that every way trains with, or why there are none.
type Trains = Result<Trainings, Refused>;

fn trained(scenario: &Curriculum) -> Trains {
    let mut steps = Vec::with_capacity(scenario.trainings.len());
    for trains in &scenario.trainings {
        let (cost, topology) = (trains.costs(), Topology::of(&trains.problem.cluster));
        let decided = training::run::decide(trains, &trains.policies[0], cost.as_ref(), &topology)?;
        steps.push(Trained::of(decided, cost.as_ref())?);
    }
    Ok(Trainings::new(steps, scenario.of_stages.clone()))
}

fn result(scenario: &Curriculum, trained: &Trains, rows: Vec<(PolicyResult, Source)>) -> RunResult {
    let (results, source) = kinds::weakest(rows);
    let source = if scenario.profile.is_none() { Source::Datasheet } else { source };
    let outside = results.iter().filter_map(|row| row.metrics.get("outside_hull_ratio").copied());
    let outside_hull_ratio = outside.fold(0.0, f64::max);
    RunResult {
        cost_model: CostModelFacts {
            outside_hull_ratio,
            outside_hull: trained.as_ref().map_or_else(|_| Vec::new(), Trainings::outside_hull),
            ..kinds::costs(kinds::profile_name(scenario.profile.as_ref()), source.name(), &scenario.free_parameters)
        },
        columns: views::of_curriculum(&results),
        speedup_ratio: reports::gains::of_metric(&results, &scenario.head.baseline, views::CURRICULUM[0].0),
        results,
        ..kinds::blank(&scenario.head)
    }
}

fn row(scenario: &Curriculum, trained: &Trains, name: &str, way: &Way) -> (PolicyResult, Source) {
    let begun = Instant::now();
    let cost = cost_model(&scenario.asked.cluster, scenario.profile.as_ref(), scenario.sustained_flops_ratio);
    let judge = |trained| scenario.asked.judged(way, trained, cost.as_ref());
    let judged = match trained.as_ref().map_err(Clone::clone).and_then(judge) {
        Ok(judged) => judged,
        Err(why) => return (kinds::refused(name, why), Source::Measured),
    };
    let row = PolicyResult {
        policy: name.to_owned(),
        status: reports::Ended::Ok,
        why: judged.why,
        metrics: judged.metrics,
        interval: judged.interval,
        planner: Some(kinds::facts(&judged.decision)),
        measured: Measured { planner_wall_s: begun.elapsed().as_secs_f64(), simulate_wall_s: 0.0 },
        ..PolicyResult::default()
    };
    (row, judged.source)
}
