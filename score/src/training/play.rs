//! Predicts a row: one step of equal micro-batches through the event engine, with the interval of the costs, and each stage's memory.

use engine::cost::{CostModel, Source};
use engine::play::{Case, Machine, Outcome};
use engine::task::Role;
use hw::Cluster;
use hw::topology::Topology;
use train::exchange_buffers;
use train::lower::training::{RESERVED, lower};
use train::metrics::Played;
use train::plan::{MicroBatch, Place, Placement, Plan, Step};
use train::problem::{Framework, Problem};
use train::schedule::Pipeline;

use super::dominant::Dominant;
use super::row::{Asked, Counted, Row, Run, Weighs};
use crate::reason::Reason;
use train::timed::{TimedStep, UNEXPLAINED};

/// Costs of a machine under a framework, which chooses the kernels.
pub type Costs<'c> = dyn Fn(&Cluster, Framework) -> Box<dyn CostModel> + Sync + 'c;

/// What is predicted of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    /// Time of a step, seconds; the middle of the interval where no value is chosen.
    pub step_s: f64,
    /// What is said of the step.
    pub says: Says,
    /// With every cost at its low and at its high end.
    pub interval: [f64; 2],
    /// Highest memory of a rank of every pipeline stage, bytes; none where the row leaves it open.
    pub memory: Vec<Option<f64>>,
    /// Time of forward, of backward and of the optimizer, where no pipeline mixes them.
    pub parts_s: Option<[f64; 3]>,
    /// Weakest source of the costs.
    pub source: Source,
    /// What takes the largest part of the step.
    pub dominant: Dominant,
    /// What dominates the step and the memory, in words.
    pub why: String,
}

/// What a prediction says of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// A value and an interval.
    Value,
    /// An interval alone, because the row leaves open what ran.
    Interval,
    /// Nothing, because only memory is known.
    Nothing,
}

/// Predicts a row; between both runs where it may have been one or the other.
///
/// # Panics
/// When lowering made a graph that cannot finish.
pub fn predict(asked: &Asked, costs: &Costs<'_>) -> Predicted {
    let run = match asked {
        Asked::Layout(run) => run,
        Asked::Stages(step) => return predict_stages(step),
        Asked::Counts(runs) => return predict_counts(runs, costs),
    };
    let found = predict_run(run, costs);
    match &run.other {
        Some(other) => found.or(&predict_run(&other.run, costs), other.weighs),
        None => found,
    }
}

/// A step of measured stages; its interval is what they leave open.
fn predict_stages(step: &TimedStep) -> Predicted {
    let step_s = step.span().to_seconds().get();
    Predicted {
        step_s,
        says: Says::Value,
        interval: UNEXPLAINED.map(|factor| step_s * factor),
        memory: Vec::new(),
        parts_s: None,
        source: Source::Measured,
        dominant: Dominant::Layers,
        why: step.why(),
    }
}

/// From the fewest GPUs whose memory holds the step to the most that have a micro-batch each. No value is chosen. Memory is said of a stage that has the same with
/// both.
fn predict_counts(runs: &[Run], costs: &Costs<'_>) -> Predicted {
    let most = predict_run(runs.last().expect("some number of GPUs"), costs);
    let fits = |found: &(&Run, Predicted)| {
        let there = hw::real(found.0.problem.cluster.gpu.memory.0);
        found.1.memory.iter().flatten().all(|bytes| *bytes <= there)
    };
    let fewest = runs.iter().map(|run| (run, predict_run(run, costs))).find(fits);
    let fewest = fewest.map_or_else(|| most.clone(), |(_, found)| found);
    let interval = [most.interval[0].min(fewest.interval[0]), most.interval[1].max(fewest.interval[1])];
    let step_s = (interval[0] * interval[1]).sqrt();
    let memory = fewest.memory.iter().zip(&most.memory).map(|(one, other)| one.filter(|_| one == other)).collect();
    let says = if fewest.says == Says::Value { Says::Interval } else { fewest.says };
    Predicted { step_s, says, interval, memory, ..fewest }
}

impl Predicted {
    /// One of two predictions, or their middle, with an interval that holds both.
    fn or(self, other: &Self, weighs: Weighs) -> Self {
        let [low, high] = [self.interval[0].min(other.interval[0]), self.interval[1].max(other.interval[1])];
        let step_s = match weighs {
            Weighs::Both => (self.step_s * other.step_s).sqrt(),
            Weighs::First => self.step_s,
        };
        Self { step_s, interval: [low, high], ..self }
    }
}

fn predict_run(asked: &Run, costs: &Costs<'_>) -> Predicted {
    let problem = problem(asked);
    let cost = costs(&problem.cluster, problem.execution.framework);
    let topology = Topology::of(&problem.cluster);
    let plan = plan(asked, &problem);
    let mut graph = lower(&problem, &plan, 0);
    if asked.counted == Counted::Allocated {
        let reserved = graph.label(RESERVED);
        graph.effects.retain(|effect| effect.label != reserved);
    }
    // What does not fit is a finding of memory, not of time.
    let machine = Machine {
        cost: cost.as_ref(),
        topology: &topology,
        memory_bytes: u64::MAX,
        case: Case::Expected,
        speed_changes: &[],
    };
    let mut timelines = Vec::with_capacity(3);
    for outcome in engine::play::simulate_cases(&graph, &machine, &[Case::Low, Case::Expected, Case::High]) {
        let Outcome::Done(timeline) = outcome else { panic!("a step with memory for all ends: {outcome:?}") };
        timelines.push(timeline);
    }
    let [low, step_s, high] = [0, 1, 2].map(|case| timelines[case].span().to_seconds().get() + asked.host_waits_s);
    let played = Played { graph, timeline: timelines.swap_remove(1) };
    // What was measured is what PyTorch's allocator gave.
    let unseen = exchange_buffers::of(&problem).0;
    let mut memory = vec![0.0_f64; problem.layout.pp as usize];
    for (index, lane) in played.graph.lanes.iter().enumerate() {
        let stage = &mut memory[lane.stage as usize];
        *stage = stage.max(hw::real(played.timeline.peak_memory_bytes(index) - unseen));
    }
    *memory.last_mut().expect("a stage") += asked.beside;
    let memory = memory.into_iter().map(Some).collect();
    let parts_s = (problem.layout.pp == 1 && asked.n_micro_batches == 1).then(|| parts(&played, step_s));
    let metrics = train::metrics::of_steps(&problem, &[played], cost.as_ref());
    let interval = metrics.parts.interval([low, step_s, high], asked.kernels, asked.host_off);
    let dominant = Dominant::of(&metrics.values);
    let says = if asked.is_whole { Says::Value } else { Says::Nothing };
    Predicted { step_s, says, interval, memory, parts_s, source: metrics.source, dominant, why: metrics.why }
}

/// When forward ends, what backward takes from there on, and the rest.
fn parts(played: &Played, step_s: f64) -> [f64; 3] {
    let end = |is_of: fn(Role) -> bool| {
        let tasks = played.graph.tasks.iter().zip(&played.timeline.end);
        let ends = tasks.filter(|(task, _)| is_of(task.role)).map(|(_, end)| *end);
        ends.max().map_or(0.0, |end| (end - hw::Time::ZERO).to_seconds().get())
    };
    let forward = end(|role| role == Role::Forward);
    let backward = end(|role| matches!(role, Role::Backward | Role::WeightGradient)) - forward;
    [forward, backward, step_s - forward - backward]
}

/// The problem with the sequences of one step.
fn problem(asked: &Run) -> Problem {
    let mut problem = asked.problem.clone();
    let n = (problem.layout.dp * asked.n_micro_batches * asked.micro_batch) as usize;
    problem.workload.lengths = vec![asked.tokens; n];
    problem.workload.batch_size = n;
    problem
}

/// Equal micro-batches in every group, cut over the context ranks.
fn plan(asked: &Run, problem: &Problem) -> Plan {
    let place = if problem.layout.cp > 1 { Place::Sharded } else { Place::Local(0) };
    let mut sequence = 0;
    let mut next = || {
        sequence += 1;
        Placement { sequence: sequence - 1, from: 0, tokens: asked.tokens, place }
    };
    let mut groups = Vec::with_capacity(problem.layout.dp as usize);
    for _ in 0..problem.layout.dp {
        let mut group = Vec::with_capacity(asked.n_micro_batches as usize);
        for _ in 0..asked.n_micro_batches {
            let sequences = (0..asked.micro_batch).map(|_| next()).collect();
            group.push(MicroBatch { sequences, ..MicroBatch::default() });
        }
        groups.push(group);
    }
    let mut plan = Plan::new("measured", problem, vec![Step::of_groups(groups)]);
    if problem.layout.pp > 1 {
        // The frameworks' orders are fixed before anything is timed, as if all passes took as long as their kind.
        let [pp, chunks] = [problem.layout.pp, problem.layout.chunks].map(|degree| degree as usize);
        let n_micro_batches = asked.n_micro_batches as usize;
        let group = problem.micro_batch_group();
        let pipeline = Pipeline { group, ..Pipeline::of_schedule(problem.schedule, pp, chunks, n_micro_batches) };
        let step = &mut plan.steps[0];
        step.orders = vec![(problem.schedule.order)(&pipeline)];
        step.order_of = vec![0; problem.layout.dp as usize];
    }
    plan
}

/// A row with what became of it.
pub type Scored = crate::scored::Scored<Row, Predicted, Reason>;
