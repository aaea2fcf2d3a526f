//! Changed scenarios through the program: every one is answered with a sound result or refused in words, and none runs on.
//!
//! The grammar is docs/keys.md, which the readers write themselves: sections, keys, types and allowed values. A case follows from its number
//! alone. `SKRULL_MUTATIONS=FROM..TO` plays others than the few of this test and prints what became of them; docs/reliability.md has counts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use engine::random::{self, Stream};
use scenario::EMBEDDED;

/// Cases of the test.
const CASES: std::ops::Range<u64> = 0..40;
/// Cases from here on are small: of scenarios that take little time, with less work.
const SMALL: u64 = 1_000_000;
/// Scenarios, by how their names begin, of which no small case is made: they take most of a second or more.
const SLOW: [&str; 19] = [
    "cloud/hel",
    "cloud/het",
    "cloud/thu",
    "compiler/",
    "graph/legion-rmat",
    "graph/seg-",
    "long-context/",
    "megatron-large/",
    "moe/",
    "multi-task/clip",
    "pipeline/optimal",
    "resilience/malleus-trace",
    "search/",
    "serving/disaggregated",
    "serving/mixed-fleet",
    "serving/qwen-1m",
    "serving/sla-planner",
    "serving/tiers",
    "together/thunderserve",
];
/// Keys whose number says how much there is to do, and what it is divided by in a small case.
const WORK: [&str; 5] = ["requests = ", "edges = ", "pairs = ", "steps = ", "seeds = "];
const LESS: u64 = 8;
/// Seconds that a run may take before it has to end with what there is.
const LIMIT_S: &str = "10";
/// What a program prints that has lost its way: a panic, an unsound result, a run that nothing could end.
const FAULTS: [&str; 3] = ["panicked", "a defect of skrull-sim", "does not end"];
/// Values at the ends of what a file can hold.
const EXTREME: [&str; 12] =
    ["0", "1", "-1", "2", "7", "1000", "65536", "1e-9", "1e9", "9223372036854775807", "0.5", "0.999999"];

/// A key of the grammar.
struct Key {
    section: String,
    name: String,
    what: String,
    allowed: String,
}

/// Keys as the page has them.
fn grammar() -> Vec<Key> {
    let page = std::fs::read_to_string(super::root().join("docs/keys.md")).expect("the page of keys");
    let mut section = String::new();
    let mut keys = Vec::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading.trim_matches('`').to_owned();
        }
        let cells: Vec<&str> = line.split(" | ").collect();
        if let [name, what, _, _, allowed, ..] = cells[..]
            && let Some(name) = name.strip_prefix("| `")
        {
            let text = |cell: &str| cell.trim().to_owned();
            keys.push(Key {
                section: section.clone(),
                name: name.trim_matches('`').to_owned(),
                what: text(what),
                allowed: text(allowed),
            });
        }
    }
    keys
}

fn pick<'a, T>(draw: &mut Stream, of: &'a [T]) -> &'a T {
    &of[usize::try_from(draw.below(of.len() as u64)).expect("an index")]
}

/// A value that the grammar allows for a key, or one at its ends.
fn value(key: &Key, draw: &mut Stream) -> String {
    let range = key.allowed.split_once(" to ");
    match (key.what.as_str(), range) {
        ("true or false", _) => (*pick(draw, &["true", "false"])).to_owned(),
        ("number" | "whole number", Some((low, high))) => {
            let ends = [low.to_owned(), high.to_owned(), (*pick(draw, &EXTREME)).to_owned()];
            pick(draw, &ends).clone()
        }
        ("word", _) if key.allowed.len() > 1 => {
            let words: Vec<&str> = key.allowed.split(", ").collect();
            format!("\"{}\"", pick(draw, &words))
        }
        _ => (*pick(draw, &EXTREME)).to_owned(),
    }
}

/// Places of the lines that set a key.
fn settings(lines: &[String]) -> Vec<usize> {
    let sets = |line: &String| !line.starts_with(['#', '[']) && line.contains(" = ") && !line.starts_with(' ');
    (0..lines.len()).filter(|at| sets(&lines[*at])).collect()
}

/// The section that a line stands in.
fn section_of(lines: &[String], at: usize) -> &str {
    let head = lines[..=at].iter().rev().find(|line| line.starts_with('['));
    head.map_or("Before the first section", |line| line.split(']').next().unwrap_or("").trim_start_matches('['))
}

/// The value that another scenario has for the same key of the same section: an unusual combination of what is valid.
fn elsewhere(lines: &mut [String], at: usize, key: &str, draw: &mut Stream) {
    let section = section_of(lines, at).to_owned();
    let mut values = Vec::new();
    for (_, text) in EMBEDDED {
        let other: Vec<String> = text.lines().map(str::to_owned).collect();
        let same = settings(&other).into_iter().filter(|at| section_of(&other, *at) == section);
        values.extend(same.map(|at| other[at].clone()).filter(|line| line.split(" = ").next() == Some(key)));
    }
    // The scenario's own value is among them where it is one of the shipped ones.
    if !values.is_empty() {
        lines[at] = pick(draw, &values).clone();
    }
}

/// A number that is a few times as large or as small.
fn scaled(lines: &mut [String], at: usize, draw: &mut Stream) {
    let (key, value) = lines[at].split_once(" = ").expect("it sets a key");
    let value = value.split('#').next().unwrap_or_default().trim().replace('_', "");
    let factor = [2, 3, 10][usize::try_from(draw.below(3)).expect("an index")];
    let is_more = draw.below(2) == 0;
    let changed = match (value.parse::<i64>(), value.parse::<f64>()) {
        (Ok(n), _) => (if is_more { n.saturating_mul(factor) } else { n / factor }).to_string(),
        (_, Ok(x)) => format!("{:?}", if is_more { x * factor as f64 } else { x / factor as f64 }),
        _ => return,
    };
    lines[at] = format!("{key} = {changed}");
}

/// One change of a scenario.
fn change(lines: &mut Vec<String>, grammar: &[Key], draw: &mut Stream) {
    let places = settings(lines);
    if places.is_empty() {
        return;
    }
    let at = *pick(draw, &places);
    let key = lines[at].split(" = ").next().unwrap_or_default().to_owned();
    match draw.below(16) {
        0 => drop(lines.remove(at)),
        1 => lines.insert(at, lines[at].clone()),
        2 => {
            // The values of two keys change places.
            let other = *pick(draw, &places);
            let (one, two) = (lines[at].clone(), lines[other].clone());
            let [(a, x), (b, y)] = [&one, &two].map(|line| line.split_once(" = ").expect("it sets a key"));
            (lines[at], lines[other]) = (format!("{a} = {y}"), format!("{b} = {x}"));
        }
        3 => lines[at] = format!("{key} = {}", pick(draw, &EXTREME)),
        4 => {
            // A section of another scenario, perhaps of another kind.
            let (_, text) = pick(draw, EMBEDDED);
            let heads: Vec<usize> =
                text.lines().enumerate().filter(|(_, line)| line.starts_with('[')).map(|(at, _)| at).collect();
            let from = *pick(draw, &heads);
            let rest = text.lines().skip(from + 1).take_while(|line| !line.starts_with('['));
            lines.extend(text.lines().nth(from).into_iter().chain(rest).map(str::to_owned));
        }
        5..=10 => elsewhere(lines, at, &key, draw),
        11..=13 => scaled(lines, at, draw),
        _ => {
            // A key that its section knows, with a value that it allows or nearly so.
            let section = section_of(lines, at).to_owned();
            let known: Vec<&Key> = grammar.iter().filter(|key| key.section == section).collect();
            if known.is_empty() {
                return;
            }
            let key = *pick(draw, &known);
            let line = format!("{} = {}", key.name, value(key, draw));
            let same = places
                .iter()
                .find(|at| section_of(lines, **at) == section && lines[**at].starts_with(&format!("{} = ", key.name)));
            match same {
                Some(at) => lines[*at] = line,
                None => lines.insert(at, line),
            }
        }
    }
}

/// Divides the number of a line that says how much there is to do.
fn less_work(line: &mut String) {
    let Some(key) = WORK.iter().find(|key| line.starts_with(**key)) else { return };
    let value = line[key.len()..].split('#').next().unwrap_or_default().trim().replace('_', "");
    if let Ok(n) = value.parse::<u64>() {
        *line = format!("{key}{}", (n / LESS).max(1));
    }
}

/// What a number stands for: a verb and a changed scenario.
fn case(number: u64, grammar: &[Key]) -> (&'static str, String) {
    let mut draw = random::stream(number, "mutations");
    let is_small = number >= SMALL;
    let left_out = |name: &str| {
        let of = |begin: &&str| name.starts_with(*begin);
        ["validate/", "scale/"].iter().any(of) || (is_small && SLOW.iter().any(of))
    };
    let light: Vec<&(&str, &str)> = EMBEDDED.iter().filter(|(name, _)| !left_out(name)).collect();
    let (_, text) = **pick(&mut draw, &light);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if is_small {
        lines.iter_mut().for_each(less_work);
    }
    // Expectations of the shipped figures say nothing about a changed scenario.
    if let Some(at) = lines.iter().position(|line| line.starts_with("[expect]")) {
        lines.truncate(at);
    }
    for _ in 0..=draw.below(2) {
        change(&mut lines, grammar, &mut draw);
    }
    let verb = match draw.below(10) {
        0 | 1 => "plan",
        2 if text.contains("[capacity]") => "capacity",
        2 | 3 if text.contains("[tune]") => "tune",
        4 => "compare",
        _ => "run",
    };
    (verb, lines.join("\n") + "\n")
}

/// What a case came to: the exit code, and what is wrong with it.
fn play(verb: &str, file: &Path, out: &Path) -> (Option<i32>, Option<String>) {
    let program = std::env::var("SKRULL_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_skrull-sim").to_owned());
    let mut command = Command::new(program);
    command.arg(verb).arg(file).args(["--time-limit", LIMIT_S, "--jobs", "1", "--no-progress"]);
    match verb {
        "compare" => command.args(["--seeds", "2"]),
        _ => command.arg("--out").arg(out),
    };
    // Lengths and configurations that a scenario names lie beside the shipped ones.
    let output = command.stdin(Stdio::null()).current_dir(super::root().join("scenarios")).output();
    let output = output.expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code();
    if let Some(fault) = FAULTS.iter().find(|fault| said.contains(**fault)) {
        return (code, Some(format!("{fault}: {said}")));
    }
    if !matches!(code, Some(0..=2)) || (code != Some(0) && said.is_empty()) {
        return (code, Some(format!("exit {code:?}: {said}")));
    }
    let result = out.join("result.json");
    let text = std::fs::read_to_string(&result).unwrap_or_default();
    if verb == "run" && code == Some(0) {
        let result: Result<reports::RunResult, _> = serde_json::from_str(&text);
        let faults = result.map_or_else(|why| vec![why.to_string()], |result| reports::sound::faults(&result));
        return (code, (!faults.is_empty()).then(|| faults.join("\n")));
    }
    (code, None)
}

/// The cases that were asked for.
fn asked() -> std::ops::Range<u64> {
    let text = std::env::var("SKRULL_MUTATIONS").unwrap_or_default();
    let ends = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    ends.unwrap_or(CASES)
}

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutations");
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn mutated_scenarios_are_answered_or_refused() {
    let (grammar, folder) = (grammar(), folder());
    assert!(grammar.len() > 500, "{} keys", grammar.len());
    let mut counts: BTreeMap<(&str, Option<i32>), u64> = BTreeMap::new();
    let mut wrong = Vec::new();
    for number in asked() {
        let (verb, text) = case(number, &grammar);
        let (file, out) = (folder.join(format!("case-{number}.toml")), folder.join(format!("out-{number}")));
        std::fs::write(&file, &text).expect("a file");
        let (code, fault) = play(verb, &file, &out);
        *counts.entry((verb, code)).or_default() += 1;
        let _ = std::fs::remove_dir_all(&out);
        match fault {
            Some(why) => {
                println!("case {number}, `{verb} {}`: {why}", file.display());
                wrong.push(number);
            }
            None => std::fs::remove_file(&file).expect("it was written"),
        }
    }
    println!("{counts:?}");
    assert!(wrong.is_empty(), "cases {wrong:?} went wrong; their files are in {}", folder.display());
}
