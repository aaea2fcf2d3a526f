//! `execute`: run a plan on real hardware. The plan carries its scenario, so the file is all that the machine needs.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use engine::validation::How;

use super::calibrate::open;
use super::{Failure, given, make, print, write};
use crate::cli::ExecuteArgs;
use crate::hardware;
use input::diagnostic::Code;
use scenario::Overrides;

/// Runs the verb.
pub fn execute(args: &ExecuteArgs) -> Result<(), Failure> {
    let none = Overrides::default();
    let unusable = |why: &dyn Display| unusable(&args.plan, why);
    let text = given::plan_of(&args.plan, &unusable)?;
    let (plan, scenario) = given::read(&text, &args.plan, &none).map_err(|why| unusable(&why))?;
    let planned = hardware::of_file(&scenario, plan).map_err(|why| unusable(&why))?;
    let mut device = open(&args.device)?;
    let cost = scenario.costs();
    let execution = hardware::run(&planned, device.as_mut(), cost.as_ref(), args.runs)
        .map_err(|error| Failure::Machine(format!("error: {error}")))?;
    let dir = args.out.clone().unwrap_or_else(|| args.plan.parent().map_or_else(Default::default, Path::to_path_buf));
    make(&dir)?;
    let path = dir.join("timeline.json");
    write(&path, &serde_json::to_string(&execution.timeline)?)?;
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

fn unusable(path: &Path, why: &dyn Display) -> Failure {
    Failure::input(Code::UnusablePlan, format!("`{}` cannot be executed: {why}", path.display()))
}
