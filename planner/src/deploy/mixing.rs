//! Rates under the mix that a plan makes: plan, serve what each configuration is to serve, correct its rates, plan again.
//!
//! A program adds up times: a replica that serves n_w requests of each type takes Σ_w n_w/h_w. A real one batches the types together, so that
//! prompts ride along with decodes, and it needs time to fill and to drain; its time differs by a factor that depends on the mix. Here the
//! factor of every configuration that a plan uses is found by serving its mix on one replica, m = Σ_w n_w/h_w / served, and its rates become
//! m·h_w. The rest is a fixed point: shares are decided again under these rates until plan and service agree, and replicas are decided again until
//! the program returns some that were served before. Shares of every choice start from the same factors, so a choice has one time whatever was
//! served before it; from step to step factors move by less (the method of successive averages), so they cannot swing. Of all that were served,
//! the plan that ends soonest is the answer; its makespan and its rates are those of its own mix. Its bound holds for these rates:
//! configurations that were never chosen keep the factor that they started with. Configurations of one kind (`kinds.rs`) have one mix and one factor.
//!
//! Requests may be shared in several ways. What ends soonest by rates may not when it is served, for a replica that has some of all types batches prompts
//! with decodes. So the same shares for every replica, those of round robin, are served beside the program's.
//!
//! The program does not see what serving does: fewer replicas may end sooner, for whole requests fall on them more evenly or batches are
//! fuller. So plans around the best one are served too: a replica less, one more, or one of another configuration in its place; and what the
//! program rents for less than the best one costs.
//!
//! The second choice is served like the first: the program's second plan at the answer's rates has a mix of its own, and what it would end
//! after at the answer's rates says nothing. Where it ends sooner, it is the answer.

use std::cmp::Ordering;

use super::cost_efficiency::{Assignment, assigned};
use super::kinds::{self, Kinds};
use super::{Plan, Problem, RentalError};
use crate::proof::{Aim, Bound, Decision, RunnerUp, Status};

/// Plans around the best one that are served in a round: those that end soonest by the rates learned so far.
const AROUND_MAX: usize = 4;
/// Choices of replicas that are served at most before a second choice is looked for, and second choices at most.
const ROUNDS_MAX: usize = 4;
/// Times that shares of one choice are decided at most.
const SHARES_MAX: u32 = 8;
/// Times that a plan may take over its promise before it is served: rates of another mix are off by as much.
const SLACKS: [f64; 4] = [1.1, 1.05, 1.025, 1.0125];
/// Part of a price by which a smaller one is asked: more than rounding, less than a GPU costs.
const LESS: f64 = 1e-6;
/// Relative difference of times or prices that is rounding: such plans are as good.
const ROUNDING: f64 = 1e-9;
/// Relative difference of planned and served time that counts as agreement.
const AGREES: f64 = 0.01;

/// A plan that was held against serving its own mix.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    /// The plan; what is proved is about the corrected rates.
    pub decision: Decision<Plan>,
    /// The problem with the rates that the plan was made with.
    pub problem: Problem,
    /// Corrected rate over the rate of types served alone, by configuration.
    pub mixing: Vec<f64>,
    /// Choices of replicas that were served.
    pub n_rounds: usize,
}

/// The best plan with other replicas than one's.
pub type Second<'a> = dyn Fn(&Problem, &Plan) -> Option<Plan> + 'a;

/// What a policy counts of a plan that was served, at the rates of its own mix, to be least; where the plan keeps no promise,
/// the seconds after which it ends.
pub type Worth<'a> = dyn Fn((&Problem, &Plan)) -> Result<f64, f64> + 'a;

/// Replicas for a problem whose promise may be missed by a ratio, or must be kept with so much room where it is below 1.
pub type Hopeful<'a> = dyn Fn(&Problem, f64) -> Option<Vec<u32>> + 'a;

/// How a policy decides.
pub struct Decide<'a> {
    /// What is counted, to be least.
    pub aim: Aim,
    /// How much of it a plan has.
    pub worth: &'a Worth<'a>,
    /// Replicas and shares with their proof.
    pub solve: &'a dyn Fn(&Problem) -> Result<Decision<Plan>, RentalError>,
    /// Replicas that may keep a promise which rates of another mix deny them by a ratio; `None` where there is no promise.
    pub hopeful: Option<&'a Hopeful<'a>>,
    /// Replicas that the answer must not lose against, of policies that decide less or of a smaller budget: rates of a mix may hide them.
    pub others: &'a dyn Fn() -> Vec<Vec<u32>>,
    /// Whether any replicas that can be rented are a plan of the policy.
    pub is_whole: bool,
    /// Ways to share requests among given replicas; the first ends soonest by the rates.
    pub assignments: &'a [Assignment],
    /// The best plan with other replicas; `None` where nobody asks for it.
    pub second: Option<&'a Second<'a>>,
}

/// A plan that ends when its slowest configuration was served, with the factors of its own mix.
#[derive(Clone, Debug)]
struct Tried {
    plan: Plan,
    mixing: Vec<f64>,
    /// What counts of it; the seconds after which it ends where it keeps no promise.
    worth: Result<f64, f64>,
}

impl Tried {
    /// What counts of it, to be least.
    fn least(&self) -> f64 {
        self.worth.unwrap_or(f64::INFINITY)
    }

    /// How it compares: by what counts, then by the other of time and price.
    fn order(&self, other: &Self, aim: Aim) -> Ordering {
        let second = |tried: &Self| match aim {
            Aim::UsdPerHour => tried.plan.makespan_s,
            _ => tried.plan.usd_per_hour,
        };
        order(self.least(), other.least()).then_with(|| order(second(self), second(other)))
    }
}

/// How two figures compare, where a difference of rounding is none.
fn order(a: f64, b: f64) -> Ordering {
    if (a - b).abs() <= ROUNDING * a.abs().max(b.abs()) { Ordering::Equal } else { a.total_cmp(&b) }
}

/// What was served so far.
struct Search<'a> {
    problem: &'a Problem,
    kinds: Kinds,
    decide: &'a Decide<'a>,
    serve: &'a dyn Fn(usize, &[f64]) -> f64,
    /// Factors from which the shares of every choice start.
    start: &'a [f64],
    /// What was learned of every configuration last.
    mixing: Vec<f64>,
    seen: Vec<Vec<u32>>,
    /// How many of those were served in hope.
    n_hopeful: usize,
    /// The best first, of equals the one that was served first.
    tried: Vec<Tried>,
}

/// A plan whose rates are those of its own mix. `start[c]` is the factor of a configuration before it was chosen, for example under the mix
/// of all demands; `serve(c, n)` is how long one replica of c takes for `n[w]` requests of each demand.
///
/// # Errors
/// As the policy's.
pub fn settle(
    problem: &Problem,
    start: &[f64],
    decide: &Decide<'_>,
    serve: &dyn Fn(usize, &[f64]) -> f64,
) -> Result<Settled, RentalError> {
    let (seen, tried, kinds) = (Vec::new(), Vec::new(), Kinds::of(problem));
    let mut search = Search { problem, kinds, decide, serve, start, mixing: start.to_vec(), seen, n_hopeful: 0, tried };
    search.hopeful();
    search.n_hopeful = search.seen.len();
    while search.seen.len() - search.n_hopeful < ROUNDS_MAX {
        let replicas = (decide.solve)(&corrected(problem, &search.mixing))?.plan.replicas;
        if !search.settle(replicas) {
            break;
        }
    }
    for replicas in (decide.others)() {
        match decide.aim {
            // What they cost is known; when they end is not.
            Aim::UsdPerHour => search.cheaper(Some(replicas)),
            _ => _ = search.settle(replicas),
        }
    }
    if decide.is_whole {
        search.for_less();
        search.around();
    }
    // What the program holds to be in time may be late when it is played.
    if let Some(hopeful) = decide.hopeful {
        for slack in SLACKS.into_iter().rev() {
            search.cheaper(hopeful(&corrected(problem, &search.mixing), slack.recip()));
        }
    }
    search.seconds();
    search.answer()
}

impl Search<'_> {
    /// Serves a choice of replicas on the cheapest offers that have them; false where it was served before.
    fn settle(&mut self, replicas: Vec<u32>) -> bool {
        let replicas = self.kinds.on_cheapest(self.problem, replicas);
        if self.seen.contains(&replicas) {
            return false;
        }
        let found = self.best_shares(&replicas);
        self.seen.push(replicas);
        if let Some((plan, factors)) = found {
            for &c in self.kinds.iter().filter(|kind| kinds::n_replicas(kind, &plan.replicas) > 0).flatten() {
                self.mixing[c] = factors[c];
            }
            let mixing = self.mixing.clone();
            let worth = (self.decide.worth)((&corrected(self.problem, &mixing), &plan));
            let found = Tried { plan, mixing, worth };
            let after = self.tried.partition_point(|other| other.order(&found, self.decide.aim).is_le());
            self.tried.insert(after, found);
        }
        true
    }

    /// The best shares of replicas among all ways to share, as they are served. Of equals the way that comes first.
    fn best_shares(&self, replicas: &[u32]) -> Option<(Plan, Vec<f64>)> {
        let of = |way: &Assignment| shares((self.problem, &self.kinds), self.start, (replicas, *way), self.serve);
        self.decide.assignments.iter().filter_map(of).min_by(|a, b| order(a.0.makespan_s, b.0.makespan_s))
    }

    /// Serves what might keep the promise, with less hope each time, until something does.
    fn hopeful(&mut self) {
        let Some(hopeful) = self.decide.hopeful else { return };
        for slack in SLACKS {
            if self.tried.first().is_some_and(|best| best.worth.is_ok()) {
                return;
            }
            if let Some(replicas) = hopeful(&corrected(self.problem, &self.mixing), slack) {
                self.settle(replicas);
            }
        }
    }

    /// Serves replicas where they are no dearer than the best so far: what they cost is known before they are served.
    fn cheaper(&mut self, replicas: Option<Vec<u32>>) {
        let best_usd = self.tried.first().map_or(f64::INFINITY, Tried::least);
        if let Some(replicas) = replicas.filter(|replicas| self.problem.usd_per_hour(replicas) <= best_usd) {
            self.settle(replicas);
        }
    }

    /// Serves what the program rents for less than the best one costs, and for less than that.
    fn for_less(&mut self) {
        if self.decide.aim == Aim::UsdPerHour {
            return;
        }
        let Some(mut usd_per_hour) = self.tried.first().map(|best| best.plan.usd_per_hour) else { return };
        for _ in 0..ROUNDS_MAX {
            let budget_usd_per_hour = usd_per_hour * (1.0 - LESS);
            let problem = Problem { budget_usd_per_hour, ..corrected(self.problem, &self.mixing) };
            let Ok(found) = (self.decide.solve)(&problem) else { return };
            usd_per_hour = found.plan.usd_per_hour;
            self.settle(found.plan.replicas);
        }
    }

    /// Serves plans around the best one, as long as that changes what is best.
    fn around(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let Some(best) = self.tried.first().map(|best| best.plan.replicas.clone()) else { return };
            let problem = corrected(self.problem, &self.mixing);
            let is_cheap = |replicas: &Vec<u32>| match self.decide.aim {
                Aim::UsdPerHour => problem.usd_per_hour(replicas) <= self.tried[0].least(),
                _ => true,
            };
            let mut open: Vec<Vec<u32>> = Vec::new();
            for replicas in neighbours(&best) {
                let replicas = self.kinds.on_cheapest(&problem, replicas);
                if !open.contains(&replicas) {
                    open.push(replicas);
                }
            }
            open.retain(|replicas| !self.seen.contains(replicas) && problem.can_rent(replicas) && is_cheap(replicas));
            let ends = |replicas: Vec<u32>| {
                Some((assigned(&problem, &replicas, self.decide.assignments[0])?.makespan_s, replicas))
            };
            let mut open: Vec<(f64, Vec<u32>)> = open.into_iter().filter_map(ends).collect();
            open.sort_by(|a, b| a.0.total_cmp(&b.0));
            open.truncate(AROUND_MAX);
            open.into_iter().for_each(|(_, replicas)| _ = self.settle(replicas));
            if self.tried[0].plan.replicas == best {
                return;
            }
        }
    }

    /// Serves the second choice beside the best one, as long as that changes what is best.
    fn seconds(&mut self) {
        let Some(second) = self.decide.second else { return };
        for _ in 0..ROUNDS_MAX {
            let Some(best) = self.tried.first().cloned() else { return };
            let other = second(&corrected(self.problem, &best.mixing), &best.plan);
            let is_new = other.is_some_and(|other| self.settle(other.replicas));
            if !is_new || self.tried[0].plan.replicas == best.plan.replicas {
                return;
            }
        }
    }

    /// The best plan, beside the next one where somebody asks.
    fn answer(self) -> Result<Settled, RentalError> {
        let n_rounds = self.seen.len();
        let mut tried = self.tried.into_iter();
        let best = tried.next().ok_or_else(|| RentalError::Infeasible("no plan could be served".to_owned()))?;
        let objective = best.worth.map_err(|ends_s| {
            let why = format!("no plan that was served keeps the deadline; the first one ends after {ends_s:.1} s");
            RentalError::Infeasible(why)
        })?;
        let second = tried.find(|other| other.plan.replicas != best.plan.replicas && other.worth.is_ok());
        let second = second.filter(|_| self.decide.second.is_some());
        let problem = corrected(self.problem, &best.mixing);
        let solved = (self.decide.solve)(&problem)?;
        // The program may still see a better plan at these rates, which its own mix would slow down; the gap says by how much.
        let status = if solved.plan.replicas == best.plan.replicas { solved.status } else { Status::Feasible };
        let bound = solved.bound().map(|bound| Bound::plain(bound.min(objective)));
        let decision = Decision::new(best.plan, self.decide.aim, objective).bounded(bound, status);
        let second = second.map(|other| RunnerUp { objective: other.least().max(objective), plan: other.plan });
        Ok(Settled { decision: decision.beside(second), problem, mixing: best.mixing, n_rounds })
    }
}

/// Replicas that differ from others by one: a replica less, one more, or one of another configuration in its place.
fn neighbours(replicas: &[u32]) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    let changed = |less: Option<usize>, more: Option<usize>| {
        let mut other = replicas.to_vec();
        less.into_iter().for_each(|c| other[c] -= 1);
        more.into_iter().for_each(|c| other[c] += 1);
        other
    };
    let used = || (0..replicas.len()).filter(|&c| replicas[c] > 0);
    all.extend(used().map(|c| changed(Some(c), None)));
    all.extend((0..replicas.len()).map(|c| changed(None, Some(c))));
    for less in used() {
        all.extend((0..replicas.len()).filter(|more| *more != less).map(|more| changed(Some(less), Some(more))));
    }
    all
}

/// Decides the shares of replicas until plan and service agree; the plan that ends soonest, and the factors of its mix.
fn shares(
    (problem, kinds): (&Problem, &Kinds),
    start: &[f64],
    (replicas, way): (&[u32], Assignment),
    serve: &dyn Fn(usize, &[f64]) -> f64,
) -> Option<(Plan, Vec<f64>)> {
    let mut best: Option<(Plan, Vec<f64>)> = None;
    let mut mixing = start.to_vec();
    for step in 1..=SHARES_MAX {
        let now = corrected(problem, &mixing);
        let mut plan = assigned(&now, replicas, way)?;
        let (mut served_s, mut apart, mut own) = (0.0_f64, 0.0_f64, mixing.clone());
        for kind in kinds.iter().filter(|kind| kinds::n_replicas(kind, replicas) > 0) {
            let (c, n) = (kind[0], f64::from(kinds::n_replicas(kind, replicas)));
            let of_kind = |w: usize| kind.iter().map(|&c| plan.shares[c][w]).sum::<f64>();
            let parts = problem.demands.iter().enumerate();
            let work: Vec<f64> = parts.map(|(w, demand)| of_kind(w) * demand.requests / n).collect();
            let cells = work.iter().zip(&now.configurations[c].requests_per_s).filter(|(n, _)| **n > 0.0);
            let planned: f64 = cells.map(|(n, rate)| n / rate).sum();
            let served = serve(c, &work);
            if planned > 0.0 && served > 0.0 {
                let ratio = planned / served;
                let factor = own[c] * ratio;
                let next = mixing[c] + (factor - mixing[c]) / f64::from(step);
                kind.iter().for_each(|&c| (own[c], mixing[c]) = (factor, next));
                served_s = served_s.max(served);
                apart = apart.max((ratio - 1.0).abs());
            }
        }
        plan.makespan_s = served_s;
        let found = (plan, own);
        best = [best, Some(found)].into_iter().flatten().min_by(|a, b| a.0.makespan_s.total_cmp(&b.0.makespan_s));
        if apart <= AGREES {
            break;
        }
    }
    best
}

/// The problem with every configuration's rates times its factor.
fn corrected(problem: &Problem, mixing: &[f64]) -> Problem {
    let mut problem = problem.clone();
    for (configuration, factor) in problem.configurations.iter_mut().zip(mixing) {
        configuration.requests_per_s.iter_mut().for_each(|rate| *rate *= factor);
    }
    problem
}

#[cfg(test)]
mod tests;
