//! Dual chunk attention: how Qwen2.5-1M reads prompts beyond its trained range (arXiv:2501.15383, section 3.1).
//!
//! Keys of a query fall into three disjoint ranges: its own chunk (true distances), the chunk before (distances that continue), and
//! all older ones (the largest distance). Three attention calls are merged as in `partial_attention.rs`. The work is that of plain attention.

/// Shape of the chunks, tokens. The 7B and 14B models have 262,144 and 8,192 (their configuration).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DualChunk {
    /// Trained range.
    pub chunk_size: u64,
    /// Part of it that continues into the next chunk.
    pub local_size: u64,
}

/// Keys of a decoding query by range, tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Own chunk.
    pub intra: u64,
    /// Chunk before.
    pub successive: u64,
    /// Older chunks.
    pub inter: u64,
}

impl DualChunk {
    /// Configuration of the 7B and 14B models.
    pub const QWEN: Self = Self { chunk_size: 262_144, local_size: 8_192 };

    /// Tokens of a chunk.
    #[must_use]
    pub const fn chunk_len(&self) -> u64 {
        self.chunk_size - self.local_size
    }

    /// Ranges of the last query of a context of `len` tokens, itself included; `len` is at least 1.
    #[must_use]
    pub const fn ranges(&self, len: u64) -> Ranges {
        let n_before = (len - 1) / self.chunk_len();
        let intra = len - n_before * self.chunk_len();
        let successive = if n_before >= 1 { self.chunk_len() } else { 0 };
        Ranges { intra, successive, inter: n_before.saturating_sub(1) * self.chunk_len() }
    }

    /// Factor on logits beyond the trained range of `original` tokens: `max(1, 0.1 · ln(len / original) + 1)`.
    #[must_use]
    pub fn temperature(len: u64, original: u64) -> f64 {
        let ratio = hw::Tokens(len).as_f64() / hw::Tokens(original).as_f64();
        (0.1 * libm::log(ratio) + 1.0).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partial_attention::{PartialAttention, tests::keys};

    #[test]
    fn ranges_add_up_to_the_context() {
        let chunk_len = DualChunk::QWEN.chunk_len();
        assert_eq!(chunk_len, 253_952);
        for len in [1, 2, chunk_len - 1, chunk_len, chunk_len + 1, 2 * chunk_len, 2 * chunk_len + 1, 1_000_000] {
            let Ranges { intra, successive, inter } = DualChunk::QWEN.ranges(len);
            assert_eq!(intra + successive + inter, len);
            assert!((1..=chunk_len).contains(&intra), "{len}: {intra} in the own chunk");
        }
        assert_eq!(DualChunk::QWEN.ranges(chunk_len).successive, 0);
    }

    #[test]
    fn three_calls_merge_to_plain_attention() {
        // Positions change the scores, not the merge: with one chunk, and with scores as given, the result is the plain one.
        let shape = DualChunk { chunk_size: 12, local_size: 2 };
        for len in [1_usize, 9, 10, 11, 35] {
            let (scores, values) = keys(len, 3);
            let ranges = shape.ranges(len as u64);
            let inter = usize::try_from(ranges.inter).expect("small");
            let intra = len - usize::try_from(ranges.intra).expect("small");
            let part = |from: usize, to: usize| PartialAttention::over(&scores[from..to], &values[from..to], 4);
            let merged = part(0, inter).merge(&part(inter, intra)).merge(&part(intra, len)).output();
            let plain = PartialAttention::over(&scores, &values, 4).output();
            assert!(merged.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-12), "{len}: {merged:?}, {plain:?}");
        }
    }

    #[test]
    fn logits_are_scaled_only_beyond_the_trained_range() {
        assert_eq!(DualChunk::temperature(262_144, 262_144), 1.0);
        assert_eq!(DualChunk::temperature(1000, 262_144), 1.0);
        // ln 4 = 1.386: four times the range scales by 1.1386.
        assert!((DualChunk::temperature(1_048_576, 262_144) - 1.138_629).abs() < 1e-6);
    }
}
