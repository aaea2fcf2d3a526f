//! The CPU as a device: a pool of pinned threads for kernels, a thread for every stream, float32 throughout.
//!
//! It exists so that the whole loop of calibration, execution and validation runs anywhere. Ranks share the one device, so a plan
//! of several is run rank by rank; collectives run with a thread per rank and real copies.

mod check;
mod exchange;
mod kernels;
mod stream;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Sender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::task::{Op, Stream};
use hw::Bytes;

use crate::device::{Device, DeviceError, Facts, Mark, describe};
use stream::{Board, Command, Worker};

pub(crate) use exchange::sizes as exchange_sizes;

/// Smallest buffers of operands, in elements: 256 MiB, several times the last cache of today's processors.
const OPERANDS_MIN: usize = 64 << 20;
/// Largest share of the free memory that the device takes for itself.
const MEMORY_SHARE: f64 = 0.5;

/// The device.
pub struct Cpu {
    facts: Facts,
    pool: Arc<rayon::ThreadPool>,
    board: Arc<Board>,
    operands: Arc<Vec<f32>>,
    streams: BTreeMap<usize, Line>,
    n_marks: usize,
    last: String,
}

/// A stream's thread and what was promised to it.
struct Line {
    commands: Sender<Command>,
    worker: Option<JoinHandle<()>>,
    /// Elements of its result buffer.
    room: usize,
}

impl Cpu {
    /// Takes so many threads, or one per core but one: the system, the thread that keeps the queue and those of copies need one as well,
    /// and a product that is cut over all cores waits for the slowest.
    ///
    /// # Errors
    /// When there are fewer cores, or the threads cannot be started.
    pub fn open(name: &str, threads: Option<usize>) -> Result<Self, DeviceError> {
        let missing = |why: String| DeviceError::Missing { device: name.to_owned(), why };
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let n_cores = cores.len().max(1);
        let threads = threads.unwrap_or_else(|| n_cores.saturating_sub(1).max(1));
        if threads == 0 || threads > n_cores {
            return Err(missing(format!("{threads} threads were asked for, this machine has {n_cores} cores")));
        }
        let pin = move |index: usize| {
            // Where the system does not let a thread be pinned, it floats.
            let _ = cores.get(index % n_cores).is_some_and(|core| core_affinity::set_for_current(*core));
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).start_handler(pin).build();
        let pool = pool.map_err(|error| missing(error.to_string()))?;
        let facts = facts(threads);
        let operands = Arc::new(random(OPERANDS_MIN.min(elements(facts.memory) / 4)));
        let board = Arc::new(Board::new(Instant::now()));
        Ok(Self {
            facts,
            pool: Arc::new(pool),
            board,
            operands,
            streams: BTreeMap::new(),
            n_marks: 0,
            last: "none".to_owned(),
        })
    }

    fn line(&mut self, stream: Stream) -> &mut Line {
        let (pool, board, operands) = (&self.pool, &self.board, &self.operands);
        self.streams.entry(stream.index()).or_insert_with(|| {
            let (commands, received) = std::sync::mpsc::channel();
            let worker = Worker::new(Arc::clone(pool), Arc::clone(board), Arc::clone(operands));
            let worker = std::thread::spawn(move || worker.work(&received));
            Line { commands, worker: Some(worker), room: 0 }
        })
    }

    fn send(&mut self, stream: Stream, command: Command) -> Result<(), DeviceError> {
        let sent = self.line(stream).commands.send(command);
        sent.map_err(|_| DeviceError::Lost(format!("the thread of a stream ended during {}", self.last)))
    }

    /// Elements of operands and results.
    fn footprint(op: &Op) -> Result<(usize, usize), &'static str> {
        stream::footprint(op).ok_or("operands")
    }

    /// Stream that an operation is checked on.
    const fn stream_of(op: &Op) -> Stream {
        match op {
            Op::Collective { .. } => Stream::IntraNode,
            _ => Stream::Compute,
        }
    }

    fn reserve_on(&mut self, op: &Op, stream: Stream) -> Result<(), DeviceError> {
        let capacity = elements(self.facts.memory);
        let used = self.operands.len() + self.streams.values().map(|line| line.room).sum::<usize>();
        let too_large = |tensor, needed: usize| DeviceError::OutOfMemory {
            tensor,
            op: describe(op),
            needed: Bytes(4 * needed as u64),
            free: Bytes(4 * capacity.saturating_sub(used) as u64),
        };
        let (n_in, n_out) = Self::footprint(op).map_err(|tensor| too_large(tensor, usize::MAX / 8))?;
        if n_in > self.operands.len() {
            if used + n_in > capacity {
                return Err(too_large("operands", n_in));
            }
            self.operands = Arc::new(random(n_in));
            let operands = Arc::clone(&self.operands);
            for line in self.streams.values() {
                // A stream whose thread ended says so at its next launch.
                let _ = line.commands.send(Command::Operands(Arc::clone(&operands)));
            }
        }
        let room = self.line(stream).room;
        // Results rotate as well: room for several.
        let wanted = n_out.max(OPERANDS_MIN.min(elements(self.facts.memory) / 8));
        if wanted > room {
            if used - room + wanted > capacity {
                return Err(too_large("result", n_out));
            }
            self.line(stream).room = wanted;
            self.send(stream, Command::Room(wanted))?;
        }
        Ok(())
    }
}

impl Device for Cpu {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn host(&self) -> Option<&rayon::ThreadPool> {
        Some(&self.pool)
    }

    fn runs(&self, op: &Op) -> bool {
        // Narrow formats would run as 32-bit ones, which says nothing of them.
        match op {
            Op::Collective { shape, .. } => shape.n_nodes == 1,
            Op::Gemm { format, .. } | Op::GroupedGemm { format, .. } => format.is_whole(),
            _ => true,
        }
    }

    fn reserve(&mut self, op: &Op) -> Result<(), DeviceError> {
        match op {
            Op::Copy { kind: engine::task::CopyKind::HostToDevice, .. } => self.reserve_on(op, Stream::HostToDevice),
            Op::Copy { kind: engine::task::CopyKind::DeviceToHost, .. } => self.reserve_on(op, Stream::DeviceToHost),
            Op::Collective { .. } => {
                self.reserve_on(op, Stream::IntraNode)?;
                self.reserve_on(op, Stream::PointToPoint)
            }
            _ => self.reserve_on(op, Stream::Compute),
        }
    }

    fn launch(&mut self, op: &Op, stream: Stream) -> Result<(), DeviceError> {
        // Room for streams that `reserve` does not know of is made on the way.
        self.reserve_on(op, stream)?;
        self.last = describe(op);
        self.send(stream, Command::Run(op.clone(), None))
    }

    fn mark(&mut self, stream: Stream) -> Result<Mark, DeviceError> {
        let mark = Mark(self.n_marks);
        self.n_marks += 1;
        self.send(stream, Command::Mark(mark.0)).map(|()| mark)
    }

    fn wait(&mut self, stream: Stream, mark: Mark) -> Result<(), DeviceError> {
        self.send(stream, Command::Wait(mark.0))
    }

    fn finish(&mut self, limit: Duration) -> Result<Vec<u64>, DeviceError> {
        let streams: Vec<Stream> =
            Stream::ALL.into_iter().filter(|stream| self.streams.contains_key(&stream.index())).collect();
        let asked = self.n_marks;
        for stream in streams {
            self.mark(stream)?;
        }
        let all = std::mem::take(&mut self.n_marks);
        let dead = || self.streams.values().any(|line| line.worker.as_ref().is_none_or(JoinHandle::is_finished));
        match self.board.all(all, limit, dead) {
            Some(mut times) => {
                times.truncate(asked);
                Ok(times)
            }
            None if dead() => Err(DeviceError::Lost(format!("a kernel thread ended during {}", self.last))),
            None => Err(DeviceError::Hung { op: self.last.clone(), after: limit }),
        }
    }

    fn check_finite(&mut self, op: &Op) -> Result<(), DeviceError> {
        let stream = Self::stream_of(op);
        self.reserve_on(op, stream)?;
        let (answer, written) = sync_channel(1);
        self.send(stream, Command::Run(op.clone(), Some(answer)))?;
        match written.recv() {
            Ok(true) => Ok(()),
            Ok(false) => Err(DeviceError::NotANumber { op: describe(op) }),
            Err(_) => Err(DeviceError::Lost(format!("a kernel thread ended during {}", describe(op)))),
        }
    }

    fn check_kernels(&mut self) -> Result<Vec<String>, DeviceError> {
        self.pool.install(check::all)
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        for (_, mut line) in std::mem::take(&mut self.streams) {
            drop(line.commands);
            if let Some(worker) = line.worker.take().filter(|worker| worker.is_finished()) {
                // A thread that panicked was reported when it was noticed; one that still works is left to end by itself.
                let _ = worker.join();
            }
        }
    }
}

fn elements(bytes: Bytes) -> usize {
    usize::try_from(bytes.0 / 4).unwrap_or(usize::MAX)
}

/// Numbers between −0.5 and 0.5: never denormal, never growing without bound in a product.
fn random(n: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (f64::from(state) / f64::from(u32::MAX) - 0.5) as f32
    };
    (0..n).map(|_| next()).collect()
}

/// What the system says of its processor; unknown where it says nothing.
fn facts(threads: usize) -> Facts {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split(':').nth(1)?.trim().to_owned())
    };
    let processor = read("/proc/cpuinfo");
    let name = field(&processor, "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let clocks = field(&processor, "cpu MHz").map_or_else(|| "unknown".to_owned(), |mhz| format!("{mhz} MHz"));
    let kilobytes = field(&read("/proc/meminfo"), "MemAvailable")
        .and_then(|text| text.trim_end_matches("kB").trim().parse::<u64>().ok())
        .unwrap_or(4 << 20);
    let words = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    Facts {
        name: format!("{name}, {words}"),
        gpu: Some("cpu".to_owned()),
        driver: "gemm 0.19, float32".to_owned(),
        clocks,
        memory: Bytes::from_f64(hw::real(kilobytes * 1024) * MEMORY_SHARE),
        tile: (16, 4, 1),
        n_devices: 1,
        reference: Op::Gemm { m: 256, n: 256, k: 256, format: hw::Format::Bf16 },
    }
}

#[cfg(test)]
mod tests;
