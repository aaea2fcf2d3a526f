//! Deployments as the commands that start their replicas: vLLM, SGLang and TensorRT-LLM.
//!
//! One script for each model, with a command for each kind of replica. Copies are started as often as their line says, each on GPUs of its own.

use std::collections::BTreeMap;

mod across;
mod room;

use serve::deployment::{Deployment, EngineOptions, Replica};
use serve::replica::{Gather, PromptRank, Role};
use thiserror::Error;

use crate::batching::{CHUNKS, other_rule};
use crate::export::{ExportError, File, Planned, Target, Words, expressed, model_of, named, serving, to_put};
use crate::settings::{Said, said};
pub(crate) use across::{sglang_across, vllm_across};
pub(crate) use room::{other_length, packed};

const VLLM_VERSION: &str = "vLLM 0.32 (vllm/engine/arg_utils.py)";
const SGLANG_VERSION: &str = "SGLang 0.5.23 (sglang/srt/arg_groups)";
/// Images of the versions that commands are written for.
pub(crate) const VLLM_IMAGE: &str = "vllm/vllm-openai:v0.32.0";
pub(crate) const SGLANG_IMAGE: &str = "lmsysorg/sglang:v0.5.23";
const TRTLLM_VERSION: &str = "TensorRT-LLM 1.2 (tensorrt_llm/commands/serve.py)";

/// vLLM.
pub const VLLM: Target = Target::new("vllm", "`vllm serve` for each replica", VLLM_VERSION, |planned, words| {
    write(
        planned,
        words,
        &Engine {
            target: "vllm",
            version: VLLM_VERSION,
            command: vllm,
            across: across::vllm_script,
            takes: TAKES_ALL,
            rule: "vllm-v1",
        },
    )
});
/// SGLang.
pub const SGLANG: Target =
    Target::new("sglang", "`sglang.launch_server` for each replica", SGLANG_VERSION, |planned, words| {
        write(
            planned,
            words,
            &Engine {
                target: "sglang",
                version: SGLANG_VERSION,
                command: sglang,
                across: across::sglang_script,
                takes: sglang_takes,
                rule: "sglang",
            },
        )
    });
/// TensorRT-LLM.
pub const TRTLLM: Target =
    Target::new("trtllm", "`trtllm-serve` for each replica", TRTLLM_VERSION, |planned, words| {
        write(
            planned,
            words,
            &Engine {
                target: "trtllm",
                version: TRTLLM_VERSION,
                command: trtllm,
                across: across::in_place,
                takes: TAKES_ALL,
                rule: "trtllm",
            },
        )
    });

/// An engine that is started.
struct Engine {
    target: &'static str,
    version: &'static str,
    command: fn(&Layout<'_>) -> Vec<String>,
    /// Words behind it on several nodes.
    across: fn(u32) -> Vec<String>,
    /// What its own checks refuse.
    takes: Takes,
    /// The batching rule that it has.
    rule: &'static str,
}

/// What an engine's own checks refuse of a replica.
pub(crate) type Takes = fn(&Layout<'_>) -> Result<(), Unsayable>;

/// An engine that refuses nothing that can be planned.
pub(crate) const TAKES_ALL: Takes = |_| Ok(());

/// What a command says of a replica.
pub(crate) struct Layout<'a> {
    model: &'a str,
    /// Name of the replica.
    name: &'a str,
    /// Nodes that one takes.
    pub(crate) n_nodes: u32,
    tp: u32,
    pp: u32,
    /// Tensor groups side by side that share the experts.
    ranks: u32,
    engine: &'a EngineOptions,
    role: Role,
    /// What the server is told of settings.
    said: &'a Said,
}

fn write(planned: &Planned<'_>, words: &Words, engine: &Engine) -> Result<Vec<File>, ExportError> {
    let (deployments, settings) = serving(planned, engine.target)?;
    let mut files = Vec::new();
    let said = said(&settings, engine.target);
    let mut what = said.unsaid.clone();
    what.extend(packed(&deployments));
    if deployments.iter().all(|deployment| deployment.replicas.is_empty()) {
        what.push("a plan without replicas".to_owned());
    }
    for deployment in &deployments {
        let mut text = "#!/bin/bash\n".to_owned();
        text += &words.comments(engine.version);
        text += to_put(std::slice::from_ref(deployment));
        text += &said.lines();
        for replica in &deployment.replicas {
            let layout = layout(deployment, replica, engine.target, &said);
            match layout.and_then(|layout| (engine.takes)(&layout).map(|()| layout)) {
                Ok(layout) => text += &command(deployment, replica, engine, &layout),
                Err(why) => what.push(format!("replica `{}`: {why}", replica.name)),
            }
        }
        text += &shares(deployment);
        files.push(File::new(&format!("serve-{}.sh", model_of(deployment).replace(' ', "-")), text));
    }
    expressed(files, what, engine.target)
}

fn command(deployment: &Deployment, replica: &Replica, engine: &Engine, layout: &Layout<'_>) -> String {
    let machine = replica.stages.first().and_then(|stage| deployment.machines.get(stage.machine as usize));
    let gpu = machine.map_or("?", |machine| machine.gpu.as_str());
    let role = match replica.role {
        Role::Prefill => ", reads prompts",
        Role::Decode => ", generates",
        Role::Both | Role::Outputs => "",
    };
    let head = format!("\n# {}: {} × {} GPUs of type {gpu}{role}\n", replica.name, replica.copies, replica.n_gpus());
    let head = head + &other_rule(&replica.engine.batcher, engine.rule).unwrap_or_default();
    let head = head + &other_length(&replica.engine).unwrap_or_default() + across::remark(layout.n_nodes);
    let mut words = (engine.command)(layout);
    if layout.n_nodes > 1 {
        words.extend((engine.across)(layout.n_nodes));
    }
    head + &words.join(" \\\n    ") + "\n"
}

/// What the flags of a server cannot say of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unsayable {
    #[error("prompts that machines outside of the fleet compute")]
    Outputs,
    #[error("no stages")]
    NoStages,
    #[error("a part of the layers ({first} to {end})")]
    SomeLayers { first: u32, end: u32 },
    #[error("stages with GPUs of different numbers")]
    UnevenGpus,
    #[error("stages on different machines")]
    Machines,
    #[error("stages with layers of their own")]
    UnevenLayers,
    #[error("the batching rule `{0}`, which neither vLLM nor SGLang has")]
    Batcher(String),
    #[error("settings without a flag: {0}")]
    Settings(String),
    #[error("a machine that the plan does not list")]
    NoMachine,
    #[error("GPUs of type `{0}`, whose name there is not known")]
    Gpu(String),
    #[error("the image `{0}` on cards of AMD: its build for ROCm is not known")]
    Rocm(String),
    #[error("{n_gpus} GPUs on nodes of {per_node}: no whole number of nodes")]
    Nodes { n_gpus: u32, per_node: u32 },
    #[error("prompts that wait for others (`batch_wait`), which TensorRT-LLM alone has")]
    BatchWait,
    #[error("prompts that wait for ranks that were drawn (`prompt_rank`), which SGLang alone has")]
    PromptRank,
    #[error("looks for requests every {0} iterations (`recv_interval`), which SGLang alone has")]
    RecvInterval(std::num::NonZeroU32),
    #[error("{ranks} groups of attention of {tensor} GPUs each: TensorRT-LLM's have one")]
    AttentionGroups { ranks: u32, tensor: u32 },
    #[error("drafts from the text itself beside groups of attention, which SGLang refuses")]
    DraftsOfGroups,
    #[error(
        "shared prefixes where only decoding is done, with drafts of another model or of the text: SGLang refuses them"
    )]
    DraftsOfPrefixes,
}

/// What one engine alone has is asked of no other.
fn host_options(engine: &EngineOptions, target: &str) -> Result<(), Unsayable> {
    if engine.batch_wait.is_some() && target != "trtllm" {
        return Err(Unsayable::BatchWait);
    }
    if engine.prompt_rank == PromptRank::Drawn && target != "sglang" {
        return Err(Unsayable::PromptRank);
    }
    if engine.recv_interval.get() > 1 && target != "sglang" {
        return Err(Unsayable::RecvInterval(engine.recv_interval));
    }
    Ok(())
}

/// Degrees of a replica, where its stages are alike.
pub(crate) fn layout<'a>(
    deployment: &'a Deployment,
    replica: &'a Replica,
    target: &str,
    said: &'a Said,
) -> Result<Layout<'a>, Unsayable> {
    if replica.role == Role::Outputs {
        return Err(Unsayable::Outputs);
    }
    host_options(&replica.engine, target)?;
    let first = replica.stages.first().ok_or(Unsayable::NoStages)?;
    let layers = replica.layers();
    if layers.n() != deployment.n_layers {
        return Err(Unsayable::SomeLayers { first: layers.first, end: layers.end });
    }
    let is_even = |stage: &serve::deployment::Stage| stage.tensor == first.tensor && stage.gpus.n() == first.gpus.n();
    if !replica.stages.iter().all(is_even) {
        return Err(Unsayable::UnevenGpus);
    }
    if replica.stages.iter().any(|stage| stage.machine != first.machine) && target != "vllm" {
        return Err(Unsayable::Machines);
    }
    let most = replica.stages.iter().map(|stage| stage.layers.n()).max().unwrap_or(0);
    let least = replica.stages.iter().map(|stage| stage.layers.n()).min().unwrap_or(0);
    if most - least > 1 {
        return Err(Unsayable::UnevenLayers);
    }
    let n = u32::try_from(replica.stages.len()).unwrap_or(u32::MAX);
    let ranks = first.gpus.n() / first.tensor.max(1);
    let (engine, role) = (&replica.engine, replica.role);
    let n_nodes = across::n_nodes(deployment, replica)?;
    let (model, name) = (&deployment.model, &replica.name);
    let layout = Layout { model, name, n_nodes, tp: first.tensor, pp: n, ranks, engine, role, said };
    if target == "trtllm" && ranks > 1 && layout.tp > 1 {
        return Err(Unsayable::AttentionGroups { ranks, tensor: layout.tp });
    }
    Ok(layout)
}

/// What SGLang's own checks refuse of a replica (`srt/arg_groups/speculative_hook.py`, `pd_disaggregation_hook.py`).
pub(crate) fn sglang_takes(layout: &Layout<'_>) -> Result<(), Unsayable> {
    let drafts = |by: &str| layout.said.words.iter().any(|word| word == &format!("--speculative-algorithm {by}"));
    if layout.ranks > 1 && drafts("NGRAM") {
        return Err(Unsayable::DraftsOfGroups);
    }
    if layout.role == Role::Decode && layout.engine.prefix_cache && (drafts("NGRAM") || drafts("STANDALONE")) {
        return Err(Unsayable::DraftsOfPrefixes);
    }
    Ok(())
}

/// Arguments of a command, for what starts it without a shell: the quotes that a shell would take away are gone.
pub(crate) fn arguments(words: &[String]) -> Vec<String> {
    let line = words.join(" ");
    let read = crate::shell::commands(&line).ok().filter(|commands| commands.len() == 1);
    let words = read.and_then(|mut commands| commands.pop());
    words.unwrap_or_default().iter().map(crate::shell::Word::text).collect()
}

/// Which share of the requests goes where: a router's business, said in remarks.
pub(crate) fn shares(deployment: &Deployment) -> String {
    let way = |route: &serve::deployment::Route| {
        let names: Vec<&str> = route
            .replicas
            .iter()
            .filter_map(|index| Some(deployment.replicas.get(*index as usize)?.name.as_str()))
            .collect();
        format!(
            "# {:.1} % of requests of type {} go to {}\n",
            route.share_ratio * 100.0,
            route.class,
            names.join(", then ")
        )
    };
    let ways: String = deployment.routes.iter().map(way).collect();
    if ways.is_empty() { ways } else { format!("\n{ways}") }
}

pub(crate) fn vllm(layout: &Layout<'_>) -> Vec<String> {
    let engine = layout.engine;
    let mut words = vec![format!("vllm serve {}", layout.model), format!("--tensor-parallel-size {}", layout.tp)];
    if layout.pp > 1 {
        words.push(format!("--pipeline-parallel-size {}", layout.pp));
    }
    if layout.ranks > 1 {
        words.push(format!("--data-parallel-size {} --enable-expert-parallel", layout.ranks));
    } else if layout.said.has_whole_experts {
        words.push("--enable-expert-parallel".to_owned());
    }
    words.push(format!("--max-num-seqs {}", engine.sequences_max));
    words.push(format!("--max-num-batched-tokens {}", engine.tokens_max));
    words.extend(room::length(engine).map(|tokens| format!("--max-model-len {tokens}")));
    words.push(format!("--block-size {}", engine.block_tokens));
    words.push(if engine.prefix_cache { "--enable-prefix-caching" } else { "--no-enable-prefix-caching" }.to_owned());
    let role = match layout.role {
        Role::Prefill => Some("kv_producer"),
        Role::Decode => Some("kv_consumer"),
        Role::Both | Role::Outputs => None,
    };
    words.extend(
        role.map(|role| {
            format!("--kv-transfer-config '{{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"{role}\"}}'")
        }),
    );
    words.extend(layout.said.words.iter().cloned());
    words
}

pub(crate) fn sglang(layout: &Layout<'_>) -> Vec<String> {
    let (engine, ranks) = (layout.engine, layout.ranks.max(1));
    let mut words = vec![format!("python -m sglang.launch_server --model-path {}", layout.model)];
    words.push(format!("--tp-size {}", layout.tp * ranks));
    if ranks > 1 {
        words.push(format!("--attn-dp-size {ranks} --ep-size {}", layout.tp * ranks));
    } else if layout.said.has_whole_experts {
        words.push(format!("--ep-size {}", layout.tp));
    }
    if layout.pp > 1 {
        words.push(format!("--pp-size {}", layout.pp));
    }
    // Groups of attention share both limits: the server divides them.
    words.push(format!("--max-running-requests {}", engine.sequences_max.saturating_mul(ranks)));
    words.push(format!("--chunked-prefill-size {}", engine.tokens_max.saturating_mul(ranks)));
    words.extend(room::length(engine).map(|tokens| format!("--context-length {tokens}")));
    words.push(format!("--page-size {}", engine.block_tokens));
    if !engine.prefix_cache {
        words.push("--disable-radix-cache".to_owned());
    } else if layout.role == Role::Decode {
        words.push("--disaggregation-decode-enable-radix-cache".to_owned());
    }
    if engine.recv_interval.get() > 1 {
        words.push(format!("--scheduler-recv-interval {}", engine.recv_interval));
    }
    let role = match layout.role {
        Role::Prefill => Some("prefill"),
        Role::Decode => Some("decode"),
        Role::Both | Role::Outputs => None,
    };
    words.extend(role.map(|role| format!("--disaggregation-mode {role}")));
    words.extend(layout.said.words.iter().cloned());
    words
}

/// How long prompts wait for others, as options of TensorRT-LLM.
fn waiting(wait: Gather, tokens_max: u32) -> Vec<String> {
    match wait {
        Gather::Tokens { iterations, tokens } => {
            let ratio = f64::from(tokens) / f64::from(tokens_max.max(1));
            let timeout = format!("batch_wait_timeout_iters: {iterations}");
            vec![timeout, format!("batch_wait_max_tokens_ratio: {ratio:.4}")]
        }
        Gather::Ranks { iterations, more } => vec![
            "attention_dp_config.enable_balance: true".to_owned(),
            format!("attention_dp_config.timeout_iters: {iterations}"),
            format!("attention_dp_config.batching_wait_iters: {more}"),
        ],
    }
}

fn trtllm(layout: &Layout<'_>) -> Vec<String> {
    let engine = layout.engine;
    // What has no option of its own stands in a file of options, which the script writes.
    let mut options = vec![
        format!("kv_cache_config.tokens_per_block: {}", engine.block_tokens),
        format!("kv_cache_config.enable_block_reuse: {}", engine.prefix_cache),
    ];
    if layout.ranks > 1 {
        options.push("enable_attention_dp: true".to_owned());
    }
    if engine.batcher == CHUNKS {
        options.push("enable_chunked_prefill: true".to_owned());
    }
    options.extend(moved(layout.role).iter().map(|option| (*option).to_owned()));
    if let Some(wait) = engine.batch_wait {
        options.extend(waiting(wait, engine.tokens_max));
    }
    let (flags, more): (Vec<String>, Vec<String>) =
        layout.said.words.iter().cloned().partition(|word| word.starts_with('-'));
    options.extend(more.into_iter().filter(|option| !options.contains(option)).collect::<Vec<_>>());
    let options = yaml(&options);
    // Every kind of replica has options of its own.
    let file = format!("options-{}.yaml", named(layout.name));
    let launch = across::srun(layout.n_nodes, layout.tp * layout.ranks * layout.pp);
    let mut words = vec![
        format!(
            "cat >{file} <<'END'\n{options}END\n{launch}trtllm-serve {} --extra_llm_api_options {file}",
            layout.model
        ),
        format!("--tp_size {}", layout.tp * layout.ranks),
    ];
    if layout.pp > 1 {
        words.push(format!("--pp_size {}", layout.pp));
    }
    if layout.ranks > 1 || layout.said.has_whole_experts {
        words.push(format!("--ep_size {}", layout.tp * layout.ranks));
    }
    if layout.n_nodes > 1 {
        words.push(format!("--gpus_per_node {}", layout.tp * layout.ranks * layout.pp / layout.n_nodes));
    }
    // A plan's limit is of the replica, the option's of one micro-batch: every stage has one.
    words.push(format!("--max_batch_size {}", (engine.sequences_max / layout.pp.max(1)).max(1)));
    words.push(format!("--max_num_tokens {}", engine.tokens_max));
    words.extend(room::length(engine).map(|tokens| format!("--max_seq_len {tokens}")));
    let role = match layout.role {
        Role::Prefill => Some("CONTEXT"),
        Role::Decode => Some("GENERATION"),
        Role::Both | Role::Outputs => None,
    };
    words.extend(role.map(|role| format!("--server_role {role}")));
    words.extend(flags);
    words
}

/// What hands keys and values over, which both kinds of a split fleet need; one that reads prompts does not run ahead
/// (`docs/source/features/disagg-serving.md`).
const fn moved(role: Role) -> &'static [&'static str] {
    match role {
        Role::Prefill => &["cache_transceiver_config.backend: DEFAULT", "disable_overlap_scheduler: true"],
        Role::Decode => &["cache_transceiver_config.backend: DEFAULT"],
        Role::Both | Role::Outputs => &[],
    }
}

/// Options as `section.key: value` or `key: value`, in YAML, each section once.
fn yaml(options: &[String]) -> String {
    let mut sections: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut text = String::new();
    for option in options {
        match option.split_once('.') {
            Some((section, line)) if !section.contains(' ') => sections.entry(section).or_default().push(line),
            _ => text += &format!("{option}\n"),
        }
    }
    for (section, lines) in sections {
        text +=
            &format!("{section}:\n{}\n", lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n"));
    }
    text
}

#[cfg(test)]
mod tests;
