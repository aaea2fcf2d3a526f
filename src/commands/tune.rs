//! `tune`: which settings of an engine and a fleet are the best within the limits.

use reports::tuned::{Unknown, markdown, text};

use super::{Failure, begin, load, out_dir, print, write, wrong};
use crate::cli::{Format, TuneArgs};
use crate::progress;
use input::diagnostic::{Code, meant};

/// What is wrong with a scenario that lists nothing.
const NOTHING_ASKED: &str = "no settings are listed\n  = a scenario of kind `serving` with a section `[tune]` does; `skrull-sim show serving/tune` is one, and `--set tune.tp=[1,2,4]` makes one of any of that kind";

/// Runs the verb.
pub fn tune(args: &TuneArgs) -> Result<(), Failure> {
    begin(args.scenario.common)?;
    let job = load(&args.scenario, false)?;
    let line = progress::line(args.scenario.common.no_progress, "serving settings");
    let found = job.tuned();
    line.finish_and_clear();
    let found = found.ok_or_else(|| wrong(job.as_ref(), Code::NoQuestion, NOTHING_ASKED))?;
    if let Some(unknown) = &found.unknown {
        return Err(wrong(job.as_ref(), Code::WrongExpectation, words_of(unknown)));
    }
    let dir = out_dir(&args.scenario, &job.head().name)?;
    let json = serde_json::to_string_pretty(&found)? + "\n";
    write(&dir.join("tuned.json"), &json)?;
    write(&dir.join("tuned.md"), &markdown(&found, args.top))?;
    print(&match args.scenario.common.format {
        Format::Json => json,
        Format::Markdown => markdown(&found, args.top),
        Format::Table => {
            format!("{}\nall that were served: {}\n", text(&found, args.top), dir.join("tuned.json").display())
        }
    })?;
    found.failure().map_or(Ok(()), |why| Err(Failure::Gate(format!("error: {why}"))))
}

/// What is wrong with a metric that no setting has.
fn words_of(Unknown { metric, why, known }: &Unknown) -> String {
    if !why.is_empty() {
        return format!("no setting has the metric `{metric}`\n  = {why}");
    }
    let near = meant(metric, known.iter().map(String::as_str));
    format!("unknown metric `{metric}`{near}\n  = results of this scenario have {}", known.join(", "))
}
