//! Published figures of Skrull (arXiv:2505.19609, section 5) against the six set-ups under `scenarios/skrull/`.
//!
//! Free parameter: `host_overhead_per_layer_us = 50`, one value for all set-ups (docs/skrull.md).

use skrull_sim::kinds::training::run as pipeline;

/// Speed-up of Skrull over DeepSpeed.
fn speedup(name: &str) -> f64 {
    let checked = super::check(&super::root().join("scenarios/skrull").join(format!("{name}.toml")));
    let run = pipeline::run(&super::training(checked), &|_| {});
    run.result.speedup_ratio["skrull"]
}

fn mean(model: &str) -> f64 {
    ["wikipedia", "lmsys", "chatqa2"].iter().map(|data| speedup(&format!("{model}-{data}"))).sum::<f64>() / 3.0
}

#[test]
fn mean_speedups_lie_within_a_quarter_of_the_published_ones() {
    for (model, published) in [("qwen-0.5b", 5.50), ("qwen-7b", 2.03)] {
        let found = mean(model);
        println!("{model}: {found:.2}, published {published}");
        assert!((found / published - 1.0).abs() < 0.25, "{model}: {found}, published {published}");
    }
}

#[test]
fn short_sequences_gain_far_more_than_long_ones() {
    for model in ["qwen-0.5b", "qwen-7b"] {
        assert!(speedup(&format!("{model}-wikipedia")) > 1.5 * speedup(&format!("{model}-chatqa2")));
    }
    assert!(speedup("qwen-0.5b-lmsys") > speedup("qwen-7b-lmsys"));
}
