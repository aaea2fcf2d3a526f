//! How far a model's positions go, and what that leaves of its windows.

use super::reader::Reader;
use super::types::{Family, Type};
use crate::model::{Layer, Mixer, Pattern};

/// Keys of the length that a model was made for.
const KEYS: [&str; 4] = ["max_position_embeddings", "n_positions", "model_max_length", "max_seq_len"];
/// Positions where neither a file nor its class says so, as vLLM takes them.
const UNKNOWN: u64 = 2048;
/// Positions of a model.
#[derive(Clone, Copy)]
pub(super) struct Positions {
    pub(super) n: u64,
    /// Whether a file or its class says so.
    is_known: bool,
}

/// Reads them.
pub(super) fn positions(of: Type, reader: &mut Reader<'_>) -> Positions {
    let stated = reader.optional(&KEYS).or(of.defaults.positions);
    Positions { n: stated.unwrap_or(UNKNOWN), is_known: stated.is_some() }
}

impl Positions {
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
        assert_eq!(of("mistral", r#", "sliding_window": 65536"#), plain);
        let near = of("mistral", r#", "sliding_window": 32767"#);
        assert_eq!(near.layers, Pattern::uniform(Layer { mixer: Mixer::Window(32_767), ..Layer::DENSE }));
        // microsoft/Phi-3-medium-128k-instruct and Qwen2 files that state one as long as the context.
        let used = r#", "sliding_window": 131072, "use_sliding_window": true, "max_window_layers": 28"#;
        for kind in ["phi3", "qwen2", "gemma2", "cohere2", "gpt_oss", "starcoder2", "olmo3"] {
            assert!(of(kind, used).is_plain(), "{kind}");
        }
        // Words for such layers are read too, and chunks are windows.
        let words = vec!["\"sliding_attention\""; 36].join(", ");
        assert!(of("olmo3", &format!(r#", "sliding_window": 32768, "layer_types": [{words}]"#)).is_plain());
        assert!(of("llama4", r#", "attention_chunk_size": 32768, "intermediate_size_mlp": 16384"#).is_plain());
        // Layers with a window have heads of their own here, and keep them.
        let gemma = of("gemma4_text", r#", "sliding_window": 65536, "hidden_size_per_layer_input": 0"#);
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
}
