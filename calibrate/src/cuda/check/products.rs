//! Products: those of the library, the sparse one, and rows gathered from host memory.

use hw::Format;

use super::super::driver::Address;
use super::super::gemm::{Gemm, Operands};
use super::super::kernels::{Sparse, call, count};
use super::super::operands::free_grid;
use super::super::tiled_csl;
use super::{Check, value};
use crate::device::DeviceError;

/// All cases.
pub fn all(check: &mut Check<'_>, gemm: &mut Gemm) -> Result<(), DeviceError> {
    for size in [[1, 1, 1], [17, 33, 65], [128, 96, 200]] {
        dense(check, gemm, size)?;
    }
    if check.driver.capability >= 89 {
        bytes(check, gemm, [16, 16, 32])?;
        bytes(check, gemm, [48, 96, 112])?;
    }
    for (size, share, splits) in [([256, 8, 192], 20, 1), ([128, 16, 320], 30, 3), ([128, 32, 128], 5, 1)] {
        sparse(check, size, share, splits)?;
    }
    sparse(check, [128, 32, 192], 80, 4)?;
    gathered(check, 50, 37, 25)?;
    gathered(check, 7, 3, 256)
}

/// m × n of a product whose right operand is n × k when it lies on its side, k × n else.
fn product([m, n, k]: [usize; 3], left: &[f64], right: &[f64], on_side: bool) -> Vec<f64> {
    let right = |x: usize, j: usize| if on_side { right[j * k + x] } else { right[x * n + j] };
    (0..m * n).map(|i| (0..k).map(|x| left[i / n * k + x] * right(x, i % n)).sum()).collect()
}

fn dense(check: &mut Check<'_>, gemm: &mut Gemm, size: [usize; 3]) -> Result<(), DeviceError> {
    let [m, n, k] = size;
    let (left, right) = (check.halves(m * k, 1.0)?, check.halves(k * n, 1.0)?);
    let out = check.blank(m * n * 2)?;
    let operands = Operands { left: left.at(), right: right.at(), out: out.at };
    let [a, b, c] = size.map(|side| side as u64);
    match gemm.prepare((a, b, c, Format::Bf16), operands, check.on) {
        // The library may leave out odd sizes; no plan has them.
        Err(DeviceError::Lost(why)) if why.contains("has no kernel") => {
            check.lines.push(why);
            return Ok(());
        }
        prepared => prepared?,
    }
    check.driver.fill(out.at, 0xff, out.len, check.on)?;
    gemm.launch((a, b, c, Format::Bf16), operands, check.on)?;
    check.half(format!("gemm bf16 {m} × {n} × {k}"), &out, &product(size, &left.values, &right.values, false))
}

/// Value of an E4M3 byte: four bits of exponent, three of fraction.
fn of_byte(bits: u8) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 3 & 15), f64::from(bits & 7) / 8.0);
    let size = if exponent == 0 { fraction / 64.0 } else { (1.0 + fraction) * f64::from(exponent - 7).exp2() };
    if bits & 128 == 0 { size } else { -size }
}

fn bytes(check: &mut Check<'_>, gemm: &mut Gemm, size: [usize; 3]) -> Result<(), DeviceError> {
    let [m, n, k] = size;
    // Exponents below the largest, which holds the one that is no number.
    let mut some = |n: usize| (0..n).map(|_| (check.random.bits() & 0xbf) as u8).collect::<Vec<u8>>();
    let (left, right) = (some(m * k), some(n * k));
    let (at_left, at_right) = (check.upload(&left)?, check.upload(&right)?);
    let out = check.blank(m * n * 2)?;
    let operands = Operands { left: at_left.at, right: at_right.at, out: out.at };
    let [a, b, c] = size.map(|side| side as u64);
    gemm.prepare((a, b, c, Format::Fp8), operands, check.on)?;
    check.driver.fill(out.at, 0xff, out.len, check.on)?;
    gemm.launch((a, b, c, Format::Fp8), operands, check.on)?;
    let values = |bytes: &[u8]| bytes.iter().copied().map(of_byte).collect::<Vec<f64>>();
    check.half(format!("gemm fp8 {m} × {n} × {k}"), &out, &product(size, &values(&left), &values(&right), true))
}

fn sparse(check: &mut Check<'_>, size: [usize; 3], share: usize, splits: usize) -> Result<(), DeviceError> {
    let [m, n, k] = size;
    let mut weight = check.bits(m * k, 1.0);
    for (at, bits) in weight.iter_mut().enumerate() {
        // One tile has no item at all.
        if check.random.below(100) >= share || (k > 64 && at / k < 128 && (64..128).contains(&(at % k))) {
            *bits = 0;
        }
    }
    let columns = check.halves(n * k, 1.0)?;
    let tiled = tiled_csl::encode(&weight, m, k);
    let (items, offsets) = (check.upload(&tiled.items)?, check.upload(&tiled.offsets)?);
    let (out, parts) = (check.blank(m * n * 2)?, check.blank(splits * m * n * 4)?);
    let weight: Vec<f64> = weight.into_iter().map(value).collect();
    let places =
        Sparse { weight: [items.at, offsets.at], columns: columns.at(), out: out.at, parts: parts.at, size, splits };
    places.launch(check.driver, check.on)?;
    let expected = product([n, m, k], &columns.values, &weight, true);
    check.half(format!("spmm {m} × {n} × {k}, {share} % of a weight, {splits} splits"), &out, &expected)
}

fn gathered(check: &mut Check<'_>, all: usize, rows: usize, vectors: usize) -> Result<(), DeviceError> {
    let host = check.driver.pinned(all * vectors * 16, "a check")?;
    let data = check.bits(all * vectors * 8, 1.0);
    #[expect(unsafe_code, reason = "writes host memory that the device reads")]
    // SAFETY: the memory was just taken, is this long and aligned, and nothing reads it yet.
    unsafe {
        std::ptr::copy_nonoverlapping(data.as_ptr(), host.at.cast::<u16>(), data.len());
    }
    let pick = |check: &mut Check<'_>, i: usize| if i % 11 == 5 { None } else { Some(check.random.below(all)) };
    let rows: Vec<Option<usize>> = (0..rows).map(|i| pick(check, i)).collect();
    let index: Vec<i32> = rows.iter().map(|row| row.map_or(-1, |row| i32::try_from(row).unwrap_or(-1))).collect();
    let slots: Vec<i32> =
        (0..all).map(|row| if row % 3 == 0 { i32::try_from(row / 3).unwrap_or(-1) } else { -1 }).collect();
    let (index, slots) = (check.upload(&index)?, check.upload(&slots)?);
    let cache = check.bits(all * vectors * 8, 1.0);
    let cached = check.upload(&cache)?;
    let width = vectors * 8;
    let name = format!("{} of {all} rows of {} bytes", rows.len(), vectors * 16);
    for hits in [false, true] {
        let out = check.blank(rows.len() * vectors * 16)?;
        let rest = [count(rows.len()), count(vectors)];
        let at = host.at as Address;
        let (kernel, places) = if hits {
            ("gather_rows_cached", vec![at, cached.at, slots.at, index.at, out.at])
        } else {
            ("gather_rows", vec![at, index.at, out.at])
        };
        call(check.driver, kernel, free_grid(rows.len() * 32), &places, &rest, check.on)?;
        let found: Vec<u16> = check.read(kernel, &out)?;
        let expected = rows.iter().flat_map(|row| {
            let from = match row {
                None => return vec![0; width],
                Some(row) if hits && row % 3 == 0 => &cache[row / 3 * width..],
                Some(row) => &data[row * width..],
            };
            from[..width].to_vec()
        });
        let wrong = found.iter().zip(expected).filter(|(found, expected)| **found != *expected).count();
        check.exact(format!("{kernel}, {name}"), wrong, found.len())?;
    }
    Ok(())
}
