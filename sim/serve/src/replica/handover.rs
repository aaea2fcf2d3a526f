//! Prompts computed on one replica and decoded on another: who holds which blocks until keys and values have moved.
//!
//! A prefill replica computes the prompt and gives the first token; then its blocks are held until the transfer has ended. A decode
//! replica takes the blocks of a sequence before its transfer starts, as engines do that read into place (vLLM's connectors, Mooncake), in
//! order of request, leaving the watermark free, and never before a sequence that was preempted here. It does so when its host looks for requests
//! (`looks.rs`), and later where blocks have to come free. A host that waits for the device and looks whenever it can takes free blocks at once:
//! they are bookkeeping. When everything is there, the sequence joins the batch at the next boundary at which
//! the host can compose with it: a host that is ahead has composed one iteration without it. Blocks on both sides cannot be preempted.
//! Units: tokens, blocks, ticks. Invariant: a request counts as outstanding at one replica at a time, at the decode replica from the moment
//! it is sent there.
//!
//! Source: sgl-project/sglang v0.5.8, `event_loop_overlap_disagg_decode` and `process_decode_queue` (Apache-2.0). Every turn of the loop asks for requests
//! (`recv_requests`, which may skip), takes blocks (`pop_preallocated`) and looks which keys and values have come (`pop_transferred`). A turn in which
//! sequences join launches nothing, and the next turn looks for requests (`SchedulerRecvSkipper` counts it a thousand).

use std::collections::{BTreeMap, VecDeque};

use super::{Composed, Lag, Phase, Ranks, Replica, Slot, Waiting};
use crate::records::Records;
use hw::Tick;

hw::words! {
    /// What a replica does.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Role: word {
        /// Prompts and outputs.
        #[default]
        Both = "both",
        /// Prompts and first tokens.
        Prefill = "prefill",
        /// Outputs after the first token; a preempted sequence is computed again here.
        Decode = "decode",
        /// Outputs of prompts that machines outside of the fleet compute: keys and values are here when the request comes.
        Outputs = "outputs",
    }
}

hw::words! {
    /// Who gives the client the first token of a prompt that is decoded elsewhere.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum FirstToken: word {
        /// The prefill replica, as soon as the prompt is computed.
        #[default]
        Prefill = "prefill",
        /// The decode replica, when the sequence joins its batch. So the transfer and the wait for a place come before the first token.
        Decode = "decode",
    }
}

/// A sequence whose keys and values go to another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moving {
    /// When its last prompt token was computed.
    pub at: Tick,
    /// Request.
    pub request: u32,
    /// Tokens whose keys and values move.
    pub tokens: u32,
    /// Output tokens so far.
    pub generated: u32,
}

/// Sequences between replicas.
#[derive(Debug, Default)]
pub(super) struct Handover {
    pub(super) role: Role,
    pub(super) first_token: FirstToken,
    /// Computed here since the fleet last asked.
    done: Vec<Moving>,
    /// Slots whose blocks are held here until they are sent, by request.
    pub(super) sending: BTreeMap<u32, u32>,
    /// Sequences that the host has not seen yet.
    pub(super) unseen: VecDeque<Moving>,
    /// Sequences that wait for blocks here.
    pub(super) expected: VecDeque<Moving>,
    /// Requests that got their blocks here since the fleet last asked.
    reserved: Vec<u32>,
    /// Slots with blocks here whose keys and values are on the way, by request.
    pub(super) receiving: BTreeMap<u32, u32>,
    /// Slots whose keys and values have come since the host last looked for them.
    pub(super) arrived: Vec<u32>,
    /// Slots whose keys and values are here, as the host knows.
    pub(super) ready: VecDeque<u32>,
}

impl Handover {
    /// Whether blocks are held for sequences between replicas.
    pub(super) fn holds(&self) -> bool {
        !self.sending.is_empty() || !self.receiving.is_empty()
    }

    /// Whether the host has something to see.
    pub(super) fn has_news(&self) -> bool {
        !self.unseen.is_empty() || !self.arrived.is_empty()
    }

    /// Nobody is between this replica and others any more.
    pub(super) fn clear(&mut self) {
        *self = Self { role: self.role, first_token: self.first_token, ..Self::default() };
    }
}

impl Replica<'_> {
    /// What the replica does.
    pub const fn role(&self) -> Role {
        self.handover.role
    }

    /// Gives an idle replica its role.
    pub fn with_role(mut self, role: Role) -> Self {
        let limits = &self.engine.limits;
        let is_for_others = role == Role::Prefill;
        self.ranks = Ranks::of((limits.gather, limits.prompt_rank), is_for_others, self.engine.table.lanes().ranks);
        self.handover.role = role;
        self
    }

    /// Says who gives first tokens of prompts that are decoded elsewhere.
    pub(crate) const fn with_first_token(mut self, first_token: FirstToken) -> Self {
        self.handover.first_token = first_token;
        self
    }

    /// Whether the client has a token of a prompt at its end, or only when another replica goes on.
    pub(super) fn tells_at_end(&self, is_last: bool) -> bool {
        is_last || self.role() != Role::Prefill || self.handover.first_token == FirstToken::Prefill
    }

    /// A computed prompt leaves the batch and its rank; its blocks stay until it is sent (TensorRT-LLM, `py_executor.py`: `_send_disagg_ctx_cache` frees the place,
    /// `_handle_responses` takes the request out of those that are active).
    pub(super) fn hand_over(&mut self, id: u32, now: Tick) {
        let slot = &mut self.slots[id as usize];
        // What refers to it as running is void: it cannot be preempted.
        slot.epoch += 1;
        slot.phase = Phase::Moving;
        let Slot { request, target: tokens, generated, .. } = *slot;
        // Its micro-batch may have left the pipeline before the round ended; it goes on with the round.
        let at = now.shifted(self.lag(&self.slots[id as usize]).max(0));
        self.handover.done.push(Moving { at, request, tokens, generated });
        self.handover.sending.insert(request, id);
        // Its blocks are those of the transfer.
        self.give_place(id, 0, now);
        self.leave_rank(id);
        self.let_adapter_go(id);
        self.count_out(request);
    }

    /// Prompts that were computed since the last call.
    pub fn take_done(&mut self) -> Vec<Moving> {
        std::mem::take(&mut self.handover.done)
    }

    /// Everything of a request has left: its blocks come free. Returns the end of what starts now, if anything does.
    pub fn sent(&mut self, request: u32, now: Tick, records: &mut Records) -> Option<Tick> {
        let id = self.handover.sending.remove(&request).expect("a request that is being sent");
        self.vacate(id, self.slots[id as usize].blocks);
        if self.going.is_none() && self.has_waiting() { self.begin(now, records) } else { None }
    }

    /// Takes in a sequence whose keys and values are elsewhere. An idle host sees it, and one that waits for the device takes free blocks for it at once.
    /// Returns the end of what is under way, if that is new or has moved.
    pub fn expect(&mut self, moving: Moving, now: Tick, records: &mut Records) -> Option<Tick> {
        self.count_in(moving.request, now);
        self.handover.unseen.push_back(moving);
        let is_idle = self.going.is_none();
        if !is_idle && (self.engine.table.is_asynchronous() || self.engine.limits.recv_interval.get() > 1) {
            return self.look_soon(now);
        }
        self.see_expected();
        let end = self.interrupt(now, records);
        if !is_idle {
            self.reserve();
        }
        end
    }

    /// The host sees who is to come.
    pub(super) fn see_expected(&mut self) {
        for moving in std::mem::take(&mut self.handover.unseen) {
            let class = self.class_of(moving.request);
            let at = self.handover.expected.partition_point(|other| self.class_of(other.request) <= class);
            self.handover.expected.insert(at, moving);
        }
    }

    /// As an iteration begins a host that is ahead sees who has come: they join the one after it. Between the turn in which sequences join
    /// and the iteration that they join, every host looks for requests.
    pub(super) fn look_as_it_begins(&mut self) {
        let is_ahead = self.engine.table.is_asynchronous();
        if self.composed.joins {
            self.looks.idle();
            self.see_all();
        }
        if is_ahead {
            self.looks.count(1, !self.composed.chunks.is_empty(), self.engine.limits.recv_interval);
            self.handover.ready.extend(self.handover.arrived.drain(..));
        }
        if self.looks.now() {
            self.see_all();
        }
        if self.role() == Role::Decode {
            self.reserve();
        }
    }

    /// Requests that got their blocks since the last call: their transfers may start.
    pub fn take_reserved(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.handover.reserved)
    }

    /// All keys and values of a request are here. Returns the end of what is under way, if that is new or has moved.
    pub fn received(&mut self, request: u32, now: Tick, records: &mut Records) -> Option<Tick> {
        let id = self.handover.receiving.remove(&request).expect("a request that is on its way");
        self.handover.arrived.push(id);
        self.interrupt(now, records)
    }

    /// Between iterations: what is here joins the batch, but for those whose adapter finds no slot, and who waits gets the blocks that came free.
    pub(super) fn receive(&mut self, composed: &mut Composed, now: Tick, records: &mut Records) {
        let n_before = self.n_running();
        while self.n_running() < self.sequences_max() {
            let admits = |id: &u32| self.admits_adapter(self.slots[*id as usize].request);
            let Some(at) = self.handover.ready.iter().position(admits) else { break };
            let id = self.handover.ready.remove(at).expect("a place in the queue");
            composed.transfer_ticks += self.take_adapter(id);
            let Slot { request, target: tokens, .. } = self.slots[id as usize];
            // Where the prefill replica gave it, this says nothing new.
            let told = match self.handover.first_token {
                FirstToken::Prefill => now,
                FirstToken::Decode => self.hand_on_first(now),
            };
            records.give_first_token(request, told);
            self.slots[id as usize].lag = self.lag_in_place(self.place_free(0), now);
            self.join(id, tokens);
            self.remember(id);
        }
        self.reserve();
        composed.joins = self.n_running() > n_before;
    }

    /// Gives blocks to who waits for them, in order. During a span those count as taken that its iterations take up to the one under way.
    fn reserve(&mut self) {
        let going = self.going.as_ref().filter(|_| self.composed.decodes);
        let grown = going.map_or(0, |going| self.grown(going.n_steps));
        // Sequences that were preempted here come first.
        while self.waiting.is_empty() {
            let Some(&Moving { request, tokens, generated, .. }) = self.handover.expected.front() else { break };
            let blocks = self.blocks_of(tokens);
            let spare = self.spare_for(request, blocks, grown);
            if self.pool.available() < blocks.saturating_add(spare) || !self.pool.take(blocks) {
                break;
            }
            self.handover.expected.pop_front();
            let id = self.free_slot();
            let slot = &mut self.slots[id as usize];
            (slot.request, slot.phase, slot.generated, slot.target) = (request, Phase::Moving, generated, tokens);
            (slot.computed, slot.blocks, slot.shared, slot.lag) = (tokens, blocks, 0, Lag::default());
            self.keep_for(id);
            self.take_up(request, id);
            self.handover.receiving.insert(request, id);
            self.handover.reserved.push(request);
        }
    }

    /// Whether nobody has blocks here, or is on the way with blocks here.
    pub(super) fn holds_nobody(&self) -> bool {
        let handover = &self.handover;
        self.n_running() == 0
            && handover.receiving.is_empty()
            && handover.arrived.is_empty()
            && handover.ready.is_empty()
    }

    /// Whether nobody is left who could be served now.
    pub(super) fn may_rest(&self) -> bool {
        let waits = self.has_waiting() || !self.handover.expected.is_empty() || !self.handover.ready.is_empty();
        !waits || self.handover.holds() || self.is_short()
    }

    /// Whether nobody is here, nobody from elsewhere has blocks here, and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.outstanding == 0 && self.going.is_none() && !self.handover.holds() && self.pool.lent() == 0
    }

    /// Takes back a sequence that failed elsewhere: it is computed again from its prompt and the tokens that the client has. Returns
    /// the end of what is under way, if that is new or has moved.
    pub fn enqueue_again(&mut self, request: u32, generated: u32, now: Tick, records: &mut Records) -> Option<Tick> {
        self.count_in(request, now);
        let id = self.free_slot();
        let slot = &mut self.slots[id as usize];
        (slot.request, slot.phase, slot.generated) = (request, Phase::Waiting, generated);
        slot.target = self.requests.list[request as usize].prompt + generated;
        (slot.computed, slot.blocks, slot.shared, slot.lag) = (0, 0, 0, Lag::default());
        if self.n_unseen > 0 {
            // Behind somebody whom the host has not seen, nobody is seen.
            self.waiting.push_back(Waiting::Again(id));
            self.n_unseen += 1;
        } else {
            self.queue(Waiting::Again(id));
        }
        self.interrupt(now, records)
    }
}
