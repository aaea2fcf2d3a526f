//! Small programs by hand; budgets, starts, and stopping.

use good_lp::{constraint, variable, variables};

use super::*;

/// Values and weights of a knapsack, as a program that takes the negative value.
fn knapsack(values: &[f64], weights: &[f64], room: f64) -> (Program, Vec<Variable>) {
    variables! { vars: }
    let take = vars.add_vector(variable().binary(), values.len());
    let sum = |factors: &[f64]| take.iter().zip(factors).map(|(&x, &factor)| factor * x).sum::<Expression>();
    let program = Program {
        objective: -1.0 * sum(values),
        constraints: vec![constraint!(sum(weights) <= room)],
        variables: vars,
        start: Vec::new(),
    };
    (program, take)
}

/// A knapsack that takes many nodes: weights close to each other, room for about half.
fn hard() -> (Program, Vec<Variable>) {
    let mut random = engine::random::stream(3, "knapsack");
    let weights: Vec<f64> = (0..60).map(|_| 1000.0 + hw::real(random.below(100))).collect();
    let values: Vec<f64> = weights.iter().map(|weight| weight + hw::real(random.below(10))).collect();
    let room = weights.iter().sum::<f64>() / 2.0 + 0.5;
    knapsack(&values, &weights, room)
}

#[test]
fn a_knapsack_by_hand() {
    // Weights 3, 4, 5 within 7, values 4, 5, 6: the first two, value 9.
    let (program, take) = knapsack(&[4.0, 5.0, 6.0], &[3.0, 4.0, 5.0], 7.0);
    let solved = minimise(program, &take, Budget::default()).expect("feasible");
    assert_eq!(solved.status, Status::Optimal);
    assert!((solved.objective + 9.0).abs() < 1e-6);
    assert!((solved.bound.expect("proved") + 9.0).abs() < 1e-4);
    assert_eq!(solved.values.iter().map(|v| v.round()).collect::<Vec<_>>(), [1.0, 1.0, 0.0]);
}

#[test]
fn a_linear_program_is_its_own_bound_and_constants_count() {
    variables! { vars: 0 <= x; 0 <= y; }
    let program = Program {
        objective: x + 2.0 * y + 10.0,
        constraints: vec![constraint!(x + y >= 4.0), constraint!(x <= 1.0)],
        variables: vars,
        start: Vec::new(),
    };
    let solved = minimise(program, &[x, y], Budget::default()).expect("feasible");
    assert!((solved.objective - 17.0).abs() < 1e-9, "{solved:?}");
    assert_eq!(solved.bound, Some(solved.objective));
}

#[test]
fn a_contradiction_is_infeasible() {
    variables! { vars: 0 <= x; }
    let program =
        Program { objective: x.into(), constraints: vec![constraint!(x <= -1.0)], variables: vars, start: Vec::new() };
    let found = minimise(program, &[x], Budget::default());
    assert_eq!(found.expect_err("no solution"), Unsolved::Infeasible);
}

#[test]
fn a_tiny_budget_leaves_an_incumbent_between_the_bound_and_the_start() {
    let (program, take) = hard();
    let best = minimise(program, &take, Budget::new(i32::MAX, 60.0)).expect("feasible");
    let (program, take) = hard();
    let start: Vec<(Variable, f64)> = take.iter().take(25).map(|&x| (x, 1.0)).collect();
    let from = minimise(Program { start, ..program }, &take, Budget::new(1, 60.0)).expect("the start is feasible");
    let bound = from.bound.expect("the root proves one");
    assert!(bound <= best.objective + 1e-6 && best.objective <= from.objective + 1e-6, "{bound} {best:?} {from:?}");
}

#[test]
fn a_search_that_is_asked_to_stop_returns_its_start() {
    let (program, take) = hard();
    let start: Vec<(Variable, f64)> = take.iter().take(25).map(|&x| (x, 1.0)).collect();
    let asked = AtomicBool::new(true);
    let stopped = minimise_until(Program { start, ..program }, &take, Budget::new(i32::MAX, 600.0), &asked);
    let stopped = stopped.expect("the start is a solution");
    assert_eq!(stopped.status, Status::Feasible);
    assert_eq!(stopped.values.len(), 60);
}

#[test]
fn a_running_search_stops_when_asked() {
    let asked = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            asked.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        // Whether it ends by itself first or is stopped, it returns a solution no worse than its start.
        let (program, take) = hard();
        let start: Vec<(Variable, f64)> = take.iter().take(25).map(|&x| (x, 1.0)).collect();
        let found = minimise_until(Program { start, ..program }, &take, Budget::new(i32::MAX, 600.0), &asked);
        let found = found.expect("the start is a solution");
        assert!(found.objective <= -25.0 * 1000.0, "{found:?}");
        assert!(found.bound.is_none_or(|bound| bound <= found.objective + 1e-6));
    });
}
