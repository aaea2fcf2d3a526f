//! What steps take beside a slow node, for a run of days: with the plan that a policy has made for healthy nodes, and with the plan of `malleus`
//! (arXiv:2410.13333) that fits it, whose change takes the time in which its slices move.

use engine::CostModel;
use hw::Rank;
use hw::topology::Topology;
use train::Problem;
use train::long_run::slow::{Asked, Beside, Reaction, SlowNodes, Slowed};
use train::long_run::{Lasted, LongRun};
use train::plan::Plan;
use train::straggler::Straggler;

use super::chosen::Choice;
use super::policy::{PlanContext, PlanError, Value};
use super::{orders, policies, search};

/// The policy that plans around slow devices.
const REPLANS: &str = "malleus";

/// What comes of a run of days over steps of a plan that take so long. `choices` are those of the scenario, by whose names plans are called.
///
/// # Errors
/// As `beside`.
pub fn lasted(
    run: &LongRun,
    choices: &[Choice],
    (problem, plan, step_s): (&Problem, &Plan, f64),
    costs: (&dyn CostModel, &Topology),
) -> Result<Lasted, PlanError> {
    let Some(slow) = &run.slow_nodes else { return Ok(run.play(problem, step_s, None)) };
    let unnamed = Choice::default();
    let choice = choices.iter().find(|choice| choice.name == plan.policy).unwrap_or(&unnamed);
    let beside = beside(slow, choice, (problem, plan), costs)?;
    Ok(run.play(problem, step_s, Some(&beside)))
}

/// Steps of a row beside a slow node, over its healthy step, and what the job may do about it.
///
/// # Errors
/// When its plan is to change, and `malleus` has none for its layout.
fn beside(
    slow: &SlowNodes,
    choice: &Choice,
    (problem, plan): (&Problem, &Plan),
    (cost, topology): (&dyn CostModel, &Topology),
) -> Result<Beside, PlanError> {
    let asked = match slow.reaction {
        Asked::OfPolicy => Asked::Given(own(choice)),
        other => other,
    };
    let step = |problem: &Problem, plan: &Plan, index: usize| {
        let context = PlanContext { cost, parameters: choice.parameters.clone() };
        let graph = train::lower::training::lower(problem, plan, index);
        let timeline = search::play(problem, &graph, &context, topology);
        let why = "a step beside a slow node does not fit memory";
        let timeline = timeline.ok_or_else(|| PlanError::Infeasible(why.to_owned()))?;
        Ok::<f64, PlanError>(timeline.span().to_seconds().get())
    };
    let healthy_s = step(problem, plan, 0)?;
    let endured = (step(&with_slow_node(problem, slow.rate, 0), plan, 0)? / healthy_s).max(1.0);
    let replanned = match asked {
        Asked::Given(Reaction::Endure | Reaction::Restart) => None,
        _ => {
            let found = replanned(problem, slow.rate, choice, cost).and_then(|(problem, plan)| {
                let pause_s = hw::Span::from_ns(plan.steps[2].pause_ns).to_seconds().get();
                Ok((((step(&problem, &plan, 2)? - pause_s) / healthy_s).max(1.0), pause_s))
            });
            match (found, asked) {
                (Err(why), Asked::Given(_)) => return Err(why),
                (found, _) => found.ok(),
            }
        }
    };
    let slowed = Slowed { endured, replanned };
    let reactions = match asked {
        Asked::Given(reaction) => vec![reaction],
        _ => slowed.reactions().collect(),
    };
    Ok(Beside { slowed, reactions })
}

/// What a policy does by itself: `malleus` what its parameter says, others nothing.
fn own(choice: &Choice) -> Reaction {
    match choice.parameters.get("reaction") {
        _ if choice.policy != REPLANS => Reaction::Endure,
        Some(Value::Word(word)) if word == "none" => Reaction::Endure,
        Some(Value::Word(word)) if word == "restart" => Reaction::Restart,
        _ => Reaction::Replan,
    }
}

/// The problem with a node of slow devices, the last one, from a step on.
fn with_slow_node(problem: &Problem, rate: f64, from_step: usize) -> Problem {
    let n_gpus = problem.cluster.n_gpus();
    let ranks = (n_gpus - problem.cluster.gpus_per_node..n_gpus).map(Rank).collect();
    let mut slowed = problem.clone();
    slowed.execution.stragglers = vec![Straggler { ranks, rate, from_step, until_step: None }];
    slowed
}

/// Three steps of the first batch: healthy, slow under the old plan, and under the new one behind the change to it.
fn replanned(
    problem: &Problem,
    rate: f64,
    choice: &Choice,
    cost: &dyn CostModel,
) -> Result<(Problem, Plan), PlanError> {
    let mut slowed = with_slow_node(problem, rate, 1);
    let first: Vec<u64> = problem.workload.step(0).map(|(_, tokens)| tokens).collect();
    slowed.workload.lengths = first.repeat(3);
    slowed.workload.batch_size = first.len();
    let parameters = if choice.policy == REPLANS { choice.parameters.clone() } else { Default::default() };
    let context = PlanContext { cost, parameters };
    let policy = policies::named(REPLANS).expect("listed");
    let mut plan = policy.plan(&slowed, &context)?.plan;
    _ = orders::complete(&slowed, &mut plan, cost);
    Ok((slowed, plan))
}
