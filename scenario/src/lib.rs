//! What scenario files of every kind share: TOML with the position of every value, sections that many kinds have, expectations.
//!
//! All findings come at once; an unknown key names the nearest known one. `--set section.key=value` is laid over the file and
//! checked the same way. Which sections a scenario has, the module of its kind knows. What it runs to, nothing here knows.

pub mod cluster;
pub mod cost;
pub mod curriculum;
pub mod deployment;
mod effort;
pub mod elsewhere;
pub mod expect;
pub mod formats;
pub mod graph;
mod inside;
pub mod memory;
pub mod mixed_training;
pub mod model;
pub mod multi_task;
pub mod network;
mod recompute;
pub mod rl;
pub mod serving;
mod shipped;
pub mod starting;
pub mod training;
mod unread;

use std::path::{Path, PathBuf};

use engine::Origin;
use reports::expect::Expectation;

use input::diagnostic::{Code, Source};
use input::text_file::{self, NoText};
use thiserror::Error;

use input::reader::{Reader, Section};

/// What the command line lays over the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `section.key=value`.
    pub set: Vec<String>,
    /// Seed.
    pub seed: Option<u64>,
    /// Whether requests of measured runs are played in the place of the scenario's own.
    pub measured: bool,
}

/// Largest seed: TOML's numbers have a sign.
const SEED_MAX: u64 = u64::MAX >> 1;

/// Scenarios that are shipped with the program, by name: every file of `scenarios/` but those of `scenarios/bad/`.
pub static EMBEDDED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/scenarios.rs"));

/// Scenarios that are wrong, by name: those of `scenarios/bad/`, whose readers ask for keys that no shipped one has.
pub static WRONG: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/wrong.rs"));

/// The scenario that a newcomer starts from.
pub const STARTER: &str = "quickstart";

/// A shipped scenario by name.
pub fn shipped(name: &str) -> Option<&'static str> {
    EMBEDDED.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// Shipped scenarios: the one to start from, then by name, each with the question that it asks.
pub fn questions() -> Vec<(String, String)> {
    let mut rows: Vec<(String, String)> =
        EMBEDDED.iter().map(|(name, text)| ((*name).to_owned(), question(text))).collect();
    rows.sort_by_key(|(name, _)| (name != STARTER, name.clone()));
    rows
}

/// The first sentence of the comment at a scenario's top.
fn question(text: &str) -> String {
    let comment: Vec<&str> = text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim).collect();
    let comment = comment.join(" ");
    let end = [". ", "? "].iter().filter_map(|stop| comment.find(stop)).min();
    end.map_or(comment.as_str(), |end| &comment[..=end]).to_owned()
}

/// Why there is no scenario of a name.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum NotFound {
    /// Standard input gives no text.
    #[error("cannot read standard input: {0}")]
    Input(#[source] NoText),
    /// No name at all.
    #[error("the name of the scenario is empty")]
    Empty,
    /// The file is there.
    #[error("cannot read scenario `{name}`: {why}")]
    Unreadable { name: String, why: NoText },
    /// Neither a file nor a shipped one.
    #[error("cannot read scenario `{name}`; {hint}")]
    Unknown { name: String, hint: String },
}

/// Finds a scenario: a file, standard input (`-`), or a shipped one by name.
///
/// # Errors
/// When there is neither.
pub fn find(name: &str) -> Result<(Source, PathBuf), NotFound> {
    if name == "-" {
        let text = text_file::operand(Path::new(name)).map_err(NotFound::Input)?;
        return Ok((Source { path: "stdin".to_owned(), text }, PathBuf::new()));
    }
    if name.is_empty() {
        return Err(NotFound::Empty);
    }
    let path = Path::new(name);
    let why = match text_file::read(path) {
        Ok(text) => {
            let folder = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
            return Ok((Source { path: name.to_owned(), text }, folder));
        }
        Err(why) => why,
    };
    if let Some(text) = shipped(name) {
        return Ok((Source { path: format!("{name} {}", shipped::MARK), text: text.to_owned() }, PathBuf::new()));
    }
    if path.exists() {
        return Err(NotFound::Unreadable { name: name.to_owned(), why });
    }
    let names = EMBEDDED.iter().map(|(name, _)| *name);
    let hint = input::diagnostic::nearest(name, names).map_or_else(
        || "`skrull-sim list scenarios` shows the shipped ones".to_owned(),
        |near| format!("did you mean the shipped scenario `{near}`?"),
    );
    Err(NotFound::Unknown { name: name.to_owned(), hint })
}

/// Whose a scenario is and what it was read from: what every report says, whatever was asked.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// Word of `kind`.
    pub kind: String,
    /// Name in results and of the folder that they are written to.
    pub name: String,
    /// Seed of every random choice.
    pub seed: u64,
    /// The choice that the others are compared with.
    pub baseline: String,
    /// Golden figures.
    pub expectations: Vec<Expectation>,
    /// The file as it was read, with what was laid over it.
    pub origin: Origin,
}

impl Head {
    /// Reads the keys before the sections, where a kind has none of its own.
    pub fn read(reader: &mut Reader<'_>, sections: &[&'static str], source: &Source, overrides: &Overrides) -> Self {
        let mut top = reader.top(sections);
        let head = Self::of(&mut top, source, overrides);
        top.finish();
        head
    }

    /// Takes its keys from those before the sections. `kind` was looked at before: its word is known, or there is none.
    pub fn of(top: &mut Section<'_>, source: &Source, overrides: &Overrides) -> Self {
        let name = name(top, source);
        let kind = top.text("kind").map_or_else(|| "training".to_owned(), |(kind, _)| kind);
        let seed = top.count("seed", Some(0), 0..=SEED_MAX).0;
        if let Some(seed) = overrides.seed.filter(|seed| *seed > SEED_MAX) {
            let help = format!("allowed are whole numbers from 0 to {SEED_MAX}");
            top.refuse(Code::OutOfRange, None, format!("`seed` is {seed}"), help);
        }
        let origin = Origin {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            question: String::new(),
            scenario: source.path.clone(),
            text: source.text.clone(),
            set: overrides.set.clone(),
            seed: overrides.seed,
        };
        Self { kind, name, seed: overrides.seed.unwrap_or(seed), origin, ..Self::default() }
    }
}

/// Name of a file without the letters that say what it is: a plan of `gpt-7.5b` has none.
fn stem(path: &str) -> String {
    // Behind the path may stand where the text comes from.
    let path = path.strip_suffix(')').and_then(|path| path.rsplit_once(" (")).map_or(path, |(path, _)| path);
    let path = Path::new(path);
    let is_kind = path.extension().is_some_and(|kind| kind.to_string_lossy().chars().all(char::is_alphabetic));
    let name = if is_kind { path.file_stem() } else { path.file_name() };
    name.map_or("scenario".into(), |name| name.to_string_lossy().into_owned())
}

/// The scenario's name: given, or that of its file.
fn name(top: &mut Section<'_>, source: &Source) -> String {
    let Some((name, at)) = top.text("name") else { return stem(&source.path) };
    top.plain_name(&name, at);
    name
}

#[cfg(test)]
mod tests {
    use super::stem;

    #[test]
    fn a_name_is_that_of_the_file_without_what_kind_of_file_it_is() {
        for (path, name) in [
            ("a/quickstart.toml", "quickstart"),
            ("serving/azure-conv.toml (shipped)", "azure-conv"),
            ("b/serve.yaml.toml (imported)", "serve.yaml"),
            ("gpt-7.5b-128-plan", "gpt-7.5b-128-plan"),
            ("qwen-0.5b", "qwen-0.5b"),
            ("train.sh", "train"),
        ] {
            assert_eq!(stem(path), name);
        }
    }
}
