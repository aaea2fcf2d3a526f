//! A score as JSON and as CSV, a run a line. Latencies in milliseconds as in the table that was read.

use engine::cost::Source;
use serde::Serialize;

use crate::errors::Figure;
use crate::leave_out::LeftOut;
use crate::play::{Latency, Predicted};
use crate::reason::Reason;
use crate::residual::Corrected;
use crate::select::Key;
use crate::summary::{GroupErrors, Latencies, Score, Scored};
use crate::tally::Missing;
use crate::text;

#[derive(Serialize)]
struct Row {
    id: String,
    line: u64,
    card: String,
    engine: String,
    version: String,
    model: String,
    format: String,
    mode: String,
    gpus: Option<u32>,
    tp: String,
    prompt_tokens: u32,
    output_tokens: u32,
    in_flight: Option<u32>,
    measured_ttft_ms: f64,
    predicted_ttft_ms: Option<f64>,
    ttft_ratio: Option<f64>,
    ttft_low_ms: Option<f64>,
    ttft_high_ms: Option<f64>,
    measured_tpot_ms: f64,
    predicted_tpot_ms: Option<f64>,
    tpot_ratio: Option<f64>,
    tpot_low_ms: Option<f64>,
    tpot_high_ms: Option<f64>,
    requests: Option<u32>,
    requests_of_client: Option<u32>,
    preempted: Option<f64>,
    source: Option<&'static str>,
    reason: Option<&'static str>,
    detail: Option<String>,
}

#[derive(Serialize)]
struct Group<'s> {
    by: &'static str,
    value: &'s str,
    runs: usize,
    predicted: usize,
    ttft: Option<Figures>,
    tpot: Option<Figures>,
}

#[derive(Serialize)]
struct Figures {
    median_error: f64,
    bias: f64,
    covered: f64,
}

#[derive(Serialize)]
struct Order<'s> {
    question: &'s str,
    settings: usize,
    tau: Option<f64>,
    regret: f64,
}

#[derive(Serialize)]
struct LeftRow<'s> {
    left_out: &'s str,
    tables: String,
    runs: usize,
    ttft_error: f64,
    ttft_bias: f64,
    tpot_error: f64,
    tpot_bias: f64,
    constants: String,
}

#[derive(Serialize)]
struct CorrectedRow<'s> {
    group: &'s str,
    runs: usize,
    ttft_error: f64,
    ttft_error_corrected: f64,
    tpot_error: f64,
    tpot_error_corrected: f64,
}

#[derive(Serialize)]
struct MissingRuns {
    reason: &'static str,
    about: &'static str,
    runs: usize,
}

/// The same where a row is no run.
#[derive(Serialize)]
pub(crate) struct MissingRows {
    reason: &'static str,
    about: &'static str,
    rows: usize,
}

/// Reasons why rows have no prediction, as rows of their own.
pub(crate) fn missing_rows(missing: &[Missing]) -> Vec<MissingRows> {
    missing
        .iter()
        .map(|missing| MissingRows { reason: missing.reason, about: missing.about, rows: missing.n })
        .collect()
}

#[derive(Serialize)]
struct Document<'s> {
    schema: &'static str,
    groups: Vec<Group<'s>>,
    without_prediction: Vec<MissingRuns>,
    orders: Vec<Order<'s>>,
    runs: Vec<Row>,
}

/// Groups that were left out, as rows.
pub(crate) fn left_rows(groups: &[LeftOut]) -> Vec<impl Serialize> {
    groups.iter().map(left_row).collect()
}

/// Errors before and after correction, as rows.
pub(crate) fn corrected_rows(groups: &[Corrected]) -> Vec<impl Serialize> {
    groups.iter().map(corrected_row).collect()
}

/// A document as JSON.
pub(crate) fn as_json<D: Serialize + ?Sized>(document: &D) -> String {
    serde_json::to_string_pretty(document).expect("every part has a JSON form") + "\n"
}

/// Errors of all rows, and of each group of a key, as rows.
pub(crate) fn in_groups<'s, K, E, G>(
    (all, keyed): (&'s E, &'s [(K, Vec<E>)]),
    word: fn(K) -> &'static str,
    row: fn(&'static str, &'s E) -> G,
) -> Vec<G>
where
    K: Copy,
{
    let of_keys = keyed.iter().flat_map(|(key, of_key)| of_key.iter().map(|found| (word(*key), found)));
    std::iter::once(("all", all)).chain(of_keys).map(|(by, found)| row(by, found)).collect()
}

/// The word of why a row has no prediction, and what it is about there.
pub(crate) fn reason_of(reason: Option<&Reason>) -> (Option<&'static str>, Option<String>) {
    (reason.map(Reason::name), reason.map(Reason::detail).filter(|detail| !detail.is_empty()))
}

/// Rows as lines of CSV under a header.
pub(crate) fn rows_as_csv(rows: &[impl Serialize]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.serialize(row).expect("a row has a CSV form");
    }
    String::from_utf8(writer.into_inner().expect("memory")).expect("text was written")
}

fn corrected_row(found: &Corrected) -> CorrectedRow<'_> {
    CorrectedRow {
        group: &found.group,
        runs: found.n_runs,
        ttft_error: found.before[0],
        ttft_error_corrected: found.after[0],
        tpot_error: found.before[1],
        tpot_error_corrected: found.after[1],
    }
}

fn left_row(found: &LeftOut) -> LeftRow<'_> {
    let ([ttft_error, tpot_error], [ttft_bias, tpot_bias]) = (found.errors, found.biases);
    LeftRow {
        left_out: &found.group,
        tables: found.tables.join(", "),
        runs: found.n_runs,
        ttft_error,
        ttft_bias,
        tpot_error,
        tpot_bias,
        constants: text::constants(found),
    }
}

/// Everything as JSON.
pub fn json(score: &Score) -> String {
    as_json(&Document {
        schema: "skrull-sim/score/1",
        groups: in_groups((&score.all, &score.groups), Key::word, group),
        without_prediction: score.missing.iter().map(missing_runs).collect(),
        orders: score
            .orders
            .iter()
            .map(|(question, order)| Order { question, settings: order.n, tau: order.tau, regret: order.regret })
            .collect(),
        runs: score.runs.iter().map(row).collect(),
    })
}

/// Every run as a line of CSV under a header.
pub fn csv(score: &Score) -> String {
    let rows: Vec<Row> = score.runs.iter().map(row).collect();
    rows_as_csv(&rows)
}

fn group<'s>(by: &'static str, found: &'s GroupErrors) -> Group<'s> {
    let Latencies { ttft, tpot } = found.figures;
    Group {
        by,
        value: &found.value,
        runs: found.n_rows,
        predicted: found.n_predicted,
        ttft: figures(ttft),
        tpot: figures(tpot),
    }
}

fn figures(Figure { errors, covered }: Figure) -> Option<Figures> {
    let errors = errors?;
    Some(Figures { median_error: errors.median, bias: errors.bias, covered: covered? })
}

fn missing_runs(missing: &Missing) -> MissingRuns {
    MissingRuns { reason: missing.reason, about: missing.about, runs: missing.n }
}

fn row(scored: &Scored) -> Row {
    let (run, found) = (&scored.run, scored.outcome.as_ref().ok());
    let (reason, detail) = reason_of(scored.outcome.as_ref().err());
    let ttft = found.map(|found| found.ttft);
    let tpot = found.map(|found| found.tpot);
    let ms = |of: Option<Latency>, at: fn(&Latency) -> f64| of.map(|latency| at(&latency) * 1e3);
    let between = scored.between;
    let end = |of: Option<[f64; 2]>, at: usize| of.map(|ends| ends[at] * 1e3);
    let ttft_ends = ttft.map(|latency| latency.interval).or(between.map(|found| found.ttft));
    let tpot_ends = tpot.map(|latency| latency.interval).or(between.map(|found| found.tpot));
    Row {
        id: run.id.clone(),
        line: run.line,
        card: run.card.clone(),
        engine: run.engine.clone(),
        version: run.version.clone(),
        model: Key::Model.of(run),
        format: Key::Format.of(run),
        mode: Key::Mode.of(run),
        gpus: run.n_gpus(),
        tp: Key::Tensor.of(run),
        prompt_tokens: run.prompt,
        output_tokens: run.output,
        in_flight: run.in_flight,
        measured_ttft_ms: run.ttft_s * 1e3,
        predicted_ttft_ms: ms(ttft, |latency| latency.mean),
        ttft_ratio: ttft.map(|latency| latency.mean / run.ttft_s),
        ttft_low_ms: end(ttft_ends, 0),
        ttft_high_ms: end(ttft_ends, 1),
        measured_tpot_ms: run.tpot_s * 1e3,
        predicted_tpot_ms: ms(tpot, |latency| latency.mean),
        tpot_ratio: tpot.map(|latency| latency.mean / run.tpot_s),
        tpot_low_ms: end(tpot_ends, 0),
        tpot_high_ms: end(tpot_ends, 1),
        requests: found.map(|found| found.n_requests[0]),
        requests_of_client: found.map(|found| found.n_requests[1]),
        preempted: found.map(|found: &Predicted| found.n_preempted),
        source: found.map(|found| Source::name(found.source)),
        reason,
        detail,
    }
}
