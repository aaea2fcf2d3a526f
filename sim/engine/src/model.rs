//! Architecture of a model: layers, widths, heads, experts. Parameters, operations and bytes are derived, never stored.
//!
//! Units: counts and elements. Read from a Hugging Face `config.json` (`model/config.rs`) or embedded by name
//! (`model/embedded.rs`). Invariant: widths and counts are positive and heads divide evenly.

mod config;
mod embedded;

pub use embedded::{embedded, embedded_names};

use crate::formats::Formats;

/// Latent attention of DeepSeek-V2/V3 (arXiv:2405.04434, section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentAttention {
    /// Rank of the compressed query; `None` where queries are not compressed.
    pub q_rank: Option<u64>,
    /// Rank of the compressed key and value.
    pub kv_rank: u64,
    /// Width of a head's part without rotary position.
    pub nope_dim: u64,
    /// Width of the part with rotary position, shared by all heads.
    pub rope_dim: u64,
    /// Width of a value head.
    pub value_dim: u64,
}

/// Mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Routed experts per layer.
    pub n_routed: u64,
    /// Routed experts that a token visits.
    pub top_k: u64,
    /// Experts that every token visits.
    pub n_shared: u64,
    /// Intermediate width of one expert.
    pub intermediate: u64,
    /// Leading layers with a dense feed-forward instead.
    pub n_dense_layers: u64,
    /// Of the layers behind them, every so many-th has experts: 1 for all, 2 for the last of each two.
    pub every: u64,
}

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Name for people, for example `qwen2.5-0.5b`.
    pub name: String,
    /// Transformer layers.
    pub n_layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub n_heads: u64,
    /// Key-value heads.
    pub n_kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Intermediate width of the dense feed-forward.
    pub intermediate: u64,
    /// Whether the feed-forward is gated (three matrices instead of two).
    pub gated: bool,
    /// Rows of the embedding table.
    pub vocab: u64,
    /// Whether the output head shares the embedding table.
    pub tied: bool,
    /// Whether query, key and value projections have biases (Qwen2, GPT).
    pub qkv_bias: bool,
    /// Whether positions are learned, with a table of `max_positions` rows, and every matrix has a bias (GPT).
    pub learned_positions: bool,
    /// Whether each head's query and key are normalised (Qwen3).
    pub qk_norm: bool,
    /// Longest position that the model was made for.
    pub max_positions: u64,
    /// Latent attention, where the model has it.
    pub latent: Option<LatentAttention>,
    /// Mixture of experts, where the model has it.
    pub experts: Option<Experts>,
    /// Formats of the checkpoint's parts.
    pub formats: Formats,
}

impl Model {
    /// Width of all keys (or all values) of a token.
    #[must_use]
    pub const fn kv_width(&self) -> u64 {
        self.n_kv_heads * self.head_dim
    }

    /// Parameters of attention in one layer.
    #[must_use]
    pub fn attention_parameters(&self) -> u64 {
        if let Some(latent) = self.latent {
            let query = self.n_heads * (latent.nope_dim + latent.rope_dim);
            let queries = latent.q_rank.map_or(self.hidden * query, |rank| rank * (self.hidden + query) + rank);
            let compressed = self.hidden * (latent.kv_rank + latent.rope_dim) + latent.kv_rank;
            let expanded = latent.kv_rank * self.n_heads * (latent.nope_dim + latent.value_dim);
            return queries + compressed + expanded + self.n_heads * latent.value_dim * self.hidden;
        }
        let query = self.n_heads * self.head_dim;
        let biases = if self.qkv_bias { query + 2 * self.kv_width() } else { 0 };
        let norms = if self.qk_norm { 2 * self.head_dim } else { 0 };
        let output_bias = if self.learned_positions { self.hidden } else { 0 };
        self.hidden * (query + 2 * self.kv_width()) + query * self.hidden + biases + norms + output_bias
    }

    /// Parameters of a feed-forward of that width.
    #[must_use]
    pub const fn feed_forward_parameters(&self, intermediate: u64) -> u64 {
        let matrices = if self.gated { 3 } else { 2 };
        let biases = if self.learned_positions { intermediate + self.hidden } else { 0 };
        matrices * self.hidden * intermediate + biases
    }

    /// Parameters of both norms of a layer.
    const fn norm_parameters(&self) -> u64 {
        (if self.learned_positions { 4 } else { 2 }) * self.hidden
    }

    /// Parameters of a layer that every tensor group holds once: attention, norms, and the dense feed-forward or, with
    /// experts, the router and the shared experts.
    #[must_use]
    pub fn shared_layer_parameters(&self, with_experts: bool) -> u64 {
        let feed_forward = match self.experts {
            Some(experts) if with_experts => {
                experts.n_shared * self.feed_forward_parameters(experts.intermediate) + self.hidden * experts.n_routed
            }
            _ => self.feed_forward_parameters(self.intermediate),
        };
        self.attention_parameters() + self.norm_parameters() + feed_forward
    }

    /// Parameters of one routed expert of a layer; 0 without experts.
    #[must_use]
    pub fn expert_parameters(&self) -> u64 {
        self.experts.map_or(0, |experts| self.feed_forward_parameters(experts.intermediate))
    }

    /// Layers with experts among the first `n`.
    #[must_use]
    pub fn n_expert_layers_of(&self, n: u64) -> u64 {
        self.experts.map_or(0, |experts| n.saturating_sub(experts.n_dense_layers) / experts.every)
    }

    /// Layers with experts.
    #[must_use]
    pub fn n_expert_layers(&self) -> u64 {
        self.n_expert_layers_of(self.n_layers)
    }

    /// Parameters of all layers where each routed layer counts `n_experts` routed experts.
    fn layer_parameters(&self, n_experts: u64) -> u64 {
        let n_routed = self.n_expert_layers();
        let with_experts = self.shared_layer_parameters(true) + n_experts * self.expert_parameters();
        (self.n_layers - n_routed) * self.shared_layer_parameters(false) + n_routed * with_experts
    }

    /// Parameters of the embedding table and the learned positions.
    #[must_use]
    pub const fn first_stage_parameters(&self) -> u64 {
        let positions = if self.learned_positions { self.max_positions } else { 0 };
        (self.vocab + positions) * self.hidden
    }

    /// Parameters of the final norm and of the head, which a tied model shares with the embedding.
    #[must_use]
    pub const fn last_stage_parameters(&self, shares_embedding: bool) -> u64 {
        let norm = if self.learned_positions { 2 } else { 1 } * self.hidden;
        norm + if self.tied && shares_embedding { 0 } else { self.vocab * self.hidden }
    }

    /// Parameters outside the layers.
    #[must_use]
    pub const fn embedding_parameters(&self) -> u64 {
        self.first_stage_parameters() + self.last_stage_parameters(true)
    }

    /// Parameters of the whole model.
    #[must_use]
    pub fn n_parameters(&self) -> u64 {
        self.layer_parameters(self.experts.map_or(0, |experts| experts.n_routed)) + self.embedding_parameters()
    }

    /// Parameters that one token uses.
    #[must_use]
    pub fn active_parameters(&self) -> u64 {
        self.layer_parameters(self.experts.map_or(0, |experts| experts.top_k)) + self.embedding_parameters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_counts_are_those_of_the_published_checkpoints() {
        // Counts of the tensors in the public checkpoints.
        for (name, expected) in [
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen2.5-7b", 7_615_616_512),
            ("llama-3-8b", 8_030_261_248),
            ("llama-2-7b", 6_738_415_616),
            ("mistral-7b", 7_241_732_096),
            ("mixtral-8x7b", 46_702_792_704),
            ("qwen3-8b", 8_190_735_360),
        ] {
            assert_eq!(embedded(name).expect(name).n_parameters(), expected, "{name}");
        }
        let deepseek = embedded("deepseek-v3").expect("embedded");
        // The report gives 671 B in total and 37 B active, without the multi-token head.
        assert!((670e9..672e9).contains(&hw::Tokens(deepseek.n_parameters()).as_f64()));
        assert!((36e9..38.5e9).contains(&hw::Tokens(deepseek.active_parameters()).as_f64()));
    }
}
