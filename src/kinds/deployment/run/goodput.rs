//! From most requests within limits to a result: plan, then play the plan request by request and look for the largest rate that still meets
//! the targets.

use engine::verdict::Refused;
use std::time::Instant;

use planner::Decision;
use planner::deploy::RentalError;
use planner::deploy::goodput::{self, Plan, playable_of};
use reports::views;
use reports::{Measured, PolicyResult, RunResult};
use serde_json::json;

use crate::kinds::{self, Kind, Planned, Run};
use scenario::Head;
use scenario::deployment::goodput::{Goodput, GoodputChoice};

impl Kind for Goodput {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|choice| choice.name.as_str()).collect()
    }

    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run {
        let results = kinds::rows(&self.choices, |choice| &choice.name, done, |choice| row(self, choice), |row| row);
        Run::from(RunResult {
            cost_model: kinds::costs("roofline of a stage", "datasheet", &self.free_parameters),
            columns: views::columns(&views::GOODPUT),
            speedup_ratio: reports::gains::of_metric(&results, &self.head.baseline, views::GOODPUT[0].0),
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
fn written(scenario: &Goodput, choice: &GoodputChoice) -> Result<Planned, RentalError> {
    let decision = goodput::plan(&choice.way, &scenario.load(), &mut || {})?;
    let placed = playable_of(&choice.way, &decision.plan, &scenario.requests)?.placed().clone();
    let targets = json!({ "ttft_s": choice.way.task.ttft_s, "tpot_s": choice.way.task.tpot_s });
    Ok(kinds::deployed(&scenario.head, &choice.name, &[placed], &decision, &decision.plan.why).with(targets))
}

fn row(scenario: &Goodput, choice: &GoodputChoice) -> PolicyResult {
    let mut begun = Instant::now();
    planned(scenario, choice, &mut begun).unwrap_or_else(|why| PolicyResult {
        measured: Measured { planner_wall_s: begun.elapsed().as_secs_f64(), simulate_wall_s: 0.0 },
        ..kinds::refused(&choice.name, why)
    })
}

fn planned(scenario: &Goodput, choice: &GoodputChoice, begun: &mut Instant) -> Result<PolicyResult, RentalError> {
    let load = scenario.load();
    let decision: Decision<Plan> = goodput::plan(&choice.way, &load, &mut || *begun = Instant::now())?;
    let playable = playable_of(&choice.way, &decision.plan, &scenario.requests)?;
    let planner_wall_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let (rate, played) = playable.goodput(&choice.way.task, &scenario.requests, scenario.attainment_ratio);
    let interval = goodput::intervals(&choice.way, &decision.plan, &load, (rate, &played))?;
    Ok(PolicyResult {
        policy: choice.name.clone(),
        status: reports::Ended::Ok,
        why: decision.plan.why.clone(),
        metrics: goodput::metrics(&choice.way, &decision.plan, (rate, &played)),
        interval,
        planner: Some(kinds::facts(&goodput::beside_played(decision, rate))),
        measured: Measured { planner_wall_s, simulate_wall_s: begun.elapsed().as_secs_f64() },
        ..PolicyResult::default()
    })
}
