//! What stages of mixed GPUs exchange at the end of a step: gradients before the update, parameters behind it, and gradients of a table that two stages share.

use engine::task::{Collective, Op};
use hw::{Rank, Span};

use super::links::Priced;
use super::{MixedJob, Pipelines, Placed, Sizes, Slot, Unlinked};
use crate::lower::training::{around_update, tied_bytes};

impl MixedJob {
    /// What replicas of a stage do together before the update and behind it, on the cards of one of them.
    pub(super) fn around_update(
        &self,
        plan: &Pipelines,
        (stage, sizes): (usize, &Sizes),
        (seen, members): (&Placed, &[&Placed]),
    ) -> [Vec<Op>; 2] {
        let (cluster, ranks) = self.seen_from(seen.slot.group, members);
        let Some(mut own) = self.of_all(plan, seen.slot) else {
            let (shape, n_gpus) = (cluster.shape_of(&ranks), f64::from(seen.slot.n_gpus));
            let half = |kind, bytes: f64| vec![Op::Collective { kind, bytes: hw::whole(bytes / n_gpus), shape }];
            return [half(Collective::ReduceScatter, sizes.gradients), half(Collective::AllGather, sizes.gathered)];
        };
        own.cluster = cluster;
        let of_stage = &crate::stage::stages(&own)[stage];
        let place = |rank: Rank| ranks[own.layout.position(rank).dp as usize];
        around_update(&own, (u32::try_from(stage).expect("few stages"), of_stage), &place)
    }

    /// Whether the first and the last of several stages add up gradients of one table.
    fn is_tied(&self, plan: &Pipelines) -> bool {
        let trains_it = |problem: &crate::Problem| problem.model.tied && problem.execution.trains_weights();
        plan.stages.len() > 1 && self.problem.as_ref().is_some_and(trains_it)
    }

    /// How long that takes, of the replica that takes longest, and the dollars of all.
    pub(super) fn tied(
        &self,
        plan: &Pipelines,
        placed: &[Placed],
        priced: &Priced<'_>,
    ) -> Result<(Span, f64), Unlinked> {
        let (mut slowest, mut usd) = (Span::ZERO, 0.0);
        for first in placed.iter().filter(|placed| placed.stage == 0 && self.is_tied(plan)) {
            let is_last = |of: &&Placed| of.stage + 1 == plan.stages.len() && of.replica == first.replica;
            let last = placed.iter().find(is_last).expect("each replica has all stages");
            let bytes = |n_gpus| {
                let own = self.seen_by(plan, Slot { n_gpus, ..first.slot }).expect("there is a problem");
                tied_bytes(&own)
            };
            let ops = |seen: &Placed| {
                let (cluster, ranks) = self.seen_from(seen.slot.group, &[first, last]);
                let (bytes, shape) = (bytes(seen.slot.n_gpus), cluster.shape_of(&ranks));
                [vec![Op::Collective { kind: Collective::AllReduce, bytes, shape }], Vec::new()]
            };
            let ([there, back], dollars) = self.together(&[first, last], [hw::real(bytes(1)); 2], &ops, priced)?;
            slowest = slowest.max(there + back);
            usd += dollars;
        }
        Ok((slowest, usd))
    }

    /// Slots that exchange something, by stage.
    pub(super) fn exchanges(&self, plan: &Pipelines) -> Vec<(usize, [Slot; 2])> {
        let mut all = plan.exchanges();
        if let [first, .., last] = plan.stages.as_slice()
            && self.is_tied(plan)
        {
            all.extend(first.slots.iter().zip(&last.slots).map(|(&first, &last)| (0, [first, last])));
        }
        all
    }
}
