//! nanotron: the YAML of its training runs as a training scenario.
//!
//! Source: huggingface/nanotron, `src/nanotron/config` (`parallelism_config.py`, `config.py`, `models_config.py`), `examples/config_tiny_llama.yaml`. A run has
//! `dp` × `pp` × `tp` × `context_parallel_size` GPUs. Its modules are PyTorch's, launched kernel by kernel, with FlashAttention 2 and a fused norm (`models/llama.py`:
//! `flash_attn_varlen_func`, `TritonRMSNorm`; nothing is compiled), as those of `framework = "pytorch"` are.

use std::sync::LazyLock;

use input::diagnostic::{Code, Finding};

use crate::flags::{Flag, Flags, Table, named};
use crate::job::Job;
use crate::{Imported, Machine, launch, yaml};

/// Its keys.
pub static KEYS: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("../tables/nanotron.tsv")));

/// Keys beside `parallelism` that no other stack has.
const OWN: [&str; 3] = ["batch_accumulation_per_replica:", "tp_linear_async_communication:", "data_stages:"];
/// What a script starts, with the file behind it.
const STARTS: &str = "run_train.py --config-file";
/// Largest count.
const MOST: u64 = 100_000_000;
/// What says which model a shape is of, with the type of its configuration.
const MODELS: [(&str, &str); 2] = [("is_llama_config", "llama"), ("is_qwen2_config", "qwen2")];
/// Numbers of a shape, which have the names of a model's configuration.
const SHAPE: [&str; 6] = [
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "max_position_embeddings",
];
/// Engines of its pipeline.
const ENGINES: [(&str, &str); 2] = [("1f1b", "1f1b"), ("afab", "gpipe")];

/// Whether a text is such a file, or a script that names one.
pub(crate) fn is_job(text: &str) -> bool {
    named_beside(text).is_some()
        || launch::lines(text).any(|line| OWN.iter().any(|own| line.starts_with(own))) && is_parallel(text)
}

fn is_parallel(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("parallelism:"))
}

/// The file that a script names; of a path its last part.
pub(crate) fn named_beside(text: &str) -> Option<String> {
    let line = launch::lines(text).find(|line| line.contains(STARTS))?;
    let path = line.split_once(STARTS)?.1.split_whitespace().next()?;
    path.rsplit('/').next().map(str::to_owned)
}

/// Reads the YAML, or the one that a script names.
pub fn import(text: &str, machine: &Machine) -> Imported {
    let Some(name) = named_beside(text) else { return of_yaml(text, machine) };
    if let Some(beside) = machine.beside(&name) {
        return of_yaml(beside, machine);
    }
    let what = format!("`{name}` does not lie beside this file, and says all of the job");
    let finding = Finding::error(Code::MissingFlag, None, what).help("put it into the same folder, or give it itself");
    Imported::refused(finding)
}

fn of_yaml(text: &str, machine: &Machine) -> Imported {
    let entries = match yaml::unfolded(text) {
        Ok(entries) => entries,
        Err(why) => return Imported::refused(why),
    };
    let said = entries.into_iter().filter(|entry| !entry.value.is_empty() && entry.value != "null");
    let given = said.map(|entry| Flag { name: entry.path.join("."), values: vec![entry.value], at: entry.at });
    let mut flags = Flags::of_keys(given.collect(), &KEYS);
    let mut job = Job { stack: "nanotron", model_key: "model.model_config", ..Job::default() };
    degrees(&mut flags, &mut job);
    tokens(&mut flags, &mut job);
    if machine.model.is_none() && !machine.has_configuration() {
        shape(&mut flags, &mut job);
    }
    states(&mut flags, &mut job);
    job.word(("training", "framework"), "pytorch", "modules that nothing compiles");
    let what = "nanotron's modules are taken to be torchtitan's, launched kernel by kernel: what it copies between them is not counted";
    let help = "`--set training.framework=megatron-core` takes Megatron-Core's kernels";
    flags.warn(Code::NotModelled, None, what, help);
    job.import(flags, machine)
}

/// Tensor, pipeline, context and data-parallel ranks, and the engine of the pipeline.
fn degrees(flags: &mut Flags<'_>, job: &mut Job) {
    let [dp, tp, pp, cp, ep] = ["dp", "tp", "pp", "context_parallel_size", "expert_parallel_size"]
        .map(|name| flags.count(&format!("parallelism.{name}"), 1..=100_000).unwrap_or(1));
    job.degrees = [tp, pp, cp];
    job.dp = Some(dp);
    if ep > 1 {
        flags.not_modelled("parallelism.expert_parallel_size", "layers with experts are not read here");
    }
    let is_cut =
        flags.text("parallelism.tp_mode").is_some_and(|mode| named(&mode).eq_ignore_ascii_case("reduce-scatter"));
    if tp > 1 {
        job.key(("parallel", "sequence_parallel"), is_cut, "tp_mode");
    }
    let engine = flags.word("parallelism.pp_engine", &ENGINES).unwrap_or("gpipe");
    if pp > 1 {
        job.word(("parallel", "schedule"), engine, "pp_engine; all forwards come first where nothing is said");
    }
    let again = if flags.is("parallelism.recompute_layer") { "full" } else { "none" };
    job.word(("training", "recompute"), again, "recompute_layer");
}

/// Sequences of a step, and their length.
fn tokens(flags: &mut Flags<'_>, job: &mut Job) {
    job.tokens = flags.count("tokens.sequence_length", 1..=MOST);
    job.micro_batch = flags.count("tokens.micro_batch_size", 1..=MOST).unwrap_or(1);
    let n = flags.count("tokens.batch_accumulation_per_replica", 1..=MOST).unwrap_or(1);
    job.of_replica = Some(n.saturating_mul(job.micro_batch));
}

/// The shape of the model, whose vocabulary is padded (`_vocab_size_with_padding`).
fn shape(flags: &mut Flags<'_>, job: &mut Job) {
    let kind = MODELS.into_iter().find(|(name, _)| flags.is(&key(name)));
    let Some((_, kind)) = kind else {
        let what = "the file has no shape of Llama or Qwen2, which are the models of nanotron that are read";
        return flags.refuse(Code::UnsupportedJob, None, what, "name the model with `--set model.name=…`");
    };
    job.has_shape = true;
    job.word(("model.config", "model_type"), kind, "model_config");
    for name in SHAPE {
        if let Some(n) = flags.count(&key(name), 1..=MOST) {
            job.key(("model.config", name), n, "model_config");
        }
    }
    let multiple = flags.count("model.make_vocab_size_divisible_by", 1..=MOST).unwrap_or(1) * job.degrees[0];
    if let Some(rows) = flags.count(&key("vocab_size"), 1..=MOST) {
        job.key(("model.config", "vocab_size"), rows.next_multiple_of(multiple), "vocab_size, padded to a multiple");
    }
    let is_tied = flags.is(&key("tie_word_embeddings"));
    job.key(("model.config", "tie_word_embeddings"), is_tied, "model_config");
}

fn key(name: &str) -> String {
    format!("model.model_config.{name}")
}

/// Formats, and who holds the states.
fn states(flags: &mut Flags<'_>, job: &mut Job) {
    let dtype = flags.text("model.dtype").unwrap_or_default();
    let half = if dtype == "float16" { "fp16" } else { "bf16" };
    if dtype == "float32" {
        flags.not_modelled("model.dtype", "products in 32 bits are taken as 16");
    }
    job.word(("training", "dtype"), half, "model.dtype");
    let stage = flags.count("optimizer.zero_stage", 0..=3).unwrap_or(0);
    job.key(("parallel", "zero"), stage, "zero_stage");
    // Gradients that add up in 32 bits stand beside a master copy of the parameters (`FP32GradientAccumulator`).
    let is_wide = flags.is("optimizer.accumulate_grad_in_fp32");
    job.word(("training", "gradient_dtype"), if is_wide { "fp32" } else { half }, "accumulate_grad_in_fp32");
    if !is_wide {
        job.word(("optimizer", "master"), "none", "parameters in 16 bits are updated themselves");
    }
}

#[cfg(test)]
mod tests {
    use input::diagnostic::{Code, Severity};

    use crate::example::{codes, has_lines, is_known, on};
    use crate::{Imported, Machine, Stack, import, recognise};

    /// As huggingface/nanotron has it, in short: `examples/config_tiny_llama.yaml`, with the sizes of Llama 3 8B.
    const FILE: &str = "general:\n  project: debug\n  seed: 42\n  step: null\nmodel:\n  ddp_bucket_cap_mb: 25\n  dtype: bfloat16\n  init_method:\n    std: 0.025\n  \
        make_vocab_size_divisible_by: 128\n  model_config:\n    hidden_act: silu\n    hidden_size: 4096\n    intermediate_size: 14336\n    is_llama_config: true\n    \
        max_position_embeddings: 8192\n    num_attention_heads: 32\n    num_hidden_layers: 32\n    num_key_value_heads: 8\n    rms_norm_eps: 1.0e-05\n    \
        tie_word_embeddings: false\n    vocab_size: 128256\noptimizer:\n  accumulate_grad_in_fp32: true\n  clip_grad: 1.0\n  optimizer_factory:\n    name: adamW\n    \
        torch_adam_is_fused: true\n  zero_stage: 1\nparallelism:\n  dp: 4\n  expert_parallel_size: 1\n  pp: 2\n  pp_engine: 1f1b\n  recompute_layer: true\n  tp: 2\n  \
        tp_linear_async_communication: true\n  tp_mode: REDUCE_SCATTER\ntokens:\n  batch_accumulation_per_replica: 8\n  micro_batch_size: 2\n  \
        sequence_length: 4096\n  train_steps: 15\n";

    fn found(text: &str) -> Imported {
        assert_eq!(recognise(text), Some(Stack::Nanotron));
        import(Stack::Nanotron, text, &on("h100-sxm"))
    }

    fn check(text: &str, lines: &[&str]) {
        let found = found(text);
        has_lines(&found, lines);
        is_known(&found, text);
    }

    #[test]
    fn a_run_has_its_degrees_its_shape_and_its_batch() {
        let lines = [
            "nodes = 2",
            "gpus_per_node = 8",
            "tp = 2",
            "pp = 2",
            "zero = 1",
            "schedule = \"1f1b\"",
            "sequence_parallel = true",
            "recompute = \"full\"",
            // Four replicas of eight micro-batches of two sequences.
            "batch_size = 64",
            "bucket_tokens = 8192",
            "tokens = 4096",
            "model_type = \"llama\"",
            "num_hidden_layers = 32",
            "vocab_size = 128256",
            "gradient_dtype = \"fp32\"",
            "framework = \"pytorch\"",
        ];
        check(FILE, &lines);
        // The usual of its classes: all forwards first, whole activations, nothing computed again.
        let usual = ["  pp_engine: 1f1b\n", "  recompute_layer: true\n", "  tp_mode: REDUCE_SCATTER\n"];
        let silent = usual.iter().fold(FILE.to_owned(), |text, line| text.replace(line, ""));
        check(&silent, &["schedule = \"gpipe\"", "sequence_parallel = false", "recompute = \"none\""]);
        let narrow = FILE.replace("fp32: true", "fp32: false").replace("vocab_size: 128256", "vocab_size: 128001");
        check(&narrow, &["gradient_dtype = \"bf16\"", "master = \"none\"", "vocab_size = 128256"]);
    }

    #[test]
    fn a_script_is_read_with_the_file_that_it_names() {
        let script = "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc_per_node=8 run_train.py --config-file examples/config_llama.yaml\n";
        let alone = found(script);
        assert_eq!(codes(&alone), [Code::MissingFlag]);
        let files = crate::beside(script, &|name| (name == "config_llama.yaml").then(|| FILE.to_owned()));
        let machine = Machine { files, ..on("h100-sxm") };
        assert_eq!(import(Stack::Nanotron, script, &machine).scenario, found(FILE).scenario);
    }

    #[test]
    fn a_model_that_is_not_read_is_refused() {
        let other = FILE.replace("is_llama_config", "is_starcoder_config");
        let errors = found(&other).findings.into_iter().filter(|one| one.severity == Severity::Error);
        assert_eq!(errors.map(|one| one.code).collect::<Vec<_>>()[0], Code::UnsupportedJob);
    }
}
