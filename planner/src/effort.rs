//! How long an answer takes and how much memory, from counts alone: before anything is drawn, played or searched.
//!
//! Nothing is timed, so a question has the same estimate on every machine. Rates are of one core of 2026 and right within a few times. That is
//! enough to tell a minute from a week. Units: seconds of one core, bytes.

use hw::{GIB, real};

/// Requests that a core serves in a second: docs/benchmarks.md has two million, and a row is measured and drawn besides.
const REQUESTS_PER_S: f64 = 1e6;
/// Bytes of a request with what became of it.
const REQUEST_BYTES: f64 = 128.0;
/// Tasks of a step that a core plays in a second.
const TASKS_PER_S: f64 = 1e6;
/// Bytes of a task (docs/benchmarks.md).
const TASK_BYTES: f64 = 170.0;
/// Tasks of a sequence on a rank: passes, exchanges and messages, both ways.
const TASKS_PER_SEQUENCE: f64 = 16.0;
/// Failures of a run of days that a core draws in a second.
const FAILURES_PER_S: f64 = 2e7;
/// Steps of a planner's loops over machines that a core does in a second.
const LOOPS_PER_S: f64 = 1e9;
/// Bytes of a link between two machines.
const LINK_BYTES: f64 = 32.0;
/// Times that everything is played: as expected, and at both ends of the costs.
const CASES: f64 = 3.0;
/// What is refused takes longer: six hours.
const SECONDS_MAX: f64 = 21_600.0;
/// What is told of takes longer.
const SECONDS_QUIET: f64 = 120.0;
/// What is refused needs more memory.
const BYTES_MAX: f64 = 256.0 * GIB;

/// What an answer takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Time of one core, seconds.
    pub seconds: f64,
    /// Memory, bytes.
    pub bytes: f64,
}

/// Requests that one way of serving takes, with those of so many seeds.
pub fn served(n_requests: u64, n_seeds: u64) -> Effort {
    let n = real(n_requests) * (CASES + real(n_seeds));
    Effort { seconds: n / REQUESTS_PER_S, bytes: real(n_requests) * (1.0 + real(n_seeds)) * REQUEST_BYTES }
}

/// So many settings or fleets that are compared, each served with these requests. Those that a bound outdoes are not served, so it is the most.
pub fn compared(n_ways: u64, n_requests: u64) -> Effort {
    let Effort { seconds, bytes } = served(n_requests, 0);
    Effort { seconds: real(n_ways) * seconds, bytes }
}

/// Steps that one policy plans, of so many sequences, each on the ranks of a pipeline.
pub fn stepped(n_steps: u64, n_sequences: u64, n_ranks: u64) -> Effort {
    let tasks = real(n_sequences) * real(n_ranks) * TASKS_PER_SEQUENCE;
    Effort { seconds: real(n_steps) * tasks * CASES / TASKS_PER_S, bytes: tasks * TASK_BYTES }
}

/// So many failures of a run of days.
pub fn failed(n_failures: f64) -> Effort {
    Effort { seconds: n_failures / FAILURES_PER_S, bytes: 0.0 }
}

/// Machines that are put in an order for pipelines: from every one, always the next of those that are left.
pub fn chained(n_machines: u64) -> Effort {
    let n = real(n_machines);
    Effort { seconds: n.powi(4) / LOOPS_PER_S, bytes: n * n * LINK_BYTES }
}

/// Machines between which tokens flow: every one may need a path of its own, and a path is sought over all links.
pub fn flowed(n_machines: u64) -> Effort {
    let n = real(n_machines);
    Effort { seconds: n.powi(3) / LOOPS_PER_S, bytes: n * n * LINK_BYTES }
}

impl Effort {
    /// Whether nobody waits for it, or no machine has the memory.
    pub fn is_beyond_reason(self) -> bool {
        self.seconds > SECONDS_MAX || self.bytes > BYTES_MAX
    }

    /// Whether it is worth a word.
    pub fn is_long(self) -> bool {
        self.seconds > SECONDS_QUIET
    }

    /// The estimate in words.
    pub fn words(self) -> String {
        format!("about {} of one core and {:.1} GiB", span(self.seconds), self.bytes / GIB)
    }
}

/// A time in the unit that people would use.
fn span(seconds: f64) -> String {
    let units = [(86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")];
    let (unit, name) = units.into_iter().find(|(unit, _)| seconds >= 2.0 * unit).unwrap_or((1.0, "seconds"));
    format!("{:.0} {name}", seconds / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effort_is_counts_over_rates() {
        // A million requests are served three times, and once for each of two seeds: five million, of which a core serves a million a second.
        assert!((served(1_000_000, 2).seconds - 5.0).abs() < 1e-9);
        // Two hundred settings of ten thousand requests are two million, three times each.
        assert!((compared(200, 10_000).seconds - 6.0).abs() < 1e-9 && compared(10_000, 10_000).is_long());
        // 256 sequences on 8 ranks are 32,768 tasks a step, played three times: 0.1 s.
        let small = stepped(2, 256, 8);
        assert!((small.seconds - 2.0 * 32_768.0 * 3e-6).abs() < 1e-9 && !small.is_long());
        assert!(!stepped(1, 65_536, 8).is_long() && stepped(100, 65_536, 8).is_long());
        assert!(stepped(10_000, 65_536, 8).is_beyond_reason() && !stepped(100, 65_536, 8).is_beyond_reason());
        // 100,000 GPUs that fail every 50,000 hours do so 1,440 times in thirty days; every four seconds of a GPU it is 6.5 × 10^10 times.
        assert!(!failed(32.0 * 1_440.0).is_long() && failed(32.0 * 6.5e10).is_beyond_reason());
        // 100 machines are put in order in 0.1 s, 10,000 never; tokens flow over 1,000 in a second, and over 65,536 in 78 hours.
        assert!(!chained(100).is_long() && chained(1000).is_long() && chained(10_000).is_beyond_reason());
        assert!(!flowed(1000).is_long() && flowed(10_000).is_long() && flowed(65_536).is_beyond_reason());
        assert!(stepped(1, 1_000_000, 1000).is_beyond_reason(), "it takes 13 hours and 2.5 TiB");
        assert_eq!([30.0, 600.0, 90_000.0, 1e6].map(span), ["30 seconds", "10 minutes", "25 hours", "12 days"]);
    }
}
