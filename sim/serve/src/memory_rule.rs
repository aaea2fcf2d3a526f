//! What an engine takes of a device's memory: each counts its share in its own way.

/// What an engine takes of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryRule {
    /// A share of the device, with weights, activations and all else inside.
    OfDevice(f64),
    /// A share of the device for weights, keys and values; activations lie outside.
    Static(f64),
    /// All but a reserve that follows from the chunk, the largest captured batch and the GPUs, as SGLang makes its static share.
    Reserve,
    /// A share of what weights and activations leave free.
    OfFree(f64),
}

impl MemoryRule {
    /// The same rule with another share, which an engine counts in its own way: of the device, without activations, or of what is free.
    #[must_use]
    pub const fn with_share(self, share: f64) -> Self {
        match self {
            Self::OfDevice(_) => Self::OfDevice(share),
            Self::Static(_) | Self::Reserve => Self::Static(share),
            Self::OfFree(_) => Self::OfFree(share),
        }
    }
}
