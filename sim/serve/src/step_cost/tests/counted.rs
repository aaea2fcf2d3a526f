//! Experts by counts, and busy ones twice: against the law of even experts, against the power law, and against arithmetic.

use std::sync::Arc;

use engine::cost::CostModel;
use engine::cost::experts::Routing;
use engine::cost::experts::counts::ExpertCounts;
use engine::cost::roofline::Roofline;
use engine::dispatcher::DeepEpMode;
use engine::formats::Formats;
use engine::play::Case;
use engine::task::{Collective, Op, Ops};
use hw::{Bytes, Dtype, Format, Seconds};

use crate::capacity;
use crate::step_cost::ReplicaConfig;
use crate::step_cost::writer::Writer;

fn counted(layers: Vec<Vec<f64>>) -> Routing {
    Routing::Counted(Arc::new(ExpertCounts::new(layers).expect("counts")))
}

/// Seconds of all layers of DeepSeek-V3 over 32 GPUs for so many tokens on every rank.
fn layers_s(routing: &Routing, redundant_experts: Option<u32>, tokens: u64) -> Seconds {
    let model = engine::model::embedded("deepseek-v3").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 4, 8);
    let cost = Roofline::new(&cluster);
    let base = ReplicaConfig::new(&model, &cluster, 1);
    let config = ReplicaConfig { expert_degree: 32, routing: routing.clone(), redundant_experts, ..base };
    Writer::new(&config, &cost, Case::Expected).layers(tokens)
}

#[test]
fn even_counts_cost_what_even_experts_cost() {
    let one_row = counted(vec![vec![3.0; 256]]);
    let all_rows = counted(vec![vec![3.0; 256]; 58]);
    for tokens in [1, 7, 64, 1000] {
        let even = layers_s(&Routing::Even, None, tokens).get();
        for routing in [&one_row, &all_rows] {
            let found = layers_s(routing, None, tokens).get();
            assert!((found / even - 1.0).abs() < 1e-3, "{tokens} tokens: {found} of {even}");
        }
    }
}

/// Five draws of the law as five layers: the mean over layers is the price of the law, whose rows are the mean of five draws. The law draws fewer loads
/// with few tokens, so many tokens are compared: on GPUs that gather all.
#[test]
fn counts_that_were_drawn_from_a_power_law_cost_what_the_law_costs() {
    let model = engine::model::embedded("qwen3-30b-a3b").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 1, 8);
    let cost = Roofline::new(&cluster);
    let experts = model.experts.expect("experts");
    let price = |routing: Routing, expert_degree| {
        let config = ReplicaConfig { expert_degree, routing, ..ReplicaConfig::new(&model, &cluster, expert_degree) };
        Writer::new(&config, &cost, Case::Expected).layers(4096).get()
    };
    let law = Routing::PowerLaw(1.2);
    for expert_degree in [1, 4] {
        let drawn = Routing::Counted(law.counts(experts.top_k, experts.n_routed));
        let (found, expected) = (price(drawn, expert_degree), price(law.clone(), expert_degree));
        assert!((found / expected - 1.0).abs() < 0.03, "ep = {expert_degree}: {found} of {expected}");
    }
}

/// The same on GPUs that send tokens to their experts alone: products and exchange of the busiest GPU.
#[test]
fn a_power_law_fills_the_exchange_of_the_busiest_gpu_as_its_draws_do() {
    let law = Routing::PowerLaw(1.2);
    let drawn = Routing::Counted(law.counts(8, 256));
    for tokens in [256, 4096] {
        let [found, expected] = [&drawn, &law].map(|routing| layers_s(routing, None, tokens).get());
        assert!((found / expected - 1.0).abs() < 0.03, "{tokens} tokens: {found} of {expected}");
    }
}

/// By hand: two exchanges of each of 58 layers carry `over_even` times the bytes of even ones, or as many where one of 32 ranks has tokens.
#[test]
fn the_exchange_alone_grows_with_what_the_busiest_gpu_is_sent() {
    let model = engine::model::embedded("deepseek-v3").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 4, 8);
    let cost = Roofline::new(&cluster);
    let bytes = |routing: Routing, n_busy| {
        let config = ReplicaConfig { expert_degree: 32, routing, ..ReplicaConfig::new(&model, &cluster, 1) };
        let ops = Writer::new(&config, &cost, Case::Expected).expert_exchange(1000, n_busy);
        let of = |(op, n): &(Op, u32)| match op {
            Op::Collective { kind: Collective::AllToAll, bytes, .. } => bytes * u64::from(*n),
            _ => 0,
        };
        ops.iter().map(of).sum::<u64>()
    };
    let law = Routing::PowerLaw(1.2);
    let even = bytes(Routing::Even, 32);
    let grown = hw::whole(hw::real(even) * law.over_even(512, 8, 256, 32));
    let found = bytes(law.clone(), 32);
    assert!(found > even && found.abs_diff(grown) <= even / 1000, "{found} of {grown}");
    // Of one rank's tokens no GPU receives more than that rank sends.
    assert_eq!((bytes(law, 1), bytes(Routing::Even, 1)), (even, even));
}

/// By hand, DeepSeek-V3 in 8 bits on four nodes of eight: few tokens go as eight copies each, many once to a node.
#[test]
fn deepep_sends_narrow_tokens_and_takes_wide_ones_back() {
    let model = engine::model::embedded("deepseek-v3").expect("listed");
    let gpu = hw::catalog::gpu("h200-sxm").expect("listed");
    let sent = |n_nodes, deep_ep, tokens| {
        let cluster = hw::catalog::cluster(&gpu, n_nodes, 8);
        let cost = Roofline::new(&cluster);
        let formats = Formats::weights(Format::Fp8Block, Dtype::Bf16);
        let base = ReplicaConfig::new(&model, &cluster, 1);
        let config = ReplicaConfig { expert_degree: 8 * n_nodes, formats, deep_ep, ..base };
        Writer::new(&config, &cost, Case::Expected).expert_exchange(tokens, 8 * n_nodes)
    };
    let bytes = |ops: &Ops| -> Vec<(u64, u32)> {
        let of = |(op, n): &(Op, u32)| match op {
            Op::Collective { kind: Collective::AllToAll, bytes, .. } => (*bytes, *n),
            other => panic!("{other:?}"),
        };
        ops.iter().map(of).collect()
    };
    let latency = sent(4, Some(DeepEpMode::Auto), 128);
    // Eight copies; 7,168 numbers and 56 scales of 32 bits one way, 16 bits back. A port is reached 0.9 where the library reaches 0.75.
    let expected = [7168 + 224, 2 * 7168].map(|row| (hw::whole(128.0 * 8.0 * hw::real(row) * 0.75 / 0.9), 58));
    assert_eq!(bytes(&latency), expected);
    assert_eq!(latency, sent(4, Some(DeepEpMode::LowLatency), 128));
    let many = sent(4, Some(DeepEpMode::Auto), 4096);
    assert_eq!(many, sent(4, Some(DeepEpMode::Normal), 4096));
    // No token goes to more than four nodes.
    let most = hw::whole(4096.0 * 4.0 * 7392.0 * 0.75 / 0.9);
    assert!(bytes(&many)[0].0 < most && bytes(&many)[0].0 > most / 2, "{many:?} of {most}");
    // Inside of a node tokens are sent as well, where they would be gathered.
    assert_eq!(bytes(&sent(1, Some(DeepEpMode::Auto), 128)), [(128 * 8 * 2 * 7168, 116)]);
    assert_eq!(sent(1, None, 128).len(), 2);
}

/// DeepSeek-V3 in 8 bits on four nodes: of two equal halves the shorter of computation and exchange is hidden, but for one layer's way.
#[test]
fn of_two_halves_one_travels_while_the_other_computes() {
    let model = engine::model::embedded("deepseek-v3").expect("listed");
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    let cluster = hw::catalog::cluster(&gpu, 4, 8);
    let cost = Roofline::new(&cluster);
    let of = |deep_ep, overlaps_batches| {
        let formats = Formats::weights(Format::Fp8Block, Dtype::Bf16);
        let base = ReplicaConfig::new(&model, &cluster, 1);
        ReplicaConfig { expert_degree: 32, formats, deep_ep: Some(deep_ep), overlaps_batches, ..base }
    };
    let seconds = |config: &ReplicaConfig<'_>, tokens| Writer::new(config, &cost, Case::Expected).layers(tokens).get();
    let sent = |config: &ReplicaConfig<'_>, tokens| -> f64 {
        let ops = Writer::new(config, &cost, Case::Expected).expert_exchange(tokens, 32);
        ops.iter().map(|(op, n)| f64::from(*n) * cost.estimate(op).time.get()).sum()
    };
    for (mode, tokens, taken) in [(DeepEpMode::LowLatency, 256, 0.0), (DeepEpMode::Normal, 16384, 20.0 / 132.0)] {
        let [plain, halves] = [false, true].map(|overlaps| of(mode, overlaps));
        let way = 2.0 * sent(&plain, tokens / 2);
        let computed = 2.0 * seconds(&plain, tokens / 2) - way;
        let hidden = computed.min(way) - way / 2.0 / 58.0;
        let expected = computed + way - hidden + hidden * taken / (1.0 - taken);
        let found = seconds(&halves, tokens);
        assert!((found / expected - 1.0).abs() < 1e-6, "{mode:?}: {found} s of {expected}");
    }
    // Inside of a node both ways are one entry of 116, and the last way is that of one of 58 layers all the same.
    let node = hw::catalog::cluster(&gpu, 1, 8);
    let inside = |overlaps_batches| {
        let base = ReplicaConfig::new(&model, &node, 1);
        let formats = Formats::weights(Format::Fp8Block, Dtype::Bf16);
        ReplicaConfig { expert_degree: 8, formats, deep_ep: Some(DeepEpMode::LowLatency), overlaps_batches, ..base }
    };
    let inside_s = |overlaps: bool, tokens| Writer::new(&inside(overlaps), &cost, Case::Expected).layers(tokens).get();
    let ops = Writer::new(&inside(false), &cost, Case::Expected).expert_exchange(64, 8);
    assert_eq!(ops.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [116]);
    let way = 2.0 * 116.0 * cost.estimate(&ops[0].0).time.get();
    let computed = 2.0 * inside_s(false, 64) - way;
    let expected = computed + way - (computed.min(way) - way / 2.0 / 58.0);
    let found = inside_s(true, 128);
    assert!((found / expected - 1.0).abs() < 1e-6, "{found} s of {expected}");
    // Many tokens gain, and one token cannot be cut.
    assert!(seconds(&of(DeepEpMode::Normal, true), 16384) < seconds(&of(DeepEpMode::Normal, false), 16384));
    assert_eq!(seconds(&of(DeepEpMode::Normal, true), 1), seconds(&of(DeepEpMode::Normal, false), 1));
    // Where nothing goes to experts no batch is cut.
    let dense = engine::model::embedded("llama-3-8b").expect("listed");
    let of_dense = |overlaps_batches| ReplicaConfig { overlaps_batches, ..ReplicaConfig::new(&dense, &cluster, 2) };
    assert_eq!(seconds(&of_dense(true), 256), seconds(&of_dense(false), 256));
}

#[test]
fn busy_experts_that_lie_twice_take_load_off_the_busiest_gpu() {
    // The first two experts of every group of 32 are busy, and lie on one GPU. An even share is 15 visits of 480; it has 2 · 15 + 6.
    let shares: Vec<f64> = (0..256).map(|expert| if expert % 32 < 2 { 15.0 } else { 1.0 }).collect();
    let skewed = counted(vec![shares]);
    let even = layers_s(&counted(vec![vec![1.0; 256]]), None, 512);
    let [in_order, balanced, twice] = [None, Some(0), Some(32)].map(|redundant| layers_s(&skewed, redundant, 512));
    assert!(in_order.get() > 1.5 * even.get(), "{in_order:?} beside {even:?}");
    assert!(in_order > balanced && balanced > twice, "{in_order:?}, {balanced:?}, {twice:?}");
    assert!(twice.get() < 1.15 * even.get(), "{twice:?} beside {even:?}");
}

#[test]
fn replicas_take_the_memory_of_their_weights() {
    let model = engine::model::embedded("deepseek-v3").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 4, 8);
    let base = ReplicaConfig { expert_degree: 32, ..ReplicaConfig::new(&model, &cluster, 1) };
    let weights = |redundant_experts| {
        let config = ReplicaConfig { redundant_experts, ..base.clone() };
        capacity::of(&config, 1.0, Bytes::ZERO).expect("fits").weights
    };
    // 58 layers keep one expert of three matrices of 7168 × 2048 more on each of 32 GPUs, in 16 bits.
    assert_eq!(weights(Some(32)), weights(None) + Bytes(58 * 3 * 7168 * 2048 * 2));
    assert_eq!(weights(Some(0)), weights(None));
}
