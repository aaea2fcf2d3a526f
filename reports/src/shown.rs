//! Runs that say themselves which metrics their table shows: every kind of scenario but steps of training and requests served.
//!
//! The unit is read off the end of a key, as the contract has it, so that a new kind needs no code here.

use crate::quantity::{ABSENT, counted, drawn, duration, escape, gib, percent, plain, rate, ratio, times, usd};
use crate::views::KNOWS_FUTURE;
use crate::{PolicyResult, RunResult};

/// Sentence above the table of the report.
pub(crate) const CAPTION: &str = "Gain: how much better than the baseline in the first figure; above 1 is better.";

/// Headings of the table.
pub(crate) fn headings(run: &RunResult) -> Vec<String> {
    let shown = run.columns.iter().map(|column| plain(&column.heading));
    ["policy", "status"].map(str::to_owned).into_iter().chain(shown).chain(["gain".to_owned()]).collect()
}

/// The figures of a policy as texts, in the order of `headings`.
pub(crate) fn cells(run: &RunResult, result: &PolicyResult) -> Vec<String> {
    let shown = run.columns.iter().map(|column| cell(result, &column.key));
    let gain = run.speedup_ratio.get(&result.policy).map_or_else(|| ABSENT.to_owned(), |&value| times(value));
    [plain(&result.policy), result.status.to_string()].into_iter().chain(shown).chain([gain]).collect()
}

/// A figure of a policy with its interval.
pub(crate) fn cell(result: &PolicyResult, key: &str) -> String {
    let interval = result.interval.get(key).copied();
    result.metrics.get(key).map_or_else(|| ABSENT.to_owned(), |value| figure(key, *value, interval))
}

/// A figure in the unit that its key ends with.
pub(crate) fn figure(key: &str, value: f64, interval: Option<[f64; 2]>) -> String {
    // The part after a dot (`ttft_s.p99`) has no unit of its own.
    let key = key.split('.').next().unwrap_or(key);
    if let Some(text) = drawn(key, value).filter(|_| value.is_finite()) {
        return text;
    }
    match key {
        _ if !value.is_finite() => ABSENT.to_owned(),
        _ if key.ends_with("_per_usd") => rate(value),
        _ if key.contains("usd") => usd(value),
        _ if key.contains("_per_s") => rate(value),
        _ if key.ends_with("_s") => duration(value, interval),
        _ if key.ends_with("_imbalance_ratio") => ratio(value),
        _ if key.ends_with("_ratio") => percent(value),
        _ if key.ends_with("_bytes") => gib(value),
        _ if key.ends_with("_facts") => format!("{value:.0}"),
        _ if value.fract() == 0.0 && value.abs() < 1e6 => format!("{value:.0}"),
        _ if value.abs() < 1e4 => ratio(value),
        _ => rate(value),
    }
}

/// The policy with the largest gain, the first of equals, and the gain. What keeps its budget goes before what does not.
pub(crate) fn best(run: &RunResult) -> Option<(&PolicyResult, f64)> {
    let gain = |result: &PolicyResult| run.speedup_ratio.get(&result.policy).copied().filter(|gain| gain.is_finite());
    // Who knows what comes is what others are held against; nobody can deploy it.
    let ranked = run.results.iter().filter(|result| result.status.is_ok() && !knows_future(result));
    let ranked = ranked.filter_map(|result| Some((result, gain(result)?)));
    let is_better = |best: &(&PolicyResult, f64), next: &(&PolicyResult, f64)| {
        let [kept, keeps] = [best, next].map(|(result, _)| keeps_budget(result));
        (keeps, next.1) > (kept, best.1)
    };
    ranked.reduce(|best, next| if is_better(&best, &next) { next } else { best })
}

/// Whether a row decided with what was to come.
fn knows_future(result: &PolicyResult) -> bool {
    result.planner.as_ref().is_some_and(|planner| planner.figures.contains_key(KNOWS_FUTURE))
}

/// What who knows the future reaches, beside an answer; nothing where nobody does.
fn with_hindsight(run: &RunResult) -> String {
    let column = &run.columns[0];
    let knows = run.results.iter().filter(|result| result.status.is_ok() && knows_future(result));
    let known = knows.filter_map(|result| Some((result, *result.metrics.get(&column.key)?)));
    let said = known.map(|(result, value)| {
        let (name, value) = (escape(&result.policy), figure(&column.key, value, None));
        format!(" Who knows what comes would reach {value} ({name}), which no rule can.")
    });
    said.collect()
}

/// Whether a result takes no more than its budget, where it has one.
fn keeps_budget(result: &PolicyResult) -> bool {
    result.metrics.get("budget_ratio").is_none_or(|share| *share <= 1.0)
}

/// The ends of a figure's interval in brackets; nothing where it has none, or none that can be seen.
pub(crate) fn ends(result: &PolicyResult, key: &str) -> String {
    match result.interval.get(key) {
        Some([low, high]) if low.is_finite() && high.is_finite() => {
            let [low, high] = [low, high].map(|end| figure(key, *end, None));
            if low == high { String::new() } else { format!(" ({low} to {high})") }
        }
        _ => String::new(),
    }
}

/// The best policy in a sentence, with the interval of its figure.
pub(crate) fn lead(run: &RunResult) -> String {
    let Some((best, gain)) = best(run) else {
        return "No policy of this scenario has a result.".to_owned();
    };
    let name = escape(&best.policy);
    let column = &run.columns[0];
    let value = best.metrics.get(&column.key).map(|value| figure(&column.key, *value, None));
    let ends = ends(best, &column.key);
    let value = value.map_or_else(String::new, |value| format!(": {} {value}{ends}", escape(&column.heading)));
    let value = value + &useful(best) + &shared_out(best);
    if run.is_of_one() {
        return format!("<strong>{name}</strong>{value}.");
    }
    if best.policy == run.baseline {
        return format!("<strong>{name}</strong> is best{value}.{}", with_hindsight(run));
    }
    let against = escape(run.against());
    format!("<strong>{name}</strong> is best{value}, {}× {against}.{}", ratio(gain), with_hindsight(run))
}

/// How much of a run of days is useful; nothing for what is no such run.
fn useful(result: &PolicyResult) -> String {
    const KEY: &str = "run_goodput_ratio";
    let share = result.metrics.get(KEY).map(|share| figure(KEY, *share, None) + &ends(result, KEY));
    share.map_or_else(String::new, |share| format!("; {share} of the run is useful"))
}

/// Which of the nodes train, where a search shared them out; nothing for everything else.
fn shared_out(result: &PolicyResult) -> String {
    let nodes = ["train_nodes", "n_nodes"].map(|key| result.chosen.get(key).and_then(serde_json::Value::as_u64));
    match nodes {
        [Some(train), Some(all)] => format!("; {train} of {} train", counted(all, "node")),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_ends_with_its_unit() {
        for (key, value, shown) in [
            ("makespan_s", 28.4314, "28.43 s"),
            ("ttft_s.p99", 0.25, "250.0 ms"),
            ("cost_usd_per_hour", 8.0, "$\u{a0}8.00"),
            ("busy_ratio", 0.5, "50.0 %"),
            ("tokens_per_s_per_gpu", 1234.0, "1.2 k"),
            ("n_gpus", 3.0, "3"),
            ("mastered_facts", 3397.26, "3397"),
            ("context_tokens", 2_000_000.0, "2.0 M"),
            ("makespan_s", f64::NAN, "-"),
        ] {
            assert_eq!(figure(key, value, None), shown, "{key}");
        }
    }
}
