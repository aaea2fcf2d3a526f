//! Tables of times by size: every size has a value, whatever the knots are at which the costs were asked.

use hw::{Seconds, Tick};

/// A value of a table; its last one beyond its end.
pub(super) fn at(table: &[Tick], index: u64) -> Tick {
    let last = table.len() - 1;
    table[usize::try_from(index).unwrap_or(last).min(last)]
}

/// Values of every size up to `n`, from a function that is asked at ever sparser knots.
pub(super) fn filled(n: usize, at: impl Fn(u64) -> Seconds) -> Vec<Tick> {
    let mut values = vec![Tick::ZERO; n + 1];
    let mut before = 0;
    while before < n {
        let stride = match before {
            0..64 => 1,
            64..512 => 8,
            512..4096 => 32,
            4096..32_768 => 256,
            _ => 4096,
        };
        let knot = (before + stride).min(n);
        values[knot] = Tick::from_seconds(at(knot as u64));
        let (low, high) = (values[before], values[knot]);
        let width = (knot - before) as u64;
        for (index, value) in values[before..knot].iter_mut().enumerate().skip(1) {
            // Weights add up to the width; times stay far below 2^64 over it.
            *value = (low * (width - index as u64) + high * index as u64) / width;
        }
        before = knot;
    }
    values
}
