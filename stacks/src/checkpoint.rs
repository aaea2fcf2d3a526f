//! Which model of the catalogue the name of a checkpoint or a recipe means.

use std::ops::Range;

use engine::Model;
use engine::model::{embedded, embedded_names, of_checkpoint};
use input::diagnostic::{Code, Finding, nearest};

/// What names carry besides the model's.
const ENDINGS: [&str; 6] = ["-instruct", "-chat", "-fp8", "-hf", "_pretrain_config", "_pretrain"];

/// The model of a path, a name on a hub or a recipe; `None` where the catalogue has none.
pub(crate) fn find(asked: &str) -> Option<Model> {
    let last = last(asked);
    let mut bare = last.replace("meta-", "");
    for ending in ENDINGS.iter().cycle().take(2 * ENDINGS.len()) {
        bare = bare.trim_end_matches(ending).to_owned();
    }
    let alike = || embedded_names().into_iter().find(|name| letters(name) == letters(&bare)).and_then(embedded);
    of_checkpoint(asked).or_else(|| embedded(&last)).or_else(|| embedded(&bare)).or_else(alike)
}

/// An error about a file that names no model.
pub(crate) fn unnamed() -> Finding {
    let help =
        "give `--set model.name=llama-3-8b` (`import`: `--model llama-3-8b`); `skrull-sim list models` shows all";
    Finding::error(Code::MissingFlag, None, "the file does not say which model it trains").help(help)
}

/// An error about a name that the catalogue lacks.
pub(crate) fn unknown(asked: &str, at: Option<Range<usize>>) -> Finding {
    let what = format!("the model `{asked}` is not in the catalogue");
    let near =
        nearest(&last(asked), embedded_names()).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
    let help = format!("{near}give `--set model.name=…`, or a scenario with `model.config = \"config.json\"`");
    Finding::error(Code::UnknownModel, at, what).help(help)
}

/// The part of a path that names the model.
fn last(asked: &str) -> String {
    asked.trim_end_matches('/').rsplit('/').next().unwrap_or(asked).to_lowercase()
}

/// Letters and digits alone.
fn letters(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_hubs_and_recipes_are_those_of_the_catalogue() {
        for (asked, name) in [
            ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
            ("llama3_8b", "llama-3-8b"),
            ("llama3_70b_pretrain_config", "llama-3-70b"),
            ("~/models/llama-3-8b/", "llama-3-8b"),
        ] {
            assert_eq!(find(asked).map(|model| model.name).as_deref(), Some(name), "{asked}");
        }
        assert_eq!(find("nobody/knows-this"), None);
    }
}
