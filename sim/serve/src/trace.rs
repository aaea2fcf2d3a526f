//! Readers of request traces: Azure LLM 2023, BurstGPT and Vidur CSV, Mooncake and OpenAI-style JSON lines.
//!
//! A reader takes lines one by one, never the whole file, and never keeps a line longer than `LINE_BYTES_MAX`. Everything that is
//! wrong is reported with line, column and reason, up to `FAULTS_MAX`; the rest is counted. Units: seconds in files become `Time`.

mod csv;
mod instant;
mod json;
mod lines;
mod sessions;

use std::io::BufRead;

use hw::{Span, Time};

use crate::arrivals::ARRIVAL_S_MAX;
use crate::request::{Request, Requests};
use lines::Lines;
use sessions::Turn;

/// Longest line that is read, bytes.
pub const LINE_BYTES_MAX: usize = 16 << 20;
/// Faults that are kept one by one.
pub const FAULTS_MAX: usize = 100;
/// Tokens per hash of a Mooncake trace.
const MOONCAKE_BLOCK_TOKENS: u32 = 512;

hw::words! {
    /// Format of a trace.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Format: word {
        /// `TIMESTAMP,ContextTokens,GeneratedTokens` (Azure Public Dataset, 2023).
        Azure = "azure",
        /// `Timestamp,Model,Request tokens,Response tokens,...` (arXiv:2401.17644); requests without a response are left out.
        BurstGpt = "burstgpt",
        /// `arrived_at,num_prefill_tokens,num_decode_tokens`; some of these traces have no arrivals.
        Vidur = "vidur",
        /// `{"timestamp", "input_length", "output_length", "hash_ids"}` with milliseconds and 512-token prefix blocks. `session_id` makes rows turns
        /// of a session, each sent `delay` milliseconds after the end of the one before.
        Mooncake = "mooncake",
        /// One OpenAI request per line, with `usage` where it was recorded, else estimated from the text and `max_tokens`. Or one conversation of
        /// ShareGPT per line.
        OpenAi = "openai",
    }
}

/// Something wrong in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line, counted from 1.
    pub line: u64,
    /// Byte column, counted from 1.
    pub column: usize,
    /// What is wrong and what is allowed.
    pub reason: String,
}

/// Everything wrong in a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The first ones.
    pub found: Vec<Fault>,
    /// How many more there are.
    pub n_more: u64,
}

impl Faults {
    fn add(&mut self, line: u64, column: usize, reason: impl Into<String>) {
        if self.found.len() < FAULTS_MAX {
            self.found.push(Fault { line, column, reason: reason.into() });
        } else {
            self.n_more += 1;
        }
    }
}

/// A read trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Its requests; all at zero where the trace has no arrivals.
    pub requests: Requests,
    /// Whether the trace has arrivals.
    pub has_arrivals: bool,
    /// Rows that are no served request and were left out.
    pub n_left_out: u64,
    /// Rows whose tokens were estimated from text, as recorded counts are missing.
    pub n_estimated: u64,
    /// Images of every request; empty where none has one.
    pub images: Vec<ImageParts>,
    /// Requests with parts that are neither text nor images: audio, video, files.
    pub n_with_other_parts: u64,
    /// Requests that ask for several answers (`n`), of which one is served.
    pub n_with_choices: u64,
}

/// Images that a trace names in a prompt, without their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageParts {
    /// How many.
    pub n: u32,
    /// Whether the recorded tokens of the prompt count them.
    pub is_counted: bool,
}

/// One row as a format gives it.
#[derive(Default)]
struct Row {
    /// Nanoseconds, on any clock; `None` where the trace has no arrivals.
    at_ns: Option<i128>,
    /// Column of the arrival, for faults.
    at_column: usize,
    prompt: u32,
    output: u32,
    estimated: bool,
    hashes: Vec<u64>,
    turn: Turn,
    images: ImageParts,
    /// Whether it has parts that are neither text nor images.
    has_other_parts: bool,
    /// Whether it asks for several answers.
    has_choices: bool,
}

/// What a line is.
enum Parsed {
    Row(Row),
    LeftOut,
    Bad,
}

/// Reads a trace for engines whose blocks have so many tokens: sessions without prefixes of their own share whole blocks.
///
/// # Errors
/// Everything that is wrong in it.
pub fn read(format: Format, input: &mut dyn BufRead, block_tokens: u32) -> Result<Trace, Faults> {
    let mut lines = Lines::new(input);
    let mut faults = Faults::default();
    let mut builder = Builder::default();
    let mut columns = None;
    while let Some((number, text)) = lines.next(&mut faults) {
        let parsed = match format {
            Format::Azure | Format::BurstGpt | Format::Vidur => match &columns {
                None => {
                    columns = Some(csv::header(format, number, text, &mut faults));
                    if columns == Some(None) {
                        break;
                    }
                    continue;
                }
                Some(columns) => csv::row(format, columns.as_ref(), number, text, &mut faults),
            },
            Format::Mooncake => json::mooncake(number, text, &mut faults),
            Format::OpenAi => json::openai(number, text, &mut faults),
        };
        match parsed {
            Parsed::Row(row) => builder.add(number, row, &mut faults),
            Parsed::LeftOut => builder.trace.n_left_out += 1,
            Parsed::Bad => {}
        }
    }
    if faults.found.is_empty() && builder.trace.requests.is_empty() {
        faults.add(lines.number().max(1), 1, "the trace holds no request");
    }
    if faults.found.is_empty() { Ok(builder.done(format, block_tokens)) } else { Err(faults) }
}

/// Whether an arrival is soon enough after the first one.
fn is_early(since_ns: u64) -> bool {
    Span::from_ns(since_ns).to_seconds().get() <= ARRIVAL_S_MAX
}

/// Collects rows into requests: counts time from the first arrival and makes prefix identities dense.
#[derive(Default)]
struct Builder {
    trace: Trace,
    first_ns: Option<i128>,
    last: Option<(u64, i128)>,
    ids: std::collections::BTreeMap<u64, u32>,
    turns: Vec<Turn>,
    sessions: std::collections::BTreeSet<String>,
}

impl Builder {
    fn add(&mut self, line: u64, row: Row, faults: &mut Faults) {
        let mut arrival = Time::ZERO;
        let is_new = row.turn.session.as_ref().is_none_or(|name| self.sessions.insert(name.clone()));
        if let Some(reason) = self.misplaced(&row, is_new) {
            return faults.add(line, row.at_column, reason);
        }
        if let Some(at_ns) = row.at_ns {
            let first_ns = *self.first_ns.get_or_insert(at_ns);
            if let Some((earlier, before)) = self.last.filter(|(_, before)| *before > at_ns) {
                let (at_s, before_s) = (instant::seconds(at_ns), instant::seconds(before));
                let reason = format!(
                    "arrival {at_s} s lies before {before_s} s of line {earlier}; sort the trace by its arrival column"
                );
                return faults.add(line, row.at_column, reason);
            }
            let since = at_ns - first_ns;
            let Some(since_ns) = u64::try_from(since).ok().filter(|ns| is_early(*ns)) else {
                let since_s = instant::seconds(since);
                let reason = format!("arrival lies {since_s} s after the first one, allowed are {ARRIVAL_S_MAX} s");
                return faults.add(line, row.at_column, reason);
            };
            self.last = Some((line, at_ns));
            self.trace.has_arrivals = true;
            arrival = Time::from_ns(since_ns);
        }
        let requests = &mut self.trace.requests;
        let prefix_first = u32::try_from(requests.prefix_ids.len()).expect("fewer than 2^32 prefix blocks");
        for hash in &row.hashes {
            let next = u32::try_from(self.ids.len()).expect("fewer than 2^32 prefix blocks");
            requests.prefix_ids.push(*self.ids.entry(*hash).or_insert(next));
        }
        let prefix_count = u32::try_from(row.hashes.len()).expect("fewer than 2^32 prefix blocks");
        self.trace.n_estimated += u64::from(row.estimated);
        self.trace.n_with_other_parts += u64::from(row.has_other_parts);
        self.trace.n_with_choices += u64::from(row.has_choices);
        let request = Request { prefix_first, prefix_count, ..Request::new(arrival, row.prompt, row.output) };
        requests.list.push(request);
        self.trace.images.push(row.images);
        self.turns.push(row.turn);
    }

    /// Why a row is at no place in its session. The first turn comes at its `timestamp`, the others after their `delay`.
    fn misplaced(&self, row: &Row, is_new: bool) -> Option<&'static str> {
        row.turn.session.as_ref()?;
        match (is_new, row.at_ns) {
            (false, Some(_)) => {
                Some("a further turn of a session has `timestamp`; it is sent its `delay` after the turn before")
            }
            (true, None) if self.trace.has_arrivals => {
                Some("the first turn of a session has no `timestamp`, as others have")
            }
            (true, Some(_)) if !self.trace.has_arrivals && !self.turns.is_empty() => {
                Some("the first turn of a session has a `timestamp`, as others have not")
            }
            _ => None,
        }
    }

    fn done(mut self, format: Format, block_tokens: u32) -> Trace {
        if self.trace.images.iter().all(|images| images.n == 0) {
            self.trace.images = Vec::new();
        }
        let requests = &mut self.trace.requests;
        requests.n_prefix_ids = u32::try_from(self.ids.len()).expect("fewer than 2^32 prefix blocks");
        // All identities of a trace stand for as many tokens: hashes of some rows decide it for all.
        requests.prefix_tokens = match format {
            Format::Mooncake if self.sessions.is_empty() || !self.ids.is_empty() => MOONCAKE_BLOCK_TOKENS,
            Format::Mooncake => crate::sessions::prefix_tokens(block_tokens),
            _ => 0,
        };
        if !self.sessions.is_empty() {
            *requests = sessions::laid(std::mem::take(requests), &self.turns);
        }
        self.trace
    }
}

#[cfg(test)]
mod tests;
