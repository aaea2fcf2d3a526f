//! A program that is killed, a full disk and a folder that takes no files leave whole files or none.
#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Moments at which a run is killed, spread over its length.
const KILLS: u64 = 12;

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// The quickstart, which writes JSON, HTML and traces.
fn quickstart(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skrull-sim"));
    command.args(["run", "quickstart", "--quiet", "--out"]).arg(folder);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Every file under its own name is whole.
fn assert_whole(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a text");
        let is_whole = match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => serde_json::from_str::<serde_json::Value>(&text).is_ok(),
            _ => text.trim_end().ends_with("</html>"),
        };
        assert!(is_whole, "{name} is cut off");
    }
}

#[test]
fn a_killed_run_leaves_whole_files() {
    let folder = folder("killed");
    let begun = std::time::Instant::now();
    assert!(quickstart(&folder).status().expect("it starts").success());
    let whole = begun.elapsed();
    for part in 1..=KILLS {
        let mut child = quickstart(&folder).spawn().expect("it starts");
        std::thread::sleep(whole * u32::try_from(part).expect("few") / u32::try_from(KILLS).expect("few"));
        // It may have ended by itself.
        let _ = child.kill();
        child.wait().expect("it ended");
        assert_whole(&folder);
    }
}

/// A place that cannot be written is named before runs are read, and so before minutes of work.
#[test]
fn an_import_tries_its_place_first() {
    let folder = folder("import");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (place, table) = (folder.join("missing/x.toml"), folder.join("runs.csv"));
    std::fs::write(&table, "no,such,columns\n1,2,3\n").expect("a table");
    let words = ["--format", "serving-runs", "--name", "x", "--gpu", "h100-sxm", "--source", "y"];
    let mut verb = Command::new(env!("CARGO_BIN_EXE_skrull-sim"));
    let output = verb
        .arg("import")
        .arg(&table)
        .args(words)
        .args(["--date", "2026-01-01", "--out"])
        .arg(&place)
        .output()
        .expect("it starts");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{why}");
    assert!(why.contains("cannot write") && why.contains("missing/x.toml"), "{why}");
}

/// What an import of a file says, which ends with wrong input.
fn refused(file: &Path, flags: &[&str]) -> String {
    let mut verb = Command::new(env!("CARGO_BIN_EXE_skrull-sim"));
    let output = verb.arg("import").arg(file).args(flags).output().expect("it starts");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{why}");
    why
}

#[test]
fn an_import_says_why_a_file_cannot_be_read_and_which_flags_have_no_meaning() {
    let folder = folder("unread");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (script, letters) = (folder.join("train.sh"), folder.join("letters.sh"));
    std::fs::write(&letters, b"torchrun \xe4\n").expect("a file");
    std::fs::write(&script, "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2\n").expect("a script");
    let missing = refused(&folder.join("nope.sh"), &[]);
    assert!(missing.contains("cannot read") && missing.contains("nope.sh"), "{missing}");
    assert!(!missing.contains("--name"), "{missing}");
    let letters = refused(&letters, &[]);
    assert!(letters.contains("it is not UTF-8 text (byte 10)"), "{letters}");
    let of_tables =
        refused(&script, &["--gpu", "h100-sxm", "--name", "x", "--date", "2026-01-01", "--format", "simumax"]);
    assert!(of_tables.contains("`--format`, `--name`, `--date` has no meaning"), "{of_tables}");
    // A folder may have tables.
    let of_scripts = refused(&folder, &["--name", "x", "--nodes", "2"]);
    assert!(of_scripts.contains("`--nodes` has no meaning"), "{of_scripts}");
    assert!(refused(&folder, &[]).contains("tables need `--name`"));
}

/// What a verb prints, where it ends well.
fn printed(words: &[&str], file: &Path, set: &[&str]) -> String {
    let mut verb = Command::new(env!("CARGO_BIN_EXE_skrull-sim"));
    verb.arg(words[0]).arg(file).args(&words[1..]).args(set.iter().flat_map(|item| ["--set", item]));
    let output = verb.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn an_import_with_keys_is_the_run_with_them() {
    let folder = folder("set");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (script, mine) = (folder.join("train.sh"), folder.join("mine.toml"));
    let text = "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 \\\n  \
                --vocab-size 32000 --bf16 --micro-batch-size 1 --global-batch-size 32 --use-distributed-optimizer\n";
    std::fs::write(&script, text).expect("a script");
    let machine = ["cluster.gpu=h100-sxm", "cluster.nodes=2"];
    let set = [&machine[..], &["training.recompute=full", "parallel.zero=2"]].concat();
    let imported = printed(&["import"], &script, &set);
    // The same as an import that is edited: a line in the place of another one.
    let plain = printed(&["import", "--gpu", "h100-sxm", "--nodes", "2"], &script, &[]);
    let is_other = |line: &&str| !plain.lines().any(|own| own == *line);
    let mut others: Vec<&str> = imported.lines().filter(is_other).filter_map(|line| line.split(" #").next()).collect();
    others.iter_mut().for_each(|line| *line = line.trim());
    let given = ["gpu = \"h100-sxm\"", "nodes = 2", "zero = 2", "recompute = \"full\""];
    let mut sorted = given;
    others.sort_unstable();
    sorted.sort_unstable();
    assert_eq!(others, sorted, "{imported}");
    std::fs::write(&mine, &imported).expect("a scenario");
    let place = folder.join("out").display().to_string();
    let result = |file: &Path, set: &[&str]| {
        let text = printed(&["run", "--format", "json", "--no-progress", "--out", &place], file, set);
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["results"][0]["metrics"].clone()
    };
    assert!(result(&mine, &[])["iteration_time_s"].is_number());
    assert_eq!(result(&mine, &[]), result(&script, &set));
    // What `run` refuses an import refuses, in the same words.
    let wrong = refused(&script, &["--set", "cluster.gpu=h100-sxm", "--set", "training.recompoot=full"]);
    assert!(wrong.contains("recompoot") && wrong.contains("did you mean `recompute`"), "{wrong}");
    assert!(refused(&script, &["--gpu", "b200", "--set", "nodes"]).contains("`--set nodes` has no `=`"));
    let twice = refused(&script, &["--gpu", "b200", "--set", "cluster.gpu=h100-sxm"]);
    assert!(twice.contains("`--gpu` has no meaning") && twice.contains("`--set` says too"), "{twice}");
}

#[test]
fn a_full_disk_leaves_what_was_there() {
    let folder = folder("full");
    assert!(quickstart(&folder).status().expect("it starts").success());
    let before = std::fs::read(folder.join("result.json")).expect("it was written");
    // A limit on the size of files, 512 bytes a block, fails as a full disk does.
    let line = format!(
        "trap '' XFSZ; ulimit -f 2; exec {} run quickstart --quiet --seed 7 --out {}",
        env!("CARGO_BIN_EXE_skrull-sim"),
        folder.display()
    );
    let output = Command::new("sh").args(["-c", &line]).output().expect("a shell");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{why}");
    assert!(why.contains("cannot write"), "{why}");
    assert_eq!(std::fs::read(folder.join("result.json")).expect("it is there"), before);
    assert_whole(&folder);
    let left = std::fs::read_dir(&folder)
        .expect("a folder")
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with('.'));
    assert_eq!(left.count(), 0, "nothing is left over");
}

#[test]
fn a_folder_that_takes_no_files_is_named() {
    let output = quickstart(Path::new("/proc/none")).stderr(Stdio::piped()).output().expect("it starts");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{why}");
    assert!(why.contains("/proc/none"), "{why}");
}

#[test]
fn a_run_that_is_asked_to_stop_writes_what_there_is() {
    let folder = folder("stopped");
    let mut command = quickstart(&folder);
    let output = command.args(["--time-limit", "0.000001"]).stderr(Stdio::piped()).output().expect("it starts");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{why}");
    assert_whole(&folder);
}
