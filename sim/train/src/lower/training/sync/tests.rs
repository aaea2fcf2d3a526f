//! What ZeRO 3 moves in a step, and the copies around exchanges of heads, counted by hand.

use super::super::{Fold, lower_folded};
use crate::bound::Floors;
use crate::layout::{ContextExchange, Layout, Zero};
use crate::plan::{MicroBatch, Place, Placement, Plan, Step};
use crate::problem::{
    AdaptedProducts, Adapters, Casts, Execution, Framework, GradientSync, Problem, Recompute, TorchModules,
};
use crate::workload::Workload;
use engine::CostModel;
use engine::Timeline;
use engine::cost::roofline::Roofline;
use engine::task::{Collective, CopyKind, Op, Role, TaskGraph};

const N_RANKS: u32 = 4;
const TOKENS: u64 = 4096;

fn problem(zero: Zero) -> Problem {
    let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
    Problem {
        model: engine::model::embedded("llama-3-8b").expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, 1, N_RANKS),
        layout: Layout::data_and_context(1, N_RANKS, zero, ContextExchange::Ulysses),
        schedule: crate::schedule::named("1f1b").expect("listed"),
        workload: Workload { lengths: vec![TOKENS; 3], batch_size: 3, source: "test".to_owned() },
        dtype: hw::Dtype::Bf16,
        execution: Execution { recompute: Recompute::Off, ..Execution::default() },
        bucket_tokens: 1 << 20,
        reserved_memory: hw::Bytes(0),
        seed: 0,
    }
}

/// One sequence per micro-batch, over all ranks or on one.
fn graph(problem: &Problem, place: Place) -> TaskGraph {
    let of = |(sequence, tokens)| MicroBatch {
        sequences: vec![Placement { sequence, from: 0, tokens, place }],
        ..MicroBatch::default()
    };
    let step = Step::of_groups(vec![problem.workload.step(0).map(of).collect()]);
    let mut plan = Plan::new("test", problem, vec![step]);
    if problem.layout.pp > 1 {
        let (found, of_group) = super::super::pipelines(problem, &plan, 0, &Roofline::new(&problem.cluster));
        plan.steps[0].orders = found.iter().map(|pipeline| problem.schedule.ordered(pipeline)).collect();
        plan.steps[0].order_of = of_group;
    }
    assert_eq!(crate::check::check(problem, &plan), Ok(()));
    super::super::lower(problem, &plan, 0)
}

/// Tasks and bytes of a collective in a role on the first lane.
fn moved(graph: &TaskGraph, role: Role, of: Collective) -> (usize, u64) {
    let bytes = |op: &Op| match op {
        Op::Sequence(parts) => parts
            .iter()
            .map(|(part, n)| match part {
                Op::Collective { kind, bytes, .. } if *kind == of => bytes * u64::from(*n),
                _ => 0,
            })
            .sum(),
        _ => 0,
    };
    let tasks = graph.tasks.iter().filter(|task| task.lane.index() == 0 && task.role == role);
    let each: Vec<u64> = tasks.map(|task| bytes(&graph.ops[task.op.0 as usize])).filter(|bytes| *bytes > 0).collect();
    (each.len(), each.iter().sum())
}

#[test]
fn zero_3_reduces_every_micro_batch_and_the_others_where_the_scenario_says_so() {
    let parameters = problem(Zero::Off).model.n_parameters();
    let (last, each) = (GradientSync::Overlapped, GradientSync::EachMicroBatch);
    for (zero, sync, n_reduced) in [
        (Zero::OptimizerStates, last, 1),
        (Zero::Gradients, last, 1),
        (Zero::Gradients, each, 3),
        (Zero::Parameters, last, 3),
    ] {
        let mut problem = problem(zero);
        problem.execution.gradient_sync = sync;
        let graph = graph(&problem, Place::Sharded);
        let (n, bytes) = moved(&graph, Role::GradientSync, Collective::ReduceScatter);
        assert_eq!(n, 4 * n_reduced, "{zero:?}");
        let expected = 2 * parameters * n_reduced as u64;
        assert!(bytes.abs_diff(expected) < expected / 1000, "{zero:?}: {bytes} against {expected}");
    }
}

/// Each flush reduces its gradients behind its last backward, as `step` of PyTorch's schedules does; those that wait for the end are reduced once.
#[test]
fn a_flush_reduces_its_gradients_and_a_step_that_waits_does_once() {
    for (flush_every, sync, n_reduced) in [
        (None, GradientSync::Overlapped, 1),
        (Some(3), GradientSync::Overlapped, 1),
        (Some(2), GradientSync::Overlapped, 2),
        (Some(1), GradientSync::Overlapped, 3),
        (Some(1), GradientSync::AtEnd, 1),
        (Some(2), GradientSync::EachMicroBatch, 3),
    ] {
        let mut problem = problem(Zero::OptimizerStates);
        problem.layout = Layout { cp: 2, pp: 2, ..problem.layout };
        (problem.execution.flush_every, problem.execution.gradient_sync) = (flush_every, sync);
        let graph = graph(&problem, Place::Sharded);
        let (_, bytes) = moved(&graph, Role::GradientSync, Collective::ReduceScatter);
        let held = crate::stage::stages(&problem)[0];
        let (parameters, _) = engine::memory::stage_parameters(&problem.shard(), &held);
        let expected = 2 * hw::whole(parameters) * n_reduced;
        assert!(bytes.abs_diff(expected) < expected / 1000, "{flush_every:?} {sync:?}: {bytes} against {expected}");
    }
}

#[test]
fn zero_3_gathers_all_parameters_twice_per_micro_batch() {
    let problem = problem(Zero::Parameters);
    let (n, bytes) = moved(&graph(&problem, Place::Sharded), Role::ParameterGather, Collective::AllGather);
    // First layer and rest, forward and backward, three micro-batches.
    assert_eq!(n, 12);
    let expected = 6 * 2 * problem.model.n_parameters();
    assert!(bytes.abs_diff(expected) < expected / 1000, "{bytes} against {expected}");
}

#[test]
fn an_exchange_of_heads_copies_what_it_sends_or_gets_once() {
    let problem = problem(Zero::OptimizerStates);
    let elementwise = |graph: &TaskGraph| -> u64 {
        let of = |op: &Op| match op {
            Op::Sequence(parts) => parts
                .iter()
                .map(|(part, n)| match part {
                    Op::Elementwise { bytes } => bytes * u64::from(*n),
                    _ => 0,
                })
                .sum::<u64>(),
            _ => 0,
        };
        let computes = [Role::Forward, Role::Backward];
        graph
            .tasks
            .iter()
            .filter(|task| computes.contains(&task.role))
            .map(|task| of(&graph.ops[task.op.0 as usize]))
            .sum()
    };
    // The graph has a lane per distinct rank: whole sequences on the first rank against all ranks' shares, which add up to the same but for copies.
    let cut = graph(&problem, Place::Sharded);
    let shares: u64 = elementwise(&cut) * u64::from(N_RANKS) / cut.lanes.len() as u64;
    let whole = elementwise(&graph(&problem, Place::Local(0)));
    let model = &problem.model;
    // Queries, keys and values in, outputs out, two bytes an element, read and written; forward and backward of 32 layers.
    let per_token = 2 * 2 * (2 * model.n_heads + 2 * model.n_kv_heads) * model.head_dim;
    assert_eq!(shares - whole, per_token * TOKENS * 3 * 2 * model.n_layers);
}

fn played(problem: &Problem, graph: &TaskGraph) -> Timeline {
    let (cost, topology) = (Roofline::new(&problem.cluster), hw::topology::Topology::of(&problem.cluster));
    let case = engine::play::Case::Expected;
    let machine =
        engine::play::Machine { cost: &cost, topology: &topology, memory_bytes: u64::MAX, case, speed_changes: &[] };
    match engine::play::simulate(graph, &machine) {
        engine::Outcome::Done(timeline) => timeline,
        other => panic!("{other:?}"),
    }
}

fn step_s(problem: &Problem, graph: &TaskGraph) -> f64 {
    played(problem, graph).span().to_seconds().get()
}

/// From the start of the first gather of parameters to the end of the last.
fn gathering_s(problem: &Problem, graph: &TaskGraph) -> f64 {
    let timeline = played(problem, graph);
    let gathers = (0..graph.tasks.len()).filter(|&task| graph.tasks[task].role == Role::ParameterGather);
    let (starts, ends): (Vec<_>, Vec<_>) = gathers.map(|task| (timeline.start[task], timeline.end[task])).unzip();
    (*ends.iter().max().expect("a gather") - *starts.iter().min().expect("a gather")).to_seconds().get()
}

#[test]
fn parameters_gathered_ahead_come_beside_the_first_pass() {
    for (name, n_held) in [("llama-3-8b", 1), ("mixtral-8x7b", 2)] {
        let mut problem = problem(Zero::OptimizerStates);
        problem.model = engine::model::embedded(name).expect("embedded");
        problem.workload.lengths = vec![16 * TOKENS; 3];
        let [behind, ahead] = [false, true].map(|is_ahead| {
            problem.execution.overlap.parameter_gather = is_ahead;
            // Whole sequences: exchanges of a cut one would wait for the gather on their stream.
            graph(&problem, Place::Local(0))
        });
        let parameters = problem.model.n_parameters();
        let gathered = [&behind, &ahead].map(|graph| moved(graph, Role::ParameterGather, Collective::AllGather));
        // The first layer and the rest, all parameters once.
        assert_eq!(gathered.map(|(n, _)| n), [n_held, 2 * n_held], "{name}");
        for (_, bytes) in gathered {
            assert!(bytes.abs_diff(2 * parameters) < parameters / 500, "{name}: {bytes}");
        }
        // All but the embedding and a layer of 32 is hidden: one pass takes longer than the gather.
        let [behind_s, ahead_s] = [&behind, &ahead].map(|graph| step_s(&problem, graph));
        let whole_s = gathering_s(&problem, &behind);
        let hidden = (behind_s - ahead_s) / whole_s;
        assert!((0.8..1.0).contains(&hidden), "{name}: {hidden} of {whole_s} s");
    }
}

/// Products of a graph by forward and by all that follows it.
fn multiplied(graph: &TaskGraph) -> [f64; 2] {
    let of = |op: &Op| match op {
        Op::Sequence(parts) => parts
            .iter()
            .map(
                |(part, n)| {
                    if let Op::Gemm { m, n: columns, k, .. } = part { m * columns * k * u64::from(*n) } else { 0 }
                },
            )
            .sum(),
        _ => 0,
    };
    let in_pass = |is_forward: bool| {
        let tasks = graph.tasks.iter().filter(|task| (task.role == Role::Forward) == is_forward);
        hw::real(tasks.map(|task| of(&graph.ops[task.op.0 as usize])).sum::<u64>())
    };
    [in_pass(true), in_pass(false)]
}

#[test]
fn beside_adapters_no_schedule_makes_gradients_of_weights_and_no_step_is_below_its_bound() {
    for (schedule, zero) in [("1f1b", Zero::Off), ("1f1b", Zero::Parameters), ("zb-1p", Zero::OptimizerStates)] {
        for adapters in [None, Some(Adapters::new(32, AdaptedProducts::ALL))] {
            let mut problem = problem(zero);
            problem.schedule = crate::schedule::named(schedule).expect("listed");
            (problem.layout.pp, problem.layout.cp) = (2, 2);
            problem.execution.adapters = adapters;
            let graph = graph(&problem, Place::Sharded);
            let [forward, behind] = multiplied(&graph);
            let factor = if adapters.is_some() { 1.0 } else { 2.0 };
            assert!((behind / forward - factor).abs() < 1e-3, "{schedule}, {zero:?}: {}", behind / forward);
            let cost = Roofline::new(&problem.cluster);
            let bound = Floors::new(&problem, TOKENS, &cost).of_step(0, &[TOKENS; 3]).step_s();
            let step_s = step_s(&problem, &graph);
            assert!(bound > 0.0 && bound <= step_s, "{schedule}, {zero:?}: {bound} above {step_s}");
        }
    }
}

/// A schedule that puts gradients of weights off launches no fewer kernels: the host of a layer with many experts is busy for as long.
#[test]
fn a_split_backward_keeps_the_launches_of_a_whole_one() {
    let busy_s = |schedule: &str| {
        let mut problem = problem(Zero::OptimizerStates);
        problem.model = engine::model::embedded("qwen3-30b-a3b").expect("embedded");
        problem.schedule = crate::schedule::named(schedule).expect("listed");
        (problem.layout.pp, problem.layout.cp) = (4, 1);
        problem.execution.framework = crate::problem::Framework::MegatronCore;
        problem.execution.launches.each = hw::Seconds::new(20e-6);
        // In pieces, which only a whole backward has, each piece waits for its own launches.
        problem.execution.gradient_sync = GradientSync::AtEnd;
        let (graph, cost) = (graph(&problem, Place::Local(0)), Roofline::new(&problem.cluster));
        let computes = graph.tasks.iter().filter(|task| task.stream == engine::task::Stream::Compute);
        computes.map(|task| cost.estimate(&graph.ops[task.op.0 as usize]).time.get()).sum::<f64>()
    };
    let [whole, split] = ["1f1b", "zb-1p"].map(busy_s);
    // The weights of the layer that leads a whole backward wait beside no launches.
    assert!((0.98..1.1).contains(&(split / whole)), "{split} s instead of {whole} s");
}

/// A problem of PyTorch's sharded modules whose gradients of 16 bits are reduced in 32.
fn of_torch(sync: GradientSync) -> Problem {
    let modules =
        TorchModules { compiled: true, fused_norms: true, casts: Casts::Off, in_pieces: false, repeats_keys: true };
    let mut problem = problem(Zero::Parameters);
    problem.execution.framework = Framework::Fsdp2(modules);
    problem.execution.optimizer.master = None;
    problem.execution.gradient_dtype = hw::Dtype::Fp32;
    problem.execution.gradient_sync = sync;
    problem
}

fn elementwise(graph: &TaskGraph) -> u64 {
    let of_part = |(op, n): &(Op, u32)| if let Op::Elementwise { bytes } = op { bytes * u64::from(*n) } else { 0 };
    let of = |op: &Op| if let Op::Sequence(parts) = op { parts.iter().map(of_part).sum() } else { 0 };
    let tasks = graph.tasks.iter().filter(|task| task.lane.index() == 0 && task.role != Role::Optimizer);
    tasks.map(|task| of(&graph.ops[task.op.0 as usize])).sum()
}

#[test]
fn gradients_of_sharded_modules_that_wait_are_whole_and_reduced_once() {
    let [each, waiting] = [GradientSync::Overlapped, GradientSync::AtEnd].map(of_torch);
    let graphs = [&each, &waiting].map(|problem| graph(problem, Place::Sharded));
    let parameters = each.model.n_parameters();
    let [reduced, once] = graphs.each_ref().map(|graph| moved(graph, Role::GradientSync, Collective::ReduceScatter));
    // Three micro-batches, four pieces each; or the last one's alone.
    assert_eq!([reduced.0, once.0], [12, 4]);
    assert_eq!(reduced.1, 3 * once.1);
    let gathered = graphs.each_ref().map(|graph| moved(graph, Role::ParameterGather, Collective::AllGather));
    assert_eq!(gathered[0], gathered[1], "parameters are gathered in every micro-batch");
    // A gradient is copied to 32 bits, added once (read twice and written), then added and copied into the buffer: 6 + 10 + 10 + 8 bytes
    // in place of three copies of 6.
    let more = elementwise(&graphs[1]) - elementwise(&graphs[0]);
    assert!(more.abs_diff(16 * parameters) < parameters / 100, "{more} for {parameters} parameters");
}

#[test]
fn whole_gradients_wait_from_the_first_backward_to_the_last() {
    let held = |problem: &Problem| -> Vec<i64> {
        let graph = graph(problem, Place::Sharded);
        let waits = |label: &str| label == "gradients that wait";
        let effects = graph.effects.iter().filter(|effect| graph.tasks[effect.task.0 as usize].lane.index() == 0);
        effects
            .filter(|effect| waits(&graph.labels[effect.label.0 as usize]))
            .map(|effect| effect.delta_bytes)
            .collect()
    };
    let mut problem = of_torch(GradientSync::AtEnd);
    let bytes = |width: u64| i64::try_from(width * problem.model.n_parameters()).expect("fits");
    let [wide, narrow] = [4, 2].map(bytes);
    assert_eq!(held(&problem), [wide, -wide]);
    problem.execution.gradient_dtype = hw::Dtype::Bf16;
    assert_eq!(held(&problem), [narrow, -narrow], "in the format in which they are reduced");
    problem.workload.lengths.truncate(1);
    problem.workload.batch_size = 1;
    assert!(held(&problem).is_empty(), "a single micro-batch is the last one");
    assert!(held(&of_torch(GradientSync::Overlapped)).is_empty());
}

#[test]
fn bounds_stay_below_steps_whose_gradients_wait() {
    for sync in [GradientSync::Overlapped, GradientSync::AtEnd] {
        let problem = of_torch(sync);
        let cost = Roofline::new(&problem.cluster);
        let bound = Floors::new(&problem, TOKENS, &cost).of_step(0, &[TOKENS; 3]).step_s();
        let graph = graph(&problem, Place::Sharded);
        let step_s = step_s(&problem, &graph);
        assert!(bound > 0.0 && bound <= step_s, "{sync:?}: {bound} above {step_s}");
    }
}

/// What the allocator holds free beside the logits of each micro-batch.
fn free_in_the_allocator(problem: &Problem) -> Vec<i64> {
    let graph = graph(problem, Place::Local(0));
    let label = |label: engine::task::LabelId| graph.labels[label.0 as usize] == super::super::RESERVED;
    let effects = graph.effects.iter().filter(|effect| graph.tasks[effect.task.0 as usize].lane.index() == 0);
    effects.filter(|effect| label(effect.label) && effect.delta_bytes > 0).map(|effect| effect.delta_bytes).collect()
}

#[test]
fn shares_of_gradients_are_free_in_the_first_micro_batch_alone() {
    let problem = of_torch(GradientSync::Overlapped);
    let free = free_in_the_allocator(&problem);
    assert_eq!((free.len(), free[1]), (3, free[2]));
    // All shares of 16 bits, or those of one layer, which are made before they are added.
    let all = problem.model.n_parameters() * 2 / u64::from(N_RANKS);
    let layer = (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336) * 2 / u64::from(N_RANKS);
    let found = u64::try_from(free[0] - free[1]).expect("less is free later");
    assert!(found.abs_diff(all - layer) < all / 1000, "{found} of {all}");
}

#[test]
fn a_rank_that_exchanges_nothing_has_no_memory_of_other_streams() {
    let mut problem = of_torch(GradientSync::Overlapped);
    problem.layout = Layout::data_and_context(1, 1, Zero::Parameters, ContextExchange::Ring);
    problem.cluster = hw::catalog::cluster(&problem.cluster.gpu, 1, 1);
    let beside = engine::memory::reserved_bytes(&problem.shard(), &crate::stage::stages(&problem)[0], TOKENS);
    assert_eq!(free_in_the_allocator(&problem), [beside.cast_signed(); 3]);
    // With a copy in 32 bits its gradients are reduced on a stream of their own, though nobody else takes part.
    problem.execution.optimizer.master = Some(hw::Dtype::Fp32);
    assert!(free_in_the_allocator(&problem)[0] > beside.cast_signed());
}

/// The head's backward has ended before the first layer is computed again: what is held then is the higher of both.
#[test]
fn a_loss_and_a_layer_that_is_computed_again_are_not_held_together() {
    for model in ["llama-3-8b", "llama-2-7b"] {
        let mut problem = of_torch(GradientSync::Overlapped);
        problem.model = engine::model::embedded(model).expect("embedded");
        problem.execution.recompute = Recompute::Full;
        let graph = graph(&problem, Place::Local(0));
        let most = |name: &str| {
            let of = |effect: &&engine::task::MemoryEffect| graph.labels[effect.label.0 as usize] == name;
            graph.effects.iter().filter(of).map(|effect| effect.delta_bytes).max().unwrap_or(0)
        };
        let (vocab, intermediate) = (problem.model.vocab, problem.model.intermediate);
        let tokens = i64::try_from(TOKENS).expect("fits");
        // 16 bytes of hidden size and 12 of a logit, over what a layer holds.
        let loss = i64::try_from(TOKENS * (4 * 4096 + 4 * vocab)).expect("fits");
        let held = most("logits") + most("recomputed layer");
        assert!(held >= loss && most("recomputed layer") > tokens * 2 * i64::try_from(intermediate).expect("fits"));
        let head = engine::memory::head_bytes(&problem.shard(), &crate::stage::stages(&problem)[0], TOKENS);
        assert_eq!(most("logits"), i64::try_from(head).expect("fits"), "less what a layer holds");
    }
}

#[test]
fn shares_on_the_host_are_copied_for_every_pass_and_no_step_is_shorter_than_its_copies() {
    let on_host = |bytes_per_second: Option<f64>| {
        let mut problem = problem(Zero::Parameters);
        problem.execution.parameters_on_host = bytes_per_second.is_some();
        if let Some(rate) = bytes_per_second {
            problem.cluster.gpu.host_bandwidth = hw::BytesPerSecond::new(rate);
        }
        let graph = graph(&problem, Place::Sharded);
        let is_copy =
            |task: &&engine::task::Task| task.lane.index() == 0 && task.stream == engine::task::Stream::HostToDevice;
        let cost = Roofline::new(&problem.cluster);
        let copies = graph.tasks.iter().filter(is_copy).map(|task| &graph.ops[task.op.0 as usize]);
        let bytes_of = |op: &Op| if let Op::Copy { bytes, .. } = op { *bytes } else { 0 };
        let add = |(bytes, seconds): (u64, f64), op| (bytes + bytes_of(op), seconds + cost.estimate(op).time.get());
        let (bytes, copies_s) = copies.fold((0, 0.0), add);
        (bytes, copies_s, step_s(&problem, &graph))
    };
    let (none, _, plain_s) = on_host(None);
    assert_eq!(none, 0);
    // Layers twice, embedding and head once, for each of three micro-batches: a quarter of them in 16 bits.
    let model = problem(Zero::Off).model;
    let tables = 2 * model.vocab * model.hidden;
    let expected = 3 * 2 * (2 * (model.n_parameters() - tables) + tables) / u64::from(N_RANKS);
    let (copied, least_s, slow_s) = on_host(Some(1e9));
    assert!(copied.abs_diff(expected) < expected / 1000, "{copied} instead of {expected}");
    // A link that is far slower than the rest decides; one that is far faster hides behind it.
    assert!(slow_s >= least_s && slow_s < least_s + plain_s, "{slow_s} s, of which copies {least_s} s");
    let (_, _, fast_s) = on_host(Some(1e13));
    assert!(fast_s >= plain_s && fast_s < 1.01 * plain_s, "{fast_s} s instead of {plain_s} s");
}

#[test]
fn activations_on_the_host_go_there_and_back_and_no_step_is_shorter_than_its_copies() {
    let of = |share: f64, bytes_per_second: f64| {
        let mut problem = problem(Zero::Off);
        problem.execution.recompute = Recompute::Full;
        problem.execution.offload = share;
        // What the device's allocator takes is nothing that a link carries.
        problem.execution.fragmentation = 3.0;
        problem.cluster.gpu.host_bandwidth = hw::BytesPerSecond::new(bytes_per_second);
        let graph = graph(&problem, Place::Sharded);
        let cost = Roofline::new(&problem.cluster);
        let copies = |way| {
            let tasks = graph.tasks.iter().filter(|task| task.lane.index() == 0 && task.role == Role::Offload);
            let add = |(bytes, seconds): (u64, f64), op: &Op| match op {
                Op::Copy { kind, bytes: more } if *kind == way => {
                    (bytes + more, seconds + cost.estimate(op).time.get())
                }
                _ => (bytes, seconds),
            };
            tasks.map(|task| &graph.ops[task.op.0 as usize]).fold((0, 0.0), add)
        };
        let [(there, there_s), (back, back_s)] = [CopyKind::DeviceToHost, CopyKind::HostToDevice].map(copies);
        assert_eq!(there, back);
        (there, there_s + back_s, step_s(&problem, &graph))
    };
    // Layers that are computed again keep their inputs: of three micro-batches, in 16 bits, on each of four ranks.
    let model = problem(Zero::Off).model;
    let inputs = 3 * model.n_layers * model.hidden * 2 * TOKENS / u64::from(N_RANKS);
    let (_, _, plain_s) = of(0.0, 1e9);
    for (share, expected) in [(0.0, 0), (0.5, inputs / 2), (1.0, inputs)] {
        let (copied, copies_s, slow_s) = of(share, 1e8);
        assert_eq!(copied, expected, "{share}");
        // A pass waits for its copies, and its computation runs beside them. One that is slow decides, and one that is fast hides.
        assert!(slow_s >= copies_s.max(plain_s) && slow_s < copies_s + plain_s + 1e-9, "{share}: {slow_s} s");
        let (_, _, fast_s) = of(share, 1e13);
        assert!(fast_s >= plain_s && fast_s < 1.01 * plain_s, "{share}: {fast_s} s instead of {plain_s} s");
    }
}

#[test]
fn ranks_below_one_switch_share_its_link_whether_a_lane_stands_for_them_or_not() {
    let of = |(dp, cp, tp): (u32, u32, u32), gpus_per_switch: u32, fold: Fold| {
        let mut problem = problem(Zero::Off);
        problem.layout = Layout { tp, ..Layout::data_and_context(dp, cp, Zero::Off, ContextExchange::Ulysses) };
        problem.workload = Workload { lengths: vec![TOKENS; 4], batch_size: 4, source: "test".to_owned() };
        problem.execution.offload = 0.5;
        problem.cluster.gpus_per_switch = gpus_per_switch;
        // So slow that copies alone decide.
        problem.cluster.gpu.host_bandwidth = hw::BytesPerSecond::new(1e8);
        let mut groups = vec![Vec::new(); dp as usize];
        for (index, (sequence, tokens)) in problem.workload.step(0).enumerate() {
            let sequences = vec![Placement { sequence, from: 0, tokens, place: Place::Sharded }];
            groups[index % dp as usize].push(MicroBatch { sequences, ..MicroBatch::default() });
        }
        let plan = Plan::new("test", &problem, vec![Step::of_groups(groups)]);
        step_s(&problem, &lower_folded(&problem, &plan, 0, fold))
    };
    // A copy alone reaches a part of its link, so lanes of their own slow each other down when they ask for more than all of it. Ranks of one lane take turns.
    let host = problem(Zero::Off).cluster.gpu.host_bandwidth.get();
    let copy = Op::Copy { kind: engine::task::CopyKind::HostToDevice, bytes: 1 << 40 };
    let reached = hw::real(1 << 40) / host / Roofline::new(&problem(Zero::Off).cluster).estimate(&copy).time.get();
    // Degrees, and how many of 2 and of 4 ranks below a switch are one lane.
    for (degrees, in_lane) in
        [((4, 1, 1), [2, 4]), ((1, 1, 4), [2, 4]), ((2, 1, 2), [2, 4]), ((1, 2, 2), [2, 2]), ((1, 4, 1), [1, 1])]
    {
        let alone = of(degrees, 1, Fold::Alike);
        for (n, in_lane) in [2_u32, 4].into_iter().zip(in_lane) {
            let shared = |n_lanes: u32| (f64::from(n_lanes) * reached).max(1.0);
            let expected = [f64::from(in_lane) * shared(n / in_lane), shared(n)];
            for (fold, expected) in [Fold::Alike, Fold::Nothing].into_iter().zip(expected) {
                let found = of(degrees, n, fold) / alone;
                assert!((found / expected - 1.0).abs() < 0.05, "{degrees:?} {n} {fold:?}: {found} for {expected}");
            }
        }
    }
}

fn whole(sequence: u32) -> MicroBatch {
    let sequences = vec![Placement { sequence, from: 0, tokens: TOKENS, place: Place::Local(0) }];
    MicroBatch { sequences, ..MicroBatch::default() }
}

/// Experts of one layer of Mixtral that a rank holds, bytes in 16 bits.
fn experts_bytes(problem: &Problem) -> u64 {
    let experts = problem.model.experts.expect("experts");
    let n = problem.model.n_layers * experts.n_routed / u64::from(problem.layout.ep * problem.layout.expert_tp);
    2 * n * problem.model.expert_parameters()
}

fn of_experts(zero: Zero, layout: Layout) -> Problem {
    let mut problem = problem(zero);
    problem.model = engine::model::embedded("mixtral-8x7b").expect("embedded");
    problem.layout = Layout { zero, sequence_parallel: layout.tp > 1, ..layout };
    problem
}

/// Two replicas of experts inside one tensor group: nothing else is held twice.
#[test]
fn replicas_of_experts_in_a_tensor_group_reduce_and_gather() {
    let base = Layout::data_and_context(1, 1, Zero::Off, ContextExchange::Ulysses);
    let layout = Layout { tp: 4, ep: 2, ..base };
    for (zero, kind, gathered) in [
        (Zero::Off, Collective::AllReduce, 0),
        (Zero::OptimizerStates, Collective::ReduceScatter, 1),
        (Zero::Gradients, Collective::ReduceScatter, 1),
        (Zero::Parameters, Collective::ReduceScatter, 2),
    ] {
        let problem = of_experts(zero, layout);
        let graph = graph(&problem, Place::Local(0));
        let of_step = if zero == Zero::Parameters { 3 } else { 1 };
        let (_, reduced) = moved(&graph, Role::GradientSync, kind);
        let all = experts_bytes(&problem);
        assert!(reduced.abs_diff(of_step * all) < all / 1000, "{zero:?}: {reduced} against {all}");
        let (_, found) = moved(&graph, Role::ParameterGather, Collective::AllGather);
        assert!(found.abs_diff(gathered * of_step * all) <= all / 1000, "{zero:?}: {found} against {all}");
        let groups = graph.tasks.iter().filter(|task| task.role == Role::GradientSync).filter_map(|task| task.meeting);
        let first = graph.meetings[groups.clone().next().expect("reduced").0 as usize];
        assert_eq!(graph.groups[first.0 as usize], [hw::Rank(0), hw::Rank(2)], "{zero:?}");
        assert!(groups.count() > 0);
    }
    // Cut over the whole group, every rank has a part of its own.
    let cut = of_experts(Zero::OptimizerStates, Layout { tp: 4, expert_tp: 4, ..base });
    assert_eq!(moved(&graph(&cut, Place::Local(0)), Role::GradientSync, Collective::ReduceScatter), (0, 0));
}

/// With whole experts on each of two tensor ranks of two replicas, four ranks hold the same ones.
#[test]
fn experts_of_tensor_ranks_are_reduced_over_all_of_them() {
    let base = Layout::data_and_context(2, 1, Zero::Off, ContextExchange::Ulysses);
    let mut problem = of_experts(Zero::OptimizerStates, Layout { tp: 2, ..base });
    problem.workload.lengths = vec![TOKENS; 4];
    problem.workload.batch_size = 4;
    let step = Step::of_groups(vec![vec![whole(0), whole(1)], vec![whole(2), whole(3)]]);
    let graph = super::super::lower(&problem, &Plan::new("test", &problem, vec![step]), 0);
    let all = experts_bytes(&problem);
    let ranks_of = |op: &Op| match op {
        Op::Sequence(parts) => parts.iter().find_map(|(part, _)| match part {
            Op::Collective { bytes, shape, .. } if *bytes > all / 8 => Some(shape.n_ranks),
            _ => None,
        }),
        _ => None,
    };
    let reduced = graph.tasks.iter().filter(|task| task.role == Role::GradientSync);
    let found: Vec<u32> = reduced.filter_map(|task| ranks_of(&graph.ops[task.op.0 as usize])).collect();
    assert!(!found.is_empty() && found.iter().all(|n| *n == 4), "{found:?}");
}

/// Buckets run beside tensor exchanges of the same node, so what overlaps takes less than what waits for the end.
#[test]
fn reductions_in_a_node_run_beside_tensor_exchanges() {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    let of = |sync| {
        let base = Layout::data_and_context(4, 1, Zero::OptimizerStates, ContextExchange::Ulysses);
        let mut problem = problem(Zero::OptimizerStates);
        problem.cluster = hw::catalog::cluster(&gpu, 1, 8);
        problem.layout = Layout { tp: 2, sequence_parallel: true, expert_tp: 1, ..base };
        problem.execution.gradient_sync = sync;
        problem.workload.lengths = vec![TOKENS; 4];
        problem.workload.batch_size = 4;
        let step = Step::of_groups((0..4).map(|sequence| vec![whole(sequence)]).collect());
        let graph = super::super::lower(&problem, &Plan::new("test", &problem, vec![step]), 0);
        let timeline = played(&problem, &graph);
        let reduced = graph.tasks.iter().zip(&timeline.start).filter(|(task, _)| task.role == Role::GradientSync);
        let first = reduced.map(|(_, start)| start.as_ns()).min().expect("reduced");
        (first, timeline.span().as_ns())
    };
    let (beside, behind) = (of(GradientSync::Overlapped), of(GradientSync::AtEnd));
    assert!(beside.0 < behind.0 && beside.1 < behind.1, "{beside:?} {behind:?}");
}
