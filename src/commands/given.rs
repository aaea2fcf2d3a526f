//! A plan that was made before, also elsewhere: checked against the scenario that it carries, then scored like a policy.

use std::fmt::Display;
use std::path::Path;

use planner::train::chosen::Decided;
use reports::RunResult;
use train::Plan;

use thiserror::Error;

use super::{Failure, wrong};
use crate::ask::WrongInput;
use crate::hardware::{self, WrongPlan};
use crate::kinds::training::run as pipeline;
use crate::kinds::{self, Checked, Kind, Planned, Run};
use engine::Origin;
use input::diagnostic::{self, Code, Source, meant};
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
    /// It is not written like a plan.
    #[error("not the JSON of a plan or a result: {0}")]
    Form(#[from] serde_json::Error),
    /// It is written like another one.
    #[error("its schema is `{0}`, that of plans of training is `{schema}`", schema = train::plan::SCHEMA)]
    Schema(String),
    /// It answers a question whose plans no command reads.
    #[error("a plan of kind `{0}` that is no step on equal GPUs is not read: `skrull-sim run` its scenario instead")]
    Kind(String),
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

/// The text of a plan of any kind as what can be run, and that of a result as what it was asked. Files that its scenario names lie beside it, or beside `path`.
///
/// # Errors
/// Why it cannot be used.
pub fn of_text(text: &str, path: &Path, more: &Overrides) -> Result<Box<dyn Kind>, Unusable> {
    let json: serde_json::Value = serde_json::from_str(text)?;
    let origin = serde_json::from_value::<Origin>(json["origin"].clone()).map_err(|_| Unusable::NoScenario);
    if json["schema"] == reports::SCHEMA {
        return asked(of_origin(origin?, path, more));
    }
    if json["schema"] != kinds::DEPLOYMENT_SCHEMA {
        return Ok(Box::new(Given::read(text, path, more)?));
    }
    let origin = origin?;
    let policy = json["policy"].as_str().unwrap_or_default().to_owned();
    // The policy alone, where it is listed by that name.
    let only = [format!("policies.run=['{policy}']"), format!("policies.baseline='{policy}'")];
    let alone = of_origin(origin.clone(), path, &Overrides { set: [&more.set[..], &only].concat(), ..more.clone() });
    let scenario = asked(if alone.scenario.is_some() { alone } else { of_origin(origin, path, more) })?;
    // A number that is read from a file may differ in its last bit, so both are read. Keys that are laid over give deployments of their own.
    let read = |planned: Planned| serde_json::from_str(&planned.json["deployments"].to_string()).ok();
    let again: Option<serde_json::Value> = scenario.plan(&policy).and_then(Result::ok).and_then(read);
    let is_same = again.is_some_and(|again| !more.set.is_empty() || again == json["deployments"]);
    if is_same { Ok(scenario) } else { Err(Unusable::Changed { policy }) }
}

/// The text of a plan: that of a file, or of a result's scenario by its last policy.
///
/// # Errors
/// What `unusable` makes of a file that cannot be read, or why there is no plan.
pub fn plan_of(path: &Path, unusable: &dyn Fn(&dyn Display) -> Failure) -> Result<String, Failure> {
    let text = input::text_file::operand(path).map_err(|why| unusable(&why))?;
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|why| unusable(&Unusable::Form(why)))?;
    if json["schema"] != reports::SCHEMA {
        return Ok(text);
    }
    let asked = of_text(&text, path, &Overrides::default()).map_err(|why| unusable(&why))?;
    Ok(decided(asked.as_ref(), None)?.1)
}

/// The plan of a policy, or of the last one: what it is in words, its file, and how it was made.
pub fn decided(scenario: &dyn Kind, policy: Option<&str>) -> Result<(Planned, String, String), Failure> {
    let (head, choice) = (scenario.head(), chosen(policy, scenario)?);
    let Some(planned) = scenario.plan(choice) else {
        let what = "there is nothing to decide\n  = `skrull-sim run` takes every kind";
        return Err(wrong(scenario, Code::WrongKind, what));
    };
    let planned = planned.map_err(|why| Failure::Gate(format!("error: policy `{choice}` has no plan: {why}")))?;
    let planned = planned.with(serde_json::json!({ "origin": kinds::origin(head) }));
    let file = planned.file.clone().unwrap_or_else(|| format!("{:#}\n", planned.json));
    let how = planned.how.clone().unwrap_or_else(|| format!("by `{choice}`"));
    Ok((planned, file, how))
}

/// The policy that was asked for, or the last one.
fn chosen<'a>(policy: Option<&str>, scenario: &'a dyn Kind) -> Result<&'a str, Failure> {
    let names = scenario.choices();
    let found = policy.or(names.last().copied()).unwrap_or_default();
    names.iter().copied().find(|name| *name == found).ok_or_else(|| {
        let near = meant(found, names.iter().copied());
        let what = format!("the scenario has no policy `{found}`{near}\n  = it has {}", names.join(", "));
        wrong(scenario, Code::UnknownPolicy, what)
    })
}

/// What a scenario asks; what is wrong with it otherwise.
fn asked(Checked { scenario, source, findings }: Checked) -> Result<Box<dyn Kind>, Unusable> {
    scenario.ok_or(Unusable::WrongScenario(WrongInput { source, findings }))
}

/// Reads the scenario of a plan, with what it was made with and more laid over it. Files that it names lie beside it; where it is gone, beside the plan.
fn of_origin(origin: Origin, path: &Path, more: &Overrides) -> Checked {
    let set = [origin.set, more.set.clone()].concat();
    let source = Source { path: origin.scenario, text: origin.text };
    let own = Path::new(&source.path);
    let folder = if own.is_file() { own } else { path }.parent().map_or_else(Default::default, Path::to_path_buf);
    kinds::check(source, &folder, &Overrides { set, seed: more.seed.or(origin.seed), ..Overrides::default() })
}

/// Reads the text of a plan of training and the scenario that it carries; `more` is laid over what the plan was made with.
///
/// # Errors
/// Why it cannot be used.
pub fn read(text: &str, path: &Path, more: &Overrides) -> Result<(Plan, Scenario), Unusable> {
    let json: serde_json::Value = serde_json::from_str(text)?;
    if json["schema"] != train::plan::SCHEMA {
        let own = serde_json::from_value(json["origin"].clone()).ok().filter(|_| json["schema"].is_null());
        let own = own.and_then(|own| of_origin(own, path, more).scenario);
        let schema = || Unusable::Schema(json["schema"].as_str().unwrap_or("none").to_owned());
        return Err(own.map_or_else(schema, |of| Unusable::Kind(of.head().kind.clone())));
    }
    let plan: Plan = serde_json::from_str(text)?;
    let scenario = asked(of_origin(plan.origin.clone().ok_or(Unusable::NoScenario)?, path, more))?;
    Ok((plan, scenario.training().ok_or(Unusable::NoScenario)?.clone()))
}

impl Given {
    /// Reads and checks a plan, or says why it cannot be scored.
    fn read(text: &str, path: &Path, more: &Overrides) -> Result<Self, Unusable> {
        let (plan, mut scenario) = read(text, path, more)?;
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
