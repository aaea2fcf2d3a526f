//! Attention of a context group: how the exchange of sharded sequences overlaps with computation.
//!
//! One function per exchange; each returns what the next compute task starts with and what it waits for.
//! Bytes are those of `task::Collective`; keys and values of latent attention travel compressed.

use hw::Rank;

use super::{Builder, Column, Content, Frame, Ring, Share, torch_block};
use crate::layout::ContextExchange;
use crate::problem::Problem;
use engine::layer;
use engine::task::Ops;
use engine::task::{Collective, Document, Op, OpId, Pass, Role, TaskId};

/// A sequence that `count` ranks share, as the attention kernel of one of them sees it.
pub(super) fn sharded_document(exchange: ContextExchange, count: u32, from: u64, tokens: u64) -> Document {
    let n = u64::from(count);
    let whole = Document::chunk(from, tokens);
    let share = Document { queries: tokens.div_ceil(n), keys: whole.keys, pairs: whole.pairs.div_ceil(n) };
    match exchange {
        ContextExchange::Gather => share,
        ContextExchange::Ulysses => whole,
        // One of the hops: this rank's queries against one block of keys.
        ContextExchange::Ring => Document { keys: whole.keys.div_ceil(n), pairs: share.pairs.div_ceil(n), ..share },
    }
}

/// Pairs of the last of `count` ranks that hold blocks of a causal sequence in order, from the mean: it sees all blocks and half of its own, so
/// 2 − 1/n times as many.
pub(super) const fn busiest_pairs(mean: u64, count: u32) -> u64 {
    let n = count as u64;
    (mean * (2 * n - 1)).div_ceil(n)
}

/// Bytes of the keys and values of so many tokens on one rank of the tensor group.
pub(super) fn key_value_bytes(problem: &Problem, tokens: u64) -> u64 {
    let model = &problem.model;
    // Copies for every query head are made before the exchange.
    let heads = if problem.execution.framework.repeats_keys() { model.n_heads } else { model.n_kv_heads };
    let width = model.latent.map_or(2 * heads * model.head_dim, |latent| latent.kv_rank + latent.rope_dim);
    // Each tensor rank has its own heads; compressed keys are not cut.
    let cut = if model.latent.is_some() { 1 } else { u64::from(problem.layout.tp).min(heads) };
    (tokens * width * problem.dtype.bytes()).div_ceil(cut)
}

/// How the ranks of a context attend: PyTorch's modules go from block to block of the keys where they gather all of them, too
/// (`torch/distributed/tensor/experimental/_attention.py`, `_templated_ring_attention`).
pub(crate) fn attends(problem: &Problem) -> ContextExchange {
    match (problem.layout.exchange, problem.execution.framework.torch()) {
        (ContextExchange::Gather, Some(_)) => ContextExchange::Ring,
        (exchange, _) => exchange,
    }
}

/// Bytes of keys, values and their gradients of other ranks that a context rank of PyTorch's modules holds for a layer.
pub(super) fn passing_bytes(problem: &Problem, content: &Content, cp: usize, pass: Pass) -> u64 {
    if problem.execution.framework.torch().is_none() {
        return 0;
    }
    let has = |ring: &&Ring| (ring.first as usize..(ring.first + ring.count) as usize).contains(&cp) && ring.count > 1;
    let blocks = |ring: &Ring| torch_block::held(problem.layout.exchange, u64::from(ring.count), pass);
    let of_ring = |ring: &Ring| blocks(ring) * key_value_bytes(problem, ring.tokens).div_ceil(u64::from(ring.count));
    content.rings.iter().filter(has).map(of_ring).sum()
}

/// Bytes of one hop of a ring: a block of keys and values, in backward with their gradients, which PyTorch's modules have in 32 bits.
pub(crate) fn hop_bytes(problem: &Problem, tokens: u64, count: u32, pass: Pass) -> u64 {
    let gradients = if problem.execution.framework.torch().is_some() { torch_block::GRADIENT_OVER_VALUE } else { 1 };
    let factor = if pass == Pass::Forward { 1 } else { 1 + gradients };
    factor * key_value_bytes(problem, tokens) / u64::from(count)
}

/// Attention to one block of the keys of a ring.
fn block(problem: &Problem, share: &Share, pass: Pass) -> Ops {
    match problem.execution.framework.torch() {
        Some(_) => torch_block::block(problem, share, pass),
        None => layer::attention(&problem.shard(), &share.sharded, 1, pass),
    }
}

/// What every rank adds to a barrier, bytes.
const BARRIER_BYTES: u64 = 4;

/// Attention that stands at the head of the task behind the exchange: all of it without sharded sequences, else what
/// cannot begin before the exchange has ended.
pub(super) fn behind_exchange(problem: &Problem, content: &Content, cp: usize, n_layers: u32, pass: Pass) -> Ops {
    let share = &content.shares[cp];
    let documents = match (content.rings.is_empty(), attends(problem), pass) {
        (true, _, _) => &share.local,
        (_, ContextExchange::Gather, Pass::Forward) | (_, ContextExchange::Ring, _) => &share.sharded,
        (_, ContextExchange::Gather | ContextExchange::Ulysses, _) => return Vec::new(),
    };
    layer::repeated(&layer::attention(&problem.shard(), documents, 1, pass), n_layers)
}

/// Attention that stands before it: everything else, with the copies of an exchange of heads. Of a ring it is all hops but the last.
pub(super) fn before_exchange(problem: &Problem, content: &Content, cp: usize, n_layers: u32, pass: Pass) -> Ops {
    let (share, exchange, shard) = (&content.shares[cp], attends(problem), problem.shard());
    if content.rings.is_empty() {
        return Vec::new();
    }
    let (heads, n_blocks) = match (exchange, pass) {
        (ContextExchange::Ulysses, _) => (u64::from(share.ring.max(1)), 1),
        (ContextExchange::Ring, _) => (1, share.ring.saturating_sub(1)),
        (ContextExchange::Gather, Pass::Forward) => (1, 0),
        (ContextExchange::Gather, Pass::Backward) => (1, 1),
    };
    let attended = match exchange {
        ContextExchange::Ring => block(problem, share, pass),
        _ => layer::attention(&shard, &share.sharded, heads, pass),
    };
    let mut ops = layer::attention(&shard, &share.local, 1, pass);
    ops.extend(layer::repeated(&attended, n_blocks));
    if exchange == ContextExchange::Ulysses {
        ops.extend(transposes(problem, share));
    }
    layer::repeated(&ops, n_layers)
}

impl Builder<'_> {
    /// Tasks of attention that come before; returns what the task behind the exchange waits for, per rank.
    pub(super) fn attention(
        &mut self,
        column: &Column,
        frame: &Frame<'_>,
        n_layers: u32,
        pass: Pass,
        role: Role,
        leads: &[TaskId],
    ) -> Vec<Vec<TaskId>> {
        let content = frame.content;
        if content.rings.is_empty() {
            return vec![Vec::new(); column.lanes.len()];
        }
        let frame = Attend {
            problem: self.at(frame.pp),
            column,
            content,
            micro_batch: frame.slot.micro_batch,
            n_layers,
            pass,
            role,
        };
        match attends(frame.problem) {
            ContextExchange::Gather => self.gathered_attention(&frame, leads),
            ContextExchange::Ring => self.ring_attention(&frame, leads),
            ContextExchange::Ulysses => self.ulysses_attention(&frame, leads),
        }
    }

    /// All ranks of a context group wait for each other before a pass: an all-reduce of one number.
    pub(super) fn barrier(&mut self, frame: &Frame<'_>, column: &Column) {
        if column.ranks.len() < 2 {
            return;
        }
        let op = self.collective(Collective::AllReduce, BARRIER_BYTES, &column.ranks, 1);
        let group = self.graph.add_group(&column.ranks);
        let meeting = self.graph.add_meeting(group);
        for &lane in &column.lanes {
            let tail = self.tail(lane);
            let task = self.join(meeting, op, lane, Role::ContextExchange, frame.slot.micro_batch, &tail);
            self.gate[lane.index()].push(task);
        }
    }

    /// Exchanges of every ring, behind one task per rank; the task of each rank that takes part.
    pub(super) fn exchange(
        &mut self,
        frame: &Attend<'_>,
        op: impl Fn(&mut Self, &Ring, &[Rank]) -> OpId,
        preds: &[TaskId],
    ) -> Vec<Option<TaskId>> {
        let mut joined = vec![None; frame.column.lanes.len()];
        for ring in &frame.content.rings {
            let range = ring.first as usize..(ring.first + ring.count) as usize;
            let members = &frame.column.ranks[range.clone()];
            let op = op(self, ring, members);
            let group = self.graph.add_group(members);
            let meeting = self.graph.add_meeting(group);
            for cp in range {
                let (lane, role) = (frame.column.lanes[cp], Role::ContextExchange);
                joined[cp] = Some(self.join(meeting, op, lane, role, frame.micro_batch, &[preds[cp]]));
            }
        }
        joined
    }

    /// Attention over documents of every rank as tasks of their own, each behind its predecessor if it has one.
    pub(super) fn attend(
        &mut self,
        frame: &Attend<'_>,
        what: impl Fn(&Share) -> Ops,
        preds: &[Option<TaskId>],
    ) -> Vec<TaskId> {
        let shares = frame.content.shares.iter();
        let lanes = frame.column.lanes.iter();
        lanes
            .zip(shares)
            .enumerate()
            .map(|(cp_index, (&lane, share))| {
                let ops = layer::repeated(&what(share), frame.n_layers);
                let preds: Vec<TaskId> = preds.get(cp_index).copied().flatten().into_iter().collect();
                self.compute(lane, frame.role, frame.micro_batch, ops, &preds)
            })
            .collect()
    }

    /// All-gather of keys and values behind local attention; in backward a reduce-scatter of their gradients.
    fn gathered_attention(&mut self, frame: &Attend<'_>, leads: &[TaskId]) -> Vec<Vec<TaskId>> {
        let (problem, pass) = (frame.problem, frame.pass);
        let kind = if pass == Pass::Forward { Collective::AllGather } else { Collective::ReduceScatter };
        let n_layers = frame.n_layers;
        let op = move |builder: &mut Self, ring: &Ring, members: &[Rank]| {
            builder.collective(kind, key_value_bytes(problem, ring.tokens), members, n_layers)
        };
        let local = |share: &Share| layer::attention(&problem.shard(), &share.local, 1, pass);
        let sharded = |share: &Share| layer::attention(&problem.shard(), &share.sharded, 1, pass);
        match pass {
            Pass::Forward => {
                let exchanged = self.exchange(frame, op, leads);
                self.attend(frame, local, &[]);
                behind(&exchanged)
            }
            Pass::Backward => {
                let attended = self.attend(frame, sharded, &[]);
                let exchanged = self.exchange(frame, op, &attended);
                self.attend(frame, local, &[]);
                behind(&exchanged)
            }
        }
    }

    /// Key and value blocks one hop ahead of the attention that needs them; backward carries their gradients too.
    fn ring_attention(&mut self, frame: &Attend<'_>, leads: &[TaskId]) -> Vec<Vec<TaskId>> {
        if frame.problem.layout.exchange == ContextExchange::Gather {
            return self.torch_attention(frame, leads);
        }
        let (problem, pass) = (frame.problem, frame.pass);
        let n_layers = frame.n_layers;
        let op = move |builder: &mut Self, ring: &Ring, members: &[Rank]| {
            let bytes = hop_bytes(problem, ring.tokens, ring.count, pass);
            builder.collective(Collective::RingShift, bytes, members, n_layers * (ring.count - 1))
        };
        let exchanged = self.exchange(frame, op, leads);
        let overlapped = |share: &Share| {
            let mut ops = layer::attention(&problem.shard(), &share.local, 1, pass);
            ops.extend(layer::repeated(&block(problem, share, pass), share.ring.saturating_sub(1)));
            ops
        };
        self.attend(frame, overlapped, &[]);
        behind(&exchanged)
    }

    /// Tokens for heads before attention and back after it (arXiv:2309.14509).
    fn ulysses_attention(&mut self, frame: &Attend<'_>, leads: &[TaskId]) -> Vec<Vec<TaskId>> {
        let (problem, pass) = (frame.problem, frame.pass);
        let n_layers = frame.n_layers;
        let exchange_of = |is_in: bool| {
            move |builder: &mut Self, ring: &Ring, members: &[Rank]| {
                let (heads, all) = ulysses_bytes(problem, ring.tokens, ring.count);
                let bytes = if (pass == Pass::Forward) == is_in { all } else { heads };
                builder.collective(Collective::AllToAll, bytes, members, n_layers)
            }
        };
        let entered = self.exchange(frame, exchange_of(true), leads);
        self.attend(frame, |share| layer::attention(&problem.shard(), &share.local, 1, pass), &[]);
        let sharded = |share: &Share| {
            let mut ops = layer::attention(&problem.shard(), &share.sharded, u64::from(share.ring.max(1)), pass);
            ops.extend(transposes(problem, share));
            ops
        };
        let attended = self.attend(frame, sharded, &entered);
        let left = self.exchange(frame, exchange_of(false), &attended);
        behind(&left)
    }
}

/// Bytes that a rank puts into the exchange of heads for tokens of sequences of so many tokens on `count` ranks: all heads for a share of the
/// tokens, or a share of the heads for all of them. Queries (or outputs) alone, and with keys and values.
fn ulysses_bytes(problem: &Problem, tokens: u64, count: u32) -> (u64, u64) {
    let (model, n) = (&problem.model, u64::from(count));
    let rows = tokens.div_ceil(n) * problem.dtype.bytes();
    let cut = u64::from(problem.layout.tp);
    let heads = rows * model.n_heads.div_ceil(cut) * model.head_dim;
    (heads, heads + rows * 2 * model.n_kv_heads.div_ceil(cut).max(n) * model.head_dim)
}

/// Copies of an exchange of heads: what is sent is made contiguous by rank, or what has come by head, one read and one write of every element
/// each way (`single_all_to_all` of DeepSpeed-Ulysses, arXiv:2309.14509, and of FlexSP). They block the rank as the exchange does.
fn transposes(problem: &Problem, share: &Share) -> Ops {
    let tokens: u64 = share.sharded.iter().map(|document| document.queries).sum();
    if tokens == 0 {
        return Vec::new();
    }
    let (heads, all) = ulysses_bytes(problem, tokens, share.ring.max(1));
    vec![(Op::Elementwise { bytes: 2 * (heads + all) }, 1)]
}

/// What the attention functions share.
pub(super) struct Attend<'a> {
    pub(super) problem: &'a Problem,
    column: &'a Column,
    micro_batch: u32,
    content: &'a Content,
    pub(super) n_layers: u32,
    pub(super) pass: Pass,
    role: Role,
}

/// Each rank behind its own exchange, if it takes part in one.
pub(super) fn behind(exchanged: &[Option<TaskId>]) -> Vec<Vec<TaskId>> {
    exchanged.iter().map(|task| task.iter().copied().collect()).collect()
}
