//! `plan`: only decide, and write the plan.

use super::{Failure, begin, load, out_dir, print, write};
use crate::cli::PlanArgs;
use crate::kinds;
use crate::progress;
use input::diagnostic::{Code, meant};

/// Runs the verb.
pub fn plan(args: &PlanArgs) -> Result<(), Failure> {
    begin(args.scenario.effort)?;
    let scenario = load(&args.scenario)?;
    let head = scenario.head();
    let choice = chosen(args, &scenario.choices())?;
    let line = progress::line(args.scenario.effort.no_progress, "planning; Ctrl-C takes the best plan so far");
    let planned = scenario.plan(choice);
    line.finish_and_clear();
    let Some(planned) = planned else {
        let what = format!("there is nothing to decide in `{}`\n  = `skrull-sim run` takes every kind", head.name);
        return Err(Failure::input(Code::WrongKind, what));
    };
    let planned = planned.map_err(|why| Failure::Gate(format!("error: policy `{choice}` has no plan: {why}")))?;
    let planned = planned.with(serde_json::json!({ "origin": kinds::origin(head) }));
    let path = out_dir(&args.scenario, &head.name)?.join("plan.json");
    write(&path, &planned.file.unwrap_or_else(|| format!("{:#}\n", planned.json)))?;
    let how = planned.how.unwrap_or_else(|| format!("by `{choice}`"));
    let words = planned.words.strip_suffix('\n').unwrap_or(&planned.words);
    let gap = if words.is_empty() { "" } else { "\n" };
    print(&format!("{words}{gap}{}: {how}\n", path.display()))?;
    let Some(target) = &args.export else { return Ok(()) };
    super::export::files(&path, target, path.parent().expect("it lies in a folder"))
}

/// The policy that was asked for, or the last one.
fn chosen<'a>(args: &PlanArgs, names: &[&'a str]) -> Result<&'a str, Failure> {
    let found = args.policy.as_deref().or(names.last().copied()).unwrap_or_default();
    names.iter().copied().find(|name| *name == found).ok_or_else(|| {
        let near = meant(found, names.iter().copied());
        let known = names.join(", ");
        Failure::input(Code::UnknownPolicy, format!("the scenario has no policy `{found}`{near}\n  = it has {known}"))
    })
}
