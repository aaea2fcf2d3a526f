//! A plan that was made before, also elsewhere: checked against the scenario that it carries, then scored like a policy.

use std::path::Path;

use planner::train::chosen::Decided;
use reports::RunResult;
use train::Plan;

use thiserror::Error;

use crate::ask::WrongInput;
use crate::hardware::{self, WrongPlan};
use crate::kinds::training::run as pipeline;
use crate::kinds::{self, Checked, Kind, Planned, Run};
use engine::Origin;
use input::diagnostic::{self, Source};
use input::text_file::NoText;
use scenario::training::Scenario;
use scenario::{Head, Overrides};

/// A plan with its scenario.
pub struct Given {
    scenario: Scenario,
    plan: Plan,
}

/// Why a file is no plan that can be used.
#[derive(Debug, Error)]
pub enum Unusable {
    /// It gives no text.
    #[error(transparent)]
    NoText(#[from] NoText),
    /// It is not written like a plan.
    #[error(transparent)]
    Form(#[from] serde_json::Error),
    /// It is written like another one.
    #[error(
        "its schema is `{found}`, that of plans of training is `{}`; `skrull-sim plan` makes one of a result",
        train::plan::SCHEMA
    )]
    Schema { found: String },
    /// Only the scenario says what it is a plan of.
    #[error("it does not carry its scenario; `skrull-sim plan` writes plans that do")]
    NoScenario,
    /// The scenario that it carries is wrong.
    #[error("{}", diagnostic::render(&.0.source, &.0.findings))]
    WrongScenario(WrongInput),
    /// It is no plan of the scenario that it carries.
    #[error(transparent)]
    Unfit(#[from] WrongPlan),
    /// Its deployments are not those of its scenario.
    #[error("the scenario that it carries gives other deployments by `{policy}`: plan it again, or run the scenario")]
    Changed { policy: String },
}

/// A plan of any kind as what can be run, and a result as what it was asked.
///
/// # Errors
/// Why it cannot be used.
pub fn of_file(path: &Path, more: &Overrides) -> Result<Box<dyn Kind>, Unusable> {
    let json: serde_json::Value = serde_json::from_str(&input::text_file::read(path)?)?;
    let origin = serde_json::from_value::<Origin>(json["origin"].clone()).map_err(|_| Unusable::NoScenario);
    if json["schema"] == reports::SCHEMA {
        return asked(of_origin(origin?, path, more));
    }
    if json["schema"] != kinds::DEPLOYMENT_SCHEMA {
        return Ok(Box::new(Given::read(path, more)?));
    }
    let origin = origin?;
    let policy = json["policy"].as_str().unwrap_or_default().to_owned();
    // The policy alone, where it is listed by that name.
    let only = [format!("policies.run=['{policy}']"), format!("policies.baseline='{policy}'")];
    let alone = Overrides { set: [&more.set[..], &only].concat(), seed: more.seed };
    let alone = of_origin(origin.clone(), path, &alone);
    let scenario = asked(if alone.scenario.is_some() { alone } else { of_origin(origin, path, more) })?;
    // A number that is read from a file may differ in its last bit, so both are read. Keys that are laid over give deployments of their own.
    let read = |planned: Planned| serde_json::from_str(&planned.json["deployments"].to_string()).ok();
    let again: Option<serde_json::Value> = scenario.plan(&policy).and_then(Result::ok).and_then(read);
    let is_same = again.is_some_and(|again| !more.set.is_empty() || again == json["deployments"]);
    if is_same { Ok(scenario) } else { Err(Unusable::Changed { policy }) }
}

/// What a scenario asks; what is wrong with it otherwise.
fn asked(Checked { scenario, source, findings }: Checked) -> Result<Box<dyn Kind>, Unusable> {
    scenario.ok_or(Unusable::WrongScenario(WrongInput { source, findings }))
}

/// Reads the scenario of a plan, with what it was made with and more laid over it.
fn of_origin(origin: Origin, path: &Path, more: &Overrides) -> Checked {
    let set = [origin.set, more.set.clone()].concat();
    let source = Source { path: origin.scenario, text: origin.text };
    let folder = path.parent().map_or_else(Default::default, Path::to_path_buf);
    kinds::check(source, &folder, &Overrides { set, seed: more.seed.or(origin.seed) })
}

/// Reads a plan and the scenario that it carries; `set` is laid over what the plan was made with.
///
/// # Errors
/// Why it cannot be used.
pub fn read(path: &Path, more: &Overrides) -> Result<(Plan, Scenario), Unusable> {
    let text = input::text_file::read(path)?;
    let found = serde_json::from_str::<serde_json::Value>(&text)?["schema"].as_str().unwrap_or("none").to_owned();
    if found != train::plan::SCHEMA {
        return Err(Unusable::Schema { found });
    }
    let plan: Plan = serde_json::from_str(&text)?;
    let origin = plan.origin.clone().ok_or(Unusable::NoScenario)?;
    let scenario = asked(of_origin(origin, path, more))?;
    Ok((plan, scenario.training().ok_or(Unusable::NoScenario)?.clone()))
}

impl Given {
    /// Reads and checks a plan, or says why it cannot be scored.
    fn read(path: &Path, more: &Overrides) -> Result<Self, Unusable> {
        let (plan, mut scenario) = read(path, more)?;
        hardware::of_file(&scenario, plan.clone())?;
        scenario.head.name += "-plan";
        scenario.head.baseline.clone_from(&plan.policy);
        Ok(Self { scenario, plan })
    }
}

impl Kind for Given {
    fn head(&self) -> &Head {
        &self.scenario.head
    }

    fn choices(&self) -> Vec<&str> {
        vec![&self.plan.policy]
    }

    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult {
        self.draw(done).result
    }

    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run {
        let planned = hardware::of_file(&self.scenario, self.plan.clone()).expect("it was checked when it was read");
        let decided = Decided { problem: planned.problem, decision: planned.decision, found: None };
        let run = pipeline::score(&self.scenario, decided);
        done(&self.plan.policy);
        run
    }

    fn strict_hull(&self) -> Option<bool> {
        self.scenario.strict_hull()
    }
}
