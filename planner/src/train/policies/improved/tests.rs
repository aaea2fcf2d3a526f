//! Never slower than any policy, and the best of all placements on small cases.

use engine::cost::roofline::Roofline;
use hw::topology::Topology;
use proptest::prelude::*;
use train::plan::{MicroBatch, Place, Placement, Step};
use train::{Plan, Problem};

use super::super::tests::problem;
use super::super::{POLICIES, heuristic, named};
use crate::train::policy::{PlanContext, Value};
use crate::train::search;

fn improved(problem: &Problem, cost: &Roofline, tries: f64) -> f64 {
    let parameters = [("tries".to_owned(), Value::Number(tries))].into();
    let context = PlanContext { cost, parameters };
    let decision = named("improved").expect("listed").plan(problem, &context).expect("a plan");
    assert_eq!(train::check::check(problem, &decision.plan), Ok(()));
    let (objective, bound) = (decision.objective().expect("an objective"), decision.bound().expect("a bound"));
    assert!(bound <= objective, "{bound} {objective}");
    objective
}

/// Shortest step over every group, micro-batch (two in a group) and place of every sequence.
fn brute_force(problem: &Problem, context: &PlanContext<'_>, topology: &Topology) -> f64 {
    let sequences: Vec<(u32, u64)> = problem.workload.step(0).collect();
    let places = [Place::Local(0), Place::Local(1), Place::Sharded];
    let choices = 2 * 2 * places.len();
    let mut best = f64::INFINITY;
    for mut code in 0..choices.pow(u32::try_from(sequences.len()).expect("few")) {
        let mut groups = vec![vec![MicroBatch::default(); 2]; 2];
        for &(sequence, tokens) in &sequences {
            let (group, micro_batch, place) = (code % 2, code / 2 % 2, places[code / 4 % places.len()]);
            code /= choices;
            groups[group][micro_batch].sequences.push(Placement { sequence, from: 0, tokens, place });
        }
        let fits = |mb: &MicroBatch| (0..2).all(|rank| mb.tokens_on(rank, 2) <= problem.bucket_tokens);
        if !groups.iter().flatten().all(fits) {
            continue;
        }
        groups.iter_mut().for_each(|group| group.retain(|micro_batch| !micro_batch.sequences.is_empty()));
        let plan: Plan = heuristic("all", problem, vec![Step::of_groups(groups)]).plan;
        best = best.min(search::simulate(problem, &plan, context, topology).unwrap_or(f64::INFINITY));
    }
    best
}

#[test]
fn small_batches_reach_the_best_of_all_placements() {
    for lengths in [vec![9_000, 4_000, 1_000], vec![12_000, 300, 7_000], vec![2_000, 2_000, 15_000]] {
        let problem = problem(lengths, 3, 2, 2, 10_000);
        let cost = Roofline::new(&problem.cluster);
        let topology = Topology::of(&problem.cluster);
        let best = brute_force(&problem, &PlanContext { cost: &cost, parameters: [].into() }, &topology);
        let found = improved(&problem, &cost, 300.0);
        // Rings are not among the brute-force choices, so the search may even be better.
        assert!(found <= best * 1.0001, "{:?}: {found} against {best}", problem.workload.lengths);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]
    #[test]
    fn the_improved_plan_is_never_slower_than_any_policy(
        lengths in prop::collection::vec(100_u64..30_000, 8),
        // Without context groups the best plan may have pipelines of its own shapes.
        (dp, cp, bucket_tokens) in prop::sample::select(vec![(2, 4, 8_000), (8, 1, 30_000)]),
    ) {
        let problem = problem(lengths, 8, dp, cp, bucket_tokens);
        let cost = Roofline::new(&problem.cluster);
        let topology = Topology::of(&problem.cluster);
        let found = improved(&problem, &cost, 30.0);
        let context = PlanContext { cost: &cost, parameters: [].into() };
        for policy in POLICIES.iter().filter(|policy| !super::NOT_A_START.contains(&policy.card().name)) {
            let Ok(plan) = search::plan(&problem, *policy, &context) else { continue };
            if let Some(step_s) = search::simulate(&problem, &plan, &context, &topology) {
                prop_assert!(found <= step_s, "{}: {found} against {step_s}", policy.card().name);
            }
        }
    }
}
