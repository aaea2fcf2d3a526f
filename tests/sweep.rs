//! Sweeps as a user runs them: the program itself, killed at many moments.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Real kills; cuts at any byte are tested where no program has to start (`sweep/tests/resume.rs`). `SKRULL_KILLS` asks for others.
const KILLS: u64 = 20;

fn kills() -> u64 {
    std::env::var("SKRULL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS)
}

const SWEEP: &str = "scenario = \"quickstart\"\nchunk = 3\nseeds = 2\n[[axis]]\nkey = \"training.steps\"\nvalues = [1, 2, 0]\n\
                     [[axis]]\nkey = \"parallel.cp\"\nvalues = [4, 8]\n[front]\nleast = [\"iteration_time_s\"]\n";

fn command(folder: &Path, out: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skrull-sim"));
    command.args([
        "sweep",
        "s.toml",
        "--quiet",
        "--out",
        out,
        "--set",
        "policies.run=[\"deepspeed\"]",
        "--set",
        "policies.baseline=\"deepspeed\"",
    ]);
    command.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn a_program_that_is_killed_goes_on_to_the_same_bytes() {
    let folder = std::env::temp_dir().join(format!("skrull-sim-killed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("s.toml"), SWEEP).expect("a sweep");
    let begun = std::time::Instant::now();
    assert!(command(&folder, "whole").status().expect("it runs").success());
    let took = begun.elapsed();
    let rows = |out: &str| std::fs::read(folder.join(out).join("points.jsonl")).unwrap_or_default();
    let mut n_cut = 0;
    for index in 0..kills() {
        let mut child = command(&folder, "killed").spawn().expect("it starts");
        // Moments from the start to beyond the end of an undisturbed run.
        std::thread::sleep(took.mul_f64((index % 7) as f64 / 6.0).min(Duration::from_secs(5)));
        child.kill().expect("it is there");
        child.wait().expect("it ends");
        let found = rows("killed");
        n_cut += usize::from(found.len() < rows("whole").len());
        // What is synced is a beginning, but for half a line at the end.
        let n = found.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        assert_eq!(found[..n], rows("whole")[..n], "kill {index}");
        if index % 5 == 4 {
            assert!(command(&folder, "killed").status().expect("it runs").success());
            assert_eq!(rows("killed"), rows("whole"));
            std::fs::remove_dir_all(folder.join("killed")).expect("it was made");
        }
    }
    assert!(n_cut > 0, "some kill came before the end");
    for file in ["report.html", "points.parquet"] {
        assert!(folder.join("whole").join(file).is_file(), "{file}");
    }
    std::fs::remove_dir_all(&folder).expect("it was made");
}

#[test]
fn a_key_that_every_point_sets_is_refused_over_all_points() {
    let folder = std::env::temp_dir().join(format!("skrull-sim-twice-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("s.toml"), SWEEP).expect("a sweep");
    for (set, owner) in [("parallel.cp=16", "an axis"), ("seed=3", "`seeds`")] {
        let found = command(&folder, "twice").args(["--set", set]).stderr(Stdio::piped()).output().expect("it runs");
        let said = String::from_utf8_lossy(&found.stderr).into_owned();
        assert_eq!(found.status.code(), Some(2), "{set}");
        assert!(said.contains("would change nothing") && said.contains(owner), "{said}");
    }
    std::fs::remove_dir_all(&folder).expect("it was made");
}

#[test]
fn a_sweep_without_a_result_fails_and_says_why() {
    let folder = std::env::temp_dir().join(format!("skrull-sim-idle-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for (name, sweep, why, code) in [
        ("wrong.toml", SWEEP.replace("training.steps", "training.stepps"), "training.stepps", 2),
        ("empty.toml", SWEEP.replace("[front]", "[unused]"), "", 1),
    ] {
        let sweep = if why.is_empty() {
            sweep
                .replace("[unused]\nleast = [\"iteration_time_s\"]\n", "")
                .replace("chunk = 3", "where = [\"parallel.cp == 7\"]")
        } else {
            sweep
        };
        std::fs::write(folder.join(name), sweep).expect("a sweep");
        let mut command = Command::new(env!("CARGO_BIN_EXE_skrull-sim"));
        let found =
            command.args(["sweep", name, "--quiet", "--out", "out"]).current_dir(&folder).output().expect("it runs");
        let said = String::from_utf8_lossy(&found.stderr).into_owned();
        assert_eq!(found.status.code(), Some(code), "{name}: {said}");
        assert!(said.contains(if why.is_empty() { "no point keeps every condition" } else { why }), "{name}: {said}");
        std::fs::remove_dir_all(folder.join("out")).expect("it was made");
    }
    std::fs::remove_dir_all(&folder).expect("it was made");
}

/// A metric without its unit ends a sweep with its first point. One that other points alone have does not, however near another metric is called.
#[test]
fn a_front_of_what_the_first_point_lacks_is_no_slip() {
    let folder = std::env::temp_dir().join(format!("skrull-sim-front-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for (metric, code, n_points) in [("iteration_time", 2, 1), ("expert_imbalance_ratio", 0, 2)] {
        let sweep = format!(
            "scenario = \"quickstart\"\n[[axis]]\nkey = \"model.name\"\nvalues = [\"qwen2.5-0.5b\", \"olmoe-1b-7b\"]\n[front]\nleast = [\"{metric}\"]\n"
        );
        std::fs::write(folder.join("s.toml"), sweep).expect("a sweep");
        let found = command(&folder, metric).stderr(Stdio::piped()).output().expect("it runs");
        let said = String::from_utf8_lossy(&found.stderr).into_owned();
        assert_eq!(found.status.code(), Some(code), "{metric}: {said}");
        assert_eq!(said.contains("did you mean `iteration_time_s`?"), code == 2, "{said}");
        let rows = std::fs::read_to_string(folder.join(metric).join("points.jsonl")).expect("rows");
        assert_eq!(rows.lines().count(), n_points, "{metric}");
    }
    std::fs::remove_dir_all(&folder).expect("it was made");
}
