//! What the times of a plan on mixed GPUs rest on: kernels of every card, weighed by the GPU-seconds that they take.

use std::collections::BTreeMap;

use engine::CostModel;
use engine::cost::provenance::Grounds;
use engine::task::{Task, TaskGraph};

use super::{MixedJob, Pipelines, Placed};
use crate::fitting;
use crate::metrics::Work;
use crate::problem::GradientSync;

/// What a task that belongs to no micro-batch has in the place of its number.
const NO_MICRO_BATCH: u32 = u32::MAX;

impl MixedJob {
    /// Those of all replicas of all stages, each with its own micro-batches; none where stages were measured.
    pub(super) fn grounds(&self, plan: &Pipelines, costs: &[Box<dyn CostModel>]) -> Grounds {
        let mut known: BTreeMap<(usize, u32), TaskGraph> = BTreeMap::new();
        let mut work = Work::NONE;
        for placed in plan.placed().into_iter().filter(|_| self.problem.is_some()) {
            let slot = placed.slot;
            let graph = known.entry((slot.group, slot.n_gpus)).or_insert_with(|| {
                let (mut own, of_cards) = self.on_cards_of(plan, slot, self.batch.contents());
                // Gradients wait for the last backward, so that no backward goes in pieces.
                own.execution.gradient_sync = GradientSync::AtEnd;
                fitting::lowered(&own, of_cards, own.layout.pp)
            });
            let times = |task: &Task| f64::from(slot.n_gpus) * self.times(&placed, task, graph);
            work.add_tasks(graph, &times, costs[slot.group].as_ref());
        }
        Grounds::of(work.source, work.provenance)
    }

    /// How often a replica of a stage does what a task of the graph of all stages on its cards does.
    fn times(&self, placed: &Placed, task: &Task, graph: &TaskGraph) -> f64 {
        let lane = &graph.lanes[task.lane.index()];
        let is_own = lane.group == 0 && lane.stage as usize == placed.stage;
        let of = &placed.micro_batches;
        match task.micro_batch {
            _ if !is_own => 0.0,
            NO_MICRO_BATCH => 1.0,
            // One stands for all.
            _ if self.batch.is_alike() => hw::real(of.len() as u64),
            micro_batch => f64::from(u8::from(of.contains(&micro_batch))),
        }
    }
}
