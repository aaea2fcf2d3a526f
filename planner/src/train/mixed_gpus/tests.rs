//! Bounds and plans against every plan of small cases.

use engine::Model;
use engine::cost::roofline::Roofline;
use proptest::prelude::*;
use train::Workload;
use train::layout::{ContextExchange, Layout, Zero};
use train::long_run::slow::{Asked, Begins, Reaction, SlowNodes};
use train::long_run::{Checkpoint, CheckpointMode, Failures, LongRun, hours};
use train::mixed_gpus::{Batch, Group, SlowNode};
use train::problem::{Execution, Problem};
use train::timed::Messages;

use super::bound::{Work, cheapest, least_s};
use super::*;
use crate::milp::{Budget, Program, minimise};
use crate::train::policy::PlanContext;
use crate::train::{policies, slow_nodes};

/// Machines of one card: its name, nodes, GPUs of a node, dollars of a GPU and hour.
type Machines = (&'static str, u32, u32, f64);

fn group(index: usize, &(gpu, nodes, per_node, usd_per_gpu_hour): &Machines) -> Group {
    let cluster = hw::catalog::cluster(&hw::catalog::gpu(gpu).expect("listed"), nodes, per_node);
    Group {
        name: format!("{index}"),
        cluster,
        has_card: true,
        zone: "here".to_owned(),
        usd_per_gpu_hour,
        gpu_mtbf_s: None,
        host_per_layer: hw::Seconds::ZERO,
        launches: train::problem::Launches::UNSEEN,
        attention: Execution::default().attention,
    }
}

fn job(machines: &[Machines], lengths: &[u64], n_layers: u64) -> MixedJob {
    let groups: Vec<Group> = machines.iter().enumerate().map(|(index, of)| group(index, of)).collect();
    let model =
        Model { n_layers, n_heads: 8, n_kv_heads: 8, ..engine::model::embedded("llama-2-1b").expect("embedded") };
    let problem = Problem {
        model,
        cluster: groups[0].cluster.clone(),
        layout: Layout::data_and_context(1, 1, Zero::OptimizerStates, ContextExchange::Gather),
        schedule: train::schedule::named("1f1b").expect("listed"),
        workload: Workload { lengths: lengths.to_vec(), batch_size: lengths.len(), source: "test".to_owned() },
        dtype: hw::Dtype::Bf16,
        execution: Execution::default(),
        bucket_tokens: 0,
        reserved_memory: hw::Bytes(0),
        seed: 1,
    };
    let batch = Batch::new(lengths.to_vec(), 1);
    MixedJob {
        groups,
        links: Vec::new(),
        problem: Some(problem),
        batch,
        messages: Messages::Behind,
        run: None,
        slow_node: None,
    }
}

fn costs(job: &MixedJob) -> Vec<Box<dyn CostModel>> {
    job.groups.iter().map(|group| Box::new(Roofline::new(&group.cluster)) as Box<dyn CostModel>).collect()
}

/// What is sought of a plan, played by itself.
fn value(job: &MixedJob, objective: Objective, costs: &[Box<dyn CostModel>], plan: &Pipelines) -> Option<f64> {
    let step = judged(job, plan, costs).ok()?;
    let key = match objective {
        Objective::Seconds => "iteration_time_s",
        Objective::Usd => "cost_usd_per_step",
        Objective::RunTokens | Objective::RunTokensPerUsd => objective.metric(),
    };
    Some(step.metrics[key])
}

/// Every plan of some stages with one tensor degree a group, layers and micro-batches divided in every way.
fn with_all_divisions(job: &MixedJob, slots: &[Vec<Slot>]) -> Vec<Pipelines> {
    let n_layers = job.problem.as_ref().map_or(0, |problem| problem.model.n_layers);
    let layers = all_shares(u32::try_from(n_layers).expect("few"), slots.len(), 10_000);
    let counts = all_shares(job.batch.n_micro_batches(), slots[0].len(), 10_000);
    let of = |layers: &Vec<u32>, counts: &Vec<u32>| {
        let stages = layers.iter().zip(slots);
        let stages = stages.map(|(&layers, slots)| MixedStage { layers, slots: slots.clone(), sizes: None });
        Pipelines { stages: stages.collect(), micro_batches: counts.clone() }
    };
    layers.iter().flat_map(|layers| counts.iter().map(move |counts| of(layers, counts))).collect()
}

/// Slots by stage of all replicas of so many stages on groups of one GPU or more, each of them on one group at one tensor degree.
fn all_slots(job: &MixedJob, degrees: &[u32]) -> Vec<Vec<Vec<Slot>>> {
    let n_gpus = |group: usize| job.groups[group].cluster.n_gpus();
    let most: u32 = (0..job.groups.len()).map(n_gpus).sum();
    let one: Vec<Slot> = (0..job.groups.len())
        .flat_map(|group| degrees.iter().map(move |&n_gpus| Slot { group, n_gpus, times: None }))
        .collect();
    // Every row of slots that has room.
    let mut rows: Vec<Vec<Slot>> = vec![Vec::new()];
    let mut all = Vec::new();
    for _ in 0..most {
        rows = rows.iter().flat_map(|row| one.iter().map(|slot| [row.as_slice(), &[*slot]].concat())).collect();
        for row in &rows {
            // The row as stages of some replicas, or as replicas of some stages.
            let along = |n: usize| row.iter().map(|slot| vec![*slot; n]).collect::<Vec<_>>();
            let beside = |n: usize| vec![row.clone(); n];
            all.extend((1..=most as usize).flat_map(|n| [along(n), beside(n)]));
        }
    }
    all.retain(|slots| {
        let taken = |group: usize| slots.iter().flatten().filter(|s| s.group == group).map(|s| s.n_gpus).sum::<u32>();
        (0..job.groups.len()).all(|group| taken(group) <= n_gpus(group))
    });
    all
}

/// The search, its bound and the best of all plans of both families agree.
fn check(job: &MixedJob, objective: Objective, degrees: &[u32]) -> f64 {
    let costs = costs(job);
    let found = search(job, objective, &costs).expect("a plan");
    let (best, bound) = (found.objective().expect("sought"), found.bound().expect("a bound"));
    assert_eq!(value(job, objective, &costs, &found.plan), Some(best), "what the search says is what is played");
    let plans = all_slots(job, degrees).into_iter().flat_map(|slots| with_all_divisions(job, &slots));
    for plan in plans {
        let Some(value) = value(job, objective, &costs, &plan) else { continue };
        assert!(!objective.aim().is_better(value, bound), "{value} is beyond the bound {bound}: {plan:?}");
        assert!(!objective.aim().is_better(value, best), "{value} against {best} of {:?}: {plan:?}", found.plan);
    }
    best
}

/// A card with much bandwidth suits short sequences, and one that computes more suits long ones.
#[test]
fn where_lengths_differ_no_plan_is_beyond_the_bound_and_none_is_better() {
    let machines: [Machines; 2] = [("h20", 1, 1, 1.0), ("l40s", 1, 1, 1.0)];
    let short_first: Vec<u64> = [[64; 24].as_slice(), &[4096; 2]].concat();
    let mixed: Vec<u64> = [64, 4096, 64, 64, 2048, 64, 64, 1024].repeat(2);
    for lengths in [short_first.clone(), short_first.into_iter().rev().collect(), mixed] {
        for objective in [Objective::Seconds, Objective::Usd] {
            check(&job(&machines, &lengths, 2), objective, &[1]);
        }
    }
}

#[test]
fn every_plan_of_one_group_is_no_better() {
    for lengths in [vec![512; 3], vec![2048, 64, 512]] {
        for objective in [Objective::Seconds, Objective::Usd] {
            check(&job(&[("a100-sxm-80g", 1, 4, 1.5)], &lengths, 3), objective, &[1, 2, 4]);
        }
    }
}

#[test]
fn more_machines_are_never_dearer_or_slower() {
    for objective in [Objective::Seconds, Objective::Usd] {
        let on = |machines: &[Machines]| {
            let job = job(machines, &[2048; 4], 8);
            search(&job, objective, &costs(&job)).expect("a plan").objective().expect("sought")
        };
        let nodes = [1, 2, 3].map(|nodes| on(&[("a100-sxm-80g", nodes, 8, 1.5)]));
        let groups = [&[("h20", 1, 4, 1.0)][..], &[("h20", 1, 4, 1.0), ("l40s", 1, 4, 2.0)]].map(on);
        assert!(nodes[1] <= nodes[0] && nodes[2] <= nodes[1] && groups[1] <= groups[0], "{nodes:?} {groups:?}");
    }
}

/// A run of four days without a spare node, in which cards seldom fail.
fn run_of_days() -> LongRun {
    LongRun {
        span_s: hours(100.0),
        failures: Failures::Rate { gpu_mtbf_s: hours(50_000.0) },
        restart_s: 300.0,
        spares: 0,
        repair_s: hours(24.0),
        checkpoint: Checkpoint { mode: CheckpointMode::Synchronous, every_s: None, storage_bytes_per_s: 1e10 },
        slow_nodes: None,
    }
}

/// Four groups of one GPU, of which every plan of both families is played.
#[test]
fn over_four_groups_no_plan_is_better() {
    let machines: [Machines; 4] =
        [("h20", 1, 1, 1.0), ("l40s", 1, 1, 1.0), ("a100-sxm-80g", 1, 1, 1.5), ("h100-sxm", 1, 1, 2.5)];
    for objective in [Objective::Seconds, Objective::Usd] {
        check(&job(&machines, &[512; 5], 4), objective, &[1]);
    }
}

/// Two of the groups have several GPUs, so the best plan may have fewer replicas than there is room for.
#[test]
fn over_four_groups_fewer_replicas_are_listed() {
    let machines: [Machines; 4] =
        [("h20", 1, 2, 1.0), ("l40s", 1, 1, 1.0), ("a100-sxm-80g", 1, 2, 1.5), ("h100-sxm", 1, 1, 2.5)];
    let job = job(&machines, &[512; 6], 4);
    let costs = costs(&job);
    let mut search =
        Search { job: &job, objective: Objective::Seconds, costs: &costs, n_layers: 4, speeds: Vec::new() };
    search.speeds = (0..4).map(|group| search.speeds_of(group)).collect();
    assert_eq!(search.left_out(), None, "few GPUs have few plans");
    let of_all = &search.sketches()[&vec![0, 1, 2, 3]];
    let n_gpus: BTreeSet<u32> = of_all.iter().map(|sketch| search.n_gpus_of(sketch).iter().sum()).collect();
    assert!(n_gpus.contains(&4) && n_gpus.contains(&6), "{n_gpus:?}");
    // Many GPUs have more plans than are listed, and the search says so.
    let machines = ["h20", "l40s", "a100-sxm-80g", "h100-sxm"].map(|gpu| (gpu, 16, 8, 1.0));
    let job = super::tests::job(&machines, &[512; 64], 4);
    let large = Search { job: &job, speeds: search.speeds.clone(), ..search };
    let said = large.left_out().expect("not all are listed");
    assert!(said.contains("over 4 groups the most") && !said.contains("over 1 groups"), "{said}");
}

/// Cards that fail often are left out of a run of days, though a step is shorter with them.
#[test]
fn a_run_of_days_is_compared_by_what_it_keeps() {
    let mut job = job(&[("a100-sxm-80g", 1, 1, 1.5), ("h100-sxm", 1, 2, 2.5)], &[1024; 4], 2);
    let seconds = check(&job, Objective::Seconds, &[1]);
    job.groups[0].gpu_mtbf_s = Some(hours(20.0));
    job.run = Some(run_of_days());
    let kept = check(&job, Objective::RunTokens, &[1]);
    let found = search(&job, Objective::RunTokens, &costs(&job)).expect("a plan").plan;
    assert_eq!(found.n_gpus_of(0), 0, "{found:?}");
    assert!(kept < real(job.batch.tokens()) / seconds);
}

/// The cheapest card keeps most for a dollar, and the fastest in a second; a card that fails often keeps little for whatever it costs.
#[test]
fn a_run_of_days_is_compared_by_what_it_keeps_for_a_dollar() {
    let mut job = job(&[("a100-sxm-80g", 1, 1, 1.0), ("h100-sxm", 1, 1, 8.0)], &[1024; 4], 2);
    job.run = Some(run_of_days());
    let on = |job: &MixedJob| {
        let best = check(job, Objective::RunTokensPerUsd, &[1]);
        let plan = search(job, Objective::RunTokensPerUsd, &costs(job)).expect("a plan").plan;
        (best, [0, 1].map(|group| plan.n_gpus_of(group)))
    };
    let (cheap, gpus) = on(&job);
    assert_eq!(gpus, [1, 0], "{cheap}");
    job.groups[0].gpu_mtbf_s = Some(hours(1.0));
    let (dear, gpus) = on(&job);
    assert!(gpus == [0, 1] && dear < cheap, "{dear} {cheap} {gpus:?}");
}

/// Spells of slow nodes that last as long as the run and begin with it, so that its pace is that of a step beside a slow node.
#[test]
fn slow_nodes_cost_what_a_step_beside_one_says() {
    let mut job = job(&[("a100-sxm-80g", 2, 1, 1.5), ("a100-sxm-80g", 1, 1, 1.5)], &[1024; 12], 2);
    let costs = costs(&job);
    let slot = |group| Slot { group, n_gpus: 1, times: None };
    let stage = MixedStage { layers: 2, slots: vec![slot(0), slot(0), slot(1)], sizes: None };
    let plan = Pipelines { stages: vec![stage], micro_batches: vec![4; 3] };
    let healthy = judged(&job, &plan, &costs).expect("it fits").metrics["iteration_time_s"];
    let run = |rate, reaction| {
        let (begins, reaction) = (Begins::Trace { at_s: vec![0.0] }, Asked::Given(reaction));
        let slow = SlowNodes { begins, lasts_s: hours(1000.0), rate, reaction };
        LongRun { failures: Failures::Trace { at_s: Vec::new() }, slow_nodes: Some(slow), ..run_of_days() }
    };
    let of = |job: &MixedJob, reaction, rate| {
        let job = MixedJob { run: Some(run(rate, reaction)), ..job.clone() };
        judged(&job, &plan, &costs).expect("something is kept").metrics
    };
    assert_eq!(job.kinds_of_nodes(&plan), [(0, 0, 2), (1, 0, 1)]);
    // At the same speed nothing is slower.
    assert_eq!(of(&job, Reaction::Endure, 1.0)["slow_step_ratio"], 1.0);
    let endured = of(&job, Reaction::Endure, 2.5);
    // Whichever of three equal replicas is slow, what it computes takes 2.5 times as long, and the exchange stays.
    let slow_node = Some(SlowNode { group: 1, node: 0, rate: 2.5 });
    let beside = MixedJob { slow_node, ..job.clone() };
    let slow_s = judged(&beside, &plan, &costs).expect("it fits").metrics["iteration_time_s"];
    let (step, _) = job.step(&plan, &costs, Case::Expected).expect("one zone");
    let computed = &step.replicas[2].stages[0];
    let computed_ns = 4 * computed.passes.both().as_ns() + computed.update.as_ns();
    let expected = healthy + 1.5 * real(computed_ns) / 1e9;
    assert!((slow_s / expected - 1.0).abs() < 1e-6, "{slow_s} {expected}");
    assert!((endured["slow_step_ratio"] / (slow_s / healthy) - 1.0).abs() < 1e-6);
    let share = endured["run_goodput_ratio"] / of(&job, Reaction::Endure, 1.0)["run_goodput_ratio"];
    assert!((share * slow_s / healthy - 1.0).abs() < 1e-3, "{share}");
    // Of twelve micro-batches the slow one of three takes two and the others five: 5 passes in the place of 10.
    let shared = of(&job, Reaction::Replan, 2.5);
    assert!(shared["replanned_step_ratio"] < endured["slow_step_ratio"] && shared["replan_s"] == 0.0);
    let best =
        (0..=10).flat_map(|a| (0..=10).map(move |b| [1 + a, 1 + b])).filter(|[a, b]| a + b < 12).map(|[a, b]| {
            let other = Pipelines { micro_batches: vec![12 - a - b, a, b], ..plan.clone() };
            judged(&beside, &other, &costs).expect("it fits").metrics["iteration_time_s"]
        });
    let best = best.fold(f64::INFINITY, f64::min);
    assert!((shared["replanned_step_ratio"] / (best / healthy) - 1.0).abs() < 1e-6, "{shared:?} {best}");
    // One replica alone has no other to give its micro-batches to.
    job.run = Some(run(2.5, Reaction::Replan));
    let alone = MixedStage { layers: 2, slots: vec![slot(1)], sizes: None };
    let alone = Pipelines { stages: vec![alone], micro_batches: vec![12] };
    assert!(judged(&job, &alone, &costs).expect_err("nobody takes them").why.contains("gives micro-batches"));
}

/// A node that is slow for the whole run, of machines of one type: what it and its host compute takes longer, as where the kind that knows one type plays it.
#[test]
fn a_slow_node_slows_a_step_as_on_one_type() {
    let mut job = job(&[("a100-sxm-80g", 3, 1, 1.5)], &[1024; 12], 2);
    let slow = SlowNodes {
        begins: Begins::Trace { at_s: vec![0.0] },
        lasts_s: hours(1000.0),
        rate: 2.5,
        reaction: Asked::Given(Reaction::Endure),
    };
    let run = LongRun { slow_nodes: Some(slow), ..run_of_days() };
    // Exchanges are modelled otherwise there, so they are short.
    let group = &mut job.groups[0];
    group.cluster.nic_bandwidth = group.cluster.nic_bandwidth * 100.0;
    group.host_per_layer = hw::Seconds::new(2e-3);
    let mut alone = job.problem.clone().expect("there is one");
    (alone.cluster, alone.layout.dp, alone.bucket_tokens) = (group.cluster.clone(), 3, 1024);
    alone.execution.host_overhead_per_layer = group.host_per_layer;
    job.run = Some(run.clone());
    let costs = costs(&job);
    let slots = vec![Slot { group: 0, n_gpus: 1, times: None }; 3];
    let plan = Pipelines { stages: vec![MixedStage { layers: 2, slots, sizes: None }], micro_batches: vec![4; 3] };
    let mixed = judged(&job, &plan, &costs).expect("it fits").metrics;
    let context = PlanContext { cost: costs[0].as_ref(), parameters: BTreeMap::new() };
    let plan = policies::named("megatron").expect("listed").plan(&alone, &context).expect("a plan").plan;
    let topology = hw::topology::Topology::of(&alone.cluster);
    let step_s = crate::train::search::simulate(&alone, &plan, &context, &topology).expect("it fits");
    let lasted =
        slow_nodes::lasted(&run, ("", &BTreeMap::new()), (&alone, &plan, step_s), (costs[0].as_ref(), &topology));
    let alone = lasted.expect("something is kept").values;
    assert!((mixed["iteration_time_s"] / step_s - 1.0).abs() < 0.05, "{} {step_s}", mixed["iteration_time_s"]);
    let [mixed, alone] = [&mixed, &alone].map(|values| values["slow_step_ratio"]);
    // What exchanges take stays as it is, and is another part of either step. Were the host's time to stay as well, it would be a tenth less.
    assert!((mixed / alone - 1.0).abs() < 0.05 && alone > 2.0, "{mixed} against {alone}");
}

/// Thirty plans over both groups look better than those of one group alone, of which there are five: three of these are played all the same.
#[test]
fn every_choice_of_groups_is_played() {
    let plan = |groups: &[usize]| {
        let slot = |group: &usize| Slot { group: *group, n_gpus: 1, times: None };
        let stage = MixedStage { layers: 1, slots: groups.iter().map(slot).collect(), sizes: None };
        Pipelines { stages: vec![stage], micro_batches: vec![1] }
    };
    let mut sorted: Vec<Judged> = (0..30).map(|s| (f64::from(s), plan(&[0, 1]))).collect();
    sorted.extend((30..35).map(|s| (f64::from(s), plan(&[1]))));
    let kept = first_of_each(sorted, |_| true);
    let alone = kept.iter().filter(|plan| choice(plan) == BTreeSet::from([1])).count();
    assert_eq!((kept.len(), alone), (PLAYED_MAX + 3, 3));
}

#[test]
fn shares_are_those_of_every_division() {
    // Seven items for workers of 1, 2 and 4 seconds, one of whom has begun: against all divisions.
    let (paces, begun) = ([1.0, 2.0, 4.0], [0.0, 1.5, 0.0]);
    let last =
        |shares: &[u32]| (0..3).map(|index| begun[index] + f64::from(shares[index]) * paces[index]).fold(0.0, f64::max);
    let found = last(&shared(7, &paces, &begun).expect("enough items"));
    let best = all_shares(7, 3, 100).iter().map(|shares| last(shares)).fold(f64::INFINITY, f64::min);
    assert!((found - best).abs() < 1e-12, "{found} against {best}");
    assert_eq!(shared(2, &paces, &begun), None);
}

#[test]
fn all_shares_are_counted() {
    // Two dividers among six gaps.
    assert_eq!((all_shares(7, 3, 100).len(), all_shares(7, 3, 14).len(), all_shares(2, 3, 100).len()), (15, 0, 0));
    assert!(all_shares(7, 3, 15).iter().all(|shares| shares.iter().sum::<u32>() == 7));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// No division in order ends earlier, where no item alone takes anybody as long as that.
    #[test]
    fn items_in_order_are_shared_as_in_the_best_division(times in prop::collection::vec(prop::collection::vec(1_u64..6, 8), 1..4)) {
        let all: Vec<Vec<u64>> = times.iter().map(|of| sums(of.iter().copied())).collect();
        let last = |shares: &[u32]| {
            let mut first = 0;
            let ends = shares.iter().zip(&all).map(|(n, sums)| {
                let next = first + *n as usize;
                let end = sums[next] - sums[first];
                first = next;
                end
            });
            ends.max().unwrap_or(0)
        };
        let found = last(&in_order(&all.iter().map(Vec::as_slice).collect::<Vec<_>>()).expect("enough items"));
        let best = all_shares(8, times.len(), 1000).iter().map(|shares| last(shares)).min().expect("some");
        prop_assert!(found == best || best < 5, "{} against {}", found, best);
    }

    /// The dual is never above the program that deals work out, and is its least time where one price is looked for.
    #[test]
    fn the_bound_is_the_least_time_of_any_dealing(
        work in prop::collection::vec((1_u32..20, prop::collection::vec(1.0_f64..9.0, 3)), 1..6),
        n_gpus in prop::collection::vec(1_u32..9, 3),
        n_groups in 1_usize..4,
    ) {
        let work: Vec<Work> =
            work.into_iter().map(|(n, gpu_s)| Work { n: f64::from(n), gpu_s: gpu_s[..n_groups].to_vec() }).collect();
        let n_gpus = &n_gpus[..n_groups];
        let mut variables = good_lp::ProblemVariables::new();
        let end = variables.add(good_lp::variable().min(0.0));
        let dealt: Vec<Vec<good_lp::Variable>> =
            work.iter().map(|_| (0..n_groups).map(|_| variables.add(good_lp::variable().min(0.0))).collect()).collect();
        let sum = |terms: Vec<good_lp::Expression>| terms.into_iter().sum::<good_lp::Expression>();
        let mut constraints: Vec<good_lp::Constraint> = Vec::new();
        for (group, &n_gpus) in n_gpus.iter().enumerate() {
            let of_group = work.iter().zip(&dealt).map(|(work, dealt)| work.gpu_s[group] * dealt[group]).collect();
            constraints.push((sum(of_group) - f64::from(n_gpus) * end).leq(0.0));
        }
        for (work, dealt) in work.iter().zip(&dealt) {
            constraints.push(sum(dealt.iter().map(|dealt| 1.0 * *dealt).collect()).eq(work.n));
        }
        let program = Program { variables, objective: end.into(), constraints, start: Vec::new() };
        let least = minimise(program, &[], Budget::default()).expect("a dealing").objective;
        let found = least_s(&work, n_gpus);
        prop_assert!(found <= least * (1.0 + 1e-6), "{} above {}", found, least);
        prop_assert!(found >= least * if n_groups < 3 { 1.0 - 1e-6 } else { 0.8 }, "{} far below {}", found, least);
    }
}

/// One price alone gains nothing here, and two together do.
#[test]
fn a_bound_on_three_groups_gets_past_its_edges() {
    let work = [
        Work { n: 10.0, gpu_s: vec![4.295_973_797_332_211, 4.188_918_204_706_933, 4.262_642_688_275_327] },
        Work { n: 17.0, gpu_s: vec![3.937_182_588_280_151, 1.0, 8.852_693_514_005_422] },
    ];
    let found = least_s(&work, &[4, 4, 1]);
    assert!(found > 0.95 * 6.629_406_628_935_51, "{found} of the program's least time");
}

#[test]
fn what_costs_least_goes_where_it_does() {
    let work = [Work { n: 10.0, gpu_s: vec![1.0, 4.0] }, Work { n: 5.0, gpu_s: vec![6.0, 1.0] }];
    assert_eq!(cheapest(&work, &[2.0, 1.0]), 10.0 * 2.0 + 5.0);
    // Ten seconds of one beside five of the other: the free one helps out with 4 times as much work, so that both end after 9.
    assert!((least_s(&work, &[1, 1]) - 9.0).abs() < 1e-6);
}
