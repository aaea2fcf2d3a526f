//! Work in a thread of its own, while this one listens for Ctrl-C.

use std::sync::mpsc;
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors::DefectError;

/// How often Ctrl-C is looked for; a result is taken at once.
const LISTENS_EVERY: Duration = Duration::from_millis(50);

/// How long a call that was stopped may take to end.
const LAST: Duration = Duration::from_secs(2);

/// Runs something without the interpreter's lock. Ctrl-C ends it and raises; a panic raises `DefectError`.
pub fn work<T: Send + 'static>(py: Python<'_>, run: impl FnOnce() -> T + Send + 'static) -> PyResult<T> {
    let (done, result) = mpsc::channel();
    engine::stop::forget();
    let thread = std::thread::Builder::new().name("skrull-sim".to_owned()).spawn(move || {
        // Nobody listens any more after Ctrl-C.
        let _ = done.send(run());
    });
    let thread = thread.map_err(|error| DefectError::new_err(format!("cannot start a thread: {error}")))?;
    // A receiver belongs to one thread, and this is the one that waits.
    let result = std::sync::Mutex::new(result);
    loop {
        let waited = py.detach(|| result.lock().expect("one thread uses it").recv_timeout(LISTENS_EVERY));
        match waited {
            Ok(found) => return Ok(found),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if let Err(stopped) = py.check_signals() {
                    engine::stop::ask_all();
                    // What is under way ends at its next pause; the next call must not meet it.
                    let _ = py.detach(|| result.lock().expect("one thread uses it").recv_timeout(LAST));
                    return Err(stopped);
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let words = thread.join().err().map_or_else(String::new, |panic| words(panic.as_ref()));
                return Err(DefectError::new_err(format!("a defect of skrull-sim: {words}")));
            }
        }
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
