//! Days on which a configuration was measured with drafted tokens alone: data.
//!
//! The table of runs does not say whether tokens were drafted. InferenceX measures what `perf-changelog.yaml` names, on the day on which it is named.
//! Days on which both were measured, with drafts and without, are not listed: their runs are taken as without.

use super::{ANY, Of};
use crate::client::Client;
use crate::run::Run;

const TRTLLM: Of = Of { client: "inferencex", engine: "trtllm", model: "DeepSeek", whole: true, ..ANY };
const SGLANG: Of = Of { engine: "sglang", model: "Qwen3.5", ..TRTLLM };

/// Runs of SemiAnalysisAI/InferenceX (Apache-2.0), with the commit that named them.
static DRAFTED: [Of; 13] = [
    // bf3456727
    Of { days: ["2026-01-14", "2026-01-15"], ..TRTLLM },
    // 5d517074c
    Of { card: "b200", format: "fp8", days: ["2026-02-05", "2026-02-06"], ..TRTLLM },
    // 0aae52d4c
    Of { card: "b200", format: "fp4", days: ["2026-02-06", "2026-02-07"], ..TRTLLM },
    // e62c6acdf
    Of { model: "DeepSeek", card: "b200", format: "fp8", days: ["2026-02-06", "2026-02-07"], ..SGLANG },
    // Loads that nvidia-master.yaml has with drafts alone since that day: above 64 in flight, and above four with long prompts on eight GPUs.
    Of { model: "DeepSeek", card: "b200", format: "fp8", in_flight: 65, days: ["2026-02-06", "~"], ..SGLANG },
    Of {
        model: "DeepSeek",
        card: "b200",
        format: "fp8",
        lengths: Some([8192, 1024]),
        tensor: [8, 8],
        in_flight: 5,
        days: ["2026-02-06", "~"],
        ..SGLANG
    },
    // 35d4bb367
    Of { card: "b200", format: "fp8", days: ["2026-03-20", "2026-03-21"], ..SGLANG },
    // The days of `qwen3.5-fp8-h200-sglang-mtp`.
    Of { card: "h200", format: "fp8", days: ["2026-04-06", "2026-04-07"], ..SGLANG },
    Of { card: "h200", format: "fp8", days: ["2026-04-14", "2026-04-15"], ..SGLANG },
    // The day of nine configurations of GLM-5 and Qwen3.5 on Blackwell.
    Of { card: "b200", format: "bf16", days: ["2026-04-18", "2026-04-19"], ..SGLANG },
    Of { card: "b200", format: "fp4", days: ["2026-04-18", "2026-04-19"], ..SGLANG },
    Of { model: "GLM-5", card: "b200", days: ["2026-04-18", "2026-04-19"], ..SGLANG },
    Of { model: "GLM-5", card: "b300", days: ["2026-04-18", "2026-04-19"], ..SGLANG },
];

/// Whether a run was measured with drafted tokens.
pub fn are_drafted(run: &Run, client: &Client) -> bool {
    DRAFTED.iter().any(|of| of.fits(run, client))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_drafted(line: &str) -> bool {
        let run = crate::run::of_line(line);
        are_drafted(&run, crate::client::of(&run.source, &run.measured))
    }

    #[test]
    fn a_day_and_a_configuration_say_whether_tokens_were_drafted() {
        let drafted = |day: &str, precision: &str| {
            is_drafted(&format!(
                "a,source_file=x; model=y; silicon_concurrency=64; measured={day}T00:00:00.000Z,trtllm,1.2.0,\
                 deepseek-ai/DeepSeek-R1,b200_sxm,{precision},agg,1024,1024,fp8_block,fp8_block,64,8,500,20"
            ))
        };
        assert!(drafted("2026-01-14", "fp4") && drafted("2026-02-05", "fp8") && drafted("2026-02-06", "fp4"));
        // Of SGLang in fp8 on B200 more than 64 in flight were measured with drafts alone, and more than four with long prompts on eight GPUs.
        let sglang = |in_flight: u32, prompt: u32, tp: u32| {
            is_drafted(&format!(
                "a,source_file=x; model=y; silicon_concurrency={in_flight}; measured=2026-03-25,sglang,0.5.9,\
                 deepseek-ai/DeepSeek-R1,b200_sxm,fp8,agg,{prompt},1024,fp8,fp8_block,{in_flight},{tp},500,20"
            ))
        };
        assert!(sglang(128, 1024, 8) && sglang(16, 8192, 8));
        assert!(!sglang(64, 1024, 8) && !sglang(4, 8192, 8) && !sglang(32, 8192, 4));
        // On these days the other format was not measured, or both ways were.
        assert!(!drafted("2026-02-05", "fp4") && !drafted("2026-01-28", "fp8"));
    }
}
