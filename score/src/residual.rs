//! What the request loop leaves over, learned from other settings: the ratio of measured to predicted, by kernel ridge regression on its logarithm.
//!
//! A setting is what stays the same when it is measured again. Settings are dealt into folds, and every fold is corrected by what the others say, so a
//! corrected error is one on settings that nobody has seen. The kernel has no scale that was fitted: an offset of the engine, one of its model on its
//! card, and a part that fades with the distance in lengths, load and GPUs, by a factor of e over a factor of four in each. Rows that lie far off count
//! as if they lay `CLIP` away (Huber's weights). Source: C. Saunders, A. Gammerman, V. Vovk, "Ridge regression learning algorithm in dual variables",
//! ICML 1998. Units: logarithms of ratios.

use std::collections::{BTreeMap, BTreeSet};

use hw::quantile::median;

use crate::run::Run;
use crate::select::Key;
use crate::summary::{Score, Scored};

/// Variance of what a run adds to its setting, in that of the kernel's parts.
const NOISE: f64 = 0.1;
/// Distance from which on a row counts less.
const CLIP: f64 = 0.2;
/// Rounds of Huber's weights.
const ROUNDS: usize = 4;
/// Distance over which what is near fades by a factor of e: a factor of four.
const FADES_OVER: f64 = 4.0;

/// Errors before and after the correction, on settings that were not seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Corrected {
    /// What the runs have in common.
    pub group: String,
    /// Runs.
    pub n_runs: usize,
    /// Median errors of TTFT and TPOT as they are predicted.
    pub before: [f64; 2],
    /// The same corrected.
    pub after: [f64; 2],
}

/// A run as the kernel sees it.
pub(crate) struct Place {
    pub engine: String,
    pub kind: String,
    /// Logarithms of prompt, answer, requests in flight and GPUs, in units of `FADES_OVER`.
    pub at: [f64; 4],
    /// Logarithms of measured over predicted TTFT and TPOT.
    pub ratios: [f64; 2],
    pub fold: usize,
}

/// Corrects every fold of settings by the others; errors of all runs, and by engine, card and model.
pub fn corrected(score: &Score, n_folds: usize) -> Vec<Corrected> {
    let runs: Vec<&Scored> = score.runs.iter().filter(|scored| place(scored, 0).is_some()).collect();
    let of_runs: Vec<&Run> = runs.iter().map(|scored| &scored.run).collect();
    let folds = folds(&of_runs, n_folds);
    let places: Vec<Place> = runs.iter().zip(folds).filter_map(|(scored, fold)| place(scored, fold)).collect();
    of_groups(&of_runs, &places, &by_others(&places))
}

/// Corrections of every fold by the others.
pub(crate) fn by_others(places: &[Place]) -> Vec<[f64; 2]> {
    let folds: BTreeSet<usize> = places.iter().map(|place| place.fold).collect();
    let mut after = vec![[0.0; 2]; places.len()];
    for fold in folds {
        for side in 0..2 {
            correct(places, fold, side, &mut after);
        }
    }
    after
}

/// Errors of all runs and of those of every card, engine and model before and after a correction.
pub(crate) fn of_groups(runs: &[&Run], places: &[Place], after: &[[f64; 2]]) -> Vec<Corrected> {
    groups(runs).into_iter().map(|(group, members)| errors(group, &members, places, after)).collect()
}

/// Positions of all runs, and of those of every card, engine and model.
pub(crate) fn groups(runs: &[&Run]) -> Vec<(String, Vec<usize>)> {
    let mut groups = vec![("all".to_owned(), (0..runs.len()).collect::<Vec<usize>>())];
    for key in [Key::Card, Key::Engine, Key::Model] {
        let mut members: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, run) in runs.iter().enumerate() {
            members.entry(key.of(run)).or_default().push(index);
        }
        groups.extend(members);
    }
    groups
}

/// Errors of a group before and after the correction.
fn errors(group: String, members: &[usize], places: &[Place], after: &[[f64; 2]]) -> Corrected {
    let of_side = |side: usize| {
        let left = |index: &usize| places[*index].ratios[side];
        [
            median(&members.iter().map(|index| off(left(index))).collect::<Vec<f64>>()),
            median(&members.iter().map(|index| off(left(index) - after[*index][side])).collect::<Vec<f64>>()),
        ]
    };
    let [ttft, tpot] = [0, 1].map(of_side);
    Corrected { group, n_runs: members.len(), before: [ttft[0], tpot[0]], after: [ttft[1], tpot[1]] }
}

/// Error of a prediction that leaves over a logarithm of measured over predicted.
pub(crate) fn off(left_over: f64) -> f64 {
    (libm::exp(-left_over) - 1.0).abs()
}

/// Fold of every run: settings are dealt in their order, runs of one setting together.
pub(crate) fn folds(runs: &[&Run], n_folds: usize) -> Vec<usize> {
    let mut settings: Vec<String> = runs.iter().map(|run| run.setting()).collect();
    let of_runs = settings.clone();
    settings.sort_unstable();
    settings.dedup();
    let mut order: Vec<usize> = (0..settings.len()).collect();
    engine::random::stream(0, "folds of settings").shuffle(&mut order);
    let places = of_runs.iter().map(|setting| settings.binary_search(setting).expect("one of them"));
    places.map(|place| order[place] % n_folds).collect()
}

pub(crate) fn place(scored: &Scored, fold: usize) -> Option<Place> {
    let (run, found) = (&scored.run, scored.outcome.as_ref().ok()?);
    let ratios = [run.ttft_s / found.ttft.mean, run.tpot_s / found.tpot.mean].map(libm::log);
    let at = at(sizes(run)?);
    ratios.iter().all(|ratio| ratio.is_finite()).then(|| Place {
        engine: run.engine.clone(),
        kind: kind(run),
        at,
        ratios,
        fold,
    })
}

/// Tokens of prompt and answer, requests in flight and GPUs.
pub(crate) fn sizes(run: &Run) -> Option<[u32; 4]> {
    Some([run.prompt, run.output, run.in_flight?, run.n_gpus()?])
}

/// Where sizes lie for the kernel.
pub(crate) fn at(sizes: [u32; 4]) -> [f64; 4] {
    sizes.map(|size| libm::log(f64::from(size)) / libm::log(FADES_OVER))
}

/// What ran where.
pub(crate) fn kind(run: &Run) -> String {
    [Key::Engine, Key::Version, Key::Model, Key::Card, Key::Format, Key::Mode].map(|key| key.of(run)).join("|")
}

/// How much two runs have to do with each other.
fn kernel(one: &Place, other: &Place) -> f64 {
    nearness([one.engine == other.engine, one.kind == other.kind], &one.at, &other.at)
}

/// The same of runs that may share the engine, and what ran where.
pub(crate) fn nearness([is_engine, is_kind]: [bool; 2], one: &[f64; 4], other: &[f64; 4]) -> f64 {
    let squares: f64 = one.iter().zip(other).map(|(a, b)| (a - b) * (a - b)).sum();
    let near = libm::exp(-squares);
    let [engine, kind] = [is_engine, is_kind].map(|is_same| f64::from(u8::from(is_same)));
    engine * (0.25 + 0.25 * near) + kind * (1.0 + near)
}

/// Corrections of a fold by the others.
fn correct(places: &[Place], fold: usize, side: usize, after: &mut [[f64; 2]]) {
    let seen: Vec<&Place> = places.iter().filter(|place| place.fold != fold).collect();
    let weights = robust(&seen, side);
    for (place, found) in places.iter().zip(after) {
        if place.fold == fold {
            found[side] = seen.iter().zip(&weights).map(|(other, weight)| kernel(place, other) * weight).sum();
        }
    }
}

/// Weights of the seen runs in the prediction of others.
pub(crate) fn robust(seen: &[&Place], side: usize) -> Vec<f64> {
    let n = seen.len();
    let gram: Vec<Vec<f64>> = seen.iter().map(|one| seen.iter().map(|other| kernel(one, other)).collect()).collect();
    let targets: Vec<f64> = seen.iter().map(|place| place.ratios[side]).collect();
    let mut noises = vec![NOISE; n];
    let mut weights = Vec::new();
    for _ in 0..ROUNDS {
        let mut matrix = gram.clone();
        for (index, noise) in noises.iter().enumerate() {
            matrix[index][index] += noise;
        }
        weights = solved(matrix, &targets);
        for (index, noise) in noises.iter_mut().enumerate() {
            // What is left over at a seen run is its noise times its weight.
            let left_over = (*noise * weights[index]).abs();
            *noise = NOISE * (left_over / CLIP).max(1.0);
        }
    }
    weights
}

/// Solves a symmetric positive definite system by Cholesky's decomposition.
fn solved(mut matrix: Vec<Vec<f64>>, right: &[f64]) -> Vec<f64> {
    let n = right.len();
    for column in 0..n {
        let (above, below) = matrix.split_at_mut(column + 1);
        let first = &mut above[column];
        let of_column: f64 = first[..column].iter().map(|value| value * value).sum();
        let pivot = (first[column] - of_column).sqrt();
        assert!(pivot > 0.0, "noise keeps the matrix positive definite");
        first[column] = pivot;
        for row in below {
            let product: f64 = row[..column].iter().zip(&first[..column]).map(|(a, b)| a * b).sum();
            row[column] = (row[column] - product) / pivot;
        }
    }
    let mut solution = right.to_vec();
    for index in 0..n {
        let known: f64 = matrix[index][..index].iter().zip(&solution[..index]).map(|(a, b)| a * b).sum();
        solution[index] = (solution[index] - known) / matrix[index][index];
    }
    for index in (0..n).rev() {
        let known: f64 = (index + 1..n).map(|row| matrix[row][index] * solution[row]).sum();
        solution[index] = (solution[index] - known) / matrix[index][index];
    }
    solution
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(kind: &str, load: f64, ratio: f64, fold: usize) -> Place {
        let at = [0.0, 0.0, load, 0.0];
        Place { engine: "e".to_owned(), kind: kind.to_owned(), at, ratios: [ratio, 0.0], fold }
    }

    #[test]
    fn a_system_is_solved() {
        // 4x + 2y = 8 and 2x + 3y = 8: x = 1, y = 2.
        let found = solved(vec![vec![4.0, 2.0], vec![2.0, 3.0]], &[8.0, 8.0]);
        assert!((found[0] - 1.0).abs() < 1e-12 && (found[1] - 2.0).abs() < 1e-12);
    }

    #[test]
    fn what_all_runs_of_a_kind_have_is_learned_and_others_are_left_nearly_alone() {
        let mut places: Vec<Place> = (0..20).map(|n| place("a", f64::from(n) / 4.0, 0.5, 0)).collect();
        places.extend((0..20).map(|n| place("b", f64::from(n) / 4.0, 0.0, 0)));
        places.push(place("a", 2.1, 0.5, 1));
        places.push(place("b", 2.1, 0.0, 1));
        let mut after = vec![[0.0; 2]; places.len()];
        correct(&places, 1, 0, &mut after);
        assert!((after[40][0] - 0.5).abs() < 0.03, "{}", after[40][0]);
        assert!(after[41][0].abs() < 0.03, "{}", after[41][0]);
    }

    #[test]
    fn one_row_that_lies_far_off_moves_little() {
        let mut places: Vec<Place> = (0..9).map(|_| place("a", 1.0, 0.0, 0)).collect();
        places.push(place("a", 1.0, 5.0, 0));
        places.push(place("a", 1.0, 0.0, 1));
        let mut after = vec![[0.0; 2]; places.len()];
        correct(&places, 1, 0, &mut after);
        // Their mean is 0.5.
        assert!(after[10][0].abs() < 0.15, "{}", after[10][0]);
    }
}
