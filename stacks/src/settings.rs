//! Settings that a scenario writes for its engines, as flags of servers: every key is held by the deployment, said by a flag, told in a remark, or refused.
//!
//! A deployment holds degrees and sizes. What else a user wrote about the engine comes here by its key, so that no export loses it in silence. What is
//! measured of a machine, or done by clients, changes no server: a remark tells it. Sources of the flags: those of `servers.rs` and `tables/`.

use std::collections::BTreeMap;

use serde_json::Value;

mod drafts;
mod graphs;
pub(crate) mod groups;
mod weights;

pub(crate) use weights::{has_layers, names};

use crate::adapters;
use crate::expert_kernel;
use crate::host_weights;

/// Values by key, as `engine.scheduling`.
pub type Settings = BTreeMap<String, Value>;

/// Servers whose flags are written, in the order of the columns below.
const SERVERS: [&str; 3] = ["vllm", "sglang", "trtllm"];

/// What a server is told of a value: words of its command, or options of its file as `section.key: value`.
#[derive(Clone, Copy)]
enum Told {
    /// A flag with the value behind it.
    Flag(&'static str),
    /// Nothing: it is what the server does anyway. It has no words for other values.
    Only(&'static str),
    /// The same of a number.
    OnlyNumber(u64),
    /// What a function says; `None` where there are no words for that value.
    By(fn(&Value) -> Option<Vec<String>>),
    /// There are no words.
    Nothing,
}
use Told::{By, Flag, Nothing, Only, OnlyNumber};

impl Told {
    fn words(self, value: &Value) -> Option<Vec<String>> {
        let plain = || value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match self {
            Flag(flag) => Some(one(format!("{flag} {}", plain()))),
            Only(usual) => (value == usual).then(Vec::new),
            OnlyNumber(usual) => (value.as_u64() == Some(usual)).then(Vec::new),
            By(say) => say(value),
            Nothing => None,
        }
    }
}

/// What becomes of a key.
#[derive(Clone, Copy)]
enum Row {
    /// The deployment holds it, and the command says it.
    Held,
    /// No server is told of it: a remark.
    Remark,
    /// Words for each server.
    Told([Told; 3]),
    /// Words for one server, a remark for others.
    ToldTo(&'static str, Told),
    /// No server has words for it.
    Nowhere,
}

/// Every key of engines.
const ROWS: [(&str, Row); 69] = [
    ("engine.adapters", Row::Told([By(adapters::for_vllm), By(adapters::for_sglang), By(adapters::for_trtllm)])),
    ("engine.all_reduce", Row::Told([By(reduces_vllm), By(reduces_sglang), Only("auto")])),
    ("engine.api_servers", Row::Told([Flag("--api-server-count"), Flag("--tokenizer-worker-num"), By(workers_trtllm)])),
    ("engine.batch_wait", Row::Held),
    ("engine.batcher", Row::Held),
    ("engine.block_tokens", Row::Held),
    ("engine.capacity_policy", Row::Told([By(capacity_vllm), Only("max_utilization"), By(capacity_trtllm)])),
    ("engine.chunk_sizes", Row::Told([Only("equal"), By(sizes_sglang), Only("equal")])),
    ("engine.chunk_tokens", Row::Told([Flag("--long-prefill-token-threshold"), Nothing, Nothing])),
    ("engine.chunk_tokens_min", Row::Nowhere),
    ("engine.context_per_decode", Row::Held),
    ("engine.copy_gb_per_s", Row::Remark),
    ("engine.costs", Row::Remark),
    ("engine.detokenize_us_per_sequence", Row::Remark),
    ("engine.dispatcher", Row::Told([By(dispatcher_vllm), By(dispatcher_sglang), Only("auto")])),
    ("engine.encoder_tp", Row::Told([By(encoder_vllm), By(encoder_sglang), Nothing])),
    ("engine.ep", Row::Held),
    ("engine.eviction", Row::Told([Only("lru"), Flag("--radix-eviction-policy"), Only("lru")])),
    ("engine.expert_counts", Row::Remark),
    (
        "engine.expert_kernel",
        Row::Told([By(expert_kernel::for_vllm), By(expert_kernel::for_sglang), By(expert_kernel::for_trtllm)]),
    ),
    ("engine.expert_skew", Row::Remark),
    ("engine.ffn", Row::Nowhere),
    ("engine.framework", Row::Remark),
    ("engine.graph_max", Row::Told([By(graphs::most_vllm), By(graphs::most_sglang), By(graphs::most_trtllm)])),
    (
        "engine.graph_padding",
        Row::Told([By(graphs::padding_vllm), By(graphs::padding_sglang), Flag("cuda_graph_config.enable_padding:")]),
    ),
    ("engine.graph_sizes", Row::Told([By(graphs::sizes_vllm), By(graphs::sizes_sglang), By(graphs::sizes_trtllm)])),
    ("engine.hand_over", Row::Held),
    ("engine.host_us_per_expert_layer", Row::Remark),
    ("engine.host_us_per_intricate_layer", Row::Remark),
    ("engine.host_us_per_layer", Row::Remark),
    ("engine.host_us_per_sequence", Row::Remark),
    ("engine.host_us_per_step", Row::Remark),
    ("engine.host_weights", Row::Told([By(host_weights::vllm), By(host_weights::sglang), Nothing])),
    ("engine.kv_blocks", Row::Told([Flag("--num-gpu-blocks-override"), Nothing, Nothing])),
    ("engine.layer_times", Row::Remark),
    ("engine.link_gb_per_s", Row::Remark),
    ("engine.loop", Row::Told([By(loop_vllm), By(loop_sglang), By(loop_trtllm)])),
    ("engine.lose_gpu_of_machine", Row::Remark),
    ("engine.max_context", Row::Held),
    ("engine.max_sequences", Row::Held),
    ("engine.max_tokens", Row::Held),
    (
        "engine.memory_ratio",
        Row::Told([
            Flag("--gpu-memory-utilization"),
            Flag("--mem-fraction-static"),
            Flag("--kv_cache_free_gpu_memory_fraction"),
        ]),
    ),
    ("engine.name", Row::Remark),
    ("engine.pp", Row::Held),
    ("engine.preemption", Row::Told([Only("recompute"), Only("recompute"), Only("recompute")])),
    ("engine.prefill_attention", Row::Nowhere),
    ("engine.prefix_cache", Row::Held),
    ("engine.prompt_graph_max", Row::Told([By(graphs::prompts_vllm), By(graphs::prompts_sglang), OnlyNumber(0)])),
    ("engine.prompt_rank", Row::Held),
    ("engine.prompt_tokens_max", Row::Held),
    ("engine.rates", Row::Remark),
    ("engine.recv_interval", Row::Told([OnlyNumber(1), By(held), OnlyNumber(1)])),
    ("engine.redundant_experts", Row::Told([By(again_vllm), By(again_sglang), Nothing])),
    ("engine.reserved_gib", Row::Remark),
    ("engine.scheduling", Row::Told([Flag("--scheduling-policy"), By(order_sglang), Only("fcfs")])),
    ("engine.speculation", Row::Told([By(drafts::vllm), By(drafts::sglang), By(drafts::trtllm)])),
    ("engine.start_ms", Row::Remark),
    ("engine.stream_interval", Row::Told([Flag("--stream-interval"), Flag("--stream-interval"), By(interval_trtllm)])),
    ("engine.stream_us_per_token", Row::Remark),
    ("engine.swap_gib", Row::Nowhere),
    ("engine.tiers", Row::Told([By(tiers_vllm), Nothing, Nothing])),
    ("engine.tokenize_us_per_token", Row::Remark),
    ("engine.tp", Row::Held),
    ("engine.two_batch_overlap", Row::Told([By(overlap_vllm), By(overlap_sglang), Nothing])),
    ("engine.version", Row::Remark),
    ("engine.watermark_ratio", Row::ToldTo("vllm", Flag("--watermark"))),
    ("engine.weights", Row::Told([By(weights::vllm), By(weights::sglang), By(weights::trtllm)])),
    ("engine.wire_bits", Row::Told([OnlyNumber(16), OnlyNumber(16), OnlyNumber(16)])),
    ("model.name", Row::Held),
];

/// Keys of `[kv]`: where nobody borrows they say nothing.
const LENDING: [&str; 4] = ["kv.borrow", "kv.heartbeat_s", "kv.lend_ratio", "kv.moves"];

/// Keys of `[trace]` about clients: the load is no part of a server.
const CLIENTS: [&str; 5] =
    ["trace.adapters", "trace.cancel_ratio", "trace.first_token_timeout_s", "trace.priority", "trace.timeout_s"];

/// What lies between the groups of a fleet.
const LINKS: &str = "fleet.link";

/// What a server is told besides the deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    /// Words of its command, or lines of its file of options.
    pub(crate) words: Vec<String>,
    /// What remarks tell, by key.
    pub(crate) remarks: Vec<String>,
    /// Sentences for remarks.
    pub(crate) notes: Vec<&'static str>,
    /// Keys for which it has no words.
    pub(crate) unsaid: Vec<String>,
    /// Image of its version, where another one than the newest is named.
    pub(crate) image: Option<String>,
    /// Whether experts lie whole on their GPUs, also on those of one tensor group.
    pub(crate) has_whole_experts: bool,
}

impl Said {
    /// What is predicted and no server is told of, as remarks.
    pub(crate) fn lines(&self) -> String {
        let of_no_flag = |remark| format!("# The prediction has {remark}, of which no flag tells the server.\n");
        let notes = self.notes.iter().map(|note| format!("# {note}\n"));
        self.remarks.iter().map(of_no_flag).chain(notes).collect()
    }
}

/// Whether a key is held, said, told or refused on purpose.
pub fn knows(key: &str) -> bool {
    row(&Settings::new(), key).is_some()
}

/// What becomes of a key; `None` where nobody knows it.
fn row(settings: &Settings, key: &str) -> Option<Row> {
    // The checkpoint is named by the command.
    if key.starts_with("fleet.") && key.ends_with(".model") {
        return Some(Row::Held);
    }
    // How a fleet routes, grows and fails is no setting of a server.
    if CLIENTS.contains(&key) || key.starts_with("fleet.") {
        return Some(Row::Remark);
    }
    if LENDING.contains(&key) {
        let lends = settings.get("kv.borrow").is_some_and(|borrow| borrow != "never");
        return Some(if lends { Row::Nowhere } else { Row::Remark });
    }
    // An iteration has no more anyway.
    let number = |key: &str| settings.get(key).and_then(Value::as_u64);
    if key == "engine.chunk_tokens" && number("engine.max_tokens").is_some_and(|most| number(key) >= Some(most)) {
        return Some(Row::Held);
    }
    ROWS.iter().find(|(known, _)| *known == key).map(|(_, row)| *row)
}

/// What one of the servers is told of all settings.
pub(crate) fn said(settings: &Settings, server: &str) -> Said {
    let has_whole_experts = settings.get("engine.ep").and_then(Value::as_u64).is_some_and(|ep| ep > 1);
    let mut said = Said { has_whole_experts, ..Said::default() };
    let column = SERVERS.iter().position(|known| *known == server);
    for (key, value) in settings {
        let told = |told: Told| told.words(value).filter(|_| column.is_some());
        match row(settings, key) {
            Some(Row::Held) => {}
            // The script itself starts it.
            Some(Row::Remark) if key == "engine.name" && value == server => {}
            Some(Row::Remark) if key == LINKS && groups::is_packed(value) => {
                said.unsaid.push(format!("`{key} = {value}`"))
            }
            Some(Row::ToldTo(to, told)) if to == server => said.words.extend(told.words(value).unwrap_or_default()),
            Some(Row::Remark | Row::ToldTo(..)) => said.remarks.push(format!("{key} = {value}")),
            Some(Row::Told(_))
                if server == "sglang" && key == "engine.loop" && value == "async" && is_awaited(settings) =>
            {
                said.unsaid.push(format!(
                    "`{key} = {value}` (beside drafts of the text, or trees of them, the loop is serial)"
                ));
            }
            Some(Row::Told(columns)) => match told(columns[column.unwrap_or(0)]) {
                Some(words) => said.words.extend(words),
                None => said.unsaid.push(format!("`{key} = {value}`{}", why_unsaid(key, value))),
            },
            Some(Row::Nowhere) | None => said.unsaid.push(format!("`{key} = {value}`")),
        }
        if key == "engine.weights" {
            said.notes.extend(weights::of_checkpoint(value, server));
            match weights::of_wide_keys(settings, server) {
                Some(words) => said.words.extend(words),
                None => said.unsaid.push(format!("`{key} = {value}` (the checkpoint has 8-bit keys and values)")),
            }
        }
    }
    said
}

/// Whether SGLang's host waits for every step of what is drafted.
fn is_awaited(settings: &Settings) -> bool {
    settings.get("engine.speculation").is_some_and(drafts::are_awaited)
}

/// Why a server has no words for a value, where that is not plain.
fn why_unsaid(key: &str, value: &Value) -> &'static str {
    if key == "engine.speculation" { drafts::why_unsaid(value) } else { "" }
}

/// The deployment holds it, and the command says it.
const fn held(_: &Value) -> Option<Vec<String>> {
    Some(Vec::new())
}

fn one(word: String) -> Vec<String> {
    vec![word]
}

/// Later chunks shrink by a law that SGLang fits itself; it does so over a pipeline alone.
fn sizes_sglang(value: &Value) -> Option<Vec<String>> {
    match value.as_str()? {
        "equal" => Some(Vec::new()),
        "equal-time" => Some(one("--enable-dynamic-chunking".to_owned())),
        _ => None,
    }
}

/// Norms inside of all-reduces, or not (vLLM, `PassConfig`).
fn reduces_vllm(value: &Value) -> Option<Vec<String>> {
    let is_fused = match value.as_str()? {
        "auto" => return Some(Vec::new()),
        word => word == "fused",
    };
    Some(one(format!("--compilation-config.pass_config.fuse_allreduce_rms {is_fused}")))
}

fn reduces_sglang(value: &Value) -> Option<Vec<String>> {
    match value.as_str()? {
        "auto" => Some(Vec::new()),
        "fused" => Some(one("--enable-flashinfer-allreduce-fusion".to_owned())),
        "separate" => Some(one("--enforce-disable-flashinfer-allreduce-fusion".to_owned())),
        _ => None,
    }
}

/// Experts that lie twice, and that all are packed by load.
fn again_vllm(value: &Value) -> Option<Vec<String>> {
    let config = serde_json::json!({ "num_redundant_experts": value.as_u64()? });
    Some(vec!["--enable-eplb".to_owned(), format!("--eplb-config '{config}'")])
}

fn again_sglang(value: &Value) -> Option<Vec<String>> {
    Some(vec!["--enable-eplb".to_owned(), format!("--ep-num-redundant-experts {}", value.as_u64()?)])
}

fn dispatcher_vllm(value: &Value) -> Option<Vec<String>> {
    match value.as_str()? {
        "auto" => Some(Vec::new()),
        "deepep-normal" => Some(one("--all2all-backend deepep_high_throughput".to_owned())),
        "deepep-low-latency" => Some(one("--all2all-backend deepep_low_latency".to_owned())),
        _ => None,
    }
}

fn dispatcher_sglang(value: &Value) -> Option<Vec<String>> {
    let mode = match value.as_str()? {
        "auto" => return Some(Vec::new()),
        "deepep-normal" => "normal",
        "deepep-low-latency" => "low_latency",
        _ => "auto",
    };
    Some(vec!["--moe-a2a-backend deepep".to_owned(), format!("--deepep-mode {mode}")])
}

fn overlap_vllm(value: &Value) -> Option<Vec<String>> {
    Some(if value == true { one("--enable-dbo".to_owned()) } else { Vec::new() })
}

fn overlap_sglang(value: &Value) -> Option<Vec<String>> {
    Some(if value == true { one("--enable-two-batch-overlap".to_owned()) } else { Vec::new() })
}

/// Processes beside the proxy, which does it alone where there is none.
fn workers_trtllm(value: &Value) -> Option<Vec<String>> {
    let n = value.as_u64()?;
    Some(if n > 1 { one(format!("num_postprocess_workers: {n}")) } else { Vec::new() })
}

fn capacity_vllm(value: &Value) -> Option<Vec<String>> {
    match value.as_str()? {
        "whole_prompt" => Some(Vec::new()),
        "max_utilization" => Some(one("--no-scheduler-reserve-full-isl".to_owned())),
        _ => None,
    }
}

fn capacity_trtllm(value: &Value) -> Option<Vec<String>> {
    let policy = value.as_str()?.to_uppercase();
    Some(one(format!("scheduler_config.capacity_scheduler_policy: {policy}")))
}

fn interval_trtllm(value: &Value) -> Option<Vec<String>> {
    Some(one(format!("stream_interval: {value}")))
}

fn loop_vllm(value: &Value) -> Option<Vec<String>> {
    Some(one(if value == "async" { "--async-scheduling" } else { "--no-async-scheduling" }.to_owned()))
}

fn loop_sglang(value: &Value) -> Option<Vec<String>> {
    Some(if value == "async" { Vec::new() } else { one("--disable-overlap-schedule".to_owned()) })
}

fn loop_trtllm(value: &Value) -> Option<Vec<String>> {
    Some(if value == "async" { Vec::new() } else { one("disable_overlap_scheduler: true".to_owned()) })
}

fn encoder_vllm(value: &Value) -> Option<Vec<String>> {
    Some(one(match value.as_str()? {
        "none" => "--language-model-only".to_owned(),
        split => format!("--mm-encoder-tp-mode {split}"),
    }))
}

fn encoder_sglang(value: &Value) -> Option<Vec<String>> {
    Some(match value.as_str()? {
        "data" => one("--mm-enable-dp-encoder".to_owned()),
        "none" => one("--language-model-only".to_owned()),
        _ => Vec::new(),
    })
}

fn order_sglang(value: &Value) -> Option<Vec<String>> {
    match value.as_str()? {
        "priority" => Some(one("--enable-priority-scheduling --schedule-low-priority-values-first".to_owned())),
        _ => Some(Vec::new()),
    }
}

/// Host memory of a replica; disks, stores of a fleet, and how fast a link is, have no flag.
fn tiers_vllm(value: &Value) -> Option<Vec<String>> {
    let room = |key| value.get(key).and_then(Value::as_f64).unwrap_or(0.0);
    let gib = room("host_gib");
    let has_flag = room("disk_gib") == 0.0 && room("remote_gib") == 0.0;
    has_flag.then(|| {
        if gib > 0.0 { one(format!("--kv-offloading-backend native --kv-offloading-size {gib}")) } else { Vec::new() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(key: &str, value: Value, server: &str) -> Option<String> {
        let said = said(&Settings::from([(key.to_owned(), value)]), server);
        said.unsaid.is_empty().then(|| said.words.join(" "))
    }

    #[test]
    fn drafts_of_the_models_own_layer_are_said_as_each_server_takes_them() {
        let drafts = || serde_json::json!({ "draft_tokens": 3, "draft_model": "mtp", "acceptance": 0.7 });
        for (server, words) in [
            ("vllm", "--speculative-config '{\"method\":\"mtp\",\"num_speculative_tokens\":3}'"),
            (
                "sglang",
                "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
            ),
            ("trtllm", "speculative_config.decoding_type: MTP speculative_config.num_nextn_predict_layers: 3"),
        ] {
            assert_eq!(told("engine.speculation", drafts(), server).as_deref(), Some(words), "{server}");
        }
    }

    /// `--cuda-graph-max-bs` is the beginning of two names in SGLang 0.5.23; trees of drafts need pages of one token there.
    #[test]
    fn words_are_those_that_the_servers_parsers_take() {
        assert_eq!(told("engine.watermark_ratio", 0.05.into(), "vllm").as_deref(), Some("--watermark 0.05"));
        assert_eq!(told("engine.watermark_ratio", 0.05.into(), "sglang").as_deref(), Some(""), "a remark");
        assert_eq!(told("engine.graph_max", 64.into(), "sglang").as_deref(), Some("--cuda-graph-max-bs-decode 64"));
        let equal_time = || Value::from("equal-time");
        assert_eq!(told("engine.chunk_sizes", equal_time(), "sglang").as_deref(), Some("--enable-dynamic-chunking"));
        assert_eq!(told("engine.chunk_sizes", equal_time(), "vllm"), None);
        let fused = told("engine.all_reduce", "fused".into(), "sglang");
        assert_eq!(fused.as_deref(), Some("--enable-flashinfer-allreduce-fusion"));
        let separate = told("engine.all_reduce", "separate".into(), "vllm");
        let words = "--compilation-config.pass_config.fuse_allreduce_rms false";
        assert_eq!(separate.as_deref(), Some(words));
        assert_eq!(told("engine.all_reduce", "separate".into(), "trtllm"), None);
        let threshold = told("engine.chunk_tokens", 256.into(), "vllm");
        assert_eq!(threshold.as_deref(), Some("--long-prefill-token-threshold 256"));
        assert_eq!(told("engine.chunk_tokens", 256.into(), "sglang"), None);
        let interval = |server| told("engine.stream_interval", 20.into(), server);
        assert_eq!(interval("vllm").as_deref(), Some("--stream-interval 20"));
        assert_eq!(interval("trtllm").as_deref(), Some("stream_interval: 20"));
        let servers = |server| told("engine.api_servers", 4.into(), server);
        assert_eq!(servers("vllm").as_deref(), Some("--api-server-count 4"));
        assert_eq!(servers("sglang").as_deref(), Some("--tokenizer-worker-num 4"));
        assert_eq!(servers("trtllm").as_deref(), Some("num_postprocess_workers: 4"));
        let drafts = serde_json::json!({ "draft_tokens": 3, "acceptance": 0.7 });
        let words =
            "--speculative-algorithm NGRAM --speculative-ngram-max-bfs-breadth 1 --speculative-num-draft-tokens 4";
        assert_eq!(told("engine.speculation", drafts, "sglang").as_deref(), Some(words));
    }

    /// What is read of `--speculative-algorithm NGRAM`, or of a tree, has a serial loop; chains of drafts overlap with the host.
    #[test]
    fn a_loop_that_sglang_has_not_beside_drafts_is_refused() {
        let said = |looped: &str, drafts: Value| {
            let keys = [("engine.loop", looped.into()), ("engine.speculation", drafts)];
            said(&keys.map(|(key, value): (&str, Value)| (key.to_owned(), value)).into(), "sglang").unsaid.len()
        };
        let of_text = || serde_json::json!({ "draft_tokens": 3, "acceptance": 0.7 });
        let tree = || serde_json::json!({ "draft_tokens": 3, "draft_model": "mtp", "draft_branches": 4, "verified_tokens": 8 });
        let chain = || serde_json::json!({ "draft_tokens": 3, "draft_model": "mtp", "acceptance": 0.7 });
        let none = || serde_json::json!({ "draft_tokens": 0 });
        for (drafts, n_unsaid) in [(of_text(), 1), (tree(), 1), (chain(), 0), (none(), 0)] {
            assert_eq!(said("async", drafts.clone()), n_unsaid, "{drafts}");
            assert_eq!(said("serial", drafts.clone()), 0, "{drafts}");
        }
    }

    /// TensorRT-LLM's `moe_config.load_balancer` counts all slots of a model, which a key of redundant ones does not say.
    #[test]
    fn experts_that_lie_twice_are_told_to_servers_that_balance_them() {
        let told = |server| told("engine.redundant_experts", 32.into(), server);
        let vllm = told("vllm");
        assert_eq!(vllm.as_deref(), Some("--enable-eplb --eplb-config '{\"num_redundant_experts\":32}'"));
        assert_eq!(told("sglang").as_deref(), Some("--enable-eplb --ep-num-redundant-experts 32"));
        assert_eq!(told("trtllm"), None);
    }

    #[test]
    fn what_a_server_has_no_words_for_is_refused_by_its_key() {
        let disk = || serde_json::json!({ "host_gib": 64, "disk_gib": 500, "disk_gb_per_s": 6 });
        assert_eq!(told("engine.tiers", disk(), "vllm"), None);
        assert_eq!(told("engine.scheduling", "priority".into(), "trtllm"), None);
        assert_eq!(told("engine.preemption", "swap".into(), "vllm"), None);
        assert_eq!(told("engine.weights", "tiled-csl".into(), "vllm"), None);
        assert_eq!(told("engine.weights", "fp8".into(), "trtllm").as_deref(), Some(""), "the checkpoint says it");
        // Weights of 16 bits become narrow as they are loaded (vLLM and SGLang, `--quantization`).
        assert_eq!(told("engine.weights", "fp8".into(), "vllm").as_deref(), Some("--quantization fp8"));
        assert_eq!(told("engine.weights", "int4".into(), "sglang").as_deref(), Some(""));
        // Of a table's parts no flag tells; a remark does.
        for (value, flag, remark) in [
            (serde_json::json!({ "format": "bf16", "experts": "fp8" }), false, Some("Weights are narrow")),
            (serde_json::json!({ "format": "fp8", "experts": "mxfp4" }), false, Some("Weights are narrow")),
            (serde_json::json!({ "format": "fp8", "kv": "bf16" }), true, Some("`--quantization fp8` converts")),
            (serde_json::json!({ "format": "bf16", "head": "bf16" }), false, None),
        ] {
            let said = said(&Settings::from([("engine.weights".to_owned(), value)]), "vllm");
            assert_eq!(said.words.contains(&"--quantization fp8".to_owned()), flag, "{said:?}");
            let starts = |note: &&str| remark.is_some_and(|remark| note.starts_with(remark));
            assert_eq!(said.notes.iter().filter(|note| starts(note)).count(), said.notes.len(), "{said:?}");
            assert_eq!(said.notes.is_empty(), remark.is_none(), "{said:?}");
        }
        assert_eq!(told("engine.of_tomorrow", 1.into(), "vllm"), None);
        let lending = Settings::from([("kv.borrow".to_owned(), "when-short".into())]);
        assert_eq!(said(&lending, "vllm").unsaid, ["`kv.borrow = \"when-short\"`"]);
    }

    #[test]
    fn keys_in_16_bits_are_told_where_the_checkpoint_has_8() {
        let of = |name: &str, kv: &str, server: &str| {
            let weights = serde_json::json!({ "kv": kv });
            let of_engine = [("engine.weights".to_owned(), weights), ("model.name".to_owned(), name.into())];
            let said = said(&Settings::from(of_engine), server);
            (said.words.join(" "), said.unsaid.len())
        };
        let narrow = "nvidia/Llama-3.3-70B-Instruct-FP8";
        assert_eq!(of(narrow, "bf16", "vllm"), ("--kv-cache-dtype bfloat16".to_owned(), 0));
        assert_eq!(of(narrow, "bf16", "sglang"), ("--kv-cache-dtype bf16".to_owned(), 0));
        assert_eq!(of(narrow, "bf16", "trtllm"), (String::new(), 1));
        assert_eq!(of(narrow, "fp8", "vllm"), ("--kv-cache-dtype fp8".to_owned(), 0));
        assert_eq!(of("meta-llama/Llama-3.3-70B-Instruct", "bf16", "vllm"), (String::new(), 0));
    }

    #[test]
    fn keys_stand_once_and_in_order() {
        assert!(ROWS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
