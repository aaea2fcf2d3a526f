//! Tokens that came to every expert, as an engine counts them: by layer, and what the busiest GPU has of them.
//!
//! A token visits `top_k` different experts, so an expert with a share `s` of all visits is visited by a token with probability `top_k · s`, and by
//! none of `m` tokens with `(1 − top_k · s)^m`. Tokens are taken as independent of each other.

use thiserror::Error;

use super::balance::{Room, balanced, shared};

/// Shares of all visits, by layer and expert.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertCounts {
    layers: Vec<Vec<f64>>,
}

/// Why counts are none.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum WrongCounts {
    /// No layer has any.
    #[error("no layer has a token")]
    Empty,
    /// Rows have different lengths.
    #[error("layer {layer} has {found} experts, the first has {expected}")]
    Ragged {
        /// Layer, from 0.
        layer: usize,
        /// Its experts.
        found: usize,
        /// Those of the first layer.
        expected: usize,
    },
    /// A number that counts nothing.
    #[error("layer {layer} has {found} tokens for expert {expert}; a count is 0 or more")]
    Negative {
        /// Layer, from 0.
        layer: usize,
        /// Expert, from 0.
        expert: usize,
        /// What stands there.
        found: f64,
    },
}

/// Where experts lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Neighbours on the same GPU, in order.
    InOrder {
        /// GPUs that share the experts.
        n_ranks: usize,
    },
    /// Busy ones twice, and all packed so that GPUs have as much to do.
    Balanced(Room),
}

/// What the GPU with the most tokens has of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct BusiestRank {
    /// Share of all visits for each of its experts, the largest first.
    shares: Vec<f64>,
    /// Its visits over the even share.
    pub over_even: f64,
}

impl ExpertCounts {
    /// Of counts by layer and expert; layers without any token are none, as those without experts in what engines record.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn new(counts: Vec<Vec<f64>>) -> Result<Self, WrongCounts> {
        let expected = counts.first().map_or(0, Vec::len);
        for (layer, counts) in counts.iter().enumerate() {
            check(layer, counts, expected)?;
        }
        let layers: Vec<Vec<f64>> = counts.into_iter().filter_map(shares).collect();
        if layers.is_empty() { Err(WrongCounts::Empty) } else { Ok(Self { layers }) }
    }

    /// Layers that were counted.
    pub const fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Experts of a layer.
    pub fn n_experts(&self) -> usize {
        self.layers[0].len()
    }

    /// A layer and an expert that has more visits than tokens that visit `top_k` different experts give, in percent of all, and the most that they give.
    pub fn too_busy(&self, top_k: u64) -> Option<(usize, usize, [f64; 2])> {
        let most = 1.0 / hw::real(top_k);
        let of_layer = |(layer, shares): (usize, &Vec<f64>)| {
            // Shares are rounded.
            let expert = shares.iter().position(|share| *share > most * (1.0 + 1e-9))?;
            Some((layer, expert, [shares[expert], most].map(|share| 100.0 * share)))
        };
        self.layers.iter().enumerate().find_map(of_layer)
    }

    /// One layer with the mean of all.
    pub fn mean(&self) -> Self {
        let n = hw::real(self.layers.len() as u64);
        let of = |expert: usize| self.layers.iter().map(|shares| shares[expert]).sum::<f64>() / n;
        Self { layers: vec![(0..self.n_experts()).map(of).collect()] }
    }

    /// What the busiest GPU has, by layer.
    pub fn busiest(&self, placement: Placement) -> Vec<BusiestRank> {
        self.layers.iter().map(|shares| busiest(shares, placement)).collect()
    }
}

fn check(layer: usize, counts: &[f64], expected: usize) -> Result<(), WrongCounts> {
    if counts.len() != expected {
        return Err(WrongCounts::Ragged { layer, found: counts.len(), expected });
    }
    let wrong = counts.iter().position(|count| !count.is_finite() || *count < 0.0);
    wrong.map_or(Ok(()), |expert| Err(WrongCounts::Negative { layer, expert, found: counts[expert] }))
}

/// Shares of counts; `None` of none.
fn shares(counts: Vec<f64>) -> Option<Vec<f64>> {
    let all: f64 = counts.iter().sum();
    (all > 0.0).then(|| counts.into_iter().map(|count| count / all).collect())
}

/// Shares of visits of every GPU's experts.
fn placed(shares: &[f64], placement: Placement) -> Vec<Vec<f64>> {
    match placement {
        Placement::InOrder { n_ranks } => {
            assert!(shares.len().is_multiple_of(n_ranks), "{} experts on {n_ranks} GPUs", shares.len());
            shares.chunks_exact(shares.len() / n_ranks).map(<[f64]>::to_vec).collect()
        }
        Placement::Balanced(room) => {
            let experts = balanced(shares, room).concat();
            shared(shares, &experts).chunks_exact(room.n_replicas / room.n_ranks).map(<[f64]>::to_vec).collect()
        }
    }
}

fn busiest(shares: &[f64], placement: Placement) -> BusiestRank {
    let ranks = placed(shares, placement);
    let n_ranks = hw::real(ranks.len() as u64);
    let sum = |rank: &[f64]| rank.iter().sum::<f64>();
    let mut shares = ranks.into_iter().max_by(|a, b| sum(a).total_cmp(&sum(b))).expect("some GPUs");
    shares.sort_by(|a, b| b.total_cmp(a));
    let over_even = sum(&shares) * n_ranks;
    BusiestRank { shares, over_even }
}

/// Visits of the busiest GPU over the even share: the mean over layers.
///
/// # Panics
/// Without layers.
pub fn over_even(layers: &[BusiestRank]) -> f64 {
    assert!(!layers.is_empty(), "some layer was counted");
    layers.iter().map(|rank| rank.over_even).sum::<f64>() / hw::real(layers.len() as u64)
}

impl BusiestRank {
    /// Rows of each expert that is visited, where so many tokens visit `top_k` experts each and an even GPU would have `even` rows.
    ///
    /// # Panics
    /// Without tokens.
    pub fn rows(&self, tokens: u64, top_k: u64, even: u64) -> Vec<u64> {
        assert!(tokens > 0, "somebody visits");
        let total = hw::whole(hw::real(even) * self.over_even).max(1);
        // Nobody has more than one row of a token, and whoever is visited has one.
        let most = (self.shares.len() as u64).min(total);
        let n = hw::whole(self.visited(tokens, top_k)).clamp(total.div_ceil(tokens).clamp(1, most), most);
        let n = usize::try_from(n).expect("experts are few");
        handed_out(total, &self.shares[..n], tokens)
    }

    /// Experts that some of the tokens visit, on average.
    fn visited(&self, tokens: u64, top_k: u64) -> f64 {
        let is_alone = |share: &f64| libm::pow((1.0 - hw::real(top_k) * share).max(0.0), hw::real(tokens));
        self.shares.iter().map(|share| 1.0 - is_alone(share)).sum()
    }
}

/// Rows in proportion to shares, the largest first, none below 1 or above `most` as far as all are handed out.
fn handed_out(total: u64, shares: &[f64], most: u64) -> Vec<u64> {
    let (mut left, mut weight, mut rows) = (total, shares.iter().sum::<f64>(), Vec::with_capacity(shares.len()));
    for (behind, share) in (0..shares.len() as u64).rev().zip(shares) {
        let part = if weight > 0.0 { hw::whole(hw::real(left) * share / weight) } else { 0 };
        let highest = left.saturating_sub(behind).max(1);
        let found = if behind == 0 { left } else { part.clamp(1, highest).min(most) };
        rows.push(found);
        left = left.saturating_sub(found);
        weight -= share;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(layers: &[&[f64]]) -> ExpertCounts {
        ExpertCounts::new(layers.iter().map(|layer| layer.to_vec()).collect()).expect("counts")
    }

    #[test]
    fn even_counts_give_every_gpu_its_share_and_the_visits_of_independent_tokens() {
        let even = of(&[&[7.0; 64]]);
        let rank = &even.busiest(Placement::InOrder { n_ranks: 8 })[0];
        assert!((rank.over_even - 1.0).abs() < 1e-12);
        // 100 tokens with two experts each: 25 rows here, and 8 · (1 − (1 − 1/32)^100) = 7.67 experts are visited.
        let rows = rank.rows(100, 2, 25);
        assert_eq!((rows.iter().sum::<u64>(), rows.len()), (25, 8));
        assert!(rows.iter().all(|rows| (3..=4).contains(rows)), "{rows:?}");
        // Eight tokens: 8 · (1 − (1 − 1/32)^8) = 1.79 experts, two rows.
        assert_eq!(rank.rows(8, 2, 2), [1, 1]);
    }

    #[test]
    fn the_busiest_gpu_has_its_own_experts_in_order_and_fewer_rows_where_they_are_balanced() {
        // Two GPUs: 6 + 2 of 12 visits, and 2 + 2.
        let counts = of(&[&[6.0, 2.0, 2.0, 2.0]]);
        let in_order = &counts.busiest(Placement::InOrder { n_ranks: 2 })[0];
        assert!((in_order.over_even - 8.0 / 6.0).abs() < 1e-12);
        // 120 tokens visit one expert each: 80 rows here, 60 and 20.
        assert_eq!(in_order.rows(120, 1, 60), [60, 20]);
        // The same experts packed: 6 with 2, 2 with 2. Nothing is won. With two replicas more the heaviest is there three times.
        let room = |n_replicas| Room { n_replicas, n_groups: 1, n_nodes: 1, n_ranks: 2 };
        let packed = &counts.busiest(Placement::Balanced(room(4)))[0];
        assert!((packed.over_even - 8.0 / 6.0).abs() < 1e-12);
        let replicated = &counts.busiest(Placement::Balanced(room(6)))[0];
        assert!((replicated.over_even - 1.0).abs() < 1e-12);
        assert_eq!(replicated.rows(120, 1, 60), [20, 20, 20]);
    }

    #[test]
    fn layers_without_tokens_are_left_out_and_wrong_ones_are_named() {
        assert_eq!(of(&[&[0.0, 0.0], &[1.0, 3.0]]).n_layers(), 1);
        assert_eq!(of(&[&[1.0, 3.0], &[3.0, 1.0]]).mean(), of(&[&[1.0, 1.0]]));
        // Two of three experts for each token: none has more than half of the visits.
        assert_eq!(of(&[&[2.0, 1.0, 1.0], &[1.0, 3.0, 1.0]]).too_busy(2), Some((1, 1, [60.0, 50.0])));
        assert_eq!(of(&[&[2.0, 1.0, 1.0]]).too_busy(2), None);
        let wrong = |layers: &[&[f64]]| ExpertCounts::new(layers.iter().map(|layer| layer.to_vec()).collect());
        assert_eq!(wrong(&[&[0.0, 0.0]]), Err(WrongCounts::Empty));
        assert_eq!(wrong(&[&[1.0], &[1.0, 2.0]]), Err(WrongCounts::Ragged { layer: 1, found: 2, expected: 1 }));
        assert_eq!(wrong(&[&[1.0, -2.0]]), Err(WrongCounts::Negative { layer: 0, expert: 1, found: -2.0 }));
    }

    #[test]
    fn nobody_has_more_rows_than_tokens_and_all_rows_are_handed_out() {
        let loads: Vec<f64> = (1..=64_u32).map(|expert| 1.0 / f64::from(expert)).collect();
        let counts = of(&[&loads]);
        for n_ranks in [1, 4, 8] {
            let rank = &counts.busiest(Placement::InOrder { n_ranks })[0];
            for tokens in [1_u64, 2, 7, 64, 1000] {
                let even = (tokens * 4).div_ceil(n_ranks as u64);
                let rows = rank.rows(tokens, 4, even);
                let total = hw::whole(hw::real(even) * rank.over_even);
                assert_eq!(rows.iter().sum::<u64>(), total, "{n_ranks} GPUs, {tokens} tokens: {rows:?}");
                assert!(rows.iter().all(|rows| *rows > 0));
            }
        }
    }
}
