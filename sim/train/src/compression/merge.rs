//! What hashing merges: buckets, their centroids, and how far restored outputs are from the expert's own.
//!
//! Buckets of q functions are those of q − 1 functions cut further, so their number never falls with q and the squared distance of
//! tokens to their centroids never rises. Quality is that distance seen through a stand-in for an expert,
//! E(x) = x + a·f(x) with f orthogonal · tanh · orthogonal, which stretches no distance: with residuals
//! |E(x) − E(c) − (x − c)| = a·|f(x) − f(c)| <= a·|x − c|, without them it is at least (1 − a)·|x − c|.

use std::collections::BTreeMap;

use super::hash::{Family, Hash, Rotation};
use engine::random;

/// Which tokens share a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Bucket of each token, numbered in order of appearance.
    pub of: Vec<u32>,
    /// How many there are.
    pub n: u32,
}

impl Buckets {
    /// All tokens in one.
    pub fn whole(n_tokens: usize) -> Self {
        Self { of: vec![0; n_tokens], n: u32::from(n_tokens > 0) }
    }

    /// Cut further by another function's values.
    pub fn cut(&self, values: &[u32]) -> Self {
        let mut known = BTreeMap::new();
        let mut number = |pair| {
            let next = u32::try_from(known.len()).expect("buckets fit u32");
            *known.entry(pair).or_insert(next)
        };
        let of: Vec<u32> = self.of.iter().copied().zip(values.iter().copied()).map(&mut number).collect();
        Self { n: u32::try_from(known.len()).expect("buckets fit u32"), of }
    }

    /// Mean of every bucket.
    pub fn centroids(&self, tokens: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let width = tokens.first().map_or(0, Vec::len);
        let mut sums = vec![(0_u32, vec![0.0; width]); self.n as usize];
        for (token, &bucket) in tokens.iter().zip(&self.of) {
            let (count, sum) = &mut sums[bucket as usize];
            *count += 1;
            sum.iter_mut().zip(token).for_each(|(sum, x)| *sum += x);
        }
        sums.into_iter().map(|(count, sum)| sum.into_iter().map(|x| x / f64::from(count)).collect()).collect()
    }

    /// Outputs of tokens from those of the centroids; with the tokens' residuals where the senders kept them.
    pub fn restored(
        &self,
        tokens: &[Vec<f64>],
        centroids: &[Vec<f64>],
        outputs: &[Vec<f64>],
        compensation: bool,
    ) -> Vec<Vec<f64>> {
        let of = |(token, &bucket): (&Vec<f64>, &u32)| {
            let (output, centroid) = (&outputs[bucket as usize], &centroids[bucket as usize]);
            if !compensation {
                return output.clone();
            }
            output.iter().zip(token.iter().zip(centroid)).map(|(output, (x, c))| output + (x - c)).collect()
        };
        tokens.iter().zip(&self.of).map(of).collect()
    }
}

/// A stand-in for an expert: x + change · f(x).
#[derive(Clone, Debug)]
pub struct StandIn {
    change: f64,
    rotations: [Rotation; 2],
}

impl StandIn {
    /// One for tokens of `width` coordinates that moves a token by at most `change` of its length.
    pub fn draw(width: usize, change: f64, seed: u64) -> Self {
        let mut random = random::stream(seed, "stand-in for an expert");
        Self { change, rotations: [Rotation::draw(width, &mut random), Rotation::draw(width, &mut random)] }
    }

    /// Its output for a token.
    pub fn output(&self, token: &[f64]) -> Vec<f64> {
        let mut inside = self.rotations[0].apply(token);
        // Coordinates of a token of length 1 are of the size of 1/√n; scaled to 1 they reach where tanh bends.
        let scale = hw::real(inside.len() as u64).sqrt();
        inside.iter_mut().for_each(|x| *x = libm::tanh(scale * *x) / scale);
        let moved = self.rotations[1].apply(&inside);
        token.iter().zip(moved).map(|(x, f)| x + self.change * f).collect()
    }
}

/// What some number of hash functions does to the tokens of an expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merging {
    /// Hash functions.
    pub hashes: u32,
    /// Buckets over tokens: rows that travel over rows that were routed.
    pub rate: f64,
    /// Root mean square error of outputs over that of the expert's own, residuals added.
    pub error: f64,
    /// The same without residuals.
    pub error_without_residuals: f64,
}

/// Merging by 1, 2, … functions of a family that keep `hash_width` coordinates, without end.
pub fn by_hashes<'a>(
    tokens: &'a [Vec<f64>],
    family: Family,
    hash_width: usize,
    expert: &'a StandIn,
    seed: u64,
) -> impl Iterator<Item = Merging> + 'a {
    let width = tokens.first().map_or(0, Vec::len);
    let own: Vec<Vec<f64>> = tokens.iter().map(|token| expert.output(token)).collect();
    let mut buckets = Buckets::whole(tokens.len());
    (0..u32::MAX).map(move |index| {
        let hash = Hash::draw(family, width, hash_width, seed, index);
        buckets = buckets.cut(&tokens.iter().map(|token| hash.value(token)).collect::<Vec<u32>>());
        let centroids = buckets.centroids(tokens);
        let outputs: Vec<Vec<f64>> = centroids.iter().map(|centroid| expert.output(centroid)).collect();
        let error = |compensation| distance(&buckets.restored(tokens, &centroids, &outputs, compensation), &own);
        Merging {
            hashes: index + 1,
            rate: f64::from(buckets.n) / hw::real(tokens.len() as u64).max(1.0),
            error: error(true),
            error_without_residuals: error(false),
        }
    })
}

/// Root of the summed squared distances over that of the summed squared lengths.
fn distance(found: &[Vec<f64>], own: &[Vec<f64>]) -> f64 {
    let (mut off, mut all) = (0.0, 0.0);
    for (found, own) in found.iter().zip(own) {
        for (found, own) in found.iter().zip(own) {
            off += (found - own) * (found - own);
            all += own * own;
        }
    }
    if all > 0.0 { (off / all).sqrt() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::{self, Similarity};
    use super::*;

    const WIDTH: usize = 64;

    fn sample(spread: f64, seed: u64) -> Vec<Vec<f64>> {
        tokens::draw(Similarity { clusters: 12, skew: 1.0, spread }, 300, WIDTH, seed)
    }

    fn check(spread: f64, family: Family, seed: u64) -> Vec<Merging> {
        let (tokens, expert) = (sample(spread, seed), StandIn::draw(WIDTH, 0.4, seed));
        by_hashes(&tokens, family, WIDTH, &expert, seed).take(10).collect()
    }

    /// Distances of tokens to the means of those that agree with them on all of the first `hashes` functions, by comparing all pairs.
    fn by_pairs(tokens: &[Vec<f64>], family: Family, hashes: u32, seed: u64) -> (usize, f64) {
        let functions: Vec<Hash> = (0..hashes).map(|index| Hash::draw(family, WIDTH, WIDTH, seed, index)).collect();
        let keys: Vec<Vec<u32>> =
            tokens.iter().map(|token| functions.iter().map(|hash| hash.value(token)).collect()).collect();
        let first = keys.iter().enumerate().filter(|(index, key)| !keys[..*index].contains(key)).count();
        let mut squares = 0.0;
        for (token, key) in tokens.iter().zip(&keys) {
            let members: Vec<&Vec<f64>> =
                tokens.iter().zip(&keys).filter(|(_, other)| *other == key).map(|(token, _)| token).collect();
            let n = hw::real(members.len() as u64);
            for (at, x) in token.iter().enumerate() {
                let mean = members.iter().map(|member| member[at]).sum::<f64>() / n;
                squares += (x - mean) * (x - mean);
            }
        }
        (first, squares)
    }

    fn squares(tokens: &[Vec<f64>], buckets: &Buckets) -> f64 {
        let centroids = buckets.centroids(tokens);
        let pairs = tokens.iter().zip(&buckets.of);
        pairs.map(|(x, &b)| x.iter().zip(&centroids[b as usize]).map(|(x, c)| (x - c) * (x - c)).sum::<f64>()).sum()
    }

    #[test]
    fn buckets_and_centroids_are_those_of_comparing_all_pairs() {
        for family in Family::ALL {
            let tokens = sample(0.3, 4);
            let mut buckets = Buckets::whole(tokens.len());
            for index in 0..4 {
                let hash = Hash::draw(family, WIDTH, WIDTH, 4, index);
                buckets = buckets.cut(&tokens.iter().map(|token| hash.value(token)).collect::<Vec<u32>>());
                let (n, expected) = by_pairs(&tokens, family, index + 1, 4);
                assert_eq!(buckets.n as usize, n);
                assert!((squares(&tokens, &buckets) - expected).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn more_functions_never_merge_more_and_centroids_never_move_away() {
        for seed in 0..8 {
            for family in Family::ALL {
                let tokens = sample(0.5, seed);
                let mut buckets = Buckets::whole(tokens.len());
                for index in 0..6 {
                    let hash = Hash::draw(family, WIDTH, WIDTH, seed, index);
                    let next = buckets.cut(&tokens.iter().map(|token| hash.value(token)).collect::<Vec<u32>>());
                    assert!(next.n >= buckets.n);
                    assert!(squares(&tokens, &next) <= squares(&tokens, &buckets) + 1e-9);
                    buckets = next;
                }
            }
        }
    }

    #[test]
    fn an_expert_that_changes_nothing_gets_its_inputs_back() {
        let tokens = sample(0.5, 2);
        let hash = Hash::draw(Family::CrossPolytope, WIDTH, WIDTH, 2, 0);
        let buckets =
            Buckets::whole(tokens.len()).cut(&tokens.iter().map(|token| hash.value(token)).collect::<Vec<u32>>());
        let centroids = buckets.centroids(&tokens);
        let restored = buckets.restored(&tokens, &centroids, &centroids, true);
        for (found, token) in restored.iter().zip(&tokens) {
            assert!(found.iter().zip(token).all(|(found, x)| (found - x).abs() < 1e-14));
        }
    }

    #[test]
    fn equal_tokens_need_one_row_per_content_and_lose_nothing() {
        // 12 contents, each of its own bucket after some functions: 12 rows of 300.
        let found = check(0.0, Family::CrossPolytope, 3);
        let last = found.last().expect("ten");
        assert!((last.rate - 12.0 / 300.0).abs() < 1e-12, "{last:?}");
        assert!(last.error < 1e-7 && last.error_without_residuals < 1e-7, "{last:?}");
    }

    #[test]
    fn the_error_falls_with_functions_and_residuals_keep_it_below() {
        for family in Family::ALL {
            for spread in [0.2, 0.5, 1.0] {
                let found = check(spread, family, 7);
                let (first, last) = (found[0], found[found.len() - 1]);
                assert!(last.error < first.error && last.rate > first.rate, "{first:?} {last:?}");
                for one in &found {
                    // a·|x − c| against at least (1 − a)·|x − c|, a = 0.4: two thirds.
                    assert!(one.error <= one.error_without_residuals * (0.4 / 0.6) + 1e-12, "{one:?}");
                }
            }
        }
    }

    #[test]
    fn at_equal_rates_cross_polytopes_are_closer_than_random_planes() {
        // The order that arXiv:2411.08446 (section 4.5) found in training, here in the error of outputs: random planes that send as
        // many rows or more are further off.
        let expert = StandIn::draw(768, 0.5, 0);
        for spread in [0.1, 0.2, 0.3] {
            let tokens = tokens::draw(Similarity { clusters: 64, skew: 1.0, spread }, 1024, 768, 0);
            let merged = |family| by_hashes(&tokens, family, 768, &expert, 0);
            let polytope = merged(Family::CrossPolytope).next().expect("without end");
            let planes =
                merged(Family::Spherical).find(|planes| planes.rate >= polytope.rate).expect("rates grow to 1");
            assert!(polytope.error < planes.error, "{polytope:?} {planes:?}");
        }
    }

    #[test]
    fn less_similar_tokens_are_merged_less() {
        let rate = |spread| check(spread, Family::CrossPolytope, 5)[5].rate;
        let rates = [0.0, 0.1, 0.3, 0.6].map(rate);
        assert!(rates.is_sorted(), "{rates:?}");
        assert!(rates[3] > 2.0 * rates[0]);
    }
}
