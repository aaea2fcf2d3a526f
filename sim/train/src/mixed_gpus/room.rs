//! Memory of the stages of mixed GPUs: what each holds under 1F1B with its own micro-batches. Units: bytes.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Batch, MixedJob, Pipelines, Placed, Slot};
use crate::memory;

/// A stage with its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fullest {
    /// Stage.
    pub stage: usize,
    /// Replica.
    pub replica: usize,
    /// What it needs.
    pub bytes: f64,
    /// What its card has.
    pub device_bytes: f64,
}

/// What a rank of a stage holds, bytes.
struct Held {
    /// For the whole step.
    always: f64,
    /// Of a token from forward to backward, on `in_flight` micro-batches at most (1F1B).
    kept: f64,
    /// Of a token while its pass runs.
    passing: f64,
    in_flight: u32,
}

impl Held {
    /// With such micro-batches: the largest that follow one another are in flight, and the largest of all is in a pass.
    fn bytes(&self, batch: &Batch, of: Range<u32>) -> f64 {
        let in_flight = batch.most_in_a_row(of.clone(), self.in_flight, |micro_batch| batch.tokens_of(micro_batch));
        self.always + self.kept * hw::real(in_flight) + self.passing * hw::real(batch.largest(of))
    }
}

impl MixedJob {
    /// The slot with the least memory to spare.
    pub fn fullest(&self, plan: &Pipelines) -> Option<Fullest> {
        self.problem.as_ref()?;
        let mut fullest: Option<Fullest> = None;
        let mut known: BTreeMap<(usize, u32), Vec<Held>> = BTreeMap::new();
        for Placed { stage, replica, slot, micro_batches } in plan.placed() {
            let device_bytes = self.groups[slot.group].cluster.gpu.memory.as_f64();
            let held = known.entry((slot.group, slot.n_gpus)).or_insert_with(|| self.held(plan, slot));
            let bytes = held[stage].bytes(&self.batch, micro_batches);
            let found = Fullest { stage, replica, bytes, device_bytes };
            let spare = |of: Fullest| of.device_bytes - of.bytes;
            if fullest.is_none_or(|known| spare(found) < spare(known)) {
                fullest = Some(found);
            }
        }
        fullest
    }

    /// What every stage holds on such cards.
    fn held(&self, plan: &Pipelines, slot: Slot) -> Vec<Held> {
        let own = self.of_all(plan, slot).expect("there is a problem");
        let of_rank = |(in_flight, need): (u32, &memory::Need)| Held {
            always: (own.reserved_memory + need.states.total()).as_f64(),
            kept: hw::real(need.bytes_per_token - need.passing_per_token) / f64::from(in_flight),
            passing: hw::real(need.passing_per_token),
            in_flight,
        };
        (1..=own.layout.pp).rev().zip(&memory::needs(&own)).map(of_rank).collect()
    }
}
