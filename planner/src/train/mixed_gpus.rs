//! Which stage lies on which group of cards: pipelines over GPUs of several types, listed, estimated, and the promising ones played.
//!
//! Two families are listed (Sailor, SOSP 2025, searches a superset). Either every stage lies on one group, in each order of the groups, and
//! layers follow the speed of the cards; or every replica lies on one group, and micro-batches follow it. Tensor degrees are powers of two
//! inside a node. What does not fit into memory or has no link is left out. Links and the filling of a pipeline pace it as well as its cards do, so layers of
//! the best plans then move from stage to stage while the played step becomes shorter. Units: seconds.

use std::collections::{BTreeMap, BTreeSet};

use engine::play::Case;
use engine::verdict::Refused;
use engine::{CostModel, stop};
use hw::real;
use train::mixed_gpus::{Fullest, MixedJob, MixedStage, MixedStep, Pipelines, Slot};
use train::timed::{Replica, StageTimes, TimedStep};

use super::search::space::Objective;
use crate::proof::{Aim, Bound, Decision, Status, ranked};

/// Plans that are played, the best by their estimate.
const PLAYED_MAX: usize = 24;
/// Plans of every choice of groups that are played besides: an estimate that favours one choice must not hide the others.
const PLAYED_OF_CHOICE: usize = 3;
/// Played plans whose layers are moved, the best ones.
const MOVED: usize = 3;
/// Moves of a layer that are played for each of these, at most.
const MOVES_MAX: usize = 500;
/// Different micro-batches on which plans are estimated, at most. Plans that are played have all of them.
const ESTIMATED_KINDS: u32 = 8;
/// Groups of which every order is listed.
pub const GROUPS_MAX: usize = 4;
/// Pipeline stages of a plan, at most.
const STAGES_MAX: u32 = 32;

/// Seconds of a micro-batch on so many GPUs of a group.
#[derive(Clone, Copy, Debug)]
struct Speed {
    n_gpus: u32,
    /// Forward and backward of a layer.
    layer_s: f64,
    /// What the first stage and what the last one has besides.
    ends_s: [f64; 2],
}

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

/// The best of the plans that are listed, by seconds or by dollars of a step, with a bound that no plan on these cards is below.
///
/// # Errors
/// When no plan fits.
pub fn search(
    job: &MixedJob,
    objective: Objective,
    costs: &[Box<dyn CostModel>],
) -> Result<Decision<Pipelines>, Refused> {
    let n_layers = job.problem.as_ref().map_or(0, |problem| problem.model.n_layers);
    let n_layers = u32::try_from(n_layers).expect("layer counts are checked by the model reader");
    let mut search = Search { job, objective, costs, n_layers, speeds: Vec::new() };
    search.speeds = (0..job.groups.len()).map(|group| search.speeds_of(group)).collect();
    let mut plans = search.by_stage();
    plans.extend(search.by_replica());
    let n_listed = plans.len();
    plans.retain(|plan| fits(job, plan));
    let n_fitting = plans.len();
    let judged = search.promising(plans);
    let played = |plan: Pipelines| Some((search.played(&plan)?, plan));
    let mut found: Vec<Judged> = judged.into_iter().filter_map(played).collect();
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut n_played = found.len();
    for start in found.iter().take(MOVED).cloned().collect::<Vec<_>>() {
        let (moved, n_moves) = search.moved(start);
        n_played += n_moves;
        found.push(moved);
    }
    let aim = if objective == Objective::Usd { Aim::Usd } else { Aim::Seconds };
    let best = ranked(aim, found, |_| (), |a, b| a != b).ok_or_else(|| {
        let why = if n_fitting == 0 { "none fits into memory" } else { "none has links between all of its zones" };
        Refused::infeasible(format!("of {n_listed} plans {why}"))
    })?;
    let words =
        format!("{} ({n_listed} plans listed, {n_fitting} fit, {n_played} played)", best.plan.words(&job.groups));
    let mut best = best.bounded(Some(search.bound()), Status::Heuristic);
    best.notes.push(words);
    Ok(best)
}

/// Whether every rank of a plan has room, and every host.
fn fits(job: &MixedJob, plan: &Pipelines) -> bool {
    job.fullest(plan).is_none_or(|fullest| fullest.bytes <= fullest.device_bytes) && job.fits_hosts(plan).is_ok()
}

/// The plan that a scenario gives, with micro-batches by the speed of its replicas where it leaves them out.
pub fn given(job: &MixedJob, plan: &Pipelines, costs: &[Box<dyn CostModel>]) -> Decision<Pipelines> {
    let mut plan = plan.clone();
    if plan.micro_batches.is_empty() {
        let n_replicas = plan.stages[0].slots.len();
        // Each replica with all micro-batches: their mean is its pace.
        plan.micro_batches = vec![job.batch.n_micro_batches(); n_replicas];
        let (step, _) = job.step(&plan, costs, Case::Expected).expect("the reader has checked links");
        let pass_ns = |stage: &StageTimes| stage.forward.as_ns() + stage.backward.as_ns();
        let pace = |replica: &Replica| real(replica.stages.iter().map(pass_ns).max().unwrap_or(0));
        let paces: Vec<f64> = step.replicas.iter().map(pace).collect();
        let shares = shared(job.batch.n_micro_batches(), &paces, &vec![0.0; n_replicas]);
        plan.micro_batches = shares.expect("the reader has checked that each replica has one");
    }
    let notes = vec![plan.words(&job.groups)];
    Decision::plain(plan).said(notes, BTreeMap::new())
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
        None => job.fits_hosts(plan).and_then(|()| job.over_days(plan, step)),
    }
}

/// The plans that are played, of plans from the best estimate to the worst.
fn first_of_each(sorted: Vec<Judged>) -> Vec<Pipelines> {
    let (mut kept, mut of_choice) = (Vec::new(), BTreeMap::new());
    for (place, judged) in sorted.into_iter().enumerate() {
        let n: &mut usize = of_choice.entry(choice(&judged.1)).or_default();
        if place < PLAYED_MAX || *n < PLAYED_OF_CHOICE {
            *n += 1;
            kept.push(judged.1);
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
        let passes = replica.stages.iter().map(|stage| stage.forward.as_ns() + stage.backward.as_ns());
        let slowest_message = replica.stages.iter().map(|stage| stage.message.as_ns()).max().unwrap_or(0);
        let (longest, through) = (passes.clone().max().unwrap_or(0), passes.sum::<u64>());
        let messages: u64 = replica.stages.iter().map(|stage| 2 * stage.message.as_ns()).sum();
        seconds(u64::from(replica.n_micro_batches - 1) * longest.max(slowest_message) + through + messages)
    };
    let passes_s = step.replicas.iter().map(of_replica).fold(0.0, f64::max);
    passes_s + step.reductions.iter().max().map_or(0.0, |span| seconds(span.as_ns()))
}

impl Search<'_> {
    /// Plans that are played, the best by their estimate.
    fn promising(&self, plans: Vec<Pipelines>) -> Vec<Pipelines> {
        let few = MixedJob { batch: self.job.batch.abridged(ESTIMATED_KINDS), ..self.job.clone() };
        let estimated = |plan: Pipelines| {
            let (step, link_usd) = few.step(&plan, self.costs, Case::Expected).ok()?;
            Some((self.objective_of(&plan, estimate_s(&step), link_usd), plan))
        };
        let mut judged: Vec<Judged> = plans.into_iter().filter_map(estimated).collect();
        judged.sort_by(|a, b| a.0.total_cmp(&b.0));
        first_of_each(judged)
    }

    /// What a plan is judged by, played; `None` where it has not all of its links.
    fn played(&self, plan: &Pipelines) -> Option<f64> {
        let (step, link_usd) = self.job.step(plan, self.costs, Case::Expected).ok()?;
        Some(self.objective_of(plan, step.span().to_seconds().get(), link_usd))
    }

    fn objective_of(&self, plan: &Pipelines, step_s: f64, link_usd: f64) -> f64 {
        match self.objective {
            Objective::Seconds => step_s,
            Objective::Usd => self.job.usd_of_step(plan, step_s, link_usd),
        }
    }

    /// Tensor degrees of a group with their speeds, from a pipeline of one layer, one layer, and the rest.
    fn speeds_of(&self, group: usize) -> Vec<Speed> {
        let cluster = &self.job.groups[group].cluster;
        let degrees = (0..).map(|power| 1_u32 << power).take_while(|degree| *degree <= cluster.domain());
        let heads = self.job.problem.as_ref().map_or(1, |problem| problem.model.n_heads);
        degrees
            .filter(|degree| heads.is_multiple_of(u64::from(*degree)))
            .map(|n_gpus| self.speed(group, n_gpus))
            .collect()
    }

    fn speed(&self, group: usize, n_gpus: u32) -> Speed {
        let n_parts = self.n_layers.min(3);
        let layers = (1..n_parts).map(|_| 1).chain([self.n_layers + 1 - n_parts]);
        let slot = Slot { group, n_gpus, times: None };
        let stages = layers.map(|layers| MixedStage { layers, slots: vec![slot], sizes: None }).collect();
        let plan = Pipelines { stages, micro_batches: vec![self.job.batch.n_micro_batches()] };
        let (step, _) = self.job.step(&plan, self.costs, Case::Expected).expect("one group needs no link");
        let pass_s = |stage: &StageTimes| real(stage.forward.as_ns() + stage.backward.as_ns()) / 1e9;
        let parts: Vec<f64> = step.replicas[0].stages.iter().map(pass_s).collect();
        let [first, last] = [parts[0], *parts.last().expect("a model has layers")];
        let layer_s = if n_parts == 3 { parts[1] } else { first };
        let ends_s = [first - layer_s, last - f64::from(self.n_layers + 1 - n_parts) * layer_s].map(|s| s.max(0.0));
        Speed { n_gpus, layer_s, ends_s }
    }

    /// What all cards do together when none ever waits, or what the layers of all micro-batches cost on the cards that do them for least.
    fn bound(&self) -> Bound {
        let (mut micro_batches_per_s, mut least_usd) = (0.0, f64::INFINITY);
        let n_micro_batches = f64::from(self.job.batch.n_micro_batches());
        for (group, speeds) in self.job.groups.iter().zip(&self.speeds) {
            let gpu_s =
                speeds.iter().map(|speed| speed.layer_s * f64::from(speed.n_gpus)).fold(f64::INFINITY, f64::min);
            let all_layers_s = gpu_s * f64::from(self.n_layers);
            micro_batches_per_s += f64::from(group.cluster.n_gpus()) / all_layers_s;
            least_usd = least_usd.min(n_micro_batches * all_layers_s * group.usd_per_gpu_hour / 3600.0);
        }
        match self.objective {
            Objective::Seconds => {
                let value = n_micro_batches / micro_batches_per_s;
                Bound { value, limit: "every card computes all the time".to_owned() }
            }
            Objective::Usd => {
                Bound { value: least_usd, limit: "the cards that compute for least do everything".to_owned() }
            }
        }
    }

    /// Plans whose stages lie on one group each. Replicas divide the micro-batches, or else the GPUs of a group: other numbers leave GPUs idle and
    /// have micro-batches that do not come out even.
    fn by_stage(&self) -> Vec<Pipelines> {
        let mut plans = Vec::new();
        for order in orders(self.job.groups.len()) {
            let n_gpus = |group: &usize| self.job.groups[*group].cluster.n_gpus();
            let most = order.iter().map(n_gpus).min().unwrap_or(0).min(self.job.batch.n_micro_batches());
            let comes_out = |n: &u32| {
                self.job.batch.n_micro_batches().is_multiple_of(*n)
                    || order.iter().any(|group| n_gpus(group).is_multiple_of(*n))
            };
            for n_replicas in (1..=most).filter(comes_out) {
                let mut heads: Vec<Vec<(usize, Speed, u32)>> = vec![Vec::new()];
                for &group in &order {
                    heads = heads.iter().flat_map(|head| self.longer(head, group, n_replicas)).collect();
                }
                plans.extend(heads.iter().filter_map(|head| self.staged(head, n_replicas)));
            }
        }
        plans
    }

    /// A beginning of a pipeline with stages of one more group, at each tensor degree.
    fn longer(&self, head: &[(usize, Speed, u32)], group: usize, n_replicas: u32) -> Vec<Vec<(usize, Speed, u32)>> {
        let mut found = Vec::new();
        for &speed in &self.speeds[group] {
            let n_stages = self.job.groups[group].cluster.n_gpus() / (n_replicas * speed.n_gpus);
            if n_stages > 0 {
                found.push(head.iter().copied().chain([(group, speed, n_stages)]).collect());
            }
        }
        found
    }

    fn staged(&self, parts: &[(usize, Speed, u32)], n_replicas: u32) -> Option<Pipelines> {
        let of_stages: Vec<(usize, Speed)> =
            parts.iter().flat_map(|&(group, speed, n)| std::iter::repeat_n((group, speed), n as usize)).collect();
        let speeds: Vec<Speed> = of_stages.iter().map(|(_, speed)| *speed).collect();
        let layers = self.layers(&speeds)?;
        let stage = |((group, speed), layers): (&(usize, Speed), u32)| {
            let slot = Slot { group: *group, n_gpus: speed.n_gpus, times: None };
            MixedStage { layers, slots: vec![slot; n_replicas as usize], sizes: None }
        };
        let stages = of_stages.iter().zip(layers).map(stage).collect();
        // Replicas are alike, so their micro-batches differ by one at most.
        let n_replicas = n_replicas as usize;
        Some(Pipelines {
            stages,
            micro_batches: shared(self.job.batch.n_micro_batches(), &vec![1.0; n_replicas], &vec![0.0; n_replicas])?,
        })
    }

    /// Plans whose replicas lie on one group each, all groups together.
    fn by_replica(&self) -> Vec<Pipelines> {
        let mut plans = Vec::new();
        for n_stages in 1..=self.n_layers.min(STAGES_MAX) {
            let mut heads: Vec<Vec<(usize, Speed)>> = vec![Vec::new()];
            for (group, speeds) in self.speeds.iter().enumerate() {
                let n_gpus = self.job.groups[group].cluster.n_gpus();
                let fits = |speed: &&Speed| speed.n_gpus * n_stages <= n_gpus;
                let choices: Vec<Vec<(usize, Speed)>> = speeds
                    .iter()
                    .filter(fits)
                    .map(|speed| vec![(group, *speed); (n_gpus / (speed.n_gpus * n_stages)) as usize])
                    .collect();
                heads =
                    heads.iter().flat_map(|head| choices.iter().map(|more| [head.as_slice(), more].concat())).collect();
            }
            plans.extend(heads.iter().filter_map(|head| self.replicated(head, n_stages)));
        }
        plans
    }

    fn replicated(&self, replicas: &[(usize, Speed)], n_stages: u32) -> Option<Pipelines> {
        let (_, slowest) = replicas.iter().max_by(|a, b| a.1.layer_s.total_cmp(&b.1.layer_s))?;
        let layers = self.layers(&vec![*slowest; n_stages as usize])?;
        let most = real(layers.iter().map(|n| u64::from(*n)).max()?);
        let paces: Vec<f64> = replicas.iter().map(|(_, speed)| speed.layer_s * most).collect();
        let micro_batches = shared(self.job.batch.n_micro_batches(), &paces, &vec![0.0; paces.len()])?;
        let slots: Vec<Slot> =
            replicas.iter().map(|(group, speed)| Slot { group: *group, n_gpus: speed.n_gpus, times: None }).collect();
        let stage = |layers: &u32| MixedStage { layers: *layers, slots: slots.clone(), sizes: None };
        Some(Pipelines { stages: layers.iter().map(stage).collect(), micro_batches })
    }

    /// From a played plan, one that becomes no better where one layer moves from a stage to another; and how many moves were played.
    fn moved(&self, start: Judged) -> (Judged, usize) {
        let n_stages = start.1.stages.len();
        let (mut best, mut n_played, mut since_better) = (start, 0, 0);
        let pairs: Vec<(usize, usize)> = (0..n_stages)
            .flat_map(|from| (0..n_stages).map(move |to| (from, to)))
            .filter(|(from, to)| from != to)
            .collect();
        // The first move that helps is taken, and the round goes on behind it: it ends when no move of a whole round has helped.
        for &(from, to) in pairs.iter().cycle() {
            if since_better == pairs.len() || n_played == MOVES_MAX || stop::is_asked() {
                break;
            }
            since_better += 1;
            let mut plan = best.1.clone();
            if plan.stages[from].layers < 2 {
                continue;
            }
            plan.stages[from].layers -= 1;
            plan.stages[to].layers += 1;
            if !fits(self.job, &plan) {
                continue;
            }
            n_played += 1;
            match self.played(&plan) {
                Some(played) if played < best.0 => (best, since_better) = ((played, plan), 0),
                _ => {}
            }
        }
        (best, n_played)
    }

    /// Layers of stages of these speeds, so that the slowest is as fast as can be.
    fn layers(&self, speeds: &[Speed]) -> Option<Vec<u32>> {
        if speeds.len() > STAGES_MAX as usize {
            return None;
        }
        let mut begun: Vec<f64> = vec![0.0; speeds.len()];
        begun[0] += speeds[0].ends_s[0];
        *begun.last_mut()? += speeds.last()?.ends_s[1];
        let paces: Vec<f64> = speeds.iter().map(|speed| speed.layer_s).collect();
        shared(self.n_layers, &paces, &begun)
    }
}

/// Shares equal items among workers that need so long for one and have begun with so much: each has one, and the last to finish is as early as can
/// be. `None` where there are fewer items than workers.
fn shared(n_items: u32, paces: &[f64], begun: &[f64]) -> Option<Vec<u32>> {
    let mut shares = vec![1_u32; paces.len()];
    let rest = n_items.checked_sub(u32::try_from(paces.len()).ok()?)?;
    for _ in 0..rest {
        let end = |index: usize| begun[index] + f64::from(shares[index] + 1) * paces[index];
        let first = (0..paces.len()).min_by(|a, b| end(*a).total_cmp(&end(*b)))?;
        shares[first] += 1;
    }
    Some(shares)
}

/// Every order of every choice of at least one of so many groups.
fn orders(n: usize) -> Vec<Vec<usize>> {
    let (mut all, mut longest) = (Vec::new(), vec![Vec::new()]);
    for _ in 0..n {
        let mut next = Vec::new();
        for order in &longest {
            next.extend(
                (0..n).filter(|group| !order.contains(group)).map(|group| [order.as_slice(), &[group]].concat()),
            );
        }
        all.extend(next.iter().cloned());
        longest = next;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_counted() {
        // Of three: three alone, six pairs, six triples.
        assert_eq!(orders(3).len(), 15);
        assert_eq!(orders(1), [vec![0]]);
    }

    /// Thirty plans over both groups look better than those of one group alone, of which there are five: three of these are played all the same.
    #[test]
    fn every_choice_of_groups_is_played() {
        let plan = |groups: &[usize]| {
            let slot = |group: &usize| Slot { group: *group, n_gpus: 1, times: None };
            let stage = MixedStage { layers: 1, slots: groups.iter().map(slot).collect(), sizes: None };
            Pipelines { stages: vec![stage], micro_batches: vec![1] }
        };
        let mut sorted: Vec<Judged> = (0..30).map(|s| (f64::from(s), plan(&[0, 1]))).collect();
        sorted.extend((30..35).map(|s| (f64::from(s), plan(&[1]))));
        let kept = first_of_each(sorted);
        let alone = kept.iter().filter(|plan| choice(plan) == BTreeSet::from([1])).count();
        assert_eq!((kept.len(), alone), (PLAYED_MAX + 3, 3));
    }

    #[test]
    fn shares_are_those_of_every_division() {
        // Seven items for workers of 1, 2 and 4 seconds, one of whom has begun: against all divisions.
        let (paces, begun) = ([1.0, 2.0, 4.0], [0.0, 1.5, 0.0]);
        let last = |shares: &[u32]| {
            (0..3).map(|index| begun[index] + f64::from(shares[index]) * paces[index]).fold(0.0, f64::max)
        };
        let found = last(&shared(7, &paces, &begun).expect("enough items"));
        let all = (1..=5).flat_map(|a| (1..=6 - a).map(move |b| [a, b, 7 - a - b]));
        let best = all.map(|shares| last(&shares)).fold(f64::INFINITY, f64::min);
        assert!((found - best).abs() < 1e-12, "{found} against {best}");
        assert_eq!(shared(2, &paces, &begun), None);
    }
}
