//! What a program asks without a terminal: a scenario that was read, or everything that is wrong with it; and what verbs print, kept.

use std::cell::RefCell;
use std::io::Write as _;
use std::path::Path;

use input::diagnostic::{self, Finding, Severity, Source};

use crate::kinds::{self, Kind};
use scenario::Overrides;

/// Input that cannot be used, with all that is wrong with it.
#[derive(Clone, Debug)]
pub struct WrongInput {
    /// Text that findings point into.
    pub source: Source,
    /// Errors and warnings.
    pub findings: Vec<Finding>,
}

impl WrongInput {
    /// As a terminal shows it.
    pub fn message(&self) -> String {
        let errors = self.findings.iter().filter(|finding| finding.severity == Severity::Error);
        let footer = diagnostic::footer(errors.map(|finding| finding.code));
        format!("{}\n\n{footer}", diagnostic::render(&self.source, &self.findings))
    }
}

/// What was read, with its warnings told; or what is wrong with it.
pub(crate) fn sound<T>(found: Option<T>, source: Source, findings: Vec<Finding>) -> Result<T, WrongInput> {
    let Some(found) = found else { return Err(WrongInput { source, findings: diagnostic::reasons(findings) }) };
    let rendered = diagnostic::render(&source, &findings);
    if !rendered.is_empty() {
        tell(&format!("{rendered}\n\n"));
    }
    Ok(found)
}

/// Reads a scenario; warnings are told.
///
/// # Errors
/// Everything that is wrong with it.
pub fn scenario(source: Source, folder: &Path, overrides: &Overrides) -> Result<Box<dyn Kind>, WrongInput> {
    let checked = kinds::check(source, folder, overrides);
    sound(checked.scenario, checked.source, checked.findings)
}

/// What verbs printed: results, and what was told beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Printed {
    /// For standard output.
    pub text: String,
    /// For standard error.
    pub told: String,
}

thread_local! {
    static KEPT: RefCell<Option<Printed>> = const { RefCell::new(None) };
}

/// Runs something and keeps what this thread prints meanwhile.
pub fn kept<T>(run: impl FnOnce() -> T) -> (T, Printed) {
    let before = KEPT.replace(Some(Printed::default()));
    let found = run();
    (found, KEPT.replace(before).unwrap_or_default())
}

/// Whether what this thread prints is kept, so that nobody looks on.
pub(crate) fn is_kept() -> bool {
    KEPT.with_borrow(Option::is_some)
}

/// Prints a result; a closed pipe is success, as for other filters.
pub(crate) fn print(text: &str) -> std::io::Result<()> {
    if KEPT.with_borrow_mut(|kept| kept.as_mut().map(|kept| kept.text.push_str(text))).is_some() {
        return Ok(());
    }
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Tells what is no result. Standard error may be closed, and then nobody hears it.
pub(crate) fn tell(text: &str) {
    if KEPT.with_borrow_mut(|kept| kept.as_mut().map(|kept| kept.told.push_str(text))).is_none() {
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}
