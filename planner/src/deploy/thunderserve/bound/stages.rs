//! What stages that generate can serve together: a linear program over fractions of groups.
//!
//! Let x = b/k be the part of a group's batch b that passes its k stages at a time. For stages of D GPUs with usable memory u each, times
//! q(D, x) of one layer, weights W of all layers and κ bytes of keys and values per request in all layers, summing over a group's stages gives
//!
//! Σ (D·u - κ·x) >= W (memory holds all layers with b = k·x requests);  Σ x <= b_max;  Σ (target/q - L) >= 0 (every layer's k passes of the
//! step end in time);  rate <= Σ served(D, x) / L (every stage passes the group's rate with its layers).
//!
//! All are linear in the numbers of stages of each D and x, so groups of equal x may be added up, and their numbers g be fractions:
//!
//! max Σ served·y / L  s.t.  Σ (D·u - κ·x)·y >= W·g_x;  Σ x·y <= b_max·g_x;  Σ (target/q - L)·y >= 0 for every x;  Σ D·y <= GPUs;  Σ g >= 1
//!
//! GPUs that read prompts may be in the program, too: Σ D·y + n <= GPUs, rate <= Σ n·(prompts per second of a GPU).
//!
//! x is cut into intervals: what serves is taken at their upper ends, what takes memory and time at their lower ends. Units: bytes, seconds,
//! requests per second.

use good_lp::{Expression, ProblemVariables, Variable, constraint, variable};

use super::super::super::roofline::BATCH_MAX;
use super::super::group::{self, Stage};
use super::Relaxed;
use crate::milp::{self, Budget, Program, Unsolved};

/// Upper end of the first interval of x, and the ratio of the ends of the others.
const PART_FIRST: f64 = 0.25;
const PART_RATIO: f64 = 1.08;
/// What the solver's tolerance may take from an optimum.
const TOLERANCE: f64 = 1e-6;

/// How a stage with one layer serves parts of a batch; `part` is x.
pub(super) struct Law<'l> {
    /// Requests per second that it passes.
    pub(super) served_per_s: &'l dyn Fn(&Stage, f64) -> f64,
    /// Seconds of a pass, which all layers make within `target_s`.
    pub(super) pass_s: &'l dyn Fn(&Stage, f64) -> f64,
    /// Target of all passes together.
    pub(super) target_s: f64,
}

/// Lower and upper ends of x up to the largest batch.
fn parts() -> Vec<(f64, f64)> {
    let mut all = vec![(0.0, PART_FIRST)];
    while let Some(&(_, low)) = all.last().filter(|(_, high)| *high < BATCH_MAX) {
        all.push((low, (low * PART_RATIO).min(BATCH_MAX)));
    }
    all
}

/// Requests per second of all stages on these GPUs, or with `reading`, the prompts per second of a GPU of each type, of those that do not
/// read prompts for them; 0 where the GPUs do not hold the model, infinite where the solver gives up.
pub(super) fn served_per_s(relaxed: &Relaxed<'_>, counts: &[u32], law: &Law<'_>, reading: Option<&[f64]>) -> f64 {
    let n_layers = relaxed.n_layers();
    let (weights, token) = relaxed.held_bytes();
    let request = token * (relaxed.input + relaxed.output);
    let all: Vec<Stage> = (0..counts.len())
        .flat_map(|of| relaxed.degrees(of, counts[of]).map(move |tp| (of, tp)))
        .map(|(of, tp)| relaxed.layer(of, tp))
        .collect();
    let fastest = |stage: &Stage| (law.served_per_s)(stage, BATCH_MAX) / f64::from(stage.tp);
    // Rates in units of what the GPUs would serve at the largest batch.
    let unit = all.iter().map(fastest).fold(0.0, f64::max) * f64::from(counts.iter().sum::<u32>());
    let mut variables = ProblemVariables::new();
    let mut constraints = Vec::new();
    let (mut rate, mut groups) = (Expression::from(0.0), Expression::from(0.0));
    let mut gpus = vec![Expression::from(0.0); counts.len()];
    for (low, high) in parts() {
        let n: Variable = variables.add(variable().min(0.0));
        let (mut memory, mut batch, mut time) = (Expression::from(0.0), Expression::from(0.0), Expression::from(0.0));
        for stage in &all {
            let y = variables.add(variable().min(0.0));
            memory += (group::usable(relaxed.task, stage) - low * request) / weights * y;
            batch += low / BATCH_MAX * y;
            time += (law.target_s / (law.pass_s)(stage, low) / n_layers - 1.0) * y;
            rate += (law.served_per_s)(stage, high) / unit * y;
            gpus[relaxed.type_of(stage)] += f64::from(stage.tp) * y;
        }
        groups += n;
        constraints.extend([constraint!(memory >= n), constraint!(batch <= n), constraint!(time >= 0.0)]);
    }
    let read = reading.map(|reading| {
        let of = |(used, rate): (&mut Expression, &f64)| {
            let n = variables.add(variable().min(0.0));
            *used += n;
            rate * n_layers / unit * n
        };
        gpus.iter_mut().zip(reading).map(of).sum::<Expression>()
    });
    constraints.extend(gpus.into_iter().zip(counts).map(|(used, &n)| constraint!(used <= f64::from(n))));
    constraints.push(constraint!(groups >= 1.0));
    let most = variables.add(variable().min(0.0));
    constraints.push(constraint!(most <= rate));
    constraints.extend(read.map(|read| constraint!(most <= read)));
    let program = Program { variables, objective: -1.0 * most, constraints, start: Vec::new() };
    match milp::minimise(program, &[], Budget::default()) {
        Ok(solved) => solved.bound.map_or(f64::INFINITY, |bound| (TOLERANCE - bound) * unit / n_layers),
        Err(Unsolved::Infeasible) => 0.0,
        Err(Unsolved::Stopped(_)) => f64::INFINITY,
    }
}
