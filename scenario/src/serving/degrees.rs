//! How a replica lies on GPUs.

use serve::step_cost::FfnSide;

/// GPUs that share a part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degrees {
    /// GPUs that share every layer's attention.
    pub tensor: u32,
    /// Stages.
    pub pipeline: u32,
    /// GPUs that attend and share the experts; 1 cuts each over the tensor group.
    pub expert: u32,
    /// GPUs that hold the experts alone, where there are some: they take the place of the others.
    pub ffn: Option<FfnSide>,
}

impl Degrees {
    /// Ranks of data-parallel attention.
    pub fn attention_ranks(&self) -> u32 {
        self.ffn.map_or(self.expert / self.tensor, |ffn| ffn.attention_ranks).max(1)
    }

    /// GPUs that share the experts.
    pub fn expert_gpus(&self) -> u32 {
        self.ffn.map_or(self.expert, |ffn| ffn.gpus)
    }

    /// Whether a GPU has whole experts, or a part of each.
    pub const fn has_whole_experts(&self) -> bool {
        self.expert > 1 || self.ffn.is_some()
    }

    /// GPUs of a replica.
    pub fn n_gpus(&self) -> u32 {
        (self.tensor * self.attention_ranks() + self.ffn.map_or(0, |ffn| ffn.gpus)) * self.pipeline
    }
}
