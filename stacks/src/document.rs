//! A scenario that is being written: sections of keys, each with the flag that gave it.

use std::fmt::{Display, Write};

use crate::export::comments;

pub mod over;

/// Column at which remarks begin.
const REMARK_COLUMN: usize = 33;

/// A scenario as text, section by section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    head: Vec<String>,
    sections: Vec<(String, Vec<Key>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    name: String,
    value: String,
    remark: String,
}

impl Document {
    /// A remark before everything.
    pub fn remark(&mut self, line: impl Into<String>) {
        self.head.push(line.into());
    }

    /// A key with a number, a truth or a value that is TOML already, and what gave it.
    pub fn set(&mut self, section: &str, name: &str, value: impl Display, remark: impl Into<String>) {
        let key = Key { name: name.to_owned(), value: value.to_string(), remark: remark.into() };
        let keys = match self.sections.iter_mut().find(|(known, _)| known == section) {
            Some((_, keys)) => keys,
            None => {
                self.sections.push((section.to_owned(), Vec::new()));
                &mut self.sections.last_mut().expect("just pushed").1
            }
        };
        match keys.iter_mut().find(|known| known.name == name) {
            Some(known) => *known = key,
            None => keys.push(key),
        }
    }

    /// A key with a word.
    pub fn word(&mut self, section: &str, name: &str, word: &str, remark: impl Into<String>) {
        self.set(section, name, quoted(word), remark);
    }

    /// Moves sections into one that has them inside, as a side of a scenario of several sides; others stay.
    pub fn put_inside(&mut self, outer: &str, sections: &[&str]) {
        for (name, _) in &mut self.sections {
            if sections.contains(&name.as_str()) {
                *name = format!("{outer}.{name}");
            }
        }
    }

    /// Leaves a section out.
    pub fn leave_out(&mut self, section: &str) {
        self.sections.retain(|(name, _)| name != section);
    }

    /// Leaves a key out.
    pub fn leave_key_out(&mut self, section: &str, name: &str) {
        if let Some((_, keys)) = self.sections.iter_mut().find(|(known, _)| known == section) {
            keys.retain(|key| key.name != name);
        }
    }

    /// The scenario as TOML.
    pub fn toml(&self) -> String {
        let mut text = comments(&self.head);
        for (name, keys) in &self.sections {
            if !name.is_empty() {
                let _ = write!(text, "\n[{name}]\n");
            }
            for key in keys {
                let _ = writeln!(text, "{}", line(&format!("{} = {}", key.name, key.value), &key.remark));
            }
        }
        text
    }
}

/// A key with its value, and what gave it.
fn line(key: &str, remark: &str) -> String {
    if remark.is_empty() { key.to_owned() } else { format!("{key:REMARK_COLUMN$} # {remark}") }
}

/// A word as TOML has it.
pub fn quoted(word: &str) -> String {
    let plain: String = word.chars().filter(|letter| !letter.is_control()).collect();
    format!("\"{}\"", plain.replace('\\', "\\\\").replace('"', "\\\""))
}
