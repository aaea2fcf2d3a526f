//! Names of fitted kernels in profile files, and whose curve stands in for one that a profile lacks.
//!
//! A name is a kernel and a format: `gemm-fp8`, `attention-128-fp8`, `decode-mla`, `experts-int4`. Sixteen bits have no suffix.

use hw::{Dtype, Format};

use crate::cost::unusable::Unusable;
use crate::task::PassKind;

/// Name of the all-reduce that serving engines bring along for small messages.
pub const CUSTOM_ALL_REDUCE: &str = "custom_all_reduce";
/// Name of the one that an engine had before its newest tables.
pub const EARLIER_ALL_REDUCE: &str = "earlier_all_reduce";
/// Name of the one that computes the norm behind it as well.
pub const FUSED_ALL_REDUCE: &str = "fused_all_reduce";
/// Name of experts in one launch; axes are rows per expert, experts with rows, and elements of an expert's matrix.
pub const GROUPED_GEMM: &str = "grouped-gemm";
/// Names of experts in one launch as training runs them: forward, gradient of inputs, gradient of weights. Axes as of `GROUPED_GEMM`.
pub const GROUPED_TRAINING: [&str; 3] = ["grouped-gemm-forward", "grouped-gemm-input", "grouped-gemm-weight"];
/// Exchanges of tokens with experts by DeepEP, bytes being those of all rows in 16 bits: for throughput, and for latency.
pub const DEEP_EP: [[&str; 2]; 2] =
    [["deepep_dispatch", "deepep_combine"], ["deepep_low_latency_dispatch", "deepep_low_latency_combine"]];
/// Names of collectives in profile files.
pub const COLLECTIVES: [&str; 13] = [
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "send_recv",
    "ring_shift",
    CUSTOM_ALL_REDUCE,
    EARLIER_ALL_REDUCE,
    FUSED_ALL_REDUCE,
    DEEP_EP[0][0],
    DEEP_EP[0][1],
    DEEP_EP[1][0],
    DEEP_EP[1][1],
];
/// Head widths that tables have.
pub const WIDTHS: [u64; 5] = [64, 128, 192, 256, 512];
/// Formats of products that tables may have, as suffixes.
const FORMATS: [Format; 10] = [
    Format::Fp32,
    Format::Bf16,
    Format::Fp8,
    Format::Fp8Block,
    Format::Mxfp8,
    Format::Int8,
    Format::Int8Weights,
    Format::Int4,
    Format::Mxfp4,
    Format::Nvfp4,
];
/// Width that stands for latent attention.
const LATENT: &str = "mla";
/// The same for attention to tokens that an index picks, with the index.
const SELECTED: &str = "selected";
/// Decoding of a layer with a gated delta net.
pub const DECODE_DELTA: &str = "decode-delta";
/// A chunk of a prompt through a gated delta net, with the convolution in front.
pub const SCAN_DELTA: &str = "scan-delta";

/// Name of experts in one launch in a pass of training; a whole backward is both of its halves.
pub const fn grouped_training(kind: PassKind) -> &'static str {
    match kind {
        PassKind::Forward => GROUPED_TRAINING[0],
        PassKind::Input | PassKind::Backward => GROUPED_TRAINING[1],
        PassKind::Weight => GROUPED_TRAINING[2],
    }
}

/// Formats whose curve stands in for a format's own, nearest first, after that one itself.
pub const fn neighbours(format: Format) -> &'static [Format] {
    use Format::{Bf16, Fp8, Fp8Block, Fp16, Fp32, Int4, Int4By32, Int8, Int8Weights, Mxfp4, Mxfp8, Nvfp4};
    match format {
        Bf16 => &[Bf16, Fp16],
        Fp16 => &[Fp16, Bf16],
        Fp32 => &[Fp32],
        Fp8 => &[Fp8, Fp8Block, Int8, Bf16],
        Fp8Block => &[Fp8Block, Fp8, Bf16],
        Mxfp8 => &[Mxfp8, Fp8Block, Fp8, Bf16],
        Int8 => &[Int8, Fp8, Bf16],
        Int8Weights => &[Int8Weights, Int4, Bf16],
        Int4 => &[Int4, Mxfp4, Int8Weights, Bf16],
        Int4By32 => &[Int4By32, Mxfp4, Int8Weights, Bf16],
        Mxfp4 => &[Mxfp4, Int4, Int8Weights, Bf16],
        Nvfp4 => &[Nvfp4, Fp8Block, Fp8, Bf16],
    }
}

/// Products in 8 bits whose rows fill whole tiles, by a curve of their own.
pub const WHOLE_TILES: &str = "gemm-fp8-whole-tiles";

/// Name of a kernel in a format of products.
pub fn of_format(kernel: &str, format: Format) -> String {
    match format {
        Format::Bf16 | Format::Fp16 => kernel.to_owned(),
        other => format!("{kernel}-{}", other.word()),
    }
}

/// The format of products of such a name.
pub fn product_format(name: &str) -> Option<Format> {
    let format = FORMATS.iter().copied().find(|format| of_format("gemm", *format) == name);
    format.or((name == WHOLE_TILES).then_some(Format::Fp8))
}

/// Suffix of a format of keys and values.
const fn suffix(kv: Dtype) -> &'static str {
    match kv {
        Dtype::Fp8 => "-fp8",
        Dtype::Int8 => "-int8",
        Dtype::Bf16 | Dtype::Fp16 | Dtype::Fp32 => "",
    }
}

/// Name of attention by head width (none where it is latent) and format of keys and values.
pub fn of_width(kernel: &str, width: Option<u64>, kv: Dtype) -> String {
    let width = width.map_or_else(|| LATENT.to_owned(), |width| width.to_string());
    format!("{kernel}-{width}{}", suffix(kv))
}

/// Name of attention to tokens that an index picks, by format of keys and values.
pub fn of_selected(kernel: &str, kv: Dtype) -> String {
    format!("{kernel}-{SELECTED}{}", suffix(kv))
}

/// The same with those that may stand in: a format, then sixteen bits, then eight.
pub fn nearest_selected(kernel: &str, kv: Dtype) -> [String; 3] {
    [kv, Dtype::Bf16, Dtype::Fp8].map(|kv| of_selected(kernel, kv))
}

/// Names that may stand for a kernel of a head width and a format of keys and values: the same format of the nearest width below, then of
/// the nearest above, then the same of sixteen bits.
pub fn nearest(kernel: &str, head_dim: u64, kv: Dtype) -> Vec<String> {
    let below = WIDTHS.into_iter().rev().filter(|width| *width <= head_dim);
    let widths: Vec<u64> = below.chain(WIDTHS.into_iter().filter(|width| *width > head_dim)).collect();
    let formats = if suffix(kv).is_empty() { vec![Dtype::Bf16] } else { vec![kv, Dtype::Fp8, Dtype::Bf16] };
    let mut names = Vec::with_capacity(formats.len() * widths.len());
    for kv in formats {
        names.extend(widths.iter().map(|width| of_width(kernel, Some(*width), kv)));
    }
    names
}

fn of_widths(kernel: &str) -> impl Iterator<Item = String> + '_ {
    let widths = WIDTHS.into_iter().map(Some).chain([None]);
    widths.flat_map(move |width| [Dtype::Bf16, Dtype::Fp8, Dtype::Int8].map(|kv| of_width(kernel, width, kv)))
}

/// Names of kernels with a surface.
pub fn operators() -> Vec<String> {
    let products = FORMATS.iter().map(|format| of_format("gemm", *format));
    let grouped = [GROUPED_GEMM, GROUPED_TRAINING[0], GROUPED_TRAINING[1], GROUPED_TRAINING[2]].map(str::to_owned);
    let mixed = of_selections("attention").chain([SCAN_DELTA, WHOLE_TILES].map(str::to_owned));
    let attention = ["attention", "attention-backward"].into_iter().flat_map(of_widths);
    products.chain(attention).chain(grouped).chain(mixed).collect()
}

/// Names of decode attention.
pub fn decode() -> Vec<String> {
    of_widths("decode").chain(of_selections("decode")).chain([DECODE_DELTA.to_owned()]).collect()
}

fn of_selections(kernel: &str) -> impl Iterator<Item = String> + '_ {
    [Dtype::Bf16, Dtype::Fp8].into_iter().map(move |kv| of_selected(kernel, kv))
}

/// Variants of fused experts: without a gate, and where a part of the experts is on other GPUs.
pub const EXPERT_VARIANTS: [&str; 7] =
    ["", "-plain", "-elsewhere", "-plain-elsewhere", TRITON_EXPERTS, CUTLASS_EXPERTS, DEFAULT_TILES];
/// Triton's kernel of fused experts, where tables of the same engine have another library's for most models.
pub const TRITON_EXPERTS: &str = "-triton";
/// CUTLASS's, where tables of the same engine have a faster one as well.
pub const CUTLASS_EXPERTS: &str = "-cutlass";
/// Triton's with the tiles that vLLM took up to 0.16 for shapes that nobody had tuned.
pub const DEFAULT_TILES: &str = "-default-tiles";

/// Names of fused experts.
pub fn experts() -> Vec<String> {
    let formats = FORMATS.iter().map(|format| of_format("experts", *format));
    formats.flat_map(|name| EXPERT_VARIANTS.map(|variant| format!("{name}{variant}"))).collect()
}

/// Whether a name is one of a list.
///
/// # Errors
/// The list.
pub fn known(names: &[String], name: &str) -> Result<(), Unusable> {
    if names.iter().any(|known| known == name) {
        return Ok(());
    }
    Err(Unusable::NoKernel { allowed: names.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_width_of_the_same_format_comes_before_another_format() {
        let names = nearest("attention", 96, Dtype::Fp8);
        assert_eq!(names[..2], ["attention-64-fp8", "attention-128-fp8"]);
        assert_eq!(names.last().map(String::as_str), Some("attention-512"));
        assert_eq!(nearest("attention", 576, Dtype::Bf16)[0], "attention-512");
        assert!(nearest("decode", 128, Dtype::Bf16).iter().all(|name| !name.ends_with("fp8")));
    }

    #[test]
    fn every_format_has_a_neighbour_and_starts_with_itself() {
        for format in Format::ALL {
            assert_eq!(neighbours(format)[0], format);
        }
        assert_eq!(of_format("gemm", Format::Fp8Block), "gemm-fp8-block");
        assert!(known(&operators(), "gemm-fp8-block").is_ok() && known(&experts(), "experts-int4-elsewhere").is_ok());
    }
}
