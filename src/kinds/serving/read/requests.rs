//! `[trace]`: requests from an embedded table of lengths or from a trace file, and how they arrive.

use std::io::BufReader;
use std::path::Path;

use hw::{Seconds, Span, Time};
use serve::arrivals::{self, Arrivals, Schedule};
use serve::lengths;
use serve::request::Requests;
use serve::trace::{self, Format};

use crate::diagnostic::{Code, Finding};
use crate::scenario::reader::{Place, Section, unknown};

/// Faults of a trace that are shown one by one.
const FAULTS_SHOWN: usize = 5;

/// Requests before arrivals are laid over them.
struct Taken {
    requests: Requests,
    has_arrivals: bool,
    source: String,
}

/// Reads the section: the requests, and where they come from.
pub fn requests(mut section: Section<'_>, folder: &Path, seed: u64) -> Option<(Requests, String)> {
    let n = usize::try_from(section.count("requests", Some(0), 1..=100_000_000).0).expect("bounded");
    section.alternatives(&["lengths", "file"]);
    let (named, file) = (section.text("lengths"), section.text("file"));
    let names = Format::ALL.map(|(name, _)| name);
    let format = section.text("format");
    let taken = match (named, file) {
        (Some(_), Some((_, at))) => {
            section.find(Finding::error(
                Code::ExclusiveKeys,
                at,
                "`trace.lengths` and `trace.file` exclude each other",
            ));
            None
        }
        (None, None) => {
            let tables: Vec<&str> = lengths::names().collect();
            let help = format!("name a table ({}), or give `file` and `format`", tables.join(", "));
            section.missing("lengths", &help);
            None
        }
        (Some((name, at)), None) => table(&mut section, &name, at, n, seed),
        (None, Some((path, at))) => match format {
            None => {
                section.missing("format", &format!("allowed are {}", names.join(", ")));
                None
            }
            Some((name, format_at)) => match Format::ALL.iter().find(|(known, _)| *known == name) {
                Some((_, format)) => from_file(&mut section, &folder.join(&path), &path, *format, at, n),
                None => {
                    section.find(unknown(
                        Code::UnknownFormat,
                        format!("unknown trace format `{name}`"),
                        &name,
                        names,
                        format_at,
                    ));
                    None
                }
            },
        },
    };
    let asked = asked(&mut section);
    let laid = taken.and_then(|taken| lay(&mut section, taken, &asked, seed));
    section.finish();
    laid
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
    Some(Taken { requests: table.sample(n, seed), has_arrivals: false, source })
}

/// Reads a trace file; its faults are findings.
fn from_file(
    section: &mut Section<'_>,
    path: &Path,
    shown: &str,
    format: Format,
    at: Place,
    n: usize,
) -> Option<Taken> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) => {
            section.find(Finding::error(Code::UnreadableFile, at, format!("cannot read `{shown}`: {error}")));
            return None;
        }
    };
    let trace = match trace::read(format, &mut BufReader::new(file)) {
        Ok(trace) => trace,
        Err(faults) => {
            for fault in faults.found.iter().take(FAULTS_SHOWN) {
                let what = format!("`{shown}` line {} column {}: {}", fault.line, fault.column, fault.reason);
                section.find(Finding::error(Code::WrongTrace, at.clone(), what));
            }
            let more = (faults.found.len().saturating_sub(FAULTS_SHOWN)) as u64 + faults.n_more;
            if more > 0 {
                section.find(Finding::error(Code::WrongTrace, at, format!("`{shown}` has {more} more faults")));
            }
            return None;
        }
    };
    if trace.n_estimated > 0 {
        let what = format!("`{shown}`: tokens of {} requests are estimated from their text", trace.n_estimated);
        let help =
            "about 4 characters are a token, and `max_tokens` stands for the output; log `usage` for real counts";
        section.find(Finding::warning(Code::EstimatedTokens, at, what).help(help));
    }
    let mut requests = trace.requests;
    if n > 0 {
        requests.list.truncate(n);
    }
    let left_out = if trace.n_left_out > 0 { format!(", {} rows left out", trace.n_left_out) } else { String::new() };
    let source = format!("{} requests of {shown}{left_out}", requests.len());
    Some(Taken { requests, has_arrivals: trace.has_arrivals, source })
}

/// What the section asks of arrivals.
struct Asked {
    /// Position among poisson, gamma and replay; beyond them where it follows from the requests.
    kind: usize,
    per_s: f64,
    cv: f64,
    speed: f64,
    from_s: f64,
    to_s: f64,
    /// The same requests so many times as fast, after the window is cut.
    load: f64,
    schedule: Option<Schedule>,
}

/// Latest second of a window.
const WINDOW_S_MAX: f64 = arrivals::ARRIVAL_S_MAX;

/// `[[trace.schedule]]`: rates that hold from some second on.
fn schedule(section: &mut Section<'_>) -> Option<Schedule> {
    let mut pieces: Vec<(f64, f64)> = Vec::new();
    let mut wrong = None;
    section.each_table("schedule", &mut |mut table| {
        let from_s = table.number("from_s", 0.0, 0.0..=WINDOW_S_MAX);
        let per_s = table.number("rate_per_s", 0.0, 0.0..=1e9);
        let is_next = pieces.last().map_or(from_s == 0.0, |(before, _)| *before < from_s);
        if !is_next {
            wrong = Some((table.at(), "`trace.schedule` starts at 0 s and each later piece after the one before"));
        }
        pieces.push((from_s, per_s));
        table.finish();
    });
    let repeat_s = Some(section.number("repeat_s", 0.0, 1.0..=WINDOW_S_MAX)).filter(|period| *period > 0.0);
    let last = *pieces.last()?;
    if repeat_s.is_some_and(|period| period <= last.0) {
        wrong = Some((section.at(), "`trace.repeat_s` lies after the start of the last piece"));
    }
    if repeat_s.is_none() && last.1 <= 0.0 || pieces.iter().all(|(_, per_s)| *per_s <= 0.0) {
        wrong = Some((section.at(), "the last rate of `trace.schedule` is above 0, or some rate where it repeats"));
    }
    if let Some((at, what)) = wrong {
        section.find(Finding::error(Code::WrongSchedule, at, what));
        return None;
    }
    Some(Schedule { pieces, repeat_s, cv: 1.0 })
}

fn asked(section: &mut Section<'_>) -> Asked {
    let schedule = schedule(section);
    Asked {
        schedule,
        kind: section.word("arrivals", usize::MAX, &["poisson", "gamma", "replay"]),
        per_s: section.number("rate_per_s", 0.0, 1e-6..=1e9),
        cv: section.number("cv", 1.0, 0.01..=100.0),
        speed: section.number("speed", 1.0, 1e-6..=1e6),
        from_s: section.number("from_s", 0.0, 0.0..=WINDOW_S_MAX),
        to_s: section.number("to_s", WINDOW_S_MAX, 1e-3..=WINDOW_S_MAX),
        load: section.number("load", 1.0, 1e-3..=1e3),
    }
}

fn late(n: usize, at: Place) -> Finding {
    let what = format!("{n} requests would arrive more than {WINDOW_S_MAX} s after the start");
    Finding::error(Code::LateArrivals, at, what)
        .help("raise the rate, take fewer requests, or cut a window with `trace.to_s`")
}

/// Lays arrivals over the requests and cuts the window.
fn lay(section: &mut Section<'_>, taken: Taken, asked: &Asked, seed: u64) -> Option<(Requests, String)> {
    let Taken { mut requests, has_arrivals, source } = taken;
    let Asked { kind, per_s, cv, speed, from_s: from, to_s: to, load, .. } = *asked;
    let kind = if kind == usize::MAX { 2 * usize::from(has_arrivals) } else { kind };
    if kind == 2 && !has_arrivals {
        let what = "`trace.arrivals` is `replay`, and the requests have no arrivals";
        section.find(
            Finding::error(Code::NoArrivals, section.at(), what).help("give `rate_per_s` with `poisson` or `gamma`"),
        );
        return None;
    }
    let schedule = asked.schedule.clone().filter(|_| kind < 2);
    let schedule = schedule.map(|schedule| Schedule { cv: if kind == 0 { 1.0 } else { cv }, ..schedule });
    if kind < 2 && per_s <= 0.0 && schedule.is_none() {
        section.missing("rate_per_s", "requests per second that arrive on average");
        return None;
    }
    let arrivals = match kind {
        0 => Arrivals::Poisson { per_s },
        1 => Arrivals::Gamma { per_s, cv },
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
        section.find(Finding::error(
            Code::NoRequests,
            section.at(),
            format!("no request arrives from {from} s to {to} s"),
        ));
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
