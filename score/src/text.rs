//! A score as text: what is off by how much, in which group, and what has no prediction. Lines keep to the width that is given.

use crate::errors::Figure;
use crate::leave_out::LeftOut;
use crate::order::Order;
use crate::residual::Corrected;
use crate::select::Key;
use crate::summary::{GroupErrors, Latencies, Score};
use crate::tally;
use serve::engine_constants::{self, EngineConstants};

/// Letters of the columns of figures.
const FIGURES: usize = 49;

/// The score in lines of at most `width` letters, at least 72.
pub fn text(score: &Score, width: usize) -> String {
    let width = width.max(72);
    let mut lines = head(score, width);
    lines.push(String::new());
    let name = width.min(100) - FIGURES;
    lines.push(format!("{:name$}{:>9}{:>20}{:>20}", "", "runs", "TTFT", "TPOT"));
    let columns = "error   bias  cover";
    lines.push(format!("{:name$}{:>9} {columns:>19} {columns:>19}", "", "predicted"));
    lines.push(row(&score.all, name));
    for (key, groups) in &score.groups {
        if groups.len() > 1 {
            lines.push(format!("by {}", key.word()));
            lines.extend(groups.iter().map(|group| row(group, name)));
        }
    }
    lines.extend(tally::lines(&score.missing));
    lines.extend(expressed(score).iter().flat_map(|sentence| broken(sentence, width)));
    lines.extend(orders(score, name));
    lines.iter().map(|line| cut(line, width) + "\n").collect()
}

/// What it is about.
fn head(score: &Score, width: usize) -> Vec<String> {
    let share = percent(hw::real(score.all.n_predicted as u64) / hw::real(score.all.n_rows.max(1) as u64));
    let mut lines = vec![format!(
        "{} runs, {} with a prediction ({share}) of {} models",
        score.all.n_rows,
        score.all.n_predicted,
        score.n_models()
    )];
    lines.extend(engine_constants::fitted().iter().flat_map(|constants| broken(&fitted(constants), width)));
    lines
}

/// A text in lines of at most so many letters, broken between words; those behind the first stand two in.
fn broken(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("one at least");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(format!("  {word}"));
        } else {
            let space = if line.is_empty() { "" } else { " " };
            *line += &format!("{space}{word}");
        }
    }
    lines
}

/// Constants of an engine and the runs that they were fitted on, in a line.
fn fitted(constants: &EngineConstants) -> String {
    let us = |time: hw::Seconds| time.get() * 1e6;
    format!(
        "{}: host {:.0} us an iteration and {:.0} us a sequence, launches {:.0} us a layer of prompts, {:.0} us one with experts \
         and at least {:.0} us an intricate one, start {:.0} ms a request, fitted on {}",
        constants.engine,
        us(constants.host_per_step),
        us(constants.host_per_sequence),
        us(constants.host_per_layer),
        us(constants.host_per_expert_layer),
        us(constants.host_per_intricate_layer),
        us(constants.start) / 1e3,
        constants.fitted_on
    )
}

fn row(group: &GroupErrors, name: usize) -> String {
    let counts = format!("{}/{}", group.n_predicted, group.n_rows);
    let value = cut(&group.value, name.saturating_sub(2));
    let Latencies { ttft, tpot } = group.figures;
    let [ttft, tpot] = [ttft, tpot].map(|figure| {
        figures(figure).map_or_else(
            || format!("{:>19}", "-"),
            |[error, bias, covered]| format!("{error:>5} {bias:>6} {covered:>6}"),
        )
    });
    format!("  {value:<0$}{counts:>9} {ttft} {tpot}", name - 2)
}

/// Median error, bias, and share of runs inside the interval.
fn figures(Figure { errors, covered }: Figure) -> Option<[String; 3]> {
    let errors = errors?;
    Some([percent(errors.median), signed(errors.bias), percent(covered?)])
}

fn percent(share: f64) -> String {
    if share < 9.995 { format!("{:.0}%", share * 100.0) } else { ">999%".to_owned() }
}

/// A share in per cent with one decimal.
pub(crate) fn percent_1(share: f64) -> String {
    if share < 9.995 { format!("{:.1}%", share * 100.0) } else { ">999%".to_owned() }
}

/// The same with its sign.
pub(crate) fn signed_1(share: f64) -> String {
    if share < 9.995 { format!("{:+.1}%", share * 100.0) } else { ">999%".to_owned() }
}

fn signed(share: f64) -> String {
    if share < 9.995 { format!("{:+.0}%", share * 100.0) } else { ">999%".to_owned() }
}

/// Which share of the runs is expressed, and what lies in intervals over layouts.
fn expressed(score: &Score) -> Vec<String> {
    let (found, n_runs) = (&score.expressed, score.all.n_rows);
    let share = |n: usize| percent(hw::real(n as u64) / hw::real(n_runs.max(1) as u64));
    let n = score.all.n_predicted + found.n_repeats;
    let mut sentences = vec![format!(
        "expressed: {n} of {n_runs} runs ({}), {} of them by the prediction of an earlier line",
        share(n),
        found.n_repeats
    )];
    if found.n_between > 0 {
        let all = n + found.n_between + found.n_repeats_between;
        let inside = found.n_inside.map(|inside| percent(hw::real(inside as u64) / hw::real(found.n_between as u64)));
        sentences.push(format!(
            "an interval over the layouts that fit: {} runs whose workers are not stated, and {} lines that repeat them; with these {}. \
             TTFT lies inside in {}, TPOT in {}. They count in no error",
            found.n_between,
            found.n_repeats_between,
            share(all),
            inside[0],
            inside[1]
        ));
    }
    sentences
}

/// Orders of settings.
fn orders(score: &Score, name: usize) -> Vec<String> {
    let Some([tau, regret]) = score.order() else { return Vec::new() };
    let mut lines = vec![
        String::new(),
        format!(
            "order of settings by output tokens per second and GPU: median tau {tau:.2}, regret {}",
            percent(regret)
        ),
    ];
    lines.extend(score.orders.iter().map(|(question, order)| order_row(question, order, name)));
    lines
}

fn order_row(question: &str, order: &Order, name: usize) -> String {
    let tau = tau_words(order.tau);
    let question = cut(question, name);
    format!("  {question:name$} {:>4} settings  tau {tau:>5}  regret {:>4}", order.n, percent(order.regret))
}

/// A figure in words, a dash where there is none.
pub(crate) fn or_dash<T>(figure: Option<T>, words: impl FnOnce(T) -> String) -> String {
    figure.map_or_else(|| "-".to_owned(), words)
}

/// How far predicted over measured is from 1, in per cent.
pub(crate) fn error_words(ratio: Option<f64>) -> String {
    or_dash(ratio, |ratio| signed_1(ratio - 1.0))
}

/// Kendall's tau with two digits.
pub(crate) fn tau_words(tau: Option<f64>) -> String {
    or_dash(tau, |tau| format!("{tau:.2}"))
}

/// At most so many letters.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.trim_end().to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    kept + "…"
}

/// At most so many letters, where the end tells more than the middle: names of sources begin alike.
pub(crate) fn cut_middle(text: &str, width: usize) -> String {
    let n = text.chars().count();
    if n <= width {
        return text.to_owned();
    }
    let begin = width / 3;
    let end = width.saturating_sub(begin + 1);
    text.chars().take(begin).chain(['…']).chain(text.chars().skip(n - end)).collect()
}

/// The table of groups as Markdown, for `docs/accuracy-serving.md`.
pub fn markdown(score: &Score) -> String {
    let mut text = format!(
        "{} runs, {} with a prediction.\n\n| by | group | runs | TTFT error | bias | in interval | TPOT error | bias | in interval |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        score.all.n_rows, score.all.n_predicted
    );
    text += &markdown_row("all", &score.all);
    for (key, groups) in &score.groups {
        if !matches!(key, Key::Load | Key::Lengths) {
            text.extend(groups.iter().map(|group| markdown_row(key.word(), group)));
        }
    }
    text += &tally::markdown("runs", &score.missing);
    text.extend(expressed(score).iter().map(|sentence| format!("\n{}.\n", capitalised(sentence))));
    if let Some([tau, regret]) = score.order() {
        text += &format!(
            "\nOrder of settings, median over {} questions: tau {tau:.2}, regret {}.\n",
            score.orders.len(),
            percent(regret)
        );
    }
    text
}

/// A sentence with a capital letter.
fn capitalised(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Groups that were left out, as Markdown, each with the constants that the others chose.
pub fn left_out(groups: &[LeftOut]) -> String {
    let mut text = "| left out | tables of | runs | TTFT error | bias | TPOT error | bias | constants: host us an iteration + a sequence + a layer of \
                    prompts + one with experts + the least of an intricate one, start ms |\n|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for found in groups {
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |\n",
            found.group,
            found.tables.join(", "),
            found.n_runs,
            percent(found.errors[0]),
            signed(found.biases[0]),
            percent(found.errors[1]),
            signed(found.biases[1]),
            constants(found)
        );
    }
    text
}

/// Constants that a group was played with, engine by engine.
pub(crate) fn constants(found: &LeftOut) -> String {
    let of_engine = |constants: &EngineConstants| {
        let [step, sequence, layer, experts, intricate, start] = constants.times().map(|time| time.get() * 1e6);
        let layers = format!("{layer:.0} + {experts:.0} + {intricate:.0}");
        format!("{} {step:.0} + {sequence:.0} + {layers}, {:.0}", constants.engine, start / 1e3)
    };
    let words: Vec<String> = found.constants.iter().map(of_engine).collect();
    words.join("; ")
}

/// Errors before and after correction by other settings, as Markdown.
pub fn corrected(groups: &[Corrected]) -> String {
    let mut text =
        "| group | runs | TTFT error | corrected | TPOT error | corrected |\n|---|---|---|---|---|---|\n".to_owned();
    for found in groups {
        let [ttft, tpot] = [0, 1].map(|side| [found.before[side], found.after[side]].map(percent).join(" | "));
        text += &format!("| {} | {} | {ttft} | {tpot} |\n", found.group, found.n_runs);
    }
    text
}

fn markdown_row(key: &str, group: &GroupErrors) -> String {
    let Latencies { ttft, tpot } = group.figures;
    let [ttft, tpot] = [ttft, tpot]
        .map(|figure| figures(figure).map_or_else(|| "- | - | -".to_owned(), |figures| figures.join(" | ")));
    format!("| {key} | {} | {}/{} | {ttft} | {tpot} |\n", group.value, group.n_predicted, group.n_rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_said_to_the_end_in_lines_that_fit() {
        for constants in engine_constants::fitted() {
            let said = fitted(&constants);
            let lines = broken(&said, 72);
            assert!(lines.len() > 1 && lines.iter().all(|line| line.chars().count() <= 72), "{lines:?}");
            let words: Vec<&str> = lines.iter().flat_map(|line| line.split_whitespace()).collect();
            assert_eq!(words, said.split_whitespace().collect::<Vec<_>>());
        }
    }
}
