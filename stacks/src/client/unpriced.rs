//! Fields of a request, or of what a server takes for one, that neither change a length nor are priced, and why.

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
const NAMED: [(&str, &str); 24] = [
    ("best_of", "every prompt has one answer"),
    ("chat_template_kwargs", "prompts and answers are as long as they are asked for, whether a model thinks or not"),
    ("ebnf", "a grammar takes no time"),
    ("guided_choice", "a grammar takes no time"),
    ("guided_grammar", "a grammar takes no time"),
    ("guided_json", "a grammar takes no time"),
    ("guided_regex", "a grammar takes no time"),
    ("json_schema", "a grammar takes no time"),
    ("logprobs", "probabilities that a client is told take no time: `logprobs` of `trace.sampling` counts them"),
    ("lora_path", "adapters are those of the server"),
    ("max_thinking_tokens", "answers are as long as they are asked for"),
    ("min_new_tokens", "answers are as long as they are asked for"),
    ("min_tokens", "answers are as long as they are asked for"),
    ("n", "every prompt has one answer"),
    ("priority", "requests have the priority of the trace"),
    ("prompt_logprobs", "probabilities that a client is told take no time: `logprobs` of `trace.sampling` counts them"),
    ("reasoning_effort", "answers are as long as they are asked for"),
    ("regex", "a grammar takes no time"),
    ("response_format", "a grammar takes no time"),
    ("stop", "answers are as long as they are asked for"),
    ("structural_tag", "a grammar takes no time"),
    ("structured_outputs", "a grammar takes no time"),
    ("tools", "prompts are as long as they are asked for"),
    ("top_logprobs", "probabilities that a client is told take no time: `logprobs` of `trace.sampling` counts them"),
];

/// Why a field of a request is not modelled; `None` where it changes nothing.
pub(super) fn left_out(name: &str) -> Option<&'static str> {
    if SILENT.contains(&name) {
        return None;
    }
    let named = NAMED.iter().find(|(known, _)| *known == name).map(|(_, why)| *why);
    Some(named.unwrap_or("it is in no list of fields, and taken to change neither time nor memory"))
}
