//! From a checked scenario to a result: plan, check, lower, simulate, measure, for every policy in parallel.
//!
//! Results are collected by index, so the number of threads changes nothing outside `measured`.

use std::time::Instant;

use engine::play::{Case, Machine};
use engine::{CostModel, Outcome, Source, TaskGraph, Timeline};
use hw::topology::Topology;
use planner::train::compression::{self, Choice, Question};
use planner::train::search::space::Candidate;
use planner::train::search::{self, Effort, Found};
use planner::{Decision, PlanContext, PlanError, Policy};
use rayon::prelude::*;
use reports::{CostModelFacts, Measured, PlannerFacts, PolicyResult, RunResult};
use train::metrics::{self, Played, causes};
use train::{Plan, Problem};

use super::read::{PolicyChoice, Scenario};
use crate::costs;
use crate::kinds::{self, Kind, Planned, Run};
use crate::scenario::Head;

impl Kind for Scenario {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.policies.iter().map(|choice| choice.name.as_str()).collect()
    }

    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult {
        run(self, done).result
    }

    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run {
        run(self, done)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, String>> {
        let choice = self.policies.iter().find(|known| known.name == choice)?;
        Some(planned(self, choice))
    }

    fn strict_hull(&self) -> Option<bool> {
        Some(self.strict_hull)
    }

    fn training(&self) -> Option<&Scenario> {
        Some(self)
    }
}

/// Decides with a policy: the plan with its scenario, so that a device needs no other file.
fn planned(scenario: &Scenario, choice: &PolicyChoice) -> Result<Planned, String> {
    let cost = cost_model(scenario);
    let topology = Topology::of(&scenario.problem.cluster);
    let Decided { mut decision, found, .. } =
        decide(scenario, choice, cost.as_ref(), &topology).map_err(|why| why.to_string())?;
    decision.plan.origin = Some(scenario.head.origin.clone());
    let file = serde_json::to_string_pretty(&decision.plan).map_err(|error| error.to_string())?;
    let how = format!("{} steps by `{}` ({})", decision.plan.steps.len(), choice.name, decision.status.name());
    let words = found.as_ref().map(searched).unwrap_or_default();
    Ok(Planned { file: Some(file), words, how: Some(how), ..Planned::default() })
}

/// The best layout, the runner-up, and how sure it is.
fn searched(found: &Found) -> String {
    let ms = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
    let mut text = format!(
        "{}\n\nstep {} (lower bound {}, gap {:.1} %): {}\n\n{}\n",
        layout_words(found),
        ms(found.best.plan.step_s),
        ms(found.best.plan.bound_s),
        (1.0 - found.best.plan.bound_s / found.best.plan.step_s) * 100.0,
        found.best.plan.why,
        found.best.plan.candidate.to_toml(),
    );
    if let Some(other) = found.best.runner_up().map(|other| &other.plan) {
        text += &format!("runner-up: step {}: {}\n\n{}\n", ms(other.step_s), other.why, other.candidate.to_toml());
    }
    text
}

/// Cost model of a scenario.
#[must_use]
pub fn cost_model(scenario: &Scenario) -> Box<dyn CostModel> {
    costs::cost_model(&scenario.problem.cluster, scenario.profile.as_ref(), scenario.sustained_flops_ratio)
}

/// Runs every policy of a scenario; `done` is called as each finishes.
#[must_use]
pub fn run(scenario: &Scenario, done: &(dyn Fn(&str) + Sync)) -> Run {
    let cost = cost_model(scenario);
    let topology = Topology::of(&scenario.problem.cluster);
    let rows: Vec<Row> = scenario
        .policies
        .par_iter()
        .map(|choice| {
            let row = policy(scenario, choice, cost.as_ref(), &topology);
            done(&choice.name);
            row
        })
        .collect();
    let mut facts = CostModelFacts {
        profile: match (&scenario.problem.execution.unit_times, &scenario.profile) {
            (Some(_), _) => "units".to_owned(),
            (None, Some(profile)) => profile.name.clone(),
            (None, None) => "roofline".to_owned(),
        },
        free_parameters: scenario.free_parameters.clone(),
        ..CostModelFacts::default()
    };
    let mut source = Source::Measured;
    let (mut results, mut pictures) = (Vec::new(), Vec::new());
    for row in rows {
        facts.outside_hull_ratio = facts.outside_hull_ratio.max(row.outside_hull_ratio);
        facts.outside_hull.extend(row.outside_hull);
        source = source.max(row.source);
        pictures.extend(row.picture.map(|played| (row.result.policy.clone(), played)));
        results.push(row.result);
    }
    facts.outside_hull.sort();
    facts.outside_hull.dedup();
    facts.source = if scenario.profile.is_none() { Source::Datasheet } else { source }.name().to_owned();
    let time = |row: &PolicyResult| row.metrics.get("iteration_time_s").copied();
    let base = results.iter().find(|row| row.policy == scenario.head.baseline).and_then(time);
    let speedup_ratio = results.iter().filter_map(|row| Some((row.policy.clone(), base? / time(row)?))).collect();
    let result = RunResult { cost_model: facts, results, speedup_ratio, ..kinds::blank(&scenario.head) };
    let batch_size = scenario.problem.workload.batch_size;
    Run {
        result,
        pictures,
        lengths: scenario.problem.workload.lengths[..batch_size].to_vec(),
        device_memory_bytes: scenario.problem.cluster.gpu.memory.0,
    }
}

struct Row {
    result: PolicyResult,
    picture: Option<Played>,
    source: Source,
    outside_hull_ratio: f64,
    outside_hull: Vec<String>,
}

impl Row {
    fn failed(result: PolicyResult, status: &str, why: String) -> Self {
        let result = PolicyResult { status: status.to_owned(), why, ..result };
        Self { result, picture: None, source: Source::Measured, outside_hull_ratio: 0.0, outside_hull: Vec::new() }
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
pub fn problem(scenario: &Scenario, choice: &PolicyChoice) -> Result<(Problem, Option<Choice>), PlanError> {
    let mut problem = choice.problem(&scenario.problem);
    let Some(question) = &choice.compression else { return Ok((problem, None)) };
    let chosen = compression::choose(question, &problem).map_err(PlanError::Infeasible)?;
    problem.execution.experts.compression = Some(chosen.compression);
    Ok((problem, Some(chosen)))
}

/// Adds what compression does to a decision's words and figures, for the first micro-batch of the plan.
fn say_compression(
    problem: &Problem,
    question: &Question,
    chosen: &Choice,
    decision: &mut Decision<Plan>,
    cost: &dyn CostModel,
) {
    let first = decision.plan.steps.first().and_then(|step| step.groups.iter().flatten().next());
    let Some(micro_batch) = first.filter(|_| problem.layout.ep > 1) else { return };
    let judged = compression::judge(problem, chosen, micro_batch, cost);
    decision.notes.extend(compression::notes(question, chosen, &judged.plan, problem));
    decision.figures.extend(compression::figures(chosen, &judged));
}

/// Decides with a policy of a scenario; searches for the layout where the scenario asks for it.
///
/// # Errors
/// When the policy has no plan.
///
/// # Panics
/// When a policy made a plan that the checker refuses, which is a bug of the policy.
pub fn decide(
    scenario: &Scenario,
    choice: &PolicyChoice,
    cost: &dyn CostModel,
    topology: &Topology,
) -> Result<Decided, PlanError> {
    let policy = planner::train::policies::named(&choice.policy).expect("the scenario reader knows the table");
    let context = PlanContext { cost, parameters: choice.parameters.clone() };
    let (mut problem, compressed) = problem(scenario, choice)?;
    let mut found = None;
    if let Some(space) = &scenario.search {
        let best = search::search(&problem, policy, &context, space, topology, Effort::UntilProved, &|all, judge| {
            all.par_iter().map(judge).collect()
        })?;
        problem = best.best.plan.candidate.problem(&problem);
        found = Some(best);
    }
    let mut decision = policy.plan(&problem, &context).map_err(|error| named(policy, error))?;
    decision.plan.policy.clone_from(&choice.name);
    if !policy.weighs_stragglers() {
        decision.notes.extend(unweighed(&problem));
    }
    if let Some(orders) = planner::train::orders::complete(&problem, &mut decision.plan, cost) {
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
        decision = decision.proved_by(&found.best);
    }
    Ok(Decided { problem, decision, found })
}

/// A limit of a policy with the policy's name; what no plan could do is the problem's.
fn named(policy: &dyn Policy, error: PlanError) -> PlanError {
    match error {
        PlanError::Unsupported(why) => PlanError::Unsupported(format!("`{}`: {why}", policy.card().name)),
        other => other,
    }
}

/// What a policy that does not weigh stragglers says of them.
fn unweighed(problem: &Problem) -> Option<String> {
    let rates: Vec<_> = (0..problem.workload.n_steps()).map(|step| problem.rates(step)).collect();
    let most = rates.iter().max_by_key(|rates| rates.stragglers().len())?;
    let slowest = rates.iter().flat_map(|rates| rates.stragglers()).map(|(_, rate)| *rate).fold(1.0, f64::max);
    let (n, n_ranks) = (most.stragglers().len(), problem.layout.n_ranks());
    (n > 0).then(|| {
        format!("{n} of {n_ranks} GPUs straggle, up to {slowest} times slower: planned as if all were healthy")
    })
}

fn policy(scenario: &Scenario, choice: &PolicyChoice, cost: &dyn CostModel, topology: &Topology) -> Row {
    let begun = Instant::now();
    let mut result = PolicyResult { policy: choice.name.clone(), ..PolicyResult::default() };
    let Decided { problem, decision, found } = match decide(scenario, choice, cost, topology) {
        Ok(decided) => decided,
        Err(PlanError::Infeasible(why) | PlanError::Unsupported(why)) => return Row::failed(result, "infeasible", why),
        Err(PlanError::Budget(why)) => return Row::failed(result, "timeout", why),
    };
    let planner_wall_s = begun.elapsed().as_secs_f64();
    result.planner = Some(facts(&decision));
    let begun = Instant::now();
    let simulated = simulate(&problem, &decision, cost, topology);
    result.measured = Measured { planner_wall_s, simulate_wall_s: begun.elapsed().as_secs_f64() };
    let (steps, interval) = match simulated {
        Ok(simulated) => simulated,
        Err((status, why)) => return Row::failed(result, status, why),
    };
    let metrics = metrics::of_steps(&problem, &steps, cost);
    result.status = "ok".to_owned();
    result.why = found.iter().map(|found| layout_words(found) + "; ").chain([metrics.why.clone()]).collect();
    result.interval.insert("iteration_time_s".to_owned(), interval);
    result.metrics = metrics.values;
    let tokens_max = problem.bucket_tokens.max(causes::tokens_max(&decision.plan));
    result.metrics.extend(causes::of_steps(&problem, &decision.plan, &steps, tokens_max, cost).figures());
    Row {
        result,
        picture: steps.into_iter().next(),
        source: metrics.source,
        outside_hull_ratio: metrics.outside_hull_ratio,
        outside_hull: metrics.outside_hull.iter().map(|dimension| (*dimension).to_owned()).collect(),
    }
}

/// How a layout was found, in words.
#[must_use]
pub fn layout_words(found: &Found) -> String {
    let name = |candidate: &Candidate| {
        let layout = &candidate.layout;
        let degrees = [("tp", layout.tp), ("pp", layout.pp), ("dp", layout.dp), ("cp", layout.cp), ("ep", layout.ep)];
        let degrees: Vec<String> =
            degrees.iter().filter(|(_, n)| *n > 1).map(|(name, degree)| format!("{name} {degree}")).collect();
        format!("{}, {} × {} chunks", degrees.join(" "), candidate.schedule.name, layout.chunks)
    };
    let other = found.best.runner_up().map_or_else(String::new, |other| {
        let other = &other.plan;
        let more = (other.step_s / found.best.plan.step_s - 1.0) * 100.0;
        format!(", {more:.1}\u{a0}% faster than {}", name(&other.candidate))
    });
    format!(
        "best of {} layouts ({} too large for memory, {} simulated, the rest bounded above it): {}{other}",
        found.n_judged,
        found.n_too_large,
        found.n_simulated,
        name(&found.best.plan.candidate)
    )
}

fn facts(decision: &Decision<Plan>) -> PlannerFacts {
    PlannerFacts {
        objective: decision.objective(),
        bound: decision.bound(),
        gap_ratio: decision.gap(),
        status: decision.status.name().to_owned(),
        notes: decision.notes.clone(),
        figures: decision.figures.clone(),
        ..PlannerFacts::default()
    }
}

type Simulated = (Vec<Played>, [f64; 2]);

/// Plays every step as expected and at both ends of the interval.
fn simulate(
    problem: &Problem,
    decision: &Decision<Plan>,
    cost: &dyn CostModel,
    topology: &Topology,
) -> Result<Simulated, (&'static str, String)> {
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
        let n = hw::Tokens(n_steps as u64).as_f64();
        for (end, timeline) in ends.iter_mut().zip(&timelines[1..]) {
            *end += timeline.span().to_seconds().get() / n;
        }
        let timeline = timelines.swap_remove(0);
        steps.push(Played { graph, timeline });
    }
    Ok((steps, ends))
}

/// The timeline of a finished step, or why it did not finish.
fn finished(graph: &TaskGraph, outcome: Outcome, step_index: usize) -> Result<Timeline, (&'static str, String)> {
    match outcome {
        Outcome::Done(timeline) if timeline.span() >= hw::Span::LONGEST => {
            Err(("infeasible", format!("step {step_index} takes more than 104 days, the longest that is simulated")))
        }
        Outcome::Done(timeline) => Ok(timeline),
        Outcome::OutOfMemory { rank, allocation, needed, free, task, .. } => {
            let micro_batch = graph.tasks[task.0 as usize].micro_batch;
            let gib = |bytes: u64| hw::Bytes(bytes).as_f64() / 1_073_741_824.0;
            let why = format!(
                "step {step_index}, rank {}, micro-batch {micro_batch}: `{allocation}` needs {:.1} GiB, {:.1} GiB are free",
                rank.0,
                gib(needed),
                gib(free)
            );
            Err(("oom", why))
        }
        Outcome::Stuck { waiting } => panic!("lowering made a graph that cannot finish: {waiting:?}"),
    }
}
