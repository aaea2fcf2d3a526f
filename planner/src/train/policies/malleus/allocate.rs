//! The exact allocator of both lower-level programs: so many equal units to items, such that the largest item is least.
//!
//! minimise max_j (fixed_j + weight_j · q_j) subject to Σ q_j = total, least_j <= q_j <= cap_j, q_j whole (layers to stages, micro-batches to
//! pipelines). Units are given one by one to the item that would be least with one more. That is exact: an item's value only grows with
//! its units, so in any better solution some item that now has the largest value had fewer units and another one more, which would have been
//! chosen first. Of many units, those whose values are certainly below the largest are given at once: most of planning passes here. Tests hold it
//! against brute force, HiGHS, and units that are all given one by one.

/// What takes units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Item {
    /// Value of a unit, at least 0.
    pub(super) weight: f64,
    /// Value without units.
    pub(super) fixed: f64,
    /// Units at least.
    pub(super) least: u64,
    /// Units at most.
    pub(super) cap: u64,
}

impl Item {
    /// Units whose value is no larger.
    fn within(&self, largest: f64) -> u64 {
        if largest < self.fixed {
            return self.least;
        }
        // Weightless items take what they may.
        let units = (largest - self.fixed) / self.weight;
        let n = if units.is_finite() { hw::whole(units.max(0.0).floor()) } else { self.cap };
        n.clamp(self.least, self.cap)
    }

    /// Value with so many units.
    pub(super) fn value(&self, units: u64) -> f64 {
        self.fixed + self.weight * hw::real(units)
    }
}

/// Units from which on they are not given one by one from the start.
const MANY: u64 = 64;
/// Halvings of the search for a value beyond those that tell units of equal items apart. What is left over is given one by one.
const HALVINGS: u32 = 6;
/// Far above rounding, far below a unit.
const ROUNDING: f64 = 1e-9;

/// Units of every item; `None` where the limits leave no solution.
pub(super) fn allocate(items: &[Item], total: u64) -> Option<Vec<u64>> {
    let mut units: Vec<u64> = items.iter().map(|item| item.least).collect();
    if units.iter().sum::<u64>() > total || items.iter().any(|item| item.least > item.cap) {
        return None;
    }
    if total > MANY {
        units = certain(items, total);
    }
    one_by_one(items, units, total)
}

/// The units that are left, each to the item that would be least with one more, the first of equal ones.
pub(super) fn one_by_one(items: &[Item], mut units: Vec<u64>, total: u64) -> Option<Vec<u64>> {
    let mut next: Vec<f64> = items.iter().zip(&units).map(|(item, &units)| item.value(units + 1)).collect();
    for _ in units.iter().sum()..total {
        let mut least: Option<usize> = None;
        for at in (0..items.len()).filter(|&at| units[at] < items[at].cap) {
            if least.is_none_or(|known| next[at] < next[known]) {
                least = Some(at);
            }
        }
        let at = least?;
        units[at] += 1;
        next[at] = items[at].value(units[at] + 1);
    }
    Some(units)
}

/// Units that any best allocation gives: those within a value that leaves some over.
fn certain(items: &[Item], total: u64) -> Vec<u64> {
    let upto = |largest: f64| items.iter().map(move |item| item.within(largest));
    let (mut low, mut high) = (0.0, items.iter().map(|item| item.value(total)).fold(0.0, f64::max));
    for _ in 0..total.ilog2() + HALVINGS {
        let middle = (low + high) / 2.0;
        if upto(middle).sum::<u64>() <= total { low = middle } else { high = middle }
    }
    let units: Vec<u64> = upto(low * (1.0 - ROUNDING)).collect();
    if units.iter().sum::<u64>() <= total { units } else { items.iter().map(|item| item.least).collect() }
}

/// Largest value of an allocation.
pub(super) fn largest(items: &[Item], units: &[u64]) -> f64 {
    items.iter().zip(units).map(|(item, &units)| item.value(units)).fold(0.0, f64::max)
}
