//! `--vary section.key=a,b`: the same scenarios under every combination of some keys.

use thiserror::Error;

/// A combination: overrides as `--set` takes them, and how the scenario's name says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variation {
    /// `section.key=value` of each varied key.
    pub set: Vec<String>,
}

impl Variation {
    /// Name of a scenario under this variation.
    pub fn label(&self, scenario: &str) -> String {
        if self.set.is_empty() { scenario.to_owned() } else { format!("{scenario} [{}]", self.set.join(", ")) }
    }
}

/// Why arguments make no variations.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WrongVariation {
    /// One has no key or no value.
    #[error("`--vary {argument}`: expected section.key=value,value")]
    Form {
        /// As it was written.
        argument: String,
    },
    /// Two change one key, so that the later one would stand for both.
    #[error("two `--vary` change `{key}`\n  = write all its values behind one: `--vary {key}={values}`")]
    Twice {
        /// The key.
        key: String,
        /// Values of both.
        values: String,
    },
    /// An override gives the key one value.
    #[error("`--set {argument}` would change nothing: `--vary` gives `{key}`\n  = leave one of them out")]
    Given {
        /// As it was written.
        argument: String,
        /// The key.
        key: String,
    },
}

/// A seed among the keys of batches that have consecutive ones.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{argument}` would change nothing: batches have consecutive seeds\n  = `--seed` is the first of them, `--seeds` how many"
)]
pub struct VariedSeed {
    /// As it was written.
    argument: String,
}

/// Holds that no key is the seed.
///
/// # Errors
/// When one is.
pub fn without_seed(set: &[String], vary: &[String]) -> Result<(), VariedSeed> {
    let is_seed = |argument: &&String| argument.split_once('=').is_some_and(|(key, _)| key.trim() == "seed");
    match set.iter().chain(vary).find(is_seed) {
        Some(argument) => Err(VariedSeed { argument: argument.clone() }),
        None => Ok(()),
    }
}

/// A key and its values.
fn read(argument: &str) -> Option<(&str, Vec<&str>)> {
    let (key, values) = argument.split_once('=')?;
    let values: Vec<&str> = values.split(',').map(str::trim).collect();
    (!key.trim().is_empty() && values.iter().all(|value| !value.is_empty())).then_some((key.trim(), values))
}

/// Holds that nobody else gives the key that an argument varies: neither an earlier one nor an override.
fn once((key, values): &(&str, Vec<&str>), set: &[String], earlier: &[String]) -> Result<(), WrongVariation> {
    let before = earlier.iter().filter_map(|argument| read(argument)).find(|(other, _)| other == key);
    if let Some((_, before)) = before {
        let values = [before.as_slice(), values.as_slice()].concat().join(",");
        return Err(WrongVariation::Twice { key: (*key).to_owned(), values });
    }
    let given = set.iter().find(|argument| argument.split_once('=').is_some_and(|(other, _)| other.trim() == *key));
    given.map_or(Ok(()), |argument| Err(WrongVariation::Given { argument: argument.clone(), key: (*key).to_owned() }))
}

/// Every combination beside overrides that all of them have, the first key slowest; one empty variation when nothing varies.
///
/// # Errors
/// When an argument has no key or no value, or something else gives its key too.
pub fn variations(arguments: &[String], set: &[String]) -> Result<Vec<Variation>, WrongVariation> {
    let mut all = vec![Variation::default()];
    for (index, argument) in arguments.iter().enumerate() {
        let found = read(argument).ok_or_else(|| WrongVariation::Form { argument: argument.clone() })?;
        once(&found, set, &arguments[..index])?;
        let (key, values) = found;
        let extended = |variation: &Variation| {
            let before = variation.set.clone();
            values
                .iter()
                .map(move |value| Variation { set: [before.as_slice(), &[format!("{key}={value}")]].concat() })
                .collect::<Vec<Variation>>()
        };
        all = all.iter().flat_map(extended).collect();
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_combined_first_key_slowest() {
        let found =
            variations(&["a.x=1, 2".to_owned(), "b.y=u,v".to_owned()], &["c.z=1".to_owned()]).expect("two keys");
        let labels: Vec<String> = found.iter().map(|variation| variation.label("s")).collect();
        assert_eq!(labels, ["s [a.x=1, b.y=u]", "s [a.x=1, b.y=v]", "s [a.x=2, b.y=u]", "s [a.x=2, b.y=v]"]);
        assert_eq!(variations(&[], &[]), Ok(vec![Variation::default()]));
        assert_eq!(Variation::default().label("s"), "s");
        for wrong in ["a.x", "a.x=", "=1", "a.x=1,,2"] {
            assert!(variations(&[wrong.to_owned()], &[]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_key_has_its_values_in_one_place() {
        let of = |vary: &[&str], set: &[&str]| {
            let owned = |all: &[&str]| all.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>();
            variations(&owned(vary), &owned(set))
        };
        let twice = of(&["a.x=1,2", "b.y=1", " a.x = 3"], &[]).expect_err("twice").to_string();
        assert!(twice.contains("`--vary a.x=1,2,3`"), "{twice}");
        let given = of(&["a.x=1,2"], &["a.x=5"]).expect_err("given").to_string();
        assert!(given.contains("`--set a.x=5`"), "{given}");
    }
}
