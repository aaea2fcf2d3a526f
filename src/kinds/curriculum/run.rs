//! From a checked curriculum scenario to a result: what asking and training cost, what every policy masters.

use std::time::Instant;

use engine::cost::Source;
use engine::verdict::Refused;
use planner::curriculum::policies::Way;
use reports::views;
use reports::{CostModelFacts, Measured, PolicyResult, RunResult};

use crate::kinds::{self, Kind, Planned, Run};
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
        let rows = kinds::rows(
            &self.choices,
            |(name, _)| name,
            done,
            |(name, way)| row(self, name, way),
            |row| (row, Source::Measured),
        );
        Run::from(result(self, rows))
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, Refused>> {
        let (name, way) = self.choices.iter().find(|(name, _)| name == choice)?;
        Some(Planned::of_row(&row(self, name, way).0))
    }
}

fn result(scenario: &Curriculum, rows: Vec<(PolicyResult, Source)>) -> RunResult {
    let (results, source) = kinds::weakest(rows);
    let source = if scenario.profile.is_none() { Source::Datasheet } else { source };
    let outside = results.iter().filter_map(|row| row.metrics.get("outside_hull_ratio").copied());
    let outside_hull_ratio = outside.fold(0.0, f64::max);
    RunResult {
        cost_model: CostModelFacts {
            outside_hull_ratio,
            outside_hull: if outside_hull_ratio > 0.0 { vec!["products of training".to_owned()] } else { Vec::new() },
            ..kinds::costs(kinds::profile_name(scenario.profile.as_ref()), source.name(), &scenario.free_parameters)
        },
        columns: views::of_curriculum(&results),
        speedup_ratio: reports::gains::of_metric(&results, &scenario.head.baseline, views::CURRICULUM[0].0),
        results,
        ..kinds::blank(&scenario.head)
    }
}

fn row(scenario: &Curriculum, name: &str, way: &Way) -> (PolicyResult, Source) {
    let begun = Instant::now();
    let cost = cost_model(&scenario.asked.cluster, scenario.profile.as_ref(), scenario.sustained_flops_ratio);
    let judged = match scenario.asked.judged(way, cost.as_ref()) {
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
