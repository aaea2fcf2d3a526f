//! Spindle (arXiv:2409.03365, section 3): level by level, the continuous optimum, cut to two sizes and packed into waves.
//!
//! The paper packs greedily without naming the order; here every order of `waves::Order` is tried on every level, on the paper's cut and on
//! others that are drawn or made from the best by a small change, and the shortest is kept.

use engine::random::{self, Stream};
use train::multi_task::Work;
use train::multi_task::schedule::Turns;

use super::optimum::{Job, Optimum, Part, optimum, whole_layers};
use super::waves::{Begin, Order, Preference, pack};
use super::{Decided, Slot, makespan_s};

/// `MetaOps` of each level.
pub fn levels(work: &Work) -> Vec<Vec<usize>> {
    let n_levels = work.meta_ops.iter().map(|meta_op| meta_op.level + 1).max().unwrap_or(0);
    (0..n_levels).map(|level| at_level(work, level)).collect()
}

/// `MetaOp`s of a level.
fn at_level(work: &Work, level: u32) -> Vec<usize> {
    (0..work.meta_ops.len()).filter(|&meta_op| work.meta_ops[meta_op].level == level).collect()
}

/// The continuous optimum of a level.
pub fn of_level(work: &Work, level: &[usize]) -> Optimum {
    let jobs: Vec<Job<'_>> = level.iter().map(|&meta_op| job(work, meta_op)).collect();
    optimum(&jobs, work.n_devices())
}

fn job(work: &Work, meta_op: usize) -> Job<'_> {
    Job { n_layers: work.n_layers(meta_op), curve: &work.curves[meta_op] }
}

/// What the paper holds its plans against: the sum over levels of the continuous optimum, seconds.
pub fn theory_s(work: &Work) -> f64 {
    levels(work).iter().map(|level| of_level(work, level).seconds).sum()
}

/// Packings of a level that are tried.
const TRIES: usize = 480;
/// Those of them that are drawn afresh; the others change the best one.
const FRESH: usize = 120;
/// Part of the optimum's time by which a `MetaOp` may be cut for a longer one: its sizes are then smaller, lose less and pack more easily.
const SLACK_MAX: f64 = 0.2;

/// A way to pack a level.
#[derive(Clone, Debug)]
struct Way {
    preference: Preference,
    /// Part of the optimum's time by which each `MetaOp` is cut for a longer one.
    slack: Vec<f64>,
}

impl Way {
    /// The paper's cut in an order.
    fn plain(order: Order, n: usize) -> Self {
        Self { preference: Preference { order, disturbance: 0, starts_all: false }, slack: vec![0.0; n] }
    }

    /// Number `at` of the fresh ones: first the paper's cut in every order, then drawn ones.
    fn fresh(at: usize, n: usize, draws: &mut Stream) -> Self {
        let plain = Self::plain(Order::ALL[at % Order::ALL.len()], n);
        if at < Order::ALL.len() {
            return plain;
        }
        let most = SLACK_MAX * draws.unit();
        let slack = (0..n).map(|_| most * draws.unit()).collect();
        Self { preference: Preference { disturbance: at as u64, ..plain.preference }, slack }
    }

    /// The same with waves that are as long as the longest layer in them.
    fn starting_all(self) -> Self {
        Self { preference: Preference { starts_all: true, ..self.preference }, ..self }
    }

    /// The same with another slack of one `MetaOp`, or others drawn in another way.
    fn changed(&self, at: usize, draws: &mut Stream) -> Self {
        let mut way = self.clone();
        if draws.below(4) == 0 {
            way.preference.disturbance = at as u64;
        } else {
            let which = usize::try_from(draws.below(self.slack.len() as u64)).expect("below a length");
            way.slack[which] = if draws.below(3) == 0 { 0.0 } else { SLACK_MAX * draws.unit() };
        }
        way
    }

    fn pack(&self, work: &Work, level: &[usize], optimum_s: f64, begin: Begin) -> Packed {
        let cut = level.iter().zip(&self.slack).map(|(&meta_op, slack)| {
            let (job, seconds) = (job(work, meta_op), optimum_s * (1.0 + slack));
            (meta_op, whole_layers(&job, job.curve.devices(seconds / f64::from(job.n_layers)), seconds))
        });
        let slots = pack(work, &cut.collect::<Vec<(usize, Vec<Part>)>>(), self.preference, begin);
        Packed { seconds: makespan_s(work, &slots) - begin.start_s, order: self.preference.order, slots }
    }
}

/// A level packed in one way.
struct Packed {
    seconds: f64,
    order: Order,
    slots: Vec<Slot>,
}

/// Keeps a packing where it is the shortest of its order. The shortest of all is the first.
fn keep(best: &mut Vec<(Packed, Way)>, packed: Packed, way: Way) {
    match best.iter().position(|(other, _)| other.order == packed.order) {
        Some(known) if best[known].0.seconds <= packed.seconds => return,
        Some(known) => best[known] = (packed, way),
        None => best.push((packed, way)),
    }
    best.sort_by(|a, b| a.0.seconds.total_cmp(&b.0.seconds));
}

/// The shortest packing of a level, and the shortest of another order.
fn shortest(work: &Work, level: &[usize], optimum_s: f64, begin: Begin) -> (Packed, Packed) {
    let mut draws = random::stream(0, "spindle");
    let mut best: Vec<(Packed, Way)> = Vec::with_capacity(Order::ALL.len());
    for at in 0..TRIES {
        let way = match best.first() {
            Some((_, way)) if at >= FRESH => way.changed(at, &mut draws),
            _ => Way::fresh(at, level.len(), &mut draws),
        };
        keep(&mut best, way.pack(work, level, optimum_s, begin), way);
    }
    for order in Order::ALL {
        let way = Way::plain(order, level.len()).starting_all();
        keep(&mut best, way.pack(work, level, optimum_s, begin), way);
    }
    let mut found = best.into_iter().map(|(packed, _)| packed);
    let first = found.next().expect("every order is tried");
    (first, found.next().expect("there is more than one order"))
}

/// Decides.
pub fn decide(work: &Work) -> Decided {
    let mut slots: Vec<Slot> = Vec::new();
    let mut notes = Vec::new();
    for (number, level) in levels(work).iter().enumerate() {
        let optimum_s = of_level(work, level).seconds;
        let begin = Begin { start_s: makespan_s(work, &slots), wave: slots.last().map_or(0, |slot| slot.wave + 1) };
        let (best, other) = shortest(work, level, optimum_s, begin);
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
    Decided { slots, turns: Turns::Off, notes }
}
