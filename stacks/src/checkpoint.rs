//! What is answered where a file names no model, or one that the catalogue lacks.

use std::ops::Range;

use engine::formats::Formats;
use engine::model::{Model, known_names, last_part, of_name};
use hw::Dtype;
use input::diagnostic::{Code, Finding, nearest};
use serve::deployment::{Deployment, Replica};

use crate::Machine;
use crate::settings::{self, Settings};

/// The file of a checkpoint that says its shape.
const CONFIGURATION: &str = "config.json";

/// An error about a file that names no model.
pub(crate) fn unnamed() -> Finding {
    let help =
        "give `--set model.name=llama-3-8b` (`import`: `--model llama-3-8b`); `skrull-sim list models` shows all";
    Finding::error(Code::MissingFlag, None, "the file does not say which model it trains").help(help)
}

/// The configuration of a model that lies in a folder beside the script, or is such a file itself, as scenarios name it.
pub(crate) fn local<'a>(asked: &str, machine: &'a Machine) -> Option<&'a str> {
    let asked = asked.trim_end_matches('/');
    let in_folder = format!("{asked}/{CONFIGURATION}");
    let is_it = |name: &&str| *name == in_folder || *name == asked && asked.ends_with(".json");
    machine.files.iter().map(|(name, _)| name.as_str()).find(is_it)
}

/// Files of configurations that a text may name: those of paths within its folder, and of words behind flags of models.
pub(crate) fn named_beside(text: &str) -> Vec<String> {
    const FLAGS: [&str; 8] = [
        "serve",
        "--model",
        "--model-path",
        "--model_path",
        "--model_name_or_path",
        "model_name_or_path",
        "base_model",
        "trtllm-serve",
    ];
    let is_within = |word: &str| {
        let is_path = !word.is_empty() && !word.starts_with(['-', '/', '~', '$']) && !word.contains(['\\', '*', '$']);
        is_path && word.split('/').all(|part| part != "..")
    };
    let words: Vec<&str> =
        text.split([' ', '\t', '\n', '\r', '=', '"', '\'', ':', ',']).filter(|word| !word.is_empty()).collect();
    let mut names: Vec<String> = Vec::new();
    for pair in words.windows(2) {
        let [before, word] = [pair[0], pair[1].trim_end_matches('/')];
        if FLAGS.contains(&before) && is_within(word) {
            let is_file = word.ends_with(".json");
            names.push(if is_file { word.to_owned() } else { format!("{word}/{CONFIGURATION}") });
        }
    }
    names.sort_unstable();
    names.dedup();
    names
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
    let help = format!("{near}give `--set model.name=…`, or `--set model.config=…/config.json`");
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

    #[test]
    fn configurations_within_the_folder_of_a_script_are_found() {
        for (text, expected) in [
            ("vllm serve ./mymodel --max-model-len 8192", "./mymodel/config.json"),
            ("vllm serve c/qwen3_4b.json \\\n  -tp 2", "c/qwen3_4b.json"),
            ("python -m sglang.launch_server --model-path=mymodel/", "mymodel/config.json"),
            ("base_model: ./mine", "./mine/config.json"),
        ] {
            assert_eq!(named_beside(text), [expected], "{text}");
        }
        // Nothing outside of the folder is opened.
        assert!(named_beside("vllm serve ../other").is_empty() && named_beside("vllm serve /abs/model").is_empty());
        let files = vec![("./mymodel/config.json".to_owned(), "{}".to_owned())];
        let machine = Machine { files, ..Machine::default() };
        assert_eq!(local("./mymodel/", &machine), Some("./mymodel/config.json"));
        assert_eq!(local("other", &machine), None);
    }

    #[test]
    fn a_configuration_stands_in_the_place_of_a_name() {
        let files = vec![("./mymodel/config.json".to_owned(), "{}".to_owned())];
        let beside = Machine { files, ..crate::example::on("h100-sxm") };
        let stated = crate::example::h100(&["model.config=/models/x/config.json", "workload.tokens=4096"]);
        for text in [
            "vllm serve ./mymodel --max-model-len 8192",
            "python -m sglang.launch_server --model-path ./mymodel --context-length 8192",
            "trtllm-serve ./mymodel --max_seq_len 8192",
            "accelerate launch --num_processes 8 examples/scripts/sft.py --model_name_or_path ./mymodel --max_length 4096 --per_device_train_batch_size 1",
        ] {
            let unknown = |machine: &Machine| {
                let found = crate::example::import_text(text, machine);
                let has = crate::example::codes(&found).contains(&Code::UnknownModel);
                (
                    has,
                    found.scenario.contains("name = \"./mymodel"),
                    found.scenario.contains("config = \"./mymodel/config.json\""),
                )
            };
            assert_eq!(unknown(&crate::example::on("h100-sxm")), (true, false, false), "{text}");
            assert_eq!(unknown(&beside), (false, false, true), "{text}");
            // What an override gives is laid over the scenario later.
            assert_eq!(unknown(&stated), (false, false, false), "{text}");
        }
    }

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
