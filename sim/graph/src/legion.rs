//! Legion's split of a clique's memory between rows and features, and which GPU of the clique holds which vertex (arXiv:2305.16588).
//!
//! N(α) = N_T(α) + N_F(α) transactions per epoch, from running sums over vertices by falling hotness: rows within α B bytes, features within
//! (1 − α) B. The bound is the same memory filled by transactions saved per byte, with the last vertex in part: no cache is below it.

use crate::cache::{Held, Ranked};

/// Points of the grid of α: every hundredth.
pub const N_STEPS: u32 = 100;

/// What GPUs that share a cache read of it in an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Rows.
    pub rows: Ranked,
    /// Features.
    pub features: Ranked,
}

/// A split of the memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Share of the memory for rows.
    pub alpha: f64,
    /// Transactions that are left, rows and features.
    pub transactions: [f64; 2],
    /// Rows that are cached.
    pub rows: Held,
    /// Features that are cached.
    pub features: Held,
}

impl Point {
    /// All transactions that are left.
    pub fn sum(&self) -> f64 {
        self.transactions[0] + self.transactions[1]
    }
}

/// The split at a share.
pub fn point(demand: &Demand, budget_bytes: f64, alpha: f64) -> Point {
    let rows = demand.rows.within(alpha * budget_bytes);
    let features = demand.features.within((1.0 - alpha) * budget_bytes);
    // What is left is never below 0, also where sums round.
    let left = [demand.rows.transactions() - rows.saved, demand.features.transactions() - features.saved];
    Point { alpha, transactions: left.map(|left| left.max(0.0)), rows, features }
}

/// Every split of the grid.
pub fn sweep(demand: &Demand, budget_bytes: f64) -> Vec<Point> {
    (0..=N_STEPS).map(|step| point(demand, budget_bytes, f64::from(step) / f64::from(N_STEPS))).collect()
}

/// Position of the split with the fewest transactions; of equals the first.
///
/// # Panics
/// When there is no point.
pub fn best(points: &[Point]) -> usize {
    let order = |&a: &usize, &b: &usize| points[a].sum().total_cmp(&points[b].sum());
    (0..points.len()).min_by(order).expect("a grid has points")
}

/// Transactions that no cache of so many bytes is below.
pub fn bound(demand: &Demand, budget_bytes: f64) -> f64 {
    let mut items: Vec<(f64, f64)> = Vec::with_capacity(demand.rows.items().len() + demand.features.items().len());
    for item in demand.rows.items().iter().chain(demand.features.items()) {
        items.push((item.saved * item.count, item.bytes * item.count));
    }
    items.sort_by(|a, b| (b.0 / b.1).total_cmp(&(a.0 / a.1)));
    let (mut room, mut saved) = (budget_bytes, 0.0);
    for (worth, bytes) in items {
        let part = (room / bytes).clamp(0.0, 1.0);
        saved += worth * part;
        room -= bytes * part;
        if part < 1.0 {
            break;
        }
    }
    (demand.rows.transactions() + demand.features.transactions() - saved).max(0.0)
}

/// Where cached vertices lie.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// GPU of the clique that holds a vertex, in the order of the vertices that were placed; `None` where no GPU had room for it as a whole.
    pub owners: Vec<Option<u32>>,
    /// Bytes that each GPU holds.
    pub bytes: Vec<f64>,
}

/// Gives vertices one by one to the GPU of the clique that reads them most and has room, else to the next: `own[gpu][vertex]` counts reads.
///
/// # Panics
/// When a vertex has no size.
pub fn place(vertices: &[u32], bytes: &dyn Fn(u32) -> u64, own: &[&[u32]], room_bytes: f64) -> Placement {
    let mut placed = Placement { owners: Vec::with_capacity(vertices.len()), bytes: vec![0.0; own.len()] };
    for &vertex in vertices {
        let size = hw::real(bytes(vertex));
        assert!(size > 0.0, "vertex {vertex} takes no bytes");
        let mut best: Option<usize> = None;
        for gpu in 0..own.len() {
            let has_room = placed.bytes[gpu] + size <= room_bytes;
            let is_hotter = best.is_none_or(|best| own[gpu][vertex as usize] > own[best][vertex as usize]);
            if has_room && is_hotter {
                best = Some(gpu);
            }
        }
        if let Some(gpu) = best {
            placed.bytes[gpu] += size;
        }
        placed.owners.push(best.map(|gpu| u32::try_from(gpu).expect("GPUs of a clique")));
    }
    placed
}

#[cfg(test)]
mod tests;
