//! Adapters of a replica: which are on the device and which in host memory, who may join a batch, and how long loading takes.
//!
//! With as many different adapters running as there are slots, a request of another one is passed over, and those behind it may join; who is passed
//! over keeps its place (vLLM V1: `vllm/v1/core/sched/scheduler.py` @ 00024d314514, since vllm-project/vllm pull request 15422; SGLang's scheduler does
//! the same with `--max-loras-per-batch`). An adapter that is not on the device comes from host memory, one that is not there from disk, and the
//! iteration that takes its request in waits for it (`vllm/lora/worker_manager.py`, `LRUCacheWorkerLoRAManager`). The least recently used one makes room.
//! When a replica starts, it loads as many as the host holds; where use was at the
//! same time, the lowest number counts as used last. Units: adapters, ticks. Invariants:
//! what runs is on the device, what is on the device is in host memory, and neither holds more than its slots.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::{Composed, Replica};
use crate::adapters::AdapterLimits;
use crate::request::Requests;
use crate::step_cost::adapters::AdapterLoad;
use hw::Tick;

/// Bits of a word.
const WORD: usize = 64;

/// Adapters that a memory holds.
#[derive(Clone, Debug)]
struct Shelf {
    slots: u32,
    n: u32,
    holds: Vec<bool>,
    /// Those that nobody uses, by when they were last used.
    idle: BTreeMap<u64, u32>,
}

impl Shelf {
    fn new(slots: u32, n_adapters: usize) -> Self {
        Self { slots, n: 0, holds: vec![false; n_adapters], idle: BTreeMap::new() }
    }

    /// Uses one that was last used at `stamp`; whether it was there. If not, it is now, in the place of the one used longest ago.
    fn take(&mut self, adapter: u32, stamp: u64) -> bool {
        if self.holds[adapter as usize] {
            self.idle.remove(&stamp);
            return true;
        }
        if self.n == self.slots {
            let (_, oldest) = self.idle.pop_first().expect("fewer adapters run than there are slots");
            self.holds[oldest as usize] = false;
            self.n -= 1;
        }
        self.holds[adapter as usize] = true;
        self.n += 1;
        false
    }
}

/// Sequences of an adapter.
#[derive(Clone, Copy, Debug, Default)]
struct Users {
    running: u32,
    decoding: u32,
    /// When the last one left.
    stamp: u64,
}

/// Adapters of a replica.
#[derive(Clone, Debug)]
pub(super) struct Adapters {
    limits: AdapterLimits,
    device: Shelf,
    host: Shelf,
    /// By number less one.
    users: Vec<Users>,
    /// Adapters that run.
    n_running: u32,
    /// Adapters that decode, and their sequences.
    n_decoding: u32,
    n_decode: u32,
    /// Adapter of every slot of a sequence that runs.
    of_slot: Vec<Option<NonZeroU32>>,
    /// Boundaries of iterations so far.
    clock: u64,
    /// Requests that were passed over, a bit each.
    passed: Vec<u64>,
}

impl Adapters {
    /// Of an engine with room for some, where some are asked for.
    pub(super) fn of(limits: Option<AdapterLimits>, requests: &Requests) -> Option<Box<Self>> {
        let n = requests.ranks.len();
        let limits = limits.filter(|_| n > 0)?;
        let mut adapters = Self {
            limits,
            device: Shelf::new(limits.slots, n),
            host: Shelf::new(limits.host_slots, n),
            users: vec![Users::default(); n],
            n_running: 0,
            n_decoding: 0,
            n_decode: 0,
            of_slot: Vec::new(),
            clock: 0,
            passed: Vec::new(),
        };
        adapters.start();
        Some(Box::new(adapters))
    }

    /// Loads what there is room for, the lowest numbers last; nobody runs.
    fn start(&mut self) {
        let n = self.users.len();
        (self.device, self.host) = (Shelf::new(self.limits.slots, n), Shelf::new(self.limits.host_slots, n));
        for adapter in (0..u32::try_from(n).expect("few adapters")).rev() {
            self.device.take(adapter, 0);
            self.host.take(adapter, 0);
            self.rest(adapter);
        }
    }

    /// Nobody uses an adapter any more. Of those that are let go at one boundary the lowest number counts as used last.
    fn rest(&mut self, adapter: u32) {
        let stamp = (self.clock << u32::BITS) + u64::from(u32::MAX - adapter);
        self.users[adapter as usize].stamp = stamp;
        self.device.idle.insert(stamp, adapter);
        self.host.idle.insert(stamp, adapter);
    }

    /// Whether a request of an adapter may join those that run.
    fn admits(&self, adapter: Option<NonZeroU32>) -> bool {
        let runs = |adapter: NonZeroU32| self.users[adapter.get() as usize - 1].running > 0;
        adapter.is_none_or(|adapter| self.n_running < self.limits.slots || runs(adapter))
    }

    /// A sequence with a slot runs from now on; ticks until its adapter is on the device.
    fn enter(&mut self, id: u32, adapter: NonZeroU32, rank: u32) -> Tick {
        let id = id as usize;
        self.of_slot.resize(self.of_slot.len().max(id + 1), None);
        self.of_slot[id] = Some(adapter);
        let adapter = adapter.get() - 1;
        let users = &mut self.users[adapter as usize];
        users.running += 1;
        if users.running > 1 {
            return Tick::ZERO;
        }
        self.n_running += 1;
        let stamp = users.stamp;
        let is_here = self.device.take(adapter, stamp);
        let is_near = self.host.take(adapter, stamp);
        let AdapterLimits { host_ticks, disk_ticks, .. } = self.limits;
        let of_rank = |ticks: Tick, is_there: bool| if is_there { Tick::ZERO } else { ticks * u64::from(rank) };
        of_rank(host_ticks, is_here) + of_rank(disk_ticks, is_near)
    }

    /// The adapter of a slot, from 0 on.
    fn at(&self, id: u32) -> Option<u32> {
        let found = self.of_slot.get(id as usize).copied().flatten();
        found.map(|adapter| adapter.get() - 1)
    }

    /// A sequence runs no more, if it did.
    fn exit(&mut self, id: u32) {
        let Some(adapter) = self.at(id) else { return };
        self.of_slot[id as usize] = None;
        let users = &mut self.users[adapter as usize];
        users.running -= 1;
        if users.running == 0 {
            self.n_running -= 1;
            self.rest(adapter);
        }
    }

    /// A sequence decodes from now on, or no more.
    fn decodes(&mut self, id: u32, is_on: bool) {
        let Some(adapter) = self.at(id) else { return };
        let users = &mut self.users[adapter as usize];
        let before = users.decoding;
        users.decoding = if is_on { before + 1 } else { before - 1 };
        match (before, is_on) {
            (0, true) => self.n_decoding += 1,
            (1, false) => self.n_decoding -= 1,
            _ => {}
        }
        self.n_decode = if is_on { self.n_decode + 1 } else { self.n_decode - 1 };
    }

    /// What adapters compute in an iteration of these chunks, beside so many tokens of each decoding sequence.
    fn load(&self, chunks: &[(u32, u32)], tokens: u32) -> AdapterLoad {
        let decodes = tokens > 0;
        let mut load = AdapterLoad { tokens: tokens * self.n_decode, n: if decodes { self.n_decoding } else { 0 } };
        let mut of_chunks = Vec::new();
        for (id, new) in chunks {
            let Some(adapter) = self.at(*id) else { continue };
            load.tokens += new;
            let is_known = decodes && self.users[adapter as usize].decoding > 0;
            if !is_known && !of_chunks.contains(&adapter) {
                of_chunks.push(adapter);
            }
        }
        load.n += u32::try_from(of_chunks.len()).expect("few chunks");
        load
    }

    /// Marks a request as passed over; whether it was not before.
    fn pass(&mut self, request: u32) -> bool {
        let (word, bit) = (request as usize / WORD, 1_u64 << (request as usize % WORD));
        self.passed.resize(self.passed.len().max(word + 1), 0);
        let is_new = self.passed[word] & bit == 0;
        self.passed[word] |= bit;
        is_new
    }
}

impl Replica<'_> {
    /// Whether a request's adapter runs, or finds a slot.
    pub(super) fn admits_adapter(&self, request: u32) -> bool {
        let admits = |adapters: &Adapters| adapters.admits(self.requests.adapter_of(request as usize));
        self.adapters.as_deref().is_none_or(admits)
    }

    /// Position in the queue of whoever comes first among those whose adapter finds a slot.
    pub(super) fn in_turn(&self) -> Option<usize> {
        let n_seen = self.waiting.len() - self.n_unseen;
        (0..n_seen).find(|at| self.admits_adapter(self.who(self.waiting[*at])))
    }

    /// Whether a newcomer may join before those who wait, because their adapters find no slot.
    pub(super) fn passes(&self, request: u32) -> bool {
        let first = self.waiting.front().filter(|_| self.adapters.is_some());
        first.is_some_and(|first| !self.admits_adapter(self.who(*first)) && self.admits_adapter(request))
    }

    /// So many at the head of the queue were passed over.
    pub(super) fn count_passed(&mut self, n: usize) {
        for at in 0..n {
            let request = self.who(self.waiting[at]);
            let is_new = self.adapters.as_mut().is_some_and(|adapters| adapters.pass(request));
            self.counts.n_passed_over += u64::from(is_new);
        }
    }

    /// A sequence is taken in; ticks until its adapter is on the device.
    pub(super) fn take_adapter(&mut self, id: u32) -> Tick {
        let request = self.slots[id as usize].request as usize;
        let (Some(adapters), Some(adapter)) = (&mut self.adapters, self.requests.adapter_of(request)) else {
            return Tick::ZERO;
        };
        let ticks = adapters.enter(id, adapter, self.requests.ranks[adapter.get() as usize - 1]);
        self.counts.n_adapter_loads += u64::from(ticks > Tick::ZERO);
        self.counts.adapter_load_ticks += ticks;
        ticks
    }

    /// A sequence gives its place up.
    pub(super) fn let_adapter_go(&mut self, id: u32) {
        if let Some(adapters) = &mut self.adapters {
            adapters.exit(id);
        }
    }

    /// A sequence decodes from now on, or no more.
    pub(super) fn decode_adapter(&mut self, id: u32, is_on: bool) {
        if let Some(adapters) = &mut self.adapters {
            adapters.decodes(id, is_on);
        }
    }

    /// What adapters compute in an iteration.
    pub(super) fn adapter_load(&self, composed: &Composed) -> AdapterLoad {
        let tokens = if composed.decodes { self.engine.table.tokens_per_sequence() } else { 0 };
        self.adapters.as_ref().map_or_else(AdapterLoad::default, |adapters| adapters.load(&composed.chunks, tokens))
    }

    /// Counts what adapters have computed in so many iterations that end now.
    pub(super) fn count_adapters(&mut self, n_steps: u64) {
        let load = self.adapter_load(&self.composed);
        if let Some(adapters) = &mut self.adapters {
            adapters.clock += 1;
            self.counts.adapter_tokens += n_steps * u64::from(load.tokens);
            self.counts.adapters_read += n_steps * u64::from(load.n);
        }
    }

    /// The device's memory is lost, and the host's process with it.
    pub(super) fn forget_adapters(&mut self) {
        if let Some(adapters) = &mut self.adapters {
            adapters.start();
        }
    }
}

#[cfg(test)]
impl Adapters {
    /// Adapters that run, that decode, and sequences with one that decode.
    pub(super) const fn running(&self) -> (u32, u32, u32) {
        (self.n_running, self.n_decoding, self.n_decode)
    }

    /// Numbers of the adapters on the device.
    pub(super) fn on_device(&self) -> Vec<u32> {
        (1..).zip(&self.device.holds).filter(|(_, holds)| **holds).map(|(number, _)| number).collect()
    }
}
