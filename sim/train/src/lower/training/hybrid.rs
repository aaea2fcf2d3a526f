//! Layers of a hybrid model, each a mixer or a feed-forward alone or both (Nemotron-H, Qwen3-Next): state-space layers and linear attention beside
//! attention.
//!
//! A stage holds its own layers of the model. The scan of a state space is memory-bound: its kernels hand chunks and their states to
//! each other through memory (`mamba_ssm`, `ssd_combined.py`). A delta rule's backward makes its states again and two gradients of each product.
//! What either gates and norms is memory-bound work of its own.

use engine::formats::Formats;
use engine::layer;
use engine::mixing;
use engine::model::{Layer, Mixer, Model};
use engine::shard::{ExpertLoad, Shard};
use engine::task::{Document, Op, Ops, Pass, PassKind};

use super::layers::{Times, plus};
use super::{Share, compressed, layers};
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

/// What makes the gradients of weights of some layers, and of the head where the piece has it.
pub(super) fn weight_ops(problem: &Problem, load: ExpertLoad, piece: &Stage, share: &Share) -> Ops {
    match of_stage(problem, load, piece, &share.local, PassKind::Weight) {
        Some(mut layers) if problem.execution.trains_weights() => {
            if piece.last {
                layers.extend(layer::head(&problem.shard(), share.tokens, PassKind::Weight));
            }
            layers
        }
        _ => layers::weight_ops(problem, load, piece, share.tokens),
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
    problem.model.is_hybrid().then(|| layers(&problem.shard(), load, &counts(), documents, kind))
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
    if !problem.model.is_hybrid() {
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

/// Operations of a stage of a hybrid model in a forward: around mixers, in them, and what the gradients of mixing take; none for another model. That a delta
/// rule makes its states again is left out.
pub(crate) fn apart(problem: &Problem, stage: &Stage, documents: &[Document]) -> Option<[Ops; 3]> {
    if !problem.model.is_hybrid() {
        return None;
    }
    let (shard, counts) = (problem.shard(), counts(&problem.model, stage, problem.execution.wide_layers));
    let of = |kind| mixing(&shard, &counts, documents, kind);
    let forward = of(PassKind::Forward);
    let gradients =
        if problem.model.compressed.is_some() { of(PassKind::Backward) } else { layer::repeated(&forward, 2) };
    let around = products(&shard, ExpertLoad::EVEN, &counts, n_tokens(documents), PassKind::Forward);
    Some([around, forward, gradients])
}

/// What backward computes again of the parts of a stage's layers. Layers of a hybrid model that do not attend have no attention to compute again.
pub(crate) fn recomputed(problem: &Problem, load: ExpertLoad, stage: &Stage, tokens: u64, all: &[Document]) -> Ops {
    let shard = problem.shard();
    let part = |n, load| layer::repeated(&layer::recomputed_part(&shard, tokens, all, load), n);
    let mut ops = part(stage.again_dense, None);
    ops.extend(part(stage.again_expert, Some(&load)));
    if problem.model.is_hybrid() {
        let of_all = layer::attention(&shard, all, 1, Pass::Forward);
        let n_before = ops.len();
        ops.retain(|(op, _)| !of_all.iter().any(|(other, _)| other == op));
        if ops.len() < n_before {
            let counts = counts(&problem.model, &stage.again(), problem.execution.wide_layers);
            let attending: Vec<Count> = counts.into_iter().filter(|count| count.layer.mixer.attends()).collect();
            ops.extend(mixing(&shard, &attending, all, PassKind::Forward));
        }
    }
    ops
}

/// What mixes the tokens of such layers.
fn mixing(shard: &Shard<'_>, counts: &[Count], documents: &[Document], kind: PassKind) -> Ops {
    let of = |count: &Count| layer::repeated(&mixed(shard, count.layer.mixer, documents, kind), count.n);
    counts.iter().flat_map(of).collect()
}

/// Layers of a kind in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count {
    layer: Layer,
    /// Whether their products stay in the format of activations.
    is_wide: bool,
    n: u32,
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

/// A layer, and whether its products stay in the format of activations.
type Placed = (Layer, bool);

/// Layers of a model in their order, without experts and with. The products of the last `n_wide` layers stay in the format of activations.
fn in_order(model: &Model, n_wide: u32) -> [Vec<Placed>; 2] {
    let border = model.n_layers.saturating_sub(u64::from(n_wide));
    let all = (0..model.n_layers).map(|index| (model.layers.layer(index), index >= border));
    let (experts, dense) = all.partition(|(layer, _)| layer.has_experts());
    [dense, experts]
}

/// Kinds of layers with how many of each a stage has; those without experts come first.
fn counts(model: &Model, stage: &Stage, n_wide: u32) -> Vec<Count> {
    let before = stage.before.unwrap_or_default();
    let mut counts: Vec<Count> = Vec::new();
    for ((of, held), before) in in_order(model, n_wide).iter().zip([stage.n_dense, stage.n_expert]).zip(before) {
        for &(layer, is_wide) in &of[before as usize..(before + held) as usize] {
            match counts.iter_mut().find(|count| (count.layer, count.is_wide) == (layer, is_wide)) {
                Some(count) => count.n += 1,
                None => counts.push(Count { layer, is_wide, n: 1 }),
            }
        }
    }
    counts
}

/// Sums over the first layers without experts, and over those with, of what a layer at a place among its like takes; nothing for a model whose layers
/// differ by experts alone.
pub(super) fn running(problem: &Problem, of_layer: impl Fn(bool, u32) -> Times) -> Option<[Vec<Times>; 2]> {
    let model = &problem.model;
    model.is_hybrid().then(|| {
        let classes = in_order(model, problem.execution.wide_layers);
        [false, true]
            .map(|with_experts| sums(&classes[usize::from(with_experts)], |place| of_layer(with_experts, place)))
    })
}

/// Sums over the first layers of a list, none to all; a layer takes what the first of its kind does.
fn sums(layers: &[Placed], of_layer: impl Fn(u32) -> Times) -> Vec<Times> {
    let mut known: Vec<(Placed, Times)> = Vec::new();
    let mut sums = vec![Times::default()];
    for (place, &layer) in (0_u32..).zip(layers) {
        let times = match known.iter().find(|(other, _)| *other == layer) {
            Some((_, times)) => *times,
            None => {
                known.push((layer, of_layer(place)));
                known[known.len() - 1].1
            }
        };
        let before = sums[place as usize];
        sums.push(plus(before, times));
    }
    sums
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
    fn stages_have_the_layers_of_the_model_and_each_one_once() {
        let model = engine::model::embedded("nemotron-3-nano-30b-a3b").expect("embedded");
        assert!(model.is_hybrid() && !engine::model::embedded("gpt-oss-120b").expect("embedded").is_hybrid());
        // 23 state-space layers and six of attention alone, 23 of experts.
        let whole = counts(&model, &Stage { n_dense: 29, n_expert: 23, ..Stage::default() }, 0);
        let of = |counts: &[Count], mixer| {
            counts.iter().filter(|count| count.layer.mixer == mixer).map(|count| count.n).sum::<u32>()
        };
        assert_eq!((of(&whole, Mixer::StateSpace), of(&whole, Mixer::Full), of(&whole, Mixer::Off)), (23, 6, 23));
        // Layers begin `MEMEM*EMEMEM*`: one of attention is the sixth, the next the thirteenth.
        let stages = engine::stage::stages(&model, &[6, 6, 40]);
        let mut before = [0, 0];
        let mut placed = Vec::new();
        for stage in stages {
            placed.push(Stage { before: Some(before), ..stage });
            before = [before[0] + stage.n_dense, before[1] + stage.n_expert];
        }
        let attends = |stage: &Stage| of(&counts(&model, stage, 0), Mixer::Full);
        assert_eq!(placed.iter().map(attends).collect::<Vec<_>>(), [1, 0, 5]);
        let pieces = placed[2].pieces(4);
        assert_eq!(pieces.iter().map(attends).sum::<u32>(), 5);
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
