//! Hosts of mixed GPUs: how long activations are on their way to them and back, and what each host keeps.
//!
//! GPUs of a group fill its nodes stage by stage, and replicas of a stage lie side by side. Units: seconds, bytes.

use std::collections::BTreeMap;

use engine::CostModel;
use engine::task::{CopyKind, Op, Ops};
use engine::verdict::Refused;

use super::{MixedJob, Pipelines, Placed, Slot};
use crate::host_memory::{self, Kept};
use crate::lower::training::lead;
use crate::memory;
use crate::problem::Problem;
use crate::stage::{Stage, stages};

impl MixedJob {
    /// Seconds from the begin of a forward and a backward to the end of its copy, by stage and micro-batch; of one micro-batch where all are alike. A forward
    /// copies behind what it begins with. GPUs of a switch that the plan takes copy one after another.
    pub(super) fn copies(
        &self,
        plan: &Pipelines,
        slot: Slot,
        own: &Problem,
        cost: &dyn CostModel,
    ) -> Vec<Vec<[f64; 2]>> {
        let in_turn = own.cluster.gpus_per_switch.min(plan.n_gpus_of(slot.group)).max(1);
        let seconds = |ops| cost.estimate(&Op::Sequence(ops)).time.get();
        let of_micro_batch = |stage: &Stage, micro_batch| match self.waiting(own, stage, micro_batch) {
            0 => [0.0; 2],
            bytes => {
                let copy = |kind| seconds(vec![(Op::Copy { kind, bytes }, in_turn)]);
                let lead = lead(own, stage, self.batch.tokens_of(micro_batch), Ops::new());
                [seconds(lead) + copy(CopyKind::DeviceToHost), copy(CopyKind::HostToDevice)]
            }
        };
        let n = if self.batch.is_alike() { 1 } else { self.batch.n_micro_batches() };
        let all = stages(own);
        all.iter().map(|stage| (0..n).map(|micro_batch| of_micro_batch(stage, micro_batch)).collect()).collect()
    }

    /// Bytes of a micro-batch's activations that a rank of a stage has on its host between two passes.
    fn waiting(&self, own: &Problem, stage: &Stage, micro_batch: u32) -> u64 {
        if own.execution.offload == 0.0 {
            return 0;
        }
        let (tokens, pairs) = (self.batch.tokens_of(micro_batch), self.batch.pairs_of(micro_batch));
        let made = memory::activation(own, stage, tokens, pairs);
        memory::streamed(&own.execution, made.whole)
    }

    /// What a rank of a stage has on its host at most: on 1F1B as many micro-batches wait as there are stages from its own to the last.
    fn on_host(&self, placed: &Placed, (own, stages): &(Problem, Vec<Stage>)) -> Kept {
        let stage = stages[placed.stage];
        let in_flight = u32::try_from(stages.len() - placed.stage).expect("few stages");
        let waiting = |micro_batch| self.waiting(own, &stage, micro_batch);
        let activations = self.batch.most_in_a_row(placed.micro_batches.clone(), in_flight, waiting);
        host_memory::of_states(own, &[stage]).with_activations(activations)
    }

    /// What the fullest node of every group keeps on its host.
    fn hosts(&self, plan: &Pipelines) -> Vec<Kept> {
        let mut by_gpu: Vec<Vec<Kept>> = vec![Vec::new(); self.groups.len()];
        let mut known: BTreeMap<(usize, u32), (Problem, Vec<Stage>)> = BTreeMap::new();
        for placed in plan.placed().iter().filter(|_| self.uses_hosts()) {
            let slot = placed.slot;
            let of_cards = known.entry((slot.group, slot.n_gpus)).or_insert_with(|| {
                let own = self.of_all(plan, slot).expect("there is a problem");
                let stages = stages(&own);
                (own, stages)
            });
            by_gpu[slot.group].extend(std::iter::repeat_n(self.on_host(placed, of_cards), slot.n_gpus as usize));
        }
        let per_node = self.groups.iter().map(|group| group.cluster.gpus_per_node.max(1) as usize);
        by_gpu
            .iter()
            .zip(per_node)
            .map(|(gpus, n)| host_memory::fullest_of(gpus.chunks(n).map(<[_]>::to_vec)))
            .collect()
    }

    /// Whether anything of a step lies on hosts.
    fn uses_hosts(&self) -> bool {
        self.problem.as_ref().is_some_and(Problem::uses_hosts)
    }

    /// What the fullest node of all keeps.
    pub fn fullest_host(&self, plan: &Pipelines) -> Kept {
        host_memory::fullest_of(self.hosts(plan).into_iter().map(|kept| vec![kept]))
    }

    /// Whether the hosts of every group have room.
    ///
    /// # Errors
    /// A sentence with the figures of the first group that has not.
    pub fn fits_hosts(&self, plan: &Pipelines) -> Result<(), Refused> {
        if self.groups.iter().all(|group| group.cluster.host_memory.is_none()) {
            return Ok(());
        }
        self.groups.iter().zip(self.hosts(plan)).try_for_each(|(group, kept)| {
            kept.fits_nodes(&group.cluster, &format!("a node of `{}`", group.name), "group")
        })
    }
}
