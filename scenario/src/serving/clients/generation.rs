//! `generation_config.json` beside a model's `config.json`: how tokens are drawn where requests say nothing of it.
//!
//! vLLM takes it by default since 0.8 (`--generation-config auto`, `get_diff_sampling_param` in vllm/config/model.py), and SGLang does
//! (`--sampling-defaults model`). Values that are the library's own defaults count as not said (`to_diff_dict` of transformers). TensorRT-LLM reads no
//! sampling from it. Its `max_new_tokens` ends answers under vLLM up to 0.16, whatever a request asks for (`get_max_tokens` of vllm/entrypoints/utils.py,
//! vllm-project/vllm#12242). From 0.17 on it is for requests that ask for no number (#34063), and SGLang does not read it.

use std::path::Path;

use input::diagnostic::{Code, Finding};
use input::reader::{Reader, Section};
use input::text_file;
use serde_json::Value;
use serve::request::Requests;

/// Its name.
const NAME: &str = "generation_config.json";
/// `top_k` of transformers where a file says none.
const USUAL_TOP_K: f64 = 50.0;

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    temperature: Option<f64>,
    top_k: Option<f64>,
    top_p: Option<f64>,
    repetition_penalty: Option<f64>,
    min_p: Option<f64>,
    max_new_tokens: Option<u32>,
}

/// The most tokens of an answer, by the file of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerLimit {
    /// Tokens.
    pub tokens: u32,
    /// Whether the engine ends answers there that ask for more.
    pub acts: bool,
}

impl AnswerLimit {
    /// Ends answers of requests, where it acts; gives how many ask for more.
    pub fn end(self, requests: &mut Requests) -> usize {
        let longer = requests.list.iter_mut().filter(|request| request.output > self.tokens);
        longer.map(|request| request.output = if self.acts { self.tokens } else { request.output }).count()
    }

    /// Ends answers of requests, and says so: as a remark, or as a warning where it does not act.
    pub fn lay(self, section: &mut Section<'_>, requests: &mut Requests) -> Option<String> {
        let n = self.end(requests);
        if n == 0 {
            return None;
        }
        let key = format!("`max_new_tokens` = {} of the model's `{NAME}`", self.tokens);
        if self.acts {
            return Some(format!("{key} ends answers: {n} of {} requests ask for more", requests.len()));
        }
        let what = format!("{key} ends no answer, and {n} requests ask for more");
        let help =
            "vLLM from 0.17 on and SGLang give what a request asks for; write shorter outputs if yours asks for none";
        section.warn(Code::NoEffect, section.at(), what, help);
        None
    }
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
        let found = match text.and_then(said) {
            Ok(found) => found,
            Err(why) => {
                reader.find(Finding::error(Code::UnreadableModel, at, format!("`{NAME}` beside `{config}`: {why}")));
                return None;
            }
        };
        (found != Self::default()).then_some(found)
    }

    /// What a file says.
    pub(super) fn of_text(text: &str) -> serde_json::Result<Self> {
        let whole: Value = serde_json::from_str(text)?;
        let number = |key: &str, usual: f64| whole.get(key)?.as_f64().filter(|found| *found != usual);
        Ok(Self {
            temperature: number("temperature", 1.0),
            top_k: number("top_k", USUAL_TOP_K),
            top_p: number("top_p", 1.0),
            repetition_penalty: number("repetition_penalty", 1.0),
            min_p: number("min_p", 0.0),
            max_new_tokens: number("max_new_tokens", 0.0)
                .and_then(|tokens| u32::try_from(hw::whole(tokens.max(0.0))).ok()),
        })
    }

    /// A number of it, by the name of its key.
    pub(super) fn number(&self, key: &str) -> Option<f64> {
        match key {
            "temperature" => self.temperature,
            "top_k" => self.top_k,
            "top_p" => self.top_p,
            "repetition_penalty" => self.repetition_penalty,
            "min_p" => self.min_p,
            _ => None,
        }
    }

    /// Where it ends answers under an engine that does so, or does not.
    pub fn answer_limit(&self, acts: bool) -> Option<AnswerLimit> {
        self.max_new_tokens.map(|tokens| AnswerLimit { tokens, acts })
    }

    /// Whether it says anything of the draw.
    pub(super) fn draws(&self) -> bool {
        Self { max_new_tokens: None, ..self.clone() } != Self::default()
    }

    /// What it says of the draw, in words.
    pub fn words(&self) -> Option<String> {
        let said = ["temperature", "top_k", "top_p", "repetition_penalty", "min_p"];
        let said: Vec<String> = said.iter().filter_map(|key| Some(format!("{key} = {}", self.number(key)?))).collect();
        let of_file = format!("`trace.sampling` is that of the model's `{NAME}` where requests leave it open");
        self.draws().then(|| format!("{of_file}: {}", said.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use serve::request::Request;

    use super::*;

    #[test]
    fn values_that_are_the_librarys_own_are_not_said() {
        let qwen = r#"{ "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [151645, 151643] }"#;
        let found = Generation::of_text(qwen).expect("JSON");
        assert_eq!([found.temperature, found.top_k, found.top_p], [Some(0.6), Some(20.0), Some(0.95)]);
        assert_eq!((found.repetition_penalty, found.min_p), (None, None));
        let usual = r#"{ "temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0, "min_p": 0.1 }"#;
        let found = Generation::of_text(usual).expect("JSON");
        assert_eq!(found, Generation { min_p: Some(0.1), ..Generation::default() });
        assert!(Generation::of_text("{").is_err_and(|why| why.is_eof()));
    }

    #[test]
    fn answers_end_at_the_limit_of_the_file_where_an_engine_ends_them() {
        let found = Generation::of_text(r#"{ "max_new_tokens": 2048 }"#).expect("JSON");
        assert_eq!(found.words(), None);
        let outputs = |acts: bool| {
            let request = |output| Request::new(hw::Time::ZERO, 8, output);
            let mut requests = Requests::of([100, 2048, 5000].map(request).to_vec());
            let n = found.answer_limit(acts).expect("said").end(&mut requests);
            (n, requests.list.iter().map(|request| request.output).collect::<Vec<u32>>())
        };
        assert_eq!((outputs(true), outputs(false)), ((1, vec![100, 2048, 2048]), (1, vec![100, 2048, 5000])));
        for none in ["{}", r#"{ "max_new_tokens": 0 }"#, r#"{ "max_new_tokens": null }"#] {
            assert_eq!(Generation::of_text(none).expect("JSON").answer_limit(true), None, "{none}");
        }
    }
}
