//! Encoders of images that a server is told to cut otherwise, or to leave out.
//!
//! Sources: vLLM 0.19 `_mark_tower_model` of vllm/model_executor/models/interfaces.py and `get_limit_per_prompt` of vllm/config/multimodal.py: a tower is
//! left out where the limits of all that it sees are 0, and a limit that nobody gives is 999. SGLang 0.5.23 models/qwen3_vl.py (`language_model_only`) and
//! kimi_vl.py (`language_only`).

use engine::model::{Tower, of_checkpoint};
use input::diagnostic::Code;
use serde_json::Value;

use crate::flags::Flags;
use crate::serving::Server;

const LIMITS: &str = "limit-mm-per-prompt";
const ALONE: &str = "language-model-only";
const NOTHING: &str = "\"none\"";

/// Reads what `vllm serve` is told of the encoder.
pub(crate) fn of_vllm(server: &mut Server, flags: &mut Flags<'_>) {
    if flags.is(ALONE) {
        server.key("encoder_tp", NOTHING, "--language-model-only");
    } else if limits_leave_out(server, flags) {
        server.key("encoder_tp", NOTHING, "--limit-mm-per-prompt");
    } else if let Some(split) = flags.text("mm-encoder-tp-mode") {
        server.key("encoder_tp", format!("{split:?}"), "--mm-encoder-tp-mode");
    }
}

/// The same of `sglang.launch_server`. With `--language-only` the encoder is another server's.
pub(crate) fn of_sglang(server: &mut Server, flags: &Flags<'_>) {
    let alone = [ALONE, "language-only"].into_iter().find(|name| flags.is(name));
    if let Some(name) = alone {
        server.key("encoder_tp", NOTHING, &format!("--{name}"));
    } else if flags.is("mm-enable-dp-encoder") {
        server.key("encoder_tp", "\"data\"", "--mm-enable-dp-encoder");
    }
}

/// Whether limits of 0 leave the model's encoder out; says what they do otherwise.
fn limits_leave_out(server: &Server, flags: &mut Flags<'_>) -> bool {
    let Some(text) = flags.text(LIMITS) else { return false };
    let [images, videos] = ["image", "video"].map(|modality| limit(&text, modality));
    if images != Some(0) {
        flags.not_modelled(LIMITS, "prompts with more images are served here, and refused there");
        return false;
    }
    let tower = server.model.as_deref().and_then(of_checkpoint).and_then(|model| Some(model.vision?.tower));
    let sees_videos = !matches!(tower, Some(Tower::SigLip | Tower::Llama4));
    if sees_videos && videos != Some(0) {
        let at = flags.at(LIMITS);
        let what =
            format!("`--{LIMITS} {text}` leaves the encoder in memory: it sees videos as well, which nothing limits");
        flags.warn(
            Code::NotModelled,
            at,
            what,
            "`--language-model-only`, or a limit of 0 for \"video\" as well, leaves it out",
        );
        return false;
    }
    true
}

/// What limits say of a modality: `{"image": 0}`, `{"image": {"count": 0}}`, or `image=0,video=0` as older releases take it.
fn limit(text: &str, modality: &str) -> Option<u64> {
    if let Ok(limits) = serde_json::from_str::<Value>(text) {
        let of = limits.get(modality)?;
        return of.as_u64().or_else(|| of.get("count")?.as_u64());
    }
    let parts = text.split(',').filter_map(|part| part.split_once('='));
    parts.filter(|(name, _)| name.trim() == modality).find_map(|(_, n)| n.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use crate::Machine;
    use crate::example::import_text;

    /// The word of `encoder_tp` that a command gives, and whether it is said that the encoder stays.
    fn told(command: &str) -> (Option<String>, bool) {
        let import = import_text(command, &Machine::default());
        let line = import.scenario.lines().find(|line| line.starts_with("encoder_tp"));
        let word = line.and_then(|line| line.split('"').nth(1)).map(str::to_owned);
        (word, import.findings.iter().any(|finding| finding.what.contains("leaves the encoder in memory")))
    }

    #[test]
    fn an_encoder_is_left_out_where_all_that_it_sees_has_a_limit_of_0() {
        let none = || Some("none".to_owned());
        for (options, found) in [
            ("Qwen/Qwen3-VL-8B-Instruct", (None, false)),
            ("Qwen/Qwen3-VL-8B-Instruct --language-model-only", (none(), false)),
            ("Qwen/Qwen3-VL-8B-Instruct --limit-mm-per-prompt '{\"image\":0,\"video\":0}'", (none(), false)),
            ("Qwen/Qwen3-VL-8B-Instruct --limit-mm-per-prompt image=0,video=0", (none(), false)),
            // Qwen's tower sees videos too, and 999 of them are allowed.
            ("Qwen/Qwen3-VL-8B-Instruct --limit-mm-per-prompt '{\"image\":0}'", (None, true)),
            ("google/gemma-3-27b-it --limit-mm-per-prompt '{\"image\":{\"count\":0}}'", (none(), false)),
            ("google/gemma-3-27b-it --limit-mm-per-prompt '{\"image\":2}'", (None, false)),
        ] {
            assert_eq!(told(&format!("vllm serve {options}\n")), found, "{options}");
        }
        for option in ["--language-only", "--language-model-only"] {
            let command = format!("python -m sglang.launch_server --model-path Qwen/Qwen3-VL-8B-Instruct {option}\n");
            assert_eq!(told(&command), (none(), false));
        }
    }
}
