//! `recompute`: one word, or a list of modules of a layer.

use toml_span::Value;
use toml_span::value::ValueInner;

use engine::recompute::{Module, Modules, Recompute};
use input::diagnostic::Code;
use input::reader::{Place, Section, place_of, unknown};

const KEY: &str = "recompute";
/// What a list may hold, in words.
pub const ALLOWED: &str = "none, selective, full, a module or a list of modules";

/// All words, those of modules last.
fn words() -> Vec<&'static str> {
    Recompute::WORDS.iter().map(|(word, _)| *word).chain(Module::WORDS.map(|(word, _)| word)).collect()
}

fn of_word(word: &str) -> Option<Recompute> {
    let module = || Module::named(word).map(|module| Recompute::Modules(Modules::NONE.with(module)));
    Recompute::WORDS.iter().find(|(known, _)| *known == word).map(|(_, value)| *value).or_else(module)
}

/// The key of a section; the usual where it is not there.
pub fn read(section: &mut Section<'_>, usual: Recompute) -> Recompute {
    if !section.has(KEY) || section.is_text(KEY) {
        let words = words();
        let default = Recompute::WORDS.iter().position(|(_, value)| *value == usual).unwrap_or(0);
        let word = words[section.word(KEY, default, &words)];
        return of_word(word).unwrap_or(usual);
    }
    let Some((value, at)) = section.take(KEY) else { return usual };
    let ValueInner::Array(items) = value else {
        let what = format!("`{}` is neither a word nor a list of words", section.full(KEY));
        let of_flag = match value {
            ValueInner::Boolean(true) => "here it is `\"full\"`; ",
            ValueInner::Boolean(false) => "here it is `\"none\"`; ",
            _ => "",
        };
        section.refuse(Code::WrongType, at, what, format!("{of_flag}allowed are {ALLOWED}"));
        return usual;
    };
    Recompute::Modules(modules(section, &items, at))
}

/// The same where it is written.
pub fn given(section: &mut Section<'_>) -> Option<Recompute> {
    section.has(KEY).then(|| read(section, Recompute::Selective))
}

/// An item of a list of kinds: a word, or a list of modules.
pub fn of_value(value: &Value<'_>) -> Option<Recompute> {
    if let Some(word) = value.as_str() {
        return of_word(word);
    }
    let modules: Option<Modules> = value.as_array()?.iter().map(|item| Module::named(item.as_str()?)).collect();
    modules.filter(|modules| *modules != Modules::NONE).map(Recompute::Modules)
}

fn modules(section: &mut Section<'_>, items: &[Value<'_>], at: Place) -> Modules {
    let mut modules = Modules::NONE;
    for item in items {
        let Some(word) = item.as_str() else {
            let what = format!("`{}` holds something that is no word", section.full(KEY));
            section.refuse(Code::WrongType, place_of(item), what, format!("allowed are {ALLOWED}"));
            continue;
        };
        match Module::named(word) {
            None => {
                let what = format!("`{}` holds `{word}`, which is no module of a layer", section.full(KEY));
                let known = Module::WORDS.map(|(word, _)| word);
                section.find(unknown(Code::UnknownWord, what, word, known, place_of(item)));
            }
            Some(module) if modules.has(module) => {
                let what = format!("`{}` holds `{word}` twice", section.full(KEY));
                section.refuse(Code::UnknownWord, place_of(item), what, "leave one of them out");
            }
            Some(module) => modules = modules.with(module),
        }
    }
    if items.is_empty() {
        let what = format!("`{}` is an empty list", section.full(KEY));
        section.refuse(Code::OutOfRange, at, what, "write `\"none\"` where nothing is computed again");
    }
    warn_inside_experts(section, modules, items);
    modules
}

/// What lies inside of another module is computed again with it.
fn warn_inside_experts(section: &mut Section<'_>, modules: Modules, items: &[Value<'_>]) {
    if !modules.has(Module::Experts) {
        return;
    }
    let is_inside = |item: &&Value<'_>| item.as_str().and_then(Module::named).is_some_and(Module::is_inside_experts);
    for item in items.iter().filter(is_inside) {
        let word = item.as_str().unwrap_or_default();
        let what = format!("`{word}` in `{}` changes nothing: `moe` computes it again", section.full(KEY));
        section.warn(Code::NoEffect, place_of(item), what, "leave one of them out");
    }
}
