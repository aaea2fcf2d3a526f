//! The one place that talks to HiGHS: a program and its limits in; values, objective, bound and status out.
//!
//! Programs are written with good_lp, so that a formulation reads like the paper's page. Deterministic: one thread, fixed seed, node
//! budget first. A run that the clock or a user stops is `Feasible`: it has the incumbent and the bound that the search had proved, and
//! its plan file is then the reproducible thing. Objectives are in the caller's unit and are minimised.

mod watch;

use std::num::NonZeroU32;
use std::sync::atomic::AtomicBool;

use ::highs::{HighsModelStatus, HighsSolutionStatus, Model, SolvedModel};
use good_lp::solvers::highs::highs;
use good_lp::{Constraint, Expression, IntoAffineExpression, ProblemVariables, SolverModel, Variable};

use crate::proof::Status;
use engine::stop;

const SEED: i32 = 0;

/// Limits of one solve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Branch-and-bound nodes.
    pub nodes: i32,
    /// Wall clock, seconds; the safety net behind the node limit.
    pub seconds: f64,
    /// Relative gap below which a solution counts as optimal.
    pub gap: f64,
}

impl Budget {
    /// So many nodes, so many seconds, and a gap that rounding explains.
    pub const fn new(nodes: i32, seconds: f64) -> Self {
        Self { nodes, seconds, gap: 1e-6 }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(200_000, 20.0)
    }
}

/// A mixed-integer program.
pub struct Program {
    /// Variables with their bounds.
    pub variables: ProblemVariables,
    /// What is minimised.
    pub objective: Expression,
    /// What must hold.
    pub constraints: Vec<Constraint>,
    /// A solution to start from: the search is never worse. Variables left out are 0; empty for none.
    pub start: Vec<(Variable, f64)>,
}

/// A solved program.
#[derive(Clone, Debug, PartialEq)]
pub struct Solved {
    /// Value of each variable asked for.
    pub values: Vec<f64>,
    /// Objective of the values.
    pub objective: f64,
    /// Lower bound on every solution's objective, as far as the search had proved one.
    pub bound: Option<f64>,
    /// `Optimal`, or `Feasible` when a limit or a user ended the search.
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

/// Minimises a program and reads `wanted`; ends early with the best solution so far when `stop::ask` was called.
///
/// # Errors
/// When no solution exists or none was found within the budget.
pub fn minimise(program: Program, wanted: &[Variable], budget: Budget) -> Result<Solved, Unsolved> {
    minimise_until(program, wanted, budget, &stop::ASKED)
}

fn minimise_until(
    program: Program,
    wanted: &[Variable],
    budget: Budget,
    asked: &AtomicBool,
) -> Result<Solved, Unsolved> {
    let constant = program.objective.constant();
    let columns: Vec<Variable> = program.variables.iter_variables_with_def().map(|(variable, _)| variable).collect();
    let is_mixed = program.variables.iter_variables_with_def().any(|(_, definition)| definition.is_integer());
    let column =
        |variable: Variable| columns.iter().position(|known| *known == variable).expect("a variable of the program");
    let stated = program
        .constraints
        .into_iter()
        .fold(program.variables.minimise(program.objective).using(highs), SolverModel::with);
    let mut model = stated.try_into_inner().map_err(|error| Unsolved::Stopped(error.to_string()))?;
    set_options(&mut model, budget);
    if !program.start.is_empty() {
        let mut start = vec![0.0; columns.len()];
        program.start.iter().for_each(|&(variable, value)| start[column(variable)] = value);
        model.set_solution(Some(&start), None, None, None);
    }
    watch::watch(&mut model, asked);
    let solved = model.try_solve().map_err(|status| Unsolved::Stopped(format!("HiGHS failed: {status:?}")))?;
    let status = status_of(&solved)?;
    let objective = solved.objective_value() + constant;
    let bound = match (is_mixed, status) {
        (false, Status::Optimal) => Some(objective),
        (false, _) => None,
        _ => solved.double_info_value(c"mip_dual_bound").ok().map(|bound| (bound + constant).min(objective)),
    };
    let solution = solved.get_solution();
    Ok(Solved {
        values: wanted.iter().map(|&variable| solution.columns()[column(variable)]).collect(),
        objective,
        bound: bound.filter(|bound| bound.is_finite()),
        status,
    })
}

/// Bit of `presolve_rule_off`: kPresolveRuleEnumeration.
const PRESOLVE_ENUMERATION: i32 = 1 << 16;

fn set_options(model: &mut Model, budget: Budget) {
    model.make_quiet();
    model.set_option("random_seed", SEED);
    model.set_option("parallel", "off");
    model.set_threads(NonZeroU32::MIN);
    model.set_option("mip_max_nodes", budget.nodes);
    model.set_option("time_limit", budget.seconds);
    model.set_option("mip_rel_gap", budget.gap);
    // With enumeration in its presolve HiGHS 1.15.0 proved 1.885 where 1.777 is possible (test of `policies/flexsp`).
    model.set_option("presolve_rule_off", PRESOLVE_ENUMERATION);
}

/// How a search ended, where it has a solution.
fn status_of(solved: &SolvedModel) -> Result<Status, Unsolved> {
    let status = match solved.status() {
        HighsModelStatus::Infeasible | HighsModelStatus::UnboundedOrInfeasible => return Err(Unsolved::Infeasible),
        HighsModelStatus::Optimal => Status::Optimal,
        HighsModelStatus::ReachedTimeLimit
        | HighsModelStatus::ReachedIterationLimit
        | HighsModelStatus::ReachedSolutionLimit
        | HighsModelStatus::ReachedInterrupt => Status::Feasible,
        other => return Err(Unsolved::Stopped(format!("HiGHS ended with {other:?}"))),
    };
    match solved.primal_solution_status() {
        HighsSolutionStatus::Feasible => Ok(status),
        _ => Err(Unsolved::Stopped("the budget ended before a solution was found".to_owned())),
    }
}

#[cfg(test)]
mod tests;
