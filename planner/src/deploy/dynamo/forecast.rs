//! What the next interval is taken to bring, from the intervals before.
//!
//! Dynamo names four predictors: constant, ARIMA, Kalman and Prophet. The constant one and the Kalman filter (a local linear trend, with
//! its default noises) are here as there; a moving average and the value one period before stand in for the two that fit a model at every
//! step. Before a forecast has what it needs, the last value stands. Units: those of what is forecast.

use std::collections::VecDeque;

/// How the next value follows from those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forecast {
    /// The last value.
    Constant,
    /// The mean of the last so many values.
    MovingAverage(usize),
    /// Level and slope of a local linear trend by a Kalman filter.
    Kalman,
    /// The value so many intervals before the next one.
    Seasonal(usize),
}

/// Intervals that a Kalman filter sees before it counts (`kalman_min_points` there).
const KALMAN_POINTS: usize = 5;
/// Variances of the steps of level and slope and of a measurement (`kalman_q_level`, `kalman_q_trend` and `kalman_r` there).
const KALMAN_NOISE: [f64; 3] = [1.0, 0.1, 10.0];
/// Variance of both at the start there.
const KALMAN_START: f64 = 1000.0;

/// Level and slope with their covariance.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Trend {
    level: f64,
    slope: f64,
    /// Variance of the level, covariance, variance of the slope.
    covariance: [f64; 3],
}

impl Trend {
    /// One interval on.
    fn ahead(self) -> Self {
        let [level, both, slope] = self.covariance;
        let covariance = [level + 2.0 * both + slope + KALMAN_NOISE[0], both + slope, slope + KALMAN_NOISE[1]];
        Self { level: self.level + self.slope, slope: self.slope, covariance }
    }

    /// After a measurement.
    fn corrected(self, value: f64) -> Self {
        let [level, both, slope] = self.covariance;
        let total = level + KALMAN_NOISE[2];
        let (gain, of_slope) = (level / total, both / total);
        let rest = value - self.level;
        let covariance = [(1.0 - gain) * level, (1.0 - gain) * both, slope - of_slope * both];
        Self { level: self.level + gain * rest, slope: self.slope + of_slope * rest, covariance }
    }
}

/// A forecast under way.
#[derive(Clone, Debug)]
pub struct Predictor {
    forecast: Forecast,
    values: VecDeque<f64>,
    n: usize,
    trend: Option<Trend>,
}

impl Predictor {
    /// Nothing was seen yet.
    pub fn new(forecast: Forecast) -> Self {
        Self { forecast, values: VecDeque::new(), n: 0, trend: None }
    }

    /// Sees the value of an interval, and says that of the next; not below 0.
    pub fn next(&mut self, value: f64) -> f64 {
        let start = Trend { level: value, slope: 0.0, covariance: [KALMAN_START, 0.0, KALMAN_START] };
        let trend = self.trend.map_or(start, |trend| trend.ahead().corrected(value));
        self.trend = Some(trend);
        self.n += 1;
        self.values.push_back(value);
        let kept = match self.forecast {
            Forecast::Constant | Forecast::Kalman => 1,
            Forecast::MovingAverage(n) | Forecast::Seasonal(n) => n.max(1),
        };
        while self.values.len() > kept {
            self.values.pop_front();
        }
        let next = match self.forecast {
            Forecast::MovingAverage(_) => self.values.iter().sum::<f64>() / hw::real(self.values.len() as u64),
            Forecast::Kalman if self.n >= KALMAN_POINTS => trend.level + trend.slope,
            Forecast::Seasonal(_) if self.values.len() == kept => self.values[0],
            Forecast::Constant | Forecast::Kalman | Forecast::Seasonal(_) => value,
        };
        next.max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(forecast: Forecast, values: &[f64]) -> Vec<f64> {
        let mut predictor = Predictor::new(forecast);
        values.iter().map(|value| predictor.next(*value)).collect()
    }

    #[test]
    fn every_forecast_by_hand() {
        let values = [4.0, 8.0, 6.0, 2.0];
        assert_eq!(all(Forecast::Constant, &values), values);
        assert_eq!(all(Forecast::MovingAverage(2), &values), [4.0, 6.0, 7.0, 4.0]);
        // Of a period of three: the last value until three were seen, then the first, the second, …
        assert_eq!(all(Forecast::Seasonal(3), &values), [4.0, 8.0, 4.0, 8.0]);
        assert_eq!(all(Forecast::Constant, &[5.0, -1.0]), [5.0, 0.0], "a load is not below 0");
    }

    #[test]
    fn a_constant_load_is_forecast_exactly_and_a_line_by_its_slope() {
        for forecast in [Forecast::Constant, Forecast::MovingAverage(7), Forecast::Kalman, Forecast::Seasonal(5)] {
            assert!(all(forecast, &[30.0; 40]).iter().all(|next| (next - 30.0).abs() < 1e-9), "{forecast:?}");
        }
        // The filter follows a line without lag in the end; the last value is always one step behind.
        let line: Vec<f64> = (0..200).map(|n| 10.0 + 3.0 * f64::from(n)).collect();
        let next = *all(Forecast::Kalman, &line).last().expect("many");
        assert!((next - 610.0).abs() < 1e-3, "{next}");
        assert_eq!(all(Forecast::Constant, &line)[199], 607.0);
    }

    #[test]
    fn the_filter_ends_at_the_gain_of_its_riccati_equation() {
        // Independent iteration of P = F P Fᵀ + Q and K = P Hᵀ / (H P Hᵀ + R) with full 2 × 2 matrices.
        let [q, q_slope, r] = KALMAN_NOISE;
        let mut p = [[1.0, 0.0], [0.0, 1.0]];
        for _ in 0..500 {
            let f = [[1.0, 1.0], [0.0, 1.0]];
            let mut next = [[q, 0.0], [0.0, q_slope]];
            for (i, row) in next.iter_mut().enumerate() {
                for (j, of) in row.iter_mut().enumerate() {
                    *of += (0..2)
                        .flat_map(|a| (0..2).map(move |b| (a, b)))
                        .map(|(a, b)| f[i][a] * p[a][b] * f[j][b])
                        .sum::<f64>();
                }
            }
            let gain = [next[0][0] / (next[0][0] + r), next[1][0] / (next[0][0] + r)];
            for i in 0..2 {
                for j in 0..2 {
                    p[i][j] = next[i][j] - gain[i] * next[0][j];
                }
            }
        }
        let mut predictor = Predictor::new(Forecast::Kalman);
        (0..500).for_each(|n| {
            predictor.next(f64::from(n % 7));
        });
        let found = predictor.trend.expect("seen").covariance;
        for (found, expected) in found.into_iter().zip([p[0][0], p[0][1], p[1][1]]) {
            assert!((found - expected).abs() < 1e-9, "{found}, {expected}");
        }
    }
}
