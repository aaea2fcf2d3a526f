//! `[model]`: an architecture by name or from a Hugging Face `config.json`.

use std::path::Path;

use engine::Model;

use super::reader::{Section, unknown};
use crate::diagnostic::{Code, Finding};
use crate::text_file;

/// Reads the section.
pub fn model(mut section: Section<'_>, folder: &Path) -> Option<Model> {
    section.alternatives(&["name", "config"]);
    let (name, config) = (section.text("name"), section.text("config"));
    let model = match (name, config) {
        (None, None) => {
            section.missing(
                "name",
                "name a shipped model (`skrull-sim list models`) or give `config`, a Hugging Face config.json",
            );
            None
        }
        (Some(_), Some((_, at))) => {
            section.find(Finding::error(Code::ExclusiveKeys, at, "`name` and `config` of a model exclude each other"));
            None
        }
        (None, Some((path, at))) => match text_file::read(&folder.join(&path)) {
            Err(error) => {
                section.find(Finding::error(Code::UnreadableModel, at, format!("cannot read `{path}`: {error}")));
                None
            }
            Ok(text) => Model::from_config(&path, &text)
                .map_err(|why| {
                    why.into_iter().for_each(|why| {
                        section.find(Finding::error(Code::WrongModel, at.clone(), format!("`{path}`: {why}")))
                    });
                })
                .ok(),
        },
        (Some((name, at)), None) => {
            let model = engine::model::embedded(&name);
            if model.is_none() {
                section.find(unknown(
                    Code::UnknownModel,
                    format!("unknown model `{name}`"),
                    &name,
                    engine::model::embedded_names(),
                    at,
                ));
            }
            model
        }
    };
    section.finish();
    model
}
