//! Predicts a row: the parts of a step, and the step that they make; or a transfer.
//!
//! Every part has an interval of its own. That of the trainer's is training's: all costs at one end, of which little is left because kernels do not err together, and at
//! least what kernels, exchanges and the host leave open (`train::metrics::unexplained`). Answers have that of tokens in serving. A step's interval has all parts at
//! their low ends and all at their high ends, with what the orchestrator does besides. Units: seconds.

use engine::cost::{CostModel, Source};
use engine::play::{Case, Machine, Outcome, simulate_cases};
use engine::task::TaskGraph;
use engine::timeline::Timeline;
use hw::Seconds;
use hw::topology::Topology;
use rl::cycle::{CASES, Parts, Placement};
use rl::generation::{self, Shared};
use rl::orchestrator::Orchestrator;
use rl::{forward, weights};
use serve::fleet::Fleet;
use serve::metrics::unexplained::slowness;
use serve::router::{self, RouterKind};
use train::lower::training::lower;
use train::metrics::unexplained::{self, Kernels};
use train::metrics::{self, Metrics, Played};
use train::plan::Plan;
use train::problem::Problem;

use super::packs;
use super::row::Asked;
use super::step::{ENGINE, Step};
use super::transfer::Transfer;
use crate::play;

/// Seed of lengths.
const SEED: u64 = 0;

/// Costs of trainers by their framework, and of engines by their name.
#[derive(Clone, Copy)]
pub struct Costs<'c> {
    /// Of trainers.
    pub trainer: &'c crate::training::play::Costs<'c>,
    /// Of engines.
    pub engine: &'c play::Costs<'c>,
}

/// What is predicted of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    /// Time between two updates, or of a transfer.
    pub seconds: f64,
    /// From the low to the high ends of all parts.
    pub interval: [f64; 2],
    /// Parts of a step, as expected.
    pub parts: Option<Parts>,
    /// Weakest source of the costs.
    pub source: Source,
    /// What takes most of the step, in words.
    pub why: String,
}

/// Predicts a row.
pub fn predict(asked: &Asked, costs: &Costs<'_>) -> Predicted {
    match asked {
        Asked::Step(step) => predict_step(step, costs),
        Asked::Transfer(transfer) => predict_transfer(transfer, costs),
    }
}

fn predict_transfer(transfer: &Transfer, costs: &Costs<'_>) -> Predicted {
    let problem = &transfer.trainer;
    let cost = (costs.trainer)(&problem.cluster, problem.execution.framework);
    let [low, seconds, high] = CASES.map(|case| {
        weights::transfer_s(problem, transfer.bytes, (Placement::Split, Orchestrator::None), cost.as_ref(), case)
    });
    let why = format!("{:.1} GB over the ports of a node", hw::real(transfer.bytes.0) / 1e9);
    Predicted { seconds, interval: [low, high], parts: None, source: Source::Datasheet, why }
}

fn predict_step(step: &Step, costs: &Costs<'_>) -> Predicted {
    let answers = step.rollouts.draw(SEED);
    let mut trainer = Trainer::of(step, &answers, costs);
    let generator = Generator::of(step, answers, costs);
    let slowness = slowness(generator.alone_s);
    let mut found = [0.0; 3];
    for (end, seconds) in found.iter_mut().enumerate() {
        let parts = &mut trainer.parts[end];
        parts.generation = generator.alone_s[1] * slowness[end];
        *seconds = generator.step_s(parts, slowness[end]);
    }
    let [low, seconds, high] = found;
    let parts = trainer.parts[1];
    let source = generator.source.max(trainer.metrics.source);
    Predicted { seconds, interval: [low, high], parts: Some(parts), source, why: why(&parts, &trainer.metrics) }
}

/// What takes most of a step.
fn why(parts: &Parts, metrics: &Metrics) -> String {
    if parts.generation > parts.trainer() { "answers".to_owned() } else { format!("the trainer: {}", metrics.why) }
}

/// Answers of a step.
struct Generator<'s> {
    step: &'s Step,
    answers: Vec<u32>,
    fleet: Fleet,
    /// Time of a batch alone, at the low end of the costs, as expected and at the high end.
    alone_s: [f64; 3],
    source: Source,
}

impl<'s> Generator<'s> {
    fn of(step: &'s Step, answers: Vec<u32>, costs: &Costs<'_>) -> Self {
        let fleets = CASES.map(|case| play::fleet(&step.generator, ENGINE, costs.engine, case));
        let requests = generation::requests(&step.rollouts, &answers, 1, Seconds::ZERO, step.block_tokens());
        let alone = |fleet: &Fleet| generation::alone(fleet, &requests, in_turn(), SEED).seconds;
        let alone_s = fleets.each_ref().map(|(fleet, _)| alone(fleet));
        let [_, (fleet, source), _] = fleets;
        Self { step, answers, fleet, alone_s, source }
    }

    /// Time between two updates where the engine takes so many times as long.
    fn step_s(&self, parts: &Parts, slowness: f64) -> f64 {
        let Step { placement, off_policy, .. } = *self.step;
        if placement == Placement::Colocated || off_policy == 0 {
            return parts.step(placement, off_policy);
        }
        let (rollouts, block_tokens) = (&self.step.rollouts, self.step.block_tokens());
        let shared = Shared {
            rollouts,
            answers: &self.answers,
            fleet: &self.fleet,
            router: in_turn(),
            seed: SEED,
            block_tokens,
        };
        shared.step(parts, off_policy, slowness).0
    }
}

/// NeMo-RL sends prompts to its engines in turn, or an equal share of the batch to each.
fn in_turn() -> &'static RouterKind {
    router::named("round-robin").expect("listed")
}

/// What the trainer does in a step.
struct Trainer {
    /// At the low end, as expected, and at the high end.
    parts: [Parts; 3],
    /// Of the first optimizer step.
    metrics: Metrics,
}

impl Trainer {
    fn of(step: &Step, answers: &[u32], costs: &Costs<'_>) -> Self {
        let problem = with_sequences(step, answers);
        let cost = (costs.trainer)(&problem.cluster, problem.execution.framework);
        let cost = cost.as_ref();
        let (updates, metrics) = updates(&problem, step, cost);
        let log_probabilities = log_probabilities(&problem, step, cost);
        let open = metrics.parts.half_width(Kernels::OfOtherAge, unexplained::HOST);
        let [updates, log_probabilities] = [updates, log_probabilities].map(|ends| narrowed(ends, open));
        let bytes = weights::moved(&problem);
        let both = Problem { cluster: step.both.clone(), ..problem.clone() };
        let between = (costs.trainer)(&both.cluster, both.execution.framework);
        let rules = step.rules();
        let parts = [0, 1, 2].map(|end: usize| {
            let mut parts = Parts {
                log_probabilities: log_probabilities[end],
                training: updates[end],
                weights: weights::transfer_s(
                    &both,
                    bytes,
                    (rules.placement, rules.orchestrator),
                    between.as_ref(),
                    CASES[end],
                ),
                switch: switch_s(&problem, step, cost, end),
                ..Parts::default()
            };
            rules.orchestrator.add_to(&mut parts, &problem, rules.share(), end);
            parts
        });
        Self { parts, metrics }
    }
}

/// What trainer and engine send to the host and take back where they share their GPUs, one after the other.
fn switch_s(problem: &Problem, step: &Step, cost: &dyn CostModel, end: usize) -> f64 {
    match step.placement {
        Placement::Colocated => {
            weights::switch_s(problem, step.rules().orchestrator, cost, end)
                + weights::out_and_back_s(step.engine_bytes(), cost, CASES[end])
        }
        Placement::Split => 0.0,
    }
}

/// Low end, middle and high end where kernels do not err together, and at least so wide.
fn narrowed(at: [f64; 3], open: f64) -> [f64; 3] {
    let [low, high] = unexplained::around(at, open);
    [low, at[1], high]
}

/// The trainer's problem with prompts and answers as its sequences.
fn with_sequences(step: &Step, answers: &[u32]) -> Problem {
    let mut problem = step.trainer.clone();
    let prompt = u64::from(step.rollouts.prompt);
    problem.workload.lengths = answers.iter().map(|answer| prompt + u64::from(*answer)).collect();
    problem.workload.batch_size = step.update as usize;
    problem
}

/// Time of all optimizer steps at the low end, as expected and at the high end, and what the first one is made of.
fn updates(problem: &Problem, step: &Step, cost: &dyn CostModel) -> ([f64; 3], Metrics) {
    let plan = packs::plan(problem, step.update as usize, step.pack_tokens[0]);
    let mut seconds = [0.0; 3];
    let mut first = None;
    for index in 0..plan.steps.len() {
        let (graph, timelines) = update(problem, &plan, index, cost);
        for (sum, timeline) in seconds.iter_mut().zip(&timelines) {
            *sum += timeline.span().to_seconds().get();
        }
        if first.is_none() {
            let [_, timeline, _] = timelines;
            first = Some(metrics::of_steps(problem, &[Played { graph, timeline }], cost));
        }
    }
    (seconds, first.expect("a batch has an optimizer step"))
}

/// One optimizer step at every case.
fn update(problem: &Problem, plan: &Plan, index: usize, cost: &dyn CostModel) -> (TaskGraph, [Timeline; 3]) {
    let graph = lower(problem, plan, index);
    let topology = Topology::of(&problem.cluster);
    // Whether it fits is not asked: it ran.
    let machine =
        Machine { cost, topology: &topology, memory_bytes: u64::MAX, case: Case::Expected, speed_changes: &[] };
    let timelines: Vec<Timeline> = simulate_cases(&graph, &machine, &CASES).into_iter().map(done).collect();
    (graph, timelines.try_into().expect("three cases"))
}

fn done(outcome: Outcome) -> Timeline {
    match outcome {
        Outcome::Done(timeline) => timeline,
        outcome => panic!("a step with memory for all ends: {outcome:?}"),
    }
}

/// Time of both log probabilities of all sequences at the low end, as expected and at the high end, with the reference's weights on their way in and out.
fn log_probabilities(problem: &Problem, step: &Step, cost: &dyn CostModel) -> [f64; 3] {
    let plan = packs::plan(problem, problem.workload.lengths.len(), step.pack_tokens[1]);
    let forwards = forward::forward_s(problem, &plan, cost).expect("pipelines of one shape");
    let n_forwards = f64::from(step.rules().n_forwards);
    [0, 1, 2].map(|end: usize| n_forwards * forwards[end] + weights::reference_s(problem, cost, CASES[end]))
}
