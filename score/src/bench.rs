//! A run as a benchmark client measured it: requests that can be played again, and what was seen of them. What a file is shows its content.
//!
//! Clients save either a line for every request or sums alone; where there are sums alone, requests are all alike and of the mean lengths.
//! Failed and cancelled requests are left out and counted. Units: seconds, tokens; figures are those of the contract (`ttft_s.mean`, …).

mod aiperf;
pub mod compare;
mod guidellm;
mod inference_perf;
mod lines;
mod pruned;
mod vllm;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};

use hw::{Seconds, Span, Time};
use pruned::Values;
use serde_json::Value;
use serve::arrivals::{self, ARRIVAL_S_MAX, Schedule};
use serve::fleet::held::Users;
use serve::metrics::spread;
use serve::request::{Request, Requests, TOKENS_MAX};

/// Requests that are kept of a run.
const REQUESTS_MAX: usize = 1_000_000;
/// What some editors write before a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// What is wrong with a file of a client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum BenchError {
    /// It is of no client that is known.
    #[error("no measured run: known are {}", CLIENTS.join(", "))]
    Unknown,
    /// A part of it is missing or no number.
    #[error("{client}: {what}")]
    Wrong { client: &'static str, what: String },
    /// It is broken JSON.
    #[error("line {line}: broken JSON: {what}")]
    Json { line: usize, what: String },
    /// It holds more than is kept of a file.
    #[error("it holds more than {parts} numbers and words beside texts and token times: give a part of it")]
    TooLong { parts: u64 },
    /// It cannot be read.
    #[error("{0}")]
    Unreadable(String),
}

/// Files that are read, in words.
pub const CLIENTS: [&str; 7] = [
    "vllm bench serve (JSON, with and without --save-detailed)",
    "guidellm (JSON)",
    "aiperf (profile_export_aiperf.json)",
    "aiperf (profile_export.jsonl)",
    "inference-perf (per_request_lifecycle_metrics.json)",
    "OpenTelemetry spans with gen_ai attributes (JSON, one by one or as a collector writes them)",
    "an engine's log of requests (JSON lines with queued_ts, first_token_ts, last_token_ts)",
];

/// How requests were sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// So many in flight.
    InFlight(u32),
    /// At their moments.
    AsSent,
    /// So many a second, at moments that were not kept.
    Rate(f64),
    /// All at once.
    Together,
}

impl Load {
    /// Of requests whose moments were not kept: as many in flight as the client says, or its rate.
    fn of(in_flight: Option<u32>, rate: Option<f64>) -> Self {
        in_flight.map(Self::InFlight).or(rate.map(Self::Rate)).unwrap_or(Self::Together)
    }
}

/// A request as it was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Moment at which it was sent, on the client's clock.
    pub sent_s: f64,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the answer.
    pub output: u32,
    /// Time to the first token.
    pub ttft_s: f64,
    /// Time to the last token.
    pub e2e_s: f64,
    /// Time in the engine's queue, where the engine says it.
    pub queue_s: Option<f64>,
}

/// A measured run.
#[derive(Clone, Debug, PartialEq)]
pub struct Bench {
    /// Whose file it is from.
    pub client: &'static str,
    /// Model, as the client names it.
    pub model: Option<String>,
    /// How requests were sent.
    pub load: Load,
    /// What was sent; all alike where the client kept sums alone.
    pub requests: Vec<Seen>,
    /// What was measured.
    pub figures: BTreeMap<String, f64>,
    /// Standard deviations over the requests, of means by the name of the mean; of clients that kept sums alone.
    pub deviations: BTreeMap<String, f64>,
    /// Whether requests are all alike because the client kept sums alone.
    pub has_sums_alone: bool,
    /// Requests that failed or were cancelled.
    pub n_failed: usize,
}

/// Reads a file of a client: one run, or several. It may be of any length: texts and token times are passed over as they come.
///
/// # Errors
/// What is wrong with it.
pub fn read(source: impl Read) -> Result<Vec<Bench>, BenchError> {
    let mut source = BufReader::new(source);
    let head = source.fill_buf().map_err(|why| BenchError::Unreadable(why.to_string()))?;
    let mark = if head.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    source.consume(mark);
    let mut values = Values::of(source);
    let root = values.next()?.ok_or(BenchError::Unknown)?;
    if let Some(client) = lines::client(&root) {
        return lines::read(root, values, client).map(|bench| vec![bench]);
    }
    values.end()?;
    if root["benchmarks"].is_array() {
        guidellm::read(&root)
    } else if root.get("total_input_tokens").is_some() && root.get("completed").is_some() {
        vllm::read(&root).map(|bench| vec![bench])
    } else if aiperf::is_summary(&root) {
        aiperf::read(&root).map(|bench| vec![bench])
    } else if root[0].get("info").is_some() {
        inference_perf::read(&root).map(|bench| vec![bench])
    } else {
        Err(BenchError::Unknown)
    }
}

/// A number that is none of NaN and infinities.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite())
}

/// A number in words: large ones with an exponent and not with three hundred digits.
fn shown(number: f64) -> String {
    if number.abs() < 1e15 { number.to_string() } else { format!("{number:e}") }
}

/// A count of tokens.
fn tokens(value: &Value) -> Option<u32> {
    let count = hw::whole(number(value).filter(|number| *number >= 0.0)?);
    u32::try_from(count).ok().filter(|count| *count <= TOKENS_MAX)
}

impl Seen {
    /// A request; `None` where it has no answer, or times that cannot be.
    fn new(sent_s: f64, [prompt, output]: [u32; 2], [ttft_s, e2e_s]: [f64; 2]) -> Option<Self> {
        let is_sound = prompt > 0 && output > 0 && ttft_s > 0.0 && e2e_s >= ttft_s && e2e_s <= ARRIVAL_S_MAX;
        is_sound.then_some(Self { sent_s, prompt, output, ttft_s, e2e_s, queue_s: None })
    }

    /// Time per further token.
    fn tpot_s(&self) -> Option<f64> {
        (self.output > 1).then(|| (self.e2e_s - self.ttft_s) / f64::from(self.output - 1))
    }
}

impl Bench {
    /// A run whose client kept every request.
    fn of_requests(
        client: &'static str,
        load: Load,
        mut requests: Vec<Seen>,
        n_all: usize,
    ) -> Result<Self, BenchError> {
        let n_failed = n_all - requests.len();
        requests.retain(|seen| seen.sent_s.is_finite());
        requests.sort_by(|one, other| one.sent_s.total_cmp(&other.sent_s));
        let wrong = |what: String| Err(BenchError::Wrong { client, what });
        let (Some(first), Some(last)) = (requests.first(), requests.last()) else {
            return wrong("no request has an answer with lengths and times".to_owned());
        };
        if requests.len() > REQUESTS_MAX {
            return wrong(format!("{} requests; at most {REQUESTS_MAX} are read", requests.len()));
        }
        let start = first.sent_s;
        if last.sent_s - start > ARRIVAL_S_MAX {
            let apart = shown(last.sent_s - start);
            return wrong(format!("requests are {apart} s apart; at most {ARRIVAL_S_MAX} s are read"));
        }
        requests.iter_mut().for_each(|seen| seen.sent_s -= start);
        let figures = figures(&requests);
        let deviations = BTreeMap::new();
        Ok(Self { client, model: None, load, requests, figures, deviations, has_sums_alone: false, n_failed })
    }

    /// A run whose client kept sums alone: so many requests of mean lengths.
    fn of_sums(
        client: &'static str,
        load: Load,
        (n, lengths): (usize, [f64; 2]),
        figures: BTreeMap<String, f64>,
    ) -> Result<Self, BenchError> {
        let [prompt, output] = lengths.map(|mean| u32::try_from(hw::whole(mean.max(0.0))).unwrap_or(u32::MAX));
        let is_sound = (1..=REQUESTS_MAX).contains(&n) && [prompt, output].iter().all(|n| (1..=TOKENS_MAX).contains(n));
        if !is_sound {
            let [prompt, output] = lengths.map(shown);
            let what = format!("{n} requests of {prompt} + {output} tokens cannot be played");
            return Err(BenchError::Wrong { client, what });
        }
        if !figures.contains_key("ttft_s.mean") || !figures.contains_key("tpot_s.mean") {
            let what = "no mean time to first token and per output token; was the answer streamed?".to_owned();
            return Err(BenchError::Wrong { client, what });
        }
        let seen = Seen { sent_s: 0.0, prompt, output, ttft_s: 0.0, e2e_s: 0.0, queue_s: None };
        let requests = vec![seen; n];
        let deviations = BTreeMap::new();
        Ok(Self { client, model: None, load, requests, figures, deviations, has_sums_alone: true, n_failed: 0 })
    }

    /// What is sent again. Moments that were not kept are drawn.
    pub fn played(&self) -> Requests {
        let request = |seen: &Seen| {
            let at = if self.load == Load::AsSent { seen.sent_s } else { 0.0 };
            Request::new(Time::ZERO + Span::from_seconds(Seconds::new(at)), seen.prompt, seen.output)
        };
        let mut requests = Requests::of(self.requests.iter().map(request).collect());
        if let Load::Rate(per_s) = self.load {
            arrivals::lay_schedule(&mut requests, &Schedule { pieces: vec![(0.0, per_s)], repeat_s: None, cv: 1.0 }, 0);
        }
        requests
    }

    /// Who waits for the answers, where a number is held in flight.
    pub const fn users(&self) -> Option<Users> {
        match self.load {
            Load::InFlight(n) => Some(Users::in_flight(n)),
            _ => None,
        }
    }

    /// Predicted over measured mean TTFT and TPOT; 1 where one of both sides has none.
    pub fn ratios(&self, predicted: &BTreeMap<String, f64>) -> [f64; 2] {
        ["ttft_s.mean", "tpot_s.mean"].map(|key| match (predicted.get(key), self.figures.get(key)) {
            (Some(predicted), Some(measured)) => predicted / measured,
            _ => 1.0,
        })
    }

    /// What it is, in words.
    pub fn words(&self) -> String {
        let n = self.requests.len();
        let (prompt, output) = self.played().tokens();
        let load = match self.load {
            Load::InFlight(n) => format!("{n} in flight"),
            Load::AsSent => "at their moments".to_owned(),
            Load::Rate(per_s) => format!("{per_s:.2} a second, moments drawn"),
            Load::Together => "all at once".to_owned(),
        };
        let alike = if self.has_sums_alone { ", all alike" } else { "" };
        let failed = if self.n_failed > 0 { format!(", {} failed and left out", self.n_failed) } else { String::new() };
        let n_requests = n as u64;
        format!("{n} requests of {} + {} tokens{alike}, {load}{failed}", prompt / n_requests, output / n_requests)
    }

    /// What stays the same when a run is repeated.
    pub fn setting(&self) -> String {
        let load = match self.load {
            Load::AsSent => "as sent".to_owned(),
            other => format!("{other:?}"),
        };
        let (prompt, output) = self.played().tokens();
        format!("{load}|{}|{prompt}|{output}", self.requests.len())
    }
}

/// Figures of requests, as the contract defines them.
fn figures(requests: &[Seen]) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    let all = |of: fn(&Seen) -> Option<f64>| requests.iter().filter_map(of).collect();
    spread(&mut found, "ttft_s", all(|seen| Some(seen.ttft_s)));
    spread(&mut found, "tpot_s", all(Seen::tpot_s));
    spread(&mut found, "e2e_s", all(|seen| Some(seen.e2e_s)));
    spread(&mut found, "queue_s", all(|seen| seen.queue_s));
    let end = requests.iter().map(|seen| seen.sent_s + seen.e2e_s).fold(0.0, f64::max);
    if end > 0.0 {
        let tokens: u64 = requests.iter().map(|seen| u64::from(seen.output)).sum();
        found.insert("requests_per_s".to_owned(), hw::real(requests.len() as u64) / end);
        found.insert("output_tokens_per_s".to_owned(), hw::real(tokens) / end);
    }
    found
}

#[cfg(test)]
mod tests;
