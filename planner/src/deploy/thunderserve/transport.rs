//! ThunderServe's lower level: which decode group continues the requests of which prefill group, a transportation program.
//!
//! max Σ_ij Z_ij·D_ij  s.t.  Σ_ij Z_ij <= 1;  Σ_j Z_ij <= cap_i;  Σ_i Z_ij <= cap_j;  Σ_ij wire_l(ij)·Z_ij <= 1;  Z >= 0
//!
//! Z_ij is a share of all requests, cap the rate of a group over the arrival rate, D_ij the share of the pair's requests that meet the
//! targets, and wire_l the part of link l's time that the pair would take with all requests.

use good_lp::{Expression, ProblemVariables, Variable, constraint, variable};

use crate::milp::{self, Budget, Program};

/// A transportation program.
#[derive(Clone, Debug, PartialEq)]
pub struct Transport {
    /// Rate of each prefill group over the arrival rate.
    pub prefill: Vec<f64>,
    /// Rate of each decode group over the arrival rate.
    pub decode: Vec<f64>,
    /// `revenue[i][j]`: share of requests on the pair that meet the targets.
    pub revenue: Vec<Vec<f64>>,
    /// Of each link, the pairs that use it and the part of its time that all requests would take.
    pub wires: Vec<Vec<(usize, usize, f64)>>,
}

/// Shares of all requests per pair, and the objective; `None` where the program has no solution, which only bad figures cause.
pub fn solve(transport: &Transport) -> Option<(Vec<Vec<f64>>, f64)> {
    let (n, m) = (transport.prefill.len(), transport.decode.len());
    if n == 0 || m == 0 {
        return Some((vec![vec![0.0; m]; n], 0.0));
    }
    let mut variables = ProblemVariables::new();
    let z: Vec<Vec<Variable>> = (0..n).map(|_| variables.add_vector(variable().min(0.0).max(1.0), m)).collect();
    let mut constraints = vec![constraint!(z.iter().flatten().map(|&z| 1.0 * z).sum::<Expression>() <= 1.0)];
    for (row, &cap) in z.iter().zip(&transport.prefill) {
        constraints.push(constraint!(row.iter().map(|&z| 1.0 * z).sum::<Expression>() <= cap));
    }
    for (j, &cap) in transport.decode.iter().enumerate() {
        constraints.push(constraint!(z.iter().map(|row| 1.0 * row[j]).sum::<Expression>() <= cap));
    }
    for wire in &transport.wires {
        constraints.push(constraint!(wire.iter().map(|&(i, j, part)| part * z[i][j]).sum::<Expression>() <= 1.0));
    }
    let revenue = |i: usize| z[i].iter().zip(&transport.revenue[i]).map(|(&z, &d)| d * z).sum::<Expression>();
    let objective: Expression = -1.0 * (0..n).map(revenue).sum::<Expression>();
    let wanted: Vec<Variable> = z.iter().flatten().copied().collect();
    let program = Program { variables, objective, constraints, start: Vec::new() };
    let solved = milp::minimise(program, &wanted, Budget::default()).ok()?;
    let shares = solved.values.chunks(m).map(|row| row.iter().map(|z| z.max(0.0)).collect()).collect();
    Some((shares, -solved.objective))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_by_two_by_hand() {
        // The first prefill group sends all to the better decode group (0.5 · 0.95), the second 0.1 (0.60) and 0.4 (0.85): 0.875.
        let transport = Transport {
            prefill: vec![0.5, 0.6],
            decode: vec![0.7, 0.4],
            revenue: vec![vec![0.95, 0.90], vec![0.60, 0.85]],
            wires: Vec::new(),
        };
        let (shares, objective) = solve(&transport).expect("bounded");
        assert!((objective - 0.875).abs() < 1e-9);
        for (found, expected) in shares.iter().flatten().zip([0.5, 0.0, 0.1, 0.4]) {
            assert!((found - expected).abs() < 1e-9, "{shares:?}");
        }
    }

    #[test]
    fn a_slow_link_caps_its_pairs() {
        // The link carries a quarter of all requests; the other pair takes what its group can, 0.3.
        let transport = Transport {
            prefill: vec![1.0],
            decode: vec![1.0, 0.3],
            revenue: vec![vec![1.0, 1.0]],
            wires: vec![vec![(0, 0, 4.0)]],
        };
        let (shares, objective) = solve(&transport).expect("bounded");
        assert!((objective - 0.55).abs() < 1e-9, "{shares:?}");
    }
}
