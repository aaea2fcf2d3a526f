//! Weights with unstructured zeros in the format of `spmm.cu`: tiles of 128 × 64, each a list of 32-bit items, the value in the upper
//! half and its place in the tile in the lower (Flash-LLM, arXiv:2309.10285).
//!
//! The order of a tile's items is free. Lanes of a warp write one item each at the same time, so items are dealt such that those lanes
//! hit different banks of shared memory wherever the tile allows it.

use std::cmp::Reverse;

/// Rows of a tile.
pub const ROWS: usize = 128;
/// Columns of a tile.
pub const DEPTH: usize = 64;
/// Banks of shared memory, of 4 bytes each.
const BANKS: usize = 32;
/// Lanes of a warp, each of which loads four items at once.
const LANES: usize = 32;

/// A weight in tiles.
pub struct Tiled {
    /// Items of all tiles.
    pub items: Vec<u32>,
    /// Where each tile begins, in groups of four items, and the end.
    pub offsets: Vec<i32>,
}

/// Bank that an item is written to.
const fn bank(item: u32) -> usize {
    (item as usize & 0xffff) / 2 % BANKS
}

/// Encodes bf16 values in rows; `m` is a multiple of 128 and `k` of 64.
pub fn encode(values: &[u16], m: usize, k: usize) -> Tiled {
    let mut tiled = Tiled { items: Vec::new(), offsets: vec![0] };
    for tile in 0..m / ROWS * (k / DEPTH) {
        let (first, column) = (tile / (k / DEPTH) * ROWS, tile % (k / DEPTH) * DEPTH);
        let at = |place: usize| {
            let (row, inside) = (place / DEPTH, place % DEPTH);
            let value = values[(first + row) * k + column + inside];
            let to = row * DEPTH + (inside ^ ((row % 8) * 8));
            u32::from(value) << 16 | u32::try_from(to).expect("a tile has 8192 places")
        };
        let (mut used, free): (Vec<u32>, Vec<u32>) =
            (0..ROWS * DEPTH).map(at).partition(|item| item >> 16 & 0x7fff != 0);
        let missing = used.len().next_multiple_of(4) - used.len();
        used.extend(free.iter().take(missing).map(|item| item & 0xffff));
        tiled.items.extend(deal(&used));
        tiled.offsets.push(i32::try_from(tiled.items.len() / 4).expect("fewer than 2^33 items"));
    }
    tiled
}

/// Orders items so that what a warp writes at once goes to different banks. Banks with the most items left go first.
fn deal(items: &[u32]) -> Vec<u32> {
    let mut banks: Vec<Vec<u32>> = vec![Vec::new(); BANKS];
    items.iter().rev().for_each(|item| banks[bank(*item)].push(*item));
    let mut dealt = vec![0; items.len()];
    let groups = items.len() / 4;
    for (round, word) in (0..groups.div_ceil(LANES)).flat_map(|round| (0..4).map(move |word| (round, word))) {
        let lanes = LANES.min(groups - round * LANES);
        let mut lane = 0;
        // A second turn is taken only when fewer banks than lanes have items left.
        while lane < lanes {
            let mut order: Vec<usize> = (0..BANKS).filter(|bank| !banks[*bank].is_empty()).collect();
            order.sort_by_key(|bank| Reverse(banks[*bank].len()));
            for bank in order.into_iter().take(lanes - lane) {
                dealt[(round * LANES + lane) * 4 + word] = banks[bank].pop().expect("it is not empty");
                lane += 1;
            }
        }
    }
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of which about so many of 256 are not zero.
    fn sparse(n: usize, share: u32) -> Vec<u16> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        (0..n).map(|_| if next() % 256 < share { 0x3f80 + next() as u16 % 64 } else { 0 }).collect()
    }

    #[test]
    fn every_value_is_found_again() {
        let (m, k) = (256, 192);
        for share in [0, 1, 51, 256] {
            let values = sparse(m * k, share);
            let tiled = encode(&values, m, k);
            let mut back = vec![0_u16; m * k];
            for (tile, range) in tiled.offsets.windows(2).enumerate() {
                let range = usize::try_from(range[0]).expect("rises")..usize::try_from(range[1]).expect("rises");
                for item in &tiled.items[range.start * 4..range.end * 4] {
                    let (row, place) = (*item as usize % 65536 / DEPTH, *item as usize % DEPTH);
                    let (down, right) = (tile / (k / DEPTH) * ROWS, tile % (k / DEPTH) * DEPTH);
                    back[(down + row) * k + right + (place ^ ((row % 8) * 8))] +=
                        u16::try_from(item >> 16).expect("half");
                }
            }
            assert_eq!(back, values, "{share}");
        }
    }

    #[test]
    fn lanes_of_a_warp_write_to_different_banks() {
        let tiled = encode(&sparse(ROWS * DEPTH, 51), ROWS, DEPTH);
        let mut crowded = 0;
        for round in tiled.items.chunks(4 * LANES) {
            for word in 0..4 {
                let mut hits = [0; BANKS];
                round.iter().skip(word).step_by(4).for_each(|item| hits[bank(*item)] += 1);
                crowded += hits.iter().map(|hits: &usize| hits.saturating_sub(1)).sum::<usize>();
            }
        }
        // Of 1640 items or so; in the order of the rows it would be a third of them.
        assert!(crowded < tiled.items.len() / 20, "{crowded} of {}", tiled.items.len());
    }
}
