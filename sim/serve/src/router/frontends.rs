//! Several frontends share the requests, and each of them deals its own to replicas in turn.
//!
//! A balancer in front of them gives a request to any of them. So replicas get bursts and gaps, though every frontend is even.
//! Source: NVIDIA/srt-slurm @ c88ef731 (Apache-2.0), `core/schema.py` (`enable_multiple_frontends`, `num_additional_frontends = 9`) and
//! `templates/nginx.conf.j2` (`worker_processes auto`: each process of nginx takes turns of its own, so together they choose at random).

use engine::random::{self, Stream};

use crate::router::{Router, View};

/// Frontends where nobody says how many: one, and those that recipes add.
pub const FRONTENDS: u32 = 10;

/// The policy.
pub(super) struct Frontends {
    stream: Stream,
    /// Turns of every frontend, by round.
    next: Vec<Vec<usize>>,
    n: u32,
    /// Frontend of every request: one that it has sent to a prompt's replica goes on there.
    of: Vec<Option<usize>>,
}

impl Frontends {
    pub(super) fn new(n: u32, seed: u64) -> Self {
        let mut frontends =
            Self { stream: random::stream(seed, "frontends"), next: Vec::new(), n: n.max(1), of: Vec::new() };
        frontends.begin(1);
        frontends
    }

    /// Begins the rounds up to one of them. Frontends do not begin it together: each has served requests of its own.
    fn begin(&mut self, round: usize) {
        while self.next.len() <= round {
            self.next.push((0..self.n).map(|_| drawn(&mut self.stream, 1 << 20)).collect());
        }
    }

    fn frontend_of(&mut self, request: u32) -> usize {
        let (request, n) = (request as usize, u64::from(self.n));
        self.of.resize(self.of.len().max(request + 1), None);
        *self.of[request].get_or_insert_with(|| drawn(&mut self.stream, n))
    }
}

fn drawn(stream: &mut Stream, below: u64) -> usize {
    usize::try_from(stream.below(below)).expect("a small number")
}

impl Router for Frontends {
    fn choose(&mut self, request: u32, view: &View<'_, '_>) -> u32 {
        let frontend = self.frontend_of(request);
        let n = view.candidates.len();
        self.begin(view.round());
        let next = &mut self.next[view.round()][frontend];
        let at = *next % n;
        *next = (at + 1) % n;
        view.candidates[at]
    }
}
