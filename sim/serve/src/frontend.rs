//! The process that hands an engine's tokens to its clients, behind the engine's loop: a queue.
//!
//! After an iteration each of its sequences has a token, which becomes text and a message to its client. One process of Python does that for all of them, one
//! after another: the API server of vLLM, the `TokenizerManager` of SGLang, the proxy of TensorRT-LLM. The engine does not wait for it, so tokens may. What a
//! client sees is when its token is through. Tokens of one iteration are through together, with the last of them.
//!
//! Closed form of a span: let `k` iterations end at `t_1 … t_k`, each with `w` of work, and let the process be free at `f_0`. By Lindley's recursion
//! (Proc. Camb. Phil. Soc. 48, 1952) it is free at `f_k = max(f_0 + k·w, max_j(t_j + (k − j + 1)·w))`. Iterations of a span do not become shorter
//! (`replica/going.rs`), so `t_j − j·w` is convex in `j`, and the first or the last `j` is the largest. Units: ticks, tokens.
//!
//! Approximations: sequences are spread evenly over several processes. Where a message has several tokens, each iteration sends an equal part of its sequences'
//! tokens. Accepted drafts of an iteration are one message. A process that is behind sends each token by itself; vLLM (`RequestOutputCollector`) and SGLang
//! (`_wait_one_response`) send what has gathered of an answer in one message.

use std::num::NonZeroU32;

use hw::{Seconds, Tick};

/// What it takes to hand tokens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// Ticks of a message with a sequence's tokens; with zero clients have them at once.
    pub per_token: Tick,
    /// Tokens of a sequence that one message has, behind the first token.
    pub interval: NonZeroU32,
    /// Processes that share the sequences.
    pub processes: NonZeroU32,
}

impl Frontend {
    /// Clients have tokens at once.
    pub const NONE: Self = Self { per_token: Tick::ZERO, interval: NonZeroU32::MIN, processes: NonZeroU32::MIN };

    /// API servers of so many replicas, each of which has these processes.
    pub const fn servers_of(&self, n_replicas: u32) -> u32 {
        n_replicas * self.processes.get()
    }

    /// From microseconds of a message, the tokens that it has, and the processes; the latter are at least one.
    pub fn new(us_per_token: f64, [interval, processes]: [u32; 2]) -> Self {
        let number = |n: u32| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
        let per_token = Tick::from_seconds(Seconds::new(us_per_token / 1e6));
        Self { per_token, interval: number(interval), processes: number(processes) }
    }

    /// Whether tokens may wait for it.
    pub fn takes_time(&self) -> bool {
        self.per_token > Tick::ZERO
    }

    /// Microseconds of a message.
    pub const fn us_per_token(&self) -> f64 {
        self.per_token.to_seconds() * 1e6
    }

    /// Ticks that the fullest process needs for the tokens of an iteration: of some sequences that go on, and some that begin.
    pub fn work(&self, n_going_on: u32, n_first: u32) -> Tick {
        let of_fullest = |n: u32| self.per_token * u64::from(n.div_ceil(self.processes.get()));
        of_fullest(n_going_on) / u64::from(self.interval.get()) + of_fullest(n_first)
    }

    /// Ticks at which a client has its tokens, of those at which the engine gave them: the first by itself, the others as messages have them.
    pub fn gathered(&self, ticks: &mut [Tick]) {
        let Some((_, rest)) = ticks.split_first_mut() else { return };
        for message in rest.chunks_mut(self.interval.get() as usize) {
            let last = *message.last().expect("chunks are not empty");
            message.fill(last);
        }
    }
}

/// Equal iterations in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// When the process is done with all before them.
    pub free: Tick,
    /// Ticks of the tokens of each.
    pub work: Tick,
}

impl Queue {
    /// When the tokens of so many iterations are through, of which the first and the last end at these ticks.
    pub fn through(&self, n: u64, [first, last]: [Tick; 2]) -> Tick {
        let all = self.work * n;
        (self.free + all).max(first + all).max(last + self.work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Token by token: each starts when its iteration has ended and the one before it is through.
    fn played(free: u64, per_token: u64, iterations: &[(u64, u64)]) -> Vec<u64> {
        let mut free = free;
        let through = |(end, n): &(u64, u64)| {
            for _ in 0..*n {
                free = free.max(*end) + per_token;
            }
            free
        };
        iterations.iter().map(through).collect()
    }

    #[test]
    fn a_span_is_through_when_its_tokens_are_one_by_one() {
        // Iterations that grow: the queue fills at first and is empty again later, or never, or always.
        for (fixed, growth) in [(10, 0), (100, 0), (40, 3), (90, 1)] {
            for (free, n, per_token) in [(0, 1, 7), (5_000, 8, 9), (0, 8, 9), (700, 64, 1), (0, 10, 10)] {
                let ends = (1..=60).scan(1_000, |at, step| {
                    *at += fixed + growth * step;
                    Some(*at)
                });
                let iterations: Vec<(u64, u64)> = ends.map(|end| (end, n)).collect();
                let frontend = Frontend { per_token: Tick::new(per_token), ..Frontend::NONE };
                let work = frontend.work(u32::try_from(n).expect("small"), 0);
                let queue = Queue { free: Tick::new(free), work };
                for (k, expected) in (1..).zip(played(free, per_token, &iterations)) {
                    let ends = [iterations[0].0, iterations[k as usize - 1].0].map(Tick::new);
                    assert_eq!(queue.through(k, ends), Tick::new(expected), "{fixed} {growth} {free} {n} {k}");
                }
            }
        }
    }

    #[test]
    fn several_processes_share_and_longer_intervals_save_but_for_first_tokens() {
        let of =
            |interval, processes| Frontend { per_token: Tick::new(60), ..Frontend::new(0.0, [interval, processes]) };
        assert_eq!(of(1, 1).work(100, 3), Tick::new(6180));
        assert_eq!(of(10, 1).work(100, 3), Tick::new(600 + 180));
        // The fullest of four has 25 of a hundred, and one of three.
        assert_eq!(of(1, 4).work(100, 3), Tick::new(25 * 60 + 60));
        assert_eq!(Frontend::NONE.work(100, 3), Tick::ZERO);
    }

    #[test]
    fn a_message_has_its_tokens_when_the_last_of_them_is_there() {
        let frontend = Frontend::new(0.0, [3, 1]);
        let mut ticks: Vec<Tick> = (1..=6).map(Tick::new).collect();
        frontend.gathered(&mut ticks);
        assert_eq!(ticks, [1, 4, 4, 4, 6, 6].map(Tick::new));
    }
}
