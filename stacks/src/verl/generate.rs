//! Engines that generate: `actor_rollout_ref.rollout` as `[generate]` of a step.
//!
//! Options that verl gives its engines are those of `vllm_async_server.py`, `async_sglang_server.py` and `trtllm_async_server.py` (`verl/workers/rollout`,
//! volcengine/verl @ b178a3cd56f5); values of keys that a file leaves out are those of `verl/trainer/config/rollout/rollout.yaml`.

use input::diagnostic::Code;

use super::is_set;
use crate::Machine;
use crate::document::Document;
use crate::flags::{Flags, listed};

/// What the engine's keys have in front.
const ROLLOUT: &str = "actor_rollout_ref.rollout.";
const ENGINE: &str = "generate.engine";

hw::words! {
    /// An engine that verl runs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Engine: word {
        /// vLLM.
        Vllm = "vllm",
        /// SGLang.
        Sglang = "sglang",
        /// TensorRT-LLM.
        Trtllm = "trtllm",
    }
}

impl Engine {
    /// Its batching.
    const fn policy(self) -> &'static str {
        match self {
            Self::Vllm => "vllm-v1",
            Self::Sglang => "sglang",
            Self::Trtllm => "trtllm",
        }
    }
}

fn rollout(name: &str) -> String {
    format!("{ROLLOUT}{name}")
}

/// `[generate.cluster]`: GPUs of the engines alone. Gives their number.
pub(super) fn cluster(flags: &mut Flags<'_>, out: &mut Document, machine: &Machine) -> u64 {
    let nodes = flags.count("rollout.nnodes", 1..=1_000_000).unwrap_or(1);
    let per_node = flags.count("rollout.n_gpus_per_node", 1..=1000).unwrap_or(u64::from(super::NODE_GPUS));
    out.set("generate.cluster", "nodes", nodes, "rollout.nnodes");
    if !machine.is_named() {
        if let Some(gpu) = &machine.gpu {
            out.word("generate.cluster", "gpu", gpu, "--gpu or --set cluster.gpu");
        }
        out.set("generate.cluster", "gpus_per_node", per_node, "rollout.n_gpus_per_node");
    }
    nodes * per_node
}

/// `[generate.engine]`, with replicas that fill so many GPUs.
pub(super) fn engine(flags: &mut Flags<'_>, out: &mut Document, n_gpus: u64) {
    let engine = name(flags);
    out.word(ENGINE, "name", engine.word(), "actor_rollout_ref.rollout.name");
    let of_replica = degrees(flags, out);
    let replicas = n_gpus / of_replica;
    if replicas.saturating_mul(of_replica) != n_gpus {
        let what = format!("engines of {of_replica} GPUs do not fill {n_gpus} GPUs");
        let help = "write other degrees of `actor_rollout_ref.rollout`, or other GPUs".to_owned();
        flags.wrong(&rollout("tensor_model_parallel_size"), what, help);
    }
    memory(flags, out);
    limits(engine, flags, out);
    launches(flags, out);
    formats(flags, out);
    out.set("generate.fleet", "replicas", replicas.max(1), "GPUs over those of a replica");
    out.set("generate.policies", "run", format!("[\"{}\"]", engine.policy()), "the engine's own batching");
}

/// The engine by its name; vLLM, as in releases that had it as the usual one, where the file names none.
fn name(flags: &mut Flags<'_>) -> Engine {
    let key = rollout("name");
    if flags.find(&key).is_none() {
        let help = "write `actor_rollout_ref.rollout.name`: vllm, sglang or trtllm";
        flags.warn(Code::MissingFlag, None, "the file does not name the engine: vLLM is taken", help);
    }
    flags.word(&key, &Engine::WORDS).unwrap_or(Engine::Vllm)
}

/// Degrees of a replica. Gives its GPUs: ranks that share experts are one replica, others are replicas of their own.
fn degrees(flags: &mut Flags<'_>, out: &mut Document) -> u64 {
    let mut degree = |name: &str, usual| flags.count(&rollout(name), 1..=4096).unwrap_or(usual);
    let (tp, pp) = (degree("tensor_model_parallel_size", 2), degree("pipeline_model_parallel_size", 1));
    let (dp, ep) = (degree("data_parallel_size", 1), degree("expert_parallel_size", 1));
    out.set(ENGINE, "tp", tp, "actor_rollout_ref.rollout.tensor_model_parallel_size");
    if pp > 1 {
        out.set(ENGINE, "pp", pp, "actor_rollout_ref.rollout.pipeline_model_parallel_size");
    }
    if ep == 1 {
        return tp * pp;
    }
    if ep != tp * dp {
        let what = format!("experts over {ep} GPUs, and a replica has {tp} × {dp}");
        let help = "verl takes `tensor_model_parallel_size` times `data_parallel_size`".to_owned();
        flags.wrong(&rollout("expert_parallel_size"), what, help);
    }
    out.set(ENGINE, "ep", tp * dp, "actor_rollout_ref.rollout.expert_parallel_size");
    tp * dp * pp
}

/// Memory that the engine may take.
fn memory(flags: &mut Flags<'_>, out: &mut Document) {
    let key = rollout("gpu_memory_utilization");
    let share = if flags.find(&key).is_some() { flags.number(&key).unwrap_or(0.5) } else { 0.5 };
    if !(0.01..=1.0).contains(&share) {
        let what = format!("`{key} {share}` is no share of memory");
        return flags.wrong(&key, what, "allowed are numbers from 0.01 to 1".to_owned());
    }
    out.set(ENGINE, "memory_ratio", share, key);
}

/// Limits of an iteration. SGLang is told those of sequences alone.
fn limits(engine: Engine, flags: &mut Flags<'_>, out: &mut Document) {
    let sequences = flags.count(&rollout("max_num_seqs"), 1..=65_536).unwrap_or(1024);
    out.set(ENGINE, "max_sequences", sequences, rollout("max_num_seqs"));
    if engine == Engine::Sglang {
        return;
    }
    let tokens = flags.count(&rollout("max_num_batched_tokens"), 1..=1 << 20).unwrap_or(8192);
    out.set(ENGINE, "max_tokens", tokens, rollout("max_num_batched_tokens"));
    if let Some(most) = flags.count(&rollout("max_model_len"), 1..=100_000_000) {
        out.set(ENGINE, "max_context", most, rollout("max_model_len"));
    }
    if !is_set(flags, &rollout("enable_prefix_caching"), true) {
        out.set(ENGINE, "prefix_cache", false, rollout("enable_prefix_caching"));
    }
    let order = flags.word(&rollout("scheduling_policy"), &[("fcfs", "fcfs"), ("priority", "priority")]);
    if let Some(order) = order.filter(|_| engine == Engine::Vllm) {
        out.word(ENGINE, "scheduling", order, rollout("scheduling_policy"));
    }
}

/// Whether iterations are recorded graphs, and of how many sequences at most.
fn launches(flags: &mut Flags<'_>, out: &mut Document) {
    if is_set(flags, &rollout("enforce_eager"), false) {
        return out.set(ENGINE, "graph_max", 0, rollout("enforce_eager"));
    }
    let Some(sizes) = flags.text(&rollout("cudagraph_capture_sizes")) else { return };
    if let Some(list) = listed(&sizes) {
        out.set(ENGINE, "graph_sizes", list, rollout("cudagraph_capture_sizes"));
    }
}

/// Format of the engine's weights: `fp8` has a scale for each block of 128 × 128.
fn formats(flags: &mut Flags<'_>, out: &mut Document) {
    let key = rollout("quantization");
    match flags.text(&key).as_deref() {
        None => {}
        Some("fp8") => out.word("generate.model", "weights", "fp8-block", key),
        Some(_) => flags.not_modelled(&key, "weights of the engine are taken as those of the trainer"),
    }
}
