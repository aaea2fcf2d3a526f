//! Capacity asked of a trace that ends before fleets are full, against the same question of a long one.

use input::diagnostic;
use reports::capacity::Capacity;
use scenario::Overrides;
use skrull_sim::kinds;

fn of_text(text: &str, set: &[&str]) -> kinds::Checked {
    let source = diagnostic::Source { path: "short.toml".into(), text: text.to_owned() };
    let set = set.iter().map(|key| (*key).to_owned()).collect();
    kinds::check(source, std::path::Path::new("."), &Overrides { set, ..Overrides::default() })
}

/// Few requests with long answers: they are all there before the first one ends.
const SHORT: &str = r#"
kind = "serving"
[model]
name = "llama-3.1-8b"
[cluster]
gpu = "h100-sxm"
nodes = 1
[trace]
prompt_tokens = 500
output_tokens = 2000
requests = 600
arrivals = "poisson"
rate_per_s = 20
[engine]
name = "vllm"
[fleet]
replicas = 16
[slo]
ttft_s = 2
[capacity]
replicas = [1, 2, 3, 4]
[[capacity.gpu]]
name = "h100-sxm"
usd_per_gpu_hour = 2.0
"#;

#[test]
fn a_short_trace_does_not_recommend_a_fleet_that_a_long_one_breaks() {
    let ask = |n: &str| of_text(SHORT, &[n]).scenario.expect("a good scenario").capacity().expect("it asks");
    let (short, long) = (ask("trace.requests=600"), ask("trace.requests=9000"));
    let met = |of: &Capacity, name: &str| of.points.iter().find(|point| point.name == name).expect("tried").clone();
    let chosen = short.points[short.chosen.expect("one keeps up")].name.clone();
    assert!(met(&long, &chosen).attainment_ratio > 0.9, "{chosen}: {:?}", long.points);
    // One that a long trace breaks is in time on a short one, and its row says that it is too slow.
    let [one, two] = ["1 x h100-sxm", "2 x h100-sxm"].map(|name| met(&short, name));
    assert!(two.attainment_ratio > 0.98 && two.overload.is_some() && one.overload.is_some(), "{two:?}");
    assert!(met(&long, "2 x h100-sxm").attainment_ratio < 0.5);
    // Headroom is no more than what full batches serve, and the report says how many requests show it.
    let most = two.overload.expect("too slow").most_requests_per_s / 2.0 * hw::real(met(&short, &chosen).n_gpus);
    assert!(short.headroom.expect("a choice").meets * 20.0 <= most * 1.1);
    assert!(short.sources.iter().any(|words| words.contains("`trace.requests = ")), "{:?}", short.sources);
    assert!(short.points.iter().all(|point| point.costs.measured_ratio.is_some_and(|ratio| ratio > 0.5)));
}

#[test]
fn replicas_that_the_cluster_does_not_hold_hinder_no_other_fleet() {
    // Sixteen of one GPU on a node of eight: `run` has no figures, and the question lays other fleets over it.
    let checked = of_text(SHORT, &[]);
    let scenario = checked.scenario.expect("a good scenario");
    let row = &scenario.run(&|_| {}).results[0];
    assert!(!row.status.is_ok() && row.why.contains("16 replicas of 1 GPUs, the cluster has 8"), "{}", row.why);
    let without = SHORT.split("[capacity]").next().expect("a text");
    let found = of_text(without, &[]).findings;
    assert!(found.iter().any(|found| found.code == diagnostic::Code::WrongGpuCount), "{found:?}");
}
