//! Which stage lies on which group of cards: pipelines over GPUs of several types, listed, estimated, and the promising ones played.
//!
//! Two families are listed (Sailor, SOSP 2025, searches a superset). Either every stage lies on one group, in each order of the groups, and
//! layers follow the speed of the cards; or every replica lies on one group, and micro-batches follow it. Tensor degrees are powers of two
//! inside a node. Groups, replicas and stages may be fewer than there is room for. What does not fit into memory or has no link is left out. Links and the
//! filling of a pipeline pace it as well as its cards do, so layers of the best plans then move from stage to stage, and micro-batches from replica to replica,
//! while the played step becomes better. In a run of days plans are compared by what they keep of it. Units: seconds.

mod bound;
mod listed;
mod shares;
mod slow;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use engine::play::Case;
use engine::verdict::Refused;
use engine::{CostModel, stop};
use hw::real;
use train::mixed_gpus::{Fullest, MixedJob, MixedStage, MixedStep, Pipelines, Slot, Unlinked};
use train::timed::{Replica, TimedStep};

use super::objective::Objective;
use crate::proof::{Bound, Decision, Status, ranked};
use listed::{Sketch, Speed};
use shares::{all_shares, in_order, shared, sums};

/// Plans of every choice of groups that are estimated, the best by their sketch.
const ESTIMATED_MAX: usize = 128;
/// Plans that are played, the best by their estimate.
const PLAYED_MAX: usize = 24;
/// Plans of every choice of groups that are played besides: an estimate that favours one choice must not hide the others.
const PLAYED_OF_CHOICE: usize = 3;
/// Played plans whose layers and micro-batches are moved, the best ones.
const MOVED: usize = 3;
/// Moves that are played for each of these, at most. Where micro-batches have no more divisions than this, all are played.
const MOVES_MAX: usize = 500;
/// Different micro-batches on which plans are estimated, at most. Plans that are played have all of them.
const ESTIMATED_KINDS: u32 = 8;
/// Groups of which every order is listed.
pub const GROUPS_MAX: usize = 4;

/// A plan with its estimate, or with what it is when it is played.
type Judged = (f64, Pipelines);

/// What is searched with: costs of every group, and speeds by group and tensor degree.
struct Search<'j> {
    job: &'j MixedJob,
    objective: Objective,
    costs: &'j [Box<dyn CostModel>],
    n_layers: u32,
    speeds: Vec<Vec<Speed>>,
}

/// The best of the plans that are listed, by what is sought, with a bound that no plan on these cards is better than.
///
/// # Errors
/// When no plan fits, or none keeps anything of a run of days.
pub fn search(
    job: &MixedJob,
    objective: Objective,
    costs: &[Box<dyn CostModel>],
) -> Result<Decision<Pipelines>, Refused> {
    let n_layers = job.problem.as_ref().map_or(0, |problem| problem.model.n_layers);
    let n_layers = u32::try_from(n_layers).expect("layer counts are checked by the model reader");
    let mut search = Search { job, objective, costs, n_layers, speeds: Vec::new() };
    search.speeds = (0..job.groups.len()).map(|group| search.speeds_of(group)).collect();
    let sketches = search.sketches();
    let n_listed = sketches.values().map(Vec::len).sum::<usize>();
    let plans: Vec<Pipelines> = sketches.into_values().flat_map(|sketches| search.fitting(sketches)).collect();
    let n_fitting = plans.len();
    let estimated = search.estimated(plans);
    let is_linked = !estimated.is_empty();
    let promising = first_of_each(estimated, |plan| fits(job, plan));
    let has_room = !promising.is_empty();
    let mut found: Vec<Judged> =
        promising.into_iter().filter_map(|plan| search.judged(search.recounted(plan))).collect();
    found.sort_by(|a, b| objective.aim().order(a.0, b.0));
    let mut n_played = found.len();
    for start in found.iter().take(MOVED).cloned().collect::<Vec<_>>() {
        let (moved, n_moves) = search.moved(start);
        n_played += n_moves;
        found.push(moved);
    }
    let best = ranked(objective.aim(), found, |_| (), |a, b| a != b).ok_or_else(|| {
        let why = match (n_fitting > 0 && (has_room || !is_linked), is_linked) {
            (false, _) => "none fits into memory",
            (_, false) => "none has links between all of its zones",
            _ => "none keeps anything of the run",
        };
        Refused::infeasible(format!("of {n_listed} plans {why}"))
    })?;
    let words =
        format!("{} ({n_listed} plans listed, {n_fitting} estimated, {n_played} played)", best.plan.words(&job.groups));
    let mut best = best.bounded(Some(search.bound()), Status::Heuristic);
    best.notes.push(words);
    best.notes.extend(search.left_out());
    Ok(best)
}

/// Whether every rank of a plan may have room, and every host has: states and activations alone are counted.
fn may_fit(job: &MixedJob, plan: &Pipelines) -> bool {
    job.may_fit(plan) && job.fits_hosts(plan).is_ok()
}

/// Whether every rank of a plan has room, as it is played.
fn fits(job: &MixedJob, plan: &Pipelines) -> bool {
    job.fullest(plan).is_none_or(|fullest| fullest.bytes <= fullest.device_bytes)
}

/// The plan that a scenario gives, with micro-batches by the speed of its replicas where it leaves them out.
///
/// # Panics
/// When it joins zones without a link, or has fewer micro-batches than replicas, which the reader has looked at.
pub fn given(job: &MixedJob, plan: &Pipelines, costs: &[Box<dyn CostModel>]) -> Decision<Pipelines> {
    let mut plan = plan.clone();
    if plan.micro_batches.is_empty() {
        let shares = counted(job, &plan, costs).expect("the reader has checked links");
        plan.micro_batches = shares.expect("the reader has checked that each replica has one");
    }
    let notes = vec![plan.words(&job.groups)];
    Decision::plain(plan).said(notes, BTreeMap::new())
}

/// Micro-batches of every replica of a plan by the time that its slowest stage takes for each of them, in their order.
fn counted(job: &MixedJob, plan: &Pipelines, costs: &[Box<dyn CostModel>]) -> Result<Option<Vec<u32>>, Unlinked> {
    // Each replica with all micro-batches.
    let all = vec![job.batch.n_micro_batches(); plan.stages[0].slots.len()];
    let (step, _) = job.step(&Pipelines { micro_batches: all, ..plan.clone() }, costs, Case::Expected)?;
    let workers: Vec<Vec<u64>> = step.replicas.iter().map(slowest).collect();
    if job.batch.is_alike() {
        let paces: Vec<f64> = workers.iter().map(|sums| real(sums[1])).collect();
        return Ok(shared(job.batch.n_micro_batches(), &paces, &vec![0.0; paces.len()]));
    }
    Ok(in_order(&workers.iter().map(Vec::as_slice).collect::<Vec<_>>()))
}

/// Nanoseconds of the slowest stage, summed over the first micro-batches.
fn slowest(replica: &Replica) -> Vec<u64> {
    let stages =
        (0..replica.stages.len()).map(|stage| sums(replica.times(stage).iter().map(|times| times.both().as_ns())));
    stages.max_by_key(|sums| sums.last().copied()).unwrap_or_default()
}

/// A plan as it was played, with its run of days where one is asked for.
///
/// # Errors
/// When it does not fit into memory, of a device or of a host, or when nothing of the run is kept.
///
/// # Panics
/// When it joins zones without a link, which reader and search have looked at.
pub fn judged(job: &MixedJob, plan: &Pipelines, costs: &[Box<dyn CostModel>]) -> Result<MixedStep, Refused> {
    let step = job.played(plan, costs).expect("plans have the links that they need");
    match step.fullest.filter(|fullest| fullest.bytes > fullest.device_bytes) {
        Some(Fullest { stage, replica, bytes, device_bytes }) => {
            let [needs, there] = [bytes, device_bytes].map(|bytes| bytes / hw::GIB);
            let gpus = &job.groups[plan.stages[stage].slots[replica].group].name;
            let why = format!(
                "stage {stage} of replica {replica} needs {needs:.1} GiB on `{gpus}`, which has {there:.1} GiB"
            );
            Err(Refused::out_of_memory(why))
        }
        None => job.fits_hosts(plan).and_then(|()| {
            let beside = slow::beside(job, plan, costs)?;
            job.over_days(plan, step, beside.as_ref())
        }),
    }
}

/// The plans that are played, of plans from the best estimate to the worst: those that fit.
fn first_of_each(sorted: Vec<Judged>, fits: impl Fn(&Pipelines) -> bool) -> Vec<Pipelines> {
    let (mut kept, mut of_choice) = (Vec::new(), BTreeMap::new());
    for (_, plan) in sorted {
        let n: &mut usize = of_choice.entry(choice(&plan)).or_default();
        if (kept.len() < PLAYED_MAX || *n < PLAYED_OF_CHOICE) && fits(&plan) {
            *n += 1;
            kept.push(plan);
        }
    }
    kept
}

/// Groups that a plan uses.
fn choice(plan: &Pipelines) -> BTreeSet<usize> {
    plan.stages.iter().flat_map(|stage| stage.slots.iter().map(|slot| slot.group)).collect()
}

/// A step in the steady state of its slowest replica, with the filling of its pipeline. A slow link paces a pipeline as a slow stage does.
fn estimate_s(step: &TimedStep) -> f64 {
    let seconds = |ns: u64| real(ns) / 1e9;
    let of_replica = |replica: &Replica| {
        let passes = replica.stages.iter().map(|stage| stage.passes.both().as_ns());
        let slowest_message =
            replica.stages.iter().map(|stage| step.messages.hold(&stage.passes.message).as_ns()).max().unwrap_or(0);
        let (longest, through) = (passes.clone().max().unwrap_or(0), passes.sum::<u64>());
        let messages: u64 = replica.stages.iter().map(|stage| 2 * stage.passes.message.whole().as_ns()).sum();
        seconds(u64::from(replica.n_micro_batches - 1) * longest.max(slowest_message) + through + messages)
    };
    let passes_s = step.replicas.iter().map(of_replica).fold(0.0, f64::max);
    let around_update = step.reductions.iter().zip(&step.gathers).map(|(reduced, gathered)| *reduced + *gathered);
    passes_s + seconds(around_update.max().unwrap_or_default().as_ns() + step.tied.as_ns())
}

impl Search<'_> {
    /// Plans of some sketches that fit, the best by what the sketches take.
    fn fitting(&self, sketches: Vec<Sketch>) -> Vec<Pipelines> {
        let mut sketches: Vec<(f64, Sketch)> = sketches
            .into_iter()
            .map(|sketch| (self.expected(&self.n_gpus_of(&sketch), self.sketched_s(&sketch), 0.0), sketch))
            .collect();
        sketches.sort_by(|a, b| self.objective.aim().order(a.0, b.0));
        let plans = sketches.iter().filter_map(|(_, sketch)| self.built(sketch));
        plans.filter(|plan| may_fit(self.job, plan)).take(ESTIMATED_MAX).collect()
    }

    /// Plans with their estimates, the best first; without those that join zones without a link.
    fn estimated(&self, plans: Vec<Pipelines>) -> Vec<Judged> {
        let few = MixedJob { batch: self.job.batch.abridged(ESTIMATED_KINDS), ..self.job.clone() };
        let estimated = |plan: Pipelines| {
            let (step, link_usd) = few.step(&plan, self.costs, Case::Expected).ok()?;
            Some((self.expected(&self.job.n_gpus(&plan), estimate_s(&step), link_usd), plan))
        };
        let mut judged: Vec<Judged> = plans.into_iter().filter_map(estimated).collect();
        judged.sort_by(|a, b| self.objective.aim().order(a.0, b.0));
        judged
    }

    /// A plan whose micro-batches follow the times of its own stages, where each of them has a time of its own; the plan itself where that does not fit.
    fn recounted(&self, plan: Pipelines) -> Pipelines {
        let is_apart = !self.job.batch.is_alike() && plan.micro_batches.len() > 1;
        let counts = is_apart.then(|| counted(self.job, &plan, self.costs).ok().flatten()).flatten();
        let recounted = counts.map(|micro_batches| Pipelines { micro_batches, ..plan.clone() });
        recounted.filter(|recounted| may_fit(self.job, recounted) && fits(self.job, recounted)).unwrap_or(plan)
    }

    /// A plan with what it is, played; `None` where it has not all of its links, or where nothing of its run is kept.
    fn judged(&self, plan: Pipelines) -> Option<Judged> {
        let (step, link_usd) = self.job.step(&plan, self.costs, Case::Expected).ok()?;
        let (n_gpus, step_s) = (self.job.n_gpus(&plan), step.span().to_seconds().get());
        if !self.objective.is_of_run() {
            return Some((self.expected(&n_gpus, step_s, link_usd), plan));
        }
        let beside = slow::beside(self.job, &plan, self.costs).ok()?;
        let lasted = self.job.lasted(&n_gpus, (step_s, link_usd), beside.as_ref())?.ok()?;
        Some((*lasted.values.get(self.objective.metric())?, plan))
    }

    /// What is sought of a plan on so many GPUs of every group whose step takes so long: of a run its mean by a closed form.
    fn expected(&self, n_gpus: &[u32], step_s: f64, link_usd: f64) -> f64 {
        match self.objective {
            Objective::Seconds => step_s,
            Objective::Usd => self.job.usd_of_step(n_gpus, step_s, link_usd),
            Objective::RunTokens => real(self.job.batch.tokens()) / step_s * self.job.useful_share(n_gpus, step_s),
            Objective::RunTokensPerUsd => self.job.kept_per_usd(n_gpus, step_s, link_usd),
        }
    }

    /// Tensor degrees of a group with their speeds, from a pipeline of one layer, one layer, and the rest.
    fn speeds_of(&self, group: usize) -> Vec<Speed> {
        let cluster = &self.job.groups[group].cluster;
        let degrees = (0..).map(|power| 1_u32 << power).take_while(|degree| *degree <= cluster.domain());
        let heads = self.job.problem.as_ref().map_or(1, |problem| problem.model.n_heads);
        degrees
            .filter(|degree| heads.is_multiple_of(u64::from(*degree)))
            .map(|n_gpus| self.measured(group, n_gpus))
            .collect()
    }

    fn measured(&self, group: usize, n_gpus: u32) -> Speed {
        let n_parts = self.n_layers.min(3);
        let layers = (1..n_parts).map(|_| 1).chain([self.n_layers + 1 - n_parts]);
        let slot = Slot { group, n_gpus, times: None };
        let stages = layers.map(|layers| MixedStage { layers, slots: vec![slot], sizes: None }).collect();
        let plan = Pipelines { stages, micro_batches: vec![self.job.batch.n_micro_batches()] };
        let (step, _) = self.job.step(&plan, self.costs, Case::Expected).expect("one group needs no link");
        let replica = &step.replicas[0];
        let parts: Vec<f64> = replica.stages.iter().map(|stage| stage.passes.both().to_seconds().get()).collect();
        let [first, last] = [parts[0], *parts.last().expect("a model has layers")];
        let layer_s = if n_parts == 3 { parts[1] } else { first };
        let ends_s = [first - layer_s, last - f64::from(self.n_layers + 1 - n_parts) * layer_s].map(|s| s.max(0.0));
        let mut own = vec![0; replica.own.first().map_or(0, Vec::len)];
        for stage in &replica.own {
            own.iter_mut().zip(stage).for_each(|(ns, times)| *ns += times.both().as_ns());
        }
        Speed { n_gpus, layer_s, ends_s, sums: Rc::new(sums(own.into_iter())) }
    }

    /// What all cards do together when none ever waits, or what the layers of all micro-batches cost on the cards that do them for least.
    fn bound(&self) -> Bound {
        let degrees: Vec<Vec<u32>> =
            self.speeds.iter().map(|speeds| speeds.iter().map(|speed| speed.n_gpus).collect()).collect();
        let work = bound::work(self.job, self.costs, &degrees);
        let n_gpus: Vec<u32> = self.job.groups.iter().map(|group| group.cluster.n_gpus()).collect();
        let prices: Vec<f64> = self.job.groups.iter().map(|group| group.usd_per_gpu_hour / 3600.0).collect();
        let (value, limit) = match self.objective {
            Objective::Seconds => (bound::least_s(&work, &n_gpus), "every card computes all the time"),
            Objective::Usd => (bound::cheapest(&work, &prices), "the cards that compute for least do everything"),
            Objective::RunTokens => {
                let kept = real(self.job.batch.tokens()) / bound::least_s(&work, &n_gpus);
                (kept, "every card computes all the time, and none fails")
            }
            Objective::RunTokensPerUsd => {
                let kept = real(self.job.batch.tokens()) / bound::cheapest(&work, &prices);
                (kept, "the cards that compute for least do everything, and none fails")
            }
        };
        Bound { value, limit: limit.to_owned() }
    }

    /// From a played plan, one that becomes no better where a layer moves from a stage to another, or a micro-batch from a replica to another; and how many
    /// plans were played.
    fn moved(&self, start: Judged) -> (Judged, usize) {
        let moves = self.moves(&start.1);
        let (mut best, mut n_played, mut since_better) = (start, 0, 0);
        // The first move that helps is taken, and the round goes on behind it: it ends when no move of a whole round has helped.
        for one in moves.iter().cycle() {
            if since_better == moves.len() || n_played == MOVES_MAX || stop::is_asked() {
                break;
            }
            since_better += 1;
            let Some(plan) = one.of(&best.1).filter(|plan| may_fit(self.job, plan)) else { continue };
            n_played += 1;
            if let Some(played) = self.judged(plan).filter(|played| self.is_better(played, &best)) {
                (best, since_better) = (played, 0);
            }
        }
        // One move at a time may end where two would help, so few divisions are all played.
        let all = all_shares(self.job.batch.n_micro_batches(), best.1.micro_batches.len(), MOVES_MAX);
        for micro_batches in all {
            let plan = Pipelines { micro_batches, ..best.1.clone() };
            if plan == best.1 || stop::is_asked() || !may_fit(self.job, &plan) {
                continue;
            }
            n_played += 1;
            best = self.judged(plan).filter(|played| self.is_better(played, &best)).unwrap_or(best);
        }
        (best, n_played)
    }

    /// Whether a plan is better than another one, and fits.
    fn is_better(&self, a: &Judged, b: &Judged) -> bool {
        self.objective.aim().order(a.0, b.0).is_lt() && fits(self.job, &a.1)
    }

    /// Moves from a plan: layers between all stages, and micro-batches between replicas that differ in their cards or their micro-batches.
    fn moves(&self, plan: &Pipelines) -> Vec<Move> {
        let slots = |replica: usize| plan.stages.iter().map(move |stage| stage.slots[replica]);
        let is_other = |(from, to): &(usize, usize)| !self.job.batch.is_alike() || !slots(*from).eq(slots(*to));
        let layers = pairs(plan.stages.len()).into_iter().map(|(from, to)| Move::Layer { from, to });
        let counts = pairs(plan.micro_batches.len()).into_iter().filter(is_other);
        layers.chain(counts.map(|(from, to)| Move::MicroBatch { from, to })).collect()
    }
}

/// One thing that moves.
#[derive(Clone, Copy, Debug)]
enum Move {
    /// A layer between two stages.
    Layer { from: usize, to: usize },
    /// A micro-batch between two replicas.
    MicroBatch { from: usize, to: usize },
}

impl Move {
    /// A plan behind it; `None` where nothing would be left.
    fn of(self, plan: &Pipelines) -> Option<Pipelines> {
        let mut plan = plan.clone();
        match self {
            Self::Layer { from, to } => {
                plan.stages[from].layers = plan.stages[from].layers.checked_sub(1).filter(|left| *left > 0)?;
                plan.stages[to].layers += 1;
            }
            Self::MicroBatch { from, to } => {
                plan.micro_batches[from] = plan.micro_batches[from].checked_sub(1).filter(|left| *left > 0)?;
                plan.micro_batches[to] += 1;
            }
        }
        Some(plan)
    }
}

/// Every pair of different ones of so many.
fn pairs(n: usize) -> Vec<(usize, usize)> {
    (0..n).flat_map(|from| (0..n).map(move |to| (from, to))).filter(|(from, to)| from != to).collect()
}
