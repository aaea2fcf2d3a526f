//! Laws of pipeline schedules: the proved optimum against zb-2p, which holds more than 1F1B does.

use planner::milp::Budget;
use planner::train::optimal_schedule::optimal_schedule;
use train::schedule::{Pipeline, Played, Schedule, named, play};

use super::{pick, stream};

const BUDGET: Budget = Budget::new(20_000, 60.0);

fn schedule(name: &str) -> &'static Schedule {
    named(name).expect("listed")
}

fn played(pipeline: &Pipeline, name: &str) -> Played {
    play(pipeline, &(schedule(name).order)(pipeline)).expect("an order that can be played")
}

/// A small pipeline whose micro-batches differ, as every pass of one does by the same factor.
fn ragged(number: u64) -> Pipeline {
    let draw = &mut stream("pipeline", number);
    let (p, m) = (pick(draw, &[2, 3]), pick(draw, &[2, 3, 4]));
    let lengths: Vec<u64> = (0..m).map(|_| 1 + draw.below(4)).collect();
    let mut pipeline = Pipeline::equal(p, schedule("zb-2p"), m, [1, 1, 1]);
    for grid in [&mut pipeline.forward, &mut pipeline.input, &mut pipeline.weight, &mut pipeline.activation] {
        grid.iter_mut().for_each(|row| row.copy_from_slice(&lengths));
    }
    pipeline.for_weights.clone_from(&pipeline.activation);
    pipeline
}

#[test]
fn the_optimum_is_never_above_zb_2p_within_the_memory_that_zb_2p_took() {
    for number in 0..12 {
        let pipeline = ragged(number);
        let zb_2p = played(&pipeline, "zb-2p");
        let limit = zb_2p.peak_activation.iter().copied().max();
        let found = optimal_schedule(&Pipeline { limit, ..pipeline }, true, BUDGET).expect("zb-2p fits");
        assert!(found.plan.span <= zb_2p.span, "pipeline {number}: {} above {}", found.plan.span, zb_2p.span);
    }
}

#[test]
fn within_the_memory_of_1f1b_the_optimum_may_be_above_zb_2p() {
    // Four ranks and eight equal micro-batches: zb-2p holds up to seven of them on the first rank, 1F1B four.
    let pipeline = Pipeline::equal(4, schedule("zb-2p"), 8, [1, 1, 1]);
    let zb_2p = played(&pipeline, "zb-2p");
    let held = |played: &Played| played.peak_activation.iter().copied().max().expect("ranks");
    let limit = held(&played(&pipeline, "1f1b"));
    assert!(held(&zb_2p) > limit, "{} and {limit}", held(&zb_2p));
    let within = Pipeline { limit: Some(limit), ..pipeline };
    let found = optimal_schedule(&within, true, BUDGET).expect("1F1B fits").plan;
    assert!(held(&play(&within, &found.order).expect("it can be played")) <= limit);
}
