//! Holds what a scenario asks within reason, before anything of it is drawn.

use input::diagnostic::{Code, Finding};
use input::reader::{Place, Section};
use planner::effort::Effort;

/// What is long is told: where, what it is, and what to do.
pub fn told(effort: Effort, (at, what, help): (Place, &str, &str)) -> Option<Finding> {
    let what = format!("{what} take {} at most", effort.words());
    let help = format!("{help}, or take the best so far with `--time-limit 5m`");
    effort.is_long().then(|| Finding::warning(Code::TakesTooLong, at, what).help(help))
}

/// Whether something is begun: beyond reason it is refused, and what is long is told. Says where, what it is, and what to do.
pub fn is_within_reason(section: &mut Section<'_>, effort: Effort, (at, what, help): (Place, &str, &str)) -> bool {
    let what = format!("{what} take {} for every policy", effort.words());
    if effort.is_beyond_reason() {
        section.refuse(Code::TakesTooLong, at, what, help);
        return false;
    }
    if effort.is_long() {
        let help = format!("{help}, or end it with `--time-limit 5m`");
        section.warn(Code::TakesTooLong, at, what, help);
    }
    true
}
