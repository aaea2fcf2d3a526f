//! Checkpoints of the runs: in which formats their parts are published.

use engine::formats::Formats;
use engine::model::checkpoint_formats;
use hw::{Dtype, Format};

use crate::reason::Reason;
use crate::run::Run;

/// Formats of a run's checkpoint, with keys and values in `kv`.
pub(super) fn formats(run: &Run, kv: Dtype) -> Result<Formats, Reason> {
    if let Some(published) = checkpoint_formats::of_width(&run.model, &run.precision) {
        return Ok(Formats { kv, ..published });
    }
    let [products, experts] = [format(&run.formats[0])?, format(&run.formats[1])?];
    Ok(Formats { experts, head: Format::Bf16, ..Formats::weights(products, kv) })
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
