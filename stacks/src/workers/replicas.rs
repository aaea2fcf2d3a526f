//! How many servers of a kind a file starts.

use input::diagnostic::{Code, Finding};

use crate::yaml::Entry;

/// Servers of a kind, and what is wrong with what a file says of them.
#[derive(Clone, Debug)]
pub(crate) struct Replicas {
    n: u64,
    wrong: Option<Finding>,
}

impl Replicas {
    /// So many.
    pub(crate) const fn of(n: u64) -> Self {
        Self { n, wrong: None }
    }

    /// What `replicas` of a file says; one where it does not stand there, or has no value.
    pub(crate) fn read(entry: Option<&Entry>) -> Self {
        let Some(entry) = entry.filter(|entry| !entry.value.is_empty()) else { return Self::of(1) };
        let found = entry.value.parse().ok().filter(|n| *n > 0);
        found.map_or_else(|| Self { n: 1, wrong: Some(refused(entry)) }, Self::of)
    }

    /// So many times as many.
    pub(super) fn times(mut self, n: u64) -> Self {
        self.n = self.n.saturating_mul(n.max(1));
        self
    }

    /// The same where what it was read of begins so far behind in a file.
    pub(super) fn moved_by(mut self, start: usize) -> Self {
        let place = self.wrong.as_mut().and_then(|wrong| wrong.at.as_mut());
        place.into_iter().for_each(|at| *at = at.start + start..at.end + start);
        self
    }

    /// How many there are. What is wrong is told.
    pub(crate) fn told(self, findings: &mut Vec<Finding>) -> u64 {
        findings.extend(self.wrong);
        self.n
    }
}

fn refused(entry: &Entry) -> Finding {
    let what = format!("`replicas: {}` is no number of servers", entry.value);
    Finding::error(Code::OutOfRange, Some(entry.at.clone()), what)
        .help("allowed are whole numbers from 1 on; without the key it is 1")
}
