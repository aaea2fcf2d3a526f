//! Weights beside adapters in fewer bits than products: words of bitsandbytes and of torchao.
//!
//! Sources: huggingface/transformers (`BitsAndBytesConfig`), huggingface/trl (`ModelConfig`), axolotl-ai-cloud/axolotl (`loaders/model.py`: scales are quantised too
//! where nothing is said), hiyouga/LLaMA-Factory (`hparams/model_args.py`, the same), pytorch/torchtune (`NF4Tensor` of torchao, the same), modelscope/ms-swift
//! (`arguments/base_args/quant_args.py`, the same), haotian-liu/LLaVA and lm-sys/FastChat (the same), QwenLM/Qwen (`finetune.py`: GPTQ).

use engine::frozen::Frozen;

use super::adapters::{Trained, Whose};
use super::scripts::Script;
use super::{Dialect, is_on, is_true, words_of};
use crate::flags::Flags;
use crate::job::Job;

/// The key that all of them give.
const KEY: &str = "optimizer.frozen";
/// Switches of 4 and of 8 bits.
const FOUR: [&str; 4] = ["load_in_4bit", "q_lora", "use_4bit_quantization", "model.quantize_base"];
const EIGHT: [&str; 2] = ["load_in_8bit", "use_8bit_quantization"];
/// Numbers of bits of LLaMA-Factory, ms-swift and LLaVA, and libraries that pack as bitsandbytes does.
const BITS: [&str; 3] = ["quantization_bit", "quant_bits", "bits"];
const METHODS_OF: [&str; 2] = ["quantization_method", "quant_method"];
const METHODS: [&str; 2] = ["bnb", "bitsandbytes"];

/// Reads them, and says what nothing trains.
pub(super) fn frozen(flags: &mut Flags<'_>, job: &mut Job, (whose, trained): (Whose, Trained)) {
    let Some((name, frozen)) = asked(flags, whose) else { return };
    if trained == Trained::All {
        return flags
            .not_modelled(&name, "nothing trains packed weights without adapters: they are counted in 16 bits");
    }
    let other = METHODS_OF
        .into_iter()
        .find(|name| flags.text(name).is_some_and(|word| !METHODS.contains(&word.to_lowercase().as_str())));
    let of_gptq = Some(name.as_str()).filter(|name| *name == "q_lora" && whose.1 == Some(Script::Qwen));
    if let Some(name) = other.or(of_gptq) {
        flags.not_modelled(name, "weights are counted as bitsandbytes packs them");
    }
    job.word(("optimizer", "frozen"), frozen.word(), "load_in_4bit, quantization_bit, quantize_base and their like");
}

/// The word that asks for fewer bits, and what it asks for.
fn asked(flags: &mut Flags<'_>, whose: Whose) -> Option<(String, Frozen)> {
    let four = match whose.0 {
        Dialect::Torchtune => Frozen::Nf4Torchao,
        _ if is_double(flags, whose) => Frozen::Nf4Double,
        _ => Frozen::Nf4,
    };
    for (names, frozen) in [(&FOUR[..], four), (&EIGHT[..], Frozen::Int8)] {
        if let Some(name) = names.iter().find(|name| is_on(flags, name)) {
            return Some(((*name).to_owned(), frozen));
        }
    }
    if let Some(name) = BITS.into_iter().find(|name| flags.find(name).is_some()) {
        return bits(flags, name, four).map(|frozen| (name.to_owned(), frozen));
    }
    let of_swift = super::TUNERS.map(|name| (name, "qlora"));
    let builders = [("adapter", "qlora"), ("model._component_", ".qlora_")].into_iter().chain(of_swift);
    let builder = builders.into_iter().find(|(name, mark)| flags.text(name).is_some_and(|word| word.contains(mark)));
    builder.map(|(name, _)| (name.to_owned(), four))
}

/// A number of bits; 16 packs nothing.
fn bits(flags: &mut Flags<'_>, name: &str, four: Frozen) -> Option<Frozen> {
    match flags.count(name, 1..=16)? {
        4 => Some(four),
        8 => Some(Frozen::Int8),
        16 => None,
        _ => {
            flags.not_modelled(name, "frozen weights are counted in 16 bits: `optimizer.frozen` packs 4 or 8");
            None
        }
    }
}

/// Whether scales are quantised too: as the last word for it says, and else as the program does by itself.
fn is_double(flags: &mut Flags<'_>, (dialect, script): Whose) -> bool {
    let by_itself = matches!(dialect, Dialect::Axolotl | Dialect::LlamaFactory | Dialect::Swift)
        || matches!(script, Some(Script::Llava | Script::FastChat));
    let names = words_of(flags, KEY);
    let name = names.iter().find(|name| name.contains("double") || name.contains("nested"));
    let given = name.and_then(|name| flags.text(name));
    given.map_or(by_itself, |word| is_true(&word))
}
