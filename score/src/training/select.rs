//! Which measured steps are scored: `card=B200,set=SimuMax`, and what they are grouped by. Steps of reinforcement learning have the same labels.

use super::row::Label;
use crate::select::{Conditions, Keyed, matches};

hw::words! {
    /// What rows are told apart by.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Key: word {
        /// Set that the table is of.
        Set = "set",
        /// Card.
        Card = "card",
        /// Model.
        Model = "model",
        /// Number format.
        Format = "format",
        /// Degrees.
        Layout = "layout",
        /// Release, test.
        Variant = "variant",
        /// Number in the table.
        Row = "row",
    }
}

impl Key {
    /// Keys that a summary has groups of.
    pub const GROUPS: [Self; 5] = [Self::Card, Self::Model, Self::Format, Self::Layout, Self::Variant];

    /// What a row has there.
    pub fn of(self, label: &Label) -> &str {
        match self {
            Self::Set => label.set,
            Self::Card => &label.card,
            Self::Model => &label.model,
            Self::Format => &label.format,
            Self::Layout => &label.layout,
            Self::Variant => &label.variant,
            Self::Row => &label.row,
        }
    }
}

impl Keyed<Label> for Key {
    const WORDS: &'static [(&'static str, Self)] = &Self::WORDS;

    fn is(self, label: &Label, value: &str) -> bool {
        matches(self.of(label), value)
    }
}

/// Rows that are asked for.
pub type Selection = Conditions<Key>;
