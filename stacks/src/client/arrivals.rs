//! When requests come: by a rate, all together, or so many in flight; and how many there are.

use super::reader::Reader;

/// Requests of a run that a client leaves to a time, where nothing says how many fit in.
pub(super) const OF_A_TIME: u64 = 1000;
/// Most requests.
pub(super) const REQUESTS_MAX: u64 = 10_000_000;
/// Most requests in flight.
const CAP_MAX: u64 = 1_000_000;
/// Most requests of a warm-up.
const WARM_UP_MAX: u64 = 1_000_000;
/// Rates that are taken.
pub(super) const RATES: std::ops::RangeInclusive<f64> = 1e-6..=1e9;
/// Coefficient of variation of gaps that are all alike: the least that a scenario takes.
pub(super) const EVEN: f64 = 0.01;

/// A number of options, with the words that gave it.
pub(super) type Said<T> = Option<(T, String)>;

/// How a client sends its requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Load {
    /// Requests a second; none where they are sent as fast as they may.
    pub(super) per_s: Said<f64>,
    /// Coefficient of variation of the gaps, where they are not those of a Poisson process.
    pub(super) cv: Said<f64>,
    /// Requests in flight at most.
    pub(super) cap: Said<u64>,
}

/// A rate; `inf` is none.
pub(super) fn rate(read: &mut Reader<'_>, names: &[&str]) -> Said<f64> {
    if !read.wants("rate_per_s") || !read.wants("schedule") || !read.wants("concurrency") {
        return None;
    }
    let name = read.given(names)?;
    let rate = read.real(name).filter(|rate| rate.is_finite())?;
    if !RATES.contains(&rate) {
        let what = format!("`{} {rate}` is no rate of requests", read.flags.shown(name));
        read.flags.wrong(name, what, "allowed are numbers from 0.000001, and `inf`".to_owned());
        return None;
    }
    Some((rate, read.flags.shown(name)))
}

/// What clients call burstiness: the shape of a gamma law, whose coefficient of variation is one over its root. 1 is a Poisson process.
pub(super) fn burstiness(read: &mut Reader<'_>, names: &[&str]) -> Said<f64> {
    const EVEN_SHAPE: f64 = 1.0 / (EVEN * EVEN);
    let name = read.given(names).filter(|_| read.wants("cv"))?;
    let shape = read.real(name)?;
    let is_shape = (1e-4..=EVEN_SHAPE).contains(&shape);
    if !is_shape {
        let what = format!("`{} {shape}` is no shape of gaps between requests", read.flags.shown(name));
        read.flags.wrong(name, what, format!("allowed are numbers from 0.0001 to {EVEN_SHAPE}"));
    }
    (is_shape && shape != 1.0).then(|| (1.0 / shape.sqrt(), read.flags.shown(name)))
}

/// Requests in flight at most.
pub(super) fn cap(read: &mut Reader<'_>, names: &[&str]) -> Said<u64> {
    if !read.wants("concurrency") || !read.wants("rate_per_s") || !read.wants("schedule") {
        return None;
    }
    let name = read.given(names)?;
    Some((read.whole(name, 1..=CAP_MAX)?, read.flags.shown(name)))
}

/// Writes when requests come, as far as the command line leaves that open. Gives whether so many are held in flight.
pub(super) fn write(read: &mut Reader<'_>, load: &Load) -> bool {
    let stated = read.machine.arrivals.clone();
    if !read.wants("schedule") || !read.wants("concurrency") {
        return !read.wants("concurrency");
    }
    match stated.as_deref() {
        Some("held") => {
            if let Some((n, flag)) = &load.cap {
                read.set("concurrency", n, flag.clone());
            }
            return true;
        }
        Some("together" | "replay") => return false,
        Some(word) => {
            by_rate(read, load, word == "gamma");
            return false;
        }
        None => {}
    }
    match (&load.per_s, &load.cap) {
        _ if !read.wants("rate_per_s") => {
            kind(read, load, "with the rate of `--set`");
            by_rate(read, load, load.cv.is_some());
        }
        (Some((_, flag)), cap) => {
            if let Some((n, held)) = cap {
                let what = format!("a cap on requests in flight beside a rate is not modelled: `{held} {n}`");
                let help =
                    "requests come by the rate alone; `--set trace.concurrency=…` holds so many in flight instead";
                read.warn(held.trim_start_matches('-'), what, help);
            }
            kind(read, load, flag);
            by_rate(read, load, load.cv.is_some());
        }
        (None, Some((n, flag))) => {
            read.set("concurrency", n, flag.clone());
            return true;
        }
        (None, None) => read.set("arrivals", "\"together\"", format!("all at once, {}", read.usual())),
    }
    false
}

/// The law of the gaps.
fn kind(read: &mut Reader<'_>, load: &Load, flag: &str) {
    let (word, remark) = load.cv.as_ref().map_or(("\"poisson\"", flag), |(_, flag)| ("\"gamma\"", flag.as_str()));
    read.set("arrivals", word, remark);
}

/// The rate, and how even the gaps are.
fn by_rate(read: &mut Reader<'_>, load: &Load, has_cv: bool) {
    if let Some((rate, flag)) = load.per_s.as_ref().filter(|_| read.wants("rate_per_s")) {
        read.set("rate_per_s", format!("{rate:?}"), flag.clone());
    }
    if let Some((cv, flag)) = load.cv.as_ref().filter(|_| has_cv && read.wants("cv")) {
        read.set("cv", format!("{cv:?}"), flag.clone());
    }
}

/// Writes how many requests there are, those of the warm-up included, which is sent before the others where so many are held in flight. A server of
/// the simulator is warm, so that before others a warm-up changes nothing.
pub(super) fn count(read: &mut Reader<'_>, count: Said<u64>, warm_up: Said<u64>, is_held: bool) {
    if !read.wants("requests") {
        return;
    }
    let Some((n, flag)) = count else { return };
    let mut warm_up = warm_up.filter(|(n, _)| *n > 0 && is_held);
    if let Some((_, flag)) = warm_up.take_if(|_| read.gives("sessions")) {
        let what = format!("a warm-up beside a beginning that all prompts share is not modelled: `{flag}`");
        read.warn(flag.trim_start_matches('-'), what, "all requests count; `slo.warm_up_s` leaves out their beginning");
    }
    match warm_up {
        Some((more, of_warm_up)) => {
            read.set("requests", n.saturating_add(more), format!("{flag}, and those of the warm-up"));
            read.set("warm_up_requests", more, of_warm_up);
        }
        None => read.set("requests", n, flag),
    }
}

/// Requests that come by a rate within so many seconds of an option.
pub(super) fn within(load: &Load, seconds: f64, option: &str) -> Said<u64> {
    let (rate, flag) = load.per_s.as_ref()?;
    let n = (rate * seconds).clamp(1.0, hw::real(REQUESTS_MAX));
    Some((hw::whole(n), format!("{flag} times --{option}")))
}

/// Requests of a warm-up.
pub(super) fn warm_up(read: &mut Reader<'_>, names: &[&str]) -> Said<u64> {
    if !read.wants("requests") || !read.wants("warm_up_requests") {
        return None;
    }
    let name = read.given(names)?;
    Some((read.whole(name, 0..=WARM_UP_MAX)?, read.flags.shown(name)))
}
