//! What copies to and from the host move, and for how long they use its link, in words. A step with copies that computation hides shows no loss, so this says why.
//! Units: bytes, seconds.

use engine::Op;
use engine::task::{CopyKind, Role};

use super::Played;

/// Directions, in words.
const WAYS: [(CopyKind, &str); 2] = [(CopyKind::DeviceToHost, "to the host"), (CopyKind::HostToDevice, "from it")];

/// Copies of one lane in all steps, by direction.
#[derive(Clone, Copy, Default)]
struct Copies {
    /// Of each rank.
    bytes: [u64; 2],
    /// Of all ranks that take turns on the lane's link.
    busy_ns: [u64; 2],
}

impl Copies {
    fn busy_ns(&self) -> u64 {
        self.busy_ns.iter().sum()
    }
}

/// Copies beside passes on the rank whose link has most to do, in the mean of steps; `None` without any.
pub(super) fn words(steps: &[Played], step_s: f64) -> Option<String> {
    let n_lanes = steps.iter().map(|step| step.graph.lanes.len()).max().unwrap_or(0);
    let mut of_lanes = vec![Copies::default(); n_lanes];
    for step in steps {
        for (index, task) in step.graph.tasks.iter().enumerate().filter(|(_, task)| task.role == Role::Offload) {
            let Some((way, bytes)) = copied(&step.graph.ops[task.op.0 as usize]) else { continue };
            let copies = &mut of_lanes[task.lane.index()];
            copies.bytes[way] += bytes;
            copies.busy_ns[way] += (step.timeline.end[index] - step.timeline.start[index]).as_ns();
        }
    }
    let most = of_lanes.into_iter().max_by_key(Copies::busy_ns).filter(|most| most.busy_ns() > 0)?;
    let n_steps = hw::real(steps.len() as u64);
    let of_way = |(way, (_, name)): (usize, &(CopyKind, &str))| {
        let (gib, s) = (hw::real(most.bytes[way]) / hw::GIB / n_steps, hw::real(most.busy_ns[way]) / 1e9 / n_steps);
        (most.bytes[way] > 0).then(|| format!("{gib:.1} GiB {name} in {s:.3} s"))
    };
    let ways: Vec<String> = WAYS.iter().enumerate().filter_map(of_way).collect();
    Some(format!("a rank copies {} beside a step of {step_s:.3} s", ways.join(" and ")))
}

/// The direction of a copy, and its bytes. Ranks that take turns have a copy each.
fn copied(op: &Op) -> Option<(usize, u64)> {
    match op {
        Op::Copy { kind, bytes } => Some((WAYS.iter().position(|(way, _)| way == kind)?, *bytes)),
        Op::Sequence(ops) => copied(&ops.first()?.0),
        _ => None,
    }
}
