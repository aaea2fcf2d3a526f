//! A script's letters as statements of words, before anything is substituted.

use std::ops::Range;

use super::{DEPTH_MAX, Letter, UNKNOWN, Unreadable, Word, is_of_name, spelled};

/// Programs that read commands from a text in place.
const RUN_TEXTS: [&str; 5] = ["sbatch", "qsub", "bash", "sh", "zsh"];
/// Words behind which a sum in two parentheses is a condition.
const BEFORE_SUMS: [&str; 11] = ["if", "elif", "while", "until", "for", "then", "do", "else", "!", "{", "time"];
/// The word in front of the name of a function; `name()` is read as it.
pub(super) const FUNCTION: &str = "function";

/// A word as it is written, before anything is substituted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) parts: Vec<Part>,
    /// Words of a list in parentheses behind `NAME=`.
    pub(super) list: Option<Vec<Piece>>,
}

/// Letters of a word that are treated alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// As they stand; quoted ones make a word even where there is none.
    Plain { letters: Vec<Letter>, is_quoted: bool },
    /// `$NAME`, `${…}`, `$((…))` or `$(…)`, by what stands inside.
    Dollar { what: Dollar, at: usize, is_quoted: bool },
}

/// What stands behind a dollar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Dollar {
    /// A name, what stands for it where it is not set, and whether the name keeps that (`:=`).
    Name { name: String, default: Option<(String, usize)>, is_kept: bool },
    /// All words of a list.
    All { name: String },
    /// A sum in whole numbers.
    Sum { text: String },
    /// Words of `expr`, which computes.
    Expr { text: String },
    /// Words that are known already.
    Words { words: Vec<Word> },
    /// What a function is given: its argument of a number, or all of them (`@`, and `*` as one word), and what stands for one that is not there.
    Given { which: String, default: Option<(String, usize)> },
    /// What only a shell knows.
    Else,
}

impl Piece {
    /// Its text where nothing is quoted or substituted; empty otherwise.
    pub(super) fn plain(&self) -> String {
        match self.parts.as_slice() {
            [Part::Plain { letters, is_quoted: false }] => spelled(letters),
            _ => String::new(),
        }
    }

    /// Letters of it and of its list, as far as they stand in it.
    pub(super) fn n_letters(&self) -> usize {
        let of_part = |part: &Part| match part {
            Part::Plain { letters, .. } => letters.len(),
            Part::Dollar { what: Dollar::Sum { text } | Dollar::Expr { text }, .. } => text.len() + 1,
            Part::Dollar { .. } => 1,
        };
        let own: usize = self.parts.iter().map(of_part).sum();
        own + 1 + self.list.iter().flatten().map(Self::n_letters).sum::<usize>()
    }

    fn is_number(&self) -> bool {
        self.plain().parse::<u32>().is_ok()
    }

    /// Bytes of the script from its first plain letter to its last, without those of a list.
    pub(super) fn at(&self) -> Range<usize> {
        let plain = self.parts.iter().filter_map(|part| match part {
            Part::Plain { letters, .. } => Some(letters.as_slice()),
            Part::Dollar { .. } => None,
        });
        Word { letters: plain.flatten().copied().collect() }.at()
    }

    /// `NAME=` with what stands for its value.
    pub(super) fn giving(name: &str, value: Dollar, at: Range<usize>) -> Self {
        let letters = name.chars().chain(['=']).map(|letter| (letter, at.start)).collect();
        let value = Part::Dollar { what: value, at: at.start, is_quoted: true };
        Self { parts: vec![Part::Plain { letters, is_quoted: false }, value], list: None }
    }

    /// `NAME=()`: a name without words.
    pub(super) fn emptying(name: &str, at: Range<usize>) -> Self {
        let letters = name.chars().chain(['=']).map(|letter| (letter, at.start)).collect();
        Self { parts: vec![Part::Plain { letters, is_quoted: false }], list: Some(Vec::new()) }
    }

    /// The name in front of `[…]=`, of which one item is assigned.
    pub(super) fn assigns_item(&self) -> Option<String> {
        let Some(Part::Plain { letters, is_quoted: false }) = self.parts.first() else { return None };
        let text = spelled(letters);
        let (name, rest) = text.split_once('[')?;
        let is_name = name.chars().all(is_of_name) && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let ends = |part: &Part| match part {
            Part::Plain { letters, .. } => {
                let text = spelled(letters);
                text.contains("]=") || text.contains("]+=")
            }
            Part::Dollar { .. } => false,
        };
        (is_name && (rest.contains("]=") || self.parts.iter().any(ends))).then(|| name.to_owned())
    }

    /// Whether two parentheses behind it begin a condition.
    fn is_before_sums(&self) -> bool {
        BEFORE_SUMS.contains(&self.plain().as_str())
    }

    /// Whether it is a program that runs a text in place.
    fn runs_texts(&self) -> bool {
        RUN_TEXTS.contains(&self.plain().as_str())
    }

    /// The name in front of `=` or `+=`, and whether something is added to it.
    pub(super) fn assigns(&self) -> Option<(String, bool)> {
        let Some(Part::Plain { letters, is_quoted: false }) = self.parts.first() else { return None };
        let text = spelled(letters);
        let (name, _) = text.split_once('=')?;
        let (name, is_more) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
        let is_name =
            !name.is_empty() && name.chars().all(is_of_name) && !name.starts_with(|c: char| c.is_ascii_digit());
        is_name.then(|| (name.to_owned(), is_more))
    }
}

/// What stands in braces behind a dollar; `at` is the byte of its first letter.
fn braces(text: &str, at: usize) -> Dollar {
    let end = text.find(|letter: char| !is_of_name(letter)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let is_name = !name.is_empty() && !name.starts_with(|letter: char| letter.is_ascii_digit());
    let mark = [":-", ":=", "-", "="].into_iter().find(|mark| rest.starts_with(mark));
    let default = mark.map(|mark| (rest[mark.len()..].to_owned(), at + end + mark.len()));
    let is_kept = is_name && mark.is_some_and(|mark| mark.ends_with('='));
    let name = name.to_owned();
    match rest {
        "[@]" | "[*]" if is_name => Dollar::All { name },
        "" if is_name => Dollar::Name { name, default: None, is_kept },
        _ if default.is_some() && is_name => Dollar::Name { name, default, is_kept },
        _ if !name.is_empty() && (default.is_some() || rest.is_empty()) => Dollar::Given { which: name, default },
        "@" | "*" => Dollar::Given { which: rest.to_owned(), default: None },
        _ => Dollar::Else,
    }
}

/// A letter of the script; the mark for what is unknown is none of a script's own.
const fn own(letter: char) -> char {
    if letter == UNKNOWN { char::REPLACEMENT_CHARACTER } else { letter }
}

/// Whether a letter is a backslash that keeps the next one from the shell.
fn is_escape(letters: &[Letter], at: usize) -> bool {
    letters[at].0 == '\\' && letters.get(at + 1).is_some_and(|(next, _)| matches!(next, '$' | '`'))
}

/// What stands before a statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mark {
    /// A line's end or `;`.
    #[default]
    Next,
    /// `&&`.
    And,
    /// `||`.
    Or,
    /// `|`.
    Pipe,
    /// `(`.
    Open,
    /// `)`.
    Close,
    /// `;;`.
    EndOfCase,
    /// A single `&`: what stands before it runs in a shell of its own.
    Apart,
}

impl Mark {
    /// Whether what stands before it runs in a shell of its own.
    pub(super) const fn sets_apart(self) -> bool {
        matches!(self, Self::Pipe | Self::Apart)
    }
}

/// Words up to a mark that ends them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) before: Mark,
    pub(super) pieces: Vec<Piece>,
    /// The text of `<<<`, which is no word of the command.
    pub(super) text: Option<Piece>,
}

impl Statement {
    /// The same with the last of its words alone.
    pub(super) fn from(&self, pieces: &[Piece]) -> Self {
        Self { before: Mark::Next, pieces: pieces.to_vec(), text: self.text.clone() }
    }
}

/// Letters of a script.
pub(super) fn letters(script: &str) -> Vec<Letter> {
    // A reader is kinder than a shell to lines that end in CR LF, which is said (`launch::line_ends`).
    let is_end = |at: usize, letter: char| letter == '\r' && script[at + 1..].starts_with('\n');
    let kept = script.char_indices().filter(|(at, letter)| !is_end(*at, *letter));
    kept.map(|(at, letter)| (own(letter), at)).collect()
}

/// Cuts a script into statements of words. `depth` counts texts in place inside others.
pub(super) fn statements(letters: Vec<Letter>, depth: usize) -> Result<Vec<Statement>, Unreadable> {
    if depth > DEPTH_MAX {
        return Err(Unreadable::Deep);
    }
    let mut cutter = Cutter { letters, next: 0, is_list: false };
    let mut done = vec![Statement::default()];
    // Ends of texts in place, and the statements that get them.
    let mut texts: Vec<(Text, usize)> = Vec::new();
    // Between `[[` and `]]` marks are words.
    let mut is_test = false;
    while let Some((letter, at)) = cutter.peek(0) {
        let n_done = done.len();
        let statement = done.last_mut().expect("never empty");
        if letter == '#' {
            cutter.skip_line();
        } else if letter == '(' && cutter.is(1, '(') && statement.pieces.iter().all(Piece::is_before_sums) {
            statement.pieces.extend(cutter.condition(at)?);
        } else if is_test && matches!(letter, '&' | '|' | '(' | ')' | '<' | '>') {
            statement.pieces.push(cutter.sign(letter));
        } else if letter == '(' && cutter.begins_body(statement) {
            let at = statement.pieces.len() - 1;
            if at == 0 || statement.pieces[at - 1].plain() != FUNCTION {
                statement.pieces.insert(at, cutter.word_of(FUNCTION));
            }
        } else if letter == '\n' || cutter.is_mark() && !cutter.is_both(letter) {
            is_test = false;
            done.push(Statement { before: cutter.mark(letter), ..Statement::default() });
            for (text, first) in texts.drain(..).filter(|_| letter == '\n') {
                let is_run = done[first..].iter().flat_map(|one| &one.pieces).any(Piece::runs_texts);
                let body = cutter.text(&text, is_run);
                if is_run {
                    done.extend(statements(body, depth + 1)?);
                    done.push(Statement::default());
                }
            }
        } else if letter == '<' && cutter.is(1, '<') && cutter.is(2, '<') {
            cutter.next += 3;
            while cutter.is(0, ' ') {
                cutter.next += 1;
            }
            statement.text = Some(cutter.piece()?);
        } else if letter == '<' || letter == '>' || cutter.is_both(letter) {
            // The number of a stream in front of `>` is no word.
            let is_number = cutter.next > 0 && cutter.letters[cutter.next - 1].0.is_ascii_digit();
            statement.pieces.pop_if(|piece: &mut Piece| is_number && piece.is_number());
            texts.extend(cutter.redirection()?.map(|text| (text, n_done - 1)));
        } else if letter.is_whitespace() || cutter.is_continued() {
            cutter.next += if letter == '\\' { 2 } else { 1 };
        } else {
            let piece = cutter.piece()?;
            is_test = piece.plain() == "[[" || is_test && piece.plain() != "]]";
            statement.pieces.push(piece);
        }
    }
    Ok(done)
}

/// What a command in a word stands for: `expr` computes a sum, whose signs are kept from the shell. Nothing else is run.
fn given_by(command: &str) -> Dollar {
    let sum = command.trim().strip_prefix("expr").filter(|sum| sum.starts_with(char::is_whitespace));
    sum.map_or(Dollar::Else, |sum| Dollar::Expr { text: sum.replace(['\\', '"', '\''], "") })
}

/// A text in place: the word that ends it, and whether the shell substitutes in it.
struct Text {
    end: String,
    is_quoted: bool,
}

/// Reads letters one after another.
pub(super) struct Cutter {
    pub(super) letters: Vec<Letter>,
    pub(super) next: usize,
    /// Whether it stands in a list: no list has another in it.
    pub(super) is_list: bool,
}

impl Cutter {
    pub(super) fn peek(&self, ahead: usize) -> Option<Letter> {
        self.letters.get(self.next + ahead).copied()
    }

    fn is(&self, ahead: usize, letter: char) -> bool {
        self.peek(ahead).is_some_and(|(found, _)| found == letter)
    }

    /// Whether a backslash joins this line and the next.
    fn is_continued(&self) -> bool {
        self.is(0, '\\') && self.is(1, '\n')
    }

    fn skip_line(&mut self) {
        while self.peek(0).is_some_and(|(letter, _)| letter != '\n') {
            self.next += 1;
        }
    }

    /// Whether a statement ends here.
    fn is_mark(&self) -> bool {
        self.peek(0).is_some_and(|(letter, _)| matches!(letter, ';' | '&' | '|' | '(' | ')'))
    }

    /// Whether `&>` begins here, which sends both streams to a file.
    fn is_both(&self, letter: char) -> bool {
        letter == '&' && self.is(1, '>')
    }

    /// Takes `()` behind the name of a function, and says whether it stands here.
    fn begins_body(&mut self, statement: &Statement) -> bool {
        let is_named = statement.pieces.last().is_some_and(|piece| !piece.plain().is_empty() && piece.list.is_none());
        let ahead = self.letters[self.next + 1..].iter().take_while(|(letter, _)| *letter == ' ').count() + 1;
        let begins = is_named && self.is(ahead, ')');
        self.next += if begins { ahead + 1 } else { 0 };
        begins
    }

    /// A word that does not stand in the script.
    fn word_of(&self, text: &str) -> Piece {
        let at = self.letters.get(self.next).or(self.letters.last()).map_or(0, |(_, at)| *at);
        let letters = text.chars().map(|letter| (letter, at)).collect();
        Piece { parts: vec![Part::Plain { letters, is_quoted: false }], list: None }
    }

    /// Takes the mark that ends a statement.
    fn mark(&mut self, letter: char) -> Mark {
        let is_twice = self.is(1, letter);
        let mark = match letter {
            '&' if is_twice => Mark::And,
            '|' if is_twice => Mark::Or,
            ';' if is_twice => Mark::EndOfCase,
            '|' => Mark::Pipe,
            '&' => Mark::Apart,
            '(' => Mark::Open,
            ')' => Mark::Close,
            _ => Mark::Next,
        };
        // `|&` joins both streams.
        let is_joined = mark == Mark::Pipe && self.is(1, '&');
        self.next += if is_joined || matches!(mark, Mark::And | Mark::Or | Mark::EndOfCase) { 2 } else { 1 };
        mark
    }

    /// Takes one or two letters of a sign between `[[` and `]]`.
    fn sign(&mut self, letter: char) -> Piece {
        let n = if self.is(1, letter) { 2 } else { 1 };
        let letters = self.letters[self.next..self.next + n].to_vec();
        self.next += n;
        Piece { parts: vec![Part::Plain { letters, is_quoted: false }], list: None }
    }

    /// Takes `((…))` that stands for a command: a word for its beginning, and the sum.
    fn condition(&mut self, at: usize) -> Result<[Piece; 2], Unreadable> {
        let beginning = Part::Plain { letters: vec![('(', at), ('(', at)], is_quoted: false };
        let sum = Part::Dollar { what: self.sum(at, "((")?, at, is_quoted: true };
        Ok([beginning, sum].map(|part| Piece { parts: vec![part], list: None }))
    }

    /// Takes a text in place with the word that ends it. Where a shell substitutes first, backslashes keep dollars for the one that runs it.
    fn text(&mut self, text: &Text, is_kept: bool) -> Vec<Letter> {
        let mut body = Vec::new();
        while self.peek(0).is_some() {
            let from = self.next;
            self.skip_line();
            let line = spelled(&self.letters[from..self.next]);
            self.next += 1;
            if line.trim() == text.end {
                break;
            }
            if is_kept {
                body.extend_from_slice(&self.letters[from..self.next.min(self.letters.len())]);
            }
        }
        if !text.is_quoted {
            let keeps: Vec<bool> = (0..body.len()).map(|at| !is_escape(&body, at)).collect();
            let mut keeps = keeps.into_iter();
            body.retain(|_| keeps.next().unwrap_or(true));
        }
        body
    }

    /// Leaves out `>file`, `2>&1` and the like; the text in place, where it is one.
    fn redirection(&mut self) -> Result<Option<Text>, Unreadable> {
        let is_text = self.is(0, '<') && self.is(1, '<') && !self.is(2, '<');
        while self.peek(0).is_some_and(|(letter, _)| matches!(letter, '<' | '>' | '&' | '-' | ' ')) {
            self.next += 1;
        }
        let is_over = self.peek(0).is_none_or(|(letter, _)| matches!(letter, '\n' | ';' | '|' | '(' | ')'));
        let piece = if is_over { Piece::default() } else { self.piece()? };
        let end = piece.parts.iter().filter_map(|part| match part {
            Part::Plain { letters, .. } => Some(spelled(letters)),
            Part::Dollar { .. } => None,
        });
        let end: String = end.collect();
        let is_quoted = piece.parts.iter().any(|part| matches!(part, Part::Plain { is_quoted: true, .. }));
        Ok((is_text && !end.is_empty()).then_some(Text { end, is_quoted }))
    }

    /// A word up to a space or an end of a statement.
    fn piece(&mut self) -> Result<Piece, Unreadable> {
        let mut piece = Piece::default();
        while let Some((letter, at)) = self.peek(0) {
            match letter {
                _ if letter.is_whitespace() || self.is_continued() => break,
                '(' if piece.assigns().is_some() && !self.is_list => {
                    piece.list = Some(self.list(at)?);
                    break;
                }
                ';' | '&' | '|' | '(' | ')' | '<' | '>' => break,
                '\'' => piece.parts.push(self.single(at)?),
                '"' => self.double(at, &mut piece.parts)?,
                '$' => piece.parts.push(self.dollar(false)?),
                '`' => piece.parts.push(self.backticks(at)?),
                '\\' => {
                    self.next += 1;
                    self.plain(&mut piece.parts, false);
                }
                _ => self.plain(&mut piece.parts, false),
            }
        }
        Ok(piece)
    }

    /// Takes a letter as it stands.
    fn plain(&mut self, parts: &mut Vec<Part>, is_quoted: bool) {
        let Some(letter) = self.peek(0) else { return };
        self.next += 1;
        match parts.last_mut() {
            Some(Part::Plain { letters, is_quoted: before }) if *before == is_quoted => letters.push(letter),
            _ => parts.push(Part::Plain { letters: vec![letter], is_quoted }),
        }
    }

    fn single(&mut self, at: usize) -> Result<Part, Unreadable> {
        self.next += 1;
        let from = self.next;
        while !self.is(0, '\'') {
            if self.peek(0).is_none() {
                return Err(Unreadable::Open { what: "'", at });
            }
            self.next += 1;
        }
        self.next += 1;
        Ok(Part::Plain { letters: self.letters[from..self.next - 1].to_vec(), is_quoted: true })
    }

    fn double(&mut self, at: usize, parts: &mut Vec<Part>) -> Result<(), Unreadable> {
        self.next += 1;
        parts.push(Part::Plain { letters: Vec::new(), is_quoted: true });
        loop {
            match self.peek(0) {
                None => return Err(Unreadable::Open { what: "\"", at }),
                Some(('"', _)) => break,
                Some(('$', _)) => parts.push(self.dollar(true)?),
                Some(('`', at)) => parts.push(self.backticks(at)?),
                Some(('\\', _)) => {
                    self.next += 1;
                    if self.is(0, '\n') {
                        self.next += 1;
                    } else {
                        self.plain(parts, true);
                    }
                }
                Some(_) => self.plain(parts, true),
            }
        }
        self.next += 1;
        Ok(())
    }

    fn backticks(&mut self, at: usize) -> Result<Part, Unreadable> {
        self.next += 1;
        let from = self.next;
        while !self.is(0, '`') {
            if self.peek(0).is_none() {
                return Err(Unreadable::Open { what: "`", at });
            }
            self.next += 1;
        }
        let command: String = self.letters[from..self.next].iter().map(|(letter, _)| *letter).collect();
        self.next += 1;
        Ok(Part::Dollar { what: given_by(&command), at, is_quoted: true })
    }

    /// Words of `NAME=( … )`.
    fn list(&mut self, at: usize) -> Result<Vec<Piece>, Unreadable> {
        self.next += 1;
        self.is_list = true;
        let mut pieces = Vec::new();
        loop {
            match self.peek(0) {
                None => return Err(Unreadable::Open { what: "(", at }),
                Some((')', _)) => break,
                Some(('#', _)) => self.skip_line(),
                Some((letter, _)) if letter.is_whitespace() => self.next += 1,
                Some(_) if self.is_continued() => self.next += 2,
                Some((';' | '&' | '|' | '(' | '<' | '>', _)) => self.next += 1,
                Some(_) => pieces.push(self.piece()?),
            }
        }
        self.next += 1;
        self.is_list = false;
        Ok(pieces)
    }

    /// What a dollar stands for.
    pub(super) fn dollar(&mut self, is_quoted: bool) -> Result<Part, Unreadable> {
        let at = self.letters[self.next].1;
        self.next += 1;
        let what = match self.peek(0) {
            Some(('(', _)) if self.is(1, '(') => self.sum(at, "$((")?,
            Some(('(', _)) => {
                let command = self.inside(at, '(', ')', "$(")?;
                given_by(&command)
            }
            Some(('{', start)) => {
                let text = self.inside(at, '{', '}', "${")?;
                braces(&text, start + 1)
            }
            Some((letter, _)) if is_of_name(letter) && !letter.is_ascii_digit() => {
                let mut name = String::new();
                while let Some((letter, _)) = self.peek(0).filter(|(letter, _)| is_of_name(*letter)) {
                    name.push(letter);
                    self.next += 1;
                }
                Dollar::Name { name, default: None, is_kept: false }
            }
            Some((letter, _)) if letter.is_ascii_digit() || "@*".contains(letter) => {
                self.next += 1;
                Dollar::Given { which: letter.to_string(), default: None }
            }
            Some((letter, _)) if "#?$!-".contains(letter) => {
                self.next += 1;
                Dollar::Else
            }
            _ => return Ok(Part::Plain { letters: vec![('$', at)], is_quoted }),
        };
        Ok(Part::Dollar { what, at, is_quoted })
    }

    /// A sum in two pairs of parentheses.
    fn sum(&mut self, at: usize, what: &'static str) -> Result<Dollar, Unreadable> {
        let text = self.inside(at, '(', ')', what)?;
        // The second pair is the mark's own; what stands inside may have parentheses at its ends.
        let sum = text.strip_prefix('(').unwrap_or(&text);
        Ok(Dollar::Sum { text: sum.strip_suffix(')').unwrap_or(sum).to_owned() })
    }

    /// Text between brackets that may hold further ones.
    fn inside(&mut self, at: usize, open: char, close: char, what: &'static str) -> Result<String, Unreadable> {
        let mut text = String::new();
        let mut depth = 0_usize;
        while let Some((letter, _)) = self.peek(0) {
            self.next += 1;
            depth += usize::from(letter == open);
            if letter == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(text);
                }
            }
            if depth > 1 || letter != open {
                text.push(letter);
            }
        }
        Err(Unreadable::Open { what, at })
    }
}
