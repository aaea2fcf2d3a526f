//! Times between the output tokens of a request: the client's view of how even a stream is.
//!
//! Tokens that come together, as accepted drafts do, have no time between them. Units: ticks.

use hw::Tick;

use crate::records::Records;
use crate::replica::TokenLog;
use crate::request::Requests;
use crate::samples::GivenTokens;

/// Quantiles that are kept, in hundredths; the last is the longest.
const PERCENTILES: [u64; 4] = [50, 90, 99, 100];

/// Quantiles of the times between the tokens of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gaps([Tick; 4]);

impl Gaps {
    /// p50, p90, p99 and the longest, seconds.
    pub fn seconds(&self) -> [f64; 4] {
        self.0.map(Tick::to_seconds)
    }

    /// Of the ticks of tokens in order; `None` of fewer than two.
    pub fn of(ticks: &[Tick]) -> Option<Self> {
        let mut gaps: Vec<Tick> = ticks.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_unstable();
        (!gaps.is_empty()).then(|| Self(PERCENTILES.map(|percent| percentile(&gaps, percent))))
    }
}

/// Percentile of sorted values, that of `hw::quantile` in whole ticks.
fn percentile(sorted: &[Tick], percent: u64) -> Tick {
    let hundredths = percent * (sorted.len() as u64 - 1);
    let place = usize::try_from(hundredths / 100).expect("an index");
    let above = sorted.get(place + 1).copied().unwrap_or(sorted[place]);
    sorted[place] + (above - sorted[place]) * (hundredths % 100) / 100
}

/// Positions of tokens in the logs of replicas, by request.
fn places(logs: &[&TokenLog]) -> Vec<(u32, usize, usize)> {
    let mut places = Vec::new();
    for (replica, log) in logs.iter().enumerate() {
        places.extend(log.requests().map(|(request, index)| (request, replica, index)));
    }
    places.sort_unstable();
    places
}

/// Ticks of the tokens that a request's client has, which asked for so many; `None` where some are in no log. No client has a later token before the first.
fn as_given(mut ticks: Vec<Tick>, n: u32, first: Tick) -> Option<Vec<Tick>> {
    ticks.sort_unstable();
    if ticks.len() < n as usize {
        return None;
    }
    // An engine that is a step ahead computes one more.
    ticks.truncate(n as usize);
    // A first token that was on its way out of a replica that was lost counts as given then.
    if let Some(given) = ticks.first_mut() {
        *given = first;
    }
    Some(ticks.into_iter().map(|tick| tick.max(first)).collect())
}

/// Of every request with all its tokens, what the logs of all replicas say; its tokens are added to those that were given.
pub(crate) fn of_logs(
    requests: &Requests,
    records: &Records,
    logs: &[&TokenLog],
    all: &mut GivenTokens,
) -> Vec<Option<Gaps>> {
    let mut found = vec![None; requests.len()];
    for of_request in places(logs).chunk_by(|a, b| a.0 == b.0) {
        let request = of_request[0].0 as usize;
        let record = &records.list[request];
        let Some(first) = record.first_token().filter(|_| record.finished().is_some()) else { continue };
        let mut ticks = Vec::new();
        of_request.iter().for_each(|(_, replica, index)| logs[*replica].extend(&mut ticks, *index));
        let mut given = as_given(ticks, requests.list[request].output, first.into());
        let last = of_request.last().map_or(0, |(_, replica, _)| *replica);
        given.iter_mut().for_each(|ticks| logs[last].frontend.gathered(ticks));
        found[request] = given.as_deref().and_then(Gaps::of);
        if let Some(ticks) = given.filter(|_| found[request].is_some()) {
            all.add(&ticks);
        }
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
