//! What an iteration takes longer because weights come from host memory (`step_cost/host_weights.rs`).

use engine::cost::roofline::datasheet;
use engine::layer;
use engine::shard::ExpertLoad;
use engine::stage::Stage;
use engine::task::{Op, Ops, PassKind};
use hw::{Bytes, Seconds};

use super::Writer;
use crate::step_cost::host_bytes::{held, kept};
use crate::step_cost::host_weights::{HostPart, HostWay, HostWeights};

/// A pass through a stage some of whose layers are copied.
struct Pass {
    n_layers: u32,
    /// Positions of those that are.
    copied: Vec<u32>,
    ahead: usize,
    /// Seconds of a copy.
    copy: f64,
}

impl Pass {
    /// Seconds of a pass whose layers compute for so many together. The first layers are there, because the pass before has copied them.
    fn seconds(&self, computed: f64) -> f64 {
        let of_layer = computed / f64::from(self.n_layers);
        let mut there = vec![0.0; self.copied.len()];
        let (mut now, mut link) = (0.0_f64, 0.0_f64);
        let mut n_done = 0;
        for layer in 0..self.n_layers {
            let is_copied = self.copied.get(n_done) == Some(&layer);
            if is_copied {
                now = now.max(there[n_done]);
            }
            now += of_layer;
            if is_copied {
                link = link.max(now) + self.copy;
                if let Some(next) = there.get_mut(n_done + self.ahead) {
                    *next = link;
                }
                n_done += 1;
            }
        }
        now.max(link)
    }

    /// Seconds for which a pass waits at the least, however long its layers compute.
    fn waited(&self) -> f64 {
        let long = self.copy * f64::from(self.n_layers) * 4.0 * hw::real(self.copied.len() as u64 + 1);
        self.seconds(long) - long
    }
}

/// What weights in host memory cost every batch alike, over all stages.
#[derive(Clone, Copy, Debug)]
pub(super) struct FromHost {
    /// Their bytes on a GPU of every stage, together.
    kept: f64,
    /// Seconds for which passes wait for copies.
    waited: Seconds,
}

impl Writer<'_> {
    /// What a batch of so many tokens on each of so many ranks takes longer through all stages, because weights lie in host memory.
    pub(super) fn of_host_weights(&self, m: u64, n_busy: u32) -> Seconds {
        let Some(weights) = self.deployment.host_weights else { return Seconds::ZERO };
        let FromHost { kept, waited } = *self.from_host.get_or_init(|| self.of_every_batch(weights));
        let longer = match weights.way {
            HostWay::Copied(_) | HostWay::Ahead { .. } => waited,
            HostWay::InPlace(_) => {
                let (share, visited, products) = self.read_in_place(weights.part, kept, m, n_busy);
                (self.over_host_link(visited) - products * share).max(Seconds::ZERO)
            }
        };
        self.own("weights on the host", &datasheet(longer), 1)
    }

    /// What does not depend on a batch.
    fn of_every_batch(&self, weights: HostWeights) -> FromHost {
        let stages = self.deployment.stages();
        let kept = stages.iter().map(|stage| kept(weights, self.deployment, stage).as_f64()).sum::<f64>();
        let waited = match weights.way {
            HostWay::Copied(_) => self.over_host_link(kept),
            HostWay::InPlace(_) => Seconds::ZERO,
            HostWay::Ahead { .. } => {
                Seconds::new(stages.iter().map(|stage| self.with_pass(weights, stage, Pass::waited)).sum())
            }
        };
        FromHost { kept, waited }
    }

    fn over_host_link(&self, bytes: f64) -> Seconds {
        Bytes::from_f64(bytes) / self.deployment.host_link()
    }

    /// Least time of a pass through the slowest stage, where copies beside it set the pace.
    pub(in crate::step_cost) fn copied(&self) -> Seconds {
        let Some(weights) = self.deployment.host_weights else { return Seconds::ZERO };
        let stages = self.deployment.stages();
        let computed = self.on_device(1, 1).get() / hw::real(stages.len() as u64);
        let of_stage = |stage: &Stage| self.with_pass(weights, stage, |pass| pass.seconds(computed));
        Seconds::new(stages.iter().map(of_stage).fold(0.0, f64::max))
    }

    /// Asks a pass through a stage; nothing where no layer is copied ahead.
    fn with_pass(&self, weights: HostWeights, stage: &Stage, asked: impl Fn(&Pass) -> f64) -> f64 {
        let (copied, HostWay::Ahead { ahead, .. }) = (weights.layers(stage), weights.way) else { return 0.0 };
        if copied.is_empty() {
            return 0.0;
        }
        let bytes = kept(weights, self.deployment, stage).as_f64() / hw::real(copied.len() as u64);
        let copy = self.over_host_link(bytes).get();
        asked(&Pass { n_layers: stage.n_layers(), copied, ahead: ahead as usize, copy })
    }

    /// Of weights that are read in place: their share of what may lie in host memory, the bytes of them that a batch reads, and the time of all products with
    /// weights that may lie there.
    fn read_in_place(&self, part: HostPart, kept: f64, m: u64, n_busy: u32) -> (f64, f64, Seconds) {
        let stages = self.deployment.stages();
        let all = stages.iter().map(|stage| held(self.deployment, stage));
        let [experts, rest] = all.fold([0.0, 0.0], |sum, of| [sum[0] + of[0], sum[1] + of[1]]);
        let rest = if part == HostPart::Experts { 0.0 } else { rest };
        let share = kept / (experts + rest).max(1.0);
        let (products, visited) = self.products(part, m, n_busy);
        (share, share * (experts * visited + rest), self.end(&self.cost.estimate(&Op::Sequence(products))))
    }

    /// Products of all layers with weights of such a part, and the share of the experts on this GPU that tokens visit.
    fn products(&self, part: HostPart, m: u64, n_busy: u32) -> (Ops, f64) {
        let tokens = m * u64::from(n_busy);
        let (mut ops, mut n_held, mut n_visited) = (Vec::new(), 0, 0);
        for &(mixer, n) in &self.mixers {
            ops.extend(layer::repeated(&layer::before_mixing(&self.shard, mixer, m, PassKind::Forward), n));
        }
        for kind in &self.kinds {
            let load = kind.layer.has_experts().then_some(&ExpertLoad::EVEN);
            let mut after = layer::after_mixing(&self.shard, kind.layer, m, PassKind::Forward, load);
            n_held += experts_in(&after, |_| true) * u64::from(kind.n);
            self.visit(&mut after, tokens, kind.counted);
            n_visited += experts_in(&after, |rows| rows > 0) * u64::from(kind.n);
            ops.extend(layer::repeated(&after, kind.n));
        }
        ops.retain(|(op, _)| match op {
            Op::Gemm { .. } => part == HostPart::All,
            Op::GroupedGemm { .. } => true,
            _ => false,
        });
        (ops, hw::real(n_visited) / hw::real(n_held.max(1)))
    }
}

/// Experts of the first of a layer's grouped products with such rows.
fn experts_in(ops: &Ops, counts: impl Fn(u64) -> bool) -> u64 {
    let rows = ops.iter().find_map(|(op, _)| if let Op::GroupedGemm { rows, .. } = op { Some(rows) } else { None });
    rows.map_or(0, |rows| rows.iter().filter(|rows| counts(**rows)).count() as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pass(n_layers: u32, [n, of]: [u32; 2], ahead: usize) -> Pass {
        let copied = (0..n_layers).filter(|index| index % of >= of - n).collect();
        Pass { n_layers, copied, ahead, copy: 1.0 }
    }

    #[test]
    fn copies_hide_behind_layers_that_take_longer() {
        // The last of every four layers. Its copy has three layers in front of it. The one of the last layer has none: the pass waits for it.
        let pass = pass(8, [1, 4], 1);
        assert!((pass.waited() - 1.0).abs() < 1e-9);
        assert!((pass.seconds(8.0) - 9.0).abs() < 1e-9);
        // Layers that take no time: both copies in a row.
        assert!((pass.seconds(0.0) - 2.0).abs() < 1e-9);
        // A layer that nothing follows is ready long before: 7 of 8 on the device, the first group ends in front of the last layers.
        let early = Pass { n_layers: 8, copied: vec![3], ahead: 1, copy: 1.0 };
        assert!((early.seconds(8.0) - 8.0).abs() < 1e-9 && early.waited().abs() < 1e-9);
    }

    #[test]
    fn neighbours_in_host_memory_wait_for_each_other_unless_copies_are_as_far_ahead() {
        // Two of four, one ahead: the second of each pair waits for a whole copy, and the last copies of the pass are waited for.
        assert!((pass(8, [2, 4], 1).waited() - 3.0).abs() < 1e-9);
        // Two ahead: the pair is there. Behind the last pair two copies are left, of which one ran beside the last layer.
        assert!((pass(8, [2, 4], 2).waited() - 1.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn a_pass_takes_the_longer_of_both_lines_and_at_most_their_sum(
            n_layers in 1_u32..70, n in 1_u32..5, more in 0_u32..6, ahead in 1_usize..5, computed in 0.0_f64..200.0,
        ) {
            let pass = pass(n_layers, [n, n + more], ahead);
            prop_assume!(!pass.copied.is_empty());
            let copies = hw::real(pass.copied.len() as u64);
            let found = pass.seconds(computed);
            let lines = (computed + pass.waited()).max(pass.seconds(0.0));
            prop_assert!(found >= lines - 1e-9 && found <= computed + copies + 1e-9, "{found} of {lines}");
            // A slower layer makes no pass shorter, and a further copy none longer.
            prop_assert!(pass.seconds(computed + 1.0) >= found);
            let further = Pass { ahead: pass.ahead + 1, ..pass };
            prop_assert!(further.seconds(computed) <= found + 1e-9);
        }
    }
}
