//! Containers of a YAML: their images, commands, arguments and variables, and the server that one of them starts.

use std::ops::Range;

use input::diagnostic::Finding;

use crate::launch::{self, Begins, Launch};
use crate::plugins;
use crate::shell::{quoted, runs_text};
use crate::variables::{Variables, assigned, filled, take_entry};
use crate::yaml::{self, Entry};

/// Items of the first list of such a name that has items with keys.
pub(super) fn items_of(entries: &[Entry], list: &str) -> Vec<Vec<Entry>> {
    let depth = entries.iter().find_map(|entry| {
        let at = entry.path.iter().position(|key| key == list)?;
        (entry.path.get(at + 1).is_some_and(|key| key == "-") && entry.path.len() > at + 2).then_some(at)
    });
    let Some(depth) = depth else { return Vec::new() };
    let mut items: Vec<Vec<Entry>> = Vec::new();
    let inside =
        |entry: &&Entry| entry.path.len() > depth + 2 && entry.path[depth] == list && entry.path[depth + 1] == "-";
    for entry in entries.iter().filter(inside) {
        match items.last_mut() {
            Some(item) if !(entry.begins_item && entry.path.len() == depth + 3) => item.push(entry.clone()),
            _ => items.push(vec![entry.clone()]),
        }
    }
    items
}

/// What LeaderWorkerSet tells the first pod of a group (`leaderworkerset.x-k8s.io`: environment of its pods).
pub(super) fn of_group(size: u64) -> Variables {
    [("LWS_GROUP_SIZE", size), ("LWS_WORKER_INDEX", 0)].map(|(name, value)| (name.to_owned(), value.to_string())).into()
}

/// Keys of a container that are read.
const KEYS: [&str; 5] = ["args", "command", "env", "image", "resources"];

/// Containers of a document, in order: items of a list have the same keys before them.
pub(super) fn containers(entries: &[Entry]) -> Vec<Container> {
    let mut found: Vec<(&[String], Container)> = Vec::new();
    // What runs before the containers serves nothing.
    for entry in entries.iter().filter(|entry| !entry.path.iter().any(|key| key == "initContainers")) {
        let outer = entry.path.split_last().map_or(&[][..], |(_, outer)| outer);
        if entry.begins_item && outer.last().is_some_and(|key| key == "-") {
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

/// The text that a shell is told to run: behind `-c` and, where options end with `--`, behind that.
fn text_of_shell(words: &[String]) -> Option<&String> {
    let is_shell = words.first().is_some_and(|word| word.ends_with("sh"));
    let texts = words
        .iter()
        .enumerate()
        .filter(|(_, word)| runs_text(word))
        .filter_map(|(at, _)| words[at + 1..].iter().find(|word| *word != "--"));
    texts.into_iter().find(|text| is_shell || text.contains([' ', '\n']))
}

/// A container of a manifest: its image, words of its command and of its arguments, and where they stand.
#[derive(Default)]
pub(super) struct Container {
    pub(super) image: String,
    pub(super) command: Vec<String>,
    pub(super) args: Vec<String>,
    pub(super) variables: Variables,
    /// GPUs that it is given.
    pub(super) n_gpus: Option<u64>,
    pub(super) place: Option<Range<usize>>,
}

impl Container {
    /// Reads one of its keys.
    fn read(&mut self, key: &str, entry: &Entry) {
        let words = match key {
            "env" => return take_entry(&mut self.variables, entry),
            "image" => return self.image.clone_from(&entry.value),
            "resources" => {
                let n = Some(entry)
                    .filter(|entry| plugins::is_resource(entry.key()))
                    .and_then(|entry| entry.value.parse().ok());
                return self.n_gpus = n.filter(|n| *n > 0).or(self.n_gpus);
            }
            "args" => &mut self.args,
            _ => &mut self.command,
        };
        words.extend(yaml::listed(entry));
        let start = self.place.as_ref().map_or(entry.at.start, |place| place.start);
        self.place = Some(start..entry.at.end);
    }

    /// The server that it starts. Without a command its image says what that is.
    pub(super) fn server(&self, begins: &[Begins]) -> Result<Option<(usize, Launch)>, Finding> {
        let words = self.command.iter().chain(&self.args);
        let words: Vec<String> = words.map(|word| filled(word, &self.variables)).collect();
        let mut text: String = words.iter().map(|word| quoted(word) + " ").collect();
        if self.command.is_empty() {
            text.insert_str(0, &self.run());
        }
        let script = assigned(&self.variables) + text_of_shell(&words).unwrap_or(&text);
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
