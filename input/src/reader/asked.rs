//! What sections are asked for besides plain values: numbers that may be absent or have to be there, names of tables, lists.

use std::ops::RangeInclusive;

use toml_span::Value;
use toml_span::value::ValueInner;

use super::seen::{self, Seen};
use super::{Place, Section, place_of, small, unknown};
use crate::diagnostic::{Code, Finding};

impl Section<'_> {
    /// Tells who watches which names a text may be.
    pub fn offers<'n, N: IntoIterator<Item = &'n str>>(&self, key: &str, names: impl FnOnce() -> N) {
        let shown = || names().into_iter().collect::<Vec<_>>().join(", ");
        self.note(key, seen::NAME, String::new, shown);
    }

    /// Whether a key is there, was not taken yet, and is a number.
    pub fn is_number(&self, key: &str) -> bool {
        self.note(key, seen::EITHER, String::new, String::new);
        self.table.get(key).is_some_and(|value| number(value.as_ref()).is_some())
    }

    /// Whether a key says 0 and nothing else, as one that is left out does.
    pub fn is_zero(&self, key: &str) -> bool {
        fn says(value: &Value<'_>) -> bool {
            value.as_integer() == Some(0) || value.as_array().is_some_and(|items| items.iter().all(says))
        }
        self.table.get(key).is_none_or(says)
    }

    /// Refuses a key that is there, where another kind takes it. The section has no such key, and nobody is told of one.
    pub fn elsewhere(&mut self, key: &str, what: &str, help: &str) {
        let at = self.place(key).flatten();
        if self.table.remove(key).is_some() {
            let what = format!("`{}`: {what}", self.full(key));
            self.refuse(Code::AskedElsewhere, at, what, help);
        }
    }

    /// Tells who watches of a key that the caller knows from a table of its own; its path begins with the section's.
    pub fn takes(&self, seen: impl FnOnce() -> Seen) {
        seen::note(|| {
            let seen = seen();
            Seen { path: self.full(&seen.path), ..seen }
        });
    }

    /// Tells who watches that a key takes a list of names.
    pub(crate) fn lists_names(&self, key: &str) {
        self.note(key, "list of names", String::new, String::new);
    }

    /// A number that has to be there; the least one allowed where it is not.
    pub fn needed(&mut self, key: &'static str, range: RangeInclusive<f64>, help: &str) -> f64 {
        let number = self.number_or(key, (*range.start(), || "needed".to_owned()), range);
        self.missing(key, help);
        number
    }

    /// A number above 0 within a range, where there is one.
    pub fn some_number(&mut self, key: &'static str, range: RangeInclusive<f64>) -> Option<f64> {
        Some(self.number(key, f64::NAN, range)).filter(|number| !number.is_nan())
    }

    /// A whole number within a range, where there is one.
    pub fn some_count(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u32> {
        let n = self.count(key, Some(u64::MAX), range).0;
        (n < u64::MAX).then(|| small(n))
    }

    /// Keys that are there and were not taken yet, with their places.
    pub fn left(&self) -> Vec<(String, Place)> {
        self.table.iter().map(|(key, value)| (key.name.to_string(), place_of(value))).collect()
    }

    /// Takes a key away that its caller refuses, and says where it stood. It is none of the keys that may stand here.
    pub fn away(&mut self, key: &str) -> Option<Place> {
        self.table.remove(key).map(|value| place_of(&value))
    }

    /// A whole number below 2^32 within a range.
    pub fn small(&mut self, key: &'static str, default: Option<u32>, range: RangeInclusive<u64>) -> u32 {
        small(self.count(key, default.map(u64::from), range).0)
    }

    /// A whole number within a range, or two such ends of a range of its own, the lower first; a single number is both.
    pub fn ends(&mut self, key: &'static str, default: Option<u64>, range: RangeInclusive<u64>) -> ([u64; 2], Place) {
        self.note(key, "whole number or two ends", String::new, || format!("{} to {}", range.start(), range.end()));
        if self.table.get(key).is_none_or(|value| value.as_array().is_none()) {
            let (number, at) = self.count(key, default, range);
            return ([number, number], at);
        }
        let (value, at) = self.take(key).expect("a list that is there");
        let one = |item: &Value<'_>| u64::try_from(item.as_integer()?).ok().filter(|number| range.contains(number));
        match items(&value, one).as_deref() {
            Some(&[from, to]) if from <= to => ([from, to], at),
            _ => {
                let what = format!("`{}` is no pair of ends", self.full(key));
                let (least, most) = (range.start(), range.end());
                let help = format!(
                    "allowed are a whole number, or `[from, to]` with both from {least} to {most}, the lower first"
                );
                self.find(Finding::error(Code::OutOfRange, at.clone(), what).label("out of range").help(help));
                ([*least; 2], at)
            }
        }
    }

    /// A whole number that counts things in memory.
    pub fn size(&mut self, key: &'static str, default: usize, range: RangeInclusive<u64>) -> usize {
        usize::try_from(self.count(key, Some(default as u64), range).0).expect("ranges keep sizes small")
    }

    /// One of a table's rows by its word.
    pub fn one_of<T: Copy + PartialEq>(&mut self, key: &'static str, default: T, rows: &[(&str, T)]) -> T {
        let words: Vec<&str> = rows.iter().map(|(word, _)| *word).collect();
        let at = rows.iter().position(|(_, row)| *row == default).unwrap_or(0);
        rows[self.word(key, at, &words)].1
    }

    /// What a name stands for; a finding where it stands for nothing. `what` is the kind of thing that is named.
    pub fn known<'n, T, N: IntoIterator<Item = &'n str>>(
        &mut self,
        key: &'static str,
        (code, what): (Code, &str),
        names: impl Fn() -> N,
        find: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        self.offers(key, &names);
        let (name, at) = self.text(key)?;
        let found = find(&name);
        if found.is_none() {
            self.find(unknown(code, format!("unknown {what} `{name}`"), &name, names(), at));
        }
        found
    }

    /// A policy by name, which has to be there.
    pub fn named<'n, T, N: IntoIterator<Item = &'n str>>(
        &mut self,
        key: &'static str,
        help: &str,
        names: impl Fn() -> N,
        find: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        self.needs(key, help);
        self.known(key, (Code::UnknownPolicy, "policy"), names, find)
    }

    /// Says that a key is needed where it is not there.
    pub fn needs(&mut self, key: &str, help: &str) {
        if !self.has(key) {
            self.missing(key, help);
        }
    }

    /// A list of numbers, or one number, within a range; `Err` has the place of what is neither.
    pub fn numbers(&mut self, key: &'static str, range: RangeInclusive<f64>) -> Option<Result<Vec<f64>, Place>> {
        let at = self.place(key).flatten();
        Some(self.some_numbers(key, range)?.and_then(|all| if all.is_empty() { Err(at) } else { Ok(all) }))
    }

    /// The same, where a list may be empty.
    pub fn some_numbers(&mut self, key: &'static str, range: RangeInclusive<f64>) -> Option<Result<Vec<f64>, Place>> {
        let shown = || format!("{} to {}", range.start(), range.end());
        self.note(key, "number or list of numbers", String::new, shown);
        let (value, at) = self.take(key)?;
        let found: Option<Vec<f64>> = match &value {
            ValueInner::Array(items) => items.iter().map(|item| number(item.as_ref())).collect(),
            other => number(other).map(|found| vec![found]),
        };
        let good = found.filter(|all| all.iter().all(|one| range.contains(one)));
        Some(good.ok_or(at))
    }
}

/// A value as a number, where it is a finite one.
pub fn number(value: &ValueInner<'_>) -> Option<f64> {
    match value {
        ValueInner::Integer(number) => Some(*number as f64),
        ValueInner::Float(number) => Some(*number).filter(|number| number.is_finite()),
        _ => None,
    }
}

/// Items of a list as they are read; `None` where it is no list or one item is none of those.
pub fn items<T>(value: &ValueInner<'_>, read: impl Fn(&Value<'_>) -> Option<T>) -> Option<Vec<T>> {
    match value {
        ValueInner::Array(items) => items.iter().map(read).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reader;

    /// Ends that a text gives, or the message and its help.
    fn ends(text: &str) -> Result<[u64; 2], String> {
        let text = format!("[trace]\n{text}\n");
        let mut findings = Vec::new();
        let mut reader = Reader::new(toml_span::parse(&text).expect("TOML"), &mut findings);
        let found = reader.section("trace").ends("prompt_tokens", None, 1..=1000).0;
        match findings.first() {
            None => Ok(found),
            Some(finding) => Err(format!("{}; {}", finding.what, finding.help.as_deref().unwrap_or_default())),
        }
    }

    #[test]
    fn two_ends_are_a_list_with_the_lower_first_and_a_number_is_both() {
        assert_eq!(ends("prompt_tokens = 7"), Ok([7, 7]));
        assert_eq!(ends("prompt_tokens = [1, 1000]"), Ok([1, 1000]));
        assert_eq!(ends("prompt_tokens = [5, 5]"), Ok([5, 5]));
        let help = "allowed are a whole number, or `[from, to]` with both from 1 to 1000, the lower first";
        for wrong in ["[9, 3]", "[0, 3]", "[1, 1001]", "[1]", "[1, 2, 3]", "[1.5, 2]", "[\"a\", 2]", "[]"] {
            let found = ends(&format!("prompt_tokens = {wrong}"));
            assert_eq!(found, Err(format!("`trace.prompt_tokens` is no pair of ends; {help}")), "{wrong}");
        }
        assert!(
            ends("prompt_tokens = 0")
                .is_err_and(|what| what.contains("is 0; allowed are whole numbers from 1 to 1000"))
        );
        assert!(ends("").is_err_and(|what| what.contains("`trace.prompt_tokens` is missing")));
    }
}
