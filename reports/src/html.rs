//! `report.html`: one file that loads nothing: the answer, what was asked, then a section for each policy.
//!
//! Invariants: every text of a run is escaped; nothing is loaded, which the page's own content policy enforces; without the script
//! everything is still there. What differs from run to run stands in the section `measured` alone.

mod parts;

use std::fmt::Write as _;

pub(crate) use parts::{END, asked, contents, figure, page, table};

use hw::in_thousands;

use crate::curves::Curves;
use crate::quantity::{counted, duration, escape, figure_text, float, percent, prose, ratio};
use crate::svg::{
    drawn, gantt, latency_curves, length_histogram, load_curves, lost_bars, memory_areas, rank_bars,
    shows_what_is_paid, speedup_bars,
};
use crate::table::{cells, footer, headings, headline, source_words};
use crate::view::{self, View};
use crate::{Ended, Picture, PolicyResult, RunResult, graph, serving, shown, views};

/// Pictures of the time axis that a page holds at most; the others are in their trace files.
const STEPS_MAX: usize = 48;

/// Renders the report; policies without a picture get their section in words.
pub fn render(run: &RunResult, pictures: &[Picture<'_>], curves: &[Curves]) -> String {
    let mut out = page(&format!("{} – skrull-sim report", run.scenario), "");
    let _ = writeln!(
        out,
        "<header>\n<h1>{}</h1>\n<p class=\"faint\">{}</p>",
        escape(&run.scenario),
        escape(&headline(run))
    );
    contents(&mut out, &places(run, pictures, curves));
    out.push_str("</header>\n");
    answer(&mut out, run);
    asked_of(&mut out, run);
    served(&mut out, run, curves);
    lengths(&mut out, pictures);
    graph_pictures(&mut out, run);
    let n_of_each = (STEPS_MAX / run.results.len().max(1)).max(1);
    for (index, result) in run.results.iter().enumerate() {
        let of_policy = pictures.iter().filter(|picture| picture.policy == result.policy);
        let shown: Vec<&Picture<'_>> = of_policy.take(n_of_each).collect();
        section(&mut out, run, index, &shown);
    }
    method(&mut out, run);
    measured(&mut out, run);
    out.push_str(END);
    out
}

/// Places of the page and their names.
fn places(run: &RunResult, pictures: &[Picture<'_>], curves: &[Curves]) -> Vec<(String, String)> {
    let place = |id: &str, name: &str| (id.to_owned(), name.to_owned());
    let mut all = vec![place("answer", "Answer"), place("asked", "What was asked")];
    if !curves.is_empty() {
        all.push(place("requests", "Requests"));
    }
    if pictures.iter().any(|picture| !picture.lengths.is_empty()) {
        all.push(place("lengths", "Sequence lengths"));
    }
    all.extend(
        run.results.iter().enumerate().map(|(index, result)| (format!("policy-{index}"), result.policy.clone())),
    );
    all.extend([place("sources", "Where the figures come from"), place("measured", "Date and times")]);
    all
}

fn answer(out: &mut String, run: &RunResult) {
    let _ = write!(out, "<section id=\"answer\">\n<h2>Answer</h2>\n<p class=\"lead\">{}</p>\n", lead(run));
    for warning in warnings(run) {
        let _ = writeln!(out, "<p class=\"warn\">{}</p>", prose(&warning));
    }
    let chart = speedup_bars(run);
    let caption = match view::of(run) {
        View::Columns => format!("Gain over {}. Above 1 is better.", run.against()),
        View::Requests => {
            format!("Goodput over that of {}. Without limits, all requests per second count.", run.baseline)
        }
        View::Steps => format!("Speed-up relative to {}: its iteration time over the policy's.", run.baseline),
    };
    figure(out, &chart, &caption);
    results(out, run);
    let heading = if view::of(run) == View::Steps { "What dominates the step" } else { "What limits each" };
    let _ = writeln!(out, "<h3>{heading}</h3>\n<dl>");
    for result in &run.results {
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(&result.policy), why(result));
    }
    out.push_str("</dl>\n");
    figure(
        out,
        &lost_bars(run),
        "Why no policy is faster. Blue: no schedule of this batch on this cluster is faster, under this cost model. The rest is lost time, \
         mean over ranks. Both add up to the step.",
    );
    out.push_str("</section>\n");
}

/// What a reader must know before believing the headline.
fn warnings(run: &RunResult) -> Vec<String> {
    let model = &run.cost_model;
    let mut all = Vec::new();
    if model.is_outside_hull() {
        let dimensions = model.outside_hull.join(", ");
        let of = if dimensions.is_empty() { String::new() } else { format!(" ({dimensions})") };
        all.push(format!("{} of the busy time lies outside what was measured{of}.", percent(model.outside_hull_ratio)));
    }
    let weak: f64 = model.shares.iter().filter(|share| share.source == "datasheet").map(|share| share.ratio).sum();
    if model.shares.is_empty() && model.source == "datasheet" {
        all.push("The weakest cost comes from a datasheet.".to_owned());
    } else if weak > 0.25 {
        all.push(format!("{} of the time comes from datasheets, not from measurements.", percent(weak)));
    }
    all
}

/// The scenario in a table, and how to run it again.
fn asked_of(out: &mut String, run: &RunResult) {
    let model = format!("{} ({})", run.cost_model.profile, source_words(run));
    let version = format!("skrull-sim {}, seed {}", run.version, run.seed);
    asked(out, &run.origin, "run", &[("Profile", model), ("Version", version)]);
}

/// Where an epoch on a graph goes.
fn graph_pictures(out: &mut String, run: &RunResult) {
    let pictures = graph::pictures(run);
    if pictures.is_empty() {
        return;
    }
    out.push_str("<section id=\"epoch\" class=\"detail\">\n<h2>Epoch</h2>\n");
    pictures.iter().for_each(|(svg, caption)| figure(out, svg, caption));
    out.push_str("</section>\n");
}

/// How requests fared, and how the fleet stood.
fn served(out: &mut String, run: &RunResult, curves: &[Curves]) {
    if curves.is_empty() {
        return;
    }
    let best = best(run).map(|best| best.policy.as_str());
    let always: Vec<&str> = best.into_iter().chain([run.baseline.as_str()]).collect();
    let shown = drawn(curves, &always);
    out.push_str("<section id=\"requests\" class=\"detail\">\n<h2>Requests</h2>\n");
    if shown.len() < curves.len() {
        let (n, all) = (shown.len(), curves.len());
        let _ = writeln!(
            out,
            "<p>{n} of {all} policies are drawn, the best and the baseline among them. The table has all.</p>"
        );
    }
    figure(
        out,
        &latency_curves(&shown),
        "Share of requests that had a latency or less, by policy. Dashed: the limit. A curve that does not reach the top goes on to the right. Where curves are equal, the later one lies on the wider one.",
    );
    let paid = if shows_what_is_paid(&shown) { " Replicas and dollars are what is paid." } else { "" };
    let words = "Requests that wait and run, output tokens per second, and tokens in the cache over time. A request gives its tokens evenly from the first to the last.";
    figure(out, &load_curves(&shown), &format!("{words}{paid}"));
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
        return "No policy of this scenario has a result.".to_owned();
    };
    let time = duration(seconds, None) + &shown::ends(best, "iteration_time_s");
    let name = escape(&best.policy);
    match run.speedup_ratio.get(&best.policy) {
        Some(speedup) if best.policy != run.baseline && speedup.is_finite() => {
            let baseline = escape(&run.baseline);
            format!("<strong>{name}</strong> is fastest: {time} per step, {}× {baseline}.", ratio(*speedup))
        }
        _ if run.is_of_one() => format!("<strong>{name}</strong>: {time} per step."),
        _ => format!("<strong>{name}</strong> is fastest: {time} per step."),
    }
}

/// The policy with the shortest step and that step's time; the first of equals.
fn fastest(run: &RunResult) -> Option<(&PolicyResult, f64)> {
    let timed = run.results.iter().filter(|result| result.status.is_ok()).filter_map(|result| {
        let seconds = *result.metrics.get("iteration_time_s")?;
        seconds.is_finite().then_some((result, seconds))
    });
    timed.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// The policy that the answer names.
fn best(run: &RunResult) -> Option<&PolicyResult> {
    match view::of(run) {
        View::Steps => fastest(run).map(|(result, _)| result),
        View::Requests => serving::best(run).map(|(result, _)| result),
        View::Columns => shown::best(run).map(|(result, _)| result),
    }
}

/// What dominates, or why there is no result.
fn why(result: &PolicyResult) -> String {
    match (result.status, result.why.as_str()) {
        (Ended::Ok, "") => "no statement".to_owned(),
        (Ended::Ok, why) => prose(why),
        (ended, why) => format!("<strong>{ended}</strong>: {}", prose(why)),
    }
}

/// Sentences above the table of steps, of what its columns are; `bubble` and `imbalance` share one.
fn caption(run: &RunResult) -> String {
    let waits = match views::steps(run)[3].0 {
        "bubble_ratio" => {
            "Bubble: share of the ranks' time, from the first forward to the last backward, that is no work; recompute counts as waste."
        }
        _ => "Imbalance: work of the busiest data-parallel group over the mean.",
    };
    format!(
        "Iteration time: mean over the simulated steps. ± is how far its interval reaches; where it reaches further to one side, \
         both ends are shown. {waits} Exposed: share of the step in which a rank waits for communication alone. Peak memory: the fullest \
         rank."
    )
}

fn results(out: &mut String, run: &RunResult) {
    let words = match view::of(run) {
        View::Columns => shown::CAPTION.to_owned(),
        View::Requests => serving::CAPTION.to_owned(),
        View::Steps => caption(run),
    };
    // Not a caption of the table: on a narrow screen it would scroll away with it.
    let _ = writeln!(out, "<h3>Results</h3>\n<p class=\"faint\" id=\"columns\">{words}</p>");
    let mut rows = vec![headings(run)];
    rows.extend(run.results.iter().map(|result| cells(run, result)));
    let best = best(run).and_then(|best| run.results.iter().position(|result| result.policy == best.policy));
    table(out, &rows, best, "");
}

/// The lengths of the step, once where all policies had the same, else for each.
fn lengths(out: &mut String, pictures: &[Picture<'_>]) {
    let Some(first) = pictures.iter().find(|picture| !picture.lengths.is_empty()) else {
        return;
    };
    out.push_str("<section id=\"lengths\" class=\"detail\">\n<h2>Sequence lengths</h2>\n");
    let sorted = |picture: &Picture<'_>| {
        let mut lengths = picture.lengths.to_vec();
        lengths.sort_unstable();
        lengths
    };
    let is_shared = pictures.iter().all(|picture| sorted(picture) == sorted(first));
    for picture in if is_shared { std::slice::from_ref(first) } else { pictures } {
        let mut caption = of_lengths(&sorted(picture));
        if !is_shared {
            caption = format!("{}: {caption}", picture.policy);
        }
        let drawn = length_histogram(picture.lengths);
        if drawn.is_empty() {
            let _ = writeln!(out, "<p>{}</p>", prose(&caption));
        }
        figure(out, &drawn, &caption);
    }
    out.push_str("</section>\n");
}

/// How many sequences there are, and how much of their tokens the longest hold.
fn of_lengths(sorted: &[u64]) -> String {
    let tokens: u64 = sorted.iter().sum();
    let n = sorted.len();
    let many = counted(n as u64, "sequence");
    match (sorted.first(), sorted.last()) {
        (Some(least), Some(most)) if least == most => {
            format!("{many} of {} tokens each, {} in all.", in_thousands(*least), in_thousands(tokens))
        }
        (_, Some(most)) => {
            let longest: u64 = sorted[n - n.div_ceil(10)..].iter().sum();
            let share = percent(float(longest) / float(tokens.max(1)));
            let (tokens, most) = (in_thousands(tokens), in_thousands(*most));
            format!(
                "{many}, {tokens} tokens, the longest {most}. The longest tenth of them hold {share} of the tokens."
            )
        }
        _ => String::new(),
    }
}

fn section(out: &mut String, run: &RunResult, index: usize, pictures: &[&Picture<'_>]) {
    let result = &run.results[index];
    let class = if result.status.is_ok() { "" } else { " class=\"failed\"" };
    let name = escape(&result.policy);
    let _ = writeln!(
        out,
        "<section id=\"policy-{index}\" class=\"detail\">\n<h2>{name}</h2>\n<p{class}>{}</p>",
        why(result)
    );
    let notes = result.planner.as_ref().map_or(&[][..], |planner| &planner.notes);
    for sentence in crate::draws::words(result) {
        let _ = writeln!(out, "<p>{}.</p>", prose(&sentence));
    }
    if !notes.is_empty() {
        let items: String = notes.iter().map(|note| format!("<li>{}</li>", prose(note))).collect();
        let _ = writeln!(out, "<h3>What was planned</h3>\n<ul>{items}</ul>");
    }
    for picture in pictures {
        pictures_of(out, picture);
    }
    figures_of(out, run, result);
    out.push_str("</section>\n");
}

fn pictures_of(out: &mut String, picture: &Picture<'_>) {
    let step = match picture.step {
        Some(step) => {
            let _ = writeln!(out, "<h3>Step {step}</h3>");
            format!("Step {step}.")
        }
        None => "First simulated step.".to_owned(),
    };
    let words = format!(
        "{step} In each rank from top to bottom: compute, then the other streams that were used. Tasks that lie closer than can be seen are \
         drawn as one. Ranks stand in the order of pipelines, stage after stage. Large jobs show a sample of them, the busiest and the least busy among them. The trace file has every task."
    );
    figure(out, &gantt(picture), &words);
    figure(
        out,
        &rank_bars(picture),
        "How each rank spends the step. Uneven blue is imbalance. The rest is idle, mostly waiting for other ranks. The mean counts every rank.",
    );
    let limit = match picture.device_memory_bytes {
        0 => String::new(),
        bytes => format!(" A device has {}.", crate::quantity::gib(float(bytes))),
    };
    let words = format!("Memory of the fullest rank by what holds it. Dashed: all memory of the emptiest rank.{limit}");
    figure(out, &memory_areas(picture), &words);
}

/// Every metric with its key, so that the page holds what the JSON holds.
fn figures_of(out: &mut String, run: &RunResult, result: &PolicyResult) {
    let figures: Vec<_> = result.metrics.iter().filter(|(_, value)| value.is_finite()).collect();
    if !figures.is_empty() {
        out.push_str("<details>\n<summary>All figures</summary>\n<dl>\n");
        for (key, value) in figures {
            let _ = write!(out, "<dt>{}</dt><dd>{}", escape(key), figure_text(key, *value));
            if let Some([low, high]) = result.interval.get(key).filter(|bounds| bounds.iter().all(|b| b.is_finite())) {
                let [low, high] = [low, high].map(|end| figure_text(key, *end));
                let _ = if low == high { Ok(()) } else { write!(out, " ({low} to {high})") };
            }
            if let Some((draws, [low, high])) =
                result.draws.as_ref().and_then(|draws| Some((draws, draws.spread.get(key)?)))
            {
                let _ =
                    write!(out, "; {} to {} over {} draws", figure_text(key, *low), figure_text(key, *high), draws.n);
            }
            out.push_str("</dd>\n");
        }
        out.push_str("</dl>\n</details>\n");
    }
    // Its wall time stands with the other measured ones.
    let planner = result.planner.as_ref().map(|planner| planner.words(0.0));
    for sentence in [crate::lost::words(result), planner].into_iter().flatten() {
        let _ = writeln!(out, "<p class=\"faint\">{}.</p>", prose(&sentence));
    }
    if result.policy == run.baseline {
        out.push_str("<p class=\"faint\">This policy is the baseline.</p>\n");
    }
}

fn method(out: &mut String, run: &RunResult) {
    out.push_str("<section id=\"sources\">\n<h2>Where the figures come from</h2>\n<ul>\n");
    for sentence in footer(run) {
        let _ = writeln!(out, "<li>{}</li>", prose(&sentence));
    }
    out.push_str("</ul>\n</section>\n");
}

/// The one place of what differs from run to run.
fn measured(out: &mut String, run: &RunResult) {
    out.push_str("<!-- measured -->\n<section id=\"measured\">\n<h2>Date and times</h2>\n");
    let date = if run.measured.date.is_empty() { "not noted" } else { &run.measured.date };
    let _ = writeln!(
        out,
        "<p>Run: {}. The rest of this page is the same bytes for the same scenario, seed and version.</p>",
        escape(date)
    );
    let shown = |seconds: f64| duration(seconds, None);
    let mut rows = vec![["policy", "planning", "simulating"].map(str::to_owned).to_vec()];
    rows.extend(run.results.iter().map(|result| {
        vec![result.policy.clone(), shown(result.measured.planner_wall_s), shown(result.measured.simulate_wall_s)]
    }));
    table(out, &rows, None, "time-");
    out.push_str("</section>\n<!-- /measured -->\n");
}
