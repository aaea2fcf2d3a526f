//! Measured steps where the tables are there: what was read off them stays so.
//!
//! Sources: MooreThreads/SimuMax @ 4dcaae513ba7, pytorch/torchtitan @ b5bcd76c66d0, NVIDIA-NeMo/Megatron-Bridge @ 067f987df03b,
//! NVIDIA/Megatron-LM @ d98e8a64ddf3 (a half of the rows of each).

use engine::CostModel;
use engine::cost::profile::Profile;
use hw::Cluster;

use super::select::Selection;
use super::summary::{self, Score};
use super::{constants, tables};

/// As `calibrate` gives them to the program.
fn costs(cluster: &Cluster) -> Box<dyn CostModel> {
    let card = cluster.gpu.name.as_str();
    let (text, is_own) = match card {
        "b200" => (include_str!("../../../profiles/b200.toml"), true),
        "b300" | "gb200" | "gb300" => (include_str!("../../../profiles/b200.toml"), false),
        "a100-pcie-80g" => (include_str!("../../../profiles/a100-pcie-80g.toml"), true),
        name if name.starts_with("a100") => (include_str!("../../../profiles/a100-sxm.toml"), true),
        name => (include_str!("../../../profiles/h100-sxm.toml"), name == "h100-sxm"),
    };
    let mut profile = Profile::parse(text).expect("shipped");
    if !card.starts_with("a100") {
        let served = Profile::parse(include_str!("../../../profiles/h100-sxm-sglang.toml")).expect("shipped");
        profile.operators.insert("gemm-fp8".to_owned(), served.operators["gemm-fp8"].clone());
    }
    constants::costs(cluster, if is_own { profile } else { profile.lent_to(&cluster.gpu) })
}

/// Scores some rows of a table; `None` where it is absent.
fn score(file: &str, only: &str) -> Option<Score> {
    let path = format!("{}/../../shared/data/truth/{file}", env!("CARGO_MANIFEST_DIR"));
    let Ok(bytes) = std::fs::read(&path) else {
        println!("skipped: shared data absent ({path})");
        return None;
    };
    let text = tables::unpacked(bytes).expect("a text");
    let beside = |name: &str| {
        let path = std::path::Path::new(&path).with_file_name(name);
        tables::unpacked(std::fs::read(path).ok()?).ok()
    };
    let rows = tables::read(&text, &beside).expect("a table of steps").expect("no fault");
    Some(summary::score(rows, &Selection::parse(only).expect("conditions"), &costs, &|| {}))
}

#[test]
fn memory_of_short_models_on_b200_is_met_to_the_percent() {
    let Some(score) = score("simumax_b200.csv", "") else { return };
    let memory = score.all.memory.expect("peaks");
    println!("{memory:?}");
    assert_eq!(score.all.n_predicted, score.all.n_rows);
    assert!(memory.mean < 0.01 && memory.worst < 0.02, "{memory:?}");
}

#[test]
fn steps_of_short_models_on_b200_are_near() {
    let Some(score) = score("simumax_b200.csv", "") else { return };
    let step = score.all.step.expect("steps");
    println!("{step:?}");
    assert!(step.mean < 0.055 && step.worst < 0.125, "{step:?}");
}

#[test]
fn steps_of_torchtitan_are_within_eight_percent() {
    let Some(score) = score("torchtitan.csv", "") else { return };
    let step = score.all.step.expect("steps");
    println!("{step:?}");
    assert_eq!(score.all.n_predicted, score.all.n_rows);
    assert!(step.mean < 0.08 && step.worst < 0.2, "{step:?}");
}

#[test]
fn memory_of_torchtitan_without_a_pipeline_is_within_three_percent() {
    for only in ["model=Llama 3.1 8B", "model=Llama 3.1 70B"] {
        let Some(score) = score("torchtitan.csv", only) else { return };
        let memory = score.all.memory.expect("peaks");
        println!("{only}: {memory:?}");
        assert!(memory.worst < 0.03, "{only}: {memory:?}");
    }
}

#[test]
fn memory_of_large_models_in_functional_tests_is_met_within_three_percent() {
    // The rows of 7 and 15 billion parameters; most others have a width of 512.
    for only in ["model=gpt-L32-h4096*", "model=gpt-L32-h6144*"] {
        let Some(score) = score("megatron_lm.csv.gz", only) else { return };
        let memory = score.all.memory.expect("peaks");
        println!("{only}: {memory:?}");
        assert!(memory.worst < 0.035, "{only}: {memory:?}");
    }
}

#[test]
fn memory_of_functional_tests_is_near_at_the_median() {
    let Some(score) = score("megatron_lm.csv.gz", "") else { return };
    let memory = score.all.memory.expect("peaks");
    println!("{memory:?}");
    assert!(memory.median < 0.03, "{memory:?}");
}

#[test]
fn pipelines_over_mixed_cards_are_near() {
    for (only, most) in [("variant=one type", 0.10), ("variant=mixed", 0.15)] {
        let Some(score) = score("sailor_runs.csv", only) else { return };
        let step = score.all.step.expect("steps");
        println!("{only}: {step:?}");
        assert_eq!(score.all.n_predicted, score.all.n_rows);
        assert!(step.mean < most, "{only}: {step:?}");
    }
}

#[test]
fn every_row_of_every_table_has_a_prediction_or_a_reason() {
    for file in [
        "simumax_b200.csv",
        "simumax_a100.csv",
        "torchtitan.csv",
        "megatron_lm.csv.gz",
        "megatron_bridge.csv",
        "sailor_runs.csv",
    ] {
        let Some(score) = score(file, "") else { return };
        let without: usize = score.reasons.iter().map(|(_, _, n)| n).sum();
        assert_eq!(score.all.n_predicted + without, score.all.n_rows, "{file}");
        for scored in &score.rows {
            let Ok(found) = &scored.outcome else { continue };
            let [low, high] = found.interval;
            assert!(low <= found.step_s && found.step_s <= high, "{file} row {}", scored.row.label.row);
        }
    }
}
