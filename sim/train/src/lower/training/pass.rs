//! Tasks of one slot of a pipeline rank: forward, backward, or its halves.
//!
//! A slot's first task waits for the message of the stage before (after, in backward); its tensor and expert exchanges stand
//! behind its computation and hold back what follows on the lane. `messages.rs` has what leaves.

use super::known::{OpKey, Part};
use super::layers::{after_attention, all_but_one_layer, one_layer};
use std::collections::BTreeMap;

use super::{Builder, Column, Frame, GRADIENT_BUCKETS, Share, Streamed, attention, beside, hybrid, lead, torch};
use crate::activation::Activation;
use crate::pipeline_states;
use crate::problem::{GradientSync, Problem, Recompute};
use crate::schedule::{PassKind, Slot};
use crate::stage::Stage;
use engine::layer;
use engine::task::Ops;
use engine::task::{CopyKind, LaneId, Moment, Op, Pass, Role, Stream, Task, TaskId};

/// What each stage of each micro-batch waits for, as far as it is lowered: one task list entry per lane of the rank.
pub(super) struct Done {
    forward: Vec<Option<Vec<TaskId>>>,
    input: Vec<Option<Vec<TaskId>>>,
    n_stages: usize,
    n_micro_batches: usize,
}

impl Done {
    pub(super) fn new(n_stages: usize, n_micro_batches: usize) -> Self {
        let none = || vec![None; n_stages * n_micro_batches];
        Self { forward: none(), input: none(), n_stages, n_micro_batches }
    }

    fn at(&self, stage: usize, slot: Slot) -> usize {
        stage * self.n_micro_batches + slot.micro_batch as usize
    }

    pub(super) fn ready(&self, slot: Slot, stage: usize) -> bool {
        match slot.kind {
            PassKind::Forward => stage == 0 || self.forward[self.at(stage - 1, slot)].is_some(),
            PassKind::Backward | PassKind::Input if stage + 1 == self.n_stages => {
                self.forward[self.at(stage, slot)].is_some()
            }
            PassKind::Backward | PassKind::Input => self.input[self.at(stage + 1, slot)].is_some(),
            PassKind::Weight => self.input[self.at(stage, slot)].is_some(),
        }
    }

    /// Messages that a slot waits for, one per lane; none where its own stream orders it.
    fn messages(&mut self, slot: Slot, stage: usize) -> Vec<TaskId> {
        let at = match slot.kind {
            PassKind::Forward if stage > 0 => {
                &mut self.forward[(stage - 1) * self.n_micro_batches + slot.micro_batch as usize]
            }
            PassKind::Backward | PassKind::Input if stage + 1 < self.n_stages => {
                &mut self.input[(stage + 1) * self.n_micro_batches + slot.micro_batch as usize]
            }
            _ => return Vec::new(),
        };
        at.replace(Vec::new()).unwrap_or_default()
    }

    fn sent(&mut self, slot: Slot, stage: usize, messages: Vec<TaskId>) {
        let at = self.at(stage, slot);
        match slot.kind {
            PassKind::Forward => self.forward[at] = Some(messages),
            PassKind::Backward | PassKind::Input => self.input[at] = Some(messages),
            PassKind::Weight => {}
        }
    }
}

/// What a pass that makes gradients of weights is the last of, on its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastOf {
    /// A flush within the step.
    Flush,
    /// The step.
    Step,
}

/// The last passes of a rank's chunks that make gradients of weights, by their positions.
pub(super) fn last_passes(slots: &[Slot], problem: &Problem) -> BTreeMap<u32, LastOf> {
    let every = problem.flush_every().unwrap_or(usize::MAX);
    let mut of_flush: BTreeMap<(u32, usize), u32> = BTreeMap::new();
    for (position, slot) in (0_u32..).zip(slots) {
        if matches!(slot.kind, PassKind::Backward | PassKind::Weight) {
            of_flush.insert((slot.chunk, slot.micro_batch as usize / every), position);
        }
    }
    let mut of_step: BTreeMap<u32, u32> = BTreeMap::new();
    for (&(chunk, _), &position) in &of_flush {
        let last = of_step.entry(chunk).or_default();
        *last = position.max(*last);
    }
    let last_of =
        |position: u32| if of_step.values().any(|last| *last == position) { LastOf::Step } else { LastOf::Flush };
    of_flush.into_values().map(|position| (position, last_of(position))).collect()
}

const fn pass_of(kind: PassKind) -> Pass {
    match kind {
        PassKind::Forward => Pass::Forward,
        _ => Pass::Backward,
    }
}

impl Builder<'_> {
    /// Lowers one slot for all lanes of its rank.
    pub(super) fn slot(
        &mut self,
        frame: &Frame<'_>,
        last: Option<LastOf>,
        stage: usize,
        next: Option<u32>,
        done: &mut Done,
    ) {
        let messages = done.messages(frame.slot, stage);
        let n_cp = self.at(frame.pp).layout.cp as usize;
        let mut sent = Vec::new();
        for tp in 0..self.lanes.n_tp {
            let frame = Frame { tp, ..*frame };
            let column = self.column(&frame);
            let of_column = messages.get(tp as usize * n_cp..(tp as usize + 1) * n_cp).unwrap_or_default();
            self.column_slot(&frame, &column, last, of_column);
            sent.extend(self.send(&frame, &column, next));
        }
        done.sent(frame.slot, stage, sent);
    }

    fn column_slot(&mut self, frame: &Frame<'_>, column: &Column, last: Option<LastOf>, messages: &[TaskId]) {
        let chunk = frame.slot.chunk as usize;
        for (cp, &lane) in column.lanes.iter().enumerate() {
            let [first, rest] = std::mem::take(&mut self.ahead[lane.index()][chunk]);
            self.gate[lane.index()].extend(messages.get(cp).copied().into_iter().chain(first));
            self.behind[lane.index()] = rest;
        }
        match frame.slot.kind {
            PassKind::Forward => self.forward(frame, column),
            kind => self.backward(frame, column, kind, last),
        }
    }

    fn forward(&mut self, frame: &Frame<'_>, column: &Column) {
        let problem = self.at(frame.pp);
        if frame.content.barrier {
            self.barrier(frame, column);
        }
        self.fetch(frame, column, PassKind::Forward);
        let gathered = self.gather(frame, column, 0);
        let forward_only = frame.content.forward_only;
        let role = if forward_only { Role::Recompute } else { Role::Forward };
        let leads = self.layers_forward(frame, column, &frame.stage, role, &gathered);
        for (cp, &lane) in column.lanes.iter().enumerate() {
            let share = &frame.content.shares[cp];
            let bytes = self.kept(frame, cp).change(PassKind::Forward);
            self.effect(leads[cp], Moment::Start, self.activations, bytes);
            let last = self.last[lane.index()].expect("the layers have just computed");
            self.buffers(frame, cp, Pass::Forward, [leads[cp], last]);
            self.open_state(frame, leads[cp]);
            if forward_only {
                self.effect(last, Moment::End, self.activations, -bytes);
                continue;
            }
            if frame.stage.last && problem.execution.unit_times.is_none() {
                let key = OpKey::new(Part::Head, PassKind::Forward, &frame.stage, frame, cp);
                let op = self.known_op(key, |_| layer::head(&problem.shard(), share.tokens, PassKind::Forward));
                let task = self.compute_op(lane, Role::Forward, frame.slot.micro_batch, op, &[]);
                self.effect(task, Moment::Start, self.logits, logits(problem, &frame.stage, share));
                self.reserved(frame, lane, cp, task);
            }
            self.whole_parameters(frame, leads[cp]);
            let in_passing = self.in_passing(frame, cp);
            self.effect(leads[cp], Moment::Start, self.activations, in_passing);
            if let Some(copy) = self.stream(frame, lane, cp, CopyKind::DeviceToHost, &[leads[cp]]) {
                self.effect(copy, Moment::End, self.activations, -in_passing);
            }
        }
    }

    /// Bytes of the keys and values of so many tokens of long sequences on a stage, or of their gradients.
    fn state_bytes(&self, frame: &Frame<'_>, tokens: u64) -> i64 {
        let per_rank = tokens.div_ceil(u64::from(self.at(frame.pp).layout.cp));
        let bytes = per_rank * engine::memory::state_bytes_per_token(&self.at(frame.pp).shard(), &frame.stage);
        i64::try_from(bytes).expect("keys and values stay below 2^63 bytes")
    }

    /// Keys and values of a long sequence's part are held from its first forward on.
    fn open_state(&mut self, frame: &Frame<'_>, task: TaskId) {
        if frame.content.opens_state {
            let bytes = self.state_bytes(frame, frame.content.part_tokens);
            self.effect(task, Moment::Start, self.states, bytes);
        }
    }

    /// They go with the part's backward, and their gradients too. The backward of a last part, the first to run, leaves gradients for all
    /// parts before it.
    fn close_state(&mut self, frame: &Frame<'_>, task: TaskId) {
        let content = frame.content;
        let [own, gradients, earlier] = [content.part_tokens, content.gradient_tokens, content.earlier_tokens]
            .map(|tokens| self.state_bytes(frame, tokens));
        self.effect(task, Moment::End, self.states, -own - gradients);
        self.effect(task, Moment::End, self.states, earlier);
    }

    /// Buffers of the exchanges of a pass, from its first task to its last.
    fn buffers(&mut self, frame: &Frame<'_>, cp: usize, pass: Pass, [first, last]: [TaskId; 2]) {
        if self.at(frame.pp).execution.unit_times.is_some() {
            return;
        }
        let bytes = frame.content.shares[cp].tokens
            * engine::memory::buffer_bytes_per_token(&self.at(frame.pp).shard(), &frame.stage)
            + attention::passing_bytes(self.at(frame.pp), frame.content, cp, pass);
        let bytes = i64::try_from(bytes).expect("buffers stay below 2^63 bytes");
        self.effect(first, Moment::Start, self.buffers, bytes);
        self.effect(last, Moment::End, self.buffers, -bytes);
    }

    /// Activations of a share on a stage, before any offload.
    fn activation(&mut self, frame: &Frame<'_>, cp: usize) -> Activation {
        let (problem, stage, share) = (self.at(frame.pp), &frame.stage, &frame.content.shares[cp]);
        let key = OpKey::new(Part::Lead, PassKind::Forward, stage, frame, cp);
        if let Some(&known) = self.known_activations.get(&key) {
            return known;
        }
        let made = crate::memory::activation(problem, stage, share.tokens, share.pairs());
        self.known_activations.insert(key, made);
        made
    }

    /// Activation bytes that do not stay on the device between the passes: layer by layer they go to the host while forward goes on.
    fn streamed(&mut self, frame: &Frame<'_>, cp: usize) -> u64 {
        // What a forward for keys and values alone makes is dropped, not kept elsewhere.
        if frame.content.forward_only {
            return 0;
        }
        match frame.content.shares[cp].streamed {
            Streamed::Permille(0) => 0,
            Streamed::Permille(permille) => self.activation(frame, cp).whole / 1000 * u64::from(permille),
            Streamed::AsExecuted => {
                crate::memory::streamed(&self.at(frame.pp).execution, self.activation(frame, cp).whole)
            }
        }
    }

    /// What the device's allocator takes of so many bytes of activations.
    fn taken(&self, frame: &Frame<'_>, bytes: u64) -> u64 {
        crate::memory::taken(&self.at(frame.pp).execution, bytes)
    }

    /// Of these, what the device holds while a pass makes or takes them: two layers. A plan that says itself how much streams has left
    /// them out of its share.
    fn in_passing(&mut self, frame: &Frame<'_>, cp: usize) -> i64 {
        if frame.content.shares[cp].streamed != Streamed::AsExecuted {
            return 0;
        }
        let n_layers = u64::from(frame.stage.n_layers().max(1));
        let streamed = self.streamed(frame, cp);
        signed(self.taken(frame, streamed) / n_layers * n_layers.min(u64::from(crate::memory::LAYERS_IN_PASSING)))
    }

    /// Activation bytes that a micro-batch holds on the device. What streams is as much of the one as of the other.
    fn kept(&mut self, frame: &Frame<'_>, cp: usize) -> Activation {
        let (all, streamed) = (self.activation(frame, cp), self.streamed(frame, cp));
        let (all, streamed) = (all.map(|bytes| self.taken(frame, bytes)), self.taken(frame, streamed));
        let whole = all.whole - streamed;
        let for_weights = if streamed == 0 {
            all.for_weights
        } else {
            hw::whole(hw::real(all.for_weights) * hw::real(whole) / hw::real(all.whole))
        };
        Activation { whole, for_weights: for_weights.min(whole) }
    }

    /// Streams part of a pass's activations beside it. The device holds two layers of them at a time, so the pass goes no faster than the
    /// copy: what follows on the lane waits for it (ByteScale, arXiv:2502.21231, selective offload).
    fn stream(
        &mut self,
        frame: &Frame<'_>,
        lane: LaneId,
        cp: usize,
        kind: CopyKind,
        preds: &[TaskId],
    ) -> Option<TaskId> {
        let bytes = self.streamed(frame, cp);
        if bytes == 0 {
            return None;
        }
        let copy = self.copy(frame, lane, kind, bytes, preds);
        let last = self.last[lane.index()].into_iter().collect::<Vec<TaskId>>();
        self.gate[lane.index()].extend(last.into_iter().chain([copy]));
        Some(copy)
    }

    /// A copy of each rank of a lane. Those below one PCIe switch take turns on its link; lanes of one switch share it as they are played.
    pub(super) fn copy(
        &mut self,
        frame: &Frame<'_>,
        lane: LaneId,
        kind: CopyKind,
        bytes: u64,
        preds: &[TaskId],
    ) -> TaskId {
        let copy = Op::Copy { kind, bytes };
        let in_turn = self.lanes.copies_in_turn(lane);
        let op = self.op(if in_turn == 1 { copy } else { Op::Sequence(vec![(copy, in_turn)]) });
        let stream = if kind == CopyKind::HostToDevice { Stream::HostToDevice } else { Stream::DeviceToHost };
        let task = Task { op, lane, stream, role: Role::Offload, micro_batch: frame.slot.micro_batch, meeting: None };
        self.graph.add_task(task, preds)
    }

    /// Forward of a stage's layers; returns the first task of each lane.
    fn layers_forward(
        &mut self,
        frame: &Frame<'_>,
        column: &Column,
        stage: &Stage,
        role: Role,
        gathered: &[[TaskId; 2]],
    ) -> Vec<TaskId> {
        if let Some(units) = self.at(frame.pp).execution.unit_times {
            return self.unit_pass(frame, column, role, units.forward);
        }
        let begun = self.begin_exchanges(frame, column, stage, PassKind::Forward);
        let (problem, n_layers, micro_batch) = (self.at(frame.pp), stage.n_layers(), frame.slot.micro_batch);
        let mut leads = Vec::with_capacity(column.lanes.len());
        for (cp, &lane) in column.lanes.iter().enumerate() {
            let tokens = frame.content.shares[cp].tokens;
            let embeds = role == Role::Forward && stage.first;
            let part = if embeds { Part::LeadWithEmbedding } else { Part::Lead };
            let op = self.known_op(OpKey::new(part, PassKind::Forward, stage, frame, cp), |_| {
                let copies = torch::sharded_copies(problem, stage, PassKind::Forward, frame.accumulation);
                lead(problem, &Stage { first: embeds, ..*stage }, tokens, copies)
            });
            let preds = awaited(gathered.get(cp), problem.execution.overlap.forward_prefetch);
            leads.push(self.compute_op(lane, role, micro_batch, op, &preds));
        }
        let attended = self.attention(column, frame, n_layers, Pass::Forward, role, &leads);
        for (cp, &lane) in column.lanes.iter().enumerate() {
            let tokens = frame.content.shares[cp].tokens;
            let op = self.known_op(OpKey::new(Part::Rest, PassKind::Forward, stage, frame, cp), |builder| {
                if let Some(ops) =
                    hybrid::of_stage(problem, builder.load, stage, &frame.content.shares[cp].local, PassKind::Forward)
                {
                    return beside::launched(problem, ops, stage, PassKind::Forward);
                }
                let mut ops = attention::behind_exchange(problem, frame.content, cp, n_layers, Pass::Forward);
                ops.extend(after_attention(problem, builder.load, stage, tokens, PassKind::Forward));
                let before = layer::before_attention(&problem.shard(), tokens, PassKind::Forward);
                ops.extend(layer::repeated(&before, n_layers.saturating_sub(1)));
                beside::launched(problem, builder.slowed(problem, ops, begun.len()), stage, PassKind::Forward)
            });
            self.compute_op(lane, role, micro_batch, op, &attended[cp]);
            self.hold(lane, gathered.get(cp));
        }
        self.end_exchanges(frame, column, stage, PassKind::Forward, begun);
        leads
    }

    fn unit_pass(&mut self, frame: &Frame<'_>, column: &Column, role: Role, per_token: u64) -> Vec<TaskId> {
        let mut tasks = Vec::with_capacity(column.lanes.len());
        for (cp, &lane) in column.lanes.iter().enumerate() {
            let ns = self.at(frame.pp).unit_ns(per_token, frame.content.shares[cp].tokens);
            let ops = if ns == 0 { Vec::new() } else { vec![(Op::Host { ns }, 1)] };
            tasks.push(self.compute(lane, role, frame.slot.micro_batch, ops, &[]));
        }
        tasks
    }

    /// Backward of a stage, whole or one of its halves; one whose gradients are reduced in pieces, behind which that runs.
    fn backward(&mut self, frame: &Frame<'_>, column: &Column, kind: PassKind, last: Option<LastOf>) {
        let problem = self.at(frame.pp);
        // Frozen weights have no gradients that would be reduced.
        let reduces = self.has_peers && problem.execution.trains_weights();
        let waits = problem.gradient_sync() == GradientSync::AtEnd;
        let (is_last, ends_flush) = (last == Some(LastOf::Step), last == Some(LastOf::Flush) && !waits);
        let makes_gradients = matches!(kind, PassKind::Backward | PassKind::Weight);
        let early = !is_last && makes_gradients && reduces && (ends_flush || problem.reduces_each_micro_batch());
        let buckets = if (early || is_last) && reduces && !waits { GRADIENT_BUCKETS } else { 1 };
        self.fetch(frame, column, kind);
        let gathered = if kind == PassKind::Weight { Vec::new() } else { self.gather(frame, column, 2) };
        // What streams back starts with the backward, not before the slots ahead of it have ended.
        let begun: Vec<Vec<TaskId>> = column.lanes.iter().map(|&lane| self.tail(lane)).collect();
        let mut first = Vec::new();
        for (index, piece) in (0_u32..).zip(&frame.stage.pieces(buckets)) {
            let begun = self.backward_piece(frame, column, piece, kind, if index == 0 { &gathered } else { &[] });
            if index == 0 {
                first = begun;
            }
            for &lane in &column.lanes {
                if is_last {
                    let end = self.last[lane.index()].expect("the piece has just computed");
                    self.pieces[lane.index()][frame.slot.chunk as usize].push(end);
                } else if early {
                    self.reduce_early(frame, lane, piece, index);
                }
            }
        }
        for (cp, &lane) in column.lanes.iter().enumerate() {
            self.free(frame, lane, cp, kind, first[cp]);
            let end = self.last[lane.index()].expect("the pass has just computed");
            // Each half of a split backward needs them.
            if let Some(copy) = self.stream(frame, lane, cp, CopyKind::HostToDevice, &begun[cp]) {
                let in_passing = self.in_passing(frame, cp);
                self.effect(copy, Moment::Start, self.activations, in_passing);
                self.effect(end, Moment::End, self.activations, -in_passing);
            }
        }
    }

    /// Memory of a backward: logits go with its start, activations with its end, and a recomputed layer is held in between.
    fn free(&mut self, frame: &Frame<'_>, lane: LaneId, cp: usize, kind: PassKind, first: TaskId) {
        let share = &frame.content.shares[cp];
        let end = self.last[lane.index()].expect("the pass has just computed");
        if kind != PassKind::Weight {
            let problem = self.at(frame.pp);
            if problem.execution.unit_times.is_none() {
                let left = share.tokens * pipeline_states::left_behind(problem, &frame.stage);
                let left = i64::try_from(left).expect("a micro-batch stays below 2^63 bytes");
                let made = if frame.stage.last { logits(problem, &frame.stage, share) } else { 0 };
                if left != made {
                    self.effect(first, Moment::End, self.logits, left - made);
                }
                if frame.stage.last {
                    self.reserved_no_more(frame, lane, first);
                }
            }
            let working =
                share.tokens * engine::memory::working_bytes_per_token(&self.at(frame.pp).shard(), &frame.stage);
            let working = i64::try_from(working).expect("a layer stays below 2^63 bytes");
            self.effect(first, Moment::Start, self.working, working);
            self.effect(end, Moment::End, self.working, -working);
            self.buffers(frame, cp, Pass::Backward, [first, end]);
        }
        let change = self.kept(frame, cp).change(kind);
        if change != 0 || kind != PassKind::Input {
            self.effect(end, Moment::End, self.activations, change);
        }
        if kind != PassKind::Input {
            self.close_state(frame, end);
            self.gradients(frame, lane, end);
        }
    }

    /// Backward of some layers of a stage; returns the first task of each lane.
    fn backward_piece(
        &mut self,
        frame: &Frame<'_>,
        column: &Column,
        piece: &Stage,
        kind: PassKind,
        gathered: &[[TaskId; 2]],
    ) -> Vec<TaskId> {
        if let Some(units) = self.at(frame.pp).execution.unit_times {
            let per_token = match kind {
                PassKind::Input => units.input,
                PassKind::Weight => units.weight,
                _ => units.input + units.weight,
            };
            let role = if kind == PassKind::Weight { Role::WeightGradient } else { Role::Backward };
            return self.unit_pass(frame, column, role, per_token);
        }
        if kind == PassKind::Weight {
            return self.weight_gradients(frame, column, piece);
        }
        let whole = self.at(frame.pp).execution.recompute == Recompute::Full && piece.again().n_layers() > 0;
        let again = whole.then(|| self.layers_forward(frame, column, &piece.again(), Role::Recompute, &[]));
        let kind = if kind == PassKind::Backward { self.at(frame.pp).execution.backward() } else { kind };
        let is_delayed = kind == PassKind::Backward && self.at(frame.pp).execution.overlap.delayed_weights;
        let kind = if is_delayed { PassKind::Input } else { kind };
        let leads = self.input_gradients(frame, column, piece, kind, gathered, is_delayed);
        again.unwrap_or(leads)
    }

    /// Gradients of inputs, and of weights too in a whole backward; behind them those of weights where they are delayed.
    fn input_gradients(
        &mut self,
        frame: &Frame<'_>,
        column: &Column,
        piece: &Stage,
        kind: PassKind,
        gathered: &[[TaskId; 2]],
        is_delayed: bool,
    ) -> Vec<TaskId> {
        let begun = self.begin_exchanges(frame, column, piece, kind);
        let (problem, n_layers, micro_batch) = (self.at(frame.pp), piece.n_layers(), frame.slot.micro_batch);
        let (mut leads, mut firsts) = (Vec::new(), Vec::new());
        for (cp, &lane) in column.lanes.iter().enumerate() {
            let share = &frame.content.shares[cp];
            let in_part = matches!(problem.execution.recompute, Recompute::Selective | Recompute::Modules(_));
            let recomputes = in_part && piece.again().n_layers() > 0 && share.tokens > 0;
            let first = recomputes.then(|| {
                let key = OpKey::new(Part::Again, kind, piece, frame, cp);
                let op = self.known_op(key, |builder| builder.recomputed(problem, piece, share));
                self.compute_op(lane, Role::Recompute, micro_batch, op, &[])
            });
            let op = self.known_op(OpKey::new(Part::Lead, kind, piece, frame, cp), |builder| {
                let mut ops = if piece.last { layer::head(&problem.shard(), share.tokens, kind) } else { Vec::new() };
                ops.extend(torch::sharded_copies(problem, piece, kind, frame.accumulation));
                ops.extend(layer::host(
                    problem.execution.host_overhead_per_layer,
                    if share.tokens > 0 { n_layers } else { 0 },
                ));
                // One layer of the kind that the piece ends with leads; its share is left out of the rest.
                if !problem.model.is_hybrid() {
                    ops.extend(after_attention(problem, builder.load, &one_layer(piece), share.tokens, kind));
                }
                ops
            });
            let preds = awaited(gathered.get(cp), problem.execution.overlap.backward_prefetch);
            let lead = self.compute_op(lane, Role::Backward, micro_batch, op, &preds);
            leads.push(lead);
            firsts.push(first.unwrap_or(lead));
        }
        let attended = self.attention(column, frame, n_layers, pass_of(kind), Role::Backward, &leads);
        for (cp, &lane) in column.lanes.iter().enumerate() {
            let tokens = frame.content.shares[cp].tokens;
            let op = self.known_op(OpKey::new(Part::Rest, kind, piece, frame, cp), |builder| {
                if let Some(ops) = hybrid::of_stage(problem, builder.load, piece, &frame.content.shares[cp].local, kind)
                {
                    return beside::launched(problem, ops, piece, kind);
                }
                let mut ops = attention::behind_exchange(problem, frame.content, cp, n_layers, pass_of(kind));
                ops.extend(layer::repeated(&layer::before_attention(&problem.shard(), tokens, kind), n_layers));
                ops.extend(after_attention(problem, builder.load, &all_but_one_layer(piece), tokens, kind));
                beside::launched(problem, builder.slowed(problem, ops, begun.len()), piece, kind)
            });
            self.compute_op(lane, Role::Backward, micro_batch, op, &attended[cp]);
            self.hold(lane, gathered.get(cp));
        }
        if is_delayed {
            let beside = self.expert_exchanges_beside(frame, column, piece, kind, begun);
            self.weight_gradients(frame, column, piece);
            self.await_all(beside);
        } else {
            self.end_exchanges(frame, column, piece, kind, begun);
        }
        firsts
    }

    fn recomputed(&self, problem: &Problem, piece: &Stage, share: &Share) -> Ops {
        let documents: Vec<_> = share.local.iter().chain(&share.sharded).copied().collect();
        let ops = hybrid::recomputed(problem, self.load, piece, share.tokens, &documents);
        beside::launched_again(problem, ops, piece)
    }

    /// Weight gradients alone: no attention, no exchange.
    fn weight_gradients(&mut self, frame: &Frame<'_>, column: &Column, piece: &Stage) -> Vec<TaskId> {
        let problem = self.at(frame.pp);
        let mut tasks = Vec::with_capacity(column.lanes.len());
        for (cp, &lane) in column.lanes.iter().enumerate() {
            let op = self.known_op(OpKey::new(Part::Rest, PassKind::Weight, piece, frame, cp), |builder| {
                let ops = hybrid::weight_ops(problem, builder.load, piece, &frame.content.shares[cp]);
                beside::launched(problem, ops, piece, PassKind::Weight)
            });
            tasks.push(self.compute_op(lane, Role::WeightGradient, frame.slot.micro_batch, op, &[]));
        }
        tasks
    }
}

/// Gathers that a lane's first layer waits for: those of all layers where none is gathered while others compute. That puts the sum of
/// all gathers before the pass instead of one before each layer, which takes as long.
fn awaited(gathered: Option<&[TaskId; 2]>, prefetch: bool) -> Vec<TaskId> {
    gathered.map_or_else(Vec::new, |pair| if prefetch { vec![pair[0]] } else { pair.to_vec() })
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).expect("activations stay below 2^63 bytes")
}

fn logits(problem: &Problem, stage: &Stage, share: &Share) -> i64 {
    i64::try_from(engine::memory::head_bytes(&problem.shard(), stage, share.tokens))
        .expect("logits stay below 2^63 bytes")
}
