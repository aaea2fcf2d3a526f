//! Tables of times by size: every size has a value, whatever the knots are at which the costs were asked.

use hw::{Seconds, Tick};

/// A value of a table. Beyond its end values are in proportion to the size: nothing is free there, and nothing has a better rate than the end.
pub(super) fn at(table: &[Tick], index: u64) -> Tick {
    let last = table.len() - 1;
    match usize::try_from(index) {
        Ok(index) if index <= last => table[index],
        _ => table[last].share(index, last as u64),
    }
}

/// Sizes at which a table up to `n` asks, ever sparser and the last one `n`: between two of them values lie on a line.
pub(super) fn knots(n: usize) -> impl Iterator<Item = usize> {
    let next = move |before: usize| {
        let stride = match before {
            0..64 => 1,
            64..512 => 8,
            512..4096 => 32,
            4096..32_768 => 256,
            _ => 4096,
        };
        (before < n).then(|| (before + stride).min(n))
    };
    std::iter::successors(next(0), move |before| next(*before))
}

/// Values of every size up to `n`, from a function that is asked at knots.
pub(super) fn filled(n: usize, at: impl Fn(u64) -> Seconds) -> Vec<Tick> {
    let mut values = vec![Tick::ZERO; n + 1];
    let mut before = 0;
    for knot in knots(n) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_its_end_a_table_goes_on_in_proportion() {
        let table = filled(100, |n| Seconds::new(1e-3 + 1e-5 * hw::real(n)));
        assert_eq!(at(&table, 100), table[100]);
        assert_eq!(at(&table, 250), table[100] * 5 / 2);
        // No size has a better rate than the end, and none is cheaper than a smaller one.
        assert!(
            (101..500)
                .all(|n| at(&table, n) * 100 + Tick::new(100) > table[100] * n && at(&table, n) > at(&table, n - 1))
        );
    }
}
