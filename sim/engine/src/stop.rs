//! The wish to stop, in two steps: first searches end with the best they have found, then what is still being played ends without a result.
//!
//! One flag serves the process, as Ctrl-C does. Long loops ask `pause`. It unwinds to the nearest `unless_over`, as a cancelled query of a
//! compiler does, so nothing between them returns half a result. A search that was stopped and has an answer says `finish`: what follows from the answer is
//! still played. No clock here: who asks, and when, is the shell's.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether searches are to end with what they have.
pub static ASKED: AtomicBool = AtomicBool::new(false);
/// Whether everything is to end.
static OVER: AtomicBool = AtomicBool::new(false);
/// Whether what is under way ends by itself once it was asked to.
static ENDS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether the work of the nearest `unless_over` has its answer, and goes on to its end.
    static FINISHES: Cell<bool> = const { Cell::new(false) };
}

/// What unwinds when everything is to end.
struct Over;

/// Asks every search, now and later, to end with what it has.
pub fn ask() {
    ASKED.store(true, Ordering::Relaxed);
}

/// Takes both wishes back: a program that goes on after Ctrl-C asks anew.
pub fn forget() {
    ASKED.store(false, Ordering::Relaxed);
    OVER.store(false, Ordering::Relaxed);
    ENDS.store(false, Ordering::Relaxed);
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
    if is_over() && !FINISHES.get() && !ENDS.load(Ordering::Relaxed) {
        resume_unwind(Box::new(Over));
    }
}

/// The work of the nearest `unless_over` has its answer: what is left of it on this thread goes on to its end.
pub fn finish() {
    FINISHES.set(true);
}

/// From here on the work of the process, on every thread, looks at `is_asked` and ends by itself: what was measured is fitted to its end.
pub fn ends_by_itself() {
    ENDS.store(true, Ordering::Relaxed);
}

/// Does a piece of work; `None` where it was ended before.
pub fn unless_over<T>(work: impl FnOnce() -> T) -> Option<T> {
    let outer = FINISHES.replace(false);
    let done = catch_unwind(AssertUnwindSafe(work));
    FINISHES.set(outer);
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
