//! Number formats: of one stored element, and of the operands of a matrix product.
//!
//! A product's format says three things at once, because a kernel is made for all three: how many bits a stored weight takes with its
//! scales, how wide the activations are, and which of the device's peaks multiplies them. Units: bits, bytes.
//! Sources of layouts: OCP Microscaling Formats 1.0 (MX: 32 elements share 8 bits); NVIDIA's NVFP4 (16 elements share 8 bits);
//! DeepSeek-V3, arXiv:2412.19437, section 3.3 (weights in 128 by 128 blocks with a 32-bit scale); AWQ and GPTQ as engines serve them
//! (groups of 128 with a 16-bit scale and a 4-bit zero); moonshotai/Kimi-K2-Thinking, `config.json` (groups of 32 with a 16-bit scale alone).

use serde::{Deserialize, Serialize};

/// Format of one stored element: activations, keys and values, gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    Fp16,
    /// 8-bit float.
    Fp8,
    /// 8-bit integer.
    Int8,
    /// 32-bit float.
    Fp32,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Fp8 | Self::Int8 => 1,
            Self::Bf16 | Self::Fp16 => 2,
            Self::Fp32 => 4,
        }
    }
}

/// Format of the operands of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// 32-bit float.
    Fp32,
    /// bfloat16 inputs, 32-bit accumulation.
    Bf16,
    /// IEEE half inputs, 32-bit accumulation.
    Fp16,
    /// 8-bit float on both sides, one scale per tensor, channel or token.
    Fp8,
    /// 8-bit float on both sides, a scale per 128 by 128 block of weights and per 128 activations.
    Fp8Block,
    /// 8-bit float on both sides, a scale per 32 elements (MXFP8).
    Mxfp8,
    /// 8-bit integer on both sides.
    Int8,
    /// 8-bit weights, 16-bit activations.
    Int8Weights,
    /// 4-bit integer weights in groups of 128, 16-bit activations (AWQ, GPTQ).
    Int4,
    /// The same in groups of 32 without zeros. Kernels take the size of a group as a parameter, so names and curves are those of `Int4`.
    Int4By32,
    /// 4-bit float weights, a scale per 32 elements, 16-bit activations (MXFP4 as gpt-oss ships it).
    Mxfp4,
    /// 4-bit float on both sides, a scale per 16 elements.
    Nvfp4,
}

impl Format {
    /// Every format that files name.
    pub const ALL: [Self; 11] = [
        Self::Bf16,
        Self::Fp16,
        Self::Fp32,
        Self::Fp8,
        Self::Fp8Block,
        Self::Mxfp8,
        Self::Int8,
        Self::Int8Weights,
        Self::Int4,
        Self::Mxfp4,
        Self::Nvfp4,
    ];

    /// Word of scenario and profile files.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Fp8 => "fp8",
            Self::Fp8Block => "fp8-block",
            Self::Mxfp8 => "mxfp8",
            Self::Int8 => "int8",
            Self::Int8Weights => "int8-weights",
            Self::Int4 | Self::Int4By32 => "int4",
            Self::Mxfp4 => "mxfp4",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// The format of a word.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.word() == word)
    }

    /// Bits of a stored weight, with its part of the scales.
    pub const fn weight_bits(self) -> f64 {
        match self {
            Self::Fp32 => 32.0,
            Self::Bf16 | Self::Fp16 => 16.0,
            // Scales of a tensor, a channel or a block of 16,384 are below a thousandth.
            Self::Fp8 | Self::Fp8Block | Self::Int8 | Self::Int8Weights => 8.0,
            Self::Mxfp8 => 8.0 + 8.0 / 32.0,
            Self::Int4 => 4.0 + (16.0 + 4.0) / 128.0,
            Self::Int4By32 => 4.0 + 16.0 / 32.0,
            Self::Mxfp4 => 4.0 + 8.0 / 32.0,
            Self::Nvfp4 => 4.0 + 8.0 / 16.0,
        }
    }

    /// Bits of an activation as the product reads it; results are written in 16 bits (32 where all is).
    pub const fn activation_bits(self) -> f64 {
        match self {
            Self::Fp32 => 32.0,
            Self::Bf16 | Self::Fp16 | Self::Int8Weights | Self::Int4 | Self::Int4By32 | Self::Mxfp4 => 16.0,
            Self::Fp8 | Self::Fp8Block | Self::Int8 => 8.0,
            Self::Mxfp8 => 8.0 + 8.0 / 32.0,
            Self::Nvfp4 => 4.0 + 8.0 / 16.0,
        }
    }

    /// Whether both sides are 16 or more bits wide, so that nothing is quantised.
    pub const fn is_whole(self) -> bool {
        matches!(self, Self::Fp32 | Self::Bf16 | Self::Fp16)
    }

    /// Bytes of an `m × k` by `k × n` product's operands and result.
    pub fn product_bytes(self, m: u64, n: u64, k: u64) -> f64 {
        let [m, n, k] = [m, n, k].map(crate::real);
        let result_bits = if matches!(self, Self::Fp32) { 32.0 } else { 16.0 };
        (m * k * self.activation_bits() + n * k * self.weight_bits() + m * n * result_bits) / 8.0
    }

    /// Bytes of so many weights.
    pub fn weight_bytes(self, parameters: f64) -> f64 {
        parameters * self.weight_bits() / 8.0
    }
}

impl From<Dtype> for Format {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::Bf16 => Self::Bf16,
            Dtype::Fp16 => Self::Fp16,
            Dtype::Fp8 => Self::Fp8,
            Dtype::Int8 => Self::Int8,
            Dtype::Fp32 => Self::Fp32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_a_word_of_its_own() {
        for format in Format::ALL {
            assert_eq!(Format::of_word(format.word()), Some(format));
        }
        assert_eq!(Format::of_word("fp7"), None);
    }

    #[test]
    fn a_checkpoint_in_four_bits_has_the_published_size() {
        // gpt-oss-120b: 114.7e9 parameters of experts in MXFP4 and 2.1e9 in 16 bits; the published checkpoint is 60.8 GiB
        // (model card of openai/gpt-oss-120b, arXiv:2508.10925, table 1).
        let bytes = Format::Mxfp4.weight_bytes(114.71e9) + Format::Bf16.weight_bytes(2.12e9);
        assert!((bytes / crate::GIB - 60.8).abs() < 0.3, "{}", bytes / crate::GIB);
    }

    #[test]
    fn smaller_groups_have_more_scales_and_no_name_of_their_own() {
        // 32 weights of 4 bits and a scale of 16 are 144 bits.
        assert!((Format::Int4By32.weight_bytes(32.0) * 8.0 - 144.0).abs() < 1e-12);
        assert_eq!(Format::of_word(Format::Int4By32.word()), Some(Format::Int4));
    }

    #[test]
    fn a_product_in_sixteen_bits_moves_two_bytes_an_element() {
        assert!((Format::Bf16.product_bytes(3, 5, 7) - 2.0 * (21.0 + 35.0 + 15.0)).abs() < 1e-9);
        assert!((Format::Fp8.product_bytes(3, 5, 7) - (21.0 + 35.0 + 2.0 * 15.0)).abs() < 1e-9);
    }
}
