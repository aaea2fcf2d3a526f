//! The exact allocator of both lower-level programs: so many equal units to items, such that the largest item is least.
//!
//! minimise max_j (fixed_j + weight_j · q_j) subject to Σ q_j = total, least_j <= q_j <= cap_j, q_j whole (layers to stages, micro-batches to
//! pipelines). Units are given one by one to the item that would be least with one more. That is exact: an item's value only grows with
//! its units, so in any better solution some item that now has the largest value had fewer units and another one more, which would have been
//! chosen first. Tests hold it against brute force and HiGHS.

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
    /// Value with so many units.
    pub(super) fn value(&self, units: u64) -> f64 {
        self.fixed + self.weight * hw::Tokens(units).as_f64()
    }
}

/// Units of every item; `None` where the limits leave no solution.
pub(super) fn allocate(items: &[Item], total: u64) -> Option<Vec<u64>> {
    let mut units: Vec<u64> = items.iter().map(|item| item.least).collect();
    let given: u64 = units.iter().sum();
    if given > total || items.iter().any(|item| item.least > item.cap) {
        return None;
    }
    for _ in given..total {
        let open = (0..items.len()).filter(|&at| units[at] < items[at].cap);
        let next = |at: &usize| items[*at].value(units[*at] + 1);
        let at = open.min_by(|a, b| next(a).total_cmp(&next(b)))?;
        units[at] += 1;
    }
    Some(units)
}

/// Largest value of an allocation.
pub(super) fn largest(items: &[Item], units: &[u64]) -> f64 {
    items.iter().zip(units).map(|(item, &units)| item.value(units)).fold(0.0, f64::max)
}
