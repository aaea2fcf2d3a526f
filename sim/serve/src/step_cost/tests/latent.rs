//! Routed experts behind a projection to a narrower width, by their weights on paper.

use engine::cost::CostModel;
use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use engine::model::Model;
use engine::play::Case;
use hw::Cluster;

use crate::step_cost::ReplicaConfig;
use crate::step_cost::writer::Writer;

/// Seconds of the experts of 64 tokens over four H200.
fn experts(model: &Model, cluster: &Cluster, cost: &dyn CostModel) -> f64 {
    let config = ReplicaConfig::new(model, cluster, 4);
    let writer = Writer::new(&config, cost, Case::Expected).itemised();
    writer.layers(64);
    let parts = writer.provenance();
    parts.seconds().filter(|(what, ..)| *what == "experts").map(|(.., seconds)| seconds).sum()
}

/// Nemotron-3 Super: 40 layers of 512 experts with two matrices of 1024 by 2688. With 22 of 512 experts a token, 64 tokens leave one in 17 alone. Kernels of both
/// engines read weights at the memory's pace; at the model's width of 4096 they would read four times as many.
#[test]
fn experts_behind_a_projection_read_matrices_of_its_width() {
    let model = engine::model::embedded("nemotron-3-super-120b-a12b").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h200-sxm").expect("listed"), 1, 4);
    let bytes = 2.0 * 40.0 * 512.0 * 2.0 * 1024.0 * 2688.0 / 4.0;
    let visited = 1.0 - (1.0 - 22.0_f64 / 512.0).powi(64);
    let least = visited * bytes / 4.8e12;
    for text in [
        include_str!("../../../../../profiles/h200-sxm-vllm.toml"),
        include_str!("../../../../../profiles/h200-sxm-trtllm.toml"),
    ] {
        let profile = Profile::parse(text).expect("shipped");
        let cost = Profiled::new(&profile, &cluster);
        let found = experts(&model, &cluster, &cost);
        assert!(found > least && found < 1.6 * least, "{found} s, at least {least}");
    }
}
