//! Serving scenarios that said something which was not so: bounds that a run beats, options that lose, keys that nothing heeds, labels that are shared.
//! Each test asks a small scenario for what must hold whatever its figures are.

use std::collections::BTreeSet;

use input::diagnostic;
use reports::{PolicyResult, Status};
use skrull_sim::kinds;

/// A chat on one card.
const BASE: &str = "kind = \"serving\"\n[model]\nname = \"llama-3.1-8b\"\n[trace]\nlengths = \"azure-conv\"\nrequests = 300\nrate_per_s = 10\n\
                    [engine]\nname = \"vllm\"\nversion = \"0.19.0\"\n[slo]\nttft_s = 1.0\ntpot_s = 0.05\n[policies]\nrun = [\"vllm-v1\"]\n";
/// Its card.
const CARD: &str = "[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 1\n";

fn checked(text: &str, set: &[&str]) -> kinds::Checked {
    super::written(text.to_owned(), set)
}

/// What is said of a scenario, and whether it can be run.
fn words(text: &str, set: &[&str]) -> (String, bool) {
    let checked = checked(text, set);
    (diagnostic::render(&checked.source, &checked.findings), checked.scenario.is_some())
}

fn rows(text: &str, set: &[&str]) -> Vec<PolicyResult> {
    let checked = checked(text, set);
    let messages = diagnostic::render(&checked.source, &checked.findings);
    checked.scenario.unwrap_or_else(|| panic!("{set:?}:\n{messages}")).run(&|_| {}).results
}

fn notes(row: &PolicyResult) -> String {
    row.planner.as_ref().map_or_else(String::new, |facts| facts.notes.join("; "))
}

/// A fixed replica beside a fleet that hindsight plans, with prompts that come again.
fn planned() -> String {
    let trace =
        "[trace]\nprompt_tokens = 4000\noutput_tokens = 20\nrequests = 800\nrate_per_s = 25\ndataset_prompts = 20\n";
    let fleet = "[fleet]\nusd_per_gpu_hour = 2.0\n[[fleet.group]]\nname = \"fixed\"\ngpu = \"h100-sxm\"\n[[fleet.group]]\nname = \"planned\"\n\
                 gpu = \"h100-sxm\"\nreplicas = 10\nscaling = { rule = \"hindsight\", interval_s = 10, start_up_s = 2 }\n";
    let variant =
        |name: &str| format!("[[policies.variant]]\nname = \"{name}\"\npolicy = \"vllm-v1\"\ngroups = [\"{name}\"]\n");
    let ways = format!("[policies]\nrun = [\"fixed\", \"planned\"]\n{}{}", variant("fixed"), variant("planned"));
    let (head, rest) = BASE.split_once("[trace]").expect("a section");
    let (_, rest) = rest.split_once("[engine]").expect("a section");
    let (engine, _) = rest.split_once("[policies]").expect("a section");
    format!("{head}{trace}[engine]{engine}{fleet}{ways}")
}

#[test]
fn no_run_costs_less_than_the_bound_of_hindsight() {
    // A cache of prefixes saves what the profile computes, so there is a bound without one alone.
    let text = planned();
    for row in rows(&text, &[]) {
        assert!(!row.metrics.contains_key("cost_bound_usd"), "{row:?}");
        assert!(notes(&row).contains("no bound: the profile computes every prompt token"), "{}", notes(&row));
    }
    for row in rows(&text, &["engine.prefix_cache=false"]) {
        assert!(row.metrics["cost_gap_ratio"] >= 0.0, "{row:?}");
        assert!(!notes(&row).contains("hindsight counts on every replica"), "{}", notes(&row));
    }
    let outage = "[[fleet.outage]]\ngroup = \"planned\"\nat_s = 5\n[policies]";
    let lossy = rows(&text.replacen("[policies]", outage, 1), &["engine.prefix_cache=false"]);
    let told = lossy.iter().map(|row| notes(row).contains("hindsight counts on every replica")).collect::<Vec<_>>();
    assert_eq!(told, [false, true]);
}

#[test]
fn a_sparse_kernel_changes_nothing_below_its_threshold() {
    let trace =
        ["trace={ prompt_tokens = 31000, output_tokens = 2, requests = 3, concurrency = 1 }", "engine.max_tokens=1024"];
    let sparse = |above: u32| {
        format!(
            "engine.prefill_attention={{ kernel = \"minference\", vertical = 1000, slash = 6096, above_tokens = {above} }}"
        )
    };
    let ttft = |more: &[&str]| rows(&format!("{BASE}{CARD}"), &[&trace[..], more].concat())[0].metrics["ttft_s.mean"];
    let dense = ttft(&[]);
    assert!((ttft(&[&sparse(32_768)]) - dense).abs() < 1e-12);
    assert!((ttft(&[&sparse(31_000)]) - dense).abs() < 1e-12);
    assert!((ttft(&[&sparse(30_000)]) / dense - 1.0).abs() > 0.01);
}

#[test]
fn parts_of_formats_that_are_not_named_are_inherited() {
    use hw::{Dtype, Format};
    let formats = |model: &str, engine: &str, way: &str| {
        let line = |weights: &str| if weights.is_empty() { String::new() } else { format!("weights = {weights}\n") };
        let text = format!("{BASE}{CARD}")
            .replacen("[trace]", &format!("{}[trace]", line(model)), 1)
            .replacen("[slo]", &format!("{}[slo]", line(engine)), 1)
            .replacen("run = [\"vllm-v1\"]", "run = [\"a\"]", 1);
        let text = format!("{text}[[policies.variant]]\nname = \"a\"\npolicy = \"vllm-v1\"\n{}", line(way));
        let serving = crate::serving_of(text);
        let (choice, group) = (&serving.choices[0], &serving.groups[0]);
        let found = serving.formats_of(choice, group);
        (found.dense, found.head, found.kv)
    };
    let (bf16, fp8) = (Format::of_word("bf16").expect("listed"), Format::Fp8);
    assert_eq!(formats("{ kv = \"fp8\" }", "\"fp8\"", ""), (fp8, bf16, Dtype::Fp8));
    assert_eq!(formats("\"fp8\"", "{ kv = \"fp8\" }", ""), (fp8, bf16, Dtype::Fp8));
    assert_eq!(
        formats("{ format = \"fp8\", head = \"fp8\" }", "{ kv = \"fp8\" }", "\"bf16\""),
        (bf16, fp8, Dtype::Fp8)
    );
    assert_eq!(formats("{ kv = \"fp8\" }", "", "{ dense = \"fp8\", kv = \"bf16\" }"), (fp8, bf16, Dtype::Bf16));
    // Zeros are left out of layers, and what is kept of keys and values is another question.
    let sparse = "{ format = \"tiled-csl\", sparsity = 0.8 }";
    assert_eq!(formats("{ kv = \"fp8\" }", "", sparse), (bf16, bf16, Dtype::Fp8));
}

#[test]
fn settings_and_ways_that_differ_have_labels_that_differ() {
    const WEIGHTS: &str = "weights = [{ format = \"bf16\" }, { format = \"bf16\", kv = \"fp8\" }, { format = \"bf16\", head = \"fp8\" }, \"int8\"]\n";
    let text = format!("{BASE}{CARD}");
    let tune = format!(
        "{text}[tune]\nby = \"ttft_s.mean\"\ntp = [1]\nmax_sequences = [64]\nmax_tokens = [2048]\nwithin = {{}}\n{WEIGHTS}"
    );
    let found = checked(&tune, &["trace.requests=60"]).scenario.expect("a good scenario").tuned().expect("a question");
    let labels: BTreeSet<&String> = found.settings.iter().map(|setting| &setting.values["weights"]).collect();
    assert_eq!((found.counts.settings, labels.len()), (4, found.settings.len()), "{labels:?}");
    let best = format!(
        "{}[[policies.best]]\nname = \"c\"\npolicy = \"vllm-v1\"\nby = \"tpot_s.mean\"\n{WEIGHTS}",
        text.replacen("\"vllm-v1\"", "\"c\"", 1)
    );
    let rows = rows(&best, &["trace.requests=60"]);
    let figures = &rows[0].planner.as_ref().expect("facts").figures;
    let of_ways = figures.keys().filter(|key| key.starts_with("ways_tpot_s.mean_")).collect::<Vec<_>>();
    assert_eq!(of_ways.len(), 4, "{of_ways:?}");
}

/// Two streams of requests under other arrivals.
fn streams(first: &str) -> String {
    let stream = |name: &str, more: &str| {
        format!("[[trace.stream]]\nname = \"{name}\"\nlengths = \"azure-conv\"\nrequests = 80\nrate_per_s = 4\n{more}")
    };
    let trace = format!("{}{}", stream("first", first), stream("second", ""));
    let (head, rest) = BASE.split_once("[trace]").expect("a section");
    let (_, rest) = rest.split_once("[engine]").expect("a section");
    format!("{head}{trace}{CARD}[engine]{rest}")
}

#[test]
fn sessions_of_one_turn_are_served_beside_others_as_plain_requests_are() {
    // No engine by its name: requests of users then take no time to the queue, and nobody shares a prefix in sessions of a turn.
    let plain_engine = |text: String| text.replacen("name = \"vllm\"\nversion = \"0.19.0\"\n", "", 1);
    let plain = rows(&plain_engine(streams("")), &[]);
    let sessions = rows(&plain_engine(streams("sessions = { turns = 1 }\n")), &["engine.prefix_cache=false"]);
    for key in ["ttft_s.mean", "tpot_s.p99", "makespan_s", "requests_per_s", "stream_ttft_s_mean.second"] {
        let (a, b) = (plain[0].metrics[key], sessions[0].metrics[key]);
        assert!((a / b - 1.0).abs() < 1e-9, "{key}: {a} and {b}");
    }
    // With more turns every request is served, beside an autoscaler as well.
    let scaled = "[[fleet.group]]\nname = \"a\"\ngpu = \"h100-sxm\"\nreplicas = 3\nscaling = { target = 6, interval_s = 2, start_up_s = 2 }\n[slo]";
    let text = streams("sessions = { turns = 4 }\n");
    for text in [text.clone(), text.replacen("[slo]", scaled, 1)] {
        let row = &rows(&text, &[])[0];
        assert_eq!((row.metrics["n_requests"], row.metrics["n_refused"]), (160.0, 0.0), "{row:?}");
    }
}

#[test]
fn who_cannot_be_served_beside_others_is_named_where_it_is_said() {
    let held = "arrivals = \"held\"\nconcurrency = 4\n";
    let text = streams(held).replacen("rate_per_s = 4\narrivals", "arrivals", 1);
    let (found, runs) = words(&text, &[]);
    assert!(
        !runs && found.contains("a held number of users beside others") && found.contains("concurrency"),
        "{found}"
    );
    let plans = "[[fleet.group]]\nname = \"a\"\ngpu = \"h100-sxm\"\nreplicas = 3\nscaling = { rule = \"sla\", start_up_s = 2 }\n[slo]";
    let sessions = streams("sessions = { turns = 4 }\n").replacen("[slo]", plans, 1);
    let (found, runs) = words(&sessions, &[]);
    assert!(!runs && found.contains("sessions beside a rule of `scaling` that plans"), "{found}");
    assert!(found.contains("sessions = { turns = 4 }"), "the place is shown: {found}");
}

#[test]
fn capacity_is_asked_of_sessions_as_of_other_requests() {
    let capacity = "[capacity]\nreplicas = [1, 2]\nattainment_ratio = 0.5\n[[capacity.gpu]]\nname = \"h100-sxm\"\nusd_per_gpu_hour = 2.0\n";
    let text =
        format!("{BASE}{CARD}{capacity}").replacen("rate_per_s = 10", "rate_per_s = 2\nsessions = { turns = 4 }", 1);
    let found =
        checked(&text, &["trace.requests=80"]).scenario.expect("a good scenario").capacity().expect("a question");
    let point = &found.points[0];
    let row = &rows(&text, &["trace.requests=80", "fleet.replicas=1", "fleet.usd_per_gpu_hour=2.0"])[0];
    assert!((point.attainment_ratio - row.metrics["slo_attainment_ratio"]).abs() < 1e-12, "{point:?} {row:?}");
    let (said, _) = words(&text, &["capacity.peak_s=60"]);
    assert!(said.contains("`capacity.peak_s` changes nothing"), "{said}");
}

/// Groups of two phases with links between them.
fn split(links: &str) -> String {
    let group =
        |name: &str, role: &str| format!("[[fleet.group]]\nname = \"{name}\"\ngpu = \"h100-sxm\"\nrole = \"{role}\"\n");
    format!("{BASE}{}{}{links}", group("p", "prefill"), group("d", "decode"))
}

#[test]
fn a_link_that_no_transfer_takes_is_named() {
    let link = |from: &str, to: &str| format!("[[fleet.link]]\nfrom = \"{from}\"\nto = \"{to}\"\ngb_per_s = 0.1\n");
    for (links, expected, may_run) in [
        (link("p", "d"), "", true),
        (link("d", "p"), "the link from `d` to `p` changes nothing", true),
        (link("p", "p"), "the link from `p` to `p` changes nothing", true),
        (link("p", "d") + &link("p", "d"), "two links go from `p` to `d`", false),
    ] {
        let (found, runs) = words(&split(&links), &[]);
        assert_eq!((found.contains("S017") || !runs, runs), (!expected.is_empty(), may_run), "{links}: {found}");
        assert!(found.contains(expected), "{links}: {found}");
    }
}

#[test]
fn keys_that_nothing_heeds_are_named() {
    let base = format!("{BASE}{CARD}");
    let group = |more: &str| format!("{BASE}[[fleet.group]]\nname = \"a\"\ngpu = \"h100-sxm\"\nreplicas = 2\n{more}");
    let outages = |second: &str| {
        group(&format!(
            "[[fleet.outage]]\ngroup = \"a\"\nat_s = 5\nback_after_s = 10\n[[fleet.outage]]\ngroup = \"a\"\n{second}"
        ))
    };
    let types = "[[fleet.type]]\nprompt = 100\noutput = 10\n[[fleet.type]]\nprompt = 1000\noutput = 100\n";
    let sla = "scaling = { rule = \"sla\", ttft_s = 0.5, tpot_s = 0.04, start_up_s = 1 }\n";
    let pair = split("").replace("role = ", &format!("{sla}role = "));
    const ROUTED: [&str; 1] = ["fleet.router='plan-weights'"];
    let cases: [(&str, &[&str], &str); 20] = [
        (&base, &["trace.repeat_s=600"], "`trace.repeat_s` changes nothing"),
        (&base, &["trace.schedule=[{from_s=0,rate_per_s=5}]", "trace.repeat_s=600"], ""),
        (&base, &["trace.format='mooncake'"], "`trace.format` changes nothing"),
        (&base, &["engine.watermark_ratio=0.1"], "`engine.watermark_ratio` changes nothing"),
        (&base, &["engine.watermark_ratio=0.1", "engine.preemption='swap'"], ""),
        (&base, &["engine.watermark_ratio=0.1", "policies.run=['vllm-v1','sarathi']"], ""),
        (&pair, &[], "`scaling.ttft_s` changes nothing"),
        (&group(sla), &[], ""),
        (&group("share = 1.0\n"), &[], "`fleet.group.share` changes nothing"),
        (&group("share = 1.0\n"), &ROUTED, ""),
        (&group(types), &[], "`[[fleet.type]]` changes nothing"),
        (&group(&format!("share = [1.0, 0.5]\n{types}")), &ROUTED, ""),
        (&group("port_gb_per_s = 10\n"), &[], "`port_gb_per_s` of `a` changes nothing"),
        (&split("").replace("role = ", "port_gb_per_s = 10\nrole = "), &[], ""),
        (&outages("at_s = 8\nback_after_s = 2\n"), &[], "the outage of replica 0 of `a` at 8 s changes nothing"),
        (&outages("at_s = 16\nback_after_s = 2\n"), &[], ""),
        (&outages("at_s = 8\nreplica = 1\n"), &[], ""),
        (&base, &["model.weights={dense=\"fp8\"}"], ""),
        (&base, &["engine.weights=\"4-bit-experts\""], "a format of experts changes nothing"),
        (&base, &["model.weights={experts=\"fp8\"}"], "a format of experts changes nothing"),
    ];
    for (text, set, expected) in cases {
        let (found, runs) = words(text, set);
        assert!(runs, "{set:?}: {found}");
        assert_eq!(found.contains("S017"), !expected.is_empty(), "{set:?} of {text}: {found}");
        assert!(found.contains(expected), "{set:?}: {found}");
    }
}

#[test]
fn a_fleet_that_died_has_the_goodput_of_all_the_time_in_which_requests_came() {
    let text =
        format!("{BASE}[[fleet.group]]\nname = \"a\"\ngpu = \"h100-sxm\"\n[[fleet.outage]]\ngroup = \"a\"\nat_s = 5\n");
    let last = crate::serving_of(text.clone()).requests.list.last().expect("some").arrival - hw::Time::ZERO;
    let metrics = rows(&text, &[])[0].metrics.clone();
    let n_met = metrics["slo_attainment_ratio"] * metrics["n_requests"];
    let goodput = n_met / metrics["makespan_s"];
    // The last one is refused when it reaches the queue, milliseconds after it was sent.
    let later = metrics["makespan_s"] - last.to_seconds().get();
    assert!(metrics["n_refused"] > 200.0 && (0.0..0.05).contains(&later), "{later} s: {metrics:?}");
    assert!((metrics["goodput_requests_per_s"] - goodput).abs() < 1e-9, "{metrics:?} and {goodput}");
}

#[test]
fn a_metric_that_no_setting_has_is_told_from_one_that_there_is_not() {
    let tune = |more: &str| {
        let text = format!("{BASE}{CARD}[tune]\ntp = [1]\nmax_sequences = [64]\nmax_tokens = [2048]\n{more}");
        checked(&text, &["trace.requests=40"]).scenario.expect("a good scenario").tuned().expect("a question").unknown
    };
    let of = |more: &str| tune(more).map(|unknown| unknown.why);
    assert_eq!(of(""), None);
    assert_eq!(of("within = { foo = { max = 1 } }\n").as_deref(), Some(""));
    assert!(of("by = \"cost_usd_per_mtok\"\n").expect("no price").contains("usd_per_gpu_hour"));
    let text = format!("{BASE}{CARD}[tune]\ntp = [1]\nmax_sequences = [64]\nmax_tokens = [2048]\n");
    let job = checked(&text, &["trace.requests=40", "slo.warm_up_s=1000"]).scenario.expect("a good scenario");
    let why = job.tuned().expect("a question").unknown.expect("an empty window").why;
    assert!(why.contains("no request arrives after `slo.warm_up_s` = 1000"), "{why}");
}

#[test]
fn what_is_said_of_a_choice_its_policies_and_its_schedule_is_said_once_and_fits() {
    let base = format!("{BASE}{CARD}").replacen("\"vllm-v1\"", "\"c\"", 1);
    let best = format!(
        "{base}[[policies.best]]\nname = \"c\"\npolicy = \"vllm-v1\"\nby = \"ttft_s.mean\"\nmax_sequences = [8, 64]\n"
    );
    let rows = rows(&best, &["trace.requests=60"]);
    let facts = rows[0].planner.as_ref().expect("facts");
    // The bound holds for other cuts of prompts too, so the answer is not said to be the bound.
    assert!(facts.status == Status::Feasible && facts.bound < facts.objective, "{facts:?}");
    assert!(!notes(&rows[0]).contains("the bound is the answer"), "{}", notes(&rows[0]));
    let tune = format!("{BASE}{CARD}[tune]\ntp = [1]\npolicy = [\"vllm-v1\", \"sglang\"]\n");
    let (found, _) = words(&tune, &[]);
    assert!(found.contains("S212") && found.contains("`tune` batches as `sglang` does"), "{found}");
    let (found, runs) = words(
        &format!("{BASE}{CARD}"),
        &["trace={lengths='azure-conv',requests=10,schedule=[{from_s=5,rate_per_s=1}]}"],
    );
    assert!(!runs && found.contains("S100") && !found.contains("S013"), "{found}");
}

/// SGLang takes a share of what is free before the model is loaded. So of all that is reserved it leaves that share, however much it is.
#[test]
fn no_engine_takes_memory_that_is_reserved() {
    let text = format!("{BASE}{CARD}").replacen("\"vllm\"\nversion = \"0.19.0\"", "\"sglang\"", 1);
    let text = text.replacen("\"vllm-v1\"", "\"sglang\"", 1);
    let peak = |reserved_gib: u32| {
        let reserved = format!("cluster.reserved_gib={reserved_gib}");
        rows(&text, &[&reserved, "trace.rate_per_s=1000"])[0].metrics["peak_memory_bytes"]
    };
    let share = |few: u32, many: u32| (peak(few) - peak(many)) / (f64::from(many - few) * hw::GIB);
    let (most, least) = (share(40, 45), share(45, 50));
    assert!((0.7..0.95).contains(&most) && (most / least - 1.0).abs() < 0.01, "{most} and {least} of a byte");
}

#[test]
fn tokens_that_clients_get_at_once_save_what_handing_them_on_takes_and_nothing_else() {
    let base = format!("{BASE}{CARD}").replacen("\"vllm-v1\"", "\"a\"", 1);
    let way = |more: &str| {
        format!("{base}[[policies.variant]]\nname = \"a\"\npolicy = \"vllm-v1\"\nstream_interval = 10\n{more}")
    };
    for (more, is_idle) in [("", true), ("stream_us_per_token = 50\n", false)] {
        let (found, runs) = words(&way(more), &[]);
        assert!(runs && found.contains("S017") == is_idle, "{more}: {found}");
    }
}

/// The base on one card, beside another engine.
fn beside(engine: &str, batching: &str) -> String {
    format!("{BASE}{CARD}").replacen("name = \"vllm\"\nversion = \"0.19.0\"", engine, 1).replacen(
        "\"vllm-v1\"",
        &format!("\"{batching}\""),
        1,
    )
}

/// A key that is named changes no figure, and one that is not named does.
fn idle_as_told(text: &str, set: &[&str], key: &str, is_idle: bool) {
    let (name, _) = key.split_once('=').expect("a key with a value");
    let with = [set, &[key, "trace.requests=40"]].concat();
    let (found, runs) = words(text, &with);
    assert!(runs, "{with:?}: {found}");
    assert_eq!(found.contains(&format!("`{name}` changes nothing")), is_idle, "{with:?}: {found}");
    let metrics = |set: &[&str]| rows(text, set)[0].metrics.clone();
    assert_eq!(metrics(&with) == metrics(&[set, &["trace.requests=40"]].concat()), is_idle, "{with:?}");
}

#[test]
fn host_times_of_launches_that_graphs_leave_out_are_named() {
    const PLAIN: &str = "engine.host_us_per_layer=9000";
    const EXPERTS: &str = "engine.host_us_per_expert_layer=9000";
    const MOE: &str = "model.name=qwen3-30b-a3b";
    const VISION: [&str; 2] =
        ["model.name=qwen2.5-vl-7b", "trace.images={ per_request = 1, width = 512, height = 512 }"];
    let [new, old] = ["0.5.10", "0.5.6"]
        .map(|version| beside(&format!("name = \"sglang\"\nversion = \"{version}\"\nmax_sequences = 64"), "sglang"));
    let vllm = format!("{BASE}{CARD}");
    let cases: [(&str, &[&str], &str, bool); 10] = [
        (&new, &[], PLAIN, true),
        (&old, &[], PLAIN, false),
        (&new, &VISION, PLAIN, false),
        (&new, &[MOE], PLAIN, true),
        (&new, &[MOE], EXPERTS, true),
        (&old, &[MOE], EXPERTS, false),
        (&vllm, &[], PLAIN, false),
        (&vllm, &["engine.graph_max=8192"], PLAIN, true),
        (&vllm, &[MOE, "engine.host_us_per_expert_layer=500"], PLAIN, true),
        (&vllm, &[MOE], PLAIN, false),
    ];
    for (text, set, key, is_idle) in cases {
        idle_as_told(text, set, key, is_idle);
    }
}

#[test]
fn keys_of_played_iterations_are_named_where_times_are_given() {
    let plain = beside("max_tokens = 2048", "vllm-v1");
    const STAGE: &str = "cost.stage_ms={ a = 1e-5, b = 0.01, c = 5.0, gamma = 1e-5 }";
    for key in ["engine.host_us_per_step=5000", "engine.loop='async'", "engine.graph_max=0"] {
        idle_as_told(&plain, &[STAGE], key, true);
    }
    for key in ["cost.attention_flops_ratio=0.5", "cost.sustained_flops_ratio=0.3"] {
        idle_as_told(&plain, &[STAGE], key, true);
        idle_as_told(&plain, &[], key, false);
    }
    idle_as_told(&plain, &[], "engine.host_us_per_step=5000", false);
    idle_as_told(&plain, &[STAGE], "engine.max_sequences=2", false);
    let (found, _) = words(&plain, &[STAGE, "engine.all_reduce='fused'"]);
    assert_eq!(found.matches("`engine.all_reduce` changes nothing").count(), 1, "{found}");
    let runs = "kind = \"serving\"\n[model]\nname = \"llama-3-8b\"\n[trace]\nprompt_tokens = 1024\noutput_tokens = 128\narrivals = \"held\"\n\
                concurrency = 16\n[engine]\nframework = \"vllm\"\n[cost]\nlaw = \"published-runs\"\n[policies]\nrun = [\"vllm-v1\"]\n";
    let runs = format!("{runs}{CARD}");
    let (found, may_run) = words(&runs, &["engine.weights='fp8'"]);
    assert!(may_run && !found.contains("S017"), "{found}");
    for key in ["engine.max_sequences=8", "engine.host_us_per_step=5000", "slo.ttft_s=0.1", "fleet.router='random'"] {
        let (name, _) = key.split_once('=').expect("a key with a value");
        let (found, may_run) = words(&runs, &[key]);
        assert!(may_run && found.contains(&format!("`{name}` changes nothing")), "{key}: {found}");
        assert_eq!(rows(&runs, &[key])[0].metrics, rows(&runs, &[])[0].metrics, "{key}");
    }
    let way = runs.replacen("run = [\"vllm-v1\"]", "run = [\"mine\"]", 1)
        + "[[policies.variant]]\nname = \"mine\"\nframework = \"vllm\"\nmax_sequences = 8\nrouter = \"random\"\ntp = 1\n";
    let (found, may_run) = words(&way, &[]);
    assert!(may_run && found.matches("of `mine` changes nothing").count() == 2, "{found}");
    for key in ["max_sequences", "router"] {
        assert!(found.contains(&format!("`{key}` of `mine` changes nothing")), "{found}");
    }
}

#[test]
fn what_cannot_differ_by_other_keys_is_named() {
    let base = format!("{BASE}{CARD}");
    const CHUNKS: [&str; 2] = ["engine.chunk_sizes='equal-time'", "engine.chunk_tokens=512"];
    const ASKED: &str = "trace.adapters={ count = 8 }";
    let looks =
        |of: &str| split("").replacen(&format!("role = \"{of}\""), &format!("role = \"{of}\"\nrecv_interval = 20"), 1);
    let adapters =
        |host_slots: u32| format!("engine.adapters={{ slots = 2, host_slots = {host_slots}, disk_gb_per_s = 1 }}");
    let [some, all] = [7, 8].map(adapters);
    // Routed experts alone; with first layers that are dense; with an expert that every token visits.
    const DENSE: &str = "engine.weights={ dense = 'fp8' }";
    const MODELS: [&str; 3] =
        ["model.name=qwen3-30b-a3b", "model.name=deepseek-v2-lite", "model.name=qwen1.5-moe-a2.7b"];
    let way = base.replacen("\"vllm-v1\"", "\"a\"", 1)
        + "[[policies.variant]]\nname = \"a\"\npolicy = \"vllm-v1\"\nweights = { dense = \"fp8\" }\n";
    const LONG: &str = "trace={ prompt_tokens = 4000, output_tokens = 20, requests = 8, rate_per_s = 1 }";
    let sparse = |above: u32| {
        format!(
            "engine.prefill_attention={{ kernel = 'minference', vertical = 100, slash = 600, above_tokens = {above} }}"
        )
    };
    let [above, below] = [4020, 3000].map(sparse);
    let cases: [(&str, &[&str], &str); 15] = [
        (&base, &[MODELS[0], DENSE], "`weights.dense` changes nothing"),
        (&base, &[MODELS[1], DENSE], ""),
        (&base, &[MODELS[2], DENSE], ""),
        (&way, &[MODELS[0]], "`weights.dense` changes nothing"),
        (&way, &[], ""),
        (&base, &[LONG, &above], "`prefill_attention` changes nothing"),
        (&base, &[LONG, &below], ""),
        (&base, &CHUNKS, ""),
        (&base, &[CHUNKS[0], CHUNKS[1], "engine.chunk_tokens_min=511"], ""),
        (
            &base,
            &[CHUNKS[0], CHUNKS[1], "engine.chunk_tokens_min=512"],
            "`chunk_sizes = \"equal-time\"` changes nothing",
        ),
        (&base, &[CHUNKS[0], "engine.chunk_tokens_min=9000"], "`chunk_sizes = \"equal-time\"` changes nothing"),
        (&looks("prefill"), &[], "`recv_interval` of `p` changes nothing"),
        (&looks("decode"), &[], ""),
        (&base, &[ASKED, &some], ""),
        (&base, &[ASKED, &all], "`disk_gb_per_s` changes nothing"),
    ];
    for (text, set, expected) in cases {
        let (found, runs) = words(text, set);
        assert!(runs, "{set:?}: {found}");
        assert_eq!(found.contains("S017"), !expected.is_empty(), "{set:?}: {found}");
        assert!(found.contains(expected), "{set:?}: {found}");
    }
}
