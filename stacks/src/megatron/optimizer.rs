//! Flags of the optimizer: rule, formats of its states, and what lies on the host.

use crate::document::Document;
use crate::flags::Flags;
use crate::job::HOST_GB_PER_S;

/// `[optimizer]`.
pub(super) fn optimizer(flags: &mut Flags<'_>, out: &mut Document) {
    match flags.text("optimizer").as_deref() {
        None | Some("adam") => {}
        Some("muon" | "dist_muon") => {
            out.word("optimizer", "rule", "muon", "--optimizer");
            muon(flags, out);
        }
        Some(_) => flags.not_modelled("optimizer", "time and memory are those of Adam"),
    }
    if flags.is("use-precision-aware-optimizer") {
        states(flags, out);
    }
    if flags.is("optimizer-cpu-offload") {
        let share = flags.number("optimizer-offload-fraction").unwrap_or(1.0);
        out.set("optimizer", "offload_ratio", share, "--optimizer-cpu-offload, --optimizer-offload-fraction");
        let remark = "assumed: what the host's memory moves for each GPU";
        out.set("optimizer", "host_memory_gb_per_s", HOST_GB_PER_S, remark);
    }
}

fn muon(flags: &mut Flags<'_>, out: &mut Document) {
    if let Some(n) = flags.count("muon-num-ns-steps", 1..=100) {
        out.set("optimizer", "muon_iterations", n, "--muon-num-ns-steps");
    }
    if let Some(word) = flags.text("muon-tp-mode") {
        out.word("optimizer", "muon_tensor", &word, "--muon-tp-mode");
    }
    if flags.is("muon-no-split-qkv") {
        out.word("optimizer", "muon_qkv", "whole", "--muon-no-split-qkv");
    }
}

/// States in other formats, which the flag before them turns on.
fn states(flags: &mut Flags<'_>, out: &mut Document) {
    let keys =
        [("main-params-dtype", "master"), ("exp-avg-dtype", "first_moment"), ("exp-avg-sq-dtype", "second_moment")];
    for (flag, key) in keys {
        if let Some(word) = flags.text(flag) {
            out.word("optimizer", key, &word, format!("--{flag}"));
        }
    }
}
