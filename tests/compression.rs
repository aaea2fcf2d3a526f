//! Claims about the compressed all-to-all of LSH-MoE (arXiv:2411.08446) in whole steps.

use std::collections::BTreeMap;

use reports::RunResult;
use scenario::training::Scenario;
use scenario::{self, Overrides};
use skrull_sim::kinds;
use skrull_sim::kinds::training::run as pipeline;

fn read(set: &[&str]) -> Scenario {
    let checked = super::checked("moe/lsh-gpt-15b", set);
    super::training(checked)
}

fn run(set: &[&str]) -> RunResult {
    pipeline::run(&read(set), &|_| {}).result
}

fn seconds(result: &RunResult) -> BTreeMap<&str, f64> {
    result.results.iter().map(|row| (row.policy.as_str(), row.metrics["iteration_time_s"])).collect()
}

#[test]
fn at_a_rate_of_one_the_step_is_longer_by_exactly_the_overhead_of_its_layers() {
    // Reduction after the last backward, so that nothing hides behind a longer one.
    let result = run(&["training.gradient_sync=at_end"]);
    let found = seconds(&result);
    let row = result.results.iter().find(|row| row.policy == "lsh-every-row").expect("it runs");
    let figures = &row.planner.as_ref().expect("facts").figures;
    // Six of twelve layers have experts; one micro-batch.
    let overhead = 6.0 * (figures["expert_layer_time_s"] - figures["expert_layer_uncompressed_s"]);
    let longer = found["lsh-every-row"] - found["plain"];
    assert!(overhead > 0.0 && (longer / overhead - 1.0).abs() < 1e-4, "{longer} against {overhead}");
    assert!(result.speedup_ratio["lsh-every-row"] < 1.0);
}

#[test]
fn fewer_rows_never_make_a_step_longer() {
    let mut before = 0.0;
    for rate in ["0.05", "0.2", "0.5", "0.8", "1.0"] {
        let rate = format!("experts.compression.rate={rate}");
        let found = seconds(&run(&[&rate, "policies.run=[\"plain\", \"lsh\"]"]))["lsh"];
        assert!(found > before, "{rate}: {found} after {before}");
        before = found;
    }
}

#[test]
fn the_share_of_all_to_all_stays_when_layers_or_servers_and_experts_double() {
    let share = |scenario: &Scenario| {
        let result = pipeline::run(scenario, &|_| {}).result;
        result.results[0].metrics["all_to_all_ratio"]
    };
    let plain = "policies.run=[\"plain\"]";
    let base = share(&read(&[plain]));
    let mut deeper = read(&[plain]);
    deeper.problem.model.n_layers *= 2;
    let servers = ["cluster.nodes=8", "parallel.ep=64", "training.batch_size=384"];
    let mut wider = read(&[plain, servers[0], servers[1], servers[2]]);
    wider.problem.model.experts.as_mut().expect("experts").n_routed *= 2;
    for (what, found) in [("layers", share(&deeper)), ("servers and experts", share(&wider))] {
        assert!((found - base).abs() < 0.05, "{what}: {found} against {base}");
    }
}

#[test]
fn the_same_seed_gives_the_same_functions_and_another_one_other_tokens() {
    let counted = |seed: &str| {
        let (source, folder) = scenario::find("moe/lsh-hashes").expect("shipped");
        let set = vec![format!("seed={seed}"), "policies.run=[\"q6\"]".to_owned(), "policies.baseline=q6".to_owned()];
        let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
        let result = pipeline::run(&super::training(checked), &|_| {}).result;
        result.results[0].planner.as_ref().expect("facts").figures["output_error_ratio"]
    };
    assert_eq!(counted("1").to_bits(), counted("1").to_bits());
    assert_ne!(counted("1").to_bits(), counted("2").to_bits());
}
