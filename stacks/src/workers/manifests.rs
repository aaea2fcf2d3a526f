//! Manifests of Kubernetes: documents of a file, their containers, and the server that one of them starts.

use input::diagnostic::Finding;

use super::containers::{containers, items_of, of_group};
use super::one::Started;
use super::{LABEL, Replicas, kserve, values};
use crate::launch::{self, Begins};
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

/// Servers that the pods of a document start, with how often and where these run.
pub(super) fn started(document: &str, begins: &[Begins]) -> Result<Vec<Started>, Finding> {
    let entries = yaml::entries(document)?;
    let is_kind = |kind: &str| entries.iter().any(|entry| entry.path == ["kind"] && entry.value == kind);
    if is_kind("LLMInferenceService") {
        return values::of_service(&entries, document, begins);
    }
    if is_kind("InferenceService") {
        return kserve::started(&entries, document, begins);
    }
    let roles = items_of(&entries, document, "roles");
    if roles.is_empty() {
        let name = word_of(document, "name:").unwrap_or_default();
        return Pods { entries: &entries, document, name, outer: 1 }.started(begins);
    }
    // Whole sets of roles may be started several times.
    let outer = entries.iter().find(|entry| entry.path == ["spec", "replicas"]);
    let outer = outer.and_then(|entry| entry.value.parse().ok()).unwrap_or(1);
    let mut found = Vec::new();
    for role in roles {
        let name = role.iter().find(|entry| entry.key() == "name").map(|entry| entry.value.clone()).unwrap_or_default();
        found.extend(Pods { entries: &role, document, name, outer }.started(begins)?);
    }
    Ok(found)
}

/// Pods of one kind.
struct Pods<'a> {
    entries: &'a [Entry],
    document: &'a str,
    name: String,
    /// How often all of them are started.
    outer: u64,
}

impl Pods<'_> {
    fn started(self, begins: &[Begins]) -> Result<Vec<Started>, Finding> {
        let Self { entries, document, name, outer } = self;
        let is_size = |entry: &&Entry| entry.path.ends_with(&["leaderWorkerTemplate".to_owned(), "size".to_owned()]);
        let size = entries.iter().find(is_size);
        let n_pods = size.and_then(|entry| entry.value.parse().ok()).filter(|n: &u64| *n > 0);
        let of_group = size.map(|_| of_group(n_pods.unwrap_or(1))).unwrap_or_default();
        let (label, role) = (label(entries, document), role(entries, &name));
        let mut found: Vec<Started> = Vec::new();
        for mut container in containers(entries, document) {
            container.variables.extend(of_group.iter().cloned());
            let Some((engine, launch)) = container.server(begins)? else { continue };
            let launch = launch.moved_to(&container.place.unwrap_or_default());
            let replicas = Replicas::read(entries.iter().find(|entry| entry.key() == "replicas")).times(outer);
            let again = if found.is_empty() { String::new() } else { format!("-{}", found.len() + 1) };
            let one = Started::plain(format!("{name}{again}"), replicas, engine, launch);
            found.push(Started { label: label.clone(), role, n_pods, ..one });
            // A group of pods starts the same server on each: the first says all.
            if size.is_some() {
                break;
            }
        }
        Ok(found)
    }
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

/// Whether a pod reads prompts or generates, by the name of its role or by its label.
fn role(entries: &[Entry], name: &str) -> Option<&'static str> {
    let of_label = |entry: &Entry| {
        let pairs = yaml::in_braces(&entry.value);
        let mut own = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let is_role = |(key, _): &(&str, &str)| ROLES.contains(key);
        own.find(is_role)
            .or(Some((entry.key(), entry.value.as_str())).filter(is_role))
            .map(|(_, value)| value.to_owned())
    };
    let labels = entries.iter().filter(|entry| entry.path.iter().any(|key| key == "labels"));
    let known = |value: &str| ["prefill", "decode"].into_iter().find(|role| *role == value);
    labels.filter_map(of_label).find_map(|value| known(&value)).or_else(|| known(name))
}
