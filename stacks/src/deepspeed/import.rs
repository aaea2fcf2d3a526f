//! The JSON configuration of DeepSpeed → a training scenario. It says neither model nor length: the command line does.

use std::sync::LazyLock;

use input::diagnostic::{Code, Finding};
use serde_json::Value;

use super::filled::Filled;
use super::named::Named;
use crate::flags::{Flag, Flags, Table};
use crate::job::Job;
use crate::shell::UNKNOWN;
use crate::{Imported, Machine};

/// Keys of the configuration.
pub static KEYS: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("../../tables/deepspeed.tsv")));
/// Keys of which a configuration has at least one.
const MARKS: [&str; 4] =
    ["zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"];
/// Largest count.
const MOST: u64 = 100_000_000;

/// Whether a text is a configuration of DeepSpeed.
pub(crate) fn is_config(text: &str) -> bool {
    let json: Option<Value> = text.trim_start().starts_with('{').then(|| serde_json::from_str(text).ok()).flatten();
    json.is_some_and(|json| MARKS.iter().any(|mark| json.get(mark).is_some()))
}

/// Reads a configuration.
pub fn import(text: &str, machine: &Machine) -> Imported {
    let json: Value = match serde_json::from_str(text) {
        Ok(json) => json,
        Err(why) => {
            let finding = Finding::error(Code::UnreadableScript, None, format!("the file cannot be read: {why}"));
            return Imported::refused(finding);
        }
    };
    let mut given = Vec::new();
    keys(&json, "", (text, 0), &mut given);
    let mut flags = Flags::of_keys(given, &KEYS);
    let mut job = Job { stack: "DeepSpeed", model_key: "model", ..Job::default() };
    let sizes_of_step = step(&mut flags, &mut job, machine);
    let accumulation = sizes_of_step[2];
    let mut count = |name: &str| flags.count(name, 1..=MOST);
    let tp = count("tensor_parallel.autotp_size").or_else(|| count("tensor_parallel.tp_size")).unwrap_or(1);
    let cp = count("sequence_parallel_size").unwrap_or(1);
    job.degrees = machine.over_degrees([tp, 1, cp]);
    sizes(&mut flags, &mut job, machine, sizes_of_step);
    let stage = stage(&mut flags, &mut job);
    of_engine(&mut job);
    if cp > 1 {
        job.word(("parallel", "exchange"), "ulysses", "sequence_parallel_size");
    }
    if tp > 1 {
        job.key(("parallel", "sequence_parallel"), false, "tensor_parallel: activations are whole on every rank");
    }
    let is_several = accumulation.is_some_and(|steps| steps > 1);
    exchanges(&mut flags, &mut job, (stage, is_several));
    job.asks_for_gpus = job.is_sharded();
    recompute(&mut flags, &mut job);
    job.import(flags, machine)
}

/// Whose modules run, and who shares their states.
pub(crate) fn of_engine(job: &mut Job) {
    job.word(("training", "framework"), "deepspeed", "modules of PyTorch under DeepSpeed");
}

fn stage(flags: &mut Flags<'_>, job: &mut Job) -> u64 {
    let stage = flags.count("zero_optimization.stage", 0..=3).unwrap_or(0);
    job.key(("parallel", "zero"), stage, "zero_optimization.stage");
    stage
}

/// Formats, states, and how gradients and parameters are exchanged.
fn exchanges(flags: &mut Flags<'_>, job: &mut Job, (stage, is_several): (u64, bool)) {
    formats(flags, job);
    states(flags, job);
    offload(flags, job);
    offload_parameters(flags, job, ("zero_optimization.offload_param.device", stage));
    const BEHIND: &str = "zero_optimization.overlap_comm";
    let is_behind = flags.is(BEHIND);
    if stage < 3 {
        sync(job, (stage, is_behind, is_several));
    } else if flags.find(BEHIND).is_some() && !is_behind {
        flags.not_modelled(BEHIND, "gradients of stage 3 are reduced behind the backward pass");
    }
    if stage == 3 && flags.find("zero_optimization.stage3_prefetch_bucket_size").is_some_and(|flag| flag.value() == "0")
    {
        for direction in ["forward_prefetch", "backward_prefetch"] {
            job.key(("overlap", direction), false, "zero_optimization.stage3_prefetch_bucket_size");
        }
    }
}

/// When gradients are reduced below stage 3, where no rank has room for whole ones.
pub(crate) fn sync(job: &mut Job, (stage, is_behind, is_several): (u64, bool, bool)) {
    let sync = match (is_behind, stage) {
        // Above ZeRO 1 a rank keeps its part of the gradients alone.
        (true, 2) if is_several => "each_micro_batch",
        (true, _) => "overlapped",
        (false, _) => "at_end",
    };
    job.word(("training", "gradient_sync"), sync, "zero_optimization.overlap_comm, zero_optimization.stage");
}

/// What a configuration says beside a trainer, which fills in `auto` and says the sizes of a step itself. Gives what is to be said of it.
///
/// # Errors
/// Why it cannot be read.
pub(crate) fn beside_trainer(text: &str, job: &mut Job, filled: &Filled) -> Result<Vec<Finding>, Finding> {
    const SIZES: [&str; 3] = ["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"];
    let at = || Some(filled.at.clone());
    let unreadable =
        |why| Finding::error(Code::UnreadableScript, at(), format!("DeepSpeed's file cannot be read: {why}"));
    let json: Value = serde_json::from_str(text).map_err(unreadable)?;
    let mut given = Vec::new();
    keys(&json, "", (text, 0), &mut given);
    let mismatched = filled.mismatched(&given);
    given.retain(|flag| !SIZES.contains(&flag.name.as_str()));
    for flag in &mut given {
        flag.at = filled.at.clone();
        let is_of_format = flag.name.strip_suffix(".enabled").filter(|format| ["bf16", "fp16"].contains(format));
        if let Some(format) = is_of_format.filter(|_| flag.value().contains(UNKNOWN)) {
            flag.values = vec![(format == filled.half).to_string()];
        }
    }
    let mut flags = Flags::of_keys(given, &KEYS);
    flags.findings = mismatched;
    let stage = stage(&mut flags, job);
    exchanges(&mut flags, job, (stage, filled.is_several));
    if flags.is("activation_checkpointing.number_checkpoints") {
        job.word(("training", "recompute"), "full", "activation_checkpointing.number_checkpoints");
    }
    flags.judge();
    Ok(flags.findings)
}

/// The same without a configuration: as accelerate or the name of a file says it.
pub(crate) fn without_file(job: &mut Job, Named { stage, hosted }: Named, filled: &Filled) {
    const OF_NAME: &str = "the name of DeepSpeed's file";
    job.key(("parallel", "zero"), stage, "zero_stage, or the name of DeepSpeed's file");
    if hosted.has_states() {
        job.states_on_host(1.0, OF_NAME);
    }
    if hosted.has_parameters() {
        parameters_on_host(job, OF_NAME);
    }
    job.word(("training", "gradient_dtype"), "bf16", "DeepSpeed's default: 16 bits, as the model has");
    if stage < 3 {
        sync(job, (stage, false, filled.is_several));
    }
}

/// What backward computes again: where checkpoints are counted, each layer is one.
fn recompute(flags: &mut Flags<'_>, job: &mut Job) {
    if flags.is("activation_checkpointing.number_checkpoints") {
        return job.word(("training", "recompute"), "full", "activation_checkpointing.number_checkpoints");
    }
    job.word(("training", "recompute"), "none", "no number of checkpoints");
    let what = "the file does not say what backward computes again: nothing is taken";
    let help = "give `--set training.recompute=full` where the model's layers are checkpointed";
    flags.warn(Code::MissingFlag, None, what, help);
}

/// Batch, micro-batch and steps of accumulation. What a trainer fills in the command line may say.
fn step(flags: &mut Flags<'_>, job: &mut Job, machine: &Machine) -> [Option<u64>; 3] {
    const MICRO_BATCH: &str = "train_micro_batch_size_per_gpu";
    let stated = [
        ("train_batch_size", machine.batch, "training.batch_size=64", "the batch of all replicas"),
        (MICRO_BATCH, machine.bucket_tokens, "training.bucket_tokens=8192", "the tokens of a micro-batch on one GPU"),
        // It follows from the batch.
        ("gradient_accumulation_steps", machine.batch, "training.batch_size=64", "the batch of all replicas"),
    ];
    let [batch, micro_batch, accumulation] = stated.map(|(name, stated, key, what)| {
        if !is_auto(flags, name) {
            return flags.count(name, 1..=MOST);
        }
        if stated.is_none() {
            let help = format!("give `--set {key}`, which is {what}, or write the value into the file");
            let why = format!("`{name}` is `auto`, which a trainer fills in");
            flags.refuse(Code::UnknownValue, flags.at(name), why, help);
        }
        None
    });
    if micro_batch.is_none() {
        job.bucket_tokens = machine.bucket_tokens;
    }
    [batch.or(machine.batch), micro_batch, accumulation]
}

/// Whether a trainer fills a key in.
fn is_auto(flags: &Flags<'_>, name: &str) -> bool {
    flags.find(name).is_some_and(|flag| flag.value().contains(UNKNOWN))
}

/// Batch, micro-batch and steps of accumulation, of which one may be left out where the machine says it.
fn sizes(
    flags: &mut Flags<'_>,
    job: &mut Job,
    machine: &Machine,
    [batch, micro_batch, accumulation]: [Option<u64>; 3],
) {
    job.batch = batch;
    job.micro_batch = micro_batch.unwrap_or(1);
    match (batch, micro_batch, accumulation) {
        (Some(batch), Some(micro_batch), Some(accumulation)) => {
            let of_a_replica = micro_batch.saturating_mul(accumulation);
            if batch.is_multiple_of(of_a_replica) {
                job.dp = Some(batch / of_a_replica);
            } else {
                let what = format!(
                    "`train_batch_size` {batch} is not a multiple of micro-batch {micro_batch} times {accumulation} steps"
                );
                let near = batch.div_ceil(of_a_replica).saturating_mul(of_a_replica);
                flags.wrong(
                    "train_batch_size",
                    what,
                    format!("allowed are multiples of {of_a_replica}, for example {near}"),
                );
            }
        }
        (None, None, _) => {
            flags.missing("train_batch_size", "a scenario needs it, or `train_micro_batch_size_per_gpu`")
        }
        (Some(_), None, _) | (None, Some(_), None) | (Some(_), Some(_), None) => {}
        // The machine says how many replicas there are.
        (None, Some(micro_batch), Some(accumulation)) if machine.nodes.is_some() => {
            let per_node = u64::from(machine.per_node());
            let n_gpus = machine.nodes.map_or(0, u64::from).saturating_mul(per_node);
            let dp = (n_gpus / job.degrees.iter().product::<u64>().max(1)).max(1);
            job.batch = Some(micro_batch.saturating_mul(accumulation).saturating_mul(dp));
        }
        (None, Some(_), Some(_)) => {
            let what = "the file does not say the batch of all replicas";
            let help = "give `train_batch_size`, or the GPUs with `--set cluster.nodes=…`: it is the micro-batch times accumulation times replicas";
            flags.refuse(Code::MissingFlag, None, what, help);
        }
    }
}

/// Number formats of activations and gradients.
fn formats(flags: &mut Flags<'_>, job: &mut Job) {
    const SWITCHES: [&str; 2] = ["fp16.enabled", "bf16.enabled"];
    let [is_fp16, is_bf16] = SWITCHES.map(|name| flags.is(name) && !is_auto(flags, name));
    if is_fp16 && is_bf16 {
        let help = "DeepSpeed asserts that one of them alone is enabled: leave the other out".to_owned();
        flags.wrong(SWITCHES[1], "`fp16.enabled` and `bf16.enabled` are both true".to_owned(), help);
    }
    let auto = SWITCHES.into_iter().find(|name| is_auto(flags, name));
    if let Some(name) = auto.filter(|_| !is_fp16 && !is_bf16) {
        let what = format!("`{name}` is `auto`, which a trainer fills in: bf16 is taken");
        flags.warn(Code::UnknownValue, flags.at(name), what, "give `--set training.dtype=fp16` where it is that");
    } else if !is_fp16 && !is_bf16 {
        let what = "neither `bf16` nor `fp16` is enabled: DeepSpeed computes in 32 bits, which is taken as 16 here";
        let help = "products come out faster and activations smaller than they are";
        flags.warn(Code::NotModelled, None, what, help);
    }
    job.word(("training", "dtype"), if is_fp16 { "fp16" } else { "bf16" }, "bf16.enabled, fp16.enabled");
    let words = [("fp32", "fp32"), ("bf16", "bf16"), ("fp16", "bf16")];
    // Gradients have the format of the model (`get_data_types`).
    let usual = if is_fp16 || is_bf16 || auto.is_some() { "bf16" } else { "fp32" };
    let given = flags.find("data_types.grad_accum_dtype").is_some();
    let gradients = if given { flags.word("data_types.grad_accum_dtype", &words).unwrap_or(usual) } else { usual };
    job.word(("training", "gradient_dtype"), gradients, "data_types.grad_accum_dtype");
}

/// The key by which master weights and gradients have 16 bits.
fn narrow_masters(flags: &Flags<'_>) -> Option<&'static str> {
    let names = ["bf16.bf16_master_weights_and_grads", "fp16.fp16_master_weights_and_grads"];
    names.into_iter().find(|name| flags.is(name) && !is_auto(flags, name))
}

/// States of the optimizer in 16 bits.
fn states(flags: &mut Flags<'_>, job: &mut Job) {
    const MOMENTS: &str = "bf16.bf16_optimizer_states";
    if let Some(name) = narrow_masters(flags) {
        job.word(("optimizer", "master"), "fp16", remark_of_masters(name));
    }
    if flags.is(MOMENTS) && !is_auto(flags, MOMENTS) {
        for moment in ["first_moment", "second_moment"] {
            job.word(("optimizer", moment), "bf16", MOMENTS);
        }
    }
}

/// States of the optimizer in the memory of the host, which steps with them there. ZeRO-Offload++ leaves a share of them on the device (`ratio`).
fn offload(flags: &mut Flags<'_>, job: &mut Job) {
    const DEVICE: &str = "zero_optimization.offload_optimizer.device";
    const RATIO: &str = "zero_optimization.offload_optimizer.ratio";
    const OLDER: &str = "zero_optimization.cpu_offload";
    let device = flags.text(DEVICE);
    if device.as_deref() == Some("nvme") {
        let why = "copies of the optimizer to a disk are not counted: time and memory come out as without; `optimizer.offload_ratio` puts states on the host";
        return flags.not_modelled(DEVICE, why);
    }
    let is_older = device.is_none() && flags.is(OLDER);
    if device.as_deref() != Some("cpu") && !is_older {
        return;
    }
    let share = if flags.find(RATIO).is_some() { flags.number(RATIO).unwrap_or(1.0) } else { 1.0 };
    job.states_on_host(share, if is_older { OLDER } else { DEVICE });
}

/// Shares of parameters in the memory of the host, which stage 3 alone has.
pub(crate) fn offload_parameters(flags: &mut Flags<'_>, job: &mut Job, (device, stage): (&'static str, u64)) {
    match flags.text(device).as_deref() {
        Some("cpu") if stage == 3 => parameters_on_host(job, device),
        Some("cpu") => flags.not_modelled(device, "stage 3 alone has shares of parameters: they stay on the GPU"),
        Some("nvme") => {
            flags.not_modelled(device, "copies of parameters to a disk are not counted: they stay on the GPU")
        }
        _ => {}
    }
}

/// The key of shares of parameters on the host.
pub(crate) fn parameters_on_host(job: &mut Job, remark: &'static str) {
    job.key(("training", "parameters_on_host"), true, remark);
}

/// bf16 has as many bytes as fp16, and is no word for masters.
fn remark_of_masters(name: &str) -> &'static str {
    match name {
        "fp16.fp16_master_weights_and_grads" => "fp16.fp16_master_weights_and_grads",
        _ => "bf16.bf16_master_weights_and_grads: bf16 has as many bytes",
    }
}

/// Every key of an object, those inside others with their names in front; where each stands, as far as its name tells.
fn keys(value: &Value, before: &str, (text, from): (&str, usize), out: &mut Vec<Flag>) {
    let Value::Object(map) = value else { return };
    for (key, value) in map {
        let name = if before.is_empty() { key.clone() } else { format!("{before}.{key}") };
        let quoted = Value::from(key.as_str()).to_string();
        let start = text[from..].find(&quoted).map_or(from, |at| from + at);
        let end = if text[start..].starts_with(&quoted) { start + quoted.len() } else { start };
        if value.is_object() {
            keys(value, &name, (text, end), out);
            continue;
        }
        let word = match value {
            Value::Null => continue,
            Value::String(word) if word == "auto" => UNKNOWN.to_string(),
            Value::String(word) => word.clone(),
            other => other.to_string(),
        };
        // The old name of the section, which is read still (`BFLOAT16_OLD`, `deepspeed/runtime/constants.py`).
        let name = name.strip_prefix("bfloat16.").map_or(name.clone(), |own| format!("bf16.{own}"));
        out.push(Flag { name, values: vec![word], at: start..end });
    }
}

#[cfg(test)]
mod tests {
    use input::diagnostic::Severity;

    use super::*;
    use crate::example::{has_parts, said};

    const CONFIG: &str = r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
        "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "overlap_comm": true, "offload_optimizer": {"device": "cpu"}},
        "gradient_clipping": "auto", "made_up": {"key": 1}}"#;

    fn found(text: &str) -> Imported {
        let machine = Machine {
            gpu: Some("h100-sxm".to_owned()),
            model: Some("llama-3-8b".to_owned()),
            tokens: Some(8192),
            ..Machine::default()
        };
        import(text, &machine)
    }

    #[test]
    fn sizes_give_the_replicas() {
        assert!(is_config(CONFIG) && !is_config("{\"schema\": \"x\"}"));
        let found = found(CONFIG);
        // 64 sequences are 8 of each replica, so there are 8 replicas of one GPU; micro-batches of 2 × 8,192 tokens.
        for part in
            ["nodes = 1", "gpus_per_node = 8", "zero = 3", "batch_size = 64", "bucket_tokens = 16384", "llama-3-8b"]
        {
            assert!(found.scenario.contains(part), "{part} in {}", found.scenario);
        }
        let words = said(&found);
        assert!(!words.iter().any(|what| what.contains("offload_optimizer")), "{words:?}");
        assert!(words.contains(&"`made_up.key` is not in the table of keys"), "{words:?}");
        // Places are those of the names in the text.
        let at = found.findings.iter().find(|finding| finding.what.contains("made_up")).and_then(|one| one.at.clone());
        assert_eq!(at.map(|at| &CONFIG[at]), Some("\"key\""));
    }

    #[test]
    fn states_on_the_host_are_the_share_that_is_said() {
        let of = |parts: &str| format!("\"zero_optimization\": {{\"stage\": 2, {parts}}}");
        let all = ["offload_ratio = 1", "host_memory_gb_per_s = 50"];
        check(&of("\"offload_optimizer\": {\"device\": \"cpu\"}"), &all, &[]);
        check(&of("\"cpu_offload\": true"), &all, &[]);
        check(&of("\"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.3}"), &["offload_ratio = 0.3"], &[]);
        let none =
            found(&format!("{{\"train_batch_size\": 64, {}}}", of("\"offload_optimizer\": {\"device\": \"none\"}")));
        assert!(!none.scenario.contains("offload_ratio"), "{}", none.scenario);
        for (parts, said) in [
            ("\"offload_optimizer\": {\"device\": \"nvme\"}", "offload_optimizer.device nvme` is not modelled"),
            // Stage 2 has no shares of them.
            ("\"offload_param\": {\"device\": \"cpu\"}", "offload_param.device cpu` is not modelled"),
        ] {
            let found = found(&format!("{{\"train_batch_size\": 64, {}}}", of(parts)));
            assert!(found.findings.iter().any(|finding| finding.what.contains(said)), "{parts}: {:?}", found.findings);
        }
    }

    /// Keys of the scenario of a configuration with some parts, and what is said of them.
    fn check(parts: &str, lines: &[&str], told: &[&str]) {
        let text = format!(
            "{{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, {parts}}}"
        );
        let found = found(&text);
        has_parts(&found, lines);
        let words = said(&found);
        for what in told {
            assert!(words.contains(what), "{what} of {parts}: {words:?}");
        }
        assert_eq!(words.iter().any(|what| what.contains("_master_weights_")), !told.is_empty(), "{parts}: {words:?}");
    }

    #[test]
    fn states_of_sixteen_bits_are_read_or_named() {
        let both =
            "\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true, \"bf16_optimizer_states\": true}";
        let moments = ["gradient_dtype = \"bf16\"", "first_moment = \"bf16\"", "second_moment = \"bf16\""];
        check(&format!("{both}, \"zero_optimization\": {{\"stage\": 2}}"), &moments, &[]);
        check(&format!("{both}, \"zero_optimization\": {{\"stage\": 2}}"), &["master = \"fp16\""], &[]);
        check(&format!("{both}, \"zero_optimization\": {{\"stage\": 3}}"), &[moments[0], "master = \"fp16\""], &[]);
        let fp16 = "\"fp16\": {\"enabled\": true, \"fp16_master_weights_and_grads\": true}";
        check(&format!("{fp16}, \"zero_optimization\": {{\"stage\": 2}}"), &["master = \"fp16\""], &[]);
        let off = both.replace("grads\": true", "grads\": false");
        check(&format!("{off}, \"zero_optimization\": {{\"stage\": 2}}"), &["gradient_dtype = \"bf16\""], &[]);
    }

    #[test]
    fn gradients_have_the_format_of_the_model() {
        // `get_data_types`: `grad_accum_dtype`, or the format of the model.
        for stage in 0..4 {
            let of = |format: &str| {
                format!("\"{format}\": {{\"enabled\": true}}, \"zero_optimization\": {{\"stage\": {stage}}}")
            };
            for format in ["bf16", "fp16"] {
                check(&of(format), &["gradient_dtype = \"bf16\"", "framework = \"deepspeed\""], &[]);
                let wide = format!("{}, \"data_types\": {{\"grad_accum_dtype\": \"fp32\"}}", of(format));
                check(&wide, &["gradient_dtype = \"fp32\""], &[]);
            }
        }
    }

    #[test]
    fn stage_three_has_one_way_to_reduce_gradients() {
        let of = |parts: &str| {
            found(&format!(
                "{{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, \
                 \"zero_optimization\": {{{parts}}}}}"
            ))
        };
        let off = of("\"stage\": 3, \"overlap_comm\": false");
        assert!(!off.scenario.contains("gradient_sync"), "{}", off.scenario);
        assert!(off.findings.iter().any(|one| one.what == "`zero_optimization.overlap_comm false` is not modelled"));
        assert!(of("\"stage\": 2, \"overlap_comm\": false").scenario.contains("gradient_sync = \"at_end\""));
    }

    #[test]
    fn shares_of_states_ask_for_the_gpus_that_have_them() {
        let text = |stage| {
            format!(
                "{{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": {{\"stage\": {stage}}}}}"
            )
        };
        for (stage, severity) in [(3, Severity::Error), (0, Severity::Warning)] {
            let found = found(&text(stage)).findings;
            let asked = found.iter().find(|one| one.what.contains("how many GPUs there are")).expect("it is said");
            assert_eq!(asked.severity, severity, "{stage}");
        }
    }

    #[test]
    fn optimizers_other_than_adam_are_named() {
        for name in ["OneBitAdam", "ZeroOneAdam", "onebitadam", "Lion"] {
            let parts = format!("\"bf16\": {{\"enabled\": true}}, \"optimizer\": {{\"type\": \"{name}\"}}");
            let text = format!(
                "{{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, {parts}}}"
            );
            let what = format!("`optimizer.type {name}` is not modelled");
            assert!(found(&text).findings.iter().any(|finding| finding.what == what), "{name}");
        }
    }

    #[test]
    fn the_machine_gives_the_batch_where_the_file_does_not() {
        let machine = Machine {
            gpu: Some("h100-sxm".to_owned()),
            model: Some("llama-3-8b".to_owned()),
            tokens: Some(8192),
            nodes: Some(2),
            ..Machine::default()
        };
        let text = r#"{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": true}, "tensor_parallel": {"autotp_size": 2}}"#;
        let found = import(text, &machine);
        // 16 GPUs are 8 replicas of two.
        assert!(found.scenario.contains("batch_size = 64"), "{} {:?}", found.scenario, found.findings);
    }

    #[test]
    fn what_a_trainer_fills_in_the_command_line_says() {
        let text = r#"{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
            "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}"#;
        let set = ["cluster.gpu=h100-sxm", "cluster.nodes=2", "model.name=llama-3-8b", "workload.tokens=8192"];
        let sizes = ["training.batch_size=64", "training.bucket_tokens=16384"];
        let of = |set: &[&str]| {
            let found =
                import(text, &Machine::of_overrides(&set.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()));
            let n = found.findings.iter().filter(|one| one.severity == Severity::Error).count();
            (n, found)
        };
        let (n_errors, found) = of(&[&set[..], &sizes].concat());
        assert_eq!(n_errors, 0, "{:?}", found.findings);
        has_parts(&found, &["nodes = 2", "batch_size = 64", "bucket_tokens = 16384", "dtype = \"bf16\""]);
        assert!(found.findings.iter().any(|one| one.what.contains("bf16 is taken")), "{:?}", found.findings);
        let (n_errors, found) = of(&[&set[..], &sizes[..1]].concat());
        let help: Vec<&str> = found.findings.iter().filter_map(|one| one.help.as_deref()).collect();
        assert!(n_errors == 1 && help.iter().any(|help| help.contains("--set training.bucket_tokens")), "{help:?}");
    }

    #[test]
    fn what_only_a_trainer_knows_is_asked_for() {
        let found = import(
            r#"{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 4}}"#,
            &Machine::default(),
        );
        let words = said(&found);
        for part in [
            "`train_micro_batch_size_per_gpu` is `auto`, which a trainer fills in",
            "`zero_optimization.stage 4` is no such number",
            "the file does not say which model it trains",
            "the file does not say how long sequences are",
            "the file does not say which GPU it runs on",
        ] {
            assert!(words.contains(&part), "{part} in {words:?}");
        }
        let odd = r#"{"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}"#;
        let found = super::tests::found(odd);
        assert!(found.findings.iter().any(|one| one.what.contains("9 is not a multiple of micro-batch 2 times 4")));
    }
}
