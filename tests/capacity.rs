//! The capacity report through the shell: its bracket against runs of both sides, its choice, and messages about input.

use input::diagnostic;
use scenario::{self, Overrides};
use skrull_sim::commands;
use skrull_sim::kinds;

const SMALL: [&str; 4] =
    ["trace.requests=1500", "capacity.replicas=[1,2,4]", "capacity.peak_s=30.0", "capacity.attainment_ratio=0.95"];

fn checked(set: &[&str]) -> kinds::Checked {
    let (source, folder) = scenario::find("serving/capacity").expect("shipped");
    let set = set.iter().map(|text| (*text).to_owned()).collect();
    kinds::check(source, &folder, &Overrides { set, ..Overrides::default() })
}

#[test]
fn both_sides_of_the_bracket_are_what_runs_give() {
    let found = commands::capacity_of("serving/capacity", &SMALL).expect("a report");
    let chosen = &found.points[found.chosen.expect("some fleet suffices")];
    assert!(chosen.attainment_ratio >= 0.95);
    for other in found.points.iter().filter(|other| other.usd_per_hour < chosen.usd_per_hour) {
        assert!(other.attainment_ratio < 0.95, "{} is cheaper than {}", other.name, chosen.name);
    }
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
            format!("trace.from_s={}", headroom.from_s),
            format!("trace.to_s={}", headroom.to_s),
            format!("trace.load={load}"),
        ];
        let set: Vec<&str> = SMALL.iter().copied().chain(fleet.iter().map(String::as_str)).collect();
        checked(&set).scenario.expect("a good scenario").run(&|_| {}).results[0].metrics["slo_attainment_ratio"]
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
        assert!(checked.scenario.is_none(), "{set:?} was accepted");
        let text = diagnostic::render(&checked.source, &checked.findings);
        assert!(text.contains(expected), "{set:?}:\n{text}");
    }
    assert!(commands::capacity_of("serving/azure-conv", &[]).is_err(), "it asks nothing");
}

#[test]
fn a_mixed_fleet_is_varied_by_group() {
    const SMALL: [&str; 2] = ["trace.requests=1500", "capacity.attainment_ratio=0.9"];
    let found = commands::capacity_of("serving/capacity-mixed", &SMALL).expect("a report");
    // Three numbers of reserved replicas times five of those on demand, without the fleet of none.
    assert_eq!(found.points.len() + found.left_out.len(), 3 * 5 - 1, "{:?}", found.left_out);
    let of = |name: &str| found.points.iter().find(|point| point.name == name).expect(name);
    // 2.25 and 1.39 dollars per hour, all of the time.
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6 * expected, "{found}, {expected}");
    near(of("1 x reserved + 2 x on-demand").usd_per_hour, 1.39 + 2.0 * 2.25);
    near(of("2 x reserved").usd_per_hour, 2.0 * 1.39);
    // The same fleet by hand.
    let run = |set: &[&str]| {
        let (source, folder) = scenario::find("serving/capacity-mixed").expect("shipped");
        let set = SMALL.iter().chain(set).map(|text| (*text).to_owned()).collect();
        let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
        let job =
            checked.scenario.unwrap_or_else(|| panic!("{}", diagnostic::render(&checked.source, &checked.findings)));
        job.run(&|_| {}).results[0].metrics["slo_attainment_ratio"]
    };
    let by_hand = run(&["fleet.group.reserved.replicas=1", "fleet.group.on-demand.replicas=2"]);
    assert_eq!(of("1 x reserved + 2 x on-demand").attainment_ratio, by_hand);
    let changes: Vec<&str> = found.sensitivity.iter().map(|row| row.change.as_str()).collect();
    assert!(
        changes.contains(&"price of reserved +20 %") && changes.contains(&"price of on-demand -20 %"),
        "{changes:?}"
    );
    for (set, expected) in [
        (&["capacity.group=[{name='reservd',replicas=[1]}]"][..], "did you mean `reserved`?"),
        (&["capacity={group=[]}"], "the fleet has groups, and `[capacity]` names none"),
        (&["capacity.replicas=[1,2]"], "keys of equal replicas too"),
        (&["capacity.group=[{name='reserved'}]"], "key `capacity.group.replicas` is missing"),
    ] {
        let (source, folder) = scenario::find("serving/capacity-mixed").expect("shipped");
        let set = set.iter().map(|text| (*text).to_owned()).collect();
        let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
        let text = diagnostic::render(&checked.source, &checked.findings);
        assert!(checked.scenario.is_none() && text.contains(expected), "{expected}:\n{text}");
    }
}

#[test]
fn stages_and_experts_of_a_replica_are_paid() {
    let found =
        commands::capacity_of("serving/capacity", &["engine.pp=2", "capacity.replicas=[1, 2]"]).expect("a report");
    let h100 = found.points.iter().filter(|point| point.gpu == "h100-sxm");
    let paid: Vec<(u64, f64)> = h100.map(|point| (point.n_gpus, point.usd_per_hour)).collect();
    // Two stages: two GPUs a replica, at $ 2.25 each.
    assert_eq!(paid, [(2, 4.5), (4, 9.0)]);
}
