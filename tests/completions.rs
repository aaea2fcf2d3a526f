//! Completions: every shell has a script, and the one for bash completes what it says.

use std::process::Command;

fn script(shell: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_skrull-sim")).args(["completions", shell]).output();
    let output = output.expect("the program starts");
    assert!(output.status.success(), "{shell}");
    String::from_utf8(output.stdout).expect("a text")
}

#[test]
fn every_shell_has_a_script_with_the_verbs() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = script(shell);
        for word in ["compare", "explain", "--strict-hull"] {
            assert!(script.contains(word.trim_start_matches('-')), "{shell}: {word}");
        }
    }
}

#[test]
fn bash_completes_verbs_scenarios_policies_and_options() {
    let completed = |line: &str, words: &str, at: usize| {
        let set = format!("COMP_WORDS=({words}); COMP_CWORD={at}; _skrull__sim skrull-sim");
        let text = format!("{}\n{set} {line}; echo ${{COMPREPLY[*]}}", script("bash"));
        let output = Command::new("bash").args(["--norc", "-c", &text]).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // Arguments of a completion function: the word, and the one before it.
    let cases = [
        ("ex skrull-sim", "skrull-sim ex", 1, "export execute explain"),
        ("qui run", "skrull-sim run qui", 2, "quickstart"),
        ("serving/distk plan", "skrull-sim plan serving/distk", 2, "serving/distkv"),
        ("megat --policy", "skrull-sim plan --policy megat", 3, "megatron"),
        ("--from init", "skrull-sim init --from", 2, "--from"),
        ("dgx-h2 show", "skrull-sim show dgx-h2", 2, "dgx-h200"),
    ];
    for (line, words, at, expected) in cases {
        match completed(line, words, at) {
            Some(found) => assert_eq!(found, expected, "{words}"),
            None => eprintln!("skipped: there is no bash"),
        }
    }
}
