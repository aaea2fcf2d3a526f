//! Tensor groups to pipelines, layers to stages, micro-batches to pipelines.
//!
//! Groups of one degree and rate are a class; only counts per pipeline matter. In a pipeline the slowest groups come first: early stages hold
//! more micro-batches, and slow groups get few layers. For a division, layers are allocated so that the slowest stage o_i is least, then
//! micro-batches so that the slowest pipeline is, max m_i · o_i with its filling (`allocate.rs`, both exact). A stage that gets no layer is left
//! out, and so are the slowest stages of a pipeline where that is sooner done, because each one more has to be filled. Divisions: a first one by
//! balanced speed, moves and swaps of single groups while they gain, then every division up to the order of pipelines, cut off where
//! M / (Σ 1/o_i + rest of the speed / L) is no better than the best, until a budget of nodes ends.

use std::collections::BTreeMap;

use super::allocate::{Item, allocate, largest};
use super::costs::{At, Costs};

/// Groups of one degree and rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Class {
    pub(super) degree: u32,
    pub(super) rate: f64,
    pub(super) count: u32,
}

impl Class {
    fn layer_s(&self, costs: &Costs) -> f64 {
        costs.layer_s(self.degree, self.rate)
    }
}

/// How many groups of every class a pipeline has.
pub(super) type Counts = Vec<u32>;

/// A pipeline with its layers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layers {
    /// Class and layers of every stage along the path.
    pub(super) stages: Vec<(usize, u64)>,
    /// Slowest stage, seconds per micro-batch.
    pub(super) slowest_s: f64,
    /// All stages, seconds.
    pub(super) all_s: f64,
    /// Parameters of the fullest rank.
    pub(super) widest: f64,
    /// Stages whose memory is full.
    pub(super) n_full: usize,
}

/// A division with everything that follows from it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Divided {
    pub(super) pipelines: Vec<Layers>,
    pub(super) micro_batches: Vec<u64>,
    /// Slowest pipeline, m · o, and its filling and what follows where that counts, seconds.
    pub(super) objective_s: f64,
    /// Slowest pipeline with fill and drain, seconds; breaks ties.
    pub(super) filled_s: f64,
}

/// The best division, and what the search knows besides.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) best: Divided,
    /// Objective of the best other division, seconds.
    pub(super) runner_up_s: Option<f64>,
    /// Whether every division was looked at or cut off.
    pub(super) is_exhaustive: bool,
}

/// A search over divisions.
pub(super) struct Divider<'a> {
    pub(super) classes: &'a [Class],
    pub(super) costs: &'a Costs,
    pub(super) n_pipelines: usize,
    pub(super) n_micro_batches: u64,
    /// Divisions, begun or whole, that are looked at at most: by moves and swaps from each first one, and then one by one.
    pub(super) budget: usize,
    known: BTreeMap<Counts, Option<Layers>>,
    best: Option<Divided>,
    runner_up_s: Option<f64>,
}

/// Rounding.
const SAME: f64 = 1e-9;

impl<'a> Divider<'a> {
    pub(super) fn new(
        classes: &'a [Class],
        costs: &'a Costs,
        n_pipelines: usize,
        n_micro_batches: u64,
        budget: usize,
    ) -> Self {
        let (known, best, runner_up_s) = (BTreeMap::new(), None, None);
        Self { classes, costs, n_pipelines, n_micro_batches, budget, known, best, runner_up_s }
    }

    /// Objective of the better first division, seconds; infinite where neither has memory for all layers.
    pub(super) fn first_s(&mut self) -> f64 {
        let firsts = [self.balanced(), self.gathered()];
        firsts.iter().filter_map(|counts| self.judge(counts)).map(|of| of.objective_s).fold(f64::INFINITY, f64::min)
    }

    /// Searches; `None` where no division has memory for all layers.
    pub(super) fn search(mut self) -> Option<Found> {
        for first in [self.balanced(), self.gathered()] {
            self.improve(first);
        }
        let rest: Counts = self.classes.iter().map(|class| class.count).collect();
        let mut begun = Vec::with_capacity(self.n_pipelines);
        let is_exhaustive = self.enumerate(&rest, &mut begun);
        let runner_up_s = self.runner_up_s;
        self.best.map(|best| Found { best, runner_up_s, is_exhaustive })
    }

    /// Groups one by one, fastest first, to the pipeline with the least speed so far.
    fn balanced(&self) -> Vec<Counts> {
        let mut order: Vec<usize> = (0..self.classes.len()).collect();
        order.sort_by(|&a, &b| self.classes[a].layer_s(self.costs).total_cmp(&self.classes[b].layer_s(self.costs)));
        let mut counts = vec![vec![0; self.classes.len()]; self.n_pipelines];
        let mut speeds = vec![0.0; self.n_pipelines];
        for class in order {
            for _ in 0..self.classes[class].count {
                let slowest = (0..self.n_pipelines).min_by(|&a, &b| f64::total_cmp(&speeds[a], &speeds[b]));
                let at = slowest.expect("at least one pipeline");
                counts[at][class] += 1;
                speeds[at] += 1.0 / self.classes[class].layer_s(self.costs);
            }
        }
        counts
    }

    /// The slowest groups together, pipelines filled up to an even number of groups.
    fn gathered(&self) -> Vec<Counts> {
        let mut order: Vec<usize> = (0..self.classes.len()).collect();
        order.sort_by(|&a, &b| self.classes[b].layer_s(self.costs).total_cmp(&self.classes[a].layer_s(self.costs)));
        let all: Vec<usize> = order
            .into_iter()
            .flat_map(|class| std::iter::repeat_n(class, self.classes[class].count as usize))
            .collect();
        let mut counts = vec![vec![0; self.classes.len()]; self.n_pipelines];
        let (each, more) = (all.len() / self.n_pipelines, all.len() % self.n_pipelines);
        let mut from = 0;
        for (at, counts) in counts.iter_mut().enumerate() {
            let upto = from + each + usize::from(at < more);
            all[from..upto].iter().for_each(|&class| counts[class] += 1);
            from = upto;
        }
        counts
    }

    /// Moves and swaps single groups while the division gets better.
    fn improve(&mut self, mut counts: Vec<Counts>) {
        let mut value = self.judge(&counts).map(|divided| (divided.objective_s, divided.filled_s));
        let mut left = self.budget;
        while left > 0 {
            let found = self.neighbours(&counts).into_iter().take(left).find_map(|next| {
                left -= 1;
                let divided = self.judge(&next)?;
                let new = (divided.objective_s, divided.filled_s);
                value.is_none_or(|old| is_better(new, old)).then_some((next, new))
            });
            let Some((next, new)) = found else { break };
            (counts, value) = (next, Some(new));
        }
    }

    /// Divisions that differ by one group moved, or two groups of different class swapped.
    fn neighbours(&self, counts: &[Counts]) -> Vec<Vec<Counts>> {
        let n_classes = self.classes.len();
        let mut all = Vec::new();
        for (from, to) in (0..counts.len()).flat_map(|a| (0..counts.len()).map(move |b| (a, b))).filter(|(a, b)| a != b)
        {
            for given in (0..n_classes).filter(|&class| counts[from][class] > 0) {
                let mut moved = counts.to_vec();
                moved[from][given] -= 1;
                moved[to][given] += 1;
                for back in (given + 1..n_classes).filter(|&class| counts[to][class] > 0) {
                    let mut swapped = moved.clone();
                    swapped[to][back] -= 1;
                    swapped[from][back] += 1;
                    all.push(swapped);
                }
                all.push(moved);
            }
        }
        all
    }

    /// Every division of `rest` over the pipelines that are left, none greater than the one before it; whether none was skipped.
    fn enumerate(&mut self, rest: &Counts, begun: &mut Vec<Counts>) -> bool {
        if begun.len() + 1 == self.n_pipelines {
            if begun.last().is_none_or(|before| rest <= before) {
                begun.push(rest.clone());
                self.judge(&begun.clone());
                begun.pop();
            }
            return true;
        }
        let mut next = rest.clone();
        let mut is_whole = true;
        loop {
            if self.budget == 0 {
                return false;
            }
            self.budget -= 1;
            if begun.last().is_none_or(|before| next <= *before) && self.layers(&next).is_some() {
                let left: Counts = rest.iter().zip(&next).map(|(all, taken)| all - taken).collect();
                begun.push(next.clone());
                if self.may_gain(begun, &left) {
                    is_whole &= self.enumerate(&left, begun);
                }
                begun.pop();
            }
            if !step_down(&mut next, rest) {
                return is_whole;
            }
        }
    }

    /// Whether pipelines that are begun and the speed that is left could beat the best division.
    fn may_gain(&mut self, begun: &[Counts], left: &Counts) -> bool {
        let Some(best_s) = self.best.as_ref().map(|best| best.objective_s) else { return true };
        let rates: f64 =
            begun.iter().filter_map(|counts| self.layers(counts)).map(|layers| 1.0 / layers.slowest_s).sum();
        let speed: f64 =
            (self.classes.iter().zip(left)).map(|(class, &n)| f64::from(n) / class.layer_s(self.costs)).sum();
        let least = hw::real(self.n_micro_batches) / (rates + speed / hw::real(self.costs.n_layers))
            + self.costs.least_gather_s();
        least < best_s * (1.0 - SAME)
    }

    /// A division with its layers and micro-batches; the best is kept.
    fn judge(&mut self, counts: &[Counts]) -> Option<Divided> {
        let pipelines = counts.iter().map(|counts| self.layers(counts)).collect::<Option<Vec<Layers>>>()?;
        // A pipeline should be filled (the paper's m >= stages), as far as there are micro-batches.
        let even = self.n_micro_batches / (self.n_pipelines as u64).max(1);
        let item = |layers: &Layers| Item {
            weight: layers.slowest_s,
            fixed: self.costs.fill_s(layers.slowest_s, layers.all_s),
            least: (layers.stages.len() as u64).min(even),
            cap: self.n_micro_batches,
        };
        let items: Vec<Item> = pipelines.iter().map(item).collect();
        let micro_batches = allocate(&items, self.n_micro_batches)?;
        let filled = |(layers, &n): (&Layers, &u64)| layers.all_s + layers.slowest_s * hw::real(n.saturating_sub(1));
        let divided = Divided {
            objective_s: largest(&items, &micro_batches) + self.exchange_s(&pipelines, &micro_batches),
            filled_s: pipelines.iter().zip(&micro_batches).map(filled).fold(0.0, f64::max),
            pipelines,
            micro_batches,
        };
        self.keep(&divided);
        Some(divided)
    }

    /// What follows the passes of pipelines; one without a micro-batch has no part in it.
    fn exchange_s(&self, pipelines: &[Layers], micro_batches: &[u64]) -> f64 {
        let most = |of: &dyn Fn(&Layers) -> f64| {
            let used = pipelines.iter().zip(micro_batches).filter(|(_, n)| **n > 0);
            used.map(|(layers, _)| of(layers)).fold(0.0, f64::max)
        };
        self.costs.exchange_s(false, most(&|layers| layers.widest), most(&|layers| layers.slowest_s))
    }

    fn keep(&mut self, divided: &Divided) {
        let value = |of: &Divided| (of.objective_s, of.filled_s);
        let other = match &self.best {
            Some(best) if !is_better(value(divided), value(best)) => divided.objective_s,
            Some(best) => best.objective_s,
            None => f64::INFINITY,
        };
        let is_known =
            self.best.as_ref().is_some_and(|best| (value(best).1 - divided.filled_s).abs() < SAME * divided.filled_s);
        if !is_known && other.is_finite() {
            self.runner_up_s = Some(self.runner_up_s.map_or(other, |known| known.min(other)));
        }
        if self.best.as_ref().is_none_or(|best| is_better(value(divided), value(best))) {
            self.best = Some(divided.clone());
        }
    }

    /// Layers of a pipeline, without its slowest stages as long as it is done sooner that way with an even share of the micro-batches.
    fn fewer(&self, mut stages: Vec<usize>) -> Option<Layers> {
        let micro_batches = hw::real(self.n_micro_batches) / hw::real(self.n_pipelines as u64);
        let seconds = |of: &Layers| of.slowest_s * micro_batches + self.costs.fill_s(of.slowest_s, of.all_s);
        let mut best = lay(self.classes, self.costs, stages.clone())?;
        while stages.len() > 1 {
            stages.remove(0);
            match lay(self.classes, self.costs, stages.clone()) {
                Some(found) if seconds(&found) < seconds(&best) => best = found,
                _ => break,
            }
        }
        Some(best)
    }

    /// Layers of a pipeline; `None` where its memory does not hold them all.
    fn layers(&mut self, counts: &Counts) -> Option<Layers> {
        if let Some(known) = self.known.get(counts) {
            return known.clone();
        }
        let mut order: Vec<usize> = (0..self.classes.len()).collect();
        // Slowest first; of equally slow ones the smaller.
        let key = |class: usize| self.classes[class].layer_s(self.costs);
        order.sort_by(|&a, &b| key(b).total_cmp(&key(a)).then(self.classes[a].degree.cmp(&self.classes[b].degree)));
        let stages: Vec<usize> =
            order.into_iter().flat_map(|class| std::iter::repeat_n(class, counts[class] as usize)).collect();
        let found = self.fewer(stages);
        self.known.insert(counts.clone(), found.clone());
        found
    }
}

/// Layers of the stages of a pipeline, slowest first: the slowest stage is least. Stages without a layer are left out.
pub(super) fn lay(classes: &[Class], costs: &Costs, mut stages: Vec<usize>) -> Option<Layers> {
    loop {
        let n_stages = stages.len();
        let item = |(index, &class): (usize, &usize)| {
            let (of, at) = (&classes[class], At { index, n_stages });
            let fixed = costs.end_s(of.degree, of.rate, at);
            Item { weight: of.layer_s(costs), fixed, least: 0, cap: costs.cap(of.degree, at) }
        };
        let items: Vec<Item> = stages.iter().enumerate().map(item).collect();
        let layers = allocate(&items, costs.n_layers)?;
        if layers.contains(&0) {
            let kept = stages.iter().zip(&layers).filter(|(_, layers)| **layers > 0).map(|(&class, _)| class).collect();
            stages = kept;
            continue;
        }
        let widest = |(index, (&class, &layers)): (usize, (&usize, &u64))| {
            costs.parameters(classes[class].degree, layers, At { index, n_stages })
        };
        return Some(Layers {
            widest: stages.iter().zip(&layers).enumerate().map(widest).fold(0.0, f64::max),
            slowest_s: largest(&items, &layers),
            all_s: items.iter().zip(&layers).map(|(item, &layers)| item.value(layers)).sum(),
            n_full: items.iter().zip(&layers).filter(|(item, layers)| **layers == item.cap).count(),
            stages: stages.into_iter().zip(layers).collect(),
        });
    }
}

fn is_better(new: (f64, f64), old: (f64, f64)) -> bool {
    new.0 < old.0 * (1.0 - SAME) || (new.0 <= old.0 * (1.0 + SAME) && new.1 < old.1 * (1.0 - SAME))
}

/// The next smaller vector below `most` in lexicographic order; whether there is one.
fn step_down(counts: &mut Counts, most: &Counts) -> bool {
    let Some(at) = counts.iter().rposition(|count| *count > 0) else { return false };
    counts[at] -= 1;
    counts[at + 1..].copy_from_slice(&most[at + 1..]);
    true
}
