//! Layouts of a release's own recipes, where its page prints those of an earlier release.
//!
//! Source: NVIDIA-NeMo/Megatron-Bridge, `scripts/performance/configs/qwen/qwen3_workload_base_configs.py` at v0.3.1, the tag of release 26.02.01. Its page
//! still has the layouts of v0.3.0. A script runs the recipe.

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
