//! Small pipelines: the solver against every heuristic, against closed forms, and against its own bound.

use sim::schedule::{Placement, Schedule, named};

use super::*;

const BUDGET: Budget = Budget { nodes: 20_000, seconds: 4.0 };

fn equal(name: &str, p: usize, m: usize, durations: [u64; 3]) -> Pipeline {
    Pipeline::equal(p, named(name).expect("listed"), m, durations)
}

/// Micro-batches of different lengths: forward, input and weight of a micro-batch take its length.
fn ragged(name: &str, p: usize, lengths: &[u64]) -> Pipeline {
    let mut pipeline = equal(name, p, lengths.len(), [0; 3]);
    for grid in [&mut pipeline.forward, &mut pipeline.input, &mut pipeline.weight, &mut pipeline.activation] {
        grid.iter_mut().for_each(|row| row.copy_from_slice(lengths));
    }
    pipeline
}

/// Solves and holds against every schedule of the placement that fits.
fn check(pipeline: &Pipeline, splits_backward: bool) -> Found {
    let found = optimal_schedule(pipeline, splits_backward, BUDGET).expect("one micro-batch fits");
    let played = play(pipeline, &found.order).expect("can be played");
    assert_eq!(played.span, found.span);
    assert!(found.bound <= found.span && found.bound >= lower_bound(pipeline, splits_backward));
    assert!(played.peak_activation.iter().all(|&peak| peak <= pipeline.limit.unwrap_or(u64::MAX)));
    let same = |s: &&Schedule| s.placement == pipeline.placement && (splits_backward || !s.splits_backward);
    for schedule in SCHEDULES.iter().filter(same) {
        if let Some(span) = judge(pipeline, &(schedule.order)(pipeline)) {
            assert!(found.span <= span, "{} spans {span}, the solver's {}", schedule.name, found.span);
        }
    }
    found
}

#[test]
fn equal_passes_cannot_beat_1f1b_without_a_split_nor_zero_bubble_with_one() {
    for (p, m) in [(2, 2), (2, 4), (3, 2), (3, 4), (4, 8)] {
        let found = check(&equal("1f1b", p, m, [1, 1, 1]), false);
        assert_eq!((found.span, found.status), ((m + p - 1) as u64 * 3, Status::Optimal));
        let split = check(&equal("zb-2p", p, m, [1, 1, 1]), true);
        assert!(split.span <= found.span - 2 * (p as u64 - 1) || m < p, "{p} {m}: {}", split.span);
    }
}

#[test]
fn ragged_micro_batches() {
    for lengths in [&[4, 1, 2][..], &[1, 4, 2], &[4, 1, 2, 1], &[1, 2, 3, 4]] {
        for p in [2, 3] {
            for splits in [false, true] {
                let begun = std::time::Instant::now();
                let found = check(&ragged("1f1b", p, lengths), splits);
                println!(
                    "{lengths:?} {p} {splits}: {} bound {} {:?} {:?}",
                    found.span,
                    found.bound,
                    found.status,
                    begun.elapsed()
                );
            }
        }
    }
}

#[test]
fn memory_limits() {
    for (p, m, limit) in [(2, 3, 1), (2, 4, 2), (3, 3, 2), (3, 4, 2)] {
        for splits in [false, true] {
            let begun = std::time::Instant::now();
            let found = check(&Pipeline { limit: Some(limit), ..equal("1f1b", p, m, [1, 1, 1]) }, splits);
            println!(
                "{p} {m} {limit} {splits}: {} bound {} {:?} {:?}",
                found.span,
                found.bound,
                found.status,
                begun.elapsed()
            );
        }
    }
    let too_small = Pipeline { limit: Some(0), ..equal("1f1b", 2, 2, [1, 1, 1]) };
    assert!(matches!(optimal_schedule(&too_small, true, BUDGET), Err(PlanError::Infeasible(_))));
}

#[test]
fn chunks_in_a_v_and_two_directions() {
    for (name, lengths) in [
        ("zb-v", &[1, 1, 1][..]),
        ("zb-v", &[3, 1]),
        ("dualpipe", &[1, 1, 1, 1]),
        ("dualpipe", &[3, 1, 2, 2]),
        ("interleaved", &[2, 1]),
    ] {
        let begun = std::time::Instant::now();
        let pipeline = ragged(name, 2, lengths);
        let found = check(&pipeline, pipeline.placement != Placement::Loop);
        println!("{name} {lengths:?}: {} bound {} {:?} {:?}", found.span, found.bound, found.status, begun.elapsed());
    }
}
