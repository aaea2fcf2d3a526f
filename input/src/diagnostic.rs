//! One problem in the input, and the one way it is shown.
//!
//! A finding says what is wrong, where, what is allowed and what to do; lower case, no full stop, names in backticks.
//! Input is checked as a whole: findings are collected, never thrown one by one.

pub mod codes;

pub use crate::meant::{meant, nearest};

use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

pub use codes::Code;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The input cannot be used.
    Error,
    /// It can, with a consequence that the message names.
    Warning,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub code: Code,
    /// Error or warning.
    pub severity: Severity,
    /// What is wrong.
    pub what: String,
    /// Bytes of the scenario file; `None` for `--set` and for other files.
    pub at: Option<Range<usize>>,
    /// Words under the caret.
    pub label: String,
    /// What is allowed or what to do.
    pub help: Option<String>,
}

impl Finding {
    /// An error at a place.
    pub fn error(code: Code, at: Option<Range<usize>>, what: impl Into<String>) -> Self {
        Self { code, severity: Severity::Error, what: what.into(), at, label: String::new(), help: None }
    }

    /// A warning at a place.
    pub fn warning(code: Code, at: Option<Range<usize>>, what: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, at, what) }
    }

    /// Adds words under the caret.
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: label.into(), ..self }
    }

    /// Adds what is allowed or what to do.
    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

/// Errors among findings.
pub fn n_errors(findings: &[Finding]) -> usize {
    findings.iter().filter(|finding| finding.severity == Severity::Error).count()
}

/// What a warning says of a run alone, such as a key that changes nothing.
const OF_RUNS: [Code; 2] = [Code::NoEffect, Code::WrongGpuCount];

/// Why something is refused. Nothing runs of it, so what a run would not notice is left out: a mended error may make it false.
/// It is never without an error, for a reader that says nothing is a defect.
pub fn reasons(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.retain(|finding| finding.severity == Severity::Error || !OF_RUNS.contains(&finding.code));
    if n_errors(&findings) == 0 {
        let what = "a defect of skrull-sim: this cannot be read, and no reader says why";
        let help = "what was changed last is the likely cause; please report it with the file and the command";
        findings.push(Finding::error(Code::NoScenario, None, what).help(help));
    }
    findings
}

/// A source of scenario text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Path as the user gave it.
    pub path: String,
    /// Text.
    pub text: String,
}

/// Renders findings, one block each, in the form of the Rust compiler.
pub fn render(source: &Source, findings: &[Finding]) -> String {
    let renderer = Renderer::plain();
    let blocks: Vec<String> = findings
        .iter()
        .map(|finding| {
            let level = if finding.severity == Severity::Error { Level::ERROR } else { Level::WARNING };
            let code = finding.code.to_string();
            let title = level.primary_title(finding.what.as_str()).id(code.as_str());
            let mut group: Group<'_> = match &finding.at {
                Some(range) => {
                    let span = on_characters(&source.text, range);
                    let annotation = AnnotationKind::Primary.span(span).label(finding.label.as_str());
                    title.element(
                        Snippet::source(source.text.as_str()).path(source.path.as_str()).annotation(annotation),
                    )
                }
                None => title.element(Origin::path(source.path.as_str())),
            };
            // Without a place in the file there is no caret to write under.
            let unplaced = Some(&finding.label).filter(|label| finding.at.is_none() && !label.is_empty());
            for help in unplaced.into_iter().chain(&finding.help) {
                group = group.element(Level::HELP.message(help.as_str()));
            }
            renderer.render(&[group]).trim_end().to_owned()
        })
        .collect();
    marked(&blocks.join("\n\n"))
}

/// Whether a character shows nothing, or changes how others are shown: controls, and marks of direction.
pub(crate) fn is_hidden(letter: char) -> bool {
    let turns =
        matches!(letter, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    letter.is_control() || turns
}

/// A message as a terminal may get it: hidden characters are marked, lines stay.
pub fn marked(text: &str) -> String {
    let mark = |letter: char| if is_hidden(letter) && !matches!(letter, '\n' | '\t') { '\u{fffd}' } else { letter };
    text.chars().map(mark).collect()
}

/// The same place with whole characters: a parser's may end inside one.
fn on_characters(text: &str, range: &Range<usize>) -> Range<usize> {
    let is_border = |at: &usize| text.is_char_boundary(*at);
    let (start, end) = (range.start.min(text.len()), range.end.min(text.len()).max(range.start.min(text.len())));
    let start = (0..=start).rev().find(is_border).unwrap_or(0);
    start..(end..=text.len()).find(is_border).unwrap_or(text.len())
}

/// Where errors are explained, in a line; each code once.
pub fn footer(codes: impl IntoIterator<Item = Code>) -> String {
    let codes: std::collections::BTreeSet<Code> = codes.into_iter().collect();
    let names: Vec<String> = codes.iter().map(Code::to_string).collect();
    match names.as_slice() {
        [] => String::new(),
        [name] => format!("`skrull-sim explain {name}` says more"),
        _ => format!("`skrull-sim explain CODE` says more about {}", names.join(", ")),
    }
}

/// Most that is looked at for whole numbers which divide another one.
const DIVISORS_MAX: u64 = 100_000;

/// Whole numbers that divide another one, as a message lists them.
pub fn divisors(n: u64) -> String {
    let all = (1..=n.min(DIVISORS_MAX)).filter(|d| n.is_multiple_of(*d)).map(|d| d.to_string());
    all.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_never_refused_without_a_word() {
        let warning = Finding::warning(Code::NotModelled, None, "is not modelled");
        let found = reasons(vec![warning.clone()]);
        assert!(found[0] == warning && found[1].what.contains("a defect of skrull-sim"), "{found:?}");
        let said = vec![Finding::error(Code::WrongType, None, "wrong")];
        assert_eq!(reasons(said.clone()), said);
    }

    #[test]
    fn what_is_refused_has_no_warning_of_keys_that_change_nothing() {
        let [wrong, unused] = [Code::NoEffect, Code::WrongGpuCount].map(|code| Finding::error(code, None, "wrong"));
        let idle = [Code::NoEffect, Code::WrongGpuCount].map(|code| Finding::warning(code, None, "changes nothing"));
        let found = reasons([vec![wrong.clone()], idle.to_vec(), vec![unused.clone()]].concat());
        assert_eq!(found, [wrong, unused]);
    }
}
