//! Number formats of a model's parts, as a checkpoint holds them and kernels multiply them.

use hw::{Dtype, Format, Gpu};

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
    /// What matrices in other formats than their part's take besides.
    pub apart: Apart,
    /// Weights of 4-bit integers along a row that share a scale, where a file says so.
    pub group: Option<u64>,
}

/// Bytes of a layer that matrices in other formats than most of their part take beyond that format, on average over all layers; below zero where they are
/// narrower. Memory counts them, and kernels are timed in the part's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Apart {
    /// Outside of routed experts.
    pub shared: i64,
    /// Of all routed experts, in a layer that has them.
    pub routed: i64,
}

impl Formats {
    /// Everything as the activations are.
    pub fn of(dtype: Dtype) -> Self {
        Self::weights(dtype.into(), dtype)
    }

    /// Layers in one format, the head and what is kept as the activations are: what engines make of a checkpoint unless it says more.
    pub fn weights(format: Format, dtype: Dtype) -> Self {
        Self {
            attention: format,
            output: None,
            dense: format,
            experts: format,
            head: dtype.into(),
            kv: dtype,
            apart: Apart::default(),
            group: None,
        }
    }

    /// Bytes that a weight of the narrowest part takes, two where all are wider.
    pub fn narrowest_bytes(&self) -> f64 {
        self.products().map(|format| format.weight_bytes(1.0)).into_iter().fold(2.0, f64::min)
    }

    /// These formats on a card: 8-bit floats that it does not multiply are weights alone.
    pub fn weight_only(self, gpu: &Gpu) -> Self {
        let narrow = |format| match format {
            Format::Fp8 | Format::Fp8Block if !gpu.multiplies(format) => Format::Int8Weights,
            other => other,
        };
        Self {
            attention: narrow(self.attention),
            output: self.output.map(narrow),
            dense: narrow(self.dense),
            experts: narrow(self.experts),
            head: narrow(self.head),
            ..self
        }
    }

    /// Format of the projection behind attention.
    pub fn behind(&self) -> Format {
        self.output.unwrap_or(self.attention)
    }

    /// Whether some product is of 8 bits or fewer.
    pub fn is_narrow(&self) -> bool {
        self.products().iter().any(|format| !format.is_whole())
    }

    /// Formats of products, each once.
    pub const fn products(&self) -> [Format; 4] {
        [self.attention, self.dense, self.experts, self.head]
    }
}
