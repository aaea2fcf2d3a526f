//! Slow nodes in a run against closed forms.

use engine::random;

use super::slow::{Reaction, Replanned, Slowed, Spells};
use super::*;

const HOUR: f64 = 3600.0;

fn run(span_s: f64, spares: u32) -> LongRun {
    let checkpoint = Checkpoint { mode: CheckpointMode::Synchronous, every_s: None, storage_bytes_per_s: 1e9 };
    let failures = Failures::Trace { at_s: Vec::new() };
    LongRun { span_s, failures, restart_s: 200.0, spares, repair_s: HOUR, checkpoint, slow_nodes: None }
}

/// A run beside nodes that become slow at these moments, for so long each.
fn spent(run: &LongRun, reaction: Reaction, slowed: Slowed, (at_s, lasts_s): (&[f64], f64), n_nodes: u32) -> Spent {
    let mut rest = at_s.iter().copied();
    let next = Box::new(move || rest.next().unwrap_or(f64::INFINITY));
    let spells = Spells::new((reaction, slowed), (lasts_s, n_nodes), next);
    let times = CheckpointTimes { stall_s: 10.0, behind_s: 0.0, restore_s: 100.0 };
    // No checkpoint but those of a reaction.
    let spent = run.spent(2.0 * run.span_s, &times, &mut || f64::INFINITY, Some(spells));
    let total = spent.useful_s + spent.again_s + spent.checkpoint_s + spent.restart_s + spent.waiting_s;
    assert!(((total + spent.slow_s + spent.reacting_s) / run.span_s - 1.0).abs() < 1e-9, "{spent:?}");
    spent
}

#[test]
fn one_slow_node_of_n_costs_what_the_closed_form_says() {
    let (span_s, lasts_s, n) = (100.0 * HOUR, 10.0 * HOUR, 8);
    // One node of eight takes 2.5 times as long: the job at its pace, or at the capacity that is left, 8 / (7 + 1 / 2.5).
    let pace = 8.0 / 7.4;
    let slowed = Slowed { endured: 2.5, replanned: Some(Replanned { pace, pause_s: 30.0, late_s: 0.0 }) };
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    let of = |reaction, spares| spent(&run(span_s, spares), reaction, slowed, (&[5.0 * HOUR], lasts_s), n);
    near(of(Reaction::Endure, 0).useful_s, span_s - lasts_s * (1.0 - 1.0 / 2.5));
    // Two changes of plan of 30 s, the first of which falls into the slow time.
    let replanned = of(Reaction::Replan, 0);
    near(replanned.reacting_s, 60.0);
    near(replanned.useful_s, span_s - 60.0 - (lasts_s - 30.0) * (1.0 - 1.0 / pace));
    // With a spare node: saving 10 s, restarting 200 s, reading 100 s, and then all are healthy.
    near(of(Reaction::Restart, 1).useful_s, span_s - 310.0);
    // Without one: seven nodes of eight, and a second restart when it is back.
    near(of(Reaction::Restart, 0).useful_s, span_s - 620.0 - (lasts_s - 310.0) / 8.0);
}

/// A change of speeds is measured for 300 s of work with the plan that runs: at 2.5 times the time beside the slow node, and at the pace of the plan that fits it when
/// it has recovered. Then the plan changes.
#[test]
fn a_change_of_plan_comes_as_late_as_it_is_measured() {
    let (span_s, lasts_s, late_s, pace) = (100.0 * HOUR, 10.0 * HOUR, 300.0, 8.0 / 7.4);
    let useful_s = |at_s: &[f64], lasts_s: f64, late_s: f64| {
        let slowed = Slowed { endured: 2.5, replanned: Some(Replanned { pace, pause_s: 30.0, late_s }) };
        let spent = spent(&run(span_s, 0), Reaction::Replan, slowed, (at_s, lasts_s), 8);
        (spent.useful_s, spent.reacting_s)
    };
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    let (found_s, stops_s) = useful_s(&[5.0 * HOUR], lasts_s, late_s);
    // 300 s of work take 750 s, a stop of 30 s follows, and the rest of the slow time goes at the plan's pace. Behind it 300 s of work do so too.
    let slow_s = 1.5 * late_s + (lasts_s - 2.5 * late_s - 30.0) * (1.0 - 1.0 / pace) + late_s * (pace - 1.0);
    near(found_s, span_s - 60.0 - slow_s);
    near(stops_s, 60.0);
    // A node that recovers before it is measured: the plan changes behind, and back.
    let (found_s, stops_s) = useful_s(&[5.0 * HOUR], 600.0, late_s);
    near(stops_s, 60.0);
    // Ten minutes at 2.5 times, and 150 s until the first change; the second one, 300 s of healthy work behind the recovery, falls 120 s behind its stop.
    near(found_s, span_s - 60.0 - 600.0 * (1.0 - 1.0 / 2.5) - 120.0 * (1.0 - 1.0 / pace));
    // Where nothing is measured, the plan changes at once.
    near(useful_s(&[5.0 * HOUR], lasts_s, 0.0).0, span_s - 60.0 - (lasts_s - 30.0) * (1.0 - 1.0 / pace));
}

/// Spells begin at random, so some node is slow for 1 - e^(-λD) of the time (a queue with endless servers).
#[test]
fn spells_at_random_slow_the_share_of_time_that_the_closed_form_says() {
    let (span_s, lasts_s, node_s, n) = (4000.0 * HOUR, 3.0 * HOUR, 200.0 * HOUR, 16);
    let slowed = Slowed { endured: 1.8, replanned: None };
    let of = |draw: u64| {
        let mut stream = random::stream(11, "test").branch(draw);
        let mut at_s = 0.0;
        let mut begins = Vec::new();
        while at_s < span_s {
            at_s += stream.exponential() * node_s / f64::from(n);
            begins.push(at_s);
        }
        spent(&run(span_s, 0), Reaction::Endure, slowed, (&begins, lasts_s), n).useful_s / span_s
    };
    let found = (0..50).map(of).sum::<f64>() / 50.0;
    let slow = 1.0 - libm::exp(-f64::from(n) * lasts_s / node_s);
    let expected = 1.0 - slow * (1.0 - 1.0 / 1.8);
    assert!((found - expected).abs() < 0.003, "{found} {expected}");
}

/// Pieces of work end between two ticks of a clock that has run for months.
#[test]
fn a_long_run_of_short_segments_ends() {
    let slowed = Slowed { endured: 2.057, replanned: Some(Replanned { pace: 1.083, pause_s: 1.7, late_s: 9.1 }) };
    let at_s: Vec<f64> = (1..400).map(|index| f64::from(index) * 21_600.1).collect();
    let run =
        LongRun { checkpoint: Checkpoint { every_s: Some(27.4), ..run(0.0, 0).checkpoint }, ..run(2400.0 * HOUR, 0) };
    for reaction in [Reaction::Endure, Reaction::Replan, Reaction::Restart] {
        let mut rest = at_s.clone().into_iter();
        let next = Box::new(move || rest.next().unwrap_or(f64::INFINITY));
        let spells = Spells::new((reaction, slowed), (9000.7, 8), next);
        let times = CheckpointTimes { stall_s: 0.013, behind_s: 1.1, restore_s: 100.0 };
        let spent = run.spent(27.4, &times, &mut || f64::INFINITY, Some(spells));
        assert!(spent.useful_s > 0.5 * run.span_s, "{spent:?}");
    }
}
