//! An operation on a stream: its operands are taken in turn, its kernels launched.

use cudarc::driver::sys;
use engine::task::{CopyKind, Op, Pass, Stream};
use hw::Format;

use super::Cuda;
use super::attention::{Backward, Forward, Heads};
use super::driver::{Address, Arg, Shape};
use super::operands::{ALIGN, copied, footprint, free_grid, int, long, padded, size};
use crate::device::{DeviceError, describe};

/// Where bf16 results were written, and how many.
pub type Written = (Address, usize);

impl Cuda {
    /// Puts an operation on a stream; where its bf16 results lie, and how many they are.
    pub(super) fn run(&mut self, op: &Op, stream: Stream) -> Result<Vec<Written>, DeviceError> {
        let on = self.line(stream)?;
        match op {
            Op::Gemm { m, n, k, format } => {
                let ([m, n, k], format) = (padded([*m, *n, *k], *format), kind(*format));
                let operands = self.gemm_operands((m, n, k, format), stream)?;
                self.gemm.launch((m, n, k, format), operands, on)?;
                Ok(vec![(operands.out, size(m * n))])
            }
            Op::GroupedGemm { rows, n, k, format, .. } => {
                let mut all = Vec::new();
                for m in rows.iter().filter(|m| **m > 0) {
                    all.extend(self.run(&Op::Gemm { m: *m, n: *n, k: *k, format: *format }, stream)?);
                }
                Ok(all)
            }
            Op::Attention { n_heads, n_kv_heads, head_dim, pass, .. } => {
                let heads = Heads { n: *n_heads, n_kv: *n_kv_heads, dim: *head_dim };
                match pass {
                    Pass::Forward => self.forward(op, heads, stream),
                    Pass::Backward => self.backward(op, heads, stream),
                }
            }
            Op::Elementwise { bytes } => {
                let (n_in, n_out) = footprint(op);
                let (a, out) = (self.operands.take(n_in)?, self.results(stream, n_out)?);
                let b = a + n_out.next_multiple_of(ALIGN) as u64;
                let args =
                    [Arg::Pointer(a), Arg::Pointer(b), Arg::Pointer(out), long(size(*bytes / 6).next_multiple_of(8))];
                self.driver.launch("add", free_grid(n_out / 16), &args, on)?;
                Ok(vec![(out, size(*bytes / 6))])
            }
            Op::Embedding { tokens, row_bytes } => {
                let (n_in, n_out) = footprint(op);
                let (table, out) = (self.operands.take(n_in)?, self.results(stream, n_out)?);
                let rows = self.rows.get(tokens).ok_or_else(|| not_reserved(op))?.at;
                let args = [
                    Arg::Pointer(table),
                    Arg::Pointer(rows),
                    Arg::Pointer(out),
                    int(*tokens),
                    int(row_bytes.div_ceil(16)),
                ];
                self.driver.launch("gather_rows", free_grid(size(*tokens) * 32), &args, on)?;
                Ok(vec![(out, n_out / 2)])
            }
            Op::Copy { kind, bytes } => self.copy(*kind, size(*bytes), stream, on),
            Op::Collective { kind, bytes, shape } => {
                let peers =
                    self.peers.as_mut().ok_or_else(|| DeviceError::Lost("an exchange on one GPU".to_owned()))?;
                peers.launch(*kind, size(bytes.div_ceil(2)), shape.n_ranks, on).map(|()| Vec::new())
            }
            Op::Host { ns } => {
                let shape = Shape { grid: (1, 1, 1), block: 1, shared: 0 };
                let ns = Arg::Long(i64::try_from(*ns).unwrap_or(i64::MAX));
                self.driver.launch("spin", shape, &[ns], on).map(|()| Vec::new())
            }
            Op::Sequence(_) | Op::Slowed { .. } | Op::Launched { .. } => Ok(Vec::new()),
        }
    }

    fn copy(
        &mut self,
        kind: CopyKind,
        bytes: usize,
        stream: Stream,
        on: sys::CUstream,
    ) -> Result<Vec<Written>, DeviceError> {
        let piece = copied(kind, bytes as u64);
        let (from, to) = (self.operands.take(piece)?, self.results(stream, piece)?);
        let host = || self.host.as_ref().ok_or_else(|| not_reserved(&Op::Copy { kind, bytes: bytes as u64 }));
        for sent in (0..bytes).step_by(piece) {
            let bytes = piece.min(bytes - sent);
            match kind {
                CopyKind::DeviceToDevice => self.driver.copy(to, from, bytes, on)?,
                CopyKind::HostToDevice => self.driver.copy_in(to, host()?, bytes, on)?,
                CopyKind::DeviceToHost => self.driver.copy_out(host()?, from, bytes, on)?,
            }
        }
        // What comes from the host is whatever the buffer holds.
        Ok(if kind == CopyKind::DeviceToDevice { vec![(to, bytes / 2)] } else { Vec::new() })
    }

    fn forward(&mut self, op: &Op, heads: Heads, stream: Stream) -> Result<Vec<Written>, DeviceError> {
        let (n_in, n_out) = footprint(op);
        let (from, out) = (self.operands.take(n_in)?, self.results(stream, n_out)?);
        let on = self.line(stream)?;
        let packed = self.packed.get(op).ok_or_else(|| not_reserved(op))?;
        let (elements, q, kv) = packed.sizes(heads);
        let qkv = [0, q, q + kv].map(|at| from + at as u64);
        Forward { qkv, out, lse: out + q as u64 }.launch(&self.driver, packed, heads, on)?;
        Ok(vec![(out, elements)])
    }

    fn backward(&mut self, op: &Op, heads: Heads, stream: Stream) -> Result<Vec<Written>, DeviceError> {
        let (n_in, n_out) = footprint(op);
        let (from, results) = (self.operands.take(n_in)?, self.results(stream, n_out)?);
        let on = self.line(stream)?;
        let packed = self.packed.get(op).ok_or_else(|| not_reserved(op))?;
        let zeros = self.zeros.as_ref().ok_or_else(|| not_reserved(op))?.at;
        let (elements, q, kv) = packed.sizes(heads);
        // Operands: q, k, v, result, its gradient. Results: gradients of q in 32 bits, k, v, q, and the row sums.
        let [k, v, out, d_out] = [q, q + kv, q + 2 * kv, 2 * q + 2 * kv].map(|at| from + at as u64);
        let [d_k, d_v, d_q, delta] = [2 * q, 2 * q + kv, 2 * q + 2 * kv, 3 * q + 2 * kv].map(|at| results + at as u64);
        let places = Backward {
            qkv: [from, k, v],
            out: [out, d_out],
            lse: zeros,
            delta,
            sum: results,
            gradients: [d_q, d_k, d_v],
        };
        places.launch(&self.driver, packed, heads, on)?;
        let keys = packed.key_elements(heads);
        Ok(vec![(d_q, elements), (d_k, keys), (d_v, keys)])
    }
}

fn not_reserved(op: &Op) -> DeviceError {
    DeviceError::Lost(format!("{} was not reserved", describe(op)))
}

/// Half precision runs as bf16.
pub const fn kind(format: Format) -> Format {
    match format {
        Format::Fp8 => Format::Fp8,
        _ => Format::Bf16,
    }
}
