//! Measured steps where the tables are there: what was read off them stays so.
//!
//! Sources: MooreThreads/SimuMax @ 4dcaae513ba7, pytorch/torchtitan @ b5bcd76c66d0, NVIDIA-NeMo/Megatron-Bridge @ 067f987df03b,
//! NVIDIA/Megatron-LM @ d98e8a64ddf3 (a half of the rows of each).

use std::collections::BTreeMap;

use engine::cost::profile::{Operator, Profile};
use engine::cost::profiled::Profiled;
use engine::model::{FeedForward, Layer, Mixer, Pattern, StateSpace};
use engine::task::Op;
use engine::{CostModel, Model};
use hw::{Cluster, Format, Seconds};
use train::problem::{Framework, Launches};

use super::constants;
use super::left_out;
use super::play::predict;
use super::row::{Asked, Run};
use super::select::Selection;
use super::summary::{self, Score};
use super::tables;
use crate::shared_data::truth;

/// As `calibrate` gives them to the program.
fn costs(cluster: &Cluster, framework: Framework) -> Box<dyn CostModel> {
    let card = cluster.gpu.name.as_str();
    let (text, is_own) = match card {
        "b200" => (include_str!("../../../profiles/b200.toml"), true),
        "b300" | "gb200" | "gb300" => (include_str!("../../../profiles/b200.toml"), false),
        "a100-pcie-80g" => (include_str!("../../../profiles/a100-pcie-80g.toml"), true),
        name if name.starts_with("a100") => (include_str!("../../../profiles/a100-sxm.toml"), true),
        name => (include_str!("../../../profiles/h100-sxm.toml"), name == "h100-sxm"),
    };
    let mut profile = Profile::parse(text).expect("shipped");
    let served = match profile.gpu.as_str() {
        "b200" => Some(include_str!("../../../profiles/b200-trtllm.toml")),
        "h100-sxm" => Some(include_str!("../../../profiles/h100-sxm-trtllm.toml")),
        _ => None,
    };
    if let Some(served) = served.map(|text| Profile::parse(text).expect("shipped")) {
        let is_narrow = |(name, _): &(String, Operator)| matches!(name.as_str(), "gemm-fp8" | "gemm-nvfp4");
        profile.operators.extend(served.operators.into_iter().filter(is_narrow));
        if profile.collectives.is_empty() {
            profile.collectives = served.collectives;
        }
    }
    if profile.gpu == "h100-sxm" {
        profile.operators.extend(trained(framework));
    }
    constants::costs(cluster, &if is_own { profile } else { profile.lent_to(&cluster.gpu) })
}

/// Kernels of training that were measured on an H100.
fn trained(framework: Framework) -> BTreeMap<String, Operator> {
    let [training, flash] = [
        include_str!("../../../profiles/h100-sxm-training.toml"),
        include_str!("../../../profiles/h100-sxm-flash.toml"),
    ]
    .map(|text| Profile::parse(text).expect("shipped").operators);
    let mut all = training;
    // Those follow each other, and power holds them (`calibrate/src/profiles.rs`).
    all.remove("gemm");
    if framework.torch().is_some() {
        all.extend(flash);
    } else {
        all.retain(|name, _| !name.starts_with("grouped-gemm"));
    }
    all
}

/// Scores some rows of a table; `None` where it is absent.
fn score(file: &str, only: &str) -> Option<Score> {
    let rows = tables::read(&truth(file)?, &truth).expect("a table of steps").expect("no fault");
    Some(summary::score(rows, &Selection::parse(only).expect("conditions"), &costs, &|| {}))
}

#[test]
fn memory_of_short_models_on_b200_is_met_to_the_percent() {
    let Some(score) = score("simumax_b200.csv", "") else { return };
    let memory = score.all.figures.memory.errors.expect("peaks");
    println!("{memory:?}");
    assert_eq!(score.all.n_predicted, score.all.n_rows);
    assert!(memory.mean < 0.01 && memory.worst < 0.02, "{memory:?}");
}

#[test]
fn steps_of_short_models_on_b200_are_near() {
    let Some(score) = score("simumax_b200.csv", "") else { return };
    let step = score.all.figures.step.errors.expect("steps");
    println!("{step:?}");
    assert!(step.mean < 0.055 && step.worst < 0.125, "{step:?}");
}

#[test]
fn steps_of_torchtitan_are_within_eight_percent() {
    let Some(score) = score("torchtitan.csv", "") else { return };
    let step = score.all.figures.step.errors.expect("steps");
    println!("{step:?}");
    assert_eq!(score.all.n_predicted, score.all.n_rows);
    assert!(step.mean < 0.08 && step.worst < 0.2, "{step:?}");
}

/// Scores steps that this project measured.
fn own(text: &str, only: &str) -> Score {
    let rows = tables::read(text, &|_| None).expect("a table of steps").expect("no fault");
    summary::score(rows, &Selection::parse(only).expect("conditions"), &costs, &|| {})
}

#[test]
fn steps_of_pytorch_on_one_gpu_are_met_in_memory_and_near_in_time() {
    let score = own(include_str!("../../../profiles/measured/h100-sxm/steps.csv"), "");
    let (step, memory) =
        (score.all.figures.step.errors.expect("steps"), score.all.figures.memory.errors.expect("peaks"));
    println!("{step:?} {memory:?}");
    assert_eq!(score.all.n_predicted, score.all.n_rows);
    assert!(memory.mean < 0.002 && memory.worst < 0.005, "{memory:?}");
    assert!(step.mean < 0.08, "{step:?}");
}

/// These rows were measured after every term was there, and none was changed for them.
#[test]
fn steps_of_pytorch_on_a_card_that_was_held_out_are_met() {
    let score = own(include_str!("../../../profiles/measured/h200-sxm/steps.csv"), "");
    let (step, memory) =
        (score.all.figures.step.errors.expect("steps"), score.all.figures.memory.errors.expect("peaks"));
    println!("{step:?} {memory:?}");
    assert_eq!((score.all.n_predicted, score.all.n_rows), (11, 11));
    assert!(memory.mean < 0.002 && memory.worst < 0.005, "{memory:?}");
    assert!(step.mean < 0.05 && step.worst < 0.1, "{step:?}");
}

#[test]
fn memory_of_torchtitan_without_a_pipeline_is_within_three_percent() {
    for only in ["model=Llama 3.1 8B", "model=Llama 3.1 70B"] {
        let Some(score) = score("torchtitan.csv", only) else { return };
        let memory = score.all.figures.memory.errors.expect("peaks");
        println!("{only}: {memory:?}");
        assert!(memory.worst < 0.03, "{only}: {memory:?}");
    }
}

#[test]
fn memory_of_large_models_in_functional_tests_is_met_within_three_percent() {
    // The rows of 7 and 15 billion parameters; most others have a width of 512.
    for only in ["model=gpt-L32-h4096*", "model=gpt-L32-h6144*"] {
        let Some(score) = score("megatron_lm.csv.gz", only) else { return };
        let memory = score.all.figures.memory.errors.expect("peaks");
        println!("{only}: {memory:?}");
        assert!(memory.worst < 0.035, "{only}: {memory:?}");
    }
}

#[test]
fn memory_of_functional_tests_is_near_at_the_median() {
    let Some(score) = score("megatron_lm.csv.gz", "") else { return };
    let memory = score.all.figures.memory.errors.expect("peaks");
    println!("{memory:?}");
    // The aim is 3 %. T5, BERT and tests in 8 bits are further off than the others.
    assert!(memory.median < 0.015 && memory.mean < 0.028, "{memory:?}");
}

#[test]
fn pipelines_over_mixed_cards_are_near() {
    for (only, most) in [("variant=one type", 0.10), ("variant=mixed", 0.15)] {
        let Some(score) = score("sailor_runs.csv", only) else { return };
        let step = score.all.figures.step.errors.expect("steps");
        println!("{only}: {step:?}");
        assert_eq!(score.all.n_predicted, score.all.n_rows);
        assert!(step.mean < most, "{only}: {step:?}");
    }
}

/// Aims of the cards of Megatron Bridge: mean error of a step. The interval of each set is to hold nine rows of ten. Token drop keeps it from that
/// on B200.
#[test]
fn steps_of_megatron_bridge_are_within_their_aims() {
    for (card, most, held) in
        [("H100", 0.08, 0.87), ("B200", 0.12, 0.7), ("B300", 0.12, 0.87), ("GB200", 0.12, 0.87), ("GB300", 0.12, 0.87)]
    {
        let Some(score) = score("megatron_bridge.csv", &format!("card={card}")) else { return };
        let (step, found) =
            (score.all.figures.step.errors.expect("steps"), score.all.figures.step.covered.expect("intervals"));
        println!("{card}: {step:?}, {found} in the interval");
        assert!(step.mean < most && found > held, "{card}: {step:?} {found}");
    }
}

/// A run of another table as one card trains Mamba-2 of 1.4 B parameters: width 2048, 48 layers, four sequences of 4096 tokens.
fn mamba_2(of: &Run, card: &str) -> Run {
    let mut run = Run { other: None, micro_batch: 4, n_micro_batches: 1, tokens: 4096, ..of.clone() };
    let gpu = hw::catalog::gpu(card).expect("listed");
    let (problem, model) = (&mut run.problem, &of.problem.model);
    let scan = Layer { mixer: Mixer::StateSpace, feed_forward: FeedForward::Off };
    let space =
        model.state_space.map(|space| StateSpace { n_heads: 64, head_dim: 64, n_groups: 1, state: 128, ..space });
    problem.model = Model {
        hidden: 2048,
        n_layers: 48,
        layers: Pattern::uniform(scan),
        vocab: 50_288,
        tied: true,
        experts: None,
        state_space: space,
        ..model.clone()
    };
    problem.cluster = hw::catalog::cluster(&gpu, 1, 1);
    (problem.layout.ep, problem.layout.dp) = (1, 1);
    problem.execution.formats = None;
    (problem.execution.launches, problem.execution.host_overhead_per_layer) = (Launches::UNSEEN, Seconds::ZERO);
    run
}

#[test]
fn mamba_2_trains_as_fast_as_published_on_three_cards() {
    let Some(score) = score("megatron_bridge.csv", "row=173") else { return };
    let Ok(Asked::Layout(of)) = &score.rows[0].row.asked else { panic!("a run of Nemotron 3 Nano") };
    // TFLOP/s by six operations per parameter and token (state-spaces/mamba, issue 904).
    for (card, published) in [("a100-sxm-80g", 102.5), ("h200-sxm", 239.2), ("gb200", 360.4)] {
        let run = mamba_2(of, card);
        let n_parameters = run.problem.model.n_parameters();
        assert!((1.34e9..1.35e9).contains(&hw::real(n_parameters)), "{n_parameters}");
        let step_s = predict(&Asked::from(run), &costs).step_s;
        let ratio = 6.0 * hw::real(n_parameters) * 16_384.0 / (published * 1e12) / step_s;
        println!("{card}: {ratio:.3} of the predicted step");
        assert!((0.87..1.13).contains(&ratio), "{card}: {ratio}");
    }
}

/// Shipped profiles that speak of a generation which is left out.
fn lent(name: &str) -> Profile {
    let text = match name {
        "a100-pcie-80g" => include_str!("../../../profiles/a100-pcie-80g.toml"),
        "a100-sxm-trtllm" => include_str!("../../../profiles/a100-sxm-trtllm.toml"),
        "h100-sxm" => include_str!("../../../profiles/h100-sxm.toml"),
        "h100-sxm-trtllm" => include_str!("../../../profiles/h100-sxm-trtllm.toml"),
        "b200" => include_str!("../../../profiles/b200.toml"),
        "b200-trtllm" => include_str!("../../../profiles/b200-trtllm.toml"),
        _ => panic!("no lender has `{name}`"),
    };
    let mut profile = Profile::parse(text).expect("shipped");
    if name == "h100-sxm" {
        profile.operators.extend(trained(Framework::MegatronCore));
    }
    profile
}

/// A product of 8,192 cubed in 8 bits on H100 and B200 says how many operations a joule pays for; cards of their generations hold as many.
#[test]
fn narrow_products_hold_as_many_operations_per_joule_as_the_measured_card() {
    for (tables, cards) in [
        ("h100-sxm-trtllm", &["h100-sxm", "h100-sxm-96g"][..]),
        ("b200-trtllm", &["b200", "b300", "gb200", "gb300"][..]),
    ] {
        let profile = lent(tables);
        let op = Op::Gemm { m: 8192, n: 8192, k: 8192, format: Format::Fp8 };
        let gpu = hw::catalog::gpu(&profile.gpu).expect("listed");
        let time = Profiled::new(&profile, &hw::catalog::cluster(&gpu, 1, 8)).estimate(&op).time;
        let per_joule = op.flops() / time.get() / gpu.power_watts.expect("stated");
        for card in cards {
            let gpu = hw::catalog::gpu(card).expect("listed");
            let share = per_joule * gpu.power_watts.expect("stated") / gpu.peak(Format::Fp8).get();
            let held = constants::Constants::of(card).sustained_narrow;
            assert!((held - share).abs() < 0.01, "{card}: {held} for {share}");
        }
    }
}

/// Products in 16 bits of hours were measured on B200; the other cards of its generation do as many operations per joule.
#[test]
fn wide_products_of_blackwell_hold_as_many_operations_per_joule_as_those_of_b200() {
    let per_joule = |card: &str| {
        let gpu = hw::catalog::gpu(card).expect("listed");
        constants::Constants::of(card).sustained * gpu.peak(Format::Bf16).get() / gpu.power_watts.expect("stated")
    };
    for card in ["b300", "gb200", "gb300"] {
        assert!((per_joule(card) / per_joule("b200") - 1.0).abs() < 0.01, "{card}");
    }
}

/// Mean errors of steps on cards whose generation is left out, and the least share that lies inside. The aim is 12 %.
#[test]
fn steps_on_a_card_that_is_left_out_are_as_near_as_the_page_says() {
    for (file, only, most, held) in [
        ("megatron_bridge.csv", "card=H100", 0.075, 0.95),
        ("megatron_bridge.csv", "card=B200", 0.12, 0.9),
        ("megatron_bridge.csv", "card=B300", 0.10, 0.85),
        // Layers of one block exchange once over their tensor group. Nemotron 3 Super is 11 to 18 % short since.
        ("megatron_bridge.csv", "card=GB200", 0.11, 0.7),
        ("megatron_bridge.csv", "card=GB300", 0.09, 0.95),
        ("simumax_b200.csv", "", 0.10, 0.95),
        ("simumax_a100.csv", "", 0.09, 0.95),
        ("torchtitan.csv", "", 0.09, 0.87),
    ] {
        let Some(Score { rows, .. }) = score(file, only) else { return };
        let rows = left_out::launched(rows.into_iter().map(|scored| scored.row).collect());
        let costs = |cluster: &Cluster, _: Framework| left_out::costs(cluster, &lent);
        let found = summary::score(rows, &Selection::parse("").expect("conditions"), &costs, &|| {}).all;
        let (step, covered) =
            (found.figures.step.errors.expect("steps"), found.figures.step.covered.expect("intervals"));
        println!("{file} {only}: {step:?}, {covered} in the interval");
        assert!(step.mean < most && covered > held, "{file} {only}: {step:?} {covered}");
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
        let without: usize = score.missing.iter().map(|missing| missing.n).sum();
        assert_eq!(score.all.n_predicted + without, score.all.n_rows, "{file}");
        for scored in &score.rows {
            let Ok(found) = &scored.outcome else { continue };
            let [low, high] = found.interval;
            assert!(low <= found.step_s && found.step_s <= high, "{file} row {}", scored.row.label.row);
        }
    }
}
