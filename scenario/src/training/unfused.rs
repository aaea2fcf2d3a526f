//! `training.unfused`: kernels of Megatron-Core that a recipe does not fuse, as a list of words.

use toml_span::Value;
use toml_span::value::ValueInner;

use train::Problem;
use train::problem::{Framework, Fusion, Unfused};

use input::diagnostic::Code;
use input::reader::{Place, Reader, Section, place_of, unknown};

const KEY: &str = "unfused";

/// The key of `[training]`; without it everything is fused.
pub fn read(section: &mut Section<'_>) -> Unfused {
    let words = Fusion::WORDS.map(|(word, _)| word);
    let help = format!("allowed is a list of {}", words.join(", "));
    let Some((value, at)) = section.take(KEY) else { return Unfused::NONE };
    let ValueInner::Array(items) = value else {
        section.refuse(Code::WrongType, at, format!("`{}` is no list of words", section.full(KEY)), help);
        return Unfused::NONE;
    };
    if items.is_empty() {
        let what = format!("`{}` is an empty list", section.full(KEY));
        section.refuse(Code::OutOfRange, at, what, "leave the key out where everything is fused");
    }
    items.iter().fold(Unfused::NONE, |unfused, item| with(section, unfused, item, &words))
}

/// The set with an item of the list.
fn with(section: &mut Section<'_>, unfused: Unfused, item: &Value<'_>, words: &[&str]) -> Unfused {
    let Some(word) = item.as_str() else {
        let what = format!("`{}` holds something that is no word", section.full(KEY));
        section.refuse(Code::WrongType, place_of(item), what, format!("allowed are {}", words.join(", ")));
        return unfused;
    };
    match Fusion::named(word) {
        None => {
            let what = format!("`{}` holds `{word}`, which is no kernel that may be fused", section.full(KEY));
            section.find(unknown(Code::UnknownWord, what, word, words.iter().copied(), place_of(item)));
            unfused
        }
        Some(fusion) if unfused.has(fusion) => {
            let what = format!("`{}` holds `{word}` twice", section.full(KEY));
            section.refuse(Code::UnknownWord, place_of(item), what, "leave one of them out");
            unfused
        }
        Some(fusion) => unfused.with(fusion),
    }
}

/// Warns of the key, or of every word of it, where it changes nothing.
pub fn warn(reader: &mut Reader<'_>, at: &Place, problem: &Problem) {
    let execution = &problem.execution;
    let needs = match (execution.framework, execution.unit_times) {
        (_, Some(_)) => Some("times that are counted, and `[cost.units]` gives them"),
        (Framework::MegatronCore, None) => None,
        _ => Some("`framework = \"megatron-core\"`, whose kernels may be fused"),
    };
    if let Some(needs) = needs {
        let what = format!("`training.{KEY}` changes nothing");
        return reader.warn(Code::NoEffect, at.clone(), what, format!("it needs {needs}"));
    }
    for fusion in execution.unfused.iter() {
        let Some(lacks) = lacks(problem, fusion) else { continue };
        let what = format!("`{}` of `training.{KEY}` changes nothing", fusion.word());
        let help = match fusion {
            Fusion::GradientAccumulation => format!("it needs {lacks}"),
            _ => format!("it needs {lacks}, which `{}` does not have", problem.model.name),
        };
        reader.warn(Code::NoEffect, at.clone(), what, help);
    }
}

/// What a model or its training lacks for a fusion to make a difference.
fn lacks(problem: &Problem, fusion: Fusion) -> Option<&'static str> {
    let model = &problem.model;
    match fusion {
        Fusion::Permutation => model.experts.is_none().then_some("experts"),
        Fusion::Activation => {
            let is_one_kernel = !model.gated && !model.output_bias && model.experts.is_none();
            is_one_kernel.then_some("a gate, a bias or experts in its feed-forward")
        }
        Fusion::Positions => {
            let is_same = model.scaled_positions || !model.rotates_heads();
            is_same.then_some("rotary positions that a fused kernel rotates")
        }
        Fusion::GradientAccumulation => {
            let is_frozen = !problem.execution.trains_weights();
            is_frozen.then_some("gradients of the model's own weights, `optimizer.trains = \"all\"`")
        }
    }
}
