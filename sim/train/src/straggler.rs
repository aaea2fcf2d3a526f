//! Devices that compute slower than the rest, for some steps of a job.
//!
//! The straggling rate of a device is its time for some computation over a healthy device's: 1 is healthy, 2.57 takes 2.57 times as long
//! (Malleus, arXiv:2410.13333). Only computation is slower: exchanges go as fast as ever, and what waits for a straggler waits.

use hw::Rank;

/// Devices with a rate, for some steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Straggler {
    /// Which devices.
    pub ranks: Vec<Rank>,
    /// Their time over a healthy device's, at least 1.
    pub rate: f64,
    /// First step in which they straggle.
    pub from_step: usize,
    /// First step in which they no longer do; `None` for never.
    pub until_step: Option<usize>,
}

impl Straggler {
    fn is_active(&self, step_index: usize) -> bool {
        step_index >= self.from_step && self.until_step.is_none_or(|until| step_index < until)
    }
}

/// Rates of all devices in one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates(Vec<(Rank, f64)>);

impl Rates {
    /// Rates in a step; a device that is named twice has the larger.
    pub fn at(stragglers: &[Straggler], step_index: usize) -> Self {
        let active = stragglers.iter().filter(|straggler| straggler.is_active(step_index));
        let mut rates: Vec<(Rank, f64)> =
            active.flat_map(|straggler| straggler.ranks.iter().map(|&rank| (rank, straggler.rate))).collect();
        rates.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        rates.dedup_by_key(|(rank, _)| *rank);
        rates.retain(|(_, rate)| *rate > 1.0);
        Self(rates)
    }

    /// Rate of a device.
    pub fn of(&self, rank: Rank) -> f64 {
        self.0.binary_search_by_key(&rank, |(known, _)| *known).map_or(1.0, |index| self.0[index].1)
    }

    /// Rate of the slowest of some devices.
    pub fn slowest(&self, ranks: impl IntoIterator<Item = Rank>) -> f64 {
        if self.is_healthy() { 1.0 } else { ranks.into_iter().map(|rank| self.of(rank)).fold(1.0, f64::max) }
    }

    /// Stragglers in rank order, with their rates.
    pub fn stragglers(&self) -> &[(Rank, f64)] {
        &self.0
    }

    /// The same where devices of such a rate or more have another one at least.
    #[must_use]
    pub fn slowed(&self, from: f64, least: f64) -> Self {
        let of = |&(rank, rate): &(Rank, f64)| (rank, if rate >= from { rate.max(least) } else { rate });
        Self(self.0.iter().map(of).collect())
    }

    /// Whether no device straggles.
    pub const fn is_healthy(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_straggles_in_its_steps_and_at_its_largest_rate() {
        let straggler =
            |rank, rate, from_step, until_step| Straggler { ranks: vec![Rank(rank)], rate, from_step, until_step };
        let all = [straggler(3, 2.0, 1, None), straggler(3, 5.0, 2, Some(3)), straggler(1, 1.0, 0, None)];
        let of = |step| [1, 2, 3].map(|rank| Rates::at(&all, step).of(Rank(rank)));
        assert_eq!([of(0), of(1), of(2), of(3)], [[1.0; 3], [1.0, 1.0, 2.0], [1.0, 1.0, 5.0], [1.0, 1.0, 2.0]]);
        assert!(Rates::at(&all, 0).is_healthy());
        assert_eq!(Rates::at(&all, 2).slowest([Rank(0), Rank(3)]), 5.0);
        let slowed = |from| Rates::at(&all, 1).slowed(from, 4.0);
        assert_eq!([slowed(1.5).of(Rank(3)), slowed(2.5).of(Rank(3)), slowed(1.5).of(Rank(1))], [4.0, 2.0, 1.0]);
    }
}
