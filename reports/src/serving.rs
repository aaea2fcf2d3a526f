//! How serving results read in the table and the report: latencies, rates and limits instead of steps.

use crate::quantity::{ABSENT, duration, escape, percent, plain, rate, ratio, times};
use crate::{PolicyResult, RunResult};

/// Headings of the table.
pub(crate) const HEADINGS: [&str; 9] =
    ["policy", "status", "TTFT mean", "TTFT p99", "TPOT mean", "TPOT p99", "goodput/s", "in limits", "gain"];

/// Sentence above the table of the report.
pub(crate) const CAPTION: &str = "TTFT: arrival to first token. TPOT: time per further token of a request, ± is how far its interval reaches; where it reaches further to one side, both ends are shown. Goodput: \
     requests per second that met every limit of the scenario; all completed ones where it has none.";

/// Requests per second by which serving is compared: one column, whichever a result has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Those that met every limit of the scenario.
    WithinLimits,
    /// All that were completed, where the scenario has no limits.
    Completed,
}

impl Counted {
    /// What a result counts, and how many; `None` where it served nothing.
    pub fn of(result: &PolicyResult) -> Option<(Self, f64)> {
        let counts = |counted: Self| Some((counted, *result.metrics.get(counted.key())?));
        counts(Self::WithinLimits).or_else(|| counts(Self::Completed))
    }

    /// Key of its metric.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::WithinLimits => "goodput_requests_per_s",
            Self::Completed => "requests_per_s",
        }
    }
}

/// Requests per second that count.
fn worth(result: &PolicyResult) -> Option<f64> {
    Counted::of(result).map(|(_, per_s)| per_s)
}

/// The figures of a policy as texts, in the order of `HEADINGS`.
pub(crate) fn cells(run: &RunResult, result: &PolicyResult) -> [String; 9] {
    let metric = |key: &str, show: &dyn Fn(f64) -> String| {
        result.metrics.get(key).map_or_else(|| ABSENT.to_owned(), |&value| show(value))
    };
    let mean = |key: &str| metric(key, &|seconds| duration(seconds, result.interval.get(key).copied()));
    [
        plain(&result.policy),
        result.status.to_string(),
        mean("ttft_s.mean"),
        metric("ttft_s.p99", &|seconds| duration(seconds, None)),
        mean("tpot_s.mean"),
        metric("tpot_s.p99", &|seconds| duration(seconds, None)),
        worth(result).map_or_else(|| ABSENT.to_owned(), rate),
        metric("slo_attainment_ratio", &|share| percent(share) + &crate::shown::ends(result, "slo_attainment_ratio")),
        run.speedup_ratio.get(&result.policy).map_or_else(|| ABSENT.to_owned(), |&value| times(value)),
    ]
}

/// The policy with the most requests that count, the first of equals.
pub(crate) fn best(run: &RunResult) -> Option<(&PolicyResult, f64)> {
    let ranked = run.results.iter().filter_map(|result| Some((result, worth(result)?)));
    ranked.reduce(|best, next| if next.1 > best.1 { next } else { best })
}

/// The best policy in a sentence, with the interval of its rate where that is known.
pub(crate) fn lead(run: &RunResult) -> String {
    let Some((best, per_s)) = best(run) else {
        return "No policy of this scenario has a result.".to_owned();
    };
    let name = escape(&best.policy);
    let gain = run.speedup_ratio.get(&best.policy).filter(|gain| best.policy != run.baseline && gain.is_finite());
    let against = gain.map_or_else(String::new, |gain| format!(", {}× {}", ratio(*gain), escape(&run.baseline)));
    let counted = Counted::of(best).map_or(Counted::Completed, |(counted, _)| counted);
    let within = if counted == Counted::WithinLimits { " within the limits" } else { "" };
    let is_best = if run.is_of_one() { "" } else { " has the highest rate" };
    let mut words = format!(
        "<strong>{name}</strong>{is_best}{within}: {} requests per second{}{against}.",
        rate(per_s),
        crate::shown::ends(best, counted.key())
    );
    for (key, name) in
        [("ttft_s.p99", "TTFT p99"), ("tpot_s.mean", "Mean TPOT"), ("slo_attainment_ratio", "Within limits")]
    {
        if let Some(&value) = best.metrics.get(key) {
            let shown = crate::shown::figure(key, value, None);
            words.push_str(&format!(" {name}: {shown}{}.", crate::shown::ends(best, key)));
        }
    }
    words
}
