//! Selective offload (equation 3): r = min(1, T(s) / copy(s)) of the activations of all but two layers stream to the host behind
//! forward and back behind backward, T one layer's forward, copy its activations' way to the host; a sequence then takes
//! D = ceil((2 + (1 − r)·(l − 2)) / l · s / C) ranks. The printed lower bound on r is left out.

use engine::task::CopyKind;
use engine::{CostModel, Op};
use train::Problem;
use train::lower::training::parts;
use train::plan::{MicroBatch, Place, Placement};
use train::stage::Stage;

/// How much of a sequence is offloaded, and how many ranks it then takes.
pub(super) struct Offload<'a> {
    pub(super) problem: &'a Problem,
    pub(super) cost: &'a dyn CostModel,
    /// None, a fixed ratio, or the largest that is hidden.
    pub(super) rule: Rule,
}

/// How much goes to the host.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Rule {
    /// Nothing.
    Off,
    /// What computation hides.
    Hidden,
    /// So much of all but two layers.
    Fixed(f64),
}

impl Offload<'_> {
    /// Layers of a rank.
    fn n_layers(&self) -> f64 {
        let stages = train::stage::stages(self.problem);
        f64::from(stages.iter().map(Stage::n_layers).max().unwrap_or(1))
    }

    /// Largest share of all but two layers that computation hides: equation 3.
    pub(super) fn hidden(&self, tokens: u64) -> f64 {
        let mut alone = self.problem.clone();
        alone.layout.cp = 1;
        let placement = Placement { sequence: 0, from: 0, tokens, place: Place::Local(0) };
        let micro_batch = MicroBatch { sequences: vec![placement], ..MicroBatch::default() };
        let parts = parts(&alone, &micro_batch, train::experts::mean(&alone), self.cost);
        // Where layers of both kinds are, those with experts speak for all.
        let (compute, layer) = match self.problem.model.experts {
            Some(_) => (parts.layer(true)[0], Stage { n_expert: 1, ..Stage::default() }),
            None => (parts.layer(false)[0], Stage { n_dense: 1, ..Stage::default() }),
        };
        let layer = layer.recomputing(self.problem.execution.recompute, self.problem.execution.recompute_layers);
        let bytes = tokens * engine::memory::activation_bytes_per_token(&self.problem.shard(), &layer);
        let copy = self.cost.estimate(&Op::Copy { kind: CopyKind::DeviceToHost, bytes }).time.get();
        if copy > 0.0 { (compute / copy).min(1.0) } else { 1.0 }
    }

    pub(super) fn ratio(&self, tokens: u64) -> f64 {
        match self.rule {
            Rule::Off => 0.0,
            Rule::Fixed(ratio) => ratio,
            Rule::Hidden => self.hidden(tokens),
        }
    }

    /// Thousandths of all layers' activations, and ranks of a sequence.
    pub(super) fn of(&self, tokens: u64, capacity: u64) -> (u32, u32) {
        let layers = self.n_layers();
        let share = self.ratio(tokens) * (layers - 2.0).max(0.0) / layers;
        // Whole thousandths, downwards: a rank never holds more than it may.
        let permille = u32::try_from(hw::whole((share * 1000.0).floor())).expect("at most a thousand");
        let left = u128::from(tokens) * u128::from(1000 - permille);
        let n = left.div_ceil(1000 * u128::from(capacity)).max(1);
        // More ranks than can be counted are more than there are.
        (permille, u32::try_from(n).unwrap_or(u32::MAX))
    }
}
