//! ThunderServe (arXiv:2502.09334): prefill and decode on different groups of mixed GPUs with uneven links.
//!
//! Above, tabu search over groups and their phases (`thunderserve/search.rs`): flip a phase, exchange two, split, merge, move GPUs. Below, per group the
//! best stages (`thunderserve/group.rs`) and a transportation program from prefill to decode groups (`thunderserve/transport.rs`). After a
//! loss or a change of load `replan` keeps groups and stages and flips phases only, so that no weight is loaded again.
//!
//! The hand-over of a prompt's keys and values takes start + tokens·bytes·(bits/16) / bandwidth; 4 bits on the wire is the paper's
//! compression. Objective: the share of requests that meet both targets. Several details of the paper are not public; what is assumed here:
//! mean waits of M/D/1 queues, a wire that a pair's largest machines share, and the constants below. `thunderserve/bound.rs` has what no
//! deployment is planned above. Units: seconds, bytes per second.

pub mod beside;
pub mod bound;
pub mod colocated;
mod group;
pub mod played;
mod rented;
mod search;
mod transport;

pub use beside::Beside;
pub use group::{Replica, Stage};
pub use played::{Groups, Trial, Working};
pub use rented::{cost_efficiency, melange};
pub use transport::{Transport, solve as transport};

use std::sync::OnceLock;

use engine::model::Model;
use hw::{Gpu, Tokens};

use search::Ways;

use super::RentalError;
use super::inventory::Inventory;
use super::roofline::{self, LINK_REACHED, Layer};
use super::throughput::Lengths;
use crate::proof::{self, Aim, Decision};

/// Part of the per-token target that a decode step may take; the rest is for the hand-over.
const DECODE_SHARE: f64 = 0.9;

/// What is served, and how well.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Machines, a row each.
    pub machines: Inventory,
    /// Model, in bf16.
    pub model: Model,
    /// Request types with their shares, which sum to 1.
    pub classes: Vec<(Lengths, f64)>,
    /// Arrivals.
    pub requests_per_s: f64,
    /// Target of the time to the first token, seconds.
    pub ttft_s: f64,
    /// Target of the time per output token, seconds.
    pub tpot_s: f64,
    /// Bits of a key or value on the wire: 16, or 4 with compression.
    pub wire_bits: u32,
    /// Who drafts tokens, and adapters.
    pub beside: Beside,
    /// Tokens of the beginning that longer prompts share and replicas keep; 0 where none is kept. Plans read it again, and bounds find it always.
    pub kept_tokens: u32,
    /// What follows from the model.
    pub mean_layer: MeanLayer,
}

/// The mean layer of a task's model, worked out once: searches ask for it at every stage that they look at.
#[derive(Debug, Default)]
pub struct MeanLayer(OnceLock<Layer>);

impl Clone for MeanLayer {
    /// Not worked out yet: a copy of a task may be given another model.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for MeanLayer {
    /// It follows from the model, which is compared by itself.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Task {
    /// The mean layer of the model.
    pub(super) fn layer(&self) -> &Layer {
        self.mean_layer.0.get_or_init(|| Layer::of(&self.model))
    }

    /// The same on GPUs whose layers take so many times as long.
    pub(super) fn slower(&self, by: f64) -> Self {
        let mut task = self.clone();
        for offer in &mut task.machines.offers {
            offer.gpu = offer.gpu.as_ref().map(|gpu| roofline::slower(gpu, by));
        }
        task
    }

    /// The same whatever arrives.
    pub(super) fn of_any_load(&self) -> Self {
        Self { requests_per_s: f64::INFINITY, ..self.clone() }
    }

    /// The same with links of a part of their bandwidth.
    fn with_links(&self, part: f64) -> Self {
        let mut task = self.clone();
        let network = &mut task.machines.network;
        network.within.bytes_per_s *= part;
        network.between.bytes_per_s *= part;
        task
    }
}

/// Phase of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Reads prompts.
    Prefill,
    /// Generates tokens.
    Decode,
}

impl Phase {
    const fn other(self) -> Self {
        match self {
            Self::Prefill => Self::Decode,
            Self::Decode => Self::Prefill,
        }
    }
}

/// A replica.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// GPUs of each machine.
    pub n_gpus: Vec<u32>,
    /// Phase.
    pub phase: Phase,
    /// Stages in order; empty where the GPUs cannot hold the model and stay idle.
    pub stages: Vec<Stage>,
}

/// Groups and routes.
#[derive(Clone, Debug, PartialEq)]
pub struct Deployment {
    /// Groups.
    pub groups: Vec<Group>,
    /// `routes[i][j]`: share of all requests that group i prefills and group j decodes.
    pub routes: Vec<Vec<f64>>,
    /// Share of all requests that meet both targets.
    pub attainment: f64,
    /// Requests per second that are served.
    pub requests_per_s: f64,
    /// Deployments that the search looked at.
    pub n_evaluated: usize,
}

/// Limits of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tabu {
    /// Steps.
    pub steps: usize,
    /// Neighbours per step, drawn from all.
    pub neighbours: usize,
    /// Deployments that may not be entered again at once.
    pub memory: usize,
    /// Searches from drawn groups beside those from halves and whole machines.
    pub restarts: usize,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Tabu {
    fn default() -> Self {
        Self { steps: 100, neighbours: 40, memory: 10, restarts: 2, seed: 0 }
    }
}

impl Deployment {
    /// Its groups in words.
    pub fn words(&self, task: &Task) -> String {
        search::words(task, &self.groups)
    }
}

impl Task {
    /// GPUs of a machine.
    fn gpu(&self, machine: usize) -> &Gpu {
        self.machines.offers[machine].gpu.as_ref().expect("a task is checked first")
    }

    /// Number of machines.
    fn n_machines(&self) -> usize {
        self.machines.offers.len()
    }

    /// Bytes per second that reach machine b from a.
    fn bandwidth(&self, a: usize, b: usize) -> f64 {
        if a == b { LINK_REACHED * self.gpu(a).bandwidth_to(1).get() } else { self.machines.link(a, b).bytes_per_s }
    }

    /// Seconds that a message from machine a to machine b takes before its first byte; inside a machine as inside its region.
    fn start_s(&self, a: usize, b: usize) -> f64 {
        if a == b { self.machines.network.within.latency_s } else { self.machines.link(a, b).latency_s }
    }

    /// Mean prompt and answer in tokens.
    fn mean(&self) -> (f64, f64) {
        let sum = |of: &dyn Fn(&Lengths) -> f64| self.classes.iter().map(|(lengths, share)| share * of(lengths)).sum();
        (sum(&|lengths| lengths.input.as_f64()), sum(&|lengths| lengths.output.as_f64()))
    }

    /// Tokens of a prompt that are read at least.
    fn least_read(&self, input: Tokens) -> f64 {
        let (input, kept) = (input.as_f64(), f64::from(self.kept_tokens));
        if input > kept { input - kept } else { input }
    }

    /// Tokens of a mean prompt that are read at least.
    fn mean_least_read(&self) -> f64 {
        self.classes.iter().map(|(lengths, share)| share * self.least_read(lengths.input)).sum()
    }

    /// Tokens of the longest request.
    fn longest(&self) -> f64 {
        self.classes.iter().map(|(lengths, _)| (lengths.input + lengths.output).as_f64()).fold(0.0, f64::max)
    }

    /// The same with one machine only.
    fn alone(&self, machine: usize) -> Self {
        let mut task = self.clone();
        let others = task.machines.offers.iter_mut().enumerate().filter(|(other, _)| *other != machine);
        others.for_each(|(_, other)| other.n_available = 0);
        task
    }

    /// Bytes of a prompt's keys and values on the wire.
    pub fn wire_bytes(&self, input: f64) -> f64 {
        input * self.token_bytes() * f64::from(self.wire_bits) / 16.0
    }

    fn check(&self) -> Result<(), RentalError> {
        let input = |message: String| Err(RentalError::Input(message));
        let positive = |value: f64| value.is_finite() && value > 0.0;
        self.machines.check_machines()?;
        if self.model.n_layers == 0 || self.model.kv_width() == 0 {
            return input(format!("model `{}` has no layers or no keys and values", self.model.name));
        }
        let bare = |lengths: &Lengths| lengths.input.0 == 0 || lengths.output.0 == 0;
        if let Some((lengths, share)) = self.classes.iter().find(|(l, share)| bare(l) || !positive(*share)) {
            return input(format!("a request type needs tokens and a share above 0, found {lengths:?} with {share}"));
        }
        let sum: f64 = self.classes.iter().map(|(_, share)| share).sum();
        if self.classes.is_empty() {
            return input("there is no request type".to_owned());
        }
        if (sum - 1.0).abs() > 1e-6 {
            return input(format!("shares of request types must sum to 1, found {sum}"));
        }
        let targets = [("arrivals", self.requests_per_s), ("ttft_s", self.ttft_s), ("tpot_s", self.tpot_s)];
        if let Some((name, value)) = targets.into_iter().find(|(_, value)| !positive(*value)) {
            return input(format!("`{name}` must be above 0, found {value}"));
        }
        if !(1..=16).contains(&self.wire_bits) {
            return input(format!("bits on the wire are 1 to 16, found {}", self.wire_bits));
        }
        Ok(())
    }
}

/// Groups, phases, stages and routes by tabu search. The objective is the attainment, its bound that of `bound.rs` over the arrivals.
///
/// # Errors
/// On figures without meaning, and when no group of all GPUs can hold the model or meet a target.
pub fn plan(task: &Task, tabu: Tabu) -> Result<Decision<Deployment>, RentalError> {
    planned(task, &mut Ways::default(), tabu)
}

/// The same with ways of groups that were worked out for other arrivals.
fn planned(task: &Task, ways: &mut Ways, tabu: Tabu) -> Result<Decision<Deployment>, RentalError> {
    task.check()?;
    search::full(task, ways, tabu)
}

/// Flips phases of what is left of a deployment: groups that need GPUs which `task` no longer has are dropped, stages stay. With the changed
/// load or machines in `task`.
///
/// # Errors
/// On figures without meaning, and when no pair of phases is left.
pub fn replan(task: &Task, deployment: &Deployment) -> Result<Decision<Deployment>, RentalError> {
    task.check()?;
    search::flips(task, deployment)
}

/// The same groups and phases under a task that has changed: a plan that nobody adapts.
///
/// # Errors
/// On figures without meaning, and when no pair of phases is left.
pub fn stale(task: &Task, deployment: &Deployment) -> Result<Decision<Deployment>, RentalError> {
    task.check()?;
    search::kept(task, deployment)
}

/// Parts of the task's arrivals for which plans are made when the one that plays best is looked for.
const LOADS: [f64; 7] = [1.0, 0.7, 0.5, 0.35, 0.25, 0.17, 0.12];
/// Times that arrivals are doubled at most while a plan serves them all.
const DOUBLINGS_MAX: usize = 24;
/// Parts of the links' bandwidth for which they are made: by means a link may be full that is late when it is played, and a plan that leans on it less may
/// serve more. Halves, so that a link which is 2, 4, 8 or more times as fast looks at the same plans, and at more.
const LINKS: [f64; 8] = [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015_625, 0.007_812_5];

/// A deployment, and the rate of arrivals that it was planned for.
#[derive(Clone, Debug, PartialEq)]
pub struct PlayedBest {
    /// Groups and routes.
    pub deployment: Decision<Deployment>,
    /// Arrivals for which it was planned.
    pub planned_for_per_s: f64,
    /// Different deployments that were played.
    pub n_played: usize,
}

/// Arrivals for which plans are made: parts of those that are asked, and their doubles for as long as a plan serves them all, for what a pool serves
/// does not hang on what is asked of it.
fn loads(task: &Task, ways: &mut Ways, tabu: Tabu) -> Vec<f64> {
    let mut loads = LOADS.map(|load| load * task.requests_per_s).to_vec();
    let mut most_per_s = task.requests_per_s;
    for _ in 0..DOUBLINGS_MAX {
        let found = planned(&Task { requests_per_s: most_per_s, ..task.clone() }, ways, tabu);
        if !found.is_ok_and(|found| found.plan.attainment > 1.0 - 1e-6) {
            break;
        }
        most_per_s *= 2.0;
        loads.splice(0..0, [most_per_s, LOADS[1] * most_per_s]);
    }
    loads
}

/// The same with arrivals that no deployment of these GPUs serves, where there are any.
pub(super) fn overloaded(task: &Task) -> Task {
    let any = task.of_any_load();
    let most_per_s = bound::split(&any);
    let is_one = most_per_s.is_finite() && most_per_s > 0.0;
    Task { requests_per_s: if is_one { most_per_s } else { task.requests_per_s }, ..any }
}

/// Plans for light and heavy load, and of these the one with the most requests per second of which a share meets both targets when it is played
/// (`played.rs`): the plan's means hide the tails. The objective is the rate when played; what the groups serve at most by the planner's means is `stale` for all arrivals.
///
/// # Errors
/// On figures without meaning, and when there is no plan for any load.
pub fn plan_played(task: &Task, tabu: Tabu, trial: &Trial<'_>) -> Result<Decision<PlayedBest>, RentalError> {
    let (mut found, mut known): (Vec<(f64, PlayedBest)>, Vec<Groups>) = (Vec::new(), Vec::new());
    let mut why = None;
    let mut ways = Ways::default();
    let loads = loads(task, &mut ways, tabu);
    for link in LINKS {
        let linked = task.with_links(link);
        for &planned_for_per_s in &loads {
            match planned(&Task { requests_per_s: planned_for_per_s, ..linked.clone() }, &mut ways, tabu) {
                Ok(deployment) => {
                    let groups = Groups::of(&deployment.plan);
                    if known.iter().any(|known| known.is_played_as(&groups)) {
                        continue;
                    }
                    // Nobody asks for more than the best and the one that comes next.
                    if let Some(rate) = played::rate_from(second(&found), task, &groups, trial)? {
                        found.push((rate, PlayedBest { deployment, planned_for_per_s, n_played: 0 }));
                    }
                    known.push(groups);
                }
                Err(error) => why = Some(error),
            }
        }
        // Other links, other speeds.
        ways = Ways::default();
    }
    let n_played = known.len();
    found.iter_mut().for_each(|(_, played)| played.n_played = n_played);
    if !found.is_empty() && found.iter().all(|(rate, _)| *rate <= 0.0) {
        let why = format!(
            "of {n_played} deployments that were played none serves the share that is asked within the targets"
        );
        return Err(RentalError::Infeasible(why));
    }
    let none = || RentalError::Infeasible("no load has a plan".to_owned());
    // The first of equals is the one for the heavier load.
    proof::ranked(Aim::RequestsPerS, found, |_| (), |_, _| true).ok_or_else(|| why.unwrap_or_else(none))
}

/// The second best rate; none where there are fewer.
fn second(found: &[(f64, PlayedBest)]) -> f64 {
    let mut rates: Vec<f64> = found.iter().map(|(rate, _)| *rate).collect();
    rates.sort_unstable_by(|a, b| b.total_cmp(a));
    rates.get(1).copied().unwrap_or(0.0)
}

/// Prefill and decode on groups of one machine, for every machine by itself, as DistServe (arXiv:2401.09670) keeps caches on fast links: the
/// deployments that play best.
///
/// # Errors
/// On figures without meaning, and when no machine holds both phases.
pub fn within_machines(task: &Task, tabu: Tabu, trial: &Trial<'_>) -> Result<Vec<Decision<PlayedBest>>, RentalError> {
    task.check()?;
    let alone = |machine: usize| plan_played(&task.alone(machine), tabu, trial);
    let found: Vec<Decision<PlayedBest>> = (0..task.n_machines()).filter_map(|m| alone(m).ok()).collect();
    if found.is_empty() {
        return Err(RentalError::Infeasible(
            "no machine alone holds the model in both phases within the targets".to_owned(),
        ));
    }
    Ok(found)
}

/// Seconds to the first token and per further token of a mean request that is alone on a machine, with the layout that is best for either.
///
/// # Errors
/// On figures without meaning, and when the machine does not hold the model.
pub fn alone_s(task: &Task, machine: usize) -> Result<(f64, f64), RentalError> {
    task.check()?;
    let mut n_gpus = vec![0; task.n_machines()];
    n_gpus[machine] = task.machines.offers[machine].n_available;
    let (input, output) = task.mean();
    let times = group::layouts(task, &n_gpus).into_iter();
    let times = times.map(|stages| {
        (group::read_s(task, &stages, input).1, group::token_s(task, &stages, 1.0, input + output / 2.0))
    });
    let best = times.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)));
    best.ok_or_else(|| {
        RentalError::Infeasible(format!("`{}` alone does not hold the model", task.machines.offers[machine].name))
    })
}

#[cfg(test)]
mod tests;
