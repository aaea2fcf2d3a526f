//! Times between the output tokens of a request: the client's view of how even a stream is.
//!
//! Tokens that come together, as accepted drafts do, have no time between them. Units: ticks.

use hw::Tick;

use super::quantile;
use crate::records::Records;
use crate::replica::TokenLog;
use crate::request::Requests;

/// Shares of the quantiles that are kept; the last is the longest.
const SHARES: [f64; 4] = [0.5, 0.9, 0.99, 1.0];

/// Quantiles of the times between the tokens of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gaps([Tick; 4]);

impl Gaps {
    /// p50, p90, p99 and the longest, seconds.
    #[must_use]
    pub fn seconds(&self) -> [f64; 4] {
        self.0.map(Tick::to_seconds)
    }

    /// Of the ticks of tokens in order; `None` of fewer than two.
    #[must_use]
    pub fn of(ticks: &[Tick]) -> Option<Self> {
        let mut gaps: Vec<f64> = ticks.windows(2).map(|pair| (pair[1] - pair[0]).as_f64()).collect();
        if gaps.is_empty() {
            return None;
        }
        super::sort_times(&mut gaps);
        Some(Self(SHARES.map(|share| Tick::from_f64(quantile(&gaps, share)))))
    }
}

/// Of every request with all its tokens, what the logs of all replicas say. No client has a later token before the first one.
pub(crate) fn of_logs(requests: &Requests, records: &Records, logs: &[&TokenLog]) -> Vec<Option<Gaps>> {
    let mut places: Vec<(u32, usize, usize)> = Vec::new();
    for (replica, log) in logs.iter().enumerate() {
        places.extend(log.requests().map(|(request, index)| (request, replica, index)));
    }
    places.sort_unstable();
    let mut found = vec![None; requests.len()];
    let mut ticks = Vec::new();
    for of_request in places.chunk_by(|a, b| a.0 == b.0) {
        let request = of_request[0].0 as usize;
        let Some(first) = records.list[request].first_token().filter(|_| records.list[request].finished().is_some()) else {
            continue;
        };
        ticks.clear();
        of_request.iter().for_each(|(_, replica, index)| logs[*replica].extend(&mut ticks, *index));
        ticks.sort_unstable();
        let n = requests.list[request].output as usize;
        if ticks.len() < n {
            continue;
        }
        // An engine that is a step ahead computes one more.
        ticks.truncate(n);
        let first = Tick::from(first);
        ticks.iter_mut().for_each(|tick| *tick = (*tick).max(first));
        found[request] = Gaps::of(&ticks);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_gaps_are_those_of_their_order_statistics() {
        // Gaps of 1, 2, 3 and 4: the quantiles of numpy are 2.5, 3.7, 3.97 and 4.
        let ticks = [0, 4, 5, 7, 10].map(|tick| Tick::new(tick * 100));
        assert_eq!(Gaps::of(&ticks), Some(Gaps([250, 370, 397, 400].map(Tick::new))));
        assert_eq!(Gaps::of(&ticks[..1]), None);
    }
}
