//! `plan`: only decide, and write the plan.

use super::{Failure, begin, load, out_dir, print, write};
use crate::ask;
use crate::cli::{Format, PlanArgs};
use crate::kinds::{self, Kind, Planned};
use crate::progress;
use input::diagnostic::{Code, meant};

/// Runs the verb.
pub fn plan(args: &PlanArgs) -> Result<(), Failure> {
    begin(args.scenario.common)?;
    let scenario = load(&args.scenario)?;
    let line = progress::line(args.scenario.common.no_progress, "planning; Ctrl-C takes the best plan so far");
    let planned = decided(scenario.as_ref(), args.policy.as_deref());
    line.finish_and_clear();
    let (planned, file, how) = planned?;
    let path = out_dir(&args.scenario, &scenario.head().name)?.join("plan.json");
    write(&path, &file)?;
    let words = planned.words.strip_suffix('\n').unwrap_or(&planned.words);
    let gap = if words.is_empty() { "" } else { "\n" };
    let text = format!("{words}{gap}{}: {how}\n", path.display());
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

/// The plan of a policy, or of the last one: what it is in words, its file, and how it was made.
pub fn decided(scenario: &dyn Kind, policy: Option<&str>) -> Result<(Planned, String, String), Failure> {
    let (head, choice) = (scenario.head(), chosen(policy, &scenario.choices())?);
    let Some(planned) = scenario.plan(choice) else {
        let what = format!("there is nothing to decide in `{}`\n  = `skrull-sim run` takes every kind", head.name);
        return Err(Failure::input(Code::WrongKind, what));
    };
    let planned = planned.map_err(|why| Failure::Gate(format!("error: policy `{choice}` has no plan: {why}")))?;
    let planned = planned.with(serde_json::json!({ "origin": kinds::origin(head) }));
    let file = planned.file.clone().unwrap_or_else(|| format!("{:#}\n", planned.json));
    let how = planned.how.clone().unwrap_or_else(|| format!("by `{choice}`"));
    Ok((planned, file, how))
}

/// The policy that was asked for, or the last one.
fn chosen<'a>(policy: Option<&str>, names: &[&'a str]) -> Result<&'a str, Failure> {
    let found = policy.or(names.last().copied()).unwrap_or_default();
    names.iter().copied().find(|name| *name == found).ok_or_else(|| {
        let near = meant(found, names.iter().copied());
        let known = names.join(", ");
        Failure::input(Code::UnknownPolicy, format!("the scenario has no policy `{found}`{near}\n  = it has {known}"))
    })
}
