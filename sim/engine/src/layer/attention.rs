//! Attention over the documents of a micro-batch: what a layer multiplies, in the mean over layers with and without a window; unfused, as products and a softmax.

use hw::Format;

use super::cast_per_block;
use crate::model::Mixer;
use crate::shard::{AttentionKernel, Framework, Shard};
use crate::task::{Document, Op, Ops, Pass};

/// Bytes per score of the softmax of an unfused attention, forward and backward: it reads and writes 2, and backward reads one operand more.
const SOFTMAX_TRAFFIC: [u64; 2] = [4, 6];
/// The same of its dropout, which reads and writes 2, and its mask 1.
const DROPOUT_TRAFFIC: u64 = 5;
/// The same of learned sinks, forward and backward: scores are joined with a column of theirs, read and written 2, and an explicit mask is read, 1;
/// in backward zeros are written and the gradient is copied into them, 6 (Transformer Engine, `UnfusedDotProductAttention`).
const SINK_TRAFFIC: [u64; 2] = [5, 6];

/// Attention over documents with `head_share` ranks sharing the heads besides the tensor group; empty without documents.
///
/// In 8 bits Transformer Engine casts queries, keys and values by blocks, and in backward the gradient of what comes out. cuDNN's backward leaves no key out for a
/// window then: with 128 keys it takes 2.08 ms for 4,096 tokens, 7.4 for 8,192 and 27.9 for 16,384 on GB200 (NVIDIA/cudnn-frontend @ 3929da2ef4c1,
/// `sdpa_benchmark_training`).
pub fn attention(shard: &Shard<'_>, documents: &[Document], head_share: u64, pass: Pass) -> Ops {
    if documents.is_empty() {
        return Vec::new();
    }
    let (model, cut) = (shard.model, head_share * u64::from(shard.tp));
    let (kv_heads, head_dim) = model
        .latent
        .map_or((model.n_kv_heads, model.head_dim), |latent| (model.n_heads, latent.nope_dim + latent.rope_dim));
    let n_heads = model.n_heads.div_ceil(cut);
    if shard.attention == AttentionKernel::Unfused {
        return documents.iter().flat_map(|document| unfused(shard, document, n_heads, pass)).collect();
    }
    let (n_kv_heads, kv) = (kv_heads.div_ceil(cut), shard.formats.kv);
    let tokens: u64 = documents.iter().map(|document| document.queries).sum();
    let heeds_windows = pass == Pass::Forward || kv.bytes() > 1;
    let seen = |document: &Document| if heeds_windows { over_windows(shard, *document) } else { *document };
    let op = Op::Attention { documents: documents.iter().map(seen).collect(), n_heads, n_kv_heads, head_dim, kv, pass };
    let mut ops = vec![(op, 1)];
    if shard.framework == Framework::MegatronCore && kv.bytes() == 1 {
        let n_cast = if pass == Pass::Forward { n_heads + 2 * n_kv_heads } else { n_heads };
        ops.push((Op::Elementwise { bytes: cast_per_block(tokens * n_cast * head_dim) }, 1));
    }
    ops
}

/// A document with the mean of the pairs that the layers compute, where some attend to a window alone. The published formulas know no windows.
fn over_windows(shard: &Shard<'_>, document: Document) -> Document {
    let model = shard.model;
    if shard.framework == Framework::Formulas || model.is_plain() {
        return document;
    }
    let (mut pairs, mut n_layers) = (0, 0);
    for (kind, n) in model.kinds(0, model.n_layers).into_iter().filter(|(kind, _)| kind.mixer.attends()) {
        n_layers += n;
        pairs += n * seen_by(kind.mixer, document);
    }
    Document { pairs: pairs / n_layers.max(1), ..document }
}

/// Pairs of a document that a kind of layer computes.
fn seen_by(mixer: Mixer, document: Document) -> u64 {
    let together = mixer.kept_together();
    match (mixer, mixer.attended_max()) {
        (_, None) => document.pairs / together,
        // The mean over a chunk, whose first token sees itself alone.
        (Mixer::Chunked(_), Some(mean)) => document.pairs.min(mean.saturating_mul(document.queries)),
        // Of vectors that stand for several tokens each, as many are seen as of so many more tokens.
        (_, Some(most)) => document.within(most.saturating_mul(together)).pairs / together,
    }
}

/// Scores, softmax with dropout, and values of one document over the whole square: masked pairs are computed too.
fn unfused(shard: &Shard<'_>, document: &Document, n_heads: u64, pass: Pass) -> Ops {
    let (m, format, head_dim) = (n_heads * document.queries, Format::from(shard.dtype), shard.model.head_dim);
    let scores = Op::Gemm { m, n: document.keys, k: head_dim, format };
    let values = Op::Gemm { m, n: head_dim, k: document.keys, format };
    let at = usize::from(pass == Pass::Backward);
    let n_products = [1, 2][at];
    let dropout = if shard.dropout().attention { DROPOUT_TRAFFIC } else { 0 };
    let traffic = SOFTMAX_TRAFFIC[at] + dropout + if shard.model.sinks { SINK_TRAFFIC[at] } else { 0 };
    vec![(scores, n_products), (Op::Elementwise { bytes: m * document.keys * traffic }, 1), (values, n_products)]
}

#[cfg(test)]
mod tests {
    use hw::Dtype;

    use super::*;
    use crate::formats::Formats;

    #[test]
    fn an_unfused_softmax_moves_dropout_and_sinks_where_models_have_them() {
        let moved = |name: &str, framework| {
            let model = crate::model::embedded(name).expect("embedded");
            let attention = AttentionKernel::Unfused;
            let shard = Shard { attention, framework, ..Shard::forward(&model, Dtype::Bf16, 1) };
            [Pass::Forward, Pass::Backward].map(|pass| {
                let ops = unfused(&shard, &Document::causal(10), 1, pass);
                let bytes = |(op, _): &(Op, u32)| if let Op::Elementwise { bytes } = op { *bytes } else { 0 };
                ops.iter().map(bytes).sum::<u64>() / 100
            })
        };
        assert_eq!(moved("gpt-3-175b", Framework::MegatronCore), [9, 11]);
        assert_eq!(moved("llama-3-8b", Framework::MegatronCore), [4, 6]);
        assert_eq!(moved("gpt-oss-120b", Framework::MegatronCore), [9, 12]);
        // The published formulas are of GPT-3.
        assert_eq!(moved("llama-3-8b", Framework::Formulas), [9, 11]);
    }

    #[test]
    fn attention_in_8_bits_is_cast_and_knows_no_window_backward() {
        let model = crate::model::embedded("gpt-oss-120b").expect("embedded");
        let wide = Shard { framework: Framework::MegatronCore, ..Shard::forward(&model, Dtype::Bf16, 1) };
        let narrow = Shard { formats: Formats { kv: Dtype::Fp8, ..wide.formats }, ..wide };
        let whole = [Document::causal(4096)];
        let seen = |shard: &Shard<'_>, pass| match &attention(shard, &whole, 1, pass)[..] {
            [(Op::Attention { documents, .. }, 1)] => (documents[0].pairs, 0),
            [(Op::Attention { documents, .. }, 1), (Op::Elementwise { bytes }, 1)] => (documents[0].pairs, *bytes),
            other => panic!("{other:?}"),
        };
        let windowed = over_windows(&wide, whole[0]).pairs;
        assert_eq!(seen(&wide, Pass::Forward), (windowed, 0));
        assert_eq!(seen(&wide, Pass::Backward), (windowed, 0));
        // 64 heads of 64, and 8 of keys and of values: four and a half bytes each, and in backward those of the gradient.
        assert_eq!(seen(&narrow, Pass::Forward), (windowed, 18 * 1024 * (64 + 2 * 8) * 64));
        assert_eq!(seen(&narrow, Pass::Backward), (whole[0].pairs, 18 * 1024 * 64 * 64));
    }

    #[test]
    fn half_of_the_layers_attend_to_a_window_alone() {
        let model = crate::model::embedded("gpt-oss-120b").expect("embedded");
        let forward = Shard::forward(&model, Dtype::Bf16, 1);
        let whole = Document::causal(4096);
        assert_eq!(over_windows(&forward, whole), whole, "the published formulas know no windows");
        let shard = Shard { framework: Framework::MegatronCore, ..forward };
        // 36 layers, every second with a window of 128, of which the first tokens see less.
        assert_eq!(over_windows(&shard, whole).pairs, u64::midpoint(4096 * 4097 / 2, 4096 * 128 - 128 * 127 / 2));
    }
}
