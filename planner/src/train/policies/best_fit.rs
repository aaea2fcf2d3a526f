//! Best-fit packing (arXiv:2404.10830): sequences, longest first, into the fullest micro-batch that takes them, no padding,
//! all cut over the context group; micro-batches to data-parallel ranks by operations, heaviest first.
//!
//! The paper packs a whole dataset, so each rank has a packed sequence. A step of few tokens has not so many: micro-batches are then no fuller than
//! one for each group has to be.

use train::plan::{MicroBatch, Step};
use train::{Plan, Problem};

use super::megatron::together;
use super::{all_fit, heuristic};
use crate::proof::Decision;
use crate::train::policy::{Card, PlanContext, PlanError};
use crate::train::{dacp, pack};

pub(super) const CARD: Card = Card {
    name: "best_fit",
    about: "best-fit packing without padding, cut over all context ranks, balanced over data-parallel ranks",
    source: "best-fit packing, arXiv:2404.10830",
    method: "best-fit decreasing, then longest processing time",
    parameters: &[],
};

pub(super) fn plan(problem: &Problem, _context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    all_fit(problem)?;
    // A shard is rounded up to whole tokens, so each sequence may cost a group up to `cp - 1` tokens more.
    let cp = u64::from(problem.layout.cp);
    let step = |index| {
        let sequences: Vec<(u32, u64)> = problem.workload.step(index).collect();
        let sizes: Vec<u64> = sequences.iter().map(|(_, tokens)| tokens.div_ceil(cp)).collect();
        let bins = bins(&sizes, problem.bucket_tokens, problem.layout.dp);
        let micro_batches: Vec<MicroBatch> = bins.iter().map(|bin| together(bin, &sequences)).collect();
        let work = |mb: &MicroBatch| mb.sequences.iter().map(|p| dacp::flops(&problem.model, p.tokens)).sum();
        let weights: Vec<f64> = micro_batches.iter().map(work).collect();
        let groups = pack::longest_first(&weights, problem.layout.dp as usize);
        Step::of_groups(groups.iter().map(|bin| bin.iter().map(|&mb| micro_batches[mb].clone()).collect()).collect())
    };
    Ok(heuristic(CARD.name, problem, (0..problem.workload.n_steps()).map(step).collect()))
}

/// Sequences of every micro-batch, which takes `bucket` tokens at most. Where so many fit that groups would have nothing to do, it takes the fewest
/// with which all sequences fit into a micro-batch for each group (MULTIFIT: Coffman, Garey and Johnson 1978, SIAM J. Comput. 7, 1).
fn bins(sizes: &[u64], bucket: u64, n_groups: u32) -> Vec<Vec<usize>> {
    let n_groups = n_groups as usize;
    let full = pack::best_fit_decreasing(sizes, bucket);
    if full.len() > n_groups {
        return full;
    }
    let even = sizes.iter().sum::<u64>().div_ceil(n_groups as u64);
    let (mut least, mut most) = (even.max(sizes.iter().max().copied().unwrap_or(0)), bucket);
    while least < most {
        let middle = least.midpoint(most);
        if pack::best_fit_decreasing(sizes, middle).len() <= n_groups {
            most = middle;
        } else {
            least = middle + 1;
        }
    }
    pack::best_fit_decreasing(sizes, most)
}
