//! How a fleet changes while it serves: replicas that fail, spot machines that are taken back, and the autoscaler.
//!
//! A replica is paid from the moment it is started, its start-up included, until it is stopped or lost; not while it is repaired. Requests on
//! a lost replica go back to the router and are computed again elsewhere. Units: seconds, requests per replica.

use std::collections::VecDeque;

use hw::{Seconds, Time};

/// A replica that is lost at a known time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outage {
    /// Group.
    pub group: usize,
    /// Replica of the group, from 0.
    pub replica: u32,
    /// When it is known: from then on the replica takes no new requests.
    pub at: Time,
    /// From then until it is lost; zero for a failure, two minutes for the spot machines of a large cloud.
    pub notice: Seconds,
    /// From the loss until it is back and loaded; `None` never.
    pub back_after: Option<Seconds>,
}

/// Failures at random: times between failures and to repair are exponential.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failures {
    /// Mean time from the start of a replica to its failure.
    pub mtbf: Seconds,
    /// Mean time until it is back and loaded.
    pub mttr: Seconds,
    /// Seed of both.
    pub seed: u64,
}

/// How many replicas of a group run as time goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    /// Fewest replicas; at least 1.
    pub replicas_min: u32,
    /// Replicas at the start.
    pub replicas_first: u32,
    /// Time until a started replica is loaded and serves.
    pub start_up: Seconds,
    /// Who decides.
    pub rule: Rule,
}

/// Who decides how many replicas a group has.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// The group itself, by the requests in its system.
    Concurrency(Concurrency),
    /// Nobody: from each moment on so many, start-up included; moments ascend.
    Timetable(Vec<(Time, u32)>),
    /// A planner of the whole fleet (`scaler.rs`), once per interval.
    Planned {
        /// Time between decisions.
        interval: Seconds,
    },
}

/// An autoscaler: as many replicas as keep the requests in the system of each at a target.
///
/// Every interval it takes the mean number of requests in the system over the interval, those that wait at the router included, divides by the
/// target and rounds up. More are started at once; fewer are kept only when none of the last intervals wanted more (the rule
/// and the stabilization window of Kubernetes' horizontal autoscaler, on the metric of Knative's concurrency target).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concurrency {
    /// Requests in the system per replica; above 0.
    pub target: f64,
    /// Time between decisions.
    pub interval: Seconds,
    /// Intervals whose largest wish counts before replicas are stopped.
    pub window: u32,
}

impl Concurrency {
    /// Replicas that so many requests want.
    pub fn wanted(&self, requests: f64) -> u32 {
        let wanted = hw::whole((requests / self.target).ceil().max(0.0));
        u32::try_from(wanted).unwrap_or(u32::MAX)
    }
}

impl Scaling {
    /// A wish between the fewest and `most`.
    pub fn within(&self, wish: u32, most: u32) -> u32 {
        wish.clamp(self.replicas_min.max(1).min(most), most)
    }
}

/// Wishes of the last intervals.
#[derive(Clone, Debug, Default)]
pub(super) struct Wishes {
    last: VecDeque<u32>,
}

impl Wishes {
    /// Adds a wish; returns how many replicas there should be where there are `current` and the last `window` wishes count.
    pub(super) fn decide(&mut self, window: u32, wish: u32, current: u32) -> u32 {
        self.last.push_back(wish);
        while self.last.len() > window.max(1) as usize {
            self.last.pop_front();
        }
        let largest = self.last.iter().copied().max().unwrap_or(wish);
        if wish > current { wish } else { largest.min(current) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_at_once_and_fewer_after_the_window() {
        let rule = Concurrency { target: 10.0, interval: Seconds::new(1.0), window: 3 };
        let scaling =
            Scaling { replicas_min: 1, replicas_first: 1, start_up: Seconds::ZERO, rule: Rule::Concurrency(rule) };
        let wanted = |requests| scaling.within(rule.wanted(requests), 8);
        assert_eq!([0.0, 10.0, 10.1, 95.0, 1e12].map(wanted), [1, 1, 2, 8, 8]);
        let mut wishes = Wishes::default();
        let mut current = 1;
        let decided: Vec<u32> = [3, 2, 2, 2, 1, 2, 1, 1, 1]
            .into_iter()
            .map(|wish| {
                current = wishes.decide(rule.window, wish, current);
                current
            })
            .collect();
        // 3 at once; 3 counts for three intervals; the 2 of the sixth keeps a second replica until the ninth.
        assert_eq!(decided, [3, 3, 3, 2, 2, 2, 2, 2, 1]);
    }
}
