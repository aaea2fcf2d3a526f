//! House rules: crate graph, lengths, headers, table = directory, a snapshot per bad scenario.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

const FILE_LINES_MAX: usize = 590;
const FUNCTION_LINES_MAX: usize = 70;
/// Functions that are longer today; this list may only shrink.
const LONGER_TODAY: [&str; 0] = [];

fn sources() -> Vec<(PathBuf, String)> {
    let paths = [super::sources(), super::files(&super::root().join("tests"), "rs")].concat().into_iter();
    paths
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a source");
            (path, text)
        })
        .collect()
}

/// What the scenarios may know.
const BELOW_SCENARIO: [&str; 12] = [
    "hw",
    "input",
    "engine",
    "train",
    "serve",
    "curriculum",
    "graph",
    "planner",
    "rl",
    "calibrate",
    "score",
    "reports",
];

#[test]
fn crates_depend_only_downwards() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(super::root())
        .output()
        .expect("cargo runs");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON of cargo");
    let above_scenario = [&BELOW_SCENARIO[..], &["packed", "stacks", "sweep", "scenario"]].concat();
    let below: BTreeMap<&str, &[&str]> = [
        ("hw", &[][..]),
        ("packed", &[][..]),
        ("input", &["packed"][..]),
        ("engine", &["hw"][..]),
        ("train", &["hw", "engine"][..]),
        ("serve", &["hw", "engine"][..]),
        ("curriculum", &["hw", "engine", "serve"][..]),
        ("rl", &["hw", "engine", "train", "serve"][..]),
        ("graph", &["hw", "packed", "engine"][..]),
        ("planner", &["hw", "engine", "train", "serve", "curriculum", "graph", "rl"][..]),
        ("calibrate", &["hw", "packed", "engine", "graph"][..]),
        ("score", &["hw", "packed", "engine", "train", "serve", "rl"][..]),
        ("stacks", &["hw", "packed", "input", "engine", "train", "serve"][..]),
        ("sweep", &["hw", "input", "engine", "reports"][..]),
        ("reports", &["hw", "packed", "engine"][..]),
        ("scenario", &BELOW_SCENARIO[..]),
        ("skrull-sim", &above_scenario[..]),
    ]
    .into();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let dependency = dependency["name"].as_str().expect("a name");
            if below.contains_key(dependency) {
                assert!(below[name].contains(&dependency), "`{name}` must not know `{dependency}`");
            }
        }
    }
}

#[test]
fn files_are_short_and_say_what_they_are() {
    for (path, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= FILE_LINES_MAX, "{}: {lines} lines", path.display());
        assert!(text.starts_with("//!"), "{}: no header", path.display());
        let todo = ["TO", "DO"].concat();
        assert!(!text.contains(&todo), "{}: unfinished work belongs into an issue", path.display());
    }
}

#[test]
fn functions_are_short() {
    for (path, text) in sources() {
        let lines: Vec<&str> = text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let trimmed = line.trim_start();
            let opens = ["fn ", "pub fn ", "pub(crate) fn ", "pub(super) fn ", "const fn ", "pub const fn "];
            if !opens.iter().any(|open| trimmed.starts_with(open)) {
                continue;
            }
            let close = format!("{}}}", " ".repeat(line.len() - trimmed.len()));
            let length = lines[start..].iter().position(|line| **line == close).unwrap_or(0) + 1;
            let name = trimmed.split('(').next().unwrap_or_default();
            let tolerated = LONGER_TODAY.iter().any(|longer| name.ends_with(longer));
            assert!(
                length <= FUNCTION_LINES_MAX || tolerated,
                "{}:{}: `{name}` has {length} lines",
                path.display(),
                start + 1
            );
        }
    }
}

#[test]
fn every_policy_file_is_in_the_table() {
    let folder = super::root().join("planner/src/train/policies");
    // Parts of a policy lie in a folder of its name.
    let files: BTreeSet<String> = super::files(&folder, "rs")
        .iter()
        .filter(|path| path.parent() == Some(folder.as_path()))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .filter(|name| name != "tests")
        .collect();
    let table: BTreeSet<String> =
        planner::train::policies::POLICIES.iter().map(|policy| policy.card().name.replace('-', "_")).collect();
    assert_eq!(files, table);
}

#[test]
fn every_schedule_has_a_file_and_every_file_is_in_the_table() {
    // What several schedules share, and the player and tests of all.
    let shared = ["greedy", "play", "tests", "v_shape", "zero_bubble"];
    let folder = super::root().join("sim/train/src/schedule");
    let files: BTreeSet<String> = super::files(&folder, "rs")
        .iter()
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .filter(|name| !shared.contains(&name.as_str()))
        .collect();
    let file_of = |name: &str| if name == "1f1b" { "one_f_one_b".to_owned() } else { name.replace('-', "_") };
    let table: BTreeSet<String> = train::schedule::SCHEDULES.iter().map(|schedule| file_of(schedule.name)).collect();
    assert_eq!(files, table);
}

/// The snapshot of a scenario after `--fix`.
const MENDED: &str = "no-effect-mended";

#[test]
fn every_bad_scenario_has_a_snapshot_and_every_good_one_is_shipped() {
    for path in super::files(&super::root().join("scenarios"), "toml") {
        let relative = path.strip_prefix(super::root().join("scenarios")).expect("below").with_extension("");
        let name = relative.to_string_lossy().into_owned();
        match name.strip_prefix("bad/") {
            Some(name) => {
                assert!(super::root().join(format!("tests/snapshots/{name}.snap")).is_file(), "no snapshot of {name}")
            }
            None => {
                assert!(scenario::EMBEDDED.iter().any(|(known, _)| *known == name), "{name} is not shipped")
            }
        }
    }
    for path in super::files(&super::root().join("tests/snapshots"), "snap") {
        let name = path.file_stem().expect("a name").to_string_lossy();
        let scenario = super::root().join(format!("scenarios/bad/{name}.toml"));
        assert!(scenario.is_file() || name == MENDED, "{name}.snap has no scenario");
    }
}

/// Sources that a line names, one by one or several of a folder in braces. Angle brackets stand for any name.
fn named_sources(line: &str) -> Vec<String> {
    let words = line.split('`').skip(1).step_by(2).filter(|word| word.ends_with(".rs") && !word.contains(['<', ' ']));
    words.flat_map(spread).collect()
}

/// Every name of one with braces.
fn spread(name: &str) -> Vec<String> {
    let Some((before, rest)) = name.split_once('{') else { return vec![name.to_owned()] };
    let (inside, after) = rest.split_once('}').unwrap_or((rest, ""));
    inside.split(',').map(|part| format!("{before}{}{after}", part.trim())).collect()
}

#[test]
fn sources_that_comments_name_are_there() {
    let root = super::root();
    let others = ["tests", "benches", "examples"].map(|folder| super::files(&root.join(folder), "rs"));
    let all = [super::sources(), others.concat()].concat();
    let is_there = |name: &String| all.iter().any(|path| path.ends_with(name));
    let mut unknown = Vec::new();
    let scenarios = super::files(&root.join("scenarios"), "toml");
    for path in all.iter().chain(&scenarios).chain(&[root.join("ARCHITECTURE.md")]) {
        let mark = match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => "//",
            Some("toml") => "#",
            _ => "",
        };
        let text = std::fs::read_to_string(path).expect("a source");
        let comments = text.lines().filter(|line| line.trim_start().starts_with(mark));
        let wrong = comments.flat_map(named_sources).filter(|name| !is_there(name));
        unknown.extend(wrong.map(|name| format!("{}: `{name}`", path.display())));
    }
    assert!(unknown.is_empty(), "sources that are not there: {unknown:#?}");
    assert_eq!(
        named_sources("of `a/{b,c}.rs` and `d.rs`, not `e` or `kinds/<kind>/run.rs`"),
        ["a/b.rs", "a/c.rs", "d.rs"]
    );
}

/// Whether a source plays events: it takes the earliest from a queue, and knows moments.
fn has_event_loop(text: &str) -> bool {
    let code = super::product::product(text);
    let lines = || code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let has = |words: &[&str]| lines().any(|line| words.iter().any(|word| line.contains(word)));
    // A heap of the standard library gives the latest first, so one of moments holds them reversed.
    let has_queue = has(&["BinaryHeap<Reverse<", "push(Reverse(", "queue::Queue"]);
    has_queue && has(&["Tick", "Time", "Span", "Event"])
}

/// Functions whose last digits differ between platforms in the standard library; those of `libm` do not.
const OF_PLATFORMS: [&str; 16] = [
    ".ln()",
    ".ln_1p()",
    ".exp()",
    ".exp2()",
    ".exp_m1()",
    ".log(",
    ".log2()",
    ".log10()",
    ".powf(",
    ".cbrt()",
    ".sin()",
    ".cos()",
    ".tan()",
    ".tanh()",
    "f64::ln)",
    "f64::exp)",
];

#[test]
fn predictions_are_the_same_on_every_platform() {
    for path in
        ["hw", "sim", "planner", "scenario"].iter().flat_map(|folder| super::files(&super::root().join(folder), "rs"))
    {
        let is_test =
            path.components().any(|part| ["tests", "tests.rs", "benches"].iter().any(|name| part.as_os_str() == *name));
        let text = std::fs::read_to_string(&path).expect("a source");
        let code = if is_test { String::new() } else { super::product::product(&text) };
        for (line, word) in code.lines().flat_map(|line| OF_PLATFORMS.map(|word| (line, word))) {
            assert!(
                !line.contains(word),
                "{}: `{word}` is another number elsewhere, take `libm`: {line}",
                path.display()
            );
        }
    }
}

#[test]
fn planners_have_no_event_loop() {
    // Those that there are, so that the test would see one.
    for path in ["sim/serve/src/fleet/run/stations.rs", "sim/serve/src/fleet/held.rs", "sim/engine/src/play/run.rs"] {
        let text = std::fs::read_to_string(super::root().join(path)).expect("a source");
        assert!(has_event_loop(&text), "{path} plays events");
    }
    for path in super::files(&super::root().join("planner/src"), "rs") {
        let text = std::fs::read_to_string(&path).expect("a source");
        assert!(!has_event_loop(&text), "{}: planners ask the simulators, and play nothing", path.display());
    }
}
