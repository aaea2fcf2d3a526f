//! A plan as overrides of a recipe of Megatron Bridge: `section.key=value` words behind the recipe's name.

pub(crate) mod adapters;
pub mod import;
mod precision;
mod program;
mod recipes;
mod shape;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use crate::export::{ExportError, File, Planned, Target, Words, comments, training};
use crate::flags::rows;
use crate::megatron;
use train::problem::Fusion;

const NAME: &str = "bridge";
const VERSION: &str = "Megatron Bridge 0.6 (megatron/bridge/training/config.py)";

/// The target.
pub const TARGET: Target = Target::new(NAME, "overrides of a recipe", VERSION, write);

/// Flags of Megatron-LM and the keys of Bridge that say the same; a value in the third place stands for a switch.
static KEYS: LazyLock<Vec<[&str; 3]>> = LazyLock::new(|| rows(include_str!("../tables/bridge.tsv")));
/// Number formats as mixed precision names them.
const PRECISIONS: [(&str, &str); 4] = [
    ("tensorwise", "bf16_with_fp8_current_scaling_mixed"),
    ("blockwise", "bf16_with_fp8_subchannel_scaling_mixed"),
    ("mxfp8", "bf16_with_mxfp8_mixed"),
    ("nvfp4", "bf16_with_nvfp4_mixed"),
];

/// An override, and where it stands.
type Override = (String, std::ops::Range<usize>);

/// Override that turns the fused permutation of a recipe off.
/// Flags of a model that say how its tokens reach experts.
const OF_TOKENS: [&str; 2] = ["moe-token-dispatcher-type", "moe-flex-dispatcher-backend"];
const UNFUSED_PERMUTATION: &str = "model.moe_permute_fusion=false";

/// Mixed precision of fp16 (`megatron/bridge/training/mixed_precision.py`).
const HALF: &str = "fp16_mixed";

/// A line with a word that a shell leaves as it is: layouts have `|` and `*`, lists brackets.
fn word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._=,-".contains(letter);
    if text.chars().all(is_plain) { format!("{text}\n") } else { format!("'{text}'\n") }
}

/// Overrides that turn off what recipes share and a plan, known by its flags, does not have.
fn off(given: &[&str]) -> String {
    let has = |key: &str| KEYS.iter().any(|[flag, known, _]| *known == key && given.contains(flag));
    // Bridge turns the distributed optimizer on for its own sharded parameters, whatever the key says.
    let is_usual = |key: &str| key == "ddp.use_distributed_optimizer" && given.contains(&"use-megatron-fsdp");
    let keys = recipes::SHARED.into_iter().map(recipes::key).filter(|key| !has(key) && !is_usual(key));
    keys.map(|key| format!("{key}=false\n")).collect()
}

fn write(planned: &Planned<'_>, words: &Words) -> Result<Vec<File>, ExportError> {
    let (problem, plan) = training(planned, NAME)?;
    let refused = |what| ExportError::NotExpressible { target: NAME, what };
    let [(_, model), (_, parallel), (_, training)] = megatron::export::flags(problem, plan, false).map_err(refused)?;
    let mut text = words.comments(VERSION);
    text += &format!("# Behind the name of a recipe of {}.\n", problem.model.name);
    text += &format!("# Planned for {} GPUs, {} of a node.\n", problem.layout.n_ranks(), problem.cluster.gpus_per_node);
    text += &comments(&megatron::export::rest(problem, plan).told);
    let mut unsaid = Vec::new();
    let given: Vec<&str> = parallel.iter().chain(&training).map(|(flag, _)| *flag).collect();
    text += &off(&given);
    // The recipe has the model; how its tokens reach experts is a matter of the plan.
    let of_model = model.into_iter().filter(|(flag, _)| OF_TOKENS.contains(flag));
    for (flag, value) in of_model.chain(parallel).chain(training) {
        let value = value.unwrap_or_default();
        if let Some([_, key, fixed]) = KEYS.iter().find(|[known, ..]| *known == flag) {
            let value = match *fixed {
                "" => value,
                "list" => format!("[{}]", value.replace(' ', ",")),
                fixed => fixed.to_owned(),
            };
            text += &word(&format!("{key}={value}"));
        } else if flag == "fp8-recipe" || flag == "fp4-recipe" {
            let found = PRECISIONS.iter().find(|(recipe, _)| *recipe == value);
            text += &format!("mixed_precision={}\n", found.map_or(value.as_str(), |(_, name)| name));
        } else if flag == "fp16" {
            text += &format!("mixed_precision={HALF}\n");
        } else if !matches!(flag, "bf16" | "fp8-format" | "fp4-format") {
            unsaid.push(format!("`--{flag}`"));
        }
    }
    if problem.execution.unfused.has(Fusion::Permutation) {
        text += &format!("{UNFUSED_PERMUTATION}\n");
    }
    if problem.dtype == hw::Dtype::Fp16 && text.matches("mixed_precision=").count() > 1 {
        unsaid.push("narrow products beside fp16".to_owned());
    }
    if unsaid.is_empty() { Ok(vec![File::new("overrides.txt", text)]) } else { Err(refused(unsaid)) }
}
