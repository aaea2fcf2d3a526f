//! Iterations that hold whole prompts: engines that cut none are started with as many tokens as the longest prompt has.
//!
//! Each draw of the requests has a longest prompt of its own. Units: tokens.

use serve::engine_preset::EnginePreset;
use serve::replica::Limits;
use serve::replica::batcher::Cut;
use serve::request::Requests;

use super::{Serving, ServingChoice};

impl Serving {
    /// Whether iterations of a choice are made to hold its longest prompt: prompts are not cut, and the engine does not start with fewer tokens (vLLM V0:
    /// `max_num_batched_tokens` below `max_model_len`), or neither the scenario nor the engine says how many an iteration has.
    pub(super) fn raises_tokens(&self, choice: &ServingChoice) -> bool {
        let is_own = |preset: &EnginePreset| preset.batcher == choice.batcher.name();
        let is_unsaid = choice.is_usual[1] && !self.engine.preset.is_some_and(is_own);
        choice.batcher.cut() == Cut::Never && (is_unsaid || !choice.batcher.keeps_budget())
    }

    /// Tokens that iterations of a choice are raised to, where all its requests have prompts of so many tokens at most; 0 where they are not raised.
    fn raised(&self, choice: &ServingChoice, of_all: u32) -> u32 {
        if !self.raises_tokens(choice) {
            return 0;
        }
        let prompt = if choice.streams.is_empty() { of_all } else { longest(&self.requests_of(choice)) };
        prompt.min(choice.limits.context_max)
    }

    /// A choice as its engine is started for the requests of this draw.
    pub fn for_draw(&self, choice: &ServingChoice) -> ServingChoice {
        let tokens_raised = self.raised(choice, longest(&self.requests));
        let tokens_max = choice.tokens_asked.max(tokens_raised);
        ServingChoice { tokens_raised, limits: Limits { tokens_max, ..choice.limits }, ..choice.clone() }
    }
}

/// What nobody wrote of contexts and of iterations that hold whole prompts.
pub fn fill_in(serving: &mut Serving) {
    let given = serving.engine.limits.context_max;
    // Hundreds of ways that are tried serve the same requests.
    let of_all = longest(&serving.requests);
    for index in 0..serving.choices.len() {
        let choice = &serving.choices[index];
        let positions = serving.groups_of(choice).iter().map(|group| group.model.max_positions).max();
        let positions = u32::try_from(positions.unwrap_or(0)).unwrap_or(u32::MAX);
        serving.choices[index].limits.context_max = if given > 0 { given } else { positions };
        let raised = serving.raised(&serving.choices[index], of_all);
        let choice = &mut serving.choices[index];
        choice.tokens_raised = raised;
        choice.limits.tokens_max = choice.limits.tokens_max.max(raised);
    }
}

/// Tokens of the longest prompt.
fn longest(requests: &Requests) -> u32 {
    requests.list.iter().map(|request| request.prompt).max().unwrap_or(0)
}
