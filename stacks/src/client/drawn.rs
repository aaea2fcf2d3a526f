//! How tokens are drawn: what requests and a server say of it, as `trace.sampling`.

use input::diagnostic::Code;
use serde_json::{Map, Value};

use super::unpriced::left_out;
use crate::flags::{Flag, Flags};
use crate::shell::UNKNOWN;

/// Keys of `trace.sampling`, the value of each that changes nothing, and its least and most. A `top_k` of −1 is none.
pub(super) const KEYS: [(&str, f64, [f64; 2]); 7] = [
    ("temperature", f64::NAN, [0.0, 100.0]),
    ("top_k", -1.0, [-1.0, 1e8]),
    ("top_p", 1.0, [1e-6, 1.0]),
    ("min_p", 0.0, [0.0, 1.0]),
    ("repetition_penalty", 1.0, [1e-6, 100.0]),
    ("presence_penalty", 0.0, [-2.0, 2.0]),
    ("frequency_penalty", 0.0, [-2.0, 2.0]),
];
/// Positions of the temperature, and of what leaves some tokens out of the draw.
pub(super) const TEMPERATURE: usize = 0;
pub(super) const FILTERS: std::ops::Range<usize> = 1..4;
/// Position of `top_k`.
const TOP_K: usize = 1;
/// What a server takes of the keys that a model's file may say, where it reads none.
const NEUTRAL: [(usize, f64); 5] = [(TEMPERATURE, 1.0), (TOP_K, 0.0), (2, 1.0), (3, 0.0), (4, 1.0)];

/// What somebody says of the draw, in the order of `KEYS`, each with what gave it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Drawn(pub(super) [Option<(f64, String)>; 7]);

impl Drawn {
    /// What a server takes where requests say nothing: vLLM's JSON, and SGLang's.
    pub(crate) fn of_server(flags: &mut Flags<'_>) -> Self {
        let mut drawn = Self::default();
        for name in ["override-generation-config", "preferred-sampling-params"] {
            drawn.of_json(flags, name);
            name_others(flags, name);
        }
        drawn
    }

    /// Fills up what nobody says where the server does not look into the model's own file: vLLM's and SGLang's neutral values.
    pub(crate) fn without_file(mut self, flags: &mut Flags<'_>) -> Self {
        for (name, off, usual) in [("generation-config", "vllm", "auto"), ("sampling-defaults", "openai", "model")] {
            match flags.text(name) {
                Some(word) if word == off => {
                    for (index, value) in NEUTRAL {
                        self.0[index].get_or_insert((value, flags.shown(name)));
                    }
                }
                Some(word) if word != usual => {
                    flags.not_modelled(name, "the file beside the model's configuration is read");
                }
                _ => {}
            }
        }
        self
    }

    /// `trace.sampling` where requests say this and a server takes that where they say nothing, and what gave it; `None` for the largest logit. A `whole` one has
    /// values that change nothing too: they stand over what a model's own file says.
    pub(crate) fn table(&self, of_server: &Self, whole: bool) -> Option<(String, String)> {
        let (mut parts, mut remarks): (Vec<String>, Vec<&str>) = (Vec::new(), Vec::new());
        let is_greedy = self.or(of_server, TEMPERATURE).is_some_and(|(value, _)| *value == 0.0);
        for (index, (key, ..)) in KEYS.iter().enumerate() {
            let Some((value, flag)) = self.or(of_server, index) else { continue };
            if !whole && !changes(index, *value) || is_greedy && FILTERS.contains(&index) {
                continue;
            }
            let counted = value.max(0.0);
            parts.push(if index == TOP_K { format!("{key} = {counted}") } else { format!("{key} = {value:?}") });
            if !remarks.contains(&flag.as_str()) {
                remarks.push(flag);
            }
        }
        let draws = parts.len() > usize::from(is_greedy && !whole);
        draws.then(|| (format!("{{ {} }}", parts.join(", ")), remarks.join(", ")))
    }

    fn or<'d>(&'d self, of_server: &'d Self, index: usize) -> Option<&'d (f64, String)> {
        self.0[index].as_ref().or(of_server.0[index].as_ref())
    }

    /// Fields of JSON, however deep they lie.
    pub(super) fn of_json(&mut self, flags: &mut Flags<'_>, name: &str) {
        let Some(text) = flags.find(name).map(Flag::value) else { return };
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
    pub(super) fn take(&mut self, flags: &mut Flags<'_>, index: usize, (text, name): (&str, &str)) {
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

/// Names what a server says beside the draw.
fn name_others(flags: &mut Flags<'_>, option: &str) {
    let Some(text) = flags.find(option).map(Flag::value) else { return };
    let Ok(fields) = serde_json::from_str::<Map<String, Value>>(&text) else { return };
    for name in fields.keys().filter(|name| KEYS.iter().all(|(key, ..)| key != name)) {
        let why = match name.as_str() {
            "max_new_tokens" => {
                Some("answers are as long as they are asked for: give shorter ones with `--set trace.output_tokens=…`")
            }
            name => left_out(name),
        };
        if let Some(why) = why {
            let (what, at) = (format!("`{name}` of `{}` is not modelled", flags.shown(option)), flags.at(option));
            flags.warn(Code::NotModelled, at, what, why);
        }
    }
}

/// Whether a value changes how tokens are drawn.
pub(super) fn changes(index: usize, value: f64) -> bool {
    if index == TOP_K { value > 0.0 } else { value != KEYS[index].1 }
}

/// A field of an object, or of what lies in it.
pub(super) fn within<'v>(value: &'v Value, key: &str) -> Option<&'v Value> {
    let fields = value.as_object()?;
    fields.get(key).or_else(|| fields.values().find_map(|inner| within(inner, key)))
}
