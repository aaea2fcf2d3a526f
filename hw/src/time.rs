//! Virtual time in whole nanoseconds: `Time` is an instant, `Span` a duration.
//!
//! Invariant: seconds become a span only in `Span::from_seconds`, rounded to the nearest nanosecond
//! and never to zero for work that takes any time at all, so equal scenarios give equal bytes.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};

use serde::{Deserialize, Serialize};

use crate::units::Seconds;

const NS_PER_S: f64 = 1e9;

/// Instant on the virtual clock, nanoseconds since the start of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(u64);

/// Duration on the virtual clock, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Span(u64);

impl Time {
    /// Start of every simulation.
    pub const ZERO: Self = Self(0);

    /// An instant so many nanoseconds after the start.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the start.
    pub const fn as_ns(self) -> u64 {
        self.0
    }
}

impl Span {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// Longest duration that seconds become, about 104 days: up to 2^53 ns a rounded number is exact. What takes longer counts as this
    /// long, and whoever reports it says so.
    pub const LONGEST: Self = Self(9_000_000_000_000_000);

    /// A duration of so many nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds of this duration.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Rounds to the nearest nanosecond; work that takes any time takes at least one, and none takes more than `LONGEST`.
    ///
    /// # Panics
    /// When the duration is negative or not a number.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "negative ones are refused, large ones cut"
    )]
    pub fn from_seconds(seconds: Seconds) -> Self {
        let ns = seconds.get() * NS_PER_S;
        assert!(ns >= 0.0, "a span must not be negative, found {} s", seconds.get());
        if ns == 0.0 { Self(0) } else { Self((ns.round() as u64).max(1)).min(Self::LONGEST) }
    }

    /// This duration in seconds, for metrics and reports.
    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "spans stay below 2^53 ns")]
    pub fn to_seconds(self) -> Seconds {
        Seconds::new(self.0 as f64 / NS_PER_S)
    }
}

impl Add<Span> for Time {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        // Chains of the longest spans end after 584 years, which is reported as any step of more than 104 days.
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub for Time {
    type Output = Span;
    fn sub(self, earlier: Self) -> Span {
        Span(self.0.checked_sub(earlier.0).expect("a later instant minus an earlier one"))
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Mul<u64> for Span {
    type Output = Self;
    fn mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl Sum for Span {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_round_to_the_nearest_nanosecond_but_never_vanish() {
        let ns = |seconds: f64| Span::from_seconds(Seconds::new(seconds)).as_ns();
        assert_eq!(ns(0.0), 0);
        assert_eq!(ns(1e-12), 1);
        assert_eq!(ns(1.4e-9), 1);
        assert_eq!(ns(1.6e-9), 2);
        assert_eq!(ns(1.0), 1_000_000_000);
        assert_eq!(ns(1e12), Span::LONGEST.as_ns());
    }
}
