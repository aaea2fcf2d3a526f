//! Number formats of a model's parts, as a checkpoint holds them and kernels multiply them.

use hw::{Dtype, Format};

/// Formats of a model's parts. Norms, embedding and router stay in the format of the activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formats {
    /// Projections around attention.
    pub attention: Format,
    /// The one behind attention, where it is in another format than those in front.
    pub output: Option<Format>,
    /// Dense feed-forwards and shared experts.
    pub dense: Format,
    /// Routed experts.
    pub experts: Format,
    /// Output head.
    pub head: Format,
    /// Keys and values that are kept.
    pub kv: Dtype,
}

impl Formats {
    /// Everything as the activations are.
    pub fn of(dtype: Dtype) -> Self {
        Self::weights(dtype.into(), dtype)
    }

    /// Layers in one format, the head and what is kept as the activations are: what engines make of a checkpoint unless it says more.
    pub fn weights(format: Format, dtype: Dtype) -> Self {
        Self { attention: format, output: None, dense: format, experts: format, head: dtype.into(), kv: dtype }
    }

    /// Format of the projection behind attention.
    pub fn behind(&self) -> Format {
        self.output.unwrap_or(self.attention)
    }

    /// Formats of products, each once.
    pub const fn products(&self) -> [Format; 4] {
        [self.attention, self.dense, self.experts, self.head]
    }
}
