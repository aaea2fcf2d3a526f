//! API servers of replicas: which take requests, and which were lost with those that wait at them.
//!
//! A replica that takes requests which arrive has as many as its frontend has processes. They are counted in the order of the replicas. Invariant: who waits at a
//! server that is lost is sent again at the tick of the loss, before anything later happens.

use std::ops::Range;

use hw::Tick;

use super::Run;
use crate::fleet::Fleet;
use crate::fleet::start::OnTheWay;
use crate::replica::{Replica, Role};

/// API servers of a fleet.
pub(in crate::fleet) struct Servers {
    /// Those of each replica.
    of_replicas: Vec<Range<u32>>,
    /// All of them, where a fleet does not change.
    all: Vec<u32>,
    /// Those of replicas that take requests.
    open: Vec<u32>,
    /// Those that were lost, and when; nobody has looked at who waits there.
    lost: Vec<u32>,
    lost_at: Tick,
}

impl Servers {
    pub(super) fn new(fleet: &Fleet, replicas: &[Replica<'_>]) -> Self {
        let of = |first: &mut u32, replica: &Replica<'_>| {
            let n = if replica.role() == Role::Decode { 0 } else { replica.limits().frontend.processes.get() };
            let own = *first..*first + n;
            *first = own.end;
            Some(own)
        };
        let of_replicas = replicas.iter().scan(0, of).collect();
        let all = (0..fleet.start.servers).collect();
        Self { of_replicas, all, open: Vec::new(), lost: Vec::new(), lost_at: Tick::ZERO }
    }

    /// Notes which replicas take requests.
    pub(super) fn find(&mut self, replicas: &[u32]) {
        self.open.clear();
        self.open.extend(replicas.iter().flat_map(|replica| self.of_replicas[*replica as usize].clone()));
    }

    /// Those of a replica are lost.
    pub(super) fn lose(&mut self, replica: u32, now: Tick) {
        self.lost.extend(self.of_replicas[replica as usize].clone());
        self.lost_at = now;
    }
}

impl Run<'_, '_> {
    /// API servers that take requests now. Those of a fleet that changes are those of the replicas that do.
    pub(in crate::fleet) fn open_servers(&self) -> &[u32] {
        let changes = self.control.is_active && self.stations.is_none();
        if changes { &self.servers.open } else { &self.servers.all }
    }

    /// Handles every event before a tick, up to the first that loses API servers; whether there was one.
    pub(in crate::fleet) fn run_until_loss(&mut self, tick: Tick) -> bool {
        while self.next_event(tick) {
            if !self.servers.lost.is_empty() {
                return true;
            }
        }
        false
    }

    /// Whoever is on the way through API servers that were lost is sent again.
    pub(in crate::fleet) fn send_again(&mut self, on_the_way: &mut OnTheWay) {
        if self.servers.lost.is_empty() {
            return;
        }
        let lost = std::mem::take(&mut self.servers.lost);
        for request in on_the_way.lose(&lost) {
            self.control.changes.n_retried += 1;
            let prompt = self.requests.list[request as usize].prompt;
            on_the_way.send((request, prompt), self.servers.lost_at, self.open_servers());
        }
    }
}
