//! `[capacity]`: fleets that `skrull-sim capacity` tries, and the share of requests that has to meet every limit.

use hw::Time;
use sim::serving::metrics::Slo;
use sim::serving::request::Requests;
use toml_span::value::ValueInner;

use crate::diagnostic::Finding;
use crate::jobs::capacity::{Peak, Question, Quoted};
use crate::scenario::reader::{Section, unknown};

/// Length of the busiest part that headroom is about, seconds.
const PEAK_S: f64 = 3600.0;

/// Reads the section; `None` where the scenario has none. `policies` are names of its choices.
pub fn capacity(mut section: Section<'_>, policies: &[&str], slo: &Slo, requests: &Requests) -> Option<Question> {
    if !section.is_given() {
        return None;
    }
    let at = section.at();
    let replicas = counts(&mut section, "replicas", &[1, 2, 3, 4, 6, 8]);
    let tensor_degrees = counts(&mut section, "tp", &[1]);
    let target_ratio = section.number("attainment_ratio", 0.99, 0.01..=1.0);
    let peak_s = section.number("peak_s", PEAK_S, 1.0..=1e7);
    let n_gpus_per_node = section.count("gpus_per_node", Some(8), 1..=1024).0;
    let mut gpus = Vec::new();
    section.each_table("gpu", &mut |table| gpus.extend(quoted(table)));
    if gpus.is_empty() {
        section.missing("gpu", "write `[[capacity.gpu]]` with `name` and `usd_per_gpu_hour` for each type to try");
    }
    let first = policies.first().map_or_else(String::new, |name| (*name).to_owned());
    let policy = section.text("policy").map_or(first, |(name, at)| {
        if !policies.contains(&name.as_str()) {
            let what = format!("policy `{name}` is not in `policies.run`");
            section.find(unknown("S029", what, &name, policies.iter().copied(), at));
        }
        name
    });
    let given = [("ttft_s", slo.ttft), ("tpot_s", slo.tpot), ("e2e_s", slo.e2e)];
    let limits: Vec<(&'static str, f64)> =
        given.into_iter().filter_map(|(key, limit)| Some((key, limit?.get()))).collect();
    if limits.is_empty() {
        let what = "`[capacity]` asks for attainment, and `[slo]` has no limit";
        section.find(Finding::error("S120", at, what).help("write `ttft_s`, `tpot_s` or `e2e_s`"));
    }
    section.finish();
    let peak = busiest(requests, peak_s);
    Some(Question { policy, replicas, tensor_degrees, gpus, n_gpus_per_node, target_ratio, limits, peak })
}

fn counts(section: &mut Section<'_>, key: &'static str, default: &[u64]) -> Vec<u64> {
    let Some((value, at)) = section.take(key) else { return default.to_vec() };
    let count =
        |item: &toml_span::Value<'_>| u64::try_from(item.as_integer()?).ok().filter(|n| (1..=10_000).contains(n));
    let found: Option<Vec<u64>> = match &value {
        ValueInner::Array(items) => items.iter().map(count).collect(),
        _ => None,
    };
    found.filter(|all| !all.is_empty()).unwrap_or_else(|| {
        let what = format!("`capacity.{key}` is no list of counts");
        section.find(Finding::error("S011", at, what).help("allowed are whole numbers from 1 to 10000, at least one"));
        default.to_vec()
    })
}

/// `[[capacity.gpu]]`.
fn quoted(mut section: Section<'_>) -> Option<Quoted> {
    let name = section.text("name");
    if name.is_none() {
        section.missing("name", "a GPU type; `skrull-sim list gpus` shows the catalogue");
    }
    if !section.has("usd_per_gpu_hour") {
        section.missing("usd_per_gpu_hour", "dollars per GPU and hour, as quoted");
    }
    let usd_per_gpu_hour = section.number("usd_per_gpu_hour", 1.0, 1e-6..=1e6);
    let mut word = |key| section.text(key).map(|(text, _)| text);
    let quote: Vec<String> = [word("provider"), word("date")].into_iter().flatten().collect();
    if let Some((gpu, at)) = name.as_ref().filter(|(gpu, _)| hw::catalog::gpu(gpu).is_none()) {
        section.find(unknown("S023", format!("unknown GPU `{gpu}`"), gpu, hw::catalog::gpu_names(), at.clone()));
    }
    section.finish();
    Some(Quoted { gpu: name?.0, usd_per_gpu_hour, quote: quote.join(", ") })
}

/// The window of that length with most arrivals, among those that begin with an arrival.
fn busiest(requests: &Requests, peak_s: f64) -> Peak {
    let arrivals: Vec<f64> =
        requests.list.iter().map(|request| (request.arrival - Time::ZERO).to_seconds().get()).collect();
    let last_s = arrivals.last().copied().unwrap_or(0.0);
    let count = |n: usize| hw::Tokens(n as u64).as_f64();
    if last_s <= peak_s {
        let requests_per_s = if last_s > 0.0 { count(arrivals.len()) / last_s } else { 0.0 };
        return Peak { from_s: 0.0, to_s: last_s, requests_per_s, is_whole: true };
    }
    let (mut end, mut best) = (0, (0, 0.0));
    for (start, &from_s) in arrivals.iter().enumerate() {
        while end < arrivals.len() && arrivals[end] < from_s + peak_s {
            end += 1;
        }
        if end - start > best.0 {
            best = (end - start, from_s);
        }
    }
    Peak { from_s: best.1, to_s: best.1 + peak_s, requests_per_s: count(best.0) / peak_s, is_whole: false }
}

#[cfg(test)]
mod tests {
    use sim::serving::request::Request;

    use super::*;

    #[test]
    fn the_busiest_window_has_most_arrivals() {
        let at = |s: u64| Request::new(Time::from_ns(s * 1_000_000_000), 1, 1);
        let requests = Requests::of([0, 10, 20, 21, 22, 23, 40].map(at).to_vec());
        let peak = busiest(&requests, 5.0);
        assert_eq!((peak.from_s, peak.to_s, peak.requests_per_s, peak.is_whole), (20.0, 25.0, 0.8, false));
        assert!(busiest(&requests, 40.0).is_whole);
    }
}
