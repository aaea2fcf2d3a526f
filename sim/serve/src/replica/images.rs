//! Images of prompts: which of them an iteration encodes, and where a chunk ends because of them.
//!
//! An image is encoded in the iteration that first needs one of its tokens, and what the encoder gave is kept until the prompt has passed it. The
//! images of an iteration have at most as many tokens as an iteration has, or as the largest image that the model takes; a chunk ends before the
//! first one beyond that. Each rank of data-parallel attention is an engine of its own with an encoder, and encodes the images of its own prompts (vLLM 0.11, `Scheduler._try_schedule_encoder_inputs` and `compute_mm_encoder_budget`). A policy that does not cut prompts encodes all
//! images of a prompt at once. Approximations: a prompt that lost its blocks is encoded again; what a cached prefix holds of an image needs no
//! encoder only where it holds all of it; requests do not share what an encoder gave them.

use super::batcher::Cut;
use super::{Composed, Replica};
use crate::request::Placed;
use engine::model::Image;
use hw::Tick;

impl Replica<'_> {
    /// Tokens of a chunk of `tokens` after `past` ones, where it ends before an image that this iteration cannot encode any more on its rank, and how many
    /// leading images of the prompt are dealt with behind it; `encoded` of them are already. A slot without a rank is on the one that takes whoever comes next.
    pub(super) fn before_images(
        &self,
        composed: &Composed,
        (request, slot): (u32, Option<u32>),
        (past, tokens): (u32, u32),
        encoded: u32,
    ) -> (u32, u32) {
        let images = self.images_of(request);
        if images.is_empty() {
            return (tokens, encoded);
        }
        let is_cut = self.batcher.cut() == Cut::Chunked;
        let rank = slot.and_then(|id| self.rank_of(id)).unwrap_or_else(|| composed.emptiest());
        let (mut taken, mut n) = (tokens_of(composed.images_on(rank)), encoded);
        for placed in &images[(encoded as usize).min(images.len())..] {
            if placed.at >= past + tokens {
                break;
            }
            if placed.end() > past {
                if is_cut && taken > 0 && taken + placed.image.tokens > self.image_tokens_max() {
                    return (placed.at.saturating_sub(past), n);
                }
                taken += placed.image.tokens;
            }
            n += 1;
        }
        (tokens, n)
    }

    /// Adds the images of a prompt up to the `encoded`-th that are not behind `past` tokens.
    pub(super) fn encode(&mut self, composed: &mut Composed, id: u32, past: u32, encoded: u32) {
        let slot = &mut self.slots[id as usize];
        let first = self.requests.list[slot.request as usize].image_first;
        for index in slot.encoded..encoded {
            let placed = &self.requests.images[(first + index) as usize];
            if placed.end() > past {
                composed.images.push((id, placed.image));
            }
        }
        slot.encoded = encoded;
    }

    /// Ticks in which the images of an iteration are encoded, before its chunks; they are counted. Ranks of data-parallel attention encode at once.
    pub(super) fn encode_ticks(&mut self, composed: &Composed) -> Tick {
        if composed.images.is_empty() {
            return Tick::ZERO;
        }
        let table = &self.engine.table;
        let ranks = 0..table.lanes().ranks;
        let ticks = ranks.map(|rank| table.encoding(composed.images_on(rank))).max().unwrap_or_default();
        self.counts.n_images += composed.images.len() as u64;
        self.counts.image_tokens += u64::from(tokens_of(composed.images.iter().map(|(_, image)| *image)));
        self.counts.encode_ticks += ticks;
        ticks
    }

    fn images_of(&self, request: u32) -> &[Placed] {
        self.requests.images_of(&self.requests.list[request as usize])
    }

    /// Tokens of the images that an iteration encodes on a rank.
    fn image_tokens_max(&self) -> u32 {
        self.tokens_of_rank().max(self.engine.limits.image_tokens_max)
    }
}

fn tokens_of(images: impl Iterator<Item = Image>) -> u32 {
    images.map(|image| image.tokens).sum()
}
