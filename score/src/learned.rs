//! What the request loop leaves over of published runs, learned once and shipped: `cost.law = "published-runs"`.
//!
//! The file has weights of kernel ridge regression (`residual.rs`) by what ran where, and how far off the corrected loop is on settings and on models
//! that it had not seen. Runs whose prompts and outputs have workers of their own are left out. Units: tokens, requests, GPUs; weights are of logarithms
//! of measured over predicted.

use std::collections::{BTreeMap, BTreeSet};

use hw::quantile::{self, median};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::client;
use crate::play::Costs;
use crate::residual::{self, Corrected, Place, at, by_others, kind, nearness, off, place, robust, sizes};
use crate::run::{Run, Worker, Workers};
use crate::select::{Key, Selection};
use crate::summary::{Score, Scored, score};

/// Schema of the file.
pub const SCHEMA: &str = "skrull-sim/published-runs/1";
/// Parts into which settings are dealt.
const FOLDS: usize = 5;
/// Share of what was not seen that lies outside of the interval on each side.
const TAIL: f64 = 0.05;

/// Weights of settings.
type Weights = BTreeMap<[u32; 4], [f64; 2]>;

/// How a corrected latency does on what it had not seen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Median of |predicted / measured − 1|.
    pub median_error: f64,
    /// 5 % quantile of measured over predicted.
    pub low: f64,
    /// 95 % quantile of the same.
    pub high: f64,
}

/// What is known of an engine's runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// Its name.
    pub name: String,
    /// Runs.
    pub n_runs: usize,
    /// TTFT and TPOT where other settings of the model were seen on the card.
    pub settings: [Spread; 2],
    /// TTFT and TPOT where nothing of the model was seen.
    pub models: [Spread; 2],
}

/// Runs of an engine's version with a model on a card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    /// Engine.
    pub engine: String,
    /// Its version.
    pub version: String,
    /// Path of the checkpoint.
    pub model: String,
    /// Card of the catalogue.
    pub card: String,
    /// Format in a word.
    pub format: String,
    /// Formats of products and of experts, in the table's words.
    pub products: [String; 2],
    /// Whose benchmark it was.
    pub client: String,
    /// Day of the newest run.
    pub date: String,
    /// Tokens of prompt and answer, requests in flight and GPUs.
    pub settings: Vec<[u32; 4]>,
    /// Weights of every setting: TTFT and TPOT.
    pub weights: Vec<[f64; 2]>,
}

/// The file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learned {
    /// `SCHEMA`.
    pub schema: String,
    /// Where the runs come from.
    pub source: String,
    /// When it was learned.
    pub date: String,
    /// By engine.
    pub engine: Vec<Engine>,
    /// By what ran where.
    pub kind: Vec<Kind>,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is no such file.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// Another schema.
    #[error("schema `{0}`, expected `{SCHEMA}`")]
    Schema(String),
    /// A kind has another number of weights than of settings.
    #[error("`{0}` has another number of weights than of settings")]
    Weights(String),
}

impl Learned {
    /// What is shipped.
    ///
    /// # Panics
    /// Never: a test reads it.
    pub fn shipped() -> Self {
        Self::parse(include_str!("../../profiles/published/serving.toml")).expect("a test reads it")
    }

    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Unreadable> {
        let found: Self = toml::from_str(text)?;
        if found.schema != SCHEMA {
            return Err(Unreadable::Schema(found.schema));
        }
        match found.kind.iter().find(|kind| kind.settings.len() != kind.weights.len()) {
            Some(kind) => Err(Unreadable::Weights(kind.model.clone())),
            None => Ok(found),
        }
    }

    /// Text of the file.
    ///
    /// # Panics
    /// Never: weights have a TOML form.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("weights have a TOML form")
    }

    /// Learns what the loop leaves over of runs on some cards.
    pub fn from_runs(mut runs: Vec<Run>, cards: &[&str], [source, date]: [&str; 2], costs: &Costs<'_>) -> Self {
        runs.retain(|run| cards.contains(&run.card.as_str()) && !run.is_split());
        Self::of(&score(runs, &Selection::everything(), costs, &|| ()), source, date)
    }

    /// Errors of a score before and after the correction, of all runs and by card, engine and model; runs that are split are left out.
    pub fn corrected(&self, score: &Score) -> Vec<Corrected> {
        let whole = score.runs.iter().filter(|scored| !scored.run.is_split());
        let (runs, places): (Vec<&Run>, Vec<Place>) =
            whole.filter_map(|scored| Some((&scored.run, place(scored, 0)?))).unzip();
        let after: Vec<[f64; 2]> = runs.iter().map(|run| self.factors(run).map(libm::log)).collect();
        residual::of_groups(&runs, &places, &after)
    }

    /// Learns what a score leaves over.
    fn of(score: &Score, source: &str, date: &str) -> Self {
        let whole = score.runs.iter().filter(|scored| !scored.run.is_split() && place(scored, 0).is_some());
        let runs: Vec<&Scored> = whole.collect();
        let names: BTreeSet<&str> = runs.iter().map(|scored| scored.run.engine.as_str()).collect();
        // Runs of several engines have nothing to do with each other.
        let of_engine = |name: &&str| -> Vec<&Scored> {
            runs.iter().copied().filter(|scored| scored.run.engine == *name).collect()
        };
        let parts: Vec<Vec<&Scored>> = names.iter().map(of_engine).collect();
        Self {
            schema: SCHEMA.to_owned(),
            source: source.to_owned(),
            date: date.to_owned(),
            engine: parts.par_iter().map(|part| engine(part)).collect(),
            kind: parts.par_iter().flat_map(|part| kinds(part)).collect(),
        }
    }

    /// Errors of every engine on what was not seen, as a table.
    pub fn errors(&self) -> String {
        let mut text = "engine    runs  unseen settings: TTFT  TPOT  unseen models: TTFT  TPOT\n".to_owned();
        for Engine { name, n_runs, settings, models } in &self.engine {
            let [a, b, c, d] =
                [settings[0], settings[1], models[0], models[1]].map(|spread| 100.0 * spread.median_error);
            text += &format!("{name:<8} {n_runs:>5} {a:>21.1}% {b:>4.1}% {c:>19.1}% {d:>4.1}%\n");
        }
        text
    }

    /// Names of the engines.
    pub fn engines(&self) -> Vec<&str> {
        self.engine.iter().map(|engine| engine.name.as_str()).collect()
    }

    /// Factors on the predicted TTFT and TPOT of a run.
    pub fn factors(&self, run: &Run) -> [f64; 2] {
        let Some(sizes) = sizes(run) else { return [1.0; 2] };
        let (asked, asked_at) = (kind(run), at(sizes));
        let mut left_over = [0.0; 2];
        for seen in self.kind.iter().filter(|seen| seen.engine == run.engine) {
            let is_kind = kind(&seen.run(sizes, 1)) == asked;
            for (settings, weights) in seen.settings.iter().zip(&seen.weights) {
                let near = nearness([true, is_kind], &asked_at, &at(*settings));
                for (sum, weight) in left_over.iter_mut().zip(weights) {
                    *sum += near * weight;
                }
            }
        }
        left_over.map(libm::exp)
    }
}

impl Kind {
    fn of(run: &Run) -> Self {
        Self {
            engine: run.engine.clone(),
            version: run.version.clone(),
            model: run.model.clone(),
            card: run.card.clone(),
            format: Key::Format.of(run),
            products: run.formats.clone(),
            client: client::of(&run.source, &run.measured).name.to_owned(),
            date: run.measured.clone(),
            settings: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// A run of this kind on one worker with so many groups of attention.
    pub fn run(&self, [prompt, output, in_flight, gpus]: [u32; 4], attention_groups: u32) -> Run {
        Run {
            line: 0,
            id: String::new(),
            source: client::named(&self.client).source_of_runs().to_owned(),
            measured: self.date.clone(),
            engine: self.engine.clone(),
            version: self.version.clone(),
            model: self.model.clone(),
            card: self.card.clone(),
            precision: if self.format == "bf16" { String::new() } else { self.format.clone() },
            formats: self.products.clone(),
            prompt,
            output,
            in_flight: Some(in_flight),
            workers: Workers::Whole(Worker::of(gpus, attention_groups)),
            ttft_s: 0.0,
            tpot_s: 0.0,
        }
    }
}

/// Settings of one engine by kind with their weights; settings that were measured again are one.
fn kinds(runs: &[&Scored]) -> Vec<Kind> {
    let places: Vec<Place> = runs.iter().filter_map(|scored| place(scored, 0)).collect();
    let seen: Vec<&Place> = places.iter().collect();
    let [ttft, tpot] = [0, 1].map(|side| robust(&seen, side));
    let mut kinds: BTreeMap<String, (Kind, Weights)> = BTreeMap::new();
    for (index, scored) in runs.iter().enumerate() {
        let run = &scored.run;
        let (kind, settings) = kinds.entry(kind(run)).or_insert_with(|| (Kind::of(run), BTreeMap::new()));
        kind.date = kind.date.clone().max(run.measured.clone());
        let sum = settings.entry(sizes(run).expect("a place has sizes")).or_default();
        (sum[0], sum[1]) = (sum[0] + ttft[index], sum[1] + tpot[index]);
    }
    let filled = |(kind, settings): (Kind, Weights)| {
        let (settings, weights): (Vec<_>, Vec<_>) =
            settings.into_iter().map(|(at, sum)| (at, sum.map(rounded))).unzip();
        Kind { settings, weights, ..kind }
    };
    kinds.into_values().map(filled).collect()
}

/// Errors of one engine's runs on settings and on models that were not seen.
fn engine(runs: &[&Scored]) -> Engine {
    let of_runs: Vec<&Run> = runs.iter().map(|scored| &scored.run).collect();
    let models: BTreeSet<String> = of_runs.iter().map(|run| Key::Model.of(run)).collect();
    let models: Vec<String> = models.into_iter().collect();
    let of_model = |run: &&Run| models.binary_search(&Key::Model.of(run)).expect("one of them");
    Engine {
        name: of_runs[0].engine.clone(),
        n_runs: runs.len(),
        settings: spreads(runs, &residual::folds(&of_runs, FOLDS)),
        models: spreads(runs, &of_runs.iter().map(of_model).collect::<Vec<usize>>()),
    }
}

/// Spreads of TTFT and TPOT where every fold is corrected by the others.
fn spreads(runs: &[&Scored], folds: &[usize]) -> [Spread; 2] {
    let places: Vec<Place> = runs.iter().zip(folds).filter_map(|(scored, fold)| place(scored, *fold)).collect();
    let after = by_others(&places);
    [0, 1].map(|side| {
        let left = places.iter().zip(&after).map(|(place, after)| place.ratios[side] - after[side]);
        spread(left.collect())
    })
}

/// Spread of logarithms of measured over predicted.
fn spread(mut left_over: Vec<f64>) -> Spread {
    let median_error = median(&left_over.iter().map(|left| off(*left)).collect::<Vec<f64>>());
    left_over.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| libm::exp(quantile::of_sorted(&left_over, share));
    Spread {
        median_error: rounded(median_error),
        low: rounded(at(TAIL).min(1.0)),
        high: rounded(at(1.0 - TAIL).max(1.0)),
    }
}

/// A number to four decimals, as the file has it.
fn rounded(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shipped_reads_as_it_was_written() {
        let shipped = Learned::shipped();
        assert_eq!(shipped.engines(), ["sglang", "trtllm", "vllm"]);
        assert_eq!(Learned::parse(&shipped.to_toml()).expect("written"), shipped);
        for Engine { name, settings, models, .. } in &shipped.engine {
            for spread in settings.iter().chain(models) {
                assert!(spread.low <= 1.0 && spread.high >= 1.0, "{name}: {spread:?}");
            }
        }
        // A model is played as its runs were started on their day.
        let days: BTreeSet<&str> = shipped.kind.iter().map(|kind| kind.date.as_str()).collect();
        assert!(days.len() > 10 && days.iter().all(|day| *day < shipped.date.as_str()), "{days:?}");
        let broken = shipped.to_toml().replacen("weights = [[", "weights = [[0.0, 0.0], [", 1);
        assert!(matches!(Learned::parse(&broken), Err(Unreadable::Weights(_))));
    }

    #[test]
    fn a_factor_is_that_of_the_runs_nearby_and_fades_far_away() {
        let kind = Kind {
            engine: "vllm".to_owned(),
            version: "0.19.0".to_owned(),
            model: "org/M".to_owned(),
            card: "b200".to_owned(),
            format: "fp8".to_owned(),
            products: ["fp8".to_owned(), "fp8".to_owned()],
            client: "inferencex".to_owned(),
            date: String::new(),
            settings: vec![[1024, 1024, 16, 4]],
            weights: vec![[0.2, -0.1]],
        };
        let learned = Learned {
            schema: SCHEMA.to_owned(),
            source: String::new(),
            date: String::new(),
            engine: Vec::new(),
            kind: vec![kind.clone()],
        };
        let logarithms = |run: &Run| learned.factors(run).map(libm::log);
        // There the kernel is 0.25 + 0.25 of the engine and 1 + 1 of the kind.
        let [ttft, tpot] = logarithms(&kind.run([1024, 1024, 16, 4], 1));
        assert!((ttft - 0.5).abs() < 1e-12 && (tpot + 0.25).abs() < 1e-12, "{ttft} {tpot}");
        // With 16 times the load, two units away, what is near is exp(-4) of it.
        let [ttft, _] = logarithms(&kind.run([1024, 1024, 256, 4], 1));
        assert!((ttft - 0.2 * 1.25 * (1.0 + libm::exp(-4.0))).abs() < 1e-12, "{ttft}");
        // Another card has the engine alone in common with it, another engine nothing.
        let other = Kind { card: "h200-sxm".to_owned(), ..kind.clone() };
        assert!((logarithms(&other.run([1024, 1024, 16, 4], 1))[0] - 0.1).abs() < 1e-12);
        let other = Kind { engine: "sglang".to_owned(), ..kind };
        assert_eq!(learned.factors(&other.run([1024, 1024, 16, 4], 1)), [1.0; 2]);
    }

    #[test]
    fn a_spread_leaves_a_twentieth_out_on_each_side() {
        // Of ten ratios from 1.1 to 2.0 the high end lies 0.55 of the way from the ninth to the tenth: 1.9^0.45 · 2^0.55. The interval begins at what was
        // predicted.
        let found = spread((1..=10).map(|n| libm::log(1.0 + f64::from(n) / 10.0)).collect());
        assert_eq!((found.low, found.high), (1.0, 1.9544));
        assert!((found.median_error - (1.0 - (1.0 / 1.5 + 1.0 / 1.6) / 2.0)).abs() < 1e-4, "{}", found.median_error);
    }
}
