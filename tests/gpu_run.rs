//! The whole of `calibrate/gpu-run.sh` on a machine without a GPU: the stand-in of a CUDA machine behind the program, and a stand-in of
//! `nvidia-smi`. Kernels are emulated a few times, which is enough to check them; all take a time that follows from their sizes. So
//! figures mean little and their structure everything: every file that the header promises, a wrong kernel, a device that is lost, a time that runs out.
//!
//! A machine without a C++ compiler named `c++`, or without `bash` and `timeout`, says so and skips.

#[path = "../calibrate/tests/standin/built.rs"]
mod built;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The test harness captures `println!`; a skipped check must be seen.
fn aloud(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("a line on stderr");
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A step of one rank whose activations go to the host and back.
const OFFLOAD: &str = r#"
kind = "training"
seed = 0

[model]
config = "model.json"

[cluster]
gpu = "h200-sxm"
nodes = 1
gpus_per_node = 1

[parallel]
dp = 1
cp = 1
zero = 1
exchange = "ring"

[training]
batch_size = 1
recompute = "selective"
bucket_tokens = 1024

[workload]
tokens = 1024

[policies]
run = ["none", "all"]
baseline = "none"

[[policies.variant]]
name = "none"
policy = "bytescale"

[[policies.variant]]
name = "all"
policy = "bytescale"
offload = "fixed"
offload_ratio = 1.0
"#;

/// A model of six layers: of all but two of them activations may go.
const MODEL: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "head_dim": 64,
"intermediate_size": 704, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048,
"max_position_embeddings": 32768, "tie_word_embeddings": false, "torch_dtype": "bfloat16"}"#;

/// One run of the script in a folder of its own.
struct Run {
    out: PathBuf,
    output: Output,
}

impl Run {
    fn text(&self, file: &str) -> String {
        let path = self.out.join(file);
        std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", path.display(), built::said(&self.output)))
    }

    /// Lines of the table that begin so.
    fn lines(&self, begin: &str) -> Vec<String> {
        let summary = self.text("summary.txt");
        summary.lines().filter(|line| line.starts_with(begin)).map(str::to_owned).collect()
    }
}

/// Runs the script with these settings; `None` where this machine cannot.
fn run(name: &str, settings: &[(&str, &str)]) -> Option<Run> {
    let there = |program: &str| Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    if !built::has_compiler() || !there("bash") || !there("timeout") {
        aloud("skipped: the script on a stand-in of a CUDA machine needs bash, timeout and a C++ compiler named c++");
        return None;
    }
    let libraries = built::libraries(&root().join("calibrate"));
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu-run-{name}"));
    let _ = std::fs::remove_dir_all(&out);
    let tools = out.join("tools");
    std::fs::create_dir_all(&tools).expect("a folder for test outputs");
    let smi = tools.join("nvidia-smi");
    std::fs::write(&smi, "#!/bin/sh\necho \"Stand-in H200, asked for: $*\"\n").expect("written");
    executable(&smi);
    std::fs::write(out.join("model.json"), MODEL).expect("written");
    std::fs::write(out.join("offload.toml"), OFFLOAD).expect("written");
    let mut path = vec![tools];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let scenarios = format!("validate/cpu-small {}", out.join("offload.toml").display());
    let output = Command::new("bash")
        .arg(root().join("calibrate/gpu-run.sh"))
        .args([Path::new(env!("CARGO_BIN_EXE_skrull-sim")), &out])
        .env("PATH", std::env::join_paths(path).expect("plain paths"))
        .env("LD_LIBRARY_PATH", &libraries)
        .env("SCENARIOS", scenarios)
        .envs([("BUDGET", "3s"), ("MAX_LEN", "256"), ("RUNS", "1"), ("STANDIN_MEMORY", "4000000000")])
        .envs([("STANDIN_EFFORT", "128")])
        .envs(settings.iter().copied())
        .output()
        .expect("bash starts");
    Some(Run { out, output })
}

#[cfg(unix)]
fn executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a file of our own");
}

#[cfg(not(unix))]
fn executable(_: &Path) {}

#[test]
fn the_whole_script_passes_and_leaves_what_its_header_promises() {
    let Some(run) = run("whole", &[]) else { return };
    assert!(run.output.status.success(), "{}", built::said(&run.output));
    assert_eq!((run.lines("ok ").len(), run.lines("FAILED").len()), (5, 0), "{}", run.text("summary.txt"));
    assert!(run.text("machine.txt").contains("CLOCK,MEMORY,PERFORMANCE"));
    let kernels = run.text("kernels.txt");
    assert!(kernels.contains("gemm bf16") && kernels.contains("TFLOP/s") && kernels.contains("GB/s"), "{kernels}");
    assert!(run.text("calibration.txt").contains("device_to_host"));
    assert!(run.text("gpu.toml").contains("gpu = \"h200-sxm\"") && run.text("gpu.samples.jsonl").lines().count() > 20);
    for (folder, plans) in [("cpu-small", 10), ("offload", 2)] {
        for file in ["table.txt", "validation.md", "validation.html", "profile.toml"] {
            assert!(!run.text(&format!("{folder}/{file}")).is_empty());
        }
        let report: serde_json::Value =
            serde_json::from_str(&run.text(&format!("{folder}/validation.json"))).expect("JSON");
        let ran = report["plans"].as_array().expect("plans");
        assert_eq!(ran.len(), plans, "{folder}: {report}");
        for plan in ran {
            let policy = plan["policy"].as_str().expect("a name");
            run.text(&format!("{folder}/plan-{policy}.json"));
            run.text(&format!("{folder}/timeline-{policy}.json"));
        }
        assert!(run.text("summary.txt").contains(&format!("{folder}/table.txt")));
    }
    // On a machine whose times follow from sizes, what was measured on half of the plans holds for the others.
    let report: serde_json::Value = serde_json::from_str(&run.text("cpu-small/validation.json")).expect("JSON");
    let error = report["refit"]["after"]["step_mean"].as_f64().expect("a figure");
    assert!(error < 0.03, "after a second fit steps are off by {error}");
    assert!(run.text("offload/table.txt").contains(" % of the copies are hidden"), "{}", run.text("offload/table.txt"));
    let failed: Vec<String> = std::fs::read_dir(&run.out)
        .expect("a folder")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".err"))
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn a_wrong_kernel_is_named_and_the_rest_is_measured() {
    // Four GPUs that the catalogue does not know are planned for as another one; they exchange by NCCL.
    let python = built::folder().join("python");
    let settings = [
        ("STANDIN_WRONG", "swiglu_forward"),
        ("STANDIN_NAME", "NVIDIA X1"),
        ("STANDIN_DEVICES", "4"),
        ("VIRTUAL_ENV", &*python.to_string_lossy()),
        ("SCENARIOS", "validate/cpu-small"),
    ];
    let Some(run) = run("wrong", &settings) else { return };
    assert_eq!(run.output.status.code(), Some(1), "{}", built::said(&run.output));
    let failed = run.lines("FAILED");
    assert!(failed.len() == 1 && failed[0].starts_with("FAILED  kernels, exit 3"), "{failed:?}");
    assert!(run.text("kernels.txt").contains("TFLOP/s"), "rates are measured all the same");
    assert!(failed[0].contains("swiglu") && failed[0].contains("against a float64 reference"), "{failed:?}");
    assert_eq!(run.lines("ok ").len(), 3, "{}", run.text("summary.txt"));
    assert!(run.text("gpu.toml").contains("--unchecked"), "the profile says that a kernel was wrong");
    let profile = run.text("gpu.toml");
    assert!(profile.contains("NCCL 2.28.3") && profile.contains("[[collectives]]"), "{profile}");
    let report = run.text("cpu-small/validation.json");
    assert!(report.contains("\"collective\"") && !report.contains("\"modelled\""), "exchanges are measured");
}

#[test]
fn a_device_that_is_lost_leaves_what_was_measured() {
    // Every program loses it after so many launches: the check ends before, a calibration and the plans do not.
    let Some(run) = run("lost", &[("STANDIN_FAULT_AFTER", "400"), ("SCENARIOS", "validate/cpu-small")]) else { return };
    assert_eq!(run.output.status.code(), Some(1), "{}", built::said(&run.output));
    let failed = run.lines("FAILED");
    assert_eq!(failed.len(), 2, "{}", run.text("summary.txt"));
    assert!(
        failed[0].starts_with("FAILED  calibration, exit 3") && failed[0].contains("error: device lost"),
        "{failed:?}"
    );
    assert!(failed[0].contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{failed:?}");
    assert!(
        failed[1].starts_with("FAILED  validate/cpu-small, exit 3") && failed[1].contains("device lost"),
        "{failed:?}"
    );
    // What was measured before is fitted, and says what it rests on.
    assert!(run.text("calibration.err").contains("the same command goes on from them"));
    let n = run.text("gpu.samples.jsonl").lines().count();
    assert!(n > 3 && run.text("gpu.toml").contains(&format!("{n} samples")), "{n}\n{}", run.text("summary.txt"));
    assert_eq!(run.lines("ok      kernels").len(), 1, "{}", run.text("summary.txt"));
    assert_eq!(run.lines("ok      calibration, from its samples").len(), 1, "{}", run.text("summary.txt"));
}

#[test]
fn a_kernel_that_hangs_costs_no_more_than_the_time_that_is_left() {
    let Some(run) = run("hang", &[("STANDIN_HANG", "swiglu_forward"), ("SECONDS_ALL", "6")]) else { return };
    assert_eq!(run.output.status.code(), Some(1), "{}", built::said(&run.output));
    let failed = run.lines("FAILED");
    assert!(failed[0].starts_with("FAILED  kernels, exit 124") && failed[0].contains("its limit of "), "{failed:?}");
    assert!(failed[1..].iter().all(|line| line.ends_with("no time is left")), "{failed:?}");
    assert_eq!(failed.len(), 4, "{failed:?}");
}

#[test]
fn a_machine_without_cuda_is_told_what_was_looked_for() {
    let Some(run) = run("bare", &[("LD_LIBRARY_PATH", ""), ("PATH", "/usr/bin:/bin")]) else { return };
    let failed = run.lines("FAILED");
    if failed.is_empty() {
        aloud("skipped: this machine has a CUDA device");
        return;
    }
    assert!(failed[0].starts_with("FAILED  machine, exit 127") && failed[0].ends_with("no such program"), "{failed:?}");
    assert!(failed[1].contains("exit 3") && failed[1].contains("the CUDA driver was not found"), "{failed:?}");
    assert_eq!((run.output.status.code(), failed.len()), (Some(1), 5), "{failed:?}");
}
