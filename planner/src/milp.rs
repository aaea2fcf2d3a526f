//! The one place that talks to HiGHS (through good_lp): budget in; values, objective, bound and status out.
//!
//! Deterministic: one thread, fixed seed, node budget first. A run that the clock stops is `Feasible` and its plan file is
//! then the reproducible thing. Objectives are in the caller's unit and are minimised.

use good_lp::solvers::highs::{HighsParallelType, highs};
use good_lp::{
    Constraint, Expression, ProblemVariables, ResolutionError, Solution, SolutionStatus, SolverModel, Variable,
};

use crate::policy::Status;

/// Relative gap below which HiGHS calls a solution optimal.
const RELATIVE_GAP: f32 = 1e-6;
const SEED: i32 = 0;

/// Limits of one solve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Branch-and-bound nodes.
    pub nodes: i32,
    /// Wall clock, seconds; the safety net behind the node limit.
    pub seconds: f64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { nodes: 200_000, seconds: 20.0 }
    }
}

/// A solved problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Solved {
    /// Value of each variable asked for.
    pub values: Vec<f64>,
    /// Objective of the values.
    pub objective: f64,
    /// Lower bound on every solution's objective; known when the search was finished.
    pub bound: Option<f64>,
    /// `Optimal`, or `Feasible` when a budget ended the search.
    pub status: Status,
}

/// Why there is no solution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsolved {
    /// Proved that none exists.
    Infeasible,
    /// The solver stopped without one, and says why.
    Stopped(String),
}

/// Minimises `objective` under `constraints` and reads `wanted`.
///
/// # Errors
/// When no solution exists or none was found within the budget.
pub fn minimise(
    variables: ProblemVariables,
    objective: Expression,
    constraints: Vec<Constraint>,
    wanted: &[Variable],
    budget: Budget,
) -> Result<Solved, Unsolved> {
    let model = variables
        .minimise(objective.clone())
        .using(highs)
        .set_option("random_seed", SEED)
        .set_option("mip_max_nodes", budget.nodes)
        .set_parallel(HighsParallelType::Off)
        .set_threads(1)
        .set_time_limit(budget.seconds)
        .set_mip_rel_gap(RELATIVE_GAP)
        .expect("the gap constant is positive");
    let solution = constraints.into_iter().fold(model, SolverModel::with).solve().map_err(|error| match error {
        ResolutionError::Infeasible => Unsolved::Infeasible,
        other => Unsolved::Stopped(other.to_string()),
    })?;
    let objective = solution.eval(objective);
    // good_lp says `GapLimit` of a search that HiGHS finished within `RELATIVE_GAP` with a gap that is not exactly 0.
    let optimal = matches!(solution.status(), SolutionStatus::Optimal | SolutionStatus::GapLimit);
    Ok(Solved {
        values: wanted.iter().map(|&variable| solution.value(variable)).collect(),
        objective,
        bound: optimal.then(|| objective - objective.abs() * f64::from(RELATIVE_GAP)),
        status: if optimal { Status::Optimal } else { Status::Feasible },
    })
}

#[cfg(test)]
mod tests {
    use good_lp::{constraint, variable, variables};

    use super::*;

    #[test]
    fn a_knapsack_by_hand() {
        // Weights 3, 4, 5 within 7, values 4, 5, 6: the first two, value 9.
        variables! { vars: }
        let take = vars.add_vector(variable().binary(), 3);
        let value: Expression = take.iter().zip([4.0, 5.0, 6.0]).map(|(&x, v)| -v * x).sum();
        let weight: Expression = take.iter().zip([3.0, 4.0, 5.0]).map(|(&x, w)| w * x).sum();
        let solved =
            minimise(vars, value, vec![constraint!(weight <= 7.0)], &take, Budget::default()).expect("feasible");
        assert_eq!(solved.status, Status::Optimal);
        assert!((solved.objective + 9.0).abs() < 1e-6);
        assert_eq!(solved.values.iter().map(|v| v.round()).collect::<Vec<_>>(), [1.0, 1.0, 0.0]);
    }

    #[test]
    fn a_contradiction_is_infeasible() {
        variables! { vars: 0 <= x; }
        let found = minimise(vars, x.into(), vec![constraint!(x <= -1.0)], &[x], Budget::default());
        assert_eq!(found.expect_err("no solution"), Unsolved::Infeasible);
    }
}
