//! Speculative decoding (arXiv:2211.17192): a cheap drafter proposes tokens, one pass of the model verifies them all.
//!
//! Each of `k` drafts is accepted with the same probability, independently, up to the first that is not; the pass itself gives one
//! more token. A verification therefore gives `(1 − α^(k+1)) / (1 − α)` tokens on average (section 3.1 of the paper). Draws depend on
//! seed, request and position alone: they are the same under every policy and on any number of threads.

use engine::model::DraftHead;
use hw::Seconds;

use engine::random;

/// Drafts that one verification may hold.
pub const DRAFTS_MAX: u32 = 64;

/// What drafts, to the model that it drafts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftKind {
    /// A model of its own.
    Model,
    /// The model's own layer that predicts tokens further on: it has the model's formats and experts' layout, shares embedding and head, and joins the
    /// model's last state with the next token's embedding (arXiv:2412.19437, section 2.2).
    Own,
    /// A head that was trained for it.
    Head(DraftHead),
}

impl DraftKind {
    /// Whether it reads the model's states, which it lacks for a token until that is verified. So its first pass takes all verified tokens once more
    /// (SGLang's `forward_draft_extend_after_decode`, vLLM's `EagleProposer.propose`).
    pub const fn reads_states(self) -> bool {
        matches!(self, Self::Own | Self::Head(_))
    }
}

/// Tokens that the tree of one verification may hold.
pub const TREE_MAX: u32 = 512;

/// A tree of drafts, in place of one behind the other (EAGLE-2, arXiv:2406.16858): each step keeps its best branches, and the best tokens of all are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Tokens that each draft after the first computes for a sequence (SGLang, `speculative_eagle_topk`).
    pub branches: u32,
    /// Tokens of a sequence that are verified at once, with the one that is sure (SGLang, `speculative_num_draft_tokens`).
    pub verified: u32,
}

impl Tree {
    /// Tokens that so many steps give to choose from, with the one that is sure: each branch has as many successors as there are branches.
    pub const fn drafted(n_drafts: u32, branches: u32) -> u32 {
        let later = branches.saturating_mul(branches).saturating_mul(n_drafts.saturating_sub(1));
        later.saturating_add(1 + branches)
    }
}

/// How tokens are drafted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speculation {
    /// Drafts per verification, `k`, one behind the other: the depth of a tree.
    pub n_drafts: u32,
    /// The tree that they are, where they are one.
    pub tree: Option<Tree>,
    /// Probability that a draft is accepted, `α`, 0 to 1: a free parameter of model pair and text. In a tree it is that of one of the branches.
    pub acceptance: f64,
    /// Time per draft for the whole batch besides the draft model's own, if there is one: look-up or small heads.
    pub per_draft: Seconds,
    /// Seed of the draws.
    pub seed: u64,
}

impl Speculation {
    /// Tokens of a sequence that are verified at once.
    pub fn n_verified(&self) -> u32 {
        self.tree.map_or(1 + self.n_drafts, |tree| tree.verified)
    }

    /// Tokens that a verification gives on average.
    pub fn tokens_per_verification(&self) -> f64 {
        given(self.acceptance, self.n_drafts)
    }
}

/// The sum 1 + α + … + α^k, which has no division to go wrong at α = 1.
fn given(acceptance: f64, n_drafts: u32) -> f64 {
    (0..=n_drafts).fold((0.0, 1.0), |(sum, power), _| (sum + power, power * acceptance)).0
}

/// Probability of a draft with which verifications of `n_drafts` give so many tokens on average: the inverse of
/// [`Speculation::tokens_per_verification`], which engines print as the mean acceptance length.
///
/// # Panics
/// Where that many tokens cannot come of it.
pub fn acceptance_of(length: f64, n_drafts: u32) -> f64 {
    assert!((1.0..=f64::from(1 + n_drafts)).contains(&length), "{length} tokens of {n_drafts} drafts");
    let (mut low, mut high) = (0.0, 1.0);
    // The sum grows with the probability, and 60 halves are finer than a number of 64 bits.
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if given(middle, n_drafts) < length { low = middle } else { high = middle }
    }
    0.5 * (low + high)
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

    /// Tokens that a request of so many has when each of its verifications begins. It holds where nobody is computed again: that gives a token by itself, and the
    /// next verification is another one.
    pub fn verifications(&self, request: u32, output: u32) -> impl Iterator<Item = u32> + '_ {
        let next = move |generated: u32| generated.saturating_add(1 + self.accepted(request, generated));
        std::iter::successors(Some(1), move |generated| Some(next(*generated))).take_while(move |n| *n < output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speculation(n_drafts: u32, acceptance: f64) -> Speculation {
        Speculation { n_drafts, tree: None, acceptance, per_draft: Seconds::ZERO, seed: 3 }
    }

    #[test]
    fn a_length_gives_the_probability_that_gives_it() {
        for (k, alpha) in [(1, 0.5), (4, 0.8), (7, 0.6), (3, 0.0), (3, 1.0)] {
            let length = speculation(k, alpha).tokens_per_verification();
            assert!((acceptance_of(length, k) - alpha).abs() < 1e-12, "{length} tokens of {k} drafts");
        }
    }

    #[test]
    fn a_tree_has_as_many_tokens_as_its_branches_give() {
        // EAGLE-2's tree of `k` steps and `b` branches: `b` first, and `b²` with every later step.
        assert_eq!(Tree::drafted(3, 1), 4, "a chain has its depth and the sure token");
        assert_eq!(Tree::drafted(5, 8), 1 + 8 + 4 * 64);
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
    fn an_answer_takes_verifications_until_it_is_whole() {
        let of = |alpha: f64| Acceptance::new(&speculation(3, alpha)).verifications(7, 10).collect::<Vec<u32>>();
        // One token is there already; four come at once, or one.
        assert_eq!(of(1.0), [1, 5, 9]);
        assert_eq!(of(0.0), (1..10).collect::<Vec<u32>>());
        assert_eq!(Acceptance::new(&speculation(3, 0.5)).verifications(7, 1).count(), 0);
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
