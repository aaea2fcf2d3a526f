//! `validate --measured`: what a benchmark client saw of an engine, beside what is predicted of the same requests; `--refit` calibrates the profile.
//! Of a training step: what a profiler recorded on one GPU.

use std::fmt::Display;
use std::io::BufRead;
use std::path::Path;

use engine::cost::calibrated::Calibrated;
use engine::cost::profile::Profile;
use engine::verdict::Refused;
use scenario::serving::{Serving, ServingChoice};
use scenario::training::Scenario;
use score::bench::{self, Bench, compare};
use score::profiler::{compare::Compared, step::Measured, text};
use score::{profiler, refit};
use serde_json::Value;

use super::{gates, hold_figures};
use crate::cli::{Format, ValidateArgs};
use crate::commands::calibrate::today;
use crate::commands::{Failure, out_dir, print, write};
use crate::hardware;
use crate::kinds::{Kind, serving::run::replay};
use input::{diagnostic::Code, text_file};

/// Compares, refits where it is asked, and writes `measured.json`, `measured.md` and `profile.toml`.
pub fn validate(args: &ValidateArgs, scenario: &dyn Kind) -> Result<(), Failure> {
    let gates = gates(args, &["ttft_error", "tpot_error"])?;
    let refused = |why: String| Failure::input(Code::WrongKind, format!("`{}`: {why}", scenario.head().name));
    let serving = scenario.serving().ok_or_else(|| refused("only engines that serve have measured runs".to_owned()))?;
    let choice = replay::choice(serving).map_err(|why| refused(why.to_string()))?;
    choice.sound().map_err(|why| unfit(&choice.name, &why))?;
    let mut benches = Vec::new();
    for path in &args.measured {
        let wrong = |why: &dyn Display| Failure::input(Code::WrongTrace, format!("`{}`: {why}", path.display()));
        let file = text_file::stream(path).and_then(text_file::unpacked).map_err(|why| wrong(&why))?;
        benches.extend(bench::read(file).map_err(|why| wrong(&why))?);
    }
    let mut last = compared(serving, choice, &benches, None);
    let mut text = format!("policy `{}`\n\n{}", choice.name, compare::markdown(&last));
    let dir = out_dir(&args.scenario, &scenario.head().name)?;
    let mut document = serde_json::json!({ "schema": "skrull-sim/measured/1", "settings": compare::json(&last) });
    if args.refit {
        let refitted = refitted(serving, choice, &benches, &dir)?;
        text += &format!("Calibrated on these runs ({}):\n\n{}", refitted.1, compare::markdown(&refitted.0));
        document["calibrated"] = compare::json(&refitted.0);
        last = refitted.0;
    }
    show(args, &dir, text, &document)?;
    let worst = |key: &str| {
        let terms = last.iter().flat_map(|found| &found.terms).filter(|term| term.key == key);
        terms.map(|term| term.error().abs()).fold(f64::NAN, f64::max)
    };
    hold_figures(&gates, &|gate| match gate.metric() {
        "ttft_error" => worst("ttft_s.mean"),
        "tpot_error" => worst("tpot_s.mean"),
        _ => f64::NAN,
    })
}

/// Sets every trace of a profiler beside the predicted step of its rank, refits where it is asked, and writes `measured.json` and `measured.md`.
pub fn recorded(args: &ValidateArgs, scenario: &Scenario) -> Result<(), Failure> {
    let (gates, policy) = (gates(args, &["step_error"])?, &scenario.head.baseline);
    let traces = args.measured.iter().map(|path| trace(path)).collect::<Result<Vec<_>, Failure>>()?;
    let mut found = beside(scenario, &traces)?;
    let (mut words, mut document) = (text::page(policy, &found), text::document(policy, &found));
    let dir = out_dir(&args.scenario, &scenario.head.name)?;
    if args.refit {
        let (profile, chosen) = of_steps(scenario, &traces)?;
        let path = dir.join("profile.toml");
        write(&path, &profile.to_toml())?;
        found = beside(&Scenario { profile: Some(profile), of_card: None, ..scenario.clone() }, &traces)?;
        words += &format!("Calibrated on these steps, {}: {chosen}\n{}", path.display(), text::page(policy, &found));
        document["calibrated"] = text::document(policy, &found)["files"].take();
    }
    show(args, &dir, words, &document)?;
    hold_figures(&gates, &|gate| if gate.metric() == "step_error" { profiler::worst(&found) } else { f64::NAN })
}

/// A trace of a profiler, under its name.
fn trace(path: &Path) -> Result<(String, Measured), Failure> {
    let wrong = |why: &dyn Display| Failure::input(Code::WrongTrace, format!("`{}`: {why}", path.display()));
    let mut file = text_file::stream(path).map_err(|why| wrong(&why))?;
    let recorded = if profiler::nsys::is_report(file.fill_buf().map_err(|why| wrong(&why))?) {
        profiler::nsys::read(file)
    } else {
        profiler::read(text_file::unpacked(file).map_err(|why| wrong(&why))?)
    };
    let measured = recorded.and_then(profiler::step::measured).map_err(|why| wrong(&why))?;
    Ok((path.display().to_string(), measured))
}

/// Traces beside the step that a scenario's baseline predicts.
fn beside(scenario: &Scenario, traces: &[(String, Measured)]) -> Result<Vec<(String, Compared)>, Failure> {
    let (cost, policy) = (scenario.costs(), &scenario.head.baseline);
    let choice = scenario.policies.iter().find(|choice| choice.name == *policy).expect("a baseline is one of them");
    let planned = hardware::plan(scenario, choice, cost.as_ref()).map_err(|why| unfit(policy, &why))?;
    let (timeline, ends) = hardware::predict(&planned, cost.as_ref()).map_err(|why| unfit(policy, &why))?;
    let (asked, step) = ((&planned.problem, &planned.graph), (&timeline, ends));
    let compared = |of: &Measured| profiler::compared(of.clone(), asked, step, cost.as_ref());
    Ok(traces.iter().map(|(name, of)| (name.clone(), compared(of))).collect())
}

/// Nothing is predicted of a policy.
fn unfit(policy: &str, why: &Refused) -> Failure {
    Failure::Gate(format!("error: policy `{policy}`: {why}"))
}

/// The scenario's profile with factors of recorded steps, and what was chosen in words. A file that names the profile has no other constants of the
/// card, so factors are of what the profile alone predicts.
fn of_steps(scenario: &Scenario, traces: &[(String, Measured)]) -> Result<(Profile, String), Failure> {
    let profile = of_card(scenario.profile.as_ref())?;
    let plain = Some(Profile { calibrated: None, ..profile.clone() });
    let own = beside(&Scenario { profile: plain, of_card: None, ..scenario.clone() }, traces)?;
    Ok(profiler::refit::calibrated(profile, &own, today()))
}

/// The profile that a refit begins with.
fn of_card(profile: Option<&Profile>) -> Result<&Profile, Failure> {
    let what = "`--refit` needs a profile, and the scenario has none of its cluster's GPU";
    profile.ok_or_else(|| Failure::input(Code::WrongProfile, what))
}

/// Writes `measured.md` and `measured.json` and prints one of them.
fn show(args: &ValidateArgs, dir: &Path, words: String, document: &Value) -> Result<(), Failure> {
    let document = format!("{document:#}\n");
    write(&dir.join("measured.md"), &words)?;
    write(&dir.join("measured.json"), &document)?;
    print(&if args.scenario.common.format == Format::Json { document } else { words })
}

/// Every setting beside its prediction.
fn compared(
    serving: &Serving,
    choice: &ServingChoice,
    benches: &[Bench],
    found: Option<&Calibrated>,
) -> Vec<compare::Compared> {
    let of_setting = |runs: Vec<&Bench>| {
        let row = replay::row_of(serving, choice, runs[0], found);
        compare::compare(&runs, &row.metrics, &row.interval)
    };
    compare::settings(benches).into_iter().map(of_setting).collect()
}

/// The profile calibrated on all runs, written; how the runs compare with it, and what was chosen in words.
fn refitted(
    serving: &Serving,
    choice: &ServingChoice,
    benches: &[Bench],
    dir: &Path,
) -> Result<(Vec<compare::Compared>, String), Failure> {
    let profile = of_card(serving.profile.as_ref())?;
    let start = &serving.engine.start;
    let play = |[compute, memory]: [f64; 2], starts: &[f64]| {
        let ratios = |start: &f64| {
            let found = Calibrated { compute, memory, ..Calibrated::plain(*start) };
            benches.iter().map(|bench| bench.ratios(&replay::figures_of(serving, choice, bench, &found))).collect()
        };
        starts.iter().map(ratios).collect()
    };
    let mut found = refit::choose(start.mean.get(), !start.is_written, &play);
    found.date = today();
    found.on = benches.iter().map(|bench| format!("{}: {}", bench.client, bench.words())).collect();
    let path = dir.join("profile.toml");
    write(&path, &profile.calibrated(found.clone()).to_toml())?;
    Ok((compared(serving, choice, benches, Some(&found)), format!("{}; {}", found.words(), path.display())))
}
