//! Fused kernels of Megatron-Core that a recipe turns off, or never turns on.

hw::words! {
    /// A fused kernel that an option of Megatron-Core stands for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Fusion: word {
        /// Tokens into the order of experts and back (`--moe-permute-fusion`).
        Permutation = "permutation",
        /// The activation function with its bias and the router's weight (`--no-bias-swiglu-fusion`, `--no-bias-gelu-fusion`).
        Activation = "activation",
        /// Rotary positions of queries and keys (`--no-rope-fusion`).
        Positions = "positions",
        /// Gradients of weights, which a product adds to those of earlier micro-batches (`--no-gradient-accumulation-fusion`).
        GradientAccumulation = "gradient-accumulation",
    }
}

impl Fusion {
    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Fused kernels in whose place PyTorch's single ones run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unfused(u8);

impl Unfused {
    /// Everything is fused.
    pub const NONE: Self = Self(0);

    /// One more.
    #[must_use]
    pub const fn with(self, fusion: Fusion) -> Self {
        Self(self.0 | fusion.bit())
    }

    /// Whether single kernels run in its place.
    pub const fn has(self, fusion: Fusion) -> bool {
        self.0 & fusion.bit() != 0
    }

    /// Those of the set, in the order of the words.
    pub fn iter(self) -> impl Iterator<Item = Fusion> {
        Fusion::ALL.into_iter().filter(move |fusion| self.has(*fusion))
    }
}

impl FromIterator<Fusion> for Unfused {
    fn from_iter<I: IntoIterator<Item = Fusion>>(fusions: I) -> Self {
        fusions.into_iter().fold(Self::NONE, Self::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        for fusion in Fusion::ALL {
            assert_eq!(Unfused::NONE.with(fusion).iter().collect::<Vec<_>>(), [fusion]);
        }
        let all: Unfused = Fusion::ALL.into_iter().collect();
        assert_eq!(all.iter().collect::<Vec<_>>(), Fusion::ALL);
        assert_eq!(Unfused::NONE.iter().count(), 0);
    }
}
