//! Attention of a context group: how the exchange of sharded sequences overlaps with computation.
//!
//! One function per exchange; each returns what the next compute task starts with and what it waits for.
//! Bytes are those of `task::Collective`; keys and values of latent attention travel compressed.

use super::{Builder, Content, Group, Share};
use crate::layout::ContextExchange;
use crate::lower::layer::{self, Ops};
use crate::task::{Collective, OpId, Pass, Role, TaskId};

/// Attention of all ranks of a group: what remains to be put at the head of the next task, and what it waits for.
pub(super) struct Attended {
    pub(super) after: Vec<Ops>,
    pub(super) preds: Vec<Vec<TaskId>>,
}

impl Builder<'_> {
    pub(super) fn attention(
        &mut self,
        group: &Group,
        content: &Content,
        n_layers: u32,
        pass: Pass,
        role: Role,
        leads: &[TaskId],
    ) -> Attended {
        if content.sharded_tokens == 0 {
            let after = content
                .shares
                .iter()
                .map(|share| layer::repeated(&layer::attention(self.problem, share.local.clone(), 1, pass), n_layers))
                .collect();
            return Attended { after, preds: vec![Vec::new(); group.ranks.len()] };
        }
        let frame = Frame { group, content, n_layers, pass, role };
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
        content.sharded_tokens * width * self.problem.dtype.bytes()
    }

    fn exchange(&mut self, frame: &Frame<'_>, op: OpId, preds: &[TaskId]) -> Vec<TaskId> {
        let meeting = self.graph.add_meeting(frame.group.ranks.clone());
        let micro_batch = frame.content.index;
        frame
            .group
            .ranks
            .iter()
            .zip(preds)
            .map(|(&rank, pred)| self.join(meeting, op, rank, Role::ContextExchange, micro_batch, &[*pred]))
            .collect()
    }

    /// Attention over documents of every rank as tasks of their own, each behind its predecessor if it has one.
    fn attend(&mut self, frame: &Frame<'_>, what: impl Fn(&Share) -> Ops, preds: &[TaskId]) -> Vec<TaskId> {
        let shares = frame.content.shares.iter();
        let ranks = frame.group.ranks.iter();
        ranks
            .zip(shares)
            .enumerate()
            .map(|(cp_index, (&rank, share))| {
                let ops = layer::repeated(&what(share), frame.n_layers);
                let preds: Vec<TaskId> = preds.get(cp_index).copied().into_iter().collect();
                self.compute(rank, frame.role, frame.content.index, ops, &preds)
            })
            .collect()
    }

    /// All-gather of keys and values behind local attention; in backward a reduce-scatter of their gradients.
    fn gathered_attention(&mut self, frame: &Frame<'_>, leads: &[TaskId]) -> Attended {
        let (problem, pass) = (self.problem, frame.pass);
        let bytes = self.key_value_bytes(frame.content);
        let kind = if pass == Pass::Forward { Collective::AllGather } else { Collective::ReduceScatter };
        let op = self.collective(kind, bytes, &frame.group.ranks, frame.n_layers);
        let local = |share: &Share| layer::attention(problem, share.local.clone(), 1, pass);
        let sharded = |share: &Share| layer::attention(problem, share.sharded.clone(), 1, pass);
        match pass {
            Pass::Forward => {
                let exchanged = self.exchange(frame, op, leads);
                self.attend(frame, local, &[]);
                Attended::behind(
                    frame.content.shares.iter().map(|s| layer::repeated(&sharded(s), frame.n_layers)),
                    &exchanged,
                )
            }
            Pass::Backward => {
                let attended = self.attend(frame, sharded, &[]);
                let exchanged = self.exchange(frame, op, &attended);
                self.attend(frame, local, &[]);
                Attended::behind(frame.content.shares.iter().map(|_| Vec::new()), &exchanged)
            }
        }
    }

    /// Key and value blocks one hop ahead of the attention that needs them; backward carries their gradients too.
    fn ring_attention(&mut self, frame: &Frame<'_>, leads: &[TaskId]) -> Attended {
        let (problem, pass) = (self.problem, frame.pass);
        let hops = problem.layout.cp - 1;
        let factor = if pass == Pass::Forward { 1 } else { 2 };
        let bytes = factor * self.key_value_bytes(frame.content) / u64::from(problem.layout.cp);
        let op = self.collective(Collective::RingShift, bytes, &frame.group.ranks, frame.n_layers * hops);
        let exchanged = self.exchange(frame, op, leads);
        let block = |share: &Share| layer::attention(problem, share.sharded.clone(), 1, pass);
        let overlapped = |share: &Share| {
            let mut ops = layer::attention(problem, share.local.clone(), 1, pass);
            ops.extend(layer::repeated(&block(share), hops));
            ops
        };
        self.attend(frame, overlapped, &[]);
        Attended::behind(frame.content.shares.iter().map(|s| layer::repeated(&block(s), frame.n_layers)), &exchanged)
    }

    /// Tokens for heads before attention and back after it (arXiv:2309.14509).
    fn ulysses_attention(&mut self, frame: &Frame<'_>, leads: &[TaskId]) -> Attended {
        let (problem, pass) = (self.problem, frame.pass);
        let model = &problem.model;
        let cp = u64::from(problem.layout.cp);
        let rows = frame.content.sharded_tokens.div_ceil(cp) * problem.dtype.bytes();
        let heads = rows * model.n_heads * model.head_dim;
        let all = heads + rows * 2 * model.n_kv_heads.max(cp) * model.head_dim;
        let (bytes_in, bytes_out) = if pass == Pass::Forward { (all, heads) } else { (heads, all) };
        let op_in = self.collective(Collective::AllToAll, bytes_in, &frame.group.ranks, frame.n_layers);
        let op_out = self.collective(Collective::AllToAll, bytes_out, &frame.group.ranks, frame.n_layers);
        let entered = self.exchange(frame, op_in, leads);
        self.attend(frame, |share| layer::attention(problem, share.local.clone(), 1, pass), &[]);
        let attended = self.attend(frame, |share| layer::attention(problem, share.sharded.clone(), cp, pass), &entered);
        let left = self.exchange(frame, op_out, &attended);
        Attended::behind(frame.content.shares.iter().map(|_| Vec::new()), &left)
    }
}

/// What the attention functions share.
struct Frame<'a> {
    group: &'a Group,
    content: &'a Content,
    n_layers: u32,
    pass: Pass,
    role: Role,
}

impl Attended {
    fn behind(after: impl Iterator<Item = Ops>, exchanged: &[TaskId]) -> Self {
        Self { after: after.collect(), preds: exchanged.iter().map(|&task| vec![task]).collect() }
    }
}
