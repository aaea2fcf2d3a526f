//! Kernels of the CPU device on plain slices: matrix products of the `gemm-f32` crate, attention and exchanges built on them.
//!
//! Everything is float32: formats of fewer bits have no fast path on most CPUs, and a profile of this device says what this
//! device does. Matrices are row-major; queries are [tokens, heads, head_dim], keys and values [tokens, key-value heads, head_dim].

use engine::task::Document;
use gemm_common::Parallelism;
use rayon::prelude::*;

/// Query rows, or keys, of one block of attention.
const BLOCK: usize = 64;

/// A matrix in a slice: row and column strides in elements.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Elements from the first on.
    pub data: &'a [f32],
    /// From one row to the next.
    pub row: usize,
    /// From one column to the next.
    pub column: usize,
}

impl<'a> View<'a> {
    /// Row-major matrix whose rows lie `row` elements apart.
    pub const fn rows(data: &'a [f32], row: usize) -> Self {
        Self { data, row, column: 1 }
    }

    /// The same matrix on its side.
    pub const fn transposed(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }

    fn holds(&self, rows: usize, columns: usize) -> bool {
        rows == 0 || columns == 0 || (rows - 1) * self.row + (columns - 1) * self.column < self.data.len()
    }
}

/// `out = left · right`, or added to it: m × k times k × n; rows of `out` lie `out_row` apart. Uses so many threads of the pool it runs in.
///
/// # Panics
/// When a matrix does not lie inside its slice.
pub fn product(
    out: &mut [f32],
    out_row: usize,
    left: View<'_>,
    right: View<'_>,
    [m, n, k]: [usize; 3],
    add: bool,
    threads: usize,
) {
    if m == 0 || n == 0 {
        return;
    }
    assert!(
        left.holds(m, k) && right.holds(k, n) && View::rows(out, out_row).holds(m, n),
        "matrices inside their slices"
    );
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    let stride = |n: usize| isize::try_from(n).expect("strides are small");
    // The kernels want columns that lie together, so the transposed matrices are multiplied: outᵀ = rightᵀ · leftᵀ.
    let (left, right) = (left.transposed(), right.transposed());
    let multiply = gemm_f32::gemm::f32::get_gemm_fn();
    #[expect(unsafe_code, reason = "the library takes pointers; the assertion above holds them inside their slices")]
    // SAFETY: all three matrices lie inside slices that live through the call, and `out` is borrowed alone.
    unsafe {
        multiply(
            n,
            m,
            k,
            out.as_mut_ptr(),
            stride(out_row),
            1,
            add,
            right.data.as_ptr(),
            stride(right.column),
            stride(right.row),
            left.data.as_ptr(),
            stride(left.column),
            stride(left.row),
            f32::from(u8::from(add)),
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// A product that nothing is added to, on one thread.
fn alone(out: &mut [f32], out_row: usize, left: View<'_>, right: View<'_>, size: [usize; 3]) {
    product(out, out_row, left, right, size, false, 1);
}

/// Heads of an attention.
#[derive(Clone, Copy)]
pub struct Heads {
    /// Query heads.
    pub n: usize,
    /// Key-value heads.
    pub n_kv: usize,
    /// Width of a head.
    pub dim: usize,
}

impl Heads {
    fn scale(self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    fn kv_of(self, head: usize) -> usize {
        head * self.n_kv / self.n
    }
}

/// Queries, keys and pairs of a document as a ramp: row r sees `first + r` keys, at least one and at most all. A whole document and a chunk
/// are such ramps exactly; one rank's zigzag share is run as a ramp of the same pairs.
#[derive(Clone, Copy)]
pub struct Ramp {
    /// Query rows.
    pub queries: usize,
    /// Keys.
    pub keys: usize,
    first: i64,
}

impl Ramp {
    /// Ramp of a document.
    pub fn of(document: &Document) -> Self {
        let n = |n: u64| i64::try_from(n).expect("documents fit memory");
        let queries = n(document.queries).max(1);
        let first = (2 * n(document.pairs) - queries * (queries - 1)) / (2 * queries);
        let size = |n: u64| usize::try_from(n).expect("documents fit memory");
        Self { queries: size(document.queries), keys: size(document.keys).max(1), first }
    }

    /// Keys that a row sees.
    pub fn seen(&self, row: usize) -> usize {
        let keys = i64::try_from(self.keys).expect("fits");
        usize::try_from((self.first + i64::try_from(row).expect("fits")).clamp(1, keys)).expect("positive")
    }

    /// First row that sees a key.
    fn first_row(&self, key: usize) -> usize {
        let (mut low, mut high) = (0, self.queries);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.seen(middle) <= key { low = middle + 1 } else { high = middle }
        }
        low
    }
}

/// e to the x for x ≤ 0 as 2 to a whole part times a polynomial, which compilers vectorise; relative error below 1e-6.
fn exp(x: f32) -> f32 {
    let scaled = (x * std::f32::consts::LOG2_E).max(-126.0);
    let whole = (scaled + 12_582_912.0) - 12_582_912.0;
    let part = scaled - whole;
    let p = 1.0
        + part
            * (std::f32::consts::LN_2
                + part * (0.240_226_5 + part * (0.055_504_1 + part * (0.009_618_1 + part * 0.001_333_4))));
    f32::from_bits(((whole as i32 + 127) << 23) as u32) * p
}

/// Forward attention of one document. `out` and `lse` are [queries, heads, dim] and [queries, heads].
pub fn attention_forward(out: &mut [f32], lse: &mut [f32], [q, k, v]: [&[f32]; 3], ramp: Ramp, heads: Heads) {
    let (row, kv_row) = (heads.n * heads.dim, heads.n_kv * heads.dim);
    let blocks = out[..ramp.queries * row].par_chunks_mut(BLOCK * row);
    let blocks = blocks.zip(lse[..ramp.queries * heads.n].par_chunks_mut(BLOCK * heads.n)).enumerate();
    blocks.for_each_init(Vec::new, |scores: &mut Vec<f32>, (block, (out, lse))| {
        let (first, rows) = (block * BLOCK, out.len() / row);
        let seen = ramp.seen(first + rows - 1);
        scores.resize(BLOCK * seen.max(scores.len() / BLOCK), 0.0);
        for head in 0..heads.n {
            let kv = heads.kv_of(head) * heads.dim;
            let queries = View::rows(&q[first * row + head * heads.dim..], row);
            let keys = View::rows(&k[kv..], kv_row).transposed();
            alone(scores, seen, queries, keys, [rows, seen, heads.dim]);
            for r in 0..rows {
                let visible = ramp.seen(first + r);
                let line = &mut scores[r * seen..(r + 1) * seen];
                let top = line[..visible].iter().copied().fold(f32::NEG_INFINITY, f32::max);
                line[..visible].iter_mut().for_each(|score| *score = exp((*score - top) * heads.scale()));
                line[visible..].fill(0.0);
                let sum: f32 = line[..visible].iter().sum();
                line[..visible].iter_mut().for_each(|score| *score /= sum);
                lse[r * heads.n + head] = top * heads.scale() + sum.ln();
            }
            let values = View::rows(&v[kv..], kv_row);
            alone(&mut out[head * heads.dim..], row, View::rows(scores, seen), values, [rows, heads.dim, seen]);
        }
    });
}

/// What backward attention reads: queries, keys, values, the gradient of the result, log-sum-exp, and row sums of result times gradient.
#[derive(Clone, Copy)]
pub struct Saved<'a> {
    /// [queries, heads, dim].
    pub q: &'a [f32],
    /// [keys, key-value heads, dim].
    pub k: &'a [f32],
    /// [keys, key-value heads, dim].
    pub v: &'a [f32],
    /// [queries, heads, dim].
    pub gradient: &'a [f32],
    /// [queries, heads].
    pub lse: &'a [f32],
    /// [queries, heads].
    pub delta: &'a [f32],
}

/// Blocks of scores that a thread works on.
#[derive(Default)]
struct Scratch {
    p: Vec<f32>,
    dp: Vec<f32>,
}

/// Probabilities and gradients of scores of some rows against some keys, both in `scratch`.
fn score_gradients(
    scratch: &mut Scratch,
    saved: Saved<'_>,
    ramp: Ramp,
    heads: Heads,
    head: usize,
    [first, rows, key, n_keys]: [usize; 4],
) {
    let (row, kv_row) = (heads.n * heads.dim, heads.n_kv * heads.dim);
    let kv = heads.kv_of(head) * heads.dim + key * kv_row;
    let n = rows * n_keys;
    for buffer in [&mut scratch.p, &mut scratch.dp] {
        buffer.resize(n.max(buffer.len()), 0.0);
    }
    let at = first * row + head * heads.dim;
    let size = [rows, n_keys, heads.dim];
    let keys = View::rows(&saved.k[kv..], kv_row).transposed();
    alone(&mut scratch.p, n_keys, View::rows(&saved.q[at..], row), keys, size);
    let values = View::rows(&saved.v[kv..], kv_row).transposed();
    alone(&mut scratch.dp, n_keys, View::rows(&saved.gradient[at..], row), values, size);
    for r in 0..rows {
        let visible = ramp.seen(first + r).saturating_sub(key).min(n_keys);
        let (lse, delta) = (saved.lse[(first + r) * heads.n + head], saved.delta[(first + r) * heads.n + head]);
        let (p, dp) = (&mut scratch.p[r * n_keys..(r + 1) * n_keys], &mut scratch.dp[r * n_keys..(r + 1) * n_keys]);
        for (p, dp) in p[..visible].iter_mut().zip(&mut dp[..visible]) {
            *p = exp((*p * heads.scale() - lse).min(0.0));
            *dp = *p * (*dp - delta) * heads.scale();
        }
        p[visible..].fill(0.0);
        dp[visible..].fill(0.0);
    }
}

/// Backward attention of one document: gradients of queries by blocks of rows, of keys and values by blocks of keys. Scores are
/// computed in both, which keeps every result with one thread.
pub fn attention_backward([dq, dk, dv]: [&mut [f32]; 3], saved: Saved<'_>, ramp: Ramp, heads: Heads) {
    let (row, kv_row) = (heads.n * heads.dim, heads.n_kv * heads.dim);
    let blocks = dq[..ramp.queries * row].par_chunks_mut(BLOCK * row).enumerate();
    blocks.for_each_init(Scratch::default, |scratch, (block, dq)| {
        let (first, rows) = (block * BLOCK, dq.len() / row);
        let seen = ramp.seen(first + rows - 1);
        for head in 0..heads.n {
            score_gradients(scratch, saved, ramp, heads, head, [first, rows, 0, seen]);
            let keys = View::rows(&saved.k[heads.kv_of(head) * heads.dim..], kv_row);
            alone(&mut dq[head * heads.dim..], row, View::rows(&scratch.dp, seen), keys, [rows, heads.dim, seen]);
        }
    });
    let blocks = dk[..ramp.keys * kv_row].par_chunks_mut(BLOCK * kv_row);
    let blocks = blocks.zip(dv[..ramp.keys * kv_row].par_chunks_mut(BLOCK * kv_row)).enumerate();
    blocks.for_each_init(Scratch::default, |scratch, (block, (dk, dv))| {
        let (key, n_keys) = (block * BLOCK, dk.len() / kv_row);
        dk.fill(0.0);
        dv.fill(0.0);
        let start = ramp.first_row(key);
        for first in (start..ramp.queries).step_by(BLOCK) {
            let rows = BLOCK.min(ramp.queries - first);
            for head in 0..heads.n {
                score_gradients(scratch, saved, ramp, heads, head, [first, rows, key, n_keys]);
                let (at, kv) = (first * row + head * heads.dim, heads.kv_of(head) * heads.dim);
                let size = [n_keys, heads.dim, rows];
                let left = |data| View::rows(data, n_keys).transposed();
                product(&mut dk[kv..], kv_row, left(&scratch.dp), View::rows(&saved.q[at..], row), size, true, 1);
                product(&mut dv[kv..], kv_row, left(&scratch.p), View::rows(&saved.gradient[at..], row), size, true, 1);
            }
        }
    });
}

/// Elements that one thread streams at a time.
const STREAM: usize = 1 << 15;

/// `out = 1.5 · a + b`: the traffic of norms, activations and residuals.
pub fn elementwise(out: &mut [f32], a: &[f32], b: &[f32]) {
    let parts = out.par_chunks_mut(STREAM).zip(a.par_chunks(STREAM)).zip(b.par_chunks(STREAM));
    parts.for_each(|((out, a), b)| {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = 1.5 * a + b;
        }
    });
}

/// Rows of a table in scattered order.
pub fn gather(out: &mut [f32], table: &[f32], row: usize) {
    let n_rows = (table.len() / row).max(1);
    out.par_chunks_mut(row).enumerate().for_each(|(index, out)| {
        let from = index.wrapping_mul(2_654_435_761) % n_rows * row;
        let n = out.len();
        out.copy_from_slice(&table[from..from + n]);
    });
}
