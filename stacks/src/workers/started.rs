//! Commands of a file that start servers, whatever form it has: a script, a file of Compose, manifests of Kubernetes, values of a chart.

use std::ops::Range;

use input::diagnostic::Finding;

use super::manifests::{self, documents};
use super::one::Started;
use super::{Replicas, charts, compose, skypilot, values};
use crate::Machine;
use crate::flags::Flag;
use crate::launch::{self, Begins, Launch};

/// Options that say which part of a server over several nodes a command starts; the first part has none of them, or 0.
///
/// vLLM (`vllm/engine/arg_utils.py`) and SGLang (`srt/arg_groups`): every part is told the degrees of all of them.
const PARTS: [&str; 6] = ["node-rank", "r", "data-parallel-start-rank", "dpr", "data-parallel-rank", "dpn"];

/// Whether a command starts a further part of a server over several nodes. A position that only a shell knows may be the first.
fn is_follower(launch: &Launch) -> bool {
    launch.flags.iter().any(|flag| flag.name == "headless" || is_further(flag))
}

/// Whether a flag says a part that is not the first.
fn is_further(flag: &Flag) -> bool {
    PARTS.contains(&flag.name.as_str()) && flag.value().parse().is_ok_and(|n: u64| n > 0)
}

/// What a command serves: the words of the program, and the model by its flag.
fn served(started: &Started) -> (usize, &[String], Option<String>) {
    let model = started.launch.flags.iter().find(|flag| ["model", "model-path"].contains(&flag.name.as_str()));
    (started.engine, &started.launch.program, model.map(Flag::value))
}

/// Leaves out further parts of servers whose first part stands in the file too: it says the degrees of all.
pub(super) fn leave_out_followers(started: &mut Vec<Started>) {
    let (heads, followers): (Vec<Started>, Vec<Started>) =
        std::mem::take(started).into_iter().partition(|one| !is_follower(&one.launch));
    let mut alone: Vec<Started> = Vec::new();
    for follower in followers {
        // Without its first part in the file, one of the parts stands for the server.
        if !heads.iter().chain(&alone).any(|other| served(other) == served(&follower)) {
            alone.push(follower);
        }
    }
    *started = heads;
    started.append(&mut alone);
}

/// Whether a file is of manifests of Kubernetes, in YAML or in JSON.
pub(super) fn is_of_manifests(text: &str) -> bool {
    let is_json = || text.trim_start().starts_with('{') && text.contains("\"apiVersion\"");
    launch::lines(text).any(|line| line.starts_with("apiVersion:")) || is_json()
}

/// Whether a file is a YAML with containers in a form that is known.
pub(super) fn is_of_containers(text: &str) -> bool {
    is_of_manifests(text) || values::is_one(text) || charts::is_one(text) || compose::entries(text).is_some()
}

/// Whether a file is a script, and no YAML.
pub(super) fn is_script(text: &str) -> bool {
    !is_of_containers(text) && !skypilot::is_one(text)
}

/// Servers of a file that begin so.
pub(super) fn of(text: &str, begins: &[Begins], machine: &Machine) -> Result<Vec<Started>, Finding> {
    if let Some(entries) = compose::entries(text) {
        let services = compose::services(&entries, begins)?.into_iter();
        return Ok(services
            .map(|(name, replicas, engine, launch)| Started::plain(name, replicas, engine, launch))
            .collect());
    }
    if values::is_one(text) {
        return values::started(text, begins, machine);
    }
    if charts::is_one(text) {
        return charts::started(text, begins);
    }
    if skypilot::is_one(text) {
        return skypilot::started(text, begins);
    }
    if is_of_manifests(text) { of_manifests(text, begins) } else { of_script(text, begins) }
}

fn of_script(text: &str, begins: &[Begins]) -> Result<Vec<Started>, Finding> {
    let all = launch::all_of_script(text, begins)?;
    let heads = Some(heads(text)).filter(|heads| heads.len() == all.len());
    let started = all.into_iter().enumerate().map(|(index, (engine, launch))| {
        let head = heads.as_ref().map(|heads| heads[index].clone());
        let (name, replicas) = head.unwrap_or_else(|| (format!("server-{}", index + 1), 1));
        Started::plain(name, Replicas::of(replicas), engine, launch)
    });
    Ok(started.collect())
}

fn of_manifests(text: &str, begins: &[Begins]) -> Result<Vec<Started>, Finding> {
    let mut found: Vec<Started> = Vec::new();
    let mut start = 0;
    for document in documents(text) {
        for mut started in manifests::started(document, begins)? {
            started.launch.flags.iter_mut().for_each(|flag| move_by(&mut flag.at, start));
            let places = started.launch.findings.iter_mut().filter_map(|finding| finding.at.as_mut());
            places.for_each(|at| move_by(at, start));
            started.replicas = started.replicas.moved_by(start);
            if started.name.is_empty() {
                started.name = format!("server-{}", found.len() + 1);
            }
            found.push(started);
        }
        start += document.len();
    }
    Ok(found)
}

/// A place in a document that begins so far behind.
pub(super) fn move_by(at: &mut Range<usize>, start: usize) {
    *at = at.start + start..at.end + start;
}

/// Groups that remarks of an export name: `# read: 3 × 2 GPUs of type h200-sxm`.
fn heads(text: &str) -> Vec<(String, u64)> {
    let head = |line: &str| {
        let (name, rest) = line.strip_prefix("# ")?.split_once(": ")?;
        let (n, what) = rest.split_once(" × ")?;
        what.contains(" GPUs of type ").then_some((name.to_owned(), n.parse().ok().filter(|n| *n > 0)?))
    };
    text.lines().filter_map(head).collect()
}
