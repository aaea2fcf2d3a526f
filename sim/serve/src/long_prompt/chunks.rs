//! How a prompt is cut: whole, into equal chunks, or into chunks of equal time (dynamic chunked pipeline parallelism, DCPP).
//!
//! With equal chunks, later ones take longer, as they attend to all before, and pipeline stages wait. DCPP (arXiv:2501.15383, section 4)
//! lets chunks shrink so that each takes the time of the first. A stage's time is `t(P, x) = c + γ·P + a·(2·P·x + x²) + b·x` for `x` new tokens
//! after `P`; `t(P, x) = t(0, x₀)` is a quadratic in `x`. Sizes are whole KV blocks; the last chunk is what remains.

use hw::Seconds;

/// Time of a chunk on a stage, seconds; `a`, `b`, `c` and `gamma` as in the header. None is negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkLaw {
    /// Per query-key pair, counted twice: dense attention.
    pub a: f64,
    /// Per token: projections, feed-forward, exchanges.
    pub b: f64,
    /// Per chunk.
    pub c: f64,
    /// Per earlier token, whatever the chunk's size: reading keys, estimating patterns.
    pub gamma: f64,
}

/// How prompts are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// One chunk.
    Whole,
    /// Equal chunks of so many tokens.
    Fixed(u64),
    /// Chunks of equal time, the first of so many tokens.
    Dynamic(u64),
}

/// Sizes that a cut may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grain {
    /// Tokens of a KV block: every chunk but the last is a multiple.
    pub block: u64,
    /// Smallest chunk of a dynamic cut, at least a block.
    pub least: u64,
}

fn f(n: u64) -> f64 {
    hw::Tokens(n).as_f64()
}

impl ChunkLaw {
    /// Time of a chunk.
    #[must_use]
    pub fn time(&self, past: u64, new: u64) -> Seconds {
        let (past, new) = (f(past), f(new));
        Seconds::new(self.c + self.gamma * past + self.a * (2.0 * past * new + new * new) + self.b * new)
    }

    /// Tokens after `past` that take the time of `first` tokens at the start; 0 where nothing does.
    fn equal_to(&self, past: u64, first: u64) -> f64 {
        let rest = self.time(0, first).get() - self.c - self.gamma * f(past);
        let linear = 2.0 * self.a * f(past) + self.b;
        if rest <= 0.0 {
            return 0.0;
        }
        if self.a == 0.0 {
            return if linear > 0.0 { rest / linear } else { f(first) };
        }
        // The positive root, without the cancellation of −linear + sqrt(…).
        2.0 * rest / (linear + (linear * linear + 4.0 * self.a * rest).sqrt())
    }
}

/// Sizes of the chunks of a prompt of `tokens` tokens.
///
/// # Panics
/// When a size of the cut or the grain is zero; the scenario reader holds the ranges.
#[must_use]
pub fn sizes(tokens: u64, cut: Cut, law: &ChunkLaw, grain: Grain) -> Vec<u64> {
    assert!(grain.block > 0, "a block has at least one token");
    let first = match cut {
        Cut::Whole => tokens,
        Cut::Fixed(size) | Cut::Dynamic(size) => size,
    };
    assert!(first > 0, "a chunk has at least one token");
    let (mut sizes, mut past) = (Vec::new(), 0);
    while past < tokens {
        let wanted = match cut {
            Cut::Whole | Cut::Fixed(_) => first,
            Cut::Dynamic(_) => {
                let whole = hw::Bytes::from_f64(law.equal_to(past, first).floor()).0;
                let aligned = whole / grain.block * grain.block;
                aligned.max(grain.least.next_multiple_of(grain.block)).min(first)
            }
        };
        let size = wanted.min(tokens - past);
        sizes.push(size);
        past += size;
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Coefficients of an independent implementation, milliseconds.
    const PUBLISHED: ChunkLaw = ChunkLaw { a: 3.25e-7, b: 6.03e-3, c: 26.1, gamma: 5.39e-4 };
    const GRAIN: Grain = Grain { block: 64, least: 64 };

    #[test]
    fn the_published_law_gives_the_published_chunks() {
        let expected = [32768, 16192, 12416, 10368, 9088, 8192, 7488, 6912, 6464, 6080, 5760, 5504, 3840];
        assert_eq!(sizes(131_072, Cut::Dynamic(32_768), &PUBLISHED, GRAIN), expected);
    }

    #[test]
    fn dynamic_chunks_take_equal_time_up_to_a_block() {
        let chunks = sizes(500_000, Cut::Dynamic(32_768), &PUBLISHED, GRAIN);
        let first = PUBLISHED.time(0, 32_768).get();
        let mut past = 0;
        for (index, &size) in chunks.iter().enumerate() {
            let (time, one_more) = (PUBLISHED.time(past, size).get(), PUBLISHED.time(past, size + 64).get());
            let is_last = index + 1 == chunks.len();
            assert!(time <= first && (is_last || one_more > first), "chunk {index} takes {time} of {first}");
            past += size;
        }
        assert_eq!(past, 500_000);
        assert!(chunks.is_sorted_by(|a, b| a >= b), "chunks shrink");
    }

    #[test]
    fn every_cut_covers_the_prompt() {
        for tokens in [1, 63, 64, 65, 4096, 100_001] {
            for cut in [Cut::Whole, Cut::Fixed(64), Cut::Fixed(1000), Cut::Dynamic(64), Cut::Dynamic(4096)] {
                let chunks = sizes(tokens, cut, &PUBLISHED, GRAIN);
                assert_eq!(chunks.iter().sum::<u64>(), tokens, "{cut:?}");
                assert!(chunks.iter().all(|&size| size > 0), "{cut:?}");
            }
        }
    }

    #[test]
    fn a_law_that_cannot_reach_the_first_time_falls_to_the_smallest_chunk() {
        // Estimating patterns alone takes longer than the first chunk did.
        let law = ChunkLaw { a: 0.0, b: 1.0, c: 0.0, gamma: 1.0 };
        assert_eq!(sizes(448, Cut::Dynamic(128), &law, GRAIN), [128, 64, 64, 64, 64, 64]);
    }
}
