//! Manifests of Kubernetes: documents of a file, their containers, and the server that one of them starts.

use std::ops::Range;

use input::diagnostic::Finding;

use super::started::Started;
use super::{LABEL, Replicas};
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

/// The first container of a document that starts a server, with how often and where its pods run.
pub(super) fn started(document: &str, begins: &[Begins]) -> Result<Option<Started>, Finding> {
    let entries = yaml::entries(document)?;
    let size = entries.iter().find(|entry| entry.path.ends_with(&["leaderWorkerTemplate".to_owned(), "size".to_owned()]));
    let n_pods = size.and_then(|entry| entry.value.parse().ok()).filter(|n: &u64| *n > 0);
    let of_group = size.map(|_| of_group(n_pods.unwrap_or(1))).unwrap_or_default();
    for mut container in containers(&entries, document) {
        // A group of pods starts the same server on each: the first says all.
        container.variables.extend(of_group.iter().cloned());
        if let Some((engine, launch)) = container.server(begins)? {
            let launch = launch.moved_to(&container.place.unwrap_or_default());
            let replicas = Replicas::read(entries.iter().find(|entry| entry.key() == "replicas"));
            let name = word_of(document, "name:").unwrap_or_default();
            let (label, role) = (label(&entries, document), role(&entries));
            return Ok(Some(Started { label, role, n_pods, ..Started::plain(name, replicas, engine, launch) }));
        }
    }
    Ok(None)
}

/// What LeaderWorkerSet tells the first pod of a group (`leaderworkerset.x-k8s.io`: environment of its pods).
pub(super) fn of_group(size: u64) -> Variables {
    [("LWS_GROUP_SIZE", size), ("LWS_WORKER_INDEX", 0)].map(|(name, value)| (name.to_owned(), value.to_string())).into()
}

/// What nodes say of their GPU: a node selector, or an affinity with one value.
fn label(entries: &[Entry], document: &str) -> Option<String> {
    let of_affinity = || {
        let at = entries.iter().position(|entry| entry.key() == "key" && entry.value == LABEL)?;
        let values = entries[at..].iter().skip_while(|entry| entry.key() != "values");
        values.flat_map(yaml::listed).next()
    };
    word_of(document, &format!("{LABEL}:")).or_else(of_affinity)
}

/// Labels by which charts and our own manifests say what a pod does of a request.
const ROLES: [&str; 3] = ["llm-d.ai/role", "role", "app.kubernetes.io/component"];

/// Whether a pod reads prompts or generates, by its label.
fn role(entries: &[Entry]) -> Option<&'static str> {
    let of_label = |entry: &Entry| {
        let pairs = yaml::in_braces(&entry.value);
        let mut own = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let is_role = |(key, _): &(&str, &str)| ROLES.contains(key);
        own.find(is_role).or(Some((entry.key(), entry.value.as_str())).filter(is_role)).map(|(_, value)| value.to_owned())
    };
    let labels = entries.iter().filter(|entry| entry.path.iter().any(|key| key == "labels"));
    labels.filter_map(of_label).find_map(|value| ["prefill", "decode"].into_iter().find(|role| *role == value))
}

/// Keys of a container that are read.
const KEYS: [&str; 4] = ["args", "command", "env", "image"];

/// Containers of a document, in order: items of a list have the same keys before them, and begin behind a dash.
pub(super) fn containers(entries: &[Entry], document: &str) -> Vec<Container> {
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

/// Whether a word tells a shell to run the next one: `-c`, `-lc`, `-ec`.
fn runs_text(word: &str) -> bool {
    let letters = word.strip_prefix('-');
    letters.is_some_and(|letters| letters.contains('c') && letters.chars().all(|letter| "celxu".contains(letter)))
}

/// A container of a manifest: its image, words of its command and of its arguments, and where they stand.
#[derive(Default)]
pub(super) struct Container {
    image: String,
    pub(super) command: Vec<String>,
    pub(super) args: Vec<String>,
    pub(super) variables: Variables,
    pub(super) place: Option<Range<usize>>,
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
    pub(super) fn server(&self, begins: &[Begins]) -> Result<Option<(usize, Launch)>, Finding> {
        let words = self.command.iter().chain(&self.args);
        let words: Vec<String> = words.map(|word| filled(word, &self.variables)).collect();
        let is_shell = words.first().is_some_and(|word| word.ends_with("sh"));
        let of_shell = words.windows(2).find(|pair| runs_text(&pair[0]) && (is_shell || pair[1].contains([' ', '\n'])));
        let of_shell = of_shell.map(|pair| &pair[1]);
        let mut text: String = words.iter().map(|word| quoted(word) + " ").collect();
        if self.command.is_empty() {
            text.insert_str(0, &self.run());
        }
        let script = assigned(&self.variables) + of_shell.unwrap_or(&text);
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
