//! Named length distributions: quantile tables, sampled by log-linear interpolation of the inverse CDF.

/// A length distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Name in scenario files.
    pub name: &'static str,
    /// Where its figures come from.
    pub source: &'static str,
    /// (cumulative share, tokens), both increasing, last share 1.
    pub points: &'static [(f64, f64)],
}

/// A distribution by name.
#[must_use]
pub fn named(_name: &str) -> Option<&'static Distribution> {
    todo!()
}

/// Names of all distributions.
#[must_use]
pub fn names() -> Vec<&'static str> {
    todo!()
}

impl Distribution {
    /// Draws `n` lengths; longer ones than `max_tokens` are drawn again.
    #[must_use]
    pub fn sample(&self, _n: usize, _max_tokens: u64, _seed: u64) -> Vec<u64> {
        todo!()
    }
}
