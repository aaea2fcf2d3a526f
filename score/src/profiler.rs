//! A training step as a profiler recorded it on one GPU, beside its prediction: term by term, lane by lane, with the gaps between kernels.
//!
//! Readers (`kineto.rs` of PyTorch, `nsys.rs` of Nsight Systems) fill a `Recorded`; `term.rs` says what a kernel is; `step.rs` counts what a step took; `compare.rs` sets the prediction
//! beside it, `refit.rs` chooses factors of a profile, and `text.rs` writes. Times are nanoseconds of the profiler's clock; figures are seconds of a step.

pub mod compare;
mod kineto;
pub mod nsys;
pub mod refit;
mod sqlite;
pub mod step;
pub mod term;
pub mod text;

use std::collections::BTreeMap;
use std::io::BufRead;

use compare::Compared;
use engine::{CostModel, TaskGraph, Timeline};
use sqlite::SqliteError;
use step::Measured;
use thiserror::Error;
use train::Problem;

/// Events of a device that are kept of a file, and launches besides: at 40 bytes each, some gigabyte in all.
const EVENTS_MAX: usize = 20_000_000;
/// Different names of kernels.
const NAMES_MAX: usize = 100_000;
/// Latest moment and longest event, nanoseconds: two centuries behind 1970, so that sums of both fit.
const NS_MAX: f64 = 6e18;

/// Why a file says nothing of a step.
#[derive(Debug, Error)]
pub enum ProfilerError {
    /// It is no record that is known.
    #[error(
        "it is no trace of a profiler: PyTorch's is a JSON file, plain or gzipped, that begins with `{{` and holds `traceEvents`; of Nsight \
         Systems, give what `nsys export --type sqlite` writes"
    )]
    Unknown,
    /// It is broken.
    #[error("broken JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It is a broken report of Nsight Systems.
    #[error(transparent)]
    Sqlite(#[from] SqliteError),
    /// A row of such a report is at no time.
    #[error("its table `{table}` has a row whose `start` and `end` are no time")]
    NoTime {
        /// Table.
        table: &'static str,
    },
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] std::io::Error),
    /// Nothing ran on a device.
    #[error("it holds no kernel of a GPU: record it with `ProfilerActivity.CUDA`, or `nsys profile --trace cuda,nvtx`")]
    NoKernels,
    /// It is larger than what is kept.
    #[error("it holds more than {EVENTS_MAX} kernels: record fewer steps")]
    TooMany,
    /// It has more names than programs have.
    #[error("it holds more than {NAMES_MAX} names of kernels")]
    Names,
    /// Kernels lie outside of every step.
    #[error("no kernel lies inside of its steps")]
    NoStep,
}

/// A kernel or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Position of its name.
    pub name: u32,
    /// Device.
    pub device: u32,
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// What joins it with the call that launched it.
    pub launch: Option<u64>,
}

/// A part of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First moment.
    pub start: u64,
    /// Moment behind the last.
    pub end: u64,
}

/// What one file holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// Rank that it is of, where the file says it.
    pub rank: Option<u32>,
    /// Ranks that took part.
    pub n_ranks: Option<u32>,
    /// Names of devices.
    pub devices: BTreeMap<u32, String>,
    /// Names of kernels, each with what PyTorch says of a collective.
    pub names: Vec<(String, Option<String>)>,
    ids: BTreeMap<(String, Option<String>), u32>,
    /// What ran.
    pub events: Vec<Event>,
    /// Calls that launched it, by what joins them.
    pub launches: BTreeMap<u64, Window>,
    /// Steps by their number, as the host ran them.
    pub host_steps: BTreeMap<u64, Window>,
    /// The same as the device ran them.
    pub device_steps: BTreeMap<u64, Window>,
}

impl Recorded {
    /// The position of a name.
    fn name(&mut self, name: &str, collective: Option<&str>) -> Result<u32, ProfilerError> {
        let key = (name.to_owned(), collective.map(str::to_owned));
        if let Some(id) = self.ids.get(&key) {
            return Ok(*id);
        }
        if self.names.len() == NAMES_MAX {
            return Err(ProfilerError::Names);
        }
        let id = u32::try_from(self.names.len()).expect("few names");
        self.names.push(key.clone());
        self.ids.insert(key, id);
        Ok(id)
    }

    /// Keeps a kernel.
    fn keep(&mut self, event: Event) -> Result<(), ProfilerError> {
        if self.events.len() == EVENTS_MAX {
            return Err(ProfilerError::TooMany);
        }
        self.events.push(event);
        Ok(())
    }

    /// Keeps a call that launched something.
    fn launched(&mut self, id: u64, window: Window) -> Result<(), ProfilerError> {
        if self.launches.len() == EVENTS_MAX {
            return Err(ProfilerError::TooMany);
        }
        self.launches.insert(id, window);
        Ok(())
    }

    /// Widens a step: a device marks it once for every stream.
    fn step(&mut self, number: u64, window: Window, on_device: bool) {
        let steps = if on_device { &mut self.device_steps } else { &mut self.host_steps };
        let known = steps.entry(number).or_insert(window);
        known.start = known.start.min(window.start);
        known.end = known.end.max(window.end);
    }

    /// Leaves the device that ran most; how many events of others there were.
    fn one_device(&mut self) -> usize {
        let mut busy: BTreeMap<u32, u64> = BTreeMap::new();
        for event in &self.events {
            let ns = busy.entry(event.device).or_default();
            *ns = ns.saturating_add(event.end - event.start);
        }
        let most = busy.iter().max_by_key(|(_, ns)| **ns).map(|(device, _)| *device);
        let n = self.events.len();
        self.events.retain(|event| Some(event.device) == most);
        self.devices.retain(|device, _| Some(*device) == most);
        n - self.events.len()
    }
}

/// Reads the text of a file of a profiler; reports of Nsight Systems are none, and `nsys.rs` reads them.
///
/// # Errors
/// Why it says nothing of a step.
pub fn read(mut source: impl BufRead) -> Result<Recorded, ProfilerError> {
    let head = source.fill_buf()?;
    match head.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{' | b'[') => kineto::read(source),
        _ => Err(ProfilerError::Unknown),
    }
}

/// Sets the predicted step of its rank beside what a file holds.
pub fn compared(
    measured: Measured,
    asked: (&Problem, &TaskGraph),
    timeline: (&Timeline, [f64; 2]),
    cost: &dyn CostModel,
) -> Compared {
    let predicted = compare::predicted(asked, timeline, cost, measured.rank.unwrap_or_default());
    compare::compare(measured, predicted, asked.0.layout.n_ranks())
}

/// The largest |error| of a step among files.
pub fn worst(found: &[(String, Compared)]) -> f64 {
    found.iter().map(|(_, found)| found.error().abs()).fold(f64::NAN, f64::max)
}

/// Microseconds of a file as nanoseconds; `None` for what is no moment.
fn ns_of_us(us: f64) -> Option<u64> {
    let ns = us * 1e3;
    (ns.is_finite() && (0.0..=NS_MAX).contains(&ns)).then(|| hw::whole(ns))
}

#[cfg(test)]
mod tests;
