//! Which runs are scored: `card=h100-sxm,engine=vllm`, and what runs are grouped by.

use crate::run::{Run, Workers};

hw::words! {
    /// What runs are told apart by.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Key: word {
        /// Whether prompts and decoding are apart.
        Mode = "mode",
        /// Card.
        Card = "card",
        /// Engine.
        Engine = "engine",
        /// Version of the engine.
        Version = "version",
        /// Model without its owner.
        Model = "model",
        /// Format of the checkpoint.
        Format = "format",
        /// Tensor degree of one attention group, or of the decode workers'.
        Tensor = "tp",
        /// Prompt and answer.
        Lengths = "lengths",
        /// Requests in flight.
        Load = "load",
        /// Identity in the table.
        Id = "id",
    }
}

impl Key {
    /// Keys that a summary has groups of.
    pub const GROUPS: [Self; 8] =
        [Self::Mode, Self::Card, Self::Engine, Self::Model, Self::Format, Self::Tensor, Self::Lengths, Self::Load];

    /// What a run has there.
    pub fn of(self, run: &Run) -> String {
        match self {
            Self::Mode => if run.is_split() { "split" } else { "whole" }.to_owned(),
            Self::Card => run.card.clone(),
            Self::Engine => run.engine.clone(),
            Self::Version => run.version.clone(),
            Self::Model => run.model.rsplit('/').next().unwrap_or_default().to_owned(),
            Self::Format => if run.precision.is_empty() { "bf16" } else { &run.precision }.to_owned(),
            Self::Tensor => tensor(run).to_string(),
            Self::Lengths => format!("{}+{}", run.prompt, run.output),
            Self::Load => run.in_flight.map_or_else(|| "?".to_owned(), |n| n.to_string()),
            Self::Id => run.id.clone(),
        }
    }

    /// What a run has there, coarse enough for groups: loads and prompts by powers of two.
    pub fn group_of(self, run: &Run) -> String {
        match self {
            Self::Lengths => format!("prompts to {}", run.prompt.next_power_of_two()),
            Self::Load => run.in_flight.map_or_else(|| "?".to_owned(), |n| format!("to {}", to_four_fold(n))),
            key => key.of(run),
        }
    }
}

/// The least power of four that is not below a number.
fn to_four_fold(n: u32) -> u32 {
    let power = n.next_power_of_two();
    if power.trailing_zeros().is_multiple_of(2) { power } else { 2 * power }
}

fn tensor(run: &Run) -> u32 {
    let (Workers::Whole(worker) | Workers::Split { decode: worker, .. }) = &run.workers;
    let shape = worker.shape();
    shape.gpus / shape.groups
}

/// Keys of the rows of a table, each with its word.
pub trait Keyed<R>: Copy + 'static {
    /// Every key with its word.
    const WORDS: &'static [(&'static str, Self)];

    /// Whether a row has there what is asked for: the value, or where that ends in `*` its beginning.
    fn is(self, row: &R, value: &str) -> bool;
}

impl Keyed<Run> for Key {
    const WORDS: &'static [(&'static str, Self)] = &Self::WORDS;

    fn is(self, run: &Run, value: &str) -> bool {
        matches(&self.of(run), value)
    }
}

/// Rows that are asked for: all conditions hold, a value with `*` at its end by its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditions<K> {
    list: Vec<(K, String)>,
}

/// Why a text is no list of conditions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum NoCondition {
    /// A part has no `=`.
    #[error("`{part}` is no condition; write `key=value` with one of {keys}")]
    NoValue { part: String, keys: String },
    /// A key is unknown.
    #[error("`{word}` is no key; there are {keys}")]
    UnknownKey { word: String, keys: String },
}

/// Runs that are asked for.
pub type Selection = Conditions<Key>;

impl<K> Conditions<K> {
    /// No condition: every row.
    pub const fn everything() -> Self {
        Self { list: Vec::new() }
    }

    /// From text: conditions `key=value` with commas between.
    ///
    /// # Errors
    /// A sentence about the first condition that is none.
    pub fn parse<R>(text: &str) -> Result<Self, NoCondition>
    where
        K: Keyed<R>,
    {
        let names = || K::WORDS.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        let mut list = Vec::new();
        for part in &parts(text) {
            let Some((word, value)) = part.split_once('=') else {
                return Err(NoCondition::NoValue { part: part.clone(), keys: names() });
            };
            let known = K::WORDS.iter().find(|(known, _)| *known == word.trim());
            let (_, key) = known.ok_or_else(|| NoCondition::UnknownKey { word: word.to_owned(), keys: names() })?;
            list.push((*key, value.trim().to_owned()));
        }
        Ok(Self { list })
    }

    /// Whether a row is asked for.
    pub fn takes<R>(&self, row: &R) -> bool
    where
        K: Keyed<R>,
    {
        self.list.iter().all(|(key, value)| key.is(row, value))
    }
}

/// Conditions one by one. A comma behind which no `=` comes before the next is one of a value: `card=H100 96 GB HBM2e, 500 W`.
fn parts(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        match found.last_mut().filter(|_| !part.contains('=')) {
            Some(last) => *last += &format!(",{}", part.trim_end()),
            None => found.push(part.trim().to_owned()),
        }
    }
    found
}

/// Whether what is there is the value that is asked for, or begins with it where that ends in `*`.
pub(crate) fn matches(found: &str, value: &str) -> bool {
    value.strip_suffix('*').map_or_else(|| found == value, |start| found.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn a_comma_that_no_key_follows_belongs_to_the_value() {
        assert_eq!(parts("card=H100 96 GB HBM2e, 500 W, set=x"), ["card=H100 96 GB HBM2e, 500 W", "set=x"]);
        assert_eq!(parts("card=B200,,set=SimuMax,"), ["card=B200", "set=SimuMax"]);
        assert_eq!(parts("card"), ["card"]);
    }
}
