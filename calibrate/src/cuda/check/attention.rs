//! Attention forward and backward, and over vertical lines and slashes, against dense attention in float64.

use std::collections::BTreeSet;

use engine::task::{Document, Pass};

use super::super::attention::{self, Backward, Forward, Heads, Packed};
use super::super::kernels::Pattern;
use super::{Check, Tensor};
use crate::device::DeviceError;

/// Side of the blocks of slashes.
const SIDE: usize = 64;

/// All cases.
pub fn all(check: &mut Check<'_>) -> Result<(), DeviceError> {
    let heads = Heads { n: 4, n_kv: 2, dim: 128 };
    passes(check, &[Document::causal(150), Document::causal(1), Document::chunk(164, 37)], heads)?;
    let heads = Heads { n: 3, n_kv: 1, dim: 64 };
    passes(check, &[Document::causal(135), Document::chunk(1, 64), Document::chunk(125, 3)], heads)?;
    patterns(check)
}

/// Queries, keys and values of packed documents, with what leads to their rows.
pub struct Inputs {
    heads: Heads,
    documents: Vec<(usize, usize)>,
    queries: usize,
    qkv: [Tensor; 3],
}

/// One row of one head: its document's first key, its place among all keys of the document, and where it lies.
#[derive(Clone, Copy)]
struct Row {
    query: usize,
    head: usize,
    first_key: usize,
    position: usize,
}

/// A head number or size as an index.
pub fn index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(0)
}

impl Inputs {
    /// Random ones; documents are queries and keys.
    pub fn new(check: &mut Check<'_>, documents: Vec<(usize, usize)>, heads: Heads) -> Result<Self, DeviceError> {
        let (queries, keys) = documents.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let (n_q, n_kv) = (queries * index(heads.n * heads.dim), keys * index(heads.n_kv * heads.dim));
        let qkv = [check.halves(n_q, 1.5)?, check.halves(n_kv, 1.5)?, check.halves(n_kv, 1.0)?];
        Ok(Self { heads, documents, queries, qkv })
    }

    /// Addresses of the three.
    pub fn at(&self) -> [u64; 3] {
        [self.qkv[0].at(), self.qkv[1].at(), self.qkv[2].at()]
    }

    /// The three, on host and device.
    pub const fn tensors(&self) -> &[Tensor; 3] {
        &self.qkv
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let (mut query, mut first_key) = (0, 0);
        for &(queries, keys) in &self.documents {
            for row in 0..queries {
                let position = row + keys - queries;
                rows.extend((0..index(self.heads.n)).map(|head| Row { query: query + row, head, first_key, position }));
            }
            (query, first_key) = (query + queries, first_key + keys);
        }
        rows
    }

    fn query_at(&self, row: Row) -> usize {
        (row.query * index(self.heads.n) + row.head) * index(self.heads.dim)
    }

    fn key_at(&self, row: Row, key: usize) -> usize {
        let group = index(self.heads.n / self.heads.n_kv);
        ((row.first_key + key) * index(self.heads.n_kv) + row.head / group) * index(self.heads.dim)
    }

    fn scale(&self) -> f64 {
        1.0 / (self.heads.dim as f64).sqrt()
    }

    fn dot(&self, a: &[f64], at: usize, b: &[f64], other: usize) -> f64 {
        let dim = index(self.heads.dim);
        a[at..at + dim].iter().zip(&b[other..other + dim]).map(|(a, b)| a * b).sum()
    }

    /// Keys that a row sees with their weights, and the logarithm of the sum of exponentials.
    fn weights(&self, row: Row, sees: &dyn Fn(usize, usize, usize) -> bool) -> (Vec<(usize, f64)>, f64) {
        let [q, k, _] = &self.qkv;
        let seen = (0..=row.position).filter(|key| sees(row.head, row.position, *key));
        let score = |key| self.scale() * self.dot(&q.values, self.query_at(row), &k.values, self.key_at(row, key));
        let scores: Vec<(usize, f64)> = seen.map(|key| (key, score(key))).collect();
        let top = scores.iter().map(|(_, score)| *score).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|(_, score)| (score - top).exp()).sum();
        (scores.iter().map(|(key, score)| (*key, (score - top).exp() / sum)).collect(), top + sum.ln())
    }

    /// Result, and logarithms as `[heads, queries]`.
    pub fn forward(&self, sees: &dyn Fn(usize, usize, usize) -> bool) -> (Vec<f64>, Vec<f64>) {
        let dim = index(self.heads.dim);
        let mut out = vec![0.0; self.qkv[0].values.len()];
        let mut lse = vec![0.0; self.queries * index(self.heads.n)];
        for row in self.rows() {
            let (weights, log) = self.weights(row, sees);
            lse[row.head * self.queries + row.query] = log;
            let at = self.query_at(row);
            for (key, weight) in weights {
                let from = self.key_at(row, key);
                (0..dim).for_each(|x| out[at + x] += weight * self.qkv[2].values[from + x]);
            }
        }
        (out, lse)
    }

    /// Gradients of queries, keys and values.
    fn backward(&self, d_out: &[f64]) -> [Vec<f64>; 3] {
        let [q, k, v] = &self.qkv;
        let dim = index(self.heads.dim);
        let [mut d_q, mut d_k, mut d_v] = [q, k, v].map(|tensor| vec![0.0; tensor.values.len()]);
        for row in self.rows() {
            let (weights, _) = self.weights(row, &|_, _, _| true);
            let at = self.query_at(row);
            let gradient = |key| self.dot(d_out, at, &v.values, self.key_at(row, key));
            let of_weights: Vec<f64> = weights.iter().map(|(key, _)| gradient(*key)).collect();
            let mean: f64 = weights.iter().zip(&of_weights).map(|((_, weight), d)| weight * d).sum();
            for ((key, weight), d) in weights.iter().zip(of_weights) {
                let of_score = weight * (d - mean) * self.scale();
                let from = self.key_at(row, *key);
                for x in 0..dim {
                    d_q[at + x] += of_score * k.values[from + x];
                    d_k[from + x] += of_score * q.values[at + x];
                    d_v[from + x] += weight * d_out[at + x];
                }
            }
        }
        [d_q, d_k, d_v]
    }
}

fn passes(check: &mut Check<'_>, documents: &[Document], heads: Heads) -> Result<(), DeviceError> {
    let sizes = documents.iter().map(|document| (index(document.queries), index(document.keys))).collect();
    let inputs = Inputs::new(check, sizes, heads)?;
    let packed = Packed::new(check.driver, documents, "a check")?;
    let (n_q, n_kv) = (inputs.qkv[0].values.len(), inputs.qkv[1].values.len());
    let rows = n_q / index(heads.dim);
    let (out, lse) = (check.blank(n_q * 2)?, check.blank(rows * 4)?);
    Forward { qkv: inputs.at(), out: out.at, lse: lse.at }.launch(check.driver, &packed, heads, check.on)?;
    let name = |what: &str| format!("attention {what}, {} heads of {}", heads.n, heads.dim);
    let (e_out, e_lse) = inputs.forward(&|_, _, _| true);
    check.half(name("result"), &out, &e_out)?;
    check.float(name("log-sum-exp"), &lse, &e_lse)?;

    if !attention::runs(check.driver, heads.dim, Pass::Backward) {
        check.lines.push(name("backward is left out: the device has too little shared memory"));
        return Ok(());
    }
    let d_out = check.halves(n_q, 1.0)?;
    let [d_q, d_k, d_v] = [check.blank(n_q * 2)?, check.blank(n_kv * 2)?, check.blank(n_kv * 2)?];
    let (delta, sum) = (check.blank(rows * 4)?, check.blank(n_q * 4)?);
    let backward = Backward {
        qkv: inputs.at(),
        out: [out.at, d_out.at()],
        lse: lse.at,
        delta: delta.at,
        sum: sum.at,
        gradients: [d_q.at, d_k.at, d_v.at],
    };
    backward.launch(check.driver, &packed, heads, check.on)?;
    let [e_q, e_k, e_v] = inputs.backward(&d_out.values);
    check.half(name("dq"), &d_q, &e_q)?;
    check.half(name("dk"), &d_k, &e_k)?;
    check.half(name("dv"), &d_v, &e_v)
}

/// Slashes and verticals of a head.
struct Lines {
    slashes: BTreeSet<usize>,
    verticals: BTreeSet<usize>,
}

fn patterns(check: &mut Check<'_>) -> Result<(), DeviceError> {
    let mut some = |n: usize, below: usize| (0..n).map(|_| check.random.below(below)).collect::<BTreeSet<usize>>();
    let usual = vec![
        Lines { slashes: [0, 1, 4].into(), verticals: some(90, 450) },
        Lines { slashes: [0].into(), verticals: some(200, 450) },
        Lines { slashes: [0, 2, 6].into(), verticals: BTreeSet::new() },
        Lines { slashes: [0, 1].into(), verticals: (0..450).collect() },
    ];
    let late = vec![
        Lines { slashes: (0..41).filter(|at| ![3, 17, 34].contains(at)).collect(), verticals: some(300, 2630) },
        Lines { slashes: [0, 35].into(), verticals: some(200, 2630) },
    ];
    pattern(check, &[Document::causal(450), Document::chunk(128, 100)], Heads { n: 4, n_kv: 2, dim: 128 }, &usual)?;
    pattern(check, &[Document::chunk(2560, 70)], Heads { n: 2, n_kv: 1, dim: 64 }, &late)
}

/// Numbers of all heads, and where those of each begin.
fn listed<'a>(sets: impl Iterator<Item = &'a BTreeSet<usize>>) -> (Vec<i32>, Vec<i32>) {
    let (mut all, mut start) = (Vec::new(), vec![0]);
    for set in sets {
        all.extend(set.iter().map(|n| i32::try_from(*n).unwrap_or(0)));
        start.push(i32::try_from(all.len()).unwrap_or(0));
    }
    // An empty list still has an address.
    all.push(-1);
    (all, start)
}

/// Query blocks of documents, those that come last in theirs first.
pub fn blocks(documents: &[(usize, usize)]) -> Vec<[i32; 2]> {
    let mut tiles: Vec<[i32; 2]> = Vec::new();
    for (document, &(queries, keys)) in (0..).zip(documents) {
        tiles.extend(((keys - queries) / SIDE..keys.div_ceil(SIDE)).map(|i| [document, i32::try_from(i).unwrap_or(0)]));
    }
    tiles.sort_by_key(|tile| std::cmp::Reverse(tile[1]));
    tiles
}

fn pattern(check: &mut Check<'_>, documents: &[Document], heads: Heads, lines: &[Lines]) -> Result<(), DeviceError> {
    let sizes: Vec<(usize, usize)> =
        documents.iter().map(|document| (index(document.queries), index(document.keys))).collect();
    let tiles = blocks(&sizes);
    let longest = sizes.iter().map(|size| size.1).max().unwrap_or(0);
    let inputs = Inputs::new(check, sizes, heads)?;
    let packed = Packed::new(check.driver, documents, "a check")?;
    let (slashes, slash_start) = listed(lines.iter().map(|line| &line.slashes));
    let (verticals, vertical_start) = listed(lines.iter().map(|line| &line.verticals));
    let lists = [slashes, slash_start, verticals, vertical_start].map(|list| check.upload(&list));
    let [Ok(a), Ok(b), Ok(c), Ok(d)] = &lists else {
        return Err(DeviceError::Lost("no room for a check".to_owned()));
    };
    let at_tiles = check.upload(&tiles)?;
    let n_q = inputs.qkv[0].values.len();
    let (out, lse) = (check.blank(n_q * 2)?, check.blank(n_q / index(heads.dim) * 4)?);
    let places = Pattern {
        qkv: inputs.at(),
        out: [out.at, lse.at],
        tiles: at_tiles.at,
        n_tiles: tiles.len(),
        lines: [a.at, b.at, c.at, d.at],
        longest,
    };
    places.launch(check.driver, &packed, heads, check.on)?;
    let (e_out, e_lse) = inputs.forward(&|head, position, key| {
        lines[head].verticals.contains(&key) || lines[head].slashes.contains(&(position / SIDE - key / SIDE))
    });
    let name =
        |what: &str| format!("vertical and slash {what}, up to {longest} keys, {} heads of {}", heads.n, heads.dim);
    check.half(name("result"), &out, &e_out)?;
    check.float(name("log-sum-exp"), &lse, &e_lse)
}
