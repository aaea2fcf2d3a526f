//! ChunkFlow (arXiv:2503.02356): every micro-batch is a chunk of at most ChunkSize tokens. Short sequences share standalone
//! chunks, in as few as best fit finds; long ones are cut into dependent chunks that run forward in order and backward in reverse.
//!
//! Of the N chunks of a long sequence the last K keep their activations. The first N − K run forward for their keys and values
//! only, and once more after the backward of the chunk behind them, in descending order (algorithm 2). The order on every
//! pipeline rank is 1F1B with these constraints (`sim/train/src/schedule/one_f_one_b.rs`): forwards that keep nothing do not count as
//! warm-up. ChunkSize and K that are not given are found by grid: those under which the orders of all steps are the shortest together, of what memory
//! allows. A pair is left as soon as its steps so far take longer than all of the best one's. The best four are played, and the fastest of them stays: the
//! player knows exchanges that no order has, and charges buffers of exchanges, a layer that is made again, and whole parameters besides. Where a pair runs
//! out of memory, so does every pair with chunks as large and as many kept, and the best of the others is next.
//! A chunk that comes again waits until the backward of the chunk behind it has gone through the whole pipeline. What stands alone can
//! fill that time, and the paper does not say where it comes: on a pipeline every place is played, and the shortest order stays.
//! Forwards of a sequence: N + max(0, N − K).

use std::collections::{BTreeMap, BTreeSet};

use hw::topology::Topology;
use train::layout::Zero;
use train::lower::training::pipelines;
use train::plan::{MicroBatch, Place, Placement, Step};
use train::schedule::play;
use train::{Plan, Problem};

use super::{deal_longest, heuristic};
use crate::proof::Decision;
use crate::train::pack;
use crate::train::policy::{Card, Parameter, PlanContext, PlanError};
use crate::train::{orders, search};

pub(super) const CARD: Card = Card {
    name: "chunkflow",
    about: "chunks of equal size: short sequences packed, long ones cut; the last K chunks keep their activations",
    source: "ChunkFlow, arXiv:2503.02356",
    method: "best-fit packing, grid search over (ChunkSize, K)",
    parameters: &[
        Parameter::count(
            ("chunk_tokens", "tokens"),
            ("0", 0.0, 1e8),
            "ChunkSize; 0 searches powers of two from 1,024 up to what memory holds",
        ),
        Parameter::count(
            ("keep", "chunks"),
            ("0", 0.0, 1e6),
            "K, chunks of a long sequence that keep their activations; 0 searches powers of two",
        ),
    ],
};

/// ChunkSize and K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    chunk_tokens: u64,
    keep: u64,
}

/// Where standalone chunks come among those of long sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standalone {
    /// Before them, as ChunkFlow's figures have it.
    First,
    /// Behind them.
    Last,
    /// In equal parts before the chunks that come again.
    Between,
}

/// Smallest ChunkSize of the grid: below it kernels are far from full.
const CHUNK_TOKENS_MIN: u64 = 1024;

pub(super) fn plan(problem: &Problem, context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    if problem.layout.pp > 1 && problem.schedule.name != "1f1b" {
        let what = format!("dependent chunks need `schedule = \"1f1b\"`, not `{}`", problem.schedule.name);
        return Err(PlanError::Unsupported(what));
    }
    if problem.layout.groups_in_step() > 1 {
        let what = if problem.layout.zero == Zero::Parameters {
            "ZeRO 3 joins data-parallel groups, whose chunks ask for different orders: use `zero = 2`, or `dp = 1`"
        } else {
            "experts over several data-parallel groups join them, and their chunks ask for different orders: use a smaller `ep`, or `dp = 1`"
        };
        return Err(PlanError::Unsupported(what.to_owned()));
    }
    let shapes = shapes(problem, context)?;
    let (seconds, shape, steps) = best_that_fits(problem, context, &shapes);
    let Shape { chunk_tokens, keep } = shape;
    let among = if shapes.len() == 1 { "as given".to_owned() } else { format!("the best of {}", shapes.len()) };
    let holds = if seconds.is_finite() {
        format!("{seconds:.3} s on the pipelines of a step")
    } else {
        "more activations than memory holds".to_owned()
    };
    let notes = vec![format!("ChunkSize {chunk_tokens}, K {keep} ({among}): {holds}")];
    let figures = [("chunk_tokens", chunk_tokens), ("keep", keep)];
    let mut figures: BTreeMap<String, f64> =
        figures.into_iter().map(|(name, n)| (name.to_owned(), hw::real(n))).collect();
    if seconds.is_finite() {
        figures.insert("predicted_pipeline_s".to_owned(), seconds);
    }
    Ok(heuristic(CARD.name, problem, steps).said(notes, figures))
}

/// Pairs that are played: orders alone know no exchange of a context group, no message's way and no reduction.
const PLAYED: usize = 4;

/// Of the first few pairs by their orders the one whose steps take least as they are played; the first of all where none runs to its end, so that the
/// player says what is short.
fn best_that_fits(problem: &Problem, context: &PlanContext<'_>, shapes: &[Shape]) -> Judged {
    let mut known = Known::new();
    let first = best_of(problem, context, shapes, &mut known);
    if shapes.len() == 1 || problem.execution.unit_times.is_some() || !first.0.is_finite() {
        return first;
    }
    let topology = Topology::of(&problem.cluster);
    let (mut left, mut next) = (shapes.to_vec(), first.clone());
    let mut played: Vec<(f64, Judged)> = Vec::new();
    while next.0.is_finite() {
        let mut plan = heuristic(CARD.name, problem, next.2.clone()).plan;
        _ = orders::complete(problem, &mut plan, context.cost);
        let shape = next.1;
        match search::simulate(problem, &plan, context, &topology) {
            Some(step_s) => {
                left.retain(|other| *other != shape);
                played.push((step_s, next));
            }
            None => left.retain(|other| other.chunk_tokens < shape.chunk_tokens || other.keep < shape.keep),
        }
        if left.is_empty() || played.len() == PLAYED {
            break;
        }
        next = best_of(problem, context, &left, &mut known);
    }
    played.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or(first, |(_, best)| best)
}

/// A pair with its steps, and what its pipelines take of a step on the mean, seconds.
type Judged = (f64, Shape, Vec<Step>);

/// Steps of a pair that were planned before, from the first on, with their seconds.
type Known = BTreeMap<(u64, u64), Vec<(f64, Step)>>;

/// Of some pairs the one whose steps take least: what its pipelines take of a step on the mean, seconds, and its steps. The time is infinite where none
/// fits; the first pair stays then.
fn best_of(problem: &Problem, context: &PlanContext<'_>, shapes: &[Shape], known: &mut Known) -> Judged {
    let n_steps = problem.workload.n_steps();
    // Seconds of so many steps of a pair.
    let mut of_steps = |shape: Shape, n: usize| -> f64 {
        let steps = known.entry((shape.chunk_tokens, shape.keep)).or_default();
        (steps.len()..n).for_each(|index| steps.push(step(problem, context, index, shape)));
        steps[..n].iter().map(|(seconds, _)| seconds).sum()
    };
    // The best of the first step comes first, so that most others are left early.
    let mut by_first: Vec<(f64, Shape)> =
        shapes.iter().map(|&shape| (of_steps(shape, 1.min(n_steps)), shape)).collect();
    by_first.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut best: Option<(f64, Shape)> = None;
    for (first_s, shape) in by_first {
        let least_s = best.map_or(f64::INFINITY, |(least_s, _)| least_s);
        let is_left = |total_s: f64| best.is_some() && total_s >= least_s;
        let (mut total_s, mut n) = (first_s, 1);
        while n < n_steps && !is_left(total_s) {
            n += 1;
            total_s = of_steps(shape, n);
        }
        if !is_left(total_s) {
            best = Some((total_s, shape));
        }
    }
    let (total_s, shape) = best.expect("there is a pair");
    let steps = known[&(shape.chunk_tokens, shape.keep)].iter().map(|(_, step)| step.clone()).collect();
    (total_s / hw::real(n_steps.max(1) as u64), shape, steps)
}

/// What is given, or the grid that memory allows.
fn shapes(problem: &Problem, context: &PlanContext<'_>) -> Result<Vec<Shape>, PlanError> {
    let whole = |name: &str| hw::whole(context.number(name, 0.0));
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

/// Seconds of a step in the shortest of its ways, and the step; the first of equal ones.
fn step(problem: &Problem, context: &PlanContext<'_>, index: usize, shape: Shape) -> (f64, Step) {
    let ways = ways(problem, index, shape).into_iter();
    let judged = ways.map(|step| (predicted(problem, context, index, &step), step));
    judged.min_by(|a, b| a.0.total_cmp(&b.0)).expect("a step has a way")
}

/// Seconds of the slowest pipeline of a step, by its order alone; infinite when its activations do not fit.
fn predicted(problem: &Problem, context: &PlanContext<'_>, index: usize, step: &Step) -> f64 {
    let mut steps = vec![Step::default(); problem.workload.n_steps()];
    steps[index] = step.clone();
    let plan = Plan { steps, ..heuristic(CARD.name, problem, Vec::new()).plan };
    let (pipelines, _) = pipelines(problem, &plan, index, context.cost);
    let mut longest = 0;
    for pipeline in &pipelines {
        let order = (problem.schedule.order)(pipeline);
        // Kept chunks keep their logits as well.
        let Ok(played) = play(&pipeline.with_logits(), &order) else { return f64::INFINITY };
        if played.peak_activation.iter().max() > pipeline.limit.as_ref() {
            return f64::INFINITY;
        }
        longest = longest.max(played.span);
    }
    hw::Span::from_ns(longest).to_seconds().get()
}

/// Ways of one step: sequences to data-parallel groups by work, then standalone chunks before, behind or between dependent ones. There is
/// one way without a pipeline, where nothing waits, and where all chunks are kept and none comes again.
fn ways(problem: &Problem, index: usize, shape: Shape) -> Vec<Step> {
    let sequences: Vec<(u32, u64)> = problem.workload.step(index).collect();
    let groups = deal_longest(problem, &sequences);
    let way = |place| Step::of_groups(groups.iter().map(|group| chunks(group, shape, place)).collect());
    let first = way(Standalone::First);
    let comes_again = first.groups.iter().flatten().any(|micro_batch| micro_batch.forward_only);
    if problem.layout.pp == 1 || !comes_again {
        return vec![first];
    }
    vec![first, way(Standalone::Last), way(Standalone::Between)]
}

fn chunks(sequences: &[(u32, u64)], shape: Shape, of: Standalone) -> Vec<MicroBatch> {
    let (long, short): (Vec<_>, Vec<_>) = sequences.iter().partition(|(_, tokens)| *tokens > shape.chunk_tokens);
    let sizes: Vec<u64> = short.iter().map(|(_, tokens)| *tokens).collect();
    let place = |sequence, from, tokens| Placement { sequence, from, tokens, place: Place::Sharded };
    let standalone = pack::best_fit_decreasing(&sizes, shape.chunk_tokens).into_iter().map(|bin| MicroBatch {
        sequences: bin.iter().map(|&item| place(short[item].0, 0, short[item].1)).collect(),
        ..MicroBatch::default()
    });
    let standalone: Vec<MicroBatch> = standalone.collect();
    let dependent: Vec<MicroBatch> =
        long.into_iter().flat_map(|(sequence, tokens)| dependent(sequence, tokens, shape, place)).collect();
    match of {
        Standalone::First => standalone.into_iter().chain(dependent).collect(),
        Standalone::Last => dependent.into_iter().chain(standalone).collect(),
        Standalone::Between => between(standalone, dependent),
    }
}

/// Standalone chunks in equal parts before the dependent ones that come again.
fn between(standalone: Vec<MicroBatch>, dependent: Vec<MicroBatch>) -> Vec<MicroBatch> {
    let n_again = dependent.iter().filter(|micro_batch| micro_batch.forward_only).count();
    let n_standalone = standalone.len();
    let mut fillers = standalone.into_iter();
    let mut micro_batches = Vec::with_capacity(n_standalone + dependent.len());
    let mut seen: BTreeSet<(u32, u64)> = BTreeSet::new();
    let mut n_gaps = 0;
    for micro_batch in dependent {
        let part = (micro_batch.sequences[0].sequence, micro_batch.sequences[0].from);
        if !seen.insert(part) {
            n_gaps += 1;
            // So many have come by the n-th gap, rounded up, that the last gap takes the rest.
            let n_due = (n_gaps * n_standalone).div_ceil(n_again);
            let n_come = n_standalone - fillers.len();
            micro_batches.extend(fillers.by_ref().take(n_due - n_come));
        }
        micro_batches.push(micro_batch);
    }
    micro_batches.extend(fillers);
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use engine::cost::roofline::Roofline;
    use engine::shard::{Casts, Framework, TorchModules};
    use engine::{CostModel, Estimate, Op};
    use train::problem::Launches;

    use super::*;
    use crate::train::policy::Value;

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

    #[test]
    fn chunks_are_those_under_which_all_steps_together_are_shortest() {
        // A first step of short sequences, and one of long ones: the first alone would choose otherwise.
        let lengths = [vec![1000; 16], [30_000, 500, 29_000, 700].repeat(4)].concat();
        let mut problem = super::super::tests::problem(lengths, 16, 4, 1, 32_768);
        (problem.layout.dp, problem.layout.pp) = (1, 4);
        let cost = Roofline::new(&problem.cluster);
        let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
        let shapes = shapes(&problem, &context).expect("a grid");
        let of_steps =
            |shape: Shape, n: usize| (0..n).map(|index| step(&problem, &context, index, shape).0).sum::<f64>();
        let (mean_s, found, steps) = best_of(&problem, &context, &shapes, &mut Known::new());
        assert_eq!(
            steps,
            [0, 1].map(|index| step(&problem, &context, index, found).1),
            "the steps are those of the pair"
        );
        let all = shapes.iter().map(|&shape| of_steps(shape, 2)).fold(f64::INFINITY, f64::min);
        assert!(all.is_finite() && (2.0 * mean_s / all - 1.0).abs() < 1e-12, "{mean_s} {all}");
        let by_first = |a: &&Shape, b: &&Shape| of_steps(**a, 1).total_cmp(&of_steps(**b, 1));
        let first = shapes.iter().min_by(by_first).expect("a grid");
        assert!(of_steps(found, 2) < of_steps(*first, 2), "{found:?} {first:?}");
    }

    /// Datasheet costs that count how often they are asked.
    struct Counted(Roofline, AtomicUsize);

    impl CostModel for Counted {
        fn elementary(&self, op: &Op) -> Estimate {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.elementary(op)
        }
    }

    #[test]
    fn a_pair_that_is_given_is_planned_once() {
        let mut problem = super::super::tests::problem([30_000, 500, 29_000, 700].repeat(8), 16, 4, 1, 32_768);
        (problem.layout.dp, problem.layout.pp) = (1, 4);
        let cost = Counted(Roofline::new(&problem.cluster), AtomicUsize::new(0));
        let given = [("chunk_tokens", 4096.0), ("keep", 1.0)];
        let parameters = given.map(|(name, value)| (name.to_owned(), Value::Number(value))).into();
        let context = PlanContext { cost: &cost, parameters };
        let shape = Shape { chunk_tokens: 4096, keep: 1 };
        for index in 0..2 {
            for way in ways(&problem, index, shape) {
                predicted(&problem, &context, index, &way);
            }
        }
        let of_every_way = cost.1.swap(0, Ordering::Relaxed);
        plan(&problem, &context).expect("a plan");
        assert!(of_every_way > 0);
        assert_eq!(cost.1.into_inner(), of_every_way);
    }

    #[test]
    fn no_given_pair_of_the_grid_is_much_faster_under_any_framework() {
        let modules = TorchModules {
            compiled: false,
            fused_norms: false,
            casts: Casts::Off,
            in_pieces: false,
            repeats_keys: true,
        };
        let lengths = [9000, 300, 700, 1500, 250, 4100, 800, 600, 2300, 400, 350, 900, 1200, 5000, 640, 128];
        for framework in [Framework::MegatronCore, Framework::Fsdp2(modules), Framework::DeepSpeed(modules)] {
            let mut problem = super::super::tests::problem(lengths.to_vec(), 16, 4, 1, 4096);
            (problem.layout.dp, problem.layout.cp, problem.layout.pp) = (1, 2, 2);
            problem.execution.framework = framework;
            problem.execution.launches = Launches { each: hw::Seconds::new(6e-6), ..Launches::UNSEEN };
            let (cost, topology) = (Roofline::new(&problem.cluster), Topology::of(&problem.cluster));
            let played = |parameters: BTreeMap<String, Value>| {
                let context = PlanContext { cost: &cost, parameters };
                let mut plan = plan(&problem, &context).expect("a plan").plan;
                _ = orders::complete(&problem, &mut plan, &cost);
                search::simulate(&problem, &plan, &context, &topology)
            };
            let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
            let given = shapes(&problem, &context).expect("a grid").into_iter().filter_map(|shape| {
                let parameters = [("chunk_tokens", shape.chunk_tokens), ("keep", shape.keep)];
                played(parameters.map(|(key, n)| (key.to_owned(), Value::Number(hw::real(n)))).into())
            });
            let (best, found) = (given.fold(f64::INFINITY, f64::min), played(BTreeMap::new()).expect("it fits"));
            assert!(found <= 1.02 * best, "{framework:?}: {found} s, {best} s given");
        }
    }

    /// Every list of so many standalone and dependent chunks that keeps the dependent ones in order.
    fn merged(standalone: &[MicroBatch], dependent: &[MicroBatch]) -> Vec<Vec<MicroBatch>> {
        let (Some((first, rest)), Some((head, tail))) = (standalone.split_first(), dependent.split_first()) else {
            return vec![standalone.iter().chain(dependent).cloned().collect()];
        };
        let begin = |with: &MicroBatch, lists: Vec<Vec<MicroBatch>>| {
            lists.into_iter().map(|list| std::iter::once(with.clone()).chain(list).collect()).collect::<Vec<_>>()
        };
        let mut all = begin(first, merged(rest, dependent));
        all.extend(begin(head, merged(standalone, tail)));
        all
    }

    #[test]
    fn standalone_chunks_are_put_where_few_legal_orders_are_shorter() {
        // One sequence of four chunks of which one is kept, and four that stand alone, equal: every list of theirs is tried.
        let tokens = [16_384, 4096, 4096, 4096, 4096];
        let mut problem = super::super::tests::problem(tokens.to_vec(), 5, 4, 1, 4096);
        problem.layout.dp = 1;
        problem.layout.pp = 4;
        let cost = Roofline::new(&problem.cluster);
        let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
        let shape = Shape { chunk_tokens: 4096, keep: 1 };
        let seconds = |step: &Step| predicted(&problem, &context, 0, step);
        let (_, found) = step(&problem, &context, 0, shape);
        let first = ways(&problem, 0, shape).swap_remove(0).groups.swap_remove(0);
        let lists = merged(&first[..4], &first[4..]);
        assert_eq!(lists.len(), 330, "eleven places for four");
        let mut all: Vec<f64> =
            lists.into_iter().map(|list| seconds(&Step::of_groups(vec![list]))).filter(|s| s.is_finite()).collect();
        all.sort_by(f64::total_cmp);
        let n_shorter = all.iter().filter(|other| **other < seconds(&found)).count();
        assert!(n_shorter * 10 <= all.len(), "{n_shorter} of {} are shorter", all.len());
        assert!(seconds(&found) <= 1.05 * all[0], "{} against {}", seconds(&found), all[0]);
    }
}
