//! Architecture of a model: layers, widths, heads, experts. Parameters, operations and bytes are derived, never stored.
//!
//! Units: counts and elements. Read from a Hugging Face `config.json` or embedded by name.

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
    /// Longest position that the model was made for.
    pub max_positions: u64,
    /// Latent attention, where the model has it.
    pub latent: Option<LatentAttention>,
    /// Mixture of experts, where the model has it.
    pub experts: Option<Experts>,
}

/// A model embedded by name.
#[must_use]
pub fn embedded(_name: &str) -> Option<Model> {
    todo!()
}

/// Names of all embedded models.
#[must_use]
pub fn embedded_names() -> Vec<&'static str> {
    todo!()
}

impl Model {
    /// Reads a Hugging Face `config.json`.
    ///
    /// # Errors
    /// All findings, each naming the key, what was found and what is allowed.
    pub fn from_config(_name: &str, _config: &str) -> Result<Self, Vec<String>> {
        todo!()
    }

    /// Parameters of the whole model.
    #[must_use]
    pub fn n_parameters(&self) -> u64 {
        todo!()
    }
}
