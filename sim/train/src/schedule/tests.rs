//! Claims about every schedule of the table, and the closed forms that papers print.

use proptest::prelude::*;

use super::*;

fn check(name: &str, n_ranks: usize, n_micro_batches: usize, durations: [u64; 3]) -> Played {
    let schedule = named(name).expect("listed");
    let pipeline = Pipeline::equal(n_ranks, schedule, n_micro_batches, durations);
    play(&pipeline, &(schedule.order)(&pipeline)).expect("can be played")
}

#[test]
fn equal_passes_leave_the_bubble_of_the_closed_form() {
    // Forward 1, backward 2: span (m + p − 1) · 3 for both.
    for (p, m) in [(4, 4), (4, 12), (8, 24), (3, 1)] {
        for name in ["gpipe", "1f1b"] {
            let played = check(name, p, m, [1, 1, 1]);
            assert_eq!(played.span, (m + p - 1) as u64 * 3, "{name} {p} {m}");
        }
    }
    assert_eq!(check("1f1b", 4, 4, [1, 1, 1]).bubble_ratio(), 3.0 / 7.0);
}

/// A flush is a pipeline of its own: each pays the bubble of the closed form, and the last one may be shorter.
#[test]
fn every_flush_pays_its_bubble_and_holds_what_one_of_its_size_holds() {
    for (p, m, every) in [(4, 12, 4), (4, 12, 6), (4, 10, 4), (8, 24, 1), (3, 6, 6), (3, 6, 100)] {
        for name in ["gpipe", "1f1b"] {
            let schedule = named(name).expect("listed");
            let pipeline = Pipeline { flush_every: Some(every), ..Pipeline::equal(p, schedule, m, [1, 1, 1]) };
            let played = play(&pipeline, &schedule.ordered(&pipeline)).expect("can be played");
            let flushes = (0..m).step_by(every).map(|from| every.min(m - from));
            let expected: usize = flushes.map(|n| (n + p - 1) * 3).sum();
            assert_eq!(played.span, expected as u64, "{name} {p} {m} {every}");
            let most = every.min(m);
            let held = |rank: usize| if name == "gpipe" { most } else { most.min(p - rank) };
            let held: Vec<u64> = (0..p).map(|rank| held(rank) as u64).collect();
            assert_eq!(played.peak_activation, held, "{name} {p} {m} {every}");
        }
    }
}

/// Ranks that end a flush early begin the next one, so flushes take no longer together than one behind the other, and hold no more than one does.
#[test]
fn flushes_of_every_schedule_follow_each_other() {
    for schedule in SCHEDULES {
        let of = |m: usize, flush_every: Option<usize>| {
            let pipeline = Pipeline { flush_every, ..Pipeline::equal(4, schedule, m, [10, 12, 8]) };
            play(&pipeline, &schedule.ordered(&pipeline)).expect("can be played")
        };
        let (one, three) = (of(8, None), of(24, Some(8)));
        assert!(three.span <= 3 * one.span, "{}: {} of {}", schedule.name, three.span, one.span);
        assert!(three.span >= of(24, None).span, "{}", schedule.name);
        assert_eq!(three.peak_activation, one.peak_activation, "{}", schedule.name);
        assert_eq!(of(8, Some(8)), one, "{}", schedule.name);
    }
}

#[test]
fn one_forward_one_backward_holds_as_many_micro_batches_as_stages_follow() {
    assert_eq!(check("1f1b", 4, 12, [1, 1, 1]).peak_activation, [4, 3, 2, 1]);
    assert_eq!(check("gpipe", 4, 12, [1, 1, 1]).peak_activation, [12; 4]);
}

#[test]
fn ragged_micro_batches_under_1f1b_span_56_units() {
    // Lengths 4, 1, 2, 1 on four stages, forward = length, backward twice that: span 56, bubble 57.143 %.
    let schedule = named("1f1b").expect("listed");
    let mut pipeline = Pipeline::equal(4, schedule, 4, [1, 1, 1]);
    for grid in [&mut pipeline.forward, &mut pipeline.input, &mut pipeline.weight] {
        grid.iter_mut().for_each(|row| row.copy_from_slice(&[4, 1, 2, 1]));
    }
    let played = play(&pipeline, &(schedule.order)(&pipeline)).expect("can be played");
    assert_eq!(played.span, 56);
    assert!((played.bubble_ratio() - 32.0 / 56.0).abs() < 1e-12, "{}", played.bubble_ratio());
}

/// Published bubbles for F = I = W = 1 and no transfer time: p, m, schedule, (longest span of one rank − work)/span, and the
/// activation that goes with it in micro-batches of a whole rank. Bubbles: runs of the scheduler of
/// sail-sg/zero-bubble-pipeline-parallelism @ 39f2c18 and its README's closed form (data/published/pipeline_bubbles.csv). Memory:
/// 1F1B p, ZB-1p p, ZB-2p 2p − 1, and of the V shapes p, ⌊(p + 2)/2⌋, ⌊(p + 4)/3⌋ (authors' page on arXiv:2405.15362).
const PUBLISHED: [(usize, usize, &str, f64, usize); 11] = [
    (4, 12, "zb-1p", 0.0769, 4),
    (4, 12, "zb-2p", 0.0, 7),
    (4, 12, "zb-v", 0.0, 4),
    (4, 12, "v-half", 0.0649, 3),
    (4, 12, "v-min", 0.1325, 2),
    (8, 24, "1f1b", 0.2258, 8),
    (8, 24, "zb-1p", 0.0886, 8),
    (8, 24, "zb-2p", 0.0, 15),
    (8, 24, "zb-v", 0.0, 8),
    (8, 24, "v-half", 0.1056, 5),
    (8, 24, "v-min", 0.1579, 4),
];

#[test]
fn bubbles_are_at_most_the_published_ones_at_the_published_memory() {
    for (p, m, name, bubble, micro_batches) in PUBLISHED {
        let played = check(name, p, m, [1, 1, 1]);
        // Four digits are printed.
        assert!(played.rank_bubble_ratio() < bubble + 0.5e-4, "{name} {p} {m}: {}", played.rank_bubble_ratio());
        let chunks = named(name).expect("listed").n_chunks;
        let peak = played.peak_activation.into_iter().max().expect("ranks");
        assert!(peak <= (micro_batches * chunks) as u64, "{name} {p} {m}: {peak}");
    }
}

#[test]
fn zb_1p_idles_a_third_of_1f1b_and_zb_2p_and_zb_v_not_at_all() {
    for (p, m) in [(2, 4), (3, 9), (4, 8), (4, 12), (6, 18), (8, 24), (12, 36)] {
        let idle = |name: &str| {
            let played = check(name, p, m, [1, 1, 1]);
            played.rank_span - played.busy[0]
        };
        assert_eq!(idle("1f1b"), 3 * (p as u64 - 1));
        assert_eq!(idle("zb-1p"), p as u64 - 1, "{p} {m}");
        assert_eq!((idle("zb-2p"), idle("zb-v")), (0, 0), "{p} {m}");
    }
}

#[test]
fn zero_bubble_idles_by_the_closed_forms_of_its_durations() {
    // (p − 1)(F + B − W) and, where that is positive, (p − 1)(F + B − 2W): arXiv:2401.10241, table 2. W is half of F in the first.
    for (p, m) in [(4, 12), (8, 24), (8, 32)] {
        for [f, b, w] in [[2, 2, 1], [4, 4, 1], [4, 6, 2], [4, 4, 3], [4, 3, 4], [10, 12, 8]] {
            let idle = |name: &str| {
                let played = check(name, p, m, [f, b, w]);
                played.rank_span - played.busy[0]
            };
            let behind = p as u64 - 1;
            assert_eq!(idle("zb-1p"), behind * (f + b - w), "{p} {m} {f} {b} {w}");
            assert_eq!(idle("zb-2p"), behind * (f + b).saturating_sub(2 * w), "{p} {m} {f} {b} {w}");
        }
    }
}

/// A model of the paper on 8 ranks: hidden size, attention heads, and for 24, 32 and 64 micro-batches of 1,024 tokens a sequence F, B, W and
/// transfer, microseconds, with the bubbles of ZB-1p and ZB-2p (arXiv:2401.10241, tables of profiled times and of bubble rates).
type Profiled = (u64, u64, [(usize, [u64; 4], f64, f64); 3]);

const PROFILED: [Profiled; 2] = [
    (
        2304,
        24,
        [
            (24, [18_522, 18_086, 9_337, 601], 0.1585, 0.0433),
            (32, [18_513, 18_086, 9_331, 626], 0.1242, 0.0039),
            (64, [18_546, 18_097, 9_321, 762], 0.0674, 0.0026),
        ],
    ),
    (
        4096,
        32,
        [
            (24, [29_718, 29_444, 19_927, 527], 0.1323, 0.0029),
            (32, [29_802, 29_428, 19_530, 577], 0.1045, 0.0022),
            (64, [29_935, 29_621, 19_388, 535], 0.0554, 0.0010),
        ],
    ),
];

#[test]
fn scores_that_go_with_the_input_pass_let_weight_passes_wait() {
    for (hidden, heads, runs) in PROFILED {
        for (m, [forward, input, weight, transfer], one, two) in runs {
            let bubble = |name: &str| {
                let schedule = named(name).expect("listed");
                let mut pipeline = Pipeline::equal(8, schedule, m, [forward, input, weight]);
                pipeline.transfer.iter_mut().for_each(|row| row.fill(transfer));
                // 34·h + 5·a·s bytes of a token, of which 32·h stay for the weight pass.
                pipeline.activation.iter_mut().for_each(|row| row.fill(34 * hidden + 5 * heads * 1024));
                pipeline.for_weights.iter_mut().for_each(|row| row.fill(32 * hidden));
                play(&pipeline, &(schedule.order)(&pipeline)).expect("can be played").rank_bubble_ratio()
            };
            for (name, published) in [("zb-1p", one), ("zb-2p", two)] {
                let found = bubble(name);
                assert!((found - published).abs() < 0.5e-4, "{name} {hidden} {m}: {found} against {published}");
            }
        }
    }
}

#[test]
fn interleaving_divides_the_bubble_by_the_chunks() {
    let base = named("interleaved").expect("listed");
    for (p, m, v) in [(2, 4, 2), (4, 12, 2), (4, 8, 3), (8, 24, 4), (3, 9, 1)] {
        let pipeline = Pipeline::equal(p, &Schedule { n_chunks: v, ..*base }, m, [1, 1, 1]);
        let played = play(&pipeline, &(base.order)(&pipeline)).expect("can be played");
        assert_eq!(played.span, (m * 3 * v + 3 * (p - 1)) as u64, "{p} {m} {v}");
        // SC21's memory: the warm-up of rank 0 and one more chunk.
        let ahead = if v == 1 { p } else { 2 * (p - 1) + (v - 1) * p + 1 };
        assert_eq!(played.peak_activation[0], ahead.min(m * v) as u64);
    }
}

#[test]
fn dualpipe_idles_no_more_than_the_paper_says() {
    // (p/2 − 1)(forward and backward together + B − 3W) with F = W = 1, B = 2, forward and backward together 3.
    for (p, m) in [(2, 4), (4, 8), (4, 12), (6, 12), (8, 16), (8, 24), (16, 64)] {
        let played = check("dualpipe", p, m, [1, 1, 1]);
        assert!(played.span - played.busy[0] < p as u64 - 1, "{p} {m}: {}", played.span);
        assert!(played.peak_activation.iter().all(|&peak| peak <= p as u64 + 1));
    }
}

/// A micro-batch more never ends sooner, and two ranks more do not either: a rank has as much to do. Odd numbers of ranks are not the paper's.
#[test]
fn dualpipe_takes_no_less_with_a_micro_batch_or_two_ranks_more() {
    for durations in [[1, 1, 1], [4, 5, 3], [10, 12, 8], [4, 6, 2]] {
        let spans = |p: usize| (1..=40).map(|m| check("dualpipe", p, m, durations).span).collect::<Vec<_>>();
        let mut fewer = vec![0; 40];
        for p in (2..=12).step_by(2) {
            let all = spans(p);
            assert!(all.windows(2).all(|pair| pair[0] <= pair[1]), "{durations:?}, {p} ranks: {all:?}");
            assert!(
                fewer.iter().zip(&all).all(|(fewer, all)| fewer <= all),
                "{durations:?}, {p} ranks: {fewer:?}, {all:?}"
            );
            fewer = all;
        }
    }
}

/// Micro-batches of a whole rank that a schedule says it holds at most; `None` for all.
fn stated(name: &str, p: usize) -> Option<usize> {
    match name {
        "1f1b" | "zb-1p" | "zb-v" => Some(p),
        "zb-2p" => Some(2 * p - 1),
        "v-half" => Some((p + 2) / 2),
        "v-min" => Some((p + 4) / 3),
        "dualpipe" => Some(p + 1),
        _ => None,
    }
}

/// Every pass once: a forward and either a whole backward or its two halves.
fn assert_complete(pipeline: &Pipeline, order: &Order, splits: bool) {
    for (rank, slots) in order.iter().enumerate() {
        let mut slots = slots.clone();
        slots.sort_unstable_by_key(|slot| (slot.chunk, slot.micro_batch, slot.kind));
        let mut rest = slots.as_slice();
        for chunk in 0..pipeline.n_chunks {
            for micro_batch in pipeline.micro_batches(chunk) {
                let n = rest.iter().take_while(|s| (s.chunk as usize, s.micro_batch as usize) == (chunk, micro_batch));
                let kinds: Vec<PassKind> = n.map(|slot| slot.kind).collect();
                let whole = kinds == [PassKind::Forward, PassKind::Backward];
                let halves = kinds == [PassKind::Forward, PassKind::Input, PassKind::Weight];
                assert!(whole || (splits && halves), "rank {rank} chunk {chunk} micro-batch {micro_batch}: {kinds:?}");
                rest = &rest[kinds.len()..];
            }
        }
        assert!(rest.is_empty(), "rank {rank} has more: {rest:?}");
    }
}

/// Forward through every stage and back with every input pass, no rest.
fn critical_path(pipeline: &Pipeline, micro_batch: usize) -> u64 {
    let stages = 0..pipeline.n_stages();
    let passes = stages.clone().map(|k| pipeline.forward[k][micro_batch] + pipeline.input[k][micro_batch]);
    let messages = stages.map(|stage| pipeline.message(PassKind::Forward, stage, micro_batch).map_or(0, |(_, ns)| ns));
    passes.sum::<u64>() + 2 * messages.sum::<u64>()
}

prop_compose! {
    fn pipelines()(
        (index, p, m, chunks) in (0..SCHEDULES.len(), 1..=6_usize, 1..=10_usize, 1..=3_usize),
        messages in prop::collection::vec(0..=25_u64, 18 * 10),
        limit in prop::option::of(0..=200_u64),
        numbers in prop::collection::vec(0..=20_u64, 4 * 18 * 10),
    ) -> (&'static Schedule, Pipeline) {
        let schedule = &SCHEDULES[index];
        let n_chunks = if schedule.placement == Placement::Loop { chunks } else { schedule.n_chunks };
        let mut pipeline = Pipeline::equal(p, &Schedule { n_chunks, ..*schedule }, m, [0, 0, 0]);
        pipeline.transfer.iter_mut().flatten().zip(messages).for_each(|(cell, ns)| *cell = ns);
        pipeline.limit = limit;
        let mut numbers = numbers.into_iter();
        for grid in [&mut pipeline.forward, &mut pipeline.input, &mut pipeline.weight, &mut pipeline.activation] {
            for cell in grid.iter_mut().flatten() {
                *cell = numbers.next().expect("enough");
            }
        }
        // Ragged shares of the activation, from nothing to all of it.
        let shares = [&pipeline.activation, &pipeline.weight].map(|grid| grid.iter().flatten().copied().collect::<Vec<_>>());
        for ((cell, whole), number) in pipeline.for_weights.iter_mut().flatten().zip(&shares[0]).zip(&shares[1]) {
            *cell = number % (whole + 1);
        }
        (schedule, pipeline)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_schedule_is_complete_playable_and_within_its_memory((schedule, pipeline) in pipelines()) {
        let order = (schedule.order)(&pipeline);
        assert_complete(&pipeline, &order, schedule.splits_backward);
        let played = play(&pipeline, &order).expect("can be played");
        prop_assert!(played.span >= played.busy.iter().copied().max().unwrap_or(0));
        for micro_batch in 0..pipeline.n_micro_batches {
            prop_assert!(played.span >= critical_path(&pipeline, micro_batch));
        }
        if ["gpipe", "1f1b", "interleaved"].contains(&schedule.name) {
            let roomy = Pipeline { limit: None, activation: vec![vec![1; pipeline.n_micro_batches]; pipeline.n_stages()], ..pipeline.clone() };
            prop_assert_eq!(&order, &(schedule.order)(&roomy), "one order, whatever is free");
        } else {
            let micro_batches = stated(schedule.name, pipeline.n_ranks).unwrap_or(pipeline.n_micro_batches);
            let cap = greedy::cap(&pipeline, micro_batches);
            prop_assert!(played.peak_activation.iter().zip(&cap).all(|(peak, cap)| peak <= cap), "{:?} {cap:?}", played);
        }
        if pipeline.placement == Placement::Linear {
            let peak = |name: &str| {
                let order = (named(name).expect("listed").order)(&pipeline);
                play(&pipeline, &order).expect("can be played").peak_activation
            };
            prop_assert!(peak("1f1b").iter().zip(peak("gpipe")).all(|(few, all)| *few <= all));
        }
    }
}

#[test]
fn zb_1p_is_never_slower_than_1f1b_on_ragged_micro_batches() {
    let mut random = engine::random::stream(3, "ragged");
    for _ in 0..300 {
        let (p, m) = (1 + random.below(8) as usize, 1 + random.below(16) as usize);
        let lengths: Vec<u64> = (0..m).map(|_| 1 + random.below(30)).collect();
        let span = |name: &str| {
            let schedule = named(name).expect("listed");
            let mut pipeline = Pipeline::equal(p, schedule, m, [0; 3]);
            for grid in [&mut pipeline.forward, &mut pipeline.input, &mut pipeline.weight, &mut pipeline.activation] {
                grid.iter_mut().for_each(|row| row.copy_from_slice(&lengths));
            }
            pipeline.for_weights.clone_from(&pipeline.activation);
            play(&pipeline, &(schedule.order)(&pipeline)).expect("can be played").span
        };
        assert!(span("zb-1p") <= span("1f1b") && span("zb-2p") <= span("1f1b"), "{p} {lengths:?}");
    }
}

/// A pipeline of micro-batches that may differ, and the same with a part that is faster: messages, forwards of the first stage, or all weight passes.
fn with_a_faster_part(schedule: &Schedule, random: &mut engine::random::Stream) -> [Pipeline; 2] {
    let (p, m) = (2 + 2 * random.below(4) as usize, 4 + 2 * random.below(10) as usize);
    let mut pipeline = Pipeline::equal(p, schedule, m, [100, 100, 100]);
    let spread = 1 + random.below(2) * 60;
    for grid in [&mut pipeline.forward, &mut pipeline.input, &mut pipeline.weight] {
        for micro_batch in 0..m {
            let ns = 100 + random.below(spread);
            grid.iter_mut().for_each(|row| row[micro_batch] = ns);
        }
    }
    let message = random.below(30);
    pipeline.transfer.iter_mut().for_each(|row| row.fill(message));
    let mut faster = pipeline.clone();
    match random.below(3) {
        0 => faster.transfer.iter_mut().flatten().for_each(|ns| *ns /= 2),
        1 => faster.forward[0].iter_mut().for_each(|ns| *ns = *ns * 9 / 10),
        _ => faster.weight.iter_mut().flatten().for_each(|ns| *ns = *ns * 9 / 10),
    }
    [pipeline, faster]
}

/// An order that a list scheduler makes may be another one where a part is faster, and end later (Graham 1969). A schedule with one order never does, since no pass
/// of its longest path becomes longer. docs/parallelism.md has what is counted here.
#[test]
fn a_faster_part_ends_later_by_little_where_orders_are_lists_and_never_elsewhere() {
    for schedule in SCHEDULES {
        let mut random = engine::random::stream(5, "faster");
        let (mut n_later, mut most) = (0, 1.0_f64);
        for _ in 0..400 {
            let both = with_a_faster_part(schedule, &mut random);
            let [before, after] =
                both.map(|of| hw::real(play(&of, &(schedule.order)(&of)).expect("can be played").span));
            n_later += u32::from(after > before);
            most = most.max(after / before);
        }
        let (few, little) = match schedule.name {
            "gpipe" | "1f1b" | "interleaved" => (0, 1.0),
            "v-min" => (60, 1.1),
            _ => (30, 1.03),
        };
        assert!(
            n_later <= few && most <= little,
            "{}: {n_later} of 400 end later, {most:.4} times at most",
            schedule.name
        );
    }
}
