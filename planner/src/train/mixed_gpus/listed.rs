//! Plans of the two families as sketches: groups, tensor degrees and numbers of stages and replicas, each with what it takes by a formula.
//!
//! A sketch uses any choice of the groups and any part of their GPUs: fewer may cost less, fail less often, or wait less for each other. An order of groups has
//! every number of stages and replicas where that is few sketches, and a coarser grain where it is not. The most that has room is in every grain. Units: seconds.

use std::collections::BTreeMap;
use std::rc::Rc;

use train::mixed_gpus::{MixedStage, Pipelines, Slot};

use super::Search;
use super::shares::{in_order, shared};

/// Pipeline stages of a plan, at most.
const STAGES_MAX: u32 = 32;
/// Sketches of an order of groups beyond which its numbers are listed by a coarser grain.
const SKETCHES_MAX: usize = 20_000;

/// Seconds of a micro-batch on so many GPUs of a group.
#[derive(Clone, Debug)]
pub(super) struct Speed {
    pub(super) n_gpus: u32,
    /// Forward and backward of a layer.
    pub(super) layer_s: f64,
    /// What the first stage and what the last one has besides.
    pub(super) ends_s: [f64; 2],
    /// Nanoseconds of all layers, summed over the first micro-batches; empty where all are alike.
    pub(super) sums: Rc<Vec<u64>>,
}

/// So many stages, or replicas, on a group at a tensor degree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) group: usize,
    /// Position in the group's speeds.
    degree: usize,
    n: u32,
}

/// What lies on one group each.
#[derive(Clone, Copy, Debug)]
enum Family {
    Stages,
    Replicas,
}

/// A plan in short: parts are stages of so many replicas, or replicas of so many stages.
#[derive(Clone, Debug)]
pub(super) struct Sketch {
    family: Family,
    parts: Vec<Part>,
    n: u32,
}

/// Sketches by their groups.
pub(super) type ByChoice = BTreeMap<Vec<usize>, Vec<Sketch>>;

/// Which numbers of stages and replicas are listed, the finest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Grain {
    /// Every one.
    Each,
    /// Those of at most three binary digits in front of zeros.
    Digits,
    /// Powers of two.
    Powers,
    /// The most and half of it.
    Halves,
    /// The most alone.
    Most,
}

impl Grain {
    const ALL: [Self; 5] = [Self::Each, Self::Digits, Self::Powers, Self::Halves, Self::Most];

    /// The grain of plans over so many groups, whatever it takes: what has fewer groups has fewer plans.
    fn coarsest(n_groups: usize) -> Self {
        [Self::Each, Self::Digits, Self::Powers].get(n_groups - 1).copied().unwrap_or(Self::Most)
    }

    /// Whether a number is listed where so many have room.
    const fn has(self, n: u32, most: u32) -> bool {
        let digits = 32 - n.leading_zeros();
        n == most
            || match self {
                Self::Each => true,
                Self::Digits => n.trailing_zeros() + 3 >= digits,
                Self::Powers => n.is_power_of_two(),
                Self::Halves => n == most / 2,
                Self::Most => false,
            }
    }

    /// Numbers that are listed where so many have room.
    fn of(self, most: u32) -> impl Iterator<Item = u32> {
        (1..=most).filter(move |n| self.has(*n, most))
    }

    /// What it lists.
    const fn words(self) -> &'static str {
        match self {
            Self::Each => "every number",
            Self::Digits => "1 to 8, then 10, 12, 14, 16, 20 and so on, and the most",
            Self::Powers => "powers of two, and the most",
            Self::Halves => "the most, and half of it",
            Self::Most => "the most alone",
        }
    }
}

impl Search<'_> {
    /// All sketches.
    pub(super) fn sketches(&self) -> ByChoice {
        let mut all = ByChoice::new();
        for order in orders(self.job.groups.len()) {
            let grain = self.grain(&order);
            let mut choice = order.clone();
            choice.sort_unstable();
            // Replicas lie side by side in any order, which matters where each micro-batch has a length of its own.
            let has_replicas = order.len() > 1 && (choice == order || !self.job.batch.is_alike());
            let listed = all.entry(choice).or_default();
            listed.extend(self.by_stage(&order, grain));
            listed.extend(if has_replicas { self.by_replica(&order, grain) } else { Vec::new() });
        }
        all
    }

    /// Which numbers of stages and replicas were left out, by the number of groups of a plan; empty where none were.
    pub(super) fn left_out(&self) -> Option<String> {
        let mut coarsest: BTreeMap<usize, Grain> = BTreeMap::new();
        for order in orders(self.job.groups.len()) {
            let grain = coarsest.entry(order.len()).or_insert(Grain::Each);
            *grain = self.grain(&order).max(*grain);
        }
        let words = coarsest.into_iter().filter(|(_, grain)| *grain > Grain::Each);
        let words: Vec<String> = words.map(|(n, grain)| format!("over {n} groups {}", grain.words())).collect();
        (!words.is_empty()).then(|| format!("numbers of stages and replicas that were listed: {}", words.join("; ")))
    }

    /// The finest grain under which an order has few sketches.
    fn grain(&self, order: &[usize]) -> Grain {
        let coarsest = Grain::coarsest(order.len());
        let is_few = |grain: &Grain| *grain >= coarsest || self.n_sketches(order, *grain) <= SKETCHES_MAX;
        Grain::ALL.into_iter().find(is_few).unwrap_or(coarsest)
    }

    /// Sketches of an order, or some more.
    fn n_sketches(&self, order: &[usize], grain: Grain) -> usize {
        let of_group = |group: usize, n_each: u32, most: u32| -> usize {
            let n_gpus = self.job.groups[group].cluster.n_gpus();
            let room = |speed: &Speed| (n_gpus / (n_each * speed.n_gpus)).min(most);
            self.speeds[group].iter().map(|speed| grain.of(room(speed)).count()).sum()
        };
        let of_all = |n_each: u32, most: u32| -> usize {
            order.iter().map(|&group| of_group(group, n_each, most)).fold(1, usize::saturating_mul)
        };
        let stages_max = self.n_layers.min(STAGES_MAX);
        let by_stage = self.replicas(order, grain).map(|n| of_all(n, stages_max));
        let by_replica = (1..=stages_max).map(|n| of_all(n, self.job.batch.n_micro_batches()));
        by_stage.chain(by_replica).fold(0, usize::saturating_add)
    }

    /// Numbers of replicas that all stages have.
    fn replicas(&self, order: &[usize], grain: Grain) -> impl Iterator<Item = u32> {
        let n_gpus: Vec<u32> = order.iter().map(|group| self.job.groups[*group].cluster.n_gpus()).collect();
        let n_micro_batches = self.job.batch.n_micro_batches();
        let most = n_gpus.iter().copied().min().unwrap_or(0).min(n_micro_batches);
        let comes_out =
            move |n: u32| n_micro_batches.is_multiple_of(n) || n_gpus.iter().any(|all| all.is_multiple_of(n));
        (1..=most).filter(move |n| grain.has(*n, most) || comes_out(*n))
    }

    /// Plans whose stages lie on one group each. Replicas also divide the micro-batches, or the GPUs of a group: these come out even.
    fn by_stage(&self, order: &[usize], grain: Grain) -> Vec<Sketch> {
        let stages_max = self.n_layers.min(STAGES_MAX);
        let of = |n| {
            let all = self.parts(order, grain, (n, stages_max)).into_iter();
            let all = all.filter(move |parts| parts.iter().map(|part| part.n).sum::<u32>() <= stages_max);
            all.map(move |parts| Sketch { family: Family::Stages, parts, n })
        };
        self.replicas(order, grain).flat_map(of).collect()
    }

    /// Plans whose replicas lie on one group each.
    fn by_replica(&self, order: &[usize], grain: Grain) -> Vec<Sketch> {
        let most = self.job.batch.n_micro_batches();
        let of = |n| {
            let all = self.parts(order, grain, (n, most)).into_iter();
            let all =
                all.filter(move |parts| parts.iter().map(|part| u64::from(part.n)).sum::<u64>() <= u64::from(most));
            all.map(move |parts| Sketch { family: Family::Replicas, parts, n })
        };
        (1..=self.n_layers.min(STAGES_MAX)).flat_map(of).collect()
    }

    /// A part on each of some groups, whose stages or replicas take so many tensor groups each; at most so many.
    fn parts(&self, order: &[usize], grain: Grain, (n_each, most): (u32, u32)) -> Vec<Vec<Part>> {
        let mut heads: Vec<Vec<Part>> = vec![Vec::new()];
        for &group in order {
            let n_gpus = self.job.groups[group].cluster.n_gpus();
            let of_degree = |(degree, speed): (usize, &Speed)| {
                let most = (n_gpus / (n_each * speed.n_gpus)).min(most);
                grain.of(most).map(move |n| Part { group, degree, n })
            };
            let choices: Vec<Part> = self.speeds[group].iter().enumerate().flat_map(of_degree).collect();
            let longer = |head: &Vec<Part>| {
                let head = head.clone();
                choices.iter().map(move |part| [head.as_slice(), &[*part]].concat())
            };
            heads = heads.iter().flat_map(longer).collect();
        }
        heads
    }

    fn speed(&self, part: &Part) -> &Speed {
        &self.speeds[part.group][part.degree]
    }

    /// GPUs that a sketch takes of every group.
    pub(super) fn n_gpus_of(&self, sketch: &Sketch) -> Vec<u32> {
        let mut n_gpus = vec![0; self.job.groups.len()];
        sketch.parts.iter().for_each(|part| n_gpus[part.group] += part.n * sketch.n * self.speed(part).n_gpus);
        n_gpus
    }

    /// About how long a step takes, without messages: as if layers and micro-batches were shared in any parts.
    pub(super) fn sketched_s(&self, sketch: &Sketch) -> f64 {
        let (n_layers, n_micro_batches) = (f64::from(self.n_layers), f64::from(self.job.batch.n_micro_batches()));
        let of_parts = || sketch.parts.iter().map(|part| (f64::from(part.n), self.speed(part)));
        let n_each = f64::from(sketch.n);
        match sketch.family {
            Family::Stages => {
                let [first, last] =
                    [sketch.parts.first(), sketch.parts.last()].map(|part| part.map(|part| self.speed(part)));
                let end = |speed: Option<&Speed>, end: usize| speed.map_or(0.0, |of| of.ends_s[end] / of.layer_s);
                let layers_per_s: f64 = of_parts().map(|(n, speed)| n / speed.layer_s).sum();
                let slowest_s = of_parts().map(|(_, speed)| speed.layer_s).fold(0.0, f64::max);
                let pass_s = ((n_layers + end(first, 0) + end(last, 1)) / layers_per_s).max(slowest_s);
                let n_stages: f64 = of_parts().map(|(n, _)| n).sum();
                ((n_micro_batches / n_each).ceil() + n_stages - 1.0) * pass_s
            }
            Family::Replicas => {
                let pass_s = |speed: &Speed| {
                    let all_s = n_layers * speed.layer_s + speed.ends_s.iter().sum::<f64>();
                    (all_s / n_each).max((n_layers / n_each).ceil() * speed.layer_s)
                };
                let per_s: f64 = of_parts().map(|(n, speed)| n / pass_s(speed)).sum();
                let n_replicas: f64 = of_parts().map(|(n, _)| n).sum();
                let one_s = of_parts().map(|(_, speed)| n_each * pass_s(speed)).fold(0.0, f64::max);
                ((n_micro_batches + n_replicas * (n_each - 1.0)) / per_s).max(one_s)
            }
        }
    }

    /// The plan of a sketch, with layers and micro-batches that follow the speed of the cards.
    pub(super) fn built(&self, sketch: &Sketch) -> Option<Pipelines> {
        let repeated = |part: &Part| std::iter::repeat_n((part.group, self.speed(part)), part.n as usize);
        let of_parts: Vec<(usize, &Speed)> = sketch.parts.iter().flat_map(repeated).collect();
        match sketch.family {
            Family::Stages => self.staged(&of_parts, sketch.n as usize),
            Family::Replicas => self.replicated(&of_parts, sketch.n as usize),
        }
    }

    fn staged(&self, of_stages: &[(usize, &Speed)], n_replicas: usize) -> Option<Pipelines> {
        let speeds: Vec<&Speed> = of_stages.iter().map(|(_, speed)| *speed).collect();
        let layers = self.layers(&speeds)?;
        let stage = |((group, speed), layers): (&(usize, &Speed), u32)| {
            let slot = Slot { group: *group, n_gpus: speed.n_gpus, times: None };
            MixedStage { layers, slots: vec![slot; n_replicas], sizes: None }
        };
        let stages = of_stages.iter().zip(layers).map(stage).collect();
        Some(Pipelines { stages, micro_batches: self.micro_batches(&vec![*speeds.first()?; n_replicas])? })
    }

    fn replicated(&self, replicas: &[(usize, &Speed)], n_stages: usize) -> Option<Pipelines> {
        let (_, slowest) = replicas.iter().max_by(|a, b| a.1.layer_s.total_cmp(&b.1.layer_s))?;
        let layers = self.layers(&vec![*slowest; n_stages])?;
        let speeds: Vec<&Speed> = replicas.iter().map(|(_, speed)| *speed).collect();
        let micro_batches = self.micro_batches(&speeds)?;
        let slots: Vec<Slot> =
            replicas.iter().map(|(group, speed)| Slot { group: *group, n_gpus: speed.n_gpus, times: None }).collect();
        let stage = |layers: &u32| MixedStage { layers: *layers, slots: slots.clone(), sizes: None };
        Some(Pipelines { stages: layers.iter().map(stage).collect(), micro_batches })
    }

    /// Layers of stages of these speeds, so that the slowest is as fast as can be.
    fn layers(&self, speeds: &[&Speed]) -> Option<Vec<u32>> {
        let mut begun: Vec<f64> = vec![0.0; speeds.len()];
        begun[0] += speeds[0].ends_s[0];
        *begun.last_mut()? += speeds.last()?.ends_s[1];
        let paces: Vec<f64> = speeds.iter().map(|speed| speed.layer_s).collect();
        shared(self.n_layers, &paces, &begun)
    }

    /// Micro-batches of replicas of these speeds, so that the slowest is as fast as can be.
    fn micro_batches(&self, speeds: &[&Speed]) -> Option<Vec<u32>> {
        if self.job.batch.is_alike() {
            let paces: Vec<f64> = speeds.iter().map(|speed| speed.layer_s).collect();
            return shared(self.job.batch.n_micro_batches(), &paces, &vec![0.0; paces.len()]);
        }
        in_order(&speeds.iter().map(|speed| speed.sums.as_slice()).collect::<Vec<_>>())
    }
}

/// Every order of every choice of at least one of so many groups.
fn orders(n: usize) -> Vec<Vec<usize>> {
    let (mut all, mut longest) = (Vec::new(), vec![Vec::new()]);
    for _ in 0..n {
        let mut next = Vec::new();
        for order in &longest {
            next.extend(
                (0..n).filter(|group| !order.contains(group)).map(|group| [order.as_slice(), &[group]].concat()),
            );
        }
        all.extend(next.iter().cloned());
        longest = next;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_counted() {
        // Of three: three alone, six pairs, six triples.
        assert_eq!(orders(3).len(), 15);
        assert_eq!(orders(1), [vec![0]]);
    }

    #[test]
    fn fewer_of_a_group_are_listed() {
        let listed = |most, grain: Grain| grain.of(most).collect::<Vec<u32>>();
        assert_eq!(listed(9, Grain::Each), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(listed(23, Grain::Digits), [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 23]);
        assert_eq!(listed(12, Grain::Powers), [1, 2, 4, 8, 12]);
        assert_eq!(listed(12, Grain::Halves), [6, 12]);
        assert_eq!(listed(12, Grain::Most), [12]);
        // Fewer groups are never listed by a coarser grain than more of them.
        let coarsest: Vec<Grain> = (1..=5).map(Grain::coarsest).collect();
        assert!(coarsest.is_sorted() && coarsest[4] == Grain::Most);
    }
}
