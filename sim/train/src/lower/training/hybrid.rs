//! Layers of a hybrid model, each a mixer or a feed-forward alone or both (Nemotron-H, Qwen3-Next): state-space layers and linear attention beside
//! attention.
//!
//! A stage holds the kinds in the proportions of the whole model. A scan's backward makes its states again and two gradients of each product
//! (`mamba_ssm`, `_mamba_chunk_scan_combined_bwd`); what it gates and norms is memory-bound work of its own.

use engine::layer;
use engine::mixing;
use engine::model::{FeedForward, Layer, Mixer, Model};
use engine::shard::{ExpertLoad, Shard};
use engine::task::{Document, Op, Ops, Pass, PassKind};

use super::{Builder, Share};
use crate::stage::Stage;

/// Passes of a scan's own products in backward: two gradients, and the states once more.
const SCAN_BACKWARD: u32 = 3;
/// Tensors as wide as a mixer's output that gate and norm read and write.
const GATED_TENSORS: u64 = 3;

impl Builder<'_> {
    /// All layers of a stage of a hybrid model; none for another model.
    pub(super) fn hybrid_layers(&self, stage: &Stage, share: &Share, kind: PassKind) -> Option<Ops> {
        let shard = self.problem.shard();
        is_hybrid(&self.problem.model).then(|| layers(&shard, self.load, stage, &share.local, kind))
    }
}

/// Whether some layer lacks attention or a feed-forward.
pub(super) fn is_hybrid(model: &Model) -> bool {
    let lacks = |layer: &Layer| !layer.mixer.attends() || layer.feed_forward == FeedForward::Off;
    model.layers.kinds().iter().any(lacks)
}

/// All layers of a stage in a pass over documents of so many tokens together.
fn layers(shard: &Shard<'_>, load: ExpertLoad, stage: &Stage, documents: &[Document], kind: PassKind) -> Ops {
    let tokens = documents.iter().map(|document| document.queries).sum();
    let mut ops = Ops::new();
    for (layer, n) in counts(shard.model, stage) {
        let load = Some(&load).filter(|_| layer.has_experts());
        ops.extend(layer::repeated(&layer::before_mixing(shard, layer.mixer, tokens, kind), n));
        ops.extend(layer::repeated(&mixed(shard, layer.mixer, documents, kind), n));
        ops.extend(layer::repeated(&layer::after_mixing(shard, layer, tokens, kind, load), n));
    }
    ops
}

/// Kinds of layers with how many of each a stage has, in the proportions of the model; those with experts and those without are counted apart.
fn counts(model: &Model, stage: &Stage) -> Vec<(Layer, u32)> {
    let kinds = model.kinds(0, model.n_layers);
    let mut counts = Vec::with_capacity(kinds.len());
    for (with_experts, held) in [(false, stage.n_dense), (true, stage.n_expert)] {
        let of: Vec<(Layer, u64)> =
            kinds.iter().copied().filter(|(kind, _)| kind.has_experts() == with_experts).collect();
        let all: u64 = of.iter().map(|(_, n)| n).sum();
        let (mut seen, mut given) = (0, 0);
        for (kind, n) in of {
            seen += n;
            let until = u32::try_from(u64::from(held) * seen / all).expect("layers fit u32");
            counts.push((kind, until - given));
            given = until;
        }
    }
    counts
}

fn mixed(shard: &Shard<'_>, mixer: Mixer, documents: &[Document], kind: PassKind) -> Ops {
    let pass = match kind {
        PassKind::Forward => Pass::Forward,
        PassKind::Backward | PassKind::Input => Pass::Backward,
        PassKind::Weight => return Vec::new(),
    };
    if mixer.attends() {
        return layer::attention(shard, documents, 1, pass);
    }
    let (passes, gates) = if pass == Pass::Forward { (1, 2) } else { (SCAN_BACKWARD, 3) };
    let mut ops = Ops::new();
    for document in documents {
        ops.extend(layer::repeated(&mixing::chunk(shard, mixer, 0, document.queries), passes));
    }
    let width = layer::mixed_width(shard, mixer).div_ceil(u64::from(shard.tp));
    let tokens: u64 = documents.iter().map(|document| document.queries).sum();
    let bytes = GATED_TENSORS * tokens * width * shard.dtype.bytes() * gates / 2;
    if mixer != Mixer::Off {
        ops.push((Op::Elementwise { bytes }, 1));
    }
    ops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_model_has_its_pattern_and_a_piece_its_share() {
        let model = engine::model::embedded("nemotron-3-nano-30b-a3b").expect("embedded");
        assert!(is_hybrid(&model) && !is_hybrid(&engine::model::embedded("gpt-oss-120b").expect("embedded")));
        // 23 state-space layers and six of attention alone, 23 of experts.
        let whole = counts(&model, &Stage { n_dense: 29, n_expert: 23, ..Stage::default() });
        let of = |counts: &[(Layer, u32)], mixer| {
            counts.iter().filter(|(kind, _)| kind.mixer == mixer).map(|(_, n)| n).sum::<u32>()
        };
        assert_eq!((of(&whole, Mixer::StateSpace), of(&whole, Mixer::Full), of(&whole, Mixer::Off)), (23, 6, 23));
        let piece = counts(&model, &Stage { n_dense: 8, n_expert: 6, ..Stage::default() });
        assert_eq!(piece.iter().map(|(_, n)| n).sum::<u32>(), 14);
    }
}
