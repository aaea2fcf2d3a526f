//! Follows a script, statement by statement: values, conditions, and the commands that are left.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::{mem, slice};

use super::branches::{Kind, Runs, Status};
use super::conditions::Known;
use super::cut::{Dollar, FUNCTION, Mark, Part, Piece, Statement, letters, statements};
use super::reader::{Leaves, Reader, text_of};
use super::uses::{Left, Why};
use super::{ALL_LETTERS_MAX, Command, DECLARING, DEPTH_MAX, IN_FRONT, UNKNOWN, Unreadable, Word, runs_text};

/// Commands of a script, in order; those of functions that nothing calls come last.
pub(super) fn commands(script: &str) -> Result<Vec<Command>, Unreadable> {
    let mut reader = Reader::default();
    reader.values.arguments = super::arguments::places(script);
    for (name, number, at) in crate::batch::variables(script) {
        let letters = number.to_string().chars().zip(at).collect();
        reader.values.put(name, Word { letters });
    }
    reader.read(&statements(letters(script), 0)?, 0)?;
    reader.read_uncalled()?;
    Ok(reader.commands)
}

/// What stands in front of the words of a command.
#[derive(Default)]
struct Front<'p> {
    /// Assignments for this command alone; for the script where no command is behind them.
    prefix: Vec<&'p Piece>,
    /// Names that are declared.
    declared: Vec<String>,
    is_declaring: bool,
    is_exporting: bool,
    is_local: bool,
    is_integer: bool,
}

impl Front<'_> {
    /// Takes `export`, `local` and the like, or an option behind it.
    fn take(&mut self, word: &str, is_in_function: bool) {
        match word {
            "export" => self.is_exporting = true,
            "local" | "declare" | "typeset" => self.is_local = is_in_function,
            _ if word.starts_with('-') => {
                self.is_local &= !word.contains('g');
                self.is_integer |= word.contains('i');
            }
            _ => {}
        }
        self.is_declaring = true;
    }
}

impl Reader {
    /// Reads statements; `depth` counts those of `eval` and of functions inside others.
    pub(super) fn read(&mut self, statements: &[Statement], depth: usize) -> Result<(), Unreadable> {
        for (index, statement) in statements.iter().enumerate() {
            let behind = statements.get(index + 1).map_or(Mark::Next, |next| next.before);
            self.write_down(statement);
            self.statement(statement, behind, depth)?;
            self.end_body();
        }
        Ok(())
    }

    fn statement(&mut self, statement: &Statement, behind: Mark, depth: usize) -> Result<(), Unreadable> {
        let mut pieces = statement.pieces.as_slice();
        let is_end = pieces.first().is_some_and(|first| first.plain() == "esac");
        if !is_end && self.branches.awaits_pattern(statement.before) {
            return self.pattern(pieces, behind);
        }
        self.parenthesis(statement)?;
        let here = self.status.then(statement.before);
        let condition = self.status.tested();
        // A part that begins here is one side of a pipe.
        let mut leaves = if statement.before == Mark::Pipe { Leaves::Nothing } else { Leaves::All };
        let mut front = Front::default();
        while let Some((first, rest)) = pieces.split_first() {
            let word = first.plain();
            let is_body = self.defined.is_some() && word != FUNCTION;
            let here = if is_body { self.begin_body(statement.from(pieces), here) } else { here };
            match word.as_str() {
                "if" => self.open(Kind::If, here, mem::replace(&mut leaves, Leaves::All)),
                "while" | "until" => {
                    self.open(Kind::Loop, here, mem::replace(&mut leaves, Leaves::All));
                    self.branches.until(word == "until");
                }
                "then" | "do" => self.branches.begin(condition),
                "elif" | "else" => self.branches.otherwise(word == "elif"),
                "fi" => self.close(Kind::If, behind)?,
                "done" => self.close(Kind::Loop, behind)?,
                "esac" => self.close(Kind::Case, behind)?,
                "{" => self.open(Kind::Group, here, mem::replace(&mut leaves, Leaves::All)),
                "}" => self.close(Kind::Group, behind)?,
                "for" | "select" => return self.values_of_loop(rest, here, leaves),
                "case" => return self.case(rest, here, behind, leaves),
                FUNCTION => {
                    self.defined = rest.first().map(Piece::plain);
                    pieces = rest.get(1..).unwrap_or_default();
                    continue;
                }
                "eval" => return self.eval(rest, (here, leaves), &front.prefix, depth),
                _ if first.assigns().is_some() && !front.is_declaring => front.prefix.push(first),
                _ if DECLARING.contains(&word.as_str()) || front.is_declaring && word.starts_with(['-', '+']) => {
                    front.take(&word, !self.calling.is_empty());
                }
                _ if front.is_declaring => {
                    let is_apart = leaves == Leaves::Nothing || behind.sets_apart();
                    self.declare(first, &mut front, if is_apart { Runs::No } else { here })?;
                }
                _ if IN_FRONT.contains(&word.as_str()) && !(word == "!" && self.branches.is_condition()) => {}
                _ => break,
            }
            pieces = rest;
        }
        if behind == Mark::Open {
            self.opening = Some(here);
        }
        let is_apart = leaves == Leaves::Nothing || behind.sets_apart();
        let there = if is_apart { Runs::No } else { here };
        if pieces.is_empty() {
            return self.alone(&front, there);
        }
        let prefix = self.settled_front(&front, there)?;
        let prefix: Vec<&Piece> = prefix.iter().collect();
        self.give(pieces, statement.text.as_ref(), &prefix, there)?;
        self.command(pieces, (here, is_apart), &prefix, depth)
    }

    /// Assignments in front of a command: what sums in them give to names stays behind it.
    fn settled_front(&mut self, front: &Front<'_>, here: Runs) -> Result<Vec<Piece>, Unreadable> {
        let mut settled = Vec::new();
        for piece in &front.prefix {
            settled.extend(self.settled(slice::from_ref(*piece), here)?.into_owned());
        }
        Ok(settled)
    }

    /// `(` and `)` around a shell of its own; those of patterns are none.
    fn parenthesis(&mut self, statement: &Statement) -> Result<(), Unreadable> {
        let is_of_pattern = mem::take(&mut self.is_behind_pattern);
        match statement.before {
            Mark::Open => {
                let here = self.opening.take().unwrap_or(Runs::Yes);
                let is_body = self.defined.is_some();
                let here = if is_body { self.begin_body(statement.clone(), here) } else { here };
                self.open(Kind::Subshell, here, Leaves::Nothing);
            }
            Mark::Close if !is_of_pattern => self.close(Kind::Subshell, Mark::Next)?,
            _ => {}
        }
        Ok(())
    }

    /// A name behind `export`, `local` and the like, with or without a value.
    fn declare(&mut self, piece: &Piece, front: &mut Front<'_>, here: Runs) -> Result<(), Unreadable> {
        let name = piece.assigns().map_or_else(|| piece.plain(), |(name, _)| name);
        if name.is_empty() || !name.chars().all(super::is_of_name) || here.inside(self.branches.runs()) == Runs::No {
            return Ok(());
        }
        if front.is_local {
            self.own(&name);
        }
        if front.is_integer {
            self.integers.insert(name.clone());
        }
        if piece.assigns().is_some() {
            self.assign(piece, here)?;
            self.end(Status::Tested(true), here);
        } else if front.is_local {
            self.assign(&Piece::emptying(&name, piece.at()), here)?;
        }
        front.declared.push(name);
        Ok(())
    }

    /// Assignments without a command behind them.
    fn alone(&mut self, front: &Front<'_>, here: Runs) -> Result<(), Unreadable> {
        for piece in &front.prefix {
            self.assign(piece, here)?;
            self.end(self.status_of_assignment(piece), here);
        }
        for name in front.declared.iter().filter(|_| front.is_exporting) {
            self.note(name)?;
            self.values.exported.insert(name.clone());
        }
        Ok(())
    }

    /// An assignment works; where a command gives its value, that command may fail.
    fn status_of_assignment(&self, piece: &Piece) -> Status {
        let value = piece.assigns().map(|(name, _)| text_of(self.values.words_of(&name))).unwrap_or_default();
        if value.contains(UNKNOWN) { Status::Command } else { Status::Tested(true) }
    }

    /// A command without what stands in front of it, with the names that are assigned there.
    fn command(
        &mut self,
        pieces: &[Piece],
        (here, is_apart): (Runs, bool),
        prefix: &[&Piece],
        depth: usize,
    ) -> Result<(), Unreadable> {
        let runs = here.inside(self.branches.runs());
        let is_negated = pieces[0].plain() == "!";
        let is_uncertain = self.known().is_uncertain(pieces);
        let settled = self.settled(pieces, if is_apart { Runs::No } else { here })?;
        let test = self.known().test(&settled[usize::from(is_negated)..])?;
        let is_open = is_uncertain && matches!(settled, Cow::Owned(_));
        let status = match test {
            Some(Some(is_true)) if !is_open => Status::Tested(is_true != is_negated),
            Some(_) => Status::Unknown,
            None if self.branches.is_condition() => Status::Unknown,
            None => Status::Command,
        };
        self.end(status, here);
        if runs == Runs::No {
            return Ok(());
        }
        let name = pieces[0].plain();
        if self.calls(&name, depth) {
            let given = self.values.fields(&settled[1..])?;
            return self.call(&name, (here, is_apart), (prefix, Some(given)), depth);
        }
        let mut left = self.uses.left(pieces);
        let words = self.values.fields(&settled)?;
        // The shell takes the words before the command has what stands in front of it.
        self.enter(Kind::Group, Leaves::Nothing, BTreeSet::new());
        for piece in prefix {
            self.assign(piece, Runs::Yes)?;
        }
        let words = self.with_text(words, &mut left)?;
        let in_front: Vec<String> = prefix.iter().filter_map(|piece| piece.assigns()).map(|(name, _)| name).collect();
        let environment = self.values.read_by_programs(&in_front);
        self.close(Kind::Group, Mark::Next)?;
        self.end(status, here);
        self.n_letters += words.iter().map(|word| word.letters.len() + 1).sum::<usize>();
        self.n_letters += environment.iter().map(|(_, value)| value.letters.len()).sum::<usize>();
        if self.n_letters > ALL_LETTERS_MAX {
            return Err(Unreadable::Long);
        }
        if !words.is_empty() {
            self.commands.push(Command { words, left, environment, is_called: true });
        }
        Ok(())
    }

    const fn known(&self) -> Known<'_> {
        Known { values: &self.values, uncertain: &self.uncertain }
    }

    /// Words with those of `bash -c '…$NAME…'` in the place of that text: the shell that runs it has the names that the script exports.
    fn with_text(&self, mut words: Vec<Word>, left: &mut Vec<Left>) -> Result<Vec<Word>, Unreadable> {
        let is_text = |pair: &[Word]| runs_text(&pair[0].text());
        let is_shell = words.iter().any(|word| matches!(word.text().as_str(), "bash" | "sh"));
        let Some(at) = words.windows(2).position(is_text).filter(|_| is_shell) else { return Ok(words) };
        let mut inner = Vec::new();
        for statement in statements(words[at + 1].letters.clone(), 1)? {
            inner.extend(self.values.fields(&statement.pieces)?);
            left.extend(self.uses.left(&statement.pieces));
        }
        words.splice(at + 1..at + 2, inner);
        Ok(words)
    }

    /// A statement has ended. One that does not run leaves the end of the one before.
    pub(super) const fn end(&mut self, status: Status, here: Runs) {
        match here {
            Runs::Yes => self.status = status,
            Runs::Unknown => self.status = Status::Unknown,
            Runs::No => {}
        }
    }

    /// `NAME=…`, where it runs; else what it would have said.
    pub(super) fn assign(&mut self, piece: &Piece, here: Runs) -> Result<(), Unreadable> {
        let Some((name, _)) = piece.assigns() else { return Ok(()) };
        if here.inside(self.branches.runs()) == Runs::No {
            return Ok(());
        }
        let own = slice::from_ref(piece);
        let settled = self.settled(own, here)?;
        if self.integers.contains(&name) && piece.list.is_none() {
            let text = self.values.whole(&settled[0])?.text();
            return self.compute(&text, piece.at(), own, here).map(|_| ());
        }
        self.assign_on(&settled[0], own, here)
    }

    /// The same, where what is assigned stands on names in other words.
    pub(super) fn assign_on(&mut self, piece: &Piece, on: &[Piece], here: Runs) -> Result<(), Unreadable> {
        let Some((name, is_more)) = piece.assigns() else { return Ok(()) };
        let runs = here.inside(self.branches.runs());
        if runs == Runs::No {
            return Ok(());
        }
        self.note(&name)?;
        if runs == Runs::Unknown {
            return self.leave_piece(name, piece, Why::Condition);
        }
        // What stands on the name itself keeps what is not followed of it.
        let is_more = is_more || super::uses::uses(on).iter().any(|one| one.name == name);
        self.uses.assign(&name, on, is_more);
        let is_uncertain = self.known().is_uncertain(on) || is_more && self.uncertain.contains(&name);
        self.values.assign(&name, piece.assigns().is_some_and(|(_, is_more)| is_more), piece)?;
        if is_uncertain {
            self.uncertain.insert(name.clone());
        } else {
            self.uncertain.remove(&name);
        }
        if self.branches.runs_again() { self.leave_piece(name, piece, Why::Loop) } else { Ok(()) }
    }

    fn leave_piece(&mut self, name: String, piece: &Piece, why: Why) -> Result<(), Unreadable> {
        let is_more = piece.assigns().is_some_and(|(_, is_more)| is_more);
        let then = self.values.assigned(piece)?;
        let is_same = !is_more && text_of(self.values.words_of(&name)) == text_of(&then);
        if why == Why::Condition && is_same && !text_of(&then).contains(UNKNOWN) {
            return Ok(());
        }
        // Behind what stands already (`A="$A --more"`) the rest alone is not read.
        let (now, then) = (text_of(self.values.words_of(&name)), text_of(&then));
        let behind = then.strip_prefix(&now).filter(|rest| now.is_empty() || rest.starts_with(char::is_whitespace));
        let rest = behind.filter(|_| why == Why::Condition).unwrap_or(&then);
        self.leave(name, rest, piece.at(), why)
    }

    /// Remembers what an assignment would have said, unless it is what stands already.
    pub(super) fn leave(&mut self, name: String, then: &str, at: Range<usize>, why: Why) -> Result<(), Unreadable> {
        self.note(&name)?;
        let flags = then.split_whitespace().filter_map(|word| word.strip_prefix("--"));
        let flags = flags.filter_map(|word| word.split('=').next()).map(|word| word.replace('_', "-")).collect();
        self.uncertain.insert(name.clone());
        self.uses.leave(Left { name, at, flags, of_flag: None, why });
        Ok(())
    }

    /// `for NAME in …`: the first value stands for all.
    fn values_of_loop(&mut self, pieces: &[Piece], here: Runs, leaves: Leaves) -> Result<(), Unreadable> {
        self.open(Kind::Loop, here, leaves);
        let [name, word, list @ ..] = pieces else {
            self.branches.values(false, false);
            return Ok(());
        };
        if let [Part::Dollar { what: Dollar::Sum { text }, at, .. }] = &word.parts[..] {
            // `for ((i = 0; i < 4; i++))`: what it counts is known when it runs.
            self.compute(text, *at..*at + 1, slice::from_ref(word), Runs::Yes)?;
        }
        let values = if word.plain() == "in" { self.values.fields(list)? } else { Vec::new() };
        let is_open = |word: &Word| word.text().contains([UNKNOWN, '*', '{', '?']);
        let is_known = !values.is_empty() && !values.iter().any(is_open) && !self.known().is_uncertain(list);
        let runs = here.inside(self.branches.runs());
        self.branches.values(is_known, is_known && values.len() > 1);
        let name_text = name.plain();
        self.note(&name_text)?;
        if runs == Runs::Yes && is_known {
            self.values.put(&name_text, values[0].clone());
            self.uncertain.remove(&name_text);
        } else {
            self.uncertain.insert(name_text.clone());
        }
        if runs != Runs::No && !(is_known && values.len() == 1) {
            let why = if is_known { Why::Loop } else { Why::Condition };
            self.uncertain.insert(name_text.clone());
            self.uses.leave(Left { name: name_text, at: name.at(), flags: Vec::new(), of_flag: None, why });
        }
        Ok(())
    }

    /// `case … in`, and the pattern behind it, where that stands in the same line.
    fn case(&mut self, pieces: &[Piece], here: Runs, behind: Mark, leaves: Leaves) -> Result<(), Unreadable> {
        let subject = self.known().subject(pieces.first())?;
        self.open(Kind::Case, here, leaves);
        self.branches.compare(subject);
        self.pattern(pieces.get(2..).unwrap_or_default(), behind)
    }

    /// A pattern of a `case`, and what stands behind it.
    fn pattern(&mut self, pieces: &[Piece], behind: Mark) -> Result<(), Unreadable> {
        let Some(pattern) = pieces.first() else { return Ok(()) };
        let text = self.known().subject(Some(pattern))?;
        self.is_behind_pattern = behind == Mark::Close;
        self.branches.pattern(text.as_deref(), behind == Mark::Close);
        self.status = Status::Command;
        Ok(())
    }

    /// `eval …`: its words are read once more, with quotes of their own.
    fn eval(
        &mut self,
        pieces: &[Piece],
        (here, leaves): (Runs, Leaves),
        prefix: &[&Piece],
        depth: usize,
    ) -> Result<(), Unreadable> {
        if here.inside(self.branches.runs()) == Runs::No {
            return Ok(());
        }
        if depth >= DEPTH_MAX {
            return Err(Unreadable::Deep);
        }
        let words = self.values.fields(pieces)?;
        let left = self.uses.left(pieces);
        let mut letters = Vec::new();
        for word in words {
            let at = word.letters.first().map_or(0, |(_, at)| *at);
            letters.extend((!letters.is_empty()).then_some((' ', at)));
            letters.extend(word.letters);
        }
        self.n_letters += letters.len();
        if self.n_letters > ALL_LETTERS_MAX {
            return Err(Unreadable::Long);
        }
        let n_before = self.commands.len();
        self.open(Kind::Group, here, leaves);
        let in_front = prefix.iter().filter_map(|piece| piece.assigns()).map(|(name, _)| name);
        self.end_with_part(in_front.collect());
        for piece in prefix {
            self.assign(piece, here)?;
        }
        self.read(&statements(letters, depth + 1)?, depth + 1)?;
        self.close(Kind::Group, Mark::Next)?;
        for command in &mut self.commands[n_before..] {
            command.left.extend(left.iter().cloned());
        }
        Ok(())
    }
}
