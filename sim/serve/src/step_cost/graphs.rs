//! Batches that an engine captured as CUDA graphs: one that only decodes is padded with idle sequences to the next larger size.
//!
//! A padded sequence costs what a real one does but for its cached tokens, of which it has none. Beyond the largest size, and beside
//! chunks of prompts, a batch runs as it is, and its kernels are launched one by one. Units: sequences of one lane.

/// Captured sizes, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Graphs {
    sizes: Vec<u32>,
    /// Largest batch that only decodes and is captured.
    batch_max: u32,
    /// Most tokens of an iteration with chunks of prompts that runs in one too.
    prompt_tokens_max: u32,
}

impl Graphs {
    /// Every batch that only decodes is captured as it is.
    pub(super) const EACH: Self = Self { sizes: Vec::new(), batch_max: u32::MAX, prompt_tokens_max: 0 };

    pub(super) fn new(sizes: &[u32], batch_max: u32, prompt_tokens_max: u32) -> Self {
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable();
        Self { sizes, batch_max, prompt_tokens_max }
    }

    /// Whether an iteration of so many tokens with chunks of prompts is captured.
    pub(super) fn hold_prompts(&self, tokens: u64) -> bool {
        tokens <= u64::from(self.prompt_tokens_max)
    }

    /// Whether an iteration of so many sequences that only decode is captured.
    pub(super) const fn hold(&self, n: u32) -> bool {
        n <= self.batch_max
    }

    /// Sequences that a batch of so many runs as.
    pub(super) fn padded(&self, n: u32) -> u32 {
        let index = self.sizes.partition_point(|size| *size < n);
        match self.sizes.get(index) {
            Some(size) if n > 0 => *size,
            _ => n,
        }
    }
}
