//! A value of a shipped scenario changed to a hostile one is taken or refused in words; it never panics.

use skrull_sim::diagnostic::Source;
use skrull_sim::scenario::{self, Overrides};

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

#[test]
fn one_hostile_value_never_panics() {
    let mut stream = sim::random::stream(0, "hostile");
    let mut draw = |n: usize| usize::try_from(stream.below(n as u64)).expect("below a length");
    let mut wrong = Vec::new();
    for _ in 0..TRIES {
        let (name, text) = scenario::EMBEDDED[draw(scenario::EMBEDDED.len())];
        let lines: Vec<&str> = text.lines().collect();
        let keys: Vec<usize> =
            (0..lines.len()).filter(|&at| !lines[at].starts_with('#') && lines[at].contains(" = ")).collect();
        let at = keys[draw(keys.len())];
        let value = HOSTILE[draw(HOSTILE.len())];
        let key = lines[at].split(" = ").next().unwrap_or_default();
        let line = format!("{key} = {value}");
        let changed: Vec<&str> =
            lines.iter().enumerate().map(|(index, old)| if index == at { &line } else { *old }).collect();
        let source = Source { path: name.to_owned(), text: changed.join("\n") };
        let folder = super::root().join("scenarios");
        let checked = std::panic::catch_unwind(|| scenario::check(source, &folder, &Overrides::default()));
        let Ok(checked) = checked else {
            wrong.push(format!("{name}: `{line}` panics"));
            continue;
        };
        let n_errors = checked.findings.iter().filter(|finding| finding.severity == ERROR).count();
        if (checked.scenario.is_some() || checked.job.is_some()) != (n_errors == 0) {
            wrong.push(format!("{name}: `{line}` is refused without a word"));
        }
        let nameless = checked.findings.iter().filter(|finding| finding.what.contains("``"));
        wrong.extend(nameless.map(|finding| format!("{name}: `{line}`: {}", finding.what)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const ERROR: skrull_sim::diagnostic::Severity = skrull_sim::diagnostic::Severity::Error;
