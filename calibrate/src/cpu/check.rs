//! Kernels of the CPU device against float64 references on fresh random inputs.

use engine::task::Document;

use super::kernels::{self, Heads, Ramp, Saved, View};
use crate::device::{DeviceError, frobenius_error};

/// Largest relative error of float32 kernels.
const ALLOWED: f64 = 1e-5;

fn random(n: usize, seed: &mut u32) -> Vec<f32> {
    let mut next = || {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (f64::from(*seed >> 8) / f64::from(1_u32 << 24) - 0.5) as f32
    };
    (0..n).map(|_| next()).collect()
}

fn line(kernel: String, found: &[f32], expected: &[f64]) -> Result<String, DeviceError> {
    let error = frobenius_error(found.iter().map(|x| f64::from(*x)), expected);
    if !error.is_finite() || error > ALLOWED {
        return Err(DeviceError::Wrong { kernel, error, allowed: ALLOWED });
    }
    Ok(format!("{kernel}: {error:.1e}"))
}

/// Every kernel.
pub fn all() -> Result<Vec<String>, DeviceError> {
    let mut lines = Vec::new();
    let mut seed = 7;
    for size in [[1, 1, 1], [17, 33, 65], [128, 96, 200]] {
        lines.push(gemm(size, &mut seed)?);
    }
    let heads = Heads { n: 4, n_kv: 2, dim: 16 };
    for document in [Document::causal(1), Document::causal(130), Document::chunk(70, 75)] {
        lines.extend(attention(&document, heads, &mut seed)?);
    }
    let (a, b) = (random(1000, &mut seed), random(1000, &mut seed));
    let mut out = vec![f32::NAN; 1000];
    kernels::elementwise(&mut out, &a, &b);
    let expected: Vec<f64> = a.iter().zip(&b).map(|(a, b)| 1.5 * f64::from(*a) + f64::from(*b)).collect();
    lines.push(line("elementwise".to_owned(), &out, &expected)?);
    Ok(lines)
}

fn gemm([m, n, k]: [usize; 3], seed: &mut u32) -> Result<String, DeviceError> {
    let (left, right) = (random(m * k, seed), random(k * n, seed));
    let mut out = vec![f32::NAN; m * n];
    kernels::product(&mut out, n, View::rows(&left, k), View::rows(&right, n), [m, n, k], false, 1);
    let at = |i: usize| (0..k).map(|x| f64::from(left[i / n * k + x]) * f64::from(right[x * n + i % n])).sum::<f64>();
    let expected: Vec<f64> = (0..m * n).map(at).collect();
    line(format!("gemm {m} × {n} × {k}"), &out, &expected)
}

/// Probabilities of one row and head in float64.
fn probabilities(q: &[f32], k: &[f32], ramp: Ramp, heads: Heads, row: usize, head: usize) -> (Vec<f64>, f64) {
    let kv = head * heads.n_kv / heads.n;
    let scores: Vec<f64> = (0..ramp.seen(row))
        .map(|key| {
            let query = &q[(row * heads.n + head) * heads.dim..];
            let keys = &k[(key * heads.n_kv + kv) * heads.dim..];
            (0..heads.dim).map(|x| f64::from(query[x]) * f64::from(keys[x])).sum::<f64>() / (heads.dim as f64).sqrt()
        })
        .collect();
    let sum: f64 = scores.iter().map(|score| score.exp()).sum();
    (scores.iter().map(|score| score.exp() / sum).collect(), sum.ln())
}

fn attention(document: &Document, heads: Heads, seed: &mut u32) -> Result<Vec<String>, DeviceError> {
    let ramp = Ramp::of(document);
    let (n_q, n_kv) = (ramp.queries * heads.n * heads.dim, ramp.keys * heads.n_kv * heads.dim);
    let [q, k, v, gradient] = [n_q, n_kv, n_kv, n_q].map(|n| random(n, seed));
    let (mut out, mut lse) = (vec![f32::NAN; n_q], vec![f32::NAN; ramp.queries * heads.n]);
    kernels::attention_forward(&mut out, &mut lse, [&q, &k, &v], ramp, heads);
    let (mut e_out, mut e_lse) = (vec![0.0; n_q], vec![0.0; lse.len()]);
    let (mut e_dq, mut e_dk, mut e_dv) = (vec![0.0; n_q], vec![0.0; n_kv], vec![0.0; n_kv]);
    let mut delta = vec![0.0_f32; lse.len()];
    for (row, head) in (0..ramp.queries).flat_map(|row| (0..heads.n).map(move |head| (row, head))) {
        let (p, log) = probabilities(&q, &k, ramp, heads, row, head);
        let (at, kv) = ((row * heads.n + head) * heads.dim, head * heads.n_kv / heads.n);
        let of = |key: usize| (key * heads.n_kv + kv) * heads.dim;
        e_lse[row * heads.n + head] = log;
        for x in 0..heads.dim {
            e_out[at + x] = p.iter().enumerate().map(|(key, p)| p * f64::from(v[of(key) + x])).sum();
        }
        let sum: f64 = (0..heads.dim).map(|x| e_out[at + x] * f64::from(gradient[at + x])).sum();
        delta[row * heads.n + head] = sum as f32;
        for (key, p) in p.iter().enumerate() {
            let dp: f64 = (0..heads.dim).map(|x| f64::from(gradient[at + x]) * f64::from(v[of(key) + x])).sum();
            let ds = p * (dp - sum) / (heads.dim as f64).sqrt();
            for x in 0..heads.dim {
                e_dq[at + x] += ds * f64::from(k[of(key) + x]);
                e_dk[of(key) + x] += ds * f64::from(q[at + x]);
                e_dv[of(key) + x] += p * f64::from(gradient[at + x]);
            }
        }
    }
    let [mut dq, mut dk, mut dv] = [n_q, n_kv, n_kv].map(|n| vec![f32::NAN; n]);
    let saved = Saved { q: &q, k: &k, v: &v, gradient: &gradient, lse: &lse, delta: &delta };
    kernels::attention_backward([&mut dq, &mut dk, &mut dv], saved, ramp, heads);
    let name = |what: &str| format!("attention {what}, {} queries, {} keys", ramp.queries, ramp.keys);
    // Of one key alone the gradients of queries and keys are zero, and rounding has nothing to be compared with.
    let mut lines = vec![line(name("result"), &out, &e_out)?, line(name("dv"), &dv, &e_dv)?];
    if ramp.keys > 1 {
        lines.push(line(name("log-sum-exp"), &lse, &e_lse)?);
        lines.push(line(name("dq"), &dq, &e_dq)?);
        lines.push(line(name("dk"), &dk, &e_dk)?);
    }
    Ok(lines)
}
