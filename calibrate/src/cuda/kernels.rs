//! Launches of the kernels that no operation of a plan is made of yet: arguments in the order of their sources, grids as those ask for.

use cudarc::driver::sys::CUstream;

use super::attention::{Heads, Packed};
use super::driver::{Address, Arg, Driver, Shape};
use super::operands::{free_grid, int};
use super::tiled_csl;
use crate::device::DeviceError;

/// Result of a launch.
type Sent = Result<(), DeviceError>;

/// A 32-bit argument.
pub fn count(n: usize) -> Arg {
    int(n as u64)
}

fn grid(x: usize, y: usize, z: usize) -> (u32, u32, u32) {
    let of = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    (of(x), of(y), of(z))
}

/// Pointers first, then the rest.
pub fn call(driver: &Driver, name: &'static str, shape: Shape, at: &[Address], rest: &[Arg], on: CUstream) -> Sent {
    let pointers: Vec<Arg> = at.iter().copied().map(Arg::Pointer).collect();
    driver.launch(name, shape, &[&pointers, rest].concat(), on)
}

/// A grid of one block per row.
pub fn rows_grid(rows: usize) -> Shape {
    Shape { grid: grid(rows, 1, 1), block: 256, shared: 0 }
}

/// Attention of one token per sequence over its cache.
#[derive(Clone, Copy)]
pub struct Decode {
    /// Queries, keys, values.
    pub qkv: [Address; 3],
    /// Cached tokens of each sequence.
    pub lengths: Address,
    /// First cached token of each sequence, or its pages.
    pub place: Address,
    /// Results, maxima and sums of the splits, 32 bits each.
    pub parts: [Address; 3],
    /// Result, and the logarithm of its sum of exponentials.
    pub out: [Address; 2],
    /// Pages of a sequence at most, and tokens of one, where the cache is in pages.
    pub pages: Option<(usize, usize)>,
    /// Sequences.
    pub n: usize,
    /// Blocks that share a sequence.
    pub splits: usize,
}

impl Decode {
    /// Puts the parts and their merging on a stream.
    pub fn launch(&self, driver: &Driver, heads: Heads, on: CUstream) -> Sent {
        let name = match (self.pages.is_some(), heads.dim) {
            (false, 128) => "decode_128",
            (false, _) => "decode_64",
            (true, 128) => "decode_paged_128",
            (true, _) => "decode_paged_64",
        };
        let ([q, k, v], [out, maxima, sums]) = (self.qkv, self.parts);
        let (stride, size) = self.pages.unwrap_or((0, 1));
        let wide = u32::try_from(heads.dim).unwrap_or(128);
        let kv_heads = usize::try_from(heads.n_kv).unwrap_or(1);
        let shape = Shape { grid: grid(kv_heads, self.splits, self.n), block: 128, shared: 4 * 3 * 2 * 16 * wide * 2 };
        let at = [q, k, v, self.lengths, self.place, out, maxima, sums];
        call(
            driver,
            name,
            shape,
            &at,
            &[count(stride), count(size), int(heads.n), int(heads.n_kv), heads.scale()],
            on,
        )?;
        let rows = self.n * usize::try_from(heads.n).unwrap_or(1);
        let blocks = (rows * wide as usize / 4).div_ceil(128);
        let at = [out, maxima, sums, self.out[0], self.out[1]];
        let shape = Shape { grid: grid(blocks, 1, 1), block: 128, shared: 0 };
        call(driver, "decode_merge", shape, &at, &[count(self.splits), count(rows), int(heads.dim)], on)
    }
}

/// Attention over vertical lines and slashes.
#[derive(Clone, Copy)]
pub struct Pattern {
    /// Queries, keys, values.
    pub qkv: [Address; 3],
    /// Result, and the logarithm of its sum of exponentials.
    pub out: [Address; 2],
    /// Documents and query blocks.
    pub tiles: Address,
    /// How many.
    pub n_tiles: usize,
    /// Slashes of all heads, where those of each begin; verticals, where those of each begin.
    pub lines: [Address; 4],
    /// Most keys of a document.
    pub longest: usize,
}

impl Pattern {
    /// Puts it on a stream.
    pub fn launch(&self, driver: &Driver, packed: &Packed, heads: Heads, on: CUstream) -> Sent {
        let (name, wide) = if heads.dim == 128 { ("vertical_slash_128", 128) } else { ("vertical_slash_64", 64) };
        let words = self.longest.div_ceil(64).div_ceil(32);
        let shared = 5 * 64 * wide * 2 + 1088 + 4 * u32::try_from(words).unwrap_or(1);
        let [cu_q, cu_k, _] = packed.lists(false);
        let ([q, k, v], [out, lse], [slashes, slash_start, verticals, vertical_start]) =
            (self.qkv, self.out, self.lines);
        let at = [q, k, v, out, lse, cu_q, cu_k, self.tiles, slashes, slash_start, verticals, vertical_start];
        let rest = [int(heads.n), int(heads.n_kv), packed.queries(), count(words), heads.scale()];
        let shape = Shape { grid: grid(usize::try_from(heads.n).unwrap_or(1), self.n_tiles, 1), block: 128, shared };
        call(driver, name, shape, &at, &rest, on)
    }
}

/// A sparse weight times a few dense columns.
#[derive(Clone, Copy)]
pub struct Sparse {
    /// Items and offsets of the weight.
    pub weight: [Address; 2],
    /// Columns, one after the other.
    pub columns: Address,
    /// Result, column by column.
    pub out: Address,
    /// 32-bit parts, where there are several splits.
    pub parts: Address,
    /// Rows, columns (8, 16 or 32), inner dimension.
    pub size: [usize; 3],
    /// Blocks that share a row of tiles.
    pub splits: usize,
}

impl Sparse {
    /// Puts it on a stream.
    pub fn launch(&self, driver: &Driver, on: CUstream) -> Sent {
        let [m, n, k] = self.size;
        let name = match n {
            8 => "spmm_8",
            16 => "spmm_16",
            _ => "spmm_32",
        };
        let shared = 2 * (128 + u32::try_from(n.max(16)).unwrap_or(32)) * 128;
        let shape = Shape { grid: grid(m / tiled_csl::ROWS, self.splits, 1), block: 128, shared };
        let at = [self.weight[0], self.weight[1], self.columns, self.out, self.parts];
        call(driver, name, shape, &at, &[count(m), count(k)], on)?;
        if self.splits == 1 {
            return Ok(());
        }
        let rest = [count(self.splits), Arg::Long(i64::try_from(m * n).unwrap_or(i64::MAX))];
        call(driver, "spmm_reduce", free_grid(m * n / 4), &[self.parts, self.out], &rest, on)
    }
}

/// Tokens to experts and back.
#[derive(Clone, Copy)]
pub struct Experts {
    /// Row of every copy of every token, -1 for none.
    pub destination: Address,
    /// Weight of every copy, 32 bits.
    pub weights: Address,
    /// Tokens, copies of each, and vectors of 16 bytes in a row.
    pub size: [usize; 3],
}

impl Experts {
    fn go(&self, driver: &Driver, name: &'static str, at: &[Address], on: CUstream) -> Sent {
        let [tokens, copies, vectors] = self.size;
        call(driver, name, free_grid(tokens * 32), at, &[count(tokens), count(copies), count(vectors)], on)
    }

    /// Rows in the order of their experts.
    pub fn permute(&self, driver: &Driver, x: Address, permuted: Address, on: CUstream) -> Sent {
        self.go(driver, "moe_permute", &[x, self.destination, permuted], on)
    }

    /// Rows back at their tokens, weighted and added.
    pub fn combine(&self, driver: &Driver, y: Address, out: Address, on: CUstream) -> Sent {
        self.go(driver, "moe_combine", &[y, self.destination, self.weights, out], on)
    }

    /// Gradients of rows and weights.
    pub fn backward(&self, driver: &Driver, [d_out, y, d_y, d_weights]: [Address; 4], on: CUstream) -> Sent {
        let at = [d_out, y, self.destination, self.weights, d_y, d_weights];
        self.go(driver, "moe_combine_backward", &at, on)
    }
}

/// Tokens that hash alike share a bucket.
#[derive(Clone, Copy)]
pub struct Buckets {
    /// Tokens, and rotations of all functions.
    pub x: [Address; 2],
    /// Codes of all functions, 32 bits.
    pub codes: Address,
    /// Expert of each token.
    pub expert: Address,
    /// Keys (64 bits, all ones), numbers of the table's places, how many buckets there are (0), and the place of each token.
    pub table: [Address; 4],
    /// Bucket of each token.
    pub bucket: Address,
    /// Sums (32 bits, 0), counts (0) and means of the buckets.
    pub sums: [Address; 3],
    /// Tokens, features, dimensions of a hash, functions, places of the table.
    pub size: [usize; 5],
}

impl Buckets {
    /// Codes of the tokens.
    pub fn hash(&self, driver: &Driver, on: CUstream) -> Sent {
        let [tokens, d, dims, functions, _] = self.size;
        let shape = Shape { grid: grid(tokens.div_ceil(64), functions, 1), block: 128, shared: 32768 };
        let at = [self.x[0], self.x[1], self.codes];
        call(driver, "lsh_hash", shape, &at, &[count(tokens), count(d), count(dims)], on)
    }

    /// Buckets, and what lies in each.
    pub fn insert(&self, driver: &Driver, on: CUstream) -> Sent {
        let [tokens, d, dims, functions, capacity] = self.size;
        let [keys, number, found, slot] = self.table;
        let rest = [count(tokens), count(functions), count(dims), count(capacity)];
        call(
            driver,
            "lsh_insert",
            free_grid(tokens),
            &[self.codes, self.expert, keys, number, found, slot],
            &rest,
            on,
        )?;
        let at = [self.x[0], slot, number, self.bucket, self.sums[0], self.sums[1]];
        call(driver, "lsh_add", free_grid(tokens * 32), &at, &[count(tokens), count(d)], on)
    }

    /// Means of so many buckets.
    pub fn mean(&self, driver: &Driver, buckets: usize, on: CUstream) -> Sent {
        let d = self.size[1];
        call(driver, "lsh_mean", free_grid(buckets * d / 8), &self.sums, &[count(buckets), count(d)], on)
    }

    /// Results of the experts back at the tokens.
    pub fn restore(&self, driver: &Driver, expert_out: Address, out: Address, on: CUstream) -> Sent {
        let [tokens, d, ..] = self.size;
        let at = [self.x[0], self.sums[2], expert_out, self.bucket, out];
        call(driver, "lsh_restore", free_grid(tokens * d / 8), &at, &[count(tokens), count(d)], on)
    }
}
