//! DistMM for several tasks (Spindle, section 5.1): one task after another; inside a task, branches that need nothing of each other share the
//! devices, each for its whole length, and what joins them follows on all devices.
//!
//! Devices go one size at a time to the branch that takes longest, which is the least possible longest time over whole sizes. Where there
//! are more branches than devices for their smallest sizes, the rest follows. Where sizes are too coarse to share the devices well, branches run
//! one after another on all of them, as who tunes by hand would have it; so this is never slower than `sequential`.

use train::multi_task::Work;
use train::multi_task::schedule::Turns;

use super::{Decided, Slot, makespan_s};

/// Seconds of a whole `MetaOp` on a size.
fn seconds(work: &Work, meta_op: usize, size: usize) -> f64 {
    f64::from(work.n_layers(meta_op)) * work.curves[meta_op].points()[size].1
}

/// Sizes of `MetaOps` that run side by side: indices by `MetaOp`, as many as fit at their smallest size, longest first.
pub fn side_by_side(work: &Work, meta_ops: &[usize]) -> Vec<(usize, usize)> {
    let seconds = |meta_op: usize, size: usize| seconds(work, meta_op, size);
    let mut order = meta_ops.to_vec();
    order.sort_unstable_by(|&a, &b| seconds(b, 0).total_cmp(&seconds(a, 0)).then(a.cmp(&b)));
    let mut free = work.n_devices();
    let mut chosen: Vec<(usize, usize)> = Vec::new();
    for meta_op in order {
        let needed = work.curves[meta_op].smallest().0;
        if needed <= free {
            free -= needed;
            chosen.push((meta_op, 0));
        }
    }
    loop {
        let longest = |a: usize| seconds(chosen[a].0, chosen[a].1);
        let Some(at) = (0..chosen.len()).max_by(|&a, &b| longest(a).total_cmp(&longest(b)).then(b.cmp(&a))) else {
            return chosen;
        };
        let (meta_op, size) = chosen[at];
        let points = work.curves[meta_op].points();
        // The longest sets the time: where it cannot grow, more devices help nobody.
        match points.get(size + 1) {
            Some(next) if next.0 - points[size].0 <= free => {
                free -= next.0 - points[size].0;
                chosen[at].1 += 1;
            }
            _ => return chosen,
        }
    }
}

/// Branches in the shorter of both ways: groups that follow each other, each of `MetaOps` with their sizes that run side by side.
fn branches(work: &Work, meta_ops: &[usize]) -> Vec<Vec<(usize, usize)>> {
    let mut left = meta_ops.to_vec();
    let mut shared = Vec::new();
    while !left.is_empty() {
        let chosen = side_by_side(work, &left);
        left.retain(|meta_op| chosen.iter().all(|(other, _)| other != meta_op));
        shared.push(chosen);
    }
    let in_turn: Vec<Vec<(usize, usize)>> =
        meta_ops.iter().map(|&meta_op| vec![(meta_op, work.curves[meta_op].points().len() - 1)]).collect();
    let group_s = |group: &Vec<(usize, usize)>| {
        let seconds = group.iter().map(|&(meta_op, size)| seconds(work, meta_op, size));
        seconds.fold(0.0, f64::max)
    };
    let total = |groups: &[Vec<(usize, usize)>]| groups.iter().map(group_s).sum::<f64>();
    if total(&shared) <= total(&in_turn) { shared } else { in_turn }
}

/// Decides.
pub fn decide(work: &Work) -> Decided {
    let mut slots: Vec<Slot> = Vec::with_capacity(work.meta_ops.len());
    let mut wave = 0;
    for task in 0..work.training.tasks.len() {
        let of_task: Vec<usize> = (0..work.meta_ops.len()).filter(|&at| work.meta_ops[at].task == task).collect();
        let mut levels: Vec<u32> = of_task.iter().map(|&at| work.meta_ops[at].level).collect();
        levels.sort_unstable();
        levels.dedup();
        for level in levels {
            let of_level: Vec<usize> = of_task.iter().copied().filter(|&at| work.meta_ops[at].level == level).collect();
            for group in branches(work, &of_level) {
                let start_s = makespan_s(work, &slots);
                slots.extend(group.into_iter().map(|(meta_op, size)| {
                    let n_layers = work.n_layers(meta_op);
                    Slot { meta_op, first: 0, n_layers, size, wave, start_s, own: None }
                }));
                wave += 1;
            }
        }
    }
    let notes = vec![format!("{} tasks one after another", work.training.tasks.len())];
    Decided { slots, turns: Turns::Tasks, notes }
}
