//! Products: dense ones by the library, sparse ones against them, and a copy behind them.

use hw::Format;

use super::super::check::{Random, bf16};
use super::super::clock::{Timer, wait};
use super::super::driver::{Address, Buffer};
use super::super::gemm::{Operands, Size};
use super::super::kernels::Sparse;
use super::super::tiled_csl;
use super::{Bench, Sent, tera};
use crate::device::DeviceError;
use crate::sample::WATCHDOG;

/// Rows of a sparse weight that are encoded; the others repeat them.
const ENCODED: usize = 1024;
/// Copies of a weight that take turns: one would stay in the cache.
const TURNS: usize = 4;

fn gemm(bench: &mut Bench<'_>, size: Size, [left, right, out]: [&Buffer; 3]) -> Result<f64, DeviceError> {
    let operands = Operands { left: left.at, right: right.at, out: out.at };
    bench.gemm.prepare(size, operands, bench.on)?;
    bench.median("gemm", |_| bench.gemm.launch(size, operands, bench.on))
}

/// bf16 and, where there is one, fp8.
pub fn dense(bench: &mut Bench<'_>) -> Result<Vec<String>, DeviceError> {
    let side = bench.sizes.side;
    let flops = 2.0 * (side as f64).powi(3);
    let cube = |format| (side as u64, side as u64, side as u64, format);
    let out = bench.room(side * side * 2)?;
    let [left, right] = [bench.random(side * side * 2)?, bench.random(side * side * 2)?];
    let seconds = gemm(bench, cube(Format::Bf16), [&left, &right, &out])?;
    let mut lines = vec![format!("gemm bf16 {side}^3: {}", tera(flops, seconds))];
    if bench.driver.capability >= 89 {
        let bytes = || bench.filled("random_fp8", side * side, side * side);
        let (left, right) = (bytes()?, bytes()?);
        let seconds = gemm(bench, cube(Format::Fp8), [&left, &right, &out])?;
        lines.push(format!("gemm fp8 {side}^3: {}", tera(flops, seconds)));
    }
    Ok(lines)
}

/// A random weight of this side, so many per cent of which are not zero.
fn weight(side: usize, share: usize) -> tiled_csl::Tiled {
    let mut random = Random::new(5);
    let rows = side.min(ENCODED);
    let values: Vec<u16> =
        (0..rows * side).map(|_| if random.below(100) < share { bf16(random.normal() + 4.0) } else { 0 }).collect();
    let part = tiled_csl::encode(&values, rows, side);
    let groups = part.offsets[part.offsets.len() - 1];
    let mut whole = tiled_csl::Tiled { items: Vec::new(), offsets: vec![0] };
    for turn in (0..).take(side / rows) {
        whole.items.extend(&part.items);
        whole.offsets.extend(part.offsets[1..].iter().map(|at| at + turn * groups));
    }
    whole
}

/// A weight of which four fifths are zeros, against the same as a dense one.
pub fn sparse(bench: &mut Bench<'_>) -> Result<Vec<String>, DeviceError> {
    let side = bench.sizes.side;
    let tiled = weight(side, 20);
    let items: Vec<Buffer> = (0..TURNS).map(|_| bench.upload(&tiled.items)).collect::<Result<_, _>>()?;
    let offsets = bench.upload(&tiled.offsets)?;
    let dense: Vec<Buffer> = (0..TURNS).map(|_| bench.random(side * side * 2)).collect::<Result<_, _>>()?;
    let mut lines = Vec::new();
    for n in [8, 16, 32] {
        let (columns, out) = (bench.random(side * n * 2)?, bench.room(side * n * 2)?);
        let size: Size = (n as u64, side as u64, side as u64, Format::Bf16);
        let operands = |turn: usize| Operands { left: columns.at, right: dense[turn % TURNS].at, out: out.at };
        bench.gemm.prepare(size, operands(0), bench.on)?;
        let whole = bench.median("gemm", |run| bench.gemm.launch(size, operands(run), bench.on))?;
        let mut best = (f64::INFINITY, 1);
        for splits in [1, 2, 4, 8, 16] {
            let parts = bench.room(splits * side * n * 4)?;
            let seconds = bench.median("spmm", |run| {
                let weight = [items[run % TURNS].at, offsets.at];
                let (columns, out, size) = (columns.at, out.at, [side, n, side]);
                Sparse { weight, columns, out, parts: parts.at, size, splits }.launch(bench.driver, bench.on)
            })?;
            if seconds < best.0 {
                best = (seconds, splits);
            }
        }
        let (seconds, splits) = best;
        let bytes = tiled.items.len() * 4 + side * n * 4;
        lines.push(format!(
            "spmm {side} × {n} × {side}, 80 % zeros: {:.1} µs with {splits} splits ({:.0} GB/s), dense {:.1} µs, {:.2} times as fast",
            seconds * 1e6,
            bytes as f64 / seconds / 1e9,
            whole * 1e6,
            whole / seconds
        ));
    }
    Ok(lines)
}

/// How much of a copy over the host link goes unnoticed behind products, on a stream of its own.
pub fn overlap(bench: &mut Bench<'_>) -> Result<Vec<String>, DeviceError> {
    let (side, bytes) = (bench.sizes.side, bench.sizes.link / 4);
    let size: Size = (side as u64, side as u64, side as u64, Format::Bf16);
    let [left, right] = [bench.random(side * side * 2)?, bench.random(side * side * 2)?];
    let (out, target) = (bench.room(side * side * 2)?, bench.room(bytes)?);
    let host = bench.driver.pinned(bytes, "a measurement")?;
    let operands = Operands { left: left.at, right: right.at, out: out.at };
    bench.gemm.prepare(size, operands, bench.on)?;
    let one = bench.median("gemm", |_| bench.gemm.launch(size, operands, bench.on))?;
    let copy = bench.median("copy", |_| bench.driver.copy_in(target.at, &host, bytes, bench.on))?;
    let n = (copy / one).ceil().clamp(1.0, 64.0) as usize;
    let products = |bench: &Bench<'_>| (0..n).try_for_each(|_| bench.gemm.launch(size, operands, bench.on));
    let alone = bench.median("gemm", |_| products(bench))?;
    let copied = bench.driver.event()?;
    let both = |bench: &Bench<'_>, to: Address| -> Sent {
        // The other stream begins where this one is, and this one ends where both are.
        let fork = Timer::new(bench.driver)?;
        fork.begin(bench.on)?;
        fork.follow(bench.other)?;
        bench.driver.copy_in(to, &host, bytes, bench.other)?;
        super::super::driver::record(copied, bench.other)?;
        products(bench)?;
        wait(bench.on, copied)
    };
    let together = bench.median("gemm and copy", |_| both(bench, target.at))?;
    bench.driver.watch(bench.other, "copy", WATCHDOG)?;
    let hidden = ((alone + copy - together) / alone.min(copy)).clamp(0.0, 1.0);
    Ok(vec![format!(
        "copy of {bytes} bytes behind {n} products: {:.0} % hidden (products {:.0} µs, copy {:.0} µs, both {:.0} µs)",
        hidden * 100.0,
        alone * 1e6,
        copy * 1e6,
        together * 1e6
    )])
}
