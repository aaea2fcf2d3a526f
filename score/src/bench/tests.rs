//! Files of every client, small enough to be counted by hand, and measured runs where they are there.

use super::compare::{compare, settings};
use super::*;
use proptest::prelude::*;

/// Two requests: 10 + 3 tokens, first at 0.1 s, last at 0.3 s; 20 + 1 tokens sent half a second later, 0.2 s. And one that failed.
/// TTFT is 0.15 s, TPOT 0.1 s, the last token comes at 0.7 s: 4 tokens in 0.7 s.
fn holds(text: &str, n_failed: usize) {
    let runs = read(text.as_bytes()).expect("a measured run");
    let [bench] = &runs[..] else { panic!("{} runs", runs.len()) };
    let figure = |key: &str| bench.figures[key];
    for (key, value) in
        [("ttft_s.mean", 0.15), ("tpot_s.mean", 0.1), ("e2e_s.mean", 0.25), ("requests_per_s", 2.0 / 0.7)]
    {
        assert!((figure(key) - value).abs() < 1e-9, "{}: {key} is {}", bench.client, figure(key));
    }
    let played = bench.played();
    let lengths: Vec<(u32, u32)> = played.list.iter().map(|request| (request.prompt, request.output)).collect();
    assert_eq!((lengths, bench.n_failed), (vec![(10, 3), (20, 1)], n_failed), "{}", bench.client);
    assert_eq!((bench.load, played.list[1].arrival.as_ns()), (Load::AsSent, 500_000_000), "{}", bench.client);
}

const VLLM: &str = r#"{"model_id": "org/M", "request_rate": 2.0, "max_concurrency": null, "completed": 2, "total_input_tokens": 30,
  "total_output_tokens": 4, "input_lens": [10, 20, 5], "output_lens": [3, 1, 0], "ttfts": [0.1, 0.2, 0.0], "itls": [[0.1, 0.1], [], []],
  "start_times": [7.0, 7.5, 8.0], "errors": ["", "", "timed out"], "mean_ttft_ms": 150.0, "mean_tpot_ms": 100.0}"#;

/// Without moments the client's own rates stand, and a request whose lists are too short is left out and counted.
#[test]
fn rates_of_requests_without_moments_are_those_that_the_client_printed() {
    let cut =
        VLLM.replace("\"start_times\": [7.0, 7.5, 8.0], ", "\"request_throughput\": 2.5, \"output_throughput\": 5.5, ");
    let [bench] = &read(cut.as_bytes()).expect("a run")[..] else { panic!("one run") };
    assert_eq!((bench.figures["requests_per_s"], bench.figures["output_tokens_per_s"]), (2.5, 5.5));
    assert!((bench.figures["ttft_s.mean"] - 0.15).abs() < 1e-9 && bench.client == "vllm bench serve");
    let silent = VLLM.replace("\"start_times\": [7.0, 7.5, 8.0], ", "");
    let [bench] = &read(silent.as_bytes()).expect("a run")[..] else { panic!("one run") };
    assert!(!bench.figures.contains_key("requests_per_s"));
    let short = VLLM.replace("\"ttfts\": [0.1, 0.2, 0.0]", "\"ttfts\": [0.1], \"sharegpt_output_len\": null");
    let [bench] = &read(short.as_bytes()).expect("a run")[..] else { panic!("one run") };
    assert_eq!((bench.requests.len(), bench.n_failed, bench.client), (1, 2, "sglang.bench_serving"));
}

const GUIDELLM: &str = r#"{"benchmarks": [{"config": {"strategy": {"type_": "poisson", "rate": 2.0}}, "requests": {"successful": [
  {"request_start_time": 7.5, "prompt_tokens": 20, "output_tokens": 1, "time_to_first_token_ms": 200.0, "request_latency": 0.2},
  {"request_start_time": 7.0, "prompt_tokens": 10, "output_tokens": 3, "time_to_first_token_ms": 100.0, "request_latency": 0.3}],
  "errored": [{}], "incomplete": []}}]}"#;

const AIPERF: &str = r#"{"metadata": {"request_start_ns": 6000000000, "benchmark_phase": "warmup"}, "metrics": {}, "error": null}
{"metadata": {"request_start_ns": 7000000000, "benchmark_phase": "profiling"}, "metrics": {"input_sequence_length": {"value": 10}, "output_sequence_length": {"value": 3}, "time_to_first_token": {"value": 100.0, "unit": "ms"}, "request_latency": {"value": 0.3, "unit": "s"}}, "error": null}
{"metadata": {"request_start_ns": 7500000000}, "metrics": {"input_sequence_length": {"value": 20}, "output_sequence_length": {"value": 1}, "time_to_first_token": {"value": 200.0, "unit": "ms"}, "request_latency": {"value": 200.0, "unit": "ms"}}, "error": null}

{"metadata": {"request_start_ns": 7600000000, "was_cancelled": true}, "metrics": {}, "error": {"code": 499}}
"#;

const INFERENCE_PERF: &str = r#"[
  {"start_time": 7.0, "end_time": 7.3, "info": {"input_tokens": 10, "output_tokens": 3, "output_token_times": [7.1, 7.2, 7.3]}, "error": null},
  {"start_time": 7.5, "info": {"request_metrics": {"text": {"input_tokens": 20}}, "response_metrics": {"output_tokens": 1, "output_token_times": [7.7]}}, "error": null},
  {"start_time": 7.6, "info": {"input_tokens": 5}, "error": {"error_type": "x"}}]"#;

const SPANS: &str = r#"{"startTimeUnixNano": "7000000000", "endTimeUnixNano": "7300000000", "attributes": [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "10"}}, {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "3"}}, {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.1}}]}
{"startTimeUnixNano": 7500000000, "attributes": {"gen_ai.usage.prompt_tokens": 20, "gen_ai.usage.completion_tokens": 1, "gen_ai.latency.time_to_first_token": 0.2, "gen_ai.latency.e2e": 0.2}}
{"startTimeUnixNano": 7600000000, "attributes": {"http.route": "/health"}}
{"startTimeUnixNano": 7600000000, "attributes": {"gen_ai.usage.prompt_tokens": 20}}
"#;

/// A file of a collector: other spans stand between the requests.
const OTLP: &str = r#"{"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": [{"startTimeUnixNano": "1", "attributes": [{"key": "http.route", "value": {"stringValue": "/health"}}]},
  {"startTimeUnixNano": "7000000000", "endTimeUnixNano": "7300000000", "attributes": [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "10"}}, {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "3"}}, {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.1}}]}]}]}]}
{"resource_spans": [{"scope_spans": [{"spans": [{"start_time_unix_nano": 7500000000, "end_time_unix_nano": 7700000000, "attributes": [{"key": "gen_ai.usage.prompt_tokens", "value": {"int_value": 20}}, {"key": "gen_ai.usage.completion_tokens", "value": {"int_value": 1}}, {"key": "gen_ai.latency.time_to_first_token", "value": {"double_value": 0.2}}]},
  {"attributes": [{"key": "gen_ai.system", "value": {"string_value": "x"}}]}]}]}]}"#;

/// The console exporter of OpenTelemetry's Python package: objects over several lines, with dates.
const CONSOLE: &str = r#"{
    "name": "llm_request", "start_time": "1970-01-01T00:00:07.000000Z", "end_time": "1970-01-01T00:00:07.300000Z",
    "attributes": {"gen_ai.usage.prompt_tokens": 10, "gen_ai.usage.completion_tokens": 3, "gen_ai.latency.time_to_first_token": 0.1, "gen_ai.latency.time_in_queue": 0.02}
}
{
    "start_time": "1970-01-01T00:00:07.500000Z", "end_time": "1970-01-01T00:00:07.700000Z",
    "attributes": {"gen_ai.usage.prompt_tokens": 20, "gen_ai.usage.completion_tokens": 1, "gen_ai.latency.time_to_first_token": 0.2, "gen_ai.latency.time_in_queue": 0.0}
}"#;

const ENGINE: &str = r#"{"request_id": "a", "input_toks": 10, "output_toks": 3, "queued_ts": 7.0, "scheduled_ts": 7.02, "first_token_ts": 7.1, "last_token_ts": 7.3}
{"request_id": "b", "input_toks": 20, "output_toks": 1, "queued_ts": 7.5, "scheduled_ts": 7.5, "first_token_ts": 7.7, "last_token_ts": 7.7}
"#;

#[test]
fn every_client_says_the_same_of_the_same_requests() {
    for text in [VLLM, GUIDELLM, AIPERF, INFERENCE_PERF, SPANS, OTLP] {
        holds(text, 1);
        holds(&format!("\u{feff}{text}"), 1);
    }
    for text in [ENGINE, CONSOLE] {
        holds(text, 0);
        let queue = read(text.as_bytes()).expect("a log")[0].figures["queue_s.mean"];
        assert!((queue - 0.01).abs() < 1e-9, "{queue}");
    }
}

/// A file that is made while it is read: one request again and again.
struct Long {
    n: usize,
    request: Vec<u8>,
    at: usize,
}

impl Read for Long {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.request.len() {
            if self.n == 0 {
                return Ok(0);
            }
            (self.n, self.at) = (self.n - 1, 0);
        }
        let n = buffer.len().min(self.request.len() - self.at);
        buffer[..n].copy_from_slice(&self.request[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

#[test]
fn a_file_of_any_length_takes_the_memory_of_its_requests() {
    let times: Vec<String> = (1..=400).map(|index| format!("{}", 7.0 + f64::from(index) / 100.0)).collect();
    let text = "word ".repeat(400);
    let request = format!(
        r#",{{"start_time": 7.0, "request": "{text}", "response": "{text}", "info": {{"input_tokens": 10, "output_tokens": 400, "output_token_times": [{}]}}, "error": null}}"#,
        times.join(",")
    );
    // 7 KB each, 160 MB in all: more than what is read whole.
    let rest = Long { n: 25_000, at: request.len(), request: request.clone().into_bytes() };
    let file = "[".as_bytes().chain(&request.as_bytes()[1..]).chain(rest).chain("]".as_bytes());
    let bench = &read(file).expect("a measured run")[0];
    assert_eq!((bench.requests.len(), bench.n_failed), (25_001, 0));
    assert!((bench.figures["ttft_s.mean"] - 0.01).abs() < 1e-9 && (bench.figures["e2e_s.mean"] - 4.0).abs() < 1e-9);
}

#[test]
fn sums_alone_are_requests_that_are_all_alike() {
    let of_vllm = r#"{"model_id": "org/M", "request_rate": "inf", "max_concurrency": 16, "completed": 4, "total_input_tokens": 4000,
      "total_output_tokens": 402, "mean_ttft_ms": 150.0, "std_ttft_ms": 80.0, "mean_tpot_ms": 20.0, "p99_tpot_ms": 30.0, "request_throughput": 3.5}"#;
    let of_aiperf = r#"{"request_count": {"avg": 4.0}, "time_to_first_token": {"unit": "ms", "avg": 150.0, "std": 80.0}, "inter_token_latency": {"unit": "ms",
      "avg": 20.0}, "input_sequence_length": {"avg": 1000.0}, "output_sequence_length": {"avg": 100.5}, "input_config": {"loadgen": {"concurrency": 16}}}"#;
    let of_guidellm = r#"{"benchmarks": [{"args": {"strategy": {"type_": "concurrent", "streams": 16}}, "requests": {}, "metrics": {
      "time_to_first_token_ms": {"successful": {"mean": 150.0, "std_dev": 80.0}}, "inter_token_latency_ms": {"successful": {"mean": 20.0}},
      "request_latency": {"successful": {"mean": 2.2, "count": 4}}, "prompt_token_count": {"successful": {"mean": 1000.0}},
      "output_token_count": {"successful": {"mean": 100.5}}}}]}"#;
    for text in [of_vllm, of_aiperf, of_guidellm] {
        let bench = &read(text.as_bytes()).expect("a measured run")[0];
        assert_eq!((bench.load, bench.has_sums_alone, bench.requests.len()), (Load::InFlight(16), true, 4), "{text}");
        assert_eq!((bench.requests[0].prompt, bench.requests[0].output), (1000, 101), "{text}");
        assert!((bench.figures["tpot_s.mean"] - 0.02).abs() < 1e-12);
        // 80 ms over four requests: the mean is known to 40 ms.
        let predicted = [("ttft_s.mean".to_owned(), 0.15)].into();
        let spread = compare(&[bench], &predicted, &BTreeMap::new()).terms[0].spread;
        assert!((spread.expect("told") - 0.04).abs() < 1e-12, "{text}");
    }
}

#[test]
fn what_is_no_measured_run_is_refused_in_words() {
    let words = |text: &str| read(text.as_bytes()).expect_err(text).to_string();
    assert!(words("{}").starts_with("no measured run: known are vllm bench serve"));
    assert!(words("{\"a\": ").starts_with("line 1: broken JSON"));
    assert_eq!(
        words(&VLLM.replace("\"\", \"\"", "\"x\", \"x\"")),
        "vllm bench serve: no request has an answer with lengths and times"
    );
    assert!(words(&ENGINE.replace("}\n{", "}\n{{")).starts_with("line 2: broken JSON"));
    let no_stream = r#"{"completed": 4, "total_input_tokens": 40, "total_output_tokens": 40}"#;
    assert_eq!(
        words(no_stream),
        "vllm bench serve: no mean time to first token and per output token; was the answer streamed?"
    );
    let no_end = r#"{"completed": 4, "total_input_tokens": 1e308, "total_output_tokens": 40}"#;
    assert_eq!(words(no_end), "vllm bench serve: 4 requests of 2.5e307 + 10 tokens cannot be played");
    assert!(words(&format!("{VLLM} {{}}")).contains("trailing characters"));
}

#[test]
fn repeated_runs_are_one_setting_with_what_they_differ_by() {
    let slower = VLLM.replace("[0.1, 0.2, 0.0]", "[0.1, 0.4, 0.0]");
    let runs = [read(VLLM.as_bytes()), read(slower.as_bytes())].map(|runs| runs.expect("a run").remove(0));
    let found = settings(&runs);
    assert_eq!(found.len(), 1);
    let predicted = [("ttft_s.mean".to_owned(), 0.22)].into();
    let compared = compare(&found[0], &predicted, &BTreeMap::new());
    // Means of 0.15 and 0.25 s: 0.2 s, with a standard deviation of 0.1 / √2 s.
    let term = &compared.terms[0];
    assert!((term.measured - 0.2).abs() < 1e-9 && (term.error() - 0.1).abs() < 1e-9, "{term:?}");
    assert!((term.spread.expect("two runs") - 0.1 / libm::sqrt(2.0)).abs() < 1e-9, "{term:?}");
}

/// Changed files that one run tries; `PROPTEST_CASES` asks for more.
fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

/// Pieces that stand where a reader expects something else.
const PIECES: [&str; 10] = ["null", "-1", "1e308", "18446744073709551616", "[]", "{}", "\"\"", "\n", "}", "0"];

proptest! {
    #![proptest_config(cases())]
    #[test]
    fn no_change_of_a_file_stops_its_reader(which in 0..8_usize, changes in prop::collection::vec((any::<usize>(), any::<usize>(), any::<u8>()), 1..8)) {
        let mut letters: Vec<char> = [VLLM, GUIDELLM, AIPERF, INFERENCE_PERF, SPANS, ENGINE, OTLP, CONSOLE][which].chars().collect();
        for (at, what, how) in changes {
            let at = at % (letters.len() + 1);
            let end = (at + what % 24).min(letters.len());
            let piece = if how % 2 == 0 { PIECES[what % PIECES.len()] } else { "" };
            letters.splice(at..end, piece.chars());
        }
        let text: String = letters.into_iter().collect();
        for bench in read(text.as_bytes()).into_iter().flatten() {
            prop_assert!(bench.figures.values().all(|value| value.is_finite()), "{text}");
            prop_assert_eq!(bench.played().len(), bench.requests.len(), "{}", text);
        }
    }
}
