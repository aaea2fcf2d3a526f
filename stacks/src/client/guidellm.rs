//! GuideLLM: `guidellm benchmark --rate-type concurrent --rate 32 --data "prompt_tokens=1024,output_tokens=128"`, and `guidellm run` with a `kind` in each.
//!
//! Sources: vllm-project/guidellm at v0.5.3 (`src/guidellm/__main__.py`) and package guidellm 0.8.1 (`guidellm/schemas/benchmark`, `guidellm/utils/random.py`).

use serde_json::{Map, Value};

use super::arrivals::{self, EVEN, Load, OF_A_TIME, RATES, REQUESTS_MAX, Said};
use super::lengths::{self, TOKENS_MAX};
use super::reader::Reader;
use super::sampling;
use super::{body, drawn};
use crate::flags::Flag;

/// Words of an option with an `=` in each, or a JSON object; a word alone is the `kind`.
type Parts = Map<String, Value>;

/// Reads the options.
pub(super) fn read(read: &mut Reader<'_>) {
    join(&mut read.flags.given, "rate");
    data(read);
    let profile = profile(read);
    let load = load(read, &profile);
    let is_held = arrivals::write(read, &load);
    let count = requests(read, &load);
    arrivals::count(read, count, None, is_held);
    sampling::read(read, None);
    OF_BACKEND.into_iter().for_each(|option| name_fields(read, option));
}

/// Options of the backend, in which an object `body` is added to every request.
const OF_BACKEND: [&str; 3] = ["backend-args", "backend-kwargs", "request-formatter-kwargs"];

/// Names the fields of such a body that are not read.
fn name_fields(read: &mut Reader<'_>, option: &'static str) {
    let Some(text) = read.flags.find(option).map(Flag::value) else { return };
    let whole: Value = serde_json::from_str(&text).unwrap_or_default();
    if let Some(Value::Object(fields)) = drawn::within(&whole, "body") {
        body::name_others(read, option, fields.keys().map(String::as_str), &[]);
    }
}

/// An option that stands several times as one with a list, as the client has it.
fn join(given: &mut Vec<Flag>, name: &str) {
    let values: Vec<String> =
        given.iter().filter(|flag| flag.name == name).flat_map(|flag| flag.values.clone()).collect();
    let Some(first) = given.iter().position(|flag| flag.name == name) else { return };
    given[first].values = values;
    let mut index = 0..;
    given.retain(|flag| index.next() == Some(first) || flag.name != name);
}

/// An option as its parts.
fn parts(text: &str) -> Parts {
    if let Ok(Value::Object(whole)) = serde_json::from_str(text) {
        return whole;
    }
    let mut found = Parts::new();
    let mut last = "kind".to_owned();
    for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
        if let Some((key, value)) = word.split_once('=') {
            last = key.trim().to_owned();
            found.insert(last.clone(), Value::from(value.trim()));
        } else {
            // Further values of a list.
            found.entry(last.clone()).or_insert_with(|| Value::from(word));
        }
    }
    found
}

/// A whole number of a part.
fn whole(parts: &Parts, key: &str) -> Option<u64> {
    let value = parts.get(key)?;
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).filter(|n| *n <= TOKENS_MAX)
}

/// Lengths of made-up prompts and answers; other data is not read.
fn data(read: &mut Reader<'_>) {
    const DATA: &str = "data";
    if !["prompt_tokens", "output_tokens"].iter().any(|key| read.wants_tokens(key)) {
        return;
    }
    let Some(text) = read.flags.needed(DATA) else { return no_data(read) };
    let parts = parts(&text);
    if whole(&parts, "prompt_tokens").is_none() {
        return lengths::fallback(read, DATA, &text);
    }
    for key in ["prompt_tokens", "output_tokens"] {
        tokens(read, &parts, key);
    }
    let others = ["turns", "prefix_tokens", "prefix_count", "prefix_buckets"];
    for key in others.into_iter().filter(|key| parts.contains_key(*key) && whole(&parts, key) != Some(1)) {
        let what = format!("`{key}` of `--{DATA}` is not modelled");
        read.warn(DATA, what, "every request stands alone, with a prompt of its own");
    }
}

/// Without data there are no requests; a file of options may say it.
fn no_data(read: &mut Reader<'_>) {
    if read.flags.find("data").is_none() {
        lengths::fallback(read, "scenario", "of no `--data`");
    }
}

/// One of both lengths: a mean with ends, or with a deviation.
fn tokens(read: &mut Reader<'_>, parts: &Parts, key: &'static str) {
    if !read.wants_tokens(key) {
        return;
    }
    let Some(mean) = whole(parts, key).filter(|mean| *mean > 0) else {
        return lengths::open_answers(read, "output_tokens=…");
    };
    let deviation = ["stdev", "variance"].iter().find_map(|end| whole(parts, &format!("{key}_{end}"))).unwrap_or(0);
    let [from, to] = ["min", "max"].map(|end| whole(parts, &format!("{key}_{end}")).map(|n| n.max(1)));
    let ends = match (from, to) {
        (None, None) => lengths::deviating(read, mean, "data", hw::real(deviation)),
        _ if deviation > 0 => {
            let [low, high] = lengths::deviating(read, mean, "data", hw::real(deviation));
            let from = from.map_or(low, |from| from.max(low));
            [from, to.map_or(high, |to| to.min(high)).max(from)]
        }
        _ => {
            let from = from.unwrap_or(mean);
            [from, to.unwrap_or(mean).max(from)]
        }
    };
    read.set(key, lengths::text(ends), format!("{key} of --data"));
}

/// How requests are sent: the word of `--rate-type` or `--profile`, with what stands beside it.
fn profile(read: &mut Reader<'_>) -> Parts {
    let Some(name) = read.given(&["rate-type", "profile"]) else { return parts("sweep") };
    read.flags.needed(name).map_or_else(Parts::new, |text| parts(&text))
}

/// The number of `--rate` or of the profile.
fn number(read: &mut Reader<'_>, profile: &Parts, keys: &[&str]) -> Said<f64> {
    if read.flags.find("rate").is_some() {
        let rate = read.real("rate")?;
        return Some((rate, "--rate".to_owned()));
    }
    let value = keys.iter().find_map(|key| profile.get(*key))?;
    let first = value.as_array().map_or(value, |list| list.first().unwrap_or(value));
    let number = first.as_f64().or_else(|| first.as_str()?.parse().ok()).filter(|n| n.is_finite() && *n > 0.0)?;
    Some((number, "--profile".to_owned()))
}

/// When requests are sent. A sweep begins with one request in flight.
fn load(read: &mut Reader<'_>, profile: &Parts) -> Load {
    if ["arrivals", "concurrency", "rate_per_s"].iter().any(|key| !read.wants(key)) {
        return Load::default();
    }
    let kind = profile.get("kind").and_then(Value::as_str).unwrap_or("sweep").to_owned();
    let name = read.given(&["rate-type", "profile"]).unwrap_or("profile");
    let said = number(read, profile, &["rate", "streams", "max_concurrency"]);
    let in_flight = |(n, flag): (f64, String)| (hw::whole(n.clamp(1.0, 1e6)), flag);
    match (kind.as_str(), said) {
        ("constant" | "async", Some((rate, flag))) if RATES.contains(&rate) => {
            Load { cv: Some((EVEN, format!("--{name} {kind}"))), per_s: Some((rate, flag)), cap: None }
        }
        ("poisson", Some((rate, flag))) if RATES.contains(&rate) => {
            Load { per_s: Some((rate, flag)), ..Load::default() }
        }
        ("concurrent" | "throughput", Some(said)) => Load { cap: Some(in_flight(said)), ..Load::default() },
        ("throughput", None) => Load::default(),
        ("synchronous", _) => Load { cap: Some((1, format!("--{name} synchronous"))), ..Load::default() },
        _ => {
            let what = format!(
                "`{kind}` of `guidellm` is many runs, or has no rate: one request in flight is taken, as in the first of a sweep"
            );
            read.warn(
                name,
                what,
                "give `--set trace.concurrency=…` or `--set trace.rate_per_s=…` for the run that is meant",
            );
            Load { cap: Some((1, "the first run of a sweep".to_owned())), ..Load::default() }
        }
    }
}

/// Requests and seconds at most, as constraints say them; others are not modelled.
fn limits(read: &mut Reader<'_>) -> [Option<u64>; 2] {
    const NAME: &str = "constraint";
    const KINDS: [&str; 2] = ["max_requests", "max_seconds"];
    let mut found = [None; 2];
    for flag in read.flags.given.clone().iter().filter(|flag| flag.name == NAME) {
        let parts = parts(&flag.value());
        let kind = parts.get("kind").and_then(Value::as_str).unwrap_or_default();
        match KINDS.iter().position(|known| *known == kind).zip(whole(&parts, "value")) {
            Some((index, n)) => found[index] = Some(n),
            None => {
                let what = format!("`--{NAME} {}` is not modelled", flag.value());
                read.warn(NAME, what, "`max_requests` and `max_seconds` with a `value` are");
            }
        }
    }
    found
}

/// How many requests there are, or fit into a time.
fn requests(read: &mut Reader<'_>, load: &Load) -> Said<u64> {
    if !read.wants("requests") {
        return None;
    }
    let limits = limits(read);
    if let Some(n) = limits[0] {
        return Some((n.max(1), "--constraint".to_owned()));
    }
    if read.flags.find("max-requests").is_some() {
        return read.whole_or(&["max-requests"], 1, REQUESTS_MAX);
    }
    let seconds = limits[1].map(hw::real);
    let seconds = seconds.or_else(|| read.given(&["max-seconds"]).and_then(|name| read.real(name)));
    if let Some(found) = seconds.and_then(|seconds| arrivals::within(load, seconds, "max-seconds")) {
        return Some(found);
    }
    let what = format!("how many requests `guidellm` sends is not known: {OF_A_TIME} are taken");
    read.warn("max-seconds", what, "give `--max-requests`, or `--set trace.requests=…`");
    Some((OF_A_TIME, "stands for those of a time".to_owned()))
}
