//! `[trace]`: requests from an embedded table of lengths, from a trace file, between two ends or all alike, and how they arrive; `[[trace.stream]]` for several
//! kinds of requests that are served together.

mod arriving;

use std::path::Path;

use engine::Model;
use hw::{Seconds, Span, Time};
use planner::effort;
use serve::arrivals::{self, Arrivals, Schedule};
use serve::fleet::held::Users;
use serve::images::Images;
use serve::lengths;
use serve::request::{Request, Requests, TOKENS_MAX};
use serve::sessions::{self, Sessions};
use serve::trace::{self, Format, ImageParts};

use super::clients::generation::{AnswerLimit, Generation};
use super::clients::{self, Clients};
use super::engine::EngineSection;
use super::images;
use super::{dataset, long, users};
use crate::effort::is_within_reason;
use arriving::{AskedArrivals, GAMMA, HELD, POISSON, REPLAY, TOGETHER, WINDOW_S_MAX, asked};
use input::diagnostic::{Code, Finding};
use input::reader::{Place, Section, small, unknown};

/// Draws of the requests at most.
const SEEDS_MAX: u64 = 1000;

/// Faults of a trace that are shown one by one.
const FAULTS_SHOWN: usize = 5;

/// What the section is read with.
#[derive(Clone, Copy)]
pub struct With<'a> {
    /// Of all draws.
    pub seed: u64,
    /// Tokens of the engine's blocks.
    pub block_tokens: u32,
    /// The model that sees images.
    pub model: Option<&'a Model>,
    /// How tokens are drawn where requests say nothing of it.
    pub generation: Option<&'a Generation>,
    /// Where the same file ends answers.
    pub answers: Option<AnswerLimit>,
}

impl<'a> With<'a> {
    /// With a seed, for an engine and a model, beside whose configuration a file may say how tokens are drawn.
    pub fn new(
        seed: u64,
        engine: &EngineSection,
        (model, generation): (Option<&'a Model>, Option<&'a Generation>),
    ) -> Self {
        let reads = engine.preset.is_some_and(|preset| ["vllm", "sglang"].contains(&preset.name));
        let ends = engine.preset.is_some_and(|preset| preset.file_ends_answers);
        let generation = generation.filter(|_| reads);
        let answers = generation.and_then(|found| found.answer_limit(ends));
        Self { seed, block_tokens: engine.limits.block_tokens, model, generation, answers }
    }
}

/// Requests before arrivals are laid over them.
struct Taken {
    requests: Requests,
    has_arrivals: bool,
    source: String,
    /// Images that a trace names, by request.
    recorded: Vec<ImageParts>,
    /// Tokens of prompt and output where all are alike.
    lengths: Option<(u32, u32)>,
}

impl Taken {
    /// Ends answers where the model's own file does; gives that in words.
    fn end(&mut self, section: &mut Section<'_>, limit: AnswerLimit) -> Option<String> {
        let said = limit.lay(section, &mut self.requests);
        if limit.acts {
            self.lengths = self.lengths.map(|(prompt, output)| (prompt, output.min(limit.tokens)));
        }
        said
    }
}

/// What arrives.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// All requests.
    pub requests: Requests,
    /// Streams, in order; one where the trace has no `[[trace.stream]]`.
    pub streams: Vec<Stream>,
    /// Where the requests come from, in words.
    pub source: String,
    /// From so many prompt tokens on a request counts as long, where some are made long.
    pub long_from: Option<u32>,
    /// The same drawn with the seeds that follow.
    pub draws: Vec<Requests>,
}

/// One stream of requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    /// Name in results; empty where there is one.
    pub name: String,
    /// Tokens of every prompt and every output, where all requests are alike.
    pub lengths: Option<(u32, u32)>,
    /// Users who wait for their answers, where requests are not sent by the clock alone.
    pub users: Option<Users>,
    /// What says that they wait.
    pub users_at: Place,
    /// Requests in flight, where nothing but that number is held.
    pub held: Option<u64>,
    /// Model that they ask for, where they say.
    pub model: Option<(String, Place)>,
    /// How its clients wait.
    pub clients: Clients,
    /// What the model's own file says of the draw and of answers, where there is one.
    pub drawn_as: Option<String>,
    /// Whether its prompts have images.
    pub has_images: bool,
}

/// Most requests of a stream.
const REQUESTS_MAX: u64 = 100_000_000;

/// Reads the section: the requests, and what other seeds give.
pub fn trace(mut section: Section<'_>, folder: &Path, with: With<'_>) -> Option<Asked> {
    let at = section.place("seeds");
    let n_seeds = section.small("seeds", Some(1), 1..=SEEDS_MAX);
    let n = section.aside(asked_in_all);
    let effort = effort::served(n, n_seeds.into());
    let what = format!("{n} requests of {n_seeds} seeds");
    let place = section.place("requests").flatten().or_else(|| section.at());
    if !is_within_reason(&mut section, effort, (place, &what, "lower `trace.requests` or `trace.seeds`")) {
        return None;
    }
    let with_seed = |n: u32| {
        let with = With { seed: with.seed.wrapping_add(n.into()), ..with };
        Some(section.aside(|mut section| drawn(&mut section, folder, with))?.requests)
    };
    let draws: Vec<Requests> = (1..n_seeds).filter_map(with_seed).collect();
    let found = drawn(&mut section, folder, with);
    let is_fixed = |asked: &Asked| {
        let is_clocked = asked.streams.iter().all(|stream| stream.users.is_none());
        is_clocked && draws.iter().all(|requests| *requests == asked.requests)
    };
    if at.is_some() && found.as_ref().is_some_and(is_fixed) {
        let help = "it needs 2 or more, and requests that are drawn: `lengths`, ends of tokens, or arrivals that are poisson or gamma";
        section.warn(Code::NoEffect, at.flatten(), "`trace.seeds` changes nothing", help);
    }
    section.finish();
    Some(Asked { draws, ..found? })
}

/// Requests that are asked for, over all streams; 0 where a trace or a table says how many.
fn asked_in_all(mut section: Section<'_>) -> u64 {
    let mut n = section.count("requests", Some(0), 1..=REQUESTS_MAX).0;
    section.each_table("stream", &mut |mut stream| n += stream.count("requests", Some(0), 1..=REQUESTS_MAX).0);
    n
}

/// The requests of a seed.
fn drawn(section: &mut Section<'_>, folder: &Path, with: With<'_>) -> Option<Asked> {
    let seed = with.seed;
    if !section.has("stream") {
        let found = stream(section, folder, None, with);
        let long = section.table("long").map(long::long);
        let (mut requests, stream, source) = found?;
        if let Some(long) = &long {
            long.lay(&mut requests, seed);
            with.answers.map(|limit| limit.end(&mut requests));
        }
        let requests = stream.clients.lay(requests, seed);
        let long_from = long.map(|long| long.tokens[0]);
        return Some(Asked { requests, streams: vec![stream], source, long_from, draws: Vec::new() });
    }
    let (mut read, mut names, mut n_streams) = (Vec::new(), Vec::new(), 0);
    section.each_table("stream", &mut |mut table| {
        n_streams += 1;
        let name = table.name();
        let at = table.at();
        let model = table.text("model");
        let seed = seed.wrapping_add(n_streams);
        let name_of_model = model.as_ref().map(|(name, _)| name.as_str());
        let found = stream(&mut table, folder, name_of_model, With { seed, ..with });
        table.finish();
        names.push((name.clone(), at));
        read.extend(found.zip(name).map(|((requests, stream, source), name)| {
            let requests = stream.clients.lay(requests, seed);
            (requests, Stream { name, model: model.clone(), ..stream }, source)
        }));
    });
    named_once(section, &names);
    if read.len() < names.len() {
        return None;
    }
    let (mut requests, mut streams, mut sources) = (Vec::new(), Vec::new(), Vec::new());
    for (part, stream, source) in read {
        sources.push(format!("{}: {source}", stream.name));
        requests.push(part);
        streams.push(stream);
    }
    let (requests, source) = (Requests::merged(requests), sources.join("; "));
    Some(Asked { requests, streams, source, long_from: None, draws: Vec::new() })
}

/// Streams have names of their own.
fn named_once(section: &mut Section<'_>, names: &[(Option<String>, Place)]) {
    for (index, (name, at)) in names.iter().enumerate() {
        if name.is_some() && names[..index].iter().any(|(other, _)| other == name) {
            let what = format!("two streams are named `{}`", name.as_deref().unwrap_or_default());
            section.refuse(Code::TwiceNamed, at.clone(), what, "results go by name");
        }
    }
}

/// Reads the keys of a stream: the requests, how they are alike, and where they come from.
fn stream(
    section: &mut Section<'_>,
    folder: &Path,
    model: Option<&str>,
    With { seed, block_tokens, model: usual, generation, answers }: With<'_>,
) -> Option<(Requests, Stream, String)> {
    let users_at = ["sessions", "concurrency", "arrivals", "file"].iter().find_map(|key| section.place(key)).flatten();
    let mut taken = taken(section, folder, (seed, block_tokens));
    let ended = taken.as_mut().zip(answers).and_then(|(taken, limit)| taken.end(section, limit));
    let encoder = images::encoder_of(model, usual);
    let recorded = taken.as_ref().map(|taken| taken.recorded.clone()).unwrap_or_default();
    let seen = images::read(section, encoder.as_ref(), &recorded);
    if let (Some(seen), Some(found)) = (&seen, &mut taken)
        && !with_images(section, found, seen)
    {
        taken = None;
    }
    let lengths = taken.as_ref().and_then(|taken| taken.lengths);
    let asked = asked(section, taken.as_ref().is_some_and(|taken| taken.has_arrivals));
    let clients = clients::read(section, generation);
    let is_recorded = taken.as_ref().is_some_and(|taken| !taken.requests.follows.is_empty());
    let held = (asked.kind == HELD).then_some(asked.concurrency);
    let users = users::read(section, held, block_tokens, is_recorded);
    let dataset = dataset::read(section);
    let (requests, source) = match &users.sessions {
        Some(sessions) => {
            let mut turns = taken?;
            clients.cancel(&mut turns.requests, seed);
            lay_sessions(section, turns, &asked, (sessions, seed))?
        }
        None if is_recorded => lay_recorded(section, taken?, &asked, seed)?,
        None => lay(section, taken?, &asked, seed)?,
    };
    users.check_warm_up(section, &requests);
    let mut requests = users.pause(section, requests, seed);
    dataset::lay(dataset, section, &mut requests, (seed, block_tokens));
    let lengths = lengths.filter(|_| requests.prefix_tokens == 0);
    let has_images = seen.is_some();
    let by_file: Vec<String> = generation.and_then(Generation::words).into_iter().chain(ended).collect();
    let drawn_as = (!by_file.is_empty()).then(|| by_file.join("; "));
    let (users, held) = (users.users, users.held());
    let stream = Stream { lengths, users, users_at, held, clients, drawn_as, has_images, ..Stream::default() };
    Some((requests, stream, source))
}

/// Puts images into the prompts; false where that is wrong.
fn with_images(section: &mut Section<'_>, taken: &mut Taken, seen: &Images) -> bool {
    if section.has("long") {
        let help = "leave one of them out; `[[trace.stream]]` has requests of several kinds";
        section.refuse(Code::ExclusiveKeys, section.at(), "`trace.images` beside `[trace.long]`", help);
        return false;
    }
    taken.lengths = taken.lengths.map(|(prompt, output)| (prompt + seen.more(), output));
    taken.source = format!("{}, {}", taken.source, images::words(seen));
    images::lay(section, seen, &mut taken.requests, &taken.recorded)
}

/// Makes sessions of requests; arrivals are those of sessions.
fn lay_sessions(
    section: &mut Section<'_>,
    taken: Taken,
    asked: &AskedArrivals,
    (asked_sessions, seed): (&Sessions, u64),
) -> Option<(Requests, String)> {
    let is_cut = asked.from_s > 0.0 || asked.to_s < WINDOW_S_MAX;
    let wrong = [
        (!taken.requests.prefix_ids.is_empty(), "requests that share prefixes already"),
        (!taken.requests.follows.is_empty(), "a trace with sessions of its own"),
        (asked.kind == REPLAY, "arrivals of a trace"),
        (is_cut, "a window of the trace"),
        (section.has("long"), "`[trace.long]`"),
    ];
    if let Some((_, what)) = wrong.into_iter().find(|(is_wrong, _)| *is_wrong) {
        let help =
            "turns follow each other: give `lengths` or `prompt_tokens`, and `arrivals` as held, poisson or gamma";
        section.refuse(Code::ExclusiveKeys, section.at(), format!("`[trace.sessions]` beside {what}"), help);
        return None;
    }
    let turns = asked_sessions.lay(&taken.requests, seed);
    let (begins, source) = lay(section, Taken { requests: sessions::begins(&turns), ..taken }, asked, seed)?;
    let words = format!("{source}, in {} sessions of {} turns in the mean", begins.len(), asked_sessions.turns);
    Some((sessions::arrive(turns, &begins), words))
}

/// Sessions of a trace; arrivals are those of their first turns.
fn lay_recorded(
    section: &mut Section<'_>,
    taken: Taken,
    asked: &AskedArrivals,
    seed: u64,
) -> Option<(Requests, String)> {
    if asked.from_s > 0.0 || asked.to_s < WINDOW_S_MAX {
        let help = "turns follow each other: leave `from_s` and `to_s` out, and take fewer with `requests`";
        section.refuse(Code::ExclusiveKeys, section.at(), "a window of a trace with `session_id`", help);
        return None;
    }
    let turns = taken.requests.clone();
    let (begins, source) = lay(section, Taken { requests: sessions::begins(&turns), ..taken }, asked, seed)?;
    let words = format!("{source}, in {} recorded sessions", begins.len());
    Some((sessions::arrive(turns, &begins), words))
}

/// Requests before arrivals: drawn, from a file, or all alike.
fn taken(section: &mut Section<'_>, folder: &Path, (seed, block_tokens): (u64, u32)) -> Option<Taken> {
    let n = section.size("requests", 0, 1..=REQUESTS_MAX);
    section.alternatives(&["lengths", "file", "prompt_tokens"]);
    let has_others = section.has("lengths") || section.has("file");
    if !section.has("file") {
        section.idle(&["format"], "`file`");
    }
    let (named, file, ends) = (section.text("lengths"), section.text("file"), ends(section, has_others));
    let names = Format::WORDS.map(|(name, _)| name);
    let format = section.text("format");
    match (named, file, ends) {
        (Some((name, at)), None, None) => table(section, &name, at, n, seed),
        (None, Some((path, at)), None) => match format {
            None => {
                section.missing("format", &format!("allowed are {}", names.join(", ")));
                None
            }
            Some((name, format_at)) => match Format::WORDS.iter().find(|(known, _)| *known == name) {
                Some((_, format)) => from_file(section, (&folder.join(&path), &path), (*format, block_tokens), at, n),
                None => {
                    let what = format!("unknown trace format `{name}`");
                    section.find(unknown(Code::UnknownFormat, what, &name, names, format_at));
                    None
                }
            },
        },
        (None, None, Some((ends, _))) => Some(between(n.max(1), ends, seed)),
        (None, None, None) => {
            let tables: Vec<&str> = lengths::names().collect();
            let help = format!(
                "name a table ({}), give `file` and `format`, or `prompt_tokens` and `output_tokens`",
                tables.join(", ")
            );
            section.missing("lengths", &help);
            None
        }
        (_, Some((_, at)), _) | (_, _, Some((_, at))) => {
            let what = "`trace.lengths`, `trace.file` and `trace.prompt_tokens` exclude each other";
            section.wrong(Code::ExclusiveKeys, at, what);
            None
        }
    }
}

/// Ends of `prompt_tokens` and of `output_tokens`, with the place of the first; a number is both of its ends.
fn ends(section: &mut Section<'_>, has_others: bool) -> Option<([[u32; 2]; 2], Place)> {
    if !section.has("prompt_tokens") && !section.has("output_tokens") {
        return None;
    }
    // Beside other lengths both are too many, and neither needs the other.
    let mut tokens = |key| section.ends(key, has_others.then_some(1), 1..=TOKENS_MAX.into());
    let ((prompt, at), (output, _)) = (tokens("prompt_tokens"), tokens("output_tokens"));
    Some(([prompt.map(small), output.map(small)], at))
}

/// Requests between two ends, or all alike where both ends are one.
fn between(n: usize, [prompt, output]: [[u32; 2]; 2], seed: u64) -> Taken {
    let words = |[from, to]: [u32; 2]| if from == to { from.to_string() } else { format!("{from} to {to}") };
    let source = format!("{n} requests of {} + {} tokens", words(prompt), words(output));
    let alike = (prompt[0] == prompt[1] && output[0] == output[1]).then_some((prompt[0], output[0]));
    let requests = match alike {
        Some((prompt, output)) => Requests::of(vec![Request::new(Time::ZERO, prompt, output); n]),
        None => lengths::between(n, prompt, output, seed),
    };
    Taken { requests, has_arrivals: false, source, recorded: Vec::new(), lengths: alike }
}

/// Draws from an embedded table.
fn table(section: &mut Section<'_>, name: &str, at: Place, n: usize, seed: u64) -> Option<Taken> {
    let Some(table) = lengths::named(name) else {
        section.find(unknown(
            Code::UnknownLengths,
            format!("unknown table of lengths `{name}`"),
            name,
            lengths::names(),
            at,
        ));
        return None;
    };
    let n = if n > 0 { n } else { usize::try_from(table.n_requests).expect("small") };
    let source = format!("{n} requests with lengths of {name} ({})", table.about);
    Some(Taken { requests: table.sample(n, seed), has_arrivals: false, source, recorded: Vec::new(), lengths: None })
}

/// Reads a trace file; its faults are findings.
fn from_file(
    section: &mut Section<'_>,
    (path, shown): (&Path, &str),
    (format, block_tokens): (Format, u32),
    at: Place,
    n: usize,
) -> Option<Taken> {
    let mut file = match crate::shipped::lines(path) {
        Ok(file) => file,
        Err(error) => {
            section.wrong(Code::UnreadableFile, at, format!("cannot read `{shown}`: {error}"));
            return None;
        }
    };
    let trace = match trace::read(format, &mut file, block_tokens) {
        Ok(trace) => trace,
        Err(faults) => {
            for fault in faults.found.iter().take(FAULTS_SHOWN) {
                let what = format!("`{shown}` line {} column {}: {}", fault.line, fault.column, fault.reason);
                section.wrong(Code::WrongTrace, at.clone(), what);
            }
            let more = (faults.found.len().saturating_sub(FAULTS_SHOWN)) as u64 + faults.n_more;
            if more > 0 {
                section.wrong(Code::WrongTrace, at, format!("`{shown}` has {more} more faults"));
            }
            return None;
        }
    };
    if trace.n_estimated > 0 {
        let what = format!("`{shown}`: tokens of {} requests are estimated from their text", trace.n_estimated);
        let help =
            "about 4 characters are a token, and `max_tokens` stands for the output; log `usage` for real counts";
        section.warn(Code::EstimatedTokens, at.clone(), what, help);
    }
    for (n, parts, help) in [
        (trace.n_with_other_parts, "parts of audio, video or files", "their tokens count only where `usage` has them"),
        (
            trace.n_with_choices,
            "`n` or `best_of` above 1",
            "one answer of each is served; write a line for every answer",
        ),
    ] {
        if n > 0 {
            let what = format!("`{shown}`: {n} requests have {parts}, which are left out");
            section.warn(Code::LeftOut, at.clone(), what, help);
        }
    }
    let mut requests = trace.requests;
    dataset::fewer(section, shown, (n, requests.len()));
    if n > 0 {
        requests.list.truncate(n);
        requests.follows.truncate(n);
        requests.pauses.truncate(n);
    }
    let left_out = if trace.n_left_out > 0 { format!(", {} rows left out", trace.n_left_out) } else { String::new() };
    let source = format!("{} requests of {shown}{left_out}", requests.len());
    let recorded = trace.images;
    Some(Taken { requests, has_arrivals: trace.has_arrivals, source, recorded, lengths: None })
}

fn late(n: usize, at: Place) -> Finding {
    let what = format!("{n} requests would arrive more than {WINDOW_S_MAX} s after the start");
    Finding::error(Code::LateArrivals, at, what)
        .help("raise the rate, take fewer requests, or cut a window with `trace.to_s`")
}

/// Lays arrivals over the requests and cuts the window.
fn lay(section: &mut Section<'_>, taken: Taken, asked: &AskedArrivals, seed: u64) -> Option<(Requests, String)> {
    let Taken { mut requests, has_arrivals, source, .. } = taken;
    let AskedArrivals { kind, per_s, cv, speed, from_s: from, to_s: to, load, .. } = *asked;
    if kind == TOGETHER || kind == HELD {
        let at = Time::ZERO + Span::from_seconds(Seconds::new(asked.at_s));
        requests.list.iter_mut().for_each(|request| request.arrival = at);
        let words =
            if kind == HELD { format!("{} of them in flight", asked.concurrency) } else { "all at once".to_owned() };
        return Some((requests, format!("{source}, {words}")));
    }
    if kind == REPLAY && !has_arrivals {
        let what = "`trace.arrivals` is `replay`, and the requests have no arrivals";
        section.refuse(Code::NoArrivals, section.at(), what, "give `rate_per_s` with `poisson` or `gamma`");
        return None;
    }
    let schedule = asked.schedule.clone().filter(|_| kind < REPLAY);
    let schedule = schedule.map(|schedule| Schedule { cv: if kind == POISSON { 1.0 } else { cv }, ..schedule });
    if kind < REPLAY && per_s <= 0.0 && schedule.is_none() {
        section.missing(
            "rate_per_s",
            "requests per second that arrive on average; or `concurrency`, requests in flight that are held",
        );
        return None;
    }
    let arrivals = match kind {
        POISSON => Arrivals::Poisson { per_s },
        GAMMA => Arrivals::Gamma { per_s, cv },
        _ => Arrivals::Replay { speed },
    };
    let n_late = match &schedule {
        Some(schedule) => arrivals::lay_schedule(&mut requests, schedule, seed),
        None => arrivals::lay(&mut requests, arrivals, seed),
    };
    // Behind the end of a window nobody misses them.
    if n_late > 0 && to >= WINDOW_S_MAX {
        section.find(late(n_late, section.at()));
        return None;
    }
    let at = |seconds: f64| Time::ZERO + Span::from_seconds(Seconds::new(seconds));
    let requests = if from > 0.0 || to < WINDOW_S_MAX { requests.window(at(from), at(to)) } else { requests };
    if requests.is_empty() {
        section.wrong(Code::NoRequests, section.at(), format!("no request arrives from {from} s to {to} s"));
        return None;
    }
    let mut requests = requests;
    if load != 1.0 {
        let n_late = arrivals::lay(&mut requests, Arrivals::Replay { speed: load }, seed);
        if n_late > 0 {
            section.find(late(n_late, section.at()));
            return None;
        }
    }
    let words = match arrivals {
        _ if schedule.is_some() => format!("{source}, at rates of a schedule"),
        Arrivals::Poisson { per_s } => format!("{source}, Poisson at {per_s} per second"),
        Arrivals::Gamma { per_s, cv } => format!("{source}, Gamma at {per_s} per second with cv {cv}"),
        Arrivals::Replay { speed } => format!("{source}, as recorded at {speed} times the speed"),
    };
    let words = if load == 1.0 { words } else { format!("{words}, at {load} times the load") };
    Some((requests, words))
}

#[cfg(test)]
mod tests;
