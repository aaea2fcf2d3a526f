//! A grid from coarse to fine around the front: the ends and the middle of every axis first, then neighbours of the best at half the distance.

use std::collections::BTreeSet;

use crate::front::{Candidate, front};
use crate::given::Objective;

/// Where a refinement stands.
#[derive(Clone, Debug)]
pub struct Refinement {
    sizes: Vec<usize>,
    step: usize,
    asked: BTreeSet<Vec<usize>>,
}

impl Refinement {
    /// The beginning on axes of so many values.
    pub fn new(sizes: Vec<usize>) -> Self {
        let longest = sizes.iter().copied().max().unwrap_or(1).saturating_sub(1);
        // The largest power of two that has a middle on the longest axis.
        let step = longest.div_ceil(2).next_power_of_two().max(1);
        Self { sizes, step, asked: BTreeSet::new() }
    }

    /// Positions of the first round.
    pub fn first(&mut self) -> Vec<Vec<usize>> {
        let mut all = vec![Vec::new()];
        for size in self.sizes.clone() {
            let mut of_axis: Vec<usize> = (0..size).step_by(self.step).collect();
            of_axis.push(size - 1);
            of_axis.dedup();
            let longer = |position: &Vec<usize>| {
                of_axis.iter().map(|index| [position.as_slice(), &[*index]].concat()).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(longer).collect();
        }
        self.asked.extend(all.iter().cloned());
        all
    }

    /// Positions of the next round around those; none where nothing is left to ask.
    pub fn next(&mut self, best: &[Vec<usize>]) -> Vec<Vec<usize>> {
        loop {
            let near: BTreeSet<Vec<usize>> = best.iter().flat_map(|position| self.around(position)).collect();
            let new: Vec<Vec<usize>> = near.difference(&self.asked).cloned().collect();
            if !new.is_empty() {
                self.asked.extend(new.iter().cloned());
                return new;
            }
            if self.step == 1 {
                return new;
            }
            self.step /= 2;
        }
    }

    /// Whether neighbours lie beside each other on the grid.
    pub const fn is_finest(&self) -> bool {
        self.step == 1
    }

    fn around(&self, position: &[usize]) -> Vec<Vec<usize>> {
        let mut found = Vec::new();
        for (axis, size) in self.sizes.iter().enumerate() {
            for index in [position[axis].saturating_sub(self.step), (position[axis] + self.step).min(size - 1)] {
                let mut neighbour = position.to_vec();
                neighbour[axis] = index;
                found.push(neighbour);
            }
        }
        found
    }
}

/// By which share the front of all candidates is ahead of the front of the first `n_before`: how far the earlier front would have to
/// move to beat every candidate of the later one (the multiplicative epsilon indicator of Zitzler and others, 2003).
pub fn gain(all: &[Candidate], n_before: usize, objectives: &[Objective]) -> f64 {
    let earlier = front(&all[..n_before], objectives);
    let behind = |one: &Candidate, other: &Candidate| {
        let ratio = |((one, other), objective): ((&f64, &f64), &Objective)| {
            if objective.is_most { one / other } else { other / one }
        };
        one.figures.iter().zip(&other.figures).zip(objectives).map(ratio).fold(1.0, f64::max)
    };
    let least = |one: &Candidate| earlier.iter().map(|index| behind(one, &all[*index])).fold(f64::INFINITY, f64::min);
    front(all, objectives).into_iter().map(|index| least(&all[index]) - 1.0).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refines on a function of a grid and counts how often it was asked.
    fn refined(sizes: [usize; 2], cost: impl Fn(&[usize]) -> f64) -> (Vec<usize>, usize) {
        let mut refinement = Refinement::new(sizes.to_vec());
        let mut asked = refinement.first();
        let mut new = asked.clone();
        while !new.is_empty() {
            let best = asked.iter().min_by(|one, other| cost(one).total_cmp(&cost(other))).expect("some").clone();
            new = refinement.next(&[best]);
            asked.extend(new.iter().cloned());
        }
        let best = asked.iter().min_by(|one, other| cost(one).total_cmp(&cost(other))).expect("some").clone();
        (best, asked.len())
    }

    #[test]
    fn a_bowl_is_found_with_few_of_its_points() {
        for bottom in [[0, 0], [17, 40], [63, 5], [31, 32]] {
            let square = |index: usize, middle: usize| (index as f64 - middle as f64).powi(2);
            let (best, n) = refined([64, 64], |at| square(at[0], bottom[0]) + square(at[1], bottom[1]));
            assert_eq!(best, bottom);
            assert!(n < 200, "{n} of 4096 points");
        }
    }

    #[test]
    fn a_gain_is_how_far_the_earlier_front_would_have_to_move() {
        let objectives = [Objective { metric: "cost".to_owned(), is_most: false }];
        let candidate = |cost: f64| Candidate { point: Default::default(), policy: String::new(), figures: vec![cost] };
        let all = [candidate(12.0), candidate(10.0), candidate(11.0)];
        assert!((gain(&all, 1, &objectives) - 0.2).abs() < 1e-12, "12 over 10");
        assert_eq!(gain(&all, 2, &objectives), 0.0);
    }
}
