//! Substitution: a word as it is written becomes words as a command gets them.

use super::cut::{Cutter, Dollar, Part, Piece};
use super::{DEPTH_MAX, LETTERS_MAX, Letter, READ, UNKNOWN, Unreadable, Values, Word, arithmetic, spelled};

/// Variables of servers that a command may have.
const READ_MAX: usize = 64;
/// Letters of one of their values.
const READ_LETTERS_MAX: usize = 256;

/// Words that are being put together.
#[derive(Default)]
struct Fields {
    done: Vec<Word>,
    open: Option<Word>,
}

impl Fields {
    fn push(&mut self, letters: impl IntoIterator<Item = Letter>) {
        self.open.get_or_insert_default().letters.extend(letters);
    }

    fn split(&mut self) {
        self.done.extend(self.open.take());
    }

    /// Letters that are cut at spaces.
    fn push_split(&mut self, letters: &[Letter]) {
        for &letter in letters {
            if letter.0.is_whitespace() {
                self.split();
            } else {
                self.push([letter]);
            }
        }
    }
}

impl Values {
    /// Remembers the value of a name.
    pub(super) fn assign(&mut self, name: &str, is_more: bool, piece: &Piece) -> Result<(), Unreadable> {
        let words = self.assigned(piece)?;
        self.letters += words.iter().map(|word| word.letters.len() + 1).sum::<usize>();
        if self.letters > LETTERS_MAX {
            return Err(Unreadable::Long);
        }
        let before = self.words.entry(name.to_owned()).or_default();
        match (is_more, piece.list.is_some(), before.first_mut()) {
            (false, ..) => *before = words,
            (true, true, _) | (true, false, None) => before.extend(words),
            (true, false, Some(first)) => first.letters.extend(words.into_iter().flat_map(|word| word.letters)),
        }
        Ok(())
    }

    /// What stands behind `NAME=`.
    pub(super) fn assigned(&self, piece: &Piece) -> Result<Vec<Word>, Unreadable> {
        if let Some(list) = &piece.list {
            return self.fields(list);
        }
        let word = self.whole(piece)?;
        let letters = word.letters.iter().position(|(letter, _)| *letter == '=').map(|at| &word.letters[at + 1..]);
        Ok(vec![Word { letters: letters.unwrap_or_default().to_vec() }])
    }

    /// Gives a name one word.
    pub(super) fn put(&mut self, name: &str, word: Word) {
        self.words.insert(name.to_owned(), vec![word]);
    }

    /// Words of a name.
    pub(super) fn words_of(&self, name: &str) -> &[Word] {
        self.words.get(name).map_or(&[], Vec::as_slice)
    }

    /// Variables that programs read, each with its first word: those that are exported, and those in front of the command.
    pub(super) fn read_by_programs(&self, in_front: &[String]) -> Vec<(String, Word)> {
        let is_read = |name: &str| READ.iter().any(|beginning| name.starts_with(beginning));
        let is_seen = |name: &String| self.exported.contains(name) || in_front.contains(name);
        let named = self.words.iter().filter(|(name, _)| is_read(name) && is_seen(name));
        let first = named.filter_map(|(name, words)| Some((name.clone(), words.first()?.clone())));
        first.filter(|(_, value)| value.letters.len() <= READ_LETTERS_MAX).take(READ_MAX).collect()
    }

    /// The number that a name stands for.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        arithmetic::literal(&self.words_of(name).first()?.text())
    }

    /// A word without cuts at spaces.
    pub(super) fn whole(&self, piece: &Piece) -> Result<Word, Unreadable> {
        let mut letters = Vec::new();
        for part in &piece.parts {
            match part {
                Part::Plain { letters: plain, .. } => letters.extend_from_slice(plain),
                Part::Dollar { what, at, .. } => {
                    for (index, word) in self.value(what, *at, 0)?.into_iter().enumerate() {
                        letters.extend((index > 0).then_some((' ', *at)));
                        letters.extend(word.letters);
                    }
                }
            }
            if letters.len() > LETTERS_MAX {
                return Err(Unreadable::Long);
            }
        }
        Ok(Word { letters })
    }

    /// Words that a command gets.
    pub(super) fn fields(&self, pieces: &[Piece]) -> Result<Vec<Word>, Unreadable> {
        let mut fields = Fields::default();
        let mut n_letters = 0;
        for piece in pieces.iter().filter(|piece| !self.is_of_no_argument(piece)) {
            for part in &piece.parts {
                match part {
                    Part::Plain { letters, .. } => fields.push(letters.iter().copied()),
                    Part::Dollar { what, at, is_quoted } => {
                        let words = self.value(what, *at, 0)?;
                        n_letters += words.iter().map(|word| word.letters.len() + 1).sum::<usize>();
                        for (index, word) in words.into_iter().enumerate() {
                            if index > 0 {
                                fields.split();
                            }
                            if *is_quoted {
                                fields.push(word.letters);
                            } else {
                                fields.push_split(&word.letters);
                            }
                        }
                    }
                }
            }
            fields.split();
            if n_letters > LETTERS_MAX {
                return Err(Unreadable::Long);
            }
        }
        Ok(fields.done)
    }

    /// What a dollar stands for, as words.
    pub(super) fn value(&self, what: &Dollar, at: usize, depth: usize) -> Result<Vec<Word>, Unreadable> {
        let unknown = || vec![Word { letters: vec![(UNKNOWN, at)] }];
        if depth > DEPTH_MAX {
            return Err(Unreadable::Deep);
        }
        Ok(match what {
            Dollar::Else => unknown(),
            Dollar::Given { which, default } => match (self.argument(which), default) {
                (Some(words), _) if words.iter().any(|word| !word.letters.is_empty()) => words,
                (_, Some((text, at))) => vec![Word { letters: self.text(text, *at, depth + 1)? }],
                (Some(words), None) => words,
                (None, None) => unknown(),
            },
            Dollar::Words { words } => words.clone(),
            Dollar::All { name } => self.words.get(name).cloned().unwrap_or_else(unknown),
            Dollar::Name { name, default, .. } => match (self.words.get(name), default) {
                (Some(words), _) if words.first().is_some_and(|word| !word.letters.is_empty()) => words[..1].to_vec(),
                (_, Some((text, at))) => vec![Word { letters: self.text(text, *at, depth + 1)? }],
                (Some(_), None) => Vec::new(),
                (None, None) => unknown(),
            },
            Dollar::Sum { .. } | Dollar::Expr { .. } => match self.sum(what, at, depth + 1)? {
                Some(number) => {
                    vec![Word { letters: number.to_string().chars().map(|digit| (digit, at)).collect() }]
                }
                None => unknown(),
            },
        })
    }

    /// Whether a word is `"$@"` of a function that is given nothing: it is no word, and not an empty one.
    fn is_of_no_argument(&self, piece: &Piece) -> bool {
        let is_empty = |part: &Part| match part {
            Part::Plain { letters, .. } => letters.is_empty(),
            Part::Dollar { what, .. } => matches!(what, Dollar::Given { which, default: None } if which == "@"),
        };
        let has_dollar = piece.parts.iter().any(|part| matches!(part, Part::Dollar { .. }));
        has_dollar && self.given.as_ref().is_some_and(Vec::is_empty) && piece.parts.iter().all(is_empty)
    }

    /// What a function is given in place of a number, `@` or `*`; `None` where nobody follows it. What the script is given nobody knows.
    fn argument(&self, which: &str) -> Option<Vec<Word>> {
        let given = self.given.as_ref()?;
        Some(match which.parse::<usize>() {
            // The name of the script.
            Ok(0) => return None,
            Ok(number) => given.get(number - 1).cloned().into_iter().collect(),
            Err(_) if which == "*" && !given.is_empty() => {
                let space = |word: &Word| word.letters.first().map(|(_, at)| (' ', *at));
                let spaced = given.iter().enumerate();
                let letters =
                    spaced.flat_map(|(n, word)| space(word).filter(|_| n > 0).into_iter().chain(word.letters.clone()));
                vec![Word { letters: letters.collect() }]
            }
            Err(_) => given.clone(),
        })
    }

    /// The value of a sum, in which a shell substitutes first: names with defaults, sums inside of it.
    fn sum(&self, what: &Dollar, at: usize, depth: usize) -> Result<Option<i64>, Unreadable> {
        Ok(match what {
            Dollar::Sum { text } => arithmetic::sum(&self.filled(text, at, depth)?, &|name: &str| self.number(name)),
            Dollar::Expr { text } => arithmetic::of_expr(&self.filled(text, at, depth)?),
            _ => None,
        })
    }

    /// The text of a sum, with what a shell substitutes in it.
    pub(super) fn filled(&self, text: &str, at: usize, depth: usize) -> Result<String, Unreadable> {
        let letters = self.text(text, at, depth)?;
        if letters.len() > LETTERS_MAX {
            return Err(Unreadable::Long);
        }
        Ok(spelled(&letters))
    }

    /// The text of a default, with its own substitutions.
    fn text(&self, text: &str, at: usize, depth: usize) -> Result<Vec<Letter>, Unreadable> {
        let letters: Vec<Letter> = text.char_indices().map(|(byte, letter)| (letter, at + byte)).collect();
        let mut cutter = Cutter { letters, next: 0, is_list: false };
        let mut out = Vec::new();
        while let Some(letter) = cutter.peek(0) {
            if letter.0 != '$' {
                cutter.next += 1;
                out.extend((letter.0 != '"' && letter.0 != '\'').then_some(letter));
                continue;
            }
            match cutter.dollar(false)? {
                Part::Plain { letters, .. } => out.extend(letters),
                Part::Dollar { what, at, .. } => {
                    out.extend(self.value(&what, at, depth)?.into_iter().flat_map(|word| word.letters));
                }
            }
        }
        Ok(out)
    }
}
