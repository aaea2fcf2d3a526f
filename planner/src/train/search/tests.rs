//! The bound is below every simulated step, and the search returns what simulating everything returns.

mod stragglers;

use std::collections::BTreeMap;

use engine::Model;
use engine::cost::roofline::Roofline;
use hw::topology::Topology;
use train::Workload;
use train::layout::{ContextExchange, Layout, Zero};
use train::long_run::{Checkpoint, CheckpointMode, Failures, LongRun};
use train::problem::{Execution, GradientSync, Problem, Recompute};

use super::bound::{Dropped, Judge, of_order};
use super::space::{self, Space};
use super::*;
use crate::train::policy::{Reads, Value};

/// A small model on two nodes of four GPUs with little memory, so that some layouts do not fit.
pub(super) fn problem(lengths: Vec<u64>, execution: Execution, memory_gib: f64) -> Problem {
    let mut gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
    gpu.memory = hw::Bytes::from_gib(memory_gib);
    let model =
        Model { n_layers: 6, n_heads: 8, n_kv_heads: 8, ..engine::model::embedded("gpt-7b").expect("embedded") };
    Problem {
        model,
        cluster: hw::catalog::cluster(&gpu, 2, 4),
        layout: Layout::data_and_context(8, 1, Zero::OptimizerStates, ContextExchange::Gather),
        schedule: train::schedule::named("1f1b").expect("listed"),
        workload: Workload { batch_size: lengths.len(), lengths, source: "test".to_owned() },
        dtype: hw::Dtype::Bf16,
        execution,
        bucket_tokens: 1024,
        reserved_memory: hw::Bytes(0),
        seed: 1,
    }
}

/// Every kind of layout, few values each.
fn space(problem: &Problem) -> Space {
    let all = ["1f1b", "interleaved", "zb-1p", "zb-v", "dualpipe"];
    Space {
        chunks: vec![1, 2, 3],
        micro_batch: vec![1, 2, 4],
        schedules: all.into_iter().filter_map(train::schedule::named).collect(),
        cp: vec![1, 2],
        offload: vec![0.0, 0.7],
        head_layers: vec![0, 1],
        ..Space::of(problem)
    }
}

fn check(problem: &Problem, policy: &str) {
    check_space(problem, policy, &space(problem));
}

/// No run of days is sought.
fn nothing_kept(_: &Problem, _: &Plan, _: f64) -> Result<f64, PlanError> {
    unreachable!("steps alone are ranked")
}

/// What a run of days keeps over steps that take so long.
fn kept(space: &Space, laid_out: &Problem, step_s: f64) -> f64 {
    let run = space.run.as_ref().expect("a run of days is sought");
    run.kept(&Job::of_training(laid_out, step_s), None).expect("something is kept").values[space.objective.metric()]
}

/// What is ranked of a layout whose step takes so long.
fn value(space: &Space, laid_out: &Problem, step_s: f64) -> f64 {
    match space.objective {
        Objective::Seconds => step_s,
        Objective::Usd => {
            let per_hour = laid_out.cluster.gpu.usd_per_hour().expect("a price");
            step_s * (f64::from(laid_out.cluster.n_gpus()) * per_hour / 3600.0)
        }
        Objective::RunTokens | Objective::RunTokensPerUsd => 1.0 / kept(space, laid_out, step_s),
    }
}

/// No bound is above the step, none that fits is dropped, and the search finds the best of all; which it is.
fn check_space(problem: &Problem, policy: &str, space: &Space) -> Simulated {
    let cost = Roofline::new(&problem.cluster);
    let topology = Topology::of(&problem.cluster);
    let policy = crate::train::policies::named(policy).expect("listed");
    // The one policy that tries changes tries few.
    let parameters = [("tries".to_owned(), Value::Number(3.0))].into();
    let context = PlanContext { cost: &cost, parameters };
    let mut judge = Judge::new(problem, policy, &context);
    let (mut best, mut n_fit) = (f64::INFINITY, 0);
    let mut all: Vec<(f64, [u64; 5])> = Vec::new();
    for candidate in space.candidates(problem) {
        let laid_out = candidate.problem(problem);
        let Ok(plan) = plan(&laid_out, policy, &context) else { continue };
        let topology = Topology::of(&laid_out.cluster);
        let step = simulate_peak(&laid_out, &plan, &context, &topology);
        let least = judge.least(&candidate);
        if let (Ok(least), Some((_, peak))) = (&least, step) {
            assert!(least.bytes <= peak, "{} bytes at least, {peak} played: {candidate:?}", least.bytes);
        }
        let step = step.map(|(step_s, _)| step_s);
        match (least.map(|least| least.step_s), step) {
            (Err(Dropped::Refused(why)), _) => panic!("it has a plan, and {why}: {candidate:?}"),
            (Err(Dropped::TooLarge), found) => {
                assert_eq!(found, None, "dropped for memory, yet it fits: {candidate:?}")
            }
            (Ok(bound), Some(step)) => {
                n_fit += 1;
                assert!(bound <= step, "bound {bound} above {step}: {candidate:?}");
                if let Some(closer) = of_order(&laid_out, &plan, &cost) {
                    assert!(closer <= step, "bound of the order {closer} above {step}: {candidate:?}");
                }
                let value = value(space, &laid_out, step);
                best = best.min(value);
                all.push((value, candidate.effort()));
            }
            (Ok(_), None) => {}
        }
    }
    assert!(n_fit >= 12, "{n_fit} layouts fit");
    let each: Each<'_> = &|n, job| (0..n).for_each(job);
    let kept = |laid_out: &Problem, _: &Plan, step_s: f64| Ok(kept(space, laid_out, step_s));
    let found = search(problem, policy, &context, (space, &kept), &topology, (Effort::UntilProved, each));
    let found = found.expect("some layout fits");
    assert_eq!(found.best.plan.value, best);
    let objective = found.best.objective().expect("counted");
    assert!((objective - counted(space.objective, best)).abs() <= objective * 1e-12, "{objective} {best}");
    // Of equal steps the simplest layout.
    let simplest = all.iter().filter(|(value, _)| *value == best).map(|(_, effort)| *effort).min();
    assert_eq!(Some(found.best.plan.candidate.effort()), simplest);
    assert!(found.n_simulated < found.n_judged);
    found.best.plan
}

/// A policy that looks at more of a layout than its room makes other micro-batches for another layout of equal room.
#[test]
fn policies_that_look_at_the_whole_layout_are_searched_without_losing_the_best() {
    let lengths: Vec<u64> = (0..16).map(|k| 256 + 173 * (k * k % 11)).collect();
    for policy in ["chunkflow", "hydraulis", "malleus", "bytescale", "hybrid-cp", "flexsp", "improved"] {
        let is_pool = ["bytescale", "hybrid-cp", "flexsp"].contains(&policy);
        let base = problem(lengths.clone(), Execution::default(), 60.0);
        let exchange = if policy == "flexsp" { ContextExchange::Ulysses } else { ContextExchange::Gather };
        let problem = Problem { layout: Layout { exchange, ..base.layout }, ..base };
        let all = Space {
            schedules: ["1f1b", "zb-1p"].into_iter().filter_map(train::schedule::named).collect(),
            tp: vec![1, 2, 4],
            cp: if is_pool { vec![1, 2, 4, 8] } else { vec![1] },
            pp: if policy == "improved" { vec![2] } else { vec![1, 2] },
            micro_batch: if policy == "improved" { vec![1] } else { vec![1, 2] },
            recompute: vec![Recompute::Off, Recompute::Full],
            zero: vec![Zero::Parameters, Zero::Off, Zero::OptimizerStates],
            head_layers: vec![0],
            ..space(&problem)
        };
        check_space(&problem, policy, &all);
    }
}

/// 62 sequences of 256 tokens and two of 2,048 on two replicas of two stages: two micro-batches of the mean for each replica hold 4,992 tokens, and a sequence of the mean
/// has 312. Where a micro-batch costs the host much, rooms of 4,096 are three for a replica, and those of 8,192 leave the second one nearly empty.
#[test]
fn micro_batches_of_about_the_mean_are_tried_between_multiples_of_the_longest() {
    let host_overhead_per_layer = hw::Seconds::new(5e-3);
    let execution = Execution { host_overhead_per_layer, ..Execution::default() };
    let problem = problem([vec![256; 62], vec![2048; 2]].concat(), execution, 80.0);
    let (cost, topology) = (Roofline::new(&problem.cluster), Topology::of(&problem.cluster));
    let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
    let policy = crate::train::policies::named("best_fit").expect("listed");
    let best = |packs| {
        let few = Space { packs, tp: vec![2], cp: vec![1], pp: vec![2], offload: vec![0.0], ..space(&problem) };
        let has = few.candidates(&problem).iter().any(|of| (of.bucket_tokens, of.micro_batch) == (5304, 2));
        let each: Each<'_> = &|n, job| (0..n).for_each(job);
        let found = search(&problem, policy, &context, (&few, &nothing_kept), &topology, (Effort::UntilProved, each))
            .expect("a layout");
        (has, found.best.objective().expect("seconds"))
    };
    let ((is_tried, with_s), (is_listed, without_s)) = (best(true), best(false));
    assert!(is_tried && !is_listed && with_s < without_s, "{with_s} and {without_s}");
}

/// What a policy that packs into the room says of itself: all layouts of equal room have equal micro-batches.
#[test]
fn policies_that_read_the_room_alone_plan_alike_whatever_else_a_layout_is() {
    let lengths: Vec<u64> = (0..16).map(|k| 64 + 37 * (k * k % 27)).collect();
    let problem = problem(lengths, Execution::default(), 80.0);
    let cost = Roofline::new(&problem.cluster);
    let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
    let all = Space { nodes: vec![1, 2], ..space(&problem) };
    let mut by_room: BTreeMap<(u32, u32, u64), Vec<space::Candidate>> = BTreeMap::new();
    for candidate in all.candidates(&problem) {
        let room = (candidate.layout.dp, candidate.layout.cp, candidate.bucket_tokens);
        by_room.entry(room).or_default().push(candidate);
    }
    let packing = crate::train::policies::POLICIES.iter().filter(|policy| policy.reads() == Reads::Room);
    let names: Vec<&str> = packing.clone().map(|policy| policy.card().name).collect();
    assert_eq!(names, ["best_fit", "deepspeed", "longalign", "megatron", "round_robin", "skrull", "skrull_exact"]);
    for policy in packing.filter(|policy| policy.card().name != "skrull_exact") {
        for alike in by_room.values() {
            // The first and the last differ most.
            let steps = |candidate: &space::Candidate| {
                policy.plan(&candidate.problem(&problem), &context).map(|decision| decision.plan.steps)
            };
            let (first, last) = (&alike[0], &alike[alike.len() - 1]);
            assert_eq!(steps(first), steps(last), "{}: {first:?} {last:?}", policy.card().name);
        }
    }
}

#[test]
fn no_order_of_a_list_and_no_longer_list_loses_a_layout() {
    let problem = problem(vec![1024; 16], Execution::default(), 60.0);
    let cost = Roofline::new(&problem.cluster);
    let topology = Topology::of(&problem.cluster);
    let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
    let each: Each<'_> = &|n, job| (0..n).for_each(job);
    for name in ["hydraulis", "malleus", "chunkflow"] {
        let policy = crate::train::policies::named(name).expect("listed");
        let best = |zero: &[Zero]| {
            let few = Space { tp: vec![2], cp: vec![1], zero: zero.to_vec(), ..space(&problem) };
            let found =
                search(&problem, policy, &context, (&few, &nothing_kept), &topology, (Effort::UntilProved, each));
            found.unwrap_or_else(|why| panic!("{name}, {zero:?}: {why}")).best.objective().expect("seconds")
        };
        let alone = best(&[Zero::OptimizerStates]);
        for zero in [[Zero::OptimizerStates, Zero::Parameters], [Zero::Parameters, Zero::OptimizerStates]] {
            assert!(best(&zero) <= alone, "{name}, {zero:?}");
        }
        assert_eq!(best(&[Zero::Off, Zero::OptimizerStates]), best(&[Zero::OptimizerStates, Zero::Off]), "{name}");
    }
}

#[test]
fn a_policy_without_a_plan_is_not_called_too_large() {
    let problem = problem(vec![1024; 16], Execution::default(), 80.0);
    let cost = Roofline::new(&problem.cluster);
    let topology = Topology::of(&problem.cluster);
    let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
    let each: Each<'_> = &|n, job| (0..n).for_each(job);
    let why = |policy: &str, memory_gib: f64| {
        let mut problem = problem.clone();
        problem.cluster.gpu.memory = hw::Bytes::from_gib(memory_gib);
        let policy = crate::train::policies::named(policy).expect("listed");
        let few = Space { tp: vec![2], cp: vec![1], pp: vec![2], zero: vec![Zero::Off], ..space(&problem) };
        let found = search(&problem, policy, &context, (&few, &nothing_kept), &topology, (Effort::UntilProved, each));
        found.expect_err("nothing is possible").to_string()
    };
    let refused = why("hydraulis", 80.0);
    assert!(refused.contains(" have no plan") && refused.contains("`hydraulis`: "), "{refused}");
    assert!(!refused.contains("memory"), "{refused}");
    let large = why("megatron", 1.0);
    assert!(large.contains(" need too much memory") && !large.contains("no plan"), "{large}");
}

#[test]
fn one_rank_has_nothing_to_cut_or_to_shard_whatever_the_lists_say() {
    let problem = problem(vec![1024; 16], Execution::default(), 80.0);
    let of = |sequence_parallel: &[bool], zero: &[Zero], replicate: u32| {
        let layout = Layout { replicate, ..problem.layout };
        let problem = Problem { layout, ..problem.clone() };
        let sequence_parallel = sequence_parallel.to_vec();
        let few = Space { sequence_parallel, zero: zero.to_vec(), cp: vec![1], ..space(&problem) };
        few.candidates(&problem).into_iter().map(|candidate| candidate.layout).collect::<Vec<Layout>>()
    };
    let both = of(&[true, false], &[Zero::Off], 1);
    for (list, on) in [([true], true), ([false], false)] {
        let found = of(&list, &[Zero::Off], 1);
        let whole = |layouts: &[Layout]| layouts.iter().filter(|layout| layout.tp == 1).count();
        assert_eq!(whole(&found), whole(&both));
        assert!(found.iter().all(|layout| layout.sequence_parallel == (on && layout.tp > 1)));
    }
    // Two nodes of four in one data-parallel group: eight ranks are tensor and pipeline ranks.
    let alone = |layouts: &[Layout]| layouts.iter().filter(|layout| layout.dp == 1).map(|layout| layout.zero).max();
    assert_eq!(alone(&of(&[false], &[Zero::OptimizerStates], 1)), Some(Zero::OptimizerStates));
    assert_eq!(alone(&of(&[false], &[Zero::Parameters, Zero::OptimizerStates], 1)), Some(Zero::OptimizerStates));
    assert_eq!(alone(&of(&[false], &[Zero::Parameters, Zero::Off], 1)), Some(Zero::Off));
    // Two copies of the states need two ranks at least, and one copy each has what is not sharded.
    let copied = of(&[false], &[Zero::Off, Zero::OptimizerStates], 2);
    assert!(copied.iter().any(|layout| layout.replicate == 2));
    assert!(copied.iter().all(|layout| (layout.replicate == 2) == (layout.zero == Zero::OptimizerStates)));
    assert!(copied.iter().all(|layout| layout.dp.is_multiple_of(layout.replicate)));
}

#[test]
fn the_host_interleaves_in_layouts_with_an_all_to_all_alone() {
    let overlap = train::problem::Overlap { expert: Some(0.5), ..Execution::default().overlap };
    let mut execution =
        Execution { framework: train::problem::Framework::MegatronCore, overlap, ..Execution::default() };
    execution.launches.each = hw::Seconds::new(10e-6);
    let model = Model { n_layers: 6, ..engine::model::embedded("qwen3-30b-a3b").expect("embedded") };
    let problem = Problem { model, ..problem(vec![1024; 16], execution, 80.0) };
    let few = Space { ep: vec![1, 2], micro_batch: vec![1], ..space(&problem) };
    let all = few.candidates(&problem);
    assert!(all.iter().any(|of| of.layout.ep == 1) && all.iter().any(|of| of.layout.ep == 2));
    for candidate in all {
        let times = if candidate.layout.ep > 1 { 2.0 } else { 1.0 };
        let each = candidate.problem(&problem).execution.launches.each;
        assert!((each.get() - times * 10e-6).abs() < 1e-12, "{each:?}: {candidate:?}");
    }
}

#[test]
fn equal_sequences_are_searched_without_losing_the_best() {
    for gradient_sync in [GradientSync::AtEnd, GradientSync::Overlapped] {
        check(&problem(vec![1024; 16], Execution { gradient_sync, ..Execution::default() }, 40.0), "megatron");
    }
}

#[test]
fn adapters_and_gathers_ahead_are_searched_without_losing_the_best() {
    let adapters = Some(train::problem::Adapters::new(32, train::problem::AdaptedProducts::ALL));
    check(&problem(vec![1024; 16], Execution { adapters, ..Execution::default() }, 40.0), "megatron");
    let overlap = train::problem::Overlap { parameter_gather: true, ..Execution::default().overlap };
    check(&problem(vec![1024; 16], Execution { overlap, ..Execution::default() }, 40.0), "megatron");
}

#[test]
fn gradients_of_sharded_modules_that_wait_are_searched_without_losing_the_best() {
    use train::problem::{Casts, Framework, TorchModules};
    let modules =
        TorchModules { compiled: true, fused_norms: true, casts: Casts::Off, in_pieces: false, repeats_keys: true };
    for gradient_sync in [GradientSync::AtEnd, GradientSync::Overlapped] {
        let execution = Execution { framework: Framework::Fsdp2(modules), gradient_sync, ..Execution::default() };
        check(&problem(vec![1024; 16], execution, 40.0), "megatron");
    }
}

#[test]
fn hidden_exchanges_are_searched_without_losing_the_best() {
    for tensor in [0.4, 0.77] {
        for gradient_sync in [GradientSync::AtEnd, GradientSync::Overlapped] {
            let overlap = train::problem::Overlap { tensor, ..Execution::default().overlap };
            let execution = Execution { overlap, gradient_sync, ..Execution::default() };
            check(&problem(vec![1024; 16], execution, 40.0), "megatron");
        }
    }
}

/// One layer in two passes of 16 micro-batches has four exchanges that reduce, and with sequence parallelism as many that gather.
#[test]
fn only_the_hidden_share_of_an_exchange_leaves_the_bound() {
    let bound = |tensor: f64| {
        let overlap = train::problem::Overlap { tensor, ..Execution::default().overlap };
        let execution = Execution { overlap, gradient_sync: GradientSync::AtEnd, ..Execution::default() };
        let problem = problem(vec![1024; 16], execution, 80.0);
        let cost = Roofline::new(&problem.cluster);
        let policy = crate::train::policies::named("megatron").expect("listed");
        let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
        let space = Space {
            tp: vec![4],
            pp: vec![1],
            micro_batch: vec![1],
            recompute: vec![Recompute::Off],
            zero: vec![Zero::Off, Zero::OptimizerStates],
            ..space(&problem)
        };
        let mut judge = Judge::new(&problem, policy, &context);
        space
            .candidates(&problem)
            .iter()
            .map(|candidate| judge.least(candidate).map_or(0.0, |least| least.step_s))
            .collect::<Vec<_>>()
    };
    let [whole, half, none] = [0.0, 0.5, 1.0].map(bound);
    for ((whole, half), none) in whole.into_iter().zip(half).zip(none).filter(|((whole, _), _)| *whole > 0.0) {
        assert!(none < half && half < whole, "{none} {half} {whole}");
        // Half of the exchange, less what six layers in whole repeats may round away.
        let left = (half - none) / (whole - none);
        assert!((0.3..=0.5).contains(&left), "{left}");
    }
}

#[test]
fn mixed_sequences_are_searched_without_losing_the_best() {
    let lengths = (0..24).map(|k| 64 + 37 * (k * k % 27)).collect();
    check(
        &problem(lengths, Execution { gradient_sync: GradientSync::AtEnd, ..Execution::default() }, 80.0),
        "best_fit",
    );
}

/// A model of seven layers whose head counts as two, trained in two formats on one node or two.
#[test]
fn formats_nodes_and_uneven_stages_are_searched_without_losing_the_best() {
    let base = problem(vec![1024; 16], Execution::default(), 40.0);
    let mut cluster = base.cluster.clone();
    cluster.gpu = hw::Gpu { memory: cluster.gpu.memory, ..hw::catalog::gpu("h100-sxm").expect("listed") };
    // A table of its own for the head: ends of a pipeline would add up the gradients of one that they share, between nodes.
    let problem = Problem { model: Model { n_layers: 7, tied: false, ..base.model.clone() }, cluster, ..base };
    let formats = |format| Some(engine::formats::Formats::weights(format, hw::Dtype::Bf16));
    let all = |objective| Space {
        schedules: ["1f1b", "interleaved"].into_iter().filter_map(train::schedule::named).collect(),
        micro_batch: vec![1, 2],
        offload: vec![0.0],
        head_layers: vec![0, 2],
        embedding_layers: vec![0, 1],
        nodes: vec![1, 2],
        products: vec![None, formats(hw::Format::Fp8)],
        objective,
        ..space(&problem)
    };
    let uneven = all(Objective::Seconds).candidates(&problem).iter().filter(|of| of.ends != [0, 0]).count();
    assert!(uneven > 20, "{uneven}");
    let seconds = check_space(&problem, "megatron", &all(Objective::Seconds));
    let usd = check_space(&problem, "megatron", &all(Objective::Usd));
    assert_eq!((seconds.candidate.nodes, usd.candidate.nodes), (2, 1));
    // Products in eight bits are faster here, and the faster of two formats is found.
    assert!(seconds.candidate.products.is_some() && usd.candidate.products.is_some());
    // A node more keeps more in a second while it seldom fails. Beside many spare nodes it costs little.
    let run = |objective, spares| Space { run: Some(run_of_days(spares)), ..all(objective) };
    let per_s = check_space(&problem, "megatron", &run(Objective::RunTokens, 0));
    let per_usd = [0, 20].map(|spares| check_space(&problem, "megatron", &run(Objective::RunTokensPerUsd, spares)));
    assert_eq!((per_s.candidate.nodes, per_usd.map(|of| of.candidate.nodes)), (2, [1, 2]));
}

/// A run of four days whose cards seldom fail, with so many spare nodes.
fn run_of_days(spares: u32) -> LongRun {
    let hours = train::long_run::hours;
    LongRun {
        span_s: hours(100.0),
        failures: Failures::Rate { gpu_mtbf_s: hours(10_000.0) },
        restart_s: 300.0,
        spares,
        repair_s: hours(2.0),
        checkpoint: Checkpoint { mode: CheckpointMode::Synchronous, every_s: None, storage_bytes_per_s: 1e10 },
        slow_nodes: None,
    }
}

#[test]
fn the_front_holds_whatever_no_other_layout_beats() {
    let problem = problem(vec![1024; 16], Execution::default(), 40.0);
    let cost = Roofline::new(&problem.cluster);
    let topology = Topology::of(&problem.cluster);
    let policy = crate::train::policies::named("megatron").expect("listed");
    let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
    let space = Space { front_ratio: 2.0, ..space(&problem) };
    let each: Each<'_> = &|n, job| (0..n).for_each(job);
    let of = |effort| {
        search(&problem, policy, &context, (&space, &nothing_kept), &topology, (effort, each))
            .expect("some layout fits")
    };
    let figures = |found: &Found| found.front.iter().map(|of| (of.step_s, of.peak_bytes)).collect::<Vec<_>>();
    let (pruned, all) = (of(Effort::UntilProved), of(Effort::Everything));
    assert_eq!(figures(&pruned), figures(&all));
    assert!(pruned.front.len() > 2 && pruned.n_simulated < all.n_simulated, "{:?}", figures(&pruned));
    assert_eq!(pruned.front[0].step_s, pruned.best.plan.step_s);
    assert!(figures(&pruned).windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1));
}

#[test]
fn a_heavy_head_takes_layers_from_the_last_stage() {
    assert_eq!(space::layers(32, 8, [0, 3]), Some(vec![4, 4, 5, 5, 5, 4, 4, 1]));
    assert_eq!(space::layers(6, 4, [1, 1]), Some(vec![1, 2, 2, 1]));
    assert_eq!(space::layers(4, 4, [0, 1]), None);
}

#[test]
fn tight_memory_drops_only_what_does_not_fit() {
    check(&problem(vec![1024; 16], Execution::default(), 14.0), "megatron");
}

/// Megatron-Core counts workspace, buffers, logits and head besides: the bound of memory has them all.
#[test]
fn experts_and_hybrids_of_megatron_core_are_searched_without_losing_the_best() {
    for (name, n_layers, memory_gib) in [("qwen3-30b-a3b", 6, 40.0), ("nemotron-3-nano-30b-a3b", 14, 40.0)] {
        let execution = Execution { framework: train::problem::Framework::MegatronCore, ..Execution::default() };
        let base = problem(vec![1024; 16], execution, memory_gib);
        let model = Model { n_layers, ..engine::model::embedded(name).expect("embedded") };
        let problem = Problem { model, ..base };
        let few = Space {
            schedules: ["1f1b", "interleaved", "zb-1p"].into_iter().filter_map(train::schedule::named).collect(),
            cp: vec![1],
            ep: vec![1, 8],
            micro_batch: vec![1, 2],
            zero: vec![Zero::OptimizerStates],
            sequence_parallel: vec![true],
            offload: vec![0.0],
            ..space(&problem)
        };
        check_space(&problem, "megatron", &few);
    }
}

/// Tokens spread over experts anew in every step: a bound from the first one may lie above a later one.
#[test]
fn steps_of_uneven_experts_are_searched_without_losing_the_best() {
    for seed in 0..4 {
        let experts = train::problem::ExpertTraffic { imbalance: 1.5, ..train::problem::ExpertTraffic::EVEN };
        let base = problem(vec![1024; 64], Execution { experts, ..Execution::default() }, 80.0);
        let model = Model { n_layers: 6, ..engine::model::embedded("olmoe-1b-7b").expect("embedded") };
        let workload = Workload { batch_size: 32, ..base.workload };
        let problem = Problem { model, workload, seed, ..base };
        let few = Space {
            schedules: train::schedule::named("1f1b").into_iter().collect(),
            tp: vec![1],
            cp: vec![1],
            pp: vec![1, 2],
            ep: vec![1, 4, 8],
            micro_batch: vec![2, 4],
            zero: vec![Zero::Off, Zero::OptimizerStates],
            offload: vec![0.0],
            ..space(&problem)
        };
        check_space(&problem, "megatron", &few);
    }
}

/// PyTorch leaves a product out of what it computes again, and reduces gradients in a way of its own.
#[test]
fn layouts_of_pytorch_are_searched_without_losing_the_best() {
    use train::problem::{Casts, Framework, TorchModules};
    let modules =
        TorchModules { compiled: true, fused_norms: true, casts: Casts::Off, in_pieces: false, repeats_keys: true };
    let framework = Framework::Fsdp2(modules);
    let (end, behind) = (GradientSync::AtEnd, GradientSync::Overlapped);
    for (gradient_sync, flush_every) in [(end, None), (behind, None), (end, Some(3)), (behind, Some(2))] {
        let execution = Execution { framework, gradient_sync, flush_every, ..Execution::default() };
        let base = problem(vec![1024; 16], execution, 40.0);
        let few = Space {
            schedules: ["1f1b", "interleaved"].into_iter().filter_map(train::schedule::named).collect(),
            recompute: vec![Recompute::Off, Recompute::Full],
            zero: vec![Zero::Off, Zero::Gradients, Zero::Parameters],
            micro_batch: vec![1, 2],
            offload: vec![0.0],
            ..space(&base)
        };
        check_space(&base, "megatron", &few);
    }
}

/// Copies to the host that computation hides take no time, so a layout with them is as fast, and no answer.
#[test]
fn of_equal_steps_the_simpler_layout_is_the_answer() {
    let problem = problem(vec![1024; 16], Execution::default(), 80.0);
    let few = Space {
        tp: vec![1],
        cp: vec![1],
        pp: vec![1],
        offload: vec![0.01, 0.0],
        recompute: vec![Recompute::Full, Recompute::Off],
        zero: vec![Zero::OptimizerStates, Zero::Off],
        ..space(&problem)
    };
    let best = check_space(&problem, "megatron", &few);
    assert_eq!((best.candidate.offload, best.candidate.recompute), (0.0, Recompute::Off));
}

/// Copies that computation does not hide make the step longer: where all fits without them, no such layout is the answer.
#[test]
fn activations_stay_on_the_device_where_their_copies_take_longer_than_what_they_hide_behind() {
    let mut problem = problem(vec![1024; 16], Execution::default(), 80.0);
    problem.cluster.gpu.host_bandwidth = hw::BytesPerSecond::new(1e9);
    let few = Space {
        tp: vec![1, 2],
        cp: vec![1],
        recompute: vec![Recompute::Off],
        zero: vec![Zero::OptimizerStates, Zero::Off],
        offload: vec![1.0, 0.0],
        ..space(&problem)
    };
    assert_eq!(check_space(&problem, "megatron", &few).candidate.offload, 0.0);
}

#[test]
fn one_stage_runs_a_micro_batch_after_the_other_whatever_comes_first_in_the_list() {
    let problem = problem(vec![1024; 16], Execution::default(), 40.0);
    for names in [["zb-1p", "1f1b"], ["gpipe", "1f1b"], ["zb-v", "interleaved"]] {
        let schedules = names.into_iter().filter_map(train::schedule::named).collect();
        let all = Space { schedules, pp: vec![1], ..space(&problem) }.candidates(&problem);
        assert!(!all.is_empty() && all.iter().all(|of| of.schedule.name == "1f1b"), "{names:?}");
    }
}

/// A search over a part of a cluster is that over a cluster of its own, and keeps what was listed.
#[test]
fn a_part_of_a_cluster_is_searched_as_a_cluster_of_its_own() {
    let whole = problem(vec![1024; 8], Execution::default(), 80.0);
    let mut part = whole.clone();
    part.cluster.n_nodes = 1;
    let own = Space::of(&part);
    let found = Space::of(&whole).of_part(&whole, &part);
    assert_eq!((found.nodes, found.pp, found.tp), (own.nodes, own.pp, own.tp));
    let listed = Space { tp: vec![2], ..Space::of(&whole) };
    assert_eq!(listed.of_part(&whole, &part).tp, [2]);
}
