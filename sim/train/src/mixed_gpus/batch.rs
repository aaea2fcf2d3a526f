//! Sequences of a step on mixed GPUs: micro-batches take them in their order, so many each.
//!
//! Units: tokens. Micro-batches are counted around: the one behind the last is the first again.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::plan::{MicroBatch, Place, Placement};

/// Sequences of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    lengths: Vec<u64>,
    /// Sequences of a micro-batch.
    of_each: usize,
    is_alike: bool,
}

impl Batch {
    /// Sequences, of which each micro-batch takes so many.
    ///
    /// # Panics
    /// When the last micro-batch is not full, or there is none.
    pub fn new(lengths: Vec<u64>, micro_batch: u32) -> Self {
        let of_each = micro_batch as usize;
        assert!(!lengths.is_empty() && lengths.len().is_multiple_of(of_each), "micro-batches are full");
        let is_alike = lengths.iter().all(|length| *length == lengths[0]);
        Self { lengths, of_each, is_alike }
    }

    /// Tokens of every sequence.
    pub fn lengths(&self) -> &[u64] {
        &self.lengths
    }

    /// Micro-batches of a step, over all replicas.
    pub fn n_micro_batches(&self) -> u32 {
        u32::try_from(self.lengths.len() / self.of_each).expect("micro-batches fit u32")
    }

    /// Whether all micro-batches are alike.
    pub const fn is_alike(&self) -> bool {
        self.is_alike
    }

    /// Tokens of a step.
    pub fn tokens(&self) -> u64 {
        self.lengths.iter().sum()
    }

    /// Which sequences a micro-batch takes.
    fn sequences_of(&self, micro_batch: u32) -> Range<usize> {
        let first = (micro_batch % self.n_micro_batches()) as usize * self.of_each;
        first..first + self.of_each
    }

    fn own(&self, micro_batch: u32) -> &[u64] {
        &self.lengths[self.sequences_of(micro_batch)]
    }

    /// Tokens of a micro-batch.
    pub fn tokens_of(&self, micro_batch: u32) -> u64 {
        self.own(micro_batch).iter().sum()
    }

    /// Pairs of a query and a key of a micro-batch.
    pub fn pairs_of(&self, micro_batch: u32) -> u64 {
        self.own(micro_batch).iter().map(|tokens| tokens * tokens).sum()
    }

    /// Most that so many of some micro-batches have together that follow one another, where each has so much.
    pub fn most_in_a_row(&self, of: Range<u32>, n: u32, each: impl Fn(u32) -> u64) -> u64 {
        let n = n.min(u32::try_from(of.len()).unwrap_or(u32::MAX));
        if self.is_alike {
            return u64::from(n) * each(0);
        }
        let all: Vec<u64> = of.map(each).collect();
        all.windows((n as usize).max(1)).map(|row| row.iter().sum()).max().unwrap_or(0)
    }

    /// Micro-batches as a plan of one pipeline has them: all of them, or one that stands for all.
    pub fn contents(&self) -> Vec<MicroBatch> {
        let n = if self.is_alike { 1 } else { self.n_micro_batches() };
        (0..n).map(|micro_batch| self.content(micro_batch)).collect()
    }

    /// Some micro-batches as a plan has them.
    pub fn contents_of(&self, of: Range<u32>) -> Vec<MicroBatch> {
        of.map(|micro_batch| self.content(micro_batch)).collect()
    }

    fn content(&self, micro_batch: u32) -> MicroBatch {
        // Each is a whole sequence of its own: what is shorter than its sequence would be a part of it, whose keys and values stay.
        let whole = |index: usize| Placement {
            sequence: u32::try_from(index).expect("sequences fit u32"),
            from: 0,
            tokens: self.lengths[index],
            place: Place::Local(0),
        };
        MicroBatch { sequences: self.sequences_of(micro_batch).map(whole).collect(), ..MicroBatch::default() }
    }

    /// Micro-batches that differ, and how often each of them is there.
    pub fn kinds(&self) -> (Self, Vec<u32>) {
        let mut counts: BTreeMap<&[u64], u32> = BTreeMap::new();
        self.lengths.chunks(self.of_each).for_each(|own| *counts.entry(own).or_default() += 1);
        let lengths = counts.keys().flat_map(|own| own.iter().copied()).collect();
        (Self::new(lengths, self.of_each()), counts.into_values().collect())
    }

    /// Sequences of a micro-batch.
    fn of_each(&self) -> u32 {
        u32::try_from(self.of_each).expect("it came as u32")
    }

    /// As many micro-batches of which at most `n` differ: each is the middle one of those that are about as heavy, by pairs of a query and a key.
    #[must_use]
    pub fn abridged(&self, n: u32) -> Self {
        let mut order: Vec<u32> = (0..self.n_micro_batches()).collect();
        order.sort_by_key(|micro_batch| self.pairs_of(*micro_batch));
        let mut lengths = self.lengths.clone();
        for alike in order.chunks(order.len().div_ceil(n as usize).max(1)) {
            let middle = self.own(alike[alike.len() / 2]);
            for &micro_batch in alike {
                lengths[self.sequences_of(micro_batch)].copy_from_slice(middle);
            }
        }
        Self::new(lengths, self.of_each())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_a_row(batch: &Batch, of: Range<u32>, n: u32) -> u64 {
        batch.most_in_a_row(of, n, |micro_batch| batch.tokens_of(micro_batch))
    }

    #[test]
    fn micro_batches_take_sequences_in_order() {
        let batch = Batch::new(vec![1, 2, 30, 4, 50, 6], 2);
        assert_eq!((batch.n_micro_batches(), batch.tokens(), batch.is_alike()), (3, 93, false));
        assert_eq!([0, 1, 2, 3].map(|index| batch.tokens_of(index)), [3, 34, 56, 3]);
        assert_eq!((in_a_row(&batch, 0..3, 2), in_a_row(&batch, 0..1, 2)), (90, 3));
        // Around the end: the third and the first.
        assert_eq!(in_a_row(&batch, 2..4, 2), 59);
        let alike = Batch::new(vec![5; 8], 2);
        assert_eq!((alike.contents().len(), in_a_row(&alike, 0..4, 3)), (1, 30));
    }

    #[test]
    fn kinds_are_counted() {
        let (kinds, counts) = Batch::new(vec![1, 2, 3, 4, 1, 2], 2).kinds();
        assert_eq!((kinds, counts), (Batch::new(vec![1, 2, 3, 4], 2), vec![2, 1]));
    }

    #[test]
    fn an_abridged_batch_has_few_kinds_and_about_as_many_tokens() {
        let lengths: Vec<u64> = (1..=256).map(|n| n * 37 % 1009 + 1).collect();
        let batch = Batch::new(lengths, 1);
        let few = batch.abridged(8);
        let mut kinds = few.lengths().to_vec();
        kinds.sort_unstable();
        kinds.dedup();
        assert!(kinds.len() <= 8 && few.n_micro_batches() == 256, "{kinds:?}");
        let ratio = hw::real(few.tokens()) / hw::real(batch.tokens());
        assert!((ratio - 1.0).abs() < 0.02, "{ratio}");
        assert_eq!(batch.abridged(256), batch);
    }
}
