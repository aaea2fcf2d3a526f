//! What goes on in the lines behind a value: quotes and brackets without an end, and texts of deeper lines.

use super::texts::Text;
use super::{closing, without_comment};

/// What of a value goes on.
#[derive(Default)]
pub(super) enum Open {
    /// Nothing but plain words.
    #[default]
    Nothing,
    /// A text of deeper lines.
    Text(Text),
    /// A word in such quotes.
    Quote(char),
    /// A list or keys in brackets.
    Brackets(Brackets),
}

impl Open {
    /// What goes on of a value whose key stands at such an indentation.
    pub(super) fn of(value: &str, parent: usize) -> Self {
        let first = value.chars().next().unwrap_or_default();
        match first {
            '|' | '>' => Text::of(value, parent).map_or(Self::Nothing, Self::Text),
            '"' | '\'' if closing(value).is_none() => Self::Quote(first),
            // Templates of charts begin with two braces.
            '[' | '{' if !value.starts_with("{{") => Brackets::default().after(value),
            _ => Self::Nothing,
        }
    }

    pub(super) const fn is_text(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// The text, where it is one.
    pub(super) fn text(self) -> Option<String> {
        if let Self::Text(text) = self { Some(text.folded()) } else { None }
    }

    /// Takes a line into the value, where it is one of its lines.
    pub(super) fn take(&mut self, value: &mut String, line: &str) -> bool {
        if line.starts_with("---") && !self.is_text() {
            return false;
        }
        match std::mem::take(self) {
            Self::Nothing => false,
            Self::Text(mut text) => {
                let is_own = text.take(line);
                *self = Self::Text(text);
                is_own
            }
            Self::Quote(quote) => {
                *self = in_quotes(value, line.trim(), quote);
                true
            }
            Self::Brackets(brackets) => {
                let body = without_comment(line).trim();
                value.push(' ');
                value.push_str(body);
                *self = brackets.after(body);
                true
            }
        }
    }
}

/// A line of a word in quotes: the end of the line before is a blank, and an empty line is the end of one. A backslash takes the end away.
fn in_quotes(value: &mut String, body: &str, quote: char) -> Open {
    let end = if quote == '"' { "\\n" } else { "\n" };
    if body.is_empty() {
        value.push_str(end);
        return Open::Quote(quote);
    }
    let n_marks = value.chars().rev().take_while(|letter| *letter == '\\').count();
    if quote == '"' && n_marks % 2 == 1 {
        value.pop();
    } else if !value.ends_with(end) {
        value.push(' ');
    }
    // With a quote in front the line is searched as a word.
    let Some(at) = closing(&format!("{quote}{body}")) else {
        value.push_str(body);
        return Open::Quote(quote);
    };
    value.push_str(&body[..at]);
    Open::Nothing
}

/// Brackets that are open, and the quote in them.
#[derive(Default)]
pub(super) struct Brackets {
    depth: usize,
    quote: Option<char>,
}

impl Brackets {
    /// What is open behind some more letters.
    fn after(mut self, letters: &str) -> Open {
        let (mut before, mut is_escaped) = (' ', false);
        for letter in letters.chars() {
            match self.quote {
                Some(quote) => {
                    let ends = letter == quote && !is_escaped;
                    is_escaped = quote == '"' && letter == '\\' && !is_escaped;
                    self.quote = Some(quote).filter(|_| !ends);
                }
                None if ['"', '\''].contains(&letter) && (is_before_word(before) || before == letter) => {
                    self.quote = Some(letter);
                }
                None if ['[', '{'].contains(&letter) => self.depth += 1,
                None if [']', '}'].contains(&letter) => self.depth = self.depth.saturating_sub(1),
                None => {}
            }
            before = letter;
        }
        if self.depth > 0 { Open::Brackets(self) } else { Open::Nothing }
    }
}

/// Whether a word may begin behind a letter.
const fn is_before_word(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '[' | '{' | ',' | ':')
}
