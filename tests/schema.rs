//! The schema of scenario files: it takes every shipped one, refuses what is wrong by shape, and never refuses what a reader takes.

mod validator;

use std::collections::BTreeSet;
use std::path::Path;

use input::diagnostic::{Code, Severity};
use scenario::EMBEDDED;
use serde_json::{Value, json};
use skrull_sim::commands::keys;
use skrull_sim::kinds;

/// What a schema can see: types, ranges, words, keys and sections.
const SHAPE: [Code; 5] = [Code::NotASection, Code::WrongType, Code::OutOfRange, Code::UnknownWord, Code::UnknownKey];

/// Files of `scenarios/bad` whose fault of such a code is between keys, or in a list or table that a reader looks into: only the reader sees it.
const BETWEEN_KEYS: [&str; 4] = ["deployment-lists", "mixed-training-elsewhere", "serving-lending", "unfused-kernels"];

fn schema() -> Value {
    keys().schema(None, kinds::KINDS[0].name)
}

fn json_of(text: &str) -> Option<Value> {
    toml::from_str::<Value>(text).ok()
}

#[test]
fn every_shipped_scenario_validates() {
    let schema = schema();
    for (name, text) in EMBEDDED {
        let scenario = json_of(text).expect("TOML");
        assert_eq!(validator::faults(&schema, &scenario), Vec::<String>::new(), "{name}");
        let own = keys().schema(Some(kinds::word(text)), kinds::KINDS[0].name);
        assert_eq!(validator::faults(&own, &scenario), Vec::<String>::new(), "{name} by the schema of its kind");
    }
}

/// Codes of the errors of a reader.
fn codes(path: &Path) -> BTreeSet<Code> {
    let errors = super::check(path).findings.into_iter().filter(|finding| finding.severity == Severity::Error);
    errors.map(|finding| finding.code).collect()
}

#[test]
fn what_is_wrong_by_shape_does_not_validate() {
    let schema = schema();
    let (mut missed, mut n_refused) = (Vec::new(), 0);
    for path in super::files(&super::root().join("scenarios/bad"), "toml") {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let Some(scenario) = json_of(&std::fs::read_to_string(&path).expect("text")) else { continue };
        let codes = codes(&path);
        let is_refused = !validator::faults(&schema, &scenario).is_empty();
        n_refused += usize::from(is_refused);
        assert!(!is_refused || !codes.is_empty(), "{name}: the reader takes what the schema refuses");
        if codes.iter().any(|code| SHAPE.contains(code)) && !is_refused {
            missed.push(name);
        }
    }
    assert_eq!(missed, BETWEEN_KEYS);
    assert!(n_refused >= 20, "{n_refused} files are refused");
}

/// Values that most keys cannot have.
fn strangers() -> [Value; 6] {
    [json!("no such word"), json!(-1), json!(1e300), json!(true), json!({ "no_such_key": 1 }), json!([[]])]
}

/// Paths of values: keys of tables, and the first item of lists.
fn paths(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(table) => table.iter().for_each(|(key, below)| {
            let path = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
            found.push(path.clone());
            paths(below, &path, found);
        }),
        Value::Array(items) => items.iter().take(1).for_each(|item| paths(item, &format!("{at}/0"), found)),
        _ => {}
    }
}

/// Whether a reader finds an error.
fn is_wrong(scenario: &Value) -> bool {
    // TOML has no null, and what cannot be written cannot be read.
    let Ok(text) = toml::to_string(scenario) else { return true };
    super::written(text, &[]).scenario.is_none()
}

#[test]
fn the_schema_refuses_nothing_that_a_reader_takes() {
    let schema = schema();
    let (mut n_changed, mut wrong) = (0, Vec::new());
    for (index, (name, text)) in EMBEDDED.iter().enumerate() {
        let scenario = json_of(text).expect("TOML");
        if is_wrong(&scenario) {
            continue;
        }
        let mut all = Vec::new();
        paths(&scenario, "", &mut all);
        // Every seventh change, begun elsewhere in every file, keeps the test short.
        let changes = all.iter().flat_map(|path| strangers().map(|value| (path, value)));
        for (path, value) in changes.skip(index % 7).step_by(7) {
            let mut changed = scenario.clone();
            *changed.pointer_mut(path).expect("a path of it") = value.clone();
            n_changed += 1;
            if !validator::faults(&schema, &changed).is_empty() && !is_wrong(&changed) {
                wrong.push(format!("{name}: {path} = {value}"));
            }
        }
    }
    assert!(n_changed > 1000, "{n_changed} changes");
    assert_eq!(wrong, Vec::<String>::new());
}

/// Lengths of requests are a number, or two ends.
#[test]
fn a_key_of_two_forms_may_have_either() {
    let schema = schema();
    let path = "/trace/prompt_tokens";
    let mut scenarios = EMBEDDED.iter().filter_map(|(_, text)| json_of(text));
    let mut scenario =
        scenarios.find(|scenario| scenario.pointer(path).is_some() && !is_wrong(scenario)).expect("one has it");
    for (tokens, is_taken) in [("100", true), ("[1, 1000]", true), ("[1]", false), ("\"many\"", false)] {
        *scenario.pointer_mut(path).expect("it has it") = serde_json::from_str(tokens).expect("JSON");
        let faults = validator::faults(&schema, &scenario);
        assert_eq!(faults.is_empty(), is_taken, "{tokens}: {faults:?}");
        assert_eq!(is_wrong(&scenario), !is_taken, "{tokens}");
    }
}
