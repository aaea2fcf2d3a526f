//! Batches that a replica has under way at once: one per pipeline stage and per rank of data-parallel attention.
//!
//! A replica with `stages` pipeline stages keeps as many micro-batches in flight, as vLLM does, so a sequence takes a token per
//! passage through all stages. With `ranks` of data-parallel attention (experts over more GPUs than attention) as many batches go in step,
//! because exchanges with the experts join them in every layer. An iteration of the engine is a *round*: every decoding sequence gives a token, in
//! `stages · ranks` batches. A lane is one of them.
//!
//! A round whose tokens somebody waits for takes as long as its largest micro-batch, and waits for chunks of earlier rounds that are still in the
//! stages (`replica/pipeline.rs`). One of chunks alone takes as long as a stage computes them.
//!
//! Approximations: decoding sequences are spread evenly over lanes; all layers are equally long, so stages differ by their numbers of layers (`uneven.rs`), and the
//! head lengthens the last; arrivals join at the next round, not at the next micro-batch. When micro-batches return in the order in which they left, a
//! round takes as long as the largest one takes through all stages: nobody overtakes it, and it cannot start again before it is back
//! (`tests.rs` holds this against a pipeline played stage by stage).

use crate::step_cost::{Chunk, Placed};

/// Micro-batches of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// Pipeline stages.
    pub stages: u32,
    /// Ranks of data-parallel attention.
    pub ranks: u32,
}

/// Chunks of one micro-batch on one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Chunks, cut where a prompt goes on in the next micro-batch.
    pub chunks: Vec<Chunk>,
    /// Their tokens.
    pub n_tokens: u32,
}

/// Chunks of a round in its micro-batches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Parts of every rank, by micro-batch.
    pub parts: Vec<Vec<Part>>,
    /// The first and the last micro-batch of every chunk.
    pub of_chunks: Vec<[u32; 2]>,
}

impl Lanes {
    /// One batch at a time.
    pub const ONE: Self = Self { stages: 1, ranks: 1 };

    /// How many they are.
    pub const fn n(self) -> u32 {
        self.stages * self.ranks
    }

    /// Sequences of the largest lane when `n` are spread evenly.
    pub const fn largest(self, n: u32) -> u32 {
        n.div_ceil(self.n())
    }

    /// Micro-batches in flight with `n` sequences.
    pub const fn in_flight(self, n: u32) -> u32 {
        let n = n.div_ceil(self.ranks);
        if n < self.stages { n } else { self.stages }
    }

    /// Share of a round in which a stage computes for `n` sequences, as part and whole.
    pub fn share(self, n: u32) -> (u64, u64) {
        (u64::from(self.in_flight(n)), u64::from(self.stages))
    }

    /// A prompt stays on one rank, that with the fewest tokens so far where it is on none, and fills its micro-batches one after another, `room` tokens
    /// each and at most `most` tokens of it after those that it has.
    pub fn spread(self, chunks: impl Iterator<Item = Placed>, room: u32, most: impl Fn(u32) -> u32) -> Spread {
        let mut of_chunks = Vec::new();
        let mut parts = vec![vec![Part::default(); self.stages as usize]; self.ranks as usize];
        let tokens = |rank: &Vec<Part>| rank.iter().map(|part| part.n_tokens).sum::<u32>();
        for Placed { mut chunk, rank } in chunks {
            let emptiest = || (0..parts.len()).min_by_key(|&rank| tokens(&parts[rank])).expect("at least one rank");
            let rank = rank.map_or_else(emptiest, |rank| rank as usize);
            let mut of_chunk: Option<[u32; 2]> = None;
            for (index, part) in (0..).zip(&mut parts[rank]) {
                // What has no room goes last: an answer that is computed again, and what is free where a micro-batch decodes less.
                let free = room.max(1).saturating_sub(part.n_tokens);
                let new = if index + 1 == self.stages { chunk.new } else { chunk.new.min(free).min(most(chunk.past)) };
                if new > 0 {
                    part.chunks.push(Chunk { past: chunk.past, new });
                    part.n_tokens += new;
                    chunk = Chunk { past: chunk.past + new, new: chunk.new - new };
                    of_chunk = Some([of_chunk.map_or(index, |[first, _]| first), index]);
                }
            }
            of_chunks.push(of_chunk.unwrap_or_default());
        }
        Spread { parts, of_chunks }
    }
}
