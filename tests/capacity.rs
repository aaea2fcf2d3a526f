//! The capacity report through the shell: its bracket against runs of both sides, its choice, and messages about input.

use input::diagnostic;
use scenario::{self, Overrides};
use skrull_sim::commands;
use skrull_sim::kinds;

const SMALL: [&str; 4] =
    ["trace.requests=1500", "capacity.replicas=[1,2,4]", "capacity.peak_s=30.0", "capacity.attainment_ratio=0.95"];

fn checked(set: &[&str]) -> kinds::Checked {
    super::checked("serving/capacity", set)
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
fn the_same_requests_count_at_every_load() {
    // The busiest 30 s with a warm-up of 20 s: at twice the load the window lasts 15 s, and a warm-up that stays would leave no request.
    let set = [&SMALL[..3], &["capacity.gpu=[{name='h100-sxm',usd_per_gpu_hour=2.25}]", "slo.warm_up_s=20"]].concat();
    let found = commands::capacity_of("serving/capacity", &set).expect("a report");
    let n = found.points[found.chosen.expect("some fleet suffices")].n_gpus;
    let headroom = found.headroom.expect("a fleet is chosen");
    assert!(headroom.loads.len() > 2 && headroom.loads.iter().any(|load| load.factor >= 2.0), "{headroom:?}");
    for load in &headroom.loads {
        let by_hand = [
            format!("fleet.replicas={n}"),
            format!("trace.from_s={}", headroom.from_s),
            format!("trace.to_s={}", headroom.to_s),
            format!("trace.load={}", load.factor),
            format!("slo.warm_up_s={}", 20.0 / load.factor),
        ];
        let set: Vec<&str> = SMALL.iter().copied().chain(by_hand.iter().map(String::as_str)).collect();
        let result = checked(&set).scenario.expect("a good scenario").run(&|_| {});
        assert_eq!(result.results[0].metrics["slo_attainment_ratio"], load.attainment_ratio, "{load:?}");
    }
}

#[test]
fn a_fleet_of_which_no_request_counts_is_left_out_with_the_reason() {
    // 1500 requests come within two minutes.
    let set = [&SMALL[..], &["slo.warm_up_s=5000"]].concat();
    let found = commands::capacity_of("serving/capacity", &set).expect("a report");
    assert!(found.points.is_empty() && found.chosen.is_none(), "{:?}", found.points);
    let reason = |left: &(String, String)| left.1.starts_with("no request counts") || left.1.contains("GiB");
    assert!(!found.left_out.is_empty() && found.left_out.iter().all(reason), "{:?}", found.left_out);
    // The busiest 10 s alone lie in a warm-up of 15 s, all of the trace does not.
    let set = [&SMALL[..2], &["capacity.peak_s=10.0", "slo.warm_up_s=15"]].concat();
    let found = commands::capacity_of("serving/capacity", &set).expect("a report");
    assert!(found.chosen.is_some() && found.headroom.is_none(), "{:?}", found.headroom);
    assert!(found.sources.iter().any(|note| note.starts_with("headroom is not known: no request")), "{found:?}");
}

#[test]
fn a_replica_that_is_larger_than_a_node_lies_on_several() {
    let set = ["capacity.replicas=[1,1,2]", "capacity.tp=[4]", "capacity.gpus_per_node=2", "trace.requests=300"];
    let gpu = "capacity.gpu=[{name='h100-sxm',usd_per_gpu_hour=2.25}]";
    let checked = checked(&[&set[..], &[gpu]].concat());
    let job = checked.scenario.expect("a good scenario");
    let found = job.capacity().expect("it asks");
    // A number that is listed twice is one fleet.
    assert_eq!(found.points.len(), 2, "{:?}", found.points);
    for point in &found.points {
        let nodes = point.n_gpus / 2;
        let by_hand = [
            format!("cluster.nodes={nodes}"),
            "cluster.gpus_per_node=2".to_owned(),
            "engine.tp=4".to_owned(),
            format!("fleet.replicas={}", point.n_gpus / 4),
            "trace.requests=300".to_owned(),
        ];
        let by_hand: Vec<&str> = by_hand.iter().map(String::as_str).collect();
        let result = self::checked(&by_hand).scenario.expect("a good scenario").run(&|_| {});
        assert_eq!(result.results[0].metrics["slo_attainment_ratio"], point.attainment_ratio, "{}", point.name);
        assert_eq!(result.results[0].metrics["cost_usd_per_mtok"], point.usd_per_mtok, "{}", point.name);
        let plan = job.capacity_plan(&point.name).expect("it was tried").expect("a plan").json;
        let machines = plan["deployments"][0]["machines"].as_array().expect("a list");
        assert!(machines.iter().all(|machine| machine["gpus_per_node"] == 2), "{machines:?}");
    }
}

#[test]
fn an_engine_whose_budget_is_that_of_prompts_has_a_plan() {
    // All defaults of SGLang before 0.5.20 on a card below 35 GiB: 4096 sequences beside chunks of 2048 tokens.
    let set = [
        "trace.requests=100",
        "engine={name='sglang',version='0.5.19'}",
        "policies.run=['sglang']",
        "capacity.replicas=[4]",
        "capacity.gpu=[{name='rtx-4090',usd_per_gpu_hour=0.34}]",
        "slo={ttft_s=60}",
    ];
    let job = checked(&set).scenario.expect("a good scenario");
    let found = job.capacity().expect("it asks");
    let chosen = &found.points[found.chosen.unwrap_or_else(|| panic!("{found:?}"))];
    let plan = job.capacity_plan(&chosen.name).expect("it was tried").expect("a plan").json;
    let engine = &plan["deployments"][0]["replicas"][0]["engine"];
    assert_eq!([&engine["sequences_max"], &engine["tokens_max"]].map(|n| n.as_u64()), [Some(4096), Some(2048)]);
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
        let checked = super::checked("serving/capacity-mixed", &[&SMALL[..], set].concat());
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
        let checked = super::checked("serving/capacity-mixed", set);
        let text = diagnostic::render(&checked.source, &checked.findings);
        assert!(checked.scenario.is_none() && text.contains(expected), "{expected}:\n{text}");
    }
}

#[test]
fn an_earlier_plan_does_not_stay_beside_an_answer_that_chooses_nothing() {
    let folder = std::env::temp_dir().join(format!("skrull-capacity-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let plan = folder.join("plan.json");
    let ended = |limit: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_skrull-sim"));
        command.args(["capacity", "serving/capacity", "--no-progress", "--out"]).arg(&folder);
        command.args(SMALL.iter().flat_map(|set| ["--set", set])).args(["--set", limit]);
        command.output().expect("it runs").status.code()
    };
    assert_eq!((ended("slo.ttft_s=10"), plan.exists()), (Some(0), true), "a fleet is chosen");
    // Nobody answers within a microsecond.
    assert_eq!((ended("slo.ttft_s=1e-6"), plan.exists()), (Some(1), false), "none is chosen");
    std::fs::remove_dir_all(&folder).expect("removed");
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

/// Llama-3.1-8B has 16.06 GB of weights, and 4 GiB of them lie on the host: a card of 16 GB has room for keys and values, as a run of it finds.
#[test]
fn weights_on_hosts_leave_a_fleet_its_room() {
    let text = "kind = 'serving'\n[model]\nname = 'llama-3.1-8b'\n[cluster]\ngpu = 'rtx-4090'\nnodes = 1\ngpus_per_node = 4\n[trace]\n\
        prompt_tokens = 500\noutput_tokens = 50\nrequests = 60\narrivals = 'poisson'\nrate_per_s = 1\n[engine]\nhost_weights = { gib = 4 }\n\
        max_context = 4096\nmax_sequences = 16\n[fleet]\nreplicas = 1\n[slo]\nttft_s = 60\ntpot_s = 3\n[policies]\nrun = ['vllm-v1']\n\
        [capacity]\nreplicas = [1]\nattainment_ratio = 0.5\n[[capacity.gpu]]\nname = 'rtx-4090'\nusd_per_gpu_hour = 0.34\n\
        [[capacity.gpu]]\nname = 't4'\nusd_per_gpu_hour = 0.2\n";
    let job = of_text(text, &[]).scenario.expect("a good scenario");
    let found = job.capacity().expect("it asks");
    assert!(found.left_out.is_empty(), "{:?}", found.left_out);
    for point in &found.points {
        let own = of_text(text, &[&format!("cluster.gpu='{}'", point.gpu)]).scenario.expect("a good scenario");
        let row = &own.run(&|_| {}).results[0];
        assert_eq!(row.metrics["slo_attainment_ratio"], point.attainment_ratio, "{}", point.name);
        let plan = job.capacity_plan(&point.name).expect("it was tried").expect("a plan").json;
        assert_eq!(plan["deployments"][0]["replicas"][0]["stages"][0]["on_host"]["weights"], 4_u64 << 30);
    }
    // A host that has less than that room is full, whoever asks.
    let checked = of_text(text, &["cluster.host_memory_gib=3"]);
    assert!(checked.scenario.is_none_or(|job| job.capacity().is_some_and(|found| found.chosen.is_none())));
}

/// Serving scenarios of `together` with what makes each ask about capacity: fleets to try, prices and limits that the file does not have.
const TOGETHER: [(&str, &[&str]); 9] = [
    ("capacity-split", &[]),
    (
        "drafts-through-stages",
        &[
            "capacity={policy='stages-drafts',replicas=[1,2],gpu=[{name='h200-sxm',usd_per_gpu_hour=3.0}]}",
            "slo.ttft_s=5",
        ],
    ),
    ("hindsight-mixed", &["capacity.group=[{name='read-peak',replicas=[2,3]},{name='write-peak',replicas=[6,8]}]"]),
    (
        "impatient-split",
        &[
            "capacity={attainment_ratio=0.3,group=[{name='read',replicas=[1,2]},{name='write',replicas=[1,2]}]}",
            "fleet.usd_per_gpu_hour=3.0",
        ],
    ),
    (
        "lending-split",
        &[
            "capacity={policy='lending-split',attainment_ratio=0.5,group=[{name='write',replicas=[3,4]}]}",
            "fleet.usd_per_gpu_hour=1.39",
            "slo.ttft_s=60",
        ],
    ),
    (
        "million-tokens-in-a-fleet",
        &[
            "capacity={policy='equal-time-sparse',replicas=[2],tp=[8],attainment_ratio=0.5,gpu=[{name='h20',usd_per_gpu_hour=3.0}]}",
        ],
    ),
    (
        "prefix-split-failures-scaler",
        &[
            "capacity={attainment_ratio=0.5,group=[{name='write',replicas=[2,4]},{name='read',replicas=[1,2]}]}",
            "fleet.usd_per_gpu_hour=1.39",
        ],
    ),
    (
        "sparse-weights-behind-a-router",
        &[
            "capacity={policy='sparse-chunks',replicas=[1,2],tp=[2,4],attainment_ratio=0.5,gpu=[{name='a100-sxm-80g',usd_per_gpu_hour=3.0}]}",
            "slo.ttft_s=5",
        ],
    ),
    (
        "two-models",
        &[
            "capacity={attainment_ratio=0.5,group=[{name='small',replicas=[1,2]},{name='large',replicas=[1,2]}]}",
            "fleet.usd_per_gpu_hour=1.39",
            "slo.ttft_s=5",
        ],
    ),
];

fn of_together(name: &str, set: &[String]) -> kinds::Checked {
    let (source, folder) = scenario::find(&format!("together/{name}")).expect("shipped");
    kinds::check(source, &folder, &Overrides { set: set.to_vec(), ..Overrides::default() })
}

#[test]
fn capacity_over_every_combination_ends_in_a_deployment_that_runs_again() {
    for (name, set) in TOGETHER {
        let set: Vec<String> = set.iter().map(|text| (*text).to_owned()).collect();
        let checked = of_together(name, &set);
        let job = checked
            .scenario
            .unwrap_or_else(|| panic!("{name}:\n{}", diagnostic::render(&checked.source, &checked.findings)));
        let found = job.capacity().unwrap_or_else(|| panic!("{name} asks"));
        assert!(found.left_out.is_empty(), "{name}: {:?}", found.left_out);
        let chosen = &found.points[found.chosen.unwrap_or_else(|| panic!("{name}: {:?}", found.points))];
        let plan = job.capacity_plan(&chosen.name).expect("it was tried").expect("a plan").json;
        assert_eq!(plan["schema"], kinds::DEPLOYMENT_SCHEMA, "{name}");
        let deployments = plan["deployments"].as_array().expect("a list");
        let n_gpus: u64 = deployments
            .iter()
            .flat_map(|placed| placed["machines"].as_array().expect("a list"))
            .map(|machine| machine["n_gpus"].as_u64().expect("a count"))
            .sum();
        assert_eq!(n_gpus, chosen.n_gpus, "{name}: {}", chosen.name);
        // The text of the file with what is laid over it is the fleet that was chosen.
        let set: Vec<String> = plan["origin"]["set"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|word| word.as_str().expect("a text").to_owned())
            .collect();
        let again = of_together(name, &set).scenario.unwrap_or_else(|| panic!("{name}: {set:?}")).run(&|_| {});
        let policy = plan["policy"].as_str().expect("a name");
        let row = again.results.iter().find(|row| row.policy == policy).expect("its policy");
        assert_eq!(row.metrics["slo_attainment_ratio"], chosen.attainment_ratio, "{name}");
    }
}

#[test]
fn every_combination_is_asked_about_capacity_or_says_why_not() {
    for (name, text) in scenario::EMBEDDED.iter().filter(|(name, _)| name.starts_with("together/")) {
        let name = &name["together/".len()..];
        if kinds::word(text) == "serving" {
            assert!(TOGETHER.iter().any(|(known, _)| *known == name), "{name} is in no row");
        } else {
            let checked = of_together(name, &["capacity={replicas=[1]}".to_owned()]);
            assert!(checked.scenario.is_none(), "{name} has no fleets of replicas to try");
            let found = diagnostic::render(&checked.source, &checked.findings);
            assert!(found.contains("`capacity`"), "{name}:\n{found}");
            // What takes it is said, not that the word is unknown.
            assert!(found.contains("S170") && !found.contains("unknown key"), "{name}:\n{found}");
            assert!(serve::batcher::BATCHERS.iter().all(|batcher| found.contains(batcher.name())), "{name}:\n{found}");
        }
    }
}

#[test]
fn a_fleet_that_holds_no_request_hinders_no_other() {
    // 140 GB of weights: one card holds none of it, and two hold all of it.
    let set =
        [&SMALL[..3], &["model.name='llama-3-70b'", "engine.tp=1", "capacity.tp=[1,4]", "trace.requests=60"]].concat();
    let found = commands::capacity_of("serving/capacity", &set).expect("a report");
    let is_out = |name: &str| found.left_out.iter().any(|(out, why)| out.contains(name) && why.contains("weights"));
    assert!(is_out("h100-sxm tp 1") && found.points.iter().any(|point| point.name == "1 x h100-sxm tp 4"), "{found:?}");
    assert!(found.sources[0].starts_with("costs of "), "{:?}", found.sources);
}

#[test]
fn a_fleet_that_no_plan_may_have_is_not_recommended() {
    let set = [&SMALL[..3], &["capacity.tp=[1,4]", "capacity.gpus_per_node=3", "trace.requests=60"]].concat();
    let found = commands::capacity_of("serving/capacity", &set).expect("a report");
    assert!(!found.points.is_empty() && found.points.iter().all(|point| !point.name.contains("tp 4")), "{found:?}");
    assert!(found.left_out.iter().any(|(_, why)| why.contains("must fill them")), "{:?}", found.left_out);
}

/// A fleet of experts on more ranks than a tensor group has: its GPUs, what they cost by the hour, and a million tokens of it.
fn paid(set: &[&str], fleet: &str) -> [f64; 3] {
    let found = commands::capacity_of("serving/capacity", set).expect("a report");
    let point = found.points.iter().find(|point| point.name == fleet);
    let point = point.unwrap_or_else(|| panic!("{fleet}: {:?}", found.left_out));
    [point.n_gpus as f64, point.usd_per_hour, point.usd_per_mtok]
}

/// Experts lie on four GPUs at least, whatever the tensor degree is: two of `tp 2` make the replica of four.
#[test]
fn run_tune_and_capacity_agree_on_what_a_replica_of_experts_takes() {
    const EXPERTS: [&str; 7] = [
        "model.name='mixtral-8x7b'",
        "engine.ep=4",
        "trace.requests=60",
        "slo={ttft_s=60}",
        "cluster.nodes=2",
        "capacity.replicas=[2]",
        "capacity.gpu=[{name='h100-sxm',usd_per_gpu_hour=2.25}]",
    ];
    for tp in [1, 2, 4] {
        let degree = format!("engine.tp={tp}");
        let other = if tp == 4 { "engine.tp=2" } else { "engine.tp=4" };
        let asked = [&EXPERTS[..], &["capacity.tp=[1,2,4]"]].concat();
        let fleet = format!("2 x h100-sxm tp {tp}");
        // What the file itself has of the degree changes nothing.
        let [own, of_other] = [degree.as_str(), other].map(|engine| paid(&[&asked[..], &[engine]].concat(), &fleet));
        assert_eq!(own, of_other);
        assert_eq!(own[..2], [8.0, 8.0 * 2.25], "two replicas of four GPUs");
        let set: Vec<&str> = [&EXPERTS[..], &[&degree, "capacity={}"]].concat();
        let tuned = ["tune.tp", "tune.max_sequences", "tune.max_tokens"].map(|key| match key {
            "tune.tp" => format!("{key}=[{tp}]"),
            "tune.max_sequences" => format!("{key}=[128]"),
            _ => format!("{key}=[1024]"),
        });
        let tuned: Vec<&str> = set.iter().copied().chain(tuned.iter().map(String::as_str)).collect();
        let tuned = checked(&tuned).scenario.expect("a good scenario").tuned().expect("it lists settings");
        let setting = &tuned.settings[0];
        assert_eq!([f64::from(setting.n_gpus), setting.metrics["cost_usd_per_mtok"]], [own[0], own[2]], "tp {tp}");
        let run = checked(&set).scenario.expect("a good scenario").run(&|_| {}).results[0].metrics.clone();
        assert_eq!([run["cost_usd_per_hour"], run["cost_usd_per_mtok"]], [own[1], own[2]], "tp {tp}");
    }
}

/// A variant may have degrees of its own: the section's stand in their place, and its own hold where the section says none.
#[test]
fn a_variant_is_tried_with_the_degrees_and_the_replicas_that_are_asked() {
    let variant = "policies={run=['two'],variant=[{name='two',policy='vllm-v1',tp=2,pp=2,replicas=1}]}";
    let base = ["trace.requests=60", "slo={ttft_s=60}", "cluster.nodes=2", variant];
    // The shipped file lists a degree, so the section is written anew.
    let section = "capacity={replicas=[1,3],gpu=[{name='h100-sxm',usd_per_gpu_hour=2.25}]}";
    let with = |more: &[&'static str]| [&base[..], &[section], more].concat();
    let asked = with(&["capacity.tp=[1,4]"]);
    for (fleet, n_gpus) in [("1 x h100-sxm tp 1", 2.0), ("3 x h100-sxm tp 1", 6.0), ("3 x h100-sxm tp 4", 24.0)] {
        let [gpus, usd, _] = paid(&asked, fleet);
        assert_eq!([gpus, usd], [n_gpus, n_gpus * 2.25], "{fleet}");
    }
    let own = paid(&with(&["capacity.tp=[2]"]), "3 x h100-sxm tp 2");
    assert_eq!(own, paid(&with(&[]), "3 x h100-sxm tp 2"));
    let by_hand = ["policies.variant.two.replicas=3", "capacity={}"];
    let run = checked(&[&base[..], &by_hand].concat()).scenario.expect("a good scenario").run(&|_| {});
    let metrics = &run.results[0].metrics;
    assert_eq!([metrics["cost_usd_per_hour"], metrics["cost_usd_per_mtok"]], own[1..]);
}

/// A fleet that loses a replica while most requests come, and another one before and after that.
const LOSES: &str = r#"
kind = "serving"
[model]
name = "llama-3-8b"
[cluster]
gpu = "h100-sxm"
nodes = 1
[trace]
lengths = "azure-conv"
requests = 1200
arrivals = "poisson"
[[trace.schedule]]
from_s = 0
rate_per_s = 10
[[trace.schedule]]
from_s = 40
rate_per_s = 20
[[trace.schedule]]
from_s = 70
rate_per_s = 10
[engine]
tp = 1
[fleet]
router = "least-loaded"
usd_per_gpu_hour = 2.0
[slo]
ttft_s = 1.0
tpot_s = 0.05
warm_up_s = 2
[policies]
run = ["vllm-v1"]
[capacity]
attainment_ratio = 0.9
peak_s = 30
"#;

fn of_text(text: &str, set: &[&str]) -> kinds::Checked {
    let source = diagnostic::Source { path: "loses.toml".into(), text: text.to_owned() };
    let set = set.iter().map(|key| (*key).to_owned()).collect();
    kinds::check(source, std::path::Path::new("."), &Overrides { set, ..Overrides::default() })
}

#[test]
fn requests_of_the_busiest_part_meet_the_outages_of_that_part() {
    let capacity = "replicas = [4]\n[[capacity.gpu]]\nname = 'h100-sxm'\nusd_per_gpu_hour = 2.0\n";
    // Over before the busiest part; away as it begins; lost within it, with notice; lost behind it.
    let outages = [(0, 5.0, 0.0, 3.0), (1, 20.0, 0.0, 35.0), (2, 50.0, 2.0, 8.0), (3, 75.0, 0.0, 1e6)];
    let text = |all: &[(u32, f64, f64, f64)]| {
        let one = |(replica, at_s, notice_s, back_s): &(u32, f64, f64, f64)| {
            format!(
                "[[fleet.outage]]\ngroup = 'h100-sxm'\nreplica = {replica}\nat_s = {at_s:?}\nnotice_s = {notice_s:?}\nback_after_s = {back_s:?}\n"
            )
        };
        format!("{LOSES}{capacity}{}", all.iter().map(one).collect::<String>())
    };
    let set = ["fleet.replicas=4"];
    let found = of_text(&text(&outages), &set).scenario.expect("a good scenario").capacity().expect("it asks");
    let headroom = found.headroom.unwrap_or_else(|| panic!("{:?} {:?}", found.points, found.sources));
    let (from_s, to_s) = (headroom.from_s, headroom.to_s);
    assert!((35.0..45.0).contains(&from_s) && headroom.loads.len() > 2, "{headroom:?}");
    let run = |load: f64, outages: &[(u32, f64, f64, f64)]| {
        let keys = [
            format!("trace.from_s={from_s:?}"),
            format!("trace.to_s={to_s:?}"),
            format!("trace.load={load:?}"),
            format!("slo.warm_up_s={:?}", 2.0 / load),
        ];
        let set: Vec<&str> = set.into_iter().chain(keys.iter().map(String::as_str)).collect();
        let checked = of_text(&text(outages), &set);
        let words = diagnostic::render(&checked.source, &checked.findings);
        let scenario = checked.scenario.unwrap_or_else(|| panic!("{words}"));
        scenario.run(&|_| {}).results[0].metrics["slo_attainment_ratio"]
    };
    for load in &headroom.loads {
        let factor = load.factor;
        // The same on the clock of the part, by hand.
        let by_hand = [
            (1, 0.0, 0.0, (55.0 - from_s) / factor),
            (2, (50.0 - from_s) / factor, 2.0, 8.0 / factor),
            (3, (75.0 - from_s) / factor, 0.0, 1e6),
        ];
        let found = run(factor, &by_hand);
        assert!((found - load.attainment_ratio).abs() < 1e-9, "{found} by hand, {load:?}");
    }
    // Without outages the fleet takes more.
    let whole = of_text(&text(&[]), &set).scenario.expect("a good scenario").capacity().expect("it asks");
    let whole = whole.headroom.expect("a fleet is chosen");
    assert!(whole.meets > 1.1 * headroom.meets, "{} without outages, {} with them", whole.meets, headroom.meets);
}

#[test]
fn a_fleet_that_scales_serves_the_trace_from_its_beginning() {
    let group = "[[fleet.group]]\nname = 'a'\nreplicas = 6\nscaling = { target = 8, start_up_s = 20, interval_s = 5, window = 2 }\n";
    let capacity = "[[capacity.group]]\nname = 'a'\nreplicas = [6]\n";
    let checked = of_text(&format!("{LOSES}{capacity}{group}"), &["capacity.attainment_ratio=0.5"]);
    let words = diagnostic::render(&checked.source, &checked.findings);
    assert!(words.contains("`capacity.peak_s` changes nothing"), "{words}");
    let found = checked.scenario.unwrap_or_else(|| panic!("{words}")).capacity().expect("it asks");
    let headroom = found.headroom.unwrap_or_else(|| panic!("{:?} {:?}", found.points, found.sources));
    assert_eq!((headroom.window.as_str(), headroom.from_s), ("the whole trace", 0.0));
    // So the load as it comes is the fleet's own run.
    let plain = headroom.loads.iter().find(|load| load.factor == 1.0).expect("it is tried");
    assert_eq!(plain.attainment_ratio, found.points[found.chosen.expect("a fleet is chosen")].attainment_ratio);
}
