//! Models by name, of `models.toml`: each is the keys of its `config.json`. Weights are in 16 bits, in whatever format a checkpoint is published:
//! `[model] weights` says which is served.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::Model;

/// Every model, in the order of the file.
static MODELS: LazyLock<Vec<Model>> = LazyLock::new(|| {
    #[derive(serde::Deserialize)]
    struct Table {
        models: Vec<Map<String, Value>>,
    }
    let table: Table = toml::from_str(include_str!("models.toml")).expect("the table of models is TOML");
    table.models.into_iter().map(read).collect()
});

fn read(mut keys: Map<String, Value>) -> Model {
    let name = keys.remove("name");
    let name = name.as_ref().and_then(Value::as_str).expect("every model has a name");
    Model::from_config(name, &Value::Object(keys).to_string()).expect("shipped models are whole")
}

/// Formats in which checkpoints are published that have no 16-bit weights, as `[model] weights` writes them. Source: `quantization_config` of the same
/// public configurations, and of openai/gpt-oss, moonshotai/Kimi-K2.5 and MiniMaxAI/MiniMax-M2.
const PUBLISHED: [(&str, &str); 12] = [
    ("deepseek-v3", "\"fp8-block\""),
    ("deepseek-r1", "\"fp8-block\""),
    ("deepseek-v3.2", "\"fp8-block\""),
    ("kimi-k2", "\"fp8-block\""),
    ("kimi-k2.5", "{ experts = \"int4\" }"),
    ("gpt-oss-20b", "\"4-bit-experts\""),
    ("gpt-oss-120b", "\"4-bit-experts\""),
    ("deepseek-v4-flash", "{ format = \"fp8-block\", experts = \"mxfp4\" }"),
    ("deepseek-v4-pro", "{ format = \"fp8-block\", experts = \"mxfp4\" }"),
    ("mimo-v2-flash", "\"fp8-block\""),
    ("minimax-m2", "\"fp8-block\""),
    ("minimax-m2.5", "\"fp8-block\""),
];

/// Format of a model's published checkpoint, as a scenario writes it; `None` where that has 16 bits.
pub fn published_weights(name: &str) -> Option<&'static str> {
    PUBLISHED.iter().find(|(known, _)| *known == name).map(|(_, word)| *word)
}

/// A model embedded by name.
pub fn embedded(name: &str) -> Option<Model> {
    MODELS.iter().find(|model| model.name == name).cloned()
}

/// Names of all embedded models.
pub fn embedded_names() -> Vec<&'static str> {
    MODELS.iter().map(|model| model.name.as_str()).collect()
}
