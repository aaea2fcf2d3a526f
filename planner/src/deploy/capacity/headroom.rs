//! How much more load a fleet takes at the peak, and what breaks above that.

use std::collections::BTreeMap;

use super::{Asked, Candidate, Headroom, Judge, Load, Peak, Question, Refused, attainment, limit_name, one};

/// Relative width of the bracket around the highest load within the target.
pub(super) const WIDTH: f64 = 0.02;
/// Loads beyond these are not tried.
const LOADS: [f64; 2] = [1.0 / 64.0, 64.0];
/// Share of blocks in use from which on memory counts as full.
const FULL: f64 = 0.98;

/// Brackets the highest load within the target, and says what breaks above it. A load of which nothing is known ends the search, with the reason.
///
/// # Errors
/// Where nothing is known of the load as it comes.
pub(super) fn of(question: &Question, judge: &Judge<'_>, candidate: &Candidate) -> Result<Headroom, Refused> {
    let mut loads: Vec<Load> = Vec::new();
    let asked = |load: f64| Asked { load, is_peak: true, ..Asked::plain(candidate) };
    let mut meets = |factor: f64| {
        let row = one(judge, asked(factor))?;
        let ((attainment_ratio, attainment_interval), overload) = (attainment(&row)?, row.overload);
        loads.push(Load { factor, attainment_ratio, attainment_interval, overload });
        Ok(question.is_met(attainment_ratio, overload))
    };
    let ([low, high], end) = bracket(&mut meets);
    if let (None, None, Some((_, refused))) = (low, high, &end) {
        return Err(refused.clone());
    }
    loads.sort_by(|a, b| a.factor.total_cmp(&b.factor));
    let breaks =
        high.map_or_else(|| "nothing up to there".to_owned(), |factor| breaks(question, judge, &asked(factor)));
    let end = end.map_or_else(String::new, |(factor, refused)| format!("; {factor} times the load: {refused}"));
    let Peak { from_s, to_s, requests_per_s, is_whole } = question.peak;
    let window =
        if is_whole { "the whole trace".to_owned() } else { format!("{from_s:.0} s to {to_s:.0} s of the trace") };
    let (meets, breaks) = (low.unwrap_or(0.0), breaks + &end);
    Ok(Headroom { window, from_s, to_s, requests_per_s, meets, fails: high, loads, breaks })
}

/// The highest load that is known to meet the target and the lowest that is known not to, and the load that ended the search as nothing is known of it.
fn bracket(meets: &mut dyn FnMut(f64) -> Result<bool, Refused>) -> ([Option<f64>; 2], Option<(f64, Refused)>) {
    let (mut low, mut high) = (None, None);
    let mut factor = 1.0;
    // Doubling while the target is met, or halving until it is; then between the two.
    loop {
        match (low, high) {
            (Some(below), Some(above)) if above / below <= 1.0 + WIDTH => break,
            (Some(below), Some(above)) => factor = f64::midpoint(below, above),
            _ if !(LOADS[0]..=LOADS[1]).contains(&factor) => break,
            _ => {}
        }
        match meets(factor) {
            Ok(true) => (low, factor) = (Some(factor), factor * 2.0),
            Ok(false) => (high, factor) = (Some(factor), factor * 0.5),
            Err(refused) => return ([low, high], Some((factor, refused))),
        }
    }
    ([low, high], None)
}

/// Which limit fails first under a load, and why.
fn breaks(question: &Question, judge: &Judge<'_>, asked: &Asked<'_>) -> String {
    let alone = |key: &'static str| {
        let row = one(judge, Asked { limit: Some(key), ..asked.clone() }).ok()?;
        Some((attainment(&row).ok()?.0, key, row))
    };
    let worst = question.limits.iter().filter_map(|(key, _)| alone(key)).min_by(|a, b| a.0.total_cmp(&b.0));
    let Some((ratio, key, row)) = worst else { return "not known: the fleet could not be served again".to_owned() };
    if let Some(overload) = row.overload.filter(|_| ratio >= question.target_ratio) {
        return format!("the load itself: {}; the requests end before the queue shows it", overload.words());
    }
    let limit = question.limits.iter().find(|(known, _)| *known == key).map_or(0.0, |(_, seconds)| *seconds);
    let name = limit_name(key);
    let shown = format!("the limit of {name}, {limit} s, which {:.1} % of requests meet", ratio * 100.0);
    format!("{shown}; {}", cause(key, &row.metrics))
}

/// Why a limit fails, from the figures of the run.
fn cause(key: &str, metrics: &BTreeMap<String, f64>) -> String {
    let value = |key: &str| metrics.get(key).copied().unwrap_or(0.0);
    let waits = value("queue_s.p99") / value("ttft_s.p99").max(1e-9);
    // Full memory delays admissions; it slows tokens down only where sequences lose their blocks.
    let memory = value("n_preempted") > 0.0 || (key != "tpot_s" && value("kv_peak_ratio") >= FULL);
    match key {
        _ if memory => format!(
            "memory for keys and values is full ({:.0} % of blocks at most in use, {:.0} preemptions)",
            value("kv_peak_ratio") * 100.0,
            value("n_preempted")
        ),
        "ttft_s" if waits > 0.5 => format!(
            "requests wait in the queue ({:.0} % of the 99th percentile) while blocks are at most {:.0} % in use",
            waits * 100.0,
            value("kv_peak_ratio") * 100.0
        ),
        "ttft_s" => "prompts take that long once they have begun, behind the decodes of the batch".to_owned(),
        "tpot_s" => format!(
            "iterations take that long: batches are large and prompts ride along (busy {:.0} % of the time)",
            value("busy_ratio") * 100.0
        ),
        _ => format!("the sum of waiting and serving (busy {:.0} % of the time)", value("busy_ratio") * 100.0),
    }
}
