//! When requests arrive: Poisson, Gamma by its coefficient of variation, or as recorded, faster or slower.
//!
//! Units: requests per second. Draws come from named streams and `libm`, so arrivals are the same on every platform.

use hw::{Seconds, Span, Time};

use crate::random::{self, Stream};
use crate::serving::request::Requests;

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Independent of each other, so many per second on average.
    Poisson {
        /// Mean rate.
        per_s: f64,
    },
    /// Gaps follow a Gamma law: bursts where the coefficient of variation is above 1, regular below.
    Gamma {
        /// Mean rate.
        per_s: f64,
        /// Standard deviation of gaps over their mean; above 0.
        cv: f64,
    },
    /// As recorded, with time running `speed` times as fast.
    Replay {
        /// Recorded time over simulated time; above 0.
        speed: f64,
    },
}

/// Lays arrivals over requests.
///
/// # Panics
/// When a rate, a coefficient or a speed is not positive; the scenario reader holds the ranges.
pub fn lay(requests: &mut Requests, arrivals: Arrivals, seed: u64) {
    let mut stream = random::stream(seed, "arrivals");
    let mut now_s = 0.0;
    for request in &mut requests.list {
        let at_s = match arrivals {
            Arrivals::Poisson { per_s } => {
                assert!(per_s > 0.0, "a rate is positive, found {per_s}");
                now_s += exponential(&mut stream) / per_s;
                now_s
            }
            Arrivals::Gamma { per_s, cv } => {
                assert!(per_s > 0.0, "a rate is positive, found {per_s}");
                assert!(cv > 0.0, "a coefficient of variation is positive, found {cv}");
                let shape = 1.0 / (cv * cv);
                now_s += gamma(&mut stream, shape) / (shape * per_s);
                now_s
            }
            Arrivals::Replay { speed } => {
                assert!(speed > 0.0, "a speed is positive, found {speed}");
                (request.arrival - Time::ZERO).to_seconds().get() / speed
            }
        };
        request.arrival = Time::ZERO + Span::from_seconds(Seconds::new(at_s));
    }
}

/// An exponential draw of mean 1.
fn exponential(stream: &mut Stream) -> f64 {
    // 1 − u lies in (0, 1], so the logarithm is finite.
    -libm::log(1.0 - stream.unit())
}

/// A standard normal draw (Box-Muller; one of the pair is enough here).
fn normal(stream: &mut Stream) -> f64 {
    let radius = libm::sqrt(2.0 * exponential(stream));
    radius * libm::cos(std::f64::consts::TAU * stream.unit())
}

/// A Gamma draw of that shape and scale 1 (Marsaglia and Tsang, ACM TOMS 26, 2000).
fn gamma(stream: &mut Stream, shape: f64) -> f64 {
    if shape < 1.0 {
        // Gamma(a) = Gamma(a + 1) · u^(1/a).
        let u = 1.0 - stream.unit();
        return gamma(stream, shape + 1.0) * libm::pow(u, 1.0 / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / libm::sqrt(9.0 * d);
    loop {
        let x = normal(stream);
        let v = libm::pow(1.0 + c * x, 3.0);
        if v > 0.0 && libm::log(1.0 - stream.unit()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
            return d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::request::Request;

    /// Mean and coefficient of variation of 100,000 gaps.
    fn gaps(arrivals: Arrivals) -> (f64, f64) {
        let mut requests = Requests::of(vec![Request::new(Time::ZERO, 1, 1); 100_000]);
        lay(&mut requests, arrivals, 3);
        let times: Vec<f64> = requests.list.iter().map(|r| (r.arrival - Time::ZERO).to_seconds().get()).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let n = hw::Tokens(gaps.len() as u64).as_f64();
        let mean = gaps.iter().sum::<f64>() / n;
        let variance = gaps.iter().map(|gap| (gap - mean) * (gap - mean)).sum::<f64>() / n;
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn gaps_have_the_mean_and_the_spread_that_were_asked_for() {
        // An exponential gap has a coefficient of variation of 1; so has a Gamma gap with cv 1.
        for (arrivals, cv) in [
            (Arrivals::Poisson { per_s: 4.0 }, 1.0),
            (Arrivals::Gamma { per_s: 4.0, cv: 1.0 }, 1.0),
            (Arrivals::Gamma { per_s: 4.0, cv: 0.5 }, 0.5),
            (Arrivals::Gamma { per_s: 4.0, cv: 2.5 }, 2.5),
        ] {
            let (mean, found) = gaps(arrivals);
            assert!((mean * 4.0 - 1.0).abs() < 0.03, "{arrivals:?}: mean gap {mean} s");
            assert!((found / cv - 1.0).abs() < 0.03, "{arrivals:?}: coefficient of variation {found}");
        }
    }

    #[test]
    fn replay_at_double_speed_halves_every_arrival() {
        let mut requests = Requests::of(vec![Request::new(Time::from_ns(3_000), 1, 1)]);
        lay(&mut requests, Arrivals::Replay { speed: 2.0 }, 0);
        assert_eq!(requests.list[0].arrival, Time::from_ns(1_500));
    }
}
