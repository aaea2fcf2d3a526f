//! What the command line asks for is there, and nothing of it is lost.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of its own for a test.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("skrull-sim-outputs-{}-{name}", std::process::id()));
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn ran(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skrull-sim"));
    command.current_dir(folder).args(args).output().expect("the binary starts")
}

/// A call that is refused before it writes anything, and what it says.
fn refused(name: &str, args: &[&str]) -> String {
    let folder = folder(name);
    let output = ran(&folder, args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 0, "{args:?} wrote something");
    std::fs::remove_dir_all(&folder).ok();
    said
}

const FEW: [&str; 4] = ["run", "serving/closed-loop", "--set", "trace.requests=8"];

#[test]
fn two_outputs_are_never_one_file() {
    for (name, asked) in [
        ("both", ["--requests", "a.csv", "--series", "./a.csv"]),
        ("result", ["--requests", "out/closed-loop/result.json", "--out", "out/closed-loop"]),
        ("report", ["--series", "./o/report.html", "--out", "o"]),
    ] {
        let said = refused(name, &[&FEW[..], &asked].concat());
        assert!(said.contains("are one file"), "{said}");
    }
    let said = refused("compare", &["compare", "quickstart", "--junit", "x", "--chart", "x"]);
    assert!(said.contains("`--junit` and `--chart` are one file"), "{said}");
}

#[test]
fn files_of_their_own_are_written() {
    let folder = folder("own");
    let asked = ["--requests", "a.csv", "--series", "b.csv", "--out", "o", "--quiet"];
    let output = ran(&folder, &[&FEW[..], &asked].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for file in ["a.csv", "b.csv", "o/result.json"] {
        assert!(folder.join(file).is_file(), "{file}");
    }
    std::fs::remove_dir_all(&folder).ok();
}

#[test]
fn requests_of_what_plays_none_are_refused_before_the_run() {
    let said = refused("kind", &["run", "quickstart", "--requests", "a.csv"]);
    assert!(said.contains("about requests that are played"), "{said}");
}

#[test]
fn a_varied_key_is_given_once() {
    let key = "training.batch_size";
    let [first, second] = ["128", "256"].map(|value| format!("{key}={value}"));
    let said = refused("twice", &["compare", "quickstart", "--vary", &first, "--vary", &second]);
    assert!(said.contains("`--vary training.batch_size=128,256`"), "{said}");
    let said = refused("given", &["compare", "quickstart", "--set", &first, "--vary", &second]);
    assert!(said.contains("would change nothing"), "{said}");
}

/// Prompts of 60,000 tokens in one iteration are longer than any document that attention was measured with; those of 922 are not.
#[test]
fn a_strict_hull_refuses_engines_beyond_what_was_measured_and_no_others() {
    let long =
        ["--set", "trace.prompt_tokens=60000", "--set", "engine.max_tokens=65536", "--set", "trace.concurrency=2"];
    for (name, strict) in [("option", &["--strict-hull"][..]), ("key", &["--set", "cost.strict_hull=true"])] {
        let said = refused(&format!("beyond-{name}"), &[&FEW[..], &long, strict].concat());
        assert!(said.contains("error[S060]") && said.contains("attention document length"), "{said}");
        let folder = folder(&format!("inside-{name}"));
        let output = ran(&folder, &[&FEW[..], strict].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !said.contains("S060"), "{said}");
        std::fs::remove_dir_all(&folder).ok();
    }
    let folder = folder("beyond");
    let output = ran(&folder, &[&FEW[..], &long].concat());
    assert!(output.status.success(), "without it that is a warning");
    assert!(String::from_utf8_lossy(&output.stderr).contains("warning[S060]"));
    std::fs::remove_dir_all(&folder).ok();
}
