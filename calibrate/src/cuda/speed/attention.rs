//! Attention: packed documents forward and backward, a decoding step, and a sparse prefill.

use engine::task::{Document, Pass};

use super::super::attention::{self, Backward, Forward, Packed};
use super::super::check::Random;
use super::super::driver::Buffer;
use super::super::kernels::{Decode, Pattern};
use super::{Bench, giga, tera};
use crate::device::DeviceError;

fn index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(0)
}

fn number(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Queries, keys and values of so many tokens.
fn inputs(bench: &Bench<'_>, tokens: usize) -> Result<[Buffer; 3], DeviceError> {
    let heads = bench.sizes.heads;
    let of = |n: u64| bench.random(tokens * index(n * heads.dim) * 2);
    Ok([of(heads.n)?, of(heads.n_kv)?, of(heads.n_kv)?])
}

/// Both passes over packed documents.
pub fn packed(bench: &mut Bench<'_>) -> Result<Vec<String>, DeviceError> {
    let heads = bench.sizes.heads;
    let mut lines = Vec::new();
    for (n, length) in bench.sizes.packs {
        let documents = vec![Document::causal(length as u64); n];
        let packed = Packed::new(bench.driver, &documents, "a measurement")?;
        let tokens = n * length;
        let [q, k, v] = inputs(bench, tokens)?;
        let (n_q, n_kv) = (tokens * index(heads.n * heads.dim), tokens * index(heads.n_kv * heads.dim));
        let (out, lse) = (bench.room(n_q * 2)?, bench.room(tokens * index(heads.n) * 4)?);
        let forward = Forward { qkv: [q.at, k.at, v.at], out: out.at, lse: lse.at };
        let seconds = bench.median("attention", |_| forward.launch(bench.driver, &packed, heads, bench.on))?;
        let pairs = documents.iter().map(|document| document.pairs).sum::<u64>() * heads.n * heads.dim;
        let name = |what: &str| format!("attention {what}, {n} × {length} tokens");
        lines.push(format!("{}: {}", name("forward"), tera(4.0 * pairs as f64, seconds)));
        if !attention::runs(bench.driver, heads.dim, Pass::Backward) {
            continue;
        }
        let d_out = bench.random(n_q * 2)?;
        let [d_q, d_k, d_v] = [bench.room(n_q * 2)?, bench.room(n_kv * 2)?, bench.room(n_kv * 2)?];
        let (delta, sum) = (bench.room(tokens * index(heads.n) * 4)?, bench.room(n_q * 4)?);
        let backward = Backward {
            qkv: [q.at, k.at, v.at],
            out: [out.at, d_out.at],
            lse: lse.at,
            delta: delta.at,
            sum: sum.at,
            gradients: [d_q.at, d_k.at, d_v.at],
        };
        let seconds =
            bench.median("attention backward", |_| backward.launch(bench.driver, &packed, heads, bench.on))?;
        lines.push(format!("{}: {}", name("backward"), tera(10.0 * pairs as f64, seconds)));
    }
    Ok(lines)
}

/// One token of each sequence over its cache; the best of several splits.
pub fn decode(bench: &mut Bench<'_>) -> Result<Vec<String>, DeviceError> {
    let (heads, (n, length)) = (bench.sizes.heads, bench.sizes.decode);
    let wide = index(heads.n_kv * heads.dim);
    let rows = n * index(heads.n);
    let q = bench.random(rows * index(heads.dim) * 2)?;
    let (k, v) = (bench.random(n * length * wide * 2)?, bench.random(n * length * wide * 2)?);
    let lengths = bench.upload(&vec![number(length); n])?;
    let starts = bench.upload(&(0..n).map(|i| number(i * length)).collect::<Vec<i32>>())?;
    let (out, lse) = (bench.room(rows * index(heads.dim) * 2)?, bench.room(rows * 4)?);
    let mut best = (f64::INFINITY, 1);
    for splits in [1, 2, 4, 8] {
        let all = splits * rows;
        let parts = [bench.room(all * index(heads.dim) * 4)?, bench.room(all * 4)?, bench.room(all * 4)?];
        let places = Decode {
            qkv: [q.at, k.at, v.at],
            lengths: lengths.at,
            place: starts.at,
            parts: [parts[0].at, parts[1].at, parts[2].at],
            out: [out.at, lse.at],
            pages: None,
            n,
            splits,
        };
        let seconds = bench.median("decode", |_| places.launch(bench.driver, heads, bench.on))?;
        if seconds < best.0 {
            best = (seconds, splits);
        }
    }
    let speed = giga(n * length * wide * 4, best.0);
    Ok(vec![format!("decode, {n} sequences × {length} tokens, {} splits: {speed}", best.1)])
}

/// A prefill over vertical lines and slashes, against the same over everything.
pub fn pattern(bench: &mut Bench<'_>) -> Result<Vec<String>, DeviceError> {
    let (heads, (length, columns, slashes)) = (bench.sizes.heads, bench.sizes.pattern);
    let mut random = Random::new(3);
    let (mut vertical, mut vertical_start, mut slash, mut slash_start) = (Vec::new(), vec![0], Vec::new(), vec![0]);
    for _ in 0..heads.n {
        let some = |random: &mut Random, n: usize, below: usize| {
            let mut all: Vec<i32> = (0..n).map(|_| number(random.below(below))).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        vertical.extend(some(&mut random, columns, length));
        vertical_start.push(number(vertical.len()));
        // The diagonal is always among the slashes.
        let others = some(&mut random, slashes, length / 64 - 1);
        slash.push(0);
        slash.extend(others.into_iter().map(|at| at + 1));
        slash_start.push(number(slash.len()));
    }
    let document = [Document::causal(length as u64)];
    let packed = Packed::new(bench.driver, &document, "a measurement")?;
    let blocks: Vec<[i32; 2]> = (0..length.div_ceil(64)).rev().map(|block| [0, number(block)]).collect();
    let [q, k, v] = inputs(bench, length)?;
    let (out, lse) = (bench.room(q.len)?, bench.room(length * index(heads.n) * 4)?);
    let lists =
        [bench.upload(&slash)?, bench.upload(&slash_start)?, bench.upload(&vertical)?, bench.upload(&vertical_start)?];
    let tiles = bench.upload(&blocks)?;
    let places = Pattern {
        qkv: [q.at, k.at, v.at],
        out: [out.at, lse.at],
        tiles: tiles.at,
        n_tiles: blocks.len(),
        lines: [lists[0].at, lists[1].at, lists[2].at, lists[3].at],
        longest: length,
    };
    let seconds = bench.median("vertical and slash", |_| places.launch(bench.driver, &packed, heads, bench.on))?;
    let forward = Forward { qkv: [q.at, k.at, v.at], out: out.at, lse: lse.at };
    let whole = bench.median("attention", |_| forward.launch(bench.driver, &packed, heads, bench.on))?;
    Ok(vec![format!(
        "vertical and slash, {length} tokens, {columns} columns and {slashes} slashes a head: {:.1} µs, dense {:.1} µs, {:.2} times as fast",
        seconds * 1e6,
        whole * 1e6,
        whole / seconds
    )])
}
