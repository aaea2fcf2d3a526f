//! What is answered where a file names no model, or one that the catalogue lacks.

use std::ops::Range;

use engine::formats::Formats;
use engine::model::{Model, known_names, last_part, of_name};
use hw::Dtype;
use input::diagnostic::{Code, Finding, nearest};
use serve::deployment::{Deployment, Replica};

use crate::settings::{self, Settings};

/// An error about a file that names no model.
pub(crate) fn unnamed() -> Finding {
    let help =
        "give `--set model.name=llama-3-8b` (`import`: `--model llama-3-8b`); `skrull-sim list models` shows all";
    Finding::error(Code::MissingFlag, None, "the file does not say which model it trains").help(help)
}

/// The name of a checkpoint in the cache of its hub: `…/models--ORGANISATION--NAME/snapshots/…`.
pub(crate) fn in_cache(path: &str) -> Option<String> {
    let name = path.split('/').find_map(|part| part.strip_prefix("models--"))?;
    Some(name.replacen("--", "/", 1))
}

/// An error about a name that the catalogue lacks.
pub(crate) fn unknown(asked: &str, at: Option<Range<usize>>) -> Finding {
    let last = last_part(asked).to_lowercase();
    let what = format!("the model `{asked}` is not in the catalogue");
    let near = nearest(&last, known_names()).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
    let help = format!("{near}give `--set model.name=…`, or a scenario with `model.config = \"config.json\"`");
    Finding::error(Code::UnknownModel, at, what).help(help)
}

/// The checkpoint of a deployment: the path or the release that its scenario names, where nobody writes other formats of layers beside it; else the
/// model.
pub(crate) fn served<'a>(deployment: &'a Deployment, settings: &'a Settings) -> &'a str {
    let of_group = |replica: &Replica| settings.get(&format!("fleet.{}.model", replica.name));
    let of_groups = deployment.replicas.iter().filter_map(of_group);
    let mut names = of_groups.chain(settings.get("model.name")).flat_map(settings::names);
    let is_it = |name: &&str| {
        let is_fit = |model: &Model| !(is_narrow(model) && settings::has_layers(settings));
        of_name(name).is_some_and(|model| model.name == deployment.model && is_fit(&model))
    };
    names.find(is_it).unwrap_or(&deployment.model)
}

/// Whether the path of a checkpoint says formats of its parts.
pub(crate) fn is_narrow(model: &Model) -> bool {
    model.formats != Formats::of(Dtype::Bf16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path says more than the name of its model, unless other formats of layers are written beside it.
    #[test]
    fn the_checkpoint_of_a_scenario_is_served() {
        for (model, name, weights, expected) in [
            ("gpt-oss-20b", "openai/gpt-oss-20b", None, "openai/gpt-oss-20b"),
            ("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", Some("fp8"), "meta-llama/Llama-3.1-8B-Instruct"),
            ("llama-3.1-8b", "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", Some("bf16"), "llama-3.1-8b"),
            ("llama-3.1-8b", "llama-3.1-8b", None, "llama-3.1-8b"),
            // Of several models each has its own.
            ("llama-3.1-8b", "Qwen/Qwen3-8B", None, "llama-3.1-8b"),
            ("of-a-file", "Qwen/Qwen3-8B", None, "of-a-file"),
        ] {
            let deployment = Deployment::new(model, 1, Vec::new());
            let mut settings = Settings::from([("model.name".to_owned(), name.into())]);
            settings.extend(weights.map(|weights| ("engine.weights".to_owned(), weights.into())));
            assert_eq!(served(&deployment, &settings), expected, "{name}");
            settings.insert("model.name".to_owned(), vec!["Qwen/Qwen3-32B", name].into());
            assert_eq!(served(&deployment, &settings), expected, "{name} of two");
            // Keys and values have a flag of their own.
            settings.insert("engine.weights".to_owned(), serde_json::json!({ "kv": "fp8" }));
            assert_eq!(served(&deployment, &settings) == name, expected == name || weights == Some("bf16"), "{name}");
        }
    }
}
