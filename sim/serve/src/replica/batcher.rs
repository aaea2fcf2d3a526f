//! What a replica asks of a batching policy; the policies are in `batcher/`.
//!
//! A policy is called at the start of every iteration and makes the moves of `replica.rs`. It must admit somebody into an idle
//! replica where anybody waits, and it must be a function of the replica's state alone: while the batch does not change, it is
//! not asked again.

use super::{Composed, Replica};

/// Which blocks an admitted prompt takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Those of its first chunk.
    Chunk,
    /// Those of the whole prompt, leaving the watermark free.
    Whole,
}

/// Whether a prompt may be cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It fills what is left of the iteration.
    Chunked,
    /// It is computed in one iteration or waits.
    Never,
}

/// A batching policy.
pub trait Batcher: Sync + std::fmt::Debug {
    /// Name in scenarios.
    fn name(&self) -> &'static str;

    /// What it does, in a sentence, with its source.
    fn about(&self) -> &'static str;

    /// Whether it cuts prompts.
    fn cut(&self) -> Cut {
        Cut::Chunked
    }

    /// Whether decoding sequences take their tokens of an iteration's budget, so that it must hold all of them.
    fn counts_decoding(&self) -> bool {
        true
    }

    /// Whether an iteration may have fewer tokens than the longest prompt, which is refused then. Engines that do not start so have as many as it needs.
    fn keeps_budget(&self) -> bool {
        true
    }

    /// Which blocks an admitted prompt takes at once.
    fn reserve(&self) -> Reserve {
        Reserve::Whole
    }

    /// Whether a preempted sequence finds its keys and values again that nobody has overwritten, where prefixes are kept.
    fn keeps_preempted(&self) -> bool {
        false
    }

    /// Composes the next iteration: decoding sequences first, then prompts under way, then whoever waits, as far as there is room.
    fn compose(&self, replica: &mut Replica<'_>, composed: &mut Composed) {
        replica.decode_all(composed);
        replica.continue_prefills(composed, Replica::room_of_rank);
        while composed.n_preempted == 0 {
            let left = replica.tokens_left(composed);
            if !replica.admit(composed, left, self.reserve(), self.cut()) {
                break;
            }
        }
    }
}
