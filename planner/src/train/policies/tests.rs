//! Properties of every policy in the table, and the exact optimum against brute force.

use std::collections::BTreeMap;

use engine::{CostModel, Estimate, Op, Source};
use proptest::prelude::*;
use train::layout::{ContextExchange, Layout, Zero};
use train::plan::{Place, Placement};
use train::problem::{Casts, Execution, Framework, Recompute, TorchModules};
use train::{Problem, Workload};

use super::*;
use crate::train::dacp::Terms;
use crate::train::policy::{PlanContext, Value};

/// A problem of the small model on one node.
pub(crate) fn problem(lengths: Vec<u64>, batch_size: usize, dp: u32, cp: u32, bucket_tokens: u64) -> Problem {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    Problem {
        model: engine::model::embedded("qwen2.5-0.5b").expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, 1, dp * cp),
        layout: Layout::data_and_context(dp, cp, Zero::Gradients, ContextExchange::Gather),
        workload: Workload { lengths, batch_size, source: "test".to_owned() },
        dtype: hw::Dtype::Bf16,
        bucket_tokens,
        execution: Execution::default(),
        schedule: train::schedule::named("1f1b").expect("listed"),
        reserved_memory: hw::Bytes(0),
        seed: 1,
    }
}

struct Nothing;

impl CostModel for Nothing {
    fn elementary(&self, _op: &Op) -> Estimate {
        Estimate::exact(hw::Seconds::ZERO, Source::Datasheet)
    }
}

fn context() -> PlanContext<'static> {
    PlanContext { cost: &Nothing, parameters: BTreeMap::new() }
}

/// Best objective over every placement of every sequence in every micro-batch of one data-parallel rank.
fn brute_force(problem: &Problem, n_micro_batches: usize) -> f64 {
    let sequences: Vec<(u32, u64)> = problem.workload.step(0).collect();
    let n = problem.layout.cp as usize;
    let choices = n_micro_batches * (n + 1);
    let terms = Terms::of(problem);
    let mut best = f64::INFINITY;
    for mut code in 0..choices.pow(u32::try_from(sequences.len()).expect("few")) {
        let mut micro_batches = vec![train::plan::MicroBatch::default(); n_micro_batches];
        for &(sequence, tokens) in &sequences {
            let (slot, place) = ((code % choices) / (n + 1), code % (n + 1));
            code /= choices;
            let place = if place == n { Place::Sharded } else { Place::Local(u32::try_from(place).expect("few")) };
            micro_batches[slot].sequences.push(Placement { sequence, from: 0, tokens, place });
        }
        let fits = micro_batches
            .iter()
            .all(|mb| (0..problem.layout.cp).all(|r| mb.tokens_on(r, problem.layout.cp) <= problem.bucket_tokens));
        if fits {
            let total =
                micro_batches.iter().map(|mb| terms.micro_batch_s(&problem.model, problem.layout.cp, &mb.sequences));
            best = best.min(total.sum());
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn the_milp_equals_brute_force_and_bounds_the_heuristic(lengths in prop::collection::vec(100_u64..40_000, 2..5)) {
        let n = lengths.len();
        let problem = problem(lengths, n, 1, 2, 26_000);
        if let Ok(heuristic) = named("skrull").expect("listed").plan(&problem, &context()) {
            let exact = named("skrull_exact").expect("listed").plan(&problem, &context()).expect("small enough");
            let found = exact.objective().expect("an objective");
            let best = brute_force(&problem, heuristic.plan.steps[0].groups[0].len());
            prop_assert!((found / best - 1.0).abs() < 1e-4, "MILP {found}, brute force {best}");
            prop_assert!(heuristic.objective().expect("an objective") >= found * (1.0 - 1e-6));
            prop_assert!(exact.bound().expect("a bound") <= found);
        }
    }
}

proptest! {
    #[test]
    fn every_policy_conserves_tokens_and_respects_the_bucket(
        lengths in prop::collection::vec(1_u64..60_000, 12),
        dp in 1_u32..4,
        cp in 1_u32..5,
    ) {
        let problem = problem(lengths, 6, dp, cp, 20_000);
        for policy in POLICIES {
            let name = policy.card().name;
            let mut context = context();
            context.parameters.insert("nodes_max".to_owned(), Value::Number(1.0));
            context.parameters.insert("binaries_max".to_owned(), Value::Number(1.0));
            context.parameters.insert("tries".to_owned(), Value::Number(3.0));
            match policy.plan(&problem, &context) {
                Err(
                    PlanError::Infeasible(why)
                    | PlanError::Unsupported(why)
                    | PlanError::Budget(why)
                    | PlanError::OutOfMemory(why),
                ) => prop_assert!(!why.is_empty()),
                Ok(decision) => {
                    let mut plan = decision.plan.clone();
                    crate::train::orders::complete(&problem, &mut plan, &Nothing);
                    prop_assert_eq!(train::check::check(&problem, &plan), Ok(()), "{}", name);
                    prop_assert_eq!(&policy.plan(&problem, &context).expect("planned before"), &decision, "{}", name);
                    for step in &decision.plan.steps {
                        for (group, micro_batches) in step.groups.iter().enumerate() {
                            // Pipelines of a shape of their own have a limit of their own.
                            let limit = step.pipelines.get(group).map_or(20_000.0, |shape| {
                                decision.figures[&format!("max_tokens_tp{}_pp{}", shape.tp, shape.pp)]
                            });
                            let on = |micro_batch: &train::plan::MicroBatch, rank| {
                                hw::real(micro_batch.tokens_on(rank, cp))
                            };
                            for (micro_batch, rank) in micro_batches.iter().flat_map(|mb| (0..cp).map(move |rank| (mb, rank))) {
                                prop_assert!(on(micro_batch, rank) <= limit, "{}", name);
                            }
                        }
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn no_policy_is_below_the_certified_bound(
        lengths in prop::collection::vec(1_u64..40_000, 10),
        (dp, cp) in prop::sample::select(vec![(1, 8), (2, 4), (4, 2), (8, 1)]),
        exchange in prop::sample::select(vec![ContextExchange::Ring, ContextExchange::Ulysses, ContextExchange::Gather]),
        zero in prop::sample::select(vec![Zero::Off, Zero::OptimizerStates, Zero::Gradients, Zero::Parameters]),
    ) {
        let layout = Layout::data_and_context(dp, cp, zero, exchange);
        let problem = Problem { layout, ..problem(lengths, 5, dp, cp, 9_000) };
        let cost = engine::cost::roofline::Roofline::new(&problem.cluster);
        let topology = hw::topology::Topology::of(&problem.cluster);
        let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
        for policy in POLICIES.iter().filter(|policy| !SLOW.contains(&policy.card().name)) {
            let Ok(plan) = crate::train::search::plan(&problem, *policy, &context) else { continue };
            let Some(step_s) = crate::train::search::simulate(&problem, &plan, &context, &topology) else { continue };
            let bound_s = train::metrics::causes::bound_s(&problem, &plan, 9_000, &cost);
            prop_assert!(bound_s <= step_s, "{}: bound {bound_s}, step {step_s}", policy.card().name);
        }
    }

    #[test]
    fn the_order_of_the_batch_changes_no_objective(
        lengths in prop::collection::btree_set(100_u64..30_000, 8),
        seed in 0_u64..1_000,
    ) {
        let sorted: Vec<u64> = lengths.into_iter().collect();
        let mut shuffled = sorted.clone();
        engine::random::stream(seed, "order").shuffle(&mut shuffled);
        let pool = |lengths: Vec<u64>, exchange| Problem {
            layout: Layout::data_and_context(1, 4, Zero::Gradients, exchange),
            ..problem(lengths, 8, 1, 4, 12_000)
        };
        for policy in POLICIES.iter().filter(|policy| !SLOW.contains(&policy.card().name)) {
            for exchange in [ContextExchange::Gather, ContextExchange::Ulysses] {
                let objective = |lengths: &[u64]| {
                    let problem = pool(lengths.to_vec(), exchange);
                    let cost = engine::cost::roofline::Roofline::new(&problem.cluster);
                    let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
                    policy.plan(&problem, &context).ok().map(|decision| decision.objective())
                };
                let (a, b) = (objective(&sorted), objective(&shuffled));
                let same = match (a.flatten(), b.flatten()) {
                    (Some(a), Some(b)) => (a / b - 1.0).abs() < 1e-9,
                    _ => a == b,
                };
                prop_assert!(same, "{}: {a:?} {b:?}", policy.card().name);
            }
        }
    }
}

/// Policies that simulate or solve while they plan; they have tests of their own.
const SLOW: [&str; 2] = ["improved", "skrull_exact"];

#[test]
fn without_roll_back_a_rank_can_exceed_its_bucket() {
    let problem = problem(vec![30_000, 500, 400, 300], 4, 1, 2, 20_000);
    let mut context = context();
    context.parameters.insert("rollback".to_owned(), Value::Word("off".to_owned()));
    let decision = named("skrull").expect("listed").plan(&problem, &context).expect("no check refuses it");
    let over = decision.plan.steps[0].groups[0].iter().any(|mb| (0..2).any(|rank| mb.tokens_on(rank, 2) > 20_000));
    assert!(over);
}

#[test]
fn best_fit_gives_every_group_its_share_where_one_micro_batch_would_hold_the_step() {
    // 1600 tokens over four groups; 900 of 1600 in one sequence, which no other group can help with; and 17, which no four groups have alike.
    for (lengths, held) in [
        (vec![100; 16], [400; 4]),
        (vec![900, 300, 200, 100, 50, 50], [900, 700, 0, 0]),
        (vec![100; 17], [500, 500, 500, 200]),
    ] {
        let problem = problem(lengths.clone(), lengths.len(), 4, 1, 100_000);
        let plan = named("best_fit").expect("listed").plan(&problem, &context()).expect("fits").plan;
        let of_group = |group: &Vec<train::plan::MicroBatch>| group.iter().map(train::plan::MicroBatch::tokens).sum();
        let mut found: Vec<u64> = plan.steps[0].groups.iter().map(of_group).collect();
        found.sort_unstable_by_key(|tokens| std::cmp::Reverse(*tokens));
        assert_eq!(found, held, "{lengths:?}");
        assert!(plan.steps[0].groups.iter().all(|group| group.len() <= 1), "{lengths:?}");
    }
}

/// A problem without a stated micro-batch, with more tokens than memory holds at once.
fn without_bucket(framework: Framework, zero: Zero, recompute: Recompute, change: &dyn Fn(&mut Problem)) -> Problem {
    let lengths: Vec<u64> = (0..96_u64).map(|n| 300 + (n * 7919) % 30_000).collect();
    let mut problem = problem(lengths, 96, 8, 1, 0);
    problem.model = engine::model::embedded("llama-3-8b").expect("embedded");
    problem.layout.zero = zero;
    problem.execution.framework = framework;
    problem.execution.recompute = recompute;
    change(&mut problem);
    problem
}

#[test]
fn a_micro_batch_that_no_file_says_fits_what_the_player_charges() {
    let modules =
        TorchModules { compiled: false, fused_norms: true, casts: Casts::Off, in_pieces: false, repeats_keys: true };
    let frameworks =
        [Framework::Formulas, Framework::MegatronCore, Framework::Fsdp2(modules), Framework::DeepSpeed(modules)];
    let zero = [Zero::OptimizerStates, Zero::Gradients, Zero::Parameters];
    let changes: [&dyn Fn(&mut Problem); 4] = [
        &|_| (),
        &|problem| (problem.layout.dp, problem.layout.tp) = (2, 4),
        &|problem| (problem.layout.dp, problem.layout.pp) = (2, 4),
        &|problem| (problem.layout.dp, problem.layout.cp) = (2, 4),
    ];
    let (mut n_played, mut n_smaller) = (0, 0);
    for framework in frameworks {
        for zero in zero {
            for recompute in [Recompute::Off, Recompute::Selective, Recompute::Full] {
                for change in changes {
                    let mut problem = without_bucket(framework, zero, recompute, change);
                    if train::memory::fits(&problem).is_err() {
                        continue;
                    }
                    problem.bucket_tokens = train::fitting::usual_bucket(&problem);
                    n_smaller += u32::from(problem.bucket_tokens < train::memory::usual_bucket(&problem));
                    let cost = engine::cost::roofline::Roofline::new(&problem.cluster);
                    let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
                    let topology = hw::topology::Topology::of(&problem.cluster);
                    let megatron = named("megatron").expect("listed");
                    // A longest sequence that fits no rank is another matter.
                    let Ok(plan) = crate::train::search::plan(&problem, megatron, &context) else { continue };
                    let played = crate::train::search::simulate(&problem, &plan, &context, &topology);
                    let Problem { layout, bucket_tokens, .. } = &problem;
                    assert!(played.is_some(), "{framework:?} {recompute:?} {layout:?}: {bucket_tokens} tokens");
                    n_played += 1;
                }
            }
        }
    }
    assert!(
        n_played >= 60 && n_smaller >= 3,
        "{n_played} played, {n_smaller} of them below what states and activations leave"
    );
}

#[test]
fn policies_that_leave_a_sequence_to_one_group_say_so() {
    // A sequence of twice what a context group holds.
    let problem = problem(vec![16_000, 500, 500, 500], 4, 2, 1, 8_000);
    let cost = engine::cost::roofline::Roofline::new(&problem.cluster);
    for policy in POLICIES.iter().filter(|policy| policy.fits_whole()) {
        let found = policy.plan(&problem, &PlanContext { cost: &cost, parameters: BTreeMap::new() });
        // Some refuse the layout itself before they look at lengths.
        assert!(found.is_err(), "{}", policy.card().name);
    }
    let chunks = named("chunkflow").expect("listed");
    let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
    assert!(!chunks.fits_whole() && chunks.plan(&problem, &context).is_ok());
}
