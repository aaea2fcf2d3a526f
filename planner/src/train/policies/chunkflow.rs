//! ChunkFlow (arXiv:2503.02356): every micro-batch is a chunk of at most ChunkSize tokens. Short sequences share standalone
//! chunks, in as few as best fit finds; long ones are cut into dependent chunks that run forward in order and backward in reverse.
//!
//! Of the N chunks of a long sequence the last K keep their activations. The first N − K run forward for their keys and values
//! only, and once more after the backward of the chunk behind them, in descending order (algorithm 2). The order on every
//! pipeline rank is 1F1B with these constraints (`sim/train/src/schedule/one_f_one_b.rs`): forwards that keep nothing do not count as
//! warm-up. ChunkSize and K that are not given are found by grid: the shortest 1F1B of the first step that memory allows.
//! Forwards of a sequence: N + max(0, N − K).

use std::collections::BTreeMap;

use train::lower::training::pipelines;
use train::plan::{MicroBatch, Place, Placement, Step};
use train::schedule::play;
use train::{Plan, Problem};

use super::{deal_longest, heuristic};
use crate::train::pack;
use crate::train::policy::{Allowed, Card, Decision, Parameter, PlanContext, PlanError, Policy};

/// The policy.
pub struct ChunkFlow;

const CARD: Card = Card {
    name: "chunkflow",
    about: "chunks of equal size: short sequences packed, long ones cut; the last K chunks keep their activations",
    source: "ChunkFlow, arXiv:2503.02356",
    method: "best-fit packing, grid search over (ChunkSize, K)",
    parameters: &[
        Parameter {
            name: "chunk_tokens",
            unit: "tokens",
            default: "0",
            allowed: Allowed::Count(0.0, 1e8),
            about: "ChunkSize; 0 searches powers of two from 1,024 up to what memory holds",
        },
        Parameter {
            name: "keep",
            unit: "chunks",
            default: "0",
            allowed: Allowed::Count(0.0, 1e6),
            about: "K, chunks of a long sequence that keep their activations; 0 searches powers of two",
        },
    ],
};

/// ChunkSize and K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    chunk_tokens: u64,
    keep: u64,
}

/// Smallest ChunkSize of the grid: below it kernels are far from full.
const CHUNK_TOKENS_MIN: u64 = 1024;

impl Policy for ChunkFlow {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn plan(&self, problem: &Problem, context: &PlanContext<'_>) -> Result<Decision, PlanError> {
        if problem.layout.pp > 1 && problem.schedule.name != "1f1b" {
            let what = format!("dependent chunks need `schedule = \"1f1b\"`, not `{}`", problem.schedule.name);
            return Err(PlanError::Unsupported(what));
        }
        if problem.layout.groups_in_step() > 1 {
            let what = "experts over several data-parallel groups, and ZeRO 3, join groups whose chunks ask for different orders";
            return Err(PlanError::Unsupported(what.to_owned()));
        }
        let shapes = shapes(problem, context)?;
        let judged = shapes.iter().map(|&shape| (predicted(problem, context, shape), shape));
        let (seconds, shape) = judged.min_by(|a, b| a.0.total_cmp(&b.0)).expect("the grid is not empty");
        let steps = (0..problem.workload.n_steps()).map(|index| step(problem, index, shape)).collect();
        let Shape { chunk_tokens, keep } = shape;
        let among = if shapes.len() == 1 { "as given".to_owned() } else { format!("the best of {}", shapes.len()) };
        let holds = if seconds.is_finite() {
            format!("{seconds:.3} s on the pipelines of the first step")
        } else {
            "more activations than memory holds".to_owned()
        };
        let notes = vec![format!("ChunkSize {chunk_tokens}, K {keep} ({among}): {holds}")];
        let figures = [("chunk_tokens", chunk_tokens), ("keep", keep)];
        let mut figures: BTreeMap<String, f64> =
            figures.into_iter().map(|(name, n)| (name.to_owned(), hw::Tokens(n).as_f64())).collect();
        if seconds.is_finite() {
            figures.insert("predicted_pipeline_s".to_owned(), seconds);
        }
        Ok(Decision { notes, figures, ..heuristic(CARD.name, problem, steps) })
    }
}

/// What is given, or the grid that memory allows.
fn shapes(problem: &Problem, context: &PlanContext<'_>) -> Result<Vec<Shape>, PlanError> {
    let whole = |name: &str| hw::Bytes::from_f64(context.number(name, 0.0)).0;
    let (chunk, keep) = (whole("chunk_tokens"), whole("keep"));
    // What a context group holds in one micro-batch, times the micro-batches that 1F1B holds.
    let bucket = problem.bucket_tokens * u64::from(problem.layout.cp);
    let held = bucket * u64::from(problem.layout.pp);
    let powers = |from: u64, to: u64| {
        std::iter::successors(Some(from), |n| n.checked_mul(2)).take_while(|n| *n <= to).collect::<Vec<u64>>()
    };
    let chunks = if chunk > 0 { vec![chunk] } else { powers(CHUNK_TOKENS_MIN.min(bucket.max(1)), bucket) };
    let longest = problem.workload.lengths.iter().max().copied().unwrap_or(1);
    let mut shapes = Vec::new();
    for chunk_tokens in chunks {
        let keeps = if keep > 0 { vec![keep] } else { powers(1, longest.div_ceil(chunk_tokens).next_power_of_two()) };
        let fits = |shape: &Shape| keep > 0 || shape.keep == 1 || shape.keep * chunk_tokens <= held;
        shapes.extend(keeps.into_iter().map(|keep| Shape { chunk_tokens, keep }).filter(fits));
    }
    if shapes.is_empty() {
        return Err(PlanError::Infeasible(format!("a context group holds {bucket} tokens, no chunk fits")));
    }
    Ok(shapes)
}

/// Seconds of the slowest pipeline of the first step, by its order alone; infinite when its activations do not fit.
fn predicted(problem: &Problem, context: &PlanContext<'_>, shape: Shape) -> f64 {
    let first = Problem { workload: problem.workload.first_step(), ..problem.clone() };
    let plan = Plan { steps: vec![step(&first, 0, shape)], ..heuristic(CARD.name, &first, Vec::new()).plan };
    let (pipelines, _) = pipelines(&first, &plan, 0, context.cost);
    let mut longest = 0;
    for pipeline in &pipelines {
        let order = (problem.schedule.order)(pipeline);
        // Kept chunks keep their logits as well.
        let mut held = pipeline.clone();
        let logits = shape.chunk_tokens.div_ceil(u64::from(problem.layout.cp))
            * engine::memory::logit_bytes_per_token(&problem.shard());
        held.activation.last_mut().into_iter().flatten().for_each(|activation| *activation += logits);
        let Ok(played) = play(&held, &order) else { return f64::INFINITY };
        if played.peak_activation.iter().max() > pipeline.limit.as_ref() {
            return f64::INFINITY;
        }
        longest = longest.max(played.span);
    }
    hw::Span::from_ns(longest).to_seconds().get()
}

/// Chunks of one step: sequences to data-parallel groups by work, then standalone chunks, then dependent ones.
fn step(problem: &Problem, index: usize, shape: Shape) -> Step {
    let sequences: Vec<(u32, u64)> = problem.workload.step(index).collect();
    let groups = deal_longest(problem, &sequences);
    Step::of_groups(groups.iter().map(|group| chunks(group, shape)).collect())
}

fn chunks(sequences: &[(u32, u64)], shape: Shape) -> Vec<MicroBatch> {
    let (long, short): (Vec<_>, Vec<_>) = sequences.iter().partition(|(_, tokens)| *tokens > shape.chunk_tokens);
    let sizes: Vec<u64> = short.iter().map(|(_, tokens)| *tokens).collect();
    let place = |sequence, from, tokens| Placement { sequence, from, tokens, place: Place::Sharded };
    let standalone = pack::best_fit_decreasing(&sizes, shape.chunk_tokens).into_iter().map(|bin| MicroBatch {
        sequences: bin.iter().map(|&item| place(short[item].0, 0, short[item].1)).collect(),
        ..MicroBatch::default()
    });
    let mut micro_batches: Vec<MicroBatch> = standalone.collect();
    for (sequence, tokens) in long {
        micro_batches.extend(dependent(sequence, tokens, shape, place));
    }
    micro_batches
}

/// Chunks of one long sequence in order of their forwards.
fn dependent(sequence: u32, tokens: u64, shape: Shape, place: impl Fn(u32, u64, u64) -> Placement) -> Vec<MicroBatch> {
    let n = tokens.div_ceil(shape.chunk_tokens);
    let chunk = |index: u64, forward_only| {
        let from = index * shape.chunk_tokens;
        let sequences = vec![place(sequence, from, shape.chunk_tokens.min(tokens - from))];
        MicroBatch { sequences, forward_only, ..MicroBatch::default() }
    };
    let n_dropped = n.saturating_sub(shape.keep);
    let first = (0..n).map(|index| chunk(index, index < n_dropped));
    first.chain((0..n_dropped).rev().map(|index| chunk(index, false))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sequence_runs_forward_n_and_n_minus_k_times() {
        let place = |sequence, from, tokens| Placement { sequence, from, tokens, place: Place::Sharded };
        for (tokens, keep, n, again) in [(10, 1, 5, 4), (10, 2, 5, 3), (9, 5, 5, 0), (9, 9, 5, 0), (4, 1, 2, 1)] {
            let found = dependent(7, tokens, Shape { chunk_tokens: 2, keep }, place);
            assert_eq!(found.len(), n + again, "{tokens} {keep}");
            assert_eq!(found.iter().filter(|mb| mb.forward_only).count(), again);
            // Those that come again come last to first.
            let from: Vec<u64> = found[n..].iter().map(|mb| mb.sequences[0].from).collect();
            assert!(from.windows(2).all(|pair| pair[0] > pair[1]), "{from:?}");
            let covered: u64 = found.iter().filter(|mb| !mb.forward_only).map(MicroBatch::tokens).sum();
            assert_eq!(covered, tokens);
        }
    }
}
