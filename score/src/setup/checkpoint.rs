//! Checkpoints of the runs: in which formats their parts are published.

use engine::formats::Formats;
use hw::{Dtype, Format};

use crate::reason::Reason;
use crate::run::Run;

/// Formats of the parts of a checkpoint: attention, dense feed-forward and shared experts, routed experts.
type Parts = [Format; 3];

/// Checkpoints whose parts differ, by a part of the path and the format's word; all others are in the table's formats throughout.
const MIXED: [(&str, &str, Parts, &str); 9] = [
    ("gpt-oss", "fp4", [Format::Bf16, Format::Bf16, Format::Mxfp4], "openai/gpt-oss-120b: experts alone are MXFP4"),
    (
        "Kimi-K2.5",
        "int4",
        [Format::Bf16, Format::Bf16, Format::Int4],
        "moonshotai/Kimi-K2.5: routed experts alone are int4",
    ),
    (
        "Kimi-K2.5",
        "fp4",
        [Format::Bf16, Format::Nvfp4, Format::Nvfp4],
        "nvidia/Kimi-K2.5-NVFP4: attention is not quantised",
    ),
    (
        "DeepSeek",
        "fp4",
        [Format::Bf16, Format::Nvfp4, Format::Nvfp4],
        "nvidia/DeepSeek-R1-0528-FP4: attention is not quantised",
    ),
    ("DeepSeek", "fp8", [Format::Fp8Block; 3], "deepseek-ai/DeepSeek-R1: blocks of 128 by 128"),
    ("Qwen3-235B-A22B-FP8", "fp8", [Format::Fp8Block; 3], "Qwen/Qwen3-235B-A22B-FP8: blocks of 128 by 128"),
    ("Qwen3.5-397B-A17B", "fp8", [Format::Fp8Block; 3], "Qwen/Qwen3.5-397B-A17B-FP8: blocks of 128 by 128"),
    ("GLM-5", "fp8", [Format::Fp8Block; 3], "zai-org/GLM-5-FP8: blocks of 128 by 128"),
    ("MiniMax-M2.5", "fp8", [Format::Fp8Block; 3], "MiniMaxAI/MiniMax-M2.5: blocks of 128 by 128"),
];

/// Formats of a run's checkpoint, with keys and values in `kv`.
pub(super) fn formats(run: &Run, kv: Dtype) -> Result<Formats, Reason> {
    let mixed = MIXED.iter().find(|(part, precision, ..)| run.model.contains(part) && *precision == run.precision);
    let [attention, dense, experts] = match mixed {
        Some((.., parts, _)) => *parts,
        None => {
            let [products, experts] = [format(&run.formats[0])?, format(&run.formats[1])?];
            [products, products, experts]
        }
    };
    Ok(Formats { attention, dense, experts, head: Format::Bf16, kv })
}

/// A format by the table's word.
fn format(word: &str) -> Result<Format, Reason> {
    Ok(match word {
        "" => Format::Bf16,
        "fp8" => Format::Fp8,
        "fp8_block" => Format::Fp8Block,
        "nvfp4" => Format::Nvfp4,
        "int4_wo" => Format::Int4,
        other => return Err(Reason::Format { word: other.to_owned() }),
    })
}
