//! What the attention kernels want to know of packed documents: offsets, and tiles with the most work first.

use sim::task::Document;

use super::driver::{Address, Buffer, Driver};
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

    /// Addresses of offsets and of the tiles of a direction.
    pub const fn lists(&self, backward: bool) -> [Address; 3] {
        [self.cu_q.at, self.cu_k.at, if backward { self.backward.at } else { self.forward.at }]
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
