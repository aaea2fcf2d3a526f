//! What tests of imports share, machines and what is held of what was read, and an engine of plans.

use input::diagnostic::{Code, Severity};
use serve::deployment::EngineOptions;

use crate::{Imported, Machine, import, recognise};

/// A machine with such GPUs.
pub(crate) fn on(gpu: &str) -> Machine {
    Machine { gpu: Some(gpu.to_owned()), ..Machine::default() }
}

/// A machine of H100s, and what else is laid over what is read.
pub(crate) fn h100(set: &[&str]) -> Machine {
    let set: Vec<String> = ["cluster.gpu=h100-sxm"].iter().chain(set).map(|item| (*item).to_owned()).collect();
    Machine::of_overrides(&set)
}

/// What a text is read as, by the stack that it is of.
pub(crate) fn import_text(text: &str, machine: &Machine) -> Imported {
    import(recognise(text).unwrap_or_else(|| panic!("no stack: {text}")), text, machine)
}

/// Codes of all findings.
pub(crate) fn codes(found: &Imported) -> Vec<Code> {
    found.findings.iter().map(|finding| finding.code).collect()
}

/// What all findings say.
pub(crate) fn said(found: &Imported) -> Vec<&str> {
    found.findings.iter().map(|finding| finding.what.as_str()).collect()
}

/// Holds that a scenario has some parts.
pub(crate) fn has_parts(found: &Imported, parts: &[&str]) {
    for part in parts {
        assert!(found.scenario.contains(part), "{part}: {}{:?}", found.scenario, found.findings);
    }
}

/// Holds that a scenario has some lines, whatever remarks stand behind them.
pub(crate) fn has_lines(found: &Imported, lines: &[&str]) {
    for line in lines {
        let has = found.scenario.lines().any(|own| own.split(" #").next().unwrap_or(own).trim() == *line);
        assert!(has, "{line}: {}{:?}", found.scenario, found.findings);
    }
}

/// Holds that nothing of a file is wrong, and nothing in no table.
pub(crate) fn is_known(found: &Imported, text: &str) {
    let bad = found.findings.iter().filter(|one| one.severity == Severity::Error || one.code == Code::UnknownFlag);
    assert_eq!(bad.map(|one| one.what.as_str()).collect::<Vec<_>>(), [""; 0], "{text}");
}

/// An engine of 128 sequences and 4096 tokens, without a limit of the context.
pub(crate) fn engine(batcher: &str) -> EngineOptions {
    EngineOptions {
        batcher: batcher.to_owned(),
        sequences_max: 128,
        tokens_max: 4096,
        context_max: None,
        prompts_max: None,
        batch_context_max: None,
        block_tokens: 16,
        kv_tokens: 1 << 20,
        watermark_blocks: 0,
        prefix_cache: false,
        recv_interval: std::num::NonZeroU32::MIN,
        capacity_policy: serve::replica::CapacityPolicy::MaxUtilization,
        prompt_rank: serve::replica::PromptRank::Even,
        batch_wait: None,
    }
}
