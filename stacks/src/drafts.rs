//! Drafted tokens, as servers' words say them.

use engine::model::{DraftHead, of_checkpoint};
use input::diagnostic::Code;

use crate::checkpoint::is_narrow;
use crate::document::Document;
use crate::flags::Flags;

/// Share of drafts that is accepted, where nobody says: an assumption, named in a warning.
const ACCEPTANCE: f64 = 0.7;

/// What a server drafts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Drafts {
    /// Tokens one behind the other.
    pub(crate) n: u64,
    /// Branches of a tree, and tokens of it that are verified, where they are one.
    pub(crate) tree: Option<[u64; 2]>,
    /// Who drafts.
    pub(crate) by: Drafter,
}

/// Who drafts tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Drafter {
    /// The text itself is looked through.
    Text,
    /// A model of its own.
    Model(String),
    /// Layers of the served model that predict further tokens.
    Own,
    /// A head that was trained for it.
    Head(DraftHead),
    /// A head of another kind, by the name of the method.
    Unknown(String),
}

impl Drafter {
    /// Who drafts by a method that engines name, with the model that is given for it. `TensorRT-LLM` calls its heads of EAGLE-3 EAGLE, and handed-out copies
    /// of a model's own layers are started as EAGLE (`lmsys/DeepSeek-V3-NextN`).
    pub(crate) fn of(engine: &str, method: &str, model: Option<String>) -> Self {
        let has = |text: &str, word: &str| text.to_lowercase().contains(word);
        let is_own = |text: &str| has(text, "mtp") || has(text, "nextn");
        let third = engine == "trtllm" || has(method, "eagle3") || has(method, "eagle-3");
        match model {
            model if is_own(method) || (has(method, "eagle") && model.as_deref().is_some_and(is_own)) => Self::Own,
            _ if has(method, "eagle") && third => Self::Head(DraftHead::Eagle3),
            _ if has(method, "eagle") => Self::Head(DraftHead::Eagle),
            _ if ["medusa", "dflash", "dspark"].iter().any(|word| has(method, word)) => {
                Self::Unknown(method.to_owned())
            }
            Some(model) => Self::Model(model),
            None => Self::Text,
        }
    }

    /// The drafter as a scenario names it, for a served model. What it does not know takes no time there, which a warning says.
    fn word(&self, served: Option<&str>, flags: &mut Flags<'_>) -> Option<String> {
        let unknown = match self {
            Self::Text => return None,
            Self::Head(head) => return Some(head.name().to_owned()),
            Self::Model(asked) => match of_checkpoint(asked) {
                Some(model) if is_narrow(&model) => return Some(asked.clone()),
                Some(model) => return Some(model.name),
                None => format!("the draft model `{asked}` is not in the catalogue"),
            },
            Self::Own => {
                if served.and_then(of_checkpoint).is_some_and(|model| model.n_predicting > 0) {
                    return Some("mtp".to_owned());
                }
                "no layer of the served model is known that predicts tokens further on".to_owned()
            }
            Self::Unknown(method) => format!("heads that draft by `{method}` are not known"),
        };
        let what = format!("{unknown}: its drafts take no time");
        let help =
            "give `--set engine.speculation.draft_model=…`: a model of the catalogue, `mtp`, `eagle` or `eagle3`";
        flags.warn(Code::NotModelled, None, what, help);
        None
    }
}

impl Drafts {
    /// One draft behind the other.
    pub(crate) const fn chain(n: u64, by: Drafter) -> Self {
        Self { n, tree: None, by }
    }

    /// Writes `engine.speculation` of a served model.
    pub(crate) fn write(&self, served: Option<&str>, out: &mut Document, flags: &mut Flags<'_>) {
        let by = self.by.word(served, flags).map_or_else(String::new, |name| format!(", draft_model = \"{name}\""));
        let tree = self.tree.map_or_else(String::new, |[branches, verified]| {
            format!(", draft_branches = {branches}, verified_tokens = {verified}")
        });
        let n = self.n;
        let value = format!("{{ draft_tokens = {n}, acceptance = {ACCEPTANCE}{by}{tree} }}");
        out.set("engine", "speculation", value, "drafted tokens");
        let what = format!("a command does not say which share of drafts is accepted: {ACCEPTANCE} is taken");
        let help = match self.by {
            Drafter::Text => {
                "give `--set engine.speculation.acceptance=…`: heads reach such a share; what is looked up in the text is accepted less, but for copies of the prompt"
            }
            _ => "give `--set engine.speculation.acceptance=…`; it depends on the models and the text",
        };
        flags.warn(Code::MissingFlag, None, what, help);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_of_servers_name_who_drafts() {
        let of =
            |engine: &str, method: &str, model: Option<&str>| Drafter::of(engine, method, model.map(str::to_owned));
        assert_eq!(of("sglang", "EAGLE3", Some("x/y")), Drafter::Head(DraftHead::Eagle3));
        assert_eq!(of("sglang", "EAGLE", Some("lmsys/sglang-EAGLE-llama2-chat-7B")), Drafter::Head(DraftHead::Eagle));
        assert_eq!(of("sglang", "EAGLE", Some("lmsys/DeepSeek-V3-NextN")), Drafter::Own);
        // TensorRT-LLM's PyTorch backend runs EAGLE-3 alone (`EagleDecodingConfig`).
        assert_eq!(of("trtllm", "Eagle", Some("nvidia/gpt-oss-120b-Eagle3")), Drafter::Head(DraftHead::Eagle3));
        // vLLM takes the method of a path that names it.
        let path = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B";
        assert_eq!(of("vllm", path, Some(path)), Drafter::Head(DraftHead::Eagle3));
        assert_eq!(of("vllm", "medusa", Some("x/y")), Drafter::Unknown("medusa".to_owned()));
        assert_eq!(of("vllm", "ngram", None), Drafter::Text);
        assert_eq!(of("vllm", "draft_model", Some("Qwen/Qwen3-0.6B")), Drafter::Model("Qwen/Qwen3-0.6B".to_owned()));
    }
}
