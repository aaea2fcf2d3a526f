//! `score`: measured serving runs through the request loop, predicted over measured.

use std::io::IsTerminal;

use calibrate::profiles;
use engine::CostModel;
use engine::cost::profiled::Profiled;
use hw::Cluster;
use indicatif::{ProgressBar, ProgressStyle};
use score::leave_out::{self, Left, Tables};
use score::run::Run;
use score::select::Selection;
use score::summary;
use score::written::Forms;
use score::{residual, run, table};

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
        let found = leave_out::leave_out(runs, &only, left, &costs, &|| bar.inc(1));
        bar.finish_and_clear();
        return print(&shown(Forms::of_left_out(&found), args.format));
    }
    let score = summary::score(runs, &only, &|cluster, engine| costs(cluster, engine, Tables::Own).0, &|| bar.inc(1));
    bar.finish_and_clear();
    if let Some(n_folds) = args.residual {
        return print(&shown(Forms::of_corrected(&residual::corrected(&score, n_folds.into())), args.format));
    }
    let width = terminal_size::terminal_size().map_or(WIDTH, |(width, _)| width.0);
    print(&shown(Forms::of(&score, width.into()), args.format))
}

fn shown(forms: Forms, format: ScoreFormat) -> String {
    match format {
        ScoreFormat::Table => forms.table,
        ScoreFormat::Json => forms.json,
        ScoreFormat::Csv => forms.csv,
        ScoreFormat::Markdown => forms.markdown,
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

/// Costs of an engine on a card by its own tables or its neighbour's, and the card that they are from.
fn costs(cluster: &Cluster, engine: &str, tables: Tables) -> (Box<dyn CostModel>, String) {
    let card = cluster.gpu.name.as_str();
    let neighbour = profiles::neighbour(card);
    let own = profiles::parsed_of_engine(card, engine).filter(|_| tables == Tables::Own);
    match (own, profiles::parsed_of_engine(neighbour, engine)) {
        (Some(profile), _) => (cost_model(cluster, Some(profile), 1.0), card.to_owned()),
        (None, Some(profile)) => (Box::new(Profiled::borrowed(profile, cluster)), neighbour.to_owned()),
        (None, None) => (cost_model(cluster, None, 1.0), "datasheet".to_owned()),
    }
}

fn progress(args: &ScoreArgs, n: usize) -> ProgressBar {
    if args.no_progress || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs").expect("a fixed template");
    ProgressBar::new(n as u64).with_style(style)
}
