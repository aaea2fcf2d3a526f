//! Ranks of a sequence, balance of ranks and pipelines, and the offload inequality by hand.

use sim::cost::fixed::Fixed;
use sim::layout::{ContextExchange, Layout, Zero};

use super::super::tests::problem;
use super::*;

fn none(problem: &Problem) -> Offload<'_> {
    static COST: std::sync::LazyLock<Fixed> = std::sync::LazyLock::new(Fixed::default);
    Offload { problem, cost: &*COST, rule: Rule::Off }
}

fn llama() -> Problem {
    Problem { model: sim::model::embedded("llama-2-7b").expect("embedded"), ..problem(vec![1], 1, 1, 1, 8192) }
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
    let found = deal(&units, 128, Deal::InOrder);
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
    for micro_batch in deal(&units, 16, rule) {
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
    let cost = sim::cost::roofline::Roofline::new(&problem.cluster);
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

#[test]
fn a_sequence_that_would_end_last_gets_more_ranks() {
    let problem = llama();
    // One sequence of 64 packs' length among 64 packs: alone on eight ranks it would take far longer than the mean.
    let sequences: Vec<(u32, u64)> = [(0, 64 * 1024)].into_iter().chain((1..65).map(|id| (id, 8 * 1024))).collect();
    let mut units = units(&problem.model, &sequences, 8 * 1024, &none(&problem));
    let before: f64 = units.iter().map(|unit| unit.work * f64::from(unit.n_ranks)).sum();
    let (narrow, slowest) = (units[0].n_ranks, units.iter().map(|unit| unit.work).fold(0.0, f64::max));
    widen(&mut units, 32);
    assert!(units[0].n_ranks > narrow && units[0].n_ranks <= 32, "{} of {narrow}", units[0].n_ranks);
    assert!(units.iter().map(|unit| unit.work).fold(0.0, f64::max) < slowest);
    let after: f64 = units.iter().map(|unit| unit.work * f64::from(unit.n_ranks)).sum();
    assert!((after / before - 1.0).abs() < 1e-9);
}

#[test]
fn a_shorter_sequence_that_takes_more_ranks_than_the_longest_is_a_named_reason() {
    // Nothing of 20,000 tokens is hidden (a kernel of no time); all of the longest is, when copies cost nothing more.
    struct Hidden;
    impl CostModel for Hidden {
        fn elementary(&self, op: &Op) -> sim::cost::Estimate {
            let seconds = match op {
                Op::Attention { documents, .. } if documents.iter().any(|document| document.keys > 100_000) => 1.0,
                Op::Copy { .. } => 1.0,
                _ => 0.0,
            };
            sim::cost::Estimate::exact(hw::Seconds::new(seconds), sim::cost::Source::Measured)
        }
    }
    let problem = Problem { model: llama().model, ..problem(vec![131_072, 20_000], 1, 1, 8, 2048) };
    let parameters = [("offload".to_owned(), crate::policy::Value::Word("selective".to_owned()))].into();
    let reason =
        ByteScale.plan(&problem, &PlanContext { parameters, cost: &Hidden }).expect_err("20,000 tokens fit nowhere");
    assert!(matches!(&reason, PlanError::Infeasible(why) if why.contains("20000 tokens takes 10 ranks")), "{reason:?}");
}
