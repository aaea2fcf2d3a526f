//! Answers of a batch: requests that come together, and the engine of serving that works them off. Units: seconds, tokens.
//!
//! Answers to one prompt share its blocks where the engine keeps prefixes.

use hw::{Seconds, Span, Time};
use serve::fleet::{Fleet, Rules, Served};
use serve::request::{Request, Requests};
use serve::router::RouterKind;

use crate::rollouts::Rollouts;

/// What generating a batch shows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Generated {
    /// From the first prompt to the last token.
    pub seconds: f64,
    /// Time until half of the answers are there.
    pub half_s: f64,
    /// Share of the replicas' time in which they have no answer under way.
    pub idle_ratio: f64,
    /// Answers that no replica could hold.
    pub n_refused: u64,
}

/// Requests of batches that come every so often: prompt by prompt, with answers of these lengths.
pub fn requests(rollouts: &Rollouts, answers: &[u32], n_batches: u32, every: Seconds, block_tokens: u32) -> Requests {
    let n_blocks = rollouts.prompt / block_tokens.max(1);
    let mut requests = Requests { prefix_tokens: block_tokens, ..Requests::default() };
    for batch in 0..n_batches {
        let arrival = Time::ZERO + Span::from_seconds(every * f64::from(batch));
        for prompt in answers.chunks(rollouts.n_answers as usize) {
            let first = u32::try_from(requests.prefix_ids.len()).expect("fewer than 2^32 blocks");
            requests.prefix_ids.extend((0..n_blocks).map(|block| requests.n_prefix_ids + block));
            requests.n_prefix_ids += n_blocks;
            let of = |output: &u32| Request {
                prefix_first: first,
                prefix_count: n_blocks,
                ..Request::new(arrival, rollouts.prompt, *output)
            };
            requests.list.extend(prompt.iter().map(of));
        }
    }
    requests
}

/// Serves a batch alone.
pub fn alone(fleet: &Fleet, requests: &Requests, router: &RouterKind, seed: u64) -> Generated {
    let mut router = (router.make)(seed);
    let served = fleet.serve_by(requests, Rules::of(router.as_mut()));
    of_batch(fleet, &served, 0..requests.len(), 0.0)
}

/// Serves several batches that come every so often, and gives the longest of the later half.
pub fn beside(fleet: &Fleet, requests: &Requests, n_batches: u32, every_s: f64, router: &RouterKind, seed: u64) -> f64 {
    let mut router = (router.make)(seed);
    let served = fleet.serve_by(requests, Rules::of(router.as_mut()));
    let size = requests.len() / n_batches.max(1) as usize;
    let took = |batch: u32| {
        let first = batch as usize * size;
        of_batch(fleet, &served, first..first + size, every_s * f64::from(batch)).seconds
    };
    (n_batches / 2..n_batches).map(took).fold(0.0, f64::max)
}

fn of_batch(fleet: &Fleet, served: &Served, batch: std::ops::Range<usize>, came_s: f64) -> Generated {
    let mut last = vec![0.0_f64; fleet.n_replicas() as usize];
    let mut ends = Vec::with_capacity(batch.len());
    for record in &served.records.list[batch] {
        let Some(end) = record.finished() else { continue };
        let end = (end - Time::ZERO).to_seconds().get() - came_s;
        ends.push(end);
        if let Some(of_replica) = last.get_mut(record.replica as usize) {
            *of_replica = of_replica.max(end);
        }
    }
    ends.sort_by(f64::total_cmp);
    let seconds = ends.last().copied().unwrap_or(0.0);
    let busy = last.iter().sum::<f64>() / hw::real(last.len() as u64);
    Generated {
        seconds,
        half_s: ends.get(ends.len() / 2).copied().unwrap_or(0.0),
        idle_ratio: if seconds > 0.0 { 1.0 - busy / seconds } else { 0.0 },
        n_refused: served.n_refused,
    }
}
