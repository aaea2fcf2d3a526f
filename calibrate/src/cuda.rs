//! An NVIDIA GPU as a device: kernels of `calibrate/kernels` compiled at run time, products by cuBLASLt, exchanges by NCCL.
//!
//! Operands are random bf16 from one large buffer, taken in turn; every stream writes results into a buffer of its own, in turn as
//! well, both larger than the second-level cache. Times are those of events on the streams. The whole backend is one thread.

mod attention;
mod driver;
mod gemm;
mod nccl;
mod sources;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};
use hw::{Bytes, Dtype};
use sim::task::{CopyKind, Op, Pass, Stream};

use crate::device::{Device, DeviceError, Facts, Mark, describe};
use attention::Packed;
use driver::{Address, Arg, Buffer, Driver, Pinned, Shape, guarded, lost};
use gemm::{Gemm, Operands};
use nccl::Peers;

/// Bytes of operands, and of each stream's results, at least: several times the second-level cache of today's GPUs (50 to 126 MB).
const ARENA_MIN: usize = 1 << 30;
/// Bytes by which operands are apart.
const ALIGN: usize = 256;
/// Blocks of kernels whose grid is free.
const BLOCKS: u32 = 2048;

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
    rows: Option<Buffer>,
    host: Option<Pinned>,
    packed: BTreeMap<Op, Packed>,
    lines: BTreeMap<usize, Line>,
    events: Vec<sys::CUevent>,
    n_marks: usize,
    last: String,
}

/// Memory that is handed out in turn.
struct Arena {
    buffer: Buffer,
    next: usize,
}

impl Arena {
    fn take(&mut self, len: usize) -> Address {
        let from = if self.next + len > self.buffer.len { 0 } else { self.next };
        self.next = (from + len).next_multiple_of(ALIGN);
        self.buffer.at + from as u64
    }
}

/// A stream and its results.
struct Line {
    stream: sys::CUstream,
    results: Option<Arena>,
}

/// Two events around something.
pub(crate) struct Timer {
    begin: sys::CUevent,
    end: sys::CUevent,
}

impl Timer {
    fn new(driver: &Driver) -> Result<Self, DeviceError> {
        Ok(Self { begin: driver.event()?, end: driver.event()? })
    }

    fn begin(&self, stream: sys::CUstream) -> Result<(), DeviceError> {
        record(self.begin, stream)
    }

    /// Milliseconds since `begin`, after waiting for the end.
    fn end(&self, stream: sys::CUstream) -> Result<f32, DeviceError> {
        record(self.end, stream)?;
        #[expect(unsafe_code, reason = "waits for an event of our own")]
        // SAFETY: both events live and were recorded.
        unsafe { result::event::synchronize(self.end) }.map_err(lost("wait"))?;
        elapsed(self.begin, self.end)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "events of our own")]
        // SAFETY: each is destroyed once.
        unsafe {
            // A device that is lost has lost its events as well.
            let _ = result::event::destroy(self.begin);
            let _ = result::event::destroy(self.end);
        }
    }
}

fn record(event: sys::CUevent, stream: sys::CUstream) -> Result<(), DeviceError> {
    #[expect(unsafe_code, reason = "an event of our own on a stream of our own")]
    // SAFETY: both live as long as the device.
    unsafe { result::event::record(event, stream) }.map_err(lost("event"))
}

fn elapsed(from: sys::CUevent, to: sys::CUevent) -> Result<f32, DeviceError> {
    #[expect(unsafe_code, reason = "two recorded events of our own")]
    // SAFETY: both were recorded and have happened.
    unsafe { result::event::elapsed(from, to) }.map_err(lost("event"))
}

fn size(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX / 16)
}

fn int(n: u64) -> Arg {
    Arg::Int(i32::try_from(n).unwrap_or(i32::MAX))
}

fn long(n: usize) -> Arg {
    Arg::Long(i64::try_from(n).unwrap_or(i64::MAX))
}

/// Bytes of operands and of results on the device.
fn footprint(op: &Op) -> (usize, usize) {
    let product = |factors: &[u64]| size(factors.iter().fold(1_u64, |product, factor| product.saturating_mul(*factor)));
    let aligned = |n: usize| n.next_multiple_of(ALIGN);
    match op {
        Op::Gemm { m, n, k, dtype } => {
            let wide = if *dtype == Dtype::Fp8 { 1 } else { 2 };
            (aligned(product(&[*m, *k, wide])) + product(&[*k, *n, wide]), product(&[*m, *n, 2]))
        }
        Op::GroupedGemm { rows, n, k, .. } => {
            let all: u64 = rows.iter().sum();
            let weights = product(&[rows.len() as u64, *n, *k, 2]);
            (aligned(product(&[all, *k, 2])) + weights, product(&[all, *n, 2]))
        }
        Op::Attention { documents, n_heads, n_kv_heads, head_dim, pass } => {
            let sum = |of: fn(&sim::task::Document) -> u64| documents.iter().map(of).sum::<u64>();
            // The kernels may see a few keys more than a document has, see `attention::Packed`.
            let (queries, keys) = (sum(|d| d.queries.max(1)), sum(|d| d.keys.max(d.queries).max(1)));
            let q = aligned(product(&[queries, *n_heads, *head_dim, 2]));
            let kv = aligned(product(&[keys, *n_kv_heads, *head_dim, 2]));
            match pass {
                Pass::Forward => (q + 2 * kv, q + product(&[queries, *n_heads, 4])),
                Pass::Backward => (3 * q + 2 * kv, 3 * q + 2 * kv + aligned(product(&[queries, *n_heads, 4]))),
            }
        }
        Op::Elementwise { bytes } => {
            let part = size(bytes / 6 * 2).next_multiple_of(16);
            (aligned(part) + part, part)
        }
        Op::Embedding { tokens, row_bytes } => {
            let n = product(&[*tokens, row_bytes.next_multiple_of(16)]);
            (n, n)
        }
        Op::Copy { bytes, .. } => (size(*bytes), size(*bytes)),
        _ => (0, 0),
    }
}

impl Cuda {
    /// Opens the GPU of this number.
    ///
    /// # Errors
    /// When there is none, or its driver or a library is missing.
    pub fn open(name: &str, ordinal: usize) -> Result<Self, DeviceError> {
        guarded(name, || {
            let driver = Driver::open(name, ordinal)?;
            let peers = Peers::find(ordinal);
            let facts = facts(&driver, peers.as_ref().map_or(1, Peers::len))?;
            let gemm = Gemm::open(&driver)?;
            let operands = random(&driver, ARENA_MIN, "random_bf16", "the first operation")?;
            Ok(Self {
                facts,
                gemm,
                peers,
                operands,
                fp8: None,
                zeros: None,
                rows: None,
                host: None,
                packed: BTreeMap::new(),
                lines: BTreeMap::new(),
                events: Vec::new(),
                n_marks: 0,
                last: "none".to_owned(),
                driver,
            })
        })
    }

    fn line(&mut self, stream: Stream) -> Result<sys::CUstream, DeviceError> {
        if let Some(line) = self.lines.get(&stream.index()) {
            return Ok(line.stream);
        }
        let made = self.driver.stream()?;
        self.lines.insert(stream.index(), Line { stream: made, results: None });
        Ok(made)
    }

    /// Room for results of a stream.
    fn room(&mut self, stream: Stream, len: usize, op: &Op) -> Result<(), DeviceError> {
        self.line(stream)?;
        let line = self.lines.get_mut(&stream.index()).expect("just made");
        let wanted = len.max(ARENA_MIN);
        if line.results.as_ref().is_none_or(|arena| arena.buffer.len < len) {
            line.results = None;
            let buffer = self.driver.allocate(wanted, "result", &describe(op))?;
            line.results = Some(Arena { buffer, next: 0 });
        }
        Ok(())
    }

    fn results(&mut self, stream: Stream, len: usize) -> Result<Address, DeviceError> {
        let line = self.lines.get_mut(&stream.index());
        let arena = line.and_then(|line| line.results.as_mut()).filter(|arena| len <= arena.buffer.len);
        arena
            .map(|arena| arena.take(len))
            .ok_or_else(|| DeviceError::Lost("an operation that was not reserved".to_owned()))
    }

    fn reserve_on(&mut self, op: &Op, stream: Stream) -> Result<(), DeviceError> {
        let (n_in, n_out) = footprint(op);
        let words = describe(op);
        if n_in > self.operands.buffer.len {
            self.operands = random(&self.driver, n_in, "random_bf16", &words)?;
        }
        self.room(stream, n_out, op)?;
        let on = self.line(stream)?;
        match op {
            Op::Gemm { m, n, k, dtype } => self.reserve_gemm((*m, *n, *k, kind(*dtype)), &words, on)?,
            Op::GroupedGemm { rows, n, k, dtype } => {
                for m in rows.iter().filter(|m| **m > 0) {
                    self.reserve_gemm((*m, *n, *k, kind(*dtype)), &words, on)?;
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
                if self.rows.as_ref().is_none_or(|rows| rows.len < 4 * size(*tokens)) {
                    let rows: Vec<i32> = (0..*tokens).map(row).collect();
                    self.rows = Some(self.driver.upload(&rows, "row numbers", &words)?);
                }
            }
            Op::Copy { kind: CopyKind::HostToDevice | CopyKind::DeviceToHost, bytes }
                if self.host.as_ref().is_none_or(|host| host.len < size(*bytes)) =>
            {
                self.host = None;
                self.host = Some(self.driver.pinned(size(*bytes).max(ARENA_MIN / 4))?);
            }
            Op::Collective { kind, bytes, shape } => {
                if let Some(peers) = &mut self.peers {
                    peers.reserve(*kind, size(bytes.div_ceil(2)), shape.n_ranks)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn reserve_gemm(&mut self, size_of: gemm::Size, words: &str, on: sys::CUstream) -> Result<(), DeviceError> {
        let (m, n, k, dtype) = size_of;
        if dtype == Dtype::Fp8 {
            let needed = footprint(&Op::Gemm { m, n, k, dtype }).0;
            if self.fp8.as_ref().is_none_or(|arena| arena.buffer.len < needed) {
                self.fp8 = Some(random(&self.driver, needed.max(ARENA_MIN / 2), "random_fp8", words)?);
            }
        }
        let operands = self.gemm_operands(size_of, Stream::Compute, on)?;
        self.gemm.prepare(size_of, operands, on)
    }

    /// Places of a product's operands and result.
    fn gemm_operands(
        &mut self,
        (m, n, k, dtype): gemm::Size,
        stream: Stream,
        _on: sys::CUstream,
    ) -> Result<Operands, DeviceError> {
        let op = Op::Gemm { m, n, k, dtype };
        let (n_in, n_out) = footprint(&op);
        if self.lines.get(&stream.index()).is_none_or(|line| line.results.is_none()) {
            self.room(stream, n_out, &op)?;
        }
        let arena = match &mut self.fp8 {
            Some(arena) if dtype == Dtype::Fp8 => arena,
            _ => &mut self.operands,
        };
        let left = arena.take(n_in);
        let wide = if dtype == Dtype::Fp8 { 1 } else { 2 };
        let right = left + (size(m * k) * wide).next_multiple_of(ALIGN) as u64;
        Ok(Operands { left, right, out: self.results(stream, n_out)? })
    }

    /// Puts an operation on a stream; where its bf16 results lie, and how many they are.
    fn run(&mut self, op: &Op, stream: Stream) -> Result<Option<(Address, usize)>, DeviceError> {
        let on = self.line(stream)?;
        match op {
            Op::Gemm { m, n, k, dtype } => {
                let size_of = (*m, *n, *k, kind(*dtype));
                let operands = self.gemm_operands(size_of, stream, on)?;
                self.gemm.launch(size_of, operands, on)?;
                Ok(Some((operands.out, size(m * n))))
            }
            Op::GroupedGemm { rows, n, k, dtype } => {
                let mut last = None;
                for m in rows.iter().filter(|m| **m > 0) {
                    last = self.run(&Op::Gemm { m: *m, n: *n, k: *k, dtype: *dtype }, stream)?;
                }
                Ok(last)
            }
            Op::Attention { pass: Pass::Forward, .. } => self.forward(op, stream, on),
            Op::Attention { .. } => self.backward(op, stream, on),
            Op::Elementwise { bytes } => {
                let (n_in, n_out) = footprint(op);
                let (a, out) = (self.operands.take(n_in), self.results(stream, n_out)?);
                let b = a + n_out.next_multiple_of(ALIGN) as u64;
                let args =
                    [Arg::Pointer(a), Arg::Pointer(b), Arg::Pointer(out), long(size(*bytes / 6).next_multiple_of(8))];
                self.driver.launch("add", free_grid(n_out / 16), &args, on)?;
                Ok(Some((out, size(*bytes / 6))))
            }
            Op::Embedding { tokens, row_bytes } => {
                let (n_in, n_out) = footprint(op);
                let (table, out) = (self.operands.take(n_in), self.results(stream, n_out)?);
                let rows = self.rows.as_ref().map_or(0, |rows| rows.at);
                let args = [
                    Arg::Pointer(table),
                    Arg::Pointer(rows),
                    Arg::Pointer(out),
                    int(*tokens),
                    int(row_bytes.div_ceil(16)),
                ];
                self.driver.launch("gather_rows", free_grid(size(*tokens) * 32), &args, on)?;
                Ok(Some((out, n_out / 2)))
            }
            Op::Copy { kind, bytes } => self.copy(*kind, size(*bytes), stream, on),
            Op::Collective { kind, bytes, shape } => {
                let peers =
                    self.peers.as_mut().ok_or_else(|| DeviceError::Lost("an exchange on one GPU".to_owned()))?;
                peers.launch(*kind, size(bytes.div_ceil(2)), shape.n_ranks, on).map(|()| None)
            }
            Op::Host { ns } => {
                let shape = Shape { grid: (1, 1, 1), block: 1, shared: 0 };
                let ns = Arg::Long(i64::try_from(*ns).unwrap_or(i64::MAX));
                self.driver.launch("spin", shape, &[ns], on).map(|()| None)
            }
            Op::Sequence(_) | Op::Slowed { .. } => Ok(None),
        }
    }

    fn copy(
        &mut self,
        kind: CopyKind,
        bytes: usize,
        stream: Stream,
        on: sys::CUstream,
    ) -> Result<Option<(Address, usize)>, DeviceError> {
        let (from, to) = (self.operands.take(bytes), self.results(stream, bytes)?);
        let host = self.host.as_ref().map_or(std::ptr::null_mut(), |host| host.at);
        #[expect(unsafe_code, reason = "copies between memories of our own")]
        // SAFETY: the host buffer was made at least this long by `reserve`, the others by `take`.
        unsafe {
            match kind {
                CopyKind::DeviceToDevice => sys::cuMemcpyDtoDAsync_v2(to, from, bytes, on),
                CopyKind::HostToDevice => sys::cuMemcpyHtoDAsync_v2(to, host, bytes, on),
                CopyKind::DeviceToHost => sys::cuMemcpyDtoHAsync_v2(host, from, bytes, on),
            }
            .result()
        }
        .map_err(lost("copy"))?;
        // What comes from the host is whatever the buffer holds.
        Ok((kind == CopyKind::DeviceToDevice).then_some((to, bytes / 2)))
    }

    fn forward(&mut self, op: &Op, stream: Stream, on: sys::CUstream) -> Result<Option<(Address, usize)>, DeviceError> {
        let Op::Attention { n_heads, n_kv_heads, head_dim, .. } = op else { return Ok(None) };
        let (n_in, n_out) = footprint(op);
        let (from, out) = (self.operands.take(n_in), self.results(stream, n_out)?);
        let Some(packed) = self.packed.get(op) else {
            return Err(DeviceError::Lost("attention not reserved".to_owned()));
        };
        let queries = size(u64::from(packed.tokens[0].cast_unsigned()) * n_heads * head_dim);
        let (q, kv) = ((2 * queries).next_multiple_of(ALIGN), kv_bytes(packed, *n_kv_heads, *head_dim));
        let [cu_q, cu_k, tiles] = packed.lists(false);
        let lse = out + q as u64;
        let mut args: Vec<Arg> =
            [from, from + q as u64, from + (q + kv) as u64, out, lse, cu_q, cu_k, tiles].map(Arg::Pointer).to_vec();
        args.extend([int(*n_heads), int(*n_kv_heads), Arg::Int(packed.tokens[0]), scale(*head_dim), Arg::Int(1)]);
        let (name, shared) =
            if *head_dim == 128 { ("attention_forward_128", 96) } else { ("attention_forward_64", 48) };
        let grid = (u32::try_from(*n_heads).unwrap_or(1), packed.n_tiles[0], 1);
        self.driver.launch(name, Shape { grid, block: 128, shared: shared * 1024 }, &args, on)?;
        Ok(Some((out, queries)))
    }

    fn backward(
        &mut self,
        op: &Op,
        stream: Stream,
        on: sys::CUstream,
    ) -> Result<Option<(Address, usize)>, DeviceError> {
        let Op::Attention { n_heads, n_kv_heads, head_dim, .. } = op else { return Ok(None) };
        let (n_in, n_out) = footprint(op);
        let (from, results) = (self.operands.take(n_in), self.results(stream, n_out)?);
        let Some(packed) = self.packed.get(op) else {
            return Err(DeviceError::Lost("attention not reserved".to_owned()));
        };
        let elements = size(u64::from(packed.tokens[0].cast_unsigned()) * n_heads * head_dim);
        let (q, kv) = ((2 * elements).next_multiple_of(ALIGN), kv_bytes(packed, *n_kv_heads, *head_dim));
        let zeros = self.zeros.as_ref().map_or(0, |zeros| zeros.at);
        // Operands: q, k, v, result, its gradient. Results: gradients of q in 32 bits, k, v, q, and the row sums.
        let [k, v, out, d_out] = [q, q + kv, q + 2 * kv, 2 * q + 2 * kv].map(|at| from + at as u64);
        let [d_k, d_v, d_q, delta] = [2 * q, 2 * q + kv, 2 * q + 2 * kv, 3 * q + 2 * kv].map(|at| results + at as u64);
        let tokens = Arg::Int(packed.tokens[0]);
        let args = [Arg::Pointer(out), Arg::Pointer(d_out), Arg::Pointer(delta), tokens, int(*n_heads), int(*head_dim)];
        self.driver.launch("attention_backward_delta", free_grid(elements / 8), &args, on)?;
        self.driver.fill(results, 0, 4 * elements, on)?;
        let [cu_q, cu_k, tiles] = packed.lists(true);
        let mut args: Vec<Arg> =
            [from, k, v, d_out, zeros, delta, results, d_k, d_v, cu_q, cu_k, tiles].map(Arg::Pointer).to_vec();
        args.extend([int(*n_heads), int(*n_kv_heads), tokens, scale(*head_dim), Arg::Int(1)]);
        let (name, wide) =
            if *head_dim == 128 { ("attention_backward_128", 128) } else { ("attention_backward_64", 64) };
        let shared = (2 * 128 + 4 * 64) * wide * 2 + 128 * 64 * 2 + 1024;
        let grid = (u32::try_from(*n_kv_heads).unwrap_or(1), packed.n_tiles[1], 1);
        self.driver.launch(name, Shape { grid, block: 256, shared }, &args, on)?;
        let args = [Arg::Pointer(results), Arg::Pointer(d_q), long(elements), scale(*head_dim)];
        self.driver.launch("attention_backward_finish", free_grid(elements / 8), &args, on)?;
        Ok(Some((d_q, elements)))
    }
}

fn kv_bytes(packed: &Packed, n_kv_heads: u64, head_dim: u64) -> usize {
    size(u64::from(packed.tokens[1].cast_unsigned()) * n_kv_heads * head_dim * 2).next_multiple_of(ALIGN)
}

fn scale(head_dim: u64) -> Arg {
    Arg::Float(1.0 / (head_dim as f32).sqrt())
}

/// Half precision runs as bf16.
const fn kind(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::Fp8 => Dtype::Fp8,
        _ => Dtype::Bf16,
    }
}

/// Launch of a kernel that walks so many items with whatever grid it has.
fn free_grid(items: usize) -> Shape {
    let blocks = u32::try_from(items.div_ceil(256)).unwrap_or(BLOCKS).clamp(1, BLOCKS);
    Shape { grid: (blocks, 1, 1), block: 256, shared: 0 }
}

/// A buffer of random operands.
fn random(driver: &Driver, len: usize, kernel: &'static str, op: &str) -> Result<Arena, DeviceError> {
    let len = len.next_multiple_of(ALIGN);
    let buffer = driver.allocate(len, "operands", op)?;
    let count = if kernel == "random_fp8" { len } else { len / 2 };
    let args = [Arg::Pointer(buffer.at), long(count), Arg::Int(7)];
    driver.launch(kernel, free_grid(count), &args, std::ptr::null_mut())?;
    driver.synchronize()?;
    Ok(Arena { buffer, next: 0 })
}

/// Zeros of at least this length.
fn grow(driver: &Driver, buffer: &mut Option<Buffer>, len: usize, op: &str) -> Result<(), DeviceError> {
    if buffer.as_ref().is_none_or(|held| held.len < len) {
        let made = driver.allocate(len.max(1 << 20), "zeros", op)?;
        driver.fill(made.at, 0, made.len, std::ptr::null_mut())?;
        driver.synchronize()?;
        *buffer = Some(made);
    }
    Ok(())
}

fn facts(driver: &Driver, n_devices: u32) -> Result<Facts, DeviceError> {
    use sys::CUdevice_attribute::{CU_DEVICE_ATTRIBUTE_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT};
    let context = &driver.context;
    let name = context.name().map_err(lost("name"))?;
    let mut version = 0;
    #[expect(unsafe_code, reason = "asks for a number")]
    // SAFETY: the pointer is to an integer of our own.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(lost("version"))?;
    let attribute = |which| context.attribute(which).unwrap_or(0);
    let slots = u64::try_from(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)).unwrap_or(1).max(1);
    let (_, memory) = driver.memory()?;
    Ok(Facts {
        gpu: catalogue_name(&name, memory),
        name,
        driver: format!("CUDA {}.{}, compute capability {}", version / 1000, version % 1000 / 10, driver.capability),
        clocks: format!("at most {} MHz", attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1000),
        memory,
        tile: (128, 128, slots),
        n_devices,
        reference: Op::Gemm { m: 4096, n: 4096, k: 4096, dtype: Dtype::Bf16 },
    })
}

/// Entry of the catalogue that a device name means.
fn catalogue_name(name: &str, memory: Bytes) -> Option<String> {
    let large = memory.as_f64() > 60e9;
    let table: [(&str, &str); 13] = [
        ("GB200", "gb200"),
        ("B200", "b200"),
        ("H200", "h200-sxm"),
        ("H100 PCIe", "h100-pcie"),
        ("H100", "h100-sxm"),
        ("A100-PCIE", "a100-pcie-80g"),
        ("A100", if large { "a100-sxm-80g" } else { "a100-sxm-40g" }),
        ("L40S", "l40s"),
        ("L4", "l4"),
        ("A10G", "a10g"),
        ("A30", "a30"),
        ("RTX 4090", "rtx-4090"),
        ("RTX 3090", "rtx-3090"),
    ];
    table.iter().find(|(part, _)| name.contains(part)).map(|(_, entry)| (*entry).to_owned())
}

impl Device for Cuda {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn runs(&self, op: &Op) -> bool {
        match op {
            Op::Gemm { dtype, .. } | Op::GroupedGemm { dtype, .. } => match dtype {
                Dtype::Fp32 => false,
                Dtype::Fp8 => self.driver.capability >= 89,
                Dtype::Bf16 | Dtype::Fp16 => true,
            },
            Op::Attention { head_dim, .. } => matches!(head_dim, 64 | 128),
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
        let (_, n_out) = footprint(op);
        let has_room = self.lines.get(&stream.index()).and_then(|line| line.results.as_ref());
        if n_out > 0 && has_room.is_none_or(|arena| arena.buffer.len < n_out) {
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

    fn wait(&mut self, stream: Stream, mark: Mark) -> Result<(), DeviceError> {
        let on = self.line(stream)?;
        #[expect(unsafe_code, reason = "a stream and an event of our own")]
        // SAFETY: both live as long as the device.
        let waited = unsafe {
            result::stream::wait_event(on, self.events[mark.0 + 1], sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)
        };
        waited.map_err(lost("wait"))
    }

    fn finish(&mut self, limit: Duration) -> Result<Vec<u64>, DeviceError> {
        let begun = Instant::now();
        let n = std::mem::take(&mut self.n_marks);
        for event in &self.events[..(n + 1).min(self.events.len())] {
            loop {
                #[expect(unsafe_code, reason = "an event of our own")]
                // SAFETY: it was recorded.
                match unsafe { result::event::query(*event) } {
                    Ok(()) => break,
                    Err(error) if error.0 != sys::CUresult::CUDA_ERROR_NOT_READY => {
                        return Err(lost(&self.last)(error));
                    }
                    Err(_) if begun.elapsed() > limit => {
                        return Err(DeviceError::Hung { op: self.last.clone(), after: limit });
                    }
                    Err(_) => std::thread::sleep(Duration::from_micros(50)),
                }
            }
        }
        let ns = |event: &sys::CUevent| {
            elapsed(self.events[0], *event).map(|ms| hw::Bytes::from_f64(f64::from(ms).max(0.0) * 1e6).0)
        };
        self.events.iter().skip(1).take(n).map(ns).collect()
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
        if let Some((at, count)) = self.run(op, stream)? {
            let found = self.driver.upload(&[0_i32], "count", "a look at results")?;
            let args = [Arg::Pointer(at), long(count), Arg::Pointer(found.at)];
            self.driver.launch("count_not_finite", free_grid(count), &args, on)?;
            self.driver.synchronize()?;
            if self.driver.read::<i32>(found.at, 1)? != [0] {
                return Err(DeviceError::NotANumber { op: describe(op) });
            }
        }
        self.driver.synchronize()
    }

    fn check_kernels(&mut self) -> Result<Vec<String>, DeviceError> {
        Ok(Vec::new())
    }
}
