//! The wish to stop, in two steps: first searches end with the best they have found, then what is still being played ends without a result.
//!
//! One flag serves the process, as Ctrl-C does. Long loops ask `pause`. It unwinds to the nearest `unless_over`, as a cancelled query of a
//! compiler does, so nothing between them returns half a result. Work that has its answer says `finish`: what follows from the answer is still
//! done. No clock here: who asks, and when, is the shell's.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether searches are to end with what they have.
pub static ASKED: AtomicBool = AtomicBool::new(false);
/// Whether everything is to end.
static OVER: AtomicBool = AtomicBool::new(false);
/// Whether the process finishes.
static PROCESS_FINISHES: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether the work of the nearest `unless_over` finishes.
    static WORK_FINISHES: Cell<bool> = const { Cell::new(false) };
}

/// What has its answer, and goes on to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The work of the nearest `unless_over`, on this thread: others beside it may have none.
    Work,
    /// All that the process does, on every thread.
    Process,
}

/// What unwinds when everything is to end.
struct Over;

/// Asks every search, now and later, to end with what it has.
pub fn ask() {
    ASKED.store(true, Ordering::Relaxed);
}

/// Takes back what was asked and what finishes: a program that goes on after Ctrl-C asks anew.
pub fn forget() {
    ASKED.store(false, Ordering::Relaxed);
    OVER.store(false, Ordering::Relaxed);
    PROCESS_FINISHES.store(false, Ordering::Relaxed);
}

/// Whether that was asked.
pub fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Asks everything to end: what is not done by now has no result.
pub fn ask_all() {
    ask();
    OVER.store(true, Ordering::Relaxed);
}

/// Whether everything is to end.
pub fn is_over() -> bool {
    OVER.load(Ordering::Relaxed)
}

/// A place where long work may end: it does not come back when everything is to end.
#[inline]
pub fn pause() {
    if is_over() && !WORK_FINISHES.get() && !PROCESS_FINISHES.load(Ordering::Relaxed) {
        resume_unwind(Box::new(Over));
    }
}

/// From here on this goes on to its end whatever is asked: it has its answer, or ends by itself when it sees `is_asked`.
pub fn finish(whose: Whose) {
    match whose {
        Whose::Work => WORK_FINISHES.set(true),
        Whose::Process => PROCESS_FINISHES.store(true, Ordering::Relaxed),
    }
}

/// Does a piece of work; `None` where it was ended before.
pub fn unless_over<T>(work: impl FnOnce() -> T) -> Option<T> {
    let outer = WORK_FINISHES.replace(false);
    let done = catch_unwind(AssertUnwindSafe(work));
    WORK_FINISHES.set(outer);
    match done {
        Ok(done) => Some(done),
        Err(other) if other.is::<Over>() => None,
        Err(other) => resume_unwind(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_is_ended_has_no_result_and_another_panic_stays_one() {
        assert_eq!(unless_over(|| 1), Some(1));
        assert_eq!(unless_over(|| -> u8 { resume_unwind(Box::new(Over)) }), None);
        let other = catch_unwind(|| unless_over(|| -> u8 { resume_unwind(Box::new("a defect")) }));
        assert!(other.expect_err("it goes on").is::<&str>());
    }
}
