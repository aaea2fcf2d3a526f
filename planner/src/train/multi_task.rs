//! Several tasks that share parts of a model, on one machine: which layers run where and when (`train::multi_task` has the nouns).
//!
//! `most_work` puts tasks in an order, `contract` makes the plannable units, `spindle` plans them in waves after Spindle (arXiv:2409.03365) with `optimum` (continuous allocation)
//! and `waves`; `sequential`, `distmm` and `optimus` are what it is compared with. A policy decides on slots, that is devices by number
//! and start; `place` gives them devices. `bound` is below every schedule, whoever made it.

pub mod bound;
pub mod contract;
pub mod distmm;
pub mod judged;
mod most_work;
pub mod optimum;
pub mod optimus;
pub mod place;
pub mod sequential;
pub mod spindle;
pub mod traffic;
pub mod waves;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use train::multi_task::Work;
use train::multi_task::schedule::{Schedule, Turns};

use crate::proof::{Aim, Decision};
use place::Placement;

/// Layers of a `MetaOp` on a number of devices, not yet which.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slot {
    /// Index of the `MetaOp`.
    pub meta_op: usize,
    /// First layer.
    pub first: u32,
    /// Layers.
    pub n_layers: u32,
    /// Index into the `MetaOp`'s sizes.
    pub size: usize,
    /// Wave.
    pub wave: u32,
    /// Start, seconds.
    pub start_s: f64,
    /// Devices of its task alone, where it has some.
    pub own: Option<Own>,
}

/// Devices that a task has for itself: its slots run on the first of them, so they follow one another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Own {
    /// Index of the task.
    pub task: usize,
    /// How many.
    pub n_devices: u32,
    /// Largest tensor group of its slots.
    pub tensor: u32,
    /// When it gives them back, seconds.
    pub until_s: f64,
}

impl Slot {
    /// End, seconds.
    pub fn end_s(&self, work: &Work) -> f64 {
        self.start_s + f64::from(self.n_layers) * work.curves[self.meta_op].points()[self.size].1
    }
}

/// Seconds from the first start to the last end.
pub fn makespan_s(work: &Work, slots: &[Slot]) -> f64 {
    slots.iter().map(|slot| slot.end_s(work)).fold(0.0, f64::max)
}

/// Slots of a policy, and what it can say of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decided {
    /// Slots by start.
    pub slots: Vec<Slot>,
    /// What follows one another, whoever has devices left.
    pub turns: Turns,
    /// In words.
    pub notes: Vec<String>,
}

/// How tasks share the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Waves over all tasks.
    Spindle,
    /// One `MetaOp` after another on all devices.
    Sequential,
    /// One task after another, its branches side by side.
    DistMm,
    /// Tasks side by side, each a sequence on devices of its own.
    Optimus,
}

/// Policies with what they do.
pub const POLICIES: [(&str, Policy, &str); 4] = [
    (
        "spindle",
        Policy::Spindle,
        "waves over all tasks: continuous optimum per level, cut to two sizes, packed into waves (arXiv:2409.03365)",
    ),
    (
        "sequential",
        Policy::Sequential,
        "every part of every task on all GPUs, one after another, as Megatron-LM and DeepSpeed run several tasks",
    ),
    (
        "distmm-mt",
        Policy::DistMm,
        "tasks one after another, the branches of a task side by side on GPUs in proportion to their work (DistMM)",
    ),
    (
        "spindle-optimus",
        Policy::Optimus,
        "tasks side by side on GPUs of their own, given where they shorten a task most (Optimus)",
    ),
];

/// Most GPUs of a machine for which every number below is tried, so that one GPU more never ends later.
const EVERY_GPUS: u32 = 32;
/// GPUs of all plans together that are made for fewer than there are, on larger machines: four below 64, and one below 256 and beyond, where a plan takes long.
const TRIED_GPUS: u32 = 256;

/// Decides and places; the objective is the planned time of forward and backward. The notes say where the devices came from, too.
///
/// `played_s` is what a placement takes in the engine: the nearest devices are taken only where the first free ones do not end sooner. Waves end a level
/// before the next one begins, so short levels can lose to plans without levels. Then the plan that ends soonest when it is played is taken.
/// A plan may leave devices idle, so those of fewer devices are played as well (`EVERY_GPUS`, `TRIED_GPUS`), as long as their bound is below the best.
pub fn plan(
    work: &Work,
    policy: Policy,
    placement: Placement,
    played_s: &dyn Fn(&Schedule) -> f64,
) -> Decision<Schedule> {
    let mut best = soonest(work, policy, placement, played_s);
    // Other placements are there to show what placing gains, so they keep the waves and all devices.
    if policy == Policy::Spindle && placement == Placement::Local {
        let n = work.n_devices();
        let n_tried = if n <= EVERY_GPUS { n } else { (TRIED_GPUS / n).max(1) } as usize;
        for fewer in (1..work.n_devices()).rev().map_while(|n| work.on_fewer(n)).take(n_tried) {
            if bound::bound(&fewer).is_ok_and(|bound| bound.value >= best.played_s) {
                break;
            }
            let found = soonest(&fewer, policy, placement, played_s);
            best = sooner(best, found, &format!("{} of {} GPUs: plans of more", fewer.n_devices(), work.n_devices()));
        }
    }
    let seconds = best.schedule.seconds(work);
    Decision::new(best.schedule, Aim::Seconds, seconds).said(best.notes, BTreeMap::new())
}

/// The plan of a policy; of waves and plans without levels the one that ends soonest.
fn soonest(work: &Work, policy: Policy, placement: Placement, played_s: &dyn Fn(&Schedule) -> f64) -> Placed {
    let mut best = placed(work, policy, placement, played_s);
    if policy == Policy::Spindle && placement == Placement::Local {
        for (other, name) in WITHOUT_LEVELS {
            best = sooner(best, placed(work, other, placement, played_s), &format!("{name}: waves"));
        }
    }
    best
}

/// The plan that ends sooner when it is played; where it is the other one, its notes begin with how much later the first would end.
fn sooner(first: Placed, other: Placed, words: &str) -> Placed {
    if other.played_s >= first.played_s {
        return first;
    }
    let lost = first.played_s / other.played_s - 1.0;
    let note = format!("{words} would end {:.1} % later when they are played", lost * 100.0);
    Placed { notes: std::iter::once(note).chain(other.notes).collect(), ..other }
}

/// Plans that know no levels, in words.
const WITHOUT_LEVELS: [(Policy, &str); 3] = [
    (Policy::Sequential, "one MetaOp after another"),
    (Policy::DistMm, "one task after another, its branches side by side"),
    (Policy::Optimus, "tasks side by side on GPUs of their own"),
];

/// Slots with their devices.
struct Placed {
    schedule: Schedule,
    /// What it takes when it is played, seconds; endless where it does not fit.
    played_s: f64,
    notes: Vec<String>,
}

fn placed(work: &Work, policy: Policy, placement: Placement, played_s: &dyn Fn(&Schedule) -> f64) -> Placed {
    let decided = match policy {
        Policy::Spindle => spindle::decide(work),
        Policy::Sequential => sequential::decide(work),
        Policy::DistMm => distmm::decide(work),
        Policy::Optimus => optimus::decide(work),
    };
    let with = |placement| {
        let (schedule, note) = place::place(work, &decided, placement);
        (played_s(&schedule), schedule, note)
    };
    let (mut seconds, mut schedule, mut note) = with(placement);
    if placement == Placement::Local {
        let (in_order_s, in_order, _) = with(Placement::Consecutive);
        if in_order_s < seconds {
            (seconds, schedule) = (in_order_s, in_order);
            note = Some("placed in order of slots: the nearest devices end later when they are played".to_owned());
        }
    }
    Placed { schedule, played_s: seconds, notes: decided.notes.into_iter().chain(note).collect() }
}
