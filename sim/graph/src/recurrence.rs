//! How much is read between two visits of the same row, which says whether a cache still holds it.
//!
//! A step visits a row with a chance of its own. So the row comes again after k steps with the chance q (1 − q)^(k − 1), and by then the bytes
//! D(k) = Σ b (1 − (1 − q)^k) of distinct rows were read. That is the reuse distance of a cache that drops what was read longest ago (Mattson et al.
//! 1970; Che et al. 2002). A graph with hubs comes again soon, one without late, and the same kernel takes different times on both.

use std::collections::BTreeMap;

/// Rows that are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alike {
    /// How many.
    pub count: f64,
    /// Chance that a step visits one of them.
    pub chance: f64,
    /// Bytes of a visit.
    pub bytes: f64,
}

/// Visits that come again after so many steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Again {
    /// Share of all bytes that are visited.
    pub share: f64,
    /// Steps between the two visits.
    pub steps: f64,
}

/// Visits of rows, step after step.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrence {
    rows: Vec<Alike>,
}

/// Share of the visits that may be left over for the longest distance.
const REST: f64 = 1e-3;
/// Most doublings of the steps that are looked at.
const DOUBLINGS_MAX: u32 = 40;

impl Recurrence {
    /// Rows with a chance in a step.
    pub fn new(mut rows: Vec<Alike>) -> Self {
        rows.retain(|alike| alike.count > 0.0 && alike.chance > 0.0);
        debug_assert!(rows.iter().all(|alike| alike.chance <= 1.0), "a step visits a row once");
        Self { rows }
    }

    /// Rows of so many bytes by how many of the steps visited each.
    pub fn of_visits(visits: &[u32], steps: u64, bytes: f64) -> Self {
        let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
        visits.iter().for_each(|visits| *counts.entry(*visits).or_default() += 1);
        let steps = hw::real(steps.max(1));
        let alike = |(visits, count): (u32, u64)| Alike {
            count: hw::real(count),
            chance: (f64::from(visits) / steps).min(1.0),
            bytes,
        };
        Self::new(counts.into_iter().map(alike).collect())
    }

    /// Bytes of distinct rows that so many steps visit.
    pub fn bytes(&self, steps: f64) -> f64 {
        self.rows.iter().map(|alike| alike.count * alike.bytes * (1.0 - absent(alike.chance, steps))).sum()
    }

    /// When visits come again: shares that add up to 1, the soonest first. Steps are taken together by doublings.
    pub fn again(&self) -> Vec<Again> {
        let all: f64 = self.rows.iter().map(|alike| alike.count * alike.bytes * alike.chance).sum();
        // Share of the visits that do not come again within so many steps.
        let later = |steps: f64| {
            let of = |alike: &Alike| alike.count * alike.bytes * alike.chance * absent(alike.chance, steps);
            self.rows.iter().map(of).sum::<f64>() / all
        };
        let mut found = Vec::new();
        let (mut before, mut left) = (0.0, 1.0);
        for doubling in 0..DOUBLINGS_MAX {
            let steps = hw::real(1_u64 << doubling);
            let rest = later(steps);
            // Steps before + 1 to here, at their middle.
            let middle = f64::midpoint(before + 1.0, steps);
            if rest <= REST || doubling + 1 == DOUBLINGS_MAX {
                found.push(Again { share: left, steps: middle });
                break;
            }
            found.push(Again { share: left - rest, steps: middle });
            (before, left) = (steps, rest);
        }
        found.retain(|again| again.share > 0.0);
        found
    }

    /// Bytes between two visits of a row, in the geometric mean over visits.
    pub fn apart(&self) -> f64 {
        let log = |again: &Again| again.share * libm::log(self.bytes(again.steps).max(1.0));
        libm::exp(self.again().iter().map(log).sum())
    }
}

/// Chance that none of so many steps visits a row.
fn absent(chance: f64, steps: f64) -> f64 {
    libm::pow(1.0 - chance, steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alike(count: f64, chance: f64) -> Alike {
        Alike { count, chance, bytes: 8.0 }
    }

    #[test]
    fn rows_of_every_step_come_again_after_one_of_it() {
        let found = Recurrence::new(vec![alike(100.0, 1.0)]);
        assert_eq!(found.again(), [Again { share: 1.0, steps: 1.0 }]);
        assert!((found.bytes(1.0) - 800.0).abs() < 1e-9 && (found.bytes(50.0) - 800.0).abs() < 1e-9);
        assert!((found.apart() - 800.0).abs() < 1e-9);
    }

    #[test]
    fn shares_are_those_of_the_geometric_law() {
        let found = Recurrence::new(vec![alike(10.0, 0.25)]);
        let again = found.again();
        assert!((again.iter().map(|again| again.share).sum::<f64>() - 1.0).abs() < 1e-12);
        // A quarter in the next step, 3/16 in the one after, then steps 3 and 4: (9 + 27/4) / 64.
        assert!((again[0].share - 0.25).abs() < 1e-12 && (again[1].share - 0.1875).abs() < 1e-12);
        assert!((again[2].share - (9.0 + 6.75) / 64.0).abs() < 1e-12);
        assert!((again[2].steps - 3.5).abs() < 1e-12);
    }

    /// The mean distance of a played list of steps, counted visit by visit.
    #[test]
    fn distances_are_those_of_a_played_list() {
        use engine::random;
        let chances: Vec<f64> = (0..200).map(|row| 0.9 / (1.0 + f64::from(row) / 10.0)).collect();
        let steps = 4000;
        let stream = random::stream(1, "steps");
        let visits: Vec<Vec<usize>> = (0..steps)
            .map(|step| {
                let mut draws = stream.branch(step);
                (0..chances.len()).filter(|row| draws.unit() < chances[*row]).collect()
            })
            .collect();
        let (mut sum, mut n) = (0.0, 0.0);
        for (at, own) in visits.iter().enumerate().take(3000).step_by(7) {
            for row in own {
                let Some(next) = (at + 1..visits.len()).find(|next| visits[*next].contains(row)) else { continue };
                let mut between: Vec<usize> = visits[at + 1..=next].concat();
                between.sort_unstable();
                between.dedup();
                sum += libm::log(8.0 * hw::real(between.len() as u64));
                n += 1.0;
            }
        }
        let counted = libm::exp(sum / n);
        let found = Recurrence::new(chances.iter().map(|chance| alike(1.0, *chance)).collect());
        assert!((found.apart() / counted - 1.0).abs() < 0.05, "{} {counted}", found.apart());
    }

    #[test]
    fn hubs_come_again_sooner_than_rows_that_are_alike() {
        let hubs = Recurrence::new(vec![alike(10.0, 0.9), alike(1000.0, 0.001)]);
        let none = Recurrence::new(vec![alike(1010.0, 10.0 / 1010.0)]);
        assert!(hubs.apart() < none.apart());
    }
}
