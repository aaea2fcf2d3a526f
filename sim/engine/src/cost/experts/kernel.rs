//! Libraries whose kernels compute a layer of experts, as launch scripts ask for them, and which curve of a profile is theirs.

use std::collections::BTreeMap;

use hw::Format;

use super::{ExpertsCurve, Tactic};
use crate::cost::names;

/// Curves of a profile, by their names.
type Curves = BTreeMap<String, ExpertsCurve>;

hw::words! {
    /// A library whose kernel computes a layer of experts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ExpertKernel: word {
        /// Triton: the fused kernel of vLLM and `SGLang`, and that of OpenAI for MXFP4.
        Triton = "triton",
        /// CUTLASS as TensorRT-LLM has it, and `FlashInfer` after it.
        Cutlass = "cutlass",
        /// Kernels that TensorRT-LLM generates for Blackwell, and `FlashInfer` after it.
        Trtllm = "trtllm",
        /// `DeepGEMM`.
        DeepGemm = "deep-gemm",
        /// Marlin: narrow weights beside products in 16 bits.
        Marlin = "marlin",
    }
}

impl ExpertKernel {
    /// Parts of the names that tables give its kernels (ai-dynamo/aiconfigurator, `kernel_source` of collector/*/collect_moe.py).
    const fn in_tables(self) -> &'static [&'static str] {
        match self {
            // `fused_moe` of vLLM is Triton's.
            Self::Triton => &["triton", "vllm_fused_moe"],
            Self::Cutlass => &["flashinfer_cutlass", "flow_cutlass"],
            Self::Trtllm => &["trtllm", "flow_min_latency"],
            Self::DeepGemm => &["deepgemm", "deep_gemm"],
            Self::Marlin => &["marlin"],
        }
    }

    /// The one whose name a table has; `None` of names that say no library.
    pub fn of_table(kernel: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|library| library.in_tables().iter().any(|part| kernel.contains(part)))
    }

    /// The tactic by which curves of a profile have its time for gated experts of a format; `None` where they have none. `elsewhere`: a part of them is on other GPUs.
    pub fn tactic(self, curves: &Curves, format: Format, elsewhere: bool) -> Option<Tactic> {
        let is_own = |tactic: &Tactic| {
            let kernel = curve(curves, format, *tactic, [true, elsewhere]).and_then(|curve| curve.kernel.as_deref());
            kernel.and_then(Self::of_table) == Some(self)
        };
        [Tactic::Tuned, Tactic::Triton, Tactic::Cutlass].into_iter().find(is_own)
    }
}

/// The curve of a format for a tactic, with a gate or without and with a part of the experts elsewhere or with none, or the plainest one.
pub(in crate::cost) fn curve(
    curves: &Curves,
    format: Format,
    tactic: Tactic,
    [gated, elsewhere]: [bool; 2],
) -> Option<&ExpertsCurve> {
    let name = names::of_format("experts", format);
    let of_kernel = tactic.curve().and_then(|kernel| curves.get(&format!("{name}{kernel}")));
    if of_kernel.is_some() {
        return of_kernel;
    }
    let plain = if gated { "" } else { "-plain" };
    let elsewhere = if elsewhere { "-elsewhere" } else { "" };
    let variants = [format!("{plain}{elsewhere}"), plain.to_owned(), elsewhere.to_owned(), String::new()];
    variants.iter().find_map(|variant| curves.get(&format!("{name}{variant}")))
}

#[cfg(test)]
mod tests {
    use super::super::ExpertsLaw;
    use super::*;
    use crate::cost::residuals::Residuals;

    /// Tables of B200 under SGLang have Triton beside TensorRT-LLM's kernels in 16 bits, and those of Hopper under vLLM another library where a part is elsewhere.
    #[test]
    fn a_library_is_the_curve_that_was_measured_of_it() {
        let curve = |kernel: &str| ExpertsCurve {
            residuals: Residuals { n_fit: 1, n_held_out: 1, median_error: 0.0, p90_error: 0.0, low: 1.0, high: 1.0 },
            kernel: Some(kernel.to_owned()),
            law: ExpertsLaw::default(),
            surface: None,
        };
        let curves = Curves::from(
            [
                ("experts", "sglang_flashinfer_trtllm_moe"),
                ("experts-triton", "sglang_fused_moe_triton"),
                ("experts-fp8-block", "vllm_fp8moe_triton_tritonexperts"),
                ("experts-fp8-block-elsewhere", "vllm_fp8moe_flashinfer_cutlass_flashinferexperts"),
            ]
            .map(|(name, kernel)| (name.to_owned(), curve(kernel))),
        );
        let of = |library: ExpertKernel, format, elsewhere| library.tactic(&curves, format, elsewhere);
        assert_eq!(of(ExpertKernel::Trtllm, Format::Bf16, false), Some(Tactic::Tuned));
        assert_eq!(of(ExpertKernel::Triton, Format::Bf16, true), Some(Tactic::Triton));
        assert_eq!(of(ExpertKernel::Triton, Format::Fp8Block, false), Some(Tactic::Tuned));
        assert_eq!(of(ExpertKernel::Triton, Format::Fp8Block, true), None);
        assert_eq!(of(ExpertKernel::Cutlass, Format::Fp8Block, true), Some(Tactic::Tuned));
        assert_eq!(of(ExpertKernel::DeepGemm, Format::Nvfp4, false), None);
    }

    /// Names of `kernel_source` as collectors write them.
    #[test]
    fn tables_say_which_library_they_timed() {
        for (kernel, library) in [
            ("sglang_fused_moe_triton", Some(ExpertKernel::Triton)),
            ("sglang_flashinfer_trtllm_moe", Some(ExpertKernel::Trtllm)),
            ("moe_torch_flow_cutlass", Some(ExpertKernel::Cutlass)),
            ("vllm_fp8moe_flashinfer_cutlass_flashinferexperts", Some(ExpertKernel::Cutlass)),
            ("vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic", Some(ExpertKernel::Triton)),
            ("vllm_compressedtensorswna16marlinmoe_marlin_marlinexperts", Some(ExpertKernel::Marlin)),
            ("deepgemm", Some(ExpertKernel::DeepGemm)),
            ("moe_torch_flow", None),
        ] {
            assert_eq!(ExpertKernel::of_table(kernel), library, "{kernel}");
        }
    }
}
