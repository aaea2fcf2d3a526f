//! Which GPU holds which expert when busy ones are kept twice: the greedy balance of DeepSeek's EPLB.
//!
//! Source: arXiv:2412.19437, section 3.4; deepseek-ai/EPLB @ 57919718be1f, eplb.py. Groups of experts are packed to nodes, the heaviest experts
//! of a node are replicated, and replicas are packed to its GPUs, as many on each. Where groups do not divide over nodes, all is one group on one
//! node. vLLM and SGLang ship the same algorithm. Replicas of an expert have equal parts of its tokens.

/// How many replicas there are, and where they may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Replicas of all experts, the first ones counted.
    pub n_replicas: usize,
    /// Groups that a router chooses among; 1 where it does not.
    pub n_groups: usize,
    /// Nodes that share the experts.
    pub n_nodes: usize,
    /// GPUs that share the experts.
    pub n_ranks: usize,
}

/// Experts of every GPU by their loads; one that lies several times is there so often.
///
/// # Panics
/// Where replicas do not divide over GPUs, or are fewer than the experts.
pub fn balanced(loads: &[f64], room: Room) -> Vec<Vec<usize>> {
    let Room { n_replicas, n_ranks, .. } = room;
    assert!(n_replicas >= loads.len() && n_ranks > 0 && n_replicas.is_multiple_of(n_ranks), "{room:?}");
    let (n_groups, n_nodes) = groups_and_nodes(loads.len(), room);
    let size = loads.len() / n_groups;
    let of_group: Vec<f64> = loads.chunks_exact(size).map(|group| group.iter().sum()).collect();
    let of_node = |groups: Vec<usize>| {
        let experts: Vec<usize> = groups.into_iter().flat_map(|group| group * size..(group + 1) * size).collect();
        on_node(loads, &experts, [n_replicas / n_nodes, n_ranks / n_nodes])
    };
    packed(&of_group, n_nodes).into_iter().flat_map(of_node).collect()
}

/// Groups and nodes where groups divide over nodes, else one of each.
const fn groups_and_nodes(n_experts: usize, Room { n_groups, n_nodes, n_ranks, .. }: Room) -> (usize, usize) {
    let divides = n_experts.is_multiple_of(n_groups) && n_groups.is_multiple_of(n_nodes);
    if divides && n_ranks.is_multiple_of(n_nodes) { (n_groups, n_nodes) } else { (1, 1) }
}

/// Experts of every GPU of a node, which keeps so many replicas on so many GPUs.
fn on_node(loads: &[f64], experts: &[usize], [n_replicas, n_ranks]: [usize; 2]) -> Vec<Vec<usize>> {
    let of_node: Vec<f64> = experts.iter().map(|expert| loads[*expert]).collect();
    let replicas = replicated(&of_node, n_replicas);
    let of_rank = |items: Vec<usize>| items.into_iter().map(|item| experts[replicas[item]]).collect();
    packed(&shared(&of_node, &replicas), n_ranks).into_iter().map(of_rank).collect()
}

/// Load of every replica, given whose it is.
pub(super) fn shared(loads: &[f64], replicas: &[usize]) -> Vec<f64> {
    let mut n_of = vec![0.0; loads.len()];
    replicas.iter().for_each(|expert| n_of[*expert] += 1.0);
    replicas.iter().map(|expert| loads[*expert] / n_of[*expert]).collect()
}

/// Items to packs of equal size: the heaviest that is left goes to the lightest pack with room.
fn packed(weights: &[f64], n_packs: usize) -> Vec<Vec<usize>> {
    let room = weights.len() / n_packs;
    if room == 1 {
        return (0..weights.len()).map(|item| vec![item]).collect();
    }
    let (mut packs, mut filled) = (vec![Vec::new(); n_packs], vec![0.0_f64; n_packs]);
    for item in heaviest_first(weights) {
        let open = (0..n_packs).filter(|pack| packs[*pack].len() < room);
        let pack = open.min_by(|a, b| filled[*a].total_cmp(&filled[*b])).expect("items fill all packs");
        packs[pack].push(item);
        filled[pack] += weights[item];
    }
    packs
}

/// Items by their weights, equal ones in order.
fn heaviest_first(weights: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
    order
}

/// Whose each of so many replicas is: one of every expert, then one more of whoever has the most tokens for each of its replicas.
fn replicated(loads: &[f64], n: usize) -> Vec<usize> {
    let mut replicas: Vec<usize> = (0..loads.len()).collect();
    let mut n_of = vec![1.0; loads.len()];
    for _ in loads.len()..n {
        let next = busiest(loads, &n_of);
        replicas.push(next);
        n_of[next] += 1.0;
    }
    replicas
}

/// The expert whose replicas have the most tokens each, the first of equal ones.
fn busiest(loads: &[f64], n_of: &[f64]) -> usize {
    let share = |expert: usize| loads[expert] / n_of[expert];
    (0..loads.len()).rev().max_by(|a, b| share(*a).total_cmp(&share(*b))).expect("some experts")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the page of deepseek-ai/EPLB: two layers, 16 replicas of 12 experts in 4 groups, 8 GPUs on 2 nodes.
    #[test]
    fn experts_lie_as_the_published_example_has_them() {
        let room = Room { n_replicas: 16, n_groups: 4, n_nodes: 2, n_ranks: 8 };
        let layers = [
            [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
            [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
        ];
        let expected =
            [[5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1], [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]];
        for (loads, expected) in layers.into_iter().zip(expected) {
            let found: Vec<usize> = balanced(&loads.map(f64::from), room).concat();
            assert_eq!(found, expected);
        }
    }

    /// Every way to keep a few experts is tried: the greedy one is no worse than 4/3 of the best (Graham, 1969, for packing the longest first).
    #[test]
    fn the_busiest_gpu_is_near_the_best_that_any_placement_gives() {
        let (n_experts, n_replicas, n_ranks) = (4, 6, 3);
        for loads in [[8.0, 1.0, 1.0, 1.0], [5.0, 4.0, 3.0, 2.0], [1.0; 4], [9.0, 9.0, 1.0, 0.0]] {
            let most = |ranks: &[Vec<usize>]| {
                let all = ranks.concat();
                let of = shared(&loads, &all);
                of.chunks_exact(n_replicas / n_ranks).map(|rank| rank.iter().sum()).fold(0.0, f64::max)
            };
            let mut best = f64::INFINITY;
            for code in 0..n_experts_power(n_experts, n_replicas) {
                let digits = (0..n_replicas).scan(code, |rest, _| {
                    let digit = *rest % n_experts;
                    *rest /= n_experts;
                    Some(digit)
                });
                let all: Vec<usize> = digits.collect();
                if (0..n_experts).all(|expert| all.contains(&expert)) {
                    let ranks: Vec<Vec<usize>> =
                        all.chunks_exact(n_replicas / n_ranks).map(<[usize]>::to_vec).collect();
                    best = best.min(most(&ranks));
                }
            }
            let room = Room { n_replicas, n_groups: 1, n_nodes: 1, n_ranks };
            let found = most(&balanced(&loads, room));
            assert!(found >= best - 1e-12 && found <= best * 4.0 / 3.0 + 1e-12, "{loads:?}: {found} of {best}");
        }
    }

    fn n_experts_power(n_experts: usize, n_replicas: usize) -> usize {
        (0..n_replicas).fold(1, |n, _| n * n_experts)
    }

    #[test]
    fn every_expert_lies_somewhere_and_every_gpu_holds_as_many() {
        let loads: Vec<f64> = (0..32_u32).map(|expert| f64::from(1 + expert * expert % 17)).collect();
        for (n_replicas, n_ranks, n_nodes) in [(32, 8, 1), (40, 8, 2), (48, 16, 4)] {
            let ranks = balanced(&loads, Room { n_replicas, n_groups: 8, n_nodes, n_ranks });
            assert!(ranks.len() == n_ranks && ranks.iter().all(|rank| rank.len() == n_replicas / n_ranks));
            let all = ranks.concat();
            assert!((0..32).all(|expert| all.contains(&expert)));
        }
    }
}
