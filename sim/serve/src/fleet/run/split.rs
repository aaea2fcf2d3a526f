//! The way from prefill to decode replicas: who goes where, and what is on the links.
//!
//! A computed prompt is routed once more, among decode replicas; there it waits for blocks; then its keys and values move
//! (`transfer.rs`), and only when they are there are the prefill replica's blocks free: a slow link or a full decode replica holds prefill
//! replicas up. Prompts of one tick go on after all ends of that tick.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::Run;
use crate::fleet::{Fleet, Link, Moved, Moves};
use crate::replica::Moving;
use crate::transfer::{Transfer, Transfers};
use hw::{Seconds, Tick};

/// A request between replicas.
#[derive(Clone, Copy, Debug)]
pub(in crate::fleet) struct Move {
    pub(in crate::fleet) from: u32,
    pub(in crate::fleet) to: u32,
    moving: Moving,
    /// When its blocks were reserved.
    since: Tick,
}

/// Everything between replicas.
pub(in crate::fleet) struct Split {
    pub(in crate::fleet) is_active: bool,
    /// Prompts that were computed, with their replica.
    handed: BinaryHeap<Reverse<(Moving, u32)>>,
    /// Prompts for which there is no decode replica now.
    pub(in crate::fleet) held: Vec<(Moving, u32)>,
    pub(in crate::fleet) moves: BTreeMap<u32, Move>,
    pub(in crate::fleet) transfers: Transfers,
    /// Links of each pair of groups that may move anything: what a transfer costs and where its limit is.
    links: BTreeMap<(u32, u32), (Link, Option<usize>)>,
    /// Limits of what replicas send and receive.
    ports: Vec<[Option<usize>; 2]>,
    /// By group, what its replicas hand on.
    of_group: Vec<Moves>,
    pub(in crate::fleet) moved: Moved,
}

impl Split {
    pub(in crate::fleet) fn new(fleet: &Fleet, group_of: &[u32]) -> Self {
        let mut capacity = Vec::new();
        let mut limit = |bytes_per_s: Option<f64>| {
            let found = bytes_per_s.filter(|rate| rate.is_finite() && *rate > 0.0)?;
            capacity.push(found);
            Some(capacity.len() - 1)
        };
        let mut links = BTreeMap::new();
        let (mut ports, mut in_order) = (Vec::new(), BTreeSet::new());
        if fleet.is_split() {
            let group = |index: usize| u32::try_from(index).expect("few groups");
            let mut wires: BTreeMap<u32, Option<usize>> = BTreeMap::new();
            for link in &fleet.links {
                let limit = match link.wire {
                    None => limit(link.bytes_per_s),
                    Some(wire) => *wires.entry(wire).or_insert_with(|| limit(link.bytes_per_s)),
                };
                links.insert((group(link.from), group(link.to)), (*link, limit));
            }
            in_order.extend(wires.into_values().flatten());
            let port = |group: u32| fleet.groups[group as usize].port_bytes_per_s;
            ports = group_of.iter().map(|group| [limit(port(*group)), limit(port(*group))]).collect();
        }
        Self {
            is_active: fleet.is_split(),
            handed: BinaryHeap::new(),
            held: Vec::new(),
            moves: BTreeMap::new(),
            transfers: Transfers::new(capacity).in_order(in_order),
            links,
            ports,
            of_group: fleet.groups.iter().map(|group| group.moves.clone()).collect(),
            moved: Moved::default(),
        }
    }

    pub(in crate::fleet) fn next(&self) -> Option<Tick> {
        let handed = self.handed.peek().map(|Reverse((moving, _))| moving.at);
        [handed, self.transfers.next()].into_iter().flatten().min()
    }

    pub(in crate::fleet) fn is_empty(&self) -> bool {
        self.handed.is_empty() && self.held.is_empty() && self.moves.is_empty()
    }

    /// Replica of a computed prompt for which there is no decode replica now.
    pub(in crate::fleet) fn holder(&self, request: u32) -> Option<u32> {
        self.held.iter().find(|(moving, _)| moving.request == request).map(|(_, from)| *from)
    }

    /// Prompts of a lost replica go nowhere.
    pub(in crate::fleet) fn drop_handed(&mut self, requests: &[u32]) {
        self.handed.retain(|Reverse((moving, _))| !requests.contains(&moving.request));
        self.held.retain(|(moving, _)| !requests.contains(&moving.request));
    }

    /// What moves a request's keys and values between two replicas of these groups.
    fn transfer_of(&self, request: u32, of: &Move, groups: (u32, u32)) -> Transfer {
        let Moves { kv_bytes_per_token, kept } = &self.of_group[groups.0 as usize];
        let mut tokens = f64::from(of.moving.tokens);
        let kept = hw::real(kept.bytes(of.moving.tokens.into()));
        let bytes = tokens * kv_bytes_per_token + kept;
        if kept > 0.0 && *kv_bytes_per_token > 0.0 {
            // What is packed, in tokens of layers that keep all.
            tokens += kept / kv_bytes_per_token;
        }
        let mut links: Vec<usize> =
            [self.ports[of.from as usize][0], self.ports[of.to as usize][1]].into_iter().flatten().collect();
        let Some((link, limit)) = self.links.get(&groups) else {
            return Transfer { name: request, delay: Tick::ZERO, bytes, links };
        };
        links.extend(limit);
        let delay = Tick::from_seconds_in_ns(Seconds::new(link.latency_s + tokens * link.pack_s_per_token));
        Transfer { name: request, delay, bytes: bytes * link.wire_ratio, links }
    }
}

impl Run<'_, '_> {
    /// Takes from a replica what goes on: what it owes others, prompts that were computed, and sequences that got their blocks.
    pub(in crate::fleet) fn collect(&mut self, replica: u32, now: Tick) {
        self.settle(replica, now);
        if !self.split.is_active {
            return;
        }
        for moving in self.replicas[replica as usize].take_done() {
            self.split.handed.push(Reverse((moving, replica)));
        }
        for request in self.replicas[replica as usize].take_reserved() {
            let of = self.split.moves.get_mut(&request).expect("a sequence that was sent here");
            of.since = now;
            let of = *of;
            let groups = (self.group_of[of.from as usize], self.group_of[of.to as usize]);
            self.split.moved.waiting_ticks += now - of.moving.at;
            let transfer = self.split.transfer_of(request, &of, groups);
            self.split.transfers.start(transfer, now);
        }
    }

    /// Sends computed prompts on.
    pub(in crate::fleet) fn hand_on(&mut self, now: Tick) {
        while let Some(Reverse((moving, from))) = self.split.handed.peek().copied() {
            if moving.at > now {
                break;
            }
            self.split.handed.pop();
            // Its replica may have been lost meanwhile.
            if self.replicas[from as usize].is_sending(moving.request) {
                self.onward(moving, from, now);
            }
        }
    }

    /// Chooses who decodes.
    pub(in crate::fleet) fn onward(&mut self, moving: Moving, from: u32, now: Tick) {
        let request = moving.request;
        if self.records.expire(request, now) {
            return self.leave_prefill(request, from, now);
        }
        let Some(to) = self.choose(request, Some(self.group_of[from as usize]), now) else {
            if self.may_come(request, 1) {
                self.split.held.push((moving, from));
            } else {
                self.records.refuse(request, now);
                self.leave_prefill(request, from, now);
            }
            return;
        };
        self.records.route(request, to);
        self.split.moves.insert(request, Move { from, to, moving, since: now });
        let end = self.replicas[to as usize].expect(moving, now, &mut self.records);
        self.reset(to, end);
        self.collect(to, now);
    }

    /// A computed prompt goes nowhere: its blocks come free.
    pub(in crate::fleet) fn leave_prefill(&mut self, request: u32, from: u32, now: Tick) {
        let end = self.replicas[from as usize].sent(request, now, &mut self.records);
        self.reset(from, end);
    }

    /// Moves transfers on to now.
    pub(in crate::fleet) fn transfer(&mut self, now: Tick) {
        if self.split.transfers.next().is_none_or(|next| next > now) {
            return;
        }
        for request in self.split.transfers.advance(now) {
            let of = self.split.moves.remove(&request).expect("a sequence that moves");
            let moved = &mut self.split.moved;
            moved.n += 1;
            moved.tokens += u64::from(of.moving.tokens);
            moved.ticks += now - of.since;
            let end = self.replicas[of.from as usize].sent(request, now, &mut self.records);
            self.reset(of.from, end);
            self.collect(of.from, now);
            self.rest(of.from, now);
            let end = self.replicas[of.to as usize].received(request, now, &mut self.records);
            self.reset(of.to, end);
            self.collect(of.to, now);
        }
    }
}
