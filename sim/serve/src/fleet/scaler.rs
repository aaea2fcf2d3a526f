//! A planner of the whole fleet: what it sees at the end of an interval, and how many replicas it wants.
//!
//! It sees what a frontend counts: requests that arrived, means of what was given or ended in the interval, and replicas; nothing of
//! what comes, and no output that has not ended. Units: requests, tokens, seconds. Invariant: a request counts in one interval each as arrived,
//! as answered and as ended.

use hw::{Seconds, Tick, Time};

use crate::records::Records;
use crate::request::Requests;

/// Replicas of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupSeen {
    /// Those that serve.
    pub up: u32,
    /// Those that serve or are loading.
    pub current: u32,
    /// Mean number of requests there over the interval, with those that wait for a replica; 0 where the group scales by its own rule.
    pub in_system: f64,
}

/// An interval that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Its end.
    pub at: Time,
    /// Its length.
    pub interval: Seconds,
    /// Requests that arrived.
    pub n_arrived: u64,
    /// Mean prompt tokens of those; `None` where nobody arrived.
    pub prompt: Option<f64>,
    /// Mean output tokens of requests that ended; `None` where none did.
    pub output: Option<f64>,
    /// Mean time to first tokens that were given.
    pub ttft: Option<Seconds>,
    /// Mean time between tokens of requests that ended.
    pub tpot: Option<Seconds>,
    /// Every group, in order.
    pub groups: Vec<GroupSeen>,
}

/// Decides how many replicas there should be.
pub trait Scaler {
    /// Replicas of every group from now on, in order; groups that are not planned ignore theirs, and limits of a group hold.
    fn decide(&mut self, seen: &Seen) -> Vec<u32>;
}

/// What of a run was not seen yet.
#[derive(Debug, Default)]
pub(super) struct Watch {
    n_arrived: usize,
    /// Requests that have arrived and are not over.
    open: Vec<u32>,
    since: Time,
}

impl Watch {
    /// What happened since the last look.
    pub(super) fn look(&mut self, requests: &Requests, records: &Records, now: Tick, groups: Vec<GroupSeen>) -> Seen {
        let (since, now) = (self.since, now.time());
        let new = &requests.list[self.n_arrived..];
        let new = &new[..new.partition_point(|request| request.arrival <= now)];
        let prompts: u64 = new.iter().map(|request| u64::from(request.prompt)).sum();
        let first = u32::try_from(self.n_arrived).expect("fewer than 2^32 requests");
        self.open.extend((first..).take(new.len()));
        self.n_arrived += new.len();
        let (mut ttft, mut tpot, mut output) = (Mean::default(), Mean::default(), Mean::default());
        let seconds = |from: Time, to: Time| (to - from).to_seconds().get();
        self.open.retain(|&request| {
            let (of, record) = (&requests.list[request as usize], &records.list[request as usize]);
            let is_open = !record.is_over(now);
            let Some(first) = record.first_token() else { return is_open };
            if first > since && first <= now {
                ttft.add(seconds(of.arrival, first), 1.0);
            }
            if let Some(last) = record.finished().filter(|last| *last <= now) {
                tpot.add(seconds(first, last), f64::from(of.output - 1));
                output.add(f64::from(of.output), 1.0);
            }
            is_open
        });
        self.since = now;
        let mut prompt = Mean::default();
        prompt.add(hw::real(prompts), hw::real(new.len() as u64));
        Seen {
            at: now,
            interval: Seconds::new(seconds(since, now)),
            n_arrived: new.len() as u64,
            prompt: prompt.value(),
            output: output.value(),
            ttft: ttft.value().map(Seconds::new),
            tpot: tpot.value().map(Seconds::new),
            groups,
        }
    }
}

/// A sum over a number.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    n: f64,
}

impl Mean {
    fn add(&mut self, value: f64, n: f64) {
        (self.sum, self.n) = (self.sum + value, self.n + n);
    }

    fn value(self) -> Option<f64> {
        (self.n > 0.0).then(|| self.sum / self.n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Patience, Request};

    #[test]
    fn requests_that_are_over_whichever_way_are_looked_at_no_more() {
        // One is served, one leaves before its first token, one is refused, one has a first token and goes on.
        let requests = Requests {
            patience: vec![Patience { first_token: Some(hw::Span::from_ns(50)), ..Patience::default() }],
            ..Requests::of(vec![Request::new(Time::ZERO, 8, 3); 4])
        };
        let mut records = Records::new(&requests);
        let at = |ns: u64| Tick::from(hw::Span::from_ns(ns));
        for request in 0..4 {
            records.wait(request, Tick::ZERO, &requests.patience[0]);
        }
        records.give_first_token(0, at(10));
        records.finish(0, at(30), Tick::ZERO);
        assert!(records.expire(1, at(60)));
        records.refuse(2, Tick::ZERO);
        records.give_first_token(3, at(20));
        let mut watch = Watch::default();
        let seen = watch.look(&requests, &records, at(100), Vec::new());
        assert_eq!((seen.n_arrived, seen.output), (4, Some(3.0)));
        assert!((seen.ttft.expect("two first tokens").get() - 15e-9).abs() < 1e-15, "{seen:?}");
        assert_eq!(watch.open, [3]);
        // What ends later is still open.
        let mut early = Watch::default();
        early.look(&requests, &records, at(40), Vec::new());
        assert_eq!(early.open, [1, 3]);
    }
}
