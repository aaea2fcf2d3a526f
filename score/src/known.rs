//! Which tables are known, by the columns that tell them.

use crate::{rl, training};

/// What is wrong with a table of other columns, and which ones there are.
pub fn unknown() -> String {
    let mut known = vec!["measured serving runs (id, silicon_ttft_ms, silicon_tpot_ms)".to_owned()];
    known
        .push("figures of your own scenarios (scenario, metric, measured; also policy, set, group, source)".to_owned());
    known.extend(training::tables::known_tables());
    known.extend(rl::table::known_tables());
    known.push("operators (device, op, latency_ms), whole models (device, model, e2e_ms)".to_owned());
    known.push("kernels of training (op, stage, time_ms), layers of experts (dispatcher, forward_ms)".to_owned());
    known.push("kernels of serving (prefill_ms and decode_ms, attn_pre_proj_ms, or grouped_gemm_ms)".to_owned());
    format!("its columns are those of no table that is known; these are\n  {}", known.join("\n  "))
}
