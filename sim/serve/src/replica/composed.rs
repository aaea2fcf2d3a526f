//! The next iteration of a replica as a batching policy composes it.

use engine::model::Image;
use hw::Tick;

/// What the next iteration holds.
#[derive(Clone, Debug, Default)]
pub struct Composed {
    /// Whether the decoding sequences take part.
    pub decodes: bool,
    /// Slots with their chunk tokens.
    pub(super) chunks: Vec<(u32, u32)>,
    /// Rank of data-parallel attention of each chunk.
    pub(super) on_rank: Vec<u32>,
    /// The first and the last micro-batch of each chunk, once it has begun; none where it is one batch.
    pub(super) batches: Vec<[u32; 2]>,
    /// Chunk tokens of every rank.
    of_ranks: Vec<u32>,
    pub(super) n_chunk_tokens: u32,
    /// Sequences that lost their blocks.
    pub n_preempted: u32,
    /// Prompts under way that get no chunk, because one that was admitted before them had to give up its own blocks.
    pub(super) behind: Vec<u32>,
    /// Requests that lost their blocks since the records were told.
    pub(super) preempted: Vec<u32>,
    /// Swapped sequences whose blocks come back during the iteration; they decode from the next one on.
    pub(super) returning: Vec<u32>,
    /// Host transfers that the iteration waits for.
    pub(super) transfer_ticks: Tick,
    /// Images that are encoded before its chunks, each with the slot of its prompt.
    pub(super) images: Vec<(u32, Image)>,
    /// Whether sequences joined whose prompts were computed on another replica.
    pub(super) joins: bool,
    /// Whether prompts wait for others, so that the policy is asked again after one iteration.
    pub(super) gathers: bool,
}

impl Composed {
    /// Of so many ranks of data-parallel attention.
    pub(super) fn of_ranks(n: u32) -> Self {
        Self { of_ranks: vec![0; n as usize], ..Self::default() }
    }

    /// Chunk tokens of the emptiest rank, which takes whoever comes next.
    pub(super) fn fewest_tokens(&self) -> u32 {
        self.of_ranks.iter().copied().min().unwrap_or_default()
    }

    /// Rank that takes whoever comes next.
    pub(super) fn emptiest(&self) -> u32 {
        (0..).zip(&self.of_ranks).min_by_key(|(_, tokens)| **tokens).map_or(0, |(rank, _)| rank)
    }

    /// Images of the prompts that a rank has chunks of.
    pub(super) fn images_on(&self, rank: u32) -> impl Iterator<Item = Image> + '_ {
        let is_here =
            move |slot: u32| self.chunks.iter().zip(&self.on_rank).any(|((id, _), on)| *id == slot && *on == rank);
        self.images.iter().filter(move |(slot, _)| is_here(*slot)).map(|(_, image)| *image)
    }

    /// A slot gets a chunk on a rank, on the emptiest where ranks are not told apart.
    pub(super) fn give(&mut self, id: u32, tokens: u32, rank: Option<u32>) {
        let rank = rank.unwrap_or_else(|| self.emptiest());
        self.chunks.push((id, tokens));
        self.on_rank.push(rank);
        self.of_ranks[rank as usize] += tokens;
        self.n_chunk_tokens += tokens;
    }

    /// The last chunk is on another rank.
    pub(super) fn move_last(&mut self, to: u32) {
        if let (Some((_, tokens)), Some(from)) = (self.chunks.last(), self.on_rank.last_mut()) {
            self.of_ranks[*from as usize] -= tokens;
            self.of_ranks[to as usize] += tokens;
            *from = to;
        }
    }

    /// Tokens of its chunks.
    pub const fn n_chunk_tokens(&self) -> u32 {
        self.n_chunk_tokens
    }

    /// The first and the last micro-batch of a chunk by its place among the chunks.
    pub(super) fn batches_of(&self, chunk: usize) -> [u32; 2] {
        self.batches.get(chunk).copied().unwrap_or_default()
    }

    /// Micro-batches up to the last one that has a chunk.
    pub(super) fn n_filled(&self) -> u32 {
        self.batches.iter().map(|[_, last]| last + 1).max().unwrap_or_default()
    }

    /// Whether nothing is to do.
    pub fn is_empty(&self) -> bool {
        !self.decodes && self.chunks.is_empty() && self.returning.is_empty()
    }

    /// Makes room for the next iteration.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.on_rank.clear();
        self.batches.clear();
        self.of_ranks.fill(0);
        self.returning.clear();
        self.images.clear();
        self.behind.clear();
        (self.decodes, self.joins, self.gathers) = (false, false, false);
        (self.n_chunk_tokens, self.n_preempted, self.transfer_ticks) = (0, 0, Tick::ZERO);
    }

    /// A prompt that has lost its blocks gets no chunk, and none of its images is encoded.
    pub(super) fn drop_chunk(&mut self, id: u32) {
        self.images.retain(|(slot, _)| *slot != id);
        if let Some(index) = self.chunks.iter().position(|(other, _)| *other == id) {
            let (_, tokens) = self.chunks.remove(index);
            self.of_ranks[self.on_rank.remove(index) as usize] -= tokens;
            self.n_chunk_tokens -= tokens;
            if index < self.batches.len() {
                self.batches.remove(index);
            }
        }
    }
}
