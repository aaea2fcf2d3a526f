//! Small pipelines: the solver against every heuristic, against closed forms, and against its own bound.

use train::schedule::{Schedule, named};

use super::*;

const BUDGET: Budget = Budget::new(20_000, 60.0);

fn equal(name: &str, p: usize, m: usize, durations: [u64; 3]) -> Pipeline {
    Pipeline::equal(p, named(name).expect("listed"), m, durations)
}

/// The bound of what was found, in whole nanoseconds.
fn bound_ns(found: &Decision<Spanned>) -> u64 {
    hw::whole(found.bound().expect("a bound") * 1e9)
}

/// Micro-batches of different lengths: forward, input and weight of a micro-batch take its length.
fn ragged(name: &str, p: usize, lengths: &[u64]) -> Pipeline {
    let mut pipeline = equal(name, p, lengths.len(), [0; 3]);
    for grid in [&mut pipeline.forward, &mut pipeline.input, &mut pipeline.weight, &mut pipeline.activation] {
        grid.iter_mut().for_each(|row| row.copy_from_slice(lengths));
    }
    pipeline.for_weights.clone_from(&pipeline.activation);
    pipeline
}

/// Solves and holds against every schedule of the placement that fits.
fn check(pipeline: &Pipeline, splits_backward: bool) -> Decision<Spanned> {
    let found = optimal_schedule(pipeline, splits_backward, BUDGET).expect("one micro-batch fits");
    let played = play(pipeline, &found.plan.order).expect("can be played");
    assert_eq!(played.span, found.plan.span);
    assert!(bound_ns(&found) <= found.plan.span && bound_ns(&found) >= Passes::new(pipeline, splits_backward).bound());
    assert!(played.peak_activation.iter().all(|&peak| peak <= pipeline.limit.unwrap_or(u64::MAX)));
    let same = |s: &&Schedule| s.placement == pipeline.placement && (splits_backward || !s.splits_backward);
    for schedule in SCHEDULES.iter().filter(same) {
        if let Some(span) = judge(pipeline, &(schedule.order)(pipeline)) {
            assert!(found.plan.span <= span, "{} spans {span}, the solver's {}", schedule.name, found.plan.span);
        }
    }
    found
}

#[test]
fn equal_passes_cannot_beat_1f1b_without_a_split_nor_zero_bubble_with_one() {
    for (p, m) in [(2, 2), (2, 4), (3, 2), (3, 4), (4, 8)] {
        let found = check(&equal("1f1b", p, m, [1, 1, 1]), false);
        assert_eq!((found.plan.span, found.status), ((m + p - 1) as u64 * 3, Status::Optimal));
        let split = check(&equal("zb-2p", p, m, [1, 1, 1]), true);
        assert!(split.plan.span <= found.plan.span - 2 * (p as u64 - 1) || m < p, "{p} {m}: {}", split.plan.span);
    }
}

#[test]
fn ragged_micro_batches_are_solved_to_the_end() {
    let mut gained = 0;
    for lengths in [&[4, 1, 2][..], &[1, 4, 2], &[4, 1, 2, 1], &[1, 2, 3, 4]] {
        for (p, splits) in [(2, false), (2, true), (3, false), (3, true)] {
            let pipeline = ragged("1f1b", p, lengths);
            let found = check(&pipeline, splits);
            assert_eq!(
                (found.status, bound_ns(&found)),
                (Status::Optimal, found.plan.span),
                "{lengths:?} {p} {splits}"
            );
            gained += best_heuristic(&pipeline, splits).expect("fits").1 - found.plan.span;
        }
    }
    assert!(gained > 0, "the solver beats the heuristics somewhere");
}

#[test]
fn memory_limits_cost_time() {
    let span = |p: usize, m: usize, limit: Option<u64>, splits: bool| {
        let found = check(&Pipeline { limit, ..equal("1f1b", p, m, [1, 1, 1]) }, splits);
        assert_eq!(found.status, Status::Optimal);
        found.plan.span
    };
    // One micro-batch at a time: m round trips of 3p, less the last weight passes of all but one rank where they can overlap.
    assert_eq!(span(2, 3, Some(1), false), 3 * 2 * 3);
    assert_eq!(span(2, 3, Some(1), true), 15);
    assert_eq!(span(2, 4, Some(2), false), 5 * 3);
    for (p, m, limit) in [(2, 4, 2), (3, 3, 2), (3, 4, 2)] {
        let split = span(p, m, Some(limit), true);
        assert!(split <= span(p, m, Some(limit), false));
        assert!(split >= span(p, m, None, true));
    }
    let too_small = Pipeline { limit: Some(0), ..equal("1f1b", 2, 2, [1, 1, 1]) };
    assert!(matches!(optimal_schedule(&too_small, true, BUDGET), Err(PlanError::Infeasible(_))));
}

#[test]
fn chunks_in_a_v_and_two_directions() {
    let cases: [(&str, &[u64]); 5] = [
        ("zb-v", &[1, 1, 1]),
        ("zb-v", &[3, 1]),
        ("dualpipe", &[1, 1, 1, 1]),
        ("dualpipe", &[3, 1, 2, 2]),
        ("interleaved", &[2, 1]),
    ];
    for (name, lengths) in cases {
        let found = check(&ragged(name, 2, lengths), name != "interleaved");
        assert_eq!(found.status, Status::Optimal, "{name} {lengths:?}");
    }
}

/// Every sequence of one rank's passes that keeps each micro-batch's own order.
fn sequences(chains: &[Vec<Slot>]) -> Vec<Vec<Slot>> {
    let mut all = Vec::new();
    for (index, chain) in chains.iter().enumerate() {
        let Some((&first, rest)) = chain.split_first() else { continue };
        let mut left = chains.to_vec();
        left[index] = rest.to_vec();
        all.extend(sequences(&left).into_iter().map(|tail| [vec![first], tail].concat()));
    }
    if chains.iter().all(Vec::is_empty) { vec![Vec::new()] } else { all }
}

#[test]
fn the_optimum_is_that_of_trying_every_order() {
    let halves = [PassKind::Forward, PassKind::Input, PassKind::Weight];
    let whole = [PassKind::Forward, PassKind::Backward];
    let same = |lengths: &[u64]| vec![1; lengths.len()];
    let twice = |lengths: &[u64]| lengths.iter().map(|length| 2 * length).collect::<Vec<u64>>();
    type Case<'a> = (&'a [u64], &'a [PassKind], Option<u64>, &'a dyn Fn(&[u64]) -> Vec<u64>);
    let cases: [Case<'_>; 11] = [
        (&[3, 1], &halves, None, &same),
        (&[1, 3], &halves, Some(3), &same),
        (&[2, 2], &halves, None, &same),
        (&[2, 5, 1], &whole, None, &same),
        (&[2, 5, 1], &whole, Some(6), &same),
        (&[3, 0, 3], &whole, None, &same),
        // Messages as ragged as the micro-batches, and longer than a pass: they wait for each other.
        (&[3, 1], &halves, None, &twice),
        (&[2, 2], &halves, None, &twice),
        (&[2, 5, 1], &whole, None, &twice),
        (&[3, 4, 2], &whole, Some(7), &twice),
        (&[2, 2, 2], &whole, None, &twice),
    ];
    for (lengths, kinds, limit, messages) in cases {
        let mut pipeline = Pipeline { limit, ..ragged("1f1b", 2, lengths) };
        pipeline.transfer.iter_mut().for_each(|row| *row = messages(lengths));
        pipeline.forward[1].iter_mut().for_each(|ns| *ns += 1);
        let chain = |j: usize| kinds.iter().map(|&kind| passes::slot(kind, 0, j)).collect::<Vec<_>>();
        let of_rank = sequences(&(0..lengths.len()).map(chain).collect::<Vec<_>>());
        let pairs = of_rank.iter().flat_map(|one| of_rank.iter().map(|other| vec![one.clone(), other.clone()]));
        let shortest = pairs.filter_map(|order| judge(&pipeline, &order)).min();
        let found = check(&pipeline, kinds.len() == 3);
        assert_eq!((Some(found.plan.span), found.status), (shortest, Status::Optimal), "{lengths:?} {limit:?}");
    }
}

/// A host that launches for 4 beside every pass of a micro-batch of 1 makes each half as long, and a whole pass as long as both together.
#[test]
fn whole_passes_that_are_shorter_than_their_halves_are_not_given_up() {
    let mut pipeline = equal("1f1b", 2, 3, [4, 4, 4]);
    pipeline.joint.iter_mut().for_each(|row| row.fill(-4));
    let found = optimal_schedule(&pipeline, true, BUDGET).expect("fits");
    let order = (named("1f1b").expect("listed").order)(&pipeline);
    assert_eq!(judge(&pipeline, &order), Some((3 + 1) * (4 + 4)));
    assert!(found.plan.span <= (3 + 1) * (4 + 4) && bound_ns(&found) <= found.plan.span, "{found:?}");
}

#[test]
fn a_spent_budget_or_a_large_case_leaves_the_best_heuristic_and_a_bound() {
    let stopped = Budget::new(0, 0.0);
    let found = optimal_schedule(&ragged("1f1b", 3, &[4, 1, 2]), true, stopped).expect("fits");
    assert!(bound_ns(&found) <= found.plan.span && found.status != Status::Optimal);
    let lengths: Vec<u64> = (0..64).map(|j| 5 + j % 7).collect();
    let large = ragged("1f1b", 8, &lengths);
    let found = optimal_schedule(&large, true, BUDGET).expect("fits");
    assert_eq!(found.plan.span, best_heuristic(&large, true).expect("fits").1);
    assert!(bound_ns(&found) <= found.plan.span && bound_ns(&found) >= lengths.iter().sum::<u64>() * 3);
}
