//! What a recorded step took: seconds of each term, of each lane, and the gaps in which nothing ran.
//!
//! A kernel belongs to the step in which the host launched it; where the launch is not recorded, to the one in which it began. A step lasts from its
//! first kernel to the first kernel of the next one, the last step to the end of its last kernel. Kernels outside of every step are left out.

use std::collections::BTreeMap;

use super::term::{Lane, Term};
use super::{Event, ProfilerError, Recorded, Window};

/// Seconds of a step in which lanes are busy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    /// Kernels compute.
    pub compute_s: f64,
    /// Exchanges run.
    pub exchange_s: f64,
    /// Exchanges run, and nothing computes.
    pub exposed_s: f64,
    /// Copies from and to the host run.
    pub copy_s: f64,
    /// Nothing runs.
    pub idle_s: f64,
}

/// A term of all steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Took {
    /// Seconds of each step.
    pub seconds: Vec<f64>,
    /// Launches over all steps.
    pub n: u64,
}

/// Gaps between two kernels of the same names.
#[derive(Clone, Debug, PartialEq)]
pub struct Gap {
    /// What ran before.
    pub before: String,
    /// What ran after.
    pub after: String,
    /// Such gaps over all steps.
    pub n: u64,
    /// Seconds of a step.
    pub seconds: f64,
    /// Of which the host had not yet launched what ran after.
    pub host_s: f64,
}

/// What the steps of a file took.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Rank, where the file says it.
    pub rank: Option<u32>,
    /// Ranks that took part.
    pub n_ranks: Option<u32>,
    /// Name of the device.
    pub device: Option<String>,
    /// Seconds of each step.
    pub steps: Vec<f64>,
    /// Whether no step was marked, so that all is one.
    pub is_whole: bool,
    /// Terms that ran.
    pub terms: BTreeMap<Term, Took>,
    /// Lanes, mean over the steps.
    pub busy: Busy,
    /// Seconds of a step in which nothing ran and the host had not launched what came next; absent where no launch is recorded.
    pub host_s: Option<f64>,
    /// Gaps, longest sum first.
    pub gaps: Vec<Gap>,
    /// Kernels without a term: name, launches, seconds of a step; longest first.
    pub unknown: Vec<(String, u64, f64)>,
    /// Events outside of every step, and on other devices.
    pub n_left_out: usize,
}

/// Counts the steps of a file.
///
/// # Errors
/// When nothing lies inside of a step.
pub fn measured(mut recorded: Recorded) -> Result<Measured, ProfilerError> {
    let n_others = recorded.one_device();
    let terms: Vec<Term> =
        recorded.names.iter().map(|(name, collective)| Term::of_kernel(name, collective.as_deref())).collect();
    let is_whole = recorded.host_steps.is_empty() && recorded.device_steps.is_empty();
    let n_all = recorded.events.len();
    let mut kept: Vec<(u64, Event)> =
        recorded.events.iter().filter_map(|event| Some((step_of(&recorded, event)?, *event))).collect();
    kept.sort_by_key(|(_, event)| (event.start, event.end));
    let steps = steps(&kept).ok_or(ProfilerError::NoStep)?;
    let n_steps = hw::real(steps.len() as u64);
    let span = Window { start: steps[0].1.start, end: steps[steps.len() - 1].1.end };
    let parts = kept.iter().map(|(_, event)| (terms[event.name as usize].lane(), event.start, event.end));
    let busy = busy(parts.collect(), span, n_steps);
    let (gaps, host_s) = gaps(&recorded, &kept, n_steps);
    Ok(Measured {
        rank: recorded.rank,
        n_ranks: recorded.n_ranks,
        device: recorded.devices.values().next().cloned(),
        steps: steps.iter().map(|(_, window)| seconds(window.end - window.start)).collect(),
        is_whole,
        terms: took(&kept, &terms, &steps),
        busy,
        host_s,
        gaps,
        unknown: unknown(&recorded, &kept, &terms, n_steps),
        n_left_out: n_others + n_all - kept.len(),
    })
}

impl Measured {
    /// What it is of, in words.
    pub fn words(&self) -> String {
        let device = self.device.as_ref().map_or_else(String::new, |name| format!(" on {name}"));
        let (n, rank) = (self.steps.len(), self.rank.unwrap_or_default());
        format!("{n} recorded step{}{device}, rank {rank}", if n == 1 { "" } else { "s" })
    }
}

/// Nanoseconds as seconds.
pub(super) fn seconds(ns: u64) -> f64 {
    hw::real(ns) / 1e9
}

/// The step of an event; `None` outside of all.
fn step_of(recorded: &Recorded, event: &Event) -> Option<u64> {
    if recorded.host_steps.is_empty() && recorded.device_steps.is_empty() {
        return Some(0);
    }
    let launch = event.launch.and_then(|id| recorded.launches.get(&id));
    match launch.filter(|_| !recorded.host_steps.is_empty()) {
        Some(launch) => within(&recorded.host_steps, launch.start),
        None if recorded.device_steps.is_empty() => within(&recorded.host_steps, event.start),
        None => within(&recorded.device_steps, event.start),
    }
}

/// The step of a moment.
fn within(steps: &BTreeMap<u64, Window>, at: u64) -> Option<u64> {
    let found = steps.iter().find(|(_, window)| (window.start..window.end).contains(&at));
    found.map(|(number, _)| *number)
}

/// Steps with their time on the device; events are in order of their start.
fn steps(kept: &[(u64, Event)]) -> Option<Vec<(u64, Window)>> {
    let mut first: BTreeMap<u64, u64> = BTreeMap::new();
    for (step, event) in kept {
        first.entry(*step).or_insert(event.start);
    }
    let end = kept.iter().map(|(_, event)| event.end).max()?;
    let ends = first.values().skip(1).copied().chain([end]);
    Some(
        first
            .iter()
            .zip(ends)
            .map(|((step, start), end)| (*step, Window { start: *start, end: end.max(*start) }))
            .collect(),
    )
}

/// Seconds and launches of every term.
fn took(kept: &[(u64, Event)], terms: &[Term], steps: &[(u64, Window)]) -> BTreeMap<Term, Took> {
    let numbers: Vec<u64> = steps.iter().map(|(number, _)| *number).collect();
    let mut found: BTreeMap<Term, Took> = BTreeMap::new();
    for (step, event) in kept {
        let index = numbers.binary_search(step).expect("every event has a step");
        let took = found.entry(terms[event.name as usize]).or_default();
        took.seconds.resize(steps.len(), 0.0);
        took.seconds[index] += seconds(event.end - event.start);
        took.n += 1;
    }
    found
}

/// Lanes of `n` steps in a span.
pub(super) fn busy(parts: Vec<(Lane, u64, u64)>, span: Window, n: f64) -> Busy {
    let length = |lanes: &[Lane]| {
        let of = parts.iter().filter(|(lane, ..)| lanes.contains(lane));
        seconds(union(of.map(|(_, start, end)| (*start, *end)).collect(), span)) / n
    };
    let (compute_s, both_s) = (length(&[Lane::Compute]), length(&[Lane::Compute, Lane::Exchange]));
    Busy {
        compute_s,
        exchange_s: length(&[Lane::Exchange]),
        exposed_s: both_s - compute_s,
        copy_s: length(&[Lane::Copy]),
        idle_s: seconds(span.end - span.start) / n - length(&[Lane::Compute, Lane::Exchange, Lane::Copy]),
    }
}

/// Nanoseconds that intervals cover inside of a span.
fn union(mut intervals: Vec<(u64, u64)>, span: Window) -> u64 {
    intervals.sort_unstable();
    let (mut covered, mut end) = (0, span.start);
    for (from, to) in intervals {
        let to = to.min(span.end);
        covered += to.saturating_sub(from.max(end));
        end = end.max(to);
    }
    covered
}

/// Gaps by the kernels around them, and the part of all of them that waits for the host.
fn gaps(recorded: &Recorded, kept: &[(u64, Event)], n_steps: f64) -> (Vec<Gap>, Option<f64>) {
    // Names of kernels → gaps, nanoseconds, and those of the host.
    let mut found: BTreeMap<(u32, u32), [u64; 3]> = BTreeMap::new();
    let mut last = kept[0].1;
    for (_, event) in &kept[1..] {
        if event.start > last.end {
            let launch = event.launch.and_then(|id| recorded.launches.get(&id));
            let host = launch.map_or(0, |call| call.end.clamp(last.end, event.start) - last.end);
            let sums = found.entry((last.name, event.name)).or_default();
            for (sum, more) in sums.iter_mut().zip([1, event.start - last.end, host]) {
                *sum += more;
            }
        }
        if event.end > last.end {
            last = *event;
        }
    }
    let host_ns: u64 = found.values().map(|[_, _, host]| host).sum();
    let name = |id: u32| recorded.names[id as usize].0.clone();
    let gap = |((before, after), [n, ns, host]): ((u32, u32), [u64; 3])| {
        let (seconds, host_s) = (seconds(ns) / n_steps, seconds(host) / n_steps);
        Gap { before: name(before), after: name(after), n, seconds, host_s }
    };
    let mut gaps: Vec<Gap> = found.into_iter().map(gap).collect();
    gaps.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    (gaps, (!recorded.launches.is_empty()).then(|| seconds(host_ns) / n_steps))
}

/// Kernels whose names say nothing.
fn unknown(recorded: &Recorded, kept: &[(u64, Event)], terms: &[Term], n_steps: f64) -> Vec<(String, u64, f64)> {
    let mut found: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (_, event) in kept.iter().filter(|(_, event)| terms[event.name as usize] == Term::Unknown) {
        let (n, ns) = found.entry(event.name).or_default();
        (*n, *ns) = (*n + 1, ns.saturating_add(event.end - event.start));
    }
    let row = |(name, (n, ns)): (u32, (u64, u64))| (recorded.names[name as usize].0.clone(), n, seconds(ns) / n_steps);
    let mut rows: Vec<(String, u64, f64)> = found.into_iter().map(row).collect();
    rows.sort_by(|a, b| b.2.total_cmp(&a.2));
    rows
}
