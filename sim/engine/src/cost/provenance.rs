//! What share of the time comes from where: seconds by what is done and by the source of its cost.
//!
//! A sum has the weakest source of its parts (`Source`), which says nothing about how much hangs on that part. This does. Units: seconds.

use std::collections::BTreeMap;

use crate::cost::{CostModel, Source};
use crate::task::{Collective, Op};

/// Seconds by what is done and where its time comes from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Provenance {
    seconds: BTreeMap<(&'static str, Source), f64>,
}

/// A part of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// What is done.
    pub what: &'static str,
    /// Where its time comes from.
    pub source: Source,
    /// Share of all time.
    pub ratio: f64,
}

impl Provenance {
    /// Adds so many seconds.
    ///
    /// # Panics
    /// When they are negative or not finite.
    pub fn add(&mut self, what: &'static str, source: Source, seconds: f64) {
        assert!(seconds.is_finite() && seconds >= 0.0, "{what} takes {seconds} s");
        if seconds > 0.0 {
            *self.seconds.entry((what, source)).or_default() += seconds;
        }
    }

    /// Takes off what fused kernels save of seconds that were added before; nothing falls below zero.
    pub fn take(&mut self, what: &'static str, source: Source, seconds: f64) {
        if let Some(all) = self.seconds.get_mut(&(what, source)) {
            *all = (*all - seconds).max(0.0);
        }
    }

    /// Adds an operation, `times` times, part by part.
    pub fn add_op(&mut self, op: &Op, times: f64, cost: &dyn CostModel) {
        if let Op::Sequence(parts) | Op::Slowed { parts, .. } | Op::Launched { parts, .. } = op {
            for (part, n) in parts {
                self.add_op(part, times * f64::from(*n), cost);
            }
            return;
        }
        let estimate = cost.estimate(op);
        self.add(what_of(op), estimate.source, estimate.time.get() * times);
    }

    /// Adds all of another one.
    pub fn merge(&mut self, other: &Self) {
        for ((what, source), seconds) in &other.seconds {
            self.add(what, *source, *seconds);
        }
    }

    /// What is done, where its time comes from, and its seconds.
    pub fn seconds(&self) -> impl Iterator<Item = (&'static str, Source, f64)> + '_ {
        self.seconds.iter().map(|((what, source), seconds)| (*what, *source, *seconds))
    }

    /// Shares of all time, the largest first; equal ones in order of their names.
    pub fn shares(&self) -> Vec<Share> {
        let total: f64 = self.seconds.values().sum();
        let share = |(&(what, source), seconds): (&(&'static str, Source), &f64)| Share {
            what,
            source,
            ratio: seconds / total,
        };
        let mut shares: Vec<Share> = self.seconds.iter().map(share).collect();
        shares.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
        shares
    }
}

/// What an operation does, in words that a user knows.
pub const fn what_of(op: &Op) -> &'static str {
    match op {
        Op::Gemm { .. } => "matrix products",
        Op::GroupedGemm { .. } => "products of experts",
        Op::Attention { .. } => "attention",
        Op::Elementwise { .. } => "norms and activations",
        Op::Embedding { .. } => "embedding",
        Op::Collective { kind: Collective::AllReduce, .. } => "all-reduce",
        Op::Collective { kind: Collective::AllToAll, .. } => "all-to-all",
        Op::Collective { .. } => "messages",
        Op::Host { .. } => "host",
        Op::Copy { .. } | Op::Sequence(_) | Op::Slowed { .. } | Op::Launched { .. } => "copies",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_the_largest_is_first() {
        let mut all = Provenance::default();
        all.add("host", Source::Datasheet, 1.0);
        let mut more = Provenance::default();
        more.add("attention", Source::Measured, 2.0);
        more.add("attention", Source::Datasheet, 1.0);
        more.add("copies", Source::Datasheet, 0.0);
        all.merge(&more);
        let shares = all.shares();
        assert_eq!(shares.len(), 3, "what takes no time is no part");
        assert_eq!((shares[0].what, shares[0].source, shares[0].ratio), ("attention", Source::Measured, 0.5));
        assert!((shares.iter().map(|share| share.ratio).sum::<f64>() - 1.0).abs() < 1e-12);
    }
}
