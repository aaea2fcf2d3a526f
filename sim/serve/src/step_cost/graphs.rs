//! Batches that an engine captured as CUDA graphs: one that only decodes is padded with idle sequences to the next larger size, or runs without a graph.
//!
//! A padded sequence costs what a real one does but for its cached tokens, of which it has none. Beyond the largest size a batch runs as it is, and its kernels are
//! launched one by one. Iterations with chunks of prompts are padded where they run in the same graphs, as vLLM's do; graphs of prompts alone have sizes of their
//! own, as SGLang's, whose padding is left out. Units: sequences of one lane, tokens.

use super::{Batch, StepTable};

/// What a batch does whose size is not captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GraphFit {
    /// It is padded to the next larger one.
    #[default]
    Padded,
    /// It runs without a graph.
    Exact,
}

/// Captured sizes, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Graphs {
    /// None where every size is captured.
    sizes: Vec<u32>,
    fit: GraphFit,
    /// Largest batch that only decodes and is captured.
    batch_max: u32,
    /// Most tokens of an iteration with chunks of prompts that runs in one too.
    prompt_tokens_max: u32,
}

impl Graphs {
    /// Every batch that only decodes is captured as it is.
    pub(super) const EACH: Self =
        Self { sizes: Vec::new(), fit: GraphFit::Padded, batch_max: u32::MAX, prompt_tokens_max: 0 };

    pub(super) fn new((sizes, fit): (&[u32], GraphFit), batch_max: u32, prompt_tokens_max: u32) -> Self {
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable();
        Self { sizes, fit, batch_max, prompt_tokens_max }
    }

    /// Whether an iteration of so many tokens with chunks of prompts is captured.
    pub(super) fn hold_prompts(&self, tokens: u64) -> bool {
        tokens <= u64::from(self.prompt_tokens_max)
    }

    /// Whether an iteration of so many sequences that only decode is captured.
    pub(super) fn hold(&self, n: u32) -> bool {
        let is_size = || n == 0 || self.sizes.is_empty() || self.sizes.binary_search(&n).is_ok();
        n <= self.batch_max && (self.fit == GraphFit::Padded || is_size())
    }

    /// Sequences that a batch of so many runs as.
    pub(super) fn padded(&self, n: u32) -> u32 {
        match self.next(n) {
            Some(size) if n > 0 && self.fit == GraphFit::Padded => size,
            _ => n,
        }
    }

    /// Tokens that an iteration of so many with chunks of prompts runs as.
    pub(super) fn padded_prompts(&self, tokens: u64) -> u64 {
        let in_same_graphs = self.sizes.last().is_some_and(|last| self.prompt_tokens_max <= *last);
        let held = u32::try_from(tokens).ok().filter(|_| in_same_graphs && self.hold_prompts(tokens));
        held.and_then(|tokens| self.next(tokens)).map_or(tokens, u64::from)
    }

    /// The next captured size.
    fn next(&self, n: u32) -> Option<u32> {
        self.sizes.get(self.sizes.partition_point(|size| *size < n)).copied()
    }
}

impl StepTable {
    /// Tokens that a micro-batch with so many decoded ones runs as.
    pub(super) fn run_as(&self, decoded: u64, batch: &Batch) -> u64 {
        match batch.chunk_tokens {
            0 => decoded,
            chunks => self.graphs.padded_prompts(decoded + chunks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_padded_to_the_next_size_of_a_list_or_runs_without_a_graph() {
        let of = |fit| Graphs::new((&[64, 1, 8], fit), 64, 64);
        let (padded, exact) = (of(GraphFit::Padded), of(GraphFit::Exact));
        assert_eq!([0, 1, 2, 8, 9, 64, 65].map(|n| padded.padded(n)), [0, 1, 8, 8, 64, 64, 65]);
        assert_eq!([0, 1, 2, 8, 9, 64, 65].map(|n| exact.padded(n)), [0, 1, 2, 8, 9, 64, 65]);
        assert_eq!([1, 2, 8, 9, 64, 65].map(|n| padded.hold(n)), [true, true, true, true, true, false]);
        assert_eq!([1, 2, 8, 9, 64, 65].map(|n| exact.hold(n)), [true, false, true, false, true, false]);
        // vLLM's iterations with prompts run in the same graphs. SGLang's have their own.
        assert_eq!([1, 9, 64, 65].map(|tokens| padded.padded_prompts(tokens)), [1, 64, 64, 65]);
        let own = Graphs::new((&[64, 1, 8], GraphFit::Padded), 64, 2048);
        assert_eq!(own.padded_prompts(9), 9);
        assert_eq!(Graphs::EACH.padded_prompts(9), 9);
    }
}
