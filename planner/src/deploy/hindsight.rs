//! Replicas over time for a load that is known beforehand: the cheapest schedule, and the least that any schedule costs.
//!
//! Time is cut into intervals; in each a load of `load` replicas brings `requests`, of which `n` replicas serve the share
//! min(1, n / load) within the limits. A replica is paid from its start, which is `start_up_s` before it serves, until it is stopped; those of the
//! first interval are there at the start. So a schedule n(t) is paid like the most that it has within the next `start_up_s`,
//!
//! paid(t) = max { n(s) : t <= s <= t + start_up },
//!
//! which holds a replica over a gap that is shorter than a start. Serving everybody takes ceil(load) in every interval.
//!
//! No schedule costs less than the bound. It knows no start-ups, and parts of replicas may run. Work waits as long as limits allow, so a queue carries
//! it into later intervals. One replica is always there, and does first what came first. All work that it cannot do in time takes as long again.
//! Where a share of the requests may miss the limits, those that take most are left out. Where replicas are lost at times, none is always there or paid.
//!
//! Units: seconds, replicas, replica-seconds. A fleet always has one replica.

use std::collections::VecDeque;

use super::whole;

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

/// What comes at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// When it comes, seconds after the start.
    pub at_s: f64,
    /// Replica-seconds that it takes at least.
    pub work_s: f64,
    /// Requests that bring it.
    pub requests: f64,
}

/// Work that is not done yet.
struct Left {
    work_s: f64,
    /// When it has to be done.
    until_s: f64,
}

/// All that comes, for the bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// What comes, in order.
    pub works: Vec<Work>,
    /// Until when a replica is there throughout.
    pub end_s: f64,
}

#[cfg(test)]
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
        moments.sort_unstable_by(f64::total_cmp);
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
    #[cfg(test)]
    pub fn replica_s(&self, replicas: &[u32]) -> f64 {
        let table = self.timetable(replicas);
        let ends = table.iter().skip(1).map(|(at, _)| *at).chain(self.borders().last().copied());
        table.iter().zip(ends).map(|((at, n), end)| f64::from(*n) * (end - at)).sum()
    }

    /// Share of the requests that a schedule serves within the limits.
    #[cfg(test)]
    pub fn met_ratio(&self, replicas: &[u32]) -> f64 {
        let all: f64 = self.intervals.iter().map(|interval| interval.requests).sum();
        self.intervals.iter().zip(replicas).map(|(interval, &n)| interval.met(n)).sum::<f64>() / all
    }

    /// The same load for the bound, where all that comes in an interval may come at its start.
    #[cfg(test)]
    fn load(&self) -> Load {
        let borders = self.borders();
        let work = |(interval, &at_s): (&Interval, &f64)| {
            let Interval { seconds, load, requests } = *interval;
            Work { at_s, work_s: load * seconds, requests }
        };
        let works = self.intervals.iter().zip(&borders).map(work).collect();
        Load { works, end_s: borders.last().copied().unwrap_or(0.0) }
    }

    /// The bound where limits leave the last request of an interval so long.
    #[cfg(test)]
    pub fn bound(&self, met_ratio: f64, patience_s: f64) -> f64 {
        let longest = self.intervals.iter().map(|interval| interval.seconds).fold(0.0, f64::max);
        self.load().bound(met_ratio, longest + patience_s)
    }
}

impl Load {
    /// Replica-seconds that every schedule takes which serves that share of the requests within the limits, where these leave a request so long from its
    /// arrival to its last token.
    pub fn bound(&self, met_ratio: f64, patience_s: f64) -> f64 {
        self.end_s + (self.bound_with_losses(met_ratio) - self.done_by_one(patience_s)).max(0.0)
    }

    /// The same where replicas are lost at times, and are not paid until they are back: then none is always there, and the work alone is paid.
    pub fn bound_with_losses(&self, met_ratio: f64) -> f64 {
        let work: f64 = self.works.iter().map(|work| work.work_s).sum();
        (work - self.left_out(1.0 - met_ratio)).max(0.0)
    }

    /// Work that one replica does in time. What came first is due first, so doing it first does the most.
    fn done_by_one(&self, patience_s: f64) -> f64 {
        let (mut queue, mut done, mut now) = (VecDeque::<Left>::new(), 0.0, 0.0);
        let next = self.works.iter().skip(1).map(|work| work.at_s).chain([self.end_s]);
        for (work, end) in self.works.iter().zip(next) {
            now = work.at_s.max(now);
            queue.push_back(Left { work_s: work.work_s, until_s: work.at_s + patience_s });
            while let Some(first) = queue.front_mut().filter(|_| now < end) {
                let seconds = first.work_s.min(end.min(first.until_s) - now).max(0.0);
                (now, done, first.work_s) = (now + seconds, done + seconds, first.work_s - seconds);
                if first.work_s <= 0.0 || now >= first.until_s {
                    queue.pop_front();
                }
            }
        }
        done
    }

    /// Most work of a share of the requests.
    fn left_out(&self, ratio: f64) -> f64 {
        let all: f64 = self.works.iter().map(|work| work.requests).sum();
        let each = |work: &Work| work.work_s / work.requests;
        let mut by_work: Vec<&Work> = self.works.iter().filter(|work| work.requests > 0.0).collect();
        by_work.sort_by(|a, b| each(b).total_cmp(&each(a)));
        let (mut n_left, mut work_s) = (ratio.max(0.0) * all, 0.0);
        for work in by_work {
            let n = work.requests.min(n_left);
            (n_left, work_s) = (n_left - n, work_s + n * each(work));
        }
        work_s
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
        assert!((found.replica_s(&[3; 7]) - 3.0 * 420.0).abs() < 1e-9);
        assert!((found.bound(1.0, 0.0) - 2.3 * 420.0).abs() < 1e-9);
        assert_eq!(found.timetable(&[3; 7]), [(0.0, 3)]);
    }

    #[test]
    fn a_peak_is_paid_from_its_start_up_and_a_short_gap_is_held() {
        // Load 1, 1, 4, 1, 4, 1 in intervals of 60 s with start-ups of 90 s: three more from 30 s on, held over the gap of 60 s, until 300 s.
        let found = demand(&[1.0, 1.0, 4.0, 1.0, 4.0, 1.0], 60.0, 90.0);
        let needed = found.needed();
        assert_eq!(found.timetable(&needed), [(0.0, 1), (30.0, 4), (300.0, 1)]);
        assert!((found.replica_s(&needed) - (360.0 + 3.0 * 270.0)).abs() < 1e-9);
        // Start-ups of 20 s: the gap is not held.
        let found = demand(&[1.0, 1.0, 4.0, 1.0, 4.0, 1.0], 60.0, 20.0);
        assert_eq!(found.timetable(&needed), [(0.0, 1), (100.0, 4), (180.0, 1), (220.0, 4), (300.0, 1)]);
        assert!((found.replica_s(&needed) - (360.0 + 3.0 * 160.0)).abs() < 1e-9);
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
        fn no_schedule_is_below_the_bound(
            loads in proptest::collection::vec(0.2_f64..3.9, 1..6),
            start_up_s in 0.0_f64..150.0,
            met_ratio in 0.3_f64..0.999,
            patience_s in 0.0_f64..150.0,
        ) {
            let demand = demand(&loads, 60.0, start_up_s);
            let [all, some] = [1.0, met_ratio].map(|met| cheapest(&demand, met));
            prop_assert!(demand.bound(1.0, 0.0) <= all * (1.0 + 1e-9), "{} and {all}", demand.bound(1.0, 0.0));
            prop_assert!(demand.bound(met_ratio, 0.0) <= some * (1.0 + 1e-9), "{} and {some}", demand.bound(met_ratio, 0.0));
            // Without waiting it is what parts of replicas take: the load, and one replica at least.
            let parts: f64 = loads.iter().map(|load| 60.0 * load.max(1.0)).sum();
            prop_assert!((demand.bound(1.0, 0.0) - parts).abs() < 1e-9 * parts);
            // Waiting makes nothing dearer, and no wait does work before it comes.
            let work: f64 = loads.iter().map(|load| 60.0 * load).sum();
            let patient = demand.bound(1.0, patience_s);
            prop_assert!(patient <= parts * (1.0 + 1e-9) && patient >= work * (1.0 - 1e-9));
        }
    }

    #[test]
    fn work_waits_for_a_replica_as_long_as_limits_allow() {
        let bound = |loads: &[f64], patience_s| demand(loads, 60.0, 0.0).bound(1.0, patience_s);
        // 180 s of work in the first of three minutes: one replica does it by itself, or two thirds of it, or one.
        let first = [3.0, 0.0, 0.0];
        assert!((bound(&first, 120.0) - 180.0).abs() < 1e-9);
        assert!((bound(&first, 60.0) - 240.0).abs() < 1e-9);
        assert!((bound(&first, 0.0) - 300.0).abs() < 1e-9);
        // The same in the last one: nobody does it before.
        assert!((bound(&[0.0, 0.0, 3.0], 1e9) - 300.0).abs() < 1e-9);
    }

    #[test]
    fn a_replica_that_is_lost_is_not_paid() {
        // Half a replica for three minutes. One that is there throughout is paid 180 s; one that is away for half of them did 90 s of work at least.
        let found = demand(&[0.5; 3], 60.0, 0.0);
        assert!((found.bound(1.0, 60.0) - 180.0).abs() < 1e-9);
        assert!((found.load().bound_with_losses(1.0) - 90.0).abs() < 1e-9);
        // Who leaves half of the requests out leaves half of the work.
        assert!((found.load().bound_with_losses(0.5) - 45.0).abs() < 1e-9);
    }

    #[test]
    fn a_lower_share_costs_no_more() {
        let found = demand(&[0.5, 2.2, 7.9, 3.1, 6.4, 1.0], 60.0, 45.0);
        let bounds: Vec<f64> = (1..=20).map(|n| found.bound(f64::from(n) / 20.0, 30.0)).collect();
        assert!(bounds.windows(2).all(|pair| pair[0] <= pair[1] + 1e-6), "{bounds:?}");
        assert!((found.met_ratio(&found.needed()) - 1.0).abs() < 1e-12);
    }
}
