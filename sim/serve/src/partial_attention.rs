//! Attention over a part of the keys, and how parts become the whole: the algebra behind split keys, DistAttention and dual chunk attention.
//!
//! For one query and keys `k_t` with values `v_t`, a part keeps the largest score `m`, the sum `e` of `exp(score − m)` and the vector `a` of
//! the same weights times values (arXiv:2401.02669, section 4; online softmax). Parts merge in any order: merging is associative and
//! commutative up to rounding, and the empty part is neutral.

/// Attention of one query over a part of the keys.
#[derive(Clone, Debug, PartialEq)]
pub struct PartialAttention {
    /// Largest score; minus infinity where every key is masked or there is none.
    pub largest: f64,
    /// Sum of `exp(score − largest)`.
    pub weight: f64,
    /// Sum of `exp(score − largest) · value`, one entry per value dimension.
    pub sum: Vec<f64>,
}

impl PartialAttention {
    /// Attention over keys with these scores (logits, minus infinity where masked) and values of width `width`.
    ///
    /// # Panics
    /// When a value has another width.
    #[must_use]
    pub fn over(scores: &[f64], values: &[Vec<f64>], width: usize) -> Self {
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut part = Self { largest, weight: 0.0, sum: vec![0.0; width] };
        if largest == f64::NEG_INFINITY {
            return part;
        }
        for (score, value) in scores.iter().zip(values) {
            assert!(value.len() == width, "a value of width {}, expected {width}", value.len());
            let weight = libm::exp(score - largest);
            part.weight += weight;
            part.sum.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight * value);
        }
        part
    }

    /// Both parts together.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        let largest = self.largest.max(other.largest);
        if largest == f64::NEG_INFINITY {
            return self.clone();
        }
        // exp(−inf) is 0, so a part without keys adds nothing.
        let (here, there) = (libm::exp(self.largest - largest), libm::exp(other.largest - largest));
        let sum = self.sum.iter().zip(&other.sum).map(|(a, b)| a * here + b * there).collect();
        Self { largest, weight: self.weight * here + other.weight * there, sum }
    }

    /// The output; zeros where every key is masked.
    #[must_use]
    pub fn output(&self) -> Vec<f64> {
        let scale = if self.weight > 0.0 { 1.0 / self.weight } else { 0.0 };
        self.sum.iter().map(|sum| sum * scale).collect()
    }

    /// Logarithm of the sum of `exp(score)`, as FlashAttention returns it.
    #[must_use]
    pub fn log_sum_exp(&self) -> f64 {
        self.largest + libm::log(self.weight)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use engine::random;

    /// Scores and values of `n` random keys, some of them masked.
    pub fn keys(n: usize, seed: u64) -> (Vec<f64>, Vec<Vec<f64>>) {
        let mut stream = random::stream(seed, "keys");
        let scores = (0..n)
            .map(|_| if stream.below(8) == 0 { f64::NEG_INFINITY } else { 40.0 * stream.unit() - 20.0 })
            .collect();
        let values = (0..n).map(|_| (0..4).map(|_| stream.unit() - 0.5).collect()).collect();
        (scores, values)
    }

    fn close(found: &[f64], expected: &[f64]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{found} instead of {expected}");
        }
    }

    /// Softmax by its definition.
    fn plain(scores: &[f64], values: &[Vec<f64>]) -> Vec<f64> {
        let weights: Vec<f64> = scores.iter().map(|score| libm::exp(*score)).collect();
        let total: f64 = weights.iter().sum();
        (0..4).map(|d| weights.iter().zip(values).map(|(w, v)| w * v[d]).sum::<f64>() / total).collect()
    }

    #[test]
    fn any_split_in_any_order_is_the_whole() {
        for seed in 0..50 {
            let (scores, values) = keys(37, seed);
            let expected = plain(&scores, &values);
            let mut stream = random::stream(seed, "cuts");
            let mut cuts: Vec<usize> = (0..4).map(|_| usize::try_from(stream.below(38)).expect("small")).collect();
            cuts.extend([0, 37]);
            cuts.sort_unstable();
            // Equal cuts make empty parts.
            let mut parts: Vec<PartialAttention> = cuts
                .windows(2)
                .map(|cut| PartialAttention::over(&scores[cut[0]..cut[1]], &values[cut[0]..cut[1]], 4))
                .collect();
            stream.shuffle(&mut parts);
            let forward = parts.iter().skip(1).fold(parts[0].clone(), |whole, part| whole.merge(part));
            let backward = parts.iter().rev().skip(1).fold(parts[4].clone(), |whole, part| part.merge(&whole));
            close(&forward.output(), &expected);
            close(&backward.output(), &expected);
        }
    }

    #[test]
    fn masked_and_empty_parts_are_neutral() {
        let (scores, values) = keys(9, 1);
        let whole = PartialAttention::over(&scores, &values, 4);
        let empty = PartialAttention::over(&[], &[], 4);
        let masked = PartialAttention::over(&[f64::NEG_INFINITY; 9], &values, 4);
        assert_eq!(empty.merge(&whole), whole);
        assert_eq!(whole.merge(&masked), whole);
        assert_eq!(masked.merge(&empty).output(), vec![0.0; 4]);
    }
}
