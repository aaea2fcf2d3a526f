//! From checked work to a result: find rates, decide with every policy and limit, replay every plan.
//!
//! Rows are decided in parallel and collected by index, so the number of threads changes nothing outside `measured`.

use std::time::Instant;

use engine::cost::profile::Profile;
use engine::verdict::Refused;
use planner::deploy::RentalError;
use planner::deploy::objective::Objective;
use planner::deploy::rental::{self, Configurations, Costs, Deployed, Figures, Rated};
use rayon::prelude::*;
use reports::{CostModelFacts, Measured, PolicyResult, RunResult, gains, views};
use serde_json::json;

use crate::kinds::{self, Kind, Planned, Run};
use calibrate::costs::cost_model;
use scenario::Head;
use scenario::deployment::time::{Rental, RentalChoice};

impl Kind for Rental {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|choice| choice.name.as_str()).collect()
    }

    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run {
        let (rated, profiles) = rated(self);
        let results =
            kinds::rows(&self.choices, |choice| &choice.name, done, |choice| row(self, choice, &rated), |row| row);
        let columns = match self.objective {
            Objective::Dollars => views::columns(&views::CHEAPEST),
            _ if self.asked.is_simulated() => views::columns(&views::REPLAYED),
            _ => views::columns(&views::RENTED),
        };
        Run::from(RunResult {
            cost_model: costs(self, &rated, &profiles),
            speedup_ratio: gains::of_own_least(&results, &self.head.baseline, &columns[0].key),
            relative_to: gains::relative_to(&results, &self.head.baseline, "limit"),
            columns,
            results,
            ..kinds::blank(&self.head)
        })
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, Refused>> {
        let choice = self.choices.iter().find(|known| known.name == choice)?;
        Some(written(self, choice).map_err(Refused::from))
    }
}

/// Configurations with their rates, each found by itself, and the profiles behind them.
fn rated(scenario: &Rental) -> (Rated, Vec<Profile>) {
    let asked = &scenario.asked;
    let is_measured = asked.is_simulated() && asked.replica.costs == Costs::Measured;
    let profile = |gpu: &str| calibrate::profiles::of_serving(gpu, None).filter(|_| is_measured);
    let profiles: Vec<Option<Profile>> = asked.inventory.offers.iter().map(|offered| profile(&offered.name)).collect();
    let serve = |deployed: &Deployed| {
        let cluster = asked.cluster(*deployed);
        let cost = cost_model(&cluster, profiles[deployed.offer].as_ref(), 1.0);
        asked.served(*deployed, &cluster, cost.as_ref())
    };
    let rated = asked.rated(&|all| all.par_iter().map(serve).collect());
    (rated, profiles.into_iter().flatten().collect())
}

fn costs(scenario: &Rental, rated: &Rated, profiles: &[Profile]) -> CostModelFacts {
    let named: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
    let source = rated.source.name();
    match &scenario.asked.configurations {
        Configurations::Given(_) => kinds::costs("rates of the scenario", source, &[]),
        Configurations::Enumerated(_) => {
            let profile = match (scenario.asked.is_simulated(), named.is_empty()) {
                (false, _) => "roofline in closed form".to_owned(),
                (true, true) => "roofline".to_owned(),
                (true, false) => format!("{}, else roofline", named.join(", ")),
            };
            kinds::costs(&profile, source, &scenario.asked.replica.free_parameters())
        }
    }
}

/// `plan.json` and its words.
fn written(scenario: &Rental, choice: &RentalChoice) -> Result<Planned, RentalError> {
    let asked = &scenario.asked;
    let decided = asked.decide(&choice.choice, &rated(scenario).0)?;
    let placed = rental::deployments(asked, &decided)?;
    let why = format!("rent {}", rental::rented(&decided));
    let more = json!({ "rented": rental::plan_json(asked, &decided) });
    Ok(kinds::deployed(&scenario.head, &choice.name, &placed, &decided.decision, &why).with(more))
}

fn row(scenario: &Rental, choice: &RentalChoice, rated: &Rated) -> PolicyResult {
    served(scenario, choice, rated).unwrap_or_else(|why| kinds::refused(&choice.name, why))
}

fn served(scenario: &Rental, choice: &RentalChoice, rated: &Rated) -> Result<PolicyResult, RentalError> {
    let begun = Instant::now();
    let decided = scenario.asked.decide(&choice.choice, rated)?;
    let planner_wall_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let Figures { values, interval } = scenario.asked.measured(&decided, rated)?;
    Ok(PolicyResult {
        policy: choice.name.clone(),
        status: reports::Ended::Ok,
        why: rental::rented(&decided),
        metrics: values,
        interval,
        planner: Some(kinds::facts(&decided.decision)),
        measured: Measured { planner_wall_s, simulate_wall_s: begun.elapsed().as_secs_f64() },
        ..PolicyResult::default()
    })
}
