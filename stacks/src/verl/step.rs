//! A whole step of reinforcement learning: prompts, answers, log probabilities and updates as a scenario of `kind = "rl"`.
//!
//! What a step is made of is that of verl's three trainers: `verl/trainer/ppo/ray_trainer.py`, `verl/experimental/one_step_off_policy/ray_trainer.py` and
//! `verl/experimental/fully_async_policy/fully_async_trainer.py`, volcengine/verl @ b178a3cd56f5. Values of keys that a file leaves out are those of
//! `verl/trainer/config` there. Units: tokens, prompts, GPUs.

use input::diagnostic::Code;

use super::{MOST, NODE_GPUS, actor, generate, is_set, offloads};
use crate::document::Document;
use crate::flags::{Flag, Flags};
use crate::job::Job;
use crate::shell::UNKNOWN;
use crate::{Imported, Machine};

/// Prompts of a step, and answers to each, at most.
const PROMPTS_MAX: u64 = 1_000_000;
/// Key of the prompts of a step.
const PROMPTS: &str = "data.train_batch_size";
/// Keys of the trainer that works while others generate.
const ASYNC: &str = "async_training.";
/// Updates that weights may be behind, at most.
const STALENESS_MAX: f64 = 1000.0;

/// How a step's parts follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trainer {
    /// The same GPUs generate and train in turns.
    InTurns,
    /// Answers of the next step are generated while a step is trained.
    OneStepOff,
    /// Answers are generated without end, and weights come from time to time.
    FullyAsync,
}

impl Trainer {
    /// The trainer whose step a file says; `None` where it does not say how many prompts a step has.
    pub(super) fn of(flags: &Flags<'_>) -> Option<Self> {
        if flags.given.iter().any(|flag| flag.name.starts_with(ASYNC)) {
            return Some(Self::FullyAsync);
        }
        flags.find(PROMPTS)?;
        let has_own = ["nnodes", "n_gpus_per_node"].iter().any(|key| flags.find(&format!("rollout.{key}")).is_some());
        Some(if has_own { Self::OneStepOff } else { Self::InTurns })
    }
}

/// What is generated in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    prompts: u64,
    answers: u64,
    /// Tokens of the longest prompt.
    prompt: u64,
    /// Mean tokens of a prompt.
    prompt_mean: u64,
    /// Mean tokens of an answer.
    mean: u64,
    /// Tokens of the longest answer.
    most: u64,
}

/// Forward passes over all answers before they are trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Forwards {
    /// With the policy's weights.
    policy: bool,
    /// With those of a reference.
    reference: bool,
}

/// The scenario of a step.
pub(super) fn import(
    trainer: Trainer,
    mut flags: Flags<'_>,
    mut job: Job,
    answers: u64,
    machine: &Machine,
) -> Imported {
    let asked = asked(trainer, &mut flags, (answers, job.batch), machine);
    job.tokens = Some(asked.prompt + asked.most);
    let per_node = job.gpus.1.unwrap_or(NODE_GPUS);
    job.gpus = (job.gpus.0.or(Some(per_node)), Some(per_node));
    let policy = packing(&mut flags, &mut job, asked, machine);
    let machine = &of_step(trainer, &mut flags, machine);
    let mut out = job.document(&mut flags, machine);
    out.remark("A step of reinforcement learning by verl as a scenario; remarks name the keys that gave it.");
    out.word("", "kind", "rl", "");
    out.set("policies", "run", format!("[\"{policy}\"]"), "how sequences become micro-batches");
    out.leave_out("workload");
    out.put_inside("train", &["parallel", "training", "policies", "overlap", "optimizer", "experts"]);
    rollouts(&mut out, asked);
    let forwards = parts(trainer, &mut flags, &mut out, machine);
    let n_gpus = match trainer {
        Trainer::InTurns => job.n_gpus(machine).unwrap_or(1),
        Trainer::OneStepOff | Trainer::FullyAsync => {
            out.put_inside("train", &["cluster"]);
            generate::cluster(&mut flags, &mut out, machine)
        }
    };
    generate::engine(&mut flags, &mut out, n_gpus);
    without_effect(trainer, &mut flags, forwards);
    critic(&mut flags);
    flags.judge();
    Imported { scenario: out.toml(), findings: flags.findings }
}

/// Prompts, answers and their lengths.
fn asked(trainer: Trainer, flags: &mut Flags<'_>, (answers, update): (u64, Option<u64>), machine: &Machine) -> Asked {
    let of_update = update.map_or(1, |sequences| sequences / answers).max(1);
    let prompts = match trainer {
        Trainer::InTurns | Trainer::OneStepOff => flags.count(PROMPTS, 1..=PROMPTS_MAX).unwrap_or(of_update),
        Trainer::FullyAsync => {
            let mut count = |key: &str, usual| flags.count(&format!("{ASYNC}{key}"), 1..=PROMPTS_MAX).unwrap_or(usual);
            let fetched = count("require_batches", 1).saturating_mul(of_update);
            count("trigger_parameter_sync_step", 4).saturating_mul(fetched)
        }
    };
    if !prompts.is_multiple_of(of_update) {
        let what = format!("{prompts} prompts of a step are no whole updates of {of_update}");
        flags.wrong(PROMPTS, what, "write a multiple of `actor_rollout_ref.actor.ppo_mini_batch_size`".to_owned());
    }
    let prompt = flags.count("data.max_prompt_length", 1..=MOST).unwrap_or(512);
    let most = flags.count("data.max_response_length", 1..=MOST).unwrap_or(512);
    let half = most.div_ceil(2);
    let what = format!("all prompts are taken to be as long as the longest, {prompt} tokens");
    let help = "give the mean: `--set rollouts.prompt_tokens=…`";
    if !machine.states(&["rollouts.prompt_tokens"]) {
        flags.warn(Code::MissingFlag, flags.at("data.max_prompt_length"), what, help);
    }
    let what = format!("no key says how long answers are on average: half of their limit is taken, {half} tokens");
    let help = "give the mean: `--set rollouts.answer_tokens=…`, or lengths: `rollouts.file`";
    if !machine.states(&["rollouts.answer_tokens", "rollouts.file"]) {
        flags.warn(Code::MissingFlag, flags.at("data.max_response_length"), what, help);
    }
    let [prompt_mean, mean] = machine.generated;
    let (prompt_mean, mean) = (prompt_mean.unwrap_or(prompt).min(prompt), mean.unwrap_or(half).min(most));
    Asked { prompts, answers, prompt, prompt_mean, mean, most }
}

/// `[rollouts]`: what is generated.
fn rollouts(out: &mut Document, asked: Asked) {
    out.set("rollouts", "prompts", asked.prompts, "prompts of a step");
    out.set("rollouts", "answers", asked.answers, "actor_rollout_ref.rollout.n");
    out.set("rollouts", "prompt_tokens", asked.prompt_mean, "their mean: where no key says it, data.max_prompt_length");
    out.set("rollouts", "answer_tokens", asked.mean, "their mean: where no key says it, half of the limit");
    out.set("rollouts", "max_answer_tokens", asked.most, "data.max_response_length");
}

/// The policy that makes micro-batches as verl does, and their tokens. verl takes so many sequences in order, or fills micro-batches up to their tokens
/// (`verl/utils/seqlen_balancing.py`).
fn packing(flags: &mut Flags<'_>, job: &mut Job, asked: Asked, machine: &Machine) -> &'static str {
    if job.bucket_tokens.is_some() {
        return "best_fit";
    }
    let of_one = asked.prompt + asked.most;
    if job.micro_batch == 1 {
        job.bucket_tokens = Some(of_one.div_ceil(job.degrees[2]));
        return "deepspeed";
    }
    let tokens = job.micro_batch.saturating_mul(asked.prompt_mean + asked.mean).max(of_one);
    job.bucket_tokens = Some(tokens.div_ceil(job.degrees[2]));
    let key = actor("ppo_micro_batch_size_per_gpu");
    let n = job.micro_batch;
    let what = format!(
        "micro-batches of {n} sequences have {tokens} tokens: those of {n} mean ones, and at least those of the longest"
    );
    let help = "give others: `--set train.training.bucket_tokens=…`, at least the tokens of the longest sequence";
    if !machine.states(&["train.training.bucket_tokens"]) {
        flags.warn(Code::NotModelled, flags.at(&key), what, help);
    }
    "best_fit"
}

/// What the command line says of a machine, where it means the same for a step.
fn of_step(trainer: Trainer, flags: &mut Flags<'_>, machine: &Machine) -> Machine {
    if machine.tokens.is_some() {
        let help = "leave it out; `--set rollouts.prompt_tokens=…` and `rollouts.answer_tokens=…` say lengths";
        let what = "the file is a step of reinforcement learning, which has no `workload.tokens`";
        flags.refuse(Code::WrongFlag, None, what, help);
    }
    let has_gpus = machine.nodes.is_some() || machine.gpus_per_node.is_some();
    if trainer != Trainer::InTurns && has_gpus {
        let help = "leave `cluster` out; `--set train.cluster.nodes=…` and `generate.cluster.nodes=…` say each side's";
        let what = "trainer and engines have GPUs of their own, and `cluster` says those of one machine";
        flags.refuse(Code::WrongFlag, None, what, help);
    }
    Machine { tokens: None, ..machine.clone() }
}

/// `[rollouts]`: how a step is made of its parts.
fn parts(trainer: Trainer, flags: &mut Flags<'_>, out: &mut Document, machine: &Machine) -> Forwards {
    let forwards = forwards(trainer, flags);
    if trainer == Trainer::InTurns {
        out.word("rollouts", "placement", "colocated", "the same GPUs in turns");
        let is_sent = offload(flags);
        out.set("rollouts", "offload", is_sent, "actor: param_offload, optimizer_offload");
    } else {
        out.word("rollouts", "placement", "split", "trainer.nnodes beside rollout.nnodes");
        for name in offloads(flags) {
            flags.not_modelled(&name, "a trainer with GPUs of its own is taken to keep its states there");
        }
        behind(trainer, flags, out);
    }
    if forwards.policy && forwards.reference {
        let lies = if is_on_host(flags) { "host" } else { "device" };
        out.word(
            "rollouts",
            "reference",
            lies,
            "ref.megatron.param_offload; FSDP workers keep a reference on the host",
        );
    }
    let passes = u8::from(forwards.policy) + u8::from(forwards.reference);
    out.set("rollouts", "forward_passes", passes, "log probabilities of the policy and of a reference");
    let what = "rewards and the time beside the parts are taken to be NeMo-RL's";
    if !machine.states(&["rollouts.rewards_s", "rollouts.orchestrator"]) {
        let help = "give `--set rollouts.rewards_s=…`, or `--set rollouts.orchestrator=none`";
        flags.warn(Code::NotModelled, None, what, help);
    }
    forwards
}

/// How far weights may be behind.
fn behind(trainer: Trainer, flags: &mut Flags<'_>, out: &mut Document) {
    if trainer == Trainer::OneStepOff {
        return out.set("rollouts", "off_policy", 1, "one step off");
    }
    let key = format!("{ASYNC}staleness_threshold");
    let staleness = if flags.find(&key).is_some() { flags.number(&key).unwrap_or(0.0) } else { 0.1 };
    if !(0.0..=STALENESS_MAX).contains(&staleness) {
        let help = format!("allowed are numbers from 0 to {STALENESS_MAX}");
        return flags.wrong(&key, format!("`{key} {staleness}` is no share of a step's answers"), help);
    }
    let updates = staleness.ceil();
    if staleness.fract() > 0.0 {
        let what = format!("`{key}` of {staleness} is taken as {updates}: all answers may be so many updates behind");
        let help = "a part of a step's answers is not known apart: give `--set rollouts.off_policy=…`";
        flags.warn(Code::NotModelled, flags.at(&key), what, help);
    }
    out.set("rollouts", "off_policy", updates, "async_training.staleness_threshold");
    out.word("rollouts", "batches", "streamed", "answers of several steps run beside one another");
}

/// Forward passes of a step. A trainer that takes the engine's log probabilities has none of its own.
fn forwards(trainer: Trainer, flags: &mut Flags<'_>) -> Forwards {
    let policy = match trainer {
        Trainer::FullyAsync => {
            let is_taken = is_set(flags, "async_training.use_rollout_log_probs", true);
            !is_taken || is_set(flags, "async_training.compute_prox_log_prob", false)
        }
        _ => !is_set(flags, "algorithm.rollout_correction.bypass_mode", trainer == Trainer::OneStepOff),
    };
    let in_loss = is_set(flags, &actor("use_kl_loss"), false);
    let in_reward = is_set(flags, "algorithm.use_kl_in_reward", false);
    Forwards { policy, reference: in_loss || in_reward }
}

/// Whether a reference lies on the host: always under FSDP (`fsdp_workers.py`: `CPUOffload` of what is no actor), under Megatron where its key or the actor's
/// says so (`ref/megatron_ref.yaml`).
fn is_on_host(flags: &mut Flags<'_>) -> bool {
    let of_actor = flags.find(&actor("megatron.param_offload")).is_some_and(|flag| super::is_true(&flag.value()));
    !super::is_megatron(flags) || is_set(flags, "actor_rollout_ref.ref.megatron.param_offload", of_actor)
}

/// Whether the trainer's states are on the host while the engine generates. A scenario sends all of them or none; where verl sends a part, the optimizer's
/// decide, for they are the most.
fn offload(flags: &mut Flags<'_>) -> bool {
    let sent = offloads(flags);
    let n_parts = if super::is_megatron(flags) { 3 } else { 2 };
    let is_sent = sent.iter().any(|name| name.contains("optimizer"));
    if !sent.is_empty() && sent.len() < n_parts {
        let taken = if is_sent { "all of them are taken to be" } else { "none is taken to be" };
        let what = format!("a part of the trainer's states is sent to the host: {taken}");
        let help = "a step sends parameters, gradients and optimizer, or nothing: `--set rollouts.offload=…`";
        flags.warn(Code::NotModelled, flags.at(&sent[0]), what, help);
    }
    is_sent
}

/// Leaves out keys that change nothing in such a step, so that nobody is warned of them.
fn without_effect(trainer: Trainer, flags: &mut Flags<'_>, forwards: Forwards) {
    if !forwards.reference {
        flags.given.retain(|flag| !flag.name.starts_with("actor_rollout_ref.ref."));
    }
    if !forwards.policy {
        flags.given.retain(|flag| !flag.name.starts_with("actor_rollout_ref.rollout.log_prob_"));
    }
    let mut idle = Vec::new();
    for part in ["rollout", "ref"] {
        idle.extend(as_the_actors(flags, part));
    }
    if trainer != Trainer::InTurns {
        // Without GPUs that are shared nobody makes room.
        idle.push("actor_rollout_ref.rollout.free_cache_engine".to_owned());
    }
    if trainer == Trainer::FullyAsync || value(flags, "data.gen_batch_size") == value(flags, PROMPTS) {
        idle.push("data.gen_batch_size".to_owned());
    }
    let over = "actor_rollout_ref.rollout.over_sample_rate";
    if value(flags, over).and_then(|rate| rate.parse::<f64>().ok()) == Some(0.0) {
        idle.push(over.to_owned());
    }
    flags.given.retain(|flag| !idle.contains(&flag.name));
}

/// What stands behind a key.
fn value(flags: &Flags<'_>, name: &str) -> Option<String> {
    flags.find(name).map(Flag::value)
}

/// Keys of log probabilities that say what the actor's do, or nothing beside another one.
fn as_the_actors(flags: &Flags<'_>, part: &str) -> Vec<String> {
    let is_filled = value(flags, &actor("use_dynamic_bsz")).is_some_and(|word| super::is_true(&word));
    let keys = [
        ("log_prob_use_dynamic_bsz", "use_dynamic_bsz", true),
        ("log_prob_max_token_len_per_gpu", "ppo_max_token_len_per_gpu", is_filled),
        ("log_prob_micro_batch_size_per_gpu", "ppo_micro_batch_size_per_gpu", !is_filled),
    ];
    let mut idle = Vec::new();
    for (key, of_actor, counts) in keys {
        let name = format!("actor_rollout_ref.{part}.{key}");
        let said = value(flags, &name);
        let is_same = said == value(flags, &actor(of_actor)) || said.is_some_and(|word| word.contains(UNKNOWN));
        if is_same || !counts {
            idle.push(name);
        }
    }
    idle
}

/// Warns of a critic that a file has without a word: `gae` is the usual estimator, and a critic belongs to it.
fn critic(flags: &mut Flags<'_>) {
    let is_out = flags.find("critic.enable").is_some_and(|flag| !super::is_true(&flag.value()));
    if is_out {
        flags.given.retain(|flag| flag.name != "algorithm.adv_estimator");
    } else if flags.find("algorithm.adv_estimator").is_none() && flags.find("critic.enable").is_none() {
        let what = "without `algorithm.adv_estimator` verl trains a critic, which is not modelled";
        flags.warn(Code::NotModelled, None, what, "write the estimator of the file, for example `grpo`");
    }
}

#[cfg(test)]
mod tests {
    use crate::example::{has_parts, on};
    use crate::{Imported, Machine};

    fn found(text: &str) -> Imported {
        super::super::import(text, &on("h100-sxm"))
    }

    /// Words of a command, with the actor's and the engine's keys in short.
    fn script(words: &str) -> String {
        let long = |word: &str| match word.split_once('.') {
            Some(("actor" | "rollout" | "ref" | "model", _)) => format!("actor_rollout_ref.{word}"),
            Some(("engines", key)) => format!("rollout.{key}"),
            _ => word.to_owned(),
        };
        let words: Vec<String> = words.split_whitespace().map(long).collect();
        format!(
            "python3 -m verl.trainer.main_ppo model=x actor_rollout_ref.model.path=Qwen/Qwen2.5-7B {}\n",
            words.join(" ")
        )
    }

    fn check(words: &str, expected: &[&str]) -> Vec<String> {
        let read = found(&script(words));
        has_parts(&read, expected);
        read.findings.into_iter().map(|finding| finding.what).collect()
    }

    fn says(findings: &[String], part: &str) -> bool {
        findings.iter().any(|what| what.contains(part))
    }

    const FILLED: &str = "data.max_prompt_length=1024 data.max_response_length=3072 actor.ppo_mini_batch_size=64 actor.use_dynamic_bsz=True \
                          actor.ppo_max_token_len_per_gpu=16384 algorithm.adv_estimator=grpo rollout.name=vllm";

    #[test]
    fn a_file_with_prompts_of_a_step_is_the_whole_step() {
        let words = format!(
            "{FILLED} data.train_batch_size=256 rollout.n=8 rollout.tensor_model_parallel_size=4 rollout.gpu_memory_utilization=0.6 rollout.enforce_eager=True \
             rollout.max_num_seqs=512 rollout.quantization=fp8 actor.use_kl_loss=True actor.fsdp_config.param_offload=True actor.fsdp_config.optimizer_offload=True \
             trainer.nnodes=2 trainer.n_gpus_per_node=8"
        );
        let findings = check(
            &words,
            &[
                "kind = \"rl\"",
                "prompts = 256",
                "answers = 8",
                "prompt_tokens = 1024",
                "answer_tokens = 1536",
                "max_answer_tokens = 3072",
                "placement = \"colocated\"",
                // One of the policy, one of the reference.
                "forward_passes = 2",
                "offload = true",
                "[train.training]\nbatch_size = 512",
                "bucket_tokens = 16384",
                "[train.parallel]",
                "run = [\"best_fit\"]",
                "tp = 4",
                "memory_ratio = 0.6",
                "max_sequences = 512",
                // What verl tells vLLM where a file says nothing.
                "max_tokens = 8192",
                "graph_max = 0",
                "weights = \"fp8-block\"",
                // 16 GPUs in engines of four.
                "replicas = 4",
                "[cluster]",
            ],
        );
        assert!(!says(&findings, "critic") && !says(&findings, "host"), "{findings:?}");
        assert!(says(&findings, "1536 tokens") && says(&findings, "rewards"), "{findings:?}");
        // Without these prompts it stays an update.
        let update = check(FILLED, &["kind = \"training\"", "tokens = 4096", "batch_size = 64"]);
        assert!(says(&update, "generation, reference, critic and reward"), "{update:?}");
    }

    #[test]
    fn micro_batches_of_one_sequence_are_exact_and_larger_ones_have_its_mean_tokens() {
        let base = "data.max_prompt_length=1000 data.max_response_length=3000 data.train_batch_size=64 actor.ppo_mini_batch_size=64 actor.ulysses_sequence_parallel_size=2";
        let one = check(
            &format!("{base} actor.ppo_micro_batch_size_per_gpu=1"),
            &["bucket_tokens = 2000", "run = [\"deepspeed\"]", "forward_passes = 1", "offload = false"],
        );
        assert!(!says(&one, "micro-batches"), "{one:?}");
        // Nodes have eight GPUs and engines two where no key says it.
        check(&format!("{base} actor.ppo_micro_batch_size_per_gpu=1 trainer.nnodes=2"), &["nodes = 2", "replicas = 8"]);
        assert!(says(&one, "verl trains a critic") && says(&one, "vLLM is taken"), "{one:?}");
        // Three of 1,000 and 1,500 tokens over two ranks.
        let three = check(
            &format!("{base} actor.ppo_micro_batch_size_per_gpu=3"),
            &["bucket_tokens = 3750", "run = [\"best_fit\"]"],
        );
        assert!(says(&three, "micro-batches of 3 sequences"), "{three:?}");
    }

    #[test]
    fn trainers_with_gpus_of_their_own_are_split() {
        let gpus = "trainer.nnodes=2 trainer.n_gpus_per_node=6 engines.nnodes=2 engines.n_gpus_per_node=2 rollout.tensor_model_parallel_size=2 \
                    rollout.free_cache_engine=False";
        let off = check(
            &format!("{FILLED} data.train_batch_size=128 {gpus}"),
            &[
                "placement = \"split\"",
                "off_policy = 1",
                "forward_passes = 0",
                "[train.cluster]\ngpu = ",
                "nodes = 2\ngpus_per_node = 6",
                "[generate.cluster]\nnodes = 2",
                "gpus_per_node = 2",
                "replicas = 2",
            ],
        );
        assert!(!says(&off, "free_cache_engine"), "{off:?}");
        // 4 × 2 fetches of 64 prompts between two changes of weights.
        let words = "async_training.trigger_parameter_sync_step=4 async_training.require_batches=2 async_training.staleness_threshold=0.5 \
                     async_training.partial_rollout=True async_training.compute_prox_log_prob=True data.train_batch_size=0 data.gen_batch_size=1";
        let asynchronous = check(
            &format!("{FILLED} {gpus} {words}"),
            &["prompts = 512", "off_policy = 1 ", "batches = \"streamed\"", "forward_passes = 1"],
        );
        assert!(says(&asynchronous, "partial_rollout True"), "{asynchronous:?}");
        assert!(says(&asynchronous, "0.5 is taken as 1:"), "{asynchronous:?}");
    }

    #[test]
    fn what_an_override_states_is_not_said_to_be_assumed() {
        let text = script(&format!("{FILLED} data.train_batch_size=64"));
        let warnings = |set: &[&str]| {
            let set: Vec<String> = set.iter().map(|item| (*item).to_owned()).collect();
            let machine = Machine { gpu: Some("h100-sxm".to_owned()), ..Machine::of_overrides(&set) };
            super::super::import(&text, &machine).findings.len()
        };
        let all = warnings(&[]);
        let stated = ["rollouts.prompt_tokens=300", "rollouts.answer_tokens=900", "rollouts.rewards_s=2"];
        assert_eq!(stated.map(|item| all - warnings(&[item])), [1; 3]);
        assert_eq!(all - warnings(&stated), 3);
        assert_eq!(all, warnings(&["rollouts.prompts=64"]));
    }

    #[test]
    fn parts_that_are_no_parts_of_a_step_are_named() {
        let words = format!(
            "{FILLED} data.train_batch_size=96 algorithm.adv_estimator=gae reward_model.enable=True rollout.multi_turn.enable=True actor.strategy=megatron \
             actor.megatron.optimizer_offload=True rollout.expert_parallel_size=8 rollout.engine_kwargs.vllm.x=1 trainer.n_gpus_per_node=9"
        );
        let findings = check(&words, &["offload = true", "ep = 2"]);
        for part in [
            "adv_estimator gae",
            "reward_model.enable True",
            "multi_turn.enable True",
            "a part of the trainer's states is sent to the host: all",
            "experts over 8 GPUs, and a replica has 2 × 1",
            "engine_kwargs.vllm.x 1",
            "engines of 2 GPUs do not fill 9",
            "96 prompts of a step are no whole updates of 64",
        ] {
            assert!(says(&findings, part), "{part}: {findings:#?}");
        }
        let machine = Machine { tokens: Some(4096), nodes: Some(2), ..Machine::default() };
        let text = script(&format!("{FILLED} data.train_batch_size=64 engines.nnodes=1"));
        let findings: Vec<String> =
            super::super::import(&text, &machine).findings.into_iter().map(|f| f.what).collect();
        assert!(says(&findings, "no `workload.tokens`") && says(&findings, "GPUs of their own"), "{findings:?}");
    }

    #[test]
    fn megatron_computes_again_what_its_own_keys_say() {
        let base = format!("{FILLED} data.train_batch_size=64 actor.strategy=megatron");
        check(&base, &["recompute = \"none\""]);
        let over = "actor.megatron.override_transformer_config.recompute_";
        check(
            &format!("{base} {over}granularity=full {over}method=uniform {over}num_layers=1"),
            &["recompute = \"full\""],
        );
        check(
            &format!("{base} {over}granularity=full {over}method=block {over}num_layers=4"),
            &["recompute = \"full\"", "recompute_layers = 4"],
        );
        let modules = format!("{base} {over}granularity=selective {over}modules=[core_attn,layernorm]");
        check(&modules, &["recompute = [\"core_attn\", \"layernorm\"]"]);
        let wrong = check(&format!("{base} {over}granularity=selective {over}modules=[attn]"), &[]);
        assert!(says(&wrong, "`attn` of") && says(&wrong, "no module of a layer"), "{wrong:?}");
    }

    #[test]
    fn a_reference_lies_where_its_workers_keep_it() {
        let base = format!("{FILLED} data.train_batch_size=64 actor.use_kl_loss=True");
        check(&format!("{base} ref.fsdp_config.param_offload=False"), &["reference = \"host\""]);
        let megatron = format!("{base} actor.strategy=megatron");
        check(&megatron, &["reference = \"device\""]);
        check(&format!("{megatron} actor.megatron.param_offload=True"), &["reference = \"host\""]);
        let both = "actor.megatron.param_offload=True ref.megatron.param_offload=False";
        check(&format!("{megatron} {both}"), &["reference = \"device\""]);
    }

    #[test]
    fn micro_batches_of_all_replicas_are_divided() {
        // 64 sequences over 4 replicas of 16 GPUs in context groups of 4.
        let words = "actor.ppo_mini_batch_size=64 actor.ppo_micro_batch_size=64 actor.ulysses_sequence_parallel_size=4 trainer.nnodes=2 data.train_batch_size=64 \
                     data.max_prompt_length=1024 data.max_response_length=1024";
        let findings = check(words, &["batch_size = 64"]);
        assert!(says(&findings, "micro-batches of 16 sequences"), "{findings:?}");
    }

    #[test]
    fn a_path_in_a_folder_of_the_shell_names_its_model_and_sums_in_parentheses_are_read() {
        let text = "P=$((1024 * 2))\nA=$((1024 * 8))\nM=$(((P + A) * 2))\nMODEL=${MODEL:-\"${HOME}/models/Qwen2.5-7B\"}\n\
                    python3 -m verl.trainer.main_ppo data.max_prompt_length=$P data.max_response_length=$A data.train_batch_size=64 \
                    actor_rollout_ref.model.path=\"${MODEL}\" actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_dynamic_bsz=True \
                    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$M\n";
        let read = found(text);
        has_parts(&read, &["name = \"qwen2.5-7b\"", "bucket_tokens = 20480", "max_answer_tokens = 8192"]);
        let named = Machine { model: Some("llama-3-8b".to_owned()), ..Machine::default() };
        let unknown = text.replace("/models/Qwen2.5-7B", "");
        assert!(super::super::import(&unknown, &named).scenario.contains("name = \"llama-3-8b\""));
    }

    #[test]
    fn log_probabilities_with_other_micro_batches_are_warned_of_where_they_are_computed() {
        let other = "data.train_batch_size=64 rollout.log_prob_max_token_len_per_gpu=32768 ref.log_prob_max_token_len_per_gpu=32768 \
                     rollout.log_prob_micro_batch_size_per_gpu=4";
        let findings = check(&format!("{FILLED} {other}"), &["forward_passes = 1"]);
        assert!(says(&findings, "rollout.log_prob_max_token_len_per_gpu 32768"), "{findings:?}");
        assert!(!says(&findings, "ref.log_prob") && !says(&findings, "log_prob_micro"), "{findings:?}");
        let bypassed = format!("{FILLED} {other} algorithm.rollout_correction.bypass_mode=True");
        assert!(!says(&check(&bypassed, &["forward_passes = 0"]), "log_prob"));
    }
}
