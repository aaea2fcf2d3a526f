//! Claims about tensor, pipeline and expert parallelism: folded lanes against every rank, bounds, symmetries, bandwidth.

use std::collections::BTreeMap;

use engine::play::{Case, Machine};
use engine::task::{Role, Stream};
use engine::{Outcome, TaskGraph, Timeline};
use hw::topology::Topology;
use hw::{BytesPerSecond, Rank};
use scenario::training::Scenario;
use scenario::{self, Overrides};
use skrull_sim::kinds;
use skrull_sim::kinds::training::run::{self as pipeline, Decided};
use train::lower::training::{Fold, lower_folded};

/// A small job with every kind of parallelism, laid over by `set`.
fn job(set: &[&str]) -> Scenario {
    let (source, folder) = scenario::find("quickstart").expect("shipped");
    let base = [
        "model.name=\"mixtral-8x7b\"",
        "cluster.gpu=\"h200-sxm\"",
        "cluster.nodes=4",
        "parallel.dp=2",
        "parallel.cp=2",
        "parallel.tp=2",
        "parallel.pp=4",
        "parallel.zero=1",
        "training.steps=1",
        "training.batch_size=12",
        "training.bucket_tokens=8192",
        "training.recompute=\"selective\"",
        "workload.max_tokens=8000",
        "policies.run=[\"best_fit\"]",
        "policies.baseline=\"best_fit\"",
        "expect={}",
    ];
    let all: Vec<String> = base.iter().chain(set).map(|item| (*item).to_owned()).collect();
    let checked = kinds::check(source, &folder, &Overrides { set: all, ..Overrides::default() });
    super::training(checked)
}

/// Times of the step at one fold.
fn play(scenario: &Scenario, fold: Fold) -> (TaskGraph, Timeline) {
    let cost = scenario.costs();
    let topology = Topology::of(&scenario.problem.cluster);
    let choice = &scenario.policies[0];
    let Decided { problem, decision, .. } =
        pipeline::decide(scenario, choice, cost.as_ref(), &topology).expect("a plan");
    let graph = lower_folded(&problem, &decision.plan, 0, fold);
    let machine = Machine {
        cost: cost.as_ref(),
        topology: &topology,
        memory_bytes: problem.cluster.gpu.memory.0,
        case: Case::Expected,
        speed_changes: &[],
    };
    match engine::simulate(&graph, &machine) {
        Outcome::Done(timeline) => (graph, timeline),
        other => panic!("expected a finished step, found {other:?}"),
    }
}

type Intervals = Vec<(u64, u64, Role, u32)>;

/// What every lane's streams do, under the rank that stands for it.
fn by_rank(graph: &TaskGraph, timeline: &Timeline) -> BTreeMap<(Rank, Stream), Intervals> {
    let mut all: BTreeMap<(Rank, Stream), Intervals> = BTreeMap::new();
    for (index, task) in graph.tasks.iter().enumerate() {
        let rank = graph.lanes[task.lane.index()].rank;
        let (start, end) = (timeline.start[index].as_ns(), timeline.end[index].as_ns());
        all.entry((rank, task.stream)).or_default().push((start, end, task.role, task.micro_batch));
    }
    all
}

fn step_s(scenario: &Scenario) -> f64 {
    let row = pipeline::run(scenario, &|_| {}).result.results.remove(0);
    assert!(row.status.is_ok(), "{}", row.why);
    row.metrics["iteration_time_s"]
}

#[test]
fn folded_lanes_and_every_rank_give_the_same_times_to_the_nanosecond() {
    // Two fill a micro-batch, so no group has an empty one.
    let equal = ["workload.tokens=8000"];
    let cases: [&[&str]; 7] = [
        &[],
        &["parallel.ep=2"],
        &["parallel.ep=8"],
        &["parallel.ep=4", "parallel.expert_tp=2", "parallel.schedule=\"zb-1p\""],
        &["parallel.tp=4", "parallel.cp=1", "parallel.ep=4", "parallel.expert_tp=2"],
        &["parallel.cp=1", "parallel.dp=4", "parallel.schedule=\"interleaved\"", "training.recompute=\"full\""],
        &["parallel.tp=4", "parallel.cp=1", "parallel.schedule=\"zb-v\"", "overlap.tensor=0.5", "overlap.slowdown=1.1"],
    ];
    for case in cases {
        for lengths in [&[][..], &equal] {
            let scenario = job(&[case, lengths].concat());
            let (folded, full) = (play(&scenario, Fold::Alike), play(&scenario, Fold::Nothing));
            let (few, all) = (by_rank(&folded.0, &folded.1), by_rank(&full.0, &full.1));
            assert_eq!(full.0.lanes.len(), 32, "every rank is a lane");
            assert!(folded.0.lanes.len() < 32, "something is folded");
            let ranks: u32 = folded.0.lanes.iter().map(|lane| lane.multiplicity).sum();
            assert_eq!(ranks, 32, "lanes stand for all ranks");
            for (place, intervals) in &few {
                assert_eq!(intervals, &all[place], "{case:?} {lengths:?} {place:?}");
            }
            assert_eq!(folded.1.span(), full.1.span());
            for (index, lane) in folded.0.lanes.iter().enumerate() {
                let same = full.0.lanes.iter().position(|other| other.rank == lane.rank).expect("every rank");
                assert_eq!(folded.1.memory[index], full.1.memory[same], "{case:?} memory of {:?}", lane.rank);
            }
        }
    }
}

#[test]
fn every_schedule_runs_a_ragged_step_within_its_interval() {
    for schedule in train::schedule::SCHEDULES {
        for recompute in ["none", "selective", "full"] {
            let set = [
                format!("parallel.schedule=\"{}\"", schedule.name),
                format!("training.recompute=\"{recompute}\""),
                "parallel.ep=4".to_owned(),
                "experts.imbalance=0.5".to_owned(),
            ];
            let scenario = job(&set.each_ref().map(String::as_str));
            let row = pipeline::run(&scenario, &|_| {}).result.results.remove(0);
            assert!(row.status.is_ok(), "{} {recompute}: {}", schedule.name, row.why);
            let [low, high] = row.interval["iteration_time_s"];
            let found = row.metrics["iteration_time_s"];
            assert!(low <= found && found <= high, "{}: {found} in {low} to {high}", schedule.name);
            let bubble = row.metrics["bubble_ratio"];
            assert!((0.0..1.0).contains(&bubble), "{}: {bubble}", schedule.name);
        }
    }
}

#[test]
fn ranks_in_another_order_take_the_same_time_when_every_link_is_the_same() {
    // On one node all pairs of ranks are alike.
    let one_node = ["cluster.nodes=1", "parallel.dp=1", "model.name=\"qwen2.5-7b\"", "parallel.pp=2"];
    let of = |order: &str| step_s(&job(&[&one_node[..], &[&format!("parallel.order=\"{order}\"")]].concat()));
    let base = of("tp-cp-dp-pp");
    for order in ["cp-tp-dp-pp", "pp-cp-dp-tp", "tp-pp-dp-cp"] {
        assert_eq!(of(order), base, "{order}");
    }
}

#[test]
fn a_faster_network_or_device_never_slows_a_fixed_schedule() {
    for schedule in ["1f1b", "interleaved"] {
        let scenario =
            job(&["parallel.ep=4", "cost.profile=\"roofline\"", &format!("parallel.schedule=\"{schedule}\"")]);
        let base = step_s(&scenario);
        for change in 0..3 {
            let mut faster = scenario.clone();
            let cluster = &mut faster.problem.cluster;
            let double = |rate: BytesPerSecond| rate * 2.0;
            match change {
                0 => cluster.nic_bandwidth = double(cluster.nic_bandwidth),
                1 => cluster.gpu.intra_node_bandwidth = double(cluster.gpu.intra_node_bandwidth),
                _ => cluster.gpu.peak_bf16 = cluster.gpu.peak_bf16 * 2.0,
            }
            let found = step_s(&faster);
            assert!(found <= base * 1.000_001, "{schedule} {change}: {found} against {base}");
        }
    }
}

#[test]
fn a_message_of_given_duration_is_waited_for_once_per_stage_and_direction() {
    // One micro-batch alone: forward 1 and backward 2 on every rank, and between neighbours a message of 1 there and one back.
    for p in [2, 4] {
        let (source, folder) = scenario::find("pipeline/equal").expect("shipped");
        let units = "cost.units={ forward_us = 1, input_us = 1, weight_us = 1, message_us = 1 }".to_owned();
        let sizes =
            [format!("parallel.pp={p}"), format!("cluster.gpus_per_node={p}"), "training.batch_size=1".to_owned()];
        let set = [vec![units, "expect={}".to_owned()], sizes.to_vec()].concat();
        let scenario = super::training(kinds::check(source, &folder, &Overrides { set, ..Overrides::default() }));
        let result = pipeline::run(&scenario, &|_| {}).result;
        let expected = f64::from(3 * p + 2 * (p - 1)) * 1e-6;
        let found = result.results[0].metrics["iteration_time_s"];
        assert!((found - expected).abs() < 1e-12, "{p}: {found}");
    }
}

#[test]
fn sequence_parallelism_and_tensor_parallelism_lower_memory() {
    let peak = |set: &[&str]| {
        let row = pipeline::run(&job(set), &|_| {}).result.results.remove(0);
        assert!(row.status.is_ok(), "{}", row.why);
        row.metrics["peak_memory_bytes"]
    };
    let with = peak(&["parallel.sequence_parallel=true"]);
    assert!(with < peak(&["parallel.sequence_parallel=false"]));
    assert!(peak(&["parallel.tp=4", "parallel.cp=1"]) < peak(&["parallel.tp=2", "parallel.cp=2"]));
}

#[test]
fn offloaded_activations_lower_the_peak_and_never_the_time() {
    // GPipe holds every micro-batch, so that copies have time to leave.
    let of = |ratio: &str| {
        let row = pipeline::run(
            &job(&[
                "parallel.schedule=\"gpipe\"",
                "training.batch_size=96",
                &format!("training.offload_ratio={ratio}"),
            ]),
            &|_| {},
        )
        .result
        .results
        .remove(0);
        assert!(row.status.is_ok(), "{}", row.why);
        (row.metrics["peak_activation_bytes"], row.metrics["iteration_time_s"])
    };
    let (kept, half) = (of("0"), of("0.5"));
    assert!(half.0 < kept.0, "{half:?} {kept:?}");
    assert!(half.1 >= kept.1, "{half:?} {kept:?}");
}

/// A step of one stage, in which nothing else hides an all-to-all: how long it takes, and all intervals of a role on the first rank.
fn of_experts(is_delayed: bool, per_node: u32) -> (u64, BTreeMap<Role, u64>) {
    let delayed = format!("overlap.delayed_weights={is_delayed}");
    let cluster = [format!("cluster.nodes={}", 32 / per_node), format!("cluster.gpus_per_node={per_node}")];
    let set = [
        "parallel.dp=32",
        "parallel.cp=1",
        "parallel.tp=1",
        "parallel.pp=1",
        "parallel.ep=8",
        "parallel.expert_tp=1",
        "parallel.order=\"tp-cp-pp-dp\"",
        "training.gradient_sync=\"at_end\"",
        "training.recompute=\"none\"",
        "training.batch_size=32",
        "workload.tokens=4096",
        // As good as none, which delayed gradients of weights are refused beside.
        "overlap.expert=0.000001",
        &delayed,
        &cluster[0],
        &cluster[1],
    ];
    let (graph, timeline) = play(&job(&set), Fold::Alike);
    let mut times = BTreeMap::new();
    for (index, task) in graph.tasks.iter().enumerate().filter(|(_, task)| task.lane.index() == 0) {
        let ns = timeline.end[index].as_ns() - timeline.start[index].as_ns();
        *times.entry(task.role).or_insert(0) += ns;
    }
    (timeline.span().as_ns(), times)
}

/// A backward makes gradients of weights beside the all-to-all: of both the shorter one is saved. Forward's all-to-all is as long as backward's.
#[test]
fn delayed_gradients_of_weights_hide_the_all_to_all_and_no_more() {
    // Over NVLink the all-to-all is the shorter one, over the network the longer one.
    for per_node in [8, 1] {
        let ((plain, _), (delayed, times)) = (of_experts(false, per_node), of_experts(true, per_node));
        let (weights, exchange) = (times[&Role::WeightGradient], times[&Role::ExpertExchange] / 2);
        let saved = plain.abs_diff(delayed);
        let expected = weights.min(exchange);
        assert!(saved.abs_diff(expected) <= 2_000 + expected / 500, "{saved} of {weights} and {exchange} ns");
        assert!(delayed < plain);
    }
}

#[test]
fn groups_of_more_micro_batches_hold_more_and_hide_no_less() {
    let set = ["parallel.cp=1", "parallel.dp=4", "parallel.schedule=\"interleaved\"", "training.batch_size=64"];
    let of = |group: &str| {
        let all = [&set[..], &["workload.tokens=8000", group]].concat();
        let row = pipeline::run(&job(&all), &|_| {}).result.results.remove(0);
        assert!(row.status.is_ok(), "{}", row.why);
        (row.metrics["iteration_time_s"], row.metrics["peak_memory_bytes"])
    };
    let (usual, four, eight) = (of("seed=0"), of("parallel.micro_batch_group=4"), of("parallel.micro_batch_group=8"));
    assert_eq!(usual, four);
    assert!(eight.1 > four.1, "{four:?} {eight:?}");
}

/// Sixteen micro-batches of a replica on four stages: each flush has a bubble, and holds no more than its own micro-batches.
#[test]
fn flushes_within_a_step_cost_bubbles_and_hold_less() {
    let set = ["parallel.cp=1", "parallel.dp=4", "training.batch_size=64", "workload.tokens=8000"];
    let of = |more: &[&str]| {
        let row = pipeline::run(&job(&[&set[..], more].concat()), &|_| {}).result.results.remove(0);
        assert!(row.status.is_ok(), "{}", row.why);
        (row.metrics["iteration_time_s"], row.metrics["peak_memory_bytes"], row.metrics["bubble_ratio"])
    };
    let [whole, same, four, two] =
        ["seed=0", "parallel.flush_every=16", "parallel.flush_every=4", "parallel.flush_every=2"]
            .map(|more| of(&[more]));
    assert_eq!(whole, same);
    assert!(whole.0 < four.0 && four.0 < two.0 && whole.2 < four.2 && four.2 < two.2, "{whole:?} {four:?} {two:?}");
    // The first of four ranks holds four micro-batches under 1F1B, and two where a flush has no more.
    assert!(whole.1 == four.1 && two.1 < four.1, "{whole:?} {four:?} {two:?}");
    // More micro-batches are more flushes, which hold as much.
    let twice = of(&["parallel.flush_every=4", "training.batch_size=128"]);
    assert_eq!(twice.1, four.1);
}

/// What is flushed within a step and cannot be, with the reason.
#[test]
fn flushes_beside_what_knows_none_are_refused_with_the_reason() {
    let set = ["parallel.cp=1", "parallel.dp=4", "training.batch_size=64", "parallel.flush_every=3"];
    for (more, why) in [
        (&["parallel.schedule=\"dualpipe\""][..], "an even number"),
        (&["parallel.schedule=\"optimal\""], "whose proof is of one flush"),
        (
            &["policies.run=[\"hydraulis\"]", "policies.baseline=\"hydraulis\"", "model.name=\"llama-3-8b\""],
            "pipelines of their own",
        ),
    ] {
        let row = pipeline::run(&job(&[&set[..], more].concat()), &|_| {}).result.results.remove(0);
        assert!(
            !row.status.is_ok() && row.why.contains("flush_every") && row.why.contains(why),
            "{more:?}: {}",
            row.why
        );
    }
}

#[test]
fn an_overlapped_exchange_is_never_slower_without_slowdown() {
    let set = ["parallel.ep=4", "parallel.expert_tp=1"];
    let base = step_s(&job(&set));
    let hidden = step_s(&job(&[&set[..], &["overlap.tensor=1", "overlap.expert=1"]].concat()));
    assert!(hidden < base, "{hidden} {base}");
    let slowed = step_s(&job(&[&set[..], &["overlap.tensor=1", "overlap.expert=1", "overlap.slowdown=1.5"]].concat()));
    assert!(slowed > hidden, "{slowed} {hidden}");
}
