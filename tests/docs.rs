//! Pages: every link leads somewhere, every page is in the index and in the book, and what nobody understood is gone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;

/// Lines of the README: one screen.
const README_LINES_MAX: usize = 40;

/// Parts of sentences that readers did not understand. They stay away.
const NOT_UNDERSTOOD: [&str; 9] = [
    "the larger deviation of its interval",
    "times the load and not",
    "beside the runs that counted",
    "no operation follows itself",
    "is above as many retests",
    "limit what the cheapest mix that ends sooner would cost",
    "taken off the waiting causes",
    "which in a plan of mixed groups may be one without any",
    "as who knows what comes",
];

/// Words that a sentence has at most: a reader follows them at once.
const WORDS_MAX: usize = 25;

fn pages() -> Vec<PathBuf> {
    let mut pages = super::files(&super::root().join("docs"), "md");
    pages.extend(["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|name| super::root().join(name)));
    pages
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a page")
}

/// Targets of the links of a page, code left out.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, part) in text.split("```").enumerate() {
        if index % 2 == 1 {
            continue;
        }
        for link in part.split("](").skip(1) {
            found.extend(link.split_once(')').map(|(target, _)| target.to_owned()));
        }
    }
    found
}

/// The place that a heading has in a page: small letters, `-` for spaces, no other marks.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn every_link_leads_somewhere() {
    for page in pages() {
        for link in links(&read(&page)).into_iter().filter(|link| !link.contains("://")) {
            let (file, place) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().expect("a folder").join(file) };
            assert!(target.exists(), "{}: `{link}` leads nowhere", page.display());
            if !place.is_empty() {
                let text = read(&target);
                let is_there = text.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line) == place);
                assert!(is_there, "{}: `{link}` has no such heading", page.display());
            }
        }
    }
}

#[test]
fn every_page_is_in_the_index_and_in_the_book() {
    let folder = super::root().join("docs");
    let own = ["index.md", "SUMMARY.md"];
    for contents in ["index.md", "SUMMARY.md"] {
        let linked: BTreeSet<String> = links(&read(&folder.join(contents))).into_iter().collect();
        for page in super::files(&folder, "md") {
            let name = page.file_name().expect("a name").to_string_lossy().into_owned();
            assert!(own.contains(&name.as_str()) || linked.contains(&name), "{contents} lacks {name}");
        }
    }
}

/// Sentences of the text of a page: no code, no tables, no headings. An item of a list begins a sentence.
fn sentences(page: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    let mut is_code = false;
    for line in page.lines().map(str::trim) {
        is_code ^= line.starts_with("```");
        let is_text = !is_code && !line.starts_with(['|', '#']) && !line.starts_with("```") && !line.is_empty();
        let begins_item = line.starts_with("- ") || line.split_once(". ").is_some_and(|(n, _)| n.parse::<u8>().is_ok());
        if !is_text || begins_item {
            blocks.push(String::new());
        }
        if is_text {
            let block = blocks.last_mut().expect("one at least");
            block.push_str(line);
            block.push(' ');
        }
    }
    let ends = |word: &str| word.trim_end_matches([')', '"', '*']).ends_with(['.', '?', '!', ':']);
    let of_block = |block: &String| {
        let words: Vec<&str> = block.split_whitespace().collect();
        words.split_inclusive(|word| ends(word)).map(|sentence| sentence.join(" ")).collect::<Vec<_>>()
    };
    blocks.iter().flat_map(of_block).collect()
}

#[test]
fn sentences_are_short() {
    let mut wrong = Vec::new();
    for path in pages().into_iter().filter(|path| !path.ends_with("CHANGELOG.md")) {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let long: Vec<String> =
            sentences(&read(&path)).into_iter().filter(|text| text.split_whitespace().count() > WORDS_MAX).collect();
        if !long.is_empty() {
            wrong.push(format!("{name}: sentences above {WORDS_MAX} words:\n{}", long.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// A line of output without what differs from machine to machine: how long planning took.
fn comparable(line: &str) -> String {
    match line.split_once("plan in ") {
        Some((before, after)) => {
            let rest = after.split_once("; ").map_or("", |(_, rest)| rest);
            format!("{before}plan in …; {rest}")
        }
        None => line.to_owned(),
    }
}

#[test]
fn the_tour_shows_what_the_quickstart_prints() {
    let folder = std::env::temp_dir().join(format!("skrull-sim-tour-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let ran = Command::new(env!("CARGO_BIN_EXE_skrull-sim"))
        .args(["run", "--no-progress"])
        .current_dir(&folder)
        .output()
        .expect("the binary runs");
    std::fs::remove_dir_all(&folder).expect("it was made above");
    let printed = String::from_utf8(ran.stdout).expect("text");
    let page = read(&super::root().join("docs/tour.md"));
    let shown =
        page.split("$ skrull-sim run\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a first block");
    let [shown, printed] = [shown, &printed].map(|text| text.trim().lines().map(comparable).collect::<Vec<_>>());
    assert_eq!(shown, printed, "docs/tour.md shows other figures than the quickstart prints");
}

#[test]
fn the_page_on_settings_shows_what_its_example_answers() {
    let folder = std::env::temp_dir().join(format!("skrull-sim-settings-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let ran = Command::new(env!("CARGO_BIN_EXE_skrull-sim"))
        .args(["tune", "serving/tune", "--no-progress"])
        .current_dir(&folder)
        .output()
        .expect("the binary runs");
    std::fs::remove_dir_all(&folder).expect("it was made above");
    let printed = String::from_utf8(ran.stdout).expect("text");
    let answer = printed.split("\n\n").next().expect("a first part");
    let page = read(&super::root().join("docs/tune.md"));
    let shown = page.split("## The answer\n\n```\n").nth(1).and_then(|rest| rest.split("\n```").next());
    assert_eq!(shown, Some(answer), "docs/tune.md shows another answer than the program gives");
}

/// Words of a line as a shell has them, up to a comment, a pipe or another command; quotes are gone.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for letter in line.chars().chain([' ']) {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None, '#' | '|' | '>' | '&') if word.is_empty() => break,
            (None, ' ') if word.is_empty() => {}
            (None, ' ') => words.push(std::mem::take(&mut word)),
            _ => word.push(letter),
        }
    }
    words
}

/// Commands of the program in the blocks and in the tables of a page. In a sentence the name of a verb stands for all of its commands.
fn commands(page: &str) -> Vec<Vec<String>> {
    let mut lines = Vec::new();
    for (index, part) in page.split("```").enumerate() {
        // A command of several lines is one.
        let part = part.replace("\\\n", " ");
        if index % 2 == 1 {
            lines.extend(part.lines().map(|line| line.trim_start_matches("$ ").to_owned()));
        } else {
            let rows = part.lines().filter(|line| line.starts_with('|'));
            lines.extend(rows.flat_map(|row| row.split('`').skip(1).step_by(2)).map(str::to_owned));
        }
    }
    lines.iter().filter(|line| line.starts_with("skrull-sim ")).map(|line| words(line)).collect()
}

/// Whether a reader writes something else in its place: `…`, a variable of a shell, `FILE`, or words behind the name of a verb.
fn is_pattern(words: &[String]) -> bool {
    let is_capital = |word: &String| word.chars().all(|letter| letter.is_ascii_uppercase());
    let is_place = |word: &String| is_capital(word) || ["...", "…", "$"].iter().any(|part| word.contains(part));
    words.len() < 3 || words.iter().any(is_place)
}

#[test]
fn commands_of_a_shell_are_cut_into_words() {
    let line = "skrull-sim run 'a b' --set x=\"c d\"  # why | what";
    assert_eq!(words(line), ["skrull-sim", "run", "a b", "--set", "x=c d"]);
    assert_eq!(
        commands(
            "```\n$ skrull-sim run \\\n  x | head\n```\nskrull-sim gone, `skrull-sim score`\n| a | `skrull-sim list gpus` |\n"
        ),
        [["skrull-sim", "run", "x"], ["skrull-sim", "list", "gpus"]]
    );
}

/// Whoever copies a line of a page has a command that is one, of a scenario that is there.
#[test]
fn commands_of_pages_are_understood_and_their_scenarios_are_there() {
    let mut wrong = Vec::new();
    for path in pages() {
        for words in commands(&read(&path)) {
            if is_pattern(&words) {
                continue;
            }
            let line = format!("{}: {}", path.display(), words.join(" "));
            let verb = words[1].as_str();
            if let Err(why) = skrull_sim::cli::Cli::try_parse_from(&words) {
                wrong.push(format!("{line}\n{why}"));
            } else if ["run", "plan", "compare", "capacity", "tune", "validate"].contains(&verb) {
                let asked = words[2..].iter().take_while(|word| !word.starts_with('-'));
                let absent =
                    asked.filter(|name| name.contains('/') && !name.contains('.') && scenario::shipped(name).is_none());
                wrong.extend(absent.map(|name| format!("{line}\nno scenario `{name}`")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn the_tour_shows_the_errors_of_the_profiles() {
    let page = read(&super::root().join("docs/tour.md"));
    let rows =
        page.lines().skip_while(|line| !line.starts_with("| profile |")).take_while(|line| line.starts_with('|'));
    let rows: Vec<Vec<&str>> = rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect();
    assert!(rows.len() > 2, "a table");
    for row in &rows[2..] {
        let text = calibrate::profiles::embedded(row[0]).unwrap_or_else(|| panic!("no profile `{}`", row[0]));
        let profile = engine::cost::profile::Profile::parse(text).expect("a shipped profile");
        for (cell, name) in row[1..].iter().zip(["gemm", "attention-64", "attention-128"]) {
            let error = profile.operators.get(name).map(|operator| operator.residuals.median_error * 100.0);
            let found = error.map_or_else(|| "not measured".to_owned(), |error| format!("{error:.1} %"));
            assert_eq!(*cell, found, "{} of {}", name, row[0]);
        }
    }
}

#[test]
fn the_readme_fits_a_screen() {
    let n = read(&super::root().join("README.md")).lines().count();
    assert!(n <= README_LINES_MAX, "README.md has {n} lines");
}

#[test]
fn sentences_that_nobody_understood_are_gone() {
    for path in [pages(), super::sources()].concat() {
        // A comment goes on behind its marks.
        let text = read(&path).replace("///", " ").replace("//!", " ");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for sentence in NOT_UNDERSTOOD {
            assert!(!text.contains(sentence), "{}: `{sentence}`", path.display());
        }
    }
}
