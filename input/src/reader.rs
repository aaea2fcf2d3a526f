//! Reads keys of TOML sections, remembers which were asked for, and turns what is wrong into findings.

mod asked;
mod inside;
mod laid;
mod said;
pub mod seen;
mod ways;

use std::ops::Range;

use toml_span::Value;
use toml_span::value::{Table, ValueInner};

use crate::borrowed;
use crate::diagnostic::{Code, Finding};
pub use asked::{items, number};
pub use laid::path;
use laid::{forget_places, insert, json};
pub use said::unknown;
use seen::Seen;

/// What a key of words expects.
const A_STRING: &str = "a string";

/// Position that `--set` values carry; no file is that long.
const FROM_COMMAND_LINE: usize = usize::MAX;

/// Longest name: with an ending it is still a file's name everywhere.
const NAME_BYTES_MAX: usize = 100;

/// A file being read.
pub struct Reader<'f> {
    root: Table<'static>,
    findings: &'f mut Vec<Finding>,
}

/// Keys of one section being read.
pub struct Section<'f> {
    name: String,
    at: Option<Range<usize>>,
    table: Table<'static>,
    asked: Vec<&'static str>,
    /// Keys that were there when they were asked for.
    given: Vec<&'static str>,
    findings: &'f mut Vec<Finding>,
}

/// Where a value stands.
pub type Place = Option<Range<usize>>;

fn place(span: toml_span::Span) -> Place {
    (span.start != FROM_COMMAND_LINE).then_some(span.start..span.end)
}

/// A key and one of the values that it lists.
pub type Listed = (&'static str, Value<'static>);

fn listed((key, value): &Listed) -> Listed {
    (key, copied(value))
}

/// A value again.
fn copied(value: &Value<'static>) -> Value<'static> {
    let inner = match value.as_ref() {
        ValueInner::String(text) => ValueInner::String(text.clone()),
        ValueInner::Integer(number) => ValueInner::Integer(*number),
        ValueInner::Float(number) => ValueInner::Float(*number),
        ValueInner::Boolean(flag) => ValueInner::Boolean(*flag),
        ValueInner::Array(items) => ValueInner::Array(items.iter().map(copied).collect()),
        ValueInner::Table(table) => {
            ValueInner::Table(table.iter().map(|(key, value)| (key.clone(), copied(value))).collect())
        }
    };
    Value::with_span(inner, value.span)
}

/// Makes a value independent of the text it was read from.
fn owned(mut value: Value<'_>) -> Value<'static> {
    let span = value.span;
    let inner = match value.take() {
        ValueInner::String(text) => ValueInner::String(text.into_owned().into()),
        ValueInner::Integer(number) => ValueInner::Integer(number),
        ValueInner::Float(number) => ValueInner::Float(number),
        ValueInner::Boolean(flag) => ValueInner::Boolean(flag),
        ValueInner::Array(items) => ValueInner::Array(items.into_iter().map(owned).collect()),
        ValueInner::Table(table) => ValueInner::Table(
            table
                .into_iter()
                .map(|(key, value)| {
                    (toml_span::value::Key { name: key.name.into_owned().into(), span: key.span }, owned(value))
                })
                .collect(),
        ),
    };
    Value::with_span(inner, span)
}

impl<'f> Reader<'f> {
    /// A reader of a parsed file.
    pub fn new(value: Value<'_>, findings: &'f mut Vec<Finding>) -> Self {
        let root = match owned(value).take() {
            ValueInner::Table(table) => table,
            _ => Table::new(),
        };
        Self { root, findings }
    }

    /// A reader of nothing, for checks of what is put together elsewhere.
    pub fn empty(findings: &'f mut Vec<Finding>) -> Self {
        Self { root: Table::new(), findings }
    }

    /// Lays `section.key=value` over the file.
    pub fn lay_over(&mut self, set: &[String]) {
        for item in set {
            let placed = laid::read(item).and_then(|(path, mut value)| {
                forget_places(&mut value);
                if insert(&mut self.root, &path, value) { Ok(()) } else { Err(laid::no_table(&path.join("."))) }
            });
            self.findings.extend(placed.err());
        }
    }

    /// What was read and not taken yet, as JSON.
    pub fn json(&self) -> serde_json::Value {
        self.root.iter().map(|(key, value)| (key.name.to_string(), json(value.as_ref()))).collect()
    }

    /// The text of a key before the first section, left where it is.
    pub fn peek(&self, key: &str) -> Option<&str> {
        self.root.get(key)?.as_str()
    }

    /// A key of a section or of a table in it, as `trace.sessions`, as it is written, and where; left where it is.
    pub fn peek_in(&self, section: &str, key: &str) -> Option<(String, Place)> {
        let (section, inside) = section.split_once('.').unwrap_or((section, ""));
        let inside = inside.split('.').filter(|name| !name.is_empty());
        let table = inside.fold(self.root.get(section), |table, name| table?.as_table()?.get(name));
        let value = table?.as_table()?.get(key)?;
        let text = match value.as_ref() {
            ValueInner::String(text) => format!("\"{text}\""),
            ValueInner::Integer(number) => number.to_string(),
            ValueInner::Float(number) => number.to_string(),
            ValueInner::Boolean(flag) => flag.to_string(),
            other => other.type_str().to_owned(),
        };
        Some((text, place(value.span)))
    }

    /// Tables inside a section, with their places; left where they are.
    pub fn tables_in(&self, section: &str) -> Vec<(String, Place)> {
        let Some(table) = self.root.get(section).and_then(Value::as_table) else { return Vec::new() };
        let tables = table.iter().filter(|(_, value)| value.as_table().is_some());
        tables.map(|(key, value)| (key.name.to_string(), place(value.span))).collect()
    }

    /// Keys of the tables of a list in a section, as `variant` of `policies`: the name of the table, the key, and where; left where they are.
    pub fn keys_of_list(&self, section: &str, list: &str) -> Vec<(String, String, Place)> {
        let found = self.root.get(section).and_then(|table| table.as_table()?.get(list)?.as_array());
        let mut keys = Vec::new();
        for table in found.into_iter().flatten().filter_map(Value::as_table) {
            let name = table.get("name").and_then(Value::as_str).unwrap_or(list);
            keys.extend(table.iter().map(|(key, value)| (name.to_owned(), key.name.to_string(), place(value.span))));
        }
        keys
    }

    /// Whether the file has a section, or a key before the first one, of that name.
    pub fn has(&self, name: &str) -> bool {
        self.root.contains_key(name)
    }

    /// A section, empty when the file has none.
    pub fn section(&mut self, name: &'static str) -> Section<'_> {
        let (at, table) = self.taken(name, &format!("a section `[{name}]`"));
        Section::new(name.to_owned(), at, table, self.findings)
    }

    /// The table of a name and where it stands; empty where there is none, or something else than what is expected.
    fn taken(&mut self, name: &str, expected: &str) -> (Place, Table<'static>) {
        let Some(mut value) = self.root.remove(name) else { return (None, Table::new()) };
        let at = place(value.span);
        match value.take() {
            ValueInner::Table(table) => (at, table),
            other => {
                let what = format!("`{name}` is {}, expected {expected}", other.type_str());
                self.findings.push(Finding::error(Code::NotASection, at.clone(), what));
                (at, Table::new())
            }
        }
    }

    /// Reads every table of a list of tables outside the sections as a section of its own.
    pub fn each_table(&mut self, name: &'static str, read: &mut dyn FnMut(Section<'_>)) {
        let mut table = Table::new();
        if let Some((key, value)) = self.root.remove_entry(name) {
            table.insert(key, value);
        }
        Section::new(String::new(), None, table, self.findings).each_table(name, read);
    }

    /// The keys before the first section.
    pub fn top(&mut self, sections: &[&'static str]) -> Section<'_> {
        let mut table = Table::new();
        let keys: Vec<String> = self.root.keys().map(|key| key.name.to_string()).collect();
        for key in keys.iter().filter(|key| !sections.contains(&key.as_str())) {
            if let Some((key, value)) = self.root.remove_entry(key.as_str()) {
                table.insert(key, value);
            }
        }
        let asked = sections.to_vec();
        Section { asked, ..Section::new(String::new(), None, table, self.findings) }
    }

    /// Errors so far.
    pub fn n_errors(&self) -> usize {
        crate::diagnostic::n_errors(self.findings)
    }
}

impl<'f> Section<'f> {
    /// A section of which nothing was asked yet.
    const fn new(name: String, at: Place, table: Table<'static>, findings: &'f mut Vec<Finding>) -> Self {
        Self { name, at, table, asked: Vec::new(), given: Vec::new(), findings }
    }
}

impl Section<'_> {
    /// Errors so far, those before the section included.
    pub fn n_errors(&self) -> usize {
        crate::diagnostic::n_errors(self.findings)
    }

    /// Where the section stands.
    pub fn at(&self) -> Place {
        self.at.clone()
    }

    /// A key with the path of its section.
    pub fn full(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    /// Whether the file or the command line has the section.
    pub fn is_given(&self) -> bool {
        self.at.is_some() || !self.table.is_empty()
    }

    /// Whether a key is there and was not taken yet.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Whether a key is there, was not taken yet, and is text.
    pub fn is_text(&self, key: &str) -> bool {
        self.note(key, seen::EITHER, String::new, String::new);
        self.table.get(key).is_some_and(|value| value.as_str().is_some())
    }

    /// Whether a key is there, was not taken yet, and is a list without anything.
    pub fn is_empty_list(&self, key: &str) -> bool {
        self.table.get(key).and_then(Value::as_array).is_some_and(Vec::is_empty)
    }

    /// Where a key stands that is there and was not taken yet.
    pub fn place(&self, key: &str) -> Option<Place> {
        self.table.get(key).map(place_of)
    }

    /// Warns of keys that are there and were not taken yet, where they change nothing; `needs` says what they would need.
    pub fn idle(&mut self, keys: &[&str], needs: &str) {
        for key in keys {
            if let Some(at) = self.place(key) {
                let what = format!("`{}` changes nothing", self.full(key));
                self.find(Finding::warning(Code::NoEffect, at, what).help(format!("it needs {needs}")));
            }
        }
    }

    /// Of keys that exclude each other, those that are there; one from the command line stands for those of the file.
    pub fn alternatives(&mut self, keys: &[&'static str]) -> Vec<&'static str> {
        self.asked.extend(keys);
        for key in keys {
            self.note(key, seen::EITHER, String::new, String::new);
        }
        let given: Vec<&'static str> = keys.iter().copied().filter(|key| self.has(key)).collect();
        let is_laid_over = |key: &&str| self.table.get(*key).is_some_and(|value| place(value.span).is_none());
        let laid_over: Vec<&'static str> = given.iter().copied().filter(is_laid_over).collect();
        if laid_over.is_empty() {
            return given;
        }
        for key in given.into_iter().filter(|key| !laid_over.contains(key)) {
            self.table.remove(key);
        }
        laid_over
    }

    /// Takes a key's value.
    pub fn take(&mut self, key: &'static str) -> Option<(ValueInner<'static>, Place)> {
        if !self.asked.contains(&key) {
            self.asked.push(key);
        }
        self.note(key, "value", String::new, String::new);
        let mut value = self.table.remove(key)?;
        self.given.push(key);
        let at = place(value.span);
        Some((value.take(), at))
    }

    /// Tells who watches what a key may be.
    fn note(&self, key: &str, what: &'static str, default: impl FnOnce() -> String, allowed: impl FnOnce() -> String) {
        seen::note(|| Seen { path: self.full(key), what, default: default(), allowed: allowed(), ..Seen::default() });
    }

    /// Takes a table of a key whole, as JSON, where it is one.
    pub fn json(&mut self, key: &'static str) -> Option<(String, Place)> {
        self.note(key, seen::EITHER, String::new, String::new);
        self.table.get(key)?.as_table()?;
        let (value, at) = self.take(key)?;
        Some((json(&value).to_string(), at))
    }

    fn wrong_type(&mut self, key: &str, found: &ValueInner<'_>, expected: &str, at: Place) {
        let what = format!("`{}` is {}, expected {expected}", self.full(key), described(found));
        let finding = Finding::error(Code::WrongType, at, what);
        self.find(match found {
            ValueInner::String(text) => borrowed::number(finding, text),
            ValueInner::Integer(number) if expected == A_STRING => {
                finding.label(format!("write it in quotes: \"{number}\""))
            }
            ValueInner::Float(number) if expected == A_STRING => {
                finding.label(format!("write it in quotes: \"{number}\""))
            }
            _ => finding,
        });
    }

    /// A whole number within a range.
    pub fn count(
        &mut self,
        key: &'static str,
        default: Option<u64>,
        range: std::ops::RangeInclusive<u64>,
    ) -> (u64, Place) {
        let shown = || default.map_or_else(|| "needed".to_owned(), |n| seen::listed(&n, &range));
        self.note(key, "whole number", shown, || format!("{} to {}", range.start(), range.end()));
        let Some((value, at)) = self.take(key) else {
            return (self.absent(key, default.map(|n| n.to_string()), default), None);
        };
        let ValueInner::Integer(number) = value else {
            self.wrong_type(key, &value, "a whole number", at.clone());
            return (default.unwrap_or(*range.start()), at);
        };
        match u64::try_from(number).ok().filter(|number| range.contains(number)) {
            Some(number) => (number, at),
            None => {
                let what = format!("`{}` is {number}", self.full(key));
                let allowed = format!("allowed are whole numbers from {} to {}", range.start(), range.end());
                self.find(Finding::error(Code::OutOfRange, at.clone(), what).label("out of range").help(allowed));
                (default.unwrap_or(*range.start()), at)
            }
        }
    }

    /// A number within a range.
    pub fn number(&mut self, key: &'static str, default: f64, range: std::ops::RangeInclusive<f64>) -> f64 {
        let listed = seen::listed(&default, &range);
        self.number_or(key, (default, || listed), range)
    }

    /// The same with the words that stand for its default where keys are listed.
    fn number_or(
        &mut self,
        key: &'static str,
        (default, shown): (f64, impl FnOnce() -> String),
        range: std::ops::RangeInclusive<f64>,
    ) -> f64 {
        self.note(key, "number", shown, || format!("{} to {}", range.start(), range.end()));
        let Some((value, at)) = self.take(key) else { return default };
        let number = match value {
            ValueInner::Integer(number) => number as f64,
            ValueInner::Float(number) => number,
            other => {
                self.wrong_type(key, &other, "a number", at);
                return default;
            }
        };
        if number.is_finite() && range.contains(&number) {
            return number;
        }
        let what = format!("`{}` is {number}", self.full(key));
        let allowed = format!("allowed are numbers from {} to {}", range.start(), range.end());
        self.find(Finding::error(Code::OutOfRange, at, what).label("out of range").help(allowed));
        default
    }

    /// A string.
    pub fn text(&mut self, key: &'static str) -> Option<(String, Place)> {
        self.note(key, "text", String::new, String::new);
        let (value, at) = self.take(key)?;
        match value {
            ValueInner::String(text) => Some((text.into_owned(), at)),
            other => {
                self.wrong_type(key, &other, A_STRING, at);
                None
            }
        }
    }

    /// `name`, which results and files show; a finding where there is none.
    pub fn name(&mut self) -> Option<String> {
        let Some((name, at)) = self.text("name") else {
            self.missing("name", "the name that results show");
            return None;
        };
        self.plain_name(&name, at);
        Some(name)
    }

    /// Refuses a name that cannot be part of a file's name.
    pub fn plain_name(&mut self, name: &str, at: Place) {
        let is_plain = |letter: char| !crate::diagnostic::is_hidden(letter) && !matches!(letter, '/' | '\\');
        if name.is_empty() || name.starts_with('.') || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) {
            let what = format!("`{}` is not a name that a file can have", self.full("name"));
            let help = format!(
                "allowed are 1 to {NAME_BYTES_MAX} bytes without `/`, `\\` and control characters, not starting with `.`"
            );
            self.find(Finding::error(Code::WrongName, at, what).help(help));
        }
    }

    /// A flag.
    pub fn flag(&mut self, key: &'static str, default: bool) -> bool {
        self.note(key, "true or false", || default.to_string(), String::new);
        match self.take(key) {
            None => default,
            Some((ValueInner::Boolean(flag), _)) => flag,
            Some((other, at)) => {
                self.wrong_type(key, &other, "true or false", at);
                default
            }
        }
    }

    /// One of the words, by its position.
    pub fn word(&mut self, key: &'static str, default: usize, words: &[&str]) -> usize {
        let shown = || words.get(default).map_or_else(String::new, |word| (*word).to_owned());
        self.note(key, "word", shown, || words.join(", "));
        let Some((found, at)) = self.text(key) else { return default };
        if let Some(index) = words.iter().position(|word| *word == found) {
            return index;
        }
        let what = format!("`{}` is `{found}`", self.full(key));
        let finding = unknown(Code::UnknownWord, what, &found, words.iter().copied(), at);
        self.find(borrowed::word(finding, &self.full(key), &found));
        default
    }

    fn absent<T: Default>(&mut self, key: &str, shown: Option<String>, default: Option<T>) -> T {
        if shown.is_none() {
            let at = self.at.clone();
            self.find(Finding::error(Code::MissingKey, at, format!("key `{}` is missing", self.full(key))));
        }
        default.unwrap_or_default()
    }

    /// Says that a key is needed; what is wrong with one that is there was said when it was read.
    pub fn missing(&mut self, key: &str, help: &str) {
        if self.given.contains(&key) {
            return;
        }
        let at = self.at.clone();
        let what = format!("key `{}` is missing", self.full(key));
        self.find(Finding::error(Code::MissingKey, at, what).help(help));
    }

    /// Reads every table of a list of tables as a section of its own.
    pub fn each_table(&mut self, key: &'static str, read: &mut dyn FnMut(Section<'_>)) {
        self.note(key, "list of tables", String::new, String::new);
        let Some((value, at)) = self.take(key) else { return };
        let name = self.full(key);
        let ValueInner::Array(tables) = value else {
            return self.wrong_type(key, &value, "a list of tables", at);
        };
        for mut table in tables {
            let at = place(table.span);
            let ValueInner::Table(table) = table.take() else {
                self.findings.push(Finding::error(
                    Code::WrongType,
                    at,
                    format!("`{name}` holds something that is no table"),
                ));
                continue;
            };
            read(Section::new(name.clone(), at, table, self.findings));
        }
    }

    /// A table inside the section as a section of its own.
    pub fn table(&mut self, key: &'static str) -> Option<Section<'_>> {
        self.note(key, "table", String::new, String::new);
        let (value, at) = self.take(key)?;
        let name = self.full(key);
        let ValueInner::Table(table) = value else {
            self.wrong_type(key, &value, "a table", at);
            return None;
        };
        Some(Section::new(name, at, table, self.findings))
    }

    /// Remaining keys, taken as they are.
    pub fn rest(&mut self) -> Table<'static> {
        self.note(seen::OTHERS, "value", String::new, String::new);
        std::mem::take(&mut self.table)
    }

    /// Reports keys that nobody asked for.
    pub fn finish(mut self) {
        for key in std::mem::take(&mut self.table).into_keys() {
            let what = format!("unknown key `{}`", self.full(&key.name));
            let asked = self.asked.clone();
            let meant = borrowed::meant(&key.name, &self.name, &asked);
            let finding = unknown(Code::UnknownKey, what, &key.name, asked, place(key.span));
            let is_own = meant.iter().any(|meant| *meant == self.full(&key.name));
            self.find(if let Some(explained) = borrowed::explained(&key.name, &self.name) {
                finding.label(explained)
            } else if meant.is_empty() {
                finding
            } else if is_own {
                finding.label("it says nothing beside the other keys of this section")
            } else {
                finding.label(format!("here it is `{}`", meant.join("` or `")))
            });
        }
    }
}

/// A count that a range keeps below 2^32.
pub fn small(n: u64) -> u32 {
    u32::try_from(n).expect("ranges keep counts below 2^32")
}

/// A list of whole numbers from 1 to `most`, or the default; never empty, so that whoever reads on has a number.
pub fn counts(section: &mut Section<'_>, key: &'static str, default: &[u32], most: u32) -> Vec<u32> {
    section.note(key, "list of whole numbers", String::new, || format!("1 to {most}"));
    let Some((value, at)) = section.take(key) else { return default.to_vec() };
    let allowed = format!("allowed is a list of whole numbers from 1 to {most}");
    let ValueInner::Array(items) = value else {
        section.find(Finding::error(Code::WrongType, at, format!("`{key}` is not a list")).help(allowed));
        return default.to_vec();
    };
    let mut found = Vec::with_capacity(items.len());
    for item in &items {
        let number = item.as_integer().and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=most).contains(n));
        match number {
            Some(number) => found.push(number),
            None => {
                let what = format!("`{key}` holds something out of range");
                section.find(Finding::error(Code::OutOfRange, place_of(item), what).help(allowed.clone()));
            }
        }
    }
    if items.is_empty() {
        section.find(Finding::error(Code::OutOfRange, at, format!("`{key}` is empty")).help(allowed));
    }
    if found.is_empty() {
        return default.to_vec();
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// A value in words; a number with its point, which is what is wrong where a whole one is expected.
fn described(value: &ValueInner<'_>) -> String {
    match value {
        ValueInner::String(text) => format!("the string `{text}`"),
        ValueInner::Integer(number) => format!("the number {number}"),
        ValueInner::Float(number) => format!("the number {number:?}"),
        ValueInner::Boolean(flag) => format!("{flag}"),
        ValueInner::Array(_) => "a list".to_owned(),
        ValueInner::Table(_) => "a table".to_owned(),
    }
}

/// Place of a value inside a list.
pub fn place_of(value: &Value<'_>) -> Place {
    place(value.span)
}
