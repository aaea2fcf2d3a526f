//! The part of YAML in which people write flags: keys with words, nested by indentation, and lists of words.
//!
//! Every value is the text behind its key, without quotes. It goes on over lines that lie deeper than its key and are no keys themselves, or begins there, and
//! over the lines of its quotes or brackets. Behind `|` or `>` it is a text of deeper lines, folded as YAML's specification says (`texts.rs`). What an anchor
//! names is put in where its alias stands (`*name`, `<<: *name`). A file in braces, as JSON is, has its keys too; `unfolded` also gives those of values in braces
//! (`flow.rs`). Tags and several documents are not read. Positions are bytes of the file.

mod flow;
mod open;
mod texts;

use std::collections::BTreeSet;
use std::ops::Range;

use input::diagnostic::{Code, Finding};

pub(crate) use flow::unfolded;
use open::Open;

/// Keys inside keys.
const DEPTH_MAX: usize = 32;

/// A value and the keys that lead to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Keys from the outermost on; items of a list have the key `-`.
    pub path: Vec<String>,
    /// Text of the value; empty where keys follow.
    pub value: String,
    /// Bytes of key and value.
    pub at: Range<usize>,
    /// Whether an item of a list begins with it.
    pub begins_item: bool,
    /// Whether its value is neither in quotes nor a text of deeper lines.
    pub(crate) is_plain: bool,
}

impl Entry {
    /// Its own key.
    pub fn key(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }

    /// The same without its outermost key.
    pub fn inner(&self) -> Self {
        Self { path: self.path[1..].to_vec(), ..self.clone() }
    }
}

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A line is no key with a value.
    #[error("`{line}` is no `key: value`")]
    Line {
        /// The line.
        line: String,
        /// Where.
        at: Range<usize>,
    },
    /// Keys lie too deep inside each other.
    #[error("keys lie more than {DEPTH_MAX} deep")]
    Deep {
        /// Where.
        at: Range<usize>,
    },
}

impl Unreadable {
    /// Where.
    pub fn at(&self) -> Range<usize> {
        match self {
            Self::Line { at, .. } | Self::Deep { at } => at.clone(),
        }
    }
}

impl From<Unreadable> for Finding {
    fn from(why: Unreadable) -> Self {
        Self::error(Code::UnreadableScript, Some(why.at()), format!("the file cannot be read: {why}"))
    }
}

/// Every key of a file, in order.
///
/// # Errors
/// The first line that is none.
pub fn entries(text: &str) -> Result<Vec<Entry>, Unreadable> {
    let mut lines = Lines::default();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        lines.take(line, start)?;
        start += line.len();
    }
    lines.end();
    let Lines { entries, anchors, .. } = lines;
    Ok(if anchors.is_empty() { entries } else { Anchored { entries: &entries, anchors: &anchors }.resolved() })
}

/// Lines that were read so far.
#[derive(Default)]
struct Lines {
    entries: Vec<Entry>,
    /// Keys that are open, with their indentation.
    keys: Vec<(usize, String)>,
    /// Indentation of the last key.
    last: usize,
    /// What goes on in the next line of the last value.
    open: Open,
    /// Names of anchors with the entries that they stand at.
    anchors: Vec<(String, usize)>,
    /// Whether the dash of an item stood alone in the line before.
    has_dash: bool,
    /// Whether the last value may go on.
    goes_on: bool,
}

impl Lines {
    fn take(&mut self, line: &str, from: usize) -> Result<(), Unreadable> {
        if let Some(entry) = self.entries.last_mut()
            && self.open.take(&mut entry.value, line)
        {
            if !line.trim().is_empty() {
                entry.at.end = from + line.trim_end().len();
            }
            return Ok(());
        }
        let bare = without_comment(line).trim_end();
        let body = bare.trim_start();
        if body.is_empty() || body.starts_with("---") || body.starts_with("...") {
            return Ok(());
        }
        let indentation = bare.len() - body.len();
        let at = from + indentation..from + bare.len();
        let is_word = key_and_value(body).is_none() && body != "-" && indentation > self.last;
        if is_word && self.has_dash {
            return self.key(&format!("- {body}"), self.last, at);
        }
        let goes_on = is_word && self.goes_on && !self.open.is_text();
        if let Some(entry) = self.entries.last_mut().filter(|_| goes_on) {
            if entry.value.is_empty() {
                // Its value begins behind the line of its key, so no keys lie in it.
                self.keys.pop();
            } else {
                entry.value.push(' ');
            }
            entry.value.push_str(body);
            entry.at.end = at.end;
            self.open = Open::of(&entry.value, indentation);
            return Ok(());
        }
        self.key(body, indentation, at)
    }

    /// Takes a line with a key, or an item of a list.
    fn key(&mut self, body: &str, indentation: usize, at: Range<usize>) -> Result<(), Unreadable> {
        self.end();
        self.last = indentation;
        let begins_item = std::mem::take(&mut self.has_dash) || body.starts_with("- ");
        let (indentation, body) = opened_items(indentation, body, &mut self.keys);
        if body.is_empty() {
            self.has_dash = true;
            return Ok(());
        }
        let (key, value) =
            key_and_value(body).ok_or_else(|| Unreadable::Line { line: shortened(body), at: at.clone() })?;
        while self.keys.last().is_some_and(|(outer, _)| *outer >= indentation) {
            self.keys.pop();
        }
        if self.keys.len() >= DEPTH_MAX {
            return Err(Unreadable::Deep { at });
        }
        let (anchor, value) = anchored(value);
        self.anchors.extend(anchor.map(|name| (name.to_owned(), self.entries.len())));
        let key = unquoted(key);
        let path = self.keys.iter().map(|(_, key)| key.clone()).chain([key.clone()]).collect();
        if value.is_empty() {
            self.keys.push((indentation, key));
        }
        self.open = Open::of(value, indentation - usize::from(body.starts_with("- ")));
        self.goes_on = true;
        let value = if self.open.is_text() { String::new() } else { value.to_owned() };
        self.entries.push(Entry { path, value, at, begins_item, is_plain: false });
        Ok(())
    }

    /// Ends the last value: texts have their lines, others lose their quotes.
    fn end(&mut self) {
        let open = std::mem::take(&mut self.open);
        let goes_on = std::mem::take(&mut self.goes_on);
        let Some(entry) = self.entries.last_mut().filter(|_| goes_on) else { return };
        if let Some(text) = open.text() {
            entry.value = text;
        } else {
            entry.is_plain = !entry.value.starts_with(['"', '\'']);
            entry.value = unquoted(&entry.value);
        }
    }
}

/// The name of an anchor in front of a value, and the value.
fn anchored(value: &str) -> (Option<&str>, &str) {
    let is_of_name = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
    let Some(rest) = value.strip_prefix('&') else { return (None, value) };
    let (name, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if name.is_empty() || !name.chars().all(is_of_name) { (None, value) } else { (Some(name), behind.trim()) }
}

/// Keys that aliases may put in, all of them together.
const COPIED_MAX: usize = 10_000;
/// Aliases of a file; more stay as they are.
const ALIASES_MAX: usize = 500;

/// Entries with the anchors among them, by their positions.
struct Anchored<'a> {
    entries: &'a [Entry],
    anchors: &'a [(String, usize)],
}

impl Anchored<'_> {
    /// The entries with what aliases stand for.
    fn resolved(&self) -> Vec<Entry> {
        let mut out = Vec::with_capacity(self.entries.len());
        let (mut left, mut n_aliases) = (COPIED_MAX, 0);
        for entry in self.entries {
            let known = aliases(entry).filter(|names| names.iter().all(|name| self.first_of(name).is_some()));
            let Some(names) = known.filter(|_| n_aliases < ALIASES_MAX) else {
                out.push(entry.clone());
                continue;
            };
            n_aliases += 1;
            names.iter().for_each(|name| self.copy(name, entry, &mut left, &mut out));
        }
        out
    }

    /// The entry that the last anchor of a name stands at.
    fn first_of(&self, name: &str) -> Option<usize> {
        self.anchors.iter().rev().find(|(known, _)| known == name).map(|(_, first)| *first)
    }

    /// Puts in what an anchor stands for. Keys that a map has itself count before those that are merged into it.
    fn copy(&self, name: &str, alias: &Entry, left: &mut usize, out: &mut Vec<Entry>) {
        let Some(first) = self.first_of(name) else { return };
        let is_merge = alias.key() == "<<";
        let path = &alias.path[..alias.path.len() - usize::from(is_merge)];
        let root = &self.entries[first].path;
        let own =
            self.entries.iter().filter(|entry| entry.path.len() == path.len() + 1 && entry.path.starts_with(path));
        let own: BTreeSet<&str> = own.map(Entry::key).filter(|_| is_merge).collect();
        let tree = self.entries[first..].iter().take_while(|entry| entry.path.starts_with(root));
        for entry in tree.filter(|entry| !is_merge || entry.path.len() > root.len()) {
            let inner = &entry.path[root.len()..];
            let is_own = inner.first().is_some_and(|key| own.contains(key.as_str()));
            if is_own || aliases(entry).is_some() || *left == 0 {
                continue;
            }
            *left -= 1;
            out.push(Entry { path: [path, inner].concat(), at: alias.at.clone(), ..entry.clone() });
        }
    }
}

/// Names of the anchors that a value stands for.
fn aliases(entry: &Entry) -> Option<Vec<String>> {
    let words = entry.value.trim_matches(['[', ']']).split(',').map(str::trim);
    let names: Option<Vec<String>> = words.map(|word| Some(word.strip_prefix('*')?.to_owned())).collect();
    names.filter(|names| !names.is_empty())
}

/// The line behind the marks of list items, which count as indentation.
fn opened_items<'a>(indentation: usize, body: &'a str, open: &mut Vec<(usize, String)>) -> (usize, &'a str) {
    let (mut indentation, mut body) = (indentation, body);
    while let Some(rest) = body.strip_prefix("- ").or_else(|| (body == "-").then_some("")) {
        while open.last().is_some_and(|(outer, key)| *outer > indentation || (*outer == indentation && key == "-")) {
            open.pop();
        }
        if rest.is_empty() {
            open.push((indentation, "-".to_owned()));
            return (indentation, rest);
        }
        if rest.trim_start().starts_with(['{', '[']) || key_and_value(rest).is_none() {
            // An item that is a word or keys in braces: a key without a name holds it.
            return (indentation + 1, body);
        }
        if open.len() < DEPTH_MAX {
            open.push((indentation, "-".to_owned()));
        }
        let inner = rest.trim_start();
        indentation += body.len() - inner.len();
        body = inner;
    }
    (indentation, body)
}

/// `key: value`, `key:`, or an item of a list, whose key is `-`.
fn key_and_value(body: &str) -> Option<(&str, &str)> {
    if let Some(item) = body.strip_prefix("- ") {
        return Some(("-", item.trim()));
    }
    let is_quoted = body.starts_with('"') || body.starts_with('\'');
    let from = if is_quoted { closing(body)? + 1 } else { 0 };
    match body.get(from..)?.find(": ") {
        Some(at) => Some((body[..from + at].trim(), body[from + at + 2..].trim())),
        None => Some((body.strip_suffix(':')?.trim(), "")),
    }
}

/// A line without the comment behind it.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (at, letter) in line.char_indices() {
        match quote {
            Some(open) if letter == open => quote = None,
            Some(_) => {}
            None if letter == '#' && before.is_whitespace() => return &line[..at],
            None if (letter == '"' || letter == '\'') && !before.is_alphanumeric() => quote = Some(letter),
            None => {}
        }
        before = letter;
    }
    line
}

/// Where the quote that a text begins with ends. Between double quotes a backslash goes with the letter behind it, of single ones two are one.
fn closing(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    let mut is_escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        let is_escape = if quote == '"' { letter == '\\' } else { letter == '\'' && text[at + 1..].starts_with('\'') };
        if letter == quote && !is_escaped && !is_escape {
            return Some(at);
        }
        is_escaped = is_escape && !is_escaped;
    }
    None
}

/// A text without its quotes; escapes between double quotes are those of JSON.
fn unquoted(text: &str) -> String {
    let of = |quote: char| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    match of('"') {
        Some(inner) if inner.contains('\\') => serde_json::from_str(text).unwrap_or_else(|_| inner.to_owned()),
        Some(inner) => inner.to_owned(),
        None => of('\'').map_or_else(|| text.to_owned(), |inner| inner.replace("''", "'")),
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Words of an item of a list, or of a list in one line.
pub(crate) fn listed(entry: &Entry) -> Vec<String> {
    let text = entry.value.as_str();
    if entry.key() == "-" {
        return if text.is_empty() { Vec::new() } else { vec![text.to_owned()] };
    }
    let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else { return Vec::new() };
    serde_json::from_str(text).unwrap_or_else(|_| items(inner).into_iter().map(|word| unquoted(word.trim())).collect())
}

/// Keys and values of an item in braces: `{name: A, value: "1"}`.
pub(crate) fn in_braces(text: &str) -> Vec<(String, String)> {
    let Some(inner) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else { return Vec::new() };
    let pairs = items(inner).into_iter().filter_map(|item| key_and_value(item.trim()));
    pairs.map(|(key, value)| (unquoted(key), unquoted(value))).collect()
}

/// Items of a list in one line: commas between quotes are part of a word.
fn items(inner: &str) -> Vec<&str> {
    let (mut items, mut start, mut quote) = (Vec::new(), 0, None);
    for (at, letter) in inner.char_indices() {
        let before = inner[start..at].trim_end();
        let begins_word = before.is_empty() || before.ends_with(':');
        match quote {
            Some(open) if letter == open => quote = None,
            None if begins_word && (letter == '"' || letter == '\'') => quote = Some(letter),
            None if letter == ',' => {
                items.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = &inner[start..];
    // A comma may stand behind the last item.
    if !last.trim().is_empty() {
        items.push(last);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds that entries of a text have such paths and values.
    pub(super) fn are(found: &[Entry], expected: &[(&str, &str)], text: &str) {
        let paths: Vec<String> = found.iter().map(|entry| entry.path.join("/")).collect();
        let found: Vec<(&str, &str)> =
            paths.iter().zip(found).map(|(path, entry)| (path.as_str(), entry.value.as_str())).collect();
        assert_eq!(found, expected, "{text}");
    }

    fn check(text: &str, expected: &[(&str, &str)]) {
        are(&entries(text).unwrap(), expected, text);
    }

    #[test]
    fn keys_nest_by_indentation() {
        check("A:\n  --x: 1 # why\n  --y: 'a b'\nB: c\n", &[("A", ""), ("A/--x", "1"), ("A/--y", "a b"), ("B", "c")]);
        check("a:\n  b:\n    c: 1\n  d: 2", &[("a", ""), ("a/b", ""), ("a/b/c", "1"), ("a/d", "2")]);
        check("s:\n- name: x\n  n: 2\n- name: y", &[("s", ""), ("s/-/name", "x"), ("s/-/n", "2"), ("s/-/name", "y")]);
        check("a:\n- \"{\\\"k\\\": \\\"v\\\"}\"\n- 'b: c'", &[("a", ""), ("a/-", "{\"k\": \"v\"}"), ("a/-", "b: c")]);
        check("l:\n  - a\n  - b\nm: [1, 2]", &[("l", ""), ("l/-", "a"), ("l/-", "b"), ("m", "[1, 2]")]);
    }

    #[test]
    fn lists_in_brackets_keep_quotes_and_go_on_over_lines() {
        let listed = |text: &str| listed(&entries(text).expect("YAML")[0]);
        assert_eq!(listed("a: [x, '{\"m\":\"mtp\",\"n\":2}', \"it's\"]"), ["x", "{\"m\":\"mtp\",\"n\":2}", "it's"]);
        assert_eq!(listed("a: [\n  \"one two\",\n  three,\n]\nb: 1\n"), ["one two", "three"]);
        assert_eq!(listed("a: []"), [""; 0]);
        check("a: [0]*3+[1]*5\nb: 1", &[("a", "[0]*3+[1]*5"), ("b", "1")]);
    }

    #[test]
    fn items_in_braces_are_keys_and_values() {
        check(
            "a:\n- {name: X, value: \"1, 2\"}\nb: 1",
            &[("a", ""), ("a/-", "{name: X, value: \"1, 2\"}"), ("b", "1")],
        );
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(in_braces("{name: X, value: \"1, 2\"}"), [pair("name", "X"), pair("value", "1, 2")]);
        assert_eq!(in_braces("name: X"), []);
    }

    #[test]
    fn a_value_goes_on_over_deeper_lines_that_are_no_keys() {
        check("a:\n  b: ${x.y,\n    null}\n  c: 1", &[("a", ""), ("a/b", "${x.y, null}"), ("a/c", "1")]);
        check("a: 'one\n  two' # why\nb: 1", &[("a", "one two"), ("b", "1")]);
        check("a:\n  b:\n    true # why\n  c: 1\nd: 2", &[("a", ""), ("a/b", "true"), ("a/c", "1"), ("d", "2")]);
    }

    #[test]
    fn a_text_is_the_deeper_lines_behind_its_mark() {
        let text = "a: |\n  cd /x # no: remark\n\n  'b: 1'\nl:\n  - >-\n    run\n    on\n  - c\nd: 1";
        check(text, &[("a", "cd /x # no: remark\n\n'b: 1'"), ("l", ""), ("l/-", "run on"), ("l/-", "c"), ("d", "1")]);
        check("a:\n  b: |\nc: 1", &[("a", ""), ("a/b", ""), ("c", "1")]);
    }

    #[test]
    fn an_alias_is_what_its_anchor_names() {
        check(
            "x: &one\n  a: 1\n  b: [2]\ns:\n  t:\n    <<: *one\n    a: 3\nu: &two 4\nv: *two\nw: *none",
            &[
                ("x", ""),
                ("x/a", "1"),
                ("x/b", "[2]"),
                ("s", ""),
                ("s/t", ""),
                ("s/t/b", "[2]"),
                ("s/t/a", "3"),
                ("u", "4"),
                ("v", "4"),
                ("w", "*none"),
            ],
        );
        let bomb: String = (0..60).map(|n| format!("k{n}: &a{n}\n  x: *a{}\n  y: *a{}\n", n - 1, n - 1)).collect();
        assert!(entries(&bomb).is_ok_and(|found| found.len() < 20_000));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        assert!(matches!(entries("a: 1\nnonsense\n"), Err(Unreadable::Line { .. })));
        let deep: String = (0..100).map(|n| format!("{}k:\n", " ".repeat(n))).collect();
        assert!(matches!(entries(&deep), Err(Unreadable::Deep { .. })));
    }
}
