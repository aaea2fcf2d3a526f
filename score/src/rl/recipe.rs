//! What NeMo-RL's recipes say that the table has no column for: data, one row per beginning of a recipe's name.
//!
//! Source: NVIDIA-NeMo/RL @ v0.3.0, v0.5.0 and v0.6.0, examples/configs, recipes/llm/performance there, and grpo_math_1B.yaml, from which all of them start.

use engine::unfused::{Fusion, Unfused};

/// Sequences of an optimizer step (`policy.train_global_batch_size` of grpo_math_1B.yaml, which no recipe changes).
pub const UPDATE: u32 = 512;

/// What a recipe says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Tag of the release, and beginning of the recipe's name.
    of: (&'static str, &'static str),
    /// vLLM of the release (`pyproject.toml`).
    pub vllm: &'static str,
    /// Packs of log probabilities over the limit of a sequence (`logprob_batch_size`).
    pub log_prob_sequences: u32,
    /// Layers of the first and of the last stage; 0 for an even split.
    pub end_layers: u32,
    /// Kernels that the trainer does not fuse.
    pub unfused: Unfused,
}

const fn row(tag: &'static str, name: &'static str, log_prob_sequences: u32, end_layers: u32) -> Recipe {
    let vllm = match tag.as_bytes()[3] {
        b'3' => "0.9.0",
        b'5' => "0.11.2",
        _ => "0.17.1",
    };
    Recipe { of: (tag, name), vllm, log_prob_sequences, end_layers, unfused: Unfused::NONE }
}

/// Every recipe of the table; the first whose name begins so holds. Recipes of split placement start from those of shared GPUs.
static RECIPES: [Recipe; 11] = [
    row("v0.3.0", "grpo_math_8B_megatron", 4, 0).activating_singly(),
    row("v0.3.0", "grpo_math_70B_megatron", 4, 0).activating_singly(),
    row("v0.3.0", "grpo_math_qwen30ba3b_megatron", 4, 0).permuting_singly().activating_singly(),
    row("v0.5.0", "grpo-llama3.1-8b-instruct-", 2, 0),
    row("v0.5.0", "grpo-qwen3-235b-", 1, 11),
    row("v0.5.0", "grpo-qwen3-30ba3b-", 4, 0).permuting_singly(),
    row("v0.5.0", "grpo-qwen3-32b-", 4, 0),
    row("v0.6.0", "grpo-qwen3-235b-", 1, 11),
    row("v0.6.0", "grpo-qwen3-30ba3b-4n4g", 2, 0).permuting_singly(),
    row("v0.6.0", "grpo-qwen3-30ba3b-4n8g", 4, 0).permuting_singly(),
    row("v0.6.0", "grpo-qwen3-30ba3b-24n8g", 4, 0).permuting_singly(),
];

impl Recipe {
    /// With permutations by single kernels (`moe_permute_fusion: false` of grpo_math_1B.yaml, which recipes of Qwen3-30B-A3B leave as it is).
    const fn permuting_singly(self) -> Self {
        Self { unfused: self.unfused.with(Fusion::Permutation), ..self }
    }

    /// With activation functions by single kernels (`bias_activation_fusion`, which v0.5.0 has first).
    const fn activating_singly(self) -> Self {
        Self { unfused: self.unfused.with(Fusion::Activation), ..self }
    }

    /// The recipe of a word such as `v0.5.0 grpo-qwen3-32b-4n8g`.
    pub fn of(word: &str) -> Option<&'static Self> {
        let (tag, name) = word.split_once(' ')?;
        RECIPES.iter().find(|recipe| recipe.of.0 == tag && name.starts_with(recipe.of.1))
    }

    /// Layers of every stage; empty for an even split. Stages between the first and the last share the rest.
    pub fn layers(&self, n_layers: u64, stages: u32) -> Vec<u32> {
        if self.end_layers == 0 || stages < 3 {
            return Vec::new();
        }
        let between = u32::try_from(n_layers).expect("few layers") - 2 * self.end_layers;
        let mut layers = vec![between / (stages - 2); stages as usize];
        layers[0] = self.end_layers;
        layers[stages as usize - 1] = self.end_layers;
        layers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_are_fused_in_recipes_of_the_largest_model_alone() {
        let unfused = |word: &str| Recipe::of(word).expect("listed").unfused;
        let single = Unfused::NONE.with(Fusion::Permutation);
        for tag in ["v0.5.0", "v0.6.0"] {
            assert_eq!(unfused(&format!("{tag} grpo-qwen3-30ba3b-4n8g")), single, "{tag}");
            assert_eq!(unfused(&format!("{tag} grpo-qwen3-235b-16n8g")), Unfused::NONE, "{tag}");
        }
    }

    #[test]
    fn recipes_are_found_by_tag_and_name() {
        let of = |word| Recipe::of(word).map(|recipe| (recipe.vllm, recipe.log_prob_sequences));
        assert_eq!(of("v0.5.0 grpo-qwen3-30ba3b-4n4g"), Some(("0.11.2", 4)));
        assert_eq!(of("v0.6.0 grpo-qwen3-30ba3b-4n4g-async-1off"), Some(("0.17.1", 2)));
        assert_eq!(of("v0.6.0 grpo-qwen3-32b-4n4g"), None);
        assert_eq!(of(""), None);
        // 94 layers: 11, six times 12, 11.
        let large = Recipe::of("v0.5.0 grpo-qwen3-235b-16n8g").expect("listed");
        assert_eq!(large.layers(94, 8), [11, 12, 12, 12, 12, 12, 12, 11]);
    }
}
