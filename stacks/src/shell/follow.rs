//! Follows a script, statement by statement: values, conditions, and the commands that are left.

use std::collections::BTreeSet;

use super::branches::{Branches, Kind, Runs, Status};
use super::conditions::Known;
use super::cut::{Mark, Piece, Statement, letters, statements};
use super::uses::{Left, Uses, Why};
use super::{ALL_LETTERS_MAX, Command, DECLARING, DEPTH_MAX, IN_FRONT, UNKNOWN, Unreadable, Values, Word};

/// Commands of a script, in order.
pub(super) fn commands(script: &str) -> Result<Vec<Command>, Unreadable> {
    let mut reader = Reader::default();
    reader.values.arguments = super::arguments::places(script);
    reader.read(&statements(letters(script), 0)?, 0)?;
    Ok(reader.commands)
}

/// What is known so far.
struct Reader {
    values: Values,
    /// Names whose values may be others: what they are assigned is not followed.
    uncertain: BTreeSet<String>,
    uses: Uses,
    branches: Branches,
    status: Status,
    commands: Vec<Command>,
    n_letters: usize,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            values: Values::default(),
            uncertain: BTreeSet::new(),
            uses: Uses::default(),
            branches: Branches::default(),
            status: Status::Command,
            commands: Vec::new(),
            n_letters: 0,
        }
    }
}

impl Reader {
    /// Reads statements; `depth` counts those of `eval` inside others.
    fn read(&mut self, statements: &[Statement], depth: usize) -> Result<(), Unreadable> {
        for (index, statement) in statements.iter().enumerate() {
            let behind = statements.get(index + 1).map_or(Mark::Next, |next| next.before);
            self.statement(statement, behind, depth)?;
        }
        Ok(())
    }

    fn statement(&mut self, statement: &Statement, behind: Mark, depth: usize) -> Result<(), Unreadable> {
        let mut pieces = statement.pieces.as_slice();
        let is_end = pieces.first().is_some_and(|first| first.plain() == "esac");
        if !is_end && self.branches.awaits_pattern(statement.before) {
            return self.pattern(pieces, behind);
        }
        let here = self.status.then(statement.before);
        let condition = self.status.tested();
        let (mut is_assigning, mut is_exporting) = (false, false);
        let mut in_front: Vec<String> = Vec::new();
        while let Some((first, rest)) = pieces.split_first() {
            let word = first.plain();
            match word.as_str() {
                "if" => self.branches.open(Kind::If, here),
                "while" => self.branches.open(Kind::Loop, here),
                "until" => {
                    self.branches.open(Kind::Loop, here);
                    self.branches.until();
                }
                "then" | "do" => self.branches.begin(condition),
                "elif" | "else" => self.branches.otherwise(word == "elif"),
                "fi" => self.close(Kind::If),
                "done" => self.close(Kind::Loop),
                "esac" => self.close(Kind::Case),
                "{" => self.branches.open(Kind::Group, here),
                "}" => self.close(Kind::Group),
                "for" | "select" => return self.values_of_loop(rest, here),
                "case" => return self.case(rest, here, behind),
                "function" => {
                    pieces = rest.get(1..).unwrap_or_default();
                    continue;
                }
                "eval" => return self.eval(rest, here, depth),
                _ if first.assigns().is_some() => {
                    self.assign(first, here)?;
                    in_front.extend(first.assigns().map(|(name, _)| name));
                    self.end(Status::Command, here);
                }
                _ if DECLARING.contains(&word.as_str()) => {
                    (is_assigning, is_exporting) = (true, is_exporting || word == "export");
                }
                _ if is_exporting && word.chars().all(super::is_of_name) => in_front.push(word),
                _ if is_assigning && word.starts_with(['-', '+']) => {}
                _ if IN_FRONT.contains(&word.as_str()) && !(word == "!" && self.branches.is_condition()) => {}
                _ => break,
            }
            pieces = rest;
        }
        if here.inside(self.branches.runs()) == Runs::Yes {
            self.values.read(pieces, statement.text.as_ref())?;
        }
        if is_exporting {
            self.values.exported.append(&mut in_front.drain(..).collect());
        }
        self.command(pieces, here, &in_front)
    }

    /// A command without what stands in front of it, with the names that are assigned there.
    fn command(&mut self, pieces: &[Piece], here: Runs, in_front: &[String]) -> Result<(), Unreadable> {
        let runs = here.inside(self.branches.runs());
        if pieces.is_empty() {
            return Ok(());
        }
        let is_negated = pieces[0].plain() == "!";
        let known = Known { values: &self.values, uncertain: &self.uncertain };
        let test = known.test(&pieces[usize::from(is_negated)..])?;
        let status = match test {
            Some(Some(is_true)) => Status::Tested(is_true != is_negated),
            Some(None) => Status::Unknown,
            None if self.branches.is_condition() => Status::Unknown,
            None => Status::Command,
        };
        self.end(status, here);
        if runs == Runs::No {
            return Ok(());
        }
        let mut left = self.uses.left(pieces);
        let words = self.with_text(self.values.fields(pieces)?, &mut left)?;
        self.n_letters += words.iter().map(|word| word.letters.len() + 1).sum::<usize>();
        if self.n_letters > ALL_LETTERS_MAX {
            return Err(Unreadable::Long);
        }
        if !words.is_empty() {
            let environment = self.values.read_by_servers(in_front);
            self.n_letters += environment.iter().map(|(_, value)| value.letters.len()).sum::<usize>();
            self.commands.push(Command { words, left, environment });
        }
        Ok(())
    }

    /// Words with those of `bash -c '…$NAME…'` in the place of that text: the shell that runs it has the names that the script exports.
    fn with_text(&self, mut words: Vec<Word>, left: &mut Vec<Left>) -> Result<Vec<Word>, Unreadable> {
        let is_text =
            |pair: &[Word]| pair[0].text() == "-c" && pair[1].letters.iter().any(|(letter, _)| *letter == '$');
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
    const fn end(&mut self, status: Status, here: Runs) {
        match here {
            Runs::Yes => self.status = status,
            Runs::Unknown => self.status = Status::Unknown,
            Runs::No => {}
        }
    }

    fn close(&mut self, kind: Kind) {
        self.branches.close(kind);
        self.status = Status::Command;
    }

    /// `NAME=…`, where it runs; else what it would have said.
    fn assign(&mut self, piece: &Piece, here: Runs) -> Result<(), Unreadable> {
        let Some((name, is_more)) = piece.assigns() else { return Ok(()) };
        let runs = here.inside(self.branches.runs());
        let own = std::slice::from_ref(piece);
        match runs {
            Runs::No => return Ok(()),
            Runs::Yes => {
                self.uses.assign(&name, own, is_more);
                let known = Known { values: &self.values, uncertain: &self.uncertain };
                let is_uncertain = known.is_uncertain(own) || is_more && self.uncertain.contains(&name);
                self.values.assign(&name, is_more, piece)?;
                if is_uncertain {
                    self.uncertain.insert(name.clone());
                } else {
                    self.uncertain.remove(&name);
                }
            }
            Runs::Unknown => self.leave(name.clone(), piece, Why::Condition)?,
        }
        if runs == Runs::Yes && self.branches.runs_again() {
            self.leave(name, piece, Why::Loop)?;
        }
        Ok(())
    }

    /// Remembers what an assignment would have said, unless it is what stands already.
    fn leave(&mut self, name: String, piece: &Piece, why: Why) -> Result<(), Unreadable> {
        let (now, then) = (self.values.words_of(&name), self.values.assigned(piece)?);
        let text = |words: &[Word]| words.iter().map(Word::text).collect::<Vec<_>>().join(" ");
        let is_more = piece.assigns().is_some_and(|(_, is_more)| is_more);
        if why == Why::Condition && !is_more && text(now) == text(&then) && !text(&then).contains(UNKNOWN) {
            return Ok(());
        }
        let flags = text(&then);
        let flags = flags.split_whitespace().filter_map(|word| word.strip_prefix("--"));
        let flags = flags.filter_map(|word| word.split('=').next()).map(|word| word.replace('_', "-")).collect();
        self.uncertain.insert(name.clone());
        self.uses.leave(Left { name, at: piece.at(), flags, of_flag: None, why });
        Ok(())
    }

    /// `for NAME in …`: the first value stands for all.
    fn values_of_loop(&mut self, pieces: &[Piece], here: Runs) -> Result<(), Unreadable> {
        self.branches.open(Kind::Loop, here);
        let [name, word, list @ ..] = pieces else {
            self.branches.values(false, false);
            return Ok(());
        };
        let values = if word.plain() == "in" { self.values.fields(list)? } else { Vec::new() };
        let is_open = |word: &Word| word.text().contains([UNKNOWN, '*', '{', '?']);
        let known = Known { values: &self.values, uncertain: &self.uncertain };
        let is_known = !values.is_empty() && !values.iter().any(is_open) && !known.is_uncertain(list);
        let runs = here.inside(self.branches.runs());
        self.branches.values(is_known, is_known && values.len() > 1);
        let name_text = name.plain();
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
    fn case(&mut self, pieces: &[Piece], here: Runs, behind: Mark) -> Result<(), Unreadable> {
        let known = Known { values: &self.values, uncertain: &self.uncertain };
        let subject = known.subject(pieces.first())?;
        self.branches.open(Kind::Case, here);
        self.branches.compare(subject);
        self.pattern(pieces.get(2..).unwrap_or_default(), behind)
    }

    /// A pattern of a `case`, and what stands behind it.
    fn pattern(&mut self, pieces: &[Piece], behind: Mark) -> Result<(), Unreadable> {
        let Some(pattern) = pieces.first() else { return Ok(()) };
        let known = Known { values: &self.values, uncertain: &self.uncertain };
        let text = known.subject(Some(pattern))?;
        self.branches.pattern(text.as_deref(), behind == Mark::Close);
        self.status = Status::Command;
        Ok(())
    }

    /// `eval …`: its words are read once more, with quotes of their own.
    fn eval(&mut self, pieces: &[Piece], here: Runs, depth: usize) -> Result<(), Unreadable> {
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
        self.branches.open(Kind::Group, here);
        self.read(&statements(letters, depth + 1)?, depth + 1)?;
        self.close(Kind::Group);
        for command in &mut self.commands[n_before..] {
            command.left.extend(left.iter().cloned());
        }
        Ok(())
    }
}
