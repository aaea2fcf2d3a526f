//! The clock of serving: whole ticks of 1/1024 ns, so that sums of many iterations are exact.
//!
//! A tick is an instant, counted from the start of the simulation, or a duration. Invariants: seconds become ticks only here, and no sum wraps:
//! what lies beyond the clock, which holds 208 days, is `Tick::NEVER`.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub, SubAssign};

use crate::time::{Span, Time};
use crate::units::Seconds;

const PER_NS: u64 = 1024;

/// Instant or duration of the serving clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(u64);

impl Tick {
    /// The start of every simulation, and no time.
    pub const ZERO: Self = Self(0);

    /// The shortest time.
    pub const ONE: Self = Self(1);

    /// A moment that does not come: the clock ends before.
    pub const NEVER: Self = Self(u64::MAX);

    /// Ticks of a second, for rates.
    pub const PER_SECOND: f64 = 1024e9;

    /// Seconds of a tick, for sums of ticks that are real numbers.
    pub const SECONDS: f64 = 1.0 / Self::PER_SECOND;

    /// So many ticks.
    pub const fn new(ticks: u64) -> Self {
        Self(ticks)
    }

    /// Rounds a number of ticks.
    ///
    /// # Panics
    /// When it is negative or not finite.
    #[inline]
    pub fn from_f64(ticks: f64) -> Self {
        Self(crate::whole(ticks))
    }

    /// Rounds a duration to the nearest tick.
    ///
    /// # Panics
    /// When it is negative.
    #[inline]
    pub fn from_seconds(seconds: Seconds) -> Self {
        Self::from_f64(Self::unrounded(seconds))
    }

    /// Ticks of a duration as a real number.
    pub const fn unrounded(seconds: Seconds) -> f64 {
        seconds.get() * 1e9 * 1024.0
    }

    /// Rounds a duration to the nearest nanosecond, as what comes from outside of an engine is rounded: networks, losses, timetables. None is
    /// negative.
    #[inline]
    pub fn from_seconds_in_ns(seconds: Seconds) -> Self {
        Self::from_f64((seconds.get() * 1e9).max(0.0)) * PER_NS
    }

    /// The number of ticks.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number of ticks as a real number, for rates and shares.
    pub const fn as_f64(self) -> f64 {
        crate::real(self.0)
    }

    /// This duration in seconds, to the tick.
    pub const fn to_seconds(self) -> f64 {
        self.as_f64() * Self::SECONDS
    }

    /// Whole nanoseconds.
    pub const fn as_ns(self) -> u64 {
        self.0 / PER_NS
    }

    /// The nanosecond in which this instant lies.
    pub const fn time(self) -> Time {
        Time::from_ns(self.as_ns())
    }

    /// This duration in whole nanoseconds.
    pub const fn span(self) -> Span {
        Span::from_ns(self.as_ns())
    }

    /// The number of ticks with a sign, for lags.
    pub fn signed(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    /// So many ticks later, or earlier where they are negative, but not before the start.
    pub const fn shifted(self, ticks: i64) -> Self {
        Self(self.0.saturating_add_signed(ticks))
    }

    /// The time since another instant; none where that is later.
    pub const fn saturating_sub(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// The time between two instants, whichever is later.
    pub const fn abs_diff(self, other: Self) -> Self {
        Self(self.0.abs_diff(other.0))
    }

    /// How often a duration fits, rounded up.
    pub const fn div_ceil(self, part: Self) -> u64 {
        self.0.div_ceil(part.0)
    }

    /// A share of this duration, exact.
    pub fn share(self, part: u64, whole: u64) -> Self {
        let ticks = u128::from(self.0) * u128::from(part) / u128::from(whole);
        Self(u64::try_from(ticks).unwrap_or(u64::MAX))
    }

    /// This duration of each of so many.
    pub fn of_each(self, n: u32) -> TickSum {
        TickSum(u128::from(self.0) * u128::from(n))
    }
}

impl From<Time> for Tick {
    fn from(time: Time) -> Self {
        Self(time.as_ns()) * PER_NS
    }
}

impl From<Span> for Tick {
    fn from(span: Span) -> Self {
        Self(span.as_ns()) * PER_NS
    }
}

impl Add for Tick {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Tick {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Tick {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        debug_assert!(earlier <= self, "{self:?} is before {earlier:?}");
        self.saturating_sub(earlier)
    }
}

impl SubAssign for Tick {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Mul<u64> for Tick {
    type Output = Self;
    fn mul(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }
}

impl Div<u64> for Tick {
    type Output = Self;
    fn div(self, n: u64) -> Self {
        Self(self.0 / n)
    }
}

impl Sum for Tick {
    fn sum<I: Iterator<Item = Self>>(ticks: I) -> Self {
        ticks.fold(Self::ZERO, Add::add)
    }
}

/// Durations of many replicas or many requests, together: their sum may be longer than the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TickSum(u128);

impl TickSum {
    fn real(ticks: u128) -> f64 {
        crate::real(u64::try_from(ticks).unwrap_or(u64::MAX))
    }

    /// The number of ticks as a real number.
    pub fn as_f64(self) -> f64 {
        Self::real(self.0)
    }

    /// Whole nanoseconds as a real number.
    pub fn as_ns(self) -> f64 {
        Self::real(self.0 / u128::from(PER_NS))
    }

    /// How many there were on average over a duration; exact where the one is a multiple of the other.
    pub fn mean_over(self, duration: Tick) -> f64 {
        let whole = u128::from(duration.0.max(1));
        Self::real(self.0 / whole) + Self::real(self.0 % whole) / Self::real(whole)
    }
}

impl Add for TickSum {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for TickSum {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for TickSum {
    type Output = Self;
    fn sub(self, before: Self) -> Self {
        Self(self.0 - before.0)
    }
}

impl Sum for TickSum {
    fn sum<I: Iterator<Item = Self>>(sums: I) -> Self {
        sums.fold(Self::default(), Add::add)
    }
}

impl Sum<Tick> for TickSum {
    fn sum<I: Iterator<Item = Tick>>(ticks: I) -> Self {
        ticks.map(|tick| tick.of_each(1)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_round_to_the_nearest_tick_and_come_back() {
        let ticks = |seconds: f64| Tick::from_seconds(Seconds::new(seconds)).get();
        // A nanosecond has 1024 ticks; 0.6 of a tick is one, 0.4 is none.
        assert_eq!([1.0, 1e-9, 0.6e-9 / 1024.0, 0.4e-9 / 1024.0].map(ticks), [1_024_000_000_000, 1024, 1, 0]);
        assert_eq!(Tick::from_seconds_in_ns(Seconds::new(1.6e-9)), Tick::new(2048));
        assert_eq!(Tick::from(Time::from_ns(7)).time(), Time::from_ns(7));
        assert_eq!(Tick::new(3 * 1024 - 1).span(), Span::from_ns(2));
        assert_eq!(Tick::new(512_000_000_000).to_seconds(), 0.5);
    }

    #[test]
    fn what_lies_beyond_the_clock_never_comes() {
        let late = Tick::new(u64::MAX - 5);
        assert_eq!(late + Tick::new(5), Tick::NEVER);
        assert_eq!(late + Tick::new(6), Tick::NEVER);
        assert_eq!(late * 2, Tick::NEVER);
        // The clock has 2^64 ticks of 1/1024 ns: 2^54 ns, 208.5 days.
        let days = |days: f64| Tick::from_seconds(Seconds::new(days * 86_400.0));
        assert!(days(208.4) < Tick::NEVER && days(208.6) == Tick::NEVER);
        assert_eq!(Tick::from(Time::from_ns(1 << 54)), Tick::NEVER);
        assert_eq!(Tick::NEVER.share(2, 1), Tick::NEVER);
    }

    #[test]
    fn sums_of_many_are_longer_than_the_clock() {
        let sum: TickSum = std::iter::repeat_n(Tick::NEVER, 3).sum();
        assert_eq!(sum.mean_over(Tick::NEVER), 3.0);
        assert_eq!(Tick::new(10).of_each(3).mean_over(Tick::new(20)), 1.5);
    }
}
