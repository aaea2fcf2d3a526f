//! Tokens to experts and back, and their compression by hashing.

use std::collections::BTreeMap;

use super::super::kernels::{Buckets, Experts};
use super::{Check, Tensor, value};
use crate::device::DeviceError;

/// All cases.
pub fn all(check: &mut Check<'_>) -> Result<(), DeviceError> {
    experts(check, [37, 2, 33], true)?;
    experts(check, [5, 8, 256], false)?;
    experts(check, [19, 1, 7], false)?;
    hashed(check, [100, 192, 128, 2, 256], 3)?;
    hashed(check, [64, 64, 64, 6, 128], 1)
}

fn experts(check: &mut Check<'_>, size: [usize; 3], drop: bool) -> Result<(), DeviceError> {
    let [tokens, copies, vectors] = size;
    let (width, all) = (8 * vectors, tokens * copies);
    // The first token loses all its copies, others some.
    let order: Vec<Option<usize>> = check.random.order(all).into_iter().map(Some).collect();
    let is_lost = |copy: usize| drop && (copy % 7 == 3 || copy < copies);
    let to: Vec<Option<usize>> = (0..all).map(|copy| order[copy].filter(|_| !is_lost(copy))).collect();
    let rows: Vec<i32> = to.iter().map(|row| row.map_or(-1, |row| i32::try_from(row).unwrap_or(-1))).collect();
    let shares: Vec<f32> = (0..all).map(|_| check.random.normal().abs()).collect();
    let (rows, weights) = (check.upload(&rows)?, check.floats(&shares)?);
    let [x, y, d_out] =
        [check.halves(tokens * width, 1.0)?, check.halves(all * width, 1.0)?, check.halves(tokens * width, 1.0)?];
    // Rows of no copy keep their zeros.
    let (permuted, d_y) = (check.filled(all * width * 2, 0)?, check.filled(all * width * 2, 0)?);
    let (out, d_weights) = (check.blank(tokens * width * 2)?, check.blank(all * 4)?);
    let places = Experts { destination: rows.at, weights: weights.at(), size };
    places.permute(check.driver, x.at(), permuted.at, check.on)?;
    places.combine(check.driver, y.at(), out.at, check.on)?;
    places.backward(check.driver, [d_out.at(), y.at(), d_y.at, d_weights.at], check.on)?;
    let (mut e_permuted, mut e_d_y) = (vec![0.0; all * width], vec![0.0; all * width]);
    let (mut e_out, mut e_weights) = (vec![0.0; tokens * width], vec![0.0; all]);
    for (copy, row) in to.iter().enumerate().filter_map(|(copy, row)| Some((copy, (*row)?))) {
        for x_at in 0..width {
            let (from, at) = (copy / copies * width + x_at, row * width + x_at);
            e_permuted[at] = x.values[from];
            e_out[from] += weights.values[copy] * y.values[at];
            e_d_y[at] = weights.values[copy] * d_out.values[from];
            e_weights[copy] += d_out.values[from] * y.values[at];
        }
    }
    let name = |what: &str| format!("moe {what}, {tokens} tokens to {copies}, {width} wide");
    check.half(name("permute"), &permuted, &e_permuted)?;
    check.half(name("combine"), &out, &e_out)?;
    check.half(name("gradient of rows"), &d_y, &e_d_y)?;
    check.float(name("gradient of weights"), &d_weights, &e_weights)
}

/// Codes that are not the largest coordinate; two that are nearly as large may change places.
fn wrong_codes(x: &Tensor, rotations: &Tensor, codes: &[i32], [tokens, d, dims, functions]: [usize; 4]) -> usize {
    let is_wrong = |at: usize| {
        let (function, token) = (at / tokens, at % tokens);
        let along = |to: usize| -> f64 {
            let turned = |c: usize| x.values[token * d + c] * rotations.values[(function * d + c) * dims + to];
            (0..d).map(turned).sum()
        };
        let all: Vec<f64> = (0..dims).map(along).collect();
        let most = all.iter().map(|x| x.abs()).fold(0.0, f64::max);
        let code = usize::try_from(codes[at]).unwrap_or(usize::MAX);
        let Some(found) = all.get(code % dims).filter(|_| code < 2 * dims) else { return true };
        (*found < 0.0) != (code >= dims) || found.abs() < most * (1.0 - 1e-5)
    };
    (0..functions * tokens).filter(|at| is_wrong(*at)).count()
}

fn hashed(check: &mut Check<'_>, size: [usize; 5], experts: usize) -> Result<(), DeviceError> {
    let [tokens, d, dims, functions, capacity] = size;
    let name = |what: &str| format!("lsh {what}, {tokens} tokens of {d}, {functions} functions of {dims}");
    // Tokens around five centres, so that buckets have several members.
    let mut bits = check.bits(5 * d, 1.0);
    for at in 5 * d..tokens * d {
        let near = value(bits[at % (5 * d)]) as f32 + 0.02 * check.random.normal();
        bits.push(super::bf16(near));
    }
    let (x, rotations) = (check.of_bits(&bits)?, check.halves(functions * d * dims, 1.0)?);
    let expert: Vec<i32> = (0..tokens).map(|_| i32::try_from(check.random.below(experts)).unwrap_or(0)).collect();
    let at_expert = check.upload(&expert)?;
    let [codes, keys, number, found] = [
        check.blank(functions * tokens * 4)?,
        check.blank(capacity * 8)?,
        check.blank(capacity * 4)?,
        check.filled(4, 0)?,
    ];
    let (slot, bucket) = (check.blank(tokens * 4)?, check.blank(tokens * 4)?);
    // As many buckets as tokens there cannot be more.
    let (sums, counts) = (check.filled(tokens * d * 4, 0)?, check.filled(tokens * 4, 0)?);
    let (means, out) = (check.blank(tokens * d * 2)?, check.blank(tokens * d * 2)?);
    let places = Buckets {
        x: [x.at(), rotations.at()],
        codes: codes.at,
        expert: at_expert.at,
        table: [keys.at, number.at, found.at, slot.at],
        bucket: bucket.at,
        sums: [sums.at, counts.at, means.at],
        size,
    };
    places.hash(check.driver, check.on)?;
    let codes: Vec<i32> = check.read("lsh_hash", &codes)?;
    let wrong = wrong_codes(&x, &rotations, &codes, [tokens, d, dims, functions]);
    check.exact(name("codes"), wrong, codes.len())?;
    places.insert(check.driver, check.on)?;
    let mut groups: BTreeMap<Vec<i32>, Vec<usize>> = BTreeMap::new();
    for token in 0..tokens {
        let key = (0..functions).map(|f| codes[f * tokens + token]).chain([expert[token]]).collect();
        groups.entry(key).or_default().push(token);
    }
    let found: Vec<i32> = check.read("lsh_insert", &found)?;
    let buckets: Vec<i32> = check.read("lsh_add", &bucket)?;
    let n = groups.len();
    check.exact(name("buckets"), usize::from(usize::try_from(found[0]) != Ok(n)), 1)?;
    places.mean(check.driver, n, check.on)?;
    let results = check.halves(n * d, 1.0)?;
    places.restore(check.driver, results.at(), out.at, check.on)?;
    let into: Vec<usize> = buckets.iter().map(|bucket| usize::try_from(*bucket).unwrap_or(usize::MAX)).collect();
    let apart = groups.values().filter(|group| into[group[0]] >= n || group.iter().any(|t| into[*t] != into[group[0]]));
    check.exact(name("members"), apart.count(), n)?;
    if into.iter().any(|bucket| *bucket >= n) {
        return Ok(());
    }
    let mut mean = vec![0.0; n * d];
    for group in groups.values() {
        for (token, c) in group.iter().flat_map(|token| (0..d).map(move |c| (*token, c))) {
            mean[into[token] * d + c] += x.values[token * d + c] / group.len() as f64;
        }
    }
    let moved = |at: usize| into[at / d] * d + at % d;
    let e_out: Vec<f64> =
        (0..tokens * d).map(|at| results.values[moved(at)] + x.values[at] - mean[moved(at)]).collect();
    let whole: Vec<u16> = check.read("lsh_mean", &means)?;
    let whole: Vec<f64> = whole.into_iter().take(n * d).map(value).collect();
    check.compare(name("means"), &whole, &mean, super::BF16)?;
    check.half(name("restored"), &out, &e_out)
}
