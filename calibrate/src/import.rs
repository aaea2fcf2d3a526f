//! Reads foreign tables of measured operators and makes a profile of them.
//!
//! The format is that of ai-dynamo/aiconfigurator: one gzipped CSV per operator, latency in milliseconds,
//! `message_size` in elements of the dtype. Collective sizes there are the gathered size of an all-gather and the input
//! size of the others, which is how `engine::task::Collective` defines bytes: at 8 H100 and 512 MiB the all-gather moves
//! 7/8 of that in 1.40 ms, 335 GB/s per GPU, below the 450 GB/s of the links; any other reading exceeds them.

pub mod by_engine;
pub mod neusight;
pub mod report;
mod serving;
mod table;
pub mod training;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use engine::cost::profile::{CollectiveCurve, Operator, Profile, SCHEMA};
use engine::cost::profiled::{ATTENTION_TILE, GROUPED_GEMM, document_length};
use engine::cost::roofline::Roofline;
use engine::cost::surface::Axis;
use engine::task::Document;
use hw::{Cluster, Format, Gpu};
use rayon::prelude::*;
use thiserror::Error;

use crate::fit::{self, Row};

pub(crate) use table::Table;
pub use table::TableError;

/// Why a table could not be imported.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum ImportError {
    /// No such table.
    #[error("{0}: no table found; expected {1}")]
    Missing(PathBuf, &'static str),
    /// The table could not be read.
    #[error("{0}: {1}")]
    Table(PathBuf, TableError),
    /// The device is not in the catalogue.
    #[error("`{0}` is not in the GPU catalogue")]
    Device(String),
    /// The table has rows of other devices alone.
    #[error("no rows of `{gpu}`; the table has {devices}")]
    NoRows { gpu: String, devices: String },
    /// The tables are of a model whose shapes are not known.
    #[error("tables of model `{0}`, whose shapes are not embedded")]
    Model(String),
}

/// Where the rows of a profile come from, for its header.
#[derive(Clone, Debug)]
pub struct Provenance {
    /// Profile name.
    pub name: String,
    /// GPU of the catalogue.
    pub gpu: String,
    /// Repository, commit, licence.
    pub source: String,
    /// Date of the fit.
    pub date: String,
}

impl Provenance {
    /// The GPU, as the catalogue has it.
    pub(crate) fn gpu(&self) -> Result<Gpu, ImportError> {
        hw::catalog::gpu(&self.gpu).ok_or_else(|| ImportError::Device(self.gpu.clone()))
    }

    /// A profile that says where it comes from and holds nothing yet.
    pub fn profile(&self) -> Profile {
        Profile {
            lent_by: None,
            schema: SCHEMA.to_owned(),
            name: self.name.clone(),
            gpu: self.gpu.clone(),
            source: self.source.clone(),
            date: self.date.clone(),
            device: None,
            calibrated: None,
            operators: BTreeMap::new(),
            own: BTreeSet::new(),
            memory: BTreeMap::new(),
            collectives: Vec::new(),
            links: Vec::new(),
            decode_attention: None,
            decode: BTreeMap::new(),
            experts: BTreeMap::new(),
            host: BTreeMap::new(),
        }
    }
}

/// Fits the operator tables below `dir` (`gemm/`, `attention/`, `comm/`, each with framework and version folders).
///
/// # Errors
/// When the GPU is unknown or a table is missing or broken.
pub fn operator_tables(dir: &Path, provenance: &Provenance) -> Result<Profile, ImportError> {
    let gpu = provenance.gpu()?;
    let cluster = hw::catalog::cluster(&gpu, 1, 8);
    let jobs = ["gemm", "attention-64", "attention-128", GROUPED_GEMM];
    let operators: Result<Vec<Option<(String, Operator)>>, ImportError> = jobs
        .into_par_iter()
        .map(|name| {
            let operator = match name {
                "gemm" => gemm(dir, &cluster),
                "attention-64" => attention(dir, &cluster, 64),
                GROUPED_GEMM => serving::grouped(dir, &cluster),
                _ => attention(dir, &cluster, 128),
            };
            operator.map(|operator| operator.map(|operator| (name.to_owned(), operator)))
        })
        .collect();
    Ok(Profile {
        operators: operators?.into_iter().flatten().collect(),
        collectives: [collectives(dir)?, serving::all_reduce(dir)?].concat(),
        decode_attention: serving::decode(dir, &cluster)?,
        ..provenance.profile()
    })
}

/// How a table is packed: as the shared folder has it, as the repository has it, or as text.
const ENDINGS: [&str; 4] = [".csv.gz", ".parquet", ".csv", ".txt"];

/// Whether a file's name is that of a table.
fn is_table(file: &str) -> bool {
    ENDINGS.iter().any(|ending| file.ends_with(ending))
}

/// Numbers of a version, in order: 0.5.14 is newer than 0.5.9.
fn numbers_of(version: &Path) -> Vec<u64> {
    let name = version.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let parts = name.split(|letter: char| !letter.is_ascii_digit()).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().unwrap_or(0)).collect()
}

/// Newest version folder of a table: `dir/operator/framework/*/file`, whatever it is packed in.
fn find(dir: &Path, folder: &str, file: &'static str) -> Result<PathBuf, ImportError> {
    find_all(dir, folder, file).into_iter().next().ok_or_else(|| ImportError::Missing(dir.join(folder), file))
}

/// A table of every version that has it, the newest first.
fn find_all(dir: &Path, folder: &str, file: &'static str) -> Vec<PathBuf> {
    let stem = file.strip_suffix(ENDINGS[0]).expect("tables are named as the shared folder has them");
    let mut versions: Vec<PathBuf> =
        std::fs::read_dir(dir.join(folder)).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    versions.sort_by_key(|path| numbers_of(path));
    let packed = |version: &PathBuf| {
        ENDINGS.iter().map(|ending| version.join(format!("{stem}{ending}"))).find(|path| path.is_file())
    };
    versions.iter().rev().filter_map(packed).collect()
}

fn axis(name: &str, knots: &[f64]) -> Axis {
    Axis::new(name, knots.to_vec())
}

/// Knots of the GEMM surface: powers of two where the tables have rows.
const M_KNOTS: [f64; 17] =
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 32_768.0];
const NK_KNOTS: [f64; 12] =
    [32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0, 65_536.0];
/// Start-up of a GEMM, seconds; the surface corrects what it leaves.
const GEMM_START_S: f64 = 2e-6;

fn gemm(dir: &Path, cluster: &Cluster) -> Result<Option<Operator>, ImportError> {
    let table = Table::read(find(dir, "gemm/vllm", "gemm_perf.csv.gz")?)?;
    let roofline = Roofline::new(cluster);
    let [m, n, k, latency] = table.columns(["m", "n", "k", "latency"])?;
    let dtype = table.words("gemm_dtype")?;
    let rows: Vec<Row> = (0..m.len())
        .filter(|&row| dtype[row] == "bfloat16" && latency[row] > 0.0)
        .map(|row| Row {
            base_s: roofline.gemm_base(hw::whole(m[row]), hw::whole(n[row]), hw::whole(k[row]), Format::Bf16).get(),
            point: vec![m[row], n[row], k[row]],
            measured_s: latency[row] / 1e3,
            shape: hw::whole(n[row]) * 1_000_003 + hw::whole(k[row]),
        })
        .collect();
    if rows.is_empty() {
        return Ok(None);
    }
    let axes = vec![axis("m", &M_KNOTS), axis("n", &NK_KNOTS), axis("k", &NK_KNOTS)];
    let (surface, residuals) = fit::surface(&rows, axes, GEMM_START_S);
    Ok(Some(Operator { residuals, kernel: None, start_s: GEMM_START_S, law: None, surface }))
}

const LENGTH_KNOTS: [f64; 14] =
    [1.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 6144.0, 8192.0, 12_288.0, 16_384.0];
const TILE_KNOTS: [f64; 17] = [
    1.0, 4.0, 8.0, 16.0, 32.0, 64.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 1024.0, 2048.0, 4096.0, 16_384.0,
    65_536.0,
];
const GROUP_KNOTS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 32.0, 96.0];
/// Start-up of an attention kernel, seconds.
const ATTENTION_START_S: f64 = 2e-6;

/// `None` where the table has no rows of that width.
fn attention(dir: &Path, cluster: &Cluster, head_dim: u64) -> Result<Option<Operator>, ImportError> {
    let table = Table::read(find(dir, "attention/vllm", "context_attention_perf.csv.gz")?)?;
    let roofline = Roofline::new(cluster);
    let [batch, length, heads, kv_heads, width, latency] =
        table.columns(["batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "latency"])?;
    let (dtype, cache) = (table.words("attn_dtype")?, table.words("kv_cache_dtype")?);
    let window = table.windows();
    let rows: Vec<Row> = (0..batch.len())
        .filter(|&row| dtype[row] == "bfloat16" && cache[row] == "bfloat16" && window[row] == 0.0)
        .filter(|&row| hw::whole(width[row]) == head_dim && latency[row] > 0.0)
        .map(|row| {
            // The table writes 0 key-value heads for as many as heads.
            let kv = if kv_heads[row] > 0.0 { kv_heads[row] } else { heads[row] };
            let document = Document::causal(hw::whole(length[row]));
            let base = roofline.attention_base(&document, hw::whole(heads[row]), hw::whole(kv), head_dim).get();
            let tiles = batch[row] * heads[row] * hw::real(hw::whole(length[row]).div_ceil(ATTENTION_TILE));
            Row {
                point: vec![document_length(&document), tiles, heads[row] / kv],
                base_s: base * batch[row],
                measured_s: latency[row] / 1e3,
                shape: hw::whole(heads[row]) * 1_000_003 + hw::whole(kv) * 1009 + hw::whole(batch[row]),
            }
        })
        .collect();
    if rows.is_empty() {
        return Ok(None);
    }
    let axes = vec![
        axis("document length", &LENGTH_KNOTS),
        axis("query tiles", &TILE_KNOTS),
        axis("heads per key-value head", &GROUP_KNOTS),
    ];
    let (surface, residuals) = fit::surface(&rows, axes, ATTENTION_START_S);
    Ok(Some(Operator { residuals, kernel: None, start_s: ATTENTION_START_S, law: None, surface }))
}

/// Curves of every collective and rank count.
fn collectives(dir: &Path) -> Result<Vec<CollectiveCurve>, ImportError> {
    library_curves(&Table::read(find(dir, "comm/nccl", "nccl_perf.csv.gz")?)?)
}

/// The same of a table.
fn library_curves(table: &Table) -> Result<Vec<CollectiveCurve>, ImportError> {
    let (kind, dtype) = (table.words("op_name")?, table.words("nccl_dtype")?);
    let [ranks, size, latency] = table.columns(["num_gpus", "message_size", "latency"])?;
    let mut points: BTreeMap<(String, u64), BTreeMap<u64, f64>> = BTreeMap::new();
    for row in (0..kind.len()).filter(|&row| dtype[row] == "half" && latency[row] > 0.0) {
        let name = if kind[row] == "alltoall" { "all_to_all".to_owned() } else { kind[row].clone() };
        let curve = points.entry((name, hw::whole(ranks[row]))).or_default();
        curve.insert(hw::whole(size[row] * 2.0), latency[row] / 1e3);
    }
    Ok(points.into_iter().map(|((kind, n_ranks), points)| curve_through(kind, n_ranks, points)).collect())
}

/// A curve through sizes that were measured once each; every second inner size is held out for the error and then put back.
pub(crate) fn curve_through(kind: String, n_ranks: u64, points: BTreeMap<u64, f64>) -> CollectiveCurve {
    let (bytes, mut seconds): (Vec<f64>, Vec<f64>) =
        points.into_iter().map(|(bytes, seconds)| (hw::real(bytes), fit::surfaces::rounded(seconds))).unzip();
    // A larger message never takes less time: slow outliers at small sizes are brought down to what follows them.
    for index in (1..seconds.len()).rev() {
        seconds[index - 1] = seconds[index - 1].min(seconds[index]);
    }
    let inner = (1..bytes.len().saturating_sub(1)).step_by(2);
    let ratios: Vec<f64> =
        inner.map(|index| seconds[index] / (seconds[index - 1] * seconds[index + 1]).sqrt()).collect();
    let residuals = fit::residuals(if ratios.is_empty() { &[1.0] } else { &ratios }, bytes.len() - ratios.len());
    CollectiveCurve {
        kind,
        n_ranks: u32::try_from(n_ranks).expect("few ranks"),
        n_nodes: 1,
        port_gb_per_s: None,
        residuals,
        bytes,
        seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_that_of_the_largest_numbers() {
        let newest = |names: &[&'static str]| names.iter().copied().max_by_key(|name| numbers_of(Path::new(name)));
        assert_eq!(newest(&["0.5.9", "0.5.14", "0.5.10"]), Some("0.5.14"));
        assert_eq!(newest(&["1.3.0rc9", "1.3.0rc20", "1.2.0rc30"]), Some("1.3.0rc20"));
    }
}
