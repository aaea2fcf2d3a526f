//! The recipe of a plan: a Python module with the function that torchtitan takes by `--module recipe --config planned`.
//!
//! torchtitan has no configuration files; a recipe is a function that gives its configuration (`torchtitan/models/*/config_registry.py`, 0.3). Paths
//! are those beside the module, so that a run may start in any folder.

use train::Problem;
use train::problem::Recompute;

use super::{Given, VERSION};
use crate::export::{Words, comments};

/// Models of the catalogue, and the module and function of their recipes.
const RECIPES: [(&str, &str, &str); 10] = [
    ("llama-3-8b", "llama3", "llama3_8b"),
    ("llama-3.1-8b", "llama3", "llama3_8b"),
    ("llama-3-70b", "llama3", "llama3_70b"),
    ("llama-3.1-70b", "llama3", "llama3_70b"),
    ("llama-3.1-405b", "llama3", "llama3_405b"),
    ("qwen3-32b", "qwen3", "qwen3_32b"),
    ("qwen3-30b-a3b", "qwen3", "qwen3_30b_a3b"),
    ("deepseek-v3", "deepseek_v3", "deepseek_v3_671b"),
    ("gpt-oss-20b", "gpt_oss", "gpt_oss_20b"),
    ("gpt-oss-120b", "gpt_oss", "gpt_oss_120b"),
];

/// The module.
pub(super) fn text(problem: &Problem, given: &[Given], words: &Words, told: &[String]) -> String {
    let name = &problem.model.name;
    let (policy, value) = match problem.execution.recompute {
        Recompute::Full => ("FullAC", "FullAC.Config()"),
        Recompute::Selective => ("SelectiveAC", "SelectiveAC.Config()"),
        _ => ("", "None"),
    };
    let known = RECIPES.iter().find(|(known, ..)| known == name);
    let (module, base) = known.map_or(("llama3", "llama3_debugmodel"), |(_, module, base)| (*module, *base));
    let mut text = words.comments(VERSION) + &comments(told);
    text += "# Start it with this folder on PYTHONPATH: --module recipe --config planned\n";
    if known.is_none() {
        text += &format!("# Put the recipe of {name} in the place of {base}: torchtitan has none.\n");
    }
    text += "from pathlib import Path\n\n";
    if !policy.is_empty() {
        text += &format!("from torchtitan.distributed.activation_checkpoint import {policy}\n");
    }
    text += &format!("from torchtitan.models.{module}.config_registry import {base}\n\n");
    text += "HERE = Path(__file__).resolve().parent\n\n\n";
    text += &format!("def planned():\n    config = {base}()\n");
    for (section, name, value) in given {
        text += &format!("    config.{section}.{name} = {}\n", python(name, value));
    }
    text + &format!("    config.activation_checkpoint = {value}\n    return config\n")
}

/// A value as Python has it.
fn python(name: &str, value: &str) -> String {
    if name == "pipeline_parallel_schedule_csv" {
        return format!("str(HERE / \"{value}\")");
    }
    if name == "components" {
        return format!("[\"{value}\"]");
    }
    let is_bare = value == "True" || value == "False" || value.parse::<u64>().is_ok();
    if is_bare { value.to_owned() } else { format!("\"{value}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_are_of_models_that_the_catalogue_has() {
        for (name, ..) in RECIPES {
            assert!(engine::model::embedded(name).is_some(), "{name}");
        }
    }

    #[test]
    fn values_are_those_of_python() {
        let found = [("a", "8"), ("a", "True"), ("a", "1F1B")].map(|(name, value)| python(name, value));
        assert_eq!(found, ["8", "True", "\"1F1B\""]);
        assert_eq!(python("components", "model"), "[\"model\"]", "a list of one");
        assert_eq!(python("pipeline_parallel_schedule_csv", "schedule.csv"), "str(HERE / \"schedule.csv\")");
    }
}
