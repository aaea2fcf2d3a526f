//! One measured operation, how it is measured, and the log that keeps it: a line of JSON each, written as it comes.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine::task::{Collective, CopyKind, Document, Op, Pass, Stream};
use hw::quantile;
use hw::{Format, GroupShape};
use serde::{Deserialize, Serialize};

use crate::device::{Device, DeviceError, Facts};
use crate::family::Family;

/// Quantile of times that counts, of launches as of runs: others that use the machine only make it slower, for a while at a time, and a
/// quiet machine has hardly another median than lower quartile.
pub const UNDISTURBED: f64 = 0.25;
/// Launches of a sample, at least and at most.
const LAUNCHES: (f64, f64) = (5.0, 60.0);
/// Seconds from which a kernel is long: its start no longer matters, and few launches do.
const LONG: f64 = 0.2;
/// Launches of a long kernel.
const LAUNCHES_LONG: f64 = 3.0;
/// Seconds that one sample should take.
pub const SECONDS: f64 = 0.03;
/// Launches of an operation that takes longer than that, two to warm up among them.
pub const LAUNCHES_ALL: f64 = 2.0 + LAUNCHES.0;
/// No kernel takes longer than this; the watchdog then gives up.
pub const WATCHDOG: Duration = Duration::from_secs(60);
/// Median absolute deviation to standard deviation of a normal distribution.
const MAD_TO_SIGMA: f64 = 1.4826;

/// A measured operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// What ran.
    pub op: Op,
    /// Lower quartile of its launches, seconds.
    pub seconds: f64,
    /// Its relative standard error.
    pub spread: f64,
    /// Time of the reference kernel beside it over its lower quartile: 1.1 and above is a device that throttles, or is shared.
    pub slowdown: f64,
}

impl Sample {
    /// Seconds at the usual speed of the device. Products and attention follow the reference product, which is limited by the same units
    /// and clocks; the time of what is limited by memory or a link is left as it is.
    pub fn steady_s(&self) -> f64 {
        match self.op {
            Op::Gemm { .. } | Op::Attention { .. } => self.seconds / self.slowdown,
            _ => self.seconds,
        }
    }
}

/// Stream that an operation is measured on.
pub const fn stream_of(op: &Op) -> Stream {
    match op {
        Op::Collective { .. } => Stream::IntraNode,
        Op::Copy { kind: CopyKind::HostToDevice, .. } => Stream::HostToDevice,
        Op::Copy { kind: CopyKind::DeviceToHost, .. } => Stream::DeviceToHost,
        _ => Stream::Compute,
    }
}

/// What launches of an operation took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed {
    /// Lower quartile, seconds.
    pub seconds: f64,
    /// Its relative standard error.
    pub spread: f64,
    /// Lower quartile of the reference kernel in between, seconds; none on other streams than that of compute.
    pub reference_s: Option<f64>,
}

/// Times launches of an operation, after warm-up.
///
/// The reference kernel runs before each launch on the compute stream. In a real step another operation runs in between as well. An operation
/// that follows itself is too fast: caches and prefetchers still hold its data. The kernel's time says how fast the device was just then.
///
/// # Errors
/// When the device fails.
pub fn time(device: &mut dyn Device, op: &Op) -> Result<Timed, DeviceError> {
    device.reserve(op)?;
    if stream_of(op) == Stream::Compute {
        device.reserve(&device.facts().reference.clone())?;
    }
    let once = |device: &mut dyn Device| {
        let begun = Instant::now();
        let seconds = launches(device, op, 1)?[0].0.max(1e-7);
        Ok::<_, DeviceError>((seconds, begun.elapsed().as_secs_f64().max(seconds)))
    };
    let (mut seconds, mut each) = once(device)?;
    if seconds < LONG {
        (seconds, each) = once(device)?;
    }
    let least = if seconds < LONG { LAUNCHES.0 } else { LAUNCHES_LONG };
    // A launch costs what is between launches as well.
    let n = hw::whole((SECONDS / each).clamp(least, LAUNCHES.1));
    let (times, references): (Vec<f64>, Vec<Option<f64>>) = launches(device, op, n)?.into_iter().unzip();
    let references: Option<Vec<f64>> = references.into_iter().collect();
    let seconds = quantile::of(&times, UNDISTURBED);
    let off: Vec<f64> = times.iter().map(|time| (time - seconds).abs()).collect();
    let spread = MAD_TO_SIGMA * quantile::of(&off, 0.5) / seconds.max(1e-12) / hw::real(n).sqrt();
    Ok(Timed { seconds, spread, reference_s: references.map(|references| quantile::of(&references, UNDISTURBED)) })
}

/// Seconds of launches, with those of the reference kernel before each where it ran.
fn launches(device: &mut dyn Device, op: &Op, n: u64) -> Result<Vec<(f64, Option<f64>)>, DeviceError> {
    let (stream, reference) = (stream_of(op), device.facts().reference.clone());
    let is_behind = stream == Stream::Compute && *op != reference;
    let mark_s = device.mark_s()?;
    for _ in 0..n {
        if is_behind {
            device.mark(stream)?;
            device.launch(&reference, stream)?;
        }
        device.mark(stream)?;
        device.launch(op, stream)?;
        device.mark(stream)?;
    }
    let marks = device.finish(WATCHDOG)?;
    let seconds = |from: u64, to: u64| between(from, to, mark_s);
    let launch = |marks: &[u64]| match *marks {
        [before, start, end] => (seconds(start, end), Some(seconds(before, start))),
        _ => (seconds(marks[0], marks[1]), None),
    };
    Ok(marks.chunks_exact(if is_behind { 3 } else { 2 }).map(launch).collect())
}

/// Seconds of a kernel between two marks, in nanoseconds, without what a mark adds to it.
pub fn between(from: u64, to: u64, mark_s: f64) -> f64 {
    (hw::Span::from_ns(to.saturating_sub(from)).to_seconds().get() - mark_s).max(0.0)
}

/// Bytes of the kernel that shows what a mark costs: it ends after the host has sent the next one, and is as good as constant.
const MARKED_BYTES: u64 = 32 << 20;
/// Launches of a chain of them, and how often each chain runs.
const MARKED: (usize, usize) = (30, 3);
/// The host's wait for one of them from which a mark does not count: a GPU is done in less than a tenth of it, what only plays one is not.
const WAIT: Duration = Duration::from_millis(3);

/// What a mark between two kernels adds to them, in seconds: a chain of kernels with marks in between against the same without.
///
/// # Errors
/// When the device fails.
pub fn mark_cost(device: &mut dyn Device) -> Result<f64, DeviceError> {
    let op = Op::Elementwise { bytes: MARKED_BYTES };
    // The first one makes room, and the host may be busy once.
    let mut least = Duration::MAX;
    for _ in 0..3 {
        let begun = Instant::now();
        chain(device, &op, 1, false)?;
        least = least.min(begun.elapsed());
    }
    if least > WAIT {
        return Ok(0.0);
    }
    let (launches, rounds) = MARKED;
    // The first of each warms up.
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..=rounds {
        with.push(chain(device, &op, launches, true)?);
        without.push(chain(device, &op, launches, false)?);
    }
    let added = quantile::of(&with[1..], 0.5) - quantile::of(&without[1..], 0.5);
    Ok((added / hw::real(launches as u64)).max(0.0))
}

/// Seconds of so many launches, one behind the other, with marks between them or without.
fn chain(device: &mut dyn Device, op: &Op, launches: usize, is_marked: bool) -> Result<f64, DeviceError> {
    let stream = stream_of(op);
    device.reserve(op)?;
    device.mark(stream)?;
    for index in 1..=launches {
        device.launch(op, stream)?;
        if is_marked || index == launches {
            device.mark(stream)?;
        }
    }
    let marks = device.finish(WATCHDOG)?;
    let nanoseconds = marks.last().zip(marks.first()).map_or(0, |(end, start)| end - start);
    Ok(hw::Span::from_ns(nanoseconds).to_seconds().get())
}

/// A line of the log.
#[derive(Serialize, Deserialize)]
struct Line {
    device: String,
    kernel: String,
    sizes: Vec<u64>,
    seconds: f64,
    spread: f64,
    slowdown: f64,
}

/// Samples as they come, in a file that a stopped calibration is resumed from.
pub struct Log {
    path: PathBuf,
    file: std::fs::File,
    device: String,
}

/// Samples of a device in a log, and whether its last line is whole. Lines that were cut off are left out.
fn read(path: &Path, facts: &Facts) -> std::io::Result<(Vec<Sample>, bool)> {
    let mut earlier = Vec::new();
    let mut is_whole = true;
    if let Ok(file) = std::fs::File::open(path) {
        for line in BufReader::new(file).lines() {
            let line = line?;
            let parsed = serde_json::from_str::<Line>(&line);
            is_whole = parsed.is_ok();
            earlier.extend(parsed.ok().filter(|line| line.device == facts.name).and_then(|line| line.sample()));
        }
    }
    Ok((earlier, is_whole))
}

/// The device that a log is of, by its first line.
pub fn device_of(path: &Path) -> Option<String> {
    let first = BufReader::new(std::fs::File::open(path).ok()?).lines().next()?.ok()?;
    serde_json::from_str::<Line>(&first).ok().map(|line| line.device)
}

/// Samples of a device in a log; none where the file is missing or cannot be read.
pub fn of_log(path: &Path, facts: &Facts) -> Vec<Sample> {
    read(path, facts).map(|(samples, _)| samples).unwrap_or_default()
}

/// Writes samples as a log of their own, in the place of what was there.
///
/// # Errors
/// When the file cannot be written.
pub fn keep(path: &Path, facts: &Facts, samples: &[Sample]) -> std::io::Result<()> {
    std::fs::write(path, "")?;
    let (mut log, _) = Log::open(path, facts)?;
    samples.iter().try_for_each(|sample| log.append(sample))
}

impl Log {
    /// Opens a log for more lines; what the same device wrote before comes back.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn open(path: &Path, facts: &Facts) -> std::io::Result<(Self, Vec<Sample>)> {
        let (earlier, is_whole) = read(path, facts)?;
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        if !is_whole {
            // The next line must not be glued to one that was cut off.
            writeln!(file)?;
        }
        Ok((Self { path: path.to_owned(), file, device: facts.name.clone() }, earlier))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a sample.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn append(&mut self, sample: &Sample) -> std::io::Result<()> {
        let Some((kernel, sizes)) = sizes(&sample.op) else { return Ok(()) };
        let Sample { seconds, spread, slowdown, .. } = *sample;
        let line = Line { device: self.device.clone(), kernel, sizes, seconds, spread, slowdown };
        let text = serde_json::to_string(&line).map_err(std::io::Error::other)?;
        writeln!(self.file, "{text}")
    }
}

/// Kernel and sizes of an operation, from which it can be made again.
fn sizes(op: &Op) -> Option<(String, Vec<u64>)> {
    let name = Family::of(op)?.name();
    let sizes = match op {
        Op::Gemm { m, n, k, .. } => vec![*m, *n, *k],
        Op::Attention { documents, n_heads, n_kv_heads, head_dim, .. } => [*n_heads, *n_kv_heads, *head_dim]
            .into_iter()
            .chain(documents.iter().flat_map(|document| [document.queries, document.keys, document.pairs]))
            .collect(),
        Op::Embedding { tokens, row_bytes } => vec![*tokens, *row_bytes],
        Op::Collective { bytes, shape, .. } => vec![*bytes, u64::from(shape.n_ranks)],
        Op::Copy { bytes, .. } | Op::Elementwise { bytes } => vec![*bytes],
        _ => return None,
    };
    Some((name, sizes))
}

impl Line {
    fn sample(&self) -> Option<Sample> {
        let is_positive = |value: f64| value.is_finite() && value > 0.0;
        let valid = is_positive(self.seconds) && is_positive(self.slowdown);
        let op = self.op().filter(|_| valid)?;
        Some(Sample { op, seconds: self.seconds, spread: self.spread, slowdown: self.slowdown })
    }

    fn op(&self) -> Option<Op> {
        let collective = |kind| {
            let [bytes, n_ranks] = *self.sizes else { return None };
            let shape = GroupShape::inside(u32::try_from(n_ranks).ok()?);
            Some(Op::Collective { kind, bytes, shape })
        };
        let copy = |kind| Some(Op::Copy { kind, bytes: *self.sizes.first()? });
        match (self.kernel.as_str(), self.sizes.as_slice()) {
            ("gemm", &[m, n, k]) => Some(Op::Gemm { m, n, k, format: Format::Bf16 }),
            ("gemm-fp8", &[m, n, k]) => Some(Op::Gemm { m, n, k, format: Format::Fp8 }),
            ("elementwise", &[bytes]) => Some(Op::Elementwise { bytes }),
            ("embedding", &[tokens, row_bytes]) => Some(Op::Embedding { tokens, row_bytes }),
            ("host_to_device", _) => copy(CopyKind::HostToDevice),
            ("device_to_host", _) => copy(CopyKind::DeviceToHost),
            ("device_to_device", _) => copy(CopyKind::DeviceToDevice),
            (name, sizes) if name.starts_with("attention") && sizes.len() >= 6 => {
                let pass = if name.starts_with("attention-backward") { Pass::Backward } else { Pass::Forward };
                let document = |d: &[u64]| Document { queries: d[0], keys: d[1], pairs: d[2] };
                let documents = sizes[3..].chunks_exact(3).map(document).collect();
                let [n_heads, n_kv_heads, head_dim] = [sizes[0], sizes[1], sizes[2]];
                Some(Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv: hw::Dtype::Bf16, pass })
            }
            (name, _) => match name.rsplit_once('-')?.0 {
                "all_gather" => collective(Collective::AllGather),
                "reduce_scatter" => collective(Collective::ReduceScatter),
                "all_reduce" => collective(Collective::AllReduce),
                "all_to_all" => collective(Collective::AllToAll),
                "send_recv" => collective(Collective::SendRecv),
                "ring_shift" => collective(Collective::RingShift),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::general;

    #[test]
    fn what_is_logged_comes_back_and_a_cut_line_is_left_out() {
        let folder = std::env::temp_dir().join(format!("skrull-sim-log-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let path = folder.join("log.jsonl");
        let facts = crate::tests::fake::Fake::facts_of("one");
        let samples: Vec<Sample> = general(1024, 4)
            .iter()
            .map(|(family, region)| Sample {
                op: region.at(*family, [0.4; 5]),
                seconds: 1e-3,
                spread: 0.01,
                slowdown: 1.0,
            })
            .collect();
        let (mut log, earlier) = Log::open(&path, &facts).expect("a log");
        assert!(earlier.is_empty());
        samples.iter().for_each(|sample| log.append(sample).expect("written"));
        write!(log.file, "{{\"device\":\"on").expect("written");
        drop(log);
        let (mut log, earlier) = Log::open(&path, &facts).expect("a log");
        assert_eq!(earlier, samples);
        log.append(&samples[0]).expect("written");
        assert_eq!(Log::open(&path, &facts).expect("a log").1.len(), samples.len() + 1);
        let other = Log::open(&path, &crate::tests::fake::Fake::facts_of("two")).expect("a log").1;
        assert!(other.is_empty(), "samples of another device are not ours");
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
