//! The next iteration of a replica as a batching policy composes it.

use hw::Tick;

/// What the next iteration holds.
#[derive(Clone, Debug, Default)]
pub struct Composed {
    /// Whether the decoding sequences take part.
    pub decodes: bool,
    /// Slots with their chunk tokens.
    pub(super) chunks: Vec<(u32, u32)>,
    pub(super) n_chunk_tokens: u32,
    /// Sequences that lost their blocks.
    pub n_preempted: u32,
    /// Requests that lost their blocks since the records were told.
    pub(super) preempted: Vec<u32>,
    /// Swapped sequences whose blocks come back during the iteration; they decode from the next one on.
    pub(super) returning: Vec<u32>,
    /// Host transfers that the iteration waits for.
    pub(super) transfer_ticks: Tick,
    /// Images that are encoded before its chunks, by position among those of all requests.
    pub(super) images: Vec<u32>,
    /// Tokens of these images.
    pub(super) n_image_tokens: u32,
    /// Whether sequences joined whose prompts were computed on another replica.
    pub(super) joins: bool,
    /// Whether prompts wait for others, so that the policy is asked again after one iteration.
    pub(super) gathers: bool,
}

impl Composed {
    /// Tokens of its chunks.
    pub const fn n_chunk_tokens(&self) -> u32 {
        self.n_chunk_tokens
    }

    /// Whether nothing is to do.
    pub fn is_empty(&self) -> bool {
        !self.decodes && self.chunks.is_empty() && self.returning.is_empty()
    }

    /// Makes room for the next iteration.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.returning.clear();
        self.images.clear();
        self.n_image_tokens = 0;
        (self.decodes, self.joins, self.gathers) = (false, false, false);
        (self.n_chunk_tokens, self.n_preempted, self.transfer_ticks) = (0, 0, Tick::ZERO);
    }

    /// A prompt that has lost its blocks gets no chunk.
    pub(super) fn drop_chunk(&mut self, id: u32) {
        self.chunks.retain(|(other, _)| *other != id);
        self.n_chunk_tokens = self.chunks.iter().map(|(_, tokens)| tokens).sum();
    }
}
