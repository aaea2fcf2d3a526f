//! How near a fleet is to what it can serve: who waits in the middle and at the end of the arrivals, beside how busy replicas are.
//!
//! A replica that decodes is busy with one sequence as with a hundred, so utilisation alone says little. What waits says the rest. Replicas count by the time in
//! which they served: one that loads, or that was never started, takes no work off the others. Below the
//! limit the queue comes back to its mean; near it the mean grows as 1/(1 − ρ) and a draw of finite length scatters as much
//! (Pollaczek and Khinchine); above it the queue grows with every arrival. Requests that come as others end do not tell: their queue cannot grow.

use hw::{Tick, TickSum, Time};

use super::Latencies;
use crate::fleet::Served;
use crate::fleet::start::Start;
use crate::request::Requests;

/// Share of the time from which on the busiest group, or its frontends, may be at its limit.
pub(super) const BUSY: f64 = 0.9;
/// Mean wait in iterations from which on it is near its limit. A queue of one server with fixed times waits 4.5 at 90 %, 0.5 at 50 %.
const WAIT_STEPS: f64 = 4.0;
/// Standard deviations of Poisson arrivals that a growing queue gains in the second half of the arrivals.
const GROWTH_DEVIATIONS: f64 = 2.0;
/// A queue that grows is twice as long at the end as in the middle; at least so many times.
const GROWTH: f64 = 1.5;

/// How near a fleet is to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saturation {
    /// Whoever comes waits for no more than an iteration or two.
    Below,
    /// The queue is long and does not grow.
    Near,
    /// The queue grows as long as requests come.
    Beyond,
}

/// What sets the rate at which requests end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateSetBy {
    /// Clients that send at a rate of their own.
    Arrivals,
    /// How fast the fleet is: the queue grows, all came at one moment, or requests come as others end.
    Fleet,
}

impl RateSetBy {
    /// What a queue says; there is none where all came at one moment or as others end.
    pub fn of(queue: Option<&Queue>) -> Self {
        match queue.map(Queue::saturation) {
            Some(Saturation::Below | Saturation::Near) => Self::Arrivals,
            Some(Saturation::Beyond) | None => Self::Fleet,
        }
    }
}

/// What is seen of the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queue {
    /// Share of the time in which its replicas serve that the busiest group works, or of the time that the busiest link between replicas does.
    pub busy: f64,
    /// Requests that wait for their first iteration halfway through the arrivals, and with the last arrival.
    pub waiting: [u64; 2],
    /// Mean wait over mean iteration.
    pub wait_steps: f64,
    /// Mean wait, seconds.
    pub wait_s: f64,
    /// From the first arrival to the last, seconds.
    pub arrivals_s: f64,
    /// Arrivals in the second half.
    pub n_later: u64,
}

impl Queue {
    /// Of requests that came by themselves, and were on the way to the queue for a start; `None` where all came at one moment or none was served.
    pub fn of(requests: &Requests, served: &Served, start: &Start) -> Option<Self> {
        let (first, last) = (requests.list.first()?.arrival, requests.list.last()?.arrival);
        let middle = first + hw::Span::from_ns((last - first).as_ns() / 2);
        if middle == first {
            return None;
        }
        let starts: Vec<Tick> = start.drawn(requests);
        let wait = |(found, start): (Option<Latencies>, &Tick)| Some(found?.queue_s - start.to_seconds());
        let waits: Vec<f64> = super::latencies(requests, served).zip(&starts).filter_map(wait).collect();
        let n_steps: u64 = served.counts.iter().map(|counts| counts.n_steps).sum();
        if waits.is_empty() || n_steps == 0 {
            return None;
        }
        let busy_s = served.counts.iter().map(|counts| counts.busy_ticks).sum::<TickSum>().as_ns() / 1e9;
        let step_s = busy_s / hw::real(n_steps);
        let mean_s = waits.iter().sum::<f64>() / hw::real(waits.len() as u64);
        Some(Self {
            busy: busiest(served).max(served.link_busy()),
            waiting: [middle, last].map(|at| waiting((requests, served), &starts, at)),
            wait_steps: mean_s / step_s,
            wait_s: mean_s,
            arrivals_s: (last - first).to_seconds().get(),
            n_later: requests.list.iter().filter(|request| request.arrival > middle).count() as u64,
        })
    }

    /// Whether requests wait for longer than all of them take to come. Then the queue is not seen to grow: who came is on the way to it still.
    pub fn is_crowd(&self) -> bool {
        self.wait_s > self.arrivals_s
    }

    /// What it says.
    pub fn saturation(&self) -> Saturation {
        let [middle, end] = self.waiting.map(hw::real);
        let least = GROWTH_DEVIATIONS * hw::real(self.n_later).sqrt();
        if self.busy < BUSY || self.wait_steps < WAIT_STEPS {
            Saturation::Below
        } else if self.is_crowd() || (end - middle > least && end > GROWTH * middle) {
            Saturation::Beyond
        } else {
            Saturation::Near
        }
    }
}

impl Served {
    /// Share of the run that the busiest link between replicas works.
    pub fn link_busy(&self) -> f64 {
        (self.moved.link_ticks.as_f64() / self.records.end_ticks().as_f64().max(1.0)).min(1.0)
    }
}

/// Requests that are in the queue by a moment and have not begun.
fn waiting((requests, served): (&Requests, &Served), starts: &[Tick], at: Time) -> u64 {
    let all = requests.list.iter().zip(&served.records.list).zip(starts);
    let waits = all.filter(|((request, record), start)| {
        let left = record.scheduled().or_else(|| record.ended());
        // Who was refused never waited.
        request.arrival + start.span() <= at && record.replica != u32::MAX && left.is_none_or(|left| left > at)
    });
    waits.count() as u64
}

/// Share of the time in which its replicas serve that the busiest group works.
fn busiest(served: &Served) -> f64 {
    let n_groups = served.group_of.iter().max().map_or(0, |last| last + 1);
    (0..n_groups).map(|group| busy(served, group)).fold(0.0, f64::max)
}

fn busy(served: &Served, group: u32) -> f64 {
    let replicas = served.counts.iter().zip(&served.up_ticks).zip(&served.group_of);
    let of_group = replicas.filter(|(_, of)| **of == group).map(|(found, _)| found);
    let busy = of_group.clone().map(|(counts, up)| counts.busy_ticks.min(*up)).sum::<TickSum>();
    let up = of_group.map(|(_, up)| *up).sum::<TickSum>();
    busy.as_ns() / up.as_ns().max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_clients_while_the_queue_stays_short() {
        let [below, beyond] = [0.5, 1.5].map(|load| queue(load, 4000, 1));
        let of = [Some(&below), Some(&beyond), None].map(RateSetBy::of);
        assert_eq!(of, [RateSetBy::Arrivals, RateSetBy::Fleet, RateSetBy::Fleet]);
    }
    use crate::arrivals::{Arrivals, lay};
    use crate::fleet::dynamics::{Rule, Scaling};
    use crate::fleet::{Fleet, Group, serve};
    use crate::replica::{Engine, Limits, Spans};
    use crate::request::Request;
    use crate::step_cost::StepTable;
    use crate::{batcher, router};
    use hw::Seconds;

    /// One server of a hundredth of a second at a load, requests from a Poisson process.
    fn queue(load: f64, n: usize, seed: u64) -> Queue {
        let limits = Limits { sequences_max: 1, tokens_max: 512, ..Limits::ROOMY };
        let table = StepTable::constant(Seconds::new(0.01));
        let engine =
            Engine { limits, table, batcher: batcher::named("vllm-v1").expect("listed"), spans: Spans::Closed };
        let mut requests = Requests::of(vec![Request::new(Time::ZERO, 1, 1); n]);
        lay(&mut requests, Arrivals::Poisson { per_s: load / 0.01 }, seed);
        let served = serve(&requests, &[&engine], (router::ROUTERS[0].make)(0).as_mut());
        Queue::of(&requests, &served, &Start::default()).expect("requests that came and were served")
    }

    #[test]
    fn a_server_of_fixed_time_is_below_near_or_beyond_its_limit_as_its_load_says() {
        let mut waits = 0.0;
        for seed in 0..10 {
            let found = |load| queue(load, 20_000, seed);
            let half = found(0.5);
            assert!((half.busy - 0.5).abs() < 0.02, "{half:?}");
            // W = ρ·D / (2·(1 − ρ)): half an iteration at 50 %.
            assert!((half.wait_steps - 0.5).abs() < 0.05, "{half:?}");
            assert_eq!(half.saturation(), Saturation::Below, "{half:?}");
            let near = found(0.95);
            waits += near.wait_steps / 10.0;
            assert_eq!(near.saturation(), Saturation::Near, "{near:?}");
            // 10 of 110 that come wait on: 909 of 10,000.
            let beyond = found(1.1);
            let gained = hw::real(beyond.waiting[1] - beyond.waiting[0]);
            assert!((gained - 909.0).abs() < 400.0, "{beyond:?}");
            assert_eq!(beyond.saturation(), Saturation::Beyond, "{beyond:?}");
        }
        // Nine and a half at 95 %: a draw scatters by a third, ten of them by a tenth.
        assert!((waits / 9.5 - 1.0).abs() < 0.3, "{waits} iterations");
    }

    #[test]
    fn requests_that_come_within_a_moment_are_more_than_the_server_takes() {
        // 2,000 within 20 ns, and one takes 10 ms: the mean wait is 10 s.
        let found = queue(1e9, 2000, 3);
        assert!(found.is_crowd() && (found.wait_s / 10.0 - 1.0).abs() < 0.05, "{found:?}");
        assert_eq!(found.saturation(), Saturation::Beyond);
        assert!(!queue(0.95, 2000, 3).is_crowd());
    }

    #[test]
    fn replicas_that_load_or_never_start_take_no_work_off_the_others() {
        // One server of a hundredth of a second with 95 requests a second, and three beside it: never started, or all loading until after the last request.
        let table = StepTable::constant(Seconds::new(0.01));
        let limits = Limits { sequences_max: 1, tokens_max: 512, ..Limits::ROOMY };
        let engine =
            Engine { limits, table, batcher: batcher::named("vllm-v1").expect("listed"), spans: Spans::Closed };
        let mut requests = Requests::of(vec![Request::new(Time::ZERO, 1, 1); 20_000]);
        lay(&mut requests, Arrivals::Poisson { per_s: 95.0 }, 1);
        let busy = |n: u32, rows: Vec<(Time, u32)>| {
            let (rule, start_up) = (Rule::Timetable(rows), Seconds::new(1e6));
            let scaling = Some(Scaling { replicas_min: 1, replicas_first: 1, start_up, rule });
            let fleet = Fleet::of(Group { scaling, ..Group::new("all", engine.clone(), n) });
            let served = fleet.serve(&requests, (router::ROUTERS[0].make)(0).as_mut());
            let queue = Queue::of(&requests, &served, &Start::default()).expect("a queue");
            let paid = crate::metrics::fleet::times(&fleet, &served)[0][0].as_ns();
            (queue, served.up_ticks.iter().copied().sum::<TickSum>().as_ns() / paid)
        };
        let second = Time::ZERO + hw::Span::from_seconds(Seconds::new(1.0));
        let [(alone, all), (never, one), (loading, quarter)] =
            [busy(1, Vec::new()), busy(4, Vec::new()), busy(4, vec![(second, 4)])];
        assert!((alone.busy - 0.95).abs() < 0.02, "{alone:?}");
        assert_eq!((never, loading), (alone, alone));
        assert!((all - 1.0).abs() < 1e-9 && (one - 1.0).abs() < 1e-9);
        // All but the first of four that are paid load, but for the first second.
        assert!((quarter - 0.25).abs() < 0.01, "{quarter}");
        assert_eq!(loading.saturation(), Saturation::Near);
    }

    #[test]
    fn one_request_or_a_crowd_at_one_moment_is_no_queue() {
        let together = |n| {
            let requests = Requests::of(vec![Request::new(Time::ZERO, 1, 1); n]);
            let limits = Limits { sequences_max: 1, ..Limits::ROOMY };
            let table = StepTable::constant(Seconds::new(0.01));
            let batcher = batcher::named("vllm-v1").expect("listed");
            let engine = Engine { limits, table, batcher, spans: Spans::Closed };
            let served = serve(&requests, &[&engine], (router::ROUTERS[0].make)(0).as_mut());
            Queue::of(&requests, &served, &Start::default())
        };
        assert_eq!((together(1), together(100)), (None, None));
    }
}
