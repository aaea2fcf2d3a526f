//! A profile calibrated on measured runs: two factors on its times and the time from a client to the queue, chosen so that what is played agrees.
//!
//! Chosen is what makes the mean of |ln predicted / measured| least, of TTFT and of TPOT alike, plus a price for every factor that is not 1. What is off
//! by more than double counts little. So a run that says nothing of a factor leaves it alone, and one that waited pulls no cost. The search walks over a lattice of factors in ever smaller steps and stops at the
//! smallest. How well it carries over is asked of settings that it has not seen: one part of the settings of a kind chooses, the others are scored.
//! Units: seconds.

use std::collections::{BTreeMap, BTreeSet};

use engine::cost::CostModel;
use engine::cost::calibrated::Calibrated;
use hw::quantile::median;
use hw::{Cluster, Seconds};
use rayon::prelude::*;
use serve::engine_constants::EngineConstants;

use crate::play;
use crate::residual::{Corrected, folds, groups, kind, off};
use crate::run::Run;
use crate::select::Selection;
use crate::setup::{self, Setup};
use crate::summary;

/// Times from a client to the queue that may be chosen, seconds; the first is that of the engine.
const STARTS_S: [f64; 8] = [0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.12, 0.18];
/// Steps of the logarithm of a factor, one after the other: 22, 10, 5 and 2.5 %.
const STEPS: [f64; 4] = [0.2, 0.1, 0.05, 0.025];
/// What a factor of e costs, in the mean error.
const PRICE: f64 = 0.02;
/// What another start than the engine's costs.
const START_PRICE: f64 = 0.002;
/// Distance from which on a run counts less: the logarithm of two.
const DOUBLE: f64 = std::f64::consts::LN_2;
/// What counts of the distance beyond.
const REST: f64 = 0.1;
/// Settings of a kind for each of its parts, at least.
const SETTINGS_PER_PART: usize = 2;

/// Predicted over measured TTFT and TPOT of every run: by start, then by run. TPOT of answers of one token is 1.
pub type Ratios = Vec<Vec<[f64; 2]>>;

/// Chooses; `play` predicts all runs with factors on arithmetic and on memory, for every start that is asked. A start that somebody wrote is not chosen.
pub fn choose(usual_start_s: f64, is_start_open: bool, play: &dyn Fn([f64; 2], &[f64]) -> Ratios) -> Calibrated {
    let mut starts = vec![usual_start_s];
    starts.extend(STARTS_S.iter().filter(|start| is_start_open && (**start - usual_start_s).abs() > 1e-9));
    let at = |place: [f64; 2]| {
        let played = play(place.map(libm::exp), &starts);
        let costs = played.iter().enumerate().map(|(index, ratios)| {
            let of_start = if index == 0 { 0.0 } else { START_PRICE };
            (error(ratios) + PRICE * (place[0].abs() + place[1].abs()) + of_start, index)
        });
        costs.min_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or((f64::INFINITY, 0))
    };
    let mut known: BTreeMap<[i32; 2], (f64, usize)> = BTreeMap::new();
    let mut best = [0_i32; 2];
    for (level, _) in STEPS.iter().enumerate() {
        let step = 1 << (STEPS.len() - 1 - level);
        best = walked(best, step, &mut |place| {
            *known.entry(place).or_insert_with(|| at(place.map(|n| f64::from(n) * STEPS[STEPS.len() - 1])))
        });
    }
    let [compute, memory] = best.map(|n| libm::exp(f64::from(n) * STEPS[STEPS.len() - 1]));
    Calibrated { compute, memory, ..Calibrated::plain(starts[known[&best].1]) }
}

/// The place from which no neighbour a step away is better; 40 steps at most, which is a factor of `e^8`.
fn walked(from: [i32; 2], step: i32, cost: &mut dyn FnMut([i32; 2]) -> (f64, usize)) -> [i32; 2] {
    let mut best = from;
    for _ in 0..40 {
        let neighbours = [[step, 0], [-step, 0], [0, step], [0, -step]].map(|by| [best[0] + by[0], best[1] + by[1]]);
        let inside = neighbours.into_iter().filter(|place| place.iter().all(|n| n.abs() <= LATTICE_MAX));
        let next = inside.min_by(|one, other| cost(*one).0.total_cmp(&cost(*other).0));
        match next {
            Some(next) if cost(next).0 < cost(best).0 - 1e-12 => best = next,
            _ => break,
        }
    }
    best
}

/// Farthest place of the lattice: a factor of 7.
const LATTICE_MAX: i32 = 80;

/// Mean of the logarithms' distances, of both latencies. What is off by more than double counts a tenth of the rest: requests that wait make such
/// errors, and no factor on a cost says them.
fn error(ratios: &[[f64; 2]]) -> f64 {
    let distance = |ratio: &f64| {
        let off = libm::log(ratio.max(1e-9)).abs();
        off.min(DOUBLE) + REST * (off - DOUBLE).max(0.0)
    };
    let each = ratios.iter().flatten().map(distance);
    each.sum::<f64>() / hw::real(2 * ratios.len().max(1) as u64)
}

/// Costs of a machine for an engine, its profile calibrated or not.
pub type Costs<'c> = dyn Fn(&Cluster, &str, Option<&Calibrated>) -> Box<dyn CostModel> + Sync + 'c;

/// A run that can be played.
struct Known {
    run: Run,
    setup: Setup,
}

/// Calibrates on every one of so many parts of the settings of a kind and scores the others, for kinds that have enough settings; errors of all, and
/// by engine, card and model.
pub fn refitted(
    runs: Vec<Run>,
    only: &Selection,
    n_parts: usize,
    costs: &Costs<'_>,
    done: &(dyn Fn() + Sync),
) -> Vec<Corrected> {
    let known = summary::asked(runs, only).into_iter().filter_map(|run| {
        let setup = setup::of(&run).ok();
        if setup.is_none() {
            done();
        }
        setup.map(|setup| Known { run, setup })
    });
    let mut kinds: BTreeMap<String, Vec<Known>> = BTreeMap::new();
    for known in known {
        kinds.entry(kind(&known.run)).or_default().push(known);
    }
    let kinds: Vec<Vec<Known>> = kinds.into_values().collect();
    let scored: Vec<Scored<'_>> = kinds.par_iter().flat_map_iter(|runs| of_kind(runs, n_parts, costs, done)).collect();
    let runs: Vec<&Run> = scored.iter().map(|scored| scored.run).collect();
    let errors = |(group, members): (String, Vec<usize>)| {
        let side = |ratios: fn(&Scored<'_>) -> [f64; 2], side: usize| {
            let errors = members.iter().map(|index| off(-libm::log(ratios(&scored[*index])[side])));
            median(&errors.collect::<Vec<f64>>())
        };
        Corrected {
            group,
            n_runs: members.len(),
            before: [0, 1].map(|latency| side(|scored| scored.before, latency)),
            after: [0, 1].map(|latency| side(|scored| scored.after, latency)),
        }
    };
    groups(&runs).into_iter().filter(|(_, members)| !members.is_empty()).map(errors).collect()
}

/// Predicted over measured latencies of a run that chose nothing.
struct Scored<'r> {
    run: &'r Run,
    before: [f64; 2],
    after: [f64; 2],
}

/// Runs of one kind, each scored by every part that it is not of.
fn of_kind<'r>(runs: &'r [Known], n_parts: usize, costs: &Costs<'_>, done: &(dyn Fn() + Sync)) -> Vec<Scored<'r>> {
    let all: Vec<&Run> = runs.iter().map(|known| &known.run).collect();
    let n_settings = all.iter().map(|run| run.setting()).collect::<BTreeSet<String>>().len();
    let mut scored = Vec::new();
    if n_settings >= SETTINGS_PER_PART * n_parts {
        let parts = folds(&all, n_parts);
        let plain: Vec<[f64; 2]> = runs.iter().map(|known| played(known, None, costs)).collect();
        for part in 0..n_parts {
            let seen: Vec<&Known> =
                runs.iter().zip(&parts).filter(|(_, of)| **of == part).map(|(run, _)| run).collect();
            let usual = seen[0].setup.constants.start.get();
            let found = choose(usual, true, &|factors, starts| ratios(&seen, factors, starts, costs));
            for ((known, of), before) in runs.iter().zip(&parts).zip(&plain) {
                if *of != part {
                    let after = played(known, Some(&found), costs);
                    scored.push(Scored { run: &known.run, before: *before, after });
                }
            }
        }
    }
    runs.iter().for_each(|_| done());
    scored
}

/// Ratios of some runs with factors, for every start.
fn ratios(runs: &[&Known], [compute, memory]: [f64; 2], starts: &[f64], costs: &Costs<'_>) -> Ratios {
    let found = Calibrated { compute, memory, ..Calibrated::plain(0.0) };
    let of_run = |known: &&Known| of_starts(known, Some(&found), starts, costs);
    let by_run: Vec<Vec<[f64; 2]>> = runs.par_iter().map(of_run).collect();
    (0..starts.len()).map(|start| by_run.iter().map(|ratios| ratios[start]).collect()).collect()
}

/// Ratios of a run as calibrated.
fn played(known: &Known, found: Option<&Calibrated>, costs: &Costs<'_>) -> [f64; 2] {
    let start = found.map_or(known.setup.constants.start.get(), |found| found.start_s);
    of_starts(known, found, &[start], costs)[0]
}

fn of_starts(known: &Known, found: Option<&Calibrated>, starts: &[f64], costs: &Costs<'_>) -> Vec<[f64; 2]> {
    let Known { run, setup } = known;
    let constants = |start: &f64| EngineConstants { start: Seconds::new(*start), ..setup.constants };
    let choices: Vec<EngineConstants> = starts.iter().map(constants).collect();
    let of_machine = |cluster: &Cluster, engine: &str| costs(cluster, engine, found);
    let means = play::means(setup, &run.engine, &of_machine, &choices);
    means.into_iter().map(|[ttft_s, tpot_s]| [ttft_s / run.ttft_s, tpot_s / run.tpot_s]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine whose prompts take `a · compute + start` and whose tokens take `b · memory`, where the truth has factors of its own.
    fn of_truth(compute: f64, memory: f64, start: f64) -> Calibrated {
        let played = |factors: [f64; 2], starts: &[f64]| {
            let run = |a: f64, at: f64| {
                let ttft = (a * factors[0] + at) / (a * compute + start);
                [ttft, factors[1] / memory]
            };
            starts.iter().map(|at| vec![run(0.1, *at), run(0.4, *at), run(1.6, *at)]).collect()
        };
        choose(0.02, true, &played)
    }

    #[test]
    fn factors_and_start_are_found_where_runs_tell_them_apart() {
        // 1.22 and 0.9 lie within 2.5 % of the lattice.
        let found = of_truth(1.22, 0.9, 0.08);
        assert!((found.compute / 1.22 - 1.0).abs() < 0.03 && (found.memory / 0.9 - 1.0).abs() < 0.03, "{found:?}");
        assert!((found.start_s - 0.08).abs() < 1e-9, "{found:?}");
    }

    /// Six runs say 1.2, and two that waited are off by six times: they pull the factor no further.
    #[test]
    fn runs_that_waited_pull_no_cost() {
        let truth = [1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 7.0, 7.0];
        let played = |factors: [f64; 2], starts: &[f64]| {
            starts.iter().map(|_| truth.iter().map(|truth| [factors[0] / truth, 1.0]).collect()).collect()
        };
        let found = choose(0.0, false, &played);
        assert!((found.compute / 1.2 - 1.0).abs() < 0.03, "{found:?}");
    }

    /// All runs are off by five times: that is a cost, and it is found.
    #[test]
    fn a_factor_that_all_runs_ask_for_is_found_far_away() {
        let played =
            |factors: [f64; 2], starts: &[f64]| vec![vec![[factors[0] / 5.0, factors[1] / 5.0]; 4]; starts.len()];
        let found = choose(0.0, false, &played);
        assert!((found.compute / 5.0 - 1.0).abs() < 0.03 && (found.memory / 5.0 - 1.0).abs() < 0.03, "{found:?}");
    }

    #[test]
    fn what_agrees_already_is_left_alone() {
        assert_eq!(of_truth(1.0, 1.0, 0.02), Calibrated::plain(0.02));
    }

    #[test]
    fn a_factor_that_no_run_says_anything_of_stays() {
        let played = |factors: [f64; 2], starts: &[f64]| vec![vec![[1.0, factors[1] / 1.5]]; starts.len()];
        let found = choose(0.0, true, &played);
        assert!((found.compute - 1.0).abs() < 1e-12 && (found.memory / 1.5 - 1.0).abs() < 0.03, "{found:?}");
    }
}
