//! Memory of a pipeline rank at the moments of a step that take most, without playing the step.
//!
//! A rank holds most where a backward follows the last of many forward passes. What it holds then follows from its order of passes alone: all micro-batches
//! that are on their way, logits of those on the last stage, and what the backward needs besides. Lowering counts the same terms
//! (`lower/training/pass.rs`), so a step's peak is never below them. Units: bytes.

use engine::memory::head_bytes;

use crate::memory;
use crate::pipeline_states::Batches;
use crate::problem::Problem;
use crate::schedule::{PassKind, Pipeline, Placement, Schedule, Slot};
use crate::stage::Stage;

/// A backward is about to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Micro-batches that each chunk of the rank holds.
    pub held: Vec<u64>,
    /// Chunk that the backward is of.
    pub next: usize,
}

impl Moment {
    /// Micro-batches on all chunks.
    pub fn n_held(&self) -> u64 {
        self.held.iter().sum()
    }
}

/// For every rank the moments that may take most, under a schedule with equal passes.
pub fn moments(schedule: &Schedule, pipeline: &Pipeline) -> Vec<Vec<Moment>> {
    let chunks = pipeline.n_chunks;
    if schedule.splits_backward {
        // What such a schedule holds depends on durations. Each chunk holds a micro-batch before its backward, where it has one.
        let all_have = schedule.placement != Placement::Bidirectional || pipeline.n_micro_batches > 1;
        let alone = |next: usize| Moment { held: (0..chunks).map(|chunk| u64::from(chunk == next)).collect(), next };
        let of_rank: Vec<Moment> = if all_have { (0..chunks).map(alone).collect() } else { Vec::new() };
        return vec![of_rank; pipeline.n_ranks];
    }
    schedule.ordered(pipeline).iter().map(|slots| of_rank(slots, chunks)).collect()
}

/// Of the moments with most micro-batches the first, and the one with most of them on the last chunk, whose logits count.
fn of_rank(slots: &[Slot], chunks: usize) -> Vec<Moment> {
    let mut held = vec![0; chunks];
    let mut most: Vec<Moment> = Vec::new();
    for slot in slots {
        let chunk = slot.chunk as usize;
        if slot.kind == PassKind::Forward {
            held[chunk] += 1;
            continue;
        }
        let here = Moment { held: held.clone(), next: chunk };
        let last = |moment: &Moment| moment.held[chunks - 1];
        match most.first() {
            Some(first) if here.n_held() < first.n_held() => {}
            Some(first) if here.n_held() == first.n_held() => {
                if last(&here) > most.last().map_or(0, last) {
                    most.truncate(1);
                    most.push(here);
                }
            }
            _ => most = vec![here],
        }
        held[chunk] -= 1;
    }
    most
}

/// The least that a rank holds at the moment that takes most, where no micro-batch has fewer tokens than these.
pub fn least(problem: &Problem, pp: u32, stages: &[Stage], moments: &[Moment], batches: Batches) -> u64 {
    let here = problem.at_stage(pp as usize);
    let resident: u64 = memory::resident(problem, pp, stages, batches).iter().map(|(_, bytes)| bytes).sum();
    let at = |moment: &Moment| -> u64 {
        let held = stages.iter().zip(&moment.held);
        held.map(|(stage, n)| n * kept(&here, stage, batches.tokens)).sum::<u64>()
            + passing(&here, &stages[moment.next], batches.tokens)
    };
    // The backward of the last of several micro-batches begins beside whole gradients.
    let waiting = if batches.n > 1 { memory::waiting_gradients(&here, stages).0 } else { 0 };
    let fullest = moments.iter().map(|moment| at(moment) + waiting).max();
    resident + fullest.unwrap_or(0)
}

/// What a micro-batch leaves on a stage from forward to backward.
fn kept(problem: &Problem, stage: &Stage, tokens: u64) -> u64 {
    // Pairs of an unfused attention hang on the lengths of sequences.
    let made = memory::activation(problem, stage, tokens, 0).whole;
    let taken = |bytes| memory::taken(&problem.execution, bytes);
    let has_logits = stage.last && problem.execution.unit_times.is_none();
    let logits = if has_logits { head_bytes(&problem.shard(), stage, tokens) } else { 0 };
    taken(made) - taken(memory::streamed(&problem.execution, made)) + logits
}

/// What a backward of a stage needs besides.
fn passing(problem: &Problem, stage: &Stage, tokens: u64) -> u64 {
    if problem.execution.unit_times.is_some() {
        return 0;
    }
    tokens * memory::passing_bytes_per_token(problem, stage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule;

    fn of(name: &str, ranks: usize, chunks: usize, n_micro_batches: usize) -> Vec<Vec<Moment>> {
        let schedule = schedule::named(name).expect("listed");
        moments(schedule, &Pipeline::of_schedule(schedule, ranks, chunks, n_micro_batches))
    }

    #[test]
    fn a_rank_of_1f1b_holds_a_micro_batch_for_each_rank_behind_it() {
        let held: Vec<Vec<Moment>> = of("1f1b", 4, 1, 8);
        let expected: Vec<Vec<Moment>> = (1..=4).rev().map(|n| vec![Moment { held: vec![n], next: 0 }]).collect();
        assert_eq!(held, expected);
        // Two micro-batches fill no pipeline of four.
        assert_eq!(of("1f1b", 4, 1, 2)[0], [Moment { held: vec![2], next: 0 }]);
    }

    /// The first of two ranks with two chunks: forward of five passes before its first backward (arXiv:2104.04473, section 2.2).
    #[test]
    fn interleaved_chunks_hold_their_own_counts() {
        let first = &of("interleaved", 2, 2, 8)[0];
        assert_eq!(first[0], Moment { held: vec![3, 2], next: 1 });
        assert_eq!(first[0].n_held(), 5);
    }

    #[test]
    fn split_backwards_count_one_micro_batch() {
        for rank in of("zb-v", 4, 2, 8) {
            assert_eq!(rank.iter().map(Moment::n_held).collect::<Vec<_>>(), [1, 1]);
        }
        assert!(of("dualpipe", 4, 2, 1).iter().all(Vec::is_empty), "one micro-batch goes one way");
    }
}
