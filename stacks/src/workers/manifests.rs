//! Manifests of Kubernetes: documents of a file, their containers, and the server that one of them starts.

use std::ops::Range;

use input::diagnostic::Finding;

use super::Replicas;
use crate::launch::{self, Begins, Launch};
use crate::shell::quoted;
use crate::variables::{Variables, assigned, filled, take_entry};
use crate::yaml::{self, Entry};

/// Documents of a file, whose lengths are those of the file.
pub(super) fn documents(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut start, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        if line.trim_end() == "---" && at > start {
            found.push(&text[start..at]);
            start = at;
        }
        at += line.len();
    }
    found.push(&text[start..]);
    found
}

/// The value of the first line with a key.
pub(super) fn word_of(document: &str, key: &str) -> Option<String> {
    let found = launch::lines(document).find_map(|line| line.trim_start_matches("- ").strip_prefix(key))?;
    let word = found.split('#').next().unwrap_or_default().trim().trim_matches(['"', '\'']);
    (!word.is_empty()).then(|| word.to_owned())
}

/// How many pods, or groups of pods, a document asks for.
pub(super) fn replicas_of(document: &str) -> Replicas {
    let entries = yaml::entries(document).unwrap_or_default();
    Replicas::read(entries.iter().find(|entry| entry.key() == "replicas"))
}

/// The first container of a document that starts a server.
pub(super) fn of_manifest(document: &str, begins: &[Begins]) -> Result<Option<(usize, Launch)>, Finding> {
    let entries = yaml::entries(document)?;
    for container in containers(&entries, document) {
        if let Some((engine, launch)) = container.server(begins)? {
            return Ok(Some((engine, launch.moved_to(&container.place.unwrap_or_default()))));
        }
    }
    Ok(None)
}

/// Keys of a container that are read.
const KEYS: [&str; 4] = ["args", "command", "env", "image"];

/// Containers of a document, in order: items of a list have the same keys before them, and begin behind a dash.
fn containers(entries: &[Entry], document: &str) -> Vec<Container> {
    let mut found: Vec<(&[String], Container)> = Vec::new();
    // What runs before the containers serves nothing.
    for entry in entries.iter().filter(|entry| !entry.path.iter().any(|key| key == "initContainers")) {
        let outer = entry.path.split_last().map_or(&[][..], |(_, outer)| outer);
        let has_dash = document.get(entry.at.start..).is_some_and(|rest| rest.starts_with('-'));
        if has_dash && outer.last().is_some_and(|key| key == "-") {
            found.push((outer, Container::default()));
        }
        let Some(at) = entry.path.iter().position(|key| KEYS.contains(&key.as_str())) else { continue };
        let outer = &entry.path[..at];
        let known = found.iter().rposition(|(known, _)| *known == outer).unwrap_or_else(|| {
            found.push((outer, Container::default()));
            found.len() - 1
        });
        found[known].1.read(&entry.path[at], entry);
    }
    found.into_iter().map(|(_, container)| container).collect()
}

/// A container of a manifest: its image, words of its command and of its arguments, and where they stand.
#[derive(Default)]
struct Container {
    image: String,
    command: Vec<String>,
    args: Vec<String>,
    variables: Variables,
    place: Option<Range<usize>>,
}

impl Container {
    /// Reads one of its keys.
    fn read(&mut self, key: &str, entry: &Entry) {
        let words = match key {
            "env" => return take_entry(&mut self.variables, entry),
            "image" => return self.image.clone_from(&entry.value),
            "args" => &mut self.args,
            _ => &mut self.command,
        };
        words.extend(yaml::listed(entry));
        let start = self.place.as_ref().map_or(entry.at.start, |place| place.start);
        self.place = Some(start..entry.at.end);
    }

    /// The server that it starts. Without a command its image says what that is.
    fn server(&self, begins: &[Begins]) -> Result<Option<(usize, Launch)>, Finding> {
        let words = self.command.iter().chain(&self.args);
        let words: Vec<String> = words.map(|word| filled(word, &self.variables)).collect();
        let of_shell = words.iter().position(|word| word == "-c").and_then(|at| words.get(at + 1));
        let mut text: String = words.iter().map(|word| quoted(word) + " ").collect();
        if self.command.is_empty() {
            text.insert_str(0, &self.run());
        }
        let script = of_shell.map_or(text, |script| assigned(&self.variables) + script);
        let found = launch::all_of_script(&script, begins)?.into_iter().next();
        Ok(found.map(|(engine, mut launch)| {
            launch.version = launch.version.or_else(|| self.version(begins));
            (engine, launch)
        }))
    }

    /// The beginning of a command that runs the image.
    fn run(&self) -> String {
        format!("docker run {} ", quoted(&self.image))
    }

    /// The version that the tag of the image says, as it does in a command that runs any server in it.
    fn version(&self, begins: &[Begins]) -> Option<String> {
        let found = launch::all_of_script(&(self.run() + "vllm serve any"), begins).ok()?;
        found.into_iter().next()?.1.version
    }
}
