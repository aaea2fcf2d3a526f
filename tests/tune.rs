//! `skrull-sim tune`: few settings are served, and the answer is that of serving all of them.

use std::process::Command;

use reports::tuned::Tuned;
use scenario::{self, Overrides};
use skrull_sim::kinds;

/// A small space over `serving/tune`: 48 settings and 300 requests.
const SPACE: [&str; 6] = [
    "trace.requests=300",
    "tune.replicas=[1,2,3]",
    "tune.tp=[1,2]",
    "tune.weights=['bf16','fp8']",
    "tune.max_sequences=[16,128]",
    "tune.max_tokens=[1024,8192]",
];

fn tuned(set: &[&str]) -> Tuned {
    tuned_of("serving/tune", &[&SPACE[..], set].concat())
}

fn tuned_of(name: &str, set: &[&str]) -> Tuned {
    let checked = super::checked(name, set);
    checked.scenario.expect("a good scenario").tuned().expect("it has `[tune]`")
}

/// The best figure of `serving/tune` when every setting is served.
fn exhaustive(by: &str, within: &str, load: &str) -> Option<f64> {
    exhaustive_of("serving/tune", &SPACE, (by, within), &[load])
}

/// The best figure when every setting of a space is served, as `[[policies.best]]` does it.
fn exhaustive_of(name: &str, space: &[&str], (by, within): (&str, &str), set: &[&str]) -> Option<f64> {
    let (mut source, folder) = scenario::find(name).expect("shipped");
    let start = source.text.find("\n[tune]").expect("a section");
    let lists = space[1..].iter().map(|line| line.trim_start_matches("tune.")).collect::<Vec<_>>().join("\n");
    let best =
        format!("\n[[policies.best]]\nname = 'all'\npolicy = 'vllm-v1'\nby = '{by}'\nwithin = {within}\n{lists}\n");
    source.text.replace_range(start.., &best);
    let set = [&space[..1], set, &["policies.run=['all']"]].concat().into_iter().map(str::to_owned).collect();
    let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
    let result = checked.scenario.expect("a good scenario").run(&|_| {});
    result.results[0].metrics.get(by).copied()
}

/// Figures of the first policy of `serving/tune`, two GPUs a replica and 300 requests, with another fleet and other policies.
fn figures(fleet: &str, policies: &str) -> std::collections::BTreeMap<String, f64> {
    let (mut source, folder) = scenario::find("serving/tune").expect("shipped");
    let part = |text: &str, name: &str| text.find(name).unwrap_or_else(|| panic!("{name} in {text}"));
    source.text.replace_range(part(&source.text, "\n[policies]").., policies);
    let (from, to) = (part(&source.text, "\n[fleet]"), part(&source.text, "\n[slo]"));
    source.text.replace_range(from..to, fleet);
    let set = vec!["trace.requests=300".to_owned()];
    let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
    let result = checked.scenario.expect("a good scenario").run(&|_| {});
    result.results[0].metrics.clone()
}

#[test]
fn replicas_that_share_prompts_and_answers_are_the_groups_that_one_would_write() {
    let variant = "\n[policies]\nrun = ['split']\n[[policies.variant]]\nname = 'split'\npolicy = 'vllm-v1'\n";
    let own = format!("{variant}replicas = 4\nprefill_replicas = 1\n");
    let split = figures("\n[fleet]\nusd_per_gpu_hour = 2.25\n", &own);
    let group = |role: &str, n: u32| format!("\n[[fleet.group]]\nname = '{role}'\nrole = '{role}'\nreplicas = {n}\n");
    let groups = format!("\n[fleet]\nusd_per_gpu_hour = 2.25\n{}{}", group("prefill", 1), group("decode", 3));
    let written = figures(&groups, variant);
    for key in ["ttft_s.mean", "tpot_s.p99", "cost_usd_per_mtok"] {
        assert!((split[key] / written[key] - 1.0).abs() < 1e-9, "{key}: {} against {}", split[key], written[key]);
    }
    let whole = figures("\n[fleet]\nusd_per_gpu_hour = 2.25\n", &format!("{variant}replicas = 4\n"));
    assert!((whole["tpot_s.p99"] / split["tpot_s.p99"] - 1.0).abs() > 0.01, "{whole:?} {split:?}");
}

/// A way's own number of held requests is that of the trace, and its degree of prompts is that of a group which one would write.
#[test]
fn a_way_holds_as_many_requests_and_has_the_degrees_that_it_says() {
    let figures = |set: &[&str]| {
        let small = ["trace.requests=60", "policies.run=['apart']"];
        let checked = super::checked("serving/tune-load", &[&small[..], set].concat());
        checked.scenario.expect("a good scenario").run(&|_| {}).results[0].metrics.clone()
    };
    let own = figures(&["policies.variant.apart.concurrency=8"]);
    assert_eq!(own, figures(&["trace.concurrency=8"]));
    assert_ne!(own, figures(&[]));
    let group =
        |role: &str, n: u32, tp: u32| format!("{{ name = '{role}', role = '{role}', replicas = {n}, tp = {tp} }}");
    let groups = format!("fleet.group=[{}, {}]", group("prefill", 4, 1), group("decode", 1, 4));
    let written = ["policies.variant=[{ name = 'apart', policy = 'vllm-v1' }]", groups.as_str()];
    let [way, groups] = [figures(&[]), figures(&written)];
    for key in ["ttft_s.mean", "tpot_s.p99", "output_tokens_per_s_per_gpu"] {
        assert!((way[key] / groups[key] - 1.0).abs() < 1e-9, "{key}: {} against {}", way[key], groups[key]);
    }
}

#[test]
fn a_search_looks_at_roles_as_at_any_other_key() {
    let small = ["tune.replicas=[2,4]", "tune.tp=[2]", "tune.max_sequences=[128]", "tune.max_tokens=[8192]"];
    let more = ["tune.prefill_replicas=[0,1,2]", "trace.rate_per_s=6", "tune.by='tpot_s.p99'", "tune.within={}"];
    let found = tuned(&[&small[..], &more[..]].concat());
    // Two formats, two numbers of replicas, three of prompts; two of two leaves nobody to decode.
    assert_eq!((found.counts.settings, found.counts.unfit), (12, 2), "{:?}", found.counts);
    // Who decodes alone waits for no prompt.
    let best = found.answer().expect("no limits");
    assert_ne!(best.values["prefill_replicas"], "0", "{best:?}");
}

/// A small space over `serving/tune-load`: 42 settings and 60 requests.
const LOADS: [&str; 7] = [
    "trace.requests=60",
    "tune.tp=[1,2]",
    "tune.prefill_replicas=[0,1,2]",
    "tune.prefill_tp=[1,2,4]",
    "tune.concurrency=[1,8,40]",
    "tune.max_sequences=[256]",
    "tune.max_tokens=[8192]",
];

#[test]
fn a_search_over_roles_and_loads_gives_what_serving_everything_gives() {
    for (by, within) in [
        ("output_tokens_per_s_per_gpu", "{ 'tpot_s.p99' = { max = 0.02 } }"),
        ("makespan_s", "{ 'ttft_s.p99' = { max = 3.0 } }"),
        ("ttft_s.p99", "{ output_tokens_per_s_per_gpu = { min = 100 } }"),
    ] {
        let asked = [format!("tune.by='{by}'"), format!("tune.within={within}")];
        let found = tuned_of("serving/tune-load", &[&LOADS[..], &asked.each_ref().map(String::as_str)].concat());
        let best = found.answer().and_then(|answer| answer.figure).expect("some setting keeps the limits");
        let truth =
            exhaustive_of("serving/tune-load", &LOADS, (by, within), &[]).expect("some setting keeps the limits");
        assert!((best / truth - 1.0).abs() <= 0.01 + 1e-9, "{by}: {best} against {truth}");
        let counts = found.counts;
        assert_eq!(counts.settings, 42);
        assert!(counts.outdone + counts.late > counts.broke, "{by}: {counts:?}");
    }
}

#[test]
fn a_search_gives_what_serving_everything_gives() {
    let within = "{ slo_attainment_ratio = { min = 0.95 } }";
    for (by, load) in [
        ("cost_usd_per_mtok", "trace.rate_per_s=8"),
        ("output_tokens_per_s_per_gpu", "trace.rate_per_s=20"),
        ("goodput_requests_per_s", "trace.rate_per_s=3"),
        ("ttft_s.p99", "trace.rate_per_s=6"),
    ] {
        let found = tuned(&[load, &format!("tune.by='{by}'"), &format!("tune.within={within}")]);
        let best = found.answer().and_then(|answer| answer.figure).expect("some setting keeps the limits");
        let truth = exhaustive(by, within, load).expect("some setting keeps the limits");
        // The search ends within one per cent, and says so.
        assert!((best / truth - 1.0).abs() <= 0.01 + 1e-9, "{by}: {best} against {truth}");
        let bound = found.bound.expect("a bound");
        let is_least = !by.contains("per_s");
        assert!(if is_least { bound <= truth * (1.0 + 1e-9) } else { bound >= truth * (1.0 - 1e-9) }, "{by}: {bound}");
        let counts = found.counts;
        assert_eq!(counts.settings, 48);
        assert_eq!(counts.unfit + counts.late + counts.outdone + counts.broke + counts.within, 48, "{counts:?}");
        // Settings that were looked at again for `changes` are served, and outdone by then.
        assert!(found.settings.len() >= counts.broke + counts.within);
        assert!(
            found.changes.iter().all(|change| change.figure.is_some() == change.why.is_empty()),
            "a figure or a reason"
        );
    }
}

/// Drafts and prefix caches over 200 requests a second apart, whose prompts begin in four ways.
fn over_prefixes(test: &str, set: &[&str]) -> Tuned {
    let folder = std::env::temp_dir().join(format!("skrull-sim-tune-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let row = |at: usize| {
        let (prompt, output) = (600 + at * 37 % 400, 20 + at * 53 % 200);
        let at_ms = at * 1000;
        format!(
            "{{\"timestamp\": {at_ms}, \"input_length\": {prompt}, \"output_length\": {output}, \"hash_ids\": [{}, {}]}}\n",
            at % 4,
            100 + at
        )
    };
    std::fs::write(folder.join("t.jsonl"), (0..200).map(row).collect::<String>()).expect("written");
    let text = "kind = 'serving'\n[model]\nname = 'qwen3-32b'\n[cluster]\ngpu = 'h100-sxm'\nnodes = 1\n[trace]\nfile = 't.jsonl'\n\
         format = 'mooncake'\n[engine]\nname = 'vllm'\nspeculation = { draft_tokens = 3, acceptance = 0.7, draft_model = 'qwen3-0.6b' }\n\
         [fleet]\nusd_per_gpu_hour = 2\n[policies]\nrun = ['vllm-v1']\n[tune]\nreplicas = [1, 2]\ntp = [2]\nmax_sequences = [16, 48]\n\
         max_tokens = [1024, 8192]\nspeculation = [0, 2, 4]\nprefix_cache = [true, false]\nwithin = {}\n";
    let source = input::diagnostic::Source { path: folder.join("s.toml").display().to_string(), text: text.to_owned() };
    let set = set.iter().map(|text| (*text).to_owned()).collect();
    let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
    let found = format!("{:?}", checked.findings);
    let tuned = checked.scenario.unwrap_or_else(|| panic!("{found}")).tuned().expect("it has `[tune]`");
    std::fs::remove_dir_all(folder).ok();
    tuned
}

#[test]
fn drafts_and_prefix_caches_are_searched_and_no_listed_setting_is_better() {
    let mut n_drafting = 0;
    for by in ["cost_usd_per_mtok", "tpot_s.mean", "ttft_s.p99", "energy_j_per_output_token"] {
        for load in ["trace.speed=1", "trace.speed=40"] {
            let by = format!("tune.by='{by}'");
            let of = |more: &[&str]| over_prefixes("best", &[&[load, by.as_str()][..], more].concat());
            let found = of(&[]);
            assert_eq!(found.counts.settings, 48, "{:?}", found.counts);
            let best = found.answer().expect("no limits");
            let (figure, bound) = (best.figure.expect("served"), found.bound.expect("bounded"));
            assert!(bound <= figure * (1.0 + 1e-9), "{by}, {load}: {bound} and {figure}");
            n_drafting += usize::from(best.values["speculation"] != "0");
            // Every setting by itself: eight, so that all are served at once.
            for speculation in ["0", "2", "4"] {
                for keeps in ["true", "false"] {
                    let part = [format!("tune.speculation=[{speculation}]"), format!("tune.prefix_cache=[{keeps}]")];
                    let others = of(&[&part[0], &part[1]]);
                    assert_eq!((others.counts.settings, others.counts.within), (8, 8), "{:?}", others.counts);
                    for other in others.settings.iter().filter_map(|setting| setting.figure) {
                        let words = format!("{by}, {load}, {part:?}: {figure}, bound {bound}, and {other}");
                        assert!(figure <= other * 1.01 + 1e-9 && bound <= other * (1.0 + 1e-9), "{words}");
                    }
                }
            }
        }
    }
    assert!(n_drafting > 0, "drafts help where few decode");
}

#[test]
fn settings_with_drafts_are_left_out_by_their_bounds() {
    let found = over_prefixes("left", &["trace.speed=40", "tune.by='cost_usd_per_mtok'"]);
    assert!(found.counts.outdone >= 8, "{:?}", found.counts);
}

#[test]
fn a_number_of_drafts_needs_who_drafts_and_a_list_elsewhere_is_refused() {
    for (set, expected) in [
        (vec!["tune.speculation=[0,2]"], "nothing says who drafts"),
        (
            vec![
                "engine.speculation={draft_tokens=3,acceptance=0.7,draft_branches=2,verified_tokens=4}",
                "tune.speculation=[2]",
            ],
            "another depth is another tree",
        ),
        (vec!["tune.recv_interval=[1,2]"], "`tune.recv_interval` is a list"),
    ] {
        let checked = super::checked("serving/tune", &set);
        let text = input::diagnostic::render(&checked.source, &checked.findings);
        assert!(checked.scenario.is_none() && text.contains(expected), "{expected}:\n{text}");
    }
}

#[test]
fn limits_at_the_slow_end_of_the_costs_hold_there() {
    let within = "tune.within={ slo_attainment_ratio = { min = 0.95 } }";
    // The curves of this card are narrow, so a load is sought at which the slow end decides.
    let mut n_changed = 0;
    for load in ["trace.rate_per_s=8", "trace.rate_per_s=20"] {
        let set = [load, within, "tune.by='cost_usd_per_mtok'"];
        let expected = tuned(&set);
        let slow = tuned(&[&set[..], &["tune.limits_at='slow'"]].concat());
        let figure = |found: &Tuned| found.answer().and_then(|answer| answer.figure).expect("some setting holds");
        assert_eq!(slow.broken_when_slow, "", "{load}");
        // What holds at both ends is no cheaper than what holds as expected, but for the gap of the search.
        assert!(figure(&slow) >= figure(&expected) * (1.0 - 0.01), "{load}");
        assert!(slow.notes.iter().any(|note| note.contains("slow end")), "{:?}", slow.notes);
        n_changed += usize::from(!expected.broken_when_slow.is_empty());
    }
    assert!(n_changed > 0, "at one load the answer as expected breaks a limit at the slow end");
}

#[test]
fn a_load_that_no_setting_takes_is_known_without_serving_all() {
    let load = ["trace.requests=600", "trace.rate_per_s=700"];
    let found = tuned(&[&load[..], &["tune.within={ slo_attainment_ratio = { min = 0.99 } }"]].concat());
    assert_eq!(found.answer(), None);
    assert!(found.counts.late > 40, "{:?}", found.counts);
    assert_eq!(found.lead()[0], "No setting keeps the limits.");
}

#[test]
fn lists_that_are_left_out_are_usual_ones_and_a_scenario_without_any_is_refused() {
    let out = std::env::temp_dir().join(format!("skrull-sim-tune-{}", std::process::id()));
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skrull-sim"));
        command.arg("tune").args(args).arg("--out").arg(&out).output().expect("the program runs")
    };
    let refused = run(&["quickstart"]);
    assert_eq!(refused.status.code(), Some(2));
    let done = run(&["serving/formats", "--set", "trace.requests=50", "--set", "tune.tp=[2,4]"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let json = std::fs::read_to_string(out.join("tuned.json")).expect("written");
    let found: Tuned = serde_json::from_str(&json).expect("of the schema");
    // Two degrees, six numbers of sequences, five of tokens.
    assert_eq!(found.counts.settings, 60);
    assert_eq!(found.by, "output_tokens_per_s_per_gpu");
    assert!(found.counts.unfit >= 30, "the fleet has two GPUs: {:?}", found.counts);
    std::fs::remove_dir_all(out).ok();
}

/// Many requests of one token and few of two, all at one moment, with a frontend that takes a millisecond a token: first tokens wait there until the
/// second ones are nearly done.
fn at_the_frontend(tune: &str) -> Tuned {
    // A folder for every caller: tests run side by side.
    let name = format!("skrull-sim-tune-{}-{}", std::process::id(), tune.len());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let rows = |n: usize, at: &str, lengths: &str| format!("2023-11-16 18:15:46.{at},{lengths}\n").repeat(n);
    let table = format!(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n{}{}",
        rows(100, "680590", "10,1"),
        rows(3, "680591", "10,2")
    );
    std::fs::write(folder.join("tr.csv"), table).expect("written");
    let text = format!(
        "kind = 'serving'\n[model]\nname = 'llama-3-8b'\n[cluster]\ngpu = 'h100-sxm'\nnodes = 1\ngpus_per_node = 1\n[trace]\n\
         file = 'tr.csv'\nformat = 'azure'\n[policies]\nrun = ['vllm-v1']\n[tune]\nmax_sequences = [128]\nmax_tokens = [2048]\n\
         stream_us_per_token = 1000\n{tune}\n"
    );
    let source = input::diagnostic::Source { path: folder.join("s.toml").display().to_string(), text };
    let checked = kinds::check(source, &folder, &Overrides::default());
    let found = checked.scenario.expect("a good scenario").tuned().expect("it has `[tune]`");
    std::fs::remove_dir_all(folder).ok();
    found
}

#[test]
fn nothing_bounds_time_per_token_where_the_frontend_takes_time() {
    let found = at_the_frontend("by = 'tpot_s.mean'");
    let sought = found.answer().and_then(|answer| answer.figure).expect("one setting, no limits");
    // A passage through the model takes some 6 ms: two tokens are closer together at the client.
    assert!(sought < 0.004, "{sought}");
    let within = at_the_frontend("by = 'makespan_s'\nwithin = { 'tpot_s.mean' = { max = 0.004 } }");
    assert_eq!((within.counts.late, within.counts.within), (0, 1), "{:?}", within.counts);
    // A limit that does break it is still found by serving.
    let broken =
        at_the_frontend(&format!("by = 'makespan_s'\nwithin = {{ 'tpot_s.mean' = {{ max = {} }} }}", sought * 0.9));
    assert_eq!((broken.counts.late, broken.counts.broke), (0, 1), "{:?}", broken.counts);
}

#[test]
fn the_interval_of_the_answer_has_its_figure() {
    for warm_up in ["slo.warm_up_s=0", "slo.warm_up_s=2", "slo.warm_up_s=10"] {
        for by in ["cost_usd_per_mtok", "tpot_s.p99", "ttft_s.p50"] {
            let found = tuned(&[warm_up, &format!("tune.by='{by}'"), "tune.within={}"]);
            let figure = found.answer().and_then(|answer| answer.figure).expect("no limits");
            let [low, high] = found.interval.expect("served at both ends");
            assert!(low <= figure && figure <= high, "{warm_up}, {by}: {figure} in {low} to {high}");
        }
    }
}

#[test]
fn a_value_that_is_listed_twice_is_one_setting() {
    let found = tuned(&["tune.tp=[1,1,2]", "tune.weights=['fp8','fp8']"]);
    // Three numbers of replicas, two degrees, one format, two of sequences, two of tokens.
    assert_eq!(found.counts.settings, 3 * 2 * 2 * 2, "{:?}", found.counts);
}

#[test]
fn what_is_sought_is_a_whole_metric_and_the_choice_has_no_name() {
    for (set, expected) in [
        ("tune.by='ttft_s'", "did you mean `ttft_s.p50`?"),
        ("tune.by='ttft_s.p95'", "did you mean `ttft_s.p90`?"),
        ("tune.by='makespan_s.mean'", "nothing is chosen by `makespan_s.mean`"),
        ("tune.name='mine'", "unknown key `tune.name`"),
    ] {
        let (source, folder) = scenario::find("serving/tune").expect("shipped");
        let set = vec![set.to_owned()];
        let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
        let text = input::diagnostic::render(&checked.source, &checked.findings);
        assert!(checked.scenario.is_none() && text.contains(expected), "{expected}:\n{text}");
    }
}

#[test]
fn a_policy_that_holds_no_request_hinders_no_search_and_is_refused_alone() {
    // Weights leave no room on one card, or room for a few hundred tokens.
    let short = ["cluster.gpu='l40s'", "engine.memory_ratio=0.808"];
    for (short, why) in short.into_iter().zip(["`tp = 2` would fit", "longer than a replica"]) {
        let (source, folder) = scenario::find("serving/tune").expect("shipped");
        let set = [short, "tune.weights=['bf16']", "trace.requests=50", "engine.tp=1", "tune.tp=[1,2,4]"];
        let set = set.map(str::to_owned).to_vec();
        let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
        let job = checked.scenario.unwrap_or_else(|| panic!("{short}: it is refused"));
        let found = job.tuned().expect("`[tune]`");
        assert!(found.counts.settings > 0 && found.counts.unfit < found.counts.settings, "{short}: {:?}", found.counts);
        let ran = job.run(&|_| {});
        assert!(
            ran.results.iter().all(|row| !row.status.is_ok() && row.why.contains(why)),
            "{short}: {:?}",
            ran.results
        );
        assert!(job.plan(&ran.results[0].policy).is_some_and(|planned| planned.is_err()), "{short}");
    }
}

#[test]
fn a_limit_from_below_is_no_limit_of_time_and_a_metric_that_nothing_has_ends_the_search() {
    let found = tuned(&["tune.within={ 'ttft_s.p99' = { min = 0.01 } }"]);
    assert!(found.answer().is_some() && found.unknown.is_none());
    let found = tuned(&["tune.within={ 'ttft_s.p9' = { max = 0.1 } }"]);
    let unknown = found.unknown.expect("no result has it");
    assert!(unknown.metric == "ttft_s.p9" && unknown.known.contains(&"ttft_s.p99".to_owned()), "{unknown:?}");
}

#[test]
fn a_time_per_further_token_of_requests_with_one_token_is_known_and_missing() {
    let (mut source, folder) = scenario::find("serving/tune").expect("shipped");
    source.text = source.text.replace("lengths = \"azure-conv\"", "prompt_tokens = 100\noutput_tokens = 1");
    let set = SPACE.iter().chain(&["tune.within={ 'tpot_s.p99' = { max = 0.1 } }"]).map(|text| (*text).to_owned());
    let checked = kinds::check(source, &folder, &Overrides { set: set.collect(), ..Overrides::default() });
    let found = checked.scenario.expect("a good scenario").tuned().expect("it has `[tune]`");
    let unknown = found.unknown.expect("no request has it");
    assert!(unknown.metric == "tpot_s.p99" && unknown.why.contains("more than one output token"), "{unknown:?}");
}

const PHASES: &str = r#"
kind = "serving"
seed = 0
[model]
name = "llama-3-8b"
[trace]
prompt_tokens = 2000
output_tokens = 200
arrivals = "poisson"
rate_per_s = 6.0
requests = 100
[engine]
name = "vllm"
max_tokens = 3000
[[fleet.group]]
name = "read"
gpu = "h100-sxm"
replicas = 2
role = "prefill"
tp = 1
[[fleet.group]]
name = "write"
gpu = "a100-sxm-80g"
replicas = 1
role = "decode"
tp = 4
[policies]
run = ["vllm-v1"]
[tune]
by = "tpot_s.p99"
"#;

/// The answer to a text, and the figure of its own policy.
fn of_text(text: &str) -> (Tuned, f64) {
    let checked = super::written(text.to_owned(), &[]);
    let found = format!("{:?}", checked.findings);
    let scenario = checked.scenario.unwrap_or_else(|| panic!("{found}"));
    let own = scenario.run(&|_| {}).results[0].metrics["tpot_s.p99"];
    (scenario.tuned().expect("it has `[tune]`"), own)
}

/// Decoding on one GPU in the place of four would be another fleet. Nothing bounds such fleets, so the own setting is served.
#[test]
fn groups_keep_their_degrees_and_the_own_setting_is_served() {
    let (found, own) = of_text(PHASES);
    assert!(found.settings.iter().all(|setting| setting.n_gpus == 6 && !setting.values.contains_key("tp")));
    // Six numbers of sequences times five of tokens, and what the file has.
    assert_eq!(found.counts.settings, 31);
    let of_file = found.settings.iter().find(|setting| setting.values["max_tokens"] == "3000").expect("the own one");
    // Both cards take another number of sequences by themselves.
    assert_eq!((of_file.values["max_sequences"].as_str(), of_file.figure), ("own", Some(own)));
    assert!(found.answer().and_then(|best| best.figure).expect("no limits") <= own);
    // A list that is written holds for all groups.
    let (found, _) = of_text(&format!("{PHASES}tp = [1]\nmax_tokens = [2048]\nmax_sequences = [64]\n"));
    assert_eq!(found.settings[0].values["tp"], "1");
}

/// Equal replicas have numbers for all three keys; what is in the usual lists is not listed twice.
#[test]
fn what_the_engine_has_stands_in_order_beside_usual_numbers() {
    let text = PHASES.split("[[fleet.group]]").next().expect("the sections before").to_owned();
    let rest =
        "[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\n[policies]\nrun = [\"vllm-v1\"]\n[tune]\nby = \"tpot_s.p99\"\n";
    let (found, own) = of_text(&format!("{text}{rest}max_sequences = [64]\nwithin = {{}}\n"));
    // tp 1, 2, 4 and 8 times five numbers of tokens, and one GPU with 3,000.
    assert_eq!(found.counts.settings, 21);
    assert!(found.answer().and_then(|best| best.figure).expect("no limits") <= own);
    let text = text.replace("max_tokens = 3000", "max_tokens = 2048");
    assert_eq!(of_text(&format!("{text}{rest}max_sequences = [64]\nwithin = {{}}\n")).0.counts.settings, 20);
}
