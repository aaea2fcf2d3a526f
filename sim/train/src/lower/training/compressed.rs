//! Attention of DeepSeek-V4 in a step of training: to a window and to vectors of several tokens, all of them or those that an index picks.
//!
//! Megatron-LM's branch `dev` @ d48bd6be0a has it (`csa.py`, `csa_utils/fused_sparse_attention.py`): forward is FlashMLA's sparse kernel, backward and all of
//! the index are cuDNN's. No table of training has either kernel, so they take what attention of heads 128 wide takes for as many products. The index learns
//! from its own loss: attention's scores of what was picked are made again, and the index's gradients come in forward. What compresses is some forty small
//! kernels each way; their bytes are counted, and the time that they take to start is not.

use engine::layer;
use engine::mixing;
use engine::model::{Index, Mixer};
use engine::shard::Shard;
use engine::task::{Document, Op, Ops, Pass};
use hw::Format;

/// Products of the index over what was picked: its scores once more, and the gradients of its queries and of its keys (`indexer_backward`).
const INDEX_GRADIENTS: u32 = 3;

/// Mixing of whole documents in a layer.
pub(super) fn mixed(shard: &Shard<'_>, mixer: Mixer, documents: &[Document], pass: Pass) -> Ops {
    documents.iter().flat_map(|document| of_document(shard, mixer, document.queries, pass)).collect()
}

fn of_document(shard: &Shard<'_>, mixer: Mixer, tokens: u64, pass: Pass) -> Ops {
    let attended = mixing::documents(mixer, 0, tokens);
    if pass == Pass::Backward {
        let mut ops = layer::prompt_attention(shard, mixer, attended);
        ops.iter_mut().for_each(|(op, _)| turn(op));
        return ops;
    }
    let mut ops = mixing::chunk(shard, mixer, 0, tokens);
    if let (Some(index), Mixer::Compressed { window, .. }) = (shard.model.index.filter(|_| mixer.has_index()), mixer) {
        let pairs = |documents: Vec<Document>| documents.iter().map(|document| document.pairs).sum::<u64>();
        let picked = pairs(attended) - pairs(mixing::documents(Mixer::Window(window), 0, tokens));
        ops.extend(taught(shard, index, tokens, picked));
    }
    ops
}

/// Backward of an attention.
fn turn(op: &mut Op) {
    if let Op::Attention { pass, .. } = op {
        *pass = Pass::Backward;
    }
}

/// What the loss of an index costs over so many picked pairs: attention's scores, a copy of all queries for them, and the index's own gradients.
fn taught(shard: &Shard<'_>, index: Index, tokens: u64, picked: u64) -> Ops {
    let (model, format) = (shard.model, Format::from(shard.dtype));
    let keys = picked.div_ceil(tokens.max(1)).max(1);
    let heads = model.n_heads.div_ceil(u64::from(shard.tp));
    let scores = Op::Gemm { m: tokens * heads, n: keys, k: model.head_dim, format };
    let gradients = Op::Gemm { m: tokens * index.n_heads, n: keys, k: index.head_dim, format };
    let copied = 2 * tokens * heads * model.head_dim * shard.dtype.bytes();
    vec![(scores, 1), (gradients, INDEX_GRADIENTS), (Op::Elementwise { bytes: copied }, 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_meets_its_window_and_what_was_picked() {
        let model = engine::model::embedded("deepseek-v4-flash").expect("embedded");
        let shard = Shard::forward(&model, hw::Dtype::Bf16, 1);
        let pairs = |mixer, pass| -> u64 {
            let ops = mixed(&shard, mixer, &[Document::causal(4096)], pass);
            let of = |(op, _): &(Op, u32)| match op {
                Op::Attention { documents, .. } => documents.iter().map(|document| document.pairs).sum(),
                _ => 0,
            };
            ops.iter().map(of).sum()
        };
        // By counting: a token sees itself and up to 127 before it, and of the vectors of four tokens that end with it or before at most 512.
        let near: u64 = (1..=4096_u64).map(|position| position.min(128)).sum();
        let far: u64 = (1..=4096_u64).map(|position| (position / 4).min(512)).sum();
        let picked = Mixer::Compressed { ratio: 4, window: 128, picked: Some(512) };
        assert_eq!(pairs(picked, Pass::Forward), near + far);
        assert_eq!(pairs(picked, Pass::Backward), near + far);
        assert_eq!(pairs(Mixer::Window(128), Pass::Forward), near);
        let all: u64 = (1..=4096_u64).map(|position| position / 128).sum();
        assert_eq!(pairs(Mixer::Compressed { ratio: 128, window: 128, picked: None }, Pass::Forward), near + all);
    }

    #[test]
    fn an_index_that_learns_makes_the_scores_of_attention_again() {
        let model = engine::model::embedded("deepseek-v4-flash").expect("embedded");
        let index = model.index.expect("an index");
        let ops = taught(&Shard::forward(&model, hw::Dtype::Bf16, 1), index, 10, 1000);
        let flops: f64 = ops.iter().map(|(op, n)| op.flops() * f64::from(*n)).sum();
        // A hundred pairs of each of ten tokens: 64 heads of 512, and three times 64 heads of 128.
        let expected = 2.0 * 1000.0 * 64.0 * (512.0 + 3.0 * 128.0);
        assert!((flops / expected - 1.0).abs() < 1e-12, "{flops}");
    }
}
