//! `generation_config.json` beside a model's `config.json`: how tokens are drawn where requests say nothing of it.
//!
//! vLLM takes it by default since 0.8 (`--generation-config auto`, `get_diff_sampling_param` in vllm/config/model.py), and SGLang does
//! (`--sampling-defaults model`). Values that are the library's own defaults count as not said (`to_diff_dict` of transformers). TensorRT-LLM reads no
//! sampling from it.

use std::path::Path;

use input::diagnostic::{Code, Finding};
use input::reader::Reader;
use input::text_file;
use serde_json::Value;

/// Its name.
const NAME: &str = "generation_config.json";
/// `top_k` of transformers where a file says none.
const USUAL_TOP_K: f64 = 50.0;
/// What `trace.sampling` has no key for, and the value of each that changes nothing.
const UNKNOWN: [(&str, f64); 1] = [("min_p", 0.0)];

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    temperature: Option<f64>,
    top_k: Option<f64>,
    top_p: Option<f64>,
    repetition_penalty: Option<f64>,
}

impl Generation {
    /// The file beside the model's configuration, where `[model]` names one; what is wrong with it is found.
    pub fn beside(reader: &mut Reader<'_>, folder: &Path) -> Option<Self> {
        let (config, at) = reader.peek_in("model", "config")?;
        let config = config.trim_matches('"').to_owned();
        let path = folder.join(&config).with_file_name(NAME);
        if !path.is_file() {
            return None;
        }
        let text = text_file::read(&path).map_err(|why| why.to_string());
        let said = |text: String| Self::of_text(&text).map_err(|why| format!("not valid JSON: {why}"));
        let (found, left_out) = match text.and_then(said) {
            Ok(found) => found,
            Err(why) => {
                reader.find(Finding::error(Code::UnreadableModel, at, format!("`{NAME}` beside `{config}`: {why}")));
                return None;
            }
        };
        if let Some(key) = left_out {
            let what = format!("`{key}` of `{NAME}` beside `{config}` is not modelled");
            reader.find(Finding::warning(Code::LeftOut, at, what));
        }
        (found != Self::default()).then_some(found)
    }

    /// What a file says, and what of it is left out.
    pub(super) fn of_text(text: &str) -> serde_json::Result<(Self, Option<&'static str>)> {
        let whole: Value = serde_json::from_str(text)?;
        let number = |key: &str, usual: f64| whole.get(key)?.as_f64().filter(|found| *found != usual);
        let found = Self {
            temperature: number("temperature", 1.0),
            top_k: number("top_k", USUAL_TOP_K),
            top_p: number("top_p", 1.0),
            repetition_penalty: number("repetition_penalty", 1.0),
        };
        let left_out = UNKNOWN.iter().find(|(key, usual)| number(key, *usual).is_some());
        Ok((found, left_out.map(|(key, _)| *key)))
    }

    /// A number of it, by the name of its key.
    pub(super) fn number(&self, key: &str) -> Option<f64> {
        match key {
            "temperature" => self.temperature,
            "top_k" => self.top_k,
            "top_p" => self.top_p,
            "repetition_penalty" => self.repetition_penalty,
            _ => None,
        }
    }

    /// It in words.
    pub fn words(&self) -> String {
        let said = ["temperature", "top_k", "top_p", "repetition_penalty"];
        let said: Vec<String> = said.iter().filter_map(|key| Some(format!("{key} = {}", self.number(key)?))).collect();
        format!("`trace.sampling` is that of the model's `{NAME}` where requests leave it open: {}", said.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_the_librarys_own_are_not_said() {
        let qwen = r#"{ "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [151645, 151643] }"#;
        let (found, left_out) = Generation::of_text(qwen).expect("JSON");
        assert_eq!([found.temperature, found.top_k, found.top_p], [Some(0.6), Some(20.0), Some(0.95)]);
        assert_eq!((found.repetition_penalty, left_out), (None, None));
        let usual = r#"{ "temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0, "min_p": 0.1 }"#;
        assert_eq!(Generation::of_text(usual).expect("JSON"), (Generation::default(), Some("min_p")));
        assert!(Generation::of_text("{").is_err_and(|why| why.is_eof()));
    }
}
