//! The wish to stop: planners that search end with the best they have found. One flag serves the process, as Ctrl-C does.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether searches are to end with what they have.
pub(crate) static ASKED: AtomicBool = AtomicBool::new(false);

/// Asks every search, now and later, to end with what it has.
pub fn ask() {
    ASKED.store(true, Ordering::Relaxed);
}

/// Whether that was asked.
#[must_use]
pub fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
