//! `plan`: only decide, and write the plan.

use super::given::decided;
use super::{Failure, begin, load, out_dir, print, write};
use crate::ask;
use crate::cli::{Format, PlanArgs};
use crate::progress;

/// Runs the verb.
pub fn plan(args: &PlanArgs) -> Result<(), Failure> {
    begin(args.scenario.common)?;
    let scenario = load(&args.scenario, false)?;
    let line = progress::line(args.scenario.common.no_progress, "planning; Ctrl-C takes the best plan so far");
    let planned = decided(scenario.as_ref(), args.policy.as_deref());
    line.finish_and_clear();
    let (planned, file, how) = planned?;
    let path = out_dir(&args.scenario, &scenario.head().name)?.join("plan.json");
    write(&path, &file)?;
    let words = reports::lines::paged(&planned.words);
    let text = format!("{words}{}: {how}\n", path.display());
    let format = args.scenario.common.format;
    print(&match format {
        Format::Json => file,
        Format::Markdown => format!("```\n{text}```\n"),
        Format::Table => text,
    })?;
    let Some(target) = &args.export else { return Ok(()) };
    let export = || super::export::files(&path, target, path.parent().expect("it lies in a folder"));
    // Names of files would stand behind a document.
    if format == Format::Table { export() } else { ask::kept(export).0 }
}
