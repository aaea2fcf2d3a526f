//! One long prompt on a tensor- and pipeline-parallel engine, after Qwen2.5-1M (arXiv:2501.15383).
//!
//! A prompt is computed chunk by chunk; a chunk passes the pipeline stages in order. `chunks.rs` cuts prompts, with equal chunks or with
//! chunks of equal time (dynamic chunked pipeline parallelism); `sparse.rs` is vertical-slash sparse attention: budgets, density, kernel
//! law, recall; `cost.rs` says how long a stage computes a chunk; `memory.rs` what it keeps; `dual_chunk.rs` how positions beyond the
//! trained range are split. This file plays chunks through the pipeline.
//! Units: tokens, `hw::Span`; whole nanoseconds, so that equal times stay equal.

#[cfg(test)]
mod against;
pub mod chunks;
pub mod cost;
pub mod memory;

use hw::Span;

/// A chunk of a prompt: tokens whose keys are there already, and tokens that are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptChunk {
    /// Earlier tokens.
    pub past: u64,
    /// Tokens of the chunk, at least 1.
    pub new: u64,
}

/// Lays sizes one after another.
#[must_use]
pub fn laid(sizes: &[u64]) -> Vec<PromptChunk> {
    let mut past = 0;
    let next = |&new: &u64| {
        let chunk = PromptChunk { past, new };
        past += new;
        chunk
    };
    sizes.iter().map(next).collect()
}

/// What a pipeline did with prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Played {
    /// When each prompt left the last stage, since the start, in order of arrival.
    pub ends: Vec<Span>,
    /// Time that all stages computed, together.
    pub busy: Span,
    /// Pipeline stages.
    pub n_stages: u32,
}

impl Played {
    /// When the last prompt was done.
    #[must_use]
    pub fn makespan(&self) -> Span {
        self.ends.last().copied().unwrap_or(Span::ZERO)
    }

    /// Share of the stages' time in which they waited.
    #[must_use]
    pub fn bubble_ratio(&self) -> f64 {
        let whole = self.makespan().to_seconds().get() * f64::from(self.n_stages);
        if whole > 0.0 { 1.0 - self.busy.to_seconds().get() / whole } else { 0.0 }
    }
}

/// Plays prompts that arrive together, first come first served: chunks enter the first stage in order, and a stage starts a chunk when it
/// has ended the one before and the stage before has sent it. `stage` is the time of a chunk on each stage, `send` that of its message.
///
/// # Panics
/// When there is no stage.
pub fn play(
    prompts: &[Vec<PromptChunk>],
    n_stages: u32,
    stage: &dyn Fn(PromptChunk) -> Span,
    send: &dyn Fn(PromptChunk) -> Span,
) -> Played {
    assert!(n_stages > 0, "a pipeline has at least one stage");
    let mut free = vec![0_u64; n_stages as usize];
    let (mut busy, mut ends) = (0, Vec::with_capacity(prompts.len()));
    for prompt in prompts {
        let mut end = 0;
        for &chunk in prompt {
            let (time, message) = (stage(chunk).as_ns(), send(chunk).as_ns());
            let mut ready = 0;
            for free in &mut free {
                *free = ready.max(*free) + time;
                ready = *free + message;
            }
            end = ready - message;
            busy += time * u64::from(n_stages);
        }
        ends.push(Span::from_ns(end));
    }
    Played { ends, busy: Span::from_ns(busy), n_stages }
}

/// Time to the end of a prompt when every chunk takes the same time and messages take none: `n · t + (stages − 1) · t`.
#[must_use]
pub fn closed_form(n_chunks: u64, n_stages: u32, time: Span) -> Span {
    Span::from_ns((n_chunks + u64::from(n_stages) - 1) * time.as_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_equal_time_end_as_the_closed_form_says() {
        for n_chunks in [1, 2, 13, 31] {
            for n_stages in [1, 2, 4, 8] {
                let prompt = laid(&vec![64; usize::try_from(n_chunks).expect("few")]);
                let time = Span::from_ns(1_000_003);
                let played = play(&[prompt], n_stages, &|_| time, &|_| Span::ZERO);
                assert_eq!(played.makespan(), closed_form(n_chunks, n_stages, time));
            }
        }
    }

    #[test]
    fn a_late_large_chunk_makes_the_stages_behind_wait() {
        // Two stages; chunks take 1 and 3 ns. Stage 1: 0-1, 1-4. Stage 2: 1-2, 4-7. Seven of fourteen stage-ns minus six idle: 8 busy.
        let prompt = laid(&[1, 3]);
        let played = play(&[prompt], 2, &|chunk| Span::from_ns(chunk.new), &|_| Span::ZERO);
        assert_eq!((played.makespan().as_ns(), played.busy.as_ns()), (7, 8));
        assert!((played.bubble_ratio() - 6.0 / 14.0).abs() < 1e-12);
    }

    #[test]
    fn a_message_delays_the_next_stage_and_not_the_sender() {
        // Stage 1: 0-2, 2-4. Messages of 5: stage 2 starts at 7, then at 9.
        let played = play(&[laid(&[2, 2])], 2, &|_| Span::from_ns(2), &|_| Span::from_ns(5));
        assert_eq!(played.makespan().as_ns(), 11);
    }

    #[test]
    fn a_second_prompt_fills_the_bubbles_of_the_first() {
        let prompts = vec![laid(&[1, 3]); 2];
        let both = play(&prompts, 2, &|chunk| Span::from_ns(chunk.new), &|_| Span::ZERO);
        let one = play(&prompts[..1], 2, &|chunk| Span::from_ns(chunk.new), &|_| Span::ZERO);
        assert!(both.makespan().as_ns() < 2 * one.makespan().as_ns());
        assert!(both.ends.is_sorted());
    }
}
