//! Exchanges inside a node: the library's of every kind, the engine's own all-reduce in a CUDA graph, and `DeepEP`.
//!
//! `DeepEP` is timed for several numbers of multiprocessors that it may take; its default is taken. Bytes are those of all rows that a rank
//! has, 16 bits wide, as `task::Collective` counts an all-to-all, whatever format travels.

use std::collections::BTreeMap;

use engine::cost::names;
use engine::cost::profile::CollectiveCurve;

use super::{Line, Part, Source};
use crate::fit::curve;
use crate::fit::surfaces::rounded;
use crate::import::{ImportError, Table, curve_through, library_curves};

/// Bytes of an element of a message.
const WIDE: f64 = 2.0;
/// Ranks of a node.
const RANKS: f64 = 8.0;
/// Multiprocessors that `DeepEP` takes by default (deep_ep/buffer.py, `num_sms`).
const DEEP_EP_MULTIPROCESSORS: f64 = 20.0;
/// Kernels of an engine's own all-reduce that run outside of a CUDA graph, which decode does not.
const OUTSIDE_OF_GRAPH: &str = "_eager";

/// All exchanges of an engine.
pub(super) fn all(source: &Source<'_>) -> Result<Part, ImportError> {
    Ok(library(source)?.with(own(source)?).with(deep_ep(source)?))
}

fn library(source: &Source<'_>) -> Result<Part, ImportError> {
    let Some((table, path)) = source.table("comm", "nccl", "nccl_perf.csv.gz")? else { return Ok(Part::default()) };
    Ok(part(&path, "NCCL", "the int8 half of the rows repeats the same bytes", library_curves(&table)?))
}

/// A line for each curve.
fn part(table: &str, kernel: &str, left_out: &str, curves: Vec<CollectiveCurve>) -> Part {
    let line = |curve: &CollectiveCurve| Line {
        table: table.to_owned(),
        name: format!("{} of {}", curve.kind, curve.n_ranks),
        kernel: kernel.to_owned(),
        left_out: left_out.to_owned(),
        residuals: curve.residuals.clone(),
    };
    let mut part = Part { lines: curves.iter().map(line).collect(), ..Part::default() };
    part.profile.collectives = curves;
    part
}

/// Points of curves, by kind and ranks.
type Points = BTreeMap<(String, u64), Vec<(f64, f64)>>;

fn curves(points: Points) -> Vec<CollectiveCurve> {
    let of = |((kind, n_ranks), points): ((String, u64), Vec<(f64, f64)>)| {
        let fitted = curve::fit(&points)?;
        let n_ranks = u32::try_from(n_ranks).ok()?;
        let [bytes, seconds] = [fitted.bytes, fitted.seconds].map(|values| values.into_iter().map(rounded).collect());
        Some(CollectiveCurve {
            kind,
            n_ranks,
            n_nodes: 1,
            port_gb_per_s: None,
            residuals: fitted.residuals,
            bytes,
            seconds,
        })
    };
    points.into_iter().filter_map(of).collect()
}

fn own(source: &Source<'_>) -> Result<Part, ImportError> {
    let file = "custom_allreduce_perf.csv.gz";
    let Some((table, path)) = source.table("comm", source.engine, file)? else { return Ok(Part::default()) };
    let kernel = table.words("kernel_source")?;
    let [ranks, size, latency] = table.columns(["num_gpus", "message_size", "latency"])?;
    let mut points: BTreeMap<u64, BTreeMap<u64, f64>> = BTreeMap::new();
    for row in (0..kernel.len()).filter(|&row| !kernel[row].ends_with(OUTSIDE_OF_GRAPH) && latency[row] > 0.0) {
        points.entry(hw::whole(ranks[row])).or_default().insert(hw::whole(size[row] * WIDE), latency[row] / 1e3);
    }
    let of = |(n_ranks, points)| curve_through(names::CUSTOM_ALL_REDUCE.to_owned(), n_ranks, points);
    let curves = points.into_iter().map(of).collect();
    let is_timed_outside = kernel.iter().any(|kernel| kernel.ends_with(OUTSIDE_OF_GRAPH));
    let left_out = if is_timed_outside { "rows outside of a CUDA graph" } else { "" };
    Ok(part(&path, "in a CUDA graph", left_out, curves))
}

fn deep_ep(source: &Source<'_>) -> Result<Part, ImportError> {
    let files = ["wideep_deepep_normal_perf.csv.gz", "wideep_deepep_ll_perf.csv.gz"];
    let columns = [["dispatch_transmit_us", "combine_transmit_us"], ["dispatch_avg_t_us", "combine_avg_t_us"]];
    let mut all = Part::default();
    for ((file, columns), kinds) in files.into_iter().zip(columns).zip(names::DEEP_EP) {
        let Some((table, path)) = source.table("comm", source.engine, file)? else { continue };
        let mut points = Points::new();
        for (column, kind) in columns.into_iter().zip(kinds) {
            for (n_ranks, point) in exchanged(&table, column)? {
                points.entry((kind.to_owned(), n_ranks)).or_default().push(point);
            }
        }
        all = all.with(part(&path, "DeepEP", "other numbers of multiprocessors than its default", curves(points)));
    }
    Ok(all)
}

/// Ranks, and bytes and seconds.
type Exchange = (u64, (f64, f64));

/// All exchanges of one way.
fn exchanged(table: &Table, column: &str) -> Result<Vec<Exchange>, ImportError> {
    let [nodes, hidden, tokens, top_k, microseconds] =
        table.columns(["node_num", "hidden_size", "num_token", "num_topk", column])?;
    let multiprocessors = table.numbers_if_any("dispatch_sms", DEEP_EP_MULTIPROCESSORS);
    let is_default = |row: &usize| (multiprocessors[*row] - DEEP_EP_MULTIPROCESSORS).abs() < 0.5;
    let of = |row: usize| {
        let bytes = tokens[row] * top_k[row] * hidden[row] * WIDE;
        (hw::whole(nodes[row] * RANKS), (bytes, microseconds[row] / 1e6))
    };
    Ok((0..nodes.len()).filter(is_default).filter(|row| microseconds[*row] > 0.0).map(of).collect())
}
