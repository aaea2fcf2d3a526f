//! Nodes of one machine that train, and those that are left to generate. Units: nodes, GPUs, replicas.

use engine::verdict::Refused;
use train::problem::Problem;

/// The trainer's problem on the first so many of its nodes: data-parallel groups take what its other degrees leave.
///
/// # Errors
/// When the other degrees do not divide the GPUs.
pub fn trainer(problem: &Problem, n_nodes: u32) -> Result<Problem, Refused> {
    let mut found = problem.clone();
    found.cluster.n_nodes = n_nodes;
    let layout = &mut found.layout;
    let (n_gpus, others) = (found.cluster.n_gpus(), layout.tp * layout.pp * layout.cp);
    if !n_gpus.is_multiple_of(others) {
        let why = format!("tp × pp × cp = {others} does not divide the {n_gpus} GPUs of {n_nodes} nodes that train");
        return Err(Refused::infeasible(why));
    }
    layout.dp = n_gpus / others;
    for straggler in &mut found.execution.stragglers {
        straggler.ranks.retain(|rank| rank.0 < n_gpus);
    }
    found.execution.stragglers.retain(|straggler| !straggler.ranks.is_empty());
    if layout.expert_span().is_none() {
        let why = format!("expert groups of {} do not fit the {n_gpus} GPUs of {n_nodes} nodes that train", layout.ep);
        return Err(Refused::infeasible(why));
    }
    Ok(found)
}

/// Replicas of a group as a fleet is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// How many; a group without any gets none.
    pub n_replicas: u32,
    /// GPUs of each.
    pub n_gpus: u32,
}

/// GPUs that do not train.
pub fn n_left(problem: &Problem, n_trains: u32) -> u32 {
    let cluster = &problem.cluster;
    cluster.n_nodes.saturating_sub(n_trains) * cluster.gpus_per_node
}

/// Replicas of the groups of a fleet on the nodes that do not train. Each group has one. Every further one goes to the group that has the smallest share of
/// what is written of it, of those whose replicas still fit. So one group takes what there is, and several keep their proportions.
///
/// # Errors
/// When not every group has a replica.
pub fn replicas(problem: &Problem, n_trains: u32, groups: &[Written]) -> Result<Vec<u32>, Refused> {
    let n_left = n_left(problem, n_trains);
    let mut found: Vec<u32> = groups.iter().map(|group| group.n_replicas.min(1)).collect();
    let n_taken: u32 = groups.iter().zip(&found).map(|(group, n)| group.n_gpus * n).sum();
    if n_taken > n_left || n_taken == 0 {
        let whose = if groups.len() > 1 { "a replica of each group" } else { "a replica" };
        let n_nodes = problem.cluster.n_nodes;
        let why =
            format!("{whose} takes {n_taken} GPUs, and {n_trains} of {n_nodes} nodes train: {n_left} GPUs are left");
        return Err(Refused::infeasible(why));
    }
    let mut n_free = n_left - n_taken;
    while let Some(at) = neediest(groups, &found, n_free) {
        found[at] += 1;
        n_free -= groups[at].n_gpus;
    }
    Ok(found)
}

/// The group with the smallest share of what is written of it, of those whose replicas fit so many GPUs; the first of equal ones.
fn neediest(groups: &[Written], found: &[u32], n_free: u32) -> Option<usize> {
    let fits = |at: &usize| groups[*at].n_replicas > 0 && (1..=n_free).contains(&groups[*at].n_gpus);
    // Shares as products, so that none is rounded.
    let is_behind = |one: usize, other: usize| {
        let share = |at: usize, of: usize| u64::from(found[at]) * u64::from(groups[of].n_replicas);
        share(one, other) < share(other, one)
    };
    (0..groups.len()).filter(fits).reduce(|best, at| if is_behind(at, best) { at } else { best })
}

#[cfg(test)]
mod tests {
    use train::layout::Layout;
    use train::straggler::Straggler;

    use super::*;
    use crate::example;

    #[test]
    fn nodes_are_shared_out_whole() {
        let problem = example::trainer([4, 2, 4], 4);
        let three = trainer(&problem, 3).expect("24 GPUs");
        assert_eq!((three.layout.dp, three.cluster.n_gpus(), three.layout.n_ranks()), (3, 24, 24));
        let alone = |n_trains| replicas(&problem, n_trains, &[Written { n_replicas: 1, n_gpus: 4 }]);
        assert_eq!(alone(3), Ok(vec![2]));
        assert!(alone(4).is_err());
        // Of two slow GPUs one generates.
        let mut slow = problem.clone();
        let ranks = [7, 30].map(hw::Rank).to_vec();
        slow.execution.stragglers = vec![Straggler { ranks, rate: 2.0, from_step: 0, until_step: None }];
        let slow = trainer(&slow, 2).expect("16 GPUs").execution.stragglers;
        assert_eq!(slow.iter().map(|straggler| straggler.ranks.as_slice()).collect::<Vec<_>>(), [[hw::Rank(7)]]);
        let wide = Problem { layout: Layout { pp: 4, ..problem.layout }, ..problem };
        assert!(trainer(&wide, 1).expect_err("16 ranks on 8 GPUs").why.contains("does not divide"));
    }

    #[test]
    fn groups_keep_their_proportions() {
        // Four nodes of eight GPUs. The fleet is written for two of them: two replicas of four GPUs and four of two.
        let problem = example::trainer([4, 2, 4], 4);
        let of = |n_trains, written: &[(u32, u32)]| {
            let group = |&(n_replicas, n_gpus)| Written { n_replicas, n_gpus };
            replicas(&problem, n_trains, &written.iter().map(group).collect::<Vec<_>>())
        };
        let written = [(2, 4), (4, 2)];
        assert_eq!(of(2, &written), Ok(vec![2, 4]), "as written");
        assert_eq!(of(3, &written), Ok(vec![1, 2]), "half");
        assert_eq!(of(1, &written), Ok(vec![3, 6]), "one and a half");
        // A group without replicas stays without any.
        assert_eq!(of(3, &[(0, 4), (4, 2)]), Ok(vec![0, 4]));
        // One that is small beside the other keeps a replica; what is left over goes to whom it fits.
        assert_eq!(of(3, &[(1, 1), (100, 2)]), Ok(vec![2, 3]));
        let why = of(3, &[(1, 8), (1, 4)]).expect_err("12 GPUs on 8").why;
        assert!(why.contains("a replica of each group takes 12 GPUs") && why.contains("8 GPUs are left"), "{why}");
    }
}
