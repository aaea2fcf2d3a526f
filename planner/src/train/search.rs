//! Search for the best layout: every legal combination of degrees, micro-batch, schedule, sharding, recompute and offload is
//! judged by a lower bound, and the promising ones are simulated until no bound is below the best step found.
//!
//! The bound (`bound.rs`) is never above the simulated step of the same layout, so the search returns what simulating
//! everything would return; a property test holds this. Layouts that cannot fit in memory are dropped before, by an
//! amount that they need at least.
//!
//! The objective is a step's seconds, or its dollars where layouts take more or fewer nodes: the bound on seconds is one on dollars as
//! well. Where a run of days is what counts, its failures are played over the steps of a layout. The bound has restarts
//! and waits for nodes, which are those of every layout. A front of objective and memory is found the same way: what is left out has both bounds above some layout that was simulated.

pub mod bound;
mod runs;
pub mod space;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use engine::play::{Case, Machine};
use engine::{Outcome, TaskGraph, Timeline};
use hw::Cluster;
use hw::topology::Topology;
use train::host_memory;
use train::long_run::Job;
use train::metrics::{self, Played};
use train::problem::Problem;
use train::{Plan, lower};

use crate::proof::{self, Bound, Decision, Status};
use crate::train::objective::Objective;
use crate::train::orders;
use crate::train::policy::{PlanContext, PlanError, Policy};
use bound::{Dropped, Judge, Least};
use engine::stop;
use space::{Candidate, Space};

/// A simulated candidate.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// Layout.
    pub candidate: Candidate,
    /// Mean step time over the workload's steps, seconds.
    pub step_s: f64,
    /// Its lower bound, seconds.
    pub bound_s: f64,
    /// Memory of the fullest rank, bytes.
    pub peak_bytes: u64,
    /// What is ranked, to be few: seconds or dollars of a step, or of a token that a run of days keeps.
    pub value: f64,
    /// What dominates its step, in words; of the best and the runner-up.
    pub why: String,
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Best layout, with its own lower bound and the best of the others that were simulated.
    pub best: Decision<Simulated>,
    /// What the scenario has where nothing is searched.
    pub own: Candidate,
    /// What was sought.
    pub objective: Objective,
    /// Layouts that no other one beats in both objective and memory, the best one first; empty where nobody asked.
    pub front: Vec<Simulated>,
    /// Context degrees that were looked at.
    pub context_degrees: Vec<u32>,
    /// Legal layouts that were judged.
    pub n_judged: usize,
    /// Of these, dropped because they cannot fit.
    pub n_too_large: usize,
    /// Of these, dropped because the policy has no plan for them.
    pub n_refused: usize,
    /// Of these, simulated; the rest has a bound above the best step.
    pub n_simulated: usize,
    /// Layouts whose bound is below the best step, and which a search that was stopped did not simulate.
    pub n_open: usize,
}

/// How far to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Stop as soon as no bound is below the best step: the result is the optimum.
    UntilProved,
    /// Simulate everything that may fit; for tests of the bound.
    Everything,
}

/// Candidates that are judged side by side; fixed, so that the number of threads changes nothing.
const BATCH: usize = 8;

/// Does each of so many jobs, by their index; the caller decides in what order and on how many threads.
pub type Each<'a> = &'a (dyn Fn(usize, &(dyn Fn(usize) + Sync)) + Sync);

/// Tokens that a run of days keeps over steps of a plan that take so many seconds: in a second or for a dollar, as the space has it.
pub type Kept<'a> = &'a (dyn Fn(&Problem, &Plan, f64) -> Result<f64, PlanError> + Sync);

/// What became of a candidate that was looked at closely.
#[derive(Clone, Debug)]
enum Tried {
    /// Its closer bound is enough.
    Outdone,
    /// Everything was to end before it was known.
    Ended,
    /// The policy has no plan for it.
    Refused(PlanError),
    /// It was simulated.
    Played {
        /// Lower bound on its step, seconds.
        bound_s: f64,
        /// What is ranked, the step in seconds and memory of the fullest rank in bytes, if it fits.
        fits: Option<(f64, f64, u64)>,
    },
}

/// What became of candidates that are no answer.
#[derive(Clone, Debug, Default)]
struct Dropouts {
    /// Need too much memory by what they need at least.
    n_too_large: usize,
    /// Ran out of memory as they were simulated.
    n_ran_out: usize,
    /// Why the policy has no plan, and for how many.
    refused: BTreeMap<String, usize>,
}

impl Dropouts {
    fn refuse(&mut self, policy: &dyn Policy, why: PlanError) {
        *self.refused.entry(why.of(policy.card().name).to_string()).or_default() += 1;
    }

    fn n_refused(&self) -> usize {
        self.refused.values().sum()
    }

    /// Why none of so many layouts is an answer, the commonest refusal in the policy's words.
    fn words(&self, n_judged: usize) -> String {
        if n_judged == 0 {
            return "no combination of the listed degrees, micro-batches and schedules is a layout of these GPUs"
                .to_owned();
        }
        let mut parts = Vec::new();
        if self.n_too_large > 0 {
            parts.push(format!("{} need too much memory", self.n_too_large));
        }
        if self.n_ran_out > 0 {
            parts.push(format!("{} run out of memory", self.n_ran_out));
        }
        // Of equally common ones the first by name.
        let commonest = self.refused.iter().rev().max_by_key(|(_, n)| **n);
        if let Some((why, n)) = commonest {
            let how_often = if *n == self.n_refused() { String::new() } else { format!(" (for {n} of them)") };
            parts.push(format!("{} have no plan{how_often}: {why}", self.n_refused()));
        }
        format!("none of {n_judged} layouts is possible: {}", parts.join(", "))
    }
}

/// Results of jobs, in the order of their indices.
fn results<T: Send + Sync>(each: Each<'_>, n_jobs: usize, job: &(dyn Fn(usize) -> T + Sync)) -> Vec<T> {
    let slots: Vec<OnceLock<T>> = (0..n_jobs).map(|_| OnceLock::new()).collect();
    each(n_jobs, &|index| {
        assert!(slots[index].set(job(index)).is_ok(), "job {index} is done once");
    });
    slots.into_iter().map(|slot| slot.into_inner().expect("every job is done")).collect()
}

/// A candidate that may fit.
#[derive(Clone, Copy)]
struct Bounded {
    /// Lower bound on the objective.
    value: f64,
    least: Least,
    candidate: Candidate,
    is_tried: bool,
}

/// What a layout has to be better than: of equal steps the simpler layout is the answer, since nobody sets up more for nothing.
#[derive(Clone, Copy)]
struct Limit {
    value: f64,
    effort: [u64; 5],
}

impl Limit {
    const NONE: Self = Self { value: f64::INFINITY, effort: [0; 5] };

    fn of(value: f64, candidate: &Candidate) -> Self {
        Self { value, effort: candidate.effort() }
    }

    /// Any layout of a lesser value.
    const fn below(value: f64) -> Self {
        Self { value, effort: [0; 5] }
    }

    fn order(&self, other: &Self) -> std::cmp::Ordering {
        self.value.total_cmp(&other.value).then_with(|| self.effort.cmp(&other.effort))
    }

    /// Whether a layout whose objective is no less than this may be better.
    fn allows(&self, value: f64, candidate: &Candidate) -> bool {
        Self::of(value, candidate).order(self).is_lt()
    }
}

/// A search on its way.
struct Search<'a> {
    problem: &'a Problem,
    policy: &'a dyn Policy,
    context: &'a PlanContext<'a>,
    space: &'a Space,
    kept: Kept<'a>,
    /// What a second of a step is in what is ranked, by the nodes of a layout.
    of_second: BTreeMap<u32, f64>,
    topology: &'a Topology,
    each: Each<'a>,
    /// Everything that was simulated and fits, in the order of the search.
    seen: Vec<Simulated>,
    n_simulated: usize,
    dropouts: Dropouts,
}

/// Searches the space for the layout that is best at its objective.
///
/// # Errors
/// When no layout fits, or the policy has no plan for any.
pub fn search(
    problem: &Problem,
    policy: &dyn Policy,
    context: &PlanContext<'_>,
    (space, kept): (&Space, Kept<'_>),
    topology: &Topology,
    (effort, each): (Effort, Each<'_>),
) -> Result<Found, PlanError> {
    let (seen, dropouts) = (Vec::new(), Dropouts::default());
    let of_second = space.nodes.iter().map(|&n| (n, of_second(problem, space, n))).collect();
    let n_simulated = 0;
    let mut search =
        Search { problem, policy, context, space, kept, of_second, topology, each, seen, n_simulated, dropouts };
    let (mut bounded, n_judged, n_left) = search.bounded();
    search.look_for_best(&mut bounded, effort);
    if search.seen.is_empty() && (n_left > 0 || stop::is_over()) {
        // None of those that were looked at fits, which says nothing of the others.
        let why =
            "the search was stopped before it had played a layout that fits: give it more time, or list fewer layouts";
        return Err(PlanError::Budget(why.to_owned()));
    }
    // From here on there is an answer.
    stop::finish(stop::Whose::Work);
    if space.front_ratio > 1.0 {
        search.look_for_less_memory(&mut bounded);
    }
    let mut ranking = search.seen.clone();
    let limit = |of: &Simulated| Limit::of(of.value, &of.candidate);
    ranking.sort_by(|a, b| limit(a).order(&limit(b)));
    ranking.truncate(2);
    for simulated in ranking.iter_mut().filter(|_| !stop::is_over()) {
        simulated.why = search.why(&simulated.candidate);
    }
    let objective = space.objective;
    let ranking = ranking.into_iter().map(|simulated| (counted(objective, simulated.value), simulated)).collect();
    let best = proof::ranked(objective.aim(), ranking, |_| (), |_, _| true)
        .ok_or_else(|| PlanError::Infeasible(search.dropouts.words(n_judged)))?;
    let bound = Bound::plain(counted(objective, search.least(&best.plan.candidate, best.plan.bound_s)));
    let front = if space.front_ratio > 1.0 { search.front() } else { Vec::new() };
    let (n_simulated, n_too_large) = (search.n_simulated, search.dropouts.n_too_large);
    let n_refused = search.dropouts.n_refused();
    let is_open = |of: &&Bounded| !of.is_tried && of.value < best.plan.value;
    let n_open = if stop::is_asked() { n_left + bounded.iter().filter(is_open).count() } else { 0 };
    let best = best.bounded(Some(bound), Status::Heuristic);
    let (own, context_degrees) = (Candidate::own(problem), space.cp.clone());
    Ok(Found { best, own, objective, front, context_degrees, n_judged, n_too_large, n_refused, n_simulated, n_open })
}

/// What is counted of what is ranked: tokens that are kept, of their cost.
fn counted(objective: Objective, value: f64) -> f64 {
    if objective.is_of_run() { 1.0 / value } else { value }
}

/// What a second of a step is in what is ranked, on so many nodes: of a run the least that it can be, as nothing is lost but to failures. Without a price GPUs count alike.
fn of_second(problem: &Problem, space: &Space, n_nodes: u32) -> f64 {
    let cluster = Cluster { n_nodes, ..problem.cluster.clone() };
    let usd = f64::from(cluster.n_gpus()) * cluster.gpu.usd_per_hour().unwrap_or(1.0) / 3600.0;
    let problem = Problem { cluster, ..problem.clone() };
    let [per_s, per_usd] = space.run.as_ref().map_or([1.0; 2], |run| run.most_kept(&Job::of_training(&problem, 1.0)));
    match space.objective {
        Objective::Seconds => 1.0,
        Objective::Usd => usd,
        Objective::RunTokens => 1.0 / per_s,
        Objective::RunTokensPerUsd => 1.0 / per_usd,
    }
}

impl Search<'_> {
    /// The least that is ranked of a candidate whose step takes so long.
    fn least(&self, candidate: &Candidate, step_s: f64) -> f64 {
        step_s * self.of_second[&candidate.nodes]
    }

    /// Every candidate that may fit, the least bound first; how many there are, and how many of them a search that was stopped did not judge.
    fn bounded(&mut self) -> (Vec<Bounded>, usize, usize) {
        let candidates = self.space.candidates(self.problem);
        // What candidates share, they share with others of as many pipeline ranks.
        let mut by_pipeline: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, candidate) in candidates.iter().enumerate() {
            by_pipeline.entry(candidate.layout.pp).or_default().push(index);
        }
        let parts: Vec<Vec<usize>> = by_pipeline.into_values().collect();
        let judged = {
            let search: &Self = self;
            results(search.each, parts.len(), &|part| search.bounded_alike(&candidates, &parts[part]))
        };
        let n_left = candidates.len() - judged.iter().map(Vec::len).sum::<usize>();
        let mut indexed: Vec<(usize, Bounded)> = Vec::new();
        for (index, bounded) in judged.into_iter().flatten() {
            match bounded {
                Ok(bounded) => indexed.push((index, bounded)),
                Err(Dropped::TooLarge) => self.dropouts.n_too_large += 1,
                Err(Dropped::Refused(why)) => self.dropouts.refuse(self.policy, why),
            }
        }
        // The simpler of equal ones comes first; what is as simple stays in the order of the space.
        let simpler = |a: &Bounded, b: &Bounded| a.candidate.effort().cmp(&b.candidate.effort());
        indexed
            .sort_unstable_by(|(i, a), (j, b)| a.value.total_cmp(&b.value).then_with(|| simpler(a, b)).then(i.cmp(j)));
        let bounded = indexed.into_iter().map(|(_, bounded)| bounded).collect();
        (bounded, candidates.len(), n_left)
    }

    /// Some candidates with their bounds, or why they are dropped, and with their indices; fewer where a search is to stop.
    fn bounded_alike(&self, candidates: &[Candidate], indices: &[usize]) -> Vec<(usize, Result<Bounded, Dropped>)> {
        let mut judge = Judge::new(self.problem, self.policy, self.context);
        let mut n_fitting = 0;
        let mut bounded = |candidate: Candidate| {
            let least = judge.least(&candidate)?;
            let value = self.least(&candidate, least.step_s);
            Ok(Bounded { value, least, candidate, is_tried: false })
        };
        let judged = indices.iter().map_while(|&index| {
            if stop::is_asked() && n_fitting >= BATCH {
                return None;
            }
            let bounded = stop::unless_over(|| bounded(candidates[index]))?;
            n_fitting += usize::from(bounded.is_ok());
            Some((index, bounded))
        });
        judged.collect()
    }

    /// Simulates what may be best, until no bound is below the best.
    fn look_for_best(&mut self, bounded: &mut [Bounded], effort: Effort) {
        let mut best = Limit::NONE;
        for batch in bounded.chunks_mut(BATCH) {
            let limit = if effort == Effort::UntilProved { best } else { Limit::NONE };
            let may_win = |of: &&mut Bounded| limit.allows(of.value, &of.candidate);
            let mut promising: Vec<&mut Bounded> = batch.iter_mut().filter(may_win).collect();
            // A search that is to stop and has nothing yet goes on until everything ends.
            let is_stopped = stop::is_over() || stop::is_asked() && !self.seen.is_empty();
            if promising.is_empty() || is_stopped {
                break;
            }
            self.try_all(&mut promising, limit);
            let seen = self.seen.iter().map(|simulated| Limit::of(simulated.value, &simulated.candidate));
            best = seen.min_by(Limit::order).unwrap_or(Limit::NONE);
        }
    }

    /// Simulates what may need less memory than everything seen that is as good, up to the space's ratio of the best.
    fn look_for_less_memory(&mut self, bounded: &mut [Bounded]) {
        let best = self.seen.iter().map(|simulated| simulated.value).fold(f64::INFINITY, f64::min);
        let limit = best * self.space.front_ratio;
        let mut open: Vec<&mut Bounded> = bounded.iter_mut().filter(|of| !of.is_tried && of.value < limit).collect();
        while !open.is_empty() && !stop::is_asked() {
            open.retain(|of| !self.seen.iter().any(|seen| seen.value <= of.value && seen.peak_bytes <= of.least.bytes));
            let rest = open.split_off(open.len().min(BATCH));
            self.try_all(&mut open, Limit::below(limit));
            open = rest;
        }
    }

    /// Plans and simulates candidates whose closer bound is below the limit.
    fn try_all(&mut self, all: &mut [&mut Bounded], limit: Limit) {
        let tried = {
            let all: &[&mut Bounded] = all;
            results(self.each, all.len(), &|index| {
                stop::unless_over(|| self.tried(all[index], limit)).unwrap_or(Tried::Ended)
            })
        };
        for (of, tried) in all.iter_mut().zip(tried) {
            of.is_tried |= !matches!(tried, Tried::Outdone | Tried::Ended);
            self.n_simulated += usize::from(matches!(tried, Tried::Played { .. }));
            let candidate = of.candidate;
            match tried {
                Tried::Outdone | Tried::Ended => {}
                Tried::Refused(why) => self.dropouts.refuse(self.policy, why),
                Tried::Played { fits: None, .. } => self.dropouts.n_ran_out += 1,
                Tried::Played { bound_s, fits: Some((value, step_s, peak_bytes)) } => {
                    self.seen.push(Simulated { candidate, step_s, bound_s, peak_bytes, value, why: String::new() });
                }
            }
        }
    }

    /// A candidate planned, and simulated unless its closer bound is enough.
    fn tried(&self, of: &Bounded, limit: Limit) -> Tried {
        let laid_out = of.candidate.problem(self.problem);
        let plan = match plan(&laid_out, self.policy, self.context) {
            Ok(plan) => plan,
            Err(why) => return Tried::Refused(why),
        };
        // The order alone, without exchange between ranks and contention, is a closer bound where ranks are independent.
        let bound_s = of.least.step_s.max(bound::of_order(&laid_out, &plan, self.context.cost).unwrap_or(0.0));
        if !limit.allows(self.least(&of.candidate, bound_s), &of.candidate) {
            return Tried::Outdone;
        }
        let played = simulate_peak(&laid_out, &plan, self.context, &self.topology_of(&laid_out));
        let Some((step_s, peak_bytes)) = played else { return Tried::Played { bound_s, fits: None } };
        let value = if self.space.objective.is_of_run() {
            (self.kept)(&laid_out, &plan, step_s).map(|kept| 1.0 / kept)
        } else {
            Ok(self.least(&of.candidate, step_s))
        };
        match value {
            Ok(value) => Tried::Played { bound_s, fits: Some((value, step_s, peak_bytes)) },
            Err(why) => Tried::Refused(why),
        }
    }

    fn topology_of(&self, laid_out: &Problem) -> Cow<'_, Topology> {
        if laid_out.cluster.n_nodes == self.problem.cluster.n_nodes {
            Cow::Borrowed(self.topology)
        } else {
            Cow::Owned(Topology::of(&laid_out.cluster))
        }
    }

    /// What dominates the steps of a candidate, in words.
    fn why(&self, candidate: &Candidate) -> String {
        let laid_out = candidate.problem(self.problem);
        why(&laid_out, self.policy, self.context, &self.topology_of(&laid_out))
    }

    /// What was simulated and nothing else beats, up to the space's ratio of the best: the best first, with less and less memory.
    fn front(&self) -> Vec<Simulated> {
        let mut all: Vec<&Simulated> = self.seen.iter().collect();
        all.sort_by(|a, b| a.value.total_cmp(&b.value).then(a.peak_bytes.cmp(&b.peak_bytes)));
        let most = all.first().map_or(0.0, |best| best.value * self.space.front_ratio);
        let mut front: Vec<Simulated> = Vec::new();
        for simulated in all.into_iter().filter(|simulated| simulated.value <= most) {
            if front.last().is_none_or(|last| simulated.peak_bytes < last.peak_bytes) {
                front.push(simulated.clone());
            }
        }
        front
    }
}

/// Plans a problem and puts its passes in order.
///
/// # Errors
/// When the policy has no plan.
pub fn plan(problem: &Problem, policy: &dyn Policy, context: &PlanContext<'_>) -> Result<Plan, PlanError> {
    let mut plan = policy.plan(problem, context)?.plan;
    _ = orders::complete(problem, &mut plan, context.cost);
    Ok(plan)
}

/// Mean step of a plan, seconds; `None` when it does not fit.
pub fn simulate(problem: &Problem, plan: &Plan, context: &PlanContext<'_>, topology: &Topology) -> Option<f64> {
    simulate_peak(problem, plan, context, topology).map(|(step_s, _)| step_s)
}

/// The same with the memory of the fullest rank, bytes.
fn simulate_peak(problem: &Problem, plan: &Plan, context: &PlanContext<'_>, topology: &Topology) -> Option<(f64, u64)> {
    let (mut total, mut peak) = (0.0, 0);
    for step_index in 0..plan.steps.len() {
        let graph = lower::training::lower(problem, plan, step_index);
        let timeline = play(problem, &graph, context, topology)?;
        total += timeline.span().to_seconds().get();
        peak = (0..graph.lanes.len()).map(|lane| timeline.peak_memory_bytes(lane)).fold(peak, u64::max);
    }
    Some((total / hw::real(plan.steps.len() as u64), peak))
}

/// What dominates the steps of a problem, in words.
fn why(problem: &Problem, policy: &dyn Policy, context: &PlanContext<'_>, topology: &Topology) -> String {
    let Ok(plan) = plan(problem, policy, context) else { return String::new() };
    let step = |step_index| {
        let graph = lower::training::lower(problem, &plan, step_index);
        let timeline = play(problem, &graph, context, topology)?;
        Some(Played { graph, timeline })
    };
    let steps: Vec<Played> = (0..plan.steps.len()).filter_map(step).collect();
    metrics::of_steps(problem, &steps, context.cost).why
}

/// Whether what a step keeps on its hosts fits there.
fn hosts_fit(problem: &Problem, graph: &TaskGraph, timeline: &Timeline) -> bool {
    let is_known = problem.cluster.host_memory.is_some();
    !is_known || host_memory::of_steps(problem, std::iter::once((graph, timeline))).fits(problem).is_ok()
}

/// A step in the simulator; `None` when it runs out of memory, of a device or of a host.
pub(crate) fn play(
    problem: &Problem,
    graph: &TaskGraph,
    context: &PlanContext<'_>,
    topology: &Topology,
) -> Option<Timeline> {
    let machine = Machine {
        cost: context.cost,
        topology,
        memory_bytes: problem.cluster.gpu.memory.0,
        case: Case::Expected,
        speed_changes: &[],
    };
    match engine::simulate(graph, &machine) {
        Outcome::Done(timeline) => Some(timeline).filter(|timeline| hosts_fit(problem, graph, timeline)),
        Outcome::OutOfMemory { .. } => None,
        Outcome::Stuck { waiting } => panic!("lowering made a graph that cannot finish: {waiting:?}"),
    }
}
