//! A recorded step beside its prediction, as Markdown and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::compare::{Compared, Row};
use super::step::Gap;
use super::term::Lane;
use crate::bench::compare::deviation;
use crate::text::or_dash;

/// Gaps and unknown kernels that are listed.
const LISTED: usize = 10;
/// Letters of a kernel's name that are shown.
const NAME_MAX: usize = 60;

/// All files of a policy, each under its name.
pub fn page(policy: &str, found: &[(String, Compared)]) -> String {
    let parts: String =
        found.iter().map(|(name, found)| format!("## {}\n\n{}", shown(name), markdown(found))).collect();
    format!("policy `{policy}`\n\n{parts}")
}

/// The same for programs.
pub fn document(policy: &str, found: &[(String, Compared)]) -> Value {
    let files: Vec<Value> = found.iter().map(|(name, found)| json!({ "file": name, "found": json(found) })).collect();
    json!({ "schema": "skrull-sim/recorded/1", "policy": policy, "files": files })
}

/// One file, as Markdown.
pub fn markdown(found: &Compared) -> String {
    let mut text = head(found);
    terms(&mut text, found);
    lanes(&mut text, found);
    gaps(&mut text, found);
    unknown(&mut text, found);
    text
}

fn ms(seconds: f64) -> String {
    format!("{:.3}", seconds * 1e3)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn signed(predicted: f64, measured: f64) -> String {
    if measured > 0.0 { format!("{:+.1} %", (predicted / measured - 1.0) * 100.0) } else { "-".to_owned() }
}

/// A name that fits a table and breaks none.
fn shown(name: &str) -> String {
    let plain = name.chars().map(|letter| if letter.is_control() || "|`".contains(letter) { '?' } else { letter });
    let text: String = plain.clone().take(NAME_MAX).collect();
    let dots = if plain.count() > NAME_MAX { "…" } else { "" };
    format!("`{text}{dots}`")
}

/// What both sides are of.
fn head(found: &Compared) -> String {
    let (measured, predicted) = (&found.measured, &found.predicted);
    let n = measured.steps.len();
    let device = measured.device.as_ref().map_or_else(String::new, |name| format!(" on {}", shown(name)));
    let rank = measured.rank.map_or_else(|| "rank not told, taken as 0".to_owned(), |rank| format!("rank {rank}"));
    let spread = deviation(&measured.steps).map_or_else(String::new, |spread| format!(" ± {} ms", ms(spread)));
    let mut text = format!(
        "{n} recorded step{}{device}, {rank}; predicted is rank {}.\n\n",
        if n == 1 { "" } else { "s" },
        predicted.rank
    );
    if measured.is_whole {
        text += "The trace marks no step (`ProfilerStep#N`): all of it is taken as one.\n\n";
    }
    if let Some(n) = found.other_ranks {
        let told = measured.n_ranks.unwrap_or(0);
        let _ = write!(text, "**The trace is of {told} ranks, the scenario of {n}.** Its exchanges are others.\n\n");
    }
    if measured.n_left_out > 0 {
        let _ = write!(
            text,
            "{} kernels outside of every step, or on other devices, are left out.\n\n",
            measured.n_left_out
        );
    }
    let [low, high] = predicted.interval_s.map(ms);
    let _ = writeln!(
        text,
        "Step: recorded {} ms{spread}, predicted {} ms ({low} to {high}), {}.",
        ms(found.step_s()),
        ms(predicted.step_s),
        signed(predicted.step_s, found.step_s())
    );
    if let Some(row) = found.guilty() {
        let direction = if row.off_s() > 0.0 { "more" } else { "less" };
        let (name, off) = (row.term.name(), ms(row.off_s().abs()));
        let _ = writeln!(text, "Largest difference: {name}, predicted {off} ms {direction} than it takes.");
    }
    text + "\n"
}

fn terms(text: &mut String, found: &Compared) {
    *text += "| term | lane | launches | recorded, ms | spread | predicted, ms | error | difference of the step |\n|---|---|---|---|---|---|---|---|\n";
    for row in &found.rows {
        let lane = match row.term.lane() {
            Lane::Compute => "compute",
            Lane::Exchange => "exchange",
            Lane::Copy => "copies",
            Lane::None => "host",
        };
        let spread = or_dash(row.spread_s, |spread| format!("± {}", ms(spread)));
        let recorded = or_dash(row.measured_s, ms);
        let error = signed(row.predicted_s, row.measured_s.unwrap_or(0.0));
        let share = format!("{:+.1} %", row.off_s() / found.step_s() * 100.0);
        let (name, n, predicted) = (row.term.name(), row.n, ms(row.predicted_s));
        let _ =
            writeln!(text, "| {name} | {lane} | {n:.0} | {recorded} | {spread} | {predicted} | {error} | {share} |");
    }
    text.push('\n');
}

fn lanes(text: &mut String, found: &Compared) {
    let (recorded, predicted) = (&found.measured.busy, &found.predicted.busy);
    let rows = [
        ("kernels compute", recorded.compute_s, predicted.compute_s),
        ("exchanges run", recorded.exchange_s, predicted.exchange_s),
        ("exchanges run, nothing computes", recorded.exposed_s, predicted.exposed_s),
        ("copies from and to the host", recorded.copy_s, predicted.copy_s),
        ("nothing runs", recorded.idle_s, predicted.idle_s),
    ];
    *text += "| lane | recorded, ms | of the step | predicted, ms | of the step |\n|---|---|---|---|---|\n";
    for (name, recorded, predicted) in rows {
        let shares = [recorded / found.step_s(), predicted / found.predicted.step_s].map(percent);
        let _ = writeln!(text, "| {name} | {} | {} | {} | {} |", ms(recorded), shares[0], ms(predicted), shares[1]);
    }
    match found.measured.host_s {
        Some(host) => {
            let share = percent(host / found.step_s());
            let _ = write!(
                text,
                "\nOf the time in which nothing runs, {} ms ({share} of the step) wait for the host to launch.\n\n",
                ms(host)
            );
        }
        None => {
            *text += "\nThe trace records no launches, so gaps that wait for the host are not told from others.\n\n"
        }
    }
}

fn gaps(text: &mut String, found: &Compared) {
    let gaps = &found.measured.gaps;
    if gaps.is_empty() {
        return;
    }
    *text += "| gaps after | before | gaps of all steps | ms of a step | waiting for the host, ms |\n|---|---|---|---|---|\n";
    for Gap { before, after, n, seconds, host_s } in gaps.iter().take(LISTED) {
        let _ = writeln!(text, "| {} | {} | {n} | {} | {} |", shown(before), shown(after), ms(*seconds), ms(*host_s));
    }
    rest(text, gaps.iter().skip(LISTED).map(|gap| gap.seconds).collect(), "pairs of kernels");
}

fn unknown(text: &mut String, found: &Compared) {
    let unknown = &found.measured.unknown;
    if unknown.is_empty() {
        return;
    }
    let all: f64 = unknown.iter().map(|(.., seconds)| seconds).sum();
    let share = percent(all / found.step_s());
    let _ = write!(text, "Kernels whose names say nothing: {} ms, {share} of the step.\n\n", ms(all));
    *text += "| kernel | launches of all steps | ms of a step | of the step |\n|---|---|---|---|\n";
    for (name, n, seconds) in unknown.iter().take(LISTED) {
        let share = percent(seconds / found.step_s());
        let _ = writeln!(text, "| {} | {n} | {} | {share} |", shown(name), ms(*seconds));
    }
    rest(text, unknown.iter().skip(LISTED).map(|(.., seconds)| *seconds).collect(), "kernels");
}

/// What a table left out.
fn rest(text: &mut String, seconds: Vec<f64>, of: &str) {
    if !seconds.is_empty() {
        let _ = write!(text, "\n{} more {of}: {} ms of a step.\n", seconds.len(), ms(seconds.iter().sum()));
    }
    text.push('\n');
}

/// The same for programs; times in seconds of a step.
pub fn json(found: &Compared) -> Value {
    let (measured, predicted) = (&found.measured, &found.predicted);
    let lanes = |busy: &super::step::Busy| json!({ "compute_s": busy.compute_s, "exchange_s": busy.exchange_s, "exposed_s": busy.exposed_s, "copy_s": busy.copy_s, "idle_s": busy.idle_s });
    json!({
        "rank": measured.rank,
        "device": measured.device,
        "steps_s": measured.steps,
        "step_s": found.step_s(),
        "predicted_s": predicted.step_s,
        "interval_s": predicted.interval_s,
        "error_ratio": found.error(),
        "terms": found.rows.iter().map(term).collect::<Vec<Value>>(),
        "lanes": { "measured": lanes(&measured.busy), "predicted": lanes(&predicted.busy) },
        "host_s": measured.host_s,
        "gaps": measured.gaps.iter().map(gap).collect::<Vec<Value>>(),
        "unknown": measured.unknown.iter().map(kernel).collect::<Vec<Value>>(),
        "left_out": measured.n_left_out,
    })
}

fn term(row: &Row) -> Value {
    let Row { term, n, measured_s, spread_s, predicted_s } = row;
    json!({ "term": term.name(), "launches": n, "measured_s": measured_s, "spread_s": spread_s, "predicted_s": predicted_s })
}

fn gap(gap: &Gap) -> Value {
    json!({ "after": gap.before, "before": gap.after, "gaps": gap.n, "seconds": gap.seconds, "host_s": gap.host_s })
}

fn kernel((name, n, seconds): &(String, u64, f64)) -> Value {
    json!({ "kernel": name, "launches": n, "seconds": seconds })
}
