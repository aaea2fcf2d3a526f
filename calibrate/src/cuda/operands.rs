//! Memory of operations: how many bytes each takes, and buffers that are handed out in turn.

use engine::task::{CopyKind, Op, Pass};
use hw::Format;

use super::driver::{Address, Arg, Buffer, Driver, Shape};
use crate::device::DeviceError;

/// Bytes by which operands are apart.
pub const ALIGN: usize = 256;
/// Blocks of kernels whose grid is free.
const BLOCKS: u32 = 2048;
/// Operands, and each stream's results, are at least so many times the second-level cache.
const CACHES: usize = 16;
/// What a device that does not tell its cache is taken to have.
const CACHE: usize = 64 << 20;

/// Bytes of operands, and of each stream's results, at least.
pub const fn arena_min(driver: &Driver) -> usize {
    (if driver.cache == 0 { CACHE } else { driver.cache }) * CACHES
}

/// Memory that is handed out in turn.
pub struct Arena {
    /// All of it.
    pub buffer: Buffer,
    next: usize,
}

impl Arena {
    /// An arena of a whole buffer.
    pub const fn new(buffer: Buffer) -> Self {
        Self { buffer, next: 0 }
    }

    /// The next piece of this length.
    pub fn take(&mut self, len: usize) -> Result<Address, DeviceError> {
        if len > self.buffer.len {
            return Err(DeviceError::Lost(format!("{len} bytes of {} were not reserved", self.buffer.len)));
        }
        let from = if self.next + len > self.buffer.len { 0 } else { self.next };
        self.next = (from + len).next_multiple_of(ALIGN);
        Ok(self.buffer.at + from as u64)
    }
}

/// A count in memory; what no memory holds stays too large.
pub fn size(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX / 16)
}

/// A 32-bit argument.
pub fn int(n: u64) -> Arg {
    Arg::Int(i32::try_from(n).unwrap_or(i32::MAX))
}

/// A 64-bit argument.
pub fn long(n: usize) -> Arg {
    Arg::Long(i64::try_from(n).unwrap_or(i64::MAX))
}

/// Bytes of operands and of results on the device.
pub fn footprint(op: &Op) -> (usize, usize) {
    let product = |factors: &[u64]| size(factors.iter().fold(1_u64, |product, factor| product.saturating_mul(*factor)));
    let aligned = |n: usize| n.next_multiple_of(ALIGN);
    match op {
        Op::Gemm { m, n, k, format } => {
            let [m, n, k] = &padded([*m, *n, *k], *format);
            let wide = if *format == Format::Fp8 { 1 } else { 2 };
            (aligned(product(&[*m, *k, wide])) + product(&[*k, *n, wide]), product(&[*m, *n, 2]))
        }
        Op::GroupedGemm { rows, n, k, format, .. } => {
            let [n, k] = &padded([*n, *k], *format);
            let all: u64 = rows.iter().map(|m| padded([*m], *format)[0]).sum();
            let weights = product(&[rows.len() as u64, *n, *k, 2]);
            (aligned(product(&[all, *k, 2])) + weights, product(&[all, *n, 2]))
        }
        Op::Attention { documents, n_heads, n_kv_heads, head_dim, pass, .. } => {
            let sum = |of: fn(&engine::task::Document) -> u64| documents.iter().map(of).sum::<u64>();
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
            let part = size(bytes / 6 * 2).max(1).next_multiple_of(16);
            (aligned(part) + part, part)
        }
        Op::Embedding { tokens, row_bytes } => {
            let n = product(&[*tokens, row_bytes.next_multiple_of(16)]);
            (n, n)
        }
        Op::Copy { kind, bytes } => (copied(*kind, *bytes), copied(*kind, *bytes)),
        _ => (0, 0),
    }
}

/// Bytes of a copy to or from the host that have a place of their own at a time. Copies of whole activations are longer than what is free.
const PIECE: usize = 1 << 30;

/// Bytes of a copy that have a place at a time: all, or a piece where the host is at one end.
pub fn copied(kind: CopyKind, bytes: u64) -> usize {
    let bytes = size(bytes).max(1);
    if kind == CopyKind::DeviceToDevice { bytes } else { bytes.min(PIECE) }
}

/// Sides of a product as they run: whole vectors of 16 bytes. Of fp8 the library takes no others. Of bf16 it does, with slower kernels that
/// models do not meet: their widths are such multiples, and the number of tokens, which need not be one, is no stride of theirs.
pub fn padded<const N: usize>(sides: [u64; N], format: Format) -> [u64; N] {
    let vector = if format == Format::Fp8 { 16 } else { 8 };
    sides.map(|side| side.next_multiple_of(vector))
}

/// Launch of a kernel that walks so many items with whatever grid it has.
pub fn free_grid(items: usize) -> Shape {
    let blocks = u32::try_from(items.div_ceil(256)).unwrap_or(BLOCKS).clamp(1, BLOCKS);
    Shape { grid: (blocks, 1, 1), block: 256, shared: 0 }
}

/// A buffer of random operands.
pub fn random(driver: &Driver, len: usize, kernel: &'static str, op: &str) -> Result<Arena, DeviceError> {
    let len = len.next_multiple_of(ALIGN);
    let buffer = driver.allocate(len, "operands", op)?;
    let count = if kernel == "random_fp8" { len } else { len / 2 };
    let args = [Arg::Pointer(buffer.at), long(count), Arg::Int(7)];
    driver.launch(kernel, free_grid(count), &args, std::ptr::null_mut())?;
    driver.synchronize()?;
    Ok(Arena::new(buffer))
}

/// Zeros of at least this length.
pub fn grow(driver: &Driver, buffer: &mut Option<Buffer>, len: usize, op: &str) -> Result<(), DeviceError> {
    if buffer.as_ref().is_none_or(|held| held.len < len) {
        let made = driver.allocate(len.max(1 << 20), "zeros", op)?;
        driver.fill(made.at, 0, made.len, std::ptr::null_mut())?;
        driver.synchronize()?;
        *buffer = Some(made);
    }
    Ok(())
}
