//! `run`: simulate every policy of a scenario, print a table, write the report.

use std::path::{Path, PathBuf};

use reports::expect::{self, Missed};
use reports::{RunResult, columns, frame, parquet};

use super::{Failure, begin, dir_of, load, out_dir, outputs, print, put, write, write_bytes, wrong};
use crate::ask;
use crate::cli::{Format, RunArgs, is_stdout};
use crate::kinds::{Frames, Kind, Run};
use crate::progress;
use input::diagnostic::{Code, nearest};

/// Runs the verb.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    begin(args.scenario.common)?;
    let scenario = load(&args.scenario, false)?;
    if args.strict_hull && scenario.strict_hull().is_none() {
        let what = "`--strict-hull` is about training steps and engines by operations, and the scenario has neither";
        return Err(wrong(scenario.as_ref(), Code::WrongKind, what));
    }
    let head = scenario.head();
    before(args, scenario.as_ref())?;
    let bar = progress::bar(args.scenario.common.no_progress, scenario.choices().len(), "policies");
    let mut run = scenario.draw(&|name| {
        bar.set_message(name.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    run.result.measured.date = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    hull(args, scenario.as_ref(), &run.result)?;
    let dir = out_dir(&args.scenario, &head.name)?;
    save(&run, &dir)?;
    save_frames(args, scenario.as_ref())?;
    save_tasks(args, scenario.as_ref(), &run)?;
    show(args, &run.result, &dir)?;
    judge(args, scenario.as_ref(), &run.result)
}

/// Holds before the run that there will be what is asked for, and that each output has a file of its own.
fn before(args: &RunArgs, scenario: &dyn Kind) -> Result<(), Failure> {
    if (args.requests.is_some() || args.series.is_some()) && !scenario.plays_requests() {
        return Err(wrong(scenario, Code::WrongKind, "`--requests` and `--series` are about requests that are played"));
    }
    let dir = dir_of(&args.scenario, &scenario.head().name);
    let own = ["result.json", "report.html"].map(|name| dir.join(name));
    let asked = [("`--requests`", &args.requests), ("`--series`", &args.series), ("`--tasks`", &args.tasks)];
    let asked = asked.into_iter().filter_map(|(name, path)| Some((name, path.as_deref()?)));
    let own = ["`result.json`", "`report.html`"].into_iter().zip(own.iter().map(PathBuf::as_path));
    outputs::apart(&own.chain(asked).collect::<Vec<_>>(), args.scenario.common.format)
}

/// Prints the result in the format that was asked for.
fn show(args: &RunArgs, result: &RunResult, dir: &Path) -> Result<(), Failure> {
    if is_stdout([&args.requests, &args.series]) {
        return Ok(());
    }
    print(&match args.scenario.common.format {
        Format::Table => {
            format!("{}\nreport: {}\n", reports::table::render_at(result, columns()), dir.join("report.html").display())
        }
        Format::Json => reports::json::render(result)?,
        Format::Markdown => reports::markdown::render(result),
    })
}

/// Columns of the terminal; as wide as a table gets where there is none.
fn columns() -> usize {
    terminal_size::terminal_size().map_or(usize::MAX, |(width, _)| usize::from(width.0))
}

/// Fails when an expectation is missed or nothing was feasible.
fn judge(args: &RunArgs, scenario: &dyn Kind, result: &RunResult) -> Result<(), Failure> {
    let faults = reports::sound::faults(result);
    if !faults.is_empty() {
        let all = faults.join("\n  ");
        return Err(Failure::Machine(format!("error: a defect of skrull-sim, do not trust this result\n  {all}")));
    }
    let expected = &scenario.head().expectations;
    let held = if args.check { expect::hold(expected, result, |found, names| nearest(found, names)) } else { Ok(()) };
    held.map_err(|missed| match missed {
        Missed::Unknown(what) => wrong(scenario, Code::WrongExpectation, what),
        Missed::Figures { .. } => Failure::Gate(missed.to_string()),
    })?;
    let nothing = reports::sound::without_figures(result);
    nothing.map_or(Ok(()), |why| Err(Failure::Gate(format!("error: {why}"))))
}

/// Says what lies outside the measured hull; an error when the scenario is strict.
fn hull(args: &RunArgs, scenario: &dyn Kind, result: &RunResult) -> Result<(), Failure> {
    let Some(is_strict) = scenario.strict_hull() else { return Ok(()) };
    let facts = &result.cost_model;
    let Some(share) = facts.outside_words() else { return Ok(()) };
    if args.strict_hull || is_strict {
        return Err(wrong(scenario, Code::OutsideHull, share));
    }
    let (code, path) = (Code::OutsideHull, &scenario.head().origin.scenario);
    let help = "the interval is wide there; `--strict-hull` makes this an error";
    // The report says it too.
    ask::tell(&format!("warning[{code}]: {share}\n --> {path}\n  = {help}\n\n"));
    Ok(())
}

fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "parquet")
}

/// Writes the tasks of the steps that are drawn.
fn save_tasks(args: &RunArgs, scenario: &dyn Kind, run: &Run) -> Result<(), Failure> {
    let Some(path) = &args.tasks else { return Ok(()) };
    if run.pictures.is_empty() {
        return Err(wrong(scenario, Code::WrongKind, "`--tasks` is about steps that are simulated, and none is"));
    }
    write_bytes(path, &parquet::render(&columns::of_tasks(&run.pictures())))
}

/// Writes the tables that were asked for; choices that play no requests have none.
fn save_frames(args: &RunArgs, scenario: &dyn Kind) -> Result<(), Failure> {
    if args.requests.is_none() && args.series.is_none() {
        return Ok(());
    }
    let served: Vec<(&str, Frames)> =
        scenario.choices().into_iter().filter_map(|name| Some((name, scenario.served(name)?))).collect();
    let (requests, series): (Vec<_>, Vec<_>) =
        served.into_iter().map(|(name, frames)| ((name, frames.requests), (name, frames.series))).unzip();
    for (path, frames) in [(&args.requests, requests), (&args.series, series)] {
        let Some(path) = path else { continue };
        let mut bytes = Vec::new();
        if is_parquet(path) {
            bytes = parquet::render(&columns::of_frames(&frames));
        } else {
            frame::csv(&frames, &mut bytes).map_err(|error| Failure::Machine(format!("error: {error}")))?;
        }
        put(path, &bytes)?;
    }
    Ok(())
}

fn save(run: &Run, dir: &Path) -> Result<(), Failure> {
    let pictures = run.pictures();
    write(&dir.join("result.json"), &reports::json::render(&run.result)?)?;
    write(&dir.join("report.html"), &reports::html::render(&run.result, &pictures, &run.curves))?;
    for picture in &pictures {
        write(&dir.join(reports::trace::file_name(picture)), &reports::trace::render(picture))?;
    }
    Ok(())
}
