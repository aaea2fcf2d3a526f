//! Clients of published benchmarks: what a script measures a server with becomes the requests of the scenario.
//!
//! A script starts a server and then a client that sends it requests. Offline benchmarks are both in one command. What options mean is that of
//! `tables/clients.tsv`. What the command line states of requests is not read, so that nothing is written twice.

mod arrivals;
mod body;
pub(crate) mod drawn;
mod guidellm;
mod lengths;
mod limits;
mod offline;
mod perf;
mod prepared;
mod reader;
mod sampling;
mod serving;
#[cfg(test)]
mod tests;
mod unpriced;

use std::ops::Range;
use std::sync::LazyLock;

use input::diagnostic::{Code, Finding};

use crate::Machine;
use crate::flags::{Effect, Table};
use crate::launch::{self, Begins, Begun, Launch};
use offline::Batch;
use reader::Reader;
use serving::Serving;

pub(crate) use offline::{OF_SGLANG, OF_TRTLLM, OF_VLLM, leave_one, of_sglang, of_trtllm, of_vllm, without_client};

/// What a client asks for: keys, each with its value and the options that gave it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Asked {
    /// Those of `[trace]`, in the order of the scenario.
    pub(crate) keys: Vec<(&'static str, String, String)>,
    /// Those of `[slo]`.
    pub(crate) limits: Vec<(&'static str, String, String)>,
    /// How tokens are drawn.
    pub(crate) drawn: drawn::Drawn,
    /// Whether requests are chats, whose text the server renders.
    pub(crate) is_chat: bool,
}

impl Asked {
    /// Whether it gives a key.
    pub(crate) fn gives(&self, key: &str) -> bool {
        self.keys.iter().any(|(known, ..)| *known == key)
    }
}

/// How the options of a client are read.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Those of vLLM's first client and its descendants.
    Serving(&'static Serving),
    /// AIPerf and GenAI-Perf before it.
    Perf(perf::Which),
    /// GuideLLM.
    Guidellm,
    /// A batch of prompts that are alike.
    Batch(&'static Batch),
    /// TensorRT-LLM's offline benchmark.
    TrtllmBench,
}

/// A client that is read.
#[derive(Clone, Copy, Debug)]
struct Client {
    /// As messages name it.
    name: &'static str,
    /// As the table names it.
    word: &'static str,
    /// Which word of a command begins it.
    begins: Begins,
    /// Whether the engine runs in the same command.
    is_offline: bool,
    kind: Kind,
}

/// A client that sends requests to a server.
const fn online(name: &'static str, word: &'static str, begins: Begins, kind: Kind) -> Client {
    Client { name, word, begins, is_offline: false, kind }
}

/// A benchmark with the engine in its own command.
const fn engine(name: &'static str, word: &'static str, begins: Begins, kind: Kind) -> Client {
    Client { name, word, begins, is_offline: true, kind }
}

/// Every client; of a command the first that begins in it counts.
static CLIENTS: [Client; 14] = [
    online("vllm bench serve", "vllm", vllm_bench_serve, Kind::Serving(&serving::VLLM)),
    online("run_benchmark_serving", "inferencex", inferencex_function, Kind::Serving(&serving::INFERENCEX_FUNCTION)),
    online("InferenceX's benchmark_serving.py", "inferencex", inferencex, Kind::Serving(&serving::INFERENCEX)),
    online("TensorRT-LLM's benchmark_serving", "trtllm", trtllm_serving, Kind::Serving(&serving::TRTLLM)),
    online("benchmark_serving.py", "older", older, Kind::Serving(&serving::OLDER)),
    online("sglang.bench_serving", "sglang", sglang, Kind::Serving(&serving::SGLANG)),
    online("aiperf", "aiperf", aiperf, Kind::Perf(perf::Which::Aiperf)),
    online("genai-perf", "genai-perf", genai_perf, Kind::Perf(perf::Which::GenaiPerf)),
    online("guidellm", "guidellm", guidellm, Kind::Guidellm),
    engine("vllm bench throughput", "throughput", offline::vllm_throughput, Kind::Serving(&serving::THROUGHPUT)),
    engine("vllm bench latency", "latency", offline::vllm_latency, Kind::Batch(&offline::LATENCY)),
    engine("sglang.bench_offline_throughput", "offline", offline::sglang, Kind::Serving(&serving::OFFLINE)),
    engine("sglang.bench_one_batch", "batch", offline::sglang_batch, Kind::Batch(&offline::ONE_BATCH)),
    engine("trtllm-bench", "trtllm-bench", offline::of_trtllm, Kind::TrtllmBench),
];

/// Options of each client, in the order of `CLIENTS`.
static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| {
    let text = include_str!("../tables/clients.tsv");
    CLIENTS.iter().map(|client| Table::of_program(text, client.word)).collect()
});

/// Options of a client by its word in the table.
#[cfg(test)]
pub(crate) fn table(word: &str) -> &'static Table {
    &TABLES[CLIENTS.iter().position(|client| client.word == word).expect("a client")]
}

/// What begins each of them.
static BEGINS: LazyLock<Vec<Begins>> = LazyLock::new(|| CLIENTS.iter().map(|client| client.begins).collect());

/// The last part of a path.
fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// The position of a program with such a verb behind it.
fn with_verb(words: &[String], program: &str, verbs: &[&str]) -> Option<usize> {
    words.windows(2).position(|pair| base(&pair[0]) == program && verbs.contains(&pair[1].as_str()))
}

/// The position of `vllm bench` with such a verb behind it; the command line of vLLM is a module too.
fn vllm_bench(words: &[String], verb: &str) -> Option<usize> {
    words.windows(3).position(|three| {
        let is_vllm = base(&three[0]) == "vllm" || three[0].contains("vllm.entrypoints.cli");
        is_vllm && three[1] == "bench" && three[2] == verb
    })
}

/// The position of a word that holds one of such names.
fn holding(words: &[String], names: &[&str]) -> Option<usize> {
    words.iter().position(|word| names.iter().any(|name| word.contains(name)))
}

fn vllm_bench_serve(words: &[String]) -> Option<usize> {
    vllm_bench(words, "serve")
}

/// The function of InferenceX's scripts that runs its copy of the client (`benchmarks/benchmark_lib.sh` @ 843c6254ff69).
fn inferencex_function(words: &[String]) -> Option<usize> {
    let at = words.iter().position(|word| word == "run_benchmark_serving")?;
    words[at..].iter().any(|word| word.starts_with("--")).then_some(at)
}

/// InferenceX's copy lies in a folder of its own (`utils/bench_serving`).
fn inferencex(words: &[String]) -> Option<usize> {
    holding(words, &["bench_serving/benchmark_serving.py"])
}

fn trtllm_serving(words: &[String]) -> Option<usize> {
    holding(words, &["serve.scripts.benchmark_serving", "serve/scripts/benchmark_serving.py"])
}

/// vLLM's file before there was a verb, and copies of it.
fn older(words: &[String]) -> Option<usize> {
    words.iter().position(|word| base(word) == "benchmark_serving.py")
}

fn sglang(words: &[String]) -> Option<usize> {
    holding(words, &["sglang.bench_serving", "sglang.benchmark.serving", "sglang/bench_serving.py"])
}

fn aiperf(words: &[String]) -> Option<usize> {
    with_verb(words, "aiperf", &["profile"])
}

fn genai_perf(words: &[String]) -> Option<usize> {
    with_verb(words, "genai-perf", &["profile"])
}

fn guidellm(words: &[String]) -> Option<usize> {
    with_verb(words, "guidellm", &["benchmark", "run"])
}

/// Whether a command starts a client that sends requests to a server, and no server.
pub(crate) fn is_one(words: &[String]) -> bool {
    CLIENTS.iter().any(|client| !client.is_offline && (client.begins)(words).is_some())
}

/// What begins each client.
pub(crate) fn begins() -> &'static [Begins] {
    &BEGINS
}

/// What the client of a script asks of its server, and what is wrong with it; `None` where no client is started. Where a server is started beside it, an
/// offline benchmark measures an engine of its own.
pub(crate) fn of(text: &str, machine: &Machine, has_server: bool) -> Option<(Asked, Vec<Finding>)> {
    let matters = |index: usize, flag: &str| TABLES[index].effect(flag, "") != Some(Effect::Silent);
    let all = launch::begun(text, &BEGINS, &matters).ok()?;
    of_begun(&all, (text, machine), has_server)
}

/// The same of the clients that a file starts, by their positions in `begins`.
pub(crate) fn of_begun(
    all: &[Begun],
    (text, machine): (&str, &Machine),
    has_server: bool,
) -> Option<(Asked, Vec<Finding>)> {
    let position = all.iter().position(|one| CLIENTS[one.which].is_offline != has_server)?;
    let client = &CLIENTS[all[position].which];
    let others = others(text, all, position);
    let Launch { flags, mut findings, .. } = all[position].launch.clone();
    if client.is_offline {
        // What is wrong with the words of the command is said with the engine's.
        findings.clear();
    }
    findings.extend(others);
    let table = &TABLES[all[position].which];
    let own = if client.is_offline { offline::of_client(flags, table) } else { flags };
    let mut read = Reader::new(client.name, own, table, machine);
    match client.kind {
        Kind::Serving(serving) => serving::read(&mut read, serving),
        Kind::Perf(which) => perf::read(&mut read, which),
        Kind::Guidellm => guidellm::read(&mut read),
        Kind::Batch(batch) => offline::read_batch(&mut read, batch),
        Kind::TrtllmBench => prepared::read(&mut read, text),
    }
    limits::read(&mut read);
    let (asked, more) = read.done();
    findings.extend(more);
    Some((asked, findings))
}

/// Lines that a warning names; further ones are counted.
const LINES_MAX: usize = 8;

/// A warning about further clients of a script, of which the first is read.
fn others(text: &str, all: &[Begun], position: usize) -> Option<Finding> {
    let (read, own) = (&all[position].at, &all[position].launch);
    let differs = |one: &&Begun| one.launch.flags != own.flags || one.launch.program != own.program;
    let others: Vec<&Begun> = all.iter().filter(differs).collect();
    if others.is_empty() {
        return None;
    }
    let lines: Vec<String> = others.iter().take(LINES_MAX).map(|one| line(text, &one.at).to_string()).collect();
    let more = others.len().saturating_sub(LINES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let what = format!("{} commands measure a server: this one is read", others.len() + 1);
    let help = format!("not read: line {}{more}; leave the one in the script that is meant", lines.join(", "));
    Some(Finding::warning(Code::NotModelled, Some(read.clone()), what).help(help))
}

/// The line of a place.
fn line(text: &str, at: &Range<usize>) -> usize {
    text.get(..at.start).unwrap_or_default().matches('\n').count() + 1
}
