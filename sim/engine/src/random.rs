//! Named random streams: one seed, one stream per consumer, so that a new consumer never shifts another's draws.
//!
//! The generator is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), kept here so that a dependency update changes nothing.

/// A deterministic stream of numbers.
#[derive(Clone, Debug)]
pub struct Stream {
    state: u64,
}

/// The stream of that name under a seed; the name is hashed with FNV-1a.
pub fn stream(seed: u64, name: &str) -> Stream {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mut stream = Stream { state: seed ^ hash };
    stream.next_u64();
    stream
}

/// `base^exponent` by the pinned library, so that what is drawn with it is the same on every platform.
pub fn power(base: f64, exponent: f64) -> f64 {
    libm::pow(base, exponent)
}

/// Draw number `index` of the stream with this state: for draws that must not depend on the order in which they are made.
pub const fn at(state: u64, index: u64) -> u64 {
    let mut stream = Stream { state: state.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)) };
    stream.next_u64()
}

impl Stream {
    /// The stream number `index` below this one, for draws of many owners in any order; this one does not move.
    pub const fn branch(&self, index: u64) -> Self {
        Self { state: at(self.state, index) }
    }

    /// 64 uniform bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n` without modulo bias beyond 2^-64 · n.
    ///
    /// # Panics
    /// When `n` is zero.
    pub const fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "a range to draw from is not empty");
        ((self.next_u64() as u128 * n as u128) >> 64) as u64
    }

    /// Uniform in `[0, 1)` with 53 bits.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a float exactly")]
    pub const fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// An exponential draw of mean 1.
    pub fn exponential(&mut self) -> f64 {
        // 1 − u lies in (0, 1], so the logarithm is finite.
        -libm::log(1.0 - self.unit())
    }

    /// A standard normal draw (Box-Muller; one of the pair is enough here).
    pub fn normal(&mut self) -> f64 {
        let (radius, turn) = (1.0 - self.unit(), self.unit());
        libm::sqrt(-2.0 * libm::log(radius)) * libm::cos(2.0 * std::f64::consts::PI * turn)
    }

    /// Fisher-Yates shuffle in place.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = usize::try_from(self.below(last as u64 + 1)).expect("an index below the length");
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_by_index_is_the_streams() {
        let mut stream = Stream { state: 99 };
        let drawn: Vec<u64> = (0..5).map(|_| stream.next_u64()).collect();
        assert_eq!(drawn, (0..5).map(|index| at(99, index)).collect::<Vec<_>>());
    }

    #[test]
    fn streams_of_different_names_differ_and_repeat() {
        assert_eq!(stream(7, "a").next_u64(), stream(7, "a").next_u64());
        assert_ne!(stream(7, "a").next_u64(), stream(7, "b").next_u64());
        assert_ne!(stream(7, "a").next_u64(), stream(8, "a").next_u64());
    }
}
