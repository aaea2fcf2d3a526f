//! Files with a line for every request: AIPerf's export, spans with the `gen_ai` attributes of OpenTelemetry, an engine's own log.
//!
//! Lines are read one by one, so a long file takes the memory of its requests alone.

use serde_json::{Map, Value};

use super::aiperf::seconds;
use super::{Bench, BenchError, Load, Seen, number, tokens};

/// A reader of lines.
pub struct Client {
    name: &'static str,
    /// Keys that a line has.
    known_by: &'static [&'static str],
    /// A request; `None` where it failed or is no request.
    read: fn(&Value) -> Option<Seen>,
}

static CLIENTS: [Client; 3] = [
    Client { name: "aiperf", known_by: &["metadata", "metrics"], read: aiperf },
    Client { name: "an engine's log", known_by: &["queued_ts", "first_token_ts", "last_token_ts"], read: of_engine },
    Client { name: "spans", known_by: &["attributes"], read: span },
];

/// Whose file begins with such a line.
pub fn client(first: &Map<String, Value>) -> Option<&'static Client> {
    CLIENTS.iter().find(|client| client.known_by.iter().all(|key| first.contains_key(*key)))
}

/// Reads all lines.
pub fn read(text: &str, client: &Client) -> Result<Bench, BenchError> {
    let (mut requests, mut n_all) = (Vec::new(), 0);
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line: Value = serde_json::from_str(line)
            .map_err(|error| BenchError::Json { line: index + 1, what: error.to_string() })?;
        if is_warm_up(&line) {
            continue;
        }
        n_all += 1;
        requests.extend((client.read)(&line));
    }
    Bench::of_requests(client.name, Load::AsSent, requests, n_all)
}

/// AIPerf marks what it sends before it measures.
fn is_warm_up(line: &Value) -> bool {
    line["metadata"]["benchmark_phase"].as_str() == Some("warmup")
}

fn aiperf(line: &Value) -> Option<Seen> {
    let (metadata, metrics) = (&line["metadata"], &line["metrics"]);
    if metadata["was_cancelled"].as_bool() == Some(true) || !line["error"].is_null() {
        return None;
    }
    let time = |name: &str| Some(seconds(number(&metrics[name]["value"])?, &metrics[name]["unit"]));
    let length = |name: &str| tokens(&metrics[name]["value"]);
    let sent = number(&metadata["request_start_ns"])? / 1e9;
    let lengths = [length("input_sequence_length")?, length("output_sequence_length")?];
    Seen::new(sent, lengths, [time("time_to_first_token")?, time("request_latency")?])
}

fn of_engine(line: &Value) -> Option<Seen> {
    let at = |key: &str| number(&line[key]);
    let queued = at("queued_ts")?;
    let lengths = [tokens(&line["input_toks"])?, tokens(&line["output_toks"])?];
    let seen = Seen::new(queued, lengths, [at("first_token_ts")? - queued, at("last_token_ts")? - queued])?;
    Some(Seen { queue_s: at("scheduled_ts").map(|at| (at - queued).max(0.0)), ..seen })
}

/// Attributes are an object, or OpenTelemetry's list of keys and values.
fn span(line: &Value) -> Option<Seen> {
    let attribute = |name: &str| match &line["attributes"] {
        Value::Array(list) => {
            let value = &list.iter().find(|entry| entry["key"] == name)?["value"];
            ["intValue", "doubleValue", "stringValue"].iter().find_map(|kind| value.get(*kind)).and_then(loose)
        }
        attributes => loose(attributes.get(name)?),
    };
    let either = |names: [&str; 2]| names.into_iter().find_map(attribute);
    let count = |names: [&str; 2]| tokens(&Value::from(either(names)?));
    let start = loose(line.get("startTimeUnixNano")?)? / 1e9;
    let lengths = [
        count(["gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"])?,
        count(["gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"])?,
    ];
    let ttft = either(["gen_ai.latency.time_to_first_token", "gen_ai.server.time_to_first_token"])?;
    let end = line.get("endTimeUnixNano").and_then(loose).map(|ns| ns / 1e9 - start);
    let e2e = attribute("gen_ai.latency.e2e").or(end)?;
    Seen::new(start, lengths, [ttft, e2e])
}

/// A number, also where it is written as text.
fn loose(value: &Value) -> Option<f64> {
    number(value).or_else(|| value.as_str()?.parse().ok().filter(|number: &f64| number.is_finite()))
}
