//! The page of all keys of scenarios: what readers ask for, with the meanings of `keys.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::reader::seen::Seen;

/// Meanings by section and key.
const MEANINGS: &str = include_str!("keys.toml");
/// What a key counts, by the end of its name; the longer ends first.
const UNITS: [(&str, &str); 16] = [
    ("_gb_per_s", "GB/s"),
    ("_per_s", "per second"),
    ("_usd_per_hour", "$ per hour"),
    ("_usd", "$"),
    ("_gib", "GiB"),
    ("_bytes", "bytes"),
    ("_tokens", "tokens"),
    ("_ratio", "share"),
    ("_permille", "thousandths"),
    ("_ms", "ms"),
    ("_us", "µs"),
    ("_ns", "ns"),
    ("_s", "s"),
    ("_hours", "hours"),
    ("_layers", "layers"),
    ("tokens", "tokens"),
];

/// One key over all scenarios that were read.
#[derive(Default)]
struct Key {
    what: &'static str,
    defaults: BTreeSet<String>,
    allowed: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

/// Keys by path.
#[derive(Default)]
pub struct Keys(BTreeMap<String, Key>);

/// The more exact of two names of a type: a reader may ask for a value first and look closer afterwards.
fn more_exact(one: &'static str, other: &'static str) -> &'static str {
    let rank = |what: &str| ["", "value", "text"].iter().position(|known| *known == what).unwrap_or(3);
    if rank(other) > rank(one) { other } else { one }
}

impl Keys {
    /// Adds what the reader of a kind asked for.
    pub fn add(&mut self, kind: &str, seen: Vec<Seen>) {
        for seen in seen {
            let key = self.0.entry(seen.path).or_default();
            key.what = more_exact(key.what, seen.what);
            key.defaults.extend(Some(seen.default).filter(|text| !text.is_empty()));
            key.allowed.extend(Some(seen.allowed).filter(|text| !text.is_empty()));
            key.kinds.insert(kind.to_owned());
        }
    }

    /// Keys that have no meaning in the table, and meanings of keys that nobody asks for.
    #[must_use]
    pub fn gaps(&self) -> Vec<String> {
        let meanings = meanings();
        let unexplained = self.0.keys().filter(|path| meaning(&meanings, path).is_none()).cloned();
        let split = |path: &'_ str| {
            path.rsplit_once('.').map_or((String::new(), path.to_owned()), |(s, k)| (s.to_owned(), k.to_owned()))
        };
        let asked: BTreeSet<(String, String)> = self.0.keys().map(|path| split(path)).collect();
        let is_asked = |section: &str, key: &str| {
            asked.iter().any(|(of, name)| (section == "any" || of == section) && name == key)
        };
        let mut gaps: Vec<String> = unexplained.collect();
        for (section, keys) in &meanings {
            let unasked = keys.keys().filter(|key| !is_asked(section, key));
            gaps.extend(unasked.map(|key| format!("nobody asks for {key} of {section}")));
        }
        gaps
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> String {
        let meanings = meanings();
        let mut out = "# Every key of a scenario\n\nMade by `skrull-sim explain --keys` from what the readers ask for. Do not edit it: meanings stand in \
                       `input/src/keys.toml`.\nA default in several forms depends on the kind or on other keys. `-` has no default: the key may be left out, or its section says what\nis needed. Lists of tables are written `[[section.list]]`; their keys stand under the list's name.\n"
            .to_owned();
        let section_of = |path: &str| path.rsplit_once('.').map_or(String::new(), |(section, _)| section.to_owned());
        let mut sections: BTreeMap<String, Vec<(&String, &Key)>> = BTreeMap::new();
        for (path, key) in &self.0 {
            sections.entry(section_of(path)).or_default().push((path, key));
        }
        for (section, keys) in sections {
            let heading =
                if section.is_empty() { "Before the first section".to_owned() } else { format!("`{section}`") };
            let _ = write!(
                out,
                "\n## {heading}\n\n| key | type | unit | default | allowed | kinds | meaning |\n|---|---|---|---|---|---|---|\n"
            );
            for (path, key) in keys {
                row(&mut out, path, key, meaning(&meanings, path).unwrap_or(""));
            }
        }
        out
    }
}

fn row(out: &mut String, path: &str, key: &Key, meaning: &str) {
    let name = path.rsplit('.').next().unwrap_or(path);
    let is_number = ["number", "whole number", "value"].contains(&key.what);
    let unit = UNITS.iter().find(|(end, _)| is_number && name.ends_with(end)).map_or("", |(_, unit)| unit);
    let shown = |texts: &BTreeSet<String>, n: usize| match texts.len() {
        0 => "-".to_owned(),
        len if len > n => "depends".to_owned(),
        _ => texts.iter().map(|text| cell(text)).collect::<Vec<_>>().join("; or "),
    };
    let kinds: Vec<&str> = key.kinds.iter().map(String::as_str).collect();
    let _ = writeln!(
        out,
        "| `{name}` | {} | {unit} | {} | {} | {} | {} |",
        key.what,
        shown(&key.defaults, 3),
        shown(&key.allowed, 2),
        kinds.join(", "),
        cell(meaning)
    );
}

/// A text that stays in its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

/// Meanings by section and key; `any` holds what a key means wherever it stands.
type Meanings = BTreeMap<String, BTreeMap<String, String>>;

fn meanings() -> Meanings {
    toml::from_str(MEANINGS).expect("keys.toml is a table of tables of texts")
}

/// What a key means in its section, else anywhere.
fn meaning<'m>(meanings: &'m Meanings, path: &str) -> Option<&'m str> {
    let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
    let of = |section: &str| meanings.get(section)?.get(key).map(String::as_str);
    of(section).or_else(|| of("any"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_exact_type_wins_and_units_follow_the_name() {
        let seen =
            |what| Seen { path: "engine.window_ms".to_owned(), what, default: "5".to_owned(), ..Seen::default() };
        let mut keys = Keys::default();
        keys.add("serving", vec![seen("number"), seen("value")]);
        assert!(keys.page().contains("| `window_ms` | number | ms | 5 | - | serving |"), "{}", keys.page());
    }
}
