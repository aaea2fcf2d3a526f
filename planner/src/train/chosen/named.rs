//! Names of layouts: in words for people, as fields for programs.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use train::problem::Problem;

use crate::train::objective::Objective;
use crate::train::search::space::Candidate;
use crate::train::search::{Found, Simulated};

/// Layouts of the front, a line each: what is ranked, memory, and the layout.
pub(super) fn front_words(found: &Found) -> Vec<String> {
    let of = |simulated: &Simulated| {
        let gib = hw::real(simulated.peak_bytes) / hw::GIB;
        let step = format!("{:.4} s", simulated.step_s);
        let ranked = match found.objective {
            Objective::Seconds => step,
            Objective::Usd => format!("{:.4} USD in {step}", simulated.value),
            Objective::RunTokens => format!("{:.1} tokens kept per s, steps of {step}", 1.0 / simulated.value),
            Objective::RunTokensPerUsd => format!("{:.0} tokens kept per USD, steps of {step}", 1.0 / simulated.value),
        };
        let candidate = &simulated.candidate;
        let more = if candidate == &found.best.plan.candidate {
            String::new()
        } else {
            differences(candidate, &found.best.plan.candidate)
        };
        format!("front: {ranked} with {gib:.1} GiB, {}{more}", name(candidate))
    };
    found.front.iter().map(of).collect()
}

/// The front as fields: all that tells two of its layouts apart.
fn front(found: &Found) -> Value {
    let of = |simulated: &Simulated| {
        let Candidate { layout, schedule, micro_batch, .. } = &simulated.candidate;
        let mut fields = vec![
            ("iteration_time_s", json!(simulated.step_s)),
            ("peak_memory_bytes", json!(simulated.peak_bytes)),
            ("tp", json!(layout.tp)),
            ("pp", json!(layout.pp)),
            ("dp", json!(layout.dp)),
            ("cp", json!(layout.cp)),
            ("ep", json!(layout.ep)),
            ("schedule", json!(schedule.name)),
            ("chunks", json!(layout.chunks)),
            ("micro_batch", json!(micro_batch)),
        ];
        match found.objective {
            Objective::Seconds => {}
            Objective::Usd => fields.push(("cost_usd_per_step", json!(simulated.value))),
            of_run => fields.push((of_run.metric(), json!(1.0 / simulated.value))),
        }
        fields.extend(settings(&simulated.candidate));
        fields.into_iter().collect::<BTreeMap<&str, Value>>()
    };
    json!(found.front.iter().map(of).collect::<Vec<_>>())
}

/// Degrees and schedule: `tp 4 pp 2, 1f1b × 1 chunks`.
fn name(candidate: &Candidate) -> String {
    let layout = &candidate.layout;
    let degrees = [("tp", layout.tp), ("pp", layout.pp), ("dp", layout.dp), ("cp", layout.cp), ("ep", layout.ep)];
    let degrees: Vec<String> =
        degrees.iter().filter(|(_, n)| *n > 1).map(|(name, degree)| format!("{name} {degree}")).collect();
    format!("{}, {} × {} chunks", degrees.join(" "), candidate.schedule.name, layout.chunks)
}

/// What the name leaves out: keys of a scenario and their values.
fn settings(candidate: &Candidate) -> [(&'static str, Value); 13] {
    let layout = &candidate.layout;
    [
        ("zero", json!(layout.zero as u8)),
        ("bucket_tokens", json!(candidate.bucket_tokens)),
        ("replicate", json!(layout.replicate)),
        ("recompute", json!(candidate.recompute.name())),
        ("offload_ratio", json!(candidate.offload)),
        ("nodes", json!(candidate.nodes)),
        ("products", json!(candidate.products.map_or("bf16", |formats| formats.dense.word()))),
        ("embedding_layers", json!(candidate.ends[0])),
        ("head_layers", json!(candidate.ends[1])),
        ("order", json!(format!("{:?}", layout.order).to_lowercase())),
        ("expert_tp", json!(layout.expert_tp)),
        ("sequence_parallel", json!(layout.sequence_parallel)),
        ("exchange", json!(format!("{:?}", layout.exchange).to_lowercase())),
    ]
}

/// A value as a scenario's text has it, without quotes.
fn text(value: &Value) -> String {
    match value {
        Value::String(word) => word.clone(),
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or(0.0).to_string(),
        other => other.to_string(),
    }
}

/// Keys in which two layouts differ.
fn differing(candidate: &Candidate, other: &Candidate) -> Vec<&'static str> {
    let pairs = settings(candidate).into_iter().zip(settings(other));
    pairs.filter(|(own, theirs)| own.1 != theirs.1).map(|((key, _), _)| key).collect()
}

/// Some settings of a layout in words.
fn said(candidate: &Candidate, keys: &[&str]) -> String {
    let said = settings(candidate).into_iter().filter(|(key, _)| keys.contains(key));
    said.map(|(key, value)| format!(", {key} {}", text(&value))).collect()
}

/// What the name leaves out, as far as it is not the same in another layout.
fn differences(candidate: &Candidate, other: &Candidate) -> String {
    said(candidate, &differing(candidate, other))
}

/// Keys without which a layout could not be written by hand: those that a scenario sets by its degrees or by what fits, and those in which it differs from
/// what the scenario has.
fn by_hand(found: &Found) -> Vec<&'static str> {
    let best = &found.best.plan.candidate;
    let mut keys = differing(best, &found.own);
    // Layers that ends count as are layers of stages for who writes them.
    keys.retain(|key| !["sequence_parallel", "embedding_layers", "head_layers"].contains(key));
    keys.extend(["zero", "bucket_tokens"]);
    // A tensor group cuts sequences unless a scenario says otherwise.
    if best.layout.sequence_parallel != (best.layout.tp > 1) {
        keys.push("sequence_parallel");
    }
    keys
}

/// The layout that was found beside the runner-up, never under the same name, with all that it takes to write it by hand.
pub fn layout_words(problem: &Problem, found: &Found) -> String {
    let best = &found.best.plan.candidate;
    let mut keys = by_hand(found);
    let better = if found.objective.is_of_dollars() { "cheaper" } else { "faster" };
    let other = found.best.runner_up().map_or_else(String::new, |other| {
        let other = &other.plan;
        let more = (other.value / found.best.plan.value - 1.0) * 100.0;
        let mut theirs = name(&other.candidate);
        if theirs == name(best) {
            let differing = differing(best, &other.candidate);
            theirs += &said(&other.candidate, &differing);
            keys.extend(differing);
        }
        format!(", {more:.1}\u{a0}% {better} than {theirs}")
    });
    let mut words = name(best) + &said(best, &keys);
    let layers = best.layers(problem);
    if !layers.is_empty() {
        words += &format!(", layers {layers:?}");
    }
    // The format is part of the answer wherever it was searched.
    if let Some(formats) = best.products.filter(|_| !words.contains(", products ")) {
        words += &format!(", products {}", formats.dense.word());
    }
    let open = match found.n_open {
        0 => String::new(),
        n => format!("{n} not looked at, as the search was stopped, "),
    };
    let refused = match found.n_refused {
        0 => String::new(),
        n => format!("{n} without a plan of the policy, "),
    };
    let degrees: Vec<String> = found.context_degrees.iter().map(u32::to_string).collect();
    format!(
        "best of {} layouts with cp in {} ({} too large for memory, {refused}{} simulated, {open}the rest bounded above it): \
         {words}{other}",
        found.n_judged,
        degrees.join(", "),
        found.n_too_large,
        found.n_simulated
    )
}

/// What a search chose besides, without which the layout could not be run again.
fn searched(candidate: &Candidate) -> Vec<(&'static str, Value)> {
    let layout = &candidate.layout;
    let mut fields = vec![("nodes", json!(candidate.nodes))];
    if let Some(formats) = candidate.products {
        fields.push(("products", json!(formats.dense.word())));
    }
    if layout.tp > 1 {
        fields.push(("sequence_parallel", json!(layout.sequence_parallel)));
    }
    if layout.cp > 1 {
        fields.push(("exchange", json!(layout.exchange)));
    }
    if layout.ep > 1 {
        fields.push(("expert_tp", json!(layout.expert_tp)));
    }
    fields
}

/// The layout that a problem is played with, as fields with the names of scenario keys.
pub fn fields(problem: &Problem, found: Option<&Found>) -> BTreeMap<String, Value> {
    let (layout, execution) = (&problem.layout, &problem.execution);
    let mut fields = vec![
        ("tp", json!(layout.tp)),
        ("pp", json!(layout.pp)),
        ("dp", json!(layout.dp)),
        ("cp", json!(layout.cp)),
        ("ep", json!(layout.ep)),
        ("zero", json!(layout.zero as u8)),
        ("schedule", json!(problem.schedule.name)),
        ("chunks", json!(layout.chunks)),
        ("bucket_tokens", json!(problem.bucket_tokens)),
        ("recompute", json!(execution.recompute.name())),
        ("offload_ratio", json!(execution.offload)),
    ];
    if layout.replicate > 1 {
        fields.push(("replicate", json!(layout.replicate)));
    }
    if let Some(found) = found {
        let candidate = &found.best.plan.candidate;
        fields.push(("micro_batch", json!(candidate.micro_batch)));
        if !execution.layers.is_empty() {
            fields.push(("layers", json!(execution.layers)));
        }
        fields.extend(searched(candidate));
        if !found.front.is_empty() {
            fields.push(("front", front(found)));
        }
    }
    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
