//! Work that is to end soonest within a budget, or within a deadline for the fewest dollars: find rates, decide what to rent, replay the plan.
//!
//! Configurations are given with their rates, or every GPU type is tried with the degrees that are allowed and its rates come from the serving
//! simulator or from a roofline (`rental/rates.rs`). `rental/order.rs` puts all in an order that no file changes, `rental/lay.rs` lays a plan on
//! machines as the deployments that the request loop plays, `rental/figures.rs` serves it, `rental/words.rs` says it. Units: dollars per hour, seconds, requests.

mod answers;
mod figures;
mod lay;
mod order;
mod rates;
mod words;

use engine::model::Model;
use engine::play::Case;

use super::cost_efficiency::{self, Assignment, Form, Options};
use super::inventory::Inventory;
use super::mixing::{self, Settled};
use super::objective::Limit;
use super::policies::{self, Renting};
use super::simulated::{self, Arriving};
use super::throughput::{Lengths, Parallel};
use super::{Configuration, Demand, Plan, Problem, RentalError, usd};
use crate::milp::Budget;
use crate::proof::{Aim, Bound, Decision, Status};

pub use answers::Answers;
pub use figures::Figures;
use lay::Rents;
pub use lay::deployments;
pub use rates::{Costs, Rated, Rates, ReplicaOptions, Unheld};
pub use words::{plan_json, rented};

/// Nodes of a search at most, and seconds behind them: a search that the clock ends is not the same everywhere, so that it should not.
const NODES: i32 = 50_000;
const SECONDS: f64 = 120.0;

/// How one replica of an enumerated configuration lies on its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deployed {
    /// GPU type.
    pub offer: usize,
    /// Model.
    pub model: usize,
    /// Degrees.
    pub parallel: Parallel,
}

/// Where configurations come from.
#[derive(Clone, Debug)]
pub enum Configurations {
    /// Given with their rates.
    Given(Vec<Configuration>),
    /// Every GPU type with every allowed degree that holds the model.
    Enumerated(Vec<Deployed>),
}

/// A plan that is given: replicas by configuration, and shares where they are not to be decided.
#[derive(Clone, Debug)]
pub struct GivenPlan {
    /// Name in results.
    pub name: String,
    /// Replicas of each configuration.
    pub replicas: Vec<u32>,
    /// `shares[c][w]`, where given.
    pub shares: Option<Vec<Vec<f64>>>,
}

/// Who decides.
#[derive(Clone, Debug)]
pub enum Decider {
    /// A policy.
    Policy(&'static Renting),
    /// A plan that is given, an index of `Question::plans`.
    Given(usize),
}

/// Who decides within which limit.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Who decides.
    pub decider: Decider,
    /// What a plan must keep.
    pub limit: Limit,
    /// Smaller budgets or shorter deadlines that are asked too, ascending: more dollars never end later, and more time never costs more.
    pub stricter: Vec<f64>,
}

/// What every policy is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// GPU types.
    pub inventory: Inventory,
    /// How requests come when a plan is played beyond its replay.
    pub play: Option<Arriving>,
    /// Models, where configurations are enumerated.
    pub models: Vec<Model>,
    /// Names of the models.
    pub model_names: Vec<String>,
    /// Work of each request type.
    pub demands: Vec<Demand>,
    /// Lengths of each request type; a token each where configurations are given.
    pub lengths: Vec<Lengths>,
    /// What may be deployed.
    pub configurations: Configurations,
    /// Models that no memory on offer holds.
    pub unheld: Vec<Unheld>,
    /// Engine of every replica, and where rates come from.
    pub replica: ReplicaOptions,
    /// Plans to be compared.
    pub plans: Vec<GivenPlan>,
    /// Relative gap at which a search may end.
    pub gap: f64,
}

/// What was decided.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The plan and what is known of it.
    pub decision: Decision<Plan>,
    /// The problem with the rates of the plan.
    pub problem: Problem,
    /// Corrected rate over the rate of types served alone, by configuration.
    pub mixing: Vec<f64>,
    /// Choices of replicas that were served while deciding; 0 where rates are given.
    pub n_rounds: usize,
    /// What the plan keeps.
    pub limit: Limit,
}

impl Decided {
    const fn rents(&self) -> Rents<'_> {
        Rents { problem: &self.problem, plan: &self.decision.plan }
    }
}

impl Question {
    /// The problem within a limit; with a deadline all that is offered may be rented.
    fn problem(&self, rated: &Rated, limit: Limit) -> Problem {
        let all = || self.inventory.offers.iter().map(|offer| f64::from(offer.n_available) * offer.usd_per_hour).sum();
        let budget_usd_per_hour = match limit {
            Limit::Budget { usd_per_hour } => usd_per_hour,
            Limit::Deadline { .. } => all(),
        };
        Problem {
            inventory: self.inventory.clone(),
            configurations: rated.configurations.clone(),
            demands: self.demands.clone(),
            budget_usd_per_hour,
        }
    }

    /// Seconds that one replica of c takes for so many requests of every type.
    fn serve_s(&self, rated: &Rated, c: usize, work: &[f64]) -> f64 {
        let work: Vec<_> = self.lengths.iter().zip(work).map(|(&lengths, &n)| (lengths, hw::whole(n))).collect();
        simulated::alone_s(&rated.engines[c], &work)
    }

    /// Decides.
    ///
    /// # Errors
    /// As the policy's, where nothing on offer holds a model, and where a given plan cannot be carried out.
    pub fn decide(&self, choice: &Choice, rated: &Rated) -> Result<Decided, RentalError> {
        if let Some(unheld) = self.unheld.first() {
            return Err(RentalError::OutOfMemory(unheld.to_string()));
        }
        let problem = self.problem(rated, choice.limit);
        let decided = match &choice.decider {
            Decider::Given(index) => given(problem, &self.plans[*index], choice.limit)?,
            Decider::Policy(policy) => {
                let asked = Asked { policy, options: self.options(), limit: choice.limit };
                if rated.engines.is_empty() {
                    by_rates(&asked, problem)?
                } else {
                    self.by_serving(&asked, &choice.stricter, rated)?
                }
            }
        };
        Ok(words::said(decided))
    }

    fn options(&self) -> Options {
        Options { form: Form::Direct, budget: Budget { gap: self.gap, ..Budget::new(NODES, SECONDS) } }
    }

    /// By a policy at rates that are corrected by serving the plan's own mix; no worse than policies that decide less, and than itself within
    /// the next stricter of ascending limits.
    fn by_serving(&self, asked: &Asked<'_>, stricter: &[f64], rated: &Rated) -> Result<Decided, RentalError> {
        // Policies that are compared alone take nobody's plan.
        let stricter = if asked.takes_others() { stricter } else { &[] };
        rated.answers.of((asked.policy, asked.limit, stricter), || self.settled(asked, stricter, rated))
    }

    fn settled(&self, asked: &Asked<'_>, stricter: &[f64], rated: &Rated) -> Result<Decided, RentalError> {
        let problem = self.problem(rated, asked.limit);
        let second = |problem: &Problem, plan: &Plan| asked.second(problem, plan);
        let hopeful = |problem: &Problem, slack: f64| asked.hopeful(problem, slack);
        let others = || {
            let before =
                stricter.split_last().map(|(&next, rest)| (Asked { limit: asked.limit.with(next), ..*asked }, rest));
            let others = asked.others().map(|other| (other, &[][..])).chain(before);
            let decided = others.filter_map(|(asked, stricter)| self.by_serving(&asked, stricter, rated).ok());
            decided.map(|decided| decided.decision.plan.replicas).collect()
        };
        let decide = mixing::Decide {
            aim: asked.aim(),
            worth: &|tried| self.worth(asked, rated, tried),
            solve: &|problem| asked.solve(problem),
            hopeful: matches!(asked.limit, Limit::Deadline { .. }).then_some(&hopeful),
            others: &others,
            is_whole: asked.policy.is_whole,
            assignments: asked.policy.assignments,
            second: asked.has_second().then_some(&second),
        };
        let Settled { decision, problem, mixing, n_rounds } =
            mixing::settle(&problem, &rated.mixing, &decide, &|c, work| self.serve_s(rated, c, work))?;
        Ok(asked.limited(Decided { decision, problem, mixing, n_rounds, limit: asked.limit }))
    }

    /// What counts of a plan that was served: all requests on all replicas, whose parts are whole requests.
    fn worth(&self, asked: &Asked<'_>, rated: &Rated, (problem, plan): (&Problem, &Plan)) -> Result<f64, f64> {
        let worth = asked.worth(plan);
        if worth.is_infinite() {
            return Err(plan.makespan_s);
        }
        let fleet = lay::fleet(self, Rents { problem, plan }, (rated, Case::Expected)).map_err(|_| f64::INFINITY)?;
        let ends_s = simulated::replay(problem, &self.lengths, &fleet).makespan_s;
        match asked.limit {
            Limit::Budget { .. } => Ok(worth.max(ends_s)),
            Limit::Deadline { seconds } if ends_s <= seconds => Ok(worth),
            Limit::Deadline { .. } => Err(ends_s),
        }
    }
}

/// A policy that is asked within a limit.
#[derive(Clone, Copy)]
struct Asked<'p> {
    policy: &'p Renting,
    options: Options,
    limit: Limit,
}

/// Part of a deadline that is rounding.
const IN_TIME: f64 = 1.0 + 1e-6;

impl Asked<'_> {
    const fn aim(&self) -> Aim {
        match self.limit {
            Limit::Budget { .. } => Aim::Seconds,
            Limit::Deadline { .. } => Aim::UsdPerHour,
        }
    }

    /// What is to be least of a plan.
    fn worth(&self, plan: &Plan) -> f64 {
        match self.limit {
            Limit::Budget { .. } => plan.makespan_s,
            Limit::Deadline { seconds } if plan.makespan_s <= seconds * IN_TIME => plan.usd_per_hour,
            Limit::Deadline { .. } => f64::INFINITY,
        }
    }

    fn solve(&self, problem: &Problem) -> Result<Decision<Plan>, RentalError> {
        match self.limit {
            Limit::Budget { .. } => (self.policy.solve)(problem, self.options),
            Limit::Deadline { seconds } => {
                let cheapest = self.policy.cheapest.expect("readers refuse policies that save no dollars");
                (cheapest.solve)(problem, seconds, self.options)
            }
        }
    }

    /// Replicas that would end within a deadline that is so many times as long.
    fn hopeful(&self, problem: &Problem, slack: f64) -> Option<Vec<u32>> {
        let Limit::Deadline { seconds } = self.limit else { return None };
        let later = Self { limit: Limit::Deadline { seconds: seconds * slack }, ..*self };
        Some(later.solve(problem).ok()?.plan.replicas)
    }

    /// The same question to policies that decide less, whose plan may be better all the same.
    fn others(&self) -> impl Iterator<Item = Self> {
        let others = match self.limit {
            Limit::Budget { .. } => self.policy.others,
            Limit::Deadline { .. } => self.policy.cheapest.map_or(&[][..], |cheapest| cheapest.others),
        };
        let others = others.iter().filter_map(|name| policies::named(name)?.rents.as_ref());
        others.map(|policy| Self { policy, ..*self })
    }

    /// Whether plans of others are its own too.
    fn takes_others(&self) -> bool {
        self.others().next().is_some()
    }

    fn has_second(&self) -> bool {
        match self.limit {
            Limit::Budget { .. } => self.policy.explain.is_some(),
            Limit::Deadline { .. } => self.policy.cheapest.is_some_and(|cheapest| cheapest.second.is_some()),
        }
    }

    /// The best plan with other replicas.
    fn second(&self, problem: &Problem, plan: &Plan) -> Option<Plan> {
        match self.limit {
            Limit::Budget { .. } => (self.policy.explain?.second)(problem, plan, self.options),
            Limit::Deadline { seconds } => (self.policy.cheapest?.second?)(problem, seconds, plan, self.options),
        }
    }

    /// The same with what holds the plan back, where the policy says so.
    fn limited(&self, mut decided: Decided) -> Decided {
        let (problem, plan) = (&decided.problem, &decided.decision.plan);
        let limit = match self.limit {
            Limit::Budget { .. } => self.policy.explain.map(|of| (of.limit)(problem, plan, self.options)),
            Limit::Deadline { seconds } => {
                let limit = self.policy.cheapest.and_then(|cheapest| cheapest.limit);
                limit.map(|limit| limit(problem, seconds, plan, self.options))
            }
        };
        let Some(limit) = limit else { return decided };
        decided.decision = decided.decision.limited(limit);
        decided
    }
}

/// By a policy at rates that are known.
fn by_rates(asked: &Asked<'_>, problem: Problem) -> Result<Decided, RentalError> {
    let decision = asked.solve(&problem)?;
    let other = asked.second(&problem, &decision.plan);
    let decision = cost_efficiency::beside(decision, other, &|plan| asked.worth(plan));
    let mixing = vec![1.0; problem.configurations.len()];
    Ok(asked.limited(Decided { decision, mixing, problem, n_rounds: 0, limit: asked.limit }))
}

/// A plan that is given, with the shares that it has or the best ones.
fn given(problem: Problem, plan: &GivenPlan, limit: Limit) -> Result<Decided, RentalError> {
    let (usd_per_hour, n_gpus) = (problem.usd_per_hour(&plan.replicas), problem.n_gpus(&plan.replicas));
    if let Limit::Budget { usd_per_hour: budget } = limit
        && usd_per_hour > budget * (1.0 + 1e-9)
    {
        return Err(RentalError::Infeasible(format!(
            "costs {} $/h, the budget is {} $/h",
            usd(usd_per_hour),
            usd(budget)
        )));
    }
    if let Some((n, offer)) = n_gpus.iter().zip(&problem.inventory.offers).find(|(n, offer)| **n > offer.n_available) {
        let (name, available) = (&offer.name, offer.n_available);
        return Err(RentalError::Infeasible(format!("takes {n} of `{name}`, {available} can be had")));
    }
    let offers = problem.inventory.offers.iter().enumerate();
    let mut crowded = offers.filter(|(offer, _)| !problem.fits(*offer, &plan.replicas));
    if let Some((_, offer)) = crowded.next() {
        let (name, machine) = (&offer.name, offer.n_gpus_per_machine);
        return Err(RentalError::Infeasible(format!(
            "its replicas do not fit the machines of `{name}`, {machine} GPUs each"
        )));
    }
    let unserved = || RentalError::Infeasible("a request type goes to a configuration that cannot serve it".to_owned());
    let plan = match &plan.shares {
        None => cost_efficiency::assigned(&problem, &plan.replicas, Assignment::Soonest).ok_or_else(unserved)?,
        Some(shares) => {
            let makespan_s = makespan_s(&problem, &plan.replicas, shares).ok_or_else(unserved)?;
            Plan { replicas: plan.replicas.clone(), n_gpus, usd_per_hour, shares: shares.clone(), makespan_s }
        }
    };
    let (objective, decision) = match limit {
        Limit::Budget { .. } => (plan.makespan_s, Decision::new(plan.clone(), Aim::Seconds, plan.makespan_s)),
        Limit::Deadline { seconds } if plan.makespan_s > seconds * (1.0 + 1e-9) => {
            let ends_s = plan.makespan_s;
            return Err(RentalError::Infeasible(format!("ends after {ends_s:.3} s, the deadline is {seconds} s")));
        }
        Limit::Deadline { .. } => (usd_per_hour, Decision::new(plan, Aim::UsdPerHour, usd_per_hour)),
    };
    let bound = match limit {
        Limit::Budget { .. } => Some(cost_efficiency::bound_s(&problem)?),
        Limit::Deadline { seconds } => cost_efficiency::cheapest(&problem, seconds, Options::default())?.bound(),
    };
    let bound = bound.map(|bound| Bound::plain(bound.min(objective)));
    let decision = decision.bounded(bound, Status::Heuristic);
    let mixing = vec![1.0; problem.configurations.len()];
    Ok(Decided { decision, problem, mixing, n_rounds: 0, limit })
}

/// When the slowest configuration ends; `None` where one is to serve what it cannot.
fn makespan_s(problem: &Problem, replicas: &[u32], shares: &[Vec<f64>]) -> Option<f64> {
    let mut slowest = 0.0_f64;
    for (c, row) in shares.iter().enumerate() {
        let mut busy_s = 0.0;
        for (w, share) in row.iter().enumerate().filter(|(_, share)| **share > 0.0) {
            if problem.demands[w].requests > 0.0 {
                busy_s += share * problem.seconds(c, w).filter(|_| replicas[c] > 0)?;
            }
        }
        if busy_s > 0.0 {
            slowest = slowest.max(busy_s / f64::from(replicas[c]));
        }
    }
    Some(slowest)
}
