//! The program that runs a recipe of Bridge, and its flags (`scripts/training/run_recipe.py`, NVIDIA-NeMo/Megatron-Bridge @ 067f987df03b).

use input::diagnostic::{Code, Finding};

use super::Override;
use crate::flags::Flag;
use crate::launch::Launch;

/// Its name.
pub(super) const NAME: &str = "run_recipe.py";
/// Flags that name the recipe.
const RECIPES: [&str; 3] = ["recipe", "recipe-name", "model-recipe-name"];
/// Flags, long and short, that stand for overrides (`COMMON_OVERRIDE_FIELDS`).
const FOR_OVERRIDES: [[&str; 3]; 9] = [
    ["global-batch-size", "gb", "train.global_batch_size"],
    ["micro-batch-size", "mb", "train.micro_batch_size"],
    ["seq-length", "sl", "dataset.seq_length"],
    ["tensor-model-parallel-size", "tp", "model.tensor_model_parallel_size"],
    ["pipeline-model-parallel-size", "pp", "model.pipeline_model_parallel_size"],
    ["context-parallel-size", "cp", "model.context_parallel_size"],
    ["virtual-pipeline-model-parallel-size", "vp", "model.virtual_pipeline_model_parallel_size"],
    ["expert-model-parallel-size", "ep", "model.expert_model_parallel_size"],
    ["expert-tensor-parallel-size", "etp", "model.expert_tensor_parallel_size"],
];
/// Flags that are read elsewhere, or change neither time nor memory.
const OTHERS: [&str; 23] = [
    "model",
    "mode",
    "peft",
    "peft-scheme",
    "peft-method",
    "dataset",
    "step-func",
    "max-steps",
    "ms",
    "lr",
    "min-lr",
    "warmup-iters",
    "pretrained-checkpoint",
    "save-dir",
    "load-dir",
    "save-interval",
    "hf-path",
    "hf-model-path",
    "dry-run",
    "dump-env",
    "seed",
    "debug",
    "help",
];
/// Flags that matter and are not read, with what is taken instead.
const NOT_READ: [(&str, &str); 3] = [
    ("config-file", "keys of that file are not read: write those that matter behind the recipe"),
    ("deterministic", "kernels are the usual ones, which are faster"),
    ("packed-sequence", "sequences of one length are taken"),
];

/// The recipe that is asked for, by its name or by its model and what is done with it. Adapters are trained by recipes of their own.
pub(super) fn recipe(flags: &[Flag]) -> Option<String> {
    let value = |names: &[&str]| flags.iter().find(|flag| names.contains(&flag.name.as_str()))?.values.first().cloned();
    let of_model = || {
        let mode = value(&["mode"])?;
        let kind = if matches!(mode.as_str(), "lora" | "dora") { "peft" } else { mode.as_str() };
        Some(format!("{}_{kind}_config", value(&["model"])?))
    };
    value(&RECIPES).or_else(of_model)
}

/// Flags that stand for overrides.
pub(super) fn overrides(flags: &[Flag]) -> Vec<Override> {
    let word = |flag: &Flag| {
        let [.., key] = FOR_OVERRIDES.iter().find(|names| names[..2].contains(&flag.name.as_str()))?;
        Some((format!("{key}={}", flag.values.first()?), flag.at.clone()))
    };
    flags.iter().filter_map(word).collect()
}

/// Warnings about flags that are not read. Those of other programs are not known.
pub(super) fn not_read(launch: &Launch) -> Vec<Finding> {
    let is_own = launch.program.first().is_some_and(|word| word.ends_with(NAME));
    let is_known = |name: &str| {
        OTHERS.contains(&name)
            || RECIPES.contains(&name)
            || FOR_OVERRIDES.iter().any(|names| names[..2].contains(&name))
    };
    let finding = |flag: &Flag| {
        let at = Some(flag.at.clone());
        if let Some((_, why)) = NOT_READ.iter().find(|(name, _)| *name == flag.name) {
            let what = format!("`--{}` is not modelled", flag.name);
            return Some(Finding::warning(Code::NotModelled, at, what).help(*why));
        }
        let help = "it is taken to change neither time nor memory";
        let what = format!("`--{}` is no flag of `{NAME}` that is known", flag.name);
        (is_own && !is_known(&flag.name)).then(|| Finding::warning(Code::UnknownFlag, at, what).help(help))
    };
    launch.flags.iter().filter_map(finding).collect()
}
