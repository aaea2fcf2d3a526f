//! Measured runs beside their prediction, through the program itself: `validate --measured`, `--refit`, and files of exchanges.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A folder of this test, emptied.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("measured-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for test outputs");
    folder
}

fn run(args: &[&str], out: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skrull-sim"));
    command.args(args).arg("--out").arg(out).current_dir(super::root());
    command.output().expect("the program starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Predictions of the mean TTFT and TPOT of the first setting.
fn predicted(path: &Path, part: &str) -> [f64; 2] {
    let text = std::fs::read_to_string(path).expect("a report");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let terms = report[part][0]["terms"].as_array().expect("terms").clone();
    ["ttft_s.mean", "tpot_s.mean"].map(|key| {
        let term = terms.iter().find(|term| term["key"] == key).unwrap_or_else(|| panic!("{key} in {text}"));
        term["predicted"].as_f64().expect("a number")
    })
}

/// 64 requests, 16 in flight, 2 % apart: TTFT 60 ms, 20 ms a token.
fn vllm_result() -> String {
    let list = |of: &dyn Fn(usize) -> String| (0..64).map(of).collect::<Vec<String>>().join(", ");
    format!(
        r#"{{"model_id": "m", "request_rate": "inf", "max_concurrency": 16, "completed": 64, "total_input_tokens": 65536, "total_output_tokens": 8192,
        "input_lens": [{}], "output_lens": [{}], "ttfts": [{}], "latencies": [{}], "start_times": [{}], "errors": [{}]}}"#,
        list(&|_| "1024".to_owned()),
        list(&|_| "128".to_owned()),
        list(&|n| format!("{:.4}", 0.06 + 0.0001 * (n % 2) as f64)),
        list(&|_| "2.6".to_owned()),
        list(&|n| format!("{:.3}", 2.6 * (n / 16) as f64 + 0.001 * n as f64)),
        list(&|_| "\"\"".to_owned())
    )
}

const SCENARIO: [&str; 5] = ["serving/closed-loop", "--set", "trace.requests=64", "--set", "trace.concurrency=16"];

#[test]
fn nothing_is_said_of_requests_that_are_not_played() {
    let out = folder("long");
    let file = out.join("bench.json");
    std::fs::write(&file, vllm_result()).expect("a file");
    let file = file.to_str().expect("a path");
    let long = |share: f64| format!("trace.long={{ share = {share:?}, tokens_min = 400000, tokens_max = 500000 }}");
    for share in [0.1, 1.0] {
        let set = long(share);
        let played = run(&[&["run"], &SCENARIO[..], &["--set", &set]].concat(), &out);
        assert!(said(&played).contains("S097"), "{}", said(&played));
        let measured = run(&[&["validate"], &SCENARIO[..], &["--set", &set, "--measured", file]].concat(), &out);
        assert!(measured.status.success() && !said(&measured).contains("S097"), "{}", said(&measured));
    }
}

#[test]
fn a_profile_that_was_calibrated_predicts_what_its_refit_said() {
    let out = folder("refit");
    let file = out.join("result.json");
    std::fs::write(&file, vllm_result()).expect("a file");
    let file = file.to_str().expect("a path");
    let first = run(&[&["validate"], &SCENARIO[..], &["--measured", file, "--refit"]].concat(), &out);
    assert!(first.status.success(), "{}", said(&first));
    let profile = out.join("profile.toml");
    let text = std::fs::read_to_string(&profile).expect("a profile");
    assert!(
        text.contains("calibrated on 1 run\"") && text.contains("vllm bench serve: 64 requests of 1024 + 128"),
        "{text}"
    );
    let (plain, fitted) =
        (predicted(&out.join("measured.json"), "settings"), predicted(&out.join("measured.json"), "calibrated"));
    assert!(
        (fitted[1] - 0.02).abs() < (plain[1] - 0.02).abs() && (fitted[1] / 0.02 - 1.0).abs() < 0.05,
        "{plain:?} {fitted:?}"
    );
    let again = folder("again");
    let set = format!("cost.profile=\"{}\"", profile.display());
    let second = run(&[&["validate"], &SCENARIO[..], &["--set", &set, "--measured", file]].concat(), &again);
    assert!(second.status.success(), "{}", said(&second));
    assert_eq!(predicted(&again.join("measured.json"), "settings"), fitted);
}

#[test]
fn gates_hold_and_wrong_files_are_refused() {
    let out = folder("gates");
    let file = out.join("result.json");
    std::fs::write(&file, vllm_result()).expect("a file");
    let measured = ["--measured", file.to_str().expect("a path")];
    let with = |more: &[&str]| run(&[&["validate"], &SCENARIO[..], &measured[..], more].concat(), &out);
    assert_eq!(with(&["--gate", "tpot_error<=9"]).status.code(), Some(0));
    let missed = with(&["--gate", "tpot_error<=0.0001"]);
    assert_eq!(missed.status.code(), Some(1), "{}", said(&missed));
    assert_eq!(with(&["--device", "cpu"]).status.code(), Some(2));
    std::fs::write(&file, "{}").expect("a file");
    let unknown = with(&[]);
    assert!(
        unknown.status.code() == Some(2) && said(&unknown).contains("no measured run: known are"),
        "{}",
        said(&unknown)
    );
    let training = run(&[&["validate", "quickstart"], &measured[..]].concat(), &out);
    assert!(
        training.status.code() == Some(2) && said(&training).contains("no trace of a profiler"),
        "{}",
        said(&training)
    );
}

#[test]
fn a_recorded_step_calibrates_a_profile_that_predicts_what_its_refit_said() {
    let out = folder("recorded");
    // Two steps: products of 500 ms, an exchange of 1 ms.
    let events = |step: u32| {
        let at = step * 1_000_000;
        format!(
            r#"{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step}", "ts": {at}, "dur": 900000}},
            {{"ph": "X", "cat": "kernel", "name": "nvjet_tst", "ts": {at}, "dur": 500000, "args": {{"device": 0}}}},
            {{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_ReduceScatter_Sum", "ts": {}, "dur": 1000, "args": {{"device": 0}}}}"#,
            at + 500_000
        )
    };
    let file = out.join("rank0.json");
    let text = format!(r#"{{"distributedInfo": {{"rank": 0}}, "traceEvents": [{}, {}]}}"#, events(1), events(2));
    std::fs::write(&file, text).expect("a file");
    let measured = ["--measured", file.to_str().expect("a path")];
    let first = run(&[&["validate", "quickstart"], &measured[..], &["--refit"]].concat(), &out);
    assert!(first.status.success(), "{}", said(&first));
    assert!(
        said(&first).contains("left as it is: attention forward: it is predicted and was not recorded"),
        "{}",
        said(&first)
    );
    let products = |path: &Path, pointer: &str| {
        let report: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("a report")).expect("JSON");
        let terms = report.pointer(pointer).and_then(Value::as_array).unwrap_or_else(|| panic!("{report:#}")).clone();
        terms.iter().find(|term| term["term"] == "product").expect("products")["predicted_s"].as_f64().expect("seconds")
    };
    let fitted = products(&out.join("measured.json"), "/calibrated/0/found/terms");
    assert!((fitted / 0.5 - 1.0).abs() < 1e-3, "{fitted}");
    let profile = out.join("profile.toml");
    let text = std::fs::read_to_string(&profile).expect("a profile");
    assert!(text.contains("calibrated on 1 run\"") && text.contains("2 recorded steps, rank 0"), "{text}");
    let again = folder("recorded-again");
    let set = format!("cost.profile=\"{}\"", profile.display());
    let second = run(&[&["validate", "quickstart", "--set", &set], &measured[..]].concat(), &again);
    assert!(second.status.success(), "{}", said(&second));
    let predicted = products(&again.join("measured.json"), "/files/0/found/terms");
    assert!((predicted / fitted - 1.0).abs() < 1e-9, "{predicted} {fitted}");
    // Factors are of the profile without any, so a second refit on the same step finds them again.
    let third = run(&[&["validate", "quickstart", "--set", &set], &measured[..], &["--refit"]].concat(), &again);
    assert!(third.status.success(), "{}", said(&third));
    let refitted = products(&again.join("measured.json"), "/calibrated/0/found/terms");
    assert!((refitted / fitted - 1.0).abs() < 1e-9, "{refitted} {fitted}");
}

/// vLLM 0.19 on two cards, 300 requests each (casys-kaist/LLMServingSim @ 5daddb21a545).
#[test]
fn replayed_runs_of_two_cards_are_near() {
    for (scenario, card) in [("serving/bench-rtx4090", "RTX4090"), ("serving/bench-rtxpro6000", "RTXPRO6000")] {
        let path = super::root()
            .join(format!("../shared/data/llmservingsim/bench/examples/{card}/Llama-3.1-8B/vllm/requests.jsonl"));
        if !path.exists() {
            println!("skipped: shared data absent ({})", path.display());
            continue;
        }
        let gates = ["--gate", "ttft_error<=0.1", "--gate", "tpot_error<=0.05"];
        let file = path.to_str().expect("a path");
        let found = run(&[&["validate", scenario, "--measured", file], &gates[..]].concat(), &folder(card));
        assert!(found.status.success(), "{}", said(&found));
    }
}

#[test]
fn output_of_nccl_tests_becomes_a_profile_that_a_scenario_takes() {
    let out = folder("nccl");
    let mut text =
        "# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 8 minBytes 1024\n# Using devices\n".to_owned();
    (0..8).for_each(|rank| {
        text += &format!("#  Rank  {rank} Group  0 Pid 1 on a device  {rank} [0000:0f:00] NVIDIA H100\n")
    });
    text += "#       size         count      type   redop    root     time\n";
    for power in 10..30 {
        let bytes = 1_u64 << power;
        text += &format!("{bytes} {} float sum -1 {:.2} 0 0 0 1 0 0 0\n", bytes / 4, 20.0 + bytes as f64 / 200e3);
    }
    let log = out.join("all_reduce.log");
    std::fs::write(&log, text).expect("a file");
    let profile = out.join("mine.toml");
    let args = [
        "import",
        log.to_str().expect("a path"),
        "--gpu",
        "h100-sxm",
        "--name",
        "mine",
        "--source",
        "my node",
        "--date",
        "2026-11-22",
    ];
    let found = run(&args, &profile);
    assert!(found.status.success(), "{}", said(&found));
    let set = format!("cost.profile=\"{}\"", profile.display());
    let ran = run(
        &["run", "quickstart", "--set", &set, "--set", "cluster.gpu=\"h100-sxm\"", "--format", "json"],
        &out.join("run"),
    );
    assert!(ran.status.success() && said(&ran).contains("\"mine\""), "{}", said(&ran));
}
