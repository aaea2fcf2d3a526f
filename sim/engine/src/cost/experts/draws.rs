//! Tokens that draw their experts one by one, all experts alike: what a router gives that is trained until all of them have equal load.
//!
//! Few tokens visit more experts of one GPU than of another by chance. A layer ends with the busiest GPU, and few rows cost what the weights cost that they
//! read. So the GPU is looked at of which most experts are visited. A router may choose among groups of experts first (DeepSeek-V3: four of eight
//! groups). Then the visits of a token lie closer together. Draws come from a stream of their own, so that the same question always has the same
//! answer. Units: tokens, experts, rows.

use super::stream::Stream;

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
    /// Experts of a part that some of the tokens visit, on average, in the part where these are most.
    pub(super) fn visited(self) -> f64 {
        let visited = |part: &[u64]| part.iter().filter(|rows| **rows > 0).count() as u64;
        let draws = self.draws();
        let most = |drawn: &Vec<u64>| self.parts(drawn).map(visited).max().unwrap_or(0);
        hw::real(draws.iter().map(most).sum()) / hw::real(draws.len() as u64)
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
        let (mut groups, mut places) = (Vec::new(), Vec::new());
        for _ in 0..self.tokens {
            stream.different(of_token, all, &mut groups);
            stream.different(self.top_k, of_token * size, &mut places);
            for place in &places {
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
            let visited = batch(tokens, top_k, n_experts, 1).visited();
            let alone = 1.0 - hw::real(top_k) / hw::real(n_experts);
            let expected = hw::real(n_experts) * (1.0 - libm::pow(alone, hw::real(tokens)));
            assert!((visited / expected - 1.0).abs() < 0.03, "{tokens} tokens: {visited} of {expected}");
        }
    }

    /// Two of four experts on two GPUs: of the six pairs two lie on one GPU, so 4/3 are visited on the busiest. They are two where one of two groups is chosen.
    #[test]
    fn the_busiest_part_of_one_token_is_what_pairs_say() {
        let pairs = batch(1, 2, 4, 2).visited();
        assert!((pairs - 4.0 / 3.0).abs() < 0.2, "{pairs}");
        let grouped = Batch { groups: RouterGroups { all: 2, of_token: 1 }, ..batch(1, 2, 4, 2) };
        assert!((grouped.visited() - 2.0).abs() < 1e-12);
    }

    #[test]
    fn many_tokens_visit_all() {
        let visited = [1, 8, 64, 512].map(|tokens| batch(tokens, 8, 256, 8).visited());
        assert!(visited.windows(2).all(|pair| pair[0] < pair[1]), "{visited:?}");
        assert!((visited[3] - 32.0).abs() < 1e-12);
    }
}
