//! Laws of serving: a clock has no zero, dollars scale, faster GPUs and more replicas help but for anomalies that have names.

use std::collections::BTreeMap;
use std::path::PathBuf;

use engine::random::Stream;
use reports::PolicyResult;

use super::{pick, rows, stream, with};

/// Random fleets of a law.
const DRAWS: u64 = 200;
const SCENARIO: &str = "serving/azure-conv";

/// A random fleet and its load, without the number of replicas.
fn fleet(draw: &mut Stream) -> Vec<String> {
    let batcher = pick(draw, &["vllm-v1", "sarathi", "vllm-v0", "sglang", "trtllm"]);
    // What cuts no prompt refuses those that no iteration holds.
    let tokens = pick(draw, &[128, 256, 512, 2048]).max(if batcher == "trtllm" { 16_384 } else { 0 });
    let router = pick(draw, &["round-robin", "random", "least-loaded", "least-memory", "power-of-two"]);
    [
        "expect={}".to_owned(),
        "cluster.gpus_per_node=8".to_owned(),
        format!("policies={{run=['{batcher}'],baseline='{batcher}'}}"),
        format!("engine.max_tokens={tokens}"),
        format!("engine.max_sequences={}", pick(draw, &[8, 32, 128])),
        format!("engine.block_tokens={}", pick(draw, &[1, 16, 64])),
        format!("fleet.router={router}"),
        format!("trace.requests={}", pick(draw, &[60, 200, 500])),
        format!("trace.lengths={}", pick(draw, &["azure-conv", "azure-code"])),
        format!("trace.rate_per_s={}", pick(draw, &[0.5, 3.0, 9.0, 30.0])),
    ]
    .to_vec()
}

fn only(set: &[String]) -> Option<PolicyResult> {
    rows(SCENARIO, None, set).map(|mut rows| rows.remove(0))
}

/// A fleet of so many replicas whose GPUs keep up so much of their peak.
fn served(set: &[String], n_replicas: u32, sustained: f64) -> Option<PolicyResult> {
    let keys = [format!("fleet.replicas={n_replicas}"), format!("cost.sustained_flops_ratio={sustained}")];
    only(&with(set, &keys))
}

/// How often a figure was worse after a change that should help, and by what factor at most.
#[derive(Default)]
struct Worse(BTreeMap<(&'static str, String), (u32, f64)>);

impl Worse {
    fn add(&mut self, change: &'static str, before: &PolicyResult, after: &PolicyResult) {
        for key in ["ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "e2e_s.mean", "e2e_s.p99", "makespan_s"] {
            let factor = after.metrics[key] / before.metrics[key];
            if factor > 1.0 + ROUNDING {
                let found = self.0.entry((change, key.to_owned())).or_default();
                *found = (found.0 + 1, found.1.max(factor));
            }
        }
    }

    fn of(&self, change: &'static str, key: &str) -> (u32, f64) {
        self.0.get(&(change, key.to_owned())).copied().unwrap_or_default()
    }
}

/// Share by which equal times may differ: moments are rounded to ticks.
const ROUNDING: f64 = 1e-8;

#[test]
fn faster_gpus_and_more_replicas_help_but_for_anomalies_that_have_names() {
    let (mut worse, mut n, mut n_alone) = (Worse::default(), 0, 0);
    for number in 0..DRAWS {
        let draw = &mut stream("replicas", number);
        let set = fleet(draw);
        let n_replicas = pick(draw, &[1, 2, 3]);
        let [base, more, fast] = [(n_replicas, 0.5), (n_replicas + 1, 0.5), (n_replicas, 0.6)]
            .map(|(n, sustained)| served(&set, n, sustained).unwrap_or_else(|| panic!("{set:?}")));
        worse.add("replica", &base, &more);
        worse.add(if n_replicas == 1 { "alone" } else { "faster" }, &base, &fast);
        n += 1;
        n_alone += u32::from(n_replicas == 1);
    }
    println!("{n} fleets, {n_alone} of one replica: {:?}", worse.0);
    // Nothing is routed with one replica: whoever comes waits and lives no longer on a faster GPU.
    for key in ["ttft_s.mean", "e2e_s.mean", "e2e_s.p99", "makespan_s"] {
        assert_eq!(worse.of("alone", key).0, 0, "{key}");
    }
    // With several, a router that looks at the load sends requests elsewhere once any end moves, and one that does not deals them out anew over
    // more replicas: single fleets are worse, the most are not, and means by little.
    for change in ["replica", "faster"] {
        for (key, factor) in [("ttft_s.mean", 1.08), ("e2e_s.mean", 1.05), ("makespan_s", 1.06)] {
            let (times, most) = worse.of(change, key);
            assert!(times <= n / 20 && most < factor, "{change} {key}: {times} of {n}, up to {most}");
        }
    }
    // An added replica admits sooner, so more sequences decode beside prompts: first tokens come earlier and the next ones later.
    let (times, most) = worse.of("replica", "tpot_s.mean");
    assert!(times > 0 && times <= n / 5 && most < 1.2, "{times} of {n}, up to {most}");
}

#[test]
fn an_added_replica_may_meet_fewer_limits_because_it_admits_sooner() {
    let set: Vec<String> = [
        "expect={}",
        "cluster.gpus_per_node=8",
        "policies={run=['trtllm'],baseline='trtllm'}",
        "engine.max_tokens=131072",
        "engine.max_sequences=8",
        "engine.block_tokens=1",
        "fleet.router=random",
        "trace.requests=60",
        "trace.lengths=azure-code",
        "trace.rate_per_s=30",
    ]
    .map(str::to_owned)
    .into();
    let [one, two] = [1, 2].map(|n| served(&set, n, 0.5).expect("it is valid").metrics);
    assert!(two["slo_attainment_ratio"] < one["slo_attainment_ratio"]);
    assert!(two["ttft_s.mean"] < one["ttft_s.mean"] && two["tpot_s.mean"] > one["tpot_s.mean"]);
}

/// A trace of Vidur's format with arrivals from a moment on.
fn trace(draw: &mut Stream, offset_s: u64) -> String {
    let mut at_us = 0;
    let mut text = "arrived_at,num_prefill_tokens,num_decode_tokens\n".to_owned();
    for _ in 0..120 {
        let (whole, part) = (offset_s + at_us / 1_000_000, at_us % 1_000_000);
        text += &format!("{whole}.{part:06},{},{}\n", 1 + draw.below(2000), 1 + draw.below(200));
        at_us += draw.below(400_000);
    }
    text
}

#[test]
fn a_shift_of_all_arrivals_changes_no_figure() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("laws-shift");
    std::fs::create_dir_all(&folder).expect("a folder");
    for number in 0..DRAWS / 20 {
        let mut set = fleet(&mut stream("shift", number));
        set.retain(|item| !item.starts_with("trace."));
        set.extend(["fleet.replicas=2", "trace={file='t.csv',format='vidur',arrivals='replay'}"].map(str::to_owned));
        let of = |offset_s: u64| {
            let text = trace(&mut stream("trace", number), offset_s);
            std::fs::write(folder.join("t.csv"), text).expect("a file");
            rows(SCENARIO, Some(&folder), &set).expect("it is valid").remove(0)
        };
        let [now, late, later] = [0, 1_000_000_000, 1_700_000_000_000].map(of);
        assert_eq!((&now.metrics, &now.interval), (&late.metrics, &late.interval), "{set:?}");
        assert_eq!((&now.metrics, &now.interval), (&later.metrics, &later.interval), "{set:?}");
    }
}

/// Figures that are dollars.
fn is_dollars(key: &str) -> bool {
    key.contains("usd")
}

#[test]
fn twice_the_price_is_twice_the_dollars_and_nothing_else() {
    let mut n = 0;
    for number in 0..DRAWS / 8 {
        let draw = &mut stream("prices", number);
        let set = with(&fleet(draw), &[format!("fleet.replicas={}", pick(draw, &[1, 2, 4]))]);
        let of = |usd: f64| only(&with(&set, &[format!("fleet.usd_per_gpu_hour={usd}")]));
        let (Some(cheap), Some(dear)) = (of(1.5), of(3.0)) else { continue };
        n += 1;
        assert!(cheap.metrics.keys().any(|key| is_dollars(key)) && cheap.metrics.keys().eq(dear.metrics.keys()));
        for (key, value) in &cheap.metrics {
            let expected = if is_dollars(key) { 2.0 * value } else { *value };
            assert_eq!(dear.metrics[key], expected, "{key}: {set:?}");
        }
    }
    assert!(n > DRAWS / 10, "{n} of {} draws are valid", DRAWS / 8);
}
