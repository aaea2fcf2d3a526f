//! Models by name, of `models.toml`: each is the keys of its `config.json`. Weights are in 16 bits, in whatever format a checkpoint is published:
//! `[model] weights` or the path of a checkpoint says which is served (`checkpoint_formats.rs`).

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

/// A model embedded by name.
pub fn embedded(name: &str) -> Option<Model> {
    MODELS.iter().find(|model| model.name == name).cloned()
}

/// All embedded models.
pub fn embedded_models() -> impl Iterator<Item = &'static Model> {
    MODELS.iter()
}

/// Names of all embedded models.
pub fn embedded_names() -> Vec<&'static str> {
    MODELS.iter().map(|model| model.name.as_str()).collect()
}
