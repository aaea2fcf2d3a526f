//! Attention of prompts by a kernel whose blocks hold few queries: every block reads all keys of its queries again, and the L2 cache gives them.
//!
//! vLLM's kernel in Triton has blocks of 16 rows, which are the query heads of one key-value head for a few tokens: 16 over the heads of a group, or one token where
//! a group has more (`BLOCK_M` and `BLOCK_Q` in v1/attention/ops/triton_unified_attention.py of 0.17). With eight heads in a group every second token reads all
//! keys and values before it again. That is the least time: products and loads of a block hide one another only in part, which no table says.

use hw::{BytesPerSecond, Seconds, real};

use crate::cost::{CostModel, Estimate};
use crate::task::{Op, Pass};

/// Rows of a block.
const BLOCK_ROWS: u64 = 16;

/// A cost model whose attention of prompts reads keys so.
pub struct KeyReads<M> {
    inner: M,
    l2: BytesPerSecond,
}

impl<M: CostModel> KeyReads<M> {
    /// `inner` on a device whose L2 cache has such a bandwidth.
    pub const fn new(inner: M, l2: BytesPerSecond) -> Self {
        Self { inner, l2 }
    }

    /// What all blocks of an operation read, over the bandwidth of the cache.
    fn reads(&self, op: &Op) -> Option<Seconds> {
        let Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv, pass: Pass::Forward } = op else {
            return None;
        };
        let tokens_of_block = (BLOCK_ROWS * n_kv_heads / n_heads).max(1);
        let pairs: f64 = documents.iter().map(|document| real(document.pairs)).sum();
        let bytes_of_key = real(2 * n_kv_heads * head_dim * kv.bytes());
        Some(Seconds::new(pairs / real(tokens_of_block) * bytes_of_key / self.l2.get()))
    }
}

impl<M: CostModel> CostModel for KeyReads<M> {
    fn inner(&self) -> Option<&dyn CostModel> {
        Some(&self.inner)
    }

    fn elementary(&self, op: &Op) -> Estimate {
        let found = self.inner.elementary(op);
        self.reads(op).map_or(found, |least| found.at_least(least))
    }
}

#[cfg(test)]
mod tests {
    use hw::Dtype;

    use super::*;
    use crate::cost::roofline::Roofline;
    use crate::task::Document;

    /// A layer of gpt-oss: 64 query heads, 8 of keys, 64 wide; a block holds two tokens.
    #[test]
    fn every_second_token_reads_all_keys_again() {
        let gpu = hw::catalog::gpu("rtx-pro-6000").expect("listed");
        let l2 = hw::catalog::l2_bandwidth("rtx-pro-6000").expect("published");
        let cost = Roofline::new(&hw::catalog::cluster(&gpu, 1, 1));
        let of = |n_heads: u64, n_kv_heads: u64| Op::Attention {
            documents: vec![Document::causal(130_000)],
            n_heads,
            n_kv_heads,
            head_dim: 64,
            kv: Dtype::Bf16,
            pass: Pass::Forward,
        };
        let seconds = |op: &Op| KeyReads::new(&cost, l2).estimate(op).time.get();
        // The sum of keys over every second of 130,000 tokens, 8 heads of 2 · 64 numbers of 16 bits, at 8.7 TB/s: 1 s a layer.
        let keys: f64 = (1..=130_000_u64).step_by(2).map(real).sum();
        let expected = keys * 8.0 * 256.0 / 8.7e12;
        assert!((seconds(&of(64, 8)) / expected - 1.0).abs() < 1e-4, "{} of {expected}", seconds(&of(64, 8)));
        // A head of its own for every query fills blocks with 16 tokens, and more than 16 heads in a group with one.
        assert!((seconds(&of(64, 4)) / seconds(&of(64, 8)) - 1.0).abs() < 1e-9, "half the heads, twice the blocks");
        assert!((seconds(&of(64, 2)) / seconds(&of(64, 4)) - 0.5).abs() < 1e-9, "one token in either");
        // Nothing else changes.
        let product = Op::Gemm { m: 8, n: 8, k: 8, format: Dtype::Bf16.into() };
        assert_eq!(seconds(&product), cost.estimate(&product).time.get());
    }
}
