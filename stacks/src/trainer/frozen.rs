//! Weights beside adapters in fewer bits than products: words of bitsandbytes and of torchao.
//!
//! Sources: huggingface/transformers (`BitsAndBytesConfig`), huggingface/trl (`ModelConfig`), axolotl-ai-cloud/axolotl (`loaders/model.py`: scales are quantised too
//! where nothing is said), hiyouga/LLaMA-Factory (`hparams/model_args.py`, the same), pytorch/torchtune (`NF4Tensor` of torchao, the same).

use engine::frozen::Frozen;

use super::adapters::Trained;
use super::{Dialect, is_on, is_true, words_of};
use crate::flags::Flags;
use crate::job::Job;

/// The key that all of them give.
const KEY: &str = "optimizer.frozen";
/// Switches of 4 and of 8 bits.
const FOUR: [&str; 4] = ["load_in_4bit", "q_lora", "use_4bit_quantization", "model.quantize_base"];
const EIGHT: [&str; 2] = ["load_in_8bit", "use_8bit_quantization"];
/// LLaMA-Factory's number of bits, and its libraries that pack as bitsandbytes does.
const BITS: &str = "quantization_bit";
const METHOD: &str = "quantization_method";
const METHODS: [&str; 2] = ["bnb", "bitsandbytes"];

/// Reads them, and says what nothing trains.
pub(super) fn frozen(flags: &mut Flags<'_>, job: &mut Job, (dialect, trained): (Dialect, Trained)) {
    let Some((name, frozen)) = asked(flags, dialect) else { return };
    if trained == Trained::All {
        return flags
            .not_modelled(&name, "nothing trains packed weights without adapters: they are counted in 16 bits");
    }
    let method = flags.text(METHOD).filter(|word| !METHODS.contains(&word.to_lowercase().as_str()));
    if method.is_some() {
        flags.not_modelled(METHOD, "weights are counted as bitsandbytes packs them");
    }
    job.word(("optimizer", "frozen"), frozen.word(), "load_in_4bit, quantization_bit, quantize_base and their like");
}

/// The word that asks for fewer bits, and what it asks for.
fn asked(flags: &mut Flags<'_>, dialect: Dialect) -> Option<(String, Frozen)> {
    let four = match dialect {
        Dialect::Torchtune => Frozen::Nf4Torchao,
        _ if is_double(flags, dialect) => Frozen::Nf4Double,
        _ => Frozen::Nf4,
    };
    for (names, frozen) in [(&FOUR[..], four), (&EIGHT[..], Frozen::Int8)] {
        if let Some(name) = names.iter().find(|name| is_on(flags, name)) {
            return Some(((*name).to_owned(), frozen));
        }
    }
    if flags.find(BITS).is_some() {
        return bits(flags, four).map(|frozen| (BITS.to_owned(), frozen));
    }
    let builders = [("adapter", "qlora"), ("model._component_", ".qlora_")];
    let builder = builders.into_iter().find(|(name, mark)| flags.text(name).is_some_and(|word| word.contains(mark)));
    builder.map(|(name, _)| (name.to_owned(), four))
}

/// LLaMA-Factory's number.
fn bits(flags: &mut Flags<'_>, four: Frozen) -> Option<Frozen> {
    match flags.count(BITS, 1..=8)? {
        4 => Some(four),
        8 => Some(Frozen::Int8),
        _ => {
            flags.not_modelled(BITS, "frozen weights are counted in 16 bits: `optimizer.frozen` packs 4 or 8");
            None
        }
    }
}

/// Whether scales are quantised too: as the last word for it says, and else as the program does by itself.
fn is_double(flags: &mut Flags<'_>, dialect: Dialect) -> bool {
    let names = words_of(flags, KEY);
    let name = names.iter().find(|name| name.contains("double") || name.contains("nested"));
    let given = name.and_then(|name| flags.text(name));
    given.map_or(matches!(dialect, Dialect::Axolotl | Dialect::LlamaFactory), |word| is_true(&word))
}
