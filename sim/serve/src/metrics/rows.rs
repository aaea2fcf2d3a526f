//! What became of every request, and how the fleet stood over time: rows for files and plots.
//!
//! Both are made from the records of a run, so they cost nothing while it is played. Units: seconds, tokens, requests. Where the run kept when tokens came,
//! samples are exact. Elsewhere a request is taken to give its tokens evenly between its first and its last, which is exact for their number and not for the
//! pauses of a preemption or of a transfer. Tokens of clients who gave up are left out; `output_tokens_per_s` of a sample is the mean over the time to the next one.

use hw::{Tick, Time, quantile};

use crate::fleet::{Fleet, Keeps, Served};
use crate::metrics::latencies;
use crate::records::End;
use crate::request::{Request, Requests};
use crate::samples::{GivenTokens, Samples};
use crate::token_gaps::Gaps;

/// One request as it was served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestRow {
    /// Position in order of arrival.
    pub request: u32,
    /// Stream that it belongs to.
    pub stream: u32,
    /// When it came.
    pub arrival_s: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens that its client got; `None` where it was refused, or its client gave up.
    pub output_tokens: Option<u32>,
    /// Tokens of the prompt that were cached.
    pub cached_tokens: u32,
    /// Arrival to the moment at which its client gave up, or had enough.
    pub left_s: [Option<f64>; 2],
    /// Times that it lost its blocks.
    pub n_preempted: u32,
    /// Replica, group and latencies; `None` where it was not served to the end.
    pub served: Option<ServedRow>,
}

/// Columns of a file of requests, in the order of `RequestRow::cells`.
pub const REQUEST_COLUMNS: [&str; 19] = [
    "request",
    "stream",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "timed_out_s",
    "cancelled_s",
    "replica",
    "group",
    "queue_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "n_preempted",
    "tbt_p50_s",
    "tbt_p90_s",
    "tbt_p99_s",
    "tbt_max_s",
];

fn count(n: u32) -> Option<f64> {
    Some(f64::from(n))
}

impl RequestRow {
    /// Its cells.
    pub fn cells(&self) -> Vec<Option<f64>> {
        let mut cells = vec![count(self.request), count(self.stream), Some(self.arrival_s)];
        cells.extend([count(self.prompt_tokens), self.output_tokens.and_then(count), count(self.cached_tokens)]);
        cells.extend(self.left_s);
        cells.extend(match self.served {
            None => [None; 6],
            Some(of) => {
                [count(of.replica), count(of.group), Some(of.queue_s), Some(of.ttft_s), of.tpot_s, Some(of.e2e_s)]
            }
        });
        cells.push(count(self.n_preempted));
        let gaps = self.served.and_then(|of| of.gaps_s);
        cells.extend(gaps.map_or([None; 4], |gaps| gaps.map(Some)));
        cells
    }
}

/// Where and how fast a request was served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServedRow {
    /// Replica that gave the last token.
    pub replica: u32,
    /// Group of that replica.
    pub group: u32,
    /// Arrival to first service.
    pub queue_s: f64,
    /// Arrival to first token.
    pub ttft_s: f64,
    /// Per further token; `None` for one token.
    pub tpot_s: Option<f64>,
    /// Arrival to last token.
    pub e2e_s: f64,
    /// p50, p90, p99 and the longest of the times between its tokens, where they were kept; `None` for one token.
    pub gaps_s: Option<[f64; 4]>,
}

/// Every request, in order of arrival.
pub fn requests<'a>(requests: &'a Requests, served: &'a Served) -> impl Iterator<Item = RequestRow> + 'a {
    let both = requests.list.iter().zip(&served.records.list).zip(latencies(requests, served));
    let gaps_of = |index: u32| served.token_gaps.get(index as usize).copied().flatten();
    (0_u32..).zip(both).map(move |(index, ((request, record), latencies))| {
        let (group, is_served) = (served.group_of.get(record.replica as usize).copied(), latencies.is_some());
        let served = latencies.zip(group).map(|(latencies, group)| ServedRow {
            replica: record.replica,
            group,
            queue_s: latencies.queue_s,
            ttft_s: latencies.ttft_s,
            tpot_s: latencies.tpot_s,
            e2e_s: latencies.e2e_s,
            gaps_s: gaps_of(index).as_ref().map(Gaps::seconds),
        });
        RequestRow {
            request: index,
            stream: requests.streams.get(index as usize).copied().unwrap_or(0),
            arrival_s: (request.arrival - Time::ZERO).to_seconds().get(),
            prompt_tokens: request.prompt,
            output_tokens: (is_served || record.end() == End::Cancelled).then_some(request.output),
            cached_tokens: record.cached_tokens,
            n_preempted: record.n_preempted,
            left_s: [End::TimedOut, End::Cancelled].map(|end| {
                let left = record.ended().filter(|_| record.end() == end)?;
                Some((left - request.arrival).to_seconds().get())
            }),
            served,
        }
    })
}

/// Requests whose latencies are drawn at most: a curve of some hundred points shows no more.
const DRAWN_MAX: usize = 20_000;

/// Quantiles of the time to the first token, the time per further token and the whole time, `n + 1` at equal distances from 0 to 1; none where no
/// request has the latency. Of very many requests every so many-th counts.
pub fn curves(requests: &Requests, served: &Served, n: u32) -> [Vec<f64>; 3] {
    let mut all: [Vec<f64>; 3] = Default::default();
    let stride = (requests.len() / DRAWN_MAX).max(1);
    for of in latencies(requests, served).step_by(stride).flatten() {
        all[0].push(of.ttft_s);
        all[1].extend(of.tpot_s);
        all[2].push(of.e2e_s);
    }
    all.map(|mut values| {
        if values.is_empty() {
            return values;
        }
        super::sort_times(&mut values);
        (0..=n).map(|index| quantile::of_sorted(&values, f64::from(index) / f64::from(n))).collect()
    })
}

/// How the fleet stands at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Moment.
    pub at_s: f64,
    /// Requests that came and were not served yet.
    pub waiting: u32,
    /// Requests that are served.
    pub running: u32,
    /// Requests that have ended, whichever way, those that were refused among them.
    pub ended: u32,
    /// Output tokens per second until the next sample.
    pub output_tokens_per_s: f64,
    /// Tokens of requests that are served, prompt and output so far: what their keys and values would take without shared prefixes and if nobody were
    /// preempted; at most what replicas that are paid have room for.
    pub kv_tokens: f64,
    /// Replicas that are paid.
    pub replicas: u32,
    /// Dollars so far, where every group has a price.
    pub cost_usd: Option<f64>,
}

/// Columns of a file of samples, in the order of `Sample::cells`.
pub const SAMPLE_COLUMNS: [&str; 8] = [
    "at_s",
    "waiting_requests",
    "running_requests",
    "ended_requests",
    "output_tokens_per_s",
    "kv_tokens",
    "replicas",
    "cost_usd",
];

impl Sample {
    /// Its cells.
    pub fn cells(&self) -> Vec<Option<f64>> {
        let requests = [self.waiting, self.running, self.ended].map(count);
        let mut cells = vec![Some(self.at_s)];
        cells.extend(requests);
        cells.extend([Some(self.output_tokens_per_s), Some(self.kv_tokens), count(self.replicas), self.cost_usd]);
        cells
    }
}

/// Output tokens of a run beyond which a picture does not count when each of them came: counting takes a run several times as long.
const COUNTED_MAX: u64 = 1_000_000;

/// What is kept of a run whose series is drawn with so many samples; records alone where nobody draws it, or where its tokens are too many. Then every request gives its
/// tokens evenly.
pub fn drawn(requests: &Requests, samples: Option<u32>) -> Keeps {
    let tokens: u64 = requests.list.iter().map(|request| u64::from(request.output)).sum();
    let counted = samples.filter(|_| tokens <= COUNTED_MAX);
    counted.map_or(Keeps::Records, |samples| Keeps::Tokens { samples })
}

/// Samples at equal distances from the start to the end of the run, `n` of them.
///
/// # Panics
/// When no sample is asked for.
pub fn series(requests: &Requests, fleet: &Fleet, served: &Served, n: u32) -> Vec<Sample> {
    let samples = Samples::over(served.records.end_ticks().time(), n);
    let mut tally = Tally::new(samples);
    let known = served.given_tokens.as_ref().filter(|given| given.samples == samples);
    for (index, (request, record)) in requests.list.iter().zip(&served.records.list).enumerate() {
        if let Some(refused) = record.refused() {
            tally.wait(request.arrival, refused);
            tally.end(refused);
        }
        let Some(last) = record.ended() else { continue };
        let scheduled = record.scheduled().unwrap_or(last).min(last);
        tally.wait(request.arrival, scheduled);
        tally.run(scheduled, last);
        tally.end(last);
        let is_known = known.is_some() && served.token_gaps[index].is_some();
        tally.hold([scheduled, record.first_token().unwrap_or(last), last], request, is_known);
        if is_known {
            continue;
        }
        if let Some(first) = record.first_token().filter(|first| *first <= last && record.end() != End::TimedOut) {
            tally.give(first, last, request.output);
        }
    }
    if let Some(given) = known {
        tally.add(given);
    }
    let mut samples = tally.samples();
    // Samples lie whole nanoseconds apart. The last one is the end, so its dollars are those of the run.
    let end_s = seconds_of(served.records.end_ticks());
    samples.iter_mut().last().expect("a series has a sample").at_s = end_s;
    add_paid(&mut samples, fleet, served);
    samples
}

/// Adds what is paid at each sample, and holds keys and values at the room of what is paid.
fn add_paid(samples: &mut [Sample], fleet: &Fleet, served: &Served) {
    let group = |replica: u32| &fleet.groups[served.group_of[replica as usize] as usize];
    let usd_per_s =
        |replica: u32| Some(group(replica).usd_per_gpu_hour? * f64::from(group(replica).gpus_per_replica) / 3600.0);
    let mut changes = served.paid_changes.iter().peekable();
    let (mut replicas, mut rate, mut paid, mut since, mut room) = (0, Some(0.0), Some(0.0), 0.0, 0.0);
    for sample in samples {
        while let Some(change) = changes.next_if(|change| seconds_of(change.tick) <= sample.at_s) {
            let at = seconds_of(change.tick);
            let sign = if change.is_paid { 1.0 } else { -1.0 };
            replicas = if change.is_paid { replicas + 1 } else { replicas - 1 };
            paid = paid.zip(rate).map(|(paid, rate): (f64, f64)| paid + rate * (at - since));
            rate = rate.zip(usd_per_s(change.replica)).map(|(rate, more)| rate + sign * more);
            room += sign * super::fleet::kv_tokens(group(change.replica));
            since = at;
        }
        paid = paid.zip(rate).map(|(paid, rate)| paid + rate * (sample.at_s - since));
        since = sample.at_s;
        (sample.replicas, sample.cost_usd) = (replicas, paid);
        sample.kv_tokens = sample.kv_tokens.min(room);
    }
}

fn seconds_of(tick: Tick) -> f64 {
    tick.span().to_seconds().get()
}

/// Changes at each sample, summed at the end.
struct Tally {
    at: Samples,
    waiting: Vec<i64>,
    running: Vec<i64>,
    ended: Vec<i64>,
    tokens: Vec<f64>,
    held: Vec<f64>,
}

impl Tally {
    fn new(at: Samples) -> Self {
        let (zeros, none) = (vec![0; at.n as usize + 1], vec![0.0; at.n as usize + 1]);
        Self { at, waiting: zeros.clone(), running: zeros.clone(), ended: zeros, tokens: none.clone(), held: none }
    }

    fn wait(&mut self, from: Time, to: Time) {
        let (from, to) = (self.at.seen(from), self.at.seen(to));
        self.waiting[from] += 1;
        self.waiting[to] -= 1;
    }

    fn run(&mut self, from: Time, to: Time) {
        let (from, to) = (self.at.seen(from), self.at.seen(to));
        self.running[from] += 1;
        self.running[to] -= 1;
    }

    fn end(&mut self, at: Time) {
        let at = self.at.seen(at);
        self.ended[at] += 1;
    }

    /// Prompt and output so far at every sample from its beginning to its end. Output grows evenly from the first token to the last where nobody knows when
    /// tokens came.
    fn hold(&mut self, [scheduled, first, last]: [Time; 3], request: &Request, is_known: bool) {
        let (from, to) = (self.at.seen(scheduled), self.at.seen(last));
        let whole = (last.max(first) - first).to_seconds().get();
        for index in from..to {
            let since = (self.at.at(index).max(first) - first).to_seconds().get();
            let given = if whole > 0.0 && !is_known { since / whole } else { 0.0 };
            self.held[index] += f64::from(request.prompt) + f64::from(request.output) * given;
        }
    }

    /// The first token at its moment, the others evenly until the last.
    fn give(&mut self, first: Time, last: Time, output: u32) {
        let (from, to) = (self.at.before(first), self.at.before(last));
        self.tokens[from] += 1.0;
        let whole = (last - first).to_seconds().get();
        let more = f64::from(output - 1);
        if from == to || whole <= 0.0 {
            self.tokens[to] += more;
            return;
        }
        for index in from..=to {
            let start = self.at.at(index).max(first);
            let end = if index == to { last } else { self.at.at(index + 1) };
            self.tokens[index] += more * (end - start).to_seconds().get() / whole;
        }
    }

    /// Tokens whose moments are known.
    fn add(&mut self, known: &GivenTokens) {
        let mut under_way = 0;
        for (index, (given, more)) in known.given.iter().zip(&known.under_way).enumerate() {
            under_way += more;
            self.tokens[index] += f64::from(*given);
            self.held[index] += f64::from(u32::try_from(under_way).expect("who ends had its tokens"));
        }
    }

    fn samples(&self) -> Vec<Sample> {
        let step_s = self.at.step.to_seconds().get();
        let (mut waiting, mut running, mut ended) = (0, 0, 0);
        let count = |n: i64| u32::try_from(n).expect("what began ends later");
        let mut found = Vec::with_capacity(self.tokens.len());
        for (index, (tokens, held)) in self.tokens.iter().zip(&self.held).enumerate() {
            waiting += self.waiting[index];
            running += self.running[index];
            ended += self.ended[index];
            found.push(Sample {
                at_s: step_s * hw::real(index as u64),
                waiting: count(waiting),
                running: count(running),
                ended: count(ended),
                output_tokens_per_s: tokens / step_s,
                kv_tokens: *held,
                ..Sample::default()
            });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use hw::Seconds;

    use super::*;
    use crate::fleet::Group;
    use crate::fleet::dynamics::{Outage, Rule, Scaling};
    use crate::replica::{Engine, Limits, Spans};
    use crate::step_cost::StepTable;
    use crate::{batcher, router};

    /// One replica with room for `n` sequences whose iterations take a second.
    fn engine(n: u32) -> Engine {
        let limits = Limits { sequences_max: n, ..Limits::ROOMY };
        let table = StepTable::constant(Seconds::new(1.0));
        Engine { limits, table, batcher: batcher::named("vllm-v1").expect("listed"), spans: Spans::Closed }
    }

    #[test]
    fn two_requests_one_after_the_other_are_counted_by_hand() {
        // Place for one: the first is served from 0 to 4 s (a token at 1, 2, 3, 4), the second waits until 4 and ends at 6.
        let list = vec![Request::new(Time::ZERO, 10, 4), Request::new(Time::ZERO, 10, 2)];
        let requests = Requests::of(list);
        let fleet = Fleet::of(Group::new("all", engine(1), 1));
        let served = fleet.serve(&requests, (router::ROUTERS[0].make)(0).as_mut());
        let rows: Vec<RequestRow> = super::requests(&requests, &served).collect();
        let second = rows[1].served.expect("served");
        assert_eq!([second.queue_s, second.ttft_s, second.e2e_s], [4.0, 5.0, 6.0]);
        assert_eq!(second.tpot_s, Some(1.0));
        let samples = series(&requests, &fleet, &served, 6);
        let at = |second: usize| (samples[second].waiting, samples[second].running, samples[second].ended);
        assert_eq!((at(0), at(3), at(4), at(6)), ((1, 1, 0), (1, 1, 0), (0, 1, 1), (0, 0, 2)));
        let tokens: f64 = samples.iter().map(|sample| sample.output_tokens_per_s).sum();
        assert!((tokens - 6.0).abs() < 1e-9, "six tokens in samples a second apart: {tokens}");
        // At 3 s the first has its prompt and two thirds of the way from its first token to its last of four.
        assert!((samples[3].kv_tokens - (10.0 + 4.0 * 2.0 / 3.0)).abs() < 1e-9, "{}", samples[3].kv_tokens);
        // Where the run keeps when tokens came: one at each second but the first, and of the first request three by 3 s.
        let fleet = Fleet { keeps: Keeps::Tokens { samples: 6 }, ..fleet };
        let kept = fleet.serve(&requests, (router::ROUTERS[0].make)(0).as_mut());
        let samples = series(&requests, &fleet, &kept, 6);
        let given: Vec<f64> = samples.iter().map(|sample| sample.output_tokens_per_s).collect();
        assert_eq!(given, [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let held: Vec<f64> = samples.iter().map(|sample| sample.kv_tokens).collect();
        assert_eq!(held, [10.0, 11.0, 12.0, 13.0, 10.0, 11.0, 0.0]);
        // First tokens after 1 and 5 s, both a token a second, ends after 4 and 6 s.
        let [ttft, tpot, e2e] = curves(&requests, &served, 4);
        assert_eq!(ttft, [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!((tpot[2], e2e[0], e2e[4]), (1.0, 4.0, 6.0));
    }

    #[test]
    fn a_picture_counts_tokens_when_they_came_unless_they_are_too_many() {
        let of = |output| Requests::of(vec![Request::new(Time::ZERO, 10, output); 10]);
        assert_eq!(drawn(&of(100_000), Some(200)), Keeps::Tokens { samples: 200 });
        assert_eq!(drawn(&of(100_001), Some(200)), Keeps::Records);
        assert_eq!(drawn(&of(1), None), Keeps::Records);
    }

    /// Eight sequences of up to 59 cached tokens over room for 96: whoever runs out of it waits, and no sample shows more than there is room for.
    #[test]
    fn keys_and_values_of_a_sample_fit_the_room() {
        let mut tight = engine(8);
        (tight.limits.block_tokens, tight.limits.kv_blocks) = (16, 6);
        let fleet = Fleet::of(Group::new("all", tight, 1));
        let requests = Requests::of(vec![Request::new(Time::ZERO, 30, 30); 8]);
        let served = fleet.serve(&requests, (router::ROUTERS[0].make)(0).as_mut());
        assert!(served.counts[0].n_preempted > 0);
        let held = series(&requests, &fleet, &served, 50).into_iter().map(|sample| sample.kv_tokens);
        assert_eq!(held.fold(0.0, f64::max), 96.0);
    }

    #[test]
    fn what_is_paid_is_counted_by_hand() {
        // Two replicas of one GPU at 36 dollars an hour, a cent a second. The second comes at 2 s by a timetable; the first is lost at 6 s.
        let mut group = Group { usd_per_gpu_hour: Some(36.0), ..Group::new("all", engine(4), 2) };
        let second = |s: u64| Time::from_ns(s * 1_000_000_000);
        let rule = Rule::Timetable(vec![(second(2), 2)]);
        group.scaling = Some(Scaling { replicas_min: 1, replicas_first: 1, start_up: Seconds::ZERO, rule });
        let mut fleet = Fleet::of(group);
        fleet.outages = vec![Outage { group: 0, replica: 0, at: second(6), notice: Seconds::ZERO, back_after: None }];
        let list = vec![Request::new(Time::ZERO, 10, 4), Request::new(second(3), 10, 7)];
        let requests = Requests::of(list);
        let served = fleet.serve(&requests, (router::ROUTERS[0].make)(0).as_mut());
        let samples = series(&requests, &fleet, &served, 10);
        let at =
            |index: usize| (samples[index].at_s, samples[index].replicas, samples[index].cost_usd.expect("priced"));
        assert_eq!([at(0).1, at(2).1, at(6).1], [1, 2, 1]);
        for (index, cents) in [(0, 0.0), (2, 2.0), (4, 6.0), (6, 10.0), (8, 12.0)] {
            let (at_s, _, usd) = at(index);
            assert!((usd - cents / 100.0).abs() < 1e-9, "{usd} dollars at {at_s} s");
        }
    }
}
