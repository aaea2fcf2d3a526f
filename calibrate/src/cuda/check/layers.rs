//! The memory-bound kernels of a layer and of its optimiser.

use super::super::driver::Arg;
use super::super::kernels::{call, count, rows_grid};
use super::super::operands::{free_grid, long};
use super::{Check, value};
use crate::device::DeviceError;

/// All cases.
pub fn all(check: &mut Check<'_>) -> Result<(), DeviceError> {
    for (rows, width) in [(5, 264), (2, 8192), (7, 2048)] {
        norm(check, rows, width)?;
    }
    swiglu(check, 3, 40)?;
    swiglu(check, 5, 1032)?;
    add(check, 8 * 1001)?;
    adam(check, 4 * 1234)
}

fn norm(check: &mut Check<'_>, rows: usize, width: usize) -> Result<(), DeviceError> {
    let n = rows * width;
    let [x, residual, d_out, d_residual] =
        [check.halves(n, 1.0)?, check.halves(n, 3.0)?, check.halves(n, 1.0)?, check.halves(n, 1.0)?];
    let weight = check.halves(width, 1.0)?;
    let [sum, out, d_sum] = [check.blank(n * 2)?, check.blank(n * 2)?, check.blank(n * 2)?];
    let (inverse, epsilon) = (check.blank(rows * 4)?, 1e-5_f32);
    let at = [x.at(), residual.at(), weight.at(), sum.at, out.at, inverse.at];
    let rest = [count(width), Arg::Float(epsilon)];
    call(check.driver, "residual_rms_norm_forward", rows_grid(rows), &at, &rest, check.on)?;
    let name = |what: &str| format!("rms norm {what}, {rows} × {width}");
    let e_sum: Vec<f64> = x.values.iter().zip(&residual.values).map(|(x, residual)| x + residual).collect();
    check.half(name("sum"), &sum, &e_sum)?;
    // The norm is of the rounded sum.
    let kept: Vec<f64> = check.read::<u16>("rms norm", &sum)?.into_iter().map(value).collect();
    let scales: Vec<f64> = kept
        .chunks(width)
        .map(|row| (row.iter().map(|x| x * x).sum::<f64>() / width as f64 + f64::from(epsilon)).sqrt().recip())
        .collect();
    check.float(name("inverse"), &inverse, &scales)?;
    let normed: Vec<f64> = kept.iter().enumerate().map(|(i, x)| x * scales[i / width]).collect();
    let e_out: Vec<f64> = normed.iter().enumerate().map(|(i, x)| x * weight.values[i % width]).collect();
    check.half(name("result"), &out, &e_out)?;

    let blocks = 3;
    let (parts, d_weight) = (check.blank(blocks * width * 4)?, check.blank(width * 4)?);
    let at = [d_out.at(), d_residual.at(), sum.at, weight.at(), inverse.at, d_sum.at, parts.at];
    let rest = [count(rows), count(width)];
    call(check.driver, "residual_rms_norm_backward", rows_grid(blocks), &at, &rest, check.on)?;
    let rest = [count(blocks), count(width)];
    let grid = rows_grid(width.div_ceil(256));
    call(check.driver, "rms_norm_weight_gradient", grid, &[parts.at, d_weight.at], &rest, check.on)?;
    let mut e_weight = vec![0.0; width];
    let mut e_d_sum = Vec::with_capacity(n);
    for (row, scale) in scales.iter().enumerate() {
        let at = |column: usize| row * width + column;
        let through = |column: usize| weight.values[column] * d_out.values[at(column)];
        let mean = (0..width).map(|column| through(column) * normed[at(column)]).sum::<f64>() / width as f64;
        for (column, sum) in e_weight.iter_mut().enumerate() {
            *sum += d_out.values[at(column)] * normed[at(column)];
            let inner = through(column) - normed[at(column)] * mean;
            e_d_sum.push(d_residual.values[at(column)] + scale * inner);
        }
    }
    check.half(name("gradient"), &d_sum, &e_d_sum)?;
    check.float(name("gradient of the weight"), &d_weight, &e_weight)
}

fn swiglu(check: &mut Check<'_>, rows: usize, width: usize) -> Result<(), DeviceError> {
    let n = rows * width;
    let (gate_up, d_out) = (check.halves(2 * n, 2.0)?, check.halves(n, 1.0)?);
    let (out, d_gate_up) = (check.blank(n * 2)?, check.blank(n * 4)?);
    let rest = [count(rows), count(width)];
    call(check.driver, "swiglu_forward", free_grid(n / 8), &[gate_up.at(), out.at], &rest, check.on)?;
    let at = [gate_up.at(), d_out.at(), d_gate_up.at];
    call(check.driver, "swiglu_backward", free_grid(n / 8), &at, &rest, check.on)?;
    let (mut e_out, mut e_gradient) = (vec![0.0; n], vec![0.0; 2 * n]);
    for (i, out) in e_out.iter_mut().enumerate() {
        let at = i / width * 2 * width + i % width;
        let (gate, up, g) = (gate_up.values[at], gate_up.values[at + width], d_out.values[i]);
        let s = 1.0 / (1.0 + (-gate).exp());
        *out = gate * s * up;
        e_gradient[at] = g * up * (s + gate * s * (1.0 - s));
        e_gradient[at + width] = g * gate * s;
    }
    check.half(format!("swiglu, {rows} × {width}"), &out, &e_out)?;
    check.half(format!("swiglu gradient, {rows} × {width}"), &d_gate_up, &e_gradient)
}

fn add(check: &mut Check<'_>, n: usize) -> Result<(), DeviceError> {
    let (a, b, out) = (check.halves(n, 1.0)?, check.halves(n, 1.0)?, check.blank(n * 2)?);
    call(check.driver, "add", free_grid(n / 8), &[a.at(), b.at(), out.at], &[long(n)], check.on)?;
    let expected: Vec<f64> = a.values.iter().zip(&b.values).map(|(a, b)| a + b).collect();
    check.half(format!("add, {n}"), &out, &expected)
}

fn adam(check: &mut Check<'_>, n: usize) -> Result<(), DeviceError> {
    let mut some = |scale: f32| (0..n).map(|_| scale * check.random.normal()).collect::<Vec<f32>>();
    let (p, g, m) = (some(1.0), some(0.1), some(0.01));
    let v: Vec<f32> = some(0.01).into_iter().map(f32::abs).collect();
    let [p, g, m, v] = [check.floats(&p)?, check.floats(&g)?, check.floats(&m)?, check.floats(&v)?];
    let rounded = check.blank(n * 2)?;
    let numbers = [3e-2_f32, 0.9, 0.95, 1e-8, 1.25, 2.5, 0.1];
    let mut rest = vec![long(n)];
    rest.extend(numbers.map(Arg::Float));
    call(check.driver, "adam_step", free_grid(n / 4), &[p.at(), g.at(), m.at(), v.at(), rounded.at], &rest, check.on)?;
    let [rate, beta1, beta2, epsilon, c1, c2, decay] = numbers.map(f64::from);
    let (mut e_p, mut e_m, mut e_v) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..n {
        let first = beta1 * m.values[i] + (1.0 - beta1) * g.values[i];
        let second = beta2 * v.values[i] + (1.0 - beta2) * g.values[i] * g.values[i];
        let step = first * c1 / ((second * c2).sqrt() + epsilon);
        e_p.push(p.values[i] - rate * (step + decay * p.values[i]));
        e_m.push(first);
        e_v.push(second);
    }
    check.float(format!("adam parameters, {n}"), &p.buffer, &e_p)?;
    check.float(format!("adam first moment, {n}"), &m.buffer, &e_m)?;
    check.float(format!("adam second moment, {n}"), &v.buffer, &e_v)?;
    check.half(format!("adam rounded parameters, {n}"), &rounded, &e_p)
}
