//! `score`: measured runs of serving, steps of training or of reinforcement learning, predicted over measured.

use std::cell::RefCell;
use std::fmt::Display;

use calibrate::profiles;
use engine::CostModel;
use engine::cost::{calibrated::Calibrated, profile::Profile};
use engine::shard::{AttentionKernel, Framework};
use hw::Cluster;
use indicatif::ProgressBar;
use score::form::Form;
use score::learned::Learned;
use score::leave_out::{self, Left, Tables};
use score::operators::{self, Predicted};
use score::run::Run;
use score::scenarios::NoFigure;
use score::select::Selection;
use score::table::{Beside, Fault, listed};
use score::training::play::Costs;
use score::training::row::{Asked, Row};
use score::training::{self, expert_layer, left_out, tables};
use score::{kernels, operator_tables, refit, residual, rl, run, scenarios, summary};

use super::{Failure, load, print, threads};
use crate::cli::{Laid, ScenarioArgs, ScoreArgs};
use crate::{ask, progress};
use calibrate::costs::{cost_model, of_serving};
use input::diagnostic::Code;
use input::text_file;
use reports::PolicyResult;

/// Letters of a line where standard output is no terminal.
const WIDTH: u16 = 100;

/// Runs the verb.
pub fn score(args: &ScoreArgs) -> Result<(), Failure> {
    threads(args.jobs)?;
    let path = args.table.display().to_string();
    let wrong = |why: &dyn Display| Failure::input(Code::WrongTables, format!("{path}: {why}"));
    let table = text_file::operand(&args.table).map_err(|why| wrong(&why))?;
    // A file beside the table that is there and cannot be read is no missing one.
    let unread = RefCell::new(None);
    let beside = |name: &str| {
        let file = args.table.with_file_name(name);
        let found = text_file::read(&file);
        if let Err(why) = &found
            && file.exists()
        {
            let what = format!("{}: {why}", file.display());
            unread.borrow_mut().get_or_insert(Failure::input(Code::WrongTables, what));
        }
        found.ok()
    };
    let scored = of_table(args, &table, &beside);
    unread.take().map_or(scored, Err)
}

fn of_table(args: &ScoreArgs, table: &str, beside: &Beside<'_>) -> Result<(), Failure> {
    let path = args.table.display().to_string();
    let broken = |faults: Vec<Fault>| Failure::input(Code::WrongTables, listed(&path, &faults));
    if let Some(found) = operator_tables::read(table, beside, &|cluster| of_serving(cluster, "vllm")) {
        return of_operators(args, &found.map_err(broken)?);
    }
    if let Some(found) = kernels::read(table) {
        let found = found.map_err(broken)?;
        return of_card(args, |costs| kernels::predict(&found, costs));
    }
    if let Some(found) = expert_layer::read(table) {
        let found = found.map_err(broken)?;
        return of_card(args, |costs| expert_layer::predicted(&found, costs));
    }
    if let Some(rows) = rl::table::read(table) {
        return of_rl(args, rows.map_err(broken)?);
    }
    if let Some(rows) = scenarios::read(table) {
        return of_scenarios(args, rows.map_err(broken)?);
    }
    match tables::read(table, beside) {
        Some(rows) => {
            let rows = rows.map_err(broken)?;
            if let Some(taken) = tables::absent_words(table) {
                crate::ask::tell(&format!("note: {path} has no column {taken}\n"));
            }
            steps(args, rows)
        }
        None if run::is_known(table) => runs(args, score::recipe::layouts::read(table).map_err(broken)?),
        None => Err(Failure::input(Code::WrongTables, format!("{path}: {}", score::known::unknown()))),
    }
}

fn width() -> usize {
    usize::from(terminal_size::terminal_size().map_or(WIDTH, |(width, _)| width.0))
}

fn unknown(args: &ScoreArgs, why: impl Display) -> Failure {
    Failure::about(&args.table.display().to_string(), Code::UnknownName, why)
}

/// Operators of a table that is scored whole.
fn of_operators(args: &ScoreArgs, (found, device): &operator_tables::Found) -> Result<(), Failure> {
    if !args.only.is_empty() || args.leave_out.is_some() || args.is_of_serving() {
        let why = "a table of operators is scored whole; `--only` and the other choices are of runs and steps";
        return Err(unknown(args, why));
    }
    print(&Form::of_word(&args.format).operators(found, device))
}

/// Kernels of a card by its own tables, or by those of other generations.
fn of_card(args: &ScoreArgs, predict: impl FnOnce(&Costs<'_>) -> Vec<Predicted>) -> Result<(), Failure> {
    if !args.only.is_empty() || args.is_of_serving() {
        let why = "a table of kernels is scored whole; `--leave-out card` is the one choice that it has";
        return Err(unknown(args, why));
    }
    let is_left_out = args.leave_out.is_some();
    let found = if is_left_out { predict(&costs_of_others) } else { predict(&costs_of_kernels) };
    print(&Form::of_word(&args.format).operators(&found, if is_left_out { operators::LEFT_OUT } else { "card" }))
}

/// Steps of training.
fn steps(args: &ScoreArgs, rows: Vec<Row>) -> Result<(), Failure> {
    if args.is_of_serving() {
        let why = "`--leave-out model`, `--corrected`, `--residual` and `--refit` are about serving, and the table is of training";
        return Err(unknown(args, why));
    }
    if args.leave_out.is_some() && rows.iter().all(|row| matches!(row.asked, Ok(Asked::Stages(_)) | Err(_))) {
        let why = "`--leave-out card` changes nothing here: layers were measured, and no card's tables are asked";
        return Err(unknown(args, why));
    }
    let only = training::select::Selection::parse(&args.only).map_err(|why| unknown(args, why))?;
    let bar = progress(args, rows.iter().filter(|row| only.takes(&row.label)).count())?;
    let score = if args.leave_out.is_some() {
        training::summary::score(left_out::launched(rows), &only, &costs_of_others, &|| bar.inc(1))
    } else {
        training::summary::score(rows, &only, &costs_of_training, &|| bar.inc(1))
    };
    bar.finish_and_clear();
    print(&Form::of_word(&args.format).training(&score, width()))
}

/// Steps of reinforcement learning, or transfers of weights.
fn of_rl(args: &ScoreArgs, rows: Vec<rl::row::Row>) -> Result<(), Failure> {
    if args.leave_out.is_some() || args.is_of_serving() {
        return Err(unknown(args, "the table is of reinforcement learning; `--only` is the one choice that it has"));
    }
    let only = training::select::Selection::parse(&args.only).map_err(|why| unknown(args, why))?;
    let bar = progress(args, rows.iter().filter(|row| only.takes(&row.label)).count())?;
    let costs = rl::predict::Costs { trainer: &costs_of_training, engine: &of_serving };
    let score = rl::summary::score(rows, &only, &costs, &|| bar.inc(1));
    bar.finish_and_clear();
    print(&Form::of_word(&args.format).rl(&score, width()))
}

/// Figures of scenarios that lie beside the table, or are shipped.
fn of_scenarios(args: &ScoreArgs, rows: Vec<scenarios::Row>) -> Result<(), Failure> {
    if !args.only.is_empty() || args.leave_out.is_some() || args.is_of_serving() {
        let why = "a table of scenarios is scored whole; `--only` and the other choices are of known tables";
        return Err(unknown(args, why));
    }
    let bar = progress(args, rows.len())?;
    let play = |name: &str, set: &[String]| {
        let beside = args.table.with_file_name(name);
        let scenario = if beside.is_file() { beside.display().to_string() } else { name.to_owned() };
        let laid = Laid { set: set.to_vec(), ..Laid::default() };
        let asked = ScenarioArgs { scenario, laid, ..ScenarioArgs::default() };
        let (job, printed) = ask::kept(|| load(&asked, false));
        let job = job.map_err(|why| NoFigure::NotPlayed(why.told().1))?;
        // The first line of each says what it is; the help under it is of `run`.
        let warnings = printed.told.lines().filter(|line| line.starts_with("warning[")).map(str::to_owned).collect();
        Ok(scenarios::Outcome { figures: job.run(&|_| {}).results.into_iter().map(figures).collect(), warnings })
    };
    let score = scenarios::score(rows, &play, &|| bar.inc(1));
    bar.finish_and_clear();
    print(&Form::of_word(&args.format).scenarios(&score, width()))
}

fn figures(row: PolicyResult) -> scenarios::Figures {
    let refused = (!row.status.is_ok()).then_some(row.why);
    scenarios::Figures { policy: row.policy, refused, metrics: row.metrics, intervals: row.interval }
}

/// Runs of serving.
fn runs(args: &ScoreArgs, runs: Vec<Run>) -> Result<(), Failure> {
    let form = Form::of_word(&args.format);
    let only = Selection::parse(&args.only).map_err(|why| unknown(args, why))?;
    let n = runs.iter().filter(|run| only.takes(run)).count();
    let left = args.leave_out.as_deref().map(Left::named);
    let bar = progress(args, left.map_or(n, |left| left.n_plays(n)))?;
    if let Some(left) = left {
        let found = leave_out::leave_out(runs, &only, left, &costs, &|| bar.inc(1));
        bar.finish_and_clear();
        return print(&form.left_out(&found));
    }
    if let Some(n_parts) = args.refit {
        let calibrated = |cluster: &Cluster, engine: &str, found: Option<&Calibrated>| {
            let profile = profiles::of_serving(&cluster.gpu.name, Some(engine));
            let profile = profile.map(|profile| Profile { calibrated: found.cloned(), ..profile });
            cost_model(cluster, profile.as_ref(), 1.0)
        };
        let found = refit::refitted(runs, &only, n_parts.into(), &calibrated, &|| bar.inc(1));
        bar.finish_and_clear();
        return print(&form.corrected(&found));
    }
    let score = summary::score(runs, &only, &of_serving, &|| bar.inc(1));
    bar.finish_and_clear();
    print(&match args.residual {
        _ if args.corrected => form.corrected(&Learned::shipped().corrected(&score)),
        Some(n_folds) => form.corrected(&residual::corrected(&score, n_folds.into())),
        None => form.serving(&score, width()),
    })
}

/// Costs of an engine on a card by its own tables or its neighbour's, and the card that they are from.
fn costs(cluster: &Cluster, engine: &str, tables: Tables) -> (Box<dyn CostModel>, String) {
    let card = cluster.gpu.name.as_str();
    let profile = match tables {
        Tables::Own => profiles::of_serving(card, Some(engine)),
        Tables::Neighbour => profiles::of_neighbour(card, engine),
    };
    let from = profile.as_ref().map_or("datasheet", |profile| profile.lent_by.as_deref().unwrap_or(card)).to_owned();
    (cost_model(cluster, profile.as_ref(), 1.0), from)
}

/// Costs of training on a card.
fn costs_of_training(cluster: &Cluster, framework: Framework) -> Box<dyn CostModel> {
    training::constants::costs(cluster, &profiles::training(&cluster.gpu, framework, AttentionKernel::Flash))
}

/// Costs of kernels on a card by its tables alone: constants are of steps that run for hours.
fn costs_of_kernels(cluster: &Cluster, framework: Framework) -> Box<dyn CostModel> {
    cost_model(cluster, Some(&profiles::training(&cluster.gpu, framework, AttentionKernel::Flash)), 1.0)
}

/// Costs of training on a card as other generations say.
fn costs_of_others(cluster: &Cluster, _: Framework) -> Box<dyn CostModel> {
    left_out::costs(cluster, &profiles::of_lender)
}

/// A bar of so many runs; none is an error.
fn progress(args: &ScoreArgs, n: usize) -> Result<ProgressBar, Failure> {
    if n == 0 {
        return Err(unknown(args, format!("no run has `{}`", args.only)));
    }
    Ok(progress::bar(args.no_progress, n, "runs"))
}
