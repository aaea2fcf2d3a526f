//! Steps whose data-parallel groups have pipelines of different shape (Hydraulis, arXiv:2412.07894): optimizer layout apart from compute
//! layout.
//!
//! Neighbouring groups of one shape are lowered as a problem of their own on consecutive ranks; the graphs stand side by side. Then all
//! ranks reduce gradients (in pieces behind the last backward, where the scenario overlaps them), each into its part of the optimizer's states, which are cut over all ranks, update them, and gather the parameters
//! of their own shape. Every rank's gradients and parameters are those of its shape, so the widest cut (fewest ranks per pipeline) sets
//! the bytes of both exchanges; an exchange is over one rank of every pipeline. A change of shapes from step to step costs nothing more than
//! this gather, which always brings parameters from the optimizer's layout into the step's.

use super::{Ends, Fold, GRADIENT_BUCKETS, NO_MICRO_BATCH, lower_passes};
use crate::layout::{Layout, Zero};
use crate::lower::layer;
use crate::memory;
use crate::plan::{PipelineShape, Plan, Step};
use crate::problem::{GradientSync, Problem};
use crate::stage::{Stage, stages};
use crate::task::{Collective, LaneId, MeetingId, Op, Role, Stream, Task, TaskGraph, TaskId};

/// Neighbouring groups of one shape, as a problem and a plan of their own.
pub(super) struct Part {
    pub(super) problem: Problem,
    pub(super) plan: Plan,
    pub(super) first_rank: u32,
    pub(super) first_group: u32,
}

/// The problem that groups of one shape are: so many copies of a pipeline, states apart.
#[must_use]
pub fn shaped(problem: &Problem, shape: PipelineShape, n_groups: u32) -> Problem {
    let mut part = problem.clone();
    part.layout = Layout {
        tp: shape.tp,
        pp: shape.pp,
        sequence_parallel: problem.layout.sequence_parallel && shape.tp > 1,
        ..Layout::data_and_context(n_groups, 1, Zero::Off, problem.layout.exchange)
    };
    part
}

/// Parts of a step.
pub(super) fn parts(problem: &Problem, plan: &Plan, step_index: usize) -> Vec<Part> {
    let step = &plan.steps[step_index];
    let (mut first_rank, mut first_group, mut parts) = (0, 0, Vec::new());
    for run in step.pipelines.chunk_by(|a, b| a == b) {
        let n = u32::try_from(run.len()).expect("groups fit u32");
        let groups = first_group as usize..(first_group + n) as usize;
        let of_part = Step {
            groups: step.groups[groups.clone()].to_vec(),
            orders: step.orders.clone(),
            order_of: step.order_of.get(groups).unwrap_or_default().to_vec(),
            ..Step::default()
        };
        // Everything but the step at hand is empty: the part is asked for this step alone.
        let mut steps = vec![Step::default(); plan.steps.len()];
        steps[step_index] = of_part;
        let problem = shaped(problem, run[0], n);
        let plan = Plan { layout: problem.layout, steps, ..plan.clone() };
        parts.push(Part { problem, plan, first_rank, first_group });
        first_rank += n * run[0].n_ranks();
        first_group += n;
    }
    parts
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
        shard_optimizer(problem, &mut graph);
        synchronise(problem, &all, &mut graph, &ends);
    }
    graph
}

/// Optimizer states are cut over all ranks, whatever they compute.
fn shard_optimizer(problem: &Problem, graph: &mut TaskGraph) {
    let bytes = optimizer_bytes(problem);
    let label = graph.label("optimizer states");
    for held in graph.resident.iter_mut().flatten().filter(|(of, _)| *of == label) {
        held.1 = bytes;
    }
}

/// Bytes of optimizer states on every rank.
#[must_use]
pub fn optimizer_bytes(problem: &Problem) -> u64 {
    let whole = shaped(problem, PipelineShape { tp: 1, pp: 1 }, 1);
    let optimizer = memory::states(&whole, &stages(&whole)).optimizer;
    hw::Bytes::from_f64(optimizer.as_f64() / f64::from(problem.layout.n_ranks())).0
}

/// Gradients to the optimizer's shards, the update, and parameters back to every shape.
fn synchronise(problem: &Problem, parts: &[Part], graph: &mut TaskGraph, ends: &[Ends]) {
    let shapes: Vec<(PipelineShape, u32)> = (parts.iter())
        .map(|part| (PipelineShape { tp: part.problem.layout.tp, pp: part.problem.layout.pp }, part.problem.layout.dp))
        .collect();
    let mut members = Vec::new();
    for part in parts {
        let layout = &part.problem.layout;
        let width = layout.tp * layout.pp;
        members.extend((0..layout.dp).map(|group| hw::Rank(part.first_rank + group * width)));
    }
    let n_pieces = match problem.execution.gradient_sync {
        GradientSync::Overlapped | GradientSync::EachMicroBatch => GRADIENT_BUCKETS,
        GradientSync::AtEnd => 1,
    };
    let [reduce, gather] = exchanges(problem, &shapes, &members, n_pieces);
    let group = graph.add_group(&members);
    let stream = match problem.cluster.shape_of(&members).n_nodes {
        1 => Stream::IntraNode,
        _ => Stream::InterNode,
    };
    let update =
        graph.add_op(Op::Sequence(layer::optimizer(parameters(problem) / f64::from(problem.layout.n_ranks()))));
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
            last.push(graph.add_task(task(reduce, stream, Role::GradientSync, Some(meeting)), &preds));
        }
        last = vec![graph.add_task(task(update, Stream::Compute, Role::Optimizer, None), &last)];
        if has_peers {
            graph.add_task(task(gather, stream, Role::ParameterGather, Some(gathering)), &last);
        }
    }
}

/// One of `n_pieces` reductions of gradients, and the gather of parameters, over one rank of every pipeline.
#[must_use]
pub fn exchanges(problem: &Problem, shapes: &[(PipelineShape, u32)], members: &[hw::Rank], n_pieces: u32) -> [Op; 2] {
    let widest = shapes.iter().map(|&(shape, n)| largest(problem, shape, n)).fold(0.0, f64::max);
    let shape = problem.cluster.shape_of(members);
    let op = |kind, element: u64, n_pieces: u32| {
        let bytes = hw::Bytes::from_f64(widest * hw::Bytes(element).as_f64() / f64::from(n_pieces)).0;
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
    let part = shaped(problem, shape, n_groups);
    let of_stage = |stage: &Stage| memory::stage_parameters(&part, stage).0;
    stages(&part).iter().map(of_stage).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests;
