//! Options of serving that change a time: each is laid over a scenario, and the figure that it is about moves the way it has to.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use input::diagnostic::Source;
use scenario::{self, Overrides};
use skrull_sim::kinds;

/// gpt-oss-120b on two H100 with vLLM, a few requests.
const BASE: [&str; 2] = ["trace.requests=200", "policies.run=['as-published']"];

/// Metrics of the only row, and the profile that its costs are from.
fn run(set: &[&str]) -> (BTreeMap<String, f64>, String) {
    let checked = super::checked("serving/formats", &[&BASE[..], set].concat());
    let result = checked.scenario.expect("a good scenario").run(&|_| {});
    (result.results[0].metrics.clone(), result.cost_model.profile)
}

/// Mean time per token, milliseconds.
fn tpot_ms(set: &[&str]) -> f64 {
    run(set).0["tpot_s.mean"] * 1e3
}

#[test]
fn a_loop_that_waits_for_its_host_adds_the_hosts_time() {
    // vLLM works behind the device from 0.14 on. Before, 1.2 ms an iteration and 45 us a sequence are added.
    let (behind, before) = (tpot_ms(&[]), tpot_ms(&["engine.version='0.11.0'"]));
    assert!(before > behind + 1.2, "{before} ms against {behind} ms");
    let silent = tpot_ms(&["engine.version='0.11.0'", "engine.host_us_per_step=0", "engine.host_us_per_sequence=0"]);
    assert!((silent / behind - 1.0).abs() < 0.05, "{silent} ms against {behind} ms");
}

#[test]
fn a_held_client_waits_for_start_and_tokenizer_of_a_named_engine() {
    // One request at a time waits for nobody. With 15 ms of start, and 2 us for each of 30,000 tokens, it takes so much longer than without.
    let ttft_s = |load: &str, more: &[&str]| {
        let (mut source, folder) = scenario::find("serving/closed-loop").expect("shipped");
        source.text = source.text.replace("arrivals = \"held\"\nconcurrency = 32", load);
        let set = ["trace.requests=300", "trace.prompt_tokens=30000", "trace.output_tokens=2"];
        let set = set.iter().chain(more).map(|key| (*key).to_owned()).collect();
        let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
        checked.scenario.expect("a good scenario").run(&|_| {}).results[0].metrics["ttft_s.mean"]
    };
    for load in ["arrivals = \"held\"\nconcurrency = 1", "arrivals = \"poisson\"\nrate_per_s = 0.001"] {
        let (named, bare) = (ttft_s(load, &[]), ttft_s(load, &["engine.start_ms=0", "engine.tokenize_us_per_token=0"]));
        assert!((named - bare - 0.075).abs() < 0.003, "{load}: {named} s against {bare} s");
    }
}

#[test]
fn a_named_engine_brings_its_own_curves() {
    for (name, profile) in [("vllm", "h100-sxm-vllm"), ("sglang", "h100-sxm-sglang"), ("trtllm", "h100-sxm-trtllm")] {
        assert_eq!(run(&[&format!("engine.name='{name}'")]).1, profile);
    }
}

#[test]
fn a_card_without_tables_takes_its_neighbours_scaled_by_the_datasheets() {
    let (b300, profile) = run(&["cluster.gpu='b300'"]);
    assert_eq!(profile, "b200-vllm for b300");
    let (b200, own) = run(&["cluster.gpu='b200'"]);
    assert_eq!(own, "b200-vllm", "one with tables keeps them");
    // A B300 reads 1.04 times as fast as a B200 and multiplies 8 bits as fast: a token takes less, by no more than that.
    let faster = b200["tpot_s.mean"] / b300["tpot_s.mean"];
    assert!((1.0..1.05).contains(&faster), "{faster} times");
    // A profile that is named stands for another card in the same way.
    let named = run(&["cluster.gpu='b300'", "cost.profile='b200-vllm'"]);
    assert_eq!((named.0["tpot_s.mean"], named.1), (b300["tpot_s.mean"], profile));
}

#[test]
fn a_profile_of_a_host_processor_is_none_of_a_gpu() {
    let (source, folder) = scenario::find("quickstart").expect("shipped");
    let profile = std::env::temp_dir().join(format!("skrull-sim-host-{}.toml", std::process::id()));
    let text = include_str!("../profiles/h100-sxm.toml").replacen("gpu = \"h100-sxm\"", "gpu = \"cpu\"", 1);
    std::fs::write(&profile, text).expect("a writable folder");
    let set = vec![format!("cost.profile='{}'", profile.display())];
    let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
    std::fs::remove_file(&profile).expect("it was written");
    assert!(checked.scenario.is_none());
    assert!(checked.findings.iter().any(|finding| finding.what.contains("was measured on `cpu`")));
}

#[test]
fn batches_are_padded_to_captured_sizes_and_experts_are_visited_by_skew() {
    // Launches of prompts are left out here. Those of tokens are saved by graphs, whatever is padded.
    let free = "engine.host_us_per_expert_layer=0";
    let (padded, launched) = (tpot_ms(&[free]), tpot_ms(&[free, "engine.graph_max=0"]));
    assert!(launched > padded * 1.05, "{launched} ms with launches against {padded} ms");
    // With few tokens a flat law visits more experts than the usual one, whose exponent is 1.2, and their weights are read.
    let flat = tpot_ms(&[free, "engine.expert_skew=0.01"]);
    assert!(flat > padded, "{flat} ms against {padded} ms");
}

/// Metrics of the only policy of a scenario of 200 conversations on vLLM, with these lines behind `[engine]`.
fn conversations(model: &str, rate_per_s: f64, more: &str) -> BTreeMap<String, f64> {
    let text = format!(
        "kind = \"serving\"\n\
         trace = {{ lengths = \"azure-conv\", requests = 200, arrivals = \"poisson\", rate_per_s = {rate_per_s:?} }}\n\
         [model]\nname = \"{model}\"\n[engine]\nname = \"vllm\"\nversion = \"0.19.0\"\n{more}\n"
    );
    let source = Source { text, ..scenario::find("serving/formats").expect("shipped").0 };
    let checked = kinds::check(source, Path::new("."), &Overrides::default());
    checked.scenario.expect("a good scenario").run(&|_| {}).results[0].metrics.clone()
}

#[test]
fn a_variant_with_fewer_sequences_is_an_engine_with_fewer() {
    let served = |engine: &str, variant: &str| {
        let more = format!(
            "tp = 2\n{engine}\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 2\n\
             [policies]\nrun = [\"one\"]\n[[policies.variant]]\nname = \"one\"\npolicy = \"vllm-v1\"\n{variant}"
        );
        conversations("qwen3-30b-a3b", 20.0, &more)
    };
    let plain = served("", "");
    for key in ["max_sequences = 256", "max_sequences = 64", "max_tokens = 4096"] {
        assert_eq!(served(key, ""), served("", key), "{key}");
    }
    // Places that nobody wrote are no more than the tokens of an iteration, as vLLM lowers its default.
    assert_eq!(served("max_tokens = 48", ""), served("max_tokens = 48\nmax_sequences = 48", ""));
    assert_eq!(served("max_tokens = 48", ""), served("", "max_tokens = 48"));
    // 256 places are more than are ever taken, and vLLM captures 512 tokens for them as for 1,024. Far fewer leave mixed batches outside of graphs.
    let mut fewer = served("max_sequences = 256", "");
    // vLLM counts a sampler of as many rows, so fewer places leave more room for keys and values.
    assert!(fewer["kv_tokens"] > plain["kv_tokens"], "{fewer:?}");
    for room in ["kv_tokens", "kv_requests_max", "kv_peak_ratio"] {
        fewer.insert(room.to_owned(), plain[room]);
    }
    assert_eq!(fewer, plain);
    let few = served("graph_max = 64", "");
    assert!(few["tpot_s.mean"] > 1.1 * plain["tpot_s.mean"], "{few:?}");
}

#[test]
fn a_group_takes_the_engines_sizes_on_its_own_card() {
    let cluster = |gpu: &str| format!("[cluster]\ngpu = \"{gpu}\"\nnodes = 1\ngpus_per_node = 1\n");
    let group = "[[fleet.group]]\nname = \"one\"\ngpu = \"l40s\"\nreplicas = 1\n";
    let served = |more: &str| conversations("llama-3.1-8b", 4.0, more);
    // vLLM takes 2,048 tokens and 256 sequences on an L40S, and 8,192 and 1,024 on an H100.
    let alone = served(&cluster("l40s"));
    assert_eq!(served(&format!("{}{group}", cluster("h100-sxm"))), alone);
    assert_eq!(served(group), alone);
    let written = format!("max_tokens = 8192\n{}{group}", cluster("h100-sxm"));
    assert_ne!(served(&written), alone, "what is written holds for every group");
}

#[test]
fn gpus_behind_one_switch_share_its_link() {
    let served = |cluster: &str| {
        let more = format!(
            "tp = 2\nkv_blocks = 2500\npreemption = \"swap\"\n\
             [cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 2\n{cluster}"
        );
        conversations("llama-3.1-8b", 30.0, &more)
    };
    let own = served("host_gb_per_s = 8.0");
    assert!(own["n_preempted"] > 0.0, "{own:?}");
    assert_eq!(served("host_gb_per_s = 16.0\ngpus_per_switch = 2"), own);
    assert_ne!(served("host_gb_per_s = 16.0"), own);
}

#[test]
fn an_engine_is_asked_for_norms_inside_of_all_reduces() {
    let sglang = ["engine.name='sglang'", "engine.version='0.5.10'"];
    let asked = |word: &str| tpot_ms(&[sglang[0], sglang[1], &format!("engine.all_reduce='{word}'")]);
    // gpt-oss is in the list of models for which SGLang does so by itself. It has 72 norms behind all-reduces, and an older kernel otherwise.
    assert_eq!(asked("fused"), asked("auto"));
    assert!(asked("separate") > asked("fused"), "{} ms against {} ms", asked("separate"), asked("fused"));
    // vLLM has neither option.
    let checked = super::checked("serving/formats", &["engine.all_reduce='fused'"]);
    assert!(checked.findings.iter().any(|finding| finding.what == "`engine.all_reduce` changes nothing"));
}

#[test]
fn links_inside_a_node_are_what_the_cluster_says() {
    let base = tpot_ms(&[]);
    for slower in [
        "cluster.nvlink_island=1",
        "cluster.peer_access=false",
        "cluster.intra_node_gb_per_s=20",
        "cluster.intra_node_latency_us=100",
    ] {
        let found = tpot_ms(&[slower]);
        assert!(found > base * 1.05, "{slower}: {found} ms against {base} ms");
    }
    // Without peer access a message takes at least 20 us more, 72 times an iteration.
    assert!(tpot_ms(&["cluster.peer_access=false"]) > base + 72.0 * 0.02);
}

#[test]
fn a_start_up_between_nodes_counts_where_a_tensor_group_crosses_them() {
    let apart = ["cluster.nodes=2", "cluster.gpus_per_node=1"];
    let usual = tpot_ms(&apart);
    let slow = tpot_ms(&[apart[0], apart[1], "cluster.inter_node_latency_us=1000"]);
    // Two exchanges in each of 36 layers.
    assert!(slow > usual + 72.0 * 0.9, "{slow} ms against {usual} ms");
}

#[test]
fn written_requests_have_the_mean_of_the_result_and_a_series_ends_empty() {
    let folder = std::env::temp_dir().join(format!("skrull-sim-rows-{}", std::process::id()));
    let [requests, series] = ["requests.csv", "series.csv"].map(|name| folder.join(name));
    let done = Command::new(env!("CARGO_BIN_EXE_skrull-sim"))
        .args(["run", "serving/formats", "-q", "--no-progress", "--out"])
        .arg(&folder)
        .args(BASE.iter().flat_map(|set| ["--set", set]))
        .args(["--requests".as_ref(), requests.as_os_str(), "--series".as_ref(), series.as_os_str()])
        .status();
    assert!(done.expect("the program runs").success());
    let [requests, series] = [requests, series].map(|path| std::fs::read_to_string(path).expect("written"));
    let columns: Vec<&str> = requests.lines().next().expect("a header").split(',').collect();
    let at = columns.iter().position(|column| *column == "ttft_s").expect("a column");
    let values: Vec<f64> = requests
        .lines()
        .skip(1)
        .map(|line| line.split(',').nth(at).expect("a cell").parse().expect("a number"))
        .collect();
    assert_eq!(values.len(), 200);
    let mean = values.iter().sum::<f64>() / 200.0;
    assert!((mean / run(&[]).0["ttft_s.mean"] - 1.0).abs() < 1e-9, "{mean}");
    // Of each request the longest time between tokens is no shorter than the mean, and the median no longer than the longest.
    let cell = |line: &str, name: &str| {
        let at = columns.iter().position(|column| *column == name).expect("a column");
        line.split(',').nth(at).expect("a cell").parse::<f64>().ok()
    };
    for line in requests.lines().skip(1) {
        let [mean, p50, p99, most] = ["tpot_s", "tbt_p50_s", "tbt_p99_s", "tbt_max_s"].map(|name| cell(line, name));
        assert_eq!(mean.is_some(), most.is_some(), "{line}");
        assert!(most >= mean.map(|mean| mean - 1e-8) && p50 <= p99 && p99 <= most, "{line}");
    }
    let last: Vec<&str> = series.lines().last().expect("a sample").split(',').collect();
    assert_eq!(last[2..5], ["0", "0", "200"], "nobody waits, nobody runs, all have ended");
    // As Parquet the rows have the same columns, whose names stand in the file as they are.
    let parquet = folder.join("requests.parquet");
    let done = Command::new(env!("CARGO_BIN_EXE_skrull-sim"))
        .args(["run", "serving/formats", "-q", "--no-progress", "--out"])
        .arg(&folder)
        .args(BASE.iter().flat_map(|set| ["--set", set]))
        .args(["--requests".as_ref(), parquet.as_os_str()])
        .status();
    assert!(done.expect("the program runs").success());
    let bytes = std::fs::read(parquet).expect("written");
    for column in &columns {
        assert!(bytes.windows(column.len()).any(|found| found == column.as_bytes()), "{column}");
    }
    std::fs::remove_dir_all(folder).expect("removed");
}

/// What a scenario warns of when keys are laid over it.
fn warnings(name: &str, set: &[&str]) -> Vec<String> {
    let checked = super::checked(name, set);
    assert!(checked.scenario.is_some(), "{:?}", checked.findings);
    checked.findings.into_iter().map(|finding| finding.what).collect()
}

#[test]
fn a_key_of_serving_that_changes_nothing_is_a_warning() {
    const VLLM: &str = "`batch_wait` changes nothing: `vllm-v1` lets no prompt wait for others";
    const ONE_RANK: &str = "`batch_wait` with `until = \"ranks\"` changes nothing: attention has one rank";
    const FOR_RANKS: &[&str] = &["engine.batch_wait={ iterations = 9, until = 'ranks' }"];
    const OTHER: &[&str] = &["engine.batch_wait={ iterations = 9, until = 'ranks', enough_tokens = 5 }"];
    let cases: [(&str, &[&str], &str); 10] = [
        ("serving/azure-conv", &["trace.cv=3"], "`trace.cv` changes nothing"),
        ("serving/azure-conv", &["trace.speed=3"], "`trace.speed` changes nothing"),
        ("serving/azure-conv", &["trace.think_s=3"], "`trace.think_s` changes nothing"),
        ("serving/azure-conv", &["engine.swap_gib=10"], "`engine.swap_gib` changes nothing"),
        ("serving/sessions", &["engine.block_tokens=16"], ""),
        ("serving/formats", &["engine.batch_wait={ iterations = 9 }"], VLLM),
        ("serving/batch-wait", FOR_RANKS, ONE_RANK),
        ("serving/rank-wait", FOR_RANKS, ""),
        ("serving/rank-wait", OTHER, "`engine.batch_wait.enough_tokens` changes nothing"),
        ("compiler/llama-1b-codealpaca", &["cluster.gpus_per_node=4"], "3 of 4 GPUs change nothing"),
    ];
    for (name, set, expected) in cases {
        let found = warnings(name, set);
        assert!(
            found.iter().any(|what| what == expected) || (expected.is_empty() && found.is_empty()),
            "{name} {set:?}: {found:?}"
        );
    }
}

#[test]
fn prompts_wait_for_ranks_as_long_as_the_keys_say() {
    let ttft_s = |wait: &str| {
        let (source, folder) = scenario::find("serving/rank-wait").expect("shipped");
        let wait = format!("engine.batch_wait={wait}");
        let set = vec![
            "policies.run=['published']".to_owned(),
            "policies.baseline='published'".to_owned(),
            "trace.requests=200".to_owned(),
            wait,
        ];
        let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
        checked.scenario.expect("a good scenario").run(&|_| {}).results[0].metrics["ttft_s.mean"]
    };
    let at_once = ttft_s("{ iterations = 0 }");
    let some = ttft_s("{ iterations = 60, until = 'ranks' }");
    let more = ttft_s("{ iterations = 60, until = 'ranks', more_iterations = 30 }");
    // One token is enough, so nobody waits.
    let for_tokens = ttft_s("{ iterations = 60, enough_tokens = 1 }");
    assert!(at_once < some && some < more, "{at_once} s, {some} s and {more} s");
    assert!((for_tokens / at_once - 1.0).abs() < 1e-9, "{for_tokens} s against {at_once} s");
}

#[test]
fn conversations_that_ended_stay_in_a_cache_that_counts_uses() {
    // Turns of a conversation use its prefixes again, and then nobody does. By time of use such prefixes leave first; by number of uses they
    // stay, and those of young conversations leave.
    let hits = |rule: &str, set: &[&str]| {
        let (source, folder) = scenario::find("together/prefix-split-failures-scaler").expect("shipped");
        let of_rule = [
            "policies={run=['all'],baseline='all',variant=[{name='all',policy='vllm-v1'}]}".to_owned(),
            "engine.kv_blocks=2500".to_owned(),
            format!("engine.eviction='{rule}'"),
        ];
        let set = of_rule.into_iter().chain(set.iter().map(|text| (*text).to_owned())).collect();
        let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
        let metrics = checked.scenario.expect("a good scenario").run(&|_| {}).results[0].metrics.clone();
        (metrics["prefix_hit_ratio"], checked.findings)
    };
    let ((oldest, _), (rarest, quiet)) = (hits("lru", &[]), hits("lfu", &[]));
    assert!(oldest > rarest + 0.05 && quiet.is_empty(), "{oldest} by time, {rarest} by uses, {quiet:?}");
    // Where nobody keeps prefixes the order of their leaving is of no effect.
    let (_, findings) = hits("lfu", &["engine.prefix_cache=false"]);
    assert!(findings.iter().any(|finding| finding.what.contains("nobody keeps any")), "{findings:?}");
}

#[test]
fn a_trace_whose_prefixes_are_no_whole_blocks_says_so() {
    let trace = std::env::temp_dir().join(format!("skrull-sim-prefixes-{}.jsonl", std::process::id()));
    let line = r#"{"timestamp": 0, "input_length": 2000, "output_length": 10, "hash_ids": [1, 2, 3, 4]}"#;
    std::fs::write(&trace, format!("{line}\n{line}\n")).expect("a writable folder");
    let file = format!("trace.file='{}'", trace.display());
    let asked = [file.as_str(), "trace.format='mooncake'", "trace.arrivals='replay'", "engine.prefix_cache=true"];
    let plain = ["trace.requests=2"];
    let found = |block: &str| warnings("serving/bench-rtx4090", &[&asked[..], &plain, &[block]].concat());
    let (odd, whole) = (found("engine.block_tokens=24"), found("engine.block_tokens=32"));
    std::fs::remove_file(&trace).expect("it was written");
    assert!(odd.iter().any(|what| what.starts_with("no prefix is shared")), "{odd:?}");
    assert!(whole.iter().all(|what| !what.starts_with("no prefix is shared")), "{whole:?}");
}

/// Metrics of split replicas of llama-3-8b, and how many bytes a token moves.
fn split(set: &[&str]) -> BTreeMap<String, f64> {
    let (source, folder) = scenario::find("serving/disaggregated").expect("shipped");
    let base = ["trace.requests=400", "policies.run=['split-far']", "policies.baseline='split-far'"];
    let set = base.iter().chain(set).map(|text| (*text).to_owned()).collect();
    let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
    checked.scenario.expect("a good scenario").run(&|_| {}).results[0].metrics.clone()
}

#[test]
fn keys_and_values_in_8_bits_move_in_8_bits() {
    // A link of 5 GB/s is the limit at 60 prompts a second, so half of the bytes take less than half of the time. At one a second nobody waits.
    let alone = ["trace.rate_per_s=0.2"];
    let [wide, narrow] = ["bf16", "fp8"].map(|kv| {
        let weights = format!("model.weights={{format=\"bf16\",kv=\"{kv}\"}}");
        split(&[&alone[..], &[weights.as_str()]].concat())["transfer_s"]
    });
    // 500 us of latency whatever moves.
    let ratio = (narrow - 500e-6) / (wide - 500e-6);
    assert!((ratio - 0.5).abs() < 0.01, "{narrow} s against {wide} s");
}

#[test]
fn windows_and_states_move_with_their_sequence() {
    // gpt-oss-20b: half of its layers keep all tokens, the others 128. A prompt of 1,000 tokens moves 12 of 24 layers whole and 12 windows.
    let set = ["model.name='gpt-oss-20b'", "model.weights='bf16'", "trace.rate_per_s=0.2", "trace.requests=50"];
    let moved = |tokens: u32| {
        let (mut source, folder) = scenario::find("serving/disaggregated").expect("shipped");
        source.text =
            source.text.replace("lengths = \"azure-conv\"", &format!("prompt_tokens = {tokens}\noutput_tokens = 4"));
        let base = ["policies.run=['split-far']", "policies.baseline='split-far'"];
        let set = base.iter().chain(&set).map(|text| (*text).to_owned()).collect();
        let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
        let run = checked.scenario.expect("a good scenario").run(&|_| {});
        (run.results[0].metrics["transfer_s"] - 500e-6) * 5e9
    };
    let token = f64::from(2 * 8 * 64 * 2);
    for tokens in [64, 1000] {
        let expected = token * 12.0 * (f64::from(tokens) + f64::from(tokens.min(128)));
        let found = moved(tokens);
        assert!((found / expected - 1.0).abs() < 0.01, "{tokens} tokens: {found} bytes, expected {expected}");
    }
}

/// A file of counts for gpt-oss-120b: one row for all layers.
fn counts(name: &str, of: impl Fn(u32) -> u32) -> String {
    let path = std::env::temp_dir().join(format!("skrull-sim-{name}-{}.csv", std::process::id()));
    let row: Vec<String> = (0..128).map(|expert| of(expert).to_string()).collect();
    std::fs::write(&path, row.join(",") + "\n").expect("a writable folder");
    format!("engine.expert_counts='{}'", path.display())
}

#[test]
fn experts_are_visited_as_they_were_counted_and_busy_ones_may_lie_twice() {
    let skewed = counts("skewed", |expert| if expert < 8 { 20 } else { 1 });
    let even = counts("even", |_| 7);
    let of = |set: &[&str]| run(&[&["engine.ep=2"], set].concat()).0;
    let tpot = |metrics: &BTreeMap<String, f64>| metrics["tpot_s.mean"];
    // Half of the experts lie on either card; the first has eight busy ones. Fewer experts are read, and more rows computed.
    let (plain, in_order) = (of(&[&even]), of(&[&skewed]));
    assert!(tpot(&plain) != tpot(&in_order), "counts change the time");
    let balanced = of(&[&skewed, "engine.redundant_experts=0"]);
    assert!(tpot(&balanced) < tpot(&in_order), "{} and {}", tpot(&balanced), tpot(&in_order));
    // Replicas take memory, so the same requests fill more of what is left.
    let twice = of(&[&skewed, "engine.redundant_experts=64"]);
    assert!(twice["kv_peak_ratio"] > balanced["kv_peak_ratio"] * 1.1, "{twice:?}");
    for set in [even, skewed] {
        let path = set.split('\'').nth(1).expect("a path").to_owned();
        std::fs::remove_file(path).expect("it was written");
    }
}

#[test]
fn counts_and_replicas_that_do_not_fit_are_refused() {
    let even = counts("misfit", |_| 7);
    let finding = |base: &str, set: &[&str]| {
        let checked = super::checked(base, set);
        checked.findings.iter().map(|finding| finding.what.clone()).collect::<Vec<_>>().join("; ")
    };
    for (base, set, what) in [
        ("serving/experts", vec![even.as_str()], "1 layers of 128 experts, `deepseek-v3` has 58 of 256"),
        ("serving/formats", vec!["engine.redundant_experts=2"], "every GPU has a part of each expert"),
        ("serving/formats", vec!["engine.ep=2", "engine.redundant_experts=3"], "3 `redundant_experts` on `ep` = 2"),
        ("serving/formats", vec![even.as_str(), "engine.expert_skew=1.0"], "exclude each other"),
        ("serving/formats", vec!["engine.dispatcher=deepep"], "every GPU has all tokens"),
        ("serving/experts", vec!["engine.two_batch_overlap=true"], "without DeepEP"),
        ("serving/azure-conv", vec!["engine.two_batch_overlap=true"], "`engine.two_batch_overlap` changes nothing"),
        ("serving/silicon", vec!["engine.redundant_experts=0"], "have no experts that were counted or lie twice"),
        ("serving/azure-conv", vec!["engine.redundant_experts=0"], "`engine.redundant_experts` changes nothing"),
        ("serving/azure-conv", vec![even.as_str()], "`engine.expert_counts` changes nothing"),
        ("serving/formats", vec!["engine.expert_counts='no-such-file.csv'"], "cannot read `no-such-file.csv`"),
        ("serving/formats", vec!["engine.expert_counts='recorded.pt'"], "`recorded.pt` is a file of PyTorch"),
    ] {
        let found = finding(base, &set);
        assert!(found.contains(what), "{base} with {set:?}: {found}");
    }
    let free = |set: &[&str]| {
        let checked = super::checked("serving/formats", &[&["engine.ep=2"][..], set].concat());
        checked.scenario.expect("a good scenario").run(&|_| {}).cost_model.free_parameters.join("; ")
    };
    assert!(free(&["engine.redundant_experts=2", BASE[0], BASE[1]]).contains("loads are drawn from a law"));
    assert!(!free(&["engine.redundant_experts=2", &even, BASE[0], BASE[1]]).contains("loads are drawn from a law"));
    let path = even.split('\'').nth(1).expect("a path").to_owned();
    std::fs::remove_file(path).expect("it was written");
}

#[test]
fn a_store_of_a_fleet_and_tools_of_agents_change_what_is_cached_and_nonsense_is_refused() {
    let metrics = |name: &str, set: &[&str]| {
        let checked = super::checked(name, set);
        checked.scenario.expect("a good scenario").run(&|_| {}).results[0].metrics.clone()
    };
    let few = ["trace.requests=400", "policies.run=['device']", "slo.warm_up_s=0"];
    let agents = |set: &[&str]| metrics("serving/agents", &[&few, set].concat());
    let (tools, without) = (agents(&[]), agents(&["trace.sessions.tools={ share = 0 }"]));
    assert!(tools["n_tool_turns"] > 100.0 && !without.contains_key("n_tool_turns"), "{without:?}");
    assert!(tools["makespan_s"] < without["makespan_s"], "tools take less time than people");
    // Two GPUs that take requests in turn: what one of them computed the other one reads.
    let pair = ["cluster.gpus_per_node=2", "fleet.replicas=2", "fleet.router='round-robin'"];
    let store = "engine.tiers={ remote_gib = 500, remote_gb_per_s = 50 }";
    let alone = agents(&pair);
    let shared = agents(&[&pair[..], &[store]].concat());
    assert!(!alone.contains_key("remote_ratio") && shared["remote_ratio"] > 0.05, "{shared:?}");
    assert!(shared["prefix_hit_ratio"] > alone["prefix_hit_ratio"] + 0.05);
    let slow = agents(&[&pair[..], &["engine.tiers={ remote_gib = 500, remote_gb_per_s = 0.01 }"]].concat());
    assert!(slow.get("remote_ratio").copied().unwrap_or(0.0) < 0.05, "slower than computing: {slow:?}");
    for (set, what) in [
        (vec!["engine.tiers={ remote_gib = 0, remote_gb_per_s = 5 }"], "`engine.tiers.remote_gib`"),
        (vec!["engine.tiers={ remote_gib = 5 }"], "`engine.tiers.remote_gb_per_s` is missing"),
        (vec!["trace.sessions.tools={ share = 1.5, mean_s = 1 }"], "`trace.sessions.tools.share` is 1.5"),
        (vec!["trace.sessions.tools={ share = 0.5 }"], "`trace.sessions.tools.mean_s` is missing"),
    ] {
        let (source, folder) = scenario::find("serving/agents").expect("shipped");
        let set = set.into_iter().map(str::to_owned).collect();
        let checked = kinds::check(source, &folder, &Overrides { set, ..Overrides::default() });
        let found: Vec<String> = checked.findings.into_iter().map(|finding| finding.what).collect();
        assert!(checked.scenario.is_none() && found.iter().any(|found| found.contains(what)), "{what}: {found:?}");
    }
    let idle = warnings("serving/agents", &["engine.tiers={ remote_gb_per_s = 5 }"]);
    assert!(idle.contains(&"`engine.tiers.remote_gb_per_s` changes nothing".to_owned()), "{idle:?}");
    let idle = warnings("serving/agents", &["trace.sessions.turns=1"]);
    assert!(idle.iter().any(|what| what.contains("no tool runs")), "{idle:?}");
}

#[test]
fn prompts_of_a_dataset_need_a_cache_and_prompts_that_are_alike() {
    let name = "serving/repeated-prompts";
    let set = ["policies.run=['computed']", "policies.baseline='computed'"];
    let idle = warnings(name, &set);
    assert!(idle.contains(&"`trace.dataset_prompts` changes nothing".to_owned()), "{idle:?}");
    let idle = warnings("serving/azure-conv", &["trace.warm_up_requests=5"]);
    assert!(idle.contains(&"`trace.warm_up_requests` changes nothing".to_owned()), "{idle:?}");
    let (source, folder) = scenario::find(name).expect("shipped");
    for (set, what) in [
        ("trace.sessions={ turns = 3 }", "told apart"),
        ("trace.warm_up_requests=768", "leaves none of 768 requests to count"),
    ] {
        let set = vec![set.to_owned()];
        let checked = kinds::check(source.clone(), &folder, &Overrides { set, ..Overrides::default() });
        let found: Vec<String> = checked.findings.into_iter().map(|finding| finding.what).collect();
        assert!(found.iter().any(|found| found.contains(what)) && checked.scenario.is_none(), "{found:?}");
    }
}

#[test]
fn recorded_sessions_keep_their_delays_and_find_what_was_said() {
    let path = std::env::temp_dir().join(format!("skrull-sim-sessions-{}.jsonl", std::process::id()));
    let row = |rest: &str| format!("{{\"input_length\": 2000, \"output_length\": 20, \"session_id\": 1{rest}}}\n");
    let rows = [row(", \"timestamp\": 0"), row(", \"delay\": 4000"), row(", \"delay\": 6000")];
    std::fs::write(&path, rows.concat()).expect("a writable folder");
    let text = format!(
        "kind = \"serving\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 1\n[trace]\n\
         file = \"{}\"\nformat = \"mooncake\"\n[engine]\nprefix_cache = true\n[policies]\nrun = [\"vllm-v1\"]\n",
        path.display()
    );
    let check = |more: &str| {
        let text = text.replace("format =", &format!("{more}format ="));
        super::written(text, &[])
    };
    let metrics = check("").scenario.expect("a good scenario").run(&|_| {}).results[0].metrics.clone();
    // Three turns with 4 and 6 s between an end and the next one: a little more than 10 s, and no user has thought.
    assert!(metrics["n_requests"] == 3.0 && (10.0..12.0).contains(&metrics["makespan_s"]), "{metrics:?}");
    // Prompts of 2,000, 4,020 and 6,040 tokens in blocks of 16. The second finds the 2,019 tokens of the first turn whose keys were computed, which are 126
    // whole blocks, and the third 4,039, which are 252.
    let expected = f64::from((2019 / 16 + 4039 / 16) * 16) / f64::from(2000 + 4020 + 6040);
    assert!((metrics["prefix_hit_ratio"] / expected - 1.0).abs() < 1e-9, "{metrics:?}");
    let told = |more: &str| check(more).findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>();
    assert!(told("think_s = 3.0\n").contains(&"`trace.think_s` changes nothing".to_owned()));
    for (key, what) in [
        ("sessions = { turns = 3 }\n", "`[trace.sessions]` beside requests that share prefixes already"),
        ("from_s = 1.0\n", "a window of a trace with `session_id`"),
    ] {
        let found = told(key);
        assert!(found.iter().any(|found| found.contains(what)), "{key}: {found:?}");
    }
    std::fs::remove_file(path).expect("it was written");
}

/// Whether a replica keeps a shared expert among the routed ones: a model on eight GPUs of a card, and how many of them hold different experts.
fn keeps_shared_among_routed(model: &str, gpu: &str, expert_degree: u32) -> bool {
    let text = format!(
        "kind = \"serving\"\n[model]\nname = \"{model}\"\nweights = \"fp8-block\"\n[cluster]\ngpu = \"{gpu}\"\nnodes = 1\ngpus_per_node = 8\n\
         [trace]\nlengths = \"azure-conv\"\nrequests = 10\narrivals = \"poisson\"\nrate_per_s = 1.0\n\
         [engine]\nname = \"sglang\"\nversion = \"0.5.9\"\ntp = 8\nep = {expert_degree}\n[policies]\nrun = [\"sglang\"]\n"
    );
    let serving = super::serving_of(text);
    serving.deployment_of(&serving.choices[0], &serving.groups[0]).shared_among_routed
}

#[test]
fn a_scenario_hands_on_what_an_engine_does_with_shared_experts() {
    assert!(keeps_shared_among_routed("deepseek-v3", "h200-sxm", 1));
    assert!(!keeps_shared_among_routed("deepseek-v3", "h200-sxm", 8));
    assert!(!keeps_shared_among_routed("deepseek-v3", "b200", 1));
    assert!(!keeps_shared_among_routed("glm-5", "h200-sxm", 1));
}
