//! Shared experts behind, beside and among the routed ones, by an engine's own tables and arithmetic by hand.

use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use engine::play::Case;
use hw::Format;

use crate::step_cost::ReplicaConfig;
use crate::step_cost::shared_experts::SharedExperts;
use crate::step_cost::writer::Writer;

const LAYERS: f64 = 58.0;

/// Seconds of the layers of DeepSeek-V3 in 8 bits over eight H200 under SGLang's kernels, and what of it are experts and matrix products.
fn layers(shared_experts: SharedExperts, tokens: u64) -> [f64; 3] {
    let mut model = engine::model::embedded("deepseek-v3").expect("listed");
    model.formats.experts = Format::Fp8Block;
    model.formats.dense = Format::Fp8Block;
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 1, 8);
    let profile = Profile::parse(include_str!("../../../../../profiles/h200-sxm-sglang.toml")).expect("shipped");
    let cost = Profiled::new(&profile, &cluster);
    let config = ReplicaConfig { shared_experts, ..ReplicaConfig::new(&model, &cluster, 8) };
    let writer = Writer::new(&config, &cost, Case::Expected).itemised();
    let all = writer.layers(tokens).get();
    let parts = writer.provenance();
    let of = |name: &str| parts.seconds().filter(|(what, ..)| *what == name).map(|(.., seconds)| seconds).sum();
    [all, of("experts"), of("matrix products")]
}

/// Beside routed experts shared ones take what their weights take at the datasheet's speed, and no less. Three matrices of 7168 by 256 are 5.5 MB.
#[test]
fn beside_routed_experts_shared_ones_take_what_their_weights_take() {
    let ([behind, ..], [beside, ..]) = (layers(SharedExperts::Behind, 32), layers(SharedExperts::Beside(1024), 32));
    let weights = 3.0 * 7168.0 * 256.0 / 4.8e12;
    let saved = (behind - beside) / LAYERS;
    assert!(saved > 5e-6 && saved < 25e-6, "{saved} s a layer");
    let [_, routed, products] = layers(SharedExperts::Beside(1024), 32);
    let [_, same, all] = layers(SharedExperts::Behind, 32);
    assert!((routed / same - 1.0).abs() < 1e-9, "{routed} and {same} s of experts");
    assert!(products < all && (all - products) / LAYERS < saved + 1e-9, "{products} of {all} s");
    assert!(saved < (behind - weights) / LAYERS);
}

#[test]
fn many_tokens_compute_shared_experts_behind_the_routed_ones() {
    assert_eq!(layers(SharedExperts::Beside(256), 257), layers(SharedExperts::Behind, 257));
    assert!(layers(SharedExperts::Beside(256), 256)[0] < layers(SharedExperts::Behind, 256)[0]);
    assert_eq!(SharedExperts::Beside(1024).in_graphs(0), SharedExperts::Beside(0));
    assert_eq!(SharedExperts::Among.in_graphs(0), SharedExperts::Among);
}

/// One expert more that all tokens visit: at least its weights at the datasheet's speed, and less than by itself.
#[test]
fn among_routed_experts_a_shared_one_is_one_more() {
    let ([behind, routed, products], [among, more, fewer]) =
        (layers(SharedExperts::Behind, 32), layers(SharedExperts::Among, 32));
    let weights = 3.0 * 7168.0 * 256.0 / 4.8e12;
    assert!((more - routed) / LAYERS > 0.5 * weights, "{more} and {routed} s of experts");
    assert!(fewer < products && among < behind, "{among} of {behind} s");
}
