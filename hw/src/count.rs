//! The casts between counts and real numbers, each with its one rounding, how a count is written, and the bytes of a GiB.
//!
//! Every other crate calls these instead of `as`: a count that becomes a real number loses nothing below 2^53, and a real number becomes
//! the nearest count.

/// Bytes of a GiB.
pub const GIB: f64 = 1_073_741_824.0;

/// A count as a real number; exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "exact below 2^53, and rounded to nearest above")]
pub const fn real(count: u64) -> f64 {
    count as f64
}

/// The nearest count of a real number; half goes away from zero.
///
/// # Panics
/// When the number is negative or not finite.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked on the line above; too large saturates"
)]
pub fn whole(number: f64) -> u64 {
    assert!(number.is_finite() && number >= 0.0, "a count is finite and not negative, found {number}");
    number.round() as u64
}

/// A count with a comma before every three digits.
pub fn in_thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut written = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            written.push(',');
        }
        written.push(digit);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_there_and_back() {
        for count in [0, 1, 1 << 40, (1 << 53) - 1] {
            assert_eq!(whole(real(count)), count);
        }
        assert_eq!([whole(0.5), whole(1.49), whole(2.5)], [1, 1, 3]);
    }

    #[test]
    fn counts_have_a_comma_before_every_three_digits() {
        let written = [0, 999, 1000, 41_408, 1_234_567].map(in_thousands);
        assert_eq!(written, ["0", "999", "1,000", "41,408", "1,234,567"]);
    }
}
