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

/// Replicas of so many GPUs that fit the nodes that do not train.
///
/// # Errors
/// When not one does.
pub fn replicas(problem: &Problem, n_trains: u32, gpus_per_replica: u32) -> Result<u32, Refused> {
    let cluster = &problem.cluster;
    let left = cluster.n_nodes.saturating_sub(n_trains) * cluster.gpus_per_node;
    match left / gpus_per_replica.max(1) {
        0 => Err(Refused::infeasible(format!(
            "a replica takes {gpus_per_replica} GPUs, and {n_trains} of {} nodes train: {left} GPUs are left",
            cluster.n_nodes
        ))),
        n => Ok(n),
    }
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
        assert_eq!(replicas(&problem, 3, 4), Ok(2));
        assert!(replicas(&problem, 4, 4).is_err());
        // Of two slow GPUs one generates.
        let mut slow = problem.clone();
        let ranks = [7, 30].map(hw::Rank).to_vec();
        slow.execution.stragglers = vec![Straggler { ranks, rate: 2.0, from_step: 0, until_step: None }];
        let slow = trainer(&slow, 2).expect("16 GPUs").execution.stragglers;
        assert_eq!(slow.iter().map(|straggler| straggler.ranks.as_slice()).collect::<Vec<_>>(), [[hw::Rank(7)]]);
        let wide = Problem { layout: Layout { pp: 4, ..problem.layout }, ..problem };
        assert!(trainer(&wide, 1).expect_err("16 ranks on 8 GPUs").why.contains("does not divide"));
    }
}
