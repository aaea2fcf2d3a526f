//! Conditions between axes: `parallel.tp * parallel.pp <= 8`. A side is a product of keys and numbers, or one word.

use std::collections::BTreeMap;

use serde_json::Value;
use thiserror::Error;

/// A comparison of two products.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    left: Vec<Term>,
    comparison: Comparison,
    right: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq)]
enum Term {
    Key(String),
    Number(f64),
    Word(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    AtMost,
    AtLeast,
    Below,
    Above,
    Equal,
    Other,
}

/// Longer signs come first.
const SIGNS: [(&str, Comparison); 6] = [
    ("<=", Comparison::AtMost),
    (">=", Comparison::AtLeast),
    ("==", Comparison::Equal),
    ("!=", Comparison::Other),
    ("<", Comparison::Below),
    (">", Comparison::Above),
];

/// Why a text is no condition.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConditionError {
    /// It compares nothing.
    #[error("`{0}` compares nothing")]
    NoComparison(String),
    /// It names something that no axis has.
    #[error("no axis has the key `{0}`")]
    UnknownKey(String),
}

impl Condition {
    /// Reads one; `keys` are those of the axes.
    ///
    /// # Errors
    /// When it compares nothing, or names another key.
    pub fn parse(text: &str, keys: &[&str]) -> Result<Self, ConditionError> {
        let found = SIGNS.iter().find_map(|(sign, comparison)| Some((text.split_once(sign)?, *comparison)));
        let Some(((left, right), comparison)) = found else {
            return Err(ConditionError::NoComparison(text.to_owned()));
        };
        Ok(Self { left: terms(left, keys)?, comparison, right: terms(right, keys)? })
    }

    /// Whether it holds for values of the keys.
    pub fn holds(&self, values: &BTreeMap<&str, &Value>) -> bool {
        if let (Some(left), Some(right)) = (word(&self.left, values), word(&self.right, values)) {
            return match self.comparison {
                Comparison::Equal => left == right,
                Comparison::Other => left != right,
                _ => false,
            };
        }
        let (left, right) = (product(&self.left, values), product(&self.right, values));
        match self.comparison {
            Comparison::AtMost => left <= right,
            Comparison::AtLeast => left >= right,
            Comparison::Below => left < right,
            Comparison::Above => left > right,
            Comparison::Equal => left == right,
            Comparison::Other => left != right,
        }
    }
}

fn terms(text: &str, keys: &[&str]) -> Result<Vec<Term>, ConditionError> {
    text.split('*').map(|part| term(part.trim(), keys)).collect()
}

fn term(text: &str, keys: &[&str]) -> Result<Term, ConditionError> {
    if keys.contains(&text) {
        return Ok(Term::Key(text.to_owned()));
    }
    if let Ok(number) = text.parse() {
        return Ok(Term::Number(number));
    }
    let word = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
    word.map(|word| Term::Word(word.to_owned())).ok_or_else(|| ConditionError::UnknownKey(text.to_owned()))
}

/// A side that is one word, or one key with a word.
fn word<'a>(side: &'a [Term], values: &BTreeMap<&str, &'a Value>) -> Option<&'a str> {
    match side {
        [Term::Word(word)] => Some(word),
        [Term::Key(key)] => values.get(key.as_str())?.as_str(),
        _ => None,
    }
}

/// The product of a side; no number where a part is none, and then nothing holds but `!=`.
fn product(side: &[Term], values: &BTreeMap<&str, &Value>) -> f64 {
    let factor = |term: &Term| match term {
        Term::Number(number) => *number,
        Term::Key(key) => values.get(key.as_str()).and_then(|value| value.as_f64()).unwrap_or(f64::NAN),
        Term::Word(_) => f64::NAN,
    };
    side.iter().map(factor).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(text: &str) -> bool {
        let (two, eight, word) = (Value::from(2), Value::from(8), Value::from("1f1b"));
        let values = BTreeMap::from([("p.tp", &two), ("p.pp", &eight), ("p.schedule", &word)]);
        let keys: Vec<&str> = values.keys().copied().collect();
        Condition::parse(text, &keys).expect("a condition").holds(&values)
    }

    #[test]
    fn products_and_words_are_compared() {
        assert!(holds("p.tp * p.pp <= 16") && holds("p.tp*p.pp == 16") && !holds("p.tp * p.pp < 16"));
        assert!(holds("p.pp > p.tp") && holds("4 * p.tp >= p.pp") && holds("p.tp != p.pp"));
        assert!(holds("p.schedule == '1f1b'") && !holds("p.schedule != '1f1b'") && !holds("p.schedule < '1f1b'"));
        assert!(!holds("p.schedule <= 8"), "a word is no number");
    }

    #[test]
    fn what_no_axis_has_is_refused() {
        assert_eq!(Condition::parse("a.b < 1", &["a.c"]), Err(ConditionError::UnknownKey("a.b".to_owned())));
        assert_eq!(Condition::parse("a.c", &["a.c"]), Err(ConditionError::NoComparison("a.c".to_owned())));
    }
}
