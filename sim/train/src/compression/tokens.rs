//! Synthetic tokens on their way to one expert, as similar as a scenario says.
//!
//! Clusters have random centres of length 1 and popularity by Zipf's law, which is what arXiv:2411.08446 (section 3.1) names as
//! one cause of similar tokens; a token is a centre plus Gaussian noise whose length is `spread` on average. Clusters, spread and
//! skew are free parameters: the paper prints no statistics of its tokens. Units: coordinates of the model's width.

use engine::random::{self, Stream};

/// How similar the tokens of an expert are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Similarity {
    /// Different contents.
    pub clusters: u64,
    /// Exponent of Zipf's law over them; 0 makes them equally common.
    pub skew: f64,
    /// Length of the noise around a centre over the centre's.
    pub spread: f64,
}

/// `n` tokens of `width` coordinates; the same seed draws the same centres and the same noise for every spread.
///
/// # Panics
/// When there are no clusters.
pub fn draw(similarity: Similarity, n: u64, width: usize, seed: u64) -> Vec<Vec<f64>> {
    assert!(similarity.clusters > 0, "tokens have contents");
    let mut random = random::stream(seed, "tokens of an expert");
    let length = 1.0 / hw::real(width as u64).sqrt();
    let vector = |random: &mut Stream| (0..width).map(|_| length * random.normal()).collect::<Vec<f64>>();
    let centres: Vec<Vec<f64>> = (0..similarity.clusters).map(|_| vector(&mut random)).collect();
    let ends = popularity_ends(similarity);
    (0..n)
        .map(|_| {
            let drawn = random.unit() * ends.last().expect("a cluster");
            let cluster = ends.partition_point(|&end| end <= drawn).min(centres.len() - 1);
            let noise = vector(&mut random);
            centres[cluster].iter().zip(noise).map(|(centre, noise)| centre + similarity.spread * noise).collect()
        })
        .collect()
}

/// Running sums of the clusters' popularity.
fn popularity_ends(similarity: Similarity) -> Vec<f64> {
    let mut end = 0.0;
    (1..=similarity.clusters)
        .map(|rank| {
            end += random::power(hw::real(rank), -similarity.skew);
            end
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_spread_tokens_are_the_centres_and_common_ones_come_more_often() {
        let tokens = draw(Similarity { clusters: 4, skew: 1.0, spread: 0.0 }, 5000, 8, 1);
        let mut counts: Vec<(Vec<f64>, usize)> = Vec::new();
        for token in tokens {
            match counts.iter_mut().find(|(known, _)| *known == token) {
                Some((_, count)) => *count += 1,
                None => counts.push((token, 1)),
            }
        }
        let mut counts: Vec<usize> = counts.into_iter().map(|(_, count)| count).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // Shares by Zipf's law: 12/25, 6/25, 4/25, 3/25 of 5,000.
        assert_eq!(counts.len(), 4);
        for (found, expected) in counts.iter().zip([2400, 1200, 800, 600]) {
            assert!(found.abs_diff(expected) < 150, "{counts:?}");
        }
    }

    #[test]
    fn noise_has_the_length_that_the_spread_says() {
        let exact = draw(Similarity { clusters: 3, skew: 0.0, spread: 0.0 }, 400, 256, 2);
        let noisy = draw(Similarity { clusters: 3, skew: 0.0, spread: 0.5 }, 400, 256, 2);
        let square = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
        let mean = exact.iter().zip(&noisy).map(|(a, b)| square(a, b)).sum::<f64>() / 400.0;
        assert!((mean - 0.25).abs() < 0.01, "{mean}");
    }
}
