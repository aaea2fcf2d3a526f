//! Steps whose data-parallel groups have pipelines of different shape (Hydraulis, arXiv:2412.07894): optimizer layout apart from compute
//! layout.
//!
//! Neighbouring groups of one shape are lowered as a problem of their own on consecutive ranks; the graphs stand side by side. Then all
//! ranks reduce gradients (in pieces behind the last backward, where the scenario overlaps them), each into its part of the optimizer's states, which are cut over all ranks, update them, and gather the parameters
//! of their own shape. Every rank's gradients and parameters are those of its shape, so the widest cut (fewest ranks per pipeline) sets
//! the bytes of both exchanges; an exchange is over one rank of every pipeline. A change of shapes from step to step costs nothing more than
//! this gather, which always brings parameters from the optimizer's layout into the step's.
//!
//! Stages that are placed one by one (Malleus, arXiv:2410.13333) are the same with a tensor degree per stage: each pipeline is a part, whose
//! ranks are the job's own numbers. What such a plan's change costs is in the step's pause.

use std::ops::Range;

use super::{Ends, Fold, GRADIENT_BUCKETS, NO_MICRO_BATCH, lower_passes};
use crate::layout::{Layout, Position, Zero};
use crate::memory::{self, States};
use crate::plan::{PipelineShape, PlacedStage, Plan, Step};
use crate::problem::{Framework, GradientSync, Problem};
use crate::stage::{Stage, stages};
use engine::task::{Collective, LaneId, MeetingId, Op, Role, Stream, Task, TaskGraph, TaskId};

/// Neighbouring groups of one shape, as a problem and a plan of their own.
pub(super) struct Part {
    pub(super) problem: Problem,
    pub(super) plan: Plan,
    pub(super) first_rank: u32,
    pub(super) first_group: u32,
}

/// The problem that groups of one shape are: so many copies of a pipeline, states apart.
pub fn shaped(problem: &Problem, shape: PipelineShape, n_groups: u32) -> Problem {
    let mut part = problem.clone();
    let own = problem.layout.on_tensor_group(shape.tp);
    part.layout = Layout {
        tp: own.tp,
        pp: shape.pp,
        ep: own.ep,
        expert_tp: own.expert_tp,
        sequence_parallel: own.sequence_parallel,
        ..Layout::data_and_context(n_groups, 1, Zero::Off, problem.layout.exchange)
    };
    part
}

/// Parts of a step.
pub(super) fn parts(problem: &Problem, plan: &Plan, step_index: usize) -> Vec<Part> {
    let step = &plan.steps[step_index];
    if !step.placed.is_empty() {
        let groups = (0_u32..).zip(&step.placed);
        return groups.map(|(group, stages)| placed_part(problem, plan, step_index, group, stages)).collect();
    }
    let (mut first_rank, mut first_group, mut parts) = (0, 0, Vec::new());
    for run in step.pipelines.chunk_by(|a, b| a == b) {
        let n = u32::try_from(run.len()).expect("groups fit u32");
        let groups = first_group as usize..(first_group + n) as usize;
        let mut problem = shaped(problem, run[0], n);
        // Ranks count from the part's first.
        for straggler in &mut problem.execution.stragglers {
            straggler.ranks.retain(|rank| rank.0 >= first_rank);
            straggler.ranks.iter_mut().for_each(|rank| rank.0 -= first_rank);
        }
        let plan = only(plan, step_index, groups, problem.layout);
        parts.push(Part { problem, plan, first_rank, first_group });
        first_rank += n * run[0].n_ranks();
        first_group += n;
    }
    parts
}

/// A pipeline whose stages are placed: a problem of one group, whose ranks are the job's.
fn placed_part(problem: &Problem, plan: &Plan, step_index: usize, group: u32, stages: &[PlacedStage]) -> Part {
    let n = |n: usize| u32::try_from(n).expect("ranks fit u32");
    let widest = stages.iter().map(|stage| n(stage.ranks.len())).max().unwrap_or(1);
    let mut own = shaped(problem, PipelineShape { tp: widest, pp: n(stages.len()) }, 1);
    own.execution.layers = stages.iter().map(|stage| stage.layers).collect();
    own.execution.places =
        stages.iter().map(|stage| stage.ranks.iter().map(|&rank| hw::Rank(rank)).collect()).collect();
    let plan = only(plan, step_index, group as usize..group as usize + 1, own.layout);
    Part { problem: own, plan, first_rank: 0, first_group: group }
}

/// A plan of some groups of one step; everything else is empty, as the part is asked for this step alone.
fn only(plan: &Plan, step_index: usize, groups: Range<usize>, layout: Layout) -> Plan {
    let step = &plan.steps[step_index];
    let of_part = Step {
        groups: step.groups[groups.clone()].to_vec(),
        orders: step.orders.clone(),
        order_of: step.order_of.get(groups).unwrap_or_default().to_vec(),
        pause_ns: step.pause_ns,
        ..Step::default()
    };
    let mut steps = vec![Step::default(); plan.steps.len()];
    steps[step_index] = of_part;
    Plan {
        schema: plan.schema.clone(),
        policy: plan.policy.clone(),
        schedule: plan.schedule.clone(),
        layout,
        searched: None,
        steps,
        origin: None,
    }
}

/// Ranks that a part uses.
fn n_ranks(part: &Part) -> u32 {
    let places = &part.problem.execution.places;
    let placed = places.iter().map(Vec::len).sum::<usize>();
    if places.is_empty() { part.problem.layout.n_ranks() } else { u32::try_from(placed).expect("ranks fit u32") }
}

/// Task graph of a step of mixed pipelines.
pub(super) fn lower(problem: &Problem, plan: &Plan, step_index: usize, fold: Fold) -> TaskGraph {
    let mut graph = TaskGraph::default();
    let mut ends: Vec<Ends> = Vec::new();
    let all = parts(problem, plan, step_index);
    for part in &all {
        let (passes, of_part) = lower_passes(&part.problem, &part.plan, step_index, fold);
        let (tasks, _) = graph.append(&passes, part.first_rank, part.first_group);
        let moved = |ids: Vec<TaskId>| ids.into_iter().map(|id| TaskId(id.0 + tasks)).collect();
        ends.extend(of_part.into_iter().map(|ends| Ends { tail: moved(ends.tail), pieces: moved(ends.pieces) }));
    }
    if problem.execution.unit_times.is_none() {
        shard_states(problem, &all, &mut graph);
        synchronise(problem, &all, &mut graph, &ends);
    }
    graph
}

/// Optimizer states, and gradients under ZeRO 2, are cut over all ranks, whatever they compute; where stages are placed, over the ranks in
/// use.
fn shard_states(problem: &Problem, parts: &[Part], graph: &mut TaskGraph) {
    let shares = shares(problem, optimizer_ranks(problem, parts));
    let (optimizer, gradients) = (graph.label("optimizer states"), graph.label("gradients"));
    for (label, bytes) in graph.resident.iter_mut().flatten() {
        if *label == optimizer {
            *bytes = shares.optimizer.0;
        } else if *label == gradients && cuts_gradients(problem) {
            *bytes = shares.gradients.0;
        }
    }
}

/// Whether a rank keeps its share of the gradients alone.
fn cuts_gradients(problem: &Problem) -> bool {
    problem.layout.zero >= Zero::Gradients
}

fn optimizer_ranks(problem: &Problem, parts: &[Part]) -> u32 {
    let is_placed = parts.iter().any(|part| !part.problem.execution.places.is_empty());
    if is_placed { parts.iter().map(n_ranks).sum() } else { problem.layout.n_ranks() }
}

/// States that are cut over so many ranks, on each of them: the optimizer's, and gradients under ZeRO 2.
pub fn shares(problem: &Problem, n_ranks: u32) -> States {
    let whole = shaped(problem, PipelineShape { tp: 1, pp: 1 }, 1);
    let whole = memory::states(&whole, &stages(&whole));
    let share = |bytes: hw::Bytes| hw::Bytes::from_f64(bytes.as_f64() / f64::from(n_ranks));
    let gradients = if cuts_gradients(problem) { share(whole.gradients) } else { hw::Bytes(0) };
    States { parameters: hw::Bytes(0), gradients, optimizer: share(whole.optimizer), ..States::default() }
}

/// Of the states of a shape's rank, those that are its own: parameters, and below ZeRO 2 gradients.
pub fn own_states(problem: &Problem, states: States) -> States {
    let gradients = if cuts_gradients(problem) { hw::Bytes(0) } else { states.gradients };
    States { gradients, optimizer: hw::Bytes(0), ..states }
}

/// Gradients to the optimizer's shards, the update, and parameters back to every shape.
fn synchronise(problem: &Problem, parts: &[Part], graph: &mut TaskGraph, ends: &[Ends]) {
    let mut members = Vec::new();
    for part in parts {
        let layout = &part.problem.layout;
        let first = part.problem.rank(Position::default()).0 + part.first_rank;
        members.extend((0..layout.dp).map(|group| hw::Rank(first + group * layout.tp * layout.pp)));
    }
    let n_pieces = match problem.gradient_sync() {
        GradientSync::Overlapped | GradientSync::EachMicroBatch => GRADIENT_BUCKETS,
        GradientSync::AtEnd => 1,
    };
    let widest = parts.iter().map(|part| fullest(&part.problem)).fold(0.0, f64::max);
    let [reduce, gather] = exchanges_of(problem, widest, &members, n_pieces);
    let group = graph.add_group(&members);
    let stream = match problem.cluster.shape_of(&members).n_nodes {
        1 => Stream::IntraNode,
        _ => Stream::InterNode,
    };
    let share = parameters(problem) / f64::from(optimizer_ranks(problem, parts));
    let update = graph.add_op(Op::Sequence(problem.execution.optimizer.step(
        Framework::Formulas,
        [share; 3],
        problem.cluster.gpus_per_switch,
    )));
    let (reduce, gather) = (graph.add_op(reduce), graph.add_op(gather));
    let reductions: Vec<MeetingId> = (0..n_pieces).map(|_| graph.add_meeting(group)).collect();
    let gathering = graph.add_meeting(group);
    let has_peers = members.len() > 1;
    for (index, ends) in ends.iter().enumerate() {
        let lane = LaneId(u32::try_from(index).expect("lanes fit u32"));
        let task = |op, stream, role, meeting| Task { op, lane, stream, role, micro_batch: NO_MICRO_BATCH, meeting };
        let mut last = ends.tail.clone();
        for (piece, &meeting) in reductions.iter().enumerate().filter(|_| has_peers) {
            // A lane with fewer pieces, or none, has its gradients when its passes end.
            let made = ends.pieces.get(piece).filter(|_| ends.pieces.len() == n_pieces as usize);
            let preds = made.map_or_else(|| ends.tail.clone(), |&task| vec![task]);
            last.push(graph.add_task(task(reduce, Stream::Gradients, Role::GradientSync, Some(meeting)), &preds));
        }
        last = vec![graph.add_task(task(update, Stream::Compute, Role::Optimizer, None), &last)];
        if has_peers {
            graph.add_task(task(gather, stream, Role::ParameterGather, Some(gathering)), &last);
        }
    }
}

/// One of `n_pieces` reductions of gradients, and the gather of parameters, over one rank of every pipeline.
pub fn exchanges(problem: &Problem, shapes: &[(PipelineShape, u32)], members: &[hw::Rank], n_pieces: u32) -> [Op; 2] {
    let widest = shapes.iter().map(|&(shape, n)| largest(problem, shape, n)).fold(0.0, f64::max);
    exchanges_of(problem, widest, members, n_pieces)
}

/// The same for so many parameters on the fullest rank.
pub fn exchanges_of(problem: &Problem, widest: f64, members: &[hw::Rank], n_pieces: u32) -> [Op; 2] {
    let shape = problem.cluster.shape_of(members);
    let op = |kind, element: u64, n_pieces: u32| {
        let bytes = hw::whole(widest * hw::real(element) / f64::from(n_pieces));
        Op::Collective { kind, bytes, shape }
    };
    [
        op(Collective::ReduceScatter, problem.execution.gradient_dtype.bytes(), n_pieces),
        op(Collective::AllGather, problem.dtype.bytes(), 1),
    ]
}

fn parameters(problem: &Problem) -> f64 {
    largest(problem, PipelineShape { tp: 1, pp: 1 }, 1)
}

/// Parameters of the fullest rank of a pipeline.
fn largest(problem: &Problem, shape: PipelineShape, n_groups: u32) -> f64 {
    fullest(&shaped(problem, shape, n_groups))
}

/// Parameters of the fullest rank of a part.
fn fullest(part: &Problem) -> f64 {
    let of_stage = |(at, stage): (usize, &Stage)| {
        let (shared, experts) = engine::memory::stage_parameters(&part.at_stage(at).shard(), stage);
        shared + experts
    };
    stages(part).iter().enumerate().map(of_stage).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests;
