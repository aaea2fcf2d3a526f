//! Several replicas behind a router: the event loop of serving.
//!
//! An event is the end of an iteration, or of a span of iterations, at one replica; between events nothing changes but by an
//! arrival. Order: time, then arrivals before ends, then the replica's index; so equal inputs give equal outputs on any machine.
//! A request that no replica could ever hold is refused and counted.

use crate::serving::records::Records;
use crate::serving::replica::{Counts, Engine, Replica};
use crate::serving::request::Requests;
use crate::serving::router::Router;
use crate::serving::step_cost::TICKS_PER_NS;

/// What a simulation gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Moments of every request, in order of arrival.
    pub records: Records,
    /// Counts of every replica.
    pub counts: Vec<Counts>,
    /// Most blocks in use and all blocks, of every replica.
    pub blocks: Vec<(u32, u32)>,
    /// Requests that no replica could hold.
    pub n_refused: u64,
}

/// Ends of what replicas have under way: a tree of minima, so that the earliest is at hand and ties go to the lowest index.
struct Ends {
    /// Node 1 is the root; leaf `i` is at `n_leaves + i`. Each node names its earliest replica.
    first: Vec<u32>,
    at: Vec<u64>,
    n_leaves: usize,
}

/// Nothing is under way.
const IDLE: u64 = u64::MAX;

impl Ends {
    fn new(n: usize) -> Self {
        let n_leaves = n.next_power_of_two();
        let at = vec![IDLE; n_leaves];
        let mut first = vec![0; 2 * n_leaves];
        for (index, leaf) in first[n_leaves..].iter_mut().enumerate() {
            *leaf = u32::try_from(index).expect("fewer than 2^32 replicas");
        }
        for node in (1..n_leaves).rev() {
            first[node] = first[2 * node];
        }
        Self { first, at, n_leaves }
    }

    fn earliest(&self) -> (u64, u32) {
        let replica = self.first[1];
        (self.at[replica as usize], replica)
    }

    fn set(&mut self, replica: u32, at: u64) {
        self.at[replica as usize] = at;
        let mut node = (self.n_leaves + replica as usize) / 2;
        while node > 0 {
            let (left, right) = (self.first[2 * node], self.first[2 * node + 1]);
            // The left one has the lower index.
            self.first[node] = if self.at[right as usize] < self.at[left as usize] { right } else { left };
            node /= 2;
        }
    }
}

/// Serves all requests to the end.
///
/// # Panics
/// When there is no replica.
#[must_use]
pub fn serve(requests: &Requests, engines: &[&Engine], router: &mut dyn Router) -> Served {
    assert!(!engines.is_empty(), "a fleet has a replica");
    let mut replicas: Vec<Replica<'_>> = engines.iter().map(|engine| Replica::new(engine, requests)).collect();
    let mut records = Records::new(requests.len());
    let mut ends = Ends::new(replicas.len());
    let mut n_refused = 0;
    for (index, request) in requests.list.iter().enumerate() {
        let now = request.arrival.as_ns() * TICKS_PER_NS;
        run_until(&mut replicas, &mut ends, &mut records, now);
        let id = u32::try_from(index).expect("fewer than 2^32 requests");
        let Some(chosen) = choose(router, id, &replicas) else {
            n_refused += 1;
            continue;
        };
        records.route(id, chosen);
        if let Some(end) = replicas[chosen as usize].enqueue(id, now, &mut records) {
            ends.set(chosen, end);
        }
    }
    run_until(&mut replicas, &mut ends, &mut records, IDLE);
    for replica in &replicas {
        assert!(replica.outstanding() == 0, "everyone is served in the end");
        debug_assert!(replica.pool.is_conserved());
        debug_assert!(replica.pool.held() == 0);
    }
    Served {
        records,
        counts: replicas.iter().map(|replica| replica.counts).collect(),
        blocks: replicas.iter().map(|replica| (replica.pool.peak(), replica.pool.total())).collect(),
        n_refused,
    }
}

/// Handles every end before a tick.
fn run_until(replicas: &mut [Replica<'_>], ends: &mut Ends, records: &mut Records, tick: u64) {
    loop {
        let (at, replica) = ends.earliest();
        if at >= tick {
            break;
        }
        let next = replicas[replica as usize].advance(records);
        ends.set(replica, next.unwrap_or(IDLE));
    }
}

/// The router's choice, or the first replica that can hold the request where the chosen one cannot.
fn choose(router: &mut dyn Router, request: u32, replicas: &[Replica<'_>]) -> Option<u32> {
    let chosen = router.choose(request, replicas);
    if replicas[chosen as usize].can_hold(request) {
        return Some(chosen);
    }
    let other = replicas.iter().position(|replica| replica.can_hold(request))?;
    Some(u32::try_from(other).expect("fewer than 2^32 replicas"))
}

#[cfg(test)]
mod tests;
