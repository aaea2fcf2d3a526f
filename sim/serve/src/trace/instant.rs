//! Moments of traces as exact decimals: nanoseconds on the trace's own clock, however far from its zero.
//!
//! A float of seconds has no nanoseconds left at 10^9 s, where clocks of today stand. So digits are read as digits, and only differences
//! become times.

/// Nanoseconds of a second.
pub(super) const NS_PER_S: i128 = 1_000_000_000;
/// Digits before the point that a clock may have.
const WHOLE_DIGITS_MAX: usize = 20;

/// What a trace counts its moments in.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Seconds,
    Milliseconds,
}

impl Unit {
    /// Digits behind the point that are whole nanoseconds.
    const fn digits(self) -> usize {
        match self {
            Self::Seconds => 9,
            Self::Milliseconds => 6,
        }
    }
}

/// Nanoseconds of a number from 0 on.
pub(super) fn of_text(text: &str, unit: Unit) -> Option<i128> {
    decimal(text, unit.digits()).or_else(|| of_float(text.parse().ok()?, unit))
}

/// Nanoseconds of a float from 0 on. Its shortest decimal is what was written, where that has at most 15 digits.
pub(super) fn of_float(value: f64, unit: Unit) -> Option<i128> {
    decimal(&value.to_string(), unit.digits())
}

/// Nanoseconds as seconds without idle zeros, for messages.
pub(super) fn seconds(ns: i128) -> String {
    let text = format!("{}.{:09}", ns / NS_PER_S, ns % NS_PER_S);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A decimal without sign and exponent, in units of its last kept digit; the next digit rounds.
fn decimal(text: &str, kept: usize) -> Option<i128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = !whole.is_empty() && [whole, fraction].concat().bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || whole.len() > WHOLE_DIGITS_MAX {
        return None;
    }
    let digits = whole.bytes().chain(fraction.bytes().chain(std::iter::repeat(b'0')).take(kept));
    let value = digits.fold(0, |value, byte| value * 10 + i128::from(byte - b'0'));
    let rounds_up = fraction.as_bytes().get(kept).is_some_and(|byte| *byte >= b'5');
    Some(value + i128::from(rounds_up))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_far_behind_the_point_stay() {
        for (text, ns) in [
            ("0", 0),
            ("4.25", 4_250_000_000),
            ("1000000000.123456789", 1_000_000_000_123_456_789),
            ("0.0000000015", 2),
            ("1e3", 1_000_000_000_000),
            ("2.5E-1", 250_000_000),
        ] {
            assert_eq!(of_text(text, Unit::Seconds), Some(ns), "{text}");
        }
        assert_eq!([0, 1_500_000_000, 1].map(seconds), ["0", "1.5", "0.000000001"]);
        assert_eq!(of_text("1700000000123.25", Unit::Milliseconds), Some(1_700_000_000_123_250_000));
        assert_eq!(of_float(1_700_000_000.123_456, Unit::Seconds), Some(1_700_000_000_123_456_000));
    }

    #[test]
    fn what_is_no_moment_is_none() {
        for text in ["", ".", "-1", "nan", "inf", "1e300", "12:30", "1.2.3"] {
            assert_eq!(of_text(text, Unit::Seconds), None, "{text}");
        }
    }
}
