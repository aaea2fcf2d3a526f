//! Values of a key that has a list of them, in words that tell them apart: labels of ways, and what a plan says of the way that was chosen.

use toml_span::value::ValueInner;

/// A listed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Anything but a table.
    Word(String),
    /// A table: its keys with their values, in order.
    Table(Vec<(String, String)>),
}

/// Keys that a table is called by.
const CALLED: [&str; 4] = ["format", "kernel", "borrow", "name"];

impl Shown {
    /// A value of a scenario.
    pub fn of(value: &ValueInner<'_>) -> Self {
        let text = |value: &toml_span::Value<'_>| Self::of(value.as_ref()).own();
        match value {
            ValueInner::String(text) => Self::Word(text.to_string()),
            ValueInner::Integer(number) => Self::Word(number.to_string()),
            ValueInner::Float(number) => Self::Word(number.to_string()),
            ValueInner::Boolean(flag) => Self::Word(flag.to_string()),
            ValueInner::Array(items) => Self::Word(items.iter().map(text).collect::<Vec<_>>().join("+")),
            ValueInner::Table(table) => {
                Self::sorted(table.iter().map(|(key, value)| (key.name.to_string(), text(value))).collect())
            }
        }
    }

    /// The same value in the text that a plan carries.
    pub fn of_text(value: &toml::Value) -> Self {
        let text = |value: &toml::Value| Self::of_text(value).own();
        match value {
            toml::Value::String(text) => Self::Word(text.clone()),
            toml::Value::Float(number) => Self::Word(number.to_string()),
            toml::Value::Array(items) => Self::Word(items.iter().map(text).collect::<Vec<_>>().join("+")),
            toml::Value::Table(table) => {
                Self::sorted(table.iter().map(|(key, value)| (key.clone(), text(value))).collect())
            }
            other => Self::Word(other.to_string()),
        }
    }

    /// The number that it is.
    pub fn number(&self) -> Option<f64> {
        let Self::Word(word) = self else { return None };
        word.parse().ok()
    }

    fn sorted(mut keys: Vec<(String, String)>) -> Self {
        keys.sort();
        Self::Table(keys)
    }

    /// Its word, where no other value has the same.
    fn word(&self) -> String {
        let Self::Table(keys) = self else { return self.own() };
        let of = |key: &str| keys.iter().find(|(found, _)| found == key).map(|(_, word)| word);
        let called = CALLED.iter().find_map(|key| of(key)).cloned();
        let called = called.or_else(|| Some(format!("{}-slots", of("slots")?)));
        let called = called.or_else(|| Some(format!("{}-drafts", of("draft_tokens")?)));
        let products = of("products").map(|list| format!("-{}-products", list.split('+').count()));
        format!("{}{}", called.unwrap_or_else(|| "table".to_owned()), products.unwrap_or_default())
    }

    /// All of it.
    fn own(&self) -> String {
        match self {
            Self::Word(word) => word.clone(),
            Self::Table(keys) => keys.iter().map(|(key, word)| format!("{key}-{word}")).collect::<Vec<_>>().join("-"),
        }
    }

    /// The keys in which it differs from others, with its values.
    fn differing(&self, others: &[&Self]) -> String {
        let Self::Table(keys) = self else { return String::new() };
        let has = |other: &&Self, key: &(String, String)| matches!(other, Self::Table(keys) if keys.contains(key));
        let own = keys.iter().filter(|key| !others.iter().all(|other| has(other, key)));
        own.map(|(key, word)| format!("-{key}-{word}")).collect()
    }
}

/// Words of all values of a list. A table is called by its format or kernel; where others are called the same, with the keys in which they differ.
pub fn words(list: &[Shown]) -> Vec<String> {
    let short: Vec<String> = list.iter().map(Shown::word).collect();
    let of = |at: usize| {
        let same: Vec<&Shown> =
            (0..list.len()).filter(|other| short[*other] == short[at]).map(|at| &list[at]).collect();
        format!("{}{}", short[at], list[at].differing(&same))
    };
    (0..list.len()).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<Shown> {
        let value: toml::Table = format!("list = {text}").parse().expect("a list");
        let list = value["list"].as_array().expect("a list").iter().map(Shown::of_text).collect::<Vec<_>>();
        let line = format!("list = {text}");
        let spanned = toml_span::parse(&line).map(|mut value| value.take()).expect("a list");
        let ValueInner::Table(table) = spanned else { panic!("a table") };
        let of_scenario: Vec<Shown> =
            table["list"].as_array().expect("a list").iter().map(|value| Shown::of(value.as_ref())).collect();
        assert_eq!(list, of_scenario, "a plan's text says what the scenario says");
        list
    }

    #[test]
    fn tables_are_told_apart_by_the_keys_in_which_they_differ() {
        for (list, expected) in [
            ("[1, 2.5, \"a\", true]", vec!["1", "2.5", "a", "true"]),
            ("[{ format = \"bf16\" }, { format = \"fp8\", kv = \"fp8\" }]", vec!["bf16", "fp8"]),
            (
                "[{ format = \"bf16\" }, { format = \"bf16\", kv = \"fp8\" }, \"fp8\"]",
                vec!["bf16", "bf16-kv-fp8", "fp8"],
            ),
            ("[{ kv = \"fp8\" }, { kv = \"int8\" }]", vec!["table-kv-fp8", "table-kv-int8"]),
            (
                "[{ slots = 4, rank_max = 8 }, { slots = 4, rank_max = 16 }]",
                vec!["4-slots-rank_max-8", "4-slots-rank_max-16"],
            ),
            (
                "[0, { draft_tokens = 2, acceptance = 0.7 }, { draft_tokens = 4, acceptance = 0.7 }]",
                vec!["0", "2-drafts", "4-drafts"],
            ),
            (
                "[{ format = \"tiled-csl\", products = [\"up\"] }, { format = \"tiled-csl\", products = [\"output\"] }]",
                vec!["tiled-csl-1-products-products-up", "tiled-csl-1-products-products-output"],
            ),
        ] {
            assert_eq!(words(&shown(list)), expected, "{list}");
        }
    }
}
