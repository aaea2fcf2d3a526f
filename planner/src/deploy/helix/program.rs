//! Helix's mixed-integer program (arXiv:2406.01566, section 4; rows as in the public artefact).
//!
//! max Σ_i f_source,i  s.t.  Σ_k b_ik <= 1;  e_i = s_i + Σ_k k·b_ik <= M;  inflow = outflow <= Σ_k thr_i(k)·b_ik;  f_uv <= cap_uv·d_uv;
//! source to i only with s_i = 0;  i to sink only with e_i = M;  i to j only with e_i = s_j, or s_j <= e_i < e_j.
//!
//! Only the rows that switch an edge off are needed. Two things are ours: cap_uv is at most the rate of either end, and the work of all
//! layers is counted, M·F <= Σ_ik k·thr_i(k)·b_ik; without them the relaxation is worth nothing (the artefact's solver ended with a bound
//! of 60 times its plan). Flows are in units of the compute bound.

use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable};

use super::{Flow, FlowProblem, HandOver, Range};
use crate::deploy::{RentalError, whole};
use crate::milp::{self, Budget, Program, Unsolved};
use crate::proof::Status;

pub(super) struct Found {
    pub(super) ranges: Vec<Range>,
    /// Tokens per second.
    pub(super) bound: f64,
    pub(super) status: Status,
}

struct Edge {
    from: Option<usize>,
    to: Option<usize>,
    flow: Variable,
    open: Variable,
}

struct Columns {
    first: Vec<Variable>,
    /// `holds[i][k - 1]`.
    holds: Vec<Vec<Variable>>,
    edges: Vec<Edge>,
}

impl Columns {
    fn n_held(&self, i: usize) -> Expression {
        self.holds[i].iter().zip(1_u32..).map(|(&b, k)| f64::from(k) * b).sum()
    }

    fn end(&self, i: usize) -> Expression {
        self.first[i] + self.n_held(i)
    }

    fn sum(&self, of: impl Fn(&Edge) -> bool) -> Expression {
        self.edges.iter().filter(|edge| of(edge)).map(|edge| Expression::from(edge.flow)).sum()
    }
}

fn columns(cluster: &FlowProblem, variables: &mut ProblemVariables, unit: f64) -> Columns {
    let n = cluster.nodes.len();
    let layers = f64::from(cluster.n_layers);
    let first = (0..n).map(|_| variables.add(variable().integer().min(0.0).max(layers))).collect();
    let holds: Vec<Vec<Variable>> =
        (0..n).map(|i| variables.add_vector(variable().binary(), cluster.n_layers_max(i) as usize)).collect();
    let rate = |i: usize| cluster.nodes[i].tokens_per_s.iter().copied().fold(0.0, f64::max);
    let mut pairs: Vec<(Option<usize>, Option<usize>, f64)> = Vec::new();
    for i in 0..n {
        pairs.push((None, Some(i), cluster.border.min(rate(i))));
        pairs.push((Some(i), None, cluster.border.min(rate(i))));
        let others = (0..n).filter(|&j| j != i);
        pairs.extend(others.map(|j| (Some(i), Some(j), cluster.links[i][j].min(rate(i)).min(rate(j)))));
    }
    let open = pairs.into_iter().filter(|(_, _, capacity)| *capacity > 0.0);
    let edges = open
        .map(|(from, to, capacity)| Edge {
            from,
            to,
            flow: variables.add(variable().min(0.0).max(capacity / unit)),
            open: variables.add(variable().binary()),
        })
        .collect();
    Columns { first, holds, edges }
}

fn constraints(cluster: &FlowProblem, columns: &Columns, unit: f64) -> Vec<Constraint> {
    let layers = f64::from(cluster.n_layers);
    let mut all = Vec::new();
    let mut work = Expression::from(0.0);
    for i in 0..cluster.nodes.len() {
        all.push(constraint!(columns.holds[i].iter().map(|&b| Expression::from(b)).sum::<Expression>() <= 1.0));
        all.push(constraint!(columns.end(i) <= layers));
        let rates = columns.holds[i].iter().zip(&cluster.nodes[i].tokens_per_s);
        let rate: Expression = rates.map(|(&b, &rate)| rate / unit * b).sum();
        let inflow = columns.sum(|edge| edge.to == Some(i));
        all.push(constraint!(inflow.clone() <= rate));
        all.push(constraint!(inflow == columns.sum(|edge| edge.from == Some(i))));
        let rates = columns.holds[i].iter().zip(&cluster.nodes[i].tokens_per_s).zip(1_u32..);
        work += rates.map(|((&b, &rate), k)| f64::from(k) * rate / unit * b).sum::<Expression>();
    }
    all.push(constraint!(layers * columns.sum(|edge| edge.from.is_none()) <= work));
    for edge in &columns.edges {
        let rate = |i: usize| cluster.nodes[i].tokens_per_s.iter().copied().fold(0.0, f64::max) / unit;
        let limit = |node: Option<usize>| node.map_or(cluster.border / unit, rate);
        let link = edge.from.zip(edge.to).map_or(f64::INFINITY, |(i, j)| cluster.links[i][j] / unit);
        let capacity = limit(edge.from).min(limit(edge.to)).min(link);
        all.push(constraint!(edge.flow <= capacity * edge.open));
        match (edge.from, edge.to) {
            (None, Some(i)) => all.push(constraint!(columns.first[i] + layers * edge.open <= layers)),
            (Some(i), None) => all.push(constraint!(layers * edge.open <= columns.end(i))),
            (Some(i), Some(j)) => {
                // s_j <= e_i, and e_i < e_j or e_i <= s_j: each with a slack of M where the edge is shut.
                all.push(constraint!(columns.first[j] + layers * edge.open <= columns.end(i) + layers));
                let before = match cluster.hand_over {
                    HandOver::Strict => Expression::from(columns.first[j]),
                    HandOver::Partial => columns.end(j) - 1.0,
                };
                let slack = layers + 1.0;
                all.push(constraint!(columns.end(i) + slack * edge.open <= before + slack));
            }
            (None, None) => {}
        }
    }
    all
}

/// Values of a known placement.
fn started(cluster: &FlowProblem, columns: &Columns, ranges: &[Range], flow: &Flow, unit: f64) -> Vec<(Variable, f64)> {
    let mut values = Vec::new();
    for (i, range) in ranges.iter().enumerate().take(cluster.nodes.len()).filter(|(_, range)| !range.is_empty()) {
        values.push((columns.first[i], f64::from(range.first)));
        values.push((columns.holds[i][(range.end - range.first) as usize - 1], 1.0));
    }
    for &(from, to, rate) in &flow.edges {
        if let Some(edge) = columns.edges.iter().find(|edge| edge.from == from && edge.to == to) {
            values.push((edge.flow, rate / unit));
            values.push((edge.open, 1.0));
        }
    }
    values
}

/// The placement of the most flow within a budget, from a known one.
pub(super) fn solve(
    cluster: &FlowProblem,
    from: Option<&(Vec<Range>, Flow)>,
    budget: Budget,
) -> Result<Found, RentalError> {
    let unit = cluster.compute_bound();
    let nothing = || RentalError::Infeasible("no placement lets a token through".to_owned());
    if unit <= 0.0 {
        return Err(nothing());
    }
    let mut variables = ProblemVariables::new();
    let columns = columns(cluster, &mut variables, unit);
    let constraints = constraints(cluster, &columns, unit);
    let objective = -1.0 * columns.sum(|edge| edge.from.is_none());
    let start = from.map_or_else(Vec::new, |(ranges, flow)| started(cluster, &columns, ranges, flow, unit));
    let mut wanted = columns.first.clone();
    wanted.extend(columns.holds.iter().flatten());
    let solved = milp::minimise(Program { variables, objective, constraints, start }, &wanted, budget);
    let solved = solved.map_err(|why| match why {
        Unsolved::Infeasible => nothing(),
        Unsolved::Stopped(why) => RentalError::Budget(why),
    })?;
    let n = cluster.nodes.len();
    let mut values = solved.values[n..].iter();
    let mut ranges = Vec::with_capacity(n);
    for i in 0..n {
        let first = whole(solved.values[i]);
        let held = (1_u32..).zip(values.by_ref().take(columns.holds[i].len()));
        let k: u32 = held.map(|(k, value)| k * whole(*value)).sum();
        ranges.push(Range { first, end: first + k });
    }
    let bound = solved.bound.map_or(f64::INFINITY, |bound| -bound * unit);
    Ok(Found { ranges, bound, status: solved.status })
}
