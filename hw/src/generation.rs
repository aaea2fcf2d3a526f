//! Generations of GPUs: cards of one run the same kernels.

crate::words! {
    /// A name with NVIDIA's compute capability (developer.nvidia.com/cuda-gpus), 10.0 and 10.3 together. In order of age.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    }
}

impl Generation {
    /// Shared memory of a multiprocessor, KiB; `None` for a host (CUDA C++ Programming Guide, technical specifications per compute capability).
    pub const fn shared_kib(self) -> Option<u64> {
        match self {
            Self::Host => None,
            Self::Turing => Some(64),
            Self::Volta => Some(96),
            Self::AmpereOfDesks | Self::Ada | Self::BlackwellOfDesks => Some(100),
            Self::Ampere => Some(164),
            Self::Hopper | Self::Blackwell => Some(228),
        }
    }
}
