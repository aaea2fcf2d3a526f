//! JSON-line traces: Mooncake's with prefix hashes, OpenAI requests as batch files and logs hold them, and conversations of ShareGPT.

use hw::Span;
use serde::Deserialize;
use serde_json::Value;

use super::instant::{self, Unit};
use super::sessions::Turn;
use super::{Faults, ImageParts, MOONCAKE_BLOCK_TOKENS, Parsed, Row};
use crate::request::TOKENS_MAX;

/// Characters per token where counts were not recorded: the usual figure for English text, an assumption.
const CHARACTERS_PER_TOKEN: usize = 4;
/// Output tokens where neither usage nor a limit was recorded: an assumption.
const OUTPUT_TOKENS_UNKNOWN: f64 = 128.0;

#[derive(Deserialize)]
struct Mooncake {
    timestamp: Option<f64>,
    input_length: Option<f64>,
    output_length: Option<f64>,
    #[serde(default)]
    hash_ids: Vec<u64>,
    session_id: Option<serde_json::Value>,
    delay: Option<f64>,
}

/// Column of a key, or the start of the line.
fn column_of(text: &str, key: &str) -> usize {
    text.find(&format!("\"{key}\"")).map_or(1, |position| position + 1)
}

/// A token count of a key.
fn tokens(line: u64, text: &str, key: &str, value: Option<f64>, faults: &mut Faults) -> Option<u32> {
    let Some(value) = value else {
        faults.add(line, 1, format!("key `{key}` is missing"));
        return None;
    };
    if value.fract() == 0.0 && (1.0..=f64::from(TOKENS_MAX)).contains(&value) {
        return u32::try_from(hw::whole(value)).ok();
    }
    let reason = format!("`{key}` is {value}, allowed are whole numbers from 1 to {TOKENS_MAX}");
    faults.add(line, column_of(text, key), reason);
    None
}

/// Reads a line as an object; a list of all requests, as ShareGPT's file is, is no line.
fn object<T: serde::de::DeserializeOwned>(line: u64, text: &str, faults: &mut Faults) -> Option<T> {
    if text.trim_start().starts_with('[') {
        let reason = "a list, and requests stand one per line: `jq -c '.[]' FILE > FILE.jsonl` writes them so";
        faults.add(line, 1, reason);
        return None;
    }
    let parsed = serde_json::from_str(text);
    if let Err(error) = &parsed {
        faults.add(line, error.column().max(1), format!("not a request: {error}"));
    }
    parsed.ok()
}

/// Reads a Mooncake row. Its last hash is of a block that is not full, which no cache shares, and is left out.
pub(super) fn mooncake(line: u64, text: &str, faults: &mut Faults) -> Parsed {
    let Some(row) = object::<Mooncake>(line, text, faults) else { return Parsed::Bad };
    let at_ns = row.timestamp.and_then(|at| instant::of_float(at, Unit::Milliseconds));
    let Ok(turn) = turn_of(line, text, &row, faults) else { return Parsed::Bad };
    let is_turn = turn.session.is_some() && row.timestamp.is_none();
    if at_ns.is_none() && !is_turn {
        let found = row.timestamp.map_or("missing".to_owned(), |at| at.to_string());
        let reason = format!("`timestamp` is {found}, expected milliseconds from 0 on");
        faults.add(line, column_of(text, "timestamp"), reason);
    }
    let prompt = tokens(line, text, "input_length", row.input_length, faults);
    let output = tokens(line, text, "output_length", row.output_length, faults);
    let (Some(prompt), Some(output)) = (prompt, output) else { return Parsed::Bad };
    if at_ns.is_none() && !is_turn {
        return Parsed::Bad;
    }
    let n_full = (prompt / MOONCAKE_BLOCK_TOKENS) as usize;
    let mut hashes = row.hash_ids;
    hashes.truncate(n_full);
    let at_column = column_of(text, "timestamp");
    Parsed::Row(Row { at_ns, at_column, prompt, output, hashes, turn, ..Row::default() })
}

/// Session and pause of a row: a name or a number, and milliseconds.
fn turn_of(line: u64, text: &str, row: &Mooncake, faults: &mut Faults) -> Result<Turn, NoTurn> {
    let session = match &row.session_id {
        None | Some(Value::Null) => None,
        Some(Value::String(name)) => Some(name.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        Some(other) => {
            faults.add(
                line,
                column_of(text, "session_id"),
                format!("`session_id` is {other}, expected a name or a number"),
            );
            return Err(NoTurn);
        }
    };
    let delay =
        row.delay.map(|delay| instant::of_float(delay, Unit::Milliseconds).and_then(|ns| u64::try_from(ns).ok()));
    if delay == Some(None) {
        let found = row.delay.unwrap_or_default();
        faults.add(line, column_of(text, "delay"), format!("`delay` is {found}, expected milliseconds from 0 on"));
        return Err(NoTurn);
    }
    if delay.is_some() && session.is_none() {
        faults.add(line, column_of(text, "delay"), "`delay` without `session_id`: nothing is known to end before it");
        return Err(NoTurn);
    }
    Ok(Turn { session, delay: delay.flatten().map(Span::from_ns) })
}

/// A row whose session is wrong, which a fault has said.
struct NoTurn;

#[derive(Deserialize)]
struct OpenAi {
    timestamp: Option<f64>,
    usage: Option<Usage>,
    body: Option<Body>,
    prompt: Option<serde_json::Value>,
    messages: Option<serde_json::Value>,
    max_tokens: Option<f64>,
    max_completion_tokens: Option<f64>,
    n: Option<f64>,
    best_of: Option<f64>,
    response: Option<Response>,
    conversations: Option<Vec<Said>>,
}

/// What someone says in a conversation of ShareGPT.
#[derive(Deserialize)]
struct Said {
    value: String,
}

#[derive(Clone, Copy, Deserialize)]
struct Usage {
    prompt_tokens: Option<f64>,
    completion_tokens: Option<f64>,
}

#[derive(Deserialize)]
struct Response {
    body: Option<ResponseBody>,
}

#[derive(Deserialize)]
struct ResponseBody {
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Body {
    prompt: Option<serde_json::Value>,
    messages: Option<serde_json::Value>,
    max_tokens: Option<f64>,
    max_completion_tokens: Option<f64>,
    n: Option<f64>,
    best_of: Option<f64>,
}

/// Characters of all texts in a value.
fn characters(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.chars().count(),
        serde_json::Value::Array(items) => items.iter().map(characters).sum(),
        serde_json::Value::Object(map) => {
            map.iter().filter(|(key, _)| matches!(key.as_str(), "content" | "text")).map(|(_, v)| characters(v)).sum()
        }
        _ => 0,
    }
}

/// Parts of messages that are images: `image_url` of chats, `input_image` of responses, `image` of others.
fn images(value: &serde_json::Value) -> u32 {
    match value {
        serde_json::Value::Array(items) => items.iter().map(images).sum(),
        serde_json::Value::Object(map) => {
            let kind = map.get("type").and_then(serde_json::Value::as_str);
            let is_image = matches!(kind, Some("image_url" | "input_image" | "image"));
            u32::from(is_image) + map.get("content").map_or(0, images)
        }
        _ => 0,
    }
}

/// Whether a value has a part that is neither text nor an image, as `input_audio`, `video_url` and `file` are.
fn has_other_parts(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Array(items) => items.iter().any(has_other_parts),
        serde_json::Value::Object(map) => {
            let kind = map.get("type").and_then(serde_json::Value::as_str).unwrap_or("");
            let is_other = ["audio", "video", "file"].iter().any(|word| kind.contains(word));
            is_other || map.get("content").is_some_and(has_other_parts)
        }
        _ => false,
    }
}

/// Tokens of a text, where nobody counted them.
fn guessed(characters: usize) -> f64 {
    hw::real(characters.div_ceil(CHARACTERS_PER_TOKEN).max(1) as u64)
}

/// The first question and its answer, as benchmarks of serving engines take them; a conversation without an answer is left out.
fn conversation(line: u64, turns: &[Said], faults: &mut Faults) -> Parsed {
    let [question, answer, ..] = turns else { return Parsed::LeftOut };
    let mut count = |turn: &Said| tokens(line, "", "value", Some(guessed(turn.value.chars().count())), faults);
    let (Some(prompt), Some(output)) = (count(question), count(answer)) else { return Parsed::Bad };
    Parsed::Row(Row { at_column: 1, prompt, output, estimated: true, ..Row::default() })
}

/// Reads an OpenAI request: a line of a batch file (`body`), a bare request, or a log line with `usage`.
pub(super) fn openai(line: u64, text: &str, faults: &mut Faults) -> Parsed {
    let Some(row) = object::<OpenAi>(line, text, faults) else { return Parsed::Bad };
    if let Some(turns) = &row.conversations {
        return conversation(line, turns, faults);
    }
    let at_ns = row.timestamp.and_then(|at| instant::of_float(at, Unit::Seconds));
    if row.timestamp.is_some() && at_ns.is_none() {
        faults.add(line, column_of(text, "timestamp"), "`timestamp` is not a time in seconds from 0 on");
        return Parsed::Bad;
    }
    let body = row.body.unwrap_or(Body {
        prompt: row.prompt,
        messages: row.messages,
        max_tokens: row.max_tokens,
        max_completion_tokens: row.max_completion_tokens,
        n: row.n,
        best_of: row.best_of,
    });
    let usage = row.usage.or_else(|| row.response?.body?.usage);
    let words = body.messages.as_ref().or(body.prompt.as_ref());
    let guessed = words.map(|words| guessed(characters(words)));
    let limit = body.max_completion_tokens.or(body.max_tokens);
    let recorded = (usage.and_then(|u| u.prompt_tokens), usage.and_then(|u| u.completion_tokens));
    if recorded.0.is_none() && guessed.is_none() {
        faults.add(line, 1, "neither `usage.prompt_tokens` nor `messages` or `prompt` tells the prompt's length");
        return Parsed::Bad;
    }
    let prompt = tokens(line, text, "prompt_tokens", recorded.0.or(guessed), faults);
    let output = recorded.1.or(limit).unwrap_or(OUTPUT_TOKENS_UNKNOWN);
    let output = tokens(line, text, "completion_tokens", Some(output), faults);
    let (Some(prompt), Some(output)) = (prompt, output) else { return Parsed::Bad };
    let estimated = recorded.0.is_none() || recorded.1.is_none();
    let at_column = column_of(text, "timestamp");
    // What a server counts of a prompt holds its images, what is guessed from text does not.
    let images = ImageParts { n: words.map_or(0, images), is_counted: recorded.0.is_some() };
    let has_other_parts = words.is_some_and(has_other_parts);
    let has_choices = body.n.into_iter().chain(body.best_of).any(|n| n > 1.0);
    Parsed::Row(Row {
        at_ns,
        at_column,
        prompt,
        output,
        estimated,
        images,
        has_other_parts,
        has_choices,
        ..Row::default()
    })
}
