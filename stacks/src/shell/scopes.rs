//! What parts of a script change for themselves alone: subshells, sides of a pipe, names in front of a command, names of a function.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use super::branches::{Kind, Runs, Status};
use super::cut::Mark;
use super::reader::{Kept, Leaves, Reader, Scope, text_of};
use super::uses::Why;
use super::{LETTERS_MAX, UNKNOWN, Unreadable, Word};

impl Kept {
    fn n_letters(&self) -> usize {
        self.words.iter().flatten().map(|word| word.letters.len() + 1).sum()
    }
}

impl Reader {
    /// Opens a part within a statement that runs or not.
    pub(super) fn open(&mut self, kind: Kind, here: Runs, leaves: Leaves) {
        self.branches.open(kind, here.inside(self.branches.runs()));
        self.scopes.push(Scope { kind, leaves, before: BTreeMap::new(), own: BTreeSet::new() });
    }

    /// Opens a part that is followed whether it runs or not, with names that end with it.
    pub(super) fn enter(&mut self, kind: Kind, leaves: Leaves, own: BTreeSet<String>) {
        self.branches.open(kind, Runs::Yes);
        self.scopes.push(Scope { kind, leaves, before: BTreeMap::new(), own });
    }

    /// Closes the innermost part of a kind, and those in it that were left open.
    pub(super) fn close(&mut self, kind: Kind, behind: Mark) -> Result<(), Unreadable> {
        self.branches.close(kind);
        self.status = Status::Command;
        while self.scopes.len() > self.branches.depth() {
            self.end_scope(behind)?;
        }
        Ok(())
    }

    /// Makes names end with the innermost part.
    pub(super) fn end_with_part(&mut self, names: BTreeSet<String>) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.own.extend(names);
        }
    }

    /// Makes a name one of the function that is being read.
    pub(super) fn own(&mut self, name: &str) {
        let call = self.scopes.iter_mut().rev().find(|scope| scope.kind == Kind::Call);
        if let Some(call) = call {
            call.own.insert(name.to_owned());
        }
    }

    /// Remembers what is known of a name before it is changed.
    pub(super) fn note(&mut self, name: &str) -> Result<(), Unreadable> {
        if self.scopes.last().is_none_or(|scope| scope.before.contains_key(name)) {
            return Ok(());
        }
        let kept = Kept {
            words: self.values.words.get(name).cloned(),
            is_uncertain: self.uncertain.contains(name),
            is_exported: self.values.exported.contains(name),
            left: self.uses.left_of(name).cloned(),
        };
        self.n_kept += kept.n_letters();
        if let Some(scope) = self.scopes.last_mut() {
            scope.before.insert(name.to_owned(), kept);
        }
        if self.n_kept > LETTERS_MAX { Err(Unreadable::Long) } else { Ok(()) }
    }

    fn end_scope(&mut self, behind: Mark) -> Result<(), Unreadable> {
        let Some(scope) = self.scopes.pop() else { return Ok(()) };
        let leaves = if behind.sets_apart() { Leaves::Nothing } else { scope.leaves };
        let mut stays = BTreeMap::new();
        for (name, kept) in scope.before {
            if leaves == Leaves::All && !scope.own.contains(&name) {
                stays.insert(name, kept);
                continue;
            }
            self.n_kept -= kept.n_letters();
            let then = self.values.words_of(&name).to_vec();
            self.restore(&name, kept);
            let is_other = text_of(&then) != text_of(self.values.words_of(&name)) || text_of(&then).contains(UNKNOWN);
            if leaves == Leaves::Unknown && is_other && !scope.own.contains(&name) {
                let at = then.first().map_or(0..0, Word::at);
                self.leave(name, &text_of(&then), at, Why::Condition)?;
            }
        }
        self.merge(stays);
        Ok(())
    }

    /// What stood before a part stood before the one around it too, where that did not change it itself.
    fn merge(&mut self, mut stays: BTreeMap<String, Kept>) {
        let Some(outer) = self.scopes.last_mut() else {
            self.n_kept = 0;
            return;
        };
        let is_larger = stays.len() > outer.before.len();
        if is_larger {
            mem::swap(&mut stays, &mut outer.before);
        }
        for (name, kept) in stays {
            let (replaced, own) = (outer.before.remove(&name), kept);
            let (first, second) = if is_larger { (Some(own), replaced) } else { (replaced, Some(own)) };
            // Of both the outer one counts.
            let dropped = if first.is_some() { second.as_ref() } else { None };
            self.n_kept -= dropped.map_or(0, Kept::n_letters);
            outer.before.extend(first.or(second).map(|kept| (name, kept)));
        }
    }

    fn restore(&mut self, name: &str, kept: Kept) {
        let name = name.to_owned();
        put_back(&mut self.uncertain, &name, kept.is_uncertain);
        put_back(&mut self.values.exported, &name, kept.is_exported);
        self.uses.put_back(&name, kept.left);
        match kept.words {
            Some(words) => self.values.words.insert(name, words),
            None => self.values.words.remove(&name),
        };
    }
}

fn put_back(names: &mut BTreeSet<String>, name: &str, is_in: bool) {
    if is_in {
        names.insert(name.to_owned());
    } else {
        names.remove(name);
    }
}
