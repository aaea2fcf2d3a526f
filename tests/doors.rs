//! API servers belong to the replicas that serve: whoever asks about a fleet finds those of that fleet, with its numbers and its degrees.

use std::collections::BTreeMap;
use std::path::Path;

use input::diagnostic::{self, Source};
use scenario::Overrides;
use skrull_sim::kinds;

/// Short requests, of which an API server lets 500 a second through. Eight GPUs hold many more.
const MANY: &str = r#"
kind = "serving"
[model]
name = "llama-3.2-1b"
[cluster]
gpu = "h100-sxm"
nodes = 1
gpus_per_node = 8
[trace]
arrivals = "poisson"
rate_per_s = 900
prompt_tokens = 100
output_tokens = 8
requests = 1500
[engine]
name = "vllm"
tp = 1
max_sequences = 256
max_tokens = 8192
[fleet]
router = "least-loaded"
usd_per_gpu_hour = 2.0
[slo]
ttft_s = 0.5
"#;

/// Experts on ranks of attention, each of which has an API server.
const RANKS: [&str; 6] = [
    "model.name='qwen3-30b-a3b'",
    "engine.weights='fp8'",
    "trace.output_tokens=4",
    "trace.requests=1000",
    "fleet.replicas=1",
    "engine.ep=8",
];

/// A search over numbers of replicas alone.
const SEARCH: &str =
    "[tune]\npolicy = 'vllm-v1'\nby = 'ttft_s.p99'\ntp = [1]\nmax_sequences = [256]\nmax_tokens = [8192]\n";

fn checked(text: &str, set: &[&str]) -> kinds::Checked {
    let source = Source { path: "doors.toml".into(), text: text.to_owned() };
    let set = set.iter().map(|key| (*key).to_owned()).collect();
    kinds::check(source, Path::new("."), &Overrides { set, ..Overrides::default() })
}

fn words(checked: &kinds::Checked) -> String {
    diagnostic::render(&checked.source, &checked.findings)
}

/// Figures of the only policy.
fn played(text: &str, set: &[&str]) -> BTreeMap<String, f64> {
    let checked = checked(text, set);
    let scenario = checked.scenario.as_ref().unwrap_or_else(|| panic!("{}", words(&checked)));
    scenario.run(&|_| {}).results[0].metrics.clone()
}

/// What requests find, whatever is asked how.
fn assert_equal(found: &BTreeMap<String, f64>, asked: &BTreeMap<String, f64>, what: &str) {
    for key in ["ttft_s.mean", "ttft_s.p99", "slo_attainment_ratio", "requests_per_s"] {
        assert!((found[key] / asked[key] - 1.0).abs() < 1e-9, "{what}: {key} {} and {}", found[key], asked[key]);
    }
}

#[test]
fn variants_searches_and_the_best_way_have_the_api_servers_of_their_own_replicas() {
    let mut attained = Vec::new();
    for n in [1, 2, 4] {
        let replicas = format!("replicas = {n}");
        let asked = played(MANY, &[&format!("fleet.{replicas}")]);
        attained.push(asked["slo_attainment_ratio"]);
        for of_fleet in ["fleet.replicas=4", "fleet.replicas=1"] {
            let variant = "[policies]\nrun = ['few']\n[[policies.variant]]\nname = 'few'\npolicy = 'vllm-v1'\n";
            let best =
                "[policies]\nrun = ['few']\n[[policies.best]]\nname = 'few'\npolicy = 'vllm-v1'\nby = 'ttft_s.p99'\n";
            assert_equal(&played(&format!("{MANY}{variant}{replicas}\n"), &[of_fleet]), &asked, "a variant");
            assert_equal(&played(&format!("{MANY}{best}replicas = [{n}]\n"), &[of_fleet]), &asked, "the best way");
            let tune = format!("{MANY}{SEARCH}replicas = [{n}]\n");
            let found = checked(&tune, &[of_fleet]).scenario.expect("it searches").tuned().expect("it has `[tune]`");
            assert_equal(&found.settings[0].metrics, &asked, "a search");
        }
    }
    assert!(attained[0] < 0.5 && attained[1] > 0.95 && attained[2] > 0.95, "500 a second through each: {attained:?}");
}

#[test]
fn replicas_that_compute_prompts_for_others_are_the_ones_at_the_door() {
    let way = "[policies]\nrun = ['split']\n[[policies.variant]]\nname = 'split'\npolicy = 'vllm-v1'\nreplicas = 4\nprefill_replicas = 1\n";
    let group = |role: &str, n: u32| format!("[[fleet.group]]\nname = '{role}'\nrole = '{role}'\nreplicas = {n}\n");
    let groups = format!("{MANY}{}{}", group("prefill", 1), group("decode", 3));
    let found = played(&format!("{MANY}{way}"), &["fleet.replicas=8"]);
    assert_equal(&found, &played(&groups, &[]), "a split fleet");
    assert!(found["ttft_s.mean"] > 0.3, "900 a second at a door of 500: {} s", found["ttft_s.mean"]);
}

#[test]
fn other_degrees_have_the_api_servers_of_their_own_ranks() {
    for more in [&[][..], &["engine.stream_us_per_token=400"], &["engine.api_servers=2"]] {
        let of = |tp: &str, text: &str| played(text, &[&RANKS[..], more, &[tp]].concat());
        let (one, eight) = (of("engine.tp=1", MANY), of("engine.tp=8", MANY));
        let variant = |tp: u32| {
            let way = format!(
                "[policies]\nrun = ['way']\n[[policies.variant]]\nname = 'way'\npolicy = 'vllm-v1'\ntp = {tp}\n"
            );
            format!("{MANY}{way}")
        };
        let group = |tp: u32| format!("{MANY}[[fleet.group]]\nname = 'a'\nreplicas = 1\ntp = {tp}\n");
        let groups = |tp: u32, of: &str| {
            let set: Vec<&str> = RANKS.iter().filter(|key| !key.starts_with("fleet")).copied().collect();
            played(&group(tp), &[&set[..], more, &[of]].concat())
        };
        for (asked, tp, other) in [(&one, 1, "engine.tp=8"), (&eight, 8, "engine.tp=1")] {
            assert_equal(&of(other, &variant(tp)), asked, &format!("a variant with tp {tp}, {more:?}"));
            assert_equal(&groups(tp, other), asked, &format!("a group with tp {tp}, {more:?}"));
            let capacity = format!(
                "{MANY}[capacity]\nreplicas = [1]\ntp = [{tp}]\n[[capacity.gpu]]\nname = 'h100-sxm'\nusd_per_gpu_hour = 2.0\n"
            );
            let scenario = checked(&capacity, &[&RANKS[..], more, &[other]].concat()).scenario.expect("it asks");
            let found = &scenario.capacity().expect("it has `[capacity]`").points[0];
            assert_eq!(found.attainment_ratio, asked["slo_attainment_ratio"], "a fleet with tp {tp}, {more:?}");
        }
        let differ = (one["ttft_s.mean"] / eight["ttft_s.mean"] - 1.0).abs() > 0.5;
        assert!(
            differ || more.contains(&"engine.api_servers=2"),
            "{} s and {} s",
            one["ttft_s.mean"],
            eight["ttft_s.mean"]
        );
    }
}

#[test]
fn a_way_without_the_replica_that_is_lost_is_no_answer() {
    let outages = "[[fleet.outage]]\ngroup = 'h100-sxm'\nreplica = 3\nat_s = 0.5\n";
    let text = format!("{MANY}{outages}");
    let fewer = checked(&text, &["fleet.replicas=1"]);
    assert!(fewer.scenario.is_none() && words(&fewer).contains("S140"), "{}", words(&fewer));
    let variant = format!("{text}[policies]\nrun = ['few']\n[[policies.variant]]\nname = 'few'\npolicy = 'vllm-v1'\n");
    let few = checked(&format!("{variant}replicas = 1\n"), &["fleet.replicas=4"]);
    let said = words(&few);
    assert!(
        few.scenario.is_none() && said.contains("S140") && said.contains("`few`: `fleet.outage.replica` = 3"),
        "{said}"
    );
    let tune = format!("{text}{SEARCH}replicas = [1, 2, 4]\n");
    let found = checked(&tune, &["fleet.replicas=4"]).scenario.expect("it searches").tuned().expect("it has `[tune]`");
    assert_eq!((found.counts.settings, found.counts.unfit), (3, 2), "{:?}", found.counts);
    // Two replicas of two GPUs each are the same machines: the last one of them is lost, and that is said.
    let wide = checked(&format!("{variant}tp = 2\n"), &["fleet.replicas=4"]);
    let said = words(&wide);
    assert!(wide.scenario.is_some() && said.contains("are 2 replicas: the last one is lost"), "{said}");
    let all = checked(&text, &["fleet.replicas=4"]);
    assert!(!words(&all).contains("S140"), "{}", words(&all));
}
