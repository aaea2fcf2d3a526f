//! When the slowest rank of a pool ends, by the cost model's times: every rank goes through its list, a ring begins when all its ranks are
//! there.
//!
//! Left out: copies to the host, which selective offload hides, and what all ranks do together at the end of a step.

use std::collections::BTreeMap;

use sim::lower::training::RankTimes;
use sim::plan::MicroBatch;

/// End of the slowest of `n_ranks` ranks, seconds.
pub(super) fn of(micro_batches: &[MicroBatch], n_ranks: u32, times: &mut RankTimes<'_>) -> f64 {
    let mut clock = vec![0.0_f64; n_ranks as usize];
    for micro_batch in micro_batches {
        let mut together: BTreeMap<(u32, u32), Vec<u64>> = BTreeMap::new();
        for placement in &micro_batch.sequences {
            let ranks = match placement.place {
                sim::plan::Place::Local(rank) => (rank, 1),
                other => other.ring(n_ranks).unwrap_or((0, n_ranks)),
            };
            together.entry(ranks).or_default().push(placement.tokens);
        }
        for ((first, count), lengths) in together {
            let seconds = match lengths[..] {
                [tokens] if count > 1 => times.ring_s(tokens, count),
                _ => times.whole_s(&lengths),
            };
            let ranks = first as usize..(first + count) as usize;
            let begin = clock[ranks.clone()].iter().copied().fold(0.0, f64::max);
            clock[ranks].fill(begin + seconds);
        }
    }
    clock.into_iter().fold(0.0, f64::max)
}
