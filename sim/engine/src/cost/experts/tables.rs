//! Rows of experts in measured tables, token by token.
//!
//! The makers of the tables decide which experts every token shall visit, and hand the kernel logits that are one for these and alike for all others
//! (ai-dynamo/aiconfigurator @ 095f58a51c4c, `balanced_logits` and `power_law_logits_v3` of collector/helper.py). What the kernel then computes is up to the
//! router in front of it. One that chooses among groups of experts first drops what lies outside of the groups that it takes. It fills up with the first
//! experts of these groups, for all others are alike, and takes the one with the lower number among equals. So half of DeepSeek's experts are never
//! visited where the distribution says that all are.

use super::draws::RouterGroups;
use super::routing::{Batch, DRAWS, Routing, index};

impl Routing {
    /// Rows of the first of `n_parts` equal parts of the experts, which is the busiest where loads are drawn, the most first, behind a router with
    /// groups; `None` of counts, and where experts are no whole groups.
    pub fn grouped_rows(
        &self,
        groups: RouterGroups,
        [tokens, top_k, n_experts, n_parts]: [u64; 4],
    ) -> Option<Vec<u64>> {
        let batch = Batch { tokens, top_k, n_experts, n_groups: n_parts };
        let draws = match self {
            Self::Even => vec![batch.in_turn()],
            Self::PowerLaw(exponent) => batch.handed_out(*exponent),
            Self::Balanced(..) | Self::Counted(_) => return None,
        };
        if tokens == 0 || !n_experts.is_multiple_of(groups.all) {
            return None;
        }
        let mut sums = vec![0; index(n_experts / n_parts)];
        for chosen in &draws {
            let mut rows = rows_of(&grouped(chosen, groups, n_experts / groups.all), n_experts / n_parts);
            rows.sort_unstable_by(|a, b| b.cmp(a));
            sums.iter_mut().zip(rows).for_each(|(sum, rows)| *sum += rows);
        }
        let mean = |sum: u64| hw::whole(hw::real(sum) / hw::real(draws.len() as u64));
        Some(sums.into_iter().map(mean).collect())
    }
}

impl Batch {
    /// Experts of every token, each as neighbouring tokens take neighbouring experts.
    fn in_turn(&self) -> Vec<Vec<u64>> {
        let stride = self.n_experts.div_ceil(self.top_k);
        let first = |token| if self.tokens >= stride { token } else { token * stride / self.tokens };
        let of = |token| (0..self.top_k).map(|choice| (first(token) + choice * stride) % self.n_experts).collect();
        (0..self.tokens).map(of).collect()
    }

    /// The same of every draw of a power law: experts in falling order of their rows, each as often as it has some, and token after token takes one of them.
    fn handed_out(&self, exponent: f64) -> Vec<Vec<Vec<u64>>> {
        let mut stream = self.stream();
        let draw = |_| {
            let rows = self.whole(self.drawn(exponent, &mut stream));
            let mut order: Vec<usize> = (0..rows.len()).collect();
            order.sort_by_key(|expert| std::cmp::Reverse(rows[*expert]));
            let visits = order.into_iter().flat_map(|expert| (0..rows[expert]).map(move |_| expert as u64));
            let mut tokens = vec![Vec::with_capacity(index(self.top_k)); index(self.tokens)];
            visits.enumerate().for_each(|(at, expert)| tokens[at % index(self.tokens)].push(expert));
            tokens
        };
        (0..DRAWS).map(draw).collect()
    }

    /// Loads with what rounding and the limit of one row per token and expert cost, part by part in turn; the part with the most rows comes first.
    fn whole(&self, mut rows: Vec<u64>) -> Vec<u64> {
        let (routed, found) = (self.tokens * self.top_k, rows.iter().sum::<u64>());
        let size = index(self.n_experts / self.n_groups);
        let mut parts: Vec<&mut [u64]> = rows.chunks_exact_mut(size).collect();
        let n = parts.len();
        for at in 0..index(routed.abs_diff(found)) {
            let part = &mut parts[at % n];
            if routed > found {
                let least = part.iter_mut().min().filter(|rows| **rows < self.tokens);
                least.into_iter().for_each(|rows| *rows += 1);
            } else {
                part.iter_mut().max().into_iter().for_each(|rows| *rows = rows.saturating_sub(1));
            }
        }
        // The first of several that are as busy.
        let busiest = (0..n).rev().max_by_key(|part| parts[*part].iter().sum::<u64>()).unwrap_or(0);
        if busiest > 0 {
            let (before, from) = parts.split_at_mut(busiest);
            before[0].swap_with_slice(from[0]);
        }
        rows
    }
}

/// Experts of every token after a router that takes the groups with the two best experts.
fn grouped(chosen: &[Vec<u64>], groups: RouterGroups, size: u64) -> Vec<Vec<u64>> {
    let of_token = |chosen: &Vec<u64>| {
        let n_chosen = |group: &u64| chosen.iter().filter(|expert| *expert / size == *group).count().min(2);
        let mut order: Vec<u64> = (0..groups.all).collect();
        order.sort_by_key(|group| std::cmp::Reverse(n_chosen(group)));
        let taken = &mut order[..index(groups.of_token)];
        taken.sort_unstable();
        let mut kept: Vec<u64> = chosen.iter().copied().filter(|expert| taken.contains(&(expert / size))).collect();
        let others = taken.iter().flat_map(|group| group * size..(group + 1) * size);
        let others: Vec<u64> = others.filter(|expert| !kept.contains(expert)).take(chosen.len() - kept.len()).collect();
        kept.extend(others);
        kept
    };
    chosen.iter().map(of_token).collect()
}

/// Rows of the first experts.
fn rows_of(chosen: &[Vec<u64>], n: u64) -> Vec<u64> {
    let mut rows = vec![0; index(n)];
    for expert in chosen.iter().flatten().filter(|expert| **expert < n) {
        rows[index(*expert)] += 1;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEEPSEEK: RouterGroups = RouterGroups { all: 8, of_token: 4 };

    /// Every token has one expert in each of eight groups. So all groups are alike, and the first four are taken: four experts are its own, four are the first ones.
    #[test]
    fn a_router_with_groups_leaves_half_of_the_experts_alone() {
        let all = Routing::Even.grouped_rows(DEEPSEEK, [256, 8, 256, 1]).expect("whole groups");
        assert_eq!(all.iter().filter(|rows| **rows > 0).count(), 128);
        assert_eq!(all.iter().sum::<u64>(), 256 * 8);
        // Over 256 tokens each of 128 experts has 8 rows of its own; the first five fill up for all others.
        assert_eq!(&all[5..128], &[8; 123]);
        // The first of eight GPUs has the first group: one own expert of a token, and four that fill up.
        let first = Routing::Even.grouped_rows(DEEPSEEK, [256, 8, 256, 8]).expect("whole groups");
        assert_eq!(first.iter().sum::<u64>(), 256 * 5);
    }

    /// By hand: two groups of two, one is taken. Token 0 has experts 0 and 2: both groups are alike, so 0 and 1. Token 1 has 1 and 3: 1 and 0.
    #[test]
    fn what_lies_outside_is_filled_up_with_the_first_experts() {
        let one_of_two = RouterGroups { all: 2, of_token: 1 };
        assert_eq!(Routing::Even.grouped_rows(one_of_two, [2, 2, 4, 1]), Some(vec![2, 2, 0, 0]));
        assert_eq!(grouped(&[vec![2, 3]], one_of_two, 2), [[2, 3]]);
        assert_eq!(Routing::Even.grouped_rows(DEEPSEEK, [2, 2, 60, 1]), None, "60 experts are no eight groups");
    }

    #[test]
    fn a_router_with_one_group_changes_nothing() {
        for (tokens, top_k, n_experts, n_parts) in [(1, 2, 8, 2), (7, 2, 8, 2), (300, 8, 64, 4), (64, 8, 384, 1)] {
            for routing in [Routing::Even, Routing::PowerLaw(1.2)] {
                let found =
                    routing.grouped_rows(RouterGroups::NONE, [tokens, top_k, n_experts, n_parts]).expect("whole");
                let expected = routing.rows(tokens, top_k, n_experts, n_parts);
                // The law's rows are means that are rounded; ties of parts may fall differently.
                let (a, b) = (found.iter().sum::<u64>(), expected.iter().sum::<u64>());
                assert!(a.abs_diff(b) <= 3 + b / 50, "{routing:?}, {tokens} tokens: {a} and {b} rows");
            }
        }
    }
}
