//! From most tokens per second to a result: place the layers, play the requests, measure, for every policy in parallel.
//!
//! Results are collected by index, so the number of threads changes nothing outside `measured`.

use engine::verdict::Refused;
use std::time::Instant;

use planner::deploy::RentalError;
use planner::deploy::helix::held::OfPool;
use planner::deploy::helix::{held, played};
use reports::views;
use reports::{Measured, PolicyResult, RunResult};
use serde_json::json;

use crate::kinds::{self, Kind, Planned, Run};
use scenario::Head;
use scenario::deployment::throughput::{Throughput, ThroughputChoice};

impl Kind for Throughput {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|choice| choice.name.as_str()).collect()
    }

    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run {
        let pool = self.asked.of_pool();
        let results =
            kinds::rows(&self.choices, |choice| &choice.name, done, |choice| row(self, choice, &pool), |row| row);
        Run::from(RunResult {
            cost_model: kinds::costs("times of a layer by batch size", self.times.name(), &self.free_parameters),
            columns: views::columns(&views::THROUGHPUT),
            speedup_ratio: reports::gains::of_metric(&results, &self.head.baseline, views::THROUGHPUT[0].0),
            results,
            ..kinds::blank(&self.head)
        })
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, Refused>> {
        let choice = self.choices.iter().find(|known| known.name == choice)?;
        Some(written(self, choice).map_err(Refused::from))
    }
}

/// `plan.json` and its words.
fn written(scenario: &Throughput, choice: &ThroughputChoice) -> Result<Planned, RentalError> {
    let asked = &scenario.asked;
    let placed = asked.placed(&choice.way)?;
    let parts = asked.parts(&choice.way, &placed)?;
    let most = asked.most(&parts)?;
    let decision = asked.said(placed, &Ok(most));
    let flow = json!({ "max_flow_tokens_per_s": decision.plan.flow.tokens_per_s });
    Ok(kinds::deployed(&scenario.head, &choice.name, &parts.placed, &decision, "").with(flow))
}

fn row(scenario: &Throughput, choice: &ThroughputChoice, pool: &OfPool) -> PolicyResult {
    let (begun, asked, way) = (Instant::now(), &scenario.asked, &choice.way);
    let placed = asked.placed(way);
    let planner_wall_s = begun.elapsed().as_secs_f64();
    let measured = |simulate_wall_s| Measured { planner_wall_s, simulate_wall_s };
    let (parts, placed) = match placed.and_then(|placed| Ok((asked.parts(way, &placed)?, placed))) {
        Ok(played) => played,
        Err(why) => return PolicyResult { measured: measured(0.0), ..kinds::refused(&choice.name, why) },
    };
    let begun = Instant::now();
    let outcomes = asked.play(way, &parts);
    let simulate_wall_s = begun.elapsed().as_secs_f64();
    let mut decision = asked.said(placed, &held::of_plan(pool.as_ref(), &parts.pools));
    let metrics = asked.measured(way, &parts, &outcomes, &mut decision);
    PolicyResult {
        policy: choice.name.clone(),
        status: reports::Ended::Ok,
        why: played::words(way, &parts.pools, &outcomes),
        interval: asked.intervals(way, &decision, &metrics, scenario.times),
        metrics,
        planner: Some(kinds::facts(&decision)),
        measured: measured(simulate_wall_s),
        ..PolicyResult::default()
    }
}
