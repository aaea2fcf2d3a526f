//! What data-parallel ranks do together: gradient reduction, optimizer, parameter gather.
//!
//! Gradients of a chunk are reduced in pieces, each behind the part of the last backward that made it, over the ranks that
//! hold the same parameters; experts have groups of their own. All ranks enter the reductions in one order: chunks from the
//! end of the path, pieces as backward makes them.
//!
//! Where several groups of ranks hold all states each (hybrid sharding), gradients are scattered inside a group and then added up over the ranks of
//! all groups that hold the same shard; parameters are gathered inside a group alone.
//!
//! With ZeRO 3 a rank never holds whole gradients, so every micro-batch's backward is reduced, not the last one alone (arXiv:1910.02054,
//! section 5.2); below it the scenario says so (`gradient_sync = "each_micro_batch"`).

use crate::problem::Problem;
use hw::Rank;

use super::exchange::tensor_group;
use super::{Builder, Column, Frame, GRADIENT_BUCKETS, MeetingKey, NO_MICRO_BATCH, stage_index};
use crate::layout::{Layout, Position, Zero};
use crate::muon::{Dealt, orthogonalised};
use crate::optimizer::Rule;
use crate::problem::GradientSync;
use crate::stage::{Stage, no_matrices, outside_layers};
use engine::task::{Collective, LaneId, Op, Ops, Role, TaskId};

/// Parameters of a stage that are held together: bytes of one number format, and the ranks that hold the same.
struct Held {
    parameters: f64,
    /// Those over which states are sharded: all that hold the same, or one of several groups of them.
    members: Vec<Rank>,
    /// Those that hold the same shard in all groups.
    copies: Vec<Rank>,
    is_expert: bool,
}

impl Held {
    /// As a rank of these holders sees them.
    fn of(parameters: f64, holders: &[Rank], layout: &Layout, rank: Rank, is_expert: bool) -> Self {
        let n_shards = layout.shards_of(u32::try_from(holders.len()).expect("ranks fit u32")).max(1) as usize;
        let own = holders.iter().position(|&holder| holder == rank).unwrap_or(0);
        let first = own / n_shards * n_shards;
        let members = holders.iter().copied().skip(first).take(n_shards).collect();
        let copies = holders.iter().copied().skip(own - first).step_by(n_shards).collect();
        Self { parameters, members, copies, is_expert }
    }
}

/// Parts between the gathers of a chunk's first layer and of the rest: those of experts lie between.
const REST: u32 = 2;

/// Which exchange of a role it is: equal on all ranks that take part.
#[derive(Clone, Copy)]
struct Turn {
    position: u32,
    part: u32,
    micro_batch: u32,
}

impl Turn {
    /// An exchange at the end of the step; slot positions of ZeRO 3 gathers stay far below its part.
    const fn at_end(position: u32) -> Self {
        Self { position, part: 1000, micro_batch: NO_MICRO_BATCH }
    }

    fn of_chunk(chunk: usize) -> Self {
        Self::at_end(u32::try_from(chunk).expect("chunks fit u32"))
    }
}

/// Operations of the optimizer on a rank that holds such stages, and how many parameters it updates.
pub(crate) fn update(problem: &Problem, stages: &[Stage], dealt: &Dealt) -> (Ops, f64) {
    let (shard, optimizer) = (problem.shard(), problem.execution.optimizer);
    let (mut held, mut stepped, mut others) = (0.0, 0.0, 0.0);
    let mut products = Ops::new();
    for stage in stages {
        let (shared, experts) = engine::memory::stage_parameters(&shard, stage);
        held += shared + experts;
        stepped += shared / f64::from(dealt.n_shards) + experts / f64::from(dealt.n_expert_shards);
        others += no_matrices(problem, stage) / f64::from(dealt.n_shards);
        if optimizer.rule == Rule::Muon {
            products.extend(orthogonalised(optimizer.muon, &shard, stage, dealt));
        }
    }
    let counts = [held, stepped, stepped - others];
    let mut ops = optimizer.step(problem.execution.framework, counts, problem.cluster.gpus_per_switch);
    ops.extend(products);
    (ops, stepped)
}

/// Ranks that hold the same non-expert parameters as a position.
fn holders(layout: &Layout, position: Position) -> Vec<Rank> {
    let positions = (0..layout.dp).flat_map(|dp| (0..layout.cp).map(move |cp| Position { dp, cp, ..position }));
    positions.map(|position| layout.rank(position)).collect()
}

/// Ranks that hold the same experts as a position.
fn expert_holders(layout: &Layout, position: Position) -> Vec<Rank> {
    let span = layout.expert_span().expect("the scenario reader checks expert groups");
    let like = |at: u32, n: u32, degree: u32| (at % n..degree).step_by(n as usize);
    let mut ranks = Vec::new();
    for dp in like(position.dp, span.dp, layout.dp) {
        for cp in like(position.cp, span.cp, layout.cp) {
            let cuts = like(position.tp / layout.expert_tp, span.tp, layout.tp / layout.expert_tp);
            let tps = cuts.map(|cut| cut * layout.expert_tp + position.tp % layout.expert_tp);
            ranks.extend(tps.map(|tp| layout.rank(Position { dp, cp, tp, ..position })));
        }
    }
    ranks
}

/// What a rank holds of a stage: all but routed experts, and these.
fn held(problem: &Problem, rank: Rank, stage: &Stage) -> [Held; 2] {
    let layout = &problem.layout;
    let position = layout.position(rank);
    let (shared, experts) = engine::memory::stage_parameters(&problem.shard(), stage);
    let of_experts = if experts > 0.0 { expert_holders(layout, position) } else { Vec::new() };
    [
        Held::of(shared, &holders(layout, position), layout, rank, false),
        Held::of(experts, &of_experts, layout, rank, true),
    ]
}

/// How gradients are reduced: each rank needs the sums of its part of the states alone.
fn reduction(problem: &Problem) -> Collective {
    if problem.layout.zero == Zero::Off { Collective::AllReduce } else { Collective::ReduceScatter }
}

/// Whether every rank of a step's end gathers what others have updated.
fn gathers_updated(problem: &Problem) -> bool {
    matches!(problem.layout.zero, Zero::OptimizerStates | Zero::Gradients)
}

/// What replicas of a stage do together around the update, where nothing hides it: reductions before it, and gathers behind. Ranks lie where `place` says.
pub(crate) fn around_update(
    problem: &Problem,
    (pp, stage): (u32, &Stage),
    place: &dyn Fn(Rank) -> Rank,
) -> [Vec<Op>; 2] {
    let rank = problem.layout.rank(Position { pp, ..Position::default() });
    let held = held(problem, rank, stage);
    let together = held.iter().filter(|held| held.parameters > 0.0 && held.members.len() > 1);
    let together: Vec<&Held> = together.filter(|_| problem.execution.trains_weights()).collect();
    let exchange = |kind, element: f64| {
        let of = |held: &&Held| {
            let members: Vec<Rank> = held.members.iter().map(|&rank| place(rank)).collect();
            let shape = problem.cluster.shape_of(&members);
            Op::Collective { kind, bytes: hw::whole(held.parameters * element), shape }
        };
        together.iter().map(of).collect()
    };
    let gathers = gathers_updated(problem);
    [
        exchange(reduction(problem), hw::real(problem.execution.gradient_dtype.bytes())),
        if gathers { exchange(Collective::AllGather, problem.gathered_bytes()) } else { Vec::new() },
    ]
}

/// Bytes of the gradients of a table that the first and the last pipeline rank share.
pub(crate) fn tied_bytes(problem: &Problem) -> u64 {
    let parameters = hw::real(problem.model.vocab * problem.model.hidden) / f64::from(problem.layout.tp);
    hw::whole(parameters * hw::real(problem.execution.gradient_dtype.bytes()))
}

impl Builder<'_> {
    fn held(&self, problem: &Problem, lane: LaneId, stage: &Stage) -> [Held; 2] {
        held(problem, self.graph.lanes[lane.index()].rank, stage)
    }

    /// Whether a step ends without gradients of weights.
    fn has_no_gradients(&self) -> bool {
        let execution = &self.problem.execution;
        execution.unit_times.is_some() || !execution.trains_weights()
    }

    /// Chunks of a lane from the end of the path, with their stages.
    fn chunks(&self, lane: LaneId) -> Vec<(usize, Stage)> {
        let pp = self.problem.layout.position(self.graph.lanes[lane.index()].rank).pp;
        let mut chunks: Vec<(usize, usize)> = (0..self.problem.layout.chunks)
            .map(|chunk| (stage_index(self.problem, pp, chunk), chunk as usize))
            .collect();
        chunks.sort_unstable_by(|a, b| b.cmp(a));
        chunks.into_iter().map(|(stage, chunk)| (chunk, self.stages[stage])).collect()
    }

    pub(super) fn lane_ids(&self) -> impl Iterator<Item = LaneId> + use<> {
        (0..u32::try_from(self.graph.lanes.len()).expect("lanes fit u32")).map(LaneId)
    }

    /// Reduces gradients; the optimizer waits for all of them.
    pub(super) fn sync_gradients(&mut self) {
        if self.has_no_gradients() {
            return;
        }
        let n_pieces = match self.problem.gradient_sync() {
            GradientSync::Overlapped | GradientSync::EachMicroBatch => GRADIENT_BUCKETS,
            GradientSync::AtEnd => 1,
        };
        for lane in self.lane_ids() {
            let end = self.tail(lane);
            let mut synced = Vec::new();
            for (chunk, stage) in self.chunks(lane) {
                for (index, piece) in (0_u32..).zip(stage.pieces(n_pieces)) {
                    let made = self.pieces[lane.index()][chunk].get(index as usize).copied();
                    let behind = self.problem.gradient_sync() != GradientSync::AtEnd;
                    let preds = made.filter(|_| behind).map_or_else(|| end.clone(), |task| vec![task]);
                    let chunk = u32::try_from(chunk).expect("chunks fit u32");
                    synced.extend(self.reduce(
                        self.problem,
                        lane,
                        &piece,
                        Turn::at_end(chunk * GRADIENT_BUCKETS + index),
                        &preds,
                    ));
                }
            }
            synced.extend(self.sync_tied(lane, &end));
            self.gate[lane.index()].extend(synced);
        }
    }

    /// Reductions of what a piece of a micro-batch's backward has just made.
    pub(super) fn reduce_early(&mut self, frame: &Frame<'_>, lane: LaneId, piece: &Stage, index: u32) {
        let made = self.last[lane.index()].expect("the piece has just computed");
        let turn = Turn { position: frame.position, part: 2000 + 2 * index, micro_batch: frame.slot.micro_batch };
        self.reduce(self.at(frame.pp), lane, piece, turn, &[made]);
    }

    /// Reductions of a piece's gradients.
    fn reduce(&mut self, problem: &Problem, lane: LaneId, piece: &Stage, turn: Turn, preds: &[TaskId]) -> Vec<TaskId> {
        let kind = reduction(problem);
        let element = hw::real(problem.execution.gradient_dtype.bytes());
        let mut reduced = Vec::new();
        for held in self.held(problem, lane, piece).into_iter().filter(|held| held.parameters > 0.0) {
            let bytes = held.parameters * element;
            let mut behind = preds.to_vec();
            if held.members.len() > 1 {
                let task = self.together(lane, Role::GradientSync, kind, hw::whole(bytes), turn, &held, preds);
                behind = vec![task];
                reduced.push(task);
            }
            if held.copies.len() > 1 {
                reduced.push(self.add_copies(lane, bytes / hw::real(held.members.len() as u64), turn, &held, &behind));
            }
        }
        reduced
    }

    /// Adds up the gradients of a shard over the groups that hold it.
    fn add_copies(&mut self, lane: LaneId, bytes: f64, turn: Turn, held: &Held, preds: &[TaskId]) -> TaskId {
        let copies =
            Held { parameters: 0.0, members: held.copies.clone(), copies: Vec::new(), is_expert: held.is_expert };
        self.together(lane, Role::GradientSync, Collective::AllReduce, hw::whole(bytes), turn, &copies, preds)
    }

    #[expect(clippy::too_many_arguments, reason = "a collective is described by all of these")]
    fn together(
        &mut self,
        lane: LaneId,
        role: Role,
        kind: Collective,
        bytes: u64,
        turn: Turn,
        held: &Held,
        preds: &[TaskId],
    ) -> TaskId {
        let op = self.collective(kind, bytes, &held.members, 1);
        let group = self.graph.add_group(&held.members);
        let Turn { position, part, micro_batch } = turn;
        let part = part + u32::from(held.is_expert);
        let meeting = self.meeting(MeetingKey { role, group, position, part });
        self.join(meeting, op, lane, role, micro_batch, preds)
    }

    /// Gradients of a table that the first and the last pipeline rank share.
    fn sync_tied(&mut self, lane: LaneId, preds: &[TaskId]) -> Option<TaskId> {
        let (layout, model) = (&self.problem.layout, &self.problem.model);
        let position = layout.position(self.graph.lanes[lane.index()].rank);
        let ends: Vec<u32> = (0..layout.pp)
            .filter(|&pp| {
                let stages = (0..layout.chunks).map(|chunk| self.stages[stage_index(self.problem, pp, chunk)]);
                stages.into_iter().any(|stage| stage.first || stage.last)
            })
            .collect();
        if !model.tied || ends.len() < 2 || !ends.contains(&position.pp) {
            return None;
        }
        let members: Vec<Rank> = ends.iter().map(|&pp| layout.rank(Position { pp, ..position })).collect();
        let bytes = tied_bytes(self.problem);
        let held = Held { parameters: 0.0, members, copies: Vec::new(), is_expert: false };
        Some(self.together(
            lane,
            Role::GradientSync,
            Collective::AllReduce,
            bytes,
            Turn::at_end(u32::MAX),
            &held,
            preds,
        ))
    }

    /// The optimizer on every lane; with ZeRO 1 and 2 every rank then ends the step with all parameters.
    pub(super) fn optimizer(&mut self) {
        if self.problem.execution.unit_times.is_some() || !self.problem.execution.trains_weights() {
            return;
        }
        let layout = self.problem.layout;
        for lane in self.lane_ids() {
            let rank = self.graph.lanes[lane.index()].rank;
            let tensor = self.problem.cluster.shape_of(&tensor_group(self.problem, self.problem.position(rank)));
            let dealt = Dealt::over(&layout, tensor);
            let stages: Vec<Stage> = self.chunks(lane).into_iter().map(|(_, stage)| stage).collect();
            let (ops, stepped) = update(self.problem, &stages, &dealt);
            let task = self.compute(lane, Role::Optimizer, NO_MICRO_BATCH, ops, &[]);
            self.lists(task, stepped);
        }
        if self.gathers_parameters() && !self.problem.execution.overlap.parameter_gather {
            for lane in self.lane_ids() {
                let preds = self.tail(lane);
                for (chunk, stage) in self.chunks(lane) {
                    self.gather_chunk(lane, Turn::of_chunk(chunk), &stage, &preds);
                }
            }
        }
    }

    fn gathers_parameters(&self) -> bool {
        gathers_updated(self.problem) && !self.has_no_gradients()
    }

    /// With the overlap, the step begins with the gather of each chunk's parameters, first stage first. A chunk computes its first layer when that
    /// one's are there, and the rest come beside it, as Megatron-Core's buckets do (`start_param_sync`, one bucket ahead).
    pub(super) fn gather_ahead(&mut self) {
        if !self.gathers_parameters() || !self.problem.execution.overlap.parameter_gather {
            return;
        }
        for lane in self.lane_ids() {
            for (chunk, stage) in self.chunks(lane).into_iter().rev() {
                let turn = Turn::of_chunk(chunk);
                let [first, rest] = stage.first_layer_and_rest();
                let first = self.gather_chunk(lane, turn, &first, &[]);
                let rest = self.gather_chunk(lane, Turn { part: turn.part + REST, ..turn }, &rest, &[]);
                self.ahead[lane.index()][chunk] = [first, rest];
            }
        }
    }

    /// With ZeRO 3 the parameters of the stage, first layer (with the embedding in forward, with the head in backward) and rest, gathered
    /// at most one pass ahead. Experts come behind the others of a layer, from the ranks that hold the same ones.
    pub(super) fn gather(&mut self, frame: &Frame<'_>, column: &Column, first_part: u32) -> Vec<[TaskId; 2]> {
        let problem = self.at(frame.pp);
        if problem.layout.zero < Zero::Parameters || problem.execution.unit_times.is_some() {
            return Vec::new();
        }
        let held = self.held(problem, column.lanes[0], &frame.stage);
        let Some(members) = held.iter().map(|held| &held.members).find(|members| members.len() > 1) else {
            return Vec::new();
        };
        let group = self.graph.add_group(members);
        let ops = self.gathers(frame, &held, first_part == 0).map(|ops| self.op(Op::Sequence(ops)));
        let lanes = column.lanes.clone();
        let mut tasks = Vec::with_capacity(lanes.len());
        for lane in lanes {
            let tail = self.tail(lane);
            let mut part = first_part;
            tasks.push(ops.map(|op| {
                let role = Role::ParameterGather;
                let meeting = self.meeting(MeetingKey { role, group, position: frame.position, part });
                part += 1;
                let micro_batch =
                    if frame.content.shares[0].tokens == 0 { NO_MICRO_BATCH } else { frame.slot.micro_batch };
                self.join(meeting, op, lane, role, micro_batch, &tail)
            }));
        }
        tasks
    }

    /// What gathers the first layer of a stage, with what lies before or behind all layers, and what gathers the rest.
    fn gathers(&self, frame: &Frame<'_>, held: &[Held; 2], is_forward: bool) -> [Ops; 2] {
        let (problem, stage) = (self.at(frame.pp), &frame.stage);
        let (first, last) = (stage.first && is_forward, stage.last && !is_forward);
        let whole = gathered(problem, stage);
        let layers = gathered(problem, &Stage { first: false, last: false, ..*stage });
        let end = gathered(problem, &Stage { first, last, ..Stage::default() });
        let n_layers = stage.n_layers().max(1);
        let mut ops = [Ops::new(), Ops::new()];
        for (part, held) in held.iter().enumerate().filter(|(_, held)| held.members.len() > 1) {
            let [all, layers, end] = [whole, layers, end].map(|bytes| hw::whole(bytes[part]));
            let lead = if n_layers == 1 { all } else { all.min(layers / u64::from(n_layers) + end) };
            let rest = (all - lead) / u64::from((n_layers - 1).max(1));
            let shape = problem.cluster.shape_of(&held.members);
            let [first, others] =
                [lead, rest].map(|bytes| Op::Collective { kind: Collective::AllGather, bytes, shape });
            ops[0].push((first, 1));
            ops[1].push((others, n_layers - 1));
        }
        ops
    }

    fn gather_chunk(&mut self, lane: LaneId, turn: Turn, stage: &Stage, preds: &[TaskId]) -> Vec<TaskId> {
        let element = self.problem.gathered_bytes();
        let held = self.held(self.problem, lane, stage);
        held.into_iter()
            .filter(|held| held.parameters > 0.0 && held.members.len() > 1)
            .map(|held| {
                let bytes = hw::whole(held.parameters * element);
                self.together(lane, Role::ParameterGather, Collective::AllGather, bytes, turn, &held, preds)
            })
            .collect()
    }
}

/// Bytes of a stage's parameters as they are gathered, outside of experts and of experts. Embedding and head stay wide beside packed weights.
fn gathered(problem: &Problem, stage: &Stage) -> [f64; 2] {
    let (shared, experts) = engine::memory::stage_parameters(&problem.shard(), stage);
    let [shared, experts] = [shared, experts].map(|parameters| parameters * problem.gathered_bytes());
    let is_packed = problem.shard().frozen().is_packed();
    let wide = if is_packed { hw::real(problem.dtype.bytes()) - problem.gathered_bytes() } else { 0.0 };
    [shared + outside_layers(problem, stage) * wide, experts]
}

#[cfg(test)]
mod tests;
