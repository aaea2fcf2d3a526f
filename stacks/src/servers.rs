//! Deployments as the commands that start their replicas: vLLM, SGLang and TensorRT-LLM.
//!
//! One script for each model, with a command for each kind of replica. Copies are started as often as their line says, each on GPUs of its own.

use std::collections::BTreeMap;

use serve::deployment::{Deployment, EngineOptions, Replica};
use serve::replica::{Gather, PromptRank, Role};
use thiserror::Error;

use crate::batching::{CHUNKS, other_rule};
use crate::export::{ExportError, File, Planned, Target, Words, expressed, serving};
use crate::settings::{Said, said};

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
        &Engine { target: "vllm", version: VLLM_VERSION, command: vllm, takes: TAKES_ALL, rule: "vllm-v1" },
    )
});
/// SGLang.
pub const SGLANG: Target =
    Target::new("sglang", "`sglang.launch_server` for each replica", SGLANG_VERSION, |planned, words| {
        write(
            planned,
            words,
            &Engine { target: "sglang", version: SGLANG_VERSION, command: sglang, takes: sglang_takes, rule: "sglang" },
        )
    });
/// TensorRT-LLM.
pub const TRTLLM: Target =
    Target::new("trtllm", "`trtllm-serve` for each replica", TRTLLM_VERSION, |planned, words| {
        write(
            planned,
            words,
            &Engine { target: "trtllm", version: TRTLLM_VERSION, command: trtllm, takes: TAKES_ALL, rule: "trtllm" },
        )
    });

/// An engine that is started.
struct Engine {
    target: &'static str,
    version: &'static str,
    command: fn(&Layout<'_>) -> Vec<String>,
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
    let said = said(settings, engine.target);
    let mut what = said.unsaid.clone();
    if deployments.iter().all(|deployment| deployment.replicas.is_empty()) {
        what.push("a plan without replicas".to_owned());
    }
    for deployment in deployments {
        let mut text = "#!/bin/bash\n".to_owned();
        text += &words.comments(engine.version);
        text += "# Put the path of the checkpoint in the place of the model's name.\n";
        text += &said.lines();
        for replica in &deployment.replicas {
            let layout = layout(deployment, replica, engine.target, &said);
            match layout.and_then(|layout| (engine.takes)(&layout).map(|()| layout)) {
                Ok(layout) => text += &command(deployment, replica, engine, &layout),
                Err(why) => what.push(format!("replica `{}`: {why}", replica.name)),
            }
        }
        text += &shares(deployment);
        files.push(File::new(&format!("serve-{}.sh", deployment.model.replace(['/', ' '], "-")), text));
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
    head + &(engine.command)(layout).join(" \\\n    ") + "\n"
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
    let layout = Layout { model: &deployment.model, tp: first.tensor, pp: n, ranks, engine, role, said };
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
    }
    words.push(format!("--max-num-seqs {}", engine.sequences_max));
    words.push(format!("--max-num-batched-tokens {}", engine.tokens_max));
    words.extend(engine.context_max.map(|tokens| format!("--max-model-len {tokens}")));
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
    }
    if layout.pp > 1 {
        words.push(format!("--pp-size {}", layout.pp));
    }
    // Groups of attention share both limits: the server divides them.
    words.push(format!("--max-running-requests {}", engine.sequences_max.saturating_mul(ranks)));
    words.push(format!("--chunked-prefill-size {}", engine.tokens_max.saturating_mul(ranks)));
    words.extend(engine.context_max.map(|tokens| format!("--context-length {tokens}")));
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
    if let Some(wait) = engine.batch_wait {
        options.extend(waiting(wait, engine.tokens_max));
    }
    let (flags, more): (Vec<String>, Vec<String>) =
        layout.said.words.iter().cloned().partition(|word| word.starts_with('-'));
    options.extend(more);
    let options = yaml(&options);
    let mut words = vec![
        format!(
            "cat >options.yaml <<'END'\n{options}END\ntrtllm-serve {} --extra_llm_api_options options.yaml",
            layout.model
        ),
        format!("--tp_size {}", layout.tp * layout.ranks),
    ];
    if layout.pp > 1 {
        words.push(format!("--pp_size {}", layout.pp));
    }
    if layout.ranks > 1 {
        words.push(format!("--ep_size {}", layout.tp * layout.ranks));
    }
    words.push(format!("--max_batch_size {}", engine.sequences_max));
    words.push(format!("--max_num_tokens {}", engine.tokens_max));
    words.extend(engine.context_max.map(|tokens| format!("--max_seq_len {tokens}")));
    let role = match layout.role {
        Role::Prefill => Some("CONTEXT"),
        Role::Decode => Some("GENERATION"),
        Role::Both | Role::Outputs => None,
    };
    words.extend(role.map(|role| format!("--server_role {role}")));
    words.extend(flags);
    words
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
mod tests {
    use input::diagnostic::Code;
    use serve::deployment::{Deployment, EngineOptions, Machine, Range, Replica, Stage};
    use serve::replica::{Gather, Role};

    use crate::export::{ExportError, Planned, Words};
    use crate::settings::Settings;
    use crate::targets::export;

    /// Two nodes of eight H200, with replicas of two stages of four GPUs.
    fn deployment(second: u32) -> Deployment {
        let machine = Machine {
            name: "a".to_owned(),
            gpu: "h200-sxm".to_owned(),
            n_gpus: 16,
            gpus_per_node: 8,
            ..Machine::default()
        };
        let stage = |first, n, layers| Stage { machine: 0, gpus: Range::new(first, n), tensor: n, layers };
        let engine = EngineOptions { context_max: Some(8192), ..crate::example::engine("vllm-v1") };
        let stages = vec![stage(0, 4, Range::new(0, 40)), stage(4, second, Range::new(40, 40))];
        let replica = Replica { name: "both".to_owned(), copies: 2, role: Role::Both, stages, engine };
        Deployment { replicas: vec![replica], ..Deployment::new("llama-3-70b", 80, vec![machine]) }
    }

    #[test]
    fn a_replica_comes_back_from_its_command() {
        let deployments = [deployment(4)];
        for target in ["vllm", "sglang", "trtllm"] {
            let files = export(
                target,
                &Planned::Serving { deployments: &deployments, settings: &Settings::new() },
                &Words::default(),
            )
            .unwrap();
            let machine = crate::Machine { gpu: Some("h200-sxm".to_owned()), ..crate::Machine::default() };
            let stack = crate::recognise(&files[0].text()).expect("a known stack");
            let imported = crate::import(stack, &files[0].text(), &machine);
            for line in [
                "name = \"llama-3-70b\"",
                "tp = 4",
                "pp = 2",
                "max_sequences = 128",
                "max_tokens = 4096",
                "max_context = 8192",
            ] {
                assert!(imported.scenario.contains(line), "{target}: `{line}` in {}", imported.scenario);
            }
            let codes: Vec<Code> = imported.findings.iter().map(|finding| finding.code).collect();
            assert_eq!(codes, [Code::MissingFlag], "{target}");
        }
    }

    #[test]
    fn stages_of_different_widths_are_refused_by_name() {
        let deployments = [deployment(2)];
        let why = export(
            "vllm",
            &Planned::Serving { deployments: &deployments, settings: &Settings::new() },
            &Words::default(),
        )
        .unwrap_err();
        let ExportError::NotExpressible { what, .. } = why else { panic!("{why}") };
        assert_eq!(what, ["replica `both`: stages with GPUs of different numbers"]);
    }

    #[test]
    fn what_one_engine_alone_has_is_said_to_it_and_refused_by_others() {
        let mut deployments = [deployment(4)];
        deployments[0].replicas[0].engine.batch_wait = Some(Gather::Tokens { iterations: 20, tokens: 2048 });
        let exported = |target: &str, deployments: &[Deployment]| {
            export(target, &Planned::Serving { deployments, settings: &Settings::new() }, &Words::default())
                .map(|files| files[0].text().into_owned())
                .map_err(|why| why.to_string())
        };
        let script = exported("trtllm", &deployments).expect("TensorRT-LLM has it");
        // 2048 of 4096 tokens.
        assert!(script.contains("batch_wait_timeout_iters: 20\nbatch_wait_max_tokens_ratio: 0.5000\n"), "{script}");
        deployments[0].replicas[0].engine.batch_wait = Some(Gather::Ranks { iterations: 60, more: 0 });
        let script = exported("trtllm", &deployments).expect("TensorRT-LLM has it");
        let balance = "attention_dp_config:\n  enable_balance: true\n  timeout_iters: 60\n  batching_wait_iters: 0\n";
        assert!(script.contains(balance), "{script}");
        for target in ["vllm", "sglang"] {
            assert!(exported(target, &deployments).expect_err(target).contains("batch_wait"), "{target}");
        }
        let engine = &mut deployments[0].replicas[0].engine;
        (engine.batch_wait, engine.recv_interval) = (None, std::num::NonZeroU32::new(30).expect("thirty"));
        assert!(exported("sglang", &deployments).expect("SGLang has it").contains("--scheduler-recv-interval 30"));
        assert!(exported("vllm", &deployments).expect_err("vLLM has it not").contains("recv_interval"));
    }

    /// Two replicas with groups of attention side by side: so many of a tensor degree, on one node.
    fn grouped(ranks: u32, tensor: u32, role: Role) -> [Deployment; 1] {
        let mut one = deployment(4);
        one.model = "mixtral-8x7b".to_owned();
        one.n_layers = 32;
        let replica = &mut one.replicas[0];
        replica.role = role;
        replica.stages.truncate(1);
        replica.stages[0] =
            Stage { machine: 0, gpus: Range::new(0, ranks * tensor), tensor, layers: Range::new(0, 32) };
        [one]
    }

    fn written(target: &str, deployments: &[Deployment], settings: &Settings) -> Result<String, String> {
        export(target, &Planned::Serving { deployments, settings }, &Words::default())
            .map(|files| files[0].text().into_owned())
            .map_err(|why| why.to_string())
    }

    /// Limits of a plan are those of a group. SGLang divides its two limits by the groups, and keeps experts cut where no degree is given
    /// (`srt/arg_groups/parallel_hook.py`).
    #[test]
    fn groups_of_attention_come_back_from_their_commands() {
        let none = Settings::new();
        let machine = crate::Machine { gpu: Some("h200-sxm".to_owned()), ..crate::Machine::default() };
        for (target, tensor) in [("vllm", 2), ("sglang", 2), ("trtllm", 1)] {
            let script = written(target, &grouped(4, tensor, Role::Both), &none).expect(target);
            let found = crate::import(crate::recognise(&script).expect("a known stack"), &script, &machine);
            let lines = [format!("tp = {tensor} "), format!("ep = {}", 4 * tensor)];
            for line in lines.iter().map(String::as_str).chain(["max_sequences = 128", "max_tokens = 4096"]) {
                assert!(found.scenario.contains(line), "{target}: `{line}` in {}", found.scenario);
            }
            let codes: Vec<Code> = found.findings.iter().map(|finding| finding.code).collect();
            assert_eq!(codes, [Code::MissingFlag], "{target}: {:?}", found.findings);
        }
        let script = written("sglang", &grouped(4, 2, Role::Both), &none).expect("SGLang");
        for part in [
            "--tp-size 8",
            "--attn-dp-size 4 --ep-size 8",
            "--max-running-requests 512",
            "--chunked-prefill-size 16384",
        ] {
            assert!(script.contains(part), "{part} in {script}");
        }
        let why = written("trtllm", &grouped(4, 2, Role::Both), &none).expect_err("two GPUs of a group");
        assert!(why.contains("4 groups of attention of 2 GPUs each"), "{why}");
    }

    #[test]
    fn what_sglangs_own_checks_refuse_is_refused() {
        let drafts = serde_json::json!({ "draft_tokens": 3, "acceptance": 0.7 });
        let drafts = Settings::from([("engine.speculation".to_owned(), drafts)]);
        let why = written("sglang", &grouped(4, 2, Role::Both), &drafts).expect_err("drafts of groups");
        assert!(why.contains("groups of attention, which SGLang refuses"), "{why}");
        let mut decodes = grouped(1, 4, Role::Decode);
        decodes[0].replicas[0].engine.prefix_cache = true;
        let why = written("sglang", &decodes, &drafts).expect_err("drafts of prefixes");
        assert!(why.contains("where only decoding is done"), "{why}");
        let script = written("sglang", &decodes, &Settings::new()).expect("SGLang");
        assert!(script.contains("--disaggregation-decode-enable-radix-cache"), "{script}");
    }

    #[test]
    fn options_that_a_script_writes_into_a_file_are_read_back() {
        let settings = Settings::from([("engine.graph_max".to_owned(), 0.into())]);
        let machine = crate::Machine { gpu: Some("h200-sxm".to_owned()), ..crate::Machine::default() };
        let script = written("trtllm", &[deployment(4)], &settings).expect("TensorRT-LLM");
        let found = crate::import(crate::Stack::Trtllm, &script, &machine);
        for line in ["prefix_cache = false", "block_tokens = 16", "graph_max = 0"] {
            assert!(found.scenario.contains(line), "`{line}` in {}", found.scenario);
        }
        let other = script.replace("cat >options.yaml", "cat >others.yaml");
        let found = crate::import(crate::Stack::Trtllm, &other, &machine);
        let codes: Vec<Code> = found.findings.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, [Code::MissingFlag, Code::NotModelled], "{:?}", found.findings);
    }
}
