//! Files that were changed to something hostile are taken or refused in words: no panic, no key that is ignored.

use engine::cost::profile::Profile;
use input::diagnostic::{Code, Severity, Source};
use scenario::training::Scenario;
use scenario::{self, Overrides};
use skrull_sim::hardware;
use skrull_sim::kinds::training::run as pipeline;
use skrull_sim::kinds::{self, Checked};

/// Numbers at the ends of what a file can hold, and values of every other type.
const HOSTILE: [&str; 17] = [
    "0",
    "-1",
    "0.5",
    "1e-300",
    "1e308",
    "-9223372036854775808",
    "9223372036854775807",
    "1e-6",
    "nan",
    "inf",
    "true",
    "\"zz\"",
    "\"\\u202E/../x\\n\"",
    "[]",
    "[[]]",
    "[\"zz\", 1, {}]",
    "{}",
];

/// Changes that one run of the test tries, spread over all scenarios.
const TRIES: usize = 1500;

/// Numbers below `n`, the same in every run of a test.
fn dice(name: &str) -> impl FnMut(usize) -> usize {
    let mut stream = engine::random::stream(0, name);
    move |n| usize::try_from(stream.below(n as u64)).expect("below a length")
}

/// Reads a text as the file of a shipped scenario.
fn read(name: &str, text: String) -> Checked {
    let source = Source { path: name.to_owned(), text };
    kinds::check(source, &super::root().join("scenarios"), &Overrides::default())
}

/// A text without the line, or with another one in its place.
fn without(text: &str, at: usize, instead: Option<&str>) -> String {
    let lines = text.lines().enumerate();
    lines.filter_map(|(index, line)| if index == at { instead } else { Some(line) }).collect::<Vec<&str>>().join("\n")
}

/// A text with a line more, before the one at that place.
fn with(text: &str, at: usize, line: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.insert(at, line);
    lines.join("\n")
}

/// Places of lines that a test takes.
fn places(text: &str, takes: impl Fn(&str) -> bool) -> Vec<usize> {
    text.lines().enumerate().filter(|(_, line)| takes(line)).map(|(at, _)| at).collect()
}

#[test]
fn one_hostile_value_never_panics() {
    let mut draw = dice("hostile");
    let mut wrong = Vec::new();
    for _ in 0..TRIES {
        let (name, text) = scenario::EMBEDDED[draw(scenario::EMBEDDED.len())];
        let (_, line, changed) = hostile_line(text, &mut draw);
        let Ok(checked) = std::panic::catch_unwind(|| read(name, changed)) else {
            wrong.push(format!("{name}: `{line}` panics"));
            continue;
        };
        let n_errors = checked.findings.iter().filter(|finding| finding.severity == ERROR).count();
        if checked.scenario.is_some() != (n_errors == 0) {
            wrong.push(format!("{name}: `{line}` is refused without a word"));
        }
        let nameless = checked.findings.iter().filter(|finding| finding.what.contains("``"));
        wrong.extend(nameless.map(|finding| format!("{name}: `{line}`: {}", finding.what)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const ERROR: Severity = Severity::Error;

/// A key of a TOML text with a hostile value: its place, the new line, the new text.
fn hostile_line(text: &str, draw: &mut impl FnMut(usize) -> usize) -> (usize, String, String) {
    let keys = places(text, |line| !line.starts_with('#') && line.contains(" = "));
    let at = keys[draw(keys.len())];
    let key = text.lines().nth(at).and_then(|line| line.split(" = ").next()).unwrap_or_default();
    let line = format!("{key} = {}", HOSTILE[draw(HOSTILE.len())]);
    let changed = without(text, at, Some(&line));
    (at, line, changed)
}

#[test]
fn a_key_more_is_found_in_every_section_of_every_scenario() {
    let mut wrong = Vec::new();
    for (name, text) in scenario::EMBEDDED {
        // Policies have parameters and expectations have names of their own, with findings of their own.
        let heads = places(text, |line| line.starts_with('[') && !line.starts_with("[expect"));
        for at in heads.into_iter().map(|at| at + 1).chain([0]) {
            let checked = read(name, with(text, at, "no_such_key = 1"));
            let codes = [Code::UnknownKey, Code::UnknownParameter, Code::WrongUnits];
            let is_found = checked.findings.iter().any(|finding| codes.contains(&finding.code));
            if !is_found || checked.scenario.is_some() {
                wrong.push(format!("{name}, line {}: a key that nobody reads is taken", at + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_scenario_that_is_cut_off_or_lacks_a_line_never_panics() {
    let mut draw = dice("cut");
    for _ in 0..TRIES {
        let (name, text) = scenario::EMBEDDED[draw(scenario::EMBEDDED.len())];
        let at = draw(text.lines().count());
        let changed = match draw(2) {
            0 => without(text, at, None),
            _ => text.chars().take(draw(text.chars().count())).collect(),
        };
        let checked = std::panic::catch_unwind(|| read(name, changed));
        let checked = checked.unwrap_or_else(|_| panic!("{name}: line {at} left out or all after it cut"));
        let has_error = checked.findings.iter().any(|finding| finding.severity == ERROR);
        assert!(checked.scenario.is_some() != has_error, "{name}: refused without a word");
    }
}

#[test]
fn a_changed_profile_is_refused_in_words_or_answers() {
    let mut draw = dice("profiles");
    let names: Vec<&str> = calibrate::profiles::names().into_iter().collect();
    let scenario = read("small", scenario::shipped("quickstart").expect("shipped").replace("= 256", "= 8"));
    let scenario = super::training(scenario);
    for _ in 0..150 {
        let text = calibrate::profiles::embedded(names[draw(names.len())]).expect("listed");
        let (_, line, changed) = hostile_line(text, &mut draw);
        let cut: String = text.chars().take(draw(text.chars().count())).collect();
        let key_more = with(text, draw(text.lines().count()), "no_such_key = 1");
        assert!(Profile::parse(&key_more).is_err(), "a key that nobody reads is taken");
        for text in [changed, cut] {
            let Ok(profile) = Profile::parse(&text) else { continue };
            let scenario = Scenario { profile: Some(profile), ..scenario.clone() };
            let ran = std::panic::catch_unwind(|| pipeline::run(&scenario, &|_| {}).result);
            assert!(ran.is_ok(), "`{line}` of a profile panics");
        }
    }
}

/// Values of JSON in the place of others.
const HOSTILE_JSON: [&str; 12] =
    ["0", "-1", "2", "0.5", "1e308", "18446744073709551615", "true", "\"zz\"", "\"\"", "[]", "{}", "null"];

/// A JSON text with a hostile value, with a key more, or cut off.
fn hostile_json(text: &str, draw: &mut impl FnMut(usize) -> usize) -> String {
    let scalars = places(text, |line| line.contains("\": ") && !line.ends_with(['{', '[']));
    let at = scalars[draw(scalars.len())];
    let line = text.lines().nth(at).unwrap_or_default();
    let key = line.split("\": ").next().unwrap_or_default();
    let end = if line.ends_with(',') { "," } else { "" };
    match draw(4) {
        0 => text.chars().take(draw(text.chars().count())).collect(),
        1 => without(text, at, None),
        _ => without(text, at, Some(&format!("{key}\": {}{end}", HOSTILE_JSON[draw(HOSTILE_JSON.len())]))),
    }
}

#[test]
fn a_changed_plan_is_refused_in_words_or_laid_out() {
    let mut draw = dice("plans");
    let checked = read("validate/cpu-small", scenario::shipped("validate/cpu-small").expect("shipped").to_owned());
    let scenario = super::training(checked);
    let cost = scenario.costs();
    let planned = hardware::plans(&scenario, cost.as_ref()).remove(0).1.unwrap_or_else(|why| panic!("{why}"));
    let text = serde_json::to_string_pretty(&planned.decision.plan).expect("a plan has a JSON form");
    assert!(serde_json::from_str::<train::Plan>(&text.replacen('{', "{\"no_such_key\": 1,", 1)).is_err());
    for _ in 0..300 {
        let changed = hostile_json(&text, &mut draw);
        let Ok(plan) = serde_json::from_str::<train::Plan>(&changed) else { continue };
        let ran = std::panic::catch_unwind(|| hardware::of_file(&scenario, plan).err());
        let why = ran.unwrap_or_else(|_| panic!("panics: {changed}"));
        assert!(why.is_none_or(|why| !why.to_string().is_empty()), "refused without a word: {changed}");
    }
}

#[test]
fn a_changed_result_is_refused_in_words_or_compared() {
    let mut draw = dice("results");
    let checked = read("small", scenario::shipped("quickstart").expect("shipped").replace("= 256", "= 8"));
    let result = pipeline::run(&super::training(checked), &|_| {}).result;
    let text = reports::json::render(&result).expect("finite figures");
    let folder = std::env::temp_dir().join(format!("skrull-sim-{}-results", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let compare = |changed: &str| {
        let files = ["good.json", "changed.json"].map(|name| folder.join(name));
        std::fs::write(&files[0], &text).expect("a file");
        std::fs::write(&files[1], changed).expect("a file");
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_skrull-sim")).arg("compare").args(&files).output();
        let output = output.expect("the program starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for key in ["{\n", "\"cost_model\": {", "\"measured\": {", "\"planner\": {"] {
        let (code, why) = compare(&text.replacen(key, &format!("{key} \"no_such_key\": 1, "), 1));
        assert!(code == Some(2) && why.contains("no_such_key"), "{key}: {why}");
    }
    for _ in 0..40 {
        let changed = hostile_json(&text, &mut draw);
        let (code, why) = compare(&changed);
        assert!(matches!(code, Some(0..=2)), "{why}\n{changed}");
        assert!(code != Some(2) || why.contains("changed.json"), "{why}\n{changed}");
    }
    std::fs::remove_dir_all(&folder).ok();
}

#[test]
fn a_hidden_character_anywhere_in_a_line_is_shown_escaped_and_never_raw() {
    let (source, _) = scenario::find("quickstart").expect("shipped");
    for hidden in ["\u{202e}", "\u{2066}", "\u{9b}", "\u{1b}", "é", "漢"] {
        for (at, line) in source.text.lines().enumerate().filter(|(_, line)| line.contains('=')) {
            for place in [1, line.len() / 2, line.len() - 1].into_iter().filter(|at| line.is_char_boundary(*at)) {
                let (before, after) = line.split_at(place);
                let checked = read("quickstart", without(&source.text, at, Some(&format!("{before}{hidden}{after}"))));
                let shown = input::diagnostic::render(&checked.source, &checked.findings);
                let is_raw = !hidden.chars().all(char::is_alphanumeric) && shown.contains(hidden);
                assert!(!is_raw, "line {at}, place {place}: {shown}");
            }
        }
    }
}
