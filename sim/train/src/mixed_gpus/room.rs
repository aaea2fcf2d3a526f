//! Memory of the stages of mixed GPUs: what each holds under 1F1B with its own micro-batches. Units: bytes.
//!
//! A stage is played beside stages of its own cards, so it holds what it holds where all cards are alike. A search first leaves out what is too large by
//! states and activations alone, which no played step is below.

use std::collections::BTreeMap;
use std::ops::Range;

use engine::Outcome;

use super::{Batch, MixedJob, Pipelines, Placed, Slot};
use crate::metrics::most_held;
use crate::{fitting, memory};

/// Micro-batches for each stage after which 1F1B has reached its peak, where all are alike.
const PER_STAGE: u32 = 3;

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

/// What a rank of a stage holds at least, bytes.
struct Held {
    /// For the whole step.
    always: f64,
    /// Of a token from forward to backward, on `in_flight` micro-batches at most (1F1B).
    kept: f64,
    in_flight: u32,
}

impl Held {
    /// With such micro-batches: the largest that follow one another are in flight.
    fn bytes(&self, batch: &Batch, of: Range<u32>) -> f64 {
        let in_flight = batch.most_in_a_row(of, self.in_flight, |micro_batch| batch.tokens_of(micro_batch));
        self.always + self.kept * hw::real(in_flight)
    }
}

impl MixedJob {
    /// The slot with the least memory to spare, as it is played.
    pub fn fullest(&self, plan: &Pipelines) -> Option<Fullest> {
        let mut known: BTreeMap<(usize, u32, u32, u32), Vec<f64>> = BTreeMap::new();
        self.fullest_by(plan, &mut |placed| {
            let of = self.shown(plan, placed.micro_batches.clone());
            let key = (placed.slot.group, placed.slot.n_gpus, of.start, of.end);
            known.entry(key).or_insert_with(|| self.played_bytes(plan, placed.slot, of))[placed.stage]
        })
    }

    /// Whether no slot is too large by its states and activations alone.
    pub fn may_fit(&self, plan: &Pipelines) -> bool {
        let mut known: BTreeMap<(usize, u32), Vec<Held>> = BTreeMap::new();
        let fullest = self.fullest_by(plan, &mut |placed| {
            let key = (placed.slot.group, placed.slot.n_gpus);
            let held = known.entry(key).or_insert_with(|| self.held(plan, placed.slot));
            held[placed.stage].bytes(&self.batch, placed.micro_batches.clone())
        });
        fullest.is_none_or(|fullest| fullest.bytes <= fullest.device_bytes)
    }

    fn fullest_by(&self, plan: &Pipelines, bytes_of: &mut dyn FnMut(&Placed) -> f64) -> Option<Fullest> {
        self.problem.as_ref()?;
        let mut fullest: Option<Fullest> = None;
        for placed in plan.placed() {
            let device_bytes = self.groups[placed.slot.group].cluster.gpu.memory.as_f64();
            let bytes = bytes_of(&placed);
            let found = Fullest { stage: placed.stage, replica: placed.replica, bytes, device_bytes };
            let spare = |of: Fullest| of.device_bytes - of.bytes;
            if fullest.is_none_or(|known| spare(found) < spare(known)) {
                fullest = Some(found);
            }
        }
        fullest
    }

    /// Micro-batches that show what a replica holds: all of its own, or the first few of those that are alike.
    fn shown(&self, plan: &Pipelines, of: Range<u32>) -> Range<u32> {
        let most = PER_STAGE * u32::try_from(plan.stages.len()).expect("few stages");
        if self.batch.is_alike() { 0..most.min(of.end - of.start) } else { of }
    }

    /// What every stage holds on such cards with such micro-batches, played where all stages of all replicas lie on them.
    fn played_bytes(&self, plan: &Pipelines, slot: Slot, micro_batches: Range<u32>) -> Vec<f64> {
        let (own, plan) = self.on_cards_of(plan, slot, self.batch.contents_of(micro_batches));
        let (graph, outcome) = fitting::played(&own, plan, own.layout.pp, u64::MAX / 4);
        let Outcome::Done(timeline) = outcome else { panic!("a step with room for everything ends") };
        let device_bytes = own.cluster.gpu.memory.0.cast_signed();
        let mut of_stages = vec![0.0_f64; own.layout.pp as usize];
        for (lane, of) in graph.lanes.iter().enumerate() {
            let most = most_held(&graph, &timeline, lane, device_bytes);
            let of_stage = &mut of_stages[of.stage as usize];
            *of_stage = of_stage.max(hw::real(most.unsigned_abs()));
        }
        of_stages
    }

    /// What every stage on such cards holds at least.
    fn held(&self, plan: &Pipelines, slot: Slot) -> Vec<Held> {
        let own = self.of_all(plan, slot).expect("there is a problem");
        let late = memory::gradients_come_late(&own);
        let of_rank = |(in_flight, need): (u32, &memory::Need)| Held {
            always: (own.reserved_memory + need.states.total()).as_f64()
                - if late { need.states.gradients.as_f64() } else { 0.0 },
            kept: hw::real(need.bytes_per_token - need.passing_per_token) / f64::from(in_flight),
            in_flight,
        };
        (1..=own.layout.pp).rev().zip(&memory::needs(&own)).map(of_rank).collect()
    }
}
