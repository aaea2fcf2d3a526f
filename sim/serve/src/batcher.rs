//! How an engine composes an iteration: one policy, one file. What a policy must do is said by its trait (`replica/batcher.rs`).

mod one_prompt;
mod sarathi;
mod sglang;
mod trtllm;
mod vllm_v0;
mod vllm_v1;

pub use crate::replica::batcher::Batcher;

/// Every batching policy.
pub static BATCHERS: [&dyn Batcher; 6] =
    [&vllm_v1::VllmV1, &sarathi::Sarathi, &sglang::Sglang, &trtllm::Trtllm, &vllm_v0::VllmV0, &one_prompt::OnePrompt];

/// A policy by name.
pub fn named(name: &str) -> Option<&'static dyn Batcher> {
    BATCHERS.iter().find(|batcher| batcher.name() == name).copied()
}
