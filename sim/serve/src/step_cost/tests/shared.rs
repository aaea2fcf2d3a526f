//! A shared expert by itself and among the routed ones, by an engine's own tables and arithmetic by hand.

use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use engine::play::Case;
use hw::Format;

use crate::step_cost::ReplicaConfig;
use crate::step_cost::writer::Writer;

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
