//! Tokens that draw their experts one by one, all experts alike: what a router gives that is trained until all of them have equal load.
//!
//! Few tokens visit the experts of some GPU more often than those of others by chance. A layer ends with the busiest GPU, so that is the one which is looked
//! at: the one that most experts of which are visited, as few rows cost what the weights cost that they read. A router may choose among groups of
//! experts first (DeepSeek-V3: four of eight groups). Then the visits of a token lie closer together. Draws come from a stream of their own, so
//! that the same question always has the same answer, and are averaged in sorted order. Units: tokens, experts, rows.

use super::routing::Stream;

/// Tokens of all draws of a question together, so far as the limits of their number allow.
const TOKENS: u64 = 512;
/// Draws of a question.
const DRAWS: (u64, u64) = (6, 64);

/// Groups of experts that a token chooses among before it chooses experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterGroups {
    /// All of them.
    pub all: u64,
    /// As many as a token chooses.
    pub of_token: u64,
}

/// A batch, and the equal parts of neighbouring experts that GPUs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) tokens: u64,
    pub(super) top_k: u64,
    pub(super) n_experts: u64,
    pub(super) n_parts: u64,
    pub(super) groups: RouterGroups,
}

impl RouterGroups {
    /// A router that chooses among all experts.
    pub const NONE: Self = Self { all: 1, of_token: 1 };
}

impl Batch {
    /// Rows of the experts of the busiest part, the most first.
    pub(super) fn busiest(self) -> Vec<u64> {
        let draws = self.draws();
        let n = hw::real(draws.len() as u64);
        let mut sums = vec![0.0; index(self.n_experts / self.n_parts)];
        for drawn in draws {
            let visited = |part: &&[u64]| (part.iter().filter(|rows| **rows > 0).count(), part.iter().sum::<u64>());
            let mut most = self.parts(&drawn).max_by_key(visited).map(<[u64]>::to_vec).unwrap_or_default();
            most.sort_unstable_by(|a, b| b.cmp(a));
            sums.iter_mut().zip(most).for_each(|(sum, rows)| *sum += hw::real(rows));
        }
        sums.into_iter().map(|sum| hw::whole(sum / n)).collect()
    }

    /// Rows of the part that has the most of them, over an even share.
    pub(super) fn over_even(self) -> f64 {
        let draws = self.draws();
        let n = hw::real(draws.len() as u64);
        let most = |drawn: &Vec<u64>| self.parts(drawn).map(|part| part.iter().sum::<u64>()).max().unwrap_or(0);
        let even = hw::real(self.tokens * self.top_k) / hw::real(self.n_parts);
        hw::real(draws.iter().map(most).sum()) / n / even
    }

    fn parts<'r>(&self, rows: &'r [u64]) -> impl Iterator<Item = &'r [u64]> {
        rows.chunks_exact(index(self.n_experts / self.n_parts))
    }

    /// Rows of every expert, draw by draw.
    fn draws(&self) -> Vec<Vec<u64>> {
        let mut stream = Stream::of([self.tokens, self.n_experts, self.top_k]);
        let n = (TOKENS / self.tokens).clamp(DRAWS.0, DRAWS.1);
        (0..n).map(|_| self.drawn(&mut stream)).collect()
    }

    fn drawn(&self, stream: &mut Stream) -> Vec<u64> {
        let mut rows = vec![0; index(self.n_experts)];
        let RouterGroups { all, of_token } = self.groups;
        let size = self.n_experts / all;
        for _ in 0..self.tokens {
            let groups = stream.different(of_token, all);
            for place in stream.different(self.top_k, of_token * size) {
                rows[index(groups[index(place / size)] * size + place % size)] += 1;
            }
        }
        rows
    }
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("experts are few")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(tokens: u64, top_k: u64, n_experts: u64, n_parts: u64) -> Batch {
        Batch { tokens, top_k, n_experts, n_parts, groups: RouterGroups::NONE }
    }

    #[test]
    fn a_token_visits_different_experts_of_the_groups_that_it_chose() {
        let groups = RouterGroups { all: 8, of_token: 4 };
        let batch = Batch { groups, ..batch(1, 8, 256, 1) };
        for rows in batch.draws() {
            assert_eq!(rows.iter().sum::<u64>(), 8);
            assert!(rows.iter().all(|rows| *rows <= 1));
            assert!(rows.chunks_exact(32).filter(|group| group.iter().any(|rows| *rows > 0)).count() <= 4);
        }
    }

    /// An expert is visited by none of `m` tokens with `(1 − k / n)^m`.
    #[test]
    fn experts_that_are_visited_are_as_many_as_the_closed_form_says() {
        for (tokens, top_k, n_experts) in [(4, 8, 256), (32, 8, 256), (16, 4, 128), (8, 6, 160)] {
            let rows = batch(tokens, top_k, n_experts, 1).busiest();
            let visited = hw::real(rows.iter().filter(|rows| **rows > 0).count() as u64);
            let alone = 1.0 - hw::real(top_k) / hw::real(n_experts);
            let expected = hw::real(n_experts) * (1.0 - libm::pow(alone, hw::real(tokens)));
            assert!((visited / expected - 1.0).abs() < 0.03, "{tokens} tokens: {visited} of {expected}");
        }
    }

    /// Two of four experts on two GPUs: of the six pairs two lie on one GPU, so the busiest has 4/3 rows on average, and 2 of even ones where one of two groups
    /// is chosen.
    #[test]
    fn the_busiest_part_of_one_token_is_what_pairs_say() {
        let pairs = batch(1, 2, 4, 2).over_even();
        assert!((pairs - 4.0 / 3.0).abs() < 0.2, "{pairs}");
        let grouped = Batch { groups: RouterGroups { all: 2, of_token: 1 }, ..batch(1, 2, 4, 2) };
        assert!((grouped.over_even() - 2.0).abs() < 1e-12);
        assert_eq!(grouped.busiest(), [1, 1]);
    }

    #[test]
    fn chance_is_less_the_more_tokens_there_are() {
        let over = [1, 8, 64, 512].map(|tokens| batch(tokens, 8, 256, 8).over_even());
        assert!(over.windows(2).all(|pair| pair[0] > pair[1]), "{over:?}");
        assert!(over[3] < 1.1);
    }
}
