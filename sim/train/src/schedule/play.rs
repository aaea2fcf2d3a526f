//! Plays an order with the pipeline's own durations: earliest start of every slot by longest path.
//!
//! The quick judge of schedules. The event engine plays the same order with collectives, memory and contention.

use super::{Order, PassKind, Pipeline, Slot};

/// A played order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Played {
    /// Start of each slot, nanoseconds, in the order's shape.
    pub start: Vec<Vec<u64>>,
    /// End of the last slot, nanoseconds.
    pub span: u64,
    /// Last end minus first start on the rank where that is largest, nanoseconds.
    pub rank_span: u64,
    /// Work of each rank, nanoseconds.
    pub busy: Vec<u64>,
    /// Highest activation of each rank.
    pub peak_activation: Vec<u64>,
}

impl Played {
    /// 1 − busy / (ranks × span): the share of rank time without work, from the first start to the last end.
    pub fn bubble_ratio(&self) -> f64 {
        ratio_of_rest(self.busy.iter().sum(), self.span * self.busy.len() as u64)
    }

    /// (longest span of one rank − its work) / span, the definition of arXiv:2401.10241: ranks may start and end the step at
    /// different times, because the next step's work can fill the corners.
    pub fn rank_bubble_ratio(&self) -> f64 {
        ratio_of_rest(self.busy.iter().copied().max().unwrap_or(0), self.rank_span)
    }
}

/// (whole − part) / whole, 0 of nothing.
fn ratio_of_rest(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { hw::real(whole - part) / hw::real(whole) }
}

/// Slots that wait for each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// First slot of each rank that never started.
    pub waiting: Vec<(usize, Slot)>,
}

const NEVER: u64 = u64::MAX;

/// When a pass ends, and when the stage that waits for its result has it.
#[derive(Clone, Copy)]
struct End {
    computed: u64,
    arrived: u64,
}

/// Ends of forward and backward (or input) passes of every stage.
pub(super) struct Ends {
    forward: Vec<End>,
    input: Vec<End>,
    /// When each rank's last message is sent.
    sent: Vec<u64>,
    n_micro_batches: usize,
}

impl Ends {
    /// Nothing computed.
    pub(super) fn none(pipeline: &Pipeline) -> Self {
        let never = vec![End { computed: NEVER, arrived: NEVER }; pipeline.n_stages() * pipeline.n_micro_batches];
        let sent = vec![0; pipeline.n_ranks];
        Self { forward: never.clone(), input: never, sent, n_micro_batches: pipeline.n_micro_batches }
    }

    /// A slot of a stage is computed. When its result has arrived; a message leaves behind those that its rank sent before.
    pub(super) fn set(&mut self, pipeline: &Pipeline, slot: Slot, stage: usize, computed: u64) -> u64 {
        let micro_batch = slot.micro_batch as usize;
        let arrived = match pipeline.message(slot.kind, stage, micro_batch) {
            Some((_, time)) if time > 0 => {
                let sent = &mut self.sent[pipeline.place(stage, micro_batch).0];
                *sent = computed.max(*sent) + time;
                *sent
            }
            _ => computed,
        };
        let index = stage * self.n_micro_batches + micro_batch;
        match slot.kind {
            PassKind::Forward => self.forward[index] = End { computed, arrived },
            PassKind::Backward | PassKind::Input => self.input[index] = End { computed, arrived },
            PassKind::Weight => {}
        }
        arrived
    }

    /// When the inputs of a slot are there; `None` when that is not yet known.
    pub(super) fn ready(&self, pipeline: &Pipeline, slot: Slot, stage: usize) -> Option<u64> {
        let micro_batch = slot.micro_batch as usize;
        let at = |ends: &[End], stage: usize| ends[stage * self.n_micro_batches + micro_batch];
        let forward = at(&self.forward, stage).computed;
        let ready = match slot.kind {
            PassKind::Forward if stage == 0 => 0,
            PassKind::Forward => at(&self.forward, stage - 1).arrived,
            PassKind::Backward | PassKind::Input if stage + 1 == pipeline.n_stages() => forward,
            PassKind::Backward | PassKind::Input => at(&self.input, stage + 1).arrived.max(forward),
            PassKind::Weight => at(&self.input, stage).computed,
        };
        (ready != NEVER).then_some(ready)
    }
}

/// Plays an order.
///
/// # Errors
/// The slots that wait for each other, when the order cannot be played.
pub fn play(pipeline: &Pipeline, order: &Order) -> Result<Played, Stuck> {
    let mut ends = Ends::none(pipeline);
    let mut start: Vec<Vec<u64>> = order.iter().map(|slots| Vec::with_capacity(slots.len())).collect();
    let mut free = vec![0_u64; order.len()];
    let mut moved = true;
    while moved {
        moved = false;
        for (rank, slots) in order.iter().enumerate() {
            while let Some(&slot) = slots.get(start[rank].len()) {
                let stage = pipeline.stage(rank, slot.chunk as usize);
                let Some(ready) = ends.ready(pipeline, slot, stage) else { break };
                let begin = ready.max(free[rank]);
                let end = begin + pipeline.duration(slot.kind, stage, slot.micro_batch as usize);
                let arrival = ends.set(pipeline, slot, stage, end);
                free[rank] = if pipeline.waits_for_messages { arrival } else { end };
                start[rank].push(begin);
                moved = true;
            }
        }
    }
    let waiting: Vec<(usize, Slot)> = order
        .iter()
        .enumerate()
        .filter_map(|(rank, slots)| slots.get(start[rank].len()).map(|&slot| (rank, slot)))
        .collect();
    if waiting.is_empty() { Ok(summary(pipeline, order, start, &free)) } else { Err(Stuck { waiting }) }
}

fn summary(pipeline: &Pipeline, order: &Order, start: Vec<Vec<u64>>, free: &[u64]) -> Played {
    let busy = order.iter().enumerate().map(|(rank, slots)| {
        let duration = |slot: &Slot| {
            pipeline.duration(slot.kind, pipeline.stage(rank, slot.chunk as usize), slot.micro_batch as usize)
        };
        slots.iter().map(duration).sum()
    });
    let spans = free.iter().zip(&start).map(|(end, start)| end - start.first().unwrap_or(end));
    Played {
        span: free.iter().copied().max().unwrap_or(0),
        rank_span: spans.max().unwrap_or(0),
        busy: busy.collect(),
        peak_activation: peak_activations(pipeline, order),
        start,
    }
}

/// Highest activation that each rank holds in an order, whatever its passes take.
fn peak_activations(pipeline: &Pipeline, order: &Order) -> Vec<u64> {
    order.iter().enumerate().map(|(rank, slots)| peak_activation(pipeline, rank, slots)).collect()
}

/// Highest activation that a rank holds in an order.
fn peak_activation(pipeline: &Pipeline, rank: usize, slots: &[Slot]) -> u64 {
    let splits = slots.iter().any(|slot| slot.kind == PassKind::Weight);
    let (mut held, mut peak) = (0_i64, 0_i64);
    for slot in slots {
        assert!(slot.kind != PassKind::Input || splits, "an input pass has its weight pass");
        let micro_batch = slot.micro_batch as usize;
        let change = pipeline.memory(slot.kind, pipeline.stage(rank, slot.chunk as usize), micro_batch);
        peak = peak.max(held + change);
        let passes_by = slot.kind == PassKind::Forward && pipeline.chains.is_forward_only(micro_batch);
        held += if passes_by { 0 } else { change };
    }
    u64::try_from(peak).expect("a rank holds what it has not freed")
}
