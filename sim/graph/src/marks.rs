//! How much is read between two touches of the same line of marks.
//!
//! Sampling marks every neighbour that it picks, to have each vertex once. A batch visits a row once, but touches a line of marks again and again.
//! So a step is a pick here, where it is a batch for rows (`recurrence.rs`). What stands between two batches counts for those touches alone
//! that lie in different ones.

use crate::csr::LINE_BYTES;
use crate::recurrence::{Again, Alike, Recurrence};

/// Bytes of a mark.
const MARK_BYTES: u64 = 4;

/// Touches of marks, pick after pick.
#[derive(Clone, Debug, PartialEq)]
pub struct Marks {
    lines: Recurrence,
    /// Picks of a batch.
    picks: f64,
}

impl Marks {
    /// From how often each vertex is picked and the picks of a batch. The first may have any unit.
    pub fn new(picked: &[f64], picks: f64) -> Self {
        let all: f64 = picked.iter().sum();
        let in_line = usize::try_from(LINE_BYTES / MARK_BYTES).expect("few marks");
        let alike = |marks: &[f64]| Alike {
            count: 1.0,
            chance: (marks.iter().sum::<f64>() / all).min(1.0),
            bytes: hw::real(LINE_BYTES),
        };
        Self { lines: Recurrence::new(picked.chunks(in_line).map(alike).collect()), picks }
    }

    /// Shares of the touches, with the bytes between two of a line: marks, rows of the batches between, and what so many batches read besides,
    /// which is nothing within one.
    pub fn again(&self, rows: &Recurrence, besides: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        let of = |Again { share, steps }: Again| {
            let batches = steps / self.picks;
            let own = self.lines.bytes(steps) + rows.bytes(batches);
            let other = batches.min(1.0);
            [(share * (1.0 - other), own), (share * other, own + besides(batches.max(1.0)))]
        };
        self.lines.again().into_iter().flat_map(of).filter(|(share, _)| *share > 0.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The geometric mean of bytes by their shares.
    fn mean(again: &[(f64, f64)]) -> f64 {
        libm::exp(again.iter().map(|(share, bytes)| share * libm::log(*bytes)).sum())
    }

    /// 32 lines of marks that are picked alike, 256 picks a batch: a line comes again after 32 picks on average, long before the batch ends.
    #[test]
    fn what_stands_between_batches_hardly_reaches_marks_that_come_again_within_one() {
        let marks = Marks::new(&[1.0; 512], 256.0);
        let rows = Recurrence::new(vec![Alike { count: 1000.0, chance: 0.1, bytes: 100.0 }]);
        let alone = mean(&marks.again(&rows, |_| 0.0));
        // Half of the gaps are below 22 picks, so half of the touches see fewer than 16 lines and 900 bytes of rows.
        assert!((1000.0..3000.0).contains(&alone), "{alone}");
        let besides = mean(&marks.again(&rows, |_| 1e9));
        // A gap of k picks crosses the end of a batch with the chance k / 256, 0.125 on average: 1e9 to that power at most.
        assert!((2.0 * alone..14.0 * alone).contains(&besides), "{alone} {besides}");
        assert!(besides < 1e-4 * 1e9);
    }

    #[test]
    fn marks_that_come_again_in_other_batches_see_all_that_is_between() {
        let marks = Marks::new(&[1.0; 1 << 16], 16.0);
        let rows = Recurrence::new(vec![Alike { count: 1.0, chance: 1.0, bytes: 1.0 }]);
        let besides = mean(&marks.again(&rows, |_| 1e9));
        assert!((0.9e9..1.1e9).contains(&besides), "{besides}");
    }

    /// The mean distance of a played list of picks, counted touch by touch, with a lump behind every batch.
    #[test]
    fn distances_are_those_of_a_played_list() {
        use engine::random;
        let (n, picks) = (512_u64, 400_u64);
        let weights: Vec<f64> = (0..n).map(|vertex| 1.0 / (1.0 + hw::real(vertex) / 20.0)).collect();
        let all: f64 = weights.iter().sum();
        let mut draws = random::stream(3, "picks");
        let mut drawn = || {
            let mut left = draws.unit() * all;
            (0..n).find(|vertex| {
                left -= weights[*vertex as usize];
                left < 0.0
            })
        };
        let lines: Vec<u64> = (0..40 * picks).map(|_| drawn().unwrap_or(n - 1) / 16).collect();
        let (mut sum, mut count) = (0.0, 0.0);
        for at in 0..lines.len() - 4000 {
            let Some(gap) = lines[at + 1..].iter().position(|line| *line == lines[at]) else { continue };
            let mut between: Vec<u64> = lines[at + 1..=at + 1 + gap].to_vec();
            between.sort_unstable();
            between.dedup();
            let ends = (at + 1 + gap) / 400 - at / 400;
            sum += libm::log(64.0 * hw::real(between.len() as u64) + if ends > 0 { 5e5 } else { 0.0 });
            count += 1.0;
        }
        let counted = libm::exp(sum / count);
        let none = Recurrence::new(vec![Alike { count: 1e-9, chance: 1.0, bytes: 1.0 }]);
        let found = Marks::new(&weights, hw::real(picks)).again(&none, |_| 5e5);
        let found = mean(&found);
        assert!((found / counted - 1.0).abs() < 0.1, "{found} {counted}");
    }
}
