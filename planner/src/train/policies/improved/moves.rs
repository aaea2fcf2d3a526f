//! Small changes of a step: a sequence goes to another micro-batch, two change places, one is cut or made whole, some micro-batches become
//! one with its sequences placed anew. Most start at the group that ends last.
//!
//! Invariant: no rank of a changed micro-batch gets more tokens than the bucket; parts of sequences (chunks) stay where they are.

use engine::random::Stream;
use train::Problem;
use train::plan::{MicroBatch, Place, Placement, Step};

/// Position of a placement: group, micro-batch, index.
type At = (usize, usize, usize);

/// A changed step; `None` when the drawn change is not possible.
pub(super) fn propose(problem: &Problem, step: &Step, last: u32, random: &mut Stream) -> Option<Step> {
    let mut draw = Draw { problem, last, random };
    let mut changed = step.clone();
    let touched = match draw.below(5) {
        0 => draw.relocate(&mut changed)?,
        1 => draw.swap(&mut changed)?,
        2 => draw.replace(&mut changed)?,
        3 => draw.merge(&mut changed, 2)?,
        _ => {
            let n = 1 + draw.below(problem.layout.cp as usize);
            draw.merge(&mut changed, n)?
        }
    };
    for (group, micro_batch) in touched {
        if !fits(problem, &changed.groups[group][micro_batch]) {
            return None;
        }
    }
    changed.groups.iter_mut().for_each(|group| group.retain(|micro_batch| !micro_batch.sequences.is_empty()));
    (changed != *step).then_some(changed)
}

fn fits(problem: &Problem, micro_batch: &MicroBatch) -> bool {
    let cp = problem.layout.cp;
    (0..cp).all(|rank| micro_batch.tokens_on(rank, cp) <= problem.bucket_tokens)
}

struct Draw<'a> {
    problem: &'a Problem,
    /// Group that ends last.
    last: u32,
    random: &'a mut Stream,
}

/// Micro-batches that a change has touched.
type Touched = Vec<(usize, usize)>;

impl Draw<'_> {
    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.random.below(n as u64)).expect("below a length")
    }

    /// The group that ends last, three times of four.
    fn group(&mut self, step: &Step) -> usize {
        if self.below(4) > 0 { self.last as usize } else { self.below(step.groups.len()) }
    }

    /// A whole sequence of a group, if the drawn one is whole.
    fn sequence(&mut self, step: &Step, group: usize) -> Option<At> {
        let n = step.groups[group].len();
        let micro_batch = if n > 0 { self.below(n) } else { return None };
        let sequences = &step.groups[group][micro_batch].sequences;
        let index = if sequences.is_empty() { return None } else { self.below(sequences.len()) };
        let whole = |placement: &Placement| {
            placement.from == 0 && placement.tokens == self.problem.workload.lengths[placement.sequence as usize]
        };
        whole(&sequences[index]).then_some((group, micro_batch, index))
    }

    fn relocate(&mut self, step: &mut Step) -> Option<Touched> {
        let from = self.group(step);
        let (from, source, index) = self.sequence(step, from)?;
        let to = self.below(step.groups.len());
        let target = self.below(step.groups[to].len() + 1);
        if (from, source) == (to, target) || step.groups[to].get(target).is_some_and(|mb| mb.forward_only) {
            return None;
        }
        if target == step.groups[to].len() {
            step.groups[to].push(MicroBatch::default());
        }
        let placement = step.groups[from][source].sequences.remove(index);
        let place = self.place(&step.groups[to][target], placement);
        step.groups[to][target].sequences.push(Placement { place, ..placement });
        Some(vec![(to, target)])
    }

    fn swap(&mut self, step: &mut Step) -> Option<Touched> {
        let (a, b) = (self.group(step), self.below(step.groups.len()));
        let (a, b) = (self.sequence(step, a)?, self.sequence(step, b)?);
        if (a.0, a.1) == (b.0, b.1) {
            return None;
        }
        let at = |step: &Step, (group, micro_batch, index): At| step.groups[group][micro_batch].sequences[index];
        let (first, second) = (at(step, a), at(step, b));
        step.groups[a.0][a.1].sequences[a.2] = Placement { place: first.place, ..second };
        step.groups[b.0][b.1].sequences[b.2] = Placement { place: second.place, ..first };
        Some(vec![(a.0, a.1), (b.0, b.1)])
    }

    fn replace(&mut self, step: &mut Step) -> Option<Touched> {
        let group = self.group(step);
        let (group, micro_batch, index) = self.sequence(step, group)?;
        let placement = step.groups[group][micro_batch].sequences[index];
        let place = self.place(&step.groups[group][micro_batch], placement);
        step.groups[group][micro_batch].sequences[index].place = place;
        Some(vec![(group, micro_batch)])
    }

    /// Puts `n` micro-batches of a group into one and places its sequences anew.
    fn merge(&mut self, step: &mut Step, n: usize) -> Option<Touched> {
        let group = self.group(step);
        let n = n.min(step.groups[group].len());
        let mut chosen: Vec<usize> = (0..step.groups[group].len()).collect();
        self.random.shuffle(&mut chosen);
        chosen.truncate(n);
        chosen.sort_unstable();
        let is_chunk = |micro_batch: &MicroBatch| {
            let length = |placement: &Placement| self.problem.workload.lengths[placement.sequence as usize];
            micro_batch.forward_only || micro_batch.sequences.iter().any(|part| part.tokens != length(part))
        };
        if chosen.is_empty() || chosen.iter().any(|&index| is_chunk(&step.groups[group][index])) {
            return None;
        }
        let mut sequences = Vec::new();
        for &index in &chosen {
            sequences.append(&mut std::mem::take(&mut step.groups[group][index]).sequences);
        }
        step.groups[group][chosen[0]] = self.placed(sequences);
        Some(vec![(group, chosen[0])])
    }

    /// Sequences longest first: whole on the rank with the fewest tokens where that has room, else cut over as few ranks as have.
    fn placed(&self, mut sequences: Vec<Placement>) -> MicroBatch {
        sequences.sort_by(|a, b| b.tokens.cmp(&a.tokens).then(a.sequence.cmp(&b.sequence)));
        let mut micro_batch = MicroBatch::default();
        for placement in sequences {
            let place = self.narrowest(&micro_batch, placement.tokens);
            micro_batch.sequences.push(Placement { place, ..placement });
        }
        micro_batch
    }

    /// The emptiest of the narrowest windows of ranks with room for a sequence. Windows are powers of two side by side, and no rank is
    /// in two different rings.
    fn narrowest(&self, micro_batch: &MicroBatch, tokens: u64) -> Place {
        let (cp, bucket) = (self.problem.layout.cp, self.problem.bucket_tokens);
        let held: Vec<u64> = (0..cp).map(|rank| micro_batch.tokens_on(rank, cp)).collect();
        let rings: Vec<(u32, u32)> = micro_batch.sequences.iter().filter_map(|other| other.place.ring(cp)).collect();
        let is_free = |first: u32, count: u32| {
            rings.iter().all(|&(from, n)| (from, n) == (first, count) || from + n <= first || first + count <= from)
        };
        let widths = std::iter::successors(Some(1), |width| Some(width * 2)).take_while(|&width| width < cp);
        for width in widths {
            let fullest =
                |first: u32| held[first as usize..(first + width) as usize].iter().max().copied().unwrap_or(0);
            let share = tokens.div_ceil(u64::from(width));
            let windows = (0..=cp - width).step_by(width as usize).filter(|&first| width == 1 || is_free(first, width));
            let open = windows.filter(|&first| fullest(first) + share <= bucket);
            match open.min_by_key(|&first| fullest(first)) {
                Some(first) if width == 1 => return Place::Local(first),
                Some(first) => return Place::Ring { first, count: width },
                None => {}
            }
        }
        Place::Sharded
    }

    /// Somewhere else in a micro-batch: whole on the emptiest or any rank, or cut as wide as it was or over all.
    fn place(&mut self, micro_batch: &MicroBatch, placement: Placement) -> Place {
        let cp = self.problem.layout.cp;
        let any = u32::try_from(self.below(cp as usize)).expect("ranks fit u32");
        let emptiest = (0..cp).min_by_key(|&rank| micro_batch.tokens_on(rank, cp)).unwrap_or(0);
        match (placement.place, self.below(4)) {
            (Place::Ring { count, .. }, _) if placement.tokens > self.problem.bucket_tokens => {
                Place::Ring { first: any.min(cp - count), count }
            }
            (Place::Ring { .. }, 0) => Place::Ring { first: any & !1, count: 2.min(cp) },
            (Place::Sharded | Place::Local(_), 0) => Place::Sharded,
            (_, 1) => Place::Local(any),
            _ => Place::Local(emptiest),
        }
    }
}
