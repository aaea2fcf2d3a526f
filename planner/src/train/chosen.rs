//! A policy of a scenario from its choice to what is simulated: the problem that it is asked, its plan checked and ordered, every step played.
//!
//! Units: seconds, bytes. Invariant: a plan that leaves here passes `train::check`.

mod named;

use std::collections::BTreeMap;

use engine::play::{Case, Machine};
use engine::verdict::Refused;
use engine::{CostModel, Outcome, TaskGraph, Timeline};
use hw::topology::Topology;
use train::layout::ContextExchange;
use train::long_run::{Lasted, LongRun};
use train::metrics::Played;
use train::plan::Searched;
use train::problem::Recompute;
use train::schedule::{Schedule, chunks_of};
use train::straggler::Rates;
use train::{Plan, Problem};
use train::{host_memory, memory};

use super::compression::{self, Question};
use super::policies;
use super::policy::{PlanContext, PlanError, Value};
use super::search::space::Space;
use super::search::{self, Each, Effort, Found, Kept};
use super::slow_nodes;
use crate::proof::Decision;
pub use named::{fields, layout_words};

/// A policy that a scenario runs.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Name in results: the policy's own, or the variant's.
    pub name: String,
    /// Name in the table of policies.
    pub policy: String,
    /// Parameters, checked against the card.
    pub parameters: BTreeMap<String, Value>,
    /// Pipeline schedule, where it is not the scenario's.
    pub schedule: Option<&'static Schedule>,
    /// Chunks per pipeline rank, where they are not the scenario's.
    pub chunks: Option<u32>,
    /// Context degree, where it is not the scenario's; the data-parallel degree takes what remains.
    pub cp: Option<u32>,
    /// Exchange inside context groups, where it is not the scenario's.
    pub exchange: Option<ContextExchange>,
    /// Activation recompute, where it is not the scenario's.
    pub recompute: Option<Recompute>,
    /// Merging of similar tokens before the all-to-all.
    pub compression: Option<Question>,
    /// Layers of every stage that recompute, where it is not the scenario's.
    pub recompute_layers: Option<u32>,
}

impl Choice {
    /// The problem that this policy is asked, without its hash functions.
    pub fn problem(&self, problem: &Problem) -> Problem {
        let mut problem = problem.clone();
        problem.layout.exchange = self.exchange.unwrap_or(problem.layout.exchange);
        let execution = &mut problem.execution;
        execution.recompute = self.recompute.unwrap_or(execution.recompute);
        execution.recompute_layers = self.recompute_layers.unwrap_or(execution.recompute_layers);
        if let Some(cp) = self.cp {
            let ranks = problem.layout.dp * problem.layout.cp;
            problem.layout.cp = cp;
            problem.layout.dp = ranks / cp.max(1);
        }
        let schedule = self.schedule.filter(|_| problem.layout.pp > 1);
        problem.schedule = schedule.unwrap_or(problem.schedule);
        let wanted = self.chunks.unwrap_or_else(|| match schedule {
            Some(schedule) => u32::try_from(schedule.n_chunks).expect("few chunks"),
            None => problem.layout.chunks,
        });
        problem.layout.chunks = chunks_of(problem.schedule, problem.layout.pp, wanted);
        problem
    }
}

/// What a policy decided for a scenario.
pub struct Decided {
    /// The problem, with the layout that was given or found.
    pub problem: Problem,
    /// The plan and what is known about it.
    pub decision: Decision<Plan>,
    /// How the layout was found.
    pub found: Option<Found>,
}

/// The problem that a policy is asked, with the hash functions that merge its tokens where the scenario compresses its all-to-all.
///
/// # Errors
/// When no number of functions is good enough.
pub fn problem(of: &Problem, choice: &Choice) -> Result<(Problem, Option<compression::Choice>), PlanError> {
    let mut problem = choice.problem(of);
    let Some(question) = &choice.compression else { return Ok((problem, None)) };
    let chosen = compression::choose(question, &problem).map_err(|refused| PlanError::Infeasible(refused.why))?;
    problem.execution.experts.compression = Some(chosen.compression);
    Ok((problem, Some(chosen)))
}

/// Adds what compression does to a decision's words and figures, for the first micro-batch of the plan.
fn say_compression(
    problem: &Problem,
    question: &Question,
    chosen: &compression::Choice,
    decision: &mut Decision<Plan>,
    cost: &dyn CostModel,
) {
    let first = decision.plan.steps.first().and_then(|step| step.groups.iter().flatten().next());
    let Some(micro_batch) = first.filter(|_| problem.layout.ep > 1) else { return };
    let judged = compression::judge(problem, chosen, micro_batch, cost);
    decision.notes.extend(compression::notes(question, chosen, &judged.plan, problem));
    decision.figures.extend(compression::figures(chosen, &judged));
}

/// Decides with a policy; searches for the layout where there is a space of them, whose candidates `each` judges, perhaps at once.
///
/// # Errors
/// When the policy has no plan.
///
/// # Panics
/// When a policy made a plan that the checker refuses, which is a bug of the policy.
pub fn decide(
    asked: (&Problem, Option<&Space>),
    choice: &Choice,
    (cost, topology): (&dyn CostModel, &Topology),
    each: Each<'_>,
) -> Result<Decided, PlanError> {
    let policy = policies::named(&choice.policy).expect("the scenario reader knows the table");
    let context = PlanContext { cost, parameters: choice.parameters.clone() };
    if asked.1.is_none() {
        fits(asked.0)?;
    }
    let (mut problem, compressed) = problem(asked.0, choice)?;
    let mut found = None;
    if let Some(space) = asked.1 {
        let sought: (&Space, Kept<'_>) =
            (space, &|laid_out, plan, step_s| kept(space, choice, (laid_out, plan, step_s), cost));
        let best = search::search(&problem, policy, &context, sought, topology, (Effort::UntilProved, each))?;
        problem = best.best.plan.candidate.problem(&problem);
        found = Some(best);
    }
    let mut decision = policy.plan(&problem, &context).map_err(|error| error.of(policy.card().name))?;
    decision.plan.policy.clone_from(&choice.name);
    if !policy.weighs_stragglers() {
        let rates: Vec<Rates> = (0..problem.workload.n_steps()).map(|step| problem.rates(step)).collect();
        decision.notes.extend(unweighed(&rates, problem.layout.n_ranks()));
    }
    if let Some(orders) = super::orders::complete(&problem, &mut decision.plan, cost) {
        decision = decision.proved_by(&orders);
        decision.status = orders.status;
    }
    if let Err(findings) = train::check::check(&problem, &decision.plan) {
        panic!("policy `{}` made a broken plan: {}", choice.name, findings.join("; "));
    }
    if let (Some(chosen), Some(question)) = (&compressed, &choice.compression) {
        say_compression(&problem, question, chosen, &mut decision, cost);
    }
    if let Some(found) = &found {
        decision.plan.searched = Some(Searched::of(&problem));
        decision = decision.proved_by(&found.best);
        decision.notes.extend(named::front_words(found));
    }
    Ok(Decided { problem, decision, found })
}

/// States of a layout that is written leave room, whatever policies put beside them.
fn fits(problem: &Problem) -> Result<(), PlanError> {
    let is_timed = problem.execution.unit_times.is_none();
    let found = if is_timed { memory::fits(problem) } else { Ok(()) };
    found.map_err(|refused| PlanError::OutOfMemory(refused.why))
}

/// Tokens that a run of days keeps over steps of a policy's plan, as a search has it.
fn kept(
    space: &Space,
    choice: &Choice,
    planned: (&Problem, &Plan, f64),
    cost: &dyn CostModel,
) -> Result<f64, PlanError> {
    let run = space.run.as_ref().expect("a run of days is sought");
    let topology = Topology::of(&planned.0.cluster);
    let lasted = slow_nodes::lasted(run, (&choice.policy, &choice.parameters), planned, (cost, &topology))?;
    Ok(lasted.values[space.objective.metric()])
}

/// What comes of a run of days over steps of a plan that take so long. `choices` are those of the scenario, by whose names plans are called.
///
/// # Errors
/// When nothing of the run is kept, or a plan beside a slow node cannot be had.
pub fn lasted(
    run: &LongRun,
    choices: &[Choice],
    planned: (&Problem, &Plan, f64),
    costs: (&dyn CostModel, &Topology),
) -> Result<Lasted, PlanError> {
    let unnamed = Choice::default();
    let choice = choices.iter().find(|choice| choice.name == planned.1.policy).unwrap_or(&unnamed);
    slow_nodes::lasted(run, (&choice.policy, &choice.parameters), planned, costs)
}

/// What a policy that does not weigh stragglers says of them, in words; their rates by step.
pub fn unweighed(rates: &[Rates], n_ranks: u32) -> Option<String> {
    let most = rates.iter().max_by_key(|rates| rates.stragglers().len())?;
    let slowest = rates.iter().flat_map(|rates| rates.stragglers()).map(|(_, rate)| *rate).fold(1.0, f64::max);
    let n = most.stragglers().len();
    (n > 0).then(|| {
        format!("{n} of {n_ranks} GPUs straggle, up to {slowest} times slower: planned as if all were healthy")
    })
}

/// Tokens per dollar of a row with these metrics, where its GPUs have a price.
pub fn tokens_per_usd(metrics: &BTreeMap<String, f64>) -> Option<(String, f64)> {
    let of = |key: &str| metrics.get(key).copied();
    let tokens = of("tokens_per_s")? * of("iteration_time_s")?;
    Some(("tokens_per_usd".to_owned(), tokens / of("cost_usd_per_step")?))
}

/// The best layout of a problem, the runner-up, the front, and how sure it is.
pub fn searched(problem: &Problem, found: &Found) -> String {
    let ms = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
    let mut text = format!(
        "{}\n\nstep {} (lower bound {}, gap {:.1} %): {}\n\n{}\n",
        layout_words(problem, found),
        ms(found.best.plan.step_s),
        ms(found.best.plan.bound_s),
        (1.0 - found.best.plan.bound_s / found.best.plan.step_s) * 100.0,
        found.best.plan.why,
        found.best.plan.candidate.to_toml(problem),
    );
    if let Some(other) = found.best.runner_up().map(|other| &other.plan) {
        text +=
            &format!("runner-up: step {}: {}\n\n{}\n", ms(other.step_s), other.why, other.candidate.to_toml(problem));
    }
    for line in named::front_words(found) {
        text += &format!("{line}\n");
    }
    text
}

/// First steps as expected, and the ends of the interval of their mean.
pub type Simulated = (Vec<Played>, [f64; 2]);

/// Plays every step as expected and at both ends of the interval.
///
/// # Errors
/// When a step does not fit the memory of devices or hosts, or the span of what is simulated.
///
/// # Panics
/// When lowering made a graph that cannot finish.
pub fn simulate(
    problem: &Problem,
    decision: &Decision<Plan>,
    cost: &dyn CostModel,
    topology: &Topology,
) -> Result<Simulated, Refused> {
    let n_steps = decision.plan.steps.len();
    let (mut steps, mut ends) = (Vec::with_capacity(n_steps), [0.0; 2]);
    for step_index in 0..n_steps {
        let graph = train::lower::training::lower(problem, &decision.plan, step_index);
        let memory_bytes = problem.cluster.gpu.memory.0;
        let machine = Machine { cost, topology, memory_bytes, case: Case::Expected, speed_changes: &[] };
        let mut timelines = Vec::with_capacity(3);
        for outcome in engine::play::simulate_cases(&graph, &machine, &[Case::Expected, Case::Low, Case::High]) {
            timelines.push(finished(&graph, outcome, step_index)?);
        }
        let n = hw::real(n_steps as u64);
        for (end, timeline) in ends.iter_mut().zip(&timelines[1..]) {
            *end += timeline.span().to_seconds().get() / n;
        }
        let timeline = timelines.swap_remove(0);
        steps.push(Played { graph, timeline });
    }
    host_memory::of_steps(problem, steps.iter().map(|step| (&step.graph, &step.timeline))).fits(problem)?;
    Ok((steps, ends))
}

/// The timeline of a finished step, or why it did not finish.
fn finished(graph: &TaskGraph, outcome: Outcome, step_index: usize) -> Result<Timeline, Refused> {
    match outcome {
        Outcome::Done(timeline) if timeline.span() >= hw::Span::LONGEST => Err(Refused::infeasible(format!(
            "step {step_index} takes more than 104 days, the longest that is simulated"
        ))),
        Outcome::Done(timeline) => Ok(timeline),
        Outcome::OutOfMemory { rank, allocation, needed, free, task, .. } => {
            let micro_batch = graph.tasks[task.0 as usize].micro_batch;
            let gib = |bytes: u64| hw::real(bytes) / hw::GIB;
            let why = format!(
                "step {step_index}, rank {}, micro-batch {micro_batch}: `{allocation}` needs {:.1} GiB, {:.1} GiB are free",
                rank.0,
                gib(needed),
                gib(free)
            );
            Err(Refused::out_of_memory(why))
        }
        Outcome::Stuck { waiting } => panic!("lowering made a graph that cannot finish: {waiting:?}"),
    }
}
