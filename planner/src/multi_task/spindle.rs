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
const DISTURBANCES: u64 = 24;
/// Longer times than the optimum that parts are cut for as well: their sizes are smaller, waste less and are easier to pack.
const SLACK: [f64; 4] = [0.0, 0.02, 0.05, 0.1];

/// A level packed in one way.
struct Packed {
    seconds: f64,
    order: Order,
    slots: Vec<Slot>,
}

/// The shortest packing of a level in each order, best first.
fn packed(work: &Work, level: &[usize], optimum_s: f64, begin: Begin) -> Vec<Packed> {
    let cut = |slack: f64| -> Vec<(usize, Vec<Part>)> {
        let seconds = optimum_s * (1.0 + slack);
        let parts = level.iter().map(|&meta_op| {
            let job = job(work, meta_op);
            let devices = job.curve.devices(seconds / f64::from(job.n_layers));
            (meta_op, whole_layers(&job, devices, seconds))
        });
        parts.collect()
    };
    let cuts = SLACK.map(cut);
    let of_order = |order: Order| {
        let ways = cuts.iter().flat_map(|parts| (0..=DISTURBANCES).map(move |disturbance| (parts, disturbance)));
        let all = ways.map(|(parts, disturbance)| {
            let slots = pack(work, parts, Preference { order, disturbance }, begin);
            Packed { seconds: makespan_s(work, &slots) - begin.start_s, order, slots }
        });
        all.min_by(|a, b| a.seconds.total_cmp(&b.seconds)).expect("the order itself is tried")
    };
    let mut found: Vec<Packed> = Order::ALL.map(of_order).into();
    found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    found
}

/// Decides.
#[must_use]
pub fn decide(work: &Work) -> Decided {
    let mut slots: Vec<Slot> = Vec::new();
    let mut notes = Vec::new();
    for (number, level) in levels(work).iter().enumerate() {
        let optimum_s = of_level(work, level).seconds;
        let begin = Begin { start_s: makespan_s(work, &slots), wave: slots.last().map_or(0, |slot| slot.wave + 1) };
        let mut ways = packed(work, level, optimum_s, begin);
        let (best, other) = (ways.swap_remove(0), ways.swap_remove(0));
        notes.push(format!(
            "level {number}: {} MetaOps in {} waves, {}, {:.2} ms against {:.2} ms of the continuous optimum; runner-up {}, {:.2} ms",
            level.len(),
            best.slots.last().map_or(0, |slot| slot.wave + 1 - begin.wave),
            best.order.name(),
            best.seconds * 1e3,
            optimum_s * 1e3,
            other.order.name(),
            other.seconds * 1e3,
        ));
        slots.extend(best.slots);
    }
    Decided { slots, notes }
}
