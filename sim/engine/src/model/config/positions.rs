//! How far a model's positions go, and what that leaves of its windows.
//!
//! Source: `_get_and_verify_max_len` of vllm-project/vllm, `vllm/config/model.py`.

use serde_json::{Map, Value};

use super::reader::{COUNT_MAX, Reader};
use super::types::{Family, Type};
use crate::model::{Layer, Mixer, Pattern};

/// Keys of the table or of the length that a model was trained on.
const KEYS: [&str; 5] =
    ["max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_position_embedding"];
/// Positions where neither a file nor its class says so, as vLLM takes them.
const UNKNOWN: u64 = 2048;
/// Rotary scalings whose factor is in the stated positions already.
const COUNTED: [&str; 3] = ["su", "longrope", "llama3"];
/// The scaling whose factor is one of the length before it.
const YARN: [&str; 2] = ["yarn", "deepseek_yarn"];

/// Positions of a model.
#[derive(Clone, Copy)]
pub(super) struct Positions {
    pub(super) n: u64,
    /// Whether a file or its class says so.
    is_known: bool,
}

/// Reads them: what scaled rotary positions reach, and what Command-R states beside its trained length.
pub(super) fn positions(of: Type, learned: bool, reader: &mut Reader<'_>) -> Positions {
    let trained = reader.optional(&KEYS);
    // Files have lengths of training beside the positions.
    let _ = KEYS.map(|key| reader.value(key));
    let reached = reader.optional(&["model_max_length"]);
    // A table has the rows that it has.
    let stated = if learned { trained.or(reached) } else { reached.or(trained) };
    let stated = stated.or(of.defaults.positions);
    let n = stated.unwrap_or(UNKNOWN);
    // Gemma 3 states the positions that its scaling reaches.
    let is_scaled = !learned && !matches!(of.family, Family::Gemma3 | Family::Gemma3n);
    Positions { n: if is_scaled { scaled(n, reader) } else { n }, is_known: stated.is_some() }
}

/// Positions that a file's rotary scaling makes of those it states.
fn scaled(n: u64, reader: &mut Reader<'_>) -> u64 {
    let name = ["rope_scaling", "rope_parameters"].into_iter().find(|key| reader.has(key)).unwrap_or("rope_scaling");
    let Some(keys) = reader.value(name).and_then(Value::as_object) else { return n };
    let by_layer = keys.values().filter_map(Value::as_object);
    let sections: Vec<&Map<String, Value>> =
        if keys.values().all(Value::is_object) { by_layer.collect() } else { vec![keys] };
    let (mut base, mut factor) = (n, 1.0);
    for section in sections {
        let kind = ["rope_type", "type"].into_iter().find_map(|key| section.get(key)?.as_str()).unwrap_or("default");
        if COUNTED.contains(&kind) {
            continue;
        }
        if let Some(found) = section.get("factor").filter(|found| !found.is_null()) {
            let number = found.as_f64().filter(|number| (1.0..=1e4).contains(number));
            if number.is_none() {
                reader.find(&format!("{name}.factor"), found, "numbers from 1 to 10000");
            }
            factor = number.unwrap_or(1.0);
        }
        if YARN.contains(&kind) {
            let original = section.get("original_max_position_embeddings").and_then(Value::as_u64);
            base = original.filter(|n| (1..=COUNT_MAX).contains(n)).unwrap_or(n);
        }
    }
    hw::whole((hw::real(base) * factor).floor()).clamp(1, COUNT_MAX)
}

impl Positions {
    /// Refuses windows beyond the positions. Phi-3 files give windows as long as the context and longer to switch them off.
    pub(super) fn check(self, layers: &Pattern, family: Family, reader: &mut Reader<'_>) {
        let width = |layer: Layer| match layer.mixer {
            Mixer::Window(tokens) | Mixer::Reused(Some(tokens)) => Some(tokens),
            _ => None,
        };
        let widest = layers.kinds().into_iter().filter_map(width).max().unwrap_or(0);
        if self.is_known && family != Family::Phi3 && widest > self.n {
            reader.find("sliding_window", &widest, &format!("windows of at most the {} positions", self.n));
        }
    }

    /// The layers with windows no longer than the positions. One as long is attention to all tokens, unless layers with windows have other heads.
    pub(super) fn limit(self, layers: Pattern, n_layers: u64, family: Family) -> Pattern {
        let is_long = |layer: Layer| layer.mixer != self.limited(layer.mixer, family);
        if !self.is_known || !layers.kinds().into_iter().any(is_long) {
            return layers;
        }
        let limited = |index| {
            let layer = layers.layer(index);
            Layer { mixer: self.limited(layer.mixer, family), ..layer }
        };
        Pattern::of_layers(&(0..n_layers).map(limited).collect::<Vec<_>>())
    }

    fn limited(self, mixer: Mixer, family: Family) -> Mixer {
        match mixer {
            Mixer::Window(tokens) | Mixer::Reused(Some(tokens)) | Mixer::Chunked(tokens) if tokens < self.n => mixer,
            Mixer::Window(_) if family.has_windowed_heads() => Mixer::Window(self.n),
            Mixer::Reused(Some(_)) if family.has_windowed_heads() => Mixer::Reused(Some(self.n)),
            Mixer::Window(_) | Mixer::Chunked(_) => Mixer::Full,
            Mixer::Reused(Some(_)) => Mixer::Reused(None),
            mixer => mixer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    const MISTRAL: &str = r#"{ "model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "num_hidden_layers": 36, "intermediate_size": 12288, "vocab_size": 131072, "max_position_embeddings": 32768 }"#;

    fn of(kind: &str, more: &str) -> Model {
        let config = MISTRAL.replace("\"mistral\"", &format!("\"{kind}\"")).replace(" }", &format!("{more} }}"));
        Model::from_config("x", &config).expect(more)
    }

    #[test]
    fn a_window_as_long_as_the_positions_is_attention_to_all_tokens() {
        // mistralai/Ministral-8B-Instruct-2410 has a window of 32,768 over 32,768 positions, which trains and serves as none.
        let plain = of("mistral", "");
        assert!(plain.is_plain() && plain.not_trained().is_empty());
        assert_eq!(of("mistral", r#", "sliding_window": 32768"#), plain);
        let config = MISTRAL.replace(" }", r#", "sliding_window": 65536 }"#);
        let findings = Model::from_config("x", &config).expect_err("a window beyond the context").join("; ");
        assert!(findings.contains("allowed are windows of at most the 32768 positions"), "{findings}");
        let near = of("mistral", r#", "sliding_window": 32767"#);
        assert_eq!(near.layers, Pattern::uniform(Layer { mixer: Mixer::Window(32_767), ..Layer::DENSE }));
        // microsoft/Phi-3-medium-128k-instruct and Qwen2 files that state one as long as the context.
        let used = r#", "sliding_window": 32768, "use_sliding_window": true, "max_window_layers": 28"#;
        assert!(of("phi3", &used.replace("32768", "131072")).is_plain());
        for kind in ["phi3", "qwen2", "gemma2", "cohere2", "gpt_oss", "starcoder2", "olmo3"] {
            assert!(of(kind, used).is_plain(), "{kind}");
        }
        // Words for such layers are read too, and chunks are windows.
        let words = vec!["\"sliding_attention\""; 36].join(", ");
        assert!(of("olmo3", &format!(r#", "sliding_window": 32768, "layer_types": [{words}]"#)).is_plain());
        assert!(of("llama4", r#", "attention_chunk_size": 32768, "intermediate_size_mlp": 16384"#).is_plain());
        // Layers with a window have heads of their own here, and keep them.
        let gemma = of("gemma4_text", r#", "sliding_window": 32768, "hidden_size_per_layer_input": 0"#);
        assert_eq!(gemma.count(36, |layer| layer.mixer == Mixer::Window(32_768)), 30);
        // Reusing layers of Gemma 3n reuse all keys.
        let reusing = of("gemma3n_text", r#", "sliding_window": 32768"#);
        assert_eq!(reusing.count(36, |layer| layer.mixer == Mixer::Reused(None)), 15);
    }

    #[test]
    fn a_window_of_unknown_positions_stays() {
        let config = MISTRAL.replace("\"max_position_embeddings\": 32768", "\"sliding_window\": 4096");
        let model = Model::from_config("x", &config.replace("\"mistral\"", "\"llama\"")).expect("read");
        assert_eq!((model.max_positions, model.is_plain()), (UNKNOWN, false));
    }

    #[test]
    fn scaled_rotary_positions_reach_as_far_as_vllm_takes_them() {
        let reach = |kind: &str, rope: &str| of(kind, &format!(r#", "rope_scaling": {rope}"#)).max_positions;
        // The recipe of Qwen2.5's model cards: four times 32,768.
        let recipe = r#"{ "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768 }"#;
        assert_eq!(reach("qwen2", recipe), 131_072);
        assert_eq!(reach("qwen2", &recipe.replace("\"type\"", "\"rope_type\"")), 131_072);
        assert_eq!(reach("qwen3", r#"{ "rope_type": "yarn", "factor": 4.0 }"#), 131_072);
        // moonshotai/Kimi-K2-Instruct-0905: 64 times 4096, whatever is stated besides.
        let kimi = r#"{ "type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0 }"#;
        assert_eq!(reach("llama", kimi), 262_144);
        assert_eq!(reach("llama", r#"{ "type": "linear", "factor": 4.0 }"#), 131_072);
        assert_eq!(reach("llama", r#"{ "type": "dynamic", "factor": 1.5 }"#), 49_152);
        for counted in ["llama3", "longrope", "su"] {
            assert_eq!(
                reach("llama", &format!(r#"{{ "rope_type": "{counted}", "factor": 8.0 }}"#)),
                32_768,
                "{counted}"
            );
        }
        assert_eq!(reach("qwen2", r#"{ "type": "mrope", "mrope_section": [16, 24, 24] }"#), 32_768);
        assert_eq!(reach("gemma3_text", r#"{ "rope_type": "linear", "factor": 8.0 }"#), 32_768);
        assert_eq!(reach("llama", "null"), 32_768);
        // Transformers 5 has a section of its own, and one for each kind of layer.
        let later = r#", "rope_parameters": { "full_attention": { "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8192 },
            "sliding_attention": { "rope_type": "default" } }"#;
        assert_eq!(of("olmo3", later).max_positions, 16_384);
        let wrong = MISTRAL.replace(" }", r#", "rope_scaling": { "type": "yarn", "factor": "four" } }"#);
        let findings = Model::from_config("x", &wrong).expect_err("a word").join("; ");
        assert!(findings.contains("`rope_scaling.factor` is \"four\""), "{findings}");
    }

    #[test]
    fn command_r_reaches_what_it_states_beside_its_trained_length() {
        // CohereForAI/c4ai-command-r-v01: 8192 positions and a model_max_length of 131,072.
        assert_eq!(of("cohere", r#", "model_max_length": 131072"#).max_positions, 131_072);
        assert_eq!(crate::model::embedded("command-r-35b").expect("embedded").max_positions, 131_072);
        // A table of positions has the rows that it has.
        let gpt = r#"{ "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257, "n_positions": 1024,
            "model_max_length": 4096, "rope_scaling": { "type": "linear", "factor": 2 } }"#;
        assert_eq!(Model::from_config("gpt2", gpt).expect("read").n_parameters(), 124_439_808);
    }
}
