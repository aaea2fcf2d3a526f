//! The options of a client as they are read, and the keys that they give.

use input::diagnostic::{Code, Finding};

use super::Asked;
use super::drawn::Drawn;
use crate::Machine;
use crate::flags::{Flag, Flags, Table, with_whole_names, words};

/// A client's options, and what came of them.
pub(super) struct Reader<'m> {
    /// The client, as messages name it.
    pub(super) name: &'static str,
    /// Its options.
    pub(super) flags: Flags<'static>,
    /// What the command line states.
    pub(super) machine: &'m Machine,
    asked: Asked,
}

impl<'m> Reader<'m> {
    pub(super) fn new(name: &'static str, flags: Vec<Flag>, table: &'static Table, machine: &'m Machine) -> Self {
        let flags = Flags::new(with_whole_names(flags, table), table);
        Self { name, flags, machine, asked: Asked::default() }
    }

    /// What was asked, and what is said of the options.
    pub(super) fn done(mut self) -> (Asked, Vec<Finding>) {
        self.flags.judge();
        self.asked.is_chat = self.is_chat();
        (self.asked, self.flags.findings)
    }

    /// Whether requests are chats.
    pub(super) fn is_chat(&self) -> bool {
        let names = ["backend", "endpoint", "endpoint-type"];
        names.iter().filter_map(|name| self.flags.find(name)).any(|flag| flag.value().contains("chat"))
    }

    /// Whether the command line leaves a key of `[trace]` to the client.
    pub(super) fn wants(&self, key: &str) -> bool {
        let full = format!("trace.{key}");
        // A trace of one's own says all.
        !self.machine.states(&[&full, "trace.file", "trace.stream"])
    }

    /// Whether the command line leaves the lengths of prompts or answers to the client.
    pub(super) fn wants_tokens(&self, key: &str) -> bool {
        self.wants(key) && self.wants("lengths")
    }

    /// A key, with the options that gave it.
    pub(super) fn set(&mut self, key: &'static str, value: impl ToString, remark: impl Into<String>) {
        self.asked.keys.push((key, value.to_string(), remark.into()));
    }

    /// The same in place of what was given before.
    pub(super) fn replace(&mut self, key: &'static str, value: impl ToString, remark: impl Into<String>) {
        self.asked.keys.retain(|(known, ..)| *known != key);
        self.set(key, value, remark);
    }

    /// A limit of `[slo]`, in seconds, unless the command line states it.
    pub(super) fn limit(&mut self, key: &'static str, seconds: f64, remark: String) {
        if !self.machine.states(&["slo", &format!("slo.{key}")]) {
            self.asked.limits.push((key, format!("{seconds:?}"), remark));
        }
    }

    /// How tokens are drawn.
    pub(super) fn draws(&mut self, drawn: Drawn) {
        self.asked.drawn = drawn;
    }

    /// Whether a key was given.
    pub(super) fn gives(&self, key: &str) -> bool {
        self.asked.gives(key)
    }

    /// The remark of what the client does where nothing is said.
    pub(super) fn usual(&self) -> String {
        format!("as `{}` does where nothing is said", self.name)
    }

    /// The first of some names of one option that is given.
    pub(super) fn given<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        names.iter().copied().find(|name| self.flags.find(name).is_some())
    }

    /// The word behind an option; of several, which are a run each, the first.
    pub(super) fn word(&mut self, name: &str) -> Option<String> {
        let text = self.flags.needed(name)?;
        let mut all = words(&text);
        let first = all.next().map(str::to_owned);
        if let (Some(first), Some(_)) = (&first, all.next()) {
            let what = format!("`{} {text}` are several runs: the first is taken, {first}", self.flags.shown(name));
            let help = "write the value that is meant, or run each with `--set`";
            let at = self.flags.at(name);
            self.flags.warn(Code::NotModelled, at, what, help);
        }
        first
    }

    /// A whole number within a range.
    pub(super) fn whole(&mut self, name: &str, range: std::ops::RangeInclusive<u64>) -> Option<u64> {
        let word = self.word(name)?;
        let number = word.replace('_', "").parse::<u64>().ok().filter(|number| range.contains(number));
        if number.is_none() {
            let what = format!("`{} {word}` is no such number", self.flags.shown(name));
            let help = format!("allowed are whole numbers from {} to {}", range.start(), range.end());
            self.flags.wrong(name, what, help);
        }
        number
    }

    /// A number, which may be infinite.
    pub(super) fn real(&mut self, name: &str) -> Option<f64> {
        let word = self.word(name)?;
        let number = word.parse::<f64>().ok().filter(|number| !number.is_nan() && *number >= 0.0);
        if number.is_none() {
            let what = format!("`{} {word}` is no such number", self.flags.shown(name));
            self.flags.wrong(name, what, "allowed are numbers from 0, for example 4".to_owned());
        }
        number
    }

    /// A whole number of the first name that is given, and its remark; else the usual one.
    pub(super) fn whole_or(&mut self, names: &[&str], usual: u64, most: u64) -> Option<(u64, String)> {
        match self.given(names) {
            Some(name) => self.whole(name, 1..=most).map(|number| (number, self.flags.shown(name))),
            None => Some((usual, self.usual())),
        }
    }

    /// A warning that a part of what the client does is not modelled; about the client where none of its options says it.
    pub(super) fn warn(&mut self, name: &str, what: impl Into<String>, help: impl Into<String>) {
        let at = self.flags.at(name);
        self.flags.warn(Code::NotModelled, at, what, help);
    }
}
