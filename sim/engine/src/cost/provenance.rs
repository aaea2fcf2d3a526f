//! What share of the time comes from where: seconds by what is done and by the source of its cost.
//!
//! A sum has the weakest source of its parts (`Source`), which says nothing about how much hangs on that part. This does. Units: seconds.

use std::collections::{BTreeMap, BTreeSet};

use crate::cost::{CostModel, Estimate, Source};
use crate::task::{Collective, Op};

/// Seconds by what is done and where its time comes from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Provenance {
    seconds: BTreeMap<(&'static str, Source), f64>,
    /// Of these the seconds of sizes beyond the measured ones, by the dimension.
    outside: BTreeMap<&'static str, f64>,
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
    /// No time.
    pub const NONE: Self = Self { seconds: BTreeMap::new(), outside: BTreeMap::new() };

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
        self.add_estimate(what_of(op), &cost.estimate(op), times);
    }

    /// Adds what takes this long, `times` times.
    pub fn add_estimate(&mut self, what: &'static str, estimate: &Estimate, times: f64) {
        self.add(what, estimate.source, estimate.time.get() * times);
        if let Some(dimension) = estimate.dimension {
            *self.outside.entry(dimension).or_default() += estimate.outside.get() * times;
        }
    }

    /// Adds all of another one.
    pub fn merge(&mut self, other: &Self) {
        for ((what, source), seconds) in &other.seconds {
            self.add(what, *source, *seconds);
        }
        for (dimension, seconds) in &other.outside {
            *self.outside.entry(dimension).or_default() += seconds;
        }
    }

    /// What is done, where its time comes from, and its seconds.
    pub fn seconds(&self) -> impl Iterator<Item = (&'static str, Source, f64)> + '_ {
        self.seconds.iter().map(|((what, source), seconds)| (*what, *source, *seconds))
    }

    /// Share of all time that lies beyond the measured sizes, and the dimensions in which it does. No time has no share: not a number.
    pub fn outside_hull(&self) -> (f64, Vec<String>) {
        let total: f64 = self.seconds.values().sum();
        let dimensions = self.outside.iter().filter(|(_, seconds)| **seconds > 0.0);
        let names = dimensions.map(|(dimension, _)| (*dimension).to_owned()).collect();
        (if total > 0.0 { self.outside.values().sum::<f64>() / total } else { f64::NAN }, names)
    }

    /// Share of all time that was measured on this GPU; `None` without time.
    pub fn measured_ratio(&self) -> Option<f64> {
        let total: f64 = self.seconds.values().sum();
        let measured: f64 = self.seconds().filter(|(_, source, _)| *source == Source::Measured).map(|(.., s)| s).sum();
        (total > 0.0).then(|| measured / total)
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

/// What figures of one or several choices rest on.
#[derive(Clone, Debug)]
pub struct Grounds {
    /// The weakest source.
    pub source: Source,
    /// What share of the time comes from where.
    pub provenance: Provenance,
    /// Share of the time that lies beyond the measured sizes, of the choice that has most.
    pub outside_ratio: f64,
    /// Dimensions in which it does.
    pub outside: BTreeSet<String>,
}

impl Default for Grounds {
    /// Those of nothing.
    fn default() -> Self {
        Self {
            source: Source::Measured,
            provenance: Provenance::default(),
            outside_ratio: 0.0,
            outside: BTreeSet::new(),
        }
    }
}

impl Grounds {
    /// Those of one choice.
    pub fn of(source: Source, provenance: Provenance) -> Self {
        let (outside_ratio, outside) = provenance.outside_hull();
        Self { source, provenance, outside_ratio, outside: outside.into_iter().collect() }
    }

    /// Adds those of another choice. No time has no share.
    pub fn join(&mut self, other: &Self) {
        self.source = self.source.max(other.source);
        self.provenance.merge(&other.provenance);
        self.outside_ratio = self.outside_ratio.max(other.outside_ratio);
        self.outside.extend(other.outside.iter().cloned());
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
    use hw::Seconds;

    use super::*;

    #[test]
    fn what_lies_beyond_the_measured_sizes_is_told_with_its_dimension() {
        let mut all = Provenance::default();
        assert!(all.outside_hull().0.is_nan(), "nothing takes no time");
        let beyond = |seconds: f64| Estimate {
            outside: Seconds::new(seconds),
            dimension: Some("m"),
            ..Estimate::exact(Seconds::new(2.0), Source::Measured)
        };
        all.add_estimate("matrix products", &beyond(2.0), 3.0);
        all.add_estimate("matrix products", &Estimate::exact(Seconds::new(2.0), Source::Measured), 1.0);
        assert_eq!(all.outside_hull(), (0.75, vec!["m".to_owned()]));
        all.merge(&all.clone());
        assert_eq!(all.outside_hull(), (0.75, vec!["m".to_owned()]));
    }

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
