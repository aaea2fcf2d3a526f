//! Variables of the environment that servers read. What they do to time and memory is that of `tables/environment.tsv`.

use std::ops::Range;
use std::sync::LazyLock;

use input::diagnostic::{Code, Finding};

use crate::flags::{Effect, Table};
use crate::shell::{UNKNOWN, Word};

/// Variables that are known.
static VARIABLES: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("../tables/environment.tsv")));

/// Beginnings of variables of engines: one of them that is in no row is told.
const OF_ENGINES: [&str; 5] = ["VLLM_", "SGLANG_", "SGL_", "TRTLLM_", "TLLM_"];

/// Words that say nothing where a variable is switched on or off.
const OFF: [&str; 3] = ["0", "false", "False"];

/// A variable as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value; `UNKNOWN` stands for what cannot be known.
    pub value: String,
    /// Bytes of the file.
    pub at: Range<usize>,
}

/// Variables of a command: those that its script sets, and those that what starts it is given (`docker run -e NAME=value`).
pub(crate) fn of_command(set: &[(String, Word)], before: &[Word]) -> Vec<Variable> {
    let set = set.iter().map(|(name, value)| Variable { name: name.clone(), value: value.text(), at: value.at() });
    let given = before.iter().enumerate().filter_map(|(index, word)| {
        let text = word.text();
        let is_behind = index > 0 && ["-e", "--env", "env"].contains(&before[index - 1].text().as_str());
        let glued = text.strip_prefix("--env=").or_else(|| text.strip_prefix("-e"));
        let (name, value) = glued.or_else(|| is_behind.then_some(text.as_str()))?.split_once('=')?;
        Some(Variable { name: name.to_owned(), value: value.to_owned(), at: word.at() })
    });
    set.chain(given).collect()
}

/// The value of a variable; the last one counts.
pub(crate) fn value<'v>(variables: &'v [Variable], name: &str) -> Option<&'v str> {
    variables.iter().rev().find(|variable| variable.name == name).map(|variable| variable.value.as_str())
}

/// Variables that list devices which programs see: of CUDA, which ROCm heeds as well, and of ROCm.
pub(crate) const DEVICES: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"];

/// The variable that lists devices, where there is one.
pub(crate) fn of_devices(variables: &[Variable]) -> Option<&'static str> {
    DEVICES.into_iter().find(|name| value(variables, name).is_some())
}

/// Devices that programs see, where a variable lists them by number.
pub(crate) fn devices(variables: &[Variable]) -> Option<u32> {
    let listed = value(variables, of_devices(variables)?)?;
    let is_list = listed.chars().all(|letter| letter.is_ascii_digit() || letter == ',');
    let n = listed.split(',').filter(|one| !one.is_empty()).count();
    u32::try_from(n).ok().filter(|n| is_list && *n > 0)
}

/// Whether a variable switches something off.
pub(crate) fn is_off(variables: &[Variable], name: &str) -> bool {
    value(variables, name).is_some_and(|value| OFF.contains(&value))
}

/// Says what matters without being modelled, and which variables of engines are not known.
pub(crate) fn judged(variables: &[Variable]) -> Vec<Finding> {
    let mut seen = std::collections::BTreeSet::new();
    let last = variables.iter().rev().filter(|variable| seen.insert(&variable.name));
    let mut found: Vec<Finding> = last.filter_map(judge).collect();
    found.reverse();
    found
}

fn judge(variable: &Variable) -> Option<Finding> {
    let Variable { name, value, at } = variable;
    let known = value.is_empty() || value.contains(UNKNOWN);
    let shown = if known { name.clone() } else { format!("{name}={value}") };
    match VARIABLES.effect(name, value) {
        Some(Effect::NotModelled(why)) => {
            let what = format!("`{shown}` is not modelled");
            Some(Finding::warning(Code::NotModelled, Some(at.clone()), what).help(why))
        }
        Some(_) => None,
        None if OF_ENGINES.iter().any(|beginning| name.starts_with(beginning)) => {
            let what = format!("`{shown}` is not in the table of variables");
            let help = "it is taken to change neither time nor memory";
            Some(Finding::warning(Code::UnknownFlag, Some(at.clone()), what).help(help))
        }
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use input::diagnostic::Code;

    use super::*;
    use crate::example::{import_text, on};

    #[test]
    fn rows_of_the_table_are_read_in_their_order() {
        let found = |name: &str, value: &str| {
            let variable = Variable { name: name.to_owned(), value: value.to_owned(), at: 0..1 };
            judged(&[variable]).into_iter().map(|finding| finding.code).next()
        };
        for (name, value, code) in [
            ("VLLM_ATTENTION_BACKEND", "FLASHINFER", Some(Code::NotModelled)),
            ("VLLM_USE_V1", "0", Some(Code::NotModelled)),
            ("VLLM_USE_V1", "1", None),
            ("VLLM_USE_FLASHINFER_MOE_INT4", "1", Some(Code::NotModelled)),
            ("VLLM_USE_FLASHINFER_MOE_FP8", "1", None),
            ("VLLM_LOGGING_LEVEL", "DEBUG", None),
            ("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600", None),
            ("VLLM_DP_SIZE", "4", Some(Code::NotModelled)),
            ("VLLM_DP_MASTER_IP", "a", None),
            ("VLLM_UNHEARD_OF", "1", Some(Code::UnknownFlag)),
            ("NCCL_P2P_DISABLE", "1", Some(Code::NotModelled)),
            ("NCCL_DEBUG", "INFO", None),
            ("MODEL", "x", None),
        ] {
            assert_eq!(found(name, value), code, "{name}={value}");
        }
    }

    /// However a server is given its variables, they are read: in its script, by `docker run`, in a file of Compose, in a manifest.
    #[test]
    fn variables_of_a_server_are_not_dropped_in_silence() {
        let manifest = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\nspec:\n  template:\n    spec:\n      containers:\n      - name: engine\n        \
                        image: vllm/vllm-openai:v0.11.0\n        args: [\"--model\", \"llama-3-8b\"]\n        env:\n        - name: VLLM_ATTENTION_BACKEND\n          \
                        value: FLASHINFER\n        - name: VLLM_LOGGING_LEVEL\n          value: DEBUG\n";
        let compose = "services:\n  a:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model llama-3-8b\n    environment:\n      - VLLM_ATTENTION_BACKEND=FLASHINFER\n";
        for text in [
            "export VLLM_ATTENTION_BACKEND=FLASHINFER\nvllm serve llama-3-8b\n",
            "VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve llama-3-8b\n",
            "docker run --gpus all -e VLLM_ATTENTION_BACKEND=FLASHINFER vllm/vllm-openai:v0.11.0 --model llama-3-8b\n",
            "docker run --gpus all --env=VLLM_ATTENTION_BACKEND=FLASHINFER vllm/vllm-openai:v0.11.0 --model llama-3-8b\n",
            manifest,
            compose,
        ] {
            let found = import_text(text, &on("h100-sxm")).findings;
            let named: Vec<&str> =
                found.iter().map(|one| one.what.as_str()).filter(|what| what.contains("VLLM_")).collect();
            assert_eq!(named, ["`VLLM_ATTENTION_BACKEND=FLASHINFER` is not modelled"], "{text}: {found:?}");
        }
    }

    #[test]
    fn the_older_engine_batches_by_its_own_rule() {
        let text = "VLLM_USE_V1=0 vllm serve llama-3-8b\n";
        let found = import_text(text, &on("h100-sxm"));
        assert!(found.scenario.contains("run = [\"vllm-v0\"]"), "{}", found.scenario);
        assert!(found.findings.iter().any(|one| one.what == "`VLLM_USE_V1=0` is not modelled"), "{:?}", found.findings);
    }
}
