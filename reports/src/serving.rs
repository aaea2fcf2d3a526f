//! How serving results read in the table and the report: latencies, rates and limits instead of steps.

use crate::quantity::{ABSENT, duration, escape, percent, plain, rate, ratio, times};
use crate::{PolicyResult, RunResult};

/// Headings of the table.
pub(crate) const HEADINGS: [&str; 9] =
    ["policy", "status", "TTFT mean", "TTFT p99", "TPOT mean", "TPOT p99", "goodput/s", "in limits", "gain"];

/// Sentence above the table of the report.
pub(crate) const CAPTION: &str = "TTFT: arrival to first token. TPOT: time per further token of a request, ± the larger deviation of its interval, or its ends where that is larger still. Goodput: \
     requests per second that met every limit of the scenario; all completed ones where it has none.";

/// Requests per second that count.
fn worth(result: &PolicyResult) -> Option<f64> {
    let find = |key: &str| result.metrics.get(key).copied();
    find("goodput_requests_per_s").or_else(|| find("requests_per_s"))
}

/// The figures of a policy as texts, in the order of `HEADINGS`.
pub(crate) fn cells(run: &RunResult, result: &PolicyResult) -> [String; 9] {
    let metric = |key: &str, show: &dyn Fn(f64) -> String| {
        result.metrics.get(key).map_or_else(|| ABSENT.to_owned(), |&value| show(value))
    };
    let mean = |key: &str| metric(key, &|seconds| duration(seconds, result.interval.get(key).copied()));
    [
        plain(&result.policy),
        plain(&result.status),
        metric("ttft_s.mean", &|seconds| duration(seconds, None)),
        metric("ttft_s.p99", &|seconds| duration(seconds, None)),
        mean("tpot_s.mean"),
        metric("tpot_s.p99", &|seconds| duration(seconds, None)),
        worth(result).map_or_else(|| ABSENT.to_owned(), rate),
        metric("slo_attainment_ratio", &percent),
        run.speedup_ratio.get(&result.policy).map_or_else(|| ABSENT.to_owned(), |&value| times(value)),
    ]
}

/// The best policy in a sentence.
pub(crate) fn lead(run: &RunResult) -> String {
    let ranked = run.results.iter().filter_map(|result| Some((result, worth(result)?)));
    let Some((best, per_s)) = ranked.reduce(|best, next| if next.1 > best.1 { next } else { best }) else {
        return "No policy of this scenario could run.".to_owned();
    };
    let name = escape(&best.policy);
    let gain = run.speedup_ratio.get(&best.policy).filter(|gain| best.policy != run.baseline && gain.is_finite());
    let against = gain.map_or_else(String::new, |gain| format!(", {}× {}", ratio(*gain), escape(&run.baseline)));
    format!("<strong>{name}</strong> serves most within the limits: {} requests per second{against}.", rate(per_s))
}
