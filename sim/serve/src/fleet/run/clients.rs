//! Clients who wait so long and then give up, wherever their request is by then.
//!
//! What is due at a tick is handled after everything else of it, so that a token which comes at the deadline is in time. Units: ticks. Invariant: a
//! request that has ended is never given up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Run, Waiter};
use crate::request::Requests;
use hw::Tick;

/// Clients with a deadline.
pub(super) struct Clients {
    pub(super) is_active: bool,
    /// Ticks at which clients may give up, with their requests; those that have ended are passed over.
    due: BinaryHeap<Reverse<(Tick, u32)>>,
}

impl Clients {
    pub(super) fn new(requests: &Requests) -> Self {
        Self { is_active: requests.has_deadlines(), due: BinaryHeap::new() }
    }

    pub(super) fn next(&self) -> Option<Tick> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Nobody waits any more.
    pub(super) fn end(&mut self) {
        self.due.clear();
    }
}

impl Run<'_, '_> {
    /// A request that was sent at `since` reaches the router.
    pub(in crate::fleet) fn arrive(&mut self, request: u32, since: Tick, now: Tick) {
        if self.clients.is_active {
            let patience = self.requests.patience_of(request as usize);
            let deadlines = self.records.wait(request, since, &patience);
            // It may have been on its way for too long.
            if self.records.expire(request, now) {
                return;
            }
            let is_set = |deadline: &Tick| *deadline != Tick::NEVER;
            self.clients.due.extend(deadlines.into_iter().filter(is_set).map(|deadline| Reverse((deadline, request))));
        }
        self.dispatch(Waiter { request, again: None }, now);
        if self.clients.is_active {
            // Whoever waits at the router gives up there.
            self.find_side();
        }
    }

    /// Handles clients whose patience ends.
    pub(super) fn give_up(&mut self, now: Tick) {
        while let Some(Reverse((at, request))) = self.clients.due.peek().copied() {
            if at > now {
                break;
            }
            self.clients.due.pop();
            if self.records.is_late(request, now) {
                self.take_away(request, now);
            }
        }
    }

    /// Takes a request from where it is.
    fn take_away(&mut self, request: u32, now: Tick) {
        let backlog = self.control.backlog.len();
        self.control.backlog.retain(|waiter| waiter.request != request);
        if self.control.backlog.len() < backlog {
            self.records.expire(request, now);
            return;
        }
        // One that waits for a decode replica is where its prompt was computed, whoever was to decode it before.
        let routed = self.records.list[request as usize].replica;
        let replica = self.split.holder(request).unwrap_or(routed);
        if let Some(of) = self.split.moves.remove(&request) {
            self.records.expire(request, now);
            self.split.transfers.cancel(request, now);
            let end = self.replicas[of.to as usize].forget(request, now, &mut self.records);
            self.reset(of.to, end);
            self.leave_prefill(request, of.from, now);
            self.collect(of.to, now);
            self.collect(of.from, now);
        } else if self.replicas[replica as usize].is_sending(request) {
            self.records.expire(request, now);
            self.split.drop_handed(&[request]);
            self.leave_prefill(request, replica, now);
            self.collect(replica, now);
        } else {
            let end = self.replicas[replica as usize].give_up(request, now, &mut self.records);
            self.reset(replica, end);
            self.collect(replica, now);
        }
        self.rest(replica, now);
    }
}
