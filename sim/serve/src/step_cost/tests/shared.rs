//! A shared expert by itself and among the routed ones, by an engine's own tables and arithmetic by hand.

use engine::cost::CostModel;
use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use engine::cost::roofline::Roofline;
use engine::play::Case;
use engine::task::Op;
use hw::Format;

use super::FreeExperts;
use crate::step_cost::writer::Writer;
use crate::step_cost::{ReplicaConfig, StepTable};

/// Layers with experts.
const LAYERS: f64 = 58.0;

/// Seconds of the layers of DeepSeek-V3 in 8 bits over eight H200 under SGLang's kernels, and what of it are experts and matrix products.
fn layers(shared_among_routed: bool, tokens: u64) -> [f64; 3] {
    let mut model = engine::model::embedded("deepseek-v3").expect("listed");
    model.formats.experts = Format::Fp8Block;
    model.formats.dense = Format::Fp8Block;
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 1, 8);
    let profile = Profile::parse(include_str!("../../../../../profiles/h200-sxm-sglang.toml")).expect("shipped");
    let cost = Profiled::new(&profile, &cluster);
    let config = ReplicaConfig { shared_among_routed, ..ReplicaConfig::new(&model, &cluster, 8) };
    let writer = Writer::new(&config, &cost, Case::Expected).itemised();
    let all = writer.layers(tokens).get();
    let parts = writer.provenance();
    let of = |name: &str| parts.seconds().filter(|(what, ..)| *what == name).map(|(.., seconds)| seconds).sum();
    [all, of("experts"), of("matrix products")]
}

/// Three matrices of 7168 by 256 are 5.5 MB. The kernel of all experts reads them at 4.8 TB/s at most, and at a third of it at least. Two products less are
/// launched in every layer, which takes some microseconds each.
#[test]
fn among_routed_experts_a_shared_one_is_one_more() {
    for tokens in [4, 32, 128] {
        let ([alone, routed, products], [among, more, fewer]) = (layers(false, tokens), layers(true, tokens));
        let (weights, added) = (3.0 * 7168.0 * 256.0 / 4.8e12, (more - routed) / LAYERS);
        assert!(
            added > 0.5 * weights && added < 3.0 * weights + 1e-6,
            "{tokens} tokens: {added} s, weights {weights} s"
        );
        let gone = (products - fewer) / LAYERS;
        assert!(gone > 4e-6 && gone < 25e-6, "{tokens} tokens: {gone} s of products a layer");
        assert!(among < alone, "{tokens} tokens: {among} of {alone} s");
    }
}

#[test]
fn experts_of_several_gpus_keep_the_shared_one_apart() {
    let model = engine::model::embedded("deepseek-v3").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 1, 8);
    let cost = engine::cost::roofline::Roofline::new(&cluster);
    let of = |shared_among_routed| {
        let config = ReplicaConfig { shared_among_routed, expert_degree: 8, ..ReplicaConfig::new(&model, &cluster, 8) };
        Writer::new(&config, &cost, Case::Expected).layers(32)
    };
    assert_eq!(of(true), of(false));
}

#[test]
fn shared_experts_beside_the_routed_ones_take_the_reading_of_their_weights() {
    let model = engine::model::embedded("deepseek-v3").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 1, 8);
    let cost = FreeExperts(Roofline::new(&cluster));
    let plain = ReplicaConfig { graph_sizes: vec![64, 512], ..ReplicaConfig::new(&model, &cluster, 8) };
    let beside = ReplicaConfig { shared_beside: 256, ..plain.clone() };
    let [one, other] = [&plain, &beside].map(|config| StepTable::new(config, (512, 512), &cost, Case::Expected));
    // 58 of 61 layers have experts. The shared one is 2048 wide, an eighth of it on each GPU.
    let (width, format) = (2048 / 8, plain.formats.dense);
    for m in [64_u32, 512] {
        let tokens = u64::from(m);
        let products = [(2 * width, model.hidden), (model.hidden, width)];
        let of = |(n, k)| cost.estimate(&Op::Gemm { m: tokens, n, k, format }).time.get();
        let activation = cost.estimate(&Op::Elementwise { bytes: 3 * tokens * width * 2 }).time.get();
        let read = format.weight_bytes(hw::real(3 * width * model.hidden)) / cluster.gpu.memory_bandwidth.get();
        let hidden = 58.0 * (products.map(of).iter().sum::<f64>() + activation - read);
        let found = (one.law(m).fixed - other.law(m).fixed).span().to_seconds().get();
        // Larger batches than the engine says are as they were.
        let wanted = if m <= 256 { hidden } else { 0.0 };
        assert!((found - wanted).abs() < 1e-3 * hidden, "{m}: {found} of {wanted}");
    }
}
