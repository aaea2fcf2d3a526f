//! Serving scenarios through the shell: the shipped one, its figures, and messages about traces and memory.

use input::diagnostic::{self, Source};
use scenario::{self, Overrides};
use skrull_sim::kinds;

fn checked(set: &[&str]) -> kinds::Checked {
    super::checked("serving/azure-conv", set)
}

fn messages(set: &[&str]) -> String {
    let checked = checked(set);
    assert!(checked.scenario.is_none(), "{set:?} was accepted");
    diagnostic::render(&checked.source, &checked.findings)
}

/// Whoever reads such a message knows which key to change.
#[test]
fn limits_that_leave_no_room_are_named() {
    let one = [
        "policies.run=['vllm-v1']",
        "policies.baseline='vllm-v1'",
        "cluster.gpu='h100-sxm'",
        "model.name='llama-3-8b'",
    ];
    let found = |set: &[&str]| {
        let checked = checked(&[&one, set].concat());
        diagnostic::render(&checked.source, &checked.findings)
    };
    for (set, words) in [
        (&["engine.kv_blocks=20"][..], "in `kv_blocks` = 20"),
        (&["engine.kv_blocks=20"], "all would need more `kv_blocks`"),
        (&["engine.max_context=64"], "all would need a larger `engine.max_context`"),
    ] {
        let found = found(set);
        assert!(found.contains("S097") && found.contains(words), "{set:?}: {found}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let scenario = checked(&["trace.requests=2000"]).scenario.expect("a good scenario");
    let bytes = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let mut result = pool.install(|| scenario.run(&|_| {}));
        result.results.iter_mut().for_each(|row| row.measured = reports::Measured::default());
        reports::json::render(&result).expect("finite figures")
    };
    assert_eq!(bytes(1), bytes(4));
    assert!(bytes(1).contains("\"ttft_s\": {"), "objects as the contract has them");
}

#[test]
fn more_replicas_wait_less_and_cost_more() {
    let figures = |set: &[&str]| {
        let scenario = checked(set).scenario.expect("a good scenario");
        scenario.run(&|_| {}).results[0].metrics.clone()
    };
    let base = ["cluster.gpus_per_node=4", "fleet.usd_per_gpu_hour=2.0", "trace.requests=4000"];
    let one = figures(&[&base[..], &["fleet.replicas=1"]].concat());
    let four = figures(&[&base[..], &["fleet.replicas=4"]].concat());
    assert!(four["ttft_s.mean"] < one["ttft_s.mean"] && four["tpot_s.mean"] < one["tpot_s.mean"]);
    assert_eq!((one["cost_usd_per_hour"], four["cost_usd_per_hour"]), (2.0, 8.0));
}

#[test]
fn a_group_looks_for_requests_as_often_as_it_says() {
    // Where the decode replica looks for requests after thirty iterations only, prompts wait for their blocks.
    let waits = |of_engine: u32, of_group: &str| {
        let text = format!(
            "kind = \"serving\"\n[model]\nname = \"llama-3-8b\"\n[trace]\nprompt_tokens = 500\noutput_tokens = 200\nrequests = 200\n\
             rate_per_s = 8.0\n[engine]\nrecv_interval = {of_engine}\n[[fleet.group]]\nname = \"prefill\"\ngpu = \"h100-sxm\"\n\
             role = \"prefill\"\n[[fleet.group]]\nname = \"decode\"\ngpu = \"h100-sxm\"\nrole = \"decode\"\n{of_group}\n\
             [[fleet.link]]\nfrom = \"prefill\"\nto = \"decode\"\nlatency_us = 10\n[policies]\nrun = [\"vllm-v1\"]\n"
        );
        let checked = super::written(text, &[]);
        assert!(checked.scenario.is_some(), "{}", diagnostic::render(&checked.source, &checked.findings));
        let result = checked.scenario.expect("a good scenario").run(&|_| {});
        result.results[0].metrics["transfer_wait_s"]
    };
    let [often, seldom] = [1, 30].map(|looks| waits(1, &format!("recv_interval = {looks}")));
    assert!(seldom > 5.0 * often, "{often} s and {seldom} s");
    // What a group says comes before what the engine says.
    assert_eq!([waits(30, "recv_interval = 1"), waits(30, "")], [often, seldom]);
}

#[test]
fn prompts_wait_for_ranks_that_were_drawn_where_a_scenario_or_its_engine_says_so() {
    let ttft_s = |engine: &str| {
        let text = format!(
            "kind = \"serving\"\n[model]\nname = \"qwen3-30b-a3b\"\n[trace]\nprompt_tokens = 2000\noutput_tokens = 20\nrequests = 200\n\
             rate_per_s = 40.0\n[engine]\ntp = 1\nep = 4\n{engine}[[fleet.group]]\nname = \"prefill\"\ngpu = \"h100-sxm\"\n\
             role = \"prefill\"\n[[fleet.group]]\nname = \"decode\"\ngpu = \"h100-sxm\"\nrole = \"decode\"\n[policies]\n\
             run = [\"sglang\"]\n"
        );
        let checked = super::written(text, &[]);
        assert!(checked.scenario.is_some(), "{}", diagnostic::render(&checked.source, &checked.findings));
        let result = checked.scenario.expect("a good scenario").run(&|_| {});
        result.results[0].metrics["ttft_s.mean"]
    };
    let [even, drawn] = ["even", "drawn"].map(|rank| ttft_s(&format!("prompt_rank = \"{rank}\"\n")));
    assert!(drawn > 1.1 * even, "{even} s and {drawn} s");
    assert_eq!(ttft_s(""), even, "without an engine's name");
    let [own, otherwise] = ["", "prompt_rank = \"even\"\n"].map(|key| ttft_s(&format!("name = \"sglang\"\n{key}")));
    assert!(own > 1.1 * otherwise, "{otherwise} s and {own} s");
}

#[test]
fn a_fleet_whose_clock_ends_is_infeasible_and_says_how_many_are_left() {
    // Iterations of a second, one sequence at a time, a thousand output tokens: 208.5 days are 18,000 requests.
    let row = |requests: &str| {
        let slow = ["engine.host_us_per_step=1000000.0", "engine.max_sequences=1", "engine.loop=serial"];
        let load = ["trace.prompt_tokens=10", "trace.output_tokens=1000", "trace.arrivals=together", requests];
        let set = [&slow[..], &load[..]].concat();
        let set = set.iter().map(|text| (*text).to_owned()).collect();
        let text = "kind = \"serving\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 1\n[policies]\nrun = [\"sarathi\"]\n";
        let source = diagnostic::Source { path: "clock.toml".to_owned(), text: text.to_owned() };
        let checked = kinds::check(source, std::path::Path::new(""), &Overrides { set, ..Overrides::default() });
        assert!(checked.scenario.is_some(), "{}", diagnostic::render(&checked.source, &checked.findings));
        checked.scenario.expect("checked above").run(&|_| {}).results.swap_remove(0)
    };
    let late = row("trace.requests=20000");
    assert!(late.status == reports::Ended::Infeasible, "{:?}: {}", late.status, late.why);
    assert!(
        late.why.contains("requests are not served within 208 days") && late.why.contains("`trace.requests`"),
        "{}",
        late.why
    );
    assert!(row("trace.requests=1000").status.is_ok());
}

#[test]
fn what_is_wrong_is_named_with_the_nearest_right_name() {
    for (set, expected) in [
        ("engine.max_sequnces=3", "did you mean `max_sequences`?"),
        ("engine.tensor_parallel_size=2", "here it is `tp`"),
        ("trace.max_num_seqs=3", "here it is `engine.max_sequences`"),
        ("pool=3", "here it is `fleet`"),
        ("model.name=Qwen/Qwen3-23B-FP8", "unknown model `Qwen/Qwen3-23B-FP8`"),
        ("trace.lengths=azure-con", "did you mean `azure-conv`?"),
        ("fleet.router=least-laoded", "did you mean `least-loaded`?"),
        ("policies.run=['vllm-v2']", "did you mean `vllm-v1`?"),
        ("policies.baseline=sarathy", "did you mean `sarathi`?"),
        ("trace.arrivals=replay", "the requests have no arrivals"),
        ("engine.max_tokens=100", "`engine.max_tokens` = 100 is below `engine.max_sequences` = 128"),
        ("engine.max_context=2", "are longer than a replica of `vllm-v1` can hold"),
        ("fleet.replicas=2", "2 replicas of 1 GPUs, the cluster has 1 GPUs"),
        ("engine.tp=3", "does not divide the 32 attention heads"),
        ("fleet.group=[{gpu='l40ss'}]", "did you mean `l40s`?"),
        ("fleet.group=[{gpu='l4',name='a',max_sequences=0},{gpu='l4'}]", "allowed are whole numbers from 1 to 65536"),
        ("fleet.group=[{gpu='l40s'},{gpu='l40s'}]", "two groups are named `l40s`"),
        ("fleet.group=[{gpu='l40s',share=[1,2]}]", "2 shares for 1 types of requests"),
        ("fleet.group=[{gpu='l40s',share=-1}]", "`fleet.group.share` is no share"),
        ("fleet.group=[{name='b',replicas=3}]", "take 3 GPUs, the cluster has 1"),
        ("fleet.group=[{gpu='l40s',role='prefil'}]", "did you mean `prefill`?"),
        ("fleet.group=[{gpu='l40s',role='prefill'}]", "computes prompts that no group decodes"),
        ("fleet.group=[{gpu='l40s',role='decode'}]", "decodes what no group prefills"),
        ("fleet.group=[{gpu='l40s',scaling={target=3}}]", "key `fleet.group.scaling.start_up_s` is missing"),
        ("fleet.group=[{gpu='l40s',replicas=2,scaling={min=3}}]", "allowed are whole numbers from 1 to 2"),
        ("fleet.group=[{gpu='l40s',failures={mtbf=3}}]", "did you mean `mtbf_s`?"),
        ("fleet.link=[{from='a100-sxm',to='a100-sxm-80g'}]", "did you mean `a100-sxm-80g`?"),
        ("fleet.outage=[{group='a100-sxm-80g',replica=1,at_s=3}]", "group `a100-sxm-80g` has 1"),
        ("trace.schedule=[{from_s=5,rate_per_s=3}]", "`trace.schedule` starts at 0 s"),
        ("trace.schedule=[{rate_per_s=3},{from_s=5}]", "the last rate of `trace.schedule` is above 0"),
    ] {
        let text = messages(&[set]);
        assert!(text.contains(expected), "{set}:\n{text}");
    }
}

#[test]
fn an_engine_by_its_name_batches_as_it_does_and_no_other_policy_is_asked_for() {
    let text = |engine: &str, policies: &str| {
        format!(
            "kind = \"serving\"\n[model]\nname = \"qwen3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\n[engine]\n{engine}\n[trace]\n\
             prompt_tokens = 64\noutput_tokens = 8\nrequests = 16\nrate_per_s = 4\n{policies}"
        )
    };
    let checked = |text: String| super::written(text, &[]);
    for (name, batcher) in [("vllm", "vllm-v1"), ("sglang", "sglang"), ("trtllm", "trtllm")] {
        let scenario = checked(text(&format!("name = \"{name}\""), "")).scenario.expect("a good scenario");
        assert_eq!(scenario.choices(), [batcher]);
    }
    let variant = "[[policies.variant]]\nname = \"mine\"\npolicy = \"sarathi\"\n";
    for (engine, policies) in [("tp = 1", ""), ("name = \"vllm\"", variant)] {
        let checked = checked(text(engine, policies));
        assert!(checked.scenario.is_none(), "{engine} {policies}");
        assert!(diagnostic::render(&checked.source, &checked.findings).contains("key `policies.run` is missing"));
    }
}

#[test]
fn a_group_of_the_scenarios_own_gpus_is_the_plain_fleet() {
    let metrics = |set: &[&str]| {
        let scenario = checked(set).scenario.expect("a good scenario");
        scenario.run(&|_| {}).results[0].metrics.clone()
    };
    let base = ["cluster.gpus_per_node=4", "trace.requests=2000"];
    let plain = metrics(&[&base[..], &["fleet.replicas=3", "fleet.usd_per_gpu_hour=2.0"]].concat());
    let group = metrics(&[&base[..], &["fleet.group=[{replicas=3,usd_per_gpu_hour=2.0}]"]].concat());
    assert_eq!(plain, group);
}

#[test]
fn a_spread_over_draws_is_that_of_runs_with_other_seeds() {
    // An iteration of vLLM's first version holds the longest prompt, which is another one in each draw.
    for policy in ["vllm-v1", "vllm-v0"] {
        let policies = [format!("policies.run=['{policy}']"), format!("policies.baseline='{policy}'")];
        let row = |set: &[&str], seed: Option<u64>| {
            let (source, folder) = scenario::find("serving/azure-conv").expect("shipped");
            let set = ["trace.requests=300", "trace.rate_per_s=6"].iter().chain(set).map(|text| (*text).to_owned());
            let set = set.chain(policies.clone()).collect();
            let checked = kinds::check(source, &folder, &Overrides { set, seed, ..Overrides::default() });
            checked.scenario.expect("a good scenario").run(&|_| {}).results.remove(0)
        };
        let drawn = row(&["trace.seeds=3"], None);
        let draws = drawn.draws.as_ref().expect("three draws");
        let apart = [0, 1, 2].map(|seed| row(&[], Some(seed)));
        assert_eq!((draws.n, &apart[0].draws), (3, &None));
        assert_eq!(drawn.metrics, apart[0].metrics, "the first draw is the scenario's own");
        for key in ["ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "busy_ratio"] {
            let values = apart.each_ref().map(|row| row.metrics[key]);
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let ends = [least, values.iter().copied().fold(0.0, f64::max)];
            assert_eq!(draws.spread[key], ends, "{policy}: {key}");
        }
        assert!(draws.spread["ttft_s.mean"][0] < draws.spread["ttft_s.mean"][1]);
    }
}

/// What a shipped scenario that still runs is warned of, with a piece of its text changed.
fn warnings(name: &str, [from, to]: [&str; 2], set: &[&str]) -> String {
    let (mut source, folder) = scenario::find(name).expect("shipped");
    assert!(source.text.contains(from), "{name} has no `{from}`");
    source.text = source.text.replacen(from, to, 1);
    let set = set.iter().map(|text| (*text).to_owned()).collect();
    let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
    let words = diagnostic::render(&checked.source, &checked.findings);
    assert!(checked.scenario.is_some(), "{name} with `{to}` is refused: {words}");
    words
}

#[test]
fn what_engines_would_not_do_is_warned_of() {
    const LONG: &str = "engine.max_context=200000";
    const BEYOND: &str = "`engine.max_context` = 200000 is above the 131072 positions of `llama-3.1-8b`";
    let of = |key: &str| {
        let set = [key, "policies.run=['vllm-v1']", "policies.baseline='vllm-v1'"];
        warnings("serving/azure-conv", ["[engine]", "[engine]\nname = \"vllm\""], &set)
    };
    for (key, code, words) in [
        (LONG, "S214", BEYOND),
        (LONG, "S214", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"),
        ("engine.kv_blocks=900000", "S094", "`kv_blocks` = 900000 are more than the"),
    ] {
        let found = of(key);
        assert!(found.contains(code) && found.contains(words), "{key}: {found}");
    }
    for key in ["engine.max_context=8192", "engine.kv_blocks=10000", "engine.graph_max=0"] {
        let found = of(key);
        assert!(!["S214", "S094"].iter().any(|code| found.contains(code)), "{key}: {found}");
        // The scenario has `memory_ratio`.
        assert_eq!(found.contains("S017"), key.contains("kv_blocks"), "{key}: {found}");
    }
}

#[test]
fn what_a_serving_scenario_says_and_nothing_heeds_is_warned_of() {
    const LATE: [&str; 2] = ["trace.timeout_s=5", "trace.first_token_timeout_s=9"];
    let cases: [(&[&str], &str); 12] = [
        (&["engine.api_servers=4"], "`engine.api_servers` changes nothing"),
        (&["engine.stream_interval=10"], "`engine.stream_interval` changes nothing"),
        (&["engine.tiers={ host_gib = 8 }"], "`tiers` change nothing"),
        (&["engine.prompt_rank=\"drawn\""], "`prompt_rank` changes nothing"),
        (&["engine.kv_blocks=2000", "engine.memory_ratio=0.5"], "`engine.memory_ratio` changes nothing"),
        (&["trace.priority=2"], "`priority` changes nothing"),
        (&["engine.scheduling=\"priority\""], "`scheduling = \"priority\"` changes nothing"),
        (&["engine.eviction=\"lfu\""], "`eviction = \"lfu\"` orders prefixes"),
        (&["model.weights={ experts = \"int4\" }"], "a format of experts changes nothing"),
        (&["model.name=qwen3-30b-a3b", "model.weights={ dense = \"int4\" }"], "`weights.dense` changes nothing"),
        (&LATE, "`first_token_timeout_s` = 9 changes nothing"),
        (&["engine.adapters={ slots = 4, rank_max = 16 }"], "no request asks for an adapter"),
    ];
    for (set, words) in cases {
        let found = warnings("serving/azure-conv", ["[engine]", "[engine]"], set);
        assert!(found.contains("warning[S017]") && found.contains(words), "{set:?}: {found}");
    }
}

/// A trace has the requests that it has.
#[test]
fn more_requests_than_a_file_has_are_warned_of() {
    let folder = std::env::temp_dir().join(format!("skrull-sim-rows-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(
        folder.join("three.csv"),
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,5\n1,10,5\n2,10,5\n",
    )
    .expect("a file");
    let (source, _) = scenario::find("serving/azure-conv").expect("shipped");
    for (requests, is_told) in [(4, true), (3, false), (2, false)] {
        let file = "file = \"three.csv\"\nformat = \"vidur\"";
        let text = source
            .text
            .replace("lengths = \"azure-conv\"", file)
            .replace("arrivals = \"poisson\"", "arrivals = \"replay\"");
        let text = text.replace("rate_per_s = 5.5", "").replace("requests = 19366", &format!("requests = {requests}"));
        let checked = kinds::check(Source { text, ..source.clone() }, &folder, &Overrides::default());
        let words = diagnostic::render(&checked.source, &checked.findings);
        assert!(checked.scenario.is_some(), "{words}");
        let told = "`trace.requests` = 4, and `three.csv` has 3: all of them are served";
        assert_eq!(words.contains(told), is_told, "{requests}: {words}");
    }
    std::fs::remove_dir_all(&folder).ok();
}

#[test]
fn what_is_sought_and_drawn_from_the_command_line_is_checked_as_keys_are() {
    for (name, key, help) in [
        ("serving/azure-conv", "maximize", "`by` in `[tune]`"),
        ("cloud/milp-example", "minimize", "`is` in `[objective]`"),
        ("multi-task/example", "maximize", "leave it out"),
    ] {
        let checked = super::checked(name, &[&format!("policies.{key}=tokens_per_s")]);
        let words = diagnostic::render(&checked.source, &checked.findings);
        assert!(checked.scenario.is_none() && words.contains("error[S170]") && words.contains(help), "{name}: {words}");
        assert!(
            words.contains(&format!("`--{key}` is for kind `training`")) && !words.contains("S014"),
            "{name}: {words}"
        );
    }
    let (source, folder) = scenario::find("serving/azure-conv").expect("shipped");
    for (seed, is_taken) in [(u64::MAX >> 1, true), (1 << 63, false)] {
        let overrides = Overrides { seed: Some(seed), ..Overrides::default() };
        let checked = kinds::check(source.clone(), &folder, &overrides);
        assert_eq!(checked.scenario.is_some(), is_taken, "{seed}");
        assert_eq!(checked.findings.iter().any(|finding| finding.what.contains("`seed` is")), !is_taken);
    }
}

#[test]
fn draws_of_what_is_not_drawn_are_warned_of() {
    let alike = ["trace.seeds=4", "trace.arrivals=together"];
    let checked = super::checked("serving/azure-conv", &alike);
    let words = diagnostic::render(&checked.source, &checked.findings);
    assert!(!words.contains("`trace.seeds` changes nothing"), "lengths are drawn: {words}");
    let checked = super::checked("serving/closed-loop", &["trace.seeds=1"]);
    assert!(checked.scenario.is_some());
}

#[test]
fn requests_in_flight_say_that_a_load_is_held() {
    let [held, alone] = ["arrivals = \"held\"", ""]
        .map(|to| sound_rows("serving/closed-loop", ["arrivals = \"held\"", to], &["trace.requests=64"]));
    assert_eq!(held[0].metrics, alone[0].metrics);
}

/// SGLang computes prompts and decodes in iterations of their own: 256 sequences decode beside a budget of 128 tokens.
#[test]
fn the_budget_of_sglang_is_that_of_prompts() {
    let set = ["engine.max_sequences=256", "engine.max_tokens=128", "policies.run=[\"sglang\"]"];
    let name = ["name = \"vllm\"\nversion = \"0.11.0\"", "name = \"sglang\""];
    let rows = sound_rows("serving/closed-loop", name, &[&set[..], &["trace.requests=64"]].concat());
    assert!(rows[0].metrics["ttft_s.mean"] > 0.0, "{:?}", rows[0]);
    let checked = super::checked("serving/closed-loop", &set[..2]);
    assert!(diagnostic::render(&checked.source, &checked.findings).contains("S093"), "vLLM's holds all tokens");
}

/// Rows of a shipped scenario that was changed by a piece of its text and from the command line; every one is sound.
fn sound_rows(name: &str, [from, to]: [&str; 2], set: &[&str]) -> Vec<reports::PolicyResult> {
    let (source, folder) = scenario::find(name).expect("shipped");
    assert!(source.text.contains(from), "{name} has `{from}`");
    let source = diagnostic::Source { text: source.text.replace(from, to), ..source };
    let set = set.iter().map(|text| (*text).to_owned()).collect();
    let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
    let scenario = checked.scenario.expect("a good scenario");
    let result = scenario.run(&|_| {});
    assert_eq!(reports::sound::faults(&result), Vec::<String>::new(), "{name}");
    result.results
}

#[test]
fn no_cut_of_prompts_bounds_first_tokens_of_those_that_are_computed_elsewhere() {
    let by = ["by = \"requests_per_s\"", "by = \"ttft_s.mean\""];
    let set = ["trace.requests=250"];
    let rows = sound_rows("serving/distkv", by, &set);
    let row = rows.into_iter().find(|row| row.policy == "best-terms").expect("it is in the list");
    // All terms were tried, so the best of them is the bound; its replicas decode alone.
    let facts = row.planner.expect("it was chosen");
    assert_eq!(facts.bound, facts.objective);
}

#[test]
fn stages_wait_no_less_than_nothing_where_clients_give_up_before_their_first_token() {
    let give_up = ["arrivals = \"together\"", "arrivals = \"together\"\nfirst_token_timeout_s = 0.000001"];
    for row in sound_rows("serving/equal-time-chunks", give_up, &[]) {
        assert_eq!(row.metrics["n_timed_out"], 1.0, "{}", row.policy);
        assert!((0.0..=1.0).contains(&row.metrics["bubble_ratio"]), "{}", row.policy);
    }
}
