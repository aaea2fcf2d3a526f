//! `[load]`, and the same keys of a variant: offline, where requests wait for a place, or online, where they arrive.

use std::ops::RangeInclusive;

use hw::{Seconds, Span, Time};
use planner::deploy::helix::{Arriving, Load};

use super::inventory::placed;
use input::diagnostic::Code;
use input::reader::{Section, small};

/// What arrives, and for how long, with the values as they were written.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// What arrives.
    pub load: Load,
    keys: Keys,
}

/// Values as they were written; a variant starts from those of `[load]`.
#[derive(Clone, Debug, Default, PartialEq)]
struct Keys {
    is_online: bool,
    in_flight: Vec<u64>,
    tokens_per_s: Vec<f64>,
    start: Option<u64>,
    level_ratio: Option<f64>,
    warm_up_s: Option<f64>,
    duration_s: Option<f64>,
    output_ratio: Option<f64>,
    high_water_ratio: Option<f64>,
}

/// Reads `[load]`; a list has a figure for each of the types, as the file lists them.
pub fn load(mut section: Section<'_>, kinds: &[usize]) -> Given {
    let load = keys(&mut section, &Keys::default(), kinds);
    section.finish();
    load
}

/// Reads the keys of a variant over those of `[load]`; a list has a figure for each of its pipelines, as the file lists their types.
pub fn variant(section: &mut Section<'_>, base: &Given, pipelines: &[usize]) -> Given {
    keys(section, &base.keys, pipelines)
}

/// Values of the public artefact, offline and online.
fn keys(section: &mut Section<'_>, base: &Keys, pipelines: &[usize]) -> Given {
    let mut keys = base.clone();
    keys.is_online = section.word("mode", usize::from(base.is_online), &["offline", "online"]) == 1;
    if keys.is_online != base.is_online {
        // What was said of one mode is not meant for the other.
        keys = Keys { is_online: keys.is_online, ..Keys::default() };
    }
    let in_flight = numbers(section, "in_flight", 1.0..=1e6, pipelines);
    if !in_flight.is_empty() {
        keys.in_flight = in_flight.into_iter().map(hw::whole).collect();
    }
    let tokens_per_s = numbers(section, "tokens_per_s", 1e-3..=1e9, pipelines);
    if !tokens_per_s.is_empty() {
        keys.tokens_per_s = tokens_per_s;
    }
    let mut number = |key, known: Option<f64>, range| section.some_number(key, range).or(known);
    keys.level_ratio = number("level_ratio", keys.level_ratio, 0.0..=1.0);
    keys.warm_up_s = number("warm_up_s", keys.warm_up_s, 0.0..=1e6);
    keys.duration_s = number("duration_s", keys.duration_s, 1.0..=1e6);
    keys.output_ratio = number("output_ratio", keys.output_ratio, 0.0..=100.0);
    keys.high_water_ratio = number("high_water_ratio", keys.high_water_ratio, 0.01..=1.0);
    keys.start = Some(section.count("start", keys.start.or(Some(20)), 1..=1_000_000).0);
    if keys.is_online && keys.tokens_per_s.is_empty() {
        section.missing("tokens_per_s", "prompt and output tokens that arrive per second, online");
        keys.tokens_per_s = vec![1.0];
    }
    let online = keys.is_online;
    let warm_up_s = keys.warm_up_s.unwrap_or(if online { 0.0 } else { 60.0 });
    let duration_s = keys.duration_s.unwrap_or(if online { 1800.0 } else { 600.0 });
    let arriving = if online {
        Arriving::Online { tokens_per_s: keys.tokens_per_s.clone() }
    } else {
        Arriving::Offline {
            in_flight: keys.in_flight.clone(),
            start: small(keys.start.unwrap_or(20)),
            level_ratio: keys.level_ratio.unwrap_or(0.8),
        }
    };
    let load = Load {
        arriving,
        warm_up: moment(warm_up_s),
        until: moment(warm_up_s + duration_s),
        output_ratio: keys.output_ratio.unwrap_or(if online { 0.6 } else { 1.0 }),
        high_water_ratio: keys.high_water_ratio.unwrap_or(if online { 0.9 } else { 0.85 }),
    };
    Given { load, keys }
}

/// A number, or a list with one for each of the pipelines that are run by themselves, each at its place.
fn numbers(section: &mut Section<'_>, key: &'static str, range: RangeInclusive<f64>, pipelines: &[usize]) -> Vec<f64> {
    let n = pipelines.len();
    let place = section.place(key);
    let allowed = format!("allowed are numbers from {} to {}", range.start(), range.end());
    let (at, allowed) = match section.numbers(key, range) {
        None => return Vec::new(),
        // Without an inventory nobody knows how many there are.
        Some(Ok(found)) if n == 0 || found.len() == 1 => return found,
        Some(Ok(found)) if found.len() == n => return placed(&found, pipelines),
        Some(Ok(found)) => (place.flatten(), format!("it lists {}, and the policy has {n}", found.len())),
        Some(Err(at)) => (at, allowed),
    };
    let what = format!("`{key}` must be a number or a list of numbers, one for each pipeline that is run by itself");
    section.refuse(Code::OutOfRange, at, what, allowed);
    Vec::new()
}

/// Moment of so many seconds.
fn moment(seconds: f64) -> Time {
    Time::ZERO + Span::from_seconds(Seconds::new(seconds))
}
