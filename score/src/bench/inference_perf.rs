//! Requests of inference-perf: `per_request_lifecycle_metrics.json`, in its older and its newer form. Source: kubernetes-sigs/inference-perf.

use serde_json::Value;

use super::{Bench, BenchError, Load, Seen, number, tokens};

const CLIENT: &str = "inference-perf";

/// Reads a list of requests.
pub fn read(root: &Value) -> Result<Bench, BenchError> {
    let list = root.as_array().map_or(&[][..], Vec::as_slice);
    let seen: Vec<Seen> = list.iter().filter(|request| request["error"].is_null()).filter_map(one).collect();
    Bench::of_requests(CLIENT, Load::AsSent, seen, list.len())
}

fn one(request: &Value) -> Option<Seen> {
    let info = &request["info"];
    let answer = if info["response_metrics"].is_object() { &info["response_metrics"] } else { info };
    let prompt =
        [&info["input_tokens"], &info["request_metrics"]["text"]["input_tokens"]].into_iter().find_map(tokens)?;
    let times = answer["output_token_times"].as_array()?;
    let start = number(&request["start_time"])?;
    let since = |time: Option<&Value>| Some(number(time?)? - start);
    let lengths = [prompt, tokens(&answer["output_tokens"])?];
    Seen::new(start, lengths, [since(times.first())?, since(times.last())?])
}
