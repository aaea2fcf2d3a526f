//! Measured steps where the table is there, by datasheets: every row has a prediction or a reason, and parts make a step.
//!
//! Sources: NVIDIA-NeMo/RL @ v0.5.0 and v0.7.0, verl-project/verl @ 1dda039b9c63, inclusionAI/AReaL @ 4aef98d8d818.

use engine::CostModel;
use engine::cost::roofline::Roofline;
use engine::shard::Framework;
use hw::Cluster;
use rl::cycle::Placement;

use super::predict::Costs;
use super::row::{Asked, Row};
use super::summary::{self, Score, Scored};
use super::table;
use crate::reason::Reason;
use crate::shared_data::truth;
use crate::training::select::Selection;

fn trainer(cluster: &Cluster, _: Framework) -> Box<dyn CostModel> {
    Box::new(Roofline::new(cluster))
}

fn engine(cluster: &Cluster, _: &str) -> Box<dyn CostModel> {
    Box::new(Roofline::new(cluster))
}

/// Rows of a table; `None` where it is absent.
fn rows(file: &str) -> Option<Vec<Row>> {
    Some(table::read(&truth(file)?).expect("a table that is known").expect("no fault"))
}

fn score(rows: Vec<Row>, only: &str) -> Score {
    let costs = Costs { trainer: &trainer, engine: &engine };
    summary::score(rows, &Selection::parse(only).expect("conditions"), &costs, &|| {})
}

#[test]
fn every_step_can_be_played_or_has_a_reason() {
    let Some(rows) = rows("rl_steps.csv") else { return };
    for row in &rows {
        match (row.label.set, &row.asked) {
            ("NeMo-RL", Ok(Asked::Step(_)))
            | ("verl", Err(Reason::Lengths { .. } | Reason::Batch))
            | ("AReaL", Err(Reason::Card { .. })) => {}
            (set, asked) => panic!("row {} of {set}: {asked:?}", row.label.row),
        }
    }
    assert_eq!((rows.len(), rows.iter().filter(|row| row.asked.is_ok()).count()), (36, 23));
}

#[test]
fn parts_of_dense_models_make_their_steps() {
    let Some(rows) = rows("rl_steps.csv") else { return };
    let score = score(rows, "model=LLAMA*");
    assert_eq!((score.rows.len(), score.all.n_predicted), (5, 5));
    score.rows.iter().for_each(parts_make_a_step);
}

/// One after another on the same GPUs; with GPUs of their own no faster than the trainer and no slower than both in turn.
fn parts_make_a_step(scored: &Scored) {
    let (Ok(found), Ok(Asked::Step(step))) = (&scored.outcome, &scored.row.asked) else { panic!("a step") };
    let parts = found.parts.expect("a step has parts");
    let row = &scored.row.label.row;
    assert!(found.interval[0] < found.seconds && found.seconds < found.interval[1], "row {row}");
    match step.placement {
        Placement::Colocated => assert_eq!(found.seconds, parts.in_turn(), "row {row}"),
        Placement::Split => {
            assert!(found.seconds >= parts.trainer(), "row {row}");
            assert!(found.seconds <= parts.apart(step.off_policy) * 1.001, "row {row}");
        }
    }
}

#[test]
fn every_transfer_has_a_prediction_or_a_reason() {
    let Some(rows) = rows("rl_weight_sync.csv") else { return };
    let score = score(rows, "");
    let without: usize = score.missing.iter().map(|missing| missing.n).sum();
    assert_eq!((score.all.n_predicted, without), (4, 16));
    // A plain send is faster than what frameworks take.
    assert!(score.rows.iter().filter_map(Scored::ratio).all(|ratio| ratio < 1.0));
}
