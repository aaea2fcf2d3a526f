//! Lengths of answers where their mean and their limit alone are known.
//!
//! Of all distributions on the whole numbers from 1 to the limit with one mean the geometric one that is cut at the limit says least besides (maximum entropy,
//! Jaynes 1957). A length `n` has the weight `exp(−x n / limit)`. `x` is positive where the mean is below the middle. It is negative where most answers come near the
//! limit. A cut exponential distribution that is rounded up is just that. Units: tokens.

use engine::random;

/// Rollouts of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rollouts {
    /// Prompts.
    pub n_prompts: u32,
    /// Answers to each.
    pub n_answers: u32,
    /// Tokens of a prompt.
    pub prompt: u32,
    /// Mean tokens of an answer.
    pub mean: f64,
    /// Most tokens of an answer.
    pub most: u32,
}

impl Rollouts {
    /// Answers of a step.
    pub const fn n(&self) -> u32 {
        self.n_prompts.saturating_mul(self.n_answers)
    }

    /// Tokens of answers with their prompts.
    pub fn tokens(&self, answers: &[u32]) -> f64 {
        let generated: u64 = answers.iter().map(|answer| u64::from(*answer)).sum();
        hw::real(generated + u64::from(self.prompt) * answers.len() as u64)
    }

    /// The same rollouts with the mean and the limit of such answers.
    #[must_use]
    pub fn of_answers(self, answers: &[u32]) -> Self {
        let mean = (self.tokens(answers) / hw::real(answers.len().max(1) as u64)) - f64::from(self.prompt);
        Self { mean, most: answers.iter().copied().max().unwrap_or(1), ..self }
    }

    /// Tokens of every answer, prompt by prompt.
    ///
    /// # Panics
    /// When the mean is not inside of the limit.
    pub fn draw(&self, seed: u64) -> Vec<u32> {
        let limit = f64::from(self.most);
        assert!(self.mean >= 1.0 && self.mean <= limit, "a mean from 1 to the limit");
        let rate = rate(self.mean, limit);
        let mut stream = random::stream(seed, "lengths of answers");
        let tokens = |share: f64| u32::try_from(hw::whole((share * limit).ceil().max(1.0))).expect("within the limit");
        (0..self.n()).map(|_| tokens(quantile(rate, stream.unit())).min(self.most)).collect()
    }
}

/// Largest rate for a token: all answers but one in 10^21 have one token.
const RATE_MAX: f64 = 50.0;

/// Rate of the distribution on `1..=limit` with this mean.
fn rate(mean: f64, limit: f64) -> f64 {
    let (mut low, mut high) = (-RATE_MAX * limit, RATE_MAX * limit);
    // The mean falls as the rate grows.
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if mean_of(middle, limit) > mean { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// Mean where weights fall by `exp(−x / limit)` a token: `1 / (1 − exp(−x / limit)) − limit / (eˣ − 1)`.
fn mean_of(rate: f64, limit: f64) -> f64 {
    if rate.abs() < 1e-4 {
        // The series, where both terms are large.
        return (limit + 1.0) / 2.0 - rate / limit * (limit * limit - 1.0) / 12.0;
    }
    -1.0 / libm::expm1(-rate / limit) - limit / libm::expm1(rate)
}

/// Share of the limit below which a share `below` of answers lies.
fn quantile(rate: f64, below: f64) -> f64 {
    if rate.abs() < 1e-9 {
        return below;
    }
    if rate < 0.0 {
        // Seen from the limit, so that nothing large is divided.
        return 1.0 - quantile(-rate, 1.0 - below);
    }
    -libm::log1p(below * libm::expm1(-rate)) / rate
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(mean: f64, most: u32) -> Vec<u32> {
        Rollouts { n_prompts: 1000, n_answers: 64, prompt: 1, mean, most }.draw(3)
    }

    #[test]
    fn draws_keep_to_the_limit_and_have_the_mean() {
        for mean in [1.0, 2.0, 5.0, 300.0, 1019.0, 2048.0, 3251.0, 4000.0, 4094.0, 4096.0] {
            let answers = drawn(mean, 4096);
            let found = answers.iter().map(|n| f64::from(*n)).sum::<f64>() / hw::real(answers.len() as u64);
            // 64,000 answers vary by no more than a 250th of their distance to either end, in their mean.
            let room = (mean - 1.0).min(4096.0 - mean);
            assert!((found - mean).abs() <= 0.02 * room, "{found} in place of {mean}");
            assert!(answers.iter().all(|n| (1..=4096).contains(n)));
        }
    }

    #[test]
    fn half_of_the_limit_is_even_and_a_small_mean_is_exponential() {
        let even = drawn(2048.0, 4096);
        let below = |of: &[u32], most: u32| {
            hw::real(of.iter().filter(|n| **n <= most).count() as u64) / hw::real(of.len() as u64)
        };
        assert!((below(&even, 1024) - 0.25).abs() < 0.01);
        // 1 − 1/e below the mean.
        assert!((below(&drawn(40.0, 4096), 40) - 0.632).abs() < 0.01);
    }

    #[test]
    fn a_rate_gives_its_mean_back() {
        for (mean, limit) in [(1.5, 3.0), (1.001, 1e7), (2.0, 1e7), (50.5, 100.0), (79.0, 100.0), (99.99, 100.0)] {
            assert!((mean_of(rate(mean, limit), limit) / mean - 1.0).abs() < 1e-9, "{mean} of {limit}");
        }
    }

    #[test]
    fn three_lengths_have_the_shares_that_are_found_by_hand() {
        // Weights 1, q and q² have the mean 1.5 where 3 q² + q = 1.
        let q = (13.0_f64.sqrt() - 1.0) / 6.0;
        let answers = drawn(1.5, 3);
        let share = |n: u32| hw::real(answers.iter().filter(|m| **m == n).count() as u64) / 64_000.0;
        for (n, weight) in [(1, 1.0), (2, q), (3, q * q)] {
            assert!((share(n) - weight / (1.0 + q + q * q)).abs() < 0.006, "{n}: {}", share(n));
        }
    }
}
