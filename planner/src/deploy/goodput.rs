//! Most requests per second within limits: the ways of serving that scenarios compare, each as a plan that the request loop plays.
//!
//! The objective counts means, as the planners do; what is played is below that. Bounds are those of `thunderserve/bound.rs`: of the same kind of
//! deployment, and of any. Units: requests per second, seconds.

mod layers;

pub use layers::Layers;

use std::collections::BTreeMap;

use engine::cost::roofline::ENDS;
use serve::deployment::Deployment as Served;
use serve::metrics::interval_of;
use serve::request::Requests;

use super::RentalError;
use super::thunderserve::played::{self, Played};
use super::thunderserve::{
    self, Deployment, Groups, Phase, PlayedBest, Stage, Tabu, Task, Trial, Working, bound, colocated,
};
use crate::proof::{Aim, Bound, Decision, Status};

/// How a model is put on a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Equal replicas of both phases on every machine.
    Colocated,
    /// Replicas of both phases over any GPUs.
    HexGen,
    /// Phases on different groups of the same machine.
    DistServe,
    /// Phases on any groups.
    ThunderServe,
    /// Replicas of both phases by the program of renting.
    CostEfficiency,
    /// Replicas of both phases by Mélange.
    Melange,
    /// The plan for all GPUs when some are lost, with nothing changed.
    Stale,
    /// The same with flipped phases: no weight is loaded again.
    Flip,
    /// Layers on nodes by maximum flow, requests by its weights.
    Helix,
}

/// One way of serving that is compared.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Method.
    pub method: Method,
    /// The problem, with the links and bits on the wire.
    pub task: Task,
    /// GPUs of every machine that are lost after planning.
    pub lost: Vec<u32>,
    /// How the replicas work.
    pub working: Working,
}

/// What plans are made for and played with.
#[derive(Clone, Copy, Debug)]
pub struct Load<'l> {
    /// Requests that arrive once per second on average.
    pub requests: &'l Requests,
    /// Share of the requests that must meet both targets.
    pub attainment_ratio: f64,
    /// Limits of the search.
    pub tabu: Tabu,
}

/// What holds the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Layout {
    /// Groups that hold all layers each, and pairs of them.
    Groups(Groups),
    /// Nodes with a range of the layers each.
    Layers(Layers),
}

/// What is played.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What holds the model.
    pub layout: Layout,
    /// Requests per second for the load that it was planned for.
    pub planned_per_s: f64,
    /// GPUs that only read prompts, and GPUs that only generate.
    pub n_gpus: [u32; 2],
    /// What holds it back, in a sentence.
    pub why: String,
}

/// A plan before it is held against its bound.
struct Found {
    plan: Plan,
    /// What it would serve of all arrivals: the objective.
    most_per_s: f64,
    notes: Vec<String>,
}

/// Distance to the bound that rounding explains, relative.
const CLOSED: f64 = 1e-9;

/// Plans of a choice; `begins` is called when what counts as its time begins: what only happens after a loss counts from there.
///
/// # Errors
/// On figures without meaning, and where no plan serves anything.
pub fn plan(choice: &Choice, load: &Load<'_>, begins: &mut dyn FnMut()) -> Result<Decision<Plan>, RentalError> {
    let after = after_losses(choice);
    // What no deployment serves does not hang on the load that is asked.
    let any = after.of_any_load();
    let asked = Asked { task: &after, any_per_s: any_per_s(&any, load.requests) };
    let trial = Trial { requests: load.requests, attainment_ratio: load.attainment_ratio, working: choice.working };
    let within = |of| bound::by_machine(&any, of);
    match choice.method {
        Method::Colocated => {
            let played = colocated::per_machine_played(&after, &trial)?;
            asked.of_replicas(played, colocated::per_machine, within(bound::colocated))
        }
        Method::CostEfficiency => asked.of_means(thunderserve::cost_efficiency, within(bound::colocated)),
        Method::Melange => asked.of_means(thunderserve::melange, within(bound::colocated)),
        Method::HexGen => asked.of_means(colocated::mixed, bound::colocated(&any)),
        Method::DistServe => {
            let found = thunderserve::within_machines(&after, load.tabu, &trial)?;
            Ok(asked.held(of_deployments(&after, &found)?, within(bound::split)))
        }
        Method::ThunderServe => {
            let found = thunderserve::plan_played(&after, load.tabu, &trial)?;
            let most_per_s = most_per_s(&after, &found.plan.deployment.plan)?;
            Ok(asked.held(of_deployments(&after, &[found])?, most_per_s))
        }
        Method::Stale | Method::Flip => {
            let before = thunderserve::plan_played(&choice.task, load.tabu, &trial)?.plan;
            begins();
            asked.adapted(choice.method, before)
        }
        Method::Helix => asked.of_layers(load.requests, &trial),
    }
}

/// Requests per second of all arrivals that no deployment on these machines serves: phases on groups of their own or together, or parts of
/// the layers.
fn any_per_s(task: &Task, requests: &Requests) -> f64 {
    bound::split(task).max(bound::colocated(task)).max(layers::bound_per_s(task, &requests.list))
}

/// The task without the GPUs that are lost.
fn after_losses(choice: &Choice) -> Task {
    let mut after = choice.task.clone();
    for (machine, lost) in after.machines.offers.iter_mut().zip(&choice.lost) {
        machine.n_available = machine.n_available.saturating_sub(*lost);
    }
    after
}

/// What no deployment with phases on groups of their own serves, and no less than the groups of this one.
fn most_per_s(task: &Task, deployment: &Deployment) -> Result<f64, RentalError> {
    let task = thunderserve::overloaded(task);
    let most = thunderserve::stale(&task, deployment)?.bound().unwrap_or(f64::INFINITY);
    Ok(most * task.requests_per_s)
}

/// What is planned for, and what no deployment serves.
struct Asked<'t> {
    task: &'t Task,
    any_per_s: f64,
}

impl Asked<'_> {
    /// A plan with its bounds: that of the same kind of deployment, and that of any.
    fn held(&self, found: Found, bound_per_s: f64) -> Decision<Plan> {
        let Found { plan, most_per_s, notes } = found;
        let bound_per_s = bound_per_s.max(most_per_s);
        let is_closed = bound_per_s - most_per_s <= CLOSED * bound_per_s;
        let status = if is_closed { Status::Optimal } else { Status::Heuristic };
        let decided = Decision::new(plan, Aim::RequestsPerS, most_per_s);
        let decided = decided.bounded(Some(Bound::plain(bound_per_s)), status);
        let figures = [
            ("bound_requests_per_s", Some(bound_per_s)),
            ("any_bound_requests_per_s", Some(self.any_per_s).filter(|per_s| per_s.is_finite())),
            ("gap_ratio", decided.gap()),
        ];
        let figures = figures.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        decided.said(notes, figures)
    }

    /// Replicas of both phases that serve most by the means.
    fn of_means(&self, way: colocated::Way, bound_per_s: f64) -> Result<Decision<Plan>, RentalError> {
        self.of_replicas(Decision::plain(way(self.task)?), way, bound_per_s)
    }

    /// Replicas of both phases.
    fn of_replicas(
        &self,
        found: Decision<Vec<thunderserve::Replica>>,
        way: colocated::Way,
        bound_per_s: f64,
    ) -> Result<Decision<Plan>, RentalError> {
        let second = found.runner_up().map(|other| played_second(other.objective, &self.replicas_words(&other.plan)));
        let replicas = found.plan;
        let mut notes: Vec<String> = replicas.iter().map(|replica| self.replica_words(replica)).collect();
        notes.extend(second);
        let (n, limit) = (replicas.len(), colocated::binding(self.task, way)?);
        let planned_per_s = replicas.iter().map(|replica| replica.requests_per_s).sum();
        let plan = Plan {
            layout: Layout::Groups(Groups::colocated(&replicas)),
            planned_per_s,
            n_gpus: [0, 0],
            why: format!("{n} replicas that read and generate, so that prompts hold up tokens; limit: {limit}"),
        };
        Ok(self.held(Found { plan, most_per_s: planned_per_s, notes }, bound_per_s))
    }

    fn replica_words(&self, replica: &thunderserve::Replica) -> String {
        format!("both phases on {}", stages_words(self.task, &replica.stages))
    }

    /// Replicas that are alike are said once.
    fn replicas_words(&self, replicas: &[thunderserve::Replica]) -> String {
        let alike = replicas.chunk_by(|a, b| a == b);
        let words: Vec<String> = alike.map(|of| format!("{} with {}", of.len(), self.replica_words(&of[0]))).collect();
        words.join("; ")
    }

    /// Layers on nodes. The flow is planned without limits, and counts as far as there are arrivals.
    fn of_layers(&self, requests: &Requests, trial: &Trial<'_>) -> Result<Decision<Plan>, RentalError> {
        let found = layers::plan(self.task, trial)?;
        let planned_per_s = layers::planned_per_s(&found.plan, &requests.list);
        let mut notes = vec![found.plan.words()];
        notes.push("the flow is at typical batches, without limits: the rate that is played has them".to_owned());
        notes.extend(found.runner_up().map(|other| played_second(other.objective, &other.plan.words())));
        let why = format!("limit: {}", found.plan.limit);
        let plan = Plan { layout: Layout::Layers(found.plan), planned_per_s, n_gpus: [0, 0], why };
        let bound_per_s = layers::bound_per_s(&self.task.of_any_load(), &requests.list);
        let most_per_s = planned_per_s.min(bound_per_s);
        Ok(self.held(Found { plan, most_per_s, notes }, bound_per_s))
    }

    /// What a loss leaves of a plan, as it is or with flipped phases.
    fn adapted(&self, method: Method, before: PlayedBest) -> Result<Decision<Plan>, RentalError> {
        let load = Task { requests_per_s: before.planned_for_per_s, ..self.task.clone() };
        let again = if method == Method::Flip { thunderserve::replan } else { thunderserve::stale };
        let deployment = again(&load, &before.deployment.plan)?;
        let most_per_s = most_per_s(self.task, &deployment.plan)?;
        let found = [Decision::plain(PlayedBest { deployment, n_played: 0, ..before })];
        Ok(self.held(of_deployments(self.task, &found)?, most_per_s))
    }
}

fn stages_words(task: &Task, stages: &[Stage]) -> String {
    let words: Vec<String> = stages.iter().map(|stage| stage_words(task, stage)).collect();
    words.join(", then ")
}

fn stage_words(task: &Task, stage: &Stage) -> String {
    format!("{} x {} for {} layers", stage.tp, task.machines.offers[stage.machine].name, stage.layers)
}

/// Deployments beside each other as one.
fn of_deployments(task: &Task, found: &[Decision<PlayedBest>]) -> Result<Found, RentalError> {
    let (mut groups, mut n_gpus, mut planned_per_s) = (Groups::default(), [0, 0], 0.0);
    let (mut notes, mut limits, mut most_per_s) = (Vec::new(), Vec::new(), 0.0);
    let overloaded = thunderserve::overloaded(task);
    for best in found {
        let (deployment, planned_for_per_s) = (&best.plan.deployment.plan, best.plan.planned_for_per_s);
        let loaded = thunderserve::stale(&overloaded, deployment)?;
        most_per_s += loaded.plan.attainment * overloaded.requests_per_s;
        limits.push(loaded.limit);
        let (own, offset) = (Groups::of(deployment), groups.groups.len());
        // Routes are shares of the load that each was planned for; side by side each has what it serves when it is played alone.
        let own_share: f64 = own.pairs.iter().map(|pair| pair.2).sum();
        let weight = best.objective().unwrap_or(planned_for_per_s) / own_share;
        groups.pairs.extend(own.pairs.iter().map(|&(i, j, share)| (i + offset, j + offset, share * weight)));
        groups.groups.extend(own.groups);
        planned_per_s += deployment.attainment * planned_for_per_s;
        for group in deployment.groups.iter().filter(|group| !group.stages.is_empty()) {
            let at = usize::from(group.phase == Phase::Decode);
            n_gpus[at] += group.stages.iter().map(|stage| stage.tp).sum::<u32>();
            notes.push(format!("{} on {}", ["prefill", "decode"][at], stages_words(task, &group.stages)));
        }
    }
    let why = format!("limit: {}", limits.join("; "));
    let plan = Plan { layout: Layout::Groups(groups), planned_per_s, n_gpus, why };
    notes.extend(found.iter().flat_map(|best| looked_at(task, best)));
    Ok(Found { plan, most_per_s, notes })
}

/// For which load a deployment was planned, and the second choices of the search and of playing.
fn looked_at(task: &Task, best: &Decision<PlayedBest>) -> Vec<String> {
    let PlayedBest { deployment, planned_for_per_s: load, n_played } = &best.plan;
    let n = deployment.plan.n_evaluated;
    let played = if *n_played == 0 { String::new() } else { format!(", best of {n_played} played") };
    let mut notes = vec![format!("planned for {load:.2} requests/s, {n} deployments looked at{played}")];
    notes.extend(deployment.runner_up().map(|other| {
        let planned = other.objective * load;
        let words = other.plan.words(task);
        format!("runner-up of those looked at, planned for {planned:.3} requests/s: {words}")
    }));
    let second = best.runner_up();
    notes.extend(second.map(|other| played_second(other.objective, &other.plan.deployment.plan.words(task))));
    notes
}

/// The second of those that were played, in words.
fn played_second(rate: f64, words: &str) -> String {
    format!("runner-up of those played, which meets the targets at {rate:.3} requests/s: {words}")
}

/// A plan as the loop plays it.
#[derive(Clone, Debug)]
pub enum Playable {
    /// Replicas with all layers.
    Replicas(played::Playable),
    /// GPUs with a part of them.
    Layers(layers::Playable),
}

impl Playable {
    /// The deployment that the checker holds.
    pub const fn placed(&self) -> &Served {
        match self {
            Self::Replicas(playable) => &playable.placed,
            Self::Layers(playable) => &playable.placed,
        }
    }

    /// What clients see of so many requests per second.
    fn at(&self, task: &Task, requests: &Requests, per_s: f64) -> Played {
        let requests = played::faster(requests, per_s);
        match self {
            Self::Replicas(playable) => played::play(task, playable, &requests),
            Self::Layers(playable) => layers::play(task, playable, &requests),
        }
    }

    /// The largest arrival rate at which a share of the requests meets both targets, up to 1 %, with what clients saw at it.
    pub fn goodput(&self, task: &Task, requests: &Requests, share: f64) -> (f64, Played) {
        played::highest(share, &|per_s| self.at(task, requests, per_s))
    }
}

/// A plan as the loop plays it.
///
/// # Errors
/// When the checker refuses it, which would be a fault of the planner.
pub fn playable_of(choice: &Choice, plan: &Plan, requests: &Requests) -> Result<Playable, RentalError> {
    match &plan.layout {
        Layout::Groups(groups) => {
            played::playable(&choice.task, groups, choice.working, &requests.list).map(Playable::Replicas)
        }
        Layout::Layers(layers) => layers::playable(&after_losses(choice), layers, &requests.list).map(Playable::Layers),
    }
}

/// Intervals of a plan that was played: the same plan on GPUs of which a datasheet may say too much or too little. Latencies are those at the rate that is
/// expected.
///
/// # Errors
/// When the checker refuses the plan, which it did not as expected.
pub fn intervals(
    choice: &Choice,
    plan: &Plan,
    load: &Load<'_>,
    (rate, seen): (f64, &Played),
) -> Result<BTreeMap<String, [f64; 2]>, RentalError> {
    if rate <= 0.0 {
        return Ok(BTreeMap::new());
    }
    let at = |by: f64| {
        let choice = Choice { task: choice.task.slower(by), ..choice.clone() };
        let playable = playable_of(&choice, plan, load.requests)?;
        let (most, fastest) = playable.goodput(&choice.task, load.requests, load.attainment_ratio);
        let latencies = playable.at(&choice.task, load.requests, rate);
        Ok::<_, RentalError>([most, fastest.tokens_per_s, latencies.ttft_s, latencies.tpot_s])
    };
    let [fast, slow] = [at(ENDS[0])?, at(ENDS[1])?];
    let expected = [rate, seen.tokens_per_s, seen.ttft_s, seen.tpot_s];
    let keys = ["goodput_requests_per_s", "tokens_per_s", "ttft_s", "tpot_s"];
    let of = |(at, key): (usize, &str)| (key.to_owned(), interval_of(expected[at], [fast[at], slow[at]]));
    Ok(keys.into_iter().enumerate().map(of).collect())
}

/// A decision beside the rate at which its plan was played. Bounds are those of a steady load: few requests may come faster, for what waits when the
/// last one has come is served behind it. Such a bound says nothing of the run and is left out, and a note says why.
pub fn beside_played(mut decision: Decision<Plan>, rate: f64) -> Decision<Plan> {
    let bounds = ["bound_requests_per_s", "any_bound_requests_per_s"];
    decision.figures.retain(|key, bound| !bounds.contains(&key.as_str()) || rate <= *bound);
    let Some(bound) = decision.bound().filter(|bound| rate > *bound) else { return decision };
    decision.figures.remove("gap_ratio");
    decision.notes.push(format!(
        "no bound: {rate:.3} requests/s were played, more than the {bound:.3} of a steady load; the run is too short for its queues to grow: \
         raise `requests` in `[requests]`"
    ));
    decision.bounded(None, Status::Heuristic)
}

/// Figures of a plan that was played at the largest rate that meets the targets; at no rate there are no times and no ratio.
pub fn metrics(choice: &Choice, plan: &Plan, (rate, played): (f64, &Played)) -> BTreeMap<String, f64> {
    let of_rate = |value: f64| if rate > 0.0 { value } else { f64::NAN };
    let metrics = [
        ("goodput_requests_per_s", rate),
        ("planned_requests_per_s", plan.planned_per_s),
        ("planned_over_played_ratio", plan.planned_per_s / rate),
        ("tokens_per_s", played.tokens_per_s),
        ("attainment_ratio", played.attainment),
        ("ttft_s", of_rate(played.ttft_s)),
        ("tpot_s", of_rate(played.tpot_s)),
        ("prefix_hit_ratio", if choice.working.prefix_cache { played.prefix_hit_ratio } else { f64::NAN }),
        ("n_prefill_gpus", f64::from(plan.n_gpus[0])),
        ("n_decode_gpus", f64::from(plan.n_gpus[1])),
    ];
    let finite = metrics.into_iter().filter(|(_, value)| value.is_finite());
    finite.map(|(key, value)| (key.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bound_stands_beside_more_than_it() {
        let plan =
            Plan { layout: Layout::Groups(Groups::default()), planned_per_s: 4.0, n_gpus: [0, 0], why: String::new() };
        let figures = [("bound_requests_per_s", 5.0), ("any_bound_requests_per_s", 7.0), ("gap_ratio", 0.25)];
        let figures: BTreeMap<String, f64> = figures.map(|(key, value)| (key.to_owned(), value)).into();
        let decision = Decision::new(plan, Aim::RequestsPerS, 4.0)
            .bounded(Some(Bound::plain(5.0)), Status::Heuristic)
            .said(Vec::new(), figures);
        let kept = beside_played(decision.clone(), 5.0);
        assert_eq!(kept, decision);
        let without = beside_played(decision, 6.0);
        assert_eq!((without.bound(), without.gap(), without.objective()), (None, None, Some(4.0)));
        assert_eq!(without.figures.into_iter().collect::<Vec<_>>(), [("any_bound_requests_per_s".to_owned(), 7.0)]);
        assert!(
            without.notes[0].starts_with("no bound: 6.000 requests/s were played, more than the 5.000"),
            "{:?}",
            without.notes
        );
    }
}
