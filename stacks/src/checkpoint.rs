//! What is answered where a file names no model, or one that the catalogue lacks.

use std::ops::Range;

use engine::formats::Formats;
use engine::model::{Model, known_names, last_part};
use hw::Dtype;
use input::diagnostic::{Code, Finding, nearest};

/// An error about a file that names no model.
pub(crate) fn unnamed() -> Finding {
    let help =
        "give `--set model.name=llama-3-8b` (`import`: `--model llama-3-8b`); `skrull-sim list models` shows all";
    Finding::error(Code::MissingFlag, None, "the file does not say which model it trains").help(help)
}

/// The name of a checkpoint in the cache of its hub: `…/models--ORGANISATION--NAME/snapshots/…`.
pub(crate) fn in_cache(path: &str) -> Option<String> {
    let name = path.split('/').find_map(|part| part.strip_prefix("models--"))?;
    Some(name.replacen("--", "/", 1))
}

/// An error about a name that the catalogue lacks.
pub(crate) fn unknown(asked: &str, at: Option<Range<usize>>) -> Finding {
    let last = last_part(asked).to_lowercase();
    let what = format!("the model `{asked}` is not in the catalogue");
    let near = nearest(&last, known_names()).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
    let help = format!("{near}give `--set model.name=…`, or a scenario with `model.config = \"config.json\"`");
    Finding::error(Code::UnknownModel, at, what).help(help)
}

/// Whether the path of a checkpoint says formats of its parts.
pub(crate) fn is_narrow(model: &Model) -> bool {
    model.formats != Formats::of(Dtype::Bf16)
}
