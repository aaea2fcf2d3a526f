//! Attention of a context group: how the exchange of sharded sequences overlaps with computation.
//!
//! One function per exchange; each returns what the next compute task starts with and what it waits for.
//! Bytes are those of `task::Collective`; keys and values of latent attention travel compressed.

use super::{Builder, Column, Content, Frame, Share};
use crate::layout::{ContextExchange, Layout};
use crate::lower::layer::{self, Ops};
use crate::task::{Collective, Document, OpId, Pass, Role, TaskId};

/// A sharded sequence as the attention kernel of one rank sees it.
pub(super) fn sharded_document(layout: &Layout, from: u64, tokens: u64) -> Document {
    let cp = u64::from(layout.cp);
    let whole = Document::chunk(from, tokens);
    let share = Document { queries: tokens.div_ceil(cp), keys: whole.keys, pairs: whole.pairs.div_ceil(cp) };
    match layout.exchange {
        ContextExchange::Gather => share,
        ContextExchange::Ulysses => whole,
        // One of the `cp` hops: this rank's queries against one block of keys.
        ContextExchange::Ring => Document { keys: whole.keys.div_ceil(cp), pairs: share.pairs.div_ceil(cp), ..share },
    }
}

impl Builder<'_> {
    /// Attention that stands at the head of the task behind the exchange: all of it without sharded sequences, else what
    /// cannot begin before the exchange has ended.
    pub(super) fn attention_after(&self, content: &Content, cp: usize, n_layers: u32, pass: Pass) -> Ops {
        let share = &content.shares[cp];
        let documents = match (content.sharded_tokens, self.problem.layout.exchange, pass) {
            (0, _, _) => &share.local,
            (_, ContextExchange::Gather, Pass::Forward) | (_, ContextExchange::Ring, _) => &share.sharded,
            (_, ContextExchange::Gather | ContextExchange::Ulysses, _) => return Vec::new(),
        };
        layer::repeated(&layer::attention(self.problem, documents, 1, pass), n_layers)
    }

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
        if content.sharded_tokens == 0 {
            return vec![Vec::new(); column.lanes.len()];
        }
        let frame = Attend { column, content, micro_batch: frame.slot.micro_batch, n_layers, pass, role };
        match self.problem.layout.exchange {
            ContextExchange::Gather => self.gathered_attention(&frame, leads),
            ContextExchange::Ring => self.ring_attention(&frame, leads),
            ContextExchange::Ulysses => self.ulysses_attention(&frame, leads),
        }
    }

    /// Bytes of keys and values of all sharded sequences.
    fn key_value_bytes(&self, content: &Content) -> u64 {
        let model = &self.problem.model;
        let width =
            model.latent.map_or(2 * model.n_kv_heads * model.head_dim, |latent| latent.kv_rank + latent.rope_dim);
        // Each tensor rank has its own heads; compressed keys are not cut.
        let cut = if model.latent.is_some() { 1 } else { u64::from(self.problem.layout.tp).min(model.n_kv_heads) };
        (content.sharded_tokens * width * self.problem.dtype.bytes()).div_ceil(cut)
    }

    fn exchange(&mut self, frame: &Attend<'_>, op: OpId, preds: &[TaskId]) -> Vec<TaskId> {
        let group = self.graph.add_group(&frame.column.ranks);
        let meeting = self.graph.add_meeting(group);
        let micro_batch = frame.micro_batch;
        frame
            .column
            .lanes
            .iter()
            .zip(preds)
            .map(|(&lane, pred)| self.join(meeting, op, lane, Role::ContextExchange, micro_batch, &[*pred]))
            .collect()
    }

    /// Attention over documents of every rank as tasks of their own, each behind its predecessor if it has one.
    fn attend(&mut self, frame: &Attend<'_>, what: impl Fn(&Share) -> Ops, preds: &[TaskId]) -> Vec<TaskId> {
        let shares = frame.content.shares.iter();
        let lanes = frame.column.lanes.iter();
        lanes
            .zip(shares)
            .enumerate()
            .map(|(cp_index, (&lane, share))| {
                let ops = layer::repeated(&what(share), frame.n_layers);
                let preds: Vec<TaskId> = preds.get(cp_index).copied().into_iter().collect();
                self.compute(lane, frame.role, frame.micro_batch, ops, &preds)
            })
            .collect()
    }

    /// All-gather of keys and values behind local attention; in backward a reduce-scatter of their gradients.
    fn gathered_attention(&mut self, frame: &Attend<'_>, leads: &[TaskId]) -> Vec<Vec<TaskId>> {
        let (problem, pass) = (self.problem, frame.pass);
        let bytes = self.key_value_bytes(frame.content);
        let kind = if pass == Pass::Forward { Collective::AllGather } else { Collective::ReduceScatter };
        let op = self.collective(kind, bytes, &frame.column.ranks, frame.n_layers);
        let local = |share: &Share| layer::attention(problem, &share.local, 1, pass);
        let sharded = |share: &Share| layer::attention(problem, &share.sharded, 1, pass);
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
        let (problem, pass) = (self.problem, frame.pass);
        let hops = problem.layout.cp - 1;
        let factor = if pass == Pass::Forward { 1 } else { 2 };
        let bytes = factor * self.key_value_bytes(frame.content) / u64::from(problem.layout.cp);
        let op = self.collective(Collective::RingShift, bytes, &frame.column.ranks, frame.n_layers * hops);
        let exchanged = self.exchange(frame, op, leads);
        let block = |share: &Share| layer::attention(problem, &share.sharded, 1, pass);
        let overlapped = |share: &Share| {
            let mut ops = layer::attention(problem, &share.local, 1, pass);
            ops.extend(layer::repeated(&block(share), hops));
            ops
        };
        self.attend(frame, overlapped, &[]);
        behind(&exchanged)
    }

    /// Tokens for heads before attention and back after it (arXiv:2309.14509).
    fn ulysses_attention(&mut self, frame: &Attend<'_>, leads: &[TaskId]) -> Vec<Vec<TaskId>> {
        let (problem, pass) = (self.problem, frame.pass);
        let model = &problem.model;
        let cp = u64::from(problem.layout.cp);
        let rows = frame.content.sharded_tokens.div_ceil(cp) * problem.dtype.bytes();
        let cut = u64::from(problem.layout.tp);
        let heads = rows * model.n_heads.div_ceil(cut) * model.head_dim;
        let all = heads + rows * 2 * model.n_kv_heads.div_ceil(cut).max(cp) * model.head_dim;
        let (bytes_in, bytes_out) = if pass == Pass::Forward { (all, heads) } else { (heads, all) };
        let op_in = self.collective(Collective::AllToAll, bytes_in, &frame.column.ranks, frame.n_layers);
        let op_out = self.collective(Collective::AllToAll, bytes_out, &frame.column.ranks, frame.n_layers);
        let entered = self.exchange(frame, op_in, leads);
        self.attend(frame, |share| layer::attention(problem, &share.local, 1, pass), &[]);
        let attended = self.attend(frame, |share| layer::attention(problem, &share.sharded, cp, pass), &entered);
        let left = self.exchange(frame, op_out, &attended);
        behind(&left)
    }
}

/// What the attention functions share.
struct Attend<'a> {
    column: &'a Column,
    micro_batch: u32,
    content: &'a Content,
    n_layers: u32,
    pass: Pass,
    role: Role,
}

/// Each rank behind its own exchange.
fn behind(exchanged: &[TaskId]) -> Vec<Vec<TaskId>> {
    exchanged.iter().map(|&task| vec![task]).collect()
}
