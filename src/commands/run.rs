//! `run`: simulate every policy of a scenario, print a table, write the report.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use reports::Picture;

use super::{Failure, load, out_dir, print, threads, write};
use crate::cli::{Format, RunArgs};
use crate::pipeline::{self, Run};
use crate::scenario::{Scenario, expect};

/// Runs the verb.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    threads(args.scenario.jobs)?;
    let scenario = load(&args.scenario)?;
    let bar = progress(args, scenario.policies.len());
    let run = pipeline::run(&scenario, &|name| {
        bar.set_message(name.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    hull(&scenario, &run, args.quiet)?;
    let dir = out_dir(&args.scenario, &scenario.name)?;
    let json = reports::json::render(&run.result).map_err(|error| Failure::Machine(format!("error: {error}")))?;
    save(&scenario, &run, &dir, &json)?;
    if !args.quiet {
        print(&match args.format {
            Format::Table => {
                format!("{}\nreport: {}\n", reports::table::render(&run.result), dir.join("report.html").display())
            }
            Format::Json => json,
            Format::Markdown => reports::markdown::render(&run.result),
        })?;
    }
    let misses = if args.check { expect::misses(&scenario.expectations, &run.result) } else { Vec::new() };
    if !misses.is_empty() {
        return Err(Failure::Gate(format!(
            "error: expectations of `{}` failed\n  {}",
            scenario.name,
            misses.join("\n  ")
        )));
    }
    if run.result.results.iter().all(|row| row.status != "ok") {
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
fn hull(scenario: &Scenario, run: &Run, quiet: bool) -> Result<(), Failure> {
    let facts = &run.result.cost_model;
    if facts.outside_hull_ratio < 0.005 {
        return Ok(());
    }
    let share = format!(
        "{:.0} % of compute time comes from shapes outside the measured hull ({})",
        facts.outside_hull_ratio * 100.0,
        facts.outside_hull.join(", ")
    );
    if scenario.strict_hull {
        return Err(Failure::Input(format!("error[S060]: {share}")));
    }
    if !quiet {
        eprintln!("warning[S060]: {share}\n  = the interval is wide there; `--strict-hull` makes this an error\n");
    }
    Ok(())
}

fn save(scenario: &Scenario, run: &Run, dir: &std::path::Path, json: &str) -> Result<(), Failure> {
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
    write(&dir.join("result.json"), json)?;
    write(&dir.join("report.html"), &reports::html::render(&run.result, &pictures))?;
    for picture in &pictures {
        write(&dir.join(format!("trace-{}.json", picture.policy)), &reports::trace::render(picture))?;
    }
    Ok(())
}
