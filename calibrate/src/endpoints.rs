//! Published runs of serving endpoints → the coefficients of `sim/serve/src/endpoint.rs`, with their error on held-out settings.
//!
//! The format is `silicon_sample.csv` of ai-dynamo/aiconfigurator: a row is a setting with its mean TTFT and TPOT in milliseconds. Rows
//! that repeat a measurement are dropped. Whole settings are held out, never single rows: all dates of one setting are in one fold. The
//! interval is conformal: the outermost 5 % on each side of measured over predicted, each by a fit that has not seen the setting.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use engine::Model;
use engine::cost::profile::Residuals;
use engine::cost::published_runs::{Format, Hull, Law, Laws, SCHEMA, Setting, Steady};
use rayon::prelude::*;

use crate::fit::non_negative::{Robust, non_negative};
use crate::fit::{residuals, ten_thousandths};
use crate::import::{ImportError, Provenance, Table};

/// Folds of the cross-validation.
const FOLDS: u64 = 5;
/// Rounds in which settings far off lose weight: nearly least absolute relative error.
const ROBUST: Robust = Robust { rounds: 15, off: 0.03 };
/// GPUs of a node; degrees that multiply to more are products of overlapping ones.
const NODE: f64 = 8.0;
/// Settings that a law needs: more than it has coefficients.
const SETTINGS_MIN: usize = 14;
/// Least time that a prediction counts as, seconds: a fit without a kind of setting may say nothing of it.
const MOMENT_S: f64 = 1e-4;
/// Share of held-out settings outside the interval on each side.
const TAIL: f64 = 0.05;

/// A published run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Engine.
    pub framework: String,
    /// Architecture.
    pub model: Model,
    /// GPU of the catalogue.
    pub gpu: hw::Gpu,
    /// Number format.
    pub format: Format,
    /// GPUs of the endpoint.
    pub gpus: u32,
    /// Attention groups.
    pub attention_groups: u32,
    /// Tokens of prompt and answer, and requests in flight.
    pub sizes: [u64; 3],
    /// Mean seconds to first token.
    pub ttft_s: f64,
    /// Mean seconds per output token.
    pub tpot_s: f64,
}

impl Run {
    /// What was served.
    #[must_use]
    pub fn setting(&self) -> Setting<'_> {
        let [prompt, output, concurrency] = self.sizes;
        Setting {
            model: &self.model,
            gpu: &self.gpu,
            format: self.format,
            gpus: self.gpus,
            attention_groups: self.attention_groups,
            prompt,
            output,
            concurrency,
        }
    }

    fn key(&self) -> String {
        let (model, gpu) = (&self.model.name, &self.gpu.name);
        format!("{}|{model}|{gpu}|{}|{}|{:?}", self.framework, self.gpus, self.attention_groups, self.sizes)
    }

    /// Fold of the setting: a fixed hash (FNV-1a), so that the split does not depend on row order.
    fn fold(&self) -> u64 {
        let mixed = self
            .key()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        (mixed >> 32) % FOLDS
    }
}

/// What a table holds: runs that a law can be fitted to, and how many rows were left out for which reason.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Runs {
    /// Usable runs in the table's order.
    pub runs: Vec<Run>,
    /// Rows left out, by reason.
    pub left_out: BTreeMap<LeftOut, usize>,
}

/// Reads a table, keeping the rows of some GPUs of the catalogue.
///
/// # Errors
/// When the table is missing or broken.
pub fn read(path: &Path, gpus: &[&str]) -> Result<Runs, ImportError> {
    let table = Table::read(path.to_path_buf())?;
    let words: Result<Vec<Vec<String>>, ImportError> =
        ["system", "backend", "mode", "model_path", "precision", "silicon_data_source"]
            .map(|c| table.words(c))
            .into_iter()
            .collect();
    let numbers: Result<Vec<Vec<f64>>, ImportError> = [
        "isl",
        "osl",
        "batch_size",
        "tp_size",
        "attention_dp_size",
        "moe_tp_size",
        "moe_ep_size",
        "silicon_ttft_ms",
        "silicon_tpot_ms",
    ]
    .map(|column| table.numbers(column))
    .into_iter()
    .collect();
    let (words, numbers) = (words?, numbers?);
    let mut runs = Runs::default();
    let mut seen = BTreeSet::new();
    for row in 0..words[0].len() {
        let name = words[0][row].replace('_', "-");
        if !gpus.contains(&name.as_str()) {
            continue;
        }
        let words: Vec<&str> = words.iter().map(|column| column[row].as_str()).collect();
        let numbers: Vec<f64> = numbers.iter().map(|column| column[row]).collect();
        let repeats = !seen.insert(format!("{name}|{}|{:?}", words[1], &numbers[7..]));
        let found = if repeats { Err(LeftOut::Repeated) } else { run(&name, &words, &numbers) };
        match found {
            Ok(run) => runs.runs.push(run),
            Err(why) => *runs.left_out.entry(why).or_default() += 1,
        }
    }
    Ok(runs)
}

/// Why a row is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum LeftOut {
    /// The same setting stands there before.
    #[error("repeats a measurement")]
    Repeated,
    /// Prompts and answers on different GPUs.
    #[error("prefill and decode on different GPUs")]
    Split,
    /// The model has layers that no term of the law stands for.
    #[error("linear or sparse attention, which no term stands for")]
    NoTerm,
    /// Columns are missing.
    #[error("nine numbers")]
    Numbers,
    /// More GPUs than a number holds.
    #[error("many GPUs")]
    ManyGpus,
    /// The catalogue lacks the GPU.
    #[error("a GPU that is not in the catalogue")]
    UnknownGpu,
    /// The load is more than memory holds.
    #[error("more sequences in flight than memory holds")]
    Memory,
}

fn run(gpu: &str, words: &[&str], numbers: &[f64]) -> Result<Run, LeftOut> {
    if words[2] != "agg" {
        return Err(LeftOut::Split);
    }
    let has_terms = |model: &Model| !matches!(model.beyond_training(), Some((true, _)));
    let model = engine::model::of_checkpoint(words[3]).filter(has_terms);
    let model = model.ok_or(LeftOut::NoTerm)?;
    let given = |value: f64| if value >= 1.0 { value } else { 1.0 };
    let [prompt, output, batch, tp, groups, moe_tp, moe_ep, ttft, tpot] =
        <[f64; 9]>::try_from(numbers).map_err(|_| LeftOut::Numbers)?;
    let (tp, groups) = (given(tp), given(groups));
    // Some rows write the degrees of overlapping groups on one node: 64 is eight GPUs, 16 is four.
    let folded = tp * groups > NODE;
    let wide = given(moe_tp) * given(moe_ep);
    let gpus = if folded { (tp * groups).sqrt() } else { (tp * groups).max(if wide <= NODE { wide } else { 1.0 }) };
    let groups = if folded { if groups > 1.0 { gpus } else { 1.0 } } else { gpus / tp };
    let held = words[5].split("silicon_concurrency=").nth(1).and_then(|rest| {
        rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse::<u64>().ok())
    });
    let small = |value: f64| u32::try_from(hw::whole(value)).map_err(|_| LeftOut::ManyGpus);
    let run = Run {
        framework: words[1].to_owned(),
        model,
        gpu: hw::catalog::gpu(gpu).ok_or(LeftOut::UnknownGpu)?,
        format: match words[4] {
            "fp8" => Format::Fp8,
            "fp4" | "int4" => Format::FourBitExperts,
            _ => Format::Bf16,
        },
        gpus: small(gpus)?,
        attention_groups: small(groups)?,
        sizes: [hw::whole(prompt), hw::whole(output), held.unwrap_or(hw::whole(batch * groups))],
        ttft_s: ttft / 1e3,
        tpot_s: tpot / 1e3,
    };
    if run.setting().refused().is_some() {
        return Err(LeftOut::Memory);
    }
    Ok(run)
}

/// Laws of every framework and kind of model that has enough settings.
#[must_use]
pub fn fit(runs: &[Run], provenance: &Provenance) -> Laws {
    let mut gpus: Vec<String> = runs.iter().map(|run| run.gpu.name.clone()).collect();
    gpus.sort();
    gpus.dedup();
    Laws {
        schema: SCHEMA.to_owned(),
        source: provenance.source.clone(),
        date: provenance.date.clone(),
        gpus,
        law: groups(runs).par_iter().filter_map(|runs| law(runs)).collect(),
    }
}

/// Runs by framework and kind of model.
fn groups(runs: &[Run]) -> Vec<Vec<&Run>> {
    let mut groups: BTreeMap<(&str, bool), Vec<&Run>> = BTreeMap::new();
    for run in runs {
        groups.entry((&run.framework, run.model.experts.is_some())).or_default().push(run);
    }
    groups.into_values().collect()
}

/// A law with the errors of its cross-validation; `None` with too few settings.
fn law(runs: &[&Run]) -> Option<Law> {
    if runs.len() < SETTINGS_MIN {
        return None;
    }
    let law = coefficients(runs);
    let [ttft, tpot] = errors(runs, Split::Settings);
    let other_models = (law.models.len() > 1).then(|| errors(runs, Split::Models));
    Some(Law { ttft, tpot, other_models, ..law })
}

/// Errors of TTFT and TPOT, each run by a fit that has not seen its part.
fn errors(runs: &[&Run], split: Split) -> [Residuals; 2] {
    let mut ratios: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    let parts: BTreeSet<String> = runs.iter().map(|run| split.part(run)).collect();
    for part in parts {
        let (unseen, seen): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(|run| split.part(run) == part);
        if seen.is_empty() {
            continue;
        }
        let law = coefficients(&seen);
        for run in unseen {
            let setting = run.setting();
            ratios[0].push(run.ttft_s / law.ttft_s(&setting).max(MOMENT_S));
            ratios[1].push(run.tpot_s / law.tpot_s(&setting).max(MOMENT_S));
        }
    }
    ratios.map(|ratios| conformal(&ratios))
}

/// Errors with the interval that a new setting lies in with 90 % probability (Vovk et al. 2005; ranks of n + 1).
fn conformal(ratios: &[f64]) -> Residuals {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = hw::real(sorted.len() as u64);
    let outside = usize::try_from(hw::whole(((n + 1.0) * TAIL).floor())).expect("fewer than the rows").max(1);
    let (low, high) = (ten_thousandths(sorted[outside - 1]), ten_thousandths(sorted[sorted.len() - outside]));
    Residuals { low: low.min(1.0), high: high.max(1.0), n_fit: sorted.len(), ..residuals(ratios, 0) }
}

/// Coefficients by themselves.
fn coefficients(runs: &[&Run]) -> Law {
    let round = |value: &f64| format!("{value:.4e}").parse::<f64>().expect("a number that was just written");
    let solved = |terms: &dyn Fn(&Run) -> Vec<f64>, measured: &dyn Fn(&Run) -> f64| -> Vec<f64> {
        let row = |run: &&Run| terms(run).iter().map(|x| x / measured(run)).collect::<Vec<f64>>();
        non_negative(&runs.iter().map(row).collect::<Vec<_>>(), &vec![1.0; runs.len()], ROBUST)
            .iter()
            .map(round)
            .collect()
    };
    let part = |values: &[f64]| -> [f64; 4] { values.try_into().expect("four terms of a prompt") };
    let tpot = solved(
        &|run| {
            let setting = run.setting();
            let stalls = setting.stalls();
            let mut terms = setting.step().to_vec();
            terms.extend(setting.prompt_terms().map(|x| x * stalls));
            terms
        },
        &|run| run.tpot_s,
    );
    let unknown = Residuals { n_fit: 0, n_held_out: 0, median_error: 0.0, p90_error: 0.0, low: 1.0, high: 1.0 };
    let mut law = Law {
        framework: runs[0].framework.clone(),
        experts: runs[0].model.experts.is_some(),
        models: runs.iter().map(|run| run.model.name.clone()).collect::<BTreeSet<String>>().into_iter().collect(),
        hull: hull(runs),
        step: tpot[..9].try_into().expect("nine terms of an iteration"),
        stall: part(&tpot[9..]),
        first: [0.0; 3],
        alone: [0.0; 4],
        queued: [0.0; 4],
        tpot: unknown.clone(),
        ttft: unknown,
        other_models: None,
    };
    let first = solved(
        &|run| {
            let setting = run.setting();
            Law::first_terms(&setting, law.tpot_s(&setting)).to_vec()
        },
        &|run| run.ttft_s,
    );
    law.first = first[..3].try_into().expect("three terms of a first token");
    (law.alone, law.queued) = (part(&first[3..7]), part(&first[7..]));
    law
}

fn hull(runs: &[&Run]) -> Hull {
    let span = |of: &dyn Fn(&Run) -> u64| {
        let values = || runs.iter().map(|run| of(run));
        [values().min().unwrap_or(0), values().max().unwrap_or(0)]
    };
    Hull {
        gpus: span(&|run| run.gpus.into()),
        prompt: span(&|run| run.sizes[0]),
        output: span(&|run| run.sizes[1]),
        concurrency: span(&|run| run.sizes[2]),
    }
}

/// What is left out of a fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// A fifth of the settings.
    Settings,
    /// All runs of a model.
    Models,
}

impl Split {
    fn part(self, run: &Run) -> String {
        match self {
            Self::Settings => run.fold().to_string(),
            Self::Models => run.model.name.clone(),
        }
    }
}

/// Every run with what a fit says that has not seen its part, nor fitted its interval to it; runs whose part is all that a framework
/// and kind of model has are left out.
#[must_use]
pub fn held_out(runs: &[Run], split: Split) -> Vec<(&Run, Steady)> {
    let mut jobs: Vec<(Vec<&Run>, String)> = Vec::new();
    for group in groups(runs) {
        let parts: BTreeSet<String> = group.iter().map(|run| split.part(run)).collect();
        jobs.extend(parts.into_iter().map(|part| (group.clone(), part)));
    }
    let predicted = |(group, part): (Vec<&'_ Run>, String)| {
        let (unseen, seen): (Vec<&Run>, Vec<&Run>) = group.iter().partition(|run| split.part(run) == part);
        let law = law(&seen);
        unseen.into_iter().filter_map(|run| Some((run.key(), law.as_ref()?.steady(&run.setting())))).collect::<Vec<_>>()
    };
    let steady: BTreeMap<String, Steady> = jobs.into_par_iter().flat_map_iter(predicted).collect();
    runs.iter().filter_map(|run| Some((run, *steady.get(&run.key())?))).collect()
}
