//! Locality-sensitive hash functions: near vectors get the same value more often than far ones.
//!
//! Cross-polytope (Andoni, Indyk, Laarhoven, Razenshteyn, Schmidt, arXiv:1509.02897): rotate at random, the value is the
//! coordinate of largest magnitude with its sign, so 2·d' values over d' coordinates. The random rotation is their pseudo-random
//! one, H·D3·H·D2·H·D1 with random signs D and the Hadamard transform H, padded to a power of two; the cost model counts a dense
//! product, which is what a GPU runs. Spherical (Charikar, STOC 2002): the sphere is cut by a random plane through its centre, the
//! value is the side; two vectors at an angle θ share it with probability 1 − θ/π.

use engine::random::{self, Stream};

hw::words! {
    /// Kind of hash function.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Family: word {
        /// Nearest vertex of a randomly rotated cross-polytope.
        CrossPolytope = "cross-polytope",
        /// Side of a random plane.
        Spherical = "spherical",
    }
}

impl Family {
    /// Columns of the rotation of one function when it keeps `width` coordinates.
    pub const fn columns(self, width: u64) -> u64 {
        match self {
            Self::CrossPolytope => width,
            Self::Spherical => 1,
        }
    }
}

/// An orthogonal pseudo-random map of vectors, padded with zeros to a power of two.
#[derive(Clone, Debug)]
pub struct Rotation {
    signs: [Vec<f64>; 3],
}

impl Rotation {
    /// A rotation of vectors of `dimension` coordinates.
    pub fn draw(dimension: usize, random: &mut Stream) -> Self {
        let n = dimension.next_power_of_two();
        let mut signs = || (0..n).map(|_| if random.next_u64() >> 63 == 0 { 1.0 } else { -1.0 }).collect();
        Self { signs: [signs(), signs(), signs()] }
    }

    /// The rotated vector.
    ///
    /// # Panics
    /// When the vector is longer than those it was drawn for.
    pub fn apply(&self, vector: &[f64]) -> Vec<f64> {
        let n = self.signs[0].len();
        assert!(vector.len() <= n, "a vector of {} coordinates in a rotation of {n}", vector.len());
        let mut rotated = vector.to_vec();
        rotated.resize(n, 0.0);
        for signs in &self.signs {
            rotated.iter_mut().zip(signs).for_each(|(x, sign)| *x *= sign);
            hadamard(&mut rotated);
        }
        rotated
    }
}

/// The normalised Hadamard transform in place; the length is a power of two.
fn hadamard(values: &mut [f64]) {
    let n = values.len();
    let mut half = 1;
    while half < n {
        for block in values.chunks_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let scale = 1.0 / hw::real(n as u64).sqrt();
    values.iter_mut().for_each(|x| *x *= scale);
}

/// One hash function.
#[derive(Clone, Debug)]
pub struct Hash {
    family: Family,
    rotation: Rotation,
    /// Coordinates that count.
    width: usize,
}

impl Hash {
    /// Function number `index` of a seed, over vectors of `dimension` coordinates of which `width` are kept after the rotation.
    ///
    /// # Panics
    /// When no coordinate is kept.
    pub fn draw(family: Family, dimension: usize, width: usize, seed: u64, index: u32) -> Self {
        assert!(width > 0, "a hash looks at a coordinate at least");
        let rotation = Rotation::draw(dimension, &mut random::stream(seed, &format!("hash function {index}")));
        Self { family, width: width.min(dimension.next_power_of_two()), rotation }
    }

    /// Value of a vector: below `2 · width`, or 0 and 1. Scaling a vector by a positive factor does not change it.
    pub fn value(&self, vector: &[f64]) -> u32 {
        let rotated = self.rotation.apply(vector);
        let side = |x: f64| u32::from(x < 0.0);
        match self.family {
            Family::Spherical => side(rotated[0]),
            Family::CrossPolytope => {
                // The first of equals, so that ties end at an index.
                let kept = rotated[..self.width].iter().enumerate().rev();
                let (index, x) = kept.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())).expect("a coordinate is kept");
                2 * u32::try_from(index).expect("coordinates fit u32") + side(*x)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of `n` coordinates at the angle whose cosine is `cosine`.
    fn pair(n: usize, cosine: f64, random: &mut Stream) -> (Vec<f64>, Vec<f64>) {
        let mut gaussian = || (0..n).map(|_| random.normal()).collect::<Vec<f64>>();
        let (x, z) = (unit(&gaussian()), gaussian());
        let along: f64 = x.iter().zip(&z).map(|(x, z)| x * z).sum();
        let across = unit(&x.iter().zip(&z).map(|(x, z)| z - along * x).collect::<Vec<f64>>());
        let sine = (1.0 - cosine * cosine).sqrt();
        let y = x.iter().zip(&across).map(|(x, z)| cosine * x + sine * z).collect();
        (x, y)
    }

    fn unit(vector: &[f64]) -> Vec<f64> {
        let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
        vector.iter().map(|x| x / norm).collect()
    }

    /// Share of `n` functions under which random vectors at an angle have the same value.
    fn collisions(family: Family, dimension: usize, cosine: f64, n: u32) -> f64 {
        let mut random = random::stream(3, "pairs");
        let same = (0..n).filter(|&index| {
            let (x, y) = pair(dimension, cosine, &mut random);
            let hash = Hash::draw(family, dimension, dimension, 11, index);
            hash.value(&x) == hash.value(&y)
        });
        hw::real(same.count() as u64) / f64::from(n)
    }

    #[test]
    fn the_transform_is_the_matrix_of_signs_by_common_bits() {
        // H[i][j] = (−1)^(number of bits that i and j share), over √8.
        for column in 0..8_usize {
            let mut found = vec![0.0; 8];
            found[column] = 1.0;
            hadamard(&mut found);
            for (row, x) in found.iter().enumerate() {
                let sign = if (row & column).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                assert!((x - sign / 8.0_f64.sqrt()).abs() < 1e-15, "row {row}, column {column}");
            }
        }
    }

    #[test]
    fn rotations_keep_lengths_and_angles() {
        let mut random = random::stream(1, "rotation");
        let rotation = Rotation::draw(100, &mut random);
        let (x, y) = pair(100, 0.6, &mut random);
        let (u, v) = (rotation.apply(&x), rotation.apply(&y));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        assert!((dot(&u, &u) - 1.0).abs() < 1e-12 && (dot(&u, &v) - 0.6).abs() < 1e-12);
    }

    #[test]
    fn a_random_plane_parts_two_vectors_with_probability_angle_over_pi() {
        for cosine in [0.9, 0.5, 0.0, -0.5] {
            let expected = 1.0 - libm::acos(cosine) / std::f64::consts::PI;
            let found = collisions(Family::Spherical, 64, cosine, 4000);
            // Four standard deviations of 4,000 draws are below 0.032.
            assert!((found - expected).abs() < 0.032, "cosine {cosine}: {found} against {expected}");
        }
    }

    /// Probability that correlated Gaussian vectors of `n` coordinates have their largest magnitude at one coordinate with one
    /// sign, by quadrature: 2n ∫∫ φ(x, y) P(|u| < x, |v| < y)^(n−1) over x, y > 0, with all pairs at correlation `r`.
    fn quadrature(n: i32, r: f64) -> f64 {
        const STEPS: usize = 120;
        let h = 6.0 / hw::real(STEPS as u64);
        let at = |index: usize| (hw::real(index as u64) + 0.5) * h;
        let scale = 1.0 / (2.0 * std::f64::consts::PI * (1.0 - r * r).sqrt());
        let density =
            |x: f64, y: f64, r: f64| scale * libm::exp(-(x * x - 2.0 * r * x * y + y * y) / (2.0 * (1.0 - r * r)));
        // P(|u| < x, |v| < y) at cell borders: twice the mass of both quadrants, summed cell by cell.
        let cell = |i: usize, j: usize| 2.0 * h * h * (density(at(i), at(j), r) + density(at(i), at(j), -r));
        let mut above = vec![0.0; STEPS + 1];
        let mut sum = 0.0;
        for i in 0..STEPS {
            let (mut row, mut next) = (0.0, vec![0.0; STEPS + 1]);
            for j in 0..STEPS {
                row += cell(i, j);
                next[j + 1] = above[j + 1] + row;
                let middle = (above[j] + above[j + 1] + next[j] + next[j + 1]) / 4.0;
                sum += h * h * density(at(i), at(j), r) * middle.powi(n - 1);
            }
            above = next;
        }
        2.0 * f64::from(n) * sum
    }

    #[test]
    fn cross_polytopes_collide_as_often_as_the_integral_says() {
        // At right angles all 2d values are alike.
        let right = quadrature(128, 0.0);
        assert!((right * 256.0 - 1.0).abs() < 0.03, "{right}");
        for cosine in [0.95, 0.8, 0.5] {
            let (expected, found) = (quadrature(128, cosine), collisions(Family::CrossPolytope, 128, cosine, 4000));
            assert!((found - expected).abs() < 0.035, "cosine {cosine}: {found} against {expected}");
        }
    }

    #[test]
    fn values_are_of_directions_and_opposite_ones_never_meet() {
        let mut random = random::stream(5, "directions");
        for index in 0..50 {
            for family in Family::ALL {
                let hash = Hash::draw(family, 48, 32, 9, index);
                let (x, _) = pair(48, 0.0, &mut random);
                let scaled = |factor: f64| x.iter().map(|x| factor * x).collect::<Vec<f64>>();
                let value = hash.value(&x);
                assert_eq!(value, hash.value(&scaled(4.0)));
                assert_eq!(value ^ 1, hash.value(&scaled(-1.0)));
                assert!(value < 64);
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_values_and_another_gives_others() {
        let mut random = random::stream(6, "seeds");
        let tokens: Vec<Vec<f64>> = (0..40).map(|_| pair(32, 0.0, &mut random).0).collect();
        let values = |seed| {
            let hash = Hash::draw(Family::CrossPolytope, 32, 32, seed, 0);
            tokens.iter().map(|token| hash.value(token)).collect::<Vec<u32>>()
        };
        assert_eq!(values(1), values(1));
        assert_ne!(values(1), values(2));
    }
}
