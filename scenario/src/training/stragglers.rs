//! `[[stragglers]]`: devices of a training job that compute slower, and in which steps.

use hw::Rank;
use toml_span::value::ValueInner;
use train::straggler::{Rates, Straggler};

use input::diagnostic::{Code, Finding};
use input::reader::{Reader, Section, place_of};

/// Slowest rate: beyond it a device is lost, which no plan of a step can use.
const RATE_MAX: f64 = 1000.0;
/// Steps count no further: numbers of a scenario have a sign.
const STEPS_MAX: u64 = u64::MAX >> 1;

/// Where the number of steps is from, in words.
pub const fn of_steps(are_answers: bool) -> &'static str {
    if are_answers { "they are the updates by one batch" } else { "`training.steps` says how many there are" }
}

/// Reads the list; ranks are those of a machine of `n_gpus`, where it is known, and steps come with the words for where their number is from.
pub fn stragglers(reader: &mut Reader<'_>, n_gpus: Option<u32>, steps: (u64, &str)) -> Vec<Straggler> {
    let mut all = Vec::new();
    reader.each_table("stragglers", &mut |table| all.push(straggler(table, n_gpus, steps)));
    all
}

/// Reads the list for a kind whose steps are all alike: rates of GPUs, the largest of each.
pub fn of_epochs(reader: &mut Reader<'_>, n_gpus: Option<u32>) -> Rates {
    Rates::at(&of_every_step(reader, n_gpus, "an epoch"), 0)
}

/// The same with the list, where a step stands for all of a whole.
pub fn of_every_step(reader: &mut Reader<'_>, n_gpus: Option<u32>, whole: &str) -> Vec<Straggler> {
    let all = stragglers(reader, n_gpus, (1, &format!("one step stands for all of {whole} here: leave it out")));
    if all.iter().any(|straggler| straggler.until_step.is_some()) {
        let what = format!("`stragglers.until_step` has no effect: a step stands for all steps of {whole} here");
        reader.refuse(Code::NoEffect, None, what, "leave it out");
    }
    all
}

fn straggler(mut section: Section<'_>, n_gpus: Option<u32>, n_steps: (u64, &str)) -> Straggler {
    let ranks = ranks(&mut section, n_gpus);
    if !section.has("rate") {
        section.missing("rate", "the device's time for some computation over a healthy one's, for example 2.57");
    }
    let rate_at = section.place("rate");
    let found = section.number("rate", f64::NAN, 1.0..=RATE_MAX);
    // What is refused is no rate of 1.
    let rate = if found.is_nan() { 1.0 } else { found };
    if let Some(at) = rate_at.filter(|_| found == 1.0) {
        let what = format!("`{}` is 1, which changes nothing: such a device is healthy", section.full("rate"));
        section.warn(Code::NoEffect, at, what, "a straggler's rate is above 1; or leave the table out");
    }
    let is_ended = section.has("until_step");
    let (from, until) = steps(&mut section, n_steps);
    section.finish();
    let index = |step: u64| usize::try_from(step).unwrap_or(usize::MAX);
    Straggler { ranks, rate, from_step: index(from), until_step: is_ended.then(|| index(until)) }
}

/// `from_step` and `until_step`: the first step of a run in which it holds, and the first in which it holds no more.
fn steps(section: &mut Section<'_>, (n_steps, of): (u64, &str)) -> (u64, u64) {
    let (from, at) = section.count("from_step", Some(0), 0..=STEPS_MAX);
    let (until, until_at) = section.count("until_step", Some(STEPS_MAX), 1..=STEPS_MAX);
    if from >= n_steps {
        let what =
            format!("`{}` is {from}, and the last step is {}", section.full("from_step"), n_steps.saturating_sub(1));
        section.refuse(Code::OutOfRange, at, what, format!("steps count from 0; {of}"));
    } else if until <= from {
        let what = format!("`{}` is {until}, and `from_step` is {from}", section.full("until_step"));
        section.refuse(Code::OutOfRange, until_at, what, "it is the first step after the last slow one");
    }
    (from, until)
}

/// `ranks = [3, 12]`.
fn ranks(section: &mut Section<'_>, n_gpus: Option<u32>) -> Vec<Rank> {
    let Some((value, at)) = section.take("ranks") else {
        section.missing("ranks", "a list of ranks from 0, node by node, for example `ranks = [3]`");
        return Vec::new();
    };
    let ValueInner::Array(items) = value else {
        let what = format!("`{}` is not a list of ranks", section.full("ranks"));
        section.refuse(Code::OutOfRange, at, what, "for example `ranks = [3]`");
        return Vec::new();
    };
    if items.is_empty() {
        let what = format!("`{}` is empty", section.full("ranks"));
        section.refuse(Code::OutOfRange, at, what, "leave the table out where no device straggles");
    }
    let mut ranks = Vec::with_capacity(items.len());
    for item in &items {
        let found = item.as_integer().and_then(|n| u32::try_from(n).ok());
        match found.filter(|rank| n_gpus.is_none_or(|n| *rank < n)) {
            Some(rank) if ranks.contains(&Rank(rank)) => {
                let what = format!("`{}` holds {rank} twice, which changes nothing", section.full("ranks"));
                section.warn(Code::NoEffect, place_of(item), what, "a device is as slow as `rate` says, once");
            }
            Some(rank) => ranks.push(Rank(rank)),
            None => {
                let what = match item.as_integer() {
                    Some(n) => format!("`{}` holds {n}", section.full("ranks")),
                    None => format!("`{}` holds something that is no rank", section.full("ranks")),
                };
                let last =
                    n_gpus.map_or_else(|| "one less than the GPUs".to_owned(), |n| n.saturating_sub(1).to_string());
                let help = format!("allowed are whole numbers from 0 to {last}, counted node by node");
                section.find(Finding::error(Code::OutOfRange, place_of(item), what).label("out of range").help(help));
            }
        }
    }
    ranks
}
