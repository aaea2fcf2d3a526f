//! Policies of renting on machines that are there: which replicas of both phases, and which share of the requests each gets.
//!
//! A configuration is the fastest replica of so many GPUs of one machine within the targets, and its rate is what the other planners of a
//! task count with; the work is an hour of arrivals, so that what ends soonest serves most. The budget pays for every GPU that is there.
//! Units: requests per second within the targets, dollars per hour.

use super::colocated::best;
use super::group::Replica;
use super::{RentalError, Task};
use crate::deploy::cost_efficiency::Options;
use crate::deploy::{Configuration, Demand, Plan, Problem, cost_efficiency, melange as sliced};
use crate::proof::Decision;

/// Seconds whose arrivals are the work.
const HOUR_S: f64 = 3600.0;

/// Replicas by the program of arXiv:2502.00722.
///
/// # Errors
/// On figures without meaning, without prices, and when no replica meets the targets.
pub fn cost_efficiency(task: &Task) -> Result<Vec<Replica>, RentalError> {
    rented(task, cost_efficiency::solve)
}

/// Replicas by Mélange (arXiv:2404.14527): of every machine its smallest replica, requests in quarters.
///
/// # Errors
/// As `cost_efficiency`.
pub fn melange(task: &Task) -> Result<Vec<Replica>, RentalError> {
    rented(task, sliced::under_budget)
}

/// How a policy rents.
type Solve = fn(&Problem, Options) -> Result<Decision<Plan>, RentalError>;

fn rented(task: &Task, solve: Solve) -> Result<Vec<Replica>, RentalError> {
    task.check()?;
    let (problem, replicas) = problem(task);
    let plan = solve(&problem, Options::default())?.plan;
    Ok(copies(task, &plan, &replicas))
}

/// Every replica of one machine as a configuration, with the replica of each.
fn problem(task: &Task) -> (Problem, Vec<Replica>) {
    let (mut configurations, mut replicas) = (Vec::new(), Vec::new());
    for (machine, offer) in task.machines.offers.iter().enumerate() {
        for size in 1..=offer.n_available {
            let mut n_gpus = vec![0; task.n_machines()];
            n_gpus[machine] = size;
            let Some(replica) = best(task, &n_gpus) else { continue };
            let name = format!("{size} x {}", offer.name);
            configurations.push(Configuration { name, model: 0, n_gpus, requests_per_s: vec![replica.requests_per_s] });
            replicas.push(replica);
        }
    }
    let requests = HOUR_S * task.requests_per_s;
    let demands = vec![Demand { name: "requests".to_owned(), model: 0, requests }];
    let usd = task.machines.offers.iter().map(|offer| f64::from(offer.n_available) * offer.usd_per_hour);
    let budget_usd_per_hour = usd.sum();
    (Problem { inventory: task.machines.clone(), configurations, demands, budget_usd_per_hour }, replicas)
}

/// Copies of the replicas, each with its share of what all serve together.
fn copies(task: &Task, plan: &Plan, replicas: &[Replica]) -> Vec<Replica> {
    let all_per_s = HOUR_S * task.requests_per_s / plan.makespan_s;
    let mut all = Vec::new();
    for (c, replica) in replicas.iter().enumerate() {
        let n = plan.replicas[c];
        let requests_per_s = plan.shares[c][0] / f64::from(n.max(1)) * all_per_s;
        let copy = Replica { requests_per_s, ..replica.clone() };
        all.extend((0..n).filter(|_| requests_per_s > 0.0).map(|_| copy.clone()));
    }
    all
}
