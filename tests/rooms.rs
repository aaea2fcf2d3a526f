//! Rooms: files and folders beside each other do not know each other in a circle. Read off the `use` lines and paths of every crate; its tests may
//! know everything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Folders with the sources of a crate.
const CRATES: [&str; 18] = [
    "hw/src",
    "packed/src",
    "input/src",
    "sim/engine/src",
    "sim/train/src",
    "sim/serve/src",
    "sim/curriculum/src",
    "sim/rl/src",
    "sim/graph/src",
    "planner/src",
    "calibrate/src",
    "score/src",
    "stacks/src",
    "sweep/src",
    "reports/src",
    "scenario/src",
    "src",
    "python/src",
];

type Words = Vec<String>;

/// A module: where it is, and the paths that it writes, with the names that they are known by where it re-exports them.
struct Module {
    paths: Vec<Words>,
    names: BTreeMap<String, Words>,
}

/// The code of a file without its tests and comments.
fn code(text: &str) -> String {
    let code = super::product::product(text);
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Module path of a file below the sources of its crate; that of the crate itself is empty.
fn module_of(relative: &Path) -> Words {
    let mut path: Words = relative.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if path.last().is_some_and(|last| last == "lib" || last == "main") {
        path.pop();
    }
    path
}

/// Every path of a tree of braces: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expanded(tree: &str) -> Vec<String> {
    let Some(open) = tree.find('{') else { return vec![tree.trim().to_owned()] };
    let (before, inside) = (&tree[..open], &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())]);
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, letter) in inside.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inside[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inside[start..]);
    let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    parts.flat_map(expanded).map(|part| format!("{}{part}", before.trim())).collect()
}

/// A written path from the root of the crate; `None` where it leads out of it.
fn absolute(written: &str, of: &[String]) -> Option<Words> {
    let mut words = written.split("::").map(str::trim).peekable();
    let mut path = match *words.peek()? {
        "crate" => Words::new(),
        "self" | "super" => of.to_vec(),
        _ => return None,
    };
    for word in words {
        match word {
            "crate" | "self" => {}
            "super" => drop(path.pop()),
            name => path.push(name.to_owned()),
        }
    }
    Some(path)
}

/// What a file knows: its `use` lines and the paths in its code.
fn module(text: &str, of: &[String]) -> Module {
    let code = code(text);
    let mut found = Module { paths: Vec::new(), names: BTreeMap::new() };
    for statement in code.split(';') {
        let Some((_, tree)) = statement.rsplit_once("use ").filter(|(before, _)| is_start(before)) else { continue };
        for written in expanded(tree) {
            let (written, name) = written.split_once(" as ").map_or((written.as_str(), None), |(a, b)| (a, Some(b)));
            // A path without a start is of a module below, or of another crate.
            let from_here = format!("self::{written}");
            let name = name.or_else(|| written.rsplit("::").next()).unwrap_or_default().trim().to_owned();
            let path = absolute(written, of).or_else(|| absolute(&from_here, of));
            found.names.extend(path.map(|path| (name, path)));
        }
        found.paths.extend(expanded(tree).iter().filter_map(|written| absolute(written.split(" as ").next()?, of)));
    }
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let end = code[at..].find(|letter: char| !(letter.is_alphanumeric() || matches!(letter, '_' | ':')));
            let written = code[at..at + end.unwrap_or(code.len() - at)].trim_end_matches(':');
            let goes_on = code[..at].ends_with("::");
            found.paths.extend(absolute(written, of).filter(|_| !goes_on));
        }
    }
    found
}

/// Whether a statement begins here: after nothing, an end of a line or a word of visibility.
fn is_start(before: &str) -> bool {
    let before = before.trim_end();
    before.is_empty() || before.ends_with(['}', ']', ')', '{']) || before.ends_with("pub")
}

/// The module that a path is about: re-exports are followed, names that are no module are cut off.
fn target(modules: &BTreeMap<Words, Module>, path: &[String]) -> Words {
    let mut path = path.to_vec();
    for _ in 0..8 {
        let n = (0..=path.len()).rev().find(|&n| modules.contains_key(&path[..n])).unwrap_or(0);
        let name = path.get(n).and_then(|name| modules.get(&path[..n])?.names.get(name));
        match name {
            Some(of) if *of != path[..=n] => path = [of.as_slice(), &path[n + 1..]].concat(),
            _ => return path[..n].to_vec(),
        }
    }
    path
}

/// Rooms of every folder of a crate, and which of them each knows.
fn known(modules: &BTreeMap<Words, Module>) -> BTreeMap<Words, BTreeMap<String, BTreeSet<String>>> {
    let mut known: BTreeMap<Words, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (of, module) in modules {
        for path in &module.paths {
            let to = target(modules, path);
            let n = of.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if n < of.len() && n < to.len() {
                known.entry(of[..n].to_vec()).or_default().entry(of[n].clone()).or_default().insert(to[n].clone());
            }
        }
    }
    known
}

/// Rooms that are reached from one.
fn reached(known: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let (mut all, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(room) = next.pop() {
        for to in known.get(&room).into_iter().flatten() {
            if all.insert(to.clone()) {
                next.push(to.clone());
            }
        }
    }
    all
}

/// Circles of a crate: sets of rooms that all reach each other, with the folder.
fn circles(folder: &str, root: &Path) -> BTreeSet<(String, Vec<String>)> {
    let sources = root.join(folder);
    let mut modules = BTreeMap::new();
    for path in super::files(&sources, "rs") {
        let of = module_of(path.strip_prefix(&sources).expect("below"));
        if !of.iter().any(|part| part == "bin" || part == "tests") {
            modules.insert(of.clone(), module(&std::fs::read_to_string(&path).expect("a source"), &of));
        }
    }
    let mut found = BTreeSet::new();
    for (inside, known) in known(&modules) {
        let at = std::iter::once(folder.to_owned()).chain(inside).collect::<Vec<_>>().join("/");
        for room in known.keys() {
            let reached = reached(&known, room);
            let circle: Vec<String> =
                reached.iter().filter(|other| self::reached(&known, other).contains(room)).cloned().collect();
            if circle.len() > 1 {
                found.insert((at.clone(), circle));
            }
        }
    }
    found
}

#[test]
fn rooms_beside_each_other_do_not_know_each_other_in_a_circle() {
    let found: BTreeSet<(String, Vec<String>)> =
        CRATES.iter().flat_map(|folder| circles(folder, super::root())).collect();
    assert!(found.is_empty(), "rooms that know each other in a circle: {found:#?}");
}
