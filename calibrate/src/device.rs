//! The seam to hardware: operations on streams, marks in time, and what can go wrong.
//!
//! A device runs the operations of one stream in order and streams at once; a mark is a point on a stream whose time is
//! known when the device has finished. Operands are random, taken from buffers larger than any cache in turn, so that no
//! launch finds its data warm. Units: nanoseconds since an origin of the device, bytes.

use std::time::Duration;

use engine::task::{Op, Stream};
use hw::Bytes;
use thiserror::Error;

/// What a device says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Its name, for example `NVIDIA H200`.
    pub name: String,
    /// Entry of the GPU catalogue that it is, where one is known.
    pub gpu: Option<String>,
    /// Driver and libraries.
    pub driver: String,
    /// Clocks as read.
    pub clocks: String,
    /// Memory that a job may use.
    pub memory: Bytes,
    /// Rows and columns of a tile of its matrix products, and how many run at once.
    pub tile: (u64, u64, u64),
    /// Ranks that can run at the same time, each on a device of its own.
    pub n_devices: u32,
    /// Kernel that is repeated to see whether the device keeps its speed: bound by its clocks.
    pub reference: Op,
}

impl Facts {
    /// Facts of an NVIDIA GPU with so many multiprocessors: what a fit of its samples needs where the card is not at hand.
    pub fn of_gpu(name: &str, gpu: Option<String>, multiprocessors: u64) -> Self {
        Self {
            name: name.to_owned(),
            gpu,
            driver: String::new(),
            clocks: String::new(),
            memory: Bytes::ZERO,
            tile: (128, 128, multiprocessors),
            n_devices: 1,
            reference: Op::Gemm { m: 4096, n: 4096, k: 4096, format: hw::Format::Bf16 },
        }
    }
}

/// A point on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub usize);

/// Why the hardware did not do what was asked. Exit 3, but for a name that means nothing.
#[derive(Clone, Debug, Error, PartialEq)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum DeviceError {
    /// The name is none of a device.
    #[error("unknown device `{device}`: {why}; known are `cpu`, `cpu:THREADS` and `cuda:N`")]
    Unknown { device: String, why: &'static str },
    /// No such device, or its driver or a library is missing.
    #[error("device `{device}` cannot be used: {why}")]
    Missing { device: String, why: String },
    /// An operand does not fit.
    #[error("out of device memory: {tensor} of {} needs {} bytes, {} are free", .op, .needed.0, .free.0)]
    OutOfMemory { tensor: &'static str, op: String, needed: Bytes, free: Bytes },
    /// The device stopped answering.
    #[error("device lost: {0}")]
    Lost(String),
    /// A kernel did not end in time.
    #[error("no answer for {:.0} s, the last kernel sent was {op}: the watchdog gave up", .after.as_secs_f64())]
    Hung { op: String, after: Duration },
    /// A result is not a number.
    #[error("{op} gave a result that is not a number")]
    NotANumber { op: String },
    /// A kernel computes something else than it should.
    #[error("{kernel} is off by {error:.2e} against a float64 reference, allowed is {allowed:.0e}")]
    Wrong { kernel: String, error: f64, allowed: f64 },
}

/// Relative error of what a kernel computed, in the Frobenius norm.
pub(crate) fn frobenius_error(found: impl Iterator<Item = f64>, expected: &[f64]) -> f64 {
    let off: f64 = found.zip(expected).map(|(found, expected)| (found - expected) * (found - expected)).sum();
    let size: f64 = expected.iter().map(|x| x * x).sum();
    off.sqrt() / size.sqrt().max(f64::MIN_POSITIVE)
}

/// Hardware that runs operations.
pub trait Device {
    /// What it is.
    fn facts(&self) -> &Facts;

    /// Threads of the host that it is, where it is one: they sample graphs as well.
    fn host(&self) -> Option<&rayon::ThreadPool> {
        None
    }

    /// Whether it can run an operation by itself; exchanges between nodes, for example, it may not.
    fn runs(&self, op: &Op) -> bool;

    /// Makes room for an operation, so that no later launch allocates.
    ///
    /// # Errors
    /// When its operands do not fit.
    fn reserve(&mut self, op: &Op) -> Result<(), DeviceError>;

    /// Puts an elementary operation behind what the stream has.
    ///
    /// # Errors
    /// When the device cannot take it.
    fn launch(&mut self, op: &Op, stream: Stream) -> Result<(), DeviceError>;

    /// Puts a mark behind what the stream has.
    ///
    /// # Errors
    /// When the device cannot take it.
    fn mark(&mut self, stream: Stream) -> Result<Mark, DeviceError>;

    /// Seconds that a mark between two kernels adds to them; those of a real step follow each other without one.
    ///
    /// # Errors
    /// When the device fails while it is measured.
    fn mark_s(&mut self) -> Result<f64, DeviceError> {
        Ok(0.0)
    }

    /// Lets a stream wait for a mark.
    ///
    /// # Errors
    /// When the device cannot take it.
    fn wait(&mut self, stream: Stream, mark: Mark) -> Result<(), DeviceError>;

    /// Waits for everything; times of all marks since the last call, in the order in which they were made.
    ///
    /// # Errors
    /// When the device is lost, or does not end within `limit`.
    fn finish(&mut self, limit: Duration) -> Result<Vec<u64>, DeviceError>;

    /// Fills results with a pattern, runs an operation once, and looks whether every element was written with a number.
    ///
    /// # Errors
    /// When one was not.
    fn check_finite(&mut self, op: &Op) -> Result<(), DeviceError>;

    /// Checks every kernel against a float64 reference on random inputs; one line per case.
    ///
    /// # Errors
    /// When one is wrong.
    fn check_kernels(&mut self) -> Result<Vec<String>, DeviceError>;

    /// Times of kernels at sizes of real models, one line each as they come, to be kept; none where nobody would compare them.
    ///
    /// # Errors
    /// When the device fails; the lines before are worth keeping all the same.
    fn speeds(&mut self, _say: &mut dyn FnMut(String)) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// An operation in words, for messages.
pub fn describe(op: &Op) -> String {
    match op {
        Op::Gemm { m, n, k, .. } => format!("gemm {m} × {n} × {k}"),
        Op::GroupedGemm { rows, n, k, .. } => format!("grouped gemm of {} experts × {n} × {k}", rows.len()),
        Op::Attention { documents, n_heads, head_dim, pass, .. } => {
            let longest = documents.iter().map(|document| document.keys).max().unwrap_or(0);
            let what = if *pass == engine::task::Pass::Forward { "attention" } else { "attention backward" };
            format!("{what} over {} documents up to {longest} tokens, {n_heads} heads of {head_dim}", documents.len())
        }
        Op::Elementwise { bytes } => format!("elementwise kernel of {bytes} bytes"),
        Op::Embedding { tokens, row_bytes } => format!("embedding of {tokens} rows of {row_bytes} bytes"),
        Op::Collective { kind, bytes, shape } => format!("{kind:?} of {bytes} bytes on {} ranks", shape.n_ranks),
        Op::Copy { kind, bytes } => format!("{kind:?} copy of {bytes} bytes"),
        Op::Host { ns } => format!("host time of {ns} ns"),
        Op::Sequence(_) | Op::Slowed { .. } | Op::Launched { .. } => "a sequence".to_owned(),
    }
}
