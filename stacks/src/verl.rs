//! verl's YAML, or a script with overrides of it → a step of reinforcement learning, or one update of the actor.
//!
//! A file that says how many prompts a step has becomes a scenario of `kind = "rl"` (`step`). Any other becomes a training scenario of the update alone, and a
//! warning says so.

mod generate;
mod keys;
mod megatron;
mod sharded;
mod step;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use input::diagnostic::Code;

use crate::flags::{Flags, Table};
use crate::job::Job;
use crate::shell::UNKNOWN;
use crate::{Imported, Machine};

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
    let given = match keys::of_text(text) {
        Ok(given) => given,
        Err(finding) => return Imported::refused(finding),
    };
    let mut flags = Flags::of_keys(given.flags, &KEYS);
    flags.findings = given.findings;
    without_adapters(&mut flags);
    let mut job = Job { stack: "verl", model_key: "actor_rollout_ref.model.path", ..Job::default() };
    job.model = model(&mut flags, machine);
    let nodes = gpus(&mut flags, "trainer.nnodes", machine.nodes);
    let per_node = gpus(&mut flags, "trainer.n_gpus_per_node", machine.gpus_per_node);
    if nodes.is_some() || per_node.is_some() {
        let per_node = per_node.unwrap_or(NODE_GPUS);
        job.gpus = (Some(per_node.saturating_mul(nodes.unwrap_or(1))), Some(per_node));
    }
    match flags.text(&actor("strategy")).as_deref() {
        Some("megatron") => megatron::megatron(&mut flags, &mut job, machine),
        _ => sharded::sharded(&mut flags, &mut job),
    }
    let answers = batch(&mut flags, &mut job);
    match step::Trainer::of(&flags) {
        Some(trainer) => step::import(trainer, flags, job, answers, machine),
        None => update(flags, job, machine),
    }
}

/// Leaves out the rank of adapters in FSDP where it says that there are none.
fn without_adapters(flags: &mut Flags<'_>) {
    const RANK: &str = "actor_rollout_ref.model.lora_rank";
    if flags.find(RANK).is_some_and(|flag| flag.value() == "0") {
        flags.given.retain(|flag| flag.name != RANK);
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
    if machine.model.is_some() || machine.has_configuration() {
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
