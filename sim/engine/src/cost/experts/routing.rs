//! How tokens spread over experts, for measured tables that name a distribution and for layers that are asked like them.
//!
//! Source of the shapes: ai-dynamo/aiconfigurator @ 095f58a51c4c, collector/helper.py (`balanced_logits`, `power_law_logits_v3`; Apache-2.0).
//! There a power law draws the load of every expert from x^−exponent between 1 and 0.8 · tokens (0.01 and 2 with few tokens), scales the
//! loads to the rows that there are, and looks at the group of experts with the most rows. Draws are averaged here in sorted order,
//! from a stream of their own, so that the same question always has the same answer.

use std::sync::Arc;

use super::counts::{self, ExpertCounts, Placement};
use super::draws::{self, RouterGroups};
use super::stream::Stream;

/// A distribution of rows over experts.
#[derive(Clone, Debug, PartialEq)]
pub enum Routing {
    /// Neighbouring tokens take neighbouring experts in turn.
    Even,
    /// Loads are drawn from a power law with this exponent; the busiest group of experts is looked at.
    PowerLaw(f64),
    /// Loads of many tokens are those of a power law with this exponent, and no fewer experts are visited than if every token drew them by itself, all alike,
    /// from groups of them that it draws first.
    Balanced(f64, RouterGroups),
    /// As an engine counted them, by layer.
    Counted(Arc<ExpertCounts>),
}

/// Draws that are averaged, as in the tables.
pub(super) const DRAWS: u32 = 5;
/// Tokens of a draw that stands for all: shares of experts hardly change with more.
pub const DRAWN_TOKENS: u64 = 512;

/// A batch and the experts that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Batch {
    pub(super) tokens: u64,
    pub(super) top_k: u64,
    pub(super) n_experts: u64,
    pub(super) n_groups: u64,
}

impl Routing {
    /// Rows of each expert of one group out of `n_groups` equal ones: of the first, or of the busiest where loads are drawn.
    ///
    /// # Panics
    /// Without tokens, experts or groups.
    pub fn rows(&self, tokens: u64, top_k: u64, n_experts: u64, n_groups: u64) -> Vec<u64> {
        assert!(tokens > 0 && n_experts >= n_groups && n_groups > 0, "{tokens} tokens, {n_experts} experts");
        let batch = Batch { tokens, top_k, n_experts, n_groups };
        match self {
            Self::Even => batch.even(),
            Self::PowerLaw(exponent) => batch.power_law(*exponent),
            Self::Balanced(exponent, groups) => {
                visiting(batch.power_law(*exponent), hw::whole(batch.drawing(*groups).visited()))
            }
            Self::Counted(counts) => {
                let placement = Placement::InOrder { n_ranks: index(n_groups) };
                counts.mean().busiest(placement)[0].rows(tokens, top_k, (tokens * top_k).div_ceil(n_groups))
            }
        }
    }

    /// Visits of the busiest of `n_groups` equal groups of neighbouring experts over its even share: 1 where nobody is busier, the mean of the draws
    /// where loads are drawn, the mean of the layers where they were counted.
    ///
    /// # Panics
    /// Without tokens, experts or groups.
    pub fn over_even(&self, tokens: u64, top_k: u64, n_experts: u64, n_groups: u64) -> f64 {
        assert!(tokens > 0 && n_experts >= n_groups && n_groups > 0, "{tokens} tokens, {n_experts} experts");
        match self {
            Self::Even => 1.0,
            Self::PowerLaw(exponent) | Self::Balanced(exponent, _) => {
                let draws = Batch { tokens, top_k, n_experts, n_groups }.draws(*exponent);
                let rows: u64 = draws.iter().flatten().sum();
                hw::real(rows * n_groups) / hw::real(u64::from(DRAWS) * tokens * top_k)
            }
            Self::Counted(counts) => {
                counts::over_even(&counts.busiest(Placement::InOrder { n_ranks: index(n_groups) }))
            }
        }
    }

    /// Shares of visits by expert: as counted, or as many draws as are averaged.
    pub fn counts(&self, top_k: u64, n_experts: u64) -> Arc<ExpertCounts> {
        let batch = Batch { tokens: DRAWN_TOKENS, top_k, n_experts, n_groups: 1 };
        let layers = match self {
            Self::Counted(counts) => return Arc::clone(counts),
            Self::Even => vec![vec![1.0; index(n_experts)]],
            Self::PowerLaw(exponent) | Self::Balanced(exponent, _) => {
                let mut stream = batch.stream();
                let draw = |_| batch.drawn(*exponent, &mut stream).into_iter().map(hw::real).collect();
                (0..DRAWS).map(draw).collect()
            }
        };
        Arc::new(ExpertCounts::new(layers).expect("every expert has a load"))
    }

    /// The same for a layer that nobody counted.
    pub fn of_other_layer(&self) -> Self {
        match self {
            Self::Counted(counts) => Self::Counted(Arc::new(counts.mean())),
            other => other.clone(),
        }
    }
}

impl Batch {
    const fn group(&self) -> u64 {
        self.n_experts / self.n_groups
    }

    fn even(&self) -> Vec<u64> {
        let stride = self.n_experts.div_ceil(self.top_k);
        let mut rows = vec![0; index(self.group())];
        for token in 0..self.tokens {
            let first = if self.tokens >= stride { token } else { token * stride / self.tokens };
            for choice in 0..self.top_k {
                let expert = (first + choice * stride) % self.n_experts;
                if expert < self.group() {
                    rows[index(expert)] += 1;
                }
            }
        }
        rows
    }

    /// The same with tokens that draw their experts one by one.
    const fn drawing(&self, groups: RouterGroups) -> draws::Batch {
        let Self { tokens, top_k, n_experts, n_groups: n_parts } = *self;
        draws::Batch { tokens, top_k, n_experts, n_parts, groups }
    }

    pub(super) const fn stream(&self) -> Stream {
        Stream::of([self.tokens, self.n_experts, self.top_k])
    }

    fn power_law(&self, exponent: f64) -> Vec<u64> {
        let mut sums = vec![0.0; index(self.group())];
        for mut busiest in self.draws(exponent) {
            busiest.sort_unstable_by(|a, b| b.cmp(a));
            sums.iter_mut().zip(busiest).for_each(|(sum, rows)| *sum += hw::real(rows));
        }
        sums.iter().map(|sum| hw::whole(sum / f64::from(DRAWS))).collect()
    }

    /// Rows of the busiest group in every draw.
    fn draws(&self, exponent: f64) -> Vec<Vec<u64>> {
        let mut stream = self.stream();
        (0..DRAWS).map(|_| self.busiest(self.drawn(exponent, &mut stream))).collect()
    }

    /// Rows of every expert in one draw.
    pub(super) fn drawn(&self, exponent: f64, stream: &mut Stream) -> Vec<u64> {
        let routed = self.tokens * self.top_k;
        let (low, high) = if routed > self.n_experts { (1.0, 0.8 * hw::real(self.tokens)) } else { (0.01, 2.0) };
        // At an exponent of 1 the inverse is a limit; a hair beside it is as good.
        let power = if (1.0 - exponent).abs() < 1e-6 { 1e-6 } else { 1.0 - exponent };
        let (first, last) = (libm::pow(low, power), libm::pow(high, power));
        let loads: Vec<f64> =
            (0..self.n_experts).map(|_| libm::pow((last - first) * stream.next() + first, 1.0 / power)).collect();
        let scale = hw::real(routed) / loads.iter().sum::<f64>();
        loads.iter().map(|load| hw::whole(load * scale).min(self.tokens)).collect()
    }

    /// The group with the most rows, when those that rounding and the limit of one row per token and expert cost are handed out again.
    fn busiest(&self, mut rows: Vec<u64>) -> Vec<u64> {
        let (routed, group) = (self.tokens * self.top_k, index(self.group()));
        let found: u64 = rows.iter().sum();
        let (more, fewer) = (routed.saturating_sub(found), found.saturating_sub(routed));
        for (at, part) in (0..).zip(rows.chunks_exact_mut(group.max(1))) {
            let share = |n: u64| n / self.n_groups + u64::from(at < n % self.n_groups);
            fill(part, share(more), self.tokens);
            (0..share(fewer)).for_each(|_| lower(part));
        }
        let parts = rows.chunks_exact(group.max(1));
        parts.max_by_key(|part| part.iter().sum::<u64>()).map(<[u64]>::to_vec).unwrap_or_default()
    }
}

/// The same rows on so many experts at least: one that nobody visited has a row of the busiest, as long as that one has more than it needs.
fn visiting(mut rows: Vec<u64>, n: u64) -> Vec<u64> {
    let n_visited = rows.iter().filter(|rows| **rows > 0).count();
    for place in n_visited..index(n) {
        lower_above_one(&mut rows);
        rows[place] = 1;
    }
    rows
}

/// One row less for the expert with the most, where one has more than one.
fn lower_above_one(rows: &mut [u64]) {
    if let Some(most) = rows.iter_mut().max().filter(|rows| **rows > 1) {
        *most -= 1;
    }
}

pub(super) fn index(n: u64) -> usize {
    usize::try_from(n).expect("experts are few")
}

/// So many rows more, each for the expert that has the fewest then, none above the limit: as water fills a vessel.
fn fill(part: &mut [u64], mut more: u64, limit: u64) {
    part.sort_unstable();
    for i in 0..part.len() {
        let (level, width) = (part[i], i as u64 + 1);
        let next = part.get(i + 1).map_or(limit, |next| *next).min(limit).max(level);
        let rise = (more / width).min(next - level);
        part[..=i].iter_mut().for_each(|rows| *rows += rise);
        more -= rise * width;
        if rise < next - level {
            let rest = index(more);
            part[..rest].iter_mut().for_each(|rows| *rows += 1);
            return;
        }
    }
}

/// One row less for the expert with the most, where one has any.
fn lower(part: &mut [u64]) {
    if let Some(most) = part.iter_mut().max().filter(|rows| **rows > 0) {
        *most -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_router_visits_every_expert_in_turn() {
        // Four tokens with two of eight experts each: expert 0 and 4, 1 and 5, 2 and 6, 3 and 7.
        assert_eq!(Routing::Even.rows(4, 2, 8, 1), [1; 8]);
        assert_eq!(Routing::Even.rows(4, 2, 8, 2), [1; 4]);
        assert_eq!(Routing::Even.rows(1, 2, 8, 1), [1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(Routing::Even.rows(400, 2, 8, 1), [100; 8]);
    }

    #[test]
    fn a_power_law_hands_out_all_rows_and_the_busiest_group_has_more_than_its_share() {
        let all = Routing::PowerLaw(1.2).rows(1000, 8, 64, 1);
        let sum: u64 = all.iter().sum();
        assert!(sum.abs_diff(8000) < 40, "rounding of the mean draw: {sum}");
        assert!(all.windows(2).all(|pair| pair[0] >= pair[1]) && all[0] <= 1000);
        let busiest: u64 = Routing::PowerLaw(1.2).rows(1000, 8, 64, 8).iter().sum();
        assert!(busiest > 1200, "an eighth would be 1000, found {busiest}");
        assert_eq!(Routing::PowerLaw(1.2).rows(1000, 8, 64, 8), Routing::PowerLaw(1.2).rows(1000, 8, 64, 8));
    }

    /// With one group the law's rows at the tokens of a draw are the mean of its draws in sorted order, and so are those of their counts.
    #[test]
    fn counts_that_were_drawn_from_a_power_law_have_its_rows() {
        let (law, tokens) = (Routing::PowerLaw(1.2), DRAWN_TOKENS);
        let rows = law.rows(tokens, 8, 64, 1);
        let counts = ExpertCounts::new(vec![rows.iter().map(|rows| hw::real(*rows)).collect()]).expect("rows");
        let counted = Routing::Counted(Arc::new(counts));
        let found = counted.rows(tokens, 8, 64, 1);
        assert_eq!(found.iter().sum::<u64>(), tokens * 8);
        for (expert, rows) in rows.iter().enumerate() {
            let of = found.get(expert).copied().unwrap_or(0);
            assert!(of.abs_diff(*rows) <= 2 + rows / 100, "expert {expert}: {of} of {rows}");
        }
        // The busiest of eight GPUs, over five draws.
        let drawn = law.counts(8, 64);
        let busiest = drawn.busiest(Placement::InOrder { n_ranks: 8 });
        let mean = busiest.iter().map(|rank| rank.over_even).sum::<f64>() / f64::from(DRAWS);
        let of_law = hw::real(law.rows(tokens, 8, 64, 8).iter().sum()) / hw::real(tokens);
        assert!((mean / of_law - 1.0).abs() < 0.02, "{mean} of {of_law}");
    }

    /// Every draw again by hand: all rows are handed out over the groups, and the busiest is the one with the most.
    #[test]
    fn the_busiest_group_of_a_law_is_the_one_with_the_most_rows_of_all() {
        for (tokens, top_k, n_experts, n_groups) in [(512, 8, 64, 16), (16, 2, 8, 4), (3, 2, 32, 8), (512, 4, 128, 128)]
        {
            let batch = Batch { tokens, top_k, n_experts, n_groups };
            let (mut stream, mut all) = (batch.stream(), 0.0);
            for _ in 0..DRAWS {
                let drawn = batch.drawn(1.2, &mut stream);
                let groups = drawn.chunks_exact(index(batch.group())).map(|group| group.iter().sum::<u64>());
                // What rounding and the limit cost is handed out in equal parts, to a row.
                let missing = hw::real(tokens * top_k) - hw::real(drawn.iter().sum());
                all += hw::real(groups.max().expect("groups")) + missing / hw::real(n_groups);
            }
            let even = hw::real(tokens * top_k) / hw::real(n_groups);
            let (found, expected) =
                (Routing::PowerLaw(1.2).over_even(tokens, top_k, n_experts, n_groups), all / 5.0 / even);
            assert!((found - expected).abs() <= 1.0 / even, "{batch:?}: {found} of {expected}");
            assert!(found > 1.0, "{batch:?}: {found}");
        }
    }

    #[test]
    fn nobody_is_busier_where_all_are_even_or_lie_together() {
        assert!((Routing::Even.over_even(512, 8, 64, 16) - 1.0).abs() < 1e-12);
        let counts = ExpertCounts::new(vec![vec![7.0; 64]]).expect("counts");
        assert!((Routing::Counted(Arc::new(counts)).over_even(512, 8, 64, 16) - 1.0).abs() < 1e-12);
        assert!((Routing::PowerLaw(1.2).over_even(512, 8, 64, 1) - 1.0).abs() < 1e-2);
    }

    #[test]
    fn balanced_experts_are_visited_by_chance_and_loaded_by_the_law() {
        let groups = RouterGroups { all: 8, of_token: 4 };
        let (law, balanced) = (Routing::PowerLaw(1.2), Routing::Balanced(1.2, groups));
        let of = |routing: &Routing, tokens: u64| {
            let rows = routing.rows(tokens, 8, 256, 8);
            (rows.iter().filter(|rows| **rows > 0).count(), rows.iter().sum::<u64>())
        };
        for tokens in [16, 32, 64, 512] {
            let ((visited, rows), (fewer, of_law)) = (of(&balanced, tokens), of(&law, tokens));
            assert!(
                visited >= fewer && rows == of_law,
                "{tokens} tokens: {visited} and {fewer} experts, {rows} and {of_law} rows"
            );
        }
        // Eight visits of one token over four of eight GPUs: the busiest has three, where the law knows one.
        assert_eq!((of(&balanced, 1), of(&law, 1)), ((3, 3), (1, 1)));
        assert!((balanced.over_even(512, 8, 256, 8) - law.over_even(512, 8, 256, 8)).abs() < 1e-12);
    }

    #[test]
    fn no_expert_has_more_rows_than_there_are_tokens() {
        assert!(Routing::PowerLaw(1.2).rows(3, 2, 4, 1).iter().all(|rows| *rows <= 3));
    }
}
