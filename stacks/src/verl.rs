//! verl's YAML, or a script with overrides of it → a step of reinforcement learning, or one update of the actor.
//!
//! A file that says how many prompts a step has becomes a scenario of `kind = "rl"` (`step`). Any other becomes a training scenario of the update alone, and a
//! warning says so.

mod generate;
mod step;

use std::sync::LazyLock;

use engine::model::of_checkpoint;
use input::diagnostic::{Code, Finding};

use crate::again::{Again, Names};
use crate::flags::{Flag, Flags, Table};
use crate::job::Job;
use crate::shell::{self, UNKNOWN, Word};
use crate::{Imported, Machine, yaml};

/// Keys of the configuration.
pub static KEYS: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("../tables/verl.tsv")));
/// Largest count.
const MOST: u64 = 100_000_000;
/// What the actor's keys have in front.
const ACTOR: &str = "actor_rollout_ref.actor.";
/// Tokens of a micro-batch on a GPU where they are filled up and no key says it (`actor/actor.yaml`).
const BUCKET_TOKENS: u64 = 16_384;
/// GPUs of a node where no key says it (`ppo_trainer.yaml`).
const NODE_GPUS: u32 = 8;
/// What keys of the other parts of a step have in front: an update of the actor alone has none of them.
const OTHER_PARTS: [&str; 9] = [
    "actor_rollout_ref.rollout.",
    "actor_rollout_ref.ref.",
    "algorithm.",
    "critic.",
    "reward",
    "rollout.",
    "async_training.",
    "data.gen_batch_size",
    "actor_rollout_ref.actor.ppo_epochs",
];

/// Reads a configuration, or a script with overrides.
pub fn import(text: &str, machine: &Machine) -> Imported {
    let given =
        if text.contains("actor_rollout_ref.") && text.lines().any(is_override) { overrides(text) } else { keys(text) };
    let given = match given {
        Ok(given) => given,
        Err(finding) => return Imported { findings: vec![finding], ..Imported::default() },
    };
    let mut flags = Flags::of_keys(given, &KEYS);
    let mut job = Job { stack: "verl", model_key: "actor_rollout_ref.model.path", ..Job::default() };
    job.model = model(&mut flags, machine);
    let nodes = gpus(&mut flags, "trainer.nnodes", machine.nodes);
    let per_node = gpus(&mut flags, "trainer.n_gpus_per_node", machine.gpus_per_node);
    if nodes.is_some() || per_node.is_some() {
        let per_node = per_node.unwrap_or(NODE_GPUS);
        job.gpus = (Some(per_node.saturating_mul(nodes.unwrap_or(1))), Some(per_node));
    }
    match flags.text(&actor("strategy")).as_deref() {
        Some("megatron") => {
            megatron(&mut flags, &mut job);
            unfused(&mut flags, &mut job, machine);
            again(&mut flags, &mut job);
        }
        _ => sharded(&mut flags, &mut job),
    }
    let answers = batch(&mut flags, &mut job);
    match step::Trainer::of(&flags) {
        Some(trainer) => step::import(trainer, flags, job, answers, machine),
        None => update(flags, job, machine),
    }
}

/// Nodes, or GPUs of a node. What only a shell knows is what the command line says.
fn gpus(flags: &mut Flags<'_>, name: &str, told: Option<u32>) -> Option<u32> {
    let is_unknown = flags.find(name).is_some_and(|flag| flag.value().contains(UNKNOWN));
    if is_unknown && told.is_some() {
        return told;
    }
    flags.count(name, 1..=1_000_000).map(|n| u32::try_from(n).expect("in range"))
}

/// An update of the actor alone.
fn update(mut flags: Flags<'_>, mut job: Job, machine: &Machine) -> Imported {
    lengths(&mut flags, &mut job);
    for name in offloads(&flags) {
        flags.not_modelled(&name, "copies to and from a host between phases are not counted, and its memory is");
    }
    let what = "an update of the actor is the scenario: generation, reference, critic and reward are not modelled";
    let help = "write `data.train_batch_size`, the prompts of a step: the whole step is the scenario then";
    flags.warn(Code::NotModelled, None, what, help);
    flags.given.retain(|flag| !OTHER_PARTS.iter().any(|part| flag.name.starts_with(part)));
    job.import(flags, machine)
}

/// The model by its path. Of a path in a folder that only a shell knows, the last part names it.
fn model(flags: &mut Flags<'_>, machine: &Machine) -> Option<String> {
    const KEY: &str = "actor_rollout_ref.model.path";
    if machine.model.is_some() {
        return None;
    }
    let path = flags.find(KEY)?.value();
    let last = path.rsplit('/').next().unwrap_or_default();
    let is_known = path.contains(UNKNOWN) && !last.is_empty() && !last.contains(UNKNOWN);
    if is_known { Some(last.to_owned()) } else { flags.text(KEY) }
}

fn actor(name: &str) -> String {
    format!("{ACTOR}{name}")
}

fn is_true(word: &str) -> bool {
    word.eq_ignore_ascii_case("true")
}

/// Whether a switch is on; `usual` where the file says nothing.
fn is_set(flags: &mut Flags<'_>, name: &str, usual: bool) -> bool {
    flags.text(name).map_or(usual, |word| is_true(&word))
}

/// Keys that send states of the actor to the host between its phases, those that are on.
fn offloads(flags: &Flags<'_>) -> Vec<String> {
    let section = if is_megatron(flags) { "megatron" } else { "fsdp_config" };
    let names = ["param", "grad", "optimizer"].map(|part| actor(&format!("{section}.{part}_offload")));
    names.into_iter().filter(|name| flags.find(name).is_some_and(|flag| is_true(&flag.value()))).collect()
}

fn is_megatron(flags: &Flags<'_>) -> bool {
    flags.find(&actor("strategy")).is_some_and(|flag| flag.value() == "megatron")
}

/// Whether a line has a word `actor_rollout_ref.…=…`.
fn is_override(line: &str) -> bool {
    line.split_whitespace()
        .any(|word| word.trim_start_matches('+').starts_with("actor_rollout_ref.") && word.contains('='))
}

/// Keys of a YAML file.
fn keys(text: &str) -> Result<Vec<Flag>, Finding> {
    let entries = yaml::entries(text).map_err(|why| {
        Finding::error(Code::UnreadableScript, Some(why.at()), format!("the file cannot be read: {why}"))
    })?;
    let valued = entries.iter().filter(|entry| !entry.value.is_empty());
    Ok(valued.filter_map(|entry| flag(entry.path.join("."), &entry.value, entry.at.clone())).collect())
}

/// Overrides in a script.
fn overrides(text: &str) -> Result<Vec<Flag>, Finding> {
    let commands = shell::commands(text)
        .map_err(|why| Finding::error(Code::UnreadableScript, why.at(), format!("the script cannot be read: {why}")))?;
    Ok(commands.iter().flatten().filter_map(over).collect())
}

fn over(word: &Word) -> Option<Flag> {
    let text = word.text();
    let (key, value) = text.trim_start_matches('+').split_once('=')?;
    key.contains('.').then(|| flag(key.to_owned(), value, word.at())).flatten()
}

/// A key with its value; none where it is null or has nothing in it. What other keys give is known only when the program runs.
fn flag(name: String, value: &str, at: std::ops::Range<usize>) -> Option<Flag> {
    let is_empty = matches!(value, "null" | "~" | "None" | "{}");
    let value = if value.contains("${") { UNKNOWN.to_string() } else { value.to_owned() };
    (!is_empty).then(|| Flag { name, values: vec![value], at })
}

/// The longest sequence, which all are taken to be.
fn lengths(flags: &mut Flags<'_>, job: &mut Job) {
    let parts = ["data.max_prompt_length", "data.max_response_length"].map(|name| flags.count(name, 1..=MOST));
    job.tokens = parts[0].zip(parts[1]).map(|(prompt, answer)| prompt + answer);
    if let Some(tokens) = job.tokens {
        let what = format!("all sequences are taken to be as long as the longest, {tokens} tokens");
        let help = "give lengths of your own: `--set workload.tokens=…`, or a scenario with `[workload]`";
        flags.warn(Code::MissingFlag, flags.at("data.max_response_length"), what, help);
    }
}

/// The actor in FSDP.
fn sharded(flags: &mut Flags<'_>, job: &mut Job) {
    let words = [("fsdp", 3_u32), ("fsdp2", 3)];
    let strategy = actor("strategy");
    let zero = if flags.find(&strategy).is_some() { flags.word(&strategy, &words).unwrap_or(3) } else { 3 };
    let is_kept = !is_set(flags, &actor("fsdp_config.reshard_after_forward"), true);
    let zero = if is_kept { 2 } else { zero };
    job.key(("parallel", "zero"), zero, "actor.strategy, actor.fsdp_config.reshard_after_forward");
    job.pytorch(flags, zero);
    let is_checkpointed = is_set(flags, "actor_rollout_ref.model.enable_gradient_checkpointing", true);
    let recompute = if is_checkpointed { "full" } else { "none" };
    job.word(("training", "recompute"), recompute, "actor_rollout_ref.model.enable_gradient_checkpointing");
    let cp = flags.count(&actor("ulysses_sequence_parallel_size"), 1..=100_000).unwrap_or(1);
    job.degrees = [1, 1, cp];
    if cp > 1 {
        job.word(("parallel", "exchange"), "ulysses", "actor.ulysses_sequence_parallel_size");
    }
}

/// The actor in Megatron Core.
fn megatron(flags: &mut Flags<'_>, job: &mut Job) {
    let mut degree =
        |kind: &str| flags.count(&actor(&format!("megatron.{kind}_model_parallel_size")), 1..=100_000).unwrap_or(1);
    let [tp, pp, ep] = ["tensor", "pipeline", "expert"].map(&mut degree);
    let cp = flags.count(&actor("megatron.context_parallel_size"), 1..=100_000).unwrap_or(1);
    job.degrees = [tp, pp, cp];
    job.key(("parallel", "zero"), 1, "the distributed optimizer of Megatron Core");
    job.word(("training", "framework"), "megatron-core", "actor.strategy");
    if tp > 1 {
        job.key(("parallel", "sequence_parallel"), true, "verl's Megatron workers");
    }
    if ep > 1 {
        job.key(("parallel", "ep"), ep, "actor.megatron.expert_model_parallel_size");
    }
    let chunks = flags.count(&actor("megatron.virtual_pipeline_model_parallel_size"), 1..=1000).unwrap_or(1);
    if pp > 1 {
        job.word(("parallel", "schedule"), if chunks > 1 { "interleaved" } else { "1f1b" }, "Megatron Core's own");
    }
    if pp > 1 && chunks > 1 {
        job.key(("parallel", "chunks"), chunks, "actor.megatron.virtual_pipeline_model_parallel_size");
    }
}

/// Permutations of tokens are fused by an override alone (`verl/models/mcore/config_converter.py`).
fn unfused(flags: &mut Flags<'_>, job: &mut Job, machine: &Machine) {
    let is_fused = is_set(flags, &actor("megatron.override_transformer_config.moe_permute_fusion"), false);
    let model = machine.model.as_ref().or(job.model.as_ref()).and_then(|asked| of_checkpoint(asked));
    if !is_fused && model.is_some_and(|model| model.experts.is_some()) {
        job.key(("training", "unfused"), "[\"permutation\"]", "no override_transformer_config.moe_permute_fusion");
    }
}

/// Which activations Megatron Core computes again. Nothing but these keys says so: verl's Megatron workers do not read `enable_gradient_checkpointing`.
fn again(flags: &mut Flags<'_>, job: &mut Job) {
    let of = |key: &str| actor(&format!("megatron.override_transformer_config.{key}"));
    let keys = ["recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers"].map(of);
    let [granularity, modules, method, n_layers] = &keys;
    let is_unfused = flags.text(&of("attention_backend")).is_some_and(|word| word == "unfused" || word == "local");
    if is_unfused {
        job.word(("training", "attention"), "unfused", "override_transformer_config.attention_backend");
    }
    let again = Again::of(flags, &Names { granularity, modules, method, n_layers }, false, is_unfused);
    job.key(("training", "recompute"), again.recompute.written(), "override_transformer_config.recompute_granularity");
    if let Some(n) = again.layers {
        job.key(("training", "recompute_layers"), n, "override_transformer_config.recompute_num_layers");
    }
}

/// Sequences of an update, and what a GPU takes at once. Gives the answers to a prompt.
fn batch(flags: &mut Flags<'_>, job: &mut Job) -> u64 {
    let prompts = flags.count(&actor("ppo_mini_batch_size"), 1..=MOST);
    let answers = flags.count("actor_rollout_ref.rollout.n", 1..=100_000).unwrap_or(1);
    job.batch = prompts.map(|prompts| prompts.saturating_mul(answers));
    if prompts.is_none() {
        flags.missing(&actor("ppo_mini_batch_size"), "a scenario needs the prompts of an update");
    }
    if is_set(flags, &actor("use_dynamic_bsz"), false) {
        job.bucket_tokens = flags.count(&actor("ppo_max_token_len_per_gpu"), 1..=MOST).or(Some(BUCKET_TOKENS));
        job.micro_batch = 1;
        return answers;
    }
    let micro_batch = flags.count(&actor("ppo_micro_batch_size_per_gpu"), 1..=MOST).or_else(|| of_all(flags, job));
    if micro_batch.is_none() {
        flags
            .missing(&actor("ppo_micro_batch_size_per_gpu"), "a scenario needs the sequences that a GPU takes at once");
    }
    job.micro_batch = micro_batch.unwrap_or(1);
    answers
}

/// Sequences that a GPU takes at once, of those that all replicas take together: the key of older releases, which workers divide.
fn of_all(flags: &mut Flags<'_>, job: &Job) -> Option<u64> {
    let all = flags.count(&actor("ppo_micro_batch_size"), 1..=MOST)?;
    let n_gpus = job.gpus.0.map_or(u64::from(NODE_GPUS), u64::from);
    let of_replica: u64 = job.degrees.iter().product();
    Some((all * of_replica / n_gpus).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Imported {
        import(text, &Machine { gpu: Some("h100-sxm".to_owned()), ..Machine::default() })
    }

    #[test]
    fn an_update_has_all_answers_of_its_prompts() {
        let yaml = "data:\n  max_prompt_length: 1024 # why\n  max_response_length: 3072\nactor_rollout_ref:\n  model:\n    path: Qwen/Qwen2.5-7B-Instruct\n    \
                    enable_gradient_checkpointing: True\n  actor:\n    strategy: fsdp2\n    ppo_mini_batch_size: 64\n    ppo_micro_batch_size_per_gpu: 2\n    \
                    ulysses_sequence_parallel_size: 2\n    fsdp_config:\n      optimizer_offload: True\n  rollout:\n    n: 8\ntrainer:\n  nnodes: 2\n  n_gpus_per_node: 8\nmade_up: 1\n";
        let read = found(yaml);
        // 64 prompts of 8 answers each; micro-batches of 2 × 4,096 tokens over two ranks.
        for part in [
            "batch_size = 512",
            "bucket_tokens = 4096",
            "tokens = 4096",
            "cp = 2",
            "exchange = \"ulysses\"",
            "zero = 3",
            "nodes = 2",
            "recompute = \"full\"",
        ] {
            assert!(read.scenario.contains(part), "{part} in {}", read.scenario);
        }
        let words: Vec<&str> = read.findings.iter().map(|finding| finding.what.as_str()).collect();
        assert!(
            words.contains(&"`actor_rollout_ref.actor.fsdp_config.optimizer_offload True` is not modelled"),
            "{words:?}"
        );
        assert!(words.contains(&"`made_up` is not in the table of keys"), "{words:?}");
        let of_shell = "python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=3072 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\\n \
                        actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_dynamic_bsz=True trainer.nnodes=$NODES trainer.n_gpus_per_node=8\n";
        let told = Machine { gpu: Some("h100-sxm".to_owned()), nodes: Some(3), ..Machine::default() };
        assert!(import(of_shell, &told).scenario.contains("nodes = 3"));
        assert!(found(of_shell).findings.iter().any(|finding| finding.what.contains("`trainer.nnodes` is known only")));
        let script = "python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=3072 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\\n \
                      actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 \\\n \
                      +actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \\\n \
                      trainer.nnodes=1 trainer.n_gpus_per_node=8\n";
        let read = found(script);
        for part in ["batch_size = 64", "bucket_tokens = 16384", "tp = 4", "zero = 1", "megatron-core"] {
            assert!(read.scenario.contains(part), "{part} in {}", read.scenario);
        }
    }

    #[test]
    fn permutations_are_fused_by_an_override_alone() {
        let unfused = |model: &str, more: &str| {
            let script = format!(
                "python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=3072 actor_rollout_ref.model.path={model} \\\n \
                 actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.ppo_mini_batch_size=64 \\\n \
                 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 trainer.nnodes=1 {more}\n"
            );
            found(&script).scenario.contains("unfused = [\"permutation\"]")
        };
        let fused = "+actor_rollout_ref.actor.megatron.override_transformer_config.moe_permute_fusion=True";
        assert!(unfused("Qwen/Qwen3-30B-A3B", ""));
        assert!(!unfused("Qwen/Qwen3-30B-A3B", fused));
        assert!(!unfused("Qwen/Qwen2.5-7B", ""));
    }
}
