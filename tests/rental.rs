//! Rental scenarios through the shell: the paper's example, budgets, replays, plan files, and messages about input.

use input::diagnostic;
use skrull_sim::kinds;

/// A scenario that is written here: requests by `input`, `output` and number, GPUs by name, count and dollars per hour.
fn written(gpus: &[(&str, u32, f64)], requests: &[(u32, u32, u32)], rest: &str) -> kinds::Checked {
    let mut text = "kind = \"deployment\"\n[[models]]\nname = \"llama-3-8b\"\n".to_owned();
    for (gpu, count, usd) in gpus {
        text += &format!("[[inventory.gpus]]\ngpu = \"{gpu}\"\ncount = {count}\nusd_per_hour = {usd}\n");
    }
    for (input, output, n) in requests {
        text += &format!("[[requests.types]]\ninput = {input}\noutput = {output}\nrequests = {n}\n");
    }
    super::written(text + rest, &[])
}

/// Two types in turn on 2 or 4 equal replicas: each replica does a half or a quarter of what one does alone, but for filling and draining.
#[test]
fn equal_replicas_share_work_of_several_types_evenly() {
    for (n, requests) in [(2, [(100, 240, 400), (2000, 1, 400)]), (4, [(100, 240, 200), (2000, 1, 600)])] {
        let rest = format!(
            "[engine]\ntp = [1]\nmax_sequences = 128\nmax_tokens = 1024\n[objective]\nis = \"time\"\nusd_per_hour = [1, {n}]\n\
             [policies]\nrun = [\"cost-efficiency\"]\n"
        );
        let job = written(&[("rtx-4090", n, 1.0)], &requests, &rest).scenario.expect("a good scenario");
        let result = job.run(&|_| {});
        let of = |row: usize, key: &str| result.results[row].metrics[key];
        assert_eq!(of(1, "n_replicas"), f64::from(n), "all are rented");
        for row in &result.results {
            // No cost is known within 5 % and none off by three times; dollars go with the time.
            let [low, high] = row.interval["replay_makespan_s"].map(|end| end / row.metrics["replay_makespan_s"]);
            assert!((0.3..0.95).contains(&low) && (1.05..3.0).contains(&high), "{low} to {high}");
            let usd = row.interval["cost_usd_per_mtok"].map(|end| end / row.metrics["cost_usd_per_mtok"]);
            assert!((usd[0] - low).abs() < 1e-9 && (usd[1] - high).abs() < 1e-9, "{usd:?}");
        }
        let (alone_s, together_s) = (of(0, "replay_makespan_s"), of(1, "replay_makespan_s"));
        let over = together_s * f64::from(n) / alone_s;
        assert!((1.0 / 1.05..1.25).contains(&over), "{n} replicas: {together_s} s, one: {alone_s} s");
        assert!((of(1, "replay_over_planned_ratio") - 1.0).abs() < 0.1, "{:?}", result.results[1].metrics);
    }
}

/// One H100 does alone what two A40 beside it slow down: whoever may choose it must not lose against it, and more dollars never end later.
#[test]
fn the_whole_program_loses_against_no_policy_that_decides_less() {
    let rest = "[engine]\ntp = [1, 2]\nmax_sequences = 32\nmax_tokens = 1024\n[objective]\nis = \"time\"\n\
                usd_per_hour = [3, 1, 2]\n[policies]\nrun = [\"homogeneous\", \"melange\", \"uniform-deployment\", \"cost-efficiency\", \
                \"cost-efficiency-bisection\"]\n";
    for requests in [&[(100, 240, 50)][..], &[(100, 240, 200), (1000, 20, 40)]] {
        let job = written(&[("h100-sxm", 1, 1.0), ("a40", 2, 1.0)], requests, rest).scenario.expect("a good scenario");
        let result = job.run(&|_| {});
        let row = |name: &str| result.results.iter().find(|row| row.policy == name).expect("a row");
        let ends_s = |name: &str| row(name).planner.as_ref().and_then(|facts| facts.objective).unwrap_or(f64::INFINITY);
        for policy in ["cost-efficiency", "cost-efficiency-bisection"] {
            let mut before_s = f64::INFINITY;
            for usd in [1, 2, 3] {
                let name = format!("{policy}@{usd}");
                let found_s = ends_s(&name);
                assert!(found_s <= before_s, "{name}: {found_s} s after {before_s} s");
                for less in ["homogeneous", "melange"] {
                    let less_s = ends_s(&format!("{less}@{usd}"));
                    assert!(found_s <= less_s, "{name}: {found_s} s, {less}: {less_s} s");
                }
                let bound_s = row(&name).planner.as_ref().and_then(|facts| facts.bound).expect("a bound");
                assert!(bound_s <= found_s, "{name}: {bound_s} s is above {found_s} s");
                before_s = found_s;
            }
        }
    }
}

#[test]
fn a_row_is_run_alone_by_its_name() {
    let set = [
        "objective.usd_per_hour=[8,15]",
        "policies.run=['cost-efficiency@8']",
        "policies.baseline='cost-efficiency@8'",
    ];
    let result = super::checked("cloud/milp-example", &set).scenario.expect("a good scenario").run(&|_| {});
    let names: Vec<&str> = result.results.iter().map(|row| row.policy.as_str()).collect();
    assert_eq!(names, ["cost-efficiency@8"]);
    assert_eq!(result.speedup_ratio["cost-efficiency@8"], 1.0);
    // A row that is named beside its policy is there once.
    let set = [
        "objective.usd_per_hour=[8,15]",
        "policies.run=['homogeneous@15','homogeneous']",
        "policies.baseline='homogeneous'",
    ];
    let job = super::checked("cloud/milp-example", &set).scenario.expect("a good scenario");
    assert_eq!(job.choices(), ["homogeneous@8", "homogeneous@15"]);
}

#[test]
fn a_plan_file_of_one_budget_of_several_has_one_row() {
    let out = format!("{}/rental-plan", env!("CARGO_TARGET_TMPDIR"));
    let program = |args: &[&str]| {
        let done = std::process::Command::new(env!("CARGO_BIN_EXE_skrull-sim")).args(args).output();
        let done = done.expect("the program starts");
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let set = "objective.usd_per_hour=[1.5,3.3]";
    let policy = "cost-efficiency@3.3";
    program(&["plan", "together/rented-under-arrivals", "--set", set, "--policy", policy, "--out", &out]);
    let run = program(&["run", &format!("{out}/plan.json"), "--format", "json", "--out", &format!("{out}/run")]);
    let alone = reports::json::parse(&run).expect("a result");
    let names: Vec<&str> = alone.results.iter().map(|row| row.policy.as_str()).collect();
    assert_eq!(names, [policy]);
    let all = super::checked("together/rented-under-arrivals", &[set]).scenario.expect("a good scenario").run(&|_| {});
    let row = all.results.iter().find(|row| row.policy == policy).expect("a row");
    assert_eq!(alone.results[0].metrics, row.metrics);
}

#[test]
fn more_budget_never_ends_later() {
    let budgets: Vec<f64> = (1..=12).map(f64::from).collect();
    let list = format!("objective.usd_per_hour={budgets:?}");
    let job = super::checked(
        "cloud/milp-example",
        &[&list, "policies.run=['cost-efficiency']", "policies.baseline='cost-efficiency'"],
    )
    .scenario;
    let result = job.expect("a good scenario").run(&|_| {});
    let mut before = f64::INFINITY;
    for (row, budget) in result.results.iter().zip(budgets) {
        if budget < 2.0 {
            assert_eq!(row.status, reports::Ended::Infeasible, "{}", row.why);
            continue;
        }
        let makespan_s = row.metrics["makespan_s"];
        assert!(makespan_s <= before * (1.0 + 1e-6), "{budget} $/h: {makespan_s} s after {before} s");
        before = makespan_s;
    }
}

#[test]
fn a_plan_file_says_what_to_rent_and_what_holds_it_back() {
    let job = super::checked("cloud/milp-example", &[]).scenario.expect("a good scenario");
    let planned = job.plan("cost-efficiency@8").expect("renting decides").expect("a plan");
    let rented = &planned.json["rented"];
    let replicas = rented["replicas"].as_array().expect("a list");
    let names: Vec<&str> = replicas.iter().filter_map(|row| row["configuration"].as_str()).collect();
    // Cheap types first.
    assert_eq!(names, ["c4", "c1"]);
    assert!((rented["makespan_s"].as_f64().expect("a figure") - 1450.0 / 51.0).abs() < 1e-4);
    assert!(planned.json["plan"]["bound"].as_f64().expect("a figure") > 28.42);
    // By hand: with t1 and t2 all taken, the second best is two of t3 beside the pair of t2, 92/3 s.
    assert!((rented["runner_up"]["makespan_s"].as_f64().expect("a figure") - 92.0 / 3.0).abs() < 1e-4);
    assert!(planned.words.contains("rent 1 x c4 + 1 x c1 for 8.00 $/h"), "{}", planned.words);
    assert!(planned.words.contains("budget of 8 $/h"), "{}", planned.words);
    assert!(job.plan("published@2").expect("renting decides").is_err());
}

#[test]
fn every_serving_planner_says_its_bound_gap_limit_and_runner_up() {
    for (name, policy, limit, bound, second) in [
        ("cloud/milp-example", "cost-efficiency@8", "what holds it back: budget of 8 $/h", "is below", "runner-up"),
        ("cloud/milp-example", "cost-efficiency-bisection@8", "what holds it back: budget", "is below", "runner-up"),
        ("cloud/milp-example", "melange@8", "what holds it back: budget of 8 $/h", "is below", "runner-up"),
        ("cloud/thunderserve-4x4", "thunderserve", "limit: rate of the prefill groups", "is above", "runner-up"),
        ("cloud/thunderserve-4x4", "distserve", "limit: rate of the prefill groups", "is above", "looked at"),
        ("cloud/thunderserve-4x4", "hexgen", "limit: the target per token", "is above", "both phases on"),
        ("cloud/helix-24", "helix", "what holds it back: cut through node", "is above", "runner-up"),
        (
            "serving/qwen-1m",
            "best",
            "all were tried, and the bound is what no cut of the prompts beats",
            "is below",
            "runner-up",
        ),
        ("serving/flash-llm", "flash-llm", "all were tried, so the bound is the answer", "is above", "runner-up"),
    ] {
        let job = super::checked(name, &[]).scenario.expect("a good scenario");
        let planned = job.plan(policy).expect("a decision").expect("a plan");
        for words in [limit, bound, second, "gap"] {
            assert!(planned.words.contains(words), "{name} {policy}: no `{words}` in\n{}", planned.words);
        }
        let figure = |of: &serde_json::Value, key: &str| of[key].as_f64().expect("a figure");
        let facts = &planned.json["plan"];
        let over = figure(facts, "bound") / figure(facts, "objective");
        // Rates have their bound above, seconds below.
        let is_rate = facts["aim"].is_string();
        assert!(if is_rate { over >= 1.0 } else { over <= 1.0 + 1e-9 }, "{name} {policy}: {over}");
        let gap = figure(facts, "gap_ratio");
        assert!((0.0..10.0).contains(&gap), "{name} {policy}: {gap}");
    }
}

#[test]
fn a_plan_of_phases_is_a_deployment_of_replicas_and_routes() {
    let job = super::checked("cloud/thunderserve-4x4", &[]).scenario.expect("a good scenario");
    for (policy, splits) in [("colocated", false), ("thunderserve", true)] {
        let planned = job.plan(policy).expect("a decision").expect("a plan");
        let deployment = &planned.json["deployments"][0];
        let replicas = deployment["replicas"].as_array().expect("a list");
        for replica in replicas {
            assert_eq!(replica["role"] != "both", splits, "{replica}");
            let stages = replica["stages"].as_array().expect("a list");
            let layers = |end: &str, stage: &serde_json::Value| stage["layers"][end].as_u64().expect("a layer");
            let n_layers: u64 = stages.iter().map(|stage| layers("end", stage) - layers("first", stage)).sum();
            assert_eq!(n_layers, 60, "{replica}");
        }
        let routes = deployment["routes"].as_array().expect("a list");
        let shares: f64 = routes.iter().filter_map(|route| route["share_ratio"].as_f64()).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{shares}");
        assert!(planned.words.contains("requests/s, no plan it may choose is above"), "{}", planned.words);
    }
}

#[test]
fn an_engine_beside_known_rates_is_said_to_change_nothing() {
    let checked = super::checked("cloud/milp-example", &["engine.max_sequences=4"]);
    assert!(checked.scenario.is_some());
    let text = diagnostic::render(&checked.source, &checked.findings);
    assert!(text.contains("`[engine]` changes nothing beside `[[configurations]]`"), "{text}");
}

#[test]
fn what_is_wrong_is_named_with_what_is_allowed() {
    for (name, set, expected) in [
        ("cloud/milp-example", "policies.run=['cost-eficiency']", "did you mean `cost-efficiency`?"),
        ("cloud/milp-example", "policies.baseline=homogenous", "did you mean `homogeneous`?"),
        ("cloud/milp-example", "objective.usd_per_hour=[]", "no list of such numbers"),
        ("cloud/milp-example", "objective.usd_per_hour=-1", "is no number above 0"),
        ("cloud/milp-example", "inventory.gpus=[]", "which is not offered"),
        ("cloud/milp-example", "requests.types=[]", "there is no work"),
        ("cloud/milp-example", "inventory.gpus=[{gpu='t1',usd_per_hour=4,count=2}]", "which is not offered"),
        ("cloud/milp-example", "requests.types=[{requests=80}]", "`c1` has 2 rates for 1 request types"),
        ("cloud/milp-example", "plans=[{name='p',replicas={c9=1}}]", "plan `p` names `c9`"),
        ("cloud/milp-example", "inventory.gpus=[{gpu='t1',count=2}]", "`inventory.gpus.usd_per_hour` is missing"),
        ("cloud/milp-example", "configurations=[]", "there is no model to serve"),
        ("cloud/hetero-6gpu", "inventory.gpus=[{gpu='h100',usd_per_hour=4,count=2}]", "unknown GPU `h100`"),
        ("cloud/hetero-6gpu", "engine.tp=[5]", "holds `llama-3-70b` with the degrees"),
        ("cloud/hetero-6gpu", "engine.pp=[]", "holds something that is no degree"),
        ("cloud/hetero-6gpu", "requests.types=[{model='llama-3-8b',requests=80}]", "has no lengths"),
        ("cloud/hetero-6gpu", "requests.types=[{input=8,output=8,requests=80}]", "there are several"),
        ("cloud/hetero-6gpu", "engine.tp=[0]", "holds something that is no degree"),
        (
            "cloud/milp-example",
            "inventory.gpus=[{gpu='t1',usd_per_hour=4,count=2},{gpu='t1',usd_per_hour=2,count=2}]",
            "two offers are called `t1`",
        ),
        (
            "cloud/milp-example",
            "inventory.gpus=[{gpu='t1',usd_per_hour=4,count=2},{gpu='t1',usd_per_hour=2,count=2}]",
            "give one a `name`, for example `name = \"t1-2\"`",
        ),
        (
            "cloud/milp-example",
            "configurations=[{name='c',gpus={t1=1},requests_per_s=[1,1]},{name='c',gpus={t1=2},requests_per_s=[2,2]}]",
            "two configurations are called `c`",
        ),
        (
            "cloud/milp-example",
            "requests.types=[{name='a',requests=8},{name='a',requests=2}]",
            "two request types are called `a`",
        ),
        (
            "cloud/milp-example",
            "plans=[{name='p',replicas={c1=1}},{name='p',replicas={c2=1}}]",
            "two plans are called `p`",
        ),
    ] {
        let checked = super::checked(name, &[set]);
        assert!(checked.scenario.is_none(), "{set} was accepted");
        let text = diagnostic::render(&checked.source, &checked.findings);
        assert!(text.contains(expected), "{set}:\n{text}");
    }
}

#[test]
fn capacity_varies_phases_of_types_of_their_own_with_their_losses() {
    let found = skrull_sim::commands::capacity_of("together/capacity-split", &[]).expect("a report");
    assert_eq!(found.points.len() + found.left_out.len(), 9, "three numbers of either group");
    let chosen = &found.points[found.chosen.expect("some fleet suffices")];
    // Each of both groups is paid at its own price, but for the time in which a machine is lost.
    let point = found.points.iter().find(|point| point.name == "2 x read + 2 x write").expect("one of nine");
    let paid_ratio = point.usd_per_hour / (2.0 * (2.25 + 1.39));
    assert!((0.9..1.0).contains(&paid_ratio), "{} $/h", point.usd_per_hour);
    for other in found.points.iter().filter(|other| other.usd_per_hour < chosen.usd_per_hour) {
        assert!(other.attainment_ratio < 0.9, "{} is cheaper than {}", other.name, chosen.name);
    }
}

#[test]
fn more_time_never_costs_more() {
    let deadlines: Vec<f64> = (1..=14).map(|n| 8.0 * f64::from(n)).collect();
    let list = format!("objective={{is='dollars',within_s={deadlines:?}}}");
    let set = [&list, "policies.run=['cost-efficiency','melange','homogeneous']"];
    let job = super::checked("cloud/milp-example", &set.map(|text| text)).scenario.expect("a good scenario");
    let result = job.run(&|_| {});
    let of = |policy: &str, seconds: f64| {
        let row = result.results.iter().find(|row| row.policy == format!("{policy}@{seconds}")).expect("a row");
        row.metrics.get("cost_usd_per_hour").copied().unwrap_or(f64::INFINITY)
    };
    let mut before = f64::INFINITY;
    for &seconds in &deadlines {
        let usd = of("cost-efficiency", seconds);
        assert!(usd <= before, "{seconds} s: {usd} $/h after {before} $/h");
        assert!(usd <= of("melange", seconds) && usd <= of("homogeneous", seconds), "{seconds} s");
        before = usd;
    }
    // Only two of t1 and everything else are there: by hand, half of t2's pair does all in 140/3 s for 4 $/h, one t2 in 1000/9 s for 2 $/h.
    assert_eq!((of("cost-efficiency", 48.0), of("cost-efficiency", 112.0)), (4.0, 2.0));
    assert!(of("cost-efficiency", 8.0).is_infinite());
    // Each says by its own program what holds the price up.
    for (row, words) in [("cost-efficiency@48", "deadline of 48 s"), ("melange@48", "carry the load of")] {
        let found = result.results.iter().find(|found| found.policy == row).expect("a row");
        let notes = &found.planner.as_ref().expect("facts").notes;
        let held = notes.iter().find(|note| note.starts_with("what holds it back: ")).expect("a limit");
        assert!(held.contains(words), "{row}: {held}");
    }
}

/// Rates of another mix hide cheap plans: what the program takes for late by a hair may be in time, and simpler policies may find it.
#[test]
fn more_time_never_costs_more_where_rates_are_found_by_serving() {
    let set = ["objective.within_s=[100,170,180]", "policies.run=['cost-efficiency','melange','homogeneous']"];
    let result = super::checked("cloud/least-dollars", &set).scenario.expect("a good scenario").run(&|_| {});
    let of = |policy: &str, seconds: u32| {
        let row = result.results.iter().find(|row| row.policy == format!("{policy}@{seconds}")).expect("a row");
        row.metrics["cost_usd_per_hour"]
    };
    let mut before = f64::INFINITY;
    for seconds in [100, 170, 180] {
        let usd = of("cost-efficiency", seconds);
        assert!(
            usd <= before && usd <= of("melange", seconds) && usd <= of("homogeneous", seconds),
            "{seconds} s: {usd}"
        );
        before = usd;
    }
}

/// A list of budgets a tenth of a dollar apart: time never rises, the bill never rises at one time, and a runner-up is never better.
#[test]
fn a_fine_list_of_budgets_is_monotone_where_rates_are_found_by_serving() {
    let budgets: Vec<f64> = (3..=24).map(|n| f64::from(n) / 5.0).collect();
    let rest = format!(
        "[engine]\ntp = [1]\nmax_sequences = 128\nmax_tokens = 1024\n[objective]\nis = \"time\"\nusd_per_hour = {budgets:?}\n\
         [policies]\nrun = [\"cost-efficiency\"]\n"
    );
    let gpus = [("a100-sxm-80g", 2, 1.39), ("l40s", 2, 0.87), ("rtx-4090", 2, 0.34)];
    let job = written(&gpus, &[(1020, 240, 60), (400, 120, 40)], &rest).scenario.expect("a good scenario");
    let (mut before_s, mut before_usd) = (f64::INFINITY, 0.0);
    for row in &job.run(&|_| {}).results {
        let facts = row.planner.as_ref().expect("facts");
        let (ends_s, usd) = (facts.objective.expect("a plan"), row.metrics["cost_usd_per_hour"]);
        assert!(ends_s <= before_s, "{}: {ends_s} s after {before_s} s", row.policy);
        assert!(ends_s < before_s || usd <= before_usd + 1e-9, "{}: {usd} $/h after {before_usd} $/h", row.policy);
        if let Some(note) = facts.notes.iter().find_map(|note| note.strip_prefix("runner-up: ")) {
            let seconds = note.split(": ").nth(1).and_then(|rest| rest.split(" s for").next()).expect("seconds");
            let other_s: f64 = seconds.parse().expect("a number");
            assert!(other_s >= ends_s - 1e-3, "{}: {note} beside {ends_s} s", row.policy);
        }
        (before_s, before_usd) = (ends_s, usd);
    }
}

/// One type at two prices is two offers: the cheap one is rented first, and both have figures of their own.
#[test]
fn one_gpu_type_at_two_prices_is_two_offers() {
    let text = "kind = \"deployment\"\n[[inventory.gpus]]\ngpu = \"a100-sxm-80g\"\nname = \"spot\"\ncount = 1\nusd_per_hour = 0.7\n\
                [[inventory.gpus]]\ngpu = \"a100-sxm-80g\"\ncount = 2\nusd_per_hour = 1.39\n[[requests.types]]\nrequests = 60\n";
    let enumerated = "input = 100\noutput = 24\n[[models]]\nname = \"llama-3-8b\"\n[engine]\ntp = [1]\nmax_sequences = 32\nmax_tokens = 1024\n";
    let given = "[[configurations]]\nname = \"spot tp 1\"\ngpus = { spot = 1 }\nrequests_per_s = [1.0]\n\
                 [[configurations]]\nname = \"a100-sxm-80g tp 1\"\ngpus = { a100-sxm-80g = 1 }\nrequests_per_s = [1.0]\n";
    let end = "[objective]\nis = \"time\"\nusd_per_hour = [1.2, 2.2]\n[policies]\nrun = [\"cost-efficiency\"]\n";
    for middle in [enumerated, given] {
        let checked = super::written(format!("{text}{middle}{end}"), &[]);
        let job = checked.scenario.unwrap_or_else(|| panic!("{:?}", checked.findings));
        let result = job.run(&|_| {});
        let counts = |row: usize| {
            let figures = &result.results[row].planner.as_ref().expect("facts").figures;
            [figures["replicas_of_spot tp 1"], figures["replicas_of_a100-sxm-80g tp 1"]]
        };
        assert_eq!((counts(0), counts(1)), ([1.0, 0.0], [1.0, 1.0]), "{middle}");
    }
}

/// Three GPUs in two offers of one price are as three of one offer, for every policy that serves its plans: no request tells them apart.
#[test]
fn a_type_in_two_offers_is_rented_as_one() {
    let rest = "[engine]\ntp = [1]\nmax_sequences = 128\nmax_tokens = 1024\n[objective]\nis = \"dollars\"\nwithin_s = [147, 150]\n\
                [policies]\nrun = [\"cost-efficiency\", \"homogeneous\", \"melange\", \"uniform-deployment\"]\n";
    let requests = [(1020, 240, 2400), (400, 120, 1600)];
    let ends = [&[("l40s", 3, 0.87)][..], &[("l40s\"\nname = \"y", 2, 0.87), ("l40s", 1, 0.87)]].map(|gpus| {
        let result = written(gpus, &requests, rest).scenario.expect("a good scenario").run(&|_| {});
        let of = |row: &reports::PolicyResult, key: &str| format!("{:.6}", row.metrics[key]);
        let rows = result.results.iter().map(|row| [of(row, "cost_usd_per_hour"), of(row, "makespan_s")]);
        rows.collect::<Vec<_>>()
    });
    assert_eq!((ends[0].len(), &ends[0]), (8, &ends[1]));
}

/// Twelve L40S in machines of six hold two replicas of four, whoever rents them.
#[test]
fn tensor_groups_are_rented_in_machines() {
    let text = "kind = \"deployment\"\n[[inventory.gpus]]\ngpu = \"l40s\"\ncount = 12\ngpus_per_machine = 6\nusd_per_hour = 0.7\n\
                [[models]]\nname = \"llama-3-70b\"\n[[requests.types]]\ninput = 200\noutput = 24\nrequests = 60\n\
                [engine]\ntp = [4]\nmax_sequences = 32\nmax_tokens = 1024\n[objective]\nis = \"time\"\nusd_per_hour = 30\n\
                [policies]\nrun = [\"homogeneous\", \"cost-efficiency\", \"melange\", \"uniform-deployment\", \"round-robin\"]\n";
    let checked = super::written(text.to_owned(), &[]);
    let job = checked.scenario.unwrap_or_else(|| panic!("{:?}", checked.findings));
    for row in &job.run(&|_| {}).results {
        assert_eq!((row.metrics["n_replicas"], row.metrics["n_gpus"]), (2.0, 8.0), "{}", row.policy);
    }
    let planned = job.plan("cost-efficiency").expect("renting decides").expect("a plan");
    let replicas = planned.json["deployments"][0]["replicas"].as_array().expect("a list");
    let firsts: Vec<u64> = replicas.iter().filter_map(|of| of["stages"][0]["gpus"]["first"].as_u64()).collect();
    assert_eq!(firsts, [0, 6], "{replicas:?}");
}

#[test]
fn a_checkpoint_in_eight_bits_is_rented_for_as_one() {
    let set = [
        "objective.within_s=[2000]",
        "policies.run=['homogeneous']",
        "models=[{name='neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8'}]",
    ];
    let result = super::checked("cloud/least-dollars", &set).scenario.expect("a good scenario").run(&|_| {});
    assert!(result.results[0].status.is_ok(), "{}", result.results[0].why);
}

#[test]
fn a_policy_that_does_not_serve_the_objective_says_what_it_serves() {
    for (name, set, what, help) in [
        (
            "cloud/milp-example",
            &["policies.run=['thunderserve']", "policies.baseline='thunderserve'"][..],
            "`thunderserve` does not serve `objective.is = \"time\"`",
            "it serves `goodput`",
        ),
        (
            "cloud/milp-example",
            &[
                "objective={is='dollars',within_s=60}",
                "policies.run=['round-robin']",
                "policies.baseline='round-robin'",
            ],
            "`round-robin` does not serve `objective.is = \"dollars\"`",
            "it serves `time`",
        ),
        (
            "cloud/thunderserve-4x4",
            &["policies.run=['petals']", "policies.baseline='petals'", "policies.variant=[]"],
            "`petals` does not serve `objective.is = \"goodput\"`",
            "it serves `throughput`",
        ),
        (
            "cloud/helix-24",
            &["policies.run=['melange']", "policies.baseline='melange'"],
            "`melange` does not serve `objective.is = \"throughput\"`",
            "it serves `time` and `dollars` and `goodput`",
        ),
    ] {
        let checked = super::checked(name, set);
        assert!(checked.scenario.is_none(), "{name} {set:?} was accepted");
        let text = diagnostic::render(&checked.source, &checked.findings);
        assert!(text.contains(what) && text.contains(help), "{name}:\n{text}");
    }
}

/// One replica, with what `[engine]` says besides.
fn rented_with(engine: &str) -> kinds::Checked {
    let rest = format!(
        "[engine]\ntp = [1]\nmax_sequences = 16\nmax_tokens = 1024\n{engine}\n[objective]\nis = \"time\"\nusd_per_hour = 2\n\
         [policies]\nrun = [\"cost-efficiency\"]\n"
    );
    written(&[("h100-sxm", 1, 2.0)], &[(200, 120, 64)], &rest)
}

#[test]
fn rented_replicas_draft_tokens_and_gain_by_those_that_are_accepted() {
    let end_s = |engine: &str| {
        let checked = rented_with(engine);
        let text = diagnostic::render(&checked.source, &checked.findings);
        let result = checked.scenario.unwrap_or_else(|| panic!("{text}")).run(&|_| {});
        result.results[0].metrics["replay_makespan_s"]
    };
    let drafts = |acceptance: f64, by: &str| {
        end_s(&format!("speculation = {{ draft_tokens = 3, acceptance = {acceptance}, {by} }}"))
    };
    let (plain, model) = (end_s(""), "draft_model = \"llama-3.2-1b\"");
    let [none, some, all] = [0.0, 0.6, 1.0].map(|acceptance| drafts(acceptance, model));
    assert!(none > plain && none > some && some > all && all < plain, "{plain} without, {none}, {some}, {all} with");
    // Free drafts that are all accepted give four tokens where one was: a quarter of the iterations, which verify four times the tokens.
    let free = drafts(1.0, "draft_us_per_token = 0.001");
    assert!(free < all && (0.24..0.5).contains(&(free / plain)), "{free} of {plain}");
}

#[test]
fn what_a_closed_form_of_rents_cannot_know_is_refused_by_name() {
    for (engine, expected) in [
        (
            "speculation = { draft_tokens = 3, acceptance = 0.7 }\nrates = \"roofline\"",
            "gives a sequence one token in an iteration",
        ),
        ("speculation = { draft_tokens = 3 }", "`engine.speculation.acceptance` is missing"),
        (
            "speculation = { draft_tokens = 3, acceptance = 0.7, draft_model = \"qwen3-0.6b\" }",
            "engines compare tokens one by one",
        ),
        (
            "speculation = { draft_tokens = 3, acceptance = 0.7, draft_model = \"mtp\" }",
            "no layer of `llama-3-8b` is known",
        ),
        ("adapters = { slots = 4, rank_max = 16 }", "`engine.adapters`: no request type asks for an adapter"),
        ("tiers = { host_gib = 64 }", "`engine.tiers`: request types share no prefix"),
    ] {
        let checked = rented_with(engine);
        let text = diagnostic::render(&checked.source, &checked.findings);
        assert!(checked.scenario.is_none() && text.contains(expected), "{expected}:\n{text}");
    }
}

#[test]
fn nodes_with_a_part_of_the_layers_say_why_they_draft_and_keep_nothing() {
    for (set, expected) in [
        (
            &["engine.speculation={draft_tokens=3,acceptance=0.7}"][..],
            "planned and played with one token of each request",
        ),
        (&["engine.tiers={host_gib=64}"], "keep no prefixes"),
        (&["engine.adapters={slots=4}"], "those times are of layers alone"),
        (&["requests.adapters={count=8}"], "the engine has no room for any"),
    ] {
        let checked = super::checked("cloud/helix-24", set);
        let text = diagnostic::render(&checked.source, &checked.findings);
        assert!(checked.scenario.is_none() && text.contains(expected), "{set:?}:\n{text}");
    }
}

#[test]
fn replicas_of_goodput_say_what_does_not_go_together_and_what_changes_nothing() {
    const SHARED: &str = "requests.shared_prefixes=4";
    for (set, is_taken, expected) in [
        (&["engine.speculation={draft_tokens=3,acceptance=0.7}"][..], true, ""),
        (&["engine.speculation={draft_tokens=3,acceptance=0.7,draft_model='mtp'}"], false, "no layer of"),
        (&["engine.adapters={slots=4}"], true, "slots take memory alone"),
        (&["requests.adapters={count=8}"], false, "the engine has no room for any"),
        (&["requests.adapters={count=8}", "engine.adapters={slots=4}"], false, "others come from disk"),
        (&["requests.adapters={count=8}", "engine.adapters={slots=4,host_slots=8}"], true, ""),
        (&["engine.tiers={host_gib=64}"], false, "`prefix_cache` is off"),
        (&["engine.tiers={host_gib=64}", "engine.prefix_cache=true"], true, "requests share none"),
        (
            &[SHARED, "requests.shared_prefix_tokens=256", "engine.tiers={host_gib=64}", "engine.prefix_cache=true"],
            true,
            "",
        ),
        (&["engine.tiers={remote_gib=64,remote_gb_per_s=9}", "engine.prefix_cache=true"], false, "no link"),
    ] {
        let only = ["policies.run=['colocated']", "policies.baseline='colocated'", "policies.variant=[]", "expect={}"];
        let checked = super::checked("cloud/thunderserve-4x4", &[set, &only[..]].concat());
        let text = diagnostic::render(&checked.source, &checked.findings);
        assert_eq!(checked.scenario.is_some(), is_taken, "{set:?}:\n{text}");
        assert!(text.contains(expected), "{set:?}:\n{text}");
    }
}

#[test]
fn plans_of_goodput_gain_by_accepted_drafts_and_pay_for_adapters() {
    let served = |set: &[&str]| {
        let only = ["policies.run=['colocated']", "policies.baseline='colocated'", "policies.variant=[]", "expect={}"];
        let checked = super::checked("cloud/thunderserve-4x4", &[set, &only[..], &["requests.requests=300"]].concat());
        let text = diagnostic::render(&checked.source, &checked.findings);
        let result = checked.scenario.unwrap_or_else(|| panic!("{text}")).run(&|_| {});
        let metrics = &result.results[0].metrics;
        let [rate, planned] = ["goodput_requests_per_s", "planned_requests_per_s"].map(|key| metrics[key]);
        // A bound that a short run passes is left out.
        let is_below = metrics.get("bound_requests_per_s").is_none_or(|bound| planned <= *bound);
        assert!(rate > 0.0 && is_below, "{set:?}: {metrics:?}");
        planned
    };
    let drafts = |acceptance: f64| {
        let drafts = format!("engine.speculation={{draft_tokens=3,acceptance={acceptance},draft_us_per_token=200}}");
        served(&[&drafts])
    };
    // Of replicas of both phases the plan chooses by means, so the rates that are played may be those of other sets.
    let (plain, [none, all]) = (served(&[]), [drafts(0.0), drafts(1.0)]);
    assert!(none < plain && plain < all, "{none}, {plain}, {all}");
    let adapted = served(&["requests.adapters={count=8,rank=64}", "engine.adapters={slots=8,rank_max=64}"]);
    assert!(adapted < plain, "{adapted} of {plain}");
}
