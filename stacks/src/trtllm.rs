//! TensorRT-LLM: `trtllm-serve MODEL --tp_size …`, or the YAML of its options, becomes a serving scenario; meanings are in `tables/trtllm.tsv`.

pub(crate) mod disaggregated;
pub(crate) mod in_place;

use std::ops::Range;
use std::sync::LazyLock;

use input::diagnostic::{Code, Finding};

use crate::batching::CHUNKS;
use crate::client;
use crate::drafts::{Drafter, Drafts};
use crate::expert_kernel;
use crate::flags::{Flag, Flags, Table, word_behind};
use crate::launch::{self, Launch};
use crate::quantization::format;
use crate::serving::Server;
use crate::{Imported, Machine};
use disaggregated::Split;
use in_place::Written;

/// Options of TensorRT-LLM; keys inside others have their path.
pub static FLAGS: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("../tables/trtllm.tsv")));

/// Which word of a command begins the server; an offline benchmark has it in its own command.
pub(crate) fn begins(words: &[String]) -> Option<usize> {
    serves(words).filter(|at| !disaggregated::is_front(words, *at)).or_else(|| client::of_trtllm(words))
}

/// Which word of a command begins the server in front of a split fleet.
pub(crate) fn begins_front(words: &[String]) -> Option<usize> {
    serves(words).filter(|at| disaggregated::is_front(words, *at))
}

fn serves(words: &[String]) -> Option<usize> {
    words.iter().position(|word| word.rsplit('/').next() == Some("trtllm-serve"))
}

/// Keys of a file of options that no other stack has.
pub(crate) fn is_own_yaml(text: &str) -> bool {
    let keys = [
        "kv_cache_config:",
        "cuda_graph_config:",
        "enable_attention_dp:",
        "disable_overlap_scheduler:",
        "moe_expert_parallel_size:",
        "context_servers:",
        "generation_servers:",
    ];
    // Inside of others these are keys of other stacks too.
    let outer = ["max_num_tokens:", "max_batch_size:", "kv_cache_free_gpu_memory_fraction:", "moe_config:"];
    launch::lines(text).any(|line| keys.iter().any(|key| line.starts_with(key)))
        || text.lines().any(|line| outer.iter().any(|key| line.starts_with(key)))
}

/// Whether a text is a script that starts servers, and no file of options.
pub(crate) fn is_script(text: &str) -> bool {
    launch::has_any(text, &["trtllm-serve", client::OF_TRTLLM])
}

/// Reads a file of options.
pub fn import(text: &str, machine: &Machine) -> Imported {
    match launch::of_unfolded_yaml(text) {
        Ok(launch) => {
            let (server, flags) = server(launch, machine);
            server.import(flags, machine)
        }
        Err(finding) => Imported::refused(finding),
    }
}

/// Names of the tensor degree.
const TENSOR: [&str; 2] = ["tp-size", "tensor-parallel-size"];
/// Names of the flag that gives a file of options.
const FILES: [&str; 2] = ["config", "extra-llm-api-options"];

/// A launch with the options of the file that its script writes (`cat >options.yaml <<'END'`), or that lies beside it. Others stay unread.
pub(crate) fn with_options(mut launch: Launch, text: &str, machine: &Machine) -> Launch {
    let Some(asked) = launch.flags.iter().position(|flag| FILES.contains(&flag.name.as_str())) else { return launch };
    let flag = &launch.flags[asked];
    let Some(mut options) = file(text, &flag.value(), &flag.at, machine) else { return launch };
    launch.flags.remove(asked);
    // The file overwrites the command (`trtllm-serve --help`, 1.2): the last counts.
    launch.flags.append(&mut options.flags);
    launch
}

/// Keys of a file that a script writes, or that lies beside it: those of the latter have the place of what names it.
fn file(text: &str, name: &str, at: &Range<usize>, machine: &Machine) -> Option<Launch> {
    if let Some(written) = Written::of(text, name) {
        return written.options(text);
    }
    let beside = machine.beside(launch::bare(name)?)?;
    launch::of_unfolded_yaml(beside).ok().map(|options| options.moved_to(at))
}

/// The fleet that the file of a server in front says; `None` where nobody has the file.
pub(crate) fn split(front: &Launch, text: &str, machine: &Machine) -> Option<Result<Split, Finding>> {
    let flag = front.flags.iter().find(|flag| OF_FRONT.contains(&flag.name.as_str()))?;
    let name = flag.value();
    let body = Written::of(text, &name).and_then(|written| written.filled(text));
    let body = body.or_else(|| machine.beside(launch::bare(&name)?).map(str::to_owned))?;
    let moved = |mut split: Split| {
        let flags = split.servers.iter_mut().flat_map(|servers| &mut servers.flags);
        flags.for_each(|option| option.at = flag.at.clone());
        split.findings.iter_mut().for_each(|finding| finding.at = Some(flag.at.clone()));
        split
    };
    Some(disaggregated::read(&body).map(moved))
}

/// Names of the flag that gives the file of a split fleet.
const OF_FRONT: [&str; 3] = ["c", "config", "config-file"];

/// Files that commands of a script name, and that are read with it.
pub(crate) fn named_beside(text: &str) -> Vec<String> {
    if is_script(text) { launch::files_behind(text, &[&FILES[..], &OF_FRONT].concat()) } else { Vec::new() }
}

/// Most iterations for which prompts wait.
const WAIT_MAX: u64 = 100_000;
/// Tokens of an iteration where they are not said (`max_num_tokens`).
const TOKENS_MAX: u64 = 8192;
/// Iterations of `attention_dp_config` where they are not said (`AttentionDpConfig` in tensorrt_llm/llmapi/llm_args.py, 1.2): until the next opening, and
/// behind the last prompt.
const RANK_WAIT: [u64; 2] = [50, 10];

/// Whether a key of a file is there without a value and without keys inside.
fn is_null(flags: &Flags<'_>, name: &str) -> bool {
    let is_inside = |flag: &Flag| flag.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    let value = flags.find(name).map(Flag::value);
    value.is_some_and(|value| ["", "~", "null", "Null", "NULL"].contains(&value.as_str()))
        && !flags.given.iter().any(is_inside)
}

/// How long prompts wait for others. With data-parallel attention the engine looks at ranks alone, without it at tokens alone.
fn batch_wait(flags: &mut Flags<'_>, n_ranks: u64) -> Option<String> {
    let timeout = flags.count("batch-wait-timeout-iters", 0..=WAIT_MAX);
    let ratio = flags.number("batch-wait-max-tokens-ratio");
    let [iterations, more] = ["timeout-iters", "batching-wait-iters"]
        .map(|name| flags.count(&format!("attention-dp-config.{name}"), 0..=WAIT_MAX));
    let is_balanced = flags.is("attention-dp-config.enable-balance");
    if n_ranks > 1 {
        let [iterations, more] = [iterations.unwrap_or(RANK_WAIT[0]), more.unwrap_or(RANK_WAIT[1])];
        let wait = format!("{{ iterations = {iterations}, until = \"ranks\", more_iterations = {more} }}");
        return (is_balanced && iterations > 0).then_some(wait);
    }
    let (iterations, ratio) = (timeout.filter(|n| *n > 0)?, ratio.filter(|ratio| *ratio > 0.0)?);
    let tokens = flags.count("max-num-tokens", 1..=1 << 20).unwrap_or(TOKENS_MAX);
    let enough = (hw::real(tokens) * ratio.min(1.0)).ceil().max(1.0);
    Some(format!("{{ iterations = {iterations}, enough_tokens = {enough} }}"))
}

/// Names of the degree of experts.
const EP: [&str; 2] = ["ep-size", "moe-expert-parallel-size"];

/// GPUs that share the experts; without a degree of their own they stay cut over the tensor group (`tensorrt_llm/mapping.py`, 1.2).
fn experts(server: &mut Server, flags: &mut Flags<'_>) {
    server.ep = Server::degree(flags, &EP);
    if !flags.is("enable-attention-dp") {
        return server.hybrid_experts(flags, &EP);
    }
    // Attention is data-parallel over what is otherwise the tensor group.
    if server.ep.unwrap_or(1) != server.tp && server.has_experts() != Some(false) {
        let name = flags.last_of(&EP).unwrap_or("enable-attention-dp");
        server.cut_experts(flags, name, "give a degree of experts as wide as the tensor degree");
    }
    server.ep = Some(server.tp);
    (server.tp, server.dp) = (1, server.tp);
}

/// Prompts that are cut by the tokens of an iteration, decodes first: chunked context of TensorRT-LLM is the rule that is called `sarathi` here.
fn chunks(server: &mut Server, flags: &Flags<'_>) {
    if flags.is("enable-chunked-prefill") {
        server.policy = CHUNKS;
    }
}

/// How long prompts wait for others, which those that are cut do not do here.
fn waits(server: &mut Server, flags: &mut Flags<'_>) {
    let Some(wait) = batch_wait(flags, server.dp) else { return };
    if server.policy == CHUNKS {
        let name = if server.dp > 1 { "attention-dp-config.enable-balance" } else { "batch-wait-timeout-iters" };
        flags.not_modelled(name, "prompts that are cut wait for no others");
    } else {
        server.key("batch_wait", wait, "how long prompts wait for others");
    }
}

/// Format of keys and values: their own option counts, which was no part of another before 1.0 (`PyTorchConfig`), else the algorithm beside that of the weights (`sync_quant_config_with_kv_cache_config_dtype` in
/// tensorrt_llm/llmapi/llm_args.py).
fn kv_format(flags: &mut Flags<'_>) -> Option<&'static str> {
    let own = format(flags, "kv-cache-config.dtype").or_else(|| format(flags, "kv-cache-dtype"));
    own.or_else(|| format(flags, "quant-config.kv-cache-quant-algo"))
}

/// The option of what must be free for whoever is admitted.
const CAPACITY: &str = "scheduler-config.capacity-scheduler-policy";

/// Which blocks must be free for whoever is admitted.
fn capacity_policy(flags: &mut Flags<'_>) -> Option<&'static str> {
    let words = [("GUARANTEED_NO_EVICT", "\"guaranteed_no_evict\""), ("MAX_UTILIZATION", "\"max_utilization\"")];
    refuse_static(flags);
    flags.find(CAPACITY).filter(|flag| flag.value() != STATIC[0].1)?;
    flags.word(CAPACITY, &words)
}

/// Options by which a batch is left by all at once, and joined by nobody before that (`CapacitySchedulerPolicy` and `BatchingType` in
/// tensorrt_llm/llmapi/llm_args.py, 1.2).
const STATIC: [(&str, &str); 2] = [(CAPACITY, "STATIC_BATCH"), ("batching-type", "STATIC")];

/// Refuses such batches: here whoever is done leaves room for the next request at once.
fn refuse_static(flags: &mut Flags<'_>) {
    for (name, word) in STATIC {
        if flags.find(name).is_some_and(|flag| flag.value() == word) {
            let what = format!(
                "`{} {word}`: batches that nobody joins before all of them are done are not modelled",
                flags.shown(name)
            );
            let help = "leave the key out: requests then join a batch as others leave it, which is faster";
            flags.refuse(Code::UnsupportedJob, flags.at(name), what, help);
        }
    }
}

/// Whether an option takes no value (`is_flag` in tensorrt_llm/commands/serve.py, 1.2).
fn is_switch(name: &str) -> bool {
    ["trust-remote-code", "enable-chunked-prefill", "fail-fast-on-attention-window-too-large"].contains(&name)
}

/// What its options say, and the options.
pub(crate) fn server(launch: Launch, machine: &Machine) -> (Server, Flags<'static>) {
    let Launch { program, flags, findings, launcher, .. } = launch;
    let mut flags = Flags::new(flags, &FLAGS);
    flags.findings = findings;
    let mut server = Server::new("trtllm", "trtllm");
    let words = program.iter().skip(1).find(|word| *word != "serve" && !word.starts_with('-'));
    let words = words.cloned();
    let is_missing = words.is_none() && !program.is_empty() && flags.find("model").is_none();
    let behind = if is_missing { word_behind(&mut flags.given, is_switch, &[]) } else { None };
    let given = flags.text("model").or(words).or(behind);
    server.named(&mut flags, machine, given);
    server.tp = Server::degree(&mut flags, &TENSOR).unwrap_or(1);
    server.pp = Server::degree(&mut flags, &["pp-size", "pipeline-parallel-size"]).unwrap_or(1);
    experts(&mut server, &mut flags);
    server.divides_heads(&mut flags, &TENSOR, machine);
    server.nodes = Server::degree(&mut flags, &["gpus-per-node"]).map(|per_node| server.n_gpus().div_ceil(per_node));
    server.started_by(&launcher);
    // An option is of one micro-batch, and every stage has one (`get_max_num_sequences` in tensorrt_llm/_torch/pyexecutor/model_engine.py).
    server.times(&mut flags, ("max_sequences", "max-batch-size"), server.pp);
    server.count(&mut flags, "max_tokens", &["max-num-tokens"], 1 << 20);
    chunks(&mut server, &flags);
    waits(&mut server, &mut flags);
    server.count(&mut flags, "stream_interval", &["stream-interval"], 100_000);
    // With none the proxy does it.
    if flags.find("num-postprocess-workers").is_none_or(|flag| flag.value() != "0") {
        server.count(&mut flags, "api_servers", &["num-postprocess-workers"], 65_536);
    }
    server.count(&mut flags, "max_context", &["max-seq-len"], 100_000_000);
    if let Some(policy) = capacity_policy(&mut flags) {
        server.key("capacity_policy", policy, CAPACITY);
    }
    server.count(&mut flags, "block_tokens", &["kv-cache-config.tokens-per-block"], 4096);
    server.share(
        &mut flags,
        &["kv-cache-free-gpu-memory-fraction", "free-gpu-memory-fraction", "kv-cache-config.free-gpu-memory-fraction"],
    );
    if let Some(is_reused) =
        flags.find("kv-cache-config.enable-block-reuse").and_then(|flag| flag.value().parse::<bool>().ok())
    {
        server.key("prefix_cache", is_reused, "kv_cache_config.enable_block_reuse");
    }
    if is_null(&flags, "cuda-graph-config") {
        server.key("graph_max", 0, "cuda_graph_config: null");
    } else {
        server.graphs(&mut flags, &["cuda-graph-config.batch-sizes"], &["cuda-graph-config.max-batch-size"]);
        let padding = flags.find("cuda-graph-config.enable-padding");
        if let Some(pads) = padding.and_then(|flag| flag.value().to_lowercase().parse::<bool>().ok()) {
            server.key("graph_padding", pads, "cuda_graph_config.enable_padding");
        }
    }
    if flags.is("disable-overlap-scheduler") {
        server.key("loop", "\"serial\"", "disable_overlap_scheduler");
    }
    server.expert_kernel(expert_kernel::of_trtllm(&mut flags));
    server.formats = [format(&mut flags, "quant-config.quant-algo"), kv_format(&mut flags)];
    if flags.is("speculative-config.decoding-type") {
        let n = flags.count("speculative-config.max-draft-len", 1..=64);
        let n = n.or_else(|| flags.count("speculative-config.num-nextn-predict-layers", 1..=64));
        let method = flags.text("speculative-config.decoding-type").unwrap_or_default();
        let model = flags.text("speculative-config.speculative-model-dir");
        server.drafts = Some(Drafts::chain(n.unwrap_or(1), Drafter::of("trtllm", &method, model)));
    }
    (server, flags)
}
