//! A node of mixed GPUs that computes slower, and which nodes of a plan are alike. GPUs of a group fill its nodes stage by stage, and replicas of a stage lie
//! side by side.

use std::collections::{BTreeMap, BTreeSet};

use super::{MixedJob, Pipelines, Placed};

/// A node that computes slower.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowNode {
    /// Position in the groups.
    pub group: usize,
    /// Position in the group.
    pub node: u32,
    /// Time of some computation over that of a healthy node.
    pub rate: f64,
}

/// What a node computes: stage, tensor degree, and kind and number of the replica on the node.
type Work = Vec<(usize, u32, usize, usize)>;

impl MixedJob {
    /// Replicas of stages that lie on every node, by group and node.
    fn on_nodes(&self, plan: &Pipelines) -> BTreeMap<(usize, u32), Vec<Placed>> {
        let mut on_nodes: BTreeMap<(usize, u32), Vec<Placed>> = BTreeMap::new();
        for placed in plan.placed() {
            let group = placed.slot.group;
            let per_node = self.groups[group].cluster.gpus_per_node.max(1);
            let (first, end) = (placed.first_gpu, placed.first_gpu + placed.slot.n_gpus);
            for node in first / per_node..=(end - 1) / per_node {
                on_nodes.entry((group, node)).or_default().push(placed.clone());
            }
        }
        on_nodes
    }

    /// Replicas of stages that the slow node paces: stage and replica.
    pub(super) fn slowed(&self, plan: &Pipelines) -> BTreeSet<(usize, usize)> {
        let Some(slow) = self.slow_node else { return BTreeSet::new() };
        let on_node = self.on_nodes(plan).remove(&(slow.group, slow.node)).unwrap_or_default();
        on_node.iter().map(|placed| (placed.stage, placed.replica)).collect()
    }

    /// One of each kind of nodes that a plan uses, by group and node, and how many there are of its kind: a step takes as long, whichever of them is slow.
    pub fn kinds_of_nodes(&self, plan: &Pipelines) -> Vec<(usize, u32, u32)> {
        let mut kinds: BTreeMap<(usize, Work), (u32, u32)> = BTreeMap::new();
        for ((group, node), placed) in self.on_nodes(plan) {
            kinds.entry((group, self.work(plan, &placed))).or_insert((node, 0)).1 += 1;
        }
        kinds.into_iter().map(|((group, _), (node, n))| (group, node, n)).collect()
    }

    fn work(&self, plan: &Pipelines, placed: &[Placed]) -> Work {
        let mut replicas: Vec<usize> = Vec::new();
        let mut work = Work::new();
        for of in placed {
            let number = replicas.iter().position(|replica| *replica == of.replica).unwrap_or_else(|| {
                replicas.push(of.replica);
                replicas.len() - 1
            });
            work.push((of.stage, of.slot.n_gpus, self.kind(plan, of.replica), number));
        }
        work
    }

    /// The first replica that computes as many micro-batches on as many GPUs of the same groups.
    fn kind(&self, plan: &Pipelines, replica: usize) -> usize {
        let is_same = |other: &usize| {
            let slots = plan.stages.iter().all(|stage| stage.slots[*other] == stage.slots[replica]);
            slots && plan.micro_batches.get(*other) == plan.micro_batches.get(replica)
        };
        if self.batch.is_alike() { (0..replica).find(is_same).unwrap_or(replica) } else { replica }
    }
}
