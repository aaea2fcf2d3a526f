//! `sweep`: many points of a scenario, kept as they come; the same command goes on where it was stopped.

use std::io::IsTerminal;
use std::path::Path;

use ::sweep::play::{self, Played, Shard, SweepError, Work};
use ::sweep::{Outcome, Point, Sweep, front, key, report, row};
use input::diagnostic::{Code, Source};
use reports::chart::Ink;
use reports::swept;

use super::{Failure, begin, print};
use crate::cli::{Format, SweepArgs};
use crate::progress;
use crate::{ask, kinds};
use scenario::{self, Overrides};

/// Runs the verb.
pub fn sweep(args: &SweepArgs) -> Result<(), Failure> {
    begin(args.common)?;
    let (source, folder) = scenario::find(&args.file).map_err(|why| Failure::input(Code::NoScenario, why))?;
    let mut findings = Vec::new();
    let sweep = ::sweep::given::read(&source.text, &mut findings);
    let sweep = ask::sound(sweep, source.clone(), findings)?;
    let seed = args.laid.seed.map(|seed| format!("seed={seed}"));
    let set: Vec<String> = args.laid.keys().into_iter().chain(seed).collect();
    if let Some(what) = sweep.given_twice(&set) {
        return Err(Failure::about(&source.path, Code::WrongAxis, what));
    }
    let stem = Path::new(&source.path).file_stem().map_or("sweep".into(), |stem| stem.to_string_lossy());
    let name = if sweep.name.is_empty() { stem.into_owned() } else { sweep.name.clone() };
    let dir = args.out.clone().unwrap_or_else(|| Path::new("out").join(&name));
    let played = played(args, &set, &sweep, (&folder, &dir))?;
    let rows: Vec<row::Row> = played.lines.iter().flat_map(|line| row::rows(line)).collect();
    let counted = played.counted() + &report::wrong(&rows);
    // A part has no front of its own, and parts side by side would write over each other's report.
    let said = match args.shard {
        Some(shard) => format!("{counted}rows: {}\n", dir.join(Shard::file_name(Some(shard))).display()),
        None => shown(&sweep, (source, name), (&rows, played.lines.len()), args.common.format, (&dir, &counted))?,
    };
    print(&said)?;
    report::nothing_ran(&rows, &played, args.shard.is_some()).map_or(Ok(()), |why| {
        let is_wrong = report::is_all_wrong(&rows);
        Err(if is_wrong { Failure::about(&args.file, Code::WrongAxis, why) } else { Failure::Gate(why) })
    })
}

/// Writes the report and the frame of a whole sweep; what the terminal says of it.
fn shown(
    sweep: &Sweep,
    (source, name): (Source, String),
    (rows, n_points): (&[row::Row], usize),
    format: Format,
    (dir, counted): (&Path, &str),
) -> Result<String, Failure> {
    if let Some(unknown) = front::UnknownObjective::of(sweep, rows) {
        return Err(Failure::about(&source.path, Code::WrongAxis, unknown));
    }
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let found = swept::Swept { name, version, text: source.text, ..report::swept(sweep, rows, n_points) };
    let path = dir.join("report.html");
    super::write(&path, &swept::html(&found))?;
    super::write_bytes(&dir.join("points.parquet"), &reports::parquet::render(&report::columns(rows)))?;
    let ink = Ink::of(std::io::stdout().is_terminal(), std::env::var("NO_COLOR").ok().as_deref());
    Ok(match format {
        Format::Json => swept::json(&found),
        Format::Markdown => swept::markdown(&found),
        Format::Table => format!("{}\n{counted}report: {}\n", swept::text(&found, ink), path.display()),
    })
}

/// Plays the points that are not there yet.
fn played(args: &SweepArgs, set: &[String], sweep: &Sweep, (folder, dir): (&Path, &Path)) -> Result<Played, Failure> {
    let beside = folder.join(&sweep.scenario);
    let asked = if beside.is_file() { beside.to_string_lossy().into_owned() } else { sweep.scenario.clone() };
    let (scenario, folder) = scenario::find(&asked).map_err(|why| Failure::input(Code::NoScenario, why))?;
    let scenario = super::imported(scenario, &stacks::Machine::of_overrides(set))?;
    let run = |point: &Point| outcome(&scenario, &folder, set, point);
    let bar = progress::bar(args.common.no_progress, 0, "points");
    let progress = |done: u64, all: Option<u64>| {
        bar.set_length(all.unwrap_or(done));
        bar.set_position(done);
    };
    let work = Work {
        keys: key::Keys::new(env!("CARGO_PKG_VERSION"), &scenario.text, &folder, set),
        run: &run,
        is_stopped: &engine::stop::is_asked,
        progress: &progress,
        shard: args.shard,
        until: args.until,
    };
    let played = play::play(sweep, dir, &work);
    bar.finish_and_clear();
    played.map_err(|error| match error {
        SweepError::Disk(_) => Failure::Machine(format!("error: {error}")),
        other => Failure::about(&args.file, Code::WrongAxis, other),
    })
}

/// What came of a point.
fn outcome(scenario: &Source, folder: &Path, set: &[String], point: &Point) -> Outcome {
    let overrides = Overrides { set: [set, &point.overrides()].concat(), seed: point.seed, ..Overrides::default() };
    let checked = kinds::check(scenario.clone(), folder, &overrides);
    match checked.scenario {
        Some(scenario) => Outcome::Ran(Box::new(scenario.run(&|_| {}))),
        None => Outcome::Wrong(checked.findings),
    }
}
