//! Time of a layer by the size of a batch: straight lines between measured points.
//!
//! Units: tokens on one axis, seconds on the other. Before the first point a line comes from (0, 0); beyond the last the last line goes on.

/// Why points make no curve.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum NoCurve {
    /// There is none.
    #[error("a curve needs a point")]
    Empty,
    /// A point is not above 0.
    #[error("tokens and times must be above 0, found ({tokens}, {seconds})")]
    NotPositive { tokens: f64, seconds: f64 },
    /// Tokens do not rise.
    #[error("tokens must rise, found {after} after {before}")]
    Falling { before: f64, after: f64 },
}

/// Measured points.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// Points of (tokens, seconds) with rising tokens.
    ///
    /// # Errors
    /// Says what is wrong with the points.
    pub fn new(points: Vec<(f64, f64)>) -> Result<Self, NoCurve> {
        if points.is_empty() {
            return Err(NoCurve::Empty);
        }
        let bad = |(tokens, seconds): &(f64, f64)| {
            !(tokens.is_finite() && *tokens > 0.0 && seconds.is_finite() && *seconds > 0.0)
        };
        if let Some((tokens, seconds)) = points.iter().find(|point| bad(point)) {
            return Err(NoCurve::NotPositive { tokens: *tokens, seconds: *seconds });
        }
        if let Some(pair) = points.windows(2).find(|pair| pair[1].0 <= pair[0].0) {
            return Err(NoCurve::Falling { before: pair[0].0, after: pair[1].0 });
        }
        Ok(Self { points })
    }

    /// Seconds for that many tokens; 0 for none.
    pub fn at(&self, tokens: f64) -> f64 {
        let above = self.points.partition_point(|point| point.0 < tokens).min(self.points.len() - 1);
        let high = self.points[above];
        let low = if above == 0 { (0.0, 0.0) } else { self.points[above - 1] };
        (low.1 + (high.1 - low.1) * (tokens - low.0) / (high.0 - low.0)).max(0.0)
    }

    /// The same with times that are so many times as long.
    #[must_use]
    pub fn slower(&self, by: f64) -> Self {
        Self { points: self.points.iter().map(|&(tokens, seconds)| (tokens, seconds * by)).collect() }
    }

    /// Least seconds per token of batches of up to so many tokens: on a straight line it is at an end.
    pub fn least_s_per_token(&self, tokens_max: u32) -> f64 {
        let most = f64::from(tokens_max.max(1));
        let inner = self.points.iter().map(|point| point.0).filter(|tokens| *tokens < most);
        inner.chain([most]).map(|tokens| self.at(tokens) / tokens).fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_time_per_token_is_that_of_the_best_batch() {
        let curve = Curve::new(vec![(10.0, 2.0), (20.0, 3.0), (30.0, 6.0)]).expect("rising");
        // 0.2 s up to 10 tokens, then less, 0.15 s at 20, and more again; beyond the last point it goes towards 0.3 s.
        let least = [1, 10, 15, 20, 1000].map(|most| curve.least_s_per_token(most));
        assert_eq!(least, [0.2, 0.2, 2.5 / 15.0, 0.15, 0.15]);
    }

    #[test]
    fn between_points_time_is_linear_and_beyond_them_it_goes_on() {
        let curve = Curve::new(vec![(10.0, 2.0), (20.0, 3.0)]).expect("rising");
        let at = [0.0, 5.0, 10.0, 15.0, 20.0, 40.0].map(|tokens| curve.at(tokens));
        assert_eq!(at, [0.0, 1.0, 2.0, 2.5, 3.0, 5.0]);
    }

    #[test]
    fn points_without_meaning_are_named() {
        let why = |points: &[(f64, f64)]| Curve::new(points.to_vec()).expect_err("no meaning").to_string();
        assert_eq!(why(&[]), "a curve needs a point");
        assert_eq!(why(&[(1.0, 0.0)]), "tokens and times must be above 0, found (1, 0)");
        assert_eq!(why(&[(2.0, 1.0), (2.0, 1.0)]), "tokens must rise, found 2 after 2");
    }
}
