//! Errors on runs that nothing fitted has seen: constants of an engine are chosen without a model's or a card's runs, and a card is played with another
//! card's tables.
//!
//! Constants are chosen from a lattice, the same for every engine, by the sum of the median errors of TTFT and TPOT over the runs that may be seen: runs of
//! the same engine on cards that have tables. Every choice is played once for every run, so all groups share the work. Units: seconds.

use std::collections::BTreeMap;

use engine::cost::CostModel;
use hw::{Cluster, Seconds};
use rayon::prelude::*;
use serve::engine_constants::EngineConstants;

use crate::play;
use crate::run::Run;
use crate::select::{Key, Selection};
use crate::setup;
use crate::summary::{self, median};

/// Host times of an iteration that may be chosen, microseconds.
const PER_STEP_US: [f64; 2] = [0.0, 600.0];
/// Of a sequence.
const PER_SEQUENCE_US: [f64; 3] = [0.0, 45.0, 75.0];
/// Of a layer of an iteration with prompts.
const PER_LAYER_US: [f64; 2] = [0.0, 600.0];
/// Times from sending to the engine's queue, milliseconds.
const START_MS: [f64; 6] = [10.0, 20.0, 40.0, 80.0, 120.0, 180.0];

/// The group that nobody is in: constants are chosen on the runs that they are asked about.
const NOTHING: &str = "nothing";

/// What is left out at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// All runs of a model.
    Model,
    /// All runs and the tables of a card.
    Card,
}

/// Whose tables play a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tables {
    /// The card's own, or those of its neighbour where it has none.
    Own,
    /// The neighbour's.
    Neighbour,
}

/// Costs of a machine for an engine by some card's tables, and the card that they are from.
pub type Costs<'c> = dyn Fn(&Cluster, &str, Tables) -> (Box<dyn CostModel>, String) + Sync + 'c;

/// A group that was left out.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftOut {
    /// Model or card.
    pub group: String,
    /// Whose tables play it.
    pub tables: Vec<String>,
    /// Runs with a prediction.
    pub n_runs: usize,
    /// Medians of the errors of TTFT and TPOT.
    pub errors: [f64; 2],
    /// Medians of predicted over measured, less 1.
    pub biases: [f64; 2],
    /// Constants of every engine that has runs of the group.
    pub constants: Vec<EngineConstants>,
}

/// A run with predicted over measured TTFT and TPOT for every choice of constants.
struct Played {
    run: Run,
    tables: String,
    ratios: Vec<[f64; 2]>,
}

/// Every choice of constants.
#[must_use]
pub fn lattice() -> Vec<EngineConstants> {
    let us = |time: f64| Seconds::new(time * 1e-6);
    let mut all = Vec::new();
    for per_step in PER_STEP_US {
        for per_sequence in PER_SEQUENCE_US {
            for per_layer in PER_LAYER_US {
                all.extend(START_MS.map(|start| EngineConstants {
                    host_per_step: us(per_step),
                    host_per_sequence: us(per_sequence),
                    host_per_layer: us(per_layer),
                    start: us(start * 1e3),
                    ..serve::engine_constants::NONE
                }));
            }
        }
    }
    all
}

/// Leaves every model or card out of the runs that are asked for; `done` is called as each run ends.
#[must_use]
pub fn leave_out(
    runs: Vec<Run>,
    only: &Selection,
    left: Left,
    costs: &Costs<'_>,
    done: &(dyn Fn() + Sync),
) -> Vec<LeftOut> {
    let asked: Vec<Run> = summary::asked(runs, only);
    let choices = lattice();
    let by_own = all_played(&asked, &choices, (Tables::Own, costs), done);
    let by_neighbour = match left {
        Left::Model => Vec::new(),
        Left::Card => all_played(&asked, &choices, (Tables::Neighbour, costs), done),
    };
    let key = if left == Left::Model { Key::Model } else { Key::Card };
    let mut groups: BTreeMap<String, Vec<&Played>> = BTreeMap::new();
    for played in if left == Left::Model { &by_own } else { &by_neighbour } {
        groups.entry(key.of(&played.run)).or_default().push(played);
    }
    let every: Vec<&Played> = by_own.iter().filter(|played| played.tables == played.run.card).collect();
    let mut found = vec![left_out(NOTHING.to_owned(), &every, &by_own, (key, &choices))];
    let without = |(group, held): (String, Vec<&Played>)| left_out(group, &held, &by_own, (key, &choices));
    found.extend(groups.into_iter().map(without));
    found
}

/// Every run that can be played, with every choice.
fn all_played(
    runs: &[Run],
    choices: &[EngineConstants],
    (tables, costs): (Tables, &Costs<'_>),
    done: &(dyn Fn() + Sync),
) -> Vec<Played> {
    let played = |run: &Run| {
        let found = played(run, choices, tables, costs);
        done();
        found
    };
    runs.par_iter().filter_map(played).collect()
}

fn played(run: &Run, choices: &[EngineConstants], tables: Tables, costs: &Costs<'_>) -> Option<Played> {
    let setup = setup::of(run).ok()?;
    let card = costs(&setup.parts[0].cluster, &run.engine, tables).1;
    let of_tables = |cluster: &Cluster, engine: &str| costs(cluster, engine, tables).0;
    let means = play::means(&setup, &run.engine, &of_tables, choices);
    let ratios = means.into_iter().map(|[ttft_s, tpot_s]| [ttft_s / run.ttft_s, tpot_s / run.tpot_s]).collect();
    Some(Played { run: run.clone(), tables: card, ratios })
}

/// A group with constants that were chosen on runs outside of it.
fn left_out(group: String, held: &[&Played], all: &[Played], (key, choices): (Key, &[EngineConstants])) -> LeftOut {
    let mut chosen: BTreeMap<&str, usize> = BTreeMap::new();
    for played in held {
        let engine = played.run.engine.as_str();
        let may_be_seen = |other: &&Played| {
            other.run.engine == engine && other.tables == other.run.card && key.of(&other.run) != group
        };
        let seen: Vec<&Played> = all.iter().filter(may_be_seen).collect();
        chosen.entry(engine).or_insert_with(|| best(&seen, choices.len()));
    }
    let ratios: Vec<[f64; 2]> = held.iter().map(|played| played.ratios[chosen[played.run.engine.as_str()]]).collect();
    let mut tables: Vec<String> = held.iter().map(|played| played.tables.clone()).collect();
    tables.sort_unstable();
    tables.dedup();
    let name = |engine: &str| serve::engine_preset::names().into_iter().find(|name| *name == engine).unwrap_or_default();
    LeftOut {
        group,
        tables,
        n_runs: held.len(),
        errors: [0, 1].map(|side| off(&ratios, side)),
        biases: [0, 1].map(|side| median(ratios.iter().map(|ratio| ratio[side]).collect()) - 1.0),
        constants: chosen
            .iter()
            .map(|(engine, index)| EngineConstants { engine: name(engine), ..choices[*index] })
            .collect(),
    }
}

/// The choice with the least sum of median errors; the first where no run may be seen.
fn best(seen: &[&Played], n_choices: usize) -> usize {
    let mut best = (f64::INFINITY, 0);
    for index in 0..n_choices {
        let ratios: Vec<[f64; 2]> = seen.iter().map(|played| played.ratios[index]).collect();
        let error = if ratios.is_empty() { 0.0 } else { off(&ratios, 0) + off(&ratios, 1) };
        if error < best.0 {
            best = (error, index);
        }
    }
    best.1
}

/// Median error of one latency.
fn off(ratios: &[[f64; 2]], side: usize) -> f64 {
    median(ratios.iter().map(|ratio| (ratio[side] - 1.0).abs()).collect())
}
