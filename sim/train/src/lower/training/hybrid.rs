//! Layers of a hybrid model, each a mixer or a feed-forward alone or both (Nemotron-H, Qwen3-Next): state-space layers and linear attention beside
//! attention.
//!
//! A stage holds the kinds in the proportions of the whole model. The scan of a state space is memory-bound: its kernels hand chunks and their states to
//! each other through memory (`mamba_ssm`, `ssd_combined.py`). A delta rule's backward makes its states again and two gradients of each product.
//! What either gates and norms is memory-bound work of its own.

use engine::formats::Formats;
use engine::layer;
use engine::mixing;
use engine::model::{FeedForward, Layer, Mixer, Model};
use engine::shard::{ExpertLoad, Shard};
use engine::task::{Document, Op, Ops, Pass, PassKind};

use super::{Builder, Share, compressed};
use crate::problem::Problem;
use crate::stage::Stage;

/// Passes of a delta rule's own products in backward: two gradients, and the states once more.
const DELTA_BACKWARD: u32 = 3;
/// Tensors of 16 bits that the kernels of a state space's scan read and write, forward and backward: as wide as its output, and as wide as the states of
/// all chunks (those of 32 bits count twice). Forward: states of chunks, their passing on, and the scan with its gate. Backward: both of the former
/// again, then the gradients of gate, states, inputs, `B`, `C`, their products and decays (`_mamba_chunk_scan_combined_{fwd,bwd}`).
const SCAN_TENSORS: [[u64; 2]; 2] = [[5, 6], [18, 17]];
/// Tokens of a chunk (Megatron-Core, `MambaMixer.chunk_size`).
const SCAN_CHUNK: u64 = 128;
/// Time that these kernels take over that of plain memory-bound ones with as many bytes. Mamba-2 of 1.4 B parameters trains at 102.5, 239.2 and
/// 360.4 TFLOP/s on A100, H200 and GB200 (state-spaces/mamba, issue 904). What products and plain kernels leave of that is 2.9, 3.9 and 4.3 times as
/// long; this is their geometric mean.
const SCAN_SLOWNESS: f64 = 3.7;
/// Tensors as wide as a mixer's output that gate and norm read and write.
const GATED_TENSORS: u64 = 3;

impl Builder<'_> {
    /// All layers of a stage of a hybrid model; none for another model.
    pub(super) fn hybrid_layers(&self, problem: &Problem, stage: &Stage, share: &Share, kind: PassKind) -> Option<Ops> {
        of_stage(problem, self.load, stage, &share.local, kind)
    }
}

/// All layers of a stage of a hybrid model with the load of their experts; none for another model.
pub(super) fn of_stage(
    problem: &Problem,
    load: ExpertLoad,
    stage: &Stage,
    documents: &[Document],
    kind: PassKind,
) -> Option<Ops> {
    let counts = || counts(&problem.model, stage, problem.execution.wide_layers);
    is_hybrid(&problem.model).then(|| layers(&problem.shard(), load, &counts(), documents, kind))
}

/// Least that the layers of a stage of a hybrid model compute beside attention, for a lower bound; none for another model. Products of a delta
/// rule are left out, as they depend on how documents are cut.
pub(crate) fn beside_attention(
    problem: &Problem,
    load: ExpertLoad,
    stage: &Stage,
    tokens: u64,
    kind: PassKind,
) -> Option<Ops> {
    if !is_hybrid(&problem.model) {
        return None;
    }
    let counts = counts(&problem.model, stage, problem.execution.wide_layers);
    let pass = if kind == PassKind::Forward { Pass::Forward } else { Pass::Backward };
    let document = Document::causal(tokens);
    let mut ops = products(&problem.shard(), load, &counts, tokens, kind);
    for count in counts.iter().filter(|count| count.layer.mixer == Mixer::StateSpace) {
        ops.extend(layer::repeated(&scanned(&problem.shard(), &[document], pass), count.n));
    }
    Some(ops)
}

/// Layers of a kind in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count {
    layer: Layer,
    /// Whether their products stay in the format of activations.
    is_wide: bool,
    n: u32,
}

/// Whether some layer lacks attention or a feed-forward, or layers have attention of several kinds to tokens that are kept together.
pub(crate) fn is_hybrid(model: &Model) -> bool {
    let lacks = |layer: &Layer| !layer.mixer.attends() || layer.feed_forward == FeedForward::Off;
    model.compressed.is_some() || model.layers.kinds().iter().any(lacks)
}

/// Attention of one document in all layers of a model of compressed attention; none for another model.
pub(crate) fn compressed_attention(problem: &Problem, document: Document, pass: Pass) -> Option<Ops> {
    let model = &problem.model;
    model.compressed?;
    let of = |(layer, n): (Layer, u64)| {
        let n = u32::try_from(n).expect("layers fit u32");
        layer::repeated(&compressed::mixed(&problem.shard(), layer.mixer, &[document], pass), n)
    };
    Some(model.kinds(0, model.n_layers).into_iter().flat_map(of).collect())
}

/// Layers in a pass over documents of so many tokens together.
fn layers(shard: &Shard<'_>, load: ExpertLoad, counts: &[Count], documents: &[Document], kind: PassKind) -> Ops {
    let tokens = n_tokens(documents);
    let wide = Shard { formats: Formats::of(shard.dtype), ..*shard };
    let mut ops = Ops::new();
    for &Count { layer, is_wide, n } in counts {
        let shard = if is_wide { &wide } else { shard };
        let load = Some(&load).filter(|_| layer.has_experts());
        ops.extend(layer::repeated(&layer::before_mixing(shard, layer.mixer, tokens, kind), n));
        ops.extend(layer::repeated(&mixed(shard, layer.mixer, documents, kind), n));
        ops.extend(layer::repeated(&layer::after_mixing(shard, layer, tokens, kind, load), n));
    }
    ops
}

/// What such layers compute around their mixers.
fn products(shard: &Shard<'_>, load: ExpertLoad, counts: &[Count], tokens: u64, kind: PassKind) -> Ops {
    let wide = Shard { formats: Formats::of(shard.dtype), ..*shard };
    let mut ops = Ops::new();
    for &Count { layer, is_wide, n } in counts {
        let shard = if is_wide { &wide } else { shard };
        let load = Some(&load).filter(|_| layer.has_experts());
        ops.extend(layer::repeated(&layer::before_mixing(shard, layer.mixer, tokens, kind), n));
        ops.extend(layer::repeated(&layer::after_mixing(shard, layer, tokens, kind, load), n));
    }
    ops
}

/// Kinds of layers with how many of each a stage has, in the proportions of the model; those with experts and those without are counted apart.
/// The last `n_wide` layers of the model are kinds of their own.
fn counts(model: &Model, stage: &Stage, n_wide: u32) -> Vec<Count> {
    let border = model.n_layers.saturating_sub(u64::from(n_wide));
    let narrow = model.kinds(0, border).into_iter().map(|(layer, n)| (layer, false, n));
    let kinds: Vec<_> =
        narrow.chain(model.kinds(border, model.n_layers).into_iter().map(|(layer, n)| (layer, true, n))).collect();
    let mut counts = Vec::with_capacity(kinds.len());
    for (with_experts, held) in [(false, stage.n_dense), (true, stage.n_expert)] {
        let of: Vec<_> = kinds.iter().copied().filter(|(layer, ..)| layer.has_experts() == with_experts).collect();
        let all: u64 = of.iter().map(|(.., n)| n).sum();
        let (mut seen, mut given) = (0, 0);
        for (layer, is_wide, n) in of {
            seen += n;
            let until = u32::try_from(u64::from(held) * seen / all).expect("layers fit u32");
            counts.push(Count { layer, is_wide, n: until - given });
            given = until;
        }
    }
    counts
}

/// Least that layers of a stage take, over what the mean layer of the model with experts, or without, says of as many: a stage has whole layers of every
/// kind, so of each at most one less than its share.
pub(super) fn least_share(problem: &Problem, with_experts: bool) -> f64 {
    let model = &problem.model;
    if !is_hybrid(model) {
        return 1.0;
    }
    let n_expert = u32::try_from(model.n_expert_layers()).expect("layers fit u32");
    let n_dense = u32::try_from(model.n_layers).expect("layers fit u32") - n_expert;
    let kinds = counts(model, &Stage { n_dense, n_expert, ..Stage::default() }, problem.execution.wide_layers);
    let kinds = kinds.iter().filter(|kind| kind.layer.has_experts() == with_experts);
    let of: Vec<f64> = kinds.map(|kind| 1.0 / f64::from(kind.n)).collect();
    let n_stages = problem.layout.pp * problem.layout.chunks;
    if of.len() < 2 || n_stages < 2 {
        return 1.0;
    }
    (1.0 - f64::from(n_stages) * of.iter().sum::<f64>()).max(0.0)
}

fn mixed(shard: &Shard<'_>, mixer: Mixer, documents: &[Document], kind: PassKind) -> Ops {
    let pass = match kind {
        PassKind::Forward => Pass::Forward,
        PassKind::Backward | PassKind::Input => Pass::Backward,
        PassKind::Weight => return Vec::new(),
    };
    if shard.model.compressed.is_some() {
        return compressed::mixed(shard, mixer, documents, pass);
    }
    if mixer.attends() {
        return layer::attention(shard, documents, 1, pass);
    }
    if mixer == Mixer::Off {
        return Vec::new();
    }
    let mut ops = match mixer {
        Mixer::StateSpace => scanned(shard, documents, pass),
        _ => {
            let passes = if pass == Pass::Forward { 1 } else { DELTA_BACKWARD };
            let of = |document: &Document| layer::repeated(&mixing::chunk(shard, mixer, 0, document.queries), passes);
            documents.iter().flat_map(of).collect()
        }
    };
    let gates = if pass == Pass::Forward { 2 } else { 3 };
    let tensor =
        n_tokens(documents) * shard.model.mixed_width(mixer).div_ceil(u64::from(shard.tp)) * shard.dtype.bytes();
    ops.push((Op::Elementwise { bytes: GATED_TENSORS * tensor * gates / 2 }, 1));
    ops
}

/// The kernels of a state space's scan.
fn scanned(shard: &Shard<'_>, documents: &[Document], pass: Pass) -> Ops {
    let Some(space) = shard.model.state_space else { return Vec::new() };
    let width = space.width().div_ceil(u64::from(shard.tp));
    let [outputs, states] = SCAN_TENSORS[usize::from(pass == Pass::Backward)];
    let elements = outputs * width + states * width * space.state / SCAN_CHUNK;
    let bytes = n_tokens(documents) * elements * shard.dtype.bytes();
    vec![(Op::Elementwise { bytes: hw::whole(hw::real(bytes) * SCAN_SLOWNESS) }, 1)]
}

fn n_tokens(documents: &[Document]) -> u64 {
    documents.iter().map(|document| document.queries).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_model_has_its_pattern_and_a_piece_its_share() {
        let model = engine::model::embedded("nemotron-3-nano-30b-a3b").expect("embedded");
        assert!(is_hybrid(&model) && !is_hybrid(&engine::model::embedded("gpt-oss-120b").expect("embedded")));
        // 23 state-space layers and six of attention alone, 23 of experts.
        let whole = counts(&model, &Stage { n_dense: 29, n_expert: 23, ..Stage::default() }, 0);
        let of = |counts: &[Count], mixer| {
            counts.iter().filter(|count| count.layer.mixer == mixer).map(|count| count.n).sum::<u32>()
        };
        assert_eq!((of(&whole, Mixer::StateSpace), of(&whole, Mixer::Full), of(&whole, Mixer::Off)), (23, 6, 23));
        let piece = counts(&model, &Stage { n_dense: 8, n_expert: 6, ..Stage::default() }, 0);
        assert_eq!(piece.iter().map(|count| count.n).sum::<u32>(), 14);
        // The last four layers are `MEME`.
        let wide = counts(&model, &Stage { n_dense: 29, n_expert: 23, ..Stage::default() }, 4);
        assert_eq!(wide.iter().map(|count| count.n).sum::<u32>(), 52);
        let ends = wide.iter().filter(|count| count.is_wide).map(|count| (count.layer.mixer, count.n));
        assert_eq!(ends.collect::<Vec<_>>(), [(Mixer::StateSpace, 2), (Mixer::Off, 2)]);
    }

    #[test]
    fn a_scan_reads_and_writes_its_chunks_and_their_states() {
        let model = engine::model::embedded("nemotron-3-nano-30b-a3b").expect("embedded");
        let shard = Shard::forward(&model, hw::Dtype::Bf16, 1);
        let bytes = |pass| match scanned(&shard, &[Document::causal(128)], pass)[0].0 {
            Op::Elementwise { bytes } => bytes,
            _ => 0,
        };
        // One chunk of 64 heads of 64 and a state of 128: as many numbers of states as of outputs, 11 tensors of 128 tokens by 4096 in 16 bits.
        let tensor = 128 * 4096 * 2;
        assert_eq!(bytes(Pass::Forward), tensor * 11 * 37 / 10);
        assert_eq!(bytes(Pass::Backward), tensor * 35 * 37 / 10);
    }
}
