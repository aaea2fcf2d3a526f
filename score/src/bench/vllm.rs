//! `vllm bench serve --save-result`, with and without `--save-detailed`, and `sglang.bench_serving --output-file`, which writes the same words. Source:
//! vllm-project/vllm, vllm/benchmarks/serve.py, read at 009e6d4a1cd6; sgl-project/sglang, python/sglang/bench_serving.py.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Bench, BenchError, Load, Seen, number, tokens};

/// Whose file it is: SGLang's client alone says how long answers of one of its data sets are.
fn client(root: &Value) -> &'static str {
    if root.get("sharegpt_output_len").is_some() { "sglang.bench_serving" } else { "vllm bench serve" }
}

/// Rates of the contract and the client's words of them.
const RATES: [(&str, &str); 2] =
    [("requests_per_s", "request_throughput"), ("output_tokens_per_s", "output_throughput")];

/// Figures of the contract and the client's words of them; milliseconds.
const FIGURES: [(&str, &str); 9] = [
    ("ttft_s.mean", "mean_ttft_ms"),
    ("ttft_s.p50", "median_ttft_ms"),
    ("ttft_s.p90", "p90_ttft_ms"),
    ("ttft_s.p99", "p99_ttft_ms"),
    ("tpot_s.mean", "mean_tpot_ms"),
    ("tpot_s.p50", "median_tpot_ms"),
    ("tpot_s.p90", "p90_tpot_ms"),
    ("tpot_s.p99", "p99_tpot_ms"),
    ("e2e_s.mean", "mean_e2el_ms"),
];

/// Means of the contract and the client's words of what requests differ by; milliseconds.
const DEVIATIONS: [(&str, &str); 3] =
    [("ttft_s.mean", "std_ttft_ms"), ("tpot_s.mean", "std_tpot_ms"), ("e2e_s.mean", "std_e2el_ms")];

/// Reads a result.
pub fn read(root: &Value) -> Result<Bench, BenchError> {
    let in_flight = tokens(&root["max_concurrency"]).filter(|n| *n > 0);
    // The client writes a rate without an end as the word `inf`.
    let rate = number(&root["request_rate"]).filter(|rate| *rate > 0.0);
    let list = |key: &str| root[key].as_array();
    let lists = (list("input_lens"), list("output_lens"), list("ttfts"));
    let mut bench = match lists {
        (Some(prompts), Some(outputs), Some(ttfts)) => {
            let starts = list("start_times");
            let is_held = in_flight.is_some() && rate.is_none();
            let load = if starts.is_some() && !is_held { Load::AsSent } else { Load::of(in_flight, rate) };
            let request = |index: usize| {
                let ttft = number(ttfts.get(index)?)?;
                let gaps = || number(&root["itls"][index]);
                let e2e = number(&root["latencies"][index]).or_else(|| Some(ttft + gaps()?))?;
                let at = starts.and_then(|starts| number(starts.get(index)?)).unwrap_or(hw::real(index as u64) * 1e-9);
                let lengths = [tokens(prompts.get(index)?)?, tokens(outputs.get(index)?)?];
                let is_failed = root["errors"][index].as_str().is_some_and(|words| !words.is_empty());
                Seen::new(at, lengths, [ttft, e2e]).filter(|_| !is_failed)
            };
            let n = prompts.len().max(ttfts.len()).max(outputs.len());
            let mut bench = Bench::of_requests(client(root), load, (0..n).filter_map(request).collect(), n)?;
            if starts.is_none() {
                // Nobody kept when requests were sent, so their ends say nothing of a rate.
                bench.figures.retain(|key, _| RATES.iter().all(|(rate, _)| rate != key));
                bench.figures.extend(rates(root));
            }
            bench
        }
        _ => of_sums(root, in_flight, rate)?,
    };
    bench.model = root["model_id"].as_str().map(str::to_owned);
    Ok(bench)
}

/// Rates that the client printed.
fn rates(root: &Value) -> impl Iterator<Item = (String, f64)> {
    RATES.iter().filter_map(|(key, word)| Some(((*key).to_owned(), number(&root[*word])?)))
}

fn of_sums(root: &Value, in_flight: Option<u32>, rate: Option<f64>) -> Result<Bench, BenchError> {
    let n = tokens(&root["completed"]).unwrap_or(0);
    let mean = |key: &str| number(&root[key]).unwrap_or(0.0) / f64::from(n.max(1));
    let mut figures = BTreeMap::new();
    for (key, word) in FIGURES {
        figures.extend(number(&root[word]).map(|ms| (key.to_owned(), ms / 1e3)));
    }
    figures.extend(rates(root));
    let lengths = [mean("total_input_tokens"), mean("total_output_tokens")];
    let mut bench = Bench::of_sums(client(root), Load::of(in_flight, rate), (n as usize, lengths), figures)?;
    for (key, word) in DEVIATIONS {
        bench.deviations.extend(number(&root[word]).map(|ms| (key.to_owned(), ms / 1e3)));
    }
    bench.n_failed = tokens(&root["failed"]).map_or(0, |n| n as usize);
    Ok(bench)
}
