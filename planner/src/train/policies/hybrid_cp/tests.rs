//! Rounds against what Megatron-LM's own scheduler gives (run at the commit that the module names), and properties of random batches.

use std::collections::BTreeMap;

use engine::cost::roofline::Roofline;
use proptest::prelude::*;
use train::layout::{Layout, Zero};

use super::super::tests::problem;
use super::*;

fn rounds(lengths: &[u64], n_ranks: u32) -> Vec<Round> {
    Pool { n_ranks, capacity: 4000 }.rounds((0..).zip(lengths.iter().copied()).collect())
}

/// Rounds as degrees with ids, as `BalancedCPScheduler(4000, pool).get_groups_and_subsamples` puts them on ranks.
fn check(lengths: &[u64], n_ranks: u32, expected: &[&[(u32, &[u32])]]) {
    let ids = |group: &Group| (group.width, group.sequences.iter().map(|(id, _)| *id).collect());
    let found: Vec<Vec<(u32, Vec<u32>)>> =
        rounds(lengths, n_ranks).iter().map(|round| round.groups.iter().map(ids).collect()).collect();
    let owned = |&(width, ids): &(u32, &[u32])| (width, ids.to_vec());
    let expected: Vec<Vec<(u32, Vec<u32>)>> = expected.iter().map(|round| round.iter().map(owned).collect()).collect();
    assert_eq!(found, expected);
}

#[test]
fn small_batches_have_the_groups_of_megatron() {
    check(&[8000, 3000, 2000, 1000], 4, &[&[(2, &[0]), (1, &[1]), (1, &[2, 3])]]);
    check(&[1000; 10], 4, &[&[(1, &[0, 4, 8]), (1, &[1, 5, 9]), (1, &[2, 6]), (1, &[3, 7])]]);
    // Free ranks widen the narrowest group: 1 to 2 to 4.
    check(&[9000, 500], 8, &[&[(4, &[0]), (4, &[1])]]);
    let long = [16_000, 4000, 4000, 3500, 3000, 2500, 2000, 1500, 1000, 900, 800, 700];
    let short: &[(u32, &[u32])] = &[(1, &[1, 8]), (1, &[2, 9, 11]), (1, &[3, 6, 10]), (1, &[4, 5, 7])];
    check(&long, 4, &[&[(4, &[0])], short]);
    check(
        &[801, 1676, 791, 701, 4517, 866, 872, 16_000, 4549, 954],
        4,
        &[&[(4, &[7])], &[(2, &[8]), (2, &[4])], &[(1, &[1]), (1, &[9, 3]), (1, &[6, 2]), (1, &[5, 0])]],
    );
}

#[test]
fn what_a_group_gives_back_comes_later() {
    let lengths = [
        30_000, 12_000, 9000, 7000, 6500, 4000, 3900, 3000, 2900, 2500, 2000, 1800, 1500, 1200, 900, 800, 500, 400,
        300, 200,
    ];
    let last: &[(u32, &[u32])] =
        &[(2, &[3]), (2, &[4]), (1, &[5, 14, 17]), (1, &[6, 13, 16, 19]), (1, &[7, 10, 11, 15, 18]), (1, &[8, 9, 12])];
    check(&lengths, 8, &[&[(8, &[0])], &[(4, &[1]), (4, &[2])], last]);
    let lengths =
        [2959, 9382, 2381, 7143, 718, 1237, 9519, 1813, 5724, 780, 1244, 905, 1428, 1520, 708, 874, 943, 6678, 2618];
    let last: &[(u32, &[u32])] =
        &[(2, &[3]), (2, &[17]), (2, &[8]), (1, &[0, 7, 13, 10, 16, 15, 14]), (1, &[18, 2, 12, 5, 11, 9, 4])];
    check(&lengths, 8, &[&[(4, &[6]), (4, &[1])], last]);
}

proptest! {
    #[test]
    fn rounds_use_every_rank_and_every_sequence_once(
        lengths in prop::collection::vec(1_u64..32_000, 1..60),
        power in 3_u32..6,
    ) {
        let n_ranks = 1 << power;
        let planned = rounds(&lengths, n_ranks);
        let mut seen: Vec<u32> = Vec::new();
        for round in &planned {
            prop_assert_eq!(round.groups.iter().map(|group| group.width).sum::<u32>(), n_ranks);
            for group in &round.groups {
                prop_assert!(group.width.is_power_of_two() && !group.sequences.is_empty());
                prop_assert!(group.sequences.iter().all(|(_, tokens)| *tokens <= 4000 * u64::from(group.width)));
                let work: f64 = group.sequences.iter().map(|(_, tokens)| hw::real(tokens * tokens)).sum();
                prop_assert!((work / f64::from(group.width) / group.work - 1.0).abs() < 1e-9);
                seen.extend(group.sequences.iter().map(|(id, _)| *id));
            }
        }
        seen.sort_unstable();
        let all: Vec<u32> = (0..).take(lengths.len()).collect();
        prop_assert_eq!(seen, all);
    }
}

fn pool(lengths: Vec<u64>, n_ranks: u32) -> Problem {
    let n = lengths.len();
    let layout = Layout::data_and_context(1, n_ranks, Zero::OptimizerStates, ContextExchange::Ring);
    Problem { layout, ..problem(lengths, n, 1, n_ranks, 4000) }
}

fn planned(problem: &Problem) -> Result<Decision<Plan>, PlanError> {
    let cost = Roofline::new(&problem.cluster);
    plan(problem, &PlanContext { cost: &cost, parameters: BTreeMap::new() })
}

#[test]
fn all_ranks_wait_between_two_rounds() {
    // Rank 3 has the least in the first round. Without the barrier it would begin the second one alone.
    let lengths = vec![16_000, 4000, 4000, 3500, 3000, 2500, 2000, 1500, 1000, 900, 800, 700, 4000, 3900, 100, 90];
    let problem = pool(lengths, 4);
    let plan = planned(&problem).expect("everything fits").plan;
    assert_eq!(train::check::check(&problem, &plan), Ok(()));
    let n_barriers = plan.steps[0].groups[0].iter().filter(|micro_batch| micro_batch.barrier).count();
    assert!(n_barriers > 0, "{n_barriers}");
    let mut free = plan.clone();
    free.steps[0].groups[0].iter_mut().for_each(|micro_batch| micro_batch.barrier = false);
    let step_s = |plan: &Plan| {
        let cost = Roofline::new(&problem.cluster);
        let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
        let topology = hw::topology::Topology::of(&problem.cluster);
        crate::train::search::simulate(&problem, plan, &context, &topology).expect("it fits")
    };
    assert!(step_s(&plan) > step_s(&free), "{} {}", step_s(&plan), step_s(&free));
}

#[test]
fn what_megatron_does_not_run_is_refused() {
    let refused = |problem: &Problem, word: &str| {
        let found = planned(problem);
        assert!(matches!(&found, Err(PlanError::Unsupported(why)) if why.contains(word)), "{found:?}");
    };
    let base = pool(vec![1000; 6], 4);
    refused(&Problem { layout: Layout { pp: 2, ..base.layout }, ..base.clone() }, "`pp = 1`");
    refused(&Problem { layout: Layout { dp: 2, ..base.layout }, ..base.clone() }, "`cp = 8`");
    refused(&Problem { layout: Layout { cp: 6, ..base.layout }, ..base.clone() }, "`cp = 4` or `cp = 8`");
    let ulysses = Layout { exchange: ContextExchange::Ulysses, ..base.layout };
    refused(&Problem { layout: ulysses, ..base.clone() }, "14 heads");
    assert!(matches!(planned(&pool(vec![20_000, 9], 4)), Err(PlanError::Infeasible(why)) if why.contains("20000")));
}
