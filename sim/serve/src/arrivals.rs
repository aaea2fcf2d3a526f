//! When requests arrive: Poisson, Gamma by its coefficient of variation, or as recorded, faster or slower.
//!
//! Units: requests per second. Draws come from named streams and `libm`, so arrivals are the same on every platform.

use hw::{Seconds, Span, Time};

use crate::request::{Request, Requests};
use engine::random::{self, Stream};
use engine::stop;

/// Latest arrival, seconds after the start (92 days): a span of time holds it exactly, and what is served after it.
pub const ARRIVAL_S_MAX: f64 = 8.0e6;

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

/// A rate that changes at known times.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Seconds from which a rate holds, ascending from 0, and requests per second; the last one holds on, and is above 0.
    pub pieces: Vec<(f64, f64)>,
    /// After so many seconds, beyond the last piece's start, it begins again.
    pub repeat_s: Option<f64>,
    /// Coefficient of variation of gaps while the rate stays; 1 is Poisson.
    pub cv: f64,
}

/// Lays arrivals at a changing rate over requests: gaps of mean 1 in the time in which the rate is 1 (the time change of an inhomogeneous
/// process). Requests that would arrive after `ARRIVAL_S_MAX` are dropped; says how many.
///
/// # Panics
/// When no piece has a rate above 0; the scenario reader holds that.
pub fn lay_schedule(requests: &mut Requests, schedule: &Schedule, seed: u64) -> usize {
    let mut stream = random::stream(seed, "arrivals");
    let shape = 1.0 / (schedule.cv * schedule.cv);
    assert!(schedule.pieces.iter().any(|(_, per_s)| *per_s > 0.0), "somebody arrives");
    let (mut piece, mut turn_s, mut now_s) = (0, 0.0, 0.0);
    lay_each(requests, |_| {
        let is_poisson = (schedule.cv - 1.0).abs() < f64::EPSILON;
        let mut left = if is_poisson { stream.exponential() } else { gamma(&mut stream, shape) / shape };
        while now_s <= ARRIVAL_S_MAX {
            let per_s = schedule.pieces[piece].1;
            let next = schedule.pieces.get(piece + 1).map(|(from_s, _)| *from_s).or(schedule.repeat_s);
            let until_s = turn_s + next.unwrap_or(f64::INFINITY);
            if per_s > 0.0 && left / per_s <= until_s - now_s {
                now_s += left / per_s;
                break;
            }
            left -= per_s * (until_s - now_s);
            now_s = until_s;
            piece += 1;
            if piece == schedule.pieces.len() {
                (piece, turn_s) = (0, until_s);
            }
        }
        now_s
    })
}

/// Gives every request, in order, its arrival in seconds, and drops them from the first on that arrives after `ARRIVAL_S_MAX`; says how many.
fn lay_each(requests: &mut Requests, mut arrival_s: impl FnMut(&Request) -> f64) -> usize {
    let n = requests.list.len();
    let mut n_kept = 0;
    for request in &mut requests.list {
        stop::pause();
        let at_s = arrival_s(request);
        if at_s > ARRIVAL_S_MAX {
            break;
        }
        request.arrival = Time::ZERO + Span::from_seconds(Seconds::new(at_s));
        n_kept += 1;
    }
    requests.list.truncate(n_kept);
    n - n_kept
}

/// Lays arrivals over requests. Those that would arrive after `ARRIVAL_S_MAX` are dropped; says how many.
///
/// # Panics
/// When a rate, a coefficient or a speed is not positive; the scenario reader holds the ranges.
pub fn lay(requests: &mut Requests, arrivals: Arrivals, seed: u64) -> usize {
    let mut stream = random::stream(seed, "arrivals");
    let mut now_s = 0.0;
    lay_each(requests, |request| match arrivals {
        Arrivals::Poisson { per_s } => {
            assert!(per_s > 0.0, "a rate is positive, found {per_s}");
            now_s += stream.exponential() / per_s;
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
    })
}

/// A Gamma draw with a mean and a coefficient of variation above 0.
pub fn gamma_of(stream: &mut Stream, mean: f64, cv: f64) -> f64 {
    let shape = 1.0 / (cv * cv);
    gamma(stream, shape) * mean / shape
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
        let x = stream.normal();
        let v = libm::pow(1.0 + c * x, 3.0);
        if v > 0.0 && libm::log(1.0 - stream.unit()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
            return d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_after_the_end_of_time_are_dropped_and_counted() {
        // One in 4e6 seconds: the draws of the first few stay below 8e6 s, and none after them can be represented.
        let mut requests = Requests::of(vec![Request::new(Time::ZERO, 1, 1); 50]);
        let left_out = lay(&mut requests, Arrivals::Poisson { per_s: 2.5e-7 }, 3);
        assert_eq!(left_out + requests.len(), 50);
        assert!((1..20).contains(&requests.len()), "{}", requests.len());
        // A rate of nearly nothing in every turn of a schedule ends all the same.
        let schedule = Schedule { pieces: vec![(0.0, 1e-12)], repeat_s: Some(1.0), cv: 1.0 };
        let mut requests = Requests::of(vec![Request::new(Time::ZERO, 1, 1); 2]);
        assert_eq!(lay_schedule(&mut requests, &schedule, 3), 2);
    }

    /// Mean and coefficient of variation of 100,000 gaps.
    fn gaps(arrivals: Arrivals) -> (f64, f64) {
        let mut requests = Requests::of(vec![Request::new(Time::ZERO, 1, 1); 100_000]);
        lay(&mut requests, arrivals, 3);
        let times: Vec<f64> = requests.list.iter().map(|r| (r.arrival - Time::ZERO).to_seconds().get()).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let n = hw::real(gaps.len() as u64);
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

    /// A draw of few requests is faster or slower than its rate by chance: by `cv / √n` of it. So no seed is drawn towards either, and neighbours are
    /// as far from each other as strangers.
    #[test]
    fn seeds_are_fast_and_slow_alike() {
        let (n, per_s) = (300, 4.0);
        let mean_gap = |arrivals: Arrivals, seed: u64| {
            let mut requests = Requests::of(vec![Request::new(Time::ZERO, 1, 1); n]);
            lay(&mut requests, arrivals, seed);
            (requests.list[n - 1].arrival - Time::ZERO).to_seconds().get() * per_s / hw::real(n as u64)
        };
        for (arrivals, cv) in [(Arrivals::Poisson { per_s }, 1.0), (Arrivals::Gamma { per_s, cv: 2.0 }, 2.0)] {
            let means: Vec<f64> = (0..200).map(|seed| mean_gap(arrivals, seed)).collect();
            let n_seeds = hw::real(means.len() as u64);
            let mean = means.iter().sum::<f64>() / n_seeds;
            let spread = (means.iter().map(|one| (one - mean) * (one - mean)).sum::<f64>() / n_seeds).sqrt();
            // Four and three standard deviations of a mean and of a spread over 200 seeds.
            let expected = cv / hw::real(n as u64).sqrt();
            assert!((mean - 1.0).abs() < 4.0 * expected / n_seeds.sqrt(), "{arrivals:?}: {mean}");
            assert!((spread / expected - 1.0).abs() < 3.0 / (2.0 * n_seeds).sqrt(), "{arrivals:?}: {spread}");
            let neighbours: f64 = means.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
            assert!(
                (neighbours / (n_seeds * spread * spread)).abs() < 4.0 / n_seeds.sqrt(),
                "{arrivals:?}: {neighbours}"
            );
        }
    }

    #[test]
    fn replay_at_double_speed_halves_every_arrival() {
        let mut requests = Requests::of(vec![Request::new(Time::from_ns(3_000), 1, 1)]);
        lay(&mut requests, Arrivals::Replay { speed: 2.0 }, 0);
        assert_eq!(requests.list[0].arrival, Time::from_ns(1_500));
    }

    #[test]
    fn a_schedule_of_one_rate_is_poisson() {
        let mut plain = Requests::of(vec![Request::new(Time::ZERO, 1, 1); 1000]);
        let mut scheduled = plain.clone();
        lay(&mut plain, Arrivals::Poisson { per_s: 7.0 }, 3);
        lay_schedule(&mut scheduled, &Schedule { pieces: vec![(0.0, 7.0)], repeat_s: None, cv: 1.0 }, 3);
        assert_eq!(plain, scheduled);
    }

    #[test]
    fn every_piece_of_a_schedule_has_its_rate() {
        // 10 per second for 100 s, none for 50 s, 40 per second for 100 s, over and over.
        let pieces = vec![(0.0, 10.0), (100.0, 0.0), (150.0, 40.0)];
        for cv in [1.0, 0.5, 2.0] {
            let schedule = Schedule { pieces: pieces.clone(), repeat_s: Some(250.0), cv };
            let mut requests = Requests::of(vec![Request::new(Time::ZERO, 1, 1); 100_000]);
            lay_schedule(&mut requests, &schedule, 3);
            let mut counts = [0.0; 3];
            for request in &requests.list {
                let at_s = (request.arrival - Time::ZERO).to_seconds().get() % 250.0;
                counts[if at_s < 100.0 {
                    0
                } else if at_s < 150.0 {
                    1
                } else {
                    2
                }] += 1.0;
            }
            // 20 turns of 1,000 and 4,000 requests; counts of a renewal process vary by cv² times their number.
            for (found, expected) in counts.into_iter().zip([20_000.0, 0.0, 80_000.0]) {
                let tolerance = 4.0 * cv * libm::sqrt(expected) + 1.0;
                assert!((found - expected).abs() <= tolerance, "cv {cv}: {counts:?}");
            }
        }
    }
}
