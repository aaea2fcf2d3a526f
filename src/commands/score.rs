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
use score::{residual, run, table, text, written};
use serde::Serialize;

use super::{Failure, print, threads};
use crate::cli::{ScoreArgs, ScoreFormat};
use crate::costs::cost_model;
use input::diagnostic::Code;

/// Letters of a line where standard output is no terminal.
const WIDTH: u16 = 100;

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
    let left = args.leave_out.as_deref().map(Left::named);
    let bar = progress(args, if left == Some(Left::Card) { 2 * n } else { n });
    if let Some(left) = left {
        let found = leave_out::leave_out(runs, &only, left, &costs_of, &|| bar.inc(1));
        bar.finish_and_clear();
        return print(&rows(text::left_out(&found), &written::left_out(&found), args.format));
    }
    let score = summary::score(runs, &only, &costs, &|| bar.inc(1));
    bar.finish_and_clear();
    if let Some(n_folds) = args.residual {
        let found = residual::corrected(&score, n_folds.into());
        return print(&rows(text::corrected(&found), &written::corrected(&found), args.format));
    }
    print(&shown(&score, args.format))
}

/// Rows of a question that the score is asked besides.
fn rows(table: String, rows: &[impl Serialize], format: ScoreFormat) -> String {
    match format {
        ScoreFormat::Table | ScoreFormat::Markdown => table,
        ScoreFormat::Json => written::rows_as_json(rows),
        ScoreFormat::Csv => written::rows_as_csv(rows),
    }
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
    run::read(&text)
        .map_err(|faults| Failure::input(Code::WrongTables, table::listed(&faults, &path.to_string()).join("\n  ")))
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
