//! Predicted over measured: runs, groups of them, reasons, and orders of settings.
//!
//! An error is |predicted / measured − 1|, a bias the median of predicted / measured less 1. Medians take the mean of two middle values.

use std::collections::{BTreeMap, BTreeSet};

use hw::quantile::median;
use rayon::prelude::*;

use crate::between::{self, Between};
use crate::errors::{self, Bias, Figure, holds};
use crate::order::{self, Order};
use crate::play::{Costs, Latency, Predicted, predict};
use crate::reason::Reason;
use crate::run::Run;
use crate::select::{Key, Selection};
use crate::setup;
use crate::tally::{Missing, counted, together};

/// A run with what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The run.
    pub run: Run,
    /// Its prediction, or why there is none.
    pub outcome: Result<Predicted, Reason>,
    /// An interval over layouts, where the workers of a split run are not stated. It is no prediction and counts in no error.
    pub between: Option<Between>,
}

/// Which share of the runs can be expressed, and what is known of those whose workers are not stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expressed {
    /// Lines that repeat a measurement whose earlier line has a prediction.
    pub n_repeats: usize,
    /// Runs with an interval over layouts.
    pub n_between: usize,
    /// Lines that repeat a measurement whose earlier line has such an interval.
    pub n_repeats_between: usize,
    /// Those of `n_between` whose TTFT and whose TPOT lies in it.
    pub n_inside: [usize; 2],
}

/// Figures of a group of runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latencies {
    /// Time to first token.
    pub ttft: Figure,
    /// Time per output token.
    pub tpot: Figure,
}

/// A group of runs.
pub type GroupErrors = errors::GroupErrors<Latencies>;

/// Everything about a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Every run that was asked for, in the table's order.
    pub runs: Vec<Scored>,
    /// All runs together.
    pub all: GroupErrors,
    /// Groups by key, in the order of `Key::GROUPS`.
    pub groups: Vec<(Key, Vec<GroupErrors>)>,
    /// Runs without prediction by their reason.
    pub missing: Vec<Missing>,
    /// What is expressed besides lines with a prediction of their own.
    pub expressed: Expressed,
    /// Orders of settings of one model on one card under one pair of lengths.
    pub orders: Vec<(String, Order)>,
}

/// Scores runs in parallel; `done` is called as each one ends.
pub fn score(runs: Vec<Run>, only: &Selection, costs: &Costs<'_>, done: &(dyn Fn() + Sync)) -> Score {
    let first_of = firsts(&runs);
    let asked: Vec<Run> = runs.into_iter().filter(|run| only.takes(run)).collect();
    let scored = |run: Run| {
        let outcome = outcome(&run, &first_of, costs);
        let is_open = outcome == Err(Reason::WorkersNotStated);
        let between = if is_open { between::between(&run, costs) } else { None };
        done();
        Scored { run, outcome, between }
    };
    let runs: Vec<Scored> = asked.into_par_iter().map(scored).collect();
    let every: Vec<&Scored> = runs.iter().collect();
    Score {
        all: group("all", &every),
        groups: Key::GROUPS.into_iter().map(|key| (key, groups(key, &runs))).collect(),
        missing: counted(
            runs.iter()
                .filter_map(|scored| scored.outcome.as_ref().err())
                .map(|reason| [reason.name(), reason.about()]),
        ),
        expressed: expressed(&runs),
        orders: orders(&runs),
        runs,
    }
}

/// Runs that are asked for, each measurement once.
pub(crate) fn asked(runs: Vec<Run>, only: &Selection) -> Vec<Run> {
    let first_of = firsts(&runs);
    let is_first = |run: &Run| first_of[&measurement(run)] == run.line;
    runs.into_iter().filter(|run| is_first(run) && only.takes(run)).collect()
}

/// Line in which a measurement stands first, by the setting and its latencies.
fn firsts(runs: &[Run]) -> BTreeMap<String, u64> {
    let mut first_of = BTreeMap::new();
    for run in runs {
        first_of.entry(measurement(run)).or_insert(run.line);
    }
    first_of
}

/// A measurement: what a table says again under another identity agrees in card, engine, lengths, load, and both latencies to hundredths of a millisecond, to
/// which some files are rounded.
fn measurement(run: &Run) -> String {
    let [ttft_ms, tpot_ms] = [run.ttft_s, run.tpot_s].map(|seconds| seconds * 1e3);
    let [prompt, output, in_flight] = [run.prompt, run.output, run.in_flight.unwrap_or(0)];
    format!("{}|{}|{prompt}|{output}|{in_flight}|{ttft_ms:.2}|{tpot_ms:.2}", run.card, run.engine)
}

fn outcome(run: &Run, first_of: &BTreeMap<String, u64>, costs: &Costs<'_>) -> Result<Predicted, Reason> {
    let line = first_of[&measurement(run)];
    if line < run.line {
        return Err(Reason::Repeats { line });
    }
    Ok(predict(&setup::of(run)?, &run.engine, costs))
}

fn groups(key: Key, runs: &[Scored]) -> Vec<GroupErrors> {
    let members = together(runs, |scored| key.group_of(&scored.run));
    let mut groups: Vec<GroupErrors> = members.iter().map(|(value, runs)| group(value, runs)).collect();
    if matches!(key, Key::Load | Key::Tensor | Key::Lengths) {
        groups.sort_by_key(|group| numbers(&group.value));
    }
    groups
}

/// The numbers in a text, for an order that people expect.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|letter: char| !letter.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

fn group(value: &str, runs: &[&Scored]) -> GroupErrors {
    let predicted: Vec<(&Run, &Predicted)> =
        runs.iter().filter_map(|scored| Some((&scored.run, scored.outcome.as_ref().ok()?))).collect();
    let ttft = figure(predicted.iter().map(|(run, found)| (found.ttft, run.ttft_s)));
    let tpot = figure(predicted.iter().map(|(run, found)| (found.tpot, run.tpot_s)));
    let figures = Latencies { ttft, tpot };
    GroupErrors { value: value.to_owned(), n_rows: runs.len(), n_predicted: predicted.len(), figures }
}

/// What is known of a latency, predicted and measured.
fn figure(pairs: impl Iterator<Item = (Latency, f64)>) -> Figure {
    let (ratios, inside): (Vec<f64>, Vec<bool>) =
        pairs.map(|(found, measured)| (found.mean / measured, holds(found.interval, measured))).unzip();
    Figure::of(&ratios, Bias::Median, &inside)
}

fn expressed(runs: &[Scored]) -> Expressed {
    let by_line: BTreeMap<u64, &Scored> = runs.iter().map(|scored| (scored.run.line, scored)).collect();
    let mut found = Expressed::default();
    for scored in runs {
        if let Err(Reason::Repeats { line }) = scored.outcome {
            let earlier = by_line.get(&line);
            found.n_repeats += usize::from(earlier.is_some_and(|earlier| earlier.outcome.is_ok()));
            found.n_repeats_between += usize::from(earlier.is_some_and(|earlier| earlier.between.is_some()));
        }
        if let Some(between) = &scored.between {
            let inside = [holds(between.ttft, scored.run.ttft_s), holds(between.tpot, scored.run.tpot_s)];
            found.n_between += 1;
            found.n_inside = [0, 1].map(|of| found.n_inside[of] + usize::from(inside[of]));
        }
    }
    found
}

/// Settings of one question in the order of output tokens per second and GPU.
fn orders(runs: &[Scored]) -> Vec<(String, Order)> {
    let mut questions: BTreeMap<String, BTreeMap<String, Vec<[f64; 2]>>> = BTreeMap::new();
    for scored in runs {
        let Some(rates) = rates(scored) else { continue };
        let question = [Key::Card, Key::Model, Key::Lengths].map(|key| key.of(&scored.run)).join(" ");
        questions.entry(question).or_default().entry(scored.run.setting()).or_default().push(rates);
    }
    let order = |(question, settings): (String, BTreeMap<String, Vec<[f64; 2]>>)| {
        let pairs: Vec<[f64; 2]> = settings.values().map(|rates| mean_of_sides(rates)).collect();
        order::of(&pairs).filter(|order| order.n >= 3).map(|order| (question, order))
    };
    questions.into_iter().filter_map(order).collect()
}

/// Predicted and measured output tokens per second and GPU.
fn rates(scored: &Scored) -> Option<[f64; 2]> {
    let (run, found) = (&scored.run, scored.outcome.as_ref().ok()?);
    let gpus = f64::from(run.n_gpus()?);
    let (in_flight, output) = (f64::from(run.in_flight?), f64::from(run.output));
    let rate = |ttft_s: f64, tpot_s: f64| in_flight * output / (ttft_s + (output - 1.0) * tpot_s) / gpus;
    Some([rate(found.ttft.mean, found.tpot.mean), rate(run.ttft_s, run.tpot_s)])
}

/// Mean of each side.
fn mean_of_sides(pairs: &[[f64; 2]]) -> [f64; 2] {
    let n = hw::real(pairs.len() as u64);
    [0, 1].map(|side| pairs.iter().map(|pair| pair[side]).sum::<f64>() / n)
}

impl Score {
    /// Median of tau and of regret over all orders; `None` where there is none.
    pub fn order(&self) -> Option<[f64; 2]> {
        let taus: Vec<f64> = self.orders.iter().filter_map(|(_, order)| order.tau).collect();
        let regrets: Vec<f64> = self.orders.iter().map(|(_, order)| order.regret).collect();
        (!taus.is_empty()).then(|| [median(&taus), median(&regrets)])
    }

    /// Models that have a prediction.
    pub fn n_models(&self) -> usize {
        let models: BTreeSet<String> =
            self.runs.iter().filter(|scored| scored.outcome.is_ok()).map(|scored| Key::Model.of(&scored.run)).collect();
        models.len()
    }
}
