//! Manifests of Kubernetes: documents of a file, their containers, and the server that one of them starts.

use input::diagnostic::Finding;

use super::containers::{containers, items_of, of_group};
use super::one::Started;
use super::{Replicas, kserve, values};
use crate::launch::Begins;
use crate::plugins::{self, PLUGINS};
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

/// The value of the first key of such a name.
fn word_of(entries: &[Entry], key: &str) -> Option<String> {
    entries.iter().find(|entry| entry.key() == key && !entry.value.is_empty()).map(|entry| entry.value.clone())
}

/// Servers that the pods of a document start, with how often and where these run.
pub(super) fn started(document: &str, begins: &[Begins]) -> Result<Vec<Started>, Finding> {
    let entries = yaml::unfolded(document)?;
    let items = if of_kind(&entries, "List") { items_of(&entries, "items") } else { Vec::new() };
    if items.is_empty() {
        return of_object(&entries, begins);
    }
    let mut found = Vec::new();
    for item in items {
        // Keys of the list stand before those of an object.
        let own: Vec<Entry> = item.into_iter().map(|entry| Entry { path: entry.path[2..].to_vec(), ..entry }).collect();
        found.extend(of_object(&own, begins)?);
    }
    Ok(found)
}

/// Whether an object is of such a kind.
fn of_kind(entries: &[Entry], kind: &str) -> bool {
    entries.iter().any(|entry| entry.path == ["kind"] && entry.value == kind)
}

/// Servers of one object.
fn of_object(entries: &[Entry], begins: &[Begins]) -> Result<Vec<Started>, Finding> {
    if of_kind(entries, "LLMInferenceService") {
        return values::of_service(entries, begins);
    }
    if of_kind(entries, "InferenceService") {
        return kserve::started(entries, begins);
    }
    let roles = items_of(entries, "roles");
    if roles.is_empty() {
        let own = entries.iter().find(|entry| entry.path == ["metadata", "name"] && !entry.value.is_empty());
        let name = own.map(|entry| entry.value.clone()).or_else(|| word_of(entries, "name"));
        return Pods { entries, name: name.unwrap_or_default(), outer: 1 }.started(begins);
    }
    // Whole sets of roles may be started several times.
    let outer = entries.iter().find(|entry| entry.path == ["spec", "replicas"]);
    let outer = outer.and_then(|entry| entry.value.parse().ok()).unwrap_or(1);
    let mut found = Vec::new();
    for role in roles {
        let name = role.iter().find(|entry| entry.key() == "name").map(|entry| entry.value.clone()).unwrap_or_default();
        found.extend(Pods { entries: &role, name, outer }.started(begins)?);
    }
    Ok(found)
}

/// Pods of one kind.
struct Pods<'a> {
    entries: &'a [Entry],
    name: String,
    /// How often all of them are started.
    outer: u64,
}

impl Pods<'_> {
    fn started(self, begins: &[Begins]) -> Result<Vec<Started>, Finding> {
        let Self { entries, name, outer } = self;
        let is_size = |entry: &&Entry| entry.path.ends_with(&["leaderWorkerTemplate".to_owned(), "size".to_owned()]);
        let size = entries.iter().find(is_size);
        let n_pods = size.and_then(|entry| entry.value.parse().ok()).filter(|n: &u64| *n > 0);
        let of_group = size.map(|_| of_group(n_pods.unwrap_or(1))).unwrap_or_default();
        let (label, role) = (label(entries), role(entries, &name));
        let mut found: Vec<Started> = Vec::new();
        for mut container in containers(entries) {
            container.variables.extend(of_group.iter().cloned());
            let Some((engine, launch)) = container.server(begins)? else { continue };
            let launch = launch.moved_to(&container.place.unwrap_or_default());
            let replicas = Replicas::read(entries.iter().find(|entry| entry.key() == "replicas")).times(outer);
            let again = if found.is_empty() { String::new() } else { format!("-{}", found.len() + 1) };
            let one = Started::plain(format!("{name}{again}"), replicas, engine, launch);
            found.push(Started { label: label.clone(), role, n_pods, gpus_of_pod: container.n_gpus, ..one });
            // A group of pods starts the same server on each: the first says all.
            if size.is_some() {
                break;
            }
        }
        Ok(found)
    }
}

/// What nodes say of their GPU: a node selector, or an affinity with one value.
fn label(entries: &[Entry]) -> Option<String> {
    let of_affinity = || {
        let at = entries.iter().position(|entry| entry.key() == "key" && plugins::is_label(&entry.value))?;
        let values = entries[at..].iter().skip_while(|entry| entry.key() != "values");
        values.flat_map(yaml::listed).next()
    };
    PLUGINS.iter().find_map(|plugin| word_of(entries, plugin.label)).or_else(of_affinity)
}

/// Labels by which charts and our own manifests say what a pod does of a request.
const ROLES: [&str; 3] = ["llm-d.ai/role", "role", "app.kubernetes.io/component"];

/// Whether a pod reads prompts or generates, by the name of its role or by its label.
fn role(entries: &[Entry], name: &str) -> Option<&'static str> {
    let is_label = |entry: &&Entry| ROLES.contains(&entry.key()) && entry.path.iter().any(|key| key == "labels");
    let labels = entries.iter().filter(is_label);
    let known = |value: &str| ["prefill", "decode"].into_iter().find(|role| *role == value);
    labels.map(|entry| entry.value.as_str()).find_map(known).or_else(|| known(name))
}
