//! Tiled-CSL, the format of Flash-LLM's sparse weights (arXiv:2309.10285, section 4.2; AlibabaResearch/flash-llm).
//!
//! A matrix is cut into tiles of 128 × 64. A tile is a list of 32-bit items: a 16-bit value and its 16-bit place in the tile's image in shared
//! memory, where columns are swizzled (`column XOR (row mod 8) · 8`) so that later matrix loads meet no bank twice. The list is padded with explicit
//! zeros at free places to groups of four items, one 128-bit load. Items are dealt ahead of time so that the 32 lanes of a warp, each on
//! its item of the same number, write to 32 different banks.

/// Rows of a tile.
pub const TILE_ROWS: usize = 128;
/// Columns of a tile.
pub const TILE_COLUMNS: usize = 64;
/// Items of a tile that the kernel's registers hold: half of it.
pub const ITEMS_MAX: usize = TILE_ROWS * TILE_COLUMNS / 2;
/// Items of a 128-bit load.
const GROUP: usize = 4;
/// Lanes of a warp, and banks of 32 bits of shared memory.
const LANES: usize = 32;

/// A value and its place in the tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Bits of the 16-bit float.
    pub value: u16,
    /// `row · 64 + swizzled column`.
    pub place: u16,
}

/// A sparse matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TiledCsl {
    /// Rows, a multiple of 128.
    pub n_rows: usize,
    /// Columns, a multiple of 64.
    pub n_columns: usize,
    /// Items of all tiles, row of tiles by row of tiles.
    pub items: Vec<Item>,
    /// Where each tile starts, in groups of four items; one more entry than tiles.
    pub offsets: Vec<u32>,
}

fn place(row: usize, column: usize) -> u16 {
    u16::try_from(row * TILE_COLUMNS + (column ^ ((row % 8) << 3))).expect("a tile has 8,192 places")
}

/// Bank of a place: two 16-bit elements share one, and a row of 64 is all 32 banks once.
const fn bank(place: u16) -> usize {
    (place as usize % TILE_COLUMNS) / 2
}

/// Bank conflicts of a tile's list: how many writes the most wanted bank gets per warp-wide write, on average over full ones; 1 is none.
#[must_use]
pub fn conflicts(items: &[Item]) -> f64 {
    let (mut sum, mut n) = (0, 0_u32);
    for block in items.chunks_exact(LANES * GROUP) {
        for slot in 0..GROUP {
            let mut writes = [0_u32; LANES];
            (0..LANES).for_each(|lane| writes[bank(block[lane * GROUP + slot].place)] += 1);
            sum += writes.into_iter().max().unwrap_or(1);
            n += 1;
        }
    }
    if n == 0 { 1.0 } else { f64::from(sum) / f64::from(n) }
}

/// Deals items: each warp-wide write takes from the fullest banks first; what does not fill a block of 128 comes last as it is.
fn dealt(items: &[Item]) -> Vec<Item> {
    let mut banks: Vec<Vec<Item>> = vec![Vec::new(); LANES];
    items.iter().rev().for_each(|item| banks[bank(item.place)].push(*item));
    let mut list = Vec::with_capacity(items.len());
    for _ in 0..items.len() / (LANES * GROUP) {
        let writes: Vec<Vec<Item>> = (0..GROUP).map(|_| write(&mut banks)).collect();
        // Lane by lane, a lane's four items together.
        list.extend((0..LANES).flat_map(|lane| writes.iter().map(move |write| write[lane])));
    }
    list.extend(banks.into_iter().flat_map(|bank| bank.into_iter().rev()));
    list
}

/// Takes one item per lane, from different banks as far as there are items.
fn write(banks: &mut [Vec<Item>]) -> Vec<Item> {
    let mut taken = Vec::with_capacity(LANES);
    while taken.len() < LANES {
        let mut order: Vec<usize> = (0..LANES).filter(|&bank| !banks[bank].is_empty()).collect();
        order.sort_by_key(|&bank| std::cmp::Reverse(banks[bank].len()));
        let room = LANES - taken.len();
        taken.extend(order.into_iter().take(room).filter_map(|bank| banks[bank].pop()));
    }
    taken
}

/// Why a matrix has no packed form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DoesNotPack {
    /// Its shape is not whole tiles.
    #[error("a {n_rows} × {n_columns} matrix of {n_values} values is not whole tiles of 128 × 64")]
    NoTiles {
        /// Rows.
        n_rows: usize,
        /// Columns.
        n_columns: usize,
        /// Values that were given.
        n_values: usize,
    },
    /// A tile is more than half full.
    #[error("tile {tile:?} is {percent} % full, the kernel holds 50 %")]
    TooFull {
        /// Its row and column among tiles.
        tile: (usize, usize),
        /// How full it is.
        percent: usize,
    },
    /// It has more items than offsets can count.
    #[error("more than 2^32 groups of items")]
    TooLarge,
}

/// Packs a matrix of 16-bit floats, row by row; zero bits are left out.
///
/// # Errors
/// Names the first tile that is more than half full, which the kernel cannot hold, or a shape that is not whole tiles.
pub fn pack(dense: &[u16], n_rows: usize, n_columns: usize) -> Result<TiledCsl, DoesNotPack> {
    if !n_rows.is_multiple_of(TILE_ROWS) || !n_columns.is_multiple_of(TILE_COLUMNS) || dense.len() != n_rows * n_columns
    {
        return Err(DoesNotPack::NoTiles { n_rows, n_columns, n_values: dense.len() });
    }
    let (mut items, mut offsets) = (Vec::new(), vec![0]);
    for tile_row in 0..n_rows / TILE_ROWS {
        for tile_column in 0..n_columns / TILE_COLUMNS {
            let mut tile = Vec::new();
            let mut free = Vec::new();
            for (row, column) in (0..TILE_ROWS).flat_map(|row| (0..TILE_COLUMNS).map(move |column| (row, column))) {
                let at = (tile_row * TILE_ROWS + row) * n_columns + tile_column * TILE_COLUMNS + column;
                let item = Item { value: dense[at], place: place(row, column) };
                if item.value == 0 { free.push(item) } else { tile.push(item) }
            }
            let padding = tile.len().next_multiple_of(GROUP) - tile.len();
            if tile.len() + padding > ITEMS_MAX {
                let percent = tile.len() * 100 / (TILE_ROWS * TILE_COLUMNS);
                return Err(DoesNotPack::TooFull { tile: (tile_row, tile_column), percent });
            }
            tile.extend(free.into_iter().take(padding));
            items.extend(dealt(&tile));
            offsets.push(u32::try_from(items.len() / GROUP).map_err(|_| DoesNotPack::TooLarge)?);
        }
    }
    Ok(TiledCsl { n_rows, n_columns, items, offsets })
}

impl TiledCsl {
    /// The matrix, row by row.
    #[must_use]
    pub fn unpack(&self) -> Vec<u16> {
        let mut dense = vec![0; self.n_rows * self.n_columns];
        let tiles_across = self.n_columns / TILE_COLUMNS;
        for (tile, bounds) in self.offsets.windows(2).enumerate() {
            for item in &self.items[bounds[0] as usize * GROUP..bounds[1] as usize * GROUP] {
                let row = item.place as usize / TILE_COLUMNS;
                let column = (item.place as usize % TILE_COLUMNS) ^ ((row % 8) << 3);
                let at = (tile / tiles_across * TILE_ROWS + row) * self.n_columns;
                dense[at + tile % tiles_across * TILE_COLUMNS + column] = item.value;
            }
        }
        dense
    }

    /// Bytes: items and offsets, of which the kernel keeps one more than needed.
    #[must_use]
    pub fn bytes(&self) -> hw::Bytes {
        hw::Bytes((4 * (self.items.len() + self.offsets.len() + 1)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    fn matrix(n_rows: usize, n_columns: usize, sparsity: f64) -> Vec<u16> {
        let mut stream = random::stream(9, "weights");
        let value = |stream: &mut random::Stream| u16::try_from(1 + stream.below(65_535)).expect("16 bits");
        (0..n_rows * n_columns).map(|_| if stream.unit() < sparsity { 0 } else { value(&mut stream) }).collect()
    }

    #[test]
    fn what_is_packed_comes_back() {
        for sparsity in [0.6, 0.8, 0.99, 1.0] {
            let dense = matrix(256, 192, sparsity);
            let packed = pack(&dense, 256, 192).expect("sparse enough");
            assert_eq!(packed.unpack(), dense);
            assert_eq!(packed.offsets.len(), 7);
            let n_non_zero = dense.iter().filter(|value| **value != 0).count();
            assert!((n_non_zero..n_non_zero + 4 * 6).contains(&packed.items.len()), "at most three zeros per tile");
            assert_eq!(packed.bytes().0, 4 * packed.items.len() as u64 + 4 * 8);
        }
    }

    #[test]
    fn dealt_items_hardly_meet_a_bank_twice() {
        let dense = matrix(TILE_ROWS, TILE_COLUMNS, 0.8);
        let packed = pack(&dense, TILE_ROWS, TILE_COLUMNS).expect("sparse enough");
        let mut unordered = packed.items.clone();
        unordered.sort_by_key(|item| item.place);
        // Random banks are not equally full: some 51 items each, at most about 65 in 48 full writes.
        assert!(conflicts(&packed.items) < 1.25, "{}", conflicts(&packed.items));
        assert!(conflicts(&unordered) > 2.0, "{}", conflicts(&unordered));
    }

    #[test]
    fn a_tile_that_is_more_than_half_full_is_refused() {
        let why = pack(&matrix(128, 64, 0.4), 128, 64).expect_err("60 % of the tile").to_string();
        assert!(why.contains("tile (0, 0)") && why.contains("50 %"), "{why}");
        assert!(pack(&[0; 100], 10, 10).expect_err("no whole tiles").to_string().contains("128 × 64"));
        // Exactly half fits.
        let half: Vec<u16> = (0..128 * 64).map(|at| u16::from(at % 2 == 0)).collect();
        assert_eq!(pack(&half, 128, 64).expect("half").unpack(), half);
    }
}
