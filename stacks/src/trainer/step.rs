//! A step of a job: the model, lengths, batch, degrees and kernels.

use input::diagnostic::Code;

use super::{Dialect, MOST, is_on, is_true, rollouts, word_of, words_of};
use crate::Machine;
use crate::flags::Flags;
use crate::job::{Job, LENGTHS};
use crate::shell::UNKNOWN;

/// The model by its path or by a builder's name. Of a path in a folder that only a shell knows, the last part names it.
pub(super) fn model(flags: &mut Flags<'_>, job: &mut Job, machine: &Machine) {
    let Some(name) = word_of(flags, "model.name") else { return };
    if machine.model.is_some() || machine.has_configuration() {
        return;
    }
    let path = flags.find(&name).map_or_else(String::new, crate::flags::Flag::value);
    let last = path.rsplit('/').next().unwrap_or_default().to_owned();
    let is_last_known = path.contains(UNKNOWN) && !last.is_empty() && !last.contains(UNKNOWN);
    let asked = if is_last_known { Some(last) } else { flags.text(&name) };
    job.model = asked.map(|asked| asked.strip_prefix("torchtune.models.").map_or(asked.clone(), of_builder));
    job.model_key = job_key(&name);
}

/// Keys that name a model, as remarks have them.
fn job_key(name: &str) -> &'static str {
    const KEYS: [&str; 5] = ["model_name_or_path", "base_model", "model._component_", "model_name", "model"];
    KEYS.into_iter().find(|key| *key == name).unwrap_or("model_name_or_path")
}

/// `llama3_1.lora_llama3_1_8b` → `llama3-1-8b`.
fn of_builder(component: &str) -> String {
    let last = component.rsplit('.').next().unwrap_or_default();
    last.trim_start_matches("qlora_").trim_start_matches("lora_").replace('_', "-")
}

/// The longest sequence, which all are taken to be.
pub(super) fn lengths(flags: &mut Flags<'_>, job: &mut Job, (dialect, machine): (Dialect, &Machine)) {
    let names = words_of(flags, "workload.tokens");
    let packs = packs(flags);
    // What rows are packed into counts before what one sequence may have.
    let wholes = || names.iter().filter(|name| !is_packing(name) && !rollouts::is_part(name));
    let of_lengths = wholes().find(|name| packs && *name == "packing_length").or_else(|| wholes().next());
    if packs && machine.states(&LENGTHS) {
        let row = of_lengths.and_then(|name| flags.count(name, 1..=MOST)).or(dialect.tokens());
        return into_rows(flags, job, row, dialect);
    }
    if machine.tokens.is_some() {
        job.tokens = machine.tokens;
        return;
    }
    if machine.states(&LENGTHS) {
        let of_parts = rollouts::lengths(flags, dialect, of_lengths.map(String::as_str));
        let of_one = of_lengths.and_then(|name| flags.count(name, 1..=MOST)).or(dialect.tokens());
        return up_to(job, of_parts.map(|parts| parts.iter().sum()).or(of_one), dialect);
    }
    if let Some(parts) = rollouts::lengths(flags, dialect, of_lengths.map(String::as_str)) {
        job.tokens = Some(parts.iter().sum());
        return rollouts::said(flags, parts, dialect);
    }
    let given = of_lengths.and_then(|name| flags.count(name, 1..=MOST));
    let Some(tokens) = given.or(dialect.tokens()) else { return };
    job.tokens = Some(tokens);
    let at = of_lengths.and_then(|name| flags.at(name));
    let of = if given.is_some() { "what the file allows".to_owned() } else { format!("{}'s default", dialect.name()) };
    let (what, help) = if packs {
        (
            format!(
                "sequences are packed into {tokens} tokens, {of}: attention is counted over all of them, and not document by document"
            ),
            "give lengths of your own, which are packed into as many rows: `--set workload.lengths=…`, or `workload.file`",
        )
    } else {
        (
            format!("all sequences are taken to be as long as the longest, {tokens} tokens, {of}"),
            "give lengths of your own: `--set workload.tokens=…`, or a scenario with `[workload]`",
        )
    };
    flags.warn(Code::MissingFlag, at, what, help);
}

/// Whether a word says that several sequences lie in a row.
fn is_packing(name: &str) -> bool {
    name.ends_with("packing") || name.ends_with("packed")
}

/// Whether several sequences lie in a row. LLaMA-Factory packs in its stage `pt` where no word says otherwise (`data_args.packing` in `hparams/parser.py`).
pub(super) fn packs(flags: &mut Flags<'_>) -> bool {
    let names: Vec<String> = words_of(flags, "workload.tokens").into_iter().filter(|name| is_packing(name)).collect();
    names.iter().any(|name| is_on(flags, name)) || names.is_empty() && is_of_texts(flags)
}

/// Whether texts are trained on without questions and answers: a stage of LLaMA-Factory.
fn is_of_texts(flags: &mut Flags<'_>) -> bool {
    flags.table.find("stage").is_some() && flags.text("stage").is_some_and(|stage| stage == "pt")
}

/// Rows beside lengths that the command line states. Texts are laid one behind the other and cut into rows; of other data what is longer is left out, or loses its
/// end.
fn into_rows(flags: &mut Flags<'_>, job: &mut Job, row: Option<u64>, dialect: Dialect) {
    job.row_tokens = row;
    if is_of_texts(flags) {
        job.word(("workload", "longer"), "cut", "texts go on in the next row");
    } else if dialect != Dialect::Axolotl {
        job.word(("workload", "longer"), "truncate", "longer ones lose their end");
    }
    // LLaMA-Factory masks what lies before a sequence in its row with one word alone (`get_seqlens_in_batch` of `model_utils/packing.py`).
    if dialect == Dialect::LlamaFactory && !is_on(flags, "neat_packing") {
        let what = "attention is counted sequence by sequence, and without `neat_packing` it goes over whole rows";
        let help = "leave the lengths out: then each row is one sequence";
        flags.warn(Code::NotModelled, None, what, help);
    }
}

/// The longest row beside lengths that the command line states: Axolotl leaves longer sequences out (`excess_length_strategy`, `drop` where nothing is
/// said), and others cut their ends off.
fn up_to(job: &mut Job, most: Option<u64>, dialect: Dialect) {
    job.tokens = most;
    if let Some(most) = most {
        job.key(("workload", "max_tokens"), most, "the longest sequence that the file allows");
    }
    if dialect != Dialect::Axolotl {
        job.word(("workload", "longer"), "truncate", "longer ones lose their end");
    }
}

/// Sequences of a step and of a micro-batch.
pub(super) fn batch(flags: &mut Flags<'_>, job: &mut Job, (dialect, machine): (Dialect, &Machine)) {
    // What an override says may stand in the file as a variable.
    let states = machine.states(&["training.bucket_tokens"]);
    let name = word_of(flags, "training.bucket_tokens").filter(|_| !states);
    let given = name.and_then(|name| flags.count(&name, 1..=MOST));
    if given.is_none() && !states {
        let n = dialect.micro_batch();
        let what = format!("the file does not say how many sequences a GPU takes at once: {n}, the default, are taken");
        let help = "give `--set training.bucket_tokens=…`, their tokens, or write the key into the file";
        flags.warn(Code::MissingFlag, None, what, help);
    }
    job.micro_batch = given.unwrap_or(dialect.micro_batch());
    job.of_replica = Some(of_replica(flags, job, (dialect, machine)));
    if let Some(tokens) = machine.bucket_tokens {
        job.bucket_tokens = Some(tokens);
    }
    job.batch = machine.batch;
}

/// Sequences of a replica in a step: those of a micro-batch by the steps of accumulation. Axolotl's `batch_size` is the product.
fn of_replica(flags: &mut Flags<'_>, job: &Job, (dialect, machine): (Dialect, &Machine)) -> u64 {
    const STEPS: &str = "gradient_accumulation_steps";
    // ms-swift fills a step up to so many sequences of all ranks.
    const OF_SWIFT: u64 = 16;
    let micro_batch = job.micro_batch;
    if flags.find(STEPS).is_some() {
        return flags.count(STEPS, 1..=MOST).unwrap_or(1).saturating_mul(micro_batch);
    }
    if let Some(n_gpus) = job.n_gpus(machine).filter(|_| dialect == Dialect::Swift) {
        return micro_batch * OF_SWIFT.div_ceil(micro_batch).div_ceil(n_gpus.max(1)).max(1);
    }
    let of_all = word_of(flags, "training.batch_size").and_then(|name| flags.count(&name, 1..=MOST));
    of_all.map_or(micro_batch, |all| (all / micro_batch).max(1) * micro_batch)
}

/// Steps of accumulation.
pub(super) fn accumulates(job: &Job) -> bool {
    job.of_replica.is_some_and(|of_replica| of_replica > job.micro_batch)
}

/// Tensor and context ranks.
pub(super) fn degrees(flags: &mut Flags<'_>, job: &mut Job, machine: &Machine) {
    let mut degree = |key: &str| word_of(flags, key).and_then(|name| flags.count(&name, 1..=100_000)).unwrap_or(1);
    let [tp, cp] = ["parallel.tp", "parallel.cp"].map(&mut degree);
    job.degrees = machine.over_degrees([tp, 1, cp]);
    if tp > 1 {
        job.key(("parallel", "sequence_parallel"), false, "activations are whole on every tensor rank");
    }
    if cp > 1 {
        let exchange = if flags.find("sequence_parallel_size").is_some() { "ulysses" } else { "ring" };
        job.word(("parallel", "exchange"), exchange, "context_parallel_size, sequence_parallel_size");
    }
}

/// What backward computes again, attention, and what is compiled.
pub(super) fn kernels(flags: &mut Flags<'_>, job: &mut Job, dialect: Dialect) {
    let recompute = recompute(flags, dialect);
    job.word(("training", "recompute"), recompute, "gradient_checkpointing and its like");
    if sends_activations(flags) {
        job.key(
            ("training", "offload_ratio"),
            1,
            "what layers keep waits on the host: activation_offloading and its like",
        );
    }
    if let Some(word) = attention(flags) {
        job.word(("training", "attention"), word, "attn_implementation, flash_attn");
    }
    if dialect == Dialect::Torchtune {
        job.key(("training", "repeat_kv"), true, "torchtune expands keys and values for every query head");
    }
    let compiled = word_of(flags, "training.compile").and_then(|name| flags.text(&name));
    if compiled.is_some_and(|value| is_true(&value) || value.eq_ignore_ascii_case("inductor")) {
        job.key(("training", "compile"), true, "torch_compile, compile, dynamo_backend");
    }
    loss(flags, job);
}

/// Losses that do not hold all logits: torchtune's and TRL's over chunks, and Liger's with the head's product.
fn loss(flags: &mut Flags<'_>, job: &mut Job) {
    const CHUNKED: [&str; 2] = ["LinearCrossEntropyLoss", "CEWithChunkedOutputLoss"];
    const LIGER: [&str; 4] =
        ["liger_fused_linear_cross_entropy", "use_liger_kernel", "use_liger", "enable_liger_kernel"];
    let component = flags.text("loss._component_").unwrap_or_default();
    if CHUNKED.iter().any(|name| component.ends_with(name)) {
        job.word(("training", "loss"), "chunked", "loss._component_");
    } else if LIGER.iter().any(|name| is_on(flags, name)) {
        job.word(("training", "loss"), "linear", "Liger's loss makes logits piece by piece");
    } else if flags.text("loss_type").is_some_and(|value| value == "chunked_nll") {
        job.word(("training", "loss"), "chunked-nll", "loss_type");
    }
}

/// Whether layers are computed again. Another switch of the same meaning may turn it on (`fsdp_config.activation_checkpointing`).
fn recompute(flags: &mut Flags<'_>, dialect: Dialect) -> &'static str {
    const INVERSE: &str = "disable_gradient_checkpointing";
    let names = words_of(flags, "training.recompute");
    let switches = names.iter().filter(|name| *name != INVERSE);
    let mut values: Vec<String> = Vec::new();
    for name in switches {
        let Some(value) = flags.text(name) else { continue };
        values.push(value);
    }
    let is_off = is_on(flags, INVERSE);
    if values.iter().any(|value| value == "selective") {
        return "selective";
    }
    let is_said =
        |value: &String| is_true(value) || value.starts_with("offload") || value == "unsloth" || value == "full";
    let is_full = if values.is_empty() { dialect.recomputes() } else { values.iter().any(is_said) };
    // LLaMA-Factory prepares every model so, whatever the Trainer's own key says.
    let is_full = is_full || dialect == Dialect::LlamaFactory;
    if is_full && !is_off { "full" } else { "none" }
}

/// Words of a switch that sends what layers keep for backward to the host, beside those that turn it on (Axolotl), and such words of recompute (Unsloth's).
const SENT: [&str; 3] = ["legacy", "disk", "hidden_states"];
const SENT_AGAIN: [&str; 3] = ["offload", "offload_disk", "unsloth"];

/// Words of these whose copies are in the stream of the kernels: Unsloth's `CPU_Offloaded_Gradient_Checkpointer`, as Axolotl
/// (`monkeypatch/gradient_checkpointing/offload_cpu.py`) and LLaMA-Factory have it. TRL's and torchtune's have streams of their own.
const IN_LINE: [&str; 3] = ["legacy", "offload", "unsloth"];
/// The switch of the same in LLaMA-Factory.
const OF_UNSLOTH: &str = "use_unsloth_gc";

/// Whether what layers keep for backward waits in the memory of the host.
fn sends_activations(flags: &mut Flags<'_>) -> bool {
    let switch = word_of(flags, "training.offload_ratio").into_iter().map(|name| (name, &SENT));
    let again = words_of(flags, "training.recompute").into_iter().map(|name| (name, &SENT_AGAIN));
    let mut is_sent = false;
    for (name, words) in switch.chain(again).collect::<Vec<_>>() {
        let Some(value) = flags.text(&name) else { continue };
        let is_switch = words == &SENT && is_true(&value);
        if is_switch || words.contains(&value.as_str()) {
            is_sent = true;
        }
        if value.contains("disk") {
            flags.not_modelled(&name, "activations wait in the host's memory, and on no disk");
        } else if IN_LINE.contains(&value.as_str()) || name == OF_UNSLOTH && is_true(&value) {
            flags.not_modelled(
                &name,
                "its copies stand between kernels, and are counted beside them: a step comes out too short",
            );
        }
    }
    is_sent
}

/// Words for FlashAttention 3: of transformers, also as kernels of its hub (`kernels-community/vllm-flash-attn3`), and of LLaMA-Factory.
const FLASH_THREE: [&str; 5] = ["flash_attention_3", "flash_attn_3", "fa3", "flash-attn3", "flash_attn3"];
/// Words for FlashAttention 4.
const FLASH_FOUR: [&str; 4] = ["flash_attention_4", "fa4", "flash-attn4", "flash_attn4"];

/// The kernel of attention that a job names: one that writes its scores, or FlashAttention 3.
fn attention(flags: &mut Flags<'_>) -> Option<&'static str> {
    let name = words_of(flags, "training.attention").into_iter().next()?;
    let value = flags.text(&name).unwrap_or_default();
    let ends_with = |words: &[&str]| words.iter().any(|word| value.ends_with(word));
    if ends_with(&FLASH_FOUR) {
        flags.not_modelled(&name, "FlashAttention 4 is not measured: the kernel that is usual on the card is counted");
    }
    let is_eager = name == "eager_attention" && is_true(&value);
    if is_eager || value == "eager" || value == "disabled" {
        Some("unfused")
    } else {
        ends_with(&FLASH_THREE).then_some("flash-attention-3")
    }
}
