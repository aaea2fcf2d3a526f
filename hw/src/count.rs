//! The casts between counts and real numbers, each with its one rounding, and the bytes of a GiB.
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
}
