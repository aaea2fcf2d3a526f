//! What a release's own recipes say and its page or the table does not: layouts, dispatchers, output heads in 8 bits, and fused experts.
//!
//! Sources: NVIDIA-NeMo/Megatron-Bridge, `scripts/performance/configs/qwen/qwen3_workload_base_configs.py` at v0.3.1, the tag of release 26.02.01. Its page
//! still has the layouts of v0.3.0. `configs/gpt_oss/gpt_oss_workload_base_configs.py` at v0.4.0, v0.5.0 and v0.5.1; `gpt_oss_llm_pretrain.py` and
//! `configs/deepseek/deepseek_llm_pretrain.py` at v0.5.0 and v0.5.1; `perf_recipes` at v0.6.0. Fused experts
//! are `cutedsl_fused_grouped_mlp` of `configs/{gpt_oss,qwen,deepseek}` at v0.5.0 and v0.5.1, and `use_transformer_engine_op_fuser` at v0.6.0. A script runs the
//! recipe.

use super::setting::Degrees;
use crate::table::Cells;

/// A recipe of a release that its page does not print.
#[derive(Debug)]
pub(super) struct OwnRecipe {
    /// Release, model, card and format as the table writes them.
    row: [&'static str; 4],
    pp: u32,
    chunks: u32,
    ep: u32,
    /// Whether a token goes to a node once (`moe_token_dispatcher_type = "flex"`).
    pub(super) once_per_node: bool,
}

/// Both have no exchange behind a neighbour micro-batch (`moe_a2a_overlap = False`).
static OWN: [OwnRecipe; 2] = [
    OwnRecipe { row: ["26.02.01", "Qwen3_30B_a3B", "H100", "FP8-CS"], pp: 1, chunks: 1, ep: 16, once_per_node: true },
    OwnRecipe { row: ["26.02.01", "Qwen3_235B_a22B", "B300", "FP8-MX"], pp: 8, chunks: 1, ep: 8, once_per_node: false },
];

impl OwnRecipe {
    /// The recipe that a row's release has itself, where it is another one than printed.
    pub(super) fn of(cells: &Cells<'_>) -> Option<&'static Self> {
        let row = ["release", "model", "gpu", "precision"].map(|column| cells.word(column));
        OWN.iter().find(|own| own.row == row)
    }

    /// Its degrees on as many GPUs.
    pub(super) fn degrees(&self, printed: Degrees) -> Degrees {
        let dp = printed.dp * printed.pp / self.pp;
        Degrees { pp: self.pp, chunks: self.chunks, ep: self.ep, dp, ..printed }
    }
}

/// Releases, model, cards and format whose recipe names HybridEP. The table has the backend of the model's own default there, as it was read without a GPU
/// (`apply_flex_dispatcher_backend`).
static HYBRID_EP: [[&str; 4]; 3] = [
    ["26.04", "GPT_OSS_120B", "GB200", "BF16"],
    ["26.06", "GPT_OSS_120B", "GB200", "FP8-MX"],
    ["26.06.01", "GPT_OSS_120B", "GB200", "FP8-MX"],
];

/// Model, card, and first release whose recipe multiplies by the output head in 8 bits with a scale per block (`fp8_output_proj`).
static NARROW_HEADS: [[&str; 3]; 5] = [
    ["GPT_OSS_120B", "GB200", "26.06"],
    ["GPT_OSS_120B", "GB300", "26.06"],
    ["DeepSeekV3", "GB200", "26.06"],
    ["DeepSeekV3", "GB300", "26.06"],
    ["DeepSeekV3", "B300", "26.06.01"],
];

/// The same of recipes that fuse the products of experts (`cutedsl_fused_grouped_mlp`).
static FUSED_EXPERTS: [[&str; 3]; 13] = [
    ["GPT_OSS_120B", "GB200", "26.06"],
    ["GPT_OSS_120B", "GB300", "26.06"],
    ["Qwen3_30B_a3B", "GB200", "26.06"],
    ["Qwen3_30B_a3B", "GB300", "26.06"],
    ["Qwen3_30B_a3B", "B300", "26.06"],
    ["Qwen3_30B_a3B", "B200", "26.06.01"],
    ["Qwen3_235B_a22B", "GB200", "26.06"],
    ["Qwen3_235B_a22B", "GB300", "26.06"],
    ["Qwen3_235B_a22B", "B300", "26.06.01"],
    ["Qwen3_235B_a22B", "B200", "26.06.01"],
    ["DeepSeekV3", "GB200", "26.06"],
    ["DeepSeekV3", "GB300", "26.06"],
    ["DeepSeekV3", "B300", "26.06.01"],
];

/// Whether a row's recipe names HybridEP, where the table could not know.
pub(super) fn names_hybrid_ep(cells: &Cells<'_>) -> bool {
    let row = ["release", "model", "gpu", "precision"].map(|column| cells.word(column));
    HYBRID_EP.contains(&row)
}

/// Whether a row's output head runs in 8 bits.
pub(super) fn has_narrow_head(cells: &Cells<'_>) -> bool {
    is_since(cells, &NARROW_HEADS)
}

/// Whether a row's products of experts are fused.
pub(super) fn fuses_experts(cells: &Cells<'_>) -> bool {
    is_since(cells, &FUSED_EXPERTS)
}

/// Whether a row with scales per block is of a recipe of a table, or of a later release of it.
fn is_since(cells: &Cells<'_>, recipes: &[[&str; 3]]) -> bool {
    let [model, gpu, release] = ["model", "gpu", "release"].map(|column| cells.word(column));
    let is_its = |[of_model, of_card, first]: &[&str; 3]| *of_model == model && *of_card == gpu && release >= *first;
    cells.word("precision") == "FP8-MX" && recipes.iter().any(is_its)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_keeps_the_number_of_gpus() {
        let printed = Degrees { tp: 1, pp: 2, cp: 1, ep: 8, dp: 8, chunks: 12, expert_tp: 1 };
        let own = OWN[0].degrees(printed);
        assert_eq!((own.pp, own.chunks, own.ep, own.dp), (1, 1, 16, 16));
        assert_eq!(own.n_gpus(), printed.n_gpus());
    }
}
