//! What goes between the layers of a model where it is more than one vector of a token: several streams that layers mix, and inputs of each layer from
//! a table. Units: counts and elements.
//!
//! Parameters are those of huggingface/transformers 5.24.0, `modeling_<type>.py`.

/// Several residual streams of a token, which are mixed around every mixer and every feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// Manifold-constrained hyper-connections (arXiv:2512.24880): one product makes the weights by which streams are joined, mixed and written again.
    Mixed {
        /// Streams.
        n: u64,
        /// Whether weights of a product join them behind the last layer; their mean is taken elsewhere.
        learned_head: bool,
    },
    /// Streams that a gate of low rank joins, instead of norms (Qwen4).
    Gated {
        /// Streams.
        n: u64,
        /// Rank of the gate.
        rank: u64,
    },
    /// Alternating updates (arXiv:2301.13310) with a residual of low rank (Gemma 3n).
    Alternating {
        /// Streams.
        n: u64,
        /// Rank of the residual.
        rank: u64,
    },
}

impl Streams {
    /// Streams of a token.
    pub const fn n(self) -> u64 {
        match self {
            Self::Mixed { n, .. } | Self::Gated { n, .. } | Self::Alternating { n, .. } => n,
        }
    }

    /// Whether a layer has no norms besides.
    pub const fn replaces_norms(self) -> bool {
        matches!(self, Self::Gated { .. })
    }

    /// Parameters in a layer of so many parts, a mixer and a feed-forward.
    pub(super) const fn layer_parameters(self, hidden: u64, n_parts: u64) -> u64 {
        match self {
            // A product and its base, and three scales.
            Self::Mixed { n, .. } => n_parts * ((2 + n) * n * (n * hidden + 1) + 3),
            // A norm, two factors of the gate, and a number by which each stream is written.
            Self::Gated { n, rank } => n_parts * n * hidden * (1 + 2 * rank + n),
            // Predicting and correcting coefficients, a router with its norm and a scale; two factors of the residual, and its norm.
            Self::Alternating { n, rank } => n * n + n * n * n + (n + 2) * hidden + (2 * rank + 1) * hidden,
        }
    }

    /// Parameters in front of the first layer.
    pub(super) const fn first_parameters(self, hidden: u64) -> u64 {
        match self {
            Self::Alternating { n, .. } => (n - 1) * hidden * hidden,
            Self::Mixed { .. } | Self::Gated { .. } => 0,
        }
    }

    /// Parameters behind the last layer.
    pub(super) const fn last_parameters(self, hidden: u64) -> u64 {
        match self {
            Self::Mixed { n, learned_head: true } => n * n * hidden + n + 1,
            Self::Mixed { .. } => 0,
            Self::Gated { n, rank } => n * hidden * (1 + 2 * rank),
            Self::Alternating { n, .. } => (n - 1) * hidden * hidden,
        }
    }
}

/// Inputs of every layer by itself: a row of a table for each token and layer, and a projection of the embedding, added behind the feed-forward through
/// two narrow products (Gemma 3n, Gemma 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerInputs {
    /// Elements of a token for a layer.
    pub width: u64,
    /// Rows of the table.
    pub vocab: u64,
}

impl LayerInputs {
    /// Two products and a norm.
    pub(super) const fn layer_parameters(self, hidden: u64) -> u64 {
        (2 * self.width + 1) * hidden
    }

    /// The table, the projection and a norm.
    pub(super) const fn first_parameters(self, hidden: u64, n_layers: u64) -> u64 {
        (self.vocab + hidden) * n_layers * self.width + self.width
    }
}
