//! What clients add to the body of every request: `--extra-body` of vLLM's, `--extra-request-body` of `SGLang`'s. It stands over the client's own fields.
//!
//! Sources: `vllm/benchmarks/lib/endpoint_request_func.py` (vLLM 0.17), `sglang/bench_serving.py` and `bench_offline_throughput.py` (`SGLang` 0.5.9).

use serde_json::{Map, Value};

use super::lengths::TOKENS_MAX;
use super::reader::Reader;
use super::unpriced::left_out;

/// The options.
const OPTIONS: [&str; 2] = ["extra-body", "extra-request-body"];

/// Reads the fields. A length of answers takes the place of the client's own.
pub(super) fn read(read: &mut Reader<'_>, is_offline: bool) {
    let Some(option) = read.given(&OPTIONS) else { return };
    let Some(text) = read.flags.needed(option) else { return };
    let Ok(fields) = serde_json::from_str::<Map<String, Value>>(&text) else {
        return read.flags.wrong(
            option,
            format!("`--{option} {text}` is no JSON object"),
            "for example {\"max_tokens\": 64}".to_owned(),
        );
    };
    let length = field_of_length(read, is_offline);
    for (name, value) in &fields {
        if let Some(inner) = value.as_object().filter(|_| name == SAMPLING) {
            sampling(read, option, inner);
        } else {
            field(read, option, (name, value), length);
        }
    }
}

/// The object of `SGLang`'s own interface that holds what is sampled.
const SAMPLING: &str = "sampling_params";
/// Its name of the length.
const NEW_TOKENS: &str = "max_new_tokens";

/// The field whose length counts. Beside chats clients send `max_completion_tokens`, which servers take before `max_tokens`.
fn field_of_length(read: &Reader<'_>, is_offline: bool) -> &'static str {
    match read.is_chat() {
        _ if is_offline => NEW_TOKENS,
        true => "max_completion_tokens",
        false => "max_tokens",
    }
}

/// The whole of what is sampled in place of the client's: without a length it is the server's.
fn sampling(read: &mut Reader<'_>, option: &'static str, fields: &Map<String, Value>) {
    if !fields.contains_key(NEW_TOKENS) {
        let what = format!("`{SAMPLING}` of `--{option}` has no `{NEW_TOKENS}`: the server says how long answers are");
        read.warn(option, what, "answers are as long as the client asks for; give `--set trace.output_tokens=…`");
    }
    for (name, value) in fields {
        field(read, option, (name, value), NEW_TOKENS);
    }
}

/// What one field does, where so many tokens stand in `length`.
fn field(read: &mut Reader<'_>, option: &'static str, (name, value): (&str, &Value), length: &str) {
    if name == length {
        return answers(read, option, (name, value));
    }
    let why = match name {
        "stream" if value == false => Some("tokens are handed on one by one"),
        "ignore_eos" if value == false && option == OPTIONS[1] => Some("answers are as long as they are asked for"),
        "max_tokens" | "max_completion_tokens" => Some("the client sends another field of the length, which counts"),
        _ => left_out(name),
    };
    if let Some(why) = why {
        read.warn(option, format!("`{name}` of `--{option}` is not modelled"), why);
    }
}

/// Names the fields that a client adds to its requests besides those that are read elsewhere.
pub(super) fn name_others<'f>(
    read: &mut Reader<'_>,
    option: &'static str,
    fields: impl Iterator<Item = &'f str>,
    known: &[&str],
) {
    for name in fields.filter(|name| !known.contains(name)) {
        if let Some(why) = left_out(name) {
            read.warn(option, format!("`{name}` of `--{option}` is not modelled"), why);
        }
    }
}

/// The length of every answer.
fn answers(read: &mut Reader<'_>, option: &'static str, (name, value): (&str, &Value)) {
    let Some(tokens) = value.as_u64().filter(|tokens| (1..=TOKENS_MAX).contains(tokens)) else {
        let what = format!("`{name}` of `--{option}` is {value}, which is no length of answers");
        return read.flags.wrong(option, what, format!("allowed are whole numbers from 1 to {TOKENS_MAX}"));
    };
    if read.gives("lengths") {
        let what = format!("`{name}` of `--{option}` beside conversations is not modelled");
        let help =
            "lengths are those of the table; `--set trace.prompt_tokens=…` with `trace.output_tokens` gives others";
        read.warn(option, what, help);
    } else if read.wants_tokens("output_tokens") {
        read.replace("output_tokens", tokens, format!("--{option} {name}"));
    }
}
