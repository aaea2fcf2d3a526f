//! Which measured rows are scored: `card=H100,model=Qwen3-32B`, and what they are grouped by.

use super::row::Row;
use crate::select::{Conditions, Keyed, matches};

hw::words! {
    /// What rows are told apart by.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Key: word {
        /// Framework.
        Set = "set",
        /// Card.
        Card = "card",
        /// Model.
        Model = "model",
        /// Number format.
        Format = "format",
        /// Degrees.
        Layout = "layout",
        /// Where is generated, and how many updates behind.
        Variant = "variant",
        /// Number in the table.
        Row = "row",
    }
}

impl Key {
    /// Keys that a summary has groups of.
    pub const GROUPS: [Self; 4] = [Self::Set, Self::Card, Self::Model, Self::Variant];

    /// What a row has there.
    pub fn of(self, row: &Row) -> &str {
        let label = &row.label;
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

impl Keyed<Row> for Key {
    const WORDS: &'static [(&'static str, Self)] = &Self::WORDS;

    fn is(self, row: &Row, value: &str) -> bool {
        matches(self.of(row), value)
    }
}

/// Rows that are asked for.
pub type Selection = Conditions<Key>;
