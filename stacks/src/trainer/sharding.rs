//! What ranks of a job share, number formats, and states of the optimizer: by PyTorch's own modules, or by DeepSpeed.

use input::diagnostic::{Code, Finding, nearest};

use super::adapters::{Trained, Whose};
use super::scripts::Script;
use super::{Dialect, is_on, step, word_of, words_of};
use crate::Machine;
use crate::deepspeed::filled::Filled;
use crate::deepspeed::import as engine;
use crate::deepspeed::named::{Hosted, Named};
use crate::flags::{Flags, words};
use crate::job::Job;
use crate::shell::UNKNOWN;

/// What decides how a job shares its states.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) whose: Whose,
    pub(super) machine: &'a Machine,
    pub(super) trained: Trained,
    /// The file.
    pub(super) text: &'a str,
}

/// How states are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sharing {
    /// A copy on every rank (DDP).
    Copies,
    /// PyTorch's modules with shares, as so high a stage of ZeRO.
    Shares(u64),
    /// DeepSpeed, by the word that asks for it.
    Engine(String),
}

/// Keys that name a file of DeepSpeed, or its stage.
const OF_ENGINE: [&str; 6] =
    ["deepspeed", "deepspeed_config", "deepspeed_config_file", "zero_stage", "use_deepspeed", "distributed_type"];
/// Keys of which the number is ranks that share everything.
const RANKS: [&str; 2] = ["dp_shard_size", "data_parallel_shard_dim"];
/// A script's own switch for states and parameters on the host (`get_train_ds_config` of DeepSpeed-Chat).
const OFFLOAD: &str = "offload";
/// Words of PyTorch's modules for the host.
const OF_MODULES: &str = "fsdp_offload_params, fsdp_cpu_offload";
/// Configurations that ms-swift has under a name (`swift/config`).
const OF_SWIFT: [&str; 6] = ["zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload"];
/// Stage that accelerate gives to DeepSpeed where nothing says one.
const USUAL_STAGE: u64 = 2;
/// Words of FSDP's strategies, with their stage (`ShardingStrategy` of PyTorch, whose numbers accelerate takes too).
const STRATEGIES: [(&str, u64); 14] = [
    ("full_shard", 3),
    ("1", 3),
    ("true", 3),
    ("shard_grad_op", 2),
    ("2", 2),
    ("false", 2),
    ("no_shard", 0),
    ("3", 0),
    ("hybrid_shard", 3),
    ("4", 3),
    ("hybrid_shard_zero2", 2),
    ("_hybrid_shard_zero2", 2),
    ("5", 2),
    ("fsdp", 3),
];

/// Reads them.
pub(super) fn sharding(flags: &mut Flags<'_>, job: &mut Job, asked: Asked<'_>) {
    options(flags, asked.whose.0);
    let half = half(flags, asked.whose);
    let dtype = half.unwrap_or("bf16");
    job.word(("training", "dtype"), dtype, "bf16, fp16, mixed_precision, dtype");
    match sharing(flags, job, asked) {
        Sharing::Engine(name) => of_engine(flags, job, asked, (&name, dtype)),
        Sharing::Shares(stage) => of_modules(flags, job, asked, (stage, half)),
        Sharing::Copies => of_modules(flags, job, asked, (0, half)),
    }
    moments(flags, job, asked);
    if asked.trained == Trained::Adapters {
        without_states(job);
    }
    if job.is_sharded() {
        job.asks_for_gpus = true;
    }
}

fn sharing(flags: &mut Flags<'_>, job: &Job, asked: Asked<'_>) -> Sharing {
    let is_of_engine = |flags: &Flags<'_>, name: &str| {
        let value = flags.find(name).map_or_else(String::new, crate::flags::Flag::value);
        match name {
            "distributed_type" => value.eq_ignore_ascii_case("deepspeed"),
            _ => !value.is_empty() && !value.eq_ignore_ascii_case("false"),
        }
    };
    if let Some(name) = OF_ENGINE.into_iter().find(|name| is_of_engine(flags, name)) {
        return Sharing::Engine(name.to_owned());
    }
    let is_fsdp = flags.find("distributed_type").is_some_and(|flag| flag.value().eq_ignore_ascii_case("fsdp"));
    if flags.find("distributed_type").is_some_and(|flag| flag.value() == "MEGATRON_LM") {
        flags.not_modelled("distributed_type", "the step is that of PyTorch's modules: give Megatron-LM's own flags");
    }
    let is_asked = |name: &String| !OF_ENGINE.contains(&name.as_str()) && !is_off(flags, name);
    let names: Vec<String> = words_of(flags, "parallel.zero").into_iter().filter(is_asked).collect();
    // Axolotl's section alone asks for it: a `fsdp` beside it is of older releases (`utils/schemas/fsdp.py`).
    const BESIDE: [&str; 2] = ["fsdp_version", "fsdp_final_state_dict_type"];
    let is_of_section = |name: &str| name.starts_with("fsdp_") && !BESIDE.contains(&name);
    let has_section = asked.whose.0 == Dialect::Axolotl && flags.given.iter().any(|flag| is_of_section(&flag.name));
    if is_fsdp || has_section || !names.is_empty() {
        return Sharing::Shares(stage(flags, &names));
    }
    // torchtune's recipes for several devices shard everything.
    let n_gpus = job.n_gpus(asked.machine);
    let is_several = n_gpus.map_or_else(|| asked.text.contains("_distributed"), |n| n > 1);
    if asked.whose.0 == Dialect::Torchtune && is_several { Sharing::Shares(3) } else { Sharing::Copies }
}

/// Whether a word of FSDP leaves it off: `fsdp` is empty unless it is given (`TrainingArguments`), and false in a file.
fn is_off(flags: &Flags<'_>, name: &str) -> bool {
    const SWITCHES: [&str; 2] = ["fsdp", "use_fsdp"];
    let value = flags.find(name).map_or_else(String::new, crate::flags::Flag::value).to_lowercase();
    SWITCHES.contains(&name) && (value.is_empty() || value == "false" || name == "use_fsdp" && value == "no")
}

/// Words of the Trainer's `fsdp` (`FSDPOption` of `trainer_utils.py`), and the truth of a file.
const OPTIONS: &str = "full_shard shard_grad_op no_shard hybrid_shard hybrid_shard_zero2 offload auto_wrap true";

/// Refuses words of `fsdp` that the Trainer stops on.
fn options(flags: &mut Flags<'_>, dialect: Dialect) {
    const NAME: &str = "fsdp";
    let Some(flag) = flags.find(NAME).filter(|_| !matches!(dialect, Dialect::Swift | Dialect::Torchtune)) else {
        return;
    };
    let value = flag.value().to_lowercase();
    let is_file = flags.shown("").is_empty();
    let is_known = |word: &str| {
        OPTIONS.split(' ').any(|known| known == word) || is_file && word == "false" || word.contains(UNKNOWN)
    };
    let Some(word) = words(&value).find(|word| !is_known(word)) else { return };
    let what = format!("`{}`: `{word}` is none of its words", flags.shown(&format!("{NAME} {value}")));
    let near = nearest(word, OPTIONS.split(' ')).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
    let help = format!("{near}allowed are {}; leave it out where nothing is shared", OPTIONS.replace(' ', ", "));
    flags.wrong(NAME, what, help);
}

/// The stage of ZeRO of FSDP's strategy; everything is shared without one.
fn stage(flags: &mut Flags<'_>, names: &[String]) -> u64 {
    for name in names.iter().filter(|name| *name != "use_fsdp") {
        let Some(value) = flags.text(name) else { continue };
        let value = value.to_lowercase();
        if RANKS.contains(&name.as_str()) {
            return if value == "1" { 0 } else { 3 };
        }
        if value.ends_with(".json") {
            flags.not_modelled(name, "its file is not read: everything is shared over all ranks");
        }
        let found = words(&value).find_map(|word| STRATEGIES.iter().find(|(known, _)| *known == word));
        if let Some((word, stage)) = found {
            if word.contains("hybrid") || ["4", "5"].contains(word) {
                let why =
                    "shares are taken over all ranks: `--set parallel.replicate=…`, the nodes, says groups of them";
                flags.not_modelled(name, why);
            }
            return *stage;
        }
    }
    3
}

/// Number format of mixed precision; `None` where all is in 32 bits, or in that of the parameters.
fn half(flags: &mut Flags<'_>, (dialect, script): Whose) -> Option<&'static str> {
    let is_16 = |word: &str| {
        [("bf16", "bf16"), ("fp16", "fp16"), ("fp8", "bf16")].into_iter().find(|(known, _)| *known == word)
    };
    let is_bf16 = is_on(flags, "bf16") || is_on(flags, "bfloat16");
    let is_auto = flags.find("bf16").is_some_and(|flag| flag.value() == "auto");
    if is_bf16 && !is_auto && dialect != Dialect::Torchtune && is_on(flags, "fp16") {
        let what = format!("`{}` and `{}` are both on", flags.shown("bf16"), flags.shown("fp16"));
        flags.wrong("fp16", what, "the Trainer takes one of them at most: leave the other out".to_owned());
    }
    if is_bf16 {
        return Some("bf16");
    }
    if is_on(flags, "fp16") {
        return Some("fp16");
    }
    if dialect == Dialect::Swift && flags.find("bf16").is_none() {
        return Some(if has_narrow_parameters(flags, dialect) { "bf16" } else { "fp16" });
    }
    let is_chat = script == Some(Script::Chat);
    let has_own = is_chat || dialect == Dialect::Torchtune;
    let names = ["mixed_precision", "dtype"].into_iter().filter(|name| *name != "dtype" || has_own);
    let found = names.filter_map(|name| flags.text(name)).find_map(|word| is_16(&word).map(|(_, half)| half));
    // Axolotl's `bf16` is `auto`; TRL takes it where `fp16` is not set; LLaMA-Factory's `pure_bf16` says it too.
    let is_usual = match dialect {
        Dialect::Axolotl | Dialect::Trl | Dialect::Swift => flags.find("bf16").is_none(),
        _ => has_narrow_parameters(flags, dialect),
    };
    let found = found.or(is_usual.then_some("bf16")).or(is_chat.then_some("fp16"));
    if found.is_none() {
        let what =
            "neither `bf16` nor `fp16` is given: the Trainer computes in 32 bits then, which is taken as 16 here";
        flags.warn(
            Code::NotModelled,
            None,
            what,
            "products come out faster than they are; give `bf16` or `fp16` where it is meant",
        );
    }
    found
}

/// Whether parameters that are trained have 16 bits themselves, where anything has: Axolotl and torchtune load them so, and others do where a word says it.
fn has_narrow_parameters(flags: &mut Flags<'_>, dialect: Dialect) -> bool {
    let is_16 = |word: String| ["bfloat16", "bf16", "torch.bfloat16", "true"].contains(&word.to_lowercase().as_str());
    match dialect {
        Dialect::Axolotl => true,
        Dialect::Torchtune => flags.text("dtype").is_none_or(is_16),
        Dialect::LlamaFactory => is_on(flags, "pure_bf16"),
        Dialect::Swift => {
            let named = word_of(flags, "optimizer.master").and_then(|name| flags.text(&name));
            named.is_none_or(|word| word == "AUTO" || is_16(word))
        }
        Dialect::Trl | Dialect::Trainer => {
            word_of(flags, "optimizer.master").and_then(|name| flags.text(&name)).is_some_and(is_16)
        }
    }
}

/// Modules of PyTorch, copied or shared.
fn of_modules(flags: &mut Flags<'_>, job: &mut Job, asked: Asked<'_>, (stage, half): (u64, Option<&'static str>)) {
    let is_all = asked.trained == Trained::All;
    // Frozen weights are shared by stage 3 alone.
    let stage = if is_all || stage == 3 { stage } else { 0 };
    job.key(("parallel", "zero"), stage, "fsdp, fsdp_sharding_strategy, dp_shard_size");
    job.word(("training", "framework"), "pytorch", "modules of Hugging Face or torchtune, one by one");
    replicas(flags, job, stage);
    if !is_all {
        return frozen_on_host(flags, job, stage);
    }
    // Under FSDP accelerate widens what is trained (`accelerator.py`, "Upcasted low precision parameters"); torchtune does not.
    let is_widened = stage > 0 && asked.whose.0 != Dialect::Torchtune && half.is_some();
    let is_narrow = !is_widened && half == Some("bf16") && has_narrow_parameters(flags, asked.whose.0);
    if is_narrow {
        job.word(("optimizer", "master"), "none", "parameters in 16 bits are updated themselves");
    }
    job.word(("training", "gradient_dtype"), if is_narrow { "bf16" } else { "fp32" }, "of the parameters");
    let is_several = job.n_gpus(asked.machine).is_none_or(|n| n > 1);
    if is_several && step::accumulates(job) && asked.whose.0 != Dialect::Torchtune {
        job.word(
            ("training", "gradient_sync"),
            "at_end",
            "accelerate reduces gradients in the last micro-batch (`no_sync`)",
        );
    }
    kernels(flags, job);
    on_host(flags, job, stage);
}

/// How AdamW runs, where the job says it: PyTorch's own goes over lists of tensors unless it is asked for its fused kernel.
fn kernels(flags: &mut Flags<'_>, job: &mut Job) {
    let named = word_of(flags, "optimizer.first_moment").and_then(|name| flags.text(&name));
    if is_on(flags, "optimizer_in_bwd") {
        if step::accumulates(job) {
            let what = "`optimizer_in_bwd` updates in every micro-batch, and the job has several of them for a step";
            let help = "torchtune refuses both together: leave `gradient_accumulation_steps` out";
            flags.refuse(Code::WrongFlag, flags.at("optimizer_in_bwd"), what, help);
        }
        job.word(("optimizer", "kernels"), "in-backward", "optimizer_in_bwd");
        return;
    }
    let is_listed = named.is_some_and(|word| ["adamw_torch", "torch.optim.AdamW"].contains(&word.as_str()));
    if is_listed && !is_on(flags, "optimizer.fused") {
        job.word(("optimizer", "kernels"), "foreach", "AdamW without `fused` goes over lists of tensors");
    }
}

/// Groups of ranks that hold everything together.
fn replicas(flags: &mut Flags<'_>, job: &mut Job, stage: u64) {
    let given = word_of(flags, "parallel.replicate").and_then(|name| flags.count(&name, 1..=100_000));
    if let Some(n) = given.filter(|n| *n > 1 && stage > 0) {
        job.key(("parallel", "replicate"), n, "dp_replicate_size, data_parallel_replicate_dim");
    }
    let prefetch = word_of(flags, "overlap.backward_prefetch").and_then(|name| flags.text(&name));
    if stage == 3 && prefetch.is_some_and(|word| word.eq_ignore_ascii_case("no_prefetch")) {
        job.key(("overlap", "backward_prefetch"), false, "fsdp_backward_prefetch");
    }
}

/// The word that sends parameters, gradients and states of PyTorch's modules to the host.
fn sent_to_host(flags: &mut Flags<'_>) -> Option<&'static str> {
    const SENDS: [&str; 4] = ["fsdp_offload_params", "fsdp_cpu_offload", "fsdp.cpu_offload", OFFLOAD];
    let lists = flags.text("fsdp").is_some_and(|value| words(&value).any(|word| word == "offload"));
    let named = SENDS.into_iter().find(|name| is_on(flags, name));
    named.or(lists.then_some("fsdp"))
}

/// Shares of frozen weights in the memory of the host, where ranks have shares.
fn frozen_on_host(flags: &mut Flags<'_>, job: &mut Job, stage: u64) {
    let Some(name) = sent_to_host(flags) else { return };
    let why = if stage == 3 {
        engine::parameters_on_host(job, OF_MODULES);
        "shares of frozen weights are on the host; adapters and their states are counted on the GPU"
    } else {
        "frozen weights, adapters and their states are counted on the GPU"
    };
    flags.not_modelled(name, why);
}

/// States of the optimizer on the host, and shares of parameters, where ranks have shares.
fn on_host(flags: &mut Flags<'_>, job: &mut Job, stage: u64) {
    let Some(name) = sent_to_host(flags) else { return };
    job.states_on_host(1.0, OF_MODULES);
    let why = if stage == 3 {
        engine::parameters_on_host(job, OF_MODULES);
        "states and shares of parameters are on the host; gradients are counted on the GPU"
    } else {
        "states of the optimizer are on the host; parameters and gradients are counted on the GPU"
    };
    flags.not_modelled(name, why);
}

/// DeepSpeed, by its file, by the stage that accelerate is given, or by the name of a file that is not there.
fn of_engine(flags: &mut Flags<'_>, job: &mut Job, asked: Asked<'_>, (name, half): (&str, &'static str)) {
    let path = OF_ENGINE[..3].iter().find_map(|name| flags.text(name).filter(|value| value.ends_with(".json")));
    let bare = path.as_ref().and_then(|path| path.rsplit('/').next()).map(str::to_owned);
    let beside = bare.as_ref().and_then(|bare| asked.machine.beside(bare));
    let at = flags.at(name).unwrap_or(0..0);
    let sizes = if beside.is_some() { sizes(flags, job, asked) } else { Vec::new() };
    let filled = Filled { half, is_several: step::accumulates(job), at, sizes };
    if let Some(text) = beside {
        match engine::beside_trainer(text, job, &filled) {
            Ok(findings) => flags.findings.extend(findings),
            Err(finding) => flags.findings.push(finding),
        }
    } else {
        let named = without_file(flags, asked, (bare.as_deref(), name));
        engine::without_file(job, named, &filled);
        of_accelerate(flags, job, named.stage);
        // DeepSpeed-Chat makes the file itself (`get_train_ds_config`).
        if asked.whose.1 == Some(Script::Chat) && named.stage < 3 {
            engine::sync(job, (named.stage, true, step::accumulates(job)));
        }
    }
    if asked.trained == Trained::Adapters && job.has_states_on_host() {
        let what = "the optimizer on the host is not modelled beside adapters";
        flags.warn(Code::NotModelled, flags.at(name), what, "states of adapters are counted on the GPU");
    }
    frameworks(job, asked);
}

/// Sizes of a step that DeepSpeed's file has too: the trainer's words for them and its numbers, but for what the command line states. DeepSpeed-Chat
/// makes the file itself.
fn sizes(flags: &Flags<'_>, job: &Job, asked: Asked<'_>) -> Vec<(&'static str, String, u64)> {
    const MICRO_BATCH: &str = "training.bucket_tokens";
    let is_stated = asked.machine.states(&["training.batch_size", MICRO_BATCH]);
    if is_stated || asked.whose.1 == Some(Script::Chat) || asked.whose.0 == Dialect::Torchtune {
        return Vec::new();
    }
    let word = word_of(flags, MICRO_BATCH).unwrap_or_else(|| "per_device_train_batch_size".to_owned());
    let micro_batch = job.micro_batch.max(1);
    let of_replica = job.of_replica.unwrap_or(micro_batch);
    let steps = ("gradient_accumulation_steps", of_replica / micro_batch);
    let whole = job.n_gpus(asked.machine).filter(|_| job.degrees == [1; 3]).map(|n| n.saturating_mul(of_replica));
    let all = whole.map(|n| ("train_batch_size", format!("{} on all GPUs", flags.shown(&word)), n));
    let each = ("train_micro_batch_size_per_gpu", flags.shown(&word), micro_batch);
    let steps = (steps.0, flags.shown(steps.0), steps.1);
    [each, steps].into_iter().chain(all).collect()
}

/// Whose modules hold the states. With frozen weights ranks of the engine hold what PyTorch's modules do.
fn frameworks(job: &mut Job, asked: Asked<'_>) {
    if asked.trained == Trained::All {
        return engine::of_engine(job);
    }
    if job.zero().unwrap_or(0) < 3 {
        job.key(("parallel", "zero"), 0, "frozen weights are shared by stage 3 alone");
    } else if job.n_gpus(asked.machine).is_none_or(|n| n > 1) {
        // PEFT's modules run in another order than the one that stage 3 recorded, so it drops what it recorded in every step ("Invalidate trace cache @ step 10: expected
        // module 11, but got module 19", deepspeedai/DeepSpeed issue 6870, hiyouga/LLaMA-Factory issue 6760). Without it nothing is gathered ahead.
        for direction in ["forward_prefetch", "backward_prefetch"] {
            if !job.keys.iter().any(|(section, name, ..)| (*section, *name) == ("overlap", direction)) {
                job.key(("overlap", direction), false, "stage 3 gathers nothing ahead beside adapters");
            }
        }
    }
    job.word(("training", "framework"), "pytorch", "modules of Hugging Face, one by one");
}

/// What is known without the file: accelerate's stage, or what the file's name says.
fn without_file(flags: &mut Flags<'_>, asked: Asked<'_>, (file, name): (Option<&str>, &str)) -> Named {
    let of_name = file.and_then(Named::of);
    let hosted = of_name.map_or(Hosted::Nothing, |named| named.hosted);
    let of_stage = |stage| Named { stage, hosted };
    if let Some(zero) = asked.machine.zero {
        return of_stage(zero);
    }
    if let Some(named) = of_swift(flags).filter(|_| asked.whose.0 == Dialect::Swift) {
        return named;
    }
    if flags.find("zero_stage").is_some() {
        return of_stage(flags.count("zero_stage", 0..=3).unwrap_or(USUAL_STAGE));
    }
    let at = flags.at(name);
    if file.is_none() && ["use_deepspeed", "distributed_type"].contains(&name) {
        let what = format!("nothing says the stage of ZeRO: {USUAL_STAGE}, accelerate's own, is taken");
        flags.warn(Code::MissingFlag, at, what, "give `--zero_stage`, or `--set parallel.zero=3`");
        return of_stage(USUAL_STAGE);
    }
    let shown = file.unwrap_or("the configuration of DeepSpeed");
    if let Some(named) = of_name {
        let (stage, hosted) = (named.stage, named.hosted.words());
        let what = format!("`{shown}` does not lie beside this file: ZeRO {stage}{hosted} is taken, as its name says");
        flags.findings.push(Finding::warning(Code::MissingFlag, at, what).help("put it into the same folder"));
        return named;
    }
    let what = format!("`{shown}` is not read, and nothing says the stage of ZeRO");
    flags.refuse(Code::MissingFlag, at, what, "put the file into the same folder, or give `--set parallel.zero=2`");
    of_stage(USUAL_STAGE)
}

/// A configuration that ms-swift has under a name.
fn of_swift(flags: &Flags<'_>) -> Option<Named> {
    let asked = flags.find("deepspeed").map(crate::flags::Flag::value)?;
    let named = OF_SWIFT.contains(&asked.as_str()).then(|| Named::of(&asked)).flatten()?;
    let hosted = match named.hosted {
        Hosted::States if named.stage == 3 => Hosted::All,
        other => other,
    };
    Some(Named { hosted, ..named })
}

/// What lies on the host by accelerate's own words, or by a script's.
fn of_accelerate(flags: &mut Flags<'_>, job: &mut Job, stage: u64) {
    const STATES: &str = "offload_optimizer_device";
    const PARAMETERS: &str = "offload_param_device";
    match flags.text(STATES).as_deref() {
        Some("cpu") => job.states_on_host(1.0, STATES),
        Some("nvme") => {
            flags.not_modelled(STATES, "copies of the optimizer to a disk are not counted: it stays on the GPU")
        }
        _ => {}
    }
    engine::offload_parameters(flags, job, (PARAMETERS, stage));
    if is_on(flags, OFFLOAD) {
        job.states_on_host(1.0, OFFLOAD);
        if stage == 3 {
            engine::parameters_on_host(job, OFFLOAD);
        }
    }
}

/// Adam of any kernel, or another rule.
fn moments(flags: &mut Flags<'_>, job: &mut Job, asked: Asked<'_>) {
    let Some(name) = word_of(flags, "optimizer.first_moment") else { return };
    let Some(word) = flags.text(&name) else { return };
    let lower = word.to_lowercase();
    let is_adam =
        lower.contains("adam") && !lower.contains("mini") && !lower.contains("4bit") && !lower.contains("adama");
    if !is_adam {
        return flags.not_modelled(&name, "memory, time and exchanges are those of Adam");
    }
    let is_float = lower.contains("fp8");
    if is_float || lower.contains("8bit") || lower.contains("8_bit") {
        for moment in ["first_moment", "second_moment"] {
            job.word(("optimizer", moment), if is_float { "fp8" } else { "int8" }, "states of 8 bits");
        }
    }
    if lower.contains("paged") {
        // The states themselves are counted: only that pages leave the device is not.
        let what = format!("pages of states that `{}` sends to the host are not modelled", lower.replace('"', ""));
        let help = "its states are counted on the GPU, from where pages leave it when memory runs out";
        flags.warn(Code::NotModelled, flags.at(&name), what, help);
    }
    let is_of_trainer = asked.whose.0 != Dialect::Torchtune && !lower.contains("torch");
    if is_of_trainer && lower.contains("8bit") && asked.trained == Trained::All {
        let what = "states of the embedding are counted in 8 bits";
        let help = "the Trainer keeps them in 32 (`register_module_override` of bitsandbytes): 6 bytes more of each of its parameters";
        flags.warn(Code::NotModelled, flags.at(&name), what, help);
    }
}

/// Leaves out what adapters alone have not: keys about states and gradients of the model's own weights. Moments are those of the adapters.
fn without_states(job: &mut Job) {
    const OF_WEIGHTS: [&str; 6] =
        ["kernels", "master", "offload_ratio", "host_memory_gb_per_s", "gradient_dtype", "gradient_sync"];
    // Activations go to the host of adapters too.
    let is_kept = |section: &str, name: &str| match section {
        "optimizer" => !OF_WEIGHTS.contains(&name),
        "training" => name == "offload_ratio" || !OF_WEIGHTS.contains(&name),
        _ => true,
    };
    job.keys.retain(|(section, name, ..)| is_kept(section, name));
}
