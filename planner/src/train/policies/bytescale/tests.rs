//! Ranks of a sequence, balance of ranks and pipelines, and the offload inequality by hand.

use engine::cost::fixed::Fixed;
use engine::cost::roofline::Roofline;
use engine::{CostModel, Op};
use proptest::prelude::*;
use train::Workload;
use train::layout::{ContextExchange, Layout, Zero};

use super::super::tests::problem;
use super::*;
use crate::train::policy::Value;

fn none(problem: &Problem) -> Offload<'_> {
    static COST: std::sync::LazyLock<Fixed> = std::sync::LazyLock::new(Fixed::default);
    Offload { problem, cost: &*COST, rule: Rule::Off }
}

fn llama() -> Problem {
    Problem { model: engine::model::embedded("llama-2-7b").expect("embedded"), ..problem(vec![1], 1, 1, 1, 8192) }
}

/// A pool of so many ranks.
fn pool(n_ranks: u32) -> Problem {
    Problem { layout: Layout::data_and_context(1, n_ranks, Zero::OptimizerStates, ContextExchange::Ring), ..llama() }
}

#[test]
fn ranks_of_a_sequence_are_any_integer() {
    // The paper's example at 8K per rank: 312K takes 39 ranks, 768K takes 96, and 32 of 128 are left.
    let problem = llama();
    for (kilo_tokens, ranks) in [(312, 39), (768, 96), (9, 2), (8, 1)] {
        let units = units(&problem.model, &[(0, kilo_tokens * 1024)], 8 * 1024, &none(&problem));
        assert_eq!(units[0].n_ranks, ranks);
    }
    let sequences: Vec<(u32, u64)> = [(0, 768 * 1024)].into_iter().chain((1..33).map(|id| (id, 8 * 1024))).collect();
    let units = units(&problem.model, &sequences, 8 * 1024, &none(&problem));
    let found = placed(&units, &pool(128), Deal::InOrder, Rings::Anywhere);
    assert_eq!(found.len(), 1, "one ring of 96 and 32 single ranks side by side");
    assert_eq!(found[0].sequences.len(), 33);
}

/// Operations of every rank under a rule, and the length classes (powers of two) that each rank sees one after another.
fn dealt(rule: Deal, lengths: &[u64]) -> (Vec<f64>, usize) {
    let problem = llama();
    let sequences: Vec<(u32, u64)> = (0..).zip(lengths.iter().copied()).collect();
    let mut units = units(&problem.model, &sequences, 8192, &none(&problem));
    if rule != Deal::InOrder {
        longest_first(&mut units);
    }
    let mut busy = vec![0.0; 16];
    let mut classes: Vec<Vec<u32>> = vec![Vec::new(); 16];
    for micro_batch in placed(&units, &pool(16), rule, Rings::Anywhere) {
        for placement in &micro_batch.sequences {
            let (first, count) = match placement.place {
                Place::Local(rank) => (rank, 1),
                other => other.ring(16).expect("a ring"),
            };
            for rank in first..first + count {
                busy[rank as usize] += flops(&problem.model, placement.tokens) / f64::from(count);
                classes[rank as usize].push(placement.tokens.ilog2());
            }
        }
    }
    let changes = classes.iter().map(|of| of.windows(2).filter(|pair| pair[0] != pair[1]).count()).sum();
    (busy, changes)
}

fn spread(busy: &[f64]) -> f64 {
    let (least, most) = busy.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), &x| (a.min(x), b.max(x)));
    most / least
}

#[test]
fn balanced_ranks_are_busy_alike() {
    // One, two and four ranks.
    let lengths: Vec<u64> =
        (0..2000_u64).map(|k| [200, 8193, 24_577][(k % 3) as usize] + (k * k * 7919) % 7_900).collect();
    let balanced = spread(&dealt(Deal::FirstFree, &lengths).0);
    assert!(balanced < 1.1, "{balanced}");
    assert!(balanced < spread(&dealt(Deal::InOrder, &lengths).0));
}

#[test]
fn a_pipeline_gets_one_length_class_and_its_share_of_the_work() {
    // Packs of one sequence each, from 4K to 8K and from 2K to 4K tokens too long to share a pack, in mixed order.
    let lengths: Vec<u64> = (0..320_u64).map(|k| if k % 2 == 0 { 8192 - k } else { 4200 + 3 * k }).collect();
    let (free, changes_free) = dealt(Deal::FirstFree, &lengths);
    let (pure, changes_pure) = dealt(Deal::OneClass, &lengths);
    assert!(spread(&pure) < 1.15, "{}", spread(&pure));
    assert!((pure.iter().sum::<f64>() / free.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    assert!(changes_pure <= changes_free, "{changes_pure} {changes_free}");
}

#[test]
fn the_offload_ratio_is_what_one_layers_forward_hides() {
    // A host link of h bytes per second against a layer that takes T(s): by hand from the two estimates.
    let mut problem = llama();
    problem.layout = Layout::data_and_context(1, 64, Zero::OptimizerStates, ContextExchange::Ring);
    let cost = engine::cost::roofline::Roofline::new(&problem.cluster);
    let offload = |rule| Offload { problem: &problem, cost: &cost, rule };
    let ratios = [8192, 65_536, 262_144].map(|tokens| offload(Rule::Hidden).ratio(tokens));
    assert!(
        ratios[0] < ratios[1] && ratios[1] <= ratios[2] && ratios[2] <= 1.0,
        "longer sequences hide more: {ratios:?}"
    );
    // 32 layers: half of 30 of them leave, so 17/32 of the bytes stay: 100 ranks' worth of tokens take 54.
    let (permille, ranks) = offload(Rule::Fixed(0.5)).of(100 * 8192, 8192);
    assert_eq!((permille, ranks), (468, 54));
    assert_eq!(offload(Rule::Fixed(1.0)).of(100 * 8192, 8192), (937, 7));
    assert_eq!(offload(Rule::Off).of(100 * 8192, 8192), (0, 100));
}

/// Decision of a rule on one step of these lengths, with times of a datasheet.
fn decision(problem: &Problem, deal: &str) -> Decision<Plan> {
    let cost = Roofline::new(&problem.cluster);
    let parameters = [("deal".to_owned(), Value::Word(deal.to_owned()))].into();
    let decision = plan(problem, &PlanContext { cost: &cost, parameters }).expect("everything fits");
    let mut plan = decision.plan.clone();
    crate::train::orders::complete(problem, &mut plan, &cost);
    assert_eq!(train::check::check(problem, &plan), Ok(()));
    for (micro_batch, rank) in
        plan.steps[0].groups[0].iter().flat_map(|mb| (0..problem.layout.cp).map(move |r| (mb, r)))
    {
        let tokens = micro_batch.tokens_on(rank, problem.layout.cp);
        assert!(tokens <= problem.bucket_tokens, "{tokens} tokens on rank {rank}");
    }
    let (objective, bound) = (decision.objective().expect("an objective"), decision.bound().expect("a bound"));
    assert!(bound <= objective * (1.0 + 1e-9), "bound {bound}, objective {objective}");
    decision
}

fn of_lengths(lengths: Vec<u64>, n_ranks: u32) -> Problem {
    let problem = pool(n_ranks);
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    let cluster = hw::catalog::cluster(&gpu, n_ranks.div_ceil(8), n_ranks.min(8));
    let workload = Workload { batch_size: lengths.len(), lengths, source: "test".to_owned() };
    Problem { workload, cluster, ..problem }
}

#[test]
fn the_objective_is_the_simulated_end_of_the_passes() {
    // Packs, rings of two and a ring over two nodes; the rest of the step is what all ranks do together.
    let lengths: Vec<u64> = (0..60_u64).map(|k| 900 + k * k * 7919 % 12_000).chain([90_000]).collect();
    let problem = of_lengths(lengths, 16);
    let cost = Roofline::new(&problem.cluster);
    let topology = hw::topology::Topology::of(&problem.cluster);
    for deal in ["naive", "balance", "timed"] {
        let decision = decision(&problem, deal);
        let graph = train::lower::training::lower(&problem, &decision.plan, 0);
        let context = PlanContext { cost: &cost, parameters: [].into() };
        let timeline = crate::train::search::play(&problem, &graph, &context, &topology).expect("it fits");
        let of_passes = graph.tasks.iter().zip(&timeline.end).filter(|(task, _)| {
            task.stream == engine::task::Stream::Compute && task.role != engine::task::Role::Optimizer
        });
        let end = of_passes.map(|(_, end)| *end).max().expect("there are passes");
        let simulated = (end - hw::Time::ZERO).to_seconds().get();
        let predicted = decision.objective().expect("an objective");
        assert!((predicted / simulated - 1.0).abs() < 0.02, "{deal}: {predicted} against {simulated}");
    }
}

#[test]
fn a_sequence_that_would_end_last_gets_a_wider_ring_until_its_port_is_the_limit() {
    // 512K tokens among 64 packs on 128 ranks: 64 ranks hold it, and it would end long after the packs.
    let lengths: Vec<u64> = [512 * 1024].into_iter().chain(std::iter::repeat_n(8192, 64)).collect();
    let port = |times: f64| {
        let problem = of_lengths(lengths.clone(), 128);
        let nic_bandwidth = problem.cluster.nic_bandwidth * times;
        Problem { cluster: hw::Cluster { nic_bandwidth, ..problem.cluster.clone() }, ..problem }
    };
    let (fast, slow) = (port(20.0), port(0.1));
    let width = |decision: &Decision<Plan>| match decision.plan.steps[0].groups[0][0].sequences[0].place {
        Place::Ring { count, .. } => count,
        other => panic!("{other:?}"),
    };
    let (paper, timed) = (decision(&fast, "balance"), decision(&fast, "timed"));
    assert_eq!(width(&paper), 64);
    assert!(width(&timed) > 64 && timed.objective() < paper.objective(), "{} ranks", width(&timed));
    // What passes a slow port takes longer than attention on any width, and no rank is added.
    assert_eq!(width(&decision(&slow, "timed")), 64);
}

#[test]
fn chunks_of_a_rank_share_its_work_under_every_schedule() {
    // 24 equal micro-batches on 8 pipeline ranks, 3 us a token and pass: all of them, and 7 passes of one chunk before.
    let unit_times = Some(train::problem::UnitTimes { forward: 3000, input: 3000, weight: 3000, message: 0 });
    for schedule in train::schedule::SCHEDULES {
        // Interleaved stages may have any number of chunks, others have their own.
        let is_free = schedule.placement == train::schedule::Placement::Loop;
        let all: &[u32] = if is_free { &[2, 3, 6] } else { &[u32::try_from(schedule.n_chunks).expect("few")] };
        for &chunks in all {
            let mut problem = of_lengths(vec![1024; 24], 1);
            problem.bucket_tokens = 1024;
            problem.layout.pp = 8;
            problem.layout.chunks = chunks;
            problem.schedule = schedule;
            problem.execution.unit_times = unit_times;
            let n_stages = schedule.placement.n_stages(8, chunks as usize);
            let expected_s = 1024.0 * 9e-6 * (24.0 + 7.0 * 8.0 / hw::real(n_stages as u64));
            for deal in ["balance", "timed"] {
                let objective = decision(&problem, deal).objective().expect("an objective");
                assert!((objective / expected_s - 1.0).abs() < 1e-3, "{}: {objective}, {expected_s}", schedule.name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn timed_lists_never_end_later_than_the_papers(
        lengths in prop::collection::vec(200_u64..9_000, 40),
        long in prop::collection::vec(9_000_u64..120_000, 0..6),
        pp in prop::sample::select(vec![1, 2, 4]),
    ) {
        let mut problem = of_lengths(lengths.into_iter().chain(long).collect(), 16);
        problem.layout.pp = pp;
        problem.cluster.n_nodes *= pp;
        let [_, balance, timed] = ["naive", "balance", "timed"].map(|deal| decision(&problem, deal).objective());
        prop_assert!(timed <= balance, "{timed:?} {balance:?}");
    }
}

#[test]
fn even_work_leaves_nothing_idle() {
    // 2000 sequences up to 8K on 16 ranks: one by one they even out to a tenth of a percent of the mean, where whole packs leave several.
    let lengths: Vec<u64> = (0..2000_u64).map(|k| 200 + (k * k * 7919) % 7_900).collect();
    let problem = of_lengths(lengths, 16);
    let cost = Roofline::new(&problem.cluster);
    let mut times = RankTimes::new(&problem, &cost);
    let timed = decision(&problem, "timed");
    let mut busy = [0.0; 16];
    for micro_batch in &timed.plan.steps[0].groups[0] {
        let mut on: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for placement in &micro_batch.sequences {
            let Place::Local(rank) = placement.place else { panic!("nothing is long") };
            on.entry(rank).or_default().push(placement.tokens);
        }
        for (rank, lengths) in on {
            busy[rank as usize] += times.whole_s(&lengths);
        }
    }
    assert!(spread(&busy) < 1.01, "{}", spread(&busy));
}

#[test]
fn a_shorter_sequence_that_takes_more_ranks_than_the_longest_is_a_named_reason() {
    // Nothing of 20,000 tokens is hidden (a kernel of no time); all of the longest is, when copies cost nothing more.
    struct Hidden;
    impl CostModel for Hidden {
        fn elementary(&self, op: &Op) -> engine::cost::Estimate {
            let seconds = match op {
                Op::Attention { documents, .. } if documents.iter().any(|document| document.keys > 100_000) => 1.0,
                Op::Copy { .. } => 1.0,
                _ => 0.0,
            };
            engine::cost::Estimate::exact(hw::Seconds::new(seconds), engine::cost::Source::Measured)
        }
    }
    let problem = Problem { model: llama().model, ..problem(vec![131_072, 20_000], 1, 1, 8, 2048) };
    let parameters = [("offload".to_owned(), Value::Word("selective".to_owned()))].into();
    let reason = plan(&problem, &PlanContext { parameters, cost: &Hidden }).expect_err("20,000 tokens fit nowhere");
    assert!(matches!(&reason, PlanError::Infeasible(why) if why.contains("20000 tokens takes 10 ranks")), "{reason:?}");
}
