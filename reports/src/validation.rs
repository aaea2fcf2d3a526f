//! What `validate` found: predicted against measured, as a table, Markdown, JSON and a page with pictures.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use engine::cost::profile::{Profile, Residuals};
use engine::validation::{How, Pair, Point, Ranking, Validation, classes, errors};
use hw::Time;
use serde::Serialize;

use crate::Picture;
use crate::html::{END, figure, page};
use crate::quantity::escape;
use crate::quantity::{duration, percent, ratio};
use crate::svg::{gantt_until, scatter};

/// Schema of `validation.json`.
pub const SCHEMA: &str = "skrull-sim/validation/1";

/// Errors over several plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Errors {
    /// Median of |predicted / measured − 1| over operations.
    pub operator_median: f64,
    /// 90 % quantile of the same.
    pub operator_p90: f64,
    /// Mean of |predicted / measured − 1| over steps.
    pub step_mean: f64,
    /// The largest of them.
    pub step_max: f64,
}

impl Errors {
    /// Of several plans.
    pub fn of<'a>(validations: impl Iterator<Item = &'a Validation>) -> Self {
        let (mut operators, mut steps) = (Vec::new(), Vec::new());
        for validation in validations {
            operators.extend(errors(&validation.points));
            steps.push(validation.step.error().abs());
        }
        Self {
            operator_median: hw::quantile::of(&operators, 0.5),
            operator_p90: hw::quantile::of(&operators, 0.9),
            step_mean: steps.iter().sum::<f64>() / hw::real(steps.len().max(1) as u64),
            step_max: steps.into_iter().fold(0.0, f64::max),
        }
    }
}

/// Cross-validated error of every kernel of a profile.
pub fn kernels(profile: &Profile) -> String {
    let mut text = "kernel                   samples  median error  90 % error".to_owned();
    let mut row = |name: &str, residuals: &Residuals| {
        let (median, p90) = (residuals.median_error * 100.0, residuals.p90_error * 100.0);
        text += &format!("\n{name:24} {:>7} {median:>11.1} % {p90:>9.1} %", residuals.n_fit);
    };
    profile.operators.iter().for_each(|(name, operator)| row(name, &operator.residuals));
    profile.memory.iter().for_each(|(name, curve)| row(name, &curve.residuals));
    profile.host.iter().for_each(|(name, kernel)| row(name, &kernel.residuals));
    profile.collectives.iter().for_each(|curve| row(&format!("{} of {}", curve.kind, curve.n_ranks), &curve.residuals));
    text
}

/// Errors before and after another fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refit {
    /// Plans whose operations went into the fit.
    pub seen: Vec<String>,
    /// Plans that the errors are of.
    pub unseen: Vec<String>,
    /// With the profile as it was.
    pub before: Errors,
    /// With the profile fitted again.
    pub after: Errors,
}

/// Everything that `validate` found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// `SCHEMA`.
    pub schema: String,
    /// Scenario.
    pub scenario: String,
    /// Seed of the batch.
    pub seed: u64,
    /// Version of the program.
    pub version: String,
    /// What ran it.
    pub device: String,
    /// What the predictions rest on, in words.
    pub profile: Vec<String>,
    /// Plans.
    pub plans: Vec<Validation>,
    /// Policies without a plan, and why.
    pub failed: Vec<(String, String)>,
    /// Errors over all plans.
    pub errors: Errors,
    /// Order of the plans.
    pub ranking: Option<Ranking>,
    /// Errors of another fit.
    pub refit: Option<Refit>,
}

impl Report {
    /// A figure that gates ask for; no number where nothing says it. Where nothing was ranked no gate holds.
    pub fn figure(&self, name: &str) -> f64 {
        let ranking = self.ranking.as_ref();
        match name {
            "step_error" => self.errors.step_mean,
            "operator_error" => self.errors.operator_median,
            "tau" => ranking.filter(|ranking| ranking.n_apart > 0).map_or(f64::NAN, |ranking| ranking.tau_apart),
            "regret" => ranking.map_or(f64::NAN, |ranking| ranking.regret),
            _ => f64::NAN,
        }
    }
}

/// An executed plan for the page.
#[derive(Clone, Copy)]
pub struct Executed<'a> {
    /// Policy.
    pub policy: &'a str,
    /// Tasks.
    pub graph: &'a engine::TaskGraph,
    /// When they were predicted to run.
    pub predicted: &'a engine::Timeline,
    /// When they ran.
    pub timeline: &'a engine::Timeline,
}

/// Where times come from, in words.
pub fn how_words(how: &BTreeMap<How, usize>) -> String {
    let words = |how: &How| match how {
        How::Live => "measured live",
        How::Joined => "measured rank by rank and joined",
        How::Modelled => "modelled",
    };
    how.iter().map(|(how, n)| format!("{n} tasks {}", words(how))).collect::<Vec<String>>().join(", ")
}

fn signed(error: f64) -> String {
    if error.is_finite() { format!("{:+.1} %", error * 100.0) } else { "-".to_owned() }
}

type Rows = Vec<Vec<String>>;

fn plan_rows(report: &Report) -> Rows {
    let mut rows = vec![
        ["plan", "predicted", "measured", "error", "operators, median", "nine in ten", "steady"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for plan in &report.plans {
        rows.push(vec![
            plan.policy.clone(),
            duration(plan.step.predicted_s, Some(plan.interval_s)),
            duration(plan.step.measured_s, None),
            signed(plan.step.error()),
            percent(plan.median_error()),
            percent(plan.p90_error()),
            ratio(plan.unsteady),
        ]);
    }
    rows
}

fn all_points(report: &Report) -> Vec<Point> {
    report.plans.iter().flat_map(|plan| plan.points.iter().cloned()).collect()
}

fn class_rows(report: &Report) -> Rows {
    let mut rows = vec![
        ["operators", "shapes", "predicted", "measured", "error", "median", "nine in ten", "in interval"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for class in classes(&all_points(report)) {
        rows.push(vec![
            class.class.to_owned(),
            class.n_ops.to_string(),
            duration(class.total.predicted_s, None),
            duration(class.total.measured_s, None),
            signed(class.total.error()),
            percent(class.median_error),
            percent(class.p90_error),
            percent(class.inside_ratio),
        ]);
    }
    rows
}

fn place_rows(report: &Report) -> Rows {
    let mut rows = vec![["plan", "where", "predicted busy", "measured busy", "error"].map(str::to_owned).to_vec()];
    let mut row = |plan: &Validation, name: String, pair: &Pair| {
        rows.push(vec![
            plan.policy.clone(),
            name,
            duration(pair.predicted_s, None),
            duration(pair.measured_s, None),
            signed(pair.error()),
        ]);
    };
    for plan in &report.plans {
        plan.streams.iter().for_each(|(stream, pair)| row(plan, (*stream).to_owned(), pair));
        plan.ranks.iter().for_each(|(rank, pair)| row(plan, format!("rank {rank}"), pair));
    }
    rows
}

/// Where the term to blame is of other runs than the step: those with marks between operations.
fn marked(plan: &Validation) -> Option<String> {
    let off = plan.marks_off()?;
    let words = if off > 0.0 { "longer" } else { "shorter" };
    Some(format!(
        "{}: what ran took {} {words} in the runs with marks between operations than in those of the step: terms are of the former, and do not add up to the step's error",
        plan.policy,
        percent(off.abs())
    ))
}

fn sentences(report: &Report) -> Vec<String> {
    let mut out = Vec::new();
    let errors = &report.errors;
    out.push(format!(
        "step error {} mean, {} at most; operator error {} median, nine in ten within {}",
        percent(errors.step_mean),
        percent(errors.step_max),
        percent(errors.operator_median),
        percent(errors.operator_p90)
    ));
    for plan in &report.plans {
        let copies = plan.hidden_copies.map_or_else(String::new, |hidden| {
            let (predicted, measured) = (percent(hidden.predicted), percent(hidden.measured));
            format!("; {measured} of the copies are hidden, predicted {predicted}")
        });
        out.push(format!("{}: {}; {}{copies}", plan.policy, plan.guilty(), how_words(&plan.how)));
    }
    out.extend(report.plans.iter().filter_map(marked));
    if let Some(ranking) = &report.ranking {
        out.push(format!(
            "order of {} plans: Kendall's tau {:.2}, {:.2} over the {} pairs that differ by 5 % or more; trusting the simulator costs {}",
            report.plans.len(),
            ranking.tau,
            ranking.tau_apart,
            ranking.n_apart,
            percent(ranking.regret)
        ));
    }
    if let Some(refit) = &report.refit {
        out.push(format!(
            "fitted again with {}: on {} the step error goes from {} to {}, the operators' median from {} to {}",
            refit.seen.join(", "),
            refit.unseen.join(", "),
            percent(refit.before.step_mean),
            percent(refit.after.step_mean),
            percent(refit.before.operator_median),
            percent(refit.after.operator_median)
        ));
    }
    let slow = report.plans.iter().filter(|plan| plan.unsteady > 1.1).map(|plan| plan.policy.as_str());
    let slow: Vec<&str> = slow.collect();
    if !slow.is_empty() {
        out.push(format!(
            "the reference kernel changed its time by more than a tenth around {}: the device throttled, or others used it",
            slow.join(", ")
        ));
    }
    out.extend(report.failed.iter().map(|(policy, why)| format!("{policy} has no plan: {why}")));
    out
}

fn aligned(rows: &Rows) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let gap = " ".repeat(width(column) - cell.chars().count());
            if column == 0 { format!("{cell}{gap}") } else { format!("{gap}{cell}") }
        });
        let _ = writeln!(out, "{}", cells.collect::<Vec<String>>().join("  ").trim_end());
    }
    out
}

/// For the terminal.
pub fn table(report: &Report) -> String {
    let mut out = format!("{} · seed {} · {}\n", report.scenario, report.seed, report.device);
    for words in &report.profile {
        let _ = writeln!(out, "{words}");
    }
    let _ = write!(out, "\n{}\n{}\n", aligned(&plan_rows(report)), aligned(&class_rows(report)));
    for sentence in sentences(report) {
        let _ = writeln!(out, "{}", crate::quantity::plain(&sentence));
    }
    out
}

fn markdown_table(rows: &Rows) -> String {
    let mut out = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().map(|cell| crate::markdown::escape(cell)).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
        if index == 0 {
            let _ = writeln!(out, "|{}", "---|".repeat(row.len()));
        }
    }
    out
}

/// For a pull request.
pub fn markdown(report: &Report) -> String {
    let mut out = format!("### {}: predicted against measured on {}\n\n", report.scenario, report.device);
    let _ = write!(out, "{}\n{}\n", markdown_table(&plan_rows(report)), markdown_table(&class_rows(report)));
    for sentence in sentences(report) {
        let _ = writeln!(out, "- {}", crate::markdown::escape(&sentence));
    }
    out
}

/// `validation.json`.
///
/// # Panics
/// Never: every part of a report has a JSON form.
pub fn json(report: &Report) -> String {
    serde_json::to_string_pretty(report).expect("a report has a JSON form")
}

fn html_table(out: &mut String, caption: &str, rows: &Rows, ids: &str) {
    let _ = writeln!(out, "<p class=\"faint\">{}</p>", escape(caption));
    crate::html::table(out, rows, None, ids);
}

/// `validation.html`: one file that loads nothing.
pub fn html(report: &Report, executed: &[Executed<'_>]) -> String {
    let mut out = page(&format!("{} – predicted against measured", report.scenario), "");
    let _ = write!(
        out,
        "<header>\n<h1>{}</h1>\n<p class=\"faint\">predicted against measured · {} · seed {} · skrull-sim {}</p>\n</header>\n\
         <section>\n<h2>Summary</h2>\n",
        escape(&report.scenario),
        escape(&report.device),
        report.seed,
        escape(&report.version)
    );
    html_table(
        &mut out,
        "Steps: predicted with the interval of the calibration, and measured. Operators: half of them are within the median error, nine in ten within the next figure. Steady: the slowest time of the reference kernel during the plan's runs over its best time. 1 is a steady device.",
        &plan_rows(report),
        "plan-",
    );
    out.push_str("<ul>\n");
    for sentence in sentences(report) {
        let _ = writeln!(out, "<li>{}</li>", escape(&sentence));
    }
    out.push_str("</ul>\n</section>\n<section>\n<h2>Operators</h2>\n");
    html_table(
        &mut out,
        "All plans together. Error: of the sum; median: of |error| over shapes; nine in ten: what so many of them stay within; in interval: share of shapes measured inside the predicted interval.",
        &class_rows(report),
        "class-",
    );
    figure(&mut out, &scatter(&all_points(report)), "Every operation of every plan, median over its launches.");
    out.push_str("</section>\n<section>\n<h2>Streams and ranks</h2>\n");
    html_table(
        &mut out,
        "Busy time of each stream, all ranks together, and of each rank: when any of its streams runs.",
        &place_rows(report),
        "place-",
    );
    out.push_str("</section>\n");
    for one in executed {
        overlay(&mut out, one);
    }
    let _ = write!(
        out,
        "<section>\n<h2>What the predictions rest on</h2>\n<pre class=\"scroll\">{}</pre>\n</section>\n{END}",
        report
            .profile
            .iter()
            .map(|words| words.lines().map(escape).collect::<Vec<String>>().join("\n"))
            .collect::<Vec<String>>()
            .join("\n")
    );
    out
}

/// The predicted step above the measured one, on one axis.
fn overlay(out: &mut String, one: &Executed<'_>) {
    let until = Time::ZERO + one.predicted.span().max(one.timeline.span());
    let picture = |timeline| {
        let picture = Picture {
            policy: one.policy,
            step: None,
            graph: one.graph,
            timeline,
            lengths: &[],
            device_memory_bytes: 0,
        };
        gantt_until(&picture, until)
    };
    let _ = writeln!(out, "<section>\n<h2>{}</h2>", escape(one.policy));
    figure(out, &picture(one.predicted), "Predicted.");
    figure(out, &picture(one.timeline), "Measured, on the same axis.");
    out.push_str("</section>\n");
}
