//! Flags of the optimizer: rule, formats of its states, and what lies on the host.

use crate::document::Document;
use crate::flags::Flags;

const RULES: [(&str, &str); 5] =
    [("adam", "adam"), ("muon", "muon"), ("dist_muon", "muon"), ("sgd", "sgd"), ("adaptive_muon", "muon")];
const MASTERS: [(&str, &str); 2] = [("fp32", "fp32"), ("fp16", "fp16")];
const MOMENTS: [(&str, &str); 4] = [("fp32", "fp32"), ("bf16", "bf16"), ("fp16", "fp16"), ("fp8", "fp8")];

/// `[optimizer]`.
pub(super) fn optimizer(flags: &mut Flags<'_>, out: &mut Document) {
    match flags.word("optimizer", &RULES) {
        Some("sgd") => flags.not_modelled("optimizer", "time and memory are those of Adam"),
        Some(rule) if rule != "adam" => out.word("optimizer", "rule", rule, "--optimizer"),
        _ => {}
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

/// What a server with 400 GB/s and eight GPUs has; a script does not say it.
const HOST_GB_PER_S: u32 = 50;

/// States in other formats, which the flag before them turns on.
fn states(flags: &mut Flags<'_>, out: &mut Document) {
    let words: [(&str, &str, &[(&str, &str)]); 3] = [
        ("main-params-dtype", "master", &MASTERS),
        ("exp-avg-dtype", "first_moment", &MOMENTS),
        ("exp-avg-sq-dtype", "second_moment", &MOMENTS),
    ];
    for (flag, key, allowed) in words {
        if let Some(word) = flags.word(flag, allowed) {
            out.word("optimizer", key, word, format!("--{flag}"));
        }
    }
}
