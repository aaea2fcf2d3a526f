//! Conditions whose sides the script itself says: `[ "$A" = x ]`, `[[ … ]]`, `test …`, `(( … ))`, `true`, `false`.

use std::collections::BTreeSet;

use super::arithmetic::compares;
use super::branches::fits;
use super::cut::{Part, Piece};
use super::uses::uses;
use super::{UNKNOWN, Unreadable, Values};

/// Comparisons of numbers in a test, and their signs in a sum.
const COMPARISONS: [(&str, &str); 6] =
    [("-ge", ">="), ("-le", "<="), ("-eq", "=="), ("-ne", "!="), ("-gt", ">"), ("-lt", "<")];

/// What is known when a condition is read.
pub(super) struct Known<'a> {
    pub(super) values: &'a Values,
    /// Names whose values may be others.
    pub(super) uncertain: &'a BTreeSet<String>,
}

impl Known<'_> {
    /// Whether a statement is a test; whether it is true, where both sides are known.
    pub(super) fn test(&self, pieces: &[Piece]) -> Result<Option<Option<bool>>, Unreadable> {
        let Some((first, rest)) = pieces.split_first() else { return Ok(None) };
        Ok(match first.plain().as_str() {
            "true" | ":" => Some(Some(true)),
            "false" => Some(Some(false)),
            "((" => Some(self.sum(rest)?),
            "test" => Some(self.all(rest)?),
            open @ ("[" | "[[") => {
                let close = if open == "[" { "]" } else { "]]" };
                let inner = rest.split_last().filter(|(last, _)| last.plain() == close).map(|(_, inner)| inner);
                Some(match inner {
                    Some(inner) => self.all(inner)?,
                    None => None,
                })
            }
            _ => None,
        })
    }

    /// Tests with `||` between them, each of tests with `&&`.
    fn all(&self, pieces: &[Piece]) -> Result<Option<bool>, Unreadable> {
        let mut any = Some(false);
        for either in pieces.split(|piece| matches!(piece.plain().as_str(), "||" | "-o")) {
            let mut all = Some(true);
            for one in either.split(|piece| matches!(piece.plain().as_str(), "&&" | "-a")) {
                all = match (all, self.one(one)?) {
                    (Some(false), _) | (_, Some(false)) => Some(false),
                    (Some(true), Some(true)) => Some(true),
                    _ => None,
                };
            }
            any = match (any, all) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            };
        }
        Ok(any)
    }

    /// One test.
    fn one(&self, pieces: &[Piece]) -> Result<Option<bool>, Unreadable> {
        if let Some((first, rest)) = pieces.split_first()
            && first.plain() == "!"
        {
            // Signs of one test are few; a test of nothing but signs is none.
            return Ok(if rest.first().is_some_and(|next| next.plain() == "!") {
                None
            } else {
                self.one(rest)?.map(|is_true| !is_true)
            });
        }
        let mut words = Vec::new();
        let mut has_argument = false;
        for piece in pieces {
            let known = self.word(piece)?;
            has_argument |= known.is_none();
            let Some(word) = known.map_or_else(|| self.without_arguments(piece), |word| Ok(Some(word)))? else {
                return Ok(None);
            };
            words.push(word);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if has_argument {
            return Ok(asks_for_argument(&words));
        }
        Ok(match words[..] {
            [word] => Some(!word.is_empty()),
            ["-z", word] => Some(word.is_empty()),
            ["-n", word] => Some(!word.is_empty()),
            [word, "=" | "==", pattern] => is_like(word, pattern, &pieces[2]),
            [word, "!=", pattern] => is_like(word, pattern, &pieces[2]).map(|is_like| !is_like),
            [left, sign, right] => {
                let number = |word: &str| word.trim().parse::<i64>().ok();
                number(left).zip(number(right)).and_then(|(left, right)| {
                    let (_, sign) = COMPARISONS.iter().find(|(word, _)| *word == sign)?;
                    Some(compares(left, sign, right))
                })
            }
            _ => None,
        })
    }

    /// A word that is known for certain.
    fn word(&self, piece: &Piece) -> Result<Option<String>, Unreadable> {
        if self.is_uncertain(std::slice::from_ref(piece)) {
            return Ok(None);
        }
        let text = self.values.whole(piece)?.text();
        Ok((!text.contains(UNKNOWN)).then_some(text))
    }

    /// A word without the arguments of the script in it, where nothing else in it is unknown.
    fn without_arguments(&self, piece: &Piece) -> Result<Option<String>, Unreadable> {
        if self.is_uncertain(std::slice::from_ref(piece)) {
            return Ok(None);
        }
        let word = self.values.whole(piece)?;
        let is_known = |(letter, at): &(char, usize)| *letter != UNKNOWN || self.values.arguments.contains(at);
        let is_all = word.letters.iter().all(is_known);
        Ok(is_all.then(|| word.text().replace(UNKNOWN, "")))
    }

    /// Whether words stand on names whose values may be others.
    pub(super) fn is_uncertain(&self, pieces: &[Piece]) -> bool {
        uses(pieces).iter().any(|one| self.uncertain.contains(&one.name))
    }

    /// What a `case` compares, where it is known.
    pub(super) fn subject(&self, piece: Option<&Piece>) -> Result<Option<String>, Unreadable> {
        piece.map_or(Ok(None), |piece| self.word(piece))
    }

    /// A sum that is not zero.
    fn sum(&self, pieces: &[Piece]) -> Result<Option<bool>, Unreadable> {
        let Some(word) = pieces.first().filter(|_| pieces.len() == 1).map(|piece| self.word(piece)).transpose()? else {
            return Ok(None);
        };
        Ok(word.and_then(|word| word.parse::<i64>().ok()).map(|value| value != 0))
    }
}

/// A test of arguments, whose words are without them: it is decided where it asks whether they are there at all, for a run without arguments.
fn asks_for_argument(words: &[&str]) -> Option<bool> {
    match words {
        ["-z", ""] => Some(true),
        [""] | ["-n", ""] => Some(false),
        [left, "=" | "==", right] if left == right => Some(true),
        [left, "!=", right] if left == right => Some(false),
        _ => None,
    }
}

/// Whether a word is another, or fits a pattern that is not quoted.
fn is_like(word: &str, pattern: &str, piece: &Piece) -> Option<bool> {
    let is_plain = !pattern.contains(['*', '?', '[', '(']);
    let is_quoted = piece.parts.iter().all(|part| match part {
        Part::Plain { is_quoted, .. } | Part::Dollar { is_quoted, .. } => *is_quoted,
    });
    if is_plain || is_quoted { Some(word == pattern) } else { fits(word, pattern) }
}
