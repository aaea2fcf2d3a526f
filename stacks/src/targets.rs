//! Every target of an export, one row each.

use crate::export::{ExportError, File, Planned, Target, Words};
use crate::{bridge, chakra, data_order, deepspeed, dynamo, fleet, llm_d, megatron, schedule, servers, torchtitan};

/// Every target.
pub static TARGETS: [Target; 14] = [
    megatron::TARGET,
    bridge::TARGET,
    torchtitan::TARGET,
    schedule::TARGET,
    deepspeed::TARGET,
    servers::VLLM,
    servers::SGLANG,
    servers::TRTLLM,
    fleet::KUBERNETES,
    fleet::SKYPILOT,
    dynamo::TARGET,
    llm_d::TARGET,
    data_order::TARGET,
    chakra::TARGET,
];

/// Names of all targets.
pub fn names() -> Vec<&'static str> {
    TARGETS.iter().map(|target| target.name).collect()
}

/// Files of a plan for a target.
///
/// # Errors
/// What the target cannot say.
pub fn export(target: &str, planned: &Planned<'_>, words: &Words) -> Result<Vec<File>, ExportError> {
    let unknown = || ExportError::UnknownTarget { found: target.to_owned(), allowed: names().join(", ") };
    let found = TARGETS.iter().find(|known| known.name == target).ok_or_else(unknown)?;
    (found.write)(planned, words)
}
