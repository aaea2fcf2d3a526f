//! Tables of one serving engine on one card → a profile of that engine: a curve per operation, format and kernel.
//!
//! The layout is that of ai-dynamo/aiconfigurator: `OPERATION/ENGINE/VERSION/TABLE`, the newest version of each. Whole shapes are held out
//! for the error; the curve that is shipped has then seen every row. Every table below the folder is used, or named with the reason.

mod decode;
mod exchanges;
pub(crate) mod experts;
mod latent;
mod linear;
mod prefill;
mod products;
mod selected;

use std::path::{Path, PathBuf};

use engine::cost::decode::DecodeSurfaces;
use engine::cost::profile::{Operator, Profile, Residuals};
use engine::cost::roofline::Roofline;
use hw::{Cluster, Dtype};
use rayon::prelude::*;

use super::{ImportError, Provenance, Table, find, find_all};

/// What an import gave.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The profile.
    pub profile: Profile,
    /// Errors on held-out shapes, a line for each curve.
    pub lines: Vec<Line>,
    /// Tables that were not used, with the reason.
    pub unused: Vec<(PathBuf, String)>,
}

/// Error of one curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Table that it is from, for example `gemm/vllm/0.24.0/gemm_perf.csv.gz`.
    pub table: String,
    /// Its name in the profile.
    pub name: String,
    /// Kernel that was measured.
    pub kernel: String,
    /// Rows that were left out, and why; empty where none was.
    pub left_out: String,
    /// Error on held-out shapes.
    pub residuals: Residuals,
}

pub use crate::profiles::ENGINES;

/// Where the tables are and what they are of.
struct Source<'a> {
    dir: &'a Path,
    engine: &'a str,
    roofline: Roofline,
}

impl Source<'_> {
    fn cluster(&self) -> &Cluster {
        self.roofline.cluster()
    }

    /// Newest table of an operation of an engine, and its path below the folder; `None` where there is none.
    fn table(&self, operation: &str, engine: &str, file: &'static str) -> Result<Option<(Table, String)>, ImportError> {
        let Ok(path) = find(self.dir, &format!("{operation}/{engine}"), file) else { return Ok(None) };
        self.read(path).map(Some)
    }

    /// The same of every version, the newest first.
    fn versions<'s>(
        &'s self,
        operation: &str,
        engine: &str,
        file: &'static str,
    ) -> impl Iterator<Item = Result<(Table, String), ImportError>> + 's {
        let versions = find_all(self.dir, &format!("{operation}/{engine}"), file);
        versions.into_iter().map(|path| self.read(path))
    }

    fn read(&self, path: PathBuf) -> Result<(Table, String), ImportError> {
        let below = path.strip_prefix(self.dir).unwrap_or(&path).display().to_string();
        Ok((Table::read(path)?, below))
    }
}

/// The word of tables for a format of keys and values.
fn word(kv: Dtype) -> &'static str {
    if kv == Dtype::Fp8 { "fp8" } else { "bfloat16" }
}

/// What a family of curves adds to the profile.
#[derive(Default)]
struct Part {
    lines: Vec<Line>,
    profile: Curves,
}

#[derive(Default)]
struct Curves {
    operators: Vec<(String, Operator)>,
    decode: Vec<(String, DecodeSurfaces)>,
    experts: Vec<(String, engine::cost::experts::ExpertsCurve)>,
    collectives: Vec<engine::cost::profile::CollectiveCurve>,
}

impl Part {
    /// Adds a curve's line, and gives its name.
    fn told(&mut self, table: &str, name: String, kernel: Option<&String>, about: (&str, &Residuals)) -> String {
        let (left_out, residuals) = (about.0.to_owned(), about.1.clone());
        let kernel = kernel.cloned().unwrap_or_default();
        self.lines.push(Line { table: table.to_owned(), name: name.clone(), kernel, left_out, residuals });
        name
    }

    /// Adds the curve of an operator with its line.
    fn add(&mut self, table: &str, name: String, left_out: &str, operator: Operator) {
        let name = self.told(table, name, operator.kernel.as_ref(), (left_out, &operator.residuals));
        self.profile.operators.push((name, operator));
    }

    /// Adds the surfaces of decode attention with their line.
    fn add_decode(&mut self, table: &str, name: String, left_out: &str, decode: DecodeSurfaces) {
        let name = self.told(table, name, decode.kernel.as_ref(), (left_out, &decode.residuals));
        self.profile.decode.push((name, decode));
    }

    fn with(mut self, other: Self) -> Self {
        self.lines.extend(other.lines);
        self.profile.operators.extend(other.profile.operators);
        self.profile.decode.extend(other.profile.decode);
        self.profile.experts.extend(other.profile.experts);
        self.profile.collectives.extend(other.profile.collectives);
        self
    }
}

type Job = fn(&Source<'_>) -> Result<Part, ImportError>;

/// Fits the tables of an engine below `dir`.
///
/// # Errors
/// When the GPU is unknown, a table is broken, or there is none of that engine.
pub fn tables(dir: &Path, engine: &str, provenance: &Provenance) -> Result<Imported, ImportError> {
    let gpu = provenance.gpu()?;
    let cluster = hw::catalog::cluster(&gpu, 1, 8);
    let source = Source { dir, engine, roofline: Roofline::new(&cluster) };
    let jobs: [Job; 6] = [products::all, decode::all, experts::all, prefill::all, exchanges::all, linear::all];
    let parts: Result<Vec<Part>, ImportError> = jobs.into_par_iter().map(|job| job(&source)).collect();
    let mut part = parts?.into_iter().fold(Part::default(), Part::with);
    if part.lines.is_empty() {
        return Err(ImportError::Missing(dir.join("gemm").join(engine), "gemm_perf.csv.gz"));
    }
    let mut profile = Profile {
        operators: part.profile.operators.into_iter().collect(),
        collectives: part.profile.collectives,
        decode: part.profile.decode.into_iter().collect(),
        experts: part.profile.experts.into_iter().collect(),
        ..provenance.profile()
    };
    let blocks = latent::all(&source, &profile)?.with(selected::all(&source, &profile)?);
    profile.operators.extend(blocks.profile.operators);
    profile.decode.extend(blocks.profile.decode);
    part.lines.extend(blocks.lines);
    let unused = unused(dir, engine, &part.lines);
    Ok(Imported { profile, lines: part.lines, unused })
}

/// Tables below a folder that no line is from, with the reason.
fn unused(dir: &Path, engine: &str, lines: &[Line]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for path in files(dir) {
        let below = path.strip_prefix(dir).unwrap_or(&path).to_owned();
        let text = below.display().to_string();
        if !lines.iter().any(|line| line.table == text) {
            found.push((below, reason(&text, engine)));
        }
    }
    found
}

/// Why a table was not used.
fn reason(table: &str, engine: &str) -> String {
    let parts: Vec<&str> = table.split('/').collect();
    let (of, file) = (parts.get(1).copied().unwrap_or_default(), parts.last().copied().unwrap_or_default());
    if ENGINES.contains(&of) && of != engine {
        return format!("is of another engine, `{of}`");
    }
    if file.contains("_module_") {
        return "times a whole block; its attention is in a table of its own".to_owned();
    }
    if of == "nccl" {
        return "is of an older version of the library".to_owned();
    }
    if super::is_table(file) { "no curve is fitted to such a table" } else { "is no table that is known" }.to_owned()
}

/// All files below a folder, in order.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests;
