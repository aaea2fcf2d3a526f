//! Hybrid models: a letter for every layer, `MEME*|MEM-/*E` (NVIDIA/Megatron-LM @ d98e8a64ddf3, `hybrid_layer_allocation.py`). `|` stands between
//! stages, `/` before the layers that predict a further token.

use crate::document::Document;
use crate::flags::Flags;

/// Flags of the pattern; the second one is the older name.
const NAMES: [&str; 2] = ["hybrid-layer-pattern", "hybrid-override-pattern"];
/// Letters of layers that are timed: Mamba-2, attention, a feed-forward, experts.
const LETTERS: &str = "M*-E";
/// Layers that predict a further token, as a hybrid's are timed: attention and experts.
const PREDICTS: &str = "*E";
/// Where the shape is written.
const SECTION: &str = "model.config";
/// Largest width or count.
const MOST: u64 = 100_000_000;

/// The layers of a hybrid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hybrid {
    /// A letter for every layer of the model itself.
    pub(crate) letters: String,
    /// Layers of each stage that the pattern marks; one without marks.
    pub(crate) stages: Vec<u32>,
    /// Further tokens that are predicted.
    pub(crate) n_predicting: u64,
}

impl Hybrid {
    /// Layers of the model itself.
    pub(crate) const fn n_layers(&self) -> u64 {
        self.letters.len() as u64
    }
}

/// Which flag holds a pattern.
pub(super) fn flag(flags: &Flags<'_>) -> Option<&'static str> {
    NAMES.into_iter().find(|name| flags.find(name).is_some())
}

/// Reads the pattern; `None` without one and where a finding says what is wrong.
pub(super) fn read(flags: &mut Flags<'_>) -> Option<Hybrid> {
    let name = flag(flags)?;
    let text = flags.text(name)?;
    match parse(&text) {
        Ok(hybrid) => Some(hybrid),
        Err(why) => {
            let help = "allowed are M for Mamba, * for attention, - for a feed-forward, E for experts, `|` between stages and `/*E` for each further token";
            flags.wrong(name, format!("`--{name} {text}` {why}"), help.to_owned());
            None
        }
    }
}

/// What is wrong with a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum WrongPattern {
    #[error("has `{0}`, a layer that is not modelled")]
    Letter(char),
    #[error("predicts a further token with `{0}`")]
    Predicts(String),
    #[error("has a stage without a layer")]
    EmptyStage,
}

fn parse(text: &str) -> Result<Hybrid, WrongPattern> {
    let bare: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
    let mut parts = bare.split('/');
    let main = parts.next().unwrap_or_default();
    if let Some(letter) = main.chars().find(|letter| *letter != '|' && !LETTERS.contains(*letter)) {
        return Err(WrongPattern::Letter(letter));
    }
    let predicting: Vec<&str> = parts.collect();
    if let Some(other) = predicting.iter().find(|layers| **layers != PREDICTS) {
        return Err(WrongPattern::Predicts((*other).to_owned()));
    }
    let stages: Vec<u32> = main.split('|').map(|stage| u32::try_from(stage.len()).unwrap_or(u32::MAX)).collect();
    if stages.contains(&0) {
        return Err(WrongPattern::EmptyStage);
    }
    Ok(Hybrid { letters: main.replace('|', ""), stages, n_predicting: predicting.len() as u64 })
}

/// Keys of the state-space layers, with Megatron-Core's defaults (`transformer_config.py`; `MambaMixer`: `expand` 2, `d_conv` 4).
pub(super) fn write(flags: &mut Flags<'_>, out: &mut Document, hybrid: &Hybrid, hidden: u64) {
    out.word(SECTION, "hybrid_override_pattern", &hybrid.letters, "--hybrid-layer-pattern");
    let mut count = |name: &str, default: u64| flags.count(name, 1..=MOST).unwrap_or(default);
    let head_dim = count("mamba-head-dim", 64);
    let n_heads = count("mamba-num-heads", (2 * hidden / head_dim).max(1));
    for (key, value, flag) in [
        ("mamba_head_dim", head_dim, "--mamba-head-dim"),
        ("mamba_num_heads", n_heads, "--mamba-num-heads"),
        ("n_groups", count("mamba-num-groups", 8), "--mamba-num-groups"),
        ("ssm_state_size", count("mamba-state-dim", 128), "--mamba-state-dim"),
        ("conv_kernel", 4, "d_conv of MambaMixer"),
    ] {
        out.set(SECTION, key, value, flag);
    }
    if hybrid.letters.contains('E') && flags.find("num-experts").is_none() {
        flags.missing("num-experts", "the pattern has layers with experts (`E`)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_layers_stages_and_further_tokens() {
        let found = parse("ME*-|MEM/*E/*E").expect("a pattern");
        assert_eq!(found, Hybrid { letters: "ME*-MEM".to_owned(), stages: vec![4, 3], n_predicting: 2 });
        assert_eq!(parse("M*M*").map(|found| found.stages), Ok(vec![4]));
        for (text, why) in [("MGM", "`G`"), ("M*/MM", "`MM`"), ("M||M", "a stage without"), ("", "a stage without")] {
            assert!(parse(text).is_err_and(|found| found.to_string().contains(why)), "{text}");
        }
    }
}
