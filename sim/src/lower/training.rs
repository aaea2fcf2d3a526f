//! One optimizer step as a task graph: micro-batches of every data-parallel group, context exchange, gradient
//! reduction, optimizer.
//!
//! Folding. Layers are alike, so a micro-batch has one lead task (the operations before the first exchange), one
//! exchange task for all layers, and compute tasks for all layers. Between two exchanges a rank does "attention, rest of
//! the layer, start of the next layer"; this cycle stands as a whole behind the exchange, so the slowest rank of the
//! cycle sets the pace exactly as it does layer by layer. What folding gives up is the drift of ranks inside one layer.
//!
//! Overlap (arXiv:2505.19609, section 4.1): the exchange of sharded sequences hides behind attention of local
//! sequences; sharded attention comes after it. With a ring the exchange hides behind sharded attention, one hop ahead.
//! Gradients of the last micro-batch are reduced in buckets of layers behind its backward. With ZeRO 3 every rank joins
//! every parameter gather, ranks without a micro-batch too; the gather of the first layer is exposed and the rest overlaps.

mod attention;

use std::collections::BTreeMap;

use hw::Rank;

use crate::layout::{ContextExchange, Zero};
use crate::lower::layer::{self, Ops};
use crate::memory;
use crate::plan::{MicroBatch, Place, Plan};
use crate::problem::{GradientSync, Problem, Recompute};
use crate::task::{
    Collective, Document, LabelId, MeetingId, MemoryEffect, Moment, Op, OpId, Pass, Role, Stream, Task, TaskGraph,
    TaskId,
};

/// Buckets in which overlapped gradients are reduced.
const GRADIENT_BUCKETS: u32 = 4;
const NO_MICRO_BATCH: u32 = u32::MAX;

/// Task graph of one step of a plan.
///
/// # Panics
/// When the plan has no such step; `check` holds a plan against its problem first.
#[must_use]
pub fn lower(problem: &Problem, plan: &Plan, step_index: usize) -> TaskGraph {
    let mut builder = Builder::new(problem);
    let groups = &plan.steps[step_index].groups;
    let n_rounds = groups.iter().map(Vec::len).max().unwrap_or(0);
    let gathers = builder.parameter_gathers(n_rounds);
    let buckets = builder.gradient_buckets();
    for (dp_index, micro_batches) in (0_u32..).zip(groups) {
        let group = Group::new(problem, dp_index);
        // Parameter gathers and gradient reductions share a stream, so all ranks must enter them in one order:
        // with ZeRO 3 only a micro-batch of the last round can reduce behind its backward.
        let behind_backward = !micro_batches.is_empty() && (gathers.is_empty() || micro_batches.len() == n_rounds);
        for round in 0..n_rounds {
            let gather = gathers.get(round).copied();
            match micro_batches.get(round) {
                Some(micro_batch) => {
                    let reduces = behind_backward && round + 1 == micro_batches.len();
                    builder.micro_batch(&group, round, micro_batch, gather, if reduces { &buckets } else { &[] });
                }
                None => builder.join_gathers(&group, gather),
            }
        }
        if !behind_backward {
            builder.sync_late(&group, &buckets);
        }
        builder.finish(&group, &buckets);
    }
    builder.optimizer_step();
    builder.graph
}

/// Ranks of one data-parallel group, in context order.
struct Group {
    ranks: Vec<Rank>,
}

impl Group {
    fn new(problem: &Problem, dp_index: u32) -> Self {
        Self { ranks: (0..problem.layout.cp).map(|cp_index| problem.layout.rank(dp_index, cp_index)).collect() }
    }
}

/// A reduction of the gradients of `n_layers` layers by all ranks.
struct Bucket {
    meeting: MeetingId,
    n_layers: u32,
    op: OpId,
}

/// The four parameter gathers of a micro-batch: first layer and rest, forward and backward.
type Gathers = [(MeetingId, OpId); 4];

/// What one rank computes in a micro-batch.
struct Share {
    tokens: u64,
    local: Vec<Document>,
    sharded: Vec<Document>,
}

/// Content of a micro-batch seen from its group.
struct Content {
    index: u32,
    shares: Vec<Share>,
    /// Tokens of all sharded sequences.
    sharded_tokens: u64,
}

struct Builder<'a> {
    problem: &'a Problem,
    graph: TaskGraph,
    ops: BTreeMap<Op, OpId>,
    n_layers: u32,
    everyone: Vec<Rank>,
    activations: LabelId,
    logits: LabelId,
    /// Last compute task of each rank.
    last: Vec<Option<TaskId>>,
    /// Gradient tasks of each rank.
    synced: Vec<Vec<TaskId>>,
}

impl<'a> Builder<'a> {
    fn new(problem: &'a Problem) -> Self {
        let layout = &problem.layout;
        let mut graph = TaskGraph::new(layout.n_ranks());
        let states = memory::states(problem);
        let resident = [
            ("reserved", problem.reserved_memory),
            ("parameters", states.parameters),
            ("gradients", states.gradients),
            ("optimizer states", states.optimizer),
        ]
        .map(|(name, bytes)| (graph.label(name), bytes.0));
        graph.resident.fill(resident.to_vec());
        let everyone: Vec<Rank> =
            (0..layout.dp).flat_map(|dp| (0..layout.cp).map(move |cp| layout.rank(dp, cp))).collect();
        let n_ranks = everyone.len();
        Self {
            problem,
            ops: BTreeMap::new(),
            n_layers: u32::try_from(problem.model.n_layers).expect("layer counts are checked by the model reader"),
            activations: graph.label("activations"),
            logits: graph.label("logits"),
            graph,
            everyone,
            last: vec![None; n_ranks],
            synced: vec![Vec::new(); n_ranks],
        }
    }

    fn op(&mut self, op: Op) -> OpId {
        if let Some(&id) = self.ops.get(&op) {
            return id;
        }
        let id = self.graph.add_op(op.clone());
        self.ops.insert(op, id);
        id
    }

    fn collective(&mut self, kind: Collective, bytes: u64, members: &[Rank], repeat: u32) -> OpId {
        let shape = self.problem.cluster.shape_of(members);
        self.op(Op::Sequence(vec![(Op::Collective { kind, bytes, shape }, repeat)]))
    }

    fn network(&self, members: &[Rank]) -> Stream {
        if self.problem.cluster.shape_of(members).n_nodes == 1 { Stream::IntraNode } else { Stream::InterNode }
    }

    fn compute(&mut self, rank: Rank, role: Role, micro_batch: u32, ops: Ops, preds: &[TaskId]) -> TaskId {
        let op = self.op(Op::Sequence(ops));
        let task = Task { op, rank, stream: Stream::Compute, role, micro_batch, meeting: None };
        let id = self.graph.add_task(task, preds);
        self.last[rank.index()] = Some(id);
        id
    }

    fn join(
        &mut self,
        meeting: MeetingId,
        op: OpId,
        rank: Rank,
        role: Role,
        micro_batch: u32,
        preds: &[TaskId],
    ) -> TaskId {
        let stream = self.network(&self.graph.meetings[meeting.0 as usize]);
        self.graph.add_task(Task { op, rank, stream, role, micro_batch, meeting: Some(meeting) }, preds)
    }

    fn effect(&mut self, task: TaskId, moment: Moment, label: LabelId, delta_bytes: i64) {
        if delta_bytes != 0 {
            self.graph.add_effect(MemoryEffect { task, moment, label, delta_bytes });
        }
    }

    fn parameter_gathers(&mut self, n_rounds: usize) -> Vec<Gathers> {
        if self.problem.layout.zero < Zero::Parameters || self.everyone.len() < 2 {
            return Vec::new();
        }
        let bytes = self.problem.model.n_parameters() * self.problem.dtype.bytes();
        let layer_bytes = bytes / u64::from(self.n_layers);
        let members = self.everyone.clone();
        let first = self.collective(Collective::AllGather, layer_bytes, &members, 1);
        let rest = self.collective(Collective::AllGather, layer_bytes, &members, self.n_layers - 1);
        (0..n_rounds)
            .map(|_| [first, rest, first, rest].map(|op| (self.graph.add_meeting(members.clone()), op)))
            .collect()
    }

    fn gradient_buckets(&mut self) -> Vec<Bucket> {
        if self.everyone.len() < 2 {
            return Vec::new();
        }
        let n_buckets = match self.problem.gradient_sync {
            GradientSync::Overlapped => GRADIENT_BUCKETS.min(self.n_layers),
            GradientSync::AtEnd => 1,
        };
        let kind =
            if self.problem.layout.zero == Zero::Off { Collective::AllReduce } else { Collective::ReduceScatter };
        let bytes = self.problem.model.n_parameters() * self.problem.dtype.bytes();
        let members = self.everyone.clone();
        (0..n_buckets)
            .map(|bucket| {
                let n_layers = self.n_layers / n_buckets + u32::from(bucket < self.n_layers % n_buckets);
                let share = bytes * u64::from(n_layers) / u64::from(self.n_layers);
                let op = self.collective(kind, share, &members, 1);
                Bucket { meeting: self.graph.add_meeting(members.clone()), n_layers, op }
            })
            .collect()
    }

    fn content(&self, index: usize, micro_batch: &MicroBatch) -> Content {
        let cp = self.problem.layout.cp;
        let mut shares: Vec<Share> = (0..cp)
            .map(|cp_index| Share {
                tokens: micro_batch.tokens_on(cp_index, cp),
                local: Vec::new(),
                sharded: Vec::new(),
            })
            .collect();
        let mut sharded_tokens = 0;
        for placement in &micro_batch.sequences {
            match placement.place {
                Place::Local(cp_index) => {
                    shares[cp_index as usize].local.push(Document::causal(placement.tokens));
                }
                Place::Sharded if cp == 1 => shares[0].local.push(Document::causal(placement.tokens)),
                Place::Sharded => {
                    sharded_tokens += placement.tokens;
                    let document = self.sharded_document(placement.tokens);
                    shares.iter_mut().for_each(|share| share.sharded.push(document));
                }
            }
        }
        let index = u32::try_from(index).expect("micro-batches fit u32");
        Content { index, shares, sharded_tokens }
    }

    /// A sharded sequence as the attention kernel of one rank sees it.
    fn sharded_document(&self, tokens: u64) -> Document {
        let cp = u64::from(self.problem.layout.cp);
        match self.problem.layout.exchange {
            ContextExchange::Gather => Document::zigzag(tokens, cp),
            ContextExchange::Ulysses => Document::causal(tokens),
            // One of the `cp` hops: this rank's queries against one block of keys.
            ContextExchange::Ring => {
                let share = Document::zigzag(tokens, cp);
                Document { keys: tokens.div_ceil(cp), pairs: share.pairs.div_ceil(cp), ..share }
            }
        }
    }

    fn micro_batch(
        &mut self,
        group: &Group,
        index: usize,
        micro_batch: &MicroBatch,
        gathers: Option<Gathers>,
        buckets: &[Bucket],
    ) {
        let content = self.content(index, micro_batch);
        let begun = self.forward(group, &content, gathers.map(|gathers| [gathers[0], gathers[1]]));
        let whole = [Bucket { meeting: MeetingId(0), n_layers: self.n_layers, op: OpId(0) }];
        let at_end = self.problem.gradient_sync == GradientSync::AtEnd;
        let pieces = if buckets.is_empty() { &whole[..] } else { buckets };
        let mut gather = gathers.map(|gathers| [gathers[2], gathers[3]]);
        for (piece_index, piece) in pieces.iter().enumerate() {
            if self.problem.recompute == Recompute::Full {
                self.layers_forward(group, &content, piece.n_layers, Role::Recompute, Vec::new());
            }
            let ends = self.backward(group, &content, piece.n_layers, piece_index == 0, gather.take());
            if !buckets.is_empty() && !at_end {
                self.sync(group, piece, &ends);
            }
        }
        for (cp_index, &rank) in group.ranks.iter().enumerate() {
            let bytes = begun[cp_index];
            let last = self.last[rank.index()].expect("the micro-batch has just computed");
            self.effect(last, Moment::End, self.activations, -bytes);
        }
        if !buckets.is_empty() && at_end {
            let ends: Vec<_> = group.ranks.iter().filter_map(|rank| self.last[rank.index()]).collect();
            self.sync(group, &buckets[0], &ends);
        }
    }

    /// Forward of all layers; returns the activation bytes of each rank.
    fn forward(&mut self, group: &Group, content: &Content, gathers: Option<[(MeetingId, OpId); 2]>) -> Vec<i64> {
        let per_token = memory::activation_bytes_per_token(self.problem);
        let logit_per_token = memory::logit_bytes_per_token(self.problem);
        let gathered = self.gather(group, content.index, gathers);
        let mut ends = self.layers_forward(group, content, self.n_layers, Role::Forward, gathered);
        let mut bytes_of = Vec::with_capacity(group.ranks.len());
        for (cp_index, &rank) in group.ranks.iter().enumerate() {
            let tokens = content.shares[cp_index].tokens;
            let (lead, end) = ends[cp_index];
            let bytes = i64::try_from(tokens * per_token).expect("activations stay below 2^63 bytes");
            self.effect(lead, Moment::Start, self.activations, bytes);
            let head = layer::head(self.problem, tokens, Pass::Forward);
            let task = self.compute(rank, Role::Forward, content.index, head, &[end]);
            let logit_bytes = i64::try_from(tokens * logit_per_token).expect("logits stay below 2^63 bytes");
            self.effect(task, Moment::Start, self.logits, logit_bytes);
            ends[cp_index].1 = task;
            bytes_of.push(bytes);
        }
        bytes_of
    }

    /// Forward of `n_layers` layers; returns (first, last) task of each rank.
    fn layers_forward(
        &mut self,
        group: &Group,
        content: &Content,
        n_layers: u32,
        role: Role,
        gathered: Vec<[TaskId; 2]>,
    ) -> Vec<(TaskId, TaskId)> {
        let problem = self.problem;
        let mut leads = Vec::with_capacity(group.ranks.len());
        for (cp_index, &rank) in group.ranks.iter().enumerate() {
            let tokens = content.shares[cp_index].tokens;
            let mut ops = if role == Role::Forward { layer::embedding(problem, tokens) } else { Vec::new() };
            ops.extend(layer::host(problem, n_layers));
            ops.extend(layer::before_attention(problem, tokens, Pass::Forward));
            let preds: Vec<TaskId> = gathered.get(cp_index).map(|pair| pair[0]).into_iter().collect();
            leads.push(self.compute(rank, role, content.index, ops, &preds));
        }
        let attended = self.attention(group, content, n_layers, Pass::Forward, role, &leads);
        let mut ends = Vec::with_capacity(group.ranks.len());
        for (cp_index, &rank) in group.ranks.iter().enumerate() {
            let tokens = content.shares[cp_index].tokens;
            let mut ops = attended.after[cp_index].clone();
            ops.extend(layer::repeated(&layer::after_attention(problem, tokens, Pass::Forward), n_layers));
            ops.extend(layer::repeated(&layer::before_attention(problem, tokens, Pass::Forward), n_layers - 1));
            let mut preds: Vec<TaskId> = attended.preds[cp_index].clone();
            preds.extend(gathered.get(cp_index).map(|pair| pair[1]));
            let end = self.compute(rank, role, content.index, ops, &preds);
            ends.push((leads[cp_index], end));
        }
        ends
    }

    /// Backward of `n_layers` layers; the first piece starts with the head. Returns the last task of each rank.
    fn backward(
        &mut self,
        group: &Group,
        content: &Content,
        n_layers: u32,
        first: bool,
        gathers: Option<[(MeetingId, OpId); 2]>,
    ) -> Vec<TaskId> {
        let problem = self.problem;
        let logit_per_token = memory::logit_bytes_per_token(problem);
        let gathered = self.gather(group, content.index, gathers);
        let mut leads = Vec::with_capacity(group.ranks.len());
        for (cp_index, &rank) in group.ranks.iter().enumerate() {
            let tokens = content.shares[cp_index].tokens;
            let again = layer::repeated(&layer::selective_recompute(problem, tokens), n_layers);
            if !again.is_empty() {
                self.compute(rank, Role::Recompute, content.index, again, &[]);
            }
            let mut ops = if first { layer::head(problem, tokens, Pass::Backward) } else { Vec::new() };
            ops.extend(layer::host(problem, n_layers));
            ops.extend(layer::after_attention(problem, tokens, Pass::Backward));
            let preds: Vec<TaskId> = gathered.get(cp_index).map(|pair| pair[0]).into_iter().collect();
            let lead = self.compute(rank, Role::Backward, content.index, ops, &preds);
            if first {
                let logit_bytes = i64::try_from(tokens * logit_per_token).expect("logits stay below 2^63 bytes");
                self.effect(lead, Moment::End, self.logits, -logit_bytes);
            }
            leads.push(lead);
        }
        let attended = self.attention(group, content, n_layers, Pass::Backward, Role::Backward, &leads);
        let mut ends = Vec::with_capacity(group.ranks.len());
        for (cp_index, &rank) in group.ranks.iter().enumerate() {
            let tokens = content.shares[cp_index].tokens;
            let mut ops = attended.after[cp_index].clone();
            ops.extend(layer::repeated(&layer::before_attention(problem, tokens, Pass::Backward), n_layers));
            ops.extend(layer::repeated(&layer::after_attention(problem, tokens, Pass::Backward), n_layers - 1));
            let mut preds: Vec<TaskId> = attended.preds[cp_index].clone();
            preds.extend(gathered.get(cp_index).map(|pair| pair[1]));
            ends.push(self.compute(rank, Role::Backward, content.index, ops, &preds));
        }
        ends
    }

    fn gather(&mut self, group: &Group, micro_batch: u32, gathers: Option<[(MeetingId, OpId); 2]>) -> Vec<[TaskId; 2]> {
        let Some(gathers) = gathers else {
            return Vec::new();
        };
        let ranks = group.ranks.clone();
        ranks
            .into_iter()
            .map(|rank| {
                // A gather runs at most one pass ahead: it waits for the compute before it.
                let preds: Vec<TaskId> = self.last[rank.index()].into_iter().collect();
                gathers.map(|(meeting, op)| self.join(meeting, op, rank, Role::ParameterGather, micro_batch, &preds))
            })
            .collect()
    }

    fn join_gathers(&mut self, group: &Group, gathers: Option<Gathers>) {
        if let Some(gathers) = gathers {
            self.gather(group, NO_MICRO_BATCH, Some([gathers[0], gathers[1]]));
            self.gather(group, NO_MICRO_BATCH, Some([gathers[2], gathers[3]]));
        }
    }

    fn sync(&mut self, group: &Group, bucket: &Bucket, ends: &[TaskId]) {
        for (cp_index, &rank) in group.ranks.iter().enumerate() {
            let preds: Vec<TaskId> = ends.get(cp_index).copied().into_iter().collect();
            let task = self.join(bucket.meeting, bucket.op, rank, Role::GradientSync, NO_MICRO_BATCH, &preds);
            self.synced[rank.index()].push(task);
        }
    }

    /// Reductions behind everything that the group's ranks compute, if they compute at all.
    fn sync_late(&mut self, group: &Group, buckets: &[Bucket]) {
        let ends: Vec<TaskId> = group.ranks.iter().filter_map(|rank| self.last[rank.index()]).collect();
        for bucket in buckets {
            self.sync(group, bucket, &ends);
        }
    }

    /// Optimizer of a group's ranks, behind their gradient reductions.
    fn finish(&mut self, group: &Group, buckets: &[Bucket]) {
        let sharded = self.problem.layout.zero >= Zero::OptimizerStates && !buckets.is_empty();
        let shards = if sharded { u32::try_from(self.everyone.len()).expect("ranks fit u32") } else { 1 };
        for &rank in &group.ranks {
            let preds = std::mem::take(&mut self.synced[rank.index()]);
            let ops = layer::optimizer(self.problem, shards);
            self.compute(rank, Role::Optimizer, NO_MICRO_BATCH, ops, &preds);
        }
    }

    /// With ZeRO 1 and 2 every rank ends the step with all parameters.
    fn optimizer_step(&mut self) {
        let zero = self.problem.layout.zero;
        if !matches!(zero, Zero::OptimizerStates | Zero::Gradients) || self.everyone.len() < 2 {
            return;
        }
        let bytes = self.problem.model.n_parameters() * self.problem.dtype.bytes();
        let members = self.everyone.clone();
        let op = self.collective(Collective::AllGather, bytes, &members, 1);
        let meeting = self.graph.add_meeting(members.clone());
        for rank in members {
            let preds: Vec<TaskId> = self.last[rank.index()].into_iter().collect();
            self.join(meeting, op, rank, Role::ParameterGather, NO_MICRO_BATCH, &preds);
        }
    }
}
