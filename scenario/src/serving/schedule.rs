//! `[[trace.schedule]]` with `repeat_s`: rates of arrivals that hold from some second on.

use serve::arrivals::{ARRIVAL_S_MAX, Schedule};

use input::diagnostic::Code;
use input::reader::Section;

/// Requests per second that stand in for a schedule that is wrong.
const STAND_IN_PER_S: f64 = 1e6;

/// `[[trace.schedule]]`: rates that hold from some second on.
pub fn schedule(section: &mut Section<'_>) -> Option<Schedule> {
    if !section.has("schedule") {
        section.idle(&["repeat_s"], "`[[trace.schedule]]`");
    }
    let mut pieces: Vec<(f64, f64)> = Vec::new();
    let mut wrong = None;
    section.each_table("schedule", &mut |mut table| {
        let from_s = table.number("from_s", 0.0, 0.0..=ARRIVAL_S_MAX);
        let per_s = table.number("rate_per_s", 0.0, 0.0..=1e9);
        let is_next = pieces.last().map_or(from_s == 0.0, |(before, _)| *before < from_s);
        if !is_next {
            wrong = Some((table.at(), "`trace.schedule` starts at 0 s and each later piece after the one before"));
        }
        pieces.push((from_s, per_s));
        table.finish();
    });
    let repeat_s = Some(section.number("repeat_s", 0.0, 1.0..=ARRIVAL_S_MAX)).filter(|period| *period > 0.0);
    let last = *pieces.last()?;
    if repeat_s.is_some_and(|period| period <= last.0) {
        wrong = Some((section.at(), "`trace.repeat_s` lies after the start of the last piece"));
    }
    if repeat_s.is_none() && last.1 <= 0.0 || pieces.iter().all(|(_, per_s)| *per_s <= 0.0) {
        wrong = Some((section.at(), "the last rate of `trace.schedule` is above 0, or some rate where it repeats"));
    }
    if let Some((at, what)) = wrong {
        section.wrong(Code::WrongSchedule, at, what);
        // A rate stands in for the rest of the section, so that what is wrong is said once.
        return Some(Schedule { pieces: vec![(0.0, STAND_IN_PER_S)], repeat_s: None, cv: 1.0 });
    }
    Some(Schedule { pieces, repeat_s, cv: 1.0 })
}
