//! Which names a word stands on, so that what a condition keeps away can be said where it is used.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use super::cut::{Dollar, Part, Piece};
use super::is_of_name;

/// Names that the words of one command stand on; nobody has more.
const NAMES_MAX: usize = 1000;
/// Flags that are named of one assignment.
const FLAGS_MAX: usize = 100;

/// A name in a word, and the flag before it, whose value it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    pub(super) name: String,
    pub(super) flag: Option<String>,
}

/// Why an assignment is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Only a shell knows whether it runs.
    Condition,
    /// It runs again with further values of a loop.
    Loop,
}

/// Assignments of a name that are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The name.
    pub name: String,
    /// Bytes of the first of them.
    pub at: Range<usize>,
    /// Flags in what they assign.
    pub flags: Vec<String>,
    /// The flag whose value the name is; none where it is a word of its own.
    pub of_flag: Option<String>,
    /// Why.
    pub why: Why,
}

/// Names in words.
pub(super) fn uses(pieces: &[Piece]) -> Vec<Use> {
    let mut found = Vec::new();
    let mut last = String::new();
    for piece in pieces {
        for part in &piece.parts {
            match part {
                Part::Plain { letters, .. } => {
                    for (letter, _) in letters {
                        if letter.is_whitespace() {
                            ends(&mut last);
                        } else {
                            // Another flag: the one before it has no value.
                            if *letter == '-' && last.ends_with(' ') {
                                last.clear();
                            }
                            last.push(*letter);
                        }
                    }
                }
                Part::Dollar { what, .. } => {
                    let flag = flag(&last);
                    let named = |name: String| Use { name, flag: flag.clone() };
                    found.extend(names(what).into_iter().map(named));
                    last.push('$');
                }
            }
        }
        found.extend(piece.list.iter().flat_map(|list| uses(list)));
        ends(&mut last);
    }
    found
}

/// A word has ended: a flag alone stands before its value, other words say nothing of what follows.
fn ends(last: &mut String) {
    let is_alone = last.starts_with("--") && !last.contains(['=', '$', ' ']);
    if is_alone {
        last.push(' ');
    } else if !last.is_empty() {
        last.clear();
    }
}

/// The flag whose value comes: `--flag ` or `--flag=…`.
fn flag(last: &str) -> Option<String> {
    let name = last.strip_prefix("--")?;
    let end = name.find([' ', '='])?;
    Some(name[..end].to_owned())
}

/// Names behind a dollar.
fn names(what: &Dollar) -> Vec<String> {
    let of_text = |text: &str| {
        let words = text.split(|letter: char| !is_of_name(letter));
        words
            .filter(|word| !word.is_empty() && !word.starts_with(|first: char| first.is_ascii_digit()))
            .map(str::to_owned)
            .collect()
    };
    match what {
        Dollar::All { name } => vec![name.clone()],
        Dollar::Sum { text } | Dollar::Expr { text } => of_text(text),
        Dollar::Name { name, default: Some((text, _)), .. } if text.contains('$') => {
            let mut names: Vec<String> = of_text(text);
            names.push(name.clone());
            names
        }
        Dollar::Name { name, .. } => vec![name.clone()],
        Dollar::Given { default: Some((text, _)), .. } if text.contains('$') => of_text(text),
        Dollar::Given { .. } | Dollar::Else | Dollar::Words { .. } => Vec::new(),
    }
}

/// What each name was made of, and what was not followed.
#[derive(Clone, Debug, Default)]
pub(super) struct Uses {
    of: BTreeMap<String, BTreeSet<Use>>,
    left: BTreeMap<String, Left>,
}

impl Uses {
    /// A name is assigned words.
    pub(super) fn assign(&mut self, name: &str, pieces: &[Piece], is_more: bool) {
        if !is_more {
            self.left.remove(name);
        }
        let found = uses(pieces).into_iter().filter(|one| one.name != name);
        self.of.entry(name.to_owned()).or_default().extend(found);
    }

    /// An assignment is not followed.
    pub(super) fn leave(&mut self, left: Left) {
        match self.left.get_mut(&left.name) {
            Some(known) => known.flags.extend(left.flags.into_iter().take(FLAGS_MAX)),
            None => {
                self.left.insert(left.name.clone(), left);
            }
        }
    }

    /// What is not followed of a name.
    pub(super) fn left_of(&self, name: &str) -> Option<&Left> {
        self.left.get(name)
    }

    /// Makes that what it was.
    pub(super) fn put_back(&mut self, name: &str, left: Option<Left>) {
        self.left.remove(name);
        self.left.extend(left.map(|left| (name.to_owned(), left)));
    }

    /// What was not followed of all that words stand on.
    pub(super) fn left(&self, pieces: &[Piece]) -> Vec<Left> {
        if self.left.is_empty() {
            return Vec::new();
        }
        let mut open: VecDeque<Use> = uses(pieces).into();
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let mut found = Vec::new();
        while let Some(Use { name, flag }) = open.pop_front().filter(|_| seen.len() < NAMES_MAX) {
            if !seen.insert(name.clone()) {
                continue;
            }
            found.extend(self.left.get(&name).map(|left| Left { of_flag: flag.clone(), ..left.clone() }));
            let inner = self.of.get(&name).into_iter().flatten();
            open.extend(
                inner.map(|one| Use { name: one.name.clone(), flag: one.flag.clone().or_else(|| flag.clone()) }),
            );
        }
        found
    }
}
