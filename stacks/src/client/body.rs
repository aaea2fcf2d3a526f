//! What clients add to the body of every request: `--extra-body` of vLLM's, `--extra-request-body` of `SGLang`'s. It stands over the client's own fields.
//!
//! Sources: `vllm/benchmarks/lib/endpoint_request_func.py` (vLLM 0.17), `sglang/bench_serving.py` and `bench_offline_throughput.py` (`SGLang` 0.5.9).

use serde_json::{Map, Value};

use super::lengths::TOKENS_MAX;
use super::reader::Reader;

/// The options.
const OPTIONS: [&str; 2] = ["extra-body", "extra-request-body"];

/// Fields that change neither how long an answer is nor what a token takes: how a token is chosen, and what a client is told. Answers are as long as they are asked
/// for, so `ignore_eos` changes none.
const SILENT: [&str; 21] = [
    "frequency_penalty",
    "ignore_eos",
    "include_reasoning",
    "min_p",
    "model",
    "parallel_tool_calls",
    "presence_penalty",
    "repetition_penalty",
    "return_token_ids",
    "seed",
    "separate_reasoning",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop_token_ids",
    "stream",
    "stream_options",
    "stream_reasoning",
    "temperature",
    "top_k",
    "top_p",
    "user",
];

/// Fields that matter, and why they are not modelled.
const NAMED: [(&str, &str); 17] = [
    ("best_of", "every prompt has one answer"),
    ("chat_template_kwargs", "prompts and answers are as long as they are asked for, whether a model thinks or not"),
    ("guided_json", "a grammar takes no time"),
    ("logprobs", "probabilities that a client is told take no time"),
    ("lora_path", "adapters are those of the server"),
    ("max_thinking_tokens", "answers are as long as they are asked for"),
    ("min_new_tokens", "answers are as long as they are asked for"),
    ("min_tokens", "answers are as long as they are asked for"),
    ("n", "every prompt has one answer"),
    ("priority", "requests have the priority of the trace"),
    ("prompt_logprobs", "probabilities that a client is told take no time"),
    ("reasoning_effort", "answers are as long as they are asked for"),
    ("response_format", "a grammar takes no time"),
    ("stop", "answers are as long as they are asked for"),
    ("structured_outputs", "a grammar takes no time"),
    ("tools", "prompts are as long as they are asked for"),
    ("top_logprobs", "probabilities that a client is told take no time"),
];

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
    let why = match NAMED.iter().find(|(known, _)| *known == name) {
        _ if value == false && name == "stream" => "tokens are handed on one by one",
        _ if value == false && name == "ignore_eos" && option == OPTIONS[1] => {
            "answers are as long as they are asked for"
        }
        Some((_, why)) => why,
        None if SILENT.contains(&name) => return,
        None if ["max_tokens", "max_completion_tokens"].contains(&name) => {
            "the client sends another field of the length, which counts"
        }
        None => "it is in no list of fields, and taken to change neither time nor memory",
    };
    read.warn(option, format!("`{name}` of `--{option}` is not modelled"), why);
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
