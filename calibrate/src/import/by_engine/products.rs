//! Matrix products by format, each a correction of the datasheet roofline over m, n and k.
//!
//! vLLM's block-scaled products are timed launch by launch from the host, all others in a CUDA graph (`use_cuda_graph=gemm_type != "fp8_block"`
//! in collector/vllm/collect_gemm.py of the tables' repository): up to 1,500 rows they show 60 to 90 µs of the host and nothing of
//! the device. Engines decode in graphs, so rows that the host hides are left out. In their place stand those of SGLang's table, which times
//! the same library (`DeepGEMM`) in a graph. TensorRT-LLM's fp8 products are timed with the quantisation of their input as a kernel of its own: 6 µs
//! more than SGLang's at every small shape. Engines fuse it with the norm or the activation function in front, so SGLang's rows stand there too.

use std::collections::BTreeMap;

use engine::cost::names;
use hw::Format;

use super::{Line, Part, Source};
use crate::fit::{Row, surfaces};
use crate::import::{ImportError, Table, whole};

/// Formats of the tables and ours.
const FORMATS: [(&str, Format); 6] = [
    ("bfloat16", Format::Bf16),
    ("fp8", Format::Fp8),
    ("fp8_block", Format::Fp8Block),
    ("int8_wo", Format::Int8Weights),
    ("int4_wo", Format::Int4),
    ("sq", Format::Int8),
];
const M_KNOTS: [f64; 15] =
    [1.0, 16.0, 32.0, 64.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0];
const NK_KNOTS: [f64; 11] = [32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 65_536.0];
/// Start-up of a product, seconds; the surface corrects what it leaves.
const START_S: f64 = 2e-6;
/// Products of an engine that are timed with something besides, and with what.
const TIMED_WITH: [(&str, Format, &str); 2] = [
    ("vllm", Format::Fp8Block, "its own rows time the host, launch by launch"),
    ("trtllm", Format::Fp8, "its own rows time the quantisation of the input as a kernel of its own"),
];
/// The engine that stands in for them.
const STAND_IN: &str = "sglang";

/// All products of an engine.
pub(super) fn all(source: &Source<'_>) -> Result<Part, ImportError> {
    let mut part = Part::default();
    let Some((table, path)) = source.table("gemm", source.engine, "gemm_perf.csv.gz")? else { return Ok(part) };
    for (word, format) in FORMATS {
        let besides = TIMED_WITH.iter().find(|(engine, of, _)| *engine == source.engine && *of == format);
        let other = if besides.is_some() { source.table("gemm", STAND_IN, "gemm_perf.csv.gz")? } else { None };
        let (table, path) = other.as_ref().map_or((&table, &path), |(table, path)| (table, path));
        let (rows, kernel) = rows(source, table, (word, format))?;
        let names = ["m", "n", "k"];
        let Some(mut operator) = surfaces::operator(&rows, names, [&M_KNOTS, &NK_KNOTS, &NK_KNOTS], START_S) else {
            continue;
        };
        operator.kernel = Some(kernel.clone());
        let name = names::of_format("gemm", format).expect("a format of products");
        let left_out = besides.map_or("", |(.., why)| why).to_owned();
        let residuals = operator.residuals.clone();
        part.lines.push(Line { table: path.clone(), name: name.clone(), kernel, left_out, residuals });
        part.profile.operators.push((name, operator));
    }
    Ok(part)
}

/// Rows of a format, and the kernels that they are of.
fn rows(source: &Source<'_>, table: &Table, (word, format): (&str, Format)) -> Result<(Vec<Row>, String), ImportError> {
    let (m, n, k) = (table.numbers("m")?, table.numbers("n")?, table.numbers("k")?);
    let (formats, latency) = (table.words("gemm_dtype")?, table.numbers("latency")?);
    let kernels = table.words("kernel_source")?;
    let mut rows = Vec::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in (0..m.len()).filter(|&row| formats[row] == word && latency[row] > 0.0) {
        *counts.entry(&kernels[row]).or_default() += 1;
        rows.push(Row {
            base_s: source.roofline.gemm_base(whole(m[row]), whole(n[row]), whole(k[row]), format).get(),
            point: vec![m[row], n[row], k[row]],
            measured_s: latency[row] / 1e3,
            shape: whole(n[row]) * 1_000_003 + whole(k[row]),
        });
    }
    Ok((rows, joined(&counts)))
}

/// Names of kernels, the most frequent first, without folders.
pub(super) fn joined(counts: &BTreeMap<&str, usize>) -> String {
    let mut names: Vec<(&&str, &usize)> = counts.iter().collect();
    names.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let short = |(name, _): (&&str, &usize)| name.rsplit('/').next().unwrap_or(name).to_owned();
    names.into_iter().map(short).collect::<Vec<String>>().join(", ")
}

/// The most frequent kernel.
pub(super) fn most(counts: &BTreeMap<&str, usize>) -> String {
    joined(counts).split(", ").next().unwrap_or_default().to_owned()
}
