//! What memory and links set the pace of: experts, hashing, gathering, the host link, and launches.

use std::time::Instant;

use super::super::check::Random;
use super::super::driver::{Address, Arg, Shape};
use super::super::kernels::{Buckets, Experts, call, count};
use super::super::operands::free_grid;
use super::{Bench, giga};
use crate::device::DeviceError;
use crate::sample::WATCHDOG;

fn number(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Tokens to experts and back.
pub fn experts(bench: &mut Bench<'_>) -> Result<Vec<String>, DeviceError> {
    let (tokens, copies, width) = bench.sizes.experts;
    let (all, row) = (tokens * copies, width * 2);
    let order: Vec<i32> = Random::new(9).order(all).into_iter().map(number).collect();
    let (rows, weights) = (bench.upload(&order)?, bench.upload(&vec![0.125_f32; all])?);
    let [x, out, y, d_y] =
        [bench.random(tokens * row)?, bench.room(tokens * row)?, bench.random(all * row)?, bench.room(all * row)?];
    let d_weights = bench.room(all * 4)?;
    let places = Experts { destination: rows.at, weights: weights.at, size: [tokens, copies, width / 8] };
    let permute = bench.median("moe permute", |_| places.permute(bench.driver, x.at, d_y.at, bench.on))?;
    let combine = bench.median("moe combine", |_| places.combine(bench.driver, y.at, out.at, bench.on))?;
    let at = [x.at, y.at, d_y.at, d_weights.at];
    let backward = bench.median("moe backward", |_| places.backward(bench.driver, at, bench.on))?;
    let name = |what: &str| format!("moe {what}, {tokens} tokens to {copies}, {width} wide");
    let once = (tokens + all) * row;
    Ok(vec![
        format!("{}: {}", name("permute"), giga(once + 4 * all, permute)),
        format!("{}: {}", name("combine"), giga(once + 8 * all, combine)),
        format!("{}: {}", name("backward"), giga(once + all * row + 12 * all, backward)),
    ])
}

/// Tokens that are compressed by hashing; each is there eight times.
pub fn hashed(bench: &mut Bench<'_>) -> Result<Vec<String>, DeviceError> {
    const ALIKE: usize = 8;
    let (tokens, _, d) = bench.sizes.experts;
    let (dims, functions, capacity) = (64, 6, (2 * tokens).next_power_of_two());
    let (x, rotations) = (bench.random(tokens * d * 2)?, bench.random(functions * d * dims * 2)?);
    let part = tokens / ALIKE * d * 2;
    for turn in 1..ALIKE {
        bench.driver.copy(x.at + (turn * part) as Address, x.at, part, bench.on)?;
    }
    let expert = bench.upload(&vec![0_i32; tokens])?;
    let codes = bench.room(functions * tokens * 4)?;
    let [keys, numbers, found] = [bench.room(capacity * 8)?, bench.room(capacity * 4)?, bench.room(4)?];
    let [slot, bucket, counts] = [bench.room(tokens * 4)?, bench.room(tokens * 4)?, bench.room(tokens * 4)?];
    let (sums, means, out) = (bench.room(tokens * d * 4)?, bench.room(tokens * d * 2)?, bench.room(tokens * d * 2)?);
    let places = Buckets {
        x: [x.at, rotations.at],
        codes: codes.at,
        expert: expert.at,
        table: [keys.at, numbers.at, found.at, slot.at],
        bucket: bucket.at,
        sums: [sums.at, counts.at, means.at],
        size: [tokens, d, dims, functions, capacity],
    };
    let hash = bench.median("lsh hash", |_| places.hash(bench.driver, bench.on))?;
    let empty = |_| {
        bench.driver.fill(keys.at, 0xff, keys.len, bench.on)?;
        [&found, &sums, &counts].iter().try_for_each(|buffer| bench.driver.fill(buffer.at, 0, buffer.len, bench.on))
    };
    let insert = bench.median_after("lsh insert", empty, |_| places.insert(bench.driver, bench.on))?;
    let n: Vec<i32> = bench.driver.read(found.at, 1)?;
    let buckets = usize::try_from(n[0]).unwrap_or(1).max(1);
    let mean = bench.median("lsh mean", |_| places.mean(bench.driver, buckets, bench.on))?;
    let restore = bench.median("lsh restore", |_| places.restore(bench.driver, x.at, out.at, bench.on))?;
    let flops = 2.0 * tokens as f64 * (d * dims * functions) as f64;
    Ok(vec![
        format!("lsh hash, {tokens} tokens of {d}, {functions} functions of {dims}: {}", super::tera(flops, hash)),
        format!("lsh insert and add, {buckets} buckets: {}", giga(tokens * d * 6, insert)),
        format!("lsh mean: {}", giga(buckets * d * 6, mean)),
        format!("lsh restore: {}", giga(tokens * d * 4 + buckets * d * 4, restore)),
    ])
}

/// Rows by number, from device memory against a plain copy, and from host memory.
pub fn gather(bench: &mut Bench<'_>) -> Result<Vec<String>, DeviceError> {
    let (bytes, row) = (bench.sizes.link, 4096);
    let rows = bytes / row;
    let order: Vec<i32> = Random::new(4).order(rows).into_iter().map(number).collect();
    let index = bench.upload(&order)?;
    let (table, out) = (bench.random(bytes)?, bench.room(bytes)?);
    let host = bench.driver.pinned(bytes, "a measurement")?;
    let go = |from: Address| {
        let rest = [count(rows), count(row / 16)];
        call(bench.driver, "gather_rows", free_grid(rows * 32), &[from, index.at, out.at], &rest, bench.on)
    };
    let near = bench.median("gather", |_| go(table.at))?;
    let plain = bench.median("copy", |_| bench.driver.copy(out.at, table.at, bytes, bench.on))?;
    let far = bench.median("gather from the host", |_| go(host.at as Address))?;
    Ok(vec![
        format!("gather of rows of {row} bytes: {} read and as much written", giga(bytes, near)),
        format!("copy on the device: {} read and as much written", giga(bytes, plain)),
        format!("gather of rows of {row} bytes from host memory: {}", giga(bytes, far)),
    ])
}

/// Copies between host and device, alone and both ways at once.
pub fn link(bench: &mut Bench<'_>) -> Result<Vec<String>, DeviceError> {
    let bytes = bench.sizes.link;
    let [into, from] = [bench.driver.pinned(bytes, "a measurement")?, bench.driver.pinned(bytes, "a measurement")?];
    let [near, far] = [bench.room(bytes)?, bench.random(bytes)?];
    let to_device = bench.median("copy to the device", |_| bench.driver.copy_in(near.at, &from, bytes, bench.on))?;
    let to_host = bench.median("copy to the host", |_| bench.driver.copy_out(&into, far.at, bytes, bench.on))?;
    let (begun, ended) = (bench.driver.event()?, bench.driver.event()?);
    let both = bench.median("copies both ways", |_| {
        super::super::driver::record(begun, bench.on)?;
        super::super::clock::wait(bench.other, begun)?;
        bench.driver.copy_in(near.at, &from, bytes, bench.on)?;
        bench.driver.copy_out(&into, far.at, bytes, bench.other)?;
        super::super::driver::record(ended, bench.other)?;
        super::super::clock::wait(bench.on, ended)
    })?;
    bench.driver.watch(bench.other, "copies both ways", WATCHDOG)?;
    Ok(vec![
        format!("host to device, {bytes} bytes: {}", giga(bytes, to_device)),
        format!("device to host, {bytes} bytes: {}", giga(bytes, to_host)),
        format!("both ways at once: {}", giga(2 * bytes, both)),
    ])
}

/// What a launch costs the host, and what the device needs between two kernels.
pub fn launches(bench: &mut Bench<'_>) -> Result<Vec<String>, DeviceError> {
    let n = bench.sizes.launches;
    let shape = Shape { grid: (1, 1, 1), block: 1, shared: 0 };
    let go = || bench.driver.launch("spin", shape, &[Arg::Long(0)], bench.on);
    // Alone, and few enough that the queue never fills.
    go()?;
    bench.driver.watch(bench.on, "spin", WATCHDOG)?;
    let mut host = f64::INFINITY;
    for _ in 0..3 {
        let begun = Instant::now();
        (0..n.min(500)).try_for_each(|_| go())?;
        host = host.min(begun.elapsed().as_secs_f64() / n.min(500) as f64);
        bench.driver.watch(bench.on, "spin", WATCHDOG)?;
    }
    let device = bench.median("spin", |_| (0..n).try_for_each(|_| go()))? / n as f64;
    Ok(vec![format!("launch: {:.2} µs of the host, {:.2} µs from kernel to kernel", host * 1e6, device * 1e6)])
}
