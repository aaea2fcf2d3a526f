//! Measured steps where the table is there, by datasheets: every row has a prediction or a reason, and parts make a step.
//!
//! Sources: NVIDIA-NeMo/RL @ v0.5.0 and v0.7.0, verl-project/verl @ 1dda039b9c63, inclusionAI/AReaL @ 4aef98d8d818.

use engine::CostModel;
use engine::cost::roofline::Roofline;
use engine::shard::Framework;
use hw::Cluster;
use rl::cycle::Placement;

use super::predict::Costs;
use super::reason::Reason;
use super::row::Asked;
use super::select::Selection;
use super::summary::{self, Score, Scored};
use super::table;

fn trainer(cluster: &Cluster, _: Framework) -> Box<dyn CostModel> {
    Box::new(Roofline::new(cluster))
}

fn engine(cluster: &Cluster, _: &str) -> Box<dyn CostModel> {
    Box::new(Roofline::new(cluster))
}

/// Scores some rows of a table; `None` where it is absent.
fn score(file: &str, only: &str) -> Option<Score> {
    let path = format!("{}/../../shared/data/truth/{file}", env!("CARGO_MANIFEST_DIR"));
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: shared data absent ({path})");
        return None;
    };
    let rows = table::read(&text).expect("a table that is known").expect("no fault");
    let costs = Costs { trainer: &trainer, engine: &engine };
    Some(summary::score(rows, &Selection::parse(only).expect("conditions"), &costs, &|| {}))
}

fn rows_by_outcome(score: &Score) -> [usize; 2] {
    let predicted = score.rows.iter().filter(|scored| scored.outcome.is_ok()).count();
    [predicted, score.reasons.iter().map(|(.., n)| n).sum()]
}

#[test]
fn every_step_has_a_prediction_or_a_reason() {
    let Some(score) = score("rl_steps.csv", "") else { return };
    assert_eq!(rows_by_outcome(&score), [23, 13]);
    for scored in &score.rows {
        match (scored.row.label.set, &scored.outcome) {
            ("NeMo-RL", Ok(_)) => parts_make_a_step(scored),
            ("verl", Err(Reason::Lengths { .. } | Reason::Batch)) | ("AReaL", Err(Reason::Card { .. })) => {}
            (set, outcome) => panic!("row {} of {set}: {outcome:?}", scored.row.label.row),
        }
    }
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
    let Some(score) = score("rl_weight_sync.csv", "") else { return };
    let [predicted, without] = rows_by_outcome(&score);
    assert_eq!((predicted + without, predicted), (20, 4));
    // A plain send is faster than what frameworks take.
    assert!(score.rows.iter().filter_map(Scored::ratio).all(|ratio| ratio < 1.0));
}

#[test]
fn a_choice_of_rows_keeps_to_it() {
    let Some(score) = score("rl_steps.csv", "card=GB200,variant=colocated,model=LLAMA*") else { return };
    assert_eq!(score.rows.len(), 1);
}
