//! Compressed all-to-all as operations: similar rows on their way to one expert are merged, and only the means travel.
//!
//! LSH-MoE (arXiv:2411.08446, sections 3.2 and A.1). Tokens of a destination expert that fall into one bucket of a
//! locality-sensitive hash are sent as their mean, the centroid; the expert computes centroids, and a token's output is that of
//! its centroid plus the residual that the sender kept (token − centroid). Backward goes through the same two exchanges with
//! the sum of a bucket's gradients. Here is what that costs; what it merges is `train`'s. Units: rows of the model's width, thousandths,
//! nanoseconds.

use hw::Dtype;

use crate::model::Experts;
use crate::task::{Op, Ops, PassKind};

/// Bytes of a count of rows, or of a bucket number.
const COUNT_BYTES: u64 = 4;

/// Rows that experts compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertRows {
    /// Centroids, as the method says.
    Centroids,
    /// As many as without compression: only the exchange is credited, as the paper reports it.
    Tokens,
}

/// How a layer's tokens are merged; means over the layers with experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// Columns of all rotations that a row is multiplied with: hash functions times columns of each.
    pub columns: u64,
    /// Rows that travel over rows that were routed, thousandths.
    pub rate_permille: u64,
    /// Rows that experts compute.
    pub expert_rows: ExpertRows,
    /// Whether senders keep residuals and add them to what comes back.
    pub compensation: bool,
    /// Host time that the merging costs per layer and pass, nanoseconds: a free parameter for what no operation explains.
    pub host_ns: u64,
}

impl Compression {
    /// Rows that travel for `rows` routed ones.
    pub const fn rows_sent(&self, rows: u64) -> u64 {
        (rows * self.rate_permille).div_ceil(1000)
    }

    /// Rows that experts compute for `rows` routed ones.
    pub const fn rows_computed(&self, rows: u64) -> u64 {
        match self.expert_rows {
            ExpertRows::Centroids => self.rows_sent(rows),
            ExpertRows::Tokens => rows,
        }
    }

    /// What a sender of `rows` rows of `hidden` elements computes besides, in one pass of one layer.
    ///
    /// Forward: the rotations as one product, the largest coordinate of each, the mean of every bucket with the residuals, and
    /// the restored rows. Backward keeps the buckets: sums of gradients, and the gradient of every row from its bucket's.
    /// Each of the two kernels reads and writes every row; without residuals each touches them once.
    pub fn work(&self, hidden: u64, dtype: Dtype, rows: u64, kind: PassKind) -> Ops {
        if rows == 0 || kind == PassKind::Weight {
            return Vec::new();
        }
        let mut ops = Ops::new();
        if kind == PassKind::Forward && self.columns > 0 {
            ops.push((Op::Gemm { m: rows, n: self.columns, k: hidden, format: dtype.into() }, 1));
            ops.push((Op::Elementwise { bytes: rows * (self.columns * dtype.bytes() + COUNT_BYTES) }, 1));
        }
        let touches = if self.compensation { 2 } else { 1 };
        ops.push((Op::Elementwise { bytes: touches * rows * hidden * dtype.bytes() }, 2));
        if self.host_ns > 0 {
            ops.push((Op::Host { ns: self.host_ns }, 1));
        }
        ops
    }
}

/// Bytes that a rank sends before rows whose number depends on the data: how many rows each expert gets.
pub const fn count_bytes(experts: Experts) -> u64 {
    experts.n_routed * COUNT_BYTES
}
