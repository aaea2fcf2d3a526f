//! What no schedule of forward and backward is below, whatever its order and wherever it runs: a linear program.
//!
//! With x_mi layers of `MetaOp` m on its size i (n_i devices, T_mi seconds per layer), N devices and makespan C:
//!
//! min C  s.t.  Σ_i x_mi = L_m;  Σ_mi n_i·T_mi·x_mi <= N·C;  e_m >= e_p + Σ_i T_mi·x_mi for every p that m needs;  e_m <= C
//!
//! Every schedule is such an x with its own end times, so C is below it; layers may be split and devices of a size need not be there at one
//! time, so it may not be reached. This is the allotment relaxation of malleable tasks with precedence (Jansen and Zhang, ACM TALG 2006).
//! Spindle's own yardstick, the sum of its levels' optima, is a bound only on schedules that finish a level before the next.

use engine::verdict::Refused;
use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable};
use train::multi_task::Work;

use crate::milp::{Budget, Program, Unsolved, minimise};
use crate::proof::Bound;

/// A linear program of this size takes milliseconds.
const SECONDS_MAX: f64 = 60.0;

/// Solves the program; seconds.
///
/// # Errors
/// A sentence when the solver stopped without an optimum.
pub fn bound(work: &Work) -> Result<Bound, Refused> {
    // Times are counted in a unit near the answer, where the solver's absolute tolerances mean something.
    let turns = |meta_op: usize| f64::from(work.n_layers(meta_op)) * work.curves[meta_op].largest().1;
    let unit_s: f64 = (0..work.meta_ops.len()).map(turns).sum();
    let mut variables = ProblemVariables::new();
    let end = variables.add(variable().min(0.0));
    let mut constraints: Vec<Constraint> = Vec::new();
    let (mut area, mut ends): (Expression, Vec<Variable>) = (Expression::from(0.0), Vec::new());
    for (meta_op, of) in work.meta_ops.iter().enumerate() {
        let points = work.curves[meta_op].points();
        let layers: Vec<Variable> = points.iter().map(|_| variables.add(variable().min(0.0))).collect();
        let pairs = || points.iter().zip(&layers);
        let time: Expression = pairs().map(|(&(_, seconds), &x)| seconds / unit_s * x).sum();
        area += pairs().map(|(&(n, seconds), &x)| f64::from(n) * seconds / unit_s * x).sum::<Expression>();
        let all: Expression = layers.iter().copied().sum();
        constraints.push(constraint!(all == f64::from(work.n_layers(meta_op))));
        let own = variables.add(variable().min(0.0));
        constraints.push(constraint!(own <= end));
        constraints.push(constraint!(time.clone() <= own));
        constraints.extend(of.preds.iter().map(|&pred| constraint!(ends[pred] + time.clone() <= own)));
        ends.push(own);
    }
    let n = f64::from(work.n_devices());
    constraints.push(constraint!(area.clone() <= n * end));
    let device_time = variables.add(variable().min(0.0));
    constraints.push(constraint!(device_time == area));
    let program = Program { variables, objective: end.into(), constraints, start: Vec::new() };
    let solved = minimise(program, &[end, device_time], Budget::new(1, SECONDS_MAX)).map_err(|why| match why {
        Unsolved::Infeasible => Refused::infeasible("the program of the bound has no solution"),
        Unsolved::Stopped(why) => Refused::out_of_time(why),
    })?;
    let c = solved.bound.ok_or_else(|| Refused::out_of_time("the solver proved no bound"))?;
    // Part of the device time until then that the least allotment works; 1 where devices are what is short.
    let devices_ratio = solved.values[1] / (n * c);
    Ok(Bound { value: c * unit_s, limit: limit(work, devices_ratio) })
}

fn limit(work: &Work, devices_ratio: f64) -> String {
    if devices_ratio > 1.0 - 1e-6 {
        return format!("the bound is device time: all {} GPUs would work until then", work.n_devices());
    }
    // The longest chain of MetaOps, each on its largest size.
    let mut ends = Vec::with_capacity(work.meta_ops.len());
    for (meta_op, of) in work.meta_ops.iter().enumerate() {
        let before = of.preds.iter().map(|&pred| ends[pred]).fold(0.0, f64::max);
        ends.push(before + f64::from(work.n_layers(meta_op)) * work.curves[meta_op].largest().1);
    }
    let last = (0..ends.len()).max_by(|&a, &b| ends[a].total_cmp(&ends[b]).then(b.cmp(&a)));
    let name = last.map_or("", |last| work.meta_ops[last].name.as_str());
    format!(
        "the bound is the chain that ends in `{name}`, which more GPUs do not shorten; the others need {:.0} % of the device time",
        devices_ratio * 100.0
    )
}
