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

/// An argument without a key or without a value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`--vary {argument}`: expected section.key=value,value")]
pub struct WrongVariation {
    /// As it was written.
    argument: String,
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

/// Every combination, the first key slowest; one empty variation when nothing varies.
///
/// # Errors
/// When an argument has no key or no value.
pub fn variations(arguments: &[String]) -> Result<Vec<Variation>, WrongVariation> {
    let mut all = vec![Variation::default()];
    for argument in arguments {
        let wrong = || WrongVariation { argument: argument.clone() };
        let (key, values) = argument.split_once('=').ok_or_else(wrong)?;
        let values: Vec<&str> = values.split(',').map(str::trim).collect();
        if key.trim().is_empty() || values.iter().any(|value| value.is_empty()) {
            return Err(wrong());
        }
        let extended = |variation: &Variation| {
            let before = variation.set.clone();
            values
                .iter()
                .map(move |value| Variation { set: [before.as_slice(), &[format!("{}={value}", key.trim())]].concat() })
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
        let found = variations(&["a.x=1, 2".to_owned(), "b.y=u,v".to_owned()]).expect("two keys");
        let labels: Vec<String> = found.iter().map(|variation| variation.label("s")).collect();
        assert_eq!(labels, ["s [a.x=1, b.y=u]", "s [a.x=1, b.y=v]", "s [a.x=2, b.y=u]", "s [a.x=2, b.y=v]"]);
        assert_eq!(variations(&[]), Ok(vec![Variation::default()]));
        assert_eq!(Variation::default().label("s"), "s");
        for wrong in ["a.x", "a.x=", "=1", "a.x=1,,2"] {
            assert!(variations(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
