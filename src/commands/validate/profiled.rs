//! `validate --measured` of a training step: what a profiler recorded on one GPU, beside the prediction of that rank.

use std::fmt::Display;
use std::io::BufReader;

use input::diagnostic::Code;
use input::text_file;
use scenario::training::Scenario;
use score::profiler::{self, compare, step, text};

use super::{gates, hold_figures};
use crate::cli::{Format, ValidateArgs};
use crate::commands::{Failure, out_dir, print, write};
use crate::hardware;
use crate::kinds::training::run as pipeline;

/// Compares every file and writes `measured.json` and `measured.md`.
pub fn validate(args: &ValidateArgs, scenario: &Scenario) -> Result<(), Failure> {
    let gates = gates(&args.gate)?;
    if args.refit {
        let what = "`--refit` calibrates on runs of engines that serve; a recorded step has no factor to fit yet";
        return Err(Failure::input(Code::WrongKind, what));
    }
    let cost = pipeline::cost_model(scenario);
    let wanted = &scenario.head.baseline;
    let (policy, planned) = hardware::plans(scenario, cost.as_ref())
        .into_iter()
        .find(|(policy, _)| policy == wanted)
        .expect("a baseline is one of the policies");
    let refused = |why: engine::verdict::Refused| Failure::Gate(format!("error: policy `{policy}`: {}", why.why));
    let planned = planned.map_err(refused)?;
    let (timeline, ends) = hardware::predict(&planned, cost.as_ref()).map_err(refused)?;
    let (mut words, mut files, mut worst) = (format!("policy `{policy}`\n\n"), Vec::new(), f64::NAN);
    for path in &args.measured {
        let wrong = |why: &dyn Display| Failure::input(Code::WrongTrace, format!("`{}`: {why}", path.display()));
        let file = text_file::open(path).map_err(|why| wrong(&why))?;
        let recorded = profiler::read(BufReader::with_capacity(1 << 20, file)).map_err(|why| wrong(&why))?;
        let measured = step::measured(recorded).map_err(|why| wrong(&why))?;
        let asked = (&planned.problem, &planned.graph);
        let predicted = compare::predicted(asked, (&timeline, ends), cost.as_ref(), measured.rank.unwrap_or_default());
        let found = compare::compare(measured, predicted, planned.problem.layout.n_ranks());
        words += &format!("## {}\n\n{}", path.display(), text::markdown(&found));
        worst = f64::max(worst, found.error().abs());
        files.push(serde_json::json!({ "file": path.display().to_string(), "found": text::json(&found) }));
    }
    let document = serde_json::json!({ "schema": "skrull-sim/recorded/1", "policy": policy, "files": files });
    let dir = out_dir(&args.scenario, &scenario.head.name)?;
    write(&dir.join("measured.md"), &words)?;
    write(&dir.join("measured.json"), &format!("{document:#}\n"))?;
    print(&if args.format == Format::Json { format!("{document:#}\n") } else { words })?;
    hold_figures(&gates, &|gate| if gate.metric() == "step_error" { worst } else { f64::NAN })
}
