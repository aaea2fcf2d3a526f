//! When the slowest rank of a pool ends, by the cost model's times: every rank goes through its list, a ring begins when all its ranks are
//! there. In a pipeline of p ranks its longest micro-batch counts p times: a proportionate flow shop takes the sum of its jobs and p − 1
//! times the longest, in any order. Where ranks hold v chunks, the p − 1 times are of one chunk.
//!
//! Left out: copies to the host, which selective offload hides, and what all ranks do together at the end of a step.

use std::collections::BTreeMap;

use train::Problem;
use train::lower::training::RankTimes;
use train::plan::{MicroBatch, Place};

/// End of the slowest context rank, seconds.
pub(super) fn of(micro_batches: &[MicroBatch], problem: &Problem, times: &mut RankTimes<'_>) -> f64 {
    let n_ranks = problem.layout.cp;
    let mut clock = vec![0.0_f64; n_ranks as usize];
    let mut longest = clock.clone();
    for micro_batch in micro_batches {
        let mut together: BTreeMap<(u32, u32), Vec<u64>> = BTreeMap::new();
        for placement in &micro_batch.sequences {
            let ranks = match placement.place {
                Place::Local(rank) => (rank, 1),
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
            clock[ranks.clone()].fill(begin + seconds);
            longest[ranks].iter_mut().for_each(|longest| *longest = longest.max(seconds));
        }
    }
    let ahead = ahead(problem);
    clock.into_iter().zip(longest).map(|(clock, longest)| clock + ahead * longest).fold(0.0, f64::max)
}

/// Times that the longest micro-batch of a rank counts besides its own: ranks of the pipeline before it, each of them by one chunk.
pub(super) fn ahead(problem: &Problem) -> f64 {
    let (pp, chunks) = (problem.layout.pp, problem.layout.chunks as usize);
    let n_stages = problem.schedule.placement.n_stages(pp as usize, chunks);
    f64::from(pp - 1) * f64::from(pp) / hw::real(n_stages as u64)
}
