//! `run`: simulate every policy of a scenario, print a table, write the report.

use std::io::{IsTerminal, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use reports::{Picture, RunResult};

use super::{Failure, Loaded, load_any, out_dir, print, threads, write};
use crate::cli::{Format, RunArgs};
use crate::diagnostic::Code;
use crate::kinds::Job;
use crate::pipeline::{self, Run};
use crate::scenario::Scenario;
use crate::scenario::expect::{self, Expectation};

/// Runs the verb.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    threads(args.scenario.jobs)?;
    let scenario = match load_any(&args.scenario)? {
        Loaded::Training(scenario) => *scenario,
        Loaded::Job(_) if args.strict_hull => {
            let what = "`--strict-hull` is about training steps, and the scenario is of another kind";
            return Err(Failure::input(Code::WrongKind, what));
        }
        Loaded::Job(job) => return run_job(args, job.as_ref()),
    };
    let bar = progress(args, scenario.policies.len());
    let run = pipeline::run(&scenario, &|name| {
        bar.set_message(name.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    hull(args, &scenario, &run)?;
    let dir = out_dir(&args.scenario, &scenario.name)?;
    save(&scenario, &run, &dir)?;
    show(args, &run.result, &dir)?;
    judge(args, &scenario.expectations, &run.result)
}

/// Runs a scenario of another kind than training.
fn run_job(args: &RunArgs, job: &dyn Job) -> Result<(), Failure> {
    let bar = progress(args, job.head().choices.len());
    let result = job.run(&|name| {
        bar.set_message(name.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    let dir = out_dir(&args.scenario, job.head().name)?;
    write(&dir.join("result.json"), &json(&result)?)?;
    write(&dir.join("report.html"), &reports::html::render(&result, &[]))?;
    show(args, &result, &dir)?;
    judge(args, job.head().expectations, &result)
}

fn json(result: &RunResult) -> Result<String, Failure> {
    reports::json::render(result).map_err(|error| Failure::Machine(format!("error: {error}")))
}

/// Prints the result in the format that was asked for.
fn show(args: &RunArgs, result: &RunResult, dir: &Path) -> Result<(), Failure> {
    if args.quiet {
        return Ok(());
    }
    print(&match args.format {
        Format::Table => {
            format!("{}\nreport: {}\n", reports::table::render(result), dir.join("report.html").display())
        }
        Format::Json => json(result)?,
        Format::Markdown => reports::markdown::render(result),
    })
}

/// Fails when an expectation is missed or nothing was feasible.
fn judge(args: &RunArgs, expectations: &[Expectation], result: &RunResult) -> Result<(), Failure> {
    let misses = if args.check { expect::misses(expectations, result) } else { Vec::new() };
    if !misses.is_empty() {
        return Err(Failure::Gate(format!(
            "error: expectations of `{}` failed\n  {}",
            result.scenario,
            misses.join("\n  ")
        )));
    }
    if result.results.iter().all(|row| row.status != "ok") {
        return Err(Failure::Gate("error: no policy of the scenario was feasible".to_owned()));
    }
    Ok(())
}

fn progress(args: &RunArgs, n: usize) -> ProgressBar {
    if args.quiet || args.no_progress || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a fixed template");
    ProgressBar::new(n as u64).with_style(style)
}

/// Says what lies outside the measured hull; an error when the scenario is strict.
fn hull(args: &RunArgs, scenario: &Scenario, run: &Run) -> Result<(), Failure> {
    let facts = &run.result.cost_model;
    if facts.outside_hull_ratio < 0.005 {
        return Ok(());
    }
    let share = format!(
        "{:.0} % of compute time comes from shapes outside the measured hull ({})",
        facts.outside_hull_ratio * 100.0,
        facts.outside_hull.join(", ")
    );
    if args.strict_hull || scenario.strict_hull {
        return Err(Failure::input(Code::OutsideHull, share));
    }
    if !args.quiet {
        let code = Code::OutsideHull;
        let help = "the interval is wide there; `--strict-hull` makes this an error";
        // Standard error may be closed; the report says it too.
        let _ = writeln!(std::io::stderr(), "warning[{code}]: {share}\n  = {help}\n");
    }
    Ok(())
}

fn save(scenario: &Scenario, run: &Run, dir: &Path) -> Result<(), Failure> {
    let batch = scenario.problem.workload.batch_size;
    let pictures: Vec<Picture<'_>> = run
        .pictures
        .iter()
        .map(|(policy, played)| Picture {
            policy,
            graph: &played.graph,
            timeline: &played.timeline,
            lengths: &scenario.problem.workload.lengths[..batch],
            device_memory_bytes: scenario.problem.cluster.gpu.memory.0,
        })
        .collect();
    write(&dir.join("result.json"), &json(&run.result)?)?;
    write(&dir.join("report.html"), &reports::html::render(&run.result, &pictures))?;
    for picture in &pictures {
        write(&dir.join(format!("trace-{}.json", picture.policy)), &reports::trace::render(picture))?;
    }
    Ok(())
}
