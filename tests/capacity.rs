//! The capacity report through the shell: its bracket against runs of both sides, its choice, and messages about input.

use skrull_sim::commands;
use skrull_sim::diagnostic;
use skrull_sim::scenario::{self, Overrides};

const SMALL: [&str; 4] =
    ["trace.requests=1500", "capacity.replicas=[1,2,4]", "capacity.peak_s=30.0", "capacity.attainment_ratio=0.95"];

fn checked(set: &[&str]) -> scenario::Checked {
    let (source, folder) = scenario::find("serving/capacity").expect("shipped");
    let set = set.iter().map(|text| (*text).to_owned()).collect();
    scenario::check(source, &folder, &Overrides { set, ..Overrides::default() })
}

#[test]
fn both_sides_of_the_bracket_are_what_runs_give() {
    let found = commands::capacity_of("serving/capacity", &SMALL).expect("a report");
    let chosen = &found.points[found.chosen.expect("some fleet suffices")];
    assert!(chosen.attainment_ratio >= 0.95);
    for other in found.points.iter().filter(|other| other.usd_per_hour < chosen.usd_per_hour) {
        assert!(other.attainment_ratio < 0.95, "{} is cheaper than {}", other.name, chosen.name);
    }
    let job = checked(&SMALL).job.expect("a good scenario");
    let peak = job.capacity().expect("it asks").peak;
    let headroom = found.headroom.expect("a fleet is chosen");
    let fails = headroom.fails.expect("some load is too much");
    assert!(fails / headroom.meets <= 1.021, "{} to {fails}", headroom.meets);
    // A run of its own at both loads, written out by hand.
    let (gpu, n) = (chosen.gpu.as_str(), chosen.n_gpus);
    let attainment = |load: f64| {
        let fleet = [
            format!("cluster.gpu='{gpu}'"),
            "cluster.nodes=4".to_owned(),
            format!("fleet.replicas={n}"),
            format!("trace.from_s={}", peak.from_s),
            format!("trace.to_s={}", peak.to_s),
            format!("trace.load={load}"),
        ];
        let set: Vec<&str> = SMALL.iter().copied().chain(fleet.iter().map(String::as_str)).collect();
        checked(&set).job.expect("a good scenario").run(&|_| {}).results[0].metrics["slo_attainment_ratio"]
    };
    let (below, above) = (attainment(headroom.meets), attainment(fails));
    assert!(below >= 0.95 && above < 0.95, "{below} at {}, {above} at {fails}", headroom.meets);
    assert!(headroom.breaks.contains("the limit of T"), "{}", headroom.breaks);
    assert_eq!(found.sensitivity.len(), 8, "three prices and the load, up and down");
}

#[test]
fn what_is_wrong_is_named() {
    for (set, expected) in [
        (&["capacity.replicas=[]"][..], "`capacity.replicas` is no list of counts"),
        (&["capacity.gpu=[{name='h100',usd_per_gpu_hour=2}]"], "unknown GPU `h100`"),
        (&["capacity.gpu=[{name='h100-sxm'}]"], "`capacity.gpu.usd_per_gpu_hour` is missing"),
        (&["capacity.policy='vllm'"], "did you mean `vllm-v1`?"),
        (&["capacity.atainment_ratio=1"], "did you mean `attainment_ratio`?"),
        (&["slo={}"], "`[slo]` has no limit"),
    ] {
        let checked = checked(set);
        assert!(checked.job.is_none(), "{set:?} was accepted");
        let text = diagnostic::render(&checked.source, &checked.findings);
        assert!(text.contains(expected), "{set:?}:\n{text}");
    }
    assert!(commands::capacity_of("serving/azure-conv", &[]).is_err(), "it asks nothing");
}
