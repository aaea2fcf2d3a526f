//! `score`: measured serving runs through the request loop, predicted over measured.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::LazyLock;

use calibrate::profiles;
use engine::CostModel;
use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use hw::Cluster;
use indicatif::{ProgressBar, ProgressStyle};
use score::leave_out::{self, Left, Tables};
use score::run::Run;
use score::select::Selection;
use score::summary::{self, Score};
use score::{residual, run, text, written};

use super::{Failure, print, threads};
use crate::cli::{LeaveOut, ScoreArgs, ScoreFormat};
use crate::costs::cost_model;
use crate::diagnostic::Code;

/// Letters of a line where standard output is no terminal.
const WIDTH: u16 = 100;
/// Faults of a table that are printed; the rest is counted.
const FAULTS_SHOWN: usize = 20;

/// Runs the verb.
pub fn score(args: &ScoreArgs) -> Result<(), Failure> {
    threads(args.jobs)?;
    let only = Selection::parse(&args.only).map_err(|why| Failure::input(Code::UnknownName, why))?;
    let runs = runs(args)?;
    let n = runs.iter().filter(|run| only.takes(run)).count();
    if n == 0 {
        let what = format!("no run of `{}` has `{}`", args.table.display(), args.only);
        return Err(Failure::input(Code::UnknownName, what));
    }
    if let Some(left) = args.leave_out {
        return leave_out(args, runs, (&only, n), left);
    }
    let bar = progress(args, n);
    let score = summary::score(runs, &only, &costs, &|| bar.inc(1));
    bar.finish_and_clear();
    if let Some(n_folds) = args.residual {
        return print(&text::corrected(&residual::corrected(&score, n_folds.into())));
    }
    print(&shown(&score, args.format))
}

/// Errors on groups that nothing fitted has seen.
fn leave_out(args: &ScoreArgs, runs: Vec<Run>, (only, n): (&Selection, usize), left: LeaveOut) -> Result<(), Failure> {
    let left = if left == LeaveOut::Model { Left::Model } else { Left::Card };
    let bar = progress(args, if left == Left::Card { 2 * n } else { n });
    let found = leave_out::leave_out(runs, only, left, &costs_of, &|| bar.inc(1));
    bar.finish_and_clear();
    print(&match args.format {
        ScoreFormat::Table | ScoreFormat::Markdown => text::left_out(&found),
        ScoreFormat::Json => written::left_out_json(&found),
        ScoreFormat::Csv => written::left_out_csv(&found),
    })
}

fn shown(score: &Score, format: ScoreFormat) -> String {
    let width = terminal_size::terminal_size().map_or(WIDTH, |(width, _)| width.0);
    match format {
        ScoreFormat::Table => text::text(score, width.into()),
        ScoreFormat::Json => written::json(score),
        ScoreFormat::Csv => written::csv(score),
        ScoreFormat::Markdown => text::markdown(score),
    }
}

/// The runs of the table.
fn runs(args: &ScoreArgs) -> Result<Vec<Run>, Failure> {
    let path = args.table.display();
    let text = std::fs::read_to_string(&args.table)
        .map_err(|error| Failure::input(Code::WrongTables, format!("{path}: {error}")))?;
    run::read(&text).map_err(|faults| {
        let mut lines: Vec<String> =
            faults.iter().take(FAULTS_SHOWN).map(|fault| format!("{path}: {}", fault.words())).collect();
        if faults.len() > FAULTS_SHOWN {
            lines.push(format!("and {} more", faults.len() - FAULTS_SHOWN));
        }
        Failure::input(Code::WrongTables, lines.join("\n  "))
    })
}

/// Card whose curves stand for those of a card that nobody measured, and of those that nobody measured but it.
const NEIGHBOURS: [&str; 2] = ["h200-sxm", "h100-sxm"];

/// Costs of an engine on a card: its profile, or that of the nearest card in the shape of its efficiency.
fn costs(cluster: &Cluster, engine: &str) -> Box<dyn CostModel> {
    costs_of(cluster, engine, Tables::Own).0
}

/// The same by some card's tables, and the card that they are from.
fn costs_of(cluster: &Cluster, engine: &str, tables: Tables) -> (Box<dyn CostModel>, String) {
    let card = cluster.gpu.name.as_str();
    let neighbour = NEIGHBOURS[usize::from(card == NEIGHBOURS[0])];
    let own = parsed(profiles::of_engine(card, engine)).filter(|_| tables == Tables::Own);
    match (own, parsed(profiles::of_engine(neighbour, engine))) {
        (Some(profile), _) => (cost_model(cluster, Some(profile), 1.0), card.to_owned()),
        (None, Some(profile)) => (Box::new(Profiled::borrowed(profile, cluster)), neighbour.to_owned()),
        (None, None) => (cost_model(cluster, None, 1.0), "datasheet".to_owned()),
    }
}

/// A shipped profile, read once.
fn parsed(name: Option<&'static str>) -> Option<&'static Profile> {
    static PROFILES: LazyLock<BTreeMap<&str, Profile>> = LazyLock::new(|| {
        let parse = |name| Profile::parse(profiles::embedded(name).expect("listed")).expect("held by a test");
        profiles::names().into_iter().map(|name| (name, parse(name))).collect()
    });
    PROFILES.get(name?)
}

fn progress(args: &ScoreArgs, n: usize) -> ProgressBar {
    if args.no_progress || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs").expect("a fixed template");
    ProgressBar::new(n as u64).with_style(style)
}
