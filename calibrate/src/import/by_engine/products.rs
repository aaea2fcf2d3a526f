//! Matrix products by format, each a correction of the datasheet roofline over m, n and k.
//!
//! Tables whose rows are not what an engine runs have others in their place:
//!
//! - **Block-scaled products of vLLM** are timed launch by launch from the host, all others in a CUDA graph (`use_cuda_graph=gemm_type != "fp8_block"`
//!   in collector/vllm/collect_gemm.py of the tables' repository). Up to 1,500 rows they show 60 to 170 µs of the host and nothing of the device.
//!   Engines decode in graphs. So an older table of vLLM stands in that was timed in a graph (0.19 on B200), or else that of another engine with the
//!   same library (`DeepGEMM`).
//! - **Block-scaled products of SGLang on Blackwell.** `DeepGEMM` wants scales there as packed powers of two. SGLang's table hands over those of the
//!   weights in 32 bits (`torch.float32` for `scale_b` in collector/sglang/collect_gemm.py). So every call packs them again, which takes 8 µs.
//!   Engines do it once, when they load (SGLang `requant_weight_ue8m0_inplace`, vLLM `deepgemm_post_process_fp8_weight_block`). So does
//!   TensorRT-LLM's table (`post_load_weights` in collector/trtllm/collect_gemm.py), whose rows stand in.
//! - **fp8 products of TensorRT-LLM** are timed with the quantisation of their input as a kernel of its own. Engines fuse it with the norm or the
//!   activation function in front, so it is taken out. Its launch is the median of what these rows take above SGLang's where both do nothing
//!   but launch (7.5 µs), its traffic is three bytes per element of the input.
//! - **fp8 products of CUTLASS** under vLLM and SGLang take up to twice as long for a row more than fills tiles of 256. Tables have both. One curve over them is a
//!   fifth to a half too high for whole tiles of 512 to 2,048 rows, which budgets of tokens are. So whole tiles have a curve of their own besides.
//! - **NVFP4 products of TensorRT-LLM** are timed with the kernel that comes first: nothing tunes it (no `autotune` in collector/trtllm/collect_gemm.py). Few
//!   rows read 2 TB/s of weights on B200, where other engines read 4. A server tries its kernels when it starts (`enable_autotuner`). So a shape has the
//!   time of the faster one of its own kernel and that of SGLang, which has the same library by way of FlashInfer (CUTLASS, up to 0.5.10).
//! - **NVFP4 products of vLLM** are those of its oldest table (0.19 on B200), by CUTLASS in FlashInfer. The published runs are of 0.19 and before. Newer versions have
//!   kernels written in `CuteDSL`, which take half as long for some shapes of few rows.

use std::collections::BTreeMap;

use engine::cost::names;
use hw::{Format, quantile};

use super::{Part, Source};
use crate::fit::{Row, surfaces};
use crate::import::{ImportError, Table};

/// Formats of the tables and ours.
const FORMATS: [(&str, Format); 7] = [
    ("bfloat16", Format::Bf16),
    ("fp8", Format::Fp8),
    ("fp8_block", Format::Fp8Block),
    ("int8_wo", Format::Int8Weights),
    ("int4_wo", Format::Int4),
    ("sq", Format::Int8),
    ("nvfp4", Format::Nvfp4),
];
/// Kernels of 8-bit products fill up tiles of 64 and 128 rows. So a knot lies on each side of the edge of a tile, up to where tiles are many.
const M_KNOTS: [f64; 18] = [
    1.0, 16.0, 32.0, 64.0, 65.0, 96.0, 128.0, 129.0, 192.0, 256.0, 257.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0,
    16_384.0, 32_768.0,
];
/// Rows of tiles beyond few rows, and knots of the curve of whole ones.
const TILE_ROWS: f64 = 256.0;
const WHOLE_KNOTS: [f64; 7] = [512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0];
/// How many times as long as whole tiles a row more takes at the median, from which on whole ones have a curve.
const RAGGED_OVER_WHOLE: f64 = 1.05;
const NK_KNOTS: [f64; 11] = [32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 65_536.0];
/// Start-up of a product, seconds; the surface corrects what it leaves.
const START_S: f64 = 2e-6;
/// The table of products.
const FILE: &str = "gemm_perf.csv.gz";
/// A table that stands in for another, its path, and why.
type StandIn = ((Table, String), &'static str);
/// Products in a graph start in 3 to 15 µs, those that a host launches in 60 and more.
const LAUNCHED_BY_HOST_S: f64 = 30e-6;
/// Why other rows stand in for block-scaled products of vLLM.
const TIMES_THE_HOST: &str = "its own rows time the host, launch by launch";
/// Why rows of TensorRT-LLM stand in for those of SGLang on Blackwell.
const PACKS_SCALES: &str = "its own rows pack the scales of the weights at every call";
/// What is taken out of the fp8 products of TensorRT-LLM.
const WITHOUT_QUANTISATION: &str =
    "without the quantisation of the input, which its own rows time as a kernel of its own";
/// What is done to NVFP4 products of TensorRT-LLM.
const TUNED: &str =
    "the faster one of its own and SGLang's kernel of the same library for a shape; its own rows are not tuned";
/// Why an older table of vLLM stands in for its NVFP4 products.
const OF_PUBLISHED_RUNS: &str = "its newest rows are of a kernel that the published runs had not";
/// Most rows and most elements of a row with which a product does nothing but launch.
const LAUNCH_ALONE: [f64; 2] = [16.0, 1024.0];
/// Bytes that the quantisation of an element reads and writes.
const QUANTISED_BYTES: f64 = 3.0;
/// Least time of a product, seconds.
const PRODUCT_S_MIN: f64 = 1e-6;

/// All products of an engine.
pub(super) fn all(source: &Source<'_>) -> Result<Part, ImportError> {
    let mut part = Part::default();
    let Some((table, path)) = source.table("gemm", source.engine, FILE)? else { return Ok(part) };
    for (word, format) in FORMATS {
        let quantises = source.engine == "trtllm" && format == Format::Fp8;
        let stand_in = match format {
            Format::Fp8Block => stand_in(source, &table, word)?,
            Format::Nvfp4 if source.engine == "vllm" => oldest(source)?.filter(|(older, _)| older.1 != path),
            _ => None,
        };
        let other = if quantises { source.table("gemm", "sglang", FILE)? } else { None };
        let (table, path, why) =
            stand_in.as_ref().map_or((&table, &path, ""), |((table, path), why)| (table, path, *why));
        let (mut rows, kernel) = rows(source, table, (word, format))?;
        if let Some((other, _)) = other.as_ref().filter(|_| quantises) {
            let bandwidth = source.roofline.cluster().gpu.memory_bandwidth.get();
            without_quantisation(&mut rows, &self::rows(source, other, (word, format))?.0, bandwidth);
        }
        let is_tuned = source.engine == "trtllm" && format == Format::Nvfp4;
        if is_tuned {
            tune(&mut rows, &of_cutlass(source, (word, format))?);
        }
        let names = ["m", "n", "k"];
        let Some(mut operator) = surfaces::operator(&rows, names, [&M_KNOTS, &NK_KNOTS, &NK_KNOTS], START_S) else {
            continue;
        };
        operator.kernel = Some(kernel);
        let name = names::of_format("gemm", format);
        let left_out = match (quantises, is_tuned) {
            (true, _) => WITHOUT_QUANTISATION,
            (_, true) => TUNED,
            _ => why,
        };
        part.add(path, name, left_out, operator);
        if format == Format::Fp8
            && ragged_over_whole(&rows) > RAGGED_OVER_WHOLE
            && let Some(whole) =
                surfaces::operator(&whole_tiles(&rows), names, [&WHOLE_KNOTS, &NK_KNOTS, &NK_KNOTS], START_S)
        {
            part.add(path, names::WHOLE_TILES.to_owned(), "rows that fill no tile", whole);
        }
    }
    Ok(part)
}

/// The table that stands in for an engine's newest one of block-scaled products, and why; `None` where its own rows are right.
fn stand_in(source: &Source<'_>, own: &Table, word: &str) -> Result<Option<StandIn>, ImportError> {
    // Cards with products in 4 bits are Blackwell and later.
    let packs = source.cluster().gpu.peak_fp4.is_some();
    let other = if packs { "trtllm" } else { "sglang" };
    let why = match source.engine {
        "vllm" if times_the_host(&rows(source, own, (word, Format::Fp8Block))?.0) => TIMES_THE_HOST,
        "sglang" if packs => PACKS_SCALES,
        _ => return Ok(None),
    };
    let older = if source.engine == "vllm" { older_in_a_graph(source, word)? } else { None };
    if let Some(found) = older {
        return Ok(Some((found, why)));
    }
    Ok(source.table("gemm", other, FILE)?.map(|found| (found, why)))
}

/// An engine's newest table but one, or but more, that times products in a graph.
fn older_in_a_graph(source: &Source<'_>, word: &str) -> Result<Option<(Table, String)>, ImportError> {
    for older in source.versions("gemm", source.engine, FILE).skip(1) {
        let found = older?;
        let (rows, _) = rows(source, &found.0, (word, Format::Fp8Block))?;
        if !rows.is_empty() && !times_the_host(&rows) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// An engine's oldest table.
fn oldest(source: &Source<'_>) -> Result<Option<StandIn>, ImportError> {
    let last = source.versions("gemm", source.engine, FILE).last().transpose()?;
    Ok(last.map(|found| (found, OF_PUBLISHED_RUNS)))
}

/// Whether products that do nothing but launch take as long as a host needs to launch them.
fn times_the_host(rows: &[Row]) -> bool {
    let alone = rows.iter().filter(|row| row.point[0] <= LAUNCH_ALONE[0] && row.point[2] <= LAUNCH_ALONE[1]);
    let launch: Vec<f64> = alone.map(|row| row.measured_s).collect();
    quantile::median(&launch) > LAUNCHED_BY_HOST_S
}

/// Rows of a format, and the kernels that they are of.
fn rows(source: &Source<'_>, table: &Table, (word, format): (&str, Format)) -> Result<(Vec<Row>, String), ImportError> {
    let [m, n, k, latency] = table.columns(["m", "n", "k", "latency"])?;
    let (formats, kernels) = (table.words("gemm_dtype")?, table.words("kernel_source")?);
    let mut rows = Vec::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in (0..m.len()).filter(|&row| formats[row] == word && latency[row] > 0.0) {
        *counts.entry(&kernels[row]).or_default() += 1;
        rows.push(Row {
            base_s: source.roofline.gemm_base(hw::whole(m[row]), hw::whole(n[row]), hw::whole(k[row]), format).get(),
            point: vec![m[row], n[row], k[row]],
            measured_s: latency[row] / 1e3,
            shape: hw::whole(n[row]) * 1_000_003 + hw::whole(k[row]),
        });
    }
    Ok((rows, joined(&counts)))
}

/// Those that fill whole tiles.
fn whole_tiles(rows: &[Row]) -> Vec<Row> {
    rows.iter().filter(|row| row.point[0] > TILE_ROWS && row.point[0] % TILE_ROWS == 0.0).cloned().collect()
}

/// How many times as long as whole tiles a row more takes at the median; 1 where no table has both.
fn ragged_over_whole(rows: &[Row]) -> f64 {
    let times = by_shape(rows);
    let more = |row: &Row| {
        Some(times.get(&[row.point[0] + 1.0, row.point[1], row.point[2]].map(f64::to_bits))? / row.measured_s)
    };
    let ratios: Vec<f64> = whole_tiles(rows).iter().filter_map(more).collect();
    if ratios.is_empty() { 1.0 } else { quantile::median(&ratios) }
}

/// Rows of SGLang's newest table whose 4-bit products are those of CUTLASS in FlashInfer: what came later is written in `CuteDSL`.
fn of_cutlass(source: &Source<'_>, (word, format): (&str, Format)) -> Result<Vec<Row>, ImportError> {
    for found in source.versions("gemm", "sglang", FILE) {
        let (rows, kernel) = rows(source, &found?.0, (word, format))?;
        if !rows.is_empty() && !kernel.contains("cutedsl") {
            return Ok(rows);
        }
    }
    Ok(Vec::new())
}

/// Gives shapes the time of another kernel that is faster.
fn tune(rows: &mut [Row], others: &[Row]) {
    let others = by_shape(others);
    for row in rows {
        row.measured_s = others.get(&shape(row)).map_or(row.measured_s, |other| row.measured_s.min(*other));
    }
}

/// Rows, columns and inner dimension of a product, as a key.
fn shape(row: &Row) -> [u64; 3] {
    [row.point[0], row.point[1], row.point[2]].map(f64::to_bits)
}

/// Times by shape.
fn by_shape(rows: &[Row]) -> BTreeMap<[u64; 3], f64> {
    rows.iter().map(|row| (shape(row), row.measured_s)).collect()
}

/// Takes the quantisation of the input out of products: its launch, by the same shapes of another engine, and its traffic.
fn without_quantisation(rows: &mut [Row], others: &[Row], bandwidth: f64) {
    let others = by_shape(others);
    let launches = |row: &&Row| row.point[0] <= LAUNCH_ALONE[0] && row.point[2] <= LAUNCH_ALONE[1];
    let above = |row: &Row| Some(row.measured_s - others.get(&shape(row))?);
    let launch: Vec<f64> = rows.iter().filter(launches).filter_map(above).collect();
    let launch = quantile::median(&launch).max(0.0);
    for row in rows {
        let traffic = QUANTISED_BYTES * row.point[0] * row.point[2] / bandwidth;
        row.measured_s = (row.measured_s - launch - traffic).max(PRODUCT_S_MIN);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn row(m: f64, k: f64, measured_us: f64) -> Row {
        Row { base_s: 1e-6, point: vec![m, 4096.0, k], measured_s: measured_us * 1e-6, shape: 0 }
    }

    #[test]
    fn rows_that_a_host_launches_are_told_from_those_of_a_graph() {
        let of = |us: f64| times_the_host(&[row(1.0, 512.0, us), row(16.0, 1024.0, us), row(8192.0, 8192.0, 900.0)]);
        assert!(of(170.0) && of(60.0) && !of(14.0));
        assert!(!times_the_host(&[row(8192.0, 8192.0, 900.0)]), "no row does nothing but launch");
    }

    #[test]
    fn a_tuned_product_takes_the_faster_kernel_of_each_shape_and_keeps_shapes_that_others_lack() {
        let mut own = vec![row(4.0, 8192.0, 22.0), row(4.0, 1024.0, 6.0), row(64.0, 8192.0, 23.0)];
        tune(&mut own, &[row(4.0, 8192.0, 15.0), row(4.0, 1024.0, 7.0), row(16.0, 8192.0, 1.0)]);
        let us: Vec<f64> = own.iter().map(|row| (row.measured_s * 1e6).round()).collect();
        assert_eq!(us, [15.0, 6.0, 23.0]);
    }

    #[test]
    fn the_launch_of_the_quantisation_is_seen_where_both_launch_alone_and_its_traffic_follows_the_input() {
        let others = [row(1.0, 512.0, 6.0), row(8.0, 1024.0, 6.5), row(16.0, 256.0, 6.0), row(1000.0, 4000.0, 70.0)];
        let mut own =
            [row(1.0, 512.0, 13.5), row(8.0, 1024.0, 14.0), row(16.0, 256.0, 14.0), row(1000.0, 4000.0, 100.0)];
        without_quantisation(&mut own, &others, 3e12);
        // The median of 7.5, 7.5 and 8 µs; four million elements of three bytes at 3 TB/s are 4 µs.
        assert!((own[3].measured_s - 88.5e-6).abs() < 1e-12, "{}", own[3].measured_s);
    }
}
