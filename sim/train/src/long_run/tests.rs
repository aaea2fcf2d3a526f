//! Runs of days against closed forms and counts by hand.

use super::*;
use crate::layout::{ContextExchange, Layout, Zero};
use crate::optimizer::Rule;
use crate::problem::{AdaptedProducts, Adapters, Execution};
use crate::workload::Workload;

const HOUR: f64 = 3600.0;

fn run(failures: Failures) -> LongRun {
    let checkpoint = Checkpoint { mode: CheckpointMode::Synchronous, every_s: None, storage_bytes_per_s: 1e9 };
    LongRun {
        span_s: 1000.0 * HOUR,
        failures,
        restart_s: 200.0,
        spares: 4,
        repair_s: HOUR,
        checkpoint,
        slow_nodes: None,
    }
}

fn times(stall_s: f64, behind_s: f64) -> CheckpointTimes {
    CheckpointTimes { stall_s, behind_s, restore_s: 100.0 }
}

fn total(spent: &Spent) -> f64 {
    spent.useful_s + spent.again_s + spent.checkpoint_s + spent.restart_s + spent.waiting_s
}

/// Share of useful work in the mean of many draws of failures every `between_s`.
fn drawn(run: &LongRun, every_s: f64, times: &CheckpointTimes, between_s: f64) -> f64 {
    let of = |draw: u64| {
        let mut stream = random::stream(7, "test").branch(draw);
        let mut at_s = 0.0;
        let mut next = || {
            at_s += stream.exponential() * between_s;
            at_s
        };
        let spent = run.spent(every_s, times, &mut next, None);
        assert!((total(&spent) / run.span_s - 1.0).abs() < 1e-9, "{spent:?}");
        spent.useful_s / run.span_s
    };
    (0..200).map(of).sum::<f64>() / 200.0
}

/// Time that a segment of work takes in the mean, with the checkpoint behind it: failures every `between_s`, each with a restart.
fn expected_segment_s(work_s: f64, stall_s: f64, restart_s: f64, between_s: f64) -> f64 {
    between_s * libm::exp(restart_s / between_s) * libm::expm1((work_s + stall_s) / between_s)
}

/// A small model on eight H100.
fn problem() -> Problem {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    Problem {
        model: engine::model::embedded("llama-3-8b").expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, 1, 8),
        layout: Layout::data_and_context(8, 1, Zero::OptimizerStates, ContextExchange::Gather),
        schedule: crate::schedule::named("1f1b").expect("listed"),
        workload: Workload { lengths: vec![1], batch_size: 1, source: "test".to_owned() },
        dtype: hw::Dtype::Bf16,
        execution: Execution::default(),
        bucket_tokens: 1,
        reserved_memory: hw::Bytes(0),
        seed: 0,
    }
}

/// Young's interval, the first term of the best one.
fn young_s(stall_s: f64, between_s: f64) -> f64 {
    (2.0 * stall_s * between_s).sqrt()
}

#[test]
fn drawn_runs_take_as_long_as_dalys_closed_form() {
    let run = run(Failures::Trace { at_s: Vec::new() });
    for (every_s, stall_s, between_s) in [(1800.0, 60.0, 4.0 * HOUR), (600.0, 60.0, HOUR), (3600.0, 300.0, HOUR)] {
        let expected = every_s / expected_segment_s(every_s, stall_s, run.restart_s + 100.0, between_s);
        let found = drawn(&run, every_s, &times(stall_s, 0.0), between_s);
        assert!((found / expected - 1.0).abs() < 0.005, "every {every_s}: {found}, closed form {expected}");
    }
}

#[test]
fn the_best_interval_is_youngs_for_rare_failures_and_beats_its_neighbours() {
    let rare = best_interval_s(60.0, 1e7, 1.0) / young_s(60.0, 1e7);
    assert!((rare - 1.0).abs() < 0.01, "{rare}");
    for (stall_s, between_s) in [(60.0, 4.0 * HOUR), (300.0, HOUR), (10.0, 1000.0)] {
        let best = best_interval_s(stall_s, between_s, 1.0);
        let per_work = |work_s: f64| expected_segment_s(work_s, stall_s, 300.0, between_s) / work_s;
        for factor in [0.5, 0.9, 1.1, 2.0] {
            assert!(per_work(best) < per_work(best * factor), "stall {stall_s}, {factor}");
        }
        let run = run(Failures::Trace { at_s: Vec::new() });
        let found = [0.4, 1.0, 2.5].map(|factor| drawn(&run, best * factor, &times(stall_s, 0.0), between_s));
        assert!(found[1] > found[0] && found[1] > found[2], "{found:?}");
    }
}

#[test]
fn a_job_that_restarts_longer_than_it_lives_is_hopeless_and_none_is_drawn() {
    let problem = problem();
    let run = |between_s: f64| LongRun {
        restart_s: 0.0,
        span_s: 1000.0 * HOUR,
        checkpoint: Checkpoint { mode: CheckpointMode::Synchronous, every_s: Some(60.0), storage_bytes_per_s: 1e9 },
        ..run(Failures::Rate { gpu_mtbf_s: 8.0 * between_s })
    };
    let at = |between_s: f64| run(between_s).hopeless(&Job::of_training(&problem, 10.0));
    // A checkpoint of 113 GB is written in 113 s and read in as many, so 113 s of restart meet a failure every second: e^113 tries.
    let read_s = checkpoint_bytes(&problem) / 1e9;
    let why = at(1.0).expect("nothing is kept");
    let words = format!("a failure every 1.00 s against a restart of {read_s:.0} s and 60 s of work");
    assert!(why.starts_with(&words), "{why}");
    // The border is where 60 s of work take 3,600,000 s / (10 s / 60 s) of the run.
    for between_s in [5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 60.0, 600.0] {
        let takes_s = expected_segment_s(60.0, read_s, read_s, between_s);
        assert_eq!(at(between_s).is_some(), takes_s > 6.0 * 1000.0 * HOUR, "every {between_s} s");
    }
    // Failures that are given are played, and a run that ends before the first failure keeps what it does.
    assert_eq!(
        LongRun { failures: Failures::Trace { at_s: vec![1.0] }, ..run(1.0) }
            .hopeless(&Job::of_training(&problem, 10.0)),
        None
    );
    assert_eq!(LongRun { span_s: 5.0, ..run(600.0) }.hopeless(&Job::of_training(&problem, 10.0)), None);
}

#[test]
fn a_trace_is_counted_by_hand() {
    // Segments of 100 s and checkpoints of 10: safe at 110 and 220. A failure at 250 takes 30 s back, restarts for 300 s, and 450 s remain.
    let run = LongRun { span_s: 1000.0, ..run(Failures::Trace { at_s: vec![250.0] }) };
    let mut strikes = [250.0].into_iter();
    let spent = run.spent(100.0, &times(10.0, 0.0), &mut || strikes.next().unwrap_or(f64::INFINITY), None);
    assert_eq!((spent.again_s, spent.restart_s, spent.waiting_s, spent.failures), (30.0, 300.0, 0.0, 1.0));
    // From 550 on: four checkpoints (at 650, 760, 870, 980), and ten seconds of work behind them.
    assert_eq!((spent.useful_s, spent.checkpoint_s), (200.0 + 410.0, 60.0));
}

#[test]
fn a_checkpoint_that_is_still_written_is_lost() {
    let run = LongRun { span_s: 1000.0, ..run(Failures::Trace { at_s: Vec::new() }) };
    let spent = |at_s: f64| {
        let mut strikes = [at_s].into_iter();
        run.spent(100.0, &times(10.0, 50.0), &mut || strikes.next().unwrap_or(f64::INFINITY), None)
    };
    // The first one stalls until 110 and can be read from 160 on.
    assert_eq!(spent(150.0).again_s, 140.0);
    assert_eq!(spent(170.0).again_s, 60.0);
}

#[test]
fn without_a_spare_node_the_job_waits_for_the_repair() {
    let base = LongRun { span_s: 10.0 * HOUR, ..run(Failures::Trace { at_s: Vec::new() }) };
    let waits = |spares| {
        let mut strikes = [1000.0, 3000.0, 5000.0].into_iter();
        let run = LongRun { spares, repair_s: 2.0 * HOUR, ..base.clone() };
        run.spent(600.0, &times(1.0, 0.0), &mut || strikes.next().unwrap_or(f64::INFINITY), None).waiting_s
    };
    assert_eq!([waits(0), waits(2), waits(3)], [2.0 * HOUR, 3200.0, 0.0]);
}

#[test]
fn nodes_that_fail_at_one_moment_each_need_another() {
    let base = LongRun { span_s: 48.0 * HOUR, repair_s: 24.0 * HOUR, ..run(Failures::Trace { at_s: Vec::new() }) };
    let spent = |spares, at_h: [f64; 3]| {
        let mut strikes = at_h.map(hours).into_iter();
        let run = LongRun { spares, ..base.clone() };
        run.spent(600.0, &times(1.0, 0.0), &mut || strikes.next().unwrap_or(f64::INFINITY), None)
    };
    // One restart of 200 s and a reading of 100 for the whole rack, and a day of repair where spares are missing.
    for (spares, waiting_h) in [(1, 24.0), (2, 24.0), (3, 0.0)] {
        let rack = spent(spares, [1.0, 1.0, 1.0]);
        assert_eq!((rack.failures, rack.waiting_s, rack.restart_s), (3.0, waiting_h * HOUR, 300.0), "{spares}");
        assert!((total(&rack) - base.span_s).abs() < 1e-6, "{rack:?}");
        // A minute apart they interrupt one another's restarts, and wait as long.
        let apart = spent(spares, [1.0, 1.0 + 1.0 / 60.0, 1.0 + 2.0 / 60.0]);
        assert!((apart.useful_s - rack.useful_s).abs() < 300.0, "{apart:?} and {rack:?}");
    }
    // What fails within the wait for a node costs nothing more, and what fails in the moment in which it begins does.
    assert_eq!(spent(0, [1.0, 1.0, 2.0]).failures, 2.0);
    // Two spares that are used up are not there for a failure an hour later.
    assert_eq!(spent(2, [1.0, 1.0, 2.0]).waiting_s, 23.0 * HOUR);
}

#[test]
fn storage_takes_no_more_than_links_bring() {
    let problem = problem();
    let job = Job::of_training(&problem, 1.0);
    let of_gpu = checkpoint_bytes(&problem) / f64::from(problem.cluster.n_gpus());
    let slowest = problem.cluster.gpu.host_bandwidth.get().min(problem.cluster.nic_bandwidth.get());
    let stored_s =
        |mode, storage_bytes_per_s| checkpoint_times(&job, &Checkpoint { mode, every_s: None, storage_bytes_per_s });
    for storage in [1e9, 1e12, 1e15] {
        let [waits, goes_on] =
            [CheckpointMode::Synchronous, CheckpointMode::Asynchronous].map(|mode| stored_s(mode, storage));
        let expected = (checkpoint_bytes(&problem) / storage).max(of_gpu / slowest);
        assert!((waits.stall_s / expected - 1.0).abs() < 1e-12, "{storage}: {waits:?}");
        assert!(waits.stall_s >= goes_on.stall_s && waits.stall_s == goes_on.behind_s, "{storage}: {goes_on:?}");
    }
}

#[test]
fn a_checkpoint_holds_what_the_optimizer_keeps() {
    let mut problem = problem();
    let model = &problem.model;
    let [all, tables] = [model.n_parameters(), 2 * model.vocab * model.hidden].map(hw::real);
    let close = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-4, "{found} {expected}");
    close(checkpoint_bytes(&problem), 14.0 * all);
    // Muon has one moment of 32 bits less in the layers.
    problem.execution.optimizer.rule = Rule::Muon;
    close(checkpoint_bytes(&problem), 14.0 * all - 4.0 * (all - tables));
    // A pair of matrices of rank 16 beside the product behind attention, and their own moments and copies: 14 bytes again, and no frozen weight.
    problem.execution.adapters = Some(Adapters::new(16, AdaptedProducts::OUTPUT));
    let model = &problem.model;
    let pairs = model.n_layers * 16 * (model.hidden + model.n_heads * model.head_dim);
    close(checkpoint_bytes(&problem), 14.0 * hw::real(pairs));
}

#[test]
fn what_is_kept_lies_between_the_slowest_steps_of_the_worst_draw_and_the_fastest_of_the_best() {
    let values = [("run_goodput_ratio", 0.8), ("run_tokens_per_s", 100.0), ("run_cost_usd_per_mtok", 2.0)];
    let values = values.map(|(key, value)| (key.to_owned(), value)).into();
    let lasted = Lasted { values, goodput: [0.6, 0.9], why: String::new() };
    let intervals = lasted.intervals(1.0, [0.75, 1.5]);
    // 0.6 / 0.8 of the work at two thirds of the speed, and 0.9 / 0.8 of it at four thirds.
    let [low, high] = intervals["run_tokens_per_s"];
    assert!((low - 50.0).abs() < 1e-9 && (high - 150.0).abs() < 1e-9, "{low} {high}");
    let [least, most] = intervals["run_cost_usd_per_mtok"];
    assert!((least - 2.0 / 1.5).abs() < 1e-9 && (most - 4.0).abs() < 1e-9, "{least} {most}");
    assert_eq!(intervals["run_goodput_ratio"], [0.6, 0.9]);
}

/// A run that is drawn: failures at random or at moments, spare nodes or none, any checkpoints, slow nodes or none; and a step.
fn any_run(random: &mut random::Stream) -> (LongRun, f64) {
    let span_s = hours(10.0 + hw::real(random.below(2000)));
    let failures = match random.below(3) {
        0 => {
            let mut at_s: Vec<f64> = (0..random.below(12)).map(|_| random.unit() * span_s).collect();
            at_s.sort_by(f64::total_cmp);
            Failures::Trace { at_s }
        }
        _ => Failures::Rate { gpu_mtbf_s: hours(20.0 + hw::real(random.below(4000))) },
    };
    let mode = CheckpointMode::WORDS[random.below(3) as usize].1;
    let every_s = (random.below(2) == 0).then(|| 60.0 + hw::real(random.below(20_000)));
    let storage_bytes_per_s = gigabytes(1.0 + hw::real(random.below(200)));
    let reaction = [Reaction::Endure, Reaction::Restart, Reaction::Replan][random.below(3) as usize];
    let slow_nodes = (random.below(2) == 0).then(|| SlowNodes {
        begins: Begins::Rate { node_s: hours(5.0 + hw::real(random.below(300))) },
        lasts_s: hours(1.0 + hw::real(random.below(20))),
        rate: 2.0,
        reaction: slow::Asked::Given(reaction),
    });
    let run = LongRun {
        span_s,
        failures,
        restart_s: hw::real(random.below(3000)),
        spares: u32::try_from(random.below(4)).expect("few"),
        repair_s: hours(hw::real(random.below(48))),
        checkpoint: Checkpoint { mode, every_s, storage_bytes_per_s },
        slow_nodes,
    };
    (run, 0.5 + hw::real(random.below(100)))
}

#[test]
fn no_run_that_is_played_keeps_more_than_the_bound() {
    let mut random = random::stream(3, "bound of runs");
    let mut nearest = 0.0_f64;
    for case in 0..300 {
        let mut problem = problem();
        problem.cluster = hw::catalog::cluster(&problem.cluster.gpu, 2, 4);
        problem.seed = case;
        let (run, step_s) = any_run(&mut random);
        let job = Job::of_training(&problem, step_s);
        let beside = run.slow_nodes.as_ref().map(|slow| {
            let slow::Asked::Given(reaction) = slow.reaction else { unreachable!("each case has one") };
            let replanned = Some(slow::Replanned { pace: 1.2, pause_s: 20.0, late_s: step_s });
            Beside { slowed: Slowed { endured: 1.7, replanned }, reactions: vec![reaction] }
        });
        let lasted = run.play(&job, beside.as_ref());
        let [per_s, per_usd] = run.most_kept(&job);
        for (key, most) in [("run_tokens_per_s", per_s), ("run_tokens_per_usd", per_usd)] {
            let kept = lasted.values.get(key).copied().unwrap_or(0.0);
            assert!(kept <= most * (1.0 + 1e-9), "{case}: {key} {kept} above {most}: {run:?}");
            nearest = nearest.max(kept / most);
        }
    }
    assert!(nearest > 0.98, "the bound is {nearest} of a run at best");
}

/// Two failures a day apart, each with a restart of 200 s, and a repair of an hour that both wait for: where steps and checkpoints take next to nothing, the run is as good
/// as its bound.
#[test]
fn the_bound_of_a_run_counts_restarts_and_waits() {
    let mut problem = problem();
    problem.execution.adapters = Some(Adapters::new(1, AdaptedProducts::OUTPUT));
    let trace = Failures::Trace { at_s: vec![24.0 * HOUR, 48.0 * HOUR] };
    let checkpoint = Checkpoint { mode: CheckpointMode::Synchronous, every_s: Some(100.0), storage_bytes_per_s: 1e15 };
    let run = LongRun { spares: 0, checkpoint, ..run(trace) };
    let job = Job::of_training(&problem, 0.1);
    let share = run.up_share(&job);
    assert!((share - (1.0 - 2.0 * (3600.0 + 200.0) / run.span_s)).abs() < 1e-12, "{share}");
    let useful = run.play(&job, None).useful();
    assert!(useful <= share && useful > share * 0.999, "{useful} {share}");
    // A spare node spares one the wait, and both where it is repaired meanwhile.
    let with_spare = LongRun { spares: 1, ..run }.up_share(&job);
    assert!((with_spare - (1.0 - 2.0 * 200.0 / run.span_s)).abs() < 1e-12, "{with_spare}");
}

/// Three failures within two hours, repairs of a day, a spare node of each type: of one type the second waits for the first repair, of two types in turn none does
/// but the third.
#[test]
fn a_node_that_fails_needs_another_of_its_own_type() {
    let trace = Failures::Trace { at_s: Vec::new() };
    let run = LongRun { span_s: 48.0 * HOUR, spares: 1, repair_s: 24.0 * HOUR, ..run(trace) };
    let waiting_s = |types: [usize; 3]| {
        let (mut strikes, mut types) = ([1.0, 2.0, 30.0].map(hours).into_iter(), types.into_iter());
        let mut next = || strikes.next().unwrap_or(f64::INFINITY);
        let mut struck = || types.next().expect("one for each failure");
        run.spent_on(600.0, &times(1.0, 0.0), (&mut next, &mut struck, 2), None).waiting_s
    };
    assert_eq!(waiting_s([0, 0, 0]), 23.0 * HOUR);
    assert_eq!(waiting_s([0, 1, 0]), 0.0);
}
