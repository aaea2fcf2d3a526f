//! Which parts of a script run: conditions and loops that are open, and what is known of each.

use super::cut::Mark;

/// Whether a part of a script runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    /// It does.
    Yes,
    /// It does not.
    No,
    /// Only a shell knows.
    Unknown,
}

impl Runs {
    /// That of a condition.
    pub(super) const fn of(condition: Option<bool>) -> Self {
        match condition {
            Some(true) => Self::Yes,
            Some(false) => Self::No,
            None => Self::Unknown,
        }
    }

    /// A part inside another.
    pub(super) const fn inside(self, outer: Self) -> Self {
        match (self, outer) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Yes, Self::Yes) => Self::Yes,
            _ => Self::Unknown,
        }
    }
}

/// How a statement ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Status {
    /// A test, true or false.
    Tested(bool),
    /// A test of what only a shell knows.
    Unknown,
    /// A command: it is taken to work.
    #[default]
    Command,
}

impl Status {
    /// A test as a condition.
    pub(super) const fn tested(self) -> Option<bool> {
        match self {
            Self::Tested(is_true) => Some(is_true),
            Self::Unknown | Self::Command => None,
        }
    }

    /// Whether what stands behind a mark runs.
    pub(super) const fn then(self, mark: Mark) -> Runs {
        match (mark, self) {
            (Mark::And, Self::Tested(is_true)) => Runs::of(Some(is_true)),
            (Mark::Or, Self::Tested(is_true)) => Runs::of(Some(!is_true)),
            (Mark::And | Mark::Or, Self::Unknown) | (Mark::Or, Self::Command) => Runs::Unknown,
            _ => Runs::Yes,
        }
    }
}

/// What opens a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `if` … `fi`.
    If,
    /// `for`, `while`, `until`, `select` … `done`.
    Loop,
    /// `case` … `esac`.
    Case,
    /// `{` … `}`.
    Group,
    /// `(` … `)`.
    Subshell,
    /// A function where it is called.
    Call,
}

/// A part that is open.
#[derive(Clone, Debug)]
struct Part {
    kind: Kind,
    outer: Runs,
    own: Runs,
    /// Whether a branch before ran; `None` where only a shell knows.
    earlier: Option<bool>,
    /// Whether its condition is being read.
    is_condition: bool,
    /// Whether it runs while its condition is false.
    is_until: bool,
    /// What a `case` compares, where it is known.
    subject: Option<String>,
    /// Whether a `case` stands before a pattern.
    is_pattern: bool,
    /// Whether a loop has further values, of which the first is followed.
    has_more: bool,
}

/// Parts that are open, from the outermost on.
#[derive(Clone, Debug, Default)]
pub(super) struct Branches {
    open: Vec<Part>,
    n_with_more: usize,
}

impl Branches {
    /// Whether what stands here runs.
    pub(super) fn runs(&self) -> Runs {
        self.open.last().map_or(Runs::Yes, |part| part.own.inside(part.outer))
    }

    /// Whether it would run again, with further values of a loop.
    pub(super) const fn runs_again(&self) -> bool {
        self.n_with_more > 0
    }

    /// Parts that are open.
    pub(super) const fn depth(&self) -> usize {
        self.open.len()
    }

    /// Opens a part that runs or not.
    pub(super) fn open(&mut self, kind: Kind, outer: Runs) {
        let is_condition = matches!(kind, Kind::If | Kind::Loop);
        self.open.push(Part {
            kind,
            outer,
            own: Runs::Yes,
            earlier: Some(false),
            is_condition,
            is_until: false,
            subject: None,
            is_pattern: false,
            has_more: false,
        });
    }

    /// Closes the innermost part of a kind, and those inside that were left open.
    pub(super) fn close(&mut self, kind: Kind) {
        // A lone mark closes nothing; looking further than this would take long for files that nobody writes.
        let is_open = self.open.iter().rev().take(64).any(|part| part.kind == kind);
        while let Some(part) = self.open.pop_if(|_| is_open) {
            self.n_with_more -= usize::from(part.has_more);
            if part.kind == kind {
                return;
            }
        }
    }

    /// Whether a condition is being read.
    pub(super) fn is_condition(&self) -> bool {
        self.open.last().is_some_and(|part| part.is_condition)
    }

    /// `then` or `do` behind a condition.
    pub(super) fn begin(&mut self, condition: Option<bool>) {
        let Some(part) = self.open.last_mut().filter(|part| part.is_condition) else { return };
        part.is_condition = false;
        let condition = condition.map(|is_true| is_true != part.is_until);
        part.branch(condition);
        // It may run again.
        part.has_more = part.kind == Kind::Loop && condition == Some(true);
        self.n_with_more += usize::from(part.has_more);
    }

    /// Whether the loop runs while its condition is false.
    pub(super) fn until(&mut self, is_until: bool) {
        if let Some(part) = self.open.last_mut() {
            part.is_until = is_until;
        }
    }

    /// `elif`: another condition; `else`: the rest.
    pub(super) fn otherwise(&mut self, has_condition: bool) {
        let Some(part) = self.open.last_mut().filter(|part| part.kind == Kind::If) else { return };
        part.is_condition = has_condition;
        part.own = Runs::of(part.earlier.map(|is_over| !is_over));
    }

    /// Values of a `for` loop: the first is followed, where there is one.
    pub(super) fn values(&mut self, is_known: bool, has_more: bool) {
        let Some(part) = self.open.last_mut() else { return };
        part.is_condition = false;
        part.own = if is_known { Runs::Yes } else { Runs::Unknown };
        part.has_more = has_more;
        self.n_with_more += usize::from(has_more);
    }

    /// What a `case` compares.
    pub(super) fn compare(&mut self, subject: Option<String>) {
        let Some(part) = self.open.last_mut() else { return };
        (part.subject, part.is_pattern) = (subject, true);
    }

    /// Whether a pattern comes: a `case` begins, or a branch of it has ended.
    pub(super) fn awaits_pattern(&mut self, mark: Mark) -> bool {
        let Some(part) = self.open.last_mut().filter(|part| part.kind == Kind::Case) else { return false };
        part.is_pattern |= mark == Mark::EndOfCase;
        part.is_pattern
    }

    /// A pattern of a `case`; those with `|` behind them come one after another.
    pub(super) fn pattern(&mut self, pattern: Option<&str>, is_last: bool) {
        let Some(part) = self.open.last_mut() else { return };
        let fits = pattern.and_then(|pattern| {
            if pattern == "*" {
                return Some(true);
            }
            part.subject.as_deref().and_then(|subject| fits(subject, pattern))
        });
        // Of several patterns of one branch any may fit.
        let before = if part.is_condition { part.own } else { Runs::No };
        part.own = match (before, Runs::of(fits)) {
            (Runs::Yes, _) | (_, Runs::Yes) => Runs::Yes,
            (Runs::No, Runs::No) => Runs::No,
            _ => Runs::Unknown,
        };
        part.is_condition = !is_last;
        if is_last {
            part.is_pattern = false;
            let found = match part.own {
                Runs::Yes => Some(true),
                Runs::No => Some(false),
                Runs::Unknown => None,
            };
            part.branch(found);
        }
    }
}

impl Part {
    /// A branch with a condition: it runs where none before did.
    fn branch(&mut self, condition: Option<bool>) {
        self.own = match (self.earlier, condition) {
            (Some(true), _) | (_, Some(false)) => Runs::No,
            (Some(false), Some(true)) => Runs::Yes,
            _ => Runs::Unknown,
        };
        self.earlier = match self.own {
            Runs::Yes => Some(true),
            Runs::No => self.earlier,
            Runs::Unknown => None,
        };
    }
}

/// Whether a word fits a pattern: letters, and `*` at its ends; `None` for other patterns.
pub(super) fn fits(word: &str, pattern: &str) -> Option<bool> {
    let (inner, any_before) = pattern.strip_prefix('*').map_or((pattern, false), |rest| (rest, true));
    let (inner, any_after) = inner.strip_suffix('*').map_or((inner, false), |rest| (rest, true));
    if inner.contains(['*', '?', '[', '(', '\\']) {
        return None;
    }
    Some(match (any_before, any_after) {
        (false, false) => word == inner,
        (true, false) => word.ends_with(inner),
        (false, true) => word.starts_with(inner),
        (true, true) => word.contains(inner),
    })
}
