//! Codes of findings: each is used, has one place and an explanation, and its examples say the truth.

use std::collections::BTreeSet;

use clap::Parser;
use input::diagnostic::{Code, Source, codes};
use scenario::{self, Overrides};
use skrull_sim::kinds::{self, Checked};

/// Lines that a test cannot run: what they meet depends on how fast the machine is.
const NOT_RUN: [Code; 1] = [Code::NothingMeasured];

fn explanation(code: Code) -> codes::Explanation {
    codes::explanations().remove(&code.to_string()).expect("every code has one")
}

/// A shipped scenario with the sections of an example in the place of its own.
fn laid_over(base: &str, example: &str) -> Checked {
    let table = |text: &str| -> toml::Table { text.parse().unwrap_or_else(|why| panic!("{text}: {why}")) };
    let mut all = table(scenario::shipped(base).unwrap_or_else(|| panic!("{base} is not shipped")));
    all.extend(table(example));
    let source = Source { path: base.to_owned(), text: all.to_string() };
    kinds::check(source, &super::root().join("scenarios/bad"), &Overrides::default())
}

#[test]
fn every_code_is_explained_and_has_its_number_once() {
    let known: BTreeSet<String> = Code::ALL.iter().map(Code::to_string).collect();
    let explained: BTreeSet<String> = codes::explanations().into_keys().collect();
    assert_eq!(known, explained);
    assert!(Code::ALL.is_sorted(), "codes stand by number");
    for code in Code::ALL {
        let meaning = code.meaning();
        assert!(
            meaning.ends_with('.') && meaning.starts_with(|first: char| !first.is_whitespace()),
            "{code}: {meaning}"
        );
        assert_eq!(code.to_string().parse(), Ok(*code));
    }
    let last = Code::ALL.last().expect("there are codes").to_string();
    assert!("S1000".parse::<Code>().unwrap_err().to_string().contains(&last), "the nearest codes are named");
}

#[test]
fn every_code_is_used_and_only_the_table_has_numbers() {
    let mut text = String::new();
    let folders = ["src", "scenario", "input", "stacks", "sweep"].into_iter();
    for path in folders.flat_map(|folder| super::files(&super::root().join(folder), "rs")) {
        if path.ends_with("diagnostic/codes.rs") {
            continue;
        }
        let source = std::fs::read_to_string(&path).expect("a source");
        for before in ["\"S", "[S"] {
            for (at, _) in source.match_indices(before) {
                let digits = source[at + 2..].chars().take_while(char::is_ascii_digit).count();
                assert!(digits != 3, "{} writes a code out; `Code` has its name", path.display());
            }
        }
        text += &source;
    }
    for code in Code::ALL {
        assert!(text.contains(&format!("Code::{code:?}")), "{code} `{code:?}` is not used");
    }
}

#[test]
fn the_page_of_codes_is_what_the_table_says() {
    let page = std::fs::read_to_string(super::root().join("docs/codes.md")).expect("docs/codes.md");
    assert!(page == codes::page(), "`skrull-sim explain --page >docs/codes.md` writes it anew");
}

#[test]
fn examples_in_scenarios_have_the_finding_and_lose_it() {
    let mut wrong = Vec::new();
    for &code in Code::ALL {
        let explanation = explanation(code);
        let Some(base) = &explanation.base else { continue };
        let found = laid_over(base, &explanation.wrong).findings;
        if !found.iter().any(|finding| finding.code == code) {
            wrong.push(format!("{code}: the wrong example has {found:#?}"));
        }
        let right = laid_over(base, &explanation.right);
        if right.scenario.is_none() || right.findings.iter().any(|finding| finding.code == code) {
            wrong.push(format!("{code}: the right example has {:#?}", right.findings));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn lines_for_a_shell_end_with_the_finding() {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_skrull-sim"));
    let path = std::env::join_paths(
        std::iter::once(program.parent().expect("a folder").to_path_buf())
            .chain(std::env::split_paths(&std::env::var_os("PATH").expect("a path"))),
    );
    let path = path.expect("plain paths");
    for &code in Code::ALL {
        let explanation = explanation(code);
        if explanation.base.is_some() {
            continue;
        }
        let lines = explanation.right.lines().flat_map(|line| line.split("&&")).filter(|line| !line.trim().is_empty());
        for line in lines {
            let words = line.split_whitespace().map(|word| word.trim_matches('\'')).collect::<Vec<&str>>();
            assert!(line.contains('\'') || skrull_sim::cli::Cli::try_parse_from(words).is_ok(), "{code}: {line}");
        }
        if NOT_RUN.contains(&code) {
            continue;
        }
        let folder = std::env::temp_dir().join(format!("skrull-sim-{}-{code}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let output = std::process::Command::new("sh")
            .args(["-c", explanation.wrong.trim()])
            .env("PATH", &path)
            .current_dir(&folder)
            .output();
        std::fs::remove_dir_all(&folder).ok();
        let output = output.expect("a shell");
        let stderr = String::from_utf8_lossy(&output.stderr);
        if stderr.contains(&format!("warning[{code}]")) {
            continue;
        }
        assert_eq!(output.status.code(), Some(2), "{code}: {stderr}");
        assert!(stderr.contains(&format!("error[{code}]")), "{code}: {stderr}");
    }
}
