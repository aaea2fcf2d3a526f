//! The MILP against brute force and against the enumeration; a pool that is too large to enumerate.

use engine::cost::roofline::Roofline;
use proptest::prelude::*;
use train::layout::{Layout, Zero};

use super::super::tests::problem;
use super::*;
use crate::train::policy::Value;

fn pool(lengths: Vec<u64>, n_ranks: u32, bucket_tokens: u64) -> Problem {
    let n = lengths.len();
    let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
    Problem {
        model: engine::model::embedded("gpt-7b").expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, n_ranks.div_ceil(8), n_ranks.min(8)),
        layout: Layout::data_and_context(1, n_ranks, Zero::OptimizerStates, ContextExchange::Ulysses),
        ..problem(lengths, n, 1, 1, bucket_tokens)
    }
}

/// Parameters that are words.
fn words(words: &[(&str, &str)]) -> BTreeMap<String, Value> {
    words.iter().map(|(name, word)| ((*name).to_owned(), Value::Word((*word).to_owned()))).collect()
}

fn plan(problem: &Problem, parameters: &[(&str, &str)]) -> Result<Decision<Plan>, PlanError> {
    let cost = Roofline::new(&problem.cluster);
    let decision = super::plan(problem, &PlanContext { cost: &cost, parameters: words(parameters) })?;
    assert_eq!(train::check::check(problem, &decision.plan), Ok(()));
    Ok(decision)
}

/// What the paper's sum alone decides.
fn by_sum(problem: &Problem, parameters: &[(&str, &str)]) -> Decision<Plan> {
    let cost = Roofline::new(&problem.cluster);
    let context = PlanContext { cost: &cost, parameters: words(parameters) };
    Planner::new(problem, &context, false).decided().expect("everything fits")
}

/// Seconds of a step as it is played.
fn played_s(problem: &Problem, plan: &Plan) -> f64 {
    let cost = Roofline::new(&problem.cluster);
    let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
    crate::train::search::simulate(problem, plan, &context, &Topology::of(&problem.cluster)).expect("it fits")
}

/// Seconds of the first step with one degree for all groups, for every degree and every number of micro-batches that is tried.
fn with_one_degree_s(problem: &Problem) -> Vec<f64> {
    let cost = Roofline::new(&problem.cluster);
    let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
    let planner = Planner::new(problem, &context, true);
    let mut sequences: Vec<Sequence> = problem.workload.step(0).collect();
    sequences.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let lengths: Vec<u64> = sequences.iter().map(|(_, tokens)| *tokens).collect();
    let costs = Costs::of(problem, &cost, None, buckets::buckets(&lengths, 16), planner.widest);
    let degrees = divisions::same(problem.layout.cp, planner.widest).into_iter();
    let plans = degrees.flat_map(|division| planner.promising(Some(&[division]), &sequences, &lengths, &costs));
    plans.filter_map(|planned| planner.played_s(0, &planned)).collect()
}

/// Best slowest group over every division and every assignment of one micro-batch, at the buckets' costs.
fn brute_force(problem: &Problem, costs: &Costs) -> f64 {
    let lengths: Vec<u64> = problem.workload.step(0).map(|(_, tokens)| tokens).collect();
    let mut best = f64::INFINITY;
    for division in divisions::all(problem.layout.cp, problem.layout.cp) {
        for mut code in 0..division.len().pow(u32::try_from(lengths.len()).expect("few")) {
            let (mut ends, mut held) = (vec![0.0; division.len()], vec![0; division.len()]);
            for &length in &lengths {
                let group = code % division.len();
                code /= division.len();
                ends[group] += costs.on(costs.bucket(length), division[group]);
                held[group] += length;
            }
            let fits = held.iter().zip(&division).all(|(held, &d)| *held <= costs.capacity * u64::from(d));
            if fits {
                best = best.min(ends.into_iter().fold(0.0, f64::max));
            }
        }
    }
    best
}

fn milp_equals_brute_force(lengths: Vec<u64>) {
    let problem = pool(lengths.clone(), 4, 16_000);
    let mut uppers = lengths;
    uppers.sort_unstable();
    uppers.dedup();
    let cost = Roofline::new(&problem.cluster);
    let costs = Costs::of(&problem, &cost, None, uppers, 4);
    let best = brute_force(&problem, &costs);
    let mut counts = vec![0; costs.uppers.len()];
    problem.workload.lengths.iter().for_each(|&length| counts[costs.bucket(length)] += 1);
    let solved = formulation::solve(&costs, &counts, 4, 4, None, Budget::default());
    let (_, found, bound) = solved.expect("it fits");
    assert!((found / best - 1.0).abs() < 1e-5, "MILP {found}, brute force {best}");
    assert!(bound.expect("proved") <= best * (1.0 + 1e-6));
    let buckets: Vec<usize> = problem.workload.lengths.iter().map(|&length| costs.bucket(length)).collect();
    assert!(costs.bound_s(&buckets, 4) <= best * (1.0 + 1e-9));
}

#[test]
fn a_case_that_presolve_by_enumeration_gets_wrong() {
    milp_equals_brute_force(vec![2784, 11_495, 11_133, 5729]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn the_milp_equals_brute_force_on_small_pools(lengths in prop::collection::vec(500_u64..12_000, 2..6)) {
        milp_equals_brute_force(lengths);
    }

    #[test]
    fn the_milp_is_never_worse_than_enumeration_nor_that_than_equal_groups(
        lengths in prop::collection::vec(200_u64..30_000, 12..30),
    ) {
        let problem = pool(lengths, 8, 8_000);
        let objective = |words: &[(&str, &str)]| by_sum(&problem, words).objective().expect("an objective");
        let (same, mixed) = (objective(&[("groups", "same")]), objective(&[]));
        let milp = by_sum(&problem, &[("planner", "milp")]);
        prop_assert!(mixed <= same * (1.0 + 1e-9), "{mixed} {same}");
        let (found, bound) = (milp.objective().expect("an objective"), milp.bound().expect("a bound"));
        prop_assert!(found <= mixed * (1.0 + 1e-9) && bound <= found * (1.0 + 1e-9), "{found} {mixed} {bound}");
        // The enumeration stays within a twentieth of the program's solution.
        prop_assert!(mixed <= found * 1.05, "{mixed} against {found}");
    }

    /// A mix of degrees is as fast as each single degree, and as the plan with the least sum; a search that may less is no faster.
    #[test]
    fn a_mix_is_never_slower_than_a_single_degree(
        lengths in prop::collection::vec(prop_oneof![3 => 100_u64..2_000, 1 => 2_000_u64..30_000], 6..24),
    ) {
        let problem = pool(lengths, 8, 8_000);
        let played = |groups: &str| played_s(&problem, &plan(&problem, &[("groups", groups)]).expect("everything fits").plan);
        let [mixed, same, batch] = ["mixed", "same", "batch"].map(played);
        let single = with_one_degree_s(&problem).into_iter().fold(f64::INFINITY, f64::min);
        let least_sum = played_s(&problem, &by_sum(&problem, &[]).plan);
        prop_assert!(mixed <= same && same <= batch && batch <= single, "{mixed} {same} {batch} {single}");
        prop_assert!(mixed <= least_sum, "{mixed} {least_sum}");
    }
}

/// The case for which plans are played: equal groups end earlier, though the sum of the paper is less with mixed ones.
#[test]
fn a_mix_with_the_least_sum_may_lose_and_is_not_taken_then() {
    let mut n_lost = 0;
    for seed in 0..12 {
        let lengths = train::workload::distribution::named("wikipedia").expect("listed").sample(24, 24_000, seed);
        let problem = pool(lengths, 8, 8_000);
        let least_sum = played_s(&problem, &by_sum(&problem, &[]).plan);
        let found = played_s(&problem, &plan(&problem, &[]).expect("everything fits").plan);
        let single = with_one_degree_s(&problem).into_iter().fold(f64::INFINITY, f64::min);
        assert!(found <= least_sum.min(single), "{found} {least_sum} {single}");
        n_lost += usize::from(single < least_sum);
    }
    assert!(n_lost > 0, "the sum never misleads here");
}

#[test]
fn batch_ada_keeps_one_degree_for_the_whole_step() {
    // 30,000 tokens need four ranks of 8,000; the rest would be faster alone.
    let problem = pool(vec![30_000, 7_000, 7_000, 7_000, 7_000, 900, 800, 700, 600, 500], 8, 8_000);
    let names = |word: &str| plan(&problem, &[("groups", word)]).expect("everything fits").notes.join(" ");
    let degrees = |notes: &str| -> std::collections::BTreeSet<String> {
        notes.split('<').skip(1).map(|part| part.split('>').next().expect("closed").to_owned()).collect()
    };
    let batch = names("batch");
    assert_eq!(degrees(&batch).len(), 1, "{batch}");
    assert!(batch.contains("<4x2>") || batch.contains("<8>"), "{batch}");
}

#[test]
fn a_pool_of_a_thousand_ranks_is_planned_by_climbing() {
    let lengths = train::workload::distribution::named("commoncrawl-like").expect("listed").sample(256, 131_072, 3);
    let problem = pool(lengths, 1024, 6_000);
    let objective = |words: &[(&str, &str)]| by_sum(&problem, words).objective().expect("an objective");
    assert!(objective(&[]) <= objective(&[("groups", "same")]));
}

#[test]
fn what_cannot_be_planned_is_named() {
    let too_long = plan(&pool(vec![100_000, 5], 4, 8_000), &[]);
    assert!(matches!(&too_long, Err(PlanError::Infeasible(why)) if why.contains("100000")), "{too_long:?}");
    let mut two_groups = pool(vec![100; 4], 4, 8_000);
    two_groups.layout = Layout::data_and_context(2, 2, Zero::OptimizerStates, ContextExchange::Ulysses);
    assert!(matches!(plan(&two_groups, &[]), Err(PlanError::Unsupported(why)) if why.contains("one pool")));
}

/// Four equal sequences on four ranks, each of which holds one: nothing has to be exchanged.
#[test]
fn ranks_of_groups_are_those_of_single_groups() {
    let problem = pool(vec![12_000; 4], 4, 16_000);
    let decision = plan(&problem, &[]).expect("they fit");
    let placed = decision.plan.steps[0].groups[0].iter().flat_map(|micro_batch| &micro_batch.sequences);
    let widths: Vec<u32> = placed.map(|placement| placement.place.ring(4).map_or(1, |(_, count)| count)).collect();
    assert_eq!(widths, [1; 4]);
    assert_eq!(["group_ranks_min", "group_ranks_max"].map(|key| decision.figures[key]), [1.0; 2]);
}
