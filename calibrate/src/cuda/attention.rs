//! Launches of the attention kernels, and what they want to know of packed documents: offsets, and tiles with the most work first.

use cudarc::driver::sys::CUstream;
use engine::task::{Document, Pass};

use super::driver::{Address, Arg, Buffer, Driver, Shape};
use super::operands::{ALIGN, free_grid, int, long, size};
use crate::device::DeviceError;

/// Query rows of a forward tile, and keys of a backward tile.
const TILE: i32 = 128;

/// Offsets and tiles on the device.
pub struct Packed {
    /// First query of each document, and the end.
    pub cu_q: Buffer,
    /// First key of each document, and the end.
    pub cu_k: Buffer,
    /// (document, first query) of forward.
    pub forward: Buffer,
    /// (document, first key) of backward.
    pub backward: Buffer,
    /// Blocks of both.
    pub n_tiles: [u32; 2],
    /// Queries and keys of all documents.
    pub tokens: [i32; 2],
}

/// Queries and keys of a document as the kernels see it: the queries are the last of the keys. A rank's zigzag share, which sees
/// fewer pairs than that, gets the keys that make its pairs.
fn shape(document: &Document) -> (i32, i32) {
    let size = |n: u64| i32::try_from(n).unwrap_or(i32::MAX);
    let queries = document.queries.max(1);
    // A query sees half of the queries before it: pairs = queries · (keys − (queries − 1) / 2).
    let keys = ((2 * document.pairs + queries * (queries - 1)) / (2 * queries)).max(queries);
    (size(queries), size(keys.min(document.keys.max(queries))))
}

/// Prefix sums, with the total at the end.
fn offsets(lengths: impl Iterator<Item = i32>) -> Vec<i32> {
    let mut all = vec![0_i32];
    lengths.for_each(|length| all.push(all[all.len() - 1].saturating_add(length)));
    all
}

/// Tiles of both directions, those with the most pairs first.
fn tiles(shapes: &[(i32, i32)]) -> [Vec<[i32; 2]>; 2] {
    let mut forward: Vec<(i32, [i32; 2])> = Vec::new();
    let mut backward: Vec<(i32, [i32; 2])> = Vec::new();
    for (document, &(queries, keys)) in (0..).zip(shapes) {
        let ahead = keys - queries;
        forward.extend((0..queries).step_by(128).map(|first| ((first + TILE).min(queries) + ahead, [document, first])));
        backward.extend((0..keys).step_by(128).map(|first| (queries - (first - ahead).max(0), [document, first])));
    }
    [forward, backward].map(|mut tiles| {
        tiles.sort_by_key(|(work, tile)| (std::cmp::Reverse(*work), *tile));
        tiles.into_iter().map(|(_, tile)| tile).collect()
    })
}

impl Packed {
    /// Puts the offsets and tiles of documents on the device.
    pub fn new(driver: &Driver, documents: &[Document], op: &str) -> Result<Self, DeviceError> {
        let shapes: Vec<(i32, i32)> = documents.iter().map(shape).collect();
        let queries = offsets(shapes.iter().map(|shape| shape.0));
        let keys = offsets(shapes.iter().map(|shape| shape.1));
        let [forward, backward] = tiles(&shapes);
        let n = |tiles: &[[i32; 2]]| u32::try_from(tiles.len()).unwrap_or(u32::MAX);
        Ok(Self {
            n_tiles: [n(&forward), n(&backward)],
            tokens: [queries[queries.len() - 1], keys[keys.len() - 1]],
            cu_q: driver.upload(&queries, "offsets", op)?,
            cu_k: driver.upload(&keys, "offsets", op)?,
            forward: driver.upload(&forward, "tiles", op)?,
            backward: driver.upload(&backward, "tiles", op)?,
        })
    }

    /// Queries of all documents, as an argument.
    pub const fn queries(&self) -> Arg {
        Arg::Int(self.tokens[0])
    }

    /// Elements of queries, and bytes of them and of keys, each a whole number of places.
    pub fn sizes(&self, heads: Heads) -> (usize, usize, usize) {
        let queries = size(u64::from(self.tokens[0].cast_unsigned()) * heads.n * heads.dim);
        let keys = self.key_elements(heads);
        (queries, (2 * queries).next_multiple_of(ALIGN), (2 * keys).next_multiple_of(ALIGN))
    }

    /// Elements of keys.
    pub fn key_elements(&self, heads: Heads) -> usize {
        size(u64::from(self.tokens[1].cast_unsigned()) * heads.n_kv * heads.dim)
    }

    /// Addresses of offsets and of the tiles of a direction.
    pub const fn lists(&self, backward: bool) -> [Address; 3] {
        [self.cu_q.at, self.cu_k.at, if backward { self.backward.at } else { self.forward.at }]
    }
}

/// Query heads, key heads, and elements of each.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Query heads.
    pub n: u64,
    /// Key heads.
    pub n_kv: u64,
    /// Elements of a head.
    pub dim: u64,
}

impl Heads {
    /// What scores are multiplied with.
    pub fn scale(self) -> Arg {
        Arg::Float(1.0 / (self.dim as f32).sqrt())
    }
}

/// Shared memory of the forward pass for heads of so many elements.
const fn shared_forward(wide: u32) -> u32 {
    (128 + 4 * 64) * wide * 2
}

/// Shared memory of the backward pass.
const fn shared_backward(wide: u32) -> u32 {
    (2 * 128 + 4 * 64) * wide * 2 + 128 * 64 * 2 + 1024
}

/// Whether there are kernels for heads of so many elements, and a device has the shared memory that they want.
pub fn runs(driver: &Driver, dim: u64, pass: Pass) -> bool {
    let wide = if dim == 128 { 128 } else { 64 };
    let shared = if pass == Pass::Forward { shared_forward(wide) } else { shared_backward(wide) };
    matches!(dim, 64 | 128) && shared <= driver.shared
}

/// Operands and results of the forward pass.
#[derive(Clone, Copy)]
pub struct Forward {
    /// Queries, keys, values.
    pub qkv: [Address; 3],
    /// Result.
    pub out: Address,
    /// Logarithm of the sum of exponentials, 32 bits.
    pub lse: Address,
}

impl Forward {
    /// Puts the pass on a stream.
    pub fn launch(&self, driver: &Driver, packed: &Packed, heads: Heads, on: CUstream) -> Result<(), DeviceError> {
        let [q, k, v] = self.qkv;
        let [cu_q, cu_k, tiles] = packed.lists(false);
        let mut args: Vec<Arg> = [q, k, v, self.out, self.lse, cu_q, cu_k, tiles].map(Arg::Pointer).to_vec();
        args.extend([int(heads.n), int(heads.n_kv), packed.queries(), heads.scale(), Arg::Int(1)]);
        let (name, wide) = if heads.dim == 128 { ("attention_forward_128", 128) } else { ("attention_forward_64", 64) };
        let grid = (u32::try_from(heads.n).unwrap_or(1), packed.n_tiles[0], 1);
        driver.launch(name, Shape { grid, block: 128, shared: shared_forward(wide) }, &args, on)
    }
}

/// Operands and results of the backward pass.
#[derive(Clone, Copy)]
pub struct Backward {
    /// Queries, keys, values.
    pub qkv: [Address; 3],
    /// Result of the forward pass, and its gradient.
    pub out: [Address; 2],
    /// Logarithm of the sum of exponentials, 32 bits.
    pub lse: Address,
    /// Sums of the result times its gradient by rows, 32 bits.
    pub delta: Address,
    /// Gradient of the queries, 32 bits.
    pub sum: Address,
    /// Gradients of queries, keys, values.
    pub gradients: [Address; 3],
}

impl Backward {
    /// Puts the pass on a stream.
    pub fn launch(&self, driver: &Driver, packed: &Packed, heads: Heads, on: CUstream) -> Result<(), DeviceError> {
        let ([q, k, v], [out, d_out], [d_q, d_k, d_v]) = (self.qkv, self.out, self.gradients);
        let (elements, ..) = packed.sizes(heads);
        let pointers = [out, d_out, self.delta].map(Arg::Pointer);
        let args = [&pointers[..], &[packed.queries(), int(heads.n), int(heads.dim)]].concat();
        driver.launch("attention_backward_delta", free_grid(elements / 8), &args, on)?;
        driver.fill(self.sum, 0, 4 * elements, on)?;
        let [cu_q, cu_k, tiles] = packed.lists(true);
        let pointers = [q, k, v, d_out, self.lse, self.delta, self.sum, d_k, d_v, cu_q, cu_k, tiles];
        let mut args = pointers.map(Arg::Pointer).to_vec();
        args.extend([int(heads.n), int(heads.n_kv), packed.queries(), heads.scale(), Arg::Int(1)]);
        let (name, wide) =
            if heads.dim == 128 { ("attention_backward_128", 128) } else { ("attention_backward_64", 64) };
        let shared = shared_backward(wide);
        let grid = (u32::try_from(heads.n_kv).unwrap_or(1), packed.n_tiles[1], 1);
        driver.launch(name, Shape { grid, block: 256, shared }, &args, on)?;
        let args = [Arg::Pointer(self.sum), Arg::Pointer(d_q), long(elements), heads.scale()];
        driver.launch("attention_backward_finish", free_grid(elements / 8), &args, on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_every_document_and_the_heaviest_come_first() {
        let shapes: Vec<(i32, i32)> = [Document::causal(300), Document::chunk(500, 100)].iter().map(shape).collect();
        assert_eq!(shapes, [(300, 300), (100, 600)]);
        let [forward, backward] = tiles(&shapes);
        // The chunk's queries see up to 600 keys, the document's tiles 300, 256 and 128.
        assert_eq!(forward, [[1, 0], [0, 256], [0, 128], [0, 0]]);
        // Keys of the document are seen by 300, 172 and 44 queries; of the chunk by 100 until they are its own.
        assert_eq!(backward[..2], [[0, 0], [0, 128]]);
        assert_eq!(backward.len(), 3 + 5);
        assert_eq!(offsets([3, 4].into_iter()), [0, 3, 7]);
    }

    #[test]
    fn a_zigzag_share_keeps_its_pairs() {
        let share = Document::zigzag(8192, 4);
        let (queries, keys) = shape(&share);
        let pairs = i64::from(keys - queries) * i64::from(queries) + i64::from(queries) * (i64::from(queries) + 1) / 2;
        let wanted = i64::try_from(share.pairs).expect("few");
        assert!((pairs - wanted).abs() <= i64::from(queries), "{pairs} {wanted}");
    }
}
