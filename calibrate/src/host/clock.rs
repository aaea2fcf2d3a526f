//! Time of threads without what they waited for a core, which says more of other programs than of a kernel.
//!
//! Linux counts how long a thread was ready and did not run. Where it does not say so the time is that of the wall.

use std::time::Instant;

/// Time of one thread, or of those of a pool.
pub struct Clock {
    begun: Instant,
    waited_s: f64,
    /// What they waited for so far, seconds.
    waits: fn() -> f64,
}

impl Clock {
    /// Starts now, for the threads of the pool.
    pub fn of_pool() -> Self {
        Self::start(waited_of_pool_s)
    }

    /// Starts now, for the thread that asks.
    pub fn of_thread() -> Self {
        Self::start(waited_s)
    }

    fn start(waits: fn() -> f64) -> Self {
        Self { waited_s: waits(), begun: Instant::now(), waits }
    }

    /// Seconds since the start, without the wait of the thread, or the mean wait of those of the pool.
    pub fn seconds(&self) -> f64 {
        let wall = self.begun.elapsed().as_secs_f64();
        (wall - ((self.waits)() - self.waited_s)).max(wall * 1e-3)
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
