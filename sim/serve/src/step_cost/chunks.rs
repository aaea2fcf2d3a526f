//! How much of a prompt an engine takes at once: as much as there is room for, at most so much, or as much as takes equal time (dynamic
//! chunked pipeline parallelism, DCPP).
//!
//! With equal chunks, later ones take longer, as they attend to all before: pipeline stages wait for each other, and whoever decodes beside
//! waits longer and longer. DCPP (arXiv:2501.15383, section 4) lets chunks shrink so that each takes the time of the first. A stage's time may be
//! given as `t(P, x) = c + γ·P + a·(2·P·x + x²) + b·x` for `x` new tokens after `P`. Sizes are whole KV blocks; the last chunk is what remains.

use hw::{Seconds, Tick};

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

/// Sizes of chunks after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// All alike.
    Equal,
    /// As many tokens as take the time of the first chunk of a prompt.
    EqualTime,
}

/// How prompts are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunking {
    /// Tokens of a prompt in a micro-batch at most, and those of its first chunk.
    pub tokens_max: u32,
    /// Later chunks.
    pub sizes: Sizes,
    /// Every chunk of equal time but the last is a multiple of this, at least 1.
    pub block: u32,
    /// Smallest chunk of equal time.
    pub tokens_min: u32,
}

fn f(n: u32) -> f64 {
    f64::from(n)
}

impl ChunkLaw {
    /// Time of all but attention.
    pub fn linear(&self, new: u32) -> Seconds {
        Seconds::new(self.c + self.b * f(new))
    }

    /// Time of attention.
    pub fn attention(&self, past: u32, new: u32) -> Seconds {
        Seconds::new(self.gamma * f(past) + self.a * (2.0 * f(past) * f(new) + f(new) * f(new)))
    }
}

impl Chunking {
    /// Tokens of the chunk after `past` tokens; `time` is what a chunk takes after so many and of so many, and grows with both.
    pub fn size(&self, past: u32, time: impl Fn(u32, u32) -> Tick) -> u32 {
        if self.sizes == Sizes::Equal || past == 0 {
            return self.tokens_max;
        }
        let first = time(0, self.tokens_max);
        let least = self.tokens_min.max(1).next_multiple_of(self.block).min(self.tokens_max);
        // Multiples of the block that fit are below `high` and from `low` on, where `low` may be none.
        let (mut low, mut high) = (0, self.tokens_max / self.block + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if time(past, middle * self.block) <= first {
                low = middle;
            } else {
                high = middle;
            }
        }
        (low * self.block).max(least)
    }

    /// Sizes of the chunks of a prompt of `tokens` tokens that is alone.
    pub fn of_prompt(&self, tokens: u32, time: impl Fn(u32, u32) -> Tick) -> Vec<u32> {
        let (mut sizes, mut past) = (Vec::new(), 0);
        while past < tokens {
            let size = self.size(past, &time).min(tokens - past);
            sizes.push(size);
            past += size;
        }
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Coefficients of an independent implementation, milliseconds.
    const PUBLISHED: ChunkLaw = ChunkLaw { a: 3.25e-7, b: 6.03e-3, c: 26.1, gamma: 5.39e-4 };

    fn sizes(tokens: u32, chunking: Chunking, law: &ChunkLaw) -> Vec<u32> {
        let ticks = |seconds: Seconds| Tick::from_seconds(seconds);
        chunking.of_prompt(tokens, |past, new| ticks(law.linear(new)) + ticks(law.attention(past, new)))
    }

    const fn equal_time(tokens_max: u32) -> Chunking {
        Chunking { tokens_max, sizes: Sizes::EqualTime, block: 64, tokens_min: 64 }
    }

    #[test]
    fn the_published_law_gives_the_published_chunks() {
        let expected = [32768, 16192, 12416, 10368, 9088, 8192, 7488, 6912, 6464, 6080, 5760, 5504, 3840];
        assert_eq!(sizes(131_072, equal_time(32_768), &PUBLISHED), expected);
    }

    #[test]
    fn chunks_take_equal_time_up_to_a_block() {
        let chunks = sizes(500_000, equal_time(32_768), &PUBLISHED);
        let time = |past, new| PUBLISHED.linear(new).get() + PUBLISHED.attention(past, new).get();
        let first = time(0, 32_768);
        let mut past = 0;
        for (index, &size) in chunks.iter().enumerate() {
            let (found, one_more) = (time(past, size), time(past, size + 64));
            let is_last = index + 1 == chunks.len();
            assert!(
                found <= first * (1.0 + 1e-9) && (is_last || one_more > first),
                "chunk {index} takes {found} of {first}"
            );
            past += size;
        }
        assert_eq!(past, 500_000);
        assert!(chunks.is_sorted_by(|a, b| a >= b), "chunks shrink");
    }

    #[test]
    fn every_cut_covers_the_prompt() {
        for tokens in [1, 63, 64, 65, 4096, 100_001] {
            for tokens_max in [64, 1000, 4096, 1 << 20] {
                for sizes_of in [Sizes::Equal, Sizes::EqualTime] {
                    let chunks = sizes(tokens, Chunking { sizes: sizes_of, ..equal_time(tokens_max) }, &PUBLISHED);
                    assert_eq!(chunks.iter().sum::<u32>(), tokens, "{sizes_of:?} of {tokens_max}");
                    assert!(chunks.iter().all(|&size| size > 0), "{sizes_of:?} of {tokens_max}");
                }
            }
        }
    }

    #[test]
    fn a_law_that_cannot_reach_the_first_time_falls_to_the_smallest_chunk() {
        // Estimating patterns alone takes longer than the first chunk did.
        let law = ChunkLaw { a: 0.0, b: 1.0, c: 0.0, gamma: 1.0 };
        assert_eq!(sizes(448, equal_time(128), &law), [128, 64, 64, 64, 64, 64]);
    }
}
