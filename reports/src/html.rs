//! `report.html`: one file that loads nothing, the summary first, then a section for each policy.
//!
//! Invariants: every text of a run is escaped; no script, no font, no address is loaded, which the page's own
//! content policy enforces.

use std::fmt::Write as _;

use crate::curves::Curves;
use crate::quantity::{duration, escape, percent, ratio};
use crate::svg::{
    gantt, latency_curves, length_histogram, load_curves, lost_bars, memory_lines, rank_bars, speedup_bars,
};
use crate::table::{cells, footer, headings, headline};
use crate::view::{self, View};
use crate::{Picture, PolicyResult, RunResult, graph, serving, shown};

const STYLE: &str = "\
:root{color-scheme:light dark;--ground:#fff;--ink:#1a1a1a;--faint:#666;--line:#d0d0d0;--accent:#0072b2}\
@media(prefers-color-scheme:dark){:root{--ground:#16181b;--ink:#e8e8e8;--faint:#a0a0a0;--line:#3c4046;--accent:#56b4e9}}\
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif}\
main{max-width:1140px;margin:0 auto;padding:24px 20px 64px}\
h1{font-size:1.8rem;margin:0}h2{margin:2.4rem 0 .6rem;padding-top:.8rem;border-top:1px solid var(--line)}\
h3{margin:1.6rem 0 .4rem}h1,h2,h3,p,li,td,dd,dt{overflow-wrap:anywhere}\
.faint,figcaption{color:var(--faint);font-size:.9rem}\
.lead{font-size:1.2rem}.scroll{overflow-x:auto}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\
caption{text-align:left;color:var(--faint);font-size:.9rem;padding-bottom:.4rem}\
th,td{text-align:right;padding:.35rem .6rem;border-bottom:1px solid var(--line)}\
td{white-space:nowrap}th:nth-child(-n+2),td:nth-child(2){text-align:left}\
th[scope=row]{font-weight:600;min-width:8rem}tr.best th,tr.best td{color:var(--accent);font-weight:600}\
figure{margin:1.2rem 0}figure svg{max-width:100%;min-width:680px;height:auto;display:block}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}dt{font-weight:600;max-width:20rem}dd{margin:0}\
.failed{border-left:4px solid #d55e00;padding-left:.8rem}";

/// A page up to its first section: nothing may be loaded, and `style` comes after what all pages share.
pub(crate) fn page(title: &str, style: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n<main>\n",
        escape(title)
    )
}

/// Renders the report; policies without a picture get their section in words.
#[must_use]
pub fn render(run: &RunResult, pictures: &[Picture<'_>], curves: &[Curves]) -> String {
    let mut out = page(&format!("{} – skrull-sim report", run.scenario), "");
    summary(&mut out, run);
    served(&mut out, curves);
    lengths(&mut out, pictures);
    graph_pictures(&mut out, run);
    for result in &run.results {
        let picture = pictures.iter().find(|picture| picture.policy == result.policy);
        section(&mut out, run, result, picture);
    }
    method(&mut out, run);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn summary(out: &mut String, run: &RunResult) {
    let _ = write!(
        out,
        "<header>\n<h1>{}</h1>\n<p class=\"faint\">{} · skrull-sim {}</p>\n</header>\n\
         <section>\n<h2>Summary</h2>\n<p class=\"lead\">{}</p>\n<h3>{}</h3>\n<dl>\n",
        escape(&run.scenario),
        escape(&headline(run)),
        escape(&run.version),
        lead(run),
        if view::of(run) == View::Steps { "What dominates the step" } else { "What limits it" }
    );
    for result in &run.results {
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(&result.policy), why(result));
    }
    out.push_str("</dl>\n");
    table(out, run);
    let chart = speedup_bars(run);
    let caption = match view::of(run) {
        View::Columns => format!("Gain over {}: above 1 is better.", run.baseline),
        View::Requests => {
            format!("Goodput over that of {}; requests per second where the scenario has no limits.", run.baseline)
        }
        View::Steps => format!("Speed-up relative to {}: its iteration time over the policy's.", run.baseline),
    };
    figure(out, &chart, &caption);
    figure(
        out,
        &lost_bars(run),
        "Why no policy is faster. Blue: the certified lower bound of any schedule of this batch on this cluster under this cost model. The \
         rest is lost, mean over ranks, and adds up to the step.",
    );
    out.push_str("</section>\n");
}

/// Where an epoch on a graph goes.
fn graph_pictures(out: &mut String, run: &RunResult) {
    let pictures = graph::pictures(run);
    if pictures.is_empty() {
        return;
    }
    out.push_str("<section>\n<h2>Epoch</h2>\n");
    pictures.iter().for_each(|(svg, caption)| figure(out, svg, caption));
    out.push_str("</section>\n");
}

/// How requests fared, and how the fleet stood.
fn served(out: &mut String, curves: &[Curves]) {
    if curves.is_empty() {
        return;
    }
    out.push_str("<section>\n<h2>Requests</h2>\n");
    figure(
        out,
        &latency_curves(curves),
        "Share of requests that had a latency or less, by policy. Red, dashed: the limit. A curve that does not reach the top goes on to the right. Of equal curves the later one lies on the wider one.",
    );
    figure(
        out,
        &load_curves(curves),
        "Requests that wait, requests that are served, and output tokens per second over time.",
    );
    out.push_str("</section>\n");
}

/// The fastest policy in a sentence.
fn lead(run: &RunResult) -> String {
    match view::of(run) {
        View::Columns => return shown::lead(run),
        View::Requests => return serving::lead(run),
        View::Steps => {}
    }
    let Some((best, seconds)) = fastest(run) else {
        return "No policy of this scenario could run.".to_owned();
    };
    let time = duration(seconds, None);
    let name = escape(&best.policy);
    match run.speedup_ratio.get(&best.policy) {
        Some(speedup) if best.policy != run.baseline && speedup.is_finite() => {
            let baseline = escape(&run.baseline);
            format!("<strong>{name}</strong> is fastest: {time} per step, {}× {baseline}.", ratio(*speedup))
        }
        _ => format!("<strong>{name}</strong> is fastest: {time} per step."),
    }
}

/// The policy with the shortest step and that step's time; the first of equals.
fn fastest(run: &RunResult) -> Option<(&PolicyResult, f64)> {
    let timed = run.results.iter().filter(|result| result.status == "ok").filter_map(|result| {
        let seconds = *result.metrics.get("iteration_time_s")?;
        seconds.is_finite().then_some((result, seconds))
    });
    timed.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// What dominates, or why there is no result.
fn why(result: &PolicyResult) -> String {
    match (result.status.as_str(), result.why.as_str()) {
        ("ok", "") => "no statement".to_owned(),
        ("ok", why) => escape(why),
        (status, why) => format!("<strong>{}</strong>: {}", escape(status), escape(why)),
    }
}

const CAPTION: &str = "Iteration time is the mean over the simulated steps, ± the larger deviation of its interval, or its ends where that is larger still. Imbalance: the \
     busiest data-parallel rank over the mean. Exposed: share of the step in which a rank waits for communication \
     alone. Peak memory: the fullest rank.";

fn table(out: &mut String, run: &RunResult) {
    // Not a caption of the table: on a narrow screen it would scroll away with it.
    out.push_str("<h3>Results</h3>\n<p class=\"faint\" id=\"columns\">");
    out.push_str(match view::of(run) {
        View::Columns => shown::CAPTION,
        View::Requests => serving::CAPTION,
        View::Steps => CAPTION,
    });
    out.push_str("</p>\n<div class=\"scroll\">\n<table aria-describedby=\"columns\">\n<thead><tr>");
    headings(run).iter().for_each(|heading| {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escape(heading));
    });
    out.push_str("</tr></thead>\n<tbody>\n");
    let best = fastest(run).map(|(result, _)| result.policy.as_str());
    for result in &run.results {
        out.push_str(if Some(result.policy.as_str()) == best { "<tr class=\"best\">" } else { "<tr>" });
        for (index, cell) in cells(run, result).iter().enumerate() {
            let cell = escape(cell);
            let _ = match index {
                0 => write!(out, "<th scope=\"row\">{cell}</th>"),
                _ => write!(out, "<td>{cell}</td>"),
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
}

/// The lengths of the step, once where all policies had the same, else for each.
fn lengths(out: &mut String, pictures: &[Picture<'_>]) {
    let Some(first) = pictures.iter().find(|picture| !picture.lengths.is_empty()) else {
        return;
    };
    out.push_str("<section>\n<h2>Sequence lengths</h2>\n");
    let sorted = |picture: &Picture<'_>| {
        let mut lengths = picture.lengths.to_vec();
        lengths.sort_unstable();
        lengths
    };
    let is_shared = pictures.iter().all(|picture| sorted(picture) == sorted(first));
    for picture in if is_shared { std::slice::from_ref(first) } else { pictures } {
        let tokens: u64 = picture.lengths.iter().sum();
        let longest = picture.lengths.iter().max().copied().unwrap_or(0);
        let mut caption = format!(
            "{} sequences, {tokens} tokens, the longest {longest}. Few long sequences may hold most of the tokens.",
            picture.lengths.len()
        );
        if !is_shared {
            caption = format!("{}: {caption}", picture.policy);
        }
        figure(out, &length_histogram(picture.lengths), &caption);
    }
    out.push_str("</section>\n");
}

fn section(out: &mut String, run: &RunResult, result: &PolicyResult, picture: Option<&Picture<'_>>) {
    let class = if result.status == "ok" { "" } else { " class=\"failed\"" };
    let _ = writeln!(out, "<section>\n<h2>{}</h2>\n<p{class}>{}</p>", escape(&result.policy), why(result));
    let notes = result.planner.as_ref().map_or(&[][..], |planner| &planner.notes);
    if !notes.is_empty() {
        let items: String = notes.iter().map(|note| format!("<li>{}</li>", escape(note))).collect();
        let _ = writeln!(out, "<h3>What was planned</h3>\n<ul>{items}</ul>");
    }
    if let Some(picture) = picture {
        pictures_of(out, picture);
    }
    figures_of(out, run, result);
    out.push_str("</section>\n");
}

fn pictures_of(out: &mut String, picture: &Picture<'_>) {
    figure(
        out,
        &gantt(picture),
        "First simulated step. In each rank from top to bottom: compute, then the other streams that were used. \
         Neighbouring tasks closer than can be seen are drawn as one; large jobs show a sample of ranks with the \
         busiest and the least busy. The trace file has every task.",
    );
    figure(
        out,
        &rank_bars(picture),
        "How each rank spends the step. Uneven blue is imbalance; the rest is idle, mostly waiting for other ranks.",
    );
    let limit = match picture.device_memory_bytes {
        0 => String::new(),
        bytes => format!(" Red, dashed: the device's {}.", crate::quantity::gib(crate::quantity::float(bytes))),
    };
    figure(out, &memory_lines(picture), &format!("Memory in use over the step.{limit}"));
}

/// Every metric with its key, so that the page holds what the JSON holds.
fn figures_of(out: &mut String, run: &RunResult, result: &PolicyResult) {
    let figures: Vec<_> = result.metrics.iter().filter(|(_, value)| value.is_finite()).collect();
    if !figures.is_empty() {
        out.push_str("<details>\n<summary>All figures</summary>\n<dl>\n");
        for (key, value) in figures {
            let _ = write!(out, "<dt>{}</dt><dd>{}", escape(key), figure_text(key, *value));
            if let Some([low, high]) = result.interval.get(key).filter(|bounds| bounds.iter().all(|b| b.is_finite())) {
                let _ = write!(out, " ({} to {})", figure_text(key, *low), figure_text(key, *high));
            }
            out.push_str("</dd>\n");
        }
        out.push_str("</dl>\n</details>\n");
    }
    for sentence in [crate::lost::words(result), crate::lost::planner(result)].into_iter().flatten() {
        let _ = writeln!(out, "<p class=\"faint\">{}.</p>", escape(&sentence));
    }
    if result.policy == run.baseline {
        out.push_str("<p class=\"faint\">This policy is the baseline.</p>\n");
    }
}

/// A metric in the unit that its key names.
fn figure_text(key: &str, value: f64) -> String {
    match key {
        _ if key.contains("_bytes") => crate::quantity::gib(value),
        _ if key.ends_with("per_s") => crate::quantity::rate(value),
        _ if key.split('.').next().is_some_and(|key| key.ends_with("_s")) => duration(value, None),
        _ if key.contains("imbalance") => ratio(value),
        _ if key.ends_with("_ratio") => percent(value),
        _ if key.contains("_usd") => format!("{value:.4} USD"),
        _ => crate::quantity::rate(value),
    }
}

fn method(out: &mut String, run: &RunResult) {
    out.push_str("<section>\n<h2>Where the figures come from</h2>\n<ul>\n");
    for sentence in footer(run) {
        let _ = writeln!(out, "<li>{}</li>", escape(&sentence));
    }
    out.push_str("</ul>\n</section>\n");
}

/// A picture with its caption; nothing where the picture is empty.
pub(crate) fn figure(out: &mut String, svg: &str, caption: &str) {
    if !svg.is_empty() {
        let _ = writeln!(
            out,
            "<figure>\n<div class=\"scroll\">\n{svg}</div>\n<figcaption>{}</figcaption>\n</figure>",
            escape(caption)
        );
    }
}
