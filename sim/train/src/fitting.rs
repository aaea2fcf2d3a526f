//! Tokens of a micro-batch where the file says none, held against the player.
//!
//! `memory::usual_bucket` is what a step asks for, within what states and activations leave. The player charges more: logits as a loss holds them, buffers of
//! exchanges, a layer that is made again, what an allocator reserves, gradients that wait. Counting these beside it would be a second player. So full micro-batches
//! are lowered and played, and while they run out of memory their tokens are halved towards the most that fits. Unit: tokens of a rank.

use engine::cost::roofline::Roofline;
use engine::play::{Case, Machine};
use engine::{Outcome, TaskGraph};
use hw::topology::Topology;

use crate::lower::training::{self, mixed};
use crate::memory;
use crate::plan::{MicroBatch, PipelineShape, Place, Placement, Plan, Step};
use crate::problem::Problem;

/// Micro-batches for each rank of a pipeline after which every schedule has reached its peak (`memory::needs`).
const PER_RANK: usize = 3;
/// Sequences of a full micro-batch at most: shorter ones hold no more.
const SEQUENCES_MAX: u64 = 64;
/// Part of a micro-batch to which the most that fits is found.
const PRECISION: u64 = 256;

/// Tokens of a micro-batch where the file says none: what a step asks for, and no more than the player finds room for.
pub fn usual_bucket(problem: &Problem) -> u64 {
    let wished = memory::usual_bucket(problem);
    if problem.execution.unit_times.is_some() || !problem.execution.places.is_empty() || holds(problem, wished) {
        return wished;
    }
    let fits = most(wished, |tokens| holds(problem, tokens));
    // What leaves room for nothing is said where the step is played.
    if fits == 0 { wished } else { memory::bucket_within(problem, fits) }
}

/// Tokens of a micro-batch that pipelines of one shape hold, where all ranks are cut into such pipelines: at most so many.
pub fn most_in(problem: &Problem, shape: PipelineShape, wished: u64) -> u64 {
    let n = problem.layout.n_ranks() / (shape.tp * shape.pp);
    let own = mixed::shaped(problem, shape, n);
    let fits = |tokens| {
        let full = full(problem, tokens);
        let groups = vec![vec![micro_batch(&full); n_micro_batches(&own, tokens)]; n as usize];
        let step = Step { pipelines: vec![shape; n as usize], ..Step::of_groups(groups) };
        ends(&full, Plan::new("", &full, vec![step]), shape.pp)
    };
    if problem.execution.unit_times.is_some() || fits(wished) { wished } else { most(wished, fits) }
}

/// The most that fits, below what does not.
fn most(too_many: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut least, mut too_many) = (0, too_many);
    while too_many - least > (least / PRECISION).max(1) {
        let between = u64::midpoint(least, too_many);
        if fits(between) {
            least = between;
        } else {
            too_many = between;
        }
    }
    least
}

/// All sequences of a problem in one micro-batch.
fn micro_batch(full: &Problem) -> MicroBatch {
    let sequences = (0_u32..).zip(&full.workload.lengths);
    let place = |(sequence, &tokens)| Placement { sequence, from: 0, tokens, place: Place::Sharded };
    MicroBatch { sequences: sequences.map(place).collect(), ..MicroBatch::default() }
}

/// Whether a step of full micro-batches of so many tokens fits.
fn holds(problem: &Problem, tokens: u64) -> bool {
    let full = full(problem, tokens);
    let group = vec![micro_batch(&full); n_micro_batches(problem, tokens)];
    let plan = Plan::new("", &full, vec![Step::of_groups(vec![group; full.layout.dp as usize])]);
    ends(&full, plan, full.layout.pp)
}

/// Whether a plan of one step does not run out of memory, on pipelines of so many ranks.
fn ends(full: &Problem, plan: Plan, n_stages: u32) -> bool {
    !matches!(played(full, plan, n_stages, full.cluster.gpu.memory.0).1, Outcome::OutOfMemory { .. })
}

/// Task graph of a plan of one step on pipelines of so many ranks.
pub(crate) fn lowered(full: &Problem, mut plan: Plan, n_stages: u32) -> TaskGraph {
    if n_stages > 1 {
        let (found, of_group) = training::pipelines(full, &plan, 0, &Roofline::new(&full.cluster));
        plan.steps[0].orders = found.iter().map(|pipeline| full.schedule.ordered(pipeline)).collect();
        plan.steps[0].order_of = of_group;
    }
    training::lower(full, &plan, 0)
}

/// The same, played for its memory on devices of so many bytes.
pub(crate) fn played(full: &Problem, plan: Plan, n_stages: u32, memory_bytes: u64) -> (TaskGraph, Outcome) {
    let (cost, topology) = (Roofline::new(&full.cluster), Topology::of(&full.cluster));
    let graph = lowered(full, plan, n_stages);
    let machine = Machine { cost: &cost, topology: &topology, memory_bytes, case: Case::Expected, speed_changes: &[] };
    let outcome = engine::simulate(&graph, &machine);
    (graph, outcome)
}

/// The problem with sequences that fill one micro-batch, none longer than the longest.
fn full(problem: &Problem, tokens: u64) -> Problem {
    let mut full = problem.clone();
    let whole = tokens.saturating_mul(u64::from(problem.layout.cp)).max(1);
    let longest = problem.workload.lengths.iter().max().copied().unwrap_or(1);
    let length = longest.max(whole.div_ceil(SEQUENCES_MAX)).max(1);
    let n_whole = usize::try_from(whole / length).expect("few sequences");
    full.workload.lengths = vec![length; n_whole];
    full.workload.lengths.extend((whole % length > 0).then_some(whole % length));
    full.workload.batch_size = full.workload.lengths.len();
    full.bucket_tokens = tokens;
    full
}

/// Micro-batches of a replica that hold the tokens of a step: at least two where lengths differ, as packing leaves some room.
fn n_micro_batches(problem: &Problem, tokens: u64) -> usize {
    let most = PER_RANK * problem.micro_batch_group();
    if problem.layout.pp > 1 {
        return most;
    }
    let workload = &problem.workload;
    let of_step = |step: &[u64]| step.iter().sum::<u64>();
    let asked = workload.lengths.chunks(workload.batch_size.max(1)).map(of_step).max().unwrap_or(0);
    let of_rank = asked.div_ceil(u64::from(problem.layout.dp) * u64::from(problem.layout.cp));
    let are_alike = workload.lengths.iter().all(|length| *length == workload.lengths[0]);
    let least = if are_alike { 1 } else { 2 };
    usize::try_from(of_rank.div_ceil(tokens.max(1))).unwrap_or(most).clamp(least, most)
}
