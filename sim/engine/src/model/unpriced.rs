//! Parts of a public configuration that neither time nor memory is given for here, so that a report can say what it leaves out.

use super::{FeedForward, Layer, Mixer, Model};

/// A part that is left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unpriced {
    /// What it is, with the key that names it.
    pub what: String,
    /// What it counts as; `None` where it is left out of time and memory.
    pub taken_as: Option<String>,
    /// Its parameters, as far as the configuration tells; 0 where nothing is known.
    pub parameters: u64,
}

impl Unpriced {
    /// A part that nothing counts.
    pub const fn left_out(what: String, parameters: u64) -> Self {
        Self { what, taken_as: None, parameters }
    }

    /// A part that counts as something else.
    pub const fn taken(what: String, taken_as: String, parameters: u64) -> Self {
        Self { what, taken_as: Some(taken_as), parameters }
    }
}

impl Model {
    /// Parts that are left out, each with its share of the parameters of all that the configuration names, from 0 to 1. A share of 0 is one that
    /// the configuration does not tell.
    pub fn not_priced(&self) -> Vec<(&str, f64)> {
        let left_out: u64 =
            self.unpriced.iter().filter(|part| part.taken_as.is_none()).map(|part| part.parameters).sum();
        let encoder = self.vision.as_deref().map_or(0, super::VisionEncoder::n_parameters);
        let whole = hw::real(self.n_parameters() + encoder + left_out);
        let share = |part: &Unpriced| hw::real(part.parameters) / whole;
        self.unpriced.iter().map(|part| (part.what.as_str(), share(part))).collect()
    }

    /// The same in words.
    pub fn left_out(&self) -> Vec<String> {
        let words = |((what, share), part): ((&str, f64), &Unpriced)| {
            let share = match share {
                0.0 => "its share is not known".to_owned(),
                share => format!("{:.1} % of the parameters", 100.0 * share),
            };
            match &part.taken_as {
                Some(other) if part.parameters == 0 => format!("`{}`: {what} counts as {other}", self.name),
                None => format!("`{}`: {what} is left out of time and memory, {share}", self.name),
                Some(other) => format!("`{}`: {what} counts as {other}, {share}", self.name),
            }
        };
        self.not_priced().into_iter().zip(&self.unpriced).map(words).collect()
    }

    /// What training leaves out of a model that sees, in words.
    pub fn encoder_left_out(&self) -> Option<String> {
        let encoder = self.vision.as_deref()?.n_parameters();
        let share = 100.0 * hw::real(encoder) / hw::real(encoder + self.n_parameters());
        Some(format!(
            "`{}`: the vision encoder is left out of time and memory, {share:.1} % of the parameters",
            self.name
        ))
    }

    /// What formulas of plain layers do not know of them, in words, and whether it cannot do without: it takes each for attention to all tokens with a
    /// feed-forward behind it. Windows as long as the longest sequence see all of it; without one every window is told.
    pub fn beyond_training(&self, longest: Option<u64>) -> Option<(bool, String)> {
        let unlike = self.unlike_any_trained();
        if !unlike.is_empty() {
            return Some((true, format!("`{}` has {}; no time is known for that here", self.name, unlike.join(", "))));
        }
        let n_other = self.count(self.n_layers, |layer| !layer.is_whole());
        let sees_a_part = |layer: Layer| matches!(layer.mixer, Mixer::Window(_) | Mixer::Chunked(_));
        let n_windows = self.count(self.n_layers, |layer| sees_a_part(layer) && layer.feed_forward != FeedForward::Off);
        let is_passed = |layer: Layer| match (layer.mixer, longest) {
            (Mixer::Window(tokens) | Mixer::Chunked(tokens), Some(longest)) => longest > tokens,
            _ => !layer.is_whole(),
        };
        let of = |n: u64, what: &str| format!("{n} of {} layers of `{}` {what}", self.n_layers, self.name);
        let n_passed = self.count(self.n_layers, is_passed);
        match n_other {
            0 => None,
            _ if n_other > n_windows => {
                Some((true, of(n_other - n_windows, "have a state, an index or one half only")))
            }
            _ if n_passed == 0 => None,
            _ => Some((false, of(n_passed, "see a part of the tokens and are timed as if they saw all"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{embedded, embedded_names};

    #[test]
    fn training_knows_plain_models_and_says_what_it_does_with_others() {
        for (name, expected) in [
            ("llama-3-8b", None),
            ("deepseek-v3", None),
            ("mixtral-8x7b", None),
            ("gpt-oss-120b", Some((false, "18 of 36"))),
            ("gemma-3-27b", Some((false, "52 of 62"))),
            ("qwen3.5-397b-a17b", Some((true, "45 of 60"))),
            ("glm-5", Some((true, "78 of 78"))),
            ("nemotron-h-56b", Some((true, "118 of 118"))),
        ] {
            let found = embedded(name).expect(name).beyond_training(None);
            let found = found.as_ref().map(|(refused, what)| (*refused, what.as_str()));
            match (found, expected) {
                (None, None) => {}
                (Some((refused, what)), Some((expected, start))) => {
                    assert!(refused == expected && what.starts_with(start), "{what}")
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        // Windows of 1,024 tokens beside layers that see all.
        let gemma = embedded("gemma-3-27b").expect("listed");
        assert_eq!(gemma.beyond_training(Some(1024)), None);
        assert_eq!(gemma.beyond_training(Some(1025)), gemma.beyond_training(None));
        assert!(embedded("glm-5").expect("listed").beyond_training(Some(1)).is_some_and(|(refused, _)| refused));
        assert!(embedded_names().iter().all(|name| embedded(name).expect(name).left_out().is_empty()));
    }
}
