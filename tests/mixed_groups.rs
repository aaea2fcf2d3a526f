//! Groups of one type of GPU are one cluster of it: a step takes as long, holds as much, and rests on the same kernels.

use std::collections::BTreeMap;

use reports::{CostModelFacts, CostShare, RunResult};

use super::mixed_training::{row, run_text};

/// A stage of mixed GPUs: its layers, and the groups and tensor degree of its replicas.
type Lies<'a> = (u32, &'a [&'a str], u32);

/// Two groups of one node of up to eight H100 each with such stages, and a step of kind `training` on as many nodes as they take.
fn two_groups_beside_one_cluster(model: &str, stages: &[Lies<'_>], set: &[&str]) -> [RunResult; 2] {
    let head = format!(
        "kind = \"training\"\n[model]\nname = \"{model}\"\n[training]\nframework = \"megatron-core\"\nbatch_size = 32\n"
    );
    let (pp, dp, tp) = (stages.len(), stages[0].1.len(), stages[0].2);
    let n_gpus = u32::try_from(pp * dp).expect("few stages") * tp;
    let per_node = n_gpus.min(8);
    let machines = format!("gpu = \"h100-sxm\"\nmemory_gib = 2000.0\ngpus_per_node = {per_node}\n");
    let group = |name: &str| format!("[[group]]\nname = \"{name}\"\nnodes = 1\n{machines}");
    let stage = |(layers, groups, tp): &Lies<'_>| {
        let slots: Vec<String> = groups.iter().map(|group| format!("{{ group = \"{group}\", gpus = {tp} }}")).collect();
        format!("[[stage]]\nlayers = {layers}\nreplicas = [{}]\n", slots.join(", "))
    };
    let all: String = stages.iter().map(stage).collect();
    let mixed = format!("{head}{}{}[policies]\nrun = [\"given\"]\n{all}", group("a"), group("b"));
    let layers: Vec<u32> = stages.iter().map(|stage| stage.0).collect();
    let expert_tp = if model.starts_with("mixtral") { tp } else { 1 };
    let alone = format!(
        "{head}bucket_tokens = 2048\ngradient_sync = \"at_end\"\n[cluster]\nnodes = {}\n{machines}[parallel]\ndp = {dp}\ntp = {tp}\npp = {pp}\n\
         expert_tp = {expert_tp}\nzero = 1\nlayers = {layers:?}\n[policies]\nrun = [\"megatron\"]\nmegatron = {{ fill = \"flat\", sequences = 1 }}\n",
        n_gpus / per_node
    );
    [mixed, alone].map(|text| run_text(text, &[&["workload.tokens=2048"], set].concat()))
}

/// Shares of the time by what is done and where its cost comes from.
fn shares(costs: &CostModelFacts) -> BTreeMap<(String, String), f64> {
    let of = |share: &CostShare| ((share.what.clone(), share.source.clone()), share.ratio);
    costs.shares.iter().map(of).collect()
}

/// Two groups of one type of GPU are one cluster of it: replicas, tensor groups, stages, cut experts and a table that two stages share take as long, to the nanoseconds that
/// each part is rounded to, and rest on the same kernels.
#[test]
fn two_groups_of_one_type_are_one_cluster_of_it() {
    let (a, b): (&[&str], &[&str]) = (&["a"; 8], &["b"; 8]);
    let halves = [a, b].concat();
    let [four_a, four_b, two] = [["a"; 4].as_slice(), &["b"; 4], &["a", "b"]];
    let adapters = ["optimizer.trains=adapters", "optimizer.adapter_rank=16"];
    for (model, stages, set) in [
        ("llama-3.1-8b", &[(32, halves.as_slice(), 1)][..], &[][..]),
        ("llama-3.1-8b", &[(32, &["a", "a"], 1)], &[]),
        ("llama-3.1-8b", &[(32, two, 8)], &[]),
        ("llama-3.1-8b", &[(20, a, 1), (12, b, 1)], &[]),
        ("llama-3.1-8b", &[(16, four_a, 2), (16, four_b, 2)], &[]),
        ("llama-3.2-1b", &[(8, a, 1), (8, b, 1)], &[]),
        ("llama-3.2-1b", &[(8, &["a"], 8), (8, &["b"], 8)], &[]),
        ("llama-3.1-8b", &[(32, two, 8)], &adapters),
        ("mixtral-8x7b", &[(32, &["a", "a"], 2)], &[]),
        ("mixtral-8x7b", &[(16, four_a, 2), (16, four_b, 2)], &[]),
    ] {
        let [mixed, alone] = two_groups_beside_one_cluster(model, stages, set);
        let [given, megatron] = [row(&mixed, "given"), row(&alone, "megatron")];
        for key in ["iteration_time_s", "peak_memory_bytes"] {
            let ratio = given.metrics[key] / megatron.metrics[key];
            assert!((ratio - 1.0).abs() < 1e-6, "{model}, {stages:?}, {set:?}: {key} {ratio}");
        }
        let [costs, others] = [&mixed.cost_model, &alone.cost_model];
        assert_eq!((&costs.source, &costs.outside_hull), (&others.source, &others.outside_hull));
        assert!((costs.outside_hull_ratio - others.outside_hull_ratio).abs() < 1e-6, "{costs:?} {others:?}");
        let (found, expected) = (shares(costs), shares(others));
        assert!(found.keys().eq(expected.keys()), "{found:?} {expected:?}");
        assert!(found.iter().all(|(what, ratio)| (ratio - expected[what]).abs() < 1e-6), "{found:?} {expected:?}");
    }
}

/// A card of a datasheet beside one that was measured: half of a step rests on either, and shapes beyond what was measured are named.
#[test]
fn what_a_step_rests_on_is_said_card_by_card() {
    let text = |gpus: [&str; 2]| {
        let group = |name: &str, gpu: &str| format!("[[group]]\nname = \"{name}\"\ngpu = \"{gpu}\"\nnodes = 1\n");
        format!(
            "kind = \"training\"\n[model]\nname = \"llama-3.1-8b\"\n[training]\nbatch_size = 8\ntokens = 2048\n{}{}[policies]\nrun = [\"given\"]\n\
             [[stage]]\nlayers = 16\nreplicas = [{{ group = \"a\", gpus = 8 }}]\n[[stage]]\nlayers = 16\nreplicas = [{{ group = \"b\", gpus = 8 }}]\n",
            group("a", gpus[0]),
            group("b", gpus[1])
        )
    };
    let costs = |gpus| run_text(text(gpus), &[]).cost_model;
    let of_source = |costs: &CostModelFacts, source: &str| {
        costs.shares.iter().filter(|share| share.source == source).map(|share| share.ratio).sum::<f64>()
    };
    let (measured, datasheet) = (costs(["h100-sxm"; 2]), costs(["l40s"; 2]));
    let mixed = costs(["h100-sxm", "l40s"]);
    assert!(of_source(&measured, "measured") > 0.5, "{measured:?}");
    assert_eq!(mixed.source, datasheet.source);
    let [few, some, most] = [&measured, &mixed, &datasheet].map(|costs| of_source(costs, "measured"));
    assert!(most < some && some < few, "{few} {some} {most}");
    assert!((mixed.shares.iter().map(|share| share.ratio).sum::<f64>() - 1.0).abs() < 1e-9);
}

/// Times of the scenario rest on no profile, as in kind `training`.
#[test]
fn measured_stages_rest_on_the_scenario() {
    let text = "kind = \"training\"\n[training]\nbatch_size = 4\ntokens = 1\n[[group]]\nname = \"g\"\nnodes = 1\n[policies]\nrun = [\"given\"]\n\
        [[stage]]\nmessage_mb = 1.0\ngradient_mb = 1.0\nreplicas = [{ group = \"g\", gpus = 8, forward_ms = 1.0, backward_ms = 2.0 }]\n";
    let costs = run_text(text.to_owned(), &[]).cost_model;
    assert_eq!((costs.source.as_str(), costs.shares.len()), ("given by the scenario", 0));
    assert!(costs.outside_hull_ratio.is_nan());
}
