//! How an engine composes an iteration: one policy, one file.
//!
//! A policy is called at the start of every iteration and makes the moves of `replica.rs`. It must admit somebody into an idle
//! replica where anybody waits, and it must be a function of the replica's state alone: while the batch does not change, it is
//! not asked again.

mod one_prompt;
mod sarathi;
mod sglang;
mod trtllm;
mod vllm_v0;
mod vllm_v1;

use crate::replica::{Composed, Cut, Replica, Reserve};

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

    /// Which blocks an admitted prompt takes at once.
    fn reserve(&self) -> Reserve {
        Reserve::Whole
    }

    /// Composes the next iteration.
    fn compose(&self, replica: &mut Replica<'_>, composed: &mut Composed);
}

/// Every batching policy.
pub static BATCHERS: [&dyn Batcher; 6] =
    [&vllm_v1::VllmV1, &sarathi::Sarathi, &sglang::Sglang, &trtllm::Trtllm, &vllm_v0::VllmV0, &one_prompt::OnePrompt];

/// A policy by name.
#[must_use]
pub fn named(name: &str) -> Option<&'static dyn Batcher> {
    BATCHERS.iter().find(|batcher| batcher.name() == name).copied()
}
