//! Generations of GPUs: cards of one run the same kernels.

crate::words! {
    /// A name with NVIDIA's compute capability (developer.nvidia.com/cuda-gpus), 10.0 and 10.3 together, or with AMD's architecture and the target of its compilers
    /// (rocm.docs.amd.com, GPU specifications). Each maker's are in order of age; those of two makers are in none (`follows`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Generation: word {
        /// A host processor.
        Host = "none",
        /// V100.
        Volta = "Volta 7.0",
        /// T4.
        Turing = "Turing 7.5",
        /// A100 and A30, of data centres.
        Ampere = "Ampere 8.0",
        /// A10, A40 and cards of desks.
        AmpereOfDesks = "Ampere 8.6",
        /// L4, L40S and cards of desks.
        Ada = "Ada 8.9",
        /// H100 and its kin.
        Hopper = "Hopper 9.0",
        /// B200 and its kin, of data centres.
        Blackwell = "Blackwell 10",
        /// RTX 5090 and RTX PRO 6000.
        BlackwellOfDesks = "Blackwell 12",
        /// MI300X and MI325X, of data centres.
        Cdna3 = "CDNA 3 gfx942",
        /// MI355X, of data centres.
        Cdna4 = "CDNA 4 gfx950",
    }
}

/// Whose cards they are: kernels, compilers and libraries are a maker's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// CUDA.
    Nvidia,
    /// ROCm.
    Amd,
    /// A host processor.
    Host,
}

impl Generation {
    /// Whose it is.
    pub const fn maker(self) -> Maker {
        match self {
            Self::Host => Maker::Host,
            Self::Volta | Self::Turing | Self::Ampere | Self::AmpereOfDesks | Self::Ada => Maker::Nvidia,
            Self::Hopper | Self::Blackwell | Self::BlackwellOfDesks => Maker::Nvidia,
            Self::Cdna3 | Self::Cdna4 => Maker::Amd,
        }
    }

    /// Whether it is another one of the same maker or came after it.
    pub fn follows(self, other: Self) -> bool {
        self.maker() == other.maker() && self as u8 >= other as u8
    }

    /// Shared memory of a multiprocessor, KiB; `None` for a host (CUDA C++ Programming Guide, technical specifications per compute capability; AMD's GPU
    /// specifications, where it is LDS).
    pub const fn shared_kib(self) -> Option<u64> {
        match self {
            Self::Host => None,
            Self::Turing | Self::Cdna3 => Some(64),
            Self::Volta => Some(96),
            Self::AmpereOfDesks | Self::Ada | Self::BlackwellOfDesks => Some(100),
            Self::Cdna4 => Some(160),
            Self::Ampere => Some(164),
            Self::Hopper | Self::Blackwell => Some(228),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Generation::{Ampere, Blackwell, Cdna3, Cdna4, Host, Turing, Volta};

    #[test]
    fn generations_of_one_maker_follow_each_other_and_those_of_two_never_do() {
        assert!(Cdna4.follows(Cdna3) && Cdna3.follows(Cdna3) && !Cdna3.follows(Cdna4));
        assert!(Blackwell.follows(Volta) && !Volta.follows(Turing));
        for (one, other) in [(Cdna4, Blackwell), (Cdna3, Ampere), (Cdna3, Host)] {
            assert!(!one.follows(other) && !other.follows(one), "{one:?} and {other:?}");
        }
    }
}
