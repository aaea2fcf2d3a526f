//! `capacity`: what a fleet costs that keeps the limits of a serving scenario, as a report.

use reports::capacity::{Capacity, html, markdown};

use super::{Failure, begin, load, out_dir, print, write};
use crate::ask;
use crate::cli::{Format, ScenarioArgs};
use crate::kinds::{Kind, Planned};
use crate::progress;
use input::diagnostic::Code;
use scenario::{self, Overrides};

/// Runs the verb.
pub fn capacity(args: &ScenarioArgs) -> Result<(), Failure> {
    begin(args.common)?;
    let job = load(args, false)?;
    let line = progress::line(args.common.no_progress, "trying fleets");
    let found = job.capacity();
    line.finish_and_clear();
    let found = found.ok_or_else(|| nothing_asked(&job.head().origin.scenario))?;
    let dir = out_dir(args, &job.head().name)?;
    let json = serde_json::to_string_pretty(&found)?;
    write(&dir.join("capacity.json"), &(json.clone() + "\n"))?;
    write(&dir.join("capacity.md"), &markdown(&found))?;
    write(&dir.join("capacity.html"), &html(&found))?;
    let plan = dir.join("plan.json");
    // Where nothing is chosen, the plan of an earlier answer would look like this one's.
    if plan.exists() {
        let failed = |error| Failure::Machine(format!("error: cannot remove `{}`: {error}", plan.display()));
        std::fs::remove_file(&plan).map_err(failed)?;
    }
    print(&match args.common.format {
        Format::Json => json + "\n",
        Format::Markdown => markdown(&found),
        Format::Table => {
            let rows = reports::capacity::text(&found);
            format!("{rows}\nreport: {}\n", dir.join("capacity.html").display())
        }
    })?;
    if let Some(planned) = plan_of(job.as_ref(), &found).transpose()? {
        write(&plan, &format!("{:#}\n", planned.json))?;
    }
    match found.chosen {
        Some(_) => Ok(()),
        None => Err(Failure::Gate("error: no fleet that was tried meets the limits".to_owned())),
    }
}

/// The chosen fleet as a deployment; `None` where none is chosen.
fn plan_of(job: &dyn Kind, found: &Capacity) -> Option<Result<Planned, Failure>> {
    let name = &found.points[found.chosen?].name;
    let refused = |why| Failure::Gate(format!("error: fleet `{name}` has no plan: {why}"));
    Some(job.capacity_plan(name)?.map_err(refused))
}

/// The report of a scenario with keys laid over it.
///
/// # Errors
/// When the scenario is wrong or asks nothing about capacity.
pub fn capacity_of(name: &str, set: &[&str]) -> Result<Capacity, Failure> {
    let set: Vec<String> = set.iter().map(|text| (*text).to_owned()).collect();
    let (source, folder) = scenario::find(name).map_err(|why| Failure::input(Code::NoScenario, why))?;
    let job = ask::scenario(source, &folder, &Overrides { set, ..Overrides::default() }).map_err(Failure::Findings)?;
    job.capacity().ok_or_else(|| nothing_asked(name))
}

fn nothing_asked(name: &str) -> Failure {
    let help =
        "a scenario of kind `serving` with a section `[capacity]` does; `skrull-sim show serving/capacity` is one";
    Failure::about(name, Code::NoQuestion, format!("nothing is asked about capacity\n  = {help}"))
}
