//! Mixing of a prompt's tokens in one layer: attention to all keys, to a window, to a chunk or to selected keys, and scans through a state.
//!
//! Approximations: a scan is the matrix products of its chunks of `SCAN_CHUNK` tokens (arXiv:2405.21060, section 6; arXiv:2412.06464, section
//! 3.3) with its states written and read between them, at the speed of such products by themselves; an index multiplies queries by every
//! key before them; selected keys are attended to by the prompt's kernel, as many as a window of that width has. So are vectors of several
//! tokens, beside a window. A scan of Mamba-1 is what it reads and writes. Where the kernels were measured, what is here is the base of their
//! curve (`cost/mixed.rs`).

use hw::Format;

use crate::layer;
use crate::model::{Index, LinearRule, Mixer};
use crate::shard::Shard;
use crate::state::State;
use crate::task::{Document, Op, Ops};

/// Tokens that a scan takes at once; `chunk_size` of Mamba-2 kernels is 128 or 256, of gated delta nets 64.
const SCAN_CHUNK: u64 = 64;
/// Bytes read and written per score by what picks the largest: a 32-bit score.
const SCORE_BYTES: u64 = 4;

/// Forward mixing of a chunk of `new` tokens after `past` earlier ones.
pub fn chunk(shard: &Shard<'_>, mixer: Mixer, past: u64, new: u64) -> Ops {
    let mut ops = layer::prompt_attention(shard, mixer, documents(mixer, past, new));
    if matches!(mixer, Mixer::Full | Mixer::Joint) {
        ops.extend(expanded(shard, past));
    }
    if let Some(index) = shard.model.index.filter(|_| mixer.has_index()) {
        ops.extend(scored(shard, index, past, new));
    }
    if mixer.has_state() {
        ops.extend(scan(shard, mixer, new));
    }
    ops
}

/// What the tokens of a chunk attend to, as documents of an attention kernel.
pub fn documents(mixer: Mixer, past: u64, new: u64) -> Vec<Document> {
    let within = |tokens: u64| Document::windowed(past.min(tokens.saturating_sub(1)), new, tokens);
    match mixer {
        // No key before the window is read.
        Mixer::Window(tokens) | Mixer::Selected(tokens) | Mixer::Reselected(tokens) | Mixer::Reused(Some(tokens)) => {
            vec![within(tokens)]
        }
        Mixer::Chunked(tokens) => in_chunks(past % tokens, new, tokens),
        Mixer::Compressed { ratio, window, picked } => {
            let near = within(window);
            let far = grouped_pairs(past, new, ratio, picked.unwrap_or(u64::MAX));
            vec![Document { queries: new, keys: near.keys + (past + new) / ratio, pairs: near.pairs + far }]
        }
        Mixer::Full | Mixer::Reused(None) | Mixer::Joint => vec![Document::chunk(past, new)],
        Mixer::Linear | Mixer::StateSpace | Mixer::Convolution | Mixer::Off => Vec::new(),
    }
}

/// Pairs of the queries of a chunk and the whole groups of `ratio` tokens up to them, at most so many for each query.
fn grouped_pairs(past: u64, new: u64, ratio: u64, most: u64) -> u64 {
    // Of all queries up to the `n`-th: each sees as many groups as its position has.
    let whole = |n: u64| {
        let groups = n / ratio;
        ratio * (groups * groups.saturating_sub(1) / 2) + groups * (n % ratio + 1)
    };
    let up_to = |n: u64| match most.checked_mul(ratio) {
        Some(full) if n > full => whole(full) + most * (n - full),
        _ => whole(n),
    };
    up_to(past + new) - up_to(past)
}

/// Chunks of so many tokens, of which the first has `past` already.
fn in_chunks(past: u64, new: u64, tokens: u64) -> Vec<Document> {
    let first = new.min(tokens - past);
    let n_whole = (new - first) / tokens;
    let rest = (new - first) % tokens;
    let mut documents = vec![Document::chunk(past, first)];
    documents.extend((0..n_whole).map(|_| Document::causal(tokens)));
    documents.extend((rest > 0).then(|| Document::causal(rest)));
    documents
}

/// Keys and values of earlier tokens that are made again from their latent vectors, as prompts attend to whole heads.
fn expanded(shard: &Shard<'_>, past: u64) -> Ops {
    let Some(latent) = shard.model.latent.filter(|_| past > 0) else { return Vec::new() };
    let n = (shard.model.n_heads * (latent.nope_dim + latent.value_dim)).div_ceil(u64::from(shard.tp));
    vec![(Op::Gemm { m: past, n, k: latent.kv_rank, format: shard.formats.attention }, 1)]
}

/// Scores of an index for every pair of a query and a key of its own, and what picks the largest. All GPUs of a tensor group compute them.
fn scored(shard: &Shard<'_>, index: Index, past: u64, new: u64) -> Ops {
    let pairs = grouped_pairs(past, new, index.pool, u64::MAX);
    let (keys, format) = (pairs.div_ceil(new.max(1)), Format::from(shard.dtype));
    let scores = Op::Gemm { m: new * index.n_heads, n: keys.max(1), k: index.head_dim, format };
    vec![(scores, 1), (Op::Elementwise { bytes: 2 * pairs * SCORE_BYTES }, 1)]
}

/// Products of a scan, and its states between chunks.
fn scan(shard: &Shard<'_>, mixer: Mixer, new: u64) -> Ops {
    let Some(state) = State::of(shard, mixer).filter(|_| mixer != Mixer::Convolution) else { return Vec::new() };
    if shard.model.state_space.is_some_and(|space| space.step_rank.is_some()) {
        // Channels, their steps and gates are read and their outputs written; states stay in registers.
        let elements = new * (4 * state.n_heads + 2 * state.key_dim);
        return vec![(Op::Elementwise { bytes: elements * shard.dtype.bytes() }, 1)];
    }
    let (m, format) = (new * state.n_heads, Format::from(shard.dtype));
    // Inside a chunk: queries times keys, and those scores times values. Across chunks: what goes into the state, and what comes out of it.
    let inside = [(SCAN_CHUNK, state.key_dim), (state.value_dim, SCAN_CHUNK)];
    let across = (state.value_dim, state.key_dim);
    let product = |(n, k): (u64, u64), count: u32| (Op::Gemm { m, n, k, format }, count);
    let traffic = 2 * state.bytes() * new.div_ceil(SCAN_CHUNK);
    // A delta rule solves for what it writes, which is one more product of each kind.
    let is_delta = shard.model.linear.is_some_and(|linear| linear.rule != LinearRule::Lightning);
    let again = if mixer == Mixer::Linear && is_delta { 2 } else { 1 };
    let mut ops: Ops = inside.into_iter().map(|shape| product(shape, again)).collect();
    ops.extend([product(across, 1 + again), (Op::Elementwise { bytes: traffic }, 1)]);
    ops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::embedded;

    /// Query-key pairs counted one by one.
    fn counted(mixer: Mixer, past: u64, new: u64) -> u64 {
        let seen = |position: u64| match mixer {
            Mixer::Window(tokens) | Mixer::Selected(tokens) => tokens.min(position + 1),
            Mixer::Chunked(tokens) => position % tokens + 1,
            Mixer::Compressed { ratio, window, picked } => {
                window.min(position + 1) + ((position + 1) / ratio).min(picked.unwrap_or(u64::MAX))
            }
            _ => position + 1,
        };
        (past..past + new).map(seen).sum()
    }

    #[test]
    fn pairs_in_closed_form_are_those_counted_one_by_one() {
        for tokens in [1, 2, 5, 16, 64] {
            let compressed = |picked| Mixer::Compressed { ratio: 4, window: tokens, picked };
            for mixer in [
                Mixer::Full,
                Mixer::Window(tokens),
                Mixer::Chunked(tokens),
                Mixer::Selected(tokens),
                compressed(None),
                compressed(Some(3)),
            ] {
                for past in 0..40 {
                    for new in 1..40 {
                        let found = documents(mixer, past, new);
                        let pairs: u64 = found.iter().map(|document| document.pairs).sum();
                        assert_eq!(pairs, counted(mixer, past, new), "{mixer:?} {past} {new}");
                        assert_eq!(found.iter().map(|document| document.queries).sum::<u64>(), new);
                        let least =
                            found.iter().all(|document| document.keys >= document.pairs.div_ceil(document.queries));
                        assert!(least, "{mixer:?} {past} {new}: {found:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_windowed_document_is_a_chunk_whose_early_keys_are_hidden() {
        for (past, new, window) in [(0, 8, 4), (3, 8, 4), (100, 8, 4), (0, 3, 4), (2, 1, 4), (5, 5, 0)] {
            let pairs: u64 = (past..past + new).map(|at| if window == 0 { at + 1 } else { window.min(at + 1) }).sum();
            assert_eq!(Document::windowed(past, new, window).pairs, pairs, "{past} {new} {window}");
        }
    }

    /// A chunk by counting; shares of a document cut over ranks have together what the document has.
    #[test]
    fn a_window_leaves_of_a_document_what_counting_gives_and_of_its_shares_as_large_a_part() {
        for (past, new, window) in [(0, 8, 4), (3, 8, 4), (100, 8, 4), (0, 3, 4), (2, 1, 4), (0, 4096, 3000)] {
            let pairs: u64 = (past..past + new).map(|at| window.min(at + 1)).sum();
            let seen = Document::chunk(past, new).within(window);
            assert_eq!((seen.queries, seen.keys, seen.pairs), (new, past + new, pairs), "{past} {new} {window}");
        }
        for (parts, window) in [(2, 1000), (4, 100), (8, 4000), (4, 10_000)] {
            let [share, whole] = [Document::zigzag(4096, parts), Document::causal(4096)].map(|of| of.within(window));
            assert!((share.pairs * parts).abs_diff(whole.pairs) <= 2 * parts, "{parts} {window}: {share:?} {whole:?}");
        }
    }

    #[test]
    fn a_window_makes_long_prompts_cheap() {
        let model = embedded("gpt-oss-120b").expect("embedded");
        let shard = Shard::forward(&model, hw::Dtype::Bf16, 1);
        let pairs = |mixer| match &chunk(&shard, mixer, 100_000, 2048)[0].0 {
            Op::Attention { documents, n_heads: 64, n_kv_heads: 8, head_dim: 64, .. } => {
                (documents[0].pairs, documents[0].keys)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(pairs(Mixer::Window(128)), (128 * 2048, 127 + 2048));
        assert_eq!(pairs(Mixer::Full).1, 102_048);
    }

    #[test]
    fn a_scan_costs_the_same_for_every_token() {
        let model = embedded("qwen3.5-397b-a17b").expect("embedded");
        let shard = Shard::forward(&model, hw::Dtype::Bf16, 8);
        assert_eq!(chunk(&shard, Mixer::Linear, 0, 512), chunk(&shard, Mixer::Linear, 100_000, 512));
        assert!(chunk(&shard, Mixer::Off, 0, 512).is_empty());
    }

    #[test]
    fn earlier_latent_vectors_are_expanded_for_a_prompt_and_an_index_scores_them() {
        let model = embedded("deepseek-v3").expect("embedded");
        let shard = Shard::forward(&model, hw::Dtype::Bf16, 8);
        assert_eq!(chunk(&shard, Mixer::Full, 0, 512).len(), 1);
        // 16 heads of 128 + 128 from 512, for each of 1000 earlier tokens.
        let made = Op::Gemm { m: 1000, n: 4096, k: 512, format: Format::Bf16 };
        assert_eq!(chunk(&shard, Mixer::Full, 1000, 512)[1], (made, 1));
        let model = embedded("glm-5").expect("embedded");
        let shard = Shard::forward(&model, hw::Dtype::Bf16, 8);
        let ops = chunk(&shard, Mixer::Selected(2048), 100_000, 1);
        assert!(matches!(ops[1].0, Op::Gemm { m: 32, n: 100_001, k: 128, .. }), "{ops:?}");
    }
}
