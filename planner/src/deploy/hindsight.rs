//! Replicas over time for a load that is known beforehand: the cheapest schedule, and the least that any schedule costs.
//!
//! Time is cut into intervals; in each a load of `load` replicas brings `requests`, of which `n` replicas serve the share
//! min(1, n / load) within the limits. A replica is paid from its start, which is `start_up_s` before it serves, until it is stopped; those of the
//! first interval are there at the start. So a schedule n(t) is paid like the most that it has within the next `start_up_s`,
//!
//! paid(t) = max { n(s) : t <= s <= t + start_up },
//!
//! which holds a replica over a gap that is shorter than a start. Serving everybody takes ceil(load) in every interval, and is optimal
//! so. Serving a share is a program with one constraint over all intervals: its Lagrangian relaxation, a dynamic programme over replicas
//! for each price of a request, bounds it from below (right-sizing with hindsight: Lin, Wierman, Andrew and Thereska, INFOCOM 2011).
//!
//! Units: seconds, replicas, replica-seconds. A fleet always has one replica.

use super::whole;

/// Prices of a request that the relaxation tries; each gives a bound.
const PRICES: usize = 60;

/// An interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Its length.
    pub seconds: f64,
    /// Replicas that its requests take, in parts of one.
    pub load: f64,
    /// Requests that arrive.
    pub requests: f64,
}

/// A load over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Intervals, one after another.
    pub intervals: Vec<Interval>,
    /// From the start of a replica until it serves.
    pub start_up_s: f64,
}

impl Interval {
    fn met(&self, n: u32) -> f64 {
        if self.load > 0.0 { self.requests * (f64::from(n) / self.load).min(1.0) } else { self.requests }
    }
}

impl Demand {
    /// Replicas that serve everybody, in every interval.
    pub fn needed(&self) -> Vec<u32> {
        self.intervals.iter().map(|interval| whole((interval.load - 1e-9).ceil().max(1.0))).collect()
    }

    /// Starts of the intervals and the end of the last one.
    fn borders(&self) -> Vec<f64> {
        let mut now = 0.0;
        let ends = self.intervals.iter().map(|interval| {
            now += interval.seconds;
            now
        });
        std::iter::once(0.0).chain(ends).collect()
    }

    /// When a schedule has how many replicas paid, start-ups included: moments and counts, the first at 0.
    pub fn timetable(&self, replicas: &[u32]) -> Vec<(f64, u32)> {
        let borders = self.borders();
        let starts = borders.iter().map(|start| (start - self.start_up_s).max(0.0));
        let mut moments: Vec<f64> = borders.iter().copied().chain(starts).collect();
        moments.sort_by(f64::total_cmp);
        let end = borders.last().copied().unwrap_or(0.0);
        let mut table: Vec<(f64, u32)> = Vec::new();
        for at in moments.into_iter().filter(|at| *at < end) {
            let slack = 1e-9 * end;
            let counts = |i: usize| borders[i] <= at + self.start_up_s + slack && borders[i + 1] > at + slack;
            let paid = (0..replicas.len()).filter(|&i| counts(i)).map(|i| replicas[i]).max().unwrap_or(1);
            if table.last().is_none_or(|(_, before)| *before != paid) {
                table.push((at, paid));
            }
        }
        table
    }

    /// What a schedule costs, replica-seconds.
    pub fn replica_s(&self, replicas: &[u32]) -> f64 {
        let table = self.timetable(replicas);
        let ends = table.iter().skip(1).map(|(at, _)| *at).chain(self.borders().last().copied());
        table.iter().zip(ends).map(|((at, n), end)| f64::from(*n) * (end - at)).sum()
    }

    /// Share of the requests that a schedule serves within the limits.
    pub fn met_ratio(&self, replicas: &[u32]) -> f64 {
        let all: f64 = self.intervals.iter().map(|interval| interval.requests).sum();
        self.intervals.iter().zip(replicas).map(|(interval, &n)| interval.met(n)).sum::<f64>() / all
    }

    /// Replica-seconds that every schedule takes which serves that share of the requests within the limits.
    pub fn bound(&self, met_ratio: f64) -> f64 {
        if met_ratio >= 1.0 {
            return self.replica_s(&self.needed());
        }
        let asked = met_ratio * self.intervals.iter().map(|interval| interval.requests).sum::<f64>();
        let mut best = self.relaxed(0.0).0;
        let (mut low, mut high) = (0.0, f64::INFINITY);
        let mut price = 1.0;
        for _ in 0..PRICES {
            let (cost, met) = self.relaxed(price);
            best = best.max(cost + price * asked);
            if met < asked {
                low = price;
            } else {
                high = price;
            }
            price = if high.is_finite() { f64::midpoint(low, high) } else { 2.0 * price };
        }
        best
    }

    /// The least of cost less `price` per request served, and the requests that are then served.
    fn relaxed(&self, price: f64) -> (f64, f64) {
        let most = self.needed().into_iter().max().unwrap_or(1);
        // By replicas: cost so far, requests served.
        let mut best: Vec<(f64, f64)> = Vec::new();
        for interval in &self.intervals {
            let before = if best.is_empty() { vec![(0.0, 0.0); most as usize] } else { self.moved(best) };
            let of = |(n, (cost, met)): (u32, (f64, f64))| {
                let served = interval.met(n);
                (cost + f64::from(n) * interval.seconds - price * served, met + served)
            };
            best = (1..=most).zip(before).map(of).collect();
        }
        best.into_iter().reduce(|a, b| if b.0 < a.0 { b } else { a }).unwrap_or((0.0, 0.0))
    }

    /// The cheapest way to each count from any: stopping is free, starting costs a start-up.
    fn moved(&self, mut best: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
        for n in (0..best.len().saturating_sub(1)).rev() {
            if best[n + 1].0 < best[n].0 {
                best[n] = best[n + 1];
            }
        }
        for n in 1..best.len() {
            let started = best[n - 1].0 + self.start_up_s;
            if started < best[n].0 {
                best[n] = (started, best[n - 1].1);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn demand(loads: &[f64], seconds: f64, start_up_s: f64) -> Demand {
        let interval = |&load: &f64| Interval { seconds, load, requests: 10.0 * load };
        Demand { intervals: loads.iter().map(interval).collect(), start_up_s }
    }

    #[test]
    fn a_constant_load_takes_its_replicas_all_the_time() {
        let found = demand(&[2.3; 7], 60.0, 90.0);
        assert_eq!(found.needed(), [3; 7]);
        assert!((found.bound(1.0) - 3.0 * 420.0).abs() < 1e-9);
        assert_eq!(found.timetable(&[3; 7]), [(0.0, 3)]);
    }

    #[test]
    fn a_peak_is_paid_from_its_start_up_and_a_short_gap_is_held() {
        // Load 1, 1, 4, 1, 4, 1 in intervals of 60 s with start-ups of 90 s: three more from 30 s on, held over the gap of 60 s, until 300 s.
        let found = demand(&[1.0, 1.0, 4.0, 1.0, 4.0, 1.0], 60.0, 90.0);
        let needed = found.needed();
        assert_eq!(found.timetable(&needed), [(0.0, 1), (30.0, 4), (300.0, 1)]);
        assert!((found.bound(1.0) - (360.0 + 3.0 * 270.0)).abs() < 1e-9);
        // Start-ups of 20 s: the gap is not held.
        let found = demand(&[1.0, 1.0, 4.0, 1.0, 4.0, 1.0], 60.0, 20.0);
        assert_eq!(found.timetable(&needed), [(0.0, 1), (100.0, 4), (180.0, 1), (220.0, 4), (300.0, 1)]);
        assert!((found.bound(1.0) - (360.0 + 3.0 * 160.0)).abs() < 1e-9);
    }

    /// The cheapest of all schedules that serve a share, by trying every one.
    fn cheapest(demand: &Demand, met_ratio: f64) -> f64 {
        let most = demand.needed().into_iter().max().expect("intervals");
        let n = demand.intervals.len();
        let all = (0..most.pow(u32::try_from(n).expect("few"))).map(|mut code| {
            let digit = |_| {
                let of = code % most + 1;
                code /= most;
                of
            };
            (0..n).map(digit).collect::<Vec<u32>>()
        });
        let meets = |replicas: &Vec<u32>| demand.met_ratio(replicas) >= met_ratio - 1e-12;
        all.filter(meets).map(|replicas| demand.replica_s(&replicas)).fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_schedule_is_below_the_bound_and_serving_everybody_reaches_it(
            loads in proptest::collection::vec(0.2_f64..3.9, 1..6),
            start_up_s in 0.0_f64..150.0,
            met_ratio in 0.3_f64..0.999,
        ) {
            let demand = demand(&loads, 60.0, start_up_s);
            let all = cheapest(&demand, 1.0);
            prop_assert!((demand.bound(1.0) - all).abs() < 1e-6 * all, "{} and {all}", demand.bound(1.0));
            let some = cheapest(&demand, met_ratio);
            let bound = demand.bound(met_ratio);
            prop_assert!(bound <= some * (1.0 + 1e-9), "{bound} and {some}");
            // At least what one replica all the time takes, and less than everybody's.
            let seconds = 60.0 * hw::real(loads.len() as u64);
            prop_assert!(bound >= seconds * (1.0 - 1e-9) && bound <= all * (1.0 + 1e-9));
        }
    }

    #[test]
    fn a_lower_share_costs_no_more() {
        let found = demand(&[0.5, 2.2, 7.9, 3.1, 6.4, 1.0], 60.0, 45.0);
        let bounds: Vec<f64> = (1..=20).map(|n| found.bound(f64::from(n) / 20.0)).collect();
        assert!(bounds.windows(2).all(|pair| pair[0] <= pair[1] + 1e-6), "{bounds:?}");
        assert!((found.met_ratio(&found.needed()) - 1.0).abs() < 1e-12);
    }
}
