//! Checkpoints of the runs: in which formats their parts are published.

use engine::formats::Formats;
use hw::{Dtype, Format};

use crate::reason::Reason;
use crate::run::Run;

/// Formats of the parts of a checkpoint: attention, dense feed-forward and shared experts, routed experts.
type Parts = [Format; 3];

/// Checkpoints whose parts differ, by parts of the path with `*` between them and the format's word; the first that fits holds. All others are in the
/// table's formats throughout. What `quantization_config` or `hf_quant_config.json` of each leaves out is in 16 bits.
const MIXED: [(&str, &str, Parts, &str); 17] = [
    ("gpt-oss", "fp4", [Format::Bf16, Format::Bf16, Format::Mxfp4], "openai/gpt-oss-120b: experts alone are MXFP4"),
    (
        "Kimi-K2",
        "int4",
        [Format::Bf16, Format::Bf16, Format::Int4],
        "moonshotai/Kimi-K2.5: routed experts alone are int4",
    ),
    ("Kimi-K2.5", "fp4", WITHOUT_ATTENTION, "nvidia/Kimi-K2.5-NVFP4: attention is not quantised"),
    (
        "Kimi-K2",
        "fp4",
        EXPERTS_ALONE,
        "nvidia/Kimi-K2.6-NVFP4 and -K2.7-Code-NVFP4: neither attention nor shared experts",
    ),
    ("Kimi-K2", "fp8", BLOCKS, "moonshotai/Kimi-K2-Instruct"),
    ("DeepSeek", "fp4", WITHOUT_ATTENTION, "nvidia/DeepSeek-R1-0528-FP4: attention is not quantised"),
    ("DeepSeek", "fp8", BLOCKS, "deepseek-ai/DeepSeek-R1"),
    (
        "Qwen3.5",
        "fp4",
        EXPERTS_ALONE,
        "nvidia/Qwen3.5-397B-A17B-NVFP4: neither attention, delta nets nor shared experts",
    ),
    ("Qwen3.", "fp8", BLOCKS, "Qwen/Qwen3.5-397B-A17B-FP8"),
    ("Qwen/*-FP8", "fp8", BLOCKS, "Qwen/Qwen3-235B-A22B-FP8"),
    ("GLM-5.", "fp4", EXPERTS_ALONE, "nvidia/GLM-5.1-NVFP4 and -5.2-NVFP4: neither attention nor shared experts"),
    ("GLM-5", "fp4", WITHOUT_ATTENTION, "nvidia/GLM-5-NVFP4: attention and its index are not quantised"),
    ("GLM-5", "fp8", BLOCKS, "zai-org/GLM-5-FP8"),
    (
        "MiniMax-M2",
        "fp4",
        EXPERTS_ALONE,
        "nvidia/MiniMax-M2.5-NVFP4: attention is not quantised, and nothing else but experts is there",
    ),
    ("MiniMax-M2", "fp8", BLOCKS, "MiniMaxAI/MiniMax-M2.5"),
    ("MiMo-V2", "fp8", BLOCKS, "XiaomiMiMo/MiMo-V2-Flash"),
    ("Step-3", "fp8", BLOCKS, "stepfun-ai/Step-3.7-Flash-FP8"),
];

/// Blocks of 128 by 128.
const BLOCKS: Parts = [Format::Fp8Block; 3];
const WITHOUT_ATTENTION: Parts = [Format::Bf16, Format::Nvfp4, Format::Nvfp4];
const EXPERTS_ALONE: Parts = [Format::Bf16, Format::Bf16, Format::Nvfp4];

/// Formats of a run's checkpoint, with keys and values in `kv`.
pub(super) fn formats(run: &Run, kv: Dtype) -> Result<Formats, Reason> {
    let is_of = |path: &str| path.split('*').all(|part| run.model.contains(part));
    let mixed = MIXED.iter().find(|(path, precision, ..)| *precision == run.precision && is_of(path));
    let [attention, dense, experts] = match mixed {
        Some((.., parts, _)) => *parts,
        None => {
            let [products, experts] = [format(&run.formats[0])?, format(&run.formats[1])?];
            [products, products, experts]
        }
    };
    let output = quantises_output(run).then_some(Format::Nvfp4);
    Ok(Formats { attention, output, dense, experts, head: Format::Bf16, kv })
}

/// Whether a checkpoint of DeepSeek has the projection behind attention in 4 bits. The published runs had the second one that NVIDIA wrote of R1
/// (`nvidia/DeepSeek-R1-0528-FP4-v2`: "additionally quantizes the wo module in attention layers"), and that of V3.1 is alike (`hf_quant_config.json`).
fn quantises_output(run: &Run) -> bool {
    run.precision == "fp4" && run.model.contains("DeepSeek") && !run.model.contains("V4")
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
