//! The event loop of serving.
//!
//! An event is the end of an iteration, or of a span of iterations, at one replica; between events nothing changes but by an arrival.
//! Order: time, then arrivals before ends, then the replica's index; so equal inputs give equal outputs on any machine.

use super::Served;
use super::ends::{Ends, IDLE};
use crate::serving::assignment::Assignment;
use crate::serving::records::Records;
use crate::serving::replica::{Engine, Replica};
use crate::serving::request::Requests;
use crate::serving::router::{Router, View};
use crate::serving::step_cost::TICKS_PER_NS;

/// What a run starts from.
pub(super) struct Setup<'a, 'e> {
    pub(super) requests: &'a Requests,
    /// By replica.
    pub(super) engines: &'e [&'a Engine],
    /// By replica, ascending.
    pub(super) group_of: Vec<u32>,
    pub(super) assignment: &'a Assignment,
}

/// A simulation under way.
pub(super) struct Run<'a, 'r> {
    requests: &'a Requests,
    replicas: Vec<Replica<'a>>,
    group_of: Vec<u32>,
    /// Replicas that take requests, ascending.
    candidates: Vec<u32>,
    assignment: &'a Assignment,
    router: &'r mut dyn Router,
    records: Records,
    ends: Ends,
    n_refused: u64,
}

impl<'a, 'r> Run<'a, 'r> {
    pub(super) fn new(setup: Setup<'a, '_>, router: &'r mut dyn Router) -> Self {
        let Setup { requests, engines, group_of, assignment } = setup;
        assert!(!engines.is_empty(), "a fleet has a replica");
        let replicas: Vec<Replica<'a>> = engines.iter().map(|engine| Replica::new(engine, requests)).collect();
        let n = u32::try_from(replicas.len()).expect("fewer than 2^32 replicas");
        Self {
            requests,
            group_of,
            candidates: (0..n).collect(),
            assignment,
            router,
            records: Records::new(requests.len()),
            ends: Ends::new(replicas.len()),
            replicas,
            n_refused: 0,
        }
    }

    /// Serves everything.
    pub(super) fn play(mut self) -> Served {
        for (index, request) in self.requests.list.iter().enumerate() {
            let now = request.arrival.as_ns() * TICKS_PER_NS;
            self.run_until(now);
            self.arrive(u32::try_from(index).expect("fewer than 2^32 requests"), now);
        }
        self.run_until(IDLE);
        self.served()
    }

    /// Handles every end before a tick.
    fn run_until(&mut self, tick: u64) {
        loop {
            let (at, replica) = self.ends.earliest();
            if at >= tick {
                break;
            }
            let next = self.replicas[replica as usize].advance(&mut self.records);
            self.ends.set(replica, next.unwrap_or(IDLE));
        }
    }

    /// Takes in a request.
    fn arrive(&mut self, request: u32, now: u64) {
        let Some(chosen) = self.choose(request, None) else {
            self.n_refused += 1;
            return;
        };
        self.records.route(request, chosen);
        if let Some(end) = self.replicas[chosen as usize].enqueue(request, now, &mut self.records) {
            self.ends.set(chosen, end);
        }
    }

    /// The router's choice, or the least loaded replica that can hold the request where the chosen one cannot.
    fn choose(&mut self, request: u32, from: Option<u32>) -> Option<u32> {
        let (replicas, candidates) = (&self.replicas, &self.candidates);
        let view = View { replicas, candidates, group_of: &self.group_of, assignment: self.assignment, from };
        let chosen = self.router.choose(request, &view);
        let can_hold = |replica: u32| replicas[replica as usize].can_hold(request);
        if can_hold(chosen) { Some(chosen) } else { view.least_loaded(can_hold) }
    }

    fn served(self) -> Served {
        for replica in &self.replicas {
            assert!(replica.outstanding() == 0, "everyone is served in the end");
            debug_assert!(replica.pool.is_conserved());
            debug_assert!(replica.pool.held() == 0);
        }
        let end = self.records.end_ticks();
        Served {
            paid_ticks: vec![end; self.replicas.len()],
            counts: self.replicas.iter().map(|replica| replica.counts).collect(),
            blocks: self.replicas.iter().map(|replica| (replica.pool.peak(), replica.pool.total())).collect(),
            group_of: self.group_of,
            records: self.records,
            n_refused: self.n_refused,
        }
    }
}
