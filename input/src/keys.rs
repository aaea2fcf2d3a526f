//! The page of all keys of scenarios: what readers ask for, with the meanings of `keys.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::reader::seen::{EITHER, LISTED, NAME, OTHERS, Seen};

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

/// What readers said of a key.
#[derive(Clone, Default)]
pub(crate) struct Key {
    /// Types that it was read as.
    pub(crate) whats: BTreeSet<&'static str>,
    /// What it is where it is left out.
    pub(crate) defaults: BTreeSet<String>,
    /// Ranges, or lists of words.
    pub(crate) allowed: BTreeSet<String>,
    /// Names that it may be.
    pub(crate) names: BTreeSet<String>,
    /// How often it was read as a text, how often one of those was a word, and how often names were offered for one.
    n_texts: usize,
    n_words: usize,
    n_offers: usize,
    /// How often its value was taken, and how often by a reader that said its type.
    n_taken: usize,
    n_typed: usize,
    /// In how many scenarios it was asked for.
    pub(crate) n_scenarios: usize,
    /// What it means, where a reader had the words.
    pub(crate) about: &'static str,
}

impl Key {
    fn add(&mut self, seen: &Seen) {
        if seen.what == NAME {
            self.names.extend(seen.allowed.split(", ").map(str::to_owned));
            self.n_offers += 1;
            return;
        }
        self.n_texts += usize::from(seen.what == "text");
        self.n_words += usize::from(seen.what == "word");
        self.n_taken += usize::from(seen.what == "value");
        // Whoever asks for a word asks for a text as well.
        self.n_typed += usize::from(!["value", "word", EITHER, LISTED].contains(&seen.what));
        self.whats.insert(seen.what);
        self.about = seen.about;
        self.defaults.extend(Some(seen.default.clone()).filter(|text| !text.is_empty()));
        self.allowed.extend(Some(seen.allowed.clone()).filter(|text| !text.is_empty()));
    }

    /// The most exact type that it was read as.
    fn what(&self) -> &'static str {
        self.whats.iter().fold("", |best, what| more_exact(best, what))
    }

    /// With what others said of it.
    pub(crate) fn merged(mut self, other: &Self) -> Self {
        self.whats.extend(&other.whats);
        self.defaults.extend(other.defaults.iter().cloned());
        self.allowed.extend(other.allowed.iter().cloned());
        self.names.extend(other.names.iter().cloned());
        self.n_texts += other.n_texts;
        self.n_words += other.n_words;
        self.n_offers += other.n_offers;
        self.n_taken += other.n_taken;
        self.n_typed += other.n_typed;
        self.n_scenarios += other.n_scenarios;
        self.about = if self.about.is_empty() { other.about } else { self.about };
        self
    }

    /// Whether a reader looked at the value itself, whatever type others said.
    pub(crate) const fn is_looked_at(&self) -> bool {
        self.n_taken > self.n_typed
    }

    /// Whether a reader took a text that is no word: whoever asks for a word asks for a text as well.
    pub(crate) const fn is_text(&self) -> bool {
        self.n_texts > self.n_words
    }

    /// Names that it may be, where every reader of a text has some.
    pub(crate) fn all_names(&self) -> Option<&BTreeSet<String>> {
        (self.n_offers + self.n_words >= self.n_texts).then_some(&self.names)
    }
}

/// A key by the kind of scenario that asked for it.
type ByKind = BTreeMap<String, Key>;

/// Keys by path, and sections that have the sections of another kind inside.
#[derive(Default)]
pub struct Keys(pub(crate) BTreeMap<String, ByKind>, BTreeSet<&'static str>);

/// The more exact of two names of a type: a reader may ask for a value first and look closer afterwards. A name that goes on where the other ends says what
/// may stand there besides.
fn more_exact(one: &'static str, other: &'static str) -> &'static str {
    let rank = |what: &str| {
        ["", EITHER, LISTED, "value", "text"].iter().position(|known| *known == what).unwrap_or(usize::MAX)
    };
    if rank(other) > rank(one) || (rank(other) == rank(one) && other.starts_with(one)) { other } else { one }
}

impl Keys {
    /// Adds what the reader of a kind asked for. One that found errors may have stopped early, so it only adds keys that nobody asked for before.
    pub fn add(&mut self, kind: &str, seen: Vec<Seen>, has_errors: bool) {
        let mut asked = BTreeSet::new();
        let known: BTreeSet<String> = if has_errors { self.of(kind).cloned().collect() } else { BTreeSet::new() };
        for seen in seen.into_iter().filter(|seen| !known.contains(&seen.in_file())) {
            self.1.extend(Some(seen.inside).filter(|section| !section.is_empty()));
            let path = seen.in_file();
            let key = self.0.entry(path.clone()).or_default().entry(kind.to_owned()).or_default();
            key.add(&seen);
            key.n_scenarios += usize::from(asked.insert(path));
        }
    }

    /// Paths of keys that a kind asked for.
    fn of(&self, kind: &str) -> impl Iterator<Item = &String> {
        self.0.iter().filter(move |(_, by_kind)| by_kind.contains_key(kind)).map(|(path, _)| path)
    }

    /// What a key means: where it stands, as its reader says it, or anywhere.
    pub(crate) fn meaning<'k>(&'k self, meanings: &'k Meanings, path: &str) -> Option<&'k str> {
        let about = || self.0.get(path)?.values().map(|key| key.about).find(|about| !about.is_empty());
        meaning(meanings, path, about().unwrap_or_default())
    }

    /// Keys that have no meaning in the table, and meanings of keys that nobody asks for.
    pub fn gaps(&self) -> Vec<String> {
        let meanings = meanings();
        let is_key = |path: &&String| !path.ends_with(OTHERS);
        let unexplained = self.0.keys().filter(is_key).filter(|path| self.meaning(&meanings, path).is_none()).cloned();
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

    /// Rows of the keys that a text names: all of a path, of a section, or of that name anywhere. Nothing where no key is named so.
    pub fn rows_of(&self, asked: &str) -> String {
        let meanings = meanings();
        let ends = format!(".{asked}");
        let begins = format!("{asked}.");
        let paths = || self.0.iter().filter(|(path, _)| !path.ends_with(OTHERS));
        let exact = paths().any(|(path, _)| path == asked);
        let is_meant = |path: &str| {
            path == asked
                || !exact && (path.ends_with(&ends) || path.starts_with(&begins) && !path[begins.len()..].contains('.'))
        };
        let mut out = String::new();
        for (path, by_kind) in paths().filter(|(path, _)| is_meant(path)) {
            said(&mut out, path, by_kind, self.meaning(&meanings, path).unwrap_or(""));
        }
        out
    }

    /// The page.
    pub fn page(&self) -> String {
        let meanings = meanings();
        let mut out = "# Every key of a scenario\n\nMade by `skrull-sim explain --keys` from what the readers ask for. Do not edit it: meanings stand in \
                       `input/src/keys.toml`.\nA default in several forms depends on the kind or on other keys. `-` has no default: the key may be left out, or its section says what\nis needed. Lists of tables are written `[[section.list]]`; their keys stand under the list's name.\n\nIn kind `rl` sections of training stand under `[train.…]` and those of serving under `[generate.…]`;\n`[model]` and `[cluster]` of the file hold for both. [rl.md](rl.md) says what is refused there.\n"
            .to_owned();
        let section_of = |path: &str| path.rsplit_once('.').map_or(String::new(), |(section, _)| section.to_owned());
        let mut sections: BTreeMap<String, Vec<(&String, &ByKind)>> = BTreeMap::new();
        let is_inside = |path: &str| path.split_once('.').is_some_and(|(section, _)| self.1.contains(section));
        for (path, key) in self.0.iter().filter(|(path, _)| !path.ends_with(OTHERS) && !is_inside(path)) {
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
                row(&mut out, path, key, self.meaning(&meanings, path).unwrap_or(""));
            }
        }
        out
    }
}

/// What a key counts, where it is read as a number.
pub(crate) fn unit(path: &str, key: &Key) -> &'static str {
    let name = path.rsplit('.').next().unwrap_or(path);
    let is_number = ["number", "whole number", "whole number or two ends", "value"].contains(&key.what());
    UNITS.iter().find(|(end, _)| is_number && name.ends_with(end)).map_or("", |(_, unit)| unit)
}

/// What defaults or ranges are, where they are few.
fn shown(texts: &BTreeSet<String>, n: usize) -> String {
    match texts.len() {
        0 => "-".to_owned(),
        len if len > n => "depends".to_owned(),
        _ => texts.iter().map(|text| cell(&largest(text))).collect::<Vec<_>>().join("; or "),
    }
}

/// A key in lines of its own.
fn said(out: &mut String, path: &str, by_kind: &ByKind, meaning: &str) {
    let key = by_kind.values().fold(Key::default(), Key::merged);
    let kinds: Vec<&str> = by_kind.keys().map(String::as_str).collect();
    let unit =
        Some(unit(path, &key)).filter(|unit| !unit.is_empty()).map_or_else(String::new, |unit| format!(", {unit}"));
    let _ = write!(out, "{path}: {}{unit}; in {}\n  {meaning}\n", key.what(), kinds.join(", "));
    for (name, texts, n) in [("default", &key.defaults, 3), ("allowed", &key.allowed, 2)] {
        if !texts.is_empty() {
            let _ = writeln!(out, "  {name}: {}", shown(texts, n));
        }
    }
    if !key.names.is_empty() {
        let names: Vec<&str> = key.names.iter().map(String::as_str).collect();
        let _ = writeln!(out, "  names: {}", names.join(", "));
    }
}

fn row(out: &mut String, path: &str, by_kind: &ByKind, meaning: &str) {
    let name = path.rsplit('.').next().unwrap_or(path);
    let key = by_kind.values().fold(Key::default(), Key::merged);
    let unit = unit(path, &key);
    let kinds: Vec<&str> = by_kind.keys().map(String::as_str).collect();
    let _ = writeln!(
        out,
        "| `{name}` | {} | {unit} | {} | {} | {} | {} |",
        key.what(),
        shown(&key.defaults, 3),
        shown(&key.allowed, 2),
        kinds.join(", "),
        cell(meaning)
    );
}

/// The largest numbers stand for what is left out, and for no limit.
fn largest(text: &str) -> String {
    text.replace(&u64::MAX.to_string(), "-").replace(&u32::MAX.to_string(), "all")
}

/// A text that stays in its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

/// Meanings by section and key; `any` holds what a key means wherever it stands.
pub(crate) type Meanings = BTreeMap<String, BTreeMap<String, String>>;

pub(crate) fn meanings() -> Meanings {
    toml::from_str(MEANINGS).expect("keys.toml is a table of tables of texts")
}

/// What a key means in its section, else what its reader says of it, else what it means anywhere.
pub(crate) fn meaning<'m>(meanings: &'m Meanings, path: &str, about: &'m str) -> Option<&'m str> {
    let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
    let about = (!about.is_empty()).then_some(about);
    // Inside of a section others mean what they do in a file of their own.
    let inner = || meaning_in(meanings, section.split_once('.')?.1, key);
    meaning_in(meanings, section, key).or_else(inner).or(about).or_else(|| meaning_in(meanings, "any", key))
}

fn meaning_in<'m>(meanings: &'m Meanings, section: &str, key: &str) -> Option<&'m str> {
    meanings.get(section)?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_explained_by_its_path_its_name_or_its_section() {
        let seen =
            |path: &str| Seen { path: path.to_owned(), what: "text", allowed: "a, b".to_owned(), ..Seen::default() };
        let mut keys = Keys::default();
        keys.add("serving", ["trace.lengths", "trace.file", "workload.file"].map(seen).to_vec(), false);
        for (asked, n) in [("trace.lengths", 1), ("file", 2), ("trace", 2), ("made_up", 0)] {
            let rows = keys.rows_of(asked);
            assert_eq!(rows.matches(": text; in serving").count(), n, "{asked}: {rows}");
        }
        assert!(
            keys.rows_of("trace.lengths").starts_with("trace.lengths: text; in serving\n")
                && keys.rows_of("lengths").contains("allowed: a, b")
        );
    }

    #[test]
    fn the_largest_numbers_are_shown_as_what_they_mean() {
        let seen = |name: &str, default: u64| Seen {
            path: format!("engine.{name}"),
            what: "whole number",
            default: default.to_string(),
            ..Seen::default()
        };
        let mut keys = Keys::default();
        keys.add("serving", vec![seen("tp", u64::MAX), seen("layers", u32::MAX.into())], false);
        let page = keys.page();
        assert!(page.contains("| `tp` | whole number |  | - |"), "{page}");
        assert!(page.contains("| `layers` | whole number |  | all |") || page.contains("| layers | all |"), "{page}");
    }

    #[test]
    fn the_more_exact_type_wins_and_units_follow_the_name() {
        let seen =
            |what| Seen { path: "engine.window_ms".to_owned(), what, default: "5".to_owned(), ..Seen::default() };
        let mut keys = Keys::default();
        keys.add("serving", vec![seen("number"), seen("value")], false);
        assert!(keys.page().contains("| `window_ms` | number | ms | 5 | - | serving |"), "{}", keys.page());
    }
}
