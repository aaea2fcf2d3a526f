//! Quantities outside the engine: counts are `u64`, measures are finite `f64`.
//!
//! Invariant: a measure is never NaN or infinite; the checked constructor panics on a bug of ours,
//! and input is checked at the border before it gets here. The only mixed operators are
//! "amount / rate = seconds".

use std::iter::Sum;
use std::ops::{Add, Div, Mul, Sub};

use serde::{Deserialize, Serialize};

macro_rules! measure {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(f64);

        impl $name {
            /// Zero of this quantity.
            pub const ZERO: Self = Self(0.0);

            /// Wraps a finite value.
            ///
            /// # Panics
            /// When the value is NaN or infinite, which is a bug: borders check their input first.
            pub fn new(value: f64) -> Self {
                assert!(value.is_finite(), concat!(stringify!($name), " must be finite, found {}"), value);
                Self(value)
            }

            /// The bare number, in this type's unit.
            pub const fn get(self) -> f64 {
                self.0
            }

            /// The larger of two quantities.
            pub fn max(self, other: Self) -> Self {
                if self.0 >= other.0 { self } else { other }
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self::new(self.0 + other.0)
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self::new(self.0 - other.0)
            }
        }

        impl Mul<f64> for $name {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self::new(self.0 * factor)
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }
    };
}

measure!(
    /// Duration in seconds.
    Seconds
);
measure!(
    /// Floating-point operations (a multiply-add counts as two).
    Flops
);
measure!(
    /// Rate of arithmetic, floating-point operations per second.
    FlopsPerSecond
);
measure!(
    /// Rate of data, bytes per second (10^9 B/s is 1 GB/s).
    BytesPerSecond
);
measure!(
    /// Money in United States dollars.
    Usd
);

macro_rules! count {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Zero of this quantity.
            pub const ZERO: Self = Self(0);

            /// The bare number as a float, for cost formulas (exact below 2^53).
            #[expect(clippy::cast_precision_loss, reason = "counts here stay below 2^53")]
            pub const fn as_f64(self) -> f64 {
                self.0 as f64
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }
    };
}

count!(
    /// Amount of memory or traffic in bytes.
    Bytes
);
count!(
    /// Number of tokens.
    Tokens
);

impl Bytes {
    /// Bytes of a count of gibibytes.
    pub fn from_gib(gib: f64) -> Self {
        Self::from_f64(gib * crate::count::GIB)
    }

    /// Rounds a non-negative finite amount to whole bytes.
    ///
    /// # Panics
    /// When the amount is negative or not finite.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked on the line above")]
    pub fn from_f64(bytes: f64) -> Self {
        assert!(bytes.is_finite() && bytes >= 0.0, "bytes must be finite and not negative, found {bytes}");
        Self(bytes.round() as u64)
    }
}

impl Div<FlopsPerSecond> for Flops {
    type Output = Seconds;
    fn div(self, rate: FlopsPerSecond) -> Seconds {
        Seconds::new(self.0 / rate.0)
    }
}

impl BytesPerSecond {
    /// Whether so many gigabytes per second are this many times as much, but for two per cent.
    pub fn is_in_gb_per_s(self, written: f64, times: f64) -> bool {
        (written * 1e9 / (self.0 * times) - 1.0).abs() < 0.02
    }
}

impl Div<BytesPerSecond> for Bytes {
    type Output = Seconds;
    fn div(self, rate: BytesPerSecond) -> Seconds {
        Seconds::new(self.as_f64() / rate.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amount_over_rate_is_seconds() {
        // 312e12 operations on a GPU that does 312e12 per second take one second.
        assert_eq!((Flops::new(312e12) / FlopsPerSecond::new(312e12)).get(), 1.0);
        assert_eq!((Bytes(2_000) / BytesPerSecond::new(1e3)).get(), 2.0);
    }
}
