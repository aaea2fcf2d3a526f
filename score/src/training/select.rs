//! Which measured steps are scored: `card=B200,set=SimuMax`, and what they are grouped by.

use super::row::Row;
use crate::select::{Conditions, Keyed, matches};

/// What rows are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Set that the table is of.
    Set,
    /// Card.
    Card,
    /// Model.
    Model,
    /// Number format.
    Format,
    /// Degrees.
    Layout,
    /// Release, test.
    Variant,
    /// Number in the table.
    Row,
}

impl Key {
    /// Every key with its word.
    pub const ALL: [(&'static str, Self); 7] = [
        ("set", Self::Set),
        ("card", Self::Card),
        ("model", Self::Model),
        ("format", Self::Format),
        ("layout", Self::Layout),
        ("variant", Self::Variant),
        ("row", Self::Row),
    ];
    /// Keys that a summary has groups of.
    pub const GROUPS: [Self; 5] = [Self::Card, Self::Model, Self::Format, Self::Layout, Self::Variant];

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, key)| *key == self).map_or("", |(word, _)| word)
    }

    /// What a row has there.
    #[must_use]
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
    const WORDS: &'static [(&'static str, Self)] = &Self::ALL;

    fn is(self, row: &Row, value: &str) -> bool {
        matches(self.of(row), value)
    }
}

/// Rows that are asked for.
pub type Selection = Conditions<Key>;
