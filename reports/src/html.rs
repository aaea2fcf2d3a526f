//! One self-contained `report.html`: no network, no script; every policy is a section.

use std::fmt::Write;

use crate::svg::{self, escape};
use crate::{Picture, RunResult, table};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1160px;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
table{border-collapse:collapse;width:100%}th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #ddd}\
th:first-child,td:first-child{text-align:left}figure{margin:1rem 0}figcaption{color:#555;font-size:13px}\
.row{display:flex;flex-wrap:wrap;gap:1rem}code{background:#f3f3f3;padding:0 .2rem}";

/// The report.
#[must_use]
pub fn render(result: &RunResult, pictures: &[Picture<'_>]) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0} - skrull-sim</title><style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n",
        escape(&result.scenario)
    );
    summary(&mut html, result);
    charts(&mut html, result, pictures);
    for picture in pictures {
        section(&mut html, result, picture);
    }
    let version = escape(&result.version);
    writeln!(html, "<footer><p>skrull-sim {version}, seed {}. Definitions of every figure: docs/output.md.</p></footer></body></html>", result.seed)
        .expect("writing to a string");
    html
}

fn summary(html: &mut String, result: &RunResult) {
    html.push_str("<h2>Result</h2>\n<table><thead><tr>");
    for name in table::header() {
        write!(html, "<th>{name}</th>").expect("writing to a string");
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in &result.results {
        html.push_str("<tr>");
        for cell in table::cells(result, row) {
            write!(html, "<td>{}</td>", escape(&cell)).expect("writing to a string");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table>\n<h2>What dominates the step</h2>\n<ul>\n");
    for row in &result.results {
        writeln!(html, "<li><b>{}</b>: {}</li>", escape(&row.policy), escape(&row.why)).expect("writing to a string");
    }
    html.push_str("</ul>\n<ul>\n");
    for line in table::provenance(result) {
        writeln!(html, "<li>{}</li>", escape(&line)).expect("writing to a string");
    }
    html.push_str("</ul>\n");
}

fn figure(html: &mut String, svg: &str, caption: &str) {
    writeln!(html, "<figure>{svg}<figcaption>{}</figcaption></figure>", escape(caption)).expect("writing to a string");
}

fn charts(html: &mut String, result: &RunResult, pictures: &[Picture<'_>]) {
    html.push_str("<h2>Where the time goes</h2>\n");
    figure(
        html,
        &svg::shares(result),
        "Share of the step in which a rank computes, communicates alone, or waits; mean over ranks.",
    );
    let in_order =
        |row: &crate::PolicyResult| result.speedup_ratio.get(&row.policy).map(|ratio| (row.policy.clone(), *ratio));
    let speedups: Vec<(String, f64)> = result.results.iter().filter_map(in_order).collect();
    html.push_str("<div class=\"row\">");
    if !speedups.is_empty() {
        figure(html, &svg::bars("speed-up", &speedups), &format!("Speed over {}.", result.baseline));
    }
    if let Some(picture) = pictures.first() {
        figure(html, &svg::lengths(picture.lengths), "Share of sequences and of tokens by length.");
    }
    html.push_str("</div>\n");
}

fn section(html: &mut String, result: &RunResult, picture: &Picture<'_>) {
    writeln!(html, "<section><h2>{}</h2>", escape(picture.policy)).expect("writing to a string");
    figure(
        html,
        &svg::gantt(picture),
        "First simulated step: ranks and their streams over time (at most 96 rows; the trace file has all).",
    );
    figure(html, &svg::memory(picture), "Memory over time.");
    if let Some(row) = result.results.iter().find(|row| row.policy == picture.policy) {
        html.push_str("<details><summary>All figures</summary><table><tbody>\n");
        for (key, value) in &row.metrics {
            writeln!(html, "<tr><td><code>{}</code></td><td>{value:.6}</td></tr>", escape(key))
                .expect("writing to a string");
        }
        html.push_str("</tbody></table></details>");
    }
    html.push_str("</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_nothing_is_loaded() {
        let html = render(&table::tests::sample(), &[]);
        assert!(html.contains("&lt;script&gt;") && !html.contains("<script"));
        assert!(!html.replace("http://www.w3.org/2000/svg", "").contains("http"));
    }
}
