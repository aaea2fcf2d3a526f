//! Published runs through the request loop, where the table is there: what was read off it stays so.
//!
//! Source: ai-dynamo/aiconfigurator @ 095f58a51c4c, aic-core/src/aiconfigurator_core/systems/silicon_sample.csv (a subset of its rows). Costs are
//! the shipped profiles of the engines on the card; nothing is fitted to the runs.

use engine::cost::CostModel;
use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use hw::Cluster;

use crate::select::Selection;
use crate::summary::{self, Score};

/// Scores some runs on the profile of the H100; `None` where the table is absent.
fn score(only: &str) -> Option<Score> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/aiconfigurator/silicon_sample_given.csv");
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("skipped: shared data absent ({path})");
        return None;
    };
    let profile = |text: &str| Profile::parse(text).expect("shipped");
    let of_vllm = profile(include_str!("../../profiles/h100-sxm-vllm.toml"));
    let of_sglang = profile(include_str!("../../profiles/h100-sxm-sglang.toml"));
    let of_trtllm = profile(include_str!("../../profiles/h100-sxm-trtllm.toml"));
    let costs = |cluster: &Cluster, engine: &str| -> Box<dyn CostModel> {
        let profile = match engine {
            "vllm" => &of_vllm,
            "sglang" => &of_sglang,
            _ => &of_trtllm,
        };
        Box::new(Profiled::new(profile, cluster))
    };
    let runs = crate::run::read(&text).expect("a table of runs");
    Some(summary::score(runs, &Selection::parse(only).expect("conditions"), &costs, &|| {}))
}

#[test]
fn time_per_token_of_runs_in_16_bits_is_near_on_every_engine() {
    for engine in ["vllm", "sglang", "trtllm"] {
        let Some(score) = score(&format!("card=h100-sxm,format=bf16,engine={engine}")) else { return };
        let errors = score.all.tpot.expect("predicted");
        println!("{engine}: {} runs, TPOT off by {:.1} %", score.all.n_predicted, errors.median * 100.0);
        assert_eq!(score.all.n_predicted, score.all.n_runs, "{engine}: {:?}", score.reasons);
        assert!(errors.median < 0.12 && errors.covered > 0.7, "{engine}: {errors:?}");
    }
}

#[test]
fn first_tokens_of_runs_in_16_bits_are_near_where_the_set_up_is_known() {
    for engine in ["vllm", "sglang"] {
        let Some(score) = score(&format!("card=h100-sxm,format=bf16,engine={engine}")) else { return };
        let errors = score.all.ttft.expect("predicted");
        println!("{engine}: TTFT off by {:.1} %", errors.median * 100.0);
        assert!(errors.median < 0.15, "{engine}: {errors:?}");
    }
}

#[test]
fn every_run_has_a_prediction_or_a_reason() {
    let Some(score) = score("card=h100-sxm") else { return };
    let n_without: usize = score.reasons.iter().map(|(_, _, n)| n).sum();
    assert_eq!(score.all.n_predicted + n_without, score.all.n_runs);
}

#[test]
fn experts_by_the_kernel_that_ran_give_first_tokens_that_are_near() {
    let Some(score) = score("card=h100-sxm,engine=vllm,model=gpt-oss*,version=0.18*") else { return };
    let errors = score.all.ttft.expect("predicted");
    println!("{} runs, TTFT off by {:.1} %", score.all.n_predicted, errors.median * 100.0);
    // By the curve of another kernel it was 36 %.
    assert!(errors.median < 0.2, "{errors:?}");
}
