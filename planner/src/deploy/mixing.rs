//! Rates under the mix that a plan makes: plan, serve what each configuration is to serve, correct its rates, plan again.
//!
//! A program adds up times: a replica that serves n_w requests of each type takes Σ_w n_w/h_w. A real one batches the types together, so that
//! prompts ride along with decodes, and it needs time to fill and to drain; its time differs by a factor that depends on the mix. Here the
//! factor of every configuration that a plan uses is found by serving its mix on one replica, m = Σ_w n_w/h_w / served, and its rates become
//! m·h_w. The rest is a fixed point: shares are decided again under these rates until plan and service agree, and replicas are decided again until
//! the program returns some that were served before. Of all that were served, the plan that ends soonest is the answer; its makespan and
//! its rates are those of its own mix. Its bound holds for these rates: configurations that were never chosen keep the factor that they started with.

use super::{Answer, Plan, Problem, Proof, RentalError};

/// Choices of replicas that are served at most.
const ROUNDS_MAX: usize = 4;
/// Times that shares of one choice are decided at most.
const SHARES_MAX: usize = 5;
/// Relative difference of planned and served time that counts as agreement.
const AGREES: f64 = 0.01;

/// A plan that was held against serving its own mix.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    /// The plan; its proof is about the corrected rates.
    pub answer: Answer,
    /// The problem with the rates that the plan was made with.
    pub problem: Problem,
    /// Corrected rate over the rate of types served alone, by configuration.
    pub mixing: Vec<f64>,
    /// Choices of replicas that were served.
    pub n_rounds: usize,
}

/// How a policy decides.
pub struct Decide<'a> {
    /// Replicas and shares with their proof.
    pub solve: &'a dyn Fn(&Problem) -> Result<Answer, RentalError>,
    /// Shares of given replicas.
    pub assign: &'a dyn Fn(&Problem, &[u32]) -> Option<Plan>,
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
    let mut mixing = start.to_vec();
    let mut tried: Vec<Vec<u32>> = Vec::new();
    let mut best: Option<Tried> = None;
    while tried.len() < ROUNDS_MAX {
        let replicas = (decide.solve)(&corrected(problem, &mixing))?.plan.replicas;
        if tried.contains(&replicas) {
            break;
        }
        let found = shares(problem, &mut mixing, &replicas, decide, serve);
        tried.push(replicas);
        best = [best, found].into_iter().flatten().min_by(|a, b| a.plan.makespan_s.total_cmp(&b.plan.makespan_s));
    }
    let best = best.ok_or_else(|| RentalError::Infeasible("no plan could be served".to_owned()))?;
    let problem = corrected(problem, &best.mixing);
    let Answer { plan, proof } = (decide.solve)(&problem)?;
    // The program may still see a better plan at these rates, which its own mix would slow down; the gap says by how much.
    let bound_s = proof.bound.min(best.plan.makespan_s);
    let status =
        if plan.replicas == best.plan.replicas { proof.status } else { crate::train::policy::Status::Feasible };
    let proof = Proof::new(best.plan.makespan_s, bound_s, status);
    let answer = Answer { plan: best.plan, proof };
    Ok(Settled { answer, problem, mixing: best.mixing, n_rounds: tried.len() })
}

/// A plan that ends when its slowest configuration was served, with the factors of its own mix.
struct Tried {
    plan: Plan,
    mixing: Vec<f64>,
}

/// Decides the shares of replicas until plan and service agree; `mixing` learns what was served.
fn shares(
    problem: &Problem,
    mixing: &mut [f64],
    replicas: &[u32],
    decide: &Decide<'_>,
    serve: &dyn Fn(usize, &[f64]) -> f64,
) -> Option<Tried> {
    let mut best: Option<Tried> = None;
    for _ in 0..SHARES_MAX {
        let now = corrected(problem, mixing);
        let mut plan = (decide.assign)(&now, replicas)?;
        let (mut served_s, mut apart) = (0.0_f64, 0.0_f64);
        for (c, &y) in replicas.iter().enumerate().filter(|(_, y)| **y > 0) {
            let part = |w: usize| plan.shares[c][w] * problem.demands[w].requests / f64::from(y);
            let work: Vec<f64> = (0..problem.demands.len()).map(part).collect();
            let cells = work.iter().zip(&now.configurations[c].requests_per_s).filter(|(n, _)| **n > 0.0);
            let planned: f64 = cells.map(|(n, rate)| n / rate).sum();
            let served = serve(c, &work);
            if planned > 0.0 && served > 0.0 {
                mixing[c] *= planned / served;
                served_s = served_s.max(served);
                apart = apart.max((planned / served - 1.0).abs());
            }
        }
        plan.makespan_s = served_s;
        let found = Tried { plan, mixing: mixing.to_vec() };
        best = [best, Some(found)].into_iter().flatten().min_by(|a, b| a.plan.makespan_s.total_cmp(&b.plan.makespan_s));
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
mod tests {
    use super::super::cost_efficiency::{self, Assignment, Options};
    use super::super::{Configuration, Demand, Offer};
    use super::*;

    fn problem() -> Problem {
        let offer = |name: &str| Offer { name: name.to_owned(), usd_per_hour: 1.0, n_available: 4 };
        let configuration = |n_gpus: [u32; 2], rates: [f64; 2]| Configuration {
            name: "c".to_owned(),
            model: 0,
            n_gpus: n_gpus.to_vec(),
            requests_per_s: rates.to_vec(),
        };
        let demand = |requests| Demand { name: String::new(), model: 0, requests };
        Problem {
            offers: vec![offer("a"), offer("b")],
            configurations: vec![configuration([1, 0], [1.0, 2.0]), configuration([0, 1], [1.5, 1.0])],
            demands: vec![demand(100.0), demand(100.0)],
            budget_usd_per_hour: 4.0,
        }
    }

    fn decide(serve: &dyn Fn(usize, &[f64]) -> f64) -> Settled {
        let solve = |problem: &Problem| cost_efficiency::solve(problem, Options::default());
        let assign =
            |problem: &Problem, replicas: &[u32]| cost_efficiency::assigned(problem, replicas, Assignment::Soonest);
        settle(&problem(), &[1.0; 2], &Decide { solve: &solve, assign: &assign }, serve).expect("a plan")
    }

    fn sum_s(c: usize, work: &[f64]) -> f64 {
        work.iter().zip(&problem().configurations[c].requests_per_s).map(|(n, rate)| n / rate).sum()
    }

    #[test]
    fn service_that_adds_up_changes_nothing() {
        let settled = decide(&sum_s);
        let plain = cost_efficiency::solve(&problem(), Options::default()).expect("a plan");
        assert_eq!(settled.answer.plan.replicas, plain.plan.replicas);
        assert!((settled.answer.plan.makespan_s / plain.plan.makespan_s - 1.0).abs() < 1e-6);
        assert!(settled.mixing.iter().all(|factor| (factor - 1.0).abs() < 1e-6), "{:?}", settled.mixing);
        assert_eq!(settled.n_rounds, 1);
    }

    #[test]
    fn a_plan_agrees_with_service_that_does_not_add_up() {
        // A configuration is faster the more evenly both types are mixed, and loses two seconds to fill and drain.
        let serve = |c: usize, work: &[f64]| {
            let even = work[0].min(work[1]) / work[0].max(work[1]).max(1e-9);
            sum_s(c, work) * (1.0 - 0.2 * even) + 2.0
        };
        let settled = decide(&serve);
        let plan = &settled.answer.plan;
        let mut slowest = 0.0_f64;
        for (c, &y) in plan.replicas.iter().enumerate().filter(|(_, y)| **y > 0) {
            let work: Vec<f64> = plan.shares[c].iter().map(|share| share * 100.0 / f64::from(y)).collect();
            let rates = &settled.problem.configurations[c].requests_per_s;
            let planned: f64 = work.iter().zip(rates).map(|(n, rate)| n / rate).sum();
            let served = serve(c, &work);
            assert!((planned / served - 1.0).abs() < 1e-9, "rates are those of its own mix: {planned}, {served}");
            slowest = slowest.max(served);
        }
        assert!((plan.makespan_s - slowest).abs() < 1e-9, "{settled:?}");
        // Shares were decided until nothing was to be gained: at these rates no split is much better.
        assert!(settled.answer.proof.gap < 0.05, "{settled:?}");
    }
}
