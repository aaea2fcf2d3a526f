//! Speculative decoding (arXiv:2211.17192): a cheap drafter proposes tokens, one pass of the model verifies them all.
//!
//! Each of `k` drafts is accepted with the same probability, independently, up to the first that is not; the pass itself gives one
//! more token. A verification therefore gives `(1 − α^(k+1)) / (1 − α)` tokens on average (section 3.1 of the paper). Draws depend on
//! seed, request and position alone: they are the same under every policy and on any number of threads.

use hw::Seconds;

use engine::random;

/// Drafts that one verification may hold.
pub const DRAFTS_MAX: u32 = 64;

/// How tokens are drafted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speculation {
    /// Drafts per verification, `k`.
    pub n_drafts: u32,
    /// Probability that a draft is accepted, `α`, 0 to 1: a free parameter of model pair and text.
    pub acceptance: f64,
    /// Time per draft for the whole batch besides the draft model's own, if there is one: look-up or small heads.
    pub per_draft: Seconds,
    /// Seed of the draws.
    pub seed: u64,
}

impl Speculation {
    /// Tokens that a verification gives on average.
    pub fn tokens_per_verification(&self) -> f64 {
        // The sum 1 + α + … + α^k, which has no division to go wrong at α = 1.
        (0..=self.n_drafts).fold((0.0, 1.0), |(sum, power), _| (sum + power, power * self.acceptance)).0
    }
}

/// Draws how many drafts are accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Acceptance {
    seed: u64,
    /// `α^j` in units of 2^-64, from `j = 1` on: at least `j` drafts are accepted when a draw is below.
    thresholds: Vec<u64>,
}

impl Acceptance {
    /// The draws of a speculation.
    pub fn new(speculation: &Speculation) -> Self {
        assert!((0.0..=1.0).contains(&speculation.acceptance), "a probability");
        let mut power = 1.0;
        let thresholds = (0..speculation.n_drafts)
            .map(|_| {
                power *= speculation.acceptance;
                // A probability of one is all of 2^64; the largest draw is let through in `accepted`.
                if power >= 1.0 { u64::MAX } else { hw::whole(power * 18_446_744_073_709_551_616.0) }
            })
            .collect();
        Self { seed: random::stream(speculation.seed, "accepted drafts").next_u64(), thresholds }
    }

    /// Drafts that are accepted when a request has `generated` tokens.
    pub fn accepted(&self, request: u32, generated: u32) -> u32 {
        let draw = random::at(self.seed, u64::from(request) << 32 | u64::from(generated));
        let refused = self.thresholds.iter().position(|&threshold| draw >= threshold && threshold != u64::MAX);
        u32::try_from(refused.unwrap_or(self.thresholds.len())).expect("few drafts")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speculation(n_drafts: u32, acceptance: f64) -> Speculation {
        Speculation { n_drafts, acceptance, per_draft: Seconds::ZERO, seed: 3 }
    }

    #[test]
    fn tokens_per_verification_are_the_papers() {
        for (k, alpha) in [(1, 0.5), (4, 0.8), (7, 0.6)] {
            let closed = (1.0 - libm::pow(alpha, f64::from(k + 1))) / (1.0 - alpha);
            assert!((speculation(k, alpha).tokens_per_verification() - closed).abs() < 1e-12);
        }
        assert_eq!(speculation(5, 1.0).tokens_per_verification(), 6.0);
        assert_eq!(speculation(5, 0.0).tokens_per_verification(), 1.0);
    }

    #[test]
    fn draws_have_that_mean_and_every_request_its_own() {
        for (k, alpha) in [(3, 0.7), (5, 0.9), (4, 0.0), (4, 1.0)] {
            let speculation = speculation(k, alpha);
            let acceptance = Acceptance::new(&speculation);
            let n = 400_u32;
            let sum: u64 = (0..n * n).map(|i| u64::from(1 + acceptance.accepted(i / n, i % n))).sum();
            let mean = hw::real(sum) / f64::from(n * n);
            // The deviation of one draw is below k / 2, so 0.02 is above three deviations of the mean.
            assert!((mean - speculation.tokens_per_verification()).abs() < 0.02, "{mean} at {k}, {alpha}");
        }
    }
}
