//! Reads keys of a `config.json`: every wrong value is a finding, every key that is asked for is remembered.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Largest width or count that is taken for real.
pub(super) const COUNT_MAX: u64 = 100_000_000;

/// Keys of a file and what was found of them.
pub(super) struct Reader<'a> {
    keys: &'a Map<String, Value>,
    asked: BTreeSet<String>,
    pub(super) findings: Vec<String>,
    /// Keys that are missing, and what the class of the type has in their place.
    pub(super) defaults: Vec<(String, String)>,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(keys: &'a Map<String, Value>) -> Self {
        Self { keys, asked: BTreeSet::new(), findings: Vec::new(), defaults: Vec::new() }
    }

    /// A value, where it is there and not null.
    pub(super) fn value(&mut self, name: &str) -> Option<&'a Value> {
        self.asked.insert(name.to_owned());
        self.keys.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn find(&mut self, name: &str, found: &impl std::fmt::Display, allowed: &str) {
        self.findings.push(format!("`{name}` is {found}, allowed are {allowed}"));
    }

    /// A positive count under the first of `names` that is present.
    pub(super) fn optional(&mut self, names: &[&str]) -> Option<u64> {
        let name = names.iter().find(|name| self.keys.contains_key(**name))?;
        // Another name of the same count is read if it says the same; else it is left over.
        let same = names.iter().filter(|other| self.keys.get(**other).is_some_and(|value| *value == self.keys[*name]));
        self.asked.extend(same.map(|name| (*name).to_owned()));
        let value = self.value(name)?;
        let count = value.as_u64().filter(|count| (1..=COUNT_MAX).contains(count));
        if count.is_none() {
            self.find(name, value, &format!("whole numbers from 1 to {COUNT_MAX}"));
        }
        Some(count.unwrap_or(1))
    }

    /// Whether a key is there and holds nothing.
    pub(super) fn is_null(&self, name: &str) -> bool {
        self.keys.get(name).is_some_and(Value::is_null)
    }

    /// Whether a key is there.
    pub(super) fn has(&mut self, name: &str) -> bool {
        self.value(name).is_some()
    }

    pub(super) fn required(&mut self, names: &[&str]) -> u64 {
        self.optional(names).unwrap_or_else(|| {
            self.findings.push(format!("key `{}` is missing", names[0]));
            1
        })
    }

    pub(super) fn flag(&mut self, name: &str, default: bool) -> bool {
        match self.value(name) {
            None => default,
            Some(Value::Bool(flag)) => *flag,
            Some(other) => {
                self.find(name, other, "true and false");
                default
            }
        }
    }

    /// A count that may be zero, or absent.
    pub(super) fn count(&mut self, name: &str) -> u64 {
        let Some(value) = self.value(name) else { return 0 };
        let count = value.as_u64().filter(|count| *count <= COUNT_MAX);
        if count.is_none() {
            self.find(name, value, &format!("whole numbers from 0 to {COUNT_MAX}"));
        }
        count.unwrap_or(0)
    }

    /// Refuses a count that is not another one, where it is there: some files say a width twice.
    pub(super) fn same(&mut self, name: &str, expected: u64, of: &str) {
        if let Some(found) = self.optional(&[name]).filter(|found| *found != expected) {
            self.find(name, &found, &format!("the {expected} of `{of}`"));
        }
    }

    /// A count that may be zero, where it is there.
    pub(super) fn stated_count(&mut self, name: &str) -> Option<u64> {
        self.has(name).then(|| self.count(name))
    }

    /// The same where the class of the type has a count for a file without the key, which is told; a finding where it has none.
    pub(super) fn or_default(&mut self, names: &[&str], default: Option<u64>) -> u64 {
        let stated = self.optional(names);
        if let (None, Some(default)) = (stated, default) {
            self.defaults.push((names[0].to_owned(), default.to_string()));
        }
        stated.or(default).unwrap_or_else(|| self.required(names))
    }

    /// A positive count under the first of `names` that is present, once or once for each layer. Layers must agree.
    pub(super) fn uniform(&mut self, names: &[&str]) -> Option<u64> {
        let name = names.iter().find(|name| self.keys.contains_key(**name))?;
        let Some(list) = self.keys[*name].as_array() else { return self.optional(names) };
        self.asked.extend(names.iter().map(|name| (*name).to_owned()));
        let first = list.first().and_then(Value::as_u64).filter(|count| (1..=COUNT_MAX).contains(count));
        if first.is_none() || list.iter().any(|count| count.as_u64() != first) {
            self.find(name, &"a list", "one number for all layers");
        } else if let Some(n) = self.keys.get("num_hidden_layers").and_then(Value::as_u64)
            && n != list.len() as u64
        {
            let found = format!("a list of {} layers", list.len());
            self.find(name, &found, &format!("lists of the {n} of `num_hidden_layers`"));
        }
        Some(first.unwrap_or(1))
    }

    /// A positive number.
    pub(super) fn positive(&mut self, name: &str) -> Option<f64> {
        let value = self.value(name)?;
        let number = value.as_f64().filter(|number| (1e-3..=1e3).contains(number));
        if number.is_none() {
            self.find(name, value, "numbers from 0.001 to 1000");
        }
        number
    }

    /// Keys under a key.
    pub(super) fn under(&mut self, name: &str) -> Option<&'a Map<String, Value>> {
        let value = self.value(name)?;
        if !value.is_object() {
            self.find(name, value, "objects");
        }
        value.as_object()
    }

    /// A positive count under a key of a section.
    pub(super) fn count_under(&mut self, section: &str, name: &str) -> Option<u64> {
        let value = self.under(section)?.get(name).filter(|value| !value.is_null())?;
        let count = value.as_u64().filter(|count| (1..=COUNT_MAX).contains(count));
        if count.is_none() {
            self.find(&format!("{section}.{name}"), value, &format!("whole numbers from 1 to {COUNT_MAX}"));
        }
        Some(count.unwrap_or(1))
    }

    /// A word, where the key holds one; what else it may hold is read by another name.
    pub(super) fn word_or_none(&mut self, name: &str) -> Option<&'a str> {
        self.value(name)?.as_str()
    }

    /// A word, where there is one.
    pub(super) fn word(&mut self, name: &str) -> Option<&'a str> {
        let value = self.value(name)?;
        if !value.is_string() {
            self.find(name, value, "words");
        }
        value.as_str()
    }

    /// A list of words.
    pub(super) fn words(&mut self, name: &str) -> Option<Vec<&'a str>> {
        let value = self.value(name)?;
        let words = value.as_array().map(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        let words = words.flatten();
        if words.is_none() {
            self.find(name, value, "lists of words");
        }
        words
    }

    /// A list of whole numbers.
    pub(super) fn numbers(&mut self, name: &str) -> Option<Vec<u64>> {
        let value = self.value(name)?;
        let numbers = value.as_array().map(|list| list.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
        let numbers = numbers.flatten();
        if numbers.is_none() {
            self.find(name, value, "lists of whole numbers");
        }
        numbers
    }

    /// Keys that say something and that nobody asked for.
    pub(super) fn left_over(&self) -> impl Iterator<Item = &'a str> + '_ {
        let left =
            self.keys.iter().filter(|(name, value)| says_something(value) && !self.asked.contains(name.as_str()));
        left.map(|(name, _)| name.as_str())
    }
}

/// Whether a value is more than absent, off or empty.
pub(super) fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is_so) => *is_so,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}
