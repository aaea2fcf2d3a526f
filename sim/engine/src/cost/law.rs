//! Physically shaped times of a kernel: launch + max(compute, memory), with coefficients that are never negative.
//!
//! Compute is the multiply-adds of whole tiles in whole waves, plus fill costs that grow with one operand only, so that
//! efficiency saturates with every dimension; memory is bytes. All terms grow with every dimension, so does the time. A fit
//! finds the coefficients (`calibrate/src/fit/law.rs`); a `Surface` corrects what the shape leaves.

use hw::real;
use serde::{Deserialize, Serialize};

use crate::cost::unusable::Unusable;
use crate::task::{Document, Op, Pass};

/// Most rows or columns of a tile, and most tiles at once; no device comes near, and products of them stay in 64 bits.
const SIZE_MAX: u64 = 1 << 16;

/// Largest time of a profile, in seconds: sums and products of such times stay finite.
pub const COEFFICIENT_S_MAX: f64 = 1e9;

/// Coefficients of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Law {
    /// Matrix product.
    Gemm(GemmLaw),
    /// Variable-length attention.
    Attention(AttentionLaw),
}

/// Seconds of a matrix product of m × k by k × n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GemmLaw {
    /// Rows of a tile.
    pub tile_m: u64,
    /// Columns of a tile.
    pub tile_n: u64,
    /// Tiles that run at once; 1 where tiles follow each other.
    pub slots: u64,
    /// Launch.
    pub start_s: f64,
    /// Per multiply-add of the tiles.
    pub multiply_s: f64,
    /// Per element of the left operand, m · k.
    pub left_s: f64,
    /// Per element of the right operand, n · k.
    pub right_s: f64,
    /// Per element of the result, m · n.
    pub out_s: f64,
    /// Per byte of all three.
    pub byte_s: f64,
}

/// Seconds of attention over documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionLaw {
    /// Rows of a tile, where tiles run at once on many units; 0 where one row follows the other.
    #[serde(default)]
    pub tile: u64,
    /// Launch.
    pub start_s: f64,
    /// Per document and head.
    pub document_s: f64,
    /// Per query-key pair, head and element of a head.
    pub pair_s: f64,
    /// Per query-key pair and head: the softmax.
    pub score_s: f64,
    /// Per query, head and element.
    pub query_s: f64,
    /// Per key, key-value head and element.
    pub key_s: f64,
    /// Per step and element of a head of the longest tile: no number of units makes it shorter.
    #[serde(default)]
    pub path_s: f64,
}

/// What the coefficients multiply: one row for each side of the maximum.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// Launch and compute.
    pub compute: Vec<f64>,
    /// Launch and memory; empty where there is one side only.
    pub memory: Vec<f64>,
}

impl Law {
    /// Coefficients in the order of the features.
    pub fn coefficients(&self) -> Vec<f64> {
        match self {
            Self::Gemm(g) => vec![g.start_s, g.multiply_s, g.left_s, g.right_s, g.out_s, g.byte_s],
            Self::Attention(a) => {
                let all = vec![a.start_s, a.document_s, a.pair_s, a.score_s, a.query_s, a.key_s, a.path_s];
                if a.tile == 0 { all[..6].to_vec() } else { all }
            }
        }
    }

    /// The same shape with other coefficients.
    ///
    /// # Panics
    /// When they are not as many as the law has.
    pub fn with(&self, coefficients: &[f64]) -> Self {
        let [a, b, c, d, e, g, ref path @ ..] = *coefficients else {
            panic!("six coefficients or more, found {}", coefficients.len())
        };
        match *self {
            Self::Gemm(law) => {
                Self::Gemm(GemmLaw { start_s: a, multiply_s: b, left_s: c, right_s: d, out_s: e, byte_s: g, ..law })
            }
            Self::Attention(AttentionLaw { tile, .. }) => Self::Attention(AttentionLaw {
                tile,
                start_s: a,
                document_s: b,
                pair_s: c,
                score_s: d,
                query_s: e,
                key_s: g,
                path_s: path.first().copied().unwrap_or(0.0),
            }),
        }
    }

    /// Features of an operation that the law is for.
    pub fn features(&self, op: &Op) -> Option<Features> {
        match (self, op) {
            (Self::Gemm(law), Op::Gemm { m, n, k, format }) => {
                let (m, n, k) = (*m, *n, *k);
                let tiles = m.div_ceil(law.tile_m) * n.div_ceil(law.tile_n);
                let waves = tiles.div_ceil(law.slots) * law.slots;
                let multiplied = real(waves * law.tile_m * law.tile_n) * real(k);
                let bytes = format.product_bytes(m, n, k);
                Some(Features {
                    compute: vec![1.0, multiplied, real(m * k), real(n * k), real(m * n), 0.0],
                    memory: vec![1.0, 0.0, 0.0, 0.0, 0.0, bytes],
                })
            }
            (Self::Attention(law), Op::Attention { documents, n_heads, n_kv_heads, head_dim, pass, .. }) => {
                let sum = |of: fn(&Document) -> u64| documents.iter().map(|d| real(of(d))).sum::<f64>();
                let (heads, wide) = (real(*n_heads), real(*head_dim));
                let queries = sum(|d| d.queries) * heads * wide;
                let keys = sum(|d| d.keys) * real(*n_kv_heads) * wide;
                let each = real(documents.len() as u64) * heads;
                if law.tile == 0 {
                    let pairs = sum(|d| d.pairs) * heads;
                    let compute = vec![1.0, each, pairs * wide, pairs, queries, keys];
                    return Some(Features { compute, memory: Vec::new() });
                }
                let pairs = documents.iter().map(|d| in_tiles(d, law.tile)).sum::<f64>() * heads;
                let group = (n_heads / n_kv_heads.max(&1)).max(1);
                let steps = |d: &Document| match pass {
                    Pass::Forward => past(d) + real(d.queries),
                    Pass::Backward => real(d.queries * group),
                };
                let longest = documents.iter().map(steps).fold(0.0, f64::max);
                let longest = (longest / real(law.tile)).ceil() * real(law.tile);
                Some(Features {
                    compute: vec![1.0, each, pairs * wide, pairs, queries, keys, 0.0],
                    memory: vec![1.0, 0.0, 0.0, 0.0, queries, keys, longest * wide],
                })
            }
            _ => None,
        }
    }

    /// Seconds of an operation: launch, and the rest.
    pub fn seconds(&self, op: &Op) -> Option<(f64, f64)> {
        let features = self.features(op)?;
        let coefficients = self.coefficients();
        let total = |row: &[f64]| row.iter().zip(&coefficients).map(|(x, c)| x * c).sum::<f64>();
        Some((coefficients[0], total(&features.compute).max(total(&features.memory)) - coefficients[0]))
    }

    /// How much work an operation has beside what bounds it otherwise; the less, the sooner the other side counts. For first guesses.
    pub fn density(&self, features: &Features) -> f64 {
        match self {
            Self::Gemm(_) => features.compute[1] / features.memory[5],
            Self::Attention(_) => features.compute[2] / features.memory[6],
        }
    }

    /// What is wrong with the coefficients, if anything.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), Unusable> {
        if let Self::Gemm(law) = self
            && ![law.tile_m, law.tile_n, law.slots].iter().all(|size| (1..=SIZE_MAX).contains(size))
        {
            return Err(Unusable::range("tiles and slots", 1, SIZE_MAX));
        }
        if let Self::Attention(law) = self
            && law.tile > SIZE_MAX
        {
            return Err(Unusable::range("rows of a tile", 0, SIZE_MAX));
        }
        if !self.coefficients().iter().all(|value| (0.0..=COEFFICIENT_S_MAX).contains(value)) {
            return Err(Unusable::range("every coefficient", 0, format!("{COEFFICIENT_S_MAX:e}")));
        }
        Ok(())
    }
}

/// Keys before the first query of a whole causal chunk with the same pairs: a zigzag share of a document has fewer than its keys say.
fn past(document: &Document) -> f64 {
    let queries = document.queries.max(1);
    (real(document.pairs) / real(queries) - real(queries + 1) / 2.0).max(0.0)
}

/// Query-key pairs that causal tiles of so many rows compute: a tile's last row sees the most keys, and all of its rows see as many.
fn in_tiles(document: &Document, tile: u64) -> f64 {
    let queries = document.queries.max(1);
    let n = queries.div_ceil(tile);
    // Tiles end after 1, 2, … n times their rows; the last one ends with the document, at half a tile.
    let ends = real(tile) * real(n * (n + 1)) / 2.0 - real(n * tile - queries.next_multiple_of((tile / 2).max(1)));
    real(tile) * (real(n) * past(document) + ends)
}

#[cfg(test)]
mod tests {
    use hw::Format;

    use super::*;

    #[test]
    fn a_product_fills_whole_tiles_in_whole_waves_and_is_bound_by_the_slower_side() {
        let law = GemmLaw { tile_m: 64, tile_n: 64, slots: 4, start_s: 1.0, multiply_s: 1.0, ..GemmLaw::default() };
        let gemm = |m, n, k| Op::Gemm { m, n, k, format: Format::Bf16 };
        // One tile takes a whole wave of four; five tiles take two.
        assert_eq!(Law::Gemm(law).seconds(&gemm(1, 1, 2)), Some((1.0, 4.0 * 4096.0 * 2.0)));
        assert_eq!(Law::Gemm(law).seconds(&gemm(64, 320, 1)), Some((1.0, 8.0 * 4096.0)));
        let bound = Law::Gemm(GemmLaw { byte_s: 1e6, ..law });
        assert_eq!(bound.seconds(&gemm(1, 1, 2)), Some((1.0, 1e6 * 2.0 * 5.0)), "two bytes for each of 2 + 2 + 1");
    }

    #[test]
    fn attention_adds_its_documents() {
        let law = AttentionLaw { document_s: 10.0, pair_s: 1.0, ..AttentionLaw::default() };
        let documents = vec![Document::causal(3), Document::causal(1)];
        let op = Op::Attention {
            documents,
            n_heads: 2,
            n_kv_heads: 1,
            head_dim: 4,
            kv: hw::Dtype::Bf16,
            pass: Pass::Forward,
        };
        // Two documents times two heads; six pairs and one, two heads of four.
        assert_eq!(Law::Attention(law).seconds(&op), Some((0.0, 40.0 + 7.0 * 8.0)));
    }

    /// Pairs of tiles, counted tile by tile: a tile computes whole columns of half its rows, up to the last key that one of its rows sees.
    #[test]
    fn tiles_compute_what_counting_them_says() {
        for (past, queries) in [(0, 1), (0, 128), (0, 129), (0, 1000), (256, 300), (64, 64)] {
            let counted: u64 = (0..u64::div_ceil(queries, 128))
                .map(|tile| 128 * (past + queries.min(128 * (tile + 1)).next_multiple_of(64)))
                .sum();
            let found = in_tiles(&Document::chunk(past, queries), 128);
            assert!((found / real(counted) - 1.0).abs() < 1e-9, "{past} {queries}: {found} {counted}");
        }
    }

    #[test]
    fn no_number_of_units_makes_the_longest_tile_shorter() {
        let law = AttentionLaw { tile: 128, start_s: 1.0, pair_s: 5e-4, path_s: 1.0, ..AttentionLaw::default() };
        let attention = |documents: Vec<Document>, pass| Op::Attention {
            documents,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 1,
            kv: hw::Dtype::Bf16,
            pass,
        };
        let seconds = |documents, pass| Law::Attention(law).seconds(&attention(documents, pass)).map(|(_, rest)| rest);
        // A block of the forward pass walks over all keys; one of the backward pass over the queries of both heads that share its keys.
        assert_eq!(seconds(vec![Document::causal(256)], Pass::Forward), Some(256.0));
        assert_eq!(seconds(vec![Document::causal(256)], Pass::Backward), Some(512.0));
        // A second document beside it takes no longer, until there is work for all units.
        assert_eq!(seconds(vec![Document::causal(256), Document::causal(100)], Pass::Forward), Some(256.0));
        let many = seconds(vec![Document::causal(256); 100], Pass::Forward).expect("attention");
        assert!((many - 5e-4 * 4.0 * 100.0 * 128.0 * (128.0 + 256.0)).abs() < 1e-6, "{many}");
        // Half of the pairs of a zigzag share are seen by no one.
        let share = Document::zigzag(512, 2);
        assert_eq!(seconds(vec![share], Pass::Forward), Some(384.0), "{share:?}");
    }
}
