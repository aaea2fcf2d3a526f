//! Stages of a pipeline that do not have equally many layers: the slowest sets the pace of all micro-batches in flight, and one with fewer waits for it.
//!
//! A layer takes as long in every stage, so a stage takes its share of a pass. Units: layers, ticks.

use engine::stage::Stage;
use hw::Tick;

use super::StepTable;
use super::transit::Transit;

/// Layers of stages that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uneven {
    /// Of the stage with most of them.
    most: u64,
    /// Of the last stage.
    last: u64,
    /// Of all stages.
    all: u64,
}

impl Uneven {
    /// Of these stages; `None` where they are alike.
    pub(super) fn of(stages: &[Stage]) -> Option<Self> {
        let layers = || stages.iter().map(|stage| u64::from(stage.n_layers()));
        let last = u64::from(stages.last()?.n_layers());
        let of = Self { most: layers().max()?, last, all: layers().sum() };
        (of.all < of.most * stages.len() as u64).then_some(of)
    }

    /// How much longer than a pass so many passes in flight take on the slowest stage, as part and whole; as long as a pass at least.
    fn stretch(self, in_flight: u32) -> (u64, u64) {
        (self.all.max(self.most * u64::from(in_flight)), self.all)
    }
}

impl StepTable {
    /// A batch that takes so many ticks through all stages.
    pub(super) fn transit(&self, ticks: Tick) -> Transit {
        let pace = self.on_slowest(ticks);
        Transit { pace, fill: ticks - pace }
    }

    /// Ticks on the slowest stage of a pass through all of them.
    pub fn on_slowest(&self, ticks: Tick) -> Tick {
        self.uneven.map_or(ticks / u64::from(self.lanes.stages), |uneven| ticks.share(uneven.most, uneven.all))
    }

    /// What a round of so many micro-batches takes longer, where each takes so many ticks longer through all stages.
    pub(super) fn stretched(&self, ticks: Tick, in_flight: u32) -> Tick {
        let Some((part, whole)) = self.uneven.map(|uneven| uneven.stretch(in_flight)) else { return ticks };
        ticks.share(part, whole)
    }

    /// Share of a round in which a stage computes for so many sequences, on average over stages, as part and whole.
    pub fn stage_share(&self, n: u32) -> (u64, u64) {
        let (part, whole) = self.lanes.share(n);
        let (longer, pass) = self.uneven.map_or((1, 1), |uneven| uneven.stretch(self.lanes.in_flight(n)));
        (part * pass, whole * longer)
    }

    /// Of so many ticks on the slowest stage, those of a stage on average.
    pub(super) fn on_average(&self, slowest: Tick) -> Tick {
        let stages = u64::from(self.lanes.stages);
        self.uneven.map_or(slowest, |uneven| slowest.share(uneven.all, uneven.most * stages))
    }

    /// What the heads of so many micro-batches add to a round, whose layers take so many ticks each through all stages. The last stage has the head besides its
    /// layers. Where it has fewer than the slowest, it sets the pace with what the head takes longer than those alone; a first head is waited for in any case.
    pub(super) fn heads(&self, head: Tick, n: u32, layers: Tick) -> Tick {
        let hidden = self.uneven.map_or(Tick::ZERO, |uneven| layers.share(uneven.most - uneven.last, uneven.all));
        let one = if n > 0 { head } else { Tick::ZERO };
        one.max(head.saturating_sub(hidden) * u64::from(n))
    }
}

#[cfg(test)]
mod tests {
    use hw::Seconds;

    use super::*;
    use crate::step_cost::StepLoad;
    use crate::step_cost::lanes::Lanes;

    /// Ticks of a round in a pipeline that is played stage by stage, where every micro-batch takes so long in a layer, and its head so long in the last stage.
    fn played(layers: &[u64], n_batches: usize, layer: u64, head: u64) -> u64 {
        let (mut free, mut back) = (vec![0; layers.len()], vec![0; n_batches]);
        let mut ends = Vec::new();
        for _ in 0..400 {
            for back in &mut back {
                for (index, (n, free)) in layers.iter().zip(&mut free).enumerate() {
                    let of_head = if index + 1 == layers.len() { head } else { 0 };
                    *free = (*free).max(*back) + n * layer + of_head;
                    *back = *free;
                }
            }
            ends.push(back[0]);
        }
        (ends[399] - ends[299]) / 100
    }

    /// Rounds of so many sequences, each a micro-batch, that take so long in a layer and a head.
    fn counted(layers: &[u64], n: u32, layer: u64, head: u64) -> u64 {
        let stages: Vec<Stage> =
            layers.iter().map(|n| Stage { n_dense: u32::try_from(*n).expect("few"), ..Stage::NONE }).collect();
        let lanes = Lanes { stages: u32::try_from(layers.len()).expect("few"), ranks: 1 };
        let all: u64 = layers.iter().sum();
        let table = StepTable {
            tokens: vec![Tick::ZERO, Tick::new(all * layer)],
            head: vec![Tick::ZERO, Tick::new(head)],
            uneven: Uneven::of(&stages),
            lanes,
            ..StepTable::constant(Seconds::ZERO)
        };
        let load = StepLoad { n_decode: n, n_sampled: n, ..StepLoad::default() };
        table.step(&load, std::iter::empty()).get()
    }

    #[test]
    fn rounds_of_uneven_stages_are_those_of_a_pipeline_played_stage_by_stage() {
        for layers in [&[6_u64, 6, 7, 7, 6][..], &[15, 15, 15, 16], &[16, 15, 15, 15], &[7, 7, 7, 12], &[8, 8, 8, 8]] {
            for n in 1..=layers.len() {
                let n_sequences = u32::try_from(n).expect("few");
                let found = counted(layers, n_sequences, 1000, 0);
                let wanted = played(layers, n, 1000, 0);
                assert!(found.abs_diff(wanted) <= 8, "{layers:?} with {n}: {found}, played {wanted}");
                for head in [500, 2000, 9000] {
                    let (found, wanted) = (counted(layers, n_sequences, 1000, head), played(layers, n, 1000, head));
                    // Never too short, and too long by no more than what the approximation of partly filled pipelines has.
                    assert!(found + 8 >= wanted, "{layers:?} with {n}, head {head}: {found}, played {wanted}");
                    assert!(
                        found <= wanted + head * n as u64 + 8,
                        "{layers:?} with {n}, head {head}: {found}, played {wanted}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_stage_with_fewer_layers_hides_its_head() {
        // Five micro-batches of 32 ms over 6, 6, 7, 7 and 6 layers: 35 ms on the slowest stage, and a head of 1 ms is waited for once.
        assert_eq!(counted(&[6, 6, 7, 7, 6], 5, 1000, 1000), 36_000);
        // Where the last one is the slowest, each of five heads is waited for.
        assert_eq!(counted(&[6, 6, 6, 7, 7], 5, 1000, 1000), 40_000);
    }
}
