//! Decoding sequences in one launch with a prompt's chunk, through a kernel that reads keys for every query head by itself.
//!
//! FlashAttention 2 lets the query heads of one key head share its reads only where every sequence has a single query
//! (`seqlenq_ngroups_swapped` in `csrc/flash_attn/flash_api.cpp`, vllm-project/flash-attention @ 617264c1). Beside a chunk each query head has a
//! block of its own: a tile of 64 queries, one of which counts, over all keys of its sequence (`run_mha_fwd_splitkv_dispatch`). So it takes the longer of
//! - the tile: what as many queries of a prompt that fills the card take over these keys, by the card's own curve for prompts;
//! - the reads: blocks that run at once share what they read in step, and the others read again. Heads follow each other in the grid behind all sequences, so
//!   of `g` query heads of a key head `1 + (g - 1) · min(1, sequences / blocks at once)` read memory.
//!
//! Tables of this launch on RTX 4090 and RTX PRO 6000 under vLLM 0.19 hold both (`sim/serve/src/step_cost/tests/beside_chunk.rs`). Their time per key doubles
//! from four to eight query heads of a key head. It reaches all heads' reads once sequences fill the card. Nothing was fitted.
//!
//! Approximations: the L2 cache holds nothing between blocks that do not run at once, so many short sequences are charged too much. One sequence that fills no
//! card is charged too little.
//! Units: seconds, elements.

use hw::{Generation, Gpu, catalog};

use crate::cost::CostModel;
use crate::cost::decode::{DecodeShape, Reads};
use crate::task::{Document, Op, Pass};

/// Queries of a block, whatever there are.
const TILE_QUERIES: u64 = 64;
/// Widest head that the kernel takes.
const HEAD_DIM_MAX: u64 = 256;
/// A chunk whose time per pair stands for that of a tile: tokens, and tokens before it.
const CHUNK: [u64; 2] = [2048, 14_336];
/// Query heads with which such a chunk fills any card.
const HEADS_MIN: u64 = 128;
/// Measured over predicted of nine in ten rows of the tables above: rows of 2048 keys and more whose sequences fill the card.
pub const INTERVAL: [f64; 2] = [0.7, 1.35];
/// Shared memory that CUDA keeps of every block, bytes (CUDA C++ Programming Guide, compute capabilities).
const KEPT_BYTES: u64 = 1024;

/// What a sequence's keys cost beside a chunk, on one card and for one shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ByHead {
    /// Seconds of the tiles of all query heads for a key.
    tiles_s: f64,
    /// Query heads of a key head.
    group: f64,
    /// Blocks that run at once.
    n_blocks: f64,
}

impl ByHead {
    /// On a card that runs FlashAttention 2, for a shape that it serves; `None` otherwise.
    pub fn on(gpu: &Gpu, shape: &DecodeShape, cost: &dyn CostModel) -> Option<Self> {
        let (n_multiprocessors, shared_kib) = card(gpu)?;
        // Narrow keys and values, latent vectors and wider heads go through other kernels.
        let is_served = shape.reads == Reads::Heads && shape.kv.bytes() == 2 && shape.head_dim <= HEAD_DIM_MAX;
        if !is_served {
            return None;
        }
        let n_blocks = n_multiprocessors * blocks_of_one(shape.head_dim, shared_kib);
        let [tokens, past] = CHUNK;
        let document = Document::chunk(past, tokens);
        // Few heads of a chunk would leave a part of the card idle, which blocks of many sequences do not.
        let copies = HEADS_MIN.div_ceil(shape.n_heads.max(1));
        let chunk = Op::Attention {
            documents: vec![document],
            n_heads: shape.n_heads * copies,
            n_kv_heads: shape.n_kv_heads * copies,
            head_dim: shape.head_dim,
            kv: shape.kv,
            pass: Pass::Forward,
        };
        let pairs = hw::real(document.pairs * copies);
        let tiles_s = cost.estimate(&chunk).time.get() / pairs * hw::real(TILE_QUERIES);
        let group = hw::real(shape.n_heads) / hw::real(shape.n_kv_heads.max(1));
        Some(Self { tiles_s, group: group.max(1.0), n_blocks: hw::real(n_blocks) })
    }

    /// Seconds of a key that so many sequences attend to, where it takes `alone_s` with shared reads.
    pub fn per_key_s(&self, n_sequences: u64, alone_s: f64) -> f64 {
        let apart = (hw::real(n_sequences) / self.n_blocks).min(1.0);
        let reads = 1.0 + (self.group - 1.0) * apart;
        (alone_s * reads).max(self.tiles_s)
    }
}

/// Multiprocessors of a card of capability 8 or 12, and the shared memory of each, KiB. vLLM takes FlashAttention 3 on 9 and FlashInfer on 10
/// (`fa_utils.py`, `platforms/cuda.py`).
fn card(gpu: &Gpu) -> Option<(u64, u64)> {
    let generation = catalog::generation(&gpu.name)?;
    let is_served = match generation {
        Generation::Ampere | Generation::AmpereOfDesks | Generation::Ada | Generation::BlackwellOfDesks => true,
        Generation::Host | Generation::Volta | Generation::Turing | Generation::Hopper | Generation::Blackwell => false,
        // Kernels of ROCm: AITER's and Triton's (vLLM, `_get_backend_priorities` of platforms/rocm.py).
        Generation::Cdna3 | Generation::Cdna4 => false,
    };
    is_served.then_some((catalog::multiprocessors(&gpu.name)?.into(), generation.shared_kib()?))
}

/// Blocks that a multiprocessor's shared memory holds: a tile of queries, and one of keys and one of values, in 16 bits
/// (`run_mha_fwd_splitkv_dispatch`).
fn blocks_of_one(head_dim: u64, shared_kib: u64) -> u64 {
    let n_keys = match head_dim {
        ..=64 => 256,
        65..=128 => 128,
        _ => 64,
    };
    let bytes = (TILE_QUERIES + 2 * n_keys) * head_dim * 2 + KEPT_BYTES;
    (shared_kib * 1024 / bytes).max(1)
}

#[cfg(test)]
mod tests {
    use hw::Dtype;

    use super::*;
    use crate::cost::roofline::Roofline;

    fn shape(n_heads: u64, n_kv_heads: u64) -> DecodeShape {
        DecodeShape { n_heads, n_kv_heads, head_dim: 128, kv: Dtype::Bf16, reads: Reads::Heads }
    }

    fn on(gpu: &str, shape: &DecodeShape) -> Option<ByHead> {
        let cluster = hw::catalog::cluster(&hw::catalog::gpu(gpu).expect("listed"), 1, 1);
        ByHead::on(&cluster.gpu, shape, &Roofline::new(&cluster))
    }

    #[test]
    fn a_key_takes_a_tile_of_every_query_head_and_its_reads_grow_with_the_sequences() {
        // 64 queries of 128 elements over a key: 4 · 64 · 128 operations, on an A100 with 312 TFLOPS 0.105 ns a head at the peak.
        let found = [4, 8].map(|group| on("a100-sxm-80g", &shape(8 * group, 8)).expect("served"));
        let tiles = found.map(|by_head| by_head.per_key_s(1, 0.0));
        // But for the start of the launch.
        assert!((tiles[1] / tiles[0] - 2.0).abs() < 0.01, "{tiles:?}");
        assert!(tiles[0] > 32.0 * 0.105e-9, "{tiles:?}");
        // 108 multiprocessors hold two blocks each: 216 sequences share nothing, a quarter of them shares three quarters.
        let reads = [1, 54, 216, 1000].map(|n| found[0].per_key_s(n, 1.0));
        assert!((reads[0] - (1.0 + 3.0 / 216.0)).abs() < 1e-9 && (reads[1] - 1.75).abs() < 1e-9, "{reads:?}");
        assert!((reads[2] - 4.0).abs() < 1e-9 && (reads[3] - 4.0).abs() < 1e-9, "{reads:?}");
    }

    #[test]
    fn cards_and_shapes_of_other_kernels_have_no_such_law() {
        assert!(["h100-sxm", "b200", "v100-sxm-16g"].iter().all(|gpu| on(gpu, &shape(32, 8)).is_none()));
        let narrow = DecodeShape { kv: Dtype::Fp8, ..shape(32, 8) };
        let latent = DecodeShape { reads: Reads::Latent, ..shape(128, 1) };
        let wide = DecodeShape { head_dim: 512, ..shape(32, 8) };
        assert!([narrow, latent, wide].iter().all(|shape| on("a100-sxm-80g", shape).is_none()));
    }

    #[test]
    fn shared_memory_holds_two_blocks_on_an_a100_and_one_on_smaller_cards() {
        assert_eq!([64, 128, 256].map(|head_dim| blocks_of_one(head_dim, 164)), [2, 2, 1]);
        assert_eq!([64, 128, 256].map(|head_dim| blocks_of_one(head_dim, 100)), [1, 1, 1]);
    }
}
