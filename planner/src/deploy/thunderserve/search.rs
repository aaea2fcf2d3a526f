//! Tabu search over groups and phases, flips alone for re-planning, and the value of a deployment.
//!
//! A state is a sorted list of (GPUs per machine, phase); groups that cannot hold the model are idle. Stages of a group depend on its GPUs
//! and phase alone and are kept. Invariant: every draw comes from one named stream, ties end at the first neighbour.

use std::collections::BTreeMap;

use engine::random::{self, Stream};

use super::group::{self, Speed, Stage};
use super::transport::{self, Transport};
use super::{Deployment, Group, Phase, Tabu, Task, bound};
use crate::deploy::RentalError;
use crate::proof::{Aim, Bound, Decision, RunnerUp, Status};
use engine::stop;

type Key = (Vec<u32>, Phase);
/// Distance to the bound that rounding explains.
const CLOSED: f64 = 1e-9;
/// Pairs of a link with the part of its time that all requests would take.
type Wire = Vec<(usize, usize, f64)>;

/// Stages that a group may have, and what hangs on no load: requests per second within the targets, and the share whose prompts are in time.
struct Way {
    stages: Vec<Stage>,
    rate: f64,
    in_time: f64,
}

/// Ways of groups that were worked out before, for tasks that differ in their arrivals alone.
#[derive(Default)]
pub(super) struct Ways(BTreeMap<Key, Vec<Way>>);

impl Ways {
    fn of(&mut self, task: &Task, key: &Key) -> &[Way] {
        let way = |stages: Vec<Stage>| Way {
            rate: group::speed(task, &stages, key.1).rate,
            in_time: group::in_time(task, &stages, key.1),
            stages,
        };
        self.0.entry(key.clone()).or_insert_with(|| group::layouts(task, &key.0).into_iter().map(way).collect())
    }
}

/// Stages and values that were worked out before.
struct Known<'a> {
    task: &'a Task,
    ways: &'a mut Ways,
    best: BTreeMap<Key, Vec<Stage>>,
    attained: BTreeMap<Vec<Key>, f64>,
}

impl<'a> Known<'a> {
    const fn new(task: &'a Task, ways: &'a mut Ways) -> Self {
        Self { task, ways, best: BTreeMap::new(), attained: BTreeMap::new() }
    }

    /// The group with the stages that are fastest in its phase.
    fn group(&mut self, key: &Key) -> Group {
        let (load, ways) = (self.task.requests_per_s, self.ways.of(self.task, key));
        let stages = self.best.entry(key.clone()).or_insert_with(|| {
            // What arrives is all that a group can serve, and a fast pipeline that is late with long prompts serves less of it.
            let worth = |way: &Way| (way.rate.min(load) * way.in_time, way.rate * way.in_time);
            let best = ways.iter().reduce(|a, b| if worth(b) > worth(a) { b } else { a });
            best.filter(|way| worth(way).1 > 0.0).map_or_else(Vec::new, |way| way.stages.clone())
        });
        Group { n_gpus: key.0.clone(), phase: key.1, stages: stages.clone() }
    }

    /// Attainment of a state; states that were not seen before are added to `seen`.
    fn attained(&mut self, state: &[Key], seen: &mut Seen) -> f64 {
        if let Some(&attained) = self.attained.get(state) {
            return attained;
        }
        let deployment = value(self.task, self.groups(state));
        seen.add(&deployment);
        self.attained.insert(state.to_vec(), deployment.attainment);
        deployment.attainment
    }

    fn groups(&mut self, state: &[Key]) -> Vec<Group> {
        state.iter().map(|key| self.group(key)).collect()
    }
}

/// Share of requests that meet both targets on a pair without waiting.
fn met(task: &Task, prefill: &Group, decode: &Group, token_s: f64) -> f64 {
    let (from, to) = (group::home(&prefill.stages), group::home(&decode.stages));
    let bandwidth = task.bandwidth(from, to);
    let meets = |(lengths, _): &&(super::Lengths, f64)| {
        let wire = task.start_s(from, to) + task.wire_bytes(lengths.input.as_f64()) / bandwidth;
        let first = group::prefill_s(task, &prefill.stages, lengths.input);
        first <= task.ttft_s && wire / lengths.output.as_f64() + token_s <= task.tpot_s
    };
    task.classes.iter().filter(meets).map(|(_, share)| share).sum()
}

/// The transportation program of groups: indices of prefill and decode groups with it.
fn program(task: &Task, groups: &[Group]) -> (Vec<usize>, Vec<usize>, Transport) {
    let of = |phase| (0..groups.len()).filter(move |&g| groups[g].phase == phase && !groups[g].stages.is_empty());
    let (prefill, decode): (Vec<usize>, Vec<usize>) = (of(Phase::Prefill).collect(), of(Phase::Decode).collect());
    let speed = |&g: &usize| group::speed(task, &groups[g].stages, groups[g].phase);
    let speeds: Vec<Speed> = decode.iter().map(speed).collect();
    let revenue = |&i: &usize| {
        decode.iter().zip(&speeds).map(|(&j, speed)| met(task, &groups[i], &groups[j], speed.token_s)).collect()
    };
    let (input, _) = task.mean();
    let mut wires: BTreeMap<(usize, usize), Wire> = BTreeMap::new();
    for (i, &a) in prefill.iter().enumerate() {
        for (j, &b) in decode.iter().enumerate() {
            let link = (group::home(&groups[a].stages), group::home(&groups[b].stages));
            let busy = task.requests_per_s * task.wire_bytes(input) / task.bandwidth(link.0, link.1);
            wires.entry(link).or_default().push((i, j, busy));
        }
    }
    let transport = Transport {
        prefill: prefill.iter().map(|g| speed(g).rate / task.requests_per_s).collect(),
        decode: speeds.iter().map(|speed| speed.rate / task.requests_per_s).collect(),
        revenue: prefill.iter().map(revenue).collect(),
        wires: wires.into_values().collect(),
    };
    (prefill, decode, transport)
}

/// Groups with their best routes.
fn value(task: &Task, groups: Vec<Group>) -> Deployment {
    let (prefill, decode, program) = program(task, &groups);
    let (shares, attainment) = transport::solve(&program).unwrap_or_default();
    let mut routes = vec![vec![0.0; groups.len()]; groups.len()];
    for (i, row) in shares.iter().enumerate() {
        row.iter().enumerate().for_each(|(j, &share)| routes[prefill[i]][decode[j]] = share);
    }
    let requests_per_s = shares.iter().flatten().sum::<f64>() * task.requests_per_s;
    Deployment { groups, routes, attainment, requests_per_s, n_evaluated: 1 }
}

/// The limit whose lifting would help most.
fn limit(task: &Task, deployment: &Deployment) -> String {
    let (_, _, program) = program(task, &deployment.groups);
    let mut lifted: Vec<(String, Transport)> = Vec::new();
    let free = |caps: &[f64]| vec![1.0; caps.len()];
    lifted.push((
        "rate of the prefill groups".to_owned(),
        Transport { prefill: free(&program.prefill), ..program.clone() },
    ));
    lifted
        .push(("rate of the decode groups".to_owned(), Transport { decode: free(&program.decode), ..program.clone() }));
    lifted.push(("links between the machines".to_owned(), Transport { wires: Vec::new(), ..program.clone() }));
    let all = program.revenue.iter().map(|row| vec![1.0; row.len()]).collect();
    lifted.push(("latency targets of the slow pairs".to_owned(), Transport { revenue: all, ..program }));
    let gains = lifted.into_iter().map(|(words, program)| {
        (transport::solve(&program).map_or(0.0, |(_, value)| value) - deployment.attainment, words)
    });
    match gains.reduce(|a, b| if b.0 > a.0 { b } else { a }) {
        Some((gain, words)) if gain > 1e-6 => format!("{words}: without that limit {gain:.3} more of all requests"),
        _ if deployment.attainment > 1.0 - 1e-6 => "none: every request meets its targets".to_owned(),
        _ => "no single limit".to_owned(),
    }
}

/// Groups in words.
pub(super) fn words(task: &Task, groups: &[Group]) -> String {
    let stage = |s: &Stage| format!("{} x {} for {} layers", s.tp, task.machines.offers[s.machine].name, s.layers);
    let group = |g: &Group| {
        let phase = if g.phase == Phase::Prefill { "prefill" } else { "decode" };
        format!("{phase} on {}", g.stages.iter().map(stage).collect::<Vec<_>>().join(", then "))
    };
    groups.iter().filter(|g| !g.stages.is_empty()).map(group).collect::<Vec<_>>().join("; ")
}

/// The best that was seen and the second best that is another deployment.
#[derive(Default)]
struct Seen {
    best: Option<Deployment>,
    second: Option<Deployment>,
    n: usize,
}

impl Seen {
    fn add(&mut self, deployment: &Deployment) {
        self.n += 1;
        let better = |than: &Option<Deployment>| than.as_ref().is_none_or(|d| deployment.attainment > d.attainment);
        let is = |other: &Option<Deployment>| other.as_ref().is_some_and(|d| d.groups == deployment.groups);
        if better(&self.best) {
            self.second = self.best.replace(deployment.clone());
        } else if !is(&self.best) && better(&self.second) {
            self.second = Some(deployment.clone());
        }
    }

    fn end(self, task: &Task) -> Result<Decision<Deployment>, RentalError> {
        let nothing = "no groups of these GPUs hold the model in both phases within the targets";
        let found = self.best.filter(|best| best.attainment > 0.0);
        let mut best = found.ok_or_else(|| RentalError::Infeasible(nothing.to_owned()))?;
        best.n_evaluated = self.n;
        // Rounding alone puts an attainment above the bound.
        let bound = if best.attainment > 1.0 - CLOSED { 1.0 } else { bound::split(task) / task.requests_per_s };
        let bound = bound.max(best.attainment);
        let status = if bound - best.attainment < CLOSED { Status::Optimal } else { Status::Heuristic };
        let (limit, attainment) = (limit(task, &best), best.attainment);
        let second = self.second.filter(|second| second.attainment > 0.0);
        let second = second.map(|plan| RunnerUp { objective: plan.attainment, plan });
        let decision = Decision::new(best, Aim::AttainmentRatio, attainment).bounded(Some(Bound::plain(bound)), status);
        Ok(decision.limited(limit).beside(second))
    }
}

/// Whole machines, where those with more operations per byte of bandwidth read prompts, or the others; halves of every machine; halves of all.
fn start(task: &Task) -> Vec<Vec<Key>> {
    let n = task.n_machines();
    let ratio = |m: usize| {
        let gpu = task.gpu(m);
        gpu.peak_bf16.get() / gpu.memory_bandwidth.get()
    };
    let mut machines: Vec<usize> = (0..n).filter(|&m| task.machines.offers[m].n_available > 0).collect();
    machines.sort_by(|&a, &b| ratio(b).total_cmp(&ratio(a)));
    let on = |m: usize, count: u32| (0..n).map(|other| if other == m { count } else { 0 }).collect::<Vec<u32>>();
    let phase = |at: usize| if 2 * at < machines.len() { Phase::Prefill } else { Phase::Decode };
    let whole = machines.iter().enumerate().map(|(at, &m)| (on(m, task.machines.offers[m].n_available), phase(at)));
    let halves = machines.iter().flat_map(|&m| {
        let count = task.machines.offers[m].n_available;
        [(on(m, count - count / 2), Phase::Prefill), (on(m, count / 2), Phase::Decode)]
    });
    let all = task.machines.offers.iter().map(|machine| machine.n_available).collect::<Vec<_>>();
    let half: Vec<u32> = all.iter().map(|count| count / 2).collect();
    let rest: Vec<u32> = all.iter().zip(&half).map(|(all, half)| all - half).collect();
    let mixed = vec![(half, Phase::Decode), (rest, Phase::Prefill)];
    let whole: Vec<Key> = whole.collect();
    let swapped = whole.iter().map(|(n_gpus, phase)| (n_gpus.clone(), phase.other())).collect();
    [whole, swapped, halves.collect(), mixed].map(normal).to_vec()
}

/// Every GPU in one of a few groups, phases in turn.
fn random_start(task: &Task, stream: &mut Stream) -> Vec<Key> {
    let n_groups = 2 + stream.below(3);
    let phase = |at: u64| if at.is_multiple_of(2) { Phase::Prefill } else { Phase::Decode };
    let mut state: Vec<Key> = (0..n_groups).map(|at| (vec![0; task.n_machines()], phase(at))).collect();
    for (m, machine) in task.machines.offers.iter().enumerate() {
        for _ in 0..machine.n_available {
            let to = usize::try_from(stream.below(n_groups)).expect("few groups");
            state[to].0[m] += 1;
        }
    }
    normal(state)
}

/// Sorted, without empty groups.
fn normal(mut state: Vec<Key>) -> Vec<Key> {
    state.retain(|(n_gpus, _)| n_gpus.iter().any(|&n| n > 0));
    state.sort();
    state
}

fn with(state: &[Key], without: &[usize], added: Vec<Key>) -> Vec<Key> {
    let kept = state.iter().enumerate().filter(|(at, _)| !without.contains(at)).map(|(_, key)| key.clone());
    normal(kept.chain(added).collect())
}

/// All states one move away.
fn neighbours(state: &[Key]) -> Vec<Vec<Key>> {
    let mut all = Vec::new();
    for (at, (n_gpus, phase)) in state.iter().enumerate() {
        all.push(with(state, &[at], vec![(n_gpus.clone(), phase.other())]));
        for (m, &count) in n_gpus.iter().enumerate() {
            // Split: some GPUs of one machine leave, in either phase.
            for leaving in 1..=count {
                stop::pause();
                let mut rest = n_gpus.clone();
                rest[m] -= leaving;
                let mut gone = vec![0; n_gpus.len()];
                gone[m] = leaving;
                let other = phase.other();
                all.push(with(state, &[at], vec![(rest.clone(), *phase), (gone.clone(), *phase)]));
                all.push(with(state, &[at], vec![(rest.clone(), *phase), (gone, other)]));
                // Move: to each other group.
                for (to, (target, target_phase)) in state.iter().enumerate().filter(|(to, _)| *to != at) {
                    let mut grown = target.clone();
                    grown[m] += leaving;
                    all.push(with(state, &[at, to], vec![(rest.clone(), *phase), (grown, *target_phase)]));
                }
            }
        }
        for (to, (target, target_phase)) in state.iter().enumerate().skip(at + 1) {
            let sum: Vec<u32> = n_gpus.iter().zip(target).map(|(a, b)| a + b).collect();
            all.push(with(state, &[at, to], vec![(sum, *target_phase)]));
            if phase != target_phase {
                let exchanged = vec![(n_gpus.clone(), *target_phase), (target.clone(), *phase)];
                all.push(with(state, &[at, to], exchanged));
            }
        }
    }
    all.sort();
    all.dedup();
    all.retain(|other| other != state);
    all
}

/// Tabu search over groups and phases from several starts; `ways` are those of the same task under any load.
pub(super) fn full(task: &Task, ways: &mut Ways, tabu: Tabu) -> Result<Decision<Deployment>, RentalError> {
    let mut known = Known::new(task, ways);
    let mut seen = Seen::default();
    let mut stream = random::stream(tabu.seed, "thunderserve");
    let drawn: Vec<Vec<Key>> = (0..tabu.restarts).map(|_| random_start(task, &mut stream)).collect();
    for state in start(task).into_iter().chain(drawn) {
        descend(&mut known, &mut seen, state, tabu, &mut stream);
    }
    seen.end(task)
}

fn descend(known: &mut Known<'_>, seen: &mut Seen, mut state: Vec<Key>, tabu: Tabu, stream: &mut Stream) {
    known.attained(&state, seen);
    let mut forbidden: Vec<Vec<Key>> = vec![state.clone()];
    for _ in 0..tabu.steps {
        let mut open = neighbours(&state);
        open.retain(|other| !forbidden.contains(other));
        stream.shuffle(&mut open);
        open.truncate(tabu.neighbours.max(1));
        let mut best: Option<(f64, Vec<Key>)> = None;
        for other in open {
            let attained = known.attained(&other, seen);
            if best.as_ref().is_none_or(|(most, _)| attained > *most) {
                best = Some((attained, other));
            }
        }
        let Some((_, next)) = best else { return };
        state = next;
        forbidden.push(state.clone());
        if forbidden.len() > tabu.memory.max(1) {
            forbidden.remove(0);
        }
        if stop::is_asked() || seen.best.as_ref().is_some_and(|best| best.attainment > 1.0 - 1e-9) {
            return;
        }
    }
}

/// Groups whose GPUs the pool still has, in their order.
fn alive(task: &Task, deployment: &Deployment) -> Vec<Group> {
    let mut left: Vec<u32> = task.machines.offers.iter().map(|machine| machine.n_available).collect();
    let mut kept = Vec::new();
    for group in &deployment.groups {
        if group.n_gpus.len() == left.len() && group.n_gpus.iter().zip(&left).all(|(n, left)| n <= left) {
            left.iter_mut().zip(&group.n_gpus).for_each(|(left, n)| *left -= n);
            kept.push(group.clone());
        }
    }
    kept
}

/// What is left, with new routes.
pub(super) fn kept(task: &Task, deployment: &Deployment) -> Result<Decision<Deployment>, RentalError> {
    let mut seen = Seen::default();
    seen.add(&value(task, alive(task, deployment)));
    seen.end(task)
}

/// What is left, with phases flipped one by one; the best of all that was seen counts.
pub(super) fn flips(task: &Task, deployment: &Deployment) -> Result<Decision<Deployment>, RentalError> {
    let mut groups = alive(task, deployment);
    let mut seen = Seen::default();
    seen.add(&value(task, groups.clone()));
    let mut forbidden: Vec<Vec<Phase>> = Vec::new();
    // Twice as many steps as groups let every group flip and flip back.
    for _ in 0..2 * groups.len() {
        forbidden.push(groups.iter().map(|group| group.phase).collect());
        let mut best: Option<Deployment> = None;
        for at in 0..groups.len() {
            let mut flipped = groups.clone();
            flipped[at].phase = flipped[at].phase.other();
            if forbidden.contains(&flipped.iter().map(|group| group.phase).collect()) {
                continue;
            }
            let found = value(task, flipped);
            seen.add(&found);
            if best.as_ref().is_none_or(|best| found.attainment > best.attainment) {
                best = Some(found);
            }
        }
        let Some(next) = best else { break };
        groups = next.groups;
    }
    seen.end(task)
}

/// The best of every partition into groups and every phase, for small pools, with the stages that the search takes: the tests' truth.
#[cfg(test)]
pub(super) fn exhaustive(task: &Task) -> f64 {
    let mut ways = Ways::default();
    let mut known = Known::new(task, &mut ways);
    let mut best = 0.0_f64;
    every_partition(task, &mut |key| vec![known.group(key)], &mut |found| best = best.max(found.attainment));
    best
}

/// The same with all stages that a group may have.
#[cfg(test)]
pub(super) fn exhaustive_stages(task: &Task) -> f64 {
    let mut best = 0.0_f64;
    every_deployment(task, &mut |found| best = best.max(found.attainment));
    best
}

/// Every partition into groups with every phase and all stages that a group may have, each with its best routes.
#[cfg(test)]
pub(super) fn every_deployment(task: &Task, found: &mut dyn FnMut(Deployment)) {
    let group = |key: &Key, stages| Group { n_gpus: key.0.clone(), phase: key.1, stages };
    let groups = &mut |key: &Key| group::layouts(task, &key.0).into_iter().map(|s| group(key, s)).collect();
    every_partition(task, groups, found);
}

#[cfg(test)]
fn every_partition(task: &Task, groups: &mut dyn FnMut(&Key) -> Vec<Group>, found: &mut dyn FnMut(Deployment)) {
    let all: Vec<u32> = task.machines.offers.iter().map(|machine| machine.n_available).collect();
    let mut open: Vec<(Vec<Group>, Vec<u32>)> = vec![(Vec::new(), all)];
    while let Some((state, left)) = open.pop() {
        found(value(task, state.clone()));
        let sizes: Vec<usize> = left.iter().map(|&n| n as usize + 1).collect();
        for code in 1..sizes.iter().product::<usize>() {
            let mut code = code;
            let mut n_gpus = Vec::new();
            for &size in &sizes {
                n_gpus.push(u32::try_from(code % size).expect("few"));
                code /= size;
            }
            let rest: Vec<u32> = left.iter().zip(&n_gpus).map(|(left, n)| left - n).collect();
            for phase in [Phase::Prefill, Phase::Decode] {
                let key = (n_gpus.clone(), phase);
                // Groups in order, and only those that hold the model: every state once.
                if state.last().is_none_or(|last| (&last.n_gpus, last.phase) <= (&key.0, key.1)) {
                    let holding = groups(&key).into_iter().filter(|group| !group.stages.is_empty());
                    open.extend(holding.map(|group| ([state.as_slice(), &[group]].concat(), rest.clone())));
                }
            }
        }
    }
}
