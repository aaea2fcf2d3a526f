//! The hardware loop behind `calibrate`, `execute` and `validate`: plans, their task graphs, and both interpreters of them.

use std::collections::BTreeSet;

use calibrate::device::Device;
use calibrate::execute::{ExecuteError, Running};
use calibrate::family::{self, Domain};
use engine::play::{Case, Machine};
use engine::validation::{Execution, Validation, elementary};
use engine::verdict::Refused;
use engine::{CostModel, Op, Outcome, TaskGraph, Timeline};
use hw::topology::Topology;
use planner::train::chosen;
use planner::train::search::space::Candidate;
use planner::{Decision, PlanError};
use rayon::prelude::*;
use train::Problem;
use train::plan::{Plan, Searched};

use crate::kinds::training::run::{self as pipeline, Decided};
use scenario::training::{PolicyChoice, Scenario};

/// A policy's plan and the tasks of its first step.
pub struct PlannedStep {
    /// Policy.
    pub policy: String,
    /// What it was asked, with its layout.
    pub problem: Problem,
    /// What it decided.
    pub decision: Decision<Plan>,
    /// Tasks of the first step.
    pub graph: TaskGraph,
}

/// Plans of every policy of a scenario under a cost model, in the scenario's order; why a policy has none.
pub fn plans(scenario: &Scenario, cost: &dyn CostModel) -> Vec<(String, Result<PlannedStep, Refused>)> {
    scenario.policies.par_iter().map(|choice| (choice.name.clone(), plan(scenario, choice, cost))).collect()
}

/// The plan of one policy; why it has none.
pub fn plan(scenario: &Scenario, choice: &PolicyChoice, cost: &dyn CostModel) -> Result<PlannedStep, Refused> {
    let topology = Topology::of(&scenario.problem.cluster);
    let Decided { problem, mut decision, .. } = pipeline::decide(scenario, choice, cost, &topology)?;
    // A plan that is written carries what it is a plan of.
    decision.plan.origin = Some(scenario.head.origin.clone());
    let graph = train::lower::training::lower(&problem, &decision.plan, 0);
    Ok(PlannedStep { policy: choice.name.clone(), problem, decision, graph })
}

/// Elementary operations of plans, each once.
pub fn operations<'a>(planned: impl Iterator<Item = &'a PlannedStep>) -> BTreeSet<&'a Op> {
    planned.flat_map(|planned| planned.graph.ops.iter().flat_map(elementary).map(|(op, _)| op)).collect()
}

/// What to measure for some plans: the boxes around their operations.
pub fn domain<'a>(planned: impl Iterator<Item = &'a PlannedStep>) -> Domain {
    family::around(operations(planned).into_iter())
}

/// A step as the simulator plays it: the timeline, and the ends of the step's interval in seconds.
///
/// # Errors
/// When memory is too small.
pub fn predict(planned: &PlannedStep, cost: &dyn CostModel) -> Result<(Timeline, [f64; 2]), Refused> {
    let topology = Topology::of(&planned.problem.cluster);
    let machine = machine(&planned.problem, cost, &topology);
    let outcomes = engine::play::simulate_cases(&planned.graph, &machine, &[Case::Expected, Case::Low, Case::High]);
    let mut timelines = outcomes.into_iter().map(|outcome| match outcome {
        Outcome::Done(timeline) if timeline.span() >= hw::Span::LONGEST => {
            Err(Refused::infeasible("it takes more than 104 days, the longest that is simulated"))
        }
        Outcome::Done(timeline) => Ok(timeline),
        Outcome::OutOfMemory { allocation, needed, free, .. } => {
            Err(Refused::out_of_memory(format!("out of memory: `{allocation}` needs {needed} bytes, {free} are free")))
        }
        Outcome::Stuck { waiting } => Err(Refused::infeasible(format!("{} tasks wait for each other", waiting.len()))),
    });
    let mut next = || timelines.next().expect("three cases");
    let (expected, low, high) = (next()?, next()?, next()?);
    let seconds = |timeline: &Timeline| timeline.span().to_seconds().get();
    Ok((expected, [seconds(&low), seconds(&high)]))
}

/// Runs a plan's first step on a device.
///
/// # Errors
/// When the device fails or the plan does not fit.
pub fn run(
    planned: &PlannedStep,
    device: &mut dyn Device,
    cost: &dyn CostModel,
    runs: u64,
) -> Result<Execution, ExecuteError> {
    let topology = Topology::of(&planned.problem.cluster);
    let machine = machine(&planned.problem, cost, &topology);
    calibrate::execute::execute(&planned.graph, device, &machine, usize::try_from(runs).unwrap_or(1))
}

/// Rounds over the runs that are wanted, at most.
const PATIENCE: u64 = 2;

/// Runs first steps of several plans on a device, taking turns, until each has so many runs beside which the device was steady.
///
/// What ran before the device failed comes back, with the policy at which it failed; plans behind the first that did not even
/// begin are not there.
pub fn run_in_turn(
    planned: &[&PlannedStep],
    device: &mut dyn Device,
    cost: &dyn CostModel,
    runs: u64,
    progress: &dyn Fn(String),
) -> (Vec<Execution>, Option<(String, ExecuteError)>) {
    let topologies: Vec<Topology> = planned.iter().map(|planned| Topology::of(&planned.problem.cluster)).collect();
    let machines: Vec<Machine<'_>> =
        planned.iter().zip(&topologies).map(|(planned, topology)| machine(&planned.problem, cost, topology)).collect();
    let (mut running, mut failed) = (Vec::with_capacity(planned.len()), None);
    for (planned, machine) in planned.iter().zip(&machines) {
        progress(format!("warming up {}", planned.policy));
        match Running::begin(&planned.graph, device, machine) {
            Ok(begun) => running.push(begun),
            Err(error) => {
                failed = Some((planned.policy.clone(), error));
                break;
            }
        }
    }
    let best = |running: &[Running<'_>]| running.iter().map(Running::reference_s).fold(f64::INFINITY, f64::min);
    // A run beside which others used the device is repeated, within reason.
    'rounds: for round in 1..=PATIENCE * runs {
        let best = best(&running);
        for (running, planned) in running.iter_mut().zip(planned) {
            if running.n_steady(best) as u64 >= runs {
                continue;
            }
            progress(format!("run {round} of {runs}: {}", planned.policy));
            if let Err(error) = running.run(device) {
                failed = failed.or(Some((planned.policy.clone(), error.into())));
                break 'rounds;
            }
        }
    }
    let best = best(&running);
    let mut executions = Vec::with_capacity(running.len());
    for ((running, machine), planned) in running.into_iter().zip(&machines).zip(planned) {
        if running.n_runs() == 0 {
            break;
        }
        match running.finish(machine, best) {
            Ok(execution) => executions.push(execution),
            // Executions are in the order of plans, so none behind it may take its place.
            Err(error) => {
                failed = failed.or(Some((planned.policy.clone(), error)));
                break;
            }
        }
    }
    (executions, failed)
}

/// Prediction under a cost model against what a device did.
///
/// # Errors
/// When there is no prediction.
pub fn compare(planned: &PlannedStep, executed: &Execution, cost: &dyn CostModel) -> Result<Validation, Refused> {
    let (timeline, interval) = predict(planned, cost)?;
    Ok(engine::validation::compare(&planned.policy, &planned.graph, (&timeline, interval), executed, cost))
}

/// Why a plan from a file is not one of a scenario.
#[derive(Debug, thiserror::Error)]
pub enum WrongPlan {
    /// The scenario does not have its policy.
    #[error("the scenario in the plan has no policy `{0}`")]
    NoPolicy(String),
    /// The problem of its policy cannot be made.
    #[error(transparent)]
    NoProblem(#[from] PlanError),
    /// The scenario searches, and the plan is of no layout that it tries.
    #[error("the scenario searches, and none of its candidates has the layout, schedule and choices of this plan")]
    NotSearched,
    /// It breaks rules.
    #[error("{}", .0.join("; "))]
    Broken(Vec<String>),
    /// It does nothing.
    #[error("the plan has no step")]
    Empty,
}

/// The problem and tasks of a plan that was read from a file.
///
/// # Errors
/// When the plan is not one of this scenario.
pub fn of_file(scenario: &Scenario, plan: Plan) -> Result<PlannedStep, WrongPlan> {
    let Some(choice) = scenario.policies.iter().find(|choice| choice.name == plan.policy) else {
        return Err(WrongPlan::NoPolicy(plan.policy));
    };
    let (mut problem, _) = chosen::problem(&scenario.problem, choice)?;
    if let Some(space) = &scenario.search {
        let candidates = space.candidates(&problem);
        let is_planned = |one: &&Candidate| {
            let is_found = |found: &Searched| *found == Searched::of(&one.problem(&problem));
            (one.layout, one.schedule.name) == (plan.layout, &*plan.schedule) && plan.searched.iter().all(is_found)
        };
        problem = candidates.iter().find(is_planned).ok_or(WrongPlan::NotSearched)?.problem(&problem);
    }
    train::check::check(&problem, &plan).map_err(WrongPlan::Broken)?;
    if plan.steps.is_empty() {
        return Err(WrongPlan::Empty);
    }
    let graph = train::lower::training::lower(&problem, &plan, 0);
    Ok(PlannedStep { policy: plan.policy.clone(), problem, decision: Decision::plain(plan), graph })
}

const fn machine<'a>(problem: &Problem, cost: &'a dyn CostModel, topology: &'a Topology) -> Machine<'a> {
    let memory_bytes = problem.cluster.gpu.memory.0;
    Machine { cost, topology, memory_bytes, case: Case::Expected, speed_changes: &[] }
}
