//! Spindle (arXiv:2409.03365, section 3): level by level, the continuous optimum, cut to two sizes and packed into waves.
//!
//! The paper packs greedily without naming the order; here every order of `waves::Order`, and disturbed ones, are tried on every level and
//! the shortest is kept.

use sim::multi_task::Work;

use super::optimum::{Job, Optimum, Part, optimum, whole_layers};
use super::waves::{Begin, Order, Preference, pack};
use super::{Decided, Slot, makespan_s};

/// `MetaOps` of each level.
#[must_use]
pub fn levels(work: &Work) -> Vec<Vec<usize>> {
    let n_levels = work.meta_ops.iter().map(|meta_op| meta_op.level + 1).max().unwrap_or(0);
    (0..n_levels)
        .map(|level| (0..work.meta_ops.len()).filter(|&meta_op| work.meta_ops[meta_op].level == level).collect())
        .collect()
}

/// The continuous optimum of a level.
#[must_use]
pub fn of_level(work: &Work, level: &[usize]) -> Optimum {
    let jobs: Vec<Job<'_>> = level.iter().map(|&meta_op| job(work, meta_op)).collect();
    optimum(&jobs, work.n_devices())
}

fn job(work: &Work, meta_op: usize) -> Job<'_> {
    Job { n_layers: work.n_layers(meta_op), curve: &work.curves[meta_op] }
}

/// What the paper holds its plans against: the sum over levels of the continuous optimum, seconds.
#[must_use]
pub fn theory_s(work: &Work) -> f64 {
    levels(work).iter().map(|level| of_level(work, level).seconds).sum()
}

/// Disturbances of each order that are tried.
const DISTURBANCES: u64 = 40;

/// The shortest packing of a level, with the seconds of the best one by another order, and that order's name.
fn shortest(work: &Work, parts: &[(usize, Vec<Part>)], begin: Begin) -> (Order, Vec<Slot>, (Order, f64)) {
    let of_order = |order: Order| {
        let tried = (0..=DISTURBANCES).map(|disturbance| pack(work, parts, Preference { order, disturbance }, begin));
        let timed = tried.map(|slots| (makespan_s(work, &slots), slots));
        let best = timed.min_by(|a, b| a.0.total_cmp(&b.0)).expect("the order itself is tried");
        (best.0, order, best.1)
    };
    let mut found: Vec<(f64, Order, Vec<Slot>)> = Order::ALL.map(of_order).into();
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let runner_up = (found[1].1, found[1].0 - begin.start_s);
    let (_, order, slots) = found.swap_remove(0);
    (order, slots, runner_up)
}

/// Decides.
#[must_use]
pub fn decide(work: &Work) -> Decided {
    let mut slots: Vec<Slot> = Vec::new();
    let mut notes = Vec::new();
    for (number, level) in levels(work).iter().enumerate() {
        let found = of_level(work, level);
        let parts: Vec<(usize, Vec<Part>)> = level
            .iter()
            .zip(&found.devices)
            .map(|(&meta_op, &devices)| (meta_op, whole_layers(&job(work, meta_op), devices, found.seconds)))
            .collect();
        let begin = Begin { start_s: makespan_s(work, &slots), wave: slots.last().map_or(0, |slot| slot.wave + 1) };
        let (order, packed, (other, other_s)) = shortest(work, &parts, begin);
        notes.push(format!(
            "level {number}: {} MetaOps in {} waves, {}, {:.2} ms against {:.2} ms of the continuous optimum; runner-up {}, {:.2} ms",
            level.len(),
            packed.last().map_or(0, |slot| slot.wave + 1 - begin.wave),
            order.name(),
            (makespan_s(work, &packed) - begin.start_s) * 1e3,
            found.seconds * 1e3,
            other.name(),
            other_s * 1e3,
        ));
        slots.extend(packed);
    }
    Decided { slots, notes }
}
