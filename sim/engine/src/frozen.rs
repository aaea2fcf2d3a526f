//! Weights beside adapters that lie in fewer bits than products read. A kernel widens each matrix before its product, in every pass. Units: bits, kernels.
//!
//! Sources: QLoRA (arXiv:2305.14314, section 3); bitsandbytes-foundation/bitsandbytes (`functional.py`: `quantize_4bit`, `dequantize_4bit`;
//! `autograd/_functions.py`: `MatMul4Bit`, `MatMul8bitLt`). Products of layers alone are packed: embedding, head and norms stay wide.

hw::words! {
    /// How weights beside adapters lie in memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Frozen: word {
        /// In the format of the activations.
        Same = "same",
        /// 4 bits, and a scale of 32 bits for 64 weights.
        Nf4 = "nf4",
        /// 4 bits, a scale of 8 bits for 64 weights, and one of 32 bits for 256 of these.
        Nf4Double = "nf4-double",
        /// The same in torchao's tensors, whose scales are cut with the weights.
        Nf4Torchao = "nf4-torchao",
        /// 8 bits, and a scale of 32 bits for a row, which is below a thousandth.
        Int8 = "int8",
    }
}

impl Frozen {
    /// Whether weights are narrower than products read them.
    pub const fn is_packed(self) -> bool {
        !matches!(self, Self::Same)
    }

    /// Bits of a packed weight without scales. That is what sharded modules cut and gather.
    pub const fn packed_bits(self) -> Option<u64> {
        match self {
            Self::Same => None,
            Self::Nf4 | Self::Nf4Double | Self::Nf4Torchao => Some(4),
            Self::Int8 => Some(8),
        }
    }

    /// Bits of the scales of a weight.
    pub const fn scale_bits(self) -> f64 {
        match self {
            Self::Same | Self::Int8 => 0.0,
            Self::Nf4 => 32.0 / 64.0,
            Self::Nf4Double | Self::Nf4Torchao => 8.0 / 64.0 + 32.0 / (64.0 * 256.0),
        }
    }

    /// Whether sharded modules cut scales too. Those of bitsandbytes are no parameters, so every rank holds all of them (`Params4bit.quant_state`). torchao cuts every
    /// tensor of a weight (pytorch/ao, `_INNER_TENSOR_NAMES_FOR_SHARDING` in torchao/dtypes/nf4tensor.py).
    pub const fn cuts_scales(self) -> bool {
        matches!(self, Self::Nf4Torchao)
    }

    /// Kernels that make a matrix wide. Scales that are narrow themselves are widened, and their mean is added to them. Eight bits are cast, and then scaled.
    pub const fn kernels(self) -> u32 {
        match self {
            Self::Same => 0,
            Self::Nf4 => 1,
            Self::Nf4Double | Self::Nf4Torchao => 3,
            Self::Int8 => 2,
        }
    }

    /// Bytes that these kernels move for so many weights of so many wide bytes each: packed weights with their scales are read, and wide ones written. Eight bits
    /// are written wide by their cast, and read and written again by their scaling (`MatMul8bitLt.backward`: `state.CB.to(…).mul_(…)`).
    pub fn widened_bytes(self, weights: u64, wide: u64) -> u64 {
        let [packed, scales] = self.bytes(hw::real(weights));
        let scaled = if self == Self::Int8 { 2 * wide } else { 0 };
        hw::whole(packed + scales) + weights * (wide + scaled)
    }

    /// Bytes of so many packed weights, and of their scales.
    pub fn bytes(self, weights: f64) -> [f64; 2] {
        [hw::real(self.packed_bits().unwrap_or(0)), self.scale_bits()].map(|bits| weights * bits / 8.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_take_what_the_paper_says() {
        // QLoRA (arXiv:2305.14314), section 3: scales of 64 weights take 0.5 bits of each, and 0.127 where they are quantised themselves. That saves
        // 0.373 bits, about 3 GB of a model with 65 billion parameters.
        let [single, double] = [Frozen::Nf4, Frozen::Nf4Double].map(Frozen::scale_bits);
        assert!((single - 0.5).abs() < 1e-9 && (double - 0.127).abs() < 5e-4, "{single} {double}");
        let [_, more] = Frozen::Nf4.bytes(65e9);
        let [packed, less] = Frozen::Nf4Double.bytes(65e9);
        assert!(((more - less) / 3e9 - 1.0).abs() < 0.02 && (packed / 32.5e9 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn eight_bits_are_widened_by_two_kernels_and_four_by_one() {
        // One byte becomes two, which are read and written again. Half a byte with a sixteenth of one becomes two.
        assert_eq!(Frozen::Int8.widened_bytes(64, 2), 64 * (1 + 2 + 2 + 2));
        assert_eq!(Frozen::Nf4.widened_bytes(64, 2), 32 + 4 + 64 * 2);
        assert_eq!(Frozen::Same.kernels(), 0);
    }
}
