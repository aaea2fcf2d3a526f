//! `execute`: run a plan on real hardware. The plan carries its scenario, so the file is all that the machine needs.

use std::collections::BTreeMap;
use std::path::Path;

use engine::validation::How;
use train::Plan;

use super::calibrate::open;
use super::{Failure, print, write};
use crate::cli::ExecuteArgs;
use crate::hardware;
use crate::kinds;
use crate::kinds::training::read::Scenario;
use crate::kinds::training::run as pipeline;
use crate::scenario::Overrides;
use input::diagnostic::{self, Code, Source};

/// Runs the verb.
pub fn execute(args: &ExecuteArgs) -> Result<(), Failure> {
    let (plan, scenario) = read(&args.plan)?;
    let planned = hardware::of_file(&scenario, plan).map_err(|why| unusable(&args.plan, &why))?;
    let mut device = open(&args.device)?;
    let cost = pipeline::cost_model(&scenario);
    let execution = hardware::run(&planned, device.as_mut(), cost.as_ref(), args.runs)
        .map_err(|error| Failure::Machine(format!("error: {error}")))?;
    let dir = args.out.clone().unwrap_or_else(|| args.plan.parent().map_or_else(Default::default, Path::to_path_buf));
    if !dir.as_os_str().is_empty() {
        std::fs::create_dir_all(&dir)
            .map_err(|error| Failure::Machine(format!("error: cannot create `{}`: {error}", dir.display())))?;
    }
    let path = dir.join("timeline.json");
    let json =
        serde_json::to_string(&execution.timeline).map_err(|error| Failure::Machine(format!("error: {error}")))?;
    write(&path, &json)?;
    let mut how: BTreeMap<How, usize> = BTreeMap::new();
    execution.how.iter().for_each(|one| *how.entry(*one).or_default() += 1);
    print(&format!(
        "{}: step of {:.3} ms by `{}` on {}, lower quartile of {} runs ({})\n",
        path.display(),
        execution.timeline.span().to_seconds().get() * 1e3,
        planned.policy,
        device.facts().name,
        args.runs,
        reports::validation::how_words(&how)
    ))
}

fn unusable(path: &Path, why: &str) -> Failure {
    Failure::input(Code::UnusablePlan, format!("`{}` cannot be executed: {why}", path.display()))
}

/// A plan with the scenario that it carries.
pub(super) fn read(path: &Path) -> Result<(Plan, Scenario), Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| unusable(path, &error.to_string()))?;
    let plan: Plan = serde_json::from_str(&text).map_err(|error| unusable(path, &error.to_string()))?;
    if plan.schema != train::plan::SCHEMA {
        let why = format!("its schema is `{}`, expected `{}`", plan.schema, train::plan::SCHEMA);
        return Err(unusable(path, &why));
    }
    let Some(origin) = plan.origin.clone() else {
        return Err(unusable(path, "it does not carry its scenario; `skrull-sim plan` writes plans that do"));
    };
    let overrides = Overrides { set: origin.set, seed: origin.seed };
    let source = Source { path: origin.scenario, text: origin.text };
    let folder = path.parent().map_or_else(Default::default, Path::to_path_buf);
    let checked = kinds::check(source, &folder, &overrides);
    match checked.scenario.as_ref().and_then(|scenario| scenario.training()).cloned() {
        Some(scenario) => Ok((plan, scenario)),
        None => Err(unusable(path, &diagnostic::render(&checked.source, &checked.findings))),
    }
}
