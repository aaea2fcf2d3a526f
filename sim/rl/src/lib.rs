//! A step of reinforcement learning for language models: an engine generates answers, a trainer learns from them, weights go back.
//!
//! A step has a batch of rollouts: some prompts, and several answers to each (GRPO, arXiv:2402.03300, section 4.1). The engine of serving
//! generates them (`generation`). The model of the trainer then gives every answer its log probabilities, once as it is and once as the
//! reference (`forward`), and is updated in one or more optimizer steps. Its new weights go to the engine (`weights`). `cycle` says how these parts
//! follow one another: on the same GPUs, or on two groups of GPUs that work at the same time. `orchestrator` adds what is done besides. Units: tokens, seconds.
//!
//! What is left out: environments that a rollout talks to. A scenario states their time where it counts.

pub mod cycle;
pub mod days;
#[cfg(test)]
mod example;
pub mod forward;

pub mod generation;
pub mod orchestrator;
pub mod reference;
pub mod rollouts;
pub mod split;
pub mod step;
pub mod weights;
