//! `[model]`: an architecture by name, from a Hugging Face `config.json`, or with such keys in `[model.config]`.

use std::path::Path;

use engine::Model;
use engine::formats::Formats;
use serde_json::Value;

use super::formats;
use input::diagnostic::{Code, Finding, nearest};
use input::reader::seen::PATHS;
use input::reader::{Place, Reader, Section};
use input::text_file;

/// What NVIDIA's Model Optimizer writes beside a checkpoint's `config.json`.
const FORMATS: &str = "hf_quant_config.json";

/// Reads the section of a model whose layers are taken to attend to all tokens.
pub fn model(mut section: Section<'_>, folder: &Path) -> Option<Model> {
    let found = wide(&mut section, folder);
    if let Some(model) = &found {
        unlike(&mut section, model, None);
        beyond_text(&mut section, model);
    }
    section.finish();
    found
}

/// The same where formats of the checkpoint are those that are served.
pub fn in_its_formats(mut section: Section<'_>, folder: &Path) -> Option<Model> {
    let found = wide(&mut section, folder);
    if let Some(model) = &found {
        unlike(&mut section, model, None);
    }
    section.finish();
    found
}

/// The same of a model that is trained on sequences of which the longest is known later: `windows` tells of those that it passes.
pub fn by_formulas(mut section: Section<'_>, folder: &Path) -> Option<Model> {
    let found = named(&mut section, folder);
    if let Some(model) = &found {
        unlike(&mut section, model, Some(0));
        beyond_text(&mut section, model);
    }
    section.finish();
    found
}

/// Reads the section of a model whose layers are timed by their kinds, as steps of a framework are.
pub fn by_layer(mut section: Section<'_>, folder: &Path) -> Option<Model> {
    let found = named(&mut section, folder);
    timed(section, found)
}

/// The same where no weights are packed.
pub fn by_layer_in_16_bits(mut section: Section<'_>, folder: &Path) -> Option<Model> {
    let found = wide(&mut section, folder);
    timed(section, found)
}

/// Refuses layers that a framework's steps have no times for.
fn timed(mut section: Section<'_>, found: Option<Model>) -> Option<Model> {
    let not_trained = found.as_ref().map_or_else(String::new, Model::not_trained);
    if !not_trained.is_empty() {
        let what = format!("training has no times for {not_trained}");
        let found = Finding::error(Code::UnsupportedModel, section.at(), what);
        section.find(found.help("scenarios of `kind = \"serving\"` have times for such layers"));
    }
    if let Some(model) = &found {
        beyond_text(&mut section, model);
    }
    section.finish();
    found
}

/// Layers that do not attend to all tokens of a sequence of so many: those without keys are refused, windows are taken for whole.
fn unlike(section: &mut Section<'_>, model: &Model, longest: Option<u64>) {
    let at = section.at();
    if let Some(found) = beyond_formulas(model, longest, at) {
        section.find(found);
    }
}

/// Tells of windows that the longest sequence passes, where formulas take them for whole.
pub fn windows(reader: &mut Reader<'_>, model: &Model, longest: u64, at: Place) {
    if model.beyond_training(Some(longest)).is_some_and(|(is_refused, _)| !is_refused) {
        beyond_formulas(model, Some(longest), at).into_iter().for_each(|found| reader.find(found));
    }
}

fn beyond_formulas(model: &Model, longest: Option<u64>, at: Place) -> Option<Finding> {
    let (is_refused, what) = model.beyond_training(longest)?;
    let help = "scenarios with `training.framework = \"megatron-core\"` time windows, linear attention and state-space layers by themselves; \
                those of `kind = \"serving\"` time all layers";
    let found = match is_refused {
        true => Finding::error(Code::UnsupportedModel, at, what),
        false => Finding::warning(Code::LeftOut, at, what),
    };
    Some(found.help(help))
}

/// Reads a model whose weights are as wide as products, or have a format of products: nothing here runs those that bitsandbytes packs, but training beside adapters.
fn wide(section: &mut Section<'_>, folder: &Path) -> Option<Model> {
    let found = named(section, folder)?;
    let at = section.at();
    match packed(&found, at) {
        Some(finding) => {
            section.find(finding);
            None
        }
        None => Some(found),
    }
}

/// What is wrong with packed weights where there are no adapters.
pub fn packed(model: &Model, at: Place) -> Option<Finding> {
    let word = model.packed?.word();
    let what =
        format!("`{}`: bitsandbytes has packed its weights (`{word}`), of which no kernel is known here", model.name);
    let help = "training with `framework = \"pytorch\"` and `optimizer.trains = \"adapters\"` has them; a file without `quantization_config` is in 16 bits";
    Some(Finding::error(Code::WrongModel, at, what).help(help))
}

/// What a model that is trained has beside its layers, and what its checkpoint says of them.
fn beyond_text(section: &mut Section<'_>, model: &Model) {
    if let Some(what) = model.encoder_left_out() {
        section.find(Finding::warning(Code::LeftOut, section.at(), what));
    }
    // A name of the catalogue stands for the shape; a checkpoint or a file says formats.
    let of_name = engine::model::embedded(&model.name).map_or(Formats::of(hw::Dtype::Bf16), |model| model.formats);
    if model.formats != of_name && model.formats.is_narrow() {
        let what = format!("the formats of the checkpoint of `{}` change nothing here", model.name);
        let found = Finding::warning(Code::NoEffect, section.at(), what);
        let help = "`training.products` says in which format a step multiplies; times of deployments in closed form are those of 16 bits";
        section.find(found.help(help));
    }
}

/// Reads the section of a model that answers, in formats that another section may change.
pub fn of_answers(mut section: Section<'_>, folder: &Path) -> Option<Model> {
    let found = wide(&mut section, folder);
    section.finish();
    found
}

/// Reads the section of a model that is served, which also says in which formats.
pub fn served(mut section: Section<'_>, folder: &Path) -> Option<Model> {
    let found = wide(&mut section, folder);
    let checkpoint = found.as_ref().map_or(Formats::of(hw::Dtype::Bf16), |model| model.formats);
    let formats = formats::weights(&mut section, checkpoint);
    section.finish();
    found.map(|model| Model { formats, ..model })
}

fn named(section: &mut Section<'_>, folder: &Path) -> Option<Model> {
    section.alternatives(&["name", "config"]);
    if !section.has("name")
        && let Some((config, at)) = section.json("config")
    {
        return of_config(section, "model.config", &config, at);
    }
    section.offers("name", names);
    let (name, config) = (section.text("name"), section.text("config"));
    match (name, config) {
        (None, None) => {
            section.missing(
                "name",
                "name a shipped model (`skrull-sim list models`) or give `config`, a Hugging Face config.json",
            );
            None
        }
        (Some(_), Some((_, at))) => {
            section.wrong(Code::ExclusiveKeys, at, "`name` and `config` of a model exclude each other");
            None
        }
        (None, Some((path, at))) => match text_file::read(&folder.join(&path)) {
            Err(error) => {
                section.wrong(Code::UnreadableModel, at, format!("cannot read `{path}`: {error}"));
                None
            }
            Ok(text) => match with_formats(text, &folder.join(&path).with_file_name(FORMATS)) {
                Ok((text, is_idle)) => {
                    if is_idle {
                        let what = format!(
                            "`{FORMATS}` beside `{path}` changes nothing: its own `quantization_config` comes first"
                        );
                        section.find(Finding::warning(Code::NoEffect, at.clone(), what));
                    }
                    of_config(section, &path, &text, at)
                }
                Err(why) => {
                    section.wrong(Code::UnreadableModel, at, format!("`{FORMATS}` beside `{path}`: {why}"));
                    None
                }
            },
        },
        (Some((name, at)), None) => match of_name(&name, at) {
            Ok(model) => Some(model),
            Err(finding) => {
                section.find(finding);
                None
            }
        },
    }
}

/// Names of models: those of the catalogue, releases of the same shape, and paths of checkpoints.
pub fn names() -> Vec<&'static str> {
    engine::model::known_names().into_iter().chain([PATHS]).collect()
}

/// The model of a name of the catalogue, or of the path of a checkpoint on a hub, which says its formats as well.
pub fn of_name(name: &str, at: Place) -> Result<Model, Finding> {
    engine::model::of_name(name).ok_or_else(|| {
        let names = engine::model::known_names();
        let last = engine::model::last_part(name).to_lowercase();
        let label = nearest(&last, names).map_or_else(String::new, |near| format!("did you mean `{near}`?"));
        Finding::error(Code::UnknownModel, at, format!("unknown model `{name}`")).label(label).help(
            "`skrull-sim list models` shows the shipped models; paths of their checkpoints are known too; `config` of `[model]` reads any other from \
             its config.json",
        )
    })
}

/// Why the file of formats says none.
#[derive(Debug, thiserror::Error)]
enum NoFormats {
    /// It cannot be read.
    #[error(transparent)]
    Unread(#[from] text_file::NoText),
    /// It is something else.
    #[error("not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It lacks the key.
    #[error("key `quantization` is missing")]
    NoKey,
}

/// The configuration with what the file of formats beside it says, where it says nothing itself: engines read both. Else that file is idle.
fn with_formats(text: String, beside: &Path) -> Result<(String, bool), NoFormats> {
    if !beside.is_file() {
        return Ok((text, false));
    }
    // What is no configuration is told by whoever reads it.
    let Ok(Value::Object(mut config)) = serde_json::from_str(&text) else { return Ok((text, false)) };
    if config.contains_key("quantization_config") {
        return Ok((text, true));
    }
    let found: Value = serde_json::from_str(&text_file::read(beside)?)?;
    let formats = found.get("quantization").ok_or(NoFormats::NoKey)?;
    config.insert("quantization_config".to_owned(), formats.clone());
    Ok((Value::Object(config).to_string(), false))
}

/// A model of a configuration; what is wrong with it, and what is left out of it, are findings.
fn of_config(section: &mut Section<'_>, name: &str, text: &str, at: Place) -> Option<Model> {
    match Model::from_config(name, text) {
        Ok(model) => {
            for what in model.left_out() {
                section.find(Finding::warning(Code::LeftOut, at.clone(), what));
            }
            Some(model)
        }
        Err(why) => {
            for why in why {
                section.wrong(Code::WrongModel, at.clone(), format!("`{name}`: {why}"));
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_beside_a_configuration_are_those_of_the_model() {
        let folder = std::env::temp_dir().join(format!("skrull-sim-formats-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let beside = folder.join(FORMATS);
        let config = r#"{ "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
            "intermediate_size": 128, "vocab_size": 100 }"#;
        let format = |text: &str| {
            let (text, is_idle) = with_formats(text.to_owned(), &beside).map_err(|why| why.to_string())?;
            Ok::<_, String>((Model::from_config("x", &text).expect("read").formats.dense, is_idle))
        };
        assert_eq!(format(config), Ok((hw::Format::Bf16, false)), "there is no file yet");
        std::fs::write(&beside, r#"{ "quantization": { "quant_algo": "NVFP4", "exclude_modules": ["lm_head"] } }"#)
            .expect("written");
        assert_eq!(format(config), Ok((hw::Format::Nvfp4, false)));
        let own =
            config.replace("\"model_type\"", "\"quantization_config\": { \"quant_method\": \"fp8\" }, \"model_type\"");
        assert_eq!(format(&own), Ok((hw::Format::Fp8, true)), "the file's own word comes first");
        std::fs::write(&beside, "{").expect("written");
        assert!(format(config).is_err_and(|why| why.starts_with("not valid JSON")));
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
