//! Which measured steps are scored: `card=B200,set=SimuMax`, and what they are grouped by.

use super::row::Row;

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

/// Rows that are asked for: all conditions hold, a value with `*` at its end by its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    conditions: Vec<(Key, String)>,
}

impl Selection {
    /// From text: conditions `key=value` with commas between.
    ///
    /// # Errors
    /// A sentence about the first condition that is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let words = Key::ALL.map(|(word, _)| word);
        let found = crate::select::conditions(text, &words)?;
        Ok(Self { conditions: found.into_iter().map(|(at, value)| (Key::ALL[at].1, value)).collect() })
    }

    /// Whether a row is asked for.
    #[must_use]
    pub fn takes(&self, row: &Row) -> bool {
        self.conditions.iter().all(|(key, value)| crate::select::matches(key.of(row), value))
    }
}
