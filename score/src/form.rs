//! Forms in which a score is written: groups for people, everything for programs, a row a line, groups for pages.

use crate::leave_out::LeftOut;
use crate::operators::{self, Predicted};
use crate::residual::Corrected;
use crate::{rl, scenarios, summary, text, training, written};

/// Words of the forms.
pub const WORDS: [&str; 4] = ["table", "json", "csv", "markdown"];

/// A form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Groups, for people.
    Table,
    /// Everything, for programs.
    Json,
    /// A row a line.
    Csv,
    /// Groups, for pages.
    Markdown,
}

impl Form {
    /// The form of a word; a table for any other than those of the list.
    pub fn of_word(word: &str) -> Self {
        match word {
            "json" => Self::Json,
            "csv" => Self::Csv,
            "markdown" => Self::Markdown,
            _ => Self::Table,
        }
    }

    /// Measured serving runs, in lines of at most `width` letters.
    pub fn serving(self, score: &summary::Score, width: usize) -> String {
        match self {
            Self::Table => text::text(score, width),
            Self::Json => written::json(score),
            Self::Csv => written::csv(score),
            Self::Markdown => text::markdown(score),
        }
    }

    /// Errors on groups that were left out of what is fitted.
    pub fn left_out(self, groups: &[LeftOut]) -> String {
        match self {
            Self::Table | Self::Markdown => text::left_out(groups),
            Self::Json => written::as_json(&written::left_rows(groups)),
            Self::Csv => written::rows_as_csv(&written::left_rows(groups)),
        }
    }

    /// Errors before and after a correction by other settings.
    pub fn corrected(self, groups: &[Corrected]) -> String {
        match self {
            Self::Table | Self::Markdown => text::corrected(groups),
            Self::Json => written::as_json(&written::corrected_rows(groups)),
            Self::Csv => written::rows_as_csv(&written::corrected_rows(groups)),
        }
    }

    /// Measured operators of devices under a heading.
    pub fn operators(self, predicted: &[Predicted], device: &str) -> String {
        let groups = operators::groups(predicted);
        match self {
            Self::Table | Self::Markdown => operators::markdown(&groups, device) + &operators::reasons(predicted),
            Self::Json => written::as_json(&groups),
            Self::Csv => written::rows_as_csv(predicted),
        }
    }

    /// Measured figures of scenarios, in lines of at most `width` letters.
    pub fn scenarios(self, score: &scenarios::Score, width: usize) -> String {
        match self {
            Self::Table => scenarios::text::text(score, width),
            Self::Json => scenarios::written::json(score),
            Self::Csv => scenarios::written::csv(score),
            Self::Markdown => scenarios::text::markdown(score),
        }
    }

    /// Measured training steps.
    pub fn training(self, score: &training::summary::Score, width: usize) -> String {
        match self {
            Self::Table => training::text::text(score, width),
            Self::Json => training::written::json(score),
            Self::Csv => training::written::csv(score),
            Self::Markdown => training::text::markdown(score),
        }
    }

    /// Measured steps of reinforcement learning, or transfers of weights.
    pub fn rl(self, score: &rl::summary::Score, width: usize) -> String {
        match self {
            Self::Table => rl::text::text(score, width),
            Self::Json => rl::written::json(score),
            Self::Csv => rl::written::csv(score),
            Self::Markdown => rl::text::markdown(score),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_a_form_of_its_own() {
        assert_eq!(WORDS.map(Form::of_word), [Form::Table, Form::Json, Form::Csv, Form::Markdown]);
    }
}
