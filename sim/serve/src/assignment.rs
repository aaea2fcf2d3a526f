//! Which share of which requests each group of a fleet should take: what a plan says, as data for routers.
//!
//! A plan of arXiv:2502.00722 sends type `w` to configuration `c` with probability `x_cw`; one of ThunderServe (arXiv:2502.09334) sends a
//! share `Y_ij` of what group `i` has prefilled to group `j`. Shares are weights: they need not add up to 1, and among the groups that may
//! take a request only their ratios count. Invariant: weights are finite and not negative.

use crate::request::{Request, Requests};

/// Shares of groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assignment {
    /// Type of every request, in order of arrival; empty where all are of type 0.
    pub types: Vec<u32>,
    /// `shares[type][group]`; empty where nothing was planned.
    pub shares: Vec<Vec<f64>>,
    /// `onward[from][to]`: share of what group `from` has prefilled that group `to` decodes; empty where it depends on the type alone.
    pub onward: Vec<Vec<f64>>,
}

impl Assignment {
    /// Type of a request.
    pub fn type_of(&self, request: u32) -> u32 {
        self.types.get(request as usize).copied().unwrap_or(0)
    }

    /// Rows of weights, those by type first.
    pub const fn n_rows(&self) -> usize {
        self.shares.len() + self.onward.len()
    }

    /// Row of weights for a request that comes from a group, or from outside.
    pub fn row(&self, request: u32, from: Option<u32>) -> usize {
        match from {
            Some(from) if (from as usize) < self.onward.len() => self.shares.len() + from as usize,
            _ => self.type_of(request) as usize,
        }
    }

    /// Weight of a group in a row; 1 where nothing was planned.
    pub fn weight(&self, row: usize, group: u32) -> f64 {
        let planned = self.shares.get(row).or_else(|| self.onward.get(row.checked_sub(self.shares.len())?));
        planned.map_or(1.0, |weights| weights.get(group as usize).copied().unwrap_or(0.0))
    }
}

/// Typical prompt and output tokens of a type of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TypeCentre {
    /// Prompt tokens, above 0.
    pub prompt: f64,
    /// Output tokens, above 0.
    pub output: f64,
}

/// The type of every request: the one whose lengths are nearest, as a ratio. Ties go to the first.
pub fn nearest_types(requests: &Requests, centres: &[TypeCentre]) -> Vec<u32> {
    let ratio = |tokens: u32, centre: f64| libm::log(f64::from(tokens) / centre).abs();
    let type_of = |request: &Request| {
        let distance = |centre: &TypeCentre| {
            let (prompt, output) = (ratio(request.prompt, centre.prompt), ratio(request.output, centre.output));
            prompt * prompt + output * output
        };
        let nearest = centres.iter().map(distance).enumerate().min_by(|left, right| left.1.total_cmp(&right.1));
        u32::try_from(nearest.map_or(0, |(index, _)| index)).expect("few types")
    };
    requests.list.iter().map(type_of).collect()
}

#[cfg(test)]
mod tests {
    use hw::Time;

    use super::*;

    #[test]
    fn a_request_is_of_the_type_with_the_nearest_lengths() {
        // 2,455 and 496 tokens are types of arXiv:2502.00722; their geometric mean is 1,103.5.
        let centres =
            [(2455.0, 18.0), (496.0, 18.0), (496.0, 510.0)].map(|(prompt, output)| TypeCentre { prompt, output });
        let lengths = [(1104, 18), (1103, 18), (400, 300), (400, 18)];
        let requests = Requests::of(lengths.map(|(prompt, output)| Request::new(Time::ZERO, prompt, output)).into());
        assert_eq!(nearest_types(&requests, &centres), [0, 1, 2, 1]);
    }

    #[test]
    fn a_row_is_the_type_or_where_the_request_comes_from() {
        let mut assignment =
            Assignment { types: vec![1, 0], shares: vec![vec![1.0, 3.0], vec![2.0, 0.0]], onward: Vec::new() };
        assert_eq!((assignment.row(0, None), assignment.row(0, Some(1))), (1, 1));
        assert_eq!((assignment.weight(1, 0), assignment.weight(1, 1), assignment.weight(0, 7)), (2.0, 0.0, 0.0));
        assignment.onward = vec![vec![0.0, 0.5], vec![0.0, 0.25]];
        assert_eq!((assignment.row(0, None), assignment.row(0, Some(1))), (1, 3));
        assert_eq!(assignment.weight(3, 1), 0.25);
        assert_eq!(Assignment::default().weight(0, 5), 1.0);
    }
}
