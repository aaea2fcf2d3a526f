//! `score`: measured runs of serving or steps of training, predicted over measured.

use std::io::IsTerminal;

use calibrate::profiles;
use engine::CostModel;
use engine::cost::profiled::Profiled;
use hw::Cluster;
use indicatif::{ProgressBar, ProgressStyle};
use score::form::Form;
use score::select::Selection;
use score::table::{Fault, listed};
use score::training::{self, tables};
use score::{run, summary};

use super::{Failure, print, threads};
use crate::cli::ScoreArgs;
use crate::costs::cost_model;
use input::diagnostic::Code;

/// Letters of a line where standard output is no terminal.
const WIDTH: u16 = 100;

/// Runs the verb.
pub fn score(args: &ScoreArgs) -> Result<(), Failure> {
    threads(args.jobs)?;
    let wrong = |error: String| Failure::input(Code::WrongTables, format!("{}: {error}", args.table.display()));
    let bytes = std::fs::read(&args.table).map_err(|error| wrong(error.to_string()))?;
    let table = tables::unpacked(bytes).map_err(wrong)?;
    let width = usize::from(terminal_size::terminal_size().map_or(WIDTH, |(width, _)| width.0));
    let form = Form::of_word(&args.format);
    let path = args.table.display().to_string();
    let broken = |faults: Vec<Fault>| Failure::input(Code::WrongTables, listed(&path, &faults));
    let unknown = |why| Failure::input(Code::UnknownName, why);
    if let Some(rows) = tables::read(&table) {
        let only = training::select::Selection::parse(&args.only).map_err(unknown)?;
        let rows = rows.map_err(broken)?;
        let bar = progress(args, rows.iter().filter(|row| only.takes(row)).count())?;
        let score = training::summary::score(rows, &only, &costs_of_training, &|| bar.inc(1));
        bar.finish_and_clear();
        return print(&form.training(&score, width));
    }
    let only = Selection::parse(&args.only).map_err(unknown)?;
    let runs = run::read(&table).map_err(broken)?;
    let bar = progress(args, runs.iter().filter(|run| only.takes(run)).count())?;
    let score = summary::score(runs, &only, &costs, &|| bar.inc(1));
    bar.finish_and_clear();
    print(&form.serving(&score, width))
}

/// Card whose curves stand for those of a card that nobody measured.
const NEIGHBOUR: &str = "h200-sxm";

/// Costs of an engine on a card: its profile, or that of the nearest card in the shape of its efficiency.
fn costs(cluster: &Cluster, engine: &str) -> Box<dyn CostModel> {
    let card = cluster.gpu.name.as_str();
    match [card, NEIGHBOUR].map(|card| profiles::parsed(profiles::of_engine(card, engine)?)) {
        [Some(profile), _] => cost_model(cluster, Some(profile), 1.0),
        [None, Some(neighbour)] => Box::new(Profiled::borrowed(neighbour, cluster)),
        [None, None] => cost_model(cluster, None, 1.0),
    }
}

/// Costs of training on a card.
fn costs_of_training(cluster: &Cluster) -> Box<dyn CostModel> {
    let (profile, is_own) = profiles::training(&cluster.gpu.name);
    training::constants::costs(cluster, profile, is_own)
}

/// A bar of so many runs; none is an error.
fn progress(args: &ScoreArgs, n: usize) -> Result<ProgressBar, Failure> {
    if n == 0 {
        let what = format!("no run of `{}` has `{}`", args.table.display(), args.only);
        return Err(Failure::input(Code::UnknownName, what));
    }
    if args.no_progress || !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs").expect("a fixed template");
    Ok(ProgressBar::new(n as u64).with_style(style))
}
