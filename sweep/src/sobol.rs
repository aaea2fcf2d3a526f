//! Sobol' points: every axis is filled evenly, and so is every pair of them, after any power of two of points.
//!
//! Source: direction numbers of Joe and Kuo, "Constructing Sobol sequences with better two-dimensional projections", SIAM J. Sci. Comput. 30
//! (2008), table `new-joe-kuo-6`, first 21 dimensions. Points are in the order of Gray codes (Antonov and Saleev, 1979).

/// Bits of a coordinate.
const BITS: usize = 32;

/// Degree, coefficients and first numbers of each dimension after the first.
const JOE_KUO: [(usize, u32, &[u32]); 20] = [
    (1, 0, &[1]),
    (2, 1, &[1, 3]),
    (3, 1, &[1, 3, 1]),
    (3, 2, &[1, 1, 1]),
    (4, 1, &[1, 1, 3, 3]),
    (4, 4, &[1, 3, 5, 13]),
    (5, 2, &[1, 1, 5, 5, 17]),
    (5, 4, &[1, 1, 5, 5, 5]),
    (5, 7, &[1, 1, 7, 11, 19]),
    (5, 11, &[1, 1, 5, 1, 1]),
    (5, 13, &[1, 1, 1, 3, 11]),
    (5, 14, &[1, 3, 5, 5, 31]),
    (6, 1, &[1, 3, 3, 9, 7, 49]),
    (6, 13, &[1, 1, 1, 15, 21, 21]),
    (6, 16, &[1, 3, 1, 13, 27, 49]),
    (6, 19, &[1, 1, 1, 15, 7, 5]),
    (6, 22, &[1, 3, 1, 15, 13, 25]),
    (6, 25, &[1, 1, 5, 5, 19, 61]),
    (7, 1, &[1, 3, 7, 11, 23, 15, 103]),
    (7, 4, &[1, 3, 7, 13, 13, 15, 69]),
];

/// Axes that the table has.
pub const AXES_MAX: usize = JOE_KUO.len() + 1;

/// A sequence of points in the unit cube.
pub struct Sobol {
    directions: Vec<[u32; BITS]>,
    point: Vec<u32>,
    n: u32,
}

impl Sobol {
    /// The sequence in so many dimensions.
    pub fn new(n_axes: usize) -> Self {
        assert!(n_axes <= AXES_MAX, "{n_axes} axes, the table has {AXES_MAX}");
        let directions = (0..n_axes).map(directions).collect();
        Self { directions, point: vec![0; n_axes], n: 0 }
    }

    /// The next point; the first one is the origin.
    pub fn next(&mut self) -> Vec<f64> {
        let found = self.point.iter().map(|bits| f64::from(*bits) / 4_294_967_296.0).collect();
        // The bit in which the next Gray code differs.
        let bit = self.n.trailing_ones() as usize;
        for (coordinate, directions) in self.point.iter_mut().zip(&self.directions) {
            *coordinate ^= directions[bit];
        }
        self.n += 1;
        found
    }
}

/// Direction numbers of a dimension, the highest bit first.
fn directions(axis: usize) -> [u32; BITS] {
    let mut found = [0; BITS];
    let Some(index) = axis.checked_sub(1) else {
        for (bit, direction) in found.iter_mut().enumerate() {
            *direction = 1 << (BITS - 1 - bit);
        }
        return found;
    };
    let (degree, coefficients, first) = JOE_KUO[index];
    for bit in 0..BITS {
        found[bit] = if bit < degree {
            first[bit] << (BITS - 1 - bit)
        } else {
            let mut direction = found[bit - degree] ^ (found[bit - degree] >> degree);
            for term in 1..degree {
                if coefficients >> (degree - 1 - term) & 1 == 1 {
                    direction ^= found[bit - term];
                }
            }
            direction
        };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_points_are_those_of_the_published_sequence() {
        let mut sobol = Sobol::new(3);
        let points: Vec<Vec<f64>> = (0..5).map(|_| sobol.next()).collect();
        // Worked by hand from the recurrence, as in the authors' notes.
        assert_eq!(points[1], [0.5, 0.5, 0.5]);
        assert_eq!(points[2], [0.75, 0.25, 0.25]);
        assert_eq!(points[3], [0.25, 0.75, 0.75]);
        assert_eq!(points[4], [0.375, 0.375, 0.625]);
    }

    #[test]
    fn every_dimension_fills_every_part_once() {
        let mut sobol = Sobol::new(AXES_MAX);
        let points: Vec<Vec<f64>> = (0..256).map(|_| sobol.next()).collect();
        for axis in 0..AXES_MAX {
            let mut parts: Vec<usize> = points.iter().map(|point| (point[axis] * 256.0) as usize).collect();
            parts.sort_unstable();
            assert_eq!(parts, (0..256).collect::<Vec<usize>>(), "axis {axis}");
        }
    }
}
