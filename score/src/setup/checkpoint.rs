//! Checkpoints of the runs: in which formats their parts are published.

use engine::formats::Formats;
use hw::{Dtype, Format};

use crate::reason::Reason;
use crate::run::Run;

/// Formats of the parts of a checkpoint: projections in front of attention, the one behind it, dense feed-forward and shared experts, routed experts.
type Parts = [Format; 4];

/// Checkpoints whose parts differ, by parts of the path with `*` between them and the format's word; the first that fits holds. All others are in the
/// table's formats throughout. What `quantization_config` or `hf_quant_config.json` of each leaves out is in 16 bits.
const MIXED: [(&str, &str, Parts, &str); 21] = [
    (
        "gpt-oss",
        "fp4",
        [Format::Bf16, Format::Bf16, Format::Bf16, Format::Mxfp4],
        "openai/gpt-oss-120b: experts alone are MXFP4",
    ),
    (
        "Kimi-K2",
        "int4",
        [Format::Bf16, Format::Bf16, Format::Bf16, Format::Int4],
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
    (
        "DeepSeek-V4*NVFP4",
        "fp4",
        [Format::Fp8Block, Format::Fp8Block, Format::Fp8Block, Format::Nvfp4],
        "nvidia/DeepSeek-V4-Pro-NVFP4",
    ),
    ("DeepSeek-V4*-FP8", "fp8", BLOCKS, "sgl-project/DeepSeek-V4-Pro-FP8"),
    ("DeepSeek-V4", "fp4", V4, "deepseek-ai/DeepSeek-V4-Pro"),
    ("DeepSeek-V4", "fp8", V4, "deepseek-ai/DeepSeek-V4-Pro, also where InferenceX calls it fp8"),
    (
        "DeepSeek",
        "fp4",
        [Format::Bf16, Format::Nvfp4, Format::Nvfp4, Format::Nvfp4],
        "nvidia/DeepSeek-R1-0528-FP4-v2, which the published runs had (\"additionally quantizes the wo module in attention layers\"), and -V3.1-NVFP4",
    ),
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
const BLOCKS: Parts = [Format::Fp8Block; 4];
/// DeepSeek-V4: `expert_dtype` of its config.json is fp4, with a scale per 32 numbers.
const V4: Parts = [Format::Fp8Block, Format::Fp8Block, Format::Fp8Block, Format::Mxfp4];
const WITHOUT_ATTENTION: Parts = [Format::Bf16, Format::Bf16, Format::Nvfp4, Format::Nvfp4];
const EXPERTS_ALONE: Parts = [Format::Bf16, Format::Bf16, Format::Bf16, Format::Nvfp4];

/// Formats of a run's checkpoint, with keys and values in `kv`.
pub(super) fn formats(run: &Run, kv: Dtype) -> Result<Formats, Reason> {
    let is_of = |path: &str| path.split('*').all(|part| run.model.contains(part));
    let mixed = MIXED.iter().find(|(path, precision, ..)| *precision == run.precision && is_of(path));
    let [attention, behind, dense, experts] = match mixed {
        Some((.., parts, _)) => *parts,
        None => {
            let [products, experts] = [format(&run.formats[0])?, format(&run.formats[1])?];
            [products, products, products, experts]
        }
    };
    let output = Some(behind).filter(|behind| *behind != attention);
    Ok(Formats { attention, output, dense, experts, head: Format::Bf16, kv })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;

    /// Formats of attention, what lies behind it, shared and routed experts of a checkpoint.
    fn of(model: &str, precision: &str, words: [&str; 2]) -> [Format; 4] {
        let [products, experts] = words;
        let text = format!(
            "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,moe_quant_mode,batch_size,tp_size,\
             pp_size,attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms\n\
             a,InferenceX,vllm,0.19.0,{model},b200_sxm,{precision},agg,1024,1024,{products},{experts},4,8,1,1,8,1,100,10\n"
        );
        let run = run::read(&text).expect("a run").remove(0);
        let found = super::formats(&run, Dtype::Bf16).expect("known words");
        [found.attention, found.behind(), found.dense, found.experts]
    }

    #[test]
    fn parts_that_a_checkpoint_leaves_out_are_in_16_bits() {
        use Format::{Bf16, Fp8, Fp8Block, Mxfp4, Nvfp4};
        for (model, precision, expected) in [
            ("deepseek-ai/DeepSeek-R1", "fp4", [Bf16, Nvfp4, Nvfp4, Nvfp4]),
            ("deepseek-ai/DeepSeek-V4-Pro", "fp4", [Fp8Block, Fp8Block, Fp8Block, Mxfp4]),
            ("zhipuai/GLM-5", "fp4", [Bf16, Bf16, Nvfp4, Nvfp4]),
            ("zai-org/GLM-5.1", "fp4", [Bf16, Bf16, Bf16, Nvfp4]),
            ("MiniMaxAI/MiniMax-M2.5", "fp4", [Bf16, Bf16, Bf16, Nvfp4]),
            ("Qwen/Qwen3.5-397B-A17B", "fp4", [Bf16, Bf16, Bf16, Nvfp4]),
            ("meta-llama/Llama-3.1-70B", "fp4", [Nvfp4; 4]),
            ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "fp8", [Fp8Block; 4]),
            ("MiniMaxAI/MiniMax-M2.7", "fp8", [Fp8Block; 4]),
            ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8", [Fp8; 4]),
        ] {
            let word = if precision == "fp4" { "nvfp4" } else { "fp8" };
            assert_eq!(of(model, precision, [word; 2]), expected, "{model}");
        }
    }
}
