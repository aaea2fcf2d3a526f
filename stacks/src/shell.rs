//! A launch script as the commands that it would run: variables, arrays and arithmetic are substituted, nothing is executed.
//!
//! Assignments of the script itself are followed in order. Those under a condition are not: the value before them stands. A `for` loop over words that are known
//! is followed for its first word (`loops`).
//! What cannot be known becomes `UNKNOWN` in the text. Every letter keeps its byte in the script, so findings point where it was written.

mod arithmetic;
mod expand;
mod loops;

use std::collections::BTreeMap;
use std::ops::Range;

pub use loops::Loop;
use loops::Parts;

/// Stands for text that only a shell, an environment or a caller knows.
pub const UNKNOWN: char = '\u{fffc}';
/// Letters that all values and commands of a script may have after substitution.
const LETTERS_MAX: usize = 1 << 20;
/// Substitutions inside substitutions.
const DEPTH_MAX: usize = 32;
/// Words that open a part which may run or not, or often.
const OPENING: [&str; 6] = ["if", "for", "while", "until", "case", "select"];
/// Words that close one.
const CLOSING: [&str; 3] = ["fi", "done", "esac"];
/// Words in front of a command that say nothing of it.
const IN_FRONT: [&str; 18] = [
    "then", "else", "elif", "do", "{", "}", "export", "declare", "local", "readonly", "exec", "eval", "time", "nohup",
    "command", "sudo", "!", "env",
];

/// A letter and the byte where it stands in the script.
type Letter = (char, usize);

/// A word of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    letters: Vec<Letter>,
}

impl Word {
    /// Its text; `UNKNOWN` stands for what cannot be known.
    pub fn text(&self) -> String {
        self.letters.iter().map(|(letter, _)| *letter).collect()
    }

    /// Bytes of the script from its first letter to its last, where they stand together.
    pub fn at(&self) -> Range<usize> {
        let Some((_, start)) = self.letters.first() else { return 0..0 };
        let together = self.letters.iter().zip(self.letters.iter().skip(1)).take_while(|(a, b)| b.1 > a.1);
        let end = together.last().map_or_else(|| end_of(&self.letters[0]), |(_, last)| end_of(last));
        *start..end
    }

    /// Its words, where it is a whole command in quotes.
    pub fn cut(&self) -> Vec<Self> {
        let words = self.letters.split(|(letter, _)| letter.is_whitespace());
        words.filter(|letters| !letters.is_empty()).map(|letters| Self { letters: letters.to_vec() }).collect()
    }
}

const fn end_of(letter: &Letter) -> usize {
    // What stands for something unknown is as long as its dollar.
    if letter.0 == UNKNOWN { letter.1 + 1 } else { letter.1 + letter.0.len_utf8() }
}

/// Values of the script so far.
#[derive(Clone, Debug, Default)]
struct Values {
    words: BTreeMap<String, Vec<Word>>,
    letters: usize,
}

/// Commands of a script, in order, each with its words.
///
/// # Errors
/// Why it cannot be read: a quote without an end, or more text than anybody writes.
pub fn commands(script: &str) -> Result<Vec<Vec<Word>>, Unreadable> {
    commands_and_loops(script).map(|(commands, _)| commands)
}

/// Commands of a script, and the loops that were followed for their first words.
///
/// # Errors
/// As of `commands`.
pub fn commands_and_loops(script: &str) -> Result<(Vec<Vec<Word>>, Vec<Loop>), Unreadable> {
    let mut values = Values::default();
    let mut commands = Vec::new();
    let mut parts = Parts::default();
    for mut statement in statements(script)? {
        let text = statement.iter().position(|piece| piece.is_text).map(|index| statement.remove(index));
        let mut pieces = statement.as_slice();
        while let Some(first) = pieces.first() {
            let word = first.plain();
            if OPENING.contains(&word.as_str()) {
                if parts.open(pieces, &mut values, commands.len())? {
                    pieces = &[];
                    break;
                }
            } else if CLOSING.contains(&word.as_str()) {
                parts.close(&mut values, commands.len());
            } else if let Some((name, is_more)) = first.assigns() {
                if parts.is_followed() {
                    values.assign(&name, is_more, first)?;
                }
            } else if !IN_FRONT.contains(&word.as_str()) {
                break;
            }
            pieces = &pieces[1..];
        }
        if parts.is_followed() {
            values.read(pieces, text.as_ref())?;
        }
        let command = values.fields(pieces)?;
        if !command.is_empty() {
            commands.push(command);
        }
    }
    Ok((commands, parts.loops))
}

/// Why a script cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A quote, a brace or a bracket has no end.
    #[error("`{what}` has no end")]
    Open {
        /// What was opened.
        what: &'static str,
        /// Where.
        at: usize,
    },
    /// The text grows too long.
    #[error("its text grows beyond {LETTERS_MAX} letters")]
    Long,
    /// Substitutions lie too deep inside each other.
    #[error("substitutions lie more than {DEPTH_MAX} deep")]
    Deep,
}

impl Unreadable {
    /// Where, if it has a place.
    pub fn at(&self) -> Option<Range<usize>> {
        match self {
            Self::Open { at, .. } => Some(*at..*at + 1),
            Self::Long | Self::Deep => None,
        }
    }
}

/// A word as it is written, before anything is substituted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Piece {
    parts: Vec<Part>,
    /// Words of a list in parentheses behind `NAME=`.
    list: Option<Vec<Piece>>,
    /// Whether it is the text of `<<<`, and no word of the command.
    is_text: bool,
}

/// Letters of a word that are treated alike.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// As they stand; quoted ones make a word even where there is none.
    Plain { letters: Vec<Letter>, is_quoted: bool },
    /// `$NAME`, `${…}`, `$((…))` or `$(…)`, by what stands inside.
    Dollar { what: Dollar, at: usize, is_quoted: bool },
}

/// What stands behind a dollar.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Dollar {
    /// A name, and what stands for it where it is not set.
    Name { name: String, default: Option<(String, usize)> },
    /// All words of a list.
    All { name: String },
    /// A sum in whole numbers.
    Sum { text: String },
    /// What only a shell knows.
    Else,
}

impl Piece {
    /// Its text where nothing is quoted or substituted; empty otherwise.
    fn plain(&self) -> String {
        match self.parts.as_slice() {
            [Part::Plain { letters, is_quoted: false }] => letters.iter().map(|(letter, _)| *letter).collect(),
            _ => String::new(),
        }
    }

    fn is_number(&self) -> bool {
        self.plain().parse::<u32>().is_ok()
    }

    /// The name in front of `=` or `+=`, and whether something is added to it.
    fn assigns(&self) -> Option<(String, bool)> {
        let Some(Part::Plain { letters, is_quoted: false }) = self.parts.first() else { return None };
        let text: String = letters.iter().map(|(letter, _)| *letter).collect();
        let (name, _) = text.split_once('=')?;
        let (name, is_more) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
        let is_name =
            !name.is_empty() && name.chars().all(is_of_name) && !name.starts_with(|c: char| c.is_ascii_digit());
        is_name.then(|| (name.to_owned(), is_more))
    }
}

const fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// A letter of the script; the mark for what is unknown is none of a script's own.
const fn own(letter: char) -> char {
    if letter == UNKNOWN { char::REPLACEMENT_CHARACTER } else { letter }
}

/// Cuts a script into statements of words.
fn statements(script: &str) -> Result<Vec<Vec<Piece>>, Unreadable> {
    let mut cutter = Cutter { letters: script.char_indices().map(|(at, letter)| (own(letter), at)).collect(), next: 0 };
    let mut statements = vec![Vec::new()];
    let mut ends: Vec<String> = Vec::new();
    while let Some((letter, _)) = cutter.peek(0) {
        let is_end = matches!(letter, '\n' | ';' | '&' | '|' | '(' | ')');
        if letter == '#' {
            cutter.skip_line();
        } else if is_end {
            cutter.next += 1;
            statements.push(Vec::new());
            if letter == '\n' {
                ends.drain(..).for_each(|end| cutter.skip_text(&end));
            }
        } else if letter == '<' && cutter.is(1, '<') && cutter.is(2, '<') {
            cutter.next += 3;
            while cutter.is(0, ' ') {
                cutter.next += 1;
            }
            let text = Piece { is_text: true, ..cutter.piece()? };
            statements.last_mut().expect("never empty").push(text);
        } else if letter == '<' || letter == '>' {
            // The number of a stream in front of `>` is no word.
            let is_number = cutter.next > 0 && cutter.letters[cutter.next - 1].0.is_ascii_digit();
            statements.last_mut().expect("never empty").pop_if(|piece: &mut Piece| is_number && piece.is_number());
            ends.extend(cutter.redirection()?);
        } else if letter.is_whitespace() || cutter.is_continued() {
            cutter.next += if letter == '\\' { 2 } else { 1 };
        } else {
            let piece = cutter.piece()?;
            statements.last_mut().expect("never empty").push(piece);
        }
    }
    Ok(statements)
}

/// Reads letters one after another.
struct Cutter {
    letters: Vec<Letter>,
    next: usize,
}

impl Cutter {
    fn peek(&self, ahead: usize) -> Option<Letter> {
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

    /// Lines of a text in place, up to the word that ends it.
    fn skip_text(&mut self, end: &str) {
        while self.peek(0).is_some() {
            let from = self.next;
            self.skip_line();
            let line: String = self.letters[from..self.next].iter().map(|(letter, _)| *letter).collect();
            self.next += 1;
            if line.trim() == end {
                return;
            }
        }
    }

    /// Leaves out `>file`, `2>&1` and the like; the word that ends a text in place, where it is one.
    fn redirection(&mut self) -> Result<Option<String>, Unreadable> {
        let is_text = self.is(0, '<') && self.is(1, '<');
        while self.peek(0).is_some_and(|(letter, _)| matches!(letter, '<' | '>' | '&' | '-' | ' ')) {
            self.next += 1;
        }
        let is_over = self.peek(0).is_none_or(|(letter, _)| matches!(letter, '\n' | ';' | '|' | '(' | ')'));
        let piece = if is_over { Piece::default() } else { self.piece()? };
        let end = piece.parts.iter().filter_map(|part| match part {
            Part::Plain { letters, .. } => Some(letters.iter().map(|(letter, _)| *letter).collect::<String>()),
            Part::Dollar { .. } => None,
        });
        let end: String = end.collect();
        Ok((is_text && !end.is_empty()).then_some(end))
    }

    /// A word up to a space or an end of a statement.
    fn piece(&mut self) -> Result<Piece, Unreadable> {
        let mut piece = Piece::default();
        while let Some((letter, at)) = self.peek(0) {
            match letter {
                _ if letter.is_whitespace() || self.is_continued() => break,
                '(' if piece.assigns().is_some() => {
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
        while !self.is(0, '`') {
            if self.peek(0).is_none() {
                return Err(Unreadable::Open { what: "`", at });
            }
            self.next += 1;
        }
        self.next += 1;
        Ok(Part::Dollar { what: Dollar::Else, at, is_quoted: true })
    }

    /// Words of `NAME=( … )`.
    fn list(&mut self, at: usize) -> Result<Vec<Piece>, Unreadable> {
        self.next += 1;
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
        Ok(pieces)
    }

    /// What a dollar stands for.
    fn dollar(&mut self, is_quoted: bool) -> Result<Part, Unreadable> {
        let at = self.letters[self.next].1;
        self.next += 1;
        let what = match self.peek(0) {
            Some(('(', _)) if self.is(1, '(') => {
                let text = self.inside(at, '(', ')', "$((")?;
                // The second pair is the mark's own; what stands inside may have parentheses at its ends.
                let sum = text.strip_prefix('(').unwrap_or(&text);
                Dollar::Sum { text: sum.strip_suffix(')').unwrap_or(sum).to_owned() }
            }
            Some(('(', _)) => {
                self.inside(at, '(', ')', "$(")?;
                Dollar::Else
            }
            Some(('{', start)) => {
                let text = self.inside(at, '{', '}', "${")?;
                expand::braces(&text, start + 1)
            }
            Some((letter, _)) if is_of_name(letter) && !letter.is_ascii_digit() => {
                let mut name = String::new();
                while let Some((letter, _)) = self.peek(0).filter(|(letter, _)| is_of_name(*letter)) {
                    name.push(letter);
                    self.next += 1;
                }
                Dollar::Name { name, default: None }
            }
            Some((letter, _)) if letter.is_ascii_digit() || "@*#?$!-".contains(letter) => {
                self.next += 1;
                Dollar::Else
            }
            _ => return Ok(Part::Plain { letters: vec![('$', at)], is_quoted }),
        };
        Ok(Part::Dollar { what, at, is_quoted })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(script: &str, expected: &[&[&str]]) {
        let found: Vec<Vec<String>> =
            commands(script).unwrap().iter().map(|words| words.iter().map(Word::text).collect()).collect();
        assert_eq!(found, expected, "{script}");
    }

    #[test]
    fn variables_arrays_and_sums_are_substituted() {
        check(
            "A=2\nB=$((A*4+1))\nD=$(((A + 1) * 2))\nrun --d $D --n $B --m ${C:-7} \\\n  --k \"${A}x\"",
            &[&["run", "--d", "6", "--n", "9", "--m", "7", "--k", "2x"]],
        );
        check(
            "L=(--a 1 # why\n --b 2)\nL+=(--c)\nrun ${L[@]} \"${L[@]}\"",
            &[&["run", "--a", "1", "--b", "2", "--c", "--a", "1", "--b", "2", "--c"]],
        );
        check(
            "O=\"--a 1 \\\n --b 2\"\nO+=' --c 3'\nexport X=1; python x.py $O >log 2>&1 &",
            &[&["python", "x.py", "--a", "1", "--b", "2", "--c", "3"]],
        );
    }

    #[test]
    fn what_a_shell_alone_knows_is_marked_and_conditions_are_not_followed() {
        check(
            "A=1\nif [ -z $1 ]; then A=2; fi\nrun $A $(nproc) $1",
            &[&["[", "-z", "\u{fffc}", "]"], &["run", "1", "\u{fffc}", "\u{fffc}"]],
        );
        check("cat <<EOF\nrun --no\nEOF\nrun --yes", &[&["cat"], &["run", "--yes"]]);
    }

    #[test]
    fn a_value_keeps_the_place_where_it_was_written() {
        let script = "TP=8\nrun --tp $TP";
        let words = commands(script).unwrap().remove(0);
        assert_eq!(&script[words[2].at()], "8");
        assert_eq!(&script[words[1].at()], "--tp");
    }

    #[test]
    fn a_loop_over_known_words_is_followed_for_its_first_one() {
        let script = "C=(\"4,1,8\" \"2,2,8\")\nX=0\nfor c in \"${C[@]}\"; do\n  IFS=',' read -r A B R <<< \"$c\"\n  X=\"--a $A --b $B\"\n  run $X $R\ndone\nrun $X $c";
        check(
            script,
            &[&["read", "-r", "A", "B", "R"], &["run", "--a", "4", "--b", "1", "8"], &["run", "0", "\u{fffc}"]],
        );
        let (_, loops) = commands_and_loops(script).unwrap();
        let [one] = &loops[..] else { panic!("{loops:?}") };
        assert_eq!((one.name.as_str(), one.first.text().as_str(), one.n_words), ("c", "4,1,8", 2));
        assert_eq!(one.commands, 0..2);
        // Neither under a condition, nor over words that a shell alone knows.
        check(
            "if x; then for a in 1 2; do B=3; run $B; done; fi",
            &[&["x"], &["a", "in", "1", "2"], &["run", "\u{fffc}"]],
        );
        check("for a in $(seq 3); do run $a; done", &[&["a", "in", "\u{fffc}"], &["run", "\u{fffc}"]]);
        check("run --a 1 <<< text --b", &[&["run", "--a", "1", "--b"]]);
        // Nothing is added up again and again.
        let long = "A=xxxxxxxx\n".to_owned() + &"A=$A$A\n".repeat(6) + &"for a in b; do A=$A$A; done\n".repeat(200);
        assert!(commands(&long).is_ok());
    }

    #[test]
    fn text_that_doubles_itself_is_refused() {
        let script = "A=xxxxxxxx\n".to_owned() + &"A=$A$A\n".repeat(40);
        assert_eq!(commands(&script), Err(Unreadable::Long));
        assert_eq!(commands("run 'x"), Err(Unreadable::Open { what: "'", at: 4 }));
        assert!(commands(&"${".repeat(100_000)).is_err());
    }
}
