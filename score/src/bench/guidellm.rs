//! A report of guidellm: a run for every load that it tried. Source: vllm-project/guidellm, src/guidellm/schemas, read at 31c74ea27242.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Bench, BenchError, Load, Seen, number, tokens};

const CLIENT: &str = "guidellm";

/// Latencies of the contract and the client's words of them; the last one is in seconds, the others in milliseconds.
const LATENCIES: [(&str, &str, f64); 3] = [
    ("ttft_s", "time_to_first_token_ms", 1e-3),
    ("tpot_s", "inter_token_latency_ms", 1e-3),
    ("e2e_s", "request_latency", 1.0),
];

/// Reads a report.
pub fn read(root: &Value) -> Result<Vec<Bench>, BenchError> {
    let benchmarks = root["benchmarks"].as_array().expect("asked before");
    if benchmarks.is_empty() {
        return Err(BenchError::Wrong { client: CLIENT, what: "the report has no benchmarks".to_owned() });
    }
    benchmarks.iter().map(one).collect()
}

fn one(benchmark: &Value) -> Result<Bench, BenchError> {
    let requests = &benchmark["requests"];
    let count = |state: &str| requests[state].as_array().map_or(0, Vec::len);
    let Some(list) = requests["successful"].as_array().filter(|list| !list.is_empty()) else {
        return of_sums(benchmark);
    };
    let seen = |request: &Value| {
        let ms = number(&request["time_to_first_token_ms"])?;
        let sent = number(&request["request_start_time"]).or_else(|| number(&request["start_time"]))?;
        let lengths = [tokens(&request["prompt_tokens"])?, tokens(&request["output_tokens"])?];
        Seen::new(sent, lengths, [ms / 1e3, number(&request["request_latency"])?])
    };
    let n_all = list.len() + count("errored") + count("incomplete");
    let load = in_flight(benchmark).map_or(Load::AsSent, Load::InFlight);
    Bench::of_requests(CLIENT, load, list.iter().filter_map(seen).collect(), n_all)
}

/// Requests in flight, where the strategy holds a number of them.
fn in_flight(benchmark: &Value) -> Option<u32> {
    let strategy = strategy(benchmark);
    match strategy["type_"].as_str() {
        Some("synchronous") => Some(1),
        Some("concurrent") => tokens(&strategy["streams"]).filter(|n| *n > 0),
        _ => None,
    }
}

/// Newer versions keep the strategy in `config`, older ones in `args`.
fn strategy(benchmark: &Value) -> &Value {
    let new = &benchmark["config"]["strategy"];
    if new.is_object() { new } else { &benchmark["args"]["strategy"] }
}

fn of_sums(benchmark: &Value) -> Result<Bench, BenchError> {
    let metrics = &benchmark["metrics"];
    let of = |name: &str| &metrics[name]["successful"];
    let (mut figures, mut deviations) = (BTreeMap::new(), BTreeMap::new());
    for (key, word, unit) in LATENCIES {
        let found = of(word);
        deviations.extend(number(&found["std_dev"]).map(|value| (format!("{key}.mean"), value * unit)));
        for (figure, value) in [
            ("mean", &found["mean"]),
            ("p50", &found["median"]),
            ("p90", &found["percentiles"]["p90"]),
            ("p99", &found["percentiles"]["p99"]),
        ] {
            figures.extend(number(value).map(|value| (format!("{key}.{figure}"), value * unit)));
        }
    }
    for (key, word) in [("requests_per_s", "requests_per_second"), ("output_tokens_per_s", "output_tokens_per_second")]
    {
        figures.extend(number(&of(word)["mean"]).map(|rate| (key.to_owned(), rate)));
    }
    let n = tokens(&of("request_latency")["count"]).map_or(0, |n| n as usize);
    let lengths = ["prompt_token_count", "output_token_count"].map(|name| number(&of(name)["mean"]).unwrap_or(0.0));
    let rate = number(&strategy(benchmark)["rate"]).filter(|rate| *rate > 0.0);
    Ok(Bench { deviations, ..Bench::of_sums(CLIENT, Load::of(in_flight(benchmark), rate), (n, lengths), figures)? })
}
