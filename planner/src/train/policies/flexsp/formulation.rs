//! FlexSP's mixed-integer program of one micro-batch (arXiv:2412.01523, planner).
//!
//! Virtual groups p of degree d_p: N/d of every power of two d. m\[p\] says whether p is used, A\[q,p\] how many sequences of bucket q
//! it gets; bucket q has b_q sequences of upper length ŝ_q.
//!
//! min C  s.t.  Σ_q A\[q,p\]·t(ŝ_q, d_p) <= C;  Σ_q A\[q,p\]·ŝ_q <= d_p·capacity;  Σ_p d_p·m\[p\] = N;  Σ_q A\[q,p\] <= K·m\[p\];  Σ_p A\[q,p\] = b_q
//!
//! Pruning: A\[q,p\] = 0 where one sequence of the bucket does not fit, virtual groups beyond what the widest needed degree leaves are not
//! made, and equal groups are used in order. The search starts from the best known division.

use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable};

use super::costs::Costs;
use crate::milp::{self, Budget, Program};

/// Groups with the sequences of each bucket that they get: (degree, count per bucket).
pub(super) type Grouped = Vec<(u32, Vec<u32>)>;

struct Groups {
    degree: Vec<u32>,
    used: Vec<Variable>,
    /// `counts[p][q]`; `None` where a sequence of the bucket does not fit.
    counts: Vec<Vec<Option<Variable>>>,
}

/// Solves the program from a start, milliseconds inside; the groups, the slowest group's seconds, and a bound on it.
pub(super) fn solve(
    costs: &Costs,
    counts: &[u32],
    n_ranks: u32,
    widest: u32,
    start: Option<&Grouped>,
    budget: Budget,
) -> Option<(Grouped, f64, Option<f64>)> {
    let mut variables = ProblemVariables::new();
    let groups = groups(&mut variables, costs, counts, n_ranks, widest);
    let slowest = variables.add(variable().min(0.0));
    let constraints = constraints(&groups, costs, counts, n_ranks, slowest);
    let mut wanted: Vec<Variable> = groups.used.clone();
    wanted.extend(groups.counts.iter().flatten().flatten());
    let from = start.map_or_else(Vec::new, |start| started(&groups, costs, start, slowest));
    let program = Program { variables, objective: slowest.into(), constraints, start: from };
    let solved = milp::minimise(program, &wanted, budget).ok()?;
    let mut values = solved.values.into_iter().skip(groups.used.len());
    let mut found: Grouped = Vec::new();
    for (&degree, row) in groups.degree.iter().zip(&groups.counts) {
        let whole = |value: f64| u32::try_from(hw::whole(value.max(0.0))).expect("few sequences");
        let mut next = || whole(values.next().expect("one value per count"));
        let of_group: Vec<u32> = row.iter().map(|cell| cell.map_or(0, |_| next())).collect();
        if of_group.iter().any(|count| *count > 0) {
            found.push((degree, of_group));
        }
    }
    Some((found, solved.objective * 1e-3, solved.bound.map(|bound| bound * 1e-3)))
}

fn ms(seconds: f64) -> f64 {
    seconds * 1e3
}

fn groups(variables: &mut ProblemVariables, costs: &Costs, counts: &[u32], n_ranks: u32, widest: u32) -> Groups {
    // The widest bucket needs a group of its own.
    let needed = costs.uppers.iter().zip(counts).filter(|(_, count)| **count > 0).map(|(upper, _)| upper).max();
    let needed = needed.map_or(1, |upper| upper.div_ceil(costs.capacity.max(1)).next_power_of_two());
    let mut all = Groups { degree: Vec::new(), used: Vec::new(), counts: Vec::new() };
    for power in (0..=widest.ilog2()).rev() {
        let degree = 1_u32 << power;
        let left =
            if u64::from(degree) < needed { u64::from(n_ranks).saturating_sub(needed) } else { u64::from(n_ranks) };
        for _ in 0..left / u64::from(degree) {
            let row = costs.uppers.iter().zip(counts).map(|(&upper, &count)| {
                let fits = count > 0 && upper <= u64::from(degree) * costs.capacity;
                fits.then(|| variables.add(variable().integer().min(0.0).max(f64::from(count))))
            });
            all.counts.push(row.collect());
            all.degree.push(degree);
            all.used.push(variables.add(variable().binary()));
        }
    }
    all
}

fn constraints(groups: &Groups, costs: &Costs, counts: &[u32], n_ranks: u32, slowest: Variable) -> Vec<Constraint> {
    let n_sequences: f64 = counts.iter().map(|&count| f64::from(count)).sum();
    let mut all = Vec::new();
    let ranks: Expression =
        groups.degree.iter().zip(&groups.used).map(|(&degree, &used)| f64::from(degree) * used).sum();
    // Ranks that no group takes stay idle: the division is completed by groups without sequences.
    all.push(constraint!(ranks <= f64::from(n_ranks)));
    for ((&degree, &used), row) in groups.degree.iter().zip(&groups.used).zip(&groups.counts) {
        let sum = |of: &dyn Fn(usize) -> f64| -> Expression {
            row.iter().enumerate().filter_map(|(q, cell)| cell.map(|cell| of(q) * cell)).sum()
        };
        all.push(constraint!(sum(&|q| ms(costs.on(q, degree))) <= slowest));
        let room = hw::real(costs.capacity * u64::from(degree));
        all.push(constraint!(sum(&|q| hw::real(costs.uppers[q])) <= room * used));
        all.push(constraint!(sum(&|_| 1.0) <= n_sequences * used));
    }
    for (q, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let placed: Expression = groups.counts.iter().filter_map(|row| row[q]).map(Expression::from).sum();
        all.push(constraint!(placed == f64::from(count)));
    }
    for pair in (0..groups.degree.len()).collect::<Vec<_>>().windows(2) {
        if groups.degree[pair[0]] == groups.degree[pair[1]] {
            all.push(constraint!(groups.used[pair[0]] >= groups.used[pair[1]]));
        }
    }
    all
}

/// Values of a known solution.
fn started(groups: &Groups, costs: &Costs, start: &Grouped, slowest: Variable) -> Vec<(Variable, f64)> {
    let mut taken = vec![false; groups.degree.len()];
    let (mut values, mut most) = (Vec::new(), 0.0_f64);
    for (degree, counts) in start.iter().filter(|(_, counts)| counts.iter().any(|count| *count > 0)) {
        let Some(p) = (0..taken.len()).find(|&p| !taken[p] && groups.degree[p] == *degree) else { return Vec::new() };
        taken[p] = true;
        values.push((groups.used[p], 1.0));
        for (q, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let Some(cell) = groups.counts[p][q] else { return Vec::new() };
            values.push((cell, f64::from(count)));
        }
        most = most.max(counts.iter().enumerate().map(|(q, &count)| f64::from(count) * costs.on(q, *degree)).sum());
    }
    values.push((slowest, ms(most)));
    values
}
