//! A score of measured steps as text and as Markdown: every row, groups, and what has no prediction.

use super::order::Orders;
use super::play::{Says, Scored};
use super::row::{Bound, Label};
use super::summary::{Figures, GroupErrors, HostBound, Score};
use crate::errors::{Errors, Figure};
use crate::group::{NO_FIGURES, words};
use crate::tally;
use crate::text::{cut, error_words, or_dash, percent_1, signed_1, tau_words};

/// Letters of the columns of figures.
const FIGURES: usize = 62;
/// An error above which a row is listed.
const LISTED: f64 = 0.10;

/// The score in lines of at most `width` letters, at least 92.
pub fn text(score: &Score, width: usize) -> String {
    let width = width.clamp(92, 140);
    let name = width.min(120) - FIGURES;
    let mut lines =
        vec![format!("{} rows, {} with a prediction", score.all.n_rows, score.all.n_predicted), String::new()];
    lines.push(format!("{:name$}{:>9}{:>29}{:>24}", "", "rows", "step", "memory"));
    let columns = "mean  worst   bias  cover";
    lines.push(format!("{:name$}{:>9}{columns:>29}{:>24}", "", "predicted", "mean median  worst"));
    lines.push(group_line(&score.all, name));
    for (key, groups) in score.groups.iter().filter(|(_, groups)| groups.len() > 1 && groups.len() < score.rows.len()) {
        lines.push(format!("by {}", key.word()));
        lines.extend(groups.iter().map(|group| group_line(group, name)));
    }
    if !score.causes.is_empty() {
        lines.push("by what dominates the predicted step".to_owned());
    }
    lines.extend(score.causes.iter().map(|group| group_line(group, name)));
    lines.extend(orders(&score.orders, name));
    if !score.host_bound.is_empty() {
        lines.extend([String::new(), "bound by the host: not in any figure above".to_owned()]);
    }
    lines.extend(score.host_bound.iter().map(|found| host_bound_line(found, name)));
    lines.extend(rows(score));
    lines.extend(tally::lines(&score.missing));
    lines.iter().map(|line| cut(line, width) + "\n").collect()
}

fn group_line(group: &GroupErrors, name: usize) -> String {
    let counts = format!("{}/{}", group.n_predicted, group.n_rows);
    let Figures { step, memory } = group.figures;
    let step = step.errors.map_or_else(|| format!("{:>29}", "-"), |errors| step_figures(errors, step.covered));
    let memory = memory.errors.map_or_else(|| format!("{:>24}", "-"), memory_figures);
    format!("  {:<1$}{counts:>9}{step}{memory}", cut(&group.value, name.saturating_sub(3)), name - 2)
}

fn host_bound_line(found: &HostBound, name: usize) -> String {
    let HostBound { errors, n_settings, tau } = found;
    let Figure { errors: off, covered } = errors.figures.step;
    let figures = off.map_or_else(String::new, |step| {
        format!(
            "median {} bias {} covered {}",
            percent_1(step.median),
            signed_1(step.bias),
            covered.map_or_else(String::new, percent_1)
        )
    });
    let tau = tau_words(*tau);
    let counts = format!("{}/{}", errors.n_predicted, errors.n_rows);
    format!("  {:<1$}{counts:>9}  {figures}  tau {tau} over {n_settings} settings", errors.value, name - 2)
}

fn step_figures(errors: Errors, covered: Option<f64>) -> String {
    let covered = or_dash(covered, percent_1);
    format!("{:>8} {:>6} {:>6} {covered:>6}", percent_1(errors.mean), percent_1(errors.worst), signed_1(errors.bias))
}

fn memory_figures(errors: Errors) -> String {
    format!("{:>10} {:>6} {:>6}", percent_1(errors.mean), percent_1(errors.median), percent_1(errors.worst))
}

/// Kendall's tau of every group of settings, and over pairs that lie further apart than repeats.
fn orders(orders: &Orders, name: usize) -> Vec<String> {
    if orders.groups.is_empty() {
        return Vec::new();
    }
    let has_repeats = orders.n_repeats > 0;
    let mut head = format!("{:name$}{:>8}{:>7}{:>6}", "", "settings", "pairs", "tau");
    for factor in orders.apart.iter().filter(|_| has_repeats) {
        head += &format!("{:>15}", format!("beyond {}", percent_1(factor - 1.0)));
    }
    let title = "order of settings by tokens per second and GPU, repeats of a setting counted once";
    let mut lines = vec![String::new(), title.to_owned(), head];
    for group in [&orders.all()].into_iter().chain(&orders.groups) {
        let value = format!("  {:<1$}", cut(&group.among, name.saturating_sub(3)), name - 2);
        let mut line = format!("{value}{:>8}{:>7}{:>6}", group.n_settings, group.all.n, tau_words(group.all.tau()));
        for pairs in group.beyond.iter().filter(|_| has_repeats) {
            line += &format!("{:>9}{:>6}", pairs.n, tau_words(pairs.tau()));
        }
        lines.push(line);
    }
    if has_repeats {
        lines.push(format!("  one more measurement of every setting would reach {}", again(orders).join(", ")));
    }
    lines
}

/// Tau that another measurement would reach: over all pairs, and beyond either factor.
fn again(orders: &Orders) -> [String; 3] {
    orders.again.map(tau_words)
}

/// Rows that are off by more than a tenth.
fn rows(score: &Score) -> Vec<String> {
    let is_off = |scored: &&Scored| ratios(scored).into_iter().any(|ratio| (ratio - 1.0).abs() > LISTED);
    let mut off: Vec<&Scored> = score.rows.iter().filter(is_off).collect();
    off.sort_by(|a, b| worst(b).total_cmp(&worst(a)));
    let mut lines = Vec::new();
    if !off.is_empty() {
        lines.extend([String::new(), format!("{} rows are off by more than a tenth", off.len())]);
    }
    lines.extend(off.iter().map(|scored| row_line(scored)));
    lines
}

/// Ratios of a row that it is listed by; times that are bound by the host have a group of their own.
fn ratios(scored: &Scored) -> Vec<f64> {
    let step = scored.step_ratio().filter(|_| scored.row.measured.bound == Bound::Device);
    step.into_iter().chain(scored.memory_ratios().into_iter().map(|(_, ratio)| ratio)).collect()
}

fn worst(scored: &Scored) -> f64 {
    ratios(scored).into_iter().map(|ratio| (ratio - 1.0).abs()).fold(0.0, f64::max)
}

fn row_line(scored: &Scored) -> String {
    let step = error_words(scored.step_ratio());
    let memory: Vec<String> = scored.memory_ratios().iter().map(|(_, ratio)| signed_1(ratio - 1.0)).collect();
    let Label { row, model, card, format, layout, variant, .. } = &scored.row.label;
    format!("  {row:>4}  step {step:>7}  memory {:>7}  {card} {model} {format} {layout} {variant}", memory.join(" "))
}

/// Groups and every row as Markdown, for `docs/accuracy-training-rows.md`.
pub fn markdown(score: &Score) -> String {
    let mut text = format!("{} rows, {} with a prediction.\n\n", score.all.n_rows, score.all.n_predicted);
    text += "| by | group | rows | step mean | median | worst | bias | in interval | memory mean | median | worst |\n";
    text += "|---|---|---|---|---|---|---|---|---|---|---|\n";
    text += &markdown_group("all", &score.all);
    for (key, groups) in score.groups.iter().filter(|(_, groups)| groups.len() > 1 && groups.len() < 16) {
        text.extend(groups.iter().map(|group| markdown_group(key.word(), group)));
    }
    text.extend(score.causes.iter().map(|group| markdown_group("dominated by", group)));
    text += &markdown_host_bound(&score.host_bound);
    text += &markdown_orders(&score.orders);
    text += "\n| row | card | model | format | layout | variant | step s | error | memory GiB | error |\n";
    text += "|---|---|---|---|---|---|---|---|---|---|\n";
    text.extend(score.rows.iter().filter(|scored| scored.outcome.is_ok()).map(markdown_row));
    text += &markdown_parts(&score.rows);
    text + &tally::markdown("rows", &score.missing)
}

/// Forward, backward and optimizer of rows whose parts were measured.
fn markdown_parts(rows: &[Scored]) -> String {
    let head = "\n| row | variant | forward s | error | backward s | error | optimizer s | error |\n|---|---|---|---|---|---|---|---|\n";
    let lines: String = rows.iter().filter_map(markdown_parts_of).collect();
    if lines.is_empty() { lines } else { head.to_owned() + &lines }
}

fn markdown_parts_of(scored: &Scored) -> Option<String> {
    let (found, measured) = (scored.outcome.as_ref().ok()?.parts_s?, scored.row.measured.parts_s?);
    let cell = |(found, measured): (f64, f64)| format!(" {found:.4} | {} |", signed_1(found / measured - 1.0));
    let cells: String = found.into_iter().zip(measured).map(cell).collect();
    Some(format!("| {} | {} |{cells}\n", scored.row.label.row, scored.row.label.variant))
}

/// Rows that are bound by the host, by card.
fn markdown_host_bound(groups: &[HostBound]) -> String {
    if groups.is_empty() {
        return String::new();
    }
    let mut text =
        "\n| bound by the host | rows | step median | mean | bias | in interval | settings | tau of steps |\n"
            .to_owned();
    text += "|---|---|---|---|---|---|---|---|\n";
    for HostBound { errors, n_settings, tau } in groups {
        let Figure { errors: off, covered } = errors.figures.step;
        let figures = off.map_or_else(
            || "- | - | -".to_owned(),
            |step| format!("{} | {} | {}", percent_1(step.median), percent_1(step.mean), signed_1(step.bias)),
        );
        let (covered, tau) = (or_dash(covered, percent_1), tau_words(*tau));
        let GroupErrors { value, n_predicted, n_rows, .. } = errors;
        text += &format!("| {value} | {n_predicted}/{n_rows} | {figures} | {covered} | {n_settings} | {tau} |\n");
    }
    text
}

/// Order of settings: pairs and tau of each group, over all pairs and over those that lie further apart than repeats do.
fn markdown_orders(orders: &Orders) -> String {
    if orders.groups.is_empty() {
        return String::new();
    }
    let mut text = "\n| order among | settings | pairs | tau |".to_owned();
    let has_repeats = orders.n_repeats > 0;
    for factor in orders.apart.iter().filter(|_| has_repeats) {
        text += &format!(" pairs beyond {} | tau |", percent_1(factor - 1.0));
    }
    text += if has_repeats { "\n|---|---|---|---|---|---|---|---|\n" } else { "\n|---|---|---|---|\n" };
    for group in [&orders.all()].into_iter().chain(&orders.groups) {
        text +=
            &format!("| {} | {} | {} | {} |", group.among, group.n_settings, group.all.n, tau_words(group.all.tau()));
        let beyond = group.beyond.iter().filter(|_| has_repeats);
        text.extend(beyond.map(|pairs| format!(" {} | {} |", pairs.n, tau_words(pairs.tau()))));
        text += "\n";
    }
    if has_repeats {
        let [all, median, mean] = again(orders);
        text += &format!("| measured once more | - | - | {all} | - | {median} | - | {mean} |\n");
    }
    text
}

fn markdown_group(key: &str, group: &GroupErrors) -> String {
    let Figures { step, memory } = group.figures;
    let step = words(&step).map_or_else(|| NO_FIGURES.to_owned(), |figures| figures.join(" | "));
    let memory = memory.errors.map_or_else(
        || "- | - | -".to_owned(),
        |errors| [errors.mean, errors.median, errors.worst].map(percent_1).join(" | "),
    );
    format!("| {key} | {} | {}/{} | {step} | {memory} |\n", group.value, group.n_predicted, group.n_rows)
}

/// What is predicted of a row, and how far it is from what was measured; the measurement itself stays in the table.
fn markdown_row(scored: &Scored) -> String {
    let Ok(found) = &scored.outcome else { return String::new() };
    let Label { row, model, card, format, layout, variant, .. } = &scored.row.label;
    let interval = || format!("{:.2} to {:.2} | -", found.interval[0], found.interval[1]);
    let open = || if found.says == Says::Interval { interval() } else { "- | -".to_owned() };
    let step =
        scored.step_ratio().map_or_else(open, |ratio| format!("{:.3} | {}", found.step_s, signed_1(ratio - 1.0)));
    let ratios = scored.memory_ratios();
    let gib: Vec<String> = ratios
        .iter()
        .filter_map(|(stage, _)| Some(format!("{:.2}", found.memory[*stage as usize]? / super::setting::GIBIBYTE)))
        .collect();
    let errors: Vec<String> = ratios.iter().map(|(_, ratio)| signed_1(ratio - 1.0)).collect();
    let memory =
        if errors.is_empty() { "- | -".to_owned() } else { [gib, errors].map(|cells| cells.join(", ")).join(" | ") };
    format!("| {row} | {card} | {model} | {format} | {layout} | {variant} | {step} | {memory} |\n")
}
