//! What a cached vertex takes and saves: bytes of rows and features, 64-byte transactions over PCIe, and vertices ranked by how hot they are.
//!
//! A row takes 8 + 4 d bytes (an offset, neighbours of 32 bits), features 4 F. A transaction carries 64 bytes; what a read touches is counted in
//! aligned lines, as zero-copy reads are. Source: Legion (arXiv:2305.16588) and its artefact.

pub use crate::csr::LINE_BYTES;
use crate::csr::{Csr, index};
use crate::sample::{Replacement, Sampling, Visits};

/// Neighbours of a line.
const SLOTS_PER_LINE: u64 = 16;

/// Bytes of a cached row.
pub const fn row_bytes(degree: u64) -> u64 {
    8 + 4 * degree
}

/// Bytes of a vertex's features.
pub const fn feature_bytes(width: u64) -> u64 {
    4 * width
}

/// Lines of a feature row, over all the places at which it can begin.
pub fn feature_lines(width: u64) -> f64 {
    let bytes = feature_bytes(width);
    // Rows begin at multiples of their size, which visit every multiple of the common divisor alike.
    hw::real(bytes + LINE_BYTES - common_divisor(bytes, LINE_BYTES)) / hw::real(LINE_BYTES)
}

const fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Lines of one feature row as it lies.
pub const fn counted_feature_lines(width: u64, vertex: u32) -> u64 {
    let first = feature_bytes(width) * vertex as u64;
    (first + feature_bytes(width) - 1) / LINE_BYTES - first / LINE_BYTES + 1
}

/// Expected lines of a visit to a row: one of the offset, and those of the neighbours that are picked.
pub fn row_lines(degree: f64, fan_out: u32, replacement: Replacement) -> f64 {
    if degree < 0.5 {
        return 1.0;
    }
    let untouched = untouched(degree, fan_out, replacement);
    let slots = hw::whole(degree).max(1);
    let mut lines = 0.0;
    // A row begins at any slot of a line alike.
    for before in 0..SLOTS_PER_LINE {
        let first = slots.min(SLOTS_PER_LINE - before);
        let (n_full, last) = ((slots - first) / SLOTS_PER_LINE, (slots - first) % SLOTS_PER_LINE);
        let touched = |slots: u64| 1.0 - untouched[index(slots)];
        lines += touched(first) + hw::real(n_full) * touched(SLOTS_PER_LINE) + touched(last);
    }
    1.0 + lines / hw::real(SLOTS_PER_LINE)
}

/// Chance that none of so many slots of a row is picked, for 0 to 16 of them.
fn untouched(degree: f64, fan_out: u32, replacement: Replacement) -> [f64; 17] {
    let picks = f64::from(fan_out);
    let mut found = [1.0; 17];
    for slots in 1..17_u32 {
        let n = f64::from(slots);
        found[slots as usize] = match replacement {
            // Picks that leave out n slots are drawn from the others: each further slot escapes in its turn.
            Replacement::Without => {
                let others = (degree - n + 1.0).max(1.0);
                found[slots as usize - 1] * ((others - picks) / others).max(0.0)
            }
            Replacement::With => libm::pow((1.0 - n / degree).max(0.0), picks),
        };
    }
    found
}

/// Lines of a visit as it was: the offset's, and those of the picked positions.
pub fn counted_row_lines(first_slot: u64, picked: &mut [u64]) -> u64 {
    picked.iter_mut().for_each(|position| *position = (first_slot + *position) * 4 / LINE_BYTES);
    picked.sort_unstable();
    let mut lines = 1;
    for (at, line) in picked.iter().enumerate() {
        lines += u64::from(at == 0 || picked[at - 1] != *line);
    }
    lines
}

/// Vertices that are alike, or one vertex.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    /// How hot each is: what they are ranked by.
    pub hotness: f64,
    /// Transactions of an epoch that caching each saves.
    pub saved: f64,
    /// Bytes that each takes.
    pub bytes: f64,
    /// How many.
    pub count: f64,
}

/// Items by falling hotness with running sums.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    items: Vec<Item>,
    /// Position of each in the list that was ranked.
    pub order: Vec<u32>,
    /// Bytes of the first n items.
    bytes: Vec<f64>,
    /// Transactions that they save.
    saved: Vec<f64>,
}

/// What a budget holds of ranked items.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Held {
    /// Whole items.
    pub n_items: usize,
    /// Vertices of the item after them.
    pub n_more: f64,
    /// Bytes.
    pub bytes: f64,
    /// Transactions of an epoch that are saved.
    pub saved: f64,
}

impl Ranked {
    /// Ranks items; those that are equally hot stay in order.
    ///
    /// # Panics
    /// When an item saves less than nothing.
    pub fn new(items: &[Item]) -> Self {
        assert!(
            items.iter().all(|item| item.saved >= 0.0 && item.bytes > 0.0),
            "an item takes bytes and saves no less than 0"
        );
        let mut order: Vec<u32> = (0..).take(items.len()).collect();
        order.sort_by(|&a, &b| items[b as usize].hotness.total_cmp(&items[a as usize].hotness));
        let items: Vec<Item> = order.iter().map(|&at| items[at as usize]).collect();
        let (mut bytes, mut saved) = (vec![0.0], vec![0.0]);
        for item in &items {
            bytes.push(bytes[bytes.len() - 1] + item.bytes * item.count);
            saved.push(saved[saved.len() - 1] + item.saved * item.count);
        }
        Self { items, order, bytes, saved }
    }

    /// Items by falling hotness.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Bytes of all.
    pub fn bytes(&self) -> f64 {
        self.bytes[self.items.len()]
    }

    /// Transactions without a cache.
    pub fn transactions(&self) -> f64 {
        self.saved[self.items.len()]
    }

    /// The longest prefix of vertices whose bytes fit.
    pub fn within(&self, budget: f64) -> Held {
        let n_items = self.bytes.partition_point(|&bytes| bytes <= budget) - 1;
        let (bytes, saved) = (self.bytes[n_items], self.saved[n_items]);
        let Some(next) = self.items.get(n_items) else { return Held { n_items, n_more: 0.0, bytes, saved } };
        let n_more = libm::floor((budget - bytes) / next.bytes).clamp(0.0, next.count);
        Held { n_items, n_more, bytes: bytes + n_more * next.bytes, saved: saved + n_more * next.saved }
    }

    /// Vertices that are held.
    pub fn n_held(&self, held: &Held) -> f64 {
        self.items[..held.n_items].iter().map(|item| item.count).sum::<f64>() + held.n_more
    }
}

/// How hot vertices are, as a policy counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hotness {
    /// Visits of an epoch that was sampled beforehand.
    Sampled,
    /// Neighbours.
    Degree,
}

/// Two epochs of a GPU: one ranks vertices, the other says what caching them saves. One alone would flatter the vertices that it happened to visit.
#[derive(Clone, Debug)]
pub struct Epochs {
    /// The epoch that ranks.
    pub ranking: Visits,
    /// The epoch that counts.
    pub counting: Visits,
}

/// Items of a graph's rows: visits of the GPUs that share a cache, summed.
pub fn row_items(graph: &Csr, gpus: &[&Epochs], sampling: &Sampling, hotness: Hotness) -> Vec<Item> {
    (0..graph.n_vertices())
        .map(|vertex| {
            let degree = graph.degree(vertex);
            let (mut n_visits, mut saved) = (0.0, 0.0);
            for (hop, &fan_out) in sampling.fan_out.iter().enumerate() {
                n_visits += sum(gpus, |gpu| gpu.ranking.rows[hop][vertex as usize]);
                let lines = row_lines(hw::real(degree), fan_out, sampling.replacement);
                saved += lines * sum(gpus, |gpu| gpu.counting.rows[hop][vertex as usize]);
            }
            let hotness = if hotness == Hotness::Degree { hw::real(degree) } else { n_visits };
            Item { hotness, saved, bytes: hw::real(row_bytes(degree)), count: 1.0 }
        })
        .collect()
}

fn sum(gpus: &[&Epochs], count: impl Fn(&Epochs) -> u32) -> f64 {
    hw::real(gpus.iter().map(|gpu| u64::from(count(gpu))).sum())
}

/// Items of a graph's features.
pub fn feature_items(graph: &Csr, gpus: &[&Epochs], width: u64, hotness: Hotness) -> Vec<Item> {
    let (bytes, lines) = (hw::real(feature_bytes(width)), feature_lines(width));
    (0..graph.n_vertices())
        .map(|vertex| {
            let n_visits = sum(gpus, |gpu| gpu.ranking.gathers[vertex as usize]);
            let hotness = if hotness == Hotness::Degree { hw::real(graph.degree(vertex)) } else { n_visits };
            let saved = lines * sum(gpus, |gpu| gpu.counting.gathers[vertex as usize]);
            Item { hotness, saved, bytes, count: 1.0 }
        })
        .collect()
}

/// Vertices that are held, hottest first.
pub fn held_vertices(ranked: &Ranked, held: &Held) -> Vec<u32> {
    ranked.order[..held.n_items + index(hw::whole(held.n_more)).min(1)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_of_features_are_those_of_their_addresses() {
        // 400 bytes at multiples of 400: over 4 rows 1600 bytes are 25 lines, and each row touches 7.
        for width in [1, 16, 100, 128, 58, 7] {
            let counted: u64 = (0..4096).map(|vertex| counted_feature_lines(width, vertex)).sum();
            let expected = 4096.0 * feature_lines(width);
            assert!((hw::real(counted) - expected).abs() < 1.0, "{width}: {counted} {expected}");
        }
        assert_eq!([feature_lines(16), feature_lines(100), feature_lines(128)], [1.0, 7.0, 8.0]);
    }

    #[test]
    fn lines_of_rows_are_those_of_picks_within_a_few_per_cent() {
        let mut stream = engine::random::stream(3, "test");
        for (degree, fan_out) in [(3, 10), (10, 10), (40, 10), (200, 25), (5000, 25), (30, 25)] {
            for replacement in [Replacement::Without, Replacement::With] {
                let (mut sum, mut picked) = (0, Vec::new());
                for at in 0..2000 {
                    crate::sample::picks(degree, fan_out, replacement, stream.branch(at), &mut picked);
                    sum += counted_row_lines(stream.below(1 << 20), &mut picked);
                }
                let found = hw::real(sum) / 2000.0;
                let expected = row_lines(hw::real(degree), fan_out, replacement);
                assert!(
                    (found / expected - 1.0).abs() < 0.02,
                    "{degree} {fan_out} {replacement:?}: {found} {expected}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn prefixes_equal_brute_force(
            raw in prop::collection::vec((0_u32..20, 1_u32..30, 1_u32..4), 1..40), budget in 0_u32..600,
        ) {
            let items: Vec<Item> = raw.iter().map(|&(hotness, bytes, count)| Item {
                hotness: f64::from(hotness), saved: f64::from(hotness), bytes: f64::from(bytes), count: f64::from(count),
            }).collect();
            let found = Ranked::new(&items).within(f64::from(budget));
            // One vertex after the other, hottest first, until one does not fit.
            let mut sorted: Vec<(u32, usize, u32)> = raw.iter().enumerate().map(|(at, item)| (item.0, at, item.1)).collect();
            sorted.sort_by_key(|item| (u32::MAX - item.0, item.1));
            let (mut bytes, mut saved) = (0, 0);
            'all: for (hotness, at, size) in sorted {
                for _ in 0..raw[at].2 {
                    if bytes + size > budget {
                        break 'all;
                    }
                    bytes += size;
                    saved += hotness;
                }
            }
            prop_assert_eq!((found.bytes, found.saved), (f64::from(bytes), f64::from(saved)));
        }
    }
}
