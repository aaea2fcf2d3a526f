//! Claims about every schedule of the table, and the closed forms that papers print.

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

#[test]
fn explore() {
    for (p, m) in [(2, 6), (3, 9), (4, 12), (5, 15), (6, 18), (8, 24), (16, 64)] {
        for schedule in SCHEDULES {
            let played = check(schedule.name, p, m, [1, 1, 1]);
            let unit = (schedule.placement.n_stages(p, schedule.n_chunks) / p) as u64;
            let peak = played.peak_activation.iter().max().unwrap();
            println!(
                "{:12} p {p} m {m} span-busy {} rank {} = {:.4} peak {peak} of {}",
                schedule.name, played.span - played.busy[0], played.rank_span - played.busy[0], played.rank_bubble_ratio(), unit * p as u64
            );
        }
    }
}
