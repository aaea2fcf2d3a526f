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

fn printed(output: &Output) -> [String; 2] {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

#[test]
fn rows_go_to_standard_output_in_place_of_the_table() {
    let folder = folder("piped");
    let series = ran(&folder, &[&FEW[..], &["--requests", "a.csv", "--series", "-"]].concat());
    let requests = ran(&folder, &[&FEW[..], &["--requests", "-", "--quiet"]].concat());
    assert!(series.status.success() && requests.status.success(), "{series:?} {requests:?}");
    let file = std::fs::read_to_string(folder.join("a.csv")).expect("the rows");
    assert_eq!(printed(&requests), [file, String::new()], "the rows alone, as a file has them");
    let [series, _] = printed(&series);
    let n_cells: std::collections::BTreeSet<usize> = series.lines().map(|line| line.matches(',').count()).collect();
    assert!(series.contains("replicas") && n_cells.len() == 1, "{series}");
    assert!(!folder.join("-").exists(), "no file is called so");
    let junit = ran(&folder, &["compare", "quickstart", "--seeds", "1", "--gate", "mfu_ratio<=5x", "--junit", "-"]);
    let [junit, _] = printed(&junit);
    assert!(junit.starts_with("<?xml") && junit.trim_end().ends_with('>') && !junit.contains("batches "), "{junit}");
    std::fs::remove_dir_all(&folder).ok();
}

#[test]
fn standard_output_has_one_thing_alone() {
    for (name, asked) in
        [("twice", ["--requests", "-", "--series", "-"]), ("format", ["--requests", "-", "--format", "json"])]
    {
        let said = refused(name, &[&FEW[..], &asked].concat());
        assert!(said.contains("error[S028]"), "{said}");
    }
    for asked in [["--out", "-"], ["--tasks", "-"]] {
        let said = refused("usage", &[&FEW[..], &asked].concat());
        assert!(said.contains(asked[0]), "{said}");
    }
}

#[test]
fn a_scenario_to_begin_with_is_printed_or_written() {
    let folder = folder("init");
    let printed = printed(&ran(&folder, &["init", "-", "--quiet"]));
    assert!(ran(&folder, &["init", "my"]).status.success());
    let file = std::fs::read_to_string(folder.join("my.toml")).expect("the scenario");
    assert_eq!(printed, [file, String::new()]);
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 1, "nothing else is written");
    std::fs::remove_dir_all(&folder).ok();
}

/// Recomputed layers without recompute are a warning.
#[test]
fn quiet_verbs_write_their_files_and_say_nothing() {
    let folder = folder("quiet");
    let idle = ["--set", "training.recompute='none'", "--set", "training.recompute_layers=4"];
    for (verb, more, file) in [
        ("run", &["quickstart"][..], "out/quickstart/result.json"),
        ("plan", &["quickstart", "--export", "data-order"], "out/quickstart/plan.json"),
        ("compare", &["quickstart", "--seeds", "1", "--junit", "gates.xml"], "gates.xml"),
    ] {
        let loud = ran(&folder, &[&[verb][..], more, &idle].concat());
        let [said, told] = printed(&loud);
        assert!(loud.status.success() && told.contains("warning[S017]") && !said.is_empty(), "{verb}: {told}");
        std::fs::remove_file(folder.join(file)).expect("it was written");
        let quiet = ran(&folder, &[&[verb][..], more, &idle, &["--quiet"]].concat());
        assert!(quiet.status.success() && folder.join(file).is_file(), "{verb}");
        assert_eq!(printed(&quiet), ["", ""], "{verb}");
    }
    let wrong = ran(&folder, &["compare", "quickstart", "--quiet", "--seeds", "1", "--gate", "mfu_ratio>=2x"]);
    let [said, told] = printed(&wrong);
    assert!(wrong.status.code() == Some(1) && said.is_empty() && told.contains("gates failed"), "{told}");
    for (asked, part) in [(["list", "gpus"].as_slice(), "h100-sxm"), (&["plan", "--format", "json"], "\"steps\"")] {
        let [said, told] = printed(&ran(&folder, &[asked, &["-q"]].concat()));
        assert!(said.contains(part) && told.is_empty(), "an answer or a document is printed: {said}");
    }
    std::fs::remove_dir_all(&folder).ok();
}

#[test]
fn a_result_is_exported_as_its_plan_is() {
    for (scenario, target) in [("quickstart", "data-order"), ("serving/closed-loop", "vllm")] {
        let folder = folder(target);
        assert!(ran(&folder, &["run", scenario, "-q", "--out", "run"]).status.success());
        assert!(ran(&folder, &["plan", scenario, "-q", "--out", "plan", "--export", target]).status.success());
        let output = ran(&folder, &["export", "run/result.json", "--to", target, "--out", "of-result"]);
        assert!(output.status.success(), "{output:?}");
        let of = |name: &str| -> Vec<(std::ffi::OsString, Vec<u8>)> {
            let files = std::fs::read_dir(folder.join(name)).expect("a folder").map(|file| file.expect("a file"));
            let bytes = |path: PathBuf| std::fs::read(path).expect("a file");
            let mut all: Vec<_> = files.map(|file| (file.file_name(), bytes(file.path()))).collect();
            all.retain(|(name, _)| name != "plan.json");
            all.sort();
            all
        };
        assert!(!of("of-result").is_empty() && of("of-result") == of("plan"), "{scenario}");
        std::fs::remove_dir_all(&folder).ok();
    }
}

#[test]
fn folders_of_outputs_are_made_and_a_file_in_their_place_is_named_before_the_run() {
    let folder = folder("missing");
    std::fs::write(folder.join("file"), "").expect("a file");
    let output = ran(&folder, &[&FEW[..], &["--requests", "a/b/rows.csv", "--out", "c/d", "-q"]].concat());
    assert!(output.status.success() && folder.join("a/b/rows.csv").is_file(), "{output:?}");
    let output = ran(&folder, &[&FEW[..], &["--out", "file/x"]].concat());
    let [said, told] = printed(&output);
    assert!(output.status.code() == Some(3) && said.is_empty() && told.contains("cannot write `file/x`"), "{told}");
    std::fs::remove_dir_all(&folder).ok();
}

/// A plan or a result is read from standard input as a scenario is.
#[test]
fn a_plan_comes_through_a_pipe() {
    let folder = folder("pipe");
    assert!(ran(&folder, &["plan", "quickstart", "-q"]).status.success());
    let plan = std::fs::File::open(folder.join("out/quickstart/plan.json")).expect("the plan");
    let mut command = Command::new(env!("CARGO_BIN_EXE_skrull-sim"));
    let output = command.current_dir(&folder).args(["run", "-", "--quiet"]).stdin(plan).output().expect("it starts");
    assert!(output.status.success() && folder.join("out/quickstart-plan/result.json").is_file(), "{output:?}");
    std::fs::remove_dir_all(&folder).ok();
}

/// A verb with the content of a file as its standard input.
fn fed(folder: &Path, args: &[&str], input: &Path) -> Output {
    let input = std::fs::File::open(input).unwrap_or_else(|why| panic!("{}: {why}", input.display()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_skrull-sim"));
    command.current_dir(folder).args(args).stdin(input).output().expect("it starts")
}

/// `-` gives what the file gives, for whatever a verb reads; a comparison of several batches asks for it several times.
#[test]
fn standard_input_stands_for_any_file() {
    let folder = folder("operands");
    let table = "scenario,policy,metric,measured\nquickstart,skrull,iteration_time_s,1.4\n";
    std::fs::write(folder.join("table.csv"), table).expect("a table");
    std::fs::write(folder.join("serve.sh"), "vllm serve meta-llama/Llama-3.1-8B-Instruct\n").expect("a script");
    std::fs::write(folder.join("own.toml"), scenario::shipped("quickstart").expect("shipped")).expect("a scenario");
    std::fs::write(folder.join("bench.json"), BENCH).expect("a measured run");
    assert!(ran(&folder, &["plan", "own.toml", "-q", "--out", "p"]).status.success());
    for (args, file) in [
        (&["validate", "serving/closed-loop", "--format", "json", "--measured"][..], "bench.json"),
        (&["compare", "--seeds", "2", "--no-progress", "--format", "json"], "own.toml"),
        (&["score", "--no-progress"], "table.csv"),
        (&["import", "--gpu", "h100-sxm"], "serve.sh"),
        (&["export", "--to", "data-order", "--out", "x"], "p/plan.json"),
    ] {
        let [own, piped] =
            [ran(&folder, &[args, &[file]].concat()), fed(&folder, &[args, &["-"]].concat(), &folder.join(file))];
        assert!(own.status.success() && piped.status.success(), "{args:?}: {}", printed(&piped)[1]);
        // The names of the input and of the scenario are others.
        let named = printed(&own)[0].replace("own.toml", "-").replace("serve.sh", "-").replace("\"own\"", "\"stdin\"");
        assert_eq!(named, printed(&piped)[0], "{args:?}");
    }
    std::fs::remove_dir_all(&folder).ok();
}

/// A run as `vllm bench serve` writes it.
const BENCH: &str = r#"{"model_id": "org/M", "request_rate": 2.0, "max_concurrency": null, "completed": 2, "total_input_tokens": 30,
  "total_output_tokens": 4, "input_lens": [10, 20], "output_lens": [3, 1], "ttfts": [0.1, 0.2], "itls": [[0.1, 0.1], []],
  "start_times": [7.0, 7.5], "errors": ["", ""], "mean_ttft_ms": 150.0, "mean_tpot_ms": 100.0}"#;

/// Standard input gives its bytes once.
#[test]
fn a_measured_run_is_not_read_twice() {
    let folder = folder("taken");
    std::fs::write(folder.join("bench.json"), BENCH).expect("a measured run");
    let args = ["validate", "serving/closed-loop", "--measured", "-", "-"];
    let [_, said] = printed(&fed(&folder, &args, &folder.join("bench.json")));
    assert!(said.contains("standard input was read already"), "{said}");
    std::fs::remove_dir_all(&folder).ok();
}

#[test]
fn a_file_of_the_program_itself_is_nothing_to_import() {
    let folder = folder("own");
    std::fs::write(folder.join("my.toml"), scenario::shipped("quickstart").expect("shipped")).expect("a scenario");
    assert!(ran(&folder, &["plan", "my.toml", "-q", "--out", "p"]).status.success());
    for (file, words) in [("my.toml", "a scenario already"), ("p/plan.json", "`skrull-sim run FILE` takes it")] {
        let [_, said] = printed(&ran(&folder, &["import", file]));
        assert!(said.contains(words) && said.contains(&format!(" --> {file}")), "{said}");
    }
    std::fs::remove_dir_all(&folder).ok();
}

/// Names of files are bytes; messages and results write them out.
#[cfg(unix)]
#[test]
fn a_name_that_is_no_text_is_said() {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9.toml");
    for verb in ["run", "plan", "compare", "sweep", "tune"] {
        let output = Command::new(env!("CARGO_BIN_EXE_skrull-sim")).arg(verb).arg(name).output().expect("it starts");
        let [_, said] = printed(&output);
        let is_named = said.contains("caf\u{fffd}.toml") && said.contains("rename it");
        assert!(output.status.code() == Some(2) && is_named, "{verb}: {said}");
    }
}

#[test]
fn names_that_are_options_or_hidden_files_make_no_scenario() {
    for name in ["-x", "--", ".", "..", ".toml", "", "a b", "a/b"] {
        let said = refused("names", &["init", "--", name]);
        assert!(said.contains("error[S005]"), "{name}: {said}");
    }
    let folder = folder("named");
    assert!(ran(&folder, &["init", "_a-1.b"]).status.success() && folder.join("_a-1.b.toml").is_file());
    std::fs::remove_dir_all(&folder).ok();
}

#[test]
fn a_comparison_takes_every_input_once() {
    let said = refused("inputs", &["compare", "quickstart", "quickstart"]);
    assert!(said.contains("given twice"), "{said}");
}

#[test]
fn requests_of_what_plays_none_are_refused_before_the_run() {
    let said = refused("kind", &["run", "quickstart", "--requests", "a.csv"]);
    assert!(said.contains("about requests that are played") && said.contains(" --> quickstart"), "{said}");
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

/// A scenario in a folder that names a file beside it.
fn with_lengths(folder: &Path) {
    std::fs::create_dir_all(folder.join("sub")).expect("a folder");
    let text = "kind = \"training\"\n[model]\nname = \"qwen2.5-0.5b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\n[training]\nbatch_size = 16\n\
        [workload]\nfile = \"of me.txt\"\n[policies]\nrun = [\"deepspeed\"]\n";
    std::fs::write(folder.join("sub/a.toml"), text).expect("a scenario");
    let lengths: String = (1..=40).map(|n| format!("{}\n", 100 * n)).collect();
    std::fs::write(folder.join("sub/of me.txt"), lengths).expect("lengths");
}

#[test]
fn files_that_a_plan_and_a_result_name_lie_beside_their_scenario_or_beside_them() {
    let folder = folder("beside");
    with_lengths(&folder);
    for verb in ["run", "plan"] {
        assert!(ran(&folder, &[verb, "sub/a.toml", "-q", "--out", "made"]).status.success(), "{verb}");
    }
    for file in ["made/result.json", "made/plan.json"] {
        let output = ran(&folder, &["run", file, "-q", "--out", "again"]);
        assert!(output.status.success(), "{file}: {}", printed(&output)[1]);
    }
    // Elsewhere the scenario is gone, and what it names lies beside the plan.
    std::fs::rename(folder.join("sub/of me.txt"), folder.join("made/of me.txt")).expect("it moves");
    std::fs::remove_dir_all(folder.join("sub")).expect("it goes");
    let output = ran(&folder, &["run", "made/plan.json", "-q", "--out", "again"]);
    assert!(output.status.success(), "{}", printed(&output)[1]);
    std::fs::remove_dir_all(&folder).ok();
}

#[test]
fn a_plan_and_a_result_of_a_shipped_scenario_have_its_files() {
    let folder = folder("shipped-beside");
    for verb in ["run", "plan"] {
        let output = ran(&folder, &[verb, "together/prefix-split-failures-scaler", "-q", "--out", "made"]);
        assert!(output.status.success(), "{verb}: {}", printed(&output)[1]);
    }
    for file in ["made/result.json", "made/plan.json"] {
        let output = ran(&folder, &["run", file, "-q", "--out", "again"]);
        assert!(output.status.success(), "{file}: {}", printed(&output)[1]);
    }
    std::fs::remove_dir_all(&folder).ok();
}

#[test]
fn what_was_read_is_not_written_over() {
    let folder = folder("read");
    with_lengths(&folder);
    std::fs::copy(folder.join("sub/a.toml"), folder.join("a.toml")).expect("a copy");
    std::fs::copy(folder.join("sub/of me.txt"), folder.join("of me.txt")).expect("a copy");
    let before = std::fs::read(folder.join("a.toml")).expect("the scenario");
    for args in [
        ["compare", "a.toml", "--seeds", "2", "--junit", "./a.toml"],
        ["compare", "a.toml", "--seeds", "2", "--chart", "of me.txt"],
    ] {
        let output = ran(&folder, &args);
        let said = printed(&output)[1].clone();
        assert!(output.status.code() == Some(3) && said.contains("it was read, and would be lost"), "{said}");
    }
    assert_eq!(std::fs::read(folder.join("a.toml")).expect("the scenario"), before);
    std::fs::remove_dir_all(&folder).ok();
}

#[test]
fn a_name_in_quotes_holds_dots_on_the_command_line() {
    let folder = folder("quotes");
    let asked = "expect.\"metrics.deepspeed.iteration_time_s\"={ max = 1e-9 }";
    let output = ran(&folder, &["run", "quickstart", "-q", "--check", "--set", asked]);
    let said = printed(&output)[1].clone();
    assert!(output.status.code() == Some(1) && said.contains("metrics.deepspeed.iteration_time_s"), "{said}");
    std::fs::remove_dir_all(&folder).ok();
}
