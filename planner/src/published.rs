//! Files of `profiles/published/` with what the authors of a paper profiled, model by model.

use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File<M> {
    #[expect(dead_code, reason = "names the file's form for people")]
    schema: String,
    model: Vec<M>,
}

/// Models of a shipped file.
///
/// # Panics
/// When the file, which is part of the program, is not well formed.
pub(crate) fn models<M: DeserializeOwned>(text: &str) -> Vec<M> {
    toml::from_str::<File<M>>(text).expect("the shipped file is well formed").model
}
