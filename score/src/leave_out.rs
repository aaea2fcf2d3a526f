//! Errors on runs that nothing fitted has seen: constants of an engine are chosen without a model's or a card's runs, and a card is played with another
//! card's tables.
//!
//! Constants are chosen from a lattice, the same for every engine, over the runs that may be seen: those of the same engine on cards that have tables.
//! Every model has the sum of its median errors of TTFT and TPOT, at most 1, and the weight of the square root of its runs. The mean over models counts. So
//! no model with many runs, or with a trouble of its own, chooses for all others, and a constant that few models hang on is still seen. Among choices that are as
//! good the one with the fewest constants holds. Every choice is played once for every run, so all groups share the work. Units: seconds.

use std::collections::BTreeMap;

use engine::cost::CostModel;
use hw::quantile::median;
use hw::{Cluster, Seconds};
use rayon::prelude::*;
use serve::engine_constants::{self, EngineConstants};

use crate::play;
use crate::run::Run;
use crate::select::{Key, Selection};
use crate::setup;
use crate::summary;

/// Host times of an iteration that may be chosen, microseconds.
const PER_STEP_US: [f64; 2] = [0.0, 1200.0];
/// Of a sequence.
const PER_SEQUENCE_US: [f64; 3] = [0.0, 45.0, 75.0];
/// Of a layer of an iteration with prompts, without experts and with them, and the least of an intricate one.
const PER_LAYER_US: [[f64; 3]; 6] = [
    [0.0; 3],
    [600.0, 600.0, 0.0],
    [600.0, 600.0, 2000.0],
    [0.0, 1200.0, 0.0],
    [0.0, 1200.0, 2000.0],
    [600.0, 1800.0, 0.0],
];
/// Times from sending to the engine's queue, milliseconds.
const START_MS: [f64; 7] = [10.0, 15.0, 20.0, 40.0, 70.0, 100.0, 180.0];
/// Those of them that are played, by position; latencies of the others lie on the lines between, because a start is added to what a request takes.
const START_PLAYED: [usize; 3] = [0, 3, 6];

/// Difference of two errors that says nothing.
const AS_GOOD: f64 = 0.001;
/// Most that the errors of a model count.
const ERROR_MAX: f64 = 1.0;

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

impl Left {
    /// By its word; a model where it is no card.
    pub fn named(word: &str) -> Self {
        if word == "card" { Self::Card } else { Self::Model }
    }

    /// How often so many runs are played: with their own tables, and where cards are left out with a neighbour's too.
    pub const fn n_plays(self, n_runs: usize) -> usize {
        match self {
            Self::Model => n_runs,
            Self::Card => 2 * n_runs,
        }
    }
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
pub fn lattice() -> Vec<EngineConstants> {
    let mut all = Vec::new();
    for per_step in PER_STEP_US {
        for per_sequence in PER_SEQUENCE_US {
            for [per_layer, per_expert_layer, per_intricate_layer] in PER_LAYER_US {
                all.extend(START_MS.map(|start| EngineConstants {
                    host_per_step: us(per_step),
                    host_per_sequence: us(per_sequence),
                    host_per_layer: us(per_layer),
                    host_per_expert_layer: us(per_expert_layer),
                    host_per_intricate_layer: us(per_intricate_layer),
                    start: us(start * 1e3),
                    tokenize: engine_constants::tokenize(),
                    ..engine_constants::NONE
                }));
            }
        }
    }
    all
}

/// Microseconds as seconds.
fn us(time: f64) -> Seconds {
    Seconds::new(time * 1e-6)
}

/// Leaves every model or card out of the runs that are asked for; `done` is called as each run ends.
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
    for (group, held) in groups {
        found.push(left_out(group, &held, &by_own, (key, &choices)));
    }
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
    let of_played: Vec<EngineConstants> =
        choices.chunks(START_MS.len()).flat_map(|starts| START_PLAYED.map(|at| starts[at])).collect();
    let played = play::means(&setup, &run.engine, &of_tables, &of_played);
    let means = played.chunks(START_PLAYED.len()).flat_map(on_lines);
    let ratios = means.map(|[ttft_s, tpot_s]| [ttft_s / run.ttft_s, tpot_s / run.tpot_s]).collect();
    Some(Played { run: run.clone(), tables: card, ratios })
}

/// Latencies at every start from those that are played.
fn on_lines(played: &[[f64; 2]]) -> [[f64; 2]; START_MS.len()] {
    std::array::from_fn(|at| {
        let above = START_PLAYED.iter().position(|known| *known >= at).unwrap_or(START_PLAYED.len() - 1).max(1);
        let [low, high] = [above - 1, above].map(|end| START_MS[START_PLAYED[end]]);
        let share = (START_MS[at] - low) / (high - low);
        [0, 1].map(|side| played[above - 1][side] * (1.0 - share) + played[above][side] * share)
    })
}

/// A group with constants that were chosen on runs outside of it.
fn left_out(group: String, held: &[&Played], all: &[Played], (key, choices): (Key, &[EngineConstants])) -> LeftOut {
    let mut chosen: BTreeMap<&str, usize> = BTreeMap::new();
    for played in held {
        let engine = played.run.engine.as_str();
        if chosen.contains_key(engine) {
            continue;
        }
        let may_be_seen = |other: &&Played| {
            other.run.engine == engine && other.tables == other.run.card && key.of(&other.run) != group
        };
        let seen: Vec<&Played> = all.iter().filter(may_be_seen).collect();
        chosen.insert(engine, best(&seen, choices));
    }
    let ratios: Vec<[f64; 2]> = held.iter().map(|played| played.ratios[chosen[played.run.engine.as_str()]]).collect();
    let mut tables: Vec<String> = held.iter().map(|played| played.tables.clone()).collect();
    tables.sort_unstable();
    tables.dedup();
    let name =
        |engine: &str| serve::engine_preset::names().into_iter().find(|name| *name == engine).unwrap_or_default();
    LeftOut {
        group,
        tables,
        n_runs: held.len(),
        errors: [0, 1].map(|side| off(&ratios, side)),
        biases: [0, 1].map(|side| median(&ratios.iter().map(|ratio| ratio[side]).collect::<Vec<f64>>()) - 1.0),
        constants: chosen
            .iter()
            .map(|(engine, index)| EngineConstants { engine: name(engine), ..choices[*index] })
            .collect(),
    }
}

/// The choice with the fewest constants among those whose error is within `AS_GOOD` of the least, and of those the best; the first where no run may be seen.
fn best(seen: &[&Played], choices: &[EngineConstants]) -> usize {
    let errors: Vec<f64> = (0..choices.len()).map(|index| error(seen, index)).collect();
    let least = errors.iter().copied().fold(f64::INFINITY, f64::min);
    let as_good = (0..choices.len()).filter(|index| errors[*index] <= least + AS_GOOD);
    let order =
        |a: &usize, b: &usize| n_host(&choices[*a]).cmp(&n_host(&choices[*b])).then(errors[*a].total_cmp(&errors[*b]));
    as_good.min_by(order).expect("a lattice has choices")
}

/// Sum of the median errors of both latencies with a choice, the weighted mean over models; zero where no run may be seen.
fn error(seen: &[&Played], index: usize) -> f64 {
    let mut models: BTreeMap<String, Vec<[f64; 2]>> = BTreeMap::new();
    for played in seen {
        models.entry(Key::Model.of(&played.run)).or_default().push(played.ratios[index]);
    }
    let (mut sum, mut weights) = (0.0, 0.0);
    for ratios in models.values() {
        let weight = hw::real(ratios.len() as u64).sqrt();
        sum += weight * (off(ratios, 0) + off(ratios, 1)).min(ERROR_MAX);
        weights += weight;
    }
    if weights > 0.0 { sum / weights } else { 0.0 }
}

/// Host times that are not zero.
fn n_host(constants: &EngineConstants) -> usize {
    constants.times()[..5].iter().filter(|time| **time > Seconds::ZERO).count()
}

/// Median error of one latency.
fn off(ratios: &[[f64; 2]], side: usize) -> f64 {
    median(&ratios.iter().map(|ratio| (ratio[side] - 1.0).abs()).collect::<Vec<f64>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that is predicted right by one choice, and twice too long by all others.
    fn of_model(model: &str, right: usize) -> Played {
        let run =
            crate::run::of_line(&format!("a,s,vllm,0.19.0,{model},h100_sxm,fp8,agg,1024,1024,fp8,fp8,8,1,500,20"));
        let ratios = (0..lattice().len()).map(|index| if index == right { [1.0; 2] } else { [2.0; 2] }).collect();
        Played { tables: run.card.clone(), run, ratios }
    }

    #[test]
    fn starts_between_those_that_are_played_lie_on_the_lines() {
        // 100 ms and the start; TPOT does not hang on it.
        let at = |start: f64| [100.0 + start, 7.0];
        let found = on_lines(&START_PLAYED.map(|known| at(START_MS[known])));
        for (found, start) in found.iter().zip(START_MS) {
            assert!((found[0] - at(start)[0]).abs() < 1e-9 && (found[1] - 7.0).abs() < 1e-9, "{found:?} at {start}");
        }
    }

    #[test]
    fn a_group_has_no_say_in_its_constants() {
        let choices = lattice();
        let all = [of_model("A", 3), of_model("A", 3), of_model("A", 3), of_model("B", 7)];
        let held: Vec<&Played> = all[..3].iter().collect();
        let found = left_out("A".to_owned(), &held, &all, (Key::Model, &choices));
        // B alone is right with the eighth choice, with which A is twice too long.
        assert_eq!((found.n_runs, found.errors, found.biases), (3, [1.0; 2], [1.0; 2]));
        assert_eq!(found.constants, [EngineConstants { engine: "vllm", ..choices[7] }]);
        let found = left_out(NOTHING.to_owned(), &held, &all, (Key::Model, &choices));
        assert_eq!(found.errors, [0.0; 2]);
    }

    #[test]
    fn runs_by_other_cards_tables_choose_nothing() {
        let choices = lattice();
        let borrowed = Played { tables: "h200-sxm".to_owned(), ..of_model("B", 7) };
        let all = [of_model("A", 3), borrowed, of_model("C", 4)];
        let found = left_out("A".to_owned(), &[&all[0]], &all, (Key::Model, &choices));
        assert_eq!(found.constants, [EngineConstants { engine: "vllm", ..choices[4] }]);
    }

    #[test]
    fn a_constant_that_one_model_of_three_hangs_on_is_seen() {
        let choices = lattice();
        let all = [of_model("A", 3), of_model("B", 3), of_model("C", 5)];
        let mut played = all;
        for indifferent in &mut played[..2] {
            indifferent.ratios[5] = [1.0; 2];
        }
        let seen: Vec<&Played> = played.iter().collect();
        assert_eq!(best(&seen, &choices), 5);
    }

    #[test]
    fn among_choices_that_are_as_good_the_one_with_the_fewest_constants_holds() {
        let choices = lattice();
        let last = choices.len() - 1;
        assert!(n_host(&choices[0]) == 0 && n_host(&choices[last]) == 4);
        let mut played = of_model("A", last);
        played.ratios[2] = [1.0004, 1.0];
        assert_eq!(best(&[&played], &choices), 2);
        played.ratios[2] = [1.02, 1.0];
        assert_eq!(best(&[&played], &choices), last);
    }
}
