//! Time of threads without what they waited for a core, which says more of other programs than of a kernel.
//!
//! Linux counts how long a thread was ready and did not run. Where it does not say so the time is that of the wall.

use std::time::Instant;

/// Time of the threads of a pool.
pub struct Clock {
    begun: Instant,
    waited_s: f64,
}

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        Self { waited_s: waited_of_pool_s(), begun: Instant::now() }
    }

    /// Seconds since the start, without the mean wait of a thread.
    pub fn seconds(&self) -> f64 {
        let wall = self.begun.elapsed().as_secs_f64();
        (wall - (waited_of_pool_s() - self.waited_s)).max(wall * 1e-3)
    }
}

/// Time of the thread that asks.
pub struct ThreadClock {
    begun: Instant,
    waited_s: f64,
}

impl ThreadClock {
    /// Starts now.
    pub fn start() -> Self {
        Self { waited_s: waited_s(), begun: Instant::now() }
    }

    /// Seconds since the start, without the thread's wait.
    pub fn seconds(&self) -> f64 {
        let wall = self.begun.elapsed().as_secs_f64();
        (wall - (waited_s() - self.waited_s)).max(wall * 1e-3)
    }
}

/// Mean wait of a thread of the pool so far.
fn waited_of_pool_s() -> f64 {
    let all = rayon::broadcast(|_| waited_s());
    all.iter().sum::<f64>() / hw::real(all.len() as u64)
}

/// Seconds that this thread was ready and did not run: the second figure of its `schedstat`.
fn waited_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    ns.map_or(0.0, |ns| hw::real(ns) * 1e-9)
}
