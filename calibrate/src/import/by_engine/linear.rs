//! Gated delta nets: chunks of prompts and decoding sequences, each through its convolution and its scan.
//!
//! Tables time both kernels one by one, and an engine runs one behind the other, so a row is their sum. Prompts are those of one sequence, because
//! a replica asks for one chunk at a time. A decoding sequence reads and writes its state of 32 bits.

use std::collections::BTreeMap;

use engine::cost::CostModel;
use engine::cost::decode::{AXES, DecodeShape, DecodeSurfaces, Reads, ShapedDecode};
use engine::cost::mixed::{self, MixedChunk};
use engine::cost::names;
use engine::model::{LinearAttention, LinearRule, Mixer, Model};
use engine::shard::Shard;
use engine::state::State;
use engine::task::Op;
use hw::Dtype;

use super::{Part, Source};
use crate::fit::Row;
use crate::fit::surfaces::{self, Point};
use crate::import::{ImportError, Table};

const LENGTH_KNOTS: [f64; 8] = [16.0, 64.0, 256.0, 1024.0, 2048.0, 4096.0, 8192.0, 32_768.0];
const HEADS_KNOTS: [f64; 5] = [2.0, 8.0, 16.0, 32.0, 64.0];
const GROUP_KNOTS: [f64; 2] = [1.0, 4.0];
/// States of all sequences, counted by heads.
const STATES_KNOTS: [f64; 8] = [16.0, 64.0, 256.0, 512.0, 1024.0, 4096.0, 16_384.0, 65_536.0];
/// Start of a convolution and a scan, seconds; the surface corrects what it leaves.
const START_S: f64 = 5e-6;
/// Share of a time that a read must have to be told.
const TOLD: f64 = 0.3;
/// Bytes of a number of state (`mamba_ssm_dtype` of Qwen3-Next and Qwen3.5).
const STATE_BYTES: u64 = 4;
/// Words in the names of kernels.
const CONVOLUTION: &str = "conv1d";
const PACKED: &str = "packed_decode";
const TABLE: &str = "gdn_perf.csv.gz";

/// Both kernels of a layer.
struct Launch {
    linear: LinearAttention,
    /// Sequences, and tokens of each.
    batch: u64,
    length: u64,
    seconds: f64,
}

impl Launch {
    /// A model whose layers with a state are these.
    fn model(&self, of: &Model) -> Model {
        Model { linear: Some(self.linear), ..of.clone() }
    }

    const fn shape(&self) -> u64 {
        self.linear.n_value_heads * 1_000_003 + self.linear.n_key_heads
    }
}

/// Gated delta nets of an engine; nothing where its tables lack a kernel.
pub(super) fn all(source: &Source<'_>) -> Result<Part, ImportError> {
    let base = engine::model::embedded("qwen3.5-397b-a17b").expect("embedded");
    let mut part = Part::default();
    if let Some((table, path)) = source.table("linear_attention", source.engine, TABLE)? {
        let (prompts, kernel) = launches(&table, true)?;
        part = part.with(prompt(source, &prompts, &base, (&path, &kernel)));
    }
    if let Some((table, path)) = of_decoding(source)? {
        let (sequences, kernel) = launches(&table, false)?;
        part = part.with(decoded(source, &sequences, &base, (&path, &kernel)));
    }
    Ok(part)
}

/// The newest table; of SGLang the newest whose decoding is not packed into one kernel with its gates, as in the published runs.
fn of_decoding(source: &Source<'_>) -> Result<Option<(Table, String)>, ImportError> {
    let may_be_packed = source.engine != "sglang";
    for found in source.versions("linear_attention", source.engine, TABLE) {
        let (table, path) = found?;
        if may_be_packed || !table.words("kernel_source")?.iter().any(|kernel| kernel.contains(PACKED)) {
            return Ok(Some((table, path)));
        }
    }
    Ok(None)
}

/// Shapes of prompts or of decoding sequences whose convolution and scan were both timed, and the name of the scan.
fn launches(table: &Table, of_prompts: bool) -> Result<(Vec<Launch>, String), ImportError> {
    let sizes = ["num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "d_conv", "batch_size", "seq_len"];
    let (sizes, latency) = (table.columns(sizes)?, table.numbers("latency")?);
    let (kernels, phases) = (table.words("kernel_source")?, table.words("phase")?);
    let mut found: BTreeMap<[u64; 7], [f64; 2]> = BTreeMap::new();
    let mut name = String::new();
    for row in (0..latency.len()).filter(|&row| latency[row] > 0.0 && (phases[row] == "context") == of_prompts) {
        let shape: [u64; 7] = std::array::from_fn(|size| hw::whole(sizes[size][row]));
        let is_scan = !kernels[row].contains(CONVOLUTION);
        found.entry(shape).or_default()[usize::from(is_scan)] = latency[row] / 1e3;
        if is_scan {
            name.clone_from(&kernels[row]);
        }
    }
    let both = found.into_iter().filter(|(_, times)| times.iter().all(|time| *time > 0.0));
    let launch = |(shape, times): ([u64; 7], [f64; 2])| {
        let [n_key_heads, n_value_heads, key_dim, value_dim, kernel, batch, length] = shape;
        let linear = LinearAttention {
            n_key_heads,
            n_value_heads,
            key_dim,
            value_dim,
            kernel,
            state_bytes: STATE_BYTES,
            rule: LinearRule::Delta,
        };
        Launch { linear, batch, length, seconds: times[0] + times[1] }
    };
    Ok((both.map(launch).collect(), name))
}

fn prompt(source: &Source<'_>, launches: &[Launch], base: &Model, (table, kernel): (&str, &str)) -> Part {
    let row = |launch: &Launch| {
        let model = launch.model(base);
        let chunk = MixedChunk::of(&Shard::forward(&model, Dtype::Bf16, 1), Mixer::Linear, 0, launch.length)?;
        let base_s = source.roofline.estimate(&Op::Sequence(chunk.parts)).time.get();
        Some(Row { point: chunk.at.to_vec(), base_s, measured_s: launch.seconds, shape: launch.shape() })
    };
    let rows: Vec<Row> = launches.iter().filter(|launch| launch.batch == 1).filter_map(row).collect();
    let mut part = Part::default();
    let knots: [&[f64]; 3] = [&LENGTH_KNOTS, &HEADS_KNOTS, &GROUP_KNOTS];
    let Some(mut operator) = surfaces::operator(&rows, mixed::AXES, knots, START_S) else { return part };
    operator.kernel = Some(kernel.to_owned());
    part.add(table, names::SCAN_DELTA.to_owned(), "", operator);
    part
}

fn decoded(source: &Source<'_>, launches: &[Launch], base: &Model, (table, kernel): (&str, &str)) -> Part {
    let mut part = Part::default();
    let shaped: Vec<(DecodeShape, &Launch)> = launches.iter().map(|launch| (shape(launch, base), launch)).collect();
    if shaped.len() < 10 {
        return part;
    }
    let bandwidth = source.cluster().gpu.memory_bandwidth;
    let (seen, held) = surfaces::split(&shaped, |(_, launch)| launch.shape());
    let judged = surfaces_of(&seen, bandwidth.get());
    let residuals = surfaces::errors(&held, seen.len(), |(shape, launch)| {
        let time = ShapedDecode::of_surfaces(&judged, *shape, bandwidth).alone(launch.batch);
        launch.seconds / (time.fixed_s + time.per_key_s * hw::real(launch.batch))
    });
    let fit = surfaces_of(&shaped.iter().collect::<Vec<_>>(), bandwidth.get());
    let fit = DecodeSurfaces { residuals, kernel: Some(kernel.to_owned()), ..fit };
    part.add_decode(table, names::DECODE_DELTA.to_owned(), "", fit);
    part
}

/// What a sequence reads on a GPU that has all of these heads.
fn shape(launch: &Launch, base: &Model) -> DecodeShape {
    let model = launch.model(base);
    let state = State::of(&Shard::forward(&model, Dtype::Bf16, 1), Mixer::Linear).expect("a layer with a state");
    let (heads, reads) = (state.n_heads, Reads::State { bytes: state.bytes() });
    DecodeShape { n_heads: heads, n_kv_heads: heads, head_dim: state.key_dim, kv: Dtype::Bf16, reads }
}

/// The start is what one sequence takes, but for its state at the datasheet's bandwidth; what is above it is the reading of the states.
fn surfaces_of(launches: &[&(DecodeShape, &Launch)], bandwidth: f64) -> DecodeSurfaces {
    let read_s = |shape: &DecodeShape, n: u64| hw::real(n * shape.token_bytes()) / bandwidth;
    let alone = launches.iter().filter(|(_, launch)| launch.batch == 1);
    let starts: Vec<f64> = alone.map(|(shape, launch)| launch.seconds - read_s(shape, 1)).collect();
    let start = if starts.is_empty() { START_S } else { hw::quantile::median(&starts).max(1e-7) };
    let mut reads = Vec::new();
    for (shape, launch) in launches {
        let left = launch.seconds - start;
        if left > TOLD * launch.seconds {
            let log = (left / read_s(shape, launch.batch)).ln();
            reads.push(Point { at: shape.point(launch.batch).to_vec(), log, weight: left / launch.seconds });
        }
    }
    let axes = |knots: &[&[f64]; 3], points: &[Point]| {
        surfaces::axes(&AXES, knots, points.iter().map(|point| point.at.as_slice()))
    };
    let one = [Point { at: vec![1.0; 3], log: start.ln(), weight: 1.0 }];
    DecodeSurfaces {
        residuals: crate::fit::residuals(&[1.0], launches.len()),
        kernel: None,
        window_edge: 0.0,
        start: surfaces::through(&one, axes(&[&[1.0], &[1.0], &[1.0]], &one)),
        read: surfaces::through(&reads, axes(&[&STATES_KNOTS, &[1.0], &[1.0]], &reads)),
    }
}
