//! Pipelines of different shape side by side: closed forms in units of time, and the plain step where all shapes are the layout's.

use hw::Span;
use hw::topology::Topology;

use super::*;
use crate::layout::ContextExchange;
use crate::lower::training::pipelines;
use crate::plan::{MicroBatch, Place, Placement};
use crate::problem::{Execution, UnitTimes};
use crate::workload::Workload;
use engine::cost::CostModel;
use engine::cost::fixed::Fixed;
use engine::cost::roofline::Roofline;
use engine::play::{Case, Machine};
use engine::{Outcome, Timeline};

fn problem(lengths: Vec<u64>, layout: Layout) -> Problem {
    let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
    Problem {
        model: engine::model::embedded("llama-3-8b").expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, 2, 8),
        layout,
        schedule: crate::schedule::named("1f1b").expect("listed"),
        workload: Workload { batch_size: lengths.len(), lengths, source: "test".to_owned() },
        dtype: hw::Dtype::Bf16,
        execution: Execution::default(),
        bucket_tokens: 1 << 20,
        reserved_memory: hw::Bytes(0),
        seed: 0,
    }
}

/// One sequence per micro-batch, dealt to groups by the given counts.
fn plan_of_counts(problem: &Problem, counts: &[usize]) -> Plan {
    let mut sequences = problem.workload.step(0);
    let groups = counts
        .iter()
        .map(|&n| {
            let one = |(sequence, tokens)| MicroBatch {
                sequences: vec![Placement { sequence, from: 0, tokens, place: Place::Local(0) }],
                ..MicroBatch::default()
            };
            sequences.by_ref().take(n).map(one).collect()
        })
        .collect();
    Plan::new("test", problem, vec![Step::of_groups(groups)])
}

/// The plan with its orders.
fn ordered(problem: &Problem, mut plan: Plan, cost: &dyn CostModel) -> Plan {
    let (found, order_of) = pipelines(problem, &plan, 0, cost);
    plan.steps[0].orders = found.iter().map(|pipeline| (problem.schedule.order)(pipeline)).collect();
    plan.steps[0].order_of = order_of;
    assert_eq!(crate::check::check(problem, &plan), Ok(()));
    plan
}

fn plan(problem: &Problem, counts: &[usize], pipelines_of: &[(u32, u32)], cost: &dyn CostModel) -> Plan {
    let mut plan = plan_of_counts(problem, counts);
    plan.steps[0].pipelines = pipelines_of.iter().map(|&(tp, pp)| PipelineShape { tp, pp }).collect();
    ordered(problem, plan, cost)
}

fn play(problem: &Problem, plan: &Plan, cost: &dyn CostModel, fold: Fold) -> (TaskGraph, Timeline) {
    let graph = super::super::lower_folded(problem, plan, 0, fold);
    let topology = Topology::of(&problem.cluster);
    let memory_bytes = problem.cluster.gpu.memory.0;
    let machine = Machine { cost, topology: &topology, memory_bytes, case: Case::Expected, speed_changes: &[] };
    match engine::simulate(&graph, &machine) {
        Outcome::Done(timeline) => (graph, timeline),
        other => panic!("expected a finished step, found {other:?}"),
    }
}

#[test]
fn every_pipeline_takes_its_own_closed_form() {
    // Equal micro-batches of 3 units per token and rank, whatever the tensor degree: (pp − 1 + v) · 3 · tokens / pp... per pipeline rank.
    let base =
        Layout { tp: 4, sequence_parallel: true, ..Layout::data_and_context(4, 1, Zero::Off, ContextExchange::Gather) };
    let mut problem = problem(vec![100; 12], base);
    problem.execution.unit_times = Some(UnitTimes { forward: 1, input: 1, weight: 1, message: 0 });
    let cost = Fixed::default();
    for (counts, shapes) in [
        (vec![9, 3], vec![(4, 2), (8, 1)]),
        (vec![2, 2, 8], vec![(2, 1), (2, 1), (1, 4)]),
        (vec![1, 11], vec![(2, 6), (4, 1)]),
    ] {
        let plan = plan(&problem, &counts, &shapes, &cost);
        let (_, timeline) = play(&problem, &plan, &cost, Fold::Nothing);
        let expected = counts.iter().zip(&shapes).map(|(&v, &(_, pp))| (u64::from(pp) - 1 + v as u64) * 300).max();
        assert_eq!(Some(timeline.span().as_ns()), expected, "{counts:?} {shapes:?}");
    }
}

/// A model, and how many ranks share its experts and cut each of them.
const MODELS: [(&str, u32, u32); 3] = [("llama-3-8b", 1, 1), ("mixtral-8x7b", 2, 1), ("mixtral-8x7b", 1, 2)];

/// So many data-parallel groups of two stages of two ranks, which lie in a node by fours.
fn two_by_two((model, ep, expert_tp): (&str, u32, u32), dp: u32, lengths: Vec<u64>) -> Problem {
    let plain = Layout::data_and_context(dp, 1, Zero::Off, ContextExchange::Gather);
    let layout = Layout { tp: 2, pp: 2, ep, expert_tp, sequence_parallel: true, ..plain };
    let model = engine::Model { n_layers: 8, ..engine::model::embedded(model).expect("embedded") };
    Problem { model, ..problem(lengths, layout) }
}

#[test]
fn pipelines_of_the_layouts_shape_compute_like_the_plain_step() {
    for model in MODELS {
        let mut problem = two_by_two(model, 4, (1..=16).map(|n| 500 * n).collect());
        // Both reduce other pieces, which would take links from passes.
        problem.execution.gradient_sync = GradientSync::AtEnd;
        let cost = Roofline::new(&problem.cluster);
        let of = |shapes: &[(u32, u32)], fold| {
            let (graph, timeline) = play(&problem, &plan(&problem, &[4; 4], shapes, &cost), &cost, fold);
            let ends = graph.tasks.iter().zip(&timeline.end);
            let passes = ends.filter(|(task, _)| matches!(task.role, Role::Forward | Role::Backward));
            passes.map(|(_, end)| *end).max()
        };
        assert_eq!(of(&[(2, 2); 4], Fold::Alike), of(&[], Fold::Alike), "{model:?}");
        assert_eq!(of(&[(2, 2); 4], Fold::Nothing), of(&[(2, 2); 4], Fold::Alike), "{model:?}");
    }
}

#[test]
fn experts_lie_in_the_tensor_group_of_every_shape() {
    for (name, ep, expert_tp) in MODELS {
        let problem = two_by_two((name, ep, expert_tp), 4, vec![1000; 4]);
        let whole = parameters(&problem);
        let n_parameters = hw::real(problem.model.n_parameters());
        assert!((whole / n_parameters - 1.0).abs() < 0.001, "{name}: {whole} of {n_parameters}");
        // Every rank of a shape without stages has its share of all matrices; norms and routers are whole on each.
        for tp in [1, 4, 8] {
            let share = largest(&problem, PipelineShape { tp, pp: 1 }, 1) * f64::from(tp) / whole;
            assert!((1.0..1.001).contains(&share), "{name} over {tp}: {share}");
        }
    }
    // Eight experts are not dealt out over sixteen ranks, and their matrices are cut over them.
    let [dealt, cut] = [MODELS[1], MODELS[2]].map(|model| {
        let problem = two_by_two(model, 4, vec![1000; 4]);
        problem.layout.cuts(&problem.model, 16)
    });
    assert!(!dealt && cut);
}

#[test]
fn the_widest_cut_sets_the_exchange_and_optimizer_states_are_cut_over_all() {
    let base =
        Layout { tp: 8, sequence_parallel: true, ..Layout::data_and_context(2, 1, Zero::Off, ContextExchange::Gather) };
    let problem = problem(vec![1000; 4], base);
    let cost = Roofline::new(&problem.cluster);
    let plan = plan(&problem, &[2, 1, 1], &[(8, 1), (4, 1), (4, 1)], &cost);
    let (graph, _) = play(&problem, &plan, &cost, Fold::Nothing);
    let bytes = |kind| {
        let of_kind = |op: &Op| match op {
            Op::Collective { kind: of, bytes, shape } if *of == kind && shape.n_ranks == 3 => Some(*bytes),
            _ => None,
        };
        graph.ops.iter().find_map(of_kind)
    };
    let quarter = parameters(&problem) / 4.0;
    let gathered = hw::real(bytes(Collective::AllGather).expect("parameters are gathered"));
    assert!((gathered / (2.0 * quarter) - 1.0).abs() < 0.01, "{gathered}");
    let label = graph.labels.iter().position(|name| name == "optimizer states").expect("held");
    let sixteenth = 12.0 * 4.0 * quarter / 16.0;
    for held in &graph.resident {
        let found = held.iter().find(|(of, _)| of.0 as usize == label).map_or(0, |(_, bytes)| *bytes);
        assert!((hw::real(found) / sixteenth - 1.0).abs() < 0.01, "{found}");
    }
}

/// Longest end of passes and idle share of all pipelines when these sequences run one per micro-batch on two pipelines of four ranks.
fn two_pipelines(groups: [Vec<u64>; 2]) -> (u64, f64) {
    let base = Layout { pp: 4, ..Layout::data_and_context(2, 1, Zero::Off, ContextExchange::Gather) };
    let counts = [groups[0].len(), groups[1].len()];
    let work: u64 = groups.iter().flatten().sum::<u64>() * 3;
    let mut problem = problem(groups.concat(), base);
    problem.execution.unit_times = Some(UnitTimes { forward: 1, input: 1, weight: 1, message: 0 });
    let cost = Fixed::default();
    let plan = plan(&problem, &counts, &[(1, 4), (1, 4)], &cost);
    let (graph, timeline) = play(&problem, &plan, &cost, Fold::Nothing);
    let mut spans = [0; 2];
    for (task, &end) in graph.tasks.iter().zip(&timeline.end) {
        let span = &mut spans[graph.lanes[task.lane.index()].group as usize];
        *span = (end - hw::Time::ZERO).as_ns().max(*span);
    }
    let span = spans.into_iter().max().unwrap_or(0);
    (span, 1.0 - hw::real(work) / hw::real(2 * span))
}

#[test]
fn length_classes_apart_leave_smaller_bubbles_than_mixed_ones_of_equal_work() {
    // Eight long ones on one pipeline and 32 short ones on the other, or half of each on both, in turn.
    let pure = two_pipelines([vec![40; 8], vec![10; 32]]);
    let mixed: Vec<u64> = (0..4).flat_map(|_| [40, 10, 10, 10, 10]).collect();
    let mixed = two_pipelines([mixed.clone(), mixed]);
    assert_eq!(pure.0, (4 - 1 + 8) * 120, "the long class alone");
    assert!(mixed.1 > pure.1, "{mixed:?} {pure:?}");
}

#[test]
fn context_ranks_with_lists_of_their_own_run_through_the_pipeline_independently() {
    let base = Layout { pp: 4, ..Layout::data_and_context(1, 2, Zero::Off, ContextExchange::Ring) };
    let lengths: Vec<u64> = [40; 8].into_iter().chain([10; 20]).collect();
    let mut problem = problem(lengths, base);
    problem.execution.unit_times = Some(UnitTimes { forward: 1, input: 1, weight: 1, message: 0 });
    let cost = Fixed::default();
    // The n-th micro-batch holds the n-th long sequence on rank 0 and the n-th short one on rank 1.
    let place = |sequence: u32, rank| {
        let tokens = problem.workload.lengths[sequence as usize];
        Placement { sequence, from: 0, tokens, place: Place::Local(rank) }
    };
    let micro_batch = |n: u32| {
        let long = (n < 8).then(|| place(n, 0));
        MicroBatch { sequences: long.into_iter().chain([place(8 + n, 1)]).collect(), ..MicroBatch::default() }
    };
    let mut plan = Plan::new("test", &problem, vec![Step::of_groups(vec![(0..20).map(micro_batch).collect()])]);
    let (found, order_of) = pipelines(&problem, &plan, 0, &cost);
    plan.steps[0].orders = found.iter().map(|pipeline| (problem.schedule.order)(pipeline)).collect();
    plan.steps[0].order_of = order_of;
    assert_eq!(crate::check::check(&problem, &plan), Ok(()));
    let (graph, timeline) = play(&problem, &plan, &cost, Fold::Nothing);
    let end_of = |cp: u32| {
        let is_of = |task: &&Task| problem.layout.position(graph.lanes[task.lane.index()].rank).cp == cp;
        let busy = graph.tasks.iter().zip(&timeline.start).zip(&timeline.end).filter(|((task, _), _)| is_of(task));
        busy.filter(|((_, start), end)| end > start).map(|(_, end)| (*end - hw::Time::ZERO).as_ns()).max()
    };
    assert_eq!(end_of(0), Some((4 - 1 + 8) * 120));
    assert_eq!(end_of(1), Some((4 - 1 + 20) * 30));
}

/// One sequence per micro-batch on pipelines whose stages are placed: (ranks, layers) of each.
fn placed_plan(problem: &Problem, counts: &[usize], placed: Vec<Vec<(Vec<u32>, u32)>>, cost: &dyn CostModel) -> Plan {
    let mut plan = plan_of_counts(problem, counts);
    let stage = |(ranks, layers)| PlacedStage { ranks, layers };
    plan.steps[0].placed = placed.into_iter().map(|stages| stages.into_iter().map(stage).collect()).collect();
    ordered(problem, plan, cost)
}

#[test]
fn stages_placed_like_a_shape_take_the_shape_s_time() {
    for model in MODELS {
        let problem = two_by_two(model, 2, vec![2048; 10]);
        let cost = Roofline::new(&problem.cluster);
        let shaped = plan(&problem, &[5, 5], &[(2, 2), (2, 2)], &cost);
        let stage = |ranks: [u32; 2]| (ranks.to_vec(), 4);
        let placed = vec![vec![stage([0, 1]), stage([2, 3])], vec![stage([4, 5]), stage([6, 7])]];
        let placed = placed_plan(&problem, &[5, 5], placed, &cost);
        let span = |plan| play(&problem, plan, &cost, Fold::Alike).1.span();
        assert_eq!(span(&placed), span(&shaped), "{model:?}");
        // The other order of ranks inside a node is the same machine.
        let swapped = vec![vec![stage([7, 3]), stage([0, 4])], vec![stage([1, 5]), stage([2, 6])]];
        assert_eq!(span(&placed_plan(&problem, &[5, 5], swapped, &cost)), span(&shaped), "{model:?}");
    }
}

#[test]
fn a_straggler_slows_its_own_stage_by_its_rate_and_balanced_layers_hide_it() {
    // Units: a pass of a stage takes as long as every other; one pipeline of two ranks, v micro-batches of 2 + 1 + 1 units: the steady state
    // goes at the pace of the slower rank.
    let base = Layout { pp: 2, ..Layout::data_and_context(1, 1, Zero::Off, ContextExchange::Gather) };
    let mut problem = problem(vec![1000; 8], base);
    problem.execution.unit_times = Some(UnitTimes { forward: 1, input: 1, weight: 1, message: 0 });
    let cost = Fixed::default();
    let plan = ordered(&problem, plan_of_counts(&problem, &[8]), &cost);
    let healthy = play(&problem, &plan, &cost, Fold::Alike).1.span().as_ns();
    // (8 micro-batches + 1) × 3 × 1000.
    assert_eq!(healthy, 27_000);
    let of = |rank, rate| {
        let mut slow = problem.clone();
        slow.execution.stragglers = vec![straggler(rank, rate)];
        play(&slow, &plan, &cost, Fold::Alike).1.span().as_ns()
    };
    // The last rank is never idle between its first forward and its last backward: 8 × 3 × 3000, and a healthy forward and backward.
    assert_eq!(of(1, 3.0), 72_000 + 3_000);
    assert!(of(0, 3.0) >= 72_000 && of(0, 1.0) == healthy);
}

fn straggler(rank: u32, rate: f64) -> crate::straggler::Straggler {
    crate::straggler::Straggler { ranks: vec![hw::Rank(rank)], rate, from_step: 0, until_step: None }
}

#[test]
fn folded_and_unfolded_steps_agree_with_stragglers_and_a_pause_comes_first() {
    let base = Layout {
        tp: 2,
        pp: 2,
        sequence_parallel: true,
        ..Layout::data_and_context(4, 1, Zero::Off, ContextExchange::Gather)
    };
    let mut problem = problem(vec![1024; 12], base);
    problem.execution.stragglers = vec![straggler(3, 2.5), straggler(8, 1.5)];
    let cost = Roofline::new(&problem.cluster);
    let plan = ordered(&problem, plan_of_counts(&problem, &[3; 4]), &cost);
    let span = |plan: &Plan, fold| play(&problem, plan, &cost, fold).1.span();
    assert_eq!(span(&plan, Fold::Alike), span(&plan, Fold::Nothing));
    let mut paused = plan.clone();
    paused.steps[0].pause_ns = 5_000_000_000;
    let longer = span(&paused, Fold::Alike).as_ns() - span(&plan, Fold::Alike).as_ns();
    assert_eq!(longer, 5_000_000_000);
    // Shaped pipelines see the stragglers of their own ranks.
    let shaped = |shapes: &[(u32, u32)]| {
        let mut plan = plan_of_counts(&problem, &[3; 4]);
        plan.steps[0].pipelines = shapes.iter().map(|&(tp, pp)| PipelineShape { tp, pp }).collect();
        span(&ordered(&problem, plan, &cost), Fold::Alike)
    };
    assert!(shaped(&[(2, 2); 4]) > Span::ZERO);
    let mut healthy = problem.clone();
    healthy.execution.stragglers.clear();
    let own = ordered(&healthy, plan_of_counts(&healthy, &[3; 4]), &cost);
    assert!(play(&healthy, &own, &cost, Fold::Alike).1.span() < span(&plan, Fold::Alike));
}
