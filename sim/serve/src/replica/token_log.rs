//! When output tokens came, where somebody asks: ends of decode iterations, and which of them each sequence took part in.
//!
//! A span of iterations is one entry, whose ends are a closed form (`going.rs`). A sequence that decodes is one entry too, from the iteration after which it joined to
//! the one after which it left. What is computed again, and what drafts give, are tokens of their own. Units: ticks, tokens.

use hw::Tick;

use super::going::Going;
use super::pipeline::Lag;
use crate::frontend::{Frontend, Queue};

/// Entries of one replica.
#[derive(Clone, Debug)]
pub(crate) struct TokenLog {
    /// Who hands tokens on.
    pub(crate) frontend: Frontend,
    /// Decode iterations that had ended before a span, the span, and its tokens in the queue of the frontend.
    spans: Vec<(u64, Going, Queue)>,
    /// Ticks for which rounds were held up until the end of each span.
    held_up: Vec<Tick>,
    /// Tokens of requests, in no order of requests.
    given: Vec<(u32, Given)>,
}

/// Tokens that a request has.
#[derive(Clone, Copy, Debug)]
enum Given {
    /// One of each decode iteration from one, left out, to another; they lag so far behind.
    Decoded { from: u64, to: u64, lag: Lag },
    /// So many at once.
    AtOnce { at: Tick, n: u32 },
}

impl TokenLog {
    /// Nothing has come yet.
    pub(super) const fn new(frontend: Frontend) -> Self {
        Self { frontend, spans: Vec::new(), held_up: Vec::new(), given: Vec::new() }
    }

    /// A span with its iterations has ended, before which so many had, and until which rounds were held up so long.
    pub(super) fn span(&mut self, before: u64, n_steps: u64, going: &Going, (queue, held_up): (Queue, Tick)) {
        self.spans.push((before, Going { n_steps, ..*going }, queue));
        self.held_up.push(held_up);
    }

    /// A sequence has decoded.
    pub(super) fn decoded(&mut self, request: u32, [from, to]: [u64; 2], lag: Lag) {
        if to > from {
            self.given.push((request, Given::Decoded { from, to, lag }));
        }
    }

    /// A request has some tokens at once.
    pub(super) fn at_once(&mut self, request: u32, at: Tick, n: u32) {
        self.given.push((request, Given::AtOnce { at, n }));
    }

    /// Requests with the position of their tokens.
    pub(crate) fn requests(&self) -> impl Iterator<Item = (u32, usize)> + '_ {
        self.given.iter().enumerate().map(|(index, (request, _))| (*request, index))
    }

    /// Adds the ticks of the tokens at a position.
    pub(crate) fn extend(&self, ticks: &mut Vec<Tick>, index: usize) {
        match self.given[index].1 {
            Given::AtOnce { at, n } => ticks.extend(std::iter::repeat_n(at, n as usize)),
            Given::Decoded { from, to, lag } => {
                let first = self.spans.partition_point(|(before, going, _)| before + going.n_steps <= from);
                for ((before, going, queue), held_up) in self.spans[first..].iter().zip(&self.held_up[first..]) {
                    if *before >= to {
                        break;
                    }
                    let (low, high) = (from.max(*before) - before, (to - before).min(going.n_steps));
                    let start = going.end_of(1);
                    let through = |step| queue.through(step, [start, going.end_of(step)]).shifted(lag.at(*held_up));
                    ticks.extend((low + 1..=high).map(through));
                }
            }
        }
    }
}
