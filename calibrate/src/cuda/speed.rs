//! How fast the kernels are, one line each: what a calibration run on a new GPU prints first, to be kept and compared.
//!
//! Every number is the median of launches between two events, after two to warm up; operands turn over where they would fit into the
//! second-level cache. A device with little memory gets small sizes, whose numbers mean nothing but that everything runs.

mod attention;
mod exchanges;
mod memory;
mod products;

use cudarc::driver::sys::CUstream;
use hw::Bytes;

use super::Cuda;
use super::attention::Heads;
use super::clock::Timer;
use super::driver::{Arg, Buffer, Driver, lost};
use super::gemm::Gemm;
use super::nccl::Peers;
use super::operands::{free_grid, long};
use crate::device::DeviceError;
use crate::sample::WATCHDOG;

/// Launches that do not count.
const WARM: usize = 2;
/// From this memory on the sizes are those of real models.
const LARGE: Bytes = Bytes(40 << 30);

/// Sizes of what is timed.
struct Sizes {
    repeats: usize,
    /// Side of the matrices.
    side: usize,
    heads: Heads,
    /// Documents and their tokens.
    packs: [(usize, usize); 2],
    /// Sequences and tokens of a decoding step.
    decode: (usize, usize),
    /// Tokens, vertical lines and slashes of a prefill.
    pattern: (usize, usize, usize),
    /// Tokens, copies of each, and their width.
    experts: (usize, usize, usize),
    /// Bytes that travel between host and device.
    link: usize,
    /// Launches of a kernel that does next to nothing.
    launches: usize,
}

const FULL: Sizes = Sizes {
    repeats: 20,
    side: 8192,
    heads: Heads { n: 32, n_kv: 8, dim: 128 },
    packs: [(1, 16384), (8, 2048)],
    decode: (64, 32768),
    pattern: (65536, 1000, 64),
    experts: (16384, 8, 4096),
    link: 1 << 30,
    launches: 2000,
};

const SMALL: Sizes = Sizes {
    repeats: 2,
    side: 128,
    heads: Heads { n: 2, n_kv: 1, dim: 128 },
    packs: [(1, 128), (2, 40)],
    decode: (2, 200),
    pattern: (192, 40, 2),
    experts: (64, 2, 128),
    link: 1 << 16,
    launches: 10,
};

/// What the sections share.
struct Bench<'a> {
    driver: &'a Driver,
    gemm: &'a mut Gemm,
    peers: &'a mut Option<Peers>,
    sizes: &'static Sizes,
    on: CUstream,
    other: CUstream,
}

/// Result of a launch.
type Sent = Result<(), DeviceError>;

impl Bench<'_> {
    /// Random bf16 values.
    fn random(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.filled("random_bf16", bytes, bytes / 2)
    }

    fn filled(&self, kernel: &'static str, bytes: usize, count: usize) -> Result<Buffer, DeviceError> {
        let buffer = self.room(bytes)?;
        let args = [Arg::Pointer(buffer.at), long(count), Arg::Int(11)];
        self.driver.launch(kernel, free_grid(count), &args, self.on)?;
        Ok(buffer)
    }

    /// Memory that a kernel writes before anyone reads it.
    fn room(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.driver.allocate(bytes, "operand", "a measurement")
    }

    fn upload<T: Copy>(&self, values: &[T]) -> Result<Buffer, DeviceError> {
        self.driver.upload(values, "operand", "a measurement")
    }

    /// Median seconds of `work`, which is told how often it ran.
    fn median(&self, what: &str, work: impl FnMut(usize) -> Sent) -> Result<f64, DeviceError> {
        self.median_after(what, |_| Ok(()), work)
    }

    /// The same with something before each run that does not count.
    fn median_after(
        &self,
        what: &str,
        mut before: impl FnMut(usize) -> Sent,
        mut work: impl FnMut(usize) -> Sent,
    ) -> Result<f64, DeviceError> {
        let mut timers = Vec::new();
        for run in 0..WARM + self.sizes.repeats {
            before(run)?;
            let timer = Timer::new(self.driver)?;
            timer.begin(self.on)?;
            work(run)?;
            timer.stop(self.on)?;
            timers.push(timer);
        }
        self.driver.watch(self.on, what, WATCHDOG)?;
        let times: Result<Vec<f64>, DeviceError> =
            timers.iter().skip(WARM).map(|timer| timer.ms().map(|ms| f64::from(ms) / 1e3)).collect();
        Ok(hw::quantile::median(&times?).max(1e-9))
    }
}

/// Floating-point operations per second, in words.
fn tera(flops: f64, seconds: f64) -> String {
    format!("{:.1} TFLOP/s, {:.1} µs", flops / seconds / 1e12, seconds * 1e6)
}

/// Bytes per second, in words.
fn giga(bytes: usize, seconds: f64) -> String {
    format!("{:.1} GB/s, {:.1} µs", bytes as f64 / seconds / 1e9, seconds * 1e6)
}

/// A part of the table.
type Section = fn(&mut Bench<'_>) -> Result<Vec<String>, DeviceError>;

const SECTIONS: [(&str, Section); 12] = [
    ("gemm", products::dense),
    ("attention", attention::packed),
    ("decode", attention::decode),
    ("vertical and slash", attention::pattern),
    ("spmm", products::sparse),
    ("moe", memory::experts),
    ("lsh", memory::hashed),
    ("gather", memory::gather),
    ("host link", memory::link),
    ("launch", memory::launches),
    ("overlap", products::overlap),
    ("exchanges", exchanges::all),
];

impl Cuda {
    /// Times the kernels; one line each. A device that fails measures no more.
    pub(super) fn measure_speeds(&mut self, say: &mut dyn FnMut(String)) -> Result<(), DeviceError> {
        let driver = std::rc::Rc::clone(&self.driver);
        let sizes = if driver.memory()?.1 < LARGE { &SMALL } else { &FULL };
        let (on, other) = (driver.stream()?, driver.stream()?);
        let mut bench = Bench { driver: &driver, gemm: &mut self.gemm, peers: &mut self.peers, sizes, on, other };
        for (name, section) in SECTIONS {
            match section(&mut bench) {
                Ok(lines) => lines.into_iter().for_each(&mut *say),
                // The others may fit.
                Err(error @ DeviceError::OutOfMemory { .. }) => say(format!("{name}: {error}")),
                Err(error) => return Err(error),
            }
        }
        for stream in [on, other] {
            #[expect(unsafe_code, reason = "streams of our own")]
            // SAFETY: nothing is under way on them, and each goes once.
            unsafe { cudarc::driver::result::stream::destroy(stream) }.map_err(lost("stream"))?;
        }
        Ok(())
    }
}
