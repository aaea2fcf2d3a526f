//! Batches that an engine captured as CUDA graphs: one that only decodes is padded with idle sequences to the next larger size.
//!
//! A padded sequence costs what a real one does but for its cached tokens, of which it has none. Beyond the largest size, and beside
//! chunks of prompts, a batch runs as it is. Units: sequences of one lane.

/// Captured sizes, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Graphs {
    sizes: Vec<u32>,
    /// Most tokens of an iteration with chunks of prompts that runs in one too.
    prompt_tokens_max: u32,
}

impl Graphs {
    pub(super) fn new(sizes: &[u32], prompt_tokens_max: u32) -> Self {
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable();
        Self { sizes, prompt_tokens_max }
    }

    /// Whether an iteration of so many tokens with chunks of prompts is captured.
    pub(super) fn hold_prompts(&self, tokens: u64) -> bool {
        tokens <= u64::from(self.prompt_tokens_max)
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
