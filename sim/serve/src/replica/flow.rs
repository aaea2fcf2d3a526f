//! Prompts that flow through stages and do not come back: a prefill replica over several GPUs or groups of them.
//!
//! A batch enters when the first stage is free, waits before each stage for the batch ahead, and leaves in order: a flow shop with room
//! between its machines. The replica composes its next batch when the first stage is free; what is computed is there when the batch has
//! left the last one. Units: ticks. Invariant: every stage is free no earlier than it was before.

use hw::Tick;

use super::{Composed, Replica};
use crate::step_cost::Chunk;

/// Stages of a replica, and what is in them.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow {
    /// When every stage is free.
    free: Vec<Tick>,
    /// When the batch that entered last leaves the last stage.
    exit: Tick,
}

impl Replica<'_> {
    /// Sends the composed batch into the stages; returns when the first one is free again, or nothing where batches come back.
    pub(super) fn flow_in(&mut self, now: Tick, composed: &Composed) -> Option<Tick> {
        let table = &self.engine.table;
        if !table.flows() {
            return None;
        }
        let slot = |id: u32| &self.slots[id as usize];
        let chunks = composed.chunks.iter().map(|(id, new)| Chunk { past: slot(*id).computed, new: *new });
        let steps = table.stage_steps(&chunks.collect::<Vec<Chunk>>(), self.adapter_load(composed));
        let flow = &mut self.flow;
        flow.free.resize(steps.len(), Tick::ZERO);
        let mut at = now;
        for (free, (busy, hand_over)) in flow.free.iter_mut().zip(&steps) {
            let end = at.max(*free) + *busy;
            assert!(end >= *free, "a stage is free later than before: {end:?} after {free:?}");
            *free = end;
            at = end + *hand_over;
        }
        flow.exit = at;
        Some(flow.free[0])
    }

    /// Ticks from the moment at which the first stage is free to that at which the batch has left the last one.
    pub(super) fn flow_lag(&self, now: Tick) -> i64 {
        self.flow.exit.saturating_sub(now).signed()
    }

    /// Nothing is in the stages any more.
    pub(super) fn flow_stops(&mut self) {
        self.flow = Flow::default();
        self.pipeline.stop();
    }
}
