//! Layers of a pipeline stage.
//!
//! Stages are numbered along a micro-batch's path. The first one holds the embedding, the last one the final norm and the head.

use crate::model::Model;
use crate::recompute::Recompute;

/// Layers of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stage {
    /// Layers with a dense feed-forward.
    pub n_dense: u32,
    /// Layers with experts.
    pub n_expert: u32,
    /// Those of the dense ones that are computed again in backward.
    pub again_dense: u32,
    /// Those of the layers with experts that are.
    pub again_expert: u32,
    /// Whether it holds the embedding.
    pub first: bool,
    /// Whether it holds the head.
    pub last: bool,
    /// Whether it is a forward that backward runs again.
    pub is_repeated: bool,
    /// Layers of the model before these, without experts and with. Only where layers differ by more than that: stages of as many layers are equal
    /// elsewhere.
    pub before: Option<[u32; 2]>,
}

impl Stage {
    /// No layer, and neither end.
    pub const NONE: Self = Self {
        n_dense: 0,
        n_expert: 0,
        again_dense: 0,
        again_expert: 0,
        first: false,
        last: false,
        is_repeated: false,
        before: None,
    };

    /// With what is computed again, at most `n_again` layers of it.
    pub fn recomputing(self, recompute: Recompute, n_again: u32) -> Self {
        let of = |n_layers: u32, with_experts, most: u32| {
            if recompute.concerns(with_experts) { n_layers.min(most) } else { 0 }
        };
        let again_dense = of(self.n_dense, false, n_again);
        let again_expert = of(self.n_expert, true, n_again - again_dense);
        Self { again_dense, again_expert, ..self }
    }

    /// Layers.
    pub const fn n_layers(&self) -> u32 {
        self.n_dense + self.n_expert
    }

    /// The layers that are computed again, without embedding and head.
    pub const fn again(&self) -> Self {
        let [n_dense, n_expert] = [self.again_dense, self.again_expert];
        Self {
            n_dense,
            n_expert,
            again_dense: 0,
            again_expert: 0,
            first: false,
            last: false,
            is_repeated: true,
            ..*self
        }
    }

    /// The first layer, with the embedding, and the rest.
    pub fn first_layer_and_rest(&self) -> [Self; 2] {
        let n_dense = self.n_dense.min(1);
        let n_expert = self.n_expert.min(1 - n_dense);
        let first = Self { n_dense, n_expert, first: self.first, before: self.before, ..Self::default() };
        let before = self.behind(n_dense, n_expert);
        let (n_dense, n_expert) = (self.n_dense - n_dense, self.n_expert - n_expert);
        [first, Self { n_dense, n_expert, last: self.last, before, ..Self::default() }]
    }

    /// Layers of the model before those that follow so many of these.
    fn behind(&self, n_dense: u32, n_expert: u32) -> Option<[u32; 2]> {
        self.before.map(|[dense, expert]| [dense + n_dense, expert + n_expert])
    }

    /// Cuts a stage into `n` pieces in backward order: the head and the last layers are in the first, the embedding in the last.
    pub fn pieces(&self, n: u32) -> Vec<Self> {
        let n = n.clamp(1, self.n_layers().max(1));
        let part = |whole: u32, index: u32| whole / n + u32::from(index < whole % n);
        let (mut dense_left, mut expert_left) = (self.n_dense, self.n_expert);
        let mut pieces = Vec::with_capacity(n as usize);
        for index in 0..n {
            let [n_dense, n_expert] = [self.n_dense, self.n_expert].map(|whole| part(whole, index));
            dense_left -= n_dense;
            expert_left -= n_expert;
            pieces.push(Self {
                n_dense,
                n_expert,
                again_dense: part(self.again_dense, index),
                again_expert: part(self.again_expert, index),
                first: self.first && index + 1 == n,
                last: self.last && index == 0,
                is_repeated: self.is_repeated,
                before: self.behind(dense_left, expert_left),
            });
        }
        pieces
    }
}

/// An even split of layers; those that are left go to the middle, away from embedding and head.
pub fn even(n_layers: u32, n_stages: u32) -> Vec<u32> {
    let (base, rest) = (n_layers / n_stages, n_layers % n_stages);
    let from = (n_stages - rest) / 2;
    (0..n_stages).map(|index| base + u32::from((from..from + rest).contains(&index))).collect()
}

/// Stages with so many layers each, along the path; nothing is computed again.
pub fn stages(model: &Model, counts: &[u32]) -> Vec<Stage> {
    let mut before = 0;
    let mut stages = Vec::with_capacity(counts.len());
    for (index, &n) in counts.iter().enumerate() {
        let n_expert = n_expert_layers(model, before + n) - n_expert_layers(model, before);
        before += n;
        let (first, last) = (index == 0, index + 1 == counts.len());
        stages.push(Stage { n_dense: n - n_expert, n_expert, first, last, ..Stage::default() });
    }
    stages
}

/// Layers with experts among the first `n`.
fn n_expert_layers(model: &Model, n: u32) -> u32 {
    u32::try_from(model.n_expert_layers_of(u64::from(n))).expect("layer counts are checked by the model reader")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uneven_split_keeps_all_layers_and_favours_the_middle() {
        assert_eq!(even(61, 16).iter().sum::<u32>(), 61);
        assert_eq!(even(10, 4), [2, 3, 3, 2]);
        assert_eq!(even(8, 4), [2; 4]);
    }

    #[test]
    fn pieces_hold_what_the_stage_holds() {
        let stage = Stage {
            n_dense: 3,
            n_expert: 10,
            again_dense: 3,
            again_expert: 2,
            first: true,
            last: true,
            is_repeated: false,
            before: Some([1, 2]),
        };
        let pieces = stage.pieces(4);
        assert_eq!(pieces.iter().map(Stage::n_layers).sum::<u32>(), 13);
        assert_eq!(pieces.iter().map(|piece| piece.again().n_layers()).sum::<u32>(), 5);
        assert!(pieces.iter().all(|piece| piece.again_dense <= piece.n_dense && piece.again_expert <= piece.n_expert));
        assert!(pieces[0].last && pieces[3].first && !pieces[0].first && !pieces[3].last);
        // The last layers are in the first piece, and no layer is in two.
        let behind = |piece: &Stage| piece.behind(piece.n_dense, piece.n_expert);
        assert_eq!((behind(&pieces[0]), pieces[3].before), (Some([4, 12]), Some([1, 2])));
        assert!(pieces.windows(2).all(|pair| behind(&pair[1]) == pair[0].before));
    }
}
