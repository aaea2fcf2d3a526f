//! Tensor groups of the nodes: healthy nodes keep theirs, nodes with stragglers are split.
//!
//! The devices of a node in order of rate (healthy ones by rank). As many full groups as possible of healthy devices; what is left is cut
//! into consecutive groups of powers of two, and the slowest may be left out. Consecutive loses nothing: for given sizes, a group's speed
//! depends on its slowest device alone, and gathering devices of like rate makes every group's slowest as fast as can be. Of the splits into so
//! many groups, the one of largest summed speed Σ 1 / (α · x) is tried, if it is faster than those of fewer groups; first the number that
//! healthy devices need at least (7 = 4 + 2 + 1, the authors' chain), then its neighbours. More groups are not simply better: α is sub-linear,
//! so small groups promise speed that more stages and whole layers take back. Healthy nodes are never split.

use hw::Rank;
use train::Problem;
use train::straggler::Rates;

use super::costs::Costs;

/// Devices of a node whose every split is looked at.
const TAIL_MAX: usize = 12;

/// A tensor group.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Group {
    /// Its devices, in the order of their slices.
    pub(super) ranks: Vec<Rank>,
    /// Rate of its slowest.
    pub(super) rate: f64,
}

impl Group {
    /// Tensor degree.
    pub(super) fn degree(&self) -> u32 {
        u32::try_from(self.ranks.len()).expect("ranks fit u32")
    }

    /// Seconds of a layer.
    pub(super) fn layer_s(&self, costs: &Costs) -> f64 {
        costs.layer_s(self.degree(), self.rate)
    }
}

/// Ways to group a node, best summed speed first.
pub(super) struct Node {
    /// At least one.
    pub(super) groupings: Vec<Vec<Group>>,
    /// Largest summed speed of any of its groupings, layers per second.
    pub(super) speed: f64,
}

/// Groupings of every node: `kept` splits of nodes with stragglers besides the layout's own groups. Rates below the threshold count as
/// healthy.
pub(super) fn nodes(problem: &Problem, rates: &Rates, costs: &Costs, threshold: f64, kept: usize) -> Vec<Node> {
    let per_node = problem.cluster.domain();
    let (n_ranks, tp) = (problem.layout.n_ranks(), costs.tp);
    let rate_of = |rank: Rank| Some(rates.of(rank)).filter(|rate| *rate >= threshold).unwrap_or(1.0);
    (0..n_ranks.div_ceil(per_node))
        .map(|node| {
            let ranks: Vec<(Rank, f64)> = (node * per_node..((node + 1) * per_node).min(n_ranks))
                .map(|rank| (Rank(rank), rate_of(Rank(rank))))
                .collect();
            let own = as_laid_out(&ranks, tp as usize);
            if ranks.iter().all(|(_, rate)| *rate <= 1.0) {
                return Node { speed: speed(&own, costs), groupings: vec![own] };
            }
            let mut all = splits(&ranks, costs);
            all.sort_by(|a, b| a.len().cmp(&b.len()).then(speed(b, costs).total_cmp(&speed(a, costs))));
            all.dedup_by_key(|groups| groups.len());
            let mut fastest_so_far = 0.0;
            all.retain(|groups| {
                let gains = speed(groups, costs) > fastest_so_far;
                fastest_so_far = speed(groups, costs).max(fastest_so_far);
                gains
            });
            let n_needed = n_needed(&ranks, costs);
            all.sort_by_key(|groups| groups.len().abs_diff(n_needed));
            all.truncate(kept);
            all.push(own);
            Node { speed: fastest(&ranks, costs), groupings: all }
        })
        .collect()
}

/// Summed speed, layers per second.
fn speed(groups: &[Group], costs: &Costs) -> f64 {
    groups.iter().map(|group| 1.0 / group.layer_s(costs)).sum()
}

/// Groups that the healthy devices of a node need at least.
fn n_needed(ranks: &[(Rank, f64)], costs: &Costs) -> usize {
    let mut left = ranks.iter().filter(|(_, rate)| *rate <= 1.0).count();
    let mut degrees: Vec<usize> = costs.degrees().map(|degree| degree as usize).collect();
    degrees.reverse();
    let mut n = 0;
    for degree in degrees {
        n += left / degree;
        left %= degree;
    }
    n
}

fn group(ranks: &[(Rank, f64)]) -> Group {
    Group {
        ranks: ranks.iter().map(|(rank, _)| *rank).collect(),
        rate: ranks.iter().map(|(_, rate)| *rate).fold(1.0, f64::max),
    }
}

/// Full groups of consecutive devices.
fn as_laid_out(ranks: &[(Rank, f64)], tp: usize) -> Vec<Group> {
    ranks.chunks_exact(tp).map(group).collect()
}

/// Largest summed speed of any groups of consecutive devices in order of rate, the slowest left out or not.
fn fastest(ranks: &[(Rank, f64)], costs: &Costs) -> f64 {
    let mut rates: Vec<f64> = ranks.iter().map(|(_, rate)| *rate).collect();
    rates.sort_unstable_by(f64::total_cmp);
    let n_full = rates.iter().filter(|rate| **rate <= 1.0).count() / costs.tp as usize;
    let from = n_full * costs.tp as usize;
    let mut best = vec![f64::NEG_INFINITY; rates.len() + 1];
    best[from] = hw::real(n_full as u64) / costs.layer_s(costs.tp, 1.0);
    for end in from + 1..=rates.len() {
        for degree in costs.degrees().filter(|degree| *degree as usize <= end - from) {
            let with = best[end - degree as usize] + 1.0 / costs.layer_s(degree, rates[end - 1]);
            best[end] = best[end].max(with);
        }
    }
    best.into_iter().fold(0.0, f64::max)
}

/// All splits of a node's devices; of a very large one, those of its last devices, full groups before them.
fn splits(ranks: &[(Rank, f64)], costs: &Costs) -> Vec<Vec<Group>> {
    let mut sorted = ranks.to_vec();
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let tp = costs.tp as usize;
    let n_healthy = sorted.iter().filter(|(_, rate)| *rate <= 1.0).count();
    let n_full = (n_healthy / tp).max(sorted.len().saturating_sub(TAIL_MAX).div_ceil(tp));
    let (full, tail) = sorted.split_at(n_full * tp);
    let sizes: Vec<usize> = costs.degrees().map(|degree| degree as usize).collect();
    let mut cuts = Vec::new();
    compose(tail.len(), &sizes, &mut Vec::new(), &mut cuts);
    let with_full = |cut: Vec<usize>| {
        let mut groups: Vec<Group> = full.chunks(tp).map(group).collect();
        let mut from = 0;
        for size in cut {
            groups.push(group(&tail[from..from + size]));
            from += size;
        }
        groups
    };
    cuts.into_iter().map(with_full).collect()
}

/// Every sequence of sizes with a sum of at most `room`.
fn compose(room: usize, sizes: &[usize], begun: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
    all.push(begun.clone());
    for &size in sizes.iter().filter(|size| **size <= room) {
        begun.push(size);
        compose(room - size, sizes, begun, all);
        begun.pop();
    }
}
