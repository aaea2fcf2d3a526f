//! The mixed-integer programs of arXiv:2502.00722: the direct form, the feasibility test of the bisection, and the split for fixed replicas.
//!
//! Letters as in the paper: y_c replicas, x_cw share of demand w on configuration c, f_w requests, h_cw rate, o_c price, B budget, d_n(c)
//! GPUs, a_n availability, T makespan.
//!
//! Eq. 3, Σ_w x_cw·f_w / (y_c·h_cw) <= T, is bilinear. Dividing by T makes it linear without a search: with z = T0/T and u_cw = x_cw·z,
//!
//! max z  s.t.  Σ_c u_cw = z;  Σ_w u_cw·f_w/(h_cw·T0) <= y_c;  Σ_c o_c·y_c <= B;  Σ_c d_n(c)·y_c <= a_n;  y integer
//!
//! T0 is a time of the order of T, so that z is near 1 where the solver's absolute tolerances mean something. Fixing T instead gives the
//! paper's test (appendix F): Σ_w x_cw·f_w/h_cw <= T·y_c. The test asks for any replicas and not for the cheapest: the proof that a plan is the
//! cheapest took most of the time and says nothing about T.
//!
//! Configurations of one kind (`deploy/kinds.rs`) have one row of shares: Σ_w u_cw·f_w/(h_cw·T0) <= Σ_{c of the kind} y_c.
//!
//! A configuration whose GPUs could carry replicas of another one with at least its rates is left out; some optimum has none of it.

use std::collections::BTreeMap;

use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable};

use super::super::kinds::{self, Kinds};
use super::super::{Plan, Problem, machines, whole};
use crate::milp::{self, Budget, Program, Solved, Unsolved};

/// Whether replicas are counted or may be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replicas {
    /// Integers.
    Whole,
    /// The relaxation, whose optimum bounds every plan.
    Split,
}

/// Replicas with the least makespan that a search proved possible.
pub(super) struct Found {
    pub(super) replicas: Vec<u32>,
    pub(super) bound_s: f64,
    pub(super) solved: Solved,
}

struct Columns {
    kind: Replicas,
    variables: ProblemVariables,
    kinds: Kinds,
    /// By configuration.
    replicas: Vec<Variable>,
    /// `shares[k][w]` of a kind; `None` where it cannot serve w.
    shares: Vec<Vec<Option<Variable>>>,
}

impl Columns {
    fn new(problem: &Problem, kind: Replicas, most: f64) -> Self {
        let mut variables = ProblemVariables::new();
        let kinds = Kinds::of(problem);
        let (mut replicas, mut shares) = (BTreeMap::new(), Vec::new());
        for alike in kinds.iter() {
            let mut upper = 0;
            for &c in alike {
                let most = if is_dominated(problem, c) { 0 } else { problem.n_replicas_max(c) };
                let count = variable().min(0.0).max(f64::from(most));
                replicas.insert(c, variables.add(if kind == Replicas::Whole { count.integer() } else { count }));
                upper = upper.max(most);
            }
            let row = (0..problem.demands.len()).map(|w| {
                let serves = upper > 0 && problem.seconds(alike[0], w).is_some();
                serves.then(|| variables.add(variable().min(0.0).max(most)))
            });
            shares.push(row.collect());
        }
        Self { kind, variables, kinds, replicas: replicas.into_values().collect(), shares }
    }

    /// Budget and availability.
    fn limits(&mut self, problem: &Problem) -> Vec<Constraint> {
        let replicas: Vec<(usize, Variable)> = self.replicas.iter().copied().enumerate().collect();
        limits(problem, &mut self.variables, &replicas, self.kind)
    }

    /// Every kind is busy no longer than its replicas are there, in units of `unit_s`.
    fn busy(&self, problem: &Problem, unit_s: f64) -> Vec<Constraint> {
        let rows = self.kinds.iter().zip(&self.shares);
        rows.map(|(alike, row)| constraint!(busy(problem, alike[0], row, unit_s) <= self.n_replicas(alike))).collect()
    }

    /// Replicas of a kind.
    fn n_replicas(&self, alike: &[usize]) -> Expression {
        alike.iter().map(|&c| Expression::from(self.replicas[c])).sum()
    }

    /// What a plan sets; shares that have no column are left out.
    fn of_plan(&self, plan: &Plan) -> Vec<(Variable, f64)> {
        let mut all: Vec<(Variable, f64)> =
            self.replicas.iter().zip(&plan.replicas).map(|(&y, &n)| (y, f64::from(n))).collect();
        for (alike, row) in self.kinds.iter().zip(&self.shares) {
            let cells = row.iter().enumerate().filter_map(|(w, cell)| Some((w, (*cell)?)));
            all.extend(cells.map(|(w, cell)| (cell, alike.iter().map(|&c| plan.shares[c][w]).sum())));
        }
        all
    }
}

/// All shares of a demand.
fn served(rows: &[Vec<Option<Variable>>], w: usize) -> Expression {
    rows.iter().filter_map(|row| row[w]).map(Expression::from).sum()
}

/// Busy time over `unit_s` of what serves such shares, at the rates of a configuration.
fn busy(problem: &Problem, c: usize, row: &[Option<Variable>], unit_s: f64) -> Expression {
    let cells = row.iter().enumerate().filter_map(|(w, cell)| cell.map(|cell| (w, cell)));
    cells.map(|(w, cell)| problem.seconds(c, w).expect("a cell is served") / unit_s * cell).sum()
}

/// Budget and availability of replicas by configuration.
pub(super) fn limits(
    problem: &Problem,
    variables: &mut ProblemVariables,
    replicas: &[(usize, Variable)],
    kind: Replicas,
) -> Vec<Constraint> {
    let usd: Expression = replicas.iter().map(|&(c, y)| problem.price(c) * y).sum();
    let mut all = vec![constraint!(usd <= problem.budget_usd_per_hour)];
    all.extend(machines::limits(problem, variables, replicas, kind == Replicas::Whole));
    all
}

/// Whether the GPUs of a configuration, given to replicas of another one, do everything at least as fast; of equals the first one stays.
fn is_dominated(problem: &Problem, c: usize) -> bool {
    let all = &problem.configurations;
    // Replicas of `d` on the GPUs of one replica of `of`.
    let times = |d: usize, of: usize| {
        let pairs = all[d].n_gpus.iter().zip(&all[of].n_gpus).filter(|(n, _)| **n > 0);
        pairs.map(|(&n, &room)| room / n).min().unwrap_or(0)
    };
    let is_as_fast = |d: usize, of: usize| {
        let n = times(d, of);
        let mut rates = all[d].requests_per_s.iter().zip(&all[of].requests_per_s);
        all[d].model == all[of].model && n > 0 && rates.all(|(d, of)| f64::from(n) * d >= *of)
    };
    (0..all.len()).any(|d| d != c && is_as_fast(d, c) && (d < c || !is_as_fast(c, d)))
}

fn demanded(problem: &Problem) -> impl Iterator<Item = usize> {
    (0..problem.demands.len()).filter(|&w| problem.demands[w].requests > 0.0)
}

/// Least makespan by the direct form. With `other_than`, only plans that do not contain those replicas count.
pub(super) fn direct(
    problem: &Problem,
    kind: Replicas,
    unit_s: f64,
    other_than: Option<&[u32]>,
    budget: Budget,
) -> Result<Found, Unsolved> {
    let mut columns = Columns::new(problem, kind, f64::INFINITY);
    let z = columns.variables.add(variable().min(0.0));
    let mut constraints = columns.limits(problem);
    constraints.extend(columns.busy(problem, unit_s));
    for w in demanded(problem) {
        constraints.push(constraint!(served(&columns.shares, w) == z));
    }
    if let Some(other_than) = other_than {
        constraints.extend(exclusion(problem, &mut columns, other_than));
    }
    let wanted = columns.replicas.clone();
    let program = Program { variables: columns.variables, objective: -1.0 * z, constraints, start: Vec::new() };
    let solved = milp::minimise(program, &wanted, budget)?;
    let fastest = -solved.bound.unwrap_or(f64::NEG_INFINITY);
    let bound_s = if fastest > 0.0 { unit_s / fastest } else { f64::INFINITY };
    Ok(Found { replicas: solved.values.iter().map(|&y| whole(y)).collect(), bound_s, solved })
}

/// At least one kind has fewer replicas than the plan.
fn exclusion(problem: &Problem, columns: &mut Columns, plan: &[u32]) -> Vec<Constraint> {
    let mut fewer = Expression::from(0.0);
    let mut all = Vec::new();
    for alike in columns.kinds.iter().filter(|alike| kinds::n_replicas(alike, plan) > 0) {
        let is_fewer = columns.variables.add(variable().binary());
        fewer += is_fewer;
        let n = f64::from(kinds::n_replicas(alike, plan));
        let upper = alike.iter().map(|&c| f64::from(problem.n_replicas_max(c))).sum::<f64>().max(n);
        let over = upper - n + 1.0;
        all.push(constraint!(columns.n_replicas(alike) + over * is_fewer <= upper));
    }
    all.push(constraint!(fewer >= 1.0));
    all
}

/// What all work within `makespan_s` asks of replicas and shares.
fn in_time(problem: &Problem, columns: &mut Columns, makespan_s: f64) -> Vec<Constraint> {
    let mut constraints = columns.limits(problem);
    constraints.extend(columns.busy(problem, makespan_s));
    // Eq. 4: implied for whole replicas, but it tightens the relaxation.
    for (alike, row) in columns.kinds.iter().zip(&columns.shares) {
        constraints.extend(row.iter().flatten().map(|&x| constraint!(x <= columns.n_replicas(alike))));
    }
    constraints.extend(demanded(problem).map(|w| constraint!(served(&columns.shares, w) == 1.0)));
    constraints
}

/// Replicas that end within `makespan_s`, any of them.
pub(super) fn within(problem: &Problem, makespan_s: f64, budget: Budget) -> Result<Vec<u32>, Unsolved> {
    let mut columns = Columns::new(problem, Replicas::Whole, 1.0);
    let constraints = in_time(problem, &mut columns, makespan_s);
    let wanted = columns.replicas.clone();
    let objective = Expression::from(0.0);
    let program = Program { variables: columns.variables, objective, constraints, start: Vec::new() };
    let solved = milp::minimise(program, &wanted, budget)?;
    Ok(solved.values.iter().map(|&y| whole(y)).collect())
}

/// Replicas that end within `makespan_s` for the fewest dollars per hour. With `other_than`, only plans that do not contain those replicas count;
/// the search starts from a plan where one is known.
pub(super) fn cheapest(
    problem: &Problem,
    makespan_s: f64,
    (other_than, known): (Option<&[u32]>, Option<&Plan>),
    budget: Budget,
) -> Result<(Vec<u32>, Solved), Unsolved> {
    let mut columns = Columns::new(problem, Replicas::Whole, 1.0);
    let mut constraints = in_time(problem, &mut columns, makespan_s);
    if let Some(other_than) = other_than {
        constraints.extend(exclusion(problem, &mut columns, other_than));
    }
    let wanted = columns.replicas.clone();
    let objective = wanted.iter().enumerate().map(|(c, &y)| problem.price(c) * y).sum();
    let start = known.filter(|_| other_than.is_none()).map_or_else(Vec::new, |known| columns.of_plan(known));
    let program = Program { variables: columns.variables, objective, constraints, start };
    let solved = milp::minimise(program, &wanted, budget)?;
    Ok((solved.values.iter().map(|&y| whole(y)).collect(), solved))
}

/// Shares with the least makespan for fixed replicas, a linear program; `None` where a demand has no replica.
pub(super) fn split(problem: &Problem, replicas: &[u32], unit_s: f64) -> Option<(Vec<Vec<f64>>, f64)> {
    let mut variables = ProblemVariables::new();
    let slowest = variables.add(variable().min(0.0));
    let kinds = Kinds::of(problem);
    let mut rows: Vec<Vec<Option<Variable>>> = Vec::new();
    for alike in kinds.iter() {
        let n = kinds::n_replicas(alike, replicas);
        let row = (0..problem.demands.len()).map(|w| {
            let serves = n > 0 && problem.seconds(alike[0], w).is_some();
            serves.then(|| variables.add(variable().min(0.0).max(1.0)))
        });
        rows.push(row.collect());
    }
    let mut constraints = Vec::new();
    for w in demanded(problem) {
        if rows.iter().all(|row| row[w].is_none()) {
            return None;
        }
        constraints.push(constraint!(served(&rows, w) == 1.0));
    }
    for (alike, row) in kinds.iter().zip(&rows).filter(|(alike, _)| kinds::n_replicas(alike, replicas) > 0) {
        let n = f64::from(kinds::n_replicas(alike, replicas));
        constraints.push(constraint!(busy(problem, alike[0], row, unit_s) <= n * slowest));
    }
    let wanted: Vec<Variable> = rows.iter().flatten().flatten().copied().collect();
    let program = Program { variables, objective: slowest.into(), constraints, start: Vec::new() };
    let solved = milp::minimise(program, &wanted, Budget::default()).ok()?;
    let mut values = solved.values.into_iter();
    let mut next = || values.next().expect("one value per cell").clamp(0.0, 1.0);
    let mut shares = vec![vec![0.0; problem.demands.len()]; replicas.len()];
    for (alike, row) in kinds.iter().zip(&rows) {
        let of_kind: Vec<f64> = row.iter().map(|cell| cell.map_or(0.0, |_| next())).collect();
        kinds::dealt(alike, replicas, &of_kind, &mut shares);
    }
    Some((shares, solved.objective * unit_s))
}
