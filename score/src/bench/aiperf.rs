//! Sums of AIPerf: `profile_export_aiperf.json`. Source: ai-dynamo/aiperf, docs/tutorials/working-with-profile-exports.md, read at 13992dbd9687.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Bench, BenchError, Load, number, tokens};

const CLIENT: &str = "aiperf";

/// Latencies of the contract and the client's words of them.
const LATENCIES: [(&str, &str); 3] =
    [("ttft_s", "time_to_first_token"), ("tpot_s", "inter_token_latency"), ("e2e_s", "request_latency")];

/// Seconds of a value in the unit that stands beside it.
pub fn seconds(value: f64, unit: &Value) -> f64 {
    match unit.as_str() {
        Some("s" | "sec" | "seconds") => value,
        Some("us") => value / 1e6,
        Some("ns") => value / 1e9,
        _ => value / 1e3,
    }
}

/// Metrics of a summary; some versions keep them in `records`.
fn metrics(root: &Value) -> &Value {
    if root["records"].is_object() { &root["records"] } else { root }
}

/// Whether a file is a summary.
pub fn is_summary(root: &Value) -> bool {
    metrics(root)["request_count"]["avg"].is_number()
}

/// Reads a summary.
pub fn read(root: &Value) -> Result<Bench, BenchError> {
    let metrics = metrics(root);
    let (mut figures, mut deviations) = (BTreeMap::new(), BTreeMap::new());
    for (key, word) in LATENCIES {
        let found = &metrics[word];
        deviations.extend(number(&found["std"]).map(|value| (format!("{key}.mean"), seconds(value, &found["unit"]))));
        for (figure, name) in [("mean", "avg"), ("p50", "p50"), ("p90", "p90"), ("p99", "p99")] {
            let value = number(&found[name]).map(|value| seconds(value, &found["unit"]));
            figures.extend(value.map(|value| (format!("{key}.{figure}"), value)));
        }
    }
    for (key, word) in [("requests_per_s", "request_throughput"), ("output_tokens_per_s", "output_token_throughput")] {
        figures.extend(number(&metrics[word]["avg"]).map(|rate| (key.to_owned(), rate)));
    }
    let asked = &root["input_config"]["loadgen"];
    let rate = number(&asked["request_rate"]).filter(|rate| *rate > 0.0);
    let load = match (tokens(&asked["concurrency"]).filter(|n| *n > 0), rate) {
        (Some(n), None) => Load::InFlight(n),
        (_, Some(rate)) => Load::Rate(rate),
        (None, None) => Load::Together,
    };
    let n = number(&metrics["request_count"]["avg"]).map_or(0, |n| usize::try_from(hw::whole(n)).unwrap_or(0));
    let mean = |name: &str| number(&metrics[name]["avg"]).unwrap_or(0.0);
    let lengths = [mean("input_sequence_length"), mean("output_sequence_length")];
    let mut bench = Bench::of_sums(CLIENT, load, (n, lengths), figures)?;
    bench.deviations = deviations;
    bench.model = root["input_config"]["endpoint"]["model_names"][0].as_str().map(str::to_owned);
    bench.n_failed =
        number(&metrics["error_request_count"]["avg"]).map_or(0, |n| usize::try_from(hw::whole(n)).unwrap_or(0));
    Ok(bench)
}
