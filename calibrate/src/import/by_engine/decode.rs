//! Decode attention by head width and format of keys and values.
//!
//! Launches of one shape and number of sequences give a start and a time per byte; surfaces over all shapes go through both. A layer with
//! a window attends to no more keys than the window has, and a kernel reads some more, because its tiles do not begin where the window does:
//! how many is tried out.
//!
//! The tables launch one kernel again and again over the same keys and values. What fits in the last-level cache is then read from there, at
//! up to twice the bandwidth of the memory, while in an engine the weights of a layer pass between two launches. Rows whose keys and values
//! fit there, and are more than a start, are left out.

use std::collections::BTreeMap;

use engine::cost::decode::{AXES, DecodeShape, DecodeSurfaces, Reads, ShapedDecode};
use engine::cost::names;
use hw::{BytesPerSecond, Dtype};

use super::products::most;
use super::{Part, Source};
use crate::fit::decode::{Affine, START_MIN_S, affine};
use crate::fit::surfaces::{self, Point};
use crate::import::{ImportError, Table};

/// Last-level cache of the largest of the cards whose tables there are (H100 and H200: 50 MB; A100: 40 MB; datasheets of NVIDIA).
const CACHE_BYTES: f64 = 50e6;
/// The same of Blackwell (126 MB; Blackwell tuning guide of NVIDIA).
const CACHE_BYTES_OF_BLACKWELL: f64 = 126e6;
/// Shares of it between which rows are left out: above, what overlaps is small; below, the read is a small part of the time.
const CACHED: [f64; 2] = [1.0 / 16.0, 1.3];
/// Fewest keys of a row: no engine decodes with fewer for long, and the line should be right where they do.
const KEYS_MIN: f64 = 64.0;
/// Knots of the axes.
const SEQUENCE_KNOTS: [f64; 9] = [1.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16_384.0];
const GROUP_KNOTS: [f64; 5] = [1.0, 4.0, 8.0, 16.0, 64.0];
const HEADS_KNOTS: [f64; 3] = [1.0, 8.0, 64.0];
/// The same for few shapes, which cannot tell more apart.
const GROUP_KNOTS_FEW: [f64; 3] = [1.0, 8.0, 64.0];
const HEADS_KNOTS_FEW: [f64; 1] = [1.0];
/// Query heads of latent attention, which all share one key.
pub(super) const LATENT_KNOTS: [&[f64]; 3] = [&SEQUENCE_KNOTS, &[1.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0], &[1.0]];
/// The same where an index picks tokens.
const SELECTED_KNOTS: [&[f64]; 3] = [&[1.0, 16.0, 64.0, 256.0, 1024.0], &[8.0, 16.0, 32.0, 128.0], &[1.0]];
/// Shapes below which there are few.
const SHAPES_FEW: usize = 12;
/// Share of the error that a start or a read must have in a shape to be told.
const TOLD: f64 = 0.3;

/// A launch over sequences of one length.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Launch {
    /// Of one layer on one GPU.
    pub shape: DecodeShape,
    /// Sequences.
    pub n: u64,
    /// Keys of each.
    pub keys: f64,
    /// Most keys that each attends to; 0 is no window.
    pub window: f64,
    /// Seconds of what was measured beside attention.
    pub beside_s: f64,
    /// Measured seconds of both.
    pub seconds: f64,
}

/// Keys beyond a window that are tried out: none, and tiles of kernels.
const EDGES: [f64; 6] = [0.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

impl Launch {
    /// Keys of all sequences, with those that a kernel reads beyond a window.
    fn read(&self, edge: f64) -> f64 {
        let beyond = self.window > 0.0 && self.keys > self.window;
        hw::real(self.n) * if beyond { self.keys.min(self.window + edge) } else { self.keys }
    }

    fn bytes(&self, edge: f64) -> f64 {
        self.read(edge) * hw::real(self.shape.token_bytes())
    }

    /// Measured over predicted.
    fn ratio(&self, law: &DecodeSurfaces, bandwidth: BytesPerSecond) -> f64 {
        let time = ShapedDecode::of_surfaces(law, self.shape, bandwidth).alone(self.n);
        self.seconds / (self.beside_s + time.fixed_s + time.per_key_s * self.read(law.window_edge))
    }
}

/// All decode attention of an engine but for latent attention.
pub(super) fn all(source: &Source<'_>) -> Result<Part, ImportError> {
    let file = "generation_attention_perf.csv.gz";
    let Some((table, path)) = source.table("attention", source.engine, file)? else { return Ok(Part::default()) };
    let mut part = Part::default();
    for width in names::WIDTHS {
        for kv in [Dtype::Bf16, Dtype::Fp8] {
            let (launches, kernel) = launches(&table, width, kv)?;
            let name = names::of_width("decode", Some(width), kv);
            part = part.with(fitted(source, &launches, name, (path.clone(), kernel)));
        }
    }
    Ok(part)
}

fn launches(table: &Table, width: u64, kv: Dtype) -> Result<(Vec<Launch>, String), ImportError> {
    let [batch, heads, kv_heads, widths, keys, latency] =
        table.columns(["batch_size", "num_heads", "num_key_value_heads", "head_dim", "step", "latency"])?;
    let (cache, kernels) = (table.words("kv_cache_dtype")?, table.words("kernel_source")?);
    let window = table.windows();
    let word = super::word(kv);
    let mut found = Vec::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let of = |row: &usize| hw::whole(widths[*row]) == width && cache[*row] == word && latency[*row] > 0.0;
    let rows: Vec<usize> = (0..batch.len()).filter(of).collect();
    for &row in &rows {
        *counts.entry(&kernels[row]).or_default() += 1;
    }
    let kernel = most(&counts);
    for &row in rows.iter().filter(|row| kernels[**row] == kernel) {
        // The table writes 0 key-value heads for as many as heads.
        let n_kv_heads = hw::whole(if kv_heads[row] > 0.0 { kv_heads[row] } else { heads[row] });
        found.push(Launch {
            shape: DecodeShape { n_heads: hw::whole(heads[row]), n_kv_heads, head_dim: width, kv, reads: Reads::Heads },
            n: hw::whole(batch[row]),
            keys: keys[row] + 1.0,
            window: window[row],
            beside_s: 0.0,
            seconds: latency[row] / 1e3,
        });
    }
    Ok((found, kernel))
}

/// Surfaces through launches, with their error on unseen shapes; nothing without launches.
pub(super) fn fitted(
    source: &Source<'_>,
    launches: &[Launch],
    name: String,
    (table, kernel): (String, String),
) -> Part {
    let long: Vec<&Launch> = launches.iter().filter(|launch| launch.keys >= KEYS_MIN).collect();
    let is_blackwell = source.cluster().gpu.capability() == hw::Capability::Ten;
    let cache = if is_blackwell { CACHE_BYTES_OF_BLACKWELL } else { CACHE_BYTES };
    let outside: Vec<Launch> =
        long.iter().filter(|launch| !is_cached(launch, cache)).map(|launch| (*launch).clone()).collect();
    if outside.len() < 10 {
        return Part::default();
    }
    let (seen, held) = surfaces::split(&outside, |launch| shape_of(&launch.shape));
    let bandwidth = source.cluster().gpu.memory_bandwidth;
    let edge = edge(&seen, bandwidth);
    let judged = surfaces_of(&seen, edge, bandwidth.get());
    let residuals = surfaces::errors(&held, seen.len(), |launch| launch.ratio(&judged, bandwidth));
    let all: Vec<&Launch> = outside.iter().collect();
    let fit = surfaces_of(&all, edge, bandwidth.get());
    let left_out = match long.len() - outside.len() {
        0 => String::new(),
        n => format!("{n} rows are read from the last-level cache"),
    };
    let mut part = Part::default();
    part.add_decode(&table, name, &left_out, DecodeSurfaces { residuals, kernel: Some(kernel), ..fit });
    part
}

fn is_cached(launch: &Launch, cache: f64) -> bool {
    (cache * CACHED[0]..cache * CACHED[1]).contains(&launch.bytes(0.0))
}

const fn shape_of(shape: &DecodeShape) -> u64 {
    shape.n_heads * 1_000_003 + shape.n_kv_heads
}

/// The edge that launches are predicted best with.
fn edge(launches: &[&Launch], bandwidth: BytesPerSecond) -> f64 {
    if launches.iter().all(|launch| launch.window <= 0.0) {
        return EDGES[0];
    }
    let off = |edge: &f64| {
        let law = surfaces_of(launches, *edge, bandwidth.get());
        launches.iter().map(|launch| (launch.ratio(&law, bandwidth) - 1.0).abs().min(1.0)).sum::<f64>()
    };
    let judged = EDGES.iter().map(|edge| (off(edge), *edge));
    judged.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(EDGES[0], |(_, edge)| edge)
}

/// A start and a read of every shape and number of sequences, and surfaces through both.
fn surfaces_of(launches: &[&Launch], window_edge: f64, bandwidth: f64) -> DecodeSurfaces {
    let mut groups: BTreeMap<(DecodeShape, u64), Vec<Affine>> = BTreeMap::new();
    for launch in launches {
        let read_s = launch.bytes(window_edge) / bandwidth;
        let row = Affine { term_s: read_s, beside_s: launch.beside_s, seconds: launch.seconds };
        groups.entry((launch.shape, launch.n)).or_default().push(row);
    }
    let (mut starts, mut reads) = (Vec::new(), Vec::new());
    for ((shape, n), rows) in &groups {
        let (at, found) = (shape.point(*n).to_vec(), affine(rows));
        add(&mut starts, &at, found.start_s, found.start_weight);
        add(&mut reads, &at, found.slope, found.slope_weight);
    }
    // Where no shape tells what a start or a read takes, the least start and the datasheet's bandwidth stand.
    let first = groups.keys().next().map(|(shape, n)| shape.point(*n).to_vec()).unwrap_or_default();
    for (points, least) in [(&mut starts, START_MIN_S), (&mut reads, 1.0)] {
        if points.is_empty() {
            points.push(Point { at: first.clone(), log: least.ln(), weight: 1.0 });
        }
    }
    let knots = knots(groups.keys().map(|(shape, _)| shape));
    let axes = |points: &[Point]| surfaces::axes(&AXES, &knots, points.iter().map(|point| point.at.as_slice()));
    let (start_axes, read_axes) = (axes(&starts), axes(&reads));
    DecodeSurfaces {
        residuals: crate::fit::residuals(&[1.0], launches.len()),
        kernel: None,
        window_edge,
        start: surfaces::through(&starts, start_axes),
        read: surfaces::through(&reads, read_axes),
    }
}

fn add(points: &mut Vec<Point>, at: &[f64], value: f64, weight: f64) {
    if weight > TOLD {
        points.push(Point { at: at.to_vec(), log: value.ln(), weight });
    }
}

fn knots<'s>(shapes: impl Iterator<Item = &'s DecodeShape>) -> [&'static [f64]; 3] {
    let mut all: Vec<&DecodeShape> = shapes.collect();
    all.dedup();
    match all.first() {
        Some(shape) if shape.reads == Reads::Latent => LATENT_KNOTS,
        Some(shape) if shape.reads == Reads::Selected => SELECTED_KNOTS,
        _ if all.len() < SHAPES_FEW => [&SEQUENCE_KNOTS, &GROUP_KNOTS_FEW, &HEADS_KNOTS_FEW],
        _ => [&SEQUENCE_KNOTS, &GROUP_KNOTS, &HEADS_KNOTS],
    }
}
