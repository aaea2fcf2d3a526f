//! Blocks of weights that share a scale, where layers are cut over a tensor group: engines take no part that ends inside of a block.

use hw::Format;

use super::{FeedForward, Model};
use crate::formats::Formats;

/// Rows and columns of a block of 8-bit weights: `weight_block_size` of published config.json.
pub const BLOCK: u64 = 128;

/// How an engine cuts feed-forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCut {
    /// GPUs that share every dense feed-forward.
    pub tensor: u64,
    /// GPUs that share each expert; 1 where experts lie whole on their GPUs.
    pub experts: u64,
    /// What the width of a part of a routed expert must be a multiple of.
    pub expert_block: u64,
}

impl Model {
    /// Why the feed-forwards cannot be cut so; `None` where they can. A width is cut into equal parts, and none ends inside of weights with one scale.
    ///
    /// `validate_fp8_block_shape` and `Fp8MoEMethod` of vllm-project/vllm @ 007d50058a06 (`quantization/utils/fp8_utils.py`, `quantization/fp8.py`); SGLang has
    /// both (`srt/layers/quantization/fp8.py`). vllm-project/vllm#17569, sgl-project/sglang#3345. Groups of 4-bit integers: `AWQLinearMethod` in
    /// `quantization/awq.py`, vllm-project/vllm#5675; those of experts are made smaller. Equal parts: `divide` in `distributed/utils.py`.
    pub fn uncut_blocks(&self, formats: Formats, cut: BlockCut) -> Option<String> {
        let has = |wanted| self.layers.kinds().iter().any(|layer| layer.feed_forward == wanted);
        let of_experts = self.experts.filter(|_| has(FeedForward::Experts));
        let unit_of_experts = if formats.experts == Format::Fp8Block { cut.expert_block } else { 1 };
        let routed = of_experts.map(|experts| ("experts", experts.intermediate, cut.experts, unit_of_experts));
        let unit_of_dense = match formats.dense {
            Format::Fp8Block => BLOCK,
            Format::Int4 | Format::Int4By32 => formats.group.unwrap_or(1),
            _ => 1,
        };
        let dense = has(FeedForward::Dense).then_some(("feed-forwards", self.intermediate, cut.tensor, unit_of_dense));
        let shared =
            of_experts.map(|experts| ("shared experts", experts.shared_intermediate, cut.experts, unit_of_dense));
        let fits = |width: u64, degree: u64, unit: u64| degree <= 1 || width.is_multiple_of(degree * unit);
        let mut parts = [routed, dense, shared].into_iter().flatten();
        let (part, width, degree, unit) = parts.find(|(_, width, n, unit)| !fits(*width, *n, *unit))?;
        let each = if width.is_multiple_of(degree) { format!(" = {}", width / degree) } else { String::new() };
        Some(match unit {
            1 => format!("{part} of width {width} are not cut into {degree} equal parts"),
            _ => format!("{part} of width {width} / {degree}{each} end inside of blocks of {unit} with one scale"),
        })
    }

    /// Tensor degrees up to so many that cut heads and blocks evenly, with experts cut over all of them.
    pub fn block_degrees(&self, formats: Formats, expert_block: u64, most: u64) -> Vec<u64> {
        let fits = |n: &u64| {
            let cut = BlockCut { tensor: *n, experts: *n, expert_block };
            self.uncut_blocks(formats, cut).is_none()
                && u32::try_from(*n).is_ok_and(|degree| self.uncut(degree, 1).is_none())
        };
        (1..=most).filter(fits).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::of_checkpoint;

    fn told(path: &str, [tensor, experts, expert_block]: [u64; 3]) -> Option<String> {
        let model = of_checkpoint(path).expect(path);
        model.uncut_blocks(model.formats, BlockCut { tensor, experts, expert_block })
    }

    #[test]
    fn parts_of_blocks_are_those_that_engines_refuse() {
        // Widths of the reports: 192 in vllm-project/vllm#17569 and #48173, 576 in sgl-project/sglang#3345 (64 of experts in #10641).
        for (path, tensor, each) in [
            ("Qwen/Qwen3-235B-A22B-FP8", 8, "1536 / 8 = 192"),
            ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", 8, "2560 / 8 = 320"),
            ("Qwen/Qwen3-30B-A3B-FP8", 4, "768 / 4 = 192"),
            ("MiniMaxAI/MiniMax-M2.5", 8, "1536 / 8 = 192"),
            ("deepseek-ai/DeepSeek-R1", 32, "2048 / 32 = 64"),
            ("Qwen/Qwen3-4B-FP8", 8, "9728 / 8 = 1216"),
        ] {
            let what = told(path, [tensor, tensor, BLOCK]).unwrap_or_else(|| panic!("{path}"));
            assert!(what.contains(each), "{path}: {what}");
        }
        // With whole experts the dense layers alone are cut.
        assert!(told("deepseek-ai/DeepSeek-R1", [32, 1, BLOCK]).is_some_and(|what| what.contains("18432 / 32 = 576")));
        // Smaller blocks fit where 32 divides the width.
        assert_eq!(told("Qwen/Qwen3-235B-A22B-FP8", [8, 8, 32]), None);
    }

    #[test]
    fn what_engines_start_is_cut() {
        for (path, cut) in [
            ("Qwen/Qwen3-235B-A22B-FP8", [4, 4, BLOCK]),
            ("Qwen/Qwen3-235B-A22B-FP8", [8, 1, BLOCK]),
            ("Qwen/Qwen3-235B-A22B", [8, 8, BLOCK]),
            ("deepseek-ai/DeepSeek-R1", [16, 16, BLOCK]),
            ("Qwen/Qwen3-32B-FP8", [8, 8, BLOCK]),
            ("Qwen/Qwen3-14B-FP8", [8, 8, BLOCK]),
            ("MiniMaxAI/MiniMax-M2.5", [4, 4, BLOCK]),
            // One scale per tensor, or per channel.
            ("RedHatAI/Qwen3-30B-A3B-FP8-dynamic", [4, 4, BLOCK]),
        ] {
            assert_eq!(told(path, cut), None, "{path}");
        }
    }

    /// vllm-project/vllm#5675: the width of Qwen2-72B in groups of 128 over eight GPUs.
    #[test]
    fn groups_of_integers_are_not_cut() {
        let of = |width: u64, more: &str| {
            let config = format!(
                r#"{{ "model_type": "llama", "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 80,
                "intermediate_size": {width}, "vocab_size": 152064, "quantization_config": {{ "quant_method": "awq", "bits": 4{more} }} }}"#
            );
            let model = Model::from_config("x", &config).expect(&config);
            model.uncut_blocks(model.formats, BlockCut { tensor: 8, experts: 8, expert_block: BLOCK })
        };
        let groups = r#", "group_size": 128"#;
        assert!(of(29_568, groups).is_some_and(|what| what.contains("29568 / 8 = 3696 end inside of blocks of 128")));
        // Zeros were put behind it in the published file.
        assert_eq!(of(29_696, groups), None);
        assert_eq!(of(29_568, r#", "group_size": -1"#), None);
        assert!(of(29_569, groups).is_some() && of(29_568, "").is_none());
        assert!(of(29_569, "").is_some_and(|what| what.contains("not cut into 8 equal parts")));
    }

    #[test]
    fn degrees_divide_heads_and_blocks() {
        let model = of_checkpoint("Qwen/Qwen3-235B-A22B-FP8").expect("known");
        assert_eq!(model.block_degrees(model.formats, BLOCK, 16), [1, 2, 4]);
    }
}
