//! An NVIDIA GPU as a device: kernels of `calibrate/kernels` compiled at run time, products by cuBLASLt, exchanges by NCCL.
//!
//! Operands are random bf16 from one large buffer, taken in turn; every stream writes results into a buffer of its own, in turn as
//! well, both larger than the second-level cache. Times are those of events on the streams. The whole backend is one thread.

mod attention;
mod check;
mod clock;
mod driver;
mod gemm;
mod kernels;
mod launch;
mod libraries;
mod missing;
mod nccl;
mod operands;
mod sources;
mod speed;
mod symbols;
mod tiled_csl;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use engine::task::{CopyKind, Op, Stream};
use hw::{Bytes, Format};

use self::missing::Missing;
use crate::device::{Device, DeviceError, Facts, Mark, describe};
use crate::sample::{self, WATCHDOG};
use attention::Packed;
use clock::elapsed;
use driver::record;
use driver::{Address, Arg, Buffer, Driver, Pinned, guarded, lost};
use gemm::{Gemm, Operands};
use launch::kind;
use nccl::Peers;
use operands::{ALIGN, Arena, arena_min, copied, footprint, free_grid, grow, long, padded, random, size};

/// Milliseconds after which times are counted from a later event: a 32-bit number of them keeps 30 ns up to here.
const STEP_MS: f64 = 250.0;

/// The device.
pub struct Cuda {
    facts: Facts,
    driver: Rc<Driver>,
    gemm: Gemm,
    peers: Option<Peers>,
    operands: Arena,
    /// Operands of fp8 products, where one is asked for.
    fp8: Option<Arena>,
    /// Zeros for what random bits would make meaningless: log-sum-exp and its like.
    zeros: Option<Buffer>,
    /// Row numbers of embeddings, by how many there are.
    rows: BTreeMap<u64, Buffer>,
    host: Option<Pinned>,
    packed: BTreeMap<Op, Packed>,
    lines: BTreeMap<usize, Line>,
    events: Vec<sys::CUevent>,
    n_marks: usize,
    /// What a mark adds to kernels, once it was asked for.
    mark_s: Option<f64>,
    last: String,
}

/// A stream and its results.
struct Line {
    stream: sys::CUstream,
    results: Option<Arena>,
    /// Recorded behind everything when the device is waited for.
    end: sys::CUevent,
}

impl Cuda {
    /// Opens the GPU of this number.
    ///
    /// # Errors
    /// When there is none, or its driver or a library is missing.
    pub fn open(name: &str, ordinal: usize) -> Result<Self, DeviceError> {
        guarded(name, || {
            let driver = Driver::open(name, ordinal)?;
            let peers = Peers::find(&driver, ordinal);
            // Opening the other GPUs made theirs the context of this thread.
            driver.bind()?;
            let facts = facts(&driver, &peers)?;
            // Without them the GPU still measures all but exchanges; the facts say why.
            let peers = peers.unwrap_or_default();
            let gemm = Gemm::open(&driver)?;
            let operands = random(&driver, arena_min(&driver), "random_bf16", "the first operation")?;
            Ok(Self {
                facts,
                gemm,
                peers,
                operands,
                fp8: None,
                zeros: None,
                rows: BTreeMap::new(),
                host: None,
                packed: BTreeMap::new(),
                lines: BTreeMap::new(),
                events: Vec::new(),
                n_marks: 0,
                mark_s: None,
                last: "none".to_owned(),
                driver,
            })
        })
    }

    fn line(&mut self, stream: Stream) -> Result<sys::CUstream, DeviceError> {
        if let Some(line) = self.lines.get(&stream.index()) {
            return Ok(line.stream);
        }
        let line = Line { stream: self.driver.stream()?, results: None, end: self.driver.event()? };
        let made = line.stream;
        self.lines.insert(stream.index(), line);
        Ok(made)
    }

    /// Room for results of a stream.
    fn room(&mut self, stream: Stream, len: usize, op: &Op) -> Result<(), DeviceError> {
        self.line(stream)?;
        let line = self.lines.get_mut(&stream.index()).expect("just made");
        if len == 0 {
            return Ok(());
        }
        let wanted = len.max(arena_min(&self.driver));
        if line.results.as_ref().is_none_or(|arena| arena.buffer.len < len) {
            line.results = None;
            let buffer = self.driver.allocate(wanted, "result", &describe(op))?;
            line.results = Some(Arena::new(buffer));
        }
        Ok(())
    }

    fn results(&mut self, stream: Stream, len: usize) -> Result<Address, DeviceError> {
        let line = self.lines.get_mut(&stream.index());
        let missing = || DeviceError::Lost("an operation that was not reserved".to_owned());
        line.and_then(|line| line.results.as_mut()).ok_or_else(missing)?.take(len)
    }

    fn reserve_on(&mut self, op: &Op, stream: Stream) -> Result<(), DeviceError> {
        let (n_in, n_out) = footprint(op);
        let words = describe(op);
        if n_in > self.operands.buffer.len {
            // The old ones go first: both together might not fit.
            self.operands = random(&self.driver, arena_min(&self.driver), "random_bf16", &words)?;
            self.operands = random(&self.driver, n_in, "random_bf16", &words)?;
        }
        self.room(stream, n_out, op)?;
        match op {
            Op::Gemm { m, n, k, format } => self.reserve_gemm((*m, *n, *k, *format), &words, stream)?,
            Op::GroupedGemm { rows, n, k, format, .. } => {
                for m in rows.iter().filter(|m| **m > 0) {
                    self.reserve_gemm((*m, *n, *k, *format), &words, stream)?;
                }
            }
            Op::Attention { documents, n_heads, .. } => {
                if !self.packed.contains_key(op) {
                    let packed = Packed::new(&self.driver, documents, &words)?;
                    self.packed.insert(op.clone(), packed);
                }
                let rows = documents.iter().map(|document| document.queries.max(1)).sum::<u64>() * n_heads;
                grow(&self.driver, &mut self.zeros, 4 * size(rows), &words)?;
            }
            Op::Embedding { tokens, .. } => {
                let row = |index: u64| i32::try_from(index * 2_654_435_761 % (*tokens).max(1)).unwrap_or(0);
                if !self.rows.contains_key(tokens) {
                    let rows: Vec<i32> = (0..*tokens).map(row).collect();
                    self.rows.insert(*tokens, self.driver.upload(&rows, "row numbers", &words)?);
                }
            }
            Op::Copy { kind: kind @ (CopyKind::HostToDevice | CopyKind::DeviceToHost), bytes }
                if self.host.as_ref().is_none_or(|host| host.len < copied(*kind, *bytes)) =>
            {
                self.host = None;
                let len = copied(*kind, *bytes).max(arena_min(&self.driver) / 4);
                self.host = Some(self.driver.pinned(len, &words)?);
            }
            Op::Collective { kind, bytes, shape } => {
                if let Some(peers) = &mut self.peers {
                    peers.reserve(*kind, size(bytes.div_ceil(2)), shape.n_ranks, &words)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn reserve_gemm(&mut self, (m, n, k, format): gemm::Size, words: &str, stream: Stream) -> Result<(), DeviceError> {
        let ([m, n, k], format) = (padded([m, n, k], format), kind(format));
        if format == Format::Fp8 {
            let needed = footprint(&Op::Gemm { m, n, k, format }).0;
            if self.fp8.as_ref().is_none_or(|arena| arena.buffer.len < needed) {
                self.fp8 = None;
                let len = needed.max(arena_min(&self.driver) / 2);
                self.fp8 = Some(random(&self.driver, len, "random_fp8", words)?);
            }
        }
        let operands = self.gemm_operands((m, n, k, format), stream)?;
        let on = self.line(stream)?;
        self.gemm.prepare((m, n, k, format), operands, on)
    }

    /// Places of a product's operands and result.
    fn gemm_operands(&mut self, (m, n, k, format): gemm::Size, stream: Stream) -> Result<Operands, DeviceError> {
        let (n_in, n_out) = footprint(&Op::Gemm { m, n, k, format });
        let arena = match &mut self.fp8 {
            Some(arena) if format == Format::Fp8 => arena,
            _ => &mut self.operands,
        };
        let left = arena.take(n_in)?;
        let wide = if format == Format::Fp8 { 1 } else { 2 };
        let right = left + (size(m * k) * wide).next_multiple_of(ALIGN) as u64;
        Ok(Operands { left, right, out: self.results(stream, n_out)? })
    }

    /// Waits for all streams.
    fn settle(&mut self, limit: Duration) -> Result<(), DeviceError> {
        let begun = Instant::now();
        self.lines.values().try_for_each(|line| record(line.end, line.stream))?;
        self.lines.values().try_for_each(|line| self.driver.reach(line.end, &self.last, begun, limit))
    }
}

fn facts(driver: &Driver, peers: &Result<Option<Peers>, Missing>) -> Result<Facts, DeviceError> {
    use sys::CUdevice_attribute::{CU_DEVICE_ATTRIBUTE_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT};
    let context = &driver.context;
    let name = context.name().map_err(lost("name"))?;
    let version = driver.version;
    let exchanges = match peers {
        Ok(None) => String::new(),
        Ok(Some(peers)) => format!(", {}", peers.words()),
        Err(why) => format!(", no exchanges: {why}"),
    };
    let attribute = |which| context.attribute(which).unwrap_or(0);
    let slots = u64::try_from(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)).unwrap_or(1).max(1);
    let (_, memory) = driver.memory()?;
    Ok(Facts {
        driver: format!(
            "CUDA {}.{}, compute capability {}{exchanges}",
            version / 1000,
            version % 1000 / 10,
            driver.capability
        ),
        clocks: format!("at most {} MHz", attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1000),
        memory,
        n_devices: peers.as_ref().ok().and_then(Option::as_ref).map_or(1, Peers::len),
        ..Facts::of_gpu(&name, catalogue_name(&name, memory), slots)
    })
}

/// Entry of the catalogue that a device name means. Words are whole: an L40 is no L4 and a GH200 no H200.
fn catalogue_name(name: &str, memory: Bytes) -> Option<String> {
    let large = memory.as_f64() > 60e9;
    let words: Vec<&str> = name.split([' ', '-']).collect();
    let has = |word: &str| words.contains(&word);
    // Other boards of a chip, parts of one, and those of laptops have other rates.
    if ["Laptop", "D", "Ti", "MIG"].into_iter().any(has) {
        return None;
    }
    let is_card = has("PCIe") || has("PCIE");
    let entry = words.iter().find_map(|word| match *word {
        "GB200" => Some("gb200"),
        "B200" => Some("b200"),
        "GH200" => Some(if memory.as_f64() > 120e9 { "gh200-144g" } else { "gh200-96g" }),
        "H200" => (!has("NVL")).then_some("h200-sxm"),
        "H100" if has("NVL") => Some("h100-nvl"),
        "H100" => Some(if is_card { "h100-pcie" } else { "h100-sxm" }),
        "H20" => Some("h20"),
        "A100" if is_card => large.then_some("a100-pcie-80g"),
        "A100" => Some(if large { "a100-sxm-80g" } else { "a100-sxm-40g" }),
        "L40S" => Some("l40s"),
        "L20" => Some("l20"),
        "L4" => Some("l4"),
        "T4" => Some("t4"),
        "A6000" => Some("a6000"),
        "A40" => Some("a40"),
        "A30" => Some("a30"),
        "A10G" => Some("a10g"),
        "A10" => Some("a10"),
        "6000" if has("PRO") => Some("rtx-pro-6000"),
        "6000" if has("Ada") => Some("rtx-6000-ada"),
        "5090" => Some("rtx-5090"),
        "4090" => Some("rtx-4090"),
        "3090" => Some("rtx-3090"),
        _ => None,
    });
    entry.map(str::to_owned)
}

impl Device for Cuda {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn runs(&self, op: &Op) -> bool {
        match op {
            Op::Gemm { format, .. } | Op::GroupedGemm { format, .. } => match format {
                Format::Fp8 => self.driver.capability >= 89,
                Format::Bf16 | Format::Fp16 => true,
                // No kernel is bundled for the others.
                _ => false,
            },
            Op::Attention { head_dim, pass, .. } => attention::runs(&self.driver, *head_dim, *pass),
            Op::Collective { shape, .. } => {
                let n = self.peers.as_ref().map_or(1, Peers::len);
                shape.n_nodes == 1 && (2..=n).contains(&shape.n_ranks)
            }
            _ => true,
        }
    }

    fn reserve(&mut self, op: &Op) -> Result<(), DeviceError> {
        self.reserve_on(op, crate::sample::stream_of(op))
    }

    fn launch(&mut self, op: &Op, stream: Stream) -> Result<(), DeviceError> {
        let (n_in, n_out) = footprint(op);
        let results = self.lines.get(&stream.index()).and_then(|line| line.results.as_ref());
        let room = results.map_or(0, |arena| arena.buffer.len);
        if n_out > room || n_in > self.operands.buffer.len {
            self.reserve_on(op, stream)?;
        }
        self.last = describe(op);
        self.run(op, stream).map(drop)
    }

    fn mark(&mut self, stream: Stream) -> Result<Mark, DeviceError> {
        let on = self.line(stream)?;
        // The first event of all is the origin of the clock.
        let wanted = self.n_marks + 2;
        while self.events.len() < wanted {
            self.events.push(self.driver.event()?);
        }
        if self.n_marks == 0 {
            record(self.events[0], on)?;
        }
        self.n_marks += 1;
        record(self.events[self.n_marks], on)?;
        Ok(Mark(self.n_marks - 1))
    }

    fn mark_s(&mut self) -> Result<f64, DeviceError> {
        if let Some(known) = self.mark_s {
            return Ok(known);
        }
        let found = sample::mark_cost(self)?;
        self.mark_s = Some(found);
        Ok(found)
    }

    fn wait(&mut self, stream: Stream, mark: Mark) -> Result<(), DeviceError> {
        let on = self.line(stream)?;
        clock::wait(on, self.events[mark.0 + 1])
    }

    fn finish(&mut self, limit: Duration) -> Result<Vec<u64>, DeviceError> {
        let n = std::mem::take(&mut self.n_marks);
        self.settle(limit)?;
        let mut times = Vec::with_capacity(n);
        let Some(mut origin) = self.events.first().copied() else { return Ok(times) };
        let mut passed = 0.0;
        for event in self.events.iter().skip(1).take(n) {
            let ms = f64::from(elapsed(origin, *event)?);
            times.push(hw::whole((passed + ms).max(0.0) * 1e6));
            if ms > STEP_MS {
                (origin, passed) = (*event, passed + ms);
            }
        }
        Ok(times)
    }

    fn check_finite(&mut self, op: &Op) -> Result<(), DeviceError> {
        let stream = crate::sample::stream_of(op);
        self.reserve_on(op, stream)?;
        let on = self.line(stream)?;
        // All ones are no number; the next results land somewhere in this buffer.
        let whole = self.lines.get(&stream.index()).and_then(|line| line.results.as_ref());
        if let Some((at, len)) = whole.map(|arena| (arena.buffer.at, arena.buffer.len)) {
            self.driver.fill(at, 0xff, len, on)?;
        }
        let found = self.driver.upload(&[0_i32], "count", "a look at results")?;
        self.last = describe(op);
        for (at, count) in self.run(op, stream)? {
            let args = [Arg::Pointer(at), long(count), Arg::Pointer(found.at)];
            self.driver.launch("count_not_finite", free_grid(count), &args, on)?;
        }
        self.settle(WATCHDOG)?;
        if self.driver.read::<i32>(found.at, 1)? != [0] {
            return Err(DeviceError::NotANumber { op: describe(op) });
        }
        Ok(())
    }

    fn check_kernels(&mut self) -> Result<Vec<String>, DeviceError> {
        self.check_all()
    }

    fn speeds(&mut self, say: &mut dyn FnMut(String)) -> Result<(), DeviceError> {
        self.measure_speeds(say)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_entries_of_the_catalogue_or_none() {
        let named = |name, gb: u64| catalogue_name(name, Bytes(gb * 1_000_000_000));
        for (name, gb, entry) in [
            ("NVIDIA H200", 141, Some("h200-sxm")),
            ("NVIDIA H200 NVL", 141, None),
            ("NVIDIA GH200 480GB", 102, Some("gh200-96g")),
            ("NVIDIA GH200 144G HBM3e", 153, Some("gh200-144g")),
            ("NVIDIA H100 NVL", 100, Some("h100-nvl")),
            ("NVIDIA H100 80GB HBM3", 80, Some("h100-sxm")),
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10, None),
            ("NVIDIA H100 PCIe", 80, Some("h100-pcie")),
            ("NVIDIA A100-SXM4-40GB", 40, Some("a100-sxm-40g")),
            ("NVIDIA A100 80GB PCIe", 80, Some("a100-pcie-80g")),
            ("NVIDIA A100-PCIE-40GB", 40, None),
            ("NVIDIA L40", 48, None),
            ("NVIDIA L20", 48, Some("l20")),
            ("Tesla T4", 16, Some("t4")),
            ("NVIDIA RTX 6000 Ada Generation", 48, Some("rtx-6000-ada")),
            ("NVIDIA L40S", 48, Some("l40s")),
            ("NVIDIA L4", 24, Some("l4")),
            ("NVIDIA GeForce RTX 4090", 24, Some("rtx-4090")),
            ("NVIDIA GeForce RTX 4090 Laptop GPU", 16, None),
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 96, Some("rtx-pro-6000")),
        ] {
            assert_eq!(named(name, gb).as_deref(), entry, "{name}");
            assert!(entry.is_none_or(|entry| hw::catalog::gpu(entry).is_some()), "{name}");
        }
    }
}
