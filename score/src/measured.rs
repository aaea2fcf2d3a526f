//! Published runs through the request loop, where the table is there: what was read off it stays so.
//!
//! Source: ai-dynamo/aiconfigurator @ 095f58a51c4c, aic-core/src/aiconfigurator_core/systems/silicon_sample.csv (a subset of its rows). Costs are
//! the shipped profiles of the engines on the card; nothing is fitted to the runs.

use engine::cost::CostModel;
use engine::cost::calibrated::Calibrated;
use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use hw::Cluster;

use crate::learned::Learned;
use crate::refit;
use crate::select::Selection;
use crate::summary::{self, Score};

/// Scores some runs on the profile of the H100; `None` where the table is absent.
fn score(only: &str) -> Option<Score> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/aiconfigurator/silicon_sample_given.csv");
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("skipped: shared data absent ({path})");
        return None;
    };
    let costs =
        |cluster: &Cluster, engine: &str| -> Box<dyn CostModel> { Box::new(Profiled::new(&profile(engine), cluster)) };
    let runs = crate::run::read(&text).expect("a table of runs");
    Some(summary::score(runs, &Selection::parse(only).expect("conditions"), &costs, &|| {}))
}

/// The shipped profile of an engine on the H100.
fn profile(engine: &str) -> Profile {
    let text = match engine {
        "vllm" => include_str!("../../profiles/h100-sxm-vllm.toml"),
        "sglang" => include_str!("../../profiles/h100-sxm-sglang.toml"),
        _ => include_str!("../../profiles/h100-sxm-trtllm.toml"),
    };
    Profile::parse(text).expect("shipped")
}

/// Qwen3-32B in 16 bits: a third of the settings calibrates, the others are scored.
#[test]
fn a_third_of_the_settings_of_an_engine_brings_the_others_near() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/aiconfigurator/silicon_sample_given.csv");
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("skipped: shared data absent ({path})");
        return;
    };
    let profiles = ["vllm", "sglang", "trtllm"].map(|engine| (engine, profile(engine)));
    let costs = |cluster: &Cluster, engine: &str, found: Option<&Calibrated>| -> Box<dyn CostModel> {
        let (_, plain) = profiles.iter().find(|(name, _)| *name == engine).expect("an engine with tables");
        Box::new(Profiled::new(&Profile { calibrated: found.cloned(), ..plain.clone() }, cluster))
    };
    for engine in ["vllm", "sglang"] {
        let only = format!("card=h100-sxm,format=bf16,engine={engine}");
        let runs = crate::run::read(&text).expect("a table of runs");
        let found = refit::refitted(runs, &Selection::parse(&only).expect("conditions"), 3, &costs, &|| {});
        let all = &found[0];
        println!(
            "{engine}: {} scored, TTFT and TPOT off by {:?} before, {:?} after",
            all.n_runs, all.before, all.after
        );
        assert!(all.n_runs > 0 && all.after[0] < 0.1 && all.after[1] < 0.05, "{engine}: {all:?}");
    }
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

/// What is shipped was learned with the loop of its day. Where the loop changes, it has to be learned again (`import --format serving-runs`).
#[test]
fn what_is_shipped_corrects_what_the_loop_leaves_over_today() {
    let Some(score) = score("card=h100-sxm,engine=trtllm") else { return };
    let found = Learned::shipped().corrected(&score);
    println!("{} runs, TTFT and TPOT off by {:?} before, {:?} after", found[0].n_runs, found[0].before, found[0].after);
    assert!(found[0].n_runs > 200 && found[0].after[0] < 0.06 && found[0].after[1] < 0.025, "{:?}", found[0]);
}
