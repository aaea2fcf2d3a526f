//! Files that shipped scenarios name: they are part of the program, as the scenarios are, so that these run in any folder.

use std::borrow::Cow;
use std::io::{BufRead, Cursor};
use std::path::{Path, PathBuf};

use input::diagnostic::Source;
use input::text_file::{self, NoText};

/// Files by their names below the folder of scenarios.
static DATA: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/data.rs"));
/// What stands behind the name of a shipped scenario, and before the names of its files.
pub(crate) const MARK: &str = "(shipped)";

/// Where a scenario's files are: the folder that is given, and for a shipped scenario that of the shipped ones before it. A plan or a result has its own
/// folder, and the name of its scenario.
pub(crate) fn folder<'a>(source: &Source, folder: &'a Path) -> Cow<'a, Path> {
    let name = source.path.strip_suffix(MARK).map(str::trim_end);
    let below = name.map(|name| Path::new(name).parent().map_or_else(PathBuf::new, Path::to_path_buf));
    below.map_or(Cow::Borrowed(folder), |below| Cow::Owned(folder.join(MARK).join(below)))
}

/// Lines of a file; one that is not shipped with a shipped scenario lies in the folder that was given, which may be where the program runs.
///
/// # Errors
/// Why it gives no text.
pub(crate) fn lines(path: &Path) -> Result<Box<dyn BufRead>, NoText> {
    let marked = path.ancestors().find(|part| part.ends_with(MARK));
    let Some((marked, folder)) = marked.and_then(|marked| Some((marked, marked.parent()?))) else {
        return text_file::lines(path);
    };
    let below = path.strip_prefix(marked).expect("an ancestor");
    match DATA.iter().find(|(name, _)| Path::new(name) == below) {
        Some((_, bytes)) => Ok(Box::new(Cursor::new(*bytes))),
        None => text_file::lines(&folder.join(given(below))),
    }
}

/// A file that a user gives to a shipped scenario, without the folder of that scenario.
fn given(below: &Path) -> PathBuf {
    let mut parts = below.components();
    match parts.next() {
        Some(first) if is_folder(Path::new(&first)) => parts.as_path().to_path_buf(),
        _ => below.to_path_buf(),
    }
}

/// Whether shipped scenarios lie in a folder of that name.
fn is_folder(first: &Path) -> bool {
    crate::EMBEDDED.iter().any(|(name, _)| Path::new(name).starts_with(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_shipped_scenarios_are_found_without_their_folder() {
        let source = |path: &str| Source { path: path.to_owned(), text: String::new() };
        let shipped = source("together/prefix-split-failures-scaler (shipped)");
        // By its name, and as a plan that lies in a folder of its own carries it.
        for beside in ["", "out/plans"] {
            let path = folder(&shipped, Path::new(beside)).join("conversations.jsonl");
            let first = lines(&path).expect("shipped").lines().next().expect("a line").expect("text");
            assert!(first.contains("hash_ids"), "{first}");
            assert!(lines(&folder(&shipped, Path::new(beside)).join("no-such-file.jsonl")).is_err());
        }
        // What is not shipped lies beside the plan.
        let own = std::env::temp_dir().join(format!("skrull-sim-shipped-{}", std::process::id()));
        std::fs::create_dir_all(&own).expect("a folder");
        std::fs::write(own.join("mine.csv"), "mine").expect("a file");
        let found = lines(&folder(&shipped, &own).join("mine.csv")).expect("beside the plan").lines().next();
        std::fs::remove_dir_all(&own).expect("made above");
        assert_eq!(found.expect("a line").expect("text"), "mine");
        assert_eq!(given(Path::new("together/data/mine.csv")), Path::new("data/mine.csv"));
        // A user's scenario has files of its own folder alone.
        let own = source("together/mine.toml");
        assert_eq!(folder(&own, Path::new("together")), Path::new("together"));
    }
}
