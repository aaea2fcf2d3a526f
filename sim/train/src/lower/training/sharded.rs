//! Memory of PyTorch's fully sharded modules over a step without a pipeline: whole parameters of a pass, gradients, what reduces the last ones, and lists
//! of the optimizer. Gradients come with backward, or wait for the last one.
//!
//! Sources: pytorch/pytorch (`torch/distributed/fsdp/_fully_shard`, `torch/optim/adamw.py`: `zero_grad`, `_multi_tensor_adamw`). Unit: bytes.

use std::collections::BTreeMap;

use hw::{Bytes, Dtype};

use super::{Builder, Frame, stage_index};
use crate::layout::Zero;
use crate::memory;
use crate::optimizer::UpdateKernels;
use crate::problem::Problem;
use crate::schedule::{PassKind, Slot};
use crate::stage::Stage;
use engine::layer::Accumulation;
use engine::task::{LabelId, LaneId, Moment, TaskGraph, TaskId};

/// The label of what the allocator reserves beside tensors.
pub const RESERVED: &str = "free in the allocator";

/// Labels of what comes and goes.
pub(super) struct Labels {
    whole: LabelId,
    gradients: LabelId,
    reduced: LabelId,
    lists: LabelId,
    reserved: LabelId,
    waiting: LabelId,
    /// What is reserved beside the logits of a lane's micro-batch.
    beside: BTreeMap<(LaneId, u32), i64>,
}

impl Labels {
    pub(super) fn of(graph: &mut TaskGraph) -> Self {
        let reserved = graph.label(RESERVED);
        graph.spare = Some(reserved);
        Self {
            whole: graph.label("whole parameters"),
            gradients: graph.label("gradients"),
            reduced: graph.label("gradients that are reduced"),
            lists: graph.label("lists of the optimizer"),
            reserved,
            waiting: graph.label("gradients that wait"),
            beside: BTreeMap::new(),
        }
    }
}

impl Builder<'_> {
    /// Stages of the chunks that a lane's rank holds.
    fn held_by(&self, problem: &Problem, pp: u32) -> Vec<Stage> {
        (0..problem.layout.chunks).map(|chunk| self.stages[stage_index(problem, pp, chunk)]).collect()
    }

    /// Parameters are whole from a forward to the end of its backward.
    pub(super) fn whole_parameters(&mut self, frame: &Frame<'_>, lead: TaskId) {
        let bytes = self.whole_bytes(frame);
        self.effect(lead, Moment::Start, self.sharded.whole, bytes);
    }

    fn whole_bytes(&self, frame: &Frame<'_>) -> i64 {
        let problem = self.at(frame.pp);
        if !memory::gradients_come_late(problem) || problem.uses_parameters_in_place() {
            return 0;
        }
        signed(Bytes(engine::memory::whole_parameters(&problem.shard(), &self.held_by(problem, frame.pp))))
    }

    /// What the allocator reserves beside tensors comes and goes with the logits.
    pub(super) fn reserved(&mut self, frame: &Frame<'_>, lane: LaneId, cp: usize, task: TaskId) {
        let problem = self.at(frame.pp);
        let (held, tokens) = (self.held_by(problem, frame.pp), frame.content.shares[cp].tokens);
        let shares = if self.has_gradients[lane.index()] { Shares::Added } else { Shares::Free };
        let beside = if tokens > 0 { of_other_streams(problem, &held, shares) } else { Bytes::ZERO };
        let bytes = signed(Bytes(engine::memory::reserved_bytes(&problem.shard(), &frame.stage, tokens)) + beside);
        self.sharded.beside.insert((lane, frame.slot.micro_batch), bytes);
        self.effect(task, Moment::Start, self.sharded.reserved, bytes);
    }

    /// They go, and the holes with them.
    pub(super) fn reserved_no_more(&mut self, frame: &Frame<'_>, lane: LaneId, task: TaskId) {
        let bytes = self.sharded.beside.remove(&(lane, frame.slot.micro_batch)).unwrap_or(0);
        self.effect(task, Moment::End, self.sharded.reserved, -bytes);
    }

    /// When a backward ends, all gradients are there, beside what the last ones are reduced from. Whole parameters are gone.
    pub(super) fn gradients(&mut self, frame: &Frame<'_>, lane: LaneId, end: TaskId) {
        let problem = self.at(frame.pp);
        if !memory::gradients_come_late(problem) {
            return;
        }
        let held = self.held_by(problem, frame.pp);
        self.effect(end, Moment::End, self.sharded.whole, -self.whole_bytes(frame));
        let made = memory::states(problem, &held).gradients;
        if self.added_up(frame, &held, end).waits() {
            return;
        }
        if !std::mem::replace(&mut self.has_gradients[lane.index()], true) {
            self.effect(end, Moment::End, self.sharded.gradients, signed(made));
        }
        let reduced = signed(self.reduced_last(problem, &held));
        self.effect(end, Moment::End, self.sharded.reduced, reduced);
        self.effect(end, Moment::End, self.sharded.reduced, -reduced);
    }

    /// Whole gradients wait from the end of the first backward to that of the last one, where a layer's go as its shares come.
    fn added_up(&mut self, frame: &Frame<'_>, held: &[Stage], end: TaskId) -> Accumulation {
        let bytes = signed(memory::waiting_gradients(self.at(frame.pp), held));
        let change = match frame.accumulation {
            Accumulation::Reduced | Accumulation::Added => 0,
            Accumulation::Kept => bytes,
            Accumulation::AddedAndReduced => -bytes,
        };
        self.effect(end, Moment::End, self.sharded.waiting, change);
        frame.accumulation
    }

    /// What the last gradients of the model's own weights are reduced from. Nothing is copied where a rank has its parameters as they lie there, and narrower copies
    /// take less.
    fn reduced_last(&self, problem: &Problem, held: &[Stage]) -> Bytes {
        if problem.uses_parameters_in_place() || !problem.execution.trains_weights() {
            return Bytes::ZERO;
        }
        let wide = engine::memory::reduced_last(&problem.shard(), held, u64::from(problem.layout.n_shards()));
        Bytes(wide * problem.reduced_dtype().bytes() / Dtype::Fp32.bytes())
    }

    /// An optimizer of single kernels makes a list of tensors as large as the parameters, in their format.
    pub(super) fn lists(&mut self, task: TaskId, stepped: f64) {
        let problem = self.problem;
        if problem.execution.framework.torch().is_some()
            && problem.execution.optimizer.kernels == UpdateKernels::Foreach
        {
            let bytes = signed(Bytes::from_f64(stepped * hw::real(problem.parameter_dtype().bytes())));
            self.effect(task, Moment::Start, self.sharded.lists, bytes);
            self.effect(task, Moment::End, self.sharded.lists, -bytes);
        }
    }
}

/// What becomes of the gradients of a slot in a rank's order, where they wait.
pub(super) fn accumulation(problem: &Problem, slots: &[Slot], position: usize) -> Accumulation {
    let makes = |slot: &Slot| matches!(slot.kind, PassKind::Backward | PassKind::Weight);
    if !makes(&slots[position]) || !problem.defers_gradients() {
        return Accumulation::Reduced;
    }
    let is_first = !slots[..position].iter().any(makes);
    let is_last = !slots[position + 1..].iter().any(makes);
    match (is_first, is_last) {
        (true, true) => Accumulation::Reduced,
        (true, false) => Accumulation::Kept,
        (false, false) => Accumulation::Added,
        (false, true) => Accumulation::AddedAndReduced,
    }
}

/// A rank's shares of gradients while a loss is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shares {
    /// Set to none behind the step before: their memory is free.
    Free,
    /// Held since the backward of an earlier micro-batch: those of a layer are made beside them and added.
    Added,
}

/// What the allocator keeps for streams of exchanges. A rank's shares of gradients are made on the stream that reduces, so nothing else takes their memory.
/// The buffer of embedding and head is held while the first layer is gathered (`all_gather_state`); later layers fit into it. A rank that uses its
/// parameters as they lie there exchanges nothing, so it has no such streams.
fn of_other_streams(problem: &Problem, held: &[Stage], shares: Shares) -> Bytes {
    if !memory::gradients_come_late(problem) || problem.uses_parameters_in_place() {
        return Bytes::ZERO;
    }
    // Gradients that wait for the end of a step are made beside their passes.
    let is_cut = problem.layout.zero < Zero::Gradients || problem.shards_gradients();
    let shares = match (is_cut, shares) {
        (false, _) => Bytes::ZERO,
        (true, Shares::Free) => memory::states(problem, held).gradients,
        (true, Shares::Added) => share_of_layer(problem, held),
    };
    let [layer, tables] = engine::memory::gathered_elements(&problem.shard(), held).map(hw::real);
    let gathered = tables * hw::real(problem.dtype.bytes()) + layer * problem.gathered_bytes();
    let buffers = if problem.layout.n_shards() > 1 { gathered } else { 0.0 };
    shares + Bytes::from_f64(buffers)
}

/// A rank's share of the gradients of one layer.
fn share_of_layer(problem: &Problem, held: &[Stage]) -> Bytes {
    let [layer, _] = engine::memory::gathered_elements(&problem.shard(), held);
    let is_trained = problem.execution.trains_weights();
    let bytes = if is_trained { layer * problem.held_gradient_dtype().bytes() } else { 0 };
    Bytes(bytes.div_ceil(u64::from(problem.layout.n_shards())))
}

fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).expect("memory stays below 2^63 bytes")
}
