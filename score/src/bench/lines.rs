//! Files with a value for every request: AIPerf's export, spans with the `gen_ai` attributes of OpenTelemetry, an engine's own log.
//!
//! Values are read one by one, so a long file takes the memory of its requests alone. Spans come by themselves, or in the envelopes of a collector:
//! `resourceSpans`, `scopeSpans`, `spans` (OTLP in JSON). Names are in camel case or, as other writers of protobuf have them, in snake case. Moments
//! are nanoseconds, or dates as the console exporter of OpenTelemetry's Python package writes them.

use std::io::Read;
use std::time::UNIX_EPOCH;

use serde_json::Value;

use super::aiperf::seconds;
use super::pruned::Values;
use super::{Bench, BenchError, Load, REQUESTS_MAX, Seen, number, tokens};

/// A reader of values.
pub struct Client {
    name: &'static str,
    /// Keys, of which every group has one that a value has.
    known_by: &'static [&'static [&'static str]],
    /// The requests inside of a value.
    parts: fn(&Value) -> Vec<&Value>,
    /// A request; `None` where it failed.
    read: fn(&Value) -> Option<Seen>,
}

const ENVELOPES: &[&str] = &["resourceSpans", "resource_spans"];
const SCOPES: &[&str] = &["scopeSpans", "scope_spans", "instrumentationLibrarySpans"];

static CLIENTS: [Client; 4] = [
    Client { name: "aiperf", known_by: &[&["metadata"], &["metrics"]], parts: measured, read: aiperf },
    Client {
        name: "an engine's log",
        known_by: &[&["queued_ts"], &["first_token_ts"], &["last_token_ts"]],
        parts: itself,
        read: of_engine,
    },
    Client { name: "spans", known_by: &[ENVELOPES], parts: in_envelope, read: span },
    Client { name: "spans", known_by: &[&["attributes"]], parts: of_model, read: span },
];

/// Whose file begins with such a value.
pub fn client(first: &Value) -> Option<&'static Client> {
    let has_one = |keys: &&[&str]| keys.iter().any(|key| first.get(*key).is_some());
    CLIENTS.iter().find(|client| client.known_by.iter().all(has_one))
}

/// Reads all values, of which the first was read.
pub fn read<R: Read>(first: Value, mut rest: Values<R>, client: &Client) -> Result<Bench, BenchError> {
    let (mut requests, mut n_all) = (Vec::new(), 0);
    let mut value = Some(first);
    while let Some(whole) = value {
        let parts = (client.parts)(&whole);
        n_all += parts.len();
        requests.extend(parts.into_iter().filter_map(client.read));
        if requests.len() > REQUESTS_MAX {
            let what = format!("more than {REQUESTS_MAX} requests; so many are read");
            return Err(BenchError::Wrong { client: client.name, what });
        }
        value = rest.next()?;
    }
    Bench::of_requests(client.name, Load::AsSent, requests, n_all)
}

fn itself(value: &Value) -> Vec<&Value> {
    vec![value]
}

/// AIPerf marks what it sends before it measures.
fn measured(value: &Value) -> Vec<&Value> {
    let is_warm_up = value["metadata"]["benchmark_phase"].as_str() == Some("warmup");
    if is_warm_up { Vec::new() } else { vec![value] }
}

/// A span of a model; other spans of a server are no requests.
fn of_model(value: &Value) -> Vec<&Value> {
    let is_of_model = match &value["attributes"] {
        Value::Array(list) => {
            list.iter().any(|entry| entry["key"].as_str().is_some_and(|key| key.starts_with("gen_ai.")))
        }
        Value::Object(attributes) => attributes.keys().any(|key| key.starts_with("gen_ai.")),
        _ => false,
    };
    if is_of_model { vec![value] } else { Vec::new() }
}

fn in_envelope(value: &Value) -> Vec<&Value> {
    let scopes = list(value, ENVELOPES).flat_map(|resource| list(resource, SCOPES));
    scopes.flat_map(|scope| list(scope, &["spans"])).flat_map(of_model).collect()
}

/// What stands in the list under one of these names.
fn list<'v>(value: &'v Value, names: &[&str]) -> impl Iterator<Item = &'v Value> + use<'v> {
    let found = names.iter().find_map(|name| value.get(*name)?.as_array());
    found.into_iter().flatten()
}

fn aiperf(value: &Value) -> Option<Seen> {
    let (metadata, metrics) = (&value["metadata"], &value["metrics"]);
    if metadata["was_cancelled"].as_bool() == Some(true) || !value["error"].is_null() {
        return None;
    }
    let time = |name: &str| Some(seconds(number(&metrics[name]["value"])?, &metrics[name]["unit"]));
    let length = |name: &str| tokens(&metrics[name]["value"]);
    let sent = number(&metadata["request_start_ns"])? / 1e9;
    let lengths = [length("input_sequence_length")?, length("output_sequence_length")?];
    Seen::new(sent, lengths, [time("time_to_first_token")?, time("request_latency")?])
}

fn of_engine(value: &Value) -> Option<Seen> {
    let at = |key: &str| number(&value[key]);
    let queued = at("queued_ts")?;
    let lengths = [tokens(&value["input_toks"])?, tokens(&value["output_toks"])?];
    let seen = Seen::new(queued, lengths, [at("first_token_ts")? - queued, at("last_token_ts")? - queued])?;
    Some(Seen { queue_s: at("scheduled_ts").map(|at| (at - queued).max(0.0)), ..seen })
}

/// Attributes are an object, or OpenTelemetry's list of keys and values.
fn span(value: &Value) -> Option<Seen> {
    let attribute = |name: &str| match &value["attributes"] {
        Value::Array(list) => typed(&list.iter().find(|entry| entry["key"] == name)?["value"]),
        attributes => loose(attributes.get(name)?),
    };
    let either = |names: [&str; 2]| names.into_iter().find_map(attribute);
    let count = |names: [&str; 2]| tokens(&Value::from(either(names)?));
    let start = moment(value, ["startTimeUnixNano", "start_time_unix_nano", "start_time"])?;
    let lengths = [
        count(["gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"])?,
        count(["gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"])?,
    ];
    let ttft = either(["gen_ai.latency.time_to_first_token", "gen_ai.server.time_to_first_token"])?;
    let end = moment(value, ["endTimeUnixNano", "end_time_unix_nano", "end_time"]).map(|end| end - start);
    let e2e = attribute("gen_ai.latency.e2e").or(end)?;
    let seen = Seen::new(start, lengths, [ttft, e2e])?;
    let queue_s = attribute("gen_ai.latency.time_in_queue").filter(|queue_s| (0.0..=ttft).contains(queue_s));
    Some(Seen { queue_s, ..seen })
}

/// The value of an attribute, whose type is its key.
fn typed(value: &Value) -> Option<f64> {
    const TYPES: [&str; 6] = ["intValue", "doubleValue", "stringValue", "int_value", "double_value", "string_value"];
    TYPES.iter().find_map(|kind| value.get(*kind)).and_then(loose)
}

/// A moment under one of these names, seconds since 1970.
fn moment(value: &Value, names: [&str; 3]) -> Option<f64> {
    let found = names.iter().find_map(|name| value.get(*name))?;
    let of_date = |text: &str| humantime::parse_rfc3339_weak(text).ok()?.duration_since(UNIX_EPOCH).ok();
    loose(found).map(|ns| ns / 1e9).or_else(|| Some(of_date(found.as_str()?)?.as_secs_f64()))
}

/// A number, also where it is written as text.
fn loose(value: &Value) -> Option<f64> {
    number(value).or_else(|| value.as_str()?.parse().ok().filter(|number: &f64| number.is_finite()))
}
