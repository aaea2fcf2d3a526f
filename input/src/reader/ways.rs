//! Sections that list several values of a key: every combination of them is a way of its own.

use toml_span::Value;
use toml_span::value::{Table, ValueInner};

use super::seen::LISTED;
use super::{FROM_COMMAND_LINE, Listed, Section, copied, listed};
use crate::diagnostic::{Code, Finding};

impl Section<'_> {
    /// Reads the section once for every combination of the values of those keys that have a list, in order, with what was listed; a finding
    /// that several combinations have is there once. Says how many combinations there are, and reads none where they are more than `most`.
    pub fn each_combination(
        mut self,
        keys: &[&'static str],
        most: usize,
        read: &mut dyn FnMut(Section<'_>, &[Listed]),
    ) -> usize {
        let mut ways: Vec<Vec<Listed>> = vec![Vec::new()];
        for key in keys {
            self.note(key, LISTED, String::new, String::new);
            let Some(values) = self.list(key) else { continue };
            let with = |way: &Vec<Listed>| {
                let longer = |value: &Value<'static>| way.iter().chain([&(*key, copied(value))]).map(listed).collect();
                values.iter().map(longer).collect::<Vec<Vec<Listed>>>()
            };
            ways = ways.iter().flat_map(with).collect();
        }
        let n = ways.len();
        if n == 0 || n > most {
            let what = format!("`{}` lists {n} ways", self.name);
            let at = self.at.clone();
            self.find(Finding::error(Code::OutOfRange, at, what).help(format!("allowed are 1 to {most}")));
            return n;
        }
        for way in ways {
            let mut findings = Vec::new();
            let mut table: Table<'static> =
                self.table.iter().map(|(key, value)| (key.clone(), copied(value))).collect();
            for (key, value) in &way {
                let span = value.span;
                table.insert(toml_span::value::Key { name: (*key).into(), span }, copied(value));
            }
            let asked = self.asked.clone();
            read(Section { asked, ..Section::new(self.name.clone(), self.at.clone(), table, &mut findings) }, &way);
            let new = findings.into_iter().filter(|finding| !self.findings.contains(finding)).collect::<Vec<_>>();
            self.findings.extend(new);
        }
        n
    }

    /// Writes tables of a key out that list values of some of their own keys: one table for each combination of them.
    pub fn spread(&mut self, key: &'static str, inner: &[&str]) {
        inner.iter().for_each(|inner| self.note(&format!("{key}.{inner}"), LISTED, String::new, String::new));
        let Some(value) = self.table.get_mut(key) else { return };
        let span = value.span;
        let spread: Vec<Value<'static>> = match value.as_ref() {
            ValueInner::Array(items) => items.iter().flat_map(|item| combinations(item, inner)).collect(),
            ValueInner::Table(table) if inner.iter().any(|inner| is_list(table, inner)) => combinations(value, inner),
            _ => return,
        };
        *value = Value::with_span(ValueInner::Array(spread), span);
    }

    /// Reads a copy of the section; what is found there is dropped, because the section itself is read as well.
    pub fn aside<T>(&self, read: impl FnOnce(Section<'_>) -> T) -> T {
        let mut findings = Vec::new();
        let table = self.table.iter().map(|(key, value)| (key.clone(), copied(value))).collect();
        read(Section {
            asked: self.asked.clone(),
            ..Section::new(self.name.clone(), self.at.clone(), table, &mut findings)
        })
    }

    /// Lays a value over a key that is not there.
    pub fn or(&mut self, key: &'static str, value: ValueInner<'static>) {
        let span = toml_span::Span::new(FROM_COMMAND_LINE, FROM_COMMAND_LINE);
        if !self.table.contains_key(key) {
            let name = toml_span::value::Key { name: key.into(), span };
            self.table.insert(name, Value::with_span(value, span));
        }
    }

    /// The values of a key that has a list of them.
    fn list(&mut self, key: &str) -> Option<Vec<Value<'static>>> {
        self.table.get(key)?.as_array()?;
        match self.table.remove(key)?.take() {
            ValueInner::Array(items) => Some(items),
            _ => None,
        }
    }
}

fn is_list(table: &Table<'static>, key: &str) -> bool {
    table.get(key).is_some_and(|value| value.as_array().is_some())
}

/// A table once for every combination of what those of its keys list; anything else as it is.
fn combinations(value: &Value<'static>, inner: &[&str]) -> Vec<Value<'static>> {
    let Some(table) = value.as_table() else { return vec![copied(value)] };
    let mut all = vec![Table::default()];
    for (key, value) in table {
        let listed = value.as_array().filter(|_| inner.contains(&key.name.as_ref()));
        let listed = listed.map_or(std::slice::from_ref(value), |items| items);
        let with = |table: &Table<'static>| {
            let longer = |value: &Value<'static>| {
                let pairs = table.iter().chain([(key, value)]);
                pairs.map(|(key, value)| (key.clone(), copied(value))).collect()
            };
            listed.iter().map(longer).collect::<Vec<Table<'static>>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    all.into_iter().map(|table| Value::with_span(ValueInner::Table(table), value.span)).collect()
}
