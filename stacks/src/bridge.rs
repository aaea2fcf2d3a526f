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
use crate::{megatron, weeks};
use train::Problem;
use train::problem::Fusion;

const NAME: &str = "bridge";
const VERSION: &str = "Megatron Bridge 0.6 (megatron/bridge/training/config.py)";

/// The target.
pub const TARGET: Target = Target::new(NAME, "overrides of a recipe", VERSION, write);

/// Flags of Megatron-LM and the keys of Bridge that say the same; a value in the third place stands for a switch.
static KEYS: LazyLock<Vec<[&str; 3]>> = LazyLock::new(|| rows(include_str!("../tables/bridge.tsv")));
/// An override, and where it stands.
type Override = (String, std::ops::Range<usize>);

/// Override that turns the fused permutation of a recipe off.
/// Flags of a model that say how its tokens reach experts.
const OF_TOKENS: [&str; 2] = ["moe-token-dispatcher-type", "moe-flex-dispatcher-backend"];
const UNFUSED_PERMUTATION: &str = "model.moe_permute_fusion=false";

/// Flags that mixed precision says.
const OF_PRECISION: [&str; 9] = [
    "bf16",
    "fp16",
    "fp8-format",
    "fp4-format",
    "fp8-recipe",
    "fp4-recipe",
    "fp8-param-gather",
    "grad-reduce-in-bf16",
    "accumulate-allreduce-grads-in-fp32",
];

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

/// What is computed in which format, by flags of Megatron-LM.
fn precision(problem: &Problem, given: &[(&str, Option<String>)]) -> Vec<String> {
    let has = |name: &str| given.iter().any(|(flag, _)| *flag == name);
    let recipe = given.iter().find(|(flag, _)| flag.ends_with("-recipe")).and_then(|(_, value)| value.as_deref());
    precision::written(&precision::Asked {
        wide: if has("fp16") { "fp16" } else { "bf16" },
        recipe: recipe.unwrap_or_default(),
        gathers: has(precision::GATHERS),
        sums_wide: problem.execution.gradient_dtype == hw::Dtype::Fp32,
    })
}

fn write(planned: &Planned<'_>, words: &Words) -> Result<Vec<File>, ExportError> {
    let (problem, plan) = training(planned, NAME)?;
    let refused = |what| ExportError::NotExpressible { target: NAME, what };
    let [(_, model), (_, parallel), (_, training)] = megatron::export::flags(problem, plan, false).map_err(refused)?;
    let mut text = words.comments(VERSION);
    text += &format!("# Behind the name of a recipe of {}.\n", problem.model.name);
    text += &format!("# Planned for {} GPUs, {} of a node.\n", problem.layout.n_ranks(), problem.cluster.gpus_per_node);
    text += &comments(&megatron::export::rest(problem, plan).told);
    text += &comments(&weeks::remarks(words.weeks.as_ref(), problem, true));
    let mut unsaid = Vec::new();
    let given: Vec<&str> = parallel.iter().chain(&training).map(|(flag, _)| *flag).collect();
    text += &off(&given);
    // The recipe has the model; how its tokens reach experts is a matter of the plan.
    let of_model = model.into_iter().filter(|(flag, _)| OF_TOKENS.contains(flag));
    let (of_precision, training): (Vec<_>, Vec<_>) =
        training.into_iter().partition(|(flag, _)| OF_PRECISION.contains(flag));
    let precision = precision(problem, &of_precision);
    text += &precision.iter().map(|text| word(text)).collect::<String>();
    for (flag, value) in of_model.chain(parallel).chain(training) {
        let value = value.unwrap_or_default();
        if let Some([_, key, fixed]) = KEYS.iter().find(|[known, ..]| *known == flag) {
            let value = match *fixed {
                "" => value,
                "list" => format!("[{}]", value.replace(' ', ",")),
                fixed => fixed.to_owned(),
            };
            text += &word(&format!("{key}={value}"));
        } else {
            unsaid.push(format!("`--{flag}`"));
        }
    }
    for (flag, value) in weeks::flags(words.weeks.as_ref(), problem).unwrap_or_default() {
        text += &word(&format!("checkpoint.{}={}", flag.replace('-', "_"), value.as_deref().unwrap_or("true")));
    }
    if problem.execution.unfused.has(Fusion::Permutation) {
        text += &format!("{UNFUSED_PERMUTATION}\n");
    }
    if problem.dtype == hw::Dtype::Fp16 && of_precision.iter().any(|(flag, _)| flag.ends_with("-recipe")) {
        unsaid.push("narrow products beside fp16".to_owned());
    }
    if unsaid.is_empty() { Ok(vec![File::new("overrides.txt", text)]) } else { Err(refused(unsaid)) }
}
